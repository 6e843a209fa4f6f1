//! `DUMP` and `RESTORE` of collections: a payload of either server is read by the other.

use quorate_machine::Rng;

use crate::draw::Draw;
use crate::redis::Redis;
use crate::workspace::{Answer, Store, Words, show};

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A payload with the version of Redis 7.0 and the checksum of its body.
fn payload(body: &[u8]) -> Vec<u8> {
    payload_of(body, 10)
}

/// A payload with a version and the checksum of its body.
pub(super) fn payload_of(body: &[u8], version: u8) -> Vec<u8> {
    let mut bytes = [body, &[version, 0]].concat();
    let crc = bytes.iter().fold(0_u64, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| match crc & 1 {
            1 => crc >> 1 ^ 0xad93_d235_94c9_35a9_u64.reverse_bits(),
            _ => crc >> 1,
        })
    });
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn restore(key: &str, payload: &[u8]) -> Words {
    let mut words = words(&format!("RESTORE {key} 0 x REPLACE"));
    words[3] = payload.into();
    words
}

/// All that a key holds, in an order of its own: its type, its encoding, its members.
fn content(key: &str, mut ask: impl FnMut(&Words) -> Answer) -> Vec<String> {
    let kind = ask(&words(&format!("TYPE {key}")));
    let (line, each) = match format!("{kind:?}").as_str() {
        "+string" => (format!("GET {key}"), 1),
        "+hash" => (format!("HGETALL {key}"), 2),
        "+list" => (format!("LRANGE {key} 0 -1"), usize::MAX),
        "+set" => (format!("SMEMBERS {key}"), 1),
        "+zset" => (format!("ZRANGE {key} 0 -1 WITHSCORES"), usize::MAX),
        "+stream" => (format!("XINFO STREAM {key} FULL COUNT 0"), usize::MAX),
        other => panic!("{key} holds {other}"),
    };
    let mut parts = match ask(&words(&line)) {
        Answer::Array(answers) => {
            answers.chunks(each.min(answers.len())).map(|part| format!("{part:?}")).collect()
        }
        answer => vec![format!("{answer:?}")],
    };
    parts.sort();
    let encoding = ask(&words(&format!("OBJECT ENCODING {key}")));
    // Of strings Redis remembers how they came to be.
    parts.push(if parts.len() == 1 && each == 1 { String::new() } else { format!("{encoding:?}") });
    parts.push(format!("{kind:?}"));
    parts
}

/// Whether a payload is in no order that both know.
fn is_unordered(payload: &[u8]) -> bool {
    const SET: u8 = 2;
    const HASH: u8 = 4;
    payload[0] == SET || payload[0] == HASH
}

pub(super) fn dump(key: &str, ask: impl FnOnce(&Words) -> Answer) -> Vec<u8> {
    match ask(&words(&format!("DUMP {key}"))) {
        Answer::Bulk(payload) => payload,
        other => panic!("no payload of {key}: {other:?}"),
    }
}

