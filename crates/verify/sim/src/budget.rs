//! The cost of an op in hops and messages, measured in a perfect network with a constant delay.
//!
//! In virtual time handlers cost nothing, so a latency is an exact multiple of the one-way delay:
//! the number of hops on the critical path. These are the figures that a paper's "one round trip"
//! promises, and they don't depend on a machine.

use std::collections::BTreeMap;

use quorate_commands::OwnedCall;
use quorate_machine::{Outcome, Rng};
use quorate_node::EngineConfig;
use quorate_types::{Duration, KeyspaceId, NodeSet, Tag, limits};

use crate::Faults;
use crate::links::LinkTable;
use crate::network::Network;
use crate::setup::configs;
use crate::world::{MS, World};

/// The cost of one op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cost {
    /// One-way delays between the op's arrival at its node and its answer.
    pub hops: u64,
    /// Peer messages of the keyspace's engine that the op caused until no message was in flight, by
    /// kind. Periodic messages of a lane, which it sends with or without ops, are left out.
    pub messages: BTreeMap<String, u64>,
}

impl Cost {
    /// How many messages of all kinds.
    pub fn total(&self) -> u64 {
        self.messages.values().sum()
    }
}

/// One-way delay of the measuring network.
const DELAY: u64 = 10 * MS;
/// The time after which a message counts as lost: far beyond the delay, so that no message does.
const LOSS_TIMEOUT: u64 = 1_000 * MS;
/// The message that lanes send each other periodically.
const PERIODIC: &str = "Stable";

/// Executes `calls` one after the other on node 1 of an idle cluster, and returns the cost of each.
///
/// # Panics
/// If an op is not answered: the cluster is perfect.
pub fn measure_costs(nodes: u16, engine: EngineConfig, calls: &[&[&str]]) -> Vec<Cost> {
    let mut world = idle_cluster(nodes, engine);
    calls
        .iter()
        .enumerate()
        .map(|(number, call)| measure(&mut world, number as u64 + 1, call))
        .collect()
}

/// A perfect cluster that has formed its view and is idle.
pub(crate) fn idle_cluster(nodes: u16, engine: EngineConfig) -> World {
    idle_cluster_with(nodes, engine, vec![None])
}

/// The same, with these replica groups of partitions.
fn idle_cluster_with(nodes: u16, engine: EngineConfig, partitions: Vec<Option<NodeSet>>) -> World {
    let mut rng = Rng::new(1);
    let mut configs = configs(nodes, 1, engine, &mut rng);
    for config in &mut configs {
        config.keyspaces[0].partitions.clone_from(&partitions);
        config.message_loss_timeout = Duration::from_nanos(LOSS_TIMEOUT);
    }
    let network = Network {
        delay: DELAY,
        jitter: 0,
        loss: 0,
        duplication: 0,
        straggling: 0,
        ordered: false,
        pace: 0,
        buffer_bytes: limits::PEER_BUFFER_BYTES_MAX,
        calm: false,
        links: LinkTable::new(usize::from(nodes), 1),
    };
    let mut world = World::new(configs, network, Faults::NONE, rng, None, false);
    run_until_quiet(&mut world, 8_000 * MS);
    world
}

fn begin(world: &mut World, node: usize, number: u64, words: &[&str]) {
    let call = OwnedCall::new(words.iter().map(|word| word.as_bytes()))
        .expect("measured commands are known");
    let keyspace = KeyspaceId(0);
    let command = world.keyspace(keyspace).command(call);
    world.execute(node, 0, Tag(number), node as u64, keyspace, &command);
}

fn measure(world: &mut World, number: u64, words: &[&str]) -> Cost {
    measure_at(world, 0, number, words)
}

/// The same for a client of any node.
fn measure_at(world: &mut World, node: usize, number: u64, words: &[&str]) -> Cost {
    let started = world.time;
    world.flow.take_messages();
    begin(world, node, number, words);
    let until = world.time + LOSS_TIMEOUT / 2;
    let mut answered_at = None;
    loop {
        while let Some(answer) = world.answers.pop() {
            if answer.tag == Tag(number) {
                assert!(matches!(answer.outcome, Outcome::Done(_)), "{words:?}: {answer:?}");
                answered_at = Some(world.time);
            }
        }
        let Some(event) = world.next(until) else { break };
        assert!(world.handle(event).is_none(), "nobody else acts in this world");
    }
    let answered_at = answered_at.unwrap_or_else(|| panic!("{words:?} was not answered"));
    assert_eq!((answered_at - started) % DELAY, 0, "latency is a whole number of hops");
    let mut messages = world.flow.take_messages();
    messages.remove(PERIODIC);
    Cost { hops: (answered_at - started) / DELAY, messages }
}

