//! The guards of the reader and the writer of Redis's files.

use super::Check::{self, Tests};
use super::Mutant;

const DAMAGE: Check = Tests("rdb", "a_byte_that_has_changed_is_an_error");
const FORMS: Check = Tests("rdb", "values_of_all_forms_are_read_in_pieces_of_any_length");
const MESSAGES: Check = Tests("rdb", "what_is_wrong_is_said_with_its_place");
const ORDER: Check = Tests("rdb", "entries_of_a_stream_ascend");
const OVER: Check = Tests("rdb", "a_key_that_was_written_over_is_in_the_file_no_longer");
const PAYLOAD: Check = Tests("rdb", "a_damaged_payload_is_not_written");

/// The part of Redis's files of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "rdb_checksum_not_compared",
        home: "rdb",
        guard: "a file whose bytes have changed is not taken",
        checks: &[DAMAGE],
        in_gate: true,
    },
    Mutant {
        name: "rdb_expiry_unit",
        home: "rdb",
        guard: "an expiry in seconds is one in seconds",
        checks: &[FORMS],
        in_gate: true,
    },
    Mutant {
        name: "rdb_any_version",
        home: "rdb",
        guard: "a version that nobody knows is not read as another one",
        checks: &[MESSAGES],
        in_gate: false,
    },
    Mutant {
        name: "rdb_entries_in_any_order",
        home: "rdb",
        guard: "entries of a stream ascend, or none after the greatest could be added",
        checks: &[ORDER],
        in_gate: false,
    },
    Mutant {
        name: "rdb_exchange_not_summed",
        home: "rdb",
        guard: "the checksum of a file is that of its bytes, also of those that were written over",
        checks: &[OVER],
        in_gate: false,
    },
    Mutant {
        name: "rdb_payload_unchecked",
        home: "rdb",
        guard: "what DUMP answered is written as it was answered",
        checks: &[PAYLOAD],
        in_gate: false,
    },
];
