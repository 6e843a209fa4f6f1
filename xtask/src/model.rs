//! The model checker's table: builds `quorate-model` with optimizations and runs it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::mutants;

/// Explores the scopes that the words choose: without words, those of the gate.
pub fn run(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    // With every guard in place, in the build that can remove them: one build is enough.
    let mut explore = Command::new(mutants::build_program(root, "quorate-model")?);
    explore.current_dir(root).stdin(Stdio::null()).args(words).env_remove("QUORATE_MUTANT");
    let status = explore.status().with_context(|| format!("cannot run {explore:?}"))?;
    ensure!(status.success(), "a scope is violated, or is not what it was");
    Ok(())
}

/// The large scopes.
pub fn night(root: &Path) -> anyhow::Result<()> {
    run(root, &["--nightly"])
}

/// The gate's scopes.
pub fn gate(root: &Path) -> anyhow::Result<()> {
    run(root, &[])
}
