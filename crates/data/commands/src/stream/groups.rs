//! Consumer groups: see [`crate::stream`] for their bytes.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use quorate_machine::mutant;

use super::StreamId;
use super::bytes::{Damaged, put_item, put_number, take, take_item, take_number, unzigzag, zigzag};
use super::edit::{Changed, Edit, LENGTH_BYTES};
use super::packed::{Parts, Stream};
use crate::Reply;
use crate::expiry::quote;
use crate::options::c_string;

/// A consumer group.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    pub(super) name: &'a [u8],
    /// The last entry that was delivered.
    pub(super) last: StreamId,
    /// How many entries were added up to that one, if that can be told.
    pub(super) read: Option<i64>,
    /// In the order in which they came.
    pub(super) consumers: Vec<Consumer<'a>>,
    /// What was delivered and not acknowledged, by id.
    pub(super) pending: Vec<Pending>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Consumer<'a> {
    pub(super) name: &'a [u8],
    /// When it was heard of last, in milliseconds since 1970.
    pub(super) seen: u64,
}

/// An entry that awaits its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) id: StreamId,
    /// Which of the group's consumers has it.
    pub(super) consumer: usize,
    /// When it was delivered last, in milliseconds since 1970.
    pub(super) delivered: u64,
    /// How often it was delivered.
    pub(super) count: u64,
}

impl<'a> Group<'a> {
    pub(super) fn new(name: &'a [u8], last: StreamId, read: Option<i64>) -> Self {
        Self { name, last, read, consumers: Vec::new(), pending: Vec::new() }
    }

    /// The group of these bytes, and how many come before what is pending.
    fn decode(bytes: &'a [u8]) -> Result<(Self, usize), Damaged> {
        let rest = &mut { bytes };
        let name = take_item(rest)?;
        let ms = u64::from_le_bytes(take(rest)?);
        let last = StreamId { ms, seq: u64::from_le_bytes(take(rest)?) };
        let read = Some(i64::from_le_bytes(take(rest)?)).filter(|read| *read != UNKNOWN);
        let mut group = Self::new(name, last, read);
        for _ in 0..take_number(rest)? {
            let name = take_item(rest)?;
            group.consumers.push(Consumer { name, seen: take_number(rest)? });
        }
        let (mut id, mut delivered) = (StreamId::MIN, 0);
        let count = take_number(rest)?;
        let head = bytes.len() - rest.len();
        // Each takes a byte at least for each of its five numbers.
        group.pending.reserve(usize::try_from(count).unwrap_or(0).min(rest.len() / 5));
        for _ in 0..count {
            let ms = take_number(rest)?;
            let seq = take_number(rest)?;
            let base = if ms == 0 { id.seq } else { 0 };
            id.ms = id.ms.checked_add(ms).ok_or(Damaged)?;
            id.seq = base.checked_add(seq).ok_or(Damaged)?;
            let consumer = usize::try_from(take_number(rest)?).map_err(|_| Damaged)?;
            delivered = unzigzag(take_number(rest)?).wrapping_add(delivered);
            let count = take_number(rest)?;
            let is_after = group.pending.last().is_none_or(|before| before.id < id);
            if consumer >= group.consumers.len() || !is_after {
                return Err(Damaged);
            }
            let delivered = delivered.cast_unsigned();
            group.pending.push(Pending { id, consumer, delivered, count });
        }
        if rest.is_empty() { Ok((group, head)) } else { Err(Damaged) }
    }

    /// The bytes of the group behind their length, and how many come before what is pending.
    pub(super) fn encode(&self) -> (Vec<u8>, usize) {
        let mut out = Vec::with_capacity(self.pending.len() * PENDING_BYTES);
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        put_item(self.name, &mut out);
        out.extend_from_slice(&self.last.ms.to_le_bytes());
        out.extend_from_slice(&self.last.seq.to_le_bytes());
        out.extend_from_slice(&self.read.unwrap_or(UNKNOWN).to_le_bytes());
        put_number(self.consumers.len() as u64, &mut out);
        for consumer in &self.consumers {
            put_item(consumer.name, &mut out);
            put_number(consumer.seen, &mut out);
        }
        put_number(self.pending.len() as u64, &mut out);
        let head = out.len();
        let (mut id, mut delivered) = (StreamId::MIN, 0);
        for pending in &self.pending {
            let base = if pending.id.ms == id.ms { id.seq } else { 0 };
            put_number(pending.id.ms - id.ms, &mut out);
            put_number(pending.id.seq - base, &mut out);
            put_number(pending.consumer as u64, &mut out);
            let at = pending.delivered.cast_signed();
            put_number(zigzag(at.wrapping_sub(delivered)), &mut out);
            put_number(pending.count, &mut out);
            (id, delivered) = (pending.id, at);
        }
        // A longer one makes the value too long, which is refused.
        let bytes = u32::try_from(out.len() - LENGTH_BYTES).unwrap_or(u32::MAX);
        out[..LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes());
        (out, head)
    }

