//! Membership: views and leases on clocks that drift, with nodes that stop and go on.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quorate_harness::{OutcomeOf, Process, Subject};
use quorate_membership::{Config, MemberConfig, Membership, Message, Request};
use quorate_types::{Duration, Epoch, Instant, NodeId, View};
use quorate_wire::{Reader, Writer};

use crate::engine::Engine;
use crate::history::{Answer, Store};
use crate::scope::Scope;
use crate::world::World;

/// How the machines are set up.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) nodes: u16,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) suspect_after: Duration,
    /// The most by which clocks may differ, in millionths.
    pub(crate) drift_ppm: u32,
    /// A node that has reached this epoch does nothing more: it grants no lease of an earlier
    /// epoch.
    pub(crate) last: Epoch,
    /// The calls of the drivers.
    pub(crate) calls: Vec<Request>,
}

impl Subject for Members {
    type Machine = Membership;

    fn start(&self, process: Process) -> Membership {
        let Process { node, incarnation, now, .. } = process;
        let member = |node| MemberConfig {
            node: NodeId(node),
            peer_address: String::new(),
            client_address: String::new(),
            admin_address: String::new(),
        };
        let config = Config {
            lease: self.lease,
            heartbeat: self.heartbeat,
            suspect_after: self.suspect_after,
            suspect_after_max: self.suspect_after,
            link_patience: Duration::ZERO,
            drift_ppm: self.drift_ppm,
            ..Config::new(node, incarnation, (1..=self.nodes).map(member).collect())
        };
        Membership::new(config, now)
    }

    fn encode(message: &Message, out: &mut Vec<u8>) {
        message.encode(&mut Writer(out));
    }

    fn decode(bytes: &[u8]) -> Message {
        Message::decode(Reader(bytes)).expect("machines send well-formed messages")
    }

    fn describe(message: &Message) -> String {
        format!("{:?}", message.body)
    }
}

impl Engine for Members {
    /// The view of each epoch.
    type Ledger = BTreeMap<Epoch, Arc<View>>;

    fn hash(machine: &Membership, state: &mut impl Hasher) {
        Hash::hash(machine, state);
    }

    fn is_over(&self, machine: &Membership) -> bool {
        machine.view().epoch >= self.last
    }

    fn request(&self, call: usize) -> Request {
        self.calls[call].clone()
    }

    fn describe_call(&self, call: usize) -> String {
        format!("{:?}", self.calls[call])
    }

    fn run(&self, _call: usize, _store: &mut Store) -> String {
        String::new()
    }

    fn answer(_outcome: &OutcomeOf<Self>) -> Answer {
        Answer::Unknown
    }

    fn note_sent(
        &self,
        _ledger: &mut Self::Ledger,
        _from: NodeId,
        _bytes: &[u8],
    ) -> Result<(), String> {
        Ok(())
    }

    /// An epoch has one view, ever; and while a node holds its lease, no node is in a view in which
    /// the holder is not live.
    fn check(
        &self,
        scope: &Scope<Self>,
        world: &mut World<Self>,
        step: Option<(NodeId, &Membership)>,
    ) -> Result<(), String> {
        if let Some((node, _)) = step {
            let view = world.host(node).machine.view().clone();
            if view.epoch > Epoch(0) && !world.ledger.contains_key(&view.epoch) {
                Arc::make_mut(&mut world.ledger).insert(view.epoch, view.clone());
            }
            if world.ledger.get(&view.epoch).is_some_and(|known| **known != *view) {
                return Err(format!("epoch {} has two views", view.epoch));
            }
        }
        for (holder, machine) in world.up() {
            if world.clock(scope, holder) >= machine.lease_until() {
                continue;
            }
            let own = world.host(holder).incarnation;
            // All views from the holder's on, those of nodes that have since moved on included.
            let views = world.ledger.range(machine.view().epoch..);
            if let Some((epoch, _)) = { views }.find(|(_, view)| !view.is_live(holder, own)) {
                return Err(format!("{holder} holds its lease and is not live in epoch {epoch}"));
            }
        }
        Ok(())
    }

    fn is_at_rest(&self, machine: &Membership, _now: Instant) -> bool {
        machine.expelled() || !machine.view().members.is_empty()
    }

    fn check_at_rest(&self, _world: &World<Self>) -> Result<(), String> {
        Ok(())
    }
}
