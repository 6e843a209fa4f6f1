//! Groups that change with the members, played out. With two replicas `b` belongs to 2, 1 of four nodes
//! and to 2, 5 of five; `d` to 2, 3 of four, and to 2, 1 without node 3. With one replica `c` belongs to
//! 1 of four nodes, and to 5 of five.

use quorate_types::Role;
use quorate_zeus::Message;

use crate::support::{Cluster, MLT, Replicas, is_copy};

/// Four members, and node 5, which is not a member yet.
fn four(replicas: usize, seed: u64) -> Cluster {
    let replicas = Replicas { replicas: Some(replicas), ..Replicas::default() };
    Cluster::with_spares(replicas, 4, 1, |_| 0, |node| seed + u64::from(node))
}

/// Nodes that would read a key without a message.
fn readers(cluster: &Cluster, key: &str) -> Vec<u16> {
    let live = cluster.view.live().into_iter().map(|node| node.0);
    live.filter(|node| {
        let machine = cluster.hosts[node].machine();
        machine.may_read(&cluster.meta(*node, key), key.as_bytes())
    })
    .collect()
}

#[test]
fn a_node_that_was_added_serves_nothing_before_data_is_placed_over_it() {
    let mut cluster = four(2, 0);
    cluster.run(2, "write=b:1");
    assert_eq!(readers(&cluster, "b"), [1, 2]);
    cluster.set_role(5, Role::Shadow);
    assert!(!cluster.machine(5).is_caught_up());
    cluster.deliver_all();
    assert!(cluster.machine(5).is_caught_up());
    cluster.set_role(5, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.group("b"), [1, 2, 5], "node 1 keeps what node 5 takes over");
    assert_eq!(readers(&cluster, "b"), [2], "node 5 reads not yet, and node 1 not any more");
    // The others hear first that it has left. They don't ask whether it has heard.
    let view = cluster.decide_placed();
    [2, 3, 4, 5].into_iter().for_each(|node| cluster.install_on(node, &view));
    let append = cluster.submit(2, "append=b:2");
    cluster.deliver_all();
    assert_eq!(cluster.read_by(append), [Some("1")]);
    let late = cluster.submit(1, "read=b");
    cluster.assert_open(late);
    cluster.install_on(1, &view);
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.read_by(late), [Some("12")]);
    assert_eq!(cluster.run(2, "append=b:3"), [Some("12".to_owned())]);
    assert_eq!((cluster.group("b"), readers(&cluster, "b")), (vec![2, 5], vec![2, 5]));
    assert_eq!(cluster.run(5, "read=b"), [Some("123".to_owned())]);
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.record(1, "b"), None);
    cluster.assert_quiet(["b".to_owned()]);
}

#[test]
fn what_a_member_held_that_was_removed_is_copied_before_anybody_relies_on_the_copy() {
    let mut cluster = four(2, 0);
    cluster.run(2, "write=d:1");
    cluster.crash(3);
    cluster.remove(3);
    assert_eq!((cluster.group("d"), readers(&cluster, "d")), (vec![1, 2], vec![2]));
    assert!(!cluster.machine(1).is_caught_up());
    cluster.deliver_all();
    assert!((1..=4).filter(|node| *node != 3).all(|node| cluster.machine(node).is_caught_up()));
    cluster.place();
    cluster.deliver_all();
    cluster.expel(&[2]);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "append=d:2"), [Some("1".to_owned())]);
    assert_eq!(cluster.writers("d"), [1]);
}

