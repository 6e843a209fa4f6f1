//! A state of a cluster: machines, messages under way, the faults left, and the memory of the
//! specification.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

use quorate_harness::{Outbox, Process, member};
use quorate_machine::{Event, Machine};
use quorate_types::{
    Epoch, Incarnation, Instant, LaneId, Lsn, MemberNumber, NodeId, NodeSet, Now, Role, Tag,
    UnixNanos, View,
};
use rapidhash::quality::RapidHasher;

use crate::engine::Engine;
use crate::history::{Answer, Call, answered};
use crate::scope::{Budget, Change, Lost, Prior, Scope};

/// Wall time at the beginning of every exploration, in nanoseconds: small, so that traces are
/// readable.
pub const WALL: u64 = 1_000_000;

/// The hash of anything, the same in every run of one build.
pub(crate) fn print_of(value: &impl Hash) -> u64 {
    let mut hasher = RapidHasher::default_const();
    value.hash(&mut hasher);
    hasher.finish()
}

fn print_machine<E: Engine>(machine: &E::Machine) -> u64 {
    let mut hasher = RapidHasher::default_const();
    E::hash(machine, &mut hasher);
    hasher.finish()
}

/// A message under way.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Packet {
    /// The receiver.
    pub to: NodeId,
    /// The sender.
    pub from: NodeId,
    /// The epoch of its sender.
    pub epoch: Epoch,
    /// The encoded message.
    pub bytes: Vec<u8>,
    print: u64,
}

/// The entries of a log.
type Log = Arc<Vec<Vec<u8>>>;

/// A node: its process, and what is on its disk.
pub struct Host<M> {
    /// Its machine; shared with other states until one of them changes it.
    pub machine: Arc<M>,
    /// Whether it runs.
    pub up: bool,
    /// Which life it is.
    pub incarnation: Incarnation,
    /// What its lives have appended. `None` if it has no disk.
    log: Option<Log>,
    print: u64,
}

impl<M> Clone for Host<M> {
    fn clone(&self) -> Self {
        Self { machine: self.machine.clone(), log: self.log.clone(), ..*self }
    }
}

/// A state.
pub struct World<E: Engine> {
    /// By node id, from 1.
    pub hosts: Vec<Host<E::Machine>>,
    /// Messages under way and how often each, in an order of their own.
    pub pool: Vec<(Arc<Packet>, u8)>,
    /// Nanoseconds since the beginning, of a clock at the true rate.
    pub time: u64,
    /// The latest view.
    pub view: Arc<View>,
    /// Every view so far, by epoch, from 1.
    pub views: Arc<Vec<View>>,
    /// The latest epoch that any node has ever been in.
    pub newest: Epoch,
    /// How many of the scope's changes of view have happened.
    pub changes: u8,
    /// The faults left.
    pub left: Budget,
    /// The calls and answers of clients.
    pub calls: Vec<Call>,
    /// The specification's memory.
    pub ledger: Arc<E::Ledger>,
    /// The condition that did not hold. Nothing happens any more from then on.
    pub broken: Option<Arc<str>>,
    lives: u64,
}

impl<E: Engine> Clone for World<E> {
    fn clone(&self) -> Self {
        Self {
            hosts: self.hosts.clone(),
            pool: self.pool.clone(),
            time: self.time,
            view: self.view.clone(),
            views: self.views.clone(),
            newest: self.newest,
            changes: self.changes,
            left: self.left.clone(),
            calls: self.calls.clone(),
            ledger: self.ledger.clone(),
            broken: self.broken.clone(),
            lives: self.lives,
        }
    }
}

impl<E: Engine> Hash for World<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for host in &self.hosts {
            (host.print, host.up, &host.log).hash(state);
        }
        for (packet, count) in &self.pool {
            (packet.print, count).hash(state);
        }
        (self.time, &self.views, self.newest, self.changes, &self.left).hash(state);
        (&self.calls, &self.ledger, self.broken.is_some()).hash(state);
    }
}

impl<E: Engine> PartialEq for World<E> {
    fn eq(&self, other: &Self) -> bool {
        print_of(self) == print_of(other)
    }
}

