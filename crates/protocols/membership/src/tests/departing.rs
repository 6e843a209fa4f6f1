//! Members that an operator has asked to leave.

use quorate_types::{Epoch, NodeId, NodeSet, Role, View};

use super::world::{World, addresses, nodes, remove, remove_now};
use crate::{MembershipError, Phase, Request};

/// Nodes that keep each key at some of them.
fn formed(seed: u64, count: u16, copies: usize) -> World {
    let mut world = World::new(seed, count);
    world.moving = [copies].to_vec();
    let mut world = world.form(count);
    world.run(300);
    world
}

impl World {
    fn view(&self, node: u16) -> View {
        (**self.machine(node).view()).clone()
    }

    /// These nodes say that they have copied what falls to them.
    fn copied(&mut self, nodes: &[u16]) {
        for node in nodes {
            let epoch = self.machine(*node).view().epoch;
            self.request(*node, Request::CaughtUp { epoch });
        }
        self.run(1_000);
    }

    /// The members that have copied what falls to them, and all that do.
    fn progress(&self, node: u16) -> (usize, usize) {
        let status = self.machine(node).status(self.now(node).monotonic);
        let others = || status.members.iter().filter(|m| m.role != Role::Down && !m.departing);
        (others().filter(|member| member.has_copied).count(), others().count())
    }
}

#[test]
fn a_member_that_is_asked_to_leave_stays_until_others_have_copied_what_it_has() {
    let mut world = formed(1, 5, 3);
    let tag = world.request(1, remove(NodeId(5)));
    world.run(2_000);
    let view = world.view(1);
    assert_eq!(world.completed[&tag], Ok(view.epoch), "answered before it is out");
    assert_eq!((view.departing, view.active()), (nodes(&[5]), nodes(&[1, 2, 3, 4, 5])));
    assert_eq!(view.placed, nodes(&[1, 2, 3, 4, 5]));
    assert_eq!(view.to_place(), nodes(&[1, 2, 3, 4]));
    assert!(world.is_serving(5));
    world.copied(&[1, 2, 5]);
    assert_eq!(world.view(1), view);
    assert_eq!(world.progress(3), (2, 4));
    // To ask again changes nothing.
    let tag = world.request(2, remove(NodeId(5)));
    world.run(100);
    assert_eq!(world.completed[&tag], Ok(view.epoch));
    world.copied(&[3, 4]);
    let after = world.view(1);
    assert_eq!((after.voters(), after.placed), (nodes(&[1, 2, 3, 4]), nodes(&[1, 2, 3, 4])));
    assert_eq!(after.departing, NodeSet::EMPTY);
    // Data was placed without it in a view of its own, in which it took part.
    let between = &world.installed[&(view.cluster, Epoch(view.epoch.0 + 1))];
    assert_eq!((between.placed, between.departing), (nodes(&[1, 2, 3, 4]), nodes(&[5])));
    assert!(between.active().contains(NodeId(5)));
    assert_eq!(after.epoch.0, view.epoch.0 + 2);
    assert!(world.machine(5).status(world.now(5).monotonic).phase == Phase::Outside);
}

#[test]
fn what_was_copied_in_an_earlier_epoch_lets_nobody_go() {
    let mut world = formed(2, 5, 3);
    world.request(1, remove(NodeId(5)));
    world.run(1_000);
    let before = world.view(1).epoch;
    world.copied(&[1, 2, 3, 5]);
    // A view comes between, in which groups may be others.
    world.kill(4);
    world.run(2_000);
    let view = world.view(1);
    assert!(view.epoch > before && view.departing == nodes(&[5]), "{view:?}");
    assert_eq!(world.progress(1), (0, 3));
    world.copied(&[1, 2, 3, 5]);
    assert_eq!(world.view(1).voters(), nodes(&[1, 2, 3, 4]), "those that live have all");
}

#[test]
fn a_departing_member_that_dies_is_removed_at_once() {
    let mut world = formed(3, 5, 3);
    world.request(1, remove(NodeId(5)));
    world.run(1_000);
    world.kill(5);
    // It comes back at once, and not into the view.
    world.start(5);
    world.run(2_000);
    let view = world.view(1);
    assert_eq!((view.voters(), view.departing), (nodes(&[1, 2, 3, 4]), NodeSet::EMPTY));
    assert_eq!(view.placed, nodes(&[1, 2, 3, 4, 5]), "its copies are gone");
    assert_eq!(world.machine(5).status(world.now(5).monotonic).phase, Phase::Outside);
    assert!(world.reason(5).contains("not a member"), "{}", world.reason(5));
}

#[test]
fn a_member_that_is_down_or_holds_nothing_is_removed_at_once() {
    let mut world = formed(4, 5, 3);
    world.kill(5);
    world.run(2_000);
    world.request(1, remove(NodeId(5)));
    world.run(1_000);
    assert_eq!(world.view(1).voters(), nodes(&[1, 2, 3, 4]));
    world.copied(&[1, 2, 3, 4]);
    assert!(world.view(1).is_placed());
    // A newcomer over which no data is placed yet.
    world.request(1, Request::Add(addresses(6)));
    world.run(1_000);
    world.configure(6, (1..=6).map(addresses).collect());
    world.start(6);
    world.run_until_serving(&[1, 2, 3, 4, 6], 2_000);
    assert_eq!(world.view(1).placed, nodes(&[1, 2, 3, 4]));
    world.request(1, remove(NodeId(6)));
    world.run(2_000);
    assert_eq!(world.view(1).voters(), nodes(&[1, 2, 3, 4]));
}

