//! Rules about files: length, line width, and whether anything refers to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Violation;
use super::source::{Source, closing};

/// Longest Rust file, in lines.
const LINES_MAX: usize = 900;
/// Longest line, in characters.
const LINE_CHARS_MAX: usize = 120;
/// Directories that hold nothing of ours.
const SKIPPED: &[&str] = &["target", ".git", "book", "node_modules", ".venv", "work"];

/// Every file of the workspace with one of these extensions, relative to the root, in order.
pub fn walk(root: &Path, extensions: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        let full = root.join(&directory);
        let entries = fs::read_dir(&full).with_context(|| format!("cannot list {full:?}"))?;
        for entry in entries {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if !SKIPPED.iter().any(|skipped| name.to_str() == Some(skipped)) {
                    pending.push(path);
                }
            } else if extensions.iter().any(|wanted| path.extension() == Some(wanted.as_ref())) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Length of files and lines, and white space.
pub fn check_text(path: &Path, text: &str, violations: &mut Vec<Violation>) {
    let lines = text.lines().count();
    if path.extension() == Some("rs".as_ref()) && lines > LINES_MAX {
        let message = format!(
            "{lines} lines, more than {LINES_MAX}; move a type with behaviour, or the tests, to a \
             file of their own"
        );
        violations.push(Violation::new(path, lines, message));
    }
    for (index, line) in text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX && !line.contains("://") {
            let message = format!("{chars} characters, more than {LINE_CHARS_MAX}; break the line");
            violations.push(Violation::new(path, index + 1, message));
        }
        if line.ends_with([' ', '\t']) {
            violations.push(Violation::new(path, index + 1, "white space at the end; remove it"));
        }
    }
}

/// Every Rust file is the root of a target, or some `mod` leads to it.
pub fn check_reachable(sources: &[Source], violations: &mut Vec<Violation>) {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<&Source> =
        sources.iter().filter(|source| is_target_root(&source.path)).collect();
    while let Some(source) = pending.pop() {
        if !reached.insert(source.path.clone()) {
            continue;
        }
        let children = modules(source);
        pending.extend(sources.iter().filter(|other| children.contains(&other.path)));
    }
    for source in sources.iter().filter(|source| !reached.contains(&source.path)) {
        let message = "dead file: no `mod` leads to it; declare it, or delete it";
        violations.push(Violation::new(&source.path, 1, message));
    }
}

fn is_target_root(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "src", "bin", _] => true,
        [.., "tests" | "benches" | "examples" | "fuzz_targets", name] => {
            !parts.contains(&"src") && name.ends_with(".rs")
        }
        [.., "tests" | "benches" | "examples", _, "main.rs"] => !parts.contains(&"src"),
        [.., "build.rs"] => true,
        _ => false,
    }
}

/// The files that the `mod` declarations of a file may mean.
fn modules(source: &Source) -> BTreeSet<PathBuf> {
    let directory = source.path.parent().unwrap_or(Path::new(""));
    let stem = source.path.file_stem().unwrap_or_default();
    let is_root = is_target_root(&source.path) || stem == "mod";
    let own = if is_root { directory.to_path_buf() } else { directory.join(stem) };
    let mut children = BTreeSet::new();
    for offset in source.code_matches("mod") {
        let rest = source.code[offset + 3..].trim_start();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() || !rest[name.len()..].trim_start().starts_with(';') {
            continue;
        }
        let base = enclosing_modules(&source.code, offset)
            .into_iter()
            .fold(own.clone(), |at, name| at.join(name));
        children.insert(base.join(format!("{name}.rs")));
        children.insert(base.join(&name).join("mod.rs"));
    }
    for offset in source.code_matches("#[path") {
        if let Some(path) = source.literal_after(offset) {
            children.insert(normalise(&directory.join(path)));
        }
    }
    children
}

/// The inline modules around this offset, outermost first.
fn enclosing_modules(code: &str, offset: usize) -> Vec<String> {
    let mut names = Vec::new();
    for (begin, _) in code[..offset].match_indices("mod ") {
        let name: String =
            code[begin + 4..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let open = begin + 4 + name.len();
        let brace = open + code[open..].len() - code[open..].trim_start().len();
        if code[brace..].starts_with('{') && closing(code, brace).is_some_and(|end| end > offset) {
            names.push(name);
        }
    }
    names
}

fn normalise(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.iter() {
        if part == ".." {
            out.pop();
        } else if part != "." {
            out.push(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(Path::new(path), (*text).to_owned()))
            .collect();
        let mut violations = Vec::new();
        check_reachable(&sources, &mut violations);
        violations.iter().map(|violation| violation.path.display().to_string()).collect()
    }

    #[test]
    fn files_without_a_mod_are_dead() {
        let files = [
            ("crates/x/src/lib.rs", "mod a;\npub(crate) mod b;\n// mod c;\nmod d { mod e; }"),
            ("crates/x/src/a.rs", "mod deep;\n#[path = \"../other.rs\"]\nmod named;"),
            ("crates/x/src/a/deep.rs", ""),
            ("crates/x/other.rs", ""),
            ("crates/x/src/b/mod.rs", "mod leaf;"),
            ("crates/x/src/b/leaf.rs", ""),
            ("crates/x/src/c.rs", ""),
            ("crates/x/src/d/e.rs", ""),
            ("crates/x/src/bin/tool.rs", ""),
            ("crates/x/tests/it.rs", "mod common;"),
            ("crates/x/tests/common/mod.rs", ""),
            ("crates/x/src/tests/orphan.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/x/src/c.rs", "crates/x/src/tests/orphan.rs"]);
    }

    #[test]
    fn long_files_and_lines_are_caught() {
        let mut violations = Vec::new();
        check_text(Path::new("a.rs"), &"x\n".repeat(LINES_MAX + 1), &mut violations);
        check_text(Path::new("b.rs"), &"é".repeat(LINE_CHARS_MAX), &mut violations);
        check_text(Path::new("c.rs"), &"x".repeat(LINE_CHARS_MAX + 1), &mut violations);
        check_text(Path::new("d.py"), "x \n", &mut violations);
        let found: Vec<(&str, usize)> = violations
            .iter()
            .map(|violation| (violation.path.to_str().expect("ASCII"), violation.line))
            .collect();
        assert_eq!(found, [("a.rs", LINES_MAX + 1), ("c.rs", 1), ("d.py", 1)]);
    }
}
