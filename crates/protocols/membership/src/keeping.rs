//! The node's state on its disk: when it has changed, and what waits until it is durable.
//!
//! What others may rely on leaves after it is on the disk (design note 013). So a view is in force at a
//! node only when the node's disk says so, and what a voter answers leaves behind the state that the
//! answer rests on. The machine itself goes on at once: its driver asks for the state after each step
//! ([`Membership::take_unsaved`]), writes it, and says which one is durable (`Event::Durable`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{Effects, mutant};
use quorate_paxos::{Ballot, SlotNumber, Voter};
use quorate_types::{Epoch, Incarnation, NodeId, Now, Tag, View};

use crate::message::Body;
use crate::state::{self, LIVES_MAX};
use crate::{Config, Membership, MembershipError, Message, StateError, Store};

/// Most messages that wait for the disk. Beyond it a message is lost, which the protocol bears: it says
/// everything again.
const HELD_MAX: usize = 256;

/// What a saved state says, in few words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mark {
    voter: Voter,
    /// This life.
    me: Incarnation,
    cluster: Incarnation,
    epoch: Epoch,
    acceptor: (Ballot, SlotNumber, Ballot),
    left: Incarnation,
}

/// What a message or an answer rests on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Rests {
    /// The view of its sender, or this life's name before there is one.
    View,
    /// All that the sender has promised.
    Everything,
}

/// Something that waits for the disk.
#[derive(Clone, PartialEq, Hash, Debug)]
enum Held {
    Message(NodeId, Message),
    Answer(Tag, Result<Epoch, MembershipError>),
}

/// States are numbered as they are handed to the driver, from 1.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Keeper {
    mark: Option<Mark>,
    /// The newest state that the driver has.
    handed: u64,
    /// Whether there is a newer one.
    is_dirty: bool,
    /// The newest durable one.
    saved: u64,
    /// The first one that has the installed view.
    view_in: u64,
    /// The view in force: of those this node is live in, the newest that is durable here.
    shown: Arc<View>,
    /// Said in this step.
    fresh: Vec<(Rests, Held)>,
    /// By the number of the state that each waits for.
    held: Vec<(u64, Held)>,
}

impl Keeper {
    fn new() -> Self {
        Self {
            mark: None,
            handed: 0,
            is_dirty: false,
            saved: 0,
            view_in: 0,
            shown: Arc::default(),
            fresh: Vec::new(),
            held: Vec::new(),
        }
    }

    pub(crate) fn shown(&self) -> &Arc<View> {
        &self.shown
    }

    /// Takes a message instead of sending it.
    pub(crate) fn hold_message(&mut self, to: NodeId, message: Message) {
        let rests = match message.body {
            Body::Log(_) | Body::Founded { .. } => Rests::Everything,
            _ => Rests::View,
        };
        self.fresh.push((rests, Held::Message(to, message)));
    }

    /// Takes an answer instead of giving it.
    pub(crate) fn hold_answer(&mut self, tag: Tag, answer: Result<Epoch, MembershipError>) {
        self.fresh.push((Rests::Everything, Held::Answer(tag, answer)));
    }

    /// A later life of the node says nothing that the former one has not said yet.
    pub(crate) fn into_next_life(mut self) -> Self {
        let is_answer = |held: &Held| matches!(held, Held::Answer(..));
        self.fresh.retain(|(_, held)| is_answer(held));
        self.held.retain(|(_, held)| is_answer(held));
        self.shown = Arc::default();
        self
    }

    /// The number of the newest state, which the driver may not have yet.
    fn newest(&self) -> u64 {
        self.handed + u64::from(self.is_dirty)
    }

    /// Notes a state.
    fn note(&mut self, mark: Mark) {
        if self.mark == Some(mark) {
            return;
        }
        let has_view = |before: &Mark| {
            (before.cluster, before.epoch, before.me) == (mark.cluster, mark.epoch, mark.me)
        };
        let is_same_view = self.mark.as_ref().is_some_and(has_view);
        self.mark = Some(mark);
        self.is_dirty = true;
        if !is_same_view {
            self.view_in = self.newest();
        }
    }

    /// What may leave now, in order.
    fn release(&mut self) -> Vec<Held> {
        let newest = self.newest();
        for (rests, held) in core::mem::take(&mut self.fresh) {
            let number = match rests {
                Rests::View => self.view_in,
                Rests::Everything => newest,
            };
            let messages = self.held.iter().filter(|(_, held)| matches!(held, Held::Message(..)));
            let is_full = number > self.saved
                && matches!(held, Held::Message(..))
                && messages.count() >= HELD_MAX;
            if !is_full {
                self.held.push((number, held));
            }
        }
        let saved =
            if mutant!("membership_promise_before_durable") { u64::MAX } else { self.saved };
        let is_free = |(number, _): &(u64, Held)| *number <= saved;
        let (free, wait): (Vec<_>, Vec<_>) = self.held.drain(..).partition(is_free);
        self.held = wait;
        free.into_iter().map(|(_, held)| held).collect()
    }
}

