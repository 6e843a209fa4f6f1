//! Transactions of this node's clients: what they wait for, and how they run.
//!
//! A transaction that may write anything needs to own each of its keys, also those that it only
//! reads. It asks for all that are missing at once, and runs in one step as soon as it has all of
//! them: no transaction is ever seen half done, and none sees another's half. Keys that it finds on
//! the way it asks for, too, and runs again from the beginning.
//!
//! While it waits it keeps the keys that it has, but not from an older one (*wound-wait*): of two
//! transactions that each have what the other needs, the younger gives way.
//!
//! A transaction that only reads runs on any node that has copies of all its keys, without a message,
//! in a step in which all of them are Valid. (The paper's fused check, which looks at each key's state
//! and version once at the end, would let two readers see two writes in different orders.) Where a
//! copy is missing it becomes an owner as one that writes does.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use quorate_machine::{
    Change, Command, Completion, Content, Effects, Gate, OneKey, Outcome, Record as _, Refusal,
    Table, Verdict, mutant,
};
use quorate_types::{Now, Tag, Timestamp, limits};

use crate::commit::{Answer, Committing};
use crate::message::{ITEM_BYTES, Item, Items};
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::Value;
use crate::state::{Key, Zeus};
use crate::workspace::{Run, Work};

/// What a transaction needs of its keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Need {
    /// A copy that may be read.
    Copy,
    /// To own them.
    Owner,
}

/// A transaction that has not run.
#[derive(Clone, Hash, Debug)]
struct Op<X> {
    tag: Tag,
    origin: u64,
    command: X,
    keys: BTreeSet<Key>,
    need: Need,
    /// Its age.
    stamp: Timestamp,
}

/// The transactions that have not run.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Transactions<X> {
    ops: BTreeMap<u64, Op<X>>,
    last: u64,
    /// Those that need a key, except such as wait for their turn in their origin's line.
    waiting: BTreeMap<Key, BTreeSet<u64>>,
    /// Those of each origin, in order. The first waits for its keys.
    lines: BTreeMap<u64, VecDeque<u64>>,
    /// Those whose turn has just come.
    ready: VecDeque<u64>,
}