impl<E: Engine> fmt::Debug for World<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} under way, {:?}, {:?}", self.pool.len(), self.calls, self.ledger)
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may break an assertion. A broken one is a finding, not the end of the
/// exploration.
fn guarded<R>(act: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(act));
    QUIET.set(outer);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        format!("a machine stops itself: {}", text.unwrap_or("no reason given"))
    })
}

impl<E: Engine> World<E> {
    /// The state from which the exploration begins: a first view with every node, and the scope's
    /// first calls answered, all without a fault.
    pub fn first(scope: &Scope<E>) -> Self {
        let mut world = Self {
            hosts: Vec::new(),
            pool: Vec::new(),
            time: 0,
            view: Arc::default(),
            views: Arc::default(),
            newest: Epoch(0),
            changes: 0,
            left: scope.budget.clone(),
            calls: vec![Call::default(); scope.calls.len()],
            ledger: Arc::default(),
            broken: None,
            lives: 0,
        };
        let whole = scope.whole();
        world.found(&whole);
        for prior in &scope.prelude {
            world.follow(&whole, *prior);
        }
        let lost = |packet: &Packet| {
            world.is_deaf(scope, packet.to) || scope.is_cut(packet.from, packet.to)
        };
        let pool = world.pool.iter().filter(|(packet, _)| !lost(packet)).cloned().collect();
        world.pool = pool;
        assert_eq!(world.broken, None, "{}: broken at the beginning", scope.name);
        world
    }

    fn follow(&mut self, scope: &Scope<E>, prior: Prior) {
        match prior {
            Prior::Tick(node) => self.tick(scope, node),
            Prior::Arrives(from, to) => {
                let own = |(packet, _): &(Arc<Packet>, u8)| (packet.from, packet.to) == (from, to);
                let first = self.pool.iter().position(own);
                self.deliver(scope, first.expect("a message is under way"), true);
            }
            Prior::AllLost => self.pool.clear(),
            Prior::Restart(node) => self.restart(scope, node, 0),
            Prior::Crash(node) => self.crash(node),
            Prior::View(change) => {
                self.change(scope, change, Lost::default());
                (1..=scope.nodes).for_each(|node| self.install(scope, NodeId(node)));
                self.run_calmly(scope, self.time);
            }
            Prior::Call(call) => self.call(scope, call),
            Prior::Passes(span) => self.run_calmly(scope, self.time + span.as_nanos() as u64),
        }
    }

    fn found(&mut self, scope: &Scope<E>) {
        let mut members = Vec::new();
        for node in 1..=scope.nodes {
            let host = self.start(scope, NodeId(node), None);
            let incarnation = host.incarnation;
            self.hosts.push(host);
            let number = MemberNumber(u32::from(node));
            members.push(member(NodeId(node), incarnation, number, Role::Active));
        }
        if scope.has_views {
            let last_number = MemberNumber(u32::from(scope.nodes));
            let placed = (1..=scope.nodes).map(NodeId).collect();
            let (epoch, cluster) = (Epoch(1), Incarnation(1));
            let departing = NodeSet::EMPTY;
            self.decide(View { epoch, cluster, members, last_number, placed, departing });
            for node in 1..=scope.nodes {
                self.install(scope, NodeId(node));
            }
        }
        self.run_calmly(scope, scope.settle.as_nanos() as u64);
        for call in 0..scope.first_calls {
            self.call(scope, call);
            self.run_calmly(scope, self.time);
            assert!(
                matches!(self.calls[call].answer, Some(Answer::Done(_))),
                "{}: {} is not answered at the beginning",
                scope.name,
                scope.engine.describe_call(call)
            );
        }
    }

