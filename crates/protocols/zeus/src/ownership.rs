//! The requester: how a node gets a key.
//!
//! It asks a directory node, and takes the key once every arbiter of one round has agreed. Before it
//! tells them: so a settled entry never names an owner that does not know it, and what the new owner
//! sends finds its replicas. A request is never taken back. If its transaction is gone when the key
//! comes, the key stays here until somebody else asks for it.

use alloc::boxed::Box;

use quorate_machine::{
    Backoff, Command, Content, Effects, LaneShared, Record as _, Table, ValueKind, mutant,
};
use quorate_types::{Duration, Instant, NodeId, NodeSet, Now, Timestamp, UnixMillis};

use crate::fields::{Requester, Settled};
use crate::message::Message;
use crate::meta::{DataState, Extra, Meta, OwnerState};
use crate::state::{Key, Zeus};
use crate::transactions::Need;

/// The shortest time after which a request is made again that lost to another one.
const AGAIN_MIN: Duration = Duration::from_micros(200);
/// How often that time doubles at most.
const DOUBLINGS_MAX: u32 = 5;

/// A key that this node wants to own.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Acquisition {
    pub(crate) requester: Requester,
    /// How often the request was made.
    tries: u32,
    wait: Backoff,
    /// When it is made again, if another request was first.
    rejected_until: Option<Instant>,
    /// Whether a transaction has asked for it. Otherwise arbiters seem to have agreed to what nobody here
    /// waits for.
    is_wanted: bool,
    tally: Option<Tally>,
}

impl Acquisition {
    /// When the request is made again.
    pub(crate) fn again_at(&self) -> Instant {
        self.rejected_until.unwrap_or(self.wait.deadline())
    }
}

/// The arbiters of one round, in one epoch, that have agreed.
#[derive(Clone, Hash, Debug)]
struct Tally {
    round: Timestamp,
    previous: Settled,
    agreed: NodeSet,
    /// The version that the owner holds, once it has agreed.
    version: Option<Timestamp>,
    /// What the owner has sent.
    copy: Option<Option<Value>>,
}

/// A value on its way.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Value {
    bytes: Box<[u8]>,
    kind: ValueKind,
    expire_at: Option<UnixMillis>,
}

impl Value {
    pub(crate) fn of(content: Content<'_>) -> Self {
        let Content { bytes, kind, expire_at } = content;
        Self { bytes: bytes.into(), kind, expire_at }
    }

    pub(crate) fn content(&self) -> Content<'_> {
        Content { bytes: &self.bytes, kind: self.kind, expire_at: self.expire_at }
    }
}

