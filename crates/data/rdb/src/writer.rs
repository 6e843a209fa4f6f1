//! The writer: values as `DUMP` gives them in, bytes of a file out.

use alloc::vec::Vec;
use core::fmt;

use quorate_machine::mutant;

use crate::bytes::{take, write_number, write_number_wide, write_string};
use crate::crc::{crc64, crc64_on, crc64_zeros};
use crate::error::{Error, Problem};
use crate::form::{Form, opcode};
use crate::limits::{STRING_BYTES_MAX, VERSION_MAX};
use crate::reader::{MAGIC, Reader};

/// The version of a file all of whose values Redis 7.0 reads.
const VERSION: u16 = 10;
/// What stands behind a value in what `DUMP` answers: its version and a checksum.
const FOOTER_BYTES: usize = 2 + 8;

/// What a file begins with.
pub type Header = [u8; MAGIC.len() + 4];

fn header(version: u16) -> Header {
    let mut header = [b'0'; MAGIC.len() + 4];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    let mut rest = version;
    for digit in header[MAGIC.len()..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    header
}

/// What `DUMP` answers: a value, marked with a version and a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload<'a> {
    /// How the value is written.
    pub form: Form,
    value: &'a [u8],
}

/// Why a payload is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PayloadError {
    /// It is shorter than the shortest one, or its checksum is not that of its bytes.
    Checksum,
    /// The server that wrote it is newer than those that are known.
    Version(u16),
    /// Redis up to 7.4 never writes such a value.
    Value(Error),
}

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum => f.write_str("the checksum of what DUMP answered is wrong"),
            Self::Version(version) => write!(
                f,
                "DUMP answered version {version} of the format; up to {VERSION_MAX} are known here, which \
                 Redis up to 7.4 and Valkey 8 write"
            ),
            Self::Value(error) => write!(f, "what DUMP answered can't be read {error}"),
        }
    }
}

impl core::error::Error for PayloadError {}

impl<'a> Payload<'a> {
    /// Checks what `DUMP` answered, from the checksum to the last item.
    ///
    /// # Errors
    /// If a file with it might not be read.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PayloadError> {
        let at = bytes.len().checked_sub(FOOTER_BYTES).ok_or(PayloadError::Checksum)?;
        let (body, mut footer) = bytes.split_at(at);
        let version = take(&mut footer, 2).map_or(0, |low| u16::from_le_bytes([low[0], low[1]]));
        let is_right = crc64(&bytes[..at + 2]).to_le_bytes() == footer;
        if !is_right && !mutant!("rdb_payload_unchecked") {
            return Err(PayloadError::Checksum);
        }
        if version > VERSION_MAX {
            return Err(PayloadError::Version(version));
        }
        let unknown = |byte| Error { offset: 0, key: None, problem: Problem::Unknown(byte) };
        let (&byte, value) = body.split_first().ok_or(PayloadError::Checksum)?;
        let form = Form::of(byte).ok_or_else(|| PayloadError::Value(unknown(byte)))?;
        Reader::check(form, value).map_err(PayloadError::Value)?;
        Ok(Self { form, value })
    }
}

/// How a field begins that takes so many bytes, says nothing, and may hold any bytes: what a key is written
/// over with that is to be in the file no longer. `None` for less than any key takes, or more than a string
/// may have.
pub fn blank(length: u64) -> Option<Vec<u8>> {
    let mut field = alloc::vec![opcode::AUX, 0];
    let rest = length.checked_sub(field.len() as u64)?;
    let width = match rest {
        0 => return None,
        1..=0x40 => 1,
        0x41..0x4002 => 2,
        _ => 5,
    };
    let value = Some(rest - width).filter(|value| *value <= STRING_BYTES_MAX as u64)?;
    write_number_wide(value, width as usize, &mut field);
    Some(field)
}

/// Writes a file. What it appends to `out` is to be written behind what it appended before.
#[derive(Debug)]
pub struct Writer {
    /// The checksum of what was written.
    crc: u64,
    /// How many bytes that is.
    length: u64,
    /// The least version that has every form that was written.
    version: u16,
}

impl Writer {
    /// Begins a file.
    pub fn new(out: &mut Vec<u8>) -> Self {
        let mut writer = Self { crc: 0, length: 0, version: VERSION };
        writer.append(out, |out| out.extend_from_slice(&header(VERSION)));
        writer
    }

    fn append(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let begin = out.len();
        write(out);
        self.crc = crc64_on(self.crc, &out[begin..]);
        self.length += (out.len() - begin) as u64;
    }

    /// Says something about the server.
    pub fn aux(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        self.append(out, |out| {
            out.push(opcode::AUX);
            write_string(name, out);
            write_string(value, out);
        });
    }

    /// How many bytes were written.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The source of a library of functions.
    pub fn function(&mut self, source: &[u8], out: &mut Vec<u8>) {
        self.append(out, |out| {
            out.push(opcode::FUNCTION);
            write_number(source.len() as u64, out);
            out.extend_from_slice(source);
        });
    }

    /// The keys that follow are in this database. The file has keys of it already.
    pub fn database_again(&mut self, number: u64, out: &mut Vec<u8>) {
        self.append(out, |out| {
            out.push(opcode::DATABASE);
            write_number(number, out);
        });
    }

    /// What was written before `end` is other bytes now: the checksum is that of these.
    ///
    /// # Panics
    /// Unless they are as long as those were, and were written.
    pub fn exchanged(&mut self, before: &[u8], after: &[u8], end: u64) {
        assert_eq!(before.len(), after.len(), "the rest stays where it is");
        let behind = self.length.checked_sub(end).expect("they were written");
        let difference: Vec<u8> =
            before.iter().zip(after).map(|(one, other)| one ^ other).collect();
        if !mutant!("rdb_exchange_not_summed") {
            self.crc ^= crc64_zeros(crc64(&difference), behind);
        }
    }

    /// The keys that follow are in this database, and there are about so many.
    pub fn database(&mut self, number: u64, keys: u64, out: &mut Vec<u8>) {
        self.append(out, |out| {
            out.push(opcode::DATABASE);
            write_number(number, out);
            out.push(opcode::SIZES);
            write_number(keys, out);
            write_number(0, out);
        });
    }

    /// A key. A file that has one twice is not read by Redis.
    pub fn key(
        &mut self,
        name: &[u8],
        expire_at_ms: Option<u64>,
        payload: &Payload<'_>,
        out: &mut Vec<u8>,
    ) {
        self.version = self.version.max(payload.form.version());
        self.append(out, |out| {
            if let Some(at) = expire_at_ms {
                out.push(opcode::EXPIRY_MS);
                out.extend_from_slice(&at.to_le_bytes());
            }
            out.push(payload.form as u8);
            write_string(name, out);
            out.extend_from_slice(payload.value);
        });
    }

    /// Ends the file. What is to be written over its beginning, if some value in it needs a later version
    /// than the one that stands there.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Option<Header> {
        self.append(out, |out| out.push(opcode::END));
        let (first, wanted) = (header(VERSION), header(self.version));
        let rest = self.length - first.len() as u64;
        let difference = crc64_zeros(crc64(&first) ^ crc64(&wanted), rest);
        out.extend_from_slice(&(self.crc ^ difference).to_le_bytes());
        (wanted != first).then_some(wanted)
    }
}
