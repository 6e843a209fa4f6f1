//! Transactions as Redis commands, and in the Redis protocol.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Write;
use std::rc::Rc;

use crate::{Answer, Content, Dialect, Layout, Misunderstood, Step, Transaction};

/// The first commands of a connection.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// Sent with `AUTH`.
    pub password: Option<String>,
    /// Sent with `SELECT`, unless it is 0.
    pub database: u8,
}

/// How the commands of a transaction are put together.
#[derive(Clone, Debug)]
pub enum Framing {
    /// Between `MULTI` and `EXEC`, so that they happen together or not at all.
    Block,
    /// Each on its own, for transactions of one command.
    Single,
    /// Each on its own; the numbers read are added up in this cell.
    Sum(Rc<Cell<i64>>),
}

/// Speaks transactions: `MULTI`, a `GET` for each key to read, a `SET` or `INCRBY` for each key to
/// write, and `EXEC`. All commands are sent at once.
#[derive(Clone, Debug)]
pub struct Transactions {
    layout: Layout,
    greeting: Greeting,
    framing: Framing,
    /// Requests without an answer, in order.
    awaited: VecDeque<Awaited>,
    /// The first error among the replies to the first of these requests.
    error: Option<String>,
    /// Whether one of those replies is a null.
    missed: bool,
    /// Reused while commands are spelled.
    scratch: Vec<u8>,
}

/// Replies that belong together.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    replies: usize,
    /// The command of the greeting, if it is one: every request rests on it.
    greeting: Option<&'static str>,
}

impl Transactions {
    /// A connection's state before it is made.
    pub fn new(layout: Layout, greeting: Greeting, framing: Framing) -> Self {
        Self {
            layout,
            greeting,
            framing,
            awaited: VecDeque::new(),
            error: None,
            missed: false,
            scratch: Vec::new(),
        }
    }

    /// Notes one of several replies.
    fn note(&mut self, reply: &Reply<'_>) {
        self.missed |= reply.has_null;
        if let (Some(error), None) = (reply.error, &self.error) {
            self.error = Some(String::from_utf8_lossy(error).into_owned());
        }
        if let (Framing::Sum(total), Some(number)) = (&self.framing, reply.number) {
            total.set(total.get() + number);
        }
    }

    /// The answer to a request whose last reply is this one.
    fn judge(&mut self, last: &Reply<'_>) -> Answer {
        let missed = std::mem::take(&mut self.missed);
        match self.error.take() {
            Some(error) if error.starts_with("TRYAGAIN") => Answer::Aborted,
            Some(error) => Answer::Failed(error),
            // The null stands for the list of replies: a watched key changed.
            None if last.is_null && matches!(self.framing, Framing::Block) => Answer::Aborted,
            None if missed => Answer::Missed,
            None => Answer::Good,
        }
    }
}

impl Dialect for Transactions {
    type Request = Transaction;

    fn greet(&mut self, out: &mut Vec<u8>) {
        if let Some(password) = &self.greeting.password {
            command(&[b"AUTH", password.as_bytes()], out);
            self.awaited.push_back(Awaited { replies: 1, greeting: Some("AUTH") });
        }
        if self.greeting.database > 0 {
            command(&[b"SELECT", self.greeting.database.to_string().as_bytes()], out);
            self.awaited.push_back(Awaited { replies: 1, greeting: Some("SELECT") });
        }
    }

    fn request(&mut self, transaction: &Transaction, out: &mut Vec<u8>) {
        let is_block = matches!(self.framing, Framing::Block);
        if is_block {
            command(&[b"MULTI"], out);
        }
        each_command(self.layout, transaction, &mut self.scratch, |words| command(words, out));
        if is_block {
            command(&[b"EXEC"], out);
        }
        let commands = transaction.gets.len() + transaction.puts.len();
        let replies = commands + if is_block { 2 } else { 0 };
        self.awaited.push_back(Awaited { replies, greeting: None });
    }

    fn answer(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
        let Some(reply) = scan(input)? else { return Ok(None) };
        self.note(&reply);
        let used = reply.bytes;
        let Some(awaited) = self.awaited.front_mut() else {
            // A server that is about to close the connection says this.
            return Ok(Some(Step { used, answer: None }));
        };
        awaited.replies -= 1;
        if awaited.replies > 0 {
            return Ok(Some(Step { used, answer: None }));
        }
        let greeting = awaited.greeting;
        self.awaited.pop_front();
        let answer = match (greeting, self.judge(&reply)) {
            (Some(command), Answer::Failed(error)) => {
                return Err(Misunderstood(format!("refuses {command}: {error}")));
            }
            (Some(_), _) => None,
            (None, answer) => Some(answer),
        };
        Ok(Some(Step { used, answer }))
    }

