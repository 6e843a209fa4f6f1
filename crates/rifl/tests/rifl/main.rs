//! Tests of the session machinery.
mod model;
mod tracker;
