//! Rules about what Rust code says.

use std::path::Path;

use super::source::Source;
use super::{Violation, crate_of};
use crate::layers::{self, Kind};

/// What a pure crate must not call, and what it uses instead.
const IMPURE: &[(&str, &str)] = &[
    ("Instant::now", "a machine is told the time: use the `now` of `step`"),
    ("SystemTime", "a machine is told the time: use the `now` of `step`"),
    ("thread_rng", "draw from the machine's seeded `Rng`"),
    ("println!", "emit an effect or a probe instead of output"),
    ("eprintln!", "emit an effect or a probe instead of output"),
    ("print!", "emit an effect or a probe instead of output"),
    ("eprint!", "emit an effect or a probe instead of output"),
    ("HashMap::new", "its order is random: use BTreeMap, DetMap, or an index by slot"),
    ("HashSet::new", "its order is random: use BTreeSet, NodeSet or an index by slot"),
    ("std::", "use core:: or alloc::; what needs an operating system belongs to a driver"),
    ("extern crate std", "the crate is no_std; only its tests may link std"),
];

/// Crates that know engines by their contract alone.
const ENGINE_BLIND: &[&str] =
    &["wire", "commands", "node", "runtime", "config", "resp", "admin", "quorate"];

/// The list of engines, and the projection that compares some by name.
const NAMES_ENGINES: &[&str] =
    &["node/src/engines", "quorate/src/sim/perf.rs", "/src/tests", "/tests.rs", "/src/testing"];

/// Engines by the names that users give.
const ENGINE_NAMES: &[&str] = &["hermes", "meerkat", "kuafu", "tapir"];

/// Leftovers of unfinished work, in comments.
const MARKERS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// Words that a reader has to solve, in comments, and what says it plainly.
const RIDDLES: &[(&str, &str)] = &[
    ("whoever", "name the node, the client or the caller"),
    ("Whoever", "name the node, the client or the caller"),
    ("; nothing if", "\"`None` if\""),
    ("one of nobody", "name what is missing"),
    ("stands here", "\"is\", or name the place"),
];

/// Leftovers of unfinished work, in code.
const STUBS: &[&str] = &["todo!", "unimplemented!", "#[ignore"];

/// Applies every rule that needs one file only.
pub fn check_source(source: &Source, violations: &mut Vec<Violation>) {
    check_purity(source, violations);
    check_unsafe(source, violations);
    check_unwrap(source, violations);
    check_allow(source, violations);
    check_leftovers(source, violations);
    check_engine_names(source, violations);
}

/// Everything but the list of engines goes by their contract. Tests and citations of papers may name
/// them.
fn check_engine_names(source: &Source, violations: &mut Vec<Violation>) {
    let path = source.path.to_string_lossy();
    let is_blind = crate_of(&source.path).is_some_and(|name| ENGINE_BLIND.contains(&name));
    if !is_blind || !path.contains("/src/") || NAMES_ENGINES.iter().any(|may| path.contains(may)) {
        return;
    }
    let text = source.text.to_lowercase();
    for engine in ENGINE_NAMES {
        for (offset, _) in text.match_indices(engine).filter(|(at, _)| !source.in_test(*at)) {
            if text[offset..].starts_with(&format!("{engine} \u{a7}")) {
                continue;
            }
            let message = format!(
                "`{engine}` outside the list of engines (node/src/engines.rs); go by \
                 quorate_engine::Engine, its capabilities or its options"
            );
            violations.push(at(source, offset, message));
        }
    }
}

fn check_purity(source: &Source, violations: &mut Vec<Violation>) {
    let Some(Kind::Pure(_)) = kind_of(&source.path) else { return };
    // A build script runs where the crate is built, and is no part of it.
    if source.path.ends_with("build.rs") {
        return;
    }
    for (call, remedy) in IMPURE {
        for offset in source.code_matches(call).filter(|offset| !source.in_test(*offset)) {
            let message = format!("`{call}` in a protocol crate; {remedy}");
            violations.push(at(source, offset, message));
        }
    }
}

fn check_unsafe(source: &Source, violations: &mut Vec<Violation>) {
    if kind_of(&source.path) == Some(Kind::StdUnsafe) {
        return;
    }
    for offset in source.code_matches("unsafe") {
        let message = "`unsafe` outside storage and runtime; move it there behind a safe interface";
        violations.push(at(source, offset, message));
    }
}

fn check_unwrap(source: &Source, violations: &mut Vec<Violation>) {
    for offset in source.code_matches(".unwrap()").filter(|offset| !source.in_test(*offset)) {
        let message = "`unwrap` outside tests; return the error, or `expect` the invariant";
        violations.push(at(source, offset, message));
    }
}

