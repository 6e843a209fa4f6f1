//! What the cluster must know of the protocol that it runs.

use std::fmt::Debug;

use quorate_machine::{Completion, Machine, Protocol};
use quorate_types::{Epoch, Incarnation, LaneId, NodeId, Now, Tag};

use crate::outbox::Outbox;
use crate::packet::Packet;

/// A message of the protocol.
pub type MessageOf<'a, S> = <<S as Subject>::Machine as Protocol>::Message<'a>;

/// An answer of the protocol to a request.
pub type OutcomeOf<S> = <<S as Subject>::Machine as Protocol>::Outcome;

/// A lane of a process that begins.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its node.
    pub node: NodeId,
    /// Its lane.
    pub lane: LaneId,
    /// The life of the node.
    pub incarnation: Incarnation,
    /// The seed that the test chose for the node.
    pub seed: u64,
    /// The time on the node's clocks.
    pub now: Now,
}

/// What one step of a machine did, before the cluster carries it out.
pub struct Step<'a, S: Subject> {
    /// The node that made the step.
    pub node: u16,
    /// Its machine after the step.
    pub machine: &'a S::Machine,
    /// The messages that it sent, in order.
    pub packets: &'a [Packet<S>],
    /// Its answers, in order.
    pub answers: &'a [(Tag, Completion<OutcomeOf<S>>)],
    /// The rare branches that it reached.
    pub probes: &'a [&'static str],
    /// Whether the test makes up messages that no correct peer sends.
    pub lies: bool,
}

/// A protocol under test. The value is the setup of its machines, and what it remembers of their
/// steps.
pub trait Subject: Sized {
    /// Whether a node's messages to itself are the ends of what its disk was asked for; otherwise it sends
    /// none.
    const HAS_DISK: bool = false;
    /// Whether a machine needs it that a lane's snapshot counts only when the logs of the other lanes are durable
    /// as far as its last entry has seen them. Nodes see to it for all; where nobody needs it, tests don't.
    const SNAPSHOTS_AWAIT_LANES: bool = false;

    /// One lane of one node.
    type Machine: Machine<Outcome: Clone + PartialEq + Debug>;

    /// Lanes of each node.
    fn lanes(&self) -> u16 {
        1
    }

    /// A process that begins, without memory.
    fn start(&self, process: Process) -> Self::Machine;

    /// The epoch that stands in the header of the machine's messages: that of the view which it was
    /// last told, unless it knows better.
    fn epoch(machine: &Self::Machine, told: Epoch) -> Epoch {
        let _ = machine;
        told
    }

    /// Appends the bytes of a message.
    fn encode(message: &MessageOf<'_, Self>, bytes: &mut Vec<u8>);

    /// Reads bytes that [`Subject::encode`] wrote.
    fn decode(bytes: &[u8]) -> MessageOf<'_, Self>;

    /// The kind of a message in one word, by which tests name it.
    fn kind(message: &MessageOf<'_, Self>) -> &'static str {
        let _ = message;
        "message"
    }

    /// A message in words.
    fn describe(message: &MessageOf<'_, Self>) -> String {
        Self::kind(message).to_owned()
    }

    /// Closes the batches of a loop turn.
    fn end_turn(machine: &mut Self::Machine, now: Now, outbox: &mut Outbox<Self>) {
        let _ = (machine, now, outbox);
    }

    /// Begins another life of a process that stayed up while the others went on without it.
    fn begin_life(
        machine: &mut Self::Machine,
        now: Now,
        incarnation: Incarnation,
        outbox: &mut Outbox<Self>,
    ) {
        let _ = (machine, now, outbox);
        unreachable!("no test of this protocol gives a process another life, {incarnation:?}");
    }

    /// Takes note of a step.
    fn note(&mut self, step: &Step<'_, Self>) {
        let _ = step;
    }
}
