//! What Hermes keeps in every record (§4.3.2, §4.3.5, N10).

use quorate_machine::Slot;
use quorate_types::Timestamp;

/// The state of a key at one replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum State {
    /// Readable.
    #[default]
    Valid = 0,
    /// A newer update is pending elsewhere; its value is here already.
    Invalid = 1,
    /// Coordinating an update of its own.
    Write = 2,
    /// An own write is still pending but was superseded by a larger timestamp.
    Trans = 3,
    /// Re-driving another node's update.
    Replay = 4,
}

/// The words of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Meta {
    /// The version of the value that the record holds.
    pub timestamp: Timestamp,
    /// Where the key stands.
    pub state: State,
    /// Whether the update that wrote the value was a read-modify-write.
    pub rmw: bool,
    /// Whether this version, or one since the key was last Valid here, is a read-modify-write: it
    /// may still commit, so no lower write is acknowledged (pitfall H12).
    pub unsettled: bool,
    /// The pending op that drives this timestamp in states Write and Replay, or the superseded one
    /// in Trans; otherwise [`Slot::NONE`].
    pub op: Slot,
    /// Whether the record is in the list of tombstones, and so must not be removed by anybody else
    /// than the collector. It may have a value again.
    pub listed: bool,
    /// The life of this process in which the version came here. What an earlier life left is not
    /// held, but may turn out to be what a donor holds.
    pub life: u16,
}

impl Meta {
    /// Whether the value may be returned: the only thing a lock-free reader asks.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.state == State::Valid
    }

    /// The version, for `WATCH`.
    #[inline]
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Whether the key was never written here (as opposed to deleted).
    pub(crate) fn is_blank(&self) -> bool {
        self.timestamp == Timestamp::ZERO
    }
}

impl Default for Meta {
    fn default() -> Self {
        Self {
            timestamp: Timestamp::ZERO,
            state: State::Valid,
            rmw: false,
            unsettled: false,
            op: Slot::NONE,
            listed: false,
            life: 0,
        }
    }
}

const RMW: u64 = 1 << 40;
const UNSETTLED: u64 = 1 << 41;
const LISTED: u64 = 1 << 42;
const LIFE_AT: u32 = 48;

impl quorate_machine::Meta for Meta {
    type LockedState = ();

    const WORDS: usize = 3;

    fn pack(self, words: &mut [u64]) {
        let [version, writer] = self.timestamp.to_words();
        words[0] = version;
        words[1] = writer
            | (self.state as u64) << 32
            | if self.rmw { RMW } else { 0 }
            | if self.unsettled { UNSETTLED } else { 0 }
            | if self.listed { LISTED } else { 0 }
            | u64::from(self.life) << LIFE_AT;
        words[2] = self.op.to_u64();
    }

    fn unpack(words: &[u64]) -> Self {
        Self {
            timestamp: Timestamp::from_words([words[0], words[1]]),
            state: match (words[1] >> 32) as u8 {
                0 => State::Valid,
                1 => State::Invalid,
                2 => State::Write,
                3 => State::Trans,
                _ => State::Replay,
            },
            rmw: words[1] & RMW != 0,
            unsettled: words[1] & UNSETTLED != 0,
            op: Slot::from_u64(words[2]),
            listed: words[1] & LISTED != 0,
            life: (words[1] >> LIFE_AT) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_machine::Meta as _;
    use quorate_types::WriterId;

    #[test]
    fn words_come_back() {
        let states = [State::Valid, State::Invalid, State::Write, State::Trans, State::Replay];
        for (number, state) in states.into_iter().enumerate() {
            let meta = Meta {
                timestamp: Timestamp::new(u64::MAX - 3, WriterId(0xfe00_0007)),
                state,
                rmw: number % 2 == 0,
                unsettled: number % 3 == 0,
                op: Slot { index: 9, generation: 77 },
                listed: number % 4 == 0,
                life: u16::MAX - number as u16,
            };
            let mut words = [0; Meta::WORDS];
            meta.pack(&mut words);
            assert_eq!(Meta::unpack(&words), meta);
        }
        let mut words = [0; Meta::WORDS];
        Meta::default().pack(&mut words);
        assert_eq!(Meta::unpack(&words), Meta::default());
    }
}
