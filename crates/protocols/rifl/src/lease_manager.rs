//! The owner of a lease, and the lease's end: one machine for each lane of each node.
//!
//! This machine implements three rules of `docs/design/006-sessions.md`: attempts are made under a
//! grant of the present owner; a lease is declared ended as of a clock above everything granted;
//! and a grant stays within a term of a moment that the clocks of all live members have passed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{
    Effects, Event, HybridClock, Machine, Protocol, SavePoint, Slab, Unreadable, mutant,
};
use quorate_types::{Instant, Member, MemberNumber, NodeId, NodeSet, Now, Role, Tag, View};

use crate::LeaseId;
use crate::grant::{Answer, Config, LeaseEnd, Request, owner_of};
use crate::key::{Genuine, Key};
use crate::message::{Body, Message};
use crate::terms::Terms;
use kept_clock::KeptClock;

mod kept_clock;
mod messages;
mod owner;
mod requests;

/// Chunks of leases that are reaped in one round of clocks.
const REAPED_AT_ONCE: usize = 1024;

/// Keys that a lease manager remembers, those of members that are gone included.
const KEYS_MAX: usize = 256;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    tag: Tag,
    request: Request,
    since: Instant,
    resend_at: Instant,
}

/// A lease of a member that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Adopted {
    until: Instant,
    closed: bool,
}

/// Keeps the leases of one lane. See the module's documentation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseManager {
    config: Config,
    view: View,
    /// The number of this life, once a view has admitted it.
    me: Option<MemberNumber>,
    clock: HybridClock,
    /// How far the clock has been kept for the next process.
    kept: KeptClock,
    /// Where the clock began, if it began at a wall clock.
    begun: u64,
    /// The latest clock heard of each member; its clock is at or above.
    heard: BTreeMap<MemberNumber, u64>,
    /// The keys of the live members, and of some that are gone, whose sessions may live on.
    keys: BTreeMap<MemberNumber, Key>,
    /// The members that have been heard in this epoch.
    heard_now: NodeSet,
    /// A reading that the clocks of all live members have passed.
    bound: u64,
    terms: Terms,
    adopted: BTreeMap<LeaseId, Adopted>,
    /// The time when each member left, as long as it matters.
    left: BTreeMap<MemberNumber, Instant>,
    first_view: Instant,
    /// The time since when this is the active member with the smallest number.
    eldest_since: Option<Instant>,
    waiting: Slab<Waiting>,
    round_at: Instant,
    /// The time of the last request for clocks.
    asked_at: Option<Instant>,
    verdicts: Vec<LeaseEnd>,
}

impl Protocol for LeaseManager {
    type Message<'a> = Message;
    type Request<'a> = Request;
    type Outcome = Answer;
    type Mail = core::convert::Infallible;

    const PROBES: &'static [&'static str] = &[
        "rifl: a lease is taken over from a member that is gone",
        "rifl: a grant waits for the clocks of all",
    ];
}

impl Machine for LeaseManager {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { from, epoch, body } => {
                self.on_message(now, from, epoch, body, effects)
            }
            Event::Request { tag, request } => {
                self.keep_clock(now, effects);
                let since = now.monotonic;
                let slot = self.waiting.insert(Waiting { tag, request, since, resend_at: since });
                self.serve(now, slot, effects);
            }
            Event::View(view) => self.on_view(now, view, effects),
            Event::Tick => self.on_tick(now, effects),
            Event::Durable(lsn) => {
                if self.kept.note_durable(lsn) {
                    self.serve_all(now, true, effects);
                }
            }
        }
    }

    fn restore(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        self.kept.restore(entry)
    }

    fn save(&mut self, _: SavePoint, _: usize, write: &mut impl FnMut(&[u8])) -> Option<SavePoint> {
        self.kept.save(write);
        None
    }

    fn next_deadline(&self) -> Instant {
        let waiting = self.waiting.iter().map(|(_, waiting)| waiting.resend_at);
        let round = if self.needs_clocks() { self.round_at } else { Instant::NEVER };
        waiting.min().unwrap_or(Instant::NEVER).min(round)
    }

    fn check_invariants(&self) {
        for lease in self.adopted.keys() {
            assert_ne!(
                Some(lease.member()),
                self.me,
                "{lease:?} is an own lease, not an adopted one"
            );
        }
        assert!(self.terms.len() <= self.config.leases_max, "more leases than there may be");
    }
}

