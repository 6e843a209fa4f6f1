//! Builds the workspace with every mutant in it, and runs checks without one of the guards.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::Check::{self, Loom, Shuttle, Tests};
use crate::target_dir;

/// How long a simulation may take. An unchanged one of the same size is done in a fraction.
const CHECK_SECONDS_MAX: u64 = 300;

/// How much of what a check says is shown, in characters.
const FINDING_CHARS: usize = 90;

/// How many seeds the simulator's sweep runs to find a missing guard.
const SWEEP_SEEDS: &str = "300";

/// A check that failed, and what it said.
pub(super) struct Killer {
    pub(super) check: String,
    /// After how many seeds or states, if it runs any; `-` otherwise.
    pub(super) after: String,
    pub(super) finding: String,
}

impl Killer {
    pub(super) fn none() -> Self {
        Self { check: "SURVIVED".to_owned(), after: "-".to_owned(), finding: String::new() }
    }
}

/// What a check is built under.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Plain,
    Loom,
    Shuttle,
}

impl Kind {
    fn flags(self) -> &'static str {
        match self {
            Self::Plain => "--cfg mutants",
            Self::Loom => "--cfg mutants --cfg loom",
            Self::Shuttle => "--cfg mutants --cfg shuttle",
        }
    }

    /// Its target directory, below that of all mutants, and the name of its checks.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "tests",
            Self::Loom => "loom",
            Self::Shuttle => "shuttle",
        }
    }

    /// The tests that a crate has for it.
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["--tests"],
            Self::Loom => &["--lib"],
            Self::Shuttle => &["--test", "schedules"],
        }
    }
}

impl Check {
    /// How it is built, and the crate that it is in.
    pub(super) fn home(self) -> (Kind, &'static str) {
        let (kind, home, _) = self.parts();
        (kind, home)
    }

    fn parts(self) -> (Kind, &'static str, &'static str) {
        match self {
            Tests(home, filter) => (Kind::Plain, home, filter),
            Loom(home, filter) => (Kind::Loom, home, filter),
            Shuttle(home, filter) => (Kind::Shuttle, home, filter),
        }
    }
}

/// The workspace with every mutant in it, one build for each kind of check.
pub(super) struct Builds<'a> {
    root: &'a Path,
    target: PathBuf,
    /// What is built, by kind and crate.
    built: BTreeSet<(Kind, &'static str)>,
    /// Checks that pass with every guard in place.
    sound: BTreeSet<Check>,
}

impl<'a> Builds<'a> {
    pub(super) fn new(root: &'a Path) -> anyhow::Result<Self> {
        let target = target_dir(root).join("mutants");
        fs::create_dir_all(&target).with_context(|| format!("cannot make {target:?}"))?;
        Ok(Self { root, target, built: BTreeSet::new(), sound: BTreeSet::new() })
    }

    pub(super) fn directory(&self, kind: Kind) -> PathBuf {
        self.target.join(kind.name())
    }

    /// What builds a program.
    pub(super) fn build_program(&self, name: &str) -> Command {
        self.cargo(Kind::Plain, &["build", "--quiet", "--package", name])
    }

    /// What builds the checks of a crate.
    pub(super) fn build_checks(&self, kind: Kind, home: &str) -> Command {
        let mut command = self.test(kind, home);
        command.arg("--no-run");
        command
    }

    fn cargo(&self, kind: Kind, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .current_dir(self.root)
            .args(arguments)
            .args(["--locked", "--profile", "mutants"])
            .env("CARGO_TARGET_DIR", self.directory(kind))
            .env("RUSTFLAGS", kind.flags())
            .stdin(Stdio::null());
        command
    }

    fn test(&self, kind: Kind, home: &str) -> Command {
        let mut command = self.cargo(kind, &["test", "--quiet"]);
        command.args(kind.targets()).args(["--package", &package(home)]);
        command
    }

    /// Builds what a check needs, and sees that it passes with every guard in place: one that fails
    /// then kills nobody.
    pub(super) fn prepare(&mut self, check: Check) -> anyhow::Result<()> {
        let (kind, home) = check.home();
        if self.built.insert((kind, home)) {
            println!("building the {} of {home}", kind.name());
            let built = self.build_checks(kind, home).status().context("cannot run cargo")?;
            ensure!(built.success(), "the build failed, which proves nothing about the checks");
        }
        if self.sound.insert(check)
            && let Some(Killer { check, finding, .. }) = self.run("", check)?
        {
            bail!("{check} fails with every guard in place, so it kills nobody: {finding}");
        }
        Ok(())
    }

