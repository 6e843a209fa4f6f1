//! What arrives is not always what a client library sends: garbage, lies about lengths, crumbs.
//! The sender gets a clear error, the stream ends where it can't be trusted, memory stays bounded.

use proptest::collection::vec;
use proptest::prelude::*;
use quorate_machine::Rng;
use quorate_resp::{ConnectionId, Settings, Shared, Totals};
use quorate_resp_harness::Harness;
use std::sync::atomic::Ordering::Relaxed;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

fn capacity(harness: &mut Harness, id: ConnectionId) -> usize {
    harness.frontend.read_buffer(id).map_or(0, |buffer| buffer.capacity())
}

/// Delivers the input cut at random places, or byte by byte, and takes the whole output.
fn deliver(input: &[u8], cuts: Option<&mut Rng>) -> (Vec<u8>, bool) {
    let mut harness = harness();
    let id = harness.connect();
    let mut output = Vec::new();
    let mut rest = input;
    let mut cuts = cuts;
    while !rest.is_empty() {
        let count = match &mut cuts {
            None => 1,
            Some(rng) => 1 + rng.below(rest.len() as u64) as usize,
        };
        let (piece, tail) = rest.split_at(count);
        output.extend(harness.send(id, piece));
        rest = tail;
    }
    (output, harness.frontend.wants_close(id))
}

fn deliver_whole(input: &[u8]) -> (Vec<u8>, bool) {
    let mut harness = harness();
    let id = harness.connect();
    let output = harness.send(id, input);
    (output, harness.frontend.wants_close(id))
}

fn command(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Well-formed commands, broken ones and noise.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"SET".to_vec()),
        Just(b"GET".to_vec()),
        Just(b"MGET".to_vec()),
        Just(b"DEL".to_vec()),
        Just(b"INCR".to_vec()),
        Just(b"MULTI".to_vec()),
        Just(b"EXEC".to_vec()),
        Just(b"WATCH".to_vec()),
        Just(b"PING".to_vec()),
        Just(b"HELLO".to_vec()),
        Just(b"3".to_vec()),
        Just(b"a".to_vec()),
        Just(b"b".to_vec()),
        vec(any::<u8>(), 0..5),
    ];
    let part = prop_oneof![
        6 => vec(word, 1..5).prop_map(|words| command(&words)),
        2 => "(SET|GET|ECHO|PING) ?[ab'\"\\\\x4 ]{0,8}\r?\n".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..12),
        1 => prop::sample::select(vec![
            b"*\r\n".to_vec(),
            b"*-1\r\n".to_vec(),
            b"*0\r\n".to_vec(),
            b"*99999999\r\n".to_vec(),
            b"*1\r\n$-1\r\n".to_vec(),
            b"*1\r\n$99999999999\r\n".to_vec(),
            b"*2\r\n*1\r\n".to_vec(),
            b"\"\r\n".to_vec(),
        ]),
    ];
    vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn how_a_stream_is_cut_changes_nothing(input in stream(), seed: u64) {
        let whole = deliver_whole(&input);
        prop_assert_eq!(&deliver(&input, None), &whole);
        prop_assert_eq!(&deliver(&input, Some(&mut Rng::new(seed))), &whole);
    }

    #[test]
    fn garbage_never_panics(input in vec(any::<u8>(), 0..2000)) {
        deliver_whole(&input);
    }

    #[test]
    fn garbage_behind_a_header_never_panics(
        header in "[*$]-?[0-9]{0,20}\r\n",
        input in vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = header.into_bytes();
        bytes.extend(input);
        deliver_whole(&bytes);
    }
}

#[test]
fn every_protocol_error_closes_the_connection_after_saying_why() {
    for (input, error) in [
        ("*x\r\nPING\r\n", "invalid multibulk length"),
        ("*1\r\n$x\r\nPING\r\n", "invalid bulk length"),
        ("*1\r\n+PING\r\n", "expected '$', got '+'"),
        ("ECHO \"\r\nPING\r\n", "unbalanced quotes in request"),
    ] {
        let (output, closed) = deliver_whole(format!("PING\r\n{input}").as_bytes());
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text, format!("+PONG\r\n-ERR Protocol error: {error}\r\n"));
        assert!(closed);
    }
}

