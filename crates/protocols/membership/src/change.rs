//! The next view from this one: pure functions.

use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_types::placement::{self, SHARDS};
use quorate_types::{
    Epoch, Incarnation, Member, MemberNumber, NodeId, NodeSet, Role, View, limits,
};

use crate::{Config, MemberConfig, MembershipError};

pub(crate) fn member(config: &MemberConfig, role: Role) -> Member {
    Member {
        node: config.node,
        incarnation: Incarnation(0),
        number: MemberNumber(0),
        role,
        peer_address: config.peer_address.clone(),
        client_address: config.client_address.clone(),
        admin_address: config.admin_address.clone(),
    }
}

/// A founder's view of epoch 1: all configured nodes, active, numbered in order of id.
pub(crate) fn genesis(founder: Incarnation, founders: &[(MemberConfig, Incarnation)]) -> View {
    let mut members: Vec<Member> = founders
        .iter()
        .map(|(config, incarnation)| Member {
            incarnation: *incarnation,
            ..member(config, Role::Active)
        })
        .collect();
    members.sort_by_key(|member| member.node);
    for (index, member) in members.iter_mut().enumerate() {
        member.number = MemberNumber(index as u32 + 1);
    }
    let last_number = MemberNumber(members.len() as u32);
    let placed = members.iter().map(|member| member.node).collect();
    let departing = NodeSet::EMPTY;
    View { epoch: Epoch(1), cluster: founder, members, last_number, placed, departing }
}

fn successor(view: &View) -> View {
    View { epoch: Epoch(view.epoch.0 + 1), ..view.clone() }
}

/// The members in `gone` keep their vote and lose their life. `None` if no active member would be
/// left, in the cluster or in a group that has one: the data of that member are nowhere else.
pub(crate) fn without(view: &View, gone: NodeSet, config: &Config) -> Option<View> {
    let mut next = successor(view);
    for member in &mut next.members {
        if gone.contains(member.node) {
            member.role = Role::Down;
        }
    }
    (!orphans(view, &next, config)).then_some(next)
}

/// Whether some group, or the cluster, has an active member in `view` and none in `next`.
fn orphans(view: &View, next: &View, config: &Config) -> bool {
    let groups = config.groups.iter().map(|group| (*group, *group));
    let moved = |replicas: usize| -> Vec<(NodeSet, NodeSet)> {
        if view.placed == next.placed {
            let groups = placement::groups(view.placed, replicas);
            return groups.into_iter().map(|group| (group, group)).collect();
        }
        let group = |view: &View, shard| placement::group_set(shard, view.placed, replicas);
        (0..SHARDS).map(|shard| (group(view, shard), group(next, shard))).collect()
    };
    let moving = config.moving.iter().flat_map(|replicas| moved(*replicas));
    let is_active = |view: &View, group: NodeSet| !view.active().intersection(group).is_empty();
    let mut groups = groups.chain(moving).filter(|_| !mutant!("membership_groups_ignored"));
    next.active().is_empty()
        || groups.any(|(group, later)| is_active(view, group) && !is_active(next, later))
}

/// The last number that a member was given, be it in the view or removed.
fn last_number(view: &View) -> MemberNumber {
    if mutant!("membership_number_of_the_removed") {
        return view.members.iter().map(|member| member.number).max().unwrap_or_default();
    }
    view.last_number
}

/// A fresh incarnation takes its node's slot, as a shadow. `None` if no active member would be
/// left, if the node has no slot, or if all member numbers are used up.
pub(crate) fn joined(
    view: &View,
    incarnation: Incarnation,
    addresses: &MemberConfig,
) -> Option<View> {
    if view.last_number.0 >= limits::MEMBER_NUMBER_MAX {
        return None;
    }
    let mut next = successor(view);
    next.last_number = MemberNumber(last_number(view).0 + 1);
    let slot = next.members.iter_mut().find(|member| member.node == addresses.node)?;
    let number = if mutant!("membership_number_reused") { slot.number } else { next.last_number };
    *slot = Member { incarnation, number, ..member(addresses, Role::Shadow) };
    (!next.active().is_empty()).then_some(next)
}

/// A shadow that holds everything begins to serve.
pub(crate) fn promoted(view: &View, node: NodeId) -> Option<View> {
    let mut next = successor(view);
    let member = next.members.iter_mut().find(|member| member.node == node)?;
    (member.role == Role::Shadow).then(|| member.role = Role::Active)?;
    Some(next)
}

/// Data is where it should be: every live member has copied what falls to it. `None` if it was, or if
/// a group would be left without an active member.
pub(crate) fn placed(view: &View, config: &Config) -> Option<View> {
    let next = successor(view).into_placed();
    (!view.is_placed() && !orphans(view, &next, config)).then_some(next)
}

