//! `DUMP` and `RESTORE` of collections: a payload of either server is read by the other.

use quorate_machine::Rng;

use crate::draw::Draw;
use crate::redis::Redis;
use crate::workspace::{Answer, Store, Words, show};

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A payload with the version and checksum of its body.
fn payload(body: &[u8]) -> Vec<u8> {
    let mut bytes = [body, &[10, 0]].concat();
    let crc = bytes.iter().fold(0_u64, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| match crc & 1 {
            1 => crc >> 1 ^ 0xad93_d235_94c9_35a9_u64.reverse_bits(),
            _ => crc >> 1,
        })
    });
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn restore(key: &str, payload: &[u8]) -> Words {
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

fn dump(key: &str, ask: impl FnOnce(&Words) -> Answer) -> Vec<u8> {
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
    let bodies = [
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
