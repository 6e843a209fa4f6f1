//! What is told of ops that have taken effect: events of keys (keyspace notifications) and messages
//! that scripts have published.
//!
//! The node where a client's command came in tells of it once the command is answered, so after the
//! change was decided; of events, as far as its own `notify-keyspace-events` says. The messages take
//! the way of all messages, so they reach subscribers at every node, and at most once: a node that
//! dies between the change and its message tells nobody.
//!
//! What one client publishes is told in order, so the notes of an answer wait for the answers before
//! it, as the answer itself does. Those of an answer that rests on the lease leave when that may.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{KeyEvent, Note, Op, Reply as Answer, class};
use quorate_machine::{Command, Outcome, mutant};
use quorate_types::{Now, Publication, Tag, Topic};

use crate::backend::Backend;
use crate::connection::Connection;
use crate::dispatch::Context;
use crate::frontend::{Core, Frontend};

impl Core {
    /// The classes of events that are told here; 0 if none.
    #[inline]
    pub(crate) fn notified_classes(&self) -> u32 {
        let classes = self.shared.settings.notified_classes.load(Relaxed) as u32;
        let places = class::KEYSPACE | class::KEYEVENT;
        if classes & places == 0 || classes & !places == 0 { 0 } else { classes }
    }

    /// Tells what is to be told with an answer for whom nobody waits any more: the order of what a
    /// client publishes ends with its connection.
    pub(crate) fn tell_at_once<B: Backend>(
        &mut self,
        outcome: Outcome<Answer<'static>>,
        now: Now,
        backend: &mut B,
    ) {
        if let Outcome::Done(mut answer) = outcome {
            self.due.extend(all_notes(&mut answer));
            self.tell_due(now, backend);
        }
    }

    /// Tells the notes whose turn has come.
    pub(crate) fn tell_due<B: Backend>(&mut self, now: Now, backend: &mut B) {
        for note in std::mem::take(&mut self.due) {
            match note {
                Note::Event(event) => self.notify(&event, now, backend),
                Note::Message(publication) => self.spread(Arc::new(publication), now, backend),
            }
        }
    }

    fn notify<B: Backend>(&mut self, event: &KeyEvent, now: Now, backend: &mut B) {
        let classes = self.notified_classes();
        let keyspace = event.keyspace;
        let (name, key) = (event.name.as_bytes(), &*event.key);
        for (place, word, named, message) in
            [(class::KEYSPACE, "space", key, name), (class::KEYEVENT, "event", name, key)]
        {
            if classes & place == 0 || classes & event.class == 0 {
                continue;
            }
            let channel = [format!("__key{word}@{keyspace}__:").as_bytes(), named].concat();
            let (channel, message) = (channel.into(), message.into());
            self.spread(
                Arc::new(Publication { topic: Topic::Channel, channel, message }),
                now,
                backend,
            );
        }
    }
}

/// Takes the notes out of an answer and, if it is that of a block, out of its parts.
fn all_notes(answer: &mut Answer<'static>) -> Vec<Note> {
    let mut notes = answer.take_notes();
    if let Answer::Array(parts) = answer {
        notes.extend(parts.iter_mut().flat_map(Answer::take_notes));
    }
    notes
}

/// Notes of answered ops of one connection that wait for their turn, by the number of the reply.
#[derive(Debug, Default)]
pub(crate) struct HeldNotes {
    notes: BTreeMap<u64, Vec<Note>>,
    bytes: usize,
}

impl HeldNotes {
    pub(crate) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, number: u64, notes: Vec<Note>) {
        if !notes.is_empty() {
            self.bytes += notes.iter().map(Note::bytes).sum::<usize>();
            self.notes.entry(number).or_default().extend(notes);
        }
    }

    /// Moves those of replies below this number into `due`.
    fn take_below(&mut self, number: u64, due: &mut Vec<Note>) {
        while let Some(first) = self.notes.first_entry()
            && (*first.key() < number || mutant!("resp_notes_out_of_order"))
        {
            let notes = first.remove();
            self.bytes -= notes.iter().map(Note::bytes).sum::<usize>();
            due.extend(notes);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Connection {
    /// Moves what is to be told with complete replies, and with those below this number, into `due`.
    /// Nothing as long as they rest on the lease.
    pub(crate) fn take_due_notes(&mut self, number: u64, due: &mut Vec<Note>) {
        if !self.lease_bound || mutant!("resp_notes_before_seal") {
            self.notes.take_below(number.max(self.first), due);
        }
    }
}

impl<B: Backend> Context<'_, B> {
    /// Takes the notes out of an answer, to be told when it is the turn of the reply.
    pub(crate) fn hold_notes(&mut self, number: u64, answer: &mut Answer<'static>) {
        self.connection.notes.add(number, answer.take_notes());
    }

    /// The same of an answer that nobody waits for any more.
    pub(crate) fn hold_all_notes(&mut self, number: u64, answer: &mut Answer<'static>) {
        self.connection.notes.add(number, all_notes(answer));
    }

    /// Tells the notes of complete replies.
    pub(crate) fn tell_complete(&mut self) {
        self.tell_below(self.connection.first);
    }

    /// The same, with those of replies below this number.
    pub(crate) fn tell_below(&mut self, number: u64) {
        if !self.connection.notes.is_empty() {
            self.connection.take_due_notes(number, &mut self.core.due);
            self.core.tell_due(self.now, self.backend);
        }
    }

    /// Submits an op, with notes of what it does if anybody may want them.
    pub(crate) fn submit_noting<P>(&mut self, database: u8, tag: Tag, op: P)
    where
        P: Command<Owned = Op, Reply = Answer<'static>>,
    {
        let origin = self.connection.facts.id;
        match self.core.notified_classes() {
            0 => self.backend.submit(database, self.now, tag, origin, op),
            classes => {
                let op = op.into_owned().noted(database, classes);
                self.backend.submit(database, self.now, tag, origin, op);
            }
        }
    }
}

impl Frontend {
    /// Whether [`Frontend::expired`] is of any use.
    pub fn tells_expired(&self) -> bool {
        self.core.notified_classes() & class::EXPIRED != 0
    }

    /// This node deletes a value because it had expired.
    pub fn expired<B: Backend>(&mut self, keyspace: u8, key: Box<[u8]>, now: Now, backend: &mut B) {
        let event = KeyEvent { keyspace, class: class::EXPIRED, name: "expired".into(), key };
        self.core.notify(&event, now, backend);
        self.fan_out();
    }
}
