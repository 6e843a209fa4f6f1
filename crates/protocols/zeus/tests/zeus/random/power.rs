//! Random runs of nodes that keep logs: power goes at any moment, of one node or of all.

use std::collections::{BTreeMap, BTreeSet};

use quorate_harness::Logs;
use quorate_machine::{Content, ValueKind};
use quorate_rifl::{Call, LeaseId};
use quorate_types::{MemberNumber, Role, Timestamp, WriterId, placement};
use quorate_wire::Reader;

use super::{PLAN, Plan, Run, sweep};
use crate::support::{Written, text};
use crate::txn::{appended, value_text};

/// What a transaction leaves in a key, as text: all of it, or what it appends to that version.
type LoggedValue = (Option<String>, Option<Timestamp>);

/// A transaction in a log.
struct Logged {
    by: (MemberNumber, u64),
    version: Timestamp,
    call: Option<(LeaseId, u64)>,
    items: Vec<(String, LoggedValue)>,
}

/// Reads an entry of a lane's log if it is a transaction.
fn read_update(lane: u8, entry: &[u8]) -> Option<Logged> {
    let mut reader = Reader(entry);
    let is_update = reader.u8().ok()? == 2;
    let flags = reader.u8().ok().filter(|_| is_update)?;
    let by = (MemberNumber(reader.u32().ok()?), reader.u64().ok()?);
    let (_, version) = (reader.u32().ok()?, reader.u64().ok()?);
    let version = Timestamp::new(version, WriterId::new(by.0, lane));
    if flags & 1 != 0 {
        for _ in 0..reader.u32().ok()? {
            reader.u64().ok()?;
        }
    }
    let mut call = None;
    if flags & 2 != 0 {
        reader.u8().ok()?;
        let named = Call::decode(&mut reader).ok()?;
        call = Some((named.lease, named.sequence));
        reader.u64().ok()?;
        reader.bytes().ok()?;
    }
    let mut items = Vec::new();
    while !reader.0.is_empty() {
        let (key, flags) = (text(reader.bytes().ok()?), reader.u8().ok()?);
        let base = if flags & 2 != 0 { Some(reader.timestamp().ok()?) } else { None };
        let mut value = None;
        if flags & 1 != 0 {
            let flags = reader.u8().ok()?;
            let kind = ValueKind::from_u8(reader.u8().ok()?)?;
            let bytes = reader.bytes().ok()?;
            if flags & 2 != 0 {
                reader.u64().ok()?;
            }
            let content = Content { bytes, kind, expire_at: None };
            value = Some(if base.is_some() { appended(bytes) } else { value_text(content, None) });
        }
        items.push((key, (value, base)));
    }
    Some(Logged { by, version, call, items })
}

impl Run {
    /// The next life of an expelled or crashed node, as a shadow.
    pub(super) fn come_back(&mut self, node: u16) {
        if self.cluster.hosts[&node].up {
            self.cluster.begin_life(node);
        } else {
            let seed = self.rng.next_u64() >> 16;
            let ahead = (self.rng.below(self.plan.skew.max(1)) * 1000) as i64;
            if self.plan.logs != Logs::None && self.rng.chance(3, 4) {
                self.cluster.restart_ahead(node, seed, ahead);
            } else {
                self.cluster.start_ahead(node, seed, ahead);
            }
        }
        self.decide(node, Role::Shadow);
    }

    pub(super) fn end_process(&mut self, node: u16) {
        self.note_log(node);
        if self.plan.logs != Logs::None && self.rng.chance(1, 2) {
            self.cluster.cut_power(node, &mut self.rng);
        } else {
            self.cluster.crash(node);
        }
        self.note_given_up();
    }

    /// A node without followers tells nobody what its transactions have written. What its log has may come
    /// back all the same.
    pub(super) fn note_log(&mut self, node: u16) {
        if self.plan.logs == Logs::None {
            return;
        }
        let lanes = 0..self.plan.lanes;
        let logs = lanes.map(|lane| (lane as u8, self.cluster.log_of(node, lane)));
        let written: Vec<Logged> = logs
            .flat_map(|(lane, log)| {
                log.into_iter().filter_map(move |entry| read_update(lane, entry))
            })
            .collect();
        for Logged { by, version, call, items } in written {
            let known = &mut self.cluster.subject.written;
            let value = |known: &BTreeMap<Timestamp, Written>, key: &str, item: &LoggedValue| {
                let (value, base) = item;
                let Some(base) = base else { return Some(value.clone()) };
                let keys = &known.get(base)?.keys;
                let (_, before) = keys.iter().find(|(name, _)| name == key)?;
                Some(Some(before.clone()? + value.as_deref()?))
            };
            let count = items.len();
            let keys: Vec<_> = items
                .into_iter()
                .filter_map(|(key, item)| Some((value(known, &key, &item)?, key)))
                .map(|(value, key)| (key, value))
                .collect();
            if keys.len() == count {
                known.entry(version).or_insert(Written { by, keys });
            }
            if let Some(name) = call {
                self.cluster.subject.attempts.entry(name).or_default().insert(version);
            }
        }
    }