#[test]
fn a_member_that_is_about_to_leave_has_its_copies_until_others_have_them() {
    let mut cluster = four(2, 0);
    cluster.run(2, "write=d:1");
    cluster.depart(3, true);
    assert_eq!((cluster.group("d"), readers(&cluster, "d")), (vec![1, 2, 3], vec![2]));
    assert!(!cluster.machine(1).is_caught_up());
    // The other copy is lost before this one is copied.
    cluster.expel(&[2]);
    cluster.deliver_all();
    assert!([1, 3, 4].into_iter().all(|node| cluster.machine(node).is_caught_up()));
    assert_eq!(cluster.run(4, "append=d:2"), [Some("1".to_owned())]);
    cluster.place();
    cluster.deliver_all();
    assert_eq!(cluster.group("d"), [1]);
    cluster.crash(3);
    cluster.remove(3);
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "append=d:3"), [Some("12".to_owned())]);
    assert_eq!(cluster.writers("d"), [1]);
}

#[test]
fn a_member_that_was_to_leave_and_stays_goes_on_as_before() {
    let mut cluster = four(2, 0);
    cluster.run(2, "write=d:1");
    cluster.depart(3, true);
    cluster.deliver_all();
    cluster.run(2, "append=d:2");
    cluster.depart(3, false);
    cluster.deliver_all();
    assert_eq!((cluster.group("d"), readers(&cluster, "d")), (vec![2, 3], vec![2, 3]));
    assert_eq!(cluster.run(3, "read=d"), [Some("12".to_owned())]);
    cluster.run_for(MLT * 10);
    cluster.assert_quiet(["d".to_owned()]);
}

/// Node 1 has agreed to give `d` away, and so reads it no more, when it gets into its group.
#[test]
fn a_former_owner_reads_again_as_a_member_of_the_group() {
    let mut cluster = four(2, 0);
    cluster.run(2, "write=d:1");
    cluster.run(1, "append=d:2");
    let moved = cluster.submit(4, "read=d write=b:1");
    cluster.deliver_some(|packet| !packet.is(0, 1, "val"));
    cluster.read_by(moved);
    cluster.pool.clear();
    cluster.crash(3);
    cluster.remove(3);
    cluster.run_for(MLT * 5);
    assert!(cluster.machine(1).is_caught_up());
    cluster.place();
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.run(1, "read=d"), [Some("12".to_owned())]);
    cluster.assert_quiet(["d".to_owned()]);
}

#[test]
fn a_copy_goes_on_with_another_donor() {
    let mut cluster = four(3, 0);
    cluster.run(2, "write=d:1");
    cluster.set_role(5, Role::Shadow);
    let asked = cluster.take(5, 0, "copy_read");
    assert_eq!(asked.len(), 1, "one donor at a time");
    let donor = asked[0].to.0;
    cluster.inject(&asked[0]);
    cluster.take(donor, 5, "copy");
    cluster.expel(&[donor]);
    cluster.deliver_all();
    assert!(cluster.machine(5).is_caught_up());
    cluster.set_role(5, Role::Active);
    cluster.deliver_all();
    cluster.place();
    cluster.deliver_all();
    assert_eq!(cluster.run(5, "read=d"), [Some("1".to_owned())]);
}

#[test]
fn a_view_costs_nothing_that_was_copied() {
    let mut cluster = four(2, 0);
    for batch in 0..6 {
        for number in 0..1_000 {
            cluster.submit(2, &format!("write=key{}:1", batch * 1_000 + number));
        }
        cluster.deliver_all();
    }
    cluster.set_role(5, Role::Shadow);
    let donor = cluster.deliver(5, 0, "copy_read").to.0;
    cluster.deliver(donor, 5, "copy");
    cluster.take(5, 0, "copy_read");
    // The same donor goes on where it was.
    cluster.renew_view();
    let asked = cluster.take(5, donor, "copy_read");
    assert!(matches!(asked[0].message(), Message::CopyRead { cursor: 1.., .. }), "{asked:?}");
    cluster.inject(&asked[0]);
    cluster.deliver_all();
    assert!(cluster.machine(5).is_caught_up());
    cluster.renew_view();
    assert!(cluster.machine(5).is_caught_up());
    assert_eq!(cluster.take(5, 0, "copy_read").len(), 0);
    // It has missed a view. In it others may have been of its groups.
    let roles = cluster.roles();
    let missed = cluster.decide(&roles);
    let view = cluster.decide(&roles);
    cluster.install_on(5, &view);
    assert!(!cluster.machine(5).is_caught_up());
    (1..=4).for_each(|node| cluster.install_on(node, &missed));
    (1..=4).for_each(|node| cluster.install_on(node, &view));
    cluster.run_for(MLT * 10);
    assert!(cluster.machine(5).is_caught_up());
}

