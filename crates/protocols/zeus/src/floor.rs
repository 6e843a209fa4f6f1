//! The floor: what is known of a key that has no record.
//!
//! Such a key is absent at version and round `floor`, and nobody owns it by name. So whatever is still
//! on its way about a record that was forgotten finds something that is not older: an update changes
//! nothing, and a round is answered with what is settled. Versions and rounds that begin from it are
//! above the floor, so none is ever used twice.
//!
//! The live nodes raise it together, led by the smallest active one, which somebody has asked:
//! 1. `PREPARE(F)`: from now on versions and rounds that begin here are above F. The answer, `PROMISED`,
//!    comes when what this node had under way as a coordinator is committed. When all have promised,
//!    no default owner has a claim up to F under way, and no transaction up to F is anywhere that is
//!    not committed everywhere.
//! 2. `FINISH(F)`: followers must know of these commits, too. The answer, `READY`, comes when this node
//!    knows of each transaction up to F that it has applied that it is committed. So no node will ever
//!    replay one.
//! 3. `COMMIT(F, E)`: all nodes are ready. E is the floor of the round before, of which all have said
//!    that they know (`COMMITTED`). Keys without a record are at E from now on, and records without a
//!    value, without an owner and not above E may be forgotten.
//!
//! A node that misses the commit keeps its records for longer, and that is all: it has promised what
//! others rely on. A new view ends a round, and the first in it forgets nothing. In a new view every
//! node tells the others what it has promised (RECOVERED), so a node that was not there before begins
//! above it, too, before it claims anything; and a donor tells which floors it knows.
//!
//! `WATCH` of an absent key notes F, below which nothing begins any more (or its last change, if that
//! is later). It holds as long as the key is absent and its last change is not later. Of a key without
//! a record that is known if E is not above what was noted. So a watch is exact; and it fails without
//! need only if a whole round lies between the watch and the look, which are then further apart than
//! [`Config::collect_every`](crate::Config::collect_every).

use alloc::collections::BTreeSet;

use quorate_machine::{Backoff, Command, Effects, LaneShared, Table, mutant};
use quorate_types::{
    Epoch, Instant, LaneId, NodeId, NodeSet, Now, Timestamp, WriterId, lane_of_key,
};
use quorate_wire::{Malformed, Reader};

use crate::fields::Items;
use crate::follower::{Applied, Stream};
use crate::lanes::Letter;
use crate::message::Message;
use crate::meta::Meta;
use crate::state::Zeus;

/// A step of raising the floor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FloorStep {
    /// Node → leader: there is something to forget.
    Wish,
    /// Leader → all: begin above it from now on.
    Prepare,
    /// Node → leader: what it had under way is committed.
    Promised,
    /// Leader → all: know that of others.
    Finish,
    /// Node → leader: it does.
    Ready,
    /// Leader → all: it is the floor.
    Commit,
    /// Node → leader: it knows.
    Committed,
}

/// The floor of this lane, and the round that may be raising it.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Floor {
    /// Keys without a record are at this version and round.
    at: u64,
    /// What begins anywhere is above this, as this node knows.
    known: u64,
    /// What all have said in this epoch that they know, if this node leads.
    known_to_all: u64,
    /// What begins here is above this.
    pub(crate) promised: u64,
    lead: Option<Lead>,
    follow: Option<Follow>,
    /// The time before which this node begins no round.
    not_before: Instant,
    wait: Backoff,
}

#[derive(Clone, Hash, Debug)]
struct Lead {
    at: u64,
    /// What all are asked: PREPARE, FINISH or COMMIT.
    step: FloorStep,
    answered: NodeSet,
}

#[derive(Clone, Hash, Debug)]
struct Follow {
    at: u64,
    leader: NodeId,
    /// The last slot of this lane that was under way at the prepare.
    drain: u64,
    /// The last of its loans then.
    loans: u64,
    /// Other lanes that have yet to say that they know of what lies below.
    unknowing: BTreeSet<LaneId>,
    /// What the leader asks.
    step: FloorStep,
    is_told: bool,
}

/// The cell in which a lane tells the others which floor it knows.
pub(crate) const KNOWN: usize = 0;

