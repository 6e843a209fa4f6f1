//! Interaction files: `tests/interaction/*.txt`, in the language of `quorate_harness::interaction`.
//!
//! | command | |
//! | --- | --- |
//! | `nodes 3 [acks-to-all] [quorum-reads]` | begins anew, with nodes 1 to 3 active in epoch 1 |
//! | `write 1 k=a`, `append 1 k=a`, `incr 1 k`, `del 1 k`, `get 1 k` | a client asks node 1 |

use std::path::Path;

use quorate_harness::interaction::{Dialect, check_traces};
use quorate_hermes::Reads;
use quorate_machine::Outcome;

use crate::op::{Reply, append, del, get, incr, set};
use crate::support::{Cluster, Replicas, describe_outcome, short};

impl Dialect for Cluster {
    type Subject = Replicas;

    fn begin(nodes: u16, options: &[&str]) -> Self {
        match options.first() {
            None => Self::new(nodes),
            Some(&"acks-to-all") => Self::with(nodes, |config| config.ack_broadcast = true),
            Some(&"quorum-reads") => Self::with(nodes, |config| config.reads = Reads::Quorum),
            Some(other) => panic!("unknown option {other:?}"),
        }
    }

    fn cluster(&mut self) -> &mut quorate_harness::Cluster<Self::Subject> {
        self
    }

    fn command(&mut self, words: &[&str]) -> Option<String> {
        let pair = || words[2].split_once('=').expect("key=value");
        let op = match words[0] {
            "write" => set(pair().0, pair().1),
            "append" => append(pair().0, pair().1),
            "incr" => incr(words[2]),
            "del" => del(words[2]),
            "get" => get(words[2]),
            other => panic!("unknown command {other:?}"),
        };
        let tag = self.submit(words[1].parse().expect("a node"), op);
        self.outcome(tag).is_none().then(|| format!("op {tag} is pending"))
    }

    fn describe_answer(&self, tag: u64, outcome: &Outcome<Reply>) -> String {
        format!("op {tag}: {}", describe_outcome(outcome))
    }

    fn describe_key(&mut self, node: u16, key: &str) -> String {
        let (meta, value) = (self.meta(node, key), self.stored(node, key));
        let value = value.map_or("absent".to_owned(), |value| format!("{value:?}"));
        format!("{:?} {} {value}", meta.state, short(meta.timestamp))
    }
}

#[test]
fn traces_are_as_written() {
    check_traces::<Cluster>(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interaction"));
}