    /// A process that begins, with what it finds in a log, if it finds one.
    fn start(&mut self, scope: &Scope<E>, node: NodeId, log: Option<Log>) -> Host<E::Machine> {
        self.lives += 1;
        let incarnation = Incarnation(self.lives);
        let (lane, seed, now) = (LaneId(0), incarnation.0, self.now(scope, node.0));
        let process = Process { node, lane, incarnation, seed, now };
        let mut machine = match self.hosts.get(usize::from(node.0) - 1) {
            Some(before) => scope.engine.restart(process, &before.machine),
            None => scope.engine.start(process),
        };
        if let Some(log) = &log {
            for entry in log.iter() {
                machine.restore(entry).expect("what was appended can be read");
            }
            machine.restored();
        }
        let log = scope.has_logs.then(|| log.unwrap_or_default());
        let print = print_machine::<E>(&machine);
        Host { machine: Arc::new(machine), up: true, incarnation, log, print }
    }

    /// Delivers everything and lets timers run until a time.
    fn run_calmly(&mut self, scope: &Scope<E>, until: u64) {
        loop {
            while !self.pool.is_empty() {
                self.deliver(scope, 0, true);
            }
            let due = self.next_deadline(scope).filter(|(at, _)| *at <= until);
            let Some((_, node)) = due else { break };
            self.tick(scope, node);
        }
    }

    /// The node whose timer is the first, and the time.
    pub(crate) fn next_deadline(&self, scope: &Scope<E>) -> Option<(u64, NodeId)> {
        self.up().filter_map(|(node, _)| Some((self.deadline(scope, node)?, node))).min()
    }

    /// When a node's first timer runs out, in nanoseconds since the beginning.
    pub(crate) fn deadline(&self, scope: &Scope<E>, node: NodeId) -> Option<u64> {
        let at = self.host(node).machine.next_deadline();
        (at != Instant::NEVER).then(|| scope.moment(node, at.0))
    }

    fn now(&self, scope: &Scope<E>, node: u16) -> Now {
        let ahead = scope.ahead.get(usize::from(node) - 1).copied().unwrap_or(0);
        let local = scope.clock(NodeId(node), self.time);
        Now { monotonic: Instant(local), unix: UnixNanos(WALL + local + ahead) }
    }

    /// The time that a node's own clock shows.
    pub fn clock(&self, scope: &Scope<E>, node: NodeId) -> Instant {
        Instant(scope.clock(node, self.time))
    }

    /// A node's process.
    pub fn host(&self, node: NodeId) -> &Host<E::Machine> {
        &self.hosts[usize::from(node.0) - 1]
    }

    /// The processes that run, with their ids.
    pub fn up(&self) -> impl Iterator<Item = (NodeId, &E::Machine)> {
        let hosts = self.hosts.iter().enumerate().filter(|(_, host)| host.up);
        hosts.map(|(at, host)| (NodeId(at as u16 + 1), &*host.machine))
    }

    /// Whether every node that runs has the latest view, or is not live in it.
    pub fn is_installed(&self) -> bool {
        self.up().all(|(_, machine)| E::epoch_of(machine) == self.view.epoch)
    }

    fn decide(&mut self, view: View) {
        Arc::make_mut(&mut self.views).push(view.clone());
        self.view = Arc::new(view);
    }

    /// The view that a node is in, if it is in one.
    pub fn view_of(&self, node: NodeId) -> Option<&View> {
        let epoch = E::epoch_of(&self.host(node).machine).0;
        self.views.get((epoch as usize).checked_sub(1)?)
    }

    /// Whether a node may rely on its lease: no node has ever been in a view in which the holder is
    /// not live. The membership promises that, and its own scopes show it.
    pub fn holds_lease(&self, node: NodeId) -> bool {
        let host = self.host(node);
        let seen = self.views.iter().take(self.newest.0 as usize);
        let later = seen.skip((E::epoch_of(&host.machine).0 as usize).saturating_sub(1));
        host.up && { later }.all(|view| view.is_live(node, host.incarnation))
    }

    /// Notes a condition that does not hold.
    pub(crate) fn demand(&mut self, result: Result<(), String>) {
        if let Err(reason) = result
            && self.broken.is_none()
        {
            self.broken = Some(reason.into());
        }
    }

    // --- what may happen -------------------------------------------------------------------------

