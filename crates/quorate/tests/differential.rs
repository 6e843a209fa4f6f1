//! The same commands to a real redis-server and to a cluster: the same bytes must come back,
//! whichever node each command goes through.
//!
//! Needs redis-server 7.0 (Debian: `apt-get install redis-server`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io;

use quorate_commands::table;
use quorate_types::limits;
use support::dev::Dev;
use support::redis::{Raw, Redis, Words, encode};

/// What random commands are made of. A word in braces is a place for something drawn:
/// `{k}` a key, `{v}` a value, `{i}` an integer, `{f}` a number, `{n}` an offset, `{b}` a bit,
/// `{s}` and `{ms}` a span, `{at}` and `{atms}` an absolute time. What is drawn is now and then
/// wrong.
const COMMANDS: &[&str] = &[
    "GET {k}",
    "GET {k}",
    "GET {k}",
    "SET {k} {v}",
    "SET {k} {v}",
    "SET {k} {v}",
    "SET {k} {v} EX {s}",
    "SET {k} {v} PX {ms}",
    "SET {k} {v} EXAT {at}",
    "SET {k} {v} PXAT {atms}",
    "SET {k} {v} NX",
    "SET {k} {v} XX",
    "SET {k} {v} GET",
    "SET {k} {v} KEEPTTL",
    "SET {k} {v} NX GET",
    "SET {k} {v} XX GET KEEPTTL",
    "SET {k} {v} NX XX",
    "SET {k} {v} XX EX {s}",
    "SETNX {k} {v}",
    "SETEX {k} {s} {v}",
    "PSETEX {k} {ms} {v}",
    "GETSET {k} {v}",
    "GETDEL {k}",
    "GETEX {k}",
    "GETEX {k} EX {s}",
    "GETEX {k} PXAT {atms}",
    "GETEX {k} PERSIST",
    "GETEX {k} EX {s} PERSIST",
    "MGET {k} {k} {k}",
    "MGET {k}",
    "APPEND {k} {v}",
    "STRLEN {k}",
    "GETRANGE {k} {i} {i}",
    "SETRANGE {k} {n} {v}",
    "INCR {k}",
    "INCR {k}",
    "DECR {k}",
    "INCRBY {k} {i}",
    "DECRBY {k} {i}",
    "INCRBYFLOAT {k} {f}",
    "SETBIT {k} {n} {b}",
    "GETBIT {k} {n}",
    "BITCOUNT {k}",
    "BITCOUNT {k} {i} {i}",
    "BITCOUNT {k} {i} {i} BIT",
    "BITCOUNT {k} {i} {i} BYTE",
    "DEL {k}",
    "DEL {k} {k} {k}",
    "UNLINK {k} {k}",
    "EXISTS {k}",
    "EXISTS {k} {k} {k} {k}",
    "TYPE {k}",
    "TTL {k}",
    "PTTL {k}",
    "EXPIRETIME {k}",
    "PEXPIRETIME {k}",
    "EXPIRE {k} {s}",
    "EXPIRE {k} {s} NX",
    "EXPIRE {k} {s} XX",
    "EXPIRE {k} {s} GT",
    "EXPIRE {k} {s} LT",
    "EXPIRE {k} {s} NX GT",
    "PEXPIRE {k} {ms}",
    "PEXPIRE {k} {ms} GT",
    "EXPIREAT {k} {at}",
    "PEXPIREAT {k} {atms}",
    "PERSIST {k}",
    "EXPIREAT {k} 1",
    "PEXPIREAT {k} 1",
    "TOUCH {k} {k}",
    "OBJECT ENCODING {k}",
    "COPY same same",
    "MSET {k} {v}",
    "MSET one {v} one {v}",
    "DBSIZE",
    "KEYS *",
    "KEYS k?",
    "KEYS [^k]*",
    "ECHO {v}",
    "PING",
    "PING {v}",
    "TIME x",
    "LOLWUT VERSION x",
    "MEMORY USAGE absent",
    "WAIT x 0",
    "WAIT {i} x",
    "SELECT 0",
    "SELECT x",
    "INFO nosection",
    "CONFIG GET maxmemory",
    "CONFIG GET appendonly",
    "CONFIG SET nosuch 1",
    "CONFIG RESETSTAT",
    "COMMAND INFO get set mget nosuch",
    "COMMAND GETKEYS {k} {v}",
    "COMMAND GETKEYS MSET {k} {v}",
    "COMMAND DOCS nosuch",
    "COMMAND COUNT x",
    "CLIENT GETNAME",
    "CLIENT SETNAME {v}",
    "CLIENT SETNAME me",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT {v}",
    "CLIENT ID x",
    "CLIENT LIST TYPE pubsub",
    "CLIENT LIST ID x",
    "CLIENT INFO x",
    "RANDOMKEY x",
    "FLUSHDB x",
    "AUTH wrong",
    "HELLO 9",
    "HELLO 2 SETNAME 'x",
    "SCAN x",
    "SCAN 0 COUNT 0",
    "SCAN 0 MATCH nothing* COUNT 1000",
    "SHUTDOWN nosuch",
    "EXEC",
    "DISCARD",
    "UNWATCH",
    "NOSUCH {k} {v}",
    "{v} {v}",
];

