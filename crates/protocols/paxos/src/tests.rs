use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use quorate_check::Seeds;
use quorate_machine::Rng;
use quorate_types::{Duration, Incarnation, Instant, NodeId};
use quorate_wire::{Reader, Writer};

use super::*;

type Bytes = Vec<u8>;
const STREAM: Stream = Stream(7);
const HONEST: &str = "a correct voter says so";

fn voter(node: u16) -> Voter {
    Voter { node: NodeId(node), incarnation: Incarnation(100 + u64::from(node)) }
}

fn open(_: SlotNumber, _: &Bytes) -> Option<Instant> {
    None
}

fn at(millis: u64) -> Instant {
    Instant(millis * 1_000_000)
}

fn log_of(node: u16) -> Log<Bytes> {
    let settings = Settings::default();
    let mut log = Log::new(STREAM, voter(node), SlotNumber(1), settings, u64::from(node));
    log.set_voters(SlotNumber(1), None, (1..=3).map(voter));
    log
}

fn ballot(round: u64, node: u16) -> Ballot {
    Ballot { round, proposer: voter(node) }
}

fn bodies(out: &mut Outbox<Bytes>) -> Vec<(u16, Body<Bytes>)> {
    out.messages.drain(..).map(|(to, message)| (to.0, message.body)).collect()
}

#[test]
fn golden_bytes_of_a_batch() {
    let messages = [
        Message {
            stream: STREAM,
            body: Body::Accepted { ballot: ballot(1, 2), slot: SlotNumber(3) },
        },
        Message { stream: STREAM, body: Body::Learn { slot: SlotNumber(4), entry: vec![9, 8] } },
    ];
    let mut bytes = Vec::new();
    encode_batch(messages.iter(), &mut Writer(&mut bytes));
    let mut expected = vec![2, 0, 0, 0, 7, 0, 0, 0, 4, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    expected.extend([102, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([7, 0, 0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9, 8]);
    assert_eq!(bytes, expected, "the layout changed without a new VERSION");
    let mut back = Vec::new();
    decode_batch(&mut Reader(&bytes), |message: Message<Bytes>| back.push(message)).unwrap();
    assert_eq!(back, messages);
}

#[test]
fn every_message_comes_back_and_every_cut_is_refused() {
    let from = SlotNumber(5);
    let accepted = vec![(from, ballot(1, 1), vec![1]), (from.next(), ballot(2, 1), vec![])];
    for body in [
        Body::Prepare { ballot: ballot(3, 1), from },
        Body::Promise { ballot: ballot(3, 1), from, accepted },
        Body::Accept { ballot: ballot(3, 1), slot: from, entry: vec![1, 2, 3] },
        Body::Accepted { ballot: ballot(3, 1), slot: from },
        Body::Reject { ballot: ballot(3, 1), promised: ballot(4, 2) },
        Body::Learn { slot: from, entry: vec![1] },
        Body::Fetch { from },
    ] {
        let message = Message { stream: STREAM, body };
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        assert_eq!(Message::decode(&mut Reader(&bytes)), Ok(message));
        for cut in 0..bytes.len() {
            assert!(Message::<Bytes>::decode(&mut Reader(&bytes[..cut])).is_err());
        }
    }
}

#[test]
fn a_voter_keeps_its_promise_and_tells_what_it_accepted() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    let slot = SlotNumber(1);
    let accept = Body::Accept { ballot: ballot(2, 2), slot, entry: vec![2] };
    log.on_message(at(0), voter(2), accept.clone(), &open, &mut out).expect(HONEST);
    assert_eq!(bodies(&mut out), [(2, Body::Accepted { ballot: ballot(2, 2), slot })]);
    let prepare = Body::Prepare { ballot: ballot(3, 3), from: slot };
    log.on_message(at(0), voter(3), prepare, &open, &mut out).expect(HONEST);
    let accepted = vec![(slot, ballot(2, 2), vec![2])];
    let promise = Body::Promise { ballot: ballot(3, 3), from: slot, accepted };
    assert_eq!(bodies(&mut out), [(3, promise)]);
    log.on_message(at(0), voter(2), accept, &open, &mut out).expect(HONEST);
    let reject = Body::Reject { ballot: ballot(2, 2), promised: ballot(3, 3) };
    assert_eq!(bodies(&mut out), [(2, reject)]);
    log.check_invariants();
}

#[test]
fn a_candidate_adopts_the_entry_of_the_highest_ballot() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    let slot = SlotNumber(1);
    let old = Body::Accept { ballot: ballot(1, 2), slot, entry: vec![1] };
    log.on_message(at(0), voter(2), old, &open, &mut out).expect(HONEST);
    log.campaign(at(0), &open, &mut out);
    bodies(&mut out);
    let accepted = vec![(slot, ballot(1, 3), vec![3])];
    let promise = Body::Promise { ballot: ballot(2, 1), from: slot, accepted };
    log.on_message(at(0), voter(3), promise, &open, &mut out).expect(HONEST);
    let accept = Body::Accept { ballot: ballot(2, 1), slot, entry: vec![3] };
    assert_eq!(bodies(&mut out), [(2, accept.clone()), (3, accept)]);
    assert!(log.is_deciding());
    let accepted = Body::Accepted { ballot: ballot(2, 1), slot };
    log.on_message(at(0), voter(3), accepted, &open, &mut out).expect(HONEST);
    assert_eq!(out.chosen, [(STREAM, slot, vec![3])]);
}

#[test]
fn a_candidate_that_lags_is_taught_instead_of_promised() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    let learn = Body::Learn { slot: SlotNumber(1), entry: vec![1] };
    log.on_message(at(0), voter(2), learn.clone(), &open, &mut out).expect(HONEST);
    let prepare = Body::Prepare { ballot: ballot(9, 3), from: SlotNumber(1) };
    log.on_message(at(0), voter(3), prepare, &open, &mut out).expect(HONEST);
    assert_eq!(bodies(&mut out), [(3, learn)]);
}

