//! Which nodes have to leave, and which stay.

use alloc::vec::Vec;

use quorate_check::Seeds;
use quorate_types::{Duration, Epoch, NodeId, Role};

use super::world::{Loses, MS, World, nodes, remove, remove_now};
use crate::{MembershipError, Request};

#[test]
fn stalls_of_half_a_second_expel_nobody() {
    for seed in Seeds::new(0..10) {
        let count = [3, 5][seed as usize % 2];
        let mut world = World::formed(seed, count);
        for _ in 0..60 {
            let node = 1 + world.rng.below(u64::from(count)) as u16;
            let stall = 100 + world.rng.below(401);
            world.pause(node, stall);
            world.run(1_000);
        }
        let all: Vec<u16> = (1..=count).collect();
        assert!(all.iter().all(|node| world.is_serving(*node)), "seed {seed}");
        assert_eq!(world.machine(1).view().epoch, Epoch(1), "seed {seed}");
    }
}

/// One node stalls again and again for longer than suspicion usually takes. It is expelled for it
/// once; then the others know its stalls.
#[test]
fn patience_follows_the_silences_that_ended() {
    let mut world = World::formed(1, 3);
    for _ in 0..10 {
        world.run(2_000);
        world.catch_up();
        world.pause(3, 1_100);
        world.run(1_100);
        world.run_until_serving(&[1, 2, 3], 1_000);
    }
    let last = world.machine(1).view().epoch;
    assert!(last.0 <= 4, "removed, joined, promoted: once, not {last:?}");
    // Patience never grows beyond its bound: a crash is noticed, however patient the others are.
    world.pause(3, 60_000);
    let bound = world.machine(1).config.suspect_after_max;
    world.run(bound.as_millis() as u64 + 200);
    assert!(!world.machine(1).view().live().contains(NodeId(3)));
}

#[test]
fn patience_is_forgotten_after_a_while() {
    let mut world = World::formed(2, 3);
    world.run(500);
    world.pause(3, 550);
    world.run(61_000);
    world.crash(3);
    world.run(750);
    assert!(!world.machine(1).view().live().contains(NodeId(3)));
}

/// The link between nodes 1 and 2 is cut, in one direction or both, for 15 seconds.
#[test]
fn a_broken_link_costs_one_node_once() {
    let cuts: [Loses; 3] = [
        |from, to, _| from.min(to) == 1 && from.max(to) == 2,
        |from, to, _| (from, to) == (1, 2),
        |from, to, _| (from, to) == (2, 1),
    ];
    for seed in Seeds::new(0..12) {
        let count = [3, 5][seed as usize / 3 % 2];
        let mut world = World::formed(seed, count);
        world.run(300);
        world.loses = cuts[seed as usize % 3];
        world.run(1_500);
        let view = world.machine(1).view().clone();
        assert_eq!(view.epoch, Epoch(2), "seed {seed}");
        assert_eq!(view.live(), view.voters().without(NodeId(2)), "seed {seed}");
        let rest: Vec<u16> = (1..=count).filter(|node| *node != 2).collect();
        for _ in 0..150 {
            world.run(100);
            world.catch_up();
            assert!(rest.iter().all(|node| world.is_serving(*node)), "seed {seed}");
        }
        assert_eq!(world.machine(1).view().epoch, Epoch(2), "it stays out");
        world.loses = |_, _, _| false;
        world.run_until_serving(&(1..=count).collect::<Vec<_>>(), 1_000);
    }
}

/// All members hold their leases until one of the two leaves, whichever leads and whichever way is
/// cut.
#[test]
fn no_lease_suffers_from_a_one_way_cut() {
    let cuts: [Loses; 6] = [
        |from, to, _| (from, to) == (1, 2),
        |from, to, _| (from, to) == (2, 1),
        |from, to, _| (from, to) == (1, 3),
        |from, to, _| (from, to) == (3, 1),
        |from, to, _| (from, to) == (2, 3),
        |from, to, _| (from, to) == (3, 2),
    ];
    for seed in Seeds::new(0..30) {
        let mut world = World::formed(seed, 3);
        world.run(300);
        world.loses = cuts[seed as usize % 6];
        // As long as a bearable silence, and a broken link after it, last.
        for _ in 0..1_190 {
            world.run(1);
            for node in 1..=3 {
                let left = world.machine(node).lease_until().since(world.now(node).monotonic);
                // A follower asks its leader in vain once, and then every member.
                assert!(left.as_millis() >= 29, "seed {seed}: node {node} has {left:?} left");
            }
        }
        world.run(310);
        let view = world.machine(1).view();
        assert_eq!((view.epoch, view.live().len()), (Epoch(2), 2), "seed {seed}");
    }
}

