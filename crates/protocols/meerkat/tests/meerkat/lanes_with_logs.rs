//! Nodes of two lanes over the real store: the lanes write the same keys, each in a log of its own, and no
//! order between these logs comes back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_check::Seeds;
use quorate_harness::{Cluster, Logs, Outbox, Process, Subject};
use quorate_machine::{Event, Outcome, Record as _, Request, Rng, Table};
use quorate_meerkat::{Config, Meerkat, Message, Meta};
use quorate_storage::{Keeps, SharedTable, Store};
use quorate_types::{Duration, Epoch, Incarnation, LaneId, Now, Role, hash_key};
use quorate_wire::Writer;

use crate::entries::value_text;
use crate::packets::{id_of, kind_name};
use crate::support::{MLT, serializable};
use crate::txn::{Txn, txn};

const LANES: u16 = 2;
const NODES: [u16; 3] = [1, 2, 3];
const SETTLE: Duration = Duration::from_millis(1_500);

/// Machines of one process share a store.
#[derive(Default)]
struct Shared {
    stores: RefCell<BTreeMap<Incarnation, Arc<Store<Meta>>>>,
    /// From how many bytes on collections are large in processes that start from now on.
    packed_bytes_max: Cell<usize>,
}

impl Subject for Shared {
    type Machine = Meerkat<SharedTable<Meta>, Txn>;

    fn lanes(&self) -> u16 {
        LANES
    }

    fn start(&self, process: Process) -> Self::Machine {
        let Process { node, incarnation, lane, seed, .. } = process;
        let mut config = Config::new(node, incarnation, lane, LANES, seed);
        config.message_loss_timeout = MLT;
        serializable(&mut config);
        let mut stores = self.stores.borrow_mut();
        let keeps =
            Keeps { packed_bytes_max: Some(self.packed_bytes_max.get()), ..Keeps::default() };
        let store = stores.entry(incarnation).or_insert_with(|| Store::keeping(LANES, keeps));
        Meerkat::new(config, store.shared_table(lane.0))
    }

    fn epoch(machine: &Self::Machine, _told: Epoch) -> Epoch {
        machine.epoch()
    }

    fn encode(message: &Message<'_>, bytes: &mut Vec<u8>) {
        message.encode(&mut Writer(bytes));
    }

    fn decode(bytes: &[u8]) -> Message<'_> {
        Message::decode(bytes).expect("machines send well-formed messages")
    }

    fn kind(message: &Message<'_>) -> &'static str {
        kind_name(&message.kind)
    }

    fn begin_life(
        machine: &mut Self::Machine,
        now: Now,
        incarnation: Incarnation,
        outbox: &mut Outbox<Self>,
    ) {
        machine.reset(now, incarnation, outbox);
    }
}

struct Nodes(Cluster<Shared>);

impl Nodes {
    fn new() -> Self {
        Self::of(NODES.len() as u16, Logs::Sync)
    }

    fn of(nodes: u16, logs: Logs) -> Self {
        let mut cluster = Cluster::new(Shared::default());
        cluster.keep_logs(logs);
        (1..=nodes).for_each(|node| cluster.start(node, u64::from(node)));
        cluster.found();
        cluster.deliver_all();
        Self(cluster)
    }

    /// Node 3 has lost power with a key in the log of a lane; the others have deleted it since, by another lane,
    /// and forgotten that they have.
    fn that_have_forgotten(key: &str, lane: u16) -> Self {
        let mut nodes = Self::new();
        nodes.run(1, lane, &format!("write={key}:old write=stays:1"));
        nodes.0.run_for(SETTLE);
        nodes.0.cut_power_unflushed(3);
        nodes.0.set_role(3, Role::Down);
        nodes.0.deliver_all();
        nodes.run(1, 1 - lane, &format!("del={key}"));
        for _ in 0..3 {
            for node in [1, 2] {
                (0..LANES).for_each(|lane| nodes.0.save(node, lane));
            }
            nodes.0.run_for(SETTLE);
        }
        assert!(!nodes.has_record(1, key));
        nodes
    }

