//! Commands that look at every key of a keyspace, or at many: `KEYS`, `SCAN`, `RANDOMKEY`, and
//! `DBSIZE` where only others can count. A walk goes on in steps over turns of the loop, and asks
//! other nodes for the keys that this one doesn't hold.

use std::borrow::Cow;
use std::collections::{BTreeSet, btree_set};

use quorate_commands::{
    Args, Call, LIBRARIES_KEY, Reply as Answer, Run, ServerCommand, Spec, parse_integer, type_name,
};
use quorate_machine::{Outcome, ValueKind};
use quorate_types::limits as bounds;

use crate::backend::{Backend, Listed};
use crate::connection::Reply;
use crate::dispatch::Context;
use crate::encode::{Protocol, array_header, bulk, error};
use crate::limits;
use crate::pending::answer_or_failure;
use crate::session::{NOT_AN_INTEGER, SYNTAX};
use quorate_commands::glob_match;

const TOO_MANY: &str = "ERR the keys that match take more than 16777216 bytes; use SCAN";
const TOO_LONG: &str = "ERR inside MULTI, KEYS, SCAN and RANDOMKEY look at 10000 keys in all; use them \
                        outside of it, or SCAN with a lower COUNT";
const ELSEWHERE: &str = "ERR inside MULTI, this command needs a node that holds all keys of the \
                         keyspace; send it outside of MULTI, or to such a node";

/// A command that is on its way through a keyspace.
#[derive(Debug)]
pub(crate) struct Walk {
    spec: &'static Spec,
    protocol: Protocol,
    database: u8,
    /// What is looked at next.
    cursor: u64,
    /// Whether other nodes have been asked for what comes next.
    asked: bool,
    /// What the keys take that were found and not sent.
    bytes: usize,
    aim: Aim,
}

/// What a walk is after.
#[derive(Debug)]
enum Aim {
    /// Every key that matches. A scan may see a key twice while the index grows; a list of keys names
    /// each once.
    Keys { pattern: Box<[u8]>, found: BTreeSet<Vec<u8>> },
    /// The keys that match among about so many, in so many steps: most records may have no value.
    Scan { pattern: Option<Box<[u8]>>, kind: Kind, left: usize, steps: usize, found: Vec<Vec<u8>> },
    /// Some key, from a random place on: `wrapped` once the search has begun at the front.
    Random { wrapped: bool, random: u64 },
    /// How many there are.
    Count { keys: u64 },
    /// Nothing further: these are sent.
    Send { keys: btree_set::IntoIter<Vec<u8>> },
}

/// What the values of a scan's keys are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Any,
    Only(ValueKind),
    /// No value is of a type that nobody knows.
    Unknown,
}

impl Kind {
    fn of_name(name: &[u8]) -> Self {
        let mut kinds = (0..=u8::MAX).filter_map(ValueKind::from_u8);
        let named = |kind: &ValueKind| name.eq_ignore_ascii_case(type_name(*kind).as_bytes());
        kinds.find(named).map_or(Self::Unknown, Self::Only)
    }

    fn wanted(self) -> Option<ValueKind> {
        match self {
            Self::Only(kind) => Some(kind),
            Self::Any | Self::Unknown => None,
        }
    }
}

/// What comes of a step.
enum Stepped {
    /// Another one.
    On,
    /// The answer.
    Done(Answer<'static>),
    /// The keys are known.
    Found(BTreeSet<Vec<u8>>),
}

impl Walk {
    fn kind(&self) -> Option<ValueKind> {
        match &self.aim {
            Aim::Scan { kind, .. } => kind.wanted(),
            _ => None,
        }
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.bytes
    }

    /// About how many keys the next step looks for.
    fn limit(&self) -> usize {
        match &self.aim {
            Aim::Scan { left, .. } => limits::WALK_STEP.min(*left),
            _ => limits::WALK_STEP,
        }
    }

