//! What happens in a run, drawn from bytes: of a fuzzer, which learns which of them lead somewhere,
//! or of a seeded generator.

use quorate_hermes::{Chunk, Cursor, Message as Hermes, Options as HermesOptions, Reads};
use quorate_machine::Outcome;
use quorate_meerkat::{
    Body, Comparison, Isolation, Item, Kind as Says, Message, Options as MeerkatOptions, Write,
};
use quorate_node::EngineConfig;
use quorate_types::{Duration, Epoch, NodeId, NodeSet, Timestamp, WriterId};
use quorate_wire::{GuestMessage, Header, Kind, Words, Writer};
use quorate_zeus::Options as ZeusOptions;

use crate::world::{GUEST, KEYSPACE, NODES, Packet, Placement, World};

/// Whose messages are made up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// Those of the Hermes machine.
    Hermes,
    /// Those of the Meerkat machine: of a member, or of a guest.
    Meerkat,
    /// Those of the Zeus machine.
    Zeus,
    /// Those of the membership, and of the lease managers.
    Membership,
    /// Those of the configuration log.
    Paxos,
}

const KEYS: [&[u8]; 4] = [b"a", b"b", b"{k}1", b"{k}2"];
/// The member that lies, beside its honest process.
const LIAR: NodeId = NodeId(NODES);
/// Transactions that a lying guest speaks of at a time.
const GUEST_IDS: u64 = 3;
/// For how many milliseconds a node that comes back is lied to, and how often at most.
const RETURN_MILLISECONDS: u32 = 700;
const RETURN_LIES_MAX: usize = 6;
/// How many numbers of a question the liar chooses from, at most.
const CHOSEN_MAX: usize = 256;
/// How far their timestamps are apart.
const MOMENT_NANOS: u64 = 300_000_000;

/// Runs what the bytes say, and lets some time pass without lies.
///
/// # Panics
/// When a node does: nothing that arrives may end one. And when members that speak the truth do not
/// understand each other, whatever a guest says.
pub(crate) fn run(about: About, bytes: &[u8]) -> Liar<'_> {
    let mut script = Script { bytes };
    let setup = script.u8();
    let (engine, place) = engine(about, setup);
    let mut world = World::new(&engine, &place);
    if about == About::Meerkat && setup & 1 == 0 {
        let mut guest = Liar { script, world, false_answers: 0 };
        guest.lie_as_guest();
        return guest;
    }
    world.members_are_honest = false;
    let mut member = Liar { script, world, false_answers: 0 };
    member.lie_as_member(about);
    member
}

fn engine(about: About, setup: u8) -> (EngineConfig, Placement) {
    match about {
        About::Meerkat => {
            let isolation =
                if setup & 2 == 0 { Isolation::Strict } else { Isolation::Serializable };
            let pair = NodeSet::only(NodeId(1)).with(NodeId(2));
            let options = MeerkatOptions { isolation, ..MeerkatOptions::default() };
            let partitions = if setup & 4 == 0 { vec![None] } else { vec![None, Some(pair)] };
            (EngineConfig::Meerkat(options), Placement { partitions, ..Placement::everywhere() })
        }
        About::Zeus => {
            let options = ZeusOptions {
                replicas: if setup & 2 == 0 { 2 } else { 0 },
                extra_readers: if setup & 4 == 0 { 1 } else { 0 },
                extra_after: 1 + u32::from(setup >> 3) % 4,
                collect_every: Duration::from_millis(if setup & 32 == 0 { 20 } else { 10_000 }),
            };
            (EngineConfig::Zeus(options), Placement::everywhere())
        }
        _ => {
            let options = HermesOptions {
                reads: if setup & 2 == 0 { Reads::Leased } else { Reads::Quorum },
                ack_broadcast: setup & 4 != 0,
                ..HermesOptions::default()
            };
            let two = setup & 8 != 0;
            let place = if two { Placement::on_two() } else { Placement::everywhere() };
            (EngineConfig::Hermes(options), place)
        }
    }
}

