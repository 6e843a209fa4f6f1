//! Clients with sessions: calls that add to counters, tried again at other nodes until they are
//! answered, while late copies of their requests travel.
//!
//! The conditions: every answer to a call is the same at all nodes; no two calls see the same
//! count; in the end each counter is at least the number of acknowledged calls, and at most that
//! plus the number of unknown ones; no number that its client has not acknowledged is stale; no
//! lease is lost that was renewed in time.

mod lost;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use quorate_commands::{Block, Op, OwnedCall, Reply};
use quorate_machine::{CallError, Outcome, Refusal, Rng};
use quorate_node::SessionCall;
use quorate_rifl::{Answer, Call, ClientLease, Grant, LeaseId, Lost, Request, RequestTracker};
use quorate_types::{Duration, Instant, KeyspaceId, Tag};

use crate::Options;
use crate::keyspaces::Keyspace;
use crate::process::Entry;
use crate::session_plan::{Asks, SessionAction, SessionStep};
use crate::trace::At;
use crate::world::{self, Event, MS, World};

/// Tags with this bit belong to calls and leases; tags of other clients have it clear.
pub(crate) const SESSION_TAG: u64 = 1 << 62;
/// How long a client waits for the answer to one try.
const PATIENCE: u64 = 900 * MS;
/// Longest pause between two calls.
const THINK: u64 = 60 * MS;
/// The longest delay of a copy of a request.
const LATE: u64 = 6_000 * MS;
/// The most open calls of a client.
const OPEN_MAX: u64 = 3;
const COUNTERS: u64 = 3;
/// The reason why a client gives its session up.
const OVER: &str = "its term is over";

/// One request on its way.
#[derive(Clone, Debug)]
struct Try {
    client: usize,
    node: usize,
    lane: usize,
    what: What,
    /// A late copy: the client ignores its answer.
    copy: bool,
    sent: u64,
}

#[derive(Clone, Debug)]
enum What {
    Lease(Request),
    Call { call: Call, grant: Grant, keyspace: KeyspaceId, keys: Vec<String> },
}

/// A call whose answer is awaited.
struct Open {
    /// Its place among the calls of its client.
    number: u64,
    keyspace: KeyspaceId,
    keys: Vec<String>,
    /// The try that it waits for.
    awaited: Option<u64>,
}

struct Session {
    grant: Grant,
    /// When the request was sent that was granted last.
    granted: u64,
    client_lease: ClientLease,
    requests: RequestTracker,
    open: BTreeMap<u64, Open>,
}

struct Client {
    rng: Rng,
    session: Option<Session>,
    /// The try that asks for a lease, if any.
    asking: Option<u64>,
    closing: bool,
    /// The number of calls it has begun.
    begun: u64,
    /// The steps that a script has for it.
    session_steps: VecDeque<SessionStep>,
}

/// An answer to a call.
struct Answered {
    reply: Reply<'static>,
    at: u64,
    keyspace: KeyspaceId,
    /// The counters and what each was afterwards.
    counted: Vec<(String, i64)>,
    /// Whether its client waited for it.
    is_acknowledged: bool,
}

/// The effects of calls on one counter.
#[derive(Default)]
struct Count {
    acknowledged: u64,
    unknown: u64,
    seen: BTreeSet<i64>,
}

/// All clients with sessions of a run.
pub(crate) struct SessionClients {
    clients: Vec<Client>,
    term: Duration,
    /// Whether each keyspace is transactional.
    transactional: Vec<bool>,
    tries: BTreeMap<u64, Try>,
    next: u64,
    /// The first answer to each call.
    answers: BTreeMap<(LeaseId, u64), Answered>,
    counts: BTreeMap<(KeyspaceId, String), Count>,
    /// Calls with several counters of which a loss may have left a part.
    torn: BTreeSet<(LeaseId, u64)>,
    working: bool,
    /// Counters are being deleted: a late copy of a call counts from the start.
    pub(crate) deleting: bool,
    scripted: bool,
    record: bool,
    /// The steps they have carried out, if these are recorded.
    pub(crate) session_steps: Vec<SessionStep>,
    /// Answers that no correct cluster gives.
    pub(crate) complaints: Vec<String>,
}

