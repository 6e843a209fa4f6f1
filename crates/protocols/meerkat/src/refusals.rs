//! What no correct peer says, whatever it has seen: refused, so that nothing which arrives can break
//! what this lane asserts of itself. In one epoch all lanes agree on who coordinates what.

use alloc::collections::BTreeMap;

use quorate_machine::{Command, LaneShared, Table, mutant};
use quorate_types::{Duration, NodeId, Now, Timestamp, limits};

use crate::body::{Body, Write};
use crate::merge::{Merged, Report};
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::recovery::VIEW_STEP;
use crate::state::Meerkat;
use crate::txn_record::RecordKey;

/// Why what is said of a transaction of this node's is refused.
pub(crate) const NEVER_BEGAN: &str = "meerkat: a transaction that this node never began";
const NO_TIMESTAMP: &str = "meerkat: a transaction without a timestamp";
/// How far a timestamp may be ahead of this node's wall clock. A hybrid clock follows the furthest
/// one for ever, so a clock that was set wrong once must stay below this bound; and no clock may come
/// near the end of its range.
const AHEAD_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The last view of a takeover that there may be: they count up by one for each loss of a message.
const VIEW_MAX: u64 = 1 << 48;

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Why a message of this epoch is refused, if it is.
    pub(crate) fn refuse_message(
        &self,
        now: Now,
        from: NodeId,
        message: &Message<'_>,
    ) -> Option<&'static str> {
        if usize::from(message.partition) >= self.config.partitions.len() {
            return Some("meerkat: a partition that the keyspace has not");
        }
        if self.is_absurd(now, newest(&message.kind)) {
            return Some("meerkat: a timestamp years ahead of this node's clock; set the clocks");
        }
        if let Some((id, body)) = sets(&message.kind)
            && id.writer.is_guest()
            && body.iter().any(|item| matches!(item.write, Some(Write::Delta(_))))
            && !mutant!("meerkat_guest_delta_taken")
        {
            // Each replica must be able to take what any other was told.
            return Some("meerkat: a guest's delta");
        }
        match message.kind {
            Kind::Validate { id, participants, .. } => self
                .refuse_proposal(from, id, 0)
                .or_else(|| self.refuse_participants(message.partition, participants)),
            Kind::Accept { id, view, participants, .. } => self
                .refuse_proposal(from, id, view)
                .or_else(|| self.refuse_participants(message.partition, participants)),
            Kind::Promise { participants, .. } => {
                self.refuse_participants(message.partition, participants | 1 << message.partition)
            }
            Kind::Prepare { id, view } if view > 0 => self.refuse_proposal(from, id, view),
            Kind::Prepare { .. } => Some("meerkat: a takeover in the coordinator's view"),
            Kind::Decided { id, .. } if self.config.guest.is_none() => self.refuse_id(id),
            _ => None,
        }
    }

    /// Each view has one proposer: 0 the coordinator, the others the node that they contain.
    fn refuse_proposal(&self, from: NodeId, id: Timestamp, view: u64) -> Option<&'static str> {
        let is_theirs = match view {
            0 => self.coordinator_of(id) == Some(from),
            view => view % VIEW_STEP == u64::from(from.0) && view <= VIEW_MAX,
        };
        if !is_theirs {
            return Some("meerkat: a proposal in the name of another");
        }
        self.refuse_id(id)
    }

    /// Whether a transaction has an id of this node, and the node has never begun it. The record of a
    /// transaction that it has begun is here until all replicas know the end.
    pub(crate) fn never_began(&self, key: &RecordKey) -> bool {
        key.writer == self.writer() && !self.records.contains_key(key)
    }

    fn refuse_id(&self, id: Timestamp) -> Option<&'static str> {
        if id.version == 0 {
            return Some(NO_TIMESTAMP);
        }
        let is_here = id.writer.lane(self.config.lanes) == self.config.lane;
        (!is_here).then_some("meerkat: a transaction of another lane")
    }

    fn refuse_participants(&self, partition: u16, participants: u64) -> Option<&'static str> {
        let all = u64::MAX >> (u64::BITS as usize - self.config.partitions.len());
        let fits = participants & !all == 0 && participants & 1 << partition != 0;
        (!fits).then_some("meerkat: participants that are no partitions, or not this one")
    }

    /// Whether nobody's clock can stand there.
    pub(crate) fn is_absurd(&self, now: Now, version: u64) -> bool {
        // A guest's own clock counts for nothing.
        let limit = now.unix.0.saturating_add(AHEAD_MAX.as_nanos() as u64);
        version > limit && self.config.guest.is_none()
    }

    /// Why a member's report can't be true, if it can't.
    pub(crate) fn refuse_report(&self, now: Now, report: &Report) -> Option<&'static str> {
        let Report { last_normal, electorate, given_up, floor, installed, clock, records, .. } =
            report;
        let newest = (*floor).max(*installed).max(*clock);
        let voters = electorate.voters.len();
        let electorate_fits = electorate.active.is_subset(electorate.voters)
            && given_up.is_subset(electorate.active)
            && voters <= limits::MEMBERS_MAX
            && (last_normal.0 == 0 || voters > 0);
        if *last_normal >= self.epoch() || !electorate_fits {
            return Some("meerkat: a report of an epoch that cannot have been");
        }
        self.refuse_records(now, newest, records.keys())
    }

    /// Why the outcome of an epoch can't be true, if it can't.
    pub(crate) fn refuse_merged(&self, now: Now, merged: &Merged) -> Option<&'static str> {
        self.refuse_records(now, merged.floor.max(merged.clock), merged.settled.keys())
    }

    fn refuse_records<'a>(
        &self,
        now: Now,
        newest: u64,
        mut keys: impl Iterator<Item = &'a RecordKey>,
    ) -> Option<&'static str> {
        let count = self.config.partitions.len();
        let fits = |key: &RecordKey| {
            usize::from(key.partition) < count
                && key.version > 0
                && !self.is_absurd(now, key.version)
        };
        (self.is_absurd(now, newest) || !keys.all(fits)).then_some(
            "meerkat: a record of no partition, without a timestamp, or years ahead of this node's \
             clock",
        )
    }
}

