//! The guards of what engines keep in the log, and of what they make of it when it comes back.

use super::Check::{self, Tests};
use super::Mutant;

const LOG: Check = Tests("hermes", "log::");
const ZEUS_LOG: Check = Tests("zeus", "log::");
const ZEUS_CUTS: Check = Tests("zeus", "calls_take_effect_once_across");

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
        in_gate: false,
    },
    Mutant {
        name: "hermes_call_not_restored",
        home: "hermes",
        guard: "a version comes back with its call",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "hermes_undecided_not_saved",
        home: "hermes",
        guard: "a snapshot tells how an undecided version came about",
        checks: &[Tests("hermes", "deltas::changes_survive")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_sweep_without_limit",
        home: "hermes",
        guard: "replays after the loss of all power are few at a time",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_promise_before_durable",
        home: "zeus",
        guard: "an acknowledgement leaves behind the entry that it promises",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_commit_before_durable",
        home: "zeus",
        guard: "a coordinator commits when its own entry is durable",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_copied_not_durable",
        home: "zeus",
        guard: "a learner has caught up when what it has copied is durable",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_copied_not_appended",
        home: "zeus",
        guard: "what a learner has copied is in its log",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_gone_not_appended",
        home: "zeus",
        guard: "what a node has given away does not come back",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_restores_what_it_did_not_keep",
        home: "zeus",
        guard: "a node restores the keys of a transaction that it kept",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_floors_not_appended",
        home: "zeus",
        guard: "the floors are in the log",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_floors_not_restored",
        home: "zeus",
        guard: "the floors come back",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_restored_as_valid",
        home: "zeus",
        guard: "nobody reads what is undecided before all have recovered",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_decided_replayed",
        home: "zeus",
        guard: "what is known to be committed is not replayed",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_undecided_not_saved",
        home: "zeus",
        guard: "a snapshot has the transactions that are under way",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_call_not_restored",
        home: "zeus",
        guard: "a call is known again after a restart",
        checks: &[ZEUS_LOG],
        in_gate: false,
    },
    Mutant {
        name: "zeus_shadow_goes_on",
        home: "zeus",
        guard: "what a node that is not active has restored goes",
        checks: &[ZEUS_CUTS],
        in_gate: false,
    },
];
