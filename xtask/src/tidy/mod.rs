//! What the compiler doesn't check: layering, banned calls, leftovers, dead files.
//!
//! Each rule gives violations that name the file, the line and the remedy. `tests/tidy.rs` runs
//! all of them as a test, and each rule has its own test with a snippet that it must catch.

mod citations;
pub mod dependencies;
pub mod files;
pub mod rules;
pub mod source;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use self::source::Source;

/// A broken rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Violation {
    /// The file, relative to the root of the workspace.
    pub path: PathBuf,
    /// The line, from one.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Violation {
    /// A violation at a line.
    pub fn new(path: impl Into<PathBuf>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Prints every violation; an error if there is one.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let violations = check(root)?;
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => bail!("tidy: {count} violation(s); each line above names its remedy"),
    }
}

/// Every violation in the workspace, in order.
pub fn check(root: &Path) -> anyhow::Result<Vec<Violation>> {
    let mut sources = rust_sources(root)?;
    files::mark_test_files(&mut sources);
    let mut violations = Vec::new();
    for source in &sources {
        files::check_rust(source, &mut violations);
        rules::check_source(source, &mut violations);
    }
    rules::check_crate_roots(&sources, &mut violations);
    rules::check_mutants(&sources, crate::mutants::names(), &mut violations);
    citations::check(&sources, |page| read(root, Path::new(page)), &mut violations)?;
    files::check_reachable(&sources, &mut violations);
    dependencies::check_layering(root, &mut violations)?;
    dependencies::check_names(root, &sources, &mut violations)?;
    dependencies::check_lock(root, &mut violations)?;
    for path in files::walk(root, &["toml", "py", "sh", "service"])? {
        let text = read(root, &path)?;
        files::check_text(&path, &text, &mut violations);
    }
    files::check_scripts(root, &mut violations)?;
    violations.sort();
    violations.dedup();
    Ok(violations)
}

fn rust_sources(root: &Path) -> anyhow::Result<Vec<Source>> {
    files::walk(root, &["rs"])?
        .into_iter()
        .map(|path| Ok(Source::new(&path, read(root, &path)?)))
        .collect()
}

fn read(root: &Path, path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
}

/// The crate under `crates/GROUP/` that a file belongs to.
fn crate_of(path: &Path) -> Option<&str> {
    let mut parts = path.components().map(|part| part.as_os_str().to_str());
    (parts.next()? == Some("crates")).then(|| parts.nth(1))??
}
