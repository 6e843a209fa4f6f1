//! Ids of streams, what an approximate trim takes, what counts as delivered, and large streams.

use super::Check::Tests;
use super::Mutant;
use super::table::SWEEP;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "commands_stream_ids_go_back",
        home: "commands",
        guard: "A new entry's id is larger than every id that the stream ever had",
        checks: &[Tests("commands", "every_example")],
        in_gate: true,
    },
    Mutant {
        name: "commands_group_delivers_twice",
        home: "commands",
        guard: "A group moves on to the entries behind those that were delivered",
        checks: &[SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "commands_stream_nodes_are_cut",
        home: "commands",
        guard: "An approximate trim takes whole nodes of Redis's tree",
        checks: &[Tests("commands", "long_streams_are_trimmed_as_redis_does")],
        in_gate: true,
    },
    Mutant {
        name: "commands_stream_delivers_too_much",
        home: "commands",
        guard: "Entries whose answer would be too long are not delivered",
        checks: &[Tests("commands", "an_answer_that_would_be_too_long_delivers_nothing")],
        in_gate: true,
    },
    Mutant {
        name: "commands_stream_seek_misses_a_chunk",
        home: "commands",
        guard: "An id in a large stream is sought from the chunk on that may have it",
        checks: &[Tests("commands", "long_streams_are_trimmed_as_redis_does")],
        in_gate: true,
    },
    Mutant {
        name: "commands_stream_delta_forgets_counters",
        home: "commands",
        guard: "A delta of a stream has all that changes of what the stream counts",
        checks: &[Tests("commands", "streams::random_commands_leave")],
        in_gate: false,
    },
    Mutant {
        name: "commands_stream_large_deletes_one",
        home: "commands",
        guard: "A change of a stream is the same whether it is packed or large",
        checks: &[Tests("commands", "long_streams_are_trimmed_as_redis_does")],
        in_gate: false,
    },
];
