//! Records that are there before anything breaks, so that joins and scans take many turns.
//!
//! No client touches them: acknowledged records must be on every replica at the end. A third of
//! them is deleted during the faults, a few at a time, and must be gone at the end: a node that was
//! away may come back with records of keys that the others have deleted and forgotten.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_check::Loss;
use quorate_commands::OwnedCall;
use quorate_machine::{Outcome, Rng};
use quorate_types::{KeyspaceId, Tag};

use crate::keyspaces::{is_of, mark, unmarked};
use crate::process::Entry;
use crate::shapes::Shape;
use crate::world::{self, Event, MS, World};

/// Tags with this bit belong to loaded records.
pub(crate) const LOAD_TAG: u64 = 1 << 61;
/// Tags with these bits belong to their deletions.
const DELETE_TAG: u64 = LOAD_TAG | 1 << 60;
/// The prefix of the names of these records.
const PREFIX: &str = "bulk:";
/// When loading begins: the first view has been formed.
const BEGIN: u64 = 300 * MS;
/// The pause between two batches.
const PACE: u64 = 2 * MS;
/// Records in a batch.
const BATCH: usize = 40;
/// The pause between two batches of deletions.
const DELETE_PACE: u64 = 150 * MS;
/// A batch of deletions is the number of records divided by this.
const DELETED_PART: usize = 100;
/// One in this many records is deleted.
const DELETED_EVERY: usize = 3;
/// A value of this size or more is large: engines send it apart.
const LARGE: u64 = 64 * 1024;

/// Loads records of a keyspace.
pub(crate) struct Loader {
    keyspace: KeyspaceId,
    rng: Rng,
    /// The length of each record's value.
    sizes: Vec<usize>,
    /// Records that are not stored yet.
    due: VecDeque<usize>,
    /// The value of each acknowledged record whose deletion has not begun, and when it was acknowledged.
    acknowledged: BTreeMap<String, (String, u64)>,
    /// Records that an earlier attempt may yet store.
    doubtful: BTreeSet<usize>,
    /// Records to be deleted, or whose deletion is not acknowledged.
    leaving: VecDeque<usize>,
    /// Records whose deletion is acknowledged, and when.
    deleted: BTreeMap<String, u64>,
    is_deleting: bool,
    active: bool,
}

impl Loader {
    pub(crate) fn new(keyspace: KeyspaceId, shape: &Shape, world: &mut World) -> Self {
        let mut rng = world.rng.fork();
        let count = shape.records.max(shape.large);
        let sizes: Vec<usize> = (0..count)
            .map(|record| {
                let size = if record < shape.large {
                    LARGE + rng.below(2 * LARGE)
                } else {
                    rng.below(100)
                };
                size as usize
            })
            .collect();
        let mut due: Vec<usize> = (0..sizes.len()).collect();
        for at in (1..due.len()).rev() {
            due.swap(at, rng.below(at as u64 + 1) as usize);
        }
        if !due.is_empty() {
            world.schedule(BEGIN, Event::Load(keyspace));
        }
        Self {
            keyspace,
            rng,
            sizes,
            due: due.into(),
            acknowledged: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            leaving: VecDeque::new(),
            deleted: BTreeMap::new(),
            is_deleting: false,
            active: true,
        }
    }

    /// What was acknowledged last may be lost: nobody knows what is left of it.
    pub(crate) fn lose(&mut self, loss: Loss) {
        self.acknowledged.retain(|_, (_, at)| !loss.takes(*at, *at));
        self.deleted.retain(|_, at| !loss.takes(*at, *at));
    }

    /// No more records are sent.
    pub(crate) fn stop(&mut self) {
        self.active = false;
    }

    /// Sends a batch.
    pub(crate) fn act(&mut self, world: &mut World) {
        if !self.active {
            return;
        }
        if self.is_deleting {
            self.delete(world);
            return world.schedule(world.time + DELETE_PACE, Event::Load(self.keyspace));
        }
        let mut bytes = 0;
        for _ in 0..BATCH {
            if bytes >= LARGE {
                break;
            }
            let Some(record) = self.due.pop_front() else { break };
            bytes += self.sizes[record] as u64;
            let (key, value) = self.record(record);
            if !self.ask(world, Tag(LOAD_TAG | record as u64), [b"SET", key.as_bytes(), &value]) {
                self.due.push_back(record);
            }
        }
        if self.due.is_empty() && self.acknowledged.len() * 2 > self.sizes.len() {
            self.is_deleting = true;
            let is_sure = |record: &usize| {
                let is_acknowledged = self.acknowledged.contains_key(&self.record(*record).0);
                is_acknowledged && !self.doubtful.contains(record)
            };
            let every = (0..self.sizes.len()).step_by(DELETED_EVERY);
            self.leaving = every.filter(is_sure).collect();
        }
        world.schedule(world.time + PACE, Event::Load(self.keyspace));
    }

    /// Deletes a further batch, and stores the records that could not be stored.
    fn delete(&mut self, world: &mut World) {
        for _ in 0..self.sizes.len() / DELETED_PART + 1 {
            let Some(record) = self.leaving.pop_front() else { break };
            let (key, _) = self.record(record);
            self.acknowledged.remove(&key);
            if !self.ask(world, Tag(DELETE_TAG | record as u64), [b"DEL", key.as_bytes()]) {
                self.leaving.push_back(record);
            }
        }
        if let Some(record) = self.due.pop_front() {
            let (key, value) = self.record(record);
            if !self.ask(world, Tag(LOAD_TAG | record as u64), [b"SET", key.as_bytes(), &value]) {
                self.due.push_back(record);
            }
        }
    }

