//! The dependency graph: strongly connected components, and the shortest cycle with the strongest
//! name.
//!
//! # Relays
//!
//! A relation such as "ended before it began" has quadratically many pairs. A *relay* is a node
//! that stands for a set of transactions: an edge into it, followed by [`EdgeKind::Relay`] edges,
//! is the edge to each transaction that they reach. A chain of relays in the order of time makes
//! real-time order linear in size. Relay edges cost nothing in a search, so cycles are shortest in
//! terms of transactions.

use std::collections::VecDeque;

/// The meaning of an edge: its source comes before its target, because...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgeKind {
    /// ...the target overwrote what the source wrote (ww).
    WriteWrite,
    /// ...the target read what the source wrote (wr).
    WriteRead,
    /// ...the target overwrote what the source read (rw).
    ReadWrite,
    /// ...the source had ended when the target began.
    RealTime,
    /// The edge continues another one.
    Relay,
}

/// The kind of an edge, its key, and whether it rests on real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) kind: EdgeKind,
    /// Whether real time showed the order of versions behind the edge, or the write that a read
    /// saw.
    pub(crate) timed: bool,
    /// The key that it is about.
    pub(crate) key: u32,
}

impl Label {
    pub(crate) fn new(kind: EdgeKind, key: u32) -> Self {
        Self { kind, timed: false, key }
    }

    pub(crate) fn timed(kind: EdgeKind, key: u32) -> Self {
        Self { kind, timed: true, key }
    }

    fn realtime(self) -> bool {
        self.timed || self.kind == EdgeKind::RealTime
    }
}

const RELAY: Label = Label { kind: EdgeKind::Relay, timed: false, key: 0 };

/// One edge of a cycle, between two transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) from: u32,
    pub(crate) label: Label,
    pub(crate) to: u32,
}

/// Edges that a search may look at before it settles for the best cycle that it has.
const BUDGET: u64 = 40_000_000;

/// A graph in the making.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Nodes below this are transactions, the others relays.
    transactions: u32,
    nodes: u32,
    edges: Vec<(u32, u32, Label)>,
}

impl Graph {
    pub(crate) fn new(transactions: usize) -> Self {
        let transactions = u32::try_from(transactions).expect("fewer than 2^32 transactions");
        Self { transactions, nodes: transactions, edges: Vec::new() }
    }

    pub(crate) fn relay(&mut self) -> u32 {
        self.nodes = self.nodes.checked_add(1).expect("fewer than 2^32 nodes");
        self.nodes - 1
    }

    /// Adds an edge. A transaction does not come before itself: that is ignored.
    pub(crate) fn add(&mut self, from: u32, to: u32, label: Label) {
        if from != to {
            self.edges.push((from, to, label));
        }
    }

    /// An edge into the relay `from` goes on to `to`.
    pub(crate) fn forward(&mut self, from: u32, to: u32) {
        self.add(from, to, RELAY);
    }

    pub(crate) fn edge_count(&self) -> usize {
        self.edges.len()
    }

    /// The shortest cycle found, of those with the strongest name.
    pub(crate) fn strongest_cycle(&self) -> Option<Vec<Step>> {
        let whole = Adjacency::new(self, &self.edges);
        let any = Allowed { reads: true, skipped_reads: Skipped::Any, realtime: true };
        let components = whole.components(any);
        if components.cyclic.is_empty() {
            return None;
        }
        // Only edges inside of components can lie on a cycle.
        let inner: Vec<_> = self
            .edges
            .iter()
            .filter(|(from, to, _)| components.same(*from, *to))
            .copied()
            .collect();
        let inner = Adjacency::new(self, &inner);
        for realtime in [false, true] {
            for (reads, skipped_reads) in [
                (false, Skipped::None),
                (true, Skipped::None),
                (true, Skipped::One),
                (true, Skipped::Any),
            ] {
                let allowed = Allowed { reads, skipped_reads, realtime };
                if let Some(cycle) = inner.shortest_cycle(allowed) {
                    return Some(cycle);
                }
            }
        }
        unreachable!("the last search admits every edge, and a component has a cycle")
    }
}

/// Which edges a search may use.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    /// Edges from a write to a read of it.
    reads: bool,
    skipped_reads: Skipped,
    realtime: bool,
}

