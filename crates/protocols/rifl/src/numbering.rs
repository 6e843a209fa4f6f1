//! Numbers for the calls of a connection whose client leaves them out.

use alloc::collections::VecDeque;

use quorate_machine::mutant;

use crate::call::{Call, LeaseId};

/// The numbers of a connection's commands, one after the other: an update is the session's call
/// under the number of its command. Every command has one, of every kind and with every result, so
/// the client knows all numbers without an answer.
///
/// The client names its *depth*: the most of its commands that are unanswered at a time. So with
/// each command it says that it has the answer to the command that came `depth` before, and the
/// command acknowledges that one. If the client sends more, a call is still not acknowledged before
/// its answer is under way; and a call that was acknowledged too early is refused when it is tried
/// again, not executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbering {
    /// The session; `None` if the client asked for one that does not exist.
    lease: Option<LeaseId>,
    next: u64,
    depth: u64,
    /// The calls without an answer: number, and place in the order of the connection's answers.
    unanswered: VecDeque<(u64, u64)>,
}

impl Numbering {
    /// The next command has the number `next`.
    ///
    /// # Panics
    /// If the depth is zero: a command has no answer before it is sent.
    pub fn new(lease: Option<LeaseId>, next: u64, depth: u64) -> Self {
        assert!(depth > 0, "one command at least is without an answer");
        Self { lease, next, depth, unanswered: VecDeque::new() }
    }

    /// Whether the numbers are those of this session.
    pub fn is_of(&self, lease: LeaseId) -> bool {
        self.lease == Some(lease)
    }

    /// The number of the next command.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The command that has come takes the next number.
    pub fn begin(&mut self) {
        self.next += 1;
    }

    /// The command that has come has to wait, and will come again.
    pub fn put_back(&mut self) {
        self.next -= 1;
    }

    /// The call of the command that has come, which is an update. Its answer has this `place`; the
    /// places below `answered` are answered.
    pub fn call(&mut self, lease: LeaseId, digest: u32, place: u64, answered: u64) -> Call {
        let sequence = self.next - 1;
        while self.unanswered.front().is_some_and(|&(_, place)| place < answered) {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((sequence, place));
        let received = (sequence + 1).saturating_sub(self.depth);
        let oldest = self.unanswered.front().map_or(sequence, |&(sequence, _)| sequence);
        let oldest = if mutant!("rifl_depth_believed") { sequence } else { oldest };
        Call { lease, sequence, first_incomplete: received.min(oldest), digest }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.unanswered.capacity() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: LeaseId = LeaseId(7);

    /// The acknowledgement of the next command as a call: its number, and the first incomplete one.
    fn call(numbering: &mut Numbering, place: u64, answered: u64) -> (u64, u64) {
        numbering.begin();
        let call = numbering.call(LEASE, 0, place, answered);
        call.check().expect("within its window");
        (call.sequence, call.first_incomplete)
    }

    #[test]
    fn who_waits_for_each_answer_acknowledges_all_before() {
        let mut numbering = Numbering::new(Some(LEASE), 5, 1);
        assert_eq!(call(&mut numbering, 0, 0), (5, 5));
        assert_eq!(call(&mut numbering, 1, 1), (6, 6));
        // A read.
        numbering.begin();
        assert_eq!(call(&mut numbering, 2, 2), (8, 8));
    }

    #[test]
    fn the_depth_says_which_answers_the_client_has() {
        let mut numbering = Numbering::new(Some(LEASE), 0, 3);
        for (number, first) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)] {
            assert_eq!(call(&mut numbering, number, number), (number, first));
        }
    }

    #[test]
    fn nothing_is_acknowledged_before_its_answer() {
        let mut numbering = Numbering::new(Some(LEASE), 0, 1);
        assert_eq!(call(&mut numbering, 0, 0), (0, 0));
        assert_eq!(call(&mut numbering, 1, 0), (1, 0));
        assert_eq!(call(&mut numbering, 2, 1), (2, 1));
        assert_eq!(call(&mut numbering, 3, 3), (3, 3));
    }

    #[test]
    fn a_command_that_waits_keeps_its_number() {
        let mut numbering = Numbering::new(Some(LEASE), 9, 1);
        numbering.begin();
        numbering.put_back();
        assert_eq!(numbering.next(), 9);
        assert_eq!(call(&mut numbering, 0, 0), (9, 9));
        assert!(numbering.is_of(LEASE) && !numbering.is_of(LeaseId(8)));
        assert!(!Numbering::new(None, 0, 1).is_of(LEASE));
    }
}
