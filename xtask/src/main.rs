//! `cargo xtask`: the project's chores. `ci` is the one gate; the others are parts of it.

use std::process::ExitCode;

use anyhow::bail;
use xtask::{ci, docs, fuzz, model, mutants, porcupine, threads, tidy};

const USAGE: &str = "\
usage: cargo xtask <command>

  ci [STEP...]              the gate, or only the named steps of it
  ci --list                 the steps and what each runs
  ci --nightly [STEP...]    what takes too long for the gate, or needs libraries of PyPI and npm
  ci --nightly --list       its steps
  tidy                      layering, banned calls, leftovers, dead files
  docs                      links between the documents
  licences                  licences of everything that is linked
  model [--nightly] [NAME]  every state of small clusters, with the number of states of each scope
  mutants [--only NAME]     remove each named guard and see that a check notices
  mutants --gate            only those that the gate runs
  mutants --rig             a few of them in real processes under real faults; minutes
  mutants --list            the table of guards
  shuttle [--times N] [TEST]
                            lanes under N times as many schedules as in the gate
  tsan                      real threads under ThreadSanitizer, where the toolchain has it
  porcupine [--seeds N]     our verdicts on single keys against another checker's (needs go)
  fuzz [--seconds N] [TARGET...]
                            every fuzz target, or only the named ones, for a minute or so long";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> anyhow::Result<()> {
    let root = xtask::root();
    match words {
        ["ci", "--list"] => ci::list(),
        ["ci", "--nightly", "--list"] => ci::list_nightly(),
        ["ci", "--nightly", steps @ ..] => ci::run_nightly(&root, steps)?,
        ["ci", steps @ ..] => ci::run(&root, steps)?,
        ["tidy"] => tidy::run(&root)?,
        ["docs"] => docs::run(&root)?,
        ["licences"] => tidy::dependencies::check_licences(&root)?,
        ["model", words @ ..] => model::run(&root, words)?,
        ["shuttle", words @ ..] => threads::run_shuttle(&root, words)?,
        ["tsan"] => threads::tsan(&root)?,
        ["porcupine", words @ ..] => porcupine::run(&root, words)?,
        ["fuzz", words @ ..] => fuzz::run(&root, words)?,
        ["mutants"] => mutants::run(&root, |_| true)?,
        ["mutants", "--gate"] => mutants::run(&root, |mutant| mutant.in_gate)?,
        ["mutants", "--rig"] => mutants::run_rig(&root)?,
        ["mutants", "--list"] => mutants::list(),
        ["mutants", "--only", name] => mutants::run_one(&root, name)?,
        _ => bail!("what to do is not clear\n{USAGE}"),
    }
    Ok(())
}
