//! The front end's own bounds. What `CONFIG SET` can change is in [`crate::Settings`].

use quorate_types::Duration;

/// Bytes of free space that a read finds in a connection's buffer at least.
pub const READ_BYTES: usize = 16 * 1024;
/// Unsent reply bytes of one connection above which its further commands wait: a client that
/// doesn't read stops being served, not being bounded.
pub const OUTPUT_PAUSE_BYTES: usize = 1024 * 1024;
/// Bytes of one connection's ops in progress, and of what those behind others are known to answer,
/// above which its further commands wait.
pub const IN_FLIGHT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Unfinished replies of one connection above which its further commands wait.
pub const PIPELINE_REPLIES_MAX: usize = 4096;
/// Keys of one command (`MGET`, `DEL` ...) in flight at once; the others follow as these finish.
pub const SPLIT_OPS_MAX: usize = 256;
/// Keys of one command that are read from this node's replica within one turn, and bytes of their
/// values; more are read in steps.
pub const READS_AT_ONCE: usize = 64;
/// See [`READS_AT_ONCE`].
pub const READS_AT_ONCE_BYTES: u64 = 1024 * 1024;
/// Keys that one `SCAN` looks at, about, whatever `COUNT` says: it answers with fewer and a cursor to
/// go on from.
pub const SCAN_COUNT_MAX: usize = 1000;
/// Steps of one `SCAN` besides those that its `COUNT` takes, where most records have no value.
pub const SCAN_STEPS: usize = 16;
/// Bytes of keys with which one `SCAN` has enough.
pub const SCAN_BYTES_ENOUGH: usize = 256 * 1024;
/// Records that one step of `KEYS` and the like looks at.
pub const WALK_STEP: usize = 64;
/// Steps that another node is asked for at once.
pub const WALK_STEPS_ASKED: usize = 4;
/// Records that all commands of one `MULTI` block look at, together.
pub const EXEC_RECORDS_MAX: usize = 10_000;
/// What a key is estimated to take of a reply besides its bytes.
pub const KEY_FRAME_BYTES: usize = 16;
/// Records that are looked at for one unit of work.
pub const RECORDS_PER_WORK: u64 = 8;
/// Arguments of an entry of `SLOWLOG`, and bytes of each, as in Redis.
pub const SLOWLOG_ARGUMENTS: usize = 32;
/// See [`SLOWLOG_ARGUMENTS`].
pub const SLOWLOG_ARGUMENT_BYTES: usize = 128;
/// What a buffer of arguments keeps once its op has ended.
pub const SLOWLOG_BUFFER_KEEP_BYTES: usize = 512;
/// The most entries that `slowlog-max-len` allows.
pub const SLOWLOG_ENTRIES_MAX: u64 = 10_000;
/// Spikes that `LATENCY HISTORY` has of an event, as in Redis.
pub const LATENCY_SAMPLES: usize = 160;
/// Bytes that wait for a `MONITOR`; one that falls further behind is disconnected.
pub const MONITOR_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of arguments that a `MONITOR` is told of one command.
pub const MONITOR_LINE_BYTES_MAX: usize = 16 * 1024;
/// How long `CLIENT PAUSE` lasts at most, in seconds.
pub const PAUSE_SECONDS_MAX: u64 = 24 * 60 * 60;
/// How often `WAIT` looks at the number of replicas, in milliseconds.
pub const WAIT_POLL_MS: u64 = 10;
/// How often idle connections are looked for, in milliseconds.
pub const IDLE_CHECK_MS: u64 = 1000;
/// Buffers above this size are given back as soon as they are empty.
pub const BUFFER_KEEP_BYTES: usize = 64 * 1024;
/// How long a client may stay without the password that the node asks for, in milliseconds.
pub const AUTH_MS: u64 = 10_000;
/// How long the answer to a first wrong password is held back, in milliseconds, and with it what
/// follows; twice as long with each further one.
pub const AUTH_BACKOFF_MS: u64 = 50;
/// Bytes of an argument beyond `proto-max-bulk-len` that are read and dropped, so that its client sees
/// why the connection closes; of a longer one the rest is not.
pub const SKIPPED_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How long a client may send nothing of such an argument, in milliseconds.
pub const SKIP_MS: u64 = 2_000;
/// Wrong passwords of a connection; with the last one it is closed.
pub const AUTH_FAILURES_MAX: u32 = 8;
/// Read buffers above this size are given back once their connection is idle.
pub const IDLE_BUFFER_BYTES: usize = 4 * 1024;

/// What all clients of a lane may take of one turn of the loop. Their replies leave at its end, so
/// that others wait about as long as this and the rest of the turn.
pub const CLIENTS_PER_TURN: Duration = Duration::from_millis(1);
/// What one client may take of a turn; the rest of what it sent waits for the next.
pub const CLIENT_PER_TURN: Duration = Duration::from_micros(250);
/// What clients that wait since the last turn may take of this one before what is new has its turn.
pub const RESUMED_PER_TURN: Duration = Duration::from_micros(500);
/// The clock is read behind each command if those are to be logged that take less than this.
pub const SLOWLOG_EXACT_MICROS: u64 = 100;
/// Estimated work after which the clock is read. A reading takes some 30 ns; a read of a short value,
/// one unit, takes ten times as long.
pub const WORK_PER_READING: u64 = 16;
/// What it is estimated to cost to submit an op, in reads of a short value.
pub const WORK_OF_OP: u64 = 4;
/// Bytes of arguments, values and replies that are one unit of work.
pub const BYTES_PER_WORK: u64 = 1024;

/// Bytes that the keys which the clients of a lane track may take, with their readers. A key counts
/// with what it takes at the front end, at the node and in the store.
pub const TRACKED_BYTES_PER_LANE_MAX: usize = 256 * 1024 * 1024;
/// Distinct prefixes that the clients of a lane track.
pub const TRACKED_PREFIXES_PER_LANE_MAX: usize = 16 * 1024;
/// Tracked keys that are forgotten in one turn.
pub const FORGOTTEN_PER_TURN: usize = 1024;

/// Messages that subscribers of a lane get in one turn, counted once for each subscriber.
pub const DELIVERIES_PER_TURN: usize = 4096;
/// Subscribers among them that would have been sent nothing else in the turn: each costs a system
/// call of its own at the end of the turn.
pub const ROUSED_PER_TURN: usize = 256;
/// Bytes of these messages.
pub const DELIVERED_BYTES_PER_TURN: usize = 4 * 1024 * 1024;
/// Subscribers that are looked up at once.
pub const DELIVERIES_AT_ONCE: usize = 64;
/// Patterns that are compared with a channel in the time of one delivery.
pub const PATTERNS_PER_DELIVERY: usize = 4;
/// Bytes of messages that wait for their subscribers' turn, beyond which clients of the lane that
/// publish wait.
pub const FANOUT_WAIT_BYTES: usize = 8 * 1024 * 1024;
/// The same, in messages.
pub const FANOUT_WAIT_MESSAGES: usize = 16 * 1024;
/// Bytes of such messages beyond which further ones, of other lanes and nodes, are lost.
pub const FANOUT_BYTES_MAX: usize = 64 * 1024 * 1024;
