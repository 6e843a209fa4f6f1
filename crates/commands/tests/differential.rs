//! Random commands to this crate and to a real redis-server: the answers must be the same.

mod redis;
mod workspace;

use quorate_commands::{Args, OwnedCall, Script, Span, Spec, resolve, table};
use quorate_machine::{Access, Change, Operation, Rng};
use quorate_types::UnixMillis;
use redis::Redis;
use workspace::{Answer, EXAMPLES, Words, Workspace, examples, owned, show};

const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "8",
    "-8",
    "63",
    "64",
    "100",
    "-100",
    "00",
    "-0",
    "+1",
    " 1",
    "1 ",
    "",
    "abc",
    "1.0",
    "1e3",
    "0x10",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "-9223372036854775809",
    "9223372036854774807",
    "4611686018427387904",
    "18446744073709551615",
    "99999999999999999999",
    "2147483647",
    "2147483648",
    "4294967296",
    "123456789012",
    "-",
    "nan",
    "1\0",
];

const FLOATS: &[&str] = &[
    "0.1",
    "-0.1",
    "1.5",
    "3.0e3",
    "1e-5",
    "1e-17",
    "5e-18",
    "1.5e-17",
    "-5e-18",
    "1e17",
    "1e18",
    "1e19",
    "1e20",
    "12345678901234567890.5",
    "0.00000000000000000001",
    "-0",
    "-0.0",
    ".5",
    "5.",
    ".",
    "1e",
    "1e+2",
    "1E-2",
    "inf",
    "-inf",
    "Infinity",
    "infinit",
    "nan",
    "nan(1)",
    "0x1p-3",
    "0X1.8P1",
    "0x",
    "0x.8",
    "0xp1",
    "1e308",
    "1.7976931348623157e308",
    "1e4932",
    "1.2e4932",
    "-1e4932",
    "1e-4940",
    "3e-4951",
    "1e-4952",
    "1e-5000",
    "1e5000",
    "0e5000",
    "1e99999999999999",
    "0x1p-16445",
    "0x1p-16446",
    "0x1p16383",
    "0x1p16384",
    "0x1.fffffffffffffffep16383",
    "0x1.ffffffffffffffffp16383",
    "0.3333333333333333333333333",
    "2.675",
    "1.005",
    "--1",
    "+5",
    "3.14159265358979323846264338327950288",
    "1,5",
    "\t1",
    "1e1.5",
];

const TEXTS: &[&str] = &[
    "",
    "a",
    "hello world",
    "\0",
    "a\0b",
    "line\r\nbreak",
    "\u{00ff}\u{1234}",
    "forty-four bytes of text, which Redis embeds.",
    "forty-five bytes of text, which is too long..",
];

/// Draws commands.
struct Draw {
    rng: Rng,
    /// Relative expiry times differ by ten seconds at least, so that which of two is later doesn't
    /// depend on when each command ran.
    spans: u64,
}

impl Draw {
    fn pick<T: Copy>(&mut self, pool: &[T]) -> T {
        pool[self.rng.below(pool.len() as u64) as usize]
    }

    fn key(&mut self) -> Vec<u8> {
        self.pick(&[&b"k1"[..], b"k2", b"k3", b""]).to_vec()
    }

    fn integer(&mut self) -> Vec<u8> {
        if self.rng.chance(1, 2) {
            return (self.rng.below(400) as i64 - 200).to_string().into_bytes();
        }
        self.pick(INTEGERS).into()
    }

