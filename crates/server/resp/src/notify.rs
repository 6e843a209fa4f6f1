//! Keyspace notifications: messages about what happened to keys.
//!
//! The node where a client's command came in tells of it, as far as its own `notify-keyspace-events`
//! says, once the command is answered, so after the change was decided. The messages take the way of
//! all messages, so they reach subscribers at every node, and at most once: a node that dies between the
//! change and its message tells nobody.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Note, Op, Reply as Answer, class};
use quorate_machine::{Command, Outcome};
use quorate_types::{Now, Publication, Tag, Topic};

use crate::backend::Backend;
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

    /// Tells what was done for an answer, which is given back without the notes of it.
    pub(crate) fn tell_notes<B: Backend>(
        &mut self,
        outcome: Outcome<Answer<'static>>,
        now: Now,
        backend: &mut B,
    ) -> Outcome<Answer<'static>> {
        match outcome {
            Outcome::Done(Answer::Noted(noted)) => {
                for note in &noted.notes {
                    self.notify(noted.keyspace, note, now, backend);
                }
                Outcome::Done(noted.reply)
            }
            outcome => outcome,
        }
    }

    fn notify<B: Backend>(&mut self, keyspace: u8, note: &Note, now: Now, backend: &mut B) {
        let classes = self.notified_classes();
        let (event, key) = (note.event.as_bytes(), &*note.key);
        for (place, word, name, message) in
            [(class::KEYSPACE, "space", key, event), (class::KEYEVENT, "event", event, key)]
        {
            if classes & place == 0 || classes & note.class == 0 {
                continue;
            }
            let channel = [format!("__key{word}@{keyspace}__:").as_bytes(), name].concat();
            let (channel, message) = (channel.into(), message.into());
            self.spread(
                Arc::new(Publication { topic: Topic::Channel, channel, message }),
                now,
                backend,
            );
        }
    }
}

impl<B: Backend> Context<'_, B> {
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
        let note = Note { class: class::EXPIRED, event: "expired".into(), key };
        self.core.notify(keyspace, &note, now, backend);
        self.fan_out();
    }
}
