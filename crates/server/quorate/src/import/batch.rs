//! A batch: what goes out before answers are read.

use anyhow::anyhow;
use quorate_rdb::{Event, Key, Kind};

use super::key::{Commands, Current, Expect, State, Writing};
use crate::transfer::{Reply, Target, Trouble, command, trouble};

/// Bytes, commands and keys of a batch, about. The answers must fit into the buffers of the connection,
/// since they are read when all of it has left.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
const BATCH_COMMANDS_MAX: usize = 2048;
const BATCH_KEYS_MAX: usize = 512;

/// What holds for every key.
pub(super) struct Policy {
    pub(super) replace: bool,
    pub(super) skip_existing: bool,
    pub(super) string_bytes_max: u64,
    /// Keys and fields that expire before that have expired.
    pub(super) now_ms: u64,
}

/// The keys that were read since the checkpoint.
#[derive(Default)]
pub(super) struct Keys {
    /// Of each key that the target was asked for, whether it is to be written.
    is_ours: Vec<Option<bool>>,
    /// How many were read.
    read: usize,
    /// How many may have been written, now or before a connection was lost.
    begun: usize,
    /// How many may have been written before it was lost.
    redo: usize,
}

impl Keys {
    fn begin(&mut self) -> usize {
        self.read += 1;
        if self.is_ours.len() < self.read {
            self.is_ours.push(None);
        }
        self.read - 1
    }

    /// All are read again.
    pub(super) fn restart(&mut self) {
        self.redo = self.begun;
        self.read = 0;
    }

    /// How many were written twice.
    pub(super) fn rewritten(&self) -> usize {
        self.redo
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A key that was written.
pub(super) struct Written {
    pub(super) index: usize,
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) items: u64,
    pub(super) expires: bool,
}

/// What became of keys.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) written: Vec<Written>,
    pub(super) expired: u64,
    pub(super) there: u64,
    pub(super) empty: u64,
    pub(super) modules: Vec<Vec<u8>>,
    pub(super) failed: Vec<(Vec<u8>, String)>,
    pub(super) pending_lost: u64,
}

/// Commands about one key.
struct Part {
    index: usize,
    name: Vec<u8>,
    /// Whether the key begins here.
    begins: bool,
    commands: Commands,
    /// Why the target won't take the key.
    refused: Option<String>,
    /// What was written, if the key ends here.
    written: Option<Written>,
}

pub(super) struct Batch<'p> {
    policy: &'p Policy,
    parts: Vec<Part>,
    outcome: Outcome,
    bytes: usize,
    commands: usize,
}

impl<'p> Batch<'p> {
    pub(super) fn new(policy: &'p Policy) -> Self {
        let outcome = Outcome::default();
        Self { policy, parts: Vec::new(), outcome, bytes: 0, commands: 0 }
    }

    /// Whether it should leave. Between keys that is earlier than within one, so that no batch ends within
    /// a key but one that is longer than a batch: only from between keys can the file be read again.
    pub(super) fn is_full(&self, writing: &Writing) -> bool {
        let times = if writing.is_within_a_key() { 2 } else { 1 };
        self.bytes >= times * BATCH_BYTES_MAX
            || self.commands >= times * BATCH_COMMANDS_MAX
            || self.parts.len() >= times * BATCH_KEYS_MAX
    }

    /// Takes what comes next in the file.
    pub(super) fn take(&mut self, event: Event, writing: &mut Writing, keys: &mut Keys) {
        match event {
            Event::Key(key) => self.key(key, writing, keys),
            Event::Item(item) => {
                let Some(current) = &mut writing.current else { return };
                if current.state == State::Sent {
                    let Policy { now_ms, string_bytes_max, .. } = *self.policy;
                    let part = part(&mut self.parts, current);
                    let before = (part.commands.bytes.len(), part.commands.expected.len());
                    if let Err(why) =
                        current.take(item, now_ms, string_bytes_max, &mut part.commands)
                    {
                        part.refused = Some(why);
                        current.state = State::LeftOut;
                    }
                    self.bytes += part.commands.bytes.len() - before.0;
                    self.commands += part.commands.expected.len() - before.1;
                }
            }
            Event::KeyEnd => {
                if let Some(current) = writing.current.take().filter(|it| it.state == State::Sent) {
                    self.end(current);
                }
            }
            _ => {}
        }
    }

    fn key(&mut self, key: Key, writing: &mut Writing, keys: &mut Keys) {
        let mut current = Current::new(key, keys.begin());
        if current.expire_at_ms.is_some_and(|at| at <= self.policy.now_ms) {
            self.outcome.expired += 1;
            current.state = State::LeftOut;
        } else if current.kind == Kind::Module {
            self.outcome.modules.push(current.name.clone());
            current.state = State::LeftOut;
        } else {
            part(&mut self.parts, &current).begins = true;
        }
        writing.current = Some(current);
    }

    fn end(&mut self, mut current: Current) {
        let part = part(&mut self.parts, &current);
        if current.items == 0 && current.kind != Kind::Stream {
            match current.fields_expired {
                0 => self.outcome.empty += 1,
                _ => self.outcome.expired += 1,
            }
            return;
        }
        let before = (part.commands.bytes.len(), part.commands.expected.len());
        current.finish(&mut part.commands);
        self.bytes += part.commands.bytes.len() - before.0;
        self.commands += part.commands.expected.len() - before.1;
        part.written = Some(Written {
            index: current.index,
            expires: current.expires(),
            name: current.name,
            kind: current.kind,
            items: current.items,
        });
    }