/// One more voter, without a process yet. `None` if it is there already. `responsive` are the
/// voters that are heard: the newcomer counts as a voter before it can vote, so they alone must be
/// a majority of the next view, or no further view could be chosen.
pub(crate) fn added(
    view: &View,
    config: &MemberConfig,
    responsive: NodeSet,
) -> Result<Option<View>, MembershipError> {
    if config.node.0 == 0 || config.node.0 > limits::NODE_ID_MAX {
        return Err(MembershipError::InvalidId(config.node));
    }
    if let Some(known) = view.member(config.node) {
        let same = known.peer_address == config.peer_address
            && known.client_address == config.client_address
            && known.admin_address == config.admin_address;
        return match same {
            _ if view.departing.contains(config.node) => {
                Err(MembershipError::Departing(config.node))
            }
            true => Ok(None),
            false => Err(MembershipError::AlreadyMember(config.node)),
        };
    }
    if view.members.len() >= limits::MEMBERS_MAX {
        return Err(MembershipError::TooMany);
    }
    let mut next = successor(view);
    next.members.push(member(config, Role::Down));
    next.members.sort_by_key(|member| member.node);
    if !responsive.is_majority_of(next.voters()) {
        return Err(MembershipError::TooFewForOneMore(config.node));
    }
    Ok(Some(next))
}

/// One more voter, whose process is here: it votes from the first. `None` as of [`joined`].
pub(crate) fn added_alive(
    view: &View,
    incarnation: Incarnation,
    addresses: &MemberConfig,
) -> Option<View> {
    let mut with = view.clone();
    with.members.push(member(addresses, Role::Down));
    with.members.sort_by_key(|member| member.node);
    joined(&with, incarnation, addresses)
}

/// Whether the removal of a member waits until others have copied what it has. One that is down or
/// catches up is no copy that anybody relies on, nor is one over which no data is placed; and where
/// everybody has all data, nobody has anything to copy.
pub(crate) fn holds_copies(view: &View, node: NodeId, config: &Config) -> bool {
    !config.moving.is_empty()
        && view.active().contains(node)
        && view.placed.contains(node)
        && !mutant!("membership_removes_before_others_have_copied")
}

/// One voter less, after others have copied what it has: this view is the first step, unless there is
/// nothing to copy. `None` if it is gone, or about to leave. `responsive` are the voters that are heard.
pub(crate) fn departing(
    view: &View,
    node: NodeId,
    me: NodeId,
    responsive: NodeSet,
    config: &Config,
) -> Result<Option<View>, MembershipError> {
    if view.departing.contains(node) {
        return Ok(None);
    }
    if node == me || !holds_copies(view, node, config) {
        return removed(view, node, me, responsive, config);
    }
    let mut next = successor(view);
    next.departing.insert(node);
    let mut end = next.clone().into_placed();
    end.members.retain(|member| !next.departing.contains(member.node));
    if orphans(view, &end, config) {
        return Err(MembershipError::LastActive(node));
    }
    if !responsive.difference(next.departing).is_majority_of(end.voters()) {
        return Err(MembershipError::NoMajority(node));
    }
    let copies = config.moving.iter().copied().max().unwrap_or_default();
    if end.placed.len() < copies {
        return Err(MembershipError::TooFewForCopies { node, copies });
    }
    Ok(Some(next))
}

/// A member that was to leave stays. `None` if it stays anyway.
pub(crate) fn kept(view: &View, node: NodeId) -> Result<Option<View>, MembershipError> {
    if view.member(node).is_none() {
        return Err(MembershipError::UnknownMember(node));
    }
    let mut next = successor(view);
    next.departing.remove(node);
    Ok(view.departing.contains(node).then_some(next))
}

/// One voter less. `None` if it is gone already. `responsive` are the voters that are heard.
pub(crate) fn removed(
    view: &View,
    node: NodeId,
    me: NodeId,
    responsive: NodeSet,
    config: &Config,
) -> Result<Option<View>, MembershipError> {
    if view.member(node).is_none() {
        return Ok(None);
    }
    if node == me {
        return Err(MembershipError::RemovesItself);
    }
    let mut next = successor(view);
    next.members.retain(|member| member.node != node);
    next.departing.remove(node);
    if orphans(view, &next, config) {
        return Err(MembershipError::LastActive(node));
    }
    if !responsive.without(node).is_majority_of(next.voters()) {
        return Err(MembershipError::NoMajority(node));
    }
    Ok(Some(next))
}

