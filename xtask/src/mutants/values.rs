//! The mutants of values: kinds, the deltas of large collections, fields that expire.

use super::Check::Tests;
use super::Mutant;
use super::table::SWEEP;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hermes_nothing_combined",
        home: "hermes",
        guard: "ops that wait for one key share an update",
        checks: &[Tests("hermes", "combining::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_combined_forgotten",
        home: "hermes",
        guard: "all ops of an update that was superseded run again",
        checks: &[Tests("hermes", "combining::"), Tests("hermes", "random::")],
        in_gate: true,
    },
    Mutant {
        name: "hermes_combined_changes_unwatched",
        home: "hermes",
        guard: "a watch sees what ran before it in the same update",
        checks: &[Tests("hermes", "combining::")],
        in_gate: true,
    },
    Mutant {
        name: "commands_expired_field_seen",
        home: "commands",
        guard: "a field that has expired is absent to every command",
        checks: &[Tests("commands", "fields_expire")],
        in_gate: true,
    },
    Mutant {
        name: "commands_hset_keeps_the_expiry",
        home: "commands",
        guard: "a field that is set anew doesn't expire",
        checks: &[Tests("commands", "fields_expire")],
        in_gate: false,
    },
    Mutant {
        name: "commands_own_expiry_lost",
        home: "commands",
        guard: "a key keeps its own expiry while its fields have theirs",
        checks: &[Tests("commands", "fields_expire")],
        in_gate: false,
    },
    Mutant {
        name: "commands_hash_outlives_its_fields",
        home: "commands",
        guard: "a record expires with the last field of its hash",
        checks: &[Tests("commands", "fields_expire")],
        in_gate: true,
    },
    Mutant {
        name: "hermes_delta_on_any_base",
        home: "hermes",
        guard: "a delta is applied to the version that it was made for",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: true,
    },
    Mutant {
        name: "hermes_rival_delta_not_undone",
        home: "hermes",
        guard: "a delta that is outranked on its base is undone first",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_inverse_of_delta_dropped",
        home: "hermes",
        guard: "the inverse of a delta is kept until its version is Valid",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_lacking_base_acknowledged",
        home: "hermes",
        guard: "a replica without a delta's base does not acknowledge it",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_delta_drops_base",
        home: "hermes",
        guard: "a delta that can't be applied takes nothing out of what an earlier life left",
        checks: &[Tests("hermes", "deltas::")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_inv_without_kind",
        home: "hermes",
        guard: "an INV says of which type the value is",
        checks: &[SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "hermes_copy_without_kind",
        home: "hermes",
        guard: "what a joining replica copies keeps its type",
        checks: &[SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_body_without_kind",
        home: "meerkat",
        guard: "a transaction's writes say of which type each value is",
        checks: &[Tests("sim", "transactions_survive_every_fault")],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_copy_without_kind",
        home: "meerkat",
        guard: "what a joining replica copies, or another one reads there, keeps its type",
        checks: &[Tests("sim", "transactions_survive_every_fault")],
        in_gate: false,
    },
    Mutant {
        name: "storage_record_without_kind",
        home: "storage",
        guard: "a record says of which type its value is",
        checks: &[SWEEP, Tests("sim", "transactions_over_the_lanes_of_one_node")],
        in_gate: true,
    },
];
