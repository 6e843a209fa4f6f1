//! The interaction language: files of commands, each followed by what it caused.
//!
//! | command | |
//! | --- | --- |
//! | `nodes 3 [options]` | begins anew, with nodes 1 to 3 active in epoch 1 |
//! | `deliver 1->2 [kind]` | the oldest such message; `*` is any node; `deliver all` everything |
//! | `drop 1->2 [kind]`, `dup 1->2 [kind]` | loses all such messages; delivers the oldest and keeps it |
//! | `crash 2`, `start 2` | ends a process; starts a new one with the same id |
//! | `view 1,3 down 2 shadow 4 [to 1,3]` | the next view, told to the nodes named, or to all |
//! | `tick 25ms` | time passes |
//! | `run 300ms` | time passes and everything is delivered, without a trace |
//! | `show k` | the key at every node that is up |
//!
//! A [`Dialect`] adds the commands with which clients ask. Lines that begin with `#` are comments.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use quorate_types::{Duration, Role};

use crate::cluster::Cluster;
use crate::packet::Packet;
use crate::subject::{OutcomeOf, Subject};

/// The variable that has the traces written anew.
const REWRITE: &str = "QUORATE_BLESS";

/// What a protocol adds to the language.
pub trait Dialect: Sized {
    /// The protocol.
    type Subject: Subject;

    /// Nodes 1 to `nodes`, all active in epoch 1.
    fn begin(nodes: u16, options: &[&str]) -> Self;

    /// The cluster that the commands are for.
    fn cluster(&mut self) -> &mut Cluster<Self::Subject>;

    /// A command of this protocol; a line that comes before its trace, if there is one to say.
    ///
    /// # Panics
    /// If there is no such command.
    fn command(&mut self, words: &[&str]) -> Option<String>;

    /// A message that was sent, unless it changes nothing that a trace is about.
    fn describe_packet(&self, packet: &Packet<Self::Subject>) -> Option<String> {
        Some(format!("{packet:?}"))
    }

    /// The answer to a request.
    fn describe_answer(&self, tag: u64, outcome: &OutcomeOf<Self::Subject>) -> String;

    /// A key at a node that is up.
    fn describe_key(&mut self, node: u16, key: &str) -> String;
}

/// Runs the files of a directory and compares their traces. `QUORATE_BLESS=1` writes the traces
/// anew, to be reviewed as a diff.
///
/// # Panics
/// If a trace is another one than is written.
pub fn check_traces<D: Dialect>(directory: &Path) {
    let mut paths: Vec<_> = fs::read_dir(directory)
        .expect("the directory is there")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut different = Vec::new();
    for path in paths {
        let expected = fs::read_to_string(&path).expect("it can be read");
        let found = Script::<D>::run(&expected);
        if found == expected {
            continue;
        }
        if env::var_os(REWRITE).is_some() {
            fs::write(&path, &found).expect("it can be written");
        } else {
            different.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(different.is_empty(), "{REWRITE}=1 writes these anew:\n{}", different.join("\n"));
}

struct Script<D> {
    dialect: D,
    out: String,
}

impl<D: Dialect> Script<D> {
    fn run(text: &str) -> String {
        let mut script = Self { dialect: D::begin(3, &[]), out: String::new() };
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
        let cluster = self.dialect.cluster();
        let packets = std::mem::take(&mut cluster.fresh_packets);
        let outcomes = std::mem::take(&mut cluster.fresh_outcomes);
        let ignored = std::mem::take(&mut cluster.ignored);
        for packet in packets {
            if let Some(line) = self.dialect.describe_packet(&packet) {
                self.say(&line);
            }
        }
        for (tag, outcome) in outcomes {
            let line = self.dialect.describe_answer(tag, &outcome);
            self.say(&line);
        }
        for (reason, count) in ignored {
            self.say(&format!("ignored {count}: {reason}"));
        }
    }

    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let node = || words[1].parse::<u16>().expect("a node");
        let kind = words.get(2).copied().unwrap_or("any");
        let cluster = self.dialect.cluster();
        match words[0] {
            "nodes" => self.dialect = D::begin(node(), &words[2..]),
            "deliver" if words[1] == "all" => cluster.deliver_all(),
            "deliver" => {
                let (from, to) = ends(words[1]);
                cluster.deliver(from, to, kind);
            }
            "drop" => {
                let (from, to) = ends(words[1]);
                assert!(!cluster.take(from, to, kind).is_empty(), "nothing to drop: {line}");
            }
            "dup" => {
                let (from, to) = ends(words[1]);
                let packet = cluster.pool.iter().find(|packet| packet.is(from, to, kind)).cloned();
                cluster.inject(&packet.expect("a message to repeat"));
            }
            "crash" => cluster.crash(node()),
            "start" => cluster.start(node(), u64::from(node()) * 7919),
            "view" => view(cluster, &words[1..]),
            "tick" => cluster.tick(millis(words[1])),
            "run" => {
                cluster.run_for(millis(words[1]));
                cluster.fresh_packets.clear();
                cluster.ignored.clear();
            }
            "show" => self.show(words[1]),
            _ => {
                if let Some(line) = self.dialect.command(&words) {
                    self.say(&line);
                }
            }
        }
    }

    fn show(&mut self, key: &str) {
        for node in self.dialect.cluster().nodes() {
            if self.dialect.cluster().hosts[&node].up {
                let line = self.dialect.describe_key(node, key);
                self.say(&format!("{node}: {line}"));
            }
        }
    }
}

/// Decides a view and tells nodes of it, as `1,3 down 2 shadow 4 to 1,3` says.
fn view<S: Subject>(cluster: &mut Cluster<S>, words: &[&str]) {
    let mut roles = Vec::new();
    let mut told: Option<Vec<u16>> = None;
    let mut role = Some(Role::Active);
    for word in words {
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
    let view = cluster.decide(&roles);
    let told = told.unwrap_or_else(|| roles.iter().map(|(node, _)| *node).collect());
    told.into_iter().for_each(|node| cluster.install_on(node, &view));
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
