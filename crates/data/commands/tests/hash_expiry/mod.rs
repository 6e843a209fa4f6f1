//! Fields that expire, beside a model, while time passes between the commands.

use std::collections::BTreeMap;

use quorate_commands::{MapWorkspace, OwnedCall};
use quorate_machine::{Rng, Verdict};
use quorate_types::{Timestamp, UnixMillis, WriterId, limits};

use crate::draw::Draw;
use crate::draw::hash_expiry::FIELDS;
use crate::dump::{payload_of, restore};
use crate::workspace::{Answer, Store, Words, show};

const KEYS: &[&str] = &["h1", "h2"];

/// What a hash should hold.
#[derive(Clone, Default, PartialEq, Debug)]
struct Hash {
    /// The expiry of the key.
    own: Option<u64>,
    /// Values, and when they expire.
    fields: BTreeMap<String, (String, Option<u64>)>,
}

/// Keys, as they should be.
#[derive(Default)]
struct Model {
    now: u64,
    hashes: BTreeMap<String, Hash>,
}

fn int(number: i64) -> Answer {
    Answer::Int(number)
}

fn bulk(value: Option<String>) -> Answer {
    value.map_or(Answer::Null, |value| Answer::Bulk(value.into_bytes()))
}

/// The model answers this call with an error.
struct Wrong;

impl Model {
    /// Lets time pass.
    fn pass(&mut self, millis: u64) {
        self.now += millis;
        let now = self.now;
        let lives = |at: Option<u64>| at.is_none_or(|at| at > now);
        for hash in self.hashes.values_mut() {
            hash.fields.retain(|_, (_, at)| lives(*at));
        }
        self.hashes.retain(|_, hash| lives(hash.own) && !hash.fields.is_empty());
    }

    /// The moment that a time means.
    fn moment(&self, word: &str, in_seconds: bool, is_absolute: bool) -> Result<u64, Wrong> {
        let time: u64 = word.parse().map_err(|_| Wrong)?;
        let time = time.checked_mul(if in_seconds { 1_000 } else { 1 }).ok_or(Wrong)?;
        let at = time.checked_add(if is_absolute { 0 } else { self.now }).ok_or(Wrong)?;
        if at < 1 << 46 { Ok(at) } else { Err(Wrong) }
    }

    /// Runs a command; what it answers, if it is no error.
    fn run(&mut self, words: &[String]) -> Result<Answer, Wrong> {
        let name = words[0].to_ascii_uppercase();
        let key = words.get(1).ok_or(Wrong)?.clone();
        let mut hash = self.hashes.get(&key).cloned().unwrap_or_default();
        let answer = self.on_hash(&name, &words[2..], &mut hash)?;
        self.hashes.insert(key, hash);
        self.pass(0);
        Ok(answer)
    }