    fn float(&mut self) -> Vec<u8> {
        match self.rng.below(8) {
            0..4 => self.pick(FLOATS).into(),
            4 => {
                let (whole, fraction) = (self.rng.next_u64() as i64 >> 30, self.rng.next_u64());
                format!("{whole}.{fraction}").into_bytes()
            }
            5 => {
                let exponent = self.rng.below(60) as i64 - 40;
                format!("{}e{exponent}", self.rng.next_u64()).into_bytes()
            }
            6 => {
                let exponent = self.rng.below(10_000) as i64 - 5_000;
                format!("-{}.{}e{exponent}", self.rng.below(10), self.rng.next_u64()).into_bytes()
            }
            _ => self.integer(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.below(8) {
            0..3 => self.integer(),
            3 => self.float(),
            4 => (0..self.rng.below(70)).map(|_| self.rng.next_u64() as u8).collect(),
            5 => vec![b'1'; self.pick(&[19, 20, 21, 5119, 5120])],
            _ => self.pick(TEXTS).into(),
        }
    }

    /// An expiry time in seconds or milliseconds, from now or from 1970.
    fn time(&mut self, seconds: bool, relative: bool) -> Vec<u8> {
        if self.rng.chance(1, 6) {
            const BAD: &[&str] = &[
                "0",
                "-1",
                "-100",
                "",
                "abc",
                "1.5",
                "+5",
                "9223372036854775807",
                "-9223372036854775808",
                "9223372036854775",
                "9223372036854776",
                "-9223372036854776",
                "9223372036854775808",
                "9223370000000000000",
            ];
            return self.pick(BAD).into();
        }
        if relative {
            self.spans += 10;
            let span = (1_000 + self.spans) * if seconds { 1 } else { 1_000 };
            return span.to_string().into_bytes();
        }
        let at: u64 = self.pick(&[1, 1_000, 99_999_999_999, 88_888_888_888, 99_999_999_999_001]);
        let at = if seconds { at } else { at.saturating_mul(1_000) + self.rng.below(1_000) };
        at.to_string().into_bytes()
    }

    /// Options with their values, sometimes without.
    fn options(&mut self, words: &mut Words, pool: &[&str]) {
        for _ in 0..self.pick(&[0, 1, 1, 2, 2, 3, 4]) {
            let option = self.pick(pool);
            words.push(self.any_case(option));
            let (seconds, relative) = match option {
                "EX" => (true, true),
                "PX" => (false, true),
                "EXAT" => (true, false),
                "PXAT" => (false, false),
                _ => continue,
            };
            if !self.rng.chance(1, 12) {
                let time = self.time(seconds, relative);
                words.push(time);
            }
        }
    }

    fn any_case(&mut self, word: &str) -> Vec<u8> {
        match self.rng.below(4) {
            0 => word.to_ascii_lowercase().into(),
            1 => word
                .bytes()
                .map(|byte| if self.rng.chance(1, 2) { byte ^ 0x20 } else { byte })
                .map(|byte| if byte.is_ascii_alphabetic() { byte } else { byte ^ 0x20 })
                .collect(),
            _ => word.to_ascii_uppercase().into(),
        }
    }

    /// A command on `key`.
    fn on_key(&mut self, key: &[u8]) -> Words {
        const SET: &[&str] =
            &["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT", "PERSIST", "EX\0", "bad"];
        const GETEX: &[&str] = &["PERSIST", "EX", "PX", "EXAT", "PXAT", "KEEPTTL", "NX"];
        const EXPIRE: &[&str] = &["NX", "XX", "GT", "LT", "gT", "foo\r\nbar\n\r", ""];
        let name = self.pick(KEYED);
        let mut words = vec![self.any_case(name), key.to_vec()];
        match name {
            "SET" => {
                words.push(self.value());
                self.options(&mut words, SET);
            }
            "GETEX" => self.options(&mut words, GETEX),
            "SETNX" | "GETSET" | "APPEND" => words.push(self.value()),
            "SETEX" | "PSETEX" => {
                words.push(self.time(name == "SETEX", true));
                words.push(self.value());
            }
            "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
                words.push(self.time(!name.starts_with('P'), !name.ends_with("AT")));
                self.options(&mut words, EXPIRE);
            }
            "GETRANGE" => words.extend([self.integer(), self.integer()]),
            "SETRANGE" => {
                words.push(self.pick(OFFSETS).into());
                words.push(self.value());
            }
            "INCRBY" | "DECRBY" => words.push(self.integer()),
            "INCRBYFLOAT" => words.push(self.float()),
            "SETBIT" => {
                words.push(self.pick(OFFSETS).into());
                words.push(self.pick(&["0", "1", "1", "2", "-1", "01", ""]).into());
            }
            "GETBIT" => words.push(self.pick(OFFSETS).into()),
            "BITCOUNT" => {
                for _ in 0..self.pick(&[0, 0, 1, 2, 2, 2, 2]) {
                    words.push(self.integer());
                }
                if words.len() == 4 && self.rng.chance(1, 2) {
                    words.push(self.pick(&["BIT", "BYTE", "bit", "bits", ""]).into());
                }
            }
            "MSET" => {
                words.push(self.value());
                if self.rng.chance(1, 3) {
                    words.extend([key.to_vec(), self.value()]);
                }
            }
            "COPY" => {
                words.push(key.to_vec());
                if self.rng.chance(1, 3) {
                    words.push(self.pick(&["REPLACE", "replace", "DB", "foo"]).into());
                }
            }
            _ => {}
        }
        self.damage(&mut words);
        words
    }

    /// Now and then a wrong number of arguments.
    fn damage(&mut self, words: &mut Words) {
        match self.rng.below(40) {
            0 => drop(words.pop()),
            1 => words.push(self.value()),
            _ => {}
        }
    }

    fn command(&mut self) -> Words {
        let key = self.key();
        match self.rng.below(40) {
            0..32 => self.on_key(&key),
            32..36 => {
                let name = self.pick(&["MGET", "DEL", "UNLINK", "EXISTS", "TOUCH"]);
                let mut words = vec![self.any_case(name)];
                words.extend((0..self.rng.below(5)).map(|_| self.key()));
                words
            }
            36 => {
                let mut words = vec![b"COMMAND".to_vec(), b"GETKEYS".to_vec()];
                words.extend(self.on_key(&key));
                words
            }
            37 => {
                let mut words = vec![self.pick(&["PING", "ECHO", "client", "object"]).into()];
                words.extend((0..self.rng.below(4)).map(|_| self.value()));
                words
            }
            _ => (0..=self.rng.below(4)).map(|_| self.value()).collect(),
        }
    }
}

const KEYED: &[&str] = &[
    "GET",
    "SET",
    "SET",
    "SET",
    "SETNX",
    "SETEX",
    "PSETEX",
    "GETSET",
    "GETDEL",
    "GETEX",
    "GETEX",
    "APPEND",
    "STRLEN",
    "GETRANGE",
    "SETRANGE",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "INCRBYFLOAT",
    "INCRBYFLOAT",
    "SETBIT",
    "GETBIT",
    "BITCOUNT",
    "BITCOUNT",
    "DEL",
    "EXISTS",
    "TYPE",
    "TTL",
    "PTTL",
    "EXPIRETIME",
    "PEXPIRETIME",
    "EXPIRE",
    "PEXPIRE",
    "EXPIREAT",
    "PEXPIREAT",
    "PERSIST",
    "TOUCH",
    "MSET",
    "COPY",
];

/// Small ones, and large ones that are refused: a value of the largest size is a test of its own.
const OFFSETS: &[&str] = &[
    "0",
    "1",
    "7",
    "8",
    "15",
    "20",
    "100",
    "1000",
    "-1",
    "",
    "abc",
    "4194304",
    "536870912",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "01",
];

/// Whether two answers agree; remaining and absolute times may differ by what the clock moved
/// between our reading of it and the command's run.
fn agree(words: &Words, ours: &Answer, theirs: &Answer) -> bool {
    let slack = match words[0].to_ascii_uppercase().as_slice() {
        b"TTL" | b"EXPIRETIME" => 5,
        b"PTTL" | b"PEXPIRETIME" => 5_000,
        _ => 0,
    };
    match (ours, theirs) {
        (Answer::Int(a), Answer::Int(b)) if *a > 0 && *b > 0 => a.abs_diff(*b) <= slack,
        // `COPY k k DB n`: a copy between keyspaces.
        (Answer::Error(text), _) if text.starts_with("CROSSKEY") => {
            words[0].eq_ignore_ascii_case(b"COPY") && words.len() > 4
        }
        // Bytes that aren't UTF-8 are replaced in both.
        _ => ours == theirs,
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
        let mut workspace = Workspace::default();
        let mut draw = Draw { rng: Rng::new(seed), spans: 0 };
        for _ in 0..10 {
            let commands: Vec<Words> = (0..200).map(|_| draw.command()).collect();
            workspace.now = clock(&mut redis);
            let theirs = redis.pipeline(&commands);
            for (index, (words, theirs)) in commands.iter().zip(&theirs).enumerate() {
                let ours = workspace.run(words);
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

#[test]
fn random_transactions_answer_as_redis_does() {
    let mut redis = Redis::start();
    let mut workspace = Workspace::default();
    let mut draw = Draw { rng: Rng::new(1), spans: 0 };
    for round in 0..1_000 {
        let key = draw.key();
        let commands: Vec<Words> = (0..draw.rng.below(6)).map(|_| draw.on_key(&key)).collect();
        let calls: Vec<(Words, OwnedCall)> = commands
            .into_iter()
            .filter_map(|words| Some((words.clone(), owned_call(&words)?)))
            .filter(|(_, call)| call.call().keys().all(|other| other == key))
            .collect();
        let (multi, exec) = (vec![b"MULTI".to_vec()], vec![b"EXEC".to_vec()]);
        workspace.now = clock(&mut redis);
        let sent = calls.iter().map(|(words, _)| words);
        let theirs = redis.pipeline([&multi].into_iter().chain(sent).chain([&exec]));
        let (words, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let script = Script { key: key.clone().into(), watches: vec![], calls };
        let op = quorate_commands::Op::Script(script);
        let (ours, change) = op.apply(workspace.now, workspace.current(&key));
        let access = op.access();
        assert!(access != Access::Read || change == Change::Keep);
        assert!(access != Access::Write || !matches!(change, Change::Keep | Change::Expire(_)));
        let (ours, change) = (Answer::from(ours), owned(change));
        workspace.change(&key, change);
        let (Answer::Array(ours), Some(Answer::Array(theirs))) = (&ours, theirs.last()) else {
            panic!("round {round}: {ours:?} {theirs:?}");
        };
        assert_eq!(ours.len(), theirs.len());
        for ((words, ours), theirs) in words.iter().zip(ours).zip(theirs) {
            let shown = show(words);
            assert!(agree(words, ours, theirs), "round {round}: {shown} {ours:?} {theirs:?}");
        }
    }
}

fn owned_call(words: &Words) -> Option<OwnedCall> {
    OwnedCall::new(words.iter().map(Vec::as_slice)).ok()
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
    let mut workspace = Workspace::default();
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
        assert_eq!(workspace.run(&words), redis.pipeline([&words]).remove(0), "{line}");
    }
}

/// Whether a row is one of those that Redis 7.0 doesn't have.
fn is_later(spec: &Spec) -> bool {
    spec.docs.since == "7.2.0"
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
    let mut workspace = Workspace::default();
    for spec in table() {
        let words: Words = ["COMMAND", "INFO", spec.name].map(|word| word.into()).into();
        let theirs = redis.pipeline([&words]).remove(0);
        assert_eq!(
            common_info(spec, workspace.run(&words)),
            common_info(spec, theirs),
            "COMMAND INFO {}",
            spec.name
        );
        for sub in spec.subcommands.iter().filter(|sub| !is_later(sub)) {
            let words: Words = ["COMMAND", "INFO", sub.name].map(|word| word.into()).into();
            assert_eq!(workspace.run(&words), redis.pipeline([&words]).remove(0));
            let words: Words = ["COMMAND", "DOCS", sub.name].map(|word| word.into()).into();
            assert_eq!(workspace.run(&words), redis.pipeline([&words]).remove(0));
        }
        let words: Words = ["COMMAND", "DOCS", spec.name].map(|word| word.into()).into();
        let (ours, theirs) = (workspace.run(&words), redis.pipeline([&words]).remove(0));
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
    assert_eq!(workspace.run(&words), redis.pipeline([&words]).remove(0));
    let words: Words = ["COMMAND", "DOCS", "nope"].map(|word| word.into()).into();
    assert_eq!(workspace.run(&words), redis.pipeline([&words]).remove(0));
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
    let mut workspace = Workspace::default();
    for container in ["CLIENT", "COMMAND", "CONFIG", "MEMORY", "OBJECT"] {
        let words: Words = [container, "HELP"].map(|word| word.into()).into();
        let (ours, theirs) = (workspace.run(&words), redis.pipeline([&words]).remove(0));
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
    let mut workspace = Workspace::default();
    let pool = INTEGERS.iter().chain(FLOATS).chain(TEXTS);
    for value in pool {
        let set: Words = ["SET", "k", value].map(|word| word.into()).into();
        let ask: Words = ["OBJECT", "ENCODING", "k"].map(|word| word.into()).into();
        for words in [&set, &ask] {
            assert_eq!(workspace.run(words), redis.pipeline([words]).remove(0), "{}", show(&set));
        }
    }
}

/// Arguments that lie anywhere in a buffer, in any order, are read as well as those in sequence.
#[test]
fn arguments_are_spans_of_any_buffer() {
    let buffer = b"..value..GET..key..";
    let spans = [Span { start: 9, end: 12 }, Span { start: 14, end: 17 }];
    let args = Args { buffer, spans: &spans };
    let spec = resolve(args).expect("GET key");
    assert_eq!((spec.name, args.get(1)), ("get", &b"key"[..]));
    assert_eq!(args.to_owned().borrow().iter().collect::<Vec<_>>(), [&b"GET"[..], b"key"]);
}
