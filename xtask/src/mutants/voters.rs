//! The guards of voters whose state is on disk, and of views that are revived from disks.

use super::Check::{self, Tests};
use super::Mutant;

const DISKS: Check = Tests("membership", "disks::");
const OPENING: Check = Tests("node", "opening::");
const STATE: Check = Tests("membership", "state::");

/// The part of voters on disk of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "membership_promises_forgotten",
        home: "membership",
        guard: "a voter that comes back has promised everybody a lease (L8)",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_promise_before_durable",
        home: "membership",
        guard: "what a voter says leaves when what it rests on is on its disk",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_view_before_durable",
        home: "membership",
        guard: "a view is in force at a node when it is on the node's disk",
        checks: &[STATE],
        in_gate: false,
    },
    Mutant {
        name: "membership_revive_stale",
        home: "membership",
        guard: "a view is revived from who was active in the newest one (L9)",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_damage_forgotten",
        home: "membership",
        guard: "a store that was damaged is not intact when the power goes again",
        checks: &[DISKS],
        in_gate: true,
    },
    Mutant {
        name: "node_log_before_its_voter",
        home: "node",
        guard: "a log is begun when the voter's file says what became of the one before",
        checks: &[OPENING],
        in_gate: false,
    },
    Mutant {
        name: "node_log_without_its_voter",
        home: "node",
        guard: "a log counts for nothing without the promises of its node",
        checks: &[OPENING],
        in_gate: false,
    },
    Mutant {
        name: "node_empty_log_has_no_past",
        home: "node",
        guard: "a node whose logs have lost all has been there before",
        checks: &[OPENING],
        in_gate: false,
    },
    Mutant {
        name: "node_missing_log_is_intact",
        home: "node",
        guard: "who has promised something and has no log is not intact",
        checks: &[OPENING],
        in_gate: true,
    },
    Mutant {
        name: "membership_quorums_everywhere",
        home: "membership",
        guard: "quorums of one group ask nothing of another",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_revive_minority",
        home: "membership",
        guard: "where quorums acknowledge, a view is revived from a majority",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_shadows_numbered_first",
        home: "membership",
        guard: "a revived view has its active members before its shadows, who take over no leases from them",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_orphans_removed",
        home: "membership",
        guard: "silence removes nobody who may be the last one of its group",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_outlived_at_once",
        home: "membership",
        guard: "a group goes on without a dead member once another one has outlived it",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_late_word_of_the_dead",
        home: "membership",
        guard: "who has outlived a member has granted what was asked after that",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_late_word_of_a_former_life",
        home: "membership",
        guard: "nor because of what its former life had said, and what comes late",
        checks: &[DISKS],
        in_gate: true,
    },
    Mutant {
        name: "membership_revived_alone",
        home: "membership",
        guard: "a node with a group's data is not admitted as a shadow while others of the group are waited for",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_admits_a_foreign_disk",
        home: "membership",
        guard: "a disk of another cluster is not overwritten",
        checks: &[DISKS],
        in_gate: false,
    },
    Mutant {
        name: "membership_recovers_and_votes",
        home: "membership",
        guard: "who agrees to recover a cluster votes no more in the old one",
        checks: &[Tests("membership", "recovering::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_recovers_nothing",
        home: "hermes",
        guard: "a recovered cluster goes on with the data of the one before",
        checks: &[Tests("hermes", "log")],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_recovers_nothing",
        home: "meerkat",
        guard: "a recovered cluster goes on with the data of the one before",
        checks: &[Tests("meerkat", "log")],
        in_gate: false,
    },
    Mutant {
        name: "zeus_recovers_nothing",
        home: "zeus",
        guard: "a recovered cluster goes on with the data of the one before",
        checks: &[Tests("zeus", "log")],
        in_gate: false,
    },
    Mutant {
        name: "membership_gives_up_the_missing",
        home: "membership",
        guard: "a group's data is given up with all that had it, or not at all",
        checks: &[Tests("membership", "recovering::")],
        in_gate: false,
    },
    Mutant {
        name: "membership_gives_up_what_a_minority_has",
        home: "membership",
        guard: "what a minority of a group is back with is not given up, nor all that there is",
        checks: &[Tests("membership", "recovering::a_group_whose_majority")],
        in_gate: false,
    },
    Mutant {
        name: "membership_recovers_all_copies",
        home: "membership",
        guard: "data that is at some of the nodes only is where it was after a recovery",
        checks: &[Tests("membership", "recovering::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_group_has_no_heir",
        home: "hermes",
        guard: "a group that has lost its data goes on with what its eldest member has",
        checks: &[Tests("hermes", "log::")],
        in_gate: false,
    },
];
