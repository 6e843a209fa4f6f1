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
//! Where each key is at some of the members, which follow from the view, every active member is asked,
//! and one of them tells of each key ([`quorate_engine::Engine::lists`]). All must have answered in
//! the same view: the next one may divide the keys otherwise.
//!
//! A node in doubt, which has come back from its log and has not heard what others have kept, says nothing. It
//! is asked again.
//!
//! A listing must show what was acknowledged before it. Where an engine acknowledges what a majority
//! has, each part of the listing is what a majority of the group says, this node among them. A key
//! with a value at all of them is listed. One that a replica lacks, or that it is about to change, is
//! *undecided*: a flush deletes it, and otherwise the engine is asked for it (`EXISTS`).

use std::collections::BTreeMap;

use quorate_commands::{OwnedCall, Reply, type_name};
use quorate_machine::{Gate, Outcome, Refusal, ValueKind, mutant};
use quorate_storage::{ValueInfo, place_in_lane, place_in_store, place_of_cursor};
use quorate_types::partition_of;
use quorate_types::{Epoch, Instant, KeyspaceId, NodeId, NodeSet, Now, Tag};
use quorate_wire::{Header, Kind, ListingMessage, Malformed, Wanted};

use crate::forwarding::Submission;
use crate::lane::Internal;
use crate::{Done, KeyspaceConfig, KeyspaceLane, Lane, Outbox};

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
/// Undecided keys of one listing for which the engine is asked at the same time.
const DECIDING_MAX: usize = 64;

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
    /// The keys; none if only their number was asked for.
    pub keys: Vec<Vec<u8>>,
    /// How many they are.
    pub count: u64,
}

/// Where a listing goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    pub(crate) source: usize,
    /// The cursor of the store.
    pub(crate) within: u64,
}

/// Whom an answer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asker {
    /// Who wants keys that hold values of this kind, or of any, or only how many there are.
    Client {
        tag: Tag,
        kind: Option<ValueKind>,
        counts: bool,
    },
    Flush {
        job: u64,
    },
}

impl Asker {
    /// The kind of values that the keys are to hold, if it matters.
    fn kind(self) -> Option<ValueKind> {
        match self {
            Self::Client { kind, .. } => kind,
            Self::Flush { .. } => None,
        }
    }

    fn is_flush(self) -> bool {
        matches!(self, Self::Flush { .. })
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
    source: Source,
    at: Cursor,
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
    /// Where the first of the answers ended; 0 if all reached the end.
    next: u64,
    keys: BTreeMap<Vec<u8>, Found>,
    /// How many keys there are, if only that was said.
    count: Option<u64>,
    /// As many replicas have answered as are needed; it counts from then on, whatever views follow.
    complete: bool,
    /// Keys that may have a value: the engine must say whether they do.
    undecided: Vec<Vec<u8>>,
    /// Those for which it has been asked.
    deciding: usize,
}

/// A key as replicas have it.
#[derive(Debug, Default)]
struct Found {
    /// How many of them have a value of it and are not about to change it.
    settled: usize,
    /// How long the value is, as far as this node knows.
    bytes: usize,
}

/// A key, whether it has a value that is not about to change, and the value's length if it is known.
type Seen = (Vec<u8>, bool, usize);

impl Part {
    fn add(&mut self, from: NodeId, next: u64, keys: impl IntoIterator<Item = Seen>) {
        self.answered.insert(from);
        self.next = match (self.next, next) {
            _ if self.answered.len() == 1 => next,
            (0, next) | (next, 0) => next,
            (one, other) if mutant!("node_listing_ends_last") => one.max(other),
            (one, other) if place_of_cursor(one) <= place_of_cursor(other) => one,
            (_, other) => other,
        };
        for (key, settled, bytes) in keys {
            let found = self.keys.entry(key).or_default();
            found.settled += usize::from(settled);
            found.bytes = bytes.max(found.bytes);
        }
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

    /// Those of the nodes that are of the group.
    pub(crate) fn of(&self, nodes: NodeSet) -> NodeSet {
        self.group.map_or(nodes, |group| nodes.intersection(group))
    }

    /// Whether the node is one of the group.
    pub(crate) fn is_here(&self, node: NodeId) -> bool {
        self.group.is_none_or(|group| group.contains(node))
    }
}

impl Cursor {
    pub(crate) const START: Self = Self { source: 0, within: 0 };

    fn of(cursor: u64) -> Self {
        Self { source: (cursor >> SOURCE_AT) as usize, within: cursor & ((1 << SOURCE_AT) - 1) }
    }

