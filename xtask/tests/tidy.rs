//! `cargo test` finds what `cargo xtask tidy` finds.

#[test]
fn the_workspace_is_tidy() {
    let violations = xtask::tidy::check(&xtask::root()).expect("every file can be read");
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn the_documents_hang_together() {
    let violations = xtask::docs::check(&xtask::root()).expect("every file can be read");
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn the_program_links_no_rival() {
    let tree = std::process::Command::new(env!("CARGO"))
        .current_dir(xtask::root())
        .args([
            "tree",
            "--offline",
            "--package",
            "quorate",
            "--edges",
            "normal",
            "--prefix",
            "none",
        ])
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(tree.stdout).expect("names of crates");
    assert!(tree.contains("quorate-meerkat "), "the tree was not listed: {tree}");
    assert!(!tree.contains("quorate-baselines "), "the rivals are linked into the program");
}
