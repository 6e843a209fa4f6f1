//! What a lane wants its driver to do.

use std::sync::Arc;

use quorate_commands::{Op, Reply};
use quorate_machine::{Gate, Gated, Outcome, Seal, Slot};
use quorate_rifl::{Answer, LeaseEnd, LeaseId, Request};
use quorate_types::{
    Epoch, Incarnation, KeyspaceId, LaneId, Lsn, NodeId, NodeSet, Publication, Tag, Timestamp,
    View, limits,
};

use crate::engines::EngineMail;
use crate::{DiskRequest, Invalidation, Listed, SessionCall};

/// The answer to a submitted op.
#[derive(Debug)]
pub struct Done {
    /// The tag it was submitted under.
    pub tag: Tag,
    /// The answer.
    pub outcome: Outcome<Reply<'static>>,
    /// Whether the answer rests on this node's lease, so that [`crate::Lane::seal`] decides whether
    /// it may leave.
    pub lease_bound: bool,
    /// When it took effect in the serial order, if it did and the engine has one.
    pub at: Option<Timestamp>,
}

impl Done {
    /// An answer that rests on no lease and tells no place in an order.
    pub(crate) fn new(tag: Tag, outcome: Outcome<Reply<'static>>) -> Self {
        Self { tag, outcome, lease_bound: false, at: None }
    }
}

/// What waits for its gate.
#[derive(Debug)]
enum Held {
    Message(NodeSet, Vec<u8>),
    Answer(Done),
}

