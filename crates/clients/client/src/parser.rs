//! The reply parser: RESP2 and RESP3, incremental and bounded. Lengths that are not announced
//! (`$?`, `*?`), which no server sends, are refused.
//!
//! The cuts between reads change nothing: the same stream gives the same replies and the same
//! error. Memory is allocated only for bytes that have arrived, not for announced lengths.

use crate::limits::{BULK_BYTES_MAX, DEPTH_MAX, ELEMENTS_MAX, LINE_BYTES_MAX, REPLY_BYTES_MAX};
use crate::reply::{Reply, ServerError};

/// The bounds of the parser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Longest line without its end, in bytes.
    pub(crate) line_bytes: usize,
    /// Longest string, in bytes.
    pub(crate) bulk_bytes: usize,
    /// Most elements of one reply.
    pub(crate) elements: usize,
    /// Most bytes of lines and strings of one reply.
    pub(crate) reply_bytes: usize,
    /// Deepest nesting.
    pub(crate) depth: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            line_bytes: LINE_BYTES_MAX,
            bulk_bytes: BULK_BYTES_MAX,
            elements: ELEMENTS_MAX,
            reply_bytes: REPLY_BYTES_MAX,
            depth: DEPTH_MAX,
        }
    }
}

/// Why a stream can't be trusted any more: its connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ParseError {
    /// A reply that begins with none of RESP's bytes.
    #[error("a reply begins with byte {0:#04x}, which is not RESP")]
    Kind(u8),
    /// A line feed without the carriage return before it.
    #[error("a line of a reply does not end with CR LF")]
    LineEnd,
    /// Not a number where one belongs.
    #[error("a length or number of a reply is no number")]
    Number,
    /// A null, boolean or verbatim string of an illegal form.
    #[error("a null, boolean or verbatim string of a reply is malformed")]
    Form,
    /// A string without its end at the announced length.
    #[error("a string of a reply is not followed by CR LF")]
    BulkEnd,
    /// More than [`Bounds::line_bytes`].
    #[error("a line of a reply is longer than {0} bytes")]
    LineTooLong(usize),
    /// More than [`Bounds::bulk_bytes`].
    #[error("a string of a reply is longer than {0} bytes")]
    BulkTooLong(usize),
    /// More than [`Bounds::elements`].
    #[error("a reply has more than {0} elements")]
    TooManyElements(usize),
    /// More than [`Bounds::reply_bytes`].
    #[error("a reply is longer than {0} bytes")]
    ReplyTooLong(usize),
    /// More than [`Bounds::depth`].
    #[error("a reply is nested deeper than {0} arrays")]
    TooDeep(usize),
}

/// The first bytes of replies.
const KINDS: &[u8] = b"+-:$*_,#!=(%~|>";

/// An array, map, set or the like whose elements are still arriving.
#[derive(Debug)]
struct Open {
    kind: u8,
    missing: usize,
    items: Vec<Reply>,
}

impl Open {
    /// The whole reply; `None` if this is an attribute of the reply that follows.
    fn close(self) -> Option<Reply> {
        match self.kind {
            b'*' => Some(Reply::Array(self.items)),
            b'~' => Some(Reply::Set(self.items)),
            b'>' => Some(Reply::Push(self.items)),
            b'%' => {
                let mut items = self.items.into_iter();
                let pairs = std::iter::from_fn(|| Some((items.next()?, items.next()?)));
                Some(Reply::Map(pairs.collect()))
            }
            _ => None,
        }
    }
}

/// Turns bytes into replies.
#[derive(Debug)]
pub(crate) struct Parser {
    bounds: Bounds,
    buffer: Vec<u8>,
    /// First byte of `buffer` that was not parsed.
    at: usize,
    /// Bytes from `at` that hold no line feed.
    searched: usize,
    /// Kind and announced length of the string that begins at `at`.
    bulk: Option<(u8, usize)>,
    open: Vec<Open>,
    /// Elements and bytes of the reply at hand.
    elements: usize,
    bytes: usize,
}