    fn on_hash(&self, name: &str, args: &[String], hash: &mut Hash) -> Result<Answer, Wrong> {
        let upper: Vec<String> = args.iter().map(|word| word.to_ascii_uppercase()).collect();
        let exists = !hash.fields.is_empty();
        Ok(match name {
            "DEL" if args.is_empty() => {
                *hash = Hash::default();
                int(exists.into())
            }
            "PTTL" if args.is_empty() => match hash.own {
                _ if !exists => int(-2),
                None => int(-1),
                Some(at) => int((at - self.now) as i64),
            },
            "PERSIST" if args.is_empty() => int(hash.own.take().is_some().into()),
            "PEXPIRE" | "PEXPIREAT" if (1..3).contains(&args.len()) => {
                // Times are no shorter than those of keys here.
                let time: i64 = args[0].parse().map_err(|_| Wrong)?;
                let base = if name == "PEXPIRE" { self.now as i64 } else { 0 };
                let at = time.checked_add(base).ok_or(Wrong)?;
                let condition = upper.get(1).map_or("", |word| word);
                let held = hash.own.map_or(i64::MAX, |at| at as i64);
                let is_met = match condition {
                    "" => true,
                    "NX" => hash.own.is_none(),
                    "XX" => hash.own.is_some(),
                    "GT" => hash.own.is_some() && at > held,
                    "LT" => hash.own.is_none() || at < held,
                    _ => return Err(Wrong),
                };
                if exists && is_met {
                    hash.own = Some(at.max(0) as u64);
                }
                int((exists && is_met).into())
            }
            "HSET" | "HMSET" => {
                let before = hash.fields.len();
                for (field, value) in pairs(args)? {
                    hash.fields.insert(field, (value, None));
                }
                let new = hash.fields.len() - before;
                if name == "HSET" { int(new as i64) } else { Answer::Status("OK".into()) }
            }
            "HSETNX" => {
                let [field, value] = args else { return Err(Wrong) };
                let is_new = !hash.fields.contains_key(field);
                hash.fields.entry(field.clone()).or_insert_with(|| (value.clone(), None));
                int(is_new.into())
            }
            "HINCRBY" | "HINCRBYFLOAT" => {
                let [field, amount] = args else { return Err(Wrong) };
                let amount: i64 = amount.parse().map_err(|_| Wrong)?;
                let held = hash.fields.entry(field.clone()).or_insert(("0".into(), None));
                let new = held.0.parse::<i64>().map_err(|_| Wrong)? + amount;
                held.0 = new.to_string();
                if name == "HINCRBY" { int(new) } else { bulk(Some(new.to_string())) }
            }
            "HDEL" if !args.is_empty() => {
                let removed = args.iter().filter(|field| hash.fields.remove(*field).is_some());
                int(removed.count() as i64)
            }
            "HMGET" if !args.is_empty() => Answer::Array(
                args.iter()
                    .map(|field| bulk(hash.fields.get(field).map(|held| held.0.clone())))
                    .collect(),
            ),
            "HEXPIRE" | "HPEXPIRE" | "HEXPIREAT" | "HPEXPIREAT" => {
                let first = args.first().ok_or(Wrong)?;
                let at = self.moment(first, name.starts_with("HE"), name.ends_with("AT"))?;
                let has = ["NX", "XX", "GT", "LT"].contains(&upper.get(1).ok_or(Wrong)?.as_str());
                let condition = if has { upper[1].as_str() } else { "" };
                let fields = counted(&args[1 + usize::from(has)..], 1)?;
                let one = |field| int(self.expire(hash, field, condition, at));
                Answer::Array(fields.iter().map(one).collect())
            }
            "HTTL" | "HPTTL" | "HEXPIRETIME" | "HPEXPIRETIME" => {
                let base = if name.ends_with("TTL") { self.now } else { 0 };
                let unit = if name.starts_with("HP") { 1 } else { 1_000 };
                let one = |field| match hash.fields.get(field) {
                    None => int(-2),
                    Some((_, None)) => int(-1),
                    Some((_, Some(at))) => int((at - base).div_ceil(unit) as i64),
                };
                Answer::Array(counted(args, 1)?.iter().map(one).collect())
            }
            "HPERSIST" => {
                let one = |field| match hash.fields.get_mut(field) {
                    None => int(-2),
                    Some((_, at)) => int(if at.take().is_some() { 1 } else { -1 }),
                };
                Answer::Array(counted(args, 1)?.iter().map(one).collect())
            }
            "HGETDEL" => {
                let one = |field| bulk(hash.fields.remove(field).map(|held| held.0));
                Answer::Array(counted(args, 1)?.iter().map(one).collect())
            }
            "HGETEX" => {
                let first = upper.first().ok_or(Wrong)?.as_str();
                let (wanted, next) = match first {
                    "EX" | "PX" | "EXAT" | "PXAT" => {
                        let (seconds, absolute) = (first.starts_with('E'), first.ends_with("AT"));
                        let word = args.get(1).ok_or(Wrong)?;
                        (Some(Some(self.moment(word, seconds, absolute)?)), 2)
                    }
                    "PERSIST" => (Some(None), 1),
                    _ => (None, 0),
                };
                let one = |field: &String| {
                    let value = hash.fields.get(field).map(|held| held.0.clone());
                    match wanted {
                        Some(Some(at)) => drop(self.expire(hash, field, "", at)),
                        Some(None) => {
                            hash.fields.entry(field.clone()).and_modify(|held| held.1 = None);
                        }
                        None => {}
                    }
                    bulk(value)
                };
                Answer::Array(counted(&args[next..], 1)?.iter().map(one).collect())
            }
            "HSETEX" => return self.hsetex(args, &upper, hash),
            _ => return Err(Wrong),
        })
    }

