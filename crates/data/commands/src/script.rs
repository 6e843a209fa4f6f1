//! A `MULTI`/`EXEC` block as one operation on one key.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, Operation};
use quorate_types::{Timestamp, UnixMillis, WriterId};
use quorate_wire::{Malformed, Reader, Writer};

use crate::one_key::OneKey;
use crate::txn::run_in_order;
use crate::{OwnedCall, Reply};

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
    /// before it is collected; one that had expired when the watch began is not. A tombstone that
    /// was collected in between leaves the key without a version ([`Timestamp::ZERO`]), and as
    /// absent as it was.
    pub(crate) fn holds(&self, current: &Current<'_>) -> bool {
        let collected =
            !self.existed && current.content.is_none() && current.timestamp == Timestamp::ZERO;
        collected
            || self.timestamp == current.timestamp && (!self.existed || current.content.is_some())
    }
}

/// A `MULTI`/`EXEC` block whose commands touch one key: all of it happens at once, or nothing if a
/// watch fails. Each call sees what the calls before it did; one that answers an error undoes
/// nothing, as in Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The key that every call with a key touches, and every watch.
    pub key: Box<[u8]>,
    /// What was seen of the key before.
    pub watches: Vec<Watch>,
    /// The calls in order; those without a key are answered too, by [`crate::Call::answer_alone`].
    pub calls: Vec<OwnedCall>,
}

impl Script {
    /// A blind write if every call that has a key is one and nothing is watched, a read if none
    /// changes anything, an update otherwise.
    pub(crate) fn access(&self) -> Access {
        let mut all = self
            .calls
            .iter()
            .map(OwnedCall::call)
            .filter(|call| call.spec.has_keys())
            .map(|call| call.access());
        if all.clone().all(|access| access == Access::Read) {
            return Access::Read;
        }
        if self.watches.is_empty() && all.all(|access| access == Access::Write) {
            return Access::Write;
        }
        Access::Update
    }

    pub(crate) fn execute<'a>(
        &'a self,
        now: UnixMillis,
        current: Current<'a>,
    ) -> (Reply<'static>, Change<'a>) {
        if !self.watches.iter().all(|watch| watch.holds(&current)) {
            return (Reply::NullArray, Change::Keep);
        }
        let mut work = OneKey::new(current);
        match run_in_order(&self.calls, now, &mut work) {
            Ok(answers) => (answers, work.finish()),
            Err(too_long) => (too_long, Change::Keep),
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer.bytes(&self.key);
        writer.u32(u32::try_from(self.watches.len()).expect("limits bound a transaction"));
        for watch in &self.watches {
            writer.u8(u8::from(watch.existed));
            writer.u64(watch.timestamp.version);
            writer.u32(watch.timestamp.writer.0);
        }
        writer.u32(u32::try_from(self.calls.len()).expect("limits bound a transaction"));
        for call in &self.calls {
            call.call().write(writer);
        }
    }

    /// Both lists grow with what is really there: a count can promise more than the input holds.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let key: Box<[u8]> = reader.bytes()?.into();
        let mut watches = Vec::new();
        for _ in 0..reader.u32()? {
            let existed = match reader.u8()? {
                existed @ (0 | 1) => existed == 1,
                _ => return Err(Malformed("neither absent nor present")),
            };
            let timestamp = Timestamp::new(reader.u64()?, WriterId(reader.u32()?));
            watches.push(Watch { existed, timestamp });
        }
        let mut calls = Vec::new();
        for _ in 0..reader.u32()? {
            let call = OwnedCall::read(reader)?;
            if call.call().keys().any(|other| *other != *key) {
                return Err(Malformed("a call on another key than its script's"));
            }
            calls.push(call);
        }
        Ok(Self { key, watches, calls })
    }
}
