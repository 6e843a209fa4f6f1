//! Answers.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_types::Timestamp;
use quorate_wire::{Malformed, Reader, Writer};

use crate::notes::{Note, Noted};
use crate::string::WRONGTYPE;

/// The answer to a command, before it is encoded as RESP2 or RESP3.
///
/// What the two protocols say differently is one variant here: a [`Reply::Map`] is a flat array in
/// RESP2, [`Reply::Null`] a null bulk string, [`Reply::Double`] a bulk string.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply<'a> {
    /// `+OK`.
    Ok,
    /// A simple string.
    Status(Cow<'static, str>),
    /// An integer.
    Int(i64),
    /// A bulk string.
    Bulk(Cow<'a, [u8]>),
    /// No value.
    Null,
    /// No array: what an aborted `EXEC` answers.
    NullArray,
    /// Several answers in order.
    Array(Vec<Reply<'a>>),
    /// Pairs.
    Map(Vec<(Reply<'a>, Reply<'a>)>),
    /// Pairs in order: arrays of two in RESP3, one flat array in RESP2.
    Pairs(Vec<(Reply<'a>, Reply<'a>)>),
    /// Keys with what belongs to each: a map in RESP3, an array of arrays of two in RESP2.
    Keyed(Vec<(Reply<'a>, Reply<'a>)>),
    /// Several answers whose order has no meaning.
    Set(Vec<Reply<'a>>),
    /// A floating-point number.
    Double(f64),
    /// Yes or no; a number in RESP2.
    Bool(bool),
    /// A whole number of any length, in decimal digits.
    BigNumber(Cow<'a, str>),
    /// A floating-point number with up to 17 digits behind the point and never an exponent.
    Decimal(f64),
    /// Text for people, such as `INFO`.
    Verbatim(Cow<'a, str>),
    /// An error: code word, sentence and remedy, without line breaks.
    Error(Cow<'a, str>),
    /// The version of a key and whether it has a value, for `WATCH`. Never sent to a client.
    Version(Timestamp, bool),
    /// An answer with notes of what is to be told with it. Never sent to a client.
    Noted(Box<Noted>),
}

/// How deep an answer can nest. Scripts nest what they answer;
/// `COMMAND DOCS` stays on its node.
pub const DEPTH_MAX: u32 = 128;

/// The number of [`Reply::Array`] where it is encoded.
const ARRAY: u8 = 6;

impl<'a> Reply<'a> {
    /// An error with a fixed text.
    pub const fn error(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }

    /// What `MGET` says of a key, by what `GET` answers: nothing of one that holds no string.
    pub fn element(&self) -> &Self {
        if *self == WRONGTYPE { &Self::Null } else { self }
    }

    /// The same of an answer that is not needed any more.
    pub(crate) fn into_element(self) -> Self {
        if self == WRONGTYPE { Self::Null } else { self }
    }

    /// A simple string with a fixed text.
    pub const fn status(text: &'static str) -> Self {
        Self::Status(Cow::Borrowed(text))
    }

    /// A bulk string with a fixed text.
    pub const fn text(text: &'static str) -> Self {
        Self::Bulk(Cow::Borrowed(text.as_bytes()))
    }

    /// Whether it is an error.
    pub const fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// A copy that borrows nothing.
    pub fn into_owned(self) -> Reply<'static> {
        let all = |replies: Vec<Reply<'a>>| replies.into_iter().map(Reply::into_owned).collect();
        let pairs = |pairs: Vec<(Reply<'a>, Reply<'a>)>| {
            pairs.into_iter().map(|(one, other)| (one.into_owned(), other.into_owned())).collect()
        };
        match self {
            Self::Ok => Reply::Ok,
            Self::Status(text) => Reply::Status(text),
            Self::Int(number) => Reply::Int(number),
            Self::Bulk(bytes) => Reply::Bulk(Cow::Owned(bytes.into_owned())),
            Self::Null => Reply::Null,
            Self::NullArray => Reply::NullArray,
            Self::Array(replies) => Reply::Array(all(replies)),
            Self::Map(all) => Reply::Map(pairs(all)),
            Self::Pairs(all) => Reply::Pairs(pairs(all)),
            Self::Keyed(all) => Reply::Keyed(pairs(all)),
            Self::Set(replies) => Reply::Set(all(replies)),
            Self::Double(number) => Reply::Double(number),
            Self::Bool(is) => Reply::Bool(is),
            Self::BigNumber(digits) => Reply::BigNumber(Cow::Owned(digits.into_owned())),
            Self::Decimal(number) => Reply::Decimal(number),
            Self::Verbatim(text) => Reply::Verbatim(Cow::Owned(text.into_owned())),
            Self::Error(text) => Reply::Error(Cow::Owned(text.into_owned())),
            Self::Version(timestamp, exists) => Reply::Version(timestamp, exists),
            Self::Noted(noted) => Reply::Noted(noted),
        }
    }

    /// Appends a form that [`Reply::decode`] reads back: a number for the variant, then its parts.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(&mut Writer(out));
    }

    /// The same without notes, for an answer that is kept to be given again: of what was done for it
    /// it is told once.
    pub(crate) fn encode_kept(&self, out: &mut Vec<u8>) {
        match self {
            _ if mutant!("commands_notes_kept") => self.encode(out),
            Self::Noted(noted) => noted.reply.encode_kept(out),
            Self::Array(replies) => {
                Self::write_header(ARRAY, replies.len(), &mut Writer(out));
                replies.iter().for_each(|reply| reply.encode_kept(out));
            }
            reply => reply.encode(out),
        }
    }

    /// Reads what [`Reply::encode`] wrote; `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Reply<'static>> {
        let mut reader = Reader(bytes);
        let reply = Reply::read(&mut reader, 0).ok()?;
        reader.end().ok()?;
        Some(reply)
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Ok => writer.u8(0),
            Self::Status(text) => {
                writer.u8(1);
                writer.bytes(text.as_bytes());
            }
            Self::Int(number) => {
                writer.u8(2);
                writer.u64(number.cast_unsigned());
            }
            Self::Bulk(bytes) => {
                writer.u8(3);
                writer.bytes(bytes);
            }
            Self::Null => writer.u8(4),
            Self::NullArray => writer.u8(5),
            Self::Array(replies) => Self::write_all(ARRAY, replies, writer),
            Self::Map(pairs) => Self::write_pairs(7, pairs, writer),
            Self::Pairs(pairs) => Self::write_pairs(13, pairs, writer),
            Self::Keyed(pairs) => Self::write_pairs(17, pairs, writer),
            Self::Set(replies) => Self::write_all(8, replies, writer),
            Self::Double(number) => {
                writer.u8(9);
                writer.u64(number.to_bits());
            }
            Self::Decimal(number) => {
                writer.u8(16);
                writer.u64(number.to_bits());
            }
            Self::Verbatim(text) => {
                writer.u8(10);
                writer.bytes(text.as_bytes());
            }
            Self::Error(text) => {
                writer.u8(11);
                writer.bytes(text.as_bytes());
            }
            Self::Bool(is) => {
                writer.u8(14);
                writer.u8(u8::from(*is));
            }
            Self::BigNumber(digits) => {
                writer.u8(15);
                writer.bytes(digits.as_bytes());
            }
            Self::Version(timestamp, exists) => {
                writer.u8(12);
                writer.timestamp(*timestamp);
                writer.u8(u8::from(*exists));
            }
            Self::Noted(noted) => {
                writer.u8(18);
                noted.write(writer);
            }
        }
    }

    fn write_pairs(variant: u8, pairs: &[(Self, Self)], writer: &mut Writer<'_>) {
        Self::write_header(variant, pairs.len(), writer);
        for (one, other) in pairs {
            one.write(writer);
            other.write(writer);
        }
    }

    fn write_header(variant: u8, count: usize, writer: &mut Writer<'_>) {
        writer.u8(variant);
        writer.u32(u32::try_from(count).expect("answers are bounded"));
    }

    fn write_all(variant: u8, replies: &[Self], writer: &mut Writer<'_>) {
        Self::write_header(variant, replies.len(), writer);
        for reply in replies {
            reply.write(writer);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, depth: u32) -> Result<Reply<'static>, Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed("answer nested too deep"));
        }
        Ok(match reader.u8()? {
            0 => Reply::Ok,
            1 => Reply::Status(Cow::Owned(text(reader)?)),
            2 => Reply::Int(reader.u64()?.cast_signed()),
            3 => Reply::Bulk(Cow::Owned(reader.bytes()?.into())),
            4 => Reply::Null,
            5 => Reply::NullArray,
            ARRAY => Reply::Array(Self::read_all(reader, depth)?),
            7 => Reply::Map(Self::read_pairs(reader, depth)?),
            13 => Reply::Pairs(Self::read_pairs(reader, depth)?),
            17 => Reply::Keyed(Self::read_pairs(reader, depth)?),
            8 => Reply::Set(Self::read_all(reader, depth)?),
            9 => Reply::Double(f64::from_bits(reader.u64()?)),
            14 => match reader.u8()? {
                is @ (0 | 1) => Reply::Bool(is == 1),
                _ => return Err(Malformed("neither true nor false")),
            },
            15 => Reply::BigNumber(Cow::Owned(text(reader)?)),
            16 => Reply::Decimal(f64::from_bits(reader.u64()?)),
            10 => Reply::Verbatim(Cow::Owned(text(reader)?)),
            11 => Reply::Error(Cow::Owned(text(reader)?)),
            12 => {
                let timestamp = reader.timestamp()?;
                match reader.u8()? {
                    exists @ (0 | 1) => Reply::Version(timestamp, exists == 1),
                    _ => return Err(Malformed("neither absent nor present")),
                }
            }
            18 => Reply::Noted(Box::new(Noted::read(reader, depth)?)),
            _ => return Err(Malformed("unknown kind of answer")),
        })
    }

    fn read_pairs(
        reader: &mut Reader<'_>,
        depth: u32,
    ) -> Result<Vec<(Reply<'static>, Reply<'static>)>, Malformed> {
        let count = reader.u32()?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push((Self::read(reader, depth + 1)?, Self::read(reader, depth + 1)?));
        }
        Ok(pairs)
    }

    /// Grows with what is really there: a count can promise more than the input holds.
    fn read_all(reader: &mut Reader<'_>, depth: u32) -> Result<Vec<Reply<'static>>, Malformed> {
        let count = reader.u32()?;
        let mut replies = Vec::new();
        for _ in 0..count {
            replies.push(Self::read(reader, depth + 1)?);
        }
        Ok(replies)
    }
}

impl Reply<'static> {
    /// Takes the notes out of the answer: what is to be told, in order. Answers to blocks have them in
    /// their parts.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let Self::Noted(noted) = self else { return Vec::new() };
        let notes = core::mem::take(&mut noted.notes);
        *self = core::mem::replace(&mut noted.reply, Self::Null);
        notes
    }
}

fn text(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    reader.string(usize::MAX)
}
