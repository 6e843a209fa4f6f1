//! Walks over tables, here and from replica to replica.

mod copier;
mod difference;
mod scan;

use quorate_machine::{MapTable, Meta};

/// The version of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Version(u64);

impl Meta for Version {
    type LockedState = ();

    const WORDS: usize = 1;

    fn pack(self, words: &mut [u64]) {
        words[0] = self.0;
    }

    fn unpack(words: &[u64]) -> Self {
        Self(words[0])
    }
}

type Records = MapTable<Version>;
