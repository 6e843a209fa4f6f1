//! The completion records of one session.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::mem;

use quorate_types::limits;

use crate::answer::AnswerBytes;

/// A call that has been completed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Record {
    pub(crate) sequence: u64,
    pub(crate) digest: u32,
    pub(crate) answer: AnswerBytes,
}

/// Most sessions hold one record. More records lie in a ring, at their number modulo its length,
/// which doubles when two records meet, up to the window. The length of a ring makes no difference
/// to its contents.
#[derive(Clone, Debug, Default)]
pub(crate) enum Records {
    #[default]
    None,
    One(Record),
    Ring(Box<[Option<Record>]>),
}

const RING_MIN: usize = 4;

fn place(sequence: u64, length: usize) -> usize {
    (sequence % length as u64) as usize
}

impl Records {
    #[inline]
    pub(crate) fn get(&self, sequence: u64) -> Option<&Record> {
        let found = match self {
            Self::None => None,
            Self::One(record) => Some(record),
            Self::Ring(ring) => ring[place(sequence, ring.len())].as_ref(),
        };
        found.filter(|record| record.sequence == sequence)
    }

    /// Keeps a record of a call that has none. All sequences lie within one window.
    #[inline]
    pub(crate) fn insert(&mut self, record: Record) {
        match self {
            Self::None => *self = Self::One(record),
            Self::Ring(records) if records[place(record.sequence, records.len())].is_none() => {
                let place = place(record.sequence, records.len());
                records[place] = Some(record);
            }
            _ => self.grow(record),
        }
    }

    /// Keeps a record whose place is taken.
    fn grow(&mut self, record: Record) {
        *self = Self::Ring(match mem::take(self) {
            Self::None => unreachable!("a place for the only record is there"),
            Self::One(first) => ring(RING_MIN, [first, record].into_iter()),
            Self::Ring(records) => {
                let length = records.len() * 2;
                ring(length, records.into_iter().flatten().chain([record]))
            }
        });
    }

    /// Drops all records below a sequence number.
    #[inline]
    pub(crate) fn drop_below(&mut self, first: u64) {
        match self {
            Self::None => {}
            Self::One(record) if record.sequence >= first => {}
            Self::One(_) => *self = Self::None,
            Self::Ring(_) => self.drop_from_ring(first),
        }
    }

    fn drop_from_ring(&mut self, first: u64) {
        let Self::Ring(records) = self else { return };
        for record in records.iter_mut() {
            if record.as_ref().is_some_and(|record| record.sequence < first) {
                *record = None;
            }
        }
        if records.iter().flatten().count() < 2 {
            let last = records.iter_mut().find_map(Option::take);
            *self = last.map_or(Self::None, Self::One);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        let (one, ring) = match self {
            Self::None => (None, None),
            Self::One(record) => (Some(record), None),
            Self::Ring(records) => (None, Some(records.iter().flatten())),
        };
        one.into_iter().chain(ring.into_iter().flatten())
    }

    /// Bytes of memory besides its own place.
    pub(crate) fn heap(&self) -> usize {
        let ring = match self {
            Self::Ring(records) => records.len() * size_of::<Option<Record>>(),
            Self::None | Self::One(_) => 0,
        };
        ring + self.iter().map(|record| record.answer.heap()).sum::<usize>()
    }
}

impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        self.iter().count() == other.iter().count()
            && self.iter().all(|record| other.get(record.sequence) == Some(record))
    }
}

impl Eq for Records {}

impl Hash for Records {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut records: Vec<&Record> = self.iter().collect();
        records.sort_unstable_by_key(|record| record.sequence);
        records.hash(state);
    }
}

/// A ring of at least this length in which each of these records has a place of its own.
fn ring(mut length: usize, records: impl Iterator<Item = Record>) -> Box<[Option<Record>]> {
    let mut places: Box<[Option<Record>]> = core::iter::repeat_n(None, length).collect();
    for record in records {
        while places[place(record.sequence, length)].is_some() {
            length *= 2;
            assert!(length as u64 <= limits::SESSION_WINDOW, "records of more than one window");
            let old = mem::replace(&mut places, core::iter::repeat_n(None, length).collect());
            for record in old.into_iter().flatten() {
                let place = place(record.sequence, length);
                places[place] = Some(record);
            }
        }
        let place = place(record.sequence, length);
        places[place] = Some(record);
    }
    places
}

const _: () = assert!(limits::SESSION_WINDOW.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_with_one_short_answer_stands_in_forty_bytes() {
        assert_eq!(size_of::<Records>(), 40);
    }

    #[test]
    fn records_are_the_same_in_rings_of_any_length() {
        let record = |sequence| Record { sequence, digest: 1, answer: AnswerBytes::new(b"+OK") };
        let (mut grown, mut short) = (Records::default(), Records::default());
        // 0 and 256 meet in every ring that is shorter than the window.
        [0, 256, 7].into_iter().for_each(|sequence| grown.insert(record(sequence)));
        grown.drop_below(1);
        [7, 256].into_iter().for_each(|sequence| short.insert(record(sequence)));
        assert!(grown.heap() > short.heap());
        assert_eq!(grown, short);
        short.drop_below(8);
        assert_ne!(grown, short);
    }
}
