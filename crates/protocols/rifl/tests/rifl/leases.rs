//! Leases: one event after the other, then everything at random.

use quorate_check::Seeds;
use quorate_harness::Clock;
use quorate_rifl::{Answer, Genuine, Grant, LeaseId, Lost, Request};
use quorate_types::{Epoch, LaneId, MemberNumber, Role};

use crate::cluster::{Cluster, LEASES_MAX, MS, TERM, Weather};

fn renew(grant: Grant) -> Request {
    Request::Renew { lease: grant.lease, told: grant.until, above: 0 }
}

fn without_the_first(cluster: &mut Cluster) {
    cluster.crash(1);
    cluster.decide_role(1, Role::Down);
    cluster.tell(2);
    cluster.tell(3);
}

#[test]
fn to_open_a_lease_takes_no_message_once_clocks_are_known() {
    let mut cluster = Cluster::new(3, 1);
    let first = cluster.open(2);
    assert_eq!((first.owner, first.lease.counter()), (MemberNumber(2), 0));
    let tag = cluster.request(2, Request::Open);
    let Some(Answer::Granted(second)) = cluster.outcome(tag) else { panic!("not at once") };
    assert_eq!(second.lease.counter(), 1);
    assert!(second.covers(&cluster.view, second.until));
    assert!(!second.covers(&cluster.view, second.until + 1));
}

#[test]
fn any_node_renews_a_lease_at_its_owner() {
    let mut cluster = Cluster::new(3, 2);
    let mut grant = cluster.open(1);
    for round in 0..6 {
        cluster.run(TERM / 2);
        let node = 1 + round % 3;
        let Answer::Granted(next) = cluster.ask(node, renew(grant)) else { panic!("lost") };
        assert!(next.until > grant.until);
        assert_eq!(next.owner, MemberNumber(1));
        grant = next;
    }
    assert_eq!(cluster.hosts[&1].machine().len(), 1);
}

#[test]
fn a_lease_that_is_not_renewed_ends_and_is_freed() {
    let mut cluster = Cluster::new(3, 3);
    let grant = cluster.open(1);
    cluster.sweep(3, &[grant.lease]);
    cluster.run(TERM / 2);
    assert!(cluster.verdicts.is_empty(), "it lives");
    cluster.run(TERM);
    assert_eq!(cluster.ask(2, renew(grant)), Answer::Lost(Lost::Expired));
    cluster.sweep(3, &[grant.lease]);
    cluster.run(50 * MS);
    let (node, verdict) = cluster.verdicts[0];
    assert_eq!((node.0, verdict.lease, verdict.lost), (3, grant.lease, Lost::Expired));
    assert!(verdict.granted > grant.until);
    assert!(cluster.hosts[&node.0].machine().is_empty());
}

#[test]
fn a_closed_lease_is_gone_everywhere() {
    let mut cluster = Cluster::new(3, 4);
    let grant = cluster.open(1);
    let close = Request::Close { lease: grant.lease };
    assert_eq!(cluster.ask(2, close), Answer::Lost(Lost::Closed));
    cluster.run(20 * MS);
    let mut told: Vec<u16> = cluster.verdicts.iter().map(|(node, _)| node.0).collect();
    told.sort_unstable();
    assert_eq!(told, [1, 2, 3]);
    assert_eq!(cluster.ask(3, renew(grant)), Answer::Lost(Lost::Closed));
    assert!(cluster.hosts[&1].machine().is_empty());
}

#[test]
fn a_lease_that_was_never_given_out_is_refused() {
    let mut cluster = Cluster::new(3, 5);
    let grant = cluster.open(1);
    let forged = LeaseId(grant.lease.0 + 1);
    let request = Request::Renew { lease: forged, told: u64::MAX, above: 0 };
    assert_eq!(cluster.ask(2, request), Answer::Lost(Lost::Expired));
}

