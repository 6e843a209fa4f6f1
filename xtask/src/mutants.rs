//! Each guard that a protocol's correctness hangs on can be removed by name; some check must then
//! fail. A checker that has killed no mutant proves nothing.
//!
//! A guard reads `if mutant!("name") || guard { ... }` in the code. Here each name stands beside
//! the checks that must notice. One build has all mutants; the environment of a run names one. By
//! hand: `QUORATE_MUTANT=name RUSTFLAGS='--cfg mutants' cargo test --profile mutants ...`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use self::builds::{Builds, Killer, Kind};
use crate::target_dir;

mod builds;

/// A guard and the checks of which one must notice its absence.
pub struct Mutant {
    /// The name in `mutant!("...")`.
    pub name: &'static str,
    /// The crate under `crates/` that has the guard.
    pub home: &'static str,
    /// What the guard does, for the table.
    pub guard: &'static str,
    /// Tried in this order until one fails.
    checks: &'static [Check],
    /// Whether the gate runs it; the others run with `cargo xtask mutants`.
    pub in_gate: bool,
}

/// Something that passes on the unchanged code: tests of a crate, those that a word selects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Check {
    /// Ordinary ones.
    Tests(&'static str, &'static str),
    /// Models under loom.
    Loom(&'static str, &'static str),
    /// Schedules under shuttle.
    Shuttle(&'static str, &'static str),
}

use Check::{Loom, Shuttle, Tests};

/// Guards that are also removed from real processes: the rig must notice it under this engine. By
/// hand, and not in the gate, because only real time decides how long it takes.
const RIG: &[(&str, &str)] =
    &[("membership_lease_ignored", "hermes"), ("meerkat_learners_not_told", "meerkat")];

/// How many minutes the rig may take to notice.
const RIG_MINUTES: &str = "10";

const SWEEP: Check = Tests("sim", "clusters_survive_every_fault");
const PAXOS_TESTS: Check = Tests("paxos", "");
const MEMBERSHIP_TESTS: Check = Tests("membership", "");
const MEERKAT_RANDOM: Check = Tests("meerkat", "random::");