/// Commands of connections and of everything at once: only where one connection does it all.
const SESSION: &[&str] = &[
    "MULTI",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH one",
    "WATCH one one",
    "UNWATCH",
    "RESET",
    "FLUSHALL",
    "FLUSHDB SYNC",
    "HELLO 2",
    "HELLO 3",
    "SELECT 1",
    "SELECT 0",
    "RANDOMKEY",
];

/// Not drawn: its answers are those of this moment, or of this server, or it ends things.
const ELSEWHERE: &[&str] = &["quit", "shutdown"];

const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "8",
    "-8",
    "100",
    "-100",
    "00",
    "+1",
    " 1",
    "",
    "abc",
    "1.0",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "2147483648",
    "1\0",
];
const FLOATS: &[&str] = &[
    "0.1",
    "-0.1",
    "1.5",
    "3.0e3",
    "1e-5",
    "1e17",
    "-0",
    ".5",
    "inf",
    "nan",
    "0x1p-3",
    "1e308",
    "1e5000",
    "abc",
    "",
    "3.14159265358979323846264338327950288",
    "5.0000",
];
const OFFSETS: &[&str] =
    &["0", "1", "7", "8", "15", "20", "100", "1000", "-1", "", "abc", "4294967296", "01"];
const TEXTS: &[&str] = &[
    "",
    "a",
    "hello world",
    "\0",
    "a\0b",
    "line\r\nbreak",
    "\u{00ff}\u{1234}",
    "10",
    "3.5",
    "-7",
    "forty-four bytes of text, which Redis embeds.",
    "forty-five bytes of text, which is too long..",
];

/// Draws commands, the same from the same seed.
struct Draw {
    state: u64,
    /// Spans differ by ten seconds at least, so that which of two is later doesn't depend on when
    /// each command ran.
    spans: u64,
    keys: &'static [&'static str],
}

