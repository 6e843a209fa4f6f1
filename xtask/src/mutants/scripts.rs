//! The bounds of scripts, that nothing stays from one run to the next, and what is told of them.

use super::Check::Tests;
use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "scripts_pcall_catches_the_end",
        home: "scripts",
        guard: "A function that catches errors raises the end of the run again",
        checks: &[Tests("scripts", "the_end_of_a_run_is_not_caught")],
        in_gate: true,
    },
    Mutant {
        name: "commands_script_keys_are_named",
        home: "commands",
        guard: "A script may touch keys that it was not told of, so it holds all lanes",
        checks: &[Tests("sim", "transactions_over_the_lanes_of_one_node")],
        in_gate: false,
    },
    Mutant {
        name: "scripts_hook_on_one_coroutine",
        home: "scripts",
        guard: "The bounds are looked at in every coroutine",
        checks: &[Tests("scripts", "a_loop_in_a_coroutine_ends")],
        in_gate: true,
    },
    Mutant {
        name: "scripts_patterns_unbounded",
        home: "scripts",
        guard: "The steps of a pattern count",
        checks: &[Tests("scripts", "the_steps_of_a_pattern")],
        in_gate: true,
    },
    Mutant {
        name: "scripts_stopped_commits",
        home: "scripts",
        guard: "A script that was stopped changes nothing",
        checks: &[Tests("scripts", "memory_is_bounded")],
        in_gate: true,
    },
    Mutant {
        name: "resp_unknown_script_unasked",
        home: "resp",
        guard: "A session's call by a digest is looked up where its script is not known",
        checks: &[Tests("resp", "an_unknown_script_of_a_session")],
        in_gate: true,
    },
    Mutant {
        name: "resp_script_heard_at_home",
        home: "resp",
        guard: "A script that this node loaded and forgot does not come back",
        checks: &[Tests("resp", "a_script_that_this_node_loaded_and_forgot")],
        in_gate: true,
    },
    Mutant {
        name: "scripts_kill_unseen",
        home: "scripts",
        guard: "A script that is told to stop does",
        checks: &[Tests("resp", "a_script_without_end_is_killed_and_undone")],
        in_gate: true,
    },
    Mutant {
        name: "scripts_globals_leak",
        home: "scripts",
        guard: "An interpreter that a script has changed is thrown away",
        checks: &[Tests("scripts", "nothing_stays_from_run_to_run")],
        in_gate: true,
    },
    Mutant {
        name: "scripts_random_unseeded",
        home: "scripts",
        guard: "Random numbers of a run don't depend on the runs before",
        checks: &[Tests("scripts", "a_run_at_the_same_time")],
        in_gate: true,
    },
    Mutant {
        name: "commands_messages_unbounded",
        home: "commands",
        guard: "A script publishes so much and no more",
        checks: &[Tests("scripts", "what_a_script_publishes_is_bounded")],
        in_gate: true,
    },
    Mutant {
        name: "commands_undone_script_publishes",
        home: "commands",
        guard: "Of a script that was undone nothing is told",
        checks: &[Tests("resp", "an_error_keeps_what_was_published_and_a_bound_does_not")],
        in_gate: true,
    },
    Mutant {
        name: "commands_notes_kept",
        home: "commands",
        guard: "A call that is made again is told of once",
        checks: &[
            Tests("resp", "a_call_that_is_made_again_publishes_once"),
            Tests("node", "a_call_that_is_tried_again_publishes_once"),
        ],
        in_gate: true,
    },
    Mutant {
        name: "node_forwarded_notes_left_out",
        home: "node",
        guard: "What a script publishes comes back from the node that ran it",
        checks: &[Tests("node", "what_a_forwarded_script_publishes")],
        in_gate: true,
    },
    Mutant {
        name: "resp_notes_out_of_order",
        home: "resp",
        guard: "What scripts of one client publish is told in the order of their answers",
        checks: &[Tests("resp", "what_a_client_publishes_is_heard_in_its_order")],
        in_gate: true,
    },
    Mutant {
        name: "resp_notes_before_seal",
        home: "resp",
        guard: "What rests on the lease is told once that has held",
        checks: &[Tests("resp", "what_rests_on_a_lease_that_was_lost_is_not_told")],
        in_gate: true,
    },
];
