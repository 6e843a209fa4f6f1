//! Each guard that a protocol's correctness hangs on can be removed by name; some check must then
//! fail. A checker that has killed no mutant proves nothing.
//!
//! A guard reads `if mutant!("name") || guard { ... }` in the code. Here each name stands beside
//! the checks that must notice. Every build with debug assertions has all mutants; the environment of a
//! run names one. By hand: `QUORATE_MUTANT=name cargo test ...`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use self::builds::{Builds, Killer};
use crate::target_dir;

mod backups;
mod baselines;
mod builds;
mod durability;
mod gates;
mod hermes;
mod local;
mod logs;
mod meerkat;
mod meerkat_log;
mod node;
mod pubsub;
mod rdb;
mod routes;
mod scripts;
mod sorted_sets;
mod streams;
mod table;
mod tracking;
mod values;
mod voters;
mod zeus;

/// A guard and its checks. One of them must notice the absence of the guard.
pub struct Mutant {
    /// The name in `mutant!("...")`.
    pub name: &'static str,
    /// The crate under `crates/GROUP/` that has the guard.
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

/// Guards that are also removed from real processes: the rig must notice it with these arguments. By
/// hand, and not in the gate, because only real time decides how long it takes.
const RIG: &[(&str, &[&str])] = &[
    ("membership_lease_ignored", &["--engine", "hermes"]),
    ("meerkat_learners_not_told", &["--engine", "meerkat"]),
    ("meerkat_effect_without_record", &["--engine", "meerkat"]),
    ("durability_early_release", POWER_CUTS),
    ("durability_directory_not_flushed", POWER_CUTS),
];

/// Hermes on disks that lose what was not flushed when the power of all nodes goes.
const POWER_CUTS: &[&str] = &["--engine", "hermes", "--disks", "volatile", "--only", "power"];

/// How many minutes the rig may take to notice.
const RIG_MINUTES: &str = "10";

/// Every guard that can be removed.
fn mutants() -> impl Iterator<Item = &'static Mutant> {
    let rows = hermes::MUTANTS.iter().chain(table::MUTANTS).chain(meerkat::MUTANTS);
    rows.chain(local::MUTANTS)
        .chain(node::MUTANTS)
        .chain(gates::MUTANTS)
        .chain(durability::MUTANTS)
        .chain(logs::MUTANTS)
        .chain(rdb::MUTANTS)
        .chain(backups::MUTANTS)
        .chain(values::MUTANTS)
        .chain(voters::MUTANTS)
        .chain(meerkat_log::MUTANTS)
        .chain(pubsub::MUTANTS)
        .chain(tracking::MUTANTS)
        .chain(routes::MUTANTS)
        .chain(scripts::MUTANTS)
        .chain(sorted_sets::MUTANTS)
        .chain(streams::MUTANTS)
        .chain(zeus::MUTANTS)
        .chain(baselines::MUTANTS)
}

/// Name and home of every row, for `tidy`.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    mutants().map(|mutant| (mutant.name, mutant.home))
}

/// Prints the table.
pub fn list() {
    for mutant in mutants() {
        let gate = if mutant.in_gate { "gate" } else { "    " };
        println!("{gate}  {:<34} {:<11} {}", mutant.name, mutant.home, mutant.guard);
    }
}

/// Runs the mutant of this name.
pub fn run_one(root: &Path, name: &str) -> anyhow::Result<()> {
    let known = mutants().any(|mutant| mutant.name == name);
    ensure!(known, "there is no mutant {name:?}; `cargo xtask mutants --list` shows them all");
    run(root, |mutant| mutant.name == name)
}

