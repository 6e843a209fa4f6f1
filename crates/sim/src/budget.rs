//! What an op costs in hops and messages, measured in a perfect network with a constant delay.
//!
//! In virtual time handlers cost nothing, so a latency is an exact multiple of the one-way delay:
//! the number of hops on the critical path. These are the figures that a paper's "one round trip"
//! promises, and they don't depend on a machine.

use quorate_commands::{OwnedCall, Txn};
use quorate_machine::{Outcome, Rng};
use quorate_node::EngineConfig;
use quorate_types::{NodeSet, Tag};

use crate::Faults;
use crate::setup::configs;
use crate::world::{Command, MS, Network, World};

/// The cost of one op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// One-way delays between the op's arrival at its node and its answer.
    pub hops: u64,
    /// Peer messages of the keyspace's engine that the op caused until nothing was in flight.
    pub messages: u64,
}

/// One-way delay of the measuring network.
const DELAY: u64 = 10 * MS;

/// Executes `calls` one after the other on node 1 of an idle cluster and says what each cost.
///
/// # Panics
/// If an op is not answered: the cluster is perfect.
pub fn measure_costs(nodes: u16, engine: EngineConfig, calls: &[&[&str]]) -> Vec<Cost> {
    let mut rng = Rng::new(1);
    let mut configs = configs(nodes, 1, engine, &mut rng);
    for config in &mut configs {
        // Far beyond the delay, so that no message counts as lost.
        config.message_loss_timeout = std::time::Duration::from_secs(1);
    }
    let network = Network {
        delay: DELAY,
        jitter: 0,
        loss: 0,
        duplication: 0,
        straggling: 0,
        cut: vec![NodeSet::EMPTY; usize::from(nodes)],
    };
    let mut world = World::new(configs, network, Faults::NONE, rng, false);
    settle(&mut world, 8_000 * MS);
    calls
        .iter()
        .enumerate()
        .map(|(number, call)| measure(&mut world, number as u64 + 1, call))
        .collect()
}

fn measure(world: &mut World, number: u64, words: &[&str]) -> Cost {
    let call = OwnedCall::new(words.iter().map(|word| word.as_bytes()))
        .expect("measured commands are known");
    let (started, before) = (world.time, world.engine_messages);
    let command =
        if world.is_transactional() { Command::Txn(Txn::Call(call)) } else { Command::Op(call) };
    world.execute(0, 0, Tag(number), 1, &command);
    let until = world.time + 500 * MS;
    let mut answered_at = None;
    loop {
        if let Some(answer) = world.answers.pop() {
            assert!(matches!(answer.outcome, Outcome::Done(_)), "{words:?}: {answer:?}");
            answered_at = Some(world.time);
        }
        let Some(event) = world.next(until) else { break };
        assert!(world.handle(event).is_none(), "nobody else acts in this world");
    }
    let answered_at = answered_at.unwrap_or_else(|| panic!("{words:?} was not answered"));
    assert_eq!((answered_at - started) % DELAY, 0, "latency is a whole number of hops");
    Cost { hops: (answered_at - started) / DELAY, messages: world.engine_messages - before }
}

fn settle(world: &mut World, until: u64) {
    while let Some(event) = world.next(until) {
        world.handle(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: [&[&str]; 5] =
        [&["SET", "k", "1"], &["GET", "k"], &["INCR", "k"], &["GET", "absent"], &["DEL", "k"]];

    /// Thesis §3.4: a read is local; an update is answered after one round trip and costs an INV,
    /// an ACK and a VAL for each follower.
    #[test]
    fn reads_cost_nothing_and_updates_one_round_trip() {
        for nodes in [3, 5] {
            let per_follower = 3 * u64::from(nodes - 1);
            let update = Cost { hops: 2, messages: per_follower };
            let read = Cost { hops: 0, messages: 0 };
            let costs = measure_costs(nodes, EngineConfig::HERMES, &CALLS);
            assert_eq!(costs, [update, read, update, read, update], "{nodes} nodes");
        }
    }
}
