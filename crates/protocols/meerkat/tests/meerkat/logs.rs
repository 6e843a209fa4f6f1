//! What is on disk before a promise leaves, and what a replica that comes back makes of it.

use quorate_harness::{Clock, Logs};
use quorate_machine::{Content, Machine as _, MapTable, Rng, Unreadable, ValueKind};
use quorate_meerkat::{Body, Config, Item, Kind, Meerkat, Merged, Meta, Reason, Write};
use quorate_rifl::Sessions as _;
use quorate_types::{
    Duration, Incarnation, LaneId, MemberNumber, NodeId, Role, Timestamp, WriterId,
};

use crate::packets::Packet;
use crate::support::{Cluster, MLT, Replicas, serializable};
use crate::txn::Txn;

mod ends;
mod partitions;

const ALL: [u16; 3] = [1, 2, 3];
const GOES_ON: &str = "meerkat: goes on from its log";
/// Until all replicas know the end of every transaction, and have dropped its record.
const SETTLE: Duration = Duration::from_millis(1_500);

/// Nodes with logs that promises wait for.
fn logged(count: u16, configure: fn(&mut Config)) -> Cluster {
    let replicas = Replicas { logs: Logs::Sync, ..Replicas::new(1, configure) };
    Cluster::of(replicas, count, |_| 0, u64::from)
}

fn cluster() -> Cluster {
    logged(3, |_| {})
}

impl Cluster {
    /// Delivers what is in flight from one node to another, without flushing any log.
    fn pass(&mut self, from: u16, to: u16, kind: &str) -> usize {
        let packets = self.take(from, to, kind);
        packets.iter().for_each(|packet| self.inject(packet));
        packets.len()
    }

    fn in_flight(&self, from: u16, to: u16, kind: &str) -> bool {
        self.pool.iter().any(|packet: &Packet| packet.is(from, to, kind))
    }

    /// The power of all nodes goes, and all that no flush has covered with it.
    fn lose_power(&mut self) {
        for node in self.nodes() {
            self.cut_power_unflushed(node);
        }
    }

    /// Node 1 asks another whether it may write a key at a timestamp; why not.
    fn asked_to_write(&mut self, node: u16, key: &str, version: u64) -> Option<Reason> {
        self.asked_to_change(node, key, None, version)
    }

    /// The same, of a key that it has read at this version.
    fn asked_to_change(
        &mut self,
        node: u16,
        key: &str,
        base: Option<Timestamp>,
        version: u64,
    ) -> Option<Reason> {
        let number = self.view.member(NodeId(1)).expect("a member").number;
        let id = Timestamp::new(version, WriterId::new(number, 0));
        let content = Content { bytes: b"2", kind: ValueKind::String, expire_at: None };
        let write = Some(Write::Set(content));
        let bytes = Body::encode(&[Item { key: key.as_bytes(), base, absent: false, write }]);
        let body = Body::check(&bytes).expect("a body");
        self.tell(1, node, Kind::Validate { id, stable: 0, participants: 1, body });
        let vote = self.vote(node, id).expect("it was asked");
        vote.err().map(|conflict| conflict.reason)
    }

    /// These nodes start again from their disks, and the next view has them active.
    fn revive(&mut self, nodes: &[u16]) {
        for node in nodes {
            self.restart(*node, 100 + u64::from(*node));
        }
        let role = |node: u16| if nodes.contains(&node) { Role::Active } else { Role::Down };
        let roles: Vec<_> = self.nodes().into_iter().map(|node| (node, role(node))).collect();
        self.install(&roles);
        self.deliver_all();
    }
}

