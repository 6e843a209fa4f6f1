//! Whether a process that began now would have what the running one has.
//!
//! What is in memory and in no log is seen by nobody until its node begins again, and not even then if other
//! replicas still have it. So whenever a process ends whose logs are durable as far as they go, and of all nodes
//! at rest, the records of a node are compared with what its files would restore.

use std::collections::BTreeMap;
use std::fmt;

use quorate_node::{Durability, KeyspaceLane};
use quorate_types::Timestamp;

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
    fn unlogged(&mut self, time: u64) -> Option<Unlogged> {
        let now = self.clock(time);
        let (id, disk) = (self.id, self.disk.as_mut()?);
        for (number, host) in self.lanes.iter().enumerate() {
            let (appended, durable) = host.lane.log_ends().expect("a node with a disk has logs");
            if appended != durable {
                return Some(Unlogged::Yet(format!(
                    "the log of {id:?}, lane {number}, ends at {appended} and is durable up to {durable}"
                )));
            }
        }
        // A node whose files are damaged lives on in its memory, and says so when it begins again.
        let restored = disk.memory(&self.config, now)?;
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
            if !engines().all(KeyspaceLane::is_caught_up) {
                // What its engine has in its logs may not have come to the records yet.
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
        }
        None
    }
}
