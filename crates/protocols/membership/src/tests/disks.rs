//! Nodes with disks: restarts of one, of all, and of too few.

use alloc::vec;
use alloc::vec::Vec;

use quorate_check::Seeds;
use quorate_types::{Epoch, NodeId, NodeSet, Role, View};

use super::world::{MS, World, nodes, remove};
use crate::{Body, Phase};

/// Longer than members that are missing are waited for.
const PATIENCE_MS: u64 = 10_500;

/// A cluster of nodes with disks, whose clients have been told of something.
pub(super) fn formed(seed: u64, count: u16) -> World {
    let mut world = World::new(seed, count);
    world.flush_max = Some(5 * MS);
    let mut world = world.form(count);
    world.run(50);
    assert!(world.write_record(1));
    world
}

pub(super) fn lose_power(world: &mut World) {
    for node in world.nodes.keys().copied().collect::<Vec<_>>() {
        world.crash(node.0);
    }
}

pub(super) fn start_all(world: &mut World, nodes: &[u16]) {
    for node in nodes {
        world.start(*node);
    }
}

#[test]
fn all_lose_power_and_form_the_same_cluster_again() {
    for seed in Seeds::new(0..20) {
        let mut world = formed(seed, 3);
        let before = world.machine(1).view().clone();
        lose_power(&mut world);
        world.run(500);
        start_all(&mut world, &[3, 1, 2]);
        let taken = world.run_until_serving(&[1, 2, 3], 1500);
        let view = world.machine(2).view().clone();
        assert_eq!((view.cluster, view.epoch), (before.cluster, Epoch(2)), "{seed}");
        assert_eq!(view.active(), nodes(&[1, 2, 3]));
        assert!(view.last_number > before.last_number, "no number comes back");
        for member in &view.members {
            assert!(before.members.iter().all(|other| other.number < member.number));
        }
        assert!(taken < 800, "seed {seed}: {taken} ms");
        assert!(world.write_record(2));
    }
}

#[test]
fn all_lose_power_again_and_again() {
    let mut world = formed(3, 3);
    for round in 0..8 {
        lose_power(&mut world);
        start_all(&mut world, &[1, 2, 3]);
        // Every other time the power goes in the middle of it.
        if round % 2 == 0 {
            let span = 20 + world.rng.below(300);
            world.run(span);
            lose_power(&mut world);
            start_all(&mut world, &[1, 2, 3]);
        }
        world.run_until_serving(&[1, 2, 3], 3000);
        assert!(world.write_record(1));
    }
}

/// A restart is a long pause: the node's vote counts at once.
#[test]
fn a_node_that_restarts_with_its_disk_votes_at_once() {
    let mut world = formed(1, 3);
    world.kill(3);
    world.run(400);
    assert_eq!(world.machine(1).view().live(), nodes(&[1, 2]));
    // Without the vote of node 2 nothing can be decided any more.
    world.kill(2);
    world.start(2);
    world.run_until_serving(&[1, 2], 1500);
    assert_eq!(world.machine(1).view().voters(), nodes(&[1, 2, 3]));
}

#[test]
fn a_node_that_restarts_without_its_disk_has_no_vote() {
    let mut world = formed(1, 3);
    world.kill(3);
    world.run(400);
    world.kill(2);
    world.lose_disk(2);
    world.start(2);
    world.run(3000);
    assert!(!world.is_serving(1));
    assert_eq!(world.machine(1).view().live(), nodes(&[1, 2]), "{}", world.reason(1));
}

/// Node 3 was out of the view when the power went: what it has is older.
#[test]
fn who_was_not_active_in_the_newest_view_comes_back_as_a_shadow() {
    let mut world = formed(5, 3);
    world.kill(3);
    world.run(400);
    assert!(world.write_record(2));
    lose_power(&mut world);
    // The two that are here are a majority. Node 1 is waited for, as its data may be newer.
    start_all(&mut world, &[2, 3]);
    world.run(2000);
    assert_eq!(world.machine(2).view().epoch, Epoch(0));
    let reason = world.reason(2);
    assert!(reason.contains("node 1"), "{reason}");
    world.run(PATIENCE_MS);
    let view = world.machine(2).view().clone();
    assert_eq!((view.active(), view.live()), (nodes(&[2]), nodes(&[2, 3])), "{view:?}");
    world.run_until_serving(&[2, 3], 1000);
    assert!(world.write_record(3));
    // The one that comes late finds that the others went on.
    world.start(1);
    world.run_until_serving(&[1, 2, 3], 1500);
}