    fn submit(&mut self, node: u16, lane: u16, text: &str) -> u64 {
        let (tag, command) = (self.0.tag(), txn(text));
        let request = Request { origin: 1_000 + tag.0, command };
        self.0.step_on(node, lane, Event::Request { tag, request });
        tag.0
    }

    fn run(&mut self, node: u16, lane: u16, text: &str) {
        let tag = self.submit(node, lane, text);
        self.0.deliver_all();
        assert!(matches!(self.0.outcome(tag), Some(Outcome::Done(_))), "{text}");
    }

    /// All vote for what a lane of node 1 is asked for, and their votes get lost.
    fn vote_and_hear_no_end(&mut self, lane: u16, text: &str) {
        self.submit(1, lane, text);
        for node in [2, 3] {
            self.0.deliver(1, node, "validate");
        }
        self.0.flush_logs();
        self.0.pool.clear();
    }

    fn stored(&mut self, node: u16, key: &str) -> Option<String> {
        let table = self.0.machine(node).table_mut();
        let record = table.lock_existing(key.as_bytes())?;
        Some(value_text(record.content()?, record.large()))
    }

    fn has_record(&mut self, node: u16, key: &str) -> bool {
        self.0.machine(node).table_mut().lock_existing(key.as_bytes()).is_some()
    }

    #[track_caller]
    fn assert_everywhere(&mut self, key: &str, value: Option<&str>) {
        for node in NODES {
            assert_eq!(self.stored(node, key).as_deref(), value, "{key} at {node}");
        }
    }

    /// The power goes everywhere, and all come back: lane 0 first, or lane 1 with an odd seed.
    fn lose_power_and_begin(&mut self, seed: u64) {
        for node in NODES {
            self.0.cut_power_unflushed(node);
            self.0.restart(node, seed);
        }
        self.0.install(&NODES.map(|node| (node, Role::Active)));
    }

    fn lose_power(&mut self) {
        self.lose_power_and_begin(50);
        self.0.deliver_all();
    }
}

/// Keys whose records lie with each of the lanes, whichever lane writes them.
fn keys() -> Vec<String> {
    let all: Vec<String> = (0..4).map(|number| format!("k{number}")).collect();
    let lane = |key: &String| LaneId((hash_key(key.as_bytes()) % u64::from(LANES)) as u16);
    assert!(all.iter().any(|key| lane(key) != lane(&all[0])), "keys of both lanes");
    all
}

#[test]
fn what_each_lane_has_written_comes_back() {
    let mut nodes = Nodes::new();
    for (number, key) in keys().iter().enumerate() {
        nodes.run(1, 0, &format!("write={key}:a{number}"));
        nodes.run(2, 1, &format!("append={key}:b"));
    }
    // Each lane's snapshot has what its log had.
    for node in NODES {
        nodes.0.save(node, 1);
    }
    nodes.run(3, 0, "append=k0:c");
    nodes.lose_power();
    nodes.assert_everywhere("k0", Some("a0bc"));
    for number in 1..4 {
        nodes.assert_everywhere(&format!("k{number}"), Some(&format!("a{number}b")));
    }
    nodes.run(1, 1, "append=k0:d");
    nodes.assert_everywhere("k0", Some("a0bcd"));
}

/// The lanes change one list in turn, so each delta has its base in the other lane's log.
#[test]
fn deltas_find_their_bases_in_the_other_lanes_log() {
    for saves in [None, Some(0), Some(1)] {
        let mut nodes = Nodes::new();
        nodes.run(1, 0, "put=l:,0");
        for number in 1..8 {
            nodes.run(1 + number % 3, number % 2, &format!("push=l:,{number}"));
            if number == 5
                && let Some(lane) = saves
            {
                NODES.into_iter().for_each(|node| nodes.0.save(node, lane));
            }
        }
        nodes.0.run_for(SETTLE);
        nodes.lose_power();
        nodes.assert_everywhere("l", Some(",0,1,2,3,4,5,6,7"));
    }
}

