//! The arbiters: the live members of a key's group, and its owner.
//!
//! ```text
//! Valid ─REQ─► Drive ───────────────┐
//!   │            │ larger INV       │
//!   └─INV──► Invalid ◄┘             │
//!               └── VAL ──► Valid ◄─┘
//! ```
//! A round has a timestamp, and of two rounds the larger one wins: an arbiter agrees to no smaller one.
//! Since a round needs every arbiter, and each driver is one, two rounds on one settled entry never
//! both get all. What an arbiter has agreed to stays until it is settled or superseded. An arbiter to
//! which a round seems stuck drives it itself, under the same timestamp and for the same requester:
//! after a loss, and in a new epoch. So any arbiter, the driver and the requester may die.
//!
//! The owner agrees only when it is done with the key: every transaction of its own that has read or
//! written it is committed at all replicas, and none waits with it. Until then its answer is
//! deferred; no new transaction begins with the key meanwhile.

use alloc::vec::Vec;

use quorate_machine::{Backoff, Command, Effects, LaneShared, Record as _, Table, mutant};
use quorate_types::{Instant, MemberNumber, NodeId, NodeSet, Now, Timestamp, WriterId};

use crate::fields::{Requester, Settled};
use crate::message::Message;
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::{Agreement, Value};
use crate::state::Zeus;
use crate::sweep::NOBODY;

/// How many timestamps a driver chooses from.
const CHANCES: u64 = 16;

/// A round that is not settled, as one of its arbiters knows it.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Round {
    pub(crate) at: Timestamp,
    pub(crate) requester: Requester,
    /// Whom the key was moved to before.
    pub(crate) previous: Settled,
    /// Whether this arbiter has agreed, in this epoch.
    agreed: bool,
    /// Whether it has ever agreed to a round since the entry was settled: then the key may have moved.
    pub(crate) given: bool,
    /// The version of its copy outside the group, which it does not read any more since it has agreed.
    left: Option<Timestamp>,
    /// Who drives it, in this epoch: they are told if the requester is gone.
    drivers: NodeSet,
    /// Who has agreed, in this epoch, if this node drives it and the requester is gone.
    agreements: NodeSet,
    /// Until this node drives it, for the first time or again.
    wait: Backoff,
    /// The oldest request here that waits for the end of the round.
    pub(crate) next: Option<Requester>,
}

impl Round {
    /// An arbiter hears of it. One that is not the owner agrees at once.
    fn hear(&mut self, is_owner: bool) {
        if !is_owner {
            (self.agreed, self.given) = (true, true);
        }
    }

