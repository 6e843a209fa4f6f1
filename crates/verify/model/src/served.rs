//! A machine with clients. They ask for ops of its protocol, for the same ops as calls of sessions,
//! and for the end of sessions. And the conditions on every protocol's records of calls.

use std::fmt::{self, Display};

use quorate_machine::{
    CallError, Completion, Effects, Event, Gate, Machine, Outcome, Protocol, Unreadable,
};
use quorate_rifl::{Call, Found, Grant, LeaseEnd, LeaseId, Lost, Permit, Sessions};
use quorate_types::{Incarnation, Instant, LaneId, Lsn, MemberNumber, NodeId, NodeSet, Now, Tag};

use crate::engine::Engine;
use crate::history::{Answer, Store};
use crate::scope::active;
use crate::world::World;

/// A machine that carries out calls of sessions.
pub(crate) trait Serves: Sessions + Machine<Outcome = Outcome<String>> + Clone {
    /// A request of clients.
    type Ask: Clone + Display;

    /// The protocol's request. Requests of one origin have an order of their own.
    fn request<'a>(ask: Self::Ask, origin: u64) -> Self::Request<'a>;

    /// Runs it on a store of its own, and returns its answer.
    fn run_alone(ask: &Self::Ask, store: &mut Store) -> String;

    /// The machine's knowledge of a call.
    fn fate(&self, call: &Call) -> Fate;

    /// Begins another life, with the data it has.
    fn reset(&mut self, now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>);

    /// Closes the batches of a turn.
    fn end_turn(&mut self, effects: &mut impl Effects<Self>) {
        let _ = effects;
    }
}

/// A replica's knowledge of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is completed, with this answer.
    Completed(String),
    /// It is not completed.
    Open,
    /// It is refused for good.
    Refused,
}

impl<A> From<Result<Found<'_, A>, CallError>> for Fate {
    fn from(found: Result<Found<'_, A>, CallError>) -> Self {
        match found {
            Ok(Found::Completed(answer)) => {
                Self::Completed(String::from_utf8_lossy(answer).into_owned())
            }
            Ok(Found::New | Found::InProgress(_)) => Self::Open,
            Err(_) => Self::Refused,
        }
    }
}

/// A request of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked<R> {
    /// An op without a session.
    Plain(R),
    /// A try at a session's call, under a grant of member 1 up to this date.
    Try(Call, u64, R),
    /// A replica forgets a session.
    End(LeaseEnd),
}

/// A lease of member 1.
fn lease(session: u64) -> LeaseId {
    LeaseId::new(MemberNumber(1), LaneId(0), session)
}

impl<R> Asked<R> {
    /// A try at a call; the client has the answers of all calls of its session below `first`.
    pub(crate) fn attempt([session, sequence, first]: [u64; 3], granted: u64, ask: R) -> Self {
        let (lease, digest) = (lease(session), sequence as u32);
        Self::Try(Call { lease, sequence, first_incomplete: first, digest }, granted, ask)
    }

    /// The end of a session that was granted up to this date.
    pub(crate) fn end(session: u64, granted: u64) -> Self {
        Self::End(LeaseEnd { lease: lease(session), lost: Lost::Expired, granted })
    }

    /// Runs it on a store of its own that keeps the answer to each call.
    pub(crate) fn run_alone<M: Serves<Ask = R>>(&self, store: &mut Store) -> String {
        match self {
            Self::Plain(ask) => M::run_alone(ask, store),
            Self::Try(call, _, ask) => {
                let name = format!("{:?}#{}", call.lease, call.sequence);
                if let Some(answer) = store.get(&name) {
                    return answer.clone();
                }
                let answer = M::run_alone(ask, store);
                store.insert(name, answer.clone());
                answer
            }
            Self::End(_) => String::new(),
        }
    }
}

impl<R: Display> Display for Asked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(ask) => write!(f, "{ask}"),
            Self::Try(call, granted, ask) => {
                write!(f, "{:?}#{} until {granted}: {ask}", call.lease, call.sequence)
            }
            Self::End(verdict) => write!(f, "end of {:?}", verdict.lease),
        }
    }
}

/// A call has one answer: the same in every record, and the same that clients hear.
pub(crate) fn check_records<E, M>(asked: &[Asked<M::Ask>], world: &World<E>) -> Result<(), String>
where
    E: Engine<Machine = Served<M>>,
    M: Serves + Send + Sync,
{
    for (at, asked) in asked.iter().enumerate() {
        let Asked::Try(call, ..) = asked else { continue };
        let heard = match &world.calls[at].answer {
            Some(Answer::Done(answer)) => Some(answer.clone()),
            _ => None,
        };
        let recorded = world.up().filter_map(|(_, machine)| match machine.0.fate(call) {
            Fate::Completed(answer) => Some(answer),
            Fate::Open | Fate::Refused => None,
        });
        let mut answers: Vec<String> = recorded.chain(heard).collect();
        answers.dedup();
        if answers.len() > 1 {
            return Err(format!("{asked} has two answers: {answers:?}"));
        }
    }
    Ok(())
}

