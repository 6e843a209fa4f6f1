//! Random commands to this crate and to a real redis-server: the answers must be the same.

mod collections;
mod draw;
mod dump;
mod hash_expiry;
mod hyperloglog;
mod redis;
mod streams;
mod workspace;

use draw::{Draw, FLOATS, INTEGERS, TEXTS};
use quorate_commands::{Args, Block, Op, OwnedCall, Reply, Span, Spec, Watch, resolve, table};
use quorate_machine::{Access, Change, Command, Verdict};
use quorate_types::UnixMillis;
use redis::Redis;
use workspace::{Answer, EXAMPLES, Store, Words, changed, examples, show, value};

/// Whether two answers agree; remaining and absolute times may differ by what the clock moved
/// between our reading of it and the command's run.
fn agree(words: &Words, ours: &Answer, theirs: &Answer) -> bool {
    let slack = match words[0].to_ascii_uppercase().as_slice() {
        b"TTL" | b"EXPIRETIME" => 5,
        b"PTTL" | b"PEXPIRETIME" => 5_000,
        _ => 0,
    };
    match (ours, theirs) {
        (Answer::Array(a), Answer::Array(b)) => agree_in_members(words, a, b),
        (Answer::Int(a), Answer::Int(b)) if *a > 0 && *b > 0 => a.abs_diff(*b) <= slack,
        // `COPY k k DB n`: a copy between keyspaces.
        (Answer::Error(text), _) if text.starts_with("CROSSKEY") => {
            words[0].eq_ignore_ascii_case(b"COPY") && words.len() > 4
        }
        // Redis gives a sorted set another form when it is sorted, though that changes nothing.
        (Answer::Bulk(a), Answer::Bulk(b)) if (&a[..], &b[..]) == (b"listpack", b"skiplist") => {
            true
        }
        // When a consumer was seen is in a stream's payload, and so in its checksum.
        (Answer::Bulk(a), Answer::Bulk(b))
            if matches!((a.first(), b.first()), (Some(15 | 19), Some(15 | 19)))
                && words[0].eq_ignore_ascii_case(b"DUMP") =>
        {
            let differing = a.iter().zip(b).filter(|(a, b)| a != b).count();
            a.len() == b.len() && differing <= 16
        }
        (Answer::Bulk(a), Answer::Bulk(b)) => a == b || are_alike(words, a, b),
        // Redis decodes a damaged HyperLogLog without a check.
        (Answer::Error(text), Answer::Bulk(_)) if text.starts_with("INVALIDOBJ") => {
            words[0].eq_ignore_ascii_case(b"PFDEBUG")
        }
        // Redis doesn't reset `errno` before it reads a number: one that was out of range in an earlier
        // command spoils it.
        (_, Answer::Error(text)) if text.contains("scores can't be converted into double") => {
            words[0].to_ascii_uppercase().starts_with(b"SORT")
        }
        // Bytes that aren't UTF-8 are replaced in both.
        _ => ours == theirs,
    }
}

/// Whether two arrays agree. The order of a hash or a set is that of Redis's table, and what is drawn at random
/// is other members there; `members_drawn_at_random_are_members` looks at those.
fn agree_in_members(words: &Words, ours: &[Answer], theirs: &[Answer]) -> bool {
    let sorted = |answers: &[Answer], each: usize| {
        let mut parts: Vec<_> = answers.chunks(each).map(|part| format!("{part:?}")).collect();
        parts.sort();
        parts
    };
    let same_in_any_order = |each| sorted(ours, each) == sorted(theirs, each);
    match (words[0].to_ascii_uppercase().as_slice(), ours, theirs) {
        (b"HGETALL", ..) => same_in_any_order(2),
        (b"SMEMBERS" | b"SPOP" | b"SINTER" | b"SUNION" | b"SDIFF", ..) => same_in_any_order(1),
        (b"HKEYS" | b"HVALS", ..) => same_in_any_order(1),
        (b"HRANDFIELD" | b"SRANDMEMBER", ..) => ours.len() == theirs.len(),
        // Redis compares texts up to a zero byte, so those with one have no order among each other.
        (b"SORT" | b"SORT_RO", ..) if format!("{theirs:?}").contains("\\x00") => {
            ours.len() == theirs.len()
        }
        (b"HSCAN", [next, Answer::Array(a)], [other, Answer::Array(b)]) => {
            next == other && sorted(a, 2) == sorted(b, 2)
        }
        (b"SSCAN", [next, Answer::Array(a)], [other, Answer::Array(b)]) => {
            next == other && sorted(a, 1) == sorted(b, 1)
        }
        _ => ours == theirs,
    }
}

