//! What is given up when the loss of members is accepted.

use quorate_node::KeyspaceConfig;
use quorate_runtime::NodeHandle;
use quorate_types::placement::{self, SHARDS};
use quorate_types::{NodeId, NodeSet, Role};
use serde::{Deserialize, Serialize};

/// What is given up with some members, as far as the node that is asked knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The keyspaces, and parts of keyspaces, all of whose active members are among them.
    pub groups: Vec<LostGroup>,
}

/// A keyspace, or a part of one, whose data nobody else has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostGroup {
    /// The keyspace's number.
    pub db: u8,
    /// Its name.
    pub name: String,
    /// Which part of it: in the words of the keyspace's engine.
    pub part: String,
    /// The members that have the data.
    pub nodes: Vec<u16>,
}

impl std::fmt::Display for LostGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { db, name, part, nodes } = self;
        let nodes: Vec<String> = nodes.iter().map(u16::to_string).collect();
        let noun = if nodes.len() == 1 { "node" } else { "nodes" };
        write!(f, "{part} of database {db} ({name}), which only {noun} {} had", nodes.join(", "))
    }
}

impl Loss {
    /// What is given up with these members.
    pub(crate) fn of(node: &NodeHandle, lost: NodeSet) -> Self {
        let members = node.facts().control.members;
        let of_role = |wanted: &dyn Fn(Role) -> bool| -> NodeSet {
            let members = members.iter().filter(|member| wanted(member.role));
            members.map(|member| member.node).collect()
        };
        let all = of_role(&|_| true);
        let active = of_role(&|role| role == Role::Active);
        let keyspaces = node.config().keyspaces.iter();
        Self { groups: keyspaces.flat_map(|keyspace| of(keyspace, all, active, lost)).collect() }
    }
}

/// What is given up of a keyspace.
fn of(keyspace: &KeyspaceConfig, all: NodeSet, active: NodeSet, lost: NodeSet) -> Vec<LostGroup> {
    let is_lost = |group: NodeSet| {
        let holders = group.intersection(active);
        !holders.is_empty() && holders.is_subset(lost)
    };
    let group = |part: String, nodes: NodeSet| LostGroup {
        db: keyspace.id.0,
        name: keyspace.name.clone(),
        part,
        nodes: nodes.intersection(active).into_iter().map(|node: NodeId| node.0).collect(),
    };
    if let Some(replicas) = keyspace.engine.group_size() {
        let shards = (0..SHARDS).map(|shard| placement::group_set(shard, all, replicas));
        let gone: Vec<NodeSet> = shards.filter(|nodes| is_lost(*nodes)).collect();
        let nodes = gone.iter().copied().fold(NodeSet::EMPTY, NodeSet::union);
        let part = format!("{} of {SHARDS} shards", gone.len());
        return if gone.is_empty() { Vec::new() } else { vec![group(part, nodes)] };
    }
    let groups = keyspace.partitions.iter().map(|nodes| nodes.or(keyspace.replicas).unwrap_or(all));
    let is_one = keyspace.partitions.len() == 1;
    let lost = groups.enumerate().filter(|(_, nodes)| is_lost(*nodes));
    lost.map(|(number, nodes)| match is_one {
        true => group("everything".into(), nodes),
        false => group(format!("partition {number}"), nodes),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use quorate_node::EngineConfig;
    use quorate_types::KeyspaceId;

    use super::*;

    fn nodes(ids: &[u16]) -> NodeSet {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    #[test]
    fn a_keyspace_is_lost_with_the_last_of_its_active_nodes() {
        let engine = EngineConfig::first_with(|can| !can.spreads);
        let mut keyspace = KeyspaceConfig::new(KeyspaceId(3), "jobs", engine);
        keyspace.replicas = Some(nodes(&[1, 2, 4]));
        let of = |active: &[u16], lost: &[u16]| {
            super::of(&keyspace, nodes(&[1, 2, 3, 4]), nodes(active), nodes(lost))
        };
        assert_eq!(of(&[1, 2, 3, 4], &[1, 2]), []);
        // Node 4 was down already: it has nothing that counts.
        let lost = of(&[1, 2, 3], &[1, 2]);
        let said = "everything of database 3 (jobs), which only nodes 1, 2 had";
        assert_eq!(lost.iter().map(ToString::to_string).collect::<Vec<_>>(), [said]);
        assert_eq!(of(&[3], &[1, 2]), [], "it has nothing that could be lost");
    }
}