#[test]
fn acceptance_waits_for_the_gate() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    let gate = |_: SlotNumber, _: &Bytes| Some(at(50));
    let slot = SlotNumber(1);
    let accept = Body::Accept { ballot: ballot(1, 2), slot, entry: vec![1] };
    log.on_message(at(0), voter(2), accept, &gate, &mut out).expect(HONEST);
    assert_eq!(bodies(&mut out), []);
    assert_eq!(log.considered(slot).count(), 1);
    assert_eq!(log.next_deadline(), at(50));
    log.tick(at(49), &gate, &mut out);
    assert_eq!(bodies(&mut out), []);
    log.tick(at(50), &gate, &mut out);
    assert_eq!(bodies(&mut out), [(2, Body::Accepted { ballot: ballot(1, 2), slot })]);
}

#[test]
fn a_standing_leader_needs_one_round_trip_for_each_of_many_slots() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    assert_eq!(log.propose(at(0), vec![0], &open, &mut out), Err(NotLeading));
    log.campaign(at(0), &open, &mut out);
    let promise = Body::Promise { ballot: ballot(1, 1), from: SlotNumber(1), accepted: vec![] };
    log.on_message(at(0), voter(2), promise, &open, &mut out).expect(HONEST);
    bodies(&mut out);
    for slot in 1..=3 {
        assert_eq!(log.propose(at(1), vec![slot], &open, &mut out), Ok(SlotNumber(slot.into())));
    }
    assert_eq!(bodies(&mut out).len(), 6);
    for slot in [3, 1, 2].map(SlotNumber) {
        let accepted = Body::Accepted { ballot: ballot(1, 1), slot };
        log.on_message(at(1), voter(3), accepted, &open, &mut out).expect(HONEST);
    }
    let chosen: Vec<u64> = out.chosen.iter().map(|(_, slot, _)| slot.0).collect();
    assert_eq!(chosen, [1, 2, 3]);
}