/// Whether two strings agree that aren't the same.
fn are_alike(words: &Words, ours: &[u8], theirs: &[u8]) -> bool {
    match words[0].to_ascii_uppercase().as_slice() {
        b"HRANDFIELD" | b"SRANDMEMBER" => true,
        // Redis remembers how a string came to be, and gives a sorted set that is sorted another form.
        b"OBJECT" => {
            [ours, theirs].iter().all(|name| [&b"int"[..], b"embstr", b"raw"].contains(name))
                || (ours, theirs) == (b"listpack", b"skiplist")
        }
        // A set of strings and a large hash are in another order there.
        b"DUMP" => ours[0] == theirs[0] && (theirs[0] == 2 || theirs[0] == 4),
        _ => false,
    }
}

fn clock(redis: &mut Redis) -> UnixMillis {
    let Answer::Array(parts) = redis.call(&["TIME"]) else { panic!("TIME answers two numbers") };
    let number = |part: &Answer| match part {
        Answer::Bulk(digits) => String::from_utf8_lossy(digits).parse::<u64>().expect("a number"),
        other => panic!("TIME answers two numbers, not {other:?}"),
    };
    UnixMillis(number(&parts[0]) * 1_000 + number(&parts[1]) / 1_000)
}

#[test]
fn random_commands_answer_as_redis_does() {
    let mut redis = Redis::start();
    for seed in 0..100 {
        redis.call(&["FLUSHALL"]);
        let mut store = Store::default();
        let mut draw = Draw::new(seed);
        for _ in 0..10 {
            let commands: Vec<Words> = (0..200).map(|_| draw.command()).collect();
            store.now = clock(&mut redis);
            let theirs = redis.pipeline(&commands);
            for (index, (words, theirs)) in commands.iter().zip(&theirs).enumerate() {
                let ours = store.run(words);
                let before: Vec<_> =
                    commands[index.saturating_sub(8)..index].iter().map(show).collect();
                assert!(
                    agree(words, &ours, theirs),
                    "seed {seed}: {}\n  ours:   {ours:?}\n  theirs: {theirs:?}\nafter\n{}",
                    show(words),
                    before.join("\n"),
                );
            }
        }
    }
}

/// A `MULTI`/`EXEC` block on one key, both as one operation of an engine that changes one key at a
/// time and as a transaction.
#[test]
fn random_blocks_on_one_key_answer_as_redis_does() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let mut draw = Draw::new(1);
    for round in 0..1_000 {
        let key = draw.key();
        let commands: Vec<Words> = (0..draw.rng.below(6)).map(|_| draw.on_key(&key)).collect();
        let block = Sent::new(commands, |call| call.call().keys().all(|other| other == key));
        let theirs = block.exec(&mut redis, &mut store);
        let calls = block.calls.clone();
        let op = Op::Block(Block { watches: vec![], calls });
        let before = value(store.current(&key));
        let (ours, change) = op.apply(store.now, store.current(&key));
        let access = op.access();
        assert!(access != Access::Read || change == Change::Keep);
        assert!(access != Access::Write || !matches!(change, Change::Keep | Change::Expire(_)));
        let after = changed(before, change);
        block.compare(&format!("round {round}"), ours.clone().into(), theirs);
        assert_eq!(
            store.transact(&block.names(), &block.transaction(vec![])),
            Verdict::Commit(ours)
        );
        assert_eq!(value(store.current(&key)), after, "round {round}");
    }
}

