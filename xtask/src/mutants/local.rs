//! Guards of the unreplicated engine that can be removed, and what must notice.

use super::Check::{self, Tests};
use super::Mutant;

const SWEEP: Check = Tests("sim", "transactions_over_the_lanes_of_one_node");
const CUTS: Check = Tests("local", "nothing_that_was_answered_or_seen_is_lost");

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
        name: "local_expiry_is_a_change",
        home: "local",
        guard: "a watch of a value whose time is over holds when it is deleted",
        checks: &[Tests("local", "values_past_their_time")],
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
        name: "local_expired_shown_as_absent",
        home: "local",
        guard: "who is shown that a value is past its time deletes it: the clock may be set back",
        checks: &[Tests("local", "stays_absent_if_the_clock_is_set_back")],
        in_gate: false,
    },
    Mutant {
        name: "local_log_of_a_keyspace_in_memory",
        home: "local",
        guard: "what is in memory changes on all lanes when its node has come back from a log",
        checks: &[Tests("local", "what_is_in_memory_changes_on_all_lanes")],
        in_gate: false,
    },
    Mutant {
        name: "local_call_not_looked_up",
        home: "local",
        guard: "a call that has a record is answered from it",
        checks: &[SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "local_answered_before_durable",
        home: "local",
        guard: "an answer waits until what it rests on is durable",
        checks: &[Tests("local", "neither_answered_nor_shown"), CUTS],
        in_gate: true,
    },
    Mutant {
        name: "local_read_before_durable",
        home: "local",
        guard: "other lanes read a change once it is durable",
        checks: &[Tests("local", "neither_answered_nor_shown")],
        in_gate: false,
    },
    Mutant {
        name: "local_turn_passed_before_durable",
        home: "local",
        guard: "what a transaction over several lanes rests on is durable before it",
        checks: &[CUTS],
        in_gate: false,
    },
    Mutant {
        name: "local_released_before_durable",
        home: "local",
        guard: "nothing rests on a transaction over several lanes before that is durable",
        checks: &[CUTS],
        in_gate: false,
    },
    Mutant {
        name: "local_missing_part_left_out",
        home: "local",
        guard: "a transaction that one lane has in its log comes back on all its lanes",
        checks: &[Tests("local", "what_only_one_lane_has"), CUTS],
        in_gate: false,
    },
    Mutant {
        name: "local_serves_before_other_lanes_have_told",
        home: "local",
        guard: "a lane serves when it knows all that it held before the power went",
        checks: &[Tests("local", "a_lane_serves_when_all_others_have_told")],
        in_gate: false,
    },
    Mutant {
        name: "local_changes_other_lanes_keys",
        home: "local",
        guard: "no snapshot has a part of a transaction that is not durable",
        checks: &[CUTS],
        in_gate: false,
    },
    Mutant {
        name: "local_call_to_end_not_saved",
        home: "local",
        guard: "a snapshot has the record of a call whose entry stands before it and is not durable",
        checks: &[Tests("local", "a_snapshot_has_the_calls")],
        in_gate: false,
    },
    Mutant {
        name: "local_snapshot_without_unconfirmed",
        home: "local",
        guard: "a lane forgets a transaction when all its lanes have it",
        checks: &[Tests("local", "a_snapshot_has_what_another_lane")],
        in_gate: false,
    },
    Mutant {
        name: "local_kept_before_durable",
        home: "local",
        guard: "a lane confirms a transaction when it is durable there",
        checks: &[Tests("local", "a_snapshot_has_what_another_lane")],
        in_gate: false,
    },
    Mutant {
        name: "local_snapshot_overtaken",
        home: "local",
        guard: "what a snapshot has forgotten stays away",
        checks: &[Tests("local", "deleted_and_forgotten_stays_away")],
        in_gate: false,
    },
    Mutant {
        name: "local_delta_on_any_base",
        home: "local",
        guard: "a delta is applied to the version that it changes",
        checks: &[Tests("local", "a_change_of_what_is_lost_is_lost")],
        in_gate: false,
    },
    Mutant {
        name: "local_floor_not_restored",
        home: "local",
        guard: "an absent key is not as it was before the power went",
        checks: &[Tests("local", "versions_go_on_above")],
        in_gate: false,
    },
    Mutant {
        name: "local_records_of_another_cluster",
        home: "local",
        guard: "records of another cluster go",
        checks: &[Tests("local", "records_of_another_cluster_go")],
        in_gate: false,
    },
    Mutant {
        name: "local_record_not_restored",
        home: "local",
        guard: "a call is known again after a restart",
        checks: &[Tests("local", "a_call_is_recorded_with_what")],
        in_gate: false,
    },
];
