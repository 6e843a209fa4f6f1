//! The bytes of a voter's state.

use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Effects, Event, Machine};
use quorate_types::{Epoch, Incarnation, Instant, Lsn, NodeId, Now, Tag, UnixNanos};

use super::world::addresses;
use crate::{Config, Membership, MembershipError, Message, StateError, Store};

const NOW: Now = Now { monotonic: Instant(1_000), unix: UnixNanos(0) };

struct Nothing;

impl Effects<Membership> for Nothing {
    fn send(&mut self, _to: NodeId, _message: &Message) {}
    fn complete(&mut self, _tag: Tag, _outcome: Result<Epoch, MembershipError>) {}
}

fn config(node: u16, life: u64) -> Config {
    Config::new(NodeId(node), Incarnation(life), vec![addresses(1)])
}

/// The states that a cluster of one saves until it serves.
fn states() -> Vec<Vec<u8>> {
    let mut machine = Membership::with_disk(config(1, 7), NOW, None, Store::None).unwrap();
    let mut states = Vec::new();
    while let Some((number, bytes)) = machine.take_unsaved() {
        states.push(bytes);
        assert_eq!(number, states.len() as u64);
        assert_eq!(machine.view().epoch, Epoch(0), "a view is in force that is on no disk");
        machine.step(NOW, Event::Durable(Lsn(number)), &mut Nothing);
    }
    assert_eq!(machine.view().epoch, Epoch(1));
    assert!(machine.lease_until() > NOW.monotonic);
    states
}

#[test]
fn golden_bytes_of_a_state() {
    let states = states();
    let life = [7, 0, 0, 0, 0, 0, 0, 0];
    let mut fresh = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    fresh.extend(life);
    fresh.push(0);
    assert_eq!(states[0], fresh, "the layout changed without a new version");
    let mut voter = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    voter.extend(life);
    // The view: epoch, cluster, last number, placed, departing, one member.
    voter.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    voter.extend(life);
    voter.extend([1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    voter.extend([1, 0]);
    voter.extend(life);
    voter.extend([1, 0, 0, 0, 1]);
    for port in b"123" {
        voter.extend([4, 0, 0, 0, b'h', b'1', b':', *port]);
    }
    // The acceptor: no ballot promised, no entry accepted.
    voter.extend([0; 18]);
    voter.extend([0; 4]);
    assert_eq!(states.last(), Some(&voter), "the layout changed without a new version");
}

#[test]
fn a_state_comes_back_and_every_cut_is_refused() {
    let state = states().pop().unwrap();
    let back = |bytes: &[u8]| Membership::with_disk(config(1, 9), NOW, Some(bytes), Store::Intact);
    let machine = back(&state).unwrap();
    assert_eq!(
        (machine.voter.incarnation, machine.me.incarnation),
        (Incarnation(7), Incarnation(9))
    );
    assert_eq!(machine.newest_view().epoch, Epoch(1));
    for cut in 0..state.len() {
        assert!(back(&state[..cut]).is_err(), "cut at {cut}");
    }
    let longer: Vec<u8> = state.iter().copied().chain([0]).collect();
    assert!(back(&longer).is_err());
}

#[test]
fn a_state_of_another_node_or_version_is_refused_with_the_remedy() {
    let state = states().pop().unwrap();
    let other = Membership::with_disk(config(2, 9), NOW, Some(&state), Store::Intact);
    assert_eq!(other.err(), Some(StateError::OtherNode(NodeId(1))));
    let mut newer = state;
    newer[0] = 2;
    let error = Membership::with_disk(config(1, 9), NOW, Some(&newer), Store::Intact).unwrap_err();
    assert_eq!(error, StateError::Newer(2));
    assert!(alloc::format!("{error}").contains("start the program that wrote it"));
}

/// Damage that a checksum does not see breaks nothing.
#[test]
fn a_state_with_any_byte_changed_is_read_or_refused() {
    let state = states().pop().unwrap();
    for at in 0..state.len() {
        for change in [1, 0x80, 0xff] {
            let mut bytes = state.clone();
            bytes[at] ^= change;
            if let Ok(mut machine) =
                Membership::with_disk(config(1, 9), NOW, Some(&bytes), Store::Intact)
            {
                machine.step(NOW, Event::Tick, &mut Nothing);
                machine.check_invariants();
            }
        }
    }
}
