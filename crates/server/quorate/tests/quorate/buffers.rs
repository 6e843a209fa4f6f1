//! Clients that make a node hold much: a node whose address space is bounded lives, says which limit
//! was reached, and serves the others.

use crate::support::redis::{Raw, encode};
use crate::support::{Client, Cluster, Process, Reply, keyspace};
use quorate_types::limits::{REPLY_BYTES_MAX, VALUE_BYTES_MAX};

/// The address space of a node: what its threads and its allocator reserve is a third of it.
const SPACE_KIB: u64 = 1 << 20;

/// A node of its own in a bounded address space, with a keyspace of each engine.
struct Bounded {
    process: Process,
    cluster: Cluster,
}

impl Bounded {
    fn start(name: &str) -> Self {
        let second = "[[keyspace]]\ndb = 1\nname = \"transactions\"\nengine = \"meerkat\"\n";
        let keyspaces = keyspace("hermes", second);
        let cluster = Cluster::write(name, 1, "lanes = 2", &keyspaces);
        let file = cluster.file.to_str().expect("the path is text");
        let process = Process::start_within(
            &format!("-v {SPACE_KIB}"),
            &["serve", "--config", file, "--node", "1"],
        );
        process.line(|line| line.starts_with("ready"));
        Self { process, cluster }
    }

    fn client(&self) -> Client {
        Client::new(self.cluster.clients[0])
    }

    fn raw(&self) -> Raw {
        Raw::new(self.cluster.clients[0])
    }
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

#[test]
fn what_exec_would_answer_is_bounded() {
    let mut node = Bounded::start("buffers-exec");
    let value = "v".repeat(VALUE_BYTES_MAX);
    for database in ["0", "1"] {
        let mut client = node.client();
        assert_eq!(client.call(&["SELECT", database]), ok());
        assert_eq!(client.call(&["SET", "k", &value]), ok());
        // Many times the same key, in several commands and in one.
        for command in [&["GET", "k"][..], &["MGET", "k", "k", "k"]] {
            let mut block = encode(&["MULTI"]);
            block.extend(encode(&["APPEND", "other", "x"]).repeat(usize::from(database == "1")));
            block.extend(encode(command).repeat(288));
            block.extend(encode(&["EXEC"]));
            let mut raw = node.raw();
            raw.ask(&["SELECT", database]).unwrap();
            raw.send_behind(block);
            let answer = loop {
                let answer = raw.receive().unwrap();
                if answer != b"+OK\r\n" && answer != b"+QUEUED\r\n" {
                    break String::from_utf8(answer).unwrap();
                }
            };
            assert!(answer.starts_with("-EXECABORT "), "{answer}");
            assert!(answer.contains(&REPLY_BYTES_MAX.to_string()), "{answer}");
        }
        let many = [&["MGET"][..], &["k"; 288]].concat();
        let Reply::Error(text) = client.call(&many) else { panic!("it was answered") };
        assert!(text.contains(&REPLY_BYTES_MAX.to_string()), "{text}");
        assert_eq!(client.call(&["EXISTS", "other"]), Reply::Int(0), "nothing of it happened");
        assert_eq!(client.call(&["STRLEN", "k"]), Reply::Int(VALUE_BYTES_MAX as i64));
    }
    assert!(node.process.is_running());
}

#[test]
fn what_many_keys_hold_together_is_bounded() {
    let mut node = Bounded::start("buffers-keys");
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let end = (VALUE_BYTES_MAX - 1).to_string();
    for database in ["0", "1"] {
        let mut client = node.client();
        assert_eq!(client.call(&["SELECT", database]), ok());
        for key in &keys {
            let length = Reply::Int(VALUE_BYTES_MAX as i64);
            assert_eq!(client.call(&["SETRANGE", key, &end, "x"]), length);
        }
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(String::as_str));
        let Reply::Error(text) = client.call(&words) else { panic!("it was answered") };
        assert!(text.contains("at most") || text.contains("the most"), "{text}");
        // Behind an update, whose effect it must see.
        let mut raw = node.raw();
        raw.ask(&["SELECT", database]).unwrap();
        let mut both = encode(&["APPEND", "other", "x"]);
        both.extend(encode(&words));
        raw.send(&both).unwrap();
        assert_eq!(raw.receive().unwrap(), b":1\r\n");
        assert!(raw.receive().unwrap().starts_with(b"-ERR "));
        for key in &keys {
            assert_eq!(client.call(&["DEL", key]), Reply::Int(1));
        }
    }
    assert!(node.process.is_running());
}

