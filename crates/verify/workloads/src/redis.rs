//! Transactions as Redis commands, and in the Redis protocol.

use std::collections::VecDeque;
use std::io::Write;

use crate::layout::{CONTEXT, LOAD};
use crate::{Answer, Content, Dialect, Layout, Misunderstood, Put, Rule, Step, Tells, Transaction};

/// The first commands of a connection.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// Sent with `AUTH`.
    pub password: Option<String>,
    /// Sent with `SELECT`, unless it is 0.
    pub database: u8,
}

/// How the commands of a transaction are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Between `MULTI` and `EXEC`, so that they happen together or not at all. Rules are left out.
    Block,
    /// Each on its own, for transactions of one command.
    Single,
    /// As `Block`; a transaction with a [`Rule`] reads its keys under `WATCH` first, decides, and
    /// sends what it writes then. One transaction may be under way on a connection.
    Watch,
}

impl Framing {
    /// Whether the transaction reads first and writes then.
    pub fn has_two_steps(self, transaction: &Transaction) -> bool {
        self == Self::Watch && transaction.rule != Rule::Free
    }
}

/// Speaks transactions: `MULTI`, a `GET` for each key to read, a `SET` or `INCRBY` for each key to
/// write, and `EXEC`. All commands are sent at once, unless the transaction reads first.
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
    /// The sum of the integers in them.
    integers: i64,
    /// The numbers in them, of a transaction that reads first.
    found: Vec<i64>,
    /// A transaction that reads: what it writes is decided when its keys have been read.
    undecided: Option<Transaction>,
    /// Reused while commands are spelled.
    scratch: Vec<u8>,
}

/// Replies that belong together.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    replies: usize,
    what: What,
}

/// What replies answer.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The command of the greeting: every request rests on it.
    Greeting(&'static str),
    /// `WATCH` and the reads of a transaction.
    Reads,
    /// A transaction that tells this.
    Transaction(Tells),
    /// The writes of a transaction that has read, which add this to numbers.
    Writes(i64),
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
            integers: 0,
            found: Vec::new(),
            undecided: None,
            scratch: Vec::new(),
        }
    }

    /// Notes one of several replies.
    fn note(&mut self, reply: &Reply<'_>) {
        self.missed |= reply.has_null;
        if let (Some(error), None) = (reply.error, &self.error) {
            self.error = Some(String::from_utf8_lossy(error).into_owned());
        }
        self.integers += reply.integers;
        if self.undecided.is_some() && !reply.is_status {
            self.found.push(reply.number.unwrap_or_default());
        }
    }

    /// The answer to a request whose last reply is this one.
    fn judge(&mut self, last: &Reply<'_>, what: What) -> Answer {
        let missed = std::mem::take(&mut self.missed);
        let integers = std::mem::take(&mut self.integers);
        let error = self.error.take();
        match (error, what) {
            (Some(error), _) if error.starts_with("TRYAGAIN") => Answer::Aborted,
            (Some(error), _) => Answer::Failed(error),
            // The null stands for the list of replies: a watched key changed.
            (None, What::Transaction(_) | What::Writes(_))
                if last.is_null && self.framing != Framing::Single =>
            {
                Answer::Aborted
            }
            (None, What::Writes(added)) => Answer::Told(Some(added)),
            (None, What::Transaction(Tells::Integers)) => Answer::Told(Some(integers)),
            (None, What::Transaction(Tells::Value)) => Answer::Told(last.number),
            (None, _) if missed => Answer::Missed,
            (None, _) => Answer::Good,
        }
    }

    fn await_replies(&mut self, replies: usize, what: What) {
        self.awaited.push_back(Awaited { replies, what });
    }

    /// Appends the commands that read the keys of a transaction.
    fn read(&mut self, transaction: &Transaction, out: &mut Vec<u8>) {
        write!(out, "*{}\r\n$5\r\nWATCH\r\n", 1 + transaction.gets.len())
            .expect("a vector takes everything");
        for &key in &transaction.gets {
            self.scratch.clear();
            self.layout.key(key, &mut self.scratch);
            word(&self.scratch, out);
        }
        each_get(self.layout, transaction, &mut self.scratch, |words| command(words, out));
        self.undecided = Some(transaction.clone());
        self.await_replies(1 + transaction.gets.len(), What::Reads);
    }

    /// The reads of a transaction were answered: appends what it writes. Its answer, if they failed.
    fn go_on(&mut self, last: &Reply<'_>, out: &mut Vec<u8>) -> Option<Answer> {
        let transaction = self.undecided.take().expect("a transaction reads");
        let found = std::mem::take(&mut self.found);
        if let failed @ (Answer::Aborted | Answer::Failed(_)) = self.judge(last, What::Reads) {
            return Some(failed);
        }
        let puts = transaction.decide(&found);
        let added = Transaction::added(&puts);
        if puts.is_empty() {
            command(&[b"UNWATCH"], out);
            self.await_replies(1, What::Writes(added));
        } else {
            command(&[b"MULTI"], out);
            each_put(self.layout, &puts, &mut self.scratch, |words| command(words, out));
            command(&[b"EXEC"], out);
            self.await_replies(puts.len() + 2, What::Writes(added));
        }
        None
    }
}

impl Dialect for Transactions {
    type Request = Transaction;

