//! Streams beside those of a real redis-server: the same answers, and the same state after each
//! command.

mod draw;

use quorate_commands::{MapWorkspace, OwnedCall};
use quorate_machine::Change;
use quorate_types::{Timestamp, UnixMillis, WriterId, limits};

use crate::dump::{dump, travel};
use crate::redis::Redis;
use crate::workspace::{Answer, Store, Words, show};
use draw::Draw;

/// How much the clock may move between our reading of it and a command's run, in milliseconds.
const SLACK: u64 = 10_000;
/// Larger numbers are moments.
const MOMENT_MIN: i64 = 1_600_000_000_000;

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Whether two answers agree. Moments, and the spans since then that some lines tell, may differ by
/// what the clock moved.
fn agree(words: &Words, ours: &Answer, theirs: &Answer) -> bool {
    let name = words[0].to_ascii_uppercase();
    let sub = words.get(1).map(|word| word.to_ascii_uppercase());
    let span = match (name.as_slice(), sub.as_deref()) {
        (b"XPENDING", _) if words.len() > 3 => Some(2),
        (b"XINFO", Some(b"CONSUMERS")) => Some(5),
        _ => None,
    };
    agree_within(span, 0, ours, theirs)
}

fn agree_within(span: Option<usize>, at: usize, ours: &Answer, theirs: &Answer) -> bool {
    match (ours, theirs) {
        (Answer::Array(ours), Answer::Array(theirs)) => {
            let pairs = ours.iter().zip(theirs).enumerate();
            ours.len() == theirs.len() && { pairs }
                .all(|(at, (ours, theirs))| agree_within(span, at, ours, theirs))
        }
        (Answer::Int(ours), Answer::Int(theirs)) if ours != theirs => {
            let is_timed = span == Some(at) || ours.min(theirs) > &MOMENT_MIN;
            is_timed && ours.abs_diff(*theirs) < SLACK
        }
        _ => ours == theirs,
    }
}

fn clock(redis: &mut Redis) -> UnixMillis {
    crate::clock(redis)
}

#[test]
fn random_commands_leave_the_streams_that_redis_has() {
    let mut redis = Redis::start();
    for seed in 0..150 {
        redis.call(&["FLUSHALL"]);
        let mut store = Store::default();
        let mut draw = Draw::new(seed);
        for round in 0..8 {
            let mut commands = Vec::new();
            for _ in 0..50 {
                let command = draw.command();
                let state = draw.state_of(&command);
                commands.extend([command, state]);
            }
            store.now = clock(&mut redis);
            let theirs = redis.pipeline(&commands);
            for (index, (words, theirs)) in commands.iter().zip(&theirs).enumerate() {
                let ours = store.run(words);
                let before = &commands[index.saturating_sub(24)..index];
                let before: Vec<_> = before.iter().step_by(2).map(show).collect();
                assert!(
                    agree(words, &ours, theirs),
                    "seed {seed}: {}\n  ours:   {ours:?}\n  theirs: {theirs:?}\nafter\n{}",
                    show(words),
                    before.join("\n"),
                );
            }
            for key in ["s1", "s2"].into_iter().filter(|_| round % 4 == 3) {
                let is_there = words(&format!("EXISTS {key}"));
                if store.run(&is_there) == Answer::Int(1) {
                    let ours = dump(key, |words| store.run(words));
                    let theirs = dump(key, |words| redis.pipeline([words]).remove(0));
                    for payload in [ours, theirs] {
                        travel(key, &payload, &mut store, &mut redis);
                    }
                }
            }
        }
    }
}

/// Nodes of Redis's tree decide what `~` trims.
#[test]
fn long_streams_are_trimmed_as_redis_does() {
    let mut redis = Redis::start();
    for seed in 0..6 {
        redis.call(&["FLUSHALL"]);
        let mut store = Store::default();
        let mut draw = Draw::new(1_000 + seed);
        let commands = draw.long_stream(1_500);
        store.now = clock(&mut redis);
        let theirs = redis.pipeline(&commands);
        for (words, theirs) in commands.iter().zip(&theirs) {
            let ours = store.run(words);
            assert!(
                agree(words, &ours, theirs),
                "seed {seed}: {}\n  ours:   {ours:?}\n  theirs: {theirs:?}",
                show(words)
            );
        }
    }
}