/// Blocks over any keys. Some keys are watched while other commands run.
#[test]
fn random_blocks_answer_as_redis_does() {
    let mut redis = Redis::start();
    let (mut failed, mut held) = (0, 0);
    for seed in 0..20 {
        redis.call(&["FLUSHALL"]);
        let mut store = Store::default();
        let mut draw = Draw::new(seed);
        for round in 0..100 {
            let shown = format!("seed {seed}, round {round}");
            let watched: Vec<_> = (0..draw.rng.below(6)).map(|_| draw.key()).collect();
            store.now = clock(&mut redis);
            let watches = watch(&mut store, &watched);
            if !watched.is_empty() {
                redis.pipeline([&[vec![b"WATCH".to_vec()], watched].concat()]);
            }
            for _ in 0..draw.pick(&[0, 0, 1, 2, 3]) {
                let words = draw.command();
                store.now = clock(&mut redis);
                let (ours, theirs) = (store.run(&words), redis.pipeline([&words]).remove(0));
                assert!(agree(&words, &ours, &theirs), "{shown}: {} {ours:?}", show(&words));
            }
            draw.in_block = true;
            let block = Sent::new((0..draw.rng.below(8)).map(|_| draw.command()), |_| true);
            draw.in_block = false;
            let theirs = block.exec(&mut redis, &mut store);
            let (ours, ran) =
                (store.transact(&block.names(), &block.transaction(watches)), has_run(&theirs));
            *(if ran { &mut held } else { &mut failed }) += 1;
            match ours {
                Verdict::Commit(ours) => block.compare(&shown, ours.into(), theirs),
                Verdict::Abandon(ours) => {
                    assert_eq!((ours, theirs), (Reply::NullArray, Answer::NullArray), "{shown}");
                }
            }
        }
    }
    assert!(failed > 50 && held > 500, "{failed} failed and {held} held");
}

/// What `WATCH` sees of keys.
fn watch(store: &mut Store, keys: &[Vec<u8>]) -> Vec<(Box<[u8]>, Watch)> {
    let keys: Vec<Box<[u8]>> = keys.iter().map(|key| key.as_slice().into()).collect();
    let versions = store.transact(&[], &Op::Versions(keys.clone()));
    let Verdict::Commit(Reply::Array(versions)) = versions else {
        panic!("versions are an array, not {versions:?}");
    };
    let watch = |(key, version)| match version {
        Reply::Version(timestamp, existed) => (key, Watch { existed, timestamp }),
        other => panic!("a version, not {other:?}"),
    };
    keys.into_iter().zip(versions).map(watch).collect()
}

/// Whether an `EXEC` ran.
fn has_run(answer: &Answer) -> bool {
    *answer != Answer::NullArray
}

/// The commands of a `MULTI`/`EXEC` block.
struct Sent {
    words: Vec<Words>,
    calls: Vec<OwnedCall>,
}

impl Sent {
    fn names(&self) -> Vec<&'static str> {
        self.calls.iter().map(|call| call.call().spec.name).collect()
    }

    /// Of these commands, those that can be queued and are wanted.
    fn new(commands: impl IntoIterator<Item = Words>, wanted: impl Fn(&OwnedCall) -> bool) -> Self {
        let queued = |words: Words| {
            let call = OwnedCall::new(words.iter().map(Vec::as_slice)).ok()?;
            Some((words, call))
        };
        let queued = commands.into_iter().filter_map(queued);
        let (words, calls) = queued.filter(|(_, call)| wanted(call)).unzip();
        Self { words, calls }
    }

    /// What Redis answers to all of it; the store's clock is what it was just before.
    fn exec(&self, redis: &mut Redis, store: &mut Store) -> Answer {
        let (multi, exec) = (vec![b"MULTI".to_vec()], vec![b"EXEC".to_vec()]);
        store.now = clock(redis);
        let mut answers = redis.pipeline([&multi].into_iter().chain(&self.words).chain([&exec]));
        answers.pop().expect("EXEC was answered")
    }

    fn transaction(&self, watches: Vec<(Box<[u8]>, Watch)>) -> Op {
        Op::Block(Block { watches, calls: self.calls.clone() })
    }

    fn compare(&self, shown: &str, ours: Answer, theirs: Answer) {
        let (Answer::Array(ours), Answer::Array(theirs)) = (&ours, &theirs) else {
            panic!("{shown}: {ours:?} {theirs:?}");
        };
        assert_eq!((ours.len(), theirs.len()), (self.words.len(), self.words.len()), "{shown}");
        for ((words, ours), theirs) in self.words.iter().zip(ours).zip(theirs) {
            assert!(agree(words, ours, theirs), "{shown}: {} {ours:?} {theirs:?}", show(words));
        }
    }
}

