//! Guards of the rivals that can be removed, and what must notice: a rival that does less than it
//! must is no measure.

use super::Check::Tests;
use super::Mutant;

/// Its part of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "baselines_fasst_locks_shared",
        home: "baselines",
        guard: "FaSST: a locked key is neither locked nor read by another transaction",
        checks: &[Tests("baselines", "a_locked_key_is_neither"), Tests("baselines", "fasst")],
        in_gate: false,
    },
    Mutant {
        name: "baselines_fasst_reads_not_checked",
        home: "baselines",
        guard: "FaSST: what was read and not locked is unchanged when the transaction commits",
        checks: &[Tests("baselines", "fasst_is_strictly_serializable")],
        in_gate: false,
    },
    Mutant {
        name: "baselines_fasst_answers_before_backups",
        home: "baselines",
        guard: "FaSST: a client is answered when all backups have what its transaction wrote",
        checks: &[Tests("baselines", "locks_logs_and_commits")],
        in_gate: false,
    },
];
