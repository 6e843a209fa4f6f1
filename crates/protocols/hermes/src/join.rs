//! Joining as a shadow replica (§4.3.3; the rule for chunks is in N3.6).
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
//!
//! A chunk only names values that are too large for it, and the shadow asks for those that it lacks,
//! a few at a time: however much a donor holds, there is never more on its way than the shadow has
//! asked for. A shadow that hears from its donor keeps its place and only becomes more patient: what
//! does not come soon may still stand in line behind something large.
//!
//! A shadow that has records already, of an earlier life or from a donor that it has lost, compares
//! them and copies what differs (`difference.rs`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use quorate_machine::difference::Comparing;
use quorate_machine::{Command, Copier, Effects, Record, Scan, Slot, Table, mutant};
use quorate_rifl::{Found, LeaseId};
use quorate_types::{Instant, Lsn, NodeId, NodeSet, Now, Timestamp, limits};
use quorate_wire::{Malformed, Reader, Words, Writer};

use crate::deltas::inv_of;
use crate::message::{Chunk, Completion, Cursor, Entry, Inv, Message, Val};
use crate::ops::Tentative;
use crate::{BYTES_PER_TIMEOUT, Hermes, Meta, State};

/// Records that a donor looks up before it looks at the size of its chunk; a table may give a few
/// more at a time.
const SCAN_RECORDS: usize = 12;
/// Longer values are only named in their chunk, and sent when they are asked for.
pub(crate) const VALUE_BYTES_IN_CHUNK: usize = limits::CHUNK_BYTES / 4;

const _: () = assert!(
    limits::CHUNK_BYTES + 2 * SCAN_RECORDS * (limits::KEY_BYTES_MAX + VALUE_BYTES_IN_CHUNK + 128)
        <= limits::MESSAGE_BYTES_MAX,
    "a chunk fits into a message"
);
/// Bytes of large values that a shadow asks for at a time, and at most one value more.
const VALUES_BYTES: usize = limits::CHUNK_BYTES;

const _: () = assert!(
    2 * (VALUES_BYTES + limits::MESSAGE_BYTES_MAX) <= limits::PEER_BUFFER_BYTES_MAX,
    "what is asked for twice still fits between two nodes"
);
/// Requests in a row, without any message of the donor, after which the shadow turns to another.
const SILENCE_MAX: u32 = 5;
/// Doublings after which the patience with a donor grows no more.
pub(crate) const PATIENCE_DOUBLINGS_MAX: u32 = 5;

/// How far a shadow has come.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Copying {
    /// Not a shadow, or no view yet.
    #[default]
    Idle,
    /// Under way.
    From(Source),
    /// Everything is here.
    Done,
}

/// What a shadow copies from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Source {
    pub(crate) copier: Copier,
    pub(crate) cursor: Cursor,
    /// Large values that the last chunk named and that are not here yet. They come before the next
    /// chunk.
    lacking: VecDeque<Lacking>,
    /// How many of them, from the front, have been asked for.
    asked: usize,
    /// Requests since the donor was last heard.
    silence: u32,
}

/// A large value that is asked for by its key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Lacking {
    key: Box<[u8]>,
    timestamp: Timestamp,
    bytes: usize,
}

impl Source {
    /// How many values to ask for now, and how many bytes they have.
    fn choose_values(&self) -> (usize, usize) {
        let (mut values, mut bytes) = (0, 0);
        for lacking in &self.lacking {
            if bytes >= VALUES_BYTES {
                break;
            }
            values += 1;
            bytes += lacking.bytes;
        }
        (values, bytes)
    }
}

impl Copying {
    pub(crate) fn is_done(&self) -> bool {
        *self == Self::Done
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        match self {
            Self::From(source) => source.copier.deadline(),
            Self::Idle | Self::Done => Instant::NEVER,
        }
    }

