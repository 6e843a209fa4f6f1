//! Replies as bytes, in RESP2 and RESP3.

use quorate_commands::{Reply, format_decimal, format_double};

/// The version of the protocol that a connection speaks; `HELLO` picks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// What every client speaks.
    #[default]
    Resp2,
    /// Redis 6's: maps, sets, doubles, one null.
    Resp3,
}

impl Protocol {
    /// The number that `HELLO` takes and gives.
    pub const fn number(self) -> u8 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Appends a reply.
pub fn encode(reply: &Reply<'_>, protocol: Protocol, out: &mut Vec<u8>) {
    let resp3 = protocol == Protocol::Resp3;
    match reply {
        Reply::Ok => out.extend_from_slice(b"+OK\r\n"),
        Reply::Status(text) => line(b'+', text.as_bytes(), out),
        Reply::Int(number) => integer(b':', *number, out),
        Reply::Bulk(bytes) => bulk(bytes, out),
        Reply::Null if resp3 => out.extend_from_slice(b"_\r\n"),
        Reply::NullArray if resp3 => out.extend_from_slice(b"_\r\n"),
        Reply::Null => out.extend_from_slice(b"$-1\r\n"),
        Reply::NullArray => out.extend_from_slice(b"*-1\r\n"),
        Reply::Array(items) => sequence(b'*', items, protocol, out),
        Reply::Set(items) => sequence(if resp3 { b'~' } else { b'*' }, items, protocol, out),
        Reply::Pairs(pairs) => {
            array_header(if resp3 { pairs.len() } else { pairs.len() * 2 }, out);
            for (one, other) in pairs {
                if resp3 {
                    array_header(2, out);
                }
                encode(one, protocol, out);
                encode(other, protocol, out);
            }
        }
        Reply::Keyed(pairs) => {
            integer(if resp3 { b'%' } else { b'*' }, pairs.len() as i64, out);
            for (key, value) in pairs {
                if !resp3 {
                    array_header(2, out);
                }
                encode(key, protocol, out);
                encode(value, protocol, out);
            }
        }
        Reply::Map(pairs) => {
            if resp3 {
                integer(b'%', pairs.len() as i64, out);
            } else {
                integer(b'*', pairs.len() as i64 * 2, out);
            }
            for (key, value) in pairs {
                encode(key, protocol, out);
                encode(value, protocol, out);
            }
        }
        Reply::Double(number) if resp3 => line(b',', format_double(*number).as_bytes(), out),
        Reply::Double(number) => bulk(format_double(*number).as_bytes(), out),
        Reply::Bool(is) if resp3 => out.extend_from_slice(if *is { b"#t\r\n" } else { b"#f\r\n" }),
        Reply::Bool(is) => integer(b':', i64::from(*is), out),
        Reply::BigNumber(digits) if resp3 => line(b'(', digits.as_bytes(), out),
        Reply::BigNumber(digits) => bulk(digits.as_bytes(), out),
        Reply::Decimal(number) if resp3 => line(b',', format_decimal(*number).as_bytes(), out),
        Reply::Decimal(number) => bulk(format_decimal(*number).as_bytes(), out),
        Reply::Verbatim(text) if resp3 => {
            integer(b'=', text.len() as i64 + 4, out);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Reply::Verbatim(text) => bulk(text.as_bytes(), out),
        Reply::Error(text) => error(text, out),
        Reply::Noted(noted) => encode(&noted.reply, protocol, out),
        // Never asked for by a client; still an answer that keeps the stream whole.
        Reply::Version(timestamp, existed) => {
            integer(b'*', 2, out);
            integer(b':', timestamp.version as i64, out);
            integer(b':', i64::from(*existed), out);
        }
    }
}

/// Appends an error reply. `text` begins with its code word. A line end inside becomes a blank,
/// since it would forge a reply.
pub(crate) fn error(text: &str, out: &mut Vec<u8>) {
    line(b'-', text.trim_end_matches(['\r', '\n']).as_bytes(), out);
}

/// Appends a bulk string.
#[inline]
pub(crate) fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 24);
    integer(b'$', bytes.len() as i64, out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends the header of an array whose items follow.
#[inline]
pub(crate) fn array_header(items: usize, out: &mut Vec<u8>) {
    integer(b'*', items as i64, out);
}

/// Appends a type byte, a number and the line end.
#[inline]
pub(crate) fn integer(kind: u8, number: i64, out: &mut Vec<u8>) {
    // Type byte, sign, 19 digits, line end: filled from the end.
    let mut text = [0u8; 23];
    text[21] = b'\r';
    text[22] = b'\n';
    let mut at = 21;
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    at -= 1;
    text[at] = kind;
    out.extend_from_slice(&text[at..]);
}

fn sequence(kind: u8, items: &[Reply<'_>], protocol: Protocol, out: &mut Vec<u8>) {
    integer(kind, items.len() as i64, out);
    for item in items {
        encode(item, protocol, out);
    }
}

fn line(kind: u8, text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 3);
    out.push(kind);
    out.extend(text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reply: Reply<'_>, protocol: Protocol) -> String {
        let mut out = Vec::new();
        encode(&reply, protocol, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers_of_every_length() {
        for number in [0, 7, -7, 10, i64::MAX, i64::MIN] {
            assert_eq!(text(Reply::Int(number), Protocol::Resp2), format!(":{number}\r\n"));
        }
    }

    #[test]
    fn each_protocol_has_its_forms() {
        let bulk = |text: &'static str| Reply::Bulk(text.as_bytes().into());
        for (reply, two, three) in [
            (Reply::Null, "$-1\r\n", "_\r\n"),
            (Reply::NullArray, "*-1\r\n", "_\r\n"),
            (
                Reply::Map(vec![(bulk("a"), Reply::Int(1))]),
                "*2\r\n$1\r\na\r\n:1\r\n",
                "%1\r\n$1\r\na\r\n:1\r\n",
            ),
            (
                Reply::Keyed(vec![(bulk("a"), Reply::Int(1))]),
                "*1\r\n*2\r\n$1\r\na\r\n:1\r\n",
                "%1\r\n$1\r\na\r\n:1\r\n",
            ),
            (Reply::Set(vec![Reply::Int(1)]), "*1\r\n:1\r\n", "~1\r\n:1\r\n"),
            (Reply::Double(0.1), "$19\r\n0.10000000000000001\r\n", ",0.10000000000000001\r\n"),
            (Reply::Decimal(0.5), "$3\r\n0.5\r\n", ",0.5\r\n"),
            (Reply::Verbatim("hi".into()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
        ] {
            assert_eq!(text(reply.clone(), Protocol::Resp2), two);
            assert_eq!(text(reply, Protocol::Resp3), three);
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let reply = Reply::Error("ERR unknown command 'a\r\nb'\r\n".into());
        assert_eq!(text(reply, Protocol::Resp2), "-ERR unknown command 'a  b'\r\n");
    }
}
