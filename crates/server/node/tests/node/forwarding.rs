//! Commands that run on another node: at most once and in order, also while nodes die.

use quorate_commands::{Op, OwnedCall, Reply};
use quorate_machine::{CallError, Outcome, Refusal};
use quorate_node::{EngineConfig, SessionCall};
use quorate_rifl::Call;
use quorate_types::{KeyspaceId, NodeId, Tag, lane_of_key, limits};
use quorate_wire::{Header, Kind};

use crate::support::script;
use crate::world::{KEYSPACE, LANES, Packet, Placement, World};

/// The node that has no records.
const OUTSIDE: usize = 2;
/// Longer than an op may take, in milliseconds.
const OP_TIMEOUT: u32 = 2_500;

fn hermes(place: &Placement) -> World {
    World::new(&EngineConfig::hermes(), place)
}

fn is_message(packet: &Packet, number: u8) -> bool {
    let split = Header::split(&mut &packet.bytes[..]).expect("well-formed").expect("whole");
    split.0.kind == Kind::Forward && split.1[0] == number
}

fn is_forward(packet: &Packet) -> bool {
    is_message(packet, 1)
}

fn is_answer(packet: &Packet) -> bool {
    is_message(packet, 2)
}

fn text(value: &str) -> Outcome<Reply<'static>> {
    Outcome::Done(Reply::Bulk(value.as_bytes().to_vec().into()))
}

impl World {
    /// A client asks at the lane of the key.
    fn ask(&mut self, node: usize, origin: u64, words: &[&str]) -> Tag {
        let (tag, now) = (self.next_tag(), self.now());
        let call = OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command");
        let lane = usize::from(lane_of_key(words[1].as_bytes(), LANES).0);
        let (lane, out) = &mut self.nodes[node].lanes[lane];
        lane.submit(now, KEYSPACE, tag, origin, call.call(), out);
        self.deliver_mail(node);
        tag
    }

    /// A try of a session's call.
    fn call(&mut self, node: usize, sequence: u64, words: &[&str]) -> Tag {
        let call = OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command");
        let op = Op::Call(call);
        let digest = op.digest();
        self.call_under(node, sequence, digest, op)
    }

    fn call_under(&mut self, node: usize, sequence: u64, digest: u32, op: Op) -> Tag {
        let (tag, now) = (self.next_tag(), self.now());
        let grant = self.grant.expect("a session was opened");
        let call = Call { lease: grant.lease, sequence, first_incomplete: 0, digest };
        let call = SessionCall { keyspace: KEYSPACE, origin: 1, call, grant, op };
        let (lane, out) = &mut self.nodes[node].lanes[0];
        lane.call(now, tag, call, out);
        self.deliver_mail(node);
        tag
    }

    /// The answers at a node to these, which are all there are.
    fn answers<const N: usize>(
        &mut self,
        node: usize,
        tags: [Tag; N],
    ) -> [Outcome<Reply<'static>>; N] {
        let mut done = self.take_done(node);
        assert_eq!(done.len(), N, "{done:?}");
        tags.map(|tag| {
            let at = done.iter().position(|done| done.tag == tag).expect("it has an answer");
            done.swap_remove(at).outcome
        })
    }

    /// Asks at a node and waits for the answer.
    fn answer(&mut self, node: usize, words: &[&str]) -> Outcome<Reply<'static>> {
        let tag = self.ask(node, 99, words);
        self.pass(60);
        let [answer] = self.answers(node, [tag]);
        answer
    }

    /// The requests that were said so far.
    fn forwards(&self) -> Vec<Packet> {
        self.said.get(&(Kind::Forward, 1)).into_iter().flatten().cloned().collect()
    }

    fn hear_again(&mut self, packet: &Packet) {
        let to = usize::from(packet.to.0 - 1);
        self.hear(to, packet).expect("a correct node has said it");
    }

    fn is_live(&self, node: u16) -> bool {
        self.nodes[0].lanes[0].0.view().live().contains(NodeId(node))
    }

    fn probed(&self, name: &str) -> u64 {
        let outs = self.nodes.iter().flat_map(|node| &node.lanes).map(|(_, out)| &out.probes);
        outs.flatten().filter(|(probe, _)| *probe == name).map(|(_, count)| count).sum()
    }

    fn ops_forwarded(&self, node: usize) -> u64 {
        let engines = self.nodes[node].lanes.iter().filter_map(|(lane, _)| lane.engine(KEYSPACE));
        let gauges = engines.flat_map(|engine| engine.facts().gauges);
        gauges.filter(|(name, _)| *name == "ops_forwarded").map(|(_, count)| count).sum()
    }
}