#[test]
fn every_node_knows_what_is_shown_of_a_session_and_so_does_the_successor() {
    let mut cluster = Cluster::new(3, 21);
    let grant = cluster.open(1);
    cluster.run(50 * MS);
    let is_genuine = |cluster: &Cluster, node: u16, lease: LeaseId, token| {
        cluster.hosts[&node].machine().is_genuine(lease, token)
    };
    let next = LeaseId(grant.lease.0 + 1);
    let token = cluster.hosts[&1].machine().token(grant.lease);
    for node in 1..=3 {
        assert_eq!(is_genuine(&cluster, node, grant.lease, token), Genuine::Yes);
        assert_eq!(is_genuine(&cluster, node, grant.lease, token ^ 1), Genuine::No);
        assert_eq!(is_genuine(&cluster, node, next, token), Genuine::No);
    }
    without_the_first(&mut cluster);
    cluster.run(50 * MS);
    for node in [2, 3] {
        assert_eq!(is_genuine(&cluster, node, grant.lease, token ^ 1), Genuine::No);
        assert_eq!(is_genuine(&cluster, node, grant.lease, token), Genuine::Yes);
    }
    // A node that joins now can't tell the token of that session, and believes any. For the tokens
    // of other sessions it waits until it can tell.
    cluster.start(1);
    let other = cluster.open(2);
    let unheard = is_genuine(&cluster, 1, other.lease, 0);
    cluster.decide_role(1, Role::Shadow);
    (1..=3).for_each(|node| cluster.tell(node));
    let soon = is_genuine(&cluster, 1, other.lease, 0);
    cluster.run(100 * MS);
    assert_eq!((unheard, soon), (Genuine::Unready, Genuine::Unready));
    assert_eq!(is_genuine(&cluster, 1, other.lease, 0), Genuine::No);
    assert_eq!(is_genuine(&cluster, 1, grant.lease, 0), Genuine::Yes);
}

#[test]
fn a_lane_gives_out_as_many_leases_as_it_may() {
    let mut cluster = Cluster::new(1, 6);
    for _ in 0..LEASES_MAX {
        cluster.request(1, Request::Open);
    }
    assert_eq!(cluster.ask(1, Request::Open), Answer::Full);
    cluster.run(TERM + TERM / 4);
    cluster.run(4000 * MS);
    assert!(matches!(cluster.ask(1, Request::Open), Answer::Granted(_)));
}

#[test]
fn nothing_is_granted_beyond_what_all_clocks_have_passed() {
    let mut cluster = Cluster::new(3, 7);
    let grant = cluster.open(1);
    cluster.run(200 * MS);
    // A live member falls silent, and stays in the view.
    cluster.crash(3);
    cluster.run(TERM / 4);
    let tag = cluster.request(1, renew(grant));
    cluster.run(700 * MS);
    assert_eq!(cluster.outcome(tag), None, "its clock is not known");
    cluster.run(300 * MS);
    assert_eq!(cluster.outcome(tag), Some(&Answer::Unready));
}

#[test]
fn nothing_is_granted_before_the_time_is_known() {
    for seed in 0..60 {
        let mut cluster = Cluster::new(3, seed);
        // It has its first view, and has heard nobody.
        let tag = cluster.request(2, Request::Open);
        assert_eq!(cluster.outcome(tag), None, "seed {seed}");
        cluster.run(TERM / 4);
        let Some(Answer::Granted(grant)) = cluster.outcome(tag).cloned() else {
            panic!("seed {seed}")
        };
        let now = cluster.now_at(1);
        assert!(
            cluster.machine(1).clock(now) < grant.until,
            "seed {seed}: it is over for the others"
        );
    }
}

#[test]
fn the_eldest_takes_over_what_its_owner_has_left() {
    let mut cluster = Cluster::new(3, 8);
    let grant = cluster.open(1);
    cluster.run(TERM / 4);
    without_the_first(&mut cluster);
    assert!(!grant.covers(&cluster.view, grant.until), "its owner is gone");
    let Answer::Granted(next) = cluster.ask(3, renew(grant)) else { panic!("lost") };
    assert_eq!(next.owner, MemberNumber(2));
    assert!(next.until > grant.until);
    cluster.run(TERM * 3 / 4);
    let Answer::Granted(next) = cluster.ask(2, renew(next)) else { panic!("lost") };
    cluster.run(TERM * 3 / 2);
    assert_eq!(cluster.ask(2, renew(next)), Answer::Lost(Lost::Expired));
}

#[test]
fn who_joins_with_a_clock_that_is_ahead_ends_no_lease() {
    let mut cluster = Cluster::new(3, 15);
    let grant = cluster.open(1);
    cluster.run(TERM / 4);
    without_the_first(&mut cluster);
    // The owner's next life comes, with a clock that is far ahead.
    cluster.start(1);
    let clock = cluster.hosts[&1].clock;
    cluster.set_clock(1, Clock { ahead: (100 * TERM) as i64, ..clock });
    for role in [Role::Shadow, Role::Active] {
        cluster.decide_role(1, role);
        (1..=3).for_each(|node| cluster.tell(node));
        cluster.run(100 * MS);
    }
    for node in 1..=3 {
        assert!(matches!(cluster.ask(node, renew(grant)), Answer::Granted(_)), "asked at {node}");
    }
}