/// Two of three are lost for good, and with them every quorum: what is left is all there is. In the
/// recovered cluster quorums count again.
#[test]
fn a_recovered_cluster_goes_on_with_what_its_nodes_have() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    cluster.run(2, "write=b:2");
    cluster.lose_power();
    cluster.restart(1, 101);
    cluster.recover();
    cluster.install(&[(1, Role::Active)]);
    cluster.deliver_all();
    assert_eq!(cluster.probed(GOES_ON), 1);
    cluster.run(1, "write=c:3");
    for node in [2, 3] {
        cluster.start(node, 200 + u64::from(node));
        cluster.set_role(node, Role::Shadow);
        cluster.run_for(SETTLE);
        cluster.set_role(node, Role::Active);
        cluster.deliver_all();
    }
    for key in ["a", "b", "c"] {
        assert!([1, 2, 3].iter().all(|node| cluster.stored(*node, key).is_some()), "{key}");
    }
    cluster.run(3, "write=d:4");
    cluster.lose_power();
    cluster.revive(&[2]);
    assert!(cluster.machine(2).stuck().is_some(), "one is no majority of three");
    cluster.lose_power();
    cluster.revive(&[2, 3]);
    for key in ["a", "b", "c", "d"] {
        assert!([2, 3].iter().all(|node| cluster.stored(*node, key).is_some()), "{key}");
    }
}

/// The power goes again before the first epoch of the recovered cluster is released, with a snapshot in between or
/// without. The node comes back as a member of that cluster, and what it has is all there is, still.
#[test]
fn a_recovered_cluster_that_loses_power_at_once_goes_on_as_well() {
    for saves in [false, true] {
        let mut cluster = cluster();
        cluster.run(1, "write=a:1");
        cluster.lose_power();
        cluster.restart(1, 101);
        cluster.recover();
        cluster.start(2, 201);
        cluster.install(&[(1, Role::Active), (2, Role::Shadow)]);
        cluster.flush_log(1);
        if saves {
            cluster.save(1, 0);
        }
        assert_eq!(cluster.probed(GOES_ON), 1);
        cluster.lose_power();
        cluster.restart(1, 301);
        cluster.start(2, 302);
        cluster.install(&[(1, Role::Active), (2, Role::Shadow)]);
        cluster.run_for(SETTLE);
        assert!(cluster.machine(1).stuck().is_none(), "saves: {saves}");
        cluster.set_role(2, Role::Active);
        cluster.run(2, "write=b:2");
        for key in ["a", "b"] {
            assert!([1, 2].iter().all(|node| cluster.stored(*node, key).is_some()), "{key}");
        }
    }
}

#[test]
fn a_vote_leaves_behind_the_record() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    assert_eq!(cluster.pass(1, 2, "validate"), 1);
    assert!(!cluster.in_flight(2, 1, "vote"), "the vote waits for the disk");
    // Asked again, it promises nothing earlier.
    let again: Vec<_> = { cluster.fresh_packets.iter() }
        .filter(|packet| packet.is(1, 2, "validate"))
        .cloned()
        .collect();
    again.iter().for_each(|packet| cluster.inject(packet));
    assert!(!cluster.in_flight(2, 1, "vote"));
    cluster.flush_log(2);
    assert_eq!(cluster.pass(2, 1, "vote"), 2);
    cluster.assert_open(tag);
    cluster.deliver_all();
    cluster.assert_done(tag);
}

#[test]
fn a_coordinator_counts_itself_when_its_own_vote_is_on_disk() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
        cluster.pass(node, 1, "vote");
    }
    cluster.assert_open(tag);
    cluster.flush_log(1);
    cluster.assert_done(tag);
}

#[test]
fn a_vote_against_waits_for_nothing() {
    let mut cluster = cluster();
    cluster.submit(1, "append=a:1");
    cluster.pass(1, 3, "validate");
    cluster.submit(2, "append=a:2");
    cluster.pass(2, 3, "validate");
    assert!(cluster.in_flight(3, 2, "vote"), "the key is another's here");
    assert!(!cluster.in_flight(3, 1, "vote"));
}

#[test]
fn what_was_answered_stands_though_no_end_was_on_disk() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1 write=b:2");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
    }
    cluster.flush_log(1);
    for node in [2, 3] {
        cluster.pass(node, 1, "vote");
    }
    cluster.assert_done(tag);
    let id = cluster.stamps[&tag];
    cluster.lose_power();
    // A majority suffices, and the coordinator is not of it.
    cluster.revive(&[2, 3]);
    assert_eq!(cluster.probed(GOES_ON), 2);
    for node in [2, 3] {
        assert_eq!(cluster.stored(node, "a").as_deref(), Some("1"));
        assert_eq!(cluster.stored(node, "b").as_deref(), Some("2"));
        assert_eq!(cluster.meta(node, "a").wts, id);
    }
    cluster.restart(1, 9);
    cluster.set_role(1, Role::Shadow);
    cluster.run_for(SETTLE);
    assert!(cluster.machine(1).is_caught_up());
    cluster.set_role(1, Role::Active);
    cluster.run(1, "append=a:3");
    cluster.assert_everywhere("a", Some("13"));
    cluster.run_for(SETTLE);
    cluster.assert_quiet();
}

