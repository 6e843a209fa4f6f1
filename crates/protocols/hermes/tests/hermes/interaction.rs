//! Interaction files: commands, each followed by what it caused. `tests/interaction/*.txt`;
//! `UPDATE_EXPECT=1` writes the traces anew, to be reviewed as a diff.
//!
//! | command | |
//! | --- | --- |
//! | `nodes 3 [acks-to-all] [quorum-reads]` | begins anew, with nodes 1 to 3 active in epoch 1 |
//! | `write 1 k=a`, `append 1 k=a`, `incr 1 k`, `del 1 k`, `get 1 k` | a client asks node 1 |
//! | `deliver 1->2 inv` | the oldest such message; `*` is any node, `any` any kind, `all` everything |
//! | `drop 1->2 inv`, `dup 1->2 inv` | loses all such messages; delivers the oldest and keeps it |
//! | `crash 2`, `start 2` | ends a process; starts a new one with the same id |
//! | `view 1,3 down 2 shadow 4 [to 1,3]` | the next view, told to the nodes named, or to all |
//! | `tick 30ms` | time passes |
//! | `show k` | the key at every node that is up |

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use quorate_hermes::Reads;
use quorate_types::{Duration, Role};

use crate::op::{append, del, get, incr, set};
use crate::support::{Cluster, describe_outcome, short};

struct Script {
    cluster: Cluster,
    out: String,
}

impl Script {
    fn run(text: &str) -> String {
        let mut script = Self { cluster: Cluster::new(3), out: String::new() };
        for line in text.lines() {
            // What was expected last time is written anew.
            if line.starts_with("  ") {
                continue;
            }
            writeln!(script.out, "{}", line.trim_end()).expect("to a string");
            if !line.is_empty() && !line.starts_with('#') {
                script.command(line);
                script.trace();
            }
        }
        script.out
    }

    fn say(&mut self, line: &str) {
        writeln!(self.out, "  {line}").expect("to a string");
    }

    /// What the last command caused.
    fn trace(&mut self) {
        for packet in std::mem::take(&mut self.cluster.fresh_packets) {
            self.say(&format!("{packet:?}"));
        }
        for (tag, outcome) in std::mem::take(&mut self.cluster.fresh_outcomes) {
            self.say(&format!("op {tag}: {}", describe_outcome(&outcome)));
        }
        for (reason, count) in std::mem::take(&mut self.cluster.ignored) {
            self.say(&format!("ignored {count}: {reason}"));
        }
    }

    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let node = |at: usize| -> u16 { words[at].parse().expect("a node") };
        let pair = |at: usize| words[at].split_once('=').expect("key=value");
        match words[0] {
            "nodes" => self.begin(&words),
            "write" => self.ask(node(1), set(pair(2).0, pair(2).1)),
            "append" => self.ask(node(1), append(pair(2).0, pair(2).1)),
            "incr" => self.ask(node(1), incr(words[2])),
            "del" => self.ask(node(1), del(words[2])),
            "get" => self.ask(node(1), get(words[2])),
            "deliver" if words[1] == "all" => self.cluster.deliver_all(),
            "deliver" => {
                let (from, to) = ends(words[1]);
                self.cluster.deliver(from, to, words[2]);
            }
            "drop" => {
                let (from, to) = ends(words[1]);
                let count = self.cluster.take(from, to, words[2]).len();
                assert!(count > 0, "nothing to drop: {line}");
            }
            "dup" => {
                let (from, to) = ends(words[1]);
                let packet =
                    self.cluster.pool.iter().find(|packet| packet.is(from, to, words[2])).cloned();
                self.cluster.inject(&packet.expect("a message to repeat"));
            }
            "crash" => self.cluster.crash(node(1)),
            "start" => self.cluster.start(node(1), u64::from(node(1)) * 7919),
            "view" => self.view(&words),
            "tick" => {
                let millis = words[1].strip_suffix("ms").expect("milliseconds");
                self.cluster.tick(Duration::from_millis(millis.parse().expect("a number")));
            }
            "show" => self.show(words[1]),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn begin(&mut self, words: &[&str]) {
        let count = words[1].parse().expect("a number");
        self.cluster = match words.get(2) {
            None => Cluster::new(count),
            Some(&"acks-to-all") => Cluster::with(count, |config| config.ack_broadcast = true),
            Some(&"quorum-reads") => Cluster::with(count, |config| config.reads = Reads::Quorum),
            Some(other) => panic!("unknown option {other:?}"),
        };
    }

    fn ask(&mut self, node: u16, op: crate::op::Op) {
        let tag = self.cluster.submit(node, op);
        if self.cluster.outcome(tag).is_none() {
            self.say(&format!("op {tag} is pending"));
        }
    }

    fn view(&mut self, words: &[&str]) {
        let mut roles = Vec::new();
        let mut told: Option<Vec<u16>> = None;
        let mut role = Some(Role::Active);
        for word in &words[1..] {
            match *word {
                "down" => role = Some(Role::Down),
                "shadow" => role = Some(Role::Shadow),
                "to" => role = None,
                list => {
                    let nodes = list.split(',').map(|node| node.parse().expect("a node"));
                    match role {
                        Some(role) => roles.extend(nodes.map(|node: u16| (node, role))),
                        None => told = Some(nodes.collect()),
                    }
                }
            }
        }
        roles.sort_unstable_by_key(|(node, _)| *node);
        let view = self.cluster.decide(&roles);
        let told = told.unwrap_or_else(|| roles.iter().map(|(node, _)| *node).collect());
        for node in told {
            self.cluster.install_on(node, &view);
        }
    }

    fn show(&mut self, key: &str) {
        let nodes: Vec<u16> = self.cluster.hosts.keys().copied().collect();
        for node in nodes {
            if !self.cluster.hosts[&node].up {
                continue;
            }
            let meta = self.cluster.meta(node, key);
            let value = self.cluster.stored(node, key);
            let value = value.map_or("absent".to_owned(), |value| format!("{value:?}"));
            let line = format!("{node}: {:?} {} {value}", meta.state, short(meta.timestamp));
            self.say(&line);
        }
    }
}

/// `1->2`; `*` is 0, which stands for any node.
fn ends(text: &str) -> (u16, u16) {
    let (from, to) = text.split_once("->").expect("from->to");
    let node = |text: &str| if text == "*" { 0 } else { text.parse().expect("a node") };
    (node(from), node(to))
}

#[test]
fn traces_are_as_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interaction");
    let mut paths: Vec<_> = fs::read_dir(&directory)
        .expect("the directory is there")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut different = Vec::new();
    for path in paths {
        let expected = fs::read_to_string(&path).expect("it can be read");
        let found = Script::run(&expected);
        if found == expected {
            continue;
        }
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &found).expect("it can be written");
        } else {
            different.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(different.is_empty(), "UPDATE_EXPECT=1 writes these anew:\n{}", different.join("\n"));
}
