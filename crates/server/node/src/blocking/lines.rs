//! Who waits for which key, on whatever lane of the node, in order of arrival. In a line that is shared
//! everybody counts as its first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use quorate_commands::Line;
use quorate_machine::{Slot, mutant};
use quorate_sync::primitives::{Mutex, MutexGuard};
use quorate_types::{KeyspaceId, LaneId};

/// A command that waits, as the other lanes know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) lane: LaneId,
    /// Among the waiters of that lane.
    pub(crate) slot: Slot,
    /// Which of its keys.
    pub(crate) key: u32,
}

/// The lines of one key, each by the number that its members drew on arrival.
type OfKey = BTreeMap<Line, BTreeMap<u64, Place>>;

/// Every line of the node.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    keyspaces: BTreeMap<KeyspaceId, BTreeMap<Box<[u8]>, OfKey>>,
    /// The number of the next one to arrive.
    next: u64,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands in a line of each of these keys, behind all who are there. Its number, and of which keys
    /// it is the first.
    pub(crate) fn join(
        &self,
        keyspace: KeyspaceId,
        keys: &[Box<[u8]>],
        line: &Line,
        (lane, slot): (LaneId, Slot),
    ) -> (u64, BTreeSet<u32>) {
        let State { keyspaces, next } = &mut *self.state();
        let number = *next;
        *next += 1;
        let of_keyspace = keyspaces.entry(keyspace).or_default();
        let mut first = BTreeSet::new();
        for (key, bytes) in (0..).zip(keys) {
            let of_key = match of_keyspace.get_mut(bytes) {
                Some(of_key) => of_key,
                None => of_keyspace.entry(bytes.clone()).or_default(),
            };
            let members = of_key.entry(line.clone()).or_default();
            if members.is_empty() || line.is_shared() {
                first.insert(key);
            }
            members.insert(number, Place { lane, slot, key });
        }
        (number, first)
    }

    /// Leaves a line. Who is the first of it now, if the one that leaves was.
    pub(crate) fn leave(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        line: &Line,
        number: u64,
    ) -> Option<Place> {
        let mut state = self.state();
        let of_keyspace = state.keyspaces.get_mut(&keyspace)?;
        let of_key = of_keyspace.get_mut(key)?;
        let members = of_key.get_mut(line)?;
        let was_first = members.first_key_value().is_some_and(|(first, _)| *first == number);
        members.remove(&number);
        let next = members.first_key_value().map(|(_, place)| *place);
        if members.is_empty() {
            of_key.remove(line);
            if of_key.is_empty() {
                of_keyspace.remove(key);
            }
        }
        next.filter(|_| was_first && !line.is_shared())
    }

    /// Who is to be tried of each line of a key that `wants` to know.
    pub(crate) fn first(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        wants: impl Fn(&Line) -> bool,
    ) -> Vec<Place> {
        let state = self.state();
        let lines =
            state.keyspaces.get(&keyspace).and_then(|keys| keys.get(key)).into_iter().flatten();
        let wanted = lines.filter(|(line, _)| wants(line));
        let tried = wanted.flat_map(|(line, members)| {
            let everybody = line.is_shared() && !mutant!("node_one_reader_is_woken");
            members.values().take(if everybody { usize::MAX } else { 1 })
        });
        tried.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DB: KeyspaceId = KeyspaceId(0);

    fn key(name: &str) -> Box<[u8]> {
        name.as_bytes().into()
    }

    fn slot(index: u32) -> Slot {
        Slot { index, generation: 1 }
    }

    #[test]
    fn the_first_of_a_line_is_who_came_first_of_those_that_are_there() {
        let lines = Lines::default();
        let join = |index: u32, line: Line, keys: &[Box<[u8]>]| {
            lines.join(DB, keys, &line, (LaneId(0), slot(index)))
        };
        let (a, b) = (key("a"), key("b"));
        let (zero, first) = join(0, Line::Lists, &[a.clone(), b.clone()]);
        assert_eq!(first, BTreeSet::from([0, 1]));
        let (one, first) = join(1, Line::Lists, &[key("c"), b.clone()]);
        assert_eq!(first, BTreeSet::from([0]));
        let (two, first) = join(2, Line::Lists, std::slice::from_ref(&b));
        assert_eq!(first, BTreeSet::new());
        let other = join(3, Line::SortedSets, std::slice::from_ref(&b)).1;
        assert_eq!(other, BTreeSet::from([0]), "another line");
        let firsts = |line| {
            let places = lines.first(DB, &b, |other| *other == line);
            places.iter().map(|place| (place.slot.index, place.key)).collect::<Vec<_>>()
        };
        assert_eq!((firsts(Line::Lists), firsts(Line::SortedSets)), (vec![(0, 1)], vec![(3, 0)]));
        let leave = |number| lines.leave(DB, &b, &Line::Lists, number).map(|place| place.slot);
        assert_eq!(leave(one), None, "somebody in the middle");
        assert_eq!(leave(zero), Some(slot(2)));
        assert_eq!(leave(two), None);
        assert_eq!(firsts(Line::Lists), []);
    }
}
