//! The front end's own bounds. What `CONFIG SET` can change is in [`crate::Settings`].

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
/// Keys that one `SCAN` visits at most, whatever `COUNT` says.
pub const SCAN_COUNT_MAX: usize = 100_000;
/// How often `WAIT` looks at the number of replicas, in milliseconds.
pub const WAIT_POLL_MS: u64 = 10;
/// How often idle connections are looked for, in milliseconds.
pub const IDLE_CHECK_MS: u64 = 1000;
/// Buffers above this size are given back as soon as they are empty.
pub const BUFFER_KEEP_BYTES: usize = 64 * 1024;
/// Read buffers above this size are given back once their connection is idle.
pub const IDLE_BUFFER_BYTES: usize = 4 * 1024;