#[test]
fn a_successor_keeps_no_more_leases_than_members_may_have_given_out() {
    let mut cluster = Cluster::new(3, 14);
    let grant = cluster.open(1);
    without_the_first(&mut cluster);
    assert!(matches!(cluster.ask(2, renew(grant)), Answer::Granted(_)));
    // No node can tell a made-up counter from one that was given out.
    let lease = |counter| LeaseId::new(MemberNumber(1), LaneId(0), counter);
    let made_up = |counter| Request::Renew { lease: lease(counter), told: u64::MAX, above: 0 };
    for counter in 1..3 * LEASES_MAX as u64 {
        let tag = cluster.request(2, made_up(counter));
        assert!(matches!(cluster.outcome(tag), Some(Answer::Granted(_))), "{counter}");
    }
    let one_more = made_up(3 * LEASES_MAX as u64);
    let Request::Renew { lease, .. } = one_more else { unreachable!("it is a renewal") };
    for node in [2, 3] {
        assert_eq!(cluster.ask(node, one_more), Answer::Full, "asked at {node}");
        assert_eq!(cluster.ask(node, Request::Close { lease }), Answer::Full, "asked at {node}");
    }
    assert!(matches!(cluster.ask(3, renew(grant)), Answer::Granted(_)), "it is kept already");
    // Ended terms make room.
    cluster.run(TERM / 2);
    assert!(matches!(cluster.ask(3, renew(grant)), Answer::Granted(_)));
    cluster.run(TERM * 3 / 4);
    assert!(cluster.hosts[&2].machine().adopted() <= 1);
    assert_eq!(cluster.ask(2, one_more), Answer::Lost(Lost::Expired));
}

#[test]
fn a_successor_says_that_a_lease_is_over_after_a_full_term() {
    let mut cluster = Cluster::new(3, 9);
    let grant = cluster.open(1);
    without_the_first(&mut cluster);
    cluster.run(TERM * 3 / 4);
    cluster.sweep(3, &[grant.lease]);
    cluster.run(50 * MS);
    assert!(cluster.verdicts.is_empty(), "it can't know yet");
    cluster.run(TERM / 2);
    cluster.sweep(3, &[grant.lease]);
    cluster.run(50 * MS);
    assert_eq!(cluster.verdicts.len(), 1);
}

#[test]
fn a_successor_does_not_bring_back_what_its_predecessor_has_ended() {
    let mut cluster = Cluster::new(3, 10);
    let grant = cluster.open(1);
    cluster.run(TERM + 100 * MS);
    cluster.sweep(3, &[grant.lease]);
    cluster.run(20 * MS);
    assert_eq!(cluster.verdicts.len(), 1, "a node has dropped the session");
    without_the_first(&mut cluster);
    assert_eq!(cluster.ask(2, renew(grant)), Answer::Lost(Lost::Expired));
}

#[test]
fn a_successor_hears_all_clocks_before_it_answers() {
    let mut cluster = Cluster::new(3, 11);
    let grant = cluster.open(1);
    // Node 2 keeps a lease itself, and has heard of node 3 a moment ago; but not in the new epoch.
    cluster.open(2);
    cluster.run(TERM / 4);
    cluster.crash(1);
    cluster.decide_role(1, Role::Down);
    cluster.tell(2);
    let tag = cluster.request(2, renew(grant));
    cluster.run(100 * MS);
    assert_eq!(cluster.outcome(tag), None, "3 may know of an end");
    cluster.tell(3);
    cluster.run(100 * MS);
    assert!(matches!(cluster.outcome(tag), Some(Answer::Granted(_))));
}

#[test]
fn a_grant_can_be_had_for_a_clock_that_is_ahead() {
    let mut cluster = Cluster::new(3, 12);
    let grant = cluster.open(1);
    let above = grant.until + 10 * TERM;
    let ahead = Request::Renew { lease: grant.lease, told: grant.until, above };
    let Answer::Granted(next) = cluster.ask(2, ahead) else { panic!("lost") };
    assert!(next.covers(&cluster.view, above));
}

#[test]
fn messages_of_another_epoch_say_nothing() {
    let mut cluster = Cluster::new(3, 13);
    let grant = cluster.open(1);
    let roles = cluster.roles();
    cluster.decide(&roles);
    cluster.tell(1);
    let tag = cluster.request(1, renew(grant));
    let other = cluster.request(2, renew(grant));
    cluster.run(300 * MS);
    assert_eq!(cluster.hosts[&2].epoch, Epoch(1));
    assert_eq!(cluster.outcome(other), None);
    for node in 2..=3 {
        cluster.tell(node);
    }
    cluster.run(100 * MS);
    assert!(matches!(cluster.outcome(other), Some(Answer::Granted(_))));
    assert!(cluster.outcome(tag).is_some());
}