#[test]
fn collections_travel_between_redis_and_here() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let long = "x".repeat(100);
    let numbers = |count: i64, step: i64| -> String {
        (0..count).map(|number| format!(" {}", (number - 3) * step)).collect()
    };
    let pairs = |count: i64| -> String {
        (0..count).map(|number| format!(" {} member:{number}", number * 7)).collect()
    };
    for (key, line) in [
        ("l1", "RPUSH l1 a b c -5 300 70000 -9000000 9999999999 x".to_owned()),
        ("l2", format!("RPUSH l2{}", numbers(9000, 37))),
        ("l3", format!("RPUSH l3 {} {} {long}", "y".repeat(9000), "z".repeat(70_000))),
        ("h1", "HSET h1 a 1 b 127 c 128 d -1 e -4096 f 4095 g 4096 h -4097 i 8388607".into()),
        ("h2", format!("HSET h2 field {long}")),
        ("h3", format!("HSET h3{}", pairs(513))),
        ("h4", format!("HSET h4{}", pairs(512))),
        ("s1", format!("SADD s1{}", numbers(9, 1))),
        ("s2", format!("SADD s2{}", numbers(500, 40_000))),
        ("s3", format!("SADD s3{}", numbers(9, 1 << 40))),
        ("s4", format!("SADD s4{}", numbers(600, 1))),
        ("s5", format!("SADD s5 {long} a b 7")),
        ("z1", "ZADD z1 1 a 2.5 b -inf c inf d 1e17 e 0.1 f 4503599627370496 g".into()),
        ("z2", format!("ZADD z2{}", pairs(200))),
        ("z3", format!("ZADD z3 1.5 {long} -0.25 a")),
    ] {
        let line = words(&line);
        assert_eq!(store.run(&line), redis.pipeline([&line]).remove(0), "{key}");
        for compression in ["no", "yes"] {
            redis.call(&["CONFIG", "SET", "rdbcompression", compression]);
            let ours = dump(key, |words| store.run(words));
            let theirs = dump(key, |words| redis.pipeline([words]).remove(0));
            if compression == "no" && !is_unordered(&theirs) {
                assert_eq!(
                    ours.escape_ascii().to_string(),
                    theirs.escape_ascii().to_string(),
                    "{key}"
                );
            }
            for payload in [ours, theirs] {
                let line = restore("copy", &payload);
                assert_eq!(store.run(&line), Answer::Status("OK".into()), "{key}");
                assert_eq!(redis.pipeline([&line]).remove(0), Answer::Status("OK".into()), "{key}");
                let whole = content(key, |words| redis.pipeline([words]).remove(0));
                assert_eq!(content("copy", |words| store.run(words)), whole, "{key}");
                assert_eq!(
                    content("copy", |words| redis.pipeline([words]).remove(0)),
                    whole,
                    "{key}"
                );
            }
        }
    }
}

/// What was added, deleted, read by groups, claimed; many nodes, fields of many kinds.
#[test]
fn streams_travel_between_redis_and_here() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let many: Vec<String> = (0..350).map(|n| format!("XADD x1 {n}-1 f{} {n}", n / 150)).collect();
    let whole = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>();
    let cases = [
        ("x1", many),
        (
            "x2",
            whole(&["XADD x2 18446744073709551615-18446744073709551615 a 1 b -70000 c 9999999999"]),
        ),
        (
            "x3",
            whole(&["XADD x3 5-5 a b", "XADD x3 5-6 a c", "XADD x3 5-7 b c d e", "XADD x3 6-0 a "]),
        ),
        ("x4", whole(&["XGROUP CREATE x4 g $ MKSTREAM", "XGROUP CREATE x4 77 0-3 ENTRIESREAD 9"])),
        (
            "x5",
            whole(&[
                "XADD x5 1-1 a b",
                "XADD x5 2-1 a b",
                "XDEL x5 2-1",
                "XSETID x5 9-9 ENTRIESADDED 7 MAXDELETEDID 3-3",
            ]),
        ),
    ];
    for (key, lines) in cases {
        for line in &lines {
            let line = words(line);
            assert_eq!(store.run(&line), redis.pipeline([&line]).remove(0), "{}", show(&line));
        }
        for compression in ["yes", "no"] {
            redis.call(&["CONFIG", "SET", "rdbcompression", compression]);
            let ours = dump(key, |words| store.run(words));
            let theirs = dump(key, |words| redis.pipeline([words]).remove(0));
            let [shown, wanted] =
                [&ours, &theirs].map(|payload| payload.escape_ascii().to_string());
            // Redis keeps the bytes of what is deleted.
            if compression == "no" && key != "x5" {
                assert_eq!(shown, wanted, "{key}");
            }
            for payload in [ours, theirs] {
                travel(key, &payload, &mut store, &mut redis);
            }
        }
    }
}