impl Draw {
    fn new(seed: u64, keys: &'static [&'static str]) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, spans: 0, keys }
    }

    fn below(&mut self, below: u64) -> u64 {
        // xorshift64*: enough to spread commands.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    fn pick<'a>(&mut self, pool: &[&'a str]) -> &'a str {
        pool[self.below(pool.len() as u64) as usize]
    }

    fn command(&mut self, pool: &[&str]) -> Words {
        loop {
            let words = self.any_command(pool);
            if is_deterministic(&words) {
                return words;
            }
        }
    }

    fn any_command(&mut self, pool: &[&str]) -> Words {
        let template = self.pick(pool);
        let mut words: Words = template.split(' ').map(|word| self.word(word)).collect();
        if self.below(2) == 0 {
            words[0].make_ascii_lowercase();
        }
        match self.below(40) {
            0 if words.len() > 1 => drop(words.pop()),
            1 => words.push(self.value()),
            _ => {}
        }
        words
    }

    fn word(&mut self, word: &str) -> Vec<u8> {
        match word {
            "{k}" => self.pick(self.keys).into(),
            "{v}" => self.value(),
            "{i}" if self.below(2) == 0 => (self.below(60) as i64 - 30).to_string().into(),
            "{i}" => self.pick(INTEGERS).into(),
            "{f}" => self.pick(FLOATS).into(),
            "{n}" => self.pick(OFFSETS).into(),
            "{b}" => self.pick(&["0", "1", "1", "1", "2", ""]).into(),
            "{s}" => self.span(1),
            "{ms}" => self.span(1000),
            "{at}" => self.pick(&["99999999999", "88888888888", "0", "-1", "x"]).into(),
            "{atms}" => self.pick(&["99999999999001", "88888888888500", "0", "x"]).into(),
            word => word.into(),
        }
    }

    fn span(&mut self, unit: u64) -> Vec<u8> {
        if self.below(8) == 0 {
            let bad = ["0", "-1", "", "abc", "9223372036854775807", "9223372036854775", "1.5"];
            return self.pick(&bad).into();
        }
        self.spans += 1;
        // A permutation of its multiples, so that later spans are longer or shorter.
        let span = 100_000 + 10 * (self.spans * 7919 % 100_003);
        (span * unit).to_string().into()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.below(8) {
            0..3 => (self.below(400) as i64 - 200).to_string().into(),
            3 => self.pick(INTEGERS).into(),
            4 => self.pick(FLOATS).into(),
            5 => (0..self.below(70)).map(|_| self.below(256) as u8).collect(),
            _ => self.pick(TEXTS).into(),
        }
    }
}

/// Whether Redis itself would answer the same again. A word that was dropped or added can turn a
/// command into another.
fn is_deterministic(words: &[Vec<u8>]) -> bool {
    let name = words[0].to_ascii_uppercase();
    match (name.as_slice(), words.len()) {
        (b"INFO" | b"TIME" | b"LOLWUT" | b"SHUTDOWN" | b"COMMAND", 1) | (b"LOLWUT", 2) => false,
        (b"CLIENT" | b"COMMAND", 2) => words[1].eq_ignore_ascii_case(b"GETNAME"),
        (b"WAIT", 3) => words[2].first().is_none_or(|byte| !byte.is_ascii_digit()),
        _ => true,
    }
}

/// Redis and a cluster side by side.
struct Both {
    redis: Redis,
    cluster: Dev,
}

/// Why a script has to begin again: a crowded machine can take a whole cluster off the processor
/// for longer than its lease, and what is not sure is then not answered.
#[derive(Debug)]
struct Interrupted;

impl From<io::Error> for Interrupted {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl Both {
    fn start(more: &[&str]) -> Self {
        let largest = limits::VALUE_BYTES_MAX.to_string();
        let redis = Redis::start(&["--proto-max-bulk-len", &largest]);
        Self { redis, cluster: Dev::start(more) }
    }

