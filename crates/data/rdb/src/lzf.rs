//! LZF: runs of bytes as they are, and copies of up to 264 bytes from up to 8 KiB before.

use alloc::vec::Vec;

use crate::bytes::{chunk, take};
use crate::limits::COMPRESSION_MAX;

/// What compressed bytes stand for, if that has this length.
pub(crate) fn decompress(mut input: &[u8], length: usize) -> Option<Vec<u8>> {
    if length / COMPRESSION_MAX > input.len() {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    while !input.is_empty() {
        let [control] = chunk(&mut input)?;
        if control < 0x20 {
            out.extend_from_slice(take(&mut input, usize::from(control) + 1)?);
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if control >> 5 == 7 {
                let [more] = chunk(&mut input)?;
                count += usize::from(more);
            }
            let [low] = chunk(&mut input)?;
            let distance = (usize::from(control & 0x1f) << 8 | usize::from(low)) + 1;
            let from = out.len().checked_sub(distance)?;
            // A copy may run into itself.
            (from..from + count).for_each(|at| out.push(out[at]));
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_compressed_strings_are_refused() {
        let whole = b"\x03abca\xe0\x2d\x02\x01bc";
        assert_eq!(decompress(whole, 60).as_deref(), Some(&b"abc".repeat(20)[..]));
        for cut in 0..whole.len() {
            assert_eq!(decompress(&whole[..cut], 60), None);
        }
        assert_eq!(decompress(whole, 59), None);
        assert_eq!(decompress(b"\x00a\x20\x01", 4), None, "from before the beginning");
        assert_eq!(decompress(b"\x00a", usize::MAX), None);
    }
}