/// Node 1 is the default owner of `c`, writes it, and leaves its group before anybody has heard of that.
/// Node 2 has asked for the key meanwhile.
#[test]
fn a_claim_counts_beneath_a_round_that_is_larger() {
    let mut beneath = 0;
    for seed in 0..20 {
        let mut cluster = four(1, seed * 10);
        cluster.set_role(5, Role::Shadow);
        cluster.deliver_all();
        cluster.set_role(5, Role::Active);
        cluster.deliver_all();
        let claim = cluster.submit(1, "write=c:1");
        cluster.pool.clear();
        cluster.place();
        let update = cluster.take(1, 5, "r-inv");
        let wanted = cluster.submit(2, "append=c:2");
        cluster.deliver_all();
        assert_eq!(cluster.writers("c"), [1], "node 5 waits for what was under way");
        update.iter().for_each(|packet| cluster.inject(packet));
        cluster.deliver_all();
        cluster.run_for(MLT * 10);
        cluster.read_by(claim);
        assert_eq!(cluster.read_by(wanted), [Some("1")]);
        assert_eq!(cluster.writers("c"), [2]);
        cluster.assert_quiet(["c".to_owned()]);
        beneath += cluster.probed("zeus: a round learns of a claim");
    }
    assert!(beneath > 0);
}

#[test]
fn a_node_that_comes_back_to_a_shard_has_nothing_of_before() {
    let mut cluster = four(2, 0);
    cluster.run(2, "write=b:1");
    cluster.set_role(5, Role::Shadow);
    cluster.deliver_all();
    cluster.set_role(5, Role::Active);
    cluster.deliver_all();
    cluster.place();
    cluster.deliver_all();
    cluster.run(2, "append=b:2");
    assert_ne!(cluster.record(1, "b"), None, "it is dropped in time");
    cluster.crash(5);
    cluster.remove(5);
    assert_eq!(cluster.record(1, "b"), None);
    cluster.deliver_all();
    cluster.place();
    cluster.deliver_all();
    assert_eq!(cluster.run(1, "read=b"), [Some("12".to_owned())]);
}

/// With three nodes `y` belongs to 1, 2, 3. Node 3 copies it while node 1 writes it, and nobody has
/// applied that when node 1 dies.
#[test]
fn a_version_that_a_replica_waits_for_may_never_come() {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.submit(1, "append=y:2");
    cluster.deliver_some(is_copy);
    cluster.pool.clear();
    cluster.expel(&[1]);
    cluster.deliver_all();
    assert!(!cluster.machine(3).is_caught_up());
    cluster.run_for(MLT * 3);
    assert!(cluster.machine(3).is_caught_up());
    assert_eq!(cluster.record(3, "y").and_then(|(_, value)| value), Some("1".to_owned()));
}

