//! Coming back by difference: a node that begins a life with records of an earlier one (`former.rs`) copies what
//! its donors have besides.
//!
//! A comparison is a copy (`join.rs`) of which the learner has most entries already. What the donor does not
//! name is as if it had come in a copy: it is taken out of what was set aside, with its version and its entry
//! of the directory, and nothing else is. What the donor lacks was deleted and forgotten, or was never
//! committed, and stays out. So it does not matter how old any of it is.
//!
//! How two tables are compared is in [`quorate_machine::difference`]. Digests are of records whole: of their
//! keys, versions and entries of the directory. Of buckets that differ the learner sends the hashes of keys and
//! versions; the donor answers with the entries of the directory of those that it has as well, and with the rest
//! whole. For after a restart no entry of the directory is left (`log.rs`), and most values are.
//!
//! What was set aside was committed and settled, so it is nothing that the donor has under way. All that it has
//! under way it names, as in any copy.
//!
//! ```text
//! known: hash u64, round timestamp, owner u32 ...
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::difference::{
    Comparing, Held, Question, compare, hashes_in, is_outgrown, may_ask_for,
};
use quorate_machine::{Command, Effects, LaneShared, Record as _, Table, mutant};
use quorate_types::{NodeId, Now, SeededHash, Timestamp, limits};
use quorate_wire::{Malformed, Reader, Words, Writer};

use crate::fields::{
    Entries, Entry, Settled, begin_list, count_one, elements, read_list, read_shards,
};
use crate::former::{self, value_hash};
use crate::layout::Shards;
use crate::message::Message;
use crate::meta::Meta;
use crate::state::{Key, Zeus};

/// What a learner and its donor say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DifferenceMessage<'a> {
    /// Learner → donor: in which buckets do you have something else?
    Compare {
        /// Names the question, and seeds the hashes.
        request: u64,
        /// A bucket has two to the power of this many places.
        shift: u8,
        /// The first bucket.
        first: u64,
        /// The shards that are compared.
        shards: Shards,
        /// The digest of this bucket and those after it.
        digests: Words<'a>,
    },
    /// Its answer.
    Compared {
        /// As in the request.
        request: u64,
        /// The donor's hybrid clock.
        clock: u64,
        /// Its floors, as in a copy.
        floors: [u64; 2],
        /// How many records it has.
        records: u64,
        /// The buckets that differ; none of them if they are too large for so many records.
        buckets: Words<'a>,
    },
    /// Learner → donor: what is in these?
    Read {
        /// Names the question, and seeds the hashes.
        request: u64,
        /// A bucket has two to the power of this many places.
        shift: u8,
        /// The shards that are compared.
        shards: Shards,
        /// The buckets.
        buckets: Words<'a>,
        /// The hashes of the keys and versions that the learner has in them.
        held: Words<'a>,
    },
    /// Its answer.
    Records {
        /// As in the request.
        request: u64,
        /// The donor's hybrid clock.
        clock: u64,
        /// Its floors, as in a copy.
        floors: [u64; 2],
        /// What is in the buckets before this place is named.
        until: u64,
        /// What the learner has of it.
        known: KnownRecords<'a>,
        /// The rest.
        entries: Entries<'a>,
    },
}

/// A list of records that the learner has, checked: hashes, and entries of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownRecords<'a>(&'a [u8]);

fn read_known(reader: &mut Reader<'_>) -> Result<(u64, Settled), Malformed> {
    Ok((reader.u64()?, Settled::decode(reader)?))
}

impl<'a> KnownRecords<'a> {
    /// A list in bytes of its own.
    pub fn write(known: impl Iterator<Item = (u64, Settled)>) -> Vec<u8> {
        let mut bytes = begin_list(0);
        for (hash, settled) in known {
            Self::push(&mut bytes, hash, settled);
        }
        bytes
    }

    fn push(bytes: &mut Vec<u8>, hash: u64, settled: Settled) {
        count_one(bytes);
        let mut writer = Writer(bytes);
        writer.u64(hash);
        settled.encode(&mut writer);
    }

    /// A list from its bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let known = Self::read(&mut reader)?;
        reader.end().map(|()| known)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        read_list(reader, limits::MESSAGE_BYTES_MAX, read_known).map(Self)
    }

    /// The hashes, and the entries of the directory.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (u64, Settled)> + use<'a> {
        elements(self.0, read_known)
    }
}

const COMPARE: u8 = 30;
const COMPARED: u8 = 31;
const DIFFERENCE_READ: u8 = 32;
const DIFFERENCE: u8 = 33;