impl Parser {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            bulk: None,
            open: Vec::new(),
            elements: 0,
            bytes: 0,
        }
    }

    /// Takes bytes that were received.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        // Parsed bytes are dropped once they are the larger part, so that each byte moves at most
        // once on average.
        if self.at > self.buffer.len() / 2 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether no unparsed byte and no open reply is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.buffer.len() && self.open.is_empty() && self.bulk.is_none()
    }

    /// The next whole reply, or `None` until more bytes come. After an error the stream is lost.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, ParseError> {
        loop {
            let Some(element) = self.element()? else { return Ok(None) };
            let mut finished = Some(element);
            // A finished element may finish the arrays around it.
            while let Some(reply) = finished {
                let Some(mut open) = self.open.pop() else {
                    self.elements = 0;
                    self.bytes = 0;
                    return Ok(Some(reply));
                };
                open.items.push(reply);
                open.missing -= 1;
                finished = if open.missing == 0 {
                    open.close()
                } else {
                    self.open.push(open);
                    None
                };
            }
        }
    }

    /// The next element that is complete by itself; begins arrays on the way.
    fn element(&mut self) -> Result<Option<Reply>, ParseError> {
        loop {
            if let Some((kind, length)) = self.bulk {
                return self.string(kind, length);
            }
            let Some(end) = self.line()? else { return Ok(None) };
            let line = &self.buffer[self.at..end];
            let (kind, rest) = (line[0], &line[1..]);
            let done = match kind {
                b'+' => Some(Reply::Status(String::from_utf8_lossy(rest).into_owned())),
                b'-' => Some(Reply::Error(ServerError::parse(rest))),
                b':' => Some(Reply::Integer(number(rest)?)),
                b'_' if rest.is_empty() => Some(Reply::Null),
                b'#' if rest == b"t" => Some(Reply::Boolean(true)),
                b'#' if rest == b"f" => Some(Reply::Boolean(false)),
                b'_' | b'#' => return Err(ParseError::Form),
                b',' => Some(Reply::Double(double(rest)?)),
                b'(' => Some(Reply::BigNumber(big_number(rest)?)),
                b'$' if rest == b"-1" => Some(Reply::Null),
                b'*' if rest == b"-1" => Some(Reply::NullArray),
                b'$' | b'!' | b'=' => {
                    let length = length(rest)?;
                    if length > self.bounds.bulk_bytes {
                        return Err(ParseError::BulkTooLong(self.bounds.bulk_bytes));
                    }
                    self.count_bytes(length)?;
                    self.bulk = Some((kind, length));
                    None
                }
                b'*' | b'~' | b'>' | b'%' | b'|' => {
                    let length = length(rest)?;
                    self.begin(kind, length)?
                }
                other => return Err(ParseError::Kind(other)),
            };
            self.count_bytes(end - self.at)?;
            self.at = end + 2;
            if done.is_some() {
                return Ok(done);
            }
        }
    }

    /// The end of the current line, without its line end. A line has at least its first byte.
    fn line(&mut self) -> Result<Option<usize>, ParseError> {
        let bytes = &self.buffer[self.at..];
        let Some(first) = bytes.first() else { return Ok(None) };
        if !KINDS.contains(first) {
            return Err(ParseError::Kind(*first));
        }
        let longest = self.bounds.line_bytes;
        let found = bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(found) = found.map(|offset| self.searched + offset) else {
            self.searched = bytes.len();
            // The last byte may be the carriage return of the line end.
            if bytes.len() > longest + 1 {
                return Err(ParseError::LineTooLong(longest));
            }
            return Ok(None);
        };
        self.searched = 0;
        if found > longest + 1 {
            return Err(ParseError::LineTooLong(longest));
        }
        if bytes[found - 1] != b'\r' {
            return Err(ParseError::LineEnd);
        }
        Ok(Some(self.at + found - 1))
    }

    fn string(&mut self, kind: u8, length: usize) -> Result<Option<Reply>, ParseError> {
        let Some(bytes) = self.buffer.get(self.at..self.at + length + 2) else { return Ok(None) };
        let (string, end) = bytes.split_at(length);
        if end != b"\r\n" {
            return Err(ParseError::BulkEnd);
        }
        let reply = match kind {
            b'!' => Reply::Error(ServerError::parse(string)),
            b'=' => match string {
                [a, b, c, b':', text @ ..] => {
                    Reply::Verbatim { format: [*a, *b, *c], text: text.to_vec() }
                }
                _ => return Err(ParseError::Form),
            },
            _ => Reply::Bulk(string.to_vec()),
        };
        self.at += length + 2;
        self.bulk = None;
        Ok(Some(reply))
    }

    /// Begins a reply with elements; it is complete if it has none.
    fn begin(&mut self, kind: u8, length: usize) -> Result<Option<Reply>, ParseError> {
        let length = if b"%|".contains(&kind) { length.saturating_mul(2) } else { length };
        let open = Open { kind, missing: length, items: Vec::new() };
        if length == 0 {
            return Ok(open.close());
        }
        self.elements = self.elements.saturating_add(length);
        if self.elements > self.bounds.elements {
            return Err(ParseError::TooManyElements(self.bounds.elements));
        }
        if self.open.len() == self.bounds.depth {
            return Err(ParseError::TooDeep(self.bounds.depth));
        }
        self.open.push(open);
        Ok(None)
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<(), ParseError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bounds.reply_bytes {
            return Err(ParseError::ReplyTooLong(self.bounds.reply_bytes));
        }
        Ok(())
    }
}

