//! Commands at random: what they are made of, and what a session of one connection may be.

use quorate_commands::OwnedCall;

use super::collections::{COLLECTIONS, WIDE_COLLECTIONS};
use crate::support::redis::Words;

/// What random commands are made of. A word in braces is a place for something drawn:
/// `{k}` a key, `{v}` a value, `{i}` an integer, `{f}` a number, `{n}` an offset, `{b}` a bit,
/// `{s}` and `{ms}` a span, `{at}` and `{atms}` an absolute time. What is drawn is now and then
/// wrong.
pub(crate) const COMMANDS: &[&str] = &[
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
    "BITPOS {k} {b}",
    "BITPOS {k} {b} {i}",
    "BITPOS {k} {b} {i} {i} BIT",
    "BITFIELD {k} SET u8 {n} {i} GET i8 {n}",
    "BITFIELD {k} OVERFLOW SAT INCRBY i9 {n} {i} OVERFLOW FAIL INCRBY u5 #1 {i}",
    "BITFIELD_RO {k} GET u12 {n} GET i64 {n}",
    "BITOP NOT same same",
    "BITOP {v} same same",
    "SUBSTR {k} {i} {i}",
    "DUMP absent",
    "RESTORE {k} {ms} {v}",
    "RESTORE {k} {i} {v} REPLACE",
    "LCS same same LEN",
    "XADD {k} 1-* f {v}",
    "XADD {k} 1-* f {v} g {v}",
    "XADD {k} NOMKSTREAM MAXLEN 3 {n} f {v}",
    "XLEN {k}",
    "XRANGE {k} - + COUNT 2",
    "XREVRANGE {k} + {n}",
    "XDEL {k} {n} 1-1",
    "XTRIM {k} MAXLEN {n}",
    "XSETID {k} {n}",
    "XREAD COUNT 2 STREAMS {k} 0",
    "XREADGROUP GROUP g c STREAMS {k} >",
    "XREADGROUP GROUP g c STREAMS {k} 0",
    "XGROUP CREATE {k} g 0 MKSTREAM",
    "XGROUP SETID {k} g 0",
    "XGROUP DELCONSUMER {k} g c",
    "XACK {k} g {n} 1-1",
    "XPENDING {k} g",
    "XCLAIM {k} g d 0 1-1 1-2",
    "XAUTOCLAIM {k} g d 0 - JUSTID",
    "XINFO STREAM {k}",
    "XINFO GROUPS {k}",
    "PFADD {k} {v} {v}",
    "PFADD {k}",
    "PFDEBUG ENCODING {k}",
    "PFDEBUG DECODE {k}",
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
    "COMMAND GETKEYSANDFLAGS SET {k} {v} GET",
    "COMMAND LIST FILTERBY ACLCAT nosuch",
    "CLIENT KILL ID {n}",
    "CLIENT REPLY ON",
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

/// Commands that change several keys, or read them at one instant: for keyspaces with transactions.
pub(crate) const WIDE: &[&str] = &[
    "MSET {k} {v} {k} {v}",
    "MSET {k} {v} {k} {v} {k} {v}",
    "MSETNX {k} {v}",
    "MSETNX {k} {v} {k} {v}",
    "RENAME {k} {k}",
    "RENAME {k} {k}",
    "RENAMENX {k} {k}",
    "COPY {k} {k}",
    "COPY {k} {k} REPLACE",
    "COPY {k} {k} REPLACE REPLACE",
    "BITOP AND {k} {k} {k}",
    "BITOP OR {k} {k} {k} {k}",
    "BITOP XOR {k} {k} {k}",
    "BITOP NOT {k} {k}",
    "LCS {k} {k}",
    "PFCOUNT {k} {k}",
    "PFMERGE {k}",
    "PFMERGE {k} {k}",
    "LCS {k} {k} IDX WITHMATCHLEN",
    "MGET {k} {k} {k} {k}",
    "DEL {k} {k}",
    "EXISTS {k} {k} {k}",
    "UNLINK {k} {k} {k}",
    "TOUCH {k} {k} {k}",
];

/// Commands of connections and of everything at once: only where one connection does it all.
pub(crate) const SESSION: &[&str] = &[
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

/// More of these, where watches and blocks may have any keys.
const WIDE_SESSION: &[&str] = &["MULTI", "EXEC", "WATCH {k} {k}", "WATCH {k} {k} {k}", "UNWATCH"];

/// Not drawn: its answers are those of this moment, or of this server, or it ends things, or Redis has
/// no such command; or it is compared elsewhere: `SORT`, which changes the form of a sorted set there, by
/// the crate of commands, scripts by that of scripts, messages, commands that wait and what operators ask
/// by that of the front end.
pub(crate) const ELSEWHERE: &[&str] = &[
    "quit",
    "shutdown",
    "session",
    "keyrange placement",
    "delex digest waitaof",
    "hexpire hexpireat hpexpire hpexpireat httl hpttl hexpiretime hpexpiretime hpersist",
    "hgetdel hgetex hsetex",
    "delifeq",
    "blpop brpop blmove brpoplpush blmpop bzpopmin bzpopmax bzmpop",
    "eval eval_ro evalsha evalsha_ro script fcall fcall_ro function",
    "subscribe unsubscribe psubscribe punsubscribe ssubscribe sunsubscribe publish spublish pubsub",
    "sort sort_ro",
    "acl cluster debug latency monitor role slowlog",
    "asking bgrewriteaof bgsave failover lastsave module move psync readonly readwrite replconf",
    "replicaof save slaveof swapdb sync",
];

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
pub(crate) struct Draw {
    state: u64,
    /// Spans differ by ten seconds at least, so that which of two is later doesn't depend on when
    /// each command ran.
    spans: u64,
    keys: &'static [&'static str],
}

impl Draw {
    pub(crate) fn new(seed: u64, keys: &'static [&'static str]) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, spans: 0, keys }
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        // xorshift64*: enough to spread commands.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    pub(crate) fn pick<'a>(&mut self, pool: &[&'a str]) -> &'a str {
        pool[self.below(pool.len() as u64) as usize]
    }

    pub(crate) fn command(&mut self, pool: &[&str]) -> Words {
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
            "{hash}" => self.key_of("h1", "h2"),
            "{set}" => self.key_of("s1", "s2"),
            "{list}" => self.key_of("l1", "l2"),
            "{zset}" => self.key_of("z1", "z2"),
            "{score}" => self.pick(&["1", "2", "2", "-1.5", "inf", "-inf", "(1", "x"]).into(),
            "{e}" => self.pick(&["a", "b", "c", "d", "", "7", "-1", "a\0b"]).into(),
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

    /// Mostly one of these keys, which so mostly hold one type; the one key where there is only one.
    fn key_of(&mut self, one: &'static str, other: &'static str) -> Vec<u8> {
        if self.keys.len() == 1 || self.below(8) == 0 {
            return self.pick(self.keys).into();
        }
        self.pick(&[one, other]).into()
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
        // WITHSCORE came later.
        (b"ZRANK" | b"ZREVRANK", 4..) => false,
        // Which member.
        (b"SPOP" | b"SRANDMEMBER" | b"HRANDFIELD", 2) => words[1] == b"absent",
        (b"SPOP" | b"SRANDMEMBER" | b"HRANDFIELD", 3) => {
            let is_number = String::from_utf8_lossy(&words[2]).parse::<i64>().is_ok();
            !is_number || ["0", "1000"].iter().any(|all| all.as_bytes() == words[2])
        }
        // Whose number it is, if anybody's.
        (b"CLIENT", 4..) => !words[2].eq_ignore_ascii_case(b"ID"),
        (b"WAIT", 3) => words[2].first().is_none_or(|byte| !byte.is_ascii_digit()),
        _ => true,
    }
}