    /// The key was moved to somebody else before than was known here: who agreed to that other beginning
    /// has to agree again. Whether this is so.
    fn begin_from(&mut self, settled: Settled) -> bool {
        let is_later = settled > self.previous && !mutant!("zeus_claim_beneath_round_ignored");
        if is_later {
            self.previous = settled;
            (self.agreed, self.agreements) = (false, NodeSet::EMPTY);
        }
        is_later
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// A node wants a key.
    pub(crate) fn on_req(
        &mut self,
        now: Now,
        key: &[u8],
        requester: Requester,
        resumes: bool,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.layout.is_in_directory(self.layout.node, key) {
            return effects.ignored("zeus: REQ to a node that does not drive");
        }
        self.observe(requester.stamp.version);
        if self.rounds.contains_key(key) {
            return self.on_req_amid_round(now, key, requester, resumes, effects);
        }
        if resumes {
            return effects.ignored("zeus: REQ to resume a settled round");
        }
        if self.layout.revived && !mutant!("zeus_revived_rounds_begin_low") {
            return effects.ignored("zeus: REQ to a node that has not heard of all rounds");
        }
        let meta = self.meta(key);
        if self.owner_of(&meta, key) == self.layout.node_of(requester.member)
            && !mutant!("zeus_owner_demotes_itself")
        {
            // It knows, or will: a node that is settled as an owner has taken the key before.
            return effects.ignored("zeus: REQ of the owner");
        }
        let at = self.next_round_at(meta.round);
        self.begin_round(key, at, requester, meta.settled(), OwnerState::Drive);
        self.drive_from(now, key, Some(meta.version), effects);
    }

    /// The timestamp of a new round. Of rounds that begin at once on one entry chance decides, and not
    /// the clocks or numbers of drivers: no node loses always.
    pub(crate) fn next_round_at(&mut self, last: Timestamp) -> Timestamp {
        let lane = u8::try_from(self.config.lane.0).expect("a lane fits into a virtual id");
        let version = last.version.max(self.floor.promised) + 1 + self.rng.below(CHANCES);
        Timestamp::new(version, WriterId::new(self.layout.number, lane))
    }

    /// A node wants a key that is about to be moved. The oldest that does is next; the others ask again.
    fn on_req_amid_round(
        &mut self,
        now: Now,
        key: &[u8],
        requester: Requester,
        resumes: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let round = self.rounds.get_mut(key).expect("it is under way");
        let is_own = round.requester.member == requester.member;
        if resumes && !is_own {
            return effects.ignored("zeus: REQ to resume another's round");
        }
        if is_own {
            round.requester.sequence = round.requester.sequence.max(requester.sequence);
        }
        let is_older =
            requester.stamp < round.requester.stamp && !mutant!("zeus_age_not_inherited");
        if is_older {
            // The owner must not wait for what waits for this requester: the round counts as old as
            // the oldest that waits behind it.
            effects.probe("zeus: a round inherits the age of one that waits");
            round.requester.stamp = requester.stamp;
        }
        if !is_own {
            let is_next = round
                .next
                .is_none_or(|next| next.member == requester.member || requester.stamp < next.stamp);
            let rejected = if is_next { round.next.replace(requester) } else { Some(requester) };
            if let Some(rejected) =
                rejected.filter(|other| !is_next || other.member != requester.member)
            {
                self.reject(now, key, rejected, effects);
            }
        }
        if is_older || is_own {
            self.drive(now, key, effects);
        }
    }

    /// Takes a round for the one that is under way. It begins from the entry that was settled last, as
    /// another node says or as this one knows.
    pub(crate) fn begin_round(
        &mut self,
        key: &[u8],
        at: Timestamp,
        requester: Requester,
        previous: Settled,
        state: OwnerState,
    ) -> &mut Round {
        self.change_meta(key, |meta| (meta.round, meta.state) = (at, state));
        let is_driver = state == OwnerState::Drive;
        let new = Round {
            at,
            requester,
            previous,
            agreed: false,
            given: false,
            left: None,
            drivers: is_driver.then_some(self.layout.node).into_iter().collect(),
            agreements: NodeSet::EMPTY,
            wait: Backoff::AT_REST,
            next: None,
        };
        let (round, is_first) = self.rounds.get_or_insert_with(key.into(), || new.clone());
        if !is_first {
            *round = Round { given: round.given, left: round.left, next: round.next, ..new };
        }
        round
    }

    /// Asks every arbiter, for the first time or again.
    pub(crate) fn drive(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        self.drive_from(now, key, None, effects);
    }

    /// The same, by a caller who may have seen which version the key has here.
    fn drive_from(
        &mut self,
        now: Now,
        key: &[u8],
        version: Option<Timestamp>,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(round) = self.rounds.get_mut(key) else { return };
        round.wait.begin(now, self.config.message_loss_timeout);
        self.wake_at = self.wake_at.min(round.wait.deadline());
        let is_driver = round.drivers.contains(self.layout.node);
        round.drivers.insert(self.layout.node);
        round.hear(self.layout.owner(round.previous.owner, key) == Some(self.layout.node));
        let round = round.clone();
        let Round { at, requester, previous, .. } = round;
        let others = self.layout.arbiters(previous.owner, key).without(self.layout.node);
        if !is_driver {
            self.change_meta(key, |meta| meta.state = OwnerState::Drive);
        }
        effects.broadcast(others, &Message::Inv { key, round: at, requester, previous });
        match round.agreed {
            true => self.tell_agreement(now, key, &round, version, effects),
            false => self.agree(now, key, effects),
        }
    }

    fn reject(
        &mut self,
        now: Now,
        key: &[u8],
        requester: Requester,
        effects: &mut impl Effects<Self>,
    ) {
        let sequence = requester.sequence;
        match self.layout.node_of(requester.member) {
            Some(node) if node == self.layout.node => self.on_nack(now, key, sequence, effects),
            Some(node) => effects.send(node, &Message::Nack { key, sequence }),
            None => {}
        }
    }

    /// A driver asks whether a key may move.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    pub(crate) fn on_inv(
        &mut self,
        now: Now,
        from: NodeId,
        key: &[u8],
        at: Timestamp,
        requester: Requester,
        previous: Settled,
        effects: &mut impl Effects<Self>,
    ) {
        let meta = self.meta(key);
        let under_way = self.settled_before(key);
        let known = under_way.unwrap_or(meta.settled());
        let is_behind = previous < known && !mutant!("zeus_driver_left_behind");
        // Nobody says that this node owns a key before it has taken it. So it has given the key away since, and
        // forgotten it: the round is over. The key's group knows, unless it has lost power.
        let is_named = self.layout.node_of(previous.owner) == Some(self.layout.node);
        let is_wanted = self.layout.node_of(requester.member).is_some();
        let has_given = is_named && previous > known && !self.layout.in_group(key);
        if has_given && is_wanted && !mutant!("zeus_former_owner_gives_again") {
            effects.probe("zeus: an owner of long ago is asked");
            return effects.ignored("zeus: INV to a node that has given the key away");
        }
        // The driver may not have heard of an owner by name that the key has got.
        let previous = previous.max(known);
        if !self.layout.arbiters(previous.owner, key).contains(self.layout.node) {
            return effects.ignored("zeus: INV to a node that is no arbiter");
        }
        if meta.state == OwnerState::Valid && at <= meta.round {
            // The driver has missed that the round, or a later one, is settled.
            if mutant!("zeus_stale_replay_silent") {
                return;
            }
            effects.probe("zeus: a driver is behind");
            let (round, owner) = (meta.round, meta.owner);
            let clock = self.clock_for(owner);
            return effects.send(from, &Message::Val { key, round, owner, clock });
        }
        if at < meta.round {
            return effects.ignored("zeus: INV of a superseded round");
        }
        let timeout = self.config.message_loss_timeout;
        let is_owner = self.layout.owner(previous.owner, key) == Some(self.layout.node);
        let round = if at > meta.round {
            if under_way.is_some() || mutant!("zeus_unsettled_round_told") {
                self.supersede(now, key, requester.member, effects);
            }
            self.begin_round(key, at, requester, previous, OwnerState::Invalid)
        } else {
            self.rounds.get_mut(key).expect("an entry that is not Valid has a round")
        };
        round.drivers.insert(from);
        // Its driver sends again before this node takes over.
        round.wait.begin(now, timeout);
        round.requester.stamp = round.requester.stamp.min(requester.stamp);
        round.requester.sequence = round.requester.sequence.max(requester.sequence);
        round.begin_from(previous);
        let again_at = round.wait.deadline();
        if is_behind {
            self.wake_at = self.wake_at.min(again_at);
            // Others may be, too, and what they agree to counts only if it begins from the same entry.
            effects.probe("zeus: a driver begins from an earlier entry");
            return self.drive(now, key, effects);
        }
        round.hear(is_owner);
        let round = round.clone();
        self.wake_at = self.wake_at.min(again_at);
        match round.agreed {
            true => self.tell_agreement(now, key, &round, Some(meta.version), effects),
            false => self.agree(now, key, effects),
        }
    }