    /// One step of one machine, and all its effects.
    fn step(
        &mut self,
        scope: &Scope<E>,
        node: NodeId,
        act: impl FnOnce(&mut E::Machine, Now, &mut Outbox<E>),
    ) {
        let now = self.now(scope, node.0);
        let at = usize::from(node.0) - 1;
        let before = self.hosts[at].machine.clone();
        let mut machine = (*before).clone();
        let mut out = Outbox::<E>::new(node);
        if let Some(log) = &self.hosts[at].log {
            // What is appended is durable at once. What is lost at the end of a log stands for what is not.
            out = out.with_log(Lsn(log.len() as u64), false);
        }
        let result = guarded(|| {
            act(&mut machine, now, &mut out);
            // Every step is a turn of its own: batches of several are tested elsewhere.
            E::end_turn(&mut machine, now, &mut out);
            assert!(out.refused.is_empty(), "correct peers are refused: {:?}", out.refused);
            assert!(out.mail.is_empty(), "a node has one lane here, and no other to tell");
            machine.check_invariants();
        });
        scope.reached(&out.probes);
        if let Err(reason) = result {
            return self.demand(Err(reason));
        }
        self.demand(scope.engine.check_step(&before, &machine));
        let epoch = E::epoch_of(&machine);
        self.hosts[at].print = print_machine::<E>(&machine);
        self.hosts[at].machine = Arc::new(machine);
        if let Some(log) = self.hosts[at].log.as_mut().filter(|_| !out.appended.is_empty()) {
            Arc::make_mut(log).append(&mut out.appended);
        }
        if self.is_deaf(scope, node) {
            self.pool.retain(|(packet, _)| packet.to != node);
        }
        self.newest = self.newest.max(epoch);
        let heard = !out.completed.is_empty();
        let holds = out.leased.is_empty() || self.holds_lease(node);
        for (at, (to, bytes)) in out.sent.into_iter().enumerate() {
            if !holds && out.leased.contains(&at) {
                continue;
            }
            let noted = scope.engine.note_sent(Arc::make_mut(&mut self.ledger), node, &bytes);
            self.demand(noted);
            let print = print_of(&(node, to, epoch, &bytes));
            self.put(scope, Packet { to, from: node, epoch, bytes, print });
        }
        for (tag, completion) in out.completed {
            // Without the lease the connection is closed, and the client hears no answer.
            let leaves = !completion.gate.lease || self.holds_lease(node);
            self.hear(tag, if leaves { E::answer(&completion.outcome) } else { Answer::Unknown });
        }
        if heard {
            self.demand(scope.explain(self, &[]));
        }
        let checked = guarded(|| scope.engine.check(scope, self, Some((node, &*before))));
        self.demand(checked.and_then(|result| result));
    }

    fn hear(&mut self, tag: Tag, answer: Answer) {
        let call = &mut self.calls[tag.0 as usize];
        if call.answer.is_some() {
            return self.demand(Err(format!("call {} is answered twice", tag.0)));
        }
        call.answer = Some(answer);
    }

    fn put(&mut self, scope: &Scope<E>, packet: Packet) {
        let known = |host: &Host<E::Machine>| host.up;
        let up = self.hosts.get(usize::from(packet.to.0) - 1).is_some_and(known);
        let lost = self.is_deaf(scope, packet.to) || scope.is_cut(packet.from, packet.to);
        if !up || lost || self.is_over(scope, &packet) {
            return;
        }
        if scope.in_order {
            let pair = (packet.to, packet.from);
            let end = self.pool.partition_point(|(other, _)| (other.to, other.from) <= pair);
            return self.pool.insert(end, (Arc::new(packet), 1));
        }
        match self.pool.binary_search_by(|(other, _)| (**other).cmp(&packet)) {
            Ok(at) => self.pool[at].1 = self.pool[at].1.saturating_add(1).min(scope.copies),
            Err(at) => self.pool.insert(at, (Arc::new(packet), 1)),
        }
    }