/// A floor as a version, and as a round.
pub(crate) fn floor_version(at: u64) -> Timestamp {
    match at {
        0 => Timestamp::ZERO,
        _ if mutant!("zeus_absent_at_zero") => Timestamp::ZERO,
        at => Timestamp::new(at, WriterId(u32::MAX)),
    }
}

impl FloorStep {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        use FloorStep::{Commit, Committed, Finish, Prepare, Promised, Ready, Wish};
        let steps = [Wish, Prepare, Promised, Finish, Ready, Commit, Committed];
        steps.get(usize::from(reader.u8()?)).copied().ok_or(Malformed("unknown step of a floor"))
    }
}

impl Default for Floor {
    fn default() -> Self {
        Self {
            at: 0,
            known: 0,
            known_to_all: 0,
            promised: 0,
            lead: None,
            follow: None,
            not_before: Instant::ZERO,
            wait: Backoff::AT_REST,
        }
    }
}

impl Floor {
    /// The version and the round of a key without a record, where this node has all that there is.
    pub(crate) fn absent_at(&self) -> Timestamp {
        floor_version(self.at)
    }

    /// Whether nothing that is told of an absent key is older than these words.
    pub(crate) fn is_above(&self, meta: &Meta) -> bool {
        meta.version.version.max(meta.round.version) <= self.at
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.wait.deadline()
    }

    /// What is told with a step, of the floor before the one that is to be.
    fn before(&self, step: FloorStep) -> u64 {
        if step == FloorStep::Commit { self.known_to_all } else { 0 }
    }

    /// What is kept in the log: what all begin above, the floor, and what this node has promised.
    pub(crate) fn kept(&self) -> [u64; 3] {
        [self.known, self.at, self.promised]
    }

    /// What a replica is told that copies from this node.
    pub(crate) fn told(&self) -> [u64; 2] {
        [self.known, self.at]
    }

    /// A new view.
    pub(crate) fn abort_round(&mut self) {
        (self.lead, self.follow, self.wait) = (None, None, Backoff::AT_REST);
        self.known_to_all = 0;
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    fn floor_leader(&self) -> Option<NodeId> {
        self.layout.active.first()
    }

    /// Asks for a higher floor, up to this one. Rounds count up on their own: where the hybrid clock is
    /// ahead of the wall, and stands still, some lie above it.
    pub(crate) fn wish_for_floor(&mut self, now: Now, at: u64, effects: &mut impl Effects<Self>) {
        let at = if mutant!("zeus_floor_wished_blindly") { 0 } else { at };
        match self.floor_leader() {
            Some(leader) if leader == self.layout.node => {
                self.observe(at);
                self.begin_floor(now, effects);
            }
            Some(leader) => self.send_floor(leader, FloorStep::Wish, at, effects),
            None => {}
        }
    }

    fn send_floor(&self, to: NodeId, step: FloorStep, at: u64, effects: &mut impl Effects<Self>) {
        effects.send(to, &Message::Floor { step, at, before: 0 });
    }

    fn begin_floor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let is_due = self.floor.not_before <= now.monotonic && self.floor.lead.is_none();
        if !is_due || self.floor_leader() != Some(self.layout.node) {
            return;
        }
        effects.probe("zeus: the floor is to rise");
        self.floor.not_before = now.monotonic + self.config.collect_every;
        let at = self.issue(now).version;
        self.ask_all(now, FloorStep::Prepare, at, effects);
    }

    fn ask_all(&mut self, now: Now, step: FloorStep, at: u64, effects: &mut impl Effects<Self>) {
        self.floor.lead = Some(Lead { at, step, answered: NodeSet::EMPTY });
        self.floor.wait = self.wait(now);
        self.ask_floor(self.layout.live, effects);
        let before = self.floor.before(step);
        self.on_floor(now, self.layout.node, step, at, before, effects);
    }