/// The eldest active member keeps the leases of all who are gone. Node 1 is not active when the others are;
/// were its number smaller, it would take them over from one that lives, once it has copied.
#[test]
fn who_is_active_first_is_the_eldest_when_the_shadows_of_a_revived_view_have_copied() {
    for seed in Seeds::new(0..10) {
        let mut world = formed(seed, 3);
        world.kill(1);
        world.run(400);
        assert!(world.write_record(2));
        lose_power(&mut world);
        start_all(&mut world, &[1, 2, 3]);
        let eldest = |view: &View| {
            let active = view.members.iter().filter(|member| member.role == Role::Active);
            active.min_by_key(|member| member.number).map(|member| member.node)
        };
        world.run_until_serving(&[2, 3], 1500);
        let first = world.machine(2).view().clone();
        world.run_until_serving(&[1, 2, 3], 1500);
        let last = world.machine(2).view().clone();
        assert_eq!(last.active(), nodes(&[1, 2, 3]));
        assert_eq!((eldest(&first), eldest(&last)), (Some(NodeId(2)), Some(NodeId(2))), "{seed}");
    }
}

#[test]
fn only_stale_members_form_nothing_and_say_why() {
    let mut world = formed(5, 3);
    world.kill(3);
    world.run(400);
    assert!(world.write_record(2));
    lose_power(&mut world);
    world.lose_disk(2);
    start_all(&mut world, &[2, 3]);
    world.run(PATIENCE_MS + 3000);
    for node in [2, 3] {
        assert_eq!(world.machine(node).view().epoch, Epoch(0));
        let reason = world.reason(node);
        assert!(reason.contains('1') && reason.contains("quorate recover"), "{node}: {reason}");
    }
    world.start(1);
    world.run_until_serving(&[1, 2, 3], 2500);
}

#[test]
fn damaged_stores_serve_nothing() {
    let mut world = formed(5, 3);
    lose_power(&mut world);
    for node in [1, 2] {
        world.nodes.get_mut(&NodeId(node)).unwrap().disk.is_damaged = true;
    }
    start_all(&mut world, &[1, 2]);
    world.run(PATIENCE_MS + 1000);
    assert_eq!(world.machine(1).view().epoch, Epoch(0));
    let reason = world.reason(1);
    assert!(reason.contains("node 3") && reason.contains("quorate recover"), "{reason}");
    // With the one whose store is intact the others copy.
    world.start(3);
    world.run(600);
    assert_eq!(world.machine(3).view().active(), nodes(&[3]));
    world.run_until_serving(&[1, 2, 3], 1500);
}

/// Their logs were put aside and begun anew, and the power goes again before a view has taken the nodes in:
/// an empty log is sound.
#[test]
fn a_store_that_was_damaged_is_not_intact_when_the_power_goes_again() {
    let mut world = formed(5, 3);
    lose_power(&mut world);
    for node in [1, 2] {
        let node = world.nodes.get_mut(&NodeId(node)).unwrap();
        (node.disk.is_damaged, node.records) = (true, Default::default());
    }
    start_all(&mut world, &[1, 2]);
    world.run(500);
    lose_power(&mut world);
    for node in [1, 2] {
        world.nodes.get_mut(&NodeId(node)).unwrap().disk.is_damaged = false;
    }
    start_all(&mut world, &[1, 2]);
    world.run(PATIENCE_MS + 1000);
    assert_eq!(world.machine(1).view().epoch, Epoch(0), "{}", world.reason(1));
    world.start(3);
    world.run(600);
    assert_eq!(world.machine(3).view().active(), nodes(&[3]));
    world.run_until_serving(&[1, 2, 3], 1500);
    // What they have copied is as good as what they had.
    lose_power(&mut world);
    start_all(&mut world, &[1, 2]);
    world.run_until_serving(&[1, 2], PATIENCE_MS + 1500);
}

