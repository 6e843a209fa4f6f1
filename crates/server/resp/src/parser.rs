//! The request parser: incremental, in place, exact about what Redis 7 rejects.
//!
//! A [`Parser`] walks over a read buffer that its owner fills. It copies nothing: a command is a
//! list of spans of that buffer, relative to the command's first byte, so that the owner may move
//! the bytes to the front of the buffer between calls ([`Parser::compact`]). It allocates nothing
//! by announced lengths: an announced multibulk of a million arguments costs a counter until the
//! arguments arrive.
//!
//! How the bytes were cut into reads changes nothing: the same stream gives the same commands and
//! the same error, delivered whole or byte by byte.

use quorate_commands::{Args, Span, parse_integer};
use quorate_types::limits::VALUE_BYTES_MAX;

/// Longest inline command and longest header line of a multibulk, in bytes (Redis's
/// `PROTO_INLINE_MAX_SIZE`).
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Most arguments of one command.
pub const ARGUMENTS_MAX: i64 = 1024 * 1024;
/// Most arguments of a command of a connection that has yet to authenticate.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: i64 = 10;
/// Longest argument of a connection that has yet to authenticate, in bytes.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: i64 = 16 * 1024;

/// What the parser accepts at the moment; authentication and `CONFIG SET` change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest argument, in bytes (`proto-max-bulk-len`).
    pub bulk_bytes_max: u64,
    /// Whether the connection must authenticate before it may send anything large.
    pub unauthenticated: bool,
}

/// Why a stream can't be trusted any more. The connection is closed once the error is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// No line end within [`INLINE_BYTES_MAX`] bytes of an inline command.
    InlineTooBig,
    /// No line end after `*`.
    CountTooBig,
    /// No line end after `$`.
    BulkCountTooBig,
    /// The number after `*` is no number, or above [`ARGUMENTS_MAX`].
    InvalidCount,
    /// More than [`UNAUTHENTICATED_ARGUMENTS_MAX`] arguments before authentication.
    UnauthenticatedCount,
    /// The number after `$` is no length.
    InvalidBulk,
    /// The argument is longer than `proto-max-bulk-len`.
    BulkTooLong {
        /// How long it is to be, in bytes.
        announced: u64,
        /// How long it may be, in bytes.
        max: u64,
    },
    /// More than [`UNAUTHENTICATED_BULK_BYTES_MAX`] bytes before authentication.
    UnauthenticatedBulk,
    /// An argument that begins with this byte instead of `$`.
    ExpectedBulk(u8),
    /// An inline command with a quote that doesn't end, or ends within a word.
    UnbalancedQuotes,
}

impl ProtocolError {
    /// How many bytes the client sends, from where the parser has stopped, before it looks at the
    /// answer; 0 if nobody can say.
    pub(crate) fn unread(self) -> u64 {
        match self {
            // `$`, the number, the argument, and a line end behind each.
            Self::BulkTooLong { announced, .. } => {
                let digits = 1 + u64::from(announced.ilog10());
                announced.saturating_add(5 + digits)
            }
            _ => 0,
        }
    }

