//! Transaction records: the trecord of §4.2 and §5.3.2, with what the paper's leaves out
//! (N2.2). Each lane has its own, touched by nobody else.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use quorate_types::{Instant, NodeSet, Timestamp, WriterId, limits};
use quorate_wire::{Malformed, Reader, Writer};

use crate::body::Body;
use crate::message::{Vote, read_vote, write_vote};

/// Names a record: all of a coordinator's stand together in order of time, so that what is stable
/// is dropped by range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordKey {
    /// Who coordinates it.
    pub writer: WriterId,
    /// When.
    pub version: u64,
    /// In which partition.
    pub partition: u16,
}

impl RecordKey {
    /// The record of a transaction in a partition.
    pub const fn new(id: Timestamp, partition: u16) -> Self {
        Self { writer: id.writer, version: id.version, partition }
    }

    /// The transaction.
    pub const fn id(&self) -> Timestamp {
        Timestamp::new(self.version, self.writer)
    }
}

impl Hash for RecordKey {
    /// As one word: a hash map of records is asked more often than anything else.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let low = u64::from(self.writer.0) << 16 | u64::from(self.partition);
        state.write_u128(u128::from(self.version) << 64 | u128::from(low));
    }
}

/// What a replica knows of a transaction in a partition.
///
/// ```text
/// (none) ─VALIDATE→ voted ─ACCEPT→ accepted ─DECIDED→ decided
///    └─PREPARE→ promised (no vote any more) ─ACCEPT→ accepted
///    └─DECIDED→ decided: a late VALIDATE finds it and registers nothing
/// ```
/// Decided is final; another decision about the same transaction stops the node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TxnRecord {
    /// The partitions that take part, as a bit set; 0 if unknown.
    pub participants: u64,
    /// The encoded sets; empty if unknown.
    pub body: Vec<u8>,
    /// The verdict in view 0. Never given twice, and never after a promise.
    pub vote: Option<Vote>,
    /// Whether the transaction is in the lists of its keys.
    pub registered: bool,
    /// The highest view that was joined: not the one in which something was accepted (Sutra, arXiv
    /// 1906.10917, tells what mixing the two costs).
    pub view: u64,
    /// The latest proposal taken: its view, and whether it was OK.
    pub accepted: Option<(u64, bool)>,
    /// How it ended.
    pub decision: Option<bool>,
    /// When it came.
    pub since: Instant,
    /// Of a guest's transaction that has committed here: who votes on it in this epoch and may not
    /// know of that yet. The record stays until all do.
    pub unaware: NodeSet,
}

/// Reads the number of a partition: sets of them are words.
pub(crate) fn read_partition(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    match reader.u16()? {
        partition if partition < limits::PARTITIONS_MAX => Ok(partition),
        _ => Err(Malformed("a partition beyond the limit")),
    }
}

const VOTED: u8 = 1;
const ACCEPTED: u8 = 2;
const ACCEPTED_OK: u8 = 4;
const DECIDED: u8 = 8;
const COMMITTED: u8 = 16;

impl TxnRecord {
    /// A transaction on which this replica has just voted. Nothing but a vote registers one, so what
    /// is registered has sets, and is undecided: its end takes it out (I7).
    ///
    /// # Panics
    /// If it may commit and does nothing.
    pub(crate) fn voted(participants: u64, body: Vec<u8>, vote: Vote, since: Instant) -> Self {
        let registered = vote.is_ok();
        assert!(!registered || !body.is_empty(), "what is registered has sets");
        Self { participants, body, vote: Some(vote), registered, since, ..Self::default() }
    }

    /// Takes a proposal of a view, which it joins with that (I10).
    pub(crate) fn accept(&mut self, view: u64, ok: bool) {
        self.view = view;
        self.accepted = Some((view, ok));
    }

    /// The sets, if they are known.
    pub fn body(&self) -> Option<Body<'_>> {
        (!self.body.is_empty()).then(|| Body::trusted(&self.body))
    }

    /// Appends the record for an epoch change.
    pub(crate) fn encode(&self, key: &RecordKey, writer: &mut Writer<'_>) {
        writer.timestamp(key.id());
        writer.u16(key.partition);
        writer.u64(self.participants);
        let mut flags = 0;
        flags |= if self.vote.is_some() { VOTED } else { 0 };
        flags |= match self.accepted {
            None => 0,
            Some((_, ok)) => ACCEPTED | if ok { ACCEPTED_OK } else { 0 },
        };
        flags |= match self.decision {
            None => 0,
            Some(commit) => DECIDED | if commit { COMMITTED } else { 0 },
        };
        writer.u8(flags);
        if let Some(vote) = self.vote {
            write_vote(writer, vote);
        }
        if let Some((view, _)) = self.accepted {
            writer.u64(view);
        }
        writer.bytes(&self.body);
    }

    /// Reads what [`TxnRecord::encode`] wrote.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<(RecordKey, Self), Malformed> {
        let id = reader.timestamp()?;
        let key = RecordKey::new(id, read_partition(reader)?);
        let participants = reader.u64()?;
        let flags = reader.u8()?;
        let vote = if flags & VOTED != 0 { Some(read_vote(reader)?) } else { None };
        let accepted = if flags & ACCEPTED != 0 {
            Some((reader.u64()?, flags & ACCEPTED_OK != 0))
        } else {
            None
        };
        let decision = (flags & DECIDED != 0).then_some(flags & COMMITTED != 0);
        let body = reader.bytes()?;
        if !body.is_empty() {
            Body::check(body)?;
        }
        let record =
            Self { participants, body: body.into(), vote, accepted, decision, ..Self::default() };
        Ok((key, record))
    }
}