/// The seed's choices for them. Drawn from a stream of its own, so that the same seed has the same
/// other clients with and without them.
pub(crate) struct SessionPlan {
    count: u16,
    pub(crate) term: Duration,
    rng: Rng,
}

impl SessionPlan {
    pub(crate) fn draw(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ u64::from_le_bytes(*b"sessions"));
        let drawn = rng.below(4) as u16;
        let term = Duration::from_secs([4, 8, 30, 1800][rng.below(4) as usize]);
        let count =
            if options.engine.has_sessions() { options.sessions.unwrap_or(drawn) } else { 0 };
        Self { count, term, rng }
    }
}

impl fmt::Display for SessionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            0 => Ok(()),
            count => write!(f, ", {count} sessions of {} s", self.term.as_secs()),
        }
    }
}

impl SessionClients {
    /// Clients that follow these steps, or draw their own; the steps are recorded if `record` says
    /// so.
    pub(crate) fn new(
        plan: SessionPlan,
        session_steps: Option<&[SessionStep]>,
        record: bool,
        world: &mut World,
    ) -> Self {
        let SessionPlan { count, term, mut rng } = plan;
        let scripted = session_steps.is_some();
        let clients: Vec<Client> = (0..usize::from(count))
            .map(|index| {
                let drawn = world.time + rng.below(THINK);
                let session_steps = session_steps.into_iter().flatten();
                let session_steps: VecDeque<SessionStep> = session_steps
                    .filter(|session_step| session_step.client == index)
                    .cloned()
                    .collect();
                let first = if scripted {
                    session_steps.front().map(|session_step| session_step.at)
                } else {
                    Some(drawn)
                };
                if let Some(at) = first {
                    world.schedule(at, Event::Session(index));
                }
                let (rng, closing, begun) = (rng.fork(), false, 0);
                Client { rng, session: None, asking: None, closing, begun, session_steps }
            })
            .collect();
        Self {
            clients,
            term,
            transactional: world.keyspaces.iter().map(Keyspace::is_transactional).collect(),
            tries: BTreeMap::new(),
            next: 0,
            answers: BTreeMap::new(),
            counts: BTreeMap::new(),
            torn: BTreeSet::new(),
            working: true,
            deleting: false,
            scripted,
            record,
            session_steps: Vec::new(),
            complaints: Vec::new(),
        }
    }

    /// No client begins a call any more; open calls go on.
    pub(crate) fn stop(&mut self) {
        self.working = false;
    }

    /// Whether some call has no answer.
    pub(crate) fn any_waiting(&self) -> bool {
        let waits = |client: &Client| {
            client.session.as_ref().is_some_and(|session| !session.open.is_empty())
        };
        self.clients.iter().any(waits)
    }

    /// The number of acknowledged calls, and of those of unknown fate.
    pub(crate) fn totals(&self) -> [u64; 2] {
        let sum = |of: fn(&Count) -> u64| self.counts.values().map(of).sum();
        [sum(|count| count.acknowledged), sum(|count| count.unknown)]
    }

    pub(crate) fn handle(&mut self, world: &mut World, event: &Event) {
        match *event {
            Event::Session(index) if self.scripted => self.follow(world, index),
            Event::Session(index) => self.act(world, index),
            Event::SessionAgain { client, lease, sequence } => {
                let session = self.clients[client].session.as_ref();
                let session = session.filter(|session| session.grant.lease == lease);
                let open = session.and_then(|session| session.open.get(&sequence));
                if open.is_some_and(|open| open.awaited.is_none()) {
                    self.call(world, client, sequence);
                }
            }
            Event::SessionTry { number } => self.arrive(world, number),
            Event::SessionTimeout { number } => {
                if let Some(one) = self.tries.remove(&number) {
                    self.try_again(world, number, &one);
                }
            }
            _ => unreachable!("not an event of a client with a session: {event:?}"),
        }
    }

    /// Passes on the answers of nodes.
    pub(crate) fn collect(&mut self, world: &mut World) {
        for (tag, answer) in std::mem::take(&mut world.leased) {
            self.leased(world, tag, answer);
        }
        let mine = |answer: &mut world::Answer| answer.tag.0 & SESSION_TAG != 0;
        for answer in world.answers.extract_if(.., mine).collect::<Vec<_>>() {
            self.answered(world, answer.tag, answer.outcome);
        }
    }

