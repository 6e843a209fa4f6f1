//! What becomes of a transaction that was answered and that the power takes away, while its coordinator
//! lives: promises have not waited for the logs of its replicas.

use std::cell::Cell;

use quorate_harness::Logs;
use quorate_machine::Event;
use quorate_meerkat::Config;
use quorate_types::{Duration, NodeId, Role, Timestamp};

use crate::guests::{GUEST, with_guest_of};
use crate::support::{Cluster, Replicas};
use crate::txn::txn;

const ALL: [u16; 3] = [1, 2, 3];

/// Nodes with logs that nothing waits for.
fn lossy(count: u16, configure: fn(&mut Config)) -> Cluster {
    let replicas = Replicas { logs: Logs::Async, ..Replicas::new(1, configure) };
    Cluster::of(replicas, count, |_| 0, u64::from)
}

fn lossy_with_guest() -> Cluster {
    let mut cluster = with_guest_of(lossy(3, |_| {}), |_| {});
    cluster.run(2, "write=k:u");
    cluster
}

impl Cluster {
    /// The power of nodes 1 to 3 goes, and all with it that is not on their disks. They come back.
    fn lose_the_first_three(&mut self, guest: Option<Timestamp>) {
        self.pool.clear();
        for node in ALL {
            self.cut_power_unflushed(node);
            self.restart(node, 100 + u64::from(node));
            if let Some(id) = guest {
                self.machine(node).guest_joined(id.writer, NodeId(GUEST));
            }
        }
        self.renew_view();
    }

    /// The power of a node goes, and its only lane's log ends after so many entries.
    fn lose_power_but_keep(&mut self, node: u16, entries: usize) {
        self.pool.clear();
        self.cut_power_unflushed(node);
        let lost = self.log_of(node, 0).len() - entries;
        self.rot_end(node, 0, lost);
    }

    /// Nodes 2 and 3 are shadows that have copied, and become active.
    fn activate_shadows(&mut self) {
        assert!(self.machine(1).stuck().is_none());
        for node in [2, 3] {
            assert!(self.machine(node).is_caught_up());
            self.set_role(node, Role::Active);
            self.run_for(Duration::from_secs(1));
        }
    }

    /// Replicas 1 to 3 vote for what a node has begun, and some have it on their disks; the votes decide.
    fn vote_and_write(&mut self, coordinator: u16, written: &[u16]) {
        for node in ALL {
            self.deliver(coordinator, node, "validate");
        }
        written.iter().for_each(|node| assert!(self.flush_log(*node)));
        for node in ALL {
            self.deliver(node, coordinator, "vote");
        }
    }
}

/// All lose power, nodes 1 and 2 the deletion of a key with it, and node 3 comes back when they have gone on
/// without: it takes over the version that they have. So do those who read its log.
#[test]
fn a_version_that_others_have_lost_does_not_come_back_from_the_log() {
    let mut cluster = lossy(3, |_| {});
    cluster.run(1, "write=k:u write=l:u");
    cluster.run_for(Duration::from_secs(1));
    let kept = cluster.log_of(1, 0).len();
    cluster.run(3, "del=k write=l:v");
    let whole = cluster.log_of(3, 0).len();
    cluster.lose_power_but_keep(3, whole);
    for node in [1, 2] {
        let kept = kept.min(cluster.log_of(node, 0).len());
        cluster.lose_power_but_keep(node, kept);
        cluster.restart(node, 100 + u64::from(node));
    }
    cluster.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Down)]);
    cluster.run_for(Duration::from_secs(1));
    cluster.restart(3, 103);
    assert_eq!(cluster.stored(3, "l").as_deref(), Some("v"));
    cluster.set_role(3, Role::Shadow);
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.machine(3).is_caught_up());
    cluster.assert_everywhere("k", Some("u"));
    cluster.cut_power_unflushed(3);
    cluster.restart(3, 203);
    for key in ["k", "l"] {
        assert_eq!(cluster.stored(3, key).as_deref(), Some("u"), "{key} of the log");
    }
}

