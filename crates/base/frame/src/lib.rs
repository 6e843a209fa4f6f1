//! Frames: the containers of messages on a connection between two nodes, or a node and a guest.
//!
//! ```text
//! 0                4          8
//! | length and part | CRC-32C | at most 64 KiB of messages, or of a piece of one
//! ```
//!
//! A frame holds whole messages, or a piece of a large one. So a small message, a heartbeat above
//! all, overtakes a value of megabytes between two of its pieces, on a connection that one turn
//! can't empty; protocols expect messages to be reordered. The checksum covers what follows it:
//! TCP's own 16-bit checksum lets about one damaged segment in 65,536 through, and a damaged
//! message would be replicated faithfully.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use quorate_types::limits;
use quorate_wire::Header;

/// Bytes before the messages.
pub const HEADER_BYTES: usize = 8;
/// The most bytes of messages in one frame. A larger message travels in pieces of this size.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// The bits of a length; the two bits above them tell the kind of the frame.
const LENGTH: u32 = (1 << 30) - 1;
/// A piece of a message, and more pieces of it follow.
const PIECE: u32 = 1 << 31;
/// The last piece of a message.
const LAST_PIECE: u32 = PIECE | 1 << 30;

/// Why the rest of a connection's bytes can't be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadFrame {
    /// The length is not one that a peer sends.
    #[error("a frame announces {0} bytes, more than any peer sends")]
    Length(u32),
    /// The bytes differ from the sent ones.
    #[error("a frame's checksum does not match its bytes")]
    Checksum,
    /// The pieces of a message are more than any message has.
    #[error("the pieces of a message exceed the largest message")]
    Pieces,
}

/// The header of a frame that holds these whole messages, at most [`FRAME_BYTES_MAX`] bytes.
#[inline]
pub fn whole_header(messages: &[u8]) -> [u8; HEADER_BYTES] {
    header(0, messages)
}

fn header(part: u32, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    assert!(bytes.len() <= FRAME_BYTES_MAX, "a frame of {} bytes was built", bytes.len());
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(part | bytes.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    header
}

/// Splits the bytes that arrive on one connection into messages.
#[derive(Debug, Default)]
pub struct Frames {
    /// The pieces so far of a large message.
    pieces: Vec<u8>,
}

impl Frames {
    /// Whether a complete frame is at the front of `input`, or one that [`Frames::split`] refuses.
    #[inline]
    pub fn is_complete(input: &[u8]) -> bool {
        let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
            return false;
        };
        let length = word(header, 0) & LENGTH;
        length as usize > FRAME_BYTES_MAX || rest.len() >= length as usize
    }

    /// Takes one frame off the front of `input` and returns the whole messages that it holds or
    /// completes; no message if the frame is a piece with others to follow. `None` if the frame has
    /// not arrived completely.
    ///
    /// # Errors
    /// When the connection must be closed.
    #[inline]
    pub fn split<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, BadFrame> {
        let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (length, part) = (word(header, 0) & LENGTH, word(header, 0) & !LENGTH);
        if length as usize > FRAME_BYTES_MAX || ![0, PIECE, LAST_PIECE].contains(&part) {
            return Err(BadFrame::Length(word(header, 0)));
        }
        let Some((bytes, rest)) = rest.split_at_checked(length as usize) else { return Ok(None) };
        if crc32c::crc32c(bytes) != word(header, 4) {
            return Err(BadFrame::Checksum);
        }
        *input = rest;
        if part == 0 {
            return Ok(Some(Cow::Borrowed(bytes)));
        }
        const WHOLE_MAX: usize = Header::BYTES + limits::MESSAGE_BYTES_MAX;
        if self.pieces.len() + bytes.len() > WHOLE_MAX {
            return Err(BadFrame::Pieces);
        }
        if self.pieces.is_empty()
            && let [l0, l1, l2, l3, ..] = *bytes
        {
            // The message begins with its length. Room without arrived bytes takes no memory.
            let body = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            self.pieces.reserve_exact(body.saturating_add(Header::BYTES).min(WHOLE_MAX));
        }
        self.pieces.extend_from_slice(bytes);
        let whole = if part == LAST_PIECE { std::mem::take(&mut self.pieces) } else { Vec::new() };
        Ok(Some(Cow::Owned(whole)))
    }

    /// Bytes of memory of its buffer.
    pub fn bytes(&self) -> usize {
        self.pieces.capacity()
    }
}