    /// Whether a message is of an earlier epoch than its receiver, and leaves no trace in it: such
    /// a message never will.
    fn is_over(&self, scope: &Scope<E>, packet: &Packet) -> bool {
        let host = self.host(packet.to);
        if packet.epoch >= E::epoch_of(&host.machine) {
            return false;
        }
        let mut machine = (*host.machine).clone();
        let mut out = Outbox::<E>::new(packet.to);
        let now = self.now(scope, packet.to.0);
        let result = guarded(|| {
            let body = E::decode(&packet.bytes);
            let event = Event::Message { from: packet.from, epoch: packet.epoch, body };
            machine.step(now, event, &mut out);
            E::end_turn(&mut machine, now, &mut out);
        });
        result.is_ok()
            && out.refused.is_empty()
            && out.sent.is_empty()
            && out.completed.is_empty()
            && print_machine::<E>(&machine) == host.print
    }

    /// Whether no message reaches a node, and it does nothing.
    pub(crate) fn is_deaf(&self, scope: &Scope<E>, node: NodeId) -> bool {
        scope.paused.contains(node) || scope.engine.is_over(&self.host(node).machine)
    }

    /// Whether a message is the first on its way between two nodes, of those in the pool.
    pub(crate) fn is_first(&self, at: usize) -> bool {
        let pair = |at: usize| (self.pool[at].0.to, self.pool[at].0.from);
        at == 0 || pair(at - 1) != pair(at)
    }

    /// A message arrives. One that stays under way will arrive once more.
    pub(crate) fn deliver(&mut self, scope: &Scope<E>, at: usize, takes: bool) {
        let packet = self.pool[at].0.clone();
        if takes {
            self.take(at);
        }
        self.step(scope, packet.to, |machine, now, out| {
            let body = E::decode(&packet.bytes);
            let event = Event::Message { from: packet.from, epoch: packet.epoch, body };
            machine.step(now, event, out);
        });
    }

    /// Takes one copy of a message out of the pool.
    pub(crate) fn take(&mut self, at: usize) {
        if self.pool[at].1 > 1 {
            self.pool[at].1 -= 1;
        } else {
            self.pool.remove(at);
        }
    }

    /// A client makes a call.
    pub(crate) fn call(&mut self, scope: &Scope<E>, call: usize) {
        self.calls[call].started = true;
        self.calls[call].before = answered(&self.calls);
        let node = scope.calls[call].node;
        self.step(scope, node, |machine, now, out| {
            let (tag, request) = (Tag(call as u64), scope.engine.request(call));
            machine.step(now, Event::Request { tag, request }, out);
        });
    }

    /// A node's timer runs out: its first one, whatever else is under way.
    pub(crate) fn tick(&mut self, scope: &Scope<E>, node: NodeId) {
        self.time = self.time.max(self.deadline(scope, node).unwrap_or(0));
        self.step(scope, node, |machine, now, out| machine.step(now, Event::Tick, out));
    }

    /// A process ends, and the messages under way to it are lost.
    pub(crate) fn crash(&mut self, node: NodeId) {
        let host = &mut self.hosts[usize::from(node.0) - 1];
        host.up = false;
        host.print = 0;
        self.pool.retain(|(packet, _)| packet.to != node);
    }

    /// A process ends, and another begins in its place. The end of its log is lost.
    pub(crate) fn restart(&mut self, scope: &Scope<E>, node: NodeId, lost: usize) {
        let mut log = self.host(node).log.clone();
        if let Some(log) = log.as_mut().filter(|_| lost > 0) {
            let kept = log.len() - lost;
            Arc::make_mut(log).truncate(kept);
        }
        self.hosts[usize::from(node.0) - 1] = self.start(scope, node, log);
        self.pool.retain(|(packet, _)| packet.to != node);
    }

    /// A process that was taken out of the view begins another life under a fresh incarnation, over
    /// new connections.
    fn begin_life(&mut self, scope: &Scope<E>, node: NodeId) {
        self.lives += 1;
        let incarnation = Incarnation(self.lives);
        self.pool.retain(|(packet, _)| packet.to != node);
        self.hosts[usize::from(node.0) - 1].incarnation = incarnation;
        self.step(scope, node, |machine, now, out| {
            E::begin_life(machine, now, incarnation, out);
        });
    }