fn run_until_quiet(world: &mut World, until: u64) {
    while let Some(event) = world.next(until) {
        world.handle(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_machine::Refusal;
    use quorate_meerkat::{Isolation, Options};
    use quorate_types::{NodeId, placement};

    use crate::links::Links;

    const CALLS: [&[&str]; 5] =
        [&["SET", "k", "1"], &["GET", "k"], &["INCR", "k"], &["GET", "absent"], &["DEL", "k"]];

    fn cost(hops: u64, messages: &[(&str, u64)]) -> Cost {
        let messages = messages.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
        Cost { hops, messages }
    }

    fn meerkat(isolation: Isolation) -> EngineConfig {
        EngineConfig::Meerkat(Options { isolation, ..Options::default() })
    }

    /// Hermes §4.3.2: a read is local; an update is answered after one round trip and costs an INV,
    /// an ACK and a VAL for each follower.
    #[test]
    fn reads_cost_nothing_and_updates_one_round_trip() {
        for nodes in [3, 5] {
            let others = u64::from(nodes - 1);
            let update = cost(2, &[("Inv", others), ("Ack", others), ("Val", others)]);
            let read = cost(0, &[]);
            let expected = [&update, &read, &update, &read, &update];
            let costs = measure_costs(nodes, EngineConfig::hermes(), &CALLS);
            assert_eq!(costs.iter().collect::<Vec<_>>(), expected, "{nodes} nodes");
            assert_eq!(update.total(), 3 * others);
        }
    }

    /// Meerkat §5.2.2: a transaction without concurrent ones is answered after one round trip to
    /// all replicas, however many keys it changes. It costs VALIDATE, VOTE and DECIDED for each
    /// other replica; a lone transaction's acknowledgement rides on no message.
    #[test]
    fn transactions_cost_one_round_trip() {
        let three = ["MSET", "a", "1", "b", "1", "c", "1"];
        let calls: [&[&str]; 4] = [&["SET", "a", "1"], &["INCR", "a"], &three, &["DEL", "b", "c"]];
        for isolation in [Isolation::Strict, Isolation::Serializable] {
            for nodes in [3, 5] {
                let others = u64::from(nodes - 1);
                let kinds = ["Validate", "Vote", "Decided", "Acked"].map(|kind| (kind, others));
                for cost_of in measure_costs(nodes, meerkat(isolation), &calls) {
                    assert_eq!(cost_of, cost(2, &kinds), "{isolation:?}, {nodes} nodes");
                }
            }
        }
    }

    /// Meerkat N8: a read quorum confirms a transaction without writes, which leaves no record;
    /// reads of one key that need not be the latest are local.
    #[test]
    fn reads_ask_a_read_quorum_and_leave_nothing() {
        let calls: [&[&str]; 3] = [&["SET", "a", "1"], &["GET", "a"], &["MGET", "a", "b"]];
        let strict = |nodes| measure_costs(nodes, meerkat(Isolation::Strict), &calls).split_off(1);
        let confirmed = |asked| cost(2, &[("Check", asked), ("Checked", asked)]);
        assert_eq!(strict(3), [confirmed(1), confirmed(1)]);
        assert_eq!(strict(5), [confirmed(2), confirmed(2)]);
        let old = measure_costs(5, meerkat(Isolation::Serializable), &calls).split_off(1);
        assert_eq!(old, [cost(0, &[]), confirmed(3)]);
    }

    /// Zeus on six nodes, three of which have each key: keys of which no node has all copies are looked at
    /// twice, at one member of each group. Keys that one node has are read there.
    #[test]
    fn reads_of_far_keys_cost_two_round_trips_and_move_nothing() {
        let nodes: NodeSet = (1..=6).map(NodeId).collect();
        let group = |key: &String| -> NodeSet {
            placement::group(placement::shard_of(key.as_bytes()), nodes, 0).into_iter().collect()
        };
        let mut names = (0..).map(|number| format!("k{number}"));
        let one = names.find(|key| !group(key).contains(NodeId(1))).expect("there is one");
        let is_apart = |key: &String| group(key).intersection(group(&one)).is_empty();
        let other = names.find(is_apart).expect("there is one");
        let calls: [&[&str]; 4] = [
            &["MSET", &one, "1", &other, "1"],
            &["DEL", &one],
            &["MGET", &one, &other],
            &["GET", &one],
        ];
        let zeus = EngineConfig::named("zeus").expect("it is an engine");
        let costs = measure_costs(6, zeus.clone(), &calls);
        // Node 1 owns both by then.
        assert_eq!(costs[2], cost(0, &[]));
        let asked = measure_costs(6, zeus, &calls[2..]);
        // Node 1 may have a copy of the second key.
        let members = 2 - u64::from(group(&other).contains(NodeId(1)));
        // LOOK, SEEN, CHECK and CHECKED.
        assert_eq!(asked[0], cost(4, &[("Look", 4 * members)]));
        assert_eq!(asked[1].hops, 2);
    }

    /// Zeus on six nodes: a node outside the group of a key that it reads often reads its own copy, which
    /// costs the owner an R-INV and an R-ACK for each write, and an R-VAL if nothing follows.
    #[test]
    fn extra_readers_read_without_a_message() {
        let nodes: NodeSet = (1..=6).map(NodeId).collect();
        let group = |key: &String| placement::group(placement::shard_of(key.as_bytes()), nodes, 0);
        let mut names = (0..).map(|number| format!("k{number}"));
        let key = names.find(|key| !group(key).contains(&NodeId(1))).expect("there is one");
        let owner = usize::from(group(&key)[0].0) - 1;
        let updates = |readers: &[u16]| {
            let mut zeus = EngineConfig::zeus();
            if let EngineConfig::Zeus(options) = &mut zeus {
                options.extra_after = 2;
            }
            let mut world = idle_cluster(6, zeus);
            let mut number = 0;
            let mut measured = |world: &mut World, node: usize, words: &[&str]| {
                number += 1;
                measure_at(world, node, number, words)
            };
            measured(&mut world, owner, &["SET", &key, "1"]);
            for reader in readers.iter().map(|node| usize::from(*node) - 1) {
                for _ in 0..2 {
                    assert_eq!(measured(&mut world, reader, &["GET", &key]).hops, 2);
                }
                for _ in 0..2 {
                    assert_eq!(measured(&mut world, reader, &["GET", &key]), cost(0, &[]));
                }
            }
            let update = measured(&mut world, owner, &["INCR", &key]);
            for reader in readers.iter().map(|node| usize::from(*node) - 1) {
                assert_eq!(measured(&mut world, reader, &["GET", &key]), cost(0, &[]));
            }
            update
        };
        let outside: Vec<u16> =
            (1..=6).filter(|node| !group(&key).contains(&NodeId(*node))).collect();
        for extra in 0..=2 {
            let followers = 2 + extra as u64;
            let kinds = ["Update", "Applied", "Committed"].map(|kind| (kind, followers));
            assert_eq!(updates(&outside[..extra]), cost(2, &kinds));
        }
    }

    /// Meerkat §5.2.2 step 5: when votes differ, a second round trip makes one decision durable.
    /// One replica has registered a transaction that no other replica has heard of.
    #[test]
    fn different_votes_cost_a_second_round_trip() {
        let mut world = idle_cluster(3, meerkat(Isolation::Strict));
        world.network.links.cut(Links::of(1, true), 0);
        begin(&mut world, 1, 1, &["SET", "a", "1"]);
        world.mend_links();
        let until = world.time + MS;
        run_until_quiet(&mut world, until);
        let kinds = ["Validate", "Vote", "Accept", "Accepted", "Decided", "Acked"];
        let slow = measure(&mut world, 2, &["INCR", "a"]);
        assert_eq!(slow, cost(4, &kinds.map(|kind| (kind, 2))));
    }

    /// With either engine, a node that has lost sight of the others lets ops wait for a while, and
    /// refuses ops that arrive later at once.
    #[test]
    fn a_node_without_a_majority_refuses_after_a_while_and_then_at_once() {
        for engine in [EngineConfig::hermes(), meerkat(Isolation::Strict)] {
            let mut world = idle_cluster(3, engine);
            world.network.links.cut(Links::of(0, false), 0);
            let until = world.time + 350 * MS;
            run_until_quiet(&mut world, until);
            begin(&mut world, 0, 7, &["GET", "a"]);
            assert!(world.answers.is_empty(), "it may be over in a moment");
            let until = world.time + 2_010 * MS;
            run_until_quiet(&mut world, until);
            let answer = world.answers.pop().expect("it has waited in vain");
            assert!(matches!(answer.outcome, Outcome::Refused(Refusal::NotServing)));
            for (number, words) in [["SET", "a", "1"].as_slice(), &["GET", "a"]].iter().enumerate()
            {
                begin(&mut world, 0, number as u64, words);
                let answer = world.answers.pop().expect("it is answered within the turn");
                assert!(matches!(answer.outcome, Outcome::Refused(Refusal::NotServing)));
            }
            begin(&mut world, 1, 9, &["SET", "a", "2"]);
            let until = world.time + 500 * MS;
            run_until_quiet(&mut world, until);
            let answer = world.answers.pop().expect("the others go on");
            assert!(matches!(answer.outcome, Outcome::Done(_)), "{answer:?}");
        }
    }

    /// A node answers from its own records only for keys that it has a replica of.
    #[test]
    fn a_node_without_a_replica_asks_those_that_have_one() {
        let group: NodeSet = [2, 3, 4].map(NodeId).into_iter().collect();
        let engine = meerkat(Isolation::Serializable);
        let mut world = idle_cluster_with(4, engine, vec![Some(group)]);
        assert_eq!(measure(&mut world, 1, &["SET", "a", "1"]).hops, 2);
        let read = measure(&mut world, 2, &["GET", "a"]);
        // The value comes from one replica, the confirmation from a read quorum.
        assert_eq!((read.hops, read.messages["Get"]), (4, 1));
    }
}
