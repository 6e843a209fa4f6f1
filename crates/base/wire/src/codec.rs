//! Fixed-width little-endian fields and length-prefixed byte strings.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use quorate_types::{Timestamp, WriterId};

/// Input that no correct peer of this version sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(
    /// The name of the field, for the log.
    pub &'static str,
);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl core::error::Error for Malformed {}

/// Appends fields to a buffer that the caller owns and reuses.
#[derive(Debug)]
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Twelve bytes: the version, then the writer.
    pub fn timestamp(&mut self, value: Timestamp) {
        self.u64(value.version);
        self.u32(value.writer.0);
    }

    /// A length of four bytes, then the bytes.
    ///
    /// # Panics
    /// If the string is longer than 4 GiB; limits bound every string far below.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("limits bound strings far below 4 GiB"));
        self.0.extend_from_slice(bytes);
    }

    /// Bytes without a length: the last field of a message.
    pub fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Takes fields off the front of a buffer; strings are borrowed from it.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed("cut short"))?;
        self.0 = tail;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A timestamp.
    pub fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        Ok(Timestamp::new(self.u64()?, WriterId(self.u32()?)))
    }

    /// A byte string with its length before it.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        let (head, tail) = self.0.split_at_checked(length).ok_or(Malformed("string cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    /// A byte string that must be UTF-8, of at most `limit` bytes.
    pub fn string(&mut self, limit: usize) -> Result<String, Malformed> {
        let bytes = self.bytes()?;
        if bytes.len() > limit {
            return Err(Malformed("string beyond its limit"));
        }
        core::str::from_utf8(bytes).map(String::from).map_err(|_| Malformed("string not UTF-8"))
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// Refuses bytes behind the last field.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes behind the last field")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_a_cut_is_noticed() {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.u8(1);
        writer.u16(2);
        writer.u32(3);
        writer.u64(4);
        writer.timestamp(Timestamp::new(5, WriterId(u32::MAX)));
        writer.bytes(b"six");
        for cut in 0..bytes.len() {
            let mut reader = Reader(&bytes[..cut]);
            let all = (|| {
                reader.u8()?;
                reader.u16()?;
                reader.u32()?;
                reader.u64()?;
                reader.timestamp()?;
                reader.bytes()
            })();
            assert!(all.is_err(), "cut at {cut}");
        }
        let mut reader = Reader(&bytes);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert_eq!(reader.timestamp(), Ok(Timestamp::new(5, WriterId(u32::MAX))));
        assert_eq!(reader.bytes(), Ok(&b"six"[..]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_length_beyond_the_input_is_refused_without_allocating() {
        let mut reader = Reader(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(reader.bytes(), Err(Malformed("string cut short")));
    }
}
