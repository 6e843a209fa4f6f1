//! The keys of a keyspace, listed from the nodes that hold them.
//!
//! A keyspace that is on some of the nodes, or whose partitions have replica groups of their own, is
//! listed source by source: a source is a replica group with the partitions that it has. What this
//! node replicates it reads itself; otherwise it asks an active replica of the group, on the same
//! lane, and another one if no answer comes. An answer changes nothing, so a question may come twice.
//!
//! Keys lie in the order of their hashes, on every node, so a listing that was begun at one replica
//! goes on at another.
//!
//! A flush must find what was acknowledged before it. Where an engine acknowledges what a majority
//! has, each part of the listing is what a majority of the group lists, this node among them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use quorate_machine::{Gate, Outcome, Refusal, mutant};
use quorate_types::partition_of;
use quorate_types::{Duration, Epoch, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Tag};
use quorate_wire::{Header, Kind, ListingMessage, Malformed};

use crate::{KeyspaceConfig, KeyspaceLane, Lane, Outbox};

/// Most records that one question looks at.
pub(crate) const RECORDS_MAX: usize = 256;
/// Bytes of keys from which on an answer is long enough.
const BYTES_ENOUGH: usize = 128 * 1024;
/// Records that are looked at before the bytes are counted again.
const BATCH: usize = 16;
/// Where the source stands in a cursor, above the cursor of the store.
const SOURCE_AT: u32 = 48;
/// After how many timeouts for lost messages a question is put to another replica.
const TIMEOUTS_PER_TRY: u32 = 5;

/// A replica group of a keyspace and the partitions that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    /// Every voter if nothing is said.
    group: Option<NodeSet>,
    /// One bit each.
    partitions: u64,
    /// How many partitions the keyspace has.
    count: usize,
}

/// Some keys of a keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Where the listing goes on; 0 at the end.
    pub next: u64,
    /// The keys.
    pub keys: Vec<Vec<u8>>,
}

/// What is looked at next of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) source: usize,
    /// The cursor of the store.
    pub(crate) within: u64,
}

/// Whom an answer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asker {
    Client(Tag),
    Flush { job: u64 },
}

impl Asker {
    fn sources(self, engine: &KeyspaceLane) -> &[Source] {
        match self {
            Self::Client(_) => engine.sources(),
            Self::Flush { .. } => engine.flush_sources(),
        }
    }
}

/// Questions that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    asks: BTreeMap<u64, Ask>,
    last: u64,
}

#[derive(Debug)]
struct Ask {
    asker: Asker,
    keyspace: KeyspaceId,
    place: Place,
    limit: usize,
    tries: usize,
    /// In which epoch it was first put: the majorities of different epochs need not meet.
    epoch: Epoch,
    part: Part,
    again_at: Instant,
    until: Instant,
}

/// What replicas have said about a part of a listing.
#[derive(Debug, Default)]
struct Part {
    answered: NodeSet,
    /// Where the shortest answer ended; nothing if all reached the end.
    next: Option<NonZeroU64>,
    /// The keys, and how long their values are, as far as this node knows.
    keys: BTreeMap<Vec<u8>, usize>,
}

impl Part {
    fn add(&mut self, from: NodeId, next: u64, keys: impl IntoIterator<Item = (Vec<u8>, usize)>) {
        self.answered.insert(from);
        let next = NonZeroU64::new(next);
        self.next = self.next.into_iter().chain(next).min();
        for (key, bytes) in keys {
            let known = self.keys.entry(key).or_default();
            *known = bytes.max(*known);
        }
    }

    fn next(&self) -> u64 {
        self.next.map_or(0, NonZeroU64::get)
    }
}

impl Source {
    /// The replica groups of a keyspace, each with its partitions.
    pub(crate) fn groups(keyspace: &KeyspaceConfig) -> Vec<Self> {
        let groups = keyspace.partitions.iter().map(|group| group.or(keyspace.replicas));
        let groups: Vec<_> = groups.collect();
        let count = groups.len();
        let mut sources: Vec<Self> = Vec::new();
        for (partition, group) in groups.into_iter().enumerate() {
            let bit = 1 << partition;
            match sources.iter_mut().find(|source| source.group == group) {
                Some(source) => source.partitions |= bit,
                None => sources.push(Self { group, partitions: bit, count }),
            }
        }
        sources
    }

