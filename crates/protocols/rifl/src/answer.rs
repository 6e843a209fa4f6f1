//! A kept answer: in place if it is short.

use alloc::boxed::Box;
use core::fmt;

/// Bytes of the longest answer that needs no memory of its own.
const INLINE: usize = 22;

/// The bytes of a call's answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AnswerBytes(Place);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Place {
    Here { length: u8, bytes: [u8; INLINE] },
    Elsewhere(Box<[u8]>),
}

impl AnswerBytes {
    /// A copy of these bytes.
    #[inline]
    pub fn new(answer: &[u8]) -> Self {
        if answer.len() > INLINE {
            return Self(Place::Elsewhere(answer.into()));
        }
        let mut bytes = [0; INLINE];
        bytes[..answer.len()].copy_from_slice(answer);
        Self(Place::Here { length: answer.len() as u8, bytes })
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Place::Here { length, bytes } => &bytes[..usize::from(*length)],
            Place::Elsewhere(bytes) => bytes,
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

impl From<&[u8]> for AnswerBytes {
    fn from(answer: &[u8]) -> Self {
        Self::new(answer)
    }
}

impl<const N: usize> From<&[u8; N]> for AnswerBytes {
    fn from(answer: &[u8; N]) -> Self {
        Self::new(answer)
    }
}

impl fmt::Debug for AnswerBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}
