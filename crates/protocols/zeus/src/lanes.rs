//! The lanes of a node.
//!
//! A key belongs to one lane: there its rounds are, its requests, and the transactions that have no
//! other keys. A transaction with keys of several lanes runs on that of its first key (its *home*),
//! which *borrows* the others: their lanes lend a key as an owner gives one to another node, when
//! nothing of theirs is under way with it, and get it back when the transaction is committed at all
//! followers. So a key is in one pipeline at a time, the pipelines of a node need no order among each
//! other, and a transaction is one message to each follower, whose lane of the same number applies it.
//! The older of two transactions has the key first, as among nodes.
//!
//! All lanes of a node act in one epoch. A lane that has heard of a view stops, and goes on in the new
//! epoch when all have stopped. So a transaction that was not sent to a joining replica was committed
//! before any lane of its node gives that replica a copy, and no lane fills records that another is
//! about to clear for a new life. Likewise a node has recovered when all its lanes have.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use quorate_machine::{
    Command, Completion, Effects, LaneShared, Origins, Outcome, Share, Slab, Slot, Table, mutant,
};
use quorate_rifl::Permit;
use quorate_types::{
    Epoch, Incarnation, LaneId, NodeId, NodeSet, Now, Tag, Timestamp, View, lane_of_key,
};

use crate::calls::home_key;
use crate::meta::Meta;
use crate::state::{Key, Zeus};
use crate::transactions::Need;

/// What all lanes of a node have to reach before any goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// They have stopped for a view.
    Stopped,
    /// Everything of earlier epochs that their pipelines had under way is finished at every node.
    Recovered,
}

/// What lanes say to each other.
#[derive(Clone, Debug)]
pub enum Mail<X: Command> {
    /// Lane → lane 0: I have reached this in that epoch.
    Reached(Stage, Epoch),
    /// Lane 0 → the others: all have.
    Passed(Stage, Epoch),
    /// Anything else, and the epoch in which it was said.
    Letter(Epoch, Letter<X>),
}

/// What lanes say to each other in an epoch.
#[derive(Clone, Debug)]
pub enum Letter<X: Command> {
    /// To the home of a transaction: run it.
    Submit {
        /// Comes back with the answer.
        slot: Slot,
        /// For whom.
        origin: u64,
        /// The call that it is, if it is one, and the permission to attempt it.
        permit: Option<Permit>,
        /// The transaction.
        command: X,
    },
    /// Back from its home: it has ended.
    Answer {
        /// As it was sent.
        slot: Slot,
        /// How it ended.
        completion: Completion<Outcome<X::Reply>>,
    },
    /// To a key's lane: a transaction of mine needs it.
    Ask {
        /// The key.
        key: Key,
        /// What for.
        need: Need,
        /// The age of the oldest that does.
        stamp: Timestamp,
    },
    /// Back: it may be read.
    Readable {
        /// The key.
        key: Key,
    },
    /// Back: it is yours.
    Lend {
        /// The key.
        key: Key,
        /// Whether this node owns it only as long as there is no other owner in this epoch.
        by_default: bool,
        /// The lane's clock: above all that its transactions on the key have written, and not below what it
        /// has promised to begin above.
        clock: u64,
        /// Nodes outside the key's group that follow it.
        readers: NodeSet,
    },
    /// To the borrower: something of this age wants the key back.
    Recall {
        /// The key.
        key: Key,
        /// The age.
        stamp: Timestamp,
    },
    /// To a key's lane: here it is.
    Return {
        /// The key.
        key: Key,
        /// The borrower's clock.
        clock: u64,
    },
    /// To a key's lane: it has a new version, or one that may be read now.
    Changed {
        /// The key.
        key: Key,
    },
    /// To the other lanes: say when this node knows of each transaction up to this version that has a key
    /// of mine that it is committed.
    Watch {
        /// A floor that is to be.
        at: u64,
    },
    /// Back: it does.
    Known {
        /// The floor.
        at: u64,
    },
    /// To a key's lane: reads of it are forwarded so often that a copy is wanted.
    WantCopy {
        /// The key.
        key: Key,
    },
    /// To a key's lane: it was read here.
    Used {
        /// The key.
        key: Key,
        /// So often since the last time.
        uses: u32,
    },
    /// To a key's lane: what a transaction of mine, which my log has, leaves in keys of yours.
    Part {
        /// Comes back with the answer.
        number: u64,
        /// As it is appended.
        part: Key,
    },
    /// Back: it is on disk.
    Kept {
        /// As it was sent.
        number: u64,
    },
    /// To a key's lane: a node lacks what a transaction of mine has changed in it, and I can't tell it.
    Lacks {
        /// The key.
        key: Key,
        /// The node.
        by: NodeId,
    },
    /// To the other lanes: a key of this unit bounces.
    Bounces {
        /// The unit.
        unit: Key,
    },
}