    /// A larger round takes the place of the one that is under way here.
    pub(crate) fn supersede(
        &mut self,
        now: Now,
        key: &[u8],
        by: MemberNumber,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(round) = self.rounds.get(key) else { return };
        let requester = round.requester;
        if round.drivers.contains(self.layout.node) && requester.member != by {
            effects.probe("zeus: a round is superseded");
            self.reject(now, key, requester, effects);
        }
    }

    /// Agrees to the round that is under way, if nothing speaks against it any more.
    pub(crate) fn agree(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(round) = self.rounds.get_mut(key).filter(|round| !round.agreed) else { return };
        let is_owner = self.layout.owner(round.previous.owner, key) == Some(self.layout.node);
        if !is_owner {
            round.hear(is_owner);
            let round = round.clone();
            return self.tell_agreement(now, key, &round, None, effects);
        }
        let (requester, previous, given) = (round.requester, round.previous, round.given);
        let has_readers = self.withdraw_readers(now, key, effects);
        if self.lanes.is_lent(key) {
            self.recall(key, requester.stamp, effects);
            return effects.probe("zeus: the owner defers its answer");
        }
        if has_readers || !self.may_give(key, requester, previous.owner, given) {
            return effects.probe("zeus: the owner defers its answer");
        }
        if self.layout.node_of(requester.member) != Some(self.layout.node) {
            self.counters.given += 1;
            // What waits for the key here has to ask for it now.
            if !mutant!("zeus_given_unnoticed") {
                self.note_if_awaited(key);
            }
        }
        let mut left = None;
        if !self.layout.in_group(key) && !mutant!("zeus_given_key_still_read") {
            if requester.member == NOBODY.member && !given {
                self.count_given_back(key);
            }
            // The next owner does not send it what it writes.
            self.change_meta(key, |meta| {
                meta.data = DataState::Invalid;
                left = Some(meta.version);
            });
        }
        let round = self.rounds.get_mut(key).expect("it is under way");
        round.left = left.or(round.left);
        (round.agreed, round.given) = (true, true);
        let round = round.clone();
        self.tell_agreement(now, key, &round, None, effects);
    }