    /// Asks some node. Returns whether the node runs.
    fn ask<const N: usize>(&mut self, world: &mut World, tag: Tag, command: [&[u8]; N]) -> bool {
        let node = self.rng.below(world.nodes.len() as u64) as usize;
        let lane = self.rng.below(u64::from(world.lanes())) as usize;
        if !world.nodes[node].up || world.nodes[node].is_stopped() {
            return false;
        }
        let call = OwnedCall::new(command).expect("a known command");
        let tag = Tag(mark(self.keyspace) | tag.0);
        let command = world.keyspace(self.keyspace).command(call);
        world.execute(node, lane, tag, tag.0, self.keyspace, &command);
        true
    }

    fn record(&self, record: usize) -> (String, Vec<u8>) {
        let mut value = format!("v{record}").into_bytes();
        value.resize(value.len().max(self.sizes[record]), b'.');
        (format!("{PREFIX}{record}"), value)
    }

    /// Reads the keys whose records a node can't read locally: an update may be everywhere without
    /// every replica knowing so. Only a read finds that out.
    pub(crate) fn read_unreadable(&self, world: &mut World) {
        for node in 0..world.nodes.len() {
            for key in world.nodes[node].unreadable(self.keyspace) {
                let call = OwnedCall::new([&b"GET"[..], &key]).expect("GET is known");
                let tag = Tag(mark(self.keyspace) | LOAD_TAG | self.sizes.len() as u64);
                let command = world.keyspace(self.keyspace).command(call);
                world.execute(node, 0, tag, tag.0, self.keyspace, &command);
            }
        }
    }

    /// Deletes what there is in a keyspace that forgets deleted keys soon, and gives a record of some node,
    /// if there is any left.
    pub(crate) fn delete_all(&self, world: &mut World) -> Option<String> {
        if !world.keyspace(self.keyspace).forgets_soon() {
            return None;
        }
        let mut left = None;
        for node in 0..world.nodes.len() {
            let records = world.nodes[node].records(self.keyspace);
            for (at, (key, has_value)) in records.into_iter().enumerate() {
                if has_value {
                    let call = OwnedCall::new([&b"DEL"[..], &key]).expect("DEL is known");
                    let tag = Tag(mark(self.keyspace) | LOAD_TAG | self.sizes.len() as u64);
                    // Of one origin each would wait for the one before.
                    let origin = tag.0 + at as u64;
                    let command = world.keyspace(self.keyspace).command(call);
                    world.execute(node, 0, tag, origin, self.keyspace, &command);
                }
                left = left.or_else(|| {
                    let (id, key) = (world.nodes[node].id, String::from_utf8_lossy(&key));
                    let what = if has_value { "a value" } else { "a record without a value" };
                    Some(format!("all is deleted, and {id:?} keeps {what} of {key}"))
                });
            }
        }
        left
    }

    /// Takes the answers to its requests.
    pub(crate) fn collect(&mut self, world: &mut World) {
        let (keyspace, time) = (self.keyspace, world.time);
        let mine = move |answer: &mut world::Answer| {
            answer.tag.0 & LOAD_TAG != 0 && is_of(answer.tag, keyspace)
        };
        for answer in world.answers.extract_if(.., mine) {
            let record = (unmarked(answer.tag) & !DELETE_TAG) as usize;
            if record == self.sizes.len() {
                continue;
            }
            let is_done = matches!(answer.outcome, Outcome::Done(_));
            let (key, value) = self.record(record);
            match (answer.tag.0 & DELETE_TAG == DELETE_TAG, is_done) {
                (true, true) => drop(self.deleted.insert(key, time)),
                (true, false) => self.leaving.push_back(record),
                (false, true) => drop(self.acknowledged.insert(key, (digest(&value), time))),
                (false, false) => {
                    self.doubtful.insert(record);
                    self.due.push_back(record);
                }
            }
        }
    }

    /// A record that was acknowledged and is gone, or that was deleted and exists.
    pub(crate) fn missing(&self, contents: &[Entry]) -> Option<String> {
        let held: BTreeMap<&str, &str> =
            contents.iter().map(|(key, _, value)| (key.as_str(), value.as_str())).collect();
        let mut lost = self
            .acknowledged
            .iter()
            .filter(|(key, (value, _))| held.get(key.as_str()) != Some(&value.as_str()));
        let all = self.acknowledged.len();
        if let Some((first, _)) = lost.next() {
            let lost = lost.count() + 1;
            return Some(format!(
                "{lost} of {all} loaded records are missing at the end, {first} the first"
            ));
        }
        let nothing = digest(b"");
        let is_back = |key: &&String| held.get(key.as_str()).is_some_and(|held| **held != nothing);
        let (back, all) = (self.deleted.keys().filter(is_back).count(), self.deleted.len());
        (back > 0).then(|| format!("{back} of {all} deleted records are back at the end"))
    }
}

/// The text that stands for a key's value in comparisons: the value, unless it was loaded.
pub(crate) fn shown(key: &[u8], value: &[u8]) -> String {
    if key.starts_with(PREFIX.as_bytes()) {
        digest(value)
    } else {
        String::from_utf8_lossy(value).into_owned()
    }
}

fn digest(value: &[u8]) -> String {
    format!("{} bytes {:016x}", value.len(), quorate_types::hash_key(value))
}
