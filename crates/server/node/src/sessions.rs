//! What a lane does for sessions: it keeps leases, sees to it that a call is attempted only under a
//! grant that covers it, and asks now and then which of the sessions that have records here are
//! over. See `docs/design/006-sessions.md`.
//!
//! A lease belongs to one lane, whose lease manager alone answers for it; the lanes of a node pass requests
//! on to each other. A transactional engine runs a session's calls on the lane of its lease, so
//! that their records are there. Engines with [`CallsHome::Key`] run them on the lanes of their keys, those
//! with [`CallsHome::Keys`] see to that themselves: there a lease has records on every lane.

use std::sync::Arc;

use quorate_commands::Op;
use quorate_engine::CallsHome;
use quorate_machine::{
    CallError, Command, Effects, Event, Machine, Outcome, Refusal, SavePoint, Slab, Slot,
    Unreadable, mutant,
};
use quorate_rifl::{
    Answer, Call, Config, Genuine, Grant, Key, LeaseEnd, LeaseId, LeaseManager, Lost, Message,
    Permit, Request,
};
use quorate_types::{
    Duration, Epoch, Incarnation, Instant, KeyspaceId, LaneId, Lsn, NodeId, NodeSet, Now, Tag,
    hash_key, lane_of_hash,
};
use quorate_wire::{Header, Kind, Malformed};

use crate::engine::KeyspaceLane;
use crate::forwarding::Submission;
use crate::lane::{INTERNAL, Internal, Lane, count};
use crate::lane_log::LaneLog;
use crate::parking::Parked;
use crate::{Done, Durability, Mail, NodeConfig, Outbox};

/// The kind of the lease manager's entries in the log of a lane, beside the engines' kinds.
pub(crate) const CLOCK_ENTRY: u8 = 239;
/// Leases that one step of a sweep asks about.
const SWEPT_AT_ONCE: usize = 256;
/// Passes of the sweep in one term (the thesis's implementation does as many).
const PASSES_PER_TERM: u32 = 10;

/// A session's call on its way to an engine.
#[derive(Debug)]
pub struct SessionCall {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// Ops of one origin on one key take effect in order.
    pub origin: u64,
    /// Which call it is.
    pub call: Call,
    /// The permission that the connection has last been given.
    pub grant: Grant,
    /// What it asks for. It updates something: reads need no session.
    pub op: Op,
}

/// A call that waits for its grant.
struct Waiting {
    from: LaneId,
    tag: Tag,
    call: SessionCall,
}

/// Where the sweep stands.
struct Sweep {
    /// When its next step is due.
    at: Instant,
    /// When this pass began.
    began: Instant,
    /// The keyspace that it is at.
    keyspace: usize,
    /// The last lease that was asked about.
    after: Option<LeaseId>,
}

pub(crate) struct Sessions {
    lease_manager: LeaseManager,
    /// Requests that the lease manager has not answered: who wants the answer, and under which tag.
    asked: Slab<(LaneId, Tag)>,
    answers: Vec<(Tag, Answer)>,
    waiting: Slab<Waiting>,
    sweep: Sweep,
    /// How far beyond the date of a call's first attempt a grant should reach, in nanoseconds. Until
    /// the call times out it may be attempted again, each time with a later date.
    margin: u64,
}

impl Sessions {
    pub(crate) fn new(
        config: &NodeConfig,
        lane: LaneId,
        incarnation: Incarnation,
        now: Now,
    ) -> Self {
        let sweep = Sweep { at: now.monotonic, began: now.monotonic, keyspace: 0, after: None };
        let margin = (config.op_timeout * 2).min(config.session_term / 4);
        Self {
            lease_manager: LeaseManager::new(lease_manager_config(config, lane, incarnation)),
            asked: Slab::default(),
            answers: Vec::new(),
            waiting: Slab::default(),
            sweep,
            margin: margin.as_nanos() as u64,
        }
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.lease_manager.is_synced()
    }

    /// Hands out what a snapshot of the lane has to keep of the lease manager.
    pub(crate) fn save(&mut self, mut write: impl FnMut(&[u8])) {
        let rest = self.lease_manager.save(SavePoint::START, usize::MAX, &mut write);
        assert!(rest.is_none(), "it is one entry");
    }

    pub(crate) fn open(&self) -> u64 {
        self.lease_manager.len() as u64
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.lease_manager.next_deadline().min(self.sweep.at)
    }

    pub(crate) fn check_invariants(&self) {
        self.lease_manager.check_invariants();
    }
}