    fn complaint(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

/// Spells the commands of a transaction, each as its name and its arguments, in order: keys are
/// read before they are written. `scratch` is memory to reuse.
pub fn each_command(
    layout: Layout,
    transaction: &Transaction,
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[&[u8]]),
) {
    for &key in &transaction.gets {
        scratch.clear();
        layout.key(key, scratch);
        each(&[b"GET", scratch]);
    }
    for put in &transaction.puts {
        scratch.clear();
        layout.key(put.key, scratch);
        let key_bytes = scratch.len();
        let name: &[u8] = match put.content {
            Content::Filler(number) => {
                layout.value(number, scratch);
                b"SET"
            }
            Content::Number(number) => {
                write!(scratch, "{number}").expect("a vector takes everything");
                b"SET"
            }
            Content::Sum(change) => {
                write!(scratch, "{change}").expect("a vector takes everything");
                b"INCRBY"
            }
        };
        let (key, value) = scratch.split_at(key_bytes);
        each(&[name, key, value]);
    }
}

/// Appends a command, its name first.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    write!(out, "*{}\r\n", words.len()).expect("a vector takes everything");
    for word in words {
        write!(out, "${}\r\n", word.len()).expect("a vector takes everything");
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// A whole reply, as far as a load generator needs to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// How long it is.
    pub bytes: usize,
    /// The first error in it, which may be one of many elements.
    pub error: Option<&'a [u8]>,
    /// Whether it is a null itself.
    pub is_null: bool,
    /// Whether it is a null or has one among its elements.
    pub has_null: bool,
    /// The number, if the reply is an integer or a string of decimal digits; elements don't count.
    pub number: Option<i64>,
}

/// Finds the first reply in the input; `None` if the reply has not arrived completely.
///
/// # Errors
/// [`Misunderstood`] if this is not the Redis protocol, version 2.
pub fn scan(input: &[u8]) -> Result<Option<Reply<'_>>, Misunderstood> {
    let Some(first) = Element::read(input)? else { return Ok(None) };
    let is_null = first.kind == Sort::Null;
    let number = if first.kind == Sort::Text { number(first.text) } else { None };
    let mut reply = Reply { bytes: 0, error: None, is_null, has_null: false, number };
    let (mut next, mut missing) = (first, 1);
    loop {
        reply.bytes += next.bytes;
        missing += next.elements;
        missing -= 1;
        match next.kind {
            Sort::Error => reply.error = reply.error.or(Some(next.text)),
            Sort::Null => reply.has_null = true,
            Sort::Text => {}
        }
        if missing == 0 {
            return Ok(Some(reply));
        }
        let Some(element) = Element::read(&input[reply.bytes..])? else { return Ok(None) };
        next = element;
    }
}

/// The sort of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Error,
    Null,
    Text,
}

/// A reply without its elements.
struct Element<'a> {
    kind: Sort,
    bytes: usize,
    text: &'a [u8],
    /// The number of replies that follow as its elements.
    elements: usize,
}

impl<'a> Element<'a> {
    fn read(input: &'a [u8]) -> Result<Option<Self>, Misunderstood> {
        let Some(&sign) = input.first() else { return Ok(None) };
        if !b"+-:$*".contains(&sign) {
            return Err(foreign(input));
        }
        let Some(line_end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = input[1..line_end].trim_ascii_end();
        let bytes = line_end + 1;
        let kind = if sign == b'-' { Sort::Error } else { Sort::Text };
        if !b"$*".contains(&sign) {
            return Ok(Some(Self { kind, bytes, text: line, elements: 0 }));
        }
        let length = number(line).ok_or_else(|| foreign(input))?;
        let Ok(length) = usize::try_from(length) else {
            return Ok(Some(Self { kind: Sort::Null, bytes, text: line, elements: 0 }));
        };
        if sign == b'*' {
            return Ok(Some(Self { kind, bytes, text: line, elements: length }));
        }
        let Some(text) = input.get(bytes..bytes + length) else { return Ok(None) };
        let bytes = bytes + length + b"\r\n".len();
        Ok((input.len() >= bytes).then_some(Self { kind, bytes, text, elements: 0 }))
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn foreign(input: &[u8]) -> Misunderstood {
    let line = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(80)]).trim_end().to_owned();
    Misunderstood(format!("does not speak the Redis protocol: it answers {line:?}"))
}

#[cfg(test)]
#[path = "redis_tests.rs"]
mod tests;
