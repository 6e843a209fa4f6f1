//! What random draws don't reach of hashes, lists and sets: thresholds, members drawn at random, scans of
//! large collections, and bytes that no node of this version wrote.

use std::collections::{BTreeMap, BTreeSet};

use quorate_commands::{MapWorkspace, OwnedCall, Reply};
use quorate_machine::{Access, Change, Content, Current, Rng, ValueKind, Verdict};
use quorate_types::{Timestamp, UnixMillis, WriterId, limits};

use crate::draw::Draw;
use crate::redis::Redis;
use crate::workspace::{Answer, Store, Words, show};

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn strings(answer: Answer) -> Vec<String> {
    let Answer::Array(answers) = answer else { panic!("an array, not {answer:?}") };
    let string = |answer| match answer {
        Answer::Bulk(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("a string, not {other:?}"),
    };
    answers.into_iter().map(string).collect()
}

/// A store with a hash `h`, a set of strings `s` and one of integers `i` of so many members.
fn filled(count: usize) -> Store {
    let mut store = Store::default();
    for number in 0..count {
        store.run(&words(&format!("HSET h field{number} value{number}")));
        store.run(&words(&format!("SADD s member{number}")));
        store.run(&words(&format!("SADD i {}", number * 1000)));
    }
    store
}

#[test]
fn encodings_change_where_those_of_redis_do() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let (long, longer) = ("x".repeat(64), "x".repeat(65));
    let fields: Vec<String> = (0..513).map(|number| format!("f{number} v")).collect();
    let numbers: Vec<String> = (0..513).map(|number| (number * 70_000).to_string()).collect();
    for line in [
        format!("HSET h {}", fields[..512].join(" ")),
        "HSET h f0 w".into(),
        format!("HSET h {}", fields[512]),
        "HDEL h f0 f1".into(),
        format!("HSET v f {long}"),
        format!("HSET v {longer} x"),
        format!("HSET w f {longer} f x"),
        format!("HSETNX x {longer} x"),
        format!("SADD s {}", numbers[..512].join(" ")),
        format!("SADD s {}", numbers[0]),
        format!("SADD s {}", numbers[512]),
        "SREM s 0 70000".into(),
        "SUNIONSTORE t s".into(),
        "SADD t x".into(),
        "SREM t x".into(),
        format!("SADD m {}", numbers.join(" ")),
        "SADD n 1 x".into(),
        "SREM n x".into(),
        "SINTERSTORE o n".into(),
        "SMOVE n o 1".into(),
        "RPUSH l a".into(),
    ] {
        let line = words(&line);
        assert_eq!(store.run(&line), redis.pipeline([&line]).remove(0), "{}", show(&line));
        for key in ["h", "v", "w", "x", "s", "t", "m", "n", "o", "l"] {
            let ask = words(&format!("OBJECT ENCODING {key}"));
            let theirs = redis.pipeline([&ask]).remove(0);
            assert_eq!(store.run(&ask), theirs, "{key} after {}", show(&line));
        }
    }
}

#[test]
fn members_drawn_at_random_are_members() {
    for count in [1, 5, 600] {
        let mut store = filled(count);
        for (key, draw, all, width) in [
            ("h", "HRANDFIELD", "HKEYS h", 1),
            ("h", "HRANDFIELD", "HGETALL h", 2),
            ("s", "SRANDMEMBER", "SMEMBERS s", 1),
            ("i", "SRANDMEMBER", "SMEMBERS i", 1),
        ] {
            let all = strings(store.run(&words(all)));
            let all: BTreeSet<_> = all.chunks(width).map(<[_]>::to_vec).collect();
            let with = if width == 2 { " WITHVALUES" } else { "" };
            let mut seen = BTreeSet::new();
            for (round, wanted) in [1_i64, 3, 4, 50, 700, -1, -3, -700, 300, 5].iter().enumerate() {
                store.now = UnixMillis(round as u64);
                let drawn = strings(store.run(&words(&format!("{draw} {key} {wanted}{with}"))));
                let drawn: Vec<_> = drawn.chunks(width).map(<[_]>::to_vec).collect();
                let different: BTreeSet<_> = drawn.iter().cloned().collect();
                assert!(different.is_subset(&all), "{draw} {wanted}");
                if *wanted > 0 {
                    assert_eq!(
                        (drawn.len(), different.len()),
                        (count.min(*wanted as usize), drawn.len())
                    );
                } else {
                    assert_eq!(drawn.len() as i64, -wanted);
                }
                seen.extend(drawn);
            }
            assert_eq!(seen, all, "each comes up");
        }
    }
}

