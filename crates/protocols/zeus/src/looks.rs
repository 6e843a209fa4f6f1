//! What nodes say about keys that one of them reads without a copy.
//!
//! ```text
//! keys:     bytes ...
//! copy:     0 u8 | 1 u8, version timestamp, owner u32, moves u32, content
//! versions: key bytes, version timestamp ...
//! ```

use alloc::vec::Vec;

use quorate_machine::Content;
use quorate_types::{MemberNumber, Timestamp, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::fields::{
    begin_list, count_one, elements, read_content, read_flag, read_key, read_list, read_member,
    write_content,
};

/// What a reader and members of the groups of its keys say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookMessage<'a> {
    /// Reader → member of the groups of these keys: what do they hold?
    Look {
        /// Which transaction of the reader, and which of its questions.
        question: Question,
        /// The keys.
        keys: Keys<'a>,
    },
    /// Its answer: the first of them, in their order. It leaves behind the member's lease.
    Seen {
        /// As it was asked.
        question: Question,
        /// What they hold.
        copies: Copies<'a>,
    },
    /// Reader → the member that has told of them: is that still so?
    Check {
        /// Which transaction of the reader, and which of its questions.
        question: Question,
        /// The keys, and the versions that were seen.
        versions: Versions<'a>,
    },
    /// Its answer. It leaves behind the member's lease.
    Checked {
        /// As it was asked.
        question: Question,
        /// Whether each key may be read and has the version that was seen.
        holds: bool,
    },
}

/// A question of a reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Question {
    /// The transaction.
    pub reader: u64,
    /// Which of its questions.
    pub number: u64,
}

/// A list of keys, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys<'a>(&'a [u8]);

/// A list of what keys hold, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copies<'a>(&'a [u8]);

/// A list of keys with versions, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions<'a>(&'a [u8]);

/// What a key holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen<'a> {
    /// The version.
    pub version: Timestamp,
    /// The member that the key was moved to last.
    pub owner: MemberNumber,
    /// How often it has moved. Only shown to people.
    pub moves: u32,
    /// The value.
    pub content: Option<Content<'a>>,
}

fn read_copy<'a>(reader: &mut Reader<'a>) -> Result<Option<Seen<'a>>, Malformed> {
    if !read_flag(reader)? {
        return Ok(None);
    }
    let (version, owner, moves) = (reader.timestamp()?, read_member(reader)?, reader.u32()?);
    Ok(Some(Seen { version, owner, moves, content: read_content(reader)? }))
}

fn read_version<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Timestamp), Malformed> {
    Ok((read_key(reader)?, reader.timestamp()?))
}

impl<'a> Keys<'a> {
    /// A list in bytes of its own.
    pub fn write<'b>(keys: impl Iterator<Item = &'b [u8]>) -> Vec<u8> {
        let mut bytes = begin_list(0);
        for key in keys {
            count_one(&mut bytes);
            Writer(&mut bytes).bytes(key);
        }
        bytes
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let keys = Self::read(&mut reader)?;
        reader.end().map(|()| keys)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::TXN_KEYS_MAX, read_key).map(Self)
    }

    /// The keys.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        elements(self.0, read_key)
    }
}

impl<'a> Copies<'a> {
    /// An empty list.
    pub(crate) fn begin() -> Vec<u8> {
        begin_list(0)
    }

    /// Appends what a key holds to a list that `begin` has begun, or that it may not be read.
    pub fn push(bytes: &mut Vec<u8>, copy: Option<Seen<'_>>) {
        count_one(bytes);
        let mut writer = Writer(bytes);
        writer.u8(u8::from(copy.is_some()));
        if let Some(Seen { version, owner, moves, content }) = copy {
            writer.timestamp(version);
            writer.u32(owner.0);
            writer.u32(moves);
            write_content(&mut writer, content);
        }
    }

    /// A list in bytes of its own.
    pub fn write<'b>(copies: impl Iterator<Item = Option<Seen<'b>>>) -> Vec<u8> {
        let mut bytes = Self::begin();
        copies.for_each(|copy| Self::push(&mut bytes, copy));
        bytes
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let copies = Self::read(&mut reader)?;
        reader.end().map(|()| copies)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::TXN_KEYS_MAX, read_copy).map(Self)
    }

    /// What each key holds, unless it may not be read.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Option<Seen<'a>>> {
        elements(self.0, read_copy)
    }
}

impl<'a> Versions<'a> {
    /// A list in bytes of its own.
    pub fn write<'b>(versions: impl Iterator<Item = (&'b [u8], Timestamp)>) -> Vec<u8> {
        let mut bytes = begin_list(0);
        for (key, version) in versions {
            count_one(&mut bytes);
            let mut writer = Writer(&mut bytes);
            writer.bytes(key);
            writer.timestamp(version);
        }
        bytes
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let versions = Self::read(&mut reader)?;
        reader.end().map(|()| versions)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::TXN_KEYS_MAX, read_version).map(Self)
    }

    /// The keys, and their versions.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (&'a [u8], Timestamp)> {
        elements(self.0, read_version)
    }
}

const LOOK: u8 = 20;
const SEEN: u8 = 21;
const CHECK: u8 = 22;
const CHECKED: u8 = 23;

impl Question {
    fn encode(self, writer: &mut Writer<'_>) {
        writer.u64(self.reader);
        writer.u64(self.number);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { reader: reader.u64()?, number: reader.u64()? })
    }
}

impl<'a> LookMessage<'a> {
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Look { question, keys } => {
                writer.u8(LOOK);
                question.encode(writer);
                writer.rest(keys.0);
            }
            Self::Seen { question, copies } => {
                writer.u8(SEEN);
                question.encode(writer);
                writer.rest(copies.0);
            }
            Self::Check { question, versions } => {
                writer.u8(CHECK);
                question.encode(writer);
                writer.rest(versions.0);
            }
            Self::Checked { question, holds } => {
                writer.u8(CHECKED);
                question.encode(writer);
                writer.u8(u8::from(holds));
            }
        }
    }

    /// Reads the fields of a message of this kind; `None` if the kind is no such one.
    pub(crate) fn read(kind: u8, reader: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        Ok(Some(match kind {
            LOOK => Self::Look { question: Question::decode(reader)?, keys: Keys::read(reader)? },
            SEEN => {
                Self::Seen { question: Question::decode(reader)?, copies: Copies::read(reader)? }
            }
            CHECK => Self::Check {
                question: Question::decode(reader)?,
                versions: Versions::read(reader)?,
            },
            CHECKED => {
                Self::Checked { question: Question::decode(reader)?, holds: read_flag(reader)? }
            }
            _ => return Ok(None),
        }))
    }
}