/// A client that renews when it can.
struct Client {
    grant: Grant,
    asked: Option<u64>,
    idle: bool,
}

/// One life of a cluster under faults. The cluster asserts after each step that no lease was
/// granted beyond its end, and that a lease that has ended is not granted again.
fn survive(seed: u64) {
    let mut cluster = Cluster::new(5, seed);
    let mut clients: Vec<Client> = (0..12)
        .map(|index| {
            let grant = cluster.open(1 + index % 5);
            Client { grant, asked: None, idle: index % 4 == 3 }
        })
        .collect();
    let mut untold: Vec<(u64, u16)> = Vec::new();
    for _ in 0..400 {
        cluster.weather = match cluster.rng.below(4) {
            0 => Weather { delay: 60 * MS, loss_percent: 30, repeat_percent: 20 },
            _ => Weather { delay: 10 * MS, loss_percent: 5, repeat_percent: 5 },
        };
        let roles = cluster.roles();
        let down = roles.iter().filter(|(_, role)| *role == Role::Down).count();
        let (node, role) = roles[cluster.rng.below(5) as usize];
        let synced = |cluster: &Cluster| {
            let host = &cluster.hosts[&node];
            host.up && host.epoch == cluster.view.epoch && host.machine().is_synced()
        };
        let change = match (role, cluster.rng.below(10)) {
            (Role::Active, 0) if down < 2 => {
                cluster.crash(node);
                Some(Role::Down)
            }
            (Role::Down, 0..4) => {
                cluster.start(node);
                Some(Role::Shadow)
            }
            (Role::Shadow, 0..6) if synced(&cluster) => Some(Role::Active),
            _ => None,
        };
        if let Some(role) = change {
            cluster.decide_role(node, role);
            for (node, _) in cluster.roles() {
                untold.push((cluster.nanos() + cluster.rng.below(80 * MS), node));
            }
        }
        let time = cluster.nanos();
        for (_, node) in untold.extract_if(.., |(at, _)| *at <= time) {
            cluster.tell(node);
        }
        let live: Vec<u16> = cluster.view.live().into_iter().map(|node| node.0).collect();
        let any = |cluster: &mut Cluster| live[cluster.rng.below(live.len() as u64) as usize];
        for client in &mut clients {
            if let Some(answer) = client.asked.and_then(|tag| cluster.outcome(tag)) {
                client.asked = None;
                match answer {
                    Answer::Granted(grant) => client.grant = *grant,
                    Answer::Lost(_) => client.idle = true,
                    Answer::Full | Answer::Unready => {}
                }
            }
            // An idle client returns at last, when its lease may have ended.
            let chance = if client.idle { 1 } else { 30 };
            if cluster.rng.below(100) < chance {
                let node = any(&mut cluster);
                let request = renew(client.grant);
                client.asked = Some(cluster.request(node, request));
            }
        }
        if cluster.rng.below(3) == 0 {
            let node = any(&mut cluster);
            let leases: Vec<LeaseId> = clients.iter().map(|client| client.grant.lease).collect();
            cluster.sweep(node, &leases);
        }
        let span = 20 * MS + cluster.rng.below(60) * MS;
        cluster.run(span);
    }
    // Calm again: every client with a lease can renew it, and leases can be opened.
    cluster.weather = crate::cluster::CALM;
    for (node, _) in cluster.roles() {
        cluster.tell(node);
    }
    cluster.run(1000 * MS);
    let node = cluster.view.active().into_iter().next().expect("three are").0;
    for client in &clients {
        let answer = cluster.ask(node, renew(client.grant));
        assert!(matches!(answer, Answer::Granted(_) | Answer::Lost(_)), "{answer:?}");
    }
    let grant = cluster.open(node);
    assert!(matches!(cluster.ask(node, renew(grant)), Answer::Granted(_)));
}

#[test]
fn what_is_over_was_granted_no_further_and_is_granted_no_more() {
    for seed in Seeds::new(0..60) {
        survive(seed);
    }
}

/// Where the wall clock may be after a loss of power: a machine without a battery begins at some date.
const AHEAD: [i64; 4] = [0, -20 * TERM as i64, 3 * TERM as i64, -(TERM as i64) / 2];