    /// The sources of a keyspace as a node sees them: one if it replicates everything.
    pub(crate) fn all(keyspace: &KeyspaceConfig, node: NodeId) -> Vec<Self> {
        let sources = Self::groups(keyspace);
        if sources.iter().all(|source| source.is_here(node)) {
            return vec![Self {
                group: None,
                partitions: u64::MAX,
                count: keyspace.partitions.len(),
            }];
        }
        sources
    }

    /// Whether the node is one of the group.
    pub(crate) fn is_here(&self, node: NodeId) -> bool {
        self.group.is_none_or(|group| group.contains(node))
    }
}

impl Place {
    pub(crate) const START: Self = Self { source: 0, within: 0 };

    fn of(cursor: u64) -> Self {
        Self { source: (cursor >> SOURCE_AT) as usize, within: cursor & ((1 << SOURCE_AT) - 1) }
    }

    fn cursor(self) -> u64 {
        (self.source as u64) << SOURCE_AT | self.within
    }

    /// What comes once this source's part ended at `next`; nothing at the end of all `sources`.
    pub(crate) fn after(self, next: u64, sources: usize) -> Option<Self> {
        match next {
            0 if self.source + 1 >= sources => None,
            0 => Some(Self { source: self.source + 1, within: 0 }),
            within => Some(Self { within, ..self }),
        }
    }
}

impl Listings {
    pub(crate) fn next_deadline(&self) -> Instant {
        self.asks.values().map(|ask| ask.again_at).min().unwrap_or(Instant::NEVER)
    }
}

impl Lane {
    /// Whether this node holds every key of the keyspace, so that nobody need be asked.
    pub fn holds_all(&self, keyspace: KeyspaceId) -> bool {
        let engine = self.engine(keyspace);
        engine.is_some_and(|engine| matches!(engine.sources(), [source] if source.group.is_none()))
    }

    /// A cursor of [`Lane::list`] at a place that `random` chooses.
    pub fn random_cursor(&self, keyspace: KeyspaceId, random: u64) -> u64 {
        let sources = self.engine(keyspace).map_or(1, |engine| engine.sources().len());
        let within = self.shared.store(keyspace).map_or(0, |store| store.random_cursor(random));
        Place { source: (random >> SOURCE_AT) as usize % sources, within }.cursor()
    }

    /// Lists some keys of a keyspace that have a value, wherever they are, from `cursor` (0 begins).
    /// Answered through [`Outbox::listed`]. A key that is present during a whole listing is in it at
    /// least once. Any number is a legal cursor.
    pub fn list(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        cursor: u64,
        limit: usize,
        out: &mut Outbox,
    ) {
        let place = Place::of(cursor);
        let source = self.engine(keyspace).and_then(|engine| engine.sources().get(place.source));
        let Some(&source) = source else {
            return out.listed.push((tag, Outcome::Done(Listed { next: 0, keys: Vec::new() })));
        };
        if !self.takes(now, keyspace) {
            return out.listed.push((tag, Outcome::Refused(Refusal::NotServing)));
        }
        if source.is_here(self.shared.config.node) {
            let (next, keys) = self.keys_here(now, keyspace, source, place.within, None, limit);
            let mut part = Part::default();
            part.add(self.shared.config.node, next, keys.into_iter().map(|key| (key, 0)));
            return self.listed(Asker::Client(tag), keyspace, place, part, out);
        }
        let part = Part::default();
        self.begin_ask(now, Asker::Client(tag), keyspace, place, (limit, part), out);
    }

    /// Lists keys that a flush is to delete on this lane.
    pub(crate) fn list_for_flush(
        &mut self,
        now: Now,
        job: u64,
        keyspace: KeyspaceId,
        place: Place,
        out: &mut Outbox,
    ) {
        let (asker, node) = (Asker::Flush { job }, self.shared.config.node);
        let Some(engine) = self.engine(keyspace) else { return self.flushes.unlisted(job) };
        let Some(&source) = engine.flush_sources().get(place.source) else {
            return self.flushes.unlisted(job);
        };
        let mut part = Part::default();
        if source.is_here(node) {
            // What is about to be written may have been acknowledged.
            let with_absent = !engine.acknowledges_from_all();
            let Some(store) = self.shared.store(keyspace) else { return };
            let mut keys = Vec::new();
            let next = store.scan_lane(self.id, place.within, RECORDS_MAX, &mut |key, value| {
                if (value.is_some() || with_absent) && source.has(key) {
                    keys.push((key.to_vec(), value.map_or(0, |value| value.len)));
                }
            });
            part.add(node, next, keys);
            if self.missing(asker, source, part.answered, engine) == 0 {
                return self.listed(asker, keyspace, place, part, out);
            }
        }
        self.begin_ask(now, asker, keyspace, place, (RECORDS_MAX, part), out);
    }

