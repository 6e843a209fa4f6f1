//! How a lane knows its peers, calls and hears them, and sends what waits for them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry};
use quorate_node::Lane;
use quorate_types::{Epoch, LaneId, NodeId, NodeSet, Now, limits};
use quorate_wire::{Hello, VERSION};

use super::Host;
use crate::clock;
use crate::handle::{ThreadTask, ThreadTasks};
use crate::link::{Link, Progress};
use crate::token::Source;

/// For how long the messages of one peer are handled in a turn before others get theirs.
const PEER_PER_TURN: Duration = Duration::from_millis(2);
/// Turns for which messages that are not urgent may be held back.
const HELD_TURNS_MAX: u32 = 2;
/// A peer buffer larger than this is given back once it is empty.
const KEEP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the log says of a first view.
const FORMED: &str =
    "the cluster is formed, empty: what its nodes held before they started is gone";

impl Host {
    /// Makes the links those that the configuration, the view in force and open requests to add a node name.
    pub(super) fn learn_addresses(&mut self) {
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
        for newcomer in self.lane.newcomers() {
            addresses.insert(newcomer.node, newcomer.peer_address.clone());
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

    /// Logs each step towards the next view when it is taken, and calls the nodes that are to be added.
    fn log_moves(&mut self) {
        let moves = self.lane.moves();
        if moves == self.moves {
            return;
        }
        let former = std::mem::replace(&mut self.moves, moves);
        if moves.newcomers != former.newcomers {
            self.learn_addresses();
        }
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
}

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

/// Whether a connection goes on after this.
fn greeted_up(handled: &Progress, cut: &Option<Progress>) -> bool {
    !matches!(handled, Progress::Lost(_)) && cut.is_none()
}
