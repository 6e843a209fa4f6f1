//! One test for each transition.

use quorate_zeus::{DataState, OwnerState};

use crate::support::Cluster;

#[test]
fn a_key_is_made_at_its_default_owner_without_a_round() {
    let mut cluster = Cluster::new(3);
    let owner = cluster.writers("k")[0];
    let tag = cluster.submit(owner, "write=k:1");
    assert_eq!(cluster.take(0, 0, "r-inv").len(), 2);
    assert!(cluster.pool.is_empty());
    cluster.assert_open(tag);
    let meta = cluster.meta(owner, "k");
    assert_eq!((meta.data, meta.state), (DataState::Write, OwnerState::Valid));
    assert_eq!(meta.owner, cluster.number(owner));
}

#[test]
fn a_key_moves_to_where_it_is_used() {
    let mut cluster = Cluster::new(3);
    let owner = cluster.writers("k")[0];
    let other = owner % 3 + 1;
    cluster.run(owner, "write=k:1");
    assert_eq!(cluster.run(other, "append=k:2"), [Some("1".to_owned())]);
    assert_eq!(cluster.writers("k"), [other]);
    for node in 1..=3 {
        assert_eq!(cluster.run(node, "read=k"), [Some("12".to_owned())]);
    }
    cluster.assert_quiet(["k".to_owned()]);
}
