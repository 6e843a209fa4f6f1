//! Guards of publish and subscribe that can be removed, and what must notice.

use super::Check::Tests;
use super::Mutant;

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "node_publication_early_is_next",
        home: "node",
        guard: "a publication that comes early waits for those before it",
        checks: &[Tests("node", "what_comes_early_waits")],
        in_gate: true,
    },
    Mutant {
        name: "node_publication_twice",
        home: "node",
        guard: "a publication that comes again is not handed out again",
        checks: &[Tests("node", "what_comes_twice_is_heard_once")],
        in_gate: true,
    },
    Mutant {
        name: "node_publication_waits_for_each_gap",
        home: "node",
        guard: "a publication waits no longer for having several lost ones before it",
        checks: &[Tests("node", "a_message_behind_several")],
        in_gate: false,
    },
    Mutant {
        name: "node_subscription_not_announced",
        home: "node",
        guard: "a subscription is confirmed once other nodes know of it",
        checks: &[Tests("node", "a_subscription_is_confirmed")],
        in_gate: true,
    },
    Mutant {
        name: "node_interest_with_gaps",
        home: "node",
        guard: "what is told of listeners behind something lost is not heard, and told again",
        checks: &[Tests("node", "what_was_lost_is_told_again")],
        in_gate: true,
    },
    Mutant {
        name: "resp_publish_overtakes_update",
        home: "resp",
        guard: "a message leaves after the changes that its connection asked for before it",
        checks: &[Tests("resp", "a_message_leaves_after_the_changes")],
        in_gate: true,
    },
    Mutant {
        name: "resp_subscribers_have_no_limit",
        home: "resp",
        guard: "a subscriber that doesn't read is disconnected at the limit of its class",
        checks: &[Tests("resp", "a_slow_subscriber_is_disconnected")],
        in_gate: true,
    },
];
