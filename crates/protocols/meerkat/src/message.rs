//! Peer messages and their layouts.
//!
//! ```text
//! partition u16 | kind u8 | fields ...
//! ```
//! Integers are little-endian; a timestamp is `version u64 | writer u32`; `bytes` have a length of four
//! bytes before them, and a body as the last field has none. The frame's header has the epoch.

use quorate_rifl::{Call, CallError, Found, LeaseId};
use quorate_types::{NodeSet, Timestamp};
use quorate_wire::{Malformed, Reader, Words, Writer};

use crate::body::Body;
use crate::join::CallsCursor;
use crate::occ::{Conflict, Reason};

/// A replica's verdict on a transaction.
pub type Vote = Result<(), Conflict>;

/// A message about one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The partition, 0 in a keyspace that has only one.
    pub partition: u16,
    /// What it says.
    pub kind: Kind<'a>,
}

/// What a message says. N3.1 lists what the paper's messages lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind<'a> {
    /// Coordinator without a replica of its own → replica: what do these keys hold?
    Get {
        /// Comes back in the answer.
        request: u64,
        /// The keys, each with its length before it.
        keys: &'a [u8],
    },
    /// Its answer.
    Values {
        /// As in the request.
        request: u64,
        /// The replica's hybrid clock, so that the reader's clock is not behind it.
        clock: u64,
        /// The keys as written at the versions that the replica holds: a body without bases whose
        /// items carry the values, and the versions before it.
        items: &'a [u8],
    },
    /// Coordinator → replicas (§5.2.2): may this transaction commit at its timestamp?
    Validate {
        /// Its id.
        id: Timestamp,
        /// Everything that this coordinator started up to here is final on all replicas.
        stable: u64,
        /// Every partition that takes part, as a bit set.
        participants: u64,
        /// The read and write sets within this partition.
        body: Body<'a>,
    },
    /// Replica → coordinator: its verdict, the same each time.
    Vote {
        /// The transaction.
        id: Timestamp,
        /// The verdict.
        vote: Vote,
    },
    /// Proposer → replicas (slow path, §5.2.2, and recovery, §5.3.2): take this for the vote of
    /// the partition.
    Accept {
        /// The transaction.
        id: Timestamp,
        /// The proposer's view; 0 is the coordinator's.
        view: u64,
        /// The proposed vote.
        ok: bool,
        /// As in `Validate`.
        participants: u64,
        /// As in `Validate`. `None` if it is unknown: an abort can be proposed without it.
        body: Option<Body<'a>>,
    },
    /// Replica → proposer: taken.
    Accepted {
        /// The transaction.
        id: Timestamp,
        /// In this view.
        view: u64,
    },
    /// Replica → proposer: somebody with a higher view is at it.
    Superseded {
        /// The transaction.
        id: Timestamp,
        /// That view.
        view: u64,
    },
    /// Coordinator → replicas (§5.2.3), and the answer to anything about a transaction that is
    /// decided: this is how it ended.
    Decided {
        /// The transaction.
        id: Timestamp,
        /// Whether it committed.
        commit: bool,
        /// The sets, for a replica that may lack them.
        body: Option<Body<'a>>,
    },
    /// Replica → coordinator: the ends of these transactions are known here.
    Acked {
        /// Ids, one after the other.
        ids: &'a [u8],
    },
    /// Replica → replica: these transactions of guests have committed; do you know? Answered with
    /// `Acked`, or with `Pull`.
    Named {
        /// As in `Acked`.
        ids: &'a [u8],
    },
    /// Replica → coordinator: it committed, you say, but I lack what it did.
    Pull {
        /// The transaction.
        id: Timestamp,
    },
    /// Backup coordinator → replicas (§5.3.2): promise to listen to no lower view.
    Prepare {
        /// The transaction.
        id: Timestamp,
        /// The view.
        view: u64,
    },
    /// Replica → backup coordinator: promised, and this is what I know.
    Promise {
        /// The transaction.
        id: Timestamp,
        /// The view.
        view: u64,
        /// The verdict that this replica gave in view 0.
        vote: Option<Vote>,
        /// The latest proposal that it took: its view and what it was.
        accepted: Option<(u64, bool)>,
        /// As in `Validate`; 0 if unknown.
        participants: u64,
        /// The sets, if they are known.
        body: Option<Body<'a>>,
    },
    /// Coordinator → a read quorum: do these keys still hold these versions, and will they until
    /// this timestamp?
    Check {
        /// The reader's timestamp; comes back in the answer.
        at: Timestamp,
        /// The keys with the versions that were read.
        body: Body<'a>,
    },
    /// Its answer.
    Checked {
        /// As in the request.
        at: Timestamp,
        /// They do, or what is in the way.
        result: Vote,
    },
    /// Coordinator → replicas: as in `Validate`, when there is nothing to validate.
    Stable {
        /// The version.
        stable: u64,
    },
    /// Coordinator without a replica of the home partition → replica: what became of this call?
    Find {
        /// Comes back in the answer.
        request: u64,
        /// The call.
        call: Call,
    },
    /// Its answer.
    Found {
        /// As in the request.
        request: u64,
        /// The replica's hybrid clock.
        clock: u64,
        /// What became of it.
        found: Result<Found<'a, Timestamp>, CallError>,
    },
    /// Joining replica → active one: what became of the calls of sessions from here on?
    CallsRead {
        /// Comes back in the answer.
        request: u64,
        /// A session and a call of it; zeros begin.
        cursor: CallsCursor,
    },
    /// Its answer.
    Calls {
        /// As in the request.
        request: u64,
        /// Where to go on, if there are more.
        next: Option<CallsCursor>,
        /// The sessions ([`quorate_rifl::ResultTracker::encode_from`]).
        sessions: &'a [u8],
    },
    /// Leader → members (epoch change, §5.3.1): you are frozen; part `part` of what you know?
    Freeze {
        /// Counted from 0.
        part: u32,
    },
    /// Its answer.
    Frozen {
        /// As in the request.
        part: u32,
        /// How many parts there are.
        parts: u32,
        /// The part.
        bytes: &'a [u8],
    },
    /// Leader → active members: take in what these shadows have kept of the last epoch.
    TakeIn {
        /// They came back as well, and were removed before this epoch was released.
        former: NodeSet,
    },
    /// Its answer: done.
    TakenIn {
        /// As in the request.
        former: NodeSet,
    },
    /// Leader → members: part `part` of what was decided; keep it, act on it when it is released.
    Adopt {
        /// Counted from 0.
        part: u32,
        /// How many parts there are.
        parts: u32,
        /// The part.
        bytes: &'a [u8],
    },
    /// Member → leader: kept everything up to this part.
    Adopted {
        /// Parts kept.
        parts: u32,
    },
    /// Leader → members: everybody has kept it; go on.
    Release,
    /// Joining replica → active one: records from here on, please.
    ChunkRead {
        /// Comes back in the answer.
        request: u64,
        /// Where to go on; 0 begins.
        cursor: u64,
        /// Of the records there, only those whose keys come after this one.
        after: Option<&'a [u8]>,
    },
    /// Its answer.
    Chunk {
        /// As in the request.
        request: u64,
        /// Where to go on; 0 at the end.
        next: u64,
        /// Whether there are more records at the same cursor, after the last key of these.
        more: bool,
        /// The records.
        entries: &'a [u8],
    },
    /// Joining replica that has records → active one: in which of these buckets do you hold others?
    Compare {
        /// What is compared.
        comparison: Comparison,
        /// The first bucket.
        first: u64,
        /// For this bucket and those that follow, the sum of the hashes of the sender's records.
        digests: Words<'a>,
    },
    /// In these.
    Compared {
        /// As in the request.
        request: u64,
        /// The sender's hybrid clock: above every timestamp at which its records were read.
        clock: u64,
        /// How many records the sender has. If they are too many for buckets of this size, nothing
        /// was compared.
        records: u64,
        /// The buckets, in order.
        buckets: Words<'a>,
    },
    /// Joining replica → active one: what do I lack in these buckets?
    DifferenceRead {
        /// What is compared.
        comparison: Comparison,
        /// The buckets, in order.
        buckets: Words<'a>,
        /// The hashes of the sender's records in them.
        held: Words<'a>,
    },
    /// Its answer.
    Difference {
        /// As in the request.
        request: u64,
        /// As in `Compared`.
        clock: u64,
        /// The buckets before this place are answered in full.
        until: u64,
        /// Of the hashes for these buckets, those of records that the sender does not hold, and
        /// perhaps others.
        gone: Words<'a>,
        /// The records.
        entries: &'a [u8],
    },
}

