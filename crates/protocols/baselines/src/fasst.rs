//! FaSST-style distributed commit (Kalia et al., OSDI 2016), the rival of Zeus §8: keys are dealt out over
//! primaries by a hash and stay there, and a transaction commits by two-phase commit over two-sided
//! messages.
//!
//! ```text
//! coordinator             primaries               backups
//!   VALIDATE, stable 0 --->  lock what is to be written, read the rest
//!   <-- VALUES, or VOTE against
//!   (runs the transaction)
//!   VALIDATE, stable 1 --->  is what was read, and not locked, unchanged and unlocked?
//!   <-- VOTE
//!   ACCEPT ---------------------------------------->  install
//!   <------------------------------------- ACCEPTED
//!   (answers its client)
//!   DECIDED -------------->  install and unlock; after an abort unlock only
//! ```
//! The second step is left out if everything that was read is locked, or if a single key was read.
//! A key has a primary and up to two backups, the next nodes.
//!
//! Where this differs from the paper, it does less: the log entry of a transaction is its update of
//! the backups, which takes one round trip where the paper has two. What a transaction is going to
//! write is part of its code there. Here it is found by running it once over keys without values. If
//! nothing is found, as of a block whose watches fail on such keys, all its keys are locked. A
//! transaction that writes another key after all, or finds keys on its way as scripts do, is tried
//! again with those.

use quorate_machine::{
    Change, Command, Content, Current, Effects, Outcome, Record, Refusal, Slot, Table, ValueKind,
    Verdict, Workspace, mutant,
};
use quorate_meerkat::{
    Body, BodyWriter, Conflict, Item, Kind, Meta, Reason, Registration, Vote, Write,
};
use quorate_types::{NodeId, NodeSet, Now, Timestamp, UnixMillis, limits, partition_of};

use crate::coordinator::Try;
use crate::{Baseline, COMMITS_FAST, RETRIES, System};

/// Nodes that have a key: its primary and its backups.
const REPLICAS: usize = 3;
/// Steps of a VALIDATE.
const EXECUTE: u64 = 0;
const CHECK: u64 = 1;

/// A value as it was fetched, with its kind and when it expires.
type Value = (Vec<u8>, ValueKind, Option<UnixMillis>);

/// What the coordinator knows of a transaction's keys.
#[derive(Debug)]
pub(crate) struct Shards {
    /// In the order of their names.
    keys: Vec<Key>,
    /// Nodes whose answers are missing.
    waiting: NodeSet,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Execute,
    Check,
    Log,
}

#[derive(Debug)]
struct Key {
    name: Vec<u8>,
    primary: NodeId,
    is_locked: bool,
    version: Timestamp,
    /// As fetched, then as the transaction leaves it.
    value: Option<Value>,
    is_written: bool,
}

impl Key {
    /// What the transaction leaves in it.
    fn write(&self) -> Write<'_> {
        match &self.value {
            Some((bytes, kind, expire_at)) => {
                Write::Set(Content { bytes, kind: *kind, expire_at: *expire_at })
            }
            None => Write::Delete,
        }
    }

    /// An item without a version.
    fn item<'a>(&'a self, write: Option<Write<'a>>) -> Item<'a> {
        Item { key: &self.name, base: None, absent: false, write }
    }
}

/// A run over the keys that were fetched.
struct Fetched<'a> {
    keys: &'a mut [Key],
    now: UnixMillis,
    /// Keys that were touched and not fetched, and whether they were written.
    missing: Vec<(Vec<u8>, bool)>,
}

/// The place of the key of this name among keys in the order of their names.
fn find(keys: &[Key], name: &[u8]) -> Option<usize> {
    keys.binary_search_by(|key| key.name.as_slice().cmp(name)).ok()
}