/// The guest was told of its commit, and as many of the replicas as are named have their votes on disk
/// when the power goes. It hears of the next view soon after, or when what it began is too old to be begun.
#[test]
fn what_a_guest_has_ended_is_over_when_its_replicas_have_come_back_without_it() {
    for written in [&[][..], &[3], &[1, 3], &ALL] {
        for cut_off in [Duration::ZERO, Duration::from_secs(2)] {
            let mut cluster = lossy_with_guest();
            let (tag, id) = cluster.begin("append=k:v");
            cluster.vote_and_write(GUEST, written);
            cluster.assert_done(tag);
            cluster.lose_the_first_three(Some(id));
            cluster.run_some(cut_off, |packet| !packet.is(GUEST, 0, "any"));
            cluster.run_for(Duration::from_secs(6));
            let is_left = written.len() >= 2;
            cluster.assert_everywhere("k", Some(if is_left { "uv" } else { "u" }));
            assert_eq!(cluster.gauge(GUEST, "attempts"), 0, "{written:?}, cut off for {cut_off:?}");
            let read = cluster.run(GUEST, "append=k:w");
            assert_eq!(read, [Some(if is_left { "uv" } else { "u" }.to_owned())]);
            cluster.run_for(Duration::from_secs(6));
            cluster.assert_settled();
            assert!(cluster.record(1, id).is_none(), "the guest calls it over");
        }
    }
}

/// Node 3 does not hear that all have adopted the outcome. The others go on, and the next view finds it where
/// the first one has left it.
#[test]
fn who_has_missed_an_epoch_after_the_loss_is_told_by_those_that_have_gone_on() {
    let mut cluster = lossy(3, |_| {});
    cluster.run(1, "write=k:u");
    cluster.run_for(Duration::from_secs(1));
    cluster.pool.clear();
    for node in ALL {
        cluster.cut_power_unflushed(node);
        cluster.restart(node, 100 + u64::from(node));
    }
    cluster.renew_view();
    let tag = cluster.submit(1, "append=k:v");
    cluster.run_some(Duration::from_secs(1), |packet| !packet.is(0, 3, "release"));
    cluster.assert_done(tag);
    cluster.renew_view();
    cluster.run_for(Duration::from_secs(2));
    cluster.assert_everywhere("k", Some("uv"));
    cluster.run(3, "append=k:w");
    cluster.assert_everywhere("k", Some("uvw"));
}

/// Nodes 1 and 3 come back, and node 2 without anything. It learns of the release before node 3 does, and copies
/// from either.
#[test]
fn who_copies_waits_for_a_donor_that_has_installed_the_merged_record() {
    for seed in 0..8 {
        let replicas = Replicas { logs: Logs::Async, ..Replicas::new(1, |_| {}) };
        let replicas = Replicas { packed_bytes_max: |_| 0, ..replicas };
        let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
        cluster.run(1, "put=l:,1");
        cluster.run_for(Duration::from_secs(2));
        cluster.submit(1, "push=l:,2");
        cluster.deliver(1, 3, "validate");
        cluster.flush_logs();
        cluster.pool.clear();
        for node in ALL {
            cluster.cut_power_unflushed(node);
        }
        for node in [1, 3] {
            cluster.restart(node, 100 + u64::from(node));
        }
        cluster.start(2, seed);
        cluster.install(&[(1, Role::Active), (2, Role::Shadow), (3, Role::Active)]);
        cluster.run_some(Duration::from_millis(200), |packet| !packet.is(1, 3, "release"));
        cluster.run_for(Duration::from_secs(2));
        assert!(cluster.machine(2).is_caught_up());
        cluster.assert_everywhere("l", Some(",1,2"));
    }
}

/// How the third node comes back a second time.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Again {
    /// It has not heard yet that it was active.
    Unheard,
    /// It has, and so has its first lane alone.
    Heard,
    OneLane,
    /// Its power goes once more.
    Restarted,
}

/// All lose power, and node 1 the last value of a key with it. Node 2 stays away. Node 3, which has the
/// value, is removed before anybody has gone on, and comes back as a shadow.
fn lose_all_but_the_third(lanes: u16, again: Again) -> Cluster {
    let replicas = Replicas { logs: Logs::Async, ..Replicas::new(lanes, |_| {}) };
    let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
    cluster.run(1, "write=k:u write=l:1");
    cluster.run_for(Duration::from_secs(2));
    let length = |cluster: &Cluster, lane| cluster.log_of(1, lane).len();
    let before: Vec<usize> = (0..lanes).map(|lane| length(&cluster, lane)).collect();
    cluster.run(1, "write=k:v del=l");
    cluster.run(2, "append=k:w write=m:1");
    cluster.run_for(Duration::from_secs(2));
    cluster.pool.clear();
    for node in ALL {
        cluster.cut_power_unflushed(node);
    }
    for (lane, before) in (0..lanes).zip(before) {
        let lost = length(&cluster, lane) - before;
        cluster.rot_end(1, lane, lost);
    }
    for node in [1, 3] {
        cluster.restart(node, 100 + u64::from(node));
    }
    let view = cluster.decide(&[(1, Role::Active), (2, Role::Down), (3, Role::Active)]);
    cluster.install_on(1, &view);
    match again {
        Again::Unheard => {}
        Again::Heard => cluster.install_on(3, &view),
        Again::OneLane => cluster.step_on(3, 0, Event::View(&view)),
        Again::Restarted => {
            cluster.install_on(3, &view);
            cluster.deliver_some(|packet| packet.kind() == "freeze");
            cluster.cut_power_unflushed(3);
            cluster.restart(3, 200);
        }
    }
    cluster.pool.clear();
    cluster.set_role(3, Role::Down);
    if again != Again::Restarted {
        cluster.begin_life(3);
    }
    cluster.set_role(3, Role::Shadow);
    cluster
}