/// A message between two lanes of one node.
#[derive(Debug)]
pub enum Mail {
    /// An op whose key belongs to the receiving lane.
    Submit {
        /// Where the answer goes.
        from: LaneId,
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The tag the answer carries.
        tag: Tag,
        /// Ops of one origin on one key take effect in order.
        origin: u64,
        /// The op.
        op: Op,
    },
    /// The answer to [`Mail::Submit`].
    Done(Done),
    /// A newer view is in force.
    View(Arc<View>),
    /// The node was expelled and begins a new life: forget everything.
    Rejoin(Incarnation),
    /// The sending lane holds everything that the epoch's active members hold.
    CaughtUp {
        /// The sending lane.
        from: LaneId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// The sending lane's connection to a peer broke, or stands again.
    Link {
        /// The sending lane.
        from: LaneId,
        /// The peer.
        node: NodeId,
        /// Whether it stands.
        up: bool,
    },
    /// The engine of a keyspace says something to its sibling.
    Engine {
        /// The sending lane.
        from: LaneId,
        /// The keyspace.
        keyspace: KeyspaceId,
        /// What it says.
        mail: EngineMail,
    },
    /// Delete every key of a keyspace on the receiving lane.
    Flush {
        /// Where the answer goes.
        from: LaneId,
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The flush as the asking lane knows it.
        tag: Tag,
    },
    /// A request for a lease that the receiving lane keeps.
    Lease {
        /// Where the answer goes.
        from: LaneId,
        /// The tag the answer carries.
        tag: Tag,
        /// What is asked for.
        request: Request,
    },
    /// The answer to [`Mail::Lease`], or what became of the lease of a call.
    Leased {
        /// The tag of the request or of the call.
        tag: Tag,
        /// The answer.
        answer: Answer,
    },
    /// A session's call that runs on the receiving lane. Answered by [`Mail::Done`], or by
    /// [`Mail::Leased`] if its lease is no more.
    Call {
        /// Where the answer goes.
        from: LaneId,
        /// The tag the answer carries.
        tag: Tag,
        /// The call.
        call: Box<SessionCall>,
    },
    /// Which of these leases of the receiving lane have ended? The sending lane has records of them.
    Sweep(Vec<LeaseId>),
    /// Sessions whose records can go.
    Verdicts(Arc<[LeaseEnd]>),
    /// What a client of another lane, or of another node, has published.
    Published(Arc<Publication>),
    /// It is the turn of a command that waits on the receiving lane to be tried on a key.
    Turn {
        /// The command.
        slot: Slot,
        /// Which of its keys.
        key: u32,
    },
    /// Keys that clients of the receiving lane track have changed.
    Invalidated(Invalidation),
    /// The sending lane watches prefixes in the stores.
    Watch {
        /// The sending lane.
        from: LaneId,
        /// The request as that lane knows it.
        tag: Tag,
    },
    /// The answer to [`Mail::Watch`]: what the answering lane changes from now on is listed.
    WatchHeard {
        /// The request as the receiving lane knows it.
        tag: Tag,
    },
    /// Write a snapshot of the receiving lane.
    Save,
    /// Write a snapshot of the receiving lane that begins later than now, and say when it is there.
    Renew {
        /// Where the answer goes.
        from: LaneId,
        /// The question as that lane knows it.
        number: u32,
    },
    /// The answer to [`Mail::Renew`]: it is.
    Renewed {
        /// The lane whose snapshot it is.
        from: LaneId,
        /// The question as the receiving lane knows it.
        number: u32,
    },
    /// Say when the log of the receiving lane is durable as far as it is now.
    AwaitLog {
        /// Where the answer goes.
        from: LaneId,
        /// The snapshot of that lane that waits for it.
        snapshot: u32,
    },
    /// The answer to [`Mail::AwaitLog`]: it is.
    LogDurable {
        /// The lane whose log it is.
        from: LaneId,
        /// The snapshot of the receiving lane.
        snapshot: u32,
    },
    /// The answer to [`Mail::Flush`].
    Flushed {
        /// The flush as the asking lane knows it.
        tag: Tag,
        /// How it went.
        outcome: Outcome<()>,
    },
}

/// Effects of a loop turn, owned by the driver and reused.
#[derive(Debug, Default)]
pub struct Outbox {
    peers: Vec<Vec<u8>>,
    peer_bytes_max: usize,
    waiting: NodeSet,
    /// Of these, the peers that have something waiting which somebody's answer depends on.
    urgent: NodeSet,
    /// What waits for its gate: messages for the lease, the log or both; answers for the log, and
    /// for the lease as well if they rest on it. (An answer that waits for the lease alone leaves the
    /// lane at once, and the front end holds its connection's output until [`crate::Lane::seal`].)
    gated: Gated<Held>,
    /// Bytes of messages among them; they have the bound of one peer's.
    gated_bytes: usize,
    /// Answers among them.
    gated_answers: usize,
    /// Answers to ops that were submitted on this lane.
    pub done: Vec<Done>,
    /// Answers to requests for leases that were submitted on this lane, and what became of the lease
    /// of a call, under the call's tag: it was renewed, and the call goes on, or it can't be, and
    /// that is the end of the call. To be looked at before [`Outbox::done`].
    pub leased: Vec<(Tag, Answer)>,
    /// Answers to [`crate::Lane::list`]. They rest on the lease as a read does.
    pub listed: Vec<(Tag, Outcome<Listed>)>,
    /// What was published on other lanes and nodes for clients of this lane, in order.
    pub published: Vec<Arc<Publication>>,
    /// What clients of this lane keep and must not rely on any more. To be looked at behind
    /// [`Outbox::done`].
    pub invalidated: Vec<Invalidation>,
    /// Whether [`Outbox::expired`] is wanted.
    pub tells_expired: bool,
    /// Keys whose values are deleted here because they have expired.
    pub expired: Vec<(KeyspaceId, Box<[u8]>)>,
    /// Messages to other lanes of this node, in order for each lane.
    pub mail: Vec<(LaneId, Mail)>,
    /// What is asked of the disk; see [`crate::Lane::write_log`].
    pub disk: Vec<DiskRequest>,
    /// Why the process must end at once: a sentence for people.
    pub failed: Option<String>,
    /// Answers to membership changes that were asked for on this lane (lane 0).
    pub control: Vec<(Tag, Result<Epoch, String>)>,
    /// Rare branches that were reached, and how often; a simulator reads them.
    pub probes: Vec<(&'static str, u64)>,
    /// Set when the node began a new life: connections to peers must introduce themselves again.
    pub rejoined: Option<Incarnation>,
    /// Peers whose messages were dropped since the bound was reached.
    pub overflowed: NodeSet,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Self::bounded(limits::PEER_BUFFER_BYTES_MAX)
    }

    /// An empty outbox that takes so many bytes for one peer: a simulated cluster has less data.
    pub fn bounded(peer_bytes_max: usize) -> Self {
        let peers = (0..=limits::NODE_ID_MAX).map(|_| Vec::new()).collect();
        Self { peers, peer_bytes_max, ..Self::default() }
    }

    /// The encoded messages for a peer. The driver takes them out at its flush.
    pub fn peer(&mut self, node: NodeId) -> &mut Vec<u8> {
        &mut self.peers[usize::from(node.0)]
    }

    /// The peers that have messages waiting; the driver takes all of them out.
    pub fn take_waiting(&mut self) -> NodeSet {
        std::mem::take(&mut self.waiting)
    }

