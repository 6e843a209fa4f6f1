//! Identifiers.

use core::fmt;

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

identifier! {
    /// A configured node, 1 to [`crate::limits::NODE_ID_MAX`]. The same id can be held by several
    /// processes over time; an [`Incarnation`] tells them apart.
    NodeId, u16, "n"
}
identifier! {
    /// One life of a node, from its start (or its re-join after an expulsion) to its end. Drawn
    /// fresh each time, never 0; 0 stands for "no process has announced itself yet".
    Incarnation, u64, "i"
}
identifier! {
    /// The number that a view gave to a node's incarnation when it was admitted: 1 to
    /// [`crate::limits::MEMBER_NUMBER_MAX`], counted up for the life of the cluster and never used
    /// twice. It is a part of timestamps, so a crashed writer's timestamps can't be minted again
    /// (pitfall H2).
    MemberNumber, u32, "m"
}
identifier! {
    /// The number of a view. Every state-changing peer message carries it.
    Epoch, u64, "e"
}
identifier! {
    /// One lane of a node; lane *i* talks only to lane *i* of the other nodes.
    LaneId, u16, "l"
}
identifier! {
    /// A keyspace, by the number that Redis `SELECT` takes.
    KeyspaceId, u8, "k"
}
identifier! {
    /// An engine, by the number in the header of its messages.
    EngineId, u8, "engine "
}
identifier! {
    /// A place in the log of one lane: everything that was appended before it. Places only compare;
    /// how far they lie apart is the log's business.
    Lsn, u64, "l"
}
identifier! {
    /// Names a submitted op to its submitter. Opaque to machines.
    Tag, u64, "t"
}

/// The bits of a cluster's name that say whose data it has.
const DATA: u64 = u32::MAX as u64;

/// A cluster is named by the life of its founder.
impl Incarnation {
    /// The name of the cluster that a life founds from what the disks of this one have. One half says whose
    /// data it is, the other one who has recovered it.
    #[must_use]
    pub fn recovered_by(self, founder: Self) -> Self {
        let by = founder.0 & !DATA;
        // A name of its own, whatever was drawn.
        let by = if by == self.0 & !DATA { by ^ (DATA + 1) } else { by };
        Self(by | self.0 & DATA)
    }

    /// Whether the data of two clusters are the same, with epochs and member numbers that go on: one was
    /// recovered from the other, or both from a third, or they are one.
    pub fn shares_data_with(self, other: Self) -> bool {
        (self.0 ^ other.0) & DATA == 0 && (self.0 == 0) == (other.0 == 0)
    }
}

impl Lsn {
    /// Before the first record: durable from the start.
    pub const START: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovered_cluster_has_a_name_of_its_own_and_the_data_of_the_one_before() {
        let first = Incarnation(0x1234_5678_9abc_def0);
        let second = first.recovered_by(Incarnation(0xaaaa_bbbb_cccc_dddd));
        let third = second.recovered_by(Incarnation(0xaaaa_bbbb_0000_0001));
        let mut names = [first, second, third, first.recovered_by(first)];
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(names.iter().all(|name| name.shares_data_with(first)));
        assert!(!first.shares_data_with(Incarnation(0x1234_5678_9abc_def1)));
        assert!(!Incarnation(1 << 32).shares_data_with(Incarnation(0)), "0 names no cluster");
    }
}
