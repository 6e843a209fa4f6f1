//! Logs that may bring back what a copy has let go of.
//!
//! Lanes of a node may write each other's keys, in logs without an order between them. What the copy of one lane
//! has replaced by an older version, as those that hold everything have lost the newer one, may stand in the log
//! of another lane, and would be there again after a restart. So such a copy counts once every lane has written a
//! snapshot that begins behind it: recovery reads nothing older then (docs/design/012-log.md).

use std::collections::BTreeSet;

use quorate_machine::mutant;
use quorate_types::LaneId;

use crate::engine::KeyspaceLane;
use crate::{Lane, Mail, Outbox};

/// The snapshots that a lane's copy waits for.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// How many times the lanes have been asked; answers to earlier questions say nothing.
    number: u32,
    /// The lanes whose snapshots are awaited; `None` if nobody has been asked.
    awaited: Option<BTreeSet<LaneId>>,
}

impl Renewal {
    /// There is more to copy: the snapshots that were asked for may begin before that.
    pub(crate) fn abandon(&mut self) {
        self.awaited = None;
    }

    fn ask(&mut self, lanes: BTreeSet<LaneId>) -> u32 {
        self.number += 1;
        self.awaited = Some(lanes);
        self.number
    }

    fn hear(&mut self, from: LaneId, number: u32) {
        if let Some(awaited) = self.awaited.as_mut().filter(|_| number == self.number) {
            awaited.remove(&from);
        }
    }

    fn is_over(&self) -> bool {
        self.awaited.as_ref().is_some_and(BTreeSet::is_empty)
    }
}

impl Lane {
    /// Whether no log brings back what the copy of this lane, which is complete, has let go of. Asks for
    /// snapshots if one might.
    pub(crate) fn are_logs_renewed(&mut self, out: &mut Outbox) -> bool {
        let is_at_risk = self.engines.iter().flatten().any(KeyspaceLane::outdates_logs);
        if !is_at_risk || self.log.is_none() || mutant!("node_outdated_logs_count") {
            return true;
        }
        if self.renewal.is_over() {
            self.renewal.abandon();
            self.engines.iter_mut().flatten().for_each(KeyspaceLane::logs_renewed);
            return true;
        }
        if self.renewal.awaited.is_none() {
            let lanes: BTreeSet<LaneId> = (0..self.shared.config.lanes).map(LaneId).collect();
            let number = self.renewal.ask(lanes.clone());
            let asked = lanes.into_iter().map(|lane| (lane, Mail::Renew { from: self.id, number }));
            out.mail.extend(asked);
        }
        false
    }

    /// A lane has written a snapshot as it was asked to.
    pub(crate) fn lane_renewed(&mut self, from: LaneId, number: u32) {
        self.renewal.hear(from, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answers_to_the_last_question_count() {
        let lanes = || BTreeSet::from([LaneId(0), LaneId(1)]);
        let mut renewal = Renewal::default();
        assert!(!renewal.is_over(), "nobody was asked");
        let first = renewal.ask(lanes());
        renewal.hear(LaneId(0), first);
        renewal.abandon();
        let second = renewal.ask(lanes());
        renewal.hear(LaneId(1), second);
        renewal.hear(LaneId(0), first);
        assert!(
            !renewal.is_over(),
            "lane 0 may have begun its snapshot before the copy was complete"
        );
        renewal.hear(LaneId(0), second);
        assert!(renewal.is_over());
    }
}
