//! What a comment cites of a paper stands in `docs/papers/`: `Meerkat §5.2.2` is a section of the
//! paper, `Meerkat N3.4-2` one of our notes on it. In a protocol's own crate the name is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Violation;
use super::source::Source;

/// The papers as comments name them, the page of each, and the crate that is about it alone.
const PAPERS: &[(&str, &str, &str)] = &[
    ("Meerkat", "docs/papers/meerkat.md", "crates/protocols/meerkat"),
    ("Hermes", "docs/papers/hermes.md", "crates/protocols/hermes"),
    ("RIFL", "docs/papers/rifl.md", "crates/protocols/rifl"),
    ("Zeus", "docs/papers/zeus.md", "crates/protocols/zeus"),
];

/// Checks the citations of all files against the pages. `page` gives the text of a page.
pub(super) fn check(
    sources: &[Source],
    page: impl Fn(&str) -> anyhow::Result<String>,
    violations: &mut Vec<Violation>,
) -> anyhow::Result<()> {
    let mut sections = BTreeMap::new();
    for (_, path, _) in PAPERS {
        sections.insert(*path, sections_of(&page(path)?));
    }
    for source in sources {
        for (index, line) in source.comments.lines().enumerate() {
            for (offset, section) in citations(line) {
                let known = paper_of(&source.path, &line[..offset]);
                let message = match known {
                    Some(path) if sections[path].contains(&section) => continue,
                    Some(path) => format!(
                        "{path} has no {section}; write there what it says, or mend the citation"
                    ),
                    None if section.starts_with('N') => continue,
                    None => format!("{section} of which paper? Write `Meerkat {section}`"),
                };
                violations.push(Violation::new(&source.path, index + 1, message));
            }
        }
    }
    Ok(())
}

/// The page of the paper that was named last before a citation, or else of the crate's own.
fn paper_of(source: &Path, before: &str) -> Option<&'static str> {
    let named = PAPERS.iter().filter_map(|(name, path, _)| Some((before.rfind(name)?, *path)));
    let own = PAPERS.iter().find(|(_, _, directory)| source.starts_with(directory));
    named.max().map(|(_, path)| path).or(own.map(|(_, path, _)| *path))
}

/// The sections that a page describes: those in bold, and those that a heading begins with.
fn sections_of(page: &str) -> BTreeSet<String> {
    let bold = page.match_indices("**").map(|(at, _)| &page[at + 2..]);
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    bold.chain(headings).filter_map(|text| section_at(text).map(|(section, _)| section)).collect()
}

/// What a line cites, with the offset of each.
fn citations(line: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut end = 0;
    for (offset, _) in line.char_indices() {
        let within = line[..offset].ends_with(|before: char| before.is_alphanumeric());
        if offset < end || within {
            continue;
        }
        if let Some((section, len)) = section_at(&line[offset..]) {
            found.push((offset, section));
            end = offset + len;
        }
    }
    found
}

/// The section's name that a text begins with, and how long it is.
fn section_at(text: &str) -> Option<(String, usize)> {
    let sign = ["§", "N"].into_iter().find(|sign| text.starts_with(sign))?;
    let rest = &text[sign.len()..];
    let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.');
    let number = rest[..digits.unwrap_or(rest.len())].trim_end_matches('.');
    if number.is_empty() {
        return None;
    }
    let mut name = format!("{sign}{number}");
    if sign == "N" {
        name += part(&rest[number.len()..]);
    }
    let len = name.len();
    let ends = !text[len..].starts_with(|after: char| after.is_alphanumeric());
    ends.then_some((name, len))
}

/// The part of a note that a text begins with: `-2` or `c`, or nothing.
fn part(text: &str) -> &str {
    let digits = text.strip_prefix('-').map_or("", |rest| {
        &rest[..rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len())]
    });
    let letter = text.starts_with(|character: char| character.is_ascii_lowercase());
    match (digits.len(), letter) {
        (0, true) => &text[..1],
        (0, false) => "",
        (len, _) => &text[..=len],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found_with_their_parts() {
        let cited =
            |line| citations(line).into_iter().map(|(_, section)| section).collect::<Vec<_>>();
        assert_eq!(cited("// (§5.2.2 step 3, N3.4-8; N4.2c)."), ["§5.2.2", "N3.4-8", "N4.2c"]);
        assert_eq!(cited("// §2. The END of N9"), ["§2", "N9"]);
        assert!(cited("// IN2 and N10xy, n1, § alone").is_empty());
    }

    #[test]
    fn what_is_cited_has_to_be_on_the_papers_page() {
        let complaints = |path: &str, text: &str| {
            let source = Source::new(Path::new(path), text.to_owned());
            let mut violations = Vec::new();
            let page = |_: &str| Ok("- **§5.2** x\n### N4: y\n- **N4.1a** z".to_owned());
            check(&[source], page, &mut violations).expect("pages are there");
            violations.len()
        };
        assert_eq!(complaints("crates/protocols/meerkat/src/a.rs", "// §5.2, N4 and N4.1a\n"), 0);
        assert_eq!(complaints("crates/protocols/meerkat/src/a.rs", "// §5.3 and N4.1b\n"), 2);
        assert_eq!(complaints("crates/verify/sim/src/a.rs", "// RIFL §5.2, and Hermes N4.1a\n"), 0);
        assert_eq!(complaints("crates/verify/sim/src/a.rs", "// §5.2\n"), 1);
        assert_eq!(complaints("crates/verify/sim/src/a.rs", "// node N7\n"), 0);
        assert_eq!(complaints("crates/verify/sim/src/a.rs", "let text = \"§9\";\n"), 0);
    }
}
