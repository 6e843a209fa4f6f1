//! A Hermes machine of which clients ask for ops, for calls of sessions, and for the end of sessions.

use std::fmt;
use std::hash::Hash;

use quorate_hermes::{Hermes, Message, Meta, Request};
use quorate_machine::{Effects, Event, Machine, MapTable, Outcome, Protocol};
use quorate_rifl::{Grant, Permit, Sessions, Verdict};
use quorate_types::{Instant, MemberNumber, NodeId, Now, Tag};

use crate::history::Store;
use crate::register::Op;

/// The machine that is explored.
pub(crate) type Inner = Hermes<MapTable<Meta>, Op>;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// An op.
    Plain(Op),
    /// A try at a session's call, dated like this.
    Try(quorate_rifl::Call, u64, Op),
    /// That a replica forgets a session.
    End(Verdict),
}

/// Every lease is granted up to here, by member 1.
pub(crate) const GRANTED: u64 = 9;

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(op) => write!(f, "{op}"),
            Self::Try(call, date, op) => {
                write!(f, "{:?}#{} at {date}: {op}", call.lease, call.sequence)
            }
            Self::End(verdict) => write!(f, "end of {:?}", verdict.lease),
        }
    }
}

impl Asked {
    /// What it does to a store that nobody else uses, which keeps the answer to each call.
    pub(crate) fn run_alone(&self, store: &mut Store) -> String {
        match self {
            Self::Plain(op) => op.run_alone(store),
            Self::Try(call, _, op) => {
                let name = format!("{:?}#{}", call.lease, call.sequence);
                if let Some(answer) = store.get(&name) {
                    return answer.clone();
                }
                let answer = op.run_alone(store);
                store.insert(name, answer.clone());
                answer
            }
            Self::End(_) => String::new(),
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Hash)]
pub(crate) struct Served(pub(crate) Inner);

impl Protocol for Served {
    type Message<'a> = Message<'a>;
    type Request<'a> = Asked;
    type Outcome = Outcome<String>;
    type Mail = std::convert::Infallible;

    const PROBES: &'static [&'static str] = Inner::PROBES;
}

impl Machine for Served {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        let mut through = Through(effects);
        let event = match event {
            Event::Message { from, epoch, body } => Event::Message { from, epoch, body },
            Event::Request { tag, request: Asked::Plain(op) } => {
                Event::Request { tag, request: Request { origin: tag.0, op } }
            }
            Event::Request { tag, request: Asked::Try(call, date, op) } => {
                let (until, owner) = (GRANTED, MemberNumber(1));
                let grant = Grant { lease: call.lease, until, owner };
                let request = Request { origin: tag.0, op };
                return self.0.call(now, tag, Permit { call, grant, date }, request, &mut through);
            }
            Event::Request { tag, request: Asked::End(verdict) } => {
                self.0.end_session(&verdict);
                return effects.complete(tag, Outcome::Done(String::new()));
            }
            Event::Mail { mail, .. } => match mail {},
            Event::View(view) => Event::View(view),
            Event::Tick => Event::Tick,
        };
        self.0.step(now, event, &mut through);
    }

    fn next_deadline(&self) -> Instant {
        self.0.next_deadline()
    }

    fn check_invariants(&self) {
        self.0.check_invariants();
    }
}

struct Through<'a, E>(&'a mut E);

impl<E: Effects<Served>> Effects<Inner> for Through<'_, E> {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        self.0.send(to, message);
    }

    fn complete(&mut self, tag: Tag, outcome: Outcome<String>) {
        self.0.complete(tag, outcome);
    }

    fn complete_read(&mut self, tag: Tag, outcome: Outcome<String>) {
        self.0.complete_read(tag, outcome);
    }

    fn ignored(&mut self, reason: &'static str) {
        self.0.ignored(reason);
    }

    fn probe(&mut self, name: &'static str) {
        self.0.probe(name);
    }
}