/// Each script is what a client sends, and `wait`, at which every expiry of a few milliseconds is
/// over.
#[test]
fn watches_and_expired_keys_are_those_of_redis() {
    let mut redis = Redis::start();
    for script in [
        // A run-time error undoes nothing, and stops nothing.
        "SET a x|MULTI|SET b 1|INCR a|RENAME none b|INCR b|COPY b c|MGET a b c|EXEC|MGET a b c",
        // Later commands see what earlier ones moved and removed.
        "MULTI|MSET a 1 b 2|RENAME a c|EXISTS a b c c|MSETNX a 3 b 4|RENAMENX c b|EXEC|MGET a b c",
        "MULTI|MSET a 1 b 2|MSET a 1 b|DEL b b a|MSETNX a 5 b 6|MSETNX c 1 d|MGET a b c|EXEC",
        // An expiry moves with its value, and an old one goes away.
        "SET a 1 EX 1000|SET b 2|COPY a b|COPY a b REPLACE|TTL b|RENAME b c|TTL c",
        "SET a 1 EX 1000|SET b 2|RENAME b a|TTL a|SET c 3 EX 1000|COPY a c REPLACE|TTL c",
        "SET a 1|SET b 2 EX 1000|MULTI|MSET b 3|TTL b|EXPIRE a 1000|RENAME a b|PTTL b|EXEC",
        "SET a 1 EX 1000|MULTI|RENAMENX a b|TTL a|TTL b|RENAMENX b b|TTL b|EXEC|TTL b",
        // A value that has expired is absent for every command.
        "SET a 1 PX 1|SET b 2|wait|RENAME a c|COPY a c|RENAMENX b a|MSETNX a 1 c 1|MGET a b c",
        "SET a 1 PX 1|wait|MULTI|EXISTS a|RENAME a b|MSETNX a 2 b 3|GET a|EXEC",
        // What was watched and what became of it.
        "WATCH a b|MULTI|SET a 1|EXEC|GET a",
        "WATCH a b|SET b 1|MULTI|SET a 1|EXEC|GET a",
        "WATCH a|SET a 1|DEL a|MULTI|PING|EXEC",
        "WATCH a|DEL a|MULTI|SET a 1|EXEC",
        "SET a 1|WATCH a|SET a 1|MULTI|GET a|EXEC",
        "SET a 1|WATCH a|GET a|COPY a b|MULTI|GET a|EXEC",
        "SET a 1|WATCH a|RENAME a b|RENAME b a|MULTI|GET a|EXEC",
        "SET a 1|WATCH a|RENAME a a|MULTI|GET a|EXEC",
        "SET a 1|SET b 2|WATCH b|RENAMENX a b|COPY a b|MSETNX c 1 b 3|MULTI|GET b|EXEC",
        "SET a 1|SET b 2|WATCH b|COPY a b REPLACE|MULTI|GET b|EXEC",
        "SET a 1|WATCH a|EXPIRE a 1000|MULTI|GET a|EXEC",
        "SET a 1|WATCH a|PERSIST a|MULTI|GET a|EXEC",
        // A watched value that expires is a change; one that had expired before is not.
        "SET a 1 PX 50|WATCH a|wait|MULTI|SET b 1|EXEC|GET b",
        "SET a 1 PX 1|wait|WATCH a|MULTI|SET b 1|EXEC|GET b",
        "SET a 1 PX 1|wait|WATCH a|SET a 2|MULTI|SET b 1|EXEC|GET b",
    ] {
        redis.call(&["FLUSHALL"]);
        play(&mut redis, script);
    }
}

fn play(redis: &mut Redis, script: &str) {
    let mut store = Store::default();
    let (mut watches, mut block) = (vec![], None);
    for step in script.split('|') {
        let words: Words = step.split(' ').map(|word| word.into()).collect();
        // Between MULTI and EXEC, the clock couldn't be read.
        if block.is_none() {
            store.now = clock(redis);
        }
        if step == "wait" {
            let end = store.now.0 + 60;
            while clock(redis).0 < end {}
            continue;
        }
        let theirs = redis.pipeline([&words]).remove(0);
        let shown = format!("{step} in {script}");
        match words[0].as_slice() {
            b"WATCH" => watches = watch(&mut store, &words[1..]),
            b"MULTI" => block = Some(vec![]),
            b"EXEC" => {
                let queued = block.take().expect("MULTI comes first");
                let sent = Sent::new(queued, |_| true);
                let transaction = sent.transaction(std::mem::take(&mut watches));
                match store.transact(&sent.names(), &transaction) {
                    Verdict::Commit(ours) => sent.compare(&shown, ours.into(), theirs),
                    Verdict::Abandon(ours) => assert_eq!(Answer::from(ours), theirs, "{shown}"),
                }
            }
            _ => match &mut block {
                Some(queued) => queued.push(words),
                None => {
                    let ours = store.run(&words);
                    assert!(agree(&words, &ours, &theirs), "{shown}: {ours:?} {theirs:?}");
                }
            },
        }
    }
}