    /// Keys have come, or their number.
    fn see(&mut self, listed: Listed) -> Stepped {
        let Listed { next, mut keys, count: listed_count } = listed;
        // No listing shows the libraries of functions.
        keys.retain(|key| key != LIBRARIES_KEY);
        self.cursor = next;
        match &mut self.aim {
            Aim::Keys { pattern, found } => {
                for key in keys {
                    let length = key.len() + limits::KEY_FRAME_BYTES;
                    if glob_match(pattern, &key, false) && found.insert(key) {
                        self.bytes += length;
                    }
                }
                if self.bytes > bounds::REPLY_BYTES_MAX {
                    return Stepped::Done(Answer::error(TOO_MANY));
                }
                if next == 0 {
                    return Stepped::Found(std::mem::take(found));
                }
            }
            Aim::Scan { pattern, kind, left, steps, found } => {
                *left = left.saturating_sub(listed_count as usize);
                *steps -= 1;
                let matches = |key: &Vec<u8>| {
                    let pattern = pattern.as_ref();
                    *kind != Kind::Unknown
                        && pattern.is_none_or(|pattern| glob_match(pattern, key, false))
                };
                found.extend(keys.into_iter().filter(matches));
                let bytes: usize = found.iter().map(Vec::len).sum();
                if next == 0 || *left == 0 || *steps == 0 || bytes >= limits::SCAN_BYTES_ENOUGH {
                    return Stepped::Done(scanned(next, std::mem::take(found)));
                }
            }
            Aim::Random { wrapped, random } => {
                if !keys.is_empty() {
                    let pick = (*random % keys.len() as u64) as usize;
                    let key = keys.into_iter().nth(pick).unwrap_or_default();
                    return Stepped::Done(Answer::Bulk(Cow::Owned(key)));
                }
                if next == 0 && std::mem::replace(wrapped, true) {
                    return Stepped::Done(Answer::Null);
                }
            }
            Aim::Count { keys: count } => {
                *count += listed_count;
                if next == 0 {
                    return Stepped::Done(Answer::Int(*count as i64));
                }
            }
            Aim::Send { .. } => unreachable!("it looks at nothing further"),
        }
        Stepped::On
    }
}

fn scanned(next: u64, keys: Vec<Vec<u8>>) -> Answer<'static> {
    let keys = keys.into_iter().map(|key| Answer::Bulk(Cow::Owned(key))).collect();
    Answer::Array(vec![Answer::Bulk(Cow::Owned(next.to_string().into())), Answer::Array(keys)])
}

