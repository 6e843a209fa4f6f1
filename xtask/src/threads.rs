//! What threads share, three ways: loom, shuttle, and ThreadSanitizer where the toolchain has it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::target_dir;

/// The crates whose primitives have loom models.
const LOOM: &[&str] = &["sync", "storage"];
/// The crates that have schedules for shuttle.
const SHUTTLE: &[&str] = &["sync", "storage", "meerkat", "node"];
/// Those of them that are built without every protocol.
const SHUTTLE_IN_GATE: &[&str] = &["sync", "storage"];

fn test(root: &Path, kind: &str, crates: &[&str], arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null()).args(["test", "--locked"]);
    for home in crates {
        command.args(["--package", &format!("quorate-{home}")]);
    }
    // In a target directory of its own, because the flag would build everything else again.
    command
        .args(arguments)
        .env("RUSTFLAGS", format!("--cfg {kind}"))
        .env("CARGO_TARGET_DIR", target_dir(root).join(kind));
    command
}

fn succeed(mut command: Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// The models under loom, in a build that may leave out guards: fast, and one is enough.
pub fn loom_test(root: &Path) -> Command {
    let mut command = test(root, "loom", LOOM, &["--profile", "model", "--lib"]);
    command.env("RUSTFLAGS", "--cfg loom --cfg mutants");
    command
}

/// All schedules under shuttle.
pub fn shuttle_test(root: &Path) -> Command {
    test(root, "shuttle", SHUTTLE, &["--test", "schedules"])
}

/// The schedules of the gate.
pub fn shuttle_test_in_gate(root: &Path) -> Command {
    test(root, "shuttle", SHUTTLE_IN_GATE, &["--test", "schedules"])
}

/// Primitives under every interleaving that loom finds.
pub fn loom(root: &Path) -> anyhow::Result<()> {
    succeed(loom_test(root))
}

/// What lanes share under many schedules.
pub fn shuttle(root: &Path) -> anyhow::Result<()> {
    succeed(shuttle_test_in_gate(root))
}

/// Whole lanes, too, under ten times as many.
pub fn shuttle_of_a_night(root: &Path) -> anyhow::Result<()> {
    run_shuttle(root, &["--times", "10"])
}

/// `cargo xtask shuttle [--times N] [FILTER]`: more schedules, of other seeds.
pub fn run_shuttle(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    let (times, filter) = match words {
        ["--times", times, filter @ ..] => (*times, filter),
        filter => ("1", filter),
    };
    ensure!(times.parse::<u32>().is_ok_and(|times| times > 0), "--times takes a number above 0");
    let mut command = shuttle_test(root);
    command.env("QUORATE_SCHEDULES_TIMES", times).arg("--").args(filter);
    succeed(command)
}

/// The tests that ThreadSanitizer runs: the store under its own stress, the checks of one replica
/// from four lanes, whole nodes on threads with sockets.
const TSAN: &[&str] = &["threads", "shared", "lanes"];
/// The crates that have them.
const TSAN_CRATES: &[&str] = &["storage", "meerkat", "runtime"];

/// `cargo xtask tsan`: real threads under ThreadSanitizer, or why not. The standard library is built
/// with it, too: what it does is otherwise taken for races.
pub fn tsan(root: &Path) -> anyhow::Result<()> {
    let (sysroot, host) = (rustc(&["--print", "sysroot"])?, rustc(&["--print", "host-tuple"])?);
    let sysroot = Path::new(&sysroot).join("lib/rustlib");
    if !sysroot.join("src/rust/library/Cargo.lock").exists() {
        println!(
            "NOT RUN: ThreadSanitizer needs the source of the standard library; \
             `rustup component add rust-src` installs it"
        );
        return Ok(());
    }
    let libraries = std::fs::read_dir(sysroot.join(&host).join("lib"));
    let is_runtime = |name: &str| name.contains("_rt.tsan.");
    let found = libraries.is_ok_and(|mut files| {
        files.any(|file| file.is_ok_and(|file| is_runtime(&file.file_name().to_string_lossy())))
    });
    if !found {
        println!("NOT RUN: this toolchain has no ThreadSanitizer for {host}");
        return Ok(());
    }
    let mut command = test(root, "tsan", TSAN_CRATES, &["-Zbuild-std", "--target", &host]);
    for name in TSAN {
        command.args(["--test", name]);
    }
    command
        // A sanitizer is no stable feature, not even to look whether there are races.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("TSAN_OPTIONS", "halt_on_error=1");
    succeed(command)
}

fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("rustc").args(arguments).output().context("cannot run rustc")?;
    ensure!(output.status.success(), "rustc {arguments:?} ended with {}", output.status);
    Ok(String::from_utf8(output.stdout).context("rustc prints text")?.trim().to_owned())
}
