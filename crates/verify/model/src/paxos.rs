//! Multi-Paxos: one log, and proposers that duel.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quorate_harness::{Process, Subject};
use quorate_machine::{Effects, Event, Machine, Protocol};
use quorate_paxos::{Log, Message, Outbox, Settings, SlotNumber, Stream, Voter};
use quorate_types::{Incarnation, Instant, NodeId, Now, Tag};
use quorate_wire::{Reader, Writer};

use crate::engine::Engine;
use crate::history::{Answer, Store};
use crate::scope::Scope;
use crate::world::World;

const STREAM: Stream = Stream(0);

fn voter(node: NodeId) -> Voter {
    Voter { node, incarnation: Incarnation(node.0.into()) }
}

fn open(_: SlotNumber, _: &Vec<u8>) -> Option<Instant> {
    None
}

/// A node with a log, which campaigns until something is chosen if it was asked to propose.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Proposer {
    log: Log<Vec<u8>>,
    wishes: Vec<(Tag, Vec<u8>)>,
    now: Instant,
}

impl Protocol for Proposer {
    type Message<'a> = Message<Vec<u8>>;
    type Request<'a> = Vec<u8>;
    type Outcome = SlotNumber;
    type Mail = std::convert::Infallible;
}

impl Machine for Proposer {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        self.now = now.monotonic;
        let mut out = Outbox::default();
        match event {
            Event::Message { from, body, .. } => {
                let heard = self.log.on_message(self.now, voter(from), body.body, &open, &mut out);
                heard.expect("voters say what correct ones say");
            }
            Event::Request { tag, request } => self.wishes.push((tag, request)),
            Event::Tick if self.log.next_deadline() <= self.now => {
                self.log.tick(self.now, &open, &mut out);
            }
            Event::Tick | Event::View(_) | Event::Durable(_) => {}
            Event::Mail { mail, .. } => match mail {},
        }
        if !self.wishes.is_empty() && self.log.is_leading() && !self.log.is_deciding() {
            let wish = self.wishes[0].1.clone();
            self.log.propose(self.now, wish, &open, &mut out).expect("it leads");
        } else if !self.wishes.is_empty() && !self.log.is_campaigning() {
            self.log.campaign(self.now, &open, &mut out);
        }
        for (to, message) in out.messages {
            effects.send(to, &message);
        }
        // One slot is contested; a proposer that has lost it gives up.
        for (_, slot, _) in out.chosen {
            for (tag, _) in self.wishes.drain(..) {
                effects.complete(tag, slot);
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let rests = !self.wishes.is_empty() && !self.log.is_campaigning();
        let campaign = if rests { self.log.campaign_not_before() } else { Instant::NEVER };
        self.log.next_deadline().min(campaign)
    }

    fn check_invariants(&self) {
        self.log.check_invariants();
    }
}

/// The proposal of each call.
#[derive(Clone, Debug)]
pub(crate) struct Duel {
    pub(crate) calls: Vec<u8>,
}

impl Subject for Duel {
    type Machine = Proposer;

    fn start(&self, process: Process) -> Proposer {
        let Process { node, seed, now, .. } = process;
        let mut log = Log::new(STREAM, voter(node), SlotNumber(1), Settings::default(), seed);
        log.set_voters(SlotNumber(1), None, (1..=3).map(|node| voter(NodeId(node))));
        Proposer { log, wishes: Vec::new(), now: now.monotonic }
    }

    fn encode(message: &Message<Vec<u8>>, out: &mut Vec<u8>) {
        message.encode(&mut Writer(out));
    }

    fn decode(bytes: &[u8]) -> Message<Vec<u8>> {
        Message::decode(&mut Reader(bytes)).expect("machines send well-formed messages")
    }

    fn describe(message: &Message<Vec<u8>>) -> String {
        format!("{:?}", message.body)
    }
}

impl Engine for Duel {
    /// The entry chosen for each slot.
    type Ledger = BTreeMap<SlotNumber, Vec<u8>>;

    fn hash(machine: &Proposer, state: &mut impl Hasher) {
        Hash::hash(machine, state);
    }

    fn request(&self, call: usize) -> Vec<u8> {
        vec![self.calls[call]]
    }

    fn describe_call(&self, call: usize) -> String {
        format!("propose {}", char::from(self.calls[call]))
    }

    fn run(&self, _call: usize, _store: &mut Store) -> String {
        String::new()
    }

    fn answer(_outcome: &SlotNumber) -> Answer {
        Answer::Done(String::new())
    }

    fn note_sent(
        &self,
        _ledger: &mut Self::Ledger,
        _from: NodeId,
        _bytes: &[u8],
    ) -> Result<(), String> {
        Ok(())
    }

    /// A slot has one entry, on every node and for ever, and a call has proposed that entry.
    fn check(
        &self,
        _scope: &Scope<Self>,
        world: &mut World<Self>,
        step: Option<(NodeId, &Proposer)>,
    ) -> Result<(), String> {
        let Some((node, _)) = step else { return Ok(()) };
        let machine = world.host(node).machine.clone();
        let mut slot = SlotNumber(1);
        while slot < machine.log.next() {
            let entry = machine.log.chosen(slot).ok_or("a chosen entry is gone")?;
            match world.ledger.get(&slot) {
                Some(known) if known != entry => {
                    return Err(format!("{known:?} and {entry:?} were chosen for {slot:?}"));
                }
                Some(_) => {}
                None => {
                    if !self.calls.iter().any(|value| entry == &[*value]) {
                        return Err(format!("{entry:?} was chosen and never proposed"));
                    }
                    Arc::make_mut(&mut world.ledger).insert(slot, entry.clone());
                }
            }
            slot = slot.next();
        }
        Ok(())
    }

    fn is_at_rest(&self, machine: &Proposer, _now: Instant) -> bool {
        machine.wishes.is_empty() && machine.log.next_deadline() == Instant::NEVER
    }

    fn check_at_rest(&self, _world: &World<Self>) -> Result<(), String> {
        Ok(())
    }
}
