//! How a machine sees the store.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;

use quorate_types::{LaneId, UnixMillis};

use quorate_collections::{Collection, ValueKind};

/// A value as it lies in a record or a message.
///
/// A *packed* value is its bytes, and is replaced whole. A *large* one is a collection that a table
/// keeps beside them ([`Record::large`]), to be changed in place; in a message it is packed. Which form
/// a collection has in a table the table decides: both are the same value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Content<'a> {
    /// The bytes; none in the record of a large value.
    pub bytes: &'a [u8],
    /// What they are.
    pub kind: ValueKind,
    /// When the value expires, absolute; it is never returned from then on.
    pub expire_at: Option<UnixMillis>,
}

impl Content<'_> {
    /// Whether the value is past its time.
    pub fn is_expired(&self, now: UnixMillis) -> bool {
        self.expire_at.is_some_and(|at| at <= now)
    }
}

/// A protocol's own words in each record. `Default` is the meta of a key that was never written.
///
/// Packed into 64-bit words so that `storage` can keep them in atomics and readers can copy them
/// without a lock.
pub trait Meta: Copy + Default + 'static {
    /// What the protocol keeps beside the words, reachable only under the record's lock; `()` if
    /// the words are all.
    type LockedState: Clone + Default + Eq + Hash + Debug + Send + 'static;
    /// How many words.
    const WORDS: usize;
    /// Writes exactly [`Meta::WORDS`] words.
    fn pack(self, words: &mut [u64]);
    /// Reads what [`Meta::pack`] wrote.
    fn unpack(words: &[u64]) -> Self;
}

/// Exclusive access to one record. Readers that take no lock see all of a guard's changes or none
/// (pitfall H0: value and timestamp change together).
pub trait Record {
    /// The protocol's own words.
    type Meta: Meta;
    /// The record's key.
    fn key(&self) -> &[u8];
    /// The protocol's words.
    fn meta(&self) -> Self::Meta;
    /// Replaces the protocol's words.
    fn set_meta(&mut self, meta: Self::Meta);
    /// What the protocol keeps beside its words.
    fn locked_state(&self) -> &<Self::Meta as Meta>::LockedState;
    /// The same, to be changed.
    fn locked_state_mut(&mut self) -> &mut <Self::Meta as Meta>::LockedState;
    /// The value, if the key has one. Expired values are still here.
    fn content(&self) -> Option<Content<'_>>;
    /// Replaces the value by this one, whose bytes are all of it.
    fn set_content(&mut self, content: Content<'_>);
    /// The value, if it is large; [`Record::content`] has its kind and its expiry.
    fn large(&self) -> Option<&Collection>;
    /// The value as it travels: if it is large, packed, which is written to `packed`.
    #[inline]
    fn whole<'a>(&'a self, packed: &'a mut Vec<u8>) -> Option<Content<'a>> {
        match (self.content(), self.large()) {
            (Some(content), Some(large)) => {
                packed.clear();
                large.pack(packed);
                Some(Content { bytes: packed, ..content })
            }
            (content, _) => content,
        }
    }
    /// The value as a large one, to be changed in place: a packed collection becomes large. `None` if it
    /// is no collection.
    fn large_mut(&mut self) -> Option<&mut Collection>;
    /// Replaces the expiry of the value, if there is a value.
    fn set_expiry(&mut self, expire_at: Option<UnixMillis>);
    /// Removes the value; the record stays as a tombstone and keeps its meta.
    fn clear(&mut self);
}

/// How many places there are in the order of [`Table::scan_places`]. Keys are spread evenly.
pub const PLACES: u64 = 1 << 40;

/// How many keys are best passed to [`Table::warm`] at a time: so many loads a processor has under way
/// at once, and what they bring stays in its nearest cache until it is used.
pub const WARM_TOGETHER: usize = 16;

/// Point access to the records that one machine owns: those of its keyspace and lane.
pub trait Table {
    /// The protocol's words in each record.
    type Meta: Meta;
    /// Names a record until it is removed; finding a record again by handle costs no lookup.
    type Handle: Copy + Eq + Ord + Hash + Debug;
    /// A locked record, unlocked on drop.
    type Record<'a>: Record<Meta = Self::Meta>
    where
        Self: 'a;

