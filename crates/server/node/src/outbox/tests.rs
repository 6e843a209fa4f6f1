//! What waits for the lease, for the log, or for both, and when it leaves.

use super::*;

const PEER: NodeId = NodeId(2);

/// Messages are single bytes here.
fn send(out: &mut Outbox, gate: Gate, message: u8) {
    out.frame_behind(gate, NodeSet::only(PEER), |buffer| buffer.push(message));
}

fn answer(out: &mut Outbox, gate: Gate, tag: u64) {
    let outcome = Outcome::Done(Reply::Ok);
    let done = Done { lease_bound: gate.lease, ..Done::new(Tag(tag), outcome) };
    assert!(out.hold_until_durable(gate, done).is_none(), "the log is behind");
}

fn told(answers: Vec<Done>) -> Vec<(u64, Outcome<Reply<'static>>)> {
    assert!(answers.iter().all(|done| !done.lease_bound), "none waits for a lease any more");
    answers.into_iter().map(|done| (done.tag.0, done.outcome)).collect()
}

fn both(lsn: u64) -> Gate {
    Gate { lease: true, lsn: Lsn(lsn) }
}

#[test]
fn what_waits_leaves_when_its_gate_opens_in_the_order_of_its_effects() {
    let mut out = Outbox::new();
    send(&mut out, Gate::durable(Lsn(2)), 1);
    send(&mut out, Gate::LEASE, 2);
    answer(&mut out, Gate::durable(Lsn(2)), 3);
    send(&mut out, both(1), 4);
    send(&mut out, Gate::OPEN, 5);
    answer(&mut out, Gate::durable(Lsn(1)), 6);
    answer(&mut out, both(2), 7);
    send(&mut out, Gate::durable(Lsn(2)), 8);
    assert_eq!(*out.peer(PEER), [5]);

    // The log, then the lease, then the log again.
    assert_eq!(told(out.durable(Lsn(1))), [(6, Outcome::Done(Reply::Ok))]);
    assert_eq!(*out.peer(PEER), [5]);
    assert!(out.rests_on_lease());
    assert!(out.sealed(Seal::Waits).is_empty());
    assert!(out.sealed(Seal::Holds).is_empty());
    assert_eq!(*out.peer(PEER), [5, 2, 4]);
    assert!(!out.rests_on_lease());
    let ok = Outcome::Done(Reply::Ok);
    assert_eq!(told(out.durable(Lsn(2))), [(3, ok.clone()), (7, ok)]);
    assert_eq!(*out.peer(PEER), [5, 2, 4, 1, 8]);
    assert_eq!((out.gated_bytes, out.gated_answers), (0, 0));

    // What is durable already waits for nothing.
    send(&mut out, Gate::durable(Lsn(2)), 9);
    assert_eq!(out.peer(PEER).last(), Some(&9));
    let done = Done::new(Tag(10), Outcome::Done(Reply::Ok));
    assert!(out.hold_until_durable(both(2), done).is_some());
}

#[test]
fn a_lost_lease_takes_messages_and_leaves_answers_untold_whatever_the_log_does() {
    let mut out = Outbox::new();
    send(&mut out, both(1), 1);
    answer(&mut out, both(1), 2);
    answer(&mut out, Gate::durable(Lsn(1)), 3);
    assert_eq!(told(out.sealed(Seal::Lost)), [(2, Outcome::Unknown)]);
    assert_eq!(told(out.durable(Lsn(1))), [(3, Outcome::Done(Reply::Ok))]);
    assert!(out.peer(PEER).is_empty());
    assert_eq!((out.gated_bytes, out.gated_answers), (0, 0));
}

#[test]
fn messages_that_wait_have_the_bound_of_a_peer() {
    let mut out = Outbox::bounded(3);
    (0..5).for_each(|message| send(&mut out, Gate::durable(Lsn(1)), message));
    assert!(out.overflowed.contains(PEER));
    out.durable(Lsn(1));
    assert_eq!(*out.peer(PEER), [0, 1, 2]);
    assert_eq!(out.gated_bytes, 0, "and there is room again");
}