/// A decimal number, with an optional minus.
fn number(digits: &[u8]) -> Result<i64, ParseError> {
    if digits.first() == Some(&b'+') {
        return Err(ParseError::Number);
    }
    let text = std::str::from_utf8(digits).map_err(|_| ParseError::Number)?;
    text.parse().map_err(|_| ParseError::Number)
}

/// An announced length.
fn length(digits: &[u8]) -> Result<usize, ParseError> {
    usize::try_from(number(digits)?).map_err(|_| ParseError::Number)
}

fn double(text: &[u8]) -> Result<f64, ParseError> {
    match text {
        b"inf" => return Ok(f64::INFINITY),
        b"-inf" => return Ok(f64::NEG_INFINITY),
        b"nan" | b"-nan" => return Ok(f64::NAN),
        _ => {}
    }
    // Only digits and signs: other spellings that Rust parses are refused.
    let is_plain = text.iter().all(|byte| b"0123456789+-.eE".contains(byte));
    let text = std::str::from_utf8(text).ok().filter(|_| is_plain);
    text.and_then(|text| text.parse().ok()).ok_or(ParseError::Number)
}

fn big_number(text: &[u8]) -> Result<String, ParseError> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ParseError::Number);
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: Bounds =
        Bounds { line_bytes: 24, bulk_bytes: 16, elements: 12, reply_bytes: 96, depth: 3 };

    /// All replies of a stream cut into these pieces, and its end.
    fn parse<'a>(
        bounds: Bounds,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<Reply>, Result<bool, ParseError>) {
        let mut parser = Parser::new(bounds);
        let mut replies = Vec::new();
        for piece in pieces {
            parser.feed(piece);
            loop {
                match parser.next() {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => break,
                    Err(error) => return (replies, Err(error)),
                }
            }
        }
        (replies, Ok(parser.is_empty()))
    }

    fn one(bytes: &[u8]) -> Reply {
        let (mut replies, end) = parse(Bounds::default(), [bytes]);
        assert_eq!((replies.len(), end), (1, Ok(true)));
        replies.remove(0)
    }

    fn fails(bytes: &[u8], error: ParseError) {
        assert_eq!(parse(SMALL, [bytes]), (Vec::new(), Err(error)), "{:?}", bytes.escape_ascii());
    }

    #[test]
    fn each_kind_of_reply() {
        assert_eq!(one(b"+OK\r\n"), Reply::Status("OK".into()));
        assert_eq!(one(b"+\r\n"), Reply::Status(String::new()));
        assert_eq!(one(b":-12\r\n"), Reply::Integer(-12));
        assert_eq!(one(b"$3\r\na\r\n\r\n"), Reply::Bulk(b"a\r\n".to_vec()));
        assert_eq!(one(b"$0\r\n\r\n"), Reply::Bulk(Vec::new()));
        assert_eq!(one(b"$-1\r\n"), Reply::Null);
        assert_eq!(one(b"*-1\r\n"), Reply::NullArray);
        assert_eq!(one(b"*0\r\n"), Reply::Array(Vec::new()));
        assert_eq!(
            one(b"*3\r\n*1\r\n:1\r\n*0\r\n$1\r\nx\r\n"),
            Reply::Array(vec![
                Reply::Array(vec![Reply::Integer(1)]),
                Reply::Array(Vec::new()),
                Reply::Bulk(b"x".to_vec()),
            ])
        );
    }

    #[test]
    fn errors_have_a_code() {
        let Reply::Error(error) = one(b"-TRYAGAIN too many, try again\r\n") else { panic!() };
        assert_eq!((&*error.code, &*error.message), ("TRYAGAIN", "too many, try again"));
        let Reply::Error(error) = one(b"-ERR\r\n") else { panic!() };
        assert_eq!((&*error.code, &*error.message), ("ERR", ""));
    }

    #[test]
    fn each_kind_of_resp3() {
        let text = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        assert_eq!(one(b"_\r\n"), Reply::Null);
        assert_eq!(one(b"#t\r\n"), Reply::Boolean(true));
        assert_eq!(one(b"#f\r\n"), Reply::Boolean(false));
        assert_eq!(one(b",-1.25e3\r\n"), Reply::Double(-1250.0));
        assert_eq!(one(b",10\r\n"), Reply::Double(10.0));
        assert_eq!(one(b",inf\r\n"), Reply::Double(f64::INFINITY));
        assert_eq!(one(b",-inf\r\n"), Reply::Double(f64::NEG_INFINITY));
        assert!(matches!(one(b",nan\r\n"), Reply::Double(number) if number.is_nan()));
        let big = "-3492890328409238509324850943850943825024385";
        assert_eq!(one(format!("({big}\r\n").as_bytes()), Reply::BigNumber(big.into()));
        let verbatim = Reply::Verbatim { format: *b"mkd", text: b"# a\r\n".to_vec() };
        assert_eq!(one(b"=9\r\nmkd:# a\r\n\r\n"), verbatim);
        let error = ServerError { code: "WRONGTYPE".into(), message: "two\r\nlines".into() };
        assert_eq!(one(b"!20\r\nWRONGTYPE two\r\nlines\r\n"), Reply::Error(error));
        assert_eq!(one(b"~2\r\n:1\r\n#t\r\n"), {
            Reply::Set(vec![Reply::Integer(1), Reply::Boolean(true)])
        });
        assert_eq!(one(b">2\r\n$1\r\na\r\n_\r\n"), Reply::Push(vec![text("a"), Reply::Null]));
        assert_eq!(
            one(b"%2\r\n$1\r\na\r\n%1\r\n:1\r\n~0\r\n$1\r\nb\r\n%0\r\n"),
            Reply::Map(vec![
                (text("a"), Reply::Map(vec![(Reply::Integer(1), Reply::Set(Vec::new()))])),
                (text("b"), Reply::Map(Vec::new())),
            ])
        );
    }

    #[test]
    fn attributes_are_left_out_wherever_they_are() {
        assert_eq!(one(b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n"), Reply::Bulk(b"x".to_vec()));
        assert_eq!(one(b"|0\r\n:1\r\n"), Reply::Integer(1));
        // One for an element, with an array in it, and one for the array around it.
        assert_eq!(
            one(b"|1\r\n+a\r\n*1\r\n:9\r\n*2\r\n:1\r\n|1\r\n+b\r\n_\r\n:2\r\n"),
            Reply::Array(vec![Reply::Integer(1), Reply::Integer(2)])
        );
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        fails(b"HTTP/1.1 400\r\n", ParseError::Kind(b'H'));
        fails(b"_x\r\n", ParseError::Form);
        fails(b"#\r\n", ParseError::Form);
        fails(b"#true\r\n", ParseError::Form);
        fails(b"=3\r\ntxt\r\n", ParseError::Form);
        fails(b",\r\n", ParseError::Number);
        fails(b",infinity\r\n", ParseError::Number);
        fails(b",0x10\r\n", ParseError::Number);
        fails(b"(1.5\r\n", ParseError::Number);
        fails(b"(-\r\n", ParseError::Number);
        for kind in ["!", "=", "%", "~", ">", "|"] {
            fails(format!("{kind}-1\r\n").as_bytes(), ParseError::Number);
            fails(format!("{kind}?\r\n").as_bytes(), ParseError::Number);
        }
        fails(b"\r\n", ParseError::Kind(b'\r'));
        fails(b"+OK\n", ParseError::LineEnd);
        fails(b":\r\n", ParseError::Number);
        fails(b":+1\r\n", ParseError::Number);
        fails(b":99999999999999999999\r\n", ParseError::Number);
        fails(b"$-2\r\n", ParseError::Number);
        fails(b"*-2\r\n", ParseError::Number);
        fails(b"$1\r\nabc", ParseError::BulkEnd);
    }

    #[test]
    fn each_bound_holds() {
        let line = |length: usize| [b"+".as_slice(), &vec![b'x'; length - 1], b"\r\n"].concat();
        assert_eq!(parse(SMALL, [&*line(24)]).1, Ok(true));
        fails(&line(25), ParseError::LineTooLong(24));
        // Even a line that never ends.
        fails(&[b'+'; 26], ParseError::LineTooLong(24));
        assert_eq!(parse(SMALL, [b"$16\r\n0123456789abcdef\r\n".as_slice()]).1, Ok(true));
        fails(b"$17\r\n", ParseError::BulkTooLong(16));
        fails(b"$9223372036854775807\r\n", ParseError::BulkTooLong(16));
        fails(b"*13\r\n", ParseError::TooManyElements(12));
        for kind in ["*", "~", ">", "%", "|"] {
            let most = format!("{kind}9223372036854775807\r\n");
            fails(most.as_bytes(), ParseError::TooManyElements(12));
        }
        fails(b"%7\r\n", ParseError::TooManyElements(12));
        fails(b"!17\r\n", ParseError::BulkTooLong(16));
        fails(b"%1\r\n~1\r\n>1\r\n|1\r\n", ParseError::TooDeep(3));
        // Elements of nested arrays count.
        fails(b"*2\r\n*8\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n*3\r\n", {
            ParseError::TooManyElements(12)
        });
        fails(b"*1\r\n*1\r\n*1\r\n*1\r\n", ParseError::TooDeep(3));
        let string = b"$16\r\n0123456789abcdef\r\n".as_slice();
        fails(&[b"*6\r\n", string, string, string, string, string].concat(), {
            ParseError::ReplyTooLong(96)
        });
        // The count begins anew for each reply.
        assert_eq!(parse(SMALL, [&*string.repeat(20)]).0.len(), 20);
    }

    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            "[ -~]{0,23}".prop_map(|text| format!("+{text}\r\n").into_bytes()),
            "[A-Z]{1,8} [ -~]{0,14}".prop_map(|text| format!("-{text}\r\n").into_bytes()),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..18).prop_map(|string| {
                [format!("${}\r\n", string.len()).as_bytes(), &string, b"\r\n"].concat()
            }),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            Just(b"_\r\n".to_vec()),
            any::<bool>().prop_map(|it| if it { b"#t\r\n".to_vec() } else { b"#f\r\n".to_vec() }),
            any::<f64>()
                .prop_filter("it equals itself", |number| !number.is_nan())
                .prop_map(|number| format!(",{number:e}\r\n").into_bytes()),
            "-?[0-9]{1,20}".prop_map(|digits| format!("({digits}\r\n").into_bytes()),
            "[A-Z]{1,8} [ -~]{0,7}"
                .prop_map(|text| { format!("!{}\r\n{text}\r\n", text.len()).into_bytes() }),
            "[ -~]{0,12}"
                .prop_map(|text| { format!("={}\r\ntxt:{text}\r\n", text.len() + 4).into_bytes() }),
        ];
        let kinds = prop_oneof![Just('*'), Just('~'), Just('>'), Just('%')];
        leaf.prop_recursive(4, 16, 4, move |inner| {
            (kinds.clone(), proptest::collection::vec(inner, 0..4)).prop_map(|(kind, items)| {
                let (count, items) = match kind {
                    '%' => (items.len() / 2, &items[..items.len() / 2 * 2]),
                    _ => (items.len(), &items[..]),
                };
                [format!("{kind}{count}\r\n").as_bytes(), &items.concat()].concat()
            })
        })
    }

    fn cut<'a>(stream: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for place in places.into_iter().chain([stream.len()]) {
            pieces.push(&stream[start..place]);
            start = place;
        }
        pieces
    }

    proptest! {
        /// Replies, some of them beyond a bound, with some bytes overwritten.
        #[test]
        fn any_cut_of_a_stream_parses_the_same(
            replies in proptest::collection::vec(reply(), 0..6),
            damage in proptest::collection::vec(
                (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(b'\n'), Just(b'9')]),
                0..3,
            ),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut stream = replies.concat();
            for (place, byte) in damage {
                if !stream.is_empty() {
                    let place = place.index(stream.len());
                    stream[place] = byte;
                }
            }
            let whole = parse(SMALL, [&*stream]);
            prop_assert_eq!(&parse(SMALL, cut(&stream, &cuts)), &whole);
            prop_assert_eq!(&parse(SMALL, stream.chunks(1)), &whole);
        }

        #[test]
        fn sound_replies_all_come_out(
            replies in proptest::collection::vec(reply(), 0..6),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let stream = replies.concat();
            let (parsed, end) = parse(Bounds::default(), cut(&stream, &cuts));
            prop_assert_eq!((parsed.len(), end), (replies.len(), Ok(true)));
        }
    }
}
