//! Backup coordinators: one consensus per transaction and partition, by views (§5.3.2, N4.4).
//!
//! A replica that waits too long for the end of a transaction takes over. Views of different nodes
//! never collide: each contains its node's id.

use alloc::vec::Vec;

use quorate_machine::{Backoff, Command, Effects, LaneShared, Table, mutant};
use quorate_types::{Lsn, NodeId, NodeSet, Now, Timestamp};

use crate::body::Body;
use crate::message::{Kind, Message, Vote};
use crate::meta::Meta;
use crate::refusals::NEVER_BEGAN;
use crate::replica::BASE_MISSING;
use crate::state::{Counter, Isolation, Meerkat};
use crate::txn_record::{RecordKey, TxnRecord};

/// Views between two of one node: more than there are nodes.
pub(crate) const VIEW_STEP: u64 = 64;
/// Doublings after which the wait of a takeover for answers grows no more.
const TAKEOVER_DOUBLINGS_MAX: u32 = 5;
/// How much later than the home partition's replicas the others take over, in timeouts.
const AWAY_RANKS: u32 = 3;

/// A takeover under way.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Recovery {
    pub(crate) view: u64,
    participants: u64,
    pub(crate) parts: Vec<RecoveryPart>,
    /// Nodes whose clocks are known to have passed the timestamp.
    pub(crate) seen: NodeSet,
    pub(crate) patience: Backoff,
    /// The place of this node's own acceptance in its log.
    durable_at: Lsn,
}

#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct RecoveryPart {
    pub(crate) partition: u16,
    pub(crate) promised: NodeSet,
    pub(crate) ok: NodeSet,
    pub(crate) accepted: Option<(u64, bool)>,
    pub(crate) body: Vec<u8>,
    pub(crate) proposal: Option<bool>,
    pub(crate) accepts: NodeSet,
    pub(crate) chosen: Option<bool>,
}

impl Recovery {
    pub(crate) fn part(&mut self, partition: u16) -> Option<&mut RecoveryPart> {
        self.parts.iter_mut().find(|part| part.partition == partition)
    }

    /// Adds the partitions that are known to take part.
    fn widen(&mut self, participants: u64) {
        self.participants |= participants;
        let all = self.participants;
        for partition in (0..64u16).filter(|p| all & 1 << p != 0) {
            if self.part(partition).is_none() {
                self.parts.push(RecoveryPart { partition, ..RecoveryPart::default() });
            }
        }
    }

    fn outcome(&self) -> Option<bool> {
        if self.parts.iter().any(|part| part.chosen == Some(false)) {
            return Some(false);
        }
        self.parts.iter().all(|part| part.chosen == Some(true)).then_some(true)
    }
}

/// What a replica promises with.
struct Known {
    vote: Option<Vote>,
    accepted: Option<(u64, bool)>,
    participants: u64,
    body: Vec<u8>,
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Looks at a record again after the recovery timeout, and whether a backup has taken over
    /// meanwhile. An undecided record has one such timer, from when it was made.
    /// `view` is what this replica has joined.
    pub(crate) fn suspect(&mut self, now: Now, key: RecordKey, view: u64) {
        self.suspects.push(now.monotonic + self.config.recovery_timeout, (key, view));
    }

    /// A record has waited for its end: takes over, the replicas one after the other. `joined` is the
    /// view that this replica had joined one recovery timeout ago: a backup that came since then has
    /// as long for its takeover. Otherwise many backups would supersede each other without end.
    pub(crate) fn on_suspect_timeout(
        &mut self,
        now: Now,
        key: RecordKey,
        joined: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let id = key.id();
        let Some(record) = self.records.get(&key).filter(|record| record.decision.is_none()) else {
            return;
        };
        let is_attended = record.view != joined && !mutant!("meerkat_backups_wait_for_nobody");
        let view = record.view;
        if id.writer == self.writer() || self.recoveries.contains_key(&id) || is_attended {
            return self.suspect(now, key, view);
        }
        let Some(group) = self.group(key.partition) else { return };
        let rank =
            group.live.into_iter().take_while(|node| *node != self.config.node).count() as u32;
        let home = record.participants.trailing_zeros() == u32::from(key.partition);
        let rank = rank + if home { 0 } else { AWAY_RANKS };
        if now.monotonic < record.since + self.config.recovery_timeout * (1 + rank) {
            return self.suspect(now, key, view);
        }
        let participants = record.participants | 1 << key.partition;
        // Above every view that this node has joined in any partition: promises are given again, so a
        // view must be of one takeover only.
        let counts =
            |other: &RecordKey| *other == key || !mutant!("meerkat_view_above_one_partition");
        let views = self.records.of(id).filter(|(other, _)| counts(other));
        let highest = views.map(|(_, record)| record.view).max().unwrap_or(0);
        let view = (highest / VIEW_STEP + 1) * VIEW_STEP + u64::from(self.config.node.0);
        self.count(Counter::Recoveries);
        effects.probe("meerkat: backup coordinator takes over");
        let mut recovery = Recovery {
            view,
            participants: 0,
            parts: Vec::new(),
            seen: NodeSet::only(self.config.node),
            patience: Backoff::default(),
            durable_at: Lsn::START,
        };
        recovery.patience.begin(now, self.config.message_loss_timeout);
        recovery.widen(participants);
        self.recoveries.insert(id, recovery);
        self.prepare(now, id, effects);
        let view = self.records.get(&key).map_or(0, |record| record.view);
        self.suspect(now, key, view);
    }

