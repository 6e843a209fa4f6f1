//! What no correct peer says is refused, and nothing that arrives ends a node.
//!
//! With three nodes `y` belongs to 1, 2, 3 in this order.

use quorate_machine::{Content, Rng, ValueKind};
use quorate_types::{Duration, MemberNumber, Role, Timestamp, WriterId};
use quorate_wire::Writer;
use quorate_zeus::{
    CallMessage, Entries, FloorStep, Item, Items, Message, Parts, Requester, Settled, Slots, Update,
};

use crate::support::{Cluster, Replicas, WALL};

const YEARS: u64 = 20 * 366 * 24 * 3600 * 1_000_000_000;

fn at(version: u64) -> Timestamp {
    Timestamp::new(version, WriterId(3))
}

/// Three nodes; node 1 has written `y`.
fn written() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.run(1, "write=y:1");
    cluster
}

fn update(slot: u64, version: u64, act: impl FnOnce(&Message<'_>)) {
    let items =
        Items::write([Item { key: b"y", round: at(1), content: None, base: None }].into_iter());
    let depends_on = Slots::write(&[]);
    act(&Message::Update(Update {
        coordinator: MemberNumber(3),
        slot,
        committed: 0,
        version: at(version),
        depends_on: Slots::check(&depends_on).expect("just written"),
        items: Items::check(&items).expect("just written"),
        call: None,
    }));
}

#[test]
fn no_clock_is_moved_by_years() {
    let mut cluster = written();
    let late = WALL + YEARS;
    let requester = Requester { member: MemberNumber(3), sequence: 1, stamp: at(late) };
    let previous = Settled::default();
    let lies = [
        Message::Req { key: b"y", requester, resumes: false },
        Message::Inv { key: b"y", round: at(9), requester, previous },
        Message::Val { key: b"y", round: at(late), owner: MemberNumber(3), clock: 0 },
        Message::Val { key: b"y", round: at(9), owner: MemberNumber(3), clock: late },
        Message::Recovered { clock: late, promised: 0, asks: false },
        Message::Recovered { clock: 0, promised: u64::MAX, asks: false },
        Message::Floor { step: FloorStep::Prepare, at: late, before: 0 },
    ];
    for lie in &lies {
        let refused = cluster.lie(3, 1, lie);
        assert!(refused.is_some_and(|reason| reason.contains("years ahead")), "{lie:?}");
    }
    update(1, late, |lie| assert!(cluster.lie(3, 1, lie).is_some()));
    assert_eq!(cluster.run(2, "append=y:2"), [Some("1".to_owned())]);
    assert!(cluster.meta(2, "y").version.version < late);
}

#[test]
fn no_stream_grows_beyond_a_pipeline() {
    let mut cluster = written();
    update(4097, WALL, |lie| assert!(cluster.lie(3, 1, lie).is_some()));
    update(u64::MAX, WALL, |lie| assert!(cluster.lie(3, 1, lie).is_some()));
}

#[test]
fn nobody_speaks_of_transactions_of_others() {
    let mut cluster = written();
    let number = cluster.number(1);
    let lists = [Slots::write(&[7]), Slots::write(&[1, 0])];
    let [later, never] = lists.each_ref().map(|list| Slots::check(list).expect("just written"));
    let lies = [
        (1, Message::Applied { coordinator: number, slots: later }),
        (1, Message::Applied { coordinator: number, slots: never }),
        (2, Message::Committed { coordinator: number, upto: 7 }),
        (1, Message::Committed { coordinator: number, upto: 7 }),
        (2, Message::Committed { coordinator: cluster.number(3), upto: u64::MAX }),
        (2, Message::Floor { step: FloorStep::Commit, at: WALL, before: 0 }),
    ];
    for (to, lie) in &lies {
        assert!(cluster.lie(3, *to, lie).is_some(), "{lie:?}");
    }
}

#[test]
fn a_key_is_not_taken_from_its_owner() {
    let mut cluster = written();
    let val = Message::Val { key: b"y", round: at(1 << 40), owner: MemberNumber(3), clock: 0 };
    assert!(cluster.lie(3, 1, &val).is_some());
    assert_eq!(cluster.writers("y"), [1]);
    // Nor is what it has under way overwritten.
    let tag = cluster.submit(1, "append=y:2");
    cluster.lies = true;
    update(1, WALL + 1_000_000_000, |lie| cluster.tell(3, 1, lie));
    cluster.deliver_all();
    assert_eq!(cluster.read_by(tag), [Some("1")]);
    assert_eq!(cluster.record(1, "y").expect("it was written").1.as_deref(), Some("12"));
}

#[test]
fn a_delta_that_does_not_fit_changes_nothing() {
    let mut cluster = Cluster::large(3, |_| 0);
    cluster.run(1, "put=y:,0");
    let base = Some(cluster.meta(2, "y").version);
    let bytes = b"no step of any collection";
    let content = Some(Content { bytes, kind: ValueKind::List, expire_at: None });
    let items = Items::write([Item { key: b"y", round: at(1), content, base }].into_iter());
    let depends_on = Slots::write(&[]);
    let lie = Message::Update(Update {
        coordinator: cluster.number(3),
        slot: 1,
        committed: 0,
        version: at(WALL + 1_000_000_000),
        depends_on: Slots::check(&depends_on).expect("just written"),
        items: Items::check(&items).expect("just written"),
        call: None,
    });
    assert_eq!(cluster.lie(3, 2, &lie), Some("zeus: a delta that does not fit its base"));
    assert_eq!(cluster.record(2, "y").expect("it was written").1.as_deref(), Some(",0"));
}

/// Node 3 has lost everything and asks one of the others. The other one says that there is nothing.
#[test]
fn a_replica_copies_from_the_donor_that_it_has_asked() {
    let mut cluster = written();
    cluster.expel(&[3]);
    cluster.rejoin(3);
    let question = cluster.take(3, 0, "copy_read").pop().expect("it asks one of them");
    let other = if question.to.0 == 1 { 2 } else { 1 };
    let Message::CopyRead { request, .. } = question.message() else { panic!("it was found so") };
    let (entries, parts) = (Entries::check(&[0; 4]), Parts::check(&[]));
    let (entries, parts) = (entries.expect("an empty list"), parts.expect("an empty list"));
    let floors = [WALL, WALL];
    let said = cluster.pool.len();
    cluster.lie(other, 3, &Message::Copy { request, next: 0, clock: 0, floors, entries });
    let calls = CallMessage::Copy { request: request + 1, next: None, parts };
    cluster.lie(other, 3, &Message::Call(calls));
    assert_eq!(cluster.pool.len(), said, "it does not go on to what comes next");
    assert!(!cluster.machine(3).is_caught_up());
    cluster.inject(&question);
    cluster.deliver_all();
    assert!(cluster.machine(3).is_caught_up());
    cluster.set_role(3, Role::Active);
    cluster.deliver_all();
    assert_eq!(cluster.run(3, "read=y"), [Some("1".to_owned())]);
}

/// A message as it was sent, with a few bytes or one number of it changed.
fn altered(rng: &mut Rng, message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    for _ in 0..=rng.below(2) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.below(4) as u8,
            _ if at + 8 <= bytes.len() => {
                let numbers = [0, 1, 2, 3, 5000, u64::from(u32::MAX), WALL, WALL + YEARS, u64::MAX];
                let number = numbers[rng.below(numbers.len() as u64) as usize];
                bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            _ => bytes[at] = u8::MAX,
        }
    }
    bytes
}