impl LeaseManager {
    /// A lane that knows no view yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            view: View::default(),
            me: None,
            clock: HybridClock::default(),
            kept: KeptClock::default(),
            begun: 0,
            heard: BTreeMap::new(),
            keys: BTreeMap::new(),
            heard_now: NodeSet::EMPTY,
            bound: 0,
            terms: Terms::default(),
            adopted: BTreeMap::new(),
            left: BTreeMap::new(),
            first_view: Instant::NEVER,
            eldest_since: None,
            waiting: Slab::default(),
            round_at: Instant::ZERO,
            asked_at: None,
            verdicts: Vec::new(),
        }
    }

    /// The hybrid clock: never behind any clock that it has heard. The eldest of those that found the
    /// cluster, or come back to it all at once, begins it at its wall clock.
    pub fn clock(&self, now: Now) -> u64 {
        self.clock.read(now.monotonic)
    }

    fn observe(&mut self, now: Now, clock: u64) {
        self.clock.reach(now.monotonic, clock);
    }

    /// Leases that this lane has given out and that are neither closed nor known to have ended.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.terms.len() == 0
    }

    /// Leases of members that are gone which this lane keeps.
    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }

    /// Whether every live member's clock has been heard in this epoch. Only then may a member that
    /// is catching up become active: it may have to keep the leases of others.
    pub fn is_synced(&self) -> bool {
        self.me.is_some()
            && (self.view.live().is_subset(self.heard_now) || mutant!("rifl_successor_deaf"))
    }

    /// The token that a client shows with the id of a session of this node.
    pub fn token(&self, lease: LeaseId) -> u64 {
        self.config.key.token(lease)
    }

    /// Whether a client that shows this token was told the id of the session.
    ///
    /// Perhaps none of the remaining members has heard a member that is gone. Its sessions live on
    /// without it, so their tokens are believed then.
    pub fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine {
        let member = lease.member();
        let key =
            if Some(member) == self.me { Some(&self.config.key) } else { self.keys.get(&member) };
        match key {
            Some(key) if key.token(lease) == token || mutant!("rifl_token_unchecked") => {
                Genuine::Yes
            }
            Some(_) => Genuine::No,
            None if self.me.is_none() || self.is_live(member) => Genuine::Unready,
            None => Genuine::Yes,
        }
    }

    fn is_live(&self, number: MemberNumber) -> bool {
        let is = |member: &Member| member.number == number && member.role != Role::Down;
        self.view.members.iter().any(is)
    }

    /// Whether the keys of all live members are known.
    fn knows_keys(&self) -> bool {
        let live = self.view.members.iter().filter(|member| member.role != Role::Down);
        live.map(|member| member.number)
            .all(|number| Some(number) == self.me || self.keys.contains_key(&number))
    }

    /// Sessions whose records can go, by the word of owners since the last call.
    pub fn take_verdicts(&mut self) -> Vec<LeaseEnd> {
        core::mem::take(&mut self.verdicts)
    }

    /// Asks the owners which of these leases have ended. Their answers come as verdicts; after a
    /// loss of messages the next sweep asks again.
    pub fn sweep(&mut self, now: Now, leases: &[LeaseId], effects: &mut impl Effects<Self>) {
        self.keep_clock(now, effects);
        let mut by_owner: BTreeMap<NodeId, Vec<LeaseId>> = BTreeMap::new();
        for lease in leases {
            if let Some(owner) = owner_of(&self.view, *lease) {
                by_owner.entry(owner.node).or_default().push(*lease);
            }
        }
        for (owner, leases) in by_owner {
            if owner == self.config.node {
                let over = self.over(now, &leases);
                self.note(self.clock(now), &over);
            } else {
                self.send(now, owner, Body::Sweep { leases }, effects);
            }
        }
    }

    fn send(&self, now: Now, to: NodeId, body: Body, effects: &mut impl Effects<Self>) {
        effects.send(to, &Message { clock: self.shown_clock(now), body });
    }

    fn others(&self) -> NodeSet {
        self.view.live().without(self.config.node)
    }

    // --- views and clocks ------------------------------------------------------------------------

    fn on_view(&mut self, now: Now, view: &View, effects: &mut impl Effects<Self>) {
        let was_live = |view: &View, number| {
            view.members.iter().any(|member| member.number == number && member.role != Role::Down)
        };
        for member in &self.view.members {
            if was_live(&self.view, member.number) && !was_live(view, member.number) {
                self.left.insert(member.number, now.monotonic);
                self.heard.remove(&member.number);
            }
        }
        let term = self.config.term;
        self.left.retain(|_, left| *left + term > now.monotonic);
        self.first_view = self.first_view.min(now.monotonic);
        self.view = view.clone();
        while self.keys.len() > KEYS_MAX
            && let Some(gone) = self.keys.keys().copied().find(|number| !was_live(view, *number))
        {
            self.keys.remove(&gone);
        }
        let own = view
            .member(self.config.node)
            .filter(|own| own.incarnation == self.config.incarnation && own.role != Role::Down);
        let active = view.members.iter().filter(|member| member.role == Role::Active);
        let eldest = active.min_by_key(|member| member.number).map(|member| member.number);
        let is_eldest = eldest.is_some() && eldest == own.map(|own| own.number);
        // A member that has lived longer has a smaller number. So a node that joins hears the time from others, and
        // so does one that comes back as an active member while others live: its wrong wall clock must not end all
        // leases whose owner is gone.
        let is_active = own.is_some_and(|own| own.role == Role::Active);
        let founds = is_eldest || is_active && mutant!("rifl_all_that_come_back_set_the_clock");
        if self.me.is_none() && is_active {
            self.observe(now, self.kept.until());
        }
        if self.me.is_none() && (founds || mutant!("rifl_joiner_sets_the_clock")) {
            self.observe(now, now.unix.0);
            self.begun = self.clock(now);
        }
        self.me = own.map(|own| own.number);
        self.eldest_since = is_eldest.then(|| self.eldest_since.unwrap_or(now.monotonic));
        self.heard_now = NodeSet::only(self.config.node);
        if self.me.is_some() {
            self.keep_clock(now, effects);
            self.ask_clocks(now, effects);
        }
        self.serve_all(now, true, effects);
    }

    fn ask_clocks(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.raise_bound(now);
        self.asked_at = Some(now.monotonic);
        let clock = self.shown_clock(now);
        let body = Body::Clock { asks: true, key: self.config.key };
        effects.broadcast(self.others(), &Message { clock, body });
        let hurry = !self.is_synced()
            || !self.knows_keys()
            || (!self.waiting.is_empty() && !self.is_fresh(now));
        let pause = if hurry { self.config.message_loss_timeout } else { self.config.round };
        self.round_at = now.monotonic + pause;
    }

    /// A request waits for clocks: asks for them, unless that was done a moment ago.
    fn request_clocks(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let pause = self.config.message_loss_timeout / 4;
        if self.me.is_some() && self.asked_at.is_none_or(|asked| now.monotonic >= asked + pause) {
            effects.probe("rifl: a grant waits for the clocks of all");
            self.ask_clocks(now, effects);
        }
    }

    /// Whether lease managers have to exchange clocks: there are leases, or a request waits for
    /// clocks.
    fn needs_clocks(&self) -> bool {
        let keeps = !self.terms.is_empty() || !self.adopted.is_empty() || !self.waiting.is_empty();
        self.me.is_some() && (keeps || !self.is_synced() || !self.knows_keys())
    }

    fn raise_bound(&mut self, now: Now) {
        let live = self.view.members.iter().filter(|member| member.role != Role::Down);
        let heard = live
            .filter(|member| Some(member.number) != self.me)
            .map(|member| self.heard.get(&member.number).copied().unwrap_or_default());
        let clock = self.shown_clock(now);
        let least = heard.fold(clock, u64::min);
        self.bound = self.bound.max(if mutant!("rifl_bound_unheard") { clock } else { least });
    }

    /// Whether the longest grant possible now is nearly a full term.
    fn is_fresh(&self, now: Now) -> bool {
        // A lane that has heard nobody does not know what time it is: its clock may show the time since its
        // machine began.
        let knows_time = self.bound > 0 || mutant!("rifl_grant_before_the_time_is_known");
        let lag = self.clock(now).saturating_sub(self.bound);
        knows_time && lag <= (self.config.term / 16).as_nanos() as u64
    }

    fn on_tick(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.needs_clocks() && now.monotonic >= self.round_at {
            self.keep_clock(now, effects);
            self.ask_clocks(now, effects);
            self.terms.reap(now.monotonic, REAPED_AT_ONCE);
            self.adopted.retain(|_, adopted| now.monotonic < adopted.until);
        }
        self.serve_all(now, false, effects);
    }
}
