//! An answer as it is kept: in place if it is short.

use alloc::boxed::Box;
use core::fmt;

/// Bytes of the longest answer that needs no memory of its own.
const INLINE: usize = 22;

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Short { length: u8, bytes: [u8; INLINE] },
    Long(Box<[u8]>),
}

impl Answer {
    pub(crate) fn new(answer: &[u8]) -> Self {
        if answer.len() > INLINE {
            return Self::Long(answer.into());
        }
        let mut bytes = [0; INLINE];
        bytes[..answer.len()].copy_from_slice(answer);
        Self::Short { length: answer.len() as u8, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }

    /// Bytes of memory besides its own place.
    pub(crate) fn heap(&self) -> usize {
        Self::heap_of(self.bytes().len())
    }

    /// Bytes of memory besides its own place that an answer of this length takes.
    pub(crate) const fn heap_of(length: usize) -> usize {
        if length > INLINE { length } else { 0 }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}