fn lease_manager_config(config: &NodeConfig, lane: LaneId, incarnation: Incarnation) -> Config {
    Config {
        term: config.session_term,
        leases_max: config.sessions_max.div_ceil(usize::from(config.lanes)),
        message_loss_timeout: config.message_loss_timeout,
        op_timeout: config.op_timeout,
        key: Key([config.seed, incarnation.0]),
        ..Config::new(config.node, incarnation, lane)
    }
}

/// What the answer to a request, or the end of a call's lease, counts as.
fn lease_refusal(answer: &Answer) -> Option<&'static str> {
    match answer {
        Answer::Granted(_) => None,
        Answer::Lost(Lost::Expired) => Some("expired"),
        Answer::Lost(Lost::Closed) => Some("closed"),
        Answer::Full => Some("too many sessions"),
        Answer::Unready => Some("no owner"),
    }
}

/// What a refused call counts as.
const fn refusal_name(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotServing => "not serving",
        Refusal::Busy => "busy",
        Refusal::TimedOut => "timed out",
        Refusal::OutOfMemory => "out of memory",
        Refusal::DiskFull => "disk full",
        Refusal::Conflict => "conflict",
        Refusal::TooLarge => "too large",
        Refusal::LeaseNeeded => "lease needed",
        Refusal::SessionFull => "session full",
        Refusal::CallError(CallError::Stale) => "stale",
        Refusal::CallError(CallError::BeyondWindow) => "beyond window",
        Refusal::CallError(CallError::Different) => "different command",
        Refusal::CallError(CallError::Closed) => "closed",
    }
}

impl Lane {
    // --- leases --------------------------------------------------------------------------------

    /// Asks for a lease for a client: a new one belongs to this lane, any other to the lane that its
    /// id names. The answer comes through [`Outbox::leased`] of this lane.
    pub fn lease(&mut self, now: Now, tag: Tag, request: Request, out: &mut Outbox) {
        assert!(tag.0 & INTERNAL == 0, "drivers leave the highest bit of a tag clear");
        self.ask(now, tag, request, out);
    }

    /// The token that a client is told with the id of a session that this node began.
    pub fn session_token(&self, lease: LeaseId) -> u64 {
        self.sessions.lease_manager.token(lease)
    }

    /// Whether a client that shows this token was told the id of the session.
    pub fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine {
        self.sessions.lease_manager.is_genuine(lease, token)
    }

    /// Passes a request on to the lane that keeps the lease.
    fn ask(&mut self, now: Now, tag: Tag, request: Request, out: &mut Outbox) {
        let lane = match request {
            Request::Open => self.id,
            Request::Renew { lease, .. } | Request::Close { lease } => lease.lane(),
        };
        if lane.0 >= self.shared.config.lanes {
            // No lane of this cluster has given it out.
            self.leased(now, tag, Answer::Lost(Lost::Expired), out);
        } else if lane == self.id {
            self.ask_lease_manager(now, self.id, tag, request, out);
        } else {
            out.mail.push((lane, Mail::Lease { from: self.id, tag, request }));
        }
    }

    /// Puts a request before this lane's lease manager, for a lane of this node.
    pub(crate) fn ask_lease_manager(
        &mut self,
        now: Now,
        from: LaneId,
        tag: Tag,
        request: Request,
        out: &mut Outbox,
    ) {
        let slot = self.sessions.asked.insert((from, tag));
        self.step_lease_manager(now, Event::Request { tag: Tag(slot.to_u64()), request }, out);
    }

    pub(crate) fn hear_lease_manager(
        &mut self,
        now: Now,
        from: NodeId,
        incarnation: Incarnation,
        header: &Header,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let body = Message::decode(body)?;
        if self.view.is_live(from, incarnation) {
            self.step_lease_manager(now, Event::Message { from, epoch: header.epoch, body }, out);
        } else {
            count(&mut self.counts.ignored, "node: sender is not live in this view");
        }
        Ok(())
    }

    pub(crate) fn step_lease_manager(
        &mut self,
        now: Now,
        event: Event<'_, LeaseManager>,
        out: &mut Outbox,
    ) {
        let (lease_manager, mut sink) = self.lease_manager_and_sink(out);
        lease_manager.step(now, event, &mut sink);
        self.pass_on_leases(now, out);
    }