/// The last batch of one has rotted, which nobody can tell from one that was torn.
#[test]
fn what_was_answered_stands_though_one_replica_has_lost_its_vote() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    cluster.run_for(SETTLE);
    cluster.run(1, "append=a:2");
    cluster.lose_power();
    let entries = cluster.log_of(3, 0).len();
    cluster.rot_end(3, 0, entries);
    cluster.revive(&[1, 2, 3]);
    cluster.run_for(SETTLE);
    cluster.assert_everywhere("a", Some("12"));
}

/// Nothing is left of a log, not even the name of the cluster: what was written long ago comes from the others.
#[test]
fn a_replica_that_has_lost_its_whole_log_has_what_was_written_long_ago() {
    for logs in [Logs::Sync, Logs::Async] {
        let replicas = Replicas { logs, ..Replicas::new(1, |_| {}) };
        let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
        cluster.run(1, "write=old:1");
        cluster.run_for(SETTLE);
        cluster.run(1, "write=new:1");
        cluster.flush_logs();
        cluster.lose_power();
        let entries = cluster.log_of(3, 0).len();
        cluster.rot_end(3, 0, entries);
        cluster.revive(&ALL);
        cluster.run_for(SETTLE);
        cluster.assert_everywhere("new", Some("1"));
        cluster.assert_everywhere("old", Some("1"));
    }
}

#[test]
fn what_one_replica_has_voted_for_is_over_after_the_restart() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    cluster.pass(1, 2, "validate");
    cluster.flush_log(2);
    cluster.assert_open(tag);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.assert_everywhere("a", None);
    let ends = &cluster.subject.ledger.ends;
    assert!(ends.values().all(|commit| !commit), "{ends:?}");
}

#[test]
fn an_acceptance_leaves_behind_the_proposal() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    cluster.pass(1, 2, "validate");
    cluster.flush_log(1);
    cluster.flush_log(2);
    cluster.pass(2, 1, "vote");
    // 3 is silent.
    cluster.take(1, 3, "validate");
    cluster.tick(MLT / 2);
    assert_eq!(cluster.pass(1, 2, "accept"), 1);
    assert!(!cluster.in_flight(2, 1, "accepted"));
    cluster.flush_log(2);
    assert_eq!(cluster.pass(2, 1, "accepted"), 1);
    cluster.assert_open(tag);
    cluster.flush_log(1);
    cluster.tick(Duration::from_millis(60));
    cluster.assert_done(tag);
}

#[test]
fn an_end_is_acknowledged_when_it_is_on_disk() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
        cluster.pass(node, 1, "vote");
    }
    cluster.flush_log(1);
    cluster.assert_done(tag);
    cluster.pass(1, 2, "decided");
    cluster.pass(1, 3, "decided");
    cluster.flush_log(2);
    cluster.advance(MLT);
    [2, 3].into_iter().for_each(|node| cluster.tick_node(node));
    assert_eq!(cluster.pass(2, 1, "acked"), 1);
    assert!(!cluster.in_flight(3, 1, "acked"));
    cluster.flush_log(3);
    assert_eq!(cluster.pass(3, 1, "acked"), 1);
    // Its own end is not on its disk: the others must not forget the transaction yet.
    assert_eq!(cluster.gauge(1, "attempts"), 1);
    cluster.flush_log(1);
    assert_eq!(cluster.gauge(1, "attempts"), 0);
}

