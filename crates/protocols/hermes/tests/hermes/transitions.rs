//! One test per cell of the transition table: a state, one event, the exact effects and the state
//! after it.
//!
//! The node under test is 2 of 3. Its key `k` was written at version 10 by member 3; everything
//! that the others say is made up by the tests.

use quorate_hermes::{Ack, Inv, Message, State, Val};
use quorate_machine::{Content, Slot, ValueKind};
use quorate_types::{Timestamp, WriterId};

use crate::op::{Op, append, get, set};
use crate::support::{Cluster, MLT, describe, describe_outcome, short};

/// Where the key stands before the event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Readable at 10.3.
    Valid,
    /// Superseded at 12.3, not readable yet.
    Invalid,
    /// An own write at 12.2 under way.
    Write,
    /// An own read-modify-write at 11.2 under way.
    Rmw,
    /// The own write at 12.2 superseded by 12.3.
    Trans,
    /// Member 3's write at 12.3 driven by this node.
    Replay,
}

use Stage::{Invalid, Replay, Rmw, Trans, Valid, Write};

struct Bench {
    cluster: Cluster,
    /// The cookie of the pending update.
    cookie: Slot,
}

fn ts(version: u64, member: u32) -> Timestamp {
    Timestamp::new(version, WriterId(u32::from(member as u8) << 24 | member))
}

fn inv(version: u64, member: u32, rmw: bool, value: &str) -> Message<'_> {
    let content =
        Some(Content { bytes: value.as_bytes(), kind: ValueKind::String, expire_at: None });
    let cookie = Slot { index: 70, generation: 7 };
    let timestamp = ts(version, member);
    Message::Inv(Inv { cookie, key: b"k", timestamp, rmw, content, base: None, completion: None })
}

fn val(version: u64, member: u32) -> Message<'static> {
    Message::Val(Val { key: b"k", timestamp: ts(version, member) })
}

impl Bench {
    fn at(stage: Stage) -> Self {
        let mut bench = Self { cluster: Cluster::new(3), cookie: Slot::NONE };
        bench.feed(3, &inv(10, 3, false, "old"));
        bench.feed(3, &val(10, 3));
        match stage {
            Valid => {}
            Invalid => {
                bench.feed(3, &inv(12, 3, false, "theirs"));
            }
            Write => {
                bench.own(set("k", "mine"));
            }
            Rmw => {
                bench.own(append("k", "+"));
            }
            Trans => {
                bench.own(set("k", "mine"));
                let cookie = bench.cluster.meta(2, "k").op;
                bench.feed(3, &inv(12, 3, false, "theirs"));
                assert_eq!(bench.cluster.meta(2, "k").op, cookie);
            }
            Replay => {
                bench.feed(3, &inv(12, 3, false, "theirs"));
                bench.own(get("k"));
                while bench.cluster.state(2, "k") == State::Invalid {
                    bench.wait();
                }
            }
        }
        bench.cookie = bench.cluster.meta(2, "k").op;
        bench.effects();
        bench
    }

    /// What happened since the last look, in order: messages, then answers.
    fn effects(&mut self) -> Vec<String> {
        let sent = std::mem::take(&mut self.cluster.fresh_packets).into_iter();
        let sent = sent.map(|packet| format!("to {}: {}", packet.to, describe(&packet.message())));
        let answered = std::mem::take(&mut self.cluster.fresh_outcomes).into_iter();
        let answered =
            answered.map(|(_, outcome)| format!("answer {}", describe_outcome(&outcome)));
        sent.chain(answered).collect()
    }

    fn feed(&mut self, from: u16, message: &Message<'_>) -> Vec<String> {
        self.cluster.tell(from, 2, message);
        self.effects()
    }

    fn ack(&mut self, from: u16) -> Vec<String> {
        let timestamp = match self.cluster.state(2, "k") {
            State::Trans => ts(12, 2),
            _ => self.cluster.meta(2, "k").timestamp,
        };
        let cookie = self.cookie;
        self.feed(from, &Message::Ack(Ack { cookie, timestamp, key: b"" }))
    }

    fn own(&mut self, op: Op) -> Vec<String> {
        self.cluster.submit(2, op);
        self.effects()
    }

    /// The message loss timeout passes.
    fn wait(&mut self) -> Vec<String> {
        self.cluster.advance(MLT);
        self.cluster.tick_node(2);
        self.effects()
    }

    #[track_caller]
    fn is(&mut self, state: State, timestamp: &str, value: &str) {
        let meta = self.cluster.meta(2, "k");
        assert_eq!((meta.state, short(meta.timestamp)), (state, timestamp.to_owned()));
        assert_eq!(self.cluster.stored(2, "k").as_deref(), Some(value));
    }

