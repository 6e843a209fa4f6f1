//! The effects of one step.

use quorate_machine::{Completion, Effects, Gate, Protocol};
use quorate_types::{LaneId, Lsn, NodeId, NodeSet, Tag, limits};

use crate::subject::{MessageOf, OutcomeOf, Subject};

/// What stands in the buffer of a log before the next entry.
const BEFORE: &[u8] = b"entries";

/// What one step of a machine asked for.
pub struct Outbox<S: Subject> {
    node: NodeId,
    /// Messages, encoded, with their receivers.
    pub sent: Vec<(NodeId, Vec<u8>)>,
    /// The places of messages that leave behind the node's lease.
    pub leased: Vec<usize>,
    /// The places of messages that leave behind the lane's log, and how far that must be durable.
    pub behind: Vec<(usize, Lsn)>,
    /// What it appended, if there is a log.
    pub appended: Vec<Vec<u8>>,
    /// The place of the log's last entry, if there is a log.
    log: Option<Lsn>,
    /// Whether promises wait for the log.
    waits: bool,
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
            behind: Vec::new(),
            appended: Vec::new(),
            log: None,
            waits: false,
            mail: Vec::new(),
            completed: Vec::new(),
            ignored: Vec::new(),
            refused: Vec::new(),
            probes: Vec::new(),
        }
    }

    /// The lane has a log whose last entry has this place; whether promises wait for it.
    #[must_use]
    pub fn with_log(self, last: Lsn, waits: bool) -> Self {
        Self { log: Some(last), waits, ..self }
    }
}

impl<S: Subject> Effects<S::Machine> for Outbox<S> {
    fn send(&mut self, to: NodeId, message: &MessageOf<'_, S>) {
        assert!(to != self.node || S::HAS_DISK, "a node sends nothing to itself");
        self.sent.push((to, encoded::<S>(message)));
    }

    fn send_behind(&mut self, gate: Gate, to: NodeSet, message: &MessageOf<'_, S>) {
        let first = self.sent.len();
        self.broadcast(to, message);
        if gate.lease {
            self.leased.extend(first..self.sent.len());
        }
        if gate.lsn > Lsn::START {
            self.behind.extend((first..self.sent.len()).map(|at| (at, gate.lsn)));
        }
    }

    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        let Some(last) = self.log else { return Lsn::START };
        // As in a log, other entries stand before it in the same buffer.
        let mut buffer = BEFORE.to_vec();
        encode(&mut buffer);
        self.appended.push(buffer.split_off(BEFORE.len()));
        if self.waits { Lsn(last.0 + self.appended.len() as u64) } else { Lsn::START }
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
