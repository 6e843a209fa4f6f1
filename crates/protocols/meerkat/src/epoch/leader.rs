//! The leader's part of an epoch change: it collects what the members report, merges it, and sends
//! the outcome to all of them before anybody acts on it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{Backoff, Command, Effects, Gate, LaneShared, Table, mutant};
use quorate_types::{Epoch, Member, NodeId, NodeSet, Now, Role};

use super::{PART_DOUBLINGS_MAX, part, parts_of, patience_with};
use crate::join::probe_learners;
use crate::merge::{Groups, Report, TooFew, merge};
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::refusals::has_two_ends;
use crate::state::Meerkat;

/// The leader's part.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Lead {
    /// Parts of reports, as far as they have come.
    reports: BTreeMap<NodeId, Incoming>,
    /// The merged record, encoded.
    merged: Option<Vec<u8>>,
    /// What each member keeps of it.
    adopted: BTreeMap<NodeId, Adopted>,
    /// Shadows whose reports are needed, and the active members that have taken in what they have.
    former: NodeSet,
    took_in: NodeSet,
    /// Why it can't go on.
    stuck: Option<TooFew>,
}

/// A member's report, as far as it has come.
#[derive(Clone, Hash, Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    next: u32,
    done: bool,
}

/// What a member keeps of the merged record.
#[derive(Clone, Hash, Debug, Default)]
struct Adopted {
    parts: u32,
    patience: Backoff,
}

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    pub(super) fn take_own_report(&mut self) {
        let node = self.config.node;
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        let bytes = change.report.clone();
        if let Some(lead) = &mut change.lead {
            lead.reports.insert(node, Incoming { bytes, done: true, ..Incoming::default() });
        }
    }

    /// Asks the members for the parts of their reports that are missing.
    pub(super) fn send_freezes(&mut self, effects: &mut impl Effects<Self>) {
        let others = self.view.live().without(self.config.node);
        let change = self.change.as_mut().expect("lane 0 changes epochs");
        let Some(lead) = &mut change.lead else { return };
        for node in others {
            let incoming = lead.reports.entry(node).or_default();
            if !incoming.done {
                let kind = Kind::Freeze { part: incoming.next };
                effects.send(node, &Message { partition: 0, kind });
            }
        }
    }

    /// FROZEN: a part of a member's report.
    pub(crate) fn on_frozen(
        &mut self,
        now: Now,
        from: NodeId,
        number: u32,
        parts: u32,
        bytes: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let lead = self.change.as_mut().and_then(|change| change.lead.as_mut());
        let incoming = lead.and_then(|lead| lead.reports.get_mut(&from));
        let Some(incoming) = incoming.filter(|known| !known.done && known.next == number) else {
            return effects.ignored("meerkat: FROZEN that was not asked for");
        };
        incoming.bytes.extend_from_slice(bytes);
        incoming.next += 1;
        incoming.done = incoming.next == parts;
        if !incoming.done {
            let kind = Kind::Freeze { part: incoming.next };
            return effects.send(from, &Message { partition: 0, kind });
        }
        self.try_merge(now, effects);
    }

    /// Merges once every member has reported. A member that does not report is removed from the view,
    /// and the change begins anew.
    pub(super) fn try_merge(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let (active, live) = (self.view.active(), self.view.live());
        let Some(lead) = self.change.as_ref().and_then(|change| change.lead.as_ref()) else {
            return;
        };
        let is_done = |node: &NodeId| lead.reports.get(node).is_some_and(|report| report.done);
        if lead.merged.is_some() || !live.into_iter().all(|node| is_done(&node)) {
            return;
        }
        let reports = match self.decode_reports(now) {
            Ok(reports) => reports,
            Err(reason) => return effects.ignored(reason),
        };
        let groups = Groups { lost: self.lost(), ..self.groups_config() };
        let (mut reports, former) = self.split_former(reports);
        let mut merged = merge(&reports, groups);
        let needed: NodeSet = former.keys().copied().collect();
        if merged.is_err() && !former.is_empty() {
            reports.extend(former);
            merged = merge(&reports, groups);
            let waits = merged.is_ok() && !mutant!("meerkat_shadow_told_and_not_taken_in");
            if waits && !self.have_taken_in(now, needed, effects) {
                return;
            }
        }
        let Some(lead) = self.change.as_mut().and_then(|change| change.lead.as_mut()) else {
            return;
        };
        match merged {
            Err(few) => {
                lead.stuck = Some(few);
                effects.ignored("meerkat: more replicas of an epoch are gone than it tolerates");
            }
            Ok(merged) => {
                probe_learners(&reports, active, effects);
                let mut bytes = Vec::new();
                merged.encode(&mut bytes);
                lead.merged = Some(bytes);
                self.adopt(now, merged, effects);
                self.send_adopts(now, effects);
                self.try_release(now, effects);
            }
        }
    }

    /// Takes aside the reports of shadows that came back with logs which may lack the end of what they had
    /// promised: nothing proves what such a one does not say. But if all that the active members know of the
    /// last epoch comes from such logs, too, these are as good: nobody has gone on since the power went. The
    /// shadows were members that were removed before anybody went on. And where no member is missing, nobody
    /// knows more than these: a majority has lost the end of its logs at once, and what it alone had decided
    /// then is lost, as where all have.
    fn split_former(
        &self,
        reports: BTreeMap<NodeId, Report>,
    ) -> (BTreeMap<NodeId, Report>, BTreeMap<NodeId, Report>) {
        let active = self.view.active();
        let (mut former, others): (BTreeMap<_, _>, BTreeMap<_, _>) = reports
            .into_iter()
            .partition(|(node, report)| report.doubtful && !active.contains(*node));
        let last = others.values().map(|report| report.last_normal).max().unwrap_or_default();
        let is_sure = |report: &Report| report.last_normal == last && !report.doubtful;
        let is_here = |member: &Member| member.role != Role::Down;
        let all_are_here = self.view.members.iter().all(is_here)
            && !mutant!("meerkat_waits_for_what_is_forgotten");
        let may_know = others.values().any(is_sure) && !all_are_here;
        if may_know && !mutant!("meerkat_doubtful_shadow_counts") {
            former.clear();
        }
        let may_have_forgotten_all = all_are_here && !mutant!("meerkat_forgotten_epoch_awaited");
        former.retain(|_, report| report.last_normal >= last || may_have_forgotten_all);
        (others, former)
    }

    /// Whether all active members have taken in what these shadows have; asks them to otherwise.
    fn have_taken_in(
        &mut self,
        now: Now,
        former: NodeSet,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let active = self.view.active();
        let lead = self.change.as_mut().and_then(|change| change.lead.as_mut());
        let Some(lead) = lead else { return false };
        if lead.former == former {
            return active.is_subset(lead.took_in);
        }
        (lead.former, lead.took_in) = (former, NodeSet::EMPTY);
        self.send_take_ins(now, effects);
        false
    }

    /// Asks active members to take in what shadows have, if that is needed.
    pub(super) fn send_take_ins(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let (me, active) = (self.config.node, self.view.active());
        let Some(lead) = self.change.as_ref().and_then(|change| change.lead.as_ref()) else {
            return;
        };
        let (former, asked) = (lead.former, active.difference(lead.took_in));
        if former.is_empty() || lead.merged.is_some() {
            return;
        }
        let kind = Kind::TakeIn { former };
        effects.broadcast(asked.without(me), &Message { partition: 0, kind });
        if asked.contains(me) {
            self.take_in(now, former, effects);
        }
    }

    /// TAKEN_IN: an active member has all that these shadows have.
    pub(crate) fn on_taken_in(
        &mut self,
        now: Now,
        from: NodeId,
        former: NodeSet,
        effects: &mut impl Effects<Self>,
    ) {
        let lead = self.change.as_mut().and_then(|change| change.lead.as_mut());
        let Some(lead) = lead.filter(|lead| lead.former == former && !former.is_empty()) else {
            return effects.ignored("meerkat: TAKEN_IN that was not asked for");
        };
        lead.took_in.insert(from);
        self.try_merge(now, effects);
    }

    /// What the members have reported, if it can be true.
    fn decode_reports(&self, now: Now) -> Result<BTreeMap<NodeId, Report>, &'static str> {
        let lead = self.change.as_ref().and_then(|change| change.lead.as_ref());
        let lead = lead.expect("only a leader merges");
        let mut reports = BTreeMap::new();
        for (node, incoming) in &lead.reports {
            let Ok(report) = Report::decode(&incoming.bytes) else {
                return Err("meerkat: damaged report");
            };
            if let Some(reason) = self.refuse_report(now, &report) {
                return Err(reason);
            }
            // A learner that has adopted nothing can't say that anything was not adopted.
            let active = self.view.active();
            let is_blank = report.last_normal == Epoch(0) && !active.contains(*node);
            let is_deaf = mutant!("meerkat_learners_not_asked")
                && !active.union(report.electorate.active).contains(*node);
            if (!is_blank || mutant!("meerkat_blank_life_reports")) && !is_deaf {
                reports.insert(*node, report);
            }
        }
        if has_two_ends(&reports) {
            // Better to wait for another view than to make one of them true.
            return Err("meerkat: members know different ends of one transaction");
        }
        Ok(reports)
    }

    /// Sends each member the next part of the merged record.
    pub(super) fn send_adopts(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let timeout = self.config.message_loss_timeout;
        let others = self.view.live().without(self.config.node);
        let Some(lead) = self.change.as_mut().and_then(|change| change.lead.as_mut()) else {
            return;
        };
        let Some(bytes) = &lead.merged else { return };
        let parts = parts_of(bytes);
        for node in others {
            let adopted = lead.adopted.entry(node).or_default();
            let kept = adopted.parts;
            let bytes = part(bytes, kept);
            let first = patience_with(bytes, timeout);
            if kept < parts && adopted.patience.is_over(now, first, PART_DOUBLINGS_MAX) {
                let kind = Kind::Adopt { part: kept, parts, bytes };
                effects.send(node, &Message { partition: 0, kind });
            }
        }
    }

    /// ADOPTED: a member keeps so many parts.
    pub(crate) fn on_adopted(
        &mut self,
        now: Now,
        from: NodeId,
        kept: u32,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(change) = &mut self.change else { return };
        let released = change.released.is_some();
        let Some(lead) = &mut change.lead else {
            return effects.ignored("meerkat: ADOPTED to a node that does not lead");
        };
        if released {
            return effects.send(from, &Message { partition: 0, kind: Kind::Release });
        }
        let Some(bytes) = &lead.merged else {
            return effects.ignored("meerkat: ADOPTED before there was anything to adopt");
        };
        let parts = parts_of(bytes);
        let adopted = lead.adopted.entry(from).or_default();
        if kept <= adopted.parts {
            return effects.ignored("meerkat: ADOPTED again");
        }
        adopted.parts = kept;
        if kept < parts {
            let bytes = part(bytes, kept);
            let first = patience_with(bytes, self.config.message_loss_timeout);
            adopted.patience.begin(now, first);
            let kind = Kind::Adopt { part: kept, parts, bytes };
            return effects.send(from, &Message { partition: 0, kind });
        }
        self.try_release(now, effects);
    }

    pub(crate) fn try_release(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let others = self.view.live().without(self.config.node);
        let Some(lead) = self.change.as_mut().and_then(|change| change.lead.as_mut()) else {
            return;
        };
        let Some(bytes) = &lead.merged else { return };
        let parts = parts_of(bytes);
        let keeps =
            |node: NodeId| lead.adopted.get(&node).is_some_and(|adopted| adopted.parts == parts);
        let early = mutant!("meerkat_released_by_one");
        // This node is one of those who keep it.
        let written =
            self.journal.gate() == Gate::OPEN || mutant!("meerkat_released_before_durable");
        if !written {
            return;
        }
        if others.into_iter().all(keeps) || early {
            effects.broadcast(others, &Message { partition: 0, kind: Kind::Release });
            self.release(now, effects);
        }
    }

    /// Why the epoch change can't go on, if more replicas are gone than an epoch tolerates, and no
    /// learner knows of it what they knew.
    pub fn stuck(&self) -> Option<TooFew> {
        self.change.as_ref()?.lead.as_ref()?.stuck
    }

    /// The record of the epoch that this node brought to an end as the leader, encoded.
    pub fn merged(&self) -> Option<&[u8]> {
        self.change.as_ref()?.lead.as_ref()?.merged.as_deref()
    }
}