    /// Asks every replica that has not promised, this one first.
    fn prepare(&mut self, now: Now, id: Timestamp, effects: &mut impl Effects<Self>) {
        let Some(recovery) = self.recoveries.get(&id) else { return };
        let view = recovery.view;
        let partitions: Vec<u16> = recovery.parts.iter().map(|part| part.partition).collect();
        for partition in partitions {
            let Some(group) = self.groups.get(usize::from(partition)).copied() else { continue };
            let Some(part) = self.recoveries.get_mut(&id).and_then(|r| r.part(partition)) else {
                return;
            };
            if part.proposal.is_some() || part.chosen.is_some() {
                continue;
            }
            let promised = part.promised;
            let others = group.live.difference(promised).without(self.config.node);
            if !others.is_empty() {
                effects.broadcast(others, &Message { partition, kind: Kind::Prepare { id, view } });
            }
            if group.live.difference(promised).contains(self.config.node) {
                match self.promise(now, RecordKey::new(id, partition), view) {
                    Ok(known) => {
                        let me = self.config.node;
                        self.take_promise(me, partition, id, view, known);
                    }
                    Err(Refused::Decided(commit)) if id.writer.is_guest() => {
                        let record = self.records.get(&RecordKey::new(id, partition));
                        let body = record.map(|record| record.body.clone()).unwrap_or_default();
                        self.learn_end(id, partition, commit, Body::trusted_opt(&body));
                    }
                    Err(Refused::Decided(commit)) => {
                        return self.end_recovery(now, id, commit, effects);
                    }
                    Err(Refused::Superseded(_)) => {
                        self.recoveries.remove(&id);
                        return;
                    }
                }
            }
        }
        self.evaluate_recovery(now, id, effects);
    }

    /// Joins a view at this replica. From now on it gives no vote in view 0. A backup that asks again
    /// has not got the answer, and gets it again.
    fn promise(&mut self, now: Now, key: RecordKey, view: u64) -> Result<Known, Refused> {
        let blank = || TxnRecord { since: now.monotonic, ..TxnRecord::default() };
        if self.records.get_or_insert_with(key, blank).1 {
            self.suspect(now, key, 0);
        }
        let record = self.records.get_mut(&key).expect("just made, if it was not there");
        if let Some(commit) = record.decision {
            return Err(Refused::Decided(commit));
        }
        let is_again = view == record.view && view > 0 && !mutant!("meerkat_promise_given_once");
        if view <= record.view && !is_again {
            return Err(Refused::Superseded(record.view));
        }
        let joined = core::mem::replace(&mut record.view, view);
        let accepted = if mutant!("meerkat_one_view_variable") {
            record.accepted.map(|(_, ok)| (joined, ok))
        } else {
            record.accepted
        };
        Ok(Known {
            vote: record.vote,
            accepted,
            participants: record.participants,
            body: record.body.clone(),
        })
    }

    /// PREPARE.
    pub(crate) fn on_prepare(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        view: u64,
        effects: &mut impl Effects<Self>,
    ) {
        if self.is_stable(id) {
            return self.answer_about_ended(from, partition, id, effects);
        }
        let key = RecordKey::new(id, partition);
        if self.never_began(&key) {
            return effects.refused(NEVER_BEGAN);
        }
        let result = self.promise(now, key, view);
        let kind = match &result {
            Err(Refused::Decided(commit)) => {
                let body = self.records.get(&key).and_then(|record| record.body());
                Kind::Decided { id, commit: *commit, body }
            }
            Err(Refused::Superseded(view)) => Kind::Superseded { id, view: *view },
            Ok(known) => Kind::Promise {
                id,
                view,
                vote: known.vote,
                accepted: known.accepted,
                participants: known.participants,
                body: (!known.body.is_empty()).then(|| Body::trusted(&known.body)),
            },
        };
        effects.send(from, &Message { partition, kind });
    }