    /// The peers whose waiting messages should leave now. What the others get (VALs) may wait a
    /// moment for company, as long as more is about to follow.
    pub fn take_urgent(&mut self) -> NodeSet {
        std::mem::take(&mut self.urgent)
    }

    /// As [`Outbox::frame`], for a message that nobody's answer depends on.
    pub(crate) fn frame_lazily(&mut self, to: NodeSet, encode: impl FnOnce(&mut Vec<u8>)) {
        let urgent = self.urgent;
        self.frame(to, encode);
        self.urgent = urgent;
    }

    /// As [`Outbox::frame`], but the message leaves once its gate opens. While too much waits for
    /// gates, it is lost, as if its peer had taken nothing for long.
    pub(crate) fn frame_behind(
        &mut self,
        gate: Gate,
        to: NodeSet,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        if !gate.lease && self.gated.is_durable(gate.lsn) {
            return self.frame(to, encode);
        }
        if self.gated_bytes >= self.peer_bytes_max {
            self.overflowed = self.overflowed.union(to);
            return;
        }
        let mut bytes = Vec::new();
        encode(&mut bytes);
        self.gated_bytes += bytes.len();
        self.gated.push(gate, Held::Message(to, bytes));
    }

    /// Keeps an answer until the log is durable up to its gate's place, or gives it back if it is.
    pub(crate) fn hold_until_durable(&mut self, gate: Gate, done: Done) -> Option<Done> {
        if self.gated.is_durable(gate.lsn) {
            return Some(done);
        }
        self.gated_answers += 1;
        self.gated.push(gate, Held::Answer(done));
        None
    }

    /// Whether ops may begin, as far as the answers that wait for the log go.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.gated_answers < limits::OPS_PENDING_MAX
    }

    /// Whether anything in here may leave only after the seal.
    pub(crate) fn rests_on_lease(&self) -> bool {
        self.gated.rests_on_lease() || self.done.iter().any(|done| done.lease_bound)
    }

    /// The log is durable up to `lsn`: lets go the messages that waited for it, and gives out the
    /// answers.
    pub(crate) fn durable(&mut self, lsn: Lsn) -> Vec<Done> {
        self.gated.set_durable(lsn);
        self.release()
    }

    /// The lease held or is lost, or it is not known yet: lets go the messages that waited for it
    /// alone, or drops them, and gives out the answers. Answers that are lost are unknown.
    pub(crate) fn sealed(&mut self, seal: Seal) -> Vec<Done> {
        if seal == Seal::Waits || self.gated.is_empty() {
            return Vec::new();
        }
        let (mut lost, mut bytes) = (Vec::new(), 0);
        self.gated.set_lease(seal, |held| match held {
            Held::Message(_, message) => bytes += message.len(),
            Held::Answer(done) => lost.push(done),
        });
        self.gated_bytes -= bytes;
        self.gated_answers -= lost.len();
        for done in &mut lost {
            done.lease_bound = false;
            if matches!(done.outcome, Outcome::Done(_)) {
                done.outcome = Outcome::Unknown;
            }
        }
        lost.append(&mut self.release());
        lost
    }

    fn release(&mut self) -> Vec<Done> {
        let (mut answers, mut messages) = (Vec::new(), Vec::new());
        self.gated.release(|held| match held {
            Held::Message(to, bytes) => messages.push((to, bytes)),
            Held::Answer(done) => answers.push(Done { lease_bound: false, ..done }),
        });
        self.gated_answers -= answers.len();
        for (to, bytes) in messages {
            self.gated_bytes -= bytes.len();
            self.frame(to, |buffer| buffer.extend_from_slice(&bytes));
        }
        answers
    }

    /// Appends one encoded message for every node of a set: encodes it once and copies it.
    pub(crate) fn frame(&mut self, to: NodeSet, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut rest = to.into_iter().filter(|&node| {
            let fits = self.peers[usize::from(node.0)].len() < self.peer_bytes_max;
            if !fits {
                self.overflowed.insert(node);
            }
            fits
        });
        let Some(first) = rest.next() else { return };
        let others: NodeSet = rest.collect();
        let receivers = others.with(first);
        self.waiting = self.waiting.union(receivers);
        self.urgent = self.urgent.union(receivers);
        let mut buffer = std::mem::take(self.peer(first));
        let start = buffer.len();
        encode(&mut buffer);
        for node in others {
            self.peer(node).extend_from_slice(&buffer[start..]);
        }
        *self.peer(first) = buffer;
    }
}

#[cfg(test)]
mod tests;
