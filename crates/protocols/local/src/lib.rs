//! One copy on one node: every command over any keys, nothing replicated.
//!
//! # Guarantee
//! Transactions are strictly serializable as long as the node's process lives. With a log nothing that was
//! answered is lost with the process (`log.rs`); without one everything is. This is the price list of
//! everything else: what a command costs here it costs without replication. It serves only while its node
//! is the single member of the cluster.
//!
//! # How a transaction runs
//! The keys of a lane are changed by that lane, or while it is *held*. A transaction whose keys are
//! all of one lane runs there at once. One whose keys are of several lanes travels as a [`Turn`]
//! through them in ascending order: each lane it leaves is held for it, so that no two of them wait
//! for each other, and the last one runs it and releases the others. What reaches a held lane waits
//! in its queue.
//!
//! Transactions of one origin with a key in common take effect in order: letters between two lanes
//! stay in order, and one that needs several lanes has its origin to itself.
//!
//! # Reads of one key
//! Any lane answers them from the record without asking. A transaction that changes several keys
//! makes all their records unreadable before it changes the first, so nobody sees some of its
//! changes and not the others.
//!
//! # Deleted keys
//! A deleted key leaves a tombstone with the version of the delete, for `WATCH`. The sweep removes
//! tombstones once they are old, and raises the floor first: a key without a record has the version
//! of the floor.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod calls;
mod engine;
mod log;
mod meta;
mod state;
mod sweep;
mod workspace;

use quorate_machine::{
    Command, Completion, Effects, Event, Gate, LaneShared, Machine, OrderedTable, Outcome,
    Protocol, Refusal, SavePoint, Share, Slot, Unreadable, mutant,
};
use quorate_types::{Instant, LaneId, Now, Role, Tag, Timestamp, View, WriterId, lane_of_key};

pub use quorate_machine::Request;

pub use engine::{ID, Options};
pub use meta::Meta;
pub use state::{Config, Local, Mail, Turn};

use log::End;
use state::{Lanes, Op};
use workspace::Ran;

impl<T, X> Protocol for Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// There is nobody to talk to.
    type Message<'a> = core::convert::Infallible;
    type Request<'a> = Request<X>;
    type Outcome = Outcome<X::Reply>;
    type Mail = Mail<X>;

    const PROBES: &'static [&'static str] = &[
        "local: call answered from its record",
        "local: call tried while under way",
        "local: a lane is told what it lacks",
        "local: a turn waits for the log",
        "local: expired value deleted",
        "local: op waits for its origin",
        "local: tombstone removed",
        "local: transaction over several lanes",
        "local: transaction waits for a held lane",
    ];
}

impl<T, X> Machine for Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { body, .. } => match body {},
            Event::Request { tag, request } => {
                self.submit(now, tag, request.origin, request.command, effects);
            }
            Event::Mail { from, mail } => self.on_mail(now, from, mail, effects),
            Event::View(view) => {
                self.begin_log(now, view, effects);
                self.on_view(view);
            }
            Event::Tick => self.sweep(now, effects),
            Event::Durable(lsn) => self.on_durable(now, lsn, effects),
        }
    }

    fn restore(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        self.restore_entry(entry).map_err(log::unreadable)
    }

    fn restored(&mut self) {
        self.on_restored();
    }

    fn save(
        &mut self,
        from: SavePoint,
        bytes: usize,
        write: &mut impl FnMut(&[u8]),
    ) -> Option<SavePoint> {
        self.save_from(from, bytes, write)
    }

    fn next_deadline(&self) -> Instant {
        if self.table.is_empty() { Instant::NEVER } else { self.sweep.due }
    }

    fn check_invariants(&self) {
        assert!(
            self.is_blocked() || self.queue.is_empty(),
            "a lane that nobody holds has no queue"
        );
        self.tracker.check_invariants();
        self.origins.check_invariants();
    }
}

