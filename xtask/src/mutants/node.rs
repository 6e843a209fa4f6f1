//! Guards of nodes that can be removed, and what must notice.

use super::Check::Tests;
use super::Mutant;
use super::table::SWEEP;

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "node_lease_checked_before_read",
        home: "node",
        guard: "the lease is checked after the value was copied (H3)",
        checks: &[SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "node_earlier_life_acts",
        home: "node",
        guard: "what an earlier life of a node asked for is not done for the later one (rule 11)",
        checks: &[Tests("node", "rule_11_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "node_forwarded_without_session",
        home: "node",
        guard: "a call that is forwarded is one where it arrives",
        checks: &[Tests("node", "a_node_outside_the_group_serves_calls")],
        in_gate: false,
    },
    Mutant {
        name: "node_line_is_overtaken",
        home: "node",
        guard: "what follows a forwarded command on its key waits for it",
        checks: &[Tests("node", "what_follows_a_forwarded_command"), SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "node_forwarded_twice",
        home: "node",
        guard: "a forwarded command runs once, however often it arrives",
        checks: &[Tests("node", "each_command_runs_once"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "node_forwarded_read_leaves_early",
        home: "node",
        guard: "the answer of a forwarded read leaves behind the lease that it rests on (H3)",
        checks: &[Tests("node", "h3_a_replica_whose_lease")],
        in_gate: false,
    },
    Mutant {
        name: "node_call_not_covered",
        home: "node",
        guard: "a call begins under a grant that reaches far enough, or asks for one",
        checks: &[Tests("node", "a_call_renews_its_lease")],
        in_gate: false,
    },
    Mutant {
        name: "node_turn_not_passed_on",
        home: "node",
        guard: "who leaves a line passes the turn to the next",
        checks: &[Tests("node", "who_leaves_passes_the_turn_on")],
        in_gate: true,
    },
    Mutant {
        name: "node_timeout_overtakes_try",
        home: "node",
        guard: "a command whose time is over waits for the try that may have taken something",
        checks: &[Tests("node", "a_try_that_outlasts_its_time")],
        in_gate: false,
    },
    Mutant {
        name: "node_change_during_try_lost",
        home: "node",
        guard: "a key that changes during a try is tried again",
        checks: &[Tests("node", "a_push_during_a_try")],
        in_gate: false,
    },
    Mutant {
        name: "node_flush_asks_one_replica",
        home: "node",
        guard: "a flush lists what a majority of a group has where no more is acknowledged",
        checks: &[Tests("node", "acknowledged_before_it")],
        in_gate: false,
    },
    Mutant {
        name: "node_flush_awaits_no_other",
        home: "node",
        guard: "a flush waits for deletions that others have begun",
        checks: &[Tests("node", "a_flush_waits_for")],
        in_gate: false,
    },
    Mutant {
        name: "node_listing_asks_one_replica",
        home: "node",
        guard: "KEYS, SCAN and DBSIZE list what a majority has where no more is acknowledged",
        checks: &[Tests("node", "though_its_node_missed")],
        in_gate: false,
    },
    Mutant {
        name: "node_listing_ends_last",
        home: "node",
        guard: "a part of a listing ends where the first of its answers does",
        checks: &[Tests("node", "though_its_node_missed")],
        in_gate: false,
    },
    Mutant {
        name: "node_listing_mixes_epochs",
        home: "node",
        guard: "answers of members of another epoch count for no majority",
        checks: &[Tests("node", "a_listing_begins_again")],
        in_gate: false,
    },
    Mutant {
        name: "node_first_keyspace_is_all",
        home: "node",
        guard: "a node is active once it holds every keyspace, not only the first",
        checks: &[Tests("sim", "keyspaces_side_by_side")],
        in_gate: false,
    },
    Mutant {
        name: "node_call_off_its_lane",
        home: "node",
        guard: "every try of a transactional call runs on the lane of its lease",
        checks: &[Tests("node", "a_call_takes_effect_once")],
        in_gate: false,
    },
    Mutant {
        name: "node_seal_forgets_the_life",
        home: "node",
        guard: "an answer that a former life read never leaves under the lease of the next",
        checks: &[Tests("node", "an_answer_of_a_former_life")],
        in_gate: false,
    },
    Mutant {
        name: "node_expelled_ends_sessions",
        home: "node",
        guard: "a node without its lease says of no session that it is over",
        checks: &[Tests("node", "a_node_that_may_have_been_expelled")],
        in_gate: false,
    },
    Mutant {
        name: "node_verdict_stays_on_its_lane",
        home: "node",
        guard: "the end of a session reaches every lane that may have records of it",
        checks: &[Tests("node", "records_are_freed")],
        in_gate: false,
    },
];
