//! The documents hang together: every link between files leads somewhere, and every page of the
//! book is in its table of contents.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::tidy::{Violation, files};

/// Prints every dead link; an error if there is one.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let violations = check(root)?;
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => bail!("docs: {count} dead link(s) or lost page(s)"),
    }
}

/// Every dead link and every page that the book doesn't list.
pub fn check(root: &Path) -> anyhow::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let mut listed = Vec::new();
    let summary = Path::new("docs/src/SUMMARY.md");
    let pages = files::walk(root, &["md"])?;
    for page in &pages {
        let text = std::fs::read_to_string(root.join(page))
            .with_context(|| format!("cannot read {}", page.display()))?;
        let directory = page.parent().unwrap_or(Path::new(""));
        for (line, target) in links(&text) {
            let path = directory.join(&target);
            if !root.join(&path).exists() {
                let message = format!("the link to {target} leads nowhere; mend or remove it");
                violations.push(Violation::new(page, line, message));
            }
            if page == summary {
                listed.push(path);
            }
        }
    }
    let lost = |page: &&PathBuf| {
        page.starts_with("docs/src") && page.as_path() != summary && !listed.contains(page)
    };
    for page in pages.iter().filter(lost) {
        let message = "the page is not in docs/src/SUMMARY.md; list it there";
        violations.push(Violation::new(page, 1, message));
    }
    Ok(violations)
}

/// The links to files of a document: line and target without its anchor. Fenced code has none.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (position, _) in line.match_indices("](") {
            let rest = &line[position + 2..];
            let Some(end) = rest.find(')') else { continue };
            let target = rest[..end].split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((index + 1, target.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_found() {
        let text = "[a](b.md#c) [d](https://x.org/y) [e](#here)\n```\n[f](g.md)\n```\n[h](../i.md)";
        assert_eq!(links(text), [(1, "b.md".to_owned()), (5, "../i.md".to_owned())]);
    }
}
