//! The guards of what engines keep in the log, and of what they make of it when it comes back.

use super::Check::{self, Tests};
use super::Mutant;

const LOG: Check = Tests("hermes", "log::");

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hermes_ack_before_durable",
        home: "hermes",
        guard: "an acknowledgement leaves behind the entry that it promises",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_commit_before_durable",
        home: "hermes",
        guard: "a coordinator commits when its own entry is durable",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_copied_not_durable",
        home: "hermes",
        guard: "a shadow is caught up when what it has copied is durable",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_dropped_base_not_appended",
        home: "hermes",
        guard: "what leaves the base leaves the log",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_floors_not_appended",
        home: "hermes",
        guard: "floors are in the log",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_restored_floor_not_doubted",
        home: "hermes",
        guard: "updates of absent keys wait for a round after the loss of all power",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_restored_as_valid",
        home: "hermes",
        guard: "what comes back is in doubt",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_call_not_restored",
        home: "hermes",
        guard: "a version comes back with its call",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "hermes_undecided_not_saved",
        home: "hermes",
        guard: "a snapshot tells how an undecided version came about",
        checks: &[Tests("hermes", "deltas::changes_survive")],
        in_gate: true,
    },
    Mutant {
        name: "hermes_sweep_without_limit",
        home: "hermes",
        guard: "replays after the loss of all power are few at a time",
        checks: &[LOG],
        in_gate: true,
    },
];
