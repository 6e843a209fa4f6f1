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

impl Lsn {
    /// Before the first record: durable from the start.
    pub const START: Self = Self(0);
}
