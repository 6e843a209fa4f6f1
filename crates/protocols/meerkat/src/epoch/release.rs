//! The end of an epoch change: what was merged is installed, the same on all members, and the lanes go on.

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::{LaneId, NodeId, NodeSet, Now, Role};

use super::{Calls, Mail};
use crate::body::Body;
use crate::calls::ResultTracker;
use crate::merge::Merged;
use crate::meta::Meta;
use crate::occ;
use crate::records::Records;
use crate::state::{Meerkat, Phase};
use crate::txn_record::{RecordKey, TxnRecord};

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// RELEASE: every member keeps the merged record.
    pub(crate) fn on_release(&mut self, now: Now, from: NodeId, effects: &mut impl Effects<Self>) {
        let epoch = self.epoch();
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        let ready = change.adopted.is_some() && change.last_normal == epoch;
        if !ready || change.released.is_some() || self.leader() != Some(from) {
            return effects.ignored("meerkat: RELEASE of nothing that was adopted");
        }
        self.release(now, effects);
    }

    /// Installs the merged record in the store, the same one on all members, and lets the lanes go.
    pub(super) fn release(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.let_go_of_doubts();
        let epoch = self.epoch();
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        let merged = change.adopted.take().expect("what is released was adopted");
        change.released = Some(epoch);
        let old = core::mem::take(&mut change.records);
        change.read_high = 0;
        change.report.clear();
        for (key, record) in old.iter() {
            if record.registered
                && !mutant!("meerkat_registered_over_epochs")
                && let Some(body) = record.body()
            {
                occ::release(&mut self.table, key.id(), body);
            }
        }
        let mut shares: Vec<Records> = Vec::new();
        shares.resize_with(usize::from(self.config.lanes), Records::new);
        let mut calls: Vec<Calls> = Vec::new();
        calls.resize_with(shares.len(), Calls::new);
        let live: Vec<_> = self
            .view
            .members
            .iter()
            .filter(|member| member.role != Role::Down)
            .map(|member| member.number)
            .collect();
        self.install_settled(&merged);
        for (key, settled) in &merged.settled {
            let lane = usize::from(key.writer.lane(self.config.lanes).0);
            let body = Body::trusted_opt(&settled.body);
            if let Some(body) = body.filter(|_| settled.commit && self.holds(key.partition)) {
                // The lane has its sessions' records to itself.
                if body.call().is_some() && lane < calls.len() {
                    calls[lane].push((*key, settled.body.clone()));
                }
            }
            let decision = Some(settled.commit);
            // A guest that hears of its commit only now tells all of it, also who has joined since and
            // asks the others for the sets. Those of a member's transaction are with its coordinator.
            let kept =
                settled.commit && key.writer.is_guest() && !mutant!("meerkat_outcome_without_sets");
            let body = if kept { settled.body.clone() } else { Vec::new() };
            let record = TxnRecord { decision, body, since: now.monotonic, ..TxnRecord::default() };
            // A dead coordinator asks nobody any more; a guest may live on. Who votes on nothing is
            // asked by nobody.
            let own = key.writer.member() == self.member && !key.writer.is_guest();
            let remembered = (own || self.votes_on(key.partition))
                && (key.writer.is_guest() || live.contains(&key.writer.member()));
            if remembered && lane < shares.len() {
                shares[lane].insert(*key, record);
            }
        }
        let floor = merged.floor;
        let others = shares.drain(1..).zip(calls.drain(1..)).enumerate();
        for (lane, (records, calls)) in others {
            let mail = Mail::Resume { epoch, floor, records, calls };
            effects.mail(LaneId(lane as u16 + 1), mail);
        }
        let own = shares.pop().expect("lane 0 has a share");
        let calls = calls.pop().expect("lane 0 has a share");
        self.resume(now, floor, own, calls, effects);
    }

    /// A shadow that came back in doubt is needed no more: it compares what it has as every shadow does.
    fn let_go_of_doubts(&mut self) {
        if self.doubts && !self.active {
            self.doubts = false;
            self.let_go_of_restored();
            self.trackers.iter_mut().for_each(ResultTracker::begin_copy);
        }
    }

    /// Installs what an epoch change has settled, in the order of time: what a delta changes comes before
    /// it. A replica that has all data has each base, or it is among them, since nobody forgets a
    /// transaction before all replicas have installed it. One that catches up copies from a donor that
    /// has, and leaves out what changes a key that it has not copied.
    fn install_settled(&mut self, merged: &Merged) {
        let mut commits: Vec<_> = { merged.settled.iter() }
            .filter(|(key, settled)| settled.commit && self.holds(key.partition))
            .filter_map(|(key, settled)| Some((key.id(), Body::trusted_opt(&settled.body)?)))
            .collect();
        if !mutant!("meerkat_settled_in_any_order") {
            commits.sort_unstable_by_key(|(id, _)| *id);
        }
        for (id, body) in commits {
            let is_whole = self.apply(id, body);
            let may_lack = !self.active || self.doubts;
            assert!(is_whole || may_lack, "{id:?} changes what no epoch has left here");
            self.add_tombstones(id, body);
            self.note_logged_here(id, body);
        }
    }

    /// Goes on in the new epoch: own attempts have ended, or begin again.
    pub(super) fn resume(
        &mut self,
        now: Now,
        floor: u64,
        records: Records,
        calls: Calls,
        effects: &mut impl Effects<Self>,
    ) {
        self.let_go_of_doubts();
        self.epoch_floor = floor;
        self.append_resumed(effects);
        if self.config.lane.0 > 0 {
            // Lane 0 has what all lanes have done to keys; these are the lane's own.
            for (key, body) in &calls {
                self.append_install(*key, body, effects);
            }
        }
        if !mutant!("meerkat_settled_calls_forgotten") {
            self.complete_merged_calls(calls);
        }
        if self.active && !mutant!("meerkat_mark_of_a_copy_stays") {
            // What came back from a log, or from one that came back, may say that a copy was under way.
            self.trackers.iter_mut().for_each(ResultTracker::end_copy);
        }
        *self.handed = None;
        self.phase = Phase::Normal;
        self.released_by = NodeSet::only(self.config.node);
        let revived = core::mem::take(&mut self.revives)
            && self.active
            && !mutant!("meerkat_restored_trusts_absence");
        self.doubts = false;
        self.takes_in = false;
        let copied = self.copying.is_done() && !mutant!("meerkat_copy_trusts_absence");
        // What came back from a log lacks deletions that were forgotten before, as a copy does.
        if (copied || revived) && self.absence_floor == 0 {
            self.absence_floor = self.clock(now);
        }
        self.records = records;
        effects.probe("meerkat: epoch released");
        let numbers: Vec<_> = self.view.members.iter().map(|member| member.number).collect();
        self.stable.retain(|writer, _| writer.is_guest() || numbers.contains(&writer.member()));
        // Others may not have heard yet that a transaction was over everywhere before the change.
        let stable = &self.stable;
        let is_over =
            |key: &RecordKey| stable.get(&key.writer).is_some_and(|to| key.version <= *to);
        self.records.retain(|key, _| !is_over(key));
        self.announce_due = now.monotonic;
        self.copying.enter_epoch(self.active);
        self.copy_on(now, effects);
        self.restart_attempts(now, effects);
        let heads: Vec<_> = self.lines.values().filter_map(|line| line.first()).copied().collect();
        self.ready.extend(heads.into_iter().map(|(_, slot)| slot));
        self.run_ready(now, effects);
    }
}