/// A transaction of this lane's clients, at its home or on its way there.
#[derive(Clone, Debug)]
struct Sent {
    tag: Tag,
    origin: u64,
}

/// One whose turn in its origin's line has come, or will.
#[derive(Clone, Debug)]
struct Departure<X> {
    slot: Slot,
    origin: u64,
    home: LaneId,
    permit: Option<Permit>,
    command: X,
}

/// A key of another lane that transactions may use here.
#[derive(Clone, Debug)]
struct Borrowed {
    epoch: Epoch,
    by_default: bool,
    recalled: Option<Timestamp>,
    /// Nodes outside its group that follow it, as the lender knew in that epoch.
    readers: NodeSet,
}

/// A key of this lane that another has.
#[derive(Clone, Debug)]
struct Lent {
    to: LaneId,
    /// Which loan of this lane it is.
    number: u64,
    recalled: Option<Timestamp>,
}

/// What a lane knows of the others. Nothing if there are none.
#[derive(Clone)]
pub(crate) struct Lanes<X: Command> {
    sent: Slab<Sent>,
    origins: Origins<Departure<X>>,
    departing: VecDeque<Departure<X>>,
    borrowed: BTreeMap<Key, Borrowed>,
    asked: BTreeMap<Key, (Need, Timestamp)>,
    lent: BTreeMap<Key, Lent>,
    /// Loans so far.
    pub(crate) loans: u64,
    /// Transactions by which other lanes ask for keys of this one.
    asks: BTreeMap<(Key, LaneId), u64>,
    /// The floors of other lanes that wait for what this one follows.
    pub(crate) watched: BTreeMap<LaneId, u64>,
    /// The view for which this lane has stopped.
    next_view: Option<View>,
    /// The first epoch of this life.
    first_epoch: Option<Epoch>,
    /// Letters of an epoch that has yet to begin here.
    early: VecDeque<(LaneId, Epoch, Letter<X>)>,
    /// What each lane has reached, on lane 0.
    stopped: Vec<Epoch>,
    recovered: Vec<Epoch>,
    /// Whether all lanes have recovered in this epoch.
    pub(crate) has_recovered: bool,
}

impl<X: Command> Lanes<X> {
    pub(crate) fn new(lanes: u16) -> Self {
        let none = || (0..lanes).map(|_| Epoch::default()).collect();
        Self {
            sent: Slab::default(),
            origins: Origins::default(),
            departing: VecDeque::new(),
            borrowed: BTreeMap::new(),
            asked: BTreeMap::new(),
            lent: BTreeMap::new(),
            loans: 0,
            asks: BTreeMap::new(),
            watched: BTreeMap::new(),
            next_view: None,
            first_epoch: None,
            early: VecDeque::new(),
            stopped: none(),
            recovered: none(),
            has_recovered: false,
        }
    }

    /// Whether no epoch of this life has begun here.
    pub(crate) fn is_new(&self) -> bool {
        self.first_epoch.is_none()
    }

    /// Whether this lane waits for the others to begin an epoch.
    pub(crate) fn is_stopped(&self) -> bool {
        self.next_view.is_some()
    }

    /// Whether a node is to serve clients in the epoch for which this lane has stopped, if it has.
    pub(crate) fn will_serve(&self, node: NodeId, life: Incarnation) -> Option<bool> {
        let view = self.next_view.as_ref()?;
        Some(view.is_live(node, life) && view.active().contains(node))
    }

    pub(crate) fn is_lent(&self, key: &[u8]) -> bool {
        self.lent.contains_key(key)
    }

    /// Whether each of the first loans has been returned.
    pub(crate) fn has_back(&self, loans: u64) -> bool {
        self.lent.values().all(|lent| lent.number > loans)
    }

    /// Every key that is lent.
    pub(crate) fn lent_keys(&self) -> Vec<Key> {
        self.lent.keys().cloned().collect()
    }

    pub(crate) fn is_borrowed(&self, key: &[u8]) -> bool {
        self.borrowed.contains_key(key)
    }

