//! Rules about what links what: layering, confined and banned libraries, unused ones, licences.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::source::Source;
use super::{Violation, files, read};
use crate::layers::{
    self, BANNED_LIBRARIES, CONFINED_LIBRARIES, Kind, LAYERS, PURE_LIBRARIES, TOLERATED_LIBRARIES,
    UNWANTED_LIBRARIES,
};

/// Licences that may be linked into an Apache-2.0 program without a further thought.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "MIT-0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "0BSD",
    "CC0-1.0",
    "Apache-2.0 WITH LLVM-exception",
];

/// One line `name = ...` of a dependency section.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Dependency {
    name: String,
    line: usize,
    /// Whether it is linked into what users run, not only into tests or build scripts.
    shipped: bool,
}

/// Every crate is in the list, depends only on crates above it, and names only libraries that its
/// layer allows.
pub fn check_layering(root: &Path, violations: &mut Vec<Violation>) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for group in directories(root, Path::new("crates"))? {
        for home in directories(root, &group)? {
            let name = home.file_name().expect("a directory has a name").to_string_lossy();
            let path = home.join("Cargo.toml");
            let text = read(root, &path)?;
            check_manifest(&name, &path, &text, violations);
            names.push(name.into_owned());
        }
    }
    for layer in LAYERS.iter().filter(|layer| !names.iter().any(|name| name == layer.name)) {
        let message = format!("layer {} has no crate; remove it from the list", layer.name);
        violations.push(Violation::new("xtask/src/layers.rs", 1, message));
    }
    Ok(())
}

/// The directories in a directory, in order.
fn directories(root: &Path, home: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(root.join(home)).with_context(|| format!("cannot list {}", home.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            paths.push(home.join(entry.file_name()));
        }
    }
    paths.sort();
    Ok(paths)
}

fn check_manifest(name: &str, path: &Path, text: &str, violations: &mut Vec<Violation>) {
    let Some((own, layer)) = layers::find(name) else {
        let message = format!("crate {name} has no layer; list it in xtask/src/layers.rs");
        violations.push(Violation::new(path, 1, message));
        return;
    };
    for dependency in dependencies(text).iter().filter(|dependency| dependency.shipped) {
        let mut report = |message: String| {
            violations.push(Violation::new(path, dependency.line, message));
        };
        if let Some(other) = dependency.name.strip_prefix("quorate-") {
            let above = layers::find(other).is_some_and(|(position, _)| position < own);
            if !above {
                report(format!(
                    "{name} depends on {other}, which is not above it; turn the dependency round, \
                     or move what is shared into a lower crate"
                ));
            } else if let Kind::Pure(allowed) = layer.kind
                && !allowed.contains(&other)
            {
                report(format!(
                    "protocol crate {name} depends on {other}; it may depend on {allowed:?} only"
                ));
            }
        } else if let Kind::Pure(_) = layer.kind {
            if !PURE_LIBRARIES.contains(&dependency.name.as_str()) {
                report(format!(
                    "protocol crate {name} links {}; only {PURE_LIBRARIES:?} may be linked there",
                    dependency.name
                ));
            }
        } else if let Some((library, homes)) =
            CONFINED_LIBRARIES.iter().find(|(library, _)| *library == dependency.name)
            && !homes.contains(&name)
        {
            report(format!("{name} links {library}, which belongs to {homes:?} only"));
        }
    }
}

/// Every named dependency is wanted, and used by the crate that names it.
pub fn check_names(
    root: &Path,
    sources: &[Source],
    violations: &mut Vec<Violation>,
) -> anyhow::Result<()> {
    for path in files::walk(root, &["toml"])? {
        let Some(home) = path.parent().filter(|_| path.ends_with("Cargo.toml")) else { continue };
        if home == Path::new("") {
            continue;
        }
        let text = read(root, &path)?;
        let mut own: Vec<&Source> =
            sources.iter().filter(|source| source.path.starts_with(home)).collect();
        let named: BTreeSet<PathBuf> = own.iter().flat_map(|source| named_paths(source)).collect();
        own.extend(sources.iter().filter(|source| named.contains(&source.path)));
        check_names_of(&path, &text, &own, violations);
    }
    Ok(())
}

/// The files of other crates that a file declares as its modules by `#[path = "..."]`.
fn named_paths(source: &Source) -> impl Iterator<Item = PathBuf> + '_ {
    let lines = source.text.lines();
    lines.filter_map(|line| quoted(line.strip_suffix(']')?, "#[path = ")).map(|named| {
        let mut path = source.path.clone();
        path.pop();
        for part in named.split('/') {
            if part == ".." {
                path.pop();
            } else {
                path.push(part);
            }
        }
        path
    })
}

