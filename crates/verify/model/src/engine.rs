//! The one place where a protocol plugs in.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use quorate_machine::{Effects, Machine, Protocol};
use quorate_types::{Epoch, Incarnation, Instant, NodeId, Now};

use crate::history::{Answer, Store};
use crate::scope::Scope;
use crate::world::World;

/// What a machine answers to a request.
pub type Outcome<E> = <<E as Engine>::Machine as Protocol>::Outcome;

/// A protocol, and what is expected of it.
///
/// The machines are the real ones, and so are the bytes of their messages. What an engine adds is
/// how to build a machine, what its clients ask for, and the specification: a ledger that takes note
/// of what was said, and conditions on ledger and machines that must hold after every step.
pub trait Engine: Clone + Send + Sync + 'static {
    /// The machine of one node.
    type Machine: Machine + Clone + Send + Sync;
    /// What the specification remembers of the past. Part of the state, so the less the better.
    type Ledger: Clone + Hash + Debug + Default + Send + Sync;

    /// A process that starts and remembers nothing.
    fn start(&self, node: NodeId, incarnation: Incarnation, now: Now) -> Self::Machine;

    /// A process that was taken out of the view while it lived begins another life, with what it has.
    /// Only where scopes have [`crate::scope::Change::Return`].
    fn begin_life(
        machine: &mut Self::Machine,
        now: Now,
        incarnation: Incarnation,
        effects: &mut impl Effects<Self::Machine>,
    ) {
        let _ = (machine, now, incarnation, effects);
        unreachable!("no scope of this protocol has a process that returns");
    }

    /// Hashes a machine. What this leaves out must not decide what the machine does.
    fn hash(machine: &Self::Machine, state: &mut impl Hasher);

    /// The epoch that a machine is in; messages of a later one wait until it is there, too.
    fn epoch(machine: &Self::Machine) -> Epoch;

    /// Whether a shadow holds everything that active members hold.
    fn is_caught_up(machine: &Self::Machine) -> bool {
        let _ = machine;
        false
    }

    /// Whether a machine has come to where the scope ends: from then on it does nothing.
    fn is_over(&self, machine: &Self::Machine) -> bool {
        let _ = machine;
        false
    }

    /// Appends a message's bytes.
    fn encode(message: &<Self::Machine as Protocol>::Message<'_>, out: &mut Vec<u8>);

    /// Reads what [`Engine::encode`] wrote.
    fn decode(bytes: &[u8]) -> <Self::Machine as Protocol>::Message<'_>;

    /// A message in a few words, for traces.
    fn describe(bytes: &[u8]) -> String;

    /// The request of a call.
    fn request(&self, call: usize) -> <Self::Machine as Protocol>::Request<'static>;

    /// A call in a few words, for traces.
    fn describe_call(&self, call: usize) -> String;

    /// What a call does to a store that nobody else uses, and its answer.
    fn run(&self, call: usize, store: &mut Store) -> String;

    /// What a client hears.
    fn answer(outcome: &Outcome<Self>) -> Answer;

    /// Takes note of a message that was sent.
    ///
    /// # Errors
    /// What it contradicts.
    fn note_sent(
        &self,
        ledger: &mut Self::Ledger,
        from: NodeId,
        bytes: &[u8],
    ) -> Result<(), String>;

    /// What must hold between the states of a machine before and after a step.
    ///
    /// # Errors
    /// What does not.
    fn check_step(&self, before: &Self::Machine, after: &Self::Machine) -> Result<(), String> {
        let _ = (before, after);
        Ok(())
    }

    /// What must hold after every step; a node has made it, if one has, and this was its machine
    /// before. May note things in the ledger.
    ///
    /// # Errors
    /// What does not.
    fn check(
        &self,
        scope: &Scope<Self>,
        world: &mut World<Self>,
        step: Option<(NodeId, &Self::Machine)>,
    ) -> Result<(), String>;

    /// Whether a machine has nothing left to do at this time.
    fn is_at_rest(&self, machine: &Self::Machine, now: Instant) -> bool;

    /// What must hold once nothing is under way, everybody is in the same view and has nothing left
    /// to do.
    ///
    /// # Errors
    /// What does not.
    fn check_at_rest(&self, world: &World<Self>) -> Result<(), String>;
}
