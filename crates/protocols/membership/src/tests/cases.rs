//! The actions and mishaps of users, one by one.

use alloc::vec;
use alloc::vec::Vec;

use quorate_check::Seeds;
use quorate_machine::Machine;
use quorate_types::{Epoch, MemberNumber, NodeId, Role};

use super::world::{MS, World, addresses, nodes, remove};
use crate::{Body, MembershipError, Phase, Request};

#[test]
fn three_fresh_nodes_found_a_cluster_at_once() {
    let mut world = World::new(1, 3);
    for node in 1..=3 {
        world.start(node);
    }
    let taken = world.run_until_serving(&[1, 2, 3], 1000);
    assert!(taken < 50, "{taken} ms");
    let view = world.machine(2).view();
    assert_eq!((view.epoch, view.last_number), (Epoch(1), MemberNumber(3)));
    assert_eq!(view.active().len(), 3);
}

#[test]
fn a_single_node_is_a_cluster() {
    let mut world = World::formed(1, 1);
    world.run(1000);
    assert!(world.is_serving(1));
}

#[test]
fn two_of_three_fresh_nodes_wait_and_say_for_whom() {
    let mut world = World::new(1, 3);
    world.start(1);
    world.start(2);
    world.run(1000);
    assert_eq!(world.machine(1).view().epoch, Epoch(0));
    let reason = "waiting for node 3: a new cluster forms when all configured nodes run";
    for node in [1, 2] {
        let said = world.reason(node);
        assert!(said.starts_with(reason), "{said}");
        assert!(said.ends_with(&alloc::format!("`quorate member add {node}`")), "{said}");
    }
    world.start(3);
    world.run_until_serving(&[1, 2, 3], 100);
}

#[test]
fn a_killed_node_is_out_of_the_view_within_200_ms() {
    let mut longest = 0;
    for seed in Seeds::new(0..40) {
        let mut world = World::formed(seed, 3);
        let wait = 200 + world.rng.below(100);
        world.run(wait);
        let victim = 1 + (seed % 3) as u16;
        world.kill(victim);
        let rest: Vec<u16> = (1..=3).filter(|node| *node != victim).collect();
        let begin = world.now;
        while rest.iter().any(|node| world.machine(*node).view().epoch == Epoch(1)) {
            world.run(1);
            assert!(world.now - begin < 200 * MS, "not removed after 200 ms");
        }
        longest = longest.max((world.now - begin) / MS);
        assert!(rest.iter().all(|node| world.is_serving(*node)), "service never stopped");
        let view = world.machine(rest[0]).view();
        assert_eq!(view.member(NodeId(victim)).unwrap().role, Role::Down);
    }
    assert!(longest <= 160, "the lease of 150 ms decides, not {longest} ms");
}

#[test]
fn a_silent_node_is_removed_without_a_hint() {
    let mut world = World::formed(3, 3);
    world.run(300);
    world.crash(3);
    world.run(500);
    assert_eq!(world.machine(1).view().live().len(), 3, "it may be a stall");
    world.run(250);
    assert_eq!(world.machine(1).view().live().len(), 2);
}

#[test]
fn a_restarted_node_comes_back_as_a_shadow_with_a_new_number() {
    let mut world = World::formed(4, 3);
    let before = world.machine(3).me.incarnation;
    world.kill(3);
    world.start(3);
    world.run(200);
    let member = world.machine(1).view().member(NodeId(3)).unwrap().clone();
    assert_eq!((member.role, member.number), (Role::Shadow, MemberNumber(4)));
    assert_ne!(member.incarnation, before);
    let status = world.machine(3).status(world.now(3).monotonic);
    assert_eq!(status.phase, Phase::CatchingUp);
    let tag = world.request(3, Request::CaughtUp { epoch: world.machine(3).view().epoch });
    world.run_until_serving(&[1, 2, 3], 50);
    assert_eq!(world.completed[&tag], Ok(world.machine(3).view().epoch));
}