#[test]
fn a_protocol_error_waits_for_the_replies_before_it() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"SET a 1\r\n*x\r\n");
    assert!(harness.take(id).is_empty());
    assert!(!harness.frontend.wants_close(id));
    harness.complete_one();
    assert_eq!(harness.take(id), b"+OK\r\n-ERR Protocol error: invalid multibulk length\r\n");
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn nesting_is_not_the_protocol() {
    let (output, closed) = deliver_whole("*1\r\n".repeat(100_000).as_bytes());
    assert_eq!(output, b"-ERR Protocol error: expected '$', got '*'\r\n");
    assert!(closed);
}

#[test]
fn announced_lengths_take_no_memory() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"*1000000\r\n$4000000\r\nabc");
    assert!(capacity(&mut harness, id) < 100_000);
    // The buffer grows with what arrives.
    harness.feed(id, &[b'x'; 200_000]);
    assert!(capacity(&mut harness, id) < 1_000_000);
    assert_eq!(harness.take(id), b"");
}

#[test]
fn a_large_value_arrives_in_pieces() {
    let mut harness = harness();
    let id = harness.connect();
    let value = vec![b'v'; 3_000_000];
    let input = command(&[b"SET".to_vec(), b"a".to_vec(), value.clone()]);
    let mut output = Vec::new();
    for piece in input.chunks(16 * 1024) {
        output.extend(harness.send(id, piece));
    }
    assert_eq!(output, b"+OK\r\n");
    assert_eq!(harness.talk(id, "STRLEN a"), ":3000000\r\n");
    assert_eq!(harness.send(id, b"GET a\r\n").len(), value.len() + 12);
    // An idle connection keeps no large buffer.
    harness.pass(5000);
    assert!(capacity(&mut harness, id) < 100_000);
}

