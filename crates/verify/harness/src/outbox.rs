//! The effects of one step.

use quorate_machine::{Completion, Effects, Gate, Protocol};
use quorate_types::{LaneId, NodeId, NodeSet, Tag, limits};

use crate::subject::{MessageOf, OutcomeOf, Subject};

/// What one step of a machine asked for.
pub struct Outbox<S: Subject> {
    node: NodeId,
    /// Messages, encoded, with their receivers.
    pub sent: Vec<(NodeId, Vec<u8>)>,
    /// The places of messages that leave behind the node's lease.
    pub leased: Vec<usize>,
    /// What it said to other lanes of its node.
    pub mail: Vec<(LaneId, <S::Machine as Protocol>::Mail)>,
    /// Answers to requests.
    pub completed: Vec<(Tag, Completion<OutcomeOf<S>>)>,
    /// Why input was ignored.
    pub ignored: Vec<&'static str>,
    /// Why a message was refused.
    pub refused: Vec<&'static str>,
    /// The rare branches that it reached.
    pub probes: Vec<&'static str>,
}

impl<S: Subject> Outbox<S> {
    /// Nothing yet, of a step of this node.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            sent: Vec::new(),
            leased: Vec::new(),
            mail: Vec::new(),
            completed: Vec::new(),
            ignored: Vec::new(),
            refused: Vec::new(),
            probes: Vec::new(),
        }
    }
}

impl<S: Subject> Effects<S::Machine> for Outbox<S> {
    fn send(&mut self, to: NodeId, message: &MessageOf<'_, S>) {
        assert_ne!(to, self.node, "a node sends nothing to itself");
        self.sent.push((to, encoded::<S>(message)));
    }

    fn send_behind(&mut self, gate: Gate, to: NodeSet, message: &MessageOf<'_, S>) {
        let first = self.sent.len();
        self.broadcast(to, message);
        if gate.lease {
            self.leased.extend(first..self.sent.len());
        }
    }

    fn complete(&mut self, tag: Tag, outcome: OutcomeOf<S>) {
        self.completed.push((tag, Completion::new(outcome)));
    }

    fn complete_on(&mut self, tag: Tag, completion: Completion<OutcomeOf<S>>) {
        self.completed.push((tag, completion));
    }

    fn mail(&mut self, to: LaneId, mail: <S::Machine as Protocol>::Mail) {
        self.mail.push((to, mail));
    }

    fn ignored(&mut self, reason: &'static str) {
        self.ignored.push(reason);
    }

    fn refused(&mut self, reason: &'static str) {
        self.refused.push(reason);
    }

    fn probe(&mut self, name: &'static str) {
        let listed = <S::Machine as Protocol>::PROBES.contains(&name);
        assert!(listed, "{name:?} is not listed in PROBES");
        self.probes.push(name);
    }
}

/// A message's bytes.
pub(crate) fn encoded<S: Subject>(message: &MessageOf<'_, S>) -> Vec<u8> {
    let mut bytes = Vec::new();
    S::encode(message, &mut bytes);
    assert!(bytes.len() <= limits::MESSAGE_BYTES_MAX, "a message of {} bytes", bytes.len());
    bytes
}
