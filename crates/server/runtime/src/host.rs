//! One lane of one node on its thread, with its sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry};
use quorate_machine::{Outcome, Rng};
use quorate_node::{Change, Invalidation, Lane, Listed, Moves, Outbox};
use quorate_resp::Frontend;
use quorate_types::{Epoch, Incarnation, Instant, LaneId, NodeId, NodeSet, Now, Tag, limits};

use crate::backend::{LaneBackend, NodeFacts};
use crate::clients::Clients;
use crate::disk::LaneDisk;
use crate::guests::Guests;
use crate::handle::{ChangeReply, IoFacts, LinkFacts, lock};
use crate::handshakes::PendingHandshakes;
use crate::link::Link;
use crate::node_disk::NodeDisk;
use crate::token::Source;
use crate::{clock, process};

mod peers;

/// How often facts are published at most.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// How soon facts are published after the last thing that happened, if a wake-up must be spent on
/// it: a busy lane publishes in passing.
const PUBLISH_WITHIN: Duration = Duration::from_millis(250);
/// How often the process's memory is looked up.
const RESIDENT_EVERY: Duration = Duration::from_secs(1);

/// One lane of one node on its thread.
pub(crate) struct Host {
    /// Its place among the nodes of this process.
    pub(crate) index: usize,
    pub(crate) node: NodeId,
    pub(crate) lane: Lane,
    pub(crate) out: Outbox,
    /// What writes the lane's log, if it has one.
    pub(crate) disk: Option<LaneDisk>,
    /// The directory of the node, which is locked as long as one of its lanes runs.
    pub(crate) directory: Option<Arc<NodeDisk>>,
    /// Whether that was said of it last.
    pub(crate) disk_was_full: bool,
    /// Turns in which no answer has left that rests on a read.
    pub(crate) turns_without_reads: u32,
    pub(crate) frontend: Frontend,
    pub(crate) clients: Clients,
    pub(crate) handshakes: PendingHandshakes,
    pub(crate) facts: Arc<NodeFacts>,
    /// Connections to peers in other processes, and of guests, by node id.
    pub(crate) links: Vec<Option<Box<Link>>>,
    linked: NodeSet,
    pub(crate) links_to_read: NodeSet,
    /// Links that go on with a large message in the next turn.
    links_to_write: NodeSet,
    pub(crate) guests: Guests,
    /// Peers on this very thread.
    local: NodeSet,
    /// Peers in other processes that have messages waiting.
    to_send: NodeSet,
    /// Of these, the peers that somebody's answer depends on.
    urgent: NodeSet,
    /// Turns since messages that are not urgent were held back.
    held_turns: u32,
    /// The view whose addresses are known.
    known_epoch: Epoch,
    /// What has been logged about the next view.
    moves: Moves,
    /// The life in which the links were introduced.
    incarnation: Incarnation,
    rng: Rng,
    changes: BTreeMap<u64, ChangeReply>,
    /// The request to leave that is under way.
    leaving: Option<u64>,
    next_change: u64,
    io: Arc<Vec<Mutex<IoFacts>>>,
    pub(crate) turns: u64,
    /// Clients whose disconnection was logged.
    evicted: u64,
    cut: u64,
    published: Instant,
    published_turns: u64,
    resident_read: Instant,
}