    /// Runs a script on empty stores, again if it was interrupted. The script says what differs.
    fn compare(&self, mut script: impl FnMut(&mut Pair) -> Result<(), Interrupted>) {
        for _ in 0..20 {
            let mut pair = Pair {
                redis: Raw::new(self.redis.port),
                nodes: self.cluster.clients.iter().map(|&port| Raw::new(port)).collect(),
                trail: Vec::new(),
            };
            let done = pair.ask(0, &[b"FLUSHALL".to_vec()]).and_then(|()| script(&mut pair));
            if done.is_ok() {
                return;
            }
        }
        panic!("the cluster was interrupted each time");
    }
}

/// Connections to both.
struct Pair {
    redis: Raw,
    nodes: Vec<Raw>,
    trail: Vec<String>,
}

impl Pair {
    /// A command to Redis and, through one node, to the cluster.
    fn ask(&mut self, node: usize, words: &[Vec<u8>]) -> Result<(), Interrupted> {
        let ours = self.nodes[node].ask(words)?;
        let theirs = self.redis.ask(words)?;
        self.trail.push(format!("{}: {}", node + 1, show(words)));
        self.judge(words, &ours, &theirs)
    }

    fn say(&mut self, node: usize, command: &str) -> Result<(), Interrupted> {
        let words: Words = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        self.ask(node, &words)
    }

