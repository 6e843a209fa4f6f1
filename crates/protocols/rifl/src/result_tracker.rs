//! The result of each call (the thesis's `ResultTracker`), beside the keys that the calls touch.
//!
//! The *date* of an attempt is a reading of the hybrid clock that expiries use, too: see
//! `docs/design/006-sessions.md`, which also has the argument for [`ResultTracker::admits`].

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use quorate_machine::{CallError, DetMap, mutant};
use quorate_types::limits;
use quorate_wire::{Malformed, Reader, Writer};

use crate::answer::AnswerBytes;
use crate::directory::Directory;
use crate::records::{Record, Records};
use crate::{Call, LeaseId};

/// Bytes that a short record takes in a chunk, at least.
const RECORD_BYTES: usize = 16;
/// The mark of a session that was first seen here while this replica copied: every attempt at its
/// calls begins again until the copy is whole.
const COPYING: u64 = u64::MAX;

/// The tracker's knowledge of a call that may be carried out or answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a, A> {
    /// No record: it may be attempted.
    New,
    /// It has taken effect, and this was its answer.
    Completed(&'a [u8]),
    /// This attempt at it is under way.
    InProgress(A),
}

/// What a replica has of a call, for those who look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept<'a> {
    /// Nothing: all calls of the session below this one are acknowledged.
    Acknowledged,
    /// Its record, with the answer.
    Record(&'a [u8]),
    /// Its effect, of which it is not known yet whether it is decided.
    Undecided,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Session {
    /// Every call below is acknowledged.
    acknowledged: u64,
    records: Records,
}

/// An attempt under way here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Open<A> {
    attempt: A,
    /// Bytes of memory that its answer will take.
    heap: usize,
}

/// The calls that one lane of a keyspace's partition knows of. `A` names an attempt.
///
/// A replica that has the effect of a call has its record, until the client has acknowledged it or
/// its lease is known to be expired, and nothing else ever takes a record away.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ResultTracker<A> {
    sessions: Directory<Session>,
    /// Calls that are being attempted here.
    in_progress: DetMap<(LeaseId, u64), Open<A>>,
    closed: BTreeSet<LeaseId>,
    /// Sessions that may have records elsewhere that are missing here: attempts dated at or
    /// below the mark begin again.
    marks: BTreeMap<LeaseId, u64>,
    /// Every lease that was ever discarded here was granted up to this date at most.
    discarded: u64,
    copying: bool,
}

impl<A> Default for ResultTracker<A> {
    fn default() -> Self {
        Self {
            sessions: Directory::default(),
            in_progress: DetMap::default(),
            closed: BTreeSet::new(),
            marks: BTreeMap::new(),
            discarded: 0,
            copying: false,
        }
    }
}

