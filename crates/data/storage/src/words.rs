//! Bytes that are copied while they may change: 64-bit atomic words, so that a copy of a value
//! under change is wrong (and thrown away) but never undefined.

use crate::sync::{AtomicU64, Ordering};

/// Bytes in a word.
pub(crate) const WORD: usize = 8;

/// How many words hold `bytes` bytes.
#[inline]
pub(crate) const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// Replaces the contents of `out` by `len` bytes of the words.
#[inline]
pub(crate) fn load_bytes(words: &[AtomicU64], len: usize, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(words_for(len) * WORD);
    let words = &words[..words_for(len)];
    let target = out.as_mut_ptr().cast::<u64>();
    for (index, word) in words.iter().enumerate() {
        // SAFETY: `reserve` made room for `words_for(len)` whole words, and `index` is below that.
        unsafe { target.add(index).write_unaligned(word.load(Ordering::Relaxed)) };
    }
    // SAFETY: the loop wrote at least `len` bytes from the start, within the capacity.
    unsafe { out.set_len(len) };
}

/// Writes bytes over the first words, padding the last with zeros.
#[inline]
pub(crate) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let words = &words[..words_for(bytes.len())];
    let (whole, rest) = bytes.as_chunks::<WORD>();
    for (word, chunk) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// The first `len` bytes in place.
///
/// # Safety
/// No word may be stored to as long as the result lives. Loads are harmless.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) unsafe fn bytes_in_place(words: &[AtomicU64], len: usize) -> &[u8] {
    assert!(words_for(len) <= words.len(), "the bytes lie within the words");
    // SAFETY: an `AtomicU64` has the layout of a `u64`, so the words are that many bytes, all
    // initialized; the caller keeps them from changing while the slice lives.
    unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), len) }
}

/// A model's atomics don't hold their value where they lie, so it gets a copy (and leaks it).
///
/// # Safety
/// As outside of models.
#[cfg(any(loom, shuttle))]
pub(crate) unsafe fn bytes_in_place(words: &[AtomicU64], len: usize) -> &[u8] {
    let mut copy = Vec::new();
    load_bytes(words, len, &mut copy);
    copy.leak()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back() {
        let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(u64::MAX)).collect();
        let source: Vec<u8> = (1..=32).collect();
        let mut out = Vec::new();
        for len in 0..=32 {
            store_bytes(&words, &source[..len]);
            load_bytes(&words, len, &mut out);
            assert_eq!(out, source[..len]);
            // SAFETY: nothing stores to the words while the slice lives.
            assert_eq!(unsafe { bytes_in_place(&words, len) }, &source[..len]);
        }
    }
}