struct Script<'a> {
    bytes: &'a [u8],
}

impl Script<'_> {
    fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// 0 once all are used.
    fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    fn below(&mut self, bound: usize) -> usize {
        let number = if bound > 256 {
            usize::from(self.u8()) << 8 | usize::from(self.u8())
        } else {
            self.u8().into()
        };
        number % bound.max(1)
    }
}

/// A message's kind and body.
fn split(packet: &Packet) -> (Kind, &[u8]) {
    let (header, body) = Header::split(&mut &packet.bytes[..])
        .expect("nodes send well-formed messages")
        .expect("a message is whole");
    (header.kind, body)
}

/// Whether a node that catches up asks what its records differ in.
fn is_question(packet: &Packet) -> bool {
    match split(packet) {
        (Kind::Engine(quorate_meerkat::ID), body) => Message::decode(body).is_ok_and(|message| {
            matches!(message.kind, Says::Compare { .. } | Says::DifferenceRead { .. })
        }),
        (Kind::Engine(quorate_hermes::ID), body) => Hermes::decode(body).is_ok_and(|message| {
            matches!(message, Hermes::Compare { .. } | Hermes::DifferenceRead { .. })
        }),
        _ => false,
    }
}

/// Who lies, and to whom.
pub(crate) struct Liar<'a> {
    script: Script<'a>,
    world: World,
    /// Answers to a node that came back and compared its records.
    pub(crate) false_answers: u64,
}

