//! The checkers against histories made by hand, by a simulated register, and by exhaustion.

mod anomalies;
mod brute_force;
mod collections;
mod elle;
mod files;
mod generated;
mod losses;
mod mixed;
mod support;
mod txn_anomalies;
mod txn_brute_force;
mod txn_generated;
mod txn_simulated;
mod txn_support;