/// An arbiter's agreement.
#[derive(Clone, Copy)]
pub(crate) struct Agreement<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) round: Timestamp,
    pub(crate) requester: Requester,
    pub(crate) previous: Settled,
    pub(crate) version: Timestamp,
    pub(crate) copy: Option<Option<Content<'a>>>,
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Asks for a key that a transaction needs: another lane of this node, or another node.
    pub(crate) fn obtain(
        &mut self,
        now: Now,
        key: &Key,
        stamp: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.is_own(key) {
            self.ask(key, Need::Owner, stamp, effects);
        } else if self.lanes.is_lent(key) {
            self.recall(key, stamp, effects);
        } else if !self.is_owner(key) {
            self.acquire(now, key, stamp, effects);
        }
    }

    /// Asks for a key that this node does not own, unless it has asked already.
    pub(crate) fn acquire(
        &mut self,
        now: Now,
        key: &[u8],
        stamp: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        match self.acquisitions.get_mut(key).filter(|open| open.is_wanted) {
            None => self.open(now, key, stamp, true, effects),
            Some(open) if stamp < open.requester.stamp && !mutant!("zeus_request_stays_young") => {
                effects.probe("zeus: a request becomes older");
                open.requester.stamp = stamp;
                self.request(now, key, effects);
            }
            Some(_) => {}
        }
    }

    fn open(
        &mut self,
        now: Now,
        key: &[u8],
        stamp: Timestamp,
        is_wanted: bool,
        effects: &mut impl Effects<Self>,
    ) {
        // Its owner would have to withdraw the copy first.
        self.leave_copy(now, key, effects);
        self.requests += 1;
        let (member, sequence, wait) = (self.layout.number, self.requests, Backoff::default());
        let requester = Requester { member, sequence, stamp };
        let (tries, rejected_until, tally) = (0, None, None);
        let acquisition = Acquisition { requester, tries, wait, rejected_until, is_wanted, tally };
        self.acquisitions.insert(key.into(), acquisition);
        match is_wanted {
            // The node that asks for the key has seen that it is not the owner.
            true => self.ask_driver(now, key, effects),
            false => self.request(now, key, effects),
        }
    }

    /// Makes a request, for the first time or again, to each directory node in turn.
    pub(crate) fn request(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let meta = self.meta(key);
        if meta.state == OwnerState::Valid && self.owner_of(&meta, key) == Some(self.layout.node) {
            // The last owner is gone, and this node is the default one.
            self.acquisitions.remove(key);
            self.changed.insert(key.into());
            return;
        }
        self.ask_driver(now, key, effects);
    }

    fn ask_driver(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(acquisition) = self.acquisitions.get_mut(key) else { return };
        acquisition.rejected_until = None;
        acquisition.wait.begin(now, self.config.message_loss_timeout);
        self.wake_at = self.wake_at.min(acquisition.again_at());
        let (requester, resumes) = (acquisition.requester, !acquisition.is_wanted);
        let tries = acquisition.tries as usize;
        acquisition.tries += 1;
        let driver = match self.layout.is_in_directory(self.layout.node, key) {
            true => Some(self.layout.node),
            false => {
                let directory = self.layout.directory(key);
                directory.get(tries % directory.len().max(1)).copied()
            }
        };
        match driver {
            None => {
                effects.probe("zeus: a key has no directory");
                if !self.transactions.wait_for(key) && !mutant!("zeus_hopeless_request_kept") {
                    self.acquisitions.remove(key);
                }
            }
            Some(node) if node == self.layout.node => {
                self.on_req(now, key, requester, resumes, effects);
            }
            Some(node) => effects.send(node, &Message::Req { key, requester, resumes }),
        }
    }

    /// Another request was first: this one is made again later.
    pub(crate) fn on_nack(
        &mut self,
        now: Now,
        key: &[u8],
        sequence: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let open = self.acquisitions.get_mut(key);
        let Some(acquisition) = open.filter(|open| open.requester.sequence == sequence) else {
            return effects.ignored("zeus: NACK of no request");
        };
        effects.probe("zeus: a request lost to another");
        let most = AGAIN_MIN * (2 << acquisition.tries.min(DOUBLINGS_MAX));
        let again_at = now.monotonic + AGAIN_MIN + self.rng.span_below(most);
        // It has arrived.
        (acquisition.wait, acquisition.rejected_until) = (Backoff::default(), Some(again_at));
        self.wake_at = self.wake_at.min(again_at);
    }

    /// An arbiter agrees to a round for this node.
    pub(crate) fn on_agreement(
        &mut self,
        now: Now,
        from: NodeId,
        agreement: Agreement<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Agreement { key, round, requester, previous, version, copy } = agreement;
        let settled = self.settled(key);
        let is_given = mutant!("zeus_takes_again") && self.rounds.contains_key(key);
        if round <= settled.round && !is_given {
            // It has taken the key, and the arbiter has not heard of it.
            let is_own = round == settled.round && settled.owner == self.layout.number;
            if is_own && from != self.layout.node {
                let owner = settled.owner;
                effects.send(from, &Message::Val { key, round, owner, clock: 0 });
            }
            return effects.ignored("zeus: ACK of a settled round");
        }
        let owner = self.layout.owner(previous.owner, key);
        let is_this = |open: &&mut Acquisition| {
            open.requester.sequence == requester.sequence || mutant!("zeus_stale_grant_honoured")
        };
        let Some(acquisition) = self.acquisitions.get_mut(key).filter(is_this) else {
            return self.on_agreement_unasked(now, from, agreement, effects);
        };
        if owner.is_none() && !mutant!("zeus_taken_from_nobody") {
            return effects.ignored("zeus: ACK of a round of a key that nobody owns");
        }
        // Agreements to a round that begins from an earlier owner do not count.
        let newer = |tally: &Tally| {
            (tally.round, tally.previous) < (round, previous) && !mutant!("zeus_acks_mixed")
        };
        if acquisition.tally.as_ref().is_none_or(newer) {
            let (agreed, version, copy) = (NodeSet::EMPTY, None, None);
            acquisition.tally = Some(Tally { round, previous, agreed, version, copy });
        }
        let tally = acquisition.tally.as_mut().expect("it was just begun");
        if (tally.round, tally.previous) > (round, previous) && !mutant!("zeus_acks_mixed") {
            return effects.ignored("zeus: ACK of a superseded round");
        }
        tally.agreed.insert(from);
        if owner == Some(from) {
            tally.version = Some(version);
            tally.copy = copy.map(|content| content.map(Value::of));
        }
        let arbiters = self.layout.arbiters(previous.owner, key);
        if arbiters.is_subset(tally.agreed)
            && let Some(tally) = self.acquisitions.remove(key).and_then(|open| open.tally)
        {
            self.take(now, key, tally, effects);
        }
    }

    /// An arbiter agrees to what this node does not ask for: maybe an old answer to a request that was granted,
    /// and the key has moved on; maybe a request that was repeated on its way, and served twice: then
    /// the arbiters wait for this node. Answers to a new request will tell.
    fn on_agreement_unasked(
        &mut self,
        now: Now,
        from: NodeId,
        agreement: Agreement<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let Agreement { key, requester, .. } = agreement;
        let is_open = self.acquisitions.contains_key(key);
        if mutant!("zeus_stale_grant_honoured") {
            self.open(now, key, requester.stamp, false, effects);
            if self.acquisitions.contains_key(key) {
                return self.on_agreement(now, from, agreement, effects);
            }
        }
        if !is_open && !mutant!("zeus_late_grant_ignored") {
            effects.probe("zeus: a round that nobody waits for is resumed");
            self.open(now, key, requester.stamp, false, effects);
        }
        effects.ignored("zeus: ACK of no request");
    }

    /// Takes a key: every arbiter of the round has agreed.
    fn take(&mut self, now: Now, key: &[u8], tally: Tally, effects: &mut impl Effects<Self>) {
        let Tally { round, previous, version, copy, .. } = tally;
        let has_moved = self.layout.owner(previous.owner, key) != Some(self.layout.node);
        let absent = self.absent(key);
        // The owner is an arbiter, and agreed when all replicas had applied what it wrote.
        let lacks = |meta: Meta, version| copy.is_none() && meta.version < version;
        let fits = |meta: Meta| {
            meta.round <= round && version.is_some_and(|version| !lacks(meta, version))
        };
        let fitting = |record: &T::Record<'_>| fits(record.meta().or(absent));
        let mut record = if let Some(record) = self.table.lock_existing(key).filter(fitting) {
            record
        } else if fits(self.meta(key)) {
            self.table.lock_key_unsized(key)
        } else {
            return effects.refused("zeus: a round that not all its arbiters can have agreed to");
        };
        let meta = record.meta().or(absent);
        let version = version.unwrap_or_default();
        let is_copied = copy.is_some();
        match copy {
            Some(Some(value)) => record.set_content(value.content()),
            Some(None) => record.clear(),
            None => {}
        }
        record.set_meta(Meta {
            version: version.max(meta.version),
            data: DataState::Valid,
            round,
            state: OwnerState::Valid,
            owner: self.layout.number,
            moves: if has_moved { meta.moved().moves } else { meta.moves },
            extra: Extra::None,
        });
        self.sweep.note(key, record.content());
        drop(record);
        if is_copied && self.layout.in_group(key) {
            self.append_record(key, effects);
        }
        if let Some(joining) = &mut self.joining {
            joining.awaited.remove(key);
        }
        self.counters.acquired += 1;
        if has_moved {
            self.note_move(now, key, effects);
        }
        effects.probe("zeus: ownership acquired");
        let next = self.rounds.remove(key).and_then(|round| round.next);
        self.changed.insert(key.into());
        let others = self.layout.arbiters(previous.owner, key).without(self.layout.node);
        self.turn.say_taken(key.into(), round, others);
        self.next.extend(next.map(|next| (key.into(), next)));
        if mutant!("zeus_steal_before_use") {
            self.changed.remove(key);
            self.serve_next(now, key, effects);
        }
    }

    /// Makes the requests again that are due; when the next one is.
    pub(crate) fn repeat_requests(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let due = self.acquisitions.keys_that(|_, open| open.again_at() <= now.monotonic);
        for key in due {
            let Some(open) = self.acquisitions.get_mut(&key) else { continue };
            if open.rejected_until.is_none() {
                self.config.wait_longer(&mut open.wait, now);
            }
            if open.is_wanted {
                effects.probe("zeus: a request is made again");
                self.request(now, &key, effects);
            } else {
                self.acquisitions.remove(&key);
            }
        }
    }

    /// No agreement of an earlier epoch counts in this one: its arbiters may be others.
    pub(crate) fn forget_agreements(&mut self) {
        if mutant!("zeus_acks_of_earlier_epochs") {
            return;
        }
        self.acquisitions.retain(|_, open| open.is_wanted);
        self.acquisitions.change_all(|open| open.tally = None);
    }

    /// Makes every request again: its driver may be gone.
    pub(crate) fn renew_requests(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if !mutant!("zeus_wait_outlives_epoch") {
            self.acquisitions.change_all(|open| open.wait = Backoff::default());
        }
        for key in self.acquisitions.keys_that(|_, _| true) {
            self.request(now, &key, effects);
        }
    }
}
