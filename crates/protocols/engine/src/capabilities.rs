//! What an engine can do. A node refuses what the engine can't with an error that names those that
//! can.

/// What an engine can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// One command or block may change several keys at once.
    pub transactions: bool,
    /// Clients may coordinate transactions themselves.
    pub guests: bool,
    /// Calls of sessions take effect exactly once, and where they run; without it they are refused.
    pub calls: Option<CallsHome>,
    /// It places commands: one may run better, or only, on another node ([`crate::Engine::place`]).
    pub places: bool,
    /// The keyspace may be cut into partitions with replicas of their own.
    pub partitions: bool,
    /// Each key is at some of the members, which follow from the view: a node has copies of any keys,
    /// of all, or of none ([`crate::Engine::holds`]). Otherwise all replicas of a partition have the
    /// same keys.
    pub spreads: bool,
    /// Collections are changed in place once they are large, and may be longer than a value: their
    /// changes travel alone. Otherwise each is replaced whole.
    pub large_collections: bool,
    /// An update is acknowledged when a quorum of its replicas has it; otherwise when every live one has.
    pub quorums: bool,
    /// It keeps more than one replica: the loss of a node loses nothing.
    pub replicated: bool,
    /// It appends to the log of its lane all that has to survive the loss of all power, and restores it. Its
    /// promises need not wait for the log: replicas that have lost different ends of their logs agree again.
    pub durable: bool,
    /// It recovers from the loss of a node. Without it an engine is an instrument for measurements,
    /// and no configuration file may choose it.
    pub recovers: bool,
}

impl Capabilities {
    /// Whether keys move from node to node, so that units of them may be pinned.
    pub const fn moves_keys(&self) -> bool {
        self.places && self.spreads
    }

    /// An engine that replicates single keys and recovers, and nothing else.
    pub const REPLICATED: Self = Self {
        transactions: false,
        guests: false,
        calls: None,
        places: false,
        partitions: false,
        spreads: false,
        large_collections: false,
        quorums: false,
        replicated: true,
        durable: false,
        recovers: true,
    };
}

/// On which lane a session's call runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallsHome {
    /// On that of its key: there its record lies beside the key's.
    Key,
    /// On that of its lease: there all records of the session lie.
    Lease,
    /// Where it is asked for, as any other command: the engine takes it to the lanes of its keys, and
    /// its record lies on one of them.
    Keys,
}

impl CallsHome {
    /// Whether any lane may have records of a session, not only that of its lease.
    pub const fn is_any_lane(self) -> bool {
        matches!(self, Self::Key | Self::Keys)
    }
}
