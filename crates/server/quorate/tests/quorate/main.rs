//! The program as people run it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod bench;
mod buffers;
mod check;
mod dev;
mod differential;
mod durability;
mod edges;
mod limits;
mod log;
mod moving;
mod real_process;
mod redis_py;
mod serve;
mod sessions;
mod support;