/// Node 3 loses its power when one of its lanes has written that it goes on in an epoch, and the lane that has
/// the merged record has not. The others have gone on from that epoch when it comes back.
#[test]
fn a_base_has_nothing_that_no_log_has() {
    let mut nodes = Nodes::new();
    nodes.run(1, 0, "write=k:u");
    nodes.vote_and_hear_no_end(0, "append=k:v");
    nodes.0.install(&NODES.map(|node| (node, Role::Active)));
    nodes.0.deliver_some(|packet| !packet.is(1, 3, "release"));
    nodes.0.deliver(1, 3, "release");
    assert!(nodes.0.deliver_mail(3, 0, 1) && nodes.0.flush_lane(3, 1));
    nodes.0.cut_power_unflushed(3);
    nodes.0.set_role(3, Role::Down);
    nodes.0.run_for(SETTLE);
    nodes.0.restart(3, 77);
    nodes.0.set_role(3, Role::Shadow);
    nodes.0.run_for(SETTLE);
    nodes.0.set_role(3, Role::Active);
    nodes.0.run_for(SETTLE);
    nodes.assert_everywhere("k", Some("uv"));
    nodes.lose_power();
    nodes.assert_everywhere("k", Some("uv"));
}

/// A list comes back whole from the log of lane 1, smaller than large ones are, and the change that made it in
/// the merged record, which lane 0 keeps. Neither lane may leave it to the other one when it takes a snapshot.
#[test]
fn a_value_is_kept_by_the_lane_that_has_all_of_it() {
    let mut nodes = Nodes::new();
    nodes.run(1, 0, "put=l:,0");
    nodes.run(2, 1, "push=l:,1");
    nodes.0.run_for(SETTLE);
    nodes.run(2, 1, "push=l:,2");
    nodes.0.subject.packed_bytes_max.set(1_000);
    for node in NODES {
        nodes.0.save(node, 1);
        nodes.0.cut_power_unflushed(node);
        nodes.0.restart(node, 50 + u64::from(node));
    }
    nodes.0.install(&NODES.map(|node| (node, Role::Active)));
    NODES.into_iter().for_each(|node| nodes.0.save(node, 0));
    nodes.0.deliver_all();
    NODES.into_iter().for_each(|node| nodes.0.save(node, 1));
    nodes.assert_everywhere("l", Some(",0,1,2"));
    nodes.lose_power();
    nodes.assert_everywhere("l", Some(",0,1,2"));
}

/// The merged record of an epoch has a change by lane 1, and that of the next epoch has taken its place. When all
/// come back, lane 0 has the change without its base, and takes a snapshot before anybody goes on.
#[test]
fn a_snapshot_has_what_waits_for_a_base_of_another_lane() {
    let mut nodes = Nodes::new();
    nodes.run(1, 1, "put=l:,0");
    nodes.0.run_for(SETTLE);
    nodes.vote_and_hear_no_end(1, "push=l:,1 write=w:1");
    let all = NODES.map(|node| (node, Role::Active));
    for _ in 0..2 {
        nodes.0.install(&all);
        nodes.0.deliver_all();
        nodes.0.run_for(SETTLE);
    }
    nodes.assert_everywhere("l", Some(",0,1"));
    for seed in 80..84 {
        nodes.lose_power_and_begin(seed);
        NODES.into_iter().for_each(|node| nodes.0.save(node, 0));
    }
    nodes.lose_power();
    nodes.assert_everywhere("l", Some(",0,1"));
    nodes.assert_everywhere("w", Some("1"));
}

#[test]
fn a_deletion_outlives_what_another_lanes_log_has_of_the_key() {
    let mut nodes = Nodes::new();
    nodes.run(1, 0, "write=k:old");
    nodes.0.run_for(SETTLE);
    nodes.run(2, 1, "del=k");
    nodes.0.run_for(SETTLE);
    NODES.into_iter().for_each(|node| nodes.0.save(node, 1));
    nodes.0.run_for(SETTLE);
    NODES.into_iter().for_each(|node| nodes.0.save(node, 1));
    nodes.lose_power();
    nodes.assert_everywhere("k", None);
    // When both lanes' snapshots are younger than the deletion, it goes.
    nodes.0.run_for(SETTLE);
    for _ in 0..2 {
        for node in NODES {
            (0..LANES).for_each(|lane| nodes.0.save(node, lane));
        }
        nodes.0.run_for(SETTLE);
    }
    assert!(NODES.into_iter().all(|node| !nodes.has_record(node, "k")));
    nodes.lose_power();
    nodes.assert_everywhere("k", None);
}