#[test]
fn where_a_majority_has_each_update_one_member_is_too_few() {
    let mut world = World::new(7, 3);
    (world.flush_max, world.revive_majority) = (Some(5 * MS), true);
    let mut world = world.form(3);
    lose_power(&mut world);
    world.nodes.get_mut(&NodeId(2)).unwrap().disk.is_damaged = true;
    start_all(&mut world, &[1, 2]);
    world.run(PATIENCE_MS + 1000);
    assert_eq!(world.machine(1).view().epoch, Epoch(0), "{}", world.reason(1));
    world.start(3);
    world.run_until_serving(&[1, 2, 3], 1500);
    assert_eq!(world.machine(1).view().member(NodeId(2)).unwrap().role, Role::Active);
}

/// Nodes 1 to 3 have one group's data, each all of it; of that of nodes 3 to 5 a majority has each update.
/// Found by the simulator: one keyspace with quorums had all others wait for a majority, too.
#[test]
fn quorums_of_one_group_ask_nothing_of_another() {
    for (damaged, is_enough) in [([1, 2], true), ([3, 4], false)] {
        let mut world = World::new(7, 5);
        world.flush_max = Some(5 * MS);
        world.groups = vec![nodes(&[1, 2, 3]), nodes(&[3, 4, 5])];
        world.quorum_groups = vec![nodes(&[3, 4, 5])];
        let mut world = world.form(5);
        lose_power(&mut world);
        for node in damaged {
            world.nodes.get_mut(&NodeId(node)).unwrap().disk.is_damaged = true;
        }
        start_all(&mut world, &[1, 2, 3, 4, 5]);
        world.run(PATIENCE_MS + 1500);
        assert_eq!(world.is_serving(5), is_enough, "{}", world.reason(5));
    }
}

/// The first view is on one disk only when the power goes: the others' lives are on theirs.
#[test]
fn a_life_that_was_admitted_without_its_knowledge_counts() {
    let mut reached = false;
    for seed in Seeds::new(0..120) {
        let mut world = World::new(seed, 3);
        (world.flush_max, world.delay_max) = (Some(20 * MS), 10 * MS);
        start_all(&mut world, &[1, 2, 3]);
        for _ in 0..6 {
            let span = 20 + world.rng.below(150);
            world.run(span);
            lose_power(&mut world);
            start_all(&mut world, &[1, 2, 3]);
        }
        world.run_until_serving(&[1, 2, 3], 4000);
        reached |=
            world.probes.contains_key("membership: a life was admitted that ended before it knew");
    }
    assert!(reached);
}

/// Nodes 1 and 2 have a group's data, and lose power while node 3 lives.
#[test]
fn a_group_that_lost_power_is_revived_by_a_member_that_lives() {
    let mut world = World::new(9, 3);
    world.flush_max = Some(5 * MS);
    world.groups = vec![nodes(&[1, 2])];
    let mut world = world.form(3);
    for node in [1, 2] {
        world.kill(node);
    }
    start_all(&mut world, &[1, 2]);
    world.run_until_serving(&[1, 2, 3], 1500);
    assert_eq!(world.machine(3).view().active(), nodes(&[1, 2, 3]));
}

/// Of two nodes that have a group's data either one is enough, once the other has been waited for.
#[test]
fn a_group_of_which_one_member_comes_back_is_revived() {
    // The others are a majority of five, and could remove one of the two while nobody is back.
    for (seed, back, away) in [(9, 1, 0), (10, 2, 0), (11, 1, 1500), (12, 2, 1500)] {
        for count in [3, 5] {
            let mut world = World::new(seed, count);
            world.flush_max = Some(MS);
            world.groups = vec![nodes(&[1, 2])];
            let mut world = world.form(count);
            assert!(world.write_record(1));
            // Both are gone before anybody notices that one is.
            world.crash(1);
            world.crash(2);
            world.kill(1);
            world.kill(2);
            world.run(away);
            world.start(back);
            world.run(PATIENCE_MS / 2);
            assert!(!world.is_serving(back), "the other one is waited for");
            world.run(PATIENCE_MS / 2 + 1500);
            assert!(world.is_serving(back), "{count}, {back}: {}", world.reason(back));
            assert!(world.write_record(back));
            world.start(3 - back);
            world.run_until_serving(&(1..=count).collect::<Vec<_>>(), 3000);
        }
    }
}

