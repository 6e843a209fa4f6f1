//! The guards of gates.

use super::Check::Tests;
use super::Mutant;

/// The part of gates of the table.
pub(super) const MUTANTS: &[Mutant] = &[Mutant {
    name: "machine_gate_opens_early",
    home: "machine",
    guard: "what waits for the log leaves once the log is durable up to its own place",
    checks: &[Tests("machine", "gate::")],
    in_gate: true,
}];