impl<B: Backend> Context<'_, B> {
    /// `KEYS`, `SCAN`, `RANDOMKEY`, `DBSIZE`. Everything before is answered; what follows waits.
    pub(crate) fn walk(&mut self, call: &Call<'_>) {
        let alone = self.backend.lists_alone(self.connection.session.database);
        let walk = match self.begin_walk(call, alone) {
            Ok(walk) => walk,
            Err(reply) => return self.reply(call.spec, &reply),
        };
        self.connection.push(Reply::Walk(Box::new(walk)));
        self.connection.barrier = true;
        self.walk_on();
    }

    /// The walk that a command asks for, or what it is answered without one. `here` says whether to
    /// go by what this node counts.
    fn begin_walk(&mut self, call: &Call<'_>, here: bool) -> Result<Walk, Answer<'static>> {
        let database = self.connection.session.database;
        let (mut cursor, args) = (0, call.args);
        let aim = match call.spec.run {
            Run::Server(ServerCommand::Keys) => {
                Aim::Keys { pattern: args.get(1).into(), found: BTreeSet::new() }
            }
            Run::Server(ServerCommand::Scan) => {
                let aim = scan(args)?;
                cursor = scan_cursor(args.get(1)).ok_or(Answer::error("ERR invalid cursor"))?;
                aim
            }
            Run::Server(ServerCommand::Randomkey) => {
                let random = self.backend.random();
                cursor = self.backend.random_cursor(database, random);
                Aim::Random { wrapped: false, random: random.rotate_left(32) }
            }
            _ => {
                if here && let Some(keys) = self.backend.key_count(database) {
                    self.bind_to_lease();
                    // The libraries of functions are no key of the user's.
                    let libraries = self.backend.memory_usage(database, self.now, LIBRARIES_KEY);
                    return Err(Answer::Int(keys as i64 - i64::from(libraries.is_some())));
                }
                Aim::Count { keys: 0 }
            }
        };
        let protocol = self.connection.session.protocol;
        Ok(Walk { spec: call.spec, protocol, database, cursor, asked: false, bytes: 0, aim })
    }

    /// Goes on with the connection's walk, if there is one: until it is at its end, waits for another
    /// node or for the client to read, or has used up its share of the turn.
    pub(crate) fn walk_on(&mut self) {
        let number = self.connection.first;
        loop {
            match self.connection.reply(number) {
                Some(Reply::Walk(walk)) if !walk.asked => {}
                _ => return,
            }
            let Some(Reply::Walk(mut walk)) = self.take(number) else { return };
            let ends = if let Aim::Send { keys } = &mut walk.aim {
                let (sent, bytes) = (keys.len() == 0, self.send(number, keys));
                walk.bytes = walk.bytes.saturating_sub(bytes as usize);
                self.spend(bytes / limits::BYTES_PER_WORK + 1);
                sent
            } else {
                self.step(number, &mut walk)
            };
            if ends {
                return self.connection.finish_begun(number);
            }
            let is_sending = matches!(walk.aim, Aim::Send { .. });
            if let Some(reply) = self.connection.reply(number) {
                *reply = Reply::Walk(walk);
            }
            if is_sending && self.connection.written() >= limits::OUTPUT_PAUSE_BYTES {
                return;
            }
            if !self.core.turn.has_time(&self.connection.share) {
                return self.core.postpone(self.connection, self.id);
            }
        }
    }

    /// Appends the next keys of a reply that has begun; returns how many bytes they take.
    fn send(&mut self, number: u64, keys: &mut btree_set::IntoIter<Vec<u8>>) -> u64 {
        let before = self.connection.written();
        let keys = keys.take(limits::WALK_STEP);
        self.connection.begin_reply(number, |out| keys.for_each(|key| bulk(&key, out)));
        self.connection.written().saturating_sub(before) as u64
    }

    /// Looks at some more keys. Returns whether that ends the reply, which is written then.
    fn step(&mut self, number: u64, walk: &mut Walk) -> bool {
        if let Err(why) = self.backend.serving() {
            let text = format!("CLUSTERDOWN {why}");
            self.conclude(number, walk, &Answer::Error(text.into()));
            return true;
        }
        let limit = walk.limit();
        let here = self.backend.lists_alone(walk.database);
        let Some(listed) = here.then(|| self.scan(walk, limit)).flatten() else {
            walk.asked = true;
            let tag = self.tag(number, 0, 0);
            let many = limit * limits::WALK_STEPS_ASKED;
            let (database, cursor) = (walk.database, walk.cursor);
            match walk.aim {
                Aim::Count { .. } => self.backend.count(database, self.now, tag, cursor),
                Aim::Scan { kind, .. } => {
                    self.backend.list(database, self.now, tag, cursor, limit, kind.wanted());
                }
                _ => self.backend.list(database, self.now, tag, cursor, many, None),
            }
            return false;
        };
        self.bind_to_lease();
        self.spend(limits::WALK_STEP as u64 / limits::RECORDS_PER_WORK + 1);
        let stepped = walk.see(listed);
        self.stepped(number, walk, stepped)
    }

    /// Looks at some of this node's records, for about so many keys. `None` if it doesn't hold all keys.
    fn scan(&mut self, walk: &Walk, limit: usize) -> Option<Listed> {
        let (mut keys, mut next, mut looked_at) = (Vec::new(), walk.cursor, 0);
        let (wanted, mut count) = (walk.kind(), 0);
        // Records without a value are no reason to answer less than was asked for.
        while count < limit && looked_at < limits::WALK_STEP {
            let visit = &mut |key: &[u8], kind: ValueKind| {
                count += 1;
                if wanted.is_none_or(|wanted| wanted == kind) {
                    keys.push(key.to_vec());
                }
            };
            next = self.backend.scan(walk.database, self.now, next, limit, visit)?;
            looked_at += limit;
            if next == 0 {
                break;
            }
        }
        Some(Listed { next, keys, count: count as u64 })
    }

    fn stepped(&mut self, number: u64, walk: &mut Walk, stepped: Stepped) -> bool {
        match stepped {
            Stepped::Done(Answer::Int(keys)) => {
                // The libraries of functions are no key of the user's.
                let database = walk.database;
                let libraries = self.backend.memory_usage(database, self.now, LIBRARIES_KEY);
                let keys = (keys - i64::from(libraries.is_some())).max(0);
                self.conclude(number, walk, &Answer::Int(keys));
            }
            Stepped::On => return false,
            Stepped::Done(answer) => self.conclude(number, walk, &answer),
            Stepped::Found(found) => {
                self.connection.begin_reply(number, |out| array_header(found.len(), out));
                walk.aim = Aim::Send { keys: found.into_iter() };
                return false;
            }
        }
        true
    }

    fn conclude(&mut self, number: u64, walk: &Walk, answer: &Answer<'_>) {
        if let Answer::Error(text) = answer {
            self.core.stats.failed(walk.spec, text);
        }
        let protocol = walk.protocol;
        self.connection.begin_reply(number, |out| crate::encode::encode(answer, protocol, out));
    }

    /// Other nodes have said what keys there are, or that they can't.
    pub(crate) fn listed(&mut self, number: u64, listed: Outcome<Listed>) {
        if !matches!(self.connection.reply(number), Some(Reply::Walk(_))) {
            return;
        }
        let Some(Reply::Walk(mut walk)) = self.take(number) else { return };
        walk.asked = false;
        let ends = match answer_or_failure(listed) {
            Ok(listed) => {
                self.bind_to_lease();
                let stepped = walk.see(listed);
                self.stepped(number, &mut walk, stepped)
            }
            Err(failure) => {
                self.core.stats.failed(walk.spec, failure.text());
                self.connection.begin_reply(number, |out| error(failure.text(), out));
                true
            }
        };
        if ends {
            return self.connection.finish_begun(number);
        }
        if let Some(reply) = self.connection.reply(number) {
            *reply = Reply::Walk(walk);
        }
        self.walk_on();
    }

    /// The whole walk at once, as `EXEC` needs it: over few keys that this node holds.
    pub(crate) fn walk_within(&mut self, call: &Call<'_>) -> Answer<'static> {
        let mut walk = match self.begin_walk(call, true) {
            Ok(walk) => walk,
            Err(reply) => return reply,
        };
        self.bind_to_lease();
        loop {
            let limit = walk.limit();
            let left = &mut self.connection.walk_left;
            if *left < limits::WALK_STEP {
                return Answer::error(TOO_LONG);
            }
            *left -= limits::WALK_STEP;
            let Some(listed) = self.scan(&walk, limit) else {
                return Answer::error(ELSEWHERE);
            };
            match walk.see(listed) {
                Stepped::On => {}
                Stepped::Done(answer) => return answer,
                Stepped::Found(found) => {
                    let keys = found.into_iter().map(|key| Answer::Bulk(Cow::Owned(key)));
                    return Answer::Array(keys.collect());
                }
            }
        }
    }

    /// Notes work that is done in steps.
    pub(crate) fn spend(&mut self, work: u64) {
        let Self { core, connection, backend, .. } = self;
        core.turn.spend(&mut connection.share, work, false, || backend.clock());
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`.
fn scan(args: Args<'_>) -> Result<Aim, Answer<'static>> {
    if scan_cursor(args.get(1)).is_none() {
        return Err(Answer::error("ERR invalid cursor"));
    }
    let (mut count, mut pattern, mut kind) = (10, None, Kind::Any);
    let mut at = 2;
    while at < args.len() {
        if at + 1 == args.len() {
            return Err(SYNTAX);
        }
        let (option, value) = (args.get(at), args.get(at + 1));
        match option.to_ascii_lowercase().as_slice() {
            b"count" => match parse_integer(value) {
                None => return Err(NOT_AN_INTEGER),
                Some(number) if number < 1 => return Err(SYNTAX),
                Some(number) => count = usize::try_from(number).unwrap_or(usize::MAX),
            },
            b"match" => pattern = Some(value).filter(|pattern| *pattern != b"*"),
            b"type" => kind = Kind::of_name(value),
            _ => return Err(SYNTAX),
        }
        at += 2;
    }
    // One more than is asked for, so that the end shows if there are just so many.
    let left = count.min(limits::SCAN_COUNT_MAX) + 1;
    let pattern = pattern.map(Box::from);
    let steps = limits::SCAN_STEPS + left / limits::WALK_STEP;
    Ok(Aim::Scan { pattern, kind, left, steps, found: Vec::new() })
}

fn scan_cursor(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    if !text[0].is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

const _: () = assert!(
    bounds::REPLY_BYTES_MAX == 16_777_216 && limits::EXEC_RECORDS_MAX == 10_000,
    "the texts of the errors name both limits"
);
