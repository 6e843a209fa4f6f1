//! Publications: from the lane where a client publishes to every lane, of this node and of others,
//! where somebody listens.
//!
//! A publication goes from its lane to the other lanes of the node by the post, and to the same lane
//! of each other node as one message, from where it goes to that node's lanes by the post.
//!
//! **Order.** What one client publishes, each subscriber gets in that order. A client is on one lane,
//! so each of its publications takes the same path to a subscriber, and each part of the path keeps
//! order: the post does, and between nodes the sending lane numbers what it sends to a node. A
//! connection does not: a large message is overtaken by small ones. So what comes early waits for what
//! is missing.
//!
//! **Only where somebody listens.** Nodes tell each other what is listened to (`interest.rs`).
//!
//! **At most once.** Nothing is sent twice. What a connection or a full buffer loses leaves a gap in
//! the numbers. A publication waits for those before it for a bounded time ([`GAP_TIMEOUTS`]), however
//! many gaps they leave, and is handed out without them then. Nothing is sent to nodes outside the
//! view, and a node hears nobody whom it doesn't see in its own view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quorate_machine::mutant;
use quorate_types::{
    Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Publication, Topic, limits,
};
use quorate_wire::{Header, Kind, Malformed, PubSubMessage};

use crate::interest::Interest;
use crate::{Lane, Mail, Outbox};

pub(crate) const PROBES: &[&str] = &[EARLY, PASSED_OVER];

/// For how many timeouts for lost messages a publication waits for one before it.
pub(crate) const GAP_TIMEOUTS: u32 = 25;
/// Publications from one lane that wait for one before them.
const EARLY_MAX: usize = 16 * 1024;
/// Bytes of these: as many as a connection has on its way at most.
const EARLY_BYTES_MAX: usize = limits::PEER_BUFFER_BYTES_MAX;

const EARLY: &str = "pubsub: a publication overtook another";
const PASSED_OVER: &str = "pubsub: a lost publication was passed over";

/// What one lane knows of the publications that it sends and receives.
#[derive(Debug, Default)]
pub(crate) struct PubSub {
    /// The life of each receiving node, and the number of the last publication sent to it.
    sent: BTreeMap<NodeId, (Incarnation, u64)>,
    received: BTreeMap<NodeId, Received>,
    pub(crate) interest: Interest,
}

/// What came from the same lane of another node.
#[derive(Debug)]
struct Received {
    life: Incarnation,
    /// The number that is next.
    next: u64,
    /// What came before its turn, by number.
    early: BTreeMap<u64, Early>,
    /// Until when each of these waits, and its number.
    waits: BTreeSet<(Instant, u64)>,
    /// Bytes of these.
    bytes: usize,
}

/// A publication that came before its turn.
#[derive(Debug)]
struct Early {
    publication: Publication,
    /// Until when it waits.
    until: Instant,
}

impl Received {
    fn new(life: Incarnation) -> Self {
        Self { life, next: 1, early: BTreeMap::new(), waits: BTreeSet::new(), bytes: 0 }
    }

    /// Until when the first of those waits that came early.
    fn until(&self) -> Instant {
        self.waits.first().map_or(Instant::NEVER, |(until, _)| *until)
    }

    /// Whether one of those has waited enough, or too many wait.
    fn gives_up(&self, now: Instant) -> bool {
        self.until() <= now || self.early.len() > EARLY_MAX || self.bytes > EARLY_BYTES_MAX
    }

    /// Keeps a publication until its turn has come. One that has come before waits no longer for coming
    /// again.
    fn keep(&mut self, number: u64, publication: Publication, until: Instant) {
        if !self.early.contains_key(&number) {
            self.bytes += publication.bytes();
            self.waits.insert((until, number));
            self.early.insert(number, Early { publication, until });
        }
    }

    /// Takes the publication whose turn it is.
    fn take_next(&mut self) -> Option<Publication> {
        let Early { publication, until } = self.early.remove(&self.next)?;
        self.waits.remove(&(until, self.next));
        self.bytes -= publication.bytes();
        self.next += 1;
        Some(publication)
    }

    /// All that is left waits until then.
    fn wait_anew(&mut self, until: Instant) {
        self.early.values_mut().for_each(|early| early.until = until);
        self.waits = self.early.keys().map(|number| (until, *number)).collect();
    }
}

impl PubSub {
    pub(crate) fn next_deadline(&self) -> Instant {
        let received = self.received.values().map(Received::until).min();
        received.unwrap_or(Instant::NEVER).min(self.interest.next_deadline())
    }

    /// The number of the next publication to a node.
    fn number(&mut self, to: NodeId, life: Incarnation) -> u64 {
        let sent = self.sent.entry(to).or_insert((life, 0));
        if sent.0 != life {
            *sent = (life, 0);
        }
        sent.1 += 1;
        sent.1
    }

    /// A new view is in force.
    fn install(&mut self, is_live: impl Fn(NodeId, Incarnation) -> bool) {
        self.sent.retain(|node, (life, _)| is_live(*node, *life));
        self.received.retain(|node, received| is_live(*node, received.life));
    }
}

impl Lane {
    /// Publishes on behalf of a client of this lane: at once for this lane, by mail and messages for
    /// the others. Returns how many clients get it, as far as is known.
    pub fn broadcast(&mut self, publication: &Arc<Publication>, out: &mut Outbox) -> u64 {
        let me = self.shared.config.node;
        let (live, lanes) = (self.view.live().without(me), self.shared.config.lanes);
        let audience = self.shared.listeners.audience(publication, me, live, lanes);
        self.hand_on(publication, audience.lanes, out);
        for node in audience.nodes {
            let Some(member) = self.view.member(node) else { continue };
            let to = member.incarnation;
            let number = self.pubsub.number(node, to);
            let epoch = self.view.epoch;
            out.frame(NodeSet::only(node), |buffer| {
                Header::frame(buffer, Kind::PubSub, KeyspaceId(0), epoch, |writer| {
                    PubSubMessage::encode_publish(to, number, publication, writer);
                });
            });
        }
        audience.receivers
    }

