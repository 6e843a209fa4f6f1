//! A Rust file split into its code and its comments, and which part of it is test code.
//!
//! Not a parser: it knows comments, literals, brackets and attributes, which is what the rules
//! need, and it keeps every byte at its place so that line numbers stay true.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// A source file as the rules see it.
pub struct Source {
    /// Relative to the root of the workspace.
    pub path: PathBuf,
    /// The file as it is.
    pub text: String,
    /// The file with comments and the contents of literals blanked.
    pub code: String,
    /// The file with everything but comments blanked.
    pub comments: String,
    /// Whether the whole file is compiled for tests only: by its place, or by its declaration.
    pub is_test: bool,
    tests: Vec<Range<usize>>,
}

impl Source {
    /// Reads the structure of a file.
    pub fn new(path: &Path, text: String) -> Self {
        let (code, comments) = split(&text);
        let tests = test_regions(&code);
        let is_test = is_test_path(path);
        Self { path: path.to_path_buf(), text, code, comments, is_test, tests }
    }

    /// Whether the byte at this offset is compiled for tests only.
    pub fn in_test(&self, offset: usize) -> bool {
        self.is_test || self.tests.iter().any(|region| region.contains(&offset))
    }

    /// The file without what its literals say; their blanks and line ends stay.
    pub fn without_literals(&self) -> String {
        let shown = |(offset, character): &(usize, char)| {
            let blank = |text: &str| text.as_bytes()[*offset] == b' ';
            character.is_ascii_whitespace()
                || !character.is_ascii()
                || !(blank(&self.code) && blank(&self.comments))
        };
        self.text.char_indices().filter(shown).map(|(_, character)| character).collect()
    }

    /// The line of a byte, counted from one.
    pub fn line_of(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// Where a word or phrase stands in the code, bounded by non-identifier characters where it
    /// begins or ends with an identifier character.
    pub fn code_matches<'a>(&'a self, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
        matches_of(&self.code, needle)
    }

    /// The same in the comments.
    pub fn comment_matches<'a>(&'a self, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
        matches_of(&self.comments, needle)
    }

    /// The string literal that begins at or after this offset, before the end of the bracket.
    pub fn literal_after(&self, offset: usize) -> Option<&str> {
        let rest = &self.text[offset..];
        let begin = rest.find('"')? + 1;
        let length = rest[begin..].find('"')?;
        Some(&rest[begin..begin + length])
    }
}

fn matches_of<'a>(text: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(needle).map(|(offset, _)| offset).filter(move |offset| {
        let before = text[..*offset].chars().next_back();
        let after = text[offset + needle.len()..].chars().next();
        let first = needle.chars().next().is_some_and(is_word);
        let last = needle.chars().next_back().is_some_and(is_word);
        let continues = first && before.is_some_and(is_word) || last && after.is_some_and(is_word);
        !continues
    })
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn is_test_path(path: &Path) -> bool {
    let in_tests = path
        .components()
        .any(|part| ["tests", "benches", "examples"].iter().any(|name| part.as_os_str() == *name));
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    in_tests || stem == "tests" || stem.ends_with("_tests")
}

/// What the splitter is inside of.
enum Inside {
    Code,
    LineComment,
    BlockComment(u32),
    Text,
    RawText(usize),
}

/// The code and the comments of a file, each as long as the file.
fn split(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut code = blank(bytes);
    let mut comments = code.clone();
    let mut inside = Inside::Code;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut length = 1;
        match inside {
            Inside::Code => match rest {
                [b'/', b'/', ..] => inside = Inside::LineComment,
                [b'/', b'*', ..] => {
                    inside = Inside::BlockComment(1);
                    length = 2;
                }
                [b'"', ..] => {
                    code[at] = b'"';
                    inside = match raw_hashes(&bytes[..at]) {
                        Some(hashes) => Inside::RawText(hashes),
                        None => Inside::Text,
                    };
                }
                [b'\'', ..] => length = char_literal(rest).unwrap_or(1),
                [byte, ..] => code[at] = *byte,
                [] => {}
            },
            Inside::LineComment => {
                comments[at] = bytes[at];
                if bytes[at] == b'\n' {
                    inside = Inside::Code;
                }
            }
            Inside::BlockComment(depth) => {
                comments[at] = bytes[at];
                match rest {
                    [b'/', b'*', ..] => {
                        inside = Inside::BlockComment(depth + 1);
                        length = 2;
                    }
                    [b'*', b'/', ..] => {
                        let outer = depth - 1;
                        inside =
                            if outer == 0 { Inside::Code } else { Inside::BlockComment(outer) };
                        length = 2;
                    }
                    _ => {}
                }
            }
            Inside::Text => match rest {
                [b'\\', ..] => length = 2,
                [b'"', ..] => {
                    code[at] = b'"';
                    inside = Inside::Code;
                }
                _ => {}
            },
            Inside::RawText(hashes) => {
                let closes = rest[0] == b'"'
                    && rest.len() > hashes
                    && rest[1..=hashes].iter().all(|byte| *byte == b'#');
                if closes {
                    code[at] = b'"';
                    length = 1 + hashes;
                    inside = Inside::Code;
                }
            }
        }
        at += length;
    }
    let text = |bytes| String::from_utf8(bytes).expect("only whole characters are blanked");
    (text(only_ascii(code)), text(comments))
}

