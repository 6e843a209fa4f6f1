//! What the tests of import, export, backup and restore share: a directory, the program run to its end, data
//! of all types and what a database holds of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::redis::Raw;

/// A directory of a test, gone with this value.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let name = format!("quorate-moving-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn ask(client: &mut Raw, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let reply = client.ask(&words).unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

/// Sends a command that must not fail.
pub(crate) fn call(client: &mut Raw, line: &str) -> String {
    let reply = ask(client, line);
    assert!(!reply.starts_with('-'), "{}: {reply}", line.chars().take(100).collect::<String>());
    reply
}

pub(crate) fn quorate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quorate")).args(args).output().unwrap()
}

/// Runs the program, which must succeed, and gives what it printed.
pub(crate) fn run(args: &[&str]) -> String {
    let output = quorate(args);
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out.into_owned()
}

/// Runs the program, which must fail, and gives all it printed.
pub(crate) fn fail(args: &[&str]) -> String {
    let output = quorate(args);
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!(output.status.code(), Some(1), "{args:?}: {out}{err}");
    format!("{out}{err}")
}

pub(crate) fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Every type and form, small and large.
pub(crate) fn fill(client: &mut Raw) {
    call(client, "FLUSHALL");
    let numbered = |count: usize, item: &dyn Fn(usize) -> String| -> String {
        (0..count).map(|number| format!(" {}", item(number))).collect()
    };
    for line in [
        "SET text hello",
        "SET int:8 -7",
        "SET int:16 1234",
        "SET int:32 -1234567",
        "SET int:64 12345678901",
        "SET float 3.25",
        "SET until:s later EXAT 4000000000",
        "SET until:ms later PXAT 4000000000123",
        "RPUSH list a 2 c -9000000000 70000",
        "SADD set:ints 1 2 300 -70000",
        "SADD set:wide 1 9000000000",
        "SADD set:text 1 two",
        "HSET hash a 1 b two",
        "ZADD zset 1 a 2.5 b -inf c inf d 1e300 e -0.1 f",
        "PFADD hll a b c d e",
        "SETBIT bits 1000 1",
        "XGROUP CREATE stream:empty waiting $ MKSTREAM",
        "XADD stream:gone 5-1 a b",
        "XDEL stream:gone 5-1",
        "PEXPIREAT hash 4000000000456",
    ] {
        call(client, line);
    }
    call(client, &format!("SET long {}", "abcdefg".repeat(20_000)));
    client.ask(&[&b"SET"[..], b"bytes \x00\xff\r\n", &(0..=255).collect::<Vec<u8>>()]).unwrap();
    let item = |number: usize| format!("item:{number}:{}", "x".repeat(number % 90));
    call(client, &format!("RPUSH list:many{}", numbered(3000, &item)));
    call(client, &format!("SADD set:many{}", numbered(2000, &item)));
    call(
        client,
        &format!("SADD set:numbers{}", numbered(900, &|number| format!("{}", number * 7))),
    );
    let pair = |number: usize| format!("field:{number} {}", item(number));
    call(client, &format!("HSET hash:many{}", numbered(2000, &pair)));
    call(
        client,
        &format!("HSET hash:few{}", numbered(100, &|number| format!("f{number} {number}"))),
    );
    let scored = |number: usize| format!("{} {}", number as f64 / 8.0, item(number));
    call(client, &format!("ZADD zset:many{}", numbered(1500, &scored)));
    call(
        client,
        &format!("ZADD zset:few{}", numbered(90, &|number| format!("{number} m{number}"))),
    );
    call(client, &format!("RPUSH list:long {} short {}", "l".repeat(90_000), "m".repeat(9000)));
    for number in 1..=400 {
        let more = if number % 3 == 0 { " third x" } else { "" };
        call(
            client,
            &format!("XADD stream {}-{number} name n{number} age {number}{more}", number / 7),
        );
    }
    for line in [
        "XDEL stream 0-3 20-140 57-399",
        "XGROUP CREATE stream readers 0",
        "XREADGROUP GROUP readers one COUNT 90 STREAMS stream >",
        "XREADGROUP GROUP readers two COUNT 40 STREAMS stream >",
        "XACK stream readers 0-1 1-8",
        "XCLAIM stream readers two 0 2-15 TIME 1700000000000 RETRYCOUNT 5 JUSTID",
        "XGROUP CREATE stream others 10-70",
        "XGROUP CREATECONSUMER stream others idle",
    ] {
        call(client, line);
    }
    call(client, "SELECT 3");
    call(client, "SET other:database 1");
    call(client, "SELECT 0");
}

