//! Transactions of this node's clients: what they wait for, and how they run.
//!
//! A transaction that may write anything needs to own each of its keys, also those that it only
//! reads. It asks for all that are missing at once, and runs in one step as soon as it has all of
//! them: no transaction is ever seen half done, and none sees another's half. Keys that it finds on
//! the way it asks for, too, and runs again from the beginning.
//!
//! Lanes ask for each other's keys in the same way (`lanes.rs`): what asks is a transaction of one key
//! that runs by lending it.
//!
//! While it waits it keeps the keys that it has, but not from an older one (*wound-wait*): of two
//! transactions that each have what the other needs, the younger gives way.
//!
//! A transaction that only reads runs on any node that has copies of all its keys, without a message,
//! in a step in which all of them are Valid. (The paper's fused check, which looks at each key's state
//! and version once at the end, would let two readers see two writes in different orders.) Where a
//! copy is missing other nodes are asked for it (`remote.rs`).

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use quorate_machine::{
    Command, Completion, DetMap, Effects, Gate, LaneShared, OneKey, Outcome, Refusal, Table,
    Verdict, mutant,
};
use quorate_rifl::Permit;
use quorate_types::{LaneId, Now, Tag, Timestamp, limits};

use crate::calls::{Called, Look, home_key};
use crate::commit::Answer;
use crate::lanes::Client;
use crate::meta::{Meta, OwnerState};
use crate::readers::Ready;
use crate::remote::NOTHING;
use crate::state::{Key, Rights, Zeus};
use crate::workspace::{Records, Run, Work};

/// What a transaction needs of its keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Need {
    /// A copy that may be read.
    Copy,
    /// To own them.
    Owner,
}

/// What is done with the keys.
#[derive(Clone, Hash, Debug)]
enum Task<X> {
    /// A transaction of this origin runs with them; it may be a call of a session.
    Run { client: Client, origin: u64, call: Option<Called>, command: X },
    /// The key is lent to this lane, or the lane is told that the key may be read.
    Lend(LaneId),
}

/// What waits for keys.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Op<X> {
    task: Task<X>,
    /// In order.
    keys: Vec<Key>,
    need: Need,
    /// Its age.
    stamp: Timestamp,
}

/// Keys from which on a transaction is not looked at as a whole each time that one of them changes.
const KEYS_MANY: usize = 64;

/// The transactions that have not run.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Transactions<X> {
    ops: DetMap<u64, Op<X>>,
    last: u64,
    /// Those that need a key, except such as wait for their turn in their origin's line.
    waiting: DetMap<Key, VecDeque<u64>>,
    /// Those of each origin, in order. The first waits for its keys.
    lines: DetMap<u64, VecDeque<u64>>,
    /// Those whose turn has just come.
    ready: VecDeque<u64>,
}

/// Who runs a transaction, and the keys that it may use besides those at hand.
struct By<'a> {
    client: Client,
    origin: u64,
    /// In order.
    needed: &'a [Key],
    /// Its number here and the call, if it is a call of a session.
    call: Option<(u64, &'a Called)>,
}

/// How a transaction has run that owns its keys.
enum Ran {
    /// It is committed here, or has changed nothing.
    Ended,
    /// It finds these keys on the way.
    Missing(Vec<Key>),
    /// What it has read had expired and is deleted now: it runs again.
    Expired,
    Refused(Refusal),
}

impl<X> Op<X> {
    /// The transaction.
    pub(crate) fn command(&self) -> &X {
        match &self.task {
            Task::Run { command, .. } => command,
            Task::Lend(_) => unreachable!("a lane asks for a key and does not run"),
        }
    }
}

impl<X> Default for Transactions<X> {
    fn default() -> Self {
        Self {
            ops: DetMap::default(),
            last: 0,
            waiting: DetMap::default(),
            lines: DetMap::default(),
            ready: VecDeque::new(),
        }
    }
}

impl<X: Command<Owned = X>> Transactions<X> {
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    fn op(&self, id: u64) -> &Op<X> {
        self.ops.get(&id).expect("it waits")
    }