#[test]
fn what_a_straggler_has_kept_is_there_if_too_few_others_have_come_back() {
    for lanes in [1, 2] {
        for again in [Again::Unheard, Again::Heard, Again::OneLane, Again::Restarted] {
            let mut cluster = lose_all_but_the_third(lanes, again);
            cluster.run_for(Duration::from_secs(2));
            assert_eq!(cluster.stored(1, "k").as_deref(), Some("vw"), "{lanes} lanes, {again:?}");
            assert_eq!(cluster.stored(1, "m").as_deref(), Some("1"));
            assert_eq!(cluster.stored(1, "l"), None);
            assert!(cluster.machine(3).is_caught_up());
            cluster.set_role(3, Role::Active);
            cluster.run(3, "append=k:x");
            cluster.run_for(Duration::from_secs(1));
            assert_eq!(cluster.stored(1, "k").as_deref(), Some("vwx"));
            assert_eq!(cluster.stored(3, "k").as_deref(), Some("vwx"));
        }
    }
}

/// Node 2 has committed with the vote of node 3 when both lose power. Node 1 lives, and has not heard of it.
/// While one of them is missing, that may be known to it. Once all are back, they go on with what their logs
/// have kept, which node 1 takes in.
#[test]
fn a_log_that_nothing_has_waited_for_is_no_vote_beside_a_member_that_lives() {
    let mut cluster = lossy(3, |_| {});
    cluster.run(1, "write=k:u");
    cluster.run_for(Duration::from_secs(1));
    let tag = cluster.submit(2, "append=k:v");
    cluster.run_some(Duration::from_millis(200), |packet| !packet.is(2, 1, "any"));
    cluster.assert_done(tag);
    cluster.pool.clear();
    for node in [2, 3] {
        cluster.cut_power_unflushed(node);
    }
    cluster.restart(3, 103);
    cluster.install(&[(1, Role::Active), (2, Role::Down), (3, Role::Shadow)]);
    cluster.run_for(Duration::from_secs(2));
    assert!(cluster.machine(1).stuck().is_some(), "nobody is left who knows what 2 and 3 decided");
    cluster.restart(2, 104);
    cluster.set_role(2, Role::Shadow);
    cluster.run_for(Duration::from_secs(2));
    cluster.activate_shadows();
    cluster.assert_everywhere("k", Some("uv"));
    for node in ALL {
        cluster.run(node, &format!("append=k:{node}"));
    }
    cluster.run_for(Duration::from_secs(1));
    cluster.assert_everywhere("k", Some("uv123"));
}

/// Node 1 was expelled once, and has begun another life. It lives on when the others lose the last value of a key
/// with their power, and takes in what they have kept: nothing of it is newer, whichever life has made the record.
#[test]
fn who_lives_on_in_a_second_life_takes_in_nothing_older() {
    for is_broken_off in [false, true] {
        live_on_in_a_second_life(is_broken_off);
    }
}