/// Node 1 is back, and waits for node 2, which has the data of the same group. What it has said in its former
/// life was long on its way. Were it taken for a member that runs, the new life would be admitted as a shadow,
/// and its data would be nowhere.
#[test]
fn late_word_of_a_former_life_is_no_reason_to_admit_the_next_one() {
    for seed in Seeds::new(0..10) {
        let mut world = World::new(seed, 3);
        world.flush_max = Some(MS);
        world.groups = vec![nodes(&[1, 2])];
        let mut world = world.form(3);
        assert!(world.write_record(1));
        // Nobody removes either of two that die at once.
        world.crash(1);
        world.crash(2);
        world.start(1);
        let span = 100 + world.rng.below(300);
        world.run(span);
        for _ in 0..50 {
            world.tell_heard(1, 3, nodes(&[1, 3]));
            world.run(3);
        }
        let role = world.machine(3).view().member(NodeId(1)).map(|member| member.role);
        assert_eq!(role, Some(Role::Active), "seed {seed}: as before");
        world.run(PATIENCE_MS + 1500);
        assert!(world.is_serving(1), "seed {seed}: {}", world.reason(1));
        assert!(world.write_record(1), "seed {seed}");
    }
}

/// Nodes 1 and 2 die at once, and what node 2 has said before comes late. It has outlived nobody.
#[test]
fn late_word_of_the_dead_removes_nobody() {
    for seed in Seeds::new(0..20) {
        let mut world = World::new(seed, 5);
        world.flush_max = Some(MS);
        world.groups = vec![nodes(&[1, 2])];
        let mut world = world.form(5);
        let span = world.rng.below(500);
        world.run(span);
        assert!(world.write_record(1));
        world.crash(1);
        world.crash(2);
        for _ in 0..100 {
            (3..=5).for_each(|to| world.tell_heard(2, to, nodes(&[1, 2, 3, 4, 5])));
            world.run(5);
        }
        world.run(500);
        assert!(nodes(&[1, 2]).is_subset(world.machine(3).view().active()), "seed {seed}");
        world.start(1);
        world.run(PATIENCE_MS + 1500);
        assert!(world.is_serving(1), "seed {seed}: {}", world.reason(1));
        assert!(world.write_record(1), "seed {seed}");
    }
}

/// Nodes 1 and 2 die within a moment, and the others notice it of one before they do of the other. Nobody
/// has gone on alone, so either one is enough.
#[test]
fn deaths_that_are_noticed_apart_are_one() {
    for seed in Seeds::new(0..120) {
        let count = 3 + (seed % 3) as u16;
        let mut world = World::new(seed, count);
        world.flush_max = Some(5 * MS);
        world.groups = vec![nodes(&[1, 2])];
        let mut world = world.form(count);
        let span = world.rng.below(500);
        world.run(span);
        assert!(world.write_record(1));
        let (first, second) = if world.rng.chance(1, 2) { (1, 2) } else { (2, 1) };
        for node in [first, second] {
            let notice = world.rng.chance(1, 2);
            if notice {
                world.kill(node)
            } else {
                world.crash(node)
            }
            let span = world.rng.below(20);
            world.run(span);
        }
        if world.rng.chance(1, 2) {
            let span = world.rng.below(4000);
            world.run(span);
        }
        let (back, late) = if world.rng.chance(1, 2) { (1, 2) } else { (2, 1) };
        world.start(back);
        world.run(PATIENCE_MS + 2000);
        assert!(world.is_serving(back), "seed {seed}, {count}: {}", world.reason(back));
        assert!(world.write_record(back), "seed {seed}");
        world.start(late);
        world.run_until_serving(&(1..=count).collect::<Vec<_>>(), 3000);
    }
}

/// The node that proposes is not of the dead one's group, and waits a moment longer.
#[test]
fn a_member_of_a_group_that_has_been_outlived_is_removed() {
    for seed in Seeds::new(0..40) {
        let removed = |has_disk: bool| {
            let mut world = World::new(seed, 5);
            world.flush_max = has_disk.then_some(MS);
            world.groups = vec![nodes(&[4, 5])];
            let mut world = world.form(5);
            let span = world.rng.below(500);
            world.run(span);
            world.kill(5);
            let begin = world.now;
            while world.machine(1).view().live().contains(NodeId(5)) {
                world.run(1);
            }
            (world.now - begin) / MS
        };
        assert!(removed(false) <= 160, "{} ms", removed(false));
        // Node 4 proposes after the others' turns, or they have heard it long enough.
        assert!(removed(true) <= 270, "{} ms", removed(true));
    }
}