    /// Appends the error reply, as Redis words it.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR Protocol error: ");
        out.extend_from_slice(match self {
            Self::InlineTooBig => b"too big inline request",
            Self::CountTooBig => b"too big mbulk count string",
            Self::BulkCountTooBig => b"too big bulk count string",
            Self::InvalidCount => b"invalid multibulk length",
            Self::UnauthenticatedCount => b"unauthenticated multibulk length",
            Self::InvalidBulk | Self::BulkTooLong { .. } => b"invalid bulk length",
            Self::UnauthenticatedBulk => b"unauthenticated bulk length",
            Self::ExpectedBulk(_) => b"expected '$', got '".as_slice(),
            Self::UnbalancedQuotes => b"unbalanced quotes in request",
        });
        if let Self::BulkTooLong { announced, max } = self {
            let raise = format!("raise it with CONFIG SET up to {VALUE_BYTES_MAX}, or ");
            let raise = if max < VALUE_BYTES_MAX as u64 { raise.as_str() } else { "" };
            let text = format!(
                ": {announced} bytes are more than proto-max-bulk-len, {max}; {raise}spread the value \
                 over several keys"
            );
            out.extend_from_slice(text.as_bytes());
        }
        if let Self::ExpectedBulk(byte) = self {
            // A line end inside would forge a reply.
            out.push(if matches!(byte, b'\r' | b'\n') { b' ' } else { byte });
            out.push(b'\'');
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// What [`Parser::step`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing whole yet.
    Incomplete,
    /// A command; [`Parser::args`] gives its arguments until [`Parser::finish`].
    Command,
    /// Not the Redis protocol.
    Broken(ProtocolError),
}

/// Where the parser stands in a connection's read buffer.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    /// First byte of the command at hand.
    start: usize,
    /// First byte not parsed.
    at: usize,
    /// Bytes from `at` that were searched for a line end in vain.
    searched: usize,
    /// Arguments still to come; 0 between commands.
    missing: usize,
    /// Announced length of the argument at `at`.
    bulk: Option<usize>,
    spans: Vec<Span>,
}

enum Line {
    /// The line end is at this index of the buffer.
    End(usize),
    Incomplete,
    TooBig,
}

impl Parser {
    /// Parses on. After [`Step::Command`], call [`Parser::finish`] before the next step.
    pub fn step(&mut self, buffer: &mut [u8], limits: &Limits) -> Step {
        loop {
            if self.missing == 0 {
                debug_assert!(self.spans.is_empty(), "the last command was finished");
                match buffer.get(self.at) {
                    None => return Step::Incomplete,
                    Some(b'*') => {
                        if let Some(step) = self.multibulk_header(buffer, limits) {
                            return step;
                        }
                    }
                    Some(_) => match self.inline(buffer) {
                        Step::Command if self.spans.is_empty() => self.finish(),
                        step => return step,
                    },
                }
            } else {
                if let Some(step) = self.argument(buffer, limits) {
                    return step;
                }
                if self.missing == 0 {
                    return Step::Command;
                }
            }
        }
    }

    /// The arguments of the command just found.
    #[inline]
    pub fn args<'a>(&'a self, buffer: &'a [u8]) -> Args<'a> {
        Args { buffer: &buffer[self.start..self.at], spans: &self.spans, seed: 0 }
    }

    /// Leaves the command behind.
    #[inline]
    pub fn finish(&mut self) {
        self.start = self.at;
        self.spans.clear();
    }

    /// Bytes that the parser itself holds.
    pub fn bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// Gives memory back between commands, except for so many bytes.
    pub fn shrink(&mut self, keep: usize) {
        if self.spans.is_empty() && self.bytes() > keep {
            self.spans = Vec::new();
        }
    }

    /// Bytes of the buffer that belong to commands left behind.
    pub fn consumed(&self) -> usize {
        self.start
    }

    /// How many more bytes the argument at hand needs at least; 0 if that isn't known yet.
    pub fn wanted(&self, buffer: &[u8]) -> usize {
        self.bulk.map_or(0, |length| (self.at + length + 2).saturating_sub(buffer.len()))
    }

    /// How many bytes of the buffer it has yet to look at.
    pub(crate) fn unparsed(&self, buffer: &[u8]) -> usize {
        buffer.len() - self.at
    }

    /// Moves what is not consumed to the front of the buffer.
    pub fn compact(&mut self, buffer: &mut Vec<u8>) {
        if self.start > 0 {
            buffer.drain(..self.start);
            self.at -= self.start;
            self.start = 0;
        }
    }