fn check_names_of(path: &Path, text: &str, own: &[&Source], violations: &mut Vec<Violation>) {
    for dependency in dependencies(text) {
        if let Some((name, why)) =
            UNWANTED_LIBRARIES.iter().find(|(name, _)| *name == dependency.name)
        {
            violations.push(Violation::new(path, dependency.line, format!("{name} {why}")));
        }
        let word = dependency.name.replace('-', "_");
        let used = own.iter().any(|source| source.code_matches(&word).next().is_some());
        if !used {
            let message = format!("{} is never used; remove the dependency", dependency.name);
            violations.push(Violation::new(path, dependency.line, message));
        }
    }
}

/// No banned library, and nothing from elsewhere than the registry.
pub fn check_lock(root: &Path, violations: &mut Vec<Violation>) -> anyhow::Result<()> {
    let path = Path::new("Cargo.lock");
    check_lock_text(path, &read(root, path)?, violations);
    Ok(())
}

fn check_lock_text(path: &Path, text: &str, violations: &mut Vec<Violation>) {
    const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = quoted(line, "name = ")
            && let Some((_, why)) = BANNED_LIBRARIES.iter().find(|(banned, _)| *banned == name)
            && !is_tolerated(name, text)
        {
            let message = format!("{name} {why}; `cargo tree -i {name}` shows what brings it in");
            violations.push(Violation::new(path, index + 1, message));
        }
        if let Some(source) = quoted(line, "source = ")
            && source != REGISTRY
        {
            let message = format!("{source} is not the registry; depend on a published version");
            violations.push(Violation::new(path, index + 1, message));
        }
    }
}

/// Whether nobody brings a banned library in but those that may.
fn is_tolerated(name: &str, lock: &str) -> bool {
    let entry = format!("\n \"{name}\",");
    let versioned = format!("\n \"{name} ");
    let brings = |package: &&str| package.contains(&entry) || package.contains(&versioned);
    let mut homes = lock.split("[[package]]").filter(brings).peekable();
    let may = |package: &str| {
        let home = package.lines().find_map(|line| quoted(line, "name = "));
        let known = |(banned, by, _): &&(&str, &str, &str)| *banned == name && home == Some(*by);
        TOLERATED_LIBRARIES.iter().any(|known_as| known(&known_as))
    };
    homes.peek().is_some() && homes.all(may)
}

/// Licences of everything that is linked on this platform, from what cargo knows.
pub fn check_licences(root: &Path) -> anyhow::Result<()> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root)
        .args(["tree", "--workspace", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}\t{l}"])
        .output()
        .context("cannot run cargo tree")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("cargo tree wrote no UTF-8")?;
    let mut lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect();
    lines.sort_unstable();
    lines.dedup();
    let bad: Vec<&&str> = lines.iter().filter(|line| !is_licensed(line)).collect();
    for line in &bad {
        println!("{line}: not a licence that may be linked; replace the library");
    }
    if !bad.is_empty() {
        bail!("{} package(s) with an unknown or unsuitable licence", bad.len());
    }
    println!("{} packages, each under a permissive licence", lines.len());
    Ok(())
}

/// Whether a line of `cargo tree` offers a licence from the list.
fn is_licensed(line: &str) -> bool {
    let Some((_, rest)) = line.split_once('\t') else { return false };
    let expression = rest.replace(['(', ')'], "");
    let expression = expression.replace('/', " OR ");
    let terms = |text: &str| text.split(" AND ").all(|term| LICENCES.contains(&term.trim()));
    expression.split(" OR ").any(terms) || all_terms_known(&expression)
}

/// `(MIT OR Apache-2.0) AND Unicode-3.0` without its brackets: fine if every term is.
fn all_terms_known(expression: &str) -> bool {
    expression
        .split(" OR ")
        .flat_map(|choice| choice.split(" AND "))
        .all(|term| LICENCES.contains(&term.trim()))
}

/// The dependencies that a manifest names, outside the root's table of versions.
fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut section = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']').trim_matches('[');
            let (scope, table) = header.rsplit_once("dependencies").unwrap_or((header, "-"));
            let shipped =
                !["dev-", "build-", "loom", "shuttle"].iter().any(|kind| scope.contains(kind));
            section = table.is_empty().then_some(shipped);
            if let Some(name) = table.strip_prefix('.') {
                found.push(Dependency { name: name.to_owned(), line: index + 1, shipped });
            }
        } else if let Some(shipped) = section
            && !line.starts_with('#')
            && let Some((key, _)) = line.split_once('=')
        {
            let name = key.trim().split('.').next().unwrap_or_default().trim_matches('"');
            found.push(Dependency { name: name.to_owned(), line: index + 1, shipped });
        }
    }
    found
}

