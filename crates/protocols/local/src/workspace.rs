//! A transaction's view of the records, and how its changes are made.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{
    Change, Command, Content, Current, LaneShared, OrderedTable, Outcome, Record as _, Refusal,
    Unordered, ValueKind, Verdict, Workspace, mutant, no_object, range_bounds,
};
use quorate_types::{Now, Timestamp, UnixMillis, WriterId, limits};

use crate::meta::Meta;
use crate::state::Local;

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
    keys: BTreeMap<Box<[u8]>, Key>,
    /// Bytes of keys, and of values that were read or written.
    bytes: usize,
}

type Value = Option<(Vec<u8>, ValueKind, Option<UnixMillis>)>;

#[derive(Debug)]
struct Key {
    version: Timestamp,
    value: Value,
    changed: bool,
}

/// The records as one transaction sees them.
struct View<'a, T> {
    table: &'a mut T,
    touched: &'a mut Touched,
    now: UnixMillis,
}

impl Touched {
    fn clear(&mut self) {
        self.keys.clear();
        self.bytes = 0;
    }

    fn is_full(&self) -> bool {
        self.keys.len() > limits::TXN_KEYS_MAX || self.bytes > limits::TXN_READ_BYTES_MAX
    }

    fn writes(&self) -> impl Iterator<Item = (&[u8], &Value)> {
        self.keys.iter().filter(|(_, key)| key.changed).map(|(name, key)| (&**name, &key.value))
    }
}

impl<T: OrderedTable<Meta = Meta> + LaneShared> View<'_, T> {
    /// What the transaction knows of a key, read now unless it was touched before.
    fn key(&mut self, name: &[u8]) -> &mut Key {
        if !self.touched.keys.contains_key(name) {
            let (version, value) = self.load(name);
            let held = value.as_ref().map_or(0, |(bytes, ..)| bytes.len());
            self.touched.bytes += name.len() + held;
            let key = Key { version, value, changed: false };
            self.touched.keys.insert(name.into(), key);
        }
        self.touched.keys.get_mut(name).expect("it is there now")
    }

    /// The version of a key without a record is the floor's: no removed tombstone had a larger one.
    fn load(&mut self, name: &[u8]) -> (Timestamp, Value) {
        let floor = Timestamp::new(self.table.highest(), WriterId(0));
        let Some(record) = self.table.lock_existing(name) else { return (floor, None) };
        let version = record.meta().version;
        let content = record.content().filter(|content| !content.is_expired(self.now));
        let value =
            content.map(|content| (content.bytes.to_vec(), content.kind, content.expire_at));
        (if version == Timestamp::ZERO { floor } else { version }, value)
    }
}

impl<T: OrderedTable<Meta = Meta> + LaneShared> Workspace for View<'_, T> {
    fn read(&mut self, name: &[u8]) -> Current<'_> {
        let key = self.key(name);
        let content = key.value.as_ref().map(|(bytes, kind, expire_at)| Content {
            bytes,
            kind: *kind,
            expire_at: *expire_at,
        });
        Current { content, timestamp: key.version }
    }

    fn write(&mut self, name: &[u8], change: Change<'_>) {
        let value = match change {
            Change::Keep => return,
            Change::Set { bytes, kind, expire_at } => Some((bytes.into_owned(), kind, expire_at)),
            Change::Delete => None,
            Change::Delta(_) => no_object(),
            Change::Expire(at) => {
                let key = self.key(name);
                let Some((_, _, expire_at)) = &mut key.value else { return };
                *expire_at = at;
                key.changed = true;
                return;
            }
        };
        self.touched.bytes += value.as_ref().map_or(0, |(bytes, ..): &(Vec<u8>, _, _)| bytes.len());
        match self.touched.keys.get_mut(name) {
            Some(key) => (key.value, key.changed) = (value, true),
            None => {
                self.touched.bytes += name.len();
                let key = Key { version: Timestamp::ZERO, value, changed: true };
                self.touched.keys.insert(name.into(), key);
            }
        }
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
    pub(crate) fn run<P>(&mut self, now: Now, last: u64, txn: &P) -> Ran<X::Reply>
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        self.touched.clear();
        let mut view = View { table: &mut self.table, touched: &mut self.touched, now: now.wall() };
        let verdict = txn.run(now.wall(), &mut view);
        let refused = |refusal| Ran { outcome: Outcome::Refused(refusal), at: Timestamp::ZERO };
        if self.touched.is_full() {
            return refused(Refusal::TooLarge);
        }
        match verdict {
            Verdict::Abandon(reply) => {
                self.counters.abandoned += 1;
                Ran { outcome: Outcome::Done(reply), at: Timestamp::ZERO }
            }
            Verdict::Commit(reply) if self.touched.writes().next().is_none() => {
                self.counters.reads += 1;
                Ran { outcome: Outcome::Done(reply), at: Timestamp::ZERO }
            }
            Verdict::Commit(reply) => {
                self.counters.commits += 1;
                let at = self.issue(now, last);
                self.commit(at);
                Ran { outcome: Outcome::Done(reply), at }
            }
        }
    }

    /// A version above every one of these lanes.
    pub(crate) fn issue(&mut self, now: Now, last: u64) -> Timestamp {
        self.last = now.unix.0.max(self.last.max(last) + 1);
        Timestamp::new(self.last, self.writer)
    }

    /// Makes the changes. Readers on other lanes see all of them or none.
    fn commit(&mut self, at: Timestamp) {
        let several = self.touched.writes().nth(1).is_some();
        if several && self.config.lanes > 1 && !mutant!("local_changes_one_key_after_the_other") {
            for (name, value) in self.touched.writes() {
                let length = value.as_ref().map_or(0, |(bytes, ..)| bytes.len());
                let mut record = self.table.lock_key(name, length);
                let version = record.meta().version;
                record.set_meta(Meta { version, changing: true });
            }
        }
        for (name, value) in self.touched.writes() {
            let length = value.as_ref().map_or(0, |(bytes, ..)| bytes.len());
            let mut record = self.table.lock_key(name, length);
            match value {
                Some((bytes, kind, expire_at)) => {
                    record.set_content(Content { bytes, kind: *kind, expire_at: *expire_at });
                }
                None => record.clear(),
            }
            record.set_meta(Meta { version: at, changing: false });
        }
    }
}
