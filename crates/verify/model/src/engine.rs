//! The one trait by which a protocol plugs in.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use quorate_harness::{OutcomeOf, Process, Subject};
use quorate_machine::Protocol;
use quorate_types::{Epoch, Instant, NodeId};

use crate::history::{Answer, Store};
use crate::scope::Scope;
use crate::world::World;

/// A protocol, and its specification.
///
/// The machines are the real ones, and so are the bytes of their messages. An engine adds the
/// requests of its clients, and the specification: a ledger of what was sent, and conditions on
/// ledger and machines that must hold after every step.
pub trait Engine: Subject<Machine: Clone + Send + Sync> + Clone + Send + Sync + 'static {
    /// The specification's memory of the past. It is part of the state, so the less the better.
    type Ledger: Clone + Hash + Debug + Default + Send + Sync;

    /// Hashes a machine. A field that is left out must not decide what the machine does.
    fn hash(machine: &Self::Machine, state: &mut impl Hasher);

    /// A process that begins where another has ended, whose machine was `before`: with what is on its
    /// disk, if there is one.
    fn restart(&self, process: Process, before: &Self::Machine) -> Self::Machine {
        let _ = before;
        self.start(process)
    }

    /// The epoch that a machine is in; messages of a later epoch wait until the machine is there,
    /// too. A machine that handles views itself is in none.
    fn epoch_of(machine: &Self::Machine) -> Epoch {
        Self::epoch(machine, Epoch(0))
    }

    /// Whether a shadow holds everything that active members hold.
    fn is_caught_up(machine: &Self::Machine) -> bool {
        let _ = machine;
        false
    }

    /// Whether a machine has come to the end of the scope: from then on it does nothing.
    fn is_over(&self, machine: &Self::Machine) -> bool {
        let _ = machine;
        false
    }

    /// The request of a call.
    fn request(&self, call: usize) -> <Self::Machine as Protocol>::Request<'static>;

    /// A call in a few words, for traces.
    fn describe_call(&self, call: usize) -> String;

    /// Runs a call on a store of its own, and returns its answer.
    fn run(&self, call: usize, store: &mut Store) -> String;

    /// The answer that a client hears.
    fn answer(outcome: &OutcomeOf<Self>) -> Answer;

    /// Takes note of a message that was sent.
    ///
    /// # Errors
    /// How the message contradicts the ledger.
    fn note_sent(
        &self,
        ledger: &mut Self::Ledger,
        from: NodeId,
        bytes: &[u8],
    ) -> Result<(), String>;

    /// The power went everywhere, and what was written last is lost at more than one node.
    fn note_lost(&self, ledger: &mut Self::Ledger) {
        let _ = ledger;
    }

    /// Conditions on the states of a machine before and after a step.
    ///
    /// # Errors
    /// The condition that does not hold.
    fn check_step(&self, before: &Self::Machine, after: &Self::Machine) -> Result<(), String> {
        let _ = (before, after);
        Ok(())
    }

    /// Conditions that must hold after every step. `step` is the node that has made the step, if
    /// any, and its machine before. May note things in the ledger.
    ///
    /// # Errors
    /// The condition that does not hold.
    fn check(
        &self,
        scope: &Scope<Self>,
        world: &mut World<Self>,
        step: Option<(NodeId, &Self::Machine)>,
    ) -> Result<(), String>;

    /// Whether a machine has nothing left to do at this time.
    fn is_at_rest(&self, machine: &Self::Machine, now: Instant) -> bool;

    /// Conditions that must hold once no message is under way, and every node is in the same view
    /// and has nothing left to do.
    ///
    /// # Errors
    /// The condition that does not hold.
    fn check_at_rest(&self, world: &World<Self>) -> Result<(), String>;
}
