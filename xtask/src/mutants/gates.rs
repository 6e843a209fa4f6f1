//! The guards of gates and of the store that exercises them.

use super::Check::{self, Tests};
use super::Mutant;

const POWER_CUTS: Check = Tests("sim", "power_cuts");

/// The part of gates of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "machine_gate_opens_early",
        home: "machine",
        guard: "what waits for the log leaves once the log is durable up to its own place",
        checks: &[Tests("machine", "gate::"), POWER_CUTS],
        in_gate: true,
    },
    Mutant {
        name: "sim_store_answers_early",
        home: "sim",
        guard: "an update is answered when it is durable",
        checks: &[POWER_CUTS],
        in_gate: true,
    },
    Mutant {
        name: "sim_store_reads_early",
        home: "sim",
        guard: "what a client reads is durable",
        checks: &[POWER_CUTS],
        in_gate: false,
    },
    Mutant {
        name: "sim_store_copies_early",
        home: "sim",
        guard: "a backup is sent what its primary will not forget",
        checks: &[POWER_CUTS],
        in_gate: false,
    },
    Mutant {
        name: "sim_store_acknowledges_early",
        home: "sim",
        guard: "a backup acknowledges what it will not forget",
        checks: &[POWER_CUTS],
        in_gate: false,
    },
    Mutant {
        name: "sim_log_torn_accepted",
        home: "sim",
        guard: "a torn batch of a log is not restored",
        checks: &[POWER_CUTS],
        in_gate: true,
    },
    Mutant {
        name: "sim_log_rot_truncated",
        home: "sim",
        guard: "a damaged batch with a sound one behind it is not taken for a torn end",
        checks: &[POWER_CUTS],
        in_gate: false,
    },
    Mutant {
        name: "sim_log_flush_retried",
        home: "sim",
        guard: "a node whose flush failed stops, since no later flush covers the same sectors",
        checks: &[POWER_CUTS],
        in_gate: false,
    },
];