fn word(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Bytes that wait to be sent on one connection: small messages first, then the large ones, each
/// piece by piece and behind the small messages that were added meanwhile. Large messages are sent
/// from the buffer that they were encoded into.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Encoded frames. The first `sent` bytes have been sent.
    frames: Vec<u8>,
    sent: usize,
    /// The frame of a piece of the first large message that has begun: no other frame may come
    /// before its end.
    piece: Option<Piece>,
    large: VecDeque<Large>,
    /// Bytes of large messages that are in no piece yet.
    large_bytes: usize,
}

/// A frame: its header, and the place of its bytes in the first buffer of [`Outgoing::large`].
#[derive(Debug)]
struct Piece {
    header: [u8; HEADER_BYTES],
    bytes: Range<usize>,
    /// How many bytes of both have been sent.
    sent: usize,
}

impl Piece {
    fn unsent(&self) -> usize {
        HEADER_BYTES + self.bytes.len() - self.sent
    }
}

/// A buffer that was handed over, so that its large messages need not be copied.
#[derive(Debug)]
struct Large {
    buffer: Vec<u8>,
    /// The rest of each of its large messages that is in no piece yet.
    messages: VecDeque<Range<usize>>,
}

impl Outgoing {
    /// The number of waiting bytes.
    pub fn len(&self) -> usize {
        let piece = self.piece.as_ref().map_or(0, Piece::unsent);
        self.frames.len() - self.sent + piece + self.large_bytes
    }

    /// Whether no bytes wait.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory of its buffers.
    pub fn bytes(&self) -> usize {
        self.frames.capacity()
            + self.large.iter().map(|large| large.buffer.capacity()).sum::<usize>()
    }

