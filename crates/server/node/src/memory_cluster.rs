//! A driver without sockets, for measurements and tests: every node of a cluster in one process, and
//! what a peer is told is handed over in memory.

use std::sync::Arc;

use quorate_sync::{Parker, Post, Wake};
use quorate_types::{Incarnation, LaneId, NodeId, NodeSet, Now};

use crate::{Lane, Mail, NodeConfig, Outbox, Shared};

/// The lane of one number of every node. One thread drives it; mail between the lanes of a node
/// goes from thread to thread.
pub struct MemoryCluster {
    /// The nodes' lanes, in the order in which they were configured.
    pub hosts: Vec<Host>,
    /// Nodes that no message reaches.
    pub deaf: NodeSet,
    /// Nodes whose messages reach nobody.
    pub mute: NodeSet,
    /// Mail between the lanes of a node, with which of the nodes it is.
    post: Post<(usize, Mail), NeverSleeps>,
    number: LaneId,
}

/// The thread that drives a lane comes back without being woken.
struct NeverSleeps;

impl Wake for NeverSleeps {
    fn wake(&self) {}
}

/// A node, by its lane of this number.
pub struct Host {
    /// The node.
    pub node: NodeId,
    /// Its lane.
    pub lane: Lane,
    /// What the lane wants done. The driver takes the answers.
    pub out: Outbox,
}

impl MemoryCluster {
    /// A cluster whose nodes start now: one for each number of a lane.
    ///
    /// # Panics
    /// If there are no nodes, or if they have different numbers of lanes.
    pub fn cluster(nodes: &[Arc<Shared>], now: Now) -> Vec<Self> {
        let lanes = nodes.first().expect("a cluster has nodes").config.lanes;
        assert!(nodes.iter().all(|node| node.config.lanes == lanes), "all have the same lanes");
        let parkers: Vec<_> = (0..lanes).map(|_| Arc::new(Parker::new(NeverSleeps))).collect();
        let of_number = |(lane, post): (u16, _)| Self {
            hosts: nodes.iter().map(|node| Host::new(node, LaneId(lane), now)).collect(),
            deaf: NodeSet::EMPTY,
            mute: NodeSet::EMPTY,
            post,
            number: LaneId(lane),
        };
        (0..lanes).zip(Post::connect(&parkers)).map(of_number).collect()
    }

    /// Marks the beginning of a turn, before anything is submitted.
    pub fn begin_turn(&mut self, now: Now) {
        self.hosts.iter_mut().for_each(|host| host.lane.begin_turn(now));
    }

    /// Takes mail, does what is due, ends the turn, and hands over what the nodes have to say to
    /// each other, once.
    ///
    /// # Panics
    /// If the nodes don't understand each other.
    pub fn end_turn(&mut self, now: Now) {
        while let Some((node, mail)) = self.post.take() {
            let host = &mut self.hosts[node];
            host.lane.deliver(now, mail, &mut host.out);
        }
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if host.lane.next_deadline() <= now.monotonic {
                host.lane.tick(now, &mut host.out);
            }
            host.lane.end_turn(now, &mut host.out);
            host.lane.seal(now, false, &mut host.out);
            for (to, mail) in std::mem::take(&mut host.out.mail) {
                if to == self.number {
                    host.lane.deliver(now, mail, &mut host.out);
                } else {
                    self.post.send(usize::from(to.0), (index, mail));
                }
            }
        }
        self.post.unpark();
        for from in 0..self.hosts.len() {
            self.hand_over(now, from);
        }
    }

    fn hand_over(&mut self, now: Now, from: usize) {
        let (node, incarnation) = (self.hosts[from].node, self.hosts[from].lane.incarnation());
        let _ = self.hosts[from].out.take_urgent();
        for peer in self.hosts[from].out.take_waiting() {
            if self.deaf.contains(peer) || self.mute.contains(node) {
                self.hosts[from].out.peer(peer).clear();
                continue;
            }
            let mut messages = std::mem::take(self.hosts[from].out.peer(peer));
            let host = self.hosts.iter_mut().find(|host| host.node == peer);
            let host = host.expect("nodes speak to configured ones");
            host.lane
                .receive(now, node, incarnation, &messages, &mut host.out)
                .expect("nodes of one build understand each other");
            messages.clear();
            *self.hosts[from].out.peer(peer) = messages;
        }
    }
}

impl Host {
    fn new(shared: &Arc<Shared>, lane: LaneId, now: Now) -> Self {
        let NodeConfig { node, seed, .. } = shared.config;
        let incarnation = Incarnation((seed ^ u64::from(node.0) << 48).max(1));
        let lane = Lane::new(Arc::clone(shared), lane, incarnation, now);
        Self { node, lane, out: Outbox::new() }
    }
}