impl Host {
    /// A lane that starts now. `local` are the nodes of this process.
    pub(crate) fn new(
        index: usize,
        facts: Arc<NodeFacts>,
        lane: LaneId,
        incarnation: Incarnation,
        clients: Arc<quorate_resp::Shared>,
        io: Arc<Vec<Mutex<IoFacts>>>,
        local: NodeSet,
    ) -> Self {
        let now = clock::now();
        let shared = Arc::clone(&facts.shared);
        let node = shared.config.node;
        let mut host = Self {
            index,
            node,
            lane: Lane::new(shared, lane, incarnation, now),
            out: Outbox::new(),
            disk: None,
            directory: None,
            disk_was_full: false,
            turns_without_reads: 0,
            frontend: Frontend::new(clients),
            clients: Clients::default(),
            handshakes: PendingHandshakes::default(),
            links: (0..=limits::NODE_ID_MAX).map(|_| None).collect(),
            linked: NodeSet::EMPTY,
            links_to_read: NodeSet::EMPTY,
            links_to_write: NodeSet::EMPTY,
            guests: Guests::default(),
            local: local.without(node),
            to_send: NodeSet::EMPTY,
            urgent: NodeSet::EMPTY,
            held_turns: 0,
            known_epoch: Epoch(0),
            moves: Moves::default(),
            incarnation,
            rng: Rng::new(facts.shared.config.seed ^ process::random()),
            changes: BTreeMap::new(),
            leaving: None,
            next_change: 1,
            io,
            turns: 0,
            evicted: 0,
            cut: 0,
            published: Instant::ZERO,
            published_turns: 0,
            resident_read: Instant::ZERO,
            facts,
        };
        host.learn_addresses();
        host
    }

    // --- clients -------------------------------------------------------------------------------

    /// Takes in a client.
    pub(crate) fn open_client(
        &mut self,
        now: Now,
        stream: TcpStream,
        peer: SocketAddr,
        registry: &Registry,
    ) {
        let host = self.index;
        self.clients.open(now, stream, peer, &mut self.frontend, |stream, slot| {
            let token = Source::Client { host, slot }.token();
            registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
        });
    }

    /// Reads from clients and executes what they ask for, what waits since the last turn first.
    pub(crate) fn read_clients(&mut self) {
        let now = clock::now();
        let mut backend = LaneBackend {
            lane: &mut self.lane,
            out: &mut self.out,
            node: &self.facts,
            rng: &mut self.rng,
            now,
        };
        self.frontend.begin_turn(now, &mut backend);
        self.clients.read(clock::now, &mut self.frontend, &mut backend);
    }

    /// Hands completed ops to the front end. Returns whether there were any.
    pub(crate) fn complete(&mut self, now: Now) -> bool {
        if !self.has_answers() {
            return false;
        }
        let leased = std::mem::take(&mut self.out.leased);
        let listed = std::mem::take(&mut self.out.listed);
        let mut done = std::mem::take(&mut self.out.done);
        let mut published = std::mem::take(&mut self.out.published);
        let expired = std::mem::take(&mut self.out.expired);
        let mut backend = LaneBackend {
            lane: &mut self.lane,
            out: &mut self.out,
            node: &self.facts,
            rng: &mut self.rng,
            now,
        };
        for (keyspace, key) in expired {
            self.frontend.expired(keyspace.0, key, now, &mut backend);
        }
        for publication in published.drain(..) {
            self.frontend.published(publication, &backend);
        }
        for (tag, answer) in leased {
            self.frontend.leased(tag, answer, now, &mut backend);
        }
        for (tag, outcome) in listed {
            let listed = match outcome {
                Outcome::Done(Listed { next, keys, count }) => {
                    Outcome::Done(quorate_resp::Listed { next, keys, count })
                }
                Outcome::Refused(refusal) => Outcome::Refused(refusal),
                Outcome::Unknown => Outcome::Unknown,
            };
            self.frontend.listed(tag, listed, now, &mut backend);
        }
        for done in done.drain(..) {
            if done.lease_bound {
                self.frontend.rests_on_lease(done.tag);
            }
            self.frontend.complete(done.tag, done.outcome, now, &mut backend);
        }
        for invalidation in std::mem::take(&mut self.out.invalidated) {
            self.frontend.invalidated(told(invalidation));
        }
        if self.out.done.is_empty() {
            self.out.done = done;
        }
        if self.out.published.is_empty() {
            self.out.published = published;
        }
        true
    }