/// A socket that is closed with unread bytes in it resets the connection, and the client then never
/// sees the answer.
#[test]
fn an_argument_that_is_too_long_is_read_to_its_end_before_the_connection_closes() {
    let mut harness = harness();
    let start = |harness: &mut Harness| {
        let id = harness.connect();
        harness.feed(id, b"PING\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$6000000\r\nabc");
        let said = String::from_utf8(harness.take(id)).unwrap();
        assert!(
            said.starts_with("+PONG\r\n-ERR Protocol error: invalid bulk length: 6000000 bytes")
        );
        assert!(said.contains("proto-max-bulk-len, 4194304; spread the value"), "{said}");
        assert!(harness.frontend.wants_read(id) && !harness.frontend.wants_close(id));
        id
    };
    let id = start(&mut harness);
    let mut left = 6_000_002 - 3;
    while left > 0 {
        assert!(!harness.frontend.wants_close(id), "{left} bytes are missing");
        let bytes = left.min(16 * 1024);
        harness.feed(id, &vec![b'x'; bytes]);
        left -= bytes;
        assert!(capacity(&mut harness, id) < 100_000);
    }
    assert!(harness.frontend.wants_close(id));
    assert_eq!(harness.take(id), b"", "nothing of it was executed");
    // Who sends no more of it doesn't keep the connection.
    let id = start(&mut harness);
    harness.frontend.end_of_input(id);
    assert!(harness.frontend.wants_close(id));
    let id = start(&mut harness);
    harness.pass(10_000);
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn an_unfinished_command_is_bounded_by_the_query_buffer() {
    let settings = Settings::default();
    settings.query_bytes_max.store(1 << 20, Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let id = harness.connect();
    harness.feed(id, b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4000000\r\n");
    for _ in 0..100 {
        harness.feed(id, &[b'x'; 16 * 1024]);
    }
    assert!(harness.frontend.wants_close(id));
    assert!(capacity(&mut harness, id) < 3 << 20);
}

#[test]
fn a_finished_command_is_bounded_by_the_query_buffer() {
    let settings = Settings::default();
    settings.query_bytes_max.store(1 << 20, Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let id = harness.connect();
    let long = command(&[b"DEL".to_vec(), vec![b'x'; 600_000], vec![b'y'; 600_000]]);
    assert_eq!(harness.send(id, &long), b"");
    assert!(harness.frontend.wants_close(id));
    // Short commands in a long pipeline are no long command.
    let id = harness.connect();
    let pipeline = b"*1\r\n$4\r\nPING\r\n".repeat(100_000);
    harness.send(id, &pipeline);
    assert!(!harness.frontend.wants_close(id));
}

#[test]
fn commands_behind_a_slow_one_are_not_read_for_ever() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"WAIT 9 0\r\n");
    let mut reads = 0;
    while harness.frontend.wants_read(id) {
        harness.feed(id, &b"PING\r\n".repeat(1000));
        reads += 1;
        assert!(reads < 10, "the buffer grows without bound");
    }
    harness.backend.replicas = 9;
    harness.pass(10);
    assert_eq!(harness.take(id).len(), 4 + reads * 7000);
}

#[test]
fn the_unauthenticated_are_kept_short() {
    let shared = Shared::new(Settings::default(), Some("secret".to_owned()));
    let mut harness = Harness::new(shared);
    for (input, error) in [
        ("*11\r\n".to_owned(), "unauthenticated multibulk length"),
        ("*2\r\n$16385\r\n".to_owned(), "unauthenticated bulk length"),
    ] {
        let id = harness.connect();
        let output = harness.send(id, input.as_bytes());
        assert_eq!(output, format!("-ERR Protocol error: {error}\r\n").into_bytes());
        assert!(harness.frontend.wants_close(id));
    }
    let id = harness.connect();
    assert_eq!(harness.talk(id, "AUTH secret"), "+OK\r\n");
    assert_eq!(harness.send(id, b"*11\r\n$16385\r\n"), b"");
    assert!(!harness.frontend.wants_close(id));
}

#[test]
fn a_key_has_a_longest_length() {
    let mut harness = harness();
    let id = harness.connect();
    let longest = vec![b'k'; 64 * 1024];
    let set = |key: &[u8]| command(&[b"SET".to_vec(), key.to_vec(), b"v".to_vec()]);
    assert_eq!(harness.send(id, &set(&longest)), b"+OK\r\n");
    let too_long = [&longest[..], b"k"].concat();
    let error = b"-ERR the key is longer than 65536 bytes\r\n";
    assert_eq!(harness.send(id, &set(&too_long)), error);
    assert_eq!(harness.send(id, &command(&[b"WATCH".to_vec(), too_long.clone()])), error);
    harness.talk(id, "MULTI");
    assert_eq!(harness.send(id, &set(&too_long)), error);
    assert!(harness.talk(id, "EXEC").starts_with("-EXECABORT"));
    let usage = [b"MEMORY".to_vec(), b"USAGE".to_vec(), too_long];
    assert_eq!(harness.send(id, &command(&usage)), error);
}

#[test]
fn errors_quote_input_without_forging_replies() {
    let (output, _) = deliver_whole(&command(&[b"x\r\n+OK\r\n".to_vec(), b"\r\n:1\r\n".to_vec()]));
    assert_eq!(output.iter().filter(|&&byte| byte == b'\n').count(), 1);
}

#[test]
fn bad_input_of_one_client_is_nobody_elses_business() {
    let shared = Shared::new(Settings::default(), None);
    let mut harness = Harness::new(shared.clone());
    let (good, bad) = (harness.connect(), harness.connect());
    harness.feed(good, b"*2\r\n$3\r\nGET\r\n$1\r\n");
    harness.send(bad, b"*x\r\n");
    harness.frontend.close(bad);
    assert_eq!(harness.send(good, b"a\r\n"), b"$-1\r\n");
    let Totals { errors, .. } = shared.totals();
    assert_eq!(errors, 1);
}