    /// What disks do while a cluster runs; sometimes all nodes lose power.
    pub(super) fn disks(&mut self) {
        let node = self.node();
        match self.rng.below(400) {
            0 => {
                self.lose_power();
                if self.rng.chance(1, 3) {
                    self.soon();
                    self.lose_power();
                }
            }
            1..=30 if self.cluster.hosts[&node].up => {
                let bytes = self.rng.below(200) as usize;
                let lane = self.rng.below(u64::from(self.plan.lanes)) as u16;
                self.cluster.save_some(node, lane, bytes);
            }
            at if (31..31 + self.plan.flushes).contains(&at) => {
                let lane = self.rng.below(u64::from(self.plan.lanes)) as u16;
                self.cluster.flush_lane(node, lane);
            }
            _ => {}
        }
    }

    /// A little later. Some lanes have saved all that they have restored, before a view has come or after.
    fn soon(&mut self) {
        for _ in 0..self.rng.below(40) {
            let (node, lane) = (self.node(), self.rng.below(u64::from(self.plan.lanes)) as u16);
            if self.cluster.hosts[&node].up && self.rng.chance(1, 20) {
                self.cluster.save(node, lane);
            }
            self.disorder.hear_news(&mut self.rng, &mut self.cluster);
            self.disorder.deliver(&mut self.rng, &mut self.cluster);
            self.cluster.deliver_any_mail(&mut self.rng);
            if self.rng.chance(self.plan.flushes, 400) {
                self.cluster.flush_lane(node, lane);
            }
        }
    }

    /// Nodes that keep power while all active members of some group lose it. Often nobody does.
    fn spared(&mut self) -> BTreeSet<u16> {
        let nodes = self.nodes();
        let mut spared: BTreeSet<u16> = nodes.filter(|_| self.rng.chance(1, 4)).collect();
        // A crashed node has its data on its disk alone.
        spared.retain(|node| self.cluster.hosts[node].up);
        let is_dark = |shard| {
            let group = placement::group(shard, self.cluster.view.placed, self.plan.replicas);
            let mut active =
                group.into_iter().filter(|node| self.role(node.0) == Some(Role::Active));
            active.all(|node| !spared.contains(&node.0))
        };
        let is_group_dark = (0..placement::SHARDS).any(is_dark);
        if is_group_dark { spared } else { BTreeSet::new() }
    }

    /// Nodes lose power, all those that have some group's data at least. Some come back without what they had,
    /// but not all that have a shard.
    fn lose_power(&mut self) {
        let spared = self.spared();
        for node in self.nodes().filter(|node| !spared.contains(node)) {
            self.note_log(node);
            self.cluster.cut_power(node, &mut self.rng);
        }
        self.note_answers();
        self.disorder.forget_news();
        if spared.is_empty() {
            self.cluster.pool.clear();
        }
        let mut roles = Vec::new();
        let mut lost = BTreeSet::new();
        for node in self.nodes() {
            let Some(role) = self.role(node) else { continue };
            if role == Role::Down || spared.contains(&node) {
                // It starts again later, or goes on.
                roles.push((node, role));
                continue;
            }
            let seed = self.rng.next_u64() >> 16;
            let ahead = (self.rng.below(self.plan.skew.max(1)) * 1000) as i64;
            let is_lost = |shard| {
                let group = placement::group(shard, self.cluster.view.placed, self.plan.replicas);
                let mut others = group.into_iter().map(|node| node.0);
                !others.any(|other| {
                    let is_away = other == node || lost.contains(&other);
                    !is_away && self.role(other) == Some(Role::Active)
                })
            };
            let is_needed = role == Role::Active && (0..placement::SHARDS).any(is_lost);
            if is_needed || self.rng.chance(5, 6) {
                self.cluster.restart_ahead(node, seed, ahead);
                roles.push((node, role));
            } else {
                lost.insert(node);
                self.cluster.start_ahead(node, seed, ahead);
                roles.push((node, Role::Shadow));
            }
        }
        let view = self.cluster.decide(&roles);
        self.disorder.announce(&view);
    }