/// Every guard that can be removed.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hermes_stale_rmw_acks_kept",
        home: "hermes",
        guard: "a new view resets the acknowledgements of an RMW (H10)",
        checks: &[Tests("hermes", "h10_"), SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "hermes_equal_inv_invalidates",
        home: "hermes",
        guard: "an INV that equals the record's timestamp changes nothing",
        checks: &[Tests("hermes", "rule_2_"), SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "node_lease_checked_before_read",
        home: "node",
        guard: "the lease is checked after the value was copied (H3)",
        checks: &[SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "hermes_val_without_timestamp",
        home: "hermes",
        guard: "a VAL validates only the version it names",
        checks: &[Tests("hermes", "rule_2_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_reply_on_majority",
        home: "hermes",
        guard: "a write is answered when every live replica has acknowledged",
        checks: &[Tests("hermes", "rule_3_"), SWEEP],
        in_gate: true,
    },
    Mutant {
        name: "hermes_node_id_reused",
        home: "hermes",
        guard: "a restarted node writes under a fresh id (H2)",
        checks: &[Tests("hermes", "h2_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_replayed_rmw_retried",
        home: "hermes",
        guard: "an RMW that another node may have replayed is not run a second time (H11)",
        checks: &[Tests("hermes", "h11_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_write_under_rmw_acknowledged",
        home: "hermes",
        guard: "a write is not acknowledged under an RMW that has not seen it (H12)",
        checks: &[Tests("model", "hermes"), Tests("hermes", "h12_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_tombstone_dropped_early",
        home: "hermes",
        guard: "a tombstone stays until no older message can arrive (H8)",
        checks: &[Tests("hermes", "h8_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_abort_reported_early",
        home: "hermes",
        guard: "a superseded RMW is not refused while another replica may replay it (H1)",
        checks: &[Tests("hermes", "h1_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_finished_by_another_unanswered",
        home: "hermes",
        guard: "an update that another's VAL or replay finishes is answered (H4)",
        checks: &[Tests("hermes", "h4_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_reads_after_writes",
        home: "hermes",
        guard: "every waiting read goes before the next write (H5)",
        checks: &[Tests("hermes", "h5_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_queue_without_limit",
        home: "hermes",
        guard: "the queue of a key whose replicas are stuck has a limit (H9)",
        checks: &[Tests("hermes", "h9_")],
        in_gate: false,
    },
    Mutant {
        name: "hermes_acts_on_older_epochs",
        home: "hermes",
        guard: "messages of an older epoch change nothing (rule 1)",
        checks: &[Tests("hermes", "rule_1_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_replay_under_new_timestamp",
        home: "hermes",
        guard: "a replay keeps its update's timestamp (rule 4)",
        checks: &[Tests("hermes", "rule_4_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_earlier_life_acts",
        home: "hermes",
        guard: "what an earlier life of a node asked for is not done for the later one (rule 11)",
        checks: &[Tests("hermes", "rule_11_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "hermes_chunk_supersedes_nothing",
        home: "hermes",
        guard: "a chunk overtakes the update that is driven from here as an INV does",
        checks: &[Tests("hermes", "chunk_rule_"), SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "membership_lease_from_receipt",
        home: "membership",
        guard: "a lease counts from when its request was sent (H3)",
        checks: &[MEMBERSHIP_TESTS, SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "membership_lease_ignored",
        home: "membership",
        guard: "a view changes only after every lease of the old one lapsed",
        checks: &[Tests("model", "membership"), MEMBERSHIP_TESTS, SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "membership_joiner_promises_nothing",
        home: "membership",
        guard: "a fresh voter honours the promises its predecessor may have made",
        checks: &[MEMBERSHIP_TESTS],
        in_gate: false,
    },
    Mutant {
        name: "membership_renews_the_removed",
        home: "membership",
        guard: "a voter that accepted a removal renews no lease of whom it removes",
        checks: &[Tests("model", "membership"), MEMBERSHIP_TESTS, SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "membership_number_reused",
        home: "membership",
        guard: "a node that comes back gets a member number that nobody had (rule 11)",
        checks: &[MEMBERSHIP_TESTS, SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "membership_drift_ignored",
        home: "membership",
        guard: "a lease is relied on for less than it is promised, by the clocks' drift",
        checks: &[MEMBERSHIP_TESTS, SWEEP],
        in_gate: false,
    },
    Mutant {
        name: "membership_lease_of_one",
        home: "membership",
        guard: "a lease needs a majority's grants of one request",
        checks: &[MEMBERSHIP_TESTS],
        in_gate: false,
    },
    Mutant {
        name: "paxos_promises_backwards",
        home: "paxos",
        guard: "an acceptor never goes back to a smaller ballot",
        checks: &[Tests("model", "paxos"), PAXOS_TESTS],
        in_gate: false,
    },
    Mutant {
        name: "paxos_adopts_nothing",
        home: "paxos",
        guard: "a proposer adopts what a promise says was accepted before",
        checks: &[Tests("model", "paxos"), PAXOS_TESTS],
        in_gate: false,
    },
    Mutant {
        name: "rifl_watermark_left_behind",
        home: "rifl",
        guard: "a copy of a session has its watermark (P1)",
        checks: &[Tests("rifl", "p1_"), Tests("rifl", "model::")],
        in_gate: true,
    },
    Mutant {
        name: "rifl_acknowledged_by_an_attempt",
        home: "rifl",
        guard: "an acknowledgement counts when its call commits (P2)",
        checks: &[Tests("rifl", "p2_"), Tests("rifl", "model::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_resurrected",
        home: "rifl",
        guard: "completion brings no acknowledged call back (P4)",
        checks: &[Tests("rifl", "p4_"), Tests("rifl", "model::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_discarded_in_progress",
        home: "rifl",
        guard: "a session with a call in progress is not discarded (P4)",
        checks: &[Tests("rifl", "p4_"), Tests("rifl", "model::")],
        in_gate: true,
    },
    Mutant {
        name: "rifl_stale_executes",
        home: "rifl",
        guard: "a late duplicate of an acknowledged call is refused",
        checks: &[Tests("rifl", "tracker::"), Tests("rifl", "model::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_undated",
        home: "rifl",
        guard: "an attempt from before a discard begins again",
        checks: &[Tests("rifl", "tracker::"), Tests("rifl", "model::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_unmarked",
        home: "rifl",
        guard: "what others decided of a discarded session does not make it known",
        checks: &[Tests("rifl", "tracker::"), Tests("rifl", "model::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_bound_unheard",
        home: "rifl",
        guard: "a lease is granted within a term of what all clocks have passed",
        checks: &[Tests("rifl", "leases::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_successor_deaf",
        home: "rifl",
        guard: "a successor hears all clocks before it answers",
        checks: &[Tests("rifl", "leases::")],
        in_gate: false,
    },
    Mutant {
        name: "rifl_successor_extends_all",
        home: "rifl",
        guard: "a successor extends only what its predecessor can't have ended",
        checks: &[Tests("rifl", "leases::")],
        in_gate: false,
    },
    Mutant {
        name: "paxos_accepts_backwards",
        home: "paxos",
        guard: "an acceptor accepts nothing below its promise",
        checks: &[Tests("model", "paxos"), PAXOS_TESTS],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_timestamp_below_read",
        home: "meerkat",
        guard: "a timestamp is above every version that was read",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_rts_not_raised",
        home: "meerkat",
        guard: "nobody writes below what a committed transaction has read",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_vote_after_promise",
        home: "meerkat",
        guard: "a replica that has promised a view gives no vote in view 0",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_accept_after_freeze",
        home: "meerkat",
        guard: "a replica that is frozen for an epoch change accepts nothing",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_alone_decides",
        home: "meerkat",
        guard: "fewer than a majority of the replicas with all data decide nothing",
        checks: &[Tests("meerkat", "a_replica_alone_decides_nothing"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_expelled_forgets",
        home: "meerkat",
        guard: "an expelled process keeps what it would have reported",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_blank_life_reports",
        home: "meerkat",
        guard: "a process started anew says nothing of what was adopted",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_floor_before_release",
        home: "meerkat",
        guard: "nothing counts as installed everywhere until every member has gone on in the epoch",
        checks: &[Tests("meerkat", "pitfalls::")],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_abort_unasked",
        home: "meerkat",
        guard: "a guest takes nothing for aborted before anybody has answered in this epoch",
        checks: &[Tests("meerkat", "guests::")],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_released_by_one",
        home: "meerkat",
        guard: "a merged record is acted on when all members keep it",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: true,
    },
    Mutant {
        name: "meerkat_imprecise_revalidation",
        home: "meerkat",
        guard: "a recovery weighs candidates by the exact predicate",
        checks: &[Tests("model", "meerkat"), Tests("meerkat", "interaction::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_no_commit_wait",
        home: "meerkat",
        guard: "a commit that a live node may not know of waits for its clock",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_votes_after_proposal",
        home: "meerkat",
        guard: "once an abort is proposed, late votes decide nothing",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_no_tombstone",
        home: "meerkat",
        guard: "an abort before its VALIDATE leaves a tombstone",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_sets_dropped_early",
        home: "meerkat",
        guard: "the sets of what committed stay until every replica has them",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_learners_not_told",
        home: "meerkat",
        guard: "a joining replica is told what commits, with the sets",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_no_epoch_floor",
        home: "meerkat",
        guard: "nobody writes below what earlier epochs may have read",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_apply_in_two_steps",
        home: "meerkat",
        guard: "what commits is installed and unregistered under one lock",
        checks: &[Shuttle("meerkat", "lanes"), Tests("meerkat", "no_update_is_lost")],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_read_version_in_the_way",
        home: "meerkat",
        guard: "the version that was read blocks nobody, though its writer is still registered (3.4-4)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_voted_anew",
        home: "meerkat",
        guard: "a replica votes once and repeats its vote (3.4-7, 3.5)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_few_aborts_final",
        home: "meerkat",
        guard: "aborts decide alone only where no fast quorum can be left (3.4-10)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_dissenter_applies_nothing",
        home: "meerkat",
        guard: "a replica that voted against applies what committed all the same (3.4-11)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_decided_voted_anew",
        home: "meerkat",
        guard: "VALIDATE of what is decided gets the decision (3.5)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_trimmed_voted_anew",
        home: "meerkat",
        guard: "VALIDATE of what was trimmed is too late (3.5)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_accepts_lower_view",
        home: "meerkat",
        guard: "ACCEPT of a lower view is refused (3.5)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_commit_without_sets",
        home: "meerkat",
        guard: "a commit without its sets asks for them (3.5)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_votes_across_epochs",
        home: "meerkat",
        guard: "votes of different epochs never meet (4.2b)",
        checks: &[Tests("meerkat", "transitions::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_merges_older_epochs",
        home: "meerkat",
        guard: "a merge uses the latest epoch's records only (4.2c)",
        checks: &[Tests("meerkat", "merge::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_learner_counts",
        home: "meerkat",
        guard: "what a joining replica says is no vote (4.2d)",
        checks: &[Tests("meerkat", "merge::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_registered_over_epochs",
        home: "meerkat",
        guard: "an epoch begins with nothing registered (4.2g)",
        checks: &[MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_superseded_guesses",
        home: "meerkat",
        guard: "a superseded coordinator asks for the end and guesses none (4.4)",
        checks: &[Tests("meerkat", "pitfalls::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_ambiguous_takeover_aborts",
        home: "meerkat",
        guard: "a takeover that may hide a fast commit waits for more replies (4.4)",
        checks: &[Tests("meerkat", "takeovers::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_takeover_takes_any_proposal",
        home: "meerkat",
        guard: "a takeover proposes what was accepted in the highest view (4.4)",
        checks: &[Tests("meerkat", "takeovers::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_merge_takes_any_proposal",
        home: "meerkat",
        guard: "a merge follows the proposal of the highest view (4.4)",
        checks: &[Tests("meerkat", "merge::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_one_view_variable",
        home: "meerkat",
        guard: "a view that was joined makes no proposal newer (4.4)",
        checks: &[Tests("meerkat", "takeovers::"), MEERKAT_RANDOM],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_lanes_freeze_apart",
        home: "meerkat",
        guard: "a node reports when all its lanes have frozen (4.2g)",
        checks: &[Tests("meerkat", "lanes::")],
        in_gate: false,
    },
    Mutant {
        name: "meerkat_lane_resumes_alone",
        home: "meerkat",
        guard: "no lane goes on before lane 0 has installed the outcome (4.2g)",
        checks: &[Tests("meerkat", "lanes::")],
        in_gate: false,
    },
    Mutant {
        name: "storage_write_without_fence",
        home: "storage",
        guard: "who sees a record's change sees that it is being written",
        checks: &[Loom("storage", "whole")],
        in_gate: false,
    },
    Mutant {
        name: "storage_copy_not_compared",
        home: "storage",
        guard: "a value counts as read when the header is still the same (rule 12, H0)",
        checks: &[Loom("storage", "whole")],
        in_gate: false,
    },
    Mutant {
        name: "storage_freed_under_readers",
        home: "storage",
        guard: "memory goes after those who may still look at it",
        checks: &[Shuttle("storage", "")],
        in_gate: true,
    },
    Mutant {
        name: "storage_removed_record_locked",
        home: "storage",
        guard: "who waited for the lock of a record that is gone looks for another",
        checks: &[Loom("storage", "remov"), Shuttle("storage", "")],
        in_gate: false,
    },
    Mutant {
        name: "sync_flag_after_look",
        home: "sync",
        guard: "a lane says that it sleeps before it looks for work once more",
        checks: &[Loom("sync", "")],
        in_gate: false,
    },
    Mutant {
        name: "sync_knock_without_fence",
        home: "sync",
        guard: "who leaves work looks for a sleeper after others can see the work",
        checks: &[Loom("sync", "")],
        in_gate: true,
    },
];

/// Name and home of every row, for `tidy`.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    MUTANTS.iter().map(|mutant| (mutant.name, mutant.home))
}

/// Prints the table.
pub fn list() {
    for mutant in MUTANTS {
        let gate = if mutant.in_gate { "gate" } else { "    " };
        println!("{gate}  {:<34} {:<11} {}", mutant.name, mutant.home, mutant.guard);
    }
}

/// Runs the mutant of this name.
pub fn run_one(root: &Path, name: &str) -> anyhow::Result<()> {
    let known = MUTANTS.iter().any(|mutant| mutant.name == name);
    ensure!(known, "there is no mutant {name:?}; `cargo xtask mutants --list` shows them all");
    run(root, |mutant| mutant.name == name)
}

/// Runs the chosen mutants and prints what killed each; an error if one survives.
pub fn run(root: &Path, chosen: impl Fn(&Mutant) -> bool) -> anyhow::Result<()> {
    let mutants: Vec<&Mutant> = MUTANTS.iter().filter(|mutant| chosen(mutant)).collect();
    let checks: BTreeSet<Check> =
        mutants.iter().flat_map(|mutant| mutant.checks).copied().collect();
    let builds = Builds::new(root)?;
    builds.build(&checks)?;
    for check in &checks {
        let failed = builds.run("", *check)?;
        if let Some(killer) = failed {
            bail!(
                "{} fails with every guard in place, so it kills nobody: {}",
                killer.check,
                killer.finding
            );
        }
    }
    let mut rows = Vec::new();
    let mut survivors = 0;
    for mutant in mutants {
        let begin = Instant::now();
        println!("mutant {}: without \"{}\"", mutant.name, mutant.guard);
        let killer = judge(&builds, mutant).with_context(|| format!("mutant {}", mutant.name))?;
        survivors += usize::from(killer.is_none());
        let killer = killer.unwrap_or_else(Killer::none);
        println!("  {:.0} s, {}: {}", begin.elapsed().as_secs_f64(), killer.check, killer.finding);
        rows.push((mutant.name, killer));
    }
    // As `docs/src/mutants.md` has it.
    println!("\n| mutant | killed by | after | said |\n| --- | --- | --- | --- |");
    for (name, Killer { check, after, finding }) in &rows {
        println!("| `{name}` | {check} | {after} | `{}` |", finding.replace('|', "\\|"));
    }
    if survivors > 0 {
        bail!(
            "{survivors} of {} mutants survived: the guard is not needed, or no check looks where \
             it matters; find out which before anything else",
            rows.len()
        );
    }
    println!("{} mutants, none survived", rows.len());
    Ok(())
}

/// Runs clusters of real processes without one guard each; an error if the rig sees nothing wrong.
pub fn run_rig(root: &Path) -> anyhow::Result<()> {
    let release = |words: &[&str]| -> anyhow::Result<()> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let status = command.current_dir(root).args(words).status().context("cannot run cargo")?;
        ensure!(status.success(), "cargo {} failed", words.join(" "));
        Ok(())
    };
    release(&["build", "--release", "--locked", "--package", "quorate-rig"])?;
    let rig = target_dir(root).join("release/quorate-rig");
    let builds = Builds::new(root)?;
    let built = builds
        .cargo(Kind::Plain, &["build", "--quiet", "--package", "quorate"])
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "the build failed, which proves nothing about the rig");
    for (name, engine) in RIG {
        let mutant = MUTANTS.iter().find(|mutant| mutant.name == *name);
        let mutant = mutant.with_context(|| format!("{name} is not in the table"))?;
        println!("mutant {name}: without \"{}\"", mutant.guard);
        let status = Command::new(&rig)
            .args(["faults", "--engine", engine, "--minutes", RIG_MINUTES, "--until-anomaly"])
            .arg("--binary")
            .arg(builds.directory(Kind::Plain).join("mutants/quorate"))
            .arg("--work")
            .arg(target_dir(root).join("rig-mutant"))
            .env("QUORATE_MUTANT", name)
            .status()
            .context("cannot run the rig")?;
        ensure!(status.success(), "the rig does not notice {name}");
    }
    Ok(())
}

/// What killed the mutant, if anything did.
fn judge(builds: &Builds<'_>, mutant: &Mutant) -> anyhow::Result<Option<Killer>> {
    for check in mutant.checks {
        let killer = builds.run(mutant.name, *check)?;
        if killer.is_some() {
            return Ok(killer);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_begin_with_their_crate() {
        for (index, mutant) in MUTANTS.iter().enumerate() {
            assert!(mutant.name.starts_with(mutant.home), "{}", mutant.name);
            assert!(!mutant.checks.is_empty(), "{}", mutant.name);
            let twice = MUTANTS[..index].iter().any(|other| other.name == mutant.name);
            assert!(!twice, "{} is listed twice", mutant.name);
        }
    }

    #[test]
    fn what_the_rig_removes_is_in_the_table() {
        let known = |name: &str| MUTANTS.iter().any(|mutant| mutant.name == name);
        assert!(RIG.iter().all(|(name, _)| known(name)));
    }
}