    fn now(world: &World) -> Instant {
        Instant(world.time)
    }

    // --- what clients do -------------------------------------------------------------------------

    fn act(&mut self, world: &mut World, index: usize) {
        let now = Self::now(world);
        let think = self.clients[index].rng.below(THINK);
        world.schedule(world.time + think, Event::Session(index));
        let client = &mut self.clients[index];
        if client.asking.is_some() {
            return;
        }
        let Some(session) = &mut client.session else {
            if self.working {
                self.ask(world, index, Request::Open);
            }
            return;
        };
        let lease = session.grant.lease;
        if session.client_lease.is_over(now) {
            self.note_step(world, index, SessionAction::GiveUp);
            return self.lose(world, index, OVER);
        }
        if now >= session.client_lease.renew_at() {
            let told = session.grant.until;
            return self.ask(world, index, Request::Renew { lease, told, above: 0 });
        }
        if client.closing || (session.open.is_empty() && client.rng.chance(1, 60)) {
            client.closing = true;
            if session.open.is_empty() {
                self.ask(world, index, Request::Close { lease });
            }
            return;
        }
        if self.working
            && session.requests.open() < OPEN_MAX
            && session.client_lease.may_begin(now)
            && let Some(sequence) = session.requests.begin()
        {
            // With one keyspace, nothing is drawn.
            let count = self.transactional.len() as u64;
            let at = if count > 1 { client.rng.below(count) } else { 0 };
            let keyspace = KeyspaceId(at as u8);
            let mut keys = vec![format!("call:{}", client.rng.below(COUNTERS))];
            if self.transactional[at as usize] && client.rng.chance(1, 2) {
                keys.push(format!("call:{}", COUNTERS + client.rng.below(COUNTERS)));
            }
            let open = Open { number: client.begun, keyspace, keys, awaited: None };
            session.open.insert(sequence, open);
            client.begun += 1;
            self.call(world, index, sequence);
        }
    }

    /// Takes the script's steps for this moment, as far as possible: earlier steps that they build
    /// on may have been left out.
    fn follow(&mut self, world: &mut World, index: usize) {
        let now = Self::now(world);
        let session_steps = &mut self.clients[index].session_steps;
        let later = session_steps.partition_point(|session_step| session_step.at <= world.time);
        let due: Vec<SessionStep> = session_steps.drain(..later).collect();
        if let Some(next) = session_steps.front() {
            world.schedule(next.at, Event::Session(index));
        }
        for SessionStep { action, .. } in due {
            let session = self.clients[index].session.as_ref();
            if session.is_some_and(|session| session.client_lease.is_over(now)) {
                self.lose(world, index, OVER);
            }
            if let SessionAction::Send { node, lane, late, asks } = action
                && node < world.nodes.len()
                && lane < world.lanes()
                && let Some(what) = self.prepare(now, index, &asks, late.is_some())
            {
                self.post(world, index, what, (node, lane), late);
            }
        }
    }

    /// The request that a client's script asks for, if the client can make it.
    fn prepare(&mut self, now: Instant, index: usize, asks: &Asks, copy: bool) -> Option<What> {
        if let Asks::Call(_, keyspace, keys) = asks
            && !self.has(*keyspace, keys.len() > 1)
        {
            return None;
        }
        let client = &mut self.clients[index];
        let free = copy || client.asking.is_none();
        let Some(session) = &mut client.session else {
            let opens = *asks == Asks::Open && free && !copy && self.working;
            return opens.then_some(What::Lease(Request::Open));
        };
        let lease = session.grant.lease;
        match asks {
            Asks::Open => None,
            Asks::Renew => {
                let told = session.grant.until;
                free.then_some(What::Lease(Request::Renew { lease, told, above: 0 }))
            }
            Asks::Close => {
                let closes = free && session.open.is_empty();
                client.closing |= closes;
                closes.then_some(What::Lease(Request::Close { lease }))
            }
            Asks::Call(number, keyspace, keys) => {
                let open = session.open.iter().find(|(_, open)| open.number == *number);
                let sequence = match open {
                    Some((sequence, _)) => *sequence,
                    None => {
                        let begins = self.working && !copy && !client.closing;
                        if !begins || *number < client.begun || !session.client_lease.may_begin(now)
                        {
                            return None;
                        }
                        let sequence = session.requests.begin()?;
                        client.begun = number + 1;
                        let (number, keyspace, keys) = (*number, *keyspace, keys.clone());
                        let open = Open { number, keyspace, keys, awaited: None };
                        session.open.insert(sequence, open);
                        sequence
                    }
                };
                Some(self.what_of(index, sequence))
            }
        }
    }