    /// Where every node keeps every key in one log, what is left of a transaction is left in all its keys.
    pub(super) fn check_atomicity(&self) {
        let active = self.cluster.view.active();
        if self.plan.lanes > 1 || active.len() < self.cluster.hosts.len() || self.plan.replicas < 3
        {
            return;
        }
        let node = active.first().expect("somebody serves").0;
        let version = |key: &str| Some(self.cluster.record(node, key)?.0.version);
        for left in self.keys().iter().filter_map(|key| version(key)) {
            let written = self.cluster.subject.written.get(&left);
            for (key, _) in written.iter().flat_map(|written| &written.keys) {
                let other = version(key);
                // It may have been deleted since, and forgotten.
                assert!(
                    other.is_none_or(|other| other >= left),
                    "a half of {left:?} is left: {key}"
                );
            }
        }
    }
}

const DURABLE: Plan = Plan { logs: Logs::Sync, steps: 500, ..PLAN };

#[test]
fn what_was_answered_survives_the_loss_of_all_power() {
    let probes = sweep(150, DURABLE);
    for name in ["zeus: goes on from its log", "zeus: a commit waits for the log"] {
        assert!(probes.get(name).is_some_and(|count| *count > 100), "seldom: {name}: {probes:?}");
    }
    sweep(50, Plan { nodes: 5, keys: 4, ..DURABLE });
    sweep(30, Plan { nodes: 1, ..DURABLE });
    sweep(50, Plan { lost: 200, repeated: 200, ..DURABLE });
    sweep(50, Plan { nodes: 4, replicas: 2, trouble: 30, ..DURABLE });
    // A revived node begins a round of a key of which another one remembers rounds.
    super::run(714, DURABLE, &mut BTreeMap::new());
}

#[test]
fn what_was_deleted_stays_away_after_the_loss_of_all_power() {
    let plan = Plan { keys: 4, collect_ms: 20, deletes: 6, steps: 800, ..DURABLE };
    let mut probes = sweep(50, plan);
    probes.extend(sweep(50, Plan { nodes: 4, replicas: 2, trouble: 20, ..plan }));
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, ..plan };
    probes.extend(sweep(50, Plan { nodes: 4, replicas: 2, ..moves }));
    for name in ["zeus: a record is forgotten", "zeus: a replica has joined"] {
        assert!(probes.contains_key(name), "never: {name}");
    }
}

#[test]
fn data_that_moves_survives_the_loss_of_all_power() {
    let plan = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, steps: 700, ..DURABLE };
    sweep(75, Plan { nodes: 4, replicas: 2, ..plan });
    sweep(30, Plan { nodes: 5, ..plan });
    sweep(30, Plan { nodes: 4, replicas: 2, lost: 200, repeated: 200, moves: 50, ..plan });
}

#[test]
fn lists_that_are_changed_in_place_survive_the_loss_of_all_power() {
    let plan = Plan { lists: true, ..DURABLE };
    sweep(75, plan);
    sweep(30, Plan { nodes: 5, keys: 4, trouble: 40, ..plan });
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, steps: 700, ..plan };
    sweep(50, Plan { nodes: 4, replicas: 2, ..moves });
    let often = Plan { sent: 40, locality: 100, trouble: 60, lost: 200, keys: 2, ..plan };
    sweep(50, Plan { replicas: 2, ..often });
}

#[test]
fn extra_copies_do_not_survive_the_loss_of_all_power() {
    let plan = Plan { nodes: 5, replicas: 2, extra_after: 1, locality: 0, trouble: 20, ..DURABLE };
    let mut probes = sweep(30, plan);
    probes.extend(sweep(30, Plan { lists: true, deletes: 3, collect_ms: 20, keys: 4, ..plan }));
    assert!(probes.contains_key("zeus: a reader asks for a copy"));
}