#[test]
fn what_no_correct_voter_says_is_refused_and_changes_nothing() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    let slot = SlotNumber(1);
    let accept = Body::Accept { ballot: ballot(1, 2), slot, entry: vec![1] };
    log.on_message(at(0), voter(2), accept, &open, &mut out).expect(HONEST);
    log.campaign(at(0), &open, &mut out);
    let mine = ballot(2, 1);
    let promise = |accepted| Body::Promise { ballot: mine, from: slot, accepted };
    let mut refuses = |body: Body<Bytes>| {
        let before = log.clone();
        log.on_message(at(0), voter(2), body, &open, &mut out).expect_err("a lie");
        assert_eq!(log, before);
    };
    // A ballot of another proposer, and one beyond every other.
    refuses(Body::Prepare { ballot: ballot(9, 3), from: slot });
    refuses(Body::Accept { ballot: ballot(9, 3), slot, entry: vec![2] });
    let highest = Ballot { round: ROUND_MAX + 1, ..ballot(0, 2) };
    refuses(Body::Prepare { ballot: highest, from: slot });
    refuses(Body::Reject { ballot: mine, promised: highest });
    // Another entry in one ballot.
    refuses(Body::Accept { ballot: ballot(1, 2), slot, entry: vec![2] });
    // Entries of slots that were not asked for, or of a higher ballot than the promised one.
    refuses(promise(vec![(SlotNumber(5), ballot(1, 2), vec![2])]));
    refuses(promise(vec![(slot, ballot(3, 2), vec![2])]));
    // Slots with no next one.
    let last = SlotNumber(u64::MAX);
    let accepted = vec![(last, ballot(1, 2), vec![2])];
    refuses(Body::Prepare { ballot: ballot(3, 2), from: last });
    refuses(Body::Promise { ballot: mine, from: last, accepted });
    refuses(Body::Accept { ballot: ballot(3, 2), slot: last, entry: vec![2] });
    refuses(Body::Accepted { ballot: mine, slot: last });
    refuses(Body::Learn { slot: last, entry: vec![2] });
    refuses(Body::Fetch { from: last });
    let learn = |entry| Body::Learn { slot, entry };
    log.on_message(at(0), voter(3), learn(vec![1]), &open, &mut out).expect(HONEST);
    let before = log.clone();
    log.on_message(at(0), voter(2), learn(vec![2]), &open, &mut out).expect_err("another entry");
    log.jump(slot, vec![2], &mut out).expect_err("another entry");
    log.jump(last, vec![2], &mut out).expect_err("no slot is behind it");
    assert_eq!(log, before);
}

#[test]
fn a_voter_that_has_heard_of_the_highest_round_campaigns_no_more() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    let prepare = Body::Prepare { ballot: ballot(ROUND_MAX, 2), from: SlotNumber(1) };
    log.on_message(at(0), voter(2), prepare, &open, &mut out).expect(HONEST);
    log.campaign(at(0), &open, &mut out);
    assert!(!log.is_campaigning() && log.campaign_not_before() > at(0));
}

#[test]
fn the_highest_slot_has_none_behind_it_to_campaign_for() {
    let (mut log, mut out) = (log_of(1), Outbox::default());
    log.jump(SLOT_MAX, vec![1], &mut out).expect(HONEST);
    log.campaign(at(0), &open, &mut out);
    assert!(!log.is_campaigning());
    assert_eq!(log.propose(at(0), vec![2], &open, &mut out), Err(NotLeading));
}

#[test]
fn streams_share_batches() {
    let mut streams = Streams::default();
    for number in 0..3 {
        let mut log = Log::<Bytes>::new(
            Stream(number),
            voter(1),
            SlotNumber(1),
            Settings::default(),
            u64::from(number),
        );
        log.set_voters(SlotNumber(1), None, (1..=3).map(voter));
        streams.insert(log);
    }
    streams.for_each(|log, out| log.campaign(at(0), &open, out));
    let mut batches = Vec::new();
    streams.drain(|to, batch| batches.push((to.0, batch.len())), |_, _, _| {});
    assert_eq!(batches, [(2, 3), (3, 3)]);
    assert_eq!(streams.next_deadline(), at(20));
    streams.tick(at(20), &open);
    streams.drain(|to, batch| batches.push((to.0, batch.len())), |_, _, _| {});
    assert_eq!(batches.len(), 4);
}

/// The voters of a slot: with `moving`, another three of five nodes every two slots, two of them
/// new each time.
fn voters_for(moving: bool, slot: SlotNumber) -> [Voter; 3] {
    let first = if moving { (slot.0 / 2 % 5) as u16 } else { 0 };
    [0, 2, 4].map(|step| voter(1 + (first + step) % 5))
}

struct World {
    rng: Rng,
    now: Instant,
    moving: bool,
    logs: Vec<Log<Bytes>>,
    wire: Vec<(Voter, NodeId, Message<Bytes>)>,
    learnt: BTreeMap<SlotNumber, Bytes>,
}

impl World {
    fn new(seed: u64, moving: bool) -> Self {
        let mut rng = Rng::new(seed);
        let logs = (1..=5)
            .map(|node| {
                let seed = rng.next_u64();
                let mut log =
                    Log::new(STREAM, voter(node), SlotNumber(1), Settings::default(), seed);
                let through = moving.then_some(SlotNumber(1));
                log.set_voters(SlotNumber(1), through, voters_for(moving, SlotNumber(1)));
                log
            })
            .collect();
        Self { rng, now: at(0), moving, logs, wire: Vec::new(), learnt: BTreeMap::new() }
    }