#[test]
fn what_is_popped_was_there_and_is_gone() {
    for key in ["s", "i"] {
        let mut store = filled(600);
        let mut left: BTreeSet<_> =
            strings(store.run(&words(&format!("SMEMBERS {key}")))).into_iter().collect();
        for count in [1, 7, 100, 0, 400] {
            let popped = strings(store.run(&words(&format!("SPOP {key} {count}"))));
            assert_eq!(popped.len(), count);
            assert!(popped.iter().all(|member| left.remove(member)), "{count} of {key}");
            let held = strings(store.run(&words(&format!("SMEMBERS {key}"))));
            assert_eq!(held.into_iter().collect::<BTreeSet<_>>(), left);
        }
        while !left.is_empty() {
            store.now.0 += 1;
            let Answer::Bulk(member) = store.run(&words(&format!("SPOP {key}"))) else {
                panic!("{} are left", left.len());
            };
            assert!(left.remove(&String::from_utf8(member).expect("text")));
        }
        assert_eq!(store.run(&words(&format!("EXISTS {key}"))), Answer::Int(0));
    }
}

/// The answer of a read where all collections are large.
fn run_large(store: &mut Store, words: &Words) -> Answer {
    let call = OwnedCall::new(words.iter().map(Vec::as_slice)).expect("a command");
    match store.large.run(store.now, Timestamp::ZERO, &call.call()) {
        Verdict::Commit(reply) | Verdict::Abandon(reply) => reply.into(),
    }
}

#[test]
fn scans_of_large_collections_end_and_visit_all() {
    let mut store = filled(3000);
    for (scan, all) in
        [("HSCAN h", "HGETALL h"), ("SSCAN s", "SMEMBERS s"), ("SSCAN i", "SMEMBERS i")]
    {
        let mut all = strings(store.run(&words(all)));
        all.sort();
        // However large a packed collection is, a scan looks at it so many times; a large one it visits
        // leaf by leaf.
        for (run, parts) in
            [(Store::run as fn(&mut Store, &Words) -> _, 60..=66), (run_large, 30..=200)]
        {
            let (mut cursor, mut found, mut count) = ("0".to_owned(), vec![], 0);
            loop {
                let Answer::Array(mut part) = run(&mut store, &words(&format!("{scan} {cursor}")))
                else {
                    panic!("{scan}");
                };
                found.extend(strings(part.pop().expect("members")));
                let Some(Answer::Bulk(next)) = part.pop() else { panic!("a cursor") };
                cursor = String::from_utf8(next).expect("text");
                count += 1;
                if cursor == "0" {
                    break;
                }
            }
            found.sort();
            assert_eq!(found, all, "{scan}");
            assert!(parts.contains(&count), "{count} parts");
        }
    }
}

