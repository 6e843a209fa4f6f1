//! Messages as bytes: every kind comes back, the layout is pinned, and damage is refused.

use quorate_machine::Rng;
use quorate_meerkat::{Body, Comparison, Conflict, Kind, Message, Reason};
use quorate_rifl::{Call, CallError, Found, LeaseId};
use quorate_types::{NodeSet, Timestamp, WriterId};
use quorate_wire::Words;

use crate::packets::{encoded, kind_name};
use crate::support::body_bytes;

const COMPARISON: Comparison = Comparison { request: 1, partitions: 2, shift: 3 };

fn id() -> Timestamp {
    Timestamp::new(0x0102_0304, WriterId(0x0506))
}

fn body() -> Vec<u8> {
    body_bytes(&[("k", Some(Timestamp::new(2, WriterId(3))), Some("v")), ("w", None, Some(""))])
}

/// One message of each kind, some with and without their optional fields.
fn kinds(bytes: &[u8]) -> Vec<Kind<'_>> {
    let body = Body::check(bytes).expect("just made");
    let id = id();
    let words = Words::of(b"\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\x01");
    let call = Call { lease: LeaseId(4), sequence: 3, first_incomplete: 2, digest: 1 };
    let vote =
        Err(Conflict { reason: Reason::PendingReader, with: Timestamp::new(9, WriterId(8)) });
    vec![
        Kind::Get { request: 7, keys: b"\x01\0\0\0k" },
        Kind::Values { request: 7, clock: 8, items: bytes },
        Kind::Validate { id, stable: 5, participants: 1, body },
        Kind::Vote { id, vote: Ok(()) },
        Kind::Vote { id, vote },
        Kind::Accept { id, view: 3, ok: true, participants: 9, body: Some(body) },
        Kind::Accept { id, view: 3, ok: false, participants: 9, body: None },
        Kind::Accepted { id, view: 3 },
        Kind::Superseded { id, view: 3 },
        Kind::Decided { id, commit: true, body: Some(body) },
        Kind::Decided { id, commit: false, body: None },
        Kind::Acked { ids: b"0123456789ab" },
        Kind::Named { ids: b"0123456789ab" },
        Kind::Pull { id },
        Kind::Prepare { id, view: 66 },
        Kind::Promise { id, view: 66, vote: None, accepted: None, participants: 0, body: None },
        Kind::Promise {
            id,
            view: 66,
            vote: Some(vote),
            accepted: Some((2, true)),
            participants: 1,
            body: Some(body),
        },
        Kind::Check { at: id, body },
        Kind::Checked { at: id, result: Ok(()) },
        Kind::Checked { at: id, result: vote },
        Kind::Stable { stable: 77 },
        Kind::Freeze { part: 1 },
        Kind::Frozen { part: 1, parts: 2, bytes: b"part" },
        Kind::TakeIn { former: NodeSet::from_bits(6) },
        Kind::TakenIn { former: NodeSet::from_bits(6) },
        Kind::Adopt { part: 0, parts: 1, bytes: b"" },
        Kind::Adopted { parts: 1 },
        Kind::Release,
        Kind::ChunkRead { request: 1, cursor: 2, after: None },
        Kind::ChunkRead { request: 1, cursor: 2, after: Some(b"") },
        Kind::Chunk { request: 1, next: 0, more: false, entries: b"entries" },
        Kind::Chunk { request: 1, next: 7, more: true, entries: b"entries" },
        Kind::Compare { comparison: COMPARISON, first: 4, digests: words },
        Kind::Compared { request: 1, clock: 2, records: 3, buckets: words },
        Kind::DifferenceRead { comparison: COMPARISON, buckets: words, held: words },
        Kind::Difference { request: 1, clock: 2, until: 3, gone: words, entries: b"entries" },
        Kind::Find { request: 7, call },
        Kind::Found { request: 7, clock: 8, found: Ok(Found::New) },
        Kind::Found { request: 7, clock: 8, found: Ok(Found::Completed(b"answer")) },
        Kind::Found { request: 7, clock: 8, found: Ok(Found::InProgress(id)) },
        Kind::Found { request: 7, clock: 8, found: Err(CallError::Closed) },
        Kind::CallsRead { request: 1, cursor: (LeaseId(5), 6) },
        Kind::Calls { request: 1, next: None, sessions: b"sessions" },
        Kind::Calls { request: 1, next: Some((LeaseId(5), 6)), sessions: b"sessions" },
    ]
}

#[test]
fn every_kind_comes_back() {
    let bytes = body();
    let mut names = Vec::new();
    for (at, kind) in kinds(&bytes).into_iter().enumerate() {
        let message = Message { partition: at as u16, kind };
        assert_eq!(Message::decode(&encoded(&message)).expect("just written"), message);
        names.push(kind_name(&kind));
    }
    names.dedup();
    assert!(names.len() >= 30, "{names:?}");
}

