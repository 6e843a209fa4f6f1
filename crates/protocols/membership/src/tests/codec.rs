use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use quorate_paxos as paxos;
use quorate_types::{Epoch, Incarnation, Instant, NodeId, NodeSet};
use quorate_wire::{Reader, Writer};

use super::world::addresses;
use crate::{Body, Message, Store, ViewEntry, change};

fn message(body: Body) -> Message {
    Message { incarnation: Incarnation(1), cluster: Incarnation(2), epoch: Epoch(3), body }
}

fn renewal(sent: Option<Instant>) -> Body {
    let hears = NodeSet::only(NodeId(7));
    Body::Renew { sent, caught_up: false, is_complete: false, hears, admits: NodeSet::EMPTY }
}

fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Writer(&mut bytes));
    bytes
}

#[test]
fn golden_bytes_of_a_renewal() {
    let renew = message(Body::Renew {
        sent: Some(Instant(4)),
        caught_up: true,
        is_complete: true,
        hears: NodeSet::only(NodeId(1)),
        admits: NodeSet::only(NodeId(3)),
    });
    let mut expected = vec![4, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(&renew), expected, "the layout changed without a new VERSION");
}

#[test]
fn every_message_comes_back_and_every_cut_is_refused() {
    let founders = [(addresses(2), Incarnation(7)), (addresses(1), Incarnation(8))];
    let view = ViewEntry(Arc::new(change::genesis(Incarnation(2), &founders)));
    let learn = paxos::Body::Learn { slot: paxos::SlotNumber(1), entry: view.clone() };
    for body in [
        Body::Announce {
            to: Incarnation(5),
            nonce: 6,
            answer: 7,
            is_member: false,
            store: Store::Intact,
            round: 8,
            votes_as: Incarnation(9),
            reaches: NodeSet::only(NodeId(2)),
            strangers: NodeSet::only(NodeId(3)),
            addresses: addresses(1),
        },
        Body::Found { round: 9, view },
        Body::Founded { to: Incarnation(1), round: 2 },
        renewal(Some(Instant(4))),
        renewal(None),
        Body::Leave,
        Body::Grant { to: Incarnation(1), sent: Instant(4) },
        Body::Log(paxos::Message { stream: paxos::Stream(0), body: learn }),
    ] {
        let message = message(body);
        let bytes = bytes(&message);
        assert_eq!(Message::decode(Reader(&bytes)), Ok(message));
        for cut in 0..bytes.len() {
            assert!(Message::decode(Reader(&bytes[..cut])).is_err(), "cut at {cut}");
        }
    }
}
