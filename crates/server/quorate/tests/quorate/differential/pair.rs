//! Redis and a cluster side by side, and when two replies count as the same.

use std::io;
use std::time::Instant;

use quorate_types::limits;

use super::draw::is_unordered;
use crate::support::dev::Dev;
use crate::support::redis::{Raw, Redis, Words};
use crate::support::{PATIENCE, poll_until};

/// Redis and a cluster side by side.
pub(crate) struct Both {
    pub(crate) redis: Redis,
    pub(crate) cluster: Dev,
    /// Whether what another node's client did may reach a node's memory after the answer.
    eventual: bool,
}

/// Why a script has to begin again: a crowded machine can take a whole cluster off the processor
/// for longer than its lease, and what is not sure is then not answered.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl From<io::Error> for Interrupted {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl Both {
    pub(crate) fn start(engine: &str, more: &[&str]) -> Self {
        let largest = limits::VALUE_BYTES_MAX.to_string();
        let redis = Redis::start(&["--proto-max-bulk-len", &largest]);
        let options = [&["--engine", engine], more].concat();
        Self { redis, cluster: Dev::start(&options), eventual: engine == "meerkat" }
    }

    /// Runs a script on empty stores, again if it was interrupted. The script says what differs.
    pub(crate) fn compare(&self, mut script: impl FnMut(&mut Pair) -> Result<(), Interrupted>) {
        for _ in 0..20 {
            let mut pair = Pair {
                redis: self.cluster.clients.iter().map(|_| Raw::new(self.redis.port)).collect(),
                nodes: self.cluster.clients.iter().map(|&port| Raw::new(port)).collect(),
                trail: Vec::new(),
                eventual: self.eventual,
            };
            let done = pair.ask(0, &[b"FLUSHALL".to_vec()]).and_then(|()| script(&mut pair));
            if done.is_ok() {
                return;
            }
        }
        panic!("the cluster was interrupted each time");
    }
}

/// Connections to both: one to each node, and as many to Redis.
pub(crate) struct Pair {
    pub(crate) redis: Vec<Raw>,
    pub(crate) nodes: Vec<Raw>,
    pub(crate) trail: Vec<String>,
    eventual: bool,
}

impl Pair {
    /// A command to the cluster, through one node, and over the connection that belongs to it to
    /// Redis.
    pub(crate) fn ask(&mut self, node: usize, words: &[Vec<u8>]) -> Result<(), Interrupted> {
        let theirs = self.redis[node].ask(words)?;
        let mut ours = self.nodes[node].ask(words)?;
        self.trail.push(format!("{}: {}", node + 1, show(words)));
        if self.eventual && !agree(words, &ours, &theirs) && looks_at_all_keys(words) {
            // Answered from the node's own memory, which another node's transaction reaches soon
            // after its client has the answer.
            ours = poll_until(Instant::now() + PATIENCE, &show(words), || {
                let again = self.nodes[node].ask(words);
                again.map(|ours| agree(words, &ours, &theirs).then_some(ours)).transpose()
            })?;
        }
        self.judge(words, &ours, &theirs)
    }

    pub(crate) fn say(&mut self, node: usize, command: &str) -> Result<(), Interrupted> {
        let words: Words = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        self.ask(node, &words)
    }

    pub(crate) fn judge(
        &self,
        words: &[Vec<u8>],
        ours: &[u8],
        theirs: &[u8],
    ) -> Result<(), Interrupted> {
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

pub(crate) fn show(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| format!("'{}' ", word.escape_ascii())).collect()
}

/// Whether two replies are the same, as far as Redis is deterministic.
fn agree(words: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> bool {
    let (ours, theirs) = (&without_id(ours)[..], &without_id(theirs)[..]);
    if ours == theirs {
        return true;
    }
    let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    if theirs.starts_with(b"-ERR Protocol error: invalid bulk length") {
        // Here it goes on with the limit.
        return ours.starts_with(theirs.trim_ascii_end());
    }
    if theirs.starts_with(b"-") {
        // Errors quote what was sent. They are text here, so bytes that are not UTF-8 are replaced.
        return String::from_utf8_lossy(ours) == String::from_utf8_lossy(theirs);
    }
    match name.as_slice() {
        // In Redis it depends on what made the value; here on the bytes alone.
        b"OBJECT" => is_encoding(ours) && is_encoding(theirs),
        // The clock moves between the two.
        b"TTL" | b"EXPIRETIME" => close(ours, theirs, 5),
        b"PTTL" | b"PEXPIRETIME" => close(ours, theirs, 5_000),
        // The order is that of the hash table, and so is the choice.
        name if name == b"KEYS" || is_unordered(name) => {
            elements(ours) == elements(theirs) && header(ours) == header(theirs)
        }
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

/// What a reply is and how many it has.
fn header(reply: &[u8]) -> Option<&[u8]> {
    reply.split(|&byte| byte == b'\n').next()
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

/// Whether a command answers something about every key.
fn looks_at_all_keys(words: &[Vec<u8>]) -> bool {
    let all: [&[u8]; 4] = [b"DBSIZE", b"KEYS", b"SCAN", b"RANDOMKEY"];
    all.iter().any(|name| words[0].eq_ignore_ascii_case(name))
}