#[test]
fn a_node_outside_the_group_forwards_and_each_command_runs_once() {
    let mut world = hermes(&Placement::on_two());
    let op = world.ask(OUTSIDE, 1, &["APPEND", "k", "x"]);
    let forwards = world.forwards();
    assert_eq!(forwards.len(), 1, "3 has no records");
    for _ in 0..3 {
        world.hear_again(&forwards[0]);
    }
    world.pass(100);
    assert_eq!(world.answers(OUTSIDE, [op]), [Outcome::Done(Reply::Int(1))]);
    world.hear_again(&forwards[0]);
    world.pass(100);
    for node in 0..3 {
        assert_eq!(world.answer(node, &["GET", "k"]), text("x"), "at node {node}");
    }
    assert_eq!(world.nodes[OUTSIDE].shared.store_facts(KEYSPACE).keys, 0);
}

#[test]
fn what_a_forwarded_script_publishes_comes_with_its_answer() {
    script::install();
    let mut world = hermes(&Placement::on_two());
    let (tag, now) = (world.next_tag(), world.now());
    let op = OwnedCall::new(script::on("k").map(str::as_bytes)).expect("a command");
    let (lane, out) = &mut world.nodes[OUTSIDE].lanes[usize::from(lane_of_key(b"k", LANES).0)];
    lane.submit(now, KEYSPACE, tag, 1, op.call(), out);
    world.deliver_mail(OUTSIDE);
    world.pass(100);
    assert_eq!(world.forwards().len(), 1);
    let [Outcome::Done(reply)] = world.answers(OUTSIDE, [tag]) else { panic!("not done") };
    assert_eq!(script::told(&reply), Some(1));
}

#[test]
fn a_forwarded_command_whose_answer_is_lost_is_unknown() {
    let mut world = hermes(&Placement::on_two());
    world.is_lost = is_answer;
    let update = world.ask(OUTSIDE, 1, &["APPEND", "k", "x"]);
    let read = world.ask(OUTSIDE, 2, &["GET", "other"]);
    world.pass(OP_TIMEOUT);
    let timed_out = Outcome::Refused(Refusal::TimedOut);
    assert_eq!(world.answers(OUTSIDE, [update, read]), [Outcome::Unknown, timed_out]);
    assert_eq!(world.answer(0, &["GET", "k"]), text("x"));
    assert_eq!(world.ops_forwarded(OUTSIDE), 0);
}

/// 3 dies and comes back with its request still under way. Its client was told that nobody knows how
/// the command ends, and by now may rest on what it has seen since.
#[test]
fn rule_11_what_an_earlier_life_asked_for_is_not_done() {
    let mut world = hermes(&Placement::on_two());
    world.is_lost = is_forward;
    let op = world.ask(OUTSIDE, 1, &["APPEND", "k", "x"]);
    let late = world.forwards();
    world.cut = Some(NodeId(3));
    world.pass(1_500);
    assert!(!world.is_live(3));
    world.cut = None;
    world.pass(1_500);
    assert!(world.is_live(3));
    assert_eq!(world.answers(OUTSIDE, [op]), [Outcome::Unknown]);
    world.is_lost = |_| false;
    world.hear_again(&late[0]);
    world.pass(100);
    assert_eq!(world.answer(0, &["GET", "k"]), Outcome::Done(Reply::Null));
}

/// The owner has run it. Then its sender comes back as a new incarnation, and the owner forgets which
/// numbers the old one has used.
#[test]
fn a_forwarded_command_of_an_earlier_life_is_not_run_again() {
    let mut world = hermes(&Placement::on_two());
    let op = world.ask(OUTSIDE, 1, &["APPEND", "k", "x"]);
    let forwards = world.forwards();
    world.pass(100);
    assert_eq!(world.answers(OUTSIDE, [op]), [Outcome::Done(Reply::Int(1))]);
    let late = world.said[&(Kind::Forward, 2)][0].clone();
    world.cut = Some(NodeId(3));
    world.pass(1_500);
    assert!(!world.is_live(3));
    world.cut = None;
    world.pass(1_500);
    world.hear_again(&forwards[0]);
    world.pass(100);
    assert_eq!(world.answer(0, &["GET", "k"]), text("x"));
    // An answer to the earlier life is not taken for one to this life.
    let next = world.ask(OUTSIDE, 1, &["APPEND", "k", "x"]);
    world.hear_again(&late);
    assert_eq!(world.take_done(OUTSIDE).len(), 0);
    world.pass(100);
    assert_eq!(world.answers(OUTSIDE, [next]), [Outcome::Done(Reply::Int(2))]);
}

