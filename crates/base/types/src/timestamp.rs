//! Logical timestamps (Hermes §3.5.2, §4.3.2).

use core::fmt;

use crate::{LaneId, MemberNumber, limits};

/// The writer of a timestamp: a member number in the lower 24 bits and a virtual-id byte above it.
///
/// A writer draws the upper byte at random for every update, so that no member wins ties more
/// often than another (optimisation O1); since member numbers are unique for ever, so are virtual
/// ids (Hermes §3.5.3: one virtual id never belongs to two machines).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WriterId(pub u32);

/// The first virtual id of a guest: above those of lanes.
const GUEST_SALT: u32 = limits::LANES_MAX as u32;

impl WriterId {
    /// The virtual id number `salt` of a member.
    pub fn new(member: MemberNumber, salt: u8) -> Self {
        assert!(member.0 <= limits::MEMBER_NUMBER_MAX, "member number {member} is out of range");
        Self(u32::from(salt) << 24 | member.0)
    }

    /// The member behind the virtual id.
    pub const fn member(self) -> MemberNumber {
        MemberNumber(self.0 & limits::MEMBER_NUMBER_MAX)
    }

    /// The id number `index` that a member may give to a guest: a client that coordinates its
    /// transactions itself. `None` if the member has given all its ids away.
    pub fn guest(member: MemberNumber, index: u8) -> Option<Self> {
        let salt = u8::try_from(GUEST_SALT + u32::from(index)).ok()?;
        Some(Self::new(member, salt))
    }

    /// Whether this is a guest's id.
    pub const fn is_guest(self) -> bool {
        self.0 >> 24 >= GUEST_SALT
    }

    /// The lane on which its transactions are handled on all nodes: the virtual id of its member
    /// number, or for a guest, one that follows from it.
    pub fn lane(self, lanes: u16) -> LaneId {
        let salt = self.0 >> 24;
        let lane = if self.is_guest() { (salt - GUEST_SALT) % u32::from(lanes) } else { salt };
        LaneId(lane as u16)
    }
}

impl fmt::Debug for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{}", self.0 & limits::MEMBER_NUMBER_MAX, self.0 >> 24)
    }
}

/// The order of a key's updates: version first, writer as the tie-break.
///
/// [`Timestamp::ZERO`] is the timestamp of a key that was never written. Versions are 64 bits wide
/// and never wrap (pitfall P4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Grows by 2 with a write and by 1 with a read-modify-write (Hermes §4.3.5).
    pub version: u64,
    /// Breaks ties between concurrent updates.
    pub writer: WriterId,
}

impl Timestamp {
    /// Below every minted timestamp.
    pub const ZERO: Self = Self { version: 0, writer: WriterId(0) };

    /// Builds a timestamp.
    pub const fn new(version: u64, writer: WriterId) -> Self {
        Self { version, writer }
    }

    /// Its words in a record's metadata. The upper half of the second is the record's own.
    #[inline]
    pub const fn to_words(self) -> [u64; 2] {
        [self.version, self.writer.0 as u64]
    }

    /// The timestamp in a record's words, whatever the upper half of the second holds.
    #[inline]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self::new(words[0], WriterId(words[1] as u32))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:?}", self.version, self.writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_outrank_writers() {
        let low = Timestamp::new(1, WriterId::new(MemberNumber(9), 255));
        let high = Timestamp::new(2, WriterId::new(MemberNumber(1), 0));
        assert!(low < high);
    }

    #[test]
    fn words_come_back_beside_what_else_a_record_keeps() {
        let timestamp = Timestamp::new(u64::MAX - 3, WriterId(0xfe00_0007));
        let [version, writer] = timestamp.to_words();
        assert_eq!(writer >> 32, 0);
        assert_eq!(Timestamp::from_words([version, writer | 0xffff << 32]), timestamp);
    }

    #[test]
    fn virtual_ids_of_two_members_never_meet() {
        for salt in 0..=255 {
            assert_eq!(WriterId::new(MemberNumber(7), salt).member(), MemberNumber(7));
        }
    }
}