    /// How many clients of the cluster listen to a name, as far as is known.
    pub fn listeners(&self, topic: Topic, name: &[u8]) -> u64 {
        self.shared.listeners.count(topic, name, self.hearing())
    }

    /// Visits the names that clients of the cluster listen to, as far as is known, in their order.
    pub fn visit_names(&self, topic: Topic, visit: &mut dyn FnMut(&[u8])) {
        self.shared.listeners.visit(topic, self.hearing(), visit);
    }

    /// The nodes whose clients a publication reaches.
    fn hearing(&self) -> NodeSet {
        self.view.live().with(self.shared.config.node)
    }

    /// Hands a publication on to these other lanes of the node.
    fn hand_on(&self, publication: &Arc<Publication>, lanes: u64, out: &mut Outbox) {
        for lane in (0..self.shared.config.lanes).filter(|lane| lanes >> lane & 1 == 1) {
            if LaneId(lane) != self.id {
                out.mail.push((LaneId(lane), Mail::Published(Arc::clone(publication))));
            }
        }
    }

    /// A publication of another node, whose turn it is.
    fn hand_out(&mut self, publication: Publication, out: &mut Outbox) {
        let me = self.shared.config.node;
        let lanes = self.shared.config.lanes;
        let audience = self.shared.listeners.audience(&publication, me, NodeSet::EMPTY, lanes);
        let publication = Arc::new(publication);
        self.hand_on(&publication, audience.lanes, out);
        if audience.lanes >> self.id.0 & 1 == 1 {
            self.take_publication(publication, out);
        }
    }

    /// A peer has published something.
    pub(crate) fn hear_pubsub(
        &mut self,
        now: Now,
        (from, life): (NodeId, Incarnation),
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        match PubSubMessage::decode(body)? {
            PubSubMessage::Publish { to, .. }
            | PubSubMessage::Listen { to, .. }
            | PubSubMessage::Heard { to, .. }
                if to != self.incarnation =>
            {
                crate::lane::count(&mut self.counts.ignored, "pubsub: to an earlier life");
            }
            PubSubMessage::Publish { number, publication, .. } => {
                self.hear_publication(now, (from, life), number, publication, out);
            }
            PubSubMessage::Listen { number, base, complete, counts, .. } => {
                self.hear_listen((from, life), (number, base), complete, &counts, out);
            }
            PubSubMessage::Heard { number, .. } => self.hear_heard(now, from, number, out),
        }
        Ok(())
    }

    fn hear_publication(
        &mut self,
        now: Now,
        (from, life): (NodeId, Incarnation),
        number: u64,
        publication: Publication,
        out: &mut Outbox,
    ) {
        let received = self.pubsub.received.entry(from).or_insert_with(|| Received::new(life));
        if received.life != life {
            *received = Received::new(life);
        }
        if mutant!("node_publication_early_is_next") {
            return self.hand_out(publication, out);
        }
        if number < received.next && !mutant!("node_publication_twice") {
            return crate::lane::count(&mut self.counts.ignored, "pubsub: too late");
        }
        if number > received.next {
            crate::lane::count(&mut out.probes, EARLY);
            let timeout = self.shared.config.message_loss_timeout;
            received.keep(number, publication, now.monotonic + timeout * GAP_TIMEOUTS);
            return self.give_up_gaps(now, from, out);
        }
        received.next = received.next.max(number + 1);
        self.hand_out(publication, out);
        self.hand_out_early(from, out);
    }

    /// Hands out what has waited for its turn, as far as its turn has come.
    fn hand_out_early(&mut self, from: NodeId, out: &mut Outbox) {
        while let Some(received) = self.pubsub.received.get_mut(&from)
            && let Some(publication) = received.take_next()
        {
            self.hand_out(publication, out);
        }
    }

    /// What is missing before one that has waited enough is lost: goes on behind each gap before it.
    fn give_up_gaps(&mut self, now: Now, from: NodeId, out: &mut Outbox) {
        while let Some(received) = self.pubsub.received.get_mut(&from)
            && received.gives_up(now.monotonic)
            && let Some(first) = received.early.keys().next()
        {
            crate::lane::count(&mut out.probes, PASSED_OVER);
            crate::lane::count(&mut self.counts.ignored, "pubsub: lost before this one");
            received.next = *first;
            if mutant!("node_publication_waits_for_each_gap") {
                let timeout = self.shared.config.message_loss_timeout;
                received.wait_anew(now.monotonic + timeout * GAP_TIMEOUTS);
            }
            self.hand_out_early(from, out);
        }
    }

    /// Gives up what has not come in time.
    pub(crate) fn tick_pubsub(&mut self, now: Now, out: &mut Outbox) {
        let received = self.pubsub.received.iter();
        let due = received.filter(|(_, received)| received.gives_up(now.monotonic));
        let due: Vec<NodeId> = due.map(|(node, _)| *node).collect();
        for node in due {
            self.give_up_gaps(now, node, out);
        }
        self.tick_interest(now, out);
    }

    /// A new view is in force.
    pub(crate) fn install_pubsub(&mut self, now: Now, out: &mut Outbox) {
        let view = Arc::clone(&self.view);
        self.pubsub.install(|node, life| view.is_live(node, life));
        self.install_interest(now, out);
    }

    /// This node begins a new life.
    pub(crate) fn reset_pubsub(&mut self, out: &mut Outbox) {
        self.reset_interest(out);
        self.pubsub = PubSub::default();
    }
}