    /// A message of a replica arrived.
    #[inline]
    pub(crate) fn heard(&mut self, from: NodeId) {
        if let Self::From(source) = self
            && source.copier.donor() == Some(from)
        {
            source.silence = 0;
        }
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
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
            self.append_floors(effects);
            self.copied_at = self.journal.appended();
            return;
        }
        match &self.copying {
            Copying::Done => {}
            Copying::From(Source { copier, .. })
                if copier.donor().is_some_and(|donor| {
                    survivors.contains(donor) && self.active.contains(donor)
                }) =>
            {
                self.ask_donor(now, effects);
            }
            Copying::Idle | Copying::From(_) => {
                self.floors.begin_shadow();
                self.tracker.begin_copy();
                self.choose_donor(now, effects);
            }
        }
    }

    /// Starts from the first record of some active replica: cursors mean nothing to another one. Who
    /// has records compares them. Who has none copies all, and nothing is left of an earlier life: a
    /// donor that is lost by now may have named all of it as gone.
    fn choose_donor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let others = self.active.without(self.config.node);
        let count = others.len() as u64;
        let donor = if count == 0 { None } else { others.nth(self.rng.below(count) as usize) };
        let compares = !self.table.is_empty();
        self.has_base &= compares || mutant!("hermes_base_outlives_its_records");
        let comparing = compares.then(|| Comparing::new(self.table.len()));
        let mut copier = Copier::default();
        copier.turn_to(donor, self.rng.next_u64(), comparing);
        let (cursor, lacking) = (Cursor::START, VecDeque::new());
        self.copying = Copying::From(Source { copier, cursor, lacking, asked: 0, silence: 0 });
        self.ask_donor(now, effects);
    }

    /// Asks for the values that are lacking, or for the next chunk if none is.
    pub(crate) fn ask_donor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Copying::From(source) = &mut self.copying else { return };
        let (values, bytes) = source.choose_values();
        source.asked = values;
        let timeouts = 2 * (1 + (bytes / BYTES_PER_TIMEOUT) as u32);
        source.copier.ask(now, self.config.message_loss_timeout * timeouts);
        let Some(donor) = source.copier.donor() else { return };
        if values == 0 {
            let (request, cursor) = (source.copier.request(), source.cursor);
            if source.copier.comparing().is_some() {
                return self.ask_difference(donor, effects);
            }
            return effects.send(donor, &Message::ChunkRead { request, cursor });
        }
        let mut keys = Vec::new();
        let mut writer = Writer(&mut keys);
        source.lacking.iter().take(values).for_each(|lacking| writer.bytes(&lacking.key));
        effects.send(donor, &Message::ValueRead { keys: &keys });
    }

    /// No answer came in time.
    pub(crate) fn on_chunk_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Copying::From(source) = &mut self.copying else { return };
        source.copier.lose_patience(PATIENCE_DOUBLINGS_MAX, self.table.len());
        source.silence += 1;
        if source.copier.donor().is_none() || source.silence > SILENCE_MAX {
            effects.probe("hermes: shadow changes its donor");
            self.choose_donor(now, effects);
        } else {
            self.ask_donor(now, effects);
        }
    }

    /// An INV may have brought a value that is lacking.
    pub(crate) fn take_lacking(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Copying::From(source) = &mut self.copying else { return };
        let before = source.asked;
        while source.asked > 0
            && let Some(lacking) = source.lacking.front()
            && let Some(handle) = self.table.find(&lacking.key)
            && self.table.lock(handle).meta().timestamp >= lacking.timestamp
        {
            source.lacking.pop_front();
            source.asked -= 1;
        }
        if before > 0 && source.asked == 0 {
            source.copier.answered(now, source.copier.request());
            self.ask_donor(now, effects);
        }
    }

    /// A shadow asks this replica for values that its chunk only named, or a replica for one whose delta
    /// it can't apply.
    pub(crate) fn on_value_read(
        &mut self,
        from: NodeId,
        keys: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let mut reader = Reader(keys);
        while !reader.0.is_empty() {
            let Ok(key) = reader.bytes() else {
                return effects.refused("hermes: damaged list of keys");
            };
            if let Some(reason) = self.refuse_update(key, 0, 0) {
                return effects.refused(reason);
            }
            // A key that is gone here was deleted with the shadow's acknowledgement.
            let Some(handle) = self.table.find(key) else { continue };
            let record = self.table.lock(handle);
            let meta = record.meta();
            if meta.is_blank() {
                continue;
            }
            // Who asks may lack the base of a delta.
            let (cookie, call) = (Self::driving_op(&meta), self.tentative.get(&handle));
            let mut whole = Vec::new();
            let inv = inv_of(&record, cookie, call, None, &mut whole);
            effects.send(from, &Message::Inv(inv));
            if meta.state == State::Valid {
                let val = Val { key, timestamp: meta.timestamp };
                effects.send(from, &Message::Val(val));
            }
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
            Cursor::Records(place) => match self.add_entries(place, &mut entries) {
                // Nothing is left but dates, which need no chunk of their own. But a shadow goes on
                // to sessions only when it has the values that it lacks.
                Added { next: 0, values_left_out: false }
                    if self.tracker.leases_after(None).next().is_none() =>
                {
                    self.add_sessions(LeaseId(0), 0, &mut sessions)
                }
                Added { next: 0, .. } => Some(Cursor::SESSIONS),
                Added { next, .. } => Some(Cursor::Records(next)),
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
                in_doubt: self.floors.is_in_doubt(),
                entries: &entries,
                gone: Words::NONE,
                sessions: &sessions,
            }),
        );
        self.scratch = entries;
    }

    /// Adds records to a chunk.
    fn add_entries(&mut self, place: u64, entries: &mut Vec<u8>) -> Added {
        let (mut scan, mut values_left_out) = (Scan::at(place), false);
        loop {
            for handle in scan.next_handles(&self.table, SCAN_RECORDS) {
                values_left_out |= self.add_entry(handle, VALUE_BYTES_IN_CHUNK, entries);
            }
            if scan.is_at_end() || entries.len() >= limits::CHUNK_BYTES {
                return Added { next: scan.cursor(), values_left_out };
            }
        }
    }

    fn add_sessions(&self, lease: LeaseId, sequence: u64, out: &mut Vec<u8>) -> Option<Cursor> {
        let next = self.tracker.encode_from((lease, sequence), limits::CHUNK_BYTES, out);
        next.map(|(lease, sequence)| Cursor::Sessions(lease, sequence))
    }

    /// Adds a record to a chunk, with its value if that has at most so many bytes; whether it was left
    /// out.
    pub(crate) fn add_entry(
        &mut self,
        handle: T::Handle,
        value_bytes_max: usize,
        entries: &mut Vec<u8>,
    ) -> bool {
        let record = self.table.lock(handle);
        let meta = record.meta();
        if meta.is_blank() {
            return false;
        }
        let mut whole = Vec::new();
        let content = record.whole(&mut whole);
        let completion = self.tentative.get(&handle).map(Tentative::completion);
        let bytes = content.map_or(0, |content| content.bytes.len());
        let answer = completion.map_or(0, |completion| completion.answer.len());
        let apart = (bytes + answer > value_bytes_max).then_some((bytes + answer) as u32);
        let entry = Entry {
            key: record.key(),
            timestamp: meta.timestamp,
            rmw: meta.rmw,
            valid: meta.state == State::Valid,
            apart,
            content: content.filter(|_| apart.is_none()),
            completion: completion.filter(|_| !mutant!("hermes_chunk_without_call")).map(|call| {
                if apart.is_some() { Completion { answer: &[], ..call } } else { call }
            }),
        };
        entry.encode(&mut Writer(entries));
        apart.is_some()
    }

    /// Some records arrived.
    pub(crate) fn on_chunk(
        &mut self,
        now: Now,
        from: NodeId,
        chunk: &Chunk<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match self.take_records(now, from, chunk, effects) {
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => return effects.refused("hermes: damaged records"),
        }
        let Copying::From(Source { copier, .. }) = &self.copying else {
            return effects.ignored("hermes: chunk while not copying");
        };
        if !copier.expects(from, chunk.request) {
            return effects.ignored("hermes: chunk of an earlier request");
        }
        let mut reader = Reader(chunk.entries);
        let mut lacking = VecDeque::new();
        let mut complete = true;
        while !reader.0.is_empty() {
            let Ok(entry) = Entry::decode(&mut reader) else {
                return effects.refused("hermes: damaged chunk");
            };
            let length = entry.content.map_or(0, |content| content.bytes.len());
            let version = entry.timestamp.version;
            if let Some(reason) = self.refuse_update(entry.key, version, length) {
                return effects.refused(reason);
            }
            complete &= self.adopt_entry(now, from, &entry, &mut lacking, effects);
        }
        if complete {
            match self.follow_chunk(now, from, chunk, lacking.is_empty(), effects) {
                Err(_) => return effects.refused("hermes: damaged chunk"),
                Ok(true) => return,
                Ok(false) => {}
            }
        } else if lacking.is_empty() {
            // Ask for this chunk again after a while.
            return;
        }
        if let Copying::From(source) = &mut self.copying {
            source.lacking = lacking;
            if !complete {
                source.copier.answered(now, chunk.request);
            }
        }
        self.ask_donor(now, effects);
    }

    /// All of a chunk's records are here, or named: goes on to the next chunk. Returns whether this
    /// was the last one.
    fn follow_chunk(
        &mut self,
        now: Now,
        from: NodeId,
        chunk: &Chunk<'_>,
        lacks_nothing: bool,
        effects: &mut impl Effects<Self>,
    ) -> Result<bool, Malformed> {
        if !chunk.sessions.is_empty() && !mutant!("hermes_sessions_not_copied") {
            self.tracker.merge(chunk.sessions)?;
            self.append_sessions(chunk.sessions, effects);
        }
        self.floors.raise_next(chunk.next_floor);
        if let Copying::From(source) = &self.copying
            && source.copier.comparing().is_some()
        {
            return self.follow_difference(now, from, chunk, effects).map(|()| false);
        }
        match chunk.next {
            None if !lacks_nothing => Err(Malformed("hermes: the last chunk leaves values out")),
            None => {
                self.tracker.end_copy();
                self.floors.finish_shadow(chunk.floor);
                if chunk.in_doubt && !mutant!("hermes_shadow_does_not_doubt") {
                    self.doubt_what_others_have(false);
                }
                self.copying = Copying::Done;
                self.append_floors(effects);
                self.copied_at = match mutant!("hermes_copied_not_durable") {
                    false => self.journal.appended(),
                    true => Lsn::START,
                };
                Ok(true)
            }
            Some(next) => {
                let fresh_request = self.rng.next_u64();
                if let Copying::From(source) = &mut self.copying {
                    source.copier.answered(now, fresh_request);
                    source.cursor = next;
                }
                Ok(false)
            }
        }
    }

    /// Takes over a donor's record as an INV's if it is newer. Whether the record is here now or
    /// its value is among the lacking ones; otherwise the chunk has to come again.
    fn adopt_entry(
        &mut self,
        now: Now,
        donor: NodeId,
        entry: &Entry<'_>,
        lacking: &mut VecDeque<Lacking>,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let handle = self.find_or_insert(entry.key, effects);
        let meta = self.table.lock(handle).meta();
        if entry.timestamp < meta.timestamp
            && entry.completion.is_some()
            && !mutant!("hermes_shadow_guesses_fate")
        {
            effects.probe("hermes: chunk waits for the fate of a call");
            let record = self.table.lock(handle);
            let mut whole = Vec::new();
            let (call, undecided) = (self.tentative.get(&handle), self.deltas.get(&handle));
            let inv = inv_of(&record, Slot::NONE, call, undecided, &mut whole);
            effects.send(donor, &Message::Inv(inv));
            return false;
        }
        if let Some(bytes) = entry.apart {
            // The answer of a call travels with the value.
            let lacks_call = entry.completion.is_some_and(|completion| {
                !self.tentative.contains_key(&handle)
                    && matches!(self.tracker.find(&completion.call), Ok(Found::New))
                    && !mutant!("hermes_large_call_not_asked_for")
            });
            if entry.timestamp > meta.timestamp || lacks_call {
                effects.probe("hermes: chunk waits for a large value");
                let (key, timestamp) = (Box::from(entry.key), entry.timestamp);
                lacking.push_back(Lacking { key, timestamp, bytes: bytes as usize });
                return entry.completion.is_none();
            }
        } else if entry.timestamp > meta.timestamp {
            let Entry { key, timestamp, rmw, content, completion, .. } = *entry;
            let cookie = Slot::NONE;
            let inv = Inv { cookie, key, timestamp, rmw, content, base: None, completion };
            self.deltas.forget(&handle);
            if meta.op != Slot::NONE {
                effects.probe("hermes: a chunk overtakes an update");
            }
            self.cover(handle, meta, inv.base_version(), effects);
            if !mutant!("hermes_chunk_supersedes_nothing") {
                self.supersede(now, meta, &inv, effects);
            }
            self.adopt(now, donor, handle, &inv, effects);
        } else if entry.timestamp == meta.timestamp
            && self.learn_call(handle, meta, entry.completion.as_ref())
        {
            let Entry { key, timestamp, rmw, content, completion, .. } = *entry;
            let inv =
                Inv { cookie: Slot::NONE, key, timestamp, rmw, content, base: None, completion };
            self.append_update(&inv, effects);
        }
        let meta = self.table.lock(handle).meta();
        if entry.valid && entry.timestamp == meta.timestamp && meta.state == State::Invalid {
            self.validate(now, handle, effects);
        }
        self.counters.copied += 1;
        true
    }
}

/// What was added to a chunk.
struct Added {
    /// The place where the scan goes on, 0 at the end.
    next: u64,
    /// Whether some value is only named.
    values_left_out: bool,
}