impl Workspace for Fetched<'_> {
    fn read(&mut self, name: &[u8]) -> Current<'_> {
        let now = self.now;
        let Some(at) = find(self.keys, name) else {
            self.missing.push((name.to_vec(), false));
            return Current::ABSENT;
        };
        let key = &self.keys[at];
        let content = key.value.as_ref().map(|(bytes, kind, expire_at)| Content {
            bytes,
            kind: *kind,
            expire_at: *expire_at,
        });
        let content = content.filter(|content| !content.is_expired(now));
        Current { content, large: None, timestamp: key.version }
    }

    fn write(&mut self, name: &[u8], change: Change<'_>) {
        if change == Change::Keep {
            return;
        }
        let Some(at) = find(self.keys, name) else {
            return self.missing.push((name.to_vec(), true));
        };
        let key = &mut self.keys[at];
        match change {
            Change::Keep => return,
            Change::Set { bytes, kind, expire_at } => {
                key.value = Some((bytes.into_owned(), kind, expire_at));
            }
            Change::Expire(expire_at) => match &mut key.value {
                Some((.., at)) => *at = expire_at,
                None => return,
            },
            Change::Delete => key.value = None,
            Change::Delta { .. } => unreachable!("no value is changed in place here"),
        }
        key.is_written = true;
    }
}

/// A run over keys without values, which finds what a transaction is likely to write.
#[derive(Default)]
struct Foreseen(Vec<Vec<u8>>);

impl Workspace for Foreseen {
    fn read(&mut self, _: &[u8]) -> Current<'_> {
        Current::ABSENT
    }

    fn write(&mut self, name: &[u8], change: Change<'_>) {
        if change != Change::Keep {
            self.0.push(name.to_vec());
        }
    }
}

