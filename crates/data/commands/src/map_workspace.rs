//! A workspace over an ordered map.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::{
    Change, Collection, Command, Content, Current, OneKey, Unordered, ValueKind, Verdict,
    Workspace, may_be_large, range_bounds,
};
use quorate_types::{Timestamp, UnixMillis};

/// Keys in an ordered map and transactions on them, one after the other: what any engine must be
/// indistinguishable from. Meant for tests and for models to compare with.
#[derive(Clone, Debug, Default)]
pub struct MapWorkspace {
    committed: BTreeMap<Box<[u8]>, Versioned>,
    /// What the transaction that runs, or ran last, has touched.
    touched: BTreeMap<Box<[u8]>, OneKey<'static>>,
    now: UnixMillis,
    /// Collections of more bytes are large.
    packed_bytes_max: Option<usize>,
}

/// A committed value, or the tombstone of one.
#[derive(Clone, Debug)]
struct Versioned {
    value: Option<(Value, Option<UnixMillis>)>,
    timestamp: Timestamp,
}

#[derive(Clone, Debug)]
enum Value {
    Packed(Vec<u8>, ValueKind),
    Large(Collection),
}

impl Versioned {
    fn current(&self, now: UnixMillis) -> Current<'_> {
        let timestamp = self.timestamp;
        let Some((value, expire_at)) = &self.value else {
            return Current { timestamp, ..Current::ABSENT };
        };
        let (bytes, kind, large) = match value {
            Value::Packed(bytes, kind) => (&bytes[..], *kind, None),
            Value::Large(large) => (&[][..], large.kind(), Some(large)),
        };
        let content = Content { bytes, kind, expire_at: *expire_at };
        if content.is_expired(now) {
            return Current { timestamp, ..Current::ABSENT };
        }
        Current { content: Some(content), large, timestamp }
    }
}

impl MapWorkspace {
    /// One without keys, in which collections of more bytes than that are large; without a number none
    /// is.
    pub fn new(packed_bytes_max: Option<usize>) -> Self {
        Self { packed_bytes_max, ..Self::default() }
    }

    /// One with the same keys, in which collections of more bytes than that are large.
    pub fn with_large(&self, packed_bytes_max: usize) -> Self {
        let mut other = Self::new(Some(packed_bytes_max));
        for (key, held) in &self.committed {
            let current = held.current(UnixMillis::default());
            let Some(Content { kind, expire_at, .. }) = current.content else {
                other.committed.insert(key.clone(), held.clone());
                continue;
            };
            let mut bytes = current.content.map_or(Vec::new(), |content| content.bytes.to_vec());
            if let Some(large) = current.large {
                large.pack(&mut bytes);
            }
            let set = Change::Set { bytes: bytes.into(), kind, expire_at };
            other.commit(key.clone(), set, held.timestamp);
        }
        other
    }

    /// Runs a transaction. If it commits, the keys that it changed get this version.
    pub fn run<T: Command>(
        &mut self,
        now: UnixMillis,
        timestamp: Timestamp,
        transaction: &T,
    ) -> Verdict<T::Reply> {
        self.now = now;
        self.touched.clear();
        let verdict = transaction.run(now, self);
        if matches!(verdict, Verdict::Commit(_)) {
            for (key, work) in self.touched.clone() {
                self.commit(key, work.finish(), timestamp);
            }
        }
        verdict
    }

    /// What a key holds. A key that was never written has [`Timestamp::ZERO`].
    pub fn get(&self, now: UnixMillis, key: &[u8]) -> Current<'_> {
        self.committed.get(key).map_or(Current::ABSENT, |held| held.current(now))
    }

    /// The keys that the last transaction read, in their order: its answer rests on them.
    pub fn read_set(&self) -> impl Iterator<Item = &[u8]> {
        self.touched.iter().filter(|(_, work)| work.was_read()).map(|(key, _)| &**key)
    }

    fn commit(&mut self, key: Box<[u8]>, change: Change<'_>, timestamp: Timestamp) {
        let held = self.committed.get(&key).filter(|held| held.current(self.now).content.is_some());
        let value = match change {
            Change::Keep => return,
            Change::Set { bytes, kind, expire_at } => {
                let is_large = self.packed_bytes_max.is_some_and(|max| bytes.len() > max)
                    && may_be_large(kind, &bytes);
                let large = Collection::unpack(kind, &bytes).ok().filter(|_| is_large);
                let packed = || Value::Packed(bytes.into_owned(), kind);
                Some((large.map_or_else(packed, Value::Large), expire_at))
            }
            Change::Delta { bytes, expire_at } => {
                let Some(Versioned { value: Some((Value::Large(large), _)), .. }) = held else {
                    unreachable!("who changes a large value has seen it");
                };
                let mut large = large.clone();
                large.apply(&bytes, &mut Vec::new()).expect("it is a delta of what was seen");
                Some((Value::Large(large), expire_at))
            }
            Change::Expire(at) => {
                held.and_then(|held| held.value.clone()).map(|(value, _)| (value, at))
            }
            Change::Delete => None,
        };
        self.committed.insert(key, Versioned { value, timestamp });
    }

    fn touch(&mut self, key: &[u8]) -> &mut OneKey<'static> {
        if !self.touched.contains_key(key) {
            let work = OneKey::new(self.get(self.now, key)).into_owned();
            self.touched.insert(key.into(), work);
        }
        self.touched.get_mut(key).expect("it was put there")
    }
}

impl Workspace for MapWorkspace {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        self.touch(key).read(key)
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        self.touch(key).write(key, change);
    }

    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        let Some(bounds) = range_bounds(from, to) else { return Ok(()) };
        let committed = self.committed.range::<[u8], _>(bounds).map(|(key, _)| key);
        let touched = self.touched.range::<[u8], _>(bounds).map(|(key, _)| key);
        let keys: BTreeSet<Box<[u8]>> = committed.chain(touched).cloned().collect();
        let mut left = limit;
        for key in keys {
            if left == 0 {
                break;
            }
            let current = self.touch(&key).read(&key);
            if current.content.is_some() {
                visit(&key, current);
                left -= 1;
            }
        }
        Ok(())
    }
}