/// Node 2 went on alone for its group, so node 1 has nothing that counts, and says who has.
#[test]
fn a_member_that_was_removed_first_waits_for_the_last_one() {
    let mut world = World::new(9, 3);
    world.flush_max = Some(MS);
    world.groups = vec![nodes(&[1, 2])];
    let mut world = world.form(3);
    world.kill(1);
    world.run(600);
    assert_eq!(world.machine(2).view().active(), nodes(&[2, 3]));
    assert!(world.write_record(2));
    world.kill(2);
    world.start(1);
    world.run(PATIENCE_MS + 1500);
    assert!(!world.is_serving(1));
    let reason = world.reason(1);
    assert!(reason.contains("start node 2"), "{reason}");
    world.start(2);
    world.run_until_serving(&[1, 2, 3], 3000);
}

#[test]
fn a_disk_of_another_cluster_is_refused() {
    let mut world = formed(11, 3);
    let first = world.machine(1).view().cluster;
    lose_power(&mut world);
    let disk = core::mem::take(&mut world.nodes.get_mut(&NodeId(3)).unwrap().disk);
    for node in [1, 2] {
        world.lose_disk(node);
    }
    start_all(&mut world, &[1, 2, 3]);
    world.run_until_serving(&[1, 2, 3], 1000);
    let second = world.machine(1).view().cluster;
    assert_ne!(first, second);
    world.kill(3);
    world.nodes.get_mut(&NodeId(3)).unwrap().disk = disk;
    world.start(3);
    world.run(3000);
    assert_eq!(world.machine(3).view().epoch, Epoch(0));
    assert_eq!(world.machine(1).view().live(), nodes(&[1, 2]));
    assert_eq!(world.machine(3).status(world.now(3).monotonic).phase, Phase::Outside);
    let reason = world.reason(3);
    assert!(reason.contains("another cluster"), "{reason}");
}

/// A view that is chosen without this node's knowledge stays chosen: promises are on the disk.
#[test]
fn power_goes_during_a_change_of_view() {
    for seed in Seeds::new(0..150) {
        let mut world = formed(seed, 3);
        (world.flush_max, world.delay_max) = (Some(30 * MS), 5 * MS);
        world.kill(3);
        let span = 120 + world.rng.below(120);
        world.run(span);
        world.write_record(1);
        lose_power(&mut world);
        let first = 1 + world.rng.below(3) as u16;
        world.start(first);
        let span = world.rng.below(200);
        world.run(span);
        start_all(&mut world, &(1..=3).filter(|node| *node != first).collect::<Vec<_>>());
        world.run_until_serving(&[1, 2, 3], 3000);
    }
}

/// Nodes 1 and 2 come back and are a majority; node 3 comes late, with the same disk, and joins.
#[test]
fn an_old_member_that_comes_late_changes_nothing() {
    let mut world = formed(13, 3);
    lose_power(&mut world);
    start_all(&mut world, &[1, 2]);
    world.run(PATIENCE_MS + 1000);
    assert!(world.is_serving(1) && world.is_serving(2));
    assert!(world.write_record(1));
    world.start(3);
    world.run_until_serving(&[1, 2, 3], 1500);
    let view = world.machine(3).view();
    assert_eq!(view.active(), nodes(&[1, 2, 3]));
}

#[test]
fn a_removed_node_stays_removed() {
    let mut world = formed(17, 3);
    world.request(1, remove(NodeId(3)));
    world.run(500);
    lose_power(&mut world);
    start_all(&mut world, &[1, 2, 3]);
    world.run_until_serving(&[1, 2], 1500);
    assert_eq!(world.machine(1).view().voters(), nodes(&[1, 2]));
}

/// A voter whose disk takes its time says nothing that is not on it.
#[test]
fn nothing_is_said_before_it_is_durable() {
    let mut world = World::new(19, 3);
    world.flush_max = Some(u64::MAX / 4);
    start_all(&mut world, &[1, 2, 3]);
    world.run(2000);
    assert_eq!(world.messages, 0, "no life is announced that is on no disk");
}

