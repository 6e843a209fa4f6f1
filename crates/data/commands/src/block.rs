//! A `MULTI`/`EXEC` block, and what `WATCH` saw before it.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, OneKey, Verdict, WARM_TOGETHER, Workspace, mutant};
use quorate_types::{Timestamp, UnixMillis};
use quorate_wire::{Malformed, Reader, Writer};

use crate::meter::{BLOCK_TOO_MUCH, Metered};
use crate::notes::{Notes, Wanted};
use crate::room::{BLOCK_TOO_LONG, Room};
use crate::script::OnlyKey;
use crate::{CROSSKEY, OwnedCall, Reply};

/// What a `WATCH` saw of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    /// Whether the key had a value.
    pub existed: bool,
    /// Its version; [`Timestamp::ZERO`] if it had none of its own.
    pub timestamp: Timestamp,
}

impl Watch {
    /// Whether nobody has changed the key since. A value that expired in between is a change even
    /// before it is collected; one that had expired when the watch began is not. Of an absent key no
    /// more may be known than that its last change is not later than a version: its tombstone may be
    /// collected. One that is as absent as it was, and whose last change the watch has seen, was not
    /// changed.
    pub(crate) fn holds(&self, current: &Current<'_>) -> bool {
        let is_as_absent = !self.existed && current.content.is_none();
        is_as_absent && current.timestamp <= self.timestamp
            || self.timestamp == current.timestamp && (!self.existed || current.content.is_some())
    }
}

/// A `MULTI`/`EXEC` block: all of it happens at once, and none of it if a watch fails. Each call sees what
/// the calls before it did; one that answers an error undoes nothing, as in Redis.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Block {
    /// What was seen of keys before.
    pub watches: Vec<(Box<[u8]>, Watch)>,
    /// The calls in order; those without a key are answered too, by [`crate::Call::answer_alone`].
    pub calls: Vec<OwnedCall>,
}

impl Block {
    /// Visits its keys, those that are watched first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let watched = self.watches.iter().map(|(key, _)| &**key);
        watched.chain(self.calls.iter().flat_map(|call| call.call().keys()))
    }

    /// Whether it may change anything.
    pub fn updates(&self) -> bool {
        self.calls.iter().any(OwnedCall::updates)
    }

    /// What it does to its only key: a blind write if every call that has a key is one and nothing
    /// is watched, a read if none changes anything, an update otherwise.
    pub(crate) fn access(&self) -> Access {
        let calls = self.calls.iter().map(OwnedCall::call);
        let mut all = calls.filter(|call| call.spec.has_keys()).map(|call| call.access());
        if all.clone().all(|access| access == Access::Read) {
            return Access::Read;
        }
        if self.watches.is_empty() && all.all(|access| access == Access::Write) {
            return Access::Write;
        }
        Access::Update
    }

    /// Runs it, and notes what each of its calls does.
    pub(crate) fn run<W: Workspace>(
        &self,
        now: UnixMillis,
        workspace: &mut W,
        wanted: Wanted,
    ) -> Verdict<Reply<'static>> {
        if self.watches.len() + self.calls.len() > 1 {
            // A call of several keys warms its own.
            let watched = self.watches.iter().map(|(key, _)| &**key);
            let first = self.calls.iter().filter_map(|call| call.call().keys().next());
            workspace.warm(&mut watched.chain(first).take(WARM_TOGETHER));
        }
        for (key, watch) in &self.watches {
            if !watch.holds(&workspace.read(key)) {
                return Verdict::Abandon(Reply::NullArray);
            }
        }
        match run_in_order(&self.calls, now, workspace, wanted) {
            Ok(answers) => Verdict::Commit(answers),
            Err(too_long) if mutant!("commands_refused_block_commits") => Verdict::Commit(too_long),
            Err(too_long) => Verdict::Abandon(too_long),
        }
    }

    /// Runs it on its only key.
    pub(crate) fn apply<'a>(
        &'a self,
        now: UnixMillis,
        current: Current<'a>,
        wanted: Wanted,
    ) -> (Reply<'static>, Change<'a>) {
        let mut key = OneKey::new(current);
        let mut only = OnlyKey::new(self.keys().next(), &mut key);
        let verdict = self.run(now, &mut only, wanted);
        match verdict {
            _ if only.has_strayed() => (Reply::error(CROSSKEY), Change::Keep),
            Verdict::Commit(answers) => (answers, key.finish()),
            Verdict::Abandon(answer) => (answer, Change::Keep),
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(u32::try_from(self.watches.len()).expect("limits bound a transaction"));
        for (key, watch) in &self.watches {
            writer.bytes(key);
            writer.u8(u8::from(watch.existed));
            writer.timestamp(watch.timestamp);
        }
        writer.u32(u32::try_from(self.calls.len()).expect("limits bound a transaction"));
        for call in &self.calls {
            call.call().write(writer);
        }
    }

    /// Both lists grow with what is really there: a count can promise more than the input holds.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut watches = Vec::new();
        for _ in 0..reader.u32()? {
            let key = reader.bytes()?.into();
            let existed = match reader.u8()? {
                existed @ (0 | 1) => existed == 1,
                _ => return Err(Malformed("neither absent nor present")),
            };
            let timestamp = reader.timestamp()?;
            watches.push((key, Watch { existed, timestamp }));
        }
        let mut calls = Vec::new();
        for _ in 0..reader.u32()? {
            calls.push(OwnedCall::read(reader)?);
        }
        Ok(Self { watches, calls })
    }
}

/// The answer to a block with a script that a bound stopped.
fn discarded(why: Reply<'static>) -> Reply<'static> {
    let Reply::Error(text) = &why else { return why };
    let text = text.strip_prefix("ERR ").unwrap_or(text);
    Reply::Error(format!("EXECABORT Transaction discarded because of: {text}").into())
}

/// What calls answer one after the other; an error if that is too long together, or if they look at
/// too much, after which nothing of it may happen.
pub(crate) fn run_in_order<W: Workspace>(
    calls: &[OwnedCall],
    now: UnixMillis,
    workspace: &mut W,
    wanted: Wanted,
) -> Result<Reply<'static>, Reply<'static>> {
    let mut room = Room::new();
    let mut metered = Metered::new(workspace);
    let mut answers = Vec::with_capacity(calls.len());
    for call in calls {
        let mut notes = Notes::new(wanted);
        let verdict = call.call().run_over(now, &mut metered, &mut room, &mut notes);
        if metered.is_exceeded() {
            return Err(BLOCK_TOO_MUCH);
        }
        match verdict {
            Verdict::Commit(answer) => answers.push(notes.attach(answer)),
            Verdict::Abandon(why) => return Err(discarded(why)),
        }
        if room.is_exceeded() {
            return Err(BLOCK_TOO_LONG);
        }
        if metered.is_full() {
            break;
        }
    }
    Ok(Reply::Array(answers))
}
