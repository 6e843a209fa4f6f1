//! Lists of numbers in a message.

use alloc::vec::Vec;

use crate::Malformed;

/// Numbers in the layout of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words<'a>(&'a [[u8; 8]]);

impl<'a> Words<'a> {
    /// The empty list.
    pub const NONE: Self = Self(&[]);

    /// Numbers that [`Words::pack`] wrote.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes.as_chunks().0)
    }

    /// Writes numbers for a message.
    pub fn pack(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        words.into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Reads bytes that [`Words::bytes`] gave.
    ///
    /// # Errors
    /// When the last number is not whole.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let pieces = bytes.len() % 8;
        if pieces == 0 { Ok(Self::of(bytes)) } else { Err(Malformed("a piece of a word")) }
    }

    /// The numbers.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u64> + Clone + 'a {
        self.0.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// How many numbers there are.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are no numbers.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the numbers.
    pub fn bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }
}