    fn ask(&mut self, world: &mut World, index: usize, request: Request) {
        let asks = match request {
            Request::Open => Asks::Open,
            Request::Renew { .. } => Asks::Renew,
            Request::Close { .. } => Asks::Close,
        };
        self.send(world, index, What::Lease(request), &asks);
    }

    /// Tries a call, at any node.
    fn call(&mut self, world: &mut World, index: usize, sequence: u64) {
        let session = self.clients[index].session.as_ref().expect("calls are of a session");
        let open = &session.open[&sequence];
        let asks = Asks::Call(open.number, open.keyspace, open.keys.clone());
        let what = self.what_of(index, sequence);
        self.send(world, index, what, &asks);
    }

    /// A try at an open call.
    fn what_of(&self, index: usize, sequence: u64) -> What {
        let session = self.clients[index].session.as_ref().expect("calls are of a session");
        let Open { keyspace, keys, .. } = &session.open[&sequence];
        let (keyspace, keys) = (*keyspace, keys.clone());
        let call = Call {
            lease: session.grant.lease,
            sequence,
            first_incomplete: session.requests.first_incomplete(),
            digest: op_on(&keys).digest(),
        };
        What::Call { call, grant: session.grant, keyspace, keys }
    }

    /// Sends a request to any node, and now and then a late copy of it to another.
    fn send(&mut self, world: &mut World, index: usize, what: What, asks: &Asks) {
        let (nodes, lanes) = (world.nodes.len() as u64, u64::from(world.lanes()));
        let rng = &mut self.clients[index].rng;
        let mut draw = || (rng.below(nodes) as usize, rng.below(lanes) as u16);
        let (first, second) = (draw(), draw());
        let late = rng.chance(1, 6).then(|| rng.below(LATE));
        // A copy is pointless for a new lease, whose second answer no client hears.
        let late = late.filter(|_| *asks != Asks::Open);
        let copy = late.map(|late| (second, Some(late)));
        for ((node, lane), late) in [Some((first, None)), copy].into_iter().flatten() {
            let action = SessionAction::Send { node, lane, late, asks: asks.clone() };
            self.note_step(world, index, action);
            self.post(world, index, what.clone(), (node, lane), late);
        }
    }

    fn note_step(&mut self, world: &World, client: usize, action: SessionAction) {
        if self.record {
            self.session_steps.push(SessionStep { at: world.time, client, action });
        }
    }

    /// Sends a request to a node and lane; a copy arrives this much later.
    fn post(
        &mut self,
        world: &mut World,
        index: usize,
        what: What,
        (node, lane): (usize, u16),
        late: Option<u64>,
    ) {
        self.next += 1;
        let number = self.next;
        if late.is_none() {
            let client = &mut self.clients[index];
            match &what {
                What::Lease(_) => client.asking = Some(number),
                What::Call { call, .. } => {
                    let session = client.session.as_mut().expect("calls are of a session");
                    let open = session.open.get_mut(&call.sequence);
                    open.expect("a call that is tried is open").awaited = Some(number);
                }
            }
        }
        let (client, lane, copy) = (index, usize::from(lane), late.is_some());
        self.tries.insert(number, Try { client, node, lane, what, copy, sent: world.time });
        let at = world.time + late.unwrap_or(0);
        world.schedule(at, Event::SessionTry { number });
        world.schedule(at + PATIENCE, Event::SessionTimeout { number });
    }