impl<T, X> Local<T, X>
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Takes a transaction; answered by [`Effects::complete`] with the same tag, once.
    pub fn submit<P>(
        &mut self,
        now: Now,
        tag: Tag,
        origin: u64,
        txn: P,
        effects: &mut impl Effects<Self>,
    ) where
        P: Command<Owned = X, Reply = X::Reply>,
    {
        if !self.serves || self.awaits() {
            return effects.complete(tag, Outcome::Refused(Refusal::NotServing));
        }
        let lanes = self.lanes_of(&txn);
        let alone = lanes == Lanes::only(self.config.lane);
        if alone && !self.is_blocked() && self.origins.is_free(origin) {
            let (ran, _) = self.run(now, self.last, lanes, None, &txn, effects);
            return complete(tag, ran, self.gate(), effects);
        }
        if self.ops.len() >= quorate_types::limits::OPS_PENDING_MAX {
            return effects.complete(tag, Outcome::Refused(Refusal::Busy));
        }
        let slot = self.ops.insert(Op { tag, origin, call: None });
        self.line_up(now, origin, slot, lanes, txn.into_owned(), effects);
    }

    /// Begins an op as soon as its origin lets it.
    pub(crate) fn line_up(
        &mut self,
        now: Now,
        origin: u64,
        slot: Slot,
        lanes: Lanes,
        txn: X,
        effects: &mut impl Effects<Self>,
    ) {
        let call = self.ops.get(slot).and_then(|op| op.call);
        let turn = Turn { from: self.config.lane, slot, origin, lanes, last: 0, call, txn };
        // Two transactions of one lane each overtake each other only if they are of different lanes,
        // and then they have no key in common. One over several lanes may share a key with any other.
        let share = if lanes.is_one() { Share::Together } else { Share::Alone };
        match self.origins.begin(origin, share, turn) {
            Some(turn) => self.send(now, turn, effects),
            None => effects.probe("local: op waits for its origin"),
        }
    }

    /// The lanes whose keys a transaction names; this one if it names none, and all for one that reads
    /// ranges: nobody adds a key to a range, or takes one away, while all lanes are held.
    pub(crate) fn lanes_of(&self, txn: &impl Command) -> Lanes {
        if txn.ranges() && !mutant!("local_range_on_one_lane") {
            return Lanes::all(self.config.lanes);
        }
        let mut lanes = Lanes::default();
        txn.visit_keys(&mut |key| lanes.insert(lane_of_key(key, self.config.lanes)));
        if lanes.is_empty() { Lanes::only(self.config.lane) } else { lanes }
    }

    /// Sends a transaction to the first of its lanes.
    fn send(&mut self, now: Now, turn: Turn<X>, effects: &mut impl Effects<Self>) {
        let first = turn.lanes.first();
        if first == self.config.lane {
            self.take_turn(now, turn, effects);
        } else {
            effects.mail(first, Mail::Turn(turn.into()));
        }
    }

    fn on_mail(&mut self, now: Now, from: LaneId, mail: Mail<X>, effects: &mut impl Effects<Self>) {
        match mail {
            Mail::Turn(turn) => self.take_turn(now, *turn, effects),
            Mail::Ran { slot, ran } => self.ended(now, slot, ran, effects),
            Mail::Release { last, origin, entry } => {
                assert!(self.held, "lane {from} releases a lane that is not held");
                if let Some(entry) = entry {
                    self.keep(from, &entry, origin, effects);
                }
                self.held = false;
                self.last = self.last.max(last);
                self.run_queue(now, effects);
            }
            Mail::Kept { at } => self.on_kept(from, at),
            Mail::Restored(entries) => self.on_restored_elsewhere(now, from, entries, effects),
        }
    }

    /// It is this lane's turn in a transaction, or will be once the lane is free.
    fn take_turn(&mut self, now: Now, turn: Turn<X>, effects: &mut impl Effects<Self>) {
        if self.is_blocked() && !mutant!("local_runs_on_a_held_lane") {
            effects.probe("local: transaction waits for a held lane");
            self.queue.push_back(turn);
            return;
        }
        self.pass_turn(now, turn, effects);
    }

    /// Holds the lane and passes the transaction on, or runs it if this is its last lane.
    fn pass_turn(&mut self, now: Now, mut turn: Turn<X>, effects: &mut impl Effects<Self>) {
        turn.last = turn.last.max(self.last);
        if turn.lanes.after(self.config.lane).is_some() {
            effects.probe("local: transaction over several lanes");
            self.held = true;
            return self.pass(turn, effects);
        }
        let Turn { from, slot, origin, lanes, last, call, txn } = turn;
        self.table.set_writer(origin);
        let (ran, entry) = self.run(now, last, lanes, call.as_ref(), &txn, effects);
        self.table.set_writer(0);
        let turn = Turn { from, slot, origin, lanes, last: self.last, call, txn: () };
        self.end_when_durable(now, End { turn, entry, ran }, effects);
    }

    /// Releases the lanes that were held for a transaction that has run here, and tells its own.
    pub(crate) fn end(&mut self, now: Now, end: End<X::Reply>, effects: &mut impl Effects<Self>) {
        let End { turn: Turn { from, slot, origin, lanes, last, .. }, entry, ran } = end;
        for lane in lanes.iter().filter(|lane| *lane != self.config.lane) {
            effects.mail(lane, Mail::Release { last, origin, entry: entry.clone() });
        }
        if from == self.config.lane {
            self.ended(now, slot, ran, effects);
        } else {
            effects.mail(from, Mail::Ran { slot, ran });
        }
    }

    pub(crate) fn run_queue(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        while !self.is_blocked()
            && let Some(turn) = self.queue.pop_front()
        {
            self.pass_turn(now, turn, effects);
        }
    }

    /// A transaction of this lane's clients has run.
    fn ended(
        &mut self,
        now: Now,
        slot: Slot,
        ran: Ran<X::Reply>,
        effects: &mut impl Effects<Self>,
    ) {
        let op = self.ops.remove(slot).expect("a transaction runs once");
        if let Some(permit) = &op.call {
            self.end_call(permit, &ran);
        }
        complete(op.tag, ran, Gate::OPEN, effects);
        for turn in self.origins.end(op.origin) {
            self.send(now, turn, effects);
        }
    }

    /// What is under way ends as it began: the records are the only copy, whatever the view says.
    fn on_view(&mut self, view: &View) {
        let me = view.member(self.config.node);
        let active = me.filter(|me| me.role == Role::Active && me.incarnation == self.life);
        if let Some(me) = active {
            let salt = u8::try_from(self.config.lane.0).expect("a lane fits into a virtual id");
            self.writer = WriterId::new(me.number, salt);
        }
        // Another member would have a copy of its own.
        let alone = view.live().len() == 1 || mutant!("local_serves_beside_others");
        self.serves = active.is_some() && alone;
        self.view = view.clone();
    }
}

/// Answers a transaction that has run.
fn complete<T, X>(tag: Tag, ran: Ran<X::Reply>, gate: Gate, effects: &mut impl Effects<Local<T, X>>)
where
    T: OrderedTable<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    match ran {
        Ran { outcome, at: Timestamp::ZERO } if gate == Gate::OPEN => {
            effects.complete(tag, outcome);
        }
        Ran { outcome, at } => {
            let completion = Completion::new(outcome).behind(gate);
            let at = (at != Timestamp::ZERO).then_some(at);
            effects.complete_on(tag, Completion { at, ..completion });
        }
    }
}
