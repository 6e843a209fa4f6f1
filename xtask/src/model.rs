//! The model checker's table: builds `quorate-model` with optimizations and runs it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::target_dir;

/// Explores the scopes that the words choose: those of the gate if there are none.
pub fn run(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(root).stdin(Stdio::null());
    build.args(["build", "--quiet", "--locked", "--profile", PROFILE]);
    build.args(["--package", "quorate-model"]);
    let built = build.status().with_context(|| format!("cannot run {build:?}"))?;
    ensure!(built.success(), "{build:?} ended with {built}");
    let mut explore = Command::new(target_dir(root).join(PROFILE).join("quorate-model"));
    explore.current_dir(root).stdin(Stdio::null()).args(words);
    let status = explore.status().with_context(|| format!("cannot run {explore:?}"))?;
    ensure!(status.success(), "a scope is violated, or is not what it was");
    Ok(())
}

/// Panics are findings, so they must unwind; the profile of the mutants has that, and is optimized.
const PROFILE: &str = "mutants";

/// The gate's scopes.
pub fn gate(root: &Path) -> anyhow::Result<()> {
    run(root, &[])
}
