//! The machine: its state, its events and leases.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use quorate_machine::{Effects, Event, Machine, Protocol, Rng, mutant};
use quorate_paxos::{Log, Outbox, SlotNumber, Stream, Voter};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, Member, NodeId, NodeSet, Now, Role, Tag, View,
};

use crate::detector::Delay;
use crate::founding::{Founding, Vote};
use crate::keeping::Keeper;
use crate::lease::{Lease, Promises, dropped};
use crate::peer::Peer;
use crate::recovery::Recovery;
use crate::{Body, Config, MemberConfig, MembershipError, Message, Request, Store, ViewEntry};

/// The stream of the configuration log.
pub(crate) const STREAM: Stream = Stream(0);

/// A request that waits for a view.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Pending {
    pub(crate) tag: Tag,
    pub(crate) change: Change,
    pub(crate) until: Instant,
}

/// The change that a waiting request asks for.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) enum Change {
    CaughtUp,
    Add(MemberConfig),
    Remove { node: NodeId, at_once: bool },
    Keep(NodeId),
    GiveUp(NodeSet),
}

/// The contents of a member's renewal.
struct Says {
    caught_up: bool,
    is_complete: bool,
    hears: NodeSet,
    admits: NodeSet,
}

/// The membership of one life of one node. See the crate's documentation.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Membership {
    pub(crate) config: Config,
    pub(crate) me: Voter,
    /// The voter whose vote the log casts: this life, or, until this life is admitted, the former
    /// life of the same process.
    pub(crate) voter: Voter,
    /// The installed view; the empty one before the first.
    pub(crate) view: Arc<View>,
    /// The view before the first.
    pub(crate) nothing: Arc<View>,
    /// The newest view that this node is not live in, before it has one.
    pub(crate) known: Arc<View>,
    pub(crate) log: Option<Log<ViewEntry>>,
    pub(crate) out: Outbox<ViewEntry>,
    pub(crate) lease: Lease,
    pub(crate) promises: Promises,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    pub(crate) founding: Founding,
    pub(crate) vote: Option<Vote>,
    pub(crate) pending: Vec<Pending>,
    /// Whether this life has held everything in some epoch: it keeps it from then on.
    pub(crate) caught_up: bool,
    /// The last epoch in which this node had all that falls to it.
    pub(crate) complete_in: Epoch,
    pub(crate) expelled: bool,
    /// The request by which this node has given up its lease; it waits for a view without this
    /// node.
    pub(crate) leaving: Option<Tag>,
    /// How late this node came.
    pub(crate) lateness: Delay,
    /// The members heard here and the nodes that could join, as this node last told the others.
    pub(crate) observed: (NodeSet, NodeSet),
    /// The member that has to leave because a link is broken, and since when.
    pub(crate) broken_link: Option<(NodeId, Instant)>,
    pub(crate) rng: Rng,
    pub(crate) heartbeat_at: Instant,
    /// The next time at which something other than a heartbeat or the log is due.
    pub(crate) wake_at: Instant,
    /// The time since when this node has had a view to propose.
    pub(crate) wish_since: Option<Instant>,
    /// The time since when an entry that another node proposed has waited.
    pub(crate) stuck_since: Option<Instant>,
    /// What waits for the disk, if there is one.
    pub(crate) keeper: Option<Keeper>,
    /// Earlier lives of this node that came to no view, as far as it knows.
    pub(crate) lives: Vec<Incarnation>,
    /// The time since when a view could be revived from disks.
    pub(crate) revivable_since: Option<Instant>,
    /// What the stores of the life that votes have got back from the disk.
    pub(crate) store: Store,
    /// The recovered cluster that this node has agreed to, which has not begun here yet; 0 if none.
    pub(crate) left: Incarnation,
    /// The recovery that was asked for here.
    pub(crate) recovery: Option<Recovery>,
    /// The time of the last event.
    pub(crate) now: Instant,
}

impl Protocol for Membership {
    type Message<'a> = Message;
    type Request<'a> = Request;
    type Outcome = Result<Epoch, MembershipError>;
    type Mail = core::convert::Infallible;

