//! Requests and answers of etcd: just enough HTTP/2 and gRPC for one call at a time.
//!
//! Header blocks are constants without compression state, and those of the server are not read: a
//! stream that carried a message succeeded, one that ended without did not. Requests are small and
//! one at a time, so the server's windows never fill; our own is opened wide at the start.

use quorate_workloads::{Answer, Dialect, Misunderstood, Step};

use crate::KeyDialect;
use crate::keys::Key;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// One call of etcd's key-value service.
pub(crate) struct Etcd {
    header_block: Vec<u8>,
    /// The message after the key.
    after_key: Vec<u8>,
    /// Whether the call is a transaction of a range and a put.
    txn: bool,
    stream: u32,
    has_message: bool,
}

impl Etcd {
    /// `Put`.
    pub(crate) fn put(value: &[u8]) -> Box<KeyDialect> {
        let mut after_key = Vec::new();
        field(2, value, &mut after_key);
        Self::boxed("/etcdserverpb.KV/Put", after_key, false)
    }

    /// `Txn` without conditions: a `Range` and a `Put` of one key.
    pub(crate) fn txn(value: &[u8]) -> Box<KeyDialect> {
        let mut after_key = Vec::new();
        field(2, value, &mut after_key);
        Self::boxed("/etcdserverpb.KV/Txn", after_key, true)
    }

    /// `Range` of one key, linearizable as is etcd's default.
    pub(crate) fn get() -> Box<KeyDialect> {
        Self::boxed("/etcdserverpb.KV/Range", Vec::new(), false)
    }

    fn boxed(path: &str, after_key: Vec<u8>, txn: bool) -> Box<KeyDialect> {
        // Static table: 3 is ":method: POST", 6 ":scheme: http", 4 ":path", 1 ":authority",
        // 31 "content-type". The rest is spelled out, and nothing enters the dynamic table.
        let mut block = vec![0x83, 0x86, 0x04];
        text(path, &mut block);
        block.push(0x01);
        text("localhost", &mut block);
        block.extend_from_slice(&[0x0f, 0x10]);
        text("application/grpc", &mut block);
        block.push(0x00);
        text("te", &mut block);
        text("trailers", &mut block);
        Box::new(Self { header_block: block, after_key, txn, stream: 1, has_message: false })
    }
}

impl Dialect for Etcd {
    type Request = Key;

    fn greet(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        // SETTINGS_INITIAL_WINDOW_SIZE, and the same for the whole connection.
        frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff], out);
        frame(WINDOW_UPDATE, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes(), out);
    }

    fn request(&mut self, key: &Key, out: &mut Vec<u8>) {
        let mut named = Vec::new();
        field(1, key, &mut named);
        let mut message = [&named[..], &self.after_key].concat();
        if self.txn {
            // Two operations "on success": a range, and the put.
            let mut operations = [Vec::new(), Vec::new()];
            field(1, &named, &mut operations[0]);
            field(2, &message, &mut operations[1]);
            message = Vec::new();
            operations.iter().for_each(|operation| field(2, operation, &mut message));
        }
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).expect("small").to_be_bytes());
        body.extend_from_slice(&message);
        frame(HEADERS, END_HEADERS, self.stream, &self.header_block, out);
        frame(DATA, END_STREAM, self.stream, &body, out);
        self.stream += 2;
        self.has_message = false;
    }

    fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
        let Some((header, rest)) = input.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let (kind, flags) = (header[3], header[4]);
        let ends = flags & END_STREAM != 0;
        let mut answer = None;
        match kind {
            DATA => self.has_message |= length > 0,
            HEADERS if ends && self.has_message => answer = Some(Answer::Good),
            HEADERS if ends => answer = Some(Answer::Failed("a gRPC error".to_owned())),
            RST_STREAM => answer = Some(Answer::Failed("the stream was reset".to_owned())),
            SETTINGS if flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[], out),
            PING if flags & ACK == 0 => frame(PING, ACK, 0, payload, out),
            GOAWAY => {
                let reason = String::from_utf8_lossy(payload);
                return Err(Misunderstood(format!("sent GOAWAY: {reason}")));
            }
            _ => {}
        }
        Ok(Some(Step { used: FRAME_HEADER_BYTES + length, answer }))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("short"));
    out.extend_from_slice(text.as_bytes());
}

/// A field of bytes in a protocol-buffer message.
fn field(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    varint(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).expect("seven bits"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_with_a_message_is_good_and_one_without_failed() {
        let mut etcd = Etcd::put(b"v");
        let mut replies = Vec::new();
        frame(HEADERS, END_HEADERS, 1, b"x", &mut replies);
        frame(DATA, 0, 1, b"12345", &mut replies);
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"x", &mut replies);
        etcd.request(b"key:000000000000", &mut Vec::new());
        let mut seen = Vec::new();
        while let Some(step) = etcd.answer(&replies, &mut Vec::new()).expect("frames") {
            replies.drain(..step.used);
            seen.push(step.answer);
        }
        assert_eq!(seen, [None, None, Some(Answer::Good)]);
        etcd.request(b"key:000000000000", &mut Vec::new());
        frame(HEADERS, END_HEADERS | END_STREAM, 3, b"x", &mut replies);
        let step = etcd.answer(&replies, &mut Vec::new()).expect("a frame").expect("whole");
        assert!(matches!(step.answer, Some(Answer::Failed(_))));
    }

    #[test]
    fn settings_and_pings_are_acknowledged() {
        let mut etcd = Etcd::get();
        let (mut input, mut out) = (Vec::new(), Vec::new());
        frame(SETTINGS, 0, 0, &[], &mut input);
        etcd.answer(&input, &mut out).expect("a frame");
        assert_eq!(out, [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0]);
    }
}