    /// Adds bytes that are no messages, or the rest of a frame that has been sent in part.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.frames.extend_from_slice(bytes);
    }

    /// Adds whole messages. Takes the buffer if one of them is large. Returns the number of frames
    /// they make.
    pub fn push(&mut self, messages: &mut Vec<u8>) -> usize {
        if messages.len() <= FRAME_BYTES_MAX {
            self.frames.extend_from_slice(&whole_header(messages));
            self.frames.extend_from_slice(messages);
            return 1;
        }
        let mut large = VecDeque::new();
        let (mut count, mut at, mut frame) = (0, 0, 0..0);
        while at < messages.len() {
            let mut rest = &messages[at..];
            Header::split(&mut rest).expect("this process wrote these messages");
            let end = messages.len() - rest.len();
            assert!(end > at, "this process wrote whole messages");
            let message = at..end;
            at = end;
            if message.len() > FRAME_BYTES_MAX {
                count += message.len().div_ceil(FRAME_BYTES_MAX);
                self.large_bytes += message.len();
                large.push_back(message);
            } else if frame.end == message.start && message.end - frame.start <= FRAME_BYTES_MAX {
                frame.end = message.end;
            } else {
                count += self.push_frame(&messages[frame]);
                frame = message;
            }
        }
        count += self.push_frame(&messages[frame]);
        if !large.is_empty() {
            let buffer = std::mem::take(messages);
            self.large.push_back(Large { buffer, messages: large });
        }
        count
    }

    fn push_frame(&mut self, messages: &[u8]) -> usize {
        if messages.is_empty() {
            return 0;
        }
        self.frames.extend_from_slice(&whole_header(messages));
        self.frames.extend_from_slice(messages);
        1
    }

    /// The bytes to send next, in two parts. One or both may be empty; both are empty if no bytes
    /// wait.
    pub fn unsent(&mut self) -> [&[u8]; 2] {
        if self.piece.is_none() && self.sent == self.frames.len() {
            self.frames.clear();
            self.sent = 0;
            self.cut_piece();
        }
        match (&self.piece, self.large.front()) {
            (Some(piece), Some(Large { buffer, .. })) => {
                let header = &piece.header[piece.sent.min(HEADER_BYTES)..];
                let sent = piece.sent.saturating_sub(HEADER_BYTES);
                [header, &buffer[piece.bytes.start + sent..piece.bytes.end]]
            }
            _ => [&self.frames[self.sent..], &[]],
        }
    }

    /// Notes that this many bytes of [`Outgoing::unsent`] have been sent.
    pub fn advance(&mut self, sent: usize) {
        if let Some(piece) = &mut self.piece {
            piece.sent += sent;
            if piece.unsent() == 0 {
                self.end_piece();
            }
            return;
        }
        self.sent += sent;
        if self.sent > self.frames.len() / 2 {
            // The rest moves to the front once it is the smaller part, so that a peer that never
            // quite catches up can't make the buffer grow, and each byte is moved about once.
            self.frames.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Gives memory back, down to `bytes`, if no bytes wait.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.is_empty() {
            self.frames.clear();
            self.sent = 0;
            self.frames.shrink_to(bytes);
        }
    }

    fn cut_piece(&mut self) {
        let Some(Large { buffer, messages }) = self.large.front_mut() else { return };
        let message = messages.front_mut().expect("a buffer without large messages is not kept");
        let bytes = message.start..message.end.min(message.start + FRAME_BYTES_MAX);
        self.large_bytes -= bytes.len();
        message.start = bytes.end;
        let is_last = message.start == message.end;
        let part = if is_last { LAST_PIECE } else { PIECE };
        let header = header(part, &buffer[bytes.clone()]);
        self.piece = Some(Piece { header, bytes, sent: 0 });
    }

    /// Ends a piece that has been sent whole: the buffer goes with its last one.
    fn end_piece(&mut self) {
        self.piece = None;
        let large = self.large.front_mut().expect("its buffer is kept while a piece is sent");
        if large.messages.front().is_some_and(|message| message.start == message.end) {
            large.messages.pop_front();
        }
        if large.messages.is_empty() {
            self.large.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_types::{Epoch, KeyspaceId};
    use quorate_wire::Kind;

    use super::*;

    fn message(out: &mut Vec<u8>, body: usize) {
        Header::frame(
            out,
            Kind::Engine(quorate_types::EngineId(2)),
            KeyspaceId(0),
            Epoch(1),
            |writer| {
                writer.0.extend((0..body).map(|at| (at % 251) as u8));
            },
        );
    }

    fn messages(bodies: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        bodies.iter().for_each(|&body| message(&mut out, body));
        out
    }

    /// The messages that the other side reads, frame by frame.
    fn received(mut input: &[u8]) -> Result<Vec<Vec<u8>>, BadFrame> {
        let mut frames = Frames::default();
        let mut all = Vec::new();
        while let Some(messages) = frames.split(&mut input)? {
            all.push(messages.into_owned());
        }
        assert!(input.is_empty());
        Ok(all)
    }

    /// Sends as many bytes as the socket takes at once.
    fn send(outgoing: &mut Outgoing, room: usize) -> Vec<u8> {
        let mut bytes = outgoing.unsent().concat();
        bytes.truncate(room);
        outgoing.advance(bytes.len());
        bytes
    }

    fn sent(outgoing: &mut Outgoing) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !outgoing.is_empty() {
            bytes.extend(send(outgoing, 10_000));
        }
        bytes
    }

    fn whole_frame(messages: &[u8]) -> Vec<u8> {
        [&whole_header(messages), messages].concat()
    }

    #[test]
    fn golden_bytes_of_a_frame_and_of_pieces() {
        // The check value of CRC-32C, as in RFC 3720's catalogue.
        let mut bytes = whole_header(b"123456789").to_vec();
        assert_eq!(bytes, [9, 0, 0, 0, 0x83, 0x92, 0x06, 0xe3]);
        bytes.extend_from_slice(b"123456789rest");
        let mut input = &bytes[..];
        let messages = Frames::default().split(&mut input).unwrap();
        assert_eq!(messages.as_deref(), Some(&b"123456789"[..]));
        assert_eq!(input, b"rest");
        assert_eq!(header(PIECE, b"123456789")[..4], [9, 0, 0, 0x80]);
        assert_eq!(header(LAST_PIECE, b"123456789")[..4], [9, 0, 0, 0xc0]);
    }

    #[test]
    fn a_frame_arrives_whole_or_not_at_all() {
        let mut bytes = whole_header(b"messages").to_vec();
        bytes.extend_from_slice(b"messages");
        for cut in 0..bytes.len() {
            assert_eq!(Frames::default().split(&mut &bytes[..cut]), Ok(None));
            assert!(!Frames::is_complete(&bytes[..cut]));
        }
        assert!(Frames::is_complete(&bytes));
    }

    #[test]
    fn damage_is_noticed() {
        let mut bytes = whole_header(b"messages").to_vec();
        bytes.extend_from_slice(b"messages");
        bytes[10] ^= 1;
        assert_eq!(Frames::default().split(&mut &bytes[..]), Err(BadFrame::Checksum));
    }

    #[test]
    fn a_sender_that_announces_more_than_it_may_send_is_not_believed() {
        for length in [FRAME_BYTES_MAX as u32 + 1, LENGTH, 1 << 30, u32::MAX] {
            let bytes = [length.to_le_bytes(), [0; 4]].concat();
            assert_eq!(Frames::default().split(&mut &bytes[..]), Err(BadFrame::Length(length)));
        }
        let piece = vec![7; FRAME_BYTES_MAX];
        let mut frames = Frames::default();
        let largest = Header::BYTES + limits::MESSAGE_BYTES_MAX;
        for _ in 0..largest / FRAME_BYTES_MAX {
            let bytes = [&header(PIECE, &piece)[..], &piece].concat();
            assert_eq!(frames.split(&mut &bytes[..]), Ok(Some(Cow::Owned(Vec::new()))));
        }
        let bytes = [&header(PIECE, &piece)[..], &piece].concat();
        assert_eq!(frames.split(&mut &bytes[..]), Err(BadFrame::Pieces));
    }

    #[test]
    fn messages_arrive_as_they_were_sent_and_small_ones_first() {
        let fits = FRAME_BYTES_MAX - Header::BYTES;
        for bodies in [
            vec![0],
            vec![5; 20_000],
            vec![fits],
            vec![fits + 1],
            vec![3, fits + 1, 4, 2 * FRAME_BYTES_MAX, 5, fits, fits, 1, limits::MESSAGE_BYTES_MAX],
        ] {
            let mut outgoing = Outgoing::default();
            let mut all = messages(&bodies);
            let count = outgoing.push(&mut all);
            let received = received(&sent(&mut outgoing)).unwrap();
            assert_eq!(received.len(), count, "{bodies:?}");
            let (small, large): (Vec<_>, Vec<_>) = bodies.iter().partition(|&&body| body <= fits);
            let expected = [messages(&small), messages(&large)].concat();
            assert!(received.concat() == expected, "{bodies:?}");
            assert!(outgoing.is_empty());
        }
    }

    #[test]
    fn a_small_message_overtakes_what_is_left_of_a_large_one() {
        let mut outgoing = Outgoing::default();
        outgoing.push(&mut messages(&[limits::MESSAGE_BYTES_MAX]));
        // A header that was sent in part is completed before another frame begins, too.
        let mut bytes = send(&mut outgoing, HEADER_BYTES / 2);
        outgoing.push(&mut messages(&[1]));
        bytes.extend(send(&mut outgoing, FRAME_BYTES_MAX));
        outgoing.push(&mut messages(&[2]));
        bytes.extend(sent(&mut outgoing));
        let whole: Vec<_> =
            received(&bytes).unwrap().into_iter().filter(|messages| !messages.is_empty()).collect();
        let small = [whole_frame(&messages(&[1])), whole_frame(&messages(&[2]))].concat();
        let second = HEADER_BYTES + FRAME_BYTES_MAX;
        assert!(bytes[second..].starts_with(&small), "they come before the second piece");
        assert!(whole == [messages(&[1]), messages(&[2]), messages(&[limits::MESSAGE_BYTES_MAX])]);
    }

    #[test]
    fn the_buffers_of_a_connection_do_not_grow_behind_a_peer_that_never_quite_catches_up() {
        let mut outgoing = Outgoing::default();
        for _ in 0..1_000 {
            outgoing.push(&mut messages(&[1_000]));
            outgoing.push(&mut messages(&[100_000]));
            let bytes = outgoing.len();
            let mut left = bytes.saturating_sub(50_000);
            while left > 0 {
                left -= send(&mut outgoing, left).len();
            }
            assert!(outgoing.bytes() < 1_000_000, "{}", outgoing.bytes());
        }
    }
}