    fn judge(&self, words: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> Result<(), Interrupted> {
        for word in [
            "-CLUSTERDOWN",
            "-UNKNOWN",
            "-TRYAGAIN",
            "-EXECABORT Transaction discarded because of: CLUSTERDOWN",
        ] {
            if ours.starts_with(word.as_bytes()) {
                return Err(Interrupted);
            }
        }
        assert!(
            agree(words, ours, theirs),
            "{}\nredis:   {}\nquorate: {}\nafter:\n{}",
            show(words),
            theirs.escape_ascii(),
            ours.escape_ascii(),
            self.trail[self.trail.len().saturating_sub(25)..].join("\n")
        );
        Ok(())
    }
}

fn show(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| format!("'{}' ", word.escape_ascii())).collect()
}

/// Whether two replies are the same, as far as Redis is deterministic.
fn agree(words: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> bool {
    let (ours, theirs) = (&without_id(ours)[..], &without_id(theirs)[..]);
    if ours == theirs {
        return true;
    }
    let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    if theirs.starts_with(b"-") {
        // Errors quote what was sent. They are text here, so bytes that are none are replaced.
        return String::from_utf8_lossy(ours) == String::from_utf8_lossy(theirs);
    }
    match name.as_slice() {
        // In Redis it depends on what made the value; here on the bytes alone.
        b"OBJECT" => is_encoding(ours) && is_encoding(theirs),
        // The clock moves between the two.
        b"TTL" | b"EXPIRETIME" => close(ours, theirs, 5),
        b"PTTL" | b"PEXPIRETIME" => close(ours, theirs, 5_000),
        // The order is that of the hash table, and so is the choice.
        b"KEYS" => elements(ours) == elements(theirs),
        b"RANDOMKEY" => ours.starts_with(b"$") && theirs.starts_with(b"$"),
        b"EXEC" => elements(ours).len() == elements(theirs).len() && alike(ours, theirs),
        _ => false,
    }
}

/// Whether a reply tells how a string is kept.
fn is_encoding(reply: &[u8]) -> bool {
    let text = String::from_utf8_lossy(reply);
    let word = text.rsplit("\r\n").find(|line| !line.is_empty()).unwrap_or("").trim_end();
    ["int", "embstr", "raw"].contains(&word)
}

/// A reply with the connection's id, which `HELLO` tells, made equal.
fn without_id(reply: &[u8]) -> Vec<u8> {
    let marker = b"$2\r\nid\r\n:";
    let mut reply = reply.to_vec();
    let mut from = 0;
    while let Some(at) = reply[from..].windows(marker.len()).position(|bytes| bytes == marker) {
        from += at + marker.len();
        let digits = reply[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        reply.splice(from..from + digits, *b"0");
    }
    reply
}

/// Whether two replies to `EXEC` differ in nothing but the numbers that the clock decides.
fn alike(ours: &[u8], theirs: &[u8]) -> bool {
    let lines = |reply: &[u8]| -> Vec<Vec<u8>> {
        reply.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    ours.len() == theirs.len()
        && ours.iter().zip(&theirs).all(|(a, b)| {
            let same_error =
                b.starts_with(b"-") && String::from_utf8_lossy(a) == String::from_utf8_lossy(b);
            a == b || same_error || close_line(a, b, 5_000)
        })
}

fn close(ours: &[u8], theirs: &[u8], slack: u64) -> bool {
    close_line(ours.trim_ascii_end(), theirs.trim_ascii_end(), slack)
}

fn close_line(a: &[u8], b: &[u8], slack: u64) -> bool {
    let number = |line: &[u8]| -> Option<i64> {
        std::str::from_utf8(line.strip_prefix(b":")?).ok()?.trim_end().parse().ok()
    };
    // Times are far away; small numbers are lengths and answers.
    matches!((number(a), number(b)), (Some(a), Some(b)) if a > 9_000 && b > 9_000 && a.abs_diff(b) <= slack)
}

/// The strings of an array, in order.
fn elements(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = reply;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, tail) = rest.split_at(at + 1);
        rest = tail;
        if let Some(length) = line.strip_prefix(b"$")
            && let Ok(length) = String::from_utf8_lossy(length).trim_end().parse::<usize>()
        {
            found.push(rest[..length].to_vec());
            rest = &rest[length + 2..];
        }
    }
    found.sort();
    found
}

#[test]
fn random_commands_through_any_node_are_answered_as_by_redis() {
    let both = Both::start(&[]);
    for seed in 0..300 {
        both.compare(|pair| {
            let mut draw = Draw::new(seed, &["k1", "k2", "", "one"]);
            for _ in 0..100 {
                let words = draw.command(COMMANDS);
                let node = draw.below(3) as usize;
                // What a connection remembers is compared on one.
                let session = [&b"CLIENT"[..], b"SELECT", b"HELLO"];
                let of_session = session.iter().any(|name| words[0].eq_ignore_ascii_case(name));
                pair.ask(if of_session { 0 } else { node }, &words)?;
            }
            Ok(())
        });
    }
}

#[test]
fn pipelined_sessions_are_answered_as_by_redis() {
    for lanes in ["1", "2"] {
        let both = Both::start(&["--lanes", lanes]);
        for seed in 0..150 {
            both.compare(|pair| {
                let node = seed as usize % 3;
                let mut draw = Draw::new(1000 + seed, &["one"]);
                let script = session(&mut draw);
                pipeline(pair, node, &script)
            });
        }
    }
}

/// Commands of one connection on one key. In a transaction or while a key is watched it stays in
/// one keyspace and doesn't flush: these touch several keys, which is refused here.
fn session(draw: &mut Draw) -> Vec<Words> {
    let (mut queues, mut watches) = (false, false);
    let mut script = Vec::new();
    while script.len() < 400 {
        let pool = if draw.below(4) == 0 { SESSION } else { COMMANDS };
        let words = draw.command(pool);
        let name = words[0].to_ascii_uppercase();
        let confined = queues || watches;
        let wide = match name.as_slice() {
            b"SELECT" | b"FLUSHALL" | b"FLUSHDB" => confined,
            // Compared elsewhere.
            b"OBJECT" => queues,
            // What counts or lists keys runs after the commands on the key.
            b"DBSIZE" | b"KEYS" | b"SCAN" | b"RANDOMKEY" => queues,
            b"COPY" => true,
            // An added word may be one more key.
            b"WATCH" | b"MGET" | b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" => {
                words[1..].iter().any(|key| key != b"one")
            }
            b"MSET" => words.iter().skip(1).step_by(2).any(|key| key != b"one"),
            _ => false,
        };
        if wide {
            continue;
        }
        match (name.as_slice(), words.len()) {
            (b"MULTI", 1) => queues = true,
            (b"WATCH", 2..) if !queues => watches = true,
            (b"UNWATCH", 1) if !queues => watches = false,
            (b"RESET", 1) => (queues, watches) = (false, false),
            (b"EXEC" | b"DISCARD", 1) if queues => (queues, watches) = (false, false),
            _ => {}
        }
        script.push(words);
    }
    script
}

/// Sends everything at once; compares the replies one by one.
fn pipeline(pair: &mut Pair, node: usize, script: &[Words]) -> Result<(), Interrupted> {
    let bytes: Vec<u8> = script.iter().flat_map(|words| encode(words)).collect();
    pair.nodes[node].send_behind(bytes.clone());
    pair.redis.send_behind(bytes);
    for words in script {
        let ours = pair.nodes[node].receive()?;
        let theirs = pair.redis.receive()?;
        pair.trail.push(show(words));
        pair.judge(words, &ours, &theirs)?;
    }
    Ok(())
}

#[test]
fn pipelined_commands_on_many_keys_keep_their_order_on_every_lane() {
    let both = Both::start(&["--lanes", "2"]);
    both.compare(|pair| {
        let mut draw = Draw::new(7, &[]);
        let mut script = Vec::new();
        for n in 0..6000 {
            let key = format!("key:{}", draw.below(200));
            let value = n.to_string();
            let command: &[&str] = match draw.below(6) {
                0 => &["SET", &key, &value],
                1 | 2 => &["GET", &key],
                3 => &["INCR", &key],
                4 => &["APPEND", &key, "1"],
                _ => &["GETDEL", &key],
            };
            script.push(command.iter().map(|word| word.as_bytes().to_vec()).collect());
        }
        pipeline(pair, 1, &script)
    });
}

#[test]
fn watched_keys_are_those_of_redis_whoever_changes_them() {
    let both = Both::start(&[]);
    let changes = [
        "GET one",
        "SET one 5",
        "SET one 5 NX",
        "SET one 5 XX",
        "SETNX one 1",
        "DEL one",
        "APPEND one x",
        "SETRANGE one 0 y",
        "EXPIRE one 5000",
        "PERSIST one",
        "EXPIREAT one 1",
        "GETEX one",
        "GETEX one EX 7000",
        "GETEX one PERSIST",
        "GETDEL one",
        "SETBIT one 3 1",
        "SETBIT one 3 0",
        "INCRBY one 0",
        "TOUCH one",
        "FLUSHALL",
        "MSET one 5",
        "SET two 5",
        "UNLINK one",
        "EXPIRE one 5000 NX",
        "INCRBYFLOAT one 0",
    ];
    let starts = ["DEL one", "SET one 5", "SET one 5 EX 6000", "SET one 9"];
    for (number, change) in changes.iter().enumerate() {
        for start in starts {
            both.compare(|pair| {
                let (watcher, other) = (number % 3, (number + 1) % 3);
                let mut stranger = Raw::new(both.redis.port);
                pair.say(other, start)?;
                pair.say(watcher, "WATCH one")?;
                let words: Words = change.split(' ').map(|word| word.into()).collect();
                let ours = pair.nodes[other].ask(&words)?;
                pair.judge(&words, &ours, &stranger.ask(&words)?)?;
                pair.trail.push(format!("{start}; watch; {change}"));
                for command in ["MULTI", "INCR one", "GET one", "EXEC", "GET one"] {
                    pair.say(watcher, command)?;
                }
                Ok(())
            });
        }
    }
}

#[test]
fn a_scan_finds_every_key_through_every_node_and_ends() {
    let both = Both::start(&[]);
    both.compare(|pair| {
        for n in 0..700 {
            pair.say(n % 3, &format!("SET key:{n} {n}"))?;
        }
        for options in ["", " COUNT 7", " MATCH key:1*", " COUNT 1000 TYPE string", " TYPE hash"] {
            let theirs = scan(&mut pair.redis, options)?;
            for node in &mut pair.nodes {
                assert_eq!(scan(node, options)?, theirs, "{options}");
            }
        }
        Ok(())
    });
}

fn scan(connection: &mut Raw, options: &str) -> Result<Vec<Vec<u8>>, Interrupted> {
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    loop {
        let command = format!("SCAN {cursor}{options}");
        let reply = connection.ask(&command.split(' ').collect::<Vec<_>>())?;
        if reply.starts_with(b"-CLUSTERDOWN") {
            return Err(Interrupted);
        }
        let text = String::from_utf8(reply).unwrap();
        let mut bulks = text.split("\r\n").skip(2).step_by(2);
        cursor = text.split("\r\n").nth(2).unwrap().to_owned();
        // The cursor, then the header of the array shifts the strings by one line.
        let _ = bulks.next();
        let keys = text.split("\r\n").skip(4);
        found.extend(keys.filter(|line| line.starts_with("key:")).map(|key| key.into()));
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

#[test]
fn inline_commands_and_protocol_errors_are_those_of_redis() {
    let both = Both::start(&[]);
    let inputs: &[&[u8]] = &[
        b"PING\r\nSET a 1\r\nGET a\r\nQUIT\r\n",
        b"SET a \"x y\\n\\x41\"\r\nGET a\r\nDEL a\r\nquit\r\n",
        b"\r\n\r\nPING\nQUIT\r\n",
        b"SET a \"unbalanced\r\n",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$-1\r\n",
        b"*x\r\n",
        b"*1\r\n+PING\r\n",
        b"*1\r\n$67108865\r\n",
        b"MULTI\r\nSET a 1\r\nNOSUCH\r\nEXEC\r\nQUIT\r\n",
        b"HELLO 3\r\nGET nothing\r\nMGET a b\r\nCONFIG GET save\r\nCOMMAND INFO get\r\nMULTI\r\nEXEC\r\nQUIT\r\n",
    ];
    for input in inputs {
        both.compare(|pair| {
            let start = format!("{}\n", input.escape_ascii());
            for node in 0..3 {
                let mut theirs = Raw::new(both.redis.port);
                theirs.send(input)?;
                let mut ours = Raw::new(both.cluster.clients[node]);
                ours.send(input)?;
                let (ours, theirs) = (ours.rest(), theirs.rest());
                pair.judge(&[b"HELLO".to_vec()], &ours, &theirs)?;
                assert!(!ours.is_empty(), "{start}");
            }
            pair.say(0, "DEL a")
        });
    }
}

#[test]
fn keys_past_their_time_are_gone_on_every_node() {
    let both = Both::start(&[]);
    both.compare(|pair| {
        for n in 0..30 {
            pair.say(n % 3, &format!("SET k{n} v PX 40"))?;
        }
        support::poll_until(std::time::Instant::now() + support::PATIENCE, "they expire", || {
            let gone = |reply: io::Result<Vec<u8>>| reply.is_ok_and(|reply| reply == b"$-1\r\n");
            (gone(pair.redis.ask(&["GET", "k29"])) && gone(pair.nodes[0].ask(&["GET", "k29"])))
                .then_some(())
        });
        for n in 0..30 {
            for command in ["GET", "EXISTS", "TTL", "STRLEN", "TYPE", "OBJECT ENCODING"] {
                pair.say(n % 3, &format!("{command} k{n}"))?;
            }
            pair.say((n + 1) % 3, &format!("INCR k{n}"))?;
            pair.say((n + 2) % 3, &format!("TTL k{n}"))?;
        }
        pair.say(0, "KEYS *")
    });
}

#[test]
fn every_command_is_compared() {
    let mut all: Vec<&str> = COMMANDS.iter().chain(SESSION).copied().collect();
    all.extend(ELSEWHERE);
    for spec in table() {
        let named = |line: &&str| {
            line.split(' ').next().is_some_and(|name| name.eq_ignore_ascii_case(spec.name))
        };
        assert!(all.iter().any(named), "{} is not in the differential test", spec.name);
    }
}