impl Liar<'_> {
    /// Lies of a member: messages that were said, said again to others at another time, with other
    /// numbers in them.
    fn lie_as_member(&mut self, about: About) {
        while !self.script.is_over() {
            match self.script.u8() % 16 {
                0..=3 => self.honest_step(),
                4 if matches!(about, About::Hermes | About::Meerkat) => {
                    self.lie_to_a_returning_node()
                }
                _ => {
                    let lie = self.altered(about, LIAR);
                    self.tell(lie);
                }
            }
        }
        self.world.pass(300);
    }

    /// Lets a node be expelled and come back. It asks which of its records it may keep and what it
    /// lacks, and the liar answers before its honest process can.
    fn lie_to_a_returning_node(&mut self) {
        let node = NodeId(1 + self.script.below(usize::from(NODES) - 1) as u16);
        self.world.cut = Some(node);
        self.world.pass(900);
        self.submit(usize::from(NODES) - 1);
        self.world.pass(20);
        self.world.cut = None;
        let mut lies = 1 + self.script.below(RETURN_LIES_MAX);
        for _ in 0..RETURN_MILLISECONDS {
            self.world.pass(1);
            while lies > 0
                && let Some(lie) = self.false_answer()
            {
                lies -= 1;
                self.false_answers += 1;
                self.tell(Some(lie));
            }
        }
    }

    /// An answer to what a node that catches up asks the liar at this moment.
    fn false_answer(&mut self) -> Option<Packet> {
        let question = self.world.under_way(LIAR, is_question)?.clone();
        let epoch = self.world.epoch_of(usize::from(question.from.0 - 1), question.lane);
        let said = self.said_entries();
        let entries = if self.script.below(2) == 0 { &[][..] } else { &said };
        let bytes = match split(&question) {
            (Kind::Engine(quorate_meerkat::ID), body) => self.meerkat_answer(body, epoch, entries),
            (_, body) => self.hermes_answer(body, epoch, entries),
        };
        Some(Packet { from: LIAR, to: question.from, lane: question.lane, bytes })
    }

    fn meerkat_answer(&mut self, question: &[u8], epoch: Epoch, entries: &[u8]) -> Vec<u8> {
        let question = Message::decode(question).expect("a question was understood");
        let clock = self.world.now().unix.0;
        let mut words = Vec::new();
        let kind = match question.kind {
            Says::Compare { comparison: Comparison { request, .. }, first, digests } => {
                self.choose(&mut words, first..first + digests.len() as u64);
                let (records, buckets) = (self.extreme(3), Words::of(&words));
                Says::Compared { request, clock, records, buckets }
            }
            Says::DifferenceRead { comparison, buckets, held } => {
                let Comparison { request, shift, .. } = comparison;
                self.choose(&mut words, held.iter());
                let (until, gone) = (self.end_of(shift, buckets), Words::of(&words));
                Says::Difference { request, clock, until, gone, entries }
            }
            _ => unreachable!("only questions are answered"),
        };
        let answer = Message { partition: question.partition, kind };
        let mut bytes = Vec::new();
        Header::frame(
            &mut bytes,
            Kind::Engine(quorate_meerkat::ID),
            KEYSPACE,
            epoch,
            |out: &mut Writer<'_>| {
                answer.encode(out);
            },
        );
        bytes
    }

    fn hermes_answer(&mut self, question: &[u8], epoch: Epoch, entries: &[u8]) -> Vec<u8> {
        let mut words = Vec::new();
        let answer = match Hermes::decode(question).expect("a question was understood") {
            Hermes::Compare { request, first, digests, .. } => {
                self.choose(&mut words, first..first + digests.len() as u64);
                let (records, buckets) = (self.extreme(3), Words::of(&words));
                Hermes::Compared { request, records, buckets }
            }
            Hermes::DifferenceRead { request, shift, buckets, held } => {
                self.choose(&mut words, held.iter());
                let next = Some(Cursor::Records(self.end_of(shift, buckets)));
                let (floor, next_floor) = (self.extreme(0), self.extreme(0));
                let (gone, sessions) = (Words::of(&words), &[][..]);
                let in_doubt = floor == next_floor;
                Hermes::Chunk(Chunk {
                    request,
                    next,
                    floor,
                    next_floor,
                    in_doubt,
                    entries,
                    gone,
                    sessions,
                })
            }
            _ => unreachable!("only questions are answered"),
        };
        let mut bytes = Vec::new();
        Header::frame(
            &mut bytes,
            Kind::Engine(quorate_hermes::ID),
            KEYSPACE,
            epoch,
            |out: &mut Writer<'_>| {
                answer.encode(out);
            },
        );
        bytes
    }

    /// Where the last of these buckets ends, or somewhere else.
    fn end_of(&mut self, shift: u8, buckets: Words<'_>) -> u64 {
        let last = buckets.iter().last().unwrap_or_default();
        self.extreme((last + 1) << shift)
    }

    /// Some of these numbers, and sometimes another one.
    fn choose(&mut self, words: &mut Vec<u8>, from: impl Iterator<Item = u64>) {
        let chosen = self.script.u8();
        let from = from.take(CHOSEN_MAX).enumerate();
        let some = from.filter(|(at, _)| chosen >> (at % 8) & 1 != 0);
        words.extend(Words::pack(some.map(|(_, word)| word)));
        if self.script.below(8) == 0 {
            words.extend(Words::pack([u64::from(self.script.u8())]));
        }
    }

    /// This number mostly, or one near it, or one at the end of the range.
    fn extreme(&mut self, usual: u64) -> u64 {
        match self.script.u8() % 8 {
            0 => u64::MAX,
            1 => 0,
            2 => usual.wrapping_sub(1),
            _ => usual,
        }
    }

    /// The records of an answer that a correct donor has given, once a donor has answered.
    fn said_entries(&mut self) -> Vec<u8> {
        let answers = self.world.said.values().flatten();
        let entries = answers.filter_map(|packet| match split(packet) {
            (Kind::Engine(quorate_meerkat::ID), body) => match Message::decode(body).ok()?.kind {
                Says::Chunk { entries, .. } | Says::Difference { entries, .. } => Some(entries),
                _ => None,
            },
            (Kind::Engine(quorate_hermes::ID), body) => match Hermes::decode(body).ok()? {
                Hermes::Chunk(chunk) => Some(chunk.entries),
                _ => None,
            },
            _ => None,
        });
        let all: Vec<Vec<u8>> = entries.map(<[u8]>::to_vec).collect();
        all.get(self.script.below(all.len())).cloned().unwrap_or_default()
    }

    /// What clients ask for, time, and a node that is away for a while.
    fn honest_step(&mut self) {
        match self.script.u8() % 8 {
            0..=3 => {
                let node = self.script.below(usize::from(NODES));
                self.submit(node);
            }
            4 | 5 => {
                let time = 1 + u32::from(self.script.u8() % 32);
                self.world.pass(time);
            }
            6 => self.world.pass(150),
            _ => {
                // A partition that is on 1 and 2 alone keeps one of them, whatever becomes of 3.
                let away = if self.world.members_are_honest { NODES - 1 } else { 0 };
                let node = 1 + away + self.script.below(usize::from(NODES - away)) as u16;
                let node = NodeId(node);
                self.world.cut = if self.world.cut == Some(node) { None } else { Some(node) };
                self.world.pass(900);
            }
        }
    }

    fn submit(&mut self, node: usize) {
        let key = KEYS[self.script.below(KEYS.len())];
        let as_call = self.script.u8().is_multiple_of(4);
        let words: &[&[u8]] = match self.script.u8() % 6 {
            0 | 1 => &[b"APPEND", key, b"x"],
            2 => &[b"SET", key, b"value"],
            3 => &[b"DEL", key],
            4 => &[b"SET", key, b"brief", b"PX", b"5"],
            _ => &[b"GET", key],
        };
        self.world.submit(node, words, as_call && words[0] != b"GET");
    }

    /// A message that was said, altered in a few places.
    fn altered(&mut self, about: About, from: NodeId) -> Option<Packet> {
        let fits = |(kind, number): &(Kind, u8)| match about {
            About::Hermes => *kind == Kind::Engine(quorate_hermes::ID) || *kind == Kind::Forward,
            About::Meerkat => *kind == Kind::Engine(quorate_meerkat::ID),
            About::Zeus => *kind == Kind::Engine(quorate_zeus::ID) || *kind == Kind::Forward,
            About::Membership => {
                *kind == Kind::Session || (*kind == Kind::Membership && *number < 100)
            }
            About::Paxos => *kind == Kind::Membership && *number >= 100,
        };
        let kinds: Vec<_> = self.world.said.keys().copied().filter(fits).collect();
        let kind = *kinds.get(self.script.below(kinds.len()))?;
        let mut packet = self.one_of(kind)?;
        let to = self.script.below(usize::from(NODES) - 1);
        packet.to = NodeId(1 + to as u16);
        packet.from = from;
        let how = self.script.u8();
        if how & 0x0f != 0 {
            // Otherwise most lies would be of an epoch that has ended.
            let epoch = self.world.epoch_of(to, packet.lane).0.wrapping_add((how >> 7).into());
            packet.bytes[8..Header::BYTES].copy_from_slice(&epoch.to_le_bytes());
        }
        for _ in 0..(how >> 4) % 4 {
            self.alter(&mut packet.bytes, kind);
        }
        let length = (packet.bytes.len() - Header::BYTES) as u32;
        packet.bytes[..4].copy_from_slice(&length.to_le_bytes());
        Some(packet)
    }

    fn one_of(&mut self, kind: (Kind, u8)) -> Option<Packet> {
        let said = self.world.said.get(&kind)?;
        let index = self.script.below(said.len());
        said.get(index).cloned()
    }

    /// Puts another number into a body: an extreme one, one more or less, or one of another message.
    fn alter(&mut self, bytes: &mut Vec<u8>, kind: (Kind, u8)) {
        let width = 1usize << (self.script.u8() % 4);
        let length = bytes.len() - Header::BYTES;
        let at = Header::BYTES + self.script.below(length + 1);
        let Some(field) = bytes.get(at..at + width) else {
            // Shorter, or longer.
            match self.script.u8() % 2 {
                0 => bytes.truncate(at),
                _ => bytes.push(self.script.u8()),
            }
            return;
        };
        let mut number = [0; 8];
        number[..width].copy_from_slice(field);
        let known = u64::from_le_bytes(number);
        let other = match self.script.u8() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => known.wrapping_add(1),
            3 => known.wrapping_sub(1),
            4 => u64::from(self.script.u8()),
            5 => known ^ 1 << (self.script.u8() % 64),
            _ => {
                let Some(other) = self.one_of(kind) else { return };
                let from = Header::BYTES + self.script.below(other.bytes.len() - Header::BYTES + 1);
                let mut number = [0; 8];
                let field = other.bytes.get(from..from + width).unwrap_or_default();
                number[..field.len()].copy_from_slice(field);
                u64::from_le_bytes(number)
            }
        };
        bytes[at..at + width].copy_from_slice(&other.to_le_bytes()[..width]);
    }

    fn tell(&mut self, lie: Option<Packet>) {
        let Some(lie) = lie else { return };
        let _ = self.world.hear(usize::from(lie.to.0 - 1), &lie);
    }

    // --- guests ----------------------------------------------------------------------------------

    /// Lies of a guest, which says different things to different nodes about its transactions.
    fn lie_as_guest(&mut self) {
        let writer = self.join();
        while !self.script.is_over() {
            match self.script.u8() % 16 {
                0..=3 => self.honest_step(),
                4 => {
                    let lie = self.altered(About::Meerkat, GUEST);
                    self.tell_as_guest(writer, lie);
                }
                _ => {
                    let lie = self.made_up(writer);
                    self.tell_as_guest(writer, lie);
                }
            }
        }
        self.world.cut = None;
        for node in 0..usize::from(NODES) {
            let now = self.world.now();
            let (lane, _) = &mut self.world.nodes[node].lanes[0];
            lane.guest_lost(now, GUEST);
        }
        self.world.pass(3_000);
    }

    /// Joins at every node on lane 0, under the first id that the first of them gives.
    fn join(&mut self) -> WriterId {
        let view = self.world.nodes[0].lanes[0].0.view();
        let first = view.member(NodeId(1)).expect("it is a member").number;
        let writer = WriterId::guest(first, 0).expect("the first id is free");
        for node in 0..usize::from(NODES) {
            self.enter(node, writer);
        }
        writer
    }

    fn enter(&mut self, node: usize, writer: WriterId) {
        let (lane, _) = &mut self.world.nodes[node].lanes[0];
        lane.guest_connected(GUEST, quorate_types::Incarnation(7));
        let message = match node {
            0 if self.world.refused == 0 => GuestMessage::Join,
            _ => GuestMessage::Enter { writer },
        };
        let mut bytes = Vec::new();
        let epoch = self.world.epoch_of(node, 0);
        Header::frame(&mut bytes, Kind::Guest, KEYSPACE, epoch, |out| message.encode(out));
        let to = NodeId(node as u16 + 1);
        let _ = self.world.hear(node, &Packet { from: GUEST, to, lane: 0, bytes });
    }

    /// Says something well-formed about one of few transactions.
    fn made_up(&mut self, writer: WriterId) -> Option<Packet> {
        let node = self.script.below(usize::from(NODES));
        let shape = self.script.u8();
        // Around one moment, so that what it says meets what was said.
        let moment = self.world.now().unix.0 / MOMENT_NANOS;
        let version = (moment - u64::from(shape) % GUEST_IDS) * MOMENT_NANOS;
        let id = Timestamp::new(version, writer);
        let partition = [0, 0, 0, 1, 1, 2, 70, u16::MAX][usize::from(shape >> 5)];
        let body = self.body(version);
        let participants = [1, 1, 1, 2, 3, 3, 7, u64::MAX][self.script.below(8)];
        let ok = self.script.u8().is_multiple_of(2);
        let body = Body::check(&body).expect("just written");
        let kind = match self.script.u8() % 12 {
            0..=4 => Says::Validate { id, stable: 0, participants, body },
            5 | 6 => Says::Decided { id, commit: ok, body: None },
            7 | 8 => Says::Decided { id, commit: ok, body: Some(body) },
            9 => Says::Accept { id, view: 0, ok, participants, body: Some(body) },
            10 => Says::Stable { stable: version },
            _ => Says::Check { at: id, body },
        };
        let mut bytes = Vec::new();
        let epoch = self.world.epoch_of(node, 0);
        Header::frame(
            &mut bytes,
            Kind::Engine(quorate_meerkat::ID),
            KEYSPACE,
            epoch,
            |out: &mut Writer<'_>| {
                Message { partition, kind }.encode(out);
            },
        );
        Some(Packet { from: GUEST, to: NodeId(node as u16 + 1), lane: 0, bytes })
    }

    fn body(&mut self, version: u64) -> Vec<u8> {
        let shape = self.script.u8();
        let base = Timestamp::new(version - 1 - u64::from(shape >> 4), WriterId(u32::MAX));
        let content = quorate_machine::Content {
            bytes: b"guest",
            kind: quorate_machine::ValueKind::String,
            expire_at: None,
        };
        let delta = quorate_machine::Content { kind: quorate_machine::ValueKind::List, ..content };
        let writes =
            [None, Some(Write::Delete), Some(Write::Set(content)), Some(Write::Delta(delta))];
        let items: Vec<Item<'_>> = KEYS
            .iter()
            .enumerate()
            .filter(|(index, _)| shape >> index & 1 != 0)
            .map(|(index, key)| {
                let write = writes[(usize::from(shape >> 2) + index) % 4];
                let changes = matches!(write, Some(Write::Delta(_)));
                let reads = write.is_none() || changes || shape & 0x40 != 0;
                Item { key, base: reads.then_some(base), absent: reads && !changes, write }
            })
            .collect();
        Body::encode(&items)
    }

    /// A guest that is refused is gone, and comes back at once.
    fn tell_as_guest(&mut self, writer: WriterId, lie: Option<Packet>) {
        let Some(lie) = lie else { return };
        let lie = Packet { lane: 0, from: GUEST, ..lie };
        let node = usize::from(lie.to.0 - 1);
        if self.world.hear(node, &lie).is_err() {
            self.world.refused += 1;
            let now = self.world.now();
            let (lane, _) = &mut self.world.nodes[node].lanes[0];
            lane.guest_lost(now, GUEST);
            self.enter(node, writer);
        }
    }

    /// Whatever a guest has said, clients get through, and replicas of a partition hold the same.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn assert_alike(&mut self) {
        if !self.world.members_are_honest {
            return;
        }
        let mut open = Vec::new();
        for (number, key) in KEYS.iter().enumerate() {
            open.push(self.world.submit(number % 2, &[b"APPEND", key, b"end"], false));
        }
        self.world.pass(500);
        for node in 0..2 {
            for done in self.world.take_done(node) {
                if let Some(at) = open.iter().position(|tag| *tag == done.tag) {
                    assert!(matches!(done.outcome, Outcome::Done(_)), "{:?}", done.outcome);
                    open.remove(at);
                }
            }
        }
        assert!(open.is_empty(), "a client waits for ever behind what a guest has said");
        let pair = [self.contents(0), self.contents(1)];
        assert_eq!(pair[0], pair[1], "nodes 1 and 2 hold different versions");
    }

    fn contents(&self, node: usize) -> Vec<(Vec<u8>, Timestamp, Option<Vec<u8>>)> {
        let store = self.world.nodes[node].shared.store(KEYSPACE).expect("configured");
        let mut all = Vec::new();
        store.dump(&mut |key, version, _, content| {
            // Deleted keys are forgotten by each when its time has come.
            if let Some(content) = content {
                all.push((key.to_vec(), version, Some(content.bytes.to_vec())));
            }
        });
        all.sort();
        all
    }
}
