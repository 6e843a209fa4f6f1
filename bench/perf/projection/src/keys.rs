//! Timestamp-ordered validation on keys without values: the rules of `quorate_meerkat::occ`, on
//! numbers, so that a point of a curve takes a fraction of a second.

use std::collections::HashMap;

/// A version, and the id of a transaction: a time, and the client that gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Stamp(pub(super) u64, pub(super) u32);

/// The access of a transaction to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub(super) key: u64,
    /// The version that it read, if it read the key.
    pub(super) base: Option<Stamp>,
    pub(super) writes: bool,
}

#[derive(Clone, Copy, Debug)]
struct Registration {
    id: Stamp,
    base: Option<Stamp>,
    writes: bool,
}

#[derive(Clone, Debug, Default)]
struct State {
    wts: Stamp,
    rts: Stamp,
    pending: Vec<Registration>,
}

/// The keys of one replica that transactions have touched.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(HashMap<u64, State>);

impl Keys {
    /// The installed version.
    pub(super) fn version(&self, key: u64) -> Stamp {
        self.0.get(&key).map_or(Stamp::default(), |state| state.wts)
    }

    /// Validates a transaction and registers it at all its keys, or at none.
    pub(super) fn validate(&mut self, id: Stamp, items: &[Item]) -> bool {
        for (done, item) in items.iter().enumerate() {
            let state = self.0.entry(item.key).or_default();
            if !passes(state, id, item) {
                self.release(id, &items[..done]);
                return false;
            }
            state.pending.push(Registration { id, base: item.base, writes: item.writes });
        }
        true
    }

    /// Confirms that the versions read are still current, and that no write will come below `at`.
    pub(super) fn confirm(&mut self, at: Stamp, items: &[Item]) -> bool {
        items.iter().all(|item| {
            let state = self.0.entry(item.key).or_default();
            let holds = passes(state, at, item);
            if holds {
                state.rts = state.rts.max(at);
            }
            holds
        })
    }

    /// Takes an aborted transaction out.
    pub(super) fn release(&mut self, id: Stamp, items: &[Item]) {
        for item in items {
            if let Some(state) = self.0.get_mut(&item.key) {
                state.pending.retain(|other| other.id != id);
            }
        }
    }

    /// Installs a committed transaction.
    pub(super) fn apply(&mut self, id: Stamp, items: &[Item]) {
        for item in items {
            let state = self.0.entry(item.key).or_default();
            state.pending.retain(|other| other.id != id);
            if item.base.is_some() {
                state.rts = state.rts.max(id);
            }
            if item.writes {
                state.wts = state.wts.max(id);
            }
        }
    }
}

/// Whether a transaction may read and write a key at its timestamp.
fn passes(state: &State, id: Stamp, item: &Item) -> bool {
    let overwritten = |base: Option<Stamp>, writer: Stamp, reader: Stamp| {
        base.is_some_and(|base| base < writer && writer < reader)
    };
    if item.base.is_some_and(|base| id <= base || state.wts > base) {
        return false;
    }
    if item.writes && id < state.rts {
        return false;
    }
    !state.pending.iter().any(|other| {
        other.writes && overwritten(item.base, other.id, id)
            || item.writes && overwritten(other.base, id, other.id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(base: u64) -> [Item; 1] {
        [Item { key: 1, base: Some(Stamp(base, 0)), writes: true }]
    }

    fn read(base: u64) -> [Item; 1] {
        [Item { key: 1, base: Some(Stamp(base, 0)), writes: false }]
    }

    #[test]
    fn conflicts_are_those_of_algorithm_1() {
        let mut keys = Keys::default();
        assert!(keys.validate(Stamp(10, 1), &update(0)));
        assert!(!keys.validate(Stamp(11, 2), &update(0)), "a pending writer lies between");
        assert!(!keys.validate(Stamp(9, 2), &update(0)), "a pending reader lies above");
        assert!(keys.validate(Stamp(9, 2), &read(0)), "a read below a pending write");
        keys.apply(Stamp(10, 1), &update(0));
        assert_eq!(keys.version(1), Stamp(10, 1));
        assert!(!keys.validate(Stamp(12, 3), &update(0)), "a stale read");
        assert!(!keys.validate(Stamp(5, 3), &update(10)), "below what it read");
    }

    #[test]
    fn what_was_confirmed_is_not_overwritten_below() {
        let mut keys = Keys::default();
        assert!(keys.confirm(Stamp(20, 1), &read(0)));
        assert!(!keys.validate(Stamp(15, 2), &update(0)));
        assert!(keys.validate(Stamp(21, 2), &update(0)));
        keys.release(Stamp(21, 2), &update(0));
        assert!(keys.validate(Stamp(22, 2), &update(0)), "nothing is left of an abort");
    }
}
