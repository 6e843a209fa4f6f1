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
