//! Runs checks without one of the guards. What they are built as is what the gate has built: a build
//! with debug assertions may leave out any guard.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::Check::{self, Loom, Shuttle, Tests};
use crate::{target_dir, threads};

/// How long a check may take. An unchanged one of the same size is done in a fraction.
const CHECK_SECONDS_MAX: u64 = 300;

/// How much of what a check says is shown, in characters.
const FINDING_CHARS: usize = 90;

/// How many seeds the simulator's sweep runs to find a missing guard.
const SWEEP_SEEDS: u64 = 300;

/// How many it runs at least to show that it passes with every guard: with few, it would miss branches that
/// it wants to see.
const SOUND_SEEDS_MIN: u64 = 12;

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

    /// How many seeds a sweep has to be given to run all that this one did. Some sweeps run a third
    /// of what they are given.
    fn seeds(&self) -> u64 {
        let seeds = self.after.strip_suffix(" seeds").and_then(|count| count.parse().ok());
        seeds.map_or(SWEEP_SEEDS, |count: u64| (3 * count).clamp(SOUND_SEEDS_MIN, SWEEP_SEEDS))
    }
}

/// What a check is built under.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plain,
    Loom,
    Shuttle,
}

impl Kind {
    /// What builds and runs all checks of the kind: the gate's own command.
    fn command(self, root: &Path) -> Command {
        match self {
            Self::Plain => {
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                let mut command = Command::new(cargo);
                command.current_dir(root).stdin(Stdio::null());
                command.args(["test", "--workspace", "--locked"]);
                command
            }
            Self::Loom => threads::loom_test(root),
            Self::Shuttle => threads::shuttle_test(root),
        }
    }

    /// The name of its checks.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "tests",
            Self::Loom => "loom",
            Self::Shuttle => "shuttle",
        }
    }
}

impl Check {
    fn parts(self) -> (Kind, &'static str, &'static str) {
        match self {
            Tests(home, filter) => (Kind::Plain, home, filter),
            Loom(home, filter) => (Kind::Loom, home, filter),
            Shuttle(home, filter) => (Kind::Shuttle, home, filter),
        }
    }
}

/// The tests of each crate, by the name of its directory.
type Homes = BTreeMap<String, Vec<Binary>>;

/// Some tests of a crate.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Binary {
    path: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
}

/// The workspace with every mutant in it, one build for each kind of check.
pub(super) struct Builds<'a> {
    root: &'a Path,
    built: Mutex<BTreeMap<Kind, Arc<Homes>>>,
    /// Checks that pass with every guard in place, and with how many seeds.
    sound: Mutex<BTreeMap<Check, u64>>,
}

impl<'a> Builds<'a> {
    pub(super) fn new(root: &'a Path) -> Self {
        Self { root, built: Mutex::default(), sound: Mutex::default() }
    }

    /// What notices that the guard of this name is missing, if the check does. The same check passes
    /// with every guard in place, over all that it took: one that fails then kills nobody.
    pub(super) fn try_to_kill(&self, mutant: &str, check: Check) -> anyhow::Result<Option<Killer>> {
        let said = target_dir(self.root).join(format!("said-{mutant}.txt"));
        let killer = self.run(mutant, check, SWEEP_SEEDS, &said)?;
        if let Some(seeds) = killer.as_ref().map(Killer::seeds)
            && lock(&self.sound).get(&check).is_none_or(|sound| *sound < seeds)
        {
            if let Some(Killer { check, finding, .. }) = self.run("", check, seeds, &said)? {
                bail!("{check} fails with every guard in place, so it kills nobody: {finding}");
            }
            lock(&self.sound).insert(check, seeds);
        }
        fs::remove_file(&said).with_context(|| format!("cannot remove {said:?}"))?;
        Ok(killer)
    }

    /// The tests of a kind. The first who asks has them built, and others wait.
    fn built(&self, kind: Kind) -> anyhow::Result<Arc<Homes>> {
        let mut built = lock(&self.built);
        if let Some(homes) = built.get(&kind) {
            return Ok(Arc::clone(homes));
        }
        println!("building the {} of all crates", kind.name());
        let homes = Arc::new(build(kind.command(self.root))?);
        built.insert(kind, Arc::clone(&homes));
        Ok(homes)
    }

    /// Runs a check without the guard of this name, or with every guard if the name is empty.
    fn run(
        &self,
        mutant: &str,
        check: Check,
        seeds: u64,
        said: &Path,
    ) -> anyhow::Result<Option<Killer>> {
        let (kind, home, filter) = check.parts();
        let homes = self.built(kind)?;
        let binaries = homes.get(home).with_context(|| format!("{home} has no {}", kind.name()))?;
        for binary in binaries {
            let mut command = Command::new(&binary.path);
            command
                .current_dir(&binary.directory)
                .args(["--quiet", filter])
                .env("QUORATE_MUTANT", mutant)
                .env("QUORATE_SEEDS", seeds.to_string())
                // Other machines have other states: only a violation counts.
                .env("QUORATE_MODEL_COUNTS", "0");
            if finish(&mut command, said)? != Some(0) {
                let check = format!("{} of {home} {filter}", kind.name()).trim_end().to_owned();
                let said = fs::read_to_string(said).unwrap_or_default();
                return Ok(Some(Killer { check, after: after(&said), finding: finding(&said) }));
            }
        }
        Ok(None)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds tests without running them.
fn build(mut command: Command) -> anyhow::Result<Homes> {
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the build failed, which proves nothing about the checks");
    let mut homes = Homes::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some((home, binary)) = test_of(line) else { continue };
        homes.entry(home).or_default().push(binary);
    }
    homes.values_mut().for_each(|binaries| binaries.sort());
    Ok(homes)
}

/// The tests that a message of cargo's says it has built, and the crate that they are of.
fn test_of(message: &str) -> Option<(String, Binary)> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let home = directory.file_name()?.to_str()?.to_owned();
    Some((home, Binary { path, directory }))
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
    fn a_sweep_is_sound_over_the_seeds_that_killed() {
        let seeds = |after: &str| Killer { after: after.to_owned(), ..Killer::none() }.seeds();
        assert_eq!(seeds("2 seeds"), SOUND_SEEDS_MIN);
        assert_eq!(seeds("20 seeds"), 60);
        assert_eq!(seeds("250 seeds"), SWEEP_SEEDS);
        assert_eq!(seeds("7 states"), SWEEP_SEEDS);
        assert_eq!(seeds("-"), SWEEP_SEEDS);
    }

    #[test]
    fn tests_are_found_by_the_directory_of_their_crate() {
        let artifact = r#"{"reason":"compiler-artifact","manifest_path":"/q/crates/a/Cargo.toml",
            "profile":{"test":TEST},"executable":"/t/debug/deps/a-1"}"#;
        let binary = Binary { path: "/t/debug/deps/a-1".into(), directory: "/q/crates/a".into() };
        assert_eq!(test_of(&artifact.replace("TEST", "true")), Some(("a".to_owned(), binary)));
        assert_eq!(test_of(&artifact.replace("TEST", "false")), None, "it is a program");
        assert_eq!(test_of(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(test_of("not a message"), None);
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