#[test]
fn nobody_acts_on_a_merged_record_before_all_have_it_on_disk() {
    let mut cluster = cluster();
    cluster.flush_logs();
    cluster.renew_view();
    for node in [2, 3] {
        cluster.pass(1, node, "freeze");
        cluster.pass(node, 1, "frozen");
    }
    for node in [2, 3] {
        cluster.pass(1, node, "adopt");
        assert!(!cluster.in_flight(node, 1, "adopted"));
        cluster.flush_log(node);
        cluster.pass(node, 1, "adopted");
    }
    assert!(!cluster.in_flight(1, 2, "release"), "the leader is one of them");
    cluster.flush_log(1);
    assert!(cluster.in_flight(1, 2, "release"));
    cluster.deliver_all();
    assert!(cluster.machine(3).is_normal());
}

#[test]
fn a_merged_record_that_all_kept_is_what_the_next_change_has() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
        cluster.pass(node, 1, "vote");
    }
    cluster.flush_log(1);
    cluster.assert_done(tag);
    cluster.pool.clear();
    cluster.renew_view();
    for node in [2, 3] {
        cluster.pass(1, node, "freeze");
        cluster.pass(node, 1, "frozen");
        cluster.pass(1, node, "adopt");
    }
    for node in [2, 3] {
        cluster.pass(1, node, "adopt");
    }
    cluster.flush_logs();
    cluster.pool.clear();
    cluster.lose_power();
    cluster.revive(&[1, 3]);
    for node in [1, 3] {
        assert_eq!(cluster.stored(node, "a").as_deref(), Some("1"));
    }
}

/// A read leaves no record: a reservation of time stands for it.
#[test]
fn no_write_slips_under_a_read_that_was_answered() {
    let replicas = Replicas { logs: Logs::Sync, ..Replicas::new(1, serializable) };
    let ahead = |node| if node == 1 { 3_000_000_000 } else { 0 };
    let mut cluster = Cluster::of(replicas, 3, ahead, u64::from);
    cluster.set_clock(1, Clock { ahead: 5_000_000_000, ..Clock::default() });
    cluster.renew_view();
    cluster.deliver_all();
    let read = cluster.submit(1, "read=a read=b");
    cluster.deliver_all();
    cluster.assert_done(read);
    cluster.lose_power();
    cluster.revive(&ALL);
    let write = cluster.submit(2, "write=a:1 write=b:2");
    cluster.deliver_all();
    cluster.assert_done(write);
    let read = cluster.stamps[&read];
    assert!(cluster.stamps[&write] > read);
    // A guest lives on, and asks again about what it began before.
    assert_eq!(cluster.asked_to_write(2, "c", read.version - 1), Some(Reason::BelowFloor));
}

#[test]
fn a_read_is_confirmed_when_its_time_is_on_disk() {
    let mut cluster = cluster();
    // Beyond all that was reserved.
    cluster.advance(Duration::from_secs(5));
    let read = cluster.submit(1, "read=a");
    cluster.flush_log(1);
    let others: Vec<u16> =
        [2, 3].into_iter().filter(|to| cluster.in_flight(1, *to, "check")).collect();
    for node in &others {
        cluster.pass(1, *node, "check");
        assert!(!cluster.in_flight(*node, 1, "checked"));
        cluster.flush_log(*node);
        assert_eq!(cluster.pass(*node, 1, "checked"), 1);
    }
    cluster.assert_done(read);
    // Some time is reserved now.
    let read = cluster.submit(1, "read=a");
    let others: Vec<u16> =
        [2, 3].into_iter().filter(|to| cluster.in_flight(1, *to, "check")).collect();
    if others
        .iter()
        .all(|node| cluster.pass(1, *node, "check") == 1 && cluster.pass(*node, 1, "checked") == 1)
    {
        cluster.assert_done(read);
    }
}