impl<'a> DifferenceMessage<'a> {
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Compare { request, shift, first, shards, digests } => {
                writer.u8(COMPARE);
                writer.u64(request);
                writer.u8(shift);
                writer.u64(first);
                shards.0.iter().for_each(|word| writer.u64(*word));
                writer.bytes(digests.bytes());
            }
            Self::Compared { request, clock, floors, records, buckets } => {
                writer.u8(COMPARED);
                writer.u64(request);
                writer.u64(clock);
                floors.iter().for_each(|floor| writer.u64(*floor));
                writer.u64(records);
                writer.bytes(buckets.bytes());
            }
            Self::Read { request, shift, shards, buckets, held } => {
                writer.u8(DIFFERENCE_READ);
                writer.u64(request);
                writer.u8(shift);
                shards.0.iter().for_each(|word| writer.u64(*word));
                writer.bytes(buckets.bytes());
                writer.bytes(held.bytes());
            }
            Self::Records { request, clock, floors, until, known, entries } => {
                writer.u8(DIFFERENCE);
                writer.u64(request);
                writer.u64(clock);
                floors.iter().for_each(|floor| writer.u64(*floor));
                writer.u64(until);
                writer.rest(known.0);
                writer.rest(entries.bytes());
            }
        }
    }

    /// Reads the fields of a message of this kind; `None` if the kind is no such one.
    pub(crate) fn read(kind: u8, reader: &mut Reader<'a>) -> Result<Option<Self>, Malformed> {
        Ok(Some(match kind {
            COMPARE => Self::Compare {
                request: reader.u64()?,
                shift: reader.u8()?,
                first: reader.u64()?,
                shards: read_shards(reader)?,
                digests: Words::read(reader.bytes()?)?,
            },
            COMPARED => Self::Compared {
                request: reader.u64()?,
                clock: reader.u64()?,
                floors: [reader.u64()?, reader.u64()?],
                records: reader.u64()?,
                buckets: Words::read(reader.bytes()?)?,
            },
            DIFFERENCE_READ => Self::Read {
                request: reader.u64()?,
                shift: reader.u8()?,
                shards: read_shards(reader)?,
                buckets: Words::read(reader.bytes()?)?,
                held: Words::read(reader.bytes()?)?,
            },
            DIFFERENCE => Self::Records {
                request: reader.u64()?,
                clock: reader.u64()?,
                floors: [reader.u64()?, reader.u64()?],
                until: reader.u64()?,
                known: KnownRecords::read(reader)?,
                entries: Entries::read(reader)?,
            },
            _ => return Ok(None),
        }))
    }
}

/// The entry of the directory that a donor compares: what it has under way is nothing that a learner has left.
fn donors_entry(meta: &Meta) -> Option<Settled> {
    Some(meta.settled())
}