/// No node hears node 1, which hears all others. Node 2 is more patient than node 3, since it was
/// often late itself: that must not look as if only the link between nodes 1 and 3 were broken.
#[test]
fn a_mute_node_goes_and_nobody_else() {
    let mut world = World::formed(11, 3);
    for _ in 0..3 {
        world.run(2_000);
        world.catch_up();
        world.pause(2, 1_100);
        world.run(1_100);
        world.run_until_serving(&[1, 2, 3], 1_000);
    }
    world.run(500);
    world.catch_up();
    let before = world.machine(3).view().epoch;
    world.loses = |from, _, _| from == 1;
    world.run(3_000);
    let view = world.machine(3).view();
    assert_eq!((view.live(), view.epoch), (nodes(&[2, 3]), Epoch(before.0 + 1)), "{view:?}");
}

/// A short interruption of one link, as by a reset connection, expels no node.
#[test]
fn a_link_that_comes_back_costs_nobody() {
    let mut world = World::formed(4, 3);
    world.run(300);
    for (at, lost) in [(1, 2), (2, 1)] {
        world.request(at, Request::PeerLost(NodeId(lost)));
    }
    world.run(40);
    for (at, found) in [(1, 2), (2, 1)] {
        world.request(at, Request::PeerFound(NodeId(found)));
    }
    world.run(3_000);
    assert_eq!(world.machine(3).view().epoch, Epoch(1));
}

/// Of four nodes, node 4 has lost its links to two others, and has to leave.
#[test]
fn the_node_with_most_broken_links_goes() {
    let mut world = World::formed(5, 5);
    world.run(300);
    world.loses = |from, to, _| from.min(to) <= 2 && from.max(to) == 3;
    world.run(1_500);
    assert_eq!(world.machine(1).view().live(), nodes(&[1, 2, 4, 5]));
    assert_eq!(world.machine(1).view().epoch, Epoch(2));
}

#[test]
fn a_node_that_leaves_is_out_at_once_and_nobody_stops() {
    for seed in Seeds::new(0..20) {
        let mut world = World::formed(seed, 3);
        let wait = 200 + world.rng.below(100);
        world.run(wait);
        let leaver = 1 + (seed % 3) as u16;
        let tag = world.request(leaver, Request::Leave);
        assert!(!world.is_serving(leaver), "it has given its lease up");
        let rest: Vec<u16> = (1..=3).filter(|node| *node != leaver).collect();
        let begin = world.now;
        while rest.iter().any(|node| world.machine(*node).view().epoch == Epoch(1)) {
            world.run(1);
            assert!(rest.iter().all(|node| world.is_serving(*node)));
            assert!(world.now - begin < 10 * MS, "seed {seed}: no lease has to lapse");
        }
        world.run(5);
        assert_eq!(world.completed[&tag], Ok(Epoch(2)));
        let view = &world.installed[&(world.machine(rest[0]).view().cluster, Epoch(2))];
        assert_eq!(view.member(NodeId(leaver)).map(|member| member.role), Some(Role::Down));
    }
}

/// The node that stays needs the vote of the node that leaves.
#[test]
fn one_of_two_leaves_at_once() {
    let mut world = World::formed(10, 2);
    world.run(200);
    world.request(2, Request::Leave);
    world.run(10);
    assert!(world.installed.contains_key(&(world.machine(1).view().cluster, Epoch(2))));
    assert!(world.is_serving(1));
}

#[test]
fn the_last_active_member_may_not_leave() {
    let mut world = World::formed(6, 1);
    let tag = world.request(1, Request::Leave);
    assert_eq!(world.completed[&tag], Err(MembershipError::LastActive(NodeId(1))));
    assert!(world.is_serving(1));
}

/// Five nodes, one group on three of them, which stop one after the other: the last active one of
/// them stays, and the others copy from it.
#[test]
fn silence_never_costs_a_group_its_last_active_member() {
    let mut world = World::new(7, 5);
    world.groups = [nodes(&[1, 2, 3])].to_vec();
    let mut world = world.form(5);
    world.run(300);
    for (node, stall) in [(1, 5_000), (2, 6_000), (3, 8_000)] {
        world.pause(node, stall);
        world.run(1_000);
    }
    world.run(2_000);
    let view = world.machine(4).view().clone();
    assert_eq!(view.active(), nodes(&[3, 4, 5]), "{view:?}");
    let tag = world.request(4, remove(NodeId(3)));
    world.run(100);
    assert_eq!(world.completed[&tag], Err(MembershipError::LastActive(NodeId(3))));
    world.run(6_000);
    world.run_until_serving(&[1, 2, 3, 4, 5], 2_000);
    let number = |view: &quorate_types::View| view.member(NodeId(3)).map(|member| member.number);
    assert_eq!(number(world.machine(4).view()), number(&view), "node 3 has kept its life");
}

