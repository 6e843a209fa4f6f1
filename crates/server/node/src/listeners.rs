//! Who listens to what: the channels and patterns of this node's lanes, and of other nodes' as far as
//! they have told.
//!
//! All lanes of a node share one table. It is written when a client begins or ends to listen, and read
//! by every publication.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::PoisonError;

use quorate_commands::glob_match;
use quorate_sync::primitives::RwLock;
use quorate_types::{LaneId, NodeId, NodeSet, Publication, Topic};
use quorate_wire::TopicCount;

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Listeners(RwLock<Table>);

/// Names of one topic, each with the lanes that have clients for it.
type Names = BTreeMap<Box<[u8]>, Vec<Ear>>;

#[derive(Debug, Default)]
struct Table {
    topics: [Names; 4],
    /// Of which lanes of other nodes everything is known, one bit each.
    known: BTreeMap<NodeId, u64>,
}

/// A lane on which clients listen.
#[derive(Clone, Copy, Debug)]
struct Ear {
    node: NodeId,
    lane: LaneId,
    clients: u32,
}

/// Whom a publication is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Audience {
    /// How many times it is received: once for each subscription that it fits.
    pub(crate) receivers: u64,
    /// The lanes of this node that have such subscriptions, one bit each.
    pub(crate) lanes: u64,
    /// The other nodes that have.
    pub(crate) nodes: NodeSet,
}

/// A lane of a node.
type Place = (NodeId, LaneId);

/// Where the names that are left begin: in a topic, behind a name if it is not whole.
type Rest = (Topic, Option<Box<[u8]>>);

impl Table {
    fn set(&mut self, topic: Topic, name: &[u8], (node, lane): Place, clients: u32) -> u32 {
        let names = &mut self.topics[topic as usize];
        if clients > 0 && !names.contains_key(name) {
            names.insert(name.into(), Vec::new());
        }
        let Some(ears) = names.get_mut(name) else { return 0 };
        let at = ears.iter().position(|ear| (ear.node, ear.lane) == (node, lane));
        let before = at.map_or(0, |at| ears[at].clients);
        match (at, clients) {
            (None, 0) => {}
            (Some(at), 0) => drop(ears.swap_remove(at)),
            (Some(at), clients) => ears[at].clients = clients,
            (None, clients) => ears.push(Ear { node, lane, clients }),
        }
        if ears.is_empty() {
            names.remove(name);
        }
        before
    }
}

impl Listeners {
    /// So many clients of a lane listen to a name from now on. Returns how many did before.
    pub(crate) fn set(&self, topic: Topic, name: &[u8], place: Place, clients: u32) -> u32 {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.set(topic, name, place, clients)
    }

    /// A lane of another node says what its clients listen to, and whether that is all by now. Returns
    /// the keys that it begins and ends to wait for.
    pub(crate) fn hear(
        &self,
        place: Place,
        counts: &[TopicCount],
        complete: bool,
    ) -> Vec<(Box<[u8]>, bool)> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut keys = Vec::new();
        for TopicCount { topic, name, count } in counts {
            let before = table.set(*topic, name, place, *count);
            if *topic == Topic::Key && (before == 0) != (*count == 0) {
                keys.push((name.clone(), before == 0));
            }
        }
        let known = table.known.entry(place.0).or_default();
        let bit = 1 << place.1.0;
        *known = if complete { *known | bit } else { *known & !bit };
        keys
    }

    /// Forgets what a lane of another node has said. Returns the keys that it waited for.
    pub(crate) fn forget(&self, place: Place) -> Vec<(Box<[u8]>, bool)> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut keys = Vec::new();
        for (topic, names) in Topic::ALL.into_iter().zip(&mut table.topics) {
            names.retain(|name, ears| {
                let before = ears.len();
                ears.retain(|ear| (ear.node, ear.lane) != place);
                if topic == Topic::Key && ears.len() < before {
                    keys.push((name.clone(), false));
                }
                !ears.is_empty()
            });
        }
        if let Some(known) = table.known.get_mut(&place.0) {
            *known &= !(1 << place.1.0);
        }
        keys
    }

    /// How many clients of a lane listen to a name.
    pub(crate) fn clients(&self, topic: Topic, name: &[u8], place: Place) -> u32 {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut ears = table.topics[topic as usize].get(name).into_iter().flatten();
        ears.find(|ear| (ear.node, ear.lane) == place).map_or(0, |ear| ear.clients)
    }

    /// Some of the names that a lane's clients listen to, about so many bytes of them from behind
    /// `after` on, and where the rest begins, if there is more.
    pub(crate) fn part(
        &self,
        topic: Topic,
        after: Option<&[u8]>,
        place: Place,
        bytes_enough: usize,
    ) -> (Vec<TopicCount>, Option<Rest>) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (mut counts, mut bytes) = (Vec::new(), 0);
        let mut after = after.map_or(Bound::Unbounded, Bound::Excluded);
        for topic in Topic::ALL.into_iter().skip(topic as usize) {
            for (name, ears) in
                table.topics[topic as usize].range::<[u8], _>((after, Bound::Unbounded))
            {
                // Names of other lanes are looked at, too.
                bytes += size_of::<TopicCount>();
                if let Some(ear) = ears.iter().find(|ear| (ear.node, ear.lane) == place) {
                    bytes += name.len();
                    counts.push(TopicCount { topic, name: name.clone(), count: ear.clients });
                }
                if bytes >= bytes_enough {
                    return (counts, Some((topic, Some(name.clone()))));
                }
            }
            after = Bound::Unbounded;
        }
        (counts, None)
    }

    /// Whom a publication of the node `me` is for, if these nodes live.
    pub(crate) fn audience(
        &self,
        publication: &Publication,
        me: NodeId,
        live: NodeSet,
        lanes: u16,
    ) -> Audience {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut audience = Audience::default();
        let mut add = |ears: &[Ear]| {
            for ear in ears {
                if ear.node == me {
                    audience.lanes |= 1 << ear.lane.0;
                } else if live.contains(ear.node) {
                    audience.nodes.insert(ear.node);
                } else {
                    continue;
                }
                audience.receivers += u64::from(ear.clients);
            }
        };
        if let Some(ears) = table.topics[publication.topic as usize].get(&publication.channel) {
            add(ears);
        }
        if publication.topic == Topic::Channel {
            for (pattern, ears) in &table.topics[Topic::Pattern as usize] {
                if glob_match(pattern, &publication.channel, false) {
                    add(ears);
                }
            }
        }
        // Those that have not told everything may have listeners.
        let all = u64::MAX >> (64 - lanes.clamp(1, 64));
        for node in live.without(me) {
            if table.known.get(&node) != Some(&all) {
                audience.nodes.insert(node);
            }
        }
        audience
    }

    /// How many clients of these nodes listen to a name.
    pub(crate) fn count(&self, topic: Topic, name: &[u8], nodes: NodeSet) -> u64 {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let ears = table.topics[topic as usize].get(name).into_iter().flatten();
        ears.filter(|ear| nodes.contains(ear.node)).map(|ear| u64::from(ear.clients)).sum()
    }

    /// Visits the names that clients of these nodes listen to, in their order.
    pub(crate) fn visit(&self, topic: Topic, nodes: NodeSet, visit: &mut dyn FnMut(&[u8])) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for (name, ears) in &table.topics[topic as usize] {
            if ears.iter().any(|ear| nodes.contains(ear.node)) {
                visit(name);
            }
        }
    }
}