    /// Does what time demands. Returns whether there was anything.
    pub(crate) fn tick(&mut self, now: Now) -> bool {
        self.out.tells_expired = self.frontend.tells_expired();
        let lane_due = self.lane.next_deadline() <= now.monotonic;
        if lane_due {
            self.lane.tick(now, &mut self.out);
        }
        if self.frontend.is_short_of_memory(|| self.lane.shared().memory_used()) {
            self.lane.short_of_memory(now, &mut self.out);
        }
        if self.frontend.next_deadline() <= now.monotonic {
            let mut backend = LaneBackend {
                lane: &mut self.lane,
                out: &mut self.out,
                node: &self.facts,
                rng: &mut self.rng,
                now,
            };
            self.frontend.tick(now, &mut backend);
        }
        self.frontend.close_killed();
        self.handshakes.expire(now.monotonic);
        self.tend_guests(now);
        lane_due
    }

    /// Lets the replies of this turn, to clients and to peers, leave if the lease held while they
    /// were read. Reads the clock itself, since that must be after the reads.
    pub(crate) fn seal(&mut self) {
        let needs = self.frontend.needs_seal();
        let seal = self.lane.seal(clock::now(), needs, &mut self.out);
        if needs {
            self.frontend.seal(seal);
            self.turns_without_reads = 0;
        } else {
            self.turns_without_reads = self.turns_without_reads.saturating_add(1);
        }
    }

    /// Writes to the clients.
    pub(crate) fn flush_clients(&mut self, now: Now) {
        let mut backend = LaneBackend {
            lane: &mut self.lane,
            out: &mut self.out,
            node: &self.facts,
            rng: &mut self.rng,
            now,
        };
        self.clients.flush(now, &mut self.frontend, &mut backend);
    }

    // --- control -------------------------------------------------------------------------------

    /// Asks for a change of the membership.
    pub(crate) fn change_members(&mut self, now: Now, change: Change, reply: ChangeReply) {
        let tag = self.next_change;
        self.next_change += 1;
        self.changes.insert(tag, reply);
        self.lane.change_members(now, Tag(tag), change, &mut self.out);
    }

    /// Asks the others to go on without this node, whose clients' work is done.
    pub(crate) fn leave(&mut self, now: Now) {
        let tag = self.next_change;
        self.next_change += 1;
        self.leaving = Some(tag);
        self.lane.leave(now, Tag(tag), &mut self.out);
    }

    /// Whether [`Host::leave`] is not answered yet.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Answers membership changes that are settled.
    pub(crate) fn answer_changes(&mut self) {
        for (tag, result) in self.out.control.drain(..) {
            self.leaving = self.leaving.filter(|leaving| *leaving != tag.0);
            if let Some(reply) = self.changes.remove(&tag.0) {
                reply(result);
            }
        }
    }

    /// When this lane wants its next turn at the latest.
    pub(crate) fn next_deadline(&self) -> Instant {
        let links = self.linked.into_iter().filter_map(|node| {
            self.links[usize::from(node.0)].as_ref().map(|link| link.deadline())
        });
        let publish = if self.published_turns < self.turns {
            self.published + PUBLISH_WITHIN
        } else {
            Instant::NEVER
        };
        [
            self.lane.next_deadline(),
            self.frontend.next_deadline(),
            self.handshakes.deadline(),
            self.guests.deadline(),
            publish,
            links.min().unwrap_or(Instant::NEVER),
        ]
        .into_iter()
        .min()
        .unwrap_or(Instant::NEVER)
    }

    /// Whether nothing of any client is pending: no connection, no op, no unsent reply.
    pub(crate) fn is_drained(&self) -> bool {
        self.frontend.is_empty()
            && self.frontend.pending() == 0
            && !self.frontend.is_dirty()
            && !self.clients.is_blocked()
    }

    /// Whether the lane has answered something that the front end has not been told.
    pub(crate) fn has_answers(&self) -> bool {
        let Outbox { done, leased, listed, published, expired, invalidated, .. } = &self.out;
        let is_answered = !done.is_empty() || !leased.is_empty() || !listed.is_empty();
        let is_told = !published.is_empty() || !invalidated.is_empty();
        is_answered || is_told || !expired.is_empty()
    }

