//! Joining as a shadow replica (thesis §4.3.3; chunk rule in §3.6 of the notes).
//!
//! A shadow acknowledges every update like any live replica and meanwhile copies all records from
//! an active one, the *donor*. An entry is adopted only if its timestamp exceeds the local one, so
//! a chunk never overwrites an update that arrived first; it is readable only if the donor's copy
//! was. Any update that was acknowledged before the shadow joined was in the donor's table before
//! the donor entered the shadow's epoch, and the donor reads its table after that.
//!
//! An entry that is not Valid brings the call that it may be an attempt at. Sessions follow after all
//! records: so a call that has taken effect is either completed at the donor when its session is
//! copied, or was tentative when its key was, or came here by itself as an INV. One case needs care:
//! the shadow holds a newer version than the donor's tentative one already, and never held that
//! one, so it can't know what the newer version is built on (a third one may lie between). Then it
//! tells the donor of its version, by which the donor learns the fate of the call, and asks again.

use alloc::vec::Vec;

use quorate_machine::{Effects, Operation, Record, Slot, Table, mutant};
use quorate_rifl::LeaseId;
use quorate_types::{Instant, NodeId, NodeSet, Now, limits};
use quorate_wire::{Reader, Writer};

use crate::calls::Tentative;
use crate::message::{Chunk, Cursor, Entry, Inv, Message, Val};
use crate::replica::inv_of;
use crate::{Hermes, Meta, State};

/// Records that a donor looks up before it looks at the size of its chunk; a table may give a few
/// more at a time.
const SCAN_RECORDS: usize = 12;
/// Longer values are sent apart from their chunk.
const VALUE_BYTES_IN_CHUNK: usize = limits::CHUNK_BYTES / 4;

const _: () = assert!(
    limits::CHUNK_BYTES + 2 * SCAN_RECORDS * (limits::KEY_BYTES_MAX + VALUE_BYTES_IN_CHUNK + 128)
        <= limits::MESSAGE_BYTES_MAX,
    "a chunk fits into a message"
);
/// Requests without an answer after which the shadow turns to another donor.
const TRIES_MAX: u32 = 5;

/// How far a shadow has come.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Copying {
    /// Not a shadow, or no view yet.
    #[default]
    Idle,
    /// Under way.
    From { donor: Option<NodeId>, request: u64, cursor: Cursor, tries: u32, retry_at: Instant },
    /// Everything is here.
    Done,
}

impl Copying {
    pub(crate) fn is_done(&self) -> bool {
        *self == Self::Done
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        match self {
            Self::From { retry_at, .. } => *retry_at,
            Self::Idle | Self::Done => Instant::NEVER,
        }
    }
}

impl<T: Table<Meta = Meta>, O: Operation<Owned = O>> Hermes<T, O> {
    /// A view was installed: begin, go on with the same donor, or turn to another.
    pub(crate) fn restart_copying(
        &mut self,
        now: Now,
        shadow: bool,
        survivors: NodeSet,
        effects: &mut impl Effects<Self>,
    ) {
        if !shadow {
            self.copying = Copying::Done;
            self.tracker.end_copy();
            self.floors.open_shadow();
            return;
        }
        match &self.copying {
            Copying::Done => {}
            Copying::From { donor: Some(donor), .. }
                if survivors.contains(*donor) && self.active.contains(*donor) =>
            {
                self.ask_for_chunk(now, effects);
            }
            Copying::Idle | Copying::From { .. } => {
                self.floors.begin_shadow();
                self.tracker.begin_copy();
                self.choose_donor(now, effects);
            }
        }
    }

