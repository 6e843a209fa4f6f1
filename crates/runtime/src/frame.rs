//! What one flush to a peer looks like on the connection.
//!
//! ```text
//! 0        4          8
//! | length | checksum | whole messages ...
//! ```
//! `length` counts the messages alone, `checksum` is their CRC-32C; both are little-endian. TCP's
//! own 16-bit checksum lets about one damaged segment in 65,536 through, and a damaged message
//! would be replicated faithfully.

use quorate_types::limits;

/// Bytes before the messages.
pub(crate) const HEADER_BYTES: usize = 8;
/// The most bytes of messages in a node's frame: a full peer buffer and the message that filled it.
pub(crate) const FRAME_BYTES_MAX: usize =
    limits::PEER_BUFFER_BYTES_MAX + limits::MESSAGE_BYTES_MAX + 16;

/// Why the rest of a connection's bytes can't be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BadFrame {
    /// The length is not one that a peer sends.
    #[error("a frame announces {0} bytes, more than any peer sends")]
    Length(u32),
    /// The bytes are not those that were sent.
    #[error("a frame's checksum does not match its bytes")]
    Checksum,
}

/// The header of a frame with these messages.
#[inline]
pub(crate) fn header(messages: &[u8]) -> [u8; HEADER_BYTES] {
    let length = messages.len();
    assert!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes was built");
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[4..].copy_from_slice(&crc32c::crc32c(messages).to_le_bytes());
    header
}

/// How many bytes the frame at the front of `input` lacks; nothing before its header is whole, or
/// if it announces more than `bytes_max`, which no such peer sends.
pub(crate) fn missing(input: &[u8], bytes_max: usize) -> Option<usize> {
    let (header, messages) = input.split_first_chunk::<HEADER_BYTES>()?;
    let [l0, l1, l2, l3, ..] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    (length <= bytes_max).then(|| length.saturating_sub(messages.len()))
}

/// Takes one frame off the front of `input` and returns its messages; nothing if it is not
/// complete yet. Such a peer's frames have at most `bytes_max` bytes of messages.
///
/// # Errors
/// When the connection must be closed.
#[inline]
pub(crate) fn split<'a>(
    input: &mut &'a [u8],
    bytes_max: usize,
) -> Result<Option<&'a [u8]>, BadFrame> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    if length as usize > bytes_max {
        return Err(BadFrame::Length(length));
    }
    let Some((messages, rest)) = rest.split_at_checked(length as usize) else { return Ok(None) };
    if crc32c::crc32c(messages) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(BadFrame::Checksum);
    }
    *input = rest;
    Ok(Some(messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_a_frame() {
        // The check value of CRC-32C, as in RFC 3720's catalogue.
        let mut bytes = header(b"123456789").to_vec();
        assert_eq!(bytes, [9, 0, 0, 0, 0x83, 0x92, 0x06, 0xe3]);
        bytes.extend_from_slice(b"123456789rest");
        let mut input = &bytes[..];
        assert_eq!(split(&mut input, 9), Ok(Some(&b"123456789"[..])));
        assert_eq!(input, b"rest");
    }

    #[test]
    fn a_frame_arrives_whole_or_not_at_all() {
        let mut bytes = header(b"messages").to_vec();
        bytes.extend_from_slice(b"messages");
        for cut in 0..bytes.len() {
            assert_eq!(split(&mut &bytes[..cut], 8), Ok(None));
            let known = cut >= HEADER_BYTES;
            assert_eq!(missing(&bytes[..cut], 8), known.then(|| bytes.len() - cut));
        }
    }

    #[test]
    fn damage_is_noticed() {
        let mut bytes = header(b"messages").to_vec();
        bytes.extend_from_slice(b"messages");
        bytes[10] ^= 1;
        assert_eq!(split(&mut &bytes[..], 8), Err(BadFrame::Checksum));
    }

    #[test]
    fn who_announces_more_than_it_may_send_is_not_believed() {
        let bytes_max = limits::GUEST_FRAME_BYTES_MAX;
        let announced = |length: usize| [(length as u32).to_le_bytes(), [0; 4]].concat();
        let largest = announced(bytes_max);
        assert_eq!(missing(&largest, bytes_max), Some(bytes_max));
        assert_eq!(split(&mut &largest[..], bytes_max), Ok(None));
        let larger = announced(bytes_max + 1);
        assert_eq!(missing(&larger, bytes_max), None);
        let refused = Err(BadFrame::Length(bytes_max as u32 + 1));
        assert_eq!(split(&mut &larger[..], bytes_max), refused);
        // A node may send it.
        assert_eq!(split(&mut &larger[..], FRAME_BYTES_MAX), Ok(None));
    }
}
