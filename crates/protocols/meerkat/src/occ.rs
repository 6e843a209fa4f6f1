//! Timestamp-ordered optimistic concurrency control on the records of one replica: Algorithm 1 of
//! §5.2.2, corrected (N3.3, N3.4).
//!
//! Each function takes one key's lock at a time, so there is no order of locks to keep. The same
//! functions serve the rivals in `baselines`.

use alloc::vec::Vec;

use quorate_machine::{Record, Table, WARM_TOGETHER, mutant};
use quorate_types::{Timestamp, WriterId};

use crate::body::{Body, Item, Write};
use crate::meta::{Meta, Registration};

/// Why a replica can't let a transaction commit at its timestamp.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Reason {
    /// It read a version that has been replaced.
    StaleRead = 0,
    /// It read a version that a transaction which is not decided yet, at a smaller timestamp, may
    /// replace.
    PendingWriter = 1,
    /// It writes a key that was read at a larger timestamp.
    ReadLater = 2,
    /// It writes a key that a transaction which is not decided yet reads at a larger timestamp.
    PendingReader = 3,
    /// Its timestamp is not above a version that it read.
    TimestampTooLow = 4,
    /// Its timestamp is not above what earlier epochs may have read without a record.
    BelowFloor = 5,
    /// Another attempt at its call is not decided yet.
    CallInProgress = 6,
    /// Its call has taken effect by another attempt, or is refused for good.
    CallKnown = 7,
    /// A record of its session may have been forgotten that was made at a timestamp like its own.
    CallForgotten = 8,
    /// Its session was closed.
    SessionClosed = 9,
    /// Its session holds as many bytes of answers as it may.
    SessionFull = 10,
}

impl Reason {
    /// Every reason, by its wire number.
    pub const ALL: [Self; 11] = [
        Self::StaleRead,
        Self::PendingWriter,
        Self::ReadLater,
        Self::PendingReader,
        Self::TimestampTooLow,
        Self::BelowFloor,
        Self::CallInProgress,
        Self::CallKnown,
        Self::CallForgotten,
        Self::SessionClosed,
        Self::SessionFull,
    ];

    /// In words, as metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StaleRead => "stale_read",
            Self::PendingWriter => "pending_writer",
            Self::ReadLater => "read_later",
            Self::PendingReader => "pending_reader",
            Self::TimestampTooLow => "timestamp_too_low",
            Self::BelowFloor => "below_floor",
            Self::CallInProgress => "call_in_progress",
            Self::CallKnown => "call_known",
            Self::CallForgotten => "call_forgotten",
            Self::SessionClosed => "session_closed",
            Self::SessionFull => "session_full",
        }
    }
}

/// Who writes the version that an absent key has: the floor stands for all writers.
pub(crate) const EVERY_WRITER: WriterId = WriterId(u32::MAX);

/// A failed check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conflict {
    /// What was in the way.
    pub reason: Reason,
    /// The timestamp that was in the way: the blocker's id if it is not decided yet. The next
    /// attempt does well to be above it.
    pub with: Timestamp,
}

/// Validates a transaction at this replica and registers it at all its keys, or at none
/// (Algorithm 1). It is called once for an id. Records of keys that were deleted up to `floor` may be
/// gone here.
///
/// # Errors
/// What it conflicts with.
pub fn validate<T: Table<Meta = Meta>>(
    table: &mut T,
    id: Timestamp,
    body: Body<'_>,
    floor: impl Fn(&T) -> u64,
) -> Result<(), Conflict> {
    let mut registered = 0;
    let result = try_each(table, body, |table, item| {
        let has_version = register(table, id, item)?;
        registered += 1;
        if has_version { Ok(()) } else { check_deletion(item, floor(table)) }
    });
    if result.is_err() {
        for item in body.iter().take(registered) {
            unregister(table, id, item.key);
        }
    }
    result
}

/// Visits the items of a body up to the first that conflicts. The records of many are fetched from
/// memory ahead, some at a time.
fn try_each<'a, T: Table<Meta = Meta>>(
    table: &mut T,
    body: Body<'a>,
    mut visit: impl FnMut(&mut T, &Item<'a>) -> Result<(), Conflict>,
) -> Result<(), Conflict> {
    let mut items = body.iter();
    if items.len() <= WARM_TOGETHER {
        return items.try_for_each(|item| visit(table, &item));
    }
    let mut cold = items.clone();
    for (index, item) in items.enumerate() {
        if index.is_multiple_of(WARM_TOGETHER) {
            table.warm(cold.by_ref().take(WARM_TOGETHER).map(|item| item.key));
        }
        visit(table, &item)?;
    }
    Ok(())
}