    /// Whether the owner is done with a key.
    fn may_give(
        &mut self,
        key: &[u8],
        requester: Requester,
        previous: MemberNumber,
        given: bool,
    ) -> bool {
        let by_default = self.layout.node_of(previous).is_none();
        if by_default && !self.lanes.has_recovered && !mutant!("zeus_default_owner_early") {
            return false;
        }
        // An owner outside the group drops its copy when it agrees, and a revived member of the group may have
        // lost its own.
        let is_outside = !self.layout.in_group(key);
        let waits = self.layout.meets_revived && !mutant!("zeus_given_to_a_node_in_doubt");
        if is_outside && waits {
            return false;
        }
        // If all have died that had the key, its heirs may not have heard of it.
        let is_given_up = self.layout.directory(key).is_empty();
        if is_outside && is_given_up && !mutant!("zeus_given_before_heirs_have_heard") {
            return false;
        }
        if !self.pipeline.is_done_with(key) {
            return false;
        }
        // What a former owner has written here may not be known to be committed.
        if by_default && self.meta(key).data == DataState::Invalid {
            return false;
        }
        // Only an owner by name that has never agreed knows that the key is still its own.
        let own = requester.member == self.layout.number;
        by_default || given || own || !self.transactions.keeps(key, requester.stamp)
    }

