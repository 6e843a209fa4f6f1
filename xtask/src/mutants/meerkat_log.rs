//! The guards of what Meerkat keeps in its log, and of what it makes of it when it comes back.

use super::Check::{self, Tests};
use super::Mutant;

const LOG: Check = Tests("meerkat", "logs::");
const POWER: Check = Tests("meerkat", "the_power");
const LANES: Check = Tests("meerkat", "lanes_with_logs");

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "meerkat_vote_before_durable",
        home: "meerkat",
        guard: "a vote for OK leaves behind its record and its sets",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_accepted_before_durable",
        home: "meerkat",
        guard: "an acceptance leaves behind the proposal",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_acknowledged_before_durable",
        home: "meerkat",
        guard: "an end is acknowledged when it is on disk",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_own_vote_counted_early",
        home: "meerkat",
        guard: "a coordinator counts itself when its own entry is on disk",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_own_end_forgotten_early",
        home: "meerkat",
        guard: "a coordinator forgets a transaction when its own end is on disk",
        checks: &[LOG],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_end_not_appended",
        home: "meerkat",
        guard: "the end of a transaction is appended when it is applied",
        checks: &[LOG, POWER],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_end_without_sets",
        home: "meerkat",
        guard: "an end that no vote for OK came before has the sets",
        checks: &[LOG, POWER],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_learned_not_appended",
        home: "meerkat",
        guard: "what a replica installs without a record is appended",
        checks: &[LOG, POWER],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_copied_not_appended",
        home: "meerkat",
        guard: "what a replica copies is appended",
        checks: &[LOG, POWER],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_gone_not_appended",
        home: "meerkat",
        guard: "what leaves the base of an earlier life is appended",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_adopted_not_appended",
        home: "meerkat",
        guard: "a merged record is appended when it is adopted",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_adopted_before_durable",
        home: "meerkat",
        guard: "a merged record is adopted when it is on disk",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_released_before_durable",
        home: "meerkat",
        guard: "a leader keeps the merged record on its own disk before it is released",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_stable_not_appended",
        home: "meerkat",
        guard: "what is over everywhere does not come back as a record",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_clock_not_appended",
        home: "meerkat",
        guard: "every vote for OK and every read lies within a reservation of time",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_floor_not_restored",
        home: "meerkat",
        guard: "no write is let pass below what was read before a restart",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_read_before_its_clock",
        home: "meerkat",
        guard: "a read is confirmed when the reservation of its time is on disk",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_caught_up_before_durable",
        home: "meerkat",
        guard: "a learner has caught up when what it has copied is on disk",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_restored_without_report",
        home: "meerkat",
        guard: "what comes back is the report of a former life",
        checks: &[LOG, POWER],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_restored_trusts_absence",
        home: "meerkat",
        guard: "after a restart, who read a value of an absent key has missed a deletion",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_restored_counts_as_own",
        home: "meerkat",
        guard: "what the disk of a single replica has is a base, and is compared",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_doubtful_state_served",
        home: "meerkat",
        guard: "what a log has that nobody waited for is compared with the others' before it is served",
        checks: &[LOG, POWER],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_handed_over_not_saved",
        home: "meerkat",
        guard: "a snapshot has what a lane has handed over for a change of epochs that is not through",
        checks: &[LOG],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_parked_forgotten",
        home: "meerkat",
        guard: "a delta whose base another lane's log brings is installed behind it",
        checks: &[LANES],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_deletions_forgotten_before_saved",
        home: "meerkat",
        guard: "a deletion is forgotten when no lane's log brings back what it has deleted",
        checks: &[LANES],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_restores_what_is_elsewhere",
        home: "meerkat",
        guard: "a node restores records of the partitions that it holds",
        checks: &[Tests("meerkat", "logs::a_node_restores_no_records")],
        in_gate: false,
    },
];
