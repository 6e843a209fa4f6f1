//! Interaction files: `tests/interaction/*.txt`, in the language of `quorate_harness::interaction`.
//!
//! | command | |
//! | --- | --- |
//! | `nodes 3 [serializable]` | begins anew, with nodes 1 to 3 active in epoch 1 |
//! | `begin 1 t1 read=a write=b:5` | a client asks node 1; `t1` names the transaction |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use quorate_harness::interaction::{Dialect, check_traces};
use quorate_machine::Outcome;

use crate::packets::Packet;
use crate::support::{Cluster, Replicas, serializable};
use crate::txn::Reply;
use crate::words::describe_outcome;

struct Transactions {
    cluster: Cluster,
    /// What they are called, by tag.
    names: BTreeMap<u64, String>,
}

impl Dialect for Transactions {
    type Subject = Replicas;

    fn begin(nodes: u16, options: &[&str]) -> Self {
        let cluster = match options.first() {
            None => Cluster::new(nodes),
            Some(&"serializable") => Cluster::with(nodes, serializable),
            Some(other) => panic!("unknown option {other:?}"),
        };
        Self { cluster, names: BTreeMap::new() }
    }

    fn cluster(&mut self) -> &mut quorate_harness::Cluster<Replicas> {
        &mut self.cluster
    }

    fn command(&mut self, words: &[&str]) -> Option<String> {
        let ["begin", node, name, steps @ ..] = words else { panic!("unknown command {words:?}") };
        let tag = self.cluster.submit(node.parse().expect("a node"), &steps.join(" "));
        self.names.insert(tag, (*name).to_owned());
        None
    }

    fn describe_packet(&self, packet: &Packet) -> Option<String> {
        // Watermarks come with every pause and change nothing that a trace is about.
        (packet.kind() != "stable").then(|| self.cluster.describe(packet))
    }

    fn describe_answer(&self, tag: u64, outcome: &Outcome<Reply>) -> String {
        format!("{}: {}", self.names[&tag], describe_outcome(outcome))
    }

    fn describe_key(&mut self, node: u16, key: &str) -> String {
        let meta = self.cluster.meta(node, key);
        let value = self.cluster.stored(node, key);
        let value = value.unwrap_or("(absent)".to_owned());
        let (wts, rts) = (self.cluster.name(meta.wts), self.cluster.name(meta.rts));
        let mut line = format!("{value} of {wts}, read by {rts}");
        for known in self.cluster.pending(node, key).iter() {
            let verb = match (known.base, known.writes) {
                (Some(_), true) => "updates",
                (None, true) => "writes",
                _ => "reads",
            };
            write!(line, ", {} {verb}", self.cluster.name(known.id)).expect("to a string");
        }
        line
    }
}

#[test]
fn traces_are_as_written() {
    check_traces::<Transactions>(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interaction"));
}