#[test]
fn a_restart_of_one_compares_what_its_disk_has() {
    let mut cluster = cluster();
    for number in 0..40 {
        cluster.run(1, &format!("write=k{number}:{number}"));
    }
    cluster.run(2, "write=gone:1");
    cluster.run_for(SETTLE);
    cluster.cut_power(3, &mut Rng::new(1));
    cluster.set_role(3, Role::Down);
    cluster.deliver_all();
    cluster.run(1, "write=k7:new");
    cluster.run(1, "del=gone");
    cluster.run_for(SETTLE);
    assert!(!cluster.has_record(1, "gone"), "the deletion is forgotten");
    cluster.restart(3, 77);
    assert_eq!(cluster.stored(3, "gone").as_deref(), Some("1"));
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(SETTLE);
    assert!(cluster.machine(3).is_caught_up());
    assert!(cluster.counter(3, "records_kept") >= 39);
    assert!(cluster.machine(3).copied() <= 2);
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    cluster.assert_everywhere("k7", Some("new"));
    assert_eq!(cluster.stored(3, "gone"), None);
    // What it copied and what it let go is in its log, too.
    cluster.run_for(SETTLE);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.assert_everywhere("k7", Some("new"));
    for node in ALL {
        assert_eq!(cluster.stored(node, "gone"), None, "at {node}");
    }
    cluster.run(3, "append=k8:!");
    cluster.assert_everywhere("k8", Some("8!"));
}

#[test]
fn a_copy_counts_when_it_is_on_disk() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    cluster.expel(&[3]);
    cluster.run_for(SETTLE);
    cluster.start(3, 7);
    cluster.set_role(3, Role::Shadow);
    let mut steps = 0;
    while cluster.machine(3).copied() == 0 || !cluster.pool.is_empty() {
        if let Some(packet) = (!cluster.pool.is_empty()).then(|| cluster.pool.remove(0)) {
            cluster.inject(&packet);
        } else {
            for node in [1, 2] {
                cluster.flush_log(node);
            }
            if cluster.machine(3).copied() == 0 {
                cluster.flush_log(3);
            }
        }
        steps += 1;
        assert!(steps < 1_000, "the copy comes to an end");
    }
    assert!(!cluster.machine(3).is_caught_up(), "what it has copied is not on its disk");
    cluster.flush_log(3);
    assert!(cluster.machine(3).is_caught_up());
}

#[test]
fn too_few_disks_leave_the_keyspace_stuck() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    cluster.lose_power();
    cluster.revive(&[2]);
    assert!(cluster.machine(2).stuck().is_some(), "one of three can't know what was decided");
    let tag = cluster.submit(2, "read=a");
    cluster.deliver_all();
    cluster.assert_open(tag);
}

/// Deletions that were forgotten before the power went: who read a value before that must be refused.
#[test]
fn what_is_absent_after_a_restart_was_deleted() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    let old = cluster.meta(1, "a").wts;
    cluster.run(1, "del=a");
    cluster.run_for(SETTLE);
    assert!(!cluster.has_record(2, "a"));
    for node in ALL {
        cluster.save(node, 0);
    }
    cluster.lose_power();
    cluster.revive(&ALL);
    assert!(!cluster.has_record(2, "a"), "the snapshot does not have it");
    // Somebody has read it before, and was held up since.
    let now = cluster.now_at(1);
    let version = cluster.machine(1).date(now) + 1_000_000;
    assert_eq!(cluster.asked_to_change(2, "a", Some(old), version), Some(Reason::StaleRead));
}

#[test]
fn snapshots_while_it_serves_lose_nothing() {
    let mut cluster = cluster();
    for number in 0..30 {
        let tag = cluster
            .submit(1 + number % 3, &format!("append=k{}:,{number} write=x{number}:1", number % 4));
        for node in ALL {
            cluster.save_some(node, 0, 60);
        }
        cluster.deliver_all();
        cluster.assert_done(tag);
    }
    cluster.lose_power();
    cluster.revive(&ALL);
    for key in 0..4 {
        let numbers = (0..30).filter(|number| number % 4 == key);
        let value: String = numbers.map(|number| format!(",{number}")).collect();
        cluster.assert_everywhere(&format!("k{key}"), Some(&value));
    }
    for number in 0..30 {
        cluster.assert_everywhere(&format!("x{number}"), Some("1"));
    }
}

#[test]
fn what_is_over_everywhere_comes_back_without_records() {
    let mut cluster = cluster();
    for number in 0..20 {
        cluster.run(1, &format!("write=k:{number}"));
    }
    cluster.run_for(SETTLE);
    cluster.lose_power();
    cluster.revive(&ALL);
    let bytes = cluster.machine(1).merged().expect("it has led the change");
    assert!(Merged::decode(bytes).expect("well-formed").settled.is_empty());
}

