//! How `cjson` reads JSON: what it takes beyond the standard, and the words of its errors.

use mlua::{Lua, Result, Value};

use crate::budget::Budget;
use crate::encode::Options;
use crate::error::raise;

/// Reads one value.
pub(crate) fn decode(lua: &Lua, budget: &Budget, options: &Options, text: &[u8]) -> Result<Value> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err(raise(lua, "JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut decoder = Decoder { lua, budget, options, text, at: 0, depth: 0 };
    let token = decoder.next();
    let value = decoder.value(token)?;
    let token = decoder.next();
    match token.kind {
        Kind::End => Ok(value),
        _ => Err(decoder.expected("the end", &token)),
    }
}

enum Kind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::Text(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Boolean(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Error(what) => what,
        }
    }
}

struct Token {
    kind: Kind,
    at: usize,
}

struct Decoder<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    options: &'a Options,
    text: &'a [u8],
    at: usize,
    depth: i64,
}

impl Decoder<'_> {
    fn expected(&self, what: &str, token: &Token) -> mlua::Error {
        let (found, at) = (token.kind.name(), token.at + 1);
        raise(self.lua, format!("Expected {what} but found {found} at character {at}"))
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Token {
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let single = |decoder: &mut Self, kind| {
            decoder.at += 1;
            Token { kind, at }
        };
        match self.peek(0) {
            0 => Token { kind: Kind::End, at },
            b'{' => single(self, Kind::ObjectBegin),
            b'}' => single(self, Kind::ObjectEnd),
            b'[' => single(self, Kind::ArrayBegin),
            b']' => single(self, Kind::ArrayEnd),
            b',' => single(self, Kind::Comma),
            b':' => single(self, Kind::Colon),
            b'"' => {
                let kind = self.string();
                let at = if matches!(kind, Kind::Error(_)) { self.at } else { at };
                Token { kind, at }
            }
            _ => Token { kind: self.word(), at },
        }
    }

    /// A number, or one of the words.
    fn word(&mut self) -> Kind {
        let rest = &self.text[self.at..];
        let is_number = matches!(rest[0], b'-' | b'0'..=b'9');
        for (word, kind) in [
            (&b"true"[..], Kind::Boolean(true)),
            (b"false", Kind::Boolean(false)),
            (b"null", Kind::Null),
        ] {
            if !is_number && rest.starts_with(word) {
                self.at += word.len();
                return kind;
            }
        }
        let is_invalid = is_invalid_number(rest);
        if is_number && is_invalid && !self.options.decode_invalid {
            return Kind::Error("invalid number");
        }
        let begins = matches!(rest[0], b'+' | b'I' | b'i' | b'N' | b'n');
        if !(is_number || begins && is_invalid && self.options.decode_invalid) {
            return Kind::Error("invalid token");
        }
        match scan_number(rest) {
            Some((number, length)) => {
                self.at += length;
                Kind::Number(number)
            }
            None => Kind::Error("invalid number"),
        }
    }

    fn string(&mut self) -> Kind {
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let byte = self.peek(0);
            match byte {
                b'"' => break,
                0 => return Kind::Error("unexpected end of string"),
                b'\\' => {}
                byte => {
                    out.push(byte);
                    self.at += 1;
                    continue;
                }
            }
            out.push(match self.peek(1) {
                byte @ (b'"' | b'\\' | b'/') => byte,
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => {
                    let Some(length) = self.unicode(&mut out) else {
                        return Kind::Error("invalid unicode escape code");
                    };
                    self.at += length;
                    continue;
                }
                _ => return Kind::Error("invalid escape code"),
            });
            self.at += 2;
        }
        self.at += 1;
        Kind::Text(out)
    }

    fn hex4(&self, ahead: usize) -> Option<u32> {
        let digits = self.text.get(self.at + ahead..self.at + ahead + 4)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        digits.iter().try_fold(0, |number, byte| Some(number * 16 + digit(*byte)?))
    }

    /// Appends an escaped character; the length of its escape.
    fn unicode(&self, out: &mut Vec<u8>) -> Option<usize> {
        let first = self.hex4(2)?;
        let (code, length) = if first & 0xf800 == 0xd800 {
            let is_pair = first & 0x400 == 0 && self.peek(6) == b'\\' && self.peek(7) == b'u';
            let second = self.hex4(8).filter(|second| is_pair && second & 0xfc00 == 0xdc00)?;
            (0x1_0000 + ((first & 0x3ff) << 10 | second & 0x3ff), 12)
        } else {
            (first, 6)
        };
        let character = char::from_u32(code)?;
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(length)
    }

    fn value(&mut self, token: Token) -> Result<Value> {
        self.budget.charge(4)?;
        match token.kind {
            Kind::Text(text) => Ok(Value::String(self.lua.create_string(text)?)),
            Kind::Number(number) => Ok(Value::Number(number)),
            Kind::Boolean(is) => Ok(Value::Boolean(is)),
            Kind::Null => Ok(Value::NULL),
            Kind::ObjectBegin => self.object(),
            Kind::ArrayBegin => self.array(),
            _ => Err(self.expected("value", &token)),
        }
    }

    fn descend(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth <= self.options.decode_depth.min(NESTED_MAX) {
            return Ok(());
        }
        let (depth, at) = (self.depth, self.at);
        let text = format!("Found too many nested data structures ({depth}) at character {at}");
        Err(raise(self.lua, text))
    }

    fn object(&mut self) -> Result<Value> {
        self.descend()?;
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if !matches!(token.kind, Kind::ObjectEnd) {
            loop {
                let Kind::Text(key) = token.kind else {
                    return Err(self.expected("object key string", &token));
                };
                let colon = self.next();
                if !matches!(colon.kind, Kind::Colon) {
                    return Err(self.expected("colon", &colon));
                }
                let first = self.next();
                let value = self.value(first)?;
                table.raw_set(self.lua.create_string(key)?, value)?;
                let after = self.next();
                match after.kind {
                    Kind::ObjectEnd => break,
                    Kind::Comma => token = self.next(),
                    _ => return Err(self.expected("comma or object end", &after)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }

    fn array(&mut self) -> Result<Value> {
        self.descend()?;
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if !matches!(token.kind, Kind::ArrayEnd) {
            for index in 1.. {
                let value = self.value(token)?;
                table.raw_set(index, value)?;
                let after = self.next();
                match after.kind {
                    Kind::ArrayEnd => break,
                    Kind::Comma => token = self.next(),
                    _ => return Err(self.expected("comma or array end", &after)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}

/// How deep values nest, whatever a script asks for.
const NESTED_MAX: i64 = 1000;

/// Whether C's `strtod` takes what JSON doesn't.
fn is_invalid_number(text: &[u8]) -> bool {
    let at = |index: usize| text.get(index).copied().unwrap_or(0);
    if at(0) == b'+' {
        return true;
    }
    let from = usize::from(at(0) == b'-');
    if at(from) == b'0' {
        return matches!(at(from + 1), b'x' | b'X' | b'0'..=b'9');
    }
    if at(from) <= b'9' {
        return false;
    }
    let word = text.get(from..from + 3).unwrap_or_default();
    word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
}

/// The longest number at the beginning of a text, as `strtod` reads it, and its length.
fn scan_number(text: &[u8]) -> Option<(f64, usize)> {
    let at = |index: usize| text.get(index).copied().unwrap_or(0);
    let sign = usize::from(matches!(at(0), b'-' | b'+'));
    let negate = |number: f64| if at(0) == b'-' { -number } else { number };
    let begins = |word: &str| {
        text.get(sign..sign + word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word.as_bytes()))
    };
    for (word, number) in [("infinity", f64::INFINITY), ("inf", f64::INFINITY), ("nan", f64::NAN)] {
        if begins(word) {
            return Some((negate(number), sign + word.len()));
        }
    }
    let digits =
        |from: usize, is: fn(&u8) -> bool| text[from..].iter().take_while(|b| is(b)).count();
    if begins("0x") && at(sign + 2).is_ascii_hexdigit() {
        let count = digits(sign + 2, u8::is_ascii_hexdigit);
        let end = sign + 2 + count;
        let number = text[sign + 2..end].iter().fold(0.0, |number, byte| {
            number * 16.0 + f64::from(char::from(*byte).to_digit(16).unwrap_or(0))
        });
        return Some((negate(number), end));
    }
    let mut end = sign + digits(sign.min(text.len()), u8::is_ascii_digit);
    let mut count = end - sign;
    if at(end) == b'.' {
        let decimals = digits(end + 1, u8::is_ascii_digit);
        if count + decimals > 0 {
            end += 1 + decimals;
            count += decimals;
        }
    }
    if count == 0 {
        return None;
    }
    if matches!(at(end), b'e' | b'E') {
        let signed = usize::from(matches!(at(end + 1), b'-' | b'+'));
        let from = end + 1 + signed;
        if at(from).is_ascii_digit() {
            end = from + digits(from, u8::is_ascii_digit);
        }
    }
    let number = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    Some((number, end))
}
