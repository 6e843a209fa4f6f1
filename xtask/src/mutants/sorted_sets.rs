//! The order of sorted sets, and which keys a search may write.

use super::Check::Tests;
use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "commands_ties_in_any_order",
        home: "commands",
        guard: "Members of one score stand in the order of their bytes",
        checks: &[Tests("commands", "ties_stand_in_the_order_of_their_bytes")],
        in_gate: true,
    },
    Mutant {
        name: "commands_scores_added_in_any_order",
        home: "commands",
        guard: "Scores are added from the smallest set to the largest, as in Redis",
        checks: &[Tests("commands", "sums_depend_on_the_sizes_of_the_sets")],
        in_gate: true,
    },
    Mutant {
        name: "commands_geo_stores_anywhere",
        home: "commands",
        guard: "A search stores only under a key that the call is known to have",
        checks: &[Tests("commands", "a_search_stores_only_where_its_keys_say")],
        in_gate: true,
    },
];
