//! Bounds of scripts.

/// Instructions of the interpreter in one run, about 25 ms of processor time. Work of the libraries
/// counts as instructions that take as long.
pub const INSTRUCTIONS_MAX: u64 = 5_000_000;

/// Memory of one interpreter, what it has compiled included.
pub const MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Processor time of one run in milliseconds. Counting instructions ends nearly everything earlier,
/// and the same way on every node; this ends what makes each instruction slow.
pub const CPU_MS_MAX: u64 = 200;

/// The longest script.
pub const SOURCE_BYTES_MAX: usize = 512 * 1024;

/// Scripts that an interpreter keeps compiled, and the length of their sources together.
pub const COMPILED_MAX: usize = 512;
/// See [`COMPILED_MAX`].
pub const COMPILED_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The libraries of a keyspace together.
pub const LIBRARIES_BYTES_MAX: usize = 1024 * 1024;

/// Scripts that a node remembers for `EVALSHA`.
pub const CACHED_MAX: usize = 4096;
/// Bytes of the scripts that a node remembers.
pub const CACHED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An interpreter that holds more than this between two runs is thrown away.
pub const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How deep the steps of one pattern nest.
pub const PATTERN_DEPTH_MAX: u32 = 200;