/// How many edges from a read to the write that replaced what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skipped {
    None,
    /// Exactly one: the first of the cycle.
    One,
    Any,
}

impl Allowed {
    fn admits(self, label: Label) -> bool {
        // Orders of versions that were inferred from real time rest on reads, so a cycle of them
        // is not one of writes alone.
        let order = label.timed && label.kind != EdgeKind::WriteRead;
        let inferred = order && self.skipped_reads == Skipped::None;
        if inferred || (label.realtime() && !self.realtime) {
            return false;
        }
        match label.kind {
            EdgeKind::WriteWrite | EdgeKind::RealTime | EdgeKind::Relay => true,
            EdgeKind::WriteRead => self.reads,
            EdgeKind::ReadWrite => self.skipped_reads != Skipped::None,
        }
    }

    /// Whether the first step of a cycle may be this one.
    fn begins(self, label: Label) -> bool {
        self.admits(label)
            && (self.skipped_reads != Skipped::One || label.kind == EdgeKind::ReadWrite)
    }

    /// Whether a later step may be this one.
    fn continues(self, label: Label) -> bool {
        self.admits(label)
            && (self.skipped_reads != Skipped::One || label.kind != EdgeKind::ReadWrite)
    }
}

/// A graph's edges by source.
struct Adjacency {
    transactions: u32,
    starts: Vec<u32>,
    edges: Vec<(u32, Label)>,
}

/// Strongly connected components.
struct Components {
    /// The component of each node.
    of: Vec<u32>,
    /// Transactions that lie on a cycle, by component.
    cyclic: Vec<Vec<u32>>,
    /// Whether a component holds more than one transaction.
    is_cyclic: Vec<bool>,
}

impl Components {
    /// Whether both nodes lie in one component with a cycle.
    fn same(&self, a: u32, b: u32) -> bool {
        let component = self.of[a as usize];
        component == self.of[b as usize] && self.is_cyclic[component as usize]
    }
}

const UNSEEN: u32 = u32::MAX;