impl<X> Default for Transactions<X> {
    fn default() -> Self {
        Self {
            ops: BTreeMap::new(),
            last: 0,
            waiting: BTreeMap::new(),
            lines: BTreeMap::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<X: Command<Owned = X>> Transactions<X> {
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether a transaction waits with a key that is older than one at another node that wants it.
    pub(crate) fn keeps(&self, key: &[u8], stamp: Timestamp) -> bool {
        let ops = self.waiting.get(key).into_iter().flatten().map(|id| &self.ops[id]);
        let mut owners = ops.filter(|op| op.need == Need::Owner);
        owners.any(|op| op.stamp < stamp || mutant!("zeus_younger_wins"))
    }

    /// Every key that a transaction waits for.
    pub(crate) fn waited_for(&self) -> Vec<Key> {
        self.waiting.keys().cloned().collect()
    }

    /// Refuses all: this node does not serve any more, and none has run.
    pub(crate) fn refuse_all<T: Table<Meta = Meta>>(
        &mut self,
        effects: &mut impl Effects<Zeus<T, X>>,
    ) {
        let last = self.last;
        for op in core::mem::take(self).ops.into_values() {
            effects.complete(op.tag, Outcome::Refused(Refusal::NotServing));
        }
        self.last = last;
    }

    fn wait(&mut self, id: u64, keys: impl Iterator<Item = Key>) {
        for key in keys {
            self.waiting.entry(key).or_default().insert(id);
        }
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.ready.is_empty(), "a transaction whose turn has come was tried");
        for (key, ids) in &self.waiting {
            assert!(!ids.is_empty(), "nobody waits for {key:?}");
            assert!(ids.iter().all(|id| self.ops[id].keys.contains(key)), "{key:?} is needed");
        }
        let lined: usize = self.lines.values().map(VecDeque::len).sum();
        assert_eq!(lined, self.ops.len(), "every transaction is in the line of its origin");
    }
}

impl<T: Table<Meta = Meta>, X: Command<Owned = X>> Zeus<T, X> {
    /// Takes a transaction; answered by [`Effects::complete`] with the same tag, once.
    pub fn submit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        self.enqueue(now, tag, origin, command.into_owned(), effects);
        self.settle_changes(now, effects);
    }

    pub(crate) fn enqueue(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: X,
        effects: &mut impl Effects<Self>,
    ) {
        let mut keys = BTreeSet::new();
        command.visit_keys(&mut |key| {
            keys.insert(Key::from(key));
        });
        let busy = self.transactions.len() >= limits::OPS_PENDING_MAX;
        let too_large = (keys.len() > limits::TXN_KEYS_MAX).then_some(Refusal::TooLarge);
        let refusal = self.refusal().or(busy.then_some(Refusal::Busy)).or(too_large);
        if let Some(refusal) = refusal {
            return effects.complete(tag, Outcome::Refused(refusal));
        }
        let need = match command.updates() && !mutant!("zeus_reads_at_reader") {
            true => Need::Owner,
            false => Need::Copy,
        };
        let stamp = self.issue(now);
        self.transactions.last += 1;
        let id = self.transactions.last;
        self.transactions.ops.insert(id, Op { tag, origin, command, keys, need, stamp });
        self.op_timeouts.push(now.monotonic + self.config.op_timeout, id);
        let line = self.transactions.lines.entry(origin).or_default();
        line.push_back(id);
        if line.len() == 1 {
            self.transactions.ready.push_back(id);
        } else {
            effects.probe("zeus: a transaction waits for its origin");
        }
    }

    /// Tries again whatever waits for something that this step has changed.
    pub(crate) fn settle_changes(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        loop {
            self.check_recovered(now, effects);
            if let Some(id) = self.transactions.ready.pop_front() {
                if let Some(op) = self.transactions.ops.get(&id) {
                    let keys: Vec<Key> = op.keys.iter().cloned().collect();
                    self.transactions.wait(id, keys.into_iter());
                    self.try_to_run(now, id, effects);
                }
                continue;
            }
            let Some(key) = self.changed.pop_first() else { return };
            // Transactions that wait here come before the next owner.
            let ids = self.transactions.waiting.get(&key).cloned().unwrap_or_default();
            for id in ids {
                self.try_to_run(now, id, effects);
            }
            self.serve_next(now, &key, effects);
            self.agree(now, &key, effects);
        }
    }

    /// Runs a transaction if it may use all its keys; asks for those that are missing otherwise.
    fn try_to_run(&mut self, now: Now, id: u64, effects: &mut impl Effects<Self>) {
        loop {
            let Some(op) = self.transactions.ops.get(&id) else { return };
            let (need, stamp) = (op.need, op.stamp);
            let keys: Vec<Key> = op.keys.iter().cloned().collect();
            match need {
                Need::Copy => {
                    let rights = self.rights();
                    let metas: Vec<Meta> = keys.iter().map(|key| self.meta(key)).collect();
                    let mut known = keys.iter().zip(&metas);
                    if known.any(|(key, meta)| !rights.has_copy(meta, key)) {
                        effects.probe("zeus: a reader becomes an owner");
                        self.need_ownership(id);
                        continue;
                    }
                    let mut known = keys.iter().zip(&metas);
                    if !known.all(|(key, meta)| rights.may_read(meta, key)) {
                        return effects.probe("zeus: a reader waits for a commit");
                    }
                }
                Need::Owner => {
                    let missing: Vec<&Key> =
                        keys.iter().filter(|key| !self.may_own(key, stamp)).collect();
                    for key in &missing {
                        if !self.is_owner(key) {
                            self.acquire(now, key, stamp, effects);
                        }
                    }
                    // A driver on this node may have been rejected, or settled all, at once.
                    if missing.into_iter().any(|key| !self.may_own(key, stamp)) {
                        return effects.probe("zeus: a transaction waits for its keys");
                    }
                }
            }
            if self.run(now, id, effects) {
                return;
            }
        }
    }

    fn may_own(&mut self, key: &[u8], stamp: Timestamp) -> bool {
        let (meta, rights) = (self.meta(key), self.rights());
        let settled = Meta { state: OwnerState::Valid, ..meta };
        rights.may_own(&meta, key)
            || (rights.may_own(&settled, key)
                && (self.may_use_before(key, stamp) || mutant!("zeus_gate_open")))
    }

    fn need_ownership(&mut self, id: u64) {
        let op = self.transactions.ops.get_mut(&id).expect("it waits");
        op.need = Need::Owner;
    }

    /// Runs a transaction whose keys may be used. Whether it has ended.
    fn run(&mut self, now: Now, id: u64, effects: &mut impl Effects<Self>) -> bool {
        let op = self.transactions.ops.get(&id).expect("it waits");
        let (tag, need) = (op.tag, op.need);
        let is_owner = need == Need::Owner;
        if is_owner && self.pipeline.is_full() {
            self.refuse(id, Refusal::Busy, effects);
            return true;
        }
        let rights = self.rights();
        let mut work = Work::default();
        let mut run = Run {
            table: &mut self.table,
            work: &mut work,
            now: now.wall(),
            may_use: |meta: &Meta, key: &[u8]| {
                op.keys.contains(key)
                    || if is_owner { rights.may_own(meta, key) } else { rights.may_read(meta, key) }
            },
            deletes_expired: is_owner,
        };
        let verdict = op.command.run(now.wall(), &mut run);
        if work.is_full() {
            self.refuse(id, Refusal::TooLarge, effects);
            return true;
        }
        if !work.missing.is_empty() {
            effects.probe("zeus: a transaction finds a key on the way");
            let op = self.transactions.ops.get_mut(&id).expect("it waits");
            op.keys.extend(work.missing.iter().cloned());
            self.transactions.wait(id, work.missing.into_iter());
            return false;
        }
        if !is_owner && !work.expired.is_empty() {
            effects.probe("zeus: a reader finds an expired value");
            self.need_ownership(id);
            return false;
        }
        match verdict {
            Verdict::Commit(reply) if work.keys.values().any(OneKey::is_changed) => {
                if !self.commit(now, tag, reply, work, effects) {
                    self.refuse(id, Refusal::TooLarge, effects);
                    return true;
                }
            }
            Verdict::Commit(reply) | Verdict::Abandon(reply) => {
                self.counters.reads += 1;
                let keys = work.keys.keys().map(|key| &**key);
                let rests_on = self.pipeline.writers(keys).pop();
                match rests_on.filter(|_| is_owner) {
                    Some(slot) => {
                        self.pipeline.answer_after(slot, Answer { tag, reply, at: None });
                    }
                    None => {
                        let done = Completion::new(Outcome::Done(reply)).behind(Gate::LEASE);
                        effects.complete_on(tag, done);
                    }
                }
            }
        }
        self.forget(id);
        true
    }

    fn refuse(&mut self, id: u64, refusal: Refusal, effects: &mut impl Effects<Self>) {
        let tag = self.transactions.ops[&id].tag;
        effects.complete(tag, Outcome::Refused(refusal));
        self.forget(id);
    }

    /// A transaction has run, or will not. The next of its origin has its turn, and who wants its keys
    /// may have them.
    fn forget(&mut self, id: u64) {
        let Op { origin, keys, .. } = self.transactions.ops.remove(&id).expect("it waits");
        for key in keys {
            if let Some(ids) = self.transactions.waiting.get_mut(&key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.transactions.waiting.remove(&key);
                }
            }
            if self.rounds.contains_key(&key) {
                self.changed.insert(key);
            }
        }
        let line = self.transactions.lines.get_mut(&origin).expect("it has a line");
        line.retain(|other| *other != id);
        match line.front() {
            Some(next) => self.transactions.ready.push_back(*next),
            None => {
                self.transactions.lines.remove(&origin);
            }
        }
    }