/// As many blanks as there are bytes, with the line ends where they were.
fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect()
}

/// Rules look for ASCII words only in code; anything else becomes a blank of the same length.
fn only_ascii(mut bytes: Vec<u8>) -> Vec<u8> {
    for byte in &mut bytes {
        if !byte.is_ascii() {
            *byte = b' ';
        }
    }
    bytes
}

/// How many hashes precede the quote of a raw literal; `None` if the literal is not raw.
fn raw_hashes(before: &[u8]) -> Option<usize> {
    let hashes = before.iter().rev().take_while(|byte| **byte == b'#').count();
    let mut prefix = before[..before.len() - hashes].iter().rev();
    let raw = prefix.next() == Some(&b'r');
    let starts = match prefix.next() {
        Some(b'b' | b'c') => !prefix.next().is_some_and(|byte| is_word(char::from(*byte))),
        other => !other.is_some_and(|byte| is_word(char::from(*byte))),
    };
    (raw && starts).then_some(hashes)
}

/// The length of a character literal; `None` if the quote begins a lifetime.
fn char_literal(rest: &[u8]) -> Option<usize> {
    match rest {
        [_, b'\\', _, tail @ ..] => {
            tail.iter().position(|byte| *byte == b'\'').map(|position| position + 4)
        }
        [_, _, b'\'', ..] => Some(3),
        [_, first, tail @ ..] if !first.is_ascii() => {
            let near = &tail[..tail.len().min(4)];
            near.iter().position(|byte| *byte == b'\'').map(|position| position + 3)
        }
        _ => None,
    }
}

/// The items under `#[cfg(test)]` and `#[test]`, and what only a build that may leave out guards has.
fn test_regions(code: &str) -> Vec<Range<usize>> {
    let mut regions = Vec::new();
    for (offset, _) in code.match_indices("#[") {
        let Some(end) = closing(code, offset + 1) else { continue };
        let attribute: String =
            code[offset + 2..end].chars().filter(|character| !character.is_whitespace()).collect();
        let conditional = attribute.starts_with("cfg(")
            && matches_of(&attribute, "test").next().is_some()
            && !attribute.contains("not(test");
        if (conditional
            || ["test", "cfg(any(mutants,debug_assertions))"].contains(&attribute.as_str()))
            && let Some(item_end) = item_end(code, end + 1)
        {
            regions.push(offset..item_end);
        }
    }
    regions
}

/// Where the item that begins here ends: at the closing brace or the semicolon.
fn item_end(code: &str, from: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b';' => return Some(at + 1),
            b'{' => return closing(code, at).map(|end| end + 1),
            b'(' | b'[' => at = closing(code, at)?,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The bracket that closes the one at this offset.
pub fn closing(code: &str, open: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut depth = 0_usize;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new(Path::new("crates/x/src/lib.rs"), text.to_owned())
    }

    #[test]
    fn literals_and_comments_are_not_code() {
        let text = "let a = \"unsafe \\\" x\"; // unsafe\n/* unsafe /* unsafe */ */ let b = 'u';\n\
                    let c = r#\"unsafe \" unsafe\"#; fn f<'a>(x: &'a u8) {} let d = '\\'';";
        let source = source(text);
        assert_eq!(source.code_matches("unsafe").count(), 0);
        assert_eq!(source.comment_matches("unsafe").count(), 3);
        assert_eq!(source.code.len(), text.len());
        assert!(source.code.contains("fn f<"));
        assert!(source.code.contains("let d"));
    }

    #[test]
    fn words_are_whole() {
        let source = source("unsafe_code unsafe{} my_unsafe");
        assert_eq!(source.code_matches("unsafe").collect::<Vec<_>>(), [12]);
    }

    #[test]
    fn test_items_are_found() {
        let text = "fn a() { one() }\n#[cfg(test)]\nmod tests {\n fn b() { two() } }\nfn c() \
                    { three() }\n#[cfg(not(test))]\nfn d() { four() }\n#[cfg(all(test, loom))]\n\
                    mod t { five() }\n#[test]\nfn e() { six() }\n#[cfg(any(mutants, debug_assertions))]\nfn f() { seven() }\n\
                    #[cfg(not(any(mutants, debug_assertions)))]\nfn g() { eight() }";
        let source = source(text);
        let is_test = |word| source.in_test(source.code_matches(word).next().expect(word));
        for (word, expected) in [
            ("one", false),
            ("two", true),
            ("three", false),
            ("four", false),
            ("five", true),
            ("six", true),
            ("seven", true),
            ("eight", false),
        ] {
            assert_eq!(is_test(word), expected, "{word}");
        }
    }

    #[test]
    fn lines_count_from_one() {
        let source = source("a\nb\nc");
        assert_eq!(source.line_of(4), 3);
    }
}