/// Node 2 alone has granted node 3 its lease, is asked to remove it, and restarts. It does not know any
/// more until when it promised to wait.
#[test]
fn a_voter_that_restarts_keeps_the_promises_that_it_has_forgotten() {
    for seed in Seeds::new(0..10) {
        let mut world = formed(seed, 3);
        world.flush_max = Some(MS);
        // Nodes 1 and 3 don't hear each other, and node 3 decides nothing.
        world.loses = |from, to, body| from + to == 4 || from == 3 && matches!(body, Body::Log(_));
        while !world.machine(1).is_proposing() {
            world.run(1);
        }
        world.run(2);
        assert!(world.is_serving(3), "{}", world.reason(3));
        world.crash(2);
        world.start(2);
        world.run(400);
        assert!(!world.machine(1).view().live().contains(NodeId(3)));
    }
}

/// Node 1 knows of a view by the votes of itself and node 2, and the power goes. Node 2 has not forgotten
/// its vote, though nobody else is there who knows of that view.
#[test]
fn a_vote_is_on_the_disk_before_it_counts() {
    for seed in Seeds::new(0..30) {
        let mut world = formed(seed, 3);
        world.flush_max = Some(100 * MS);
        world.kill(3);
        while world.machine(1).view().epoch == Epoch(1) {
            world.run(1);
        }
        lose_power(&mut world);
        start_all(&mut world, &[2, 3]);
        world.run(PATIENCE_MS + 2000);
        world.start(1);
        world.run_until_serving(&[1, 2, 3], 4000);
    }
}

#[test]
fn chaos_with_disks() {
    let mut probes: Vec<&str> = Vec::new();
    let (mut healed, mut served) = (0, 0);
    for seed in Seeds::new(0..200) {
        let count = [3, 5, 2, 4][seed as usize % 4];
        let mut world = World::new(seed, count);
        world.flush_max = Some([MS, 10 * MS, 60 * MS][seed as usize / 4 % 3]);
        world.nervous = seed / 8 % 2 == 0;
        world.revive_majority = seed / 16 % 2 == 1;
        if count > 2 && seed / 32 % 2 == 1 {
            world.groups = vec![nodes(&[1, 2])];
            if world.revive_majority {
                world.quorum_groups = world.groups.clone();
            }
        }
        for node in 1..=count {
            world.start(node);
        }
        for _ in 0..50 {
            let span = 10 + world.rng.below(300);
            world.run(span);
            world.catch_up();
            for node in 1..=count {
                world.write_record(node);
            }
            shake(&mut world, count);
        }
        (world.cut, world.loss_percent, world.delay_max) = (None, 0, MS);
        world.flush_max = Some(5 * MS);
        for node in 1..=count {
            if world.nodes[&NodeId(node)].machine.is_none() {
                world.start(node);
            }
        }
        world.run(500);
        world.run_until_serving(&(1..=count).collect::<Vec<_>>(), PATIENCE_MS + 5000);
        healed += 1;
        served += world.acknowledged.values().map(|told| told.len()).sum::<usize>();
        probes.extend(world.probes.keys().copied());
    }
    assert!(served > 1000, "{healed} healed, {served} updates");
    for probe in [
        "membership: a view is revived from disks",
        "membership: a life was admitted that ended before it knew",
    ] {
        assert!(probes.contains(&probe), "never reached: {probe}");
    }
}

/// One mishap.
fn shake(world: &mut World, count: u16) {
    let node = 1 + world.rng.below(u64::from(count)) as u16;
    match world.rng.below(12) {
        0 | 1 => {
            let pause = 20 + world.rng.below(800);
            world.pause(node, pause);
        }
        2 => {
            let bits = world.rng.next_u64() & ((1 << (count + 1)) - 2);
            world.cut = Some(NodeSet::from_bits(bits));
        }
        3 | 4 => world.cut = None,
        5 => world.crash(node),
        6 => world.kill(node),
        7 => {
            world.loss_percent = world.rng.below(30);
            world.delay_max = MS / 10 + world.rng.below(20 * MS);
        }
        8 | 9 => {
            for node in 1..=count {
                if world.rng.chance(5, 6) {
                    world.crash(node);
                }
            }
        }
        _ => {}
    }
    for node in 1..=count {
        let stopped = world.nodes[&NodeId(node)].machine.is_none();
        if stopped && world.rng.chance(1, 2) {
            world.start(node);
        }
    }
}