    /// Tells the requester that this arbiter agrees, or the drivers if the requester is gone.
    fn tell_agreement(
        &mut self,
        now: Now,
        key: &[u8],
        round: &Round,
        version: Option<Timestamp>,
        effects: &mut impl Effects<Self>,
    ) {
        let &Round { at, requester, previous, drivers, .. } = round;
        let is_owner = self.layout.owner(previous.owner, key) == Some(self.layout.node);
        let receiver = self.layout.node_of(requester.member);
        let clock = self.clock;
        let (version, value) = match version.filter(|_| !is_owner) {
            Some(version) => (version, None),
            None => self.version_and_value(key, is_owner, receiver),
        };
        let copy = value.as_ref().map(|value| value.as_ref().map(Value::content));
        let message = Message::Ack { key, round: at, requester, previous, version, clock, copy };
        let agreement = Agreement { key, round: at, requester, previous, version, copy };
        match receiver {
            Some(node) if node == self.layout.node => {
                self.on_agreement(now, node, agreement, effects);
            }
            Some(node) => effects.send(node, &message),
            None => {
                effects.broadcast(drivers.without(self.layout.node), &message);
                self.on_agreement_of_orphan(now, self.layout.node, key, at, effects);
            }
        }
    }

    /// The version of a key, and what its owner sends with it: all that the key holds, to a node that has
    /// no copy. Of a key that is absent not all know as much, so that is said to everybody.
    fn version_and_value(
        &mut self,
        key: &[u8],
        is_owner: bool,
        receiver: Option<NodeId>,
    ) -> (Timestamp, Option<Option<Value>>) {
        let absent = self.absent(key);
        let lacks_copy =
            is_owner && receiver.is_some_and(|node| !self.layout.is_in_directory(node, key));
        let Some(record) = self.table.lock_existing(key) else {
            return (absent.version, is_owner.then_some(None));
        };
        let version = record.meta().or(absent).version;
        let is_sent = is_owner && (lacks_copy || record.content().is_none());
        (version, is_sent.then(|| record.whole(&mut Vec::new()).map(Value::of)))
    }

    /// An arbiter agrees to a round that this node drives because its requester is gone. The round is
    /// settled all the same: the requester may have taken the key before it died.
    pub(crate) fn on_agreement_of_orphan(
        &mut self,
        now: Now,
        from: NodeId,
        key: &[u8],
        at: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let node = self.layout.node;
        let round = self.rounds.get_mut(key);
        let Some(round) = round.filter(|round| round.at == at && round.drivers.contains(node))
        else {
            return effects.ignored("zeus: ACK of a round that this node does not drive");
        };
        round.agreements.insert(from);
        let Round { previous, requester, agreements, .. } = *round;
        let arbiters = self.layout.arbiters(previous.owner, key);
        let has_owner = self.layout.owner(previous.owner, key).is_some();
        let has_owner = has_owner || mutant!("zeus_taken_from_nobody");
        if !arbiters.is_subset(agreements) || !has_owner {
            return;
        }
        effects.probe("zeus: a round is settled without its requester");
        let owner = requester.member;
        let val = Message::Val { key, round: at, owner, clock: self.clock_for(owner) };
        effects.broadcast(arbiters.without(node), &val);
        self.settle(now, key, at, owner, effects);
    }

    /// The clock to tell of with a settled round: the default owner of what nobody owns by name writes above
    /// all that has read it.
    fn clock_for(&self, owner: MemberNumber) -> u64 {
        if self.layout.node_of(owner).is_some() { 0 } else { self.clock }
    }

    /// A round is settled.
    pub(crate) fn on_val(
        &mut self,
        now: Now,
        key: &[u8],
        at: Timestamp,
        owner: MemberNumber,
        effects: &mut impl Effects<Self>,
    ) {
        let meta = self.meta(key);
        if at < meta.round || (at == meta.round && meta.state == OwnerState::Valid) {
            return effects.ignored("zeus: VAL of a settled round");
        }
        if !self.layout.in_group(key) && meta.round == Timestamp::ZERO {
            return effects.ignored("zeus: VAL to a node that is no arbiter");
        }
        self.settle_from(now, meta, key, at, owner, effects);
    }