/// Whether reports of the last epoch contradict each other about a transaction that a member has
/// coordinated. A guest may have told each replica something else.
pub(crate) fn has_two_ends(reports: &BTreeMap<NodeId, Report>) -> bool {
    let last = reports.values().map(|report| report.last_normal).max().unwrap_or_default();
    let mut ends = BTreeMap::new();
    let current = reports.values().filter(|report| report.last_normal == last);
    let records = current.flat_map(|report| report.records.iter());
    { records }.filter(|(key, _)| !key.writer.is_guest()).any(|(key, record)| {
        record.decision.is_some_and(|end| *ends.entry(*key).or_insert(end) != end)
    })
}

/// The transaction that a message tells the sets of, and the sets.
fn sets<'a>(kind: &Kind<'a>) -> Option<(Timestamp, Body<'a>)> {
    match *kind {
        Kind::Validate { id, body, .. } => Some((id, body)),
        Kind::Accept { id, body, .. }
        | Kind::Decided { id, body, .. }
        | Kind::Promise { id, body, .. } => Some((id, body?)),
        _ => None,
    }
}

/// The largest timestamp that a message names, besides those of the versions in it.
fn newest(kind: &Kind<'_>) -> u64 {
    match *kind {
        Kind::Get { request, .. } | Kind::Find { request, .. } => request,
        Kind::Values { clock, .. }
        | Kind::Found { clock, .. }
        | Kind::Compared { clock, .. }
        | Kind::Difference { clock, .. } => clock,
        Kind::Validate { id, stable, .. } => id.version.max(stable),
        Kind::Stable { stable } => stable,
        Kind::Vote { id: at, vote: verdict } | Kind::Checked { at, result: verdict } => {
            at.version.max(verdict.err().map_or(0, |conflict| conflict.with.version))
        }
        Kind::Accept { id, .. }
        | Kind::Accepted { id, .. }
        | Kind::Superseded { id, .. }
        | Kind::Decided { id, .. }
        | Kind::Pull { id }
        | Kind::Prepare { id, .. }
        | Kind::Promise { id, .. }
        | Kind::Check { at: id, .. } => id.version,
        _ => 0,
    }
}