#[test]
fn every_cut_is_refused_or_is_a_message_itself() {
    let bytes = body();
    for kind in kinds(&bytes) {
        let whole = encoded(&Message { partition: 3, kind });
        for cut in 0..whole.len() {
            if let Ok(message) = Message::decode(&whole[..cut]) {
                assert_eq!(encoded(&message), &whole[..cut], "{kind:?} cut at {cut}");
            }
        }
        let mut longer = whole.clone();
        longer.push(0);
        if let Ok(message) = Message::decode(&longer) {
            assert_eq!(encoded(&message), longer, "{kind:?} with one byte more");
        }
    }
}

#[test]
fn a_message_with_a_fixed_length_has_no_other() {
    let bytes = body();
    for kind in kinds(&bytes) {
        let fixed = matches!(
            kind,
            Kind::Vote { .. }
                | Kind::Accepted { .. }
                | Kind::Superseded { .. }
                | Kind::Pull { .. }
                | Kind::Prepare { .. }
                | Kind::Checked { .. }
                | Kind::Stable { .. }
                | Kind::Freeze { .. }
                | Kind::TakeIn { .. }
                | Kind::TakenIn { .. }
                | Kind::Adopted { .. }
                | Kind::Release
                | Kind::ChunkRead { after: None, .. }
        );
        let mut whole = encoded(&Message { partition: 0, kind });
        if fixed {
            assert!(Message::decode(&whole[..whole.len() - 1]).is_err(), "{kind:?}");
            whole.push(0);
            assert!(Message::decode(&whole).is_err(), "{kind:?}");
        }
    }
}

#[test]
fn damaged_bytes_never_panic() {
    let bytes = body();
    let mut rng = Rng::new(1);
    for kind in kinds(&bytes) {
        let whole = encoded(&Message { partition: 3, kind });
        for _ in 0..2_000 {
            let mut damaged = whole.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(damaged.len() as u64) as usize;
                damaged[at] = rng.next_u64() as u8;
            }
            if let Ok(message) = Message::decode(&damaged) {
                // What was let in can be looked at.
                let _ = format!("{message:?}");
            }
        }
    }
    assert!(Message::decode(&[0, 0, 0]).is_err(), "there is no kind 0");
    assert!(Message::decode(&[0, 0, 99]).is_err(), "nor 99");
}

#[test]
fn the_layout_is_pinned() {
    let bytes = body_bytes(&[("k", None, Some("v"))]);
    let body = Body::check(&bytes).expect("just made");
    let vote = Err(Conflict { reason: Reason::StaleRead, with: Timestamp::new(9, WriterId(8)) });
    let word = Words::of(b"\x09\0\0\0\0\0\0\x08");
    let pinned: [(Kind<'_>, &[u8]); 12] = [
        (
            Kind::Validate { id: id(), stable: 5, participants: 1, body },
            b"\x02\0\x03\x04\x03\x02\x01\0\0\0\0\x06\x05\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\
              \x01\0\0\0\x06\x01\0\0\0k\0\x01\0\0\0v",
        ),
        (
            Kind::Vote { id: id(), vote },
            b"\x02\0\x04\x04\x03\x02\x01\0\0\0\0\x06\x05\0\0\x01\x09\0\0\0\0\0\0\0\x08\0\0\0",
        ),
        (
            Kind::Accept { id: id(), view: 3, ok: true, participants: 1, body: None },
            b"\x02\0\x05\x04\x03\x02\x01\0\0\0\0\x06\x05\0\0\x03\0\0\0\0\0\0\0\x01\x01\0\0\0\0\0\0\0",
        ),
        (
            Kind::Decided { id: id(), commit: true, body: None },
            b"\x02\0\x08\x04\x03\x02\x01\0\0\0\0\x06\x05\0\0\x01",
        ),
        (Kind::Named { ids: b"0123456789ab" }, b"\x02\0\x1f0123456789ab"),
        (Kind::Adopted { parts: 2 }, b"\x02\0\x13\x02\0\0\0"),
        (Kind::TakeIn { former: NodeSet::from_bits(6) }, b"\x02\0\x20\x06\0\0\0\0\0\0\0"),
        (Kind::Release, b"\x02\0\x14"),
        (
            Kind::Compare { comparison: COMPARISON, first: 4, digests: word },
            b"\x02\0\x1b\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\0\
              \x09\0\0\0\0\0\0\x08",
        ),
        (
            Kind::Compared { request: 1, clock: 2, records: 3, buckets: word },
            b"\x02\0\x1c\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\
              \x09\0\0\0\0\0\0\x08",
        ),
        (
            Kind::DifferenceRead { comparison: COMPARISON, buckets: word, held: word },
            b"\x02\0\x1d\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\x08\0\0\0\
              \x09\0\0\0\0\0\0\x08\x09\0\0\0\0\0\0\x08",
        ),
        (
            Kind::Difference { request: 1, clock: 2, until: 3, gone: word, entries: b"e" },
            b"\x02\0\x1e\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\
              \x08\0\0\0\x09\0\0\0\0\0\0\x08e",
        ),
    ];
    for (kind, expected) in pinned {
        assert_eq!(encoded(&Message { partition: 2, kind }), expected, "{kind:?}");
    }
}