fn check_allow(source: &Source, violations: &mut Vec<Violation>) {
    for opening in ["#[allow(", "#![allow("] {
        for offset in source.code_matches(opening) {
            let message = "`allow` outlives its reason; use #[expect(lint, reason = \"...\")]";
            violations.push(at(source, offset, message));
        }
    }
}

fn check_leftovers(source: &Source, violations: &mut Vec<Violation>) {
    for marker in MARKERS {
        for offset in source.comment_matches(marker) {
            let message = format!("leftover marker {marker}; finish the work, or write an issue");
            violations.push(at(source, offset, message));
        }
    }
    for (riddle, instead) in RIDDLES {
        for offset in source.comment_matches(riddle) {
            let message = format!("`{riddle}` in a comment; say plainly: {instead}");
            violations.push(at(source, offset, message));
        }
    }
    for stub in STUBS {
        for offset in source.code_matches(stub) {
            let message = format!("leftover `{stub}`; finish the work, or remove the item");
            violations.push(at(source, offset, message));
        }
    }
}

/// A pure crate must say so to the compiler.
pub fn check_crate_roots(sources: &[Source], violations: &mut Vec<Violation>) {
    for source in sources.iter().filter(|source| source.path.ends_with("src/lib.rs")) {
        let Some(Kind::Pure(_)) = kind_of(&source.path) else { continue };
        if !source.code.contains("#![no_std]") && !source.code.contains("no_std)]") {
            let message = "a protocol crate without #![no_std]; add it at the top";
            violations.push(Violation::new(&source.path, 1, message));
        }
        if !source.code.contains("#![forbid(unsafe_code)]") {
            let message = "a protocol crate without #![forbid(unsafe_code)]; add it at the top";
            violations.push(Violation::new(&source.path, 1, message));
        }
    }
}

/// Every guard that can be removed is in the table of mutants, and the table names only guards
/// that exist in the crate it says. Guards in tests, as a store has them that only tests run, are
/// known by their rows alone.
pub fn check_mutants<'a>(
    sources: &[Source],
    table: impl Iterator<Item = (&'a str, &'a str)>,
    violations: &mut Vec<Violation>,
) {
    let table: Vec<(&str, &str)> = table.collect();
    let mut used = Vec::new();
    for source in sources {
        let Some(name) = crate_of(&source.path) else { continue };
        for offset in source.code_matches("mutant!(") {
            let Some(mutant) = source.literal_after(offset) else { continue };
            if table.contains(&(mutant, name)) {
                used.push(mutant);
            } else if !source.in_test(offset) {
                let message = format!(
                    "mutant \"{mutant}\" of crate {name} is not in the table; list it in \
                     xtask/src/mutants.rs with the check that must notice it"
                );
                violations.push(at(source, offset, message));
            }
        }
    }
    for (mutant, name) in table.iter().filter(|(mutant, _)| !used.contains(mutant)) {
        let message = format!(
            "mutant \"{mutant}\" guards nothing: crate {name} has no mutant!(\"{mutant}\"); add \
             it to the guard, or remove the row"
        );
        violations.push(Violation::new("xtask/src/mutants.rs", 1, message));
    }
}

fn kind_of(path: &Path) -> Option<Kind> {
    layers::find(crate_of(path)?).map(|(_, layer)| layer.kind)
}