    /// The nodes outside the group of a borrowed key that follow it. What was lent in an earlier epoch names
    /// former ones.
    pub(crate) fn readers_of_borrowed(
        &self,
        key: &[u8],
        epoch: Epoch,
        former: impl FnOnce(NodeSet) -> NodeSet,
    ) -> NodeSet {
        let Some(borrowed) = self.borrowed.get(key) else { return NodeSet::EMPTY };
        if borrowed.epoch == epoch { borrowed.readers } else { former(borrowed.readers) }
    }

    /// Whether another lane asks for a key.
    pub(crate) fn is_any_asked(&self, key: &Key) -> bool {
        let is_this = |((asked, _), _): (&(Key, LaneId), &u64)| asked == key;
        // Where there is one lane none asks.
        !self.asks.is_empty()
            && self.asks.range((key.clone(), LaneId(0))..).next().is_some_and(is_this)
    }

    /// Whether nothing of this lane's is at another, or the other way round.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.sent.is_empty()
            && self.borrowed.is_empty()
            && self.asked.is_empty()
            && self.lent.is_empty()
            && self.asks.is_empty()
            && self.early.is_empty()
            && !self.is_stopped()
    }

    /// Transactions that went to other lanes.
    pub(crate) fn len(&self) -> usize {
        self.sent.len()
    }
}

impl<X: Command> Hash for Lanes<X> {
    /// For the model, which explores nodes of one lane.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.has_recovered.hash(state);
    }
}