/// Which records two replicas compare, and the size of their buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comparison {
    /// Comes back in the answer, and seeds the hashes of the records.
    pub request: u64,
    /// The partitions whose keys count, as a bit set.
    pub partitions: u64,
    /// A bucket has two to the power of this many places.
    pub shift: u8,
}

impl Comparison {
    fn encode(self, writer: &mut Writer<'_>) {
        writer.u64(self.request);
        writer.u64(self.partitions);
        writer.u8(self.shift);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { request: reader.u64()?, partitions: reader.u64()?, shift: reader.u8()? })
    }
}

/// What a replica tells of many transactions at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Notice {
    /// See [`Kind::Acked`].
    Acked,
    /// See [`Kind::Named`].
    Named,
}

impl Notice {
    /// The message that has these ids.
    pub(crate) fn of(self, ids: &[u8]) -> Kind<'_> {
        match self {
            Self::Acked => Kind::Acked { ids },
            Self::Named => Kind::Named { ids },
        }
    }
}

/// 0 for OK, otherwise the reason plus 1 and the timestamp that was in the way.
pub(crate) fn write_vote(writer: &mut Writer<'_>, vote: Vote) {
    match vote {
        Ok(()) => writer.u8(0),
        Err(conflict) => {
            writer.u8(conflict.reason as u8 + 1);
            writer.timestamp(conflict.with);
        }
    }
}