fn at(source: &Source, offset: usize, message: impl Into<String>) -> Violation {
    Violation::new(&source.path, source.line_of(offset), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(Path::new(path), text.to_owned());
        let mut violations = Vec::new();
        check_source(&source, &mut violations);
        violations.iter().map(ToString::to_string).collect()
    }

    fn caught(path: &str, text: &str, expected: &str) {
        let messages = messages(path, text);
        assert!(
            messages.len() == 1 && messages[0].contains(expected),
            "{text:?} gave {messages:?}, expected one with {expected:?}"
        );
    }

    const PURE: &str = "crates/protocols/hermes/src/replica.rs";

    #[test]
    fn impure_calls_are_caught_in_pure_crates_only() {
        caught(PURE, "\nfn f() { let t = Instant::now(); }", ":2: `Instant::now`");
        caught(PURE, "fn f(t: SystemTime) {}", "SystemTime");
        caught(PURE, "fn f() { thread_rng(); }", "seeded `Rng`");
        caught(PURE, "fn f() { println!(\"x\"); }", "`println!`");
        caught(PURE, "fn f() { let m = HashMap::new(); }", "BTreeMap");
        caught(PURE, "use std::fmt;", "core::");
        let all = "use std::fmt; fn f() { println!(\"\"); Instant::now(); }";
        assert_eq!(messages("crates/data/commands/build.rs", all), [""; 0]);
        assert_eq!(messages("crates/server/runtime/src/clock.rs", all), [""; 0]);
    }

    #[test]
    fn tests_of_pure_crates_may_use_std() {
        let text = "#[cfg(test)]\nmod tests { use std::fmt; fn f() { x().unwrap() } }";
        assert_eq!(messages(PURE, text), [""; 0]);
        assert_eq!(messages("crates/protocols/hermes/src/tests.rs", "use std::fmt;"), [""; 0]);
        assert_eq!(messages("crates/protocols/hermes/tests/a.rs", "use std::fmt;"), [""; 0]);
    }

    #[test]
    fn words_in_comments_and_literals_are_no_calls() {
        let text = "/// Not std::time. `unsafe` is absent.\nconst A: &str = \"println! unsafe\";";
        assert_eq!(messages(PURE, text), [""; 0]);
    }

    #[test]
    fn unsafe_is_confined() {
        caught("crates/server/resp/src/a.rs", "fn f() { unsafe { g() } }", "storage and runtime");
        caught("crates/server/resp/tests/a.rs", "fn f() { unsafe { g() } }", "storage and runtime");
        assert_eq!(messages("crates/data/storage/src/a.rs", "unsafe fn f() {}"), [""; 0]);
        assert_eq!(messages(PURE, "#![forbid(unsafe_code)]"), [""; 0]);
    }

    #[test]
    fn unwrap_and_allow_are_caught() {
        caught("crates/server/resp/src/a.rs", "fn f() { g().unwrap(); }", "`expect` the invariant");
        caught("crates/server/resp/src/a.rs", "#[allow(dead_code)]\nfn f() {}", "#[expect(");
        caught("crates/server/resp/src/a.rs", "#![allow(dead_code)]", "#[expect(");
        assert_eq!(messages("crates/server/resp/src/a.rs", "g().unwrap_or(1)"), [""; 0]);
    }

    #[test]
    fn leftovers_are_caught() {
        let path = "crates/server/resp/src/a.rs";
        caught(path, "// TODO later", "leftover marker TODO");
        caught(path, "/* FIXME */", "leftover marker FIXME");
        caught(path, "/// XXX", "leftover marker XXX");
        caught(path, "/// Whoever has it.", "say plainly");
        caught(path, "// The oldest; nothing if it is empty.", "say plainly");
        caught(path, "fn f() { todo!() }", "leftover `todo!`");
        caught(path, "fn f() { unimplemented!(\"x\") }", "leftover `unimplemented!`");
        caught("crates/server/resp/tests/a.rs", "#[ignore = \"slow\"]", "leftover `#[ignore`");
    }

    #[test]
    fn engines_are_named_in_their_list_only() {
        let text = "let engine = EngineConfig::hermes();";
        caught("crates/server/resp/src/a.rs", text, "outside the list");
        caught("crates/server/node/src/lane.rs", "// As Meerkat does.", "outside the list");
        assert_eq!(messages("crates/server/node/src/engines.rs", text), [""; 0]);
        assert_eq!(messages("crates/server/node/tests/a.rs", text), [""; 0]);
        assert_eq!(messages("crates/verify/sim/src/a.rs", text), [""; 0]);
        let cited = "// A lease lasts 150 ms (Hermes \u{a7}4.5.7).";
        assert_eq!(messages("crates/server/node/src/a.rs", cited), [""; 0]);
    }

    #[test]
    fn pure_crates_declare_themselves() {
        let mut violations = Vec::new();
        let lib =
            Source::new(Path::new("crates/protocols/hermes/src/lib.rs"), "//! Hermes.".to_owned());
        check_crate_roots(&[lib], &mut violations);
        assert_eq!(violations.len(), 2);
    }

    #[test]
    fn mutants_and_table_must_agree() {
        let code = "fn f() { if mutant!(\"known\") || mutant!(\"unknown\") {} }".to_owned();
        let source = Source::new(Path::new("crates/protocols/hermes/src/a.rs"), code);
        let mut violations = Vec::new();
        let code = "fn f() { if mutant!(\"played\") || mutant!(\"an example\") {} }".to_owned();
        let test = Source::new(Path::new("crates/protocols/hermes/tests/a.rs"), code);
        let table = [("known", "hermes"), ("vanished", "hermes"), ("played", "hermes")];
        check_mutants(&[source, test], table.into_iter(), &mut violations);
        let text: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[0].contains("\"unknown\" of crate hermes is not in the table"));
        assert!(text[1].contains("\"vanished\" guards nothing"));
    }
}
