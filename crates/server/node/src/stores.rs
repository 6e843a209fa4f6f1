//! The records of one keyspace, whatever its engine keeps beside the values.

use std::num::NonZeroU64;

use quorate_commands::{Call, Reply};
use quorate_engine::Readable;
use quorate_machine::{Command as _, Content, Current, ValueKind, mutant};
use quorate_storage::{Changes, Snapshot, Stats, Store, ValueInfo};
use quorate_types::{LaneId, Timestamp, UnixMillis, hash_key};

use crate::engines::{KeyspaceStore, each_store};

/// Is told a key, its version, whether it may be read, and its content.
pub type Visit<'a> = dyn FnMut(&[u8], Timestamp, bool, Option<Content<'_>>) + 'a;

/// Is told a key, its value, and whether no update of it is under way.
pub(crate) type VisitKey<'a> = dyn FnMut(&[u8], Option<ValueInfo>, bool) + 'a;

impl KeyspaceStore {
    /// Runs a read-only call on one record, without a lock. `None` if the record can't be read at
    /// this moment, or its value has expired, which only an update may say.
    #[inline]
    pub(crate) fn read<R>(
        &self,
        call: &Call<'_>,
        now: UnixMillis,
        scratch: &mut Vec<u8>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R> {
        // Where a key need not be here, the engine knows which version its absence has.
        let tells_absence = !self.capabilities().spreads;
        each_store!(self, store => read(store, tells_absence, call, now, scratch, with))
    }

    /// Visits some records of all lanes; see [`Store::scan`].
    pub fn scan(
        &self,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Option<ValueInfo>),
    ) -> u64 {
        each_store!(self, store => {
            store.scan(cursor, limit, &mut |key, snapshot| visit(key, snapshot.value))
        })
    }

    /// Visits some records, of one lane or of all, with whether no update of them is under way.
    /// `locked` is for stores of engines whose answers run ahead of their records; in others an
    /// update is under way while a record can't be read, which matters only to one lane's flush.
    pub(crate) fn list(
        &self,
        (lane, locked): (Option<LaneId>, bool),
        cursor: u64,
        limit: usize,
        visit: &mut VisitKey<'_>,
    ) -> u64 {
        each_store!(self, store => list(store, (lane, locked), cursor, limit, visit))
    }

    /// A cursor at a place that `random` chooses; see [`Store::random_cursor`].
    pub fn random_cursor(&self, random: u64) -> u64 {
        each_store!(self, store => store.random_cursor(random))
    }

    /// Bytes of a key with a live value, index included.
    pub fn memory_of(&self, key: &[u8], now: UnixMillis) -> Option<usize> {
        each_store!(self, store => {
            let hash = hash_key(key);
            let pinned = store.pin();
            let value = store.peek(key, hash, &pinned)?.value?;
            if value.expire_at.is_some_and(|at| at <= now) {
                return None;
            }
            store.memory_of(key, hash, &pinned)
        })
    }

    /// What kind of value a key has here, be it expired or not decided yet.
    pub(crate) fn kind_of(&self, key: &[u8]) -> Option<ValueKind> {
        each_store!(self, store => {
            let snapshot = store.peek(key, hash_key(key), &store.pin())?;
            snapshot.value.map(|value| value.kind)
        })
    }

    /// The bytes of a key's value here, be it decided or not: for what is only a hint.
    pub(crate) fn glance(&self, key: &[u8]) -> Option<Vec<u8>> {
        each_store!(self, store => {
            let mut bytes = Vec::new();
            let snapshot = store.read(key, hash_key(key), &store.pin(), &mut bytes)?;
            snapshot.value.is_some().then_some(bytes)
        })
    }

    /// See [`Store::watch`].
    pub(crate) fn watch(&self, key: &[u8]) {
        each_store!(self, store => store.watch(key));
    }

    /// See [`Store::unwatch`].
    pub(crate) fn unwatch(&self, key: &[u8]) {
        each_store!(self, store => store.unwatch(key));
    }

    /// See [`Store::watch_prefix`].
    pub(crate) fn watch_prefix(&self, prefix: &[u8], coalesced: bool) {
        each_store!(self, store => store.watch_prefix(prefix, coalesced));
    }

    /// See [`Store::unwatch_prefix`].
    pub(crate) fn unwatch_prefix(&self, prefix: &[u8], coalesced: bool) {
        each_store!(self, store => store.unwatch_prefix(prefix, coalesced));
    }

    /// See [`Store::arm`].
    pub(crate) fn arm(&self) {
        each_store!(self, store => store.arm());
    }

