//! Joining as a shadow replica (thesis §4.3.3; chunk rule in §3.6 of the notes).
//!
//! A shadow acknowledges every update like any live replica and meanwhile copies all records from
//! an active one, the *donor*. An entry is adopted only if its timestamp exceeds the local one, so
//! a chunk never overwrites an update that arrived first; it is readable only if the donor's copy
//! was. Any update that was acknowledged before the shadow joined was in the donor's table before
//! the donor entered the shadow's epoch, and the donor reads its table after that.

use alloc::vec::Vec;

use quorate_machine::{Effects, Operation, Record, Slot, Table, mutant};
use quorate_types::{Instant, NodeId, NodeSet, Now, limits};
use quorate_wire::{Reader, Writer};

use crate::message::{Chunk, Entry, Inv, Message, Val};
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
    From { donor: Option<NodeId>, request: u64, cursor: u64, tries: u32, retry_at: Instant },
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
        self.copying =
            Copying::From { donor, request, cursor: 0, tries: 0, retry_at: now.monotonic };
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
        cursor: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.active.contains(self.config.node) {
            return effects.ignored("hermes: asked for a chunk while not active");
        }
        let mut entries = core::mem::take(&mut self.scratch);
        entries.clear();
        let mut next = cursor;
        loop {
            let mut handles = Vec::new();
            next = self.table.scan(next, SCAN_RECORDS, &mut |handle| handles.push(handle));
            for handle in handles {
                self.add_entry(from, handle, &mut entries, effects);
            }
            if next == 0 || entries.len() >= limits::CHUNK_BYTES {
                break;
            }
        }
        effects.send(
            from,
            &Message::Chunk(Chunk {
                request,
                next,
                floor: self.floors.floor,
                next_floor: self.floors.next_floor,
                entries: &entries,
            }),
        );
        self.scratch = entries;
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
        let apart = content.is_some_and(|content| content.bytes.len() > VALUE_BYTES_IN_CHUNK);
        if apart {
            // Goes before the chunk on the same connection, so the shadow usually has it by then.
            effects.send(to, &Message::Inv(inv_of(&record, Slot::NONE)));
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
            // A value that was sent apart has not come; ask for this chunk again after a while.
            effects.probe("hermes: chunk waits for a large value");
            return;
        }
        self.floors.raise_next(chunk.next_floor);
        if chunk.next == 0 {
            self.floors.finish_shadow(chunk.floor);
            self.copying = Copying::Done;
            return;
        }
        let fresh_request = self.rng.next_u64();
        if let Copying::From { request, cursor, tries, .. } = &mut self.copying {
            *request = fresh_request;
            *cursor = chunk.next;
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
            return entry.timestamp <= meta.timestamp;
        }
        if entry.timestamp > meta.timestamp {
            let Entry { key, timestamp, rmw, content, .. } = *entry;
            let inv = Inv { cookie: Slot::NONE, key, timestamp, rmw, content };
            if meta.op != Slot::NONE {
                effects.probe("hermes: a chunk overtakes an update");
            }
            if !mutant!("hermes_chunk_supersedes_nothing") {
                self.supersede(now, meta, &inv, effects);
            }
            self.adopt(now, donor, handle, &inv, effects);
        }
        let meta = self.table.lock(handle).meta();
        if entry.valid && entry.timestamp == meta.timestamp && meta.state == State::Invalid {
            self.validate(now, handle, effects);
        }
        self.counters.copied += 1;
        true
    }
}
