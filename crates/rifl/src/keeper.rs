//! Who keeps a lease, and until when: one machine for each lane of each node.
//!
//! Three rules of `docs/design/006-sessions.md` are carried out here: attempts are made under a
//! grant of the present owner; a lease is declared over as of a clock above everything granted; and
//! what is granted stays within a term of a moment that the clocks of all live members have passed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use quorate_machine::{Effects, Event, Machine, Protocol, Slab, Slot, mutant};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, LaneId, Member, MemberNumber, NodeId, NodeSet, Now,
    Role, Tag, View, limits,
};

use crate::LeaseId;
use crate::key::{Genuine, Key};
use crate::message::{Body, Denial, Message};
use crate::terms::Terms;

/// Chunks of leases that are looked through in one round of clocks.
const REAPED_AT_ONCE: usize = 1024;

/// Keys that a keeper remembers, those of members that are gone included.
const KEYS_MAX: usize = 256;

/// What a keeper is told at its start.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// This lane.
    pub lane: LaneId,
    /// The secret of this life, the same for all its lanes.
    pub key: Key,
    /// How long a lease lasts without being renewed.
    pub term: Duration,
    /// Most leases that this lane gives out at once.
    pub leases_max: usize,
    /// How often clocks go around while there are leases.
    pub round: Duration,
    /// When a message counts as lost.
    pub message_loss_timeout: Duration,
    /// How long a request may wait.
    pub op_timeout: Duration,
}

impl Config {
    /// The defaults.
    pub const fn new(node: NodeId, incarnation: Incarnation, lane: LaneId) -> Self {
        Self {
            node,
            incarnation,
            lane,
            key: Key([0; 2]),
            term: limits::LEASE_TERM,
            leases_max: limits::LEASES_PER_LANE_MAX,
            round: Duration::from_secs(1),
            message_loss_timeout: Duration::from_millis(20),
            op_timeout: Duration::from_secs(2),
        }
    }
}

/// What a node asks for a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// A new lease of this lane.
    Open,
    /// A full term from now on, for a lease of this lane.
    Renew {
        /// The lease.
        lease: LeaseId,
        /// The expiry that the client was last told: [`Grant::until`].
        told: u64,
        /// A date that the grant should be above: an engine's clock may be ahead.
        above: u64,
    },
    /// The end of a lease of this lane.
    Close {
        /// The lease.
        lease: LeaseId,
    },
}

/// Permission to attempt a session's calls, in one epoch or as long as its owner stays the owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// Attempts dated at or below this may be made. The client keeps it, and shows it to the next
    /// node that it comes to.
    pub until: u64,
    /// Whose permission it is.
    pub owner: MemberNumber,
}

impl Grant {
    /// Whether an attempt dated `at` may be made in this view. If not, a renewal is needed first.
    pub fn covers(&self, view: &View, at: u64) -> bool {
        let is_owner = |owner: &Member| owner.number == self.owner;
        at <= self.until
            && (owner_of(view, self.lease).is_some_and(is_owner)
                || mutant!("rifl_grant_outlives_its_owner"))
    }
}

/// How a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lost {
    /// It was not renewed in time, or never given out.
    Expired,
    /// Its client closed it.
    Closed,
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The lease lives. The client's term counts from when it sent its request.
    Granted(Grant),
    /// It lives no more.
    Lost(Lost),
    /// The lane that would keep the lease keeps as many as it may: of its own, or of members that
    /// are gone.
    Full,
    /// Nobody can tell now: no view, the owner is silent, or a live member is.
    Unready,
}

impl From<Denial> for Answer {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Lost(lost) => Self::Lost(lost),
            Denial::Full => Self::Full,
        }
    }
}

/// A session whose records can go: for [`crate::Tracker::discard`] or [`crate::Tracker::close`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Verdict {
    /// The lease.
    pub lease: LeaseId,
    /// How it ended.
    pub lost: Lost,
    /// No attempt was granted above this date. Means nothing for a closed lease.
    pub granted: u64,
}

