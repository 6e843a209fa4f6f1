//! A transaction's view of the records, and how its changes are made.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::{
    Change, Command, Content, Current, Effects, LaneShared, OneKey, OrderedTable, Outcome,
    Record as _, Refusal, Unordered, Verdict, Workspace, mutant, range_bounds,
};
use quorate_rifl::Permit;
use quorate_types::{Now, Timestamp, UnixMillis, WriterId, lane_of_key, limits};

use crate::log::{Completed, Entry, write_commit, write_item};
use crate::meta::Meta;
use crate::state::{Lanes, Local};

/// Keys of a range that are looked up at a time.
const RANGE_KEYS: usize = 64;

/// How a transaction ended.
#[derive(Clone, Debug)]
pub struct Ran<R> {
    pub(crate) outcome: Outcome<R>,
    /// The version of what it changed; zero if it changed nothing.
    pub(crate) at: Timestamp,
}

/// The keys that a transaction has touched.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    keys: BTreeMap<Box<[u8]>, OneKey<'static>>,
    /// Keys whose values have expired, and their versions.
    expired: Vec<(Box<[u8]>, Timestamp)>,
    /// Bytes of keys, and of values that were read or written.
    bytes: usize,
}

/// The records as one transaction sees them.
struct View<'a, T> {
    table: &'a mut T,
    touched: &'a mut Touched,
    now: UnixMillis,
    /// Every later change has a larger version, if something is watched.
    known: u64,
    watches: bool,
}

impl Touched {
    fn clear(&mut self) {
        self.keys.clear();
        self.expired.clear();
        self.bytes = 0;
    }

    fn is_full(&self) -> bool {
        self.keys.len() > limits::TXN_KEYS_MAX || self.bytes > limits::TXN_READ_BYTES_MAX
    }

    /// The keys that it changes.
    fn writes(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().filter(|(_, key)| key.is_changed()).map(|(name, _)| &**name)
    }
}

impl<T: OrderedTable<Meta = Meta> + LaneShared> View<'_, T> {
    /// What the transaction knows of a key, read now unless it was touched before.
    fn key(&mut self, name: &[u8]) -> &mut OneKey<'static> {
        if !self.touched.keys.contains_key(name) {
            let key = self.load(name);
            self.touched.keys.insert(name.into(), key);
        }
        self.touched.keys.get_mut(name).expect("it is there now")
    }

    /// The version of a key without a record is the floor's: no removed tombstone had a larger one.
    fn load(&mut self, name: &[u8]) -> OneKey<'static> {
        self.touched.bytes += name.len();
        let floor = Timestamp::new(self.table.highest(), WriterId(0));
        let absent = Current { timestamp: floor, ..Current::ABSENT };
        let Some(record) = self.table.lock_existing(name) else { return OneKey::new(absent) };
        let version = record.meta().version;
        let is_expired = record.content().is_some_and(|content| content.is_expired(self.now));
        if is_expired && !mutant!("local_expired_shown_as_absent") {
            self.touched.expired.push((name.into(), version));
        }
        let content = record.content().filter(|_| !is_expired);
        // Of an absent key no more is known than of one whose tombstone was removed.
        let timestamp = if content.is_some() { version } else { version.max(floor) };
        let large = record.large().filter(|_| content.is_some());
        self.touched.bytes += content.map_or(0, |content| content.bytes.len());
        OneKey::new(Current { content, large, timestamp }).into_owned()
    }
}

