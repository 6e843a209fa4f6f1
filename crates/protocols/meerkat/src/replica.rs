//! The replica: validates, accepts proposals, installs decisions (§5.2.2, §5.2.3; the table of
//! duplicates in N3.5).

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::{Command, Effects, Gate, LaneShared, Record as _, Table, mutant};
use quorate_types::{NodeId, NodeSet, Now, Timestamp, WriterId};
use quorate_wire::Writer;

use crate::body::{Body, Item, Write};
use crate::coordinator::OLDEST;
use crate::message::{Kind, Message, Notice, Vote};
use crate::meta::Meta;
use crate::occ::{Conflict, Reason};
use crate::refusals::NEVER_BEGAN;
use crate::state::{Counter, Meerkat};
use crate::txn_record::{RecordKey, TxnRecord};

/// What is decided here changes a version that has not come yet.
pub(crate) const BASE_MISSING: &str = "meerkat: a commit whose base is not here";
/// Ids that wait for company, at most.
const ACKS_MAX: usize = 64;
/// Bytes of an id on the wire.
const ID_BYTES: usize = 12;
/// Bodies whose memory is kept for the next ones.
const SPARE_BODIES_MAX: usize = 1024;
/// The largest body whose memory is kept.
pub(crate) const SPARE_BYTES_MAX: usize = 16 * 1024;

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    fn reply(&self, to: NodeId, partition: u16, kind: Kind<'_>, effects: &mut impl Effects<Self>) {
        effects.send(to, &Message { partition, kind });
    }

    /// Gives a vote. For OK it is a promise, whenever it is given; against, none is needed.
    fn vote(
        &self,
        to: NodeId,
        partition: u16,
        id: Timestamp,
        vote: Vote,
        effects: &mut impl Effects<Self>,
    ) {
        let kind = Kind::Vote { id, vote };
        if vote.is_ok() && !mutant!("meerkat_vote_before_durable") {
            self.promise_to(to, partition, kind, effects);
        } else {
            self.reply(to, partition, kind, effects);
        }
    }

    /// Whether a transaction is final on all replicas, so that nobody may ask about it any more.
    pub(crate) fn is_stable(&self, id: Timestamp) -> bool {
        self.stable.get(&id.writer).is_some_and(|stable| id.version <= *stable)
    }

    /// VALIDATE (§5.2.2 step 2): checks once, remembers the verdict, answers the same each time.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_validate(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        participants: u64,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.is_stable(id) && !mutant!("meerkat_trimmed_voted_anew") {
            return effects.ignored("meerkat: VALIDATE of a transaction that is over");
        }
        let key = RecordKey::new(id, partition);
        let is_late = self.comes_late(now, &key);
        if is_late && mutant!("meerkat_late_guest_unanswered") {
            return effects.ignored("meerkat: a guest's transaction that begins late");
        }
        let forgotten = |record: &&TxnRecord| match (record.decision, record.vote) {
            (Some(_), _) => mutant!("meerkat_decided_voted_anew"),
            (None, Some(_)) => mutant!("meerkat_voted_anew"),
            (None, None) => mutant!("meerkat_vote_after_promise"),
        };
        if let Some(record) = self.records.get(&key).filter(|record| !forgotten(record)) {
            let kind = match (record.decision, record.vote) {
                (Some(commit), _) => Kind::Decided { id, commit, body: None },
                (None, Some(vote)) => return self.vote(from, partition, id, vote, effects),
                // Its coordinator has done without this vote, and its ACCEPT or the end has come before.
                (None, None) if record.view == 0 => {
                    return effects.ignored("meerkat: VALIDATE of a transaction that has gone on");
                }
                // Promised, or accepted without having been asked: no vote for view 0 any more. It
                // might complete a fast quorum that the backup coordinator has ruled out.
                (None, None) => Kind::Superseded { id, view: record.view },
            };
            return self.reply(from, partition, kind, effects);
        }
        let vote = if id.writer.is_guest() && (is_late || id.version <= self.announced) {
            // The floor of the others may have passed it, or they may have forgotten its end: it would
            // come back from the dead. The guest begins again above this node's clock.
            let above = if is_late { self.clock(now) } else { self.announced };
            let with = Timestamp::new(above, id.writer);
            Err(Conflict { reason: Reason::BelowFloor, with })
        } else {
            self.judge(id, partition, body)
        };
        if let Err(conflict) = vote
            && conflict.with.writer == self.writer()
            && let Some(attempt) = self.attempts.get_mut(&conflict.with.version)
        {
            attempt.obstructs = true;
        }
        let mut bytes = self.spare_bodies.pop().unwrap_or_default();
        bytes.extend_from_slice(body.bytes());
        let record = TxnRecord::voted(participants, bytes, vote, now.monotonic);
        self.records.insert(key, record);
        self.suspect(now, key, 0);
        if vote.is_ok() {
            self.append_vote(key, effects);
        }
        self.vote(from, partition, id, vote, effects);
    }

    /// ACCEPT (§5.2.2 step 5): takes a proposal unless a higher view was joined.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_accept(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        view: u64,
        ok: bool,
        participants: u64,
        body: Option<Body<'_>>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.is_stable(id) && view > 0 {
            return self.answer_about_ended(from, partition, id, effects);
        }
        if self.is_stable(id) {
            return effects.ignored("meerkat: ACCEPT of a transaction that is over");
        }
        let key = RecordKey::new(id, partition);
        if self.never_began(&key) {
            return effects.refused(NEVER_BEGAN);
        }
        if view == 0 && self.comes_late(now, &key) {
            return effects.ignored("meerkat: a guest's transaction that begins late");
        }
        let blank = || TxnRecord { since: now.monotonic, ..TxnRecord::default() };
        let (record, is_new) = self.records.get_or_insert_with(key, blank);
        if let Some(commit) = record.decision {
            return self.reply(from, partition, Kind::Decided { id, commit, body: None }, effects);
        }
        if view < record.view && !mutant!("meerkat_accepts_lower_view") {
            let kind = Kind::Superseded { id, view: record.view };
            return self.reply(from, partition, kind, effects);
        }
        record.accept(view, ok);
        record.participants |= participants;
        if record.body.is_empty()
            && let Some(body) = body
        {
            record.body.extend_from_slice(body.bytes());
        }
        if is_new {
            self.suspect(now, key, view);
        }
        if view > 0
            && ok
            && id.writer.is_guest()
            && let Some(body) = body
        {
            self.take_sets(key, body.bytes());
        }
        self.append_record(key, effects);
        let accepted = Kind::Accepted { id, view };
        if mutant!("meerkat_accepted_before_durable") {
            return self.reply(from, partition, accepted, effects);
        }
        self.promise_to(from, partition, accepted, effects);
    }

    /// DECIDED (§5.2.3). Before its VALIDATE, too: the record that stays behind keeps a late one
    /// from registering what nobody would ever take out again.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_decided(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        id: Timestamp,
        commit: bool,
        body: Option<Body<'_>>,
        effects: &mut impl Effects<Self>,
    ) {
        if self.guests.get(&id.writer) == Some(&from) {
            return self.on_claim(now, partition, id, commit, body, effects);
        }
        if id.writer.is_guest() {
            self.learn_end(id, partition, commit, body.filter(|_| commit));
            self.evaluate_recovery(now, id, effects);
        } else {
            self.recoveries.remove(&id);
        }
        if id.writer == self.writer() {
            self.on_own_decided(now, id, commit, effects);
        }
        if self.is_stable(id) || !self.holds(partition) {
            return self.acknowledge(now, id, partition, effects);
        }
        let key = RecordKey::new(id, partition);
        if !self.active {
            return self.learn(now, from, key, commit, body, effects);
        }
        if self.never_began(&key) {
            return effects.refused(NEVER_BEGAN);
        }
        if mutant!("meerkat_no_tombstone") && !commit && !self.records.contains_key(&key) {
            return self.acknowledge(now, id, partition, effects);
        }
        let (record, _) = self.records.get_or_insert_with(key, TxnRecord::default);
        if let Some(known) = record.decision {
            if known != commit {
                // A guest may have told the sender something else.
                let reason = "meerkat: another end than is known here";
                let is_guest = id.writer.is_guest();
                return if is_guest { effects.ignored(reason) } else { effects.refused(reason) };
            }
            return self.acknowledge(now, id, partition, effects);
        }
        if commit
            && id.writer.is_guest()
            && let Some(body) = body
        {
            self.take_sets(key, body.bytes());
        }
        let record = self.records.get_mut(&key).expect("just made");
        if commit && record.body.is_empty() {
            match body {
                Some(body) => record.body.extend_from_slice(body.bytes()),
                None => {
                    self.expect_end(now, key);
                    if !mutant!("meerkat_commit_without_sets") {
                        effects.probe("meerkat: payload pulled");
                        return self.reply(from, partition, Kind::Pull { id }, effects);
                    }
                }
            }
        }
        if !self.end_record(now, key, commit, effects) {
            // If nothing else brings the base, it is told again.
            self.expect_end(now, key);
            return effects.probe(BASE_MISSING);
        }
        self.acknowledge(now, id, partition, effects);
        self.end_dependents(now, id, effects);
        // Each partition hears of a guest's end by itself: it may have told each of other ones.
        if !id.writer.is_guest() {
            self.end_elsewhere(now, id, commit, effects);
        }
    }

    /// The end of an unknown transaction came first: without a timer this replica would never ask about
    /// it again.
    fn expect_end(&mut self, now: Now, key: RecordKey) {
        let record = self.records.get_mut(&key).expect("its callers have the record");
        if record.since == quorate_types::Instant::ZERO {
            record.since = now.monotonic;
            let view = record.view;
            self.suspect(now, key, view);
        }
    }

    /// The end of a transaction is the same in all partitions that this node has a replica of.
    fn end_elsewhere(
        &mut self,
        now: Now,
        id: Timestamp,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) {
        if self.config.partitions.len() == 1 {
            return;
        }
        let open =
            |record: &TxnRecord| record.decision.is_none() && (!commit || !record.body.is_empty());
        let records = self.records.of(id).filter(|(_, record)| open(record));
        let keys: Vec<RecordKey> = records.map(|(key, _)| key).collect();
        for key in keys {
            if self.end_record(now, key, commit, effects) {
                self.acknowledge(now, id, key.partition, effects);
            }
        }
    }

    /// A joining replica installs decisions and votes on nothing, so it needs no records.
    fn learn(
        &mut self,
        now: Now,
        from: NodeId,
        key: RecordKey,
        commit: bool,
        body: Option<Body<'_>>,
        effects: &mut impl Effects<Self>,
    ) {
        let lacking = match body {
            Some(body) if commit && !mutant!("meerkat_learned_part_in_no_log") => {
                self.lacks(key.id(), body)
            }
            _ => Vec::new(),
        };
        match body {
            Some(body) if commit && !self.install(key, body) => {
                self.append_at(key.id(), lacking.iter().map(|key| &key[..]), effects);
                return self.ask_for_bases(now, from, key, body, effects);
            }
            Some(body) if commit => self.append_install(key, body.bytes(), effects),
            None if commit => {
                return self.reply(from, key.partition, Kind::Pull { id: key.id() }, effects);
            }
            _ => {}
        }
        self.acknowledge(now, key.id(), key.partition, effects);
    }

    /// Ends the commits that have waited for what a transaction has installed here.
    pub(crate) fn end_dependents(
        &mut self,
        now: Now,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let mut installed = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            for key in self.baseless.remove(&id).unwrap_or_default() {
                let open = self.records.get(&key).filter(|record| record.decision.is_none());
                if open.is_some_and(|record| !record.body.is_empty())
                    && self.end_record(now, key, true, effects)
                {
                    self.acknowledge(now, key.id(), key.partition, effects);
                    installed.push(key.id());
                }
            }
            next = installed.pop();
        }
    }

    /// A commit whose base is not here ends when that is ([`Meerkat::end_dependents`]).
    fn await_base(&mut self, key: RecordKey, body: &[u8], effects: &mut impl Effects<Self>) {
        let deltas = Body::trusted(body).iter();
        let deltas = deltas.filter(|item| matches!(item.write, Some(Write::Delta(_))));
        let mut lacks = |item: &Item<'_>| {
            let record = self.table.lock_existing(item.key);
            item.base.filter(|base| record.is_none_or(|record| record.meta().wts < *base))
        };
        let base = { deltas }.find_map(|item| lacks(&item));
        let Some(base) = base.filter(|_| !mutant!("meerkat_commit_without_base_forgotten")) else {
            return;
        };
        let waiting = self.baseless.entry(base).or_default();
        if !waiting.contains(&key) {
            waiting.push(key);
            self.append_parts(key.id(), Body::trusted(body), effects);
        }
    }

    /// Appends what is in place of a commit that is not in place as a whole: it stays if this replica is
    /// removed before the rest comes, and what a comparison finds equal gets no entry.
    fn append_parts(&mut self, id: Timestamp, body: Body<'_>, effects: &mut impl Effects<Self>) {
        if !mutant!("meerkat_part_of_a_commit_in_no_log") {
            self.append_at(id, written(body), effects);
        }
    }

    /// The keys that a transaction writes and that are older here.
    pub(crate) fn lacks(&mut self, id: Timestamp, body: Body<'_>) -> Vec<Box<[u8]>> {
        let is_newer = |record: T::Record<'_>| record.meta().wts >= id;
        let lacks = |key: &&[u8]| !self.table.lock_existing(key).is_some_and(is_newer);
        written(body).filter(lacks).map(Box::from).collect()
    }

    /// Appends those of these keys that are at this version.
    fn append_at<'a>(
        &mut self,
        id: Timestamp,
        keys: impl Iterator<Item = &'a [u8]>,
        effects: &mut impl Effects<Self>,
    ) {
        for key in keys {
            let is_here = |record: T::Record<'_>| record.meta().wts == id;
            if self.table.lock_existing(key).is_some_and(is_here) {
                self.append_key(key, effects);
            }
        }
    }

    /// Ends a transaction at this replica: installs or releases. Whether it has ended: a commit does
    /// not before the base of each of its deltas is here. It stays registered until then, as if it had
    /// not been heard of, and the node that decided it says so again until this one acknowledges.
    pub(crate) fn end_record(
        &mut self,
        now: Now,
        key: RecordKey,
        commit: bool,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let id = key.id();
        let record = self.records.get_mut(&key).expect("its callers have the record");
        if let Some(known) = record.decision {
            assert_eq!(known, commit, "transaction {id:?} was decided twice, and differently");
            return true;
        }
        let registered = record.registered;
        let known = registered && record.vote == Some(Ok(()));
        let body = core::mem::take(&mut record.body);
        let installs = registered || !mutant!("meerkat_dissenter_applies_nothing");
        // More of it may come into place while it waits for the same base.
        let waits = commit && self.baseless.values().any(|waiting| waiting.contains(&key));
        let lacking = match waits && !mutant!("meerkat_part_that_comes_later_in_no_log") {
            true => self.lacks(id, Body::trusted(&body)),
            false => Vec::new(),
        };
        if commit
            && installs
            && !body.is_empty()
            && !self.install(key, Body::trusted(&body))
            && !mutant!("meerkat_ends_without_base")
        {
            self.await_base(key, &body, effects);
            self.append_at(id, lacking.iter().map(|key| &key[..]), effects);
            self.records.get_mut(&key).expect("it was just there").body = body;
            return false;
        }
        self.baseless.retain(|_, waiting| {
            waiting.retain(|other| *other != key);
            !waiting.is_empty()
        });
        if commit {
            self.wake_parked(id);
        } else {
            self.scatter_parked(now, id);
            if registered && !body.is_empty() {
                self.release_at(id, key.partition, Body::trusted(&body));
            }
        }
        let record = self.records.get_mut(&key).expect("it was just there");
        record.decision = Some(commit);
        record.registered = false;
        // Later questions are answered with the decision. The sets of a committed transaction stay
        // until every replica has them: if the coordinator dies, the epoch change takes them from here.
        if commit && !mutant!("meerkat_sets_dropped_early") {
            record.body = body;
            record.since = now.monotonic;
        } else {
            self.spare(body);
        }
        self.append_end(key, known, effects);
        if id.writer.is_guest() {
            if commit {
                self.name_later(now, key);
            }
            self.drop_needless_takeover(id);
        } else if !mutant!("meerkat_takeover_outlives_its_end") {
            // It may have begun while the commit waited for a base. The others may have forgotten the transaction
            // as soon as they hear that this replica knows its end, and would leave the takeover unanswered.
            self.recoveries.remove(&id);
        }
        true
    }

    /// Installs a committed transaction, and the record of its call with it. Whether all of it is in
    /// place.
    fn install(&mut self, key: RecordKey, body: Body<'_>) -> bool {
        if !self.apply(key.id(), body) {
            return false;
        }
        if !mutant!("meerkat_effect_without_record") {
            self.complete_call(key.id(), key.partition, body);
        }
        self.add_tombstones(key.id(), body);
        true
    }

    /// Remembers the keys that a transaction has deleted: their records can go once everything up to
    /// its timestamp is final everywhere. The sweep finds those that have no room here.
    pub(crate) fn add_tombstones(&mut self, id: Timestamp, body: Body<'_>) {
        for item in body.iter() {
            let dies = item.write == Some(Write::Delete);
            if dies && self.tombstones.len() < quorate_types::limits::OPS_PENDING_MAX {
                self.tombstones.push_back((id.version, item.key.into()));
            }
        }
    }

    pub(crate) fn spare(&mut self, mut body: Vec<u8>) {
        if self.spare_bodies.len() < SPARE_BODIES_MAX
            && body.capacity() > 0
            && body.capacity() <= SPARE_BYTES_MAX
        {
            body.clear();
            self.spare_bodies.push(body);
        }
    }

    /// Tells the coordinator that the end of a transaction is known here, in company with others.
    pub(crate) fn acknowledge(
        &mut self,
        now: Now,
        id: Timestamp,
        partition: u16,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(to) = self.coordinator_of(id).filter(|node| *node != self.config.node) {
            self.notify(now, to, partition, Notice::Acked, id, effects);
        }
    }

    /// Tells another node of a transaction, in company with others.
    pub(crate) fn notify(
        &mut self,
        now: Now,
        to: NodeId,
        partition: u16,
        notice: Notice,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let queue = self.acks.entry((to, partition, notice)).or_default();
        Writer(queue).timestamp(id);
        if queue.len() >= ACKS_MAX * ID_BYTES {
            let message = Message { partition, kind: notice.of(queue) };
            effects.send_behind(self.journal.gate(), NodeSet::only(to), &message);
            queue.clear();
        } else if self.acks_due == quorate_types::Instant::NEVER {
            self.acks_due = now.monotonic + self.config.message_loss_timeout / 4;
        }
    }

    /// Sends what has waited for company long enough. That an end is known here is said once it is on
    /// disk: the others forget it then.
    pub(crate) fn flush_acks(&mut self, effects: &mut impl Effects<Self>) {
        self.acks_due = quorate_types::Instant::NEVER;
        let early = mutant!("meerkat_acknowledged_before_durable");
        let gate = if early { Gate::OPEN } else { self.journal.gate() };
        for ((to, partition, notice), ids) in &mut self.acks {
            if !ids.is_empty() {
                let message = Message { partition: *partition, kind: notice.of(ids) };
                effects.send_behind(gate, NodeSet::only(*to), &message);
                ids.clear();
            }
        }
    }

    /// CHECK: confirms a read-only transaction, or says what is in the way.
    pub(crate) fn on_check(
        &mut self,
        from: NodeId,
        partition: u16,
        at: Timestamp,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if body.iter().any(|item| item.base.is_none()) {
            return effects.ignored("meerkat: CHECK of something that was not read");
        }
        let result = self.confirm(at, body);
        let kind = Kind::Checked { at, result };
        if result.is_err() {
            return self.reply(from, partition, kind, effects);
        }
        self.read_high = self.read_high.max(at.version);
        self.reserve(at.version, effects);
        let gate = self.reserved_gate(at.version);
        effects.send_behind(gate, NodeSet::only(from), &Message { partition, kind });
    }

    // --- reclamation (N6.6, N4.5) -----------------------------------------------------------

    /// As [`Meerkat::advance_stable`], on the word of another. Nothing happens, with `false`, if
    /// something up to there is not decided here.
    pub(crate) fn take_stable(&mut self, now: Now, writer: WriterId, stable: u64) -> bool {
        let stable = if writer.is_guest() { stable.min(self.guest_horizon(now)) } else { stable };
        let known = self.stable.get(&writer).copied().unwrap_or_default();
        if stable <= known {
            return true;
        }
        let is_open = |(_, record): (_, &TxnRecord)| {
            let is_known = record.unaware.is_empty() || mutant!("meerkat_commit_forgotten_unknown");
            record.decision.is_none() || !is_known
        };
        if self.records.up_to(writer, stable).any(is_open) {
            // What a guest has told each replica is settled among them first.
            return writer.is_guest();
        }
        self.advance_stable(writer, stable);
        true
    }

    /// Everything of this coordinator up to here is final on all replicas: its records can go, and
    /// whatever still arrives about them is too late.
    pub(crate) fn advance_stable(&mut self, writer: WriterId, stable: u64) {
        let known = self.stable.entry(writer).or_default();
        if *known >= stable {
            return;
        }
        *known = stable;
        while let Some((key, record)) = self.records.pop_up_to(writer, stable) {
            assert!(
                record.decision.is_some(),
                "{:?} is called stable and not decided at this replica",
                key.id()
            );
            self.count(Counter::RecordsDropped);
            *self.dropped = true;
            if record.decision == Some(true) && self.keeps_footprints(key.partition) {
                self.footprints.push_back((key, record));
            } else {
                self.spare(record.body);
            }
        }
    }

    /// Drops the footprints that no undecided transaction of this node overlaps any more: one that
    /// was validated here after a footprint's transaction had ended was checked against it.
    pub(crate) fn drop_footprints(&mut self, now: Now) {
        let records = &self.records;
        let is_undecided = |(key, _): &(RecordKey, _)| {
            records.get(key).is_some_and(|record| record.decision.is_none())
        };
        let undecided = self.suspects.oldest(is_undecided);
        let undecided = undecided.and_then(|(key, _)| records.get(&key));
        // Own transactions are not suspected; their attempts tell how old they are.
        let own = self.attempts.updates().find(|(_, attempt)| attempt.is_open_update());
        let oldest = undecided.map(|record| record.since).into_iter();
        let oldest = oldest.chain(own.map(|(_, attempt)| attempt.started)).min();
        self.table.set_cell(OLDEST, oldest.unwrap_or(now.monotonic).0);
        let oldest = self.table.least(OLDEST);
        while let Some((_, record)) = self.footprints.front()
            && record.since.0 < oldest
        {
            let (_, record) = self.footprints.pop_front().expect("just looked at");
            self.spare(record.body);
        }
    }

    /// Whether committed transactions' sets are kept: where a recovery may have to tell whether an
    /// undecided transaction conflicts with them (five replicas and more, N4.3).
    pub(crate) fn keeps_footprints(&self, partition: u16) -> bool {
        self.group(partition).is_some_and(|group| {
            let quorums = group.quorums;
            (1..quorums.live).any(|replies| {
                quorums.is_recoverable(replies)
                    && quorums.fast_possible(quorums.majority - 1, replies)
            })
        })
    }
}

/// The keys that a transaction writes.
fn written<'a>(body: Body<'a>) -> impl Iterator<Item = &'a [u8]> {
    body.iter().filter(|item| item.write.is_some()).map(|item| item.key)
}