/// Another view may come while it takes in what they have.
fn live_on_in_a_second_life(is_broken_off: bool) {
    let mut cluster = lossy(3, |_| {});
    cluster.run(1, "write=k:u");
    cluster.run_for(Duration::from_secs(1));
    cluster.expel(&[1]);
    cluster.run_for(Duration::from_secs(1));
    cluster.begin_life(1);
    cluster.set_role(1, Role::Shadow);
    cluster.run_for(Duration::from_secs(1));
    assert!(cluster.machine(1).is_caught_up());
    cluster.set_role(1, Role::Active);
    cluster.run_for(Duration::from_secs(1));
    cluster.run(2, "write=l:u");
    cluster.run_for(Duration::from_secs(1));
    let before = [2, 3].map(|node| (node, cluster.log_of(node, 0).len()));
    let tag = cluster.submit(2, "write=k:v write=l:v");
    cluster.run_for(Duration::from_millis(100));
    cluster.assert_done(tag);
    cluster.run_for(Duration::from_secs(2));
    before.into_iter().for_each(|(node, kept)| cluster.lose_power_but_keep(node, kept));
    cluster.restart(3, 103);
    cluster.install(&[(1, Role::Active), (2, Role::Down), (3, Role::Shadow)]);
    cluster.run_for(Duration::from_secs(2));
    cluster.restart(2, 104);
    cluster.set_role(2, Role::Shadow);
    if is_broken_off {
        let asked = Cell::new(false);
        cluster.run_some(Duration::from_millis(200), |packet| {
            let asks = packet.from.0 == 1 && packet.kind() == "compare";
            asked.set(asked.get() || asks);
            !asks
        });
        assert!(asked.get(), "node 1 takes in what the others have");
        cluster.renew_view();
    }
    cluster.run_for(Duration::from_secs(2));
    cluster.activate_shadows();
    cluster.assert_everywhere("k", Some("v"));
    cluster.assert_everywhere("l", Some("v"));
}

/// Nodes 2 and 3 lose power soon after an epoch has begun, and their logs have nothing of it. They have gone on
/// in it, perhaps; once nobody is missing, what node 1 knows of it is all there is.
#[test]
fn members_that_have_forgotten_the_whole_epoch_are_not_waited_for() {
    for decided in [false, true] {
        let mut cluster = lossy(3, |_| {});
        cluster.run(1, "write=k:u");
        cluster.run_for(Duration::from_secs(1));
        let before = [2, 3].map(|node| (node, cluster.log_of(node, 0).len()));
        cluster.renew_view();
        cluster.run_for(Duration::from_millis(200));
        if decided {
            let tag = cluster.submit(2, "append=k:v");
            cluster.run_some(Duration::from_millis(200), |packet| !packet.is(2, 1, "any"));
            cluster.assert_done(tag);
        }
        before.into_iter().for_each(|(node, kept)| cluster.lose_power_but_keep(node, kept));
        cluster.restart(3, 103);
        cluster.install(&[(1, Role::Active), (2, Role::Down), (3, Role::Shadow)]);
        cluster.run_for(Duration::from_secs(2));
        assert!(cluster.machine(1).stuck().is_some(), "node 2 may have gone on, and know of it");
        cluster.restart(2, 104);
        cluster.set_role(2, Role::Shadow);
        cluster.run_for(Duration::from_secs(2));
        cluster.activate_shadows();
        cluster.run(3, "append=k:w");
        cluster.run_for(Duration::from_secs(1));
        cluster.assert_everywhere("k", Some("uw"));
    }
}

/// Node 3 has the outcome of an epoch on disk when its power goes, and nothing of what it has done in it: it has
/// decided with node 2, which was killed, and keeps all. Node 1 has not heard of it, and waits for node 2.
#[test]
fn who_has_adopted_an_epoch_and_forgotten_what_it_did_there_is_no_vote() {
    let mut cluster = lossy(3, |_| {});
    cluster.run(1, "write=k:u");
    cluster.run_for(Duration::from_secs(1));
    let former = cluster.log_of(3, 0).len();
    cluster.renew_view();
    cluster.run_some(Duration::from_millis(200), |packet| !packet.is(0, 3, "release"));
    let adopted = cluster.log_of(3, 0).len();
    assert!(adopted > former, "the log has what node 3 has adopted");
    cluster.run_for(Duration::from_millis(200));
    let tag = cluster.submit(2, "append=k:v");
    cluster.run_some(Duration::from_millis(200), |packet| !packet.is(2, 1, "any"));
    cluster.assert_done(tag);
    let killed = cluster.log_of(2, 0).len();
    cluster.lose_power_but_keep(2, killed);
    cluster.lose_power_but_keep(3, adopted);
    cluster.restart(3, 103);
    cluster.install(&[(1, Role::Active), (2, Role::Down), (3, Role::Shadow)]);
    cluster.run_for(Duration::from_secs(2));
    assert!(cluster.machine(1).stuck().is_some(), "node 2 keeps what it has decided with node 3");
    cluster.restart(2, 104);
    cluster.set_role(2, Role::Shadow);
    cluster.run_for(Duration::from_secs(2));
    cluster.activate_shadows();
    cluster.assert_everywhere("k", Some("uv"));
}