    fn lease_manager_and_sink<'a>(
        &'a mut self,
        out: &'a mut Outbox,
    ) -> (&'a mut LeaseManager, LeaseManagerSink<'a>) {
        let Sessions { lease_manager, answers, .. } = &mut self.sessions;
        let (ignored, log) = (&mut self.counts.ignored, self.log.as_deref_mut());
        (lease_manager, LeaseManagerSink { out, answers, ignored, log, epoch: self.view.epoch })
    }

    /// Passes on what the lease manager has answered and what it knows to be over.
    fn pass_on_leases(&mut self, now: Now, out: &mut Outbox) {
        while let Some((tag, answer)) = self.sessions.answers.pop() {
            let asked = self.sessions.asked.remove(Slot::from_u64(tag.0));
            let (from, tag) = asked.expect("a request is answered once");
            self.tell(now, from, tag, self.as_far_as_known(now, answer), out);
        }
        let verdicts = self.sessions.lease_manager.take_verdicts();
        if verdicts.is_empty() {
            return;
        }
        let engines = self.engines.iter_mut().flatten();
        let by_key = engines.fold(false, |by_key, engine| {
            verdicts.iter().for_each(|verdict| engine.end_session(verdict));
            by_key || engine.calls_home().is_some_and(CallsHome::is_any_lane)
        });
        if by_key && !mutant!("node_verdict_stays_on_its_lane") {
            let verdicts: Arc<[LeaseEnd]> = verdicts.into();
            for lane in (0..self.shared.config.lanes).map(LaneId).filter(|lane| *lane != self.id) {
                out.mail.push((lane, Mail::Verdicts(Arc::clone(&verdicts))));
            }
        }
    }

    /// A node that was expelled without noticing may take a lease for expired, or for unknown, that a
    /// later view's owner has granted. While this node holds its lease there is no such view.
    fn as_far_as_known(&self, now: Now, answer: Answer) -> Answer {
        match answer {
            Answer::Lost(Lost::Expired) if !self.has_contact(now, true) => {
                if mutant!("node_expelled_ends_sessions") { answer } else { Answer::Unready }
            }
            answer => answer,
        }
    }

    /// Leases of another lane have ended. An engine whose records lie on the lanes of their keys may
    /// have records of them here.
    pub(crate) fn hear_verdicts(&mut self, verdicts: &[LeaseEnd]) {
        for engine in self
            .engines
            .iter_mut()
            .flatten()
            .filter(|engine| engine.calls_home().is_some_and(CallsHome::is_any_lane))
        {
            verdicts.iter().for_each(|verdict| engine.end_session(verdict));
        }
    }

    fn tell(&mut self, now: Now, to: LaneId, tag: Tag, answer: Answer, out: &mut Outbox) {
        if to == self.id {
            self.leased(now, tag, answer, out);
        } else {
            out.mail.push((to, Mail::Leased { tag, answer }));
        }
    }

    /// What a lease manager says to this lane: for a client, or for a call that waits here.
    pub(crate) fn leased(&mut self, now: Now, tag: Tag, answer: Answer, out: &mut Outbox) {
        if tag.0 & INTERNAL == 0 {
            if let Some(reason) = lease_refusal(&answer) {
                count(&mut self.counts.sessions.refused, reason);
            }
            out.leased.push((tag, answer));
            return;
        }
        let waiting = self.sessions.waiting.remove(Slot::from_u64(tag.0 & !INTERNAL));
        let Waiting { from, tag, mut call } = waiting.expect("a grant is asked for once");
        // The connection keeps a new grant; anything else is the end of the call.
        self.tell(now, from, tag, answer, out);
        if let Answer::Granted(grant) = answer {
            call.grant = grant;
            self.attempt_if_covered(now, from, tag, call, out);
        }
    }

    // --- calls ---------------------------------------------------------------------------------

    /// Submits a session's call to a keyspace whose engine has sessions. Its answer comes through
    /// [`Outbox::done`], or, if its lease is no more, through [`Outbox::leased`].
    ///
    /// It runs on the lane of the lease or of its key, or on this one. If what the connection was granted last does
    /// not reach far enough, the lease is renewed first, and the new grant comes through
    /// [`Outbox::leased`] ahead of the answer.
    pub fn call(&mut self, now: Now, tag: Tag, call: SessionCall, out: &mut Outbox) {
        assert!(tag.0 & INTERNAL == 0, "drivers leave the highest bit of a tag clear");
        assert!(call.op.updates(), "a call that only reads belongs to no session");
        self.counts.sessions.calls += 1;
        let lane = match self.engine(call.keyspace).and_then(KeyspaceLane::calls_home) {
            Some(CallsHome::Key) => lane_of_hash(hash_key(call.op.key()), self.shared.config.lanes),
            Some(CallsHome::Keys) => self.id,
            _ if mutant!("node_call_off_its_lane") => self.id,
            _ => call.call.lease.lane(),
        };
        if lane.0 >= self.shared.config.lanes {
            self.leased(now, tag, Answer::Lost(Lost::Expired), out);
        } else if lane == self.id {
            self.begin_call(now, self.id, tag, call, out);
        } else {
            out.mail.push((lane, Mail::Call { from: self.id, tag, call: Box::new(call) }));
        }
    }

    /// The earliest date of an attempt that begins now.
    fn attempt_date(&self, now: Now, keyspace: KeyspaceId) -> u64 {
        let date = self.engine(keyspace).map_or(0, |engine| engine.date(now));
        date.max(self.sessions.lease_manager.clock(now))
    }

    /// The date up to which a grant should reach for an attempt that begins now.
    fn wanted_date(&self, now: Now, keyspace: KeyspaceId) -> u64 {
        self.attempt_date(now, keyspace).saturating_add(self.sessions.margin)
    }

    /// Whether an attempt may begin under the grant that the connection has.
    fn is_covered(&self, now: Now, call: &SessionCall) -> bool {
        call.grant.covers(&self.view, self.wanted_date(now, call.keyspace))
            || mutant!("node_call_not_covered")
    }

    /// A call that runs on this lane.
    pub(crate) fn begin_call(
        &mut self,
        now: Now,
        from: LaneId,
        tag: Tag,
        call: SessionCall,
        out: &mut Outbox,
    ) {
        if !self.takes(now, call.keyspace) {
            return self.park(now, Parked::Call { from, tag, call }, out);
        }
        if self.is_covered(now, &call) {
            return self.attempt(now, from, tag, call, out);
        }
        let (lease, told) = (call.call.lease, call.grant.until);
        // No later than that: the lease managers' clocks go on from there. The clock of this lane may be
        // ahead of the one of the lease's lane, if the wall clock was set while the lanes began.
        let above = self.attempt_date(now, call.keyspace);
        let slot = self.sessions.waiting.insert(Waiting { from, tag, call });
        let tag = Tag(INTERNAL | slot.to_u64());
        self.ask(now, tag, Request::Renew { lease, told, above }, out);
    }

    /// The lease was renewed. If even that does not reach far enough, the view has changed again.
    fn attempt_if_covered(
        &mut self,
        now: Now,
        from: LaneId,
        tag: Tag,
        call: SessionCall,
        out: &mut Outbox,
    ) {
        if !self.takes(now, call.keyspace) {
            self.park(now, Parked::Call { from, tag, call }, out);
        } else if self.is_covered(now, &call) {
            self.attempt(now, from, tag, call, out);
        } else {
            self.refuse_call(from, tag, Refusal::LeaseNeeded, out);
        }
    }

    fn attempt(&mut self, now: Now, from: LaneId, tag: Tag, call: SessionCall, out: &mut Outbox) {
        let SessionCall { keyspace, origin, call, grant, op } = call;
        // The latest date that is allowed: an earlier one could only be below what replicas have
        // forgotten of other sessions.
        let permit = Permit { call, grant, date: grant.until };
        let tag = self.internal_tag(Internal::Call { from, tag });
        self.counts.submitted += 1;
        let (engine, mut sink) = self.engine_and_sink(keyspace, out);
        let submission = Submission { permit: Some(permit), ..Submission::new(tag, origin, op) };
        engine.take(now, submission, &mut sink);
        self.answer_internal(out);
    }

    pub(crate) fn refuse_call(
        &mut self,
        from: LaneId,
        tag: Tag,
        refusal: Refusal,
        out: &mut Outbox,
    ) {
        self.call_done(from, Done::new(tag, Outcome::Refused(refusal)), out);
    }

    /// A call that ran here has its answer.
    pub(crate) fn call_done(&mut self, from: LaneId, done: Done, out: &mut Outbox) {
        if let Outcome::Refused(refusal) = done.outcome {
            count(&mut self.counts.sessions.refused, refusal_name(refusal));
        }
        if from == self.id {
            out.done.push(done);
        } else {
            out.mail.push((from, Mail::Done(done)));
        }
    }

    // --- time ----------------------------------------------------------------------------------

    pub(crate) fn tick_sessions(&mut self, now: Now, out: &mut Outbox) {
        if self.sessions.lease_manager.next_deadline() <= now.monotonic {
            self.step_lease_manager(now, Event::Tick, out);
        }
        if self.sessions.sweep.at <= now.monotonic {
            self.sweep(now, out);
        }
    }

    /// One step of a sweep: takes some of the leases that have records here, and asks their owners
    /// whether they have expired.
    fn sweep(&mut self, now: Now, out: &mut Outbox) {
        let leases = self.leases_to_sweep(now);
        let mut by_lane: Vec<Vec<LeaseId>> =
            vec![Vec::new(); usize::from(self.shared.config.lanes)];
        for lease in leases {
            if let Some(of_lane) = by_lane.get_mut(usize::from(lease.lane().0)) {
                of_lane.push(lease);
            }
        }
        for (lane, leases) in (0..).map(LaneId).zip(by_lane) {
            if leases.is_empty() {
                continue;
            }
            if lane == self.id {
                self.sweep_own(now, &leases, out);
            } else {
                out.mail.push((lane, Mail::Sweep(leases)));
            }
        }
    }

    /// The next leases that engines on this lane have records of; plans the next step.
    fn leases_to_sweep(&mut self, now: Now) -> Vec<LeaseId> {
        let pass = self.shared.config.session_term / PASSES_PER_TERM;
        let sweep = &mut self.sessions.sweep;
        let mut leases = Vec::new();
        while let Some(engine) = self.engines.get(sweep.keyspace) {
            let room = SWEPT_AT_ONCE - leases.len();
            let found =
                engine.as_ref().map_or(Vec::new(), |engine| engine.leases_after(sweep.after, room));
            leases.extend_from_slice(&found);
            if found.len() == room {
                sweep.after = found.last().copied();
                sweep.at = now.monotonic + (pass / 1024).min(Duration::from_millis(10));
                return leases;
            }
            sweep.keyspace += 1;
            sweep.after = None;
        }
        let next = (sweep.began + pass).max(now.monotonic + Duration::from_millis(1));
        *sweep = Sweep { at: next, began: next, keyspace: 0, after: None };
        leases
    }

    /// Asks the owners of leases of this lane which of them have ended.
    pub(crate) fn sweep_own(&mut self, now: Now, leases: &[LeaseId], out: &mut Outbox) {
        let (lease_manager, mut sink) = self.lease_manager_and_sink(out);
        lease_manager.sweep(now, leases, &mut sink);
        self.pass_on_leases(now, out);
    }

    // --- the log ---------------------------------------------------------------------------------

    /// Takes in an entry that the lease manager of an earlier process has left.
    pub(crate) fn restore_lease_manager(&mut self, entry: &[u8]) -> Result<(), String> {
        let restored = self.sessions.lease_manager.restore(entry);
        restored.map_err(|Unreadable(why)| why.to_owned())
    }

    // --- a new life ----------------------------------------------------------------------------

    /// Begins anew with the node: leases of the former life are others' to keep.
    pub(crate) fn begin_lease_manager(&mut self, now: Now, out: &mut Outbox) {
        let config = lease_manager_config(&self.shared.config, self.id, self.incarnation());
        self.sessions.lease_manager = self.sessions.lease_manager.next_life(config);
        let asked: Vec<Slot> = self.sessions.asked.iter().map(|(slot, _)| slot).collect();
        let unready = asked.into_iter().map(|slot| (Tag(slot.to_u64()), Answer::Unready));
        self.sessions.answers.extend(unready);
        self.pass_on_leases(now, out);
    }
}

