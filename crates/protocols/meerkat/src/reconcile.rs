//! A restart of all replicas whose promises did not wait for their logs: each has lost another part of
//! what was done last, so none of them is what the others were told.
//!
//! Before it reports, a replica takes in what each other one has: it compares keys as a learner does
//! (`difference.rs`) and takes over what is newer there, and the records of calls. All are frozen
//! meanwhile, so when all are through, all hold the newest version of each key that any of them has kept:
//! what one replica had kept of a transaction stands at all of them, and all of it in each partition, since
//! the log has it in one entry. A deletion that one had forgotten and another has lost comes undone; it
//! was among what was done last.
//!
//! Where promises wait for the log nothing of this is needed: what a replica has lost, nobody had heard.

use quorate_machine::difference::Comparing;
use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::{LaneId, NodeId, NodeSet, Now};

use crate::epoch::Mail;
use crate::join::Copying;
use crate::message::Kind;
use crate::meta::Meta;
use crate::state::{Meerkat, Phase};

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Whether this lane takes in what others have, before it reports.
    pub(crate) fn is_reconciling(&self) -> bool {
        self.phase == Phase::Frozen && !self.unheard.is_empty()
    }

    /// A frozen lane answers those who take in what others have, with what it has, and hears their answers.
    /// It may have come back with them and have gone on, in an epoch whose release they have missed: those
    /// are active. A learner waits: it has left out of the merged record what changes a key that it had not
    /// copied, and needs a donor that has installed that.
    pub(crate) fn may_reconcile(&self, from: NodeId, kind: &Kind<'_>) -> bool {
        let asks = matches!(
            kind,
            Kind::Compare { .. }
                | Kind::DifferenceRead { .. }
                | Kind::ChunkRead { .. }
                | Kind::CallsRead { .. }
        );
        let answers = matches!(
            kind,
            Kind::Compared { .. }
                | Kind::Difference { .. }
                | Kind::Chunk { .. }
                | Kind::Calls { .. }
        );
        let is_active = self.view.active().contains(from);
        if !self.active {
            return asks && is_active && (self.is_former() || self.has_nothing_to_tell());
        }
        let hears = is_active || mutant!("meerkat_learner_copies_before_the_release");
        let tells = self.revives || !mutant!("meerkat_gone_on_and_says_nothing");
        asks && tells && hears || answers && (self.revives || self.takes_in)
    }

    /// Whether this shadow still has what came back from its log as it came.
    pub(crate) fn is_former(&self) -> bool {
        self.doubts && !self.active && self.phase == Phase::Frozen
    }

    /// Whether those who take in what shadows have get an answer without anything from this lane: another one
    /// of its node may have lost what it had promised, and this one has not, so all is in its report.
    pub(crate) fn has_nothing_to_tell(&self) -> bool {
        !self.doubts
            && !self.active
            && self.phase == Phase::Frozen
            && !mutant!("meerkat_sure_lane_says_nothing")
    }

    /// Whether this replica can tell others what it has.
    pub(crate) fn is_donor(&self) -> bool {
        self.active || self.is_former()
    }

    /// Takes in what these shadows have, too.
    pub(crate) fn reconcile_with(
        &mut self,
        now: Now,
        former: NodeSet,
        effects: &mut impl Effects<Self>,
    ) {
        self.copying = Copying::default();
        self.takes_in = true;
        self.unheard = former;
        self.reconcile(now, effects);
    }

    /// Each view asks all of its replicas anew. A member that has lived on, and was taking in what others have
    /// when the view came, has what it had before.
    pub(crate) fn begin_reconciling(&mut self) {
        let is_broken_off = self.takes_in && self.active && !self.doubts;
        if is_broken_off && !mutant!("meerkat_half_copied_since_a_view") {
            self.end_reconciling();
        }
        self.unheard = NodeSet::EMPTY;
        self.takes_in = self.doubts;
        if self.doubts && self.active {
            self.copying = Copying::default();
            self.unheard = self.view.active().without(self.config.node);
        }
    }

    /// An active member has nothing left to take in. In a later life it had copied everything by the time when
    /// it became active.
    fn end_reconciling(&mut self) {
        self.copying = Copying::default();
        self.copying.done = self.life > 0;
    }

    /// Asks the next replica, or says that all have answered.
    pub(crate) fn reconcile(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if !self.takes_in || !self.active || self.phase != Phase::Frozen {
            return;
        }
        let shared = |lane: &Self, donor| lane.given_by(donor) & lane.held();
        while let Some(donor) = self.unheard.first() {
            let partitions = shared(self, donor);
            if partitions == 0 {
                self.unheard.remove(donor);
                continue;
            }
            let spin = self.rng.next_u64();
            let comparing = Some(self.table.len()).filter(|records| *records > 0);
            let donors = NodeSet::only(donor);
            self.copying.choose(donors, spin, comparing.map(Comparing::new));
            return self.ask_donor(now, partitions, effects);
        }
        effects.probe("meerkat: takes in what its log has lost");
        self.end_reconciling();
        if self.config.lane.0 > 0 {
            let epoch = self.epoch();
            effects.mail(LaneId(0), Mail::Settled { epoch });
        } else {
            self.on_lane_settled(now, LaneId(0), effects);
        }
    }
}