    /// See [`Store::is_any_watched`].
    #[inline]
    pub(crate) fn is_any_watched(&self, lane: LaneId) -> bool {
        each_store!(self, store => store.is_any_watched(lane.0))
    }

    /// See [`Store::set_writer`].
    pub(crate) fn set_writer(&self, lane: LaneId, writer: Option<NonZeroU64>) {
        each_store!(self, store => store.set_writer(lane.0, writer));
    }

    /// See [`Store::has_changes`].
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        each_store!(self, store => store.has_changes())
    }

    /// See [`Store::take_changes`].
    pub(crate) fn take_changes(&self) -> Changes {
        each_store!(self, store => store.take_changes())
    }

    /// What the store holds.
    pub fn stats(&self) -> Stats {
        each_store!(self, store => store.stats())
    }

    /// Visits every record with its version, whether it may be read, and its value.
    pub fn dump(&self, visit: &mut Visit<'_>) {
        each_store!(self, store => dump(store, visit));
    }
}

#[inline]
fn read<M: Readable, R>(
    store: &Store<M>,
    tells_absence: bool,
    call: &Call<'_>,
    now: UnixMillis,
    scratch: &mut Vec<u8>,
    with: impl FnOnce(Reply<'_>) -> R,
) -> Option<R> {
    let (key, pinned) = (call.key(), store.pin());
    let hash = hash_key(key);
    let is_doubted = store.is_absence_doubted(hash) && !mutant!("node_doubtful_absence_read");
    let tells_absence = tells_absence && !is_doubted;
    let Some(mut snapshot) = store.read(key, hash, &pinned, scratch) else {
        return tells_absence.then(|| with(call.execute(now, Current::ABSENT).0));
    };
    let mut large = None;
    if snapshot.value.is_some_and(|value| value.is_large) {
        scratch.clear();
        (snapshot, large) = store.read_large(key, hash, &pinned)?;
        if snapshot.value.is_some() && large.is_none() {
            // It has become packed meanwhile: the lane of the key answers.
            return None;
        }
    }
    if !snapshot.meta.is_readable() || (snapshot.value.is_none() && !tells_absence) {
        return None;
    }
    let content = snapshot.content(scratch);
    if content.is_some_and(|content| content.is_expired(now)) {
        return None;
    }
    let timestamp = snapshot.meta.version();
    Some(with(call.execute(now, Current { content, large: large.as_ref(), timestamp }).0))
}

fn list<M: Readable>(
    store: &Store<M>,
    which: (Option<LaneId>, bool),
    cursor: u64,
    limit: usize,
    visit: &mut VisitKey<'_>,
) -> u64 {
    match which {
        (None, false) => {
            return store.scan(cursor, limit, &mut |key, snapshot: Snapshot<M>| {
                visit(key, snapshot.value, true);
            });
        }
        (Some(lane), false) => {
            return store.scan_lane(lane, cursor, limit, &mut |key, snapshot: Snapshot<M>| {
                let settled = snapshot.meta.is_readable() || mutant!("node_flush_awaits_no_other");
                visit(key, snapshot.value, settled);
            });
        }
        (_, true) => {}
    }
    let mut locked = |key: &[u8], snapshot: Snapshot<M>, state: &M::LockedState| {
        visit(key, snapshot.value, M::is_settled(state));
    };
    match which.0 {
        None => store.scan_locked(cursor, limit, &mut locked),
        Some(lane) => store.scan_lane_locked(lane, cursor, limit, &mut locked),
    }
}

fn dump<M: Readable>(store: &Store<M>, visit: &mut Visit<'_>) {
    let mut cursor = 0;
    loop {
        let mut keys = Vec::new();
        cursor = store.scan(cursor, 1000, &mut |key, _: Snapshot<M>| keys.push(key.to_vec()));
        for key in keys {
            let mut scratch = Vec::new();
            let pinned = store.pin();
            let hash = hash_key(&key);
            let Some(mut snapshot) = store.read(&key, hash, &pinned, &mut scratch) else {
                continue;
            };
            if snapshot.value.is_some_and(|value| value.is_large)
                && let Some((whole, Some(large))) = store.read_large(&key, hash, &pinned)
            {
                snapshot = whole;
                large.pack(&mut scratch);
            }
            let content = snapshot.content(&scratch);
            visit(&key, snapshot.meta.version(), snapshot.meta.is_readable(), content);
        }
        if cursor == 0 {
            return;
        }
    }
}