#[test]
fn counts_and_indexes_of_any_size_take_what_there_is() {
    let mut store = filled(20);
    store.run(&words("RPUSH l a b c a"));
    const MAX: &str = "9223372036854775807";
    const MIN: &str = "-9223372036854775808";
    for (line, answer) in [
        (format!("LRANGE l {MIN} {MAX}"), r#"["a", "b", "c", "a"]"#),
        (format!("LRANGE l {MAX} {MIN}"), "[]"),
        (format!("LPOS l a COUNT {MAX} MAXLEN {MAX} RANK {MAX}"), "[]"),
        (format!("LPOS l a COUNT {MAX} MAXLEN {MAX} RANK -1"), "[:3, :0]"),
        (format!("LPOS l a RANK {MIN}"), ":3"),
        (format!("LINDEX l {MIN}"), "null"),
        (format!("LSET l {MIN} x"), "-ERR index out of range"),
        (format!("LREM l {MIN} x"), ":0"),
        (format!("LREM l {MAX} b"), ":1"),
        (format!("LPOP l {MAX}"), r#"["a", "c", "a"]"#),
        (format!("SINTERCARD 1 s LIMIT {MAX}"), ":20"),
        (format!("SINTERCARD {MAX} s"), "-ERR Number of keys can't be greater than number of args"),
        (format!("LMPOP {MAX} l LEFT"), "-ERR numkeys should be greater than 0"),
    ] {
        assert_eq!(format!("{:?}", store.run(&words(&line))), answer, "{line}");
    }
    for line in [format!("SRANDMEMBER s -{MAX}"), format!("HRANDFIELD h -{MAX}")] {
        let Answer::Error(text) = store.run(&words(&line)) else { panic!("{line}") };
        assert!(text.contains("16777216"), "{text}");
    }
    for line in
        [format!("SRANDMEMBER s {MAX}"), format!("HRANDFIELD h {MAX}"), format!("SPOP s {MAX}")]
    {
        assert_eq!(strings(store.run(&words(&line))).len(), 20, "{line}");
    }
}

/// A collection ends at the limit of a value; what would make it longer changes nothing.
#[test]
fn a_collection_is_no_longer_than_its_form_may_be() {
    let value = "x".repeat(limits::VALUE_BYTES_MAX / 2);
    for (packed_bytes_max, max) in
        [(None, limits::VALUE_BYTES_MAX), (Some(4096), limits::COLLECTION_BYTES_MAX)]
    {
        let mut keys = MapWorkspace::new(packed_bytes_max);
        let mut version = 0;
        let mut run = |line: String| {
            version += 1;
            let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
            let timestamp = Timestamp::new(version, WriterId(1));
            let Verdict::Commit(reply) = keys.run(UnixMillis(1), timestamp, &call.call()) else {
                panic!("abandoned: {line}")
            };
            (reply, keys.get(UnixMillis(1), b"k").timestamp.version == version)
        };
        for add in ["HSET k", "LPUSH k", "SADD k", "ZADD k"] {
            run("DEL k".into());
            let mut bytes = 0;
            let refusal = (0..).find_map(|number| {
                let member = match add {
                    "HSET k" => format!("{number} {value}{number}"),
                    "ZADD k" => format!("{number} {value}{number}"),
                    _ => format!("{value}{number}"),
                };
                let (reply, is_changed) = run(format!("{add} {member}"));
                let Reply::Error(text) = reply else {
                    bytes += value.len();
                    return None;
                };
                assert!(!is_changed, "an error changes nothing");
                Some(text.into_owned())
            });
            let text = refusal.expect("it ends");
            assert!(text.contains(&max.to_string()), "{text}");
            assert!((max - 2 * value.len()..=max).contains(&bytes), "{add}: {bytes} of {max}");
        }
    }
}

/// Kinds of packed values, whose bytes peers and guests send.
const KINDS: [ValueKind; 4] =
    [ValueKind::Hash, ValueKind::List, ValueKind::Set, ValueKind::SortedSet];

/// No command panics on bytes that no node wrote, or makes of them more than they can hold.
#[test]
fn damaged_collections_are_read_as_far_as_they_go() {
    let mut rng = Rng::new(5);
    let mut whole: BTreeMap<u8, Vec<Vec<u8>>> = BTreeMap::new();
    let mut store = Store::default();
    let mut draw = Draw::new(5);
    for round in 0..3_000 {
        store.run(&if round % 4 == 0 { draw.on_expiring_hash(b"k1", 0) } else { draw.command() });
        let keys = [draw.key(), b"z1".into(), b"z2".into(), b"g1".into()];
        let key = &keys[rng.below(4) as usize];
        if let Some(content) = store.current(key).content {
            whole.entry(content.kind as u8).or_default().push(content.bytes.to_vec());
        }
    }
    for round in 0..60_000 {
        let kind = KINDS[rng.below(KINDS.len() as u64) as usize];
        let samples = whole.get(&(kind as u8)).filter(|_| rng.chance(2, 3));
        let mut bytes = match samples {
            Some(samples) => samples[rng.below(samples.len() as u64) as usize].clone(),
            None => (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect(),
        };
        for _ in 0..rng.below(4) {
            if !bytes.is_empty() {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = if rng.chance(1, 2) { 0xff } else { rng.next_u64() as u8 };
            }
        }
        if rng.chance(1, 4) {
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        }
        let command = match rng.below(5) {
            0 => draw.on_sorted_set(b"s1"),
            1 => draw.geo_command(),
            2 => draw.on_expiring_hash(b"s1", 5),
            _ => draw.on_key(b"s1"),
        };
        let Ok(call) = OwnedCall::new(command.iter().map(Vec::as_slice)) else { continue };
        let content = Content { bytes: &bytes, kind, expire_at: None };
        let timestamp = Timestamp::new(7, WriterId(1));
        let (reply, change) = call
            .call()
            .execute(UnixMillis(5), Current { content: Some(content), large: None, timestamp });
        let most = 4096 + 128 * (bytes.len() + command.iter().map(Vec::len).sum::<usize>());
        assert!(reply.bytes() < most, "round {round}: {}", show(&command));
        if let Change::Set { bytes, .. } = &change {
            assert!(bytes.len() < most, "round {round}: {}", show(&command));
        }
        assert!(call.call().access() != Access::Read || change == Change::Keep);
    }
}
