//! Ends of transactions that reach the log in several steps.

use quorate_harness::Logs;
use quorate_types::Role;

use super::{ALL, SETTLE, cluster};
use crate::packets::id_of;
use crate::support::{Cluster, MLT, Replicas};

/// Every list is large, so that a change of one has a base.
fn large_lists() -> Cluster {
    let replicas = Replicas { logs: Logs::Sync, ..Replicas::new(1, |_| {}) };
    Cluster::of(Replicas { packed_bytes_max: |_| 0, ..replicas }, 3, |_| 0, u64::from)
}

/// A transaction ends while a snapshot is being taken, at any moment of that, and is over everywhere when the
/// snapshot is complete.
#[test]
fn what_ends_while_a_snapshot_is_taken_is_there() {
    for steps in 0..40 {
        let mut cluster = cluster();
        cluster.run(1, "write=k:u");
        let tag = cluster.submit(1, "append=k:v");
        assert_eq!(cluster.pass(1, 2, "validate"), 1);
        cluster.flush_log(2);
        let is_complete = (0..steps).any(|_| cluster.save_some(2, 0, 1));
        cluster.deliver_all();
        cluster.assert_done(tag);
        cluster.run_for(SETTLE);
        if !is_complete {
            cluster.save(2, 0);
        }
        cluster.lose_power();
        cluster.revive(&ALL);
        cluster.assert_everywhere("k", Some("uv"));
    }
}

/// Node 3 has not heard that the second change of a list was committed. Of the third one, which writes another
/// key as well, it installs that key alone, and is removed.
#[test]
fn a_part_of_a_commit_is_in_the_log_as_well() {
    let mut cluster = large_lists();
    cluster.run(1, "put=l:,1");
    cluster.run_for(SETTLE);
    let second = cluster.submit(1, "push=l:,2");
    cluster.run_some(MLT, |packet| !packet.is(1, 3, "decided"));
    cluster.assert_done(second);
    let second = cluster.stamps[&second];
    let third = cluster.submit(1, "push=l:,3 write=x:1");
    cluster.run_some(MLT * 4, |packet| {
        !packet.is(1, 3, "decided") || id_of(&packet.message().kind) != Some(second)
    });
    cluster.assert_done(third);
    assert_eq!(cluster.stored(3, "x").as_deref(), Some("1"));
    assert_eq!(cluster.stored(3, "l").as_deref(), Some(",1"));
    cluster.pool.clear();
    cluster.set_role(3, Role::Down);
    cluster.run_for(SETTLE);
    cluster.come_back(3);
    cluster.run_for(SETTLE);
    cluster.set_role(3, Role::Active);
    cluster.run_for(SETTLE);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.assert_everywhere("x", Some("1"));
    cluster.assert_everywhere("l", Some(",1,2,3"));
}

/// Node 3 lacks changes of two lists. The last transaction changes both, and waits for the base of the first one.
/// Meanwhile that of the other one comes, with a transaction that has to wait itself, and the end is told again.
#[test]
fn a_part_that_comes_into_place_later_is_in_the_log_as_well() {
    let mut cluster = large_lists();
    cluster.run(1, "put=l:,1");
    cluster.run(1, "put=m:,1");
    cluster.run_for(SETTLE);
    let mut ids = Vec::new();
    for text in ["push=l:,2", "push=l:,3 push=m:,3", "push=l:,4 push=m:,4"] {
        let tag = cluster.submit(1, text);
        cluster.run_some(MLT, |packet| !packet.is(0, 3, "decided"));
        cluster.assert_done(tag);
        ids.push(cluster.stamps[&tag]);
    }
    for heard in [2, 1, 2] {
        cluster.run_some(MLT * 16, |packet| {
            !packet.is(0, 3, "decided") || id_of(&packet.message().kind) == Some(ids[heard])
        });
    }
    assert_eq!(cluster.stored(3, "m").as_deref(), Some(",1,3,4"));
    assert_eq!(cluster.stored(3, "l").as_deref(), Some(",1"));
    let is_whole = |entry: &[u8]| {
        let has = |item: &[u8]| entry.windows(item.len()).any(|part| part == item);
        has(b",1") && has(b",3") && has(b",4")
    };
    assert!(cluster.log_of(3, 0).into_iter().any(is_whole), "all of `m`");
}

/// Node 3 learns, and has missed a change of a list. Of two commits that change it further, each writes another key:
/// the second one finds that the base has been asked for already.
#[test]
fn what_a_learner_has_of_a_commit_is_in_its_log() {
    let mut cluster = large_lists();
    cluster.run(1, "put=l:,1");
    cluster.run_for(SETTLE);
    cluster.set_role(3, Role::Down);
    cluster.run_for(SETTLE);
    cluster.run(1, "push=l:,2");
    cluster.run_for(SETTLE);
    cluster.come_back(3);
    for text in ["push=l:,3 write=x:1", "push=l:,4 write=y:1"] {
        let tag = cluster.submit(1, text);
        cluster.run_some(MLT, |packet| {
            !["compared", "difference", "chunk", "values"].contains(&packet.kind())
                || packet.to.0 != 3
        });
        cluster.assert_done(tag);
    }
    assert_eq!(cluster.stored(3, "l").as_deref(), Some(",1"));
    for key in ["x", "y"] {
        assert_eq!(cluster.stored(3, key).as_deref(), Some("1"));
        let copied = |entry: &[u8]| entry[0] == 3 && entry[6..7] == *key.as_bytes();
        assert!(cluster.log_of(3, 0).into_iter().any(copied), "{key}");
    }
}
