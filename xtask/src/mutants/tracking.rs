//! Guards of what is told to clients that keep what they read, and what must notice if one is removed.

use super::Check::Tests;
use super::Mutant;

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "resp_read_not_tracked",
        home: "resp",
        guard: "a key is tracked before it is read",
        checks: &[Tests("resp", "what_caches_keep"), Tests("resp", "a_key_that_was_read")],
        in_gate: true,
    },
    Mutant {
        name: "resp_invalidation_lost",
        home: "resp",
        guard: "who has read a key is told that it changed",
        checks: &[Tests("resp", "what_caches_keep"), Tests("resp", "a_key_that_was_read")],
        in_gate: false,
    },
    Mutant {
        name: "resp_invalidation_overtakes_reply",
        home: "resp",
        guard: "what a client is told of a change comes behind the replies that are still to come",
        checks: &[Tests("resp", "what_caches_keep"), Tests("resp", "behind_the_replies")],
        in_gate: false,
    },
    Mutant {
        name: "storage_absent_key_changes",
        home: "storage",
        guard: "what had no value and gets none does not change",
        checks: &[Tests("storage", "changes_of_watched_keys")],
        in_gate: false,
    },
    Mutant {
        name: "storage_armed_remembers",
        home: "storage",
        guard: "what was listed before is listed again once the store is armed",
        checks: &[Tests("storage", "coalesced_changes_are_listed_once")],
        in_gate: false,
    },
    Mutant {
        name: "node_broadcast_arms_nothing",
        home: "node",
        guard: "who begins to broadcast hears also of what was told others before",
        checks: &[Tests("node", "coalesced_changes_are_told_once")],
        in_gate: false,
    },
    Mutant {
        name: "node_prefix_publishes_nothing",
        home: "node",
        guard: "behind a new prefix every lane has published what it counts",
        checks: &[Tests("node", "every_lane_has_published")],
        in_gate: false,
    },
    Mutant {
        name: "node_key_not_watched",
        home: "node",
        guard: "a tracked key is watched in the store before it is read",
        checks: &[Tests("node", "what_caches_keep")],
        in_gate: false,
    },
    Mutant {
        name: "node_other_lanes_not_told",
        home: "node",
        guard: "a change that one lane finds on the list is told the lanes that track its key",
        checks: &[Tests("node", "what_caches_keep")],
        in_gate: false,
    },
    Mutant {
        name: "node_change_not_told_far",
        home: "node",
        guard: "who waits at a node without a copy of a key is told that it changed",
        checks: &[Tests("node", "who_waits_where")],
        in_gate: false,
    },
    Mutant {
        name: "node_lapse_not_told",
        home: "node",
        guard: "who keeps what it reads is told of a lease that lapses",
        checks: &[Tests("node", "a_lease_that_lapses")],
        in_gate: false,
    },
];
