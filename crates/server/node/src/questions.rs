//! Where a key lives: the question goes to its owner, who alone knows the whole answer.
//!
//! A node that is asked has the question answered where its engine places it, as any read: here, or at a
//! node to which it is forwarded (`forwarding.rs`). If the answer names another owner than the node that
//! gave it, the same question is forwarded to that owner, until an owner answers for itself. Usually that
//! is the second answer at the latest: members of a key's group know who owns it. While a key moves they
//! may name one that has it no more or not yet, and the question goes on, a round trip each time.
//!
//! Nothing rests on the answer. If the owner can't be reached, the client is told so as of any other
//! forwarded read.

use quorate_commands::{Op, Reply};
use quorate_engine::Place;
use quorate_machine::{Command, Outcome, Refusal, mutant};
use quorate_types::{Instant, KeyspaceId, NodeId, Now, Tag};

use crate::forwarding::Submission;
use crate::lane::Internal;
use crate::{Done, Lane, Outbox};

/// A client of this node asks where a key lives.
#[derive(Debug)]
pub(crate) struct Question {
    keyspace: KeyspaceId,
    tag: Tag,
    origin: u64,
    op: Op,
    /// Who is asked, or about to be.
    asked: NodeId,
    give_up_at: Instant,
}

/// The owner that an answer names.
fn owner_in(done: &Done) -> Option<NodeId> {
    let Outcome::Done(Reply::Array(told)) = &done.outcome else { return None };
    match told.first() {
        Some(Reply::Int(owner)) => u16::try_from(*owner).ok().map(NodeId),
        _ => None,
    }
}

impl Lane {
    /// Takes the question where a key lives.
    pub(crate) fn ask_placement(
        &mut self,
        now: Now,
        (keyspace, tag, origin): (KeyspaceId, Tag, u64),
        op: impl Command<Owned = Op, Reply = Reply<'static>>,
        out: &mut Outbox,
    ) {
        let op = op.into_owned();
        let node = self.shared.config.node;
        let engine = self.engines[usize::from(keyspace.0)].as_mut();
        let asked = match engine.map(|engine| engine.place(now, origin, &op)) {
            Some(Place::At(other)) => other,
            _ => node,
        };
        let give_up_at = now.monotonic + self.shared.config.op_timeout;
        let question = Question { keyspace, tag, origin, op, asked, give_up_at };
        self.ask_owner(now, question, out);
        self.answer_internal(out);
    }

    fn ask_owner(&mut self, now: Now, question: Question, out: &mut Outbox) {
        let Question { keyspace, origin, asked, .. } = question;
        let op = question.op.clone();
        let place = match asked == self.shared.config.node {
            true => Place::Here,
            false => Place::At(asked),
        };
        let tag = self.internal_tag(Internal::Question(Box::new(question)));
        self.counts.submitted += 1;
        let submission = Submission { place: Some(place), ..Submission::new(tag, origin, op) };
        let (engine, mut sink) = self.engine_and_sink(keyspace, out);
        engine.take(now, submission, &mut sink);
    }

    /// A node has said where a key lives.
    pub(crate) fn placement_told(&mut self, mut question: Question, done: Done, out: &mut Outbox) {
        match owner_in(&done) {
            Some(owner) if owner != question.asked && !mutant!("node_placement_told_by_any") => {
                question.asked = owner;
                self.questions.push(question);
            }
            _ => self.answer_at_last(Done { tag: question.tag, ..done }, out),
        }
    }

    /// Passes questions on to the owners that answers have named.
    pub(crate) fn ask_owners(&mut self, now: Now, out: &mut Outbox) {
        for question in std::mem::take(&mut self.questions) {
            if question.give_up_at <= now.monotonic {
                let late = Done::new(question.tag, Outcome::Refused(Refusal::TimedOut));
                self.answer_at_last(late, out);
            } else {
                self.ask_owner(now, question, out);
            }
        }
        self.answer_internal(out);
    }
}