    /// Runs a check without the guard of this name, or with every guard if the name is empty.
    pub(super) fn run(&self, mutant: &str, check: Check) -> anyhow::Result<Option<Killer>> {
        let (kind, home, filter) = check.parts();
        let mut command = self.test(kind, home);
        command
            .args(["--", filter])
            .env("QUORATE_MUTANT", mutant)
            .env("QUORATE_SEEDS", SWEEP_SEEDS)
            // Other machines have other states: only a violation counts.
            .env("QUORATE_MODEL_COUNTS", "0");
        let said = self.target.join("said.txt");
        let code = finish(&mut command, &said)?;
        let check = format!("{} of {home} {filter}", kind.name()).trim_end().to_owned();
        let said = fs::read_to_string(&said).unwrap_or_default();
        let killer = || Killer { check, after: after(&said), finding: finding(&said) };
        Ok((code != Some(0)).then(killer))
    }
}

/// The package of a crate, which the program's is called as.
fn package(home: &str) -> String {
    if home == "quorate" { home.to_owned() } else { format!("quorate-{home}") }
}

/// The words of the first panic that a check ended with, and of what it says about a seed.
fn finding(said: &str) -> String {
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at"));
    lines.next();
    let words: Vec<&str> = lines.take(3).flat_map(str::split_whitespace).collect();
    words.join(" ").chars().take(FINDING_CHARS).collect()
}

/// How far a check got that counts seeds or states: what it says as `after 5 seeds`, of the first
/// test that failed.
fn after(said: &str) -> String {
    let lines = said.lines().skip_while(|line| !line.contains("panicked at"));
    let words: Vec<&str> = lines
        .take_while(|line| !line.starts_with("---- "))
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches(':'))
        .collect();
    let counts = words.windows(3).find_map(|words| match words {
        ["after", count, unit @ ("seeds" | "states")] if count.parse::<u64>().is_ok() => {
            Some(format!("{count} {unit}"))
        }
        _ => None,
    });
    counts.unwrap_or_else(|| "-".to_owned())
}

/// Runs a check and writes what it says to a file. The exit code, or `None` if a signal ended it.
fn finish(command: &mut Command, said: &Path) -> anyhow::Result<Option<i32>> {
    let begin = Instant::now();
    let said = fs::File::create(said).with_context(|| format!("cannot write {said:?}"))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(said.try_clone().context("cannot write twice to a file")?)
        .stderr(said)
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if begin.elapsed() > Duration::from_secs(CHECK_SECONDS_MAX) {
            end(&mut child);
            bail!("{command:?} was not done after {CHECK_SECONDS_MAX} s");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself in the meantime; then there is nothing to end.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_the_first_failure_got_is_found() {
        let plain = "thread t panicked at a.rs:1:2:\nleft: after 5 years\n";
        let seeds = "thread u panicked at b.rs:1:2:\nno\nseed 4 fails, after 5 seeds\n";
        assert_eq!(after(plain), "-");
        assert_eq!(after(seeds), "5 seeds");
        assert_eq!(after(&format!("{plain}---- u stdout ----\n{seeds}")), "-");
        assert_eq!(
            after("thread t panicked at c.rs:1:2:\nx is violated, after 7 states:\n"),
            "7 states"
        );
    }

    #[test]
    fn exit_codes_come_back() {
        let said = std::env::temp_dir().join(format!("quorate-said-{}", std::process::id()));
        let code =
            |script: &str| finish(Command::new("sh").args(["-c", script]), &said).expect("sh runs");
        assert_eq!(code("echo thread t panicked at a.rs:1:2:; echo no; echo  more"), Some(0));
        assert_eq!(finding(&fs::read_to_string(&said).expect("just written")), "no more");
        assert_eq!(code("exit 11"), Some(11));
        assert_eq!(code("kill -9 $$"), None);
        fs::remove_file(said).expect("just written");
    }
}
