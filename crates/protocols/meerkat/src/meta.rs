//! What Meerkat keeps in every record: the vstore of §4.2.

use alloc::boxed::Box;

use quorate_machine::mutant;
use quorate_types::{LaneId, Timestamp};

/// The words of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Meta {
    /// The timestamp of the installed version: that of the latest writer.
    pub wts: Timestamp,
    /// The latest timestamp at which a committed transaction read the key.
    pub rts: Timestamp,
}

impl Meta {
    /// The version, for `WATCH`.
    #[inline]
    pub fn timestamp(&self) -> Timestamp {
        self.wts
    }
}

impl quorate_machine::Meta for Meta {
    type LockedState = Pending;

    const WORDS: usize = 3;

    fn pack(self, words: &mut [u64]) {
        let ([written, writer], [read, reader]) = (self.wts.to_words(), self.rts.to_words());
        (words[0], words[1], words[2]) = (written, read, writer | reader << 32);
    }

    fn unpack(words: &[u64]) -> Self {
        Self {
            wts: Timestamp::from_words([words[0], words[2]]),
            rts: Timestamp::from_words([words[1], words[2] >> 32]),
        }
    }
}

/// A transaction that is registered at a key: it was validated here and is not decided yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Registration {
    /// Its id, which is its timestamp.
    pub id: Timestamp,
    /// The version that it read, if it read the key.
    pub base: Option<Timestamp>,
    /// Whether it writes the key.
    pub writes: bool,
}

/// The `readers` and `writers` of a key (§4.2) in one list: what each transaction read and whether
/// it writes, so that the checks can be exact and name the blocker (N2.1).
///
/// Nearly always a key has one at most, which takes no allocation. The size decides how many cache lines
/// a record has.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pending {
    first: Option<Registration>,
    rest: Box<[Registration]>,
    /// In which life of the process the record was taken over, while the replica was catching up; 0
    /// otherwise. Only a replica that catches up asks (`difference.rs`).
    life: u32,
    /// The lane whose log has the version, plus one; 0 if it is the lane of the transaction that wrote it,
    /// as nearly always (`save.rs`).
    logged_by: u8,
}

const _: () = assert!(size_of::<Pending>() <= 72, "a record of 16 and 100 bytes has four lines");

impl Pending {
    /// In which life of the process the record was taken over.
    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// Takes the record over in this life. Nobody is registered who was in an earlier one.
    pub(crate) fn take_over(&mut self, life: u32) {
        if !mutant!("meerkat_base_keeps_registrations") {
            *self = Self { logged_by: self.logged_by, ..Self::default() };
        }
        self.life = life;
    }

    /// The lane whose log has the version, if it is not that of the transaction that wrote it.
    pub(crate) fn logged_by(&self) -> Option<LaneId> {
        self.logged_by.checked_sub(1).map(|lane| LaneId(u16::from(lane)))
    }

    /// Notes whose log has the version.
    pub(crate) fn set_logged_by(&mut self, lane: Option<LaneId>) {
        self.logged_by = lane.map_or(0, |lane| lane.0 as u8 + 1);
    }

    /// Whether no transaction is registered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    /// The registered transactions, in no order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.first.iter().chain(&self.rest[..])
    }

    /// Registers a transaction, once.
    pub fn add(&mut self, registration: Registration) {
        if self.iter().any(|known| known.id == registration.id) {
            return;
        }
        if self.first.is_none() {
            self.first = Some(registration);
        } else {
            let mut rest = core::mem::take(&mut self.rest).into_vec();
            rest.reserve_exact(1);
            rest.push(registration);
            self.rest = rest.into_boxed_slice();
        }
    }

    /// Takes a transaction out, if it is registered.
    #[inline]
    pub fn remove(&mut self, id: Timestamp) {
        if self.first.is_some_and(|first| first.id == id) {
            self.first = None;
        } else if !self.rest.is_empty() {
            // A key that was hot once need not keep the memory.
            let mut rest = core::mem::take(&mut self.rest).into_vec();
            rest.retain(|other| other.id != id);
            self.rest = rest.into_boxed_slice();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_machine::Meta as _;
    use quorate_types::{MemberNumber, WriterId};

    fn id(version: u64) -> Timestamp {
        Timestamp::new(version, WriterId::new(MemberNumber(3), 1))
    }

    #[test]
    fn words_come_back() {
        let meta = Meta { wts: id(7), rts: Timestamp::new(u64::MAX, WriterId(u32::MAX)) };
        let mut words = [0; Meta::WORDS];
        meta.pack(&mut words);
        assert_eq!(Meta::unpack(&words), meta);
    }

    #[test]
    fn registrations_come_and_go_in_any_order() {
        let mut pending = Pending::default();
        for version in 1..=4 {
            let registration = Registration { id: id(version), base: None, writes: true };
            pending.add(registration);
            pending.add(registration);
        }
        assert_eq!(pending.iter().count(), 4);
        for version in [1, 3, 4, 2] {
            assert!(!pending.is_empty());
            pending.remove(id(version));
            assert!(pending.iter().all(|known| known.id != id(version)));
        }
        assert_eq!(pending, Pending::default());
    }
}