    fn arrive(&mut self, world: &mut World, number: u64) {
        let Some(one) = self.tries.get(&number) else { return };
        let (node, lane) = (one.node, one.lane);
        if !world.nodes[node].up {
            return;
        }
        if world.hold(node, lane as u16, Event::SessionTry { number }).is_none() {
            return;
        }
        let (tag, origin) = (Tag(SESSION_TAG | number), one.client as u64);
        match &one.what {
            What::Lease(request) => world.lease(node, lane, tag, *request),
            What::Call { call, grant, keyspace, keys } => {
                let op = op_on(keys);
                let (keyspace, call, grant) = (*keyspace, *call, *grant);
                let call = SessionCall { keyspace, origin, call, grant, op };
                world.call(node, lane, tag, call);
            }
        }
    }

    // --- answers ---------------------------------------------------------------------------------

    fn leased(&mut self, world: &mut World, tag: Tag, answer: Answer) {
        let number = tag.0 & !SESSION_TAG;
        let Some(one) = self.tries.get(&number).cloned() else { return };
        Self::note(world, number, &one, &format!("{answer:?}"));
        let index = one.client;
        match (&one.what, answer) {
            // The call goes on, and its client learns of the renewal.
            (What::Call { .. }, Answer::Granted(grant)) => self.renewed(index, one.sent, grant),
            (What::Call { call, grant, .. }, Answer::Lost(lost)) => {
                self.tries.remove(&number);
                // A node judges by what it was shown. The grant that a copy carries may be outdated, and so
                // may that of a try which was on its way when another one was granted.
                if one.copy || self.has_later_grant(index, call.lease, grant.until) {
                    self.try_again(world, number, &one);
                } else {
                    self.lost(world, index, call.lease, lost);
                }
            }
            (What::Lease(request), answer) => {
                self.tries.remove(&number);
                let asked = self.clients[index].asking == Some(number);
                if asked {
                    self.clients[index].asking = None;
                }
                match (request, answer) {
                    (Request::Open, Answer::Granted(grant)) if asked => {
                        let client_lease = ClientLease::new(Instant(one.sent), self.term);
                        let (requests, open) = (RequestTracker::default(), BTreeMap::new());
                        let granted = one.sent;
                        let session = Session { grant, granted, client_lease, requests, open };
                        self.clients[index].session = Some(session);
                        self.clients[index].closing = false;
                    }
                    (Request::Renew { .. }, Answer::Granted(grant)) => {
                        self.renewed(index, one.sent, grant);
                    }
                    (Request::Close { .. }, Answer::Lost(_)) if asked => {
                        self.clients[index].session = None;
                    }
                    (Request::Renew { lease, told, .. }, Answer::Lost(lost))
                        if asked && !self.has_later_grant(index, *lease, *told) =>
                    {
                        self.lost(world, index, *lease, lost);
                    }
                    _ => {}
                }
            }
            (What::Call { .. }, Answer::Full | Answer::Unready) => {
                self.tries.remove(&number);
                self.try_again(world, number, &one);
            }
        }
    }

    /// Whether a client has been told of a later grant than the one that was shown: it shows that next.
    fn has_later_grant(&self, index: usize, lease: LeaseId, shown: u64) -> bool {
        let session = self.clients[index].session.as_ref();
        session.is_some_and(|one| one.grant.lease == lease && shown < one.grant.until)
    }

    fn renewed(&mut self, index: usize, sent: u64, grant: Grant) {
        if let Some(session) = &mut self.clients[index].session
            && session.grant.lease == grant.lease
            && session.grant.until < grant.until
        {
            (session.grant, session.granted) = (grant, session.granted.max(sent));
            session.client_lease.renewed(Instant(sent), self.term);
        }
    }

    /// A node says that a lease has ended. It may say so of a lease that its client was about to
    /// close.
    fn lost(&mut self, world: &mut World, index: usize, lease: LeaseId, lost: Lost) {
        let client = &self.clients[index];
        let Some(session) = client.session.as_ref().filter(|one| one.grant.lease == lease) else {
            return;
        };
        // The dates of transactions follow the wall clock that is furthest ahead, and move on the
        // clocks by which leases end (docs/design/006-sessions.md).
        let (least, most) = world.wall_errors;
        let ahead = if self.transactional.contains(&true) { most.abs_diff(least) } else { 0 };
        // An owner grants a little less than a term, and clocks differ.
        let now = Self::now(world) + Duration::from_nanos(ahead);
        let safe = now < session.client_lease.renew_at() + self.term / 4;
        // The clock of the granting node may have run faster.
        let right = world.nodes.iter().all(|node| node.monotonic.was_always_right());
        // Nobody knows it any more who has granted it.
        let is_forgotten = world.powerless_at.is_some_and(|at| at >= session.granted);
        if safe && right && !client.closing && !is_forgotten {
            self.complaints.push(format!("{lease:?} is {lost:?} although it was renewed in time"));
        }
        self.lose(world, index, "a node says that it is over");
    }