    fn to_u64(self) -> u64 {
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
    /// Whether this node holds every key of the keyspace.
    pub fn holds_all(&self, keyspace: KeyspaceId) -> bool {
        let engine = self.engine(keyspace);
        let is_one =
            |engine: &KeyspaceLane| matches!(engine.sources(), [source] if source.group.is_none());
        engine.is_some_and(|engine| is_one(engine) && engine.holds_all() && self.tells(engine))
    }

    /// Whether this node can say which keys it has. One in doubt is asked again later.
    fn tells(&self, engine: &KeyspaceLane) -> bool {
        !engine.is_in_doubt() || mutant!("node_listing_of_doubtful_keys")
    }

    /// Whether this node's records are all that a listing needs, so that nobody need be asked.
    pub fn lists_alone(&self, keyspace: KeyspaceId) -> bool {
        let engine = self.engine(keyspace);
        engine.is_some_and(KeyspaceLane::acknowledges_from_all) && self.holds_all(keyspace)
    }

    /// A cursor of [`Lane::list`] at a place that `random` chooses.
    pub fn random_cursor(&self, keyspace: KeyspaceId, random: u64) -> u64 {
        let sources = self.engine(keyspace).map_or(1, |engine| engine.listing_sources().len());
        let within = self.shared.store(keyspace).map_or(0, |store| store.random_cursor(random));
        Cursor { source: (random >> SOURCE_AT) as usize % sources, within }.to_u64()
    }

    /// Lists some keys of a keyspace that have a value, wherever they are, from `cursor` (0 begins).
    /// Answered through [`Outbox::listed`]. A key that is present during a whole listing is in it at
    /// least once; one that is absent, never. Any number is a legal cursor.
    pub fn list(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        (cursor, limit, kind): (u64, usize, Option<ValueKind>),
        out: &mut Outbox,
    ) {
        let asker = Asker::Client { tag, kind, counts: false };
        self.begin_listing(now, asker, keyspace, (Cursor::of(cursor), limit), out);
    }

    /// As [`Lane::list`], without the keys. A replica that has every key of a group says at once how
    /// many they are, where it alone can.
    pub fn count(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        cursor: u64,
        out: &mut Outbox,
    ) {
        let asker = Asker::Client { tag, kind: None, counts: true };
        self.begin_listing(now, asker, keyspace, (Cursor::of(cursor), RECORDS_MAX), out);
    }

    /// Lists keys that a flush is to delete on this lane.
    pub(crate) fn list_for_flush(
        &mut self,
        now: Now,
        job: u64,
        keyspace: KeyspaceId,
        at: Cursor,
        out: &mut Outbox,
    ) {
        self.begin_listing(now, Asker::Flush { job }, keyspace, (at, RECORDS_MAX), out);
    }

    fn begin_listing(
        &mut self,
        now: Now,
        asker: Asker,
        keyspace: KeyspaceId,
        (at, limit): (Cursor, usize),
        out: &mut Outbox,
    ) {
        let sources = self.engine(keyspace).map_or(&[][..], KeyspaceLane::listing_sources);
        let source = sources.get(at.source).copied();
        match (asker, source) {
            (Asker::Client { tag, .. }, None) => {
                let nothing = Listed { next: 0, keys: Vec::new(), count: 0 };
                out.listed.push((tag, Outcome::Done(nothing)));
            }
            (Asker::Client { tag, .. }, Some(_)) if !self.takes(now, keyspace) => {
                out.listed.push((tag, Outcome::Refused(Refusal::NotServing)));
            }
            (Asker::Flush { job }, None) => self.flushes.unlisted(job),
            (_, Some(source)) => {
                self.listings.last += 1;
                let number = self.listings.last;
                let ask = Ask {
                    asker,
                    keyspace,
                    source,
                    at,
                    limit: limit.min(RECORDS_MAX),
                    // Replicas take turns, so that no single one lists for all.
                    tries: number as usize,
                    epoch: self.view.epoch,
                    part: Part::default(),
                    again_at: Instant::ZERO,
                    until: now.monotonic + self.shared.config.op_timeout,
                };
                self.put_question(now, number, ask, out);
            }
        }
    }

    /// Puts the question: to this node's own records if they are of the group and it can say what they are, and
    /// to as many others as are missing.
    fn put_question(&mut self, now: Now, number: u64, mut ask: Ask, out: &mut Outbox) {
        let node = self.shared.config.node;
        let tells = self.engine(ask.keyspace).is_some_and(|engine| self.tells(engine));
        if ask.source.is_here(node) && tells && !ask.part.answered.contains(node) {
            let (next, keys) = match self.wanted(&ask) {
                Wanted::Count => {
                    ask.part.count = Some(self.shared.store_facts(ask.keyspace).keys);
                    (0, Vec::new())
                }
                wanted => self.keys_here(now, &ask, wanted),
            };
            ask.part.add(node, next, keys);
        }
        self.go_on(now, number, ask, out);
    }

    /// What the records of a replica are asked for.
    fn wanted(&self, ask: &Ask) -> Wanted {
        let alone = self.engine(ask.keyspace).is_some_and(|engine| {
            engine.acknowledges_from_all() && engine.listing_sources().len() == 1
        }) && !self.asks_all(ask.keyspace);
        match ask.asker {
            Asker::Flush { .. } => Wanted::KeysOfLane,
            Asker::Client { counts: true, .. } if alone => Wanted::Count,
            Asker::Client { .. } => Wanted::Keys,
        }
    }

    /// How many further replicas of the group must say what keys there are.
    fn missing(&self, ask: &Ask) -> usize {
        let voters = self.view.voters();
        let group = ask.source.of(voters);
        if self.asks_all(ask.keyspace) && !mutant!("node_listing_of_spread_keys_asks_one") {
            return self.view.active().difference(ask.part.answered).len();
        }
        let one_is_enough = self.one_answers(ask.keyspace)
            || ask.asker.is_flush() && mutant!("node_flush_asks_one_replica")
            || !ask.asker.is_flush() && mutant!("node_listing_asks_one_replica");
        let needed = if one_is_enough { 1 } else { group.len() / 2 + 1 };
        needed.saturating_sub(ask.part.answered.len())
    }

    /// Whether one replica has all that was acknowledged.
    fn one_answers(&self, keyspace: KeyspaceId) -> bool {
        self.engine(keyspace).is_none_or(KeyspaceLane::acknowledges_from_all)
    }

    /// Whether every active member must say which keys it tells of.
    fn asks_all(&self, keyspace: KeyspaceId) -> bool {
        let engine = self.engine(keyspace);
        engine.is_some_and(|engine| engine.spreads() && !engine.holds_all())
    }

    /// Whether members of one view must have answered.
    fn mixes_epochs(&self, keyspace: KeyspaceId) -> bool {
        let one_is_enough = self.one_answers(keyspace) && !self.asks_all(keyspace);
        one_is_enough || mutant!("node_listing_mixes_epochs")
    }

    /// Asks those that are missing, or goes on to what they have said.
    fn go_on(&mut self, now: Now, number: u64, mut ask: Ask, out: &mut Outbox) {
        if self.missing(&ask) == 0 {
            ask.part.complete = true;
            self.leave_out(&mut ask);
            self.find_undecided(&mut ask);
            return self.decide(now, number, ask, out);
        }
        ask.again_at = now.monotonic + self.shared.config.message_loss_timeout * TIMEOUTS_PER_TRY;
        self.send_ask(number, &ask, out);
        self.listings.asks.insert(number, ask);
    }

    fn send_ask(&self, number: u64, ask: &Ask, out: &mut Outbox) {
        let replicas = ask.source.of(self.view.active());
        let replicas = replicas.difference(ask.part.answered).without(self.shared.config.node);
        let to = (0..self.missing(ask).min(replicas.len()))
            .filter_map(|nth| replicas.nth((ask.tries + nth) % replicas.len()))
            .collect::<NodeSet>();
        if to.is_empty() {
            return;
        }
        let message = ListingMessage::Ask {
            number,
            wanted: self.wanted(ask),
            partitions: ask.source.partitions,
            cursor: ask.at.within,
            limit: ask.limit as u32,
        };
        self.send_listing(to, ask.keyspace, Gate::OPEN, &message, out);
    }

    fn send_listing(
        &self,
        to: NodeSet,
        keyspace: KeyspaceId,
        gate: Gate,
        message: &ListingMessage,
        out: &mut Outbox,
    ) {
        out.frame_behind(gate, to, |buffer| {
            Header::frame(buffer, Kind::Listing, keyspace, self.view.epoch, |writer| {
                message.encode(writer);
            });
        });
    }

    /// Leaves out the keys before the part, and those after the first of the answers has ended: the
    /// next part has them.
    fn leave_out(&self, ask: &mut Ask) {
        let lanes = self.shared.config.lanes;
        let of_lane = ask.asker.is_flush();
        let place = |key: &[u8]| {
            if of_lane { place_in_lane(key) } else { place_in_store(key, lanes) }
        };
        let from = place_of_cursor(ask.at.within);
        let to = if ask.part.next == 0 { u64::MAX } else { place_of_cursor(ask.part.next) };
        ask.part.keys.retain(|key, _| (from..to).contains(&place(key)));
    }

    /// Takes out the keys that have a value according to some answers and not to others, and all of them
    /// if it matters of which kind the values are, which the answers don't say. A flush takes them as
    /// they are.
    fn find_undecided(&self, ask: &mut Ask) {
        if ask.asker.is_flush() {
            return;
        }
        let any_kind = ask.asker.kind().is_none();
        let tell = if self.asks_all(ask.keyspace) { 1 } else { ask.part.answered.len() };
        let Part { keys, undecided, .. } = &mut ask.part;
        let open = |_: &Vec<u8>, found: &mut Found| !any_kind || found.settled < tell;
        undecided.extend(keys.extract_if(.., open).map(|(key, _)| key));
    }

    /// Asks the engine for what is undecided, a bounded number at a time, or answers.
    fn decide(&mut self, now: Now, number: u64, mut ask: Ask, out: &mut Outbox) {
        if ask.part.undecided.is_empty() && ask.part.deciding == 0 {
            return self.listed(ask, out);
        }
        let room = DECIDING_MAX - ask.part.deciding;
        let first = ask.part.undecided.len().saturating_sub(room);
        let keys = ask.part.undecided.split_off(first);
        ask.part.deciding += keys.len();
        ask.again_at = ask.until;
        let keyspace = ask.keyspace;
        self.listings.asks.insert(number, ask);
        for key in keys {
            let call = OwnedCall::new([b"TYPE", &key[..]]).expect("TYPE takes a key");
            let tag = self.internal_tag(Internal::Listing { number, key });
            self.counts.submitted += 1;
            // Reads of different keys need not wait for each other.
            let submission = Submission::new(tag, tag.0, call.call());
            let (engine, mut sink) = self.engine_and_sink(keyspace, out);
            engine.take(now, submission, &mut sink);
        }
    }

    /// The engine has said whether a key has a value, and of which type.
    pub(crate) fn key_decided(&mut self, number: u64, key: Vec<u8>, done: &Done) {
        let Some(ask) = self.listings.asks.get_mut(&number) else { return };
        ask.part.deciding -= 1;
        match &done.outcome {
            Outcome::Done(Reply::Status(name)) => {
                let is_wanted = match ask.asker.kind() {
                    Some(kind) => *name == type_name(kind),
                    None => *name != "none",
                };
                if is_wanted {
                    ask.part.keys.insert(key, Found::default());
                }
            }
            // Nobody can say it now: the next turn ends the listing.
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Unknown => ask.until = Instant::ZERO,
        }
        ask.again_at = Instant::ZERO;
    }

    /// Goes on with what was decided, asks again what was not answered in time, and gives up what
    /// waited too long.
    pub(crate) fn tick_listings(&mut self, now: Now, out: &mut Outbox) {
        let mut due = self.listings.asks.extract_if(.., |_, ask| ask.again_at <= now.monotonic);
        let due: Vec<_> = due.by_ref().collect();
        for (number, mut ask) in due {
            if ask.until <= now.monotonic {
                self.unlisted(ask.asker, Refusal::TimedOut, out);
                continue;
            }
            if ask.part.complete {
                self.decide(now, number, ask, out);
                continue;
            }
            ask.tries += 1;
            let is_of_another_epoch = ask.epoch != self.view.epoch;
            if is_of_another_epoch && !mutant!("node_listing_mixes_epochs") {
                // What members of another epoch have said doesn't count.
                ask.part = Part::default();
                ask.epoch = self.view.epoch;
            }
            self.put_question(now, number, ask, out);
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
            Asker::Client { tag, .. } => out.listed.push((tag, Outcome::Refused(refusal))),
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
            ListingMessage::Ask { number, wanted, partitions, cursor, limit } => {
                // One that lags behind the others would leave out what they hold.
                if !self.takes(now, keyspace) || !self.tells(engine) {
                    return Ok(());
                }
                let answer = if wanted == Wanted::Count {
                    let keys = self.shared.store_facts(keyspace).keys;
                    ListingMessage::Count { number, keys }
                } else {
                    let count = engine.listing_sources()[0].count;
                    let source = Source { group: None, partitions, count };
                    let limit = (limit as usize).min(RECORDS_MAX);
                    let (next, keys) = self.keys_of(now, keyspace, source, wanted, (cursor, limit));
                    let keys = keys.into_iter().map(|(key, settled, _)| (key, settled)).collect();
                    ListingMessage::Keys { number, next, keys }
                };
                self.send_listing(NodeSet::only(from), keyspace, Gate::LEASE, &answer, out);
            }
            ListingMessage::Keys { number, next, keys } => {
                let keys = keys.into_iter().map(|(key, settled)| (key, settled, 0)).collect();
                self.hear_answer(now, (from, header.epoch), number, (next, keys, None), out);
            }
            ListingMessage::Count { number, keys } => {
                let answer = (0, Vec::new(), Some(keys));
                self.hear_answer(now, (from, header.epoch), number, answer, out);
            }
        }
        Ok(())
    }

    fn hear_answer(
        &mut self,
        now: Now,
        (from, epoch): (NodeId, Epoch),
        number: u64,
        (next, keys, count): (u64, Vec<Seen>, Option<u64>),
        out: &mut Outbox,
    ) {
        // The second answer to a question that was put twice finds nothing, or is not needed.
        let Some(mut ask) = self.listings.asks.remove(&number) else { return };
        let is_of_epoch = ask.epoch == self.view.epoch && ask.epoch == epoch;
        let counts = is_of_epoch || self.mixes_epochs(ask.keyspace);
        if ask.part.complete || !counts || ask.part.answered.contains(from) {
            self.listings.asks.insert(number, ask);
            return;
        }
        ask.part.add(from, next, keys);
        ask.part.count = count;
        if self.missing(&ask) == 0 {
            self.go_on(now, number, ask, out);
        } else {
            self.listings.asks.insert(number, ask);
        }
    }

    fn listed(&mut self, ask: Ask, out: &mut Outbox) {
        let Ask { asker, part, .. } = ask;
        let sources = self.engine(ask.keyspace).map_or(0, |engine| engine.listing_sources().len());
        let after = ask.at.after(part.next, sources);
        match asker {
            Asker::Client { tag, counts, .. } => {
                let next = after.map_or(0, Cursor::to_u64);
                let count = part.count.unwrap_or(part.keys.len() as u64);
                let keys = if counts { Vec::new() } else { part.keys.into_keys().collect() };
                out.listed.push((tag, Outcome::Done(Listed { next, keys, count })));
            }
            Asker::Flush { job } => {
                let keys = part.keys.into_iter().map(|(key, found)| (key, found.bytes));
                self.flushes.listed(job, after, keys);
            }
        }
    }

    fn keys_here(&self, now: Now, ask: &Ask, wanted: Wanted) -> (u64, Vec<Seen>) {
        self.keys_of(now, ask.keyspace, ask.source, wanted, (ask.at.within, ask.limit))
    }

    /// About so many keys that this node holds, of one lane or of all: those with a value, and those
    /// that may get one; fewer if most records have none.
    /// What has expired and is not deleted yet is only there for a flush.
    fn keys_of(
        &self,
        now: Now,
        keyspace: KeyspaceId,
        source: Source,
        wanted: Wanted,
        (mut cursor, limit): (u64, usize),
    ) -> (u64, Vec<Seen>) {
        let (mut keys, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        let Some(store) = self.shared.store(keyspace) else { return (0, keys) };
        let lane = (wanted == Wanted::KeysOfLane).then_some(self.id);
        let locked = !self.one_answers(keyspace);
        let engine = self.engine(keyspace).filter(|_| self.asks_all(keyspace));
        let tells_of = |key: &[u8]| engine.is_none_or(|engine| engine.lists(key));
        loop {
            let batch = BATCH.min(limit);
            let mut visit = |key: &[u8], value: Option<ValueInfo>, settled: bool| {
                let lives = |value: ValueInfo| value.expire_at.is_none_or(|at| at > now.wall());
                let has_value = value.is_some_and(|value| lane.is_some() || lives(value));
                if (has_value || !settled) && source.has(key) && tells_of(key) {
                    bytes += key.len();
                    let length = value.map_or(0, |value| value.len);
                    keys.push((key.to_vec(), has_value && settled, length));
                }
            };
            cursor = store.list((lane, locked), cursor, batch, &mut visit);
            looked_at += batch;
            let is_enough = keys.len() >= limit || looked_at >= RECORDS_MAX;
            if cursor == 0 || is_enough || bytes >= BYTES_ENOUGH {
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