    /// PROMISE.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_promise(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        view: u64,
        vote: Option<Vote>,
        accepted: Option<(u64, bool)>,
        participants: u64,
        body: Option<Body<'_>>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.recoveries.get(&id).is_none_or(|recovery| recovery.view != view) {
            return effects.ignored("meerkat: PROMISE to a takeover that is over");
        }
        let body = body.map(|body| body.bytes().to_vec()).unwrap_or_default();
        self.take_promise(from, partition, id, view, Known { vote, accepted, participants, body });
        self.evaluate_recovery(now, id, effects);
    }

    fn take_promise(
        &mut self,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        view: u64,
        known: Known,
    ) {
        let Some(recovery) = self.recoveries.get_mut(&id).filter(|r| r.view == view) else {
            return;
        };
        recovery.seen.insert(from);
        recovery.widen(known.participants);
        let Some(part) = recovery.part(partition) else { return };
        part.promised.insert(from);
        if known.vote == Some(Ok(())) {
            part.ok.insert(from);
        }
        let is_newest = known.accepted.is_some_and(|(view, _)| {
            let any = mutant!("meerkat_takeover_takes_any_proposal");
            any || part.accepted.is_none_or(|best| view > best.0)
        });
        if is_newest {
            part.accepted = known.accepted;
        }
        // A guest may have told each replica other sets, and what an earlier backup has had accepted
        // is an end with its sets. The members' are the same wherever they are known.
        let is_proposed = is_newest && known.accepted.is_some_and(|(view, ok)| view > 0 && ok);
        let is_better = is_proposed && !mutant!("meerkat_proposal_without_its_sets");
        if part.body.is_empty() || (is_better && !known.body.is_empty()) {
            part.body = known.body;
        }
    }

    /// The choice of N4.4, and what follows from it.
    pub(crate) fn evaluate_recovery(
        &mut self,
        now: Now,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(recovery) = self.recoveries.get(&id) else { return };
        if id.writer.is_guest() {
            return self.evaluate_guest(now, id, effects);
        }
        for index in 0..recovery.parts.len() {
            let part = &self.recoveries[&id].parts[index];
            let Some(group) = self.groups.get(usize::from(part.partition)) else { continue };
            let quorums = group.quorums;
            if part.proposal.is_none() {
                let promised = part.promised.intersection(group.live).len();
                let ok = part.ok.intersection(group.live).len();
                let choice = if promised < quorums.majority {
                    None
                } else if let Some((_, ok)) = part.accepted {
                    Some(ok)
                } else if ok >= quorums.majority {
                    Some(true)
                } else if !quorums.fast_possible(ok, promised)
                    || mutant!("meerkat_ambiguous_takeover_aborts")
                {
                    // No fast quorum can have said OK, and none will: those asked gave their
                    // votes, or gave them up.
                    Some(false)
                } else {
                    // Ambiguous. More replies decide it, and so does the view without the
                    // replicas that do not reply.
                    effects.probe("meerkat: takeover waits for all replicas");
                    None
                };
                if let Some(ok) = choice {
                    self.propose_recovery(id, index, ok, effects);
                }
            }
            let unwritten = self.unwritten_at(id);
            let Some(recovery) = self.recoveries.get_mut(&id) else { return };
            let part = &mut recovery.parts[index];
            let accepts = part.accepts.intersection(group_live(&self.groups, part.partition));
            if accepts.difference(unwritten).len() >= quorums.majority {
                part.chosen = part.proposal;
            }
        }
        if let Some(commit) = self.recoveries.get(&id).and_then(Recovery::outcome) {
            self.conclude(now, id, commit, effects);
        }
    }

    pub(crate) fn propose_recovery(
        &mut self,
        id: Timestamp,
        index: usize,
        ok: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let node = self.config.node;
        let Some(recovery) = self.recoveries.get_mut(&id) else { return };
        let view = recovery.view;
        let part = &mut recovery.parts[index];
        part.proposal = Some(ok);
        let key = RecordKey::new(id, part.partition);
        let live = group_live(&self.groups, part.partition);
        if live.contains(node)
            && let Some(record) = self.records.get_mut(&key)
            && record.view <= view
            && record.decision.is_none()
        {
            record.accept(view, ok);
            part.accepts.insert(node);
            if ok && id.writer.is_guest() && !part.body.is_empty() {
                let sets = part.body.clone();
                self.take_sets(key, &sets);
            }
            self.append_record(key, effects);
            let at = self.journal.appended();
            if let Some(recovery) = self.recoveries.get_mut(&id) {
                recovery.durable_at = at;
            }
        }
        self.send_recovery_accepts(id, effects);
    }

    /// This node, as long as its own acceptance is not on its disk: then it counts for nothing.
    pub(crate) fn unwritten_at(&self, id: Timestamp) -> NodeSet {
        let at = self.recoveries.get(&id).map_or(Lsn::START, |recovery| recovery.durable_at);
        if self.journal.is_durable(at) || mutant!("meerkat_own_vote_counted_early") {
            return NodeSet::EMPTY;
        }
        NodeSet::only(self.config.node)
    }

    fn send_recovery_accepts(&self, id: Timestamp, effects: &mut impl Effects<Self>) {
        let Some(recovery) = self.recoveries.get(&id) else { return };
        for part in &recovery.parts {
            let Some(ok) = part.proposal.filter(|_| part.chosen.is_none()) else { continue };
            let body = (!part.body.is_empty()).then(|| Body::trusted(&part.body));
            let (view, participants) = (recovery.view, recovery.participants);
            let kind = Kind::Accept { id, view, ok, participants, body };
            let live = group_live(&self.groups, part.partition);
            let to = live.difference(part.accepts).without(self.config.node);
            if !to.is_empty() {
                effects.broadcast(to, &Message { partition: part.partition, kind });
            }
        }
    }

    /// ACCEPTED in a view above 0.
    pub(crate) fn on_recovery_accepted(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        view: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(recovery) = self.recoveries.get_mut(&id).filter(|r| r.view == view) else {
            return effects.ignored("meerkat: ACCEPTED in a takeover that is over");
        };
        recovery.seen.insert(from);
        if let Some(part) = recovery.part(partition) {
            part.accepts.insert(from);
        }
        self.evaluate_recovery(now, id, effects);
    }

    /// Tells everybody, once every clock has passed the timestamp if that matters.
    fn conclude(
        &mut self,
        now: Now,
        id: Timestamp,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(recovery) = self.recoveries.get(&id) else { return };
        let skew = self.config.max_clock_skew.as_nanos() as u64;
        if commit
            && self.config.isolation == Isolation::Strict
            && !self.view.active().is_subset(recovery.seen)
            && self.clock(now) < id.version.saturating_add(skew)
        {
            // The timer comes back to it.
            return;
        }
        for part in &recovery.parts {
            let partition = part.partition;
            let Some(group) = self.groups.get(usize::from(partition)) else { continue };
            let body = (commit && !part.body.is_empty()).then(|| Body::trusted(&part.body));
            let kind = Kind::Decided { id, commit, body };
            let mut to = group.live.union(group.learners);
            if let Some(coordinator) = self.coordinator_of(id) {
                to.insert(coordinator);
            }
            let to = to.without(self.config.node);
            if !to.is_empty() {
                effects.broadcast(to, &Message { partition, kind });
            }
        }
        effects.probe("meerkat: decided as a backup");
        self.end_recovery(now, id, commit, effects);
    }

    /// The end is known: installs it here.
    fn end_recovery(
        &mut self,
        now: Now,
        id: Timestamp,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(recovery) = self.recoveries.remove(&id) else { return };
        for part in recovery.parts {
            let key = RecordKey::new(id, part.partition);
            if let Some(record) = self.records.get_mut(&key)
                && record.decision.is_none()
            {
                if record.body.is_empty() {
                    record.body = part.body;
                }
                if (!commit || !record.body.is_empty())
                    && !self.end_record(now, key, commit, effects)
                {
                    effects.probe(BASE_MISSING);
                }
                self.end_dependents(now, id, effects);
            }
        }
        if id.writer == self.writer() {
            self.on_own_decided(now, id, commit, effects);
        }
    }

    /// The message loss timer of takeovers: asks again after one, two, four timeouts and so on. Many
    /// transactions may be taken over at a time, and on a slow link what asks again too soon stands in
    /// line before the answers.
    pub(crate) fn on_recovery_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let timeout = self.config.message_loss_timeout;
        let hasty = mutant!("meerkat_takeovers_never_wait");
        let doublings_max = if hasty { 0 } else { TAKEOVER_DOUBLINGS_MAX };
        let due: Vec<Timestamp> = self
            .recoveries
            .iter_mut()
            .filter_map(|(id, recovery)| {
                recovery.patience.is_over(now, timeout, doublings_max).then_some(*id)
            })
            .collect();
        for id in due {
            self.send_recovery_accepts(id, effects);
            self.prepare(now, id, effects);
        }
    }
}

/// Why a replica does not join a view.
#[derive(Clone, Copy)]
enum Refused {
    Decided(bool),
    Superseded(u64),
}

pub(crate) fn group_live(groups: &[crate::state::Group], partition: u16) -> NodeSet {
    groups.get(usize::from(partition)).map_or(NodeSet::EMPTY, |group| group.live)
}