#[test]
fn a_rolling_restart_never_stops_service() {
    let mut world = World::formed(5, 3);
    for node in [1, 2, 3, 1, 2, 3] {
        world.kill(node);
        world.run(20);
        world.start(node);
        world.run_until_serving(&[1, 2, 3], 1500);
    }
    assert_eq!(world.machine(1).view().last_number, MemberNumber(9));
}

#[test]
fn a_whole_restart_founds_a_new_cluster() {
    let mut world = World::formed(6, 3);
    let cluster = world.machine(1).view().cluster;
    for node in 1..=3 {
        world.crash(node);
    }
    for node in 1..=3 {
        world.start(node);
    }
    world.run_until_serving(&[1, 2, 3], 500);
    assert_ne!(world.machine(1).view().cluster, cluster);
    assert_eq!(world.machine(1).view().epoch, Epoch(1));
}

/// A node that was taken out goes on running, and may found the next cluster.
#[test]
fn a_removed_node_that_founds_anew_hears_that_it_is_another_cluster() {
    let mut world = World::formed(6, 3);
    let cluster = world.machine(3).view().cluster;
    let tag = world.request(1, remove(NodeId(3)));
    world.run(400);
    assert!(world.completed[&tag].is_ok());
    for node in 1..=2 {
        world.crash(node);
    }
    for node in 1..=2 {
        world.start(node);
    }
    world.run_until_serving(&[1, 2, 3], 500);
    let view = world.machine(3).view();
    assert_eq!((view.epoch, view.active().len()), (Epoch(1), 3));
    assert_ne!(view.cluster, cluster);
    assert_eq!(view.cluster, world.machine(1).me.incarnation);
}

/// The node knows an epoch of the ended cluster, and the new cluster has not come as far.
#[test]
fn a_removed_node_is_added_to_a_cluster_founded_without_it() {
    let mut world = World::formed(6, 3);
    world.configure(4, (1..=3).map(addresses).collect());
    world.start(4);
    for _ in 0..3 {
        let tag = world.request(1, Request::Add(addresses(4)));
        world.run_until_serving(&[1, 2, 3, 4], 500);
        assert!(world.completed[&tag].is_ok());
        world.request(1, remove(NodeId(4)));
        world.run(400);
    }
    let over = world.machine(4).newest_view().clone();
    for node in 1..=3 {
        world.crash(node);
    }
    for node in 1..=3 {
        world.start(node);
    }
    world.run_until_serving(&[1, 2, 3], 500);
    world.run(400);
    let known = world.machine(4).newest_view();
    assert!(known.cluster != over.cluster && known.epoch < over.epoch, "{known:?}");
    // Members tell their decisions to every node once, and that message gets lost.
    world.loses = |_, to, body| to == 4 && matches!(body, Body::Log(_));
    let tag = world.request(1, Request::Add(addresses(4)));
    world.run(100);
    assert!(world.completed[&tag].is_ok());
    world.loses = |_, _, _| false;
    world.run_until_serving(&[1, 2, 3, 4], 500);
}

#[test]
fn a_majority_that_lost_its_state_founds_nothing_and_says_why() {
    let mut world = World::formed(7, 3);
    world.run(100);
    for node in [1, 2] {
        world.kill(node);
        world.start(node);
    }
    world.run(3000);
    for node in [1, 2] {
        assert_eq!(world.machine(node).view().epoch, Epoch(0));
    }
    assert!(!world.is_serving(3));
    for node in 1..=3 {
        let reason = world.reason(node);
        assert!(
            reason
                .starts_with("node 3 in epoch 1 cannot go on because nodes 1, 2 lost their state"),
            "{reason}"
        );
    }
    // All together, as the sentence says.
    world.crash(3);
    world.start(3);
    world.run_until_serving(&[1, 2, 3], 500);
}

#[test]
fn an_outsider_says_when_no_member_is_left_that_has_its_state() {
    let mut world = World::formed(7, 3);
    world.request(1, remove(NodeId(3)));
    world.run(400);
    for node in [1, 2] {
        world.crash(node);
    }
    // The nodes that it configures keep node 1 from founding anew.
    world.start(1);
    world.configure(2, (1..=4).map(addresses).collect());
    world.start(2);
    world.configure(1, (1..=4).map(addresses).collect());
    world.start(1);
    world.run(400);
    let reason = world.reason(3);
    let said = "the cluster in epoch 2 has ended because nodes 1, 2 lost their state";
    assert!(reason.starts_with(said), "{reason}");
}