/// Bytes of the log for a value of 100 bytes under a key of 16.
#[test]
fn an_update_costs_little_more_than_it_writes() {
    let mut cluster = cluster();
    let bytes = |cluster: &Cluster| -> usize {
        // Framing of an entry: 7 bytes; of a batch, here one for each vote: 20.
        cluster.log_of(2, 0).iter().map(|entry| entry.len() + 7).sum()
    };
    let before = bytes(&cluster);
    for number in 0..100 {
        cluster.run(1, &format!("write=key:{number:012}:{}", "v".repeat(100)));
    }
    let each = (bytes(&cluster) - before) / 100;
    assert!(each * 10 <= 116 * 16, "{each} bytes for an update of 116");
}

fn fresh() -> Meerkat<MapTable<Meta>, Txn> {
    let config = Config::new(NodeId(2), Incarnation(77), LaneId(0), 1, 1);
    Meerkat::new(config, MapTable::new(0))
}

/// Entries of all kinds that a node has appended and saved.
fn entries_of_all_kinds() -> Vec<Vec<u8>> {
    let replicas =
        Replicas { logs: Logs::Sync, packed_bytes_max: |_| 0, ..Replicas::new(1, serializable) };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    cluster.run(1, "put=l:,1 write=a:1");
    cluster.run(2, "push=l:,2 del=a write=b:2");
    cluster.cut_power(3, &mut Rng::new(1));
    cluster.set_role(3, Role::Down);
    cluster.run(2, "push=l:,3 del=b");
    cluster.run_for(SETTLE);
    cluster.restart(3, 77);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(SETTLE);
    cluster.set_role(3, Role::Active);
    cluster.run(3, "push=l:,4 write=c:2");
    cluster.submit(1, "write=d:3");
    cluster.pass(1, 3, "validate");
    cluster.flush_log(3);
    let mut entries: Vec<Vec<u8>> = cluster.log_of(3, 0).into_iter().map(<[u8]>::to_vec).collect();
    cluster.save(3, 0);
    entries.extend(cluster.log_of(3, 0).into_iter().map(<[u8]>::to_vec));
    entries
}

#[test]
fn a_damaged_entry_is_unreadable_and_never_a_panic() {
    let entries = entries_of_all_kinds();
    let kinds: std::collections::BTreeSet<u8> = entries.iter().map(|entry| entry[0]).collect();
    assert!(kinds.len() >= 9, "only entries of the kinds {kinds:?}");
    for entry in &entries {
        for cut in 0..entry.len() {
            let mut machine = fresh();
            let _ = machine.restore(&entry[..cut]);
        }
    }
    let mut rng = Rng::new(3);
    let mut refused = 0;
    for _ in 0..3_000 {
        let mut machine = fresh();
        for entry in &entries {
            let mut entry = entry.clone();
            if rng.chance(1, 4) {
                for _ in 0..=rng.below(3) {
                    let at = rng.below(entry.len() as u64) as usize;
                    entry[at] = match rng.below(4) {
                        0 => 0,
                        1 => u8::MAX,
                        2 => entry[at] ^ 1 << rng.below(8),
                        _ => rng.below(256) as u8,
                    };
                }
            }
            refused += u64::from(machine.restore(&entry).is_err());
        }
        machine.restored();
    }
    assert!(refused > 1_000, "{refused} were refused");
    assert_eq!(fresh().restore(&[]), Err(Unreadable("meerkat: a damaged entry")));
    assert_eq!(fresh().restore(&[99]), Err(Unreadable("meerkat: an unknown entry")));
}

#[test]
#[should_panic = "has coordinated before"]
fn a_member_number_is_never_used_again() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    cluster.lose_power();
    // Its own number, as a membership would give it that had forgotten the last one.
    cluster.view.last_number = MemberNumber(0);
    cluster.revive(&ALL);
}