    /// Takes over the settled entry of a key. What this node has had of the key goes if it is neither
    /// in its group nor its owner.
    pub(crate) fn settle(
        &mut self,
        now: Now,
        key: &[u8],
        at: Timestamp,
        owner: MemberNumber,
        effects: &mut impl Effects<Self>,
    ) {
        let meta = self.meta(key);
        self.settle_from(now, meta, key, at, owner, effects);
    }

    /// The same for a key whose words are known.
    pub(crate) fn settle_from(
        &mut self,
        now: Now,
        meta: Meta,
        key: &[u8],
        at: Timestamp,
        owner: MemberNumber,
        effects: &mut impl Effects<Self>,
    ) {
        let under_way = self.rounds.get(key).map(|round| (round.at, round.previous));
        let is_settled = (meta.round, meta.owner, meta.state) == (at, owner, OwnerState::Valid);
        if is_settled && under_way.is_none() && self.layout.in_group(key) {
            return;
        }
        let owned = self.rights().may_own(&meta, key) && self.layout.node_of(meta.owner).is_some();
        if owned && owner != self.layout.number && !mutant!("zeus_moved_without_owner") {
            return effects.refused("zeus: a key is moved and its owner never agreed");
        }
        if under_way.is_some_and(|(under_way, _)| under_way < at) {
            self.supersede(now, key, owner, effects);
        }
        let believed = under_way.filter(|_| !mutant!("zeus_unsettled_round_told"));
        let before = believed.map_or(meta.owner, |(_, previous)| previous.owner);
        let before = self.layout.owner(before, key);
        // A replica that joins has seen no move of what it copies.
        let is_known = under_way.is_some() || meta.round != Timestamp::ZERO;
        let after = self.layout.node_of(owner);
        let has_moved = is_known && after.is_some() && before != after;
        let round = under_way.and_then(|_| self.end_round(key));
        let (left, next) = round.map_or((None, None), |round| (round.left, round.next));
        let is_owner = after == Some(self.layout.node);
        if self.layout.in_group(key) || is_owner {
            self.change_meta(key, |meta| {
                *meta = if has_moved { meta.moved() } else { *meta };
                // It is of the group now, and nobody else may have what was committed.
                if left == Some(meta.version) && !mutant!("zeus_given_copy_stays_unread") {
                    meta.data = DataState::Valid;
                }
                (meta.round, meta.owner, meta.state) = (at, owner, OwnerState::Valid);
            });
            self.next.extend(next.map(|next| (key.into(), next)));
        } else if self.drop_record(key, effects) {
            effects.probe("zeus: a former owner drops its copy");
        }
        if has_moved {
            self.note_move(now, key, effects);
        }
    }

    /// A round is settled: the request that has waited for that, if there is one.
    fn end_round(&mut self, key: &[u8]) -> Option<Round> {
        let round = self.rounds.remove(key);
        match round.as_ref().and_then(|round| round.next) {
            Some(_) => _ = self.changed.insert(key.into()),
            None => self.note_if_awaited(key),
        }
        round
    }

    /// Whether this round is under way here and, if so, whether it moves the key to this owner from another
    /// node.
    pub(crate) fn is_moved_by(
        &self,
        key: &[u8],
        at: Timestamp,
        owner: MemberNumber,
    ) -> Option<bool> {
        let round = self.rounds.get(key).filter(|round| round.at == at)?;
        let before = self.layout.owner(round.previous.owner, key);
        let after = self.layout.node_of(owner);
        Some(after.is_some() && before != after)
    }

    /// The round of a key is settled, and its record in the group says so already.
    pub(crate) fn settled_here(
        &mut self,
        now: Now,
        key: &[u8],
        has_moved: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let next = self.end_round(key).and_then(|round| round.next);
        self.next.extend(next.map(|next| (key.into(), next)));
        if has_moved {
            self.note_move(now, key, effects);
        }
    }