    /// The key is as it was in its stage.
    #[track_caller]
    fn is_unchanged(&mut self, stage: Stage) {
        match stage {
            Valid => self.is(State::Valid, "10.3", "old"),
            Invalid => self.is(State::Invalid, "12.3", "theirs"),
            Write => self.is(State::Write, "12.2", "mine"),
            Rmw => self.is(State::Write, "11.2", "old+"),
            Trans => self.is(State::Trans, "12.3", "theirs"),
            Replay => self.is(State::Replay, "12.3", "theirs"),
        }
    }
}

const NOTHING: [&str; 0] = [];

// Own write.

#[test]
fn valid_own_write() {
    let mut bench = Bench::at(Valid);
    let sent = ["to 1: inv k 12.2 write \"mine\"", "to 3: inv k 12.2 write \"mine\""];
    assert_eq!(bench.own(set("k", "mine")), sent);
    bench.is(State::Write, "12.2", "mine");
}

#[test]
fn any_other_state_own_write() {
    for stage in [Invalid, Write, Rmw, Trans, Replay] {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.own(set("k", "later")), NOTHING);
        bench.is_unchanged(stage);
    }
}

// Own read-modify-write.

#[test]
fn valid_own_rmw() {
    let mut bench = Bench::at(Valid);
    let sent = ["to 1: inv k 11.2 rmw \"old+\"", "to 3: inv k 11.2 rmw \"old+\""];
    assert_eq!(bench.own(append("k", "+")), sent);
    bench.is(State::Write, "11.2", "old+");
}

#[test]
fn any_other_state_own_rmw() {
    for stage in [Invalid, Write, Rmw, Trans, Replay] {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.own(append("k", "+")), NOTHING);
        bench.is_unchanged(stage);
    }
}

// Own read.

#[test]
fn valid_own_read() {
    let mut bench = Bench::at(Valid);
    assert_eq!(bench.own(get("k")), ["answer \"old\""]);
    bench.is_unchanged(Valid);
}

#[test]
fn any_other_state_own_read() {
    for stage in [Invalid, Write, Rmw, Trans, Replay] {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.own(get("k")), NOTHING);
        bench.is_unchanged(stage);
    }
}

// INV with a higher timestamp.

#[test]
fn valid_inv_higher() {
    let mut bench = Bench::at(Valid);
    assert_eq!(bench.feed(1, &inv(14, 1, false, "new")), ["to 1: ack 14.1"]);
    bench.is(State::Invalid, "14.1", "new");
    assert!(!bench.cluster.meta(2, "k").unsettled);
}

#[test]
fn valid_inv_higher_of_an_rmw() {
    let mut bench = Bench::at(Valid);
    assert_eq!(bench.feed(1, &inv(11, 1, true, "new")), ["to 1: ack 11.1"]);
    bench.is(State::Invalid, "11.1", "new");
    assert!(bench.cluster.meta(2, "k").unsettled);
}

#[test]
fn invalid_inv_higher() {
    let mut bench = Bench::at(Invalid);
    assert_eq!(bench.feed(1, &inv(14, 1, false, "new")), ["to 1: ack 14.1"]);
    bench.is(State::Invalid, "14.1", "new");
}

#[test]
fn write_inv_higher() {
    let mut bench = Bench::at(Write);
    assert_eq!(bench.feed(1, &inv(14, 1, false, "new")), ["to 1: ack 14.1"]);
    bench.is(State::Trans, "14.1", "new");
}

#[test]
fn rmw_inv_higher() {
    let mut bench = Bench::at(Rmw);
    // Not a word to the client: the op waits to run again.
    assert_eq!(bench.feed(1, &inv(12, 1, false, "new")), ["to 1: ack 12.1"]);
    bench.is(State::Invalid, "12.1", "new");
    assert_eq!(bench.cluster.counter(2, "rmw_aborts"), 1);
}

#[test]
fn trans_inv_higher() {
    let mut bench = Bench::at(Trans);
    assert_eq!(bench.feed(1, &inv(14, 1, false, "new")), ["to 1: ack 14.1"]);
    bench.is(State::Trans, "14.1", "new");
}

#[test]
fn replay_inv_higher() {
    let mut bench = Bench::at(Replay);
    assert_eq!(bench.feed(1, &inv(14, 1, false, "new")), ["to 1: ack 14.1"]);
    bench.is(State::Invalid, "14.1", "new");
    // The replay is forgotten: its acknowledgements find nothing.
    bench.feed(1, &Message::Ack(Ack { cookie: bench.cookie, timestamp: ts(12, 3), key: b"" }));
    bench.feed(3, &Message::Ack(Ack { cookie: bench.cookie, timestamp: ts(12, 3), key: b"" }));
    bench.is(State::Invalid, "14.1", "new");
}