/// Where the effects of a lane's lease manager go.
struct LeaseManagerSink<'a> {
    out: &'a mut Outbox,
    answers: &'a mut Vec<(Tag, Answer)>,
    ignored: &'a mut Vec<(&'static str, u64)>,
    log: Option<&'a mut LaneLog>,
    epoch: Epoch,
}

impl Effects<LeaseManager> for LeaseManagerSink<'_> {
    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        let of = (KeyspaceId(0), CLOCK_ENTRY, Durability::Sync);
        self.log.as_mut().map_or(Lsn::START, |log| log.append(of, encode))
    }

    fn send(&mut self, to: NodeId, message: &Message) {
        self.broadcast(NodeSet::only(to), message);
    }

    fn broadcast(&mut self, to: NodeSet, message: &Message) {
        self.out.frame(to, |buffer| {
            Header::frame(buffer, Kind::Session, KeyspaceId(0), self.epoch, |writer| {
                message.encode(writer);
            });
        });
    }

    fn complete(&mut self, tag: Tag, answer: Answer) {
        self.answers.push((tag, answer));
    }

    fn ignored(&mut self, reason: &'static str) {
        count(self.ignored, reason);
    }

    fn probe(&mut self, name: &'static str) {
        count(&mut self.out.probes, name);
    }
}
