//! `SLOWLOG`: the commands of all lanes that took longest.
//!
//! What a command took is known where the clock is read anyway: of one that was submitted, from then
//! until the engines have answered, replicas included; of one that was executed at once, what passed
//! between the readings around it, which is nothing for a short one. Only if short ones are to be logged
//! the clock is read behind each. The arguments of a submitted one
//! are kept, shortened, in a buffer that its place in the table of ops has for all of them in turn.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Args, Reply, ServerCommand, Spec, flag, parse_integer};
use quorate_machine::Slot;
use quorate_types::{Duration, Now};

use crate::backend::Backend;
use crate::connection::Connection;
use crate::dispatch::Context;
use crate::frontend::Core;
use crate::limits;
use crate::pending::Pending;
use crate::session::bulk;
use crate::shared::{ClientFacts, Shared, lock};

/// The arguments of a command as the log has them: at most so many, each cut off and with a remark on
/// what is missing, as in Redis.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Kept {
    pub(crate) fn keep(&mut self, args: Args<'_>) {
        self.bytes.clear();
        self.ends.clear();
        let shown = match args.len() {
            few @ 0..=limits::SLOWLOG_ARGUMENTS => few,
            _ => limits::SLOWLOG_ARGUMENTS - 1,
        };
        for argument in args.iter().take(shown) {
            let length = argument.len().min(limits::SLOWLOG_ARGUMENT_BYTES);
            self.bytes.extend_from_slice(&argument[..length]);
            if length < argument.len() {
                let missing = argument.len() - length;
                self.bytes.extend_from_slice(format!("... ({missing} more bytes)").as_bytes());
            }
            self.ends.push(self.bytes.len());
        }
        if shown < args.len() {
            let missing = args.len() - shown;
            self.bytes.extend_from_slice(format!("... ({missing} more arguments)").as_bytes());
            self.ends.push(self.bytes.len());
        }
    }

    /// Forgets the arguments, and gives back what a long list took.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        if self.bytes.capacity() > limits::SLOWLOG_BUFFER_KEEP_BYTES {
            self.bytes = Vec::new();
        }
    }

    fn to_words(&self) -> Vec<Box<[u8]>> {
        let mut start = 0;
        let word = |&end: &usize| Box::from(&self.bytes[std::mem::replace(&mut start, end)..end]);
        self.ends.iter().map(word).collect()
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[derive(Debug)]
struct Entry {
    id: i64,
    unix_seconds: u64,
    micros: u64,
    words: Vec<Box<[u8]>>,
    client: String,
    name: String,
}

const NO_COUNT: Reply<'static> = Reply::error("ERR count should be greater than or equal to -1");

/// The log of one node.
#[derive(Debug, Default)]
pub(crate) struct SlowLog(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    next: i64,
    /// The youngest first.
    entries: VecDeque<Entry>,
}

impl Shared {
    /// A command has taken so long.
    pub(crate) fn note_slow(
        &self,
        unix_seconds: u64,
        took: Duration,
        spec: &Spec,
        kept: &Kept,
        client: &ClientFacts,
    ) {
        if !self.is_slow(took) || kept.is_empty() {
            return;
        }
        let micros = took.as_micros() as u64;
        if spec.flags.has(flag::SKIP_SLOWLOG) {
            return;
        }
        let most = self.settings.slowlog_entries.load(Relaxed) as usize;
        let mut log = lock(&self.slow_log.0);
        let id = log.next;
        log.next += 1;
        let entry = Entry {
            id,
            unix_seconds,
            micros,
            words: kept.to_words(),
            client: client.peer.to_string(),
            name: lock(&client.names).name.clone(),
        };
        log.entries.push_front(entry);
        log.entries.truncate(most);
    }

    fn is_slow(&self, took: Duration) -> bool {
        let limit = self.settings.slowlog_micros.load(Relaxed).cast_signed();
        u64::try_from(limit).is_ok_and(|limit| took.as_micros() >= u128::from(limit))
    }

    /// Whether even commands are logged that are shorter than the time between two readings of the
    /// clock. It is read behind each of them, then.
    #[inline]
    pub(crate) fn logs_short(&self) -> bool {
        self.settings.slowlog_micros.load(Relaxed) < limits::SLOWLOG_EXACT_MICROS
    }

    /// Whether nothing is logged.
    #[inline]
    pub(crate) fn logs_nothing(&self) -> bool {
        self.settings.slowlog_micros.load(Relaxed).cast_signed() < 0
    }
}

impl Core {
    /// Keeps the arguments of the command that has begun an op.
    #[inline]
    pub(crate) fn keep_arguments(&mut self, args: Args<'_>) {
        let Some(slot) = self.begun.take() else { return };
        if self.shared.logs_nothing() {
            return;
        }
        let place = slot.index as usize;
        if place >= self.kept.len() {
            self.kept.resize_with(place + 1, Kept::default);
        }
        self.kept[place].keep(args);
    }

    /// An op has ended.
    pub(crate) fn op_took(
        &mut self,
        connection: &mut Connection,
        pending: &Pending,
        slot: Slot,
        now: Now,
    ) {
        let spec = connection.reply(pending.number).and_then(|reply| reply.spec());
        let took = now.monotonic.since(pending.since);
        let mut none = Kept::default();
        let kept = self.kept.get_mut(slot.index as usize).unwrap_or(&mut none);
        // Who waits for an element is not slow.
        if let Some(spec) = spec
            && pending.part == 0
            && !spec.flags.has(flag::BLOCKING)
        {
            self.stats.took(spec, took);
            let seconds = now.unix.0 / 1_000_000_000;
            self.shared.note_spike(seconds, took, spec);
            self.shared.note_slow(seconds, took, spec, kept, &connection.facts);
        }
        kept.clear();
    }

    /// A command was executed at once, and the clock was read behind it.
    #[cold]
    pub(crate) fn command_took(
        &mut self,
        connection: &Connection,
        spec: &'static Spec,
        args: Args<'_>,
        took: Duration,
        now: Now,
    ) {
        self.stats.took(spec, took);
        let seconds = now.unix.0 / 1_000_000_000;
        self.shared.note_spike(seconds, took, spec);
        if !self.shared.is_slow(took) {
            return;
        }
        let mut kept = Kept::default();
        kept.keep(args);
        self.shared.note_slow(seconds, took, spec, &kept, &connection.facts);
    }
}

impl<B: Backend> Context<'_, B> {
    /// `SLOWLOG GET [count] | LEN | RESET`.
    pub(crate) fn slowlog(&mut self, command: ServerCommand, args: Args<'_>) -> Reply<'static> {
        let mut log = lock(&self.core.shared.slow_log.0);
        match command {
            ServerCommand::SlowlogLen => Reply::Int(log.entries.len() as i64),
            ServerCommand::SlowlogReset => {
                log.entries.clear();
                Reply::Ok
            }
            _ => {
                let count = match args.len() {
                    2 => 10,
                    _ => match parse_integer(args.get(2)) {
                        Some(-1) => usize::MAX,
                        count => match count.and_then(|count| usize::try_from(count).ok()) {
                            Some(count) => count,
                            None => return NO_COUNT,
                        },
                    },
                };
                Reply::Array(log.entries.iter().take(count).map(Entry::shown).collect())
            }
        }
    }
}

impl Entry {
    fn shown(&self) -> Reply<'static> {
        Reply::Array(vec![
            Reply::Int(self.id),
            Reply::Int(self.unix_seconds as i64),
            Reply::Int(self.micros as i64),
            Reply::Array(self.words.iter().map(|word| bulk(word)).collect()),
            bulk(self.client.as_bytes()),
            bulk(self.name.as_bytes()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use quorate_commands::OwnedArgs;

    use super::*;

    fn words(arguments: &[&[u8]]) -> Vec<String> {
        let args = OwnedArgs::new(arguments.iter().copied());
        let mut kept = Kept::default();
        kept.keep(args.borrow());
        let words = kept.to_words();
        words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    #[test]
    fn many_or_long_arguments_are_cut_as_in_redis() {
        assert_eq!(words(&[b"GET", b"key"]), ["GET", "key"]);
        let long = words(&[b"GET", &[b'x'; 200]]);
        assert_eq!(long[1], format!("{}... (72 more bytes)", "x".repeat(128)));
        assert_eq!(words(&[&b"a"[..]; 32]).len(), 32);
        let many = words(&[&b"a"[..]; 40]);
        assert_eq!((many.len(), many[31].as_str()), (32, "... (9 more arguments)"));
    }
}
