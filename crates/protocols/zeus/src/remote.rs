//! Reads of keys without a copy here: members of their groups are asked, twice.
//!
//! The first round brings what each key holds, from a copy that may be read, and its version. Then the
//! transaction runs, in a step in which keys with a copy here are read here. The second round asks the
//! same members whether each key still has that version and may be read. That step lies between all
//! looks of the first round and all of the second, so in it every version that was seen was the last
//! one that was committed. What a member says rests on its copies, so it leaves behind its lease.
//!
//! One key that was looked at once was there at one moment, too: it needs no second round.
//!
//! What has changed, or may not be read yet, is asked for again. Who asks too often in vain becomes the
//! owner of its keys, as one that writes does, and so comes to an end where keys are always being
//! written.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{
    Backoff, Command, Completion, Content, Effects, Gate, LaneShared, Outcome, Record as _,
    Refusal, Table, mutant,
};
use quorate_types::{Instant, MemberNumber, NodeId, NodeSet, Now, Timestamp, limits};

use crate::looks::{Copies, Keys, LookMessage, Question, Seen, Versions};
use crate::message::Message;
use crate::meta::Meta;
use crate::ownership::Value;
use crate::readers::{Ready, is_still};
use crate::state::{Key, Rights, Zeus};
use crate::workspace::{ReadSet, absent_version, known_version};

/// How often a read is tried before its keys are brought here.
const TRIES_MAX: u32 = 6;
/// Bytes of keys in one question, unless one key has more.
const QUESTION_BYTES_MAX: usize = limits::CHUNK_BYTES;
/// Bytes of one answer, unless one value has more.
const ANSWER_BYTES_MAX: usize = limits::TXN_BYTES_MAX;
/// Bytes of values that a lane has fetched and not answered with. Beyond it reads move keys, which costs
/// no memory that is not accounted.
const FETCHED_BYTES_MAX: usize = 2 * limits::TXN_READ_BYTES_MAX;

const STALE: &str = "zeus: an answer that no reader waits for any more";

/// What members of the groups of keys have told of them.
pub(crate) type Fetched = BTreeMap<Key, Copied>;

/// Nothing was asked of others.
pub(crate) static NOTHING: Fetched = BTreeMap::new();

/// What a key held when a member was asked.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Copied {
    pub(crate) version: Timestamp,
    /// A version below all that will be written of the key after that look.
    pub(crate) known: Timestamp,
    pub(crate) owner: MemberNumber,
    pub(crate) moves: u32,
    value: Option<Value>,
    from: NodeId,
}

/// The transactions of this lane that read keys without a copy here.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Remote<R> {
    reads: BTreeMap<u64, Read<R>>,
    /// Bytes of all that they have fetched.
    bytes: usize,
}

/// One of them.
#[derive(Clone, Hash, Debug)]
struct Read<R> {
    fetched: Fetched,
    bytes: usize,
    /// What was asked and is not answered: in the first round, or, once it has run, in the second.
    asked: BTreeMap<u64, Asked>,
    /// Questions so far.
    questions: u64,
    /// The answer, while it is asked whether what it rests on still holds.
    ran: Option<R>,
    tries: u32,
    /// Members that were asked in vain.
    avoids: NodeSet,
    wait: Backoff,
}

/// A question that is not answered.
#[derive(Clone, Hash, Debug)]
struct Asked {
    to: NodeId,
    /// The keys: in the first round with a version below all that will be written of each, in the second
    /// with the one that was seen.
    keys: Vec<(Key, Timestamp)>,
}

impl Copied {
    pub(crate) fn content(&self) -> Option<Content<'_>> {
        self.value.as_ref().map(Value::content)
    }
}

impl<R> Default for Remote<R> {
    fn default() -> Self {
        Self { reads: BTreeMap::new(), bytes: 0 }
    }
}

impl<R> Default for Read<R> {
    fn default() -> Self {
        Self {
            fetched: Fetched::new(),
            bytes: 0,
            asked: BTreeMap::new(),
            questions: 0,
            ran: None,
            tries: 0,
            avoids: NodeSet::EMPTY,
            wait: Backoff::default(),
        }
    }
}

impl<R> Read<R> {
    /// Keeps of what was fetched that for which `keeps` holds.
    fn retain(&mut self, keeps: impl Fn(&Key, &Copied) -> bool) {
        self.fetched.retain(|key, copy| keeps(key, copy));
        self.bytes = self.fetched.iter().map(|(key, copy)| bytes_of(key, copy)).sum();
    }

    /// Something has come in its way: it asks again, others if there are any.
    fn begin_again(&mut self, avoids: NodeSet) {
        self.asked.clear();
        self.ran = None;
        self.tries += 1;
        self.avoids = self.avoids.union(avoids);
    }

