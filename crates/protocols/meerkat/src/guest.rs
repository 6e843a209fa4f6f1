//! Guests: clients that coordinate their transactions themselves over the peer protocol (§4.1: the
//! paper's coordinators are clients).
//!
//! A guest runs this same machine without a replica. It reads with GET, validates, decides, and
//! tells, as any coordinator does; if it dies, the replicas finish what it began (`recovery.rs`).
//!
//! Two things are different. *Time*: a node's clock has passed every timestamp that was answered
//! before; a guest asks a majority of the active members for their clocks first, in one epoch, so
//! that one who has missed an epoch finds no majority. *Floors*: nodes know each other's watermarks
//! but not every guest's. So a node counts the undecided transactions of its guests among its own
//! when it announces its watermark, and refuses those that begin below it. Every replica that lets a
//! guest's transaction commit keeps the floor below it.

use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::{Duration, NodeId, NodeSet, Now, Timestamp, WriterId};

use crate::body::Body;
use crate::message::{Kind, Message, Notice};
use crate::meta::Meta;
use crate::occ::{Conflict, Reason};
use crate::recovery::{RecoveryPart, group_live};
use crate::state::{Isolation, Meerkat};
use crate::txn_record::{RecordKey, TxnRecord};

/// How old a transaction of a guest may be when a replica first hears of it from the guest.
const FRESH: Duration = Duration::from_secs(1);
/// How old it is at least when a replica forgets its end on the guest's word: by then others that
/// were not told the same have asked.
const KEPT: Duration = Duration::from_secs(4);
/// How long the end of a transaction is remembered for a guest that is gone, at least.
const MEMORY: Duration = Duration::from_secs(60);

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Lets a guest in, which this node reaches under `node`, an id of no member.
    pub fn guest_joined(&mut self, writer: WriterId, node: NodeId) {
        debug_assert!(writer.is_guest(), "a guest has a guest's id");
        self.guests.insert(writer, node);
    }

    /// A guest's connection is gone.
    pub fn guest_left(&mut self, node: NodeId) {
        self.guests.retain(|_, known| *known != node);
    }

    /// Whether a message of a guest is one that it may send, about its own transactions.
    pub(crate) fn admits_guest(&self, from: NodeId, kind: &Kind<'_>) -> bool {
        let own = |id: Timestamp| self.guests.get(&id.writer) == Some(&from);
        match kind {
            Kind::Get { .. } | Kind::Stable { .. } => self.guest_at(from).is_some(),
            Kind::Validate { id, .. } => own(*id),
            Kind::Decided { id, .. } => own(*id),
            Kind::Accept { id, view, .. } => own(*id) && *view == 0,
            Kind::Check { at, .. } => own(*at),
            _ => false,
        }
    }

    /// Whether a guest begins a transaction so late that other replicas may have forgotten it.
    pub(crate) fn comes_late(&self, now: Now, key: &RecordKey) -> bool {
        let age = self.clock(now).saturating_sub(key.version);
        key.writer.is_guest() && age > FRESH.as_nanos() as u64 && !self.records.contains_key(key)
    }

    /// Up to where a guest may call its transactions over.
    pub(crate) fn guest_horizon(&self, now: Now) -> u64 {
        self.clock(now).saturating_sub(KEPT.as_nanos() as u64)
    }

    /// DECIDED of a guest: a claim, since it may tell each replica something else. This replica takes
    /// a commit that it said OK to itself and that no backup coordinator asks about. Anything else the
    /// replicas settle among themselves: an abort frees the keys at once, and stays open until then.
    pub(crate) fn on_claim(
        &mut self,
        now: Now,
        partition: u16,
        id: Timestamp,
        commit: bool,
        body: Option<Body<'_>>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.is_stable(id) || !self.holds(partition) || (!self.active && !commit) {
            return self.acknowledge(now, id, partition, effects);
        }
        if !self.active {
            return self.ask_replicas(partition, id, effects);
        }
        let key = RecordKey::new(id, partition);
        if self.comes_late(now, &key) {
            if !commit && !mutant!("meerkat_late_abort_unacknowledged") {
                // Nothing of it is registered here, nor will be: it is too late to validate. Those who
                // have a record settle it; maybe nobody has, since no vote against it is on disk.
                return self.acknowledge(now, id, partition, effects);
            }
            return self.ask_replicas(partition, id, effects);
        }
        let blank = || TxnRecord { since: now.monotonic, ..TxnRecord::default() };
        if self.records.get_or_insert_with(key, blank).1 {
            self.suspect(now, key, 0);
        }
        let record = self.records.get_mut(&key).expect("just made, if it was not there");
        if let Some(known) = record.decision {
            if known != commit {
                return effects.refused("meerkat: a guest that knows two ends of its transaction");
            }
            return self.acknowledge(now, id, partition, effects);
        }
        if !commit {
            return self.withdraw(now, key, effects);
        }
        if record.body.is_empty()
            && let Some(body) = body
        {
            record.body.extend_from_slice(body.bytes());
        }
        let said_ok = record.vote == Some(Ok(())) || record.accepted == Some((0, true));
        let vouches = record.view == 0 && said_ok && !record.body.is_empty();
        if vouches || mutant!("meerkat_guest_taken_at_its_word") {
            let has_ended = self.end_record(now, key, true, effects);
            assert!(has_ended, "a guest writes whole values");
            self.end_dependents(now, id, effects);
            return self.acknowledge(now, id, partition, effects);
        }
        self.ask_replicas(partition, id, effects);
    }

    /// A guest says that its transaction has aborted: frees its keys. The record stays undecided, as
    /// one that was voted down, until the replicas have agreed.
    fn withdraw(&mut self, now: Now, key: RecordKey, effects: &mut impl Effects<Self>) {
        let record = self.records.get_mut(&key).expect("its caller has the record");
        record.vote = Some(Err(Conflict { reason: Reason::StaleRead, with: Timestamp::ZERO }));
        if core::mem::take(&mut record.registered) {
            let body = core::mem::take(&mut record.body);
            self.release_at(key.id(), key.partition, Body::trusted(&body));
            self.records.get_mut(&key).expect("just changed").body = body;
            self.scatter_parked(now, key.id());
        }
        self.append_record(key, effects);
        self.acknowledge(now, key.id(), key.partition, effects);
    }

    /// A guest's transaction has committed at this replica: the others that vote may not know of it.
    /// The record stays until they do.
    pub(crate) fn name_later(&mut self, now: Now, key: RecordKey) {
        let others = group_live(&self.groups, key.partition).without(self.config.node);
        if let Some(record) = self.records.get_mut(&key) {
            record.unaware = others;
            self.unnamed.push(now.monotonic + self.config.recovery_timeout, key);
        }
    }

    /// Names a guest's commit to those that may not know of it, and again until they do: who was told
    /// nothing of the transaction has no record that would make it ask.
    pub(crate) fn name_commit(
        &mut self,
        now: Now,
        key: RecordKey,
        effects: &mut impl Effects<Self>,
    ) {
        let unaware = self.records.get(&key).map_or(NodeSet::EMPTY, |record| record.unaware);
        if unaware.is_empty() || mutant!("meerkat_guest_commit_unnamed") {
            return;
        }
        for node in unaware {
            self.notify(now, node, key.partition, Notice::Named, key.id(), effects);
        }
        if !mutant!("meerkat_guest_commit_named_once") {
            self.unnamed.push(now.monotonic + self.config.recovery_timeout, key);
        }
    }

    /// NAMED: another replica knows that these transactions of guests have committed. If this one does
    /// not, it asks what they have done.
    pub(crate) fn on_named(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        bytes: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        if !self.votes_on(partition) {
            return effects.ignored("meerkat: NAMED to a node that does not vote");
        }
        for id in crate::message::ids(bytes).filter(|id| id.writer.is_guest()) {
            let key = RecordKey::new(id, partition);
            let ended = self.records.get(&key).is_some_and(|record| record.decision.is_some());
            if ended || self.is_stable(id) {
                self.note_aware(from, key);
                self.notify(now, from, partition, Notice::Acked, id, effects);
            } else {
                effects.probe("meerkat: a guest's commit is named by another replica");
                effects.send(from, &Message { partition, kind: Kind::Pull { id } });
            }
        }
    }

    /// Another replica knows that a guest's transaction has committed: it need not be told.
    pub(crate) fn note_aware(&mut self, node: NodeId, key: RecordKey) {
        if let Some(record) = self.records.get_mut(&key) {
            record.unaware.remove(node);
        }
    }

    // --- takeovers of a guest's transaction ------------------------------------------------------

    /// A replica knows how a guest's transaction has ended in a partition, and what it has done there.
    pub(crate) fn learn_end(
        &mut self,
        id: Timestamp,
        partition: u16,
        commit: bool,
        body: Option<Body<'_>>,
    ) {
        if let Some(part) = self.recoveries.get_mut(&id).and_then(|r| r.part(partition)) {
            part.chosen = Some(commit);
            if let Some(body) = body {
                part.body = body.bytes().to_vec();
            }
        }
    }

    /// A backup coordinator asks about a transaction that its coordinator has called over everywhere:
    /// there is no record of it any more. Of a member's, the backup knows the end as well, or will
    /// before it can ask a majority. Of a guest's, the replicas have confirmed the end that the guest
    /// told them, and each remembers a commit until all know it. So what the backup has open has
    /// aborted.
    pub(crate) fn answer_about_ended(
        &self,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        if !id.writer.is_guest() || mutant!("meerkat_settled_unanswered") {
            return effects.ignored("meerkat: a takeover of a transaction that is over");
        }
        let kind = Kind::Decided { id, commit: false, body: None };
        effects.send(from, &Message { partition, kind });
    }

    /// A replica that knows the ends of a guest's transaction in its own partitions leaves the others
    /// to their replicas: those take over what they have open.
    pub(crate) fn drop_needless_takeover(&mut self, id: Timestamp) {
        let is_open = self.records.of(id).any(|(_, record)| record.decision.is_none());
        if !is_open && !mutant!("meerkat_needless_takeover") {
            self.recoveries.remove(&id);
        }
    }

    /// A guest may have told each replica that its transaction does something else. Who knows of a
    /// commit, or proposes one, says with it what it does, and this replica does the same.
    pub(crate) fn take_sets(&mut self, key: RecordKey, body: &[u8]) {
        let Some(record) = self.records.get_mut(&key) else { return };
        if record.body == body || mutant!("meerkat_guest_sets_kept") {
            return;
        }
        let told = core::mem::replace(&mut record.body, body.to_vec());
        if core::mem::take(&mut record.registered) {
            self.release_at(key.id(), key.partition, Body::trusted(&told));
        }
    }

    /// As the choice for a member's transaction, with two differences. A replica that has promised
    /// nothing may yet take the guest's word for a commit: so all must promise, or know an end,
    /// before anything is proposed. And the guest may have told each partition of other ones: so each
    /// has a consensus and an end of its own, for which the backup proposes the same wherever it can.
    pub(crate) fn evaluate_guest(
        &mut self,
        now: Now,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let unwritten = self.unwritten_at(id);
        let Some(recovery) = self.recoveries.get_mut(&id) else { return };
        let mut commits = true;
        let mut committed = false;
        for part in &mut recovery.parts {
            let Some(group) = self.groups.get(usize::from(part.partition)) else { return };
            let quorums = group.quorums;
            if part.accepts.intersection(group.live).difference(unwritten).len() >= quorums.majority
            {
                part.chosen = part.chosen.or(part.proposal);
            }
            let all_promised =
                group.live.is_subset(part.promised) || mutant!("meerkat_guest_aborted_unasked");
            if part.chosen.or(part.proposal).is_none() && !all_promised {
                return;
            }
            let ok = part.ok.intersection(group.live).len() >= quorums.majority;
            let accepted = part.accepted.map(|(_, ok)| ok);
            commits &= part.chosen.or(part.proposal).or(accepted).unwrap_or(ok);
            committed |= part.chosen == Some(true);
        }
        let open = |part: &&RecoveryPart| part.chosen.is_none();
        if recovery.parts.iter().any(|part| open(&part)) {
            for index in 0..recovery.parts.len() {
                let part = &self.recoveries[&id].parts[index];
                if part.chosen.or(part.proposal).is_none() {
                    // What a backup before this one may have had accepted stands.
                    let earlier = part.accepted.filter(|(view, _)| *view > 0).map(|(_, ok)| ok);
                    let ok = (commits || committed) && !part.body.is_empty();
                    self.propose_recovery(id, index, earlier.unwrap_or(ok), effects);
                }
            }
            let unwritten = self.unwritten_at(id);
            let done = |part: &RecoveryPart| {
                let group = &self.groups[usize::from(part.partition)];
                let accepts = part.accepts.intersection(group.live).difference(unwritten);
                accepts.len() >= group.quorums.majority
            };
            let recovery = &self.recoveries[&id];
            if !recovery.parts.iter().all(|part| part.chosen.is_some() || done(part)) {
                return;
            }
        }
        self.conclude_guest(now, id, effects);
    }

    /// Tells each partition its end, once every clock has passed the timestamp if that matters.
    fn conclude_guest(&mut self, now: Now, id: Timestamp, effects: &mut impl Effects<Self>) {
        let Some(recovery) = self.recoveries.get(&id) else { return };
        let ends = |part: &RecoveryPart| part.chosen.or(part.proposal) == Some(true);
        let skew = self.config.max_clock_skew.as_nanos() as u64;
        if recovery.parts.iter().any(ends)
            && self.config.isolation == Isolation::Strict
            && !self.view.active().is_subset(recovery.seen)
            && self.clock(now) < id.version.saturating_add(skew)
        {
            return;
        }
        effects.probe("meerkat: decided as a backup");
        let Some(recovery) = self.recoveries.remove(&id) else { return };
        for part in recovery.parts {
            let (partition, commit) = (part.partition, ends(&part));
            let body = Body::trusted_opt(&part.body).filter(|_| commit);
            let Some(group) = self.groups.get(usize::from(partition)) else { continue };
            let mut to = group.live.union(group.learners).without(self.config.node);
            if let Some(guest) = self.coordinator_of(id) {
                to.insert(guest);
            }
            if !to.is_empty() {
                let kind = Kind::Decided { id, commit, body };
                effects.broadcast(to, &Message { partition, kind });
            }
            let key = RecordKey::new(id, partition);
            if self.records.get(&key).is_some_and(|record| record.decision.is_none()) {
                if commit && !part.body.is_empty() {
                    self.take_sets(key, &part.body);
                }
                if !commit || self.records.get(&key).is_some_and(|record| !record.body.is_empty()) {
                    let has_ended = self.end_record(now, key, commit, effects);
                    assert!(has_ended, "a guest writes whole values");
                    self.end_dependents(now, id, effects);
                }
            }
        }
    }

    /// Asks the replicas that vote for what a guest's transaction has done, if they know that it has
    /// committed. It tells of its end again, so nothing is lost if they don't know yet.
    fn ask_replicas(&self, partition: u16, id: Timestamp, effects: &mut impl Effects<Self>) {
        let Some(group) = self.group(partition) else { return };
        let others = group.live.without(self.config.node);
        if !others.is_empty() {
            effects.broadcast(others, &Message { partition, kind: Kind::Pull { id } });
        }
    }

    /// The writer id of the guest at `node`.
    pub(crate) fn guest_at(&self, node: NodeId) -> Option<WriterId> {
        self.guests.iter().find(|(_, known)| **known == node).map(|(writer, _)| *writer)
    }

    /// Just below the smallest transaction of a guest that this replica has a record of.
    pub(crate) fn guests_low(&self) -> u64 {
        self.records.first_of_guests().min().map_or(u64::MAX, |version| version - 1)
    }

    /// Forgets how the transactions of guests ended that are gone: they will not ask. Nobody sends
    /// a learner their ends again, so that it may have missed one: the change that makes it active takes
    /// the sets from here.
    pub(crate) fn forget_guests(&mut self, now: Now) {
        let (guests, groups) = (&self.guests, &self.groups);
        let is_copied = |partition: u16| {
            let group = groups.get(usize::from(partition));
            group.is_some_and(|group| !group.learners.is_empty())
                && !mutant!("meerkat_guests_forgotten_under_learners")
        };
        self.records.retain_of_guests(|key, record| {
            guests.contains_key(&key.writer)
                || record.decision.is_none()
                || (!record.unaware.is_empty() && !mutant!("meerkat_unaware_forgotten"))
                || is_copied(key.partition)
                || now.monotonic.since(record.since) < MEMORY
        });
    }

    /// Whether so many members have told a guest the time that none has missed an epoch.
    pub(crate) fn knows_the_time(&self, told: NodeSet) -> bool {
        let active = self.view.active();
        self.config.guest.is_none() || told.intersection(active).is_majority_of(self.view.voters())
    }
}