/// With five replicas the sets of what has committed are kept while something is undecided that came before. A
/// snapshot of lane 0 has them, too, and lane 1 has deleted the key since: when the deletion is forgotten, nobody
/// sets the key again.
#[test]
fn a_footprint_does_not_bring_back_what_was_deleted() {
    let mut nodes = Nodes::of(5, Logs::Sync);
    let moment = Duration::from_micros(10);
    nodes.submit(1, 0, "write=k:old");
    nodes.0.advance(moment);
    nodes.submit(2, 1, "del=k");
    nodes.0.advance(moment);
    nodes.submit(5, 0, "write=open:1");
    let open = id_of(&nodes.0.deliver(5, 3, "validate").message().kind);
    nodes.0.advance(moment);
    let settle = |nodes: &mut Nodes| {
        nodes.0.run_some(SETTLE, |packet| id_of(&packet.message().kind) != open);
    };
    settle(&mut nodes);
    assert!(nodes.has_record(3, "k") && nodes.stored(3, "k").is_none(), "it was deleted");
    for _ in 0..3 {
        (0..LANES).for_each(|lane| nodes.0.save(3, lane));
        settle(&mut nodes);
    }
    assert!(!nodes.has_record(3, "k"), "the deletion is forgotten");
    // Nothing is undecided any more.
    nodes.0.run_for(SETTLE);
    nodes.0.save(3, 1);
    nodes.0.cut_power_unflushed(3);
    nodes.0.restart(3, 50);
    assert_eq!(nodes.stored(3, "k"), None);
}

/// Promises wait for nothing, and the log of node 2 lacks what lane 0 has written. It takes that in before it goes
/// on in an epoch, through either lane, which compares the key; and that one's snapshot has it, though lane 0 wrote it.
#[test]
fn what_was_taken_in_stays_with_the_lane_that_has_it() {
    let mut nodes = Nodes::of(3, Logs::Async);
    nodes.0.flush_logs();
    let begun = nodes.0.log_of(2, 0).len();
    for key in keys() {
        nodes.run(1, 0, &format!("write={key}:v"));
    }
    nodes.0.run_for(SETTLE);
    nodes.0.flush_logs();
    let lost = nodes.0.log_of(2, 0).len() - begun;
    NODES.into_iter().for_each(|node| nodes.0.cut_power_unflushed(node));
    nodes.0.rot_end(2, 0, lost);
    NODES.into_iter().for_each(|node| nodes.0.restart(node, 50));
    nodes.0.install(&NODES.map(|node| (node, Role::Active)));
    nodes.0.deliver_all();
    let all_are_there =
        |nodes: &mut Nodes| keys().iter().all(|key| nodes.stored(2, key).as_deref() == Some("v"));
    assert!(
        all_are_there(&mut nodes) && nodes.0.probed("meerkat: takes in what its log has lost") > 0
    );
    nodes.0.save(2, 1);
    nodes.0.flush_logs();
    nodes.0.cut_power_unflushed(2);
    nodes.0.restart(2, 50);
    assert!(all_are_there(&mut nodes));
}

/// A chain of changes is in the logs of both lanes. When all come back the lane that has installed it has all of it.
#[test]
fn what_has_waited_for_another_lanes_log_is_in_one_log_then() {
    let mut nodes = Nodes::new();
    nodes.run(1, 0, "put=l:,0");
    nodes.run(1, 1, "push=l:,1");
    nodes.run(1, 0, "push=l:,2");
    nodes.0.run_for(SETTLE);
    nodes.lose_power_and_begin(50);
    nodes.0.deliver_all();
    nodes.assert_everywhere("l", Some(",0,1,2"));
    let has = |entry: &[u8], item: &[u8]| entry.windows(item.len()).any(|part| part == item);
    let whole = |entry: &[u8]| has(entry, b",0") && has(entry, b",1") && has(entry, b",2");
    assert!(NODES.into_iter().all(|node| nodes.0.log_of(node, 0).into_iter().any(whole)));
}