    /// `*<count>`. Nothing means: parse on.
    fn multibulk_header(&mut self, buffer: &[u8], limits: &Limits) -> Option<Step> {
        let end = match self.line(buffer, b'\r') {
            Line::End(end) => end,
            Line::Incomplete => return Some(Step::Incomplete),
            Line::TooBig => return Some(Step::Broken(ProtocolError::CountTooBig)),
        };
        // The second byte of the line end must be there, whatever it is.
        if end + 1 >= buffer.len() {
            return Some(Step::Incomplete);
        }
        match parse_integer(&buffer[self.at + 1..end]) {
            None => return Some(Step::Broken(ProtocolError::InvalidCount)),
            Some(count) if count > ARGUMENTS_MAX => {
                return Some(Step::Broken(ProtocolError::InvalidCount));
            }
            Some(count) if limits.unauthenticated && count > UNAUTHENTICATED_ARGUMENTS_MAX => {
                return Some(Step::Broken(ProtocolError::UnauthenticatedCount));
            }
            Some(count) => {
                self.skip_to(end + 2);
                if count <= 0 {
                    self.finish();
                } else {
                    self.missing = count as usize;
                }
            }
        }
        None
    }

    /// `$<length>` and the bytes. Nothing means: the argument is complete.
    fn argument(&mut self, buffer: &[u8], limits: &Limits) -> Option<Step> {
        let length = match self.bulk {
            Some(length) => length,
            None => match self.bulk_header(buffer, limits) {
                Ok(length) => length,
                Err(step) => return Some(step),
            },
        };
        // The two bytes of the line end must be there, whatever they are.
        if buffer.len() - self.at < length + 2 {
            return Some(Step::Incomplete);
        }
        let from = self.at - self.start;
        self.spans.push(Span { start: from as u32, end: (from + length) as u32 });
        self.skip_to(self.at + length + 2);
        self.bulk = None;
        self.missing -= 1;
        None
    }

    #[inline]
    fn bulk_header(&mut self, buffer: &[u8], limits: &Limits) -> Result<usize, Step> {
        let end = match self.line(buffer, b'\r') {
            Line::End(end) => end,
            Line::Incomplete => return Err(Step::Incomplete),
            Line::TooBig => return Err(Step::Broken(ProtocolError::BulkCountTooBig)),
        };
        if end + 1 >= buffer.len() {
            return Err(Step::Incomplete);
        }
        if buffer[self.at] != b'$' {
            return Err(Step::Broken(ProtocolError::ExpectedBulk(buffer[self.at])));
        }
        let length = parse_integer(&buffer[self.at + 1..end])
            .filter(|&length| length >= 0)
            .ok_or(Step::Broken(ProtocolError::InvalidBulk))?;
        let (announced, max) = (length as u64, limits.bulk_bytes_max);
        if announced > max {
            return Err(Step::Broken(ProtocolError::BulkTooLong { announced, max }));
        }
        if limits.unauthenticated && length > UNAUTHENTICATED_BULK_BYTES_MAX {
            return Err(Step::Broken(ProtocolError::UnauthenticatedBulk));
        }
        self.skip_to(end + 2);
        self.bulk = Some(length as usize);
        Ok(length as usize)
    }

    /// A line of words. An empty line gives a command without arguments.
    fn inline(&mut self, buffer: &mut [u8]) -> Step {
        let newline = match self.line(buffer, b'\n') {
            Line::End(end) => end,
            Line::Incomplete => return Step::Incomplete,
            Line::TooBig => return Step::Broken(ProtocolError::InlineTooBig),
        };
        let mut end = newline;
        if end > self.at && buffer[end - 1] == b'\r' {
            end -= 1;
        }
        let from = (self.at - self.start) as u32;
        if split_words(&mut buffer[self.at..end], from, &mut self.spans).is_none() {
            self.spans.clear();
            return Step::Broken(ProtocolError::UnbalancedQuotes);
        }
        self.skip_to(newline + 1);
        Step::Command
    }

