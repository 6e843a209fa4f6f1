//! The bytes of streams: what they are, and that others do no harm.

use alloc::string::ToString;
use alloc::vec::Vec;

use quorate_machine::{Change, Collection, Content, Current, Rng, ValueKind};
use quorate_types::{UnixMillis, limits};

use crate::{OwnedCall, Reply};

fn run(line: &str, bytes: Option<&[u8]>) -> (Reply<'static>, Option<Vec<u8>>) {
    let kind = ValueKind::Stream;
    let content = bytes.map(|bytes| Content { bytes, kind, expire_at: None });
    let current = Current { content, ..Current::ABSENT };
    let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
    let (reply, change) = call.call().execute(UnixMillis(1_000), current);
    let bytes = match change {
        Change::Keep => bytes.map(Vec::from),
        Change::Set { bytes, .. } => Some(bytes.into_owned()),
        other => panic!("{line}: {other:?}"),
    };
    (reply.into_owned(), bytes)
}

/// The same of a large stream, whose bytes these are.
fn run_large(line: &str, large: &Collection) -> (Reply<'static>, Vec<u8>) {
    let content = Content { bytes: &[], kind: ValueKind::Stream, expire_at: None };
    let current = Current { content: Some(content), large: Some(large), ..Current::ABSENT };
    let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
    let (reply, change) = call.call().execute(UnixMillis(1_000), current);
    let (reply, mut changed, mut bytes) = (reply.into_owned(), large.clone(), Vec::new());
    match change {
        Change::Keep => {}
        Change::Delta { bytes, .. } => {
            changed.apply(&bytes, &mut Vec::new()).expect("it is a delta of what was seen");
        }
        other => panic!("{line}: {other:?}"),
    }
    changed.pack(&mut bytes);
    (reply, bytes)
}

fn after(lines: &[&str]) -> Vec<u8> {
    let step = |bytes: Option<Vec<u8>>, line: &&str| run(line, bytes.as_deref()).1;
    lines.iter().fold(None, step).expect("there is a stream")
}

#[test]
fn the_bytes_are_pinned() {
    let bytes = after(&[
        "XADD s 5-1 f v",
        "XADD s 5-2 f w",
        "XADD s 260-1 g x",
        "XDEL s 5-1",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    ]);
    let parts: &[&[u8]] = &[
        // Length, tail, bytes of groups, added, last id, largest deleted id.
        b"\x02\0\0\0\0\0\0\0\x2a\0\0\0\x03\0\0\0\0\0\0\0",
        b"\x04\x01\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        b"\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        // A group of 38 bytes: name, last delivered id, two entries read.
        b"\x26\0\0\0\x01g\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
        // A consumer seen at 1000, a pending entry delivered then.
        b"\x01\x01c\xe8\x07\x01\x05\x02\0\xd0\x0f\x01",
        // A chunk: 18 bytes of body, of a node, entries, ids.
        b"\x12\0\0\0\x39\0\0\0\x02\x01",
        b"\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        b"\x04\x01\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        // The chunk's field, and two entries.
        b"\x01\x01f\x05\0\x01\0\x01w",
        b"\x08\xff\x01\x01\x01\x01g\x01x",
    ];
    assert_eq!(bytes.escape_ascii().to_string(), parts.concat().escape_ascii().to_string());
}

const COMMANDS: &[&str] = &[
    "XADD s * f v",
    "XADD s MAXLEN 1 900-* f v",
    "XADD s MAXLEN ~ 1 * g v h w",
    "XRANGE s - +",
    "XREVRANGE s + -",
    "XRANGE s 3 7 COUNT 2",
    "XDEL s 5-1 6-0 7",
    "XTRIM s MAXLEN 3",
    "XTRIM s MINID 6",
    "XTRIM s MINID ~ 6",
    "XSETID s 999",
    "XREAD STREAMS s 3",
    "XREADGROUP GROUP g c STREAMS s >",
    "XREADGROUP GROUP g c STREAMS s 0",
    "XACK s g 1 5-1 7",
    "XPENDING s g",
    "XPENDING s g - + 10",
    "XCLAIM s g d 0 1 5-1 7 FORCE",
    "XAUTOCLAIM s g d 0 -",
    "XGROUP CREATE s h 0",
    "XGROUP SETID s g $",
    "XGROUP DELCONSUMER s g c",
    "XGROUP DESTROY s g",
    "XINFO STREAM s",
    "XINFO STREAM s FULL",
    "XINFO GROUPS s",
    "XINFO CONSUMERS s g",
];

