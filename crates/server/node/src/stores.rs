//! The records of one keyspace, whatever its engine keeps beside the values.

use std::sync::Arc;

use quorate_commands::{Call, Reply};
use quorate_machine::{Current, Meta, Operation as _};
use quorate_storage::{Snapshot, Stats, Store, ValueInfo};
use quorate_types::{LaneId, Timestamp, UnixMillis, hash_key};

/// The records of one keyspace on one node, shared by its lanes.
#[derive(Clone, Debug)]
pub enum KeyspaceStore {
    /// Of a hermes keyspace.
    Hermes(Arc<Store<quorate_hermes::Meta>>),
    /// Of a meerkat keyspace.
    Meerkat(Arc<Store<quorate_meerkat::Meta>>),
    /// Of one of Meerkat's rivals, with what its lanes share besides records.
    Baseline(Arc<Store<quorate_meerkat::Meta>>, Arc<quorate_baselines::Common>),
}

/// Is told a key, its version, whether it may be read, and its value.
pub type Visit<'a> = dyn FnMut(&[u8], Timestamp, bool, Option<&[u8]>) + 'a;

/// What a lock-free reader asks of a protocol's words.
trait Readable: Meta {
    /// Whether the value may be returned.
    fn is_readable(&self) -> bool;
    /// The version of the value.
    fn version(&self) -> Timestamp;
}

impl Readable for quorate_hermes::Meta {
    fn is_readable(&self) -> bool {
        Self::is_readable(self)
    }

    fn version(&self) -> Timestamp {
        self.timestamp()
    }
}

/// A record holds committed versions only.
impl Readable for quorate_meerkat::Meta {
    fn is_readable(&self) -> bool {
        true
    }

    fn version(&self) -> Timestamp {
        self.timestamp()
    }
}

/// Does the same with the store of any engine.
macro_rules! each {
    ($self:expr, $store:ident => $body:expr) => {
        match $self {
            KeyspaceStore::Hermes($store) => $body,
            KeyspaceStore::Meerkat($store) => $body,
            KeyspaceStore::Baseline($store, _) => $body,
        }
    };
}

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
        each!(self, store => read(store, call, now, scratch, with))
    }

    /// Visits some records of all lanes; see [`Store::scan`].
    pub fn scan(
        &self,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Option<ValueInfo>),
    ) -> u64 {
        each!(self, store => {
            store.scan(cursor, limit, &mut |key, snapshot| visit(key, snapshot.value))
        })
    }

    /// Visits some records of one lane.
    pub fn scan_lane(
        &self,
        lane: LaneId,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Option<ValueInfo>),
    ) -> u64 {
        each!(self, store => {
            store.scan_lane(lane, cursor, limit, &mut |key, snapshot| visit(key, snapshot.value))
        })
    }

    /// A cursor at a place that `random` chooses; see [`Store::random_cursor`].
    pub fn random_cursor(&self, random: u64) -> u64 {
        each!(self, store => store.random_cursor(random))
    }

    /// Bytes of a key with a live value, index included.
    pub fn memory_of(&self, key: &[u8], now: UnixMillis) -> Option<usize> {
        each!(self, store => {
            let hash = hash_key(key);
            let pinned = store.pin();
            let value = store.peek(key, hash, &pinned)?.value?;
            if value.expire_at.is_some_and(|at| at <= now) {
                return None;
            }
            store.memory_of(key, hash, &pinned)
        })
    }

    /// What the store holds.
    pub fn stats(&self) -> Stats {
        each!(self, store => store.stats())
    }

    /// Visits every record with its version, whether it may be read, and its value.
    pub fn dump(&self, visit: &mut Visit<'_>) {
        each!(self, store => dump(store, visit));
    }
}

#[inline]
fn read<M: Readable, R>(
    store: &Store<M>,
    call: &Call<'_>,
    now: UnixMillis,
    scratch: &mut Vec<u8>,
    with: impl FnOnce(Reply<'_>) -> R,
) -> Option<R> {
    let key = call.key();
    let snapshot = store.read(key, hash_key(key), &store.pin(), scratch);
    let current = match &snapshot {
        None => Current { content: None, timestamp: Timestamp::ZERO },
        Some(snapshot) => {
            if !snapshot.meta.is_readable() {
                return None;
            }
            let content = snapshot.content(scratch);
            if content.is_some_and(|content| content.is_expired(now)) {
                return None;
            }
            Current { content, timestamp: snapshot.meta.version() }
        }
    };
    Some(with(call.execute(now, current).0))
}

fn dump<M: Readable>(store: &Store<M>, visit: &mut Visit<'_>) {
    let mut cursor = 0;
    loop {
        let mut keys = Vec::new();
        cursor = store.scan(cursor, 1000, &mut |key, _: Snapshot<M>| keys.push(key.to_vec()));
        for key in keys {
            let mut scratch = Vec::new();
            let Some(snapshot) = store.read(&key, hash_key(&key), &store.pin(), &mut scratch)
            else {
                continue;
            };
            let value = snapshot.value.map(|_| &scratch[..]);
            visit(&key, snapshot.meta.version(), snapshot.meta.is_readable(), value);
        }
        if cursor == 0 {
            return;
        }
    }
}
