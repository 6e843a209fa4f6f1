//! What threads share, three ways: loom, shuttle, and ThreadSanitizer where the toolchain has it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::target_dir;

/// The crates whose primitives have loom models.
const LOOM: &[&str] = &["sync", "storage"];
/// The crates that have schedules for shuttle.
const SHUTTLE: &[&str] = &["sync", "storage", "meerkat", "node"];

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

/// Primitives under every interleaving that loom finds.
pub fn loom(root: &Path) -> anyhow::Result<()> {
    succeed(test(root, "loom", LOOM, &["--release", "--lib"]))
}

/// Whole lanes under many schedules, as many as the gate has time for.
pub fn shuttle(root: &Path) -> anyhow::Result<()> {
    succeed(test(root, "shuttle", SHUTTLE, &["--test", "schedules"]))
}

/// `cargo xtask shuttle [--times N] [FILTER]`: more schedules, of other seeds.
pub fn run_shuttle(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    let (times, filter) = match words {
        ["--times", times, filter @ ..] => (*times, filter),
        filter => ("1", filter),
    };
    ensure!(times.parse::<u32>().is_ok_and(|times| times > 0), "--times takes a number above 0");
    let mut command = test(root, "shuttle", SHUTTLE, &["--test", "schedules"]);
    command.env("QUORATE_SCHEDULES_TIMES", times).arg("--").args(filter);
    succeed(command)
}