pub(crate) fn read_vote(reader: &mut Reader<'_>) -> Result<Vote, Malformed> {
    let number = reader.u8()?;
    if number == 0 {
        return Ok(Ok(()));
    }
    let reason = Reason::ALL.get(usize::from(number) - 1).ok_or(Malformed("unknown reason"))?;
    Ok(Err(Conflict { reason: *reason, with: reader.timestamp()? }))
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("neither 0 nor 1")),
    }
}

fn write_body(writer: &mut Writer<'_>, body: Option<Body<'_>>) {
    writer.rest(body.map_or(&[], Body::bytes));
}

/// A body that is the last field; `None` if no byte is left.
fn read_body<'a>(reader: &mut Reader<'a>) -> Result<Option<Body<'a>>, Malformed> {
    let bytes = reader.rest();
    if bytes.is_empty() { Ok(None) } else { Body::check(bytes).map(Some) }
}

fn required(body: Option<Body<'_>>) -> Result<Body<'_>, Malformed> {
    body.ok_or(Malformed("a transaction without its sets"))
}

const GET: u8 = 1;
const VALUES: u8 = 2;
const VALIDATE: u8 = 3;
const VOTE: u8 = 4;
const ACCEPT: u8 = 5;
const ACCEPTED: u8 = 6;
const SUPERSEDED: u8 = 7;
const DECIDED: u8 = 8;
const ACKED: u8 = 9;
const PULL: u8 = 10;
const PREPARE: u8 = 11;
const PROMISE: u8 = 12;
const CHECK: u8 = 13;
const CHECKED: u8 = 14;
const STABLE: u8 = 15;
const FREEZE: u8 = 16;
const FROZEN: u8 = 17;
const ADOPT: u8 = 18;
const ADOPTED: u8 = 19;
const RELEASE: u8 = 20;
const CHUNK_READ: u8 = 21;
const CHUNK: u8 = 22;
const FIND: u8 = 23;
const FOUND: u8 = 24;
const CALLS_READ: u8 = 25;
const CALLS: u8 = 26;
const COMPARE: u8 = 27;
const COMPARED: u8 = 28;
const DIFFERENCE_READ: u8 = 29;
const DIFFERENCE: u8 = 30;
const NAMED: u8 = 31;
const TAKE_IN: u8 = 32;
const TAKEN_IN: u8 = 33;

/// The answers to FIND besides a completed call and one in progress, by number.
const FOUND_NEW: u8 = 0;
const FOUND_COMPLETED: u8 = 1;
const FOUND_IN_PROGRESS: u8 = 2;
const FOUND_IMPROPER: u8 = 3;
const IMPROPER: [CallError; 4] =
    [CallError::Stale, CallError::BeyondWindow, CallError::Different, CallError::Closed];

fn write_found(writer: &mut Writer<'_>, found: Result<Found<'_, Timestamp>, CallError>) {
    match found {
        Ok(Found::New) => writer.u8(FOUND_NEW),
        Ok(Found::Completed(answer)) => {
            writer.u8(FOUND_COMPLETED);
            writer.rest(answer);
        }
        Ok(Found::InProgress(id)) => {
            writer.u8(FOUND_IN_PROGRESS);
            writer.timestamp(id);
        }
        Err(why) => {
            let number = IMPROPER.iter().position(|known| *known == why).expect("all are listed");
            writer.u8(FOUND_IMPROPER + number as u8);
        }
    }
}

fn read_found<'a>(
    reader: &mut Reader<'a>,
) -> Result<Result<Found<'a, Timestamp>, CallError>, Malformed> {
    Ok(match reader.u8()? {
        FOUND_NEW => Ok(Found::New),
        FOUND_COMPLETED => Ok(Found::Completed(reader.rest())),
        FOUND_IN_PROGRESS => Ok(Found::InProgress(reader.timestamp()?)),
        number => {
            let why = IMPROPER.get(usize::from(number) - usize::from(FOUND_IMPROPER));
            Err(*why.ok_or(Malformed("unknown state of a call"))?)
        }
    })
}

