//! How a replica that catches up asks another one, question by question.

use quorate_types::{Duration, Instant, NodeId, Now};

use crate::difference::Comparing;
use crate::{Backoff, mutant};

/// Whom a replica asks that catches up, and when again. There is one question at a time. It has a
/// name, which its answer repeats, so a late or repeated answer is known. The donor keeps nothing
/// between questions. What is asked for, and what becomes of an answer, is up to the protocol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Copier {
    donor: Option<NodeId>,
    request: u64,
    comparing: Option<Comparing>,
    backoff: Backoff,
}

impl Default for Copier {
    fn default() -> Self {
        Self { donor: None, request: 0, comparing: None, backoff: Backoff::AT_REST }
    }
}

impl Copier {
    /// Turns to another donor, if there is any: the places that an earlier one has named mean nothing
    /// to it. `request` names the first question; that of a comparison is random, as it seeds the
    /// hashes of records.
    pub fn turn_to(&mut self, donor: Option<NodeId>, request: u64, comparing: Option<Comparing>) {
        *self = Self { donor, request, comparing, backoff: Backoff::default() };
    }

    /// The replica that is asked.
    pub fn donor(&self) -> Option<NodeId> {
        self.donor
    }

    /// The name of the question.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// How far this replica has come, as long as it compares records instead of copying all of them.
    pub fn comparing(&self) -> Option<&Comparing> {
        self.comparing.as_ref()
    }

    /// When the question is to be asked again.
    pub fn deadline(&self) -> Instant {
        self.backoff.deadline()
    }

    /// The question is asked; `first` is the shortest time to wait for its answer.
    pub fn ask(&mut self, now: Now, first: Duration) {
        self.backoff.begin(now, first);
    }

    /// No answer came in time: the next one gets twice as long, after at most so many doublings. A
    /// comparison looks whether this table, of so many records, has outgrown its buckets; if so, the
    /// question is another one, with a name of its own.
    pub fn lose_patience(&mut self, doublings_max: u32, records: usize) {
        self.backoff.grow(doublings_max);
        let shrinks = self.comparing.as_mut().is_some_and(|it| it.shrink_buckets(records));
        if shrinks && !mutant!("machine_outgrown_question_keeps_its_name") {
            // As random as the one before.
            self.request = self.request.wrapping_add(1 << 32 | 1);
        }
    }

    /// Whether this answers the question.
    pub fn expects(&self, from: NodeId, request: u64) -> bool {
        self.donor == Some(from) && self.request == request
    }

    /// As [`Copier::expects`], of an answer to a comparison.
    pub fn compares(&mut self, from: NodeId, request: u64) -> Option<&mut Comparing> {
        let is_expected = self.expects(from, request);
        self.comparing.as_mut().filter(|_| is_expected)
    }

    /// An answer came, and the next question has this name: the same one if it is to come again.
    pub fn answered(&mut self, now: Now, next_request: u64) {
        self.backoff.ease(now);
        self.request = next_request;
    }

    /// Goes on with a comparison in a table of so many records. Whether anything is left to compare.
    pub fn compare_on(&mut self, records: usize) -> bool {
        self.comparing.take_if(|comparing| !comparing.go_on(records));
        self.comparing.is_some()
    }

    /// The donor has given all that it has: no question is out.
    pub fn finish_donor(&mut self) {
        self.donor = None;
    }

    /// There is nothing more to ask for.
    pub fn rest(&mut self) {
        self.backoff = Backoff::AT_REST;
    }
}