    /// Which consumer has this name.
    pub(super) fn find_consumer(&self, name: &[u8]) -> Option<usize> {
        self.consumers.iter().position(|consumer| consumer.name == name)
    }

    /// The consumer with this name, which is made if there is none, and was seen just now.
    pub(super) fn consumer(&mut self, name: &'a [u8], now: u64) -> usize {
        match self.find_consumer(name) {
            Some(at) => {
                self.consumers[at].seen = now;
                at
            }
            None => {
                self.consumers.push(Consumer { name, seen: now });
                self.consumers.len() - 1
            }
        }
    }

    /// The consumers by name, and how many entries each has.
    pub(super) fn consumers_by_name(&self) -> Vec<(usize, Consumer<'a>, usize)> {
        let mut counts = Vec::from_iter(self.consumers.iter().map(|_| 0));
        self.pending.iter().for_each(|pending| counts[pending.consumer] += 1);
        let all = self.consumers.iter().enumerate().zip(counts);
        let mut all = Vec::from_iter(all.map(|((at, consumer), count)| (at, *consumer, count)));
        all.sort_unstable_by_key(|(_, consumer, _)| consumer.name);
        all
    }

    /// Removes a consumer with what it has. How much that was.
    pub(super) fn remove_consumer(&mut self, at: usize) -> usize {
        let before = self.pending.len();
        self.pending.retain(|pending| pending.consumer != at);
        self.consumers.remove(at);
        let behind = self.pending.iter_mut().filter(|pending| pending.consumer > at);
        behind.for_each(|pending| pending.consumer -= 1);
        before - self.pending.len()
    }

    /// Moves on to an entry that is being delivered.
    pub(super) fn move_to(&mut self, id: StreamId, stream: &Stream<'_>) -> Result<(), Damaged> {
        self.read = match self.read {
            Some(read) if !stream.has_deleted_from(id)? => Some(read.wrapping_add(1)),
            _ if stream.added > 0 => stream.count_up_to(id)?,
            read => read,
        };
        if !mutant!("commands_group_delivers_twice") {
            self.last = id;
        }
        Ok(())
    }

    /// How many entries are there to be delivered, if that can be told.
    pub(super) fn lag(&self, stream: &Stream<'_>) -> Result<Option<i64>, Damaged> {
        if stream.added == 0 {
            return Ok(Some(0));
        }
        let read = match self.read {
            Some(read) if !stream.has_deleted_from(self.last)? => Some(read),
            _ => stream.count_up_to(self.last)?,
        };
        Ok(read.map(|read| stream.added.cast_signed().wrapping_sub(read)))
    }
}

/// Where a group stands, or where it would.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Where it begins among the packed groups.
    at: usize,
    /// Its bytes without their length; none if it isn't there.
    pub(super) held: &'a [u8],
    /// How many of them come before what is pending.
    pub(super) head: usize,
}

impl Place<'_> {
    /// Where it stands among the packed groups.
    pub(super) fn range(&self) -> Range<usize> {
        let length = if self.held.is_empty() { 0 } else { LENGTH_BYTES + self.held.len() };
        self.at..self.at + length
    }
}

/// A group and where it stands, or where it would.
pub(super) type Search<'a> = Result<(Place<'a>, Group<'a>), Place<'a>>;

/// Bytes of a pending entry, as a rule.
const PENDING_BYTES: usize = 8;

/// How it is written that the number of entries read can't be told.
pub(super) const UNKNOWN: i64 = -1;

