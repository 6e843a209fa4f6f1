//! The client's own bounds and defaults. A [`crate::Builder`] changes the defaults; the bounds on
//! replies protect the client's memory from any program at the other end.

use std::time::Duration;

/// How long the replies of one request may take. Longer than the 2 s after which a node itself
/// gives up on an op, so that the node's own answer comes first.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// How long one attempt to connect may take, with authentication and the choice of the database.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a call goes on starting new attempts.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often a call is attempted, whatever made the earlier attempts fail.
pub const ATTEMPTS: u32 = 32;
/// The pause before the second attempt; each further one is twice as long.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between attempts.
pub const BACKOFF_LONGEST: Duration = Duration::from_millis(100);
/// The most connections of one client, over all nodes.
pub const POOL_SIZE: usize = 16;
/// How long a client that coordinates its transactions itself goes on without a majority of the
/// nodes before it joins anew, under another id. Nodes forget a client that is gone for longer than
/// 30 s.
pub const GUEST_SEPARATION_MAX: Duration = Duration::from_secs(10);
/// How long such a client, once it is dropped, goes on telling the nodes the outcomes of its
/// transactions.
pub const GUEST_FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Most bytes that wait for one node that reads slowly; further messages are lost, and sent again.
pub const GUEST_BACKLOG_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most transactions that wait for the task that coordinates them.
pub const GUEST_QUEUE_MAX: usize = 1024;
/// How long a failed node is left alone while others are up.
pub const NODE_REST: Duration = Duration::from_millis(500);
/// The most units of keys that a client remembers the places of. What was used longest ago is
/// forgotten.
pub const HINTS_MAX: usize = 16 * 1024;
/// With which request for a unit a client asks where it lives.
pub const HINT_USES: u32 = 4;
/// After which time at most it asks again; after half of it at least.
pub const HINT_AGE: Duration = Duration::from_secs(10);
/// The longest expiry that [`crate::Txn::set_for`] asks for; a longer one is cut to it, because a
/// node refuses times that don't fit its clock. A hundred years.
pub const EXPIRY_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Longest line of a reply: a status, an error, a number. In bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Longest string within a reply, in bytes. Values are shorter; listings such as `INFO` may be
/// longer.
pub const BULK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most elements of one reply, those of nested arrays included.
pub const ELEMENTS_MAX: usize = 1024 * 1024;
/// Most bytes of strings and lines of one reply.
pub const REPLY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Deepest nesting of arrays.
pub const DEPTH_MAX: usize = 16;