    /// A node hears of the latest view.
    pub(crate) fn install(&mut self, scope: &Scope<E>, node: NodeId) {
        let view = self.view.clone();
        self.step(scope, node, |machine, now, out| machine.step(now, Event::View(&view), out));
        let pool = std::mem::take(&mut self.pool);
        let over = |packet: &Packet| packet.to == node && self.is_over(scope, packet);
        self.pool = pool.into_iter().filter(|(packet, _)| !over(packet)).collect();
    }

    /// Whether a change of view may be decided now.
    pub(crate) fn may_change(&self, change: Change) -> bool {
        let role = |node| self.view.member(node).map_or(Role::Down, |member| member.role);
        match change {
            Change::Same => true,
            Change::WithoutCrashed => self.crashed().next().is_some(),
            Change::AfterCrashes => self.left.crashes == 0 && self.crashed().next().is_some(),
            Change::Without(node) => self.host(node).up && role(node) != Role::Down,
            Change::Rejoin(node) => role(node) == Role::Down,
            Change::Return(node) => role(node) == Role::Down && self.host(node).up,
            Change::Revive(_) => true,
            Change::Promote(node) => {
                role(node) == Role::Shadow
                    && self.host(node).up
                    && E::is_caught_up(&self.host(node).machine)
            }
            Change::Remove(node) | Change::Depart(node) => self.view.member(node).is_some(),
            Change::Add(node) => self.view.member(node).is_none(),
            Change::Place => {
                let has_copied = |node| {
                    let machine = &self.host(node).machine;
                    E::epoch_of(machine) == self.view.epoch && E::is_caught_up(machine)
                };
                !self.view.is_placed() && self.view.live().into_iter().all(has_copied)
            }
        }
    }

    /// The live members of the view whose process is gone.
    fn crashed(&self) -> impl Iterator<Item = NodeId> {
        self.view.live().into_iter().filter(|node| !self.host(*node).up)
    }

    /// All that may be lost with a change.
    pub(crate) fn losses(&self, change: Change) -> Vec<Lost> {
        let losers = match change {
            Change::Rejoin(node) => NodeSet::only(node),
            Change::Revive(nodes) => nodes,
            _ => NodeSet::EMPTY,
        };
        let mut losses = vec![Lost::default()];
        for node in losers {
            let entries = self.host(node).log.as_ref().map_or(0, |log| log.len());
            let each = 0..=entries.min(self.left.entries.into()) as u8;
            losses =
                each.flat_map(|lost| losses.iter().map(move |all| all.with(node, lost))).collect();
        }
        losses
    }

    /// What clients have heard may be lost.
    fn doubt_answers(&mut self) {
        for call in self.calls.iter_mut().filter(|call| call.answer.is_some()) {
            call.answer = Some(Answer::Unknown);
        }
    }

    /// The members agree on a view; each hears of it later. Ends of logs are lost with the change.
    pub(crate) fn change(&mut self, scope: &Scope<E>, change: Change, lost: Lost) {
        let mut view = (*self.view).clone();
        view.epoch = Epoch(view.epoch.0 + 1);
        let crashed: Vec<NodeId> = self.crashed().collect();
        let last_number = view.last_number;
        let mut set = |node: NodeId, role| {
            let known = view.members.iter_mut().find(|member| member.node == node);
            known.expect("every node is a member").role = role;
        };
        match change {
            Change::Same => {}
            Change::WithoutCrashed | Change::AfterCrashes => {
                crashed.into_iter().for_each(|node| set(node, Role::Down));
            }
            Change::Without(node) => set(node, Role::Down),
            Change::Promote(node) => set(node, Role::Active),
            Change::Remove(node) => {
                view.members.retain(|member| member.node != node);
                view.departing.remove(node);
            }
            Change::Depart(node) => view.departing.insert(node),
            Change::Place => view = view.into_placed(),
            Change::Add(node) => {
                let number = MemberNumber(last_number.0 + 1);
                view.last_number = number;
                self.hosts[usize::from(node.0) - 1].log = None;
                self.restart(scope, node, 0);
                let incarnation = self.host(node).incarnation;
                view.members.push(member(node, incarnation, number, Role::Shadow));
                view.members.sort_by_key(|member| member.node);
            }
            Change::Revive(_) => {
                if lost.nodes().count() > 1 {
                    self.doubt_answers();
                    scope.engine.note_lost(Arc::make_mut(&mut self.ledger));
                }
                for member in view.members.iter_mut().filter(|member| member.role != Role::Down) {
                    self.restart(scope, member.node, lost.of(member.node));
                    member.incarnation = self.host(member.node).incarnation;
                    view.last_number = MemberNumber(view.last_number.0 + 1);
                    member.number = view.last_number;
                }
            }
            Change::Rejoin(node) | Change::Return(node) => {
                let number = MemberNumber(last_number.0 + 1);
                view.last_number = number;
                match change {
                    Change::Return(_) => self.begin_life(scope, node),
                    _ => self.restart(scope, node, lost.of(node)),
                }
                let incarnation = self.host(node).incarnation;
                let known = view.members.iter_mut().find(|member| member.node == node);
                let known = known.expect("every node is a member");
                *known = member(node, incarnation, number, Role::Shadow);
            }
        }
        self.decide(view);
        let checked = guarded(|| scope.engine.check(scope, self, None));
        self.demand(checked.and_then(|result| result));
    }