    /// The client loses its session: its open calls stay unknown.
    fn lose(&mut self, world: &mut World, index: usize, why: &str) {
        let Some(session) = self.clients[index].session.take() else { return };
        self.clients[index].asking = None;
        let time = world.time;
        let lease = session.grant.lease;
        world.trace.event(&[time, 31, lease.0, session.open.len() as u64], || {
            format!("{} session {lease:?} of client {index} is lost: {why}", At(time))
        });
        session.open.into_values().for_each(|open| self.never_known(open));
    }

    fn answered(&mut self, world: &mut World, tag: Tag, outcome: Outcome<Reply<'static>>) {
        let number = tag.0 & !SESSION_TAG;
        let Some(one) = self.tries.remove(&number) else { return };
        Self::note(world, number, &one, &format!("{outcome:?}"));
        let What::Call { call, keyspace, keys, .. } = &one.what else {
            unreachable!("a request for a lease is answered as such")
        };
        match outcome {
            Outcome::Done(reply) => {
                self.done(one.client, call, (*keyspace, keys), (reply, world.time));
            }
            Outcome::Refused(Refusal::CallError(why)) => {
                let session = self.clients[one.client].session.as_ref();
                let session = session.filter(|session| session.grant.lease == call.lease);
                let is_open = session.is_some_and(|one| one.open.contains_key(&call.sequence));
                if why == CallError::Different || why == CallError::BeyondWindow || is_open {
                    self.complaints.push(format!("{call:?} is refused as {why:?}"));
                }
            }
            Outcome::Refused(_) | Outcome::Unknown => self.try_again(world, number, &one),
        }
    }