/// Whether a command answers with members in an order of its server's own.
pub(crate) fn is_unordered(name: &[u8]) -> bool {
    let names = [
        "HGETALL", "HKEYS", "HVALS", "HSCAN", "SMEMBERS", "SPOP", "SSCAN", "SINTER", "SUNION",
        "SDIFF",
    ];
    names.iter().any(|unordered| unordered.as_bytes() == name)
}

/// Commands of one connection. In a transaction or while a key is watched it stays in one keyspace
/// and doesn't flush, which is refused here. Without transactions it stays on one key as well.
pub(crate) fn session(draw: &mut Draw, transactional: bool, length: usize) -> Vec<Words> {
    let (mut queues, mut watches) = (false, false);
    let mut script = Vec::new();
    while script.len() < length {
        let pool = match (draw.below(8), transactional) {
            (0, false) | (1, _) => SESSION,
            (0, true) => WIDE_SESSION,
            (2 | 3, true) => WIDE,
            (4, true) => WIDE_COLLECTIONS,
            (5 | 6, _) => COLLECTIONS,
            _ => COMMANDS,
        };
        let words = draw.command(pool);
        let name = words[0].to_ascii_uppercase();
        let refused = match name.as_slice() {
            b"SELECT" | b"FLUSHALL" | b"FLUSHDB" => queues || watches,
            // In Redis 7.0 a watch overlooks what changes a group only.
            b"XGROUP" | b"XREADGROUP" | b"XACK" | b"XCLAIM" | b"XAUTOCLAIM" | b"XSETID" => {
                watches || !transactional && is_wide(&words)
            }
            // Compared elsewhere.
            b"OBJECT" if queues => true,
            name if queues && is_unordered(name) => true,
            // What counts or lists keys runs after the commands on keys.
            b"DBSIZE" | b"KEYS" | b"SCAN" | b"RANDOMKEY" => queues,
            _ => !transactional && is_wide(&words),
        };
        if refused {
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

/// Whether a command touches another key than the one that sessions without transactions have.
fn is_wide(words: &[Vec<u8>]) -> bool {
    let call = OwnedCall::new(words.iter().map(Vec::as_slice));
    call.is_ok_and(|call| call.call().keys().any(|key| key != b"one"))
}