impl<A: Copy + PartialEq> ResultTracker<A> {
    /// The tracker's knowledge of a call. Only a record shows that a number was used for another
    /// command: an attempt under way may fail, and a client that asks about a block under its
    /// number, with another block, must not take the block for decided.
    ///
    /// # Errors
    /// The reason why it is refused for good.
    pub fn find(&self, call: &Call) -> Result<Found<'_, A>, CallError> {
        call.check()?;
        // No session is open and closed, so most calls take one look.
        if let Some(session) = self.sessions.get(call.lease) {
            if call.sequence < session.acknowledged && !mutant!("rifl_stale_executes") {
                return Err(CallError::Stale);
            }
            if let Some(record) = session.records.get(call.sequence) {
                if record.digest != call.digest {
                    return Err(CallError::Different);
                }
                return Ok(Found::Completed(record.answer.bytes()));
            }
        } else if self.closed.contains(&call.lease) {
            return Err(CallError::Closed);
        }
        match self.in_progress.get(&(call.lease, call.sequence)) {
            Some(open) => Ok(Found::InProgress(open.attempt)),
            None => Ok(Found::New),
        }
    }

    /// Whether an attempt dated `at` may pass, with regard to forgotten records.
    ///
    /// # Errors
    /// The date that the next attempt must exceed: a record of the session may be missing here.
    pub fn admits(&self, lease: LeaseId, at: u64) -> Result<(), u64> {
        let above = match self.marks.get(&lease) {
            Some(mark) => *mark,
            // Most dates are above all forgotten ones: then the session needn't be found.
            None if at > self.discarded || self.sessions.contains(lease) => 0,
            None => self.discarded,
        };
        if at <= above && !mutant!("rifl_undated") { Err(above) } else { Ok(()) }
    }

    /// Begins an attempt at a call that is [`Found::New`], whose answer has this length.
    pub fn begin(&mut self, call: &Call, attempt: A, answer: usize) {
        if mutant!("rifl_acknowledged_by_an_attempt") {
            self.acknowledge(call.lease, call.first_incomplete);
        }
        let open = Open { attempt, heap: AnswerBytes::heap_of(answer) };
        let before = self.in_progress.insert((call.lease, call.sequence), open);
        assert!(before.is_none(), "{call:?} is attempted twice at once");
    }

    /// An attempt has ended without effect. Does nothing if another one is under way.
    pub fn abandon(&mut self, call: &Call, attempt: A) {
        let name = (call.lease, call.sequence);
        self.in_progress.remove_if(&name, |open| open.attempt == attempt);
    }

    /// No attempt is under way any more.
    pub fn abandon_all(&mut self) {
        self.in_progress.clear();
    }

    /// An attempt dated `at` has taken effect here, with this answer. In the same step as the
    /// effect; harmless when repeated.
    pub fn complete(&mut self, call: &Call, attempt: A, at: u64, answer: impl Into<AnswerBytes>) {
        self.abandon(call, attempt);
        let session = match self.sessions.get_mut(call.lease) {
            Some(known) => known,
            None => {
                if self.closed.contains(&call.lease) {
                    return;
                }
                if self.copying {
                    self.marks.insert(call.lease, COPYING);
                } else if at <= self.discarded && !mutant!("rifl_unmarked") {
                    self.marks.insert(call.lease, self.discarded);
                }
                self.sessions.insert(call.lease, Session::default())
            }
        };
        session.acknowledge(call.first_incomplete);
        let acknowledged = call.sequence < session.acknowledged && !mutant!("rifl_resurrected");
        if !acknowledged && session.records.get(call.sequence).is_none() {
            let (sequence, digest) = (call.sequence, call.digest);
            session.records.insert(Record { sequence, digest, answer: answer.into() });
        }
    }

    /// The client has the answers of all calls below `first_incomplete`: forgets their records, and
    /// refuses these calls from now on.
    pub fn acknowledge(&mut self, lease: LeaseId, first_incomplete: u64) {
        if let Some(session) = self.sessions.get_mut(lease) {
            session.acknowledge(first_incomplete);
        }
    }

    /// Whether a session's answers, those of calls in progress too, leave room for one of this
    /// length.
    pub fn has_room(&self, lease: LeaseId, answer: usize) -> bool {
        Self::fits(0, answer) || Self::fits(self.room(lease), answer)
    }

    /// Bytes that a session's answers leave: none longer than a small share of the limit needs any.
    pub fn room(&self, lease: LeaseId) -> usize {
        limits::SESSION_ANSWER_BYTES_MAX.saturating_sub(self.held(lease))
    }

    /// Whether an answer of this length is to be kept where a session's answers leave so much room.
    pub fn fits(room: usize, answer: usize) -> bool {
        let share = limits::SESSION_ANSWER_BYTES_MAX / limits::SESSION_WINDOW as usize;
        answer <= share || answer <= room
    }

    /// Bytes of memory that a session's answers take, or will when its calls in progress complete.
    fn held(&self, lease: LeaseId) -> usize {
        let answers = |records: &Records| records.iter().map(|record| record.answer.heap()).sum();
        let kept: usize = self.sessions.get(lease).map_or(0, |session| answers(&session.records));
        if mutant!("rifl_open_answers_uncounted") {
            return kept;
        }
        kept + self.in_progress.sum(|(of, _), open| if *of == lease { open.heap } else { 0 })
    }

    /// The client will make no more calls. Frees its records; late ones are refused until
    /// [`ResultTracker::discard`]. Refused itself, with `false`, while a call is in progress.
    pub fn close(&mut self, lease: LeaseId) -> bool {
        if self.is_busy(lease) {
            return false;
        }
        self.marks.remove(&lease);
        if self.sessions.remove(lease).is_some() {
            self.closed.insert(lease);
        }
        true
    }

    /// Forgets a session whose lease is *known* to be expired, and was granted for no attempt dated
    /// above `granted`. Refused, with `false`, while a call is in progress (P4).
    pub fn discard(&mut self, lease: LeaseId, granted: u64) -> bool {
        if self.is_busy(lease) && !mutant!("rifl_discarded_in_progress") {
            return false;
        }
        self.sessions.remove(lease);
        self.closed.remove(&lease);
        self.marks.remove(&lease);
        self.discarded = self.discarded.max(granted);
        true
    }

    fn is_busy(&self, lease: LeaseId) -> bool {
        self.in_progress.any(|(of, _), _| *of == lease)
    }

    /// Sessions in order of lease, after this one, for a sweep to ask about.
    pub fn leases_after(&self, after: Option<LeaseId>) -> impl Iterator<Item = LeaseId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut open = self.sessions.leases_after(after);
        let mut closed = self.closed.range((from, Bound::Unbounded)).copied();
        let (mut next_open, mut next_closed) = (open.next(), closed.next());
        core::iter::from_fn(move || match (next_open, next_closed) {
            (Some(one), Some(other)) if one > other => {
                core::mem::replace(&mut next_closed, closed.next())
            }
            (Some(_), _) => core::mem::replace(&mut next_open, open.next()),
            (None, _) => core::mem::replace(&mut next_closed, closed.next()),
        })
    }

    /// Sessions with records or a watermark.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Attempts under way.
    pub fn in_progress(&self) -> usize {
        self.in_progress.len()
    }

    /// Records kept.
    pub fn records(&self) -> usize {
        self.sessions.values().map(|session| session.records.iter().count()).sum()
    }

    /// Shows each session with the call below which all are acknowledged, and its records. Of one that is closed no
    /// call is answered any more.
    pub fn each_record(&self, visit: &mut impl FnMut(LeaseId, u64, Kept<'_>)) {
        self.closed.iter().for_each(|lease| visit(*lease, u64::MAX, Kept::Acknowledged));
        for (lease, session) in self.sessions.iter() {
            visit(lease, session.acknowledged, Kept::Acknowledged);
            for record in session.records.iter() {
                visit(lease, record.sequence, Kept::Record(record.answer.bytes()));
            }
        }
    }

    /// Bytes of memory that a session takes besides its place in the map.
    pub fn bytes_of(&self, lease: LeaseId) -> usize {
        let session = self.sessions.get(lease);
        session.map_or(0, |session| size_of::<Session>() + session.records.heap())
    }

    // --- copies ----------------------------------------------------------------------------------
    //
    // ```text
    // discarded u64 | sessions ...
    // session: lease u64 | state u8 | mark u64 | [acknowledged u64 | count u32 | records ...]
    // record:  sequence u64 | digest u32 | answer bytes
    // ```
    // The bracket is missing in a closed session.

    /// Appends sessions in order of lease, from this session's record on and zeros for all, as far
    /// as they fit into `bytes_max`, but at least one record or session. A part may end within a
    /// session, and each part of a session has its watermark (P1). Returns where the next part
    /// begins.
    pub fn encode_from(
        &self,
        (lease, sequence): (LeaseId, u64),
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<(LeaseId, u64)> {
        let end = out.len().saturating_add(bytes_max);
        Writer(out).u64(self.discarded);
        let start = out.len();
        for next in self.leases_after(lease.0.checked_sub(1).map(LeaseId)) {
            let first = if next == lease { sequence } else { 0 };
            if out.len() > start && out.len() >= end {
                return Some((next, first));
            }
            if let Some(sequence) = self.encode_records(next, first, end, out) {
                return Some((next, sequence));
            }
        }
        None
    }

    /// Appends a session with its records from `first` on, at least one, as far as `out` does not
    /// get longer than `end`. Returns the first record left.
    fn encode_records(
        &self,
        lease: LeaseId,
        first: u64,
        end: usize,
        out: &mut Vec<u8>,
    ) -> Option<u64> {
        let mut writer = Writer(out);
        writer.u64(lease.0);
        let session = self.sessions.get(lease);
        writer.u8(u8::from(session.is_some()));
        writer.u64(self.marks.get(&lease).copied().unwrap_or_default());
        let session = session?;
        writer.u64(session.acknowledged);
        let mut records: Vec<&Record> =
            session.records.iter().filter(|record| record.sequence >= first).collect();
        records.sort_unstable_by_key(|record| record.sequence);
        let start = writer.0.len() + size_of::<u32>();
        let mut length = start;
        let fits = |record: &&Record| {
            let alone = length == start;
            length += RECORD_BYTES + record.answer.bytes().len();
            alone || length <= end
        };
        let count = records.iter().copied().take_while(fits).count();
        writer.u32(count as u32);
        for record in &records[..count] {
            writer.u64(record.sequence);
            writer.u32(record.digest);
            writer.bytes(record.answer.bytes());
        }
        records.get(count).map(|record| record.sequence)
    }

    /// From now on this replica copies the records of others: it takes part in no vote, and its
    /// records of a session may be incomplete.
    pub fn begin_copy(&mut self) {
        self.copying = true;
    }

    /// Merges a part that another replica wrote with [`ResultTracker::encode_from`].
    ///
    /// # Errors
    /// If the bytes are damaged; sessions before the damage are merged.
    pub fn merge(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(bytes);
        let discarded = reader.u64()?;
        self.discarded = self.discarded.max(discarded);
        while !reader.0.is_empty() {
            self.merge_session(&mut reader)?;
        }
        Ok(())
    }

    fn merge_session(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let lease = LeaseId(reader.u64()?);
        let open = match reader.u8()? {
            number @ (0 | 1) => number == 1,
            _ => return Err(Malformed("neither 0 nor 1")),
        };
        let mark = reader.u64()?;
        if !open {
            self.sessions.remove(lease);
            self.marks.remove(&lease);
            self.closed.insert(lease);
            return Ok(());
        }
        let acknowledged = reader.u64()?;
        let count = reader.u32()?;
        if u64::from(count) > limits::SESSION_WINDOW {
            return Err(Malformed("more records than a window has"));
        }
        let mut records = Vec::with_capacity((count as usize).min(reader.0.len() / RECORD_BYTES));
        for _ in 0..count {
            let (sequence, digest) = (reader.u64()?, reader.u32()?);
            let answer = AnswerBytes::new(reader.bytes()?);
            if sequence < acknowledged || sequence - acknowledged >= limits::SESSION_WINDOW {
                return Err(Malformed("a record outside its session's window"));
            }
            records.push(Record { sequence, digest, answer });
        }
        if self.closed.contains(&lease) {
            return Ok(());
        }
        // Records here that are further ahead were made with a later acknowledgement.
        let known = match self.sessions.get_mut(lease) {
            Some(known) => known,
            None => self.sessions.insert(lease, Session::default()),
        };
        if !mutant!("rifl_watermark_left_behind") {
            known.acknowledge(acknowledged);
        }
        for record in records {
            let fits = record.sequence >= known.acknowledged
                && record.sequence - known.acknowledged < limits::SESSION_WINDOW;
            if fits && known.records.get(record.sequence).is_none() {
                known.records.insert(record);
            }
        }
        match mark {
            0 => self.marks.remove(&lease),
            mark => self.marks.insert(lease, mark),
        };
        Ok(())
    }

    /// The copy is whole: a session that was seen during the copy but not copied is treated like a
    /// new one.
    pub fn end_copy(&mut self) {
        self.copying = false;
        for mark in self.marks.values_mut().filter(|mark| **mark == COPYING) {
            *mark = self.discarded;
        }
        // A mark of 0 marks nothing.
        self.marks.retain(|_, mark| *mark > 0);
    }

    /// Asserts the invariants between steps.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        for (lease, session) in self.sessions.iter() {
            assert!(!self.closed.contains(&lease), "{lease:?} is open and closed");
            for record in session.records.iter() {
                let window = session.acknowledged
                    ..session.acknowledged.saturating_add(limits::SESSION_WINDOW);
                assert!(
                    window.contains(&record.sequence),
                    "{lease:?} holds a record outside its window"
                );
            }
        }
        for lease in self.marks.keys() {
            assert!(self.sessions.contains(*lease), "{lease:?} is marked and unknown");
        }
    }
}

impl Session {
    #[inline]
    fn acknowledge(&mut self, first_incomplete: u64) {
        if first_incomplete > self.acknowledged {
            self.acknowledged = first_incomplete;
            self.records.drop_below(first_incomplete);
        }
    }
}
