//! The same commands to a real redis-server and to a cluster: the same bytes must come back,
//! whichever node each command goes through.
//!
//! Needs redis-server 7.0, which `tools/setup` installs.

mod collections;
mod draw;
mod pair;
use std::io;

use crate::support::redis::{Raw, Words, encode};
use collections::{COLLECTIONS, WIDE_COLLECTIONS};
use draw::{COMMANDS, Draw, ELSEWHERE, SESSION, WIDE, session};
use pair::{Both, Interrupted, Pair, show};
use quorate_commands::{OwnedCall, Split, table};

/// Every engine that a keyspace may have, and whether it runs transactions over several keys.
const ENGINES: [(&str, bool); 3] = [("hermes", false), ("meerkat", true), ("zeus", true)];

#[test]
fn random_commands_through_any_node_are_answered_as_by_redis() {
    for (engine, transactional) in ENGINES {
        let both = Both::start(engine, &[]);
        for seed in 0..300 {
            both.compare(|pair| {
                let mut draw = Draw::new(seed, &["k1", "k2", "", "one"]);
                for _ in 0..100 {
                    let pool = match draw.below(6) {
                        0 if transactional => WIDE,
                        1 if transactional => WIDE_COLLECTIONS,
                        0..3 => COLLECTIONS,
                        _ => COMMANDS,
                    };
                    let words = draw.command(pool);
                    // A word that was added may be another key.
                    if !transactional && crosses(&words) {
                        continue;
                    }
                    pair.ask(draw.below(3) as usize, &words)?;
                }
                Ok(())
            });
        }
    }
}

/// Whether a command has several keys and doesn't come apart.
fn crosses(words: &Words) -> bool {
    let call = OwnedCall::new(words.iter().map(Vec::as_slice));
    call.is_ok_and(|call| {
        let call = call.call();
        call.spec.split == Split::None && call.single_key().is_err()
    })
}

