//! What nodes send each other on their peer connections, as far as a guest needs it.
//!
//! ```text
//! 0        4          8
//! | length | CRC-32C | whole messages ...
//! ```

use std::io;

use quorate_types::limits::{self, GUEST_FRAME_BYTES_MAX};
use quorate_wire::Header;

/// Bytes before the messages.
const HEADER_BYTES: usize = 8;
/// The most bytes of messages in a node's frame: a full buffer and the message that filled it.
const FRAME_BYTES_MAX: usize = limits::PEER_BUFFER_BYTES_MAX + limits::MESSAGE_BYTES_MAX + 16;

/// Appends frames with these messages: as few as a node takes from a guest.
pub(super) fn write(out: &mut Vec<u8>, mut messages: &[u8]) {
    while messages.len() > GUEST_FRAME_BYTES_MAX {
        let (first, rest) = messages.split_at(length_of_first(messages));
        write_one(out, first);
        messages = rest;
    }
    write_one(out, messages);
}

/// How many bytes the messages take that fit into the first frame.
fn length_of_first(messages: &[u8]) -> usize {
    let (mut rest, mut length) = (messages, 0);
    loop {
        let split = Header::split(&mut rest).expect("this process wrote these messages");
        let next = split.map_or(length, |_| messages.len() - rest.len());
        if next == length || next > GUEST_FRAME_BYTES_MAX {
            return length;
        }
        length = next;
    }
}

fn write_one(out: &mut Vec<u8>, messages: &[u8]) {
    let length = u32::try_from(messages.len()).expect("a turn's messages are far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(messages).to_le_bytes());
    out.extend_from_slice(messages);
}

/// Takes the messages of one frame off the front of `input`; nothing if it is not complete yet.
///
/// # Errors
/// When the bytes are damaged.
pub(super) fn split<'a>(input: &mut &'a [u8]) -> io::Result<Option<&'a [u8]>> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let Some((messages, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    if crc32c::crc32c(messages) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame's checksum is wrong"));
    }
    *input = rest;
    Ok(Some(messages))
}

#[cfg(test)]
mod tests {
    use quorate_types::{Epoch, KeyspaceId};
    use quorate_wire::Kind;

    use super::*;

    #[test]
    fn the_layout_is_that_of_the_nodes() {
        let mut bytes = Vec::new();
        write(&mut bytes, b"123456789");
        assert_eq!(bytes[..8], [9, 0, 0, 0, 0x83, 0x92, 0x06, 0xe3]);
        for cut in 0..bytes.len() {
            assert_eq!(split(&mut &bytes[..cut]).unwrap(), None);
        }
        let mut input = &bytes[..];
        assert_eq!(split(&mut input).unwrap(), Some(b"123456789".as_slice()));
        assert!(input.is_empty());
        bytes[9] ^= 1;
        assert!(split(&mut &bytes[..]).is_err());
        assert!(split(&mut &[0xff; 8][..]).is_err());
    }

    #[test]
    fn what_is_too_much_for_a_frame_goes_into_several() {
        let mut messages = Vec::new();
        for size in [1, limits::MESSAGE_BYTES_MAX, 2, limits::MESSAGE_BYTES_MAX / 2, 3] {
            Header::frame(&mut messages, Kind::Meerkat, KeyspaceId(0), Epoch(1), |writer| {
                writer.0.extend_from_slice(&vec![7; size]);
            });
        }
        let mut bytes = Vec::new();
        write(&mut bytes, &messages);
        let (mut input, mut frames) = (&bytes[..], Vec::new());
        while let Some(frame) = split(&mut input).unwrap() {
            assert!(frame.len() <= GUEST_FRAME_BYTES_MAX);
            frames.push(frame);
        }
        assert_eq!(frames.len(), 3);
        assert_eq!(frames.concat(), messages);
    }
}