/// A payload of what `key` holds at both servers gives both what `key` holds.
pub(super) fn travel(key: &str, payload: &[u8], store: &mut Store, redis: &mut Redis) {
    let line = restore("copy", payload);
    assert_eq!(store.run(&line), Answer::Status("OK".into()), "{key}");
    assert_eq!(redis.pipeline([&line]).remove(0), Answer::Status("OK".into()), "{key}");
    let whole = content("copy", |words| redis.pipeline([words]).remove(0));
    assert_eq!(content("copy", |words| store.run(words)), whole, "{key}");
    // As it was, but for the entries that Redis remembers to be deleted.
    let range = |key: &str| words(&format!("XRANGE {key} - +"));
    let entries = store.run(&range(key));
    for copy in [store.run(&range("copy")), redis.pipeline([&range("copy")]).remove(0)] {
        assert_eq!(copy, entries, "{key}");
    }
}

/// A Redis can be told to put more entries into a node than a chunk has here, and goes on to add to
/// one of which entries are deleted.
#[test]
fn nodes_of_any_length_are_restored() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    redis.call(&["CONFIG", "SET", "stream-node-max-entries", "0"]);
    redis.call(&["CONFIG", "SET", "stream-node-max-bytes", "0"]);
    for id in 1..=777 {
        redis.call(&["XADD", "x", &format!("{id}"), "field", &format!("{id}")]);
    }
    for id in (1..=777).filter(|id| id % 5 == 0 || (200..450).contains(id)) {
        redis.call(&["XDEL", "x", &format!("{id}")]);
    }
    let payload = dump("x", |words| redis.pipeline([words]).remove(0));
    assert_eq!(store.run(&restore("x", &payload)), Answer::Status("OK".into()));
    for line in [
        "XRANGE x - +",
        "XREVRANGE x + - COUNT 5",
        "XRANGE x 198 452",
        "XADD x 778 other 1",
        "XDEL x 1 199 451 777 3",
        "XTRIM x MAXLEN 90",
        "XRANGE x - +",
        "XLEN x",
    ] {
        let line = words(line);
        assert_eq!(store.run(&line), redis.pipeline([&line]).remove(0), "{}", show(&line));
    }
}

/// A stream's node of one entry, 5-0 with "a" of "b".
const ENTRY_ID: &[u8] = b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0";
const ENTRY_NODE: &[u8] = b"\x1d\x1d\0\0\0\x0a\0\x01\x01\0\x01\x01\x01\x81a\x02\0\x01\
    \x02\x01\0\x01\0\x01\x81b\x02\x04\x01\xff";

/// The forms of older servers, which Redis 7.0 reads and no longer writes.
#[test]
fn payloads_of_older_servers_are_read_as_redis_reads_them() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    // A ziplist: "a", 5, 300, -70000, "hello", 9999999999, each behind the length of the one before.
    let elements: &[&[u8]] = &[
        b"\x01a",
        b"\xf6",
        b"\xc0\x2c\x01",
        b"\xf0\x90\xee\xfe",
        b"\x05hello",
        b"\xe0\xff\xe3\x0b\x54\x02\x00\x00\x00",
    ];
    let (mut ziplist, mut before, mut last) = (vec![0; 10], 0, 0);
    for element in elements {
        last = ziplist.len();
        ziplist.push(before);
        ziplist.extend_from_slice(element);
        before = element.len() as u8 + 1;
    }
    ziplist.push(0xff);
    let length = ziplist.len() as u32;
    ziplist[..4].copy_from_slice(&length.to_le_bytes());
    ziplist[4..8].copy_from_slice(&(last as u32).to_le_bytes());
    ziplist[8..10].copy_from_slice(&(elements.len() as u16).to_le_bytes());
    let blob = [&[ziplist.len() as u8][..], &ziplist].concat();
    let (id, node) = (ENTRY_ID, ENTRY_NODE);
    let time = 1_700_000_000_123_u64.to_le_bytes();
    // The consumer "c" of the group "g" has the entry.
    let stream: Vec<&[u8]> = vec![
        b"\x0f\x01\x10",
        id,
        node,
        b"\x01\x06\x00",
        b"\x01\x01g\x05\x00",
        b"\x01",
        id,
        &time,
        b"\x02",
        b"\x01\x01c",
        &time,
        b"\x01",
        id,
    ];
    let bodies = [
        stream.concat(),
        [b"\x0a", &blob[..]].concat(),
        [b"\x0d", &blob[..]].concat(),
        [b"\x0e\x01", &blob[..]].concat(),
        b"\x01\x02\x01a\xc0\x07".to_vec(),
        b"\x04\x01\x01a\xc0\x07".to_vec(),
        b"\x03\x03\x01a\x031.5\x01b\xff\x01c\xfe".to_vec(),
        b"\x12\x02\x01\x05plain\x02\x09\x09\x00\x00\x00\x01\x00\x07\x01\xff".to_vec(),
    ];
    for body in bodies {
        let line = restore("k", &payload(&body));
        let (ours, theirs) = (store.run(&line), redis.pipeline([&line]).remove(0));
        assert_eq!((&ours, &theirs), (&theirs, &Answer::Status("OK".into())), "{}", show(&line));
        let whole = content("k", |words| redis.pipeline([words]).remove(0));
        assert_eq!(content("k", |words| store.run(words)), whole, "{}", show(&line));
    }
}