    const PROBES: &'static [&'static str] = &[
        "membership: a lagging node jumps over views",
        "membership: a vote for a first view is given up",
        "membership: a member outbids a silent proposer",
        "membership: a live member's slot goes to its next incarnation",
        "membership: the node learns that it is expelled",
        "membership: a grant is refused to a member that is being removed",
        "membership: a departing member is removed",
        "membership: a departing member that is down is removed",
        "membership: a life was admitted that ended before it knew",
        "membership: a view is revived from disks",
        "membership: a node leaves its cluster for a recovered one",
    ];
}

impl Machine for Membership {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        let due = self.next_deadline();
        self.now = self.now.max(now.monotonic);
        self.excuse_silence_since(due);
        match event {
            Event::Message { from, body, .. } => self.on_message(from, body, effects),
            Event::Request { tag, request } => self.on_request(tag, request, effects),
            // Views originate in this machine.
            Event::View(_) => effects.ignored("view"),
            Event::Durable(number) => self.on_saved(number.0),
            Event::Tick => {}
        }
        self.drive(effects);
        self.release(effects);
    }

    fn next_deadline(&self) -> Instant {
        if self.expelled {
            return Instant::NEVER;
        }
        let log = self.log.as_ref().map_or(Instant::NEVER, Log::next_deadline);
        self.heartbeat_at.min(self.wake_at).min(log)
    }

    fn check_invariants(&self) {
        if let Some(log) = &self.log {
            log.check_invariants();
            assert_eq!(log.next().0, self.view.epoch.0 + 1, "the view is the log's last entry");
        }
        assert_eq!(self.log.is_some(), self.view.epoch.0 > 0, "a view comes with a log");
        let numbers = self.view.members.iter().map(|member| member.number);
        assert!(numbers.max().unwrap_or_default() <= self.view.last_number, "a number to come");
        assert!(
            self.view.departing.is_subset(self.view.voters()),
            "only a member can be about to leave"
        );
        assert!(
            self.view.epoch.0 == 0 || !self.view.active().is_empty(),
            "a view without an active member"
        );
        assert!(
            self.is_live() || self.expelled || self.me != self.voter || self.log.is_none(),
            "a view is in force here that this node is not live in"
        );
    }
}

impl Membership {
    /// A node that starts now and knows of no view.
    pub fn new(config: Config, now: Now) -> Self {
        assert!(config.incarnation.0 != 0, "incarnation 0 stands for no process");
        let me = Voter { node: config.node, incarnation: config.incarnation };
        let rng = Rng::new(config.seed ^ config.incarnation.0);
        let others =
            config.genesis.iter().map(|member| member.node).filter(|node| *node != me.node);
        Self {
            me,
            voter: me,
            nothing: Arc::new(View::default()),
            peers: others.map(|node| (node, Peer::default())).collect(),
            config,
            view: Arc::new(View::default()),
            known: Arc::new(View::default()),
            log: None,
            out: Outbox::default(),
            lease: Lease::default(),
            promises: Promises::default(),
            founding: Founding::default(),
            vote: None,
            pending: Vec::new(),
            caught_up: false,
            complete_in: Epoch(0),
            expelled: false,
            leaving: None,
            lateness: Delay::default(),
            observed: (NodeSet::EMPTY, NodeSet::EMPTY),
            broken_link: None,
            rng,
            heartbeat_at: now.monotonic,
            wake_at: Instant::NEVER,
            wish_since: None,
            stuck_since: None,
            keeper: None,
            left: Incarnation(0),
            recovery: None,
            revivable_since: None,
            lives: Vec::new(),
            store: Store::None,
            now: now.monotonic,
        }
    }

    /// The next life of an expelled node in the same process.
    ///
    /// It is outside and asks to join, like a process that has just started. But until it is
    /// admitted it still casts the vote of its former life, which has forgotten nothing: so a pause
    /// past the lease doesn't count as the loss of a voter. (Starting afresh with
    /// [`Membership::new`] is as safe, and leaves one voter less until the node is back in the
    /// view.)
    #[must_use]
    pub fn into_next_life(self, incarnation: Incarnation, now: Now) -> Self {
        let mut next = Self::new(Config { incarnation, ..self.config }, now);
        let former = self.view.member(self.voter.node);
        if former.is_some_and(|own| own.incarnation == self.voter.incarnation) {
            next.voter = self.voter;
            (next.view, next.log, next.promises) = (self.view, self.log, self.promises);
        }
        next.keeper = self.keeper.map(Keeper::into_next_life);
        next.lives = self.lives;
        next.note_state();
        next.lateness = self.lateness;
        next.peers.extend(self.peers.into_iter().map(|(node, peer)| (node, peer.into_next_life())));
        next
    }