impl<'a> Stream<'a> {
    /// The groups by name: where each stands among the packed ones, and its bytes.
    fn group_places(&self) -> impl Iterator<Item = Result<(usize, &'a [u8]), Damaged>> + use<'a> {
        let (mut rest, large) = match self.parts {
            Parts::Packed { groups, .. } => (groups, None),
            Parts::Large(large) => (&[][..], Some(large)),
        };
        let all = rest.len();
        let packed = core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let at = all - rest.len();
            let mut read = || {
                let bytes = u32::from_le_bytes(take(&mut rest)?) as usize;
                let (body, behind) = rest.split_at_checked(bytes).ok_or(Damaged)?;
                rest = behind;
                Ok((at, body))
            };
            let read = read();
            if read.is_err() {
                rest = &[];
            }
            Some(read)
        });
        packed.chain(large.into_iter().flat_map(|large| large.groups().map(|group| Ok((0, group)))))
    }

    pub(super) fn groups(&self) -> Result<Vec<Group<'a>>, Damaged> {
        self.group_places().map(|group| Ok(Group::decode(group?.1)?.0)).collect()
    }

    pub(super) fn group_count(&self) -> usize {
        self.group_places().count()
    }

    /// The group with this name and where it stands, or where it would.
    pub(super) fn find_group(&self, name: &[u8]) -> Result<Search<'a>, Damaged> {
        let found = |at, held| {
            let (group, head) = Group::decode(held)?;
            Ok(Ok((Place { at, held, head }, group)))
        };
        let absent = |at| Ok(Err(Place { at, held: &[], head: 0 }));
        let groups = match self.parts {
            Parts::Packed { groups, .. } => groups,
            Parts::Large(large) => {
                return large.group(name).map_or_else(|| absent(0), |held| found(0, held));
            }
        };
        for group in self.group_places() {
            let (at, body) = group?;
            let held = take_item(&mut { body })?;
            if held == name {
                return found(at, body);
            }
            if held > name {
                return absent(at);
            }
        }
        absent(groups.len())
    }

    /// What becomes of the stream when this group, or none, stands in this place.
    pub(super) fn with_group(
        &self,
        place: &Place<'a>,
        name: &[u8],
        group: Option<&Group<'_>>,
    ) -> Changed {
        let mut edit = Edit::new(*self);
        edit.set_group(place, name, group);
        edit.finish()
    }

    /// Whether an entry from this one on was deleted while there were entries before it.
    fn has_deleted_from(&self, id: StreamId) -> Result<bool, Damaged> {
        let has_deleted = self.length > 0 && self.max_deleted != StreamId::MIN;
        Ok(has_deleted && id <= self.max_deleted && self.first_id()? <= self.max_deleted)
    }

    /// How many entries were added up to this one, if that can be told.
    pub(super) fn count_up_to(&self, id: StreamId) -> Result<Option<i64>, Damaged> {
        let added = self.added.cast_signed();
        if self.added == 0 {
            return Ok(Some(0));
        }
        if self.length == 0 && id <= self.last || id == self.last {
            return Ok(Some(added));
        }
        if id > self.last {
            return Ok(None);
        }
        let first = self.first_id()?;
        let is_whole = self.max_deleted == StreamId::MIN || self.max_deleted < first;
        let before = added.wrapping_sub(self.length.into());
        Ok(match id.cmp(&first) {
            core::cmp::Ordering::Less if is_whole => Some(before),
            core::cmp::Ordering::Equal if is_whole => Some(before.wrapping_add(1)),
            _ => None,
        })
    }
}

/// The error of a command that names a group that isn't there.
pub(super) fn no_group(key: &[u8], group: &[u8], behind: &str) -> Reply<'static> {
    let [key, group] = [key, group].map(|name| quote(c_string(name)));
    let text = format!("NOGROUP No such key '{key}' or consumer group '{group}'{behind}");
    Reply::Error(text.into())
}

/// The same of a subcommand, whose key is there.
pub(super) fn no_group_of_key(key: &[u8], group: &[u8]) -> Reply<'static> {
    let [key, group] = [key, group].map(|name| quote(c_string(name)));
    let text = format!("NOGROUP No such consumer group '{group}' for key name '{key}'");
    Reply::Error(text.into())
}
