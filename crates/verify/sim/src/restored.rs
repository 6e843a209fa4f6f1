//! Whether a process that began now would have what the running one has.
//!
//! What is in memory and in no log is seen by nobody until its node begins again, and not even then if other
//! replicas still have it. So whenever a process ends whose logs are durable as far as they go, and of all nodes
//! at rest, the records of a node are compared with what its files would restore.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quorate_node::{Durability, KeyspaceLane};
use quorate_rifl::{Kept, LeaseId};
use quorate_types::{Role, Timestamp};

use crate::process::{Entry, Node, each_record, only_in};
use crate::world::World;

/// What is wrong with the logs of a node.
pub(crate) enum Unlogged {
    /// They are not durable as far as they go, so that nothing can be said.
    Yet(String),
    /// They would restore something else than there is.
    Differs(String),
}

impl fmt::Display for Unlogged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yet(what) | Self::Differs(what) => f.write_str(what),
        }
    }
}

impl World {
    /// What some node has in its memory and its logs have not, or what is not durable yet.
    pub(crate) fn unlogged(&mut self) -> Option<String> {
        let (time, nodes) = (self.time, &mut self.nodes);
        nodes.iter_mut().find_map(|node| node.unlogged(time)).map(|unlogged| unlogged.to_string())
    }

    /// A process is about to end: if its logs are durable as far as they go, they have what it has.
    pub(crate) fn check_logged(&mut self, node: usize) {
        if !self.nodes[node].up || !self.has_disks() {
            return;
        }
        match self.nodes[node].unlogged(self.time) {
            Some(Unlogged::Differs(what)) => panic!("{what}"),
            Some(Unlogged::Yet(_)) => {}
            None => self.probe("disk: has all that its node has when that ends", 1),
        }
    }
}

impl Node {
    /// A node that counts as one that has everything would have it again after a restart.
    pub(crate) fn check_logs_renewed(&self) {
        let engines = self.config.keyspaces.iter().flat_map(|keyspace| {
            self.lanes.iter().filter_map(|host| host.lane.engine(keyspace.id))
        });
        let outdates = engines.into_iter().any(KeyspaceLane::outdates_logs);
        assert!(
            !outdates || !self.is_active(),
            "{:?} is active, and the log of one lane has what another has let go of",
            self.id
        );
    }

    /// Whether its process is an active member of the view that it has.
    fn is_active(&self) -> bool {
        let lane = self.lane(0);
        let own = lane.view().member(self.id);
        own.is_some_and(|it| it.incarnation == lane.incarnation() && it.role == Role::Active)
    }

    fn unlogged(&mut self, time: u64) -> Option<Unlogged> {
        let now = self.clock(time);
        let (id, is_active) = (self.id, self.is_active());
        let disk = self.disk.as_mut()?;
        for (number, host) in self.lanes.iter().enumerate() {
            let (appended, durable) = host.lane.log_ends().expect("a node with a disk has logs");
            if appended != durable {
                return Some(Unlogged::Yet(format!(
                    "the log of {id:?}, lane {number}, ends at {appended} and is durable up to {durable}"
                )));
            }
        }
        // A node whose files are damaged lives on in its memory, and says so when it begins again.
        let (restored, lanes) = disk.memory(&self.config, now)?;
        for keyspace in
            self.config.keyspaces.iter().filter(|it| it.durability != Durability::Memory)
        {
            let engines = || self.lanes.iter().filter_map(|host| host.lane.engine(keyspace.id));
            let records = |shared| {
                let mut records = BTreeMap::new();
                each_record(shared, keyspace.id, |record| {
                    // Copies that it keeps only while it uses them are in no log.
                    let holds = |engine: &KeyspaceLane| engine.holds(record.entry.0.as_bytes());
                    if record.has_value && engines().all(holds) {
                        records.insert(record.entry, record.version);
                    }
                });
                records
            };
            let (mut has, mut logged) = (records(&self.shared), records(&restored));
            let waits = !is_active && engines().any(KeyspaceLane::outdates_logs);
            if waits || !engines().all(KeyspaceLane::is_caught_up) {
                // What its engine has in its logs may not have come to the records yet, and what it has let go of
                // leaves the logs with the next snapshots, before it counts as caught up.
                let newer = |of: &str, version: Timestamp| {
                    logged.iter().any(|((key, ..), logged)| key == of && *logged > version)
                };
                has.retain(|entry, version| !newer(&entry.0, *version));
                logged.retain(|entry, _| has.contains_key(entry));
            }
            let entries =
                |of: BTreeMap<Entry, Timestamp>| -> Vec<Entry> { of.into_keys().collect() };
            let (has, logged) = (entries(has), entries(logged));
            if has != logged {
                return Some(Unlogged::Differs(format!(
                    "{id:?} has in keyspace {} what its logs have not, {:?}, and they have {:?}",
                    keyspace.id.0,
                    only_in(&has, &logged),
                    only_in(&logged, &has)
                )));
            }
            for (host, restored) in self.lanes.iter().zip(&lanes) {
                let Calls { records: has, .. } = Calls::of(host.lane.engine(keyspace.id));
                let logged = Calls::of(restored.engine(keyspace.id));
                if let Some((part, lease, number, _)) = has.iter().find(|it| logged.lacks(it)) {
                    return Some(Unlogged::Differs(format!(
                        "{id:?}, lane {:?}, has in keyspace {} a record of call {number} of {lease:?}, part \
                         {part}, and its log has not",
                        host.lane.id(),
                        keyspace.id.0
                    )));
                }
            }
        }
        None
    }
}

/// The part of an engine's data that a call belongs to, its session, its number, and what was answered.
type CallRecord = (usize, LeaseId, u64, Vec<u8>);

/// What a lane knows of calls.
#[derive(Default)]
struct Calls {
    records: BTreeSet<CallRecord>,
    acknowledged: BTreeMap<(usize, LeaseId), u64>,
    undecided: BTreeSet<(usize, LeaseId, u64)>,
}

impl Calls {
    fn of(engine: Option<&KeyspaceLane>) -> Self {
        let mut calls = Self::default();
        let engine = engine.expect("every lane has all engines");
        engine.each_record(&mut |part, lease, number, kept| match kept {
            Kept::Record(answer) => {
                calls.records.insert((part, lease, number, answer.to_vec()));
            }
            Kept::Acknowledged => {
                calls.acknowledged.insert((part, lease), number);
            }
            Kept::Undecided => {
                calls.undecided.insert((part, lease, number));
            }
        });
        calls
    }

    /// Whether nothing is known of a call here. Where it is undecided, the first view decides it. What is under
    /// way may say already which answers its client has; and logs may have more than memory, since no record
    /// leaves them before the next snapshot.
    fn lacks(&self, record: &CallRecord) -> bool {
        let (part, lease, number, _) = record;
        let is_over = self.acknowledged.get(&(*part, *lease)).is_some_and(|first| number < first);
        !is_over
            && !self.records.contains(record)
            && !self.undecided.contains(&(*part, *lease, *number))
    }
}