    fn is_silent(&self, now: Now) -> bool {
        !self.asked.is_empty() && self.wait.deadline() <= now.monotonic
    }
}

fn bytes_of(key: &Key, copy: &Copied) -> usize {
    key.len() + copy.content().map_or(0, |content| content.bytes.len())
}

/// Parts of a list of keys, each with no more bytes than a question may have.
fn parts(mut keys: Vec<(Key, Timestamp)>) -> Vec<Vec<(Key, Timestamp)>> {
    let mut parts = Vec::new();
    while !keys.is_empty() {
        let mut bytes = 0;
        let fits = |(key, _): &&(Key, Timestamp)| {
            bytes += key.len();
            bytes <= QUESTION_BYTES_MAX
        };
        let count = keys.iter().take_while(fits).count().max(1);
        let rest = keys.split_off(count);
        parts.push(core::mem::replace(&mut keys, rest));
    }
    parts
}

impl<R> Remote<R> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    /// Whether a transaction waits for an answer.
    pub(crate) fn is_asking(&self, id: u64) -> bool {
        self.reads.get(&id).is_some_and(|read| !read.asked.is_empty())
    }

    /// A transaction has ended, or asks nobody any more.
    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(read) = self.reads.remove(&id) {
            self.bytes -= read.bytes;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// When the first of them has waited for too long.
    pub(crate) fn next_deadline(&self) -> Instant {
        let open = self.reads.values().filter(|read| !read.asked.is_empty());
        open.map(|read| read.wait.deadline()).min().unwrap_or(Instant::NEVER)
    }

    /// What a transaction has fetched, to run with it; [`Remote::put_back`] follows.
    pub(crate) fn take(&mut self, id: u64) -> Fetched {
        self.reads.get_mut(&id).map(|read| core::mem::take(&mut read.fetched)).unwrap_or_default()
    }

    pub(crate) fn put_back(&mut self, id: u64, fetched: Fetched) {
        if let Some(read) = self.reads.get_mut(&id) {
            read.fetched = fetched;
        }
    }

    /// Changes what is kept of a transaction, and counts its bytes anew.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Read<R>)) {
        if let Some(read) = self.reads.get_mut(&id) {
            self.bytes -= read.bytes;
            change(read);
            self.bytes += read.bytes;
        }
    }

    /// The question that this answers, if it is open.
    fn asked(&self, from: NodeId, question: Question, has_run: bool) -> Option<(u64, &Asked)> {
        let read = self.reads.get(&question.reader).filter(|read| read.ran.is_some() == has_run)?;
        let mut asked = read.asked.iter().map(|(number, asked)| (*number, asked));
        asked.find(|(number, asked)| {
            let is_it = *number == question.number || mutant!("zeus_answer_to_any_question");
            is_it && asked.to == from
        })
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    // --- the reader ------------------------------------------------------------------------------

    /// Asks members for the keys without a copy here that are not fetched yet.
    pub(crate) fn fetch(
        &mut self,
        now: Now,
        id: u64,
        far: &[&Key],
        effects: &mut impl Effects<Self>,
    ) -> Ready {
        let read = self.remote.reads.entry(id).or_default();
        if !read.asked.is_empty() {
            return Ready::Waits;
        }
        let gives_up = read.tries >= TRIES_MAX && !mutant!("zeus_remote_read_never_gives_up");
        let (node, turn) = (self.layout.node, id as usize + read.tries as usize);
        let mut to: BTreeMap<NodeId, Vec<(Key, Timestamp)>> = BTreeMap::new();
        let mut chosen = NodeSet::EMPTY;
        let mut is_alone = false;
        for key in far.iter().filter(|key| !read.fetched.contains_key(&***key)) {
            let all = self.layout.readers(key).without(node);
            let fresh = all.difference(read.avoids);
            let some = if fresh.is_empty() { all } else { fresh };
            // A member that is asked anyhow costs no message.
            let asked = some.intersection(chosen).first();
            let Some(member) = asked.or_else(|| some.nth(turn % some.len().max(1))) else {
                is_alone = true;
                break;
            };
            chosen.insert(member);
            let known = known_version(&self.table, self.config.lanes, key);
            to.entry(member).or_default().push(((*key).clone(), known));
        }
        if gives_up || is_alone {
            effects.probe("zeus: a reader becomes an owner");
            self.counters.remote_moves += 1;
            return Ready::Owns;
        }
        if to.is_empty() {
            return Ready::Runs;
        }
        effects.probe("zeus: a reader asks for keys");
        for key in far {
            self.count_forward(now, key);
        }
        self.ask_members(now, id, to, effects);
        Ready::Waits
    }

    /// Asks members about keys: in the first round what they hold, in the second whether that is still so.
    fn ask_members(
        &mut self,
        now: Now,
        id: u64,
        to: BTreeMap<NodeId, Vec<(Key, Timestamp)>>,
        effects: &mut impl Effects<Self>,
    ) {
        let read = self.remote.reads.get_mut(&id).expect("it reads keys without a copy");
        for (member, keys) in to {
            for keys in parts(keys) {
                read.questions += 1;
                let number = read.questions;
                let question = Question { reader: id, number };
                if read.ran.is_some() {
                    let versions = keys.iter().map(|(key, version)| (&**key, *version));
                    let versions = Versions::write(versions);
                    let versions = Versions::check(&versions).expect("just written");
                    let check = LookMessage::Check { question, versions };
                    effects.send(member, &Message::Look(check));
                } else {
                    let names = Keys::write(keys.iter().map(|(key, _)| &**key));
                    let names = Keys::check(&names).expect("just written");
                    let look = LookMessage::Look { question, keys: names };
                    effects.send(member, &Message::Look(look));
                }
                read.asked.insert(number, Asked { to: member, keys });
            }
        }
        read.wait.begin(now, self.config.message_loss_timeout);
        self.wake_at = self.wake_at.min(read.wait.deadline());
    }

    /// A member has told what keys hold.
    fn on_seen(
        &mut self,
        now: Now,
        from: NodeId,
        question: Question,
        copies: Copies<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let id = question.reader;
        let Some((number, asked)) = self.remote.asked(from, question, false) else {
            return effects.ignored(STALE);
        };
        let told = copies.iter().len();
        if told == 0 || told > asked.keys.len() {
            return effects.refused("zeus: SEEN of other keys than were asked for");
        }
        let mut has_all = true;
        self.remote.change(id, |read| {
            let asked = read.asked.remove(&number).expect("it was found");
            for ((key, known), seen) in asked.keys.into_iter().zip(copies.iter()) {
                let Some(Seen { version, owner, moves, content }) = seen else {
                    has_all = false;
                    continue;
                };
                let value = content.map(Value::of);
                let copy = Copied { version, known, owner, moves, value, from };
                read.bytes += bytes_of(&key, &copy);
                read.fetched.insert(key, copy);
            }
        });
        if !has_all {
            effects.probe("zeus: a member is asked for what is not committed");
            self.begin_again(id, NodeSet::only(from), effects);
        }
        let read = self.remote.reads.get_mut(&id).expect("it was found");
        if read.bytes > limits::TXN_READ_BYTES_MAX {
            return self.refuse(id, Refusal::TooLarge, effects);
        }
        if self.remote.bytes > FETCHED_BYTES_MAX {
            read.tries = TRIES_MAX;
        }
        self.try_to_run(now, id, effects);
    }

    /// Something has come in the way of a read.
    fn begin_again(&mut self, id: u64, avoids: NodeSet, effects: &mut impl Effects<Self>) {
        effects.probe("zeus: a reader asks again");
        self.counters.remote_repeats += 1;
        self.remote.change(id, |read| read.begin_again(avoids));
    }

    /// A transaction has run with what was fetched for it. The answer, if nobody has to be asked again: it
    /// has used one key only, or none that was fetched.
    pub(crate) fn confirm(
        &mut self,
        now: Now,
        id: u64,
        reply: X::Reply,
        read_set: &ReadSet,
        effects: &mut impl Effects<Self>,
    ) -> Option<X::Reply> {
        let Some(read) = self.remote.reads.get_mut(&id) else { return Some(reply) };
        let mut to: BTreeMap<NodeId, Vec<(Key, Timestamp)>> = BTreeMap::new();
        for (key, held) in read_set.keys.iter() {
            if let Some(copy) = read.fetched.get(key) {
                to.entry(copy.from).or_default().push((key.into(), held.timestamp));
            }
        }
        let looks_once = read_set.keys.len() <= 1 || mutant!("zeus_remote_read_looks_once");
        if to.is_empty() || looks_once {
            self.counters.remote_reads += 1;
            return Some(reply);
        }
        read.ran = Some(reply);
        self.ask_members(now, id, to, effects);
        None
    }

    /// A member has told whether keys are as they were.
    fn on_checked(
        &mut self,
        now: Now,
        from: NodeId,
        question: Question,
        holds: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let id = question.reader;
        let Some((number, _)) = self.remote.asked(from, question, true) else {
            return effects.ignored(STALE);
        };
        let read = self.remote.reads.get_mut(&id).expect("it was found");
        let asked = read.asked.remove(&number).expect("it was found");
        if !holds {
            effects.probe("zeus: what a reader has seen has changed");
            let is_its = |key: &Key| asked.keys.iter().any(|(name, _)| name == key);
            self.remote.change(id, |read| read.retain(|key, _| !is_its(key)));
            self.begin_again(id, NodeSet::EMPTY, effects);
            return self.try_to_run(now, id, effects);
        }
        if !read.asked.is_empty() {
            return;
        }
        let reply = read.ran.take().expect("it is in its second round");
        effects.probe("zeus: a reader's copies are confirmed");
        self.counters.remote_reads += 1;
        let client = self.transactions.client_of(id);
        let done = Completion::new(Outcome::Done(reply)).behind(Gate::LEASE);
        self.answer(client, done, effects);
        self.forget(id);
    }

    /// Asks others in place of members that have not answered.
    pub(crate) fn repeat_looks(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let silent = self.remote.reads.iter().filter(|(_, read)| read.is_silent(now));
        let due: Vec<u64> = silent.map(|(id, _)| *id).collect();
        for id in due {
            let read = self.remote.reads.get_mut(&id).expect("it was found");
            self.config.wait_longer(&mut read.wait, now);
            let silent: NodeSet = read.asked.values().map(|asked| asked.to).collect();
            self.remote.change(id, |read| read.retain(|_, copy| !silent.contains(copy.from)));
            self.begin_again(id, silent, effects);
            self.try_to_run(now, id, effects);
        }
    }

    /// All begins anew in a new view: who was asked may be gone, and groups may be others. What an answer
    /// of the epoch before says is not heard any more.
    pub(crate) fn renew_looks(&mut self) {
        if !mutant!("zeus_remote_read_outlives_epoch") {
            self.remote.clear();
        }
    }

    // --- a member of the group -------------------------------------------------------------------

    pub(crate) fn on_look_message(
        &mut self,
        now: Now,
        from: NodeId,
        message: LookMessage<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match message {
            LookMessage::Look { question, keys } => self.on_look(from, question, keys, effects),
            LookMessage::Seen { question, copies } => {
                self.on_seen(now, from, question, copies, effects);
            }
            LookMessage::Check { question, versions } => {
                self.on_check(from, question, versions, effects);
            }
            LookMessage::Checked { question, holds } => {
                self.on_checked(now, from, question, holds, effects);
            }
        }
    }

    /// Tells what keys hold: of the first of them, as many as fit into an answer.
    fn on_look(
        &mut self,
        from: NodeId,
        question: Question,
        keys: Keys<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if keys.iter().len() == 0 {
            return effects.refused("zeus: LOOK at nothing");
        }
        let rights = Rights { layout: &self.layout, has_recovered: self.lanes.has_recovered };
        let lanes = self.config.lanes;
        let (mut copies, mut packed) = (Copies::begin(), Vec::new());
        let may_read = |meta: &Meta, key: &[u8]| {
            let is_uncommitted =
                || rights.has_copy(meta, key) && mutant!("zeus_look_at_uncommitted");
            rights.may_read(meta, key) || is_uncommitted()
        };
        for (at, key) in keys.iter().enumerate() {
            let Some(record) = self.table.lock_existing(key) else {
                // Only now: the floor may have risen just before the record was forgotten.
                let version = absent_version(&self.table, lanes, key);
                let absent = Seen { version, ..Seen::default() };
                Copies::push(&mut copies, may_read(&Meta::default(), key).then_some(absent));
                continue;
            };
            let meta = record.meta();
            let content = record.whole(&mut packed);
            let bytes = content.map_or(0, |content| content.bytes.len());
            if at > 0 && copies.len() + bytes > ANSWER_BYTES_MAX {
                break;
            }
            let Meta { version, owner, moves, .. } = meta;
            let seen = Seen { version, owner, moves, content };
            Copies::push(&mut copies, may_read(&meta, key).then_some(seen));
        }
        let copies = Copies::check(&copies).expect("just written");
        let seen = Message::Look(LookMessage::Seen { question, copies });
        let gate = if mutant!("zeus_look_without_lease") { Gate::OPEN } else { Gate::LEASE };
        effects.send_behind(gate, NodeSet::only(from), &seen);
    }

    /// Tells whether keys are as they were seen.
    fn on_check(
        &mut self,
        from: NodeId,
        question: Question,
        versions: Versions<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let rights = Rights { layout: &self.layout, has_recovered: self.lanes.has_recovered };
        let (lanes, table) = (self.config.lanes, &mut self.table);
        let mut versions = versions.iter();
        let holds = versions.all(|(key, seen)| is_still(table, lanes, &rights, key, seen));
        let checked = Message::Look(LookMessage::Checked { question, holds });
        let gate = if mutant!("zeus_check_without_lease") { Gate::OPEN } else { Gate::LEASE };
        effects.send_behind(gate, NodeSet::only(from), &checked);
    }
}