    /// How many further replicas of a group must say what keys there are.
    fn missing(
        &self,
        asker: Asker,
        source: Source,
        answered: NodeSet,
        engine: &KeyspaceLane,
    ) -> usize {
        let voters = self.view.voters();
        let group = source.group.unwrap_or(voters).intersection(voters);
        let needs_majority = matches!(asker, Asker::Flush { .. })
            && !engine.acknowledges_from_all()
            && !mutant!("node_flush_asks_one_replica");
        let needed = if needs_majority { group.len() / 2 + 1 } else { 1 };
        needed.saturating_sub(answered.len())
    }

    fn begin_ask(
        &mut self,
        now: Now,
        asker: Asker,
        keyspace: KeyspaceId,
        place: Place,
        (limit, part): (usize, Part),
        out: &mut Outbox,
    ) {
        self.listings.last += 1;
        let number = self.listings.last;
        let until = now.monotonic + self.shared.config.op_timeout;
        let again_at = now.monotonic + self.try_timeout();
        // Replicas take turns, so that no single one lists for all.
        let tries = number as usize;
        let epoch = self.view.epoch;
        let ask = Ask { asker, keyspace, place, limit, tries, epoch, part, again_at, until };
        self.send_ask(number, &ask, out);
        self.listings.asks.insert(number, ask);
    }

    fn try_timeout(&self) -> Duration {
        self.shared.config.message_loss_timeout * TIMEOUTS_PER_TRY
    }

    fn send_ask(&self, number: u64, ask: &Ask, out: &mut Outbox) {
        let engine = self.engine(ask.keyspace).expect("it was there");
        let source = ask.asker.sources(engine)[ask.place.source];
        let replicas = self.view.active().intersection(source.group.unwrap_or(self.view.voters()));
        let replicas = replicas.difference(ask.part.answered).without(self.shared.config.node);
        let missing = self.missing(ask.asker, source, ask.part.answered, engine);
        let to = (0..missing.min(replicas.len()))
            .filter_map(|nth| replicas.nth((ask.tries + nth) % replicas.len()))
            .collect::<NodeSet>();
        if to.is_empty() {
            return;
        }
        let message = ListingMessage::Ask {
            number,
            of_lane: matches!(ask.asker, Asker::Flush { .. }),
            partitions: source.partitions,
            cursor: ask.place.within,
            limit: ask.limit.min(RECORDS_MAX) as u32,
        };
        out.frame(to, |buffer| {
            Header::frame(buffer, Kind::Listing, ask.keyspace, self.view.epoch, |writer| {
                message.encode(writer);
            });
        });
    }

    /// Asks again what was not answered in time, and gives up what waited too long.
    pub(crate) fn tick_listings(&mut self, now: Now, out: &mut Outbox) {
        let mut due = self.listings.asks.extract_if(.., |_, ask| ask.again_at <= now.monotonic);
        let due: Vec<_> = due.by_ref().collect();
        for (number, mut ask) in due {
            if ask.until <= now.monotonic {
                self.unlisted(ask.asker, Refusal::TimedOut, out);
                continue;
            }
            if let Asker::Flush { job } = ask.asker
                && ask.epoch != self.view.epoch
            {
                self.flushes.list_again(job);
                continue;
            }
            ask.tries += 1;
            ask.again_at = now.monotonic + self.try_timeout();
            self.send_ask(number, &ask, out);
            self.listings.asks.insert(number, ask);
        }
    }

    /// Gives up every question: this node begins a new life.
    pub(crate) fn abandon_listings(&mut self, out: &mut Outbox) {
        for (_, ask) in std::mem::take(&mut self.listings.asks) {
            self.unlisted(ask.asker, Refusal::NotServing, out);
        }
    }

