//! One lane of one node on its thread, with its sockets.

use std::collections::BTreeMap;
use std::io;
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
use quorate_wire::{Hello, VERSION};

use crate::backend::{LaneBackend, NodeFacts};
use crate::clients::Clients;
use crate::disk::LaneDisk;
use crate::guests::Guests;
use crate::handle::{ChangeReply, IoFacts, LinkFacts, ThreadTask, ThreadTasks, lock};
use crate::handshakes::PendingHandshakes;
use crate::link::{Link, Progress};
use crate::node_disk::NodeDisk;
use crate::token::Source;
use crate::{clock, process};

/// For how long the messages of one peer are handled in a turn before others get theirs.
const PEER_PER_TURN: Duration = Duration::from_millis(2);
/// Turns for which messages that are not urgent may be held back.
const HELD_TURNS_MAX: u32 = 2;
/// How often facts are published at most.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);
/// How soon facts are published after the last thing that happened, if a wake-up must be spent on
/// it: a busy lane publishes in passing.
const PUBLISH_WITHIN: Duration = Duration::from_millis(250);
/// How often the process's memory is looked up.
const RESIDENT_EVERY: Duration = Duration::from_secs(1);

/// What the log says of a first view.
const FORMED: &str =
    "the cluster is formed, empty: what its nodes held before they started is gone";

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

    // --- peers ---------------------------------------------------------------------------------

    /// Makes the links those that the configuration and the view in force name.
    fn learn_addresses(&mut self) {
        let view = Arc::clone(self.lane.view());
        self.known_epoch = view.epoch;
        if view.members.is_empty() && !self.linked.is_empty() {
            // A new life has no view yet. It finds the members of the last one where they were;
            // those of the configuration may long be gone.
            return;
        }
        let mut addresses = BTreeMap::new();
        for node in &self.facts.shared.config.nodes {
            addresses.insert(node.node, node.peer.clone());
        }
        for member in &view.members {
            if !member.peer_address.is_empty() {
                addresses.insert(member.node, member.peer_address.clone());
            }
        }
        // A node of the configuration that is no member has given its address up if a member has it:
        // who calls there for it reaches the member, and takes that one's connection.
        let is_taken = |address: &str| view.members.iter().any(|one| one.peer_address == address);
        addresses.retain(|node, address| view.member(*node).is_some() || !is_taken(address));
        let now = clock::now();
        self.drop_guests(now, addresses.keys().copied().collect(), "a node has its id now");
        for (&node, address) in &addresses {
            if node == self.node || self.local.contains(node) {
                continue;
            }
            match &mut self.links[usize::from(node.0)] {
                Some(link) => link.set_address(address),
                vacant => {
                    let link = Link::new(node, address.clone(), self.node < node);
                    *vacant = Some(Box::new(link));
                    self.linked.insert(node);
                }
            }
        }
        for node in self.linked {
            if !addresses.contains_key(&node) {
                self.links[usize::from(node.0)] = None;
                self.linked.remove(node);
            }
        }
    }

    /// Follows what the lane decided: a newer view, or a new life.
    pub(crate) fn follow_lane(&mut self, now: Now) {
        self.log_moves();
        if self.lane.view().epoch != self.known_epoch {
            self.learn_addresses();
            if self.lane.id() == LaneId(0) {
                let view = self.lane.view();
                tracing::info!(node = %self.node, epoch = %view.epoch, live = ?view.live(), "view");
                if view.epoch == Epoch(1) {
                    tracing::info!(node = %self.node, "{FORMED}");
                }
            }
        }
        if self.lane.incarnation() != self.incarnation {
            self.incarnation = self.lane.incarnation();
            self.out.rejoined = None;
            self.to_send = NodeSet::EMPTY;
            self.drop_guests(now, self.guests.nodes, "this node begins a new life");
            for node in self.linked {
                // What was encoded in the old life must not be sent in the new one's name.
                self.out.peer(node).clear();
                if let Some(link) = &mut self.links[usize::from(node.0)] {
                    link.lose(
                        now.monotonic,
                        0,
                        "this node began a new life and introduces itself again",
                    );
                }
            }
        }
    }

    /// Logs each step towards the next view when it is taken.
    fn log_moves(&mut self) {
        let moves = self.lane.moves();
        if moves == self.moves {
            return;
        }
        let former = std::mem::replace(&mut self.moves, moves);
        if moves.suspects != former.suspects {
            tracing::info!(node = %self.node, suspects = ?moves.suspects, "suspicion");
        }
        if moves.proposing && !former.proposing {
            tracing::info!(node = %self.node, "a view is proposed");
        }
    }

    pub(crate) fn hello(&self) -> Hello {
        hello(&self.lane)
    }

    /// Starts what is due: dialling, giving up on attempts that take too long.
    pub(crate) fn tend_links(&mut self, now: Now, registry: &Registry, tasks: &ThreadTasks) {
        for node in self.linked {
            let Some(link) = &mut self.links[usize::from(node.0)] else { continue };
            if link.deadline() > now.monotonic {
                continue;
            }
            if link.has_stalled(now.monotonic) {
                link.lose(now.monotonic, self.rng.next_u64(), "no answer in time");
            } else if link.wants_dial(now.monotonic) {
                match link.address().parse::<SocketAddr>() {
                    Ok(address) => self.dial(now, node, address, registry),
                    Err(_) => self.resolve(node, tasks),
                }
            }
        }
    }

    /// Looks a name up on a thread of its own: the system's resolver blocks.
    fn resolve(&mut self, node: NodeId, tasks: &ThreadTasks) {
        let Some(link) = &mut self.links[usize::from(node.0)] else { return };
        link.resolving();
        let (host, address, tasks) = (self.index, link.address().to_owned(), tasks.clone());
        std::thread::spawn(move || {
            use std::net::ToSocketAddrs;
            let address = address.to_socket_addrs().and_then(|mut found| {
                found.next().ok_or_else(|| io::Error::other("the name has no address"))
            });
            // A thread that can't take tasks is ending.
            let _ = tasks.leave(ThreadTask::Resolved { host, peer: node, address });
        });
    }

    /// The answer to [`Host::resolve`].
    pub(crate) fn resolved(
        &mut self,
        now: Now,
        node: NodeId,
        address: io::Result<SocketAddr>,
        registry: &Registry,
    ) {
        match address {
            Ok(address) => self.dial(now, node, address, registry),
            Err(error) => {
                if let Some(link) = &mut self.links[usize::from(node.0)] {
                    link.lose(now.monotonic, self.rng.next_u64(), &error.to_string());
                }
            }
        }
    }

    fn dial(&mut self, now: Now, node: NodeId, address: SocketAddr, registry: &Registry) {
        let Some(link) = &mut self.links[usize::from(node.0)] else { return };
        let token = Source::Link { host: self.index, peer: node }.token();
        let watch = |stream: &mut TcpStream| {
            registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
        };
        if let Err(error) = link.dial(now.monotonic, address, watch) {
            link.lose(now.monotonic, self.rng.next_u64(), &error.to_string());
        }
    }

    /// Takes over a connection on which a peer introduced itself to this lane.
    pub(crate) fn adopt(
        &mut self,
        now: Now,
        stream: TcpStream,
        theirs: &Hello,
        rest: &[u8],
        registry: &Registry,
    ) {
        if theirs.is_guest() {
            return self.adopt_guest(now, stream, theirs, rest, registry);
        }
        let ours = self.hello();
        let node = theirs.node;
        let Some(Some(link)) = self.links.get_mut(usize::from(node.0)) else {
            // It may be a member of a view that this node has not seen yet; it dials again.
            tracing::info!(peer = %node, "a node called that this one doesn't know yet");
            return;
        };
        let token = Source::Link { host: self.index, peer: node }.token();
        let watch = |stream: &mut TcpStream| {
            registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
        };
        match link.adopt(stream, theirs.incarnation, rest, &ours, watch) {
            Ok(()) => {
                self.links_to_read.insert(node);
                self.lane.peer_found(now, node, theirs.incarnation, &mut self.out);
                tracing::info!(peer = %node, lane = %ours.lane, "peer connected");
            }
            Err(error) => self.lost(now, node, &error.to_string()),
        }
    }

    /// Notes what the poll said about the connection to a peer.
    pub(crate) fn on_link_event(&mut self, now: Now, node: NodeId, event: &mio::event::Event) {
        let Some(Some(link)) = self.links.get_mut(usize::from(node.0)) else { return };
        let lane = &self.lane;
        match link.on_event(event, || hello(lane)) {
            Progress::Lost(reason) => self.lost(now, node, &reason),
            Progress::Same | Progress::CameUp => {
                if link.wants_read() {
                    self.links_to_read.insert(node);
                }
                if link.wants_write() {
                    self.links_to_write.insert(node);
                }
            }
        }
    }

    /// Reads from every peer that has something to say, and handles it.
    pub(crate) fn read_links(&mut self) {
        for node in std::mem::take(&mut self.links_to_read) {
            let Some(link) = &mut self.links[usize::from(node.0)] else { continue };
            let mut progress = link.read();
            // A promise that this node gives a peer counts from its receipt. If the process was
            // stopped after the turn had read its clock, that reading would be too early.
            let now = clock::now();
            if self.guests.nodes.contains(node) {
                self.guests.heard(now.monotonic, node);
            }
            let cut = match progress {
                Progress::Lost(_) => Some(std::mem::replace(&mut progress, Progress::Same)),
                _ => None,
            };
            // What came before the end is whole frames still.
            let greeted = link.greet(|| hello(&self.lane));
            let (lane, out) = (&mut self.lane, &mut self.out);
            if let (Progress::CameUp, Some(incarnation)) = (&greeted, link.incarnation()) {
                lane.peer_found(now, node, incarnation, out);
            }
            let handled = match greeted {
                Progress::Lost(_) => greeted,
                _ => link.frames(
                    |incarnation, messages| {
                        lane.receive(now, node, incarnation, messages, out).inspect_err(|malformed| {
                            let reason = malformed.0;
                            tracing::warn!(peer = %node, reason, "a message is refused, its connection closed");
                        })
                    },
                    || clock::monotonic().since(now.monotonic) < PEER_PER_TURN,
                ),
            };
            if greeted_up(&handled, &cut) && (link.wants_read() || link.has_frame()) {
                self.links_to_read.insert(node);
            }
            let end = if let Progress::Lost(_) = handled { Some(handled) } else { cut };
            if let Some(Progress::Lost(reason)) = end {
                self.lost(now, node, &reason);
            }
        }
    }

    fn lost(&mut self, now: Now, node: NodeId, reason: &str) {
        if self.guests.nodes.contains(node) {
            return self.drop_guest(now, node, reason);
        }
        let jitter = self.rng.next_u64();
        let Some(link) = &mut self.links[usize::from(node.0)] else { return };
        let was_up = link.is_up();
        link.lose(now.monotonic, jitter, reason);
        if was_up {
            self.lane.peer_lost(now, node, &mut self.out);
        }
    }

    /// Whether a handshake's hello fits this node, which takes guests or not.
    pub(crate) fn check_stranger(
        ours: &Hello,
        theirs: &Hello,
        takes_guests: bool,
    ) -> Result<(), String> {
        if theirs.is_guest() {
            if !takes_guests {
                return Err("this node takes no clients that coordinate their transactions \
                            themselves; use the client port, or set [cluster] guests = true on \
                            all nodes"
                    .to_owned());
            }
            return theirs.check_guest(ours).map_err(|refusal| refusal.to_string());
        }
        theirs.check(ours).map_err(|refusal| refusal.to_string())?;
        let node = ours.node;
        if theirs.node == node || theirs.node.0 == 0 || theirs.node.0 > limits::NODE_ID_MAX {
            return Err(format!("node id {} is this node's own or no id at all", theirs.node));
        }
        if theirs.node > node {
            return Err(format!("node {} waits for node {node} to call", theirs.node));
        }
        Ok(())
    }

    /// Sends what waits for peers in other processes: one frame and one system call each.
    pub(crate) fn flush_links(&mut self, now: Now) {
        let urgent = std::mem::take(&mut self.urgent);
        let mut send_now = std::mem::take(&mut self.to_send);
        // Waking a peer costs more than what a VAL tells it. While ops are in flight here, their
        // messages follow soon, and the VALs travel with them.
        if self.held_turns < HELD_TURNS_MAX && self.lane.is_busy() {
            self.to_send = send_now.difference(urgent);
            send_now = send_now.intersection(urgent);
        }
        self.held_turns = if self.to_send.is_empty() { 0 } else { self.held_turns + 1 };
        for node in std::mem::take(&mut self.links_to_write) {
            let Some(link) = &mut self.links[usize::from(node.0)] else { continue };
            let progress = link.write();
            self.sent(now, node, progress);
        }
        for node in send_now {
            let messages = self.out.peer(node);
            if messages.is_empty() {
                continue;
            }
            let progress = match &mut self.links[usize::from(node.0)] {
                Some(link) => link.send(messages),
                None => Progress::Same,
            };
            messages.clear();
            if messages.capacity() > KEEP_BYTES_MAX {
                *messages = Vec::new();
            }
            self.sent(now, node, progress);
        }
    }

    /// Something was written to a peer.
    fn sent(&mut self, now: Now, node: NodeId, progress: Progress) {
        if let Progress::Lost(reason) = progress {
            return self.lost(now, node, &reason);
        }
        if self.is_slow_guest(node) {
            return self.drop_guest(now, node, "it reads too slowly");
        }
        if self.links[usize::from(node.0)].as_ref().is_some_and(|link| link.wants_write()) {
            self.links_to_write.insert(node);
        }
    }

    /// Parts the peers that have messages waiting into those on this thread, which are returned,
    /// and those elsewhere, which [`Host::flush_links`] serves at the end of the turn.
    pub(crate) fn take_local(&mut self) -> NodeSet {
        let waiting = self.out.take_waiting();
        self.urgent = self.urgent.union(self.out.take_urgent());
        self.to_send = self.to_send.union(waiting.difference(self.local));
        waiting.intersection(self.local)
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

/// A peer buffer larger than this is given back once it is empty.
const KEEP_BYTES_MAX: usize = 4 * 1024 * 1024;

fn hello(lane: &Lane) -> Hello {
    let config = &lane.shared().config;
    Hello {
        version: VERSION,
        node: config.node,
        incarnation: lane.incarnation(),
        lane: lane.id(),
        lanes: config.lanes,
        lease_us: u32::try_from(config.lease.as_micros()).unwrap_or(u32::MAX),
        clock_drift_ppm: config.clock_drift_ppm,
        cluster: config.cluster.clone(),
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

/// Whether a connection goes on after this.
fn greeted_up(handled: &Progress, cut: &Option<Progress>) -> bool {
    !matches!(handled, Progress::Lost(_)) && cut.is_none()
}
