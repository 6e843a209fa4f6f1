//! The arguments of a command that outlives the buffer they were read into.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_types::hash_key;
use quorate_wire::{Malformed, Reader};

use crate::{Args, Span};

/// The arguments of one command in a buffer of their own, in which they lie one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedArgs {
    buffer: Box<[u8]>,
    spans: Box<[Span]>,
}

impl OwnedArgs {
    /// Copies arguments, the command's name first.
    pub fn new<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut growing = Self::with_capacity(0, 0);
        for argument in arguments {
            growing.push(argument);
        }
        growing.finish()
    }

    pub(crate) fn copy(args: Args<'_>) -> Self {
        let mut growing = Self::with_capacity(args.iter().map(<[u8]>::len).sum(), args.len());
        for argument in args.iter() {
            growing.push(argument);
        }
        growing.finish()
    }

    /// Mixes the arguments from index `first` on into a digest: the length of each, then the bytes
    /// of all at once.
    pub(crate) fn digest(&self, first: usize, digest: u64) -> u64 {
        let spans = self.spans.get(first..).unwrap_or_default();
        let Some(begin) = spans.first() else { return digest };
        let lengths = spans.iter().map(|span| u64::from(span.end - span.start));
        let digest = lengths.fold(digest, mix);
        // They reach to the end, because `Growing::push` alone writes the buffer.
        mix(digest, hash_key(&self.buffer[begin.start as usize..]))
    }

    /// The arguments.
    #[inline]
    pub fn borrow(&self) -> Args<'_> {
        Args { buffer: &self.buffer, spans: &self.spans }
    }

    fn with_capacity(bytes: usize, count: usize) -> Growing {
        Growing { buffer: Vec::with_capacity(bytes), spans: Vec::with_capacity(count) }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.u32()? as usize;
        // Every argument takes at least its length field, so a count that the input can't hold is
        // noticed before anything is allocated for it.
        if count > reader.0.len() / 4 {
            return Err(Malformed("more arguments than bytes"));
        }
        let mut ahead = *reader;
        let mut bytes = 0;
        for _ in 0..count {
            bytes += ahead.bytes()?.len();
        }
        let mut growing = Self::with_capacity(bytes, count);
        for _ in 0..count {
            growing.push(reader.bytes()?);
        }
        Ok(growing.finish())
    }
}

/// Arguments that are being copied.
struct Growing {
    buffer: Vec<u8>,
    spans: Vec<Span>,
}

impl Growing {
    fn push(&mut self, argument: &[u8]) {
        let start = self.buffer.len() as u32;
        self.buffer.extend_from_slice(argument);
        let end = u32::try_from(self.buffer.len()).expect("limits bound a request below 4 GiB");
        self.spans.push(Span { start, end });
    }

    fn finish(self) -> OwnedArgs {
        OwnedArgs { buffer: self.buffer.into(), spans: self.spans.into() }
    }
}

/// Mixes another word into a digest.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    (digest.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use quorate_wire::Writer;

    use super::*;

    fn digest(words: &[&str]) -> u64 {
        OwnedArgs::new(words.iter().map(|word| word.as_bytes())).digest(1, 7)
    }

    #[test]
    fn a_digest_tells_arguments_apart_from_the_first_that_counts() {
        assert_eq!(digest(&["SET", "ab", "c"]), digest(&["set", "ab", "c"]));
        assert_ne!(digest(&["SET", "ab", "c"]), digest(&["SET", "a", "bc"]));
        assert_ne!(digest(&["SET", "ab", "c"]), digest(&["SET", "ab", "d"]));
        assert_ne!(digest(&["SET", "ab", "c"]), digest(&["SET", "ab", "c", ""]));
        assert_eq!((digest(&["SET"]), digest(&[])), (7, 7));
    }

    #[test]
    fn copies_and_decoded_ones_have_the_digest_of_what_they_were_made_from() {
        // In the order and with the distances that a request may have them.
        let buffer = b"$1\r\nc\r\n$2\r\nab\r\nSET";
        let spans = [(15, 18), (11, 13), (4, 5)].map(|(start, end)| Span { start, end });
        let args = Args { buffer, spans: &spans };
        let copy = args.to_owned();
        assert!(copy.borrow().iter().eq([&b"SET"[..], b"ab", b"c"]));
        assert_eq!(copy.digest(1, 7), digest(&["SET", "ab", "c"]));
        let mut bytes = Vec::new();
        args.encode(&mut Writer(&mut bytes));
        let decoded = OwnedArgs::decode(&mut Reader(&bytes)).expect("just encoded");
        assert_eq!(decoded, copy);
    }
}