    // --- afterwards ------------------------------------------------------------------------------

    /// Whether no message is under way and no node lags: only timers can come next.
    pub(crate) fn is_calm(&self, scope: &Scope<E>) -> bool {
        self.pool.is_empty()
            && self.is_installed()
            && self.calls.iter().zip(&scope.calls).all(|(call, made)| {
                call.started || !self.host(made.node).up || made.after.is_some()
            })
    }

    /// Goes on from here without a fault until nothing is left to do, and checks the state at rest.
    /// Crashed nodes leave the view first.
    ///
    /// # Errors
    /// The condition that does not hold, or that the cluster does not come to rest.
    pub(crate) fn rest(&self, scope: &Scope<E>) -> Result<(), String> {
        let (scope, mut world) = (&scope.whole(), self.clone());
        for _ in 0..REST_TICKS_MAX {
            if scope.has_views && world.may_change(Change::WithoutCrashed) {
                world.change(scope, Change::WithoutCrashed, Lost::default());
            }
            let lags = |world: &Self| {
                let late =
                    |(_, machine): &(NodeId, &E::Machine)| E::epoch_of(machine) < world.view.epoch;
                world.up().find(late).map(|(node, _)| node)
            };
            while scope.has_views
                && let Some(node) = lags(&world)
            {
                world.install(scope, node);
            }
            while !world.pool.is_empty() && world.broken.is_none() {
                world.deliver(scope, 0, true);
            }
            if let Some(reason) = &world.broken {
                return Err(format!("while it comes to rest: {reason}"));
            }
            let answered = world.calls.iter().zip(&scope.calls).all(|(call, made)| {
                !call.started || call.answer.is_some() || world.was_restarted(made.node)
            });
            let now = Instant(world.time);
            // A node that was taken out while it ran has nothing to do until it comes back.
            let is_in = |node: NodeId| {
                !scope.has_views || world.view.is_live(node, world.host(node).incarnation)
            };
            let rests = |(node, machine): (NodeId, &E::Machine)| {
                !is_in(node) || scope.engine.is_at_rest(machine, now)
            };
            if answered && world.up().all(rests) {
                let result = scope.engine.check_at_rest(&world);
                return result.map_err(|reason| format!("at rest: {reason}"));
            }
            let Some((_, node)) = world.next_deadline(scope) else {
                return Err("nobody waits for anything, and not all is done".to_owned());
            };
            world.tick(scope, node);
        }
        Err("it does not come to rest".to_owned())
    }

    /// Whether a node's process is not the one of the beginning.
    fn was_restarted(&self, node: NodeId) -> bool {
        let host = self.host(node);
        !host.up || host.incarnation.0 != u64::from(node.0)
    }
}

/// Timers that may run out until all is at rest.
const REST_TICKS_MAX: usize = 2_000;