    pub(crate) fn on_floor(
        &mut self,
        now: Now,
        from: NodeId,
        step: FloorStep,
        at: u64,
        before: u64,
        effects: &mut impl Effects<Self>,
    ) {
        match step {
            FloorStep::Wish => {
                self.observe(at);
                self.begin_floor(now, effects);
            }
            FloorStep::Prepare | FloorStep::Finish if at <= self.floor.known => {
                effects.ignored("zeus: a floor that is there");
            }
            FloorStep::Prepare | FloorStep::Finish => {
                self.follow_floor(from, step, at, effects);
            }
            FloorStep::Promised => self.on_floor_answer(now, from, FloorStep::Prepare, at, effects),
            FloorStep::Ready => self.on_floor_answer(now, from, FloorStep::Finish, at, effects),
            FloorStep::Commit => {
                if at > self.floor.promised {
                    return effects.refused("zeus: a floor is raised that was not prepared");
                }
                self.commit_floor(at, before);
                self.append_floors(effects);
                self.answer_floor(now, from, FloorStep::Commit, at, effects);
            }
            FloorStep::Committed => self.on_floor_answer(now, from, FloorStep::Commit, at, effects),
        }
    }

    fn follow_floor(
        &mut self,
        leader: NodeId,
        step: FloorStep,
        at: u64,
        effects: &mut impl Effects<Self>,
    ) {
        self.observe(at);
        if at > self.floor.promised {
            self.floor.promised = at;
            self.append_floors(effects);
        }
        let before = self.floor.follow.take();
        if before.as_ref().is_some_and(|follow| (follow.at, follow.step) > (at, step)) {
            self.floor.follow = before;
            return;
        }
        let before = before.filter(|follow| follow.at == at);
        let is_new = before.as_ref().is_none_or(|follow| follow.step != step);
        let mut follow = before.unwrap_or_else(|| Follow {
            at,
            leader,
            drain: self.pipeline.last(),
            loans: self.lanes.loans,
            unknowing: BTreeSet::new(),
            step,
            is_told: false,
        });
        (follow.leader, follow.step, follow.is_told) = (leader, step, false);
        if is_new && step == FloorStep::Prepare && !mutant!("zeus_floor_leaves_loans") {
            // Where a key is always in use, it would not come back.
            for key in self.lanes.lent_keys() {
                self.recall(&key, Timestamp::ZERO, effects);
            }
        }
        if is_new && step == FloorStep::Finish && !mutant!("zeus_floor_asks_one_lane") {
            let own = self.config.lane;
            follow.unknowing = (0..self.config.lanes).map(LaneId).filter(|it| *it != own).collect();
            for lane in &follow.unknowing {
                self.write_to(*lane, Letter::Watch { at }, effects);
            }
        }
        self.floor.follow = Some(follow);
    }

    /// Another lane knows of all that lies below a floor.
    pub(crate) fn on_known(
        &mut self,
        from: LaneId,
        epoch: Epoch,
        at: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let follow = self.floor.follow.as_mut();
        match follow.filter(|follow| follow.at == at && epoch == self.layout.epoch) {
            Some(follow) => {
                follow.unknowing.remove(&from);
            }
            None => effects.ignored("zeus: another lane knows of another floor"),
        }
    }

    /// Tells other lanes that this one knows of all that lies below their floors, once that is true.
    pub(crate) fn check_watched(&mut self, effects: &mut impl Effects<Self>) {
        if self.lanes.watched.is_empty() {
            return;
        }
        let lanes = self.config.lanes;
        for (lane, at) in self.lanes.watched.clone() {
            let has_key = |applied: &Applied| {
                let items = Items::trusted(&applied.items);
                items.iter().any(|item| lane_of_key(item.key, lanes) == lane)
            };
            let mut applied = self.streams.values().flat_map(|stream| stream.applied.values());
            if !applied.any(|applied| applied.version.version <= at && has_key(applied)) {
                self.lanes.watched.remove(&lane);
                self.write_to(lane, Letter::Known { at }, effects);
            }
        }
    }