/// Node 1 has applied a transaction of node 4 for the sake of `c`, which belongs to 1, 4, when it learns `d`.
/// The copy comes from node 2, which has not heard of that transaction.
fn learns_what_a_transaction_has_written(large: bool, dies: bool) {
    let packed_bytes_max: Option<fn(u16) -> usize> = if large { Some(|_| 0) } else { None };
    let replicas = Replicas { replicas: Some(2), packed_bytes_max, ..Replicas::default() };
    let mut cluster = Cluster::with_spares(replicas, 4, 0, |_| 0, u64::from);
    cluster.run(4, "put=d:,1 put=c:,1");
    cluster.submit(4, "push=d:,2 push=c:,2");
    cluster.deliver(4, 1, "r-inv");
    cluster.pool.clear();
    cluster.crash(3);
    cluster.remove(3);
    let is_copy = |packet: &quorate_harness::Packet<Replicas>| {
        packet.is(1, 2, "copy_read") || packet.is(2, 1, "copy")
    };
    cluster.deliver_some(is_copy);
    assert_eq!(cluster.record(1, "d").and_then(|(_, value)| value), Some(",1".to_owned()));
    if dies {
        cluster.pool.clear();
        cluster.expel(&[4]);
    }
    cluster.run_for(MLT * 10);
    assert!(cluster.machine(1).is_caught_up());
    cluster.place();
    cluster.run_for(MLT * 10);
    assert_eq!(cluster.run(1, "read=d"), [Some(",1,2".to_owned())]);
    assert_eq!(cluster.run(2, "read=d"), [Some(",1,2".to_owned())]);
    cluster.assert_quiet(["c".to_owned(), "d".to_owned()]);
    assert!(cluster.probed("zeus: a transaction is applied to a key that was learnt") > 0);
}

#[test]
fn what_is_applied_is_applied_to_keys_that_a_node_learns() {
    for (large, dies) in [(false, false), (true, false), (false, true), (true, true)] {
        learns_what_a_transaction_has_written(large, dies);
    }
}

/// With four nodes and two replicas `d` belongs to 2 and 3, which die for good while node 1 owns it.
#[test]
fn who_begins_a_group_anew_hears_who_owns_its_keys() {
    let mut cluster = four(2, 0);
    cluster.run(1, "write=d:1");
    cluster.expel(&[2, 3]);
    cluster.deliver_all();
    cluster.rejoin(2);
    assert!(!cluster.is_caught_up(2), "it has not heard the others");
    cluster.deliver_all();
    assert!(cluster.is_caught_up(2));
    cluster.set_role(2, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.writers("d"), [1]);
    assert_eq!(cluster.run(2, "append=d:!"), [Some("1".to_owned())]);
    cluster.rejoin(3);
    cluster.deliver_all();
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=d"), [Some("1!".to_owned())]);
    cluster.assert_quiet(["d".to_owned()]);
}

/// The same, where nodes 2 and 3 are removed: nodes 1 and 4 are the next group, and both begin with nothing
/// but what node 1 owns.
#[test]
fn who_takes_over_from_a_group_that_died_hears_who_owns_its_keys() {
    let mut cluster = four(2, 0);
    cluster.run(1, "write=d:1");
    cluster.expel(&[2, 3]);
    cluster.deliver_all();
    cluster.remove(2);
    cluster.remove(3);
    assert!(!cluster.is_caught_up(4), "it has not heard node 1");
    cluster.run_for(MLT * 5);
    assert!([1, 4].into_iter().all(|node| cluster.is_caught_up(node)));
    cluster.place();
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.group("d"), [1, 4]);
    assert_eq!(cluster.writers("d"), [1]);
    assert_eq!(cluster.run(4, "append=d:!"), [Some("1".to_owned())]);
    cluster.assert_quiet(["d".to_owned()]);
}

/// With four nodes and two replicas `d` belongs to 2 and 3. Node 1 owns it, and has agreed to give it to
/// node 4 when the three others die.
fn owner_is_left_alone() -> Cluster {
    let mut cluster = four(2, 0);
    cluster.run(1, "write=d:1");
    cluster.submit(4, "append=d:!");
    let driver = cluster.pool.first().expect("a request").to.0;
    cluster.deliver(4, driver, "req");
    cluster.deliver(driver, 1, "inv");
    cluster.expel(&[2, 3, 4]);
    cluster.run_for(MLT * 5);
    cluster
}

#[test]
fn an_owner_keeps_what_it_owns_until_a_group_has_it() {
    let mut cluster = owner_is_left_alone();
    cluster.rejoin(2);
    cluster.run_for(MLT * 5);
    assert!(cluster.is_caught_up(2));
    cluster.set_role(2, Role::Active);
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.run(2, "read=d"), [Some("1".to_owned())]);
    cluster.assert_quiet(["d".to_owned()]);
}