/// Every replica that serves and has the effects of calls (`has_effects`, by engine) has a record
/// of each call that was answered or that some replica has recorded. Calls that are acknowledged
/// and scopes in which a session ends are exempt.
pub(crate) fn check_records_at_rest<E, M>(
    asked: &[Asked<M::Ask>],
    world: &World<E>,
    has_effects: impl Fn(&M) -> bool,
) -> Result<(), String>
where
    E: Engine<Machine = Served<M>>,
    M: Serves + Send + Sync,
{
    if asked.iter().any(|asked| matches!(asked, Asked::End(_))) {
        return Ok(());
    }
    for (at, asked) in asked.iter().enumerate() {
        let Asked::Try(call, ..) = asked else { continue };
        let machines = active(world).map(|(_, machine)| &machine.0);
        let fates: Vec<Fate> = machines.filter(|m| has_effects(m)).map(|m| m.fate(call)).collect();
        let answered = matches!(world.calls[at].answer, Some(Answer::Done(_)));
        let known = answered || fates.iter().any(|fate| matches!(fate, Fate::Completed(_)));
        if known && fates.contains(&Fate::Open) {
            return Err(format!("some replica has no record of {asked}"));
        }
    }
    Ok(())
}

/// See the module's documentation.
#[derive(Clone, Hash)]
pub(crate) struct Served<M>(pub(crate) M);

impl<M: Serves> Served<M> {
    /// Begins another life, with the data it has.
    pub(crate) fn begin_life(
        &mut self,
        now: Now,
        incarnation: Incarnation,
        effects: &mut impl Effects<Self>,
    ) {
        self.0.reset(now, incarnation, &mut Through(effects));
    }

    /// Closes the batches of a turn.
    pub(crate) fn end_turn(&mut self, effects: &mut impl Effects<Self>) {
        self.0.end_turn(&mut Through(effects));
    }
}

impl<M: Serves> Protocol for Served<M> {
    type Message<'a> = M::Message<'a>;
    type Request<'a> = Asked<M::Ask>;
    type Outcome = M::Outcome;
    type Mail = M::Mail;

    const PROBES: &'static [&'static str] = M::PROBES;
}

impl<M: Serves> Machine for Served<M> {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        let mut through = Through(effects);
        let event = match event {
            Event::Message { from, epoch, body } => Event::Message { from, epoch, body },
            Event::Request { tag, request: Asked::Plain(ask) } => {
                Event::Request { tag, request: M::request(ask, tag.0) }
            }
            Event::Request { tag, request: Asked::Try(call, date, ask) } => {
                let grant = Grant { lease: call.lease, until: date, owner: MemberNumber(1) };
                let (permit, request) = (Permit { call, grant, date }, M::request(ask, tag.0));
                return self.0.call(now, tag, permit, request, &mut through);
            }
            Event::Request { tag, request: Asked::End(verdict) } => {
                self.0.end_session(&verdict);
                return effects.complete(tag, Outcome::Done(String::new()));
            }
            Event::Mail { from, mail } => Event::Mail { from, mail },
            Event::View(view) => Event::View(view),
            Event::Durable(lsn) => Event::Durable(lsn),
            Event::Tick => Event::Tick,
        };
        self.0.step(now, event, &mut through);
    }

    fn restore(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        self.0.restore(entry)
    }

    fn restored(&mut self) {
        self.0.restored();
    }

    fn next_deadline(&self) -> Instant {
        self.0.next_deadline()
    }

    fn check_invariants(&self) {
        self.0.check_invariants();
    }
}

struct Through<'a, E>(&'a mut E);

impl<M: Serves, E: Effects<Served<M>>> Effects<M> for Through<'_, E> {
    fn send(&mut self, to: NodeId, message: &M::Message<'_>) {
        self.0.send(to, message);
    }

    fn complete(&mut self, tag: Tag, outcome: M::Outcome) {
        self.0.complete(tag, outcome);
    }

    fn send_behind(&mut self, gate: Gate, to: NodeSet, message: &M::Message<'_>) {
        self.0.send_behind(gate, to, message);
    }

    fn complete_on(&mut self, tag: Tag, completion: Completion<M::Outcome>) {
        self.0.complete_on(tag, completion);
    }

    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        self.0.append(encode)
    }

    fn mail(&mut self, to: LaneId, mail: M::Mail) {
        self.0.mail(to, mail);
    }

    fn ignored(&mut self, reason: &'static str) {
        self.0.ignored(reason);
    }

    fn probe(&mut self, name: &'static str) {
        self.0.probe(name);
    }
}