    fn hsetex(&self, args: &[String], upper: &[String], hash: &mut Hash) -> Result<Answer, Wrong> {
        let (mut condition, mut keeps, mut at, mut next) = (None, false, None, 0);
        while upper.get(next).ok_or(Wrong)? != "FIELDS" {
            match upper[next].as_str() {
                "FNX" | "FXX" if condition.is_none() => condition = Some(upper[next].as_str()),
                "KEEPTTL" if at.is_none() && !keeps => keeps = true,
                unit @ ("EX" | "PX" | "EXAT" | "PXAT") if at.is_none() && !keeps => {
                    let (seconds, absolute) = (unit.starts_with('E'), unit.ends_with("AT"));
                    next += 1;
                    let word = args.get(next).ok_or(Wrong)?;
                    at = Some(self.moment(word, seconds, absolute)?);
                }
                _ => return Err(Wrong),
            }
            next += 1;
        }
        let pairs = pairs(counted(&args[next..], 2)?)?;
        let mut held = pairs.iter().map(|(field, _)| hash.fields.contains_key(field));
        let is_met = match condition {
            Some("FNX") => held.all(|held| !held),
            Some(_) => held.all(|held| held),
            None => true,
        };
        for (field, value) in pairs.into_iter().filter(|_| is_met) {
            let kept = hash.fields.get(&field).and_then(|held| held.1).filter(|_| keeps);
            hash.fields.insert(field, (value, at.or(kept)));
        }
        let now = self.now;
        hash.fields.retain(|_, (_, at)| at.is_none_or(|at| at > now));
        Ok(int(is_met.into()))
    }

    /// `HEXPIRE` of one field.
    fn expire(&self, hash: &mut Hash, field: &String, condition: &str, at: u64) -> i64 {
        let Some((_, held)) = hash.fields.get_mut(field) else { return -2 };
        let is_met = match (condition, *held) {
            ("NX", held) => held.is_none(),
            ("XX", held) => held.is_some(),
            ("GT", held) => held.is_some_and(|held| at > held),
            ("LT", held) => held.is_none_or(|held| at < held),
            _ => true,
        };
        if !is_met {
            return 0;
        }
        if at <= self.now {
            hash.fields.remove(field);
            return 2;
        }
        *held = Some(at);
        1
    }
}

fn pairs(args: &[String]) -> Result<Vec<(String, String)>, Wrong> {
    let (pairs, rest) = args.as_chunks();
    if pairs.is_empty() || !rest.is_empty() {
        return Err(Wrong);
    }
    Ok(pairs.iter().map(|[field, value]: &[String; 2]| (field.clone(), value.clone())).collect())
}

/// What stands behind `FIELDS` and a number, `each` words for each field.
fn counted(args: &[String], each: usize) -> Result<&[String], Wrong> {
    let [word, count, fields @ ..] = args else { return Err(Wrong) };
    let count: usize = count.parse().map_err(|_| Wrong)?;
    let is_right = word.eq_ignore_ascii_case("FIELDS") && count > 0 && fields.len() == count * each;
    if is_right { Ok(fields) } else { Err(Wrong) }
}

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A call whose words may have spaces in them.
fn call(name: &str, key: &str, fields: &[&str]) -> Words {
    let count = fields.len().to_string();
    let head = [name, key, "FIELDS", &count];
    head.iter().chain(fields).map(|word| word.as_bytes().to_vec()).collect()
}