#[test]
fn a_fourth_node_is_added_and_removed_again() {
    let mut world = World::formed(8, 3);
    world.configure(4, (1..=4).map(addresses).collect());
    world.start(4);
    world.run(300);
    let reason = world.reason(4);
    assert!(reason.contains("run `quorate member add 4`"), "{reason}");
    let tag = world.request(2, Request::Add(addresses(4)));
    world.run(20);
    assert_eq!(world.completed[&tag], Ok(Epoch(2)));
    world.run_until_serving(&[1, 2, 3, 4], 500);
    let tag = world.request(1, remove(NodeId(4)));
    world.run(400);
    assert!(world.completed[&tag].is_ok());
    assert_eq!(world.machine(3).view().voters().len(), 3);
    assert!(world.reason(4).contains("run `quorate member add 4`"));
}

/// A node that is added while it doesn't run could not vote, and nobody could take it in.
#[test]
fn a_cluster_of_one_takes_in_a_node_that_runs() {
    for seed in Seeds::new(0..20) {
        let mut world = World::formed(seed, 1);
        world.configure(2, (1..=2).map(addresses).collect());
        let elsewhere = crate::MemberConfig { node: NodeId(2), ..addresses(9) };
        let tag = world.request(1, Request::Add(elsewhere.clone()));
        let newcomers: Vec<_> = world.machine(1).newcomers().cloned().collect();
        assert_eq!(newcomers, [elsewhere], "it is looked for");
        world.start(2);
        world.run(10_100);
        assert_eq!(world.completed[&tag], Err(MembershipError::NotHereYet(NodeId(2))));
        assert_eq!(world.machine(1).newcomers().count(), 0);
        let started = world.rng.below(300);
        world.kill(2);
        let tag = world.request(1, Request::Add(addresses(2)));
        world.run(started);
        world.start(2);
        world.run(200);
        assert!(world.completed[&tag].is_ok(), "seed {seed}");
        world.run_until_serving(&[1, 2], 500);
        world.configure(3, (1..=3).map(addresses).collect());
        let tag = world.request(2, Request::Add(addresses(3)));
        world.run(50);
        assert!(world.completed[&tag].is_ok(), "seed {seed}");
        world.start(3);
        world.run_until_serving(&[1, 2, 3], 1000);
        world.kill(1);
        world.run_until_serving(&[2, 3], 1000);
    }
}

#[test]
fn impossible_changes_are_refused_with_a_reason() {
    let mut world = World::formed(9, 2);
    let mut refused = |request| {
        let tag = world.request(1, request);
        world.completed[&tag].clone().unwrap_err()
    };
    assert_eq!(refused(remove(NodeId(1))), MembershipError::RemovesItself);
    let moved = crate::MemberConfig { node: NodeId(2), ..addresses(9) };
    assert_eq!(refused(Request::Add(moved)), MembershipError::AlreadyMember(NodeId(2)));
    let (zero, large) = (NodeId(0), NodeId(64));
    assert_eq!(refused(Request::Add(addresses(0))), MembershipError::InvalidId(zero));
    assert_eq!(refused(Request::Add(addresses(64))), MembershipError::InvalidId(large));
    let late = Request::CaughtUp { epoch: Epoch(9) };
    assert_eq!(refused(late), MembershipError::WrongEpoch(Epoch(9)));
    let mut lone = World::new(9, 2);
    lone.start(1);
    let tag = lone.request(1, remove(NodeId(2)));
    assert_eq!(lone.completed[&tag], Err(MembershipError::NotAMember));
}

#[test]
fn removing_a_live_node_may_not_cost_the_majority() {
    let mut world = World::formed(10, 3);
    world.kill(3);
    world.run(300);
    let tag = world.request(1, remove(NodeId(2)));
    assert_eq!(world.completed[&tag], Err(MembershipError::NoMajority(NodeId(2))));
    let tag = world.request(1, remove(NodeId(3)));
    world.run(50);
    assert!(world.completed[&tag].is_ok());
    assert_eq!(world.machine(2).view().voters().len(), 2);
}

