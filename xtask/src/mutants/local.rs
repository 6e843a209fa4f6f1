//! Guards of the unreplicated engine that can be removed, and what must notice.

use super::Check::{self, Tests};
use super::Mutant;

const SWEEP: Check = Tests("sim", "transactions_over_the_lanes_of_one_node");

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "local_runs_on_a_held_lane",
        home: "local",
        guard: "what reaches a lane that is held for a transaction waits",
        checks: &[Tests("local", "what_reaches_a_held_lane_waits")],
        in_gate: true,
    },
    Mutant {
        name: "local_range_on_one_lane",
        home: "local",
        guard: "nobody adds a key to a range, or takes one away, while a transaction reads it",
        checks: &[Tests("local", "nothing_appears_in_a_range"), SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "local_changes_one_key_after_the_other",
        home: "local",
        guard: "readers of single records see all changes of a transaction or none",
        checks: &[Tests("local", "happens_at_once_for_readers")],
        in_gate: false,
    },
    Mutant {
        name: "local_serves_beside_others",
        home: "local",
        guard: "a node serves its own copy only while it is the single member",
        checks: &[Tests("local", "a_node_that_is_not_alone_refuses")],
        in_gate: false,
    },
    Mutant {
        name: "local_forgets_deletes",
        home: "local",
        guard: "an absent key shows that it was there since it was watched",
        checks: &[Tests("local", "an_absent_key_shows")],
        in_gate: false,
    },
    Mutant {
        name: "local_call_not_looked_up",
        home: "local",
        guard: "a call that has a record is answered from it",
        checks: &[SWEEP],
        in_gate: false,
    },
];
