//! Rules about files: length, line width, and whether anything refers to them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Violation;
use super::source::{Source, closing};

/// Longest Rust file, in lines.
const LINES_MAX: usize = 900;
/// Longest line, in characters.
const LINE_CHARS_MAX: usize = 120;
/// How a script begins that names its interpreter. Attributes of Rust begin with `#![`.
const INTERPRETER: &[u8] = b"#!/";
/// The bits of a file's mode by which its owner, its group and all others may run it.
const RUN_BITS: u32 = 0o111;
/// Directories that hold nothing of ours.
const SKIPPED: &[&str] = &["target", ".git", "book", "node_modules", ".venv", "work"];

/// Every file of the workspace with one of these extensions, relative to the root, in order. The
/// empty extension stands for names without one.
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
            } else if extensions
                .iter()
                .any(|wanted| path.extension().unwrap_or_default() == *wanted)
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Length of a Rust file and of its lines. Literals don't count: some are data, and no line break
/// would make them clearer.
pub fn check_rust(source: &Source, violations: &mut Vec<Violation>) {
    let lines = source.text.lines().count();
    if lines > LINES_MAX {
        let message = format!(
            "{lines} lines, more than {LINES_MAX}; move a type with behaviour, or the tests, to a \
             file of their own"
        );
        violations.push(Violation::new(&source.path, lines, message));
    }
    check_width(&source.path, &source.without_literals(), violations);
}

/// Length of lines, and white space that no formatter removes.
pub fn check_text(path: &Path, text: &str, violations: &mut Vec<Violation>) {
    check_width(path, text, violations);
    for (index, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            violations.push(Violation::new(path, index + 1, "white space at the end; remove it"));
        }
    }
}

fn check_width(path: &Path, text: &str, violations: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX && !line.contains("://") {
            let message = format!("{chars} characters, more than {LINE_CHARS_MAX}; break the line");
            violations.push(Violation::new(path, index + 1, message));
        }
    }
}

/// Scripts, which may or may not have an extension: whether each can be run as its first line says.
pub fn check_scripts(root: &Path, violations: &mut Vec<Violation>) -> anyhow::Result<()> {
    for path in walk(root, &["", "py", "sh"])? {
        let file = File::open(root.join(&path)).with_context(|| format!("cannot open {path:?}"))?;
        let mode = file.metadata()?.permissions().mode();
        let mut begin = Vec::new();
        file.take(INTERPRETER.len() as u64).read_to_end(&mut begin)?;
        check_run_bit(&path, &begin, mode, violations);
    }
    Ok(())
}

/// The run bit and the line that names an interpreter are useless without each other.
fn check_run_bit(path: &Path, begin: &[u8], mode: u32, violations: &mut Vec<Violation>) {
    let message = match (begin == INTERPRETER, mode & RUN_BITS == RUN_BITS, mode & RUN_BITS == 0) {
        (true, false, _) => "names an interpreter and cannot be run; `chmod +x` it",
        (false, _, false) => {
            "can be run and names no interpreter; `chmod -x` it, or begin it with `#!`"
        }
        _ => return,
    };
    violations.push(Violation::new(path, 1, message));
}

/// Marks the files that are declared under `#[cfg(test)]`, and those that these declare.
pub fn mark_test_files(sources: &mut [Source]) {
    loop {
        let declared: BTreeSet<PathBuf> = sources
            .iter()
            .flat_map(|source| modules(source, |offset| source.in_test(offset)))
            .collect();
        let mut marked = false;
        for source in sources.iter_mut().filter(|source| declared.contains(&source.path)) {
            marked |= !source.is_test;
            source.is_test = true;
        }
        if !marked {
            return;
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
        let children = modules(source, |_| true);
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

/// The files that those `mod` declarations of a file may mean that stand at such an offset.
fn modules(source: &Source, stands: impl Fn(usize) -> bool) -> BTreeSet<PathBuf> {
    let directory = source.path.parent().unwrap_or(Path::new(""));
    let stem = source.path.file_stem().unwrap_or_default();
    let is_root = is_target_root(&source.path) || stem == "mod";
    let own = if is_root { directory.to_path_buf() } else { directory.join(stem) };
    let mut children = BTreeSet::new();
    for offset in source.code_matches("mod").filter(|offset| stands(*offset)) {
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
    for offset in source.code_matches("#[path").filter(|offset| stands(*offset)) {
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
    fn files_declared_for_tests_are_test_code() {
        let source = |path: &str, text: &str| Source::new(Path::new(path), text.to_owned());
        let mut sources = [
            source("crates/x/src/lib.rs", "mod a;\n#[cfg(all(test, loom))]\nmod models;"),
            source("crates/x/src/a.rs", ""),
            source("crates/x/src/models.rs", "mod deep;"),
            source("crates/x/src/models/deep.rs", ""),
        ];
        mark_test_files(&mut sources);
        assert_eq!(sources.map(|source| source.is_test), [false, false, true, true]);
    }

    #[test]
    fn long_files_and_lines_are_caught() {
        let mut violations = Vec::new();
        let mut rust = |path: &str, text: String| {
            check_rust(&Source::new(Path::new(path), text), &mut violations);
        };
        rust("a.rs", "x\n".repeat(LINES_MAX + 1));
        rust("b.rs", format!("// {}", "é".repeat(LINE_CHARS_MAX - 3)));
        rust("c.rs", "x".repeat(LINE_CHARS_MAX + 1));
        rust("data.rs", format!("f(\"{}\");", "x".repeat(LINE_CHARS_MAX)));
        check_text(Path::new("d.py"), "x \n", &mut violations);
        let found: Vec<(&str, usize)> = violations
            .iter()
            .map(|violation| (violation.path.to_str().expect("ASCII"), violation.line))
            .collect();
        assert_eq!(found, [("a.rs", LINES_MAX + 1), ("c.rs", 1), ("d.py", 1)]);
    }

    #[test]
    fn scripts_that_cannot_be_run_and_others_that_can_are_caught() {
        let mut violations = Vec::new();
        let mut script = |path: &str, begin: &[u8], mode| {
            check_run_bit(Path::new(path), begin, mode, &mut violations);
        };
        script("runs", b"#!/", 0o100_755);
        script("text", b"a b", 0o100_644);
        script("attribute", b"#![", 0o100_644);
        script("locked", b"#!/", 0o100_644);
        script("owner", b"#!/", 0o100_744);
        script("nameless", b"a b", 0o100_744);
        script("empty", b"", 0o100_755);
        let found: Vec<_> = violations.iter().map(|violation| violation.path.clone()).collect();
        assert_eq!(found, ["locked", "owner", "nameless", "empty"].map(PathBuf::from));
    }
}