/// The value of a line of `INFO`.
fn info(client: &mut Client, name: &str) -> u64 {
    let Reply::Bulk(Some(text)) = client.call(&["INFO"]) else { panic!("INFO is text") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Bytes that one client of a test makes a node hold, nearly all that it may.
const PER_CLIENT: usize = 15_000_000;
/// More such clients than a node has room for.
const GREEDY: usize = 30;

/// Lets many clients hold as much as each may in one way: the node serves, knows what is held and
/// disconnects some of them.
fn survives(node: &mut Bounded, hold: impl Fn(&mut Raw)) {
    let mut client = node.client();
    let evicted = info(&mut client, "evicted_clients");
    let mut greedy = Vec::new();
    for number in 0..GREEDY {
        let mut one = node.raw();
        hold(&mut one);
        greedy.push(one);
        assert_eq!(client.call(&["SET", "small", &number.to_string()]), ok());
    }
    assert!(node.process.is_running());
    assert!(info(&mut client, "evicted_clients") > evicted);
    let limit = ["CONFIG", "GET", "maxmemory-clients"];
    let Reply::Array(pair) = client.call(&limit) else { panic!("no array") };
    let Reply::Bulk(Some(limit)) = &pair[1] else { panic!("no value") };
    let limit: u64 = std::str::from_utf8(limit).unwrap().parse().unwrap();
    assert!((1..SPACE_KIB * 1024 / 4).contains(&limit), "a part of the address space: {limit}");
    let held = || info(&mut node.client(), "mem_clients_normal");
    // A lane looks at the whole after its own part has grown a little.
    assert!(held() <= limit + limit / 16);
    // Some were spared, and what they held is free when they go.
    assert!(held() > PER_CLIENT as u64 / 4);
    drop(greedy);
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    crate::support::poll_until(deadline, "what they held is free", || {
        (held() < 1_000_000).then_some(())
    });
    assert_eq!(client.call(&["GET", "small"]), Reply::bulk(&(GREEDY - 1).to_string()));
    node.process.logged("reached maxmemory-clients");
}

#[test]
fn unfinished_commands_are_bounded_together() {
    let mut node = Bounded::start("buffers-query");
    let argument = "x".repeat(VALUE_BYTES_MAX - 1000);
    let mut command = encode(&["DEL", &argument, &argument, &argument, &argument]);
    command.truncate(PER_CLIENT);
    // Who is disconnected can't send the rest.
    survives(&mut node, |client| drop(client.send(&command)));
}

#[test]
fn queues_of_multi_are_bounded_together() {
    let mut node = Bounded::start("buffers-queue");
    let part = "x".repeat(PER_CLIENT / 15);
    let mut block = encode(&["MULTI"]);
    block.extend(encode(&["SET", "k", &part]).repeat(14));
    survives(&mut node, |client| drop(client.send(&block)));
}

#[test]
fn unread_replies_are_bounded_together() {
    let mut node = Bounded::start("buffers-replies");
    let value = "v".repeat(VALUE_BYTES_MAX);
    assert_eq!(node.client().call(&["SET", "k", &value]), ok());
    let mut block = encode(&["MULTI"]);
    block.extend(encode(&["GET", "k"]).repeat(3));
    block.extend(encode(&["EXEC"]));
    survives(&mut node, |client| drop(client.send(&block)));
}
