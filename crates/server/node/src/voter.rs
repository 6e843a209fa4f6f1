//! The voter's state on a node's disk: what lane 0 begins with, and what it has to save.

use quorate_membership::{StateError, Store};
use quorate_types::Now;

use crate::Outbox;
use crate::lane::Lane;

impl Lane {
    /// Goes on, before the first step, from what the disk of this node has: the voter's state that was saved
    /// last, if any, and what the lanes' stores have got back. From then on nothing is said to others
    /// before the state that it rests on is durable. Lane 0 only.
    ///
    /// # Errors
    /// If the state is another node's, damaged, or a newer program's.
    pub fn restore_voter(
        &mut self,
        now: Now,
        state: Option<&[u8]>,
        store: Store,
    ) -> Result<(), StateError> {
        let control = self.control.as_mut().expect("lane 0 votes for the node");
        control.restore(now, state, store, self.rng.next_u64())
    }

    /// The voter's state that has to become durable, with its number, if the caller does not have it yet:
    /// to be asked for after each call that may have changed it. Nothing on lanes other than 0, and
    /// without [`Lane::restore_voter`].
    pub fn voter_state_to_save(&mut self) -> Option<(u64, Vec<u8>)> {
        self.control.as_mut()?.voter_state_to_save()
    }

    /// The voter's states up to this number are durable. Lane 0 only.
    pub fn voter_state_saved(&mut self, now: Now, number: u64, out: &mut Outbox) {
        let control = self.control.as_mut().expect("lane 0 votes for the node");
        control.voter_state_saved(now, number, out);
        self.follow_control(now, out);
    }
}