/// Runs the chosen mutants and prints what killed each; an error if one survives.
pub fn run(root: &Path, chosen: impl Fn(&Mutant) -> bool) -> anyhow::Result<()> {
    let mutants: Vec<&Mutant> = mutants().filter(|mutant| chosen(mutant)).collect();
    let rows = judge_all(&Builds::new(root), &mutants)?;
    // As `docs/src/mutants.md` has it.
    println!("\n| mutant | killed by | after | said |\n| --- | --- | --- | --- |");
    for (mutant, killer) in mutants.iter().zip(&rows) {
        let none = Killer::none();
        let Killer { check, after, finding } = killer.as_ref().unwrap_or(&none);
        println!("| `{}` | {check} | {after} | `{}` |", mutant.name, finding.replace('|', "\\|"));
    }
    let survivors = rows.iter().filter(|killer| killer.is_none()).count();
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

/// What builds a program fast enough to explore and to simulate with, with every mutant in it.
pub fn program_build(root: &Path, name: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "--profile", "model", "--package", name])
        .env("CARGO_TARGET_DIR", target_dir(root).join("mutants"))
        .env("RUSTFLAGS", "--cfg mutants")
        .stdin(Stdio::null());
    command
}

/// Builds a program with every mutant in it; the environment of a run may name one.
pub fn build_program(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut build = program_build(root, name);
    let status = build.status().context("cannot run cargo")?;
    ensure!(status.success(), "{build:?} ended with {status}");
    Ok(target_dir(root).join("mutants/model").join(name))
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
    let quorate = build_program(root, "quorate")?;
    for (name, arguments) in RIG {
        let mutant = mutants().find(|mutant| mutant.name == *name);
        let mutant = mutant.with_context(|| format!("{name} is not in the table"))?;
        println!("mutant {name}: without \"{}\"", mutant.guard);
        let status = Command::new(&rig)
            .arg("faults")
            .args(*arguments)
            .args(["--minutes", RIG_MINUTES, "--until-anomaly"])
            .arg("--binary")
            .arg(&quorate)
            .arg("--work")
            .arg(target_dir(root).join("rig-mutant"))
            .env("QUORATE_MUTANT", name)
            .status()
            .context("cannot run the rig")?;
        ensure!(status.success(), "the rig does not notice {name}");
    }
    Ok(())
}

/// What killed each, one on each processor at a time: most checks are a thread.
fn judge_all(builds: &Builds<'_>, mutants: &[&Mutant]) -> anyhow::Result<Vec<Option<Killer>>> {
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<Vec<(usize, Option<Killer>)>> {
        let mut judged = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(index) else { return Ok(judged) };
            let begin = Instant::now();
            let killer = judge(builds, mutant).inspect_err(|_| {
                next.store(mutants.len(), Ordering::Relaxed);
            });
            let killer = killer.with_context(|| format!("mutant {}", mutant.name))?;
            let seconds = begin.elapsed().as_secs_f64();
            let said = killer.as_ref().map_or("SURVIVED", |killer| &killer.finding);
            println!(
                "mutant {}: {seconds:.0} s, without \"{}\": {said}",
                mutant.name, mutant.guard
            );
            judged.push((index, killer));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(mutants.len());
    let mut judged = Vec::new();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for worker in started {
            judged.extend(worker.join().expect("no worker panics")?);
        }
        anyhow::Ok(())
    })?;
    judged.sort_by_key(|(index, _)| *index);
    Ok(judged.into_iter().map(|(_, killer)| killer).collect())
}

/// What killed the mutant, if anything did.
fn judge(builds: &Builds<'_>, mutant: &Mutant) -> anyhow::Result<Option<Killer>> {
    for check in mutant.checks {
        let killer = builds.try_to_kill(mutant.name, *check)?;
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
        for (index, mutant) in mutants().enumerate() {
            assert!(mutant.name.starts_with(mutant.home), "{}", mutant.name);
            assert!(!mutant.checks.is_empty(), "{}", mutant.name);
            let twice = mutants().take(index).any(|other| other.name == mutant.name);
            assert!(!twice, "{} is listed twice", mutant.name);
        }
    }

    #[test]
    fn what_the_rig_removes_is_in_the_table() {
        let known = |name: &str| mutants().any(|mutant| mutant.name == name);
        assert!(RIG.iter().all(|(name, _)| known(name)));
    }
}
