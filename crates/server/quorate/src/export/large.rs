//! Keys that are too long for one answer: they are read in pieces under a `WATCH`, which fails if anything
//! of them changes meanwhile. Then they are read again.

use std::collections::HashSet;

use anyhow::anyhow;
use quorate_rdb::{Form, crc64, write_length, write_string};

use super::stream;
use crate::transfer::{Connection, Reply, Target, Trouble, command, trouble};

/// Items that are asked for at once, unless their answer would be too long: then half as many are, and so
/// on.
pub(super) const ITEMS_AT_ONCE: u64 = 1000;
/// How often a key is read that changes all the time.
const ROUNDS_MAX: u32 = 20;
/// The version that a payload of these forms has.
const VERSION: u16 = 10;

/// What became of it.
pub(super) enum Read {
    /// What `DUMP` would answer, and what `PEXPIRETIME` answers.
    Value {
        payload: Vec<u8>,
        expiry: i64,
    },
    Gone,
    /// It can't be read, and why.
    Not(String),
}

pub(super) fn read(target: &mut Target, key: &[u8]) -> Result<Read, Trouble> {
    read_from(target.connection()?, key)
}

fn read_from(connection: &mut Connection, key: &[u8]) -> Result<Read, Trouble> {
    for _ in 0..ROUNDS_MAX {
        ask(connection, &[b"WATCH", key])?;
        let value = match ask(connection, &[b"TYPE", key])? {
            Reply::Status(kind) => match kind.as_str() {
                "list" => list(connection, key)?,
                "set" => scanned(connection, key, Form::Set)?,
                "hash" => scanned(connection, key, Form::Hash)?,
                "zset" => sorted_set(connection, key)?,
                "stream" => (Form::Stream, stream::read(connection, key)?),
                "none" => return Ok(Read::Gone),
                _ => {
                    ask(connection, &[b"UNWATCH"])?;
                    return Ok(Read::Not(format!("{kind} is no type that is known here")));
                }
            },
            other => return Err(strange("TYPE", &other)),
        };
        let (form, value) = value;
        ask(connection, &[b"MULTI"])?;
        ask(connection, &[b"PEXPIRETIME", key])?;
        match ask(connection, &[b"EXEC"])? {
            Reply::Array(parts) => {
                let [Reply::Int(expiry)] = parts[..] else {
                    return Err(strange("EXEC", &Reply::Array(parts)));
                };
                return Ok(Read::Value { payload: payload(form, &value), expiry });
            }
            // It has changed.
            Reply::Null => {}
            other => return Err(strange("EXEC", &other)),
        }
    }
    Ok(Read::Not(format!("it is read in pieces, and changed meanwhile, {ROUNDS_MAX} times")))
}

fn payload(form: Form, value: &[u8]) -> Vec<u8> {
    let mut payload = vec![form as u8];
    payload.extend_from_slice(value);
    payload.extend_from_slice(&VERSION.to_le_bytes());
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    payload
}

/// The form of a value, and the value in it.
type Value = (Form, Vec<u8>);

/// A value that is items, one behind the other.
fn value(form: Form, count: u64, mut items: Vec<u8>) -> Value {
    let mut value = Vec::with_capacity(items.len() + 9);
    write_length(count as usize, &mut value);
    value.append(&mut items);
    (form, value)
}

fn list(connection: &mut Connection, key: &[u8]) -> Result<Value, Trouble> {
    let (mut count, mut items) = (0, Vec::new());
    let mut at_once = ITEMS_AT_ONCE;
    loop {
        let elements = range(connection, &[b"LRANGE", key], count, &mut at_once, &[])?;
        if elements.is_empty() {
            return Ok(value(Form::List, count, items));
        }
        count += elements.len() as u64;
        elements.iter().for_each(|element| write_string(element, &mut items));
    }
}

fn sorted_set(connection: &mut Connection, key: &[u8]) -> Result<Value, Trouble> {
    let (mut count, mut items) = (0, Vec::new());
    let mut at_once = ITEMS_AT_ONCE;
    loop {
        let more: &[&[u8]] = &[b"WITHSCORES"];
        let parts = range(connection, &[b"ZRANGE", key], count, &mut at_once, more)?;
        if parts.is_empty() {
            return Ok(value(Form::SortedSet, count, items));
        }
        for pair in parts.chunks(2) {
            let score = pair.get(1).and_then(|score| std::str::from_utf8(score).ok());
            let score = score.and_then(|score| score.parse::<f64>().ok());
            let score = score.ok_or_else(|| anyhow!("ZRANGE answered a member without a score"))?;
            write_string(&pair[0], &mut items);
            items.extend_from_slice(&score.to_le_bytes());
            count += 1;
        }
    }
}