/// How far a learner has come with a donor that it compares with.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Difference {
    comparing: Comparing,
    /// What has come of a bucket that is not all here, with the versions.
    received: BTreeMap<Key, Timestamp>,
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    pub(crate) fn on_difference_message(
        &mut self,
        now: Now,
        from: NodeId,
        message: DifferenceMessage<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match message {
            DifferenceMessage::Compare { request, shift, first, shards, digests } => {
                self.on_compare(from, request, (shift, first), &shards, digests, effects);
            }
            DifferenceMessage::Read { request, shift, shards, buckets, held } => {
                self.on_difference_read(from, request, shift, &shards, (buckets, held), effects);
            }
            DifferenceMessage::Compared { request, clock, floors, .. }
            | DifferenceMessage::Records { request, clock, floors, .. } => {
                let joining = self.joining.as_ref();
                if !joining.is_some_and(|joining| joining.compares(from, request)) {
                    return effects.ignored("zeus: a comparison that was not asked for");
                }
                self.observe(clock);
                self.take_floors(floors);
                match message {
                    DifferenceMessage::Compared { records, buckets, .. } => {
                        self.on_compared(now, records, buckets, effects);
                    }
                    DifferenceMessage::Records { until, known, entries, .. } => {
                        self.on_records(now, request, until, known, entries, effects);
                    }
                    _ => unreachable!("the others are no answers"),
                }
            }
        }
    }

    // --- the learner -----------------------------------------------------------------------------

    /// The comparison with a new donor, if there is anything to compare.
    pub(crate) fn begin_difference(&self) -> Option<Difference> {
        let records = self.left();
        let compares = records > 0 && !mutant!("zeus_former_records_not_compared");
        compares
            .then(|| Difference { comparing: Comparing::new(records), received: BTreeMap::new() })
    }

    /// Asks a donor for digests, or for what differs.
    pub(crate) fn ask_difference(
        &mut self,
        donor: NodeId,
        request: u64,
        shards: Shards,
        difference: &Difference,
        effects: &mut impl Effects<Self>,
    ) {
        let Difference { comparing, received } = difference;
        let Some(former) = &mut self.former else { return };
        let (shift, hash) = (comparing.shift(), SeededHash::new(request));
        let hash_of = former::left_hasher(shards, request, comparing.asks_for_records());
        let question = comparing.question(former, hash_of);
        match question {
            Question::Digests { first, digests } => {
                let digests = &Words::pack(digests);
                let digests = Words::of(digests);
                let question =
                    DifferenceMessage::Compare { request, shift, first, shards, digests };
                effects.send(donor, &Message::Difference(question));
            }
            Question::Records { buckets, mut held } => {
                let received = received.iter();
                held.extend(received.map(|(key, version)| value_hash(&hash, key, *version)));
                let (buckets, held) = (Words::pack(buckets), Words::pack(held));
                let (buckets, held) = (Words::of(&buckets), Words::of(&held));
                let question = DifferenceMessage::Read { request, shift, shards, buckets, held };
                effects.send(donor, &Message::Difference(question));
            }
        }
    }

    /// The donor has compared: buckets that it does not name are as they were set aside.
    fn on_compared(
        &mut self,
        now: Now,
        records: u64,
        buckets: Words<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Some((mut difference, shards)) = self.take_difference() else { return };
        let Some(former) = &mut self.former else { return };
        let equal = difference.comparing.take_answer(former, records, buckets.iter());
        let Some(equal) = equal else {
            self.put_difference(difference);
            return effects.ignored("zeus: an answer to no such comparison");
        };
        // What was not compared has no hash, under any name.
        let hash_of = former::left_hasher(shards, 0, true);
        let equal = equal.into_iter().filter(|handle| hash_of(former, *handle).is_some());
        for handle in equal.collect::<Vec<_>>() {
            self.keep_left(now, handle, None, effects);
        }
        self.go_on_comparing(now, difference, effects);
    }

    /// What a donor has in buckets that differ.
    fn on_records(
        &mut self,
        now: Now,
        request: u64,
        until: u64,
        known: KnownRecords<'_>,
        entries: Entries<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Some((mut difference, shards)) = self.take_difference() else { return };
        if !difference.comparing.asks_for_records() {
            self.put_difference(difference);
            return effects.ignored("zeus: an answer to no such comparison");
        }
        let Some(former) = &mut self.former else { return };
        let shift = difference.comparing.shift();
        let hash_of = former::left_hasher(shards, request, true);
        let mut held = BTreeMap::new();
        for bucket in difference.comparing.asked() {
            let records = hashes_in(former, shift, *bucket, &hash_of);
            held.extend(records.into_iter().map(|(handle, hash)| (hash, handle)));
        }
        for (hash, settled) in known.iter() {
            let handle = held.remove(&hash);
            let kept =
                handle.and_then(|handle| self.keep_left(now, handle, Some(settled), effects));
            difference.received.extend(kept);
        }
        self.counters.copied += entries.iter().len() as u64;
        for entry in entries.iter() {
            self.copy_entry(now, &entry, effects);
            difference.received.insert(entry.key.into(), entry.version);
        }
        let Some(former) = &mut self.former else { return };
        let none = core::iter::empty();
        let rest = difference.comparing.take_records(former, until, none, &hash_of);
        let rest = rest.into_iter().filter(|(handle, _)| hash_of(former, *handle).is_some());
        for (handle, _) in rest.collect::<Vec<_>>() {
            effects.probe("zeus: a record of an earlier life goes");
            match mutant!("zeus_former_keeps_the_deleted") {
                true => _ = self.keep_left(now, handle, None, effects),
                false => _ = self.take_left(handle),
            }
        }
        if !difference.comparing.asks_for_records() {
            difference.received.clear();
        }
        self.go_on_comparing(now, difference, effects);
    }

    /// The donor has this version of a key: it is as if it had come in a copy. Gives both.
    fn keep_left(
        &mut self,
        now: Now,
        handle: T::Handle,
        settled: Option<Settled>,
        effects: &mut impl Effects<Self>,
    ) -> Option<(Key, Timestamp)> {
        let left = self.take_left(handle)?;
        let (key, version, content) = (&*left.key, left.version, left.content());
        let settled = settled.unwrap_or(left.settled);
        effects.probe("zeus: a record of an earlier life stays");
        let entry = Entry { version, settled, content, ..Entry::nothing(key) };
        self.copy_entry(now, &entry, effects);
        self.counters.kept += 1;
        Some((left.key, left.version))
    }

    /// Goes on to what differs, to the next buckets, or to the calls.
    fn go_on_comparing(
        &mut self,
        now: Now,
        mut difference: Difference,
        effects: &mut impl Effects<Self>,
    ) {
        let goes_on = difference.comparing.go_on(self.left());
        let request = self.rng.next_u64().max(1);
        let Some(joining) = &mut self.joining else { return };
        joining.difference = goes_on.then_some(difference);
        joining.go_on(now, request);
        self.ask_donor(now, effects);
    }

    /// No answer has come in time. A question in smaller buckets has another name.
    pub(crate) fn shrink_buckets(&mut self) {
        let records = self.table.len() + self.left();
        let Some(joining) = &mut self.joining else { return };
        let difference = joining.difference.as_mut();
        if difference.is_some_and(|it| it.comparing.shrink_buckets(records)) {
            joining.rename(self.rng.next_u64().max(1));
        }
    }

    fn take_difference(&mut self) -> Option<(Difference, Shards)> {
        let joining = self.joining.as_mut()?;
        let shards = joining.shards_asked()?;
        Some((joining.difference.take()?, shards))
    }

    pub(crate) fn put_difference(&mut self, difference: Difference) {
        if let Some(joining) = &mut self.joining {
            joining.difference = Some(difference);
        }
    }

    // --- the donor -------------------------------------------------------------------------------

    /// Whether this node has all that there is of these shards, for a learner.
    fn vouches_for(&self, learner: NodeId, shards: &Shards) -> bool {
        let vouches = |shard| self.layout.gives_to(learner, shard) && self.layout.has_all(shard);
        shards.iter().all(vouches) && !self.layout.revived
    }

    /// A learner asks in which buckets this node has something else.
    fn on_compare(
        &mut self,
        from: NodeId,
        request: u64,
        (shift, first): (u8, u64),
        shards: &Shards,
        theirs: Words<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.vouches_for(from, shards) {
            return effects.ignored("zeus: a copy of what is not complete");
        }
        let hash_of = former::hasher(*shards, request, false, donors_entry);
        let Some(buckets) = compare(&mut self.table, shift, first, theirs.iter(), hash_of) else {
            return effects.refused("zeus: a comparison beyond the limit");
        };
        let (records, buckets) = (self.table.len() as u64, Words::pack(buckets));
        let (clock, floors, buckets) = (self.clock, self.floor.told(), Words::of(&buckets));
        let answer = DifferenceMessage::Compared { request, clock, floors, records, buckets };
        effects.send(from, &Message::Difference(answer));
    }

    /// A learner asks what is in buckets that differ.
    fn on_difference_read(
        &mut self,
        from: NodeId,
        request: u64,
        shift: u8,
        shards: &Shards,
        (buckets, held): (Words<'_>, Words<'_>),
        effects: &mut impl Effects<Self>,
    ) {
        if !self.vouches_for(from, shards) {
            return effects.ignored("zeus: a copy of what is not complete");
        }
        if !may_ask_for(shift, buckets.iter()) {
            return effects.refused("zeus: a difference beyond the limit");
        }
        if is_outgrown(shift, self.table.len()) {
            return effects.ignored("zeus: a difference in buckets that are too large by now");
        }
        let hash_of = former::hasher(*shards, request, true, donors_entry);
        let mut held = Held::new(held.iter());
        let (mut known, mut entries) = (begin_list(0), Entries::begin());
        let mut until = None;
        for bucket in buckets.iter() {
            let records = hashes_in(&mut self.table, shift, bucket, &hash_of);
            let Some(records) = self.find_certain(records) else { break };
            // The rest of a large bucket comes when it is asked for again.
            let mut is_whole = true;
            for (key, hash, is_under_way) in records {
                is_whole = known.len() + entries.len() < limits::CHUNK_BYTES;
                if !is_whole {
                    break;
                }
                let is_certain = !is_under_way && !self.rounds.contains_key(&key);
                if held.find(hash) && is_certain && !mutant!("zeus_known_values_sent") {
                    let settled = self.settled(&key);
                    KnownRecords::push(&mut known, hash, settled);
                } else {
                    self.push_entry(&key, is_under_way, &mut entries);
                }
            }
            until = Some((bucket + u64::from(is_whole)) << shift);
            if !is_whole {
                break;
            }
        }
        let Some(until) = until else {
            // Whether the next version is committed is being asked, and known soon.
            return effects.ignored("zeus: a copy of what may not be committed");
        };
        let (clock, floors) = (self.clock, self.floor.told());
        let known = KnownRecords::check(&known).expect("just written");
        let entries = Entries::check(&entries).expect("just written");
        let answer = DifferenceMessage::Records { request, clock, floors, until, known, entries };
        effects.send(from, &Message::Difference(answer));
    }

    /// The keys of some records, each with its hash and whether its value comes with a transaction; `None` if
    /// nobody here knows that of one of them.
    fn find_certain(&mut self, records: Vec<(T::Handle, u64)>) -> Option<Vec<(Key, u64, bool)>> {
        let mut found = Vec::new();
        for (handle, hash) in records {
            let Some(record) = self.table.try_lock(handle) else { continue };
            let key = Key::from(record.key());
            drop(record);
            let is_under_way = self.is_under_way(&key, false)?;
            found.push((key, hash, is_under_way));
        }
        Some(found)
    }
}