    /// Refuses what has waited for too long: it has not run.
    pub(crate) fn time_out(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((_, id)) = self.op_timeouts.pop_due(now) {
            if self.transactions.ops.contains_key(&id) {
                effects.probe("zeus: a transaction has waited for too long");
                self.refuse(id, Refusal::TimedOut, effects);
            }
        }
    }

    // --- local commit ----------------------------------------------------------------------------

    /// Makes the changes of a transaction, and appends it to the pipeline; `false`, without a change,
    /// if they are too large.
    fn commit(
        &mut self,
        now: Now,
        tag: Tag,
        reply: X::Reply,
        work: Work,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let sent = |(key, one): (&Key, &OneKey<'_>)| key.len() + one.change_bytes() + ITEM_BYTES;
        if work.keys.iter().map(sent).sum::<usize>() > limits::TXN_BYTES_MAX + ITEM_BYTES {
            return false;
        }
        let version = self.issue(now);
        let mut read = Vec::new();
        let mut written: Vec<(Key, Timestamp, Option<Value>)> = Vec::new();
        for key in &work.expired {
            effects.expired(key);
        }
        for (key, one) in work.keys {
            if !one.is_changed() {
                read.push(key);
                continue;
            }
            let round = self.claim(now, &key, effects);
            let value = self.write(&key, one.finish(), version);
            written.push((key, round, value));
        }
        let items = written.iter().map(|(key, round, value)| {
            let content: Option<Content<'_>> = value.as_ref().map(Value::content);
            Item { key, round: *round, content }
        });
        let items = Items::write(items);
        let items = Items::check(&items).expect("just written");
        let answer = Answer { tag, reply, at: Some(version) };
        if mutant!("zeus_answers_at_local_commit") {
            let done = Completion::new(Outcome::Done(answer.reply.clone())).at(version);
            effects.complete_on(tag, done);
        }
        let read = read.iter().map(|key| &**key).collect();
        self.append(now, &Committing { version, read, items }, answer, effects);
        true
    }

    /// The round in which this node has got a key that it is about to write. If it is the owner only
    /// because there was none, it becomes one by name: what it sends carries a round of its own.
    fn claim(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) -> Timestamp {
        let meta = self.meta(key);
        if self.layout.node_of(meta.owner).is_some() {
            return self.settled(key).round;
        }
        effects.probe("zeus: a default owner claims a key");
        let owner = self.layout.number;
        self.supersede(now, key, owner, effects);
        self.rounds.remove(key);
        let round = self.next_round_at(meta.round);
        let settled = (round, owner, OwnerState::Valid);
        self.change_meta(key, |meta| (meta.round, meta.owner, meta.state) = settled);
        round
    }

    /// Changes a record; gives the value as it travels.
    fn write(&mut self, key: &[u8], change: Change<'_>, version: Timestamp) -> Option<Value> {
        let length = if let Change::Set { bytes, .. } = &change { bytes.len() } else { 0 };
        let mut record = self.table.lock_key(key, length);
        match change {
            Change::Keep => {}
            Change::Set { bytes, kind, expire_at } => {
                record.set_content(Content { bytes: &bytes, kind, expire_at });
            }
            Change::Delta { bytes, expire_at } => {
                let large = record.large_mut().expect("a command saw that the value is large");
                large.apply(&bytes, &mut Vec::new()).expect("it made a delta of what it saw");
                record.set_expiry(expire_at);
            }
            Change::Expire(expire_at) => record.set_expiry(expire_at),
            Change::Delete => record.clear(),
        }
        let meta = record.meta();
        assert!(meta.version < version, "a transaction is above all that it overwrites");
        record.set_meta(Meta { version, data: DataState::Write, ..meta });
        record.whole(&mut Vec::new()).map(Value::of)
    }
}
