//! Projections of the paper's figures to more lanes than this machine has processors: throughput
//! over lanes and over skew (Meerkat, EuroSys 2020, figures 4 to 7) for all four systems.
//!
//! # What is measured and what is modelled
//! *Measured* here, each time: the time that a lane of each system spends on each kind of message
//! ([`Handlers`]), by running the very machines; and the cost of a counter, a mutex, TAPIR's record
//! and KuaFu++'s log for one processor, and for two that contend for them ([`Contention`]).
//!
//! *Modelled*: the network ([`Network`]), clients that coordinate their own transactions and cost
//! nothing (as in the paper), clocks, pauses after aborts, and that lanes disturb each other only
//! where they share something: no memory bandwidth, no caches that grow too small, no second
//! socket. Contention of more than two lanes is extrapolated ([`Extrapolation`]).
//!
//! *Simulated*: queues at lanes, waits for shared things, the order of arrivals, and thereby the
//! transactions that abort.

mod contention;
mod figures;
mod inputs;
mod keys;
mod measure;
mod model;

pub use contention::TooBusy;
pub use figures::{Curve, Extrapolation, Figures, Finding, Projection, Sweep, project};
pub use inputs::{Contention, Handlers, Measured, Model, Network, PerSystem, Shared, System};
pub use measure::{Effort, measure};
pub use model::Point;