/// The log of a replica that voted against has nothing of the transaction before its end.
#[test]
fn what_a_replica_voted_against_comes_back_with_what_it_did() {
    let mut cluster = cluster();
    cluster.submit(3, "append=a:other");
    for node in [1, 2] {
        cluster.take(3, node, "validate");
    }
    let tag = cluster.submit(1, "append=a:1 write=b:1");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
        cluster.pass(node, 1, "vote");
    }
    let id = cluster.last_attempt(1);
    assert!(cluster.vote(3, id).is_some_and(|vote| vote.is_err()));
    cluster.flush_log(1);
    cluster.take(1, 3, "accept");
    cluster.pass(1, 2, "accept");
    cluster.flush_log(2);
    cluster.pass(2, 1, "accepted");
    cluster.flush_log(1);
    cluster.assert_done(tag);
    cluster.deliver_all();
    assert_eq!(cluster.decision(3, id), Some(true));
    cluster.run_for(SETTLE);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.assert_everywhere("b", Some("1"));
}

#[test]
fn what_a_learner_installs_comes_back() {
    let mut cluster = cluster();
    cluster.run(1, "write=a:1");
    cluster.expel(&[3]);
    cluster.run_for(SETTLE);
    cluster.start(3, 7);
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(SETTLE);
    assert!(cluster.machine(3).is_caught_up());
    cluster.run(1, "write=b:2");
    // All know its end: no epoch change has it.
    cluster.run_for(SETTLE);
    cluster.set_role(3, Role::Active);
    cluster.run_for(SETTLE);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.assert_everywhere("a", Some("1"));
    cluster.assert_everywhere("b", Some("2"));
}

/// Nobody waited for the logs, and each of them has another end.
#[test]
fn what_any_replica_has_kept_stands_at_all() {
    let replicas = Replicas { logs: Logs::Async, ..Replicas::new(1, |_| {}) };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    cluster.run(1, "write=a:1 write=b:1");
    cluster.run_for(SETTLE);
    cluster.flush_logs();
    let tag = cluster.submit(1, "write=a:2 write=b:2");
    for _ in 0..80 {
        while !cluster.pool.is_empty() {
            let packet = cluster.pool.remove(0);
            cluster.inject(&packet);
        }
        cluster.tick(MLT);
    }
    cluster.assert_done(tag);
    cluster.assert_quiet();
    // All know its end and have forgotten it; one has it on its disk.
    cluster.flush_log(3);
    cluster.lose_power();
    cluster.revive(&ALL);
    cluster.run_for(MLT * 3);
    cluster.assert_everywhere("a", Some("2"));
    cluster.assert_everywhere("b", Some("2"));
    cluster.run(2, "append=a:!");
    cluster.assert_everywhere("a", Some("2!"));
}

/// The epoch can't end, and the log is not to grow for that.
#[test]
fn a_snapshot_of_a_keyspace_that_is_stuck_has_what_it_knows() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
        cluster.pass(node, 1, "vote");
    }
    cluster.flush_log(1);
    cluster.assert_done(tag);
    cluster.lose_power();
    cluster.revive(&[2]);
    assert!(cluster.machine(2).stuck().is_some());
    // Before a view names it, and after.
    cluster.save(2, 0);
    cluster.cut_power_unflushed(2);
    cluster.restart(2, 8);
    cluster.save(2, 0);
    cluster.lose_power();
    cluster.revive(&[2, 3]);
    for node in [2, 3] {
        assert_eq!(cluster.stored(node, "a").as_deref(), Some("1"), "at {node}");
    }
}

/// A lane that has frozen has given its records away, and they are not merged yet.
#[test]
fn a_snapshot_while_the_epoch_changes_has_the_records() {
    let mut cluster = cluster();
    let tag = cluster.submit(1, "write=a:1");
    for node in [2, 3] {
        cluster.pass(1, node, "validate");
        cluster.flush_log(node);
        cluster.pass(node, 1, "vote");
    }
    cluster.flush_log(1);
    cluster.assert_done(tag);
    cluster.pool.clear();
    cluster.renew_view();
    for node in ALL {
        cluster.save(node, 0);
    }
    cluster.lose_power();
    cluster.revive(&[2, 3]);
    for node in [2, 3] {
        assert_eq!(cluster.stored(node, "a").as_deref(), Some("1"), "at {node}");
    }
}
