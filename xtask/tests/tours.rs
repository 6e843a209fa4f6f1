//! The tours of `ARCHITECTURE.md` lead past every place that a newcomer has to touch.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What names the engine that the tour follows, in code and manifests.
const NAMES_LOCAL: &[&str] =
    &["quorate-local", "quorate_local", "EngineConfig::local", "Engine::Local", "local::MUTANTS"];

/// The part of the page between two marks.
fn tour(root: &Path, name: &str) -> String {
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page is there");
    let (_, rest) = page.split_once(&format!("<!-- {name} -->")).expect("the tour begins");
    let (text, _) = rest.split_once(&format!("<!-- /{name} -->")).expect("the tour ends");
    text.to_owned()
}

/// What it names in backticks that looks like a path.
fn paths(tour: &str) -> BTreeSet<String> {
    let names = tour.split('`').skip(1).step_by(2);
    let is_path = |name: &&str| name.contains('/') || name.ends_with(".toml");
    names.filter(is_path).filter(|name| !name.contains(' ')).map(str::to_owned).collect()
}

#[test]
fn every_place_of_a_tour_is_there() {
    let root = xtask::root();
    for name in ["add an engine", "add a command"] {
        for path in paths(&tour(&root, name)) {
            let own = root.join("crates/protocols/local").join(&path);
            assert!(root.join(&path).exists() || own.exists(), "{name}: there is no {path}");
        }
    }
}

#[test]
fn the_engine_of_the_tour_is_named_nowhere_else() {
    let root = xtask::root();
    let listed = Command::new("git").arg("-C").arg(&root).arg("ls-files").output();
    let listed = String::from_utf8(listed.expect("git lists the files").stdout).expect("paths");
    let places = paths(&tour(&root, "add an engine"));
    let is_code = |path: &&str| path.ends_with(".rs") || path.ends_with(".toml");
    let own = |path: &&str| !path.starts_with("crates/protocols/local/");
    for path in listed.lines().filter(is_code).filter(own) {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let is_named = NAMES_LOCAL.iter().any(|name| text.contains(name));
        let is_this = path == "xtask/tests/tours.rs";
        assert!(!is_named || is_this || places.contains(path), "the tour leaves out {path}");
    }
}

#[test]
fn every_command_has_what_the_tour_asks_for() {
    let root = xtask::root().join("crates/data/commands");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("the tour names it");
    let (rows, examples) = (read("commands.txt"), read("tests/examples.txt"));
    // Of what the Redis that is compared with doesn't have there are only examples.
    let later = read("tests/later.txt");
    let files = fs::read_dir(root.join("tests/draw")).expect("the tour names it");
    let drawn: String = files
        .map(|file| fs::read_to_string(file.expect("a file").path()).expect("a file of draws"))
        .collect();
    let mut count = 0;
    for line in rows.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(name), Some("key" | "keys")) = (words.next(), words.next()) else { continue };
        let spoken = name.replace('|', " ").to_uppercase();
        if later.contains(&format!("\n> {spoken} ")) {
            continue;
        }
        assert!(examples.contains(&format!("\n> {spoken} ")), "no example of {name}");
        let word = spoken.split(' ').next().expect("a word");
        let (upper, lower) = (word.to_owned(), word.to_lowercase());
        assert!(drawn.contains(&upper) || drawn.contains(&lower), "{name} is never drawn");
        count += 1;
    }
    assert!(count > 40, "{count} commands");
}