    /// Sends all of it to a database and reads the answers.
    ///
    /// # Errors
    /// If not all of it was answered. What was begun may have been done.
    pub(super) fn send(
        mut self,
        database: u64,
        target: &mut Target,
        keys: &mut Keys,
        writing: &mut Writing,
        outcome: &mut Outcome,
    ) -> Result<(), Trouble> {
        if !self.parts.is_empty() {
            target.select(database)?;
            self.decide(target, keys, writing)?;
            self.write(target, keys, writing)?;
        }
        outcome.add(self.outcome);
        Ok(())
    }

    /// Asks which of the keys are there already, if that matters.
    fn decide(
        &mut self,
        target: &mut Target,
        keys: &mut Keys,
        writing: &mut Writing,
    ) -> Result<(), Trouble> {
        let undecided: Vec<_> =
            self.parts.iter().filter(|part| keys.is_ours[part.index].is_none()).collect();
        if self.policy.skip_existing {
            let mut bytes = Vec::new();
            for part in &undecided {
                command([&b"EXISTS"[..], &part.name].into_iter(), &mut bytes);
            }
            let connection = target.connection()?;
            connection.send(&bytes)?;
            for part in undecided {
                keys.is_ours[part.index] = match connection.reply()? {
                    Reply::Int(found) => Some(found == 0),
                    other => return Err(unexpected("EXISTS", other)),
                };
            }
        } else {
            undecided.iter().for_each(|part| keys.is_ours[part.index] = Some(true));
        }
        let there = |part: &&Part| keys.is_ours[part.index] == Some(false);
        self.outcome.there +=
            self.parts.iter().filter(there).filter(|part| part.begins).count() as u64;
        for part in self.parts.iter().filter(there) {
            writing.leave_out(part.index);
        }
        self.parts.retain(|part| keys.is_ours[part.index] == Some(true));
        Ok(())
    }

    fn write(
        &mut self,
        target: &mut Target,
        keys: &mut Keys,
        writing: &mut Writing,
    ) -> Result<(), Trouble> {
        let mut bytes = Vec::with_capacity(self.bytes + self.bytes / 8);
        for part in &mut self.parts {
            part.begins &= self.policy.replace || part.index < keys.redo;
            if part.begins {
                command([&b"DEL"[..], &part.name].into_iter(), &mut bytes);
            }
            bytes.append(&mut part.commands.bytes);
            keys.begun = keys.begun.max(part.index + 1);
        }
        let connection = target.connection()?;
        connection.send(&bytes)?;
        for part in &mut self.parts {
            if part.begins {
                // What it answers doesn't matter, unless it is an error.
                let reply = connection.reply()?;
                note(Expect::Done, reply, &mut part.refused, &mut self.outcome.pending_lost)?;
            }
            for expect in &part.commands.expected {
                let reply = connection.reply()?;
                note(*expect, reply, &mut part.refused, &mut self.outcome.pending_lost)?;
            }
        }
        self.undo(target, writing)?;
        let parts = std::mem::take(&mut self.parts);
        self.outcome.written.extend(parts.into_iter().filter_map(|part| part.written));
        Ok(())
    }

    /// Takes back what was written of keys that the target doesn't take as a whole.
    fn undo(&mut self, target: &mut Target, writing: &mut Writing) -> Result<(), Trouble> {
        for part in &mut self.parts {
            let Some(why) = part.refused.take() else { continue };
            let mut bytes = Vec::new();
            command([&b"DEL"[..], &part.name].into_iter(), &mut bytes);
            let connection = target.connection()?;
            connection.send(&bytes)?;
            note(Expect::Done, connection.reply()?, &mut None, &mut 0)?;
            writing.leave_out(part.index);
            part.written = None;
            self.outcome.failed.push((part.name.clone(), why));
        }
        Ok(())
    }
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.written.extend(other.written);
        self.expired += other.expired;
        self.there += other.there;
        self.empty += other.empty;
        self.modules.extend(other.modules);
        self.failed.extend(other.failed);
        self.pending_lost += other.pending_lost;
    }
}

/// The part of a key, which is the last one if there is one.
fn part<'b>(parts: &'b mut Vec<Part>, current: &Current) -> &'b mut Part {
    if parts.last().is_none_or(|part| part.index != current.index) {
        parts.push(Part {
            index: current.index,
            name: current.name.clone(),
            begins: false,
            commands: Commands::default(),
            refused: None,
            written: None,
        });
    }
    parts.last_mut().expect("it was pushed above")
}

fn unexpected(name: &str, reply: Reply) -> Trouble {
    if let Reply::Error(error) = &reply
        && let Some(trouble) = trouble(error)
    {
        return trouble;
    }
    anyhow!("the target answered {name} with {reply:?}").into()
}

/// Compares an answer with what it should be. The first one that is wrong is why the key is refused.
fn note(
    expect: Expect,
    reply: Reply,
    refused: &mut Option<String>,
    pending_lost: &mut u64,
) -> Result<(), Trouble> {
    let wrong = match (expect, reply) {
        (_, Reply::Error(error)) => match trouble(&error) {
            Some(trouble) => return Err(trouble),
            None => error,
        },
        (Expect::Done, Reply::Null) => "the target answered that nothing was done".into(),
        (Expect::Done, _) => return Ok(()),
        (Expect::Added(count) | Expect::Length(count), Reply::Int(found)) => {
            if found == count as i64 {
                return Ok(());
            }
            format!(
                "the target counts {found} members and not {count}: the file has one twice, or somebody else \
                 writes to this key"
            )
        }
        (Expect::Claimed(count), Reply::Array(claimed)) => {
            *pending_lost += count.saturating_sub(claimed.len() as u64);
            return Ok(());
        }
        (Expect::Expiries(count), Reply::Array(set)) if set.len() as u64 == count => return Ok(()),
        (_, other) => format!("the target answered {other:?}"),
    };
    refused.get_or_insert(wrong);
    Ok(())
}