    /// Answers what the leader asks, once that is true.
    pub(crate) fn check_floor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Some(follow) = self.floor.follow.as_ref().filter(|follow| !follow.is_told) else {
            return;
        };
        let (at, leader, step) = (follow.at, follow.leader, follow.step);
        let is_back = self.lanes.has_back(follow.loans) || mutant!("zeus_floor_ignores_loans");
        let is_drained = self.pipeline.committed >= follow.drain && is_back;
        let is_above =
            |stream: &Stream| stream.applied.values().all(|applied| applied.version.version > at);
        let is_known = step == FloorStep::Prepare
            || self.streams.values().all(is_above) && follow.unknowing.is_empty()
            || mutant!("zeus_floor_replays_below");
        let is_true = (self.lanes.has_recovered || mutant!("zeus_floor_before_recovery"))
            && (is_drained || mutant!("zeus_floor_claims_below"))
            && is_known;
        if !is_true {
            return;
        }
        self.floor.follow.as_mut().expect("it was seen").is_told = true;
        self.answer_floor(now, leader, step, at, effects);
    }

    fn answer_floor(
        &mut self,
        now: Now,
        leader: NodeId,
        step: FloorStep,
        at: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let answer = match step {
            FloorStep::Prepare => FloorStep::Promised,
            FloorStep::Finish => FloorStep::Ready,
            _ => FloorStep::Committed,
        };
        match leader == self.layout.node {
            true => self.on_floor_answer(now, leader, step, at, effects),
            false => {
                let message = Message::Floor { step: answer, at, before: 0 };
                self.promise(leader, &message, effects);
            }
        }
    }

    fn on_floor_answer(
        &mut self,
        now: Now,
        from: NodeId,
        to: FloorStep,
        at: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let lead = self.floor.lead.as_mut();
        let Some(lead) = lead.filter(|lead| lead.at == at && lead.step == to) else {
            return effects.ignored("zeus: an answer about another floor");
        };
        lead.answered.insert(from);
        if !self.layout.live.is_subset(lead.answered) {
            return;
        }
        match to {
            FloorStep::Prepare => self.ask_all(now, FloorStep::Finish, at, effects),
            FloorStep::Finish => {
                effects.probe("zeus: the floor rises");
                self.ask_all(now, FloorStep::Commit, at, effects);
            }
            _ => {
                self.floor.lead = None;
                self.floor.known_to_all = at;
                self.floor.not_before = now.monotonic + self.config.collect_every;
            }
        }
    }

    fn commit_floor(&mut self, at: u64, before: u64) {
        self.raise_floors([at, before]);
        if self.floor.follow.as_ref().is_some_and(|follow| follow.at <= at) {
            self.floor.follow = None;
        }
    }

    /// Takes over the floors of a donor: what it has not told may have been forgotten up to them.
    pub(crate) fn adopt_floors(&mut self, [known, at]: [u64; 2]) {
        if mutant!("zeus_donor_keeps_its_floor") {
            return;
        }
        // That this node begins above them follows from what all have said that they promised.
        self.raise_floors([known, at]);
    }

    /// Takes over what the log of an earlier process has.
    pub(crate) fn restore_floors(&mut self, [known, at, promised]: [u64; 3]) {
        self.observe(promised);
        self.floor.promised = self.floor.promised.max(promised);
        self.raise_floors([known, at]);
    }

    fn raise_floors(&mut self, [known, at]: [u64; 2]) {
        let at = if mutant!("zeus_floor_of_one_round") { known } else { at };
        self.floor.known = self.floor.known.max(known);
        self.floor.at = self.floor.at.max(at);
        self.table.set_cell(KNOWN, self.floor.known);
        self.table.raise_highest(self.floor.at);
    }

    /// Sends again what is due of a round.
    pub(crate) fn repeat_floor(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.floor.wait.deadline() > now.monotonic {
            return;
        }
        let Some(lead) = &self.floor.lead else {
            self.floor.wait = Backoff::AT_REST;
            return;
        };
        self.ask_floor(self.layout.live.difference(lead.answered), effects);
        self.config.wait_longer(&mut self.floor.wait, now);
    }

    /// Asks some nodes what the round that this node leads is about to learn.
    fn ask_floor(&self, whom: NodeSet, effects: &mut impl Effects<Self>) {
        let Some(Lead { at, step, .. }) = self.floor.lead else { return };
        let before = self.floor.before(step);
        let others = whom.without(self.layout.node);
        effects.broadcast(others, &Message::Floor { step, at, before });
    }
}
