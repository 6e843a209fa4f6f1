//! Connections of guests: clients that coordinate their transactions themselves, over the peer
//! port. They count as peers of one lane under node ids that no member has, taken from the top.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry};
use quorate_node::GUESTS_MAX;
use quorate_resp::Holding;
use quorate_types::{Instant, NodeId, NodeSet, Now, limits};
use quorate_wire::Hello;

use crate::host::Host;
use crate::link::{Link, receive};
use crate::token::Source;

/// How long a guest may say nothing. Each says about once a second up to where its transactions are
/// over; without that the nodes could forget nothing.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Unsent bytes from which on a guest counts as one that does not read: two of the largest messages.
const BACKLOG_MAX: usize = 2 * limits::MESSAGE_BYTES_MAX;

/// The guests of one lane.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    pub(crate) nodes: NodeSet,
    /// When each was last heard.
    heard: BTreeMap<NodeId, Instant>,
    /// What each is in the account of what clients hold.
    holdings: BTreeMap<NodeId, Arc<Holding>>,
}

impl Guests {
    pub(crate) fn heard(&mut self, now: Instant, node: NodeId) {
        self.heard.insert(node, now);
    }

    /// The first that has said nothing for too long.
    fn silent(&self, now: Instant) -> Option<NodeId> {
        let late = |since: &Instant| now >= *since + SILENCE_MAX;
        self.heard.iter().find(|(_, since)| late(since)).map(|(node, _)| *node)
    }

    /// When somebody may have been silent for too long.
    pub(crate) fn deadline(&self) -> Instant {
        let first = self.heard.values().min();
        first.map_or(Instant::NEVER, |since| *since + SILENCE_MAX)
    }
}

impl Host {
    /// Takes over a connection on which a guest introduced itself to this lane.
    pub(crate) fn adopt_guest(
        &mut self,
        now: Now,
        stream: TcpStream,
        theirs: &Hello,
        rest: &[u8],
        registry: &Registry,
    ) {
        let ours = self.hello();
        let Some(node) = self.free_id() else {
            return refuse(
                stream,
                &format!(
                    "lane {} of this node has {GUESTS_MAX} clients that coordinate their \
                     transactions already; use another node's client port, or close one",
                    ours.lane
                ),
            );
        };
        let mut link = Link::of_guest(node);
        let token = Source::Link { host: self.index, peer: node }.token();
        let watch = |stream: &mut TcpStream| {
            registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
        };
        if let Err(error) = link.adopt(stream, theirs.incarnation, rest, &ours, watch) {
            tracing::info!(%error, "a guest could not be served");
            return;
        }
        // Messages for the guest that had the id before.
        self.out.peer(node).clear();
        self.links[usize::from(node.0)] = Some(Box::new(link));
        self.guests.nodes.insert(node);
        self.guests.heard(now.monotonic, node);
        self.guests.holdings.insert(node, self.frontend.guest_came());
        self.links_to_read.insert(node);
        self.lane.guest_connected(node, theirs.incarnation);
        tracing::debug!(guest = %node, lane = %ours.lane, "guest connected");
    }

    /// A node id that no member, no configured node and no guest has.
    fn free_id(&self) -> Option<NodeId> {
        if self.guests.nodes.len() >= GUESTS_MAX {
            return None;
        }
        let configured: NodeSet =
            self.facts.shared.config.nodes.iter().map(|node| node.node).collect();
        let taken = configured.union(self.lane.view().voters()).union(self.guests.nodes);
        (1..=limits::NODE_ID_MAX).rev().map(NodeId).find(|node| !taken.contains(*node))
    }

    /// Ends a guest's connection.
    pub(crate) fn drop_guest(&mut self, now: Now, node: NodeId, reason: &str) {
        self.guests.nodes.remove(node);
        self.guests.heard.remove(&node);
        if let Some(holding) = self.guests.holdings.remove(&node) {
            self.frontend.guest_left(&holding);
        }
        self.links[usize::from(node.0)] = None;
        self.links_to_read.remove(node);
        self.out.peer(node).clear();
        self.lane.guest_lost(now, node);
        tracing::debug!(guest = %node, reason, "guest disconnected");
    }

    /// Ends the connections of all guests whose id is in a set.
    pub(crate) fn drop_guests(&mut self, now: Now, nodes: NodeSet, reason: &str) {
        for node in self.guests.nodes.intersection(nodes) {
            self.drop_guest(now, node, reason);
        }
    }

    /// Counts what guests hold. Ends the connections of those that say nothing, or that hold most
    /// where all clients hold too much.
    pub(crate) fn tend_guests(&mut self, now: Now) {
        for node in self.guests.nodes {
            let link = self.links[usize::from(node.0)].as_ref().map_or(0, |link| link.bytes());
            let bytes = (link + self.out.peer(node).capacity()) as u64;
            let holding = self.guests.holdings.get(&node);
            if holding.is_some_and(|holding| !self.frontend.guest_holds(holding, bytes)) {
                self.drop_guest(now, node, "clients hold too much together, and it holds most");
            }
        }
        while let Some(node) = self.guests.silent(now.monotonic) {
            self.drop_guest(now, node, "it said nothing for too long");
        }
    }

    /// Whether a guest lets too much wait that it should read.
    pub(crate) fn is_slow_guest(&self, node: NodeId) -> bool {
        let link = self.links[usize::from(node.0)].as_ref();
        self.guests.nodes.contains(node) && link.is_some_and(|link| link.backlog() > BACKLOG_MAX)
    }
}

/// Says why a guest is not served, as `handshakes.rs` does.
fn refuse(mut stream: TcpStream, reason: &str) {
    tracing::warn!(reason, "guest refused");
    // A guest that is gone need not be told.
    let _ = stream.write(format!("-REFUSED {reason}\r\n").as_bytes());
    let mut unread = Vec::new();
    let _ = receive(&stream, &mut unread, 4096);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_ones_are_found() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut guests = Guests::default();
        assert_eq!(guests.deadline(), Instant::NEVER);
        guests.heard(at(1), NodeId(63));
        guests.heard(at(2), NodeId(62));
        assert_eq!(guests.deadline(), at(11));
        guests.heard(at(5), NodeId(63));
        assert_eq!(guests.deadline(), at(12));
        assert_eq!(guests.silent(at(11)), None);
        assert_eq!(guests.silent(at(12)), Some(NodeId(62)));
    }
}