impl<T: OrderedTable<Meta = Meta> + LaneShared> Workspace for View<'_, T> {
    fn read(&mut self, name: &[u8]) -> Current<'_> {
        self.key(name).read(name)
    }

    fn watch(&mut self, name: &[u8]) -> (Timestamp, bool) {
        self.watches = true;
        let known = Timestamp::new(self.known, WriterId(u32::MAX));
        let current = self.read(name);
        match current.content.is_some() || mutant!("local_watch_of_absence_at_last_change") {
            true => (current.timestamp, current.content.is_some()),
            false => (current.timestamp.max(known), false),
        }
    }

    fn write(&mut self, name: &[u8], change: Change<'_>) {
        match &change {
            Change::Keep => return,
            Change::Set { bytes, .. } => self.touched.bytes += bytes.len(),
            Change::Delta { bytes, .. } => self.touched.bytes += bytes.len(),
            Change::Delete | Change::Expire(_) => {}
        }
        if matches!(change, Change::Set { .. } | Change::Delete)
            && !self.touched.keys.contains_key(name)
        {
            // A blind write reads nothing.
            self.touched.bytes += name.len();
            self.touched.keys.insert(name.into(), OneKey::new(Current::ABSENT));
        }
        self.key(name).write(name, change);
    }

    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        if !self.table.keeps_order() {
            return Err(Unordered);
        }
        let Some(bounds) = range_bounds(from, to) else { return Ok(()) };
        // Keys that this transaction made itself.
        let touched = self.touched.keys.range::<[u8], _>(bounds).map(|(name, _)| name.clone());
        let mut own = touched.collect::<Vec<_>>().into_iter().peekable();
        let (mut left, mut next, mut page) = (limit, from.to_vec(), Vec::new().into_iter());
        let mut is_last = false;
        while left > 0 && !self.is_full() {
            if page.as_slice().is_empty() && !is_last {
                let mut names: Vec<Box<[u8]>> = Vec::new();
                self.table.range(&next, to, RANGE_KEYS, &mut |name, _| names.push(name.into()));
                is_last = names.len() < RANGE_KEYS;
                if let Some(last) = names.last() {
                    next = [last, &[0][..]].concat();
                }
                page = names.into_iter();
                continue;
            }
            let (held, own_name) = (page.as_slice().first(), own.peek());
            let is_own = match (held, own_name) {
                (None, None) => break,
                (Some(held), Some(own_name)) => own_name <= held,
                (held, _) => held.is_none(),
            };
            let name = if is_own { own.next() } else { page.next() }.expect("just looked at");
            if is_own && page.as_slice().first() == Some(&name) {
                page.next();
            }
            let current = self.read(&name);
            if current.content.is_some() {
                visit(&name, current);
                left -= 1;
            }
        }
        Ok(())
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.table.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.touched.is_full()
    }
}