/// The member that keeps a lease: the one that gave it out, or the active one with the smallest
/// number. Nobody in a view without active members.
pub fn owner_of(view: &View, lease: LeaseId) -> Option<&Member> {
    let live = view.members.iter().filter(|member| member.role != Role::Down);
    live.clone().find(|member| member.number == lease.member()).or_else(|| {
        live.filter(|member| member.role == Role::Active).min_by_key(|member| member.number)
    })
}

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

enum Judged {
    Alive,
    Lost(Lost),
    /// Not before every live member has told its clock.
    Later,
}

/// Keeps the leases of one lane. See the module's documentation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Keeper {
    config: Config,
    view: View,
    /// The number of this life, once a view has admitted it.
    me: Option<MemberNumber>,
    /// The hybrid clock less the monotonic one.
    ahead: u64,
    /// The latest clock heard of each member; theirs are at or above.
    heard: BTreeMap<MemberNumber, u64>,
    /// The keys of the live members, and of some that are gone, whose sessions may live on.
    keys: BTreeMap<MemberNumber, Key>,
    /// Who has been heard in this epoch.
    heard_now: NodeSet,
    /// A reading that the clocks of all live members have passed.
    bound: u64,
    terms: Terms,
    adopted: BTreeMap<LeaseId, Adopted>,
    /// When members left, as long as it matters.
    left: BTreeMap<MemberNumber, Instant>,
    first_view: Instant,
    /// Since when this is the active member with the smallest number.
    eldest_since: Option<Instant>,
    waiting: Slab<Waiting>,
    round_at: Instant,
    /// When clocks were asked for last.
    asked_at: Option<Instant>,
    verdicts: Vec<Verdict>,
}

impl Protocol for Keeper {
    type Message<'a> = Message;
    type Request<'a> = Request;
    type Outcome = Answer;
    type Mail = core::convert::Infallible;

    const PROBES: &'static [&'static str] = &[
        "rifl: a lease is taken over from a member that is gone",
        "rifl: a grant waits for the clocks of all",
    ];
}

impl Machine for Keeper {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { from, epoch, body } => {
                self.on_message(now, from, epoch, body, effects)
            }
            Event::Request { tag, request } => {
                let since = now.monotonic;
                let slot = self.waiting.insert(Waiting { tag, request, since, resend_at: since });
                self.attend(now, slot, effects);
            }
            Event::View(view) => self.on_view(now, view, effects),
            Event::Tick => self.on_tick(now, effects),
        }
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

impl Keeper {
    /// A lane that knows no view yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            view: View::default(),
            me: None,
            ahead: 0,
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

    /// The hybrid clock: never behind any that it has heard. Those who found the cluster begin it at
    /// their wall clocks.
    pub fn clock(&self, now: Now) -> u64 {
        now.monotonic.0.saturating_add(self.ahead)
    }

    fn observe(&mut self, now: Now, clock: u64) {
        self.ahead = self.ahead.max(clock.saturating_sub(now.monotonic.0));
    }