impl Adjacency {
    fn new(graph: &Graph, edges: &[(u32, u32, Label)]) -> Self {
        let mut starts = vec![0u32; graph.nodes as usize + 1];
        for (from, _, _) in edges {
            starts[*from as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut sorted = vec![(0, RELAY); edges.len()];
        for (from, to, label) in edges {
            let place = &mut next[*from as usize];
            sorted[*place as usize] = (*to, *label);
            *place += 1;
        }
        Self { transactions: graph.transactions, starts, edges: sorted }
    }

    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    fn out(&self, node: u32) -> std::ops::Range<usize> {
        self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize
    }

    /// Tarjan's algorithm (1972), with a stack of its own: components can be deep.
    fn components(&self, allowed: Allowed) -> Components {
        let nodes = self.nodes();
        let mut of = vec![UNSEEN; nodes];
        let mut index = vec![UNSEEN; nodes];
        let mut low = vec![0u32; nodes];
        let mut cursor: Vec<u32> = self.starts[..nodes].to_vec();
        let mut open = Vec::new();
        let mut path = Vec::new();
        let (mut next_index, mut count) = (0, 0);
        let (mut cyclic, mut is_cyclic) = (Vec::new(), Vec::new());
        for root in 0..nodes as u32 {
            if index[root as usize] != UNSEEN {
                continue;
            }
            path.push(root);
            while let Some(&node) = path.last() {
                let at = node as usize;
                if index[at] == UNSEEN {
                    index[at] = next_index;
                    low[at] = next_index;
                    next_index += 1;
                    open.push(node);
                }
                let mut descend = None;
                while (cursor[at] as usize) < self.out(node).end {
                    let (to, label) = self.edges[cursor[at] as usize];
                    cursor[at] += 1;
                    if !allowed.admits(label) || of[to as usize] != UNSEEN {
                        continue;
                    }
                    if index[to as usize] == UNSEEN {
                        descend = Some(to);
                        break;
                    }
                    low[at] = low[at].min(index[to as usize]);
                }
                if let Some(to) = descend {
                    path.push(to);
                    continue;
                }
                path.pop();
                if let Some(&parent) = path.last() {
                    low[parent as usize] = low[parent as usize].min(low[at]);
                }
                if low[at] == index[at] {
                    let members = self.close(&mut open, node, count, &mut of);
                    is_cyclic.push(members.len() > 1);
                    if members.len() > 1 {
                        cyclic.push(members);
                    }
                    count += 1;
                }
            }
        }
        Components { of, cyclic, is_cyclic }
    }

    /// Takes a finished component off the stack and returns its transactions.
    fn close(&self, open: &mut Vec<u32>, root: u32, component: u32, of: &mut [u32]) -> Vec<u32> {
        let mut members = Vec::new();
        loop {
            let node = open.pop().expect("the root is on the stack");
            of[node as usize] = component;
            if node < self.transactions {
                members.push(node);
            }
            if node == root {
                return members;
            }
        }
    }

    /// The shortest cycle of such edges that the budget allows to find. The first search has no
    /// bound, so any cycle that exists is found.
    fn shortest_cycle(&self, allowed: Allowed) -> Option<Vec<Step>> {
        let components = self.components(allowed);
        let mut walk = Walk::new(self.nodes());
        let mut best: Option<Vec<Step>> = None;
        for start in components.cyclic.iter().flatten() {
            let bound = best.as_ref().map_or(usize::MAX, Vec::len);
            if bound == 2 || walk.spent > BUDGET {
                break;
            }
            if let Some(cycle) = walk.cycle_through(*start, self, &components, allowed, bound) {
                best = Some(cycle);
            }
        }
        best
    }
}

/// A breadth-first search whose memory is reused from start to start.
struct Walk {
    /// The number of the search that reached a node, and the distance and edge by which it did.
    reached: Vec<(u32, u32)>,
    parent: Vec<(u32, Label)>,
    round: u32,
    spent: u64,
    queue: VecDeque<(u32, u32)>,
}

impl Walk {
    fn new(nodes: usize) -> Self {
        Self {
            reached: vec![(0, 0); nodes],
            parent: vec![(0, RELAY); nodes],
            round: 0,
            spent: 0,
            queue: VecDeque::new(),
        }
    }

    /// The shortest cycle through `start` with fewer than `bound` steps.
    fn cycle_through(
        &mut self,
        start: u32,
        graph: &Adjacency,
        components: &Components,
        allowed: Allowed,
        bound: usize,
    ) -> Option<Vec<Step>> {
        self.round += 1;
        self.queue.clear();
        self.expand(start, 0, graph, components, |label| allowed.begins(label));
        while let Some((node, distance)) = self.queue.pop_front() {
            if distance as usize >= bound {
                return None;
            }
            if self.reached[node as usize] != (self.round, distance) {
                continue;
            }
            if node == start {
                return Some(self.path_to(start, graph.transactions));
            }
            self.expand(node, distance, graph, components, |label| allowed.continues(label));
        }
        None
    }

    fn expand(
        &mut self,
        node: u32,
        distance: u32,
        graph: &Adjacency,
        components: &Components,
        usable: impl Fn(Label) -> bool,
    ) {
        for (to, label) in &graph.edges[graph.out(node)] {
            self.spent += 1;
            if !usable(*label) || !components.same(node, *to) {
                continue;
            }
            let cost = u32::from(label.kind != EdgeKind::Relay);
            let known = &mut self.reached[*to as usize];
            if known.0 == self.round && known.1 <= distance + cost {
                continue;
            }
            *known = (self.round, distance + cost);
            self.parent[*to as usize] = (node, *label);
            if cost == 0 {
                self.queue.push_front((*to, distance));
            } else {
                self.queue.push_back((*to, distance + 1));
            }
        }
    }

    /// The cycle that led back to `start`, without its relays.
    fn path_to(&self, start: u32, transactions: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        let (mut node, mut to) = (start, start);
        loop {
            let (from, label) = self.parent[node as usize];
            node = from;
            if label.kind != EdgeKind::Relay {
                assert!(from < transactions, "relays are left by relay edges");
                steps.push(Step { from, label, to });
                to = from;
                if from == start {
                    break;
                }
            }
        }
        steps.reverse();
        steps
    }
}
