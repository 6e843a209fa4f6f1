//! A hash whose fields have all expired is gone at every node, at the same time.

use quorate_commands::Reply;
use quorate_machine::Outcome;
use quorate_node::{EngineConfig, KeyspaceConfig};
use quorate_types::{Duration, KeyspaceId, NodeId};

use crate::support::{Cluster, command, config};

const KEYSPACE: KeyspaceId = KeyspaceId(0);
const NODES: usize = 3;

impl Cluster {
    fn of(engine: EngineConfig) -> Self {
        let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", engine)];
        let node = |node| config(NodeId(node), NODES as u16, 2, keyspaces.clone());
        Self::new((1..=NODES as u16).map(node))
    }

    /// Time passes until this moment.
    fn wait_until(&mut self, time: Duration) {
        while self.time < time {
            self.turn(Duration::from_millis(2));
        }
    }

    /// What a node answers to a command.
    fn reply(&mut self, node: usize, line: &str) -> Reply<'static> {
        let words: Vec<&str> = line.split(' ').collect();
        let tag = self.submit((node, 0), KEYSPACE, command(&words));
        let until = self.time + Duration::from_secs(1);
        loop {
            let done = &mut self.host((node, 0)).out.done;
            if let Some(at) = done.iter().position(|done| done.tag == tag) {
                match done.remove(at).outcome {
                    Outcome::Done(reply) => return reply,
                    other => panic!("{other:?} of {line}"),
                }
            }
            assert!(self.time < until, "no answer to {line} in a second");
            self.turn(Duration::from_micros(100));
        }
    }

    /// Every node answers the same number.
    fn all_say(&mut self, line: &str, number: i64) {
        for node in 0..NODES {
            assert_eq!(self.reply(node, line), Reply::Int(number), "{line} at node {node}");
        }
    }
}

#[test]
fn a_key_is_gone_at_every_node_when_its_last_field_expires() {
    for engine in [EngineConfig::hermes(), EngineConfig::meerkat()] {
        let mut cluster = Cluster::of(engine);
        let start = cluster.time;
        for key in ["all", "own", "some"] {
            let line = format!("HSET {key} a 1 b 2 c 3");
            assert_eq!(cluster.reply(0, &line), Reply::Int(3));
            let line = format!("HPEXPIRE {key} 500 FIELDS 1 a");
            assert_eq!(cluster.reply(1, &line), Reply::Array(vec![Reply::Int(1)]));
            let line = format!("HPEXPIRE {key} 1000 FIELDS 2 b c");
            assert_eq!(cluster.reply(2, &line), Reply::Array(vec![Reply::Int(1); 2]));
        }
        assert_eq!(cluster.reply(0, "PEXPIRE own 500"), Reply::Int(1));
        assert_eq!(cluster.reply(1, "HSET some c 4"), Reply::Int(0));
        cluster.all_say("PTTL all", -1);
        assert!(cluster.time < start + Duration::from_millis(400), "the time is not up yet");

        cluster.wait_until(start + Duration::from_millis(700));
        cluster.all_say("HLEN all", 2);
        cluster.all_say("HEXISTS all a", 0);
        cluster.all_say("EXISTS own", 0);

        cluster.wait_until(start + Duration::from_millis(1200));
        cluster.all_say("EXISTS all", 0);
        cluster.all_say("PTTL all", -2);
        cluster.all_say("HLEN some", 1);
        // No client asks for it, and the bytes go.
        let until = cluster.time + Duration::from_secs(30);
        while cluster.keys(KEYSPACE) != [1; NODES] {
            assert!(cluster.time < until, "nodes hold {:?} keys", cluster.keys(KEYSPACE));
            cluster.wait_until(cluster.time + Duration::from_millis(100));
        }
    }
}