    /// The network loses `loss` percent and duplicates as much; order is random.
    fn act(
        &mut self,
        node: usize,
        loss: u64,
        act: impl FnOnce(&mut Log<Bytes>, &mut Outbox<Bytes>),
    ) {
        let mut out = Outbox::default();
        act(&mut self.logs[node], &mut out);
        for (_, slot, entry) in out.chosen.drain(..) {
            let first = self.learnt.entry(slot).or_insert_with(|| entry.clone());
            assert_eq!(*first, entry, "two nodes learnt different entries for {slot:?}");
            if self.moving {
                let next = slot.next();
                self.logs[node].set_voters(next, Some(next), voters_for(true, next));
            }
        }
        self.logs[node].check_invariants();
        for (to, message) in out.messages {
            let copies =
                u64::from(!self.rng.chance(loss, 100)) + u64::from(self.rng.chance(loss, 100));
            for _ in 0..copies {
                self.wire.push((voter(node as u16 + 1), to, message.clone()));
            }
        }
    }

    fn round(&mut self, loss: u64, proposers: u64) {
        let now = self.now;
        let keeps_up = loss == 0 || self.rng.chance(4, 5);
        let deliver = !self.wire.is_empty() && keeps_up;
        if deliver {
            let index = self.rng.below(self.wire.len() as u64) as usize;
            let (from, to, message) = self.wire.swap_remove(index);
            self.act(usize::from(to.0 - 1), loss, |log, out| {
                log.on_message(now, from, message.body, &open, out).expect(HONEST);
            });
            return;
        }
        self.now += Duration::from_millis(self.rng.below(8));
        let node = self.rng.below(5) as usize;
        let proposes = (node as u64) < proposers && self.rng.chance(1, 2);
        let entry = self.rng.next_u64().to_le_bytes().to_vec();
        let (peer, peer_next) = {
            let peer = self.rng.below(5) as usize;
            (NodeId(peer as u16 + 1), self.logs[peer].next())
        };
        self.act(node, loss, |log, out| {
            log.tick(now, &open, out);
            log.on_progress(peer, peer_next, out);
            if proposes && log.propose(now, entry, &open, out).is_err() {
                log.campaign(now, &open, out);
            }
        });
    }
}

#[test]
fn duelling_proposers_never_decide_a_slot_twice_and_decide_once_healed() {
    for seed in Seeds::new(0..300) {
        let mut world = World::new(seed, seed % 2 == 0);
        for _ in 0..1500 {
            world.round(15, 5);
        }
        let before = world.learnt.len();
        let mut rounds = 0;
        while world.learnt.len() < before + 4 {
            world.round(0, 5);
            rounds += 1;
            assert!(rounds < 50_000, "nothing is decided after healing");
        }
    }
}

/// A proposer's own acceptor withholds an entry, and then promises the ballot of another node,
/// which dies; the third acceptor has accepted already, so no voter rejects the repeated request.
#[test]
fn a_proposer_that_was_outbid_by_a_dead_node_campaigns_again() {
    let withhold = |_: SlotNumber, _: &Bytes| Some(at(100));
    let mut log = log_of(2);
    let mut out = Outbox::default();
    log.campaign(at(0), &withhold, &mut out);
    let Body::Prepare { ballot: own, from } = bodies(&mut out).remove(0).1 else {
        panic!("a campaign begins with a PREPARE")
    };
    let promise = Body::Promise { ballot: own, from, accepted: vec![] };
    log.on_message(at(1), voter(1), promise, &withhold, &mut out).expect("well-formed");
    log.propose(at(1), vec![7], &withhold, &mut out).expect("it leads");
    let accepted = Body::Accepted { ballot: own, slot: SlotNumber(1) };
    log.on_message(at(2), voter(1), accepted, &withhold, &mut out).expect("well-formed");
    let higher = Body::Prepare { ballot: ballot(own.round + 1, 3), from };
    log.on_message(at(3), voter(3), higher, &withhold, &mut out).expect("well-formed");
    assert!(log.is_deciding());
    log.tick(at(200), &open, &mut out);
    assert!(!log.is_campaigning(), "it knows that it was outbid");
    let free = log.campaign_not_before();
    log.campaign(free, &open, &mut out);
    bodies(&mut out);
    assert!(log.is_campaigning() && !log.is_deciding());
}