    /// Wakes the other lanes if clients of theirs are to be disconnected.
    pub(crate) fn rouse_others(&mut self) {
        if self.frontend.take_named_others() {
            self.facts.parkers.iter().for_each(|parker| parker.unpark());
        }
    }

    /// Whether another turn has work without any new event.
    pub(crate) fn has_work(&mut self) -> bool {
        self.has_answers()
            || !self.links_to_read.is_empty()
            || !self.links_to_write.is_empty()
            || self.clients.has_work(&self.frontend)
    }

    /// Publishes facts, if the last time is long enough ago and something happened since.
    pub(crate) fn publish(&mut self, now: Now) {
        if now.monotonic < self.published + PUBLISH_EVERY {
            return;
        }
        self.published = now.monotonic;
        self.published_turns = self.turns;
        self.lane.publish(now);
        let number = usize::from(self.lane.id().0);
        if number == 0 && now.monotonic >= self.resident_read + RESIDENT_EVERY {
            self.resident_read = now.monotonic;
            let resident = process::resident_bytes();
            self.facts.resident.store(resident, Relaxed);
        }
        self.log_evicted();
        self.log_cut();
        let links = self.linked.into_iter().filter_map(|node| {
            let link = self.links[usize::from(node.0)].as_ref()?;
            Some(LinkFacts {
                peer: node,
                up: link.is_up(),
                complaint: link.complaint().to_owned(),
                counts: link.counts,
            })
        });
        *lock(&self.io[number]) = IoFacts {
            turns: self.turns,
            longest_turn_micros: self.facts.longest_turns[number].load(Relaxed),
            clients: self.frontend.len() as u64,
            guests: self.guests.nodes.len() as u64,
            client_bytes_received: self.clients.bytes_received,
            client_bytes_sent: self.clients.bytes_sent,
            strangers_refused: self.handshakes.refused,
            links: links.collect(),
        };
    }
}

impl Host {
    /// A turn of the thread was slow and took this long.
    pub(crate) fn note_turn(&self, took: Duration) {
        let lane = usize::from(self.lane.id().0);
        let micros = took.as_micros() as u64;
        self.facts.longest_turns[lane].fetch_max(micros, Relaxed);
    }

    /// Logs that clients were disconnected at their output limit, together those since the last time.
    fn log_cut(&mut self) {
        let stats = self.frontend.stats();
        let cut = stats.subscribers_cut.load(Relaxed) + stats.readers_cut.load(Relaxed);
        let count = cut - std::mem::replace(&mut self.cut, cut);
        if count > 0 {
            tracing::warn!(
                node = %self.node,
                clients = count,
                "clients were disconnected because they did not read what they were sent: replies or \
                 messages beyond client-output-buffer-limit; see omem in CLIENT LIST for who reads slowly"
            );
        }
    }

    /// Logs that clients were disconnected, together those since the last time.
    fn log_evicted(&mut self) {
        let evicted = self.frontend.stats().evicted.load(Relaxed);
        let count = evicted - std::mem::replace(&mut self.evicted, evicted);
        if count > 0 {
            tracing::warn!(
                node = %self.node,
                clients = count,
                "clients that held most were disconnected: all together reached maxmemory-clients; \
                 see tot-mem in CLIENT LIST for who holds much, or raise it"
            );
        }
    }
}

/// What the lane's clients must no longer rely on, as the front end knows it.
fn told(invalidation: Invalidation) -> quorate_resp::Invalidation {
    match invalidation {
        Invalidation::Everything => quorate_resp::Invalidation::Everything,
        Invalidation::Keys(keyspace, changes) => {
            let keys = changes.keys.into_iter().map(|changed| (changed.key, changed.writer));
            let (keyspace, more) = (keyspace.0, changes.more);
            quorate_resp::Invalidation::Keys { keyspace, keys: keys.collect(), more }
        }
    }
}
