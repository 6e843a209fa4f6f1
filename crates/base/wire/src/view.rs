//! A view as bytes: in the configuration log, and for clients that coordinate their transactions
//! themselves.

use alloc::vec::Vec;

use quorate_types::{
    Epoch, Incarnation, Member, MemberNumber, NodeId, NodeSet, Role, View, limits,
};

use crate::{Malformed, Reader, Writer};

/// Longest `host:port`.
const ADDRESS_BYTES_MAX: usize = 300;

/// Appends a view: `epoch u64 | cluster u64 | last_number u32 | placed u64 | departing u64 | count u8 |
/// members`, where bit *i* of `placed` and of `departing` is node *i*; a member is
/// `node u16 | incarnation u64 | number u32 | role u8 | three addresses`.
pub fn write_view(view: &View, writer: &mut Writer<'_>) {
    writer.u64(view.epoch.0);
    writer.u64(view.cluster.0);
    writer.u32(view.last_number.0);
    writer.u64(view.placed.bits());
    writer.u64(view.departing.bits());
    writer.u8(u8::try_from(view.members.len()).expect("MEMBERS_MAX is below 256"));
    for member in &view.members {
        writer.u16(member.node.0);
        writer.u64(member.incarnation.0);
        writer.u32(member.number.0);
        writer.u8(match member.role {
            Role::Active => 1,
            Role::Shadow => 2,
            Role::Down => 3,
        });
        writer.bytes(member.peer_address.as_bytes());
        writer.bytes(member.client_address.as_bytes());
        writer.bytes(member.admin_address.as_bytes());
    }
}

/// Reads bytes that [`write_view`] wrote.
///
/// # Errors
/// When the bytes are no view within the limits.
pub fn read_view(reader: &mut Reader<'_>) -> Result<View, Malformed> {
    let epoch = Epoch(reader.u64()?);
    let cluster = Incarnation(reader.u64()?);
    let last_number = MemberNumber(reader.u32()?);
    let placed = NodeSet::from_bits(reader.u64()?);
    if placed.contains(NodeId(0)) {
        return Err(Malformed("node id out of range"));
    }
    let departing = NodeSet::from_bits(reader.u64()?);
    let count = usize::from(reader.u8()?);
    if count > limits::MEMBERS_MAX || last_number.0 > limits::MEMBER_NUMBER_MAX {
        return Err(Malformed("view beyond the limits"));
    }
    let mut members: Vec<Member> = Vec::with_capacity(count);
    for _ in 0..count {
        let member = Member {
            node: node(reader)?,
            incarnation: Incarnation(reader.u64()?),
            number: MemberNumber(reader.u32()?),
            role: match reader.u8()? {
                1 => Role::Active,
                2 => Role::Shadow,
                3 => Role::Down,
                _ => return Err(Malformed("unknown role")),
            },
            peer_address: reader.string(ADDRESS_BYTES_MAX)?,
            client_address: reader.string(ADDRESS_BYTES_MAX)?,
            admin_address: reader.string(ADDRESS_BYTES_MAX)?,
        };
        if members.last().is_some_and(|last| last.node >= member.node)
            || member.number > last_number
        {
            return Err(Malformed("members out of order"));
        }
        // A voter that was added and has not started yet has neither number nor incarnation.
        let nobody = member.number.0 == 0 || member.incarnation.0 == 0;
        let is_known = |other: &Member| other.number == member.number;
        if if nobody { member.role != Role::Down } else { members.iter().any(is_known) } {
            return Err(Malformed("a life without a number of its own"));
        }
        members.push(member);
    }
    let view = View { epoch, cluster, members, last_number, placed, departing };
    if !departing.is_subset(view.voters()) {
        return Err(Malformed("who leaves is no member"));
    }
    Ok(view)
}

fn node(reader: &mut Reader<'_>) -> Result<NodeId, Malformed> {
    match reader.u16()? {
        id @ 1..=limits::NODE_ID_MAX => Ok(NodeId(id)),
        _ => Err(Malformed("node id out of range")),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    fn member(node: u16, number: u32, role: Role) -> Member {
        Member {
            node: NodeId(node),
            incarnation: Incarnation(u64::from(number)),
            number: MemberNumber(number),
            role,
            peer_address: String::new(),
            client_address: String::new(),
            admin_address: String::new(),
        }
    }

    #[test]
    fn every_life_in_a_view_has_a_number_of_its_own() {
        let again = |members: &[Member]| {
            let members = members.to_vec();
            let (cluster, last_number) = (Incarnation(8), MemberNumber(9));
            let placed = NodeSet::from_bits(0x8000_0000_0000_0002);
            let departing = NodeSet::only(NodeId(1));
            let epoch = Epoch(3);
            let view = View { epoch, cluster, members, last_number, placed, departing };
            let mut bytes = Vec::new();
            write_view(&view, &mut Writer(&mut bytes));
            read_view(&mut Reader(&bytes)).map(|copy| assert_eq!(copy, view))
        };
        let first = member(1, 4, Role::Active);
        let unborn = [member(2, 0, Role::Down), member(3, 0, Role::Down)];
        assert_eq!(again(&[core::slice::from_ref(&first), &unborn[..]].concat()), Ok(()));
        again(&[first.clone(), member(2, 4, Role::Down)]).expect_err("the number of another");
        again(&[first.clone(), member(2, 0, Role::Shadow)]).expect_err("a life without a number");
        again(&[member(1, 10, Role::Active)]).expect_err("a number to come");
        again(&[member(2, 4, Role::Active)]).expect_err("one leaves that is not there");
    }
}
