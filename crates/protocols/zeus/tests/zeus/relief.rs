//! Copies that nothing rests on give way when memory is short. With four nodes and two replicas `d` belongs
//! to 2, 3 in this order.

use quorate_harness::Packet;
use quorate_types::{Duration, LaneId, Role};
use quorate_zeus::Extra;

use crate::extras::nodes;
use crate::support::Cluster;

/// The node is short of memory.
fn run_short(cluster: &mut Cluster, node: u16) {
    let lanes = cluster.hosts[&node].machines.len() as u16;
    cluster.advance(Duration::from_millis(1));
    for lane in (0..lanes).map(LaneId) {
        let act = |machine: &mut crate::support::Node, now, outbox: &mut _| {
            machine.short_of_memory(now, outbox);
        };
        cluster.act_on(node, lane.0, act);
    }
}

fn dropped(cluster: &Cluster, node: u16) -> u64 {
    let counted = |machine: &crate::support::Node| {
        let counters = quorate_engine::Engine::counters(machine);
        counters.iter().find(|(name, _)| *name == "copies_dropped").expect("it is counted").1
    };
    cluster.hosts[&node].machines.iter().map(counted).sum()
}

/// Keys outside whose groups this node is.
fn keys_outside(cluster: &Cluster, node: u16, count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("k{number}"));
    names.filter(|key| !cluster.group(key).contains(&node)).take(count).collect()
}

#[test]
fn an_owner_outside_the_group_gives_its_keys_back() {
    for lanes in [1, 2] {
        let mut cluster = nodes(lanes);
        let keys = keys_outside(&cluster, 4, 20);
        for key in &keys {
            cluster.run(4, &format!("write={key}:1"));
        }
        let held =
            |cluster: &Cluster| keys.iter().filter(|key| cluster.record(4, key).is_some()).count();
        assert_eq!(held(&cluster), 20);
        run_short(&mut cluster, 4);
        cluster.deliver_all();
        assert_eq!((held(&cluster), dropped(&cluster, 4)), (0, 20), "{lanes} lanes");
        cluster.assert_quiet(keys.iter().cloned());
        for key in &keys {
            let first = cluster.hosts[&1].machine().default_owner_of(key.as_bytes());
            assert_eq!(cluster.writers(key), [first.expect("it has a group").0]);
            for node in 1..=4 {
                assert_eq!(cluster.run(node, &format!("read={key}")), [Some("1".to_owned())]);
            }
        }
        // They come again when they are used.
        cluster.run(4, &format!("append={}:2", keys[0]));
        assert_eq!(cluster.run(1, &format!("read={}", keys[0])), [Some("12".to_owned())]);
    }
}

#[test]
fn an_extra_copy_is_dropped_and_none_is_asked_for_while_memory_is_short() {
    let mut cluster = nodes(1);
    cluster.run(2, "write=d:1");
    let read = |cluster: &mut Cluster| {
        assert_eq!(cluster.run(1, "read=d"), [Some("1".to_owned())]);
        cluster.tick(Duration::from_micros(400));
        cluster.deliver_all();
        cluster.meta(1, "d").extra
    };
    assert_eq!(read(&mut cluster), Extra::Kept);
    run_short(&mut cluster, 1);
    assert_eq!(cluster.record(1, "d"), None, "at once");
    cluster.deliver_all();
    assert_eq!((cluster.extra_readers("d"), dropped(&cluster, 1)), (vec![], 1));
    assert_eq!(read(&mut cluster), Extra::None);
    cluster.advance(Duration::from_secs(1));
    assert_eq!(read(&mut cluster), Extra::Kept);
}

/// What a key survives by stays: the copies of its group, and that of its owner while one of the group is
/// away.
#[test]
fn what_the_replica_count_needs_is_kept() {
    let mut cluster = nodes(1);
    cluster.run(4, "write=d:1");
    for node in [2, 3] {
        run_short(&mut cluster, node);
    }
    cluster.deliver_all();
    assert_eq!(cluster.writers("d"), [4]);
    assert!([2, 3, 4].iter().all(|node| cluster.record(*node, "d").is_some()));
    cluster.expel(&[3]);
    cluster.deliver_all();
    run_short(&mut cluster, 4);
    cluster.deliver_all();
    assert_eq!((cluster.writers("d"), dropped(&cluster, 4)), (vec![4], 0));
    cluster.come_back(3);
    cluster.deliver_all();
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    cluster.advance(Duration::from_millis(20));
    run_short(&mut cluster, 4);
    cluster.deliver_all();
    assert_eq!((cluster.writers("d"), dropped(&cluster, 4)), (vec![2], 1));
    cluster.assert_quiet(["d".to_owned()]);
}

/// The owner waits with its agreement until its transaction is committed; a request of a key that has moved
/// is nobody's business any more.
#[test]
fn a_key_is_given_back_when_it_is_not_in_use() {
    let mut cluster = nodes(1);
    cluster.run(4, "write=d:1");
    let write = cluster.submit(4, "append=d:2");
    run_short(&mut cluster, 4);
    cluster.deliver(4, 2, "req");
    cluster.deliver(2, 4, "inv");
    assert!(!cluster.pool.iter().any(|it| it.from.0 == 4 && Packet::kind(it) == "ack"));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(write), [Some("1")]);
    assert_eq!(cluster.writers("d"), [2]);
    cluster.run(4, "append=d:3");
    run_short(&mut cluster, 4);
    let late = cluster.pool.pop().expect("it asks to be rid of it");
    cluster.pool.clear();
    cluster.run(1, "append=d:4");
    cluster.pool.push(late);
    cluster.deliver_all();
    assert_eq!(
        (cluster.writers("d"), cluster.run(3, "read=d")),
        (vec![1], vec![Some("1234".to_owned())])
    );
    cluster.assert_quiet(["d".to_owned()]);
}
