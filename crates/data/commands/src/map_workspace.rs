//! A workspace over an ordered map.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::{
    Change, Command, Content, Current, OneKey, Unordered, ValueKind, Verdict, Workspace,
    range_bounds,
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
}

/// A committed value, or the tombstone of one.
#[derive(Clone, Debug)]
struct Versioned {
    value: Option<(Vec<u8>, ValueKind, Option<UnixMillis>)>,
    timestamp: Timestamp,
}

impl Versioned {
    fn content(&self, now: UnixMillis) -> Option<Content<'_>> {
        let (bytes, kind, expire_at) = self.value.as_ref()?;
        let content = Content { bytes, kind: *kind, expire_at: *expire_at };
        (!content.is_expired(now)).then_some(content)
    }
}

impl MapWorkspace {
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
        self.committed.get(key).map_or(Current::ABSENT, |held| Current {
            content: held.content(now),
            large: None,
            timestamp: held.timestamp,
        })
    }

    /// The keys that the last transaction read, in their order: its answer rests on them.
    pub fn read_set(&self) -> impl Iterator<Item = &[u8]> {
        self.touched.iter().filter(|(_, work)| work.was_read()).map(|(key, _)| &**key)
    }

    fn commit(&mut self, key: Box<[u8]>, change: Change<'_>, timestamp: Timestamp) {
        let held = self.committed.get(&key).and_then(|held| held.content(self.now));
        let value = match change {
            Change::Keep => return,
            Change::Set { bytes, kind, expire_at } => Some((bytes.into_owned(), kind, expire_at)),
            Change::Expire(at) => held.map(|held| (held.bytes.into(), held.kind, at)),
            Change::Delete => None,
            Change::Delta { .. } => unreachable!("what a map holds is packed"),
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
