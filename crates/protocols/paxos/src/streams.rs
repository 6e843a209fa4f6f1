//! Many logs of one host.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_types::{Instant, NodeId};
use quorate_wire::Malformed;

use crate::{Entry, Log, Message, Outbox, SlotNumber, Stream, Voter};

/// The logs that one host drives, by stream. They share an [`Outbox`], so that all messages of one
/// turn to one peer leave as one batch ([`Streams::drain`]).
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Streams<E> {
    logs: BTreeMap<Stream, Log<E>>,
    out: Outbox<E>,
}

impl<E> Default for Streams<E> {
    fn default() -> Self {
        Self { logs: BTreeMap::new(), out: Outbox::default() }
    }
}

impl<E: Entry> Streams<E> {
    /// Adds a log under the stream that it carries.
    pub fn insert(&mut self, log: Log<E>) {
        self.logs.insert(log.stream(), log);
    }

    /// The log of a stream.
    pub fn log(&self, stream: Stream) -> Option<&Log<E>> {
        self.logs.get(&stream)
    }

    /// Calls `act` on one log with the common outbox.
    pub fn with<R>(
        &mut self,
        stream: Stream,
        act: impl FnOnce(&mut Log<E>, &mut Outbox<E>) -> R,
    ) -> Option<R> {
        self.logs.get_mut(&stream).map(|log| act(log, &mut self.out))
    }

    /// Calls `act` on every log with the common outbox: a campaign in all streams at once, say.
    pub fn for_each(&mut self, mut act: impl FnMut(&mut Log<E>, &mut Outbox<E>)) {
        for log in self.logs.values_mut() {
            act(log, &mut self.out);
        }
    }

    /// Handles a message; one of an unknown stream is dropped.
    ///
    /// # Errors
    /// As [`Log::on_message`].
    pub fn on_message(
        &mut self,
        now: Instant,
        from: Voter,
        message: Message<E>,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
    ) -> Result<(), Malformed> {
        match self.logs.get_mut(&message.stream) {
            Some(log) => log.on_message(now, from, message.body, gate, &mut self.out),
            None => Ok(()),
        }
    }

    /// Does the due work of every log.
    pub fn tick(&mut self, now: Instant, gate: &impl Fn(SlotNumber, &E) -> Option<Instant>) {
        self.for_each(|log, out| {
            if log.next_deadline() <= now {
                log.tick(now, gate, out);
            }
        });
    }

    /// When [`Streams::tick`] wants to be called.
    pub fn next_deadline(&self) -> Instant {
        self.logs.values().map(Log::next_deadline).min().unwrap_or(Instant::NEVER)
    }

    /// Hands over the accumulated effects: one batch of messages per peer, and the chosen entries.
    pub fn drain(
        &mut self,
        mut send: impl FnMut(NodeId, &[Message<E>]),
        mut chosen: impl FnMut(Stream, SlotNumber, E),
    ) {
        let mut batches: BTreeMap<NodeId, Vec<Message<E>>> = BTreeMap::new();
        for (to, message) in self.out.messages.drain(..) {
            batches.entry(to).or_default().push(message);
        }
        for (to, batch) in &batches {
            send(*to, batch);
        }
        for (stream, slot, entry) in self.out.chosen.drain(..) {
            chosen(stream, slot, entry);
        }
    }
}
