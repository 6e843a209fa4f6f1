//! Tests of the session machinery.
mod cluster;
mod exactly_once;
mod leases;
mod model;
mod result_tracker;