    /// The view in force here; the empty view before the first. With a disk, a view is in force when it is
    /// durable.
    pub fn view(&self) -> &Arc<View> {
        match &self.keeper {
            Some(keeper) if !self.expelled => keeper.shown(),
            _ if self.is_live() || self.expelled => &self.view,
            _ => &self.nothing,
        }
    }

    /// This node is operational before this instant of its own clock, and not from it on. The check
    /// has to come after the access that it protects (pitfall H3).
    pub fn lease_until(&self) -> Instant {
        let leaves = self.leaving.is_some() && !mutant!("membership_leaves_with_its_lease");
        let is_outside = self.view().epoch.0 == 0;
        if self.expelled || leaves || is_outside { Instant::ZERO } else { self.lease.until() }
    }

    /// Whether this incarnation was a member and is no longer live. The driver then starts a new
    /// `Membership` under a fresh incarnation; this one sends no further message.
    pub fn expelled(&self) -> bool {
        self.expelled
    }

    /// Whether this incarnation is live in the view in force here.
    pub(crate) fn is_live(&self) -> bool {
        self.view.is_live(self.me.node, self.me.incarnation)
    }

    // Messages.

    fn on_message(&mut self, from: NodeId, message: Message, effects: &mut impl Effects<Self>) {
        if let Some(reason) = self.ignore_message(from, &message) {
            return effects.ignored(reason);
        }
        let sender = Voter { node: from, incarnation: message.incarnation };
        let is_named =
            self.view.member(from).is_some_and(|member| member.incarnation == sender.incarnation);
        // A vote of a former life is no sign of its life.
        let is_vote = matches!(message.body, Body::Log(_));
        if is_named && !(is_vote && self.is_former_life(sender)) {
            self.heard_from(from);
        }
        match message.body {
            Body::Announce { .. } => self.on_announce(sender, message, effects),
            Body::Found { round, view } => {
                let newest = (message.cluster, message.epoch);
                self.on_found(sender, newest, round, view, effects);
            }
            Body::Founded { to, round } => self.on_founded(sender, to, round, effects),
            Body::Renew { sent, caught_up, is_complete, hears, admits } => {
                let says = Says { caught_up, is_complete, hears, admits };
                self.on_renew(sender, message.epoch, sent, says, effects);
            }
            Body::Leave => self.on_leave(sender, effects),
            Body::Grant { to, sent } => self.on_grant(sender, message.epoch, to, sent, effects),
            Body::Log(body) => self.on_log(sender, message.cluster, body, effects),
        }
    }

