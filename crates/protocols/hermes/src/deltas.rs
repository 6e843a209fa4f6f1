//! Large values: an update of a collection travels as what it changes.
//!
//! A delta is applied to the version that its update was built on, its *base*. The coordinator found
//! the base Valid, so every live replica has acknowledged it, and mostly holds it when the INV comes:
//! then it applies the delta in place. Until the new version is Valid here, the delta and its inverse
//! are kept: the delta for replays, retransmissions and counter-INVs, the inverse because another
//! read-modify-write on the same base may outrank this one, and its delta must not come on top.
//!
//! A replica may hold neither the base nor a delta on it. A shadow has not copied the key yet. A rival
//! read-modify-write may have deleted the value or replaced all of it. And of two plain writes on one
//! version the smaller may be done first: an update of it outranks the larger, which lies over it
//! where that one came from. Such a replica changes nothing, does not acknowledge, and asks the sender
//! for all of the value, as a shadow asks for a long one. So does a shadow that has the key from an
//! earlier life, and it leaves that version for the comparison with its donor (`difference.rs`).
//!
//! All of a value is right wherever a delta is: an INV means the same in both forms. Whether a
//! collection is large each replica decides alone: a delta makes a packed one large.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{Change, Collection, Command, Content, Effects, Record, Slot, Table, mutant};
use quorate_types::{NodeId, Timestamp, UnixMillis};
use quorate_wire::Writer;

use crate::message::{Inv, Message};
use crate::ops::Tentative;
use crate::{Hermes, Meta, State};

pub(crate) const DAMAGED_DELTA: &str = "hermes: a damaged delta";

/// How the newest version of a large value, which is not Valid yet, came from the one before.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Undecided {
    pub(crate) timestamp: Timestamp,
    pub(crate) base: Timestamp,
    pub(crate) delta: Vec<u8>,
    pub(crate) inverse: Vec<u8>,
    /// When the base expires.
    pub(crate) base_expire_at: Option<UnixMillis>,
}

/// The undecided versions of large values, by record.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Deltas<H> {
    undecided: BTreeMap<H, Undecided>,
}

impl<H> Default for Deltas<H> {
    fn default() -> Self {
        Self { undecided: BTreeMap::new() }
    }
}

impl<H: Ord> Deltas<H> {
    #[inline]
    pub(crate) fn get(&self, handle: &H) -> Option<&Undecided> {
        if self.undecided.is_empty() { None } else { self.undecided.get(handle) }
    }

    /// A version came back from the log with how it came about.
    pub(crate) fn keep(&mut self, handle: H, undecided: Undecided) {
        self.undecided.insert(handle, undecided);
    }

    /// The version is Valid, or another one has replaced all of the value.
    #[inline]
    pub(crate) fn forget(&mut self, handle: &H) {
        if !self.undecided.is_empty() {
            self.undecided.remove(handle);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.undecided.clear();
    }

    /// Changes the large value of a Valid record for an update of this node under `timestamp`. Whether
    /// the value stays, in its new state.
    pub(crate) fn change(
        &mut self,
        handle: H,
        record: &mut impl Record<Meta = Meta>,
        change: &Change<'_>,
        timestamp: Timestamp,
    ) -> bool {
        let base_expire_at = record.content().and_then(|content| content.expire_at);
        let (delta, expire_at) = match change {
            Change::Delta { bytes, expire_at } => (&bytes[..], *expire_at),
            Change::Expire(at) => (&[][..], *at),
            Change::Keep => (&[][..], base_expire_at),
            Change::Set { .. } | Change::Delete => return false,
        };
        let base = record.meta().timestamp;
        let large = record.large_mut().expect("a command saw that the value is large");
        let mut inverse = Vec::new();
        large.apply(delta, &mut inverse).expect("a command makes deltas of what it saw");
        record.set_expiry(expire_at);
        let delta = delta.to_vec();
        let undecided = Undecided { timestamp, base, delta, inverse, base_expire_at };
        self.undecided.insert(handle, undecided);
        true
    }
}

/// What became of an INV with a delta.
pub(crate) enum Received {
    /// The value is in place now.
    Changed,
    /// It changes a version that is not here.
    Lacking,
    /// No correct peer sends it.
    Damaged,
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Applies what a newer INV changes of a large value in its record, whose words are still those of
    /// the version before. An INV that brings all of its value has nothing to be applied.
    #[inline]
    pub(crate) fn receive_delta(&mut self, handle: T::Handle, inv: &Inv<'_>) -> Received {
        match (inv.content, inv.base) {
            (Some(content), Some(base)) => self.apply_delta(handle, inv, content, base),
            _ => {
                self.deltas.forget(&handle);
                Received::Changed
            }
        }
    }