// --- epochs ----------------------------------------------------------------------------------------

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// A newer view is in force. It begins here when all lanes have stopped.
    pub(crate) fn on_view(&mut self, now: Now, view: &View, effects: &mut impl Effects<Self>) {
        let known = self.lanes.next_view.as_ref().map_or(self.layout.epoch, |view| view.epoch);
        if view.epoch <= known {
            return effects.ignored("zeus: old view");
        }
        self.lanes.next_view = Some(view.clone());
        self.forget_other_cluster(view);
        self.drop_copies();
        if self.begins_empty(view) {
            self.set_aside(view);
        }
        self.reach(now, Stage::Stopped, view.epoch, effects);
    }

    /// This lane has reached a stage.
    pub(crate) fn reach(
        &mut self,
        now: Now,
        stage: Stage,
        epoch: Epoch,
        effects: &mut impl Effects<Self>,
    ) {
        match self.config.lane {
            LaneId(0) => self.on_reached(now, LaneId(0), stage, epoch, effects),
            _ => effects.mail(LaneId(0), Mail::Reached(stage, epoch)),
        }
    }

    fn on_reached(
        &mut self,
        now: Now,
        lane: LaneId,
        stage: Stage,
        epoch: Epoch,
        effects: &mut impl Effects<Self>,
    ) {
        let (reached, awaited) = match stage {
            Stage::Stopped => {
                let next = self.lanes.next_view.as_ref();
                (&mut self.lanes.stopped, next.map(|view| view.epoch))
            }
            Stage::Recovered => {
                let awaited = (!self.lanes.has_recovered).then_some(self.layout.epoch);
                (&mut self.lanes.recovered, awaited)
            }
        };
        let known = &mut reached[usize::from(lane.0)];
        *known = (*known).max(epoch);
        let Some(awaited) = awaited else { return };
        let all = reached.iter().all(|epoch| *epoch >= awaited);
        if !all && !mutant!("zeus_lanes_begin_apart") {
            return;
        }
        let next = self.lanes.next_view.as_ref().filter(|_| stage == Stage::Stopped);
        if next.is_some_and(|view| self.begins_empty(view)) {
            self.table.reset();
        }
        for lane in (1..self.config.lanes).map(LaneId) {
            effects.mail(lane, Mail::Passed(stage, awaited));
        }
        self.on_passed(now, stage, awaited, effects);
    }

    /// All lanes have reached a stage.
    fn on_passed(
        &mut self,
        now: Now,
        stage: Stage,
        epoch: Epoch,
        effects: &mut impl Effects<Self>,
    ) {
        match stage {
            Stage::Stopped => {
                let Some(view) = self.lanes.next_view.take_if(|view| view.epoch == epoch) else {
                    return effects.ignored("zeus: a view that a later one has replaced");
                };
                self.lanes.has_recovered = false;
                let first = *self.lanes.first_epoch.get_or_insert(epoch);
                self.begin_epoch(now, &view, effects);
                self.renew_loans();
                for (from, epoch, letter) in core::mem::take(&mut self.lanes.early) {
                    if epoch >= first {
                        self.on_letter(now, from, epoch, letter, effects);
                    }
                }
            }
            Stage::Recovered if self.layout.epoch == epoch => self.end_recovery(effects),
            Stage::Recovered => effects.ignored("zeus: recovery of an earlier epoch"),
        }
    }

    /// Other members may own now what this node owned as long as there was no other owner, and a node
    /// that serves nobody needs no keys.
    fn renew_loans(&mut self) {
        if !self.layout.is_active() {
            self.lanes.asked.clear();
            self.lanes.asks.clear();
        }
        if !self.layout.is_live() {
            self.lanes.borrowed.clear();
            self.lanes.lent.clear();
        }
        self.changed.extend(self.lanes.borrowed.keys().cloned());
    }

    /// Ends a life: nothing is known of other lanes.
    pub(crate) fn reset_lanes(&mut self, effects: &mut impl Effects<Self>) {
        let before = core::mem::replace(&mut self.lanes, Lanes::new(self.config.lanes));
        for (_, sent) in before.sent.iter() {
            effects.complete(sent.tag, Outcome::Unknown);
        }
        // Siblings may have begun the new life before this lane.
        (self.lanes.stopped, self.lanes.recovered) = (before.stopped, before.recovered);
        self.lanes.early = before.early;
    }

    // --- mail ------------------------------------------------------------------------------------

    pub(crate) fn on_mail(
        &mut self,
        now: Now,
        from: LaneId,
        mail: Mail<X>,
        effects: &mut impl Effects<Self>,
    ) {
        match mail {
            Mail::Reached(stage, epoch) => self.on_reached(now, from, stage, epoch, effects),
            Mail::Passed(stage, epoch) => self.on_passed(now, stage, epoch, effects),
            Mail::Letter(epoch, letter) => {
                if self.lanes.is_stopped() || epoch > self.layout.epoch {
                    self.lanes.early.push_back((from, epoch, letter));
                } else if self.lanes.first_epoch.is_some_and(|first| epoch >= first) {
                    self.on_letter(now, from, epoch, letter, effects);
                } else {
                    effects.ignored("zeus: mail of an earlier life");
                }
            }
        }
    }

    pub(crate) fn write_to(
        &self,
        lane: LaneId,
        letter: Letter<X>,
        effects: &mut impl Effects<Self>,
    ) {
        effects.mail(lane, Mail::Letter(self.layout.epoch, letter));
    }

    fn on_letter(
        &mut self,
        now: Now,
        from: LaneId,
        epoch: Epoch,
        letter: Letter<X>,
        effects: &mut impl Effects<Self>,
    ) {
        match letter {
            Letter::Submit { slot, origin, permit, command } => {
                let client = Client::Sent { lane: from, slot };
                self.admit(now, client, origin, permit, command, effects);
            }
            Letter::Answer { slot, completion } => self.on_answer(slot, completion, effects),
            Letter::Ask { key, need, stamp } => {
                self.on_ask(from, key, need, stamp, effects);
            }
            Letter::Readable { key } => {
                self.lanes.asked.remove(&key);
                self.changed.insert(key);
            }
            Letter::Lend { key, by_default, clock, readers } => {
                if !mutant!("zeus_loan_without_clock") {
                    self.observe(clock);
                }
                self.lanes.asked.remove(&key);
                let borrowed = Borrowed { epoch, by_default, recalled: None, readers };
                self.lanes.borrowed.insert(key.clone(), borrowed);
                self.changed.insert(key);
            }
            Letter::Recall { key, stamp } => {
                if let Some(borrowed) = self.lanes.borrowed.get_mut(&key) {
                    let recalled = borrowed.recalled.map_or(stamp, |before| before.min(stamp));
                    borrowed.recalled = Some(recalled);
                    self.changed.insert(key);
                }
            }
            Letter::Return { key, clock } => {
                self.observe(clock);
                self.lanes.lent.remove(&key);
                self.note_key(&key);
                self.changed.insert(key);
            }
            Letter::Changed { key } => {
                let version = self.meta(&key).version;
                self.note_key(&key);
                if !self.log.is_kept {
                    self.note_arrived(&key, version);
                }
                self.changed.insert(key);
            }
            Letter::Watch { at } => {
                self.lanes.watched.insert(from, at);
            }
            Letter::Known { at } => self.on_known(from, epoch, at, effects),
            Letter::WantCopy { key } => self.want_copy(now, &key, effects),
            Letter::Used { key, uses } => self.on_used(&key, uses),
            Letter::Part { number, part } => self.on_part(from, number, &part, effects),
            Letter::Kept { number } => self.on_kept(from, number, effects),
            Letter::Lacks { key, by } => self.tell_left(by, &key, effects),
            Letter::Bounces { unit } => {
                self.hold(now, &unit);
            }
        }
    }

    /// A key has a new version, or one that may be read: its lane tries what waits for the key again.
    pub(crate) fn note_changed(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        if self.is_own(key) {
            self.note_if_wanted(key);
        } else {
            let lane = lane_of_key(key, self.config.lanes);
            self.write_to(lane, Letter::Changed { key: key.into() }, effects);
        }
    }

    // --- clients ---------------------------------------------------------------------------------

    /// Sends a transaction to its home as soon as its origin lets it, if there is more than one lane.
    /// Two of one lane each overtake each other only if they are of different lanes, and then they have
    /// no key in common. One over several lanes may share a key with any other.
    pub(crate) fn send_home(
        &mut self,
        tag: Tag,
        origin: u64,
        permit: Option<Permit>,
        command: X,
        effects: &mut impl Effects<Self>,
    ) {
        let lanes = self.config.lanes;
        let mut home = None;
        let mut share = Share::Together;
        command.visit_keys(&mut |key| {
            let lane = lane_of_key(key, lanes);
            let first = *home.get_or_insert(lane);
            if lane != first {
                share = Share::Alone;
            }
        });
        if command.ranges() {
            // It finds keys on the way.
            share = Share::Alone;
        }
        let home = match permit {
            // All tries at a call meet on one lane of each node.
            Some(_) => lane_of_key(&home_key(&command), lanes),
            None => home.unwrap_or(self.config.lane),
        };
        let slot = self.lanes.sent.insert(Sent { tag, origin });
        let departure = Departure { slot, origin, home, permit, command };
        match self.lanes.origins.begin(origin, share, departure) {
            // Not before this lane acts again, if it has stopped for a view.
            Some(departure) => self.lanes.departing.push_back(departure),
            None => effects.probe("zeus: a transaction waits for its origin"),
        }
    }

    fn depart(&mut self, now: Now, departure: Departure<X>, effects: &mut impl Effects<Self>) {
        let Departure { slot, origin, home, permit, command } = departure;
        if home == self.config.lane {
            self.admit(now, Client::Sent { lane: home, slot }, origin, permit, command, effects);
        } else {
            effects.probe("zeus: a transaction goes to another lane");
            self.write_to(home, Letter::Submit { slot, origin, permit, command }, effects);
        }
    }

    /// Sends off what has waited for others of its origin; whether there was any.
    pub(crate) fn depart_next(&mut self, now: Now, effects: &mut impl Effects<Self>) -> bool {
        let next = self.lanes.departing.pop_front();
        next.map(|departure| self.depart(now, departure, effects)).is_some()
    }

    /// Whether something of an origin waits here, or is at its home.
    pub(crate) fn has_line(&self, origin: u64) -> bool {
        (self.transactions.has_line(origin) || !self.lanes.origins.is_free(origin))
            && !mutant!("zeus_read_overtakes_its_origin")
    }

    /// Tells a client how its transaction has ended.
    pub(crate) fn answer(
        &mut self,
        client: Client,
        completion: Completion<Outcome<X::Reply>>,
        effects: &mut impl Effects<Self>,
    ) {
        match client {
            Client::Tag(tag) => effects.complete_on(tag, completion),
            Client::Sent { lane, slot } if lane == self.config.lane => {
                self.on_answer(slot, completion, effects);
            }
            Client::Sent { lane, slot } => {
                self.write_to(lane, Letter::Answer { slot, completion }, effects);
            }
        }
    }

    fn on_answer(
        &mut self,
        slot: Slot,
        completion: Completion<Outcome<X::Reply>>,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(Sent { tag, origin }) = self.lanes.sent.remove(slot) else {
            return effects.ignored("zeus: an answer of an earlier life");
        };
        effects.complete_on(tag, completion);
        self.lanes.departing.extend(self.lanes.origins.end(origin));
    }

    // --- keys of other lanes ---------------------------------------------------------------------

    /// Whether a transaction of this age may use a key of another lane.
    pub(crate) fn may_use_borrowed(&self, key: &[u8], stamp: Timestamp) -> bool {
        let Some(borrowed) = self.lanes.borrowed.get(key) else { return false };
        let is_mine = !borrowed.by_default
            || borrowed.epoch == self.layout.epoch
            || mutant!("zeus_loan_outlives_epoch");
        is_mine && borrowed.recalled.is_none_or(|recalled| stamp <= recalled)
    }

    /// Asks the lane of a key for it, unless that has been done.
    pub(crate) fn ask(
        &mut self,
        key: &[u8],
        need: Need,
        stamp: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        if self.lanes.borrowed.contains_key(key) {
            // It comes back to this lane when it has been returned.
            return;
        }
        let (known_need, known_stamp) = self.lanes.asked.get(key).copied().unzip();
        let asked = (need.max(known_need.unwrap_or(need)), stamp.min(known_stamp.unwrap_or(stamp)));
        if (known_need, known_stamp) == (Some(asked.0), Some(asked.1)) {
            return;
        }
        self.lanes.asked.insert(key.into(), asked);
        let lane = lane_of_key(key, self.config.lanes);
        let letter = Letter::Ask { key: key.into(), need: asked.0, stamp: asked.1 };
        self.write_to(lane, letter, effects);
    }

    fn on_ask(
        &mut self,
        from: LaneId,
        key: Key,
        need: Need,
        stamp: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        if !self.layout.is_active() {
            return effects.ignored("zeus: a lane asks for a key of a node that serves nobody");
        }
        let known = self.lanes.asks.get(&(key.clone(), from)).copied();
        match known {
            Some(id) => self.transactions.raise(id, need, stamp),
            None => {
                let id = self.transactions.add_ask(from, &key, need, stamp);
                self.lanes.asks.insert((key.clone(), from), id);
            }
        }
        self.changed.insert(key);
    }

    /// Another lane has what it has asked for.
    pub(crate) fn forget_ask(&mut self, lane: LaneId, key: &Key) {
        self.lanes.asks.remove(&(key.clone(), lane));
    }

    /// Lends a key to the lane that has asked for it.
    pub(crate) fn lend(&mut self, to: LaneId, key: &[u8], effects: &mut impl Effects<Self>) {
        effects.probe("zeus: a key is lent to another lane");
        self.lanes.loans += 1;
        let number = self.lanes.loans;
        self.lanes.lent.insert(key.into(), Lent { to, number, recalled: None });
        let meta = self.meta(key);
        let by_default = self.layout.node_of(meta.owner).is_none();
        let readers = match mutant!("zeus_loan_without_readers") {
            true => NodeSet::EMPTY,
            false => self.extra_readers(key),
        };
        let letter = Letter::Lend { key: key.into(), by_default, clock: self.clock, readers };
        self.write_to(to, letter, effects);
    }

    /// Tells a lane that it may read a key.
    pub(crate) fn tell_readable(
        &mut self,
        to: LaneId,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        self.write_to(to, Letter::Readable { key: key.into() }, effects);
    }

    /// Something of this age waits for a key that is lent.
    pub(crate) fn recall(
        &mut self,
        key: &[u8],
        stamp: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(lent) = self.lanes.lent.get_mut(key) else { return };
        if lent.recalled.is_some_and(|recalled| recalled <= stamp) {
            return;
        }
        lent.recalled = Some(stamp);
        let to = lent.to;
        effects.probe("zeus: a lane wants its key back");
        self.write_to(to, Letter::Recall { key: key.into(), stamp }, effects);
    }

    /// Returns a key if nothing here needs it any more.
    pub(crate) fn check_borrowed(&mut self, key: &[u8], effects: &mut impl Effects<Self>) {
        if !self.lanes.is_borrowed(key) {
            return;
        }
        if !self.pipeline.is_done_with(key) && !mutant!("zeus_lane_returns_undrained") {
            return;
        }
        let lane = lane_of_key(key, self.config.lanes);
        let waiting = self.transactions.waiting_owners(key);
        if waiting.iter().any(|stamp| self.may_use_borrowed(key, *stamp)) {
            // It waits for others with this one. Who reads need not wait for that.
            return self.write_to(lane, Letter::Changed { key: key.into() }, effects);
        }
        self.lanes.borrowed.remove(key);
        let letter = Letter::Return { key: key.into(), clock: self.clock };
        self.write_to(lane, letter, effects);
        if let Some(oldest) = waiting.into_iter().min() {
            self.ask(key, Need::Owner, oldest, effects);
        }
    }
}

/// The receiver of a transaction's answer.
#[derive(Clone, Copy, Hash, Debug)]
pub(crate) enum Client {
    /// The driver of this lane.
    Tag(Tag),
    /// A lane that has sent it.
    Sent {
        /// The lane.
        lane: LaneId,
        /// The transaction's slot on that lane.
        slot: Slot,
    },
}
