//! The network of a world: the fate of each message.

use std::collections::BTreeMap;

use quorate_machine::Rng;
use quorate_types::{Incarnation, NodeId};
use quorate_wire::{Header, Kind};

use crate::links::LinkTable;
use crate::script::{Fate, MessageId, Process};
use crate::trace::At;
use crate::world::{Event, MS, World};

/// How messages travel.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Shortest one-way delay.
    pub(crate) delay: u64,
    /// Random part of the delay, uniform; 0 keeps every link in order.
    pub(crate) jitter: u64,
    /// Messages lost, of 1000.
    pub(crate) loss: u64,
    /// Messages that arrive twice, of 1000.
    pub(crate) duplication: u64,
    /// Messages that come very late, of 1000.
    pub(crate) straggling: u64,
    /// Messages of one link stay in order, and those of the membership service are not disturbed.
    pub(crate) ordered: bool,
    /// Nanoseconds that 1024 bytes take on a link, in order; 0 for unlimited links.
    pub(crate) pace: u64,
    /// Bytes that may wait for one peer, in a turn's output or on a link; further messages are
    /// dropped.
    pub(crate) buffer_bytes: usize,
    /// For the time being messages are neither lost nor overtaken by seconds.
    pub(crate) calm: bool,
    /// The faults of single links.
    pub(crate) links: LinkTable,
}

/// The fates of messages: drawn, or as a script has them.
pub(crate) struct Fates {
    rng: Rng,
    /// The time of the latest message on each link, and how many were sent at that time.
    counts: BTreeMap<(u16, u16, u16), (u64, u64)>,
    /// The time at which the last message arrives on each link, if messages stay in order.
    last: BTreeMap<(u16, u16, u16), u64>,
    pub(crate) script: Option<BTreeMap<MessageId, Fate>>,
    /// The drawn fates, if they are recorded.
    pub(crate) drawn: Option<Vec<(MessageId, Fate)>>,
}

impl Fates {
    pub(crate) fn new(rng: Rng) -> Self {
        let (counts, last) = (BTreeMap::new(), BTreeMap::new());
        Self { rng, counts, last, script: None, drawn: None }
    }
}

impl Network {
    /// How long so many bytes take over a link, if links have a bandwidth.
    pub(crate) fn transfer(&self, bytes: usize) -> u64 {
        bytes as u64 * self.pace / 1024
    }

    /// Whether messages get through, apart from the faults of single links.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm || (self.loss == 0 && self.straggling == 0)
    }
}

impl World {
    /// Ends the faults of messages and turns.
    pub(crate) fn heal_network(&mut self) {
        self.network.loss = 0;
        self.network.duplication = 0;
        self.network.straggling = 0;
        self.interruptions.chance = 0;
        self.healed = true;
    }

    /// Ends the faults of single links. Connections that were given up stand again.
    pub(crate) fn mend_links(&mut self) {
        self.changed();
        for (from, to, lane) in self.network.links.mend() {
            for (node, found) in [(from, to), (to, from)] {
                let life = self.nodes[node].life;
                self.schedule(self.time + MS, Event::PeerFound { node, life, lane, found });
            }
        }
    }

    /// Both ends of long cut connections hear that these are gone.
    pub(crate) fn give_up_links(&mut self) {
        for (from, to, lane) in self.network.links.give_up(self.time) {
            for (node, lost) in [(from, to), (to, from)] {
                self.tell_lost(self.time, node, self.nodes[lost].id, lane);
            }
        }
    }

    /// Breaks a connection, which stands again a while later: messages sent before arrive, and all
    /// later ones until then are lost in both directions. Its ends learn of it one by one, as the
    /// runtime tells them.
    fn break_connection(&mut self, from: usize, to: usize, lane: u16, span: u64) {
        let ends = [from, to].map(|node| self.nodes[node].id);
        if self.healed || !self.may_silence(ends.into_iter().collect()) {
            return;
        }
        let (time, until) = (self.time, self.time + span);
        self.changed();
        self.quiet_at = self.quiet_at.max(until + self.disturbance());
        for (node, peer, learns) in [(from, to, span / 4), (to, from, span / 2)] {
            self.network.links.at(node, peer, lane).break_until(until);
            self.tell_lost(time + learns, node, self.nodes[peer].id, lane);
            let life = self.nodes[node].life;
            self.schedule(until, Event::PeerFound { node, life, lane, found: peer });
        }
        let words = [time, 36, u64::from(ends[0].0), u64::from(ends[1].0), u64::from(lane), span];
        self.trace.event(&words, || {
            let [from, to] = ends;
            format!("{} {from:?} -x- {to:?}/{lane} broken for {} ms", At(time), span / MS)
        });
    }

    /// Whether the node dies now, instead of sending an engine message.
    fn ambushed(&mut self, node: usize) -> bool {
        let Some((victim, left)) = &mut self.ambush else { return false };
        if *victim != node {
            return false;
        }
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.ambush = None;
        self.may_kill(node)
    }

