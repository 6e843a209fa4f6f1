//! Who listens to what: the channels and patterns of this node's lanes, and of other nodes' as far as
//! they have told.
//!
//! All lanes of a node share one table. It is written when a client begins or ends to listen, and read
//! by every publication.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use quorate_commands::glob_match;
use quorate_sync::primitives::RwLock;
use quorate_types::{LaneId, NodeId, NodeSet, Publication, Topic};

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Listeners(RwLock<Table>);

/// Names of one topic, each with the lanes that have clients for it.
type Names = BTreeMap<Box<[u8]>, Vec<Ear>>;

#[derive(Debug, Default)]
struct Table {
    topics: [Names; 3],
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

impl Listeners {
    /// So many clients of a lane listen to a name from now on.
    pub(crate) fn set(
        &self,
        topic: Topic,
        name: &[u8],
        (node, lane): (NodeId, LaneId),
        clients: u32,
    ) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let names = &mut table.topics[topic as usize];
        if clients == 0 {
            let Some(ears) = names.get_mut(name) else { return };
            ears.retain(|ear| (ear.node, ear.lane) != (node, lane));
            if ears.is_empty() {
                names.remove(name);
            }
            return;
        }
        if !names.contains_key(name) {
            names.insert(name.into(), Vec::new());
        }
        let ears = names.get_mut(name).expect("the name is there");
        match ears.iter_mut().find(|ear| (ear.node, ear.lane) == (node, lane)) {
            Some(ear) => ear.clients = clients,
            None => ears.push(Ear { node, lane, clients }),
        }
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