#[test]
fn what_follows_a_forwarded_command_on_its_key_waits_for_it() {
    let mut world = hermes(&Placement::on_two());
    let first = world.ask(OUTSIDE, 7, &["INCR", "k"]);
    let read = world.ask(OUTSIDE, 7, &["GET", "k"]);
    let second = world.ask(OUTSIDE, 7, &["INCR", "k"]);
    let other = world.ask(OUTSIDE, 8, &["INCR", "j"]);
    // The network may turn them around; what was not sent can't be turned around.
    assert_eq!(world.forwards().len(), 2, "one for each line");
    assert_eq!(world.ops_forwarded(OUTSIDE), 4);
    world.pass(200);
    let number = |number| Outcome::Done(Reply::Int(number));
    let answers = world.answers(OUTSIDE, [first, read, second, other]);
    assert_eq!(answers, [number(1), text("1"), number(2), number(1)]);
    assert_eq!(world.ops_forwarded(OUTSIDE), 0);
}

/// What waits in a line is told in time, too, if the head of the line gets no answer.
#[test]
fn what_waits_behind_a_lost_command_is_refused() {
    let mut world = hermes(&Placement::on_two());
    world.is_lost = is_forward;
    let first = world.ask(OUTSIDE, 7, &["INCR", "k"]);
    let second = world.ask(OUTSIDE, 7, &["INCR", "k"]);
    world.pass(OP_TIMEOUT);
    let refused = Outcome::Refused(Refusal::TimedOut);
    assert_eq!(world.answers(OUTSIDE, [first, second]), [Outcome::Unknown, refused]);
}

#[test]
fn a_command_too_large_for_a_message_is_refused() {
    let mut world = hermes(&Placement::on_two());
    let large = "x".repeat(limits::MESSAGE_BYTES_MAX);
    let op = world.ask(OUTSIDE, 1, &["SET", "k", &large]);
    assert_eq!(world.answers(OUTSIDE, [op]), [Outcome::Refused(Refusal::TooLarge)]);
    assert!(world.forwards().is_empty(), "nothing was sent");
}

/// A read changes nothing: if its node is gone, another one answers it.
#[test]
fn a_read_whose_node_is_gone_is_placed_again() {
    let mut world = hermes(&Placement::on_two());
    world.is_lost = is_forward;
    let reads = ["a", "b", "c", "d"].map(|key| world.ask(OUTSIDE, 1, &["GET", key]));
    let of_1 = world.forwards().iter().filter(|packet| packet.to == NodeId(1)).count();
    assert!((1..4).contains(&of_1), "both replicas are owners of some");
    world.cut = Some(NodeId(1));
    world.is_lost = |packet| is_forward(packet) && packet.to == NodeId(1);
    world.pass(1_500);
    assert!(!world.nodes[1].lanes[0].0.view().live().contains(NodeId(1)));
    let nil = Outcome::Done(Reply::Null);
    assert_eq!(world.answers(OUTSIDE, reads), [nil.clone(), nil.clone(), nil.clone(), nil]);
    assert_eq!(world.probed("node: a read is placed again"), of_1 as u64);
}

/// Where a key lives its owner tells. One that does not answer is waited for as with any forwarded read,
/// and one that is gone is the owner no more.
#[test]
fn a_question_where_a_key_lives_waits_for_the_owner() {
    let engine = EngineConfig::first_with(|can| can.moves_keys());
    let mut world = World::new(&engine, &Placement::everywhere());
    assert_eq!(world.answer(1, &["SET", "k", "v"]), Outcome::Done(Reply::Ok));
    let ask = |world: &mut World| {
        let (tag, now) = (world.next_tag(), world.now());
        let (lane, out) = &mut world.nodes[0].lanes[0];
        lane.submit(now, KEYSPACE, tag, 1, Op::Placement((*b"k").into()), out);
        world.deliver_mail(0);
        tag
    };
    world.is_lost = is_forward;
    let lost = ask(&mut world);
    world.pass(OP_TIMEOUT);
    assert!(world.forwards().iter().all(|packet| packet.to == NodeId(2)), "the owner is asked");
    assert_eq!(world.answers(0, [lost]), [Outcome::Refused(Refusal::TimedOut)]);
    world.is_lost = |_| false;
    let told = |world: &mut World, tag| match world.answers(0, [tag]) {
        [Outcome::Done(Reply::Array(told))] => told[0].clone(),
        other => panic!("{other:?}"),
    };
    let asked = ask(&mut world);
    world.pass(100);
    assert_eq!(told(&mut world, asked), Reply::Int(2));
    world.cut = Some(NodeId(2));
    let asked = ask(&mut world);
    world.pass(1_500);
    assert!(!world.is_live(2));
    assert_ne!(told(&mut world, asked), Reply::Int(2));
}