#[test]
fn damaged_payloads_are_refused_or_are_some_value() {
    const BAD: &str = "ERR Bad data format";
    let mut store = Store::default();
    let mut draw = Draw::new(9);
    let mut bodies: Vec<Vec<u8>> = vec![];
    while bodies.len() < 400 {
        store.run(&draw.command());
        let key = draw.key();
        if let Answer::Bulk(payload) = store.run(&vec![b"DUMP".to_vec(), key]) {
            bodies.push(payload[..payload.len() - 10].into());
        }
    }
    let mut rng = Rng::new(9);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..40_000 {
        let mut body = bodies[rng.below(bodies.len() as u64) as usize].clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(body.len() as u64) as usize;
            match rng.below(4) {
                0 => body[at] = rng.next_u64() as u8,
                1 => body[at] ^= 1 << rng.below(8),
                2 => body.truncate(at + 1),
                _ => body[at] = body[at].wrapping_add(1),
            }
        }
        let line = restore("k", &payload(&body));
        match store.run(&line) {
            Answer::Error(text) => {
                assert_eq!(text, BAD, "round {round}");
                refused += 1;
            }
            _ => {
                // What was taken is whole: it can be dumped and taken again, and is the same.
                let before = content("k", |words| store.run(words));
                let again = dump("k", |words| store.run(words));
                assert_eq!(store.run(&restore("k", &again)), Answer::Status("OK".into()));
                assert_eq!(content("k", |words| store.run(words)), before, "{}", show(&line));
                taken += 1;
            }
        }
    }
    let twice =
        [b"\x0f\x02\x10", ENTRY_ID, ENTRY_NODE, b"\x10", ENTRY_ID, ENTRY_NODE, b"\x02\x06\x00\x00"];
    assert_eq!(store.run(&restore("k", &payload(&twice.concat()))), Answer::Error(BAD.into()));
    assert!(refused > 5_000 && taken > 1_000, "{refused} refused and {taken} taken");
    for body in [
        &b"\x02\x02\x01a\x01a"[..],
        b"\x04\x02\x01a\x01b\x01a\x01c",
        b"\x02\x00",
        b"\x01\x00",
        b"\x12\x00",
        b"\x05\x01\x01a\x00\x00\x00\x00\x00\x00\xf8\x7f",
        b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x02\x00\x01\x00",
        b"\x02\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x04\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
        b"\x12\x01\x02\xc3\x01\x80\xff\xff\xff\xff\x00",
        b"\x07\x00",
    ] {
        assert_eq!(store.run(&restore("k", &payload(body))), Answer::Error(BAD.into()));
    }
}