    /// Whether a key's record would be in this table: each lane of a node may have some keys.
    fn owns(&self, key: &[u8]) -> bool {
        let _ = key;
        true
    }
    /// The record of a key, if there is one (perhaps a tombstone).
    fn find(&self, key: &[u8]) -> Option<Self::Handle>;
    /// The record of a key, made if need be: without value, with default meta.
    fn find_or_insert(&mut self, key: &[u8]) -> Self::Handle;
    /// As [`Table::find_or_insert`], when a value of `value_len` bytes is about to be set: a table
    /// that keeps values in its records makes a new one of the right size.
    fn find_or_insert_sized(&mut self, key: &[u8], value_len: usize) -> Self::Handle {
        let _ = value_len;
        self.find_or_insert(key)
    }
    /// Locks a record.
    fn lock(&mut self, handle: Self::Handle) -> Self::Record<'_>;
    /// Locks a record that a sibling may have removed since its handle was found; `None` if one
    /// did.
    fn try_lock(&mut self, handle: Self::Handle) -> Option<Self::Record<'_>> {
        Some(self.lock(handle))
    }
    /// Locks the record of a key, made if need be; safe against a sibling that removes it at the
    /// same moment.
    fn lock_key(&mut self, key: &[u8], value_len: usize) -> Self::Record<'_> {
        let handle = self.find_or_insert_sized(key, value_len);
        self.lock(handle)
    }
    /// As [`Table::lock_key`], when a value will be set later, of a size that nobody knows yet: a new record
    /// has room as [`Table::find_or_insert`] makes it.
    fn lock_key_unsized(&mut self, key: &[u8]) -> Self::Record<'_> {
        let handle = self.find_or_insert(key);
        self.lock(handle)
    }
    /// Locks the record of a key, if there is one; safe against a sibling that removes it at the
    /// same moment.
    fn lock_existing(&mut self, key: &[u8]) -> Option<Self::Record<'_>> {
        let handle = self.find(key)?;
        Some(self.lock(handle))
    }
    /// The changes that follow are made for this origin, or with 0 for nobody in particular: who watches
    /// keys is told.
    fn set_writer(&mut self, origin: u64) {
        let _ = origin;
    }
    /// Notes whether a key that has no record here may have a value all the same: then nobody but the
    /// machine of this table says that such a key is absent.
    fn set_absence_doubted(&mut self, is_doubted: bool) {
        let _ = is_doubted;
    }
    /// Has the records of keys that are about to be used fetched from memory, several at a time:
    /// one after the other, each would have to be waited for. Changes nothing.
    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>);
    /// Forgets the record of a key if `dead` says so of the locked record; nobody can lock it in
    /// between. Whether it was removed.
    fn remove_if(&mut self, key: &[u8], dead: impl FnOnce(&Self::Record<'_>) -> bool) -> bool {
        let Some(handle) = self.find(key) else { return false };
        let record = self.lock(handle);
        let dead = dead(&record);
        drop(record);
        if dead {
            self.remove(handle);
        }
        dead
    }
    /// Forgets a record. The handle is dead from now on.
    fn remove(&mut self, handle: Self::Handle);
    /// Visits some records, from `cursor` (0 begins) and at least one unless there are none left,
    /// stopping once about `limit` were visited. Returns the next cursor, 0 at the end. Every
    /// record present during a whole iteration is visited at least once, even if the table grows.
    fn scan(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(Self::Handle)) -> u64;
    /// As [`Table::scan`], by key: safe while siblings remove records.
    fn scan_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64;
    /// As [`Table::scan_keys`], over the records of this lane and of its siblings.
    fn scan_all_keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.scan_keys(cursor, limit, visit)
    }
    /// Visits some records in the order of their *places*, with them: from the place `from`, stopping
    /// once about `limit` were looked at. Gives the place before which everything was visited, 0 at
    /// the end. A place is below [`PLACES`] and follows from the key alone, so that the tables of two
    /// nodes can be compared range by range.
    fn scan_places(&self, from: u64, limit: usize, visit: &mut dyn FnMut(u64, Self::Handle))
    -> u64;
    /// How many records, tombstones included.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes every record: a re-joined node starts from nothing.
    fn reset(&mut self);
    /// Takes all records of this lane out, into a table of their own: none is copied, and this one is left
    /// without any.
    fn set_aside(&mut self) -> Self
    where
        Self: Sized;
}

/// A few numbers that the machines of one keyspace share across the lanes of a node: the only
/// memory besides records that they have in common. Each lane writes its own cells; the others read
/// them now and then.
pub trait LaneShared {
    /// The largest number that any lane has raised it to; 0 at first.
    fn highest(&self) -> u64;
    /// Raises it, unless it is as high already.
    fn raise_highest(&mut self, to: u64);
    /// The number that this lane has raised it to.
    fn raised_by(&self, lane: LaneId) -> u64;
    /// The least of the numbers that the lanes have set in this cell; every lane's is 0 at first.
    fn least(&self, cell: usize) -> u64;
    /// The number that this lane has set in a cell.
    fn cell_of(&self, lane: LaneId, cell: usize) -> u64;
    /// Sets this lane's number in a cell, one of the first [`CELLS`].
    fn set_cell(&mut self, cell: usize, number: u64);
}

/// How many cells each lane has in [`LaneShared`].
pub const CELLS: usize = 4;