/// As [`try_each`], of all items.
fn for_each<'a, T: Table<Meta = Meta>>(
    table: &mut T,
    body: Body<'a>,
    mut visit: impl FnMut(&mut T, &Item<'a>),
) {
    let all = try_each(table, body, |table, item| {
        visit(table, item);
        Ok(())
    });
    debug_assert!(all.is_ok(), "nothing was asked that could conflict");
}

/// Checks one key and registers the transaction there, in one critical section: two transactions
/// that conflict can't miss each other. Tells whether there is a version of the key.
fn register<T: Table<Meta = Meta>>(
    table: &mut T,
    id: Timestamp,
    item: &Item<'_>,
) -> Result<bool, Conflict> {
    let value_len = item.write.as_ref().map_or(0, Write::value_len);
    let mut record = table.lock_key(item.key, value_len);
    check(&record, id, item)?;
    let writes = item.write.is_some();
    record.locked_state_mut().add(Registration { id, base: item.base, writes });
    Ok(record.meta().wts != Timestamp::ZERO)
}

/// If there is no version of a key here, a transaction that read a value of it up to the floor read a
/// value that has been deleted since: everything up to the floor is installed, and only deletions
/// that it has passed are forgotten. To be asked after the key was looked at: a floor from before may
/// be below a deletion that another lane has forgotten in between.
fn check_deletion(item: &Item<'_>, floor: u64) -> Result<(), Conflict> {
    let replaced = |base: Timestamp| base != Timestamp::ZERO && base.version <= floor;
    if item.absent
        || !item.base.is_some_and(replaced)
        || mutant!("meerkat_forgotten_deletion_unnoticed")
    {
        return Ok(());
    }
    let with = Timestamp::new(floor, EVERY_WRITER);
    Err(Conflict { reason: Reason::StaleRead, with })
}

fn check(
    record: &impl Record<Meta = Meta>,
    id: Timestamp,
    item: &Item<'_>,
) -> Result<(), Conflict> {
    let conflict = |reason, with| Err(Conflict { reason, with });
    let meta = record.meta();
    if let Some(base) = item.base {
        // Clocks that lag would otherwise lose updates: the write would be older than what the
        // transaction read, and dropped by the Thomas rule (N3.4-2).
        if !mutant!("meerkat_timestamp_below_read") && id <= base {
            return conflict(Reason::TimestampTooLow, base);
        }
        if meta.wts > base {
            return conflict(Reason::StaleRead, meta.wts);
        }
    }
    if item.write.is_some() && id < meta.rts {
        return conflict(Reason::ReadLater, meta.rts);
    }
    for other in record.locked_state().iter().filter(|other| other.id != id) {
        // The exact interval (N3.4-4): the version that was read is committed, even if its
        // writer is still registered here.
        let overwritten =
            |base: Timestamp, writer: Timestamp, reader| base < writer && writer < reader;
        // A version whose writer is registered here still would be refused without need.
        let pending = mutant!("meerkat_read_version_in_the_way");
        if let Some(base) = item.base
            && other.writes
            && (overwritten(base, other.id, id) || (pending && base == other.id))
        {
            return conflict(Reason::PendingWriter, other.id);
        }
        if let Some(base) = other.base
            && item.write.is_some()
            && overwritten(base, id, other.id)
        {
            return conflict(Reason::PendingReader, other.id);
        }
    }
    Ok(())
}

/// Takes a transaction out of one key's list.
fn unregister<T: Table<Meta = Meta>>(table: &mut T, id: Timestamp, key: &[u8]) {
    if let Some(mut record) = table.lock_existing(key) {
        record.locked_state_mut().remove(id);
    }
}

/// Takes an aborted transaction out of all its keys' lists.
pub fn release<T: Table<Meta = Meta>>(table: &mut T, id: Timestamp, body: Body<'_>) {
    for_each(table, body, |table, item| unregister(table, id, item.key));
}