/// Node 3 says beside the truth what it makes of what was said. How often copies
/// outside groups were spoken of.
fn run(seed: u64, lanes: u16, refused: &mut u64) -> u64 {
    let mut rng = Rng::new(seed);
    let replicas = Replicas {
        lanes: Some(lanes),
        collect_every: Some(Duration::from_millis(20)),
        replicas: Some(if seed.is_multiple_of(3) { 2 } else { 3 }),
        extra_after: Some(1),
        ..Replicas::default()
    };
    let mut cluster = Cluster::of(replicas, 4, |_| 0, u64::from);
    cluster.lies = true;
    let mut said: Vec<Vec<u8>> = Vec::new();
    let mut copies = 0;
    for step in 0..300 {
        match rng.below(10) {
            0..=2 => {
                let node = 1 + rng.below(4) as u16;
                let (one, other) = (rng.below(4), rng.below(4));
                let texts = [
                    format!("append=k{one}:{step}"),
                    format!("append=k{one}:{step} read=k{other}"),
                    format!("read=k{one}"),
                    format!("del=k{one}"),
                ];
                cluster.submit(node, &texts[rng.below(4) as usize]);
            }
            3 => cluster.tick(Duration::from_millis(rng.below(30))),
            4 if rng.chance(1, 20) => cluster.renew_view(),
            4..=6 => {
                if let Some(message) = (!said.is_empty()).then(|| {
                    let at = rng.below(said.len() as u64) as usize;
                    altered(&mut rng, &said[at])
                }) && let Ok(lie) = Message::decode(&message)
                {
                    let to = 1 + rng.below(4) as u16;
                    if to != 3 {
                        *refused += u64::from(cluster.lie(3, to, &lie).is_some());
                        cluster.lies = true;
                    }
                }
            }
            _ => {
                cluster.deliver_any_mail(&mut rng);
                if !cluster.pool.is_empty() {
                    let at = rng.below(cluster.pool.len() as u64) as usize;
                    let packet = cluster.pool.remove(at);
                    cluster.inject(&packet);
                }
            }
        }
        for packet in std::mem::take(&mut cluster.fresh_packets) {
            copies += u64::from(["want", "grant", "keep"].contains(&packet.kind()));
            let mut bytes = Vec::new();
            packet.message().encode(&mut Writer(&mut bytes));
            said.push(bytes);
        }
        if cluster.pool.len() > 300 {
            cluster.pool.drain(..200);
        }
        cluster.fresh_outcomes.clear();
    }
    copies
}

#[test]
fn nothing_that_arrives_ends_a_node() {
    let (mut refused, mut copies) = (0, 0);
    for seed in quorate_check::Seeds::new(0..200) {
        copies += run(seed, 1 + (seed % 2) as u16, &mut refused);
    }
    assert!(copies > 100, "{copies} times copies were spoken of");
    assert!(refused > 100, "{refused} lies were refused");
}
