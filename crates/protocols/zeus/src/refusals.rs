//! What no correct peer says, whatever it has seen: refused, so that nothing which arrives can break what
//! this lane asserts of itself. In one epoch all nodes agree on who coordinates what, and clocks are
//! never years apart.
//!
//! What depends on a record is refused where the record is looked at.

use quorate_machine::{Command, LaneShared, Table, mutant};
use quorate_types::{Duration, MemberNumber, NodeId, Now};

use crate::commit::PIPELINE_SLOTS_MAX;
use crate::difference::DifferenceMessage;
use crate::extras::{ExtraMessage, ExtraStep};
use crate::fields::{Entries, Requester, Settled};
use crate::looks::LookMessage;
use crate::message::{Message, Update};
use crate::meta::Meta;
use crate::state::Zeus;

/// How far a timestamp may be ahead of this node's wall clock. A hybrid clock follows the furthest
/// one for ever, so a clock that was set wrong once must stay below this bound; and no clock may come
/// near the end of its range.
const AHEAD_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The last slot that there may be: they count up by one for each transaction.
const SLOT_MAX: u64 = 1 << 62;

const ABSURD: &str = "zeus: a timestamp years ahead of this node's clock; set the clocks";
const OTHER_LANE: &str = "zeus: a key of another lane";

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Why a message of this epoch is refused, if it is.
    pub(crate) fn refuse_message(
        &self,
        now: Now,
        from: NodeId,
        message: &Message<'_>,
    ) -> Option<&'static str> {
        let is_other = |key: &[u8]| (!self.is_own(key)).then_some(OTHER_LANE);
        let absurd = |time: u64| self.is_absurd(now, time).then_some(ABSURD);
        match *message {
            Message::Req { key, requester, .. } => {
                is_other(key).or_else(|| absurd(asked_at(requester)))
            }
            Message::Inv { key, round, requester, previous } => {
                is_other(key).or_else(|| absurd(newest(round.version, requester, previous)))
            }
            Message::Ack { key, round, requester, previous, version, clock, .. } => {
                let newest = newest(round.version, requester, previous);
                is_other(key).or_else(|| absurd(newest.max(version.version).max(clock)))
            }
            Message::Val { key, round, clock, .. } => {
                is_other(key).or_else(|| absurd(clock.max(round.version)))
            }
            Message::Nack { key, .. } | Message::CopyKey { key } => is_other(key),
            Message::Update(update) => self.refuse_update(now, &update),
            Message::Applied { coordinator, slots } => {
                let is_own = coordinator == self.layout.number;
                let known = 1..=self.pipeline.last();
                (is_own && !slots.iter().all(|slot| known.contains(&slot)))
                    .then_some("zeus: R-ACK of a transaction that this node never sent")
            }
            Message::Committed { coordinator, upto } => {
                let is_from_it = self.layout.node_of(coordinator) == Some(from);
                (!is_from_it || upto > SLOT_MAX)
                    .then_some("zeus: R-VAL that is not its coordinator's")
            }
            Message::Recovered { clock, promised, .. } => absurd(clock.max(promised)),
            Message::Floor { at, before, .. } => {
                let is_in_order = before <= at;
                absurd(at).or((!is_in_order).then_some("zeus: a floor below the one before"))
            }
            Message::Lacks { .. } | Message::Whole { .. } | Message::CopyRead { .. } => None,
            // What they say is judged where the call is looked at.
            Message::Call(_) => None,
            Message::Look(LookMessage::Seen { copies, .. }) => {
                let versions = copies.iter().flatten().map(|seen| seen.version.version);
                absurd(versions.max().unwrap_or_default())
            }
            Message::Look(_) => None,
            Message::Extra(ExtraMessage { key, step, .. }) => {
                let version = match step {
                    ExtraStep::Grant { version, .. } => version.version,
                    _ => 0,
                };
                is_other(key).or_else(|| absurd(version))
            }
            Message::Copy { clock, floors, entries, .. } => {
                self.refuse_copy(now, clock, floors, entries)
            }
            Message::Difference(DifferenceMessage::Records {
                clock,
                floors,
                known,
                entries,
                ..
            }) => {
                let rounds = known.iter().map(|(_, settled)| settled.round.version);
                absurd(rounds.max().unwrap_or_default())
                    .or_else(|| self.refuse_copy(now, clock, floors, entries))
            }
            Message::Difference(DifferenceMessage::Compared { clock, floors, .. }) => {
                absurd(floors.into_iter().fold(clock, u64::max))
            }
            Message::Difference(_) => None,
        }
    }

    fn refuse_copy(
        &self,
        now: Now,
        clock: u64,
        floors: [u64; 2],
        entries: Entries<'_>,
    ) -> Option<&'static str> {
        let mut latest = floors.into_iter().fold(clock, u64::max);
        for entry in entries.iter() {
            if !self.is_own(entry.key) {
                return Some(OTHER_LANE);
            }
            let (round, requester) = entry.under_way.unwrap_or_default();
            let newest = newest(round.version, requester, entry.settled);
            latest = latest.max(newest).max(entry.version.version);
        }
        self.is_absurd(now, latest).then_some(ABSURD)
    }

    fn refuse_update(&self, now: Now, update: &Update<'_>) -> Option<&'static str> {
        let rounds = update.items.iter().map(|item| item.round.version);
        let newest = rounds.fold(update.version.version, u64::max);
        if self.is_absurd(now, newest) {
            return Some(ABSURD);
        }
        // A coordinator has no more under way, and a node that replays knows what was committed then.
        let is_in_window = update.slot - update.committed <= PIPELINE_SLOTS_MAX as u64;
        (update.slot > SLOT_MAX || !(is_in_window || mutant!("zeus_slot_beyond_window")))
            .then_some("zeus: a transaction beyond the pipeline")
    }

    fn is_absurd(&self, now: Now, time: u64) -> bool {
        let latest = now.unix.0.saturating_add(AHEAD_MAX.as_nanos() as u64);
        time > latest && !mutant!("zeus_absurd_clock_followed")
    }
}

/// The time that a request names. Who asks for nobody is younger than all.
fn asked_at(requester: Requester) -> u64 {
    match requester.member {
        MemberNumber(0) => 0,
        _ => requester.stamp.version,
    }
}

/// The latest time that a round names.
fn newest(round: u64, requester: Requester, previous: Settled) -> u64 {
    round.max(asked_at(requester)).max(previous.round.version)
}
