//! What clients send, as bytes.
//!
//! Nothing may panic; however the bytes are cut into reads, the same replies come; and where the
//! `redis-protocol` crate reads an array of bulk strings, the parser reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_resp_harness::Harness;
use quorate_resp::{Limits, Parser, Settings, Shared, Step};
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

const LIMITS: Limits = Limits { bulk_bytes_max: 512 * 1024 * 1024, unauthenticated: false };

/// The commands of a stream up to its first error.
fn commands(stream: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut parser = Parser::default();
    let mut buffer = stream.to_vec();
    let mut found = Vec::new();
    while parser.step(&mut buffer, &LIMITS) == Step::Command {
        found.push(parser.args(&buffer).iter().map(<[u8]>::to_vec).collect());
        parser.finish();
    }
    found
}

/// The same, read by somebody else, as long as it is arrays of bulk strings with lengths in their
/// shortest form: Redis takes no other (`*01`), that crate does.
fn reference(mut stream: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    while let Ok(Some((OwnedFrame::Array(items), length))) = decode(stream) {
        let bulk = |frame| match frame {
            OwnedFrame::BulkString(bytes) => Some(bytes),
            _ => None,
        };
        let Some(command) = items.into_iter().map(bulk).collect::<Option<Vec<Vec<u8>>>>() else {
            break;
        };
        if encode(&command) != stream[..length] {
            break;
        }
        if !command.is_empty() {
            found.push(command);
        }
        stream = &stream[length..];
    }
    found
}

fn encode(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, stream)) = input.split_first() else { return };
    let ours = commands(stream);
    let theirs = reference(stream);
    assert_eq!(ours[..theirs.len().min(ours.len())], theirs[..theirs.len().min(ours.len())]);
    assert!(ours.len() >= theirs.len(), "{} commands of {}", ours.len(), theirs.len());

    let (mut whole, mut pieces) = (harness(), harness());
    let (one, two) = (whole.connect(), pieces.connect());
    let expected = whole.send(one, stream);
    let mut replies = Vec::new();
    for piece in stream.chunks(usize::from(cut).max(1)) {
        replies.extend(pieces.send(two, piece));
    }
    // A time or a random choice may differ; how many replies there are and where they end, not.
    assert_eq!(expected.is_empty(), replies.is_empty());
    assert_eq!(whole.frontend.wants_close(one), pieces.frontend.wants_close(two));
    assert_eq!(whole.frontend.in_flight(), 0);
    assert_eq!(pieces.frontend.in_flight(), 0);
});
