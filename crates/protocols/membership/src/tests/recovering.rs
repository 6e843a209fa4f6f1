//! Going on without nodes that are lost.

use alloc::vec;

use quorate_check::Seeds;
use quorate_types::{Epoch, NodeId, Role};

use super::disks::{formed, lose_power, start_all};
use super::world::{MS, World, nodes};
use crate::{Body, MembershipError, Request};

fn recover(world: &mut World, node: u16, lost: &[u16]) -> quorate_types::Tag {
    world.request(node, Request::Recover { lost: nodes(lost) })
}

/// The disks of nodes 2 and 3 are lost, and with them their votes.
#[test]
fn what_one_disk_has_is_all_there_is() {
    let mut world = formed(1, 3);
    let before = world.machine(1).view().clone();
    lose_power(&mut world);
    world.lose_disk(2);
    world.lose_disk(3);
    start_all(&mut world, &[1, 2, 3]);
    world.run(12_000);
    for node in [1, 2, 3] {
        assert!(!world.is_serving(node));
        let reason = world.reason(node);
        assert!(reason.contains("quorate recover"), "{node}: {reason}");
    }
    let records = world.nodes[&NodeId(1)].records.1.clone();
    let tag = recover(&mut world, 1, &[2, 3]);
    world.run_until_serving(&[1], 500);
    assert_eq!(world.completed[&tag], Ok(Epoch(before.epoch.0 + 1)));
    let view = world.machine(1).view().clone();
    assert_ne!(view.cluster, before.cluster);
    assert!(view.epoch > before.epoch && view.last_number > before.last_number);
    assert_eq!(view.live(), nodes(&[1, 2, 3]));
    assert!(!records.is_empty());
    world.run_until_serving(&[1, 2, 3], 1000);
    assert_eq!(world.machine(3).view().cluster, view.cluster);
    assert_eq!(world.nodes[&NodeId(3)].records.1, records);
}

#[test]
fn the_members_that_were_active_last_are_the_source() {
    let mut world = formed(2, 5);
    world.kill(5);
    world.run(400);
    assert!(world.write_record(2));
    lose_power(&mut world);
    start_all(&mut world, &[4, 5]);
    world.run(300);
    let tag = recover(&mut world, 5, &[1, 2, 3]);
    world.run_until_serving(&[4, 5], 1500);
    assert!(world.completed[&tag].is_ok());
    assert_eq!(world.machine(4).view().member(NodeId(4)).unwrap().role, Role::Active);
}

#[test]
fn who_is_here_is_not_lost_and_who_is_missing_has_to_be_named() {
    let mut world = formed(3, 3);
    let tag = recover(&mut world, 1, &[3]);
    let nothing = MembershipError::NothingLost { nodes: vec![NodeId(3)] };
    assert_eq!(world.completed[&tag], Err(nothing));
    lose_power(&mut world);
    world.nodes.get_mut(&NodeId(1)).unwrap().disk.is_damaged = true;
    world.nodes.get_mut(&NodeId(2)).unwrap().disk.is_damaged = true;
    start_all(&mut world, &[1, 2]);
    world.run(300);
    let tag = recover(&mut world, 1, &[2]);
    assert_eq!(world.completed[&tag], Err(MembershipError::NotLost(NodeId(2))));
    let tag = recover(&mut world, 1, &[]);
    let missing = MembershipError::Missing { nodes: vec![NodeId(3)] };
    assert_eq!(world.completed[&tag], Err(missing));
    let tag = recover(&mut world, 1, &[3]);
    world.run_until_serving(&[1, 2], 1500);
    assert!(world.completed[&tag].is_ok());
}

