//! The words of a record: two of its data, two of its ownership.

use core::hash::{Hash, Hasher};

use quorate_engine::Readable;
use quorate_machine::mutant;
use quorate_types::{MemberNumber, Timestamp, limits};

use crate::fields::Settled;

/// Whether the value may be read (the paper's `t_state`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DataState {
    /// It is committed: every replica has it.
    #[default]
    Valid,
    /// A replica has applied it, and does not know whether all have.
    Invalid,
    /// The owner has committed it here, and not all replicas have it yet.
    Write,
}

/// Whether the owner is settled (the paper's `o_state`). A node that requests ownership knows that
/// beside the table: it may have no record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OwnerState {
    /// It is.
    #[default]
    Valid,
    /// A round of another driver is about to move it.
    Invalid,
    /// This node drives the round.
    Drive,
}

/// Whether a record is a copy that a node outside the key's group keeps because it reads the key often.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Extra {
    /// It is not.
    #[default]
    None,
    /// The owner was asked for it. Transactions are applied to it, and nothing reads it.
    Wanted,
    /// The owner counts this node among the key's followers.
    Kept,
}

/// What is kept in each record beside its value. A key without a record has the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// The version of the value, or of the delete that left a tombstone (`t_version`).
    pub version: Timestamp,
    /// Whether the value may be read.
    pub data: DataState,
    /// The round that moved the key last, or is about to (`o_ts`).
    pub round: Timestamp,
    /// Whether that round is settled.
    pub state: OwnerState,
    /// The member that it was moved to last, live or not; 0 if it never was.
    pub owner: MemberNumber,
    /// How often it has moved while this node kept it, up to 2^28 - 1. Only shown to people.
    pub moves: u32,
    /// Whether the record is an extra copy.
    pub extra: Extra,
}

/// Most moves that a record counts.
const MOVES_MAX: u32 = (1 << 28) - 1;
/// The bits of a word beside the member in it that say whether the record is an extra copy.
const EXTRA: u32 = 62;

impl Hash for Meta {
    /// Nothing depends on how often a key has moved.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { version, data, round, state: is_settled, owner, moves: _, extra } = self;
        (version, data, round, is_settled, owner, extra).hash(state);
    }
}

impl Meta {
    /// The entry of the directory, if no round is under way.
    pub(crate) fn settled(&self) -> Settled {
        Settled { round: self.round, owner: self.owner }
    }

    /// Counts a move.
    pub(crate) fn moved(self) -> Self {
        Self { moves: (self.moves + 1).min(MOVES_MAX), ..self }
    }

    /// These words, or those of a key without a record as far as they were never set: a lane that
    /// writes a key of another says nothing of its owner.
    pub(crate) fn or(self, absent: Self) -> Self {
        if self == Self::default() {
            absent
        } else if self.round == Timestamp::ZERO && !mutant!("zeus_borrower_settles_at_zero") {
            Self { round: absent.round, ..self }
        } else {
            self
        }
    }
}

impl quorate_machine::Meta for Meta {
    type LockedState = ();

    const WORDS: usize = 4;

    fn pack(self, words: &mut [u64]) {
        let [version, writer] = self.version.to_words();
        let [round, driver] = self.round.to_words();
        let states = (self.data as u64) << 32 | (self.state as u64) << 34;
        let moves = u64::from(self.moves) << 36;
        words.copy_from_slice(&[
            version,
            writer | states | moves,
            round,
            driver | u64::from(self.owner.0) << 32 | (self.extra as u64) << EXTRA,
        ]);
    }

    fn unpack(words: &[u64]) -> Self {
        let data = match words[1] >> 32 & 3 {
            0 => DataState::Valid,
            1 => DataState::Invalid,
            _ => DataState::Write,
        };
        let state = match words[1] >> 34 & 3 {
            0 => OwnerState::Valid,
            1 => OwnerState::Invalid,
            _ => OwnerState::Drive,
        };
        Self {
            version: Timestamp::from_words([words[0], words[1]]),
            data,
            round: Timestamp::from_words([words[2], words[3]]),
            state,
            owner: MemberNumber((words[3] >> 32) as u32 & limits::MEMBER_NUMBER_MAX),
            moves: (words[1] >> 36) as u32,
            extra: match words[3] >> EXTRA {
                0 => Extra::None,
                1 => Extra::Wanted,
                _ => Extra::Kept,
            },
        }
    }
}

impl Readable for Meta {
    fn is_readable(&self) -> bool {
        self.data == DataState::Valid && self.extra != Extra::Wanted
    }

    fn version(&self) -> Timestamp {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use quorate_machine::Meta as _;
    use quorate_types::WriterId;

    use super::*;

    #[test]
    fn words_come_back() {
        for data in [DataState::Valid, DataState::Invalid, DataState::Write] {
            for state in [OwnerState::Valid, OwnerState::Invalid, OwnerState::Drive] {
                for extra in [Extra::None, Extra::Wanted, Extra::Kept] {
                    let meta = Meta {
                        version: Timestamp::new(u64::MAX - 1, WriterId(u32::MAX)),
                        data,
                        round: Timestamp::new(7, WriterId(0x8000_0001)),
                        state,
                        owner: MemberNumber(limits::MEMBER_NUMBER_MAX),
                        moves: MOVES_MAX,
                        extra,
                    };
                    let mut words = [u64::MAX; Meta::WORDS];
                    meta.pack(&mut words);
                    assert_eq!(Meta::unpack(&words), meta);
                    assert_eq!(meta.moved(), meta);
                }
            }
        }
        assert_eq!(Meta::unpack(&[0; 4]), Meta::default());
    }
}