/// A client comes again after the loss of all power, and its session lives.
#[test]
fn a_lease_outlives_the_loss_of_all_power() {
    for (seed, ahead) in [(1, 0), (2, -20 * TERM as i64), (3, -(TERM as i64) / 2)] {
        let mut cluster = Cluster::logging(3, seed);
        let mut grant = cluster.open(1);
        for _ in 0..4 {
            cluster.run(TERM / 4);
            cluster.lose_power(&[1, 2, 3], |_| ahead);
            let Answer::Granted(next) = cluster.ask(3, renew(grant)) else { panic!("lost") };
            assert!(next.until > grant.until);
            grant = next;
        }
    }
}

/// The eldest comes back with a wall clock that is far ahead. Nobody counts on what its former process has shown.
#[test]
fn a_lease_that_is_granted_after_the_loss_of_all_power_lasts() {
    for seed in 0..20 {
        let mut cluster = Cluster::logging(3, seed);
        cluster.open(1);
        let span = cluster.rng.below(TERM);
        cluster.run(span);
        // What nodes show is heard before more of their clocks is durable.
        cluster.weather.delay = MS / 10;
        let ahead = |node| if node == 1 { 10 * TERM as i64 } else { -(TERM as i64) };
        cluster.lose_power(&[1, 2, 3], ahead);
        let grant = cluster.open(2);
        cluster.run(TERM / 4);
        let now = cluster.now_at(2);
        assert!(cluster.machine(2).clock(now) < grant.until, "seed {seed}: it is over");
    }
}

/// Two of three come back with wall clocks that are far ahead, while the third has lived on.
#[test]
fn who_comes_back_while_others_live_brings_no_time() {
    for seed in 0..20 {
        let mut cluster = Cluster::logging(3, seed);
        let grant = cluster.open(1);
        cluster.run(TERM / 4);
        cluster.lose_power_beside_others(&[1, 2], 20 * TERM as i64);
        let node = 1 + (seed % 3) as u16;
        let answer = cluster.ask(node, renew(grant));
        assert!(matches!(answer, Answer::Granted(_)), "seed {seed}: {answer:?}");
    }
}

/// Records that are gone stay gone, so their lease must, whatever the wall clock says.
#[test]
fn a_lease_that_has_ended_is_not_alive_after_the_loss_of_all_power() {
    for (seed, ahead) in (0..40).zip(AHEAD.into_iter().cycle()) {
        let mut cluster = Cluster::logging(3, seed);
        let grant = cluster.open(1);
        without_the_first(&mut cluster);
        cluster.run(TERM + TERM / 8);
        // The first time the owner has the clock to keep.
        for node in [2, 2, 3] {
            cluster.sweep(node, &[grant.lease]);
            cluster.run(50 * MS);
        }
        assert_eq!(cluster.verdicts.len(), 2, "both have discarded it");
        let back: &[u16] = if seed % 2 == 0 { &[2, 3] } else { &[3] };
        cluster.lose_power(back, |_| ahead);
        assert_eq!(cluster.ask(3, renew(grant)), Answer::Lost(Lost::Expired), "seed {seed}");
    }
}

/// What holds without a loss of power holds over many: the judge is that of the random runs.
#[test]
fn no_lease_is_granted_further_than_it_was_over_before_the_power_went() {
    let (mut granted, mut over) = (0, 0);
    for seed in Seeds::new(0..60) {
        let mut cluster = Cluster::logging(3, seed);
        let mut grants: Vec<Grant> = Vec::new();
        for round in 0..12 {
            for _ in 0..6 {
                let node = 1 + cluster.rng.below(3) as u16;
                if !cluster.hosts[&node].up {
                    continue;
                }
                let known = cluster.rng.below(grants.len() as u64 + 1) as usize;
                let request = grants.get(known).map_or(Request::Open, |grant| renew(*grant));
                match (cluster.ask(node, request), grants.get_mut(known)) {
                    (Answer::Granted(next), Some(grant)) => *grant = next,
                    (Answer::Granted(next), None) => grants.push(next),
                    _ => continue,
                }
                granted += 1;
            }
            let span = cluster.rng.below(TERM);
            cluster.run(span);
            let leases: Vec<LeaseId> = grants.iter().map(|grant| grant.lease).collect();
            for node in 1..=3 {
                if cluster.hosts[&node].up {
                    cluster.sweep(node, &leases);
                }
            }
            cluster.run(30 * MS);
            if round % 2 == 1 {
                let missing = cluster.rng.below(4) as u16;
                let back: Vec<u16> = (1..=3).filter(|node| *node != missing).collect();
                let ahead = AHEAD[cluster.rng.below(4) as usize];
                cluster.lose_power(&back, |_| ahead);
            }
        }
        over += cluster.verdicts.len();
    }
    assert!(granted > 1000 && over > 1000, "{granted} grants, {over} ends");
}