/// What a database holds: of each key its type, its content in an order of its own, its expiry.
pub(crate) fn content(port: u16, database: u32) -> BTreeMap<Vec<u8>, String> {
    let mut client = Raw::new(port);
    call(&mut client, &format!("SELECT {database}"));
    let keys = elements(&client.ask(&["KEYS", "*"]).unwrap());
    keys.into_iter()
        .map(|key| {
            let shown = show(&mut client, &key);
            (key, shown)
        })
        .collect()
}

pub(crate) fn show(client: &mut Raw, key: &[u8]) -> String {
    let mut ask = |words: &[&[u8]]| client.ask(words).unwrap();
    let kind = String::from_utf8(ask(&[b"TYPE", key])).unwrap();
    let (reply, width) = match kind.trim() {
        "+string" => (ask(&[b"GET", key]), 1),
        "+list" => (ask(&[b"LRANGE", key, b"0", b"-1"]), usize::MAX),
        "+set" => (ask(&[b"SMEMBERS", key]), 1),
        "+hash" => (ask(&[b"HGETALL", key]), 2),
        "+zset" => (ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]), usize::MAX),
        "+stream" => (ask(&[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"]), 0),
        other => panic!("{other} is no type"),
    };
    let expiry = String::from_utf8(ask(&[b"PEXPIRETIME", key])).unwrap();
    let content = match width {
        // How it lies in memory, and when consumers were seen, is not kept.
        0 => {
            let text = String::from_utf8(reply).unwrap();
            let mut lines = text.split("\r\n");
            let mut kept = Vec::new();
            while let Some(line) = lines.next() {
                kept.push(line);
                if line.starts_with("radix-tree") || line == "seen-time" {
                    lines.next();
                }
            }
            kept.join(" ")
        }
        1 if kind.starts_with("+string") => reply.escape_ascii().to_string(),
        width => {
            let parts = elements(&reply);
            let width = width.min(parts.len().max(1));
            let mut parts: Vec<_> = parts.chunks(width).map(|part| format!("{part:?}")).collect();
            parts.sort();
            parts.join(" ")
        }
    };
    format!("{kind} {content} {expiry}")
}

/// The strings of an array.
pub(crate) fn elements(reply: &[u8]) -> Vec<Vec<u8>> {
    let line =
        |from: usize| from + reply[from..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let (mut at, mut found) = (line(0), Vec::new());
    while at < reply.len() {
        let begin = line(at);
        let length =
            std::str::from_utf8(&reply[at + 1..begin - 2]).unwrap().parse::<usize>().unwrap();
        found.push(reply[begin..begin + length].to_vec());
        at = begin + length + 2;
    }
    found
}

pub(crate) fn assert_same(
    one: &BTreeMap<Vec<u8>, String>,
    other: &BTreeMap<Vec<u8>, String>,
    what: &str,
) {
    assert_eq!(one.len(), other.len(), "{what}: keys");
    for (key, content) in one {
        let found = other.get(key).map_or("nothing", |found| found);
        let cut = |text: &str| text.chars().take(2000).collect::<String>();
        assert!(
            found == content,
            "{what}: {}: {}, not {}",
            key.escape_ascii(),
            cut(found),
            cut(content)
        );
    }
}