#[test]
fn the_examples_are_what_redis_answers() {
    let mut redis = Redis::start();
    for (words, answer) in examples(EXAMPLES) {
        assert_eq!(format!("{:?}", redis.pipeline([&words]).remove(0)), answer, "{}", show(&words));
    }
}

#[test]
fn values_of_the_largest_size_are_refused_and_taken_as_redis_does() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    for line in [
        "SETBIT b 33554431 1",
        "GETBIT b 33554431",
        "GETBIT b 33554432",
        "STRLEN b",
        "APPEND b x",
        "DEL b",
        "SETRANGE r 4194303 x",
        "SETRANGE r 4194303 xy",
        "SETRANGE r 4194304 x",
        "APPEND r x",
        "STRLEN r",
        "BITCOUNT r -1 -1",
        "BITCOUNT r 33554428 -1 BIT",
        "DEL r",
        "APPEND a x",
    ] {
        let words: Words = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        assert_eq!(store.run(&words), redis.pipeline([&words]).remove(0), "{line}");
    }
}

#[test]
fn values_of_any_length_travel_between_redis_and_here() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    for length in [0, 1, 11, 12, 20, 21, 63, 64, 264, 1000, 16_383, 16_384, 100_000] {
        for compression in ["no", "yes"] {
            redis.call(&["CONFIG", "SET", "rdbcompression", compression]);
            let value: Vec<u8> = (0..length).map(|at: usize| (at / 7) as u8 % 5 + b'0').collect();
            let set: Words = vec![b"SET".to_vec(), b"k".to_vec(), value];
            let dump: Words = ["DUMP", "k"].map(|word| word.into()).into();
            redis.pipeline([&set]);
            store.run(&set);
            let (ours, theirs) = (store.run(&dump), redis.pipeline([&dump]).remove(0));
            if compression == "no" {
                assert_eq!(ours, theirs, "{length}");
            }
            for payload in [ours, theirs] {
                let Answer::Bulk(payload) = payload else { panic!("{payload:?}") };
                let (name, get): (_, Words) = ("copy", vec![b"GET".to_vec(), b"copy".to_vec()]);
                let words = ["RESTORE", name, "0"].map(|word| word.as_bytes().to_vec());
                let restore: Words =
                    words.into_iter().chain([payload, b"REPLACE".to_vec()]).collect();
                for words in [&restore, &get] {
                    assert_eq!(store.run(words), redis.pipeline([words]).remove(0), "{length}");
                }
                assert_eq!(store.run(&get), Answer::Bulk(set[2].clone()), "{length}");
            }
        }
    }
}

/// Whether a row is one of those that Redis 7.0 doesn't have, or that a later one changed.
fn is_later(spec: &Spec) -> bool {
    let later = ["7.2", "7.4", "8.", "9."];
    let is_later = |version: &str| later.iter().any(|later| version.starts_with(later));
    let mut changes = spec.docs.history.iter();
    is_later(spec.docs.since) || changes.any(|(version, _)| is_later(version))
}

/// The answer of Redis about a container tells of more subcommands than there are here, and in no
/// order.
fn only_ours(spec: &Spec, theirs: Vec<Answer>, width: usize) -> Vec<Answer> {
    let name = |answer: &Answer| match answer {
        Answer::Array(fields) => fields[0].clone(),
        name => name.clone(),
    };
    spec.subcommands
        .iter()
        .filter(|sub| !is_later(sub))
        .flat_map(|sub| {
            let wanted = Answer::Bulk(sub.name.into());
            let found = theirs.chunks(width).find(|chunk| name(&chunk[0]) == wanted);
            found.unwrap_or_else(|| panic!("Redis doesn't know {}", sub.name)).to_vec()
        })
        .collect()
}