/// The fields of a hash with their values, and when they expire.
fn held(store: &mut Store, key: &str) -> BTreeMap<String, (String, Option<u64>)> {
    let Answer::Array(parts) = store.run(&words(&format!("HGETALL {key}"))) else {
        panic!("a map")
    };
    let texts: Vec<String> = parts
        .into_iter()
        .map(|part| match part {
            Answer::Bulk(bytes) => String::from_utf8(bytes).expect("text"),
            other => panic!("a string, not {other:?}"),
        })
        .collect();
    let mut fields = BTreeMap::new();
    for pair in texts.chunks(2) {
        let expiry = match store.run(&call("HPEXPIRETIME", key, &[&pair[0]])) {
            Answer::Array(answers) => match answers[0] {
                Answer::Int(-1) => None,
                Answer::Int(at) => Some(u64::try_from(at).expect("it is there")),
                _ => panic!("a number"),
            },
            other => panic!("an array, not {other:?}"),
        };
        fields.insert(pair[0].clone(), (pair[1].clone(), expiry));
    }
    fields
}

/// Everything that can be asked of a key says what the model does.
fn check(store: &mut Store, model: &Model, key: &str, context: &str) {
    let wanted = model.hashes.get(key).cloned().unwrap_or_default();
    let count = wanted.fields.len();
    let exists = count > 0;
    assert_eq!(held(store, key), wanted.fields, "{key} after {context}");
    let ttl = match wanted.own {
        _ if !exists => -2,
        None => -1,
        Some(at) => at as i64,
    };
    let kind = if exists { "hash" } else { "none" };
    for (line, answer) in [
        (format!("HLEN {key}"), int(count as i64)),
        (format!("EXISTS {key}"), int(exists.into())),
        (format!("PEXPIRETIME {key}"), int(ttl)),
        (format!("TYPE {key}"), Answer::Status(kind.into())),
    ] {
        assert_eq!(store.run(&words(&line)), answer, "{line} after {context}");
    }
    for field in FIELDS {
        let value = wanted.fields.get(*field).map(|held| held.0.clone());
        let length = value.as_ref().map_or(0, String::len) as i64;
        for (name, answer) in [
            ("HGET", bulk(value.clone())),
            ("HSTRLEN", int(length)),
            ("HEXISTS", int(value.is_some().into())),
        ] {
            let line = [name, key, field].map(|word| word.as_bytes().to_vec()).into();
            assert_eq!(store.run(&line), answer, "{name} after {context}");
        }
        if !field.contains(' ') {
            let sorted = store.run(&words(&format!("SORT of-{key} BY nosort GET *->{field}")));
            assert_eq!(sorted, Answer::Array(vec![bulk(value)]), "SORT after {context}");
        }
    }
    for (line, each) in [
        (format!("HKEYS {key}"), 1),
        (format!("HVALS {key}"), 1),
        (format!("HRANDFIELD {key} 100"), 1),
        (format!("HRANDFIELD {key} 100 WITHVALUES"), 2),
    ] {
        let Answer::Array(parts) = store.run(&words(&line)) else { panic!("{line}") };
        assert_eq!(parts.len(), each * count, "{line} after {context}");
    }
    let Answer::Array(scanned) = store.run(&words(&format!("HSCAN {key} 0 COUNT 1000"))) else {
        panic!("a scan")
    };
    let Answer::Array(parts) = &scanned[1] else { panic!("a part") };
    assert_eq!(parts.len(), 2 * count, "HSCAN after {context}");
    // The record expires exactly when nothing is left of it.
    let last = wanted.fields.values().map(|held| held.1).collect::<Option<Vec<_>>>();
    let last = last.and_then(|all| all.into_iter().max());
    let expiry = wanted.own.into_iter().chain(last).min().map(UnixMillis);
    let record = store.current(key.as_bytes()).content.map(|content| content.expire_at);
    assert_eq!(record, exists.then_some(expiry), "the record of {key} after {context}");
    // It travels.
    if exists {
        let Answer::Bulk(payload) = store.run(&words(&format!("DUMP {key}"))) else {
            panic!("a payload")
        };
        let mut restore = words("RESTORE copy 0 x REPLACE");
        restore[3] = payload;
        assert_eq!(store.run(&restore), Answer::Status("OK".into()), "{context}");
        assert_eq!(held(store, "copy"), wanted.fields, "restored after {context}");
    }
}