    fn at<'a>(&'a self, key: &[u8]) -> impl Iterator<Item = &'a Op<X>> {
        self.waiting.get(key).into_iter().flatten().map(|id| self.op(*id))
    }

    /// Whom to answer, and the call, if a transaction is one.
    pub(crate) fn call_of(&self, id: u64) -> Option<(Client, &Called)> {
        match &self.ops.get(&id)?.task {
            Task::Run { client, call, .. } => Some((*client, call.as_ref()?)),
            Task::Lend(_) => None,
        }
    }

    /// The age of one that waits.
    pub(crate) fn stamp_of(&self, id: u64) -> Timestamp {
        self.op(id).stamp
    }

    /// Whether it is another lane that asks.
    pub(crate) fn is_ask(&self, id: u64) -> bool {
        matches!(self.op(id).task, Task::Lend(_))
    }

    /// Whom to answer.
    pub(crate) fn client_of(&self, id: u64) -> Client {
        match self.op(id).task {
            Task::Run { client, .. } => client,
            Task::Lend(_) => unreachable!("a lane asks for a key and does not run"),
        }
    }

    /// Takes one out, to run it; [`Transactions::put_back`] follows.
    pub(crate) fn take_reader(&mut self, id: u64) -> Op<X> {
        self.ops.remove(&id).expect("it waits")
    }

    pub(crate) fn put_back(&mut self, id: u64, op: Op<X>) {
        self.ops.insert(id, op);
    }

    /// The ages of those that wait to own a key.
    pub(crate) fn waiting_owners(&self, key: &[u8]) -> Vec<Timestamp> {
        let owners = self.at(key).filter(|op| op.need == Need::Owner);
        owners.map(|op| op.stamp).collect()
    }

    /// Whether any of this origin waits.
    pub(crate) fn has_line(&self, origin: u64) -> bool {
        self.lines.contains_key(&origin)
    }

    /// Whether a transaction waits with a key that is older than one at another node that wants it.
    pub(crate) fn keeps(&self, key: &[u8], stamp: Timestamp) -> bool {
        let mut owners = self.at(key).filter(|op| op.need == Need::Owner);
        owners.any(|op| op.stamp < stamp || mutant!("zeus_younger_wins"))
    }

    /// Whether another lane asks to own a key for a transaction that is older than this age, or of any age.
    /// Who comes later waits for it: otherwise a key that is always being written would never be lent.
    fn is_asked_before(&self, key: &[u8], stamp: Option<Timestamp>) -> bool {
        let is_ask = |op: &Op<X>| matches!(op.task, Task::Lend(_)) && op.need == Need::Owner;
        let mut asks = self.at(key).filter(|op| is_ask(op));
        asks.any(|op| stamp.is_none_or(|stamp| op.stamp < stamp))
            && !mutant!("zeus_lane_overtakes_asks")
    }

    /// Whether a transaction waits for a key.
    pub(crate) fn wait_for(&self, key: &[u8]) -> bool {
        self.waiting.contains_key(key)
    }

    /// Every key that a transaction waits for.
    pub(crate) fn waited_for(&self) -> Vec<Key> {
        self.waiting.keys_that(|_, _| true)
    }

    fn add(&mut self, op: Op<X>) -> u64 {
        self.last += 1;
        self.ops.insert(self.last, op);
        self.last
    }

    /// Another lane asks for a key.
    pub(crate) fn add_ask(&mut self, lane: LaneId, key: &Key, need: Need, stamp: Timestamp) -> u64 {
        let keys = vec![key.clone()];
        let id = self.add(Op { task: Task::Lend(lane), keys, need, stamp });
        self.wait(id, [key.clone()].into_iter());
        id
    }

    /// It asks for more, or for an older transaction.
    pub(crate) fn raise(&mut self, id: u64, need: Need, stamp: Timestamp) {
        let op = self.ops.get_mut(&id).expect("it waits");
        (op.need, op.stamp) = (op.need.max(need), op.stamp.min(stamp));
    }

    fn wait(&mut self, id: u64, keys: impl Iterator<Item = Key>) {
        for key in keys {
            let (ids, _) = self.waiting.get_or_insert_with(key, VecDeque::new);
            if let Err(at) = ids.binary_search(&id) {
                ids.insert(at, id);
            }
        }
    }

    /// Gives the keys of a transaction back that were taken out to look at them.
    fn give_keys(&mut self, id: u64, keys: Vec<Key>) {
        self.ops.get_mut(&id).expect("it waits").keys = keys;
    }

    pub(crate) fn check_invariants(&self, is_stopped: bool) {
        assert!(self.ready.is_empty() || is_stopped, "a transaction whose turn has come was tried");
        for (key, ids) in self.waiting.sorted() {
            assert!(!ids.is_empty(), "nobody waits for {key:?}");
            assert!(ids.iter().all(|id| self.op(*id).keys.contains(key)), "{key:?} is needed");
        }
        let lined = self.lines.sum(|_, line| line.len());
        let run = self.ops.sum(|_, op| usize::from(matches!(op.task, Task::Run { .. })));
        assert_eq!(lined, run, "every transaction is in the line of its origin");
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Takes a transaction; answered by [`Effects::complete`] with the same tag, once.
    pub fn submit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        let has_ended = self.read_at_once(now, tag, origin, &command, effects)
            || self.run_at_once(now, tag, origin, &command, effects);
        if !has_ended {
            self.enqueue(now, tag, origin, None, command.into_owned(), effects);
        }
        self.settle_changes(now, effects);
    }

    pub(crate) fn enqueue(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        permit: Option<Permit>,
        command: X,
        effects: &mut impl Effects<Self>,
    ) {
        let busy = self.lanes.len() >= limits::OPS_PENDING_MAX;
        if let Some(refusal) = self.refusal().or(busy.then_some(Refusal::Busy)) {
            return effects.complete(tag, Outcome::Refused(refusal));
        }
        match self.config.lanes {
            1 => self.admit(now, Client::Tag(tag), origin, permit, command, effects),
            _ => self.send_home(tag, origin, permit, command, effects),
        }
    }

    /// Takes a transaction whose home is this lane.
    pub(crate) fn admit(
        &mut self,
        now: Now,
        client: Client,
        origin: u64,
        permit: Option<Permit>,
        command: X,
        effects: &mut impl Effects<Self>,
    ) {
        let mut keys = Vec::new();
        // Who asks where a key lives needs no copy of it, and waits for no write.
        if !command.asks_placement() {
            command.visit_keys(&mut |key| keys.push(Key::from(key)));
        }
        let call = permit.map(|permit| Called { permit, home: home_key(&command) });
        keys.extend(call.iter().map(|call| call.home.clone()));
        keys.sort_unstable();
        keys.dedup();
        let busy = self.transactions.len() >= limits::OPS_PENDING_MAX;
        let too_large = (keys.len() > limits::TXN_KEYS_MAX).then_some(Refusal::TooLarge);
        let refusal = self.refusal().or(busy.then_some(Refusal::Busy)).or(too_large);
        if let Some(refusal) = refusal {
            return self.answer(client, Completion::new(Outcome::Refused(refusal)), effects);
        }
        let need = match command.updates() && !mutant!("zeus_reads_at_reader") {
            true => Need::Owner,
            false => Need::Copy,
        };
        let stamp = self.issue(now);
        let task = Task::Run { client, origin, call, command };
        let id = self.transactions.add(Op { task, keys, need, stamp });
        self.op_timeouts.push(now.monotonic + self.config.op_timeout, id);
        if need == Need::Copy {
            self.reader_timeouts.push(now.monotonic + self.config.message_loss_timeout, id);
        }
        let (line, _) = self.transactions.lines.get_or_insert_with(origin, VecDeque::new);
        line.push_back(id);
        if line.len() == 1 {
            self.transactions.ready.push_back(id);
        } else {
            effects.probe("zeus: a transaction waits for its origin");
        }
    }

    /// Tries again whatever waits for something that this step has changed.
    pub(crate) fn settle_changes(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while !self.lanes.is_stopped() {
            self.check_recovered(now, effects);
            if self.depart_next(now, effects) {
                continue;
            }
            if let Some(id) = self.transactions.ready.pop_front() {
                if let Some(op) = self.transactions.ops.get_mut(&id) {
                    let keys = mem::take(&mut op.keys);
                    self.transactions.wait(id, keys.iter().cloned());
                    self.transactions.give_keys(id, keys);
                    self.try_to_run(now, id, effects);
                    let op = self.transactions.ops.get(&id);
                    self.counters.waited += u64::from(op.is_some_and(|op| op.need == Need::Owner));
                }
                continue;
            }
            let Some(key) = self.changed.pop_first() else {
                self.check_floor(now, effects);
                self.check_watched(effects);
                return self.plan_sweep(now);
            };
            // Transactions that wait here come before the next owner.
            let ids = self.transactions.waiting.get(&key).cloned().unwrap_or_default();
            for id in ids {
                if !self.lacks_others(now, id, &key, effects) {
                    self.try_to_run(now, id, effects);
                }
            }
            if self.is_own(&key) {
                self.check_copy(now, &key, effects);
                self.serve_next(now, &key, effects);
                self.agree(now, &key, effects);
            } else {
                self.check_borrowed(&key, effects);
            }
        }
    }

    /// Whether a transaction that needs many keys, of which one has changed, lacks another. To look at all
    /// of them each time that one comes would take as many looks as there are pairs.
    fn lacks_others(
        &mut self,
        now: Now,
        id: u64,
        changed: &Key,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let Some(op) = self.transactions.ops.get_mut(&id) else { return false };
        if op.need != Need::Owner || op.keys.len() < KEYS_MANY {
            return false;
        }
        let stamp = op.stamp;
        let keys = mem::take(&mut op.keys);
        // They are asked for in their order, so those that come late are near the end.
        let lacks = keys.iter().rev().any(|key| key != changed && !self.may_own(key, stamp));
        self.transactions.give_keys(id, keys);
        if lacks && !self.may_own(changed, stamp) {
            self.obtain(now, changed, stamp, effects);
        }
        lacks
    }

    /// Something of a key has changed: what waits for it is to be tried again, if anything does.
    pub(crate) fn note_if_wanted(&mut self, key: &[u8]) {
        match self.rounds.contains_key(key) {
            true => _ = self.changed.insert(key.into()),
            false => self.note_if_awaited(key),
        }
    }

    /// The same, of what a round does not wait for.
    pub(crate) fn note_if_awaited(&mut self, key: &[u8]) {
        let is_awaited = self.transactions.wait_for(key)
            || self.copies.contains(key)
            || self.lanes.is_borrowed(key);
        if is_awaited {
            self.changed.insert(key.into());
        }
    }

    /// Runs a transaction if it may use all its keys; asks for those that are missing otherwise.
    pub(crate) fn try_to_run(&mut self, now: Now, id: u64, effects: &mut impl Effects<Self>) {
        loop {
            let Some(op) = self.transactions.ops.get(&id) else { return };
            if self.layout.in_doubt {
                return effects.probe("zeus: a transaction waits for a node in doubt");
            }
            let need = op.need;
            // The key, if it is another lane that asks.
            let ask = match op.task {
                Task::Lend(lane) => Some((lane, op.keys[0].clone())),
                Task::Run { .. } => None,
            };
            match need {
                Need::Copy => {
                    let keys = op.keys.clone();
                    match self.check_reader(now, id, &keys, effects) {
                        Ready::Runs => {}
                        Ready::Waits => return,
                        Ready::Owns => {
                            self.need_ownership(id);
                            continue;
                        }
                    }
                }
                Need::Owner => {
                    if !self.obtain_all(now, id, effects) {
                        return effects.probe("zeus: a transaction waits for its keys");
                    }
                }
            }
            let has_ended = match ask {
                Some((lane, key)) => self.end_ask(id, lane, &key, need, effects),
                None if need == Need::Copy => self.run_reader(now, id, effects),
                None => match self.look_up_call(now, id, effects) {
                    Look::New => self.run(now, id, effects),
                    Look::Ended | Look::Waits => true,
                },
            };
            if has_ended {
                return;
            }
        }
    }

    /// Whether a transaction may use all its keys; asks for those that are missing.
    fn obtain_all(&mut self, now: Now, id: u64, effects: &mut impl Effects<Self>) -> bool {
        let op = self.transactions.ops.get_mut(&id).expect("it waits");
        let (keys, stamp) = (mem::take(&mut op.keys), op.stamp);
        let missing: Vec<&Key> = keys.iter().filter(|key| !self.may_own(key, stamp)).collect();
        for key in &missing {
            self.obtain(now, key, stamp, effects);
        }
        // A driver on this node may have been rejected, or settled all, at once. A key whose request is open
        // has not come.
        let lacks = |key: &Key| self.acquisitions.contains_key(&**key) || !self.may_own(key, stamp);
        let has_all = !missing.into_iter().any(lacks);
        self.transactions.give_keys(id, keys);
        has_all
    }

    pub(crate) fn may_own(&mut self, key: &[u8], stamp: Timestamp) -> bool {
        if !self.is_own(key) {
            return self.may_use_borrowed(key, stamp);
        }
        let may_be_asked = self.config.lanes > 1;
        if self.lanes.is_lent(key)
            || may_be_asked && self.transactions.is_asked_before(key, Some(stamp))
        {
            return false;
        }
        let meta = self.meta(key);
        let rights = self.rights();
        let settled = Meta { state: OwnerState::Valid, ..meta };
        rights.may_own(&meta, key)
            || (rights.may_own(&settled, key)
                && (self.may_use_before(key, stamp) || mutant!("zeus_gate_open")))
    }

    pub(crate) fn need_ownership(&mut self, id: u64) {
        self.remote.forget(id);
        let op = self.transactions.ops.get_mut(&id).expect("it waits");
        op.need = Need::Owner;
    }

    /// Gives another lane what it has asked for, as soon as this one is done with the key and nothing
    /// older waits with it. `true` in either case: it is tried again when the key changes.
    fn end_ask(
        &mut self,
        id: u64,
        lane: LaneId,
        key: &Key,
        need: Need,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let stamp = self.transactions.stamp_of(id);
        let is_done = self.pipeline.is_done_with(key) || mutant!("zeus_lane_takes_undrained");
        if need == Need::Copy {
            self.tell_readable(lane, key, effects);
        } else if is_done && !self.transactions.keeps(key, stamp) {
            self.lend(lane, key, effects);
        } else {
            return true;
        }
        self.forget_ask(lane, key);
        self.forget(id);
        true
    }

    /// A transaction has found keys on the way.
    pub(crate) fn need_too(&mut self, id: u64, found: Vec<Key>, effects: &mut impl Effects<Self>) {
        effects.probe("zeus: a transaction finds a key on the way");
        let op = self.transactions.ops.get_mut(&id).expect("it waits");
        op.keys.extend(found.iter().cloned());
        op.keys.sort_unstable();
        op.keys.dedup();
        self.transactions.wait(id, found.into_iter());
    }

    // --- writers ---------------------------------------------------------------------------------

    /// Whether a transaction may run in the step in which it comes: nothing of its origin waits.
    pub(crate) fn may_begin_at_once(&self, origin: u64) -> bool {
        let serves = self.refusal().is_none() && !self.layout.in_doubt;
        serves && !self.lanes.is_stopped() && !self.has_line(origin)
    }

    /// Runs a transaction that writes in this step if nothing of its origin waits and this lane may use
    /// every key that it touches. Whether it has ended.
    fn run_at_once<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        command: &P,
        effects: &mut impl Effects<Self>,
    ) -> bool
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        if !command.updates() || !self.may_begin_at_once(origin) {
            return false;
        }
        let by = By { client: Client::Tag(tag), origin, needed: &[], call: None };
        match self.execute(now, by, command, effects) {
            Ran::Ended => true,
            Ran::Refused(refusal) => {
                effects.complete(tag, Outcome::Refused(refusal));
                true
            }
            Ran::Missing(_) | Ran::Expired => false,
        }
    }

    /// Runs a transaction that owns all its keys. Whether it has ended.
    fn run(&mut self, now: Now, id: u64, effects: &mut impl Effects<Self>) -> bool {
        let Op { task, keys, need, stamp } = self.transactions.ops.remove(&id).expect("it waits");
        let Task::Run { client, origin, call, command } = &task else {
            unreachable!("a lane asks for a key and does not run")
        };
        let call = call.as_ref().map(|call| (id, call));
        let by = By { client: *client, origin: *origin, needed: &keys, call };
        let ran = self.execute(now, by, command, effects);
        let op = Op { task, keys, need, stamp };
        if let Ran::Ended = ran {
            self.end_op(id, op);
            return true;
        }
        self.transactions.put_back(id, op);
        match ran {
            Ran::Ended => {}
            Ran::Refused(refusal) => self.refuse(id, refusal, effects),
            Ran::Missing(missing) => {
                self.need_too(id, missing, effects);
                return false;
            }
            Ran::Expired => return false,
        }
        true
    }

    /// Runs a transaction on keys that are owned here, and commits what it changes.
    fn execute<P>(
        &mut self,
        now: Now,
        by: By<'_>,
        command: &P,
        effects: &mut impl Effects<Self>,
    ) -> Ran
    where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        if self.pipeline.is_full() {
            return Ran::Refused(Refusal::Busy);
        }
        let By { client, origin, needed, call } = by;
        let rights = Rights { layout: &self.layout, has_recovered: self.lanes.has_recovered };
        let (config, lanes, transactions) = (&self.config, &self.lanes, &self.transactions);
        let is_needed = |key: &[u8]| needed.binary_search_by(|other| (**other).cmp(key)).is_ok();
        let is_at_hand = |meta: &Meta, key: &[u8]| {
            config.is_own(key)
                && rights.may_own(meta, key)
                && !lanes.is_lent(key)
                && !transactions.is_asked_before(key, None)
        };
        let mut work = Work::default();
        let records = Records {
            table: &mut self.table,
            fetched: &NOTHING,
            now: now.wall(),
            may_use: |meta: &Meta, key: &[u8]| is_needed(key) || is_at_hand(meta, key),
            layout: &self.layout,
            readers: &self.readers,
            lanes: config.lanes,
        };
        let verdict = command.run(now.wall(), &mut Run { records, work: &mut work });
        let only_reads = !command.updates() && !mutant!("zeus_expired_version_shown");
        if work.is_full() {
            return Ran::Refused(Refusal::TooLarge);
        }
        if !work.found.missing.is_empty() {
            return Ran::Missing(work.found.missing);
        }
        // Its version is above all that it has read or overwritten, also on other lanes.
        let seen = work.keys.values().map(|one| one.timestamp().version).max();
        self.observe(seen.unwrap_or_default());
        if only_reads && work.keys.values().any(OneKey::is_changed) {
            // It has read what has expired, and runs again: its answer may show versions, and `WATCH`
            // needs those of the deletions.
            return match self.commit(now, None, work, None, effects) {
                true => Ran::Expired,
                false => Ran::Refused(Refusal::TooLarge),
            };
        }
        if let Verdict::Abandon(_) = verdict {
            work.abandon();
        }
        let (Verdict::Commit(reply) | Verdict::Abandon(reply)) = verdict;
        let call = match call.map(|(id, call)| self.answered_call(id, call, &reply)).transpose() {
            Ok(call) => call,
            Err(refusal) => return Ran::Refused(refusal),
        };
        if call.is_some() || work.keys.values().any(OneKey::is_changed) {
            self.table.set_writer(origin);
            let fits = self.commit(now, Some((client, reply)), work, call, effects);
            self.table.set_writer(0);
            return if fits { Ran::Ended } else { Ran::Refused(Refusal::TooLarge) };
        }
        self.counters.reads += 1;
        match self.pipeline.writers(work.keys.names()).pop() {
            Some(slot) => {
                let read = work.keys.names().map(Key::from).collect();
                self.pipeline.answer_read_after(slot, read, Answer { client, reply, at: None });
            }
            None => {
                let done = Completion::new(Outcome::Done(reply)).behind(Gate::LEASE);
                self.answer(client, done, effects);
            }
        }
        Ran::Ended
    }

    // --- ends ------------------------------------------------------------------------------------

    pub(crate) fn refuse(&mut self, id: u64, refusal: Refusal, effects: &mut impl Effects<Self>) {
        if let Task::Run { client, .. } = self.transactions.op(id).task {
            self.answer(client, Completion::new(Outcome::Refused(refusal)), effects);
        }
        self.forget(id);
    }

    /// Refuses all: this node does not serve any more, and none has run.
    pub(crate) fn refuse_all(&mut self, effects: &mut impl Effects<Self>) {
        let last = self.transactions.last;
        self.remote.clear();
        let all = mem::take(&mut self.transactions).ops;
        for (_, op) in all.sorted() {
            if let Task::Run { client, .. } = op.task {
                let refused = Completion::new(Outcome::Refused(Refusal::NotServing));
                self.answer(client, refused, effects);
            }
        }
        self.transactions.last = last;
    }

    /// Something has used its keys, or will not. The next of its origin has its turn, and who wants its
    /// keys may have them.
    pub(crate) fn forget(&mut self, id: u64) {
        let op = self.transactions.ops.remove(&id).expect("it waits");
        self.end_op(id, op);
    }

    fn end_op(&mut self, id: u64, Op { task, keys, .. }: Op<X>) {
        self.calls.forget_question(id);
        self.remote.forget(id);
        for key in keys {
            if let Some(ids) = self.transactions.waiting.get_mut(&key) {
                if let Ok(at) = ids.binary_search(&id) {
                    ids.remove(at);
                }
                if ids.is_empty() {
                    self.transactions.waiting.remove(&key);
                }
            }
            let is_wanted = self.rounds.contains_key(&key)
                || self.lanes.is_borrowed(&key)
                || self.lanes.is_any_asked(&key);
            if is_wanted {
                self.changed.insert(key);
            }
        }
        let Task::Run { origin, .. } = task else { return };
        let line = self.transactions.lines.get_mut(&origin).expect("it has a line");
        line.retain(|other| *other != id);
        match line.front() {
            Some(next) => self.transactions.ready.push_back(*next),
            None => {
                self.transactions.lines.remove(&origin);
            }
        }
    }

    /// Refuses what has waited for too long: it has not run. Readers that have waited for a while become
    /// owners: where a key is written again and again, a replica may never have a version that is known
    /// to be committed.
    pub(crate) fn time_out(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while let Some((_, id)) = self.reader_timeouts.pop_due(now) {
            let op = self.transactions.ops.get(&id).filter(|op| op.need == Need::Copy);
            let Some(op) = op.filter(|_| !mutant!("zeus_reader_waits_on")) else { continue };
            if self.remote.is_asking(id) || self.layout.in_doubt {
                // A reader that has asked other nodes gives up in its own time, and one at a node in doubt waits
                // for the doubt to end, which ownership would not hasten.
                let again_at = now.monotonic + self.config.message_loss_timeout;
                self.reader_timeouts.push(again_at, id);
                continue;
            }
            effects.probe("zeus: a reader has waited for too long");
            self.changed.extend(op.keys.first().cloned());
            self.need_ownership(id);
        }
        while let Some((_, id)) = self.op_timeouts.pop_due(now) {
            if self.transactions.ops.contains_key(&id) {
                effects.probe("zeus: a transaction has waited for too long");
                self.refuse(id, Refusal::TimedOut, effects);
            }
        }
    }
}