/// Three members, one of them dead, and a fourth that can't join without a majority of four.
#[test]
fn adding_a_member_may_not_cost_the_majority() {
    let mut world = World::formed(15, 3);
    world.kill(3);
    world.run(300);
    let tag = world.request(1, Request::Add(addresses(4)));
    assert_eq!(world.completed[&tag], Err(MembershipError::TooFewForOneMore(NodeId(4))));
    world.start(3);
    world.run_until_serving(&[1, 2, 3], 1000);
    let tag = world.request(1, Request::Add(addresses(4)));
    world.run(50);
    assert!(world.completed[&tag].is_ok());
}

#[test]
fn a_request_that_no_majority_answers_times_out() {
    let mut world = World::formed(11, 3);
    world.run(200);
    world.cut = Some([NodeId(1)].into_iter().collect());
    let tag = world.request(1, Request::Add(addresses(4)));
    world.run(10_200);
    let silent = vec![NodeId(2), NodeId(3)];
    assert_eq!(world.completed[&tag], Err(MembershipError::TimedOut { silent }));
    assert!(world.reason(1).starts_with("no majority of the 3 members is reachable"));
    world.cut = None;
    world.run_until_serving(&[1, 2, 3], 1000);
}

/// A removal waits for the leases of the removed member. Meanwhile another voter seems to be gone,
/// which is no reason to refuse a change that is proposed already.
#[test]
fn a_change_that_is_proposed_is_not_refused_for_want_of_voters() {
    let mut world = World::formed(16, 3);
    let tag = world.request(1, remove(NodeId(3)));
    world.run(10);
    assert!(world.machine(1).is_proposing());
    world.request(1, Request::PeerLost(NodeId(2)));
    assert_eq!(world.completed.get(&tag), None);
    world.run(400);
    assert_eq!(world.completed[&tag], Ok(Epoch(2)));
    assert_eq!(world.machine(1).view().voters(), nodes(&[1, 2]));
}

/// The others complete its proposal, and then go on without it: it learns both at once.
#[test]
fn a_change_that_came_about_is_not_refused_by_a_node_that_is_out() {
    let mut world = World::formed(17, 5);
    let tag = world.request(1, remove(NodeId(5)));
    world.run(10);
    assert!(world.machine(1).is_proposing());
    world.cut = Some(nodes(&[1]));
    world.run(4_000);
    assert_eq!(world.machine(2).view().live(), nodes(&[2, 3, 4]));
    assert_eq!(world.machine(2).view().voters(), nodes(&[1, 2, 3, 4]));
    assert_eq!(world.completed.get(&tag), None);
    world.cut = None;
    world.run_until_serving(&[1, 2, 3, 4], 2_000);
    assert!(world.completed[&tag].is_ok(), "{:?}", world.completed[&tag]);
}

#[test]
fn a_minority_stops_before_the_majority_moves_on_and_comes_back() {
    let mut world = World::formed(12, 5);
    world.run(200);
    world.cut = Some([NodeId(1), NodeId(2)].into_iter().collect());
    // The last renewal may have left just before the cut. Whenever the majority has moved on, the
    // minority has stopped.
    for _ in 0..750 {
        world.run(1);
        let moved_on = (3..=5).any(|node| world.machine(node).view().live().len() == 3);
        assert!(!moved_on || (1..=2).all(|node| !world.is_serving(node)));
    }
    assert_eq!(world.machine(4).view().live().len(), 3);
    assert!((3..=5).all(|node| world.is_serving(node)));
    world.cut = None;
    world.run_until_serving(&[1, 2, 3, 4, 5], 1000);
}

#[test]
fn a_node_paused_past_its_lease_is_harmless_and_comes_back() {
    let mut world = World::formed(13, 3);
    world.run(200);
    world.pause(1, 1_500);
    world.run(800);
    assert_eq!(world.machine(2).view().live().len(), 2);
    world.run_until_serving(&[1, 2, 3], 1500);
}

