//! The mutants of values: objects and their deltas.

use super::Check::Tests;
use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hermes_delta_on_any_base",
        home: "hermes",
        guard: "a delta is applied to the version that it was made for",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: true,
    },
    Mutant {
        name: "hermes_rival_delta_not_undone",
        home: "hermes",
        guard: "a delta that is outranked on its base is undone first",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_inverse_of_delta_dropped",
        home: "hermes",
        guard: "the inverse of a delta is kept until its version is Valid",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_lacking_object_acknowledged",
        home: "hermes",
        guard: "a replica without a delta's base does not acknowledge it",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
];
