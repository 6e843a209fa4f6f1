//! Bad luck that one seed decides: messages lost, repeated and overtaken, and views that reach each
//! node in its own time.

use quorate_machine::Rng;
use quorate_types::{Role, View};

use crate::cluster::Cluster;
use crate::subject::Subject;

/// The disorder of one run.
#[derive(Clone, Debug, Default)]
pub struct Disorder {
    /// The nodes, from 1.
    pub nodes: u16,
    /// Of 1000 deliveries, how many messages are lost.
    pub lost: u64,
    /// Of 1000 deliveries, how many messages come again later.
    pub repeated: u64,
    /// Views that some nodes have not heard of yet.
    news: Vec<(u16, View)>,
    /// From and to of the slow link.
    slow: (u16, u16),
}

impl Disorder {
    /// Some messages of 1000 lost, and some repeated.
    pub fn new(nodes: u16, lost: u64, repeated: u64) -> Self {
        Self { nodes, lost, repeated, ..Self::default() }
    }

    /// Any node.
    pub fn node(&self, rng: &mut Rng) -> u16 {
        rng.below(u64::from(self.nodes)) as u16 + 1
    }

    /// Some message arrives, now or later once more, or is lost.
    pub fn deliver<S: Subject>(&mut self, rng: &mut Rng, cluster: &mut Cluster<S>) {
        let count = cluster.pool.len() as u64;
        if count == 0 {
            return;
        }
        // Mostly in order, sometimes anything.
        let at = if rng.chance(1, 2) { rng.below(count.min(4)) } else { rng.below(count) };
        // One link is slower than the others for a while.
        if rng.chance(1, 40) {
            self.slow = (self.node(rng), self.node(rng));
        }
        let packet = &cluster.pool[at as usize];
        if (packet.from.0, packet.to.0) == self.slow && rng.chance(9, 10) {
            return;
        }
        let packet = if rng.chance(self.repeated, 1000) {
            packet.clone()
        } else {
            cluster.pool.remove(at as usize)
        };
        if !rng.chance(self.lost, 1000) {
            cluster.inject(&packet);
        }
    }

    /// Decides a view in which a node has another role; every node hears of it in its own time.
    pub fn decide<S: Subject>(&mut self, cluster: &mut Cluster<S>, node: u16, role: Role) {
        let view = cluster.decide(&cluster.roles_with(node, role));
        self.announce(&view);
    }

    /// Decides a view without a node; every node hears of it in its own time.
    pub fn remove<S: Subject>(&mut self, cluster: &mut Cluster<S>, node: u16) {
        let mut roles = cluster.roles();
        roles.retain(|(other, _)| *other != node);
        let view = cluster.decide(&roles);
        self.announce(&view);
    }

    /// Every node hears of a view in its own time.
    pub fn announce(&mut self, view: &View) {
        self.news.extend((1..=self.nodes).map(|node| (node, view.clone())));
    }

    /// Nobody hears of the views that some nodes have not heard of yet.
    pub fn forget_news(&mut self) {
        self.news.clear();
    }

    /// Some node hears of a view, maybe of an old one.
    pub fn hear_news<S: Subject>(&mut self, rng: &mut Rng, cluster: &mut Cluster<S>) {
        if self.news.is_empty() {
            return;
        }
        let at = rng.below(self.news.len() as u64) as usize;
        let (node, view) = self.news.swap_remove(at);
        cluster.install_on(node, &view);
    }

    /// Every node hears of every view.
    pub fn hear_all_news<S: Subject>(&mut self, rng: &mut Rng, cluster: &mut Cluster<S>) {
        while !self.news.is_empty() {
            self.hear_news(rng, cluster);
        }
    }
}
