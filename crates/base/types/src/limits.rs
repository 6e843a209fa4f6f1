//! Every bound has a name. At a bound the answer is back-pressure or an error with that name.

/// The largest configured node id; a [`crate::NodeSet`] is one 64-bit word.
pub const NODE_ID_MAX: u16 = 63;
/// The most voters of one cluster, and so the most replicas of one keyspace.
pub const MEMBERS_MAX: usize = 9;
/// The largest member number: 24 bits, because the upper byte of a writer id is drawn at random.
pub const MEMBER_NUMBER_MAX: u32 = (1 << 24) - 1;
/// The most lanes of a node.
pub const LANES_MAX: u16 = 64;
/// The most keyspaces, so the largest `SELECT` number plus one (Redis's default is 16).
pub const KEYSPACES_MAX: usize = 16;
/// The number of the internal keyspace that keeps pins ([`crate::placement::pin_key`]). No client selects
/// it.
pub const PINS_KEYSPACE: u8 = KEYSPACES_MAX as u8;
/// Most units of keys that are pinned to nodes.
pub const PLACEMENTS_MAX: u64 = 1024 * 1024;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Longest value, in bytes. Redis allows 512 MiB; a value here is one message, which its
/// coordinator copies for each replica within one loop turn, and other clients wait for that turn:
/// some 2 ms for a value of this size.
pub const VALUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest collection that an engine with large ones still keeps packed, in bytes: so much is copied
/// and sent for a change of it. Above, a change of one member costs about what it does in Redis.
pub const PACKED_BYTES_MAX: usize = 4 * 1024;
/// Most bytes of a large collection, packed. Its changes travel alone, but all of it is one message when
/// a replica joins, or lacks what a change was made on: some 20 ms for one of this size.
pub const COLLECTION_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most bytes of the answers of one command, or of all commands of one transaction. A command with
/// a longer answer is refused before it changes anything.
pub const REPLY_BYTES_MAX: usize = 4 * VALUE_BYTES_MAX;
/// Longest name of a channel, in bytes: that of a key and what stands before it in the channels of
/// keyspace notifications.
pub const CHANNEL_BYTES_MAX: usize = KEY_BYTES_MAX + 64;
/// Longest peer message: a key, a value, the answer of a call that set it, and their headers.
pub const MESSAGE_BYTES_MAX: usize = KEY_BYTES_MAX + COLLECTION_BYTES_MAX + VALUE_BYTES_MAX + 1024;

/// Most ops that one lane of one keyspace holds started or queued; beyond it a new op is refused
/// with `TRYAGAIN`.
pub const OPS_PENDING_MAX: usize = 64 * 1024;
/// Most ops queued behind one key; beyond it a new op on that key is refused with `TRYAGAIN`.
pub const WAITERS_PER_KEY_MAX: usize = 16 * 1024;
/// Most keys that one transaction reads and writes.
pub const TXN_KEYS_MAX: usize = 16 * 1024;
/// Most bytes of a transaction's keys and values together: it travels in one message.
pub const TXN_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX;
/// Most bytes that one transaction reads and writes in memory.
pub const TXN_READ_BYTES_MAX: usize = 16 * TXN_BYTES_MAX;
/// How often a transaction that conflicts with others is tried before its client is told
/// `TRYAGAIN`.
pub const TXN_ATTEMPTS_MAX: u32 = 64;
/// Most partitions of a keyspace.
pub const PARTITIONS_MAX: u16 = 64;

/// Most bytes of entries in one chunk that a joining replica reads.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// Most bytes queued for one peer of one lane; beyond it messages to that peer are dropped, which
/// the protocols treat as loss.
pub const PEER_BUFFER_BYTES_MAX: usize = 3 * MESSAGE_BYTES_MAX;

/// Most names of channels and patterns that the clients of one lane listen to.
pub const NAMES_PER_LANE_MAX: usize = 1024 * 1024;
/// Most bytes of these names.
pub const NAME_BYTES_PER_LANE_MAX: usize = 32 * 1024 * 1024;
/// Most patterns among them: each message is compared with every pattern.
pub const PATTERNS_PER_LANE_MAX: usize = 16 * 1024;

/// Most calls of a session from the first incomplete one on (RIFL's window).
pub const SESSION_WINDOW: u64 = 512;
/// Most bytes of answers that a session may hold when a call with a long answer begins.
pub const SESSION_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most leases that one lane of a node gives out and that are neither closed nor expired.
pub const LEASES_PER_LANE_MAX: usize = 1024 * 1024;
/// How long a lease lasts without being renewed.
pub const LEASE_TERM: crate::Duration = crate::Duration::from_secs(30 * 60);
/// The last part of a lease's term, in which its client begins no call.
pub const LEASE_DANGER: crate::Duration = crate::Duration::from_secs(60);
