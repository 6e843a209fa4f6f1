//! Guards of the program's backups, and what must notice if one is removed.

use super::Check::{self, Tests};
use super::Mutant;

const CUT: Check = Tests("quorate", "a_moment_is_one_in_which_nothing_changes");
const LOAD: Check = Tests("quorate", "a_backup_under_load_is_of_one_moment");

/// Their part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "quorate_backup_changed_key_stays",
        home: "quorate",
        guard: "a key that has changed since it was read is read again",
        checks: &[LOAD],
        in_gate: false,
    },
    Mutant {
        name: "quorate_backup_changes_unheeded",
        home: "quorate",
        guard: "a round in which something changed is not the last one",
        checks: &[CUT, LOAD],
        in_gate: false,
    },
    Mutant {
        name: "quorate_backup_unsettled_unheeded",
        home: "quorate",
        guard: "a round in which an update is under way is not the last one",
        checks: &[CUT],
        in_gate: false,
    },
    Mutant {
        name: "quorate_backup_told_late",
        home: "quorate",
        guard: "nothing is judged before everything was told",
        checks: &[Tests("quorate", "everything_is_told_before_anything_rests_on_it")],
        in_gate: false,
    },
    Mutant {
        name: "quorate_backup_taken_unarmed",
        home: "quorate",
        guard: "what is read again is told again if it changes behind that",
        checks: &[Tests("quorate", "everything_is_told_before_anything_rests_on_it")],
        in_gate: false,
    },
    Mutant {
        name: "quorate_restore_checksum_missing",
        home: "quorate",
        guard: "a file whose checksum is gone is not restored",
        checks: &[Tests("quorate", "a_file_that_was_cut_or_changed_is_refused")],
        in_gate: false,
    },
    Mutant {
        name: "quorate_restore_into_data",
        home: "quorate",
        guard: "a database that has something is not restored into",
        checks: &[Tests("quorate", "what_is_there_is_not_overwritten")],
        in_gate: false,
    },
];