/// Each lane has a log of its own, and each is flushed, and saved, when it pleases.
#[test]
fn transactions_over_lanes_survive_the_loss_of_all_power() {
    let lanes = Plan { lanes: 2, keys: 5, steps: 600, ..DURABLE };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(75, lanes));
    add(sweep(30, Plan { lanes: 3, nodes: 5, trouble: 30, ..lanes }));
    add(sweep(30, Plan { lost: 200, repeated: 200, ..lanes }));
    add(sweep(30, Plan { nodes: 1, lanes: 3, keys: 4, flushes: 30, ..lanes }));
    add(sweep(30, Plan { lists: true, sent: 20, ..lanes }));
    add(sweep(30, Plan { calls: 50, ..lanes }));
    let deletes = Plan { collect_ms: 20, deletes: 6, steps: 900, ..lanes };
    add(sweep(30, Plan { nodes: 4, replicas: 2, trouble: 20, ..deletes }));
    let moves = Plan { spares: 2, trouble: 20, moves: 20, steps: 800, ..lanes };
    add(sweep(50, Plan { nodes: 4, replicas: 2, ..moves }));
    add(sweep(
        30,
        Plan { nodes: 4, replicas: 2, lists: true, deletes: 3, collect_ms: 20, ..moves },
    ));
    for name in [
        "zeus: a transaction is in the logs of several lanes",
        "zeus: goes on from its log",
        "zeus: a replica has joined",
    ] {
        assert!(probes.get(name).is_some_and(|count| *count > 100), "seldom: {name}: {probes:?}");
    }
}

/// Promises that wait for nothing: nodes come back with different states, and agree on one.
#[test]
fn nodes_agree_on_what_the_power_has_left() {
    let lossy = Plan { logs: Logs::Async, ..DURABLE };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(100, lossy));
    let seldom = Plan { flushes: 3, ..lossy };
    add(sweep(100, seldom));
    add(sweep(50, Plan { nodes: 4, replicas: 2, lists: true, ..seldom }));
    add(sweep(50, Plan { lanes: 2, keys: 5, ..seldom }));
    add(sweep(30, Plan { nodes: 5, keys: 4, ..lossy }));
    add(sweep(30, Plan { lost: 200, repeated: 200, ..lossy }));
    add(sweep(50, Plan { nodes: 4, replicas: 2, trouble: 30, ..lossy }));
    add(sweep(50, Plan { lists: true, ..lossy }));
    let deletes = Plan { keys: 4, collect_ms: 20, deletes: 6, steps: 800, ..lossy };
    add(sweep(30, deletes));
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, steps: 700, ..lossy };
    add(sweep(50, Plan { nodes: 4, replicas: 2, lists: true, ..moves }));
    let lanes = Plan { lanes: 2, keys: 5, steps: 600, ..lossy };
    add(sweep(50, lanes));
    add(sweep(30, Plan { lists: true, sent: 20, lanes: 3, ..lanes }));
    add(sweep(
        30,
        Plan { nodes: 4, replicas: 2, lists: true, deletes: 3, collect_ms: 20, ..lanes },
    ));
    let often = Plan { lists: true, sent: 40, locality: 100, keys: 3, ..lossy };
    add(sweep(100, Plan { nodes: 4, replicas: 2, ..often }));
    let kept = Plan { flushes: 12, lists: true, sent: 20, deletes: 4, ..deletes };
    add(sweep(120, Plan { nodes: 4, replicas: 2, ..kept }));
    add(sweep(50, Plan { nodes: 4, replicas: 2, lanes: 2, keys: 5, ..kept }));
    let moves = Plan { spares: 2, keys: 6, trouble: 20, moves: 20, ..kept };
    add(sweep(30, Plan { nodes: 4, replicas: 2, ..moves }));
    let revivals = probes.get("zeus: takes in what its log has lost");
    assert!(revivals.is_some_and(|count| *count > 100), "seldom: {probes:?}");
}

/// Promises that wait for the log at some nodes and for nothing at the others: what has come back at those is
/// new to these.
#[test]
fn nodes_agree_where_the_promises_of_some_have_waited() {
    let mixed = Plan { logs: Logs::Mixed, flushes: 6, ..DURABLE };
    let mut probes = BTreeMap::new();
    let mut add = |more: BTreeMap<&'static str, u64>| {
        more.into_iter().for_each(|(name, count)| *probes.entry(name).or_insert(0) += count);
    };
    add(sweep(30, mixed));
    add(sweep(20, Plan { nodes: 4, replicas: 2, lists: true, ..mixed }));
    let lanes = Plan { lanes: 2, keys: 5, flushes: 60, trouble: 30, steps: 600, ..mixed };
    add(sweep(40, lanes));
    add(sweep(10, Plan { lanes: 3, keys: 4, lists: true, sent: 20, ..lanes }));
    let deletes = Plan { keys: 4, collect_ms: 20, deletes: 6, steps: 800, ..mixed };
    add(sweep(20, Plan { nodes: 4, replicas: 2, lists: true, ..deletes }));
    add(sweep(10, Plan { lanes: 2, keys: 5, ..deletes }));
    let revivals = probes.get("zeus: takes in what its log has lost");
    assert!(revivals.is_some_and(|count| *count > 100), "seldom: {probes:?}");
}