#[test]
fn where_everybody_has_all_a_member_is_removed_at_once() {
    let mut world = World::formed(5, 4);
    world.run(300);
    let tag = world.request(1, remove(NodeId(4)));
    world.run(2_000);
    assert_eq!(world.completed[&tag], Ok(Epoch(2)));
    let view = world.view(1);
    assert_eq!((view.voters(), view.placed), (nodes(&[1, 2, 3]), nodes(&[1, 2, 3])));
}

#[test]
fn an_operator_may_have_a_departing_member_removed_at_once_or_kept() {
    let mut world = formed(6, 5, 3);
    world.request(1, remove(NodeId(5)));
    world.run(1_000);
    let refused = |world: &mut World, request| {
        let tag = world.request(1, request);
        world.run(100);
        world.completed[&tag].clone()
    };
    let added = refused(&mut world, Request::Add(addresses(5)));
    assert_eq!(added, Err(MembershipError::Departing(NodeId(5))));
    world.request(2, Request::Keep(NodeId(5)));
    world.run(1_000);
    let view = world.view(1);
    assert!(view.is_placed() && view.voters().contains(NodeId(5)), "{view:?}");
    assert_eq!(refused(&mut world, Request::Keep(NodeId(5))), Ok(view.epoch));
    let unknown = refused(&mut world, Request::Keep(NodeId(6)));
    assert_eq!(unknown, Err(MembershipError::UnknownMember(NodeId(6))));
    world.copied(&[1, 2, 3, 4, 5]);
    assert_eq!(world.view(1), view, "nothing is left to be done");
    world.request(1, remove(NodeId(5)));
    world.run(1_000);
    world.request(1, remove_now(NodeId(5)));
    world.run(1_000);
    let view = world.view(1);
    assert_eq!((view.voters(), view.departing), (nodes(&[1, 2, 3, 4]), NodeSet::EMPTY));
    assert!(!view.is_placed());
}

/// The next view is what the node with the lowest id proposes first, but not its own removal.
#[test]
fn the_member_that_proposes_first_may_leave_and_two_may_leave_together() {
    let mut world = formed(7, 7, 3);
    world.request(2, remove(NodeId(1)));
    world.request(3, remove(NodeId(7)));
    world.run(2_000);
    let view = world.view(2);
    assert_eq!((view.departing, view.to_place()), (nodes(&[1, 7]), nodes(&[2, 3, 4, 5, 6])));
    world.copied(&[1, 2, 3, 4, 5, 6, 7]);
    world.run(3_000);
    let view = world.view(2);
    assert_eq!((view.voters(), view.placed), (nodes(&[2, 3, 4, 5, 6]), nodes(&[2, 3, 4, 5, 6])));
}

#[test]
fn a_member_without_which_the_others_could_not_go_on_does_not_leave() {
    let refused = |world: &mut World, request| {
        let tag = world.request(1, request);
        world.run(2_000);
        world.completed[&tag].clone()
    };
    let mut world = formed(8, 5, 3);
    let itself = refused(&mut world, remove(NodeId(1)));
    assert_eq!(itself, Err(MembershipError::RemovesItself));
    world.kill(4);
    world.kill(5);
    world.run(2_000);
    let error = refused(&mut world, remove(NodeId(3)));
    assert_eq!(error, Err(MembershipError::NoMajority(NodeId(3))));
    // Together with one that is about to leave.
    let mut world = formed(9, 7, 3);
    world.kill(6);
    world.kill(7);
    world.run(2_000);
    for node in [4, 5] {
        assert!(refused(&mut world, remove(NodeId(node))).is_ok());
    }
    let error = refused(&mut world, remove(NodeId(3)));
    assert_eq!(error, Err(MembershipError::NoMajority(NodeId(3))));
    // Three nodes with three copies.
    let mut world = formed(10, 3, 3);
    let error = MembershipError::TooFewForCopies { node: NodeId(3), copies: 3 };
    assert_eq!(refused(&mut world, remove(NodeId(3))), Err(error));
    assert!(refused(&mut world, remove_now(NodeId(3))).is_ok());
}

/// One of the last two members is departing and restarts. The other needs its vote, so its next life
/// comes back, and is removed later.
#[test]
fn a_departing_member_comes_back_if_the_others_need_it() {
    let mut world = formed(11, 3, 2);
    world.request(1, remove(NodeId(3)));
    world.run(1_000);
    world.pause(2, 4_000);
    world.run(1_500);
    world.pause(3, 1_500);
    world.run(2_000);
    world.run_until_serving(&[1, 3], 2_000);
    assert_eq!(world.view(1).departing, nodes(&[3]));
    world.run_until_serving(&[1, 2], 6_000);
    world.run(1_000);
    let view = world.view(1);
    assert_eq!(view.departing.union(view.voters()), view.voters());
}
