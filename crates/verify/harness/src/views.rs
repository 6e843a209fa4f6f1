//! Views that tests make up.

use quorate_types::{Epoch, Incarnation, Member, MemberNumber, NodeId, NodeSet, Role, View};

/// A member without addresses.
pub fn member(node: NodeId, incarnation: Incarnation, number: MemberNumber, role: Role) -> Member {
    Member {
        node,
        incarnation,
        number,
        role,
        peer_address: String::new(),
        client_address: String::new(),
        admin_address: String::new(),
    }
}

/// A view of nodes 1 to `count`, all active, each with its id as its number and incarnation.
pub fn view_of(count: u16, epoch: Epoch) -> View {
    let active = |node: u16| {
        let number = MemberNumber(u32::from(node));
        member(NodeId(node), Incarnation(u64::from(node)), number, Role::Active)
    };
    View {
        epoch,
        cluster: Incarnation(1),
        members: (1..=count).map(active).collect(),
        last_number: MemberNumber(u32::from(count)),
        placed: (1..=count).map(NodeId).collect(),
        departing: NodeSet::EMPTY,
    }
}