#[test]
fn fields_expire_as_in_a_model() {
    for seed in 0..30 {
        let (mut store, mut model) = (Store::default(), Model::default());
        let (mut draw, mut rng) = (Draw::new(seed), Rng::new(seed));
        model.now = 1_700_000_000_000;
        store.now = UnixMillis(model.now);
        KEYS.iter().for_each(|key| drop(store.run(&words(&format!("RPUSH of-{key} {key}")))));
        let mut before = Vec::new();
        for _ in 0..150 {
            let key = KEYS[rng.below(2) as usize];
            let command = match rng.below(20) {
                0 => words(&format!("RENAME {} {}", KEYS[0], KEYS[1])),
                1 => words(&format!("COPY {} {} REPLACE", KEYS[1], KEYS[0])),
                _ => draw.on_expiring_hash(key.as_bytes(), model.now),
            };
            before.push(format!("{}: {}", model.now, show(&command)));
            let context = before.join("\n");
            let texts: Vec<String> =
                command.iter().map(|word| String::from_utf8(word.clone()).expect("text")).collect();
            let ours = store.run(&command);
            match texts[0].as_str() {
                "RENAME" | "COPY" => {
                    if let Some(hash) = model.hashes.get(&texts[1]).cloned() {
                        model.hashes.insert(texts[2].clone(), hash);
                        if texts[0] == "RENAME" {
                            model.hashes.remove(&texts[1]);
                        }
                    }
                }
                _ => match model.run(&texts) {
                    Ok(theirs) => assert_eq!(ours, theirs, "{context}"),
                    Err(Wrong) => {
                        assert!(matches!(ours, Answer::Error(_)), "{ours:?} of {context}")
                    }
                },
            }
            KEYS.iter().for_each(|key| check(&mut store, &model, key, &context));
            if rng.chance(1, 2) {
                let spans = [1, 5, 10, 10, 20, 500, 1_000, 60_000];
                model.pass(spans[rng.below(spans.len() as u64) as usize]);
                store.now = UnixMillis(model.now);
                let context = format!("{context}\nand {}", model.now);
                KEYS.iter().for_each(|key| check(&mut store, &model, key, &context));
            }
        }
    }
}

/// Keys whose values are large beyond 4 KiB, as at a node.
struct Keys {
    keys: MapWorkspace,
    now: u64,
    version: u64,
}

impl Keys {
    fn ask(&mut self, line: &str) -> String {
        self.version += 1;
        let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
        let timestamp = Timestamp::new(self.version, WriterId(1));
        match self.keys.run(UnixMillis(self.now), timestamp, &call.call()) {
            Verdict::Commit(reply) => format!("{:?}", Answer::from(reply)),
            Verdict::Abandon(reply) => panic!("abandoned: {reply:?}"),
        }
    }

    fn is_large(&self) -> bool {
        self.keys.get(UnixMillis(self.now), b"h").large.is_some()
    }
}