#[test]
fn the_table_is_that_of_redis() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    // No Redis has these.
    let own = ["session", "keyrange", "placement"];
    let is_theirs = |spec: &&Spec| !own.contains(&spec.name) && !is_later(spec);
    for spec in table().iter().filter(is_theirs) {
        let words: Words = ["COMMAND", "INFO", spec.name].map(|word| word.into()).into();
        let theirs = redis.pipeline([&words]).remove(0);
        assert_eq!(
            common_info(spec, store.run(&words)),
            common_info(spec, theirs),
            "COMMAND INFO {}",
            spec.name
        );
        for sub in spec.subcommands.iter().filter(|sub| !is_later(sub)) {
            let words: Words = ["COMMAND", "INFO", sub.name].map(|word| word.into()).into();
            assert_eq!(store.run(&words), redis.pipeline([&words]).remove(0));
            let words: Words = ["COMMAND", "DOCS", sub.name].map(|word| word.into()).into();
            assert_eq!(store.run(&words), redis.pipeline([&words]).remove(0));
        }
        let words: Words = ["COMMAND", "DOCS", spec.name].map(|word| word.into()).into();
        let (ours, theirs) = (store.run(&words), redis.pipeline([&words]).remove(0));
        if spec.subcommands.is_empty() {
            assert_eq!(ours, theirs, "COMMAND DOCS {}", spec.name);
            continue;
        }
        let (mut ours, ours_subs) = split_docs(ours);
        let (theirs, theirs_subs) = split_docs(theirs);
        assert_eq!(ours, theirs, "COMMAND DOCS {}", spec.name);
        ours = only_ours(spec, ours_subs, 2);
        assert_eq!(ours, only_ours(spec, theirs_subs, 2), "COMMAND DOCS {}", spec.name);
    }
    let words: Words = ["COMMAND", "INFO", "nope", "client|nope"].map(|word| word.into()).into();
    assert_eq!(store.run(&words), redis.pipeline([&words]).remove(0));
    let words: Words = ["COMMAND", "DOCS", "nope"].map(|word| word.into()).into();
    assert_eq!(store.run(&words), redis.pipeline([&words]).remove(0));
}

/// The one element of `COMMAND INFO x`, with its last field, the subcommands, reduced to those
/// that both have.
fn common_info(spec: &Spec, answer: Answer) -> Vec<Answer> {
    let Answer::Array(mut answers) = answer else { panic!("not an array: {answer:?}") };
    let Answer::Array(mut fields) = answers.remove(0) else { panic!("not an array") };
    let Some(Answer::Array(subs)) = fields.pop() else { panic!("not an array") };
    fields.push(Answer::Array(only_ours(spec, subs, 1)));
    fields
}

/// The docs of a container and those of its subcommands.
fn split_docs(answer: Answer) -> (Vec<Answer>, Vec<Answer>) {
    let Answer::Array(mut pair) = answer else { panic!("not an array: {answer:?}") };
    let Answer::Array(mut fields) = pair.remove(1) else { panic!("not an array") };
    let Some(Answer::Array(subs)) = fields.pop() else { panic!("subcommands come last") };
    (fields, subs)
}

#[test]
fn help_is_in_the_words_of_redis() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    for container in [
        "ACL", "CLIENT", "COMMAND", "CONFIG", "LATENCY", "MEMORY", "MODULE", "OBJECT", "SLOWLOG",
        "XGROUP", "XINFO",
    ] {
        let words: Words = [container, "HELP"].map(|word| word.into()).into();
        let (ours, theirs) = (store.run(&words), redis.pipeline([&words]).remove(0));
        let (Answer::Array(ours), Answer::Array(theirs)) = (ours, theirs) else {
            panic!("help is lines");
        };
        for line in ours {
            let text = format!("{line:?}");
            let later = ["SETINFO", "NO-TOUCH", "meta attr", "LIB-", "LRU/LFU"];
            assert!(
                theirs.contains(&line) || later.iter().any(|word| text.contains(word)),
                "{text}"
            );
        }
    }
}

#[test]
fn encodings_of_values_that_were_set_are_those_of_redis() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let pool = INTEGERS.iter().chain(FLOATS).chain(TEXTS);
    for value in pool {
        let set: Words = ["SET", "k", value].map(|word| word.into()).into();
        let ask: Words = ["OBJECT", "ENCODING", "k"].map(|word| word.into()).into();
        for words in [&set, &ask] {
            assert_eq!(store.run(words), redis.pipeline([words]).remove(0), "{}", show(&set));
        }
    }
}

/// Arguments that lie anywhere in a buffer, in any order, are read as well as those in sequence.
#[test]
fn arguments_are_spans_of_any_buffer() {
    let buffer = b"..value..GET..key..";
    let spans = [Span { start: 9, end: 12 }, Span { start: 14, end: 17 }];
    let args = Args { buffer, spans: &spans, seed: 0 };
    let spec = resolve(args).expect("GET key");
    assert_eq!((spec.name, args.get(1)), ("get", &b"key"[..]));
    assert_eq!(args.to_owned().borrow().iter().collect::<Vec<_>>(), [&b"GET"[..], b"key"]);
}
