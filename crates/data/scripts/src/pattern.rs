//! Lua's patterns, as `lstrlib.c` matches them, but with a bound on the steps: a pattern can take
//! exponential time, and none of it is an instruction of the interpreter.

use mlua::{Lua, Result, Value};
use quorate_machine::mutant;

use crate::budget::Budget;
use crate::error::raise;
use crate::limits;

const CAPTURES_MAX: usize = 32;
const ESCAPE: u8 = b'%';

/// What a capture holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Length {
    Open,
    /// `()`: where it stands.
    Position,
    Bytes(usize),
}

/// A match in progress.
pub(crate) struct Matcher<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    source: &'a [u8],
    pattern: &'a [u8],
    level: usize,
    captures: [(usize, Length); CAPTURES_MAX],
    depth: u32,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(
        lua: &'a Lua,
        budget: &'a Budget,
        source: &'a [u8],
        pattern: &'a [u8],
    ) -> Self {
        let captures = [(0, Length::Open); CAPTURES_MAX];
        // A pattern ends at a zero byte.
        let pattern = pattern.split(|byte| *byte == 0).next().unwrap_or_default();
        Self { lua, budget, source, pattern, level: 0, captures, depth: 0 }
    }

    /// The end of a match that begins here.
    pub(crate) fn match_at(&mut self, start: usize) -> Result<Option<usize>> {
        self.level = 0;
        self.depth = 0;
        self.step(start, 0)
    }

    /// How many values a match has: its captures, or all of it.
    pub(crate) fn values(&self, whole: bool) -> usize {
        if self.level == 0 && whole { 1 } else { self.level }
    }

    /// Value `index` of a match.
    pub(crate) fn value(&self, index: usize, start: usize, end: usize) -> Result<Value> {
        let bytes = match self.capture(index, start, end)? {
            Ok(bytes) => bytes,
            Err(position) => return Ok(Value::Number(position as f64)),
        };
        Ok(Value::String(self.lua.create_string(bytes)?))
    }

    /// The bytes of a capture, or its position.
    pub(crate) fn capture(
        &self,
        index: usize,
        start: usize,
        end: usize,
    ) -> Result<std::result::Result<&'a [u8], usize>> {
        if index >= self.level {
            if index == 0 {
                return Ok(Ok(&self.source[start..end]));
            }
            return Err(self.error("invalid capture index"));
        }
        match self.captures[index] {
            (_, Length::Open) => Err(self.error("unfinished capture")),
            (at, Length::Position) => Ok(Err(at + 1)),
            (at, Length::Bytes(length)) => Ok(Ok(&self.source[at..at + length])),
        }
    }

    /// All of a match.
    pub(crate) fn all(&self, start: usize, end: usize) -> &'a [u8] {
        &self.source[start..end]
    }

    fn error(&self, text: &str) -> mlua::Error {
        raise(self.lua, text)
    }

    fn charge(&self) -> Result<()> {
        if mutant!("scripts_patterns_unbounded") { Ok(()) } else { self.budget.charge(1) }
    }

    /// Matches the pattern from `p` at `s`.
    fn step(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        if self.depth >= limits::PATTERN_DEPTH_MAX {
            return Err(self.error("pattern too complex"));
        }
        self.depth += 1;
        let end = self.run(s, p);
        self.depth -= 1;
        end
    }

    fn run(&mut self, mut s: usize, mut p: usize) -> Result<Option<usize>> {
        loop {
            self.charge()?;
            let Some(&byte) = self.pattern.get(p) else { return Ok(Some(s)) };
            match byte {
                b'(' if self.pattern.get(p + 1) == Some(&b')') => {
                    return self.open(s, p + 2, Length::Position);
                }
                b'(' => return self.open(s, p + 1, Length::Open),
                b')' => return self.close(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => {
                    return Ok((s == self.source.len()).then_some(s));
                }
                ESCAPE if self.pattern.get(p + 1) == Some(&b'b') => {
                    match self.balance(s, p + 2)? {
                        Some(end) => (s, p) = (end, p + 4),
                        None => return Ok(None),
                    }
                    continue;
                }
                ESCAPE if self.pattern.get(p + 1) == Some(&b'f') => {
                    p += 2;
                    if self.pattern.get(p) != Some(&b'[') {
                        return Err(self.error("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(p)?;
                    let before = if s == 0 { 0 } else { self.source[s - 1] };
                    let here = self.source.get(s).copied().unwrap_or(0);
                    if self.in_set(before, p, end - 1) || !self.in_set(here, p, end - 1) {
                        return Ok(None);
                    }
                    p = end;
                    continue;
                }
                ESCAPE if self.pattern.get(p + 1).is_some_and(u8::is_ascii_digit) => {
                    match self.back_reference(s, self.pattern[p + 1])? {
                        Some(end) => (s, p) = (end, p + 2),
                        None => return Ok(None),
                    }
                    continue;
                }
                _ => {}
            }
            let end = self.class_end(p)?;
            let fits = s < self.source.len() && self.fits(self.source[s], p, end);
            match self.pattern.get(end) {
                Some(b'?') => {
                    if fits && let Some(found) = self.step(s + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.expand_most(s, p, end),
                Some(b'+') => {
                    return if fits { self.expand_most(s + 1, p, end) } else { Ok(None) };
                }
                Some(b'-') => return self.expand_least(s, p, end),
                _ if fits => (s, p) = (s + 1, end),
                _ => return Ok(None),
            }
        }
    }

    fn expand_most(&mut self, s: usize, p: usize, end: usize) -> Result<Option<usize>> {
        let mut count = 0;
        while s + count < self.source.len() && self.fits(self.source[s + count], p, end) {
            self.charge()?;
            count += 1;
        }
        loop {
            if let Some(found) = self.step(s + count, end + 1)? {
                return Ok(Some(found));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn expand_least(&mut self, mut s: usize, p: usize, end: usize) -> Result<Option<usize>> {
        loop {
            if let Some(found) = self.step(s, end + 1)? {
                return Ok(Some(found));
            }
            if s >= self.source.len() || !self.fits(self.source[s], p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, length: Length) -> Result<Option<usize>> {
        if self.level >= CAPTURES_MAX {
            return Err(self.error("too many captures"));
        }
        self.captures[self.level] = (s, length);
        self.level += 1;
        let found = self.step(s, p)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        let open = (0..self.level).rev().find(|&at| self.captures[at].1 == Length::Open);
        let Some(open) = open else { return Err(self.error("invalid pattern capture")) };
        self.captures[open].1 = Length::Bytes(s - self.captures[open].0);
        let found = self.step(s, p)?;
        if found.is_none() {
            self.captures[open].1 = Length::Open;
        }
        Ok(found)
    }

    fn back_reference(&mut self, s: usize, digit: u8) -> Result<Option<usize>> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        if index >= self.level || self.captures[index].1 == Length::Open {
            return Err(self.error("invalid capture index"));
        }
        let (at, Length::Bytes(length)) = self.captures[index] else { return Ok(None) };
        self.budget.charge(length / 16)?;
        let captured = &self.source[at..at + length];
        Ok(self.source[s..].starts_with(captured).then_some(s + length))
    }

    fn balance(&self, s: usize, p: usize) -> Result<Option<usize>> {
        let (Some(&begin), Some(&end)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(self.error("unbalanced pattern"));
        };
        if self.source.get(s) != Some(&begin) {
            return Ok(None);
        }
        let mut open = 1;
        for at in s + 1..self.source.len() {
            self.charge()?;
            let byte = self.source[at];
            if byte == end {
                open -= 1;
                if open == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == begin {
                open += 1;
            }
        }
        Ok(None)
    }

    /// One past the class that begins at `p`.
    fn class_end(&self, p: usize) -> Result<usize> {
        let mut at = p + 1;
        match self.pattern[p] {
            ESCAPE => {
                if at >= self.pattern.len() {
                    return Err(self.error("malformed pattern (ends with '%')"));
                }
                Ok(at + 1)
            }
            b'[' => {
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // The first byte of a set is part of it, also if it is `]`.
                loop {
                    let Some(&byte) = self.pattern.get(at) else {
                        return Err(self.error("malformed pattern (missing ']')"));
                    };
                    at += 1;
                    if byte == ESCAPE && at < self.pattern.len() {
                        at += 1;
                    }
                    if self.pattern.get(at) == Some(&b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(at),
        }
    }

    fn fits(&self, byte: u8, p: usize, end: usize) -> bool {
        match self.pattern[p] {
            b'.' => true,
            ESCAPE => is_in_class(byte, self.pattern[p + 1]),
            b'[' => self.in_set(byte, p, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether a byte is in the set between `p`, its `[`, and `end`, its `]`.
    fn in_set(&self, byte: u8, mut p: usize, end: usize) -> bool {
        let negated = self.pattern.get(p + 1) == Some(&b'^');
        if negated {
            p += 1;
        }
        p += 1;
        while p < end {
            let here = self.pattern[p];
            if here == ESCAPE {
                p += 1;
                if is_in_class(byte, self.pattern[p]) {
                    return !negated;
                }
            } else if self.pattern[p + 1] == b'-' && p + 2 < end {
                p += 2;
                if (here..=self.pattern[p]).contains(&byte) {
                    return !negated;
                }
            } else if here == byte {
                return !negated;
            }
            p += 1;
        }
        negated
    }
}

fn is_in_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}
