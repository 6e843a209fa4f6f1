//! The arguments of a command that outlives the buffer they were read into.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_types::hash_key;
use quorate_wire::{Malformed, Reader};

use crate::args::SEEDED;
use crate::{Args, Span};

/// Most commands have at most so many arguments, their names included.
const FEW: usize = 4;

/// The arguments of one command in a buffer of their own, in which they lie one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedArgs {
    buffer: Box<[u8]>,
    spans: Spans,
    seed: u64,
}

/// Where they lie. A few spans need no memory of their own; their unused places are zero.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Spans {
    Few { count: u8, places: [Span; FEW] },
    Many(Box<[Span]>),
}

impl Spans {
    #[inline]
    fn all(&self) -> &[Span] {
        match self {
            Self::Few { count, places } => &places[..usize::from(*count)],
            Self::Many(spans) => spans,
        }
    }
}

impl OwnedArgs {
    /// Copies arguments, the command's name first.
    pub fn new<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let arguments: Vec<&[u8]> = arguments.into_iter().collect();
        let bytes = arguments.iter().map(|argument| argument.len()).sum();
        Self::gather(arguments.len(), bytes, arguments.into_iter(), 0)
    }

    /// The same arguments with this seed.
    pub(crate) fn seeded(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    pub(crate) fn copy(args: Args<'_>) -> Self {
        let bytes = args.spans.iter().map(|span| (span.end - span.start) as usize).sum();
        Self::gather(args.len(), bytes, args.iter(), args.seed)
    }

    /// Copies arguments, which are so many and have so many bytes together.
    #[inline]
    fn gather<'a>(
        count: usize,
        bytes: usize,
        arguments: impl Iterator<Item = &'a [u8]>,
        seed: u64,
    ) -> Self {
        assert!(u32::try_from(bytes).is_ok(), "limits bound a request below 4 GiB");
        let mut buffer = Vec::with_capacity(bytes);
        let all = arguments.map(|argument| {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(argument);
            Span { start, end: buffer.len() as u32 }
        });
        let spans = if count > FEW {
            Spans::Many(all.collect())
        } else {
            let mut places = [Span::default(); FEW];
            places.iter_mut().zip(all).for_each(|(place, span)| *place = span);
            Spans::Few { count: count as u8, places }
        };
        Self { buffer: buffer.into(), spans, seed }
    }

    /// Mixes the arguments from index `first` on into a digest: the length of each, then the bytes
    /// of all at once.
    pub(crate) fn digest(&self, first: usize, digest: u64) -> u64 {
        let spans = self.spans.all().get(first..).unwrap_or_default();
        let Some(begin) = spans.first() else { return digest };
        let lengths = spans.iter().map(|span| u64::from(span.end - span.start));
        let digest = lengths.fold(digest, mix);
        // They reach to the end, because `OwnedArgs::gather` alone writes the buffer.
        mix(digest, hash_key(&self.buffer[begin.start as usize..]))
    }

    /// The arguments.
    #[inline]
    pub fn borrow(&self) -> Args<'_> {
        Args { buffer: &self.buffer, spans: self.spans.all(), seed: self.seed }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.u32()?;
        let seed = if count & SEEDED == 0 { 0 } else { reader.u64()? };
        let count = (count & !SEEDED) as usize;
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
        let arguments = (0..count).map(|_| reader.bytes().expect("read a moment ago"));
        Ok(Self::gather(count, bytes, arguments, seed))
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
        for seed in [0, u64::MAX] {
            let args = Args { buffer, spans: &spans, seed };
            let copy = args.to_owned();
            assert!(copy.borrow().iter().eq([&b"SET"[..], b"ab", b"c"]));
            assert_eq!(copy.digest(1, 7), digest(&["SET", "ab", "c"]));
            assert_eq!(copy.borrow().seed, seed);
            let mut bytes = Vec::new();
            args.encode(&mut Writer(&mut bytes));
            let decoded = OwnedArgs::decode(&mut Reader(&bytes)).expect("just encoded");
            assert_eq!(decoded, copy);
        }
    }

    #[test]
    fn arguments_are_the_same_however_many_and_however_they_came() {
        let words = ["a", "bb", "", "ccc", "d", "ee"];
        for count in 0..=words.len() {
            let words = &words[..count];
            let grown = OwnedArgs::new(words.iter().map(|word| word.as_bytes()));
            assert!(grown.borrow().iter().eq(words.iter().map(|word| word.as_bytes())));
            let copy = grown.borrow().to_owned();
            assert_eq!(copy, grown);
            assert_eq!(matches!(copy.spans, Spans::Many(_)), count > FEW);
        }
    }
}
