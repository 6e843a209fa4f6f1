//! Guards of which node a client asks, and what must notice if one is removed.

use super::Check::Tests;
use super::Mutant;

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "client_hint_unheeded",
        home: "client",
        guard: "a unit that others use elsewhere is followed",
        checks: &[Tests("client", "routes::")],
        in_gate: false,
    },
    Mutant {
        name: "client_hints_stay",
        home: "client",
        guard: "what is known of a unit's place grows old",
        checks: &[Tests("client", "routes::")],
        in_gate: false,
    },
    Mutant {
        name: "client_hints_unbounded",
        home: "client",
        guard: "units whose places are known are bounded",
        checks: &[Tests("client", "routes::")],
        in_gate: false,
    },
    Mutant {
        name: "client_question_uncounted",
        home: "client",
        guard: "a question in front of calls that have no numbers of their own takes one",
        checks: &[Tests("client", "routes::")],
        in_gate: false,
    },
];