    /// Leases that this lane has given out and that are neither closed nor known to be over.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.terms.len() == 0
    }

    /// Leases of members that are gone which this lane keeps.
    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }

    /// Whether every live member's clock has been heard in this epoch. A member that is catching up
    /// may be made active only then: it may have to keep the leases of others.
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
    /// A member that is gone may have been heard by nobody who is left. Its sessions live on without
    /// it, so what is shown of them is believed then.
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

    /// Sessions whose records can go, as owners have said since the last call.
    pub fn take_verdicts(&mut self) -> Vec<Verdict> {
        core::mem::take(&mut self.verdicts)
    }

    /// Asks the owners which of these leases are over. What they say comes as verdicts; a loss of
    /// messages means that the next sweep asks again.
    pub fn sweep(&mut self, now: Now, leases: &[LeaseId], effects: &mut impl Effects<Self>) {
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
        effects.send(to, &Message { clock: self.clock(now), body });
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
        // Who joins later hears what time it is: a wall clock that is wrong must not let the leases
        // of all expire whose owner is gone.
        let founds = own.is_some_and(|own| own.role == Role::Active);
        if self.me.is_none() && (founds || mutant!("rifl_joiner_sets_the_clock")) {
            self.observe(now, now.unix.0);
        }
        self.me = own.map(|own| own.number);
        let active = view.members.iter().filter(|member| member.role == Role::Active);
        let eldest = active.min_by_key(|member| member.number).map(|member| member.number);
        let is_eldest = eldest.is_some() && eldest == self.me;
        self.eldest_since = is_eldest.then(|| self.eldest_since.unwrap_or(now.monotonic));
        self.heard_now = NodeSet::only(self.config.node);
        if self.me.is_some() {
            self.ask_clocks(now, effects);
        }
        self.attend_all(now, true, effects);
    }

    fn ask_clocks(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.raise_bound(now);
        self.asked_at = Some(now.monotonic);
        let clock = self.clock(now);
        let body = Body::Clock { asks: true, key: self.config.key };
        effects.broadcast(self.others(), &Message { clock, body });
        let hurry = !self.is_synced()
            || !self.knows_keys()
            || (!self.waiting.is_empty() && !self.is_fresh(now));
        let pause = if hurry { self.config.message_loss_timeout } else { self.config.round };
        self.round_at = now.monotonic + pause;
    }

    /// Somebody waits for clocks: asks for them, unless that was done a moment ago.
    fn hurry(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let pause = self.config.message_loss_timeout / 4;
        if self.me.is_some() && self.asked_at.is_none_or(|asked| now.monotonic >= asked + pause) {
            effects.probe("rifl: a grant waits for the clocks of all");
            self.ask_clocks(now, effects);
        }
    }

    /// Whether clocks have to go around: there are leases, or somebody waits for clocks.
    fn needs_clocks(&self) -> bool {
        let keeps = !self.terms.is_empty() || !self.adopted.is_empty() || !self.waiting.is_empty();
        self.me.is_some() && (keeps || !self.is_synced() || !self.knows_keys())
    }

    fn raise_bound(&mut self, now: Now) {
        let live = self.view.members.iter().filter(|member| member.role != Role::Down);
        let heard = live
            .filter(|member| Some(member.number) != self.me)
            .map(|member| self.heard.get(&member.number).copied().unwrap_or_default());
        let clock = self.clock(now);
        let least = heard.fold(clock, u64::min);
        self.bound = self.bound.max(if mutant!("rifl_bound_unheard") { clock } else { least });
    }

    /// Whether what can be granted now is nearly a full term.
    fn is_fresh(&self, now: Now) -> bool {
        let lag = self.clock(now).saturating_sub(self.bound);
        lag <= (self.config.term / 16).as_nanos() as u64
    }

    fn on_tick(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        if self.needs_clocks() && now.monotonic >= self.round_at {
            self.ask_clocks(now, effects);
            self.terms.reap(now.monotonic, REAPED_AT_ONCE);
            self.adopted.retain(|_, adopted| now.monotonic < adopted.until);
        }
        self.attend_all(now, false, effects);
    }

    // --- requests --------------------------------------------------------------------------------

    fn attend_all(&mut self, now: Now, at_once: bool, effects: &mut impl Effects<Self>) {
        let due = |waiting: &Waiting| at_once || waiting.resend_at <= now.monotonic;
        let slots = self.waiting.iter().filter(|(_, waiting)| due(waiting)).map(|(slot, _)| slot);
        for slot in slots.collect::<Vec<Slot>>() {
            self.attend(now, slot, effects);
        }
    }

    /// Answers a request, or asks the owner (again).
    fn attend(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let Some(waiting) = self.waiting.get_mut(slot) else { return };
        waiting.resend_at = now.monotonic + self.config.message_loss_timeout;
        if now.monotonic >= waiting.since + self.config.op_timeout {
            return self.answer(slot, Answer::Unready, effects);
        }
        let request = waiting.request;
        let answer = match request {
            Request::Open => self.open(now),
            Request::Renew { lease, told, above } => {
                self.observe(now, above);
                self.renew_at_owner(now, slot, lease, told, effects)
            }
            Request::Close { lease } => self.close_at_owner(now, slot, lease, effects),
        };
        match answer {
            Some(answer) => self.answer(slot, answer, effects),
            None if self.answers(&request) => self.hurry(now, effects),
            None => {}
        }
    }

    /// Whether it is this node that has to say yes or no to a request.
    fn answers(&self, request: &Request) -> bool {
        match request {
            Request::Open => true,
            Request::Renew { lease, .. } | Request::Close { lease } => {
                owner_of(&self.view, *lease).is_some_and(|owner| owner.node == self.config.node)
            }
        }
    }

    fn answer(&mut self, slot: Slot, answer: Answer, effects: &mut impl Effects<Self>) {
        if let Some(waiting) = self.waiting.remove(slot) {
            effects.complete(waiting.tag, answer);
        }
    }

    fn open(&mut self, now: Now) -> Option<Answer> {
        let me = self.me?;
        if !self.view.active().contains(self.config.node) {
            return None;
        }
        self.raise_bound(now);
        if !self.is_fresh(now) {
            return None;
        }
        if self.terms.len() >= self.config.leases_max {
            return Some(Answer::Full);
        }
        let counter = self.terms.open(now.monotonic, now.monotonic + self.config.term);
        let lease = LeaseId::new(me, self.config.lane, counter);
        Some(Answer::Granted(Grant { lease, until: self.limit(), owner: me }))
    }

    /// The latest date that may be granted now.
    fn limit(&self) -> u64 {
        self.bound.saturating_add(self.config.term.as_nanos() as u64)
    }

    fn renew_at_owner(
        &mut self,
        now: Now,
        slot: Slot,
        lease: LeaseId,
        told: u64,
        effects: &mut impl Effects<Self>,
    ) -> Option<Answer> {
        let owner = owner_of(&self.view, lease)?;
        let (node, number) = (owner.node, owner.number);
        if node != self.config.node {
            self.send(now, node, Body::Ask { cookie: slot.to_u64(), lease, told }, effects);
            return None;
        }
        Some(match self.renew(now, lease, told, effects)? {
            Ok(until) => Answer::Granted(Grant { lease, until, owner: number }),
            Err(denial) => denial.into(),
        })
    }

    fn close_at_owner(
        &mut self,
        now: Now,
        slot: Slot,
        lease: LeaseId,
        effects: &mut impl Effects<Self>,
    ) -> Option<Answer> {
        let owner = owner_of(&self.view, lease)?.node;
        if owner != self.config.node {
            self.send(now, owner, Body::Close { cookie: slot.to_u64(), lease }, effects);
            return None;
        }
        self.close(now, lease, effects).map(Answer::from)
    }

    // --- the owner -------------------------------------------------------------------------------

    /// Since when this node answers for the leases of a member that is gone.
    fn inherited_since(&self, member: MemberNumber) -> Instant {
        let left = self.left.get(&member).copied().unwrap_or(self.first_view);
        left.max(self.eldest_since.unwrap_or(Instant::NEVER))
    }

    fn judge(&self, now: Now, lease: LeaseId, told: u64) -> Judged {
        if Some(lease.member()) == self.me {
            let lost = self.terms.lost(lease.counter(), now.monotonic);
            return lost.map_or(Judged::Alive, Judged::Lost);
        }
        if !self.is_synced() {
            return Judged::Later;
        }
        match self.adopted.get(&lease) {
            Some(adopted) if now.monotonic >= adopted.until => Judged::Lost(Lost::Expired),
            Some(adopted) if adopted.closed => Judged::Lost(Lost::Closed),
            Some(_) => Judged::Alive,
            None => {
                // Nobody knows what the predecessor has declared over but by the clock.
                let over = now.monotonic >= self.inherited_since(lease.member()) + self.config.term;
                let may_be_over = told <= self.clock(now) && !mutant!("rifl_successor_extends_all");
                if over || may_be_over { Judged::Lost(Lost::Expired) } else { Judged::Alive }
            }
        }
    }

    /// Most leases of members that are gone which this lane keeps: as many as all members may have
    /// given out. Which of them were, nobody knows any more.
    fn adopted_max(&self) -> usize {
        self.config.leases_max.saturating_mul(self.view.members.len())
    }

    /// Whether this lane may keep a lease of a member that is gone.
    fn may_adopt(&self, lease: LeaseId) -> bool {
        self.adopted.contains_key(&lease)
            || self.adopted.len() < self.adopted_max()
            || mutant!("rifl_adopts_without_limit")
    }

    /// Whether a lease can have been given out at all: numbers of members are given in order.
    fn is_of_a_member(&self, lease: LeaseId) -> bool {
        (MemberNumber(1)..=self.view.last_number).contains(&lease.member())
    }

    /// Grants a full term, if the lease lives. Nothing if that can't be said now.
    fn renew(
        &mut self,
        now: Now,
        lease: LeaseId,
        told: u64,
        effects: &mut impl Effects<Self>,
    ) -> Option<Result<u64, Denial>> {
        if !self.is_of_a_member(lease) {
            return Some(Err(Denial::Lost(Lost::Expired)));
        }
        match self.judge(now, lease, told) {
            Judged::Later => return None,
            Judged::Lost(lost) => return Some(Err(Denial::Lost(lost))),
            Judged::Alive => {}
        }
        let own = Some(lease.member()) == self.me;
        if !own && !self.may_adopt(lease) {
            return Some(Err(Denial::Full));
        }
        self.raise_bound(now);
        if !self.is_fresh(now) {
            return None;
        }
        let until = now.monotonic + self.config.term;
        if own {
            self.terms.renew(lease.counter(), until);
        } else {
            effects.probe("rifl: a lease is taken over from a member that is gone");
            self.adopted.insert(lease, Adopted { until, closed: false });
        }
        Some(Ok(self.limit()))
    }

    /// Ends a lease, and tells everybody.
    fn close(
        &mut self,
        now: Now,
        lease: LeaseId,
        effects: &mut impl Effects<Self>,
    ) -> Option<Denial> {
        match self.judge(now, lease, u64::MAX) {
            Judged::Later => return None,
            Judged::Lost(lost) => return Some(Denial::Lost(lost)),
            Judged::Alive => {}
        }
        if Some(lease.member()) == self.me {
            self.terms.close(lease.counter());
        } else if !self.may_adopt(lease) {
            return Some(Denial::Full);
        } else {
            let until = now.monotonic + self.config.term;
            self.adopted.insert(lease, Adopted { until, closed: true });
        }
        let leases = [(lease, Lost::Closed)];
        self.note(self.clock(now), &leases);
        let body = Body::Gone { leases: leases.into() };
        effects.broadcast(self.others(), &Message { clock: self.clock(now), body });
        Some(Denial::Lost(Lost::Closed))
    }

    /// Which of these leases, that this node keeps, are over.
    fn over(&self, now: Now, leases: &[LeaseId]) -> Vec<(LeaseId, Lost)> {
        let lost = |lease: &LeaseId| match self.judge(now, *lease, u64::MAX) {
            Judged::Lost(lost) => Some((*lease, lost)),
            Judged::Alive | Judged::Later => None,
        };
        leases.iter().filter_map(lost).collect()
    }

    fn note(&mut self, granted: u64, over: &[(LeaseId, Lost)]) {
        let verdict =
            |(lease, lost): &(LeaseId, Lost)| Verdict { lease: *lease, lost: *lost, granted };
        self.verdicts.extend(over.iter().map(verdict));
    }

    // --- messages --------------------------------------------------------------------------------

    /// Every legal reason to drop a message. In one epoch everybody agrees on who owns a lease.
    fn ignore_message(&self, from: NodeId, epoch: Epoch, body: &Body) -> Option<&'static str> {
        let is_owner = |lease: &LeaseId, node| {
            owner_of(&self.view, *lease).is_some_and(|owner| owner.node == node)
        };
        let me = self.config.node;
        match body {
            _ if epoch != self.view.epoch => Some("rifl: message of another epoch"),
            _ if self.me.is_none() || !self.view.live().contains(from) => {
                Some("rifl: message of no live member")
            }
            Body::Clock { .. } => None,
            Body::Ask { lease, .. } | Body::Close { lease, .. } if !is_owner(lease, me) => {
                Some("rifl: question about a lease that is not kept here")
            }
            Body::Sweep { leases } if !leases.iter().all(|lease| is_owner(lease, me)) => {
                Some("rifl: question about a lease that is not kept here")
            }
            Body::Grant { lease, .. } | Body::Refuse { lease, .. } if !is_owner(lease, from) => {
                Some("rifl: answer of somebody who does not keep the lease")
            }
            Body::Gone { leases } if !leases.iter().all(|(lease, _)| is_owner(lease, from)) => {
                Some("rifl: answer of somebody who does not keep the lease")
            }
            _ => None,
        }
    }

    fn on_message(
        &mut self,
        now: Now,
        from: NodeId,
        epoch: Epoch,
        message: Message,
        effects: &mut impl Effects<Self>,
    ) {
        if let Some(reason) = self.ignore_message(from, epoch, &message.body) {
            return effects.ignored(reason);
        }
        self.observe(now, message.clock);
        if let Some(number) = self.view.member(from).map(|member| member.number) {
            let heard = self.heard.entry(number).or_default();
            *heard = message.clock.max(*heard);
        }
        self.heard_now.insert(from);
        match message.body {
            Body::Clock { asks, key } => {
                if let Some(number) = self.view.member(from).map(|member| member.number) {
                    self.keys.insert(number, key);
                }
                if asks {
                    let key = self.config.key;
                    self.send(now, from, Body::Clock { asks: false, key }, effects);
                }
                let own = self.waiting.iter().filter(|(_, waiting)| self.answers(&waiting.request));
                for slot in own.map(|(slot, _)| slot).collect::<Vec<Slot>>() {
                    self.attend(now, slot, effects);
                }
            }
            Body::Ask { cookie, lease, told } => match self.renew(now, lease, told, effects) {
                Some(Ok(until)) => {
                    self.send(now, from, Body::Grant { cookie, lease, until }, effects)
                }
                Some(Err(reason)) => {
                    self.send(now, from, Body::Refuse { cookie, lease, reason }, effects);
                }
                // It asks again; by then clocks have gone around.
                None => self.hurry(now, effects),
            },
            Body::Close { cookie, lease } => {
                if let Some(reason) = self.close(now, lease, effects) {
                    self.send(now, from, Body::Refuse { cookie, lease, reason }, effects);
                }
            }
            Body::Grant { cookie, lease, until } => {
                let owner = self.view.member(from).map(|member| member.number).unwrap_or_default();
                let granted = Answer::Granted(Grant { lease, until, owner });
                self.on_answer(cookie, lease, granted, effects);
            }
            Body::Refuse { cookie, lease, reason } => {
                self.on_answer(cookie, lease, reason.into(), effects);
            }
            Body::Sweep { leases } => {
                let leases = self.over(now, &leases);
                if !leases.is_empty() {
                    self.send(now, from, Body::Gone { leases }, effects);
                }
            }
            Body::Gone { leases } => self.note(message.clock, &leases),
        }
    }

    fn on_answer(
        &mut self,
        cookie: u64,
        lease: LeaseId,
        answer: Answer,
        effects: &mut impl Effects<Self>,
    ) {
        let slot = Slot::from_u64(cookie);
        let asked = |waiting: &Waiting| match waiting.request {
            Request::Open => false,
            Request::Close { lease: asked } => {
                asked == lease && matches!(answer, Answer::Lost(_) | Answer::Full)
            }
            Request::Renew { lease: asked, .. } => asked == lease,
        };
        if self.waiting.get(slot).is_some_and(asked) {
            self.answer(slot, answer, effects);
        } else {
            effects.ignored("rifl: answer to a question that is settled");
        }
    }
}
