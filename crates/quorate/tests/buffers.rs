//! Clients that make a node hold much: a node whose address space is bounded lives, says which limit
//! was reached, and serves the others.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use quorate_types::limits::{REPLY_BYTES_MAX, VALUE_BYTES_MAX};
use support::redis::{Raw, encode};
use support::{Client, Cluster, Process, Reply, keyspace};

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