/// A node outside that a revived view takes in, and whether it has on its disk all that the active
/// member had that it was.
pub(crate) struct Returning<'a> {
    pub(crate) incarnation: Incarnation,
    pub(crate) addresses: &'a MemberConfig,
    pub(crate) is_source: bool,
}

/// The nodes that are back take their slots: as active members where they have all that an active member
/// had, and as shadows otherwise. Members that are `missing` are down. `None` if some group would have too
/// few of its active members' data, those that are `alive` counted, or if all member numbers are used up.
pub(crate) fn revived<'a>(
    view: &View,
    alive: NodeSet,
    missing: NodeSet,
    back: impl Fn(NodeId) -> Option<Returning<'a>>,
    config: &Config,
) -> Option<View> {
    let mut next = successor(view);
    let mut kept = view.active().intersection(alive);
    let mut taken_in = Vec::new();
    for slot in &mut next.members {
        match back(slot.node) {
            Some(returning) if returning.is_source => {
                kept.insert(slot.node);
                taken_in.push((returning, Role::Active));
            }
            Some(returning) => taken_in.push((returning, Role::Shadow)),
            None if missing.contains(slot.node) => slot.role = Role::Down,
            None => {}
        }
    }
    take_in(&mut next, taken_in)?;
    has_enough(view, kept, config).then_some(next)
}

/// The groups of nodes that have active members, each once. All members are one.
pub(crate) fn groups(view: &View, config: &Config) -> Vec<NodeSet> {
    let moving =
        config.moving.iter().flat_map(|replicas| placement::groups(view.placed, *replicas));
    let all = core::iter::once(view.voters());
    let mut groups: Vec<NodeSet> = all.chain(config.groups.iter().copied()).chain(moving).collect();
    groups.retain(|group| !group.intersection(view.active()).is_empty());
    groups.sort_unstable_by_key(|group| group.bits());
    groups.dedup();
    groups
}

/// The active members of each of these groups.
pub(crate) fn active_groups(view: &View, config: &Config) -> Vec<NodeSet> {
    groups(view, config).into_iter().map(|group| group.intersection(view.active())).collect()
}

/// The members in `lost` are down for good, and with them their groups' data. The nodes in `heirs` take
/// their slots as shadows, each with what it has. `None` if no active member would be left, or if all
/// member numbers are used up.
pub(crate) fn given_up<'a>(
    view: &View,
    lost: NodeSet,
    heirs: impl Iterator<Item = Returning<'a>>,
) -> Option<View> {
    let mut next = successor(view);
    for member in next.members.iter_mut().filter(|member| lost.contains(member.node)) {
        member.role = Role::Down;
    }
    take_in(&mut next, heirs.map(|heir| (heir, Role::Shadow)).collect())?;
    (!next.active().is_empty()).then_some(next)
}

/// Nodes that are back take their slots, each under a number of its own: the active ones first, then the
/// shadows. Who has the smallest number of those that are active keeps the leases of members that are gone,
/// and a shadow takes them over from nobody who lives once it is active, too. `None` if all member numbers
/// are used up.
pub(crate) fn take_in(next: &mut View, mut nodes: Vec<(Returning<'_>, Role)>) -> Option<()> {
    if !mutant!("membership_shadows_numbered_first") {
        nodes.sort_by_key(|(_, role)| *role != Role::Active);
    }
    for (Returning { incarnation, addresses, .. }, role) in nodes {
        if next.last_number.0 >= limits::MEMBER_NUMBER_MAX {
            return None;
        }
        next.last_number.0 += 1;
        let slot = next.members.iter_mut().find(|member| member.node == addresses.node)?;
        *slot = Member { incarnation, number: next.last_number, ..member(addresses, role) };
    }
    Some(())
}

/// Whether the data of these active members is all that the view's clients were told.
fn has_enough(view: &View, kept: NodeSet, config: &Config) -> bool {
    groups(view, config).into_iter().all(|group| {
        let active = group.intersection(view.active());
        is_enough(kept.intersection(active), active, needs_majority(group, view, config))
    })
}

/// Whether an update of this group is acknowledged before all of it have it.
pub(crate) fn needs_majority(group: NodeSet, view: &View, config: &Config) -> bool {
    config.quorum_groups.contains(&group)
        || config.revive_majority && group == view.voters()
        || !config.quorum_groups.is_empty() && mutant!("membership_quorums_everywhere")
}

/// Whether the data of these members of a group is all that clients were told of it; `active` are all that
/// had that.
pub(crate) fn is_enough(kept: NodeSet, active: NodeSet, needs_majority: bool) -> bool {
    match needs_majority {
        true => kept.is_majority_of(active) || mutant!("membership_revive_minority"),
        false => !kept.is_empty(),
    }
}