/// All come back, and then nodes 2 and 3 once more, of which one lane has lost the end of its log: perhaps only
/// the word that its promises wait. So node 1 asks both lanes what they have. If nothing is lost, it asks none.
#[test]
fn a_lane_that_is_sure_answers_beside_one_that_is_not() {
    let ends = (0..2).flat_map(|lane| (0..4).map(move |entries| (lane, entries)));
    for (lane, entries) in ends {
        let replicas = Replicas { logs: Logs::Sync, ..Replicas::new(2, |_| {}) };
        let mut cluster = Cluster::of(replicas, 3, |_| 0, u64::from);
        let keys = ["k", "l", "m", "n"];
        keys.iter().for_each(|key| _ = cluster.run(1, &format!("write={key}:u")));
        cluster.run_for(Duration::from_secs(1));
        cluster.flush_logs();
        cluster.lose_the_first_three(None);
        cluster.run_for(Duration::from_secs(1));
        for node in [2, 3] {
            cluster.cut_power_unflushed(node);
            cluster.rot_end(node, lane, entries);
            cluster.restart(node, 200 + u64::from(node));
        }
        cluster.pool.clear();
        cluster.install(&[(1, Role::Active), (2, Role::Shadow), (3, Role::Shadow)]);
        cluster.run_for(Duration::from_secs(2));
        assert!(cluster.machine(1).stuck().is_none());
        for node in [2, 3] {
            assert!(cluster.machine(node).is_caught_up(), "{entries} of lane {lane} are lost");
            cluster.set_role(node, Role::Active);
            cluster.run_for(Duration::from_secs(1));
        }
        let asked = cluster.probed("meerkat: takes in what a shadow has kept");
        assert!(entries > 0 || asked == 0, "nothing is lost");
        for key in keys {
            cluster.run(2, &format!("append={key}:v"));
            cluster.run_for(Duration::from_secs(1));
            cluster.assert_everywhere(key, Some("uv"));
        }
    }
}

pub(crate) fn two_groups(config: &mut Config) {
    let group = |nodes: [u16; 3]| Some(nodes.into_iter().map(NodeId).collect());
    config.partitions = vec![group([1, 2, 3]), group([4, 5, 6])];
}

/// The same of a member: node 4 has no replica of the key, and lives.
#[test]
fn what_a_member_has_ended_outlives_replicas_that_have_lost_it() {
    for written in [&[][..], &[3], &[1, 3], &ALL] {
        let mut cluster = lossy(6, two_groups);
        let mut keys = (0..).map(|n| format!("k{n}"));
        let key = keys.find(|key| !cluster.holds(4, key)).expect("half of all keys are away");
        cluster.run(1, &format!("write={key}:u"));
        let tag = cluster.submit(4, &format!("append={key}:v"));
        cluster.deliver_some(|packet| packet.kind() == "get" || packet.kind() == "values");
        cluster.vote_and_write(4, written);
        cluster.assert_done(tag);
        cluster.lose_the_first_three(None);
        cluster.run_for(Duration::from_secs(2));
        for node in ALL {
            assert_eq!(cluster.stored(node, &key).as_deref(), Some("uv"), "{written:?}");
        }
        assert_eq!(cluster.gauge(4, "attempts"), 0);
        cluster.run(5, &format!("append={key}:w"));
        cluster.run_for(Duration::from_secs(2));
        cluster.assert_quiet();
    }
}

/// The same of a member's second lane, which has its lane 0 report what it has decided.
#[test]
fn what_any_lane_of_a_member_has_ended_outlives_replicas_that_have_lost_it() {
    let replicas = Replicas { logs: Logs::Async, ..Replicas::new(2, two_groups) };
    let mut cluster = Cluster::of(replicas, 6, |_| 0, u64::from);
    let mut keys = (0..).map(|n| format!("k{n}"));
    let key = keys.find(|key| !cluster.holds(4, key)).expect("half of all keys are away");
    let tag = cluster.tag();
    cluster.act_on(4, 1, |machine, now, outbox| {
        machine.submit(now, tag, 1, txn(&format!("write={key}:v")), outbox);
    });
    cluster.deliver_some(|packet| packet.kind() == "get" || packet.kind() == "values");
    cluster.vote_and_write(4, &[]);
    cluster.assert_done(tag.0);
    cluster.lose_the_first_three(None);
    cluster.run_for(Duration::from_secs(2));
    for node in ALL {
        assert_eq!(cluster.stored(node, &key).as_deref(), Some("v"), "lane 0 has installed it");
    }
    let gauges = cluster.hosts[&4].machines[1].gauges();
    assert!(gauges.contains(&("attempts", 0)), "{gauges:?}");
}