// INV with an equal timestamp: acknowledged, and nothing changes.

#[test]
fn any_state_inv_equal() {
    let equal = [
        (Valid, inv(10, 3, false, "old"), "to 3: ack 10.3"),
        (Invalid, inv(12, 3, false, "theirs"), "to 3: ack 12.3"),
        (Write, inv(12, 2, false, "mine"), "to 3: ack 12.2"),
        (Rmw, inv(11, 2, true, "old+"), "to 3: ack 11.2"),
        (Trans, inv(12, 3, false, "theirs"), "to 3: ack 12.3"),
        (Replay, inv(12, 3, false, "theirs"), "to 3: ack 12.3"),
    ];
    for (stage, message, ack) in equal {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.feed(3, &message), [ack]);
        bench.is_unchanged(stage);
    }
}

// INV with a lower timestamp.

#[test]
fn any_state_but_rmw_inv_lower_write() {
    for stage in [Valid, Invalid, Write, Trans, Replay] {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.feed(1, &inv(10, 1, false, "late")), ["to 1: ack 10.1"]);
        bench.is_unchanged(stage);
    }
}

#[test]
fn rmw_inv_lower_write() {
    // H12: the read-modify-write has not seen the write, so they can't both commit in this order.
    let mut bench = Bench::at(Rmw);
    let counter = ["to 1: inv k 11.2 rmw \"old+\""];
    assert_eq!(bench.feed(1, &inv(10, 1, false, "late")), counter);
    bench.is_unchanged(Rmw);
}

#[test]
fn any_state_inv_lower_rmw() {
    let counters = [
        (Valid, "to 1: inv k 10.3 write \"old\""),
        (Invalid, "to 1: inv k 12.3 write \"theirs\""),
        (Write, "to 1: inv k 12.2 write \"mine\""),
        (Rmw, "to 1: inv k 11.2 rmw \"old+\""),
        (Trans, "to 1: inv k 12.3 write \"theirs\""),
        (Replay, "to 1: inv k 12.3 write \"theirs\""),
    ];
    for (stage, counter) in counters {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.feed(1, &inv(9, 1, true, "late")), [counter]);
        bench.is_unchanged(stage);
    }
}

// ACKs.

#[test]
fn valid_and_invalid_acks() {
    for stage in [Valid, Invalid] {
        let mut bench = Bench::at(stage);
        bench.cookie = Slot { index: 0, generation: 0 };
        assert_eq!(bench.ack(1), NOTHING);
        assert_eq!(bench.ack(3), NOTHING);
        bench.is_unchanged(stage);
    }
}

#[test]
fn any_pending_state_one_ack() {
    for stage in [Write, Rmw, Trans, Replay] {
        let mut bench = Bench::at(stage);
        assert_eq!(bench.ack(1), NOTHING);
        assert_eq!(bench.ack(1), NOTHING, "a duplicate counts once");
        bench.is_unchanged(stage);
    }
}

#[test]
fn write_all_acks() {
    let mut bench = Bench::at(Write);
    bench.ack(1);
    assert_eq!(bench.ack(3), ["to 1: val k 12.2", "to 3: val k 12.2", "answer OK"]);
    bench.is(State::Valid, "12.2", "mine");
}

#[test]
fn rmw_all_acks() {
    let mut bench = Bench::at(Rmw);
    bench.ack(1);
    assert_eq!(bench.ack(3), ["to 1: val k 11.2", "to 3: val k 11.2", "answer 4"]);
    bench.is(State::Valid, "11.2", "old+");
    assert!(!bench.cluster.meta(2, "k").unsettled);
}

#[test]
fn trans_all_acks() {
    let mut bench = Bench::at(Trans);
    bench.ack(1);
    // O2: the version was superseded, so nobody needs to hear that it may be read.
    assert_eq!(bench.ack(3), ["answer OK"]);
    bench.is(State::Invalid, "12.3", "theirs");
}

#[test]
fn replay_all_acks() {
    let mut bench = Bench::at(Replay);
    bench.ack(1);
    let sent = ["to 1: val k 12.3", "to 3: val k 12.3", "answer \"theirs\""];
    assert_eq!(bench.ack(3), sent);
    bench.is(State::Valid, "12.3", "theirs");
}

#[test]
fn an_ack_of_another_version_does_not_count() {
    let mut bench = Bench::at(Write);
    for from in [1, 3] {
        let ack = Ack { cookie: bench.cookie, timestamp: ts(14, 2), key: b"" };
        assert_eq!(bench.feed(from, &Message::Ack(ack)), NOTHING);
    }
    bench.is_unchanged(Write);
}

