//! A group of nodes that has died for good while others live, and what a person gives up with it.

use quorate_harness::Logs;
use quorate_machine::{Outcome, Refusal};
use quorate_types::{Duration, Role};

use crate::losses::two_groups;
use crate::support::{Cluster, MLT, Replicas};

const LOST: [u16; 3] = [1, 2, 3];
const LEFT: [u16; 3] = [4, 5, 6];

/// Two groups of three nodes, a key of the first one, and a key of the second.
fn of_two_groups(logs: Logs) -> (Cluster, String, String) {
    let replicas = Replicas { logs, ..Replicas::new(1, two_groups) };
    let cluster = Cluster::of(replicas, 6, |_| 0, u64::from);
    let key_at = |node| {
        let mut keys = (0..).map(|n| format!("k{n}"));
        keys.find(|key| cluster.holds(node, key)).expect("each node has half of all keys")
    };
    let (away, here) = (key_at(1), key_at(4));
    (cluster, away, here)
}

impl Cluster {
    /// The next view: the first group has these roles, and the second one serves.
    fn install_first(&mut self, roles: [Role; 3]) {
        let first = LOST.into_iter().zip(roles);
        let roles: Vec<_> = first.chain(LEFT.map(|node| (node, Role::Active))).collect();
        self.install(&roles);
        self.run_for(MLT * 20);
    }

    fn assert_refused(&mut self, node: u16, text: &str) {
        let tag = self.submit(node, text);
        self.run_for(MLT * 5);
        assert_eq!(self.outcome(tag), Some(&Outcome::Refused(Refusal::NotServing)), "{text}");
    }
}

/// Node 1 has told its client that a transaction over both groups committed, and nobody that is left
/// knows the end of it.
#[test]
fn what_the_living_part_may_have_committed_outlives_the_other() {
    let (mut cluster, away, here) = of_two_groups(Logs::None);
    cluster.run(1, &format!("write={away}:old write={here}:old"));
    cluster.run_for(MLT * 5);
    let tag = cluster.submit(1, &format!("write={away}:new write={here}:new"));
    cluster.deliver_some(|packet| ["validate", "vote"].contains(&packet.kind()));
    cluster.assert_done(tag);
    cluster.pool.clear();
    LOST.into_iter().for_each(|node| cluster.crash(node));
    cluster.install_first([Role::Down; 3]);
    for node in LEFT {
        assert_eq!(cluster.stored(node, &here).as_deref(), Some("new"), "at {node}");
    }
    cluster.run(4, &format!("append={here}:x"));
    cluster.assert_refused(5, &format!("write={away}:v"));
    cluster.assert_refused(5, &format!("read={away}"));
    cluster.assert_refused(5, &format!("write={away}:v write={here}:v"));
    assert_eq!(cluster.run(6, &format!("read={here}")), [Some("newx".to_owned())]);
    cluster.run_for(Duration::from_secs(2));
    cluster.assert_quiet();
}

/// Node 4 has begun a transaction over both groups, and begins it anew when the first one is gone. It dies
/// before it has told anybody that nothing came of that.
#[test]
fn what_began_in_a_group_that_was_gone_does_not_commit() {
    let (mut cluster, away, here) = of_two_groups(Logs::None);
    LOST.into_iter().for_each(|node| cluster.crash(node));
    cluster.submit(4, &format!("write={away}:v write={here}:v"));
    let first = LOST.map(|node| (node, Role::Down));
    let roles = |fourth| {
        let rest = [(4, fourth), (5, Role::Active), (6, Role::Active)];
        first.into_iter().chain(rest).collect::<Vec<_>>()
    };
    cluster.pool.clear();
    cluster.install(&roles(Role::Active));
    cluster.deliver_some(|packet| packet.kind() != "decided");
    cluster.crash(4);
    cluster.pool.clear();
    cluster.install(&roles(Role::Down));
    cluster.run_for(MLT * 20);
    for node in [5, 6] {
        assert_eq!(cluster.stored(node, &here), None, "at {node}");
    }
    cluster.assert_quiet();
}

/// The group's nodes come back one after the other: from nothing, from a disk with old data, or a process
/// that was expelled before the others died and has voted for what it never heard of again.
#[test]
fn a_group_that_was_given_up_begins_with_what_its_eldest_member_has() {
    for (logs, lives) in [(Logs::None, false), (Logs::Sync, false), (Logs::None, true)] {
        let (mut cluster, away, here) = of_two_groups(logs);
        cluster.run(1, &format!("write={away}:old"));
        cluster.run_for(MLT * 5);
        if lives {
            let tag = cluster.submit(2, &format!("write={away}:later"));
            cluster.deliver(2, 1, "validate");
            cluster.install_first([Role::Down, Role::Active, Role::Active]);
            cluster.assert_done(tag);
        }
        let has_disk = logs == Logs::Sync;
        for node in LOST.into_iter().filter(|node| !lives || *node != 1) {
            match has_disk {
                true => cluster.cut_power_unflushed(node),
                false => cluster.crash(node),
            }
        }
        cluster.install_first([Role::Down; 3]);
        cluster.run(4, &format!("write={here}:v"));
        match (has_disk, lives) {
            (true, _) => cluster.restart(1, 11),
            (_, true) => cluster.begin_life(1),
            _ => cluster.start(1, 11),
        }
        cluster.start(2, 12);
        cluster.install_first([Role::Shadow, Role::Shadow, Role::Down]);
        assert!(cluster.machine(1).is_caught_up(), "nobody has more");
        assert!(!cluster.machine(2).is_caught_up(), "one after the other");
        cluster.install_first([Role::Active, Role::Shadow, Role::Down]);
        cluster.assert_refused(4, &format!("read={away}"));
        assert!(cluster.machine(2).is_caught_up());
        cluster.install_first([Role::Active, Role::Active, Role::Down]);
        let before = [(has_disk || lives).then(|| "old".to_owned())];
        for node in [1, 2, 4] {
            assert_eq!(cluster.run(node, &format!("read={away}")), before, "at {node}");
        }
        cluster.run(2, &format!("write={away}:w write={here}:w"));
        for node in [1, 2, 5] {
            let read = cluster.run(node, &format!("read={away} read={here}"));
            assert_eq!(read, [Some("w".to_owned()), Some("w".to_owned())], "at {node}");
        }
        cluster.run_for(Duration::from_secs(2));
        cluster.assert_quiet();
    }
}