    /// A call has an answer: from the first try with one, or from another, whose answer must be the
    /// same.
    fn done(
        &mut self,
        index: usize,
        call: &Call,
        (keyspace, keys): (KeyspaceId, &[String]),
        (reply, at): (Reply<'static>, u64),
    ) {
        let id = (call.lease, call.sequence);
        if let Some(Answered { reply: first, .. }) = self.answers.get(&id) {
            if *first != reply {
                self.complaints.push(format!("{call:?} is answered {first:?} and {reply:?}"));
            }
            return;
        }
        let counted: Vec<i64> = match &reply {
            Reply::Int(count) if keys.len() == 1 => vec![*count],
            Reply::Array(counts) if counts.len() == keys.len() => counts
                .iter()
                .filter_map(|count| if let Reply::Int(count) = count { Some(*count) } else { None })
                .collect(),
            _ => Vec::new(),
        };
        if counted.len() != keys.len() {
            return self.complaints.push(format!("{call:?} is answered {reply:?}"));
        }
        // Its record may be left, and not all that it says.
        let is_torn = self.torn.contains(&id);
        // The client may have given the call up: then the call counts as unknown.
        let counted: Vec<(String, i64)> = keys.iter().cloned().zip(counted).collect();
        for (key, count) in &counted {
            let counts = self.counts.entry((keyspace, key.clone())).or_default();
            if !is_torn && !counts.seen.insert(*count) && !self.deleting {
                self.complaints.push(format!("{call:?} and another call both saw {key} = {count}"));
            }
        }
        let session = self.clients[index].session.as_mut();
        let session = session.filter(|session| session.grant.lease == call.lease);
        let mut is_acknowledged = false;
        if let Some(session) = session
            && session.open.remove(&call.sequence).is_some()
        {
            is_acknowledged = !is_torn;
            session.requests.complete(call.sequence);
            for key in keys {
                let counts = self.counts.entry((keyspace, key.clone())).or_default();
                *(if is_torn { &mut counts.unknown } else { &mut counts.acknowledged }) += 1;
            }
        }
        self.answers.insert(id, Answered { reply, at, keyspace, counted, is_acknowledged });
    }

    /// A try ended without an answer.
    fn try_again(&mut self, world: &mut World, number: u64, one: &Try) {
        let index = one.client;
        match &one.what {
            What::Lease(_) => {
                if self.clients[index].asking == Some(number) {
                    self.clients[index].asking = None;
                }
            }
            What::Call { call, .. } if self.scripted => self.give_up_unless_tried(index, call),
            What::Call { call, .. } => {
                let session = self.clients[index].session.as_mut();
                let session = session.filter(|session| session.grant.lease == call.lease);
                let open = session.and_then(|session| session.open.get_mut(&call.sequence));
                let Some(open) = open.filter(|open| open.awaited == Some(number)) else { return };
                open.awaited = None;
                let pause = MS + self.clients[index].rng.below(THINK);
                let Call { lease, sequence, .. } = *call;
                let again = Event::SessionAgain { client: index, lease, sequence };
                world.schedule(world.time + pause, again);
            }
        }
    }

    /// A call that the script tries no more stays unknown, once no try at it is under way.
    fn give_up_unless_tried(&mut self, index: usize, call: &Call) {
        let client = &mut self.clients[index];
        let session = client.session.as_mut().filter(|one| one.grant.lease == call.lease);
        let Some(session) = session else { return };
        let Some(open) = session.open.get(&call.sequence) else { return };
        let is_same = |other: &Call| (other.lease, other.sequence) == (call.lease, call.sequence);
        let on_its_way = |one: &Try| matches!(&one.what, What::Call { call, .. } if is_same(call));
        let will_be_sent = |session_step: &SessionStep| match &session_step.action {
            SessionAction::Send { asks: Asks::Call(number, ..), .. } => *number == open.number,
            _ => false,
        };
        if self.tries.values().any(on_its_way) || client.session_steps.iter().any(will_be_sent) {
            return;
        }
        if let Some(open) = session.open.remove(&call.sequence) {
            self.never_known(open);
        }
    }

    /// The fate of a call stays unknown.
    fn never_known(&mut self, open: Open) {
        for key in open.keys {
            self.counts.entry((open.keyspace, key)).or_default().unknown += 1;
        }
    }

    /// Whether there is such a keyspace, with transactions if `transactions` asks for them.
    fn has(&self, keyspace: KeyspaceId, transactions: bool) -> bool {
        let found = self.transactional.get(usize::from(keyspace.0));
        found.is_some_and(|transactional| *transactional || !transactions)
    }

    fn note(world: &mut World, number: u64, one: &Try, text: &str) {
        let time = world.time;
        let hash = crate::network::hash(text.as_bytes());
        world.trace.event(&[time, 30, number, hash], || {
            format!("{} client {} with a session: {:?}: {text}", At(time), one.client, one.what)
        });
    }

    // --- the end ---------------------------------------------------------------------------------

    /// The contradiction, if any, between the counters of a keyspace and its content in the end.
    pub(crate) fn contradiction(&self, keyspace: KeyspaceId, contents: &[Entry]) -> Option<String> {
        let value = |key: &str| {
            let found = contents.iter().find(|(name, ..)| name == key);
            found.map_or(Ok(0), |(_, _, value)| value.parse::<u64>())
        };
        let mut counts = self.counts.iter().filter(|((of, _), _)| *of == keyspace);
        counts.find_map(|((_, key), count)| {
            let Count { acknowledged, unknown, .. } = count;
            let held = value(key).ok();
            let fits =
                held.is_some_and(|held| *acknowledged <= held && held <= acknowledged + unknown);
            (!fits).then(|| {
                format!(
                    "{key} is {held:?}: {acknowledged} calls are acknowledged, {unknown} unknown"
                )
            })
        })
    }
}

/// Adds one to each key.
fn op_on(keys: &[String]) -> Op {
    let call = |key: &String| {
        OwnedCall::new([&b"INCR"[..], key.as_bytes()]).expect("clients know the commands")
    };
    match keys {
        [key] => Op::Call(call(key)),
        _ => {
            let calls = keys.iter().map(call).collect();
            Op::Block(Block { watches: Vec::new(), calls })
        }
    }
}