/// Nodes 1 to 3 recover, and node 3 does not hear that they have. The two that were named as lost come
/// after all: with node 3 they would be a majority of the old cluster.
#[test]
fn a_vote_for_a_recovery_is_the_last_one_in_the_old_cluster() {
    for seed in Seeds::new(0..10) {
        let mut world = formed(seed, 5);
        lose_power(&mut world);
        start_all(&mut world, &[1, 2, 3]);
        for node in 1..=2 {
            world.nodes.get_mut(&NodeId(node)).unwrap().disk.is_damaged = true;
        }
        world.run(200);
        world.crash(1);
        world.crash(2);
        start_all(&mut world, &[1, 2]);
        world.loses = |_, to, body| to == 3 && matches!(body, Body::Log(_));
        world.run(300);
        recover(&mut world, 1, &[4, 5]);
        world.run(100);
        assert!(world.machine(1).view().voters() == nodes(&[1, 2, 3]));
        if seed % 2 == 0 {
            // The vote is on the disk.
            world.crash(3);
            world.start(3);
        }
        world.loses = |from, to, _| from.min(to) < 3 && from.max(to) >= 3;
        start_all(&mut world, &[4, 5]);
        world.run(15_000);
        world.loses = |_, _, _| false;
        world.run_until_serving(&[1, 2, 3], 2000);
        assert!(!world.is_serving(4) && !world.is_serving(5));
        assert!(world.reason(4).contains("another cluster"), "{}", world.reason(4));
    }
}

/// The power goes again and again, and a person asks again.
#[test]
fn a_recovery_that_is_cut_short_is_asked_for_again() {
    for seed in Seeds::new(0..60) {
        let mut world = formed(seed, 4);
        lose_power(&mut world);
        world.lose_disk(3);
        world.lose_disk(4);
        world.flush_max = Some(40 * MS);
        let at = 1 + (seed % 2) as u16;
        for _ in 0..4 {
            start_all(&mut world, &[1, 2, 3, 4]);
            world.run(400);
            if world.is_serving(1) {
                break;
            }
            recover(&mut world, at, &[3, 4]);
            let span = world.rng.below(150);
            world.run(span);
            lose_power(&mut world);
        }
        start_all(&mut world, &[1, 2]);
        world.run(1500);
        if !world.is_serving(1) {
            recover(&mut world, 3 - at, &[3, 4]);
        }
        world.run_until_serving(&[1, 2], 3000);
    }
}

/// Five nodes. The first two have a group's data.
fn with_a_group(seed: u64, has_disks: bool) -> World {
    let mut world = World::new(seed, 5);
    world.flush_max = has_disks.then_some(5 * MS);
    world.groups = vec![nodes(&[1, 2])];
    let mut world = world.form(5);
    assert!(world.write_record(1) && world.write_record(3));
    world
}

/// Both disks of a group are lost while others serve. Nothing is admitted that could not serve, and nobody
/// decides by himself that the data is lost.
#[test]
fn a_person_gives_up_the_data_of_a_group_while_others_serve() {
    for seed in 0..4 {
        let mut world = with_a_group(seed, true);
        for node in [1, 2] {
            world.kill(node);
            world.lose_disk(node);
        }
        start_all(&mut world, &[1, 2]);
        world.run(3000);
        for node in [1, 2] {
            assert!(!world.is_serving(node));
            let reason = world.reason(node);
            assert!(reason.contains("`quorate recover 1 2 --accept-loss`"), "{reason}");
        }
        let tag = recover(&mut world, 4, &[1, 2]);
        world.accept_loss(nodes(&[1, 2]));
        world.run_until_serving(&[1, 2, 3, 4, 5], 3000);
        assert!(world.completed[&tag].is_ok());
        assert!(world.write_record(1) && world.write_record(4));
        // Asked again, it is done, or there is nothing that is lost.
        let tag = recover(&mut world, 4, &[1, 2]);
        let nodes = vec![NodeId(1), NodeId(2)];
        assert_eq!(world.completed[&tag], Err(MembershipError::NothingLost { nodes }));
    }
}

/// Node 1 was the last of its group and has lost its disk; node 2 was removed before, and has its disk.
#[test]
fn a_node_with_something_on_its_disk_is_the_heir_of_its_group() {
    let mut world = with_a_group(4, true);
    world.kill(2);
    world.run(800);
    assert!(world.write_record(1));
    world.kill(1);
    world.lose_disk(1);
    start_all(&mut world, &[1, 2]);
    world.run(3000);
    assert!(world.reason(2).contains("start node 1"), "{}", world.reason(2));
    let missing = recover(&mut world, 3, &[1]);
    world.accept_loss(nodes(&[1, 2]));
    world.run_until_serving(&[1, 2, 3, 4, 5], 3000);
    assert!(world.completed[&missing].is_ok());
    let number = |node| world.machine(3).view().member(NodeId(node)).unwrap().number;
    assert!(number(2) < number(1), "node 2 came first");
}