impl Membership {
    /// A node that starts with a disk. `state` is what an earlier process of this node saved last, if any;
    /// `store` says what its stores have got back. Nothing is said to others before the first state is
    /// durable.
    ///
    /// # Errors
    /// If the state is of another node or version, or damaged.
    pub fn with_disk(
        config: Config,
        now: Now,
        state: Option<&[u8]>,
        store: Store,
    ) -> Result<Self, StateError> {
        let mut machine = Self::new(config, now);
        machine.keeper = Some(Keeper::new());
        if let Some(bytes) = state {
            machine.restore(state::read(machine.me.node, bytes)?, store)?;
        }
        machine.note_state();
        Ok(machine)
    }

    /// Goes on as the voter of a saved state, under a fresh life that asks to join.
    fn restore(&mut self, saved: state::Saved<'_>, store: Store) -> Result<(), StateError> {
        self.lives = saved.lives;
        (self.store, self.left) = (store, saved.left);
        let Some(vote) = saved.vote else { return Ok(()) };
        // What an earlier process has begun anew looks whole, and has nothing.
        self.store = store.min(vote.store);
        self.voter = Voter { node: self.me.node, incarnation: vote.incarnation };
        let mut log = self.log_of(&vote.view);
        state::read_acceptor(vote.acceptor, &vote.view, &mut log)?;
        (self.view, self.log) = (vote.view, Some(log));
        // Nobody knows what leases its former life has promised, nor what it knew last.
        if !mutant!("membership_promises_forgotten") {
            self.promises.voters_changed(self.now + self.config.promise());
        }
        Ok(())
    }

    /// The lives of this node that others may have admitted without its knowledge: this one, and those
    /// before it that came to no view.
    fn candidates(&self) -> Vec<Incarnation> {
        let own = (self.me != self.voter || self.log.is_none()).then_some(self.me.incarnation);
        let lives: Vec<Incarnation> = self.lives.iter().copied().chain(own).collect();
        lives[lives.len().saturating_sub(LIVES_MAX)..].to_vec()
    }

    /// The state that has to become durable, with its number, if the driver does not have it yet. States
    /// become durable in the order of their numbers, 1 first; the driver says so by `Event::Durable` with
    /// the number of the newest. Nothing without a disk.
    pub fn take_unsaved(&mut self) -> Option<(u64, Vec<u8>)> {
        let keeper = self.keeper.as_mut().filter(|keeper| keeper.is_dirty)?;
        (keeper.handed, keeper.is_dirty) = (keeper.handed + 1, false);
        let number = keeper.handed;
        let vote = self.log.as_ref().map(|log| (self.voter, self.store, &*self.view, log));
        let mut bytes = Vec::new();
        state::write(self.me.node, self.left, &self.candidates(), vote, &mut bytes);
        Some((number, bytes))
    }

    /// The states up to this number are durable.
    pub(crate) fn on_saved(&mut self, number: u64) {
        if let Some(keeper) = &mut self.keeper {
            assert!(number <= keeper.handed, "a state is durable that the driver never had");
            keeper.saved = keeper.saved.max(number);
        }
    }

    /// Notes at the end of a step whether there is something to save.
    pub(crate) fn note_state(&mut self) {
        let mark = Mark {
            voter: self.voter,
            me: self.me.incarnation,
            cluster: self.view.cluster,
            epoch: if self.log.is_some() { self.view.epoch } else { Epoch(0) },
            left: self.left,
            acceptor: self.log.as_ref().map(|log| log.acceptor_mark()).unwrap_or_default(),
        };
        if let Some(keeper) = &mut self.keeper {
            keeper.note(mark);
        }
    }

    /// Lets go what is durable, at the end of a step.
    pub(crate) fn release(&mut self, effects: &mut impl Effects<Self>) {
        self.note_state();
        let is_live = self.is_live();
        let Some(keeper) = &mut self.keeper else { return };
        if is_live && (keeper.view_in <= keeper.saved || mutant!("membership_view_before_durable"))
        {
            keeper.shown = self.view.clone();
        }
        for held in keeper.release() {
            match held {
                Held::Message(to, message) => effects.send(to, &message),
                Held::Answer(tag, answer) => effects.complete(tag, answer),
            }
        }
    }
}
