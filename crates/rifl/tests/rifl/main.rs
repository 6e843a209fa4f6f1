//! Tests of the session machinery.
mod cluster;
mod leases;
mod model;
mod tracker;