    fn unlisted(&mut self, asker: Asker, refusal: Refusal, out: &mut Outbox) {
        match asker {
            Asker::Client(tag) => out.listed.push((tag, Outcome::Refused(refusal))),
            Asker::Flush { job } => self.flushes.unlisted(job),
        }
    }

    /// A peer asks or answers.
    pub(crate) fn hear_listing(
        &mut self,
        now: Now,
        from: NodeId,
        header: &Header,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let keyspace = header.keyspace;
        let engine = self.engine(keyspace).ok_or(Malformed("unknown keyspace"))?;
        match ListingMessage::decode(body)? {
            ListingMessage::Ask { number, of_lane, partitions, cursor, limit } => {
                // One that lags behind the others would leave out what they hold.
                if !self.takes(now, keyspace) {
                    return Ok(());
                }
                let count = engine.sources()[0].count;
                let source = Source { group: None, partitions, count };
                let lane = of_lane.then_some(self.id);
                let limit = (limit as usize).min(RECORDS_MAX);
                let (next, keys) = self.keys_here(now, keyspace, source, cursor, lane, limit);
                let answer = ListingMessage::Keys { number, next, keys };
                let epoch = self.view.epoch;
                out.frame_behind(Gate::LEASE, NodeSet::only(from), |buffer| {
                    Header::frame(buffer, Kind::Listing, keyspace, epoch, |writer| {
                        answer.encode(writer);
                    });
                });
            }
            ListingMessage::Keys { number, next, keys } => {
                // The second answer to a question that was put twice finds nothing.
                let Some(mut ask) = self.listings.asks.remove(&number) else { return Ok(()) };
                let is_of_epoch = ask.epoch == self.view.epoch && ask.epoch == header.epoch;
                let counts = is_of_epoch || matches!(ask.asker, Asker::Client(_));
                let engine = self.engine(ask.keyspace).expect("it was there");
                let source = ask.asker.sources(engine)[ask.place.source];
                if counts {
                    ask.part.add(from, next, keys.into_iter().map(|key| (key, 0)));
                }
                if counts && self.missing(ask.asker, source, ask.part.answered, engine) == 0 {
                    self.listed(ask.asker, ask.keyspace, ask.place, ask.part, out);
                } else {
                    self.listings.asks.insert(number, ask);
                }
            }
        }
        Ok(())
    }

    fn listed(
        &mut self,
        asker: Asker,
        keyspace: KeyspaceId,
        place: Place,
        part: Part,
        out: &mut Outbox,
    ) {
        let sources = self.engine(keyspace).map_or(0, |engine| asker.sources(engine).len());
        let after = place.after(part.next(), sources);
        match asker {
            Asker::Client(tag) => {
                let next = after.map_or(0, Place::cursor);
                let keys = part.keys.into_keys().collect();
                out.listed.push((tag, Outcome::Done(Listed { next, keys })));
            }
            Asker::Flush { job } => self.flushes.listed(job, after, part.keys),
        }
    }

    /// Keys that this node holds, of the whole node with their values, or of one lane whether they
    /// have values or not: what is about to be written must be deleted, too.
    fn keys_here(
        &self,
        now: Now,
        keyspace: KeyspaceId,
        source: Source,
        mut cursor: u64,
        lane: Option<LaneId>,
        limit: usize,
    ) -> (u64, Vec<Vec<u8>>) {
        let (mut keys, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        let Some(store) = self.shared.store(keyspace) else { return (0, keys) };
        loop {
            let batch = BATCH.min(limit);
            let mut visit = |key: &[u8], value: Option<quorate_storage::ValueInfo>| {
                let lives = |value: quorate_storage::ValueInfo| {
                    value.expire_at.is_none_or(|at| at > now.wall())
                };
                if (lane.is_some() || value.is_some_and(lives)) && source.has(key) {
                    bytes += key.len();
                    keys.push(key.to_vec());
                }
            };
            cursor = match lane {
                Some(lane) => store.scan_lane(lane, cursor, batch, &mut visit),
                None => store.scan(cursor, batch, &mut visit),
            };
            looked_at += batch;
            if cursor == 0 || looked_at >= limit || bytes >= BYTES_ENOUGH {
                return (cursor, keys);
            }
        }
    }
}

impl Source {
    fn has(&self, key: &[u8]) -> bool {
        self.partitions >> partition_of(key, self.count) & 1 == 1
    }
}