/// Items from the place `from` on.
fn range(
    connection: &mut Connection,
    words: &[&[u8]],
    from: u64,
    at_once: &mut u64,
    more: &[&[u8]],
) -> Result<Vec<Vec<u8>>, Trouble> {
    loop {
        let (first, last) = (from.to_string(), (from + *at_once - 1).to_string());
        let words = [words, &[first.as_bytes(), last.as_bytes()], more].concat();
        if let Some(reply) = ask_for_some(connection, &words, at_once)? {
            return strings(reply);
        }
    }
}

/// A set or a hash: members, or fields with their values, which may be told twice.
fn scanned(connection: &mut Connection, key: &[u8], form: Form) -> Result<Value, Trouble> {
    let (name, width): (&[u8], _) = match form {
        Form::Set => (b"SSCAN", 1),
        _ => (b"HSCAN", 2),
    };
    let mut at_once = ITEMS_AT_ONCE;
    let (mut seen, mut items, mut cursor) = (HashSet::new(), Vec::new(), b"0".to_vec());
    loop {
        let count = at_once.to_string();
        let words = [name, key, &cursor, b"COUNT", count.as_bytes()];
        let Some(reply) = ask_for_some(connection, &words, &mut at_once)? else { continue };
        let parts = match reply {
            Reply::Array(parts) => <[Reply; 2]>::try_from(parts).map_err(Reply::Array),
            other => Err(other),
        };
        let (next, listed) = match parts.map_err(|other| strange("a scan", &other))? {
            [Reply::Bulk(next), listed] => (next, strings(listed)?),
            [other, _] => return Err(strange("a scan", &other)),
        };
        for parts in listed.chunks(width) {
            if seen.insert(parts[0].clone()) {
                parts.iter().for_each(|part| write_string(part, &mut items));
            }
        }
        if next == b"0" {
            return Ok(value(form, seen.len() as u64, items));
        }
        cursor = next;
    }
}

pub(super) fn strings(reply: Reply) -> Result<Vec<Vec<u8>>, Trouble> {
    let Reply::Array(parts) = reply else { return Err(strange("a range", &reply)) };
    let parts = parts.into_iter().map(|part| match part {
        Reply::Bulk(part) => Ok(part),
        other => Err(strange("a range", &other)),
    });
    parts.collect()
}

pub(super) fn ask(connection: &mut Connection, words: &[&[u8]]) -> Result<Reply, Trouble> {
    match send(connection, words)? {
        Reply::Error(error) => Err(refused(words, &error)),
        reply => Ok(reply),
    }
}

/// Asks for so many items. If they are too long for one answer there is none, and fewer are to be asked for.
pub(super) fn ask_for_some(
    connection: &mut Connection,
    words: &[&[u8]],
    at_once: &mut u64,
) -> Result<Option<Reply>, Trouble> {
    match send(connection, words)? {
        Reply::Error(error) if is_too_long(&error) && *at_once > 1 => {
            *at_once /= 2;
            Ok(None)
        }
        Reply::Error(error) => Err(refused(words, &error)),
        reply => Ok(Some(reply)),
    }
}

fn send(connection: &mut Connection, words: &[&[u8]]) -> Result<Reply, Trouble> {
    let mut bytes = Vec::new();
    command(words.iter().copied(), &mut bytes);
    connection.send(&bytes)?;
    Ok(connection.reply()?)
}

fn refused(words: &[&[u8]], error: &str) -> Trouble {
    let name = words[0].escape_ascii();
    trouble(error).unwrap_or_else(|| anyhow!("the target answered {error} to {name}").into())
}

/// Whether a command was refused since its answer would be too long.
pub(super) fn is_too_long(error: &str) -> bool {
    error.contains("would be longer than")
}

pub(super) fn strange(name: &str, reply: &Reply) -> Trouble {
    anyhow!("the target answered {name} with {reply:?}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write};
    use std::net::{TcpListener, TcpStream};

    /// What is read while it changes is thrown away: the second look finds the list as it stays.
    #[test]
    fn a_key_that_changes_meanwhile_is_read_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let look = |element: &str, end: &str| {
            let start = "+OK\r\n+list\r\n";
            format!("{start}*1\r\n$1\r\n{element}\r\n*0\r\n+OK\r\n+QUEUED\r\n{end}")
        };
        let answers = look("a", "*-1\r\n") + &look("b", "*1\r\n:77\r\n");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.write_all(answers.as_bytes()).expect("it reads");
            let mut commands = Vec::new();
            stream.read_to_end(&mut commands).expect("it closes");
            commands
        });
        let stream = TcpStream::connect(address).expect("it listens");
        let read = read_from(&mut Connection::new(stream), b"k");
        let Ok(Read::Value { payload, expiry }) = read else { panic!("it is there") };
        assert_eq!(expiry, 77);
        assert_eq!(payload[..payload.len() - 10], [1, 1, 1, b'b']);
        let commands = server.join().expect("it has answered all");
        let commands = String::from_utf8(commands).expect("they are text");
        assert_eq!(commands.matches("WATCH").count(), 2);
    }
}
