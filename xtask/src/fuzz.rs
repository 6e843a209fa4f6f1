//! The fuzz targets of `fuzz/`: builds them with coverage instrumentation, which the stable compiler
//! has, and runs them all at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::target_dir;

/// The targets and the longest input of each, in bytes.
const TARGETS: &[(&str, u32)] = &[
    ("wire", 16_384),
    ("sessions", 4096),
    ("resp", 4096),
    ("commands", 4096),
    ("restore", 1024),
    ("rdb", 1024),
    ("log", 2048),
    ("history", 8192),
    ("config", 8192),
    ("lies_hermes", 1024),
    ("lies_meerkat", 1024),
    ("lies_zeus", 1024),
    ("lies_membership", 1024),
    ("lies_paxos", 1024),
];

/// What a run may take, in MiB: of memory, and of one allocation. A decoder that believes an
/// announced length allocates more than that.
const MEMORY_MIB: (u32, u32) = (1024, 64);

/// The flags that cargo-fuzz gives with `-s none`.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
                     -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Runs the named targets, or all, for so many seconds.
pub fn run(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    let (seconds, names) = match words {
        ["--seconds", seconds, names @ ..] => {
            (seconds.parse::<u32>().context("--seconds takes a number")?, names)
        }
        names => (60, names),
    };
    for name in names {
        let known: Vec<&str> = TARGETS.iter().map(|(known, _)| *known).collect();
        ensure!(known.contains(name), "no target is called {name:?}; there are {known:?}");
    }
    let chosen = TARGETS.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    let binaries = build(root)?;
    let running = chosen.map(|(name, length)| {
        let child = start(root, &binaries, name, *length, seconds)?;
        Ok((*name, child))
    });
    let running: Vec<(&str, Child)> = running.collect::<anyhow::Result<_>>()?;
    println!("{:<15} {:>12} {:>10} {:>8}", "target", "inputs", "features", "corpus");
    let mut failed = Vec::new();
    for (name, child) in running {
        let output = child.wait_with_output().with_context(|| format!("cannot wait for {name}"))?;
        let log = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            println!("{}", summary(name, &log));
        } else {
            println!("{name:<15} FAILED");
            println!("{log}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("{failed:?} found an input that breaks them; it is in fuzz/artifacts");
    }
    Ok(())
}

/// For the gate: the targets are those of what they read. They run at night, as an instrumented build
/// takes minutes.
pub fn gate(root: &Path) -> anyhow::Result<()> {
    let mut check = check_command(root);
    let checked = check.status().with_context(|| format!("cannot run {check:?}"))?;
    ensure!(checked.success(), "{check:?} ended with {checked}");
    Ok(())
}

/// For a night.
pub fn night(root: &Path) -> anyhow::Result<()> {
    run(root, &["--seconds", "1200"])
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let mut build = build_command(root)?;
    let built = build.status().with_context(|| format!("cannot run {build:?}"))?;
    ensure!(built.success(), "{build:?} ended with {built}");
    Ok(target_dir(root).join("fuzz").join(host()?).join("release"))
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root.join("fuzz")).stdin(Stdio::null());
    cargo
}

/// What checks the targets.
pub fn check_command(root: &Path) -> Command {
    let mut check = cargo(root);
    check.args(["check", "--quiet", "--locked", "--target-dir"]).arg(target_dir(root));
    check
}

/// What builds the targets.
fn build_command(root: &Path) -> anyhow::Result<Command> {
    let host = host()?;
    let target = target_dir(root).join("fuzz");
    let mut build = cargo(root);
    // With a target named, build scripts and macros are left uninstrumented.
    build.args(["build", "--quiet", "--locked", "--release", "--target", &host, "--target-dir"]);
    build.arg(&target).env("RUSTFLAGS", FLAGS);
    Ok(build)
}

fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout).context("rustc speaks in riddles")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it compiles for")?.to_owned())
}

fn start(
    root: &Path,
    binaries: &Path,
    name: &str,
    length: u32,
    seconds: u32,
) -> anyhow::Result<Child> {
    let fuzz = root.join("fuzz");
    let artifacts = fuzz.join("artifacts").join(name);
    // New inputs go into the first directory; the one that is kept in the tree is only read.
    let found = target_dir(root).join("fuzz/corpus").join(name);
    for directory in [&artifacts, &found] {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {directory:?}"))?;
    }
    let mut command = Command::new(binaries.join(name));
    command.args([&found, &fuzz.join("corpus").join(name)]);
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.args([format!("-max_total_time={seconds}"), format!("-max_len={length}")]);
    command.arg(format!("-rss_limit_mb={}", MEMORY_MIB.0));
    command.arg(format!("-malloc_limit_mb={}", MEMORY_MIB.1));
    command.args(["-timeout=20", "-print_final_stats=1", "-verbosity=1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("cannot run {command:?}"))
}

/// What libFuzzer says at the end, in a line.
fn summary(name: &str, log: &str) -> String {
    let inputs = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map_or("?", str::trim);
    let last = log.lines().rev().find(|line| line.contains(" ft: ")).unwrap_or_default();
    let after = |word: &str| {
        let mut words = last.split_whitespace().skip_while(|other| *other != word);
        words.nth(1).unwrap_or("?")
    };
    let corpus = after("corp:").split('/').next().unwrap_or("?");
    format!("{name:<15} {inputs:>12} {:>10} {corpus:>8}", after("ft:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_summed_up_in_a_line() {
        let log = "#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0\n\
                   #524\tREDUCE cov: 90 ft: 123 corp: 45/6kb lim: 4 exec/s: 9\n\
                   stat::number_of_executed_units: 524\n";
        assert_eq!(
            summary("wire", log).split_whitespace().collect::<Vec<_>>(),
            ["wire", "524", "123", "45"]
        );
    }

    #[test]
    fn every_target_is_in_the_workspace_and_has_a_corpus() {
        let root = crate::root();
        let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("it is there");
        for (name, _) in TARGETS {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            let corpus = fs::read_dir(root.join("fuzz/corpus").join(name)).expect("a corpus");
            assert!(corpus.count() > 0, "{name}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    }

    #[test]
    fn an_unknown_target_is_named() {
        let error = run(Path::new("/nowhere"), &["wires"]).expect_err("there is none");
        assert!(error.to_string().contains("\"wires\""), "{error}");
    }
}