/// The same, where node 1 takes over from the group.
#[test]
fn a_copy_that_was_given_away_is_read_again_in_a_group_begun_anew() {
    let mut cluster = owner_is_left_alone();
    cluster.remove(2);
    cluster.remove(3);
    cluster.run_for(MLT * 5);
    cluster.place();
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.run(1, "read=d"), [Some("1".to_owned())]);
    cluster.rejoin(4);
    cluster.run_for(MLT * 5);
    assert!(cluster.is_caught_up(4));
    cluster.set_role(4, Role::Active);
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.run(4, "append=d:!"), [Some("1".to_owned())]);
    cluster.assert_quiet(["d".to_owned()]);
}

/// Node 3, which learns `d`, has heard of a round when node 2 dies, the only one that had the key.
#[test]
fn nobody_takes_a_key_that_nobody_owns() {
    let mut cluster = four(2, 0);
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    let asked = cluster.submit(4, "append=d:!");
    cluster.deliver(4, 2, "req");
    cluster.deliver(2, 3, "inv");
    cluster.expel(&[2]);
    cluster.run_for(MLT * 5);
    cluster.assert_open(asked);
    assert!(cluster.is_caught_up(3));
    cluster.set_role(3, Role::Active);
    cluster.run_for(MLT * 5);
    assert_eq!(cluster.read_by(asked), [None]);
    assert_eq!(cluster.writers("d"), [4]);
    cluster.assert_quiet(["d".to_owned()]);
}

/// With four nodes and two replicas `d` belongs to 2 and 3, and `c` to 1 and 4. Node 4 replays a change of a
/// list that is lost with its group.
#[test]
fn a_change_of_what_a_group_has_lost_is_lost_as_well() {
    let mut cluster = Cluster::large(4, |_| 0);
    cluster.run(1, "put=d:,0 put=c:,0");
    cluster.submit(1, "push=d:,1 push=c:,1");
    cluster.deliver(1, 4, "r-inv");
    [1, 2, 3].into_iter().for_each(|node| cluster.crash(node));
    cluster.start(2, 7);
    let (down, active) = (Role::Down, Role::Active);
    cluster.install(&[(1, down), (2, Role::Shadow), (3, down), (4, active)]);
    cluster.run_for(MLT * 20);
    assert!(cluster.is_caught_up(2));
    cluster.set_role(2, active);
    cluster.run_for(MLT * 20);
    assert_eq!(cluster.run(4, "read=d read=c"), [None, Some(",0,1".to_owned())]);
    cluster.assert_quiet(["c".to_owned(), "d".to_owned()]);
}

/// Node 3 learns `d` and replays a change of it to node 2, which begins the group anew as well.
#[test]
fn who_begins_a_group_anew_is_told_all_of_a_value_by_another_that_does() {
    let mut cluster = Cluster::large(4, |_| 0);
    cluster.run(1, "put=d:,0");
    cluster.expel(&[3]);
    cluster.deliver_all();
    cluster.rejoin(3);
    cluster.deliver_all();
    cluster.submit(1, "push=d:,1");
    cluster.deliver(1, 3, "r-inv");
    [1, 2].into_iter().for_each(|node| cluster.crash(node));
    cluster.start(2, 7);
    let (down, shadow) = (Role::Down, Role::Shadow);
    cluster.install(&[(1, down), (2, shadow), (3, shadow), (4, Role::Active)]);
    cluster.run_for(MLT * 20);
    for node in [2, 3] {
        assert!(cluster.is_caught_up(node), "node {node}");
        cluster.set_role(node, Role::Active);
        cluster.run_for(MLT * 20);
    }
    assert_eq!(cluster.run(2, "read=d"), [Some(",0,1".to_owned())]);
    cluster.assert_quiet(["d".to_owned()]);
}