    /// Starts from the first record of some active replica: cursors mean nothing to another one.
    fn choose_donor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let others = self.active.without(self.config.node);
        let count = others.len() as u64;
        let donor = if count == 0 { None } else { others.nth(self.rng.below(count) as usize) };
        let request = self.rng.next_u64();
        let (cursor, retry_at) = (Cursor::START, now.monotonic);
        self.copying = Copying::From { donor, request, cursor, tries: 0, retry_at };
        self.ask_for_chunk(now, effects);
    }

    fn ask_for_chunk(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let again_at = now.monotonic + self.config.message_loss_timeout * 2;
        if let Copying::From { donor, request, cursor, retry_at, .. } = &mut self.copying {
            *retry_at = again_at;
            if let Some(donor) = donor {
                let message = Message::ChunkRead { request: *request, cursor: *cursor };
                effects.send(*donor, &message);
            }
        }
    }

    /// No chunk came in time.
    pub(crate) fn on_chunk_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Copying::From { donor, tries, .. } = &mut self.copying else { return };
        *tries += 1;
        if donor.is_none() || *tries > TRIES_MAX {
            effects.probe("hermes: shadow changes its donor");
            self.choose_donor(now, effects);
        } else {
            self.ask_for_chunk(now, effects);
        }
    }

    /// A shadow asks this replica for records.
    pub(crate) fn on_chunk_read(
        &mut self,
        from: NodeId,
        request: u64,
        cursor: Cursor,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.active.contains(self.config.node) {
            return effects.ignored("hermes: asked for a chunk while not active");
        }
        let mut entries = core::mem::take(&mut self.scratch);
        entries.clear();
        let mut sessions = Vec::new();
        let next = match cursor {
            Cursor::Records(place) => match self.add_entries(from, place, &mut entries, effects) {
                0 if self.tracker.leases_after(None).next().is_none() => {
                    // Nothing but dates, which need no chunk of their own.
                    self.add_sessions(LeaseId(0), 0, &mut sessions)
                }
                0 => Some(Cursor::SESSIONS),
                next => Some(Cursor::Records(next)),
            },
            Cursor::Sessions(lease, sequence) => self.add_sessions(lease, sequence, &mut sessions),
        };
        effects.send(
            from,
            &Message::Chunk(Chunk {
                request,
                next,
                floor: self.floors.floor,
                next_floor: self.floors.next_floor,
                entries: &entries,
                sessions: &sessions,
            }),
        );
        self.scratch = entries;
    }

    /// Adds records to a chunk, and gives the place where the scan goes on.
    fn add_entries(
        &mut self,
        to: NodeId,
        place: u64,
        entries: &mut Vec<u8>,
        effects: &mut impl Effects<Self>,
    ) -> u64 {
        let mut next = place;
        loop {
            let mut handles = Vec::new();
            next = self.table.scan(next, SCAN_RECORDS, &mut |handle| handles.push(handle));
            for handle in handles {
                self.add_entry(to, handle, entries, effects);
            }
            if next == 0 || entries.len() >= limits::CHUNK_BYTES {
                return next;
            }
        }
    }

    fn add_sessions(&self, lease: LeaseId, sequence: u64, out: &mut Vec<u8>) -> Option<Cursor> {
        let next = self.tracker.encode_from((lease, sequence), limits::CHUNK_BYTES, out);
        next.map(|(lease, sequence)| Cursor::Sessions(lease, sequence))
    }

    fn add_entry(
        &mut self,
        to: NodeId,
        handle: T::Handle,
        entries: &mut Vec<u8>,
        effects: &mut impl Effects<Self>,
    ) {
        let record = self.table.lock(handle);
        let meta = record.meta();
        if meta.is_blank() {
            return;
        }
        let content = record.content();
        let valid = meta.state == State::Valid;
        let tentative = self.tentative.get(&handle);
        let answer = tentative.map_or(0, |tentative| tentative.answer.bytes().len());
        let bytes = content.map_or(0, |content| content.bytes.len());
        let apart = bytes + answer > VALUE_BYTES_IN_CHUNK;
        if apart {
            // Goes before the chunk on the same connection, so the shadow usually has it by then.
            effects.send(to, &Message::Inv(inv_of(&record, Slot::NONE, tentative)));
            if valid {
                let val = Val { key: record.key(), timestamp: meta.timestamp };
                effects.send(to, &Message::Val(val));
            }
        }
        let entry = Entry {
            key: record.key(),
            timestamp: meta.timestamp,
            rmw: meta.rmw,
            valid,
            apart,
            content: content.filter(|_| !apart),
            completion: tentative
                .filter(|_| !apart && !mutant!("hermes_chunk_without_call"))
                .map(Tentative::completion),
        };
        entry.encode(&mut Writer(entries));
    }

    /// Some records arrived.
    pub(crate) fn on_chunk(
        &mut self,
        now: Now,
        from: NodeId,
        chunk: &Chunk<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Copying::From { donor, request, .. } = &self.copying else {
            return effects.ignored("hermes: chunk while not copying");
        };
        if *donor != Some(from) || *request != chunk.request {
            return effects.ignored("hermes: chunk of an earlier request");
        }
        let mut reader = Reader(chunk.entries);
        let mut complete = true;
        while !reader.0.is_empty() {
            let Ok(entry) = Entry::decode(&mut reader) else {
                return effects.ignored("hermes: damaged chunk");
            };
            complete &= self.adopt_entry(now, from, &entry, effects);
        }
        if !complete {
            // Ask for this chunk again after a while.
            return;
        }
        if !chunk.sessions.is_empty()
            && !mutant!("hermes_sessions_not_copied")
            && self.tracker.merge(chunk.sessions).is_err()
        {
            return effects.ignored("hermes: damaged chunk");
        }
        self.floors.raise_next(chunk.next_floor);
        let Some(next) = chunk.next else {
            self.tracker.end_copy();
            self.floors.finish_shadow(chunk.floor);
            self.copying = Copying::Done;
            return;
        };
        let fresh_request = self.rng.next_u64();
        if let Copying::From { request, cursor, tries, .. } = &mut self.copying {
            *request = fresh_request;
            *cursor = next;
            *tries = 0;
        }
        self.ask_for_chunk(now, effects);
    }

    /// Takes over a donor's record as an INV's if it is newer; says whether the record is here now.
    fn adopt_entry(
        &mut self,
        now: Now,
        donor: NodeId,
        entry: &Entry<'_>,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let handle = self.table.find_or_insert(entry.key);
        let meta = self.table.lock(handle).meta();
        if entry.apart {
            // A value that was sent apart may not have come yet.
            let here = entry.timestamp <= meta.timestamp;
            if !here {
                effects.probe("hermes: chunk waits for a large value");
            }
            return here;
        }
        if entry.timestamp < meta.timestamp
            && entry.completion.is_some()
            && !mutant!("hermes_shadow_guesses_fate")
        {
            effects.probe("hermes: chunk waits for the fate of a call");
            let record = self.table.lock(handle);
            let inv = inv_of(&record, Slot::NONE, self.tentative.get(&handle));
            effects.send(donor, &Message::Inv(inv));
            return false;
        }
        if entry.timestamp > meta.timestamp {
            let Entry { key, timestamp, rmw, content, completion, .. } = *entry;
            let inv = Inv { cookie: Slot::NONE, key, timestamp, rmw, content, completion };
            if meta.op != Slot::NONE {
                effects.probe("hermes: a chunk overtakes an update");
            }
            self.cover(handle, meta, inv.base_version(), effects);
            if !mutant!("hermes_chunk_supersedes_nothing") {
                self.supersede(now, meta, &inv, effects);
            }
            self.adopt(now, donor, handle, &inv, effects);
        } else if entry.timestamp == meta.timestamp {
            self.learn_call(handle, meta, entry.completion.as_ref());
        }
        let meta = self.table.lock(handle).meta();
        if entry.valid && entry.timestamp == meta.timestamp && meta.state == State::Invalid {
            self.validate(now, handle, effects);
        }
        self.counters.copied += 1;
        true
    }
}