// VAL.

#[test]
fn valid_val_equal() {
    let mut bench = Bench::at(Valid);
    assert_eq!(bench.feed(3, &val(10, 3)), NOTHING);
    bench.is_unchanged(Valid);
}

#[test]
fn invalid_val_equal() {
    let mut bench = Bench::at(Invalid);
    assert_eq!(bench.feed(3, &val(12, 3)), NOTHING);
    bench.is(State::Valid, "12.3", "theirs");
}

#[test]
fn write_val_equal() {
    // Someone replayed it (H4): the client is answered, and nobody else needs to be told.
    let mut bench = Bench::at(Write);
    assert_eq!(bench.feed(3, &val(12, 2)), ["answer OK"]);
    bench.is(State::Valid, "12.2", "mine");
}

#[test]
fn rmw_val_equal() {
    let mut bench = Bench::at(Rmw);
    assert_eq!(bench.feed(3, &val(11, 2)), ["answer 4"]);
    bench.is(State::Valid, "11.2", "old+");
    assert!(!bench.cluster.meta(2, "k").unsettled);
}

#[test]
fn trans_val_equal() {
    // Every live replica holds the newer version, so the own write has ended.
    let mut bench = Bench::at(Trans);
    assert_eq!(bench.feed(3, &val(12, 3)), ["answer OK"]);
    bench.is(State::Valid, "12.3", "theirs");
}

#[test]
fn replay_val_equal() {
    let mut bench = Bench::at(Replay);
    assert_eq!(bench.feed(3, &val(12, 3)), ["answer \"theirs\""]);
    bench.is(State::Valid, "12.3", "theirs");
}

#[test]
fn any_state_val_other() {
    for stage in [Valid, Invalid, Write, Rmw, Trans, Replay] {
        for version in [8, 13] {
            let mut bench = Bench::at(stage);
            assert_eq!(bench.feed(3, &val(version, 3)), NOTHING);
            bench.is_unchanged(stage);
        }
    }
}

// The message loss timeout.

#[test]
fn valid_and_invalid_mlt_without_a_waiting_op() {
    for stage in [Valid, Invalid] {
        let mut bench = Bench::at(stage);
        for _ in 0..10 {
            assert_eq!(bench.wait(), NOTHING);
        }
        bench.is_unchanged(stage);
    }
}

#[test]
fn write_mlt() {
    let mut bench = Bench::at(Write);
    bench.ack(1);
    // Only to whom it may have been lost.
    assert_eq!(bench.wait(), ["to 3: inv k 12.2 write \"mine\""]);
    assert_eq!(bench.wait(), ["to 3: inv k 12.2 write \"mine\""]);
    bench.is_unchanged(Write);
}

#[test]
fn rmw_mlt() {
    let mut bench = Bench::at(Rmw);
    bench.ack(3);
    assert_eq!(bench.wait(), ["to 1: inv k 11.2 rmw \"old+\""]);
    bench.is_unchanged(Rmw);
}

#[test]
fn trans_mlt() {
    // The newer version is driven to its end, which is the end of the own write.
    let mut bench = Bench::at(Trans);
    let sent = ["to 1: inv k 12.3 write \"theirs\"", "to 3: inv k 12.3 write \"theirs\""];
    assert_eq!(bench.wait(), sent);
    bench.is(State::Replay, "12.3", "theirs");
    bench.ack(1);
    assert_eq!(bench.ack(3), ["to 1: val k 12.3", "to 3: val k 12.3", "answer OK"]);
}

#[test]
fn trans_mlt_and_superseded_again() {
    let mut bench = Bench::at(Trans);
    bench.wait();
    assert_eq!(bench.feed(1, &inv(14, 1, false, "new")), ["to 1: ack 14.1"]);
    bench.is(State::Trans, "14.1", "new");
    assert_eq!(bench.feed(1, &val(14, 1)), ["answer OK"]);
    bench.is(State::Valid, "14.1", "new");
}

#[test]
fn invalid_mlt_with_a_waiting_op() {
    let mut bench = Bench::at(Invalid);
    bench.own(get("k"));
    let mut sent = Vec::new();
    while sent.is_empty() {
        sent = bench.wait();
    }
    // The original timestamp, value and flag.
    assert_eq!(sent, ["to 1: inv k 12.3 write \"theirs\"", "to 3: inv k 12.3 write \"theirs\""]);
    bench.is(State::Replay, "12.3", "theirs");
}

#[test]
fn replay_mlt() {
    let mut bench = Bench::at(Replay);
    bench.ack(1);
    assert_eq!(bench.wait(), ["to 3: inv k 12.3 write \"theirs\""]);
    bench.is_unchanged(Replay);
}