    /// Serves the request that has waited for the end of a round, if there is one.
    pub(crate) fn serve_next(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) {
        let next = self.next.remove(key);
        if let Some(next) = next.filter(|next| self.layout.node_of(next.member).is_some()) {
            effects.probe("zeus: a request that has waited is served");
            self.on_req(now, key, next, false, effects);
        }
    }

    /// Drives the rounds that seem stuck.
    pub(crate) fn repeat_rounds(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        for key in self.rounds.keys_that(|_, round| round.wait.deadline() <= now.monotonic) {
            let Some(round) = self.rounds.get_mut(&key) else { continue };
            self.config.wait_longer(&mut round.wait, now);
            effects.probe("zeus: a round is driven again");
            self.drive(now, &key, effects);
        }
    }

    /// Drives every round again that is under way here: in a new epoch its arbiters may be others, and
    /// its driver or its requester gone.
    pub(crate) fn renew_rounds(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let wait = self.wait(now);
        for key in self.rounds.keys_that(|_, _| true) {
            let Some(round) = self.rounds.get_mut(&key) else { continue };
            let arbiters = self.layout.arbiters(round.previous.owner, &key);
            if !arbiters.contains(self.layout.node) {
                // The members that are its arbiters now have heard of it, or it has asked nobody.
                effects.probe("zeus: a round is dropped by a node that has left its shard");
                self.rounds.remove(&key);
                self.drop_record(&key, effects);
                continue;
            }
            if !mutant!("zeus_wait_outlives_epoch") {
                round.wait = wait.clone();
            }
            round.agreed = false;
            round.next = None;
            (round.drivers, round.agreements) = (NodeSet::EMPTY, NodeSet::EMPTY);
            if mutant!("zeus_stuck_round_waits") {
                continue;
            }
            self.drive(now, &key, effects);
        }
    }

    /// Whether a transaction that is older than the one that a key is to be given to may still use it.
    pub(crate) fn may_use_before(&self, key: &[u8], stamp: Timestamp) -> bool {
        let Some(round) = self.rounds.get(key) else { return false };
        let by_name = self.layout.node_of(round.previous.owner) == Some(self.layout.node);
        by_name && !round.given && stamp < round.requester.stamp
    }

    /// Whether this node is the owner of a key, as far as it knows, and has not agreed to give it away.
    pub(crate) fn is_owner(&mut self, key: &[u8]) -> bool {
        let meta = self.meta(key);
        let (owner, given) = match self.rounds.get(key) {
            // The entry may be older: what settled it last may be on its way.
            Some(round) if !mutant!("zeus_entry_believed") => (round.previous.owner, round.given),
            _ => (meta.owner, false),
        };
        !given && self.layout.owner(owner, key) == Some(self.layout.node)
    }

    /// The entry of a key that is settled: not the round that is under way.
    pub(crate) fn settled(&mut self, key: &[u8]) -> Settled {
        self.settled_before(key).unwrap_or_else(|| self.meta(key).settled())
    }

    /// The entry that the round under way begins from, if there is one.
    fn settled_before(&self, key: &[u8]) -> Option<Settled> {
        let round = self.rounds.get(key).filter(|_| !mutant!("zeus_unsettled_round_told"));
        round.map(|round| round.previous)
    }

    /// A key has an owner by name, and the round that is under way here does not name it: a default
    /// owner has claimed it, and its update has come after the round. That owner has to agree.
    pub(crate) fn adopt_beneath(
        &mut self,
        now: Now,
        key: &[u8],
        settled: Settled,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(round) = self.rounds.get_mut(key) else { return };
        if settled.round < round.at && round.begin_from(settled) {
            effects.probe("zeus: a round learns of a claim");
            self.drive(now, key, effects);
        }
    }

    pub(crate) fn next_round(&self) -> Instant {
        self.rounds.least(|round| round.wait.deadline()).unwrap_or(Instant::NEVER)
    }
}