fn quoted<'a>(line: &'a str, prefix: &str) -> Option<&'a str> {
    line.strip_prefix(prefix)?.strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layering(name: &str, manifest: &str) -> Vec<String> {
        let mut violations = Vec::new();
        let path = PathBuf::from(format!("crates/data/{name}/Cargo.toml"));
        check_manifest(name, &path, manifest, &mut violations);
        violations.iter().map(ToString::to_string).collect()
    }

    fn one(messages: &[String], expected: &str) {
        assert!(messages.len() == 1 && messages[0].contains(expected), "{messages:?}");
    }

    #[test]
    fn upward_dependencies_are_caught() {
        let upward = "[dependencies]\nquorate-node.workspace = true\n";
        one(
            &layering("storage", upward),
            "crates/data/storage/Cargo.toml:2: storage depends on node",
        );
        one(&layering("hermes", "[dependencies]\nquorate-paxos = { path = \"\" }"), "may depend");
        one(&layering("hermes", "[dependencies]\nanyhow = \"1\""), "links anyhow");
        one(&layering("resp", "[dependencies]\nmio = \"1\""), "belongs to [\"runtime\", ");
        one(&layering("resp", "[dependencies.tokio]\nversion = \"1\""), "belongs to");
        one(&layering("newcomer", ""), "has no layer");
    }

    #[test]
    fn downward_and_test_dependencies_are_fine() {
        let manifest = "[dependencies]\nquorate-types.workspace = true\n\n[dev-dependencies]\n\
                        proptest.workspace = true\nquorate-commands.workspace = true\n\n\
                        [lints]\nworkspace = true\n";
        assert_eq!(layering("hermes", manifest), [""; 0]);
    }

    #[test]
    fn unused_and_unwanted_dependencies_are_caught() {
        let source = Source::new(Path::new("crates/x/src/lib.rs"), "use quorate_types::A;".into());
        let manifest = "[dependencies]\nquorate-types.workspace = true\nserde_json = \"1\"\n\
                        [dev-dependencies]\nlazy_static = \"1\"";
        let mut violations = Vec::new();
        let path = Path::new("crates/x/Cargo.toml");
        check_names_of(path, manifest, &[&source], &mut violations);
        let messages: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(messages[0].contains(":3: serde_json is never used"));
        assert!(messages[1].contains(":5: lazy_static is std::sync::LazyLock"));
    }

    #[test]
    fn banned_and_foreign_packages_are_caught() {
        let lock = "[[package]]\nname = \"dashmap\"\nversion = \"6.0.0\"\n\
                    source = \"git+https://example.invalid/dashmap\"\n";
        let mut violations = Vec::new();
        check_lock_text(Path::new("Cargo.lock"), lock, &mut violations);
        assert_eq!(violations.len(), 2);
        assert!(violations[0].message.contains("deadlocks"));
        assert!(violations[1].message.contains("not the registry"));
    }

    #[test]
    fn a_tolerated_package_is_so_only_where_it_is_tolerated() {
        let banned = "[[package]]\nname = \"dashmap\"\nversion = \"6.0.0\"\n\n";
        let brought = |by: &str| {
            format!("[[package]]\nname = \"{by}\"\ndependencies = [\n \"dashmap\",\n]\n\n")
        };
        let violations = |lock: String| {
            let mut violations = Vec::new();
            check_lock_text(Path::new("Cargo.lock"), &lock, &mut violations);
            violations.len()
        };
        assert_eq!(violations(banned.to_owned() + &brought("stateright")), 0);
        assert_eq!(violations(banned.to_owned() + &brought("stateright") + &brought("other")), 1);
    }

    #[test]
    fn licences_are_expressions() {
        for line in [
            "a v1\tMIT OR Apache-2.0",
            "a v1\tMIT/Apache-2.0",
            "a v1\t(MIT OR Apache-2.0) AND Unicode-3.0",
            "a v1\tMIT OR LGPL-2.1-or-later",
        ] {
            assert!(is_licensed(line), "{line}");
        }
        for line in ["a v1\tGPL-3.0-only", "a v1\t", "a v1\tMIT AND GPL-2.0"] {
            assert!(!is_licensed(line), "{line}");
        }
    }
}