#[test]
fn damaged_bytes_are_answers_or_errors() {
    let whole = after(&[
        "XADD s 1-0 f v",
        "XADD s 5-1 f w",
        "XADD s 6-0 f w",
        "XADD s 7-0 g x h y",
        "XDEL s 6",
        "XGROUP CREATE s a 0",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g b COUNT 1 STREAMS s >",
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
    ]);
    let mut rng = Rng::new(1);
    let (mut errors, mut unpacked) = (0, 0);
    for round in 0..6_000 {
        let mut bytes = whole.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = match rng.below(3) {
                0 => rng.next_u64() as u8,
                1 => 0xff,
                _ => bytes[at] ^ 1 << rng.below(8),
            };
        }
        if round % 5 == 0 {
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        }
        // Some damage is found only by who reads what is there.
        let large = Collection::unpack(ValueKind::Stream, &bytes).ok();
        unpacked += usize::from(large.is_some());
        for line in COMMANDS {
            // What it leaves is read again.
            let (reply, left) = run(line, Some(&bytes));
            if let Some(large) = &large {
                let (answer, bytes) = run_large(line, large);
                assert_eq!((&answer, Some(&bytes)), (&reply, left.as_ref()), "{line}");
            }
            errors += usize::from(reply.is_error());
            if let Some(left) = left.filter(|left| *left != bytes) {
                run("XINFO STREAM s FULL COUNT 0", Some(&left));
            }
        }
    }
    assert!(errors > 10_000 && unpacked > 1_000, "{errors}, {unpacked}");
}

#[test]
fn a_stream_is_no_longer_than_a_value_may_be() {
    let field = "f".repeat(1 << 20);
    let mut bytes = None;
    for number in 1..=3 {
        bytes = run(&alloc::format!("XADD s {number} {field} v"), bytes.as_deref()).1;
    }
    let (reply, same) = run(&alloc::format!("XADD s 4 {field} v"), bytes.as_deref());
    assert!(reply.is_error() && same == bytes);
    // What goes makes room.
    let (reply, next) = run(&alloc::format!("XADD s MAXLEN 2 4 {field} v"), bytes.as_deref());
    assert_eq!(reply, Reply::Bulk(b"4-0".into()));
    assert!(next.expect("a stream").len() <= limits::VALUE_BYTES_MAX);
}

#[test]
fn a_large_stream_is_no_longer_than_a_collection_may_be() {
    let field = "f".repeat(1 << 20);
    let mut large = Collection::unpack(ValueKind::Stream, &after(&["XADD s 1 f v"]));
    let mut run = |line: &str| {
        let (reply, bytes) = run_large(line, large.as_ref().expect("a stream"));
        large = Collection::unpack(ValueKind::Stream, &bytes);
        (reply, bytes.len())
    };
    let add = |number: u64| alloc::format!("XADD s {number} {field} v");
    let fits = (2..).take_while(|number| !run(&add(*number)).0.is_error()).count();
    assert_eq!(fits, 31);
    let (reply, bytes) = run(&add(40));
    let Reply::Error(text) = reply else { panic!("{bytes} bytes") };
    assert!(text.contains("33554432") && bytes <= limits::COLLECTION_BYTES_MAX);
    // What goes makes room.
    let (reply, bytes) = run(&alloc::format!("XADD s MAXLEN 2 40 {field} v"));
    assert_eq!(reply, Reply::Bulk(b"40-0".into()));
    assert!(bytes < 3 << 20);
}

#[test]
fn an_answer_that_would_be_too_long_delivers_nothing() {
    // The names that entries share are in each of their answers.
    let fields: Vec<_> = (0..200).map(|number| alloc::format!("name{number} v")).collect();
    let mut bytes = after(&["XGROUP CREATE s g 0 MKSTREAM"]);
    for number in 1..=1_400 {
        let line = alloc::format!("XADD s {number} {}", fields.join(" "));
        bytes = run(&line, Some(&bytes)).1.expect("a stream");
    }
    for line in [
        "XREADGROUP GROUP g c STREAMS s >",
        "XCLAIM s g c 0 1 FORCE",
        "XRANGE s - +",
        "XREAD STREAMS s 0",
    ] {
        let (reply, left) = run(line, Some(&bytes));
        let is_short = line.starts_with("XCLAIM");
        assert_eq!(reply.is_error(), !is_short, "{line}: {reply:?}");
        assert!(is_short || left.as_ref() == Some(&bytes), "{line} changed the stream");
    }
    let (reply, _) = run("XREADGROUP GROUP g c COUNT 10 STREAMS s >", Some(&bytes));
    assert!(!reply.is_error());
}