#[test]
fn nodes_that_were_away_together_expel_nobody() {
    // As on a machine that sleeps. The first messages after the sleep make a majority, without the
    // others.
    for seed in 0..30 {
        let mut world = World::formed(seed, 5);
        world.crash(5);
        world.run(400);
        world.start(5);
        // The first node has proposed views, and could propose another at once.
        world.run_until_serving(&[1, 2, 3, 4, 5], 2_000);
        world.run(seed);
        let before = world.machine(1).view().clone();
        (1..=5).for_each(|node| world.pause(node, 700));
        world.run(1_000);
        assert_eq!(*world.machine(1).view(), before, "seed {seed}");
    }
}

#[test]
fn who_was_silent_before_stays_suspected() {
    let mut world = World::formed(16, 3);
    world.run(200);
    world.crash(2);
    world.crash(3);
    world.run(700);
    assert_eq!(world.machine(1).suspects().len(), 2);
    world.pause(1, 80);
    world.run(81);
    assert_eq!(world.machine(1).suspects().len(), 2);
}

#[test]
fn an_idle_cluster_says_little() {
    let mut world = World::formed(14, 3);
    world.run(300);
    let before = (world.messages, world.writes, world.timers);
    for _ in 0..3_000 {
        world.run(1);
        for node in 1..=3 {
            let left = world.machine(node).lease_until().since(world.now(node).monotonic);
            assert!(left.as_millis() >= 89, "node {node} has {left:?} left of 150 ms");
        }
    }
    let rounds = 3_000 / 60;
    // One of the three leads. It asks the others, and they ask it in the message of their grant.
    let (renewals, grants, writes) = (4, 4, 6);
    // In every other round its followers exchange heartbeats.
    let words = 2 * rounds / 2;
    assert_eq!(world.messages - before.0, (renewals + grants) * rounds + words);
    // Each write wakes a peer up once at most.
    assert_eq!(world.writes - before.1, writes * rounds + words);
    // Only the leader wakes up by itself.
    assert_eq!(world.timers - before.2, rounds);
}

#[test]
fn the_deadline_never_lies_in_the_past_for_ever() {
    let mut world = World::formed(15, 3);
    world.kill(2);
    // A machine that asked to be woken at once, again and again, would not let time pass.
    world.run(1000);
    assert!(world.machine(1).next_deadline() > world.now(1).monotonic);
}

/// Node 1 holds a lease that nodes 1 and 3 granted. Node 3, to which no voter owes a promise any
/// more, crashes, is removed, and joins again, all at once. With node 2, which has granted nothing
/// for long, it could remove node 1: neither knows the promises of the former node 3. The rule
/// about changes of voters makes them wait.
#[test]
fn a_joined_voter_honours_the_promises_of_its_predecessor() {
    let mut world = World::formed_nervous(16, 3);
    world.run(200);
    world.loses = |from, _, body| from == 3 && matches!(body, Body::Renew { .. });
    world.run(40);
    world.loses = |from, to, body| match body {
        Body::Log(_) => false,
        Body::Renew { .. } if from == 3 => true,
        _ => (from, to) == (1, 2),
    };
    world.run(120);
    world.loses = |from, _, body| from == 1 && matches!(body, Body::Renew { .. });
    world.kill(3);
    world.run(3);
    assert_eq!(world.machine(1).view().epoch, Epoch(2), "node 3 is removed");
    world.start(3);
    world.run(5);
    assert_eq!(world.machine(3).view().epoch, Epoch(3), "node 3 has joined");
    world.cut = Some([NodeId(1)].into_iter().collect());
    for node in [2, 3] {
        world.request(node, Request::PeerLost(NodeId(1)));
    }
    let lease = world.machine(1).lease_until().since(world.now(1).monotonic);
    assert!(lease.as_millis() > 90, "{lease:?}");
    // Every step checks that no cluster goes on without a node that holds its lease.
    world.run(400);
    assert!(!world.machine(2).view().live().contains(NodeId(1)));
}