    fn apply_delta(
        &mut self,
        handle: T::Handle,
        inv: &Inv<'_>,
        content: Content<'_>,
        base: Timestamp,
    ) -> Received {
        let mut record = self.table.lock(handle);
        let held = record.meta().timestamp;
        let mut base_expire_at = record.content().and_then(|content| content.expire_at);
        let Some(large) = record.large_mut() else { return Received::Lacking };
        let rival = self.deltas.undecided.get(&handle);
        let rival = rival.filter(|rival| rival.timestamp == held && rival.base == base);
        let mut redo = Vec::new();
        if let Some(rival) = rival {
            if !mutant!("hermes_rival_delta_not_undone") {
                large.apply(&rival.inverse, &mut redo).expect("an inverse is a delta");
            }
            base_expire_at = rival.base_expire_at;
        } else if held != base && !mutant!("hermes_delta_on_any_base") {
            return Received::Lacking;
        }
        let mut inverse = Vec::new();
        if large.apply(content.bytes, &mut inverse).is_err() {
            large.apply(&redo, &mut inverse).expect("what was undone can be done again");
            return Received::Damaged;
        }
        record.set_expiry(content.expire_at);
        drop(record);
        if mutant!("hermes_inverse_of_delta_dropped") {
            inverse.clear();
        }
        let (timestamp, delta) = (inv.timestamp, content.bytes.to_vec());
        let undecided = Undecided { timestamp, base, delta, inverse, base_expire_at };
        self.deltas.undecided.insert(handle, undecided);
        Received::Changed
    }

    /// Asks the sender of a delta for all of the value.
    pub(crate) fn ask_for_value(
        &mut self,
        from: NodeId,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        effects.probe("hermes: delta on a base that is not here");
        let mut keys = Vec::new();
        Writer(&mut keys).bytes(key);
        effects.send(from, &Message::ValueRead { keys: &keys });
    }

    /// About how many bytes of value the INV of a pending update has.
    pub(crate) fn inv_bytes(&mut self, handle: T::Handle) -> usize {
        match self.deltas.get(&handle) {
            Some(undecided) => undecided.delta.len(),
            None => {
                let record = self.table.lock(handle);
                let packed = record.content().map_or(0, |content| content.bytes.len());
                packed + record.large().map_or(0, Collection::packed_len)
            }
        }
    }

    /// The op that drives the newest version of a record, to be named in an INV that brings all of
    /// its value: so the acknowledgement counts.
    pub(crate) fn driving_op(meta: &Meta) -> Slot {
        let drives = matches!(meta.state, State::Write | State::Replay);
        if drives { meta.op } else { Slot::NONE }
    }
}

/// The INV of a record's newest version. If its value is large, what it changes, unless the
/// version is decided; then all of it, for which there is room in `whole`.
#[inline]
pub(crate) fn inv_of<'a, R: Record<Meta = Meta>>(
    record: &'a R,
    cookie: Slot,
    tentative: Option<&'a Tentative>,
    undecided: Option<&'a Undecided>,
    whole: &'a mut Vec<u8>,
) -> Inv<'a> {
    let meta = record.meta();
    debug_assert!(tentative.is_none_or(|tentative| tentative.timestamp == meta.timestamp));
    let undecided = undecided.filter(|undecided| undecided.timestamp == meta.timestamp);
    let content = match undecided {
        None => record.whole(whole),
        Some(undecided) => {
            record.content().map(|content| Content { bytes: &undecided.delta, ..content })
        }
    };
    Inv {
        cookie,
        key: record.key(),
        timestamp: meta.timestamp,
        rmw: meta.rmw,
        content,
        base: undecided.map(|undecided| undecided.base),
        completion: tentative.map(Tentative::completion),
    }
}