/// Fields of a large hash begin to expire, and it is packed as long as one does.
#[test]
fn a_large_hash_is_packed_while_fields_of_it_expire() {
    let mut keys = Keys { keys: MapWorkspace::new(Some(4096)), now: 1_000, version: 0 };
    for number in 0..1_000 {
        keys.ask(&format!("HSET h field{number} value{number}"));
    }
    assert!(keys.is_large());
    assert_eq!(keys.ask("HEXPIRE h 10 XX FIELDS 2 field1 none"), "[:0, :-2]");
    assert_eq!(keys.ask("HEXPIRE h 0 FIELDS 2 field1 none"), "[:2, :-2]");
    assert_eq!(keys.ask("HGETDEL h FIELDS 2 field2 none"), r#"["value2", null]"#);
    assert_eq!(keys.ask("HSETEX h FIELDS 2 field2 x field3 y"), ":1");
    assert!(keys.is_large(), "no field expires");
    assert_eq!(keys.ask("HLEN h"), ":999");
    assert_eq!(keys.ask("EXPIRE h 100"), ":1");
    assert_eq!(keys.ask("HEXPIRE h 10 FIELDS 2 field4 field5"), "[:1, :1]");
    assert!(!keys.is_large());
    assert_eq!(keys.ask("OBJECT ENCODING h"), "\"hashtable\"");
    assert_eq!(keys.ask("HGET h field4"), "\"value4\"");
    assert_eq!(keys.ask("TTL h"), ":100");
    keys.now += 10_000;
    assert_eq!(keys.ask("HMGET h field4 field3"), r#"[null, "y"]"#);
    assert_eq!(keys.ask("HLEN h"), ":997");
    assert!(!keys.is_large(), "a read changes nothing");
    assert_eq!(keys.ask("HSET h field6 x"), ":0");
    assert!(keys.is_large(), "no field expires any more");
    assert_eq!((keys.ask("HLEN h"), keys.ask("TTL h")), (":997".into(), ":90".into()));
    keys.ask("PERSIST h");
    assert_eq!(keys.ask("HEXPIRE h 10 FIELDS 1 field6"), "[:1]");
    assert_eq!((keys.ask("EXPIRE h 5"), keys.ask("TTL h")), (":1".into(), ":5".into()));
    assert_eq!((keys.ask("PERSIST h"), keys.ask("TTL h")), (":1".into(), ":-1".into()));
    assert_eq!(keys.ask("HTTL h FIELDS 1 field6"), "[:10]");
}

/// A hash that is longer than one value may be keeps its fields without expiry.
#[test]
fn fields_of_a_hash_that_is_too_long_do_not_expire() {
    let mut keys = Keys { keys: MapWorkspace::new(Some(4096)), now: 1_000, version: 0 };
    let value = "x".repeat(limits::VALUE_BYTES_MAX / 4);
    for number in 0..4 {
        keys.ask(&format!("HSET h field{number} {value}"));
    }
    for line in ["HEXPIRE h 10 FIELDS 1 field1", "HSETEX h EX 10 FIELDS 1 more x"] {
        let refused = keys.ask(line);
        assert!(refused.contains("longer than 4194304 bytes"), "{refused}");
    }
    assert_eq!(keys.ask("HTTL h FIELDS 2 field1 more"), "[:-1, :-2]");
    assert_eq!(keys.ask("HPEXPIREAT h 1 FIELDS 1 field1"), "[:2]");
    assert!(keys.is_large());
    assert_eq!(keys.ask("HEXPIRE h 10 FIELDS 1 field2"), "[:1]");
    let refused = keys.ask(&format!("HSET h field1 {value}{value}"));
    assert!(refused.contains("longer than 4194304 bytes"), "{refused}");
}

/// The payloads of Redis 7.4, byte by byte.
#[test]
fn payloads_are_those_of_redis_7_4() {
    let mut store = Store { now: UnixMillis(1_000), ..Store::default() };
    // The earliest expiry; a listpack of 32 bytes with nine elements, ordered by expiry.
    let compact = b"\x19\x88\x13\0\0\0\0\0\0\x20\x20\0\0\0\x09\0\
        \x81b\x02\x02\x01\xf1\x88\x13\x03\x81a\x02\x01\x01\xf1\x70\x17\x03\x81c\x02\x03\x01\0\x01\xff";
    store.run(&words("HSET h a 1 b 2 c 3"));
    store.run(&words("HPEXPIREAT h 6000 FIELDS 1 a"));
    store.run(&words("HPEXPIREAT h 5000 FIELDS 1 b"));
    let dumped = |store: &mut Store| crate::dump::dump("h", |words| store.run(words));
    let found = dumped(&mut store);
    assert_eq!(
        found.escape_ascii().to_string(),
        payload_of(compact, 12).escape_ascii().to_string()
    );
    // The earliest expiry, the number of fields, and before each how much later it expires.
    let long = "x".repeat(65);
    store.run(&words(&format!("HSET h c {long}")));
    let loose = [
        &b"\x18\x88\x13\0\0\0\0\0\0\x03\x43\xe9\x01a\xc0\x01\x01\x01b\xc0\x02\0\x01c\x40\x41"[..],
        long.as_bytes(),
    ]
    .concat();
    let found = dumped(&mut store);
    assert_eq!(found.escape_ascii().to_string(), payload_of(&loose, 12).escape_ascii().to_string());
    for (body, expiries) in [(&compact[..], "[:6000, :5000, :-1]"), (&loose, "[:6000, :5000, :-1]")]
    {
        let line = restore("g", &payload_of(body, 12));
        assert_eq!(store.run(&line), Answer::Status("OK".into()));
        assert_eq!(format!("{:?}", store.run(&words("HPEXPIRETIME g FIELDS 3 a b c"))), expiries);
    }
    let mut line = restore("g", &payload_of(compact, 12));
    line[2] = b"100".into();
    assert_eq!(store.run(&line), Answer::Status("OK".into()));
    assert_eq!(store.run(&words("PTTL g")), int(100), "the key's own expiry");
    // What has expired meanwhile is left out, and nothing is there if all has.
    store.now = UnixMillis(5_500);
    assert_eq!(store.run(&restore("g", &payload_of(compact, 12))), Answer::Status("OK".into()));
    assert_eq!(format!("{:?}", store.run(&words("HGETALL g"))), r#"["a", "1", "c", "3"]"#);
    let all = b"\x19\x88\x13\0\0\0\0\0\0\x10\x10\0\0\0\x03\0\x81b\x02\x02\x01\xf1\x88\x13\x03\xff";
    for key in ["g", "none"] {
        assert_eq!(store.run(&restore(key, &payload_of(all, 12))), Answer::Status("OK".into()));
        assert_eq!(store.run(&words(&format!("EXISTS {key}"))), int(0));
    }
    // A set of Redis 7.2, and an unknown version.
    let set = b"\x14\x0c\x0c\0\0\0\x02\0\x81b\x02\x02\x01\xff";
    assert_eq!(store.run(&restore("s", &payload_of(set, 11))), Answer::Status("OK".into()));
    assert_eq!(format!("{:?}", store.run(&words("SMEMBERS s"))), r#"["b", "2"]"#);
    let refused = store.run(&restore("s", &payload_of(set, 13)));
    assert_eq!(refused, Answer::Error("ERR DUMP payload version or checksum are wrong".into()));
    // A field that is there twice, an expiry that is no number, and a missing element.
    for damaged in [
        &b"\x18\x88\x13\0\0\0\0\0\0\x02\x01\x01a\x01b\0\x01a\x01c"[..],
        b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x01a\x01b",
        b"\x18\x88\x13\0\0\0\0\0\0\x02\x01\x01a\x01b",
        b"\x19\x88\x13\0\0\0\0\0\0\x0f\x0f\0\0\0\x03\0\x81b\x02\x02\x01\x81c\x02\xff",
        b"\x19\x88\x13\0\0\0\0\0\0\x0c\x0c\0\0\0\x02\0\x81b\x02\x02\x01\xff",
    ] {
        let refused = store.run(&restore("s", &payload_of(damaged, 12)));
        assert_eq!(
            refused,
            Answer::Error("ERR Bad data format".into()),
            "{}",
            damaged.escape_ascii()
        );
    }
}
