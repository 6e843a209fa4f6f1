//! Means of synchronisation between threads, apart from records.
//!
//! - [`primitives`]: atomics, mutex, condition variable, threads and waiting. The one place that
//!   chooses between the standard library's, loom's (`--cfg loom`: every interleaving, weak memory
//!   included, of a few steps) and shuttle's (`--cfg shuttle`: random schedules of whole programs).
//! - [`Parker`]: a thread sleeps on it, and is woken only if it sleeps.
//! - [`Post`]: mail between the lanes of a process, a ring for each ordered pair.
//!
//! Everything that threads share is written with these; otherwise no model covers it. State of a
//! single lane needs none of it.
//!
//! `cargo xtask ci loom shuttle` runs the models of this crate and of those that use it.

#![forbid(unsafe_code)]

#[cfg(all(test, loom))]
mod models;
mod parker;
mod post;
pub mod primitives;
mod ring;
#[cfg(shuttle)]
pub mod schedules;

pub use parker::{Parker, Wake};
pub use post::Post;