impl<S, T, X> Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    /// The node of this place after a key's primary.
    fn holder(&self, primary: NodeId, place: usize) -> NodeId {
        let live = self.group().live;
        let index = live.into_iter().position(|node| node == primary).expect("a live node");
        live.nth((index + place) % live.len()).expect("the place is below the number of nodes")
    }

    /// The nodes that back a primary up.
    fn backups(&self, primary: NodeId) -> NodeSet {
        let mut backups = NodeSet::EMPTY;
        for place in 1..REPLICAS.min(self.group().live.len()) {
            backups.insert(self.holder(primary, place));
        }
        backups
    }

    /// The first step of an attempt: asks the primaries for its keys.
    pub(crate) fn execute(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let live = self.group().live;
        let Some(op) = self.ops.get(slot) else { return };
        let mut names: Vec<Vec<u8>> = op.more.keys().cloned().collect();
        op.txn.visit_keys(&mut |name| names.push(name.to_vec()));
        names.sort_unstable();
        names.dedup();
        if names.len() > limits::TXN_KEYS_MAX {
            return self.finish(slot, Outcome::Refused(Refusal::TooLarge), effects);
        }
        let mut foreseen = Foreseen::default();
        if op.txn.updates() {
            op.txn.run(now.wall(), &mut foreseen);
            foreseen.0.sort_unstable();
        }
        let locks_all = op.txn.updates() && foreseen.0.is_empty();
        let is_locked = |name: &Vec<u8>| {
            locks_all
                || foreseen.0.binary_search(name).is_ok()
                || op.more.get(name).is_some_and(|writes| *writes)
        };
        let keys: Vec<Key> = names
            .into_iter()
            .map(|name| Key {
                primary: live
                    .nth(usize::from(partition_of(&name, live.len())))
                    .expect("there are as many partitions as nodes"),
                is_locked: is_locked(&name),
                name,
                version: Timestamp::ZERO,
                value: None,
                is_written: false,
            })
            .collect();
        let version = now.unix.0.max(self.last_issued + 1);
        self.last_issued = version;
        let primaries: NodeSet = nodes(keys.iter());
        let waiting = primaries;
        let shards = Shards { keys, waiting, phase: Phase::Execute };
        self.attempts.insert(version, Try { shards: Some(shards), ..Try::new(slot) });
        if primaries.is_empty() {
            return self.run_fetched(now, version, effects);
        }
        self.ask(now, version, EXECUTE, primaries, |_| true, effects);
    }

    /// Sends a VALIDATE about the keys of each primary that are chosen; this node's own last.
    fn ask(
        &mut self,
        now: Now,
        version: u64,
        step: u64,
        primaries: NodeSet,
        choose: fn(&Key) -> bool,
        effects: &mut impl Effects<Self>,
    ) {
        let id = Timestamp::new(version, self.group().writer);
        let me = self.config.node;
        let mine = NodeSet::only(me);
        let others = primaries.without(me);
        let is_mine = primaries.contains(me);
        for primary in others.into_iter().chain(mine.into_iter().filter(|_| is_mine)) {
            let Some(attempt) = self.attempts.get(&version) else { return };
            let Some(shards) = &attempt.shards else { return };
            let mut bytes = self.spare.pop().unwrap_or_default();
            let mut writer = BodyWriter::new(&mut bytes, None);
            let keys = shards.keys.iter().filter(|key| key.primary == primary && choose(key));
            for key in keys {
                let base = (step == CHECK || !key.is_locked).then_some(key.version);
                let marks = step == EXECUTE && key.is_locked;
                let write = marks.then_some(Write::Delete);
                writer.item(&Item { base, ..key.item(write) });
            }
            writer.finish();
            let body = Body::trusted(&bytes);
            if primary == me {
                self.on_step(now, me, id, step, body, effects);
            } else {
                let kind = Kind::Validate { id, stable: step, participants: 1, body };
                effects.send(primary, &Self::message(kind));
            }
            self.recycle(bytes);
        }
    }

    /// At a primary: a VALIDATE.
    pub(crate) fn on_step(
        &mut self,
        now: Now,
        from: NodeId,
        id: Timestamp,
        step: u64,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if step == CHECK {
            let vote = body.iter().try_for_each(|item| self.check(&item));
            return self.vote(now, from, id, vote, effects);
        }
        let mut values = self.buffer();
        match self.lock_and_read(id, body, &mut values) {
            Err(conflict) => self.vote(now, from, id, Err(conflict), effects),
            Ok(()) if from == self.config.node => {
                self.on_values(now, from, id.version, &values, effects);
            }
            Ok(()) => {
                let kind = Kind::Values { request: id.version, clock: 0, items: &values };
                effects.send(from, &Self::message(kind));
            }
        }
        self.recycle(values);
    }

    fn vote(
        &mut self,
        now: Now,
        from: NodeId,
        id: Timestamp,
        vote: Vote,
        effects: &mut impl Effects<Self>,
    ) {
        if from == self.config.node {
            self.on_step_vote(now, from, id.version, vote, effects);
        } else {
            effects.send(from, &Self::message(Kind::Vote { id, vote }));
        }
    }

    /// Locks and reads the keys of a body, or leaves none of them locked.
    fn lock_and_read(
        &mut self,
        id: Timestamp,
        body: Body<'_>,
        values: &mut Vec<u8>,
    ) -> Result<(), Conflict> {
        let mut writer = BodyWriter::new(values, None);
        let mut packed = Vec::new();
        let mut conflict = None;
        for (index, item) in body.iter().enumerate() {
            let locks = item.write.is_some();
            // A key that was never written has a record only if it is locked.
            let record = match locks {
                true => Some(self.table.lock_key_unsized(item.key)),
                false => self.table.lock_existing(item.key),
            };
            let Some(mut record) = record else {
                let (base, write) = (Some(Timestamp::ZERO), Some(Write::Delete));
                writer.item(&Item { key: item.key, base, absent: true, write });
                continue;
            };
            if let Some(holder) = holder(&record)
                && !mutant!("baselines_fasst_locks_shared")
            {
                conflict = Some((index, holder));
                break;
            }
            if locks {
                let registration = Registration { id, base: None, writes: true };
                record.locked_state_mut().add(registration);
            }
            let base = Some(record.meta().wts);
            let content = record.whole(&mut packed);
            let absent = content.is_none();
            let write = Some(content.map_or(Write::Delete, Write::Set));
            writer.item(&Item { key: item.key, base, absent, write });
        }
        writer.finish();
        let Some((index, with)) = conflict else { return Ok(()) };
        self.unlock(id, body.iter().take(index));
        Err(Conflict { reason: Reason::PendingWriter, with })
    }

    /// Whether a key holds the version that was read, and nobody is about to change it.
    fn check(&mut self, item: &Item<'_>) -> Result<(), Conflict> {
        let (version, holder) = match self.table.lock_existing(item.key) {
            Some(record) => (record.meta().wts, holder(&record)),
            None => (Timestamp::ZERO, None),
        };
        if let Some(with) = holder {
            return Err(Conflict { reason: Reason::PendingWriter, with });
        }
        match item.base == Some(version) {
            true => Ok(()),
            false => Err(Conflict { reason: Reason::StaleRead, with: version }),
        }
    }

    fn unlock<'a>(&mut self, id: Timestamp, items: impl Iterator<Item = Item<'a>>) {
        for item in items.filter(|item| item.write.is_some()) {
            if let Some(mut record) = self.table.lock_existing(item.key) {
                record.locked_state_mut().remove(id);
            }
        }
    }

    /// VALUES: once every primary has answered, the transaction runs.
    pub(crate) fn on_values(
        &mut self,
        now: Now,
        from: NodeId,
        request: u64,
        items: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let attempt = self.attempts.get_mut(&request);
        let Some(shards) = attempt.and_then(|attempt| attempt.shards.as_mut()) else {
            return effects.ignored("baselines: VALUES for a finished attempt");
        };
        let Ok(body) = Body::check(items) else {
            return effects.refused("baselines: damaged values");
        };
        for item in body.iter() {
            let at = find(&shards.keys, item.key).expect("a primary answers what it was asked");
            let key = &mut shards.keys[at];
            key.version = item.base.unwrap_or_default();
            if let Some(Write::Set(Content { bytes, kind, expire_at })) = item.write {
                key.value = Some((bytes.to_vec(), kind, expire_at));
            }
        }
        shards.waiting.remove(from);
        if shards.waiting.is_empty() {
            self.run_fetched(now, request, effects);
        }
    }

    /// Runs the transaction over what was fetched.
    fn run_fetched(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get_mut(&version) else { return };
        let slot = attempt.slot;
        let Some(shards) = &mut attempt.shards else { return };
        let Some(op) = self.ops.get_mut(slot) else {
            // Its client was told that it timed out.
            return self.abandon(version, effects);
        };
        let mut fetched = Fetched { keys: &mut shards.keys, now: now.wall(), missing: Vec::new() };
        let verdict = op.txn.run(now.wall(), &mut fetched);
        let mut missing = fetched.missing;
        let unlocked = shards.keys.iter().filter(|key| key.is_written && !key.is_locked);
        missing.extend(unlocked.map(|key| (key.name.clone(), true)));
        if !missing.is_empty() {
            for (name, writes) in missing {
                *op.more.entry(name).or_default() |= writes;
            }
            self.counters[RETRIES] += 1;
            self.abandon(version, effects);
            return self.ready.push_back(slot);
        }
        let reply = match verdict {
            Verdict::Abandon(reply) => {
                self.abandon(version, effects);
                return self.finish(slot, Outcome::Done(reply), effects);
            }
            Verdict::Commit(reply) => reply,
        };
        let bytes = shards.keys.iter().map(|key| key.name.len() + key.write().len());
        if bytes.sum::<usize>() > limits::TXN_BYTES_MAX {
            self.abandon(version, effects);
            let refused = Outcome::Refused(Refusal::TooLarge);
            return self.finish(slot, refused, effects);
        }
        op.reply = Some(reply);
        let read = shards.keys.iter().filter(|key| !key.is_locked);
        let primaries = match shards.keys.len() {
            // What a single key held, it held at one moment.
            1 => NodeSet::EMPTY,
            _ if mutant!("baselines_fasst_reads_not_checked") => NodeSet::EMPTY,
            _ => nodes(read),
        };
        shards.phase = Phase::Check;
        shards.waiting = primaries;
        if primaries.is_empty() {
            return self.log(now, version, effects);
        }
        self.ask(now, version, CHECK, primaries, |key| !key.is_locked, effects);
    }

    /// A primary's verdict.
    pub(crate) fn on_step_vote(
        &mut self,
        now: Now,
        from: NodeId,
        version: u64,
        vote: Vote,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(attempt) = self.attempts.get_mut(&version) else {
            return effects.ignored("baselines: VOTE on a finished attempt");
        };
        let Some(shards) = &mut attempt.shards else { return };
        if let Err(conflict) = vote {
            attempt.conflict = Some(conflict);
            self.count_abort(conflict.reason);
            self.release(version, effects);
            return self.lost(now, version, effects);
        }
        assert_eq!(shards.phase, Phase::Check, "only a check is voted for");
        shards.waiting.remove(from);
        if shards.waiting.is_empty() {
            self.log(now, version, effects);
        }
    }

    /// Nothing can stop the transaction any more: the backups get what it writes.
    fn log(&mut self, now: Now, version: u64, effects: &mut impl Effects<Self>) {
        let me = self.config.node;
        let Some(shards) = self.attempts.get(&version).and_then(|attempt| attempt.shards.as_ref())
        else {
            return;
        };
        let newest = shards.keys.iter().map(|key| key.version.version).max().unwrap_or_default();
        let written: NodeSet = nodes(shards.keys.iter().filter(|key| key.is_written));
        let commit = now.unix.0.max(self.last_issued + 1).max(newest + 1);
        self.last_issued = commit;
        let id = Timestamp::new(commit, self.group().writer);
        let mut backups = NodeSet::EMPTY;
        for primary in written {
            self.backups(primary).into_iter().for_each(|backup| backups.insert(backup));
        }
        for backup in backups {
            let mut bytes = self.spare.pop().unwrap_or_default();
            self.encode_writes(version, &mut bytes, |this, key| {
                this.backups(key.primary).contains(backup)
            });
            let body = Body::trusted(&bytes);
            if backup == me {
                self.install(id, body);
            } else {
                let body = Some(body);
                let kind = Kind::Accept { id, view: version, ok: true, participants: 1, body };
                effects.send(backup, &Self::message(kind));
            }
            self.recycle(bytes);
        }
        let Some(attempt) = self.attempts.get_mut(&version) else { return };
        attempt.id = Some(id);
        let Some(shards) = &mut attempt.shards else { return };
        shards.phase = Phase::Log;
        shards.waiting = backups.without(me);
        if shards.waiting.is_empty() || mutant!("baselines_fasst_answers_before_backups") {
            self.commit(version, effects);
        }
    }

    /// Appends what the transaction writes to the keys that are chosen.
    fn encode_writes(
        &self,
        version: u64,
        bytes: &mut Vec<u8>,
        choose: impl Fn(&Self, &Key) -> bool,
    ) {
        let mut writer = BodyWriter::new(bytes, None);
        let attempt = self.attempts.get(&version);
        if let Some(shards) = attempt.and_then(|attempt| attempt.shards.as_ref()) {
            let written = shards.keys.iter().filter(|key| key.is_written);
            for key in written.filter(|key| choose(self, key)) {
                writer.item(&key.item(Some(key.write())));
            }
        }
        writer.finish();
    }

    /// At a backup: ACCEPT. The lock at the primary keeps updates of a key in order.
    pub(crate) fn on_log(
        &mut self,
        from: NodeId,
        id: Timestamp,
        attempt: u64,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        self.install(id, body);
        effects.send(from, &Self::message(Kind::Accepted { id, view: attempt }));
    }

    /// At the coordinator: a backup has it.
    pub(crate) fn on_logged(
        &mut self,
        from: NodeId,
        version: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let attempt = self.attempts.get_mut(&version);
        let Some(shards) = attempt.and_then(|attempt| attempt.shards.as_mut()) else {
            return effects.ignored("baselines: ACCEPTED of a finished attempt");
        };
        shards.waiting.remove(from);
        if shards.waiting.is_empty() {
            self.commit(version, effects);
        }
    }

    /// All backups have it: the primaries follow, and the client is answered.
    fn commit(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        let (Some(shards), Some(id)) = (&attempt.shards, attempt.id) else { return };
        let written: NodeSet = nodes(shards.keys.iter().filter(|key| key.is_written));
        for primary in written {
            let mut bytes = self.spare.pop().unwrap_or_default();
            self.encode_writes(version, &mut bytes, |_, key| key.primary == primary);
            let body = Body::trusted(&bytes);
            if primary == self.config.node {
                self.install(id, body);
            } else {
                let kind = Kind::Decided { id, commit: true, body: Some(body) };
                effects.send(primary, &Self::message(kind));
            }
            self.recycle(bytes);
        }
        // What was locked and not written after all.
        self.release(version, effects);
        self.committed(version, COMMITS_FAST, effects);
    }

    /// At a primary: DECIDED.
    pub(crate) fn on_end(&mut self, id: Timestamp, commit: bool, body: Body<'_>) {
        if commit {
            self.install(id, body);
        } else {
            self.unlock(id, body.iter());
        }
    }

    /// Installs what a transaction has written, and unlocks: at a primary, the transaction
    /// that writes a key holds its lock.
    fn install(&mut self, version: Timestamp, body: Body<'_>) {
        for item in body.iter() {
            let Some(write) = item.write else { continue };
            let mut record = self.table.lock_key(item.key, write.len());
            let mut meta = record.meta();
            assert!(meta.wts < version, "a lock keeps the updates of a key in order");
            match write {
                Write::Set(content) | Write::Delta(content) => record.set_content(content),
                Write::Delete => record.clear(),
            }
            meta.wts = version;
            record.set_meta(meta);
            if let Some(holder) = holder(&record) {
                record.locked_state_mut().remove(holder);
            }
        }
    }

    /// Unlocks what an attempt has locked and not written, or all of it before it is logged.
    fn release(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        let Some(attempt) = self.attempts.get(&version) else { return };
        let Some(shards) = &attempt.shards else { return };
        let id = Timestamp::new(version, self.group().writer);
        let is_logged = shards.phase == Phase::Log;
        let is_left = |key: &&Key| key.is_locked && !(is_logged && key.is_written);
        let primaries: NodeSet = nodes(shards.keys.iter().filter(is_left));
        for primary in primaries {
            let keys = self.attempts.get(&version).and_then(|attempt| attempt.shards.as_ref());
            let keys = keys.map_or(&[][..], |shards| &shards.keys);
            let mut bytes = Vec::new();
            let mut writer = BodyWriter::new(&mut bytes, None);
            for key in keys.iter().filter(is_left).filter(|key| key.primary == primary) {
                writer.item(&key.item(Some(Write::Delete)));
            }
            writer.finish();
            let body = Body::trusted(&bytes);
            if primary == self.config.node {
                self.unlock(id, body.iter());
            } else {
                let kind = Kind::Decided { id, commit: false, body: Some(body) };
                effects.send(primary, &Self::message(kind));
            }
        }
    }

    /// Ends an attempt without a trace.
    fn abandon(&mut self, version: u64, effects: &mut impl Effects<Self>) {
        self.release(version, effects);
        self.attempts.remove(&version);
    }
}

/// Which attempt holds the lock of a record.
fn holder(record: &impl Record<Meta = Meta>) -> Option<Timestamp> {
    record.locked_state().iter().next().map(|registration| registration.id)
}

/// The primaries of these keys.
fn nodes<'a>(keys: impl Iterator<Item = &'a Key>) -> NodeSet {
    let mut nodes = NodeSet::EMPTY;
    keys.for_each(|key| nodes.insert(key.primary));
    nodes
}
