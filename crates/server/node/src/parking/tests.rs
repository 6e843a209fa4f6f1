//! A node that lost its lease for a moment, alone in its cluster.

use std::sync::Arc;

use quorate_commands::{OwnedCall, Reply};
use quorate_machine::{Gate, Outcome, Refusal, Seal};
use quorate_types::{
    Duration, Incarnation, Instant, KeyspaceId, LaneId, Lsn, NodeId, Now, Tag, UnixNanos, limits,
};

use crate::{
    Done, EngineConfig, KeyspaceConfig, Lane, Mail, NodeAddress, NodeConfig, Outbox, Shared,
};

const KEYSPACE: KeyspaceId = KeyspaceId(0);

struct Alone {
    lane: Lane,
    out: Outbox,
    now: Now,
}

impl Alone {
    fn new() -> Self {
        let addresses = vec![NodeAddress::in_memory(NodeId(1))];
        let keyspaces = vec![KeyspaceConfig::new(KEYSPACE, "default", EngineConfig::hermes())];
        let shared = Shared::new(NodeConfig::new(NodeId(1), 1, addresses, keyspaces));
        let now = Now { monotonic: Instant(1 << 30), unix: UnixNanos(1 << 60) };
        let lane = Lane::new(Arc::clone(&shared), LaneId(0), Incarnation(7), now);
        Self { lane, out: Outbox::new(), now }
    }

    /// A node that serves, with `key` set.
    fn serving() -> Self {
        let mut alone = Self::new();
        alone.tick();
        alone.ask(1, &[b"SET", b"key", b"value"]);
        assert_eq!(alone.answers(), [(1, Outcome::Done(Reply::Ok))]);
        alone
    }

    /// Once to form the cluster, and once for the lease.
    fn tick(&mut self) {
        self.lane.tick(self.now, &mut self.out);
        self.lane.tick(self.now, &mut self.out);
        self.lane.end_turn(self.now, &mut self.out);
    }

    /// Time passes in which the process does not run.
    fn stall(&mut self, span: Duration) {
        self.now.monotonic += span;
    }

    fn ask(&mut self, tag: u64, words: &[&[u8]]) {
        let call = OwnedCall::new(words.iter().copied()).expect("a command");
        self.lane.submit(self.now, KEYSPACE, Tag(tag), 0, call.call(), &mut self.out);
    }

    fn read(&mut self) -> Option<Reply<'static>> {
        let call = OwnedCall::new([b"GET" as &[u8], b"key"]).expect("a command");
        self.lane.read(self.now, KEYSPACE, &call.call(), |reply: Reply<'_>| reply.into_owned())
    }

    fn seal(&mut self) -> Seal {
        self.lane.seal(self.now, false, &mut self.out)
    }

    fn answers(&mut self) -> Vec<(u64, Outcome<Reply<'static>>)> {
        self.out.done.drain(..).map(|done| (done.tag.0, done.outcome)).collect()
    }
}

#[test]
fn ops_wait_for_the_node_to_serve_and_keep_their_order() {
    let mut alone = Alone::new();
    alone.ask(1, &[b"SET", b"key", b"1"]);
    alone.ask(2, &[b"APPEND", b"key", b"2"]);
    assert!(alone.answers().is_empty(), "the cluster has not formed");
    alone.tick();
    assert_eq!(alone.answers(), [(1, Outcome::Done(Reply::Ok)), (2, Outcome::Done(Reply::Int(2)))]);
    assert_eq!(alone.lane.counts.parked, 2);
}

#[test]
fn an_op_during_a_lapse_of_the_lease_begins_after_it() {
    let mut alone = Alone::serving();
    alone.stall(NodeConfig::LEASE * 3);
    assert!(alone.read().is_none(), "the lease has lapsed");
    alone.ask(2, &[b"GET", b"key"]);
    assert!(alone.answers().is_empty());
    assert_eq!(alone.lane.takes_ops(alone.now), Ok(()));
    alone.tick();
    let value = Reply::Bulk(b"value".as_slice().into());
    assert_eq!(alone.answers(), [(2, Outcome::Done(value))]);
}

#[test]
fn ops_that_wait_in_vain_are_refused_and_so_is_what_follows() {
    let mut alone = Alone::new();
    alone.ask(1, &[b"GET", b"key"]);
    alone.stall(NodeConfig::OP_TIMEOUT);
    alone.lane.tend_parking(alone.now, &mut alone.out);
    let refused = Outcome::Refused(Refusal::NotServing);
    assert_eq!(alone.answers(), [(1, refused.clone())]);
    assert!(alone.lane.takes_ops(alone.now).is_err(), "with the reason for the client");
    alone.ask(2, &[b"GET", b"key"]);
    assert_eq!(alone.answers(), [(2, refused)], "at once");
    alone.tick();
    alone.ask(3, &[b"GET", b"key"]);
    assert_eq!(alone.answers(), [(3, Outcome::Done(Reply::Null))]);
    assert_eq!(alone.lane.takes_ops(alone.now), Ok(()));
}

#[test]
fn an_answer_waits_for_the_next_lease_of_the_same_life() {
    let mut alone = Alone::serving();
    alone.lane.begin_turn(alone.now);
    assert!(alone.read().is_some());
    alone.stall(NodeConfig::LEASE * 2);
    assert_eq!(alone.seal(), Seal::Waits);
    assert!(alone.lane.next_deadline() <= alone.now.monotonic + Duration::from_millis(2));
    alone.tick();
    assert_eq!(alone.seal(), Seal::Holds);
}

#[test]
fn an_answer_does_not_wait_for_ever() {
    let mut alone = Alone::serving();
    assert!(alone.read().is_some());
    alone.stall(NodeConfig::LEASE);
    assert_eq!(alone.seal(), Seal::Waits);
    alone.stall(NodeConfig::OP_TIMEOUT);
    assert_eq!(alone.seal(), Seal::Lost);
}

/// While the log is behind by as many answers as ops may be pending, no op begins.
#[test]
fn ops_wait_while_too_many_answers_wait_for_the_log() {
    let mut alone = Alone::serving();
    let first = 10;
    let held = limits::OPS_PENDING_MAX as u64;
    for tag in first..first + held {
        let done = Done::new(Tag(tag), Outcome::Done(Reply::Ok));
        assert!(alone.out.hold_until_durable(Gate::durable(Lsn(1)), done).is_none());
    }
    alone.ask(2, &[b"GET", b"key"]);
    alone.lane.end_turn(alone.now, &mut alone.out);
    assert!(alone.answers().is_empty());
    assert_eq!(alone.lane.counts.parked, 1);

    alone.lane.durable(alone.now, Lsn(1), &mut alone.out);
    let answers = alone.answers();
    assert!(answers.iter().map(|(tag, _)| *tag).eq(first..first + held));
    alone.lane.end_turn(alone.now, &mut alone.out);
    let value = Reply::Bulk(b"value".as_slice().into());
    assert_eq!(alone.answers(), [(2, Outcome::Done(value))]);
}

/// What a former life read must not leave under the lease of the next one: updates have gone on
/// without this replica in between.
#[test]
fn an_answer_of_a_former_life_never_leaves() {
    for sealed_before in [false, true] {
        let mut alone = Alone::serving();
        assert!(alone.read().is_some());
        if sealed_before {
            alone.stall(NodeConfig::LEASE);
            assert_eq!(alone.seal(), Seal::Waits);
        }
        alone.lane.deliver(alone.now, Mail::Rejoin(Incarnation(8)), &mut alone.out);
        assert_eq!(alone.seal(), Seal::Lost);
    }
}