#[test]
fn transactions_of_two_clients_on_several_keys_are_those_of_redis() {
    for (engine, lanes) in [("meerkat", "1"), ("meerkat", "2"), ("zeus", "1"), ("zeus", "2")] {
        let both = Both::start(engine, &["--lanes", lanes]);
        for seed in 0..60 {
            both.compare(|pair| {
                let mut draw = Draw::new(3000 + seed, &["k1", "k2", "one", ""]);
                let first = seed as usize % 3;
                // Each has blocks and watches of its own; commands of the one fall anywhere into
                // those of the other.
                let mut scripts: Vec<_> = [first, (first + 1) % 3]
                    .map(|node| (node, session(&mut draw, true, 120).into_iter()))
                    .into();
                while !scripts.is_empty() {
                    let chosen = draw.below(scripts.len() as u64) as usize;
                    let (node, script) = &mut scripts[chosen];
                    match script.next() {
                        Some(words) => pair.ask(*node, &words)?,
                        None => drop(scripts.remove(chosen)),
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn pipelined_sessions_are_answered_as_by_redis() {
    for (engine, transactional) in ENGINES {
        for lanes in ["1", "2"] {
            let both = Both::start(engine, &["--lanes", lanes]);
            for seed in 0..150 {
                both.compare(|pair| {
                    let keys: &[&str] = if transactional { &["one", "two", ""] } else { &["one"] };
                    let mut draw = Draw::new(1000 + seed, keys);
                    let script = session(&mut draw, transactional, 400);
                    pipeline(pair, seed as usize % 3, &script)
                });
            }
        }
    }
}

/// Sends everything at once; compares the replies one by one.
fn pipeline(pair: &mut Pair, node: usize, script: &[Words]) -> Result<(), Interrupted> {
    let bytes: Vec<u8> = script.iter().flat_map(|words| encode(words)).collect();
    pair.nodes[node].send_behind(bytes.clone());
    pair.redis[node].send_behind(bytes);
    for words in script {
        let ours = pair.nodes[node].receive()?;
        let theirs = pair.redis[node].receive()?;
        pair.trail.push(show(words));
        pair.judge(words, &ours, &theirs)?;
    }
    Ok(())
}

#[test]
fn pipelined_commands_on_many_keys_keep_their_order_on_every_lane() {
    for (engine, transactional) in ENGINES {
        let both = Both::start(engine, &["--lanes", "2"]);
        both.compare(|pair| {
            let mut draw = Draw::new(7, &[]);
            let mut script = Vec::new();
            for n in 0..6000 {
                let [key, other] = [0; 2].map(|_| format!("key:{}", draw.below(200)));
                let value = n.to_string();
                let command: &[&str] = match draw.below(if transactional { 9 } else { 6 }) {
                    0 => &["SET", &key, &value],
                    1 | 2 => &["GET", &key],
                    3 => &["INCR", &key],
                    4 => &["APPEND", &key, "1"],
                    5 => &["GETDEL", &key],
                    6 => &["MSET", &key, &value, &other, "7"],
                    7 => &["COPY", &key, &other, "REPLACE"],
                    _ => &["MGET", &other, &key],
                };
                script.push(command.iter().map(|word| word.as_bytes().to_vec()).collect());
            }
            pipeline(pair, 1, &script)
        });
    }
}

/// What may happen to a watched key, or may not.
const CHANGES: &[&str] = &[
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
/// The same with several keys.
const WIDE_CHANGES: &[&str] = &[
    "MGET one two",
    "EXISTS one two",
    "MSET two 1 one 2",
    "MSET two 1 three 2",
    "MSETNX two 1 one 2",
    "MSETNX two 1 three 2",
    "DEL two one",
    "DEL two three",
    "RENAME one three",
    "RENAME two one",
    "RENAME two three",
    "RENAME one one",
    "RENAMENX one two",
    "RENAMENX two one",
    "RENAMENX two three",
    "COPY one three",
    "COPY two one",
    "COPY two one REPLACE",
    "COPY two three REPLACE",
];

#[test]
fn watched_keys_are_those_of_redis_whoever_changes_them() {
    let starts = ["DEL one", "SET one 5", "SET one 5 EX 6000", "SET one 9"];
    let block = ["INCR one", "GET one"];
    for (engine, _) in ENGINES {
        let both = Both::start(engine, &[]);
        for start in starts {
            watch(&both, CHANGES, &[start], "WATCH one", &block);
        }
    }
}

#[test]
fn watches_and_blocks_over_several_keys_are_those_of_redis() {
    for engine in ["meerkat", "zeus"] {
        watch_several(&Both::start(engine, &["--lanes", "2"]));
    }
}

fn watch_several(both: &Both) {
    let starts: [&[&str]; 4] = [
        &["SET other 1"],
        &["SET one 5", "SET other 1"],
        &["SET two 5 EX 6000"],
        &["MSET one 5 two 6 three 7"],
    ];
    let block = ["INCR one", "MSET two 1 four 2", "RENAME four one", "MGET one two three four"];
    for start in starts {
        for watched in ["WATCH one", "WATCH one two", "WATCH other four"] {
            let changes = [CHANGES, WIDE_CHANGES].concat();
            watch(both, &changes, start, watched, &block);
        }
    }
}

/// For each change: one client starts, another watches, the first makes the change, and the other
/// runs its block.
fn watch(both: &Both, changes: &[&str], start: &[&str], watched: &str, block: &[&str]) {
    for (number, change) in changes.iter().enumerate() {
        both.compare(|pair| {
            let (watcher, other) = (number % 3, (number + 1) % 3);
            start.iter().try_for_each(|command| pair.say(other, command))?;
            pair.say(watcher, watched)?;
            pair.say(other, change)?;
            pair.say(watcher, "MULTI")?;
            block.iter().try_for_each(|command| pair.say(watcher, command))?;
            pair.say(watcher, "EXEC")?;
            pair.say(other, "GET one")
        });
    }
}

#[test]
fn a_scan_finds_every_key_through_every_node_and_ends() {
    for (engine, _) in ENGINES {
        let both = Both::start(engine, &[]);
        both.compare(|pair| {
            for n in 0..700 {
                let line = match n % 7 {
                    0 => format!("RPUSH key:{n} {n}"),
                    1 => format!("HSET key:{n} f {n}"),
                    2 => format!("SADD key:{n} {n}"),
                    3 => format!("ZADD key:{n} {n} m"),
                    _ => format!("SET key:{n} {n}"),
                };
                pair.say(n % 3, &line)?;
            }
            // Until then a node may not know of the last ones.
            (0..3).try_for_each(|node| pair.say(node, "DBSIZE"))?;
            for options in [
                "",
                " COUNT 7",
                " MATCH key:1*",
                " COUNT 1000 TYPE string",
                " TYPE hash",
                " TYPE LIST COUNT 50",
                " TYPE set MATCH key:1*",
                " TYPE zset",
                " TYPE nosuch",
            ] {
                let theirs = scan(&mut pair.redis[0], options)?;
                for node in &mut pair.nodes {
                    assert_eq!(scan(node, options)?, theirs, "{options}");
                }
            }
            Ok(())
        });
    }
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
    for (engine, _) in ENGINES {
        let both = Both::start(engine, &[]);
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
}

#[test]
fn keys_past_their_time_are_gone_on_every_node() {
    for (engine, _) in ENGINES {
        let both = Both::start(engine, &[]);
        both.compare(|pair| {
            for n in 0..30 {
                pair.say(n % 3, &format!("SET k{n} v PX 40"))?;
            }
            let deadline = std::time::Instant::now() + crate::support::PATIENCE;
            crate::support::poll_until(deadline, "they expire", || {
                let gone =
                    |reply: io::Result<Vec<u8>>| reply.is_ok_and(|reply| reply == b"$-1\r\n");
                let both_gone = gone(pair.redis[0].ask(&["GET", "k29"]))
                    && gone(pair.nodes[0].ask(&["GET", "k29"]));
                both_gone.then_some(())
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
}

#[test]
fn every_command_is_compared() {
    let all: Vec<&str> = [COMMANDS, WIDE, SESSION, COLLECTIONS, WIDE_COLLECTIONS].concat();
    for spec in table() {
        let named = |line: &&str| {
            line.split(' ').next().is_some_and(|name| name.eq_ignore_ascii_case(spec.name))
        };
        let is_elsewhere =
            ELSEWHERE.iter().any(|names| names.split(' ').any(|name| name == spec.name));
        let is_here = all.iter().any(named) || is_elsewhere;
        assert!(is_here, "{} is not in the differential test", spec.name);
    }
}
