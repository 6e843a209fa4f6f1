//! Redis's glob patterns (`KEYS`, `SCAN MATCH`, `CONFIG GET`).

/// Whether `text` matches `pattern`: `*`, `?`, `[a-z]`, `[^a]` and `\` as in Redis's
/// `stringmatchlen`.
///
/// Keeps one point to return to, the latest `*`, which is enough since an earlier one could not
/// match more. So a pattern of `p` bytes costs at most `p` times the text's length, where Redis's
/// recursion is exponential in the number of stars.
pub fn glob_match(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            while pattern.get(p) == Some(&b'*') {
                p += 1;
            }
            if p == pattern.len() {
                return true;
            }
            retry = Some((p, t));
            continue;
        }
        if p == pattern.len() && t == text.len() {
            return true;
        }
        let matched = match (p < pattern.len(), text.get(t)) {
            (true, Some(&byte)) => match_one(pattern, p, byte, ignore_case),
            _ => None,
        };
        if let Some(next) = matched {
            p = next;
            t += 1;
            continue;
        }
        match retry {
            Some((after, from)) if from < text.len() => {
                retry = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
            _ => return false,
        }
    }
}

/// Matches one byte against the pattern element at `p`; the index after the element if it does.
fn match_one(pattern: &[u8], p: usize, byte: u8, ignore_case: bool) -> Option<usize> {
    let fold = |byte: u8| if ignore_case { byte.to_ascii_lowercase() } else { byte };
    match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => match_class(pattern, p + 1, fold(byte), fold),
        b'\\' if p + 1 < pattern.len() => (fold(pattern[p + 1]) == fold(byte)).then_some(p + 2),
        literal => (fold(literal) == fold(byte)).then_some(p + 1),
    }
}

/// Matches a class whose first byte after `[` is at `p`. An unclosed class ends with the pattern.
fn match_class(pattern: &[u8], mut p: usize, byte: u8, fold: impl Fn(u8) -> u8) -> Option<usize> {
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut found = false;
    loop {
        match (pattern.get(p), pattern.get(p + 1), pattern.get(p + 2)) {
            (None, ..) => break,
            (Some(b'\\'), Some(&escaped), _) => {
                // Redis compares an escaped byte without folding.
                found |= escaped == byte;
                p += 2;
            }
            (Some(b']'), ..) => {
                p += 1;
                break;
            }
            (Some(&low), Some(b'-'), Some(&high)) => {
                let (low, high) = (low.min(high), low.max(high));
                found |= (fold(low)..=fold(high)).contains(&byte);
                p += 3;
            }
            (Some(&literal), ..) => {
                found |= fold(literal) == byte;
                p += 1;
            }
        }
    }
    (found != negated).then_some(p)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        glob_match(pattern.as_bytes(), text.as_bytes(), false)
    }

    #[test]
    fn patterns_of_the_redis_manual() {
        for (pattern, yes, no) in [
            ("h?llo", "hello", "hllo"),
            ("h*llo", "heeeello", "hell"),
            ("h*llo", "hllo", "xhllo"),
            ("h[ae]llo", "hallo", "hillo"),
            ("h[^e]llo", "hallo", "hello"),
            ("h[a-b]llo", "hbllo", "hcllo"),
            ("h[b-a]llo", "hallo", "hcllo"),
            (r"h\*llo", "h*llo", "hello"),
            (r"[\]]", "]", "x"),
            ("[]a", "", "a"),
            ("[a", "a", "b"),
            ("*", "", "\u{1}never"),
            ("a*b*c", "a-b-b-c", "a-b-b-d"),
            (r"a\", r"a\", "a"),
        ] {
            assert!(yes.is_empty() && pattern != "*" || matches(pattern, yes), "{pattern} {yes}");
            assert!(no.starts_with('\u{1}') || !matches(pattern, no), "{pattern} {no}");
        }
        assert!(glob_match(b"MaX*", b"maxmemory", true));
        assert!(!glob_match(b"", b"a", false));
        assert!(glob_match(b"", b"", false));
    }

    #[test]
    fn many_stars_stay_cheap() {
        let pattern = b"*a".repeat(5_000);
        let text = vec![b'a'; 20_000];
        assert!(glob_match(&pattern, &text, false));
        let mut text = text;
        text.push(b'b');
        assert!(!glob_match(&pattern, &text, false));
    }
}
