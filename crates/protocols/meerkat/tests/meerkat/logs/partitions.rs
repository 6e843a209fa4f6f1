//! Logs of nodes that hold some of the partitions.

use quorate_types::{NodeId, Role};

use super::{ALL, SETTLE, logged};

/// Node 1 holds both partitions, and node 3 copies the one that it holds from there.
#[test]
fn a_learner_keeps_nothing_of_partitions_that_it_does_not_hold() {
    let mut cluster = logged(3, |config| {
        let group = |nodes: [u16; 2]| Some(nodes.map(NodeId).into_iter().collect());
        config.partitions = vec![group([1, 2]), group([1, 3])];
    });
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    for key in &keys {
        cluster.run(1, &format!("write={key}:1"));
    }
    cluster.run_for(SETTLE);
    cluster.set_role(3, Role::Down);
    cluster.start(3, 300);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(SETTLE);
    cluster.set_role(3, Role::Active);
    cluster.run_for(SETTLE);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.run_for(SETTLE);
    for key in &keys {
        let at_one_other = cluster.stored(2, key).is_some() != cluster.stored(3, key).is_some();
        assert!(cluster.stored(1, key).is_some() && at_one_other, "{key}");
    }
}

#[test]
fn a_node_restores_no_records_of_partitions_that_it_does_not_hold() {
    let mut cluster = logged(3, |config| {
        let holders = [NodeId(1), NodeId(2)].into_iter().collect();
        config.partitions = vec![Some(holders)];
    });
    // Its end is in no log but in that of a merged record, which all have.
    cluster.submit(3, "write=a:1");
    for node in [1, 2] {
        cluster.pass(3, node, "validate");
        cluster.flush_log(node);
    }
    for _ in 0..2 {
        cluster.lose_power();
        cluster.revive(&ALL);
    }
    assert_eq!(cluster.stored(1, "a").as_deref(), Some("1"));
    assert_eq!(cluster.stored(3, "a"), None);
}