    fn ignore_message(&self, from: NodeId, message: &Message) -> Option<&'static str> {
        let other_cluster = message.cluster != self.view.cluster;
        match message.body {
            _ if self.expelled => Some("expelled"),
            _ if from == self.me.node => Some("own node id"),
            Body::Announce { .. } => None,
            Body::Found { .. } | Body::Founded { .. }
                if self.log.is_some() && self.store == Store::None =>
            {
                Some("founded")
            }
            Body::Found { .. } | Body::Founded { .. } => None,
            Body::Renew { .. } | Body::Grant { .. } | Body::Leave if self.log.is_none() => {
                Some("outside")
            }
            Body::Log(_) if self.log.is_none() => None,
            Body::Log(_) if self.has_left() && message.cluster == self.left => None,
            _ if other_cluster => Some("another cluster"),
            _ => None,
        }
    }

    /// A live member's heartbeat: grant the requested lease (Hermes N3.6).
    fn on_renew(
        &mut self,
        from: Voter,
        epoch: Epoch,
        sent: Option<Instant>,
        says: Says,
        effects: &mut impl Effects<Self>,
    ) {
        if epoch < self.view.epoch {
            return self.teach(from.node, effects);
        }
        if epoch > self.view.epoch {
            return effects.ignored("renew of a later epoch");
        }
        if !self.is_live() {
            return effects.ignored("renew outside the view");
        }
        if !self.view.is_live(from.node, from.incarnation) {
            return effects.ignored("renew of a member that is not live");
        }
        let peer = self.peers.entry(from.node).or_default();
        if peer.leaving {
            return effects.ignored("renew of a member that leaves");
        }
        (peer.caught_up, peer.is_complete) = (says.caught_up, says.is_complete);
        (peer.hears, peer.admits) = (Some(says.hears), says.admits);
        if self.is_being_removed(from) {
            effects.probe("membership: a grant is refused to a member that is being removed");
            return effects.ignored("renew of a member that is being removed");
        }
        // A renewal that asks for no grant counts, too: so a voter waits for the member's return as
        // long as others do.
        self.promises.promise(from, self.now + self.config.promise());
        let Some(sent) = sent else { return };
        self.send(from.node, Body::Grant { to: from.incarnation, sent }, effects);
        // A heartbeat that is due soon goes out with the grant: so the members' heartbeats
        // coincide, and an idle cluster wakes up less often. A member whose heartbeat is late
        // leads.
        let is_late = self.heartbeat_at <= self.now;
        if !is_late && self.heartbeat_at.since(self.now) <= self.config.heartbeat / 2 {
            self.heartbeat(Some(from.node), effects);
        }
    }

    /// A member leaves for good: it relies on no lease any more, which ends all promises to it.
    fn on_leave(&mut self, from: Voter, effects: &mut impl Effects<Self>) {
        if !self.view.is_live(from.node, from.incarnation) {
            return effects.ignored("leave of a member that is not live");
        }
        self.peers.entry(from.node).or_default().leaving = true;
        self.promises.release(from);
    }

    fn on_grant(
        &mut self,
        from: Voter,
        epoch: Epoch,
        to: Incarnation,
        sent: Instant,
        effects: &mut impl Effects<Self>,
    ) {
        let is_voter =
            self.view.member(from.node).is_some_and(|voter| voter.incarnation == from.incarnation);
        let is_mine = to == self.me.incarnation && self.is_live();
        if epoch != self.view.epoch || !is_mine || !is_voter {
            return effects.ignored("grant of another epoch or life");
        }
        if sent > self.now {
            return effects.ignored("grant of a request not sent");
        }
        let counted = if mutant!("membership_lease_from_receipt") { self.now } else { sent };
        self.lease.grant(from.node, counted, self.view.members.len(), self.config.reliance());
    }

    /// Whether this voter has agreed, or is about to agree, to a view without `member`.
    fn is_being_removed(&self, member: Voter) -> bool {
        if mutant!("membership_renews_the_removed") {
            return false;
        }
        self.log.as_ref().is_some_and(|log| {
            log.considered(log.next())
                .any(|entry| dropped(&self.view, &entry.0).any(|gone| gone == member))
        })
    }

    /// Answers a request, with a disk when what the answer says is durable.
    pub(crate) fn answer(
        &mut self,
        tag: Tag,
        answer: Result<Epoch, MembershipError>,
        effects: &mut impl Effects<Self>,
    ) {
        match &mut self.keeper {
            Some(keeper) => keeper.hold_answer(tag, answer),
            None => effects.complete(tag, answer),
        }
    }

    pub(crate) fn send(&mut self, to: NodeId, body: Body, effects: &mut impl Effects<Self>) {
        if to == self.me.node {
            return;
        }
        let speaker = if matches!(body, Body::Log(_)) { self.voter } else { self.me };
        let View { cluster, epoch, .. } = *self.newest_view();
        let incarnation = speaker.incarnation;
        let message = Message { incarnation, cluster, epoch, body };
        match &mut self.keeper {
            Some(keeper) => keeper.hold_message(to, message),
            None => effects.send(to, &message),
        }
    }

    // Requests.

    fn on_request(&mut self, tag: Tag, request: Request, effects: &mut impl Effects<Self>) {
        let epoch = self.view.epoch;
        let change = match request {
            Request::PeerLost(node) => {
                self.peers.entry(node).or_default().lost = true;
                return effects.complete(tag, Ok(epoch));
            }
            Request::PeerFound(node) => {
                self.peers.entry(node).or_default().lost = false;
                return effects.complete(tag, Ok(epoch));
            }
            Request::LaneLost(node) => {
                let since = &mut self.peers.entry(node).or_default().cut_since;
                *since = Some(since.unwrap_or(self.now));
                return effects.complete(tag, Ok(epoch));
            }
            Request::LanesFound(node) => {
                self.peers.entry(node).or_default().cut_since = None;
                return effects.complete(tag, Ok(epoch));
            }
            Request::Recover { lost } if !self.is_live() => {
                return self.recover(tag, lost, effects);
            }
            _ if !self.is_live() => {
                return effects.complete(tag, Err(MembershipError::NotAMember));
            }
            Request::CaughtUp { epoch: reached } if reached > epoch => {
                return effects.complete(tag, Err(MembershipError::WrongEpoch(reached)));
            }
            Request::CaughtUp { epoch: reached } => {
                self.caught_up = true;
                self.complete_in = reached;
                // Renewals carry it; waiting for the next one would delay service.
                self.heartbeat_at = self.now;
                Change::CaughtUp
            }
            Request::Add(config) => Change::Add(config),
            Request::Remove { node, at_once } => Change::Remove { node, at_once },
            Request::Keep(node) => Change::Keep(node),
            Request::Recover { lost } if lost.intersection(self.orphaned()).is_empty() => {
                let nodes = lost.into_iter().collect();
                return effects.complete(tag, Err(MembershipError::NothingLost { nodes }));
            }
            Request::Recover { lost } => Change::GiveUp(lost),
            Request::Leave => return self.leave(tag, effects),
        };
        let until = self.now + self.config.request_timeout;
        self.pending.push(Pending { tag, change, until });
        self.answer_requests(effects);
    }

    /// Gives the lease up, for good. The members hear of it at once, and again with each heartbeat.
    fn leave(&mut self, tag: Tag, effects: &mut impl Effects<Self>) {
        if !self.can_go(NodeSet::only(self.me.node)) {
            return effects.complete(tag, Err(MembershipError::LastActive(self.me.node)));
        }
        self.leaving = Some(tag);
        self.promises.release(self.me);
        self.heartbeat_at = self.now;
    }

    /// Answers the requests that are done, impossible or late.
    pub(crate) fn answer_requests(&mut self, effects: &mut impl Effects<Self>) {
        let pending = core::mem::take(&mut self.pending);
        for request in pending {
            let wanted = self.change_for(&request.change);
            // Once it may have been proposed, a change that lacks members may still be chosen.
            let proposed = self.now + self.config.request_timeout > request.until;
            let lacks = wanted.as_ref().is_err_and(MembershipError::lacks_members)
                && !mutant!("membership_refuses_the_proposed");
            let answer = match wanted {
                Ok(None) => Some(Ok(self.view.epoch)),
                Err(MembershipError::NotHereYet(_))
                    if self.now < request.until || self.is_proposing() =>
                {
                    None
                }
                Err(error) if !(lacks && proposed) => Some(Err(error)),
                _ if self.now >= request.until => {
                    let silent = self.view.voters().difference(self.responsive());
                    let silent = silent.into_iter().collect();
                    Some(Err(MembershipError::TimedOut { silent }))
                }
                _ => None,
            };
            match answer {
                Some(answer) => self.answer(request.tag, answer, effects),
                None => self.pending.push(request),
            }
        }
    }

    // Time.

    fn drive(&mut self, effects: &mut impl Effects<Self>) {
        if self.expelled {
            return;
        }
        // News on which the others decide must not wait for the next heartbeat.
        if self.heartbeat_at <= self.now || self.observes() != self.observed {
            self.heartbeat(None, effects);
        }
        if self.log.is_none() {
            self.found(effects);
            self.wake_at = Instant::NEVER;
            return;
        }
        let Self { log, out, view, promises, now, .. } = self;
        if let Some(log) = log.as_mut().filter(|log| log.next_deadline() <= *now) {
            let gate = |_: SlotNumber, next: &ViewEntry| promises.withhold(view, &next.0);
            log.tick(*now, &gate, out);
        }
        self.flush(effects);
        self.wake_at = Instant::NEVER;
        if !self.expelled && !self.drive_recovery(effects) {
            match self.is_live() {
                true => self.propose(effects),
                false => self.revive(effects),
            }
        }
    }

    /// The members heard here and the nodes that could join; outside a view, the members heard.
    fn observes(&self) -> (NodeSet, NodeSet) {
        if self.is_live() {
            (self.heard(), self.admits())
        } else {
            (self.reaches(), NodeSet::EMPTY)
        }
    }

    /// Tells the others that this node lives, of its own accord or following `leader`.
    fn heartbeat(&mut self, leader: Option<NodeId>, effects: &mut impl Effects<Self>) {
        let observed = self.observes();
        // News has to reach every member.
        let leader = leader.filter(|_| observed == self.observed);
        self.observed = observed;
        self.note_silent(observed.0);
        let grace = leader.map_or(Duration::ZERO, |_| self.config.grace());
        self.heartbeat_at = self.now + self.config.heartbeat + grace;
        self.promises.purge(self.now);
        if self.is_live() {
            self.renew(leader, effects)
        } else {
            self.announce_to_all(effects)
        }
        self.answer_requests(effects);
    }

    /// Asks the live members, this one included, to renew the lease: all of them, or `leader` alone
    /// if its grants suffice. The others then hear from this node less often.
    fn renew(&mut self, leader: Option<NodeId>, effects: &mut impl Effects<Self>) {
        let sent = self.now;
        if self.leaving.is_some() {
            for node in self.view.live() {
                self.send(node, Body::Leave, effects);
            }
            return;
        }
        let leader = leader.filter(|leader| self.suffices(*leader));
        if !self.is_being_removed(self.me) {
            self.promises.promise(self.me, sent + self.config.promise());
            let voters = self.view.members.len();
            self.lease.grant(self.me.node, sent, voters, self.config.reliance());
        }
        let (hears, admits) = self.observed;
        for node in self.view.live().without(self.me.node) {
            let is_asked = leader.is_none_or(|leader| leader == node);
            let peer = self.peers.entry(node).or_default();
            if !is_asked && self.heartbeat_at <= peer.told + self.config.quiet_max() {
                continue;
            }
            peer.told = sent;
            let sent = is_asked.then_some(sent);
            let (caught_up, is_complete) = (self.caught_up, self.complete_in == self.view.epoch);
            let body = Body::Renew { sent, caught_up, is_complete, hears, admits };
            self.send(node, body, effects);
        }
    }

    /// Whether this node's vote and the grants of `leader` make a majority, and the last grant
    /// came: it doesn't if messages to the leader get lost.
    fn suffices(&self, leader: NodeId) -> bool {
        let two = NodeSet::only(self.me.node).union(NodeSet::only(leader));
        two.is_majority_of(self.view.voters())
            && (self.lease.is_granted_by(leader, self.me.node)
                || mutant!("membership_follows_without_grants"))
    }

    /// The nodes of open requests to add one. A cluster of one waits until it hears them.
    pub fn newcomers(&self) -> impl Iterator<Item = &MemberConfig> {
        let asked = self.pending.iter().filter_map(|pending| match &pending.change {
            Change::Add(config) => Some(config),
            _ => None,
        });
        asked.filter(|config| self.view.member(config.node).is_none())
    }

    /// Whether this node has proposed the next view and waits for the votes.
    pub fn is_proposing(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_deciding())
    }

    /// The delay by which proposers of lower rank hold back.
    pub(crate) fn stagger(&self) -> Duration {
        self.config.heartbeat / 2
    }
}

/// The voters of the slot after a view's.
pub(crate) fn voters(view: &View) -> Vec<Voter> {
    let voter = |member: &Member| Voter { node: member.node, incarnation: member.incarnation };
    view.members.iter().map(voter).collect()
}

/// Whether `view` has a shadow with this id.
pub(crate) fn is_shadow(view: &View, node: NodeId) -> bool {
    view.member(node).is_some_and(|member| member.role == Role::Shadow)
}