/// A learner lets go of what the others have deleted; another lane's log has it, or the same one's. Each lane
/// compares its part of the keys.
#[test]
fn what_left_the_base_stays_away_whichever_log_has_it() {
    let keys = keys();
    for (lane, key) in (0..LANES).flat_map(|lane| keys.iter().map(move |key| (lane, key))) {
        let mut nodes = Nodes::that_have_forgotten(key, lane);
        nodes.0.restart(3, 7);
        nodes.0.set_role(3, Role::Shadow);
        nodes.0.run_for(SETTLE);
        nodes.0.set_role(3, Role::Active);
        nodes.0.run_for(SETTLE);
        for lane in (0..LANES).rev() {
            nodes.0.save(3, lane);
            nodes.lose_power();
            nodes.assert_everywhere(key, None);
            nodes.assert_everywhere("stays", Some("1"));
        }
    }
}

/// All lose power, nodes 1 and 2 the last value of a key with it, and node 3 comes back when they have gone on
/// without: it takes over the value that they have. The one that is lost stays in the log of the lane that has
/// appended it, so the lane that has copied asks for snapshots, and with them it is gone.
#[test]
fn a_lost_version_leaves_the_logs_of_all_lanes_with_their_snapshots() {
    let keys = keys();
    let mut comes_back = 0;
    for (lane, key) in (0..LANES).flat_map(|lane| keys.iter().map(move |key| (lane, key))) {
        for saves in [false, true] {
            let mut nodes = Nodes::of(3, Logs::Async);
            nodes.run(1, 0, &format!("write={key}:kept"));
            nodes.0.run_for(SETTLE);
            let length = |nodes: &Nodes, node, lane| nodes.0.log_of(node, lane).len();
            let kept = [1, 2].map(|node| [0, 1].map(|lane| length(&nodes, node, lane)));
            nodes.run(3, lane, &format!("write={key}:lost"));
            NODES.iter().for_each(|node| nodes.0.cut_power_unflushed(*node));
            for (node, kept) in [1, 2].into_iter().zip(kept) {
                for (lane, kept) in (0..LANES).zip(kept) {
                    nodes.0.rot_end(node, lane, length(&nodes, node, lane) - kept);
                }
                nodes.0.restart(node, 51 + u64::from(node));
            }
            nodes.0.install(&[(1, Role::Active), (2, Role::Active), (3, Role::Down)]);
            nodes.0.run_for(SETTLE);
            nodes.0.restart(3, 57);
            assert_eq!(nodes.stored(3, key).as_deref(), Some("lost"));
            nodes.0.set_role(3, Role::Shadow);
            nodes.0.run_for(SETTLE);
            nodes.assert_everywhere(key, Some("kept"));
            let machines = |nodes: &mut Nodes| {
                let of = |lane| {
                    let machine = nodes.0.machine_on(3, lane);
                    (machine.is_caught_up(), machine.outdates_logs())
                };
                (0..LANES).map(of).collect::<Vec<_>>()
            };
            let lanes = machines(&mut nodes);
            assert!(lanes.iter().all(|(is_caught_up, _)| *is_caught_up));
            assert!(lanes.iter().any(|(_, outdates)| *outdates), "{key} of lane {lane}");
            if saves {
                (0..LANES).for_each(|lane| nodes.0.save(3, lane));
                (0..LANES).for_each(|lane| nodes.0.machine_on(3, lane).logs_renewed());
                assert!(machines(&mut nodes).iter().all(|(_, outdates)| !*outdates));
            }
            nodes.0.flush_log(3);
            nodes.0.cut_power_unflushed(3);
            nodes.0.restart(3, 58);
            let stored = nodes.stored(3, key);
            match saves {
                true => assert_eq!(stored.as_deref(), Some("kept"), "{key} of lane {lane}"),
                false => comes_back += usize::from(stored.as_deref() == Some("lost")),
            }
        }
    }
    assert!(comes_back > 0, "it takes snapshots");
}