fn write_cursor(writer: &mut Writer<'_>, (lease, sequence): CallsCursor) {
    writer.u64(lease.0);
    writer.u64(sequence);
}

fn read_cursor(reader: &mut Reader<'_>) -> Result<CallsCursor, Malformed> {
    Ok((LeaseId(reader.u64()?), reader.u64()?))
}

impl<'a> Message<'a> {
    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.u16(self.partition);
        match self.kind {
            Kind::Get { request, keys } => {
                writer.u8(GET);
                writer.u64(request);
                writer.rest(keys);
            }
            Kind::Values { request, clock, items } => {
                writer.u8(VALUES);
                writer.u64(request);
                writer.u64(clock);
                writer.rest(items);
            }
            Kind::Validate { id, stable, participants, body } => {
                writer.u8(VALIDATE);
                writer.timestamp(id);
                writer.u64(stable);
                writer.u64(participants);
                write_body(writer, Some(body));
            }
            Kind::Vote { id, vote } => {
                writer.u8(VOTE);
                writer.timestamp(id);
                write_vote(writer, vote);
            }
            Kind::Accept { id, view, ok, participants, body } => {
                writer.u8(ACCEPT);
                writer.timestamp(id);
                writer.u64(view);
                writer.u8(u8::from(ok));
                writer.u64(participants);
                write_body(writer, body);
            }
            Kind::Accepted { id, view } => {
                writer.u8(ACCEPTED);
                writer.timestamp(id);
                writer.u64(view);
            }
            Kind::Superseded { id, view } => {
                writer.u8(SUPERSEDED);
                writer.timestamp(id);
                writer.u64(view);
            }
            Kind::Decided { id, commit, body } => {
                writer.u8(DECIDED);
                writer.timestamp(id);
                writer.u8(u8::from(commit));
                write_body(writer, body);
            }
            Kind::Acked { ids } => {
                writer.u8(ACKED);
                writer.rest(ids);
            }
            Kind::Named { ids } => {
                writer.u8(NAMED);
                writer.rest(ids);
            }
            Kind::Pull { id } => {
                writer.u8(PULL);
                writer.timestamp(id);
            }
            Kind::Prepare { id, view } => {
                writer.u8(PREPARE);
                writer.timestamp(id);
                writer.u64(view);
            }
            Kind::Promise { id, view, vote, accepted, participants, body } => {
                writer.u8(PROMISE);
                writer.timestamp(id);
                writer.u64(view);
                writer.u8(u8::from(vote.is_some()));
                if let Some(vote) = vote {
                    write_vote(writer, vote);
                }
                writer.u8(u8::from(accepted.is_some()));
                if let Some((view, ok)) = accepted {
                    writer.u64(view);
                    writer.u8(u8::from(ok));
                }
                writer.u64(participants);
                write_body(writer, body);
            }
            _ => self.encode_rest(writer),
        }
    }

    /// The messages that are not about one update.
    fn encode_rest(&self, writer: &mut Writer<'_>) {
        match self.kind {
            Kind::Check { at, body } => {
                writer.u8(CHECK);
                writer.timestamp(at);
                write_body(writer, Some(body));
            }
            Kind::Checked { at, result } => {
                writer.u8(CHECKED);
                writer.timestamp(at);
                write_vote(writer, result);
            }
            Kind::Stable { stable } => {
                writer.u8(STABLE);
                writer.u64(stable);
            }
            Kind::Freeze { part } => {
                writer.u8(FREEZE);
                writer.u32(part);
            }
            Kind::Frozen { part, parts, bytes } => {
                writer.u8(FROZEN);
                writer.u32(part);
                writer.u32(parts);
                writer.rest(bytes);
            }
            Kind::TakeIn { former } => {
                writer.u8(TAKE_IN);
                writer.u64(former.bits());
            }
            Kind::TakenIn { former } => {
                writer.u8(TAKEN_IN);
                writer.u64(former.bits());
            }
            Kind::Adopt { part, parts, bytes } => {
                writer.u8(ADOPT);
                writer.u32(part);
                writer.u32(parts);
                writer.rest(bytes);
            }
            Kind::Adopted { parts } => {
                writer.u8(ADOPTED);
                writer.u32(parts);
            }
            Kind::Release => writer.u8(RELEASE),
            Kind::ChunkRead { request, cursor, after } => {
                writer.u8(CHUNK_READ);
                writer.u64(request);
                writer.u64(cursor);
                writer.u8(u8::from(after.is_some()));
                writer.rest(after.unwrap_or_default());
            }
            Kind::Chunk { request, next, more, entries } => {
                writer.u8(CHUNK);
                writer.u64(request);
                writer.u64(next);
                writer.u8(u8::from(more));
                writer.rest(entries);
            }
            Kind::Find { request, call } => {
                writer.u8(FIND);
                writer.u64(request);
                call.encode(writer);
            }
            Kind::Found { request, clock, found } => {
                writer.u8(FOUND);
                writer.u64(request);
                writer.u64(clock);
                write_found(writer, found);
            }
            Kind::CallsRead { request, cursor } => {
                writer.u8(CALLS_READ);
                writer.u64(request);
                write_cursor(writer, cursor);
            }
            Kind::Calls { request, next, sessions } => {
                writer.u8(CALLS);
                writer.u64(request);
                writer.u8(u8::from(next.is_some()));
                if let Some(next) = next {
                    write_cursor(writer, next);
                }
                writer.rest(sessions);
            }
            _ => self.encode_comparison(writer),
        }
    }

    /// The messages of a replica that compares what it has.
    fn encode_comparison(&self, writer: &mut Writer<'_>) {
        match self.kind {
            Kind::Compare { comparison, first, digests } => {
                writer.u8(COMPARE);
                comparison.encode(writer);
                writer.u64(first);
                writer.rest(digests.bytes());
            }
            Kind::Compared { request, clock, records, buckets } => {
                writer.u8(COMPARED);
                writer.u64(request);
                writer.u64(clock);
                writer.u64(records);
                writer.rest(buckets.bytes());
            }
            Kind::DifferenceRead { comparison, buckets, held } => {
                writer.u8(DIFFERENCE_READ);
                comparison.encode(writer);
                writer.bytes(buckets.bytes());
                writer.rest(held.bytes());
            }
            Kind::Difference { request, clock, until, gone, entries } => {
                writer.u8(DIFFERENCE);
                writer.u64(request);
                writer.u64(clock);
                writer.u64(until);
                writer.bytes(gone.bytes());
                writer.rest(entries);
            }
            _ => unreachable!("the others are encoded above"),
        }
    }

    /// Whether nobody's answer depends on it, so that it may wait a moment for company.
    pub fn is_lazy(&self) -> bool {
        let is_report = matches!(self.kind, Kind::Acked { .. } | Kind::Named { .. });
        is_report || matches!(self.kind, Kind::Decided { .. } | Kind::Stable { .. })
    }

    /// Reads a message; strings are borrowed from `bytes`.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let partition = reader.u16()?;
        let kind = decode_kind(&mut reader)?;
        reader.end()?;
        Ok(Self { partition, kind })
    }
}