    /// Sends messages one by one, each with a fate of its own.
    pub(crate) fn transmit(
        &mut self,
        from: usize,
        lane: u16,
        to: NodeId,
        incarnation: Incarnation,
        bytes: &[u8],
    ) {
        let sender = self.nodes[from].id;
        let to_guest = usize::from(to.0) > self.nodes.len();
        let mut rest = bytes;
        loop {
            let before = rest;
            let header = Header::split(&mut rest).expect("lanes send whole messages");
            let Some((header, _)) = header else { break };
            let of_engine = header.kind != Kind::Membership;
            if of_engine && self.ambushed(from) {
                self.kill(from);
                self.ambushed.push(Process::Node(from));
                return;
            }
            let message = &before[..before.len() - rest.len()];
            self.messages += 1;
            self.flow.count(sender, &header, message);
            if to_guest {
                self.tell_guest(from, lane, to, message);
                continue;
            }
            let target = self.index(to);
            if let Some(span) = self.network.links.at(from, target, lane).count() {
                self.break_connection(from, target, lane, span);
            }
            let Network { pace, buffer_bytes, ref mut links, .. } = self.network;
            let link = links.at(from, target, lane);
            let cut = !link.carries(self.time);
            let Some(late_by) = link.queue(self.time, message.len(), pace, buffer_bytes) else {
                continue;
            };
            let delays = if of_engine || !self.network.ordered {
                self.carry(sender, to, lane, cut, message)
            } else {
                [Some(self.network.delay), None]
            };
            for delay in delays.into_iter().flatten() {
                let at = self.time + late_by + delay;
                let link = self.nodes[target].link;
                let bytes = message.to_vec();
                self.schedule(
                    at,
                    Event::Packet { to: target, link, lane, from: sender, incarnation, bytes },
                );
            }
        }
    }

    /// The delays after which copies of a message arrive, if any do.
    pub(crate) fn carry(
        &mut self,
        sender: NodeId,
        to: NodeId,
        lane: u16,
        cut: bool,
        message: &[u8],
    ) -> [Option<u64>; 2] {
        let link = (sender.0, to.0, lane);
        let (at, number) = self.fates.counts.entry(link).or_default();
        *number = if *at == self.time { *number + 1 } else { 1 };
        *at = self.time;
        let id = MessageId { from: sender.0, to: to.0, lane, at: *at, number: *number };
        let fate = if cut { Fate::Lost } else { self.fate(id) };
        let base = self.network.delay;
        let [first, second] = match fate {
            Fate::Prompt => [Some(base), None],
            Fate::Late(by) => [Some(base + by), None],
            Fate::Twice(by, again) => [Some(base + by), Some(base + again)],
            Fate::Lost => {
                let time = self.time;
                self.trace.event(&[time, 6, hash(message)], || {
                    format!("{} {sender:?} -x {to:?} {}", At(time), describe(message))
                });
                [None, None]
            }
        };
        if !self.network.ordered {
            return [first, second];
        }
        let last = self.fates.last.entry(link).or_default();
        let at = first.map(|delay| (self.time + delay).max(*last + 1));
        *last = at.unwrap_or(*last);
        [at.map(|at| at - self.time), second]
    }

    fn fate(&mut self, id: MessageId) -> Fate {
        let jitter = self.network.jitter;
        if let Some(script) = &self.fates.script {
            let fate = script.get(&id).copied().unwrap_or_default();
            return match fate {
                Fate::Prompt => Fate::Prompt,
                Fate::Lost if self.healed => Fate::Prompt,
                Fate::Late(by) | Fate::Twice(by, _) if self.healed => Fate::Late(by.min(jitter)),
                fate => fate,
            };
        }
        let fate = self.draw_fate();
        if let Some(drawn) = self.fates.drawn.as_mut().filter(|_| fate != Fate::Prompt) {
            drawn.push((id, fate));
        }
        fate
    }

    fn draw_fate(&mut self) -> Fate {
        let (network, rng) = (&self.network, &mut self.fates.rng);
        if !network.calm && network.loss > 0 && rng.chance(network.loss, 1000) {
            return Fate::Lost;
        }
        let mut extra = || {
            let mut delay = 0;
            if network.jitter > 0 {
                delay += rng.below(network.jitter);
            }
            if !network.calm && network.straggling > 0 && rng.chance(network.straggling, 1000) {
                delay += rng.below(2_000 * MS);
            }
            delay
        };
        let (first, second) = (extra(), extra());
        if network.duplication > 0 && rng.chance(network.duplication, 1000) {
            return Fate::Twice(first, second);
        }
        if first == 0 { Fate::Prompt } else { Fate::Late(first) }
    }
}

pub(crate) fn hash(bytes: &[u8]) -> u64 {
    quorate_types::hash_key(bytes)
}

pub(crate) fn describe(bytes: &[u8]) -> String {
    let mut rest = bytes;
    match Header::split(&mut rest) {
        Ok(Some((header, body))) => quorate_node::describe_message(&header, body),
        _ => format!("{} bytes", bytes.len()),
    }
}

/// The name of a message's kind, from its description: after the epoch, unless the message has a
/// kind of its own.
pub(crate) fn kind_of(bytes: &[u8]) -> String {
    let text = describe(bytes);
    let text = text.split_once(' ').map_or("", |(_, text)| text);
    let named = match text.strip_prefix("Message {") {
        Some(fields) => {
            let named = fields.split_once("kind: ").or_else(|| fields.split_once("body: "));
            named.map_or("", |(_, named)| named)
        }
        None => text,
    };
    named.chars().take_while(char::is_ascii_alphanumeric).collect()
}