/// Installs a committed transaction (§5.2.3): raises what was read, installs what was written, and
/// takes the transaction out of each key's list in the same critical section, so that a validator
/// sees one or the other. Idempotent, and in any order: an older version never replaces a newer
/// one (the Thomas write rule).
///
/// Whether all of it is in place. A delta whose base is not here yet leaves its key as it was, the
/// registration included: the transaction is installed again when the base is.
pub fn apply<T: Table<Meta = Meta>>(table: &mut T, id: Timestamp, body: Body<'_>) -> bool {
    let mut is_whole = true;
    for_each(table, body, |table, item| {
        if mutant!("meerkat_apply_in_two_steps") {
            unregister(table, id, item.key);
        }
        let value_len = item.write.as_ref().map_or(0, Write::value_len);
        let mut record = table.lock_key(item.key, value_len);
        if let Some(write) = item.write
            && !install(&mut record, id, item.base, write)
        {
            is_whole = false;
            return;
        }
        record.locked_state_mut().remove(id);
        let mut meta = record.meta();
        if item.base.is_some() && meta.rts < id && !mutant!("meerkat_rts_not_raised") {
            meta.rts = id;
            record.set_meta(meta);
        }
    });
    is_whole
}

/// Replaces a record's version, unless it is as new already. Whether the record is as new now: what
/// changes a version that is not here changes nothing.
pub(crate) fn install(
    record: &mut impl Record<Meta = Meta>,
    version: Timestamp,
    base: Option<Timestamp>,
    write: Write<'_>,
) -> bool {
    let mut meta = record.meta();
    if version <= meta.wts {
        return true;
    }
    match write {
        Write::Set(content) => record.set_content(content),
        Write::Delete => record.clear(),
        Write::Delta(delta) => {
            // Nothing lies between a version and what a committed transaction has built on it.
            let is_here = base == Some(meta.wts) || mutant!("meerkat_delta_on_any_base");
            let large = if is_here { record.large_mut() } else { None };
            let Some(large) = large else { return mutant!("meerkat_delta_without_base_taken") };
            if large.apply(delta.bytes, &mut Vec::new()).is_err() {
                return false;
            }
            record.set_expiry(delta.expire_at);
        }
    }
    meta.wts = version;
    record.set_meta(meta);
    record.locked_state_mut().set_logged_by(None);
    true
}

/// Confirms that every key still holds the version that a read-only transaction read, and that
/// nobody will write below its timestamp from now on (N8, read-only transactions). `floor` as in
/// [`validate`].
///
/// # Errors
/// What has replaced one of them or may replace it.
pub fn confirm_reads<T: Table<Meta = Meta>>(
    table: &mut T,
    at: Timestamp,
    body: Body<'_>,
    floor: impl Fn(&T) -> u64,
) -> Result<(), Conflict> {
    try_each(table, body, |table, item| confirm_read(table, at, item, &floor))
}

fn confirm_read<T: Table<Meta = Meta>>(
    table: &mut T,
    at: Timestamp,
    item: &Item<'_>,
    floor: impl Fn(&T) -> u64,
) -> Result<(), Conflict> {
    debug_assert!(item.base.is_some(), "a read-only transaction read all its keys");
    let mut record = table.lock_key(item.key, 0);
    check(&record, at, item)?;
    let mut meta = record.meta();
    if meta.rts < at {
        meta.rts = at;
        record.set_meta(meta);
    }
    drop(record);
    if meta.wts == Timestamp::ZERO { check_deletion(item, floor(table)) } else { Ok(()) }
}

/// Whether one transaction reads a version that the other replaces between that version and the
/// reader's timestamp: the exact predicate of N4.3, in either direction.
pub fn conflicts_exactly(a: (Timestamp, Body<'_>), b: (Timestamp, Body<'_>)) -> bool {
    a.1.iter().any(|mine| {
        b.1.iter().filter(|theirs| theirs.key == mine.key).any(|theirs| {
            let hits = |reader: &Item<'_>, at: Timestamp, writer: &Item<'_>, by: Timestamp| {
                writer.write.is_some() && reader.base.is_some_and(|base| base < by && by < at)
            };
            hits(&mine, a.0, &theirs, b.0) || hits(&theirs, b.0, &mine, a.0)
        })
    })
}
