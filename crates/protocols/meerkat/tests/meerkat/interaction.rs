//! Interaction files: commands, each followed by what it caused. `tests/interaction/*.txt`;
//! `QUORATE_BLESS=1` writes the traces anew, to be reviewed as a diff.
//!
//! | command | |
//! | --- | --- |
//! | `nodes 3 [serializable]` | begins anew, with nodes 1 to 3 active in epoch 1 |
//! | `begin 1 t1 read=a write=b:5` | a client asks node 1; `t1` names the transaction |
//! | `deliver 1->2 [kind]` | the oldest such message; `*` is any node; `deliver all` everything |
//! | `drop 1->2 [kind]`, `dup 1->2 [kind]` | loses all such messages; delivers the oldest and keeps it |
//! | `crash 2`, `start 2` | ends a process; starts a new one with the same id |
//! | `view 1,3 down 2 shadow 4 [to 1,3]` | the next view, told to the nodes named, or to all |
//! | `tick 25ms` | time passes |
//! | `run 300ms` | time passes and everything is delivered, without a trace |
//! | `show k` | the key at every node that is up |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use quorate_types::{Duration, Role};

use crate::support::{Cluster, serializable};
use crate::words::describe_outcome;

struct Script {
    cluster: Cluster,
    /// What the transactions are called.
    names: BTreeMap<u64, String>,
    out: String,
}

impl Script {
    fn run(text: &str) -> String {
        let mut script =
            Self { cluster: Cluster::new(3), names: BTreeMap::new(), out: String::new() };
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
            // Watermarks come with every pause and change nothing that a trace is about.
            if packet.kind() != "stable" {
                let line = self.cluster.describe(&packet);
                self.say(&line);
            }
        }
        for (tag, outcome) in std::mem::take(&mut self.cluster.fresh_outcomes) {
            let line = format!("{}: {}", self.names[&tag], describe_outcome(&outcome));
            self.say(&line);
        }
        for (reason, count) in std::mem::take(&mut self.cluster.ignored) {
            self.say(&format!("ignored {count}: {reason}"));
        }
    }

    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let node = |at: usize| -> u16 { words[at].parse().expect("a node") };
        let kind = words.get(2).copied().unwrap_or("any");
        match words[0] {
            "nodes" => {
                let count = words[1].parse().expect("a number");
                self.cluster = match words.get(2) {
                    None => Cluster::new(count),
                    Some(&"serializable") => Cluster::with(count, serializable),
                    Some(other) => panic!("unknown option {other:?}"),
                };
            }
            "begin" => {
                let tag = self.cluster.submit(node(1), &words[3..].join(" "));
                self.names.insert(tag, words[2].to_owned());
            }
            "deliver" if words[1] == "all" => self.cluster.deliver_all(),
            "deliver" => {
                let (from, to) = ends(words[1]);
                self.cluster.deliver(from, to, kind);
            }
            "drop" => {
                let (from, to) = ends(words[1]);
                let count = self.cluster.take(from, to, kind).len();
                assert!(count > 0, "nothing to drop: {line}");
            }
            "dup" => {
                let (from, to) = ends(words[1]);
                let mut pool = self.cluster.pool.iter();
                let packet = pool.find(|packet| packet.is(from, to, kind)).cloned();
                self.cluster.inject(&packet.expect("a message to repeat"));
            }
            "crash" => self.cluster.crash(node(1)),
            "start" => self.cluster.start(node(1), u64::from(node(1)) * 7919, 0),
            "view" => self.view(&words),
            "tick" => self.cluster.tick(millis(words[1])),
            "run" => {
                self.cluster.run_for(millis(words[1]));
                self.cluster.fresh_packets.clear();
                self.cluster.ignored.clear();
            }
            "show" => self.show(words[1]),
            other => panic!("unknown command {other:?}"),
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
            let value = value.unwrap_or("(absent)".to_owned());
            let (wts, rts) = (self.cluster.name(meta.wts), self.cluster.name(meta.rts));
            let mut line = format!("{node}: {value} of {wts}, read by {rts}");
            for known in self.cluster.pending(node, key).iter() {
                let verb = match (known.base, known.writes) {
                    (Some(_), true) => "updates",
                    (None, true) => "writes",
                    _ => "reads",
                };
                write!(line, ", {} {verb}", self.cluster.name(known.id)).expect("to a string");
            }
            self.say(&line);
        }
    }
}

fn millis(text: &str) -> Duration {
    let millis = text.strip_suffix("ms").expect("milliseconds");
    Duration::from_millis(millis.parse().expect("a number"))
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
        if env::var_os("QUORATE_BLESS").is_some() {
            fs::write(&path, &found).expect("it can be written");
        } else {
            different.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(different.is_empty(), "QUORATE_BLESS=1 writes these anew:\n{}", different.join("\n"));
}