impl<T, X> Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Runs a transaction whose keys nobody else changes meanwhile. `last` is the largest version
    /// that any of its lanes has given.
    pub(crate) fn run<P>(
        &mut self,
        now: Now,
        last: u64,
        lanes: Lanes,
        call: Option<&Permit>,
        txn: &P,
        effects: &mut impl Effects<Self>,
    ) -> (Ran<X::Reply>, Option<Entry>)
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        self.touched.clear();
        let (known, watches) = (now.unix.0.max(self.last).max(last), false);
        let (table, touched) = (&mut self.table, &mut self.touched);
        let mut view = View { table, touched, now: now.wall(), known, watches };
        let verdict = txn.run(now.wall(), &mut view);
        if view.watches {
            // The wall clock may be set back.
            self.last = known;
        }
        if self.touched.is_full() {
            let outcome = Outcome::Refused(Refusal::TooLarge);
            return (Ran { outcome, at: Timestamp::ZERO }, None);
        }
        let (reply, writes) = match verdict {
            Verdict::Abandon(reply) => {
                self.counters.abandoned += 1;
                (reply, false)
            }
            Verdict::Commit(reply) if self.touched.writes().next().is_none() => {
                self.counters.reads += 1;
                (reply, false)
            }
            Verdict::Commit(reply) => {
                self.counters.commits += 1;
                (reply, true)
            }
        };
        let call = call.filter(|_| self.log.is_kept);
        let expired = self.delete_touched(now, effects);
        if !writes && call.is_none() && expired.is_empty() {
            return (Ran { outcome: Outcome::Done(reply), at: Timestamp::ZERO }, None);
        }
        let at = self.issue(now, last);
        let mut answer = Vec::new();
        let completed = call.map(|permit| {
            X::encode_reply(&reply, &mut answer);
            let date = permit.date.max(at.version);
            Completed { call: permit.call, date, answer: &answer }
        });
        let keys = core::mem::take(&mut self.touched.keys);
        let changes = keys.into_iter().filter_map(|(name, key)| match writes && key.is_changed() {
            true => Some((name, key.timestamp(), key.finish())),
            false => expired.contains(&name).then_some((name, Timestamp::ZERO, Change::Delete)),
        });
        let entry = self.commit((at, at), lanes, completed, changes.collect(), effects);
        let at = if writes { at } else { Timestamp::ZERO };
        (Ran { outcome: Outcome::Done(reply), at }, entry)
    }

    /// Deletes what was touched and has expired: once it was seen to be absent it must stay so, and a wall
    /// clock may be set back. Keys of other lanes are left, if these make their changes themselves.
    fn delete_touched(
        &mut self,
        now: Now,
        effects: &mut impl Effects<Self>,
    ) -> BTreeSet<Box<[u8]>> {
        let mut left = BTreeSet::new();
        for (name, version) in core::mem::take(&mut self.touched.expired) {
            if self.is_changed_elsewhere(&name) {
                left.insert(name);
            } else {
                self.delete_expired(now, name, version, effects);
            }
        }
        left
    }

    /// Whether another lane makes the changes of a key.
    fn is_changed_elsewhere(&self, name: &[u8]) -> bool {
        let (own, of) = (self.config.lane, self.config.lanes);
        self.log.is_kept && of > 1 && lane_of_key(name, of) != own
    }

    /// A version above every one of these lanes.
    pub(crate) fn issue(&mut self, now: Now, last: u64) -> Timestamp {
        self.last = now.unix.0.max(self.last.max(last) + 1);
        Timestamp::new(self.last, self.writer)
    }

    /// Appends the changes to the log, and makes them. Readers on other lanes see all of them or none, and
    /// none before they are durable. If there is a log, each lane makes those of its own keys, and gets the
    /// entry that comes back. What was changed has that version from then on.
    pub(crate) fn commit(
        &mut self,
        (at, version): (Timestamp, Timestamp),
        lanes: Lanes,
        call: Option<Completed<'_>>,
        changes: Vec<(Box<[u8]>, Timestamp, Change<'static>)>,
        effects: &mut impl Effects<Self>,
    ) -> Option<Entry> {
        let (mut entry, table) = (None, &mut self.table);
        let lsn = self.log.journal.append(effects, |out| {
            let start = out.len();
            write_commit(out, at, lanes, call);
            changes.iter().for_each(|(name, base, change)| write(table, name, *base, change, out));
            entry = (!lanes.is_one()).then(|| out[start..].into());
        });
        let is_durable = self.log.journal.is_durable(lsn) || mutant!("local_read_before_durable");
        let several = changes.len() > 1
            && self.config.lanes > 1
            && !mutant!("local_changes_one_key_after_the_other");
        for (name, _, change) in &changes {
            if several || self.is_changed_elsewhere(name) {
                let mut record = self.table.lock_key(name, length(change));
                let version = record.meta().version;
                record.set_meta(Meta { version, changing: true });
            }
        }
        let mut unreadable = Vec::new();
        for (name, _, change) in changes {
            if self.is_changed_elsewhere(&name) && !mutant!("local_changes_other_lanes_keys") {
                continue;
            }
            let mut record = self.table.lock_key(&name, length(&change));
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
            record.set_meta(Meta { version, changing: !is_durable });
            drop(record);
            if !is_durable {
                unreadable.push(name);
            }
        }
        self.read_after(lsn, version, unreadable);
        entry
    }
}

/// Writes a change of a record that has yet to be made, as it stands in the log.
fn write<T: OrderedTable<Meta = Meta>>(
    table: &mut T,
    name: &[u8],
    base: Timestamp,
    change: &Change<'_>,
    out: &mut Vec<u8>,
) {
    match change {
        Change::Keep => {}
        Change::Set { bytes, kind, expire_at } => {
            let content = Content { bytes, kind: *kind, expire_at: *expire_at };
            write_item(out, name, Some(content), None);
        }
        Change::Delta { bytes, expire_at } => {
            let record = table.lock_existing(name).expect("it has a large value");
            let kind = record.content().expect("it has a large value").kind;
            let content = Content { bytes, kind, expire_at: *expire_at };
            write_item(out, name, Some(content), Some(base));
        }
        Change::Expire(expire_at) => {
            let record = table.lock_existing(name).expect("it has a value");
            let content = record.content().expect("it has a value");
            let (content, is_large) =
                (Content { expire_at: *expire_at, ..content }, record.large().is_some());
            write_item(out, name, Some(content), is_large.then_some(base));
        }
        Change::Delete => write_item(out, name, None, None),
    }
}

/// Bytes that a new record is given room for.
fn length(change: &Change<'_>) -> usize {
    if let Change::Set { bytes, .. } = change { bytes.len() } else { 0 }
}
