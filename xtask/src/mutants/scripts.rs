//! The bounds of scripts, and that nothing stays from one run to the next.

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
        in_gate: true,
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
];
