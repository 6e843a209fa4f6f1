//! Nothing that arrives ends a node: whole nodes are told well-formed lies, messages that no correct
//! node would send at this moment.
//!
//! The fuzz targets `lies_hermes`, `lies_meerkat`, `lies_zeus`, `lies_membership` and `lies_paxos` run
//! the same scripts for as long as they are given. Here some seeds of each run; others by
//! `LIES_FROM=700 LIES_COUNT=100 cargo test -p quorate-node --test lies`. Of some thousand seeds of
//! Meerkat one fails in the end, by what is known and open: design note 005 says what guests can do
//! that leaves replicas different. The fuzz target leaves that question out.

mod script;
mod world;

use quorate_hermes::Message;
use quorate_machine::Rng;
use quorate_node::EngineConfig;
use quorate_types::{NodeId, lane_of_key};
use quorate_wire::{Header, Kind, Writer};

use script::{About, run};
use world::{KEYSPACE, LANES, Packet, Placement, World};

/// Bytes of one run.
const BYTES: usize = 600;

/// Seeds of each test.
const SEEDS: u64 = 100;

/// Runs the seeds from 0, or those that `LIES_FROM` and `LIES_COUNT` in the environment choose.
fn seeds(about: About) {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let from = number("LIES_FROM", 0);
    let count = number("LIES_COUNT", SEEDS);
    let mut false_answers = 0;
    for seed in from..from + count {
        let mut rng = Rng::new(seed);
        let bytes: Vec<u8> = (0..BYTES).map(|_| rng.next_u64() as u8).collect();
        println!("{about:?} seed {seed}");
        let mut liar = run(about, &bytes);
        liar.assert_alike();
        false_answers += liar.false_answers;
    }
    let returns = matches!(about, About::Hermes | About::Meerkat);
    assert!(false_answers > 0 || !returns || count < SEEDS, "nobody who came back was lied to");
}

#[test]
fn lies_about_hermes_end_no_node() {
    seeds(About::Hermes);
}

#[test]
fn lies_about_meerkat_end_no_node() {
    seeds(About::Meerkat);
}

#[test]
fn lies_about_zeus_end_no_node() {
    seeds(About::Zeus);
}

#[test]
fn lies_about_the_membership_end_no_node() {
    seeds(About::Membership);
}

#[test]
fn lies_about_the_log_end_no_node() {
    seeds(About::Paxos);
}

/// A lane has no record of a key that another lane owns, and its table asserts that nobody asks.
#[test]
fn a_member_that_asks_a_lane_for_the_value_of_another_lanes_key_is_refused() {
    let mut world = World::new(&EngineConfig::hermes(), &Placement::everywhere());
    let lane = usize::from(lane_of_key(b"a", LANES).0);
    for (asked, is_refused) in [(lane, false), (1 - lane, true)] {
        let mut bytes = Vec::new();
        let epoch = world.epoch_of(0, asked);
        Header::frame(
            &mut bytes,
            Kind::Engine(quorate_hermes::ID),
            KEYSPACE,
            epoch,
            |out: &mut Writer<'_>| {
                Message::ValueRead { keys: b"\x01\0\0\0a" }.encode(out);
            },
        );
        let packet = Packet { from: NodeId(3), to: NodeId(1), lane: asked, bytes };
        assert_eq!(world.hear(0, &packet).is_err(), is_refused);
    }
}
