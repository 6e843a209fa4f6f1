//! What stands in each record beside its value.

use quorate_engine::Readable;
use quorate_types::Timestamp;

/// A record's version, and whether a transaction is about to change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// The version of the value, or of the delete that left a tombstone.
    pub version: Timestamp,
    /// A transaction over several keys is changing it and others.
    pub changing: bool,
}

const CHANGING: u64 = 1 << 32;

impl quorate_machine::Meta for Meta {
    type LockedState = ();

    const WORDS: usize = 2;

    fn pack(self, words: &mut [u64]) {
        let [version, writer] = self.version.to_words();
        words[0] = version;
        words[1] = writer | if self.changing { CHANGING } else { 0 };
    }

    fn unpack(words: &[u64]) -> Self {
        let version = Timestamp::from_words([words[0], words[1]]);
        Self { version, changing: words[1] & CHANGING != 0 }
    }
}

impl Readable for Meta {
    fn is_readable(&self) -> bool {
        !self.changing
    }

    fn version(&self) -> Timestamp {
        self.version
    }
}