/// The others may have removed the replica and gone on without it.
#[test]
fn h3_a_replica_whose_lease_has_lapsed_does_not_answer_a_forwarded_read() {
    for lapses in [false, true] {
        let mut world = hermes(&Placement::on_two());
        world.is_lost = is_forward;
        world.ask(OUTSIDE, 1, &["GET", "k"]);
        let forward = world.forwards().remove(0);
        if lapses {
            world.cut = Some(forward.to);
            world.pass(300);
        }
        world.hear_again(&forward);
        assert_eq!(world.said.contains_key(&(Kind::Forward, 2)), !lapses);
    }
}

#[test]
fn a_node_outside_the_group_serves_calls() {
    let mut world = hermes(&Placement::on_two());
    let number = |number| Outcome::Done(Reply::Int(number));
    let first = world.call(OUTSIDE, 0, &["INCR", "k"]);
    world.pass(100);
    assert_eq!(world.answers(OUTSIDE, [first]), [number(1)]);
    // The answer to the next one is lost.
    world.is_lost = is_answer;
    let lost = world.call(OUTSIDE, 1, &["INCR", "k"]);
    world.pass(OP_TIMEOUT);
    assert_eq!(world.answers(OUTSIDE, [lost]), [Outcome::Unknown]);
    world.is_lost = |_| false;
    let again = world.call(OUTSIDE, 1, &["INCR", "k"]);
    let elsewhere = world.call(1, 1, &["INCR", "k"]);
    world.pass(100);
    assert_eq!(world.answers(OUTSIDE, [again]), [number(2)]);
    assert_eq!(world.answers(1, [elsewhere]), [number(2)]);
    // Refusals come back as what they are.
    let op = Op::Call(OwnedCall::new([&b"INCR"[..], b"k"]).expect("a command"));
    let other = world.call_under(OUTSIDE, 1, op.digest() ^ 1, op);
    world.pass(100);
    let different = Outcome::Refused(Refusal::CallError(CallError::Different));
    assert_eq!(world.answers(OUTSIDE, [other]), [different]);
}

#[test]
fn calls_on_a_hot_key_are_forwarded_and_run_once() {
    const ROUNDS: u64 = 30;
    let mut world = hermes(&Placement::everywhere());
    for round in 0..ROUNDS {
        let sequence = |node: usize| 3 * round + node as u64;
        let tags = [0, 1, 2].map(|node| world.call(node, sequence(node), &["INCR", "k"]));
        world.pass(60);
        for (node, tag) in tags.into_iter().enumerate() {
            let [answer] = world.answers(node, [tag]);
            assert!(matches!(answer, Outcome::Done(_)), "{answer:?}");
            let elsewhere = (node + 1) % 3;
            let others = world.take_done(elsewhere);
            let again = world.call(elsewhere, sequence(node), &["INCR", "k"]);
            world.pass(20);
            assert_eq!(world.answers(elsewhere, [again]), [answer]);
            let (_, out) = &mut world.nodes[elsewhere].lanes[0];
            out.done.extend(others);
        }
    }
    assert!(world.probed("node: command forwarded") > 0);
    for node in 0..3 {
        assert_eq!(world.answer(node, &["GET", "k"]), text(&(3 * ROUNDS).to_string()));
    }
}

#[test]
fn a_command_of_another_lane_or_for_an_engine_that_places_none_is_refused() {
    let mut world = hermes(&Placement::on_two());
    world.ask(OUTSIDE, 1, &["SET", "k", "x"]);
    let forward = world.forwards().remove(0);
    let other_lane = Packet { lane: 1 - forward.lane, ..forward.clone() };
    assert!(world.hear(0, &other_lane).is_err());
    let mut other_keyspace = forward.clone();
    other_keyspace.bytes[5] = KeyspaceId(9).0;
    assert!(world.hear(0, &other_keyspace).is_err());
    let mut meerkat = World::new(&EngineConfig::meerkat(), &Placement::everywhere());
    assert!(meerkat.hear(0, &forward).is_err());
}