/// A snapshot is taken while a learner compares, and has a key of which the learner lets go later. The deletion is
/// not forgotten with that snapshot: another lane's log may still have the key.
#[test]
fn what_leaves_the_base_after_a_snapshot_stays_away() {
    let keys = keys();
    for (lane, key) in (0..LANES).flat_map(|lane| keys.iter().map(move |key| (lane, key))) {
        let mut nodes = Nodes::that_have_forgotten(key, lane);
        nodes.0.restart(3, 7);
        nodes.0.set_role(3, Role::Shadow);
        // It hears of the floor, and of no difference.
        for _ in 0..6 {
            nodes.0.run_some(SETTLE / 6, |packet| {
                !packet.is(1, 3, "compared") && !packet.is(2, 3, "compared")
            });
            assert!(nodes.has_record(3, key));
            (0..LANES).for_each(|lane| nodes.0.save(3, lane));
        }
        nodes.0.run_for(SETTLE);
        nodes.0.set_role(3, Role::Active);
        nodes.0.run_for(SETTLE);
        for lane in (0..LANES).rev() {
            nodes.0.save(3, lane);
            nodes.0.run_for(SETTLE);
            nodes.lose_power();
            nodes.assert_everywhere(key, None);
            nodes.assert_everywhere("stays", Some("1"));
        }
    }
}

/// Random schedules: what was answered is there, once, in lists and in values; all replicas agree.
fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut nodes = Nodes::new();
    let mut asked: Vec<(u64, String)> = Vec::new();
    for step in 0..250 {
        let (node, lane) = (1 + rng.below(3) as u16, rng.below(2) as u16);
        match rng.below(100) {
            0..12 => {
                let keys = (0..=rng.below(2)).map(|_| rng.below(3)).collect::<Vec<_>>();
                let words = keys.iter().map(|key| match key {
                    2 => format!("push=l:,{step};"),
                    key => format!("append=k{key}:,{step};"),
                });
                let mut words: Vec<String> = words.collect();
                words.dedup();
                let text = words.join(" ");
                asked.push((nodes.submit(node, lane, &text), text));
            }
            12..14 => drop(nodes.0.save_some(node, lane, rng.below(200) as usize)),
            14..30 => drop(nodes.0.flush_lane(node, lane)),
            30..36 => nodes.0.tick(Duration::from_micros(rng.below(9_000))),
            36..46 => drop(nodes.0.deliver_any_mail(&mut rng)),
            46 if rng.chance(1, 2) => {
                for node in NODES {
                    nodes.0.cut_power(node, &mut rng);
                }
                nodes.0.pool.clear();
                for node in NODES {
                    nodes.0.restart(node, rng.next_u64() >> 16);
                }
                nodes.0.install(&NODES.map(|node| (node, Role::Active)));
            }
            _ if !nodes.0.pool.is_empty() => {
                let at = rng.below((nodes.0.pool.len() as u64).min(6)) as usize;
                let packet = nodes.0.pool.remove(at);
                if !rng.chance(1, 30) {
                    nodes.0.inject(&packet);
                }
            }
            _ => {}
        }
    }
    nodes.0.run_for(SETTLE * 2);
    for key in ["k0", "k1", "l"] {
        let held = nodes.stored(1, key);
        nodes.assert_everywhere(key, held.as_deref());
        let held = held.unwrap_or_default();
        for (tag, text) in &asked {
            let words: Vec<&str> =
                text.split(' ').filter(|word| word.contains(&format!("={key}:"))).collect();
            let Some(token) = words.first().and_then(|word| word.split_once(':')) else { continue };
            let found = held.matches(token.1).count();
            let is_done = matches!(nodes.0.outcome(*tag), Some(Outcome::Done(_)));
            assert!(found <= words.len(), "{text} took effect twice: {held}");
            assert!(!is_done || found == words.len(), "{text} was answered: {key} is {held}");
        }
    }
}

#[test]
fn lanes_survive_the_power_together() {
    for seed in Seeds::new(0..150) {
        run(seed);
    }
}