    /// Finds the line end `byte` from `at` on, remembering what was searched.
    #[inline]
    fn line(&mut self, buffer: &[u8], byte: u8) -> Line {
        let window = &buffer[self.at..];
        let window = &window[..window.len().min(INLINE_BYTES_MAX + 1)];
        match window[self.searched..].iter().position(|&b| b == byte) {
            Some(offset) => Line::End(self.at + self.searched + offset),
            None if window.len() > INLINE_BYTES_MAX => Line::TooBig,
            None => {
                self.searched = window.len();
                Line::Incomplete
            }
        }
    }

    #[inline]
    fn skip_to(&mut self, at: usize) {
        self.at = at;
        self.searched = 0;
    }
}

/// Splits a line into words by Redis's quoting rules, unquoting in place (a word never grows).
/// `None` if the quotes are unbalanced. Spans count from the line's first byte plus `from`.
fn split_words(line: &mut [u8], from: u32, spans: &mut Vec<Span>) -> Option<()> {
    // As in C, a zero byte ends the line.
    let end = line.iter().position(|&byte| byte == 0).unwrap_or(line.len());
    let line = &mut line[..end];
    let mut read = 0;
    loop {
        while read < line.len() && is_space(line[read]) {
            read += 1;
        }
        if read == line.len() {
            return Some(());
        }
        let start = read;
        let mut write = read;
        while let Some(&byte) = line.get(read) {
            read += 1;
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => break,
                b'"' => unquote_double(line, &mut read, &mut write)?,
                b'\'' => unquote_single(line, &mut read, &mut write)?,
                byte => put(line, &mut write, byte),
            }
            if matches!(byte, b'"' | b'\'') {
                // A closing quote ends the word.
                break;
            }
        }
        spans.push(Span { start: from + start as u32, end: from + write as u32 });
    }
}

fn put(line: &mut [u8], write: &mut usize, byte: u8) {
    line[*write] = byte;
    *write += 1;
}

fn unquote_double(line: &mut [u8], read: &mut usize, write: &mut usize) -> Option<()> {
    loop {
        let byte = *line.get(*read)?;
        *read += 1;
        match byte {
            b'"' => return ends_word(line, *read),
            b'\\' => {
                if let Some(byte) = hex_escape(&line[*read..]) {
                    *read += 3;
                    put(line, write, byte);
                } else if let Some(&escaped) = line.get(*read) {
                    *read += 1;
                    let byte = match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => other,
                    };
                    put(line, write, byte);
                } else {
                    return None;
                }
            }
            byte => put(line, write, byte),
        }
    }
}

fn unquote_single(line: &mut [u8], read: &mut usize, write: &mut usize) -> Option<()> {
    loop {
        let byte = *line.get(*read)?;
        *read += 1;
        match byte {
            b'\'' => return ends_word(line, *read),
            b'\\' if line.get(*read) == Some(&b'\'') => {
                *read += 1;
                put(line, write, b'\'');
            }
            byte => put(line, write, byte),
        }
    }
}

fn ends_word(line: &[u8], read: usize) -> Option<()> {
    line.get(read).is_none_or(|&next| is_space(next)).then_some(())
}