fn decode_kind<'a>(reader: &mut Reader<'a>) -> Result<Kind<'a>, Malformed> {
    Ok(match reader.u8()? {
        GET => Kind::Get { request: reader.u64()?, keys: reader.rest() },
        VALUES => {
            Kind::Values { request: reader.u64()?, clock: reader.u64()?, items: reader.rest() }
        }
        VALIDATE => Kind::Validate {
            id: reader.timestamp()?,
            stable: reader.u64()?,
            participants: reader.u64()?,
            body: required(read_body(reader)?)?,
        },
        VOTE => Kind::Vote { id: reader.timestamp()?, vote: read_vote(reader)? },
        ACCEPT => Kind::Accept {
            id: reader.timestamp()?,
            view: reader.u64()?,
            ok: flag(reader)?,
            participants: reader.u64()?,
            body: read_body(reader)?,
        },
        ACCEPTED => Kind::Accepted { id: reader.timestamp()?, view: reader.u64()? },
        SUPERSEDED => Kind::Superseded { id: reader.timestamp()?, view: reader.u64()? },
        DECIDED => Kind::Decided {
            id: reader.timestamp()?,
            commit: flag(reader)?,
            body: read_body(reader)?,
        },
        ACKED => Kind::Acked { ids: reader.rest() },
        NAMED => Kind::Named { ids: reader.rest() },
        PULL => Kind::Pull { id: reader.timestamp()? },
        PREPARE => Kind::Prepare { id: reader.timestamp()?, view: reader.u64()? },
        PROMISE => {
            let (id, view) = (reader.timestamp()?, reader.u64()?);
            let vote = if flag(reader)? { Some(read_vote(reader)?) } else { None };
            let accepted = if flag(reader)? { Some((reader.u64()?, flag(reader)?)) } else { None };
            let participants = reader.u64()?;
            let body = read_body(reader)?;
            Kind::Promise { id, view, vote, accepted, participants, body }
        }
        CHECK => Kind::Check { at: reader.timestamp()?, body: required(read_body(reader)?)? },
        CHECKED => Kind::Checked { at: reader.timestamp()?, result: read_vote(reader)? },
        STABLE => Kind::Stable { stable: reader.u64()? },
        FREEZE => Kind::Freeze { part: reader.u32()? },
        FROZEN => Kind::Frozen { part: reader.u32()?, parts: reader.u32()?, bytes: reader.rest() },
        TAKE_IN => Kind::TakeIn { former: NodeSet::from_bits(reader.u64()?) },
        TAKEN_IN => Kind::TakenIn { former: NodeSet::from_bits(reader.u64()?) },
        ADOPT => Kind::Adopt { part: reader.u32()?, parts: reader.u32()?, bytes: reader.rest() },
        ADOPTED => Kind::Adopted { parts: reader.u32()? },
        RELEASE => Kind::Release,
        CHUNK_READ => {
            let (request, cursor) = (reader.u64()?, reader.u64()?);
            let after = if flag(reader)? { Some(reader.rest()) } else { None };
            Kind::ChunkRead { request, cursor, after }
        }
        CHUNK => {
            let (request, next) = (reader.u64()?, reader.u64()?);
            let more = flag(reader)?;
            Kind::Chunk { request, next, more, entries: reader.rest() }
        }
        FIND => Kind::Find { request: reader.u64()?, call: Call::decode(reader)? },
        FOUND => {
            Kind::Found { request: reader.u64()?, clock: reader.u64()?, found: read_found(reader)? }
        }
        CALLS_READ => Kind::CallsRead { request: reader.u64()?, cursor: read_cursor(reader)? },
        CALLS => Kind::Calls {
            request: reader.u64()?,
            next: if flag(reader)? { Some(read_cursor(reader)?) } else { None },
            sessions: reader.rest(),
        },
        COMPARE => Kind::Compare {
            comparison: Comparison::decode(reader)?,
            first: reader.u64()?,
            digests: Words::read(reader.rest())?,
        },
        COMPARED => Kind::Compared {
            request: reader.u64()?,
            clock: reader.u64()?,
            records: reader.u64()?,
            buckets: Words::read(reader.rest())?,
        },
        DIFFERENCE_READ => Kind::DifferenceRead {
            comparison: Comparison::decode(reader)?,
            buckets: Words::read(reader.bytes()?)?,
            held: Words::read(reader.rest())?,
        },
        DIFFERENCE => Kind::Difference {
            request: reader.u64()?,
            clock: reader.u64()?,
            until: reader.u64()?,
            gone: Words::read(reader.bytes()?)?,
            entries: reader.rest(),
        },
        _ => return Err(Malformed("unknown kind of message")),
    })
}

/// Reads the ids of an `Acked` or a `Named`.
pub(crate) fn ids(bytes: &[u8]) -> impl Iterator<Item = Timestamp> {
    let mut reader = Reader(bytes);
    core::iter::from_fn(move || reader.timestamp().ok())
}