/// The last active member of a group restarts with an empty memory: it is not taken in as a shadow that
/// could copy from nobody.
#[test]
fn the_last_member_of_a_group_that_restarts_empty_waits_for_a_decision() {
    let mut world = with_a_group(5, false);
    world.kill(1);
    world.run(800);
    world.kill(2);
    start_all(&mut world, &[1, 2]);
    world.run(3000);
    assert_eq!(world.machine(3).view().active(), nodes(&[2, 3, 4, 5]));
    let tag = recover(&mut world, 3, &[2]);
    world.accept_loss(nodes(&[1, 2]));
    world.run_until_serving(&[1, 2, 3, 4, 5], 3000);
    assert!(world.completed[&tag].is_ok());
}

#[test]
fn only_who_is_lost_is_given_up_and_only_with_all_that_have_the_data() {
    let mut world = with_a_group(6, true);
    let refused = |world: &mut World, lost: &[u16]| {
        let tag = recover(world, 3, lost);
        world.completed[&tag].clone().unwrap_err()
    };
    world.kill(5);
    world.run(800);
    let nodes_of = |ids: &[u16]| ids.iter().map(|id| NodeId(*id)).collect();
    let error = refused(&mut world, &[5]);
    assert_eq!(error, MembershipError::NothingLost { nodes: nodes_of(&[5]) });
    world.crash(1);
    world.crash(2);
    world.run(1000);
    let error = refused(&mut world, &[2]);
    assert_eq!(error, MembershipError::Missing { nodes: nodes_of(&[1]) });
    let error = refused(&mut world, &[1, 2, 4]);
    assert_eq!(error, MembershipError::NotLost(NodeId(4)));
    world.start(1);
    world.run(500);
    let error = refused(&mut world, &[1, 2]);
    assert_eq!(error, MembershipError::NotLost(NodeId(1)));
    let error = refused(&mut world, &[2]);
    assert_eq!(error, MembershipError::NothingLost { nodes: nodes_of(&[2]) });
    // It comes back with everything, once node 2 has been waited for.
    world.run_until_serving(&[1, 3, 4], 12_000);
}

/// The same where a majority of a group acknowledges its updates. A minority of it that is back with its data
/// has not all of that, and is not given up either.
#[test]
fn a_group_whose_majority_acknowledges_is_given_up_with_all_of_it() {
    let mut world = World::new(8, 7);
    (world.flush_max, world.revive_majority) = (Some(5 * MS), true);
    world.groups = vec![nodes(&[1, 2, 3])];
    world.quorum_groups = world.groups.clone();
    let mut world = world.form(7);
    let refused = |world: &mut World, lost: &[u16]| {
        let tag = recover(world, 4, lost);
        world.completed[&tag].clone().unwrap_err()
    };
    for node in [1, 2, 3] {
        world.kill(node);
    }
    world.lose_disk(1);
    world.lose_disk(2);
    start_all(&mut world, &[1, 2, 3]);
    world.run(3000);
    assert_eq!(refused(&mut world, &[1, 2]), MembershipError::NeedsQuorums);
    assert_eq!(refused(&mut world, &[1, 2, 3]), MembershipError::NotLost(NodeId(3)));
    world.kill(3);
    world.lose_disk(3);
    world.start(3);
    world.run(3000);
    let tag = recover(&mut world, 4, &[1, 2, 3]);
    world.accept_loss(nodes(&[1, 2, 3]));
    world.run_until_serving(&[1, 2, 3, 4, 5, 6, 7], 3000);
    assert!(world.completed[&tag].is_ok());
}

/// Where data is at some of the nodes only, it stays where it was until others have copied it.
#[test]
fn a_recovered_cluster_has_its_data_where_it_was() {
    let mut world = World::new(7, 5);
    world.flush_max = Some(5 * MS);
    world.moving = vec![3];
    let mut world = world.form(5);
    lose_power(&mut world);
    start_all(&mut world, &[1, 2]);
    world.run(300);
    recover(&mut world, 1, &[3, 4, 5]);
    world.run_until_serving(&[1, 2], 1500);
    let view = world.machine(1).view().clone();
    assert_eq!((view.voters(), view.placed), (nodes(&[1, 2]), nodes(&[1, 2, 3, 4, 5])));
    assert!(!view.is_placed());
}