#[test]
fn data_is_placed_anew_when_every_member_has_copied_in_the_same_epoch() {
    let mut world = World::new(12, 5);
    world.moving = [2].to_vec();
    let mut world = world.form(5);
    world.run(300);
    world.request(1, remove_now(NodeId(5)));
    world.run(2_000);
    let view = world.machine(1).view().clone();
    assert_eq!((view.voters(), view.placed), (nodes(&[1, 2, 3, 4]), nodes(&[1, 2, 3, 4, 5])));
    let epoch = view.epoch;
    for node in [1, 2, 3] {
        world.request(node, Request::CaughtUp { epoch });
    }
    // What node 4 had in an earlier epoch was what fell to it then.
    world.request(4, Request::CaughtUp { epoch: Epoch(epoch.0 - 1) });
    world.run(2_000);
    assert_eq!(world.machine(1).view().epoch, epoch);
    world.request(4, Request::CaughtUp { epoch });
    world.run(2_000);
    let view = world.machine(1).view().clone();
    assert_eq!((view.epoch.0, view.placed), (epoch.0 + 1, nodes(&[1, 2, 3, 4])));
}

#[test]
fn without_groups_that_move_data_is_placed_over_the_members_at_once() {
    let mut world = World::formed(13, 5);
    world.run(300);
    world.request(1, remove_now(NodeId(5)));
    world.run(2_000);
    let view = world.machine(1).view().clone();
    assert_eq!((view.epoch, view.placed), (Epoch(2), nodes(&[1, 2, 3, 4])));
}

#[test]
fn the_last_active_member_of_a_group_that_moves_may_not_be_removed() {
    let mut world = World::new(14, 4);
    world.moving = [1].to_vec();
    let mut world = world.form(4);
    world.run(300);
    let tag = world.request(1, remove_now(NodeId(3)));
    world.run(100);
    assert_eq!(world.completed[&tag], Err(MembershipError::LastActive(NodeId(3))));
}

/// The connection of another lane breaks for good: as if the nodes did not hear each other.
#[test]
fn a_lane_without_a_connection_counts_as_a_broken_link() {
    let mut world = World::formed(8, 3);
    world.run(300);
    world.request(1, Request::LaneLost(NodeId(3)));
    world.request(3, Request::LaneLost(NodeId(1)));
    world.run(500);
    assert_eq!(world.machine(1).view().epoch, Epoch(1), "it may come back");
    world.run(3_000);
    assert_eq!(world.machine(1).view().live(), nodes(&[1, 2]));
    assert_eq!(world.machine(1).view().epoch, Epoch(2), "it stays out");
    world.request(1, Request::LanesFound(NodeId(3)));
    world.request(3, Request::LanesFound(NodeId(1)));
    world.run_until_serving(&[1, 2, 3], 1_000);
}

/// One lane of node 3 has lost its connections to all others, while its heartbeats go on.
#[test]
fn a_node_with_a_lane_that_reaches_nobody_goes() {
    let mut world = World::formed(11, 3);
    world.run(300);
    for (at, lost) in [(1, 3), (2, 3), (3, 1), (3, 2)] {
        world.request(at, Request::LaneLost(NodeId(lost)));
    }
    world.run(500);
    assert_eq!(world.machine(1).view().epoch, Epoch(1), "it may come back");
    world.run(3_000);
    assert_eq!(world.machine(1).view().live(), nodes(&[1, 2]));
    assert_eq!(world.machine(1).view().epoch, Epoch(2), "it stays out");
    for (at, found) in [(1, 3), (2, 3), (3, 1), (3, 2)] {
        world.request(at, Request::LanesFound(NodeId(found)));
    }
    world.run_until_serving(&[1, 2, 3], 1_000);
}

#[test]
fn suspicion_waits_for_a_second_observer() {
    let mut world = World::formed(9, 5);
    world.run(300);
    world.loses = |from, to, _| (from, to) == (5, 1);
    let bound = world.machine(1).config.suspect_after + Duration::from_millis(300);
    world.run(bound.as_millis() as u64);
    assert!(world.machine(1).suspects().contains(NodeId(5)));
    assert!(!world.machine(2).suspects().contains(NodeId(5)));
    assert_eq!(world.machine(2).view().epoch, Epoch(1));
    world.loses = |_, _, _| false;
    world.run(3_000);
    assert_eq!(world.machine(2).view().epoch, Epoch(1));
}

/// Node 1 says that node 3 is silent, as node 2 says so. Then it hears what node 2 had said before: if it took
/// its word back, node 2 would do the same, and they would tell each other so without end.
#[test]
fn that_a_member_is_silent_is_not_taken_back_before_it_is_heard() {
    let mut world = World::formed(2, 3);
    world.run(500);
    world.pause(3, 550);
    world.run(2_000);
    assert!(world.machine(1).view().live().contains(NodeId(3)), "a silence of 550 ms is known");
    world.loses = |from, _, _| from == 3;
    world.run(700);
    assert!(world.machine(1).suspects().is_empty(), "as long as nobody confirms it");
    let before = world.messages;
    for _ in 0..5 {
        world.tell_heard(2, 1, nodes(&[1, 2]));
        assert_eq!(world.machine(1).suspects(), nodes(&[3]));
        world.tell_heard(2, 1, nodes(&[1, 2, 3]));
        assert_eq!(world.machine(1).suspects(), nodes(&[3]));
    }
    assert!(world.messages - before < 10, "it says so once, and wants it to leave");
}