    fn greet(&mut self, out: &mut Vec<u8>) {
        if let Some(password) = &self.greeting.password {
            command(&[b"AUTH", password.as_bytes()], out);
            self.await_replies(1, What::Greeting("AUTH"));
        }
        if self.greeting.database > 0 {
            command(&[b"SELECT", self.greeting.database.to_string().as_bytes()], out);
            self.await_replies(1, What::Greeting("SELECT"));
        }
    }

    fn request(&mut self, transaction: &Transaction, out: &mut Vec<u8>) {
        if self.framing.has_two_steps(transaction) {
            return self.read(transaction, out);
        }
        let is_block = self.framing != Framing::Single;
        let mut replies = 0;
        if is_block {
            command(&[b"MULTI"], out);
            replies += 2;
        }
        each_command(self.layout, transaction, &mut self.scratch, |words| {
            command(words, out);
            replies += 1;
        });
        if is_block {
            command(&[b"EXEC"], out);
        }
        self.await_replies(replies, What::Transaction(transaction.tells));
    }

    fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
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
        let what = awaited.what;
        self.awaited.pop_front();
        let answer = match what {
            What::Reads => self.go_on(&reply, out),
            What::Greeting(command) => match self.judge(&reply, what) {
                Answer::Failed(error) => {
                    return Err(Misunderstood(format!("refuses {command}: {error}")));
                }
                _ => None,
            },
            What::Transaction(_) | What::Writes(_) => Some(self.judge(&reply, what)),
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
    each_get(layout, transaction, scratch, &mut each);
    each_put(layout, &transaction.puts, scratch, &mut each);
}

/// Spells the commands that read.
pub fn each_get(
    layout: Layout,
    transaction: &Transaction,
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[&[u8]]),
) {
    for &key in &transaction.gets {
        scratch.clear();
        layout.key(key, scratch);
        match layout.is_hash(key) {
            true => each(&[b"HGET", scratch, LOAD]),
            false => each(&[b"GET", scratch]),
        }
    }
}

/// Spells the commands that write.
pub fn each_put(
    layout: Layout,
    puts: &[Put],
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[&[u8]]),
) {
    for put in puts {
        scratch.clear();
        layout.key(put.key, scratch);
        let key_bytes = scratch.len();
        match put.content {
            Content::Filler(number) | Content::FillerIfAbsent(number) => {
                layout.value(put.key, number, scratch);
            }
            Content::Number(number) | Content::Sum(number) => {
                write!(scratch, "{number}").expect("a vector takes everything");
            }
            Content::Load(load) | Content::LoadSum(load) => {
                write!(scratch, "{load}").expect("a vector takes everything");
            }
            Content::Absent => {}
        }
        let number_end = scratch.len();
        if let Content::Load(_) | Content::LoadSum(_) = put.content {
            layout.value(put.key, 0, scratch);
        }
        let (key, rest) = scratch.split_at(key_bytes);
        let (value, context) = rest.split_at(number_end - key_bytes);
        match put.content {
            Content::Filler(_) | Content::Number(_) => each(&[b"SET", key, value]),
            Content::FillerIfAbsent(_) => each(&[b"SETNX", key, value]),
            Content::Absent => each(&[b"DEL", key]),
            Content::Sum(_) => each(&[b"INCRBY", key, value]),
            Content::Load(_) => each(&[b"HSET", key, LOAD, value, CONTEXT, context]),
            Content::LoadSum(_) => {
                each(&[b"HINCRBY", key, LOAD, value]);
                each(&[b"HSET", key, CONTEXT, context]);
            }
        }
    }
}

/// Appends a command, its name first.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    write!(out, "*{}\r\n", words.len()).expect("a vector takes everything");
    words.iter().for_each(|bytes| word(bytes, out));
}

fn word(bytes: &[u8], out: &mut Vec<u8>) {
    write!(out, "${}\r\n", bytes.len()).expect("a vector takes everything");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
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
    /// Whether it is a status such as `OK`, and no value.
    pub is_status: bool,
    /// The number, if the reply is an integer or a string of decimal digits; elements don't count.
    pub number: Option<i64>,
    /// The sum of all integers among it and its elements.
    pub integers: i64,
}

/// Finds the first reply in the input; `None` if the reply has not arrived completely.
///
/// # Errors
/// [`Misunderstood`] if this is not the Redis protocol, version 2.
pub fn scan(input: &[u8]) -> Result<Option<Reply<'_>>, Misunderstood> {
    let Some(first) = Element::read(input)? else { return Ok(None) };
    let is_null = first.kind == Sort::Null;
    let number = match first.kind {
        Sort::Integer(integer) => Some(integer),
        Sort::Text => number(first.text),
        Sort::Error | Sort::Null => None,
    };
    let is_status = input.first() == Some(&b'+');
    let mut reply =
        Reply { bytes: 0, error: None, is_null, has_null: false, is_status, number, integers: 0 };
    let (mut next, mut missing) = (first, 1);
    loop {
        reply.bytes += next.bytes;
        missing += next.elements;
        missing -= 1;
        match next.kind {
            Sort::Error => reply.error = reply.error.or(Some(next.text)),
            Sort::Null => reply.has_null = true,
            Sort::Integer(integer) => reply.integers += integer,
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
    Integer(i64),
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
        let kind = match sign {
            b'-' => Sort::Error,
            b':' => Sort::Integer(number(line).ok_or_else(|| foreign(input))?),
            _ => Sort::Text,
        };
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