/// `XSETID` may set a stream back before an entry that is deleted, whose chunk has no room.
#[test]
fn an_entry_is_found_that_came_before_a_deleted_one() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let fill = (1..=100).map(|number| format!("XADD s {number} f v"));
    let lines = [
        "XDEL s 100",
        "XSETID s 99",
        "XADD s 99-5 f v",
        "XADD s 99-7 f v",
        "XRANGE s 99-5 99-5",
        "XREVRANGE s 99-7 99",
        "XGROUP CREATE s g 99-3",
        "XREADGROUP GROUP g c STREAMS s >",
        "XREADGROUP GROUP g c STREAMS s 0",
        "XCLAIM s g d 0 99-5 JUSTID",
        "XDEL s 99-5",
        "XINFO STREAM s",
    ];
    for line in fill.chain(lines.map(String::from)) {
        let line = words(&line);
        assert_eq!(store.run(&line), redis.pipeline([&line]).remove(0), "{}", show(&line));
    }
}

/// What a change sends doesn't grow with the entries, nor with those that are pending.
#[test]
fn a_change_of_a_long_stream_is_a_short_message() {
    let mut keys = MapWorkspace::new(Some(limits::PACKED_BYTES_MAX));
    let mut version = 0;
    let mut run = |line: &str| {
        version += 1;
        let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
        let bytes = {
            let current = keys.get(UnixMillis(5), b"s");
            let (reply, change) = call.call().execute(UnixMillis(5), current);
            assert!(!reply.is_error(), "{line}: {reply:?}");
            match change {
                Change::Delta { bytes, .. } | Change::Set { bytes, .. } => bytes.len(),
                _ => 0,
            }
        };
        let timestamp = Timestamp::new(version, WriterId(1));
        let _ = keys.run(UnixMillis(5), timestamp, &call.call());
        bytes
    };
    let value = "v".repeat(30);
    for number in 1..=100_000 {
        let bytes = run(&format!("XADD s {number} field {value}"));
        assert!(number < 300 || bytes < 300, "{bytes}");
    }
    for group in ["g", "h"] {
        run(&format!("XGROUP CREATE s {group} 0"));
        run(&format!("XREADGROUP GROUP {group} c COUNT 10000 STREAMS s >"));
    }
    for (line, most) in [
        ("XADD s * field v", 300),
        ("XDEL s 50000", 200),
        ("XADD s MAXLEN = 99998 * field v", 400),
        ("XREADGROUP GROUP g c COUNT 1 STREAMS s >", 200),
        ("XACK s g 5000 5001", 200),
        ("XACK s g 9999", 200),
        ("XCLAIM s g d 0 7000 JUSTID", 300),
        ("XGROUP SETID s g 9000", 200),
        ("XGROUP CREATE s i 0", 200),
        ("XGROUP DESTROY s i", 200),
        ("XSETID s 200000", 100),
        ("XTRIM s MAXLEN ~ 50000", 40_000),
    ] {
        let bytes = run(line);
        assert!((1..=most).contains(&bytes), "{line}: {bytes} bytes");
    }
}

#[test]
fn a_generated_id_is_the_time_or_behind_the_last() {
    let mut store = Store { now: UnixMillis(1_000), ..Store::default() };
    let mut ask = |now: u64, line: &str| {
        store.now = UnixMillis(now);
        format!("{:?}", store.run(&words(line)))
    };
    assert_eq!(ask(1_000, "XADD s * f v"), "\"1000-0\"");
    assert_eq!(ask(1_000, "XADD s * f v"), "\"1000-1\"");
    assert_eq!(ask(999, "XADD s * f v"), "\"1000-2\"");
    assert_eq!(ask(1_001, "XADD s * f v"), "\"1001-0\"");
    assert_eq!(ask(1_001, "XADD s 2000-18446744073709551615 f v"), "\"2000-18446744073709551615\"");
    assert_eq!(ask(1_500, "XADD s * f v"), "\"2001-0\"");
    assert_eq!(ask(1_500, "XADD s 2001-* f v"), "\"2001-1\"");
}