fn hex_escape(rest: &[u8]) -> Option<u8> {
    let [b'x', high, low, ..] = rest else { return None };
    let digit = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
    Some(digit(high)? << 4 | digit(low)?)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bulk_bytes_max: 512 * 1024 * 1024, unauthenticated: false };

    fn parse_all(input: &[u8], limits: &Limits) -> (Vec<Vec<Vec<u8>>>, Step) {
        let mut buffer = input.to_vec();
        let mut parser = Parser::default();
        let mut commands = Vec::new();
        loop {
            match parser.step(&mut buffer, limits) {
                Step::Command => {
                    let args = parser.args(&buffer);
                    commands.push((0..args.len()).map(|i| args.get(i).to_vec()).collect());
                    parser.finish();
                    parser.compact(&mut buffer);
                }
                step => return (commands, step),
            }
        }
    }

    fn words(line: &str) -> Option<Vec<Vec<u8>>> {
        let (mut commands, step) = parse_all(format!("{line}\r\n").as_bytes(), &LIMITS);
        if step == Step::Broken(ProtocolError::UnbalancedQuotes) {
            return None;
        }
        Some(if commands.is_empty() { Vec::new() } else { commands.remove(0) })
    }

    fn error_of(input: &[u8]) -> String {
        let (_, step) = parse_all(input, &LIMITS);
        let Step::Broken(error) = step else { panic!("no error: {step:?}") };
        let mut out = Vec::new();
        error.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_follow_one_another() {
        let (commands, step) = parse_all(
            b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n*0\r\n*-1\r\n\r\nPING  x\n*1\r\n$4\r\nPI",
            &LIMITS,
        );
        assert_eq!(
            commands,
            [vec![b"GET".to_vec(), b"".to_vec()], vec![b"PING".to_vec(), b"x".to_vec()]]
        );
        assert_eq!(step, Step::Incomplete);
    }

    #[test]
    fn inline_words_are_unquoted() {
        let two = |a: &[u8], b: &[u8]| Some(vec![a.to_vec(), b.to_vec()]);
        assert_eq!(words(r#"set "a b""#), two(b"set", b"a b"));
        assert_eq!(words(r#"set "\x41\n\"\q""#), two(b"set", b"A\n\"q"));
        assert_eq!(words(r"set 'it\'s \n'"), two(b"set", br"it's \n"));
        assert_eq!(words(r#"  set   fo"o" "#), two(b"set", b"foo"));
        assert_eq!(words(r#"set """#), two(b"set", b""));
        assert_eq!(words("   "), Some(vec![]));
        assert_eq!(words("set a\0b"), two(b"set", b"a"));
        assert_eq!(words(r#"set "a"#), None);
        assert_eq!(words(r#"set "a"b"#), None);
        assert_eq!(words(r"set 'a'b"), None);
        assert_eq!(words(r#"set "a\"#), None);
    }

    #[test]
    fn errors_are_worded_as_in_redis() {
        for (input, text) in [
            (b"*x\r\n".as_slice(), "invalid multibulk length"),
            (b"*01\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*99999999999999999999\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (
                b"*1\r\n$536870913\r\n",
                "invalid bulk length: 536870913 bytes are more than proto-max-bulk-len, 536870912; \
                 spread the value over several keys",
            ),
            (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
            (b"*1\r\n\r\n", "expected '$', got ' '"),
            (b"\"\r\n", "unbalanced quotes in request"),
        ] {
            assert_eq!(error_of(input), format!("-ERR Protocol error: {text}\r\n"));
        }
        let long = vec![b'1'; INLINE_BYTES_MAX + 1];
        assert!(error_of(&long).contains("too big inline request"));
        assert!(error_of(&[b"*", &long[1..]].concat()).contains("too big mbulk count string"));
        assert!(error_of(&[b"*1\r\n$", &long[..]].concat()).contains("too big bulk count string"));
    }

    #[test]
    fn the_unauthenticated_are_kept_short() {
        let limits = Limits { unauthenticated: true, ..LIMITS };
        let (_, step) = parse_all(b"*11\r\n", &limits);
        assert_eq!(step, Step::Broken(ProtocolError::UnauthenticatedCount));
        let (_, step) = parse_all(b"*1\r\n$16385\r\n", &limits);
        assert_eq!(step, Step::Broken(ProtocolError::UnauthenticatedBulk));
        let (_, step) = parse_all(b"*10\r\n$16384\r\n", &limits);
        assert_eq!(step, Step::Incomplete);
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let mut buffer = b"*1000000\r\n$500000000\r\nabc".to_vec();
        let mut parser = Parser::default();
        assert_eq!(parser.step(&mut buffer, &LIMITS), Step::Incomplete);
        assert_eq!(parser.spans.capacity(), 0);
        assert_eq!(parser.wanted(&buffer), 500_000_000 + 2 - 3);
    }
}
