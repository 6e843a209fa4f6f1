//! The layouts of messages are pinned, every cut is noticed, and lies are refused.

use quorate_machine::{CallError, Content, Refusal, ValueKind};
use quorate_rifl::{Call, LeaseId};
use quorate_types::{MemberNumber, NodeId, Timestamp, UnixMillis, WriterId};
use quorate_wire::{Words, Writer};
use quorate_zeus::{
    Answered, CallMessage, CallsCursor, Copies, DifferenceMessage, ExtraMessage, ExtraStep,
    FloorStep, Item, Items, Keys, Known, KnownRecords, LookMessage, Message, Parts, Question,
    Requester, Seen, Settled, Shards, Slots, Update, Versions,
};

const AT: Timestamp = Timestamp::new(5, WriterId(6));
const REQUESTER: Requester = Requester { member: MemberNumber(2), sequence: 3, stamp: AT };

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Writer(&mut bytes));
    bytes
}

fn value(expire_at: Option<UnixMillis>) -> Content<'static> {
    Content { bytes: b"v", kind: ValueKind::String, expire_at }
}

fn check(message: Message<'_>, golden: &[u8]) {
    let bytes = encoded(&message);
    assert_eq!(bytes, golden, "{message:?}");
    assert_eq!(Message::decode(&bytes), Ok(message));
    for cut in 0..bytes.len() {
        assert!(Message::decode(&bytes[..cut]).is_err(), "{message:?} cut at {cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(Message::decode(&longer).is_err(), "{message:?} and a byte");
}

const CALL: Call = Call { lease: LeaseId(8), sequence: 7, first_incomplete: 6, digest: 5 };
const CALL_BYTES: &[u8] = b"\x08\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x05\0\0\0";
const AT_BYTES: &[u8] = b"\x05\0\0\0\0\0\0\0\x06\0\0\0";
const KEY: &[u8] = b"\x01\0\0\0k";
const REQUESTER_BYTES: &[u8] = b"\x02\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0";

fn golden(kind: u8, fields: &[&[u8]]) -> Vec<u8> {
    [&[kind][..], &fields.concat()].concat()
}

#[test]
fn ownership_messages_are_pinned() {
    let (key, round, requester) = (&b"k"[..], AT, REQUESTER);
    let previous = Settled { round: AT, owner: MemberNumber(4) };
    let resumes = true;
    check(Message::Req { key, requester, resumes }, &golden(1, &[KEY, REQUESTER_BYTES, b"\x01"]));
    let fields = [KEY, AT_BYTES, REQUESTER_BYTES, AT_BYTES, b"\x04\0\0\0"];
    check(Message::Inv { key, round, requester, previous }, &golden(2, &fields));
    let ack = |copy| Message::Ack { key, round, requester, previous, version: AT, clock: 9, copy };
    let clock = b"\x09\0\0\0\0\0\0\0";
    let head = [&fields[..], &[AT_BYTES, clock]].concat();
    check(ack(None), &golden(3, &[&head[..], &[b"\0"]].concat()));
    check(ack(Some(None)), &golden(3, &[&head[..], &[b"\x01\0"]].concat()));
    let content = b"\x01\x01\0\x01\0\0\0v";
    check(ack(Some(Some(value(None)))), &golden(3, &[&head[..], &[content]].concat()));
    let expiring = b"\x01\x03\0\x01\0\0\0v\x07\0\0\0\0\0\0\0";
    let copy = Some(Some(value(Some(UnixMillis(7)))));
    check(ack(copy), &golden(3, &[&head[..], &[expiring]].concat()));
    let owner = MemberNumber(2);
    let val = [KEY, AT_BYTES, b"\x02\0\0\0", b"\x09\0\0\0\0\0\0\0"];
    check(Message::Val { key, round, owner, clock: 9 }, &golden(4, &val));
    check(Message::Nack { key, sequence: 3 }, &golden(5, &[KEY, b"\x03\0\0\0\0\0\0\0"]));
}

#[test]
fn commit_messages_are_pinned() {
    let slots = Slots::write(&[1, 2]);
    let list = Content { kind: ValueKind::List, ..value(None) };
    let items = [
        Item { key: b"k", round: AT, content: Some(value(None)), base: None },
        Item { key: b"l", round: AT, content: None, base: None },
        Item { key: b"m", round: AT, content: Some(list), base: Some(AT) },
    ];
    let items = Items::write(items.into_iter());
    let update = Update {
        coordinator: MemberNumber(2),
        slot: 4,
        committed: 1,
        version: AT,
        depends_on: Slots::check(&slots).expect("just written"),
        items: Items::check(&items).expect("just written"),
        call: None,
    };
    let head = b"\x02\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0";
    let depends = b"\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
    let first = [KEY, AT_BYTES, b"\x01\0\x01\0\0\0v"].concat();
    let second = [b"\x01\0\0\0l", AT_BYTES, b"\0"].concat();
    let delta = [b"\x01\0\0\0m", AT_BYTES, b"\x05", AT_BYTES, b"\x03\x01\0\0\0v"].concat();
    let fields = [&head[..], AT_BYTES, depends, b"\x03\0\0\0", &first, &second, &delta];
    check(Message::Update(update), &golden(6, &[&fields[..], &[b"\0"]].concat()));
    let call = Some(Answered { shard: 255, call: CALL, date: 9, answer: b"+" });
    let called = [b"\x01\xff", CALL_BYTES, b"\x09\0\0\0\0\0\0\0\x01\0\0\0+"].concat();
    let fields = [&fields[..], &[&called]].concat();
    check(Message::Update(Update { call, ..update }), &golden(6, &fields));
    let (coordinator, slot) = (MemberNumber(2), 4);
    let named = b"\x02\0\0\0\x04\0\0\0\0\0\0\0";
    let listed = Slots::write(&[4]);
    let slots = Slots::check(&listed).expect("just written");
    let applied = b"\x02\0\0\0\x01\0\0\0\x04\0\0\0\0\0\0\0";
    check(Message::Applied { coordinator, slots }, &golden(7, &[applied]));
    let key = b"k";
    check(Message::Lacks { coordinator, slot, key }, &golden(14, &[named, KEY]));
    let whole = Message::Whole { coordinator, slot, key, content: list };
    check(whole, &golden(15, &[named, KEY, b"\x01\x03\x01\0\0\0v"]));
    check(Message::Committed { coordinator, upto: 4 }, &golden(8, &[named]));
    let clock = b"\x09\0\0\0\0\0\0\0";
    let recovered = Message::Recovered { clock: 9, promised: 9, asks: true };
    check(recovered, &golden(9, &[clock, clock, b"\x01"]));
    for (step, byte) in [(FloorStep::Wish, b"\0"), (FloorStep::Committed, b"\x06")] {
        check(Message::Floor { step, at: 9, before: 9 }, &golden(13, &[byte, clock, clock]));
    }
}

#[test]
fn copies_are_pinned() {
    let number = b"\x09\0\0\0\0\0\0\0";
    let shards = Shards::that(|shard| shard == 0 || shard == 255);
    let ends = [b"\x01\0\0\0\0\0\0\0", &[0; 16][..], b"\0\0\0\0\0\0\0\x80"].concat();
    let read = Message::CopyRead { request: 9, cursor: 9, shards, owned: true };
    check(read, &golden(10, &[number, number, &ends, b"\x01"]));
    check(Message::CopyKey { key: b"k" }, &golden(12, &[KEY]));
    let entry = [KEY, AT_BYTES, b"\0", AT_BYTES, b"\x02\0\0\0"].concat();
    let under_way = [AT_BYTES, REQUESTER_BYTES].concat();
    let entry = [&entry[..], b"\x01", &under_way, b"\x01\0\x01\0\0\0v"].concat();
    let list = [b"\x01\0\0\0", &entry[..]].concat();
    let entries = quorate_zeus::Entries::check(&list).expect("a list of one");
    let found = entries.iter().next().expect("an entry");
    assert_eq!((found.key, found.version, found.is_under_way), (&b"k"[..], AT, false));
    assert_eq!(found.settled, Settled { round: AT, owner: MemberNumber(2) });
    assert_eq!((found.under_way, found.content), (Some((AT, REQUESTER)), Some(value(None))));
    let floors = [9, 9];
    let copy = Message::Copy { request: 9, next: 9, clock: 9, floors, entries };
    check(copy, &golden(11, &[number, number, number, number, number, &list]));
}

#[test]
fn comparisons_are_pinned() {
    let number = b"\x09\0\0\0\0\0\0\0";
    let shards = Shards::that(|shard| shard == 0 || shard == 255);
    let ends = [b"\x01\0\0\0\0\0\0\0", &[0; 16][..], b"\0\0\0\0\0\0\0\x80"].concat();
    let words = Words::pack([9, 9]);
    let list = [&b"\x10\0\0\0"[..], &words].concat();
    let words = Words::of(&words);
    let (request, shift, clock, floors) = (9, 7, 9, [9, 9]);
    let compare = DifferenceMessage::Compare { request, shift, first: 9, shards, digests: words };
    check(Message::Difference(compare), &golden(30, &[number, b"\x07", number, &ends, &list]));
    let compared =
        DifferenceMessage::Compared { request, clock, floors, records: 9, buckets: words };
    let head = [&number[..], number, number, number, number].concat();
    check(Message::Difference(compared), &golden(31, &[&head, &list]));
    let read = DifferenceMessage::Read { request, shift, shards, buckets: words, held: words };
    check(Message::Difference(read), &golden(32, &[number, b"\x07", &ends, &list, &list]));
    let known =
        KnownRecords::write([(9, Settled { round: AT, owner: MemberNumber(2) })].into_iter());
    assert_eq!(known, [b"\x01\0\0\0", &number[..], AT_BYTES, b"\x02\0\0\0"].concat());
    let entry = [KEY, AT_BYTES, b"\0", AT_BYTES, b"\x02\0\0\0\0\0"].concat();
    let entries = [b"\x01\0\0\0", &entry[..]].concat();
    let lists = [&known[..], &entries].concat();
    let known = KnownRecords::check(&known).expect("just written");
    let entries = quorate_zeus::Entries::check(&entries).expect("a list of one");
    let records = DifferenceMessage::Records { request, clock, floors, until: 9, known, entries };
    check(Message::Difference(records), &golden(33, &[&head, &lists]));
}

#[test]
fn messages_about_calls_are_pinned() {
    let number = b"\x09\0\0\0\0\0\0\0";
    let find = CallMessage::Find { request: 9, shard: 255, call: CALL, date: 9 };
    check(Message::Call(find), &golden(16, &[number, b"\xff", CALL_BYTES, number]));
    let found = |known| Message::Call(CallMessage::Found { request: 9, known });
    check(found(Known::New { room: 9 }), &golden(17, &[number, b"\0", number]));
    check(found(Known::Answered(b"+")), &golden(17, &[number, b"\x01\x01\0\0\0+"]));
    let refusals = [
        (Refusal::LeaseNeeded, b"\x02"),
        (Refusal::CallError(CallError::Stale), b"\x03"),
        (Refusal::CallError(CallError::BeyondWindow), b"\x04"),
        (Refusal::CallError(CallError::Different), b"\x05"),
        (Refusal::CallError(CallError::Closed), b"\x06"),
    ];
    for (why, byte) in refusals {
        check(found(Known::Refused(why)), &golden(17, &[number, byte]));
    }
    let shards = Shards::that(|shard| shard == 0 || shard == 255);
    let ends = [b"\x01\0\0\0\0\0\0\0", &[0; 16][..], b"\0\0\0\0\0\0\0\x80"].concat();
    let from = CallsCursor { shard: 255, record: (LeaseId(9), 9) };
    let read = Message::Call(CallMessage::Read { request: 9, from, shards });
    check(read, &golden(18, &[number, b"\xff", number, number, &ends]));
    let parts = [&b"\xff\x01\0\0\0s"[..], b"\x07\0\0\0\0"].concat();
    let list = Parts::check(&parts).expect("a list of two");
    assert_eq!(list.iter().collect::<Vec<_>>(), [(255, &b"s"[..]), (7, b"")]);
    let length = b"\x0b\0\0\0";
    let copy = |next| Message::Call(CallMessage::Copy { request: 9, next, parts: list });
    check(copy(None), &golden(19, &[number, b"\0", length, &parts]));
    let next = [b"\x01\xff", &number[..], number].concat();
    check(copy(Some(from)), &golden(19, &[number, &next, length, &parts]));
}

#[test]
fn messages_about_keys_without_a_copy_are_pinned() {
    let question = Question { reader: 9, number: 3 };
    let head = b"\x09\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
    let keys = Keys::write([&b"k"[..], b""].into_iter());
    let keys = Keys::check(&keys).expect("just written");
    let look = LookMessage::Look { question, keys };
    check(Message::Look(look), &golden(20, &[head, b"\x02\0\0\0", KEY, b"\0\0\0\0"]));
    let seen = |content| Seen { version: AT, owner: MemberNumber(2), moves: 7, content };
    let copies = [Some(seen(Some(value(None)))), None, Some(seen(None))];
    let copies = Copies::write(copies.into_iter());
    let copies = Copies::check(&copies).expect("just written");
    let first = [b"\x01", AT_BYTES, b"\x02\0\0\0\x07\0\0\0"].concat();
    let held = b"\x01\0\x01\0\0\0v\0";
    let fields = [&head[..], b"\x03\0\0\0", &first, held, &first, b"\0"];
    check(Message::Look(LookMessage::Seen { question, copies }), &golden(21, &fields));
    let versions = Versions::write([(&b"k"[..], AT)].into_iter());
    let versions = Versions::check(&versions).expect("just written");
    let again = LookMessage::Check { question, versions };
    check(Message::Look(again), &golden(22, &[head, b"\x01\0\0\0", KEY, AT_BYTES]));
    let checked = LookMessage::Checked { question, holds: true };
    check(Message::Look(checked), &golden(23, &[head, b"\x01"]));
}

#[test]
fn messages_about_extra_copies_are_pinned() {
    let (key, number) = (&b"k"[..], 9);
    let said = |step| Message::Extra(ExtraMessage { key, number, step });
    let head = [KEY, b"\x09\0\0\0\0\0\0\0"].concat();
    check(said(ExtraStep::Want { reader: NodeId(3) }), &golden(24, &[&head, b"\x03\0"]));
    let (owner, moves, content) = (MemberNumber(2), 7, value(None));
    let grant = ExtraStep::Grant { version: AT, owner, moves, content };
    let held = b"\x01\0\x01\0\0\0v";
    check(said(grant), &golden(25, &[&head, AT_BYTES, b"\x02\0\0\0\x07\0\0\0", held]));
    check(said(ExtraStep::Keep), &golden(26, &[&head]));
    check(said(ExtraStep::Leave), &golden(27, &[&head]));
    check(said(ExtraStep::Withdraw), &golden(28, &[&head]));
    check(said(ExtraStep::Gone), &golden(29, &[&head]));
}

#[test]
fn lies_are_refused() {
    let refused = |bytes: &[u8]| Message::decode(bytes).expect_err("a lie").0;
    assert_eq!(refused(b"\x22"), "unknown kind of message");
    assert_eq!(refused(b"\0"), "unknown kind of message");
    let member = golden(7, &[b"\xff\xff\xff\xff\x04\0\0\0\0\0\0\0"]);
    assert_eq!(refused(&member), "a member number beyond its limit");
    let number = b"\x09\0\0\0\0\0\0\0";
    let step = golden(13, &[b"\x07", number, number]);
    assert_eq!(refused(&step), "unknown step of a floor");
    let flag = golden(9, &[b"\x09\0\0\0\0\0\0\0", b"\x09\0\0\0\0\0\0\0", b"\x02"]);
    assert_eq!(refused(&flag), "neither true nor false");
    // Nothing is allocated for a count that nothing follows.
    assert_eq!(
        Slots::check(b"\xff\xff\xff\xff"),
        Err(quorate_wire::Malformed("a list beyond its limit"))
    );
    let item = |flags: u8, kind: u8| {
        [b"\x01\0\0\0", KEY, AT_BYTES, &[flags, kind], b"\x01\0\0\0v"].concat()
    };
    assert!(Items::check(&item(1, 0)).is_ok());
    assert!(Items::check(&item(1, 0xff)).is_err(), "an unknown kind of value");
    assert!(Items::check(&item(2, 0)).is_err(), "an expiry of no value");
    assert!(Items::check(&item(9, 0)).is_err(), "unknown flags");
    let delta = |flags: u8, kind: u8| {
        [b"\x01\0\0\0", KEY, AT_BYTES, &[flags], AT_BYTES, &[kind], b"\x01\0\0\0v"].concat()
    };
    assert!(Items::check(&delta(5, ValueKind::List as u8)).is_ok());
    assert!(Items::check(&delta(5, ValueKind::String as u8)).is_err(), "a delta of a string");
    assert!(Items::check(&delta(4, ValueKind::List as u8)).is_err(), "a delta of no value");
    let nothing = golden(15, &[&[0; 12], KEY, b"\0"]);
    assert_eq!(refused(&nothing), "no value");
    let nothing = golden(25, &[KEY, &[0; 28], b"\0"]);
    assert_eq!(refused(&nothing), "no value");
    let head = |slot: u8, committed: u8| {
        let number = |n: u8| [n, 0, 0, 0, 0, 0, 0, 0];
        [&b"\x06\x02\0\0\0"[..], &number(slot), &number(committed), AT_BYTES].concat()
    };
    let none = b"\0\0\0\0";
    let update = |head: &[u8], depends: &[u8]| [head, depends, none, b"\0"].concat();
    assert!(Message::decode(&update(&head(2, 1), none)).is_ok());
    assert!(Message::decode(&update(&head(2, 2), none)).is_err(), "applied by all");
    let itself = b"\x01\0\0\0\x02\0\0\0\0\0\0\0";
    assert!(Message::decode(&update(&head(2, 1), itself)).is_err(), "depends on itself");
    let number = b"\x09\0\0\0\0\0\0\0";
    assert_eq!(refused(&golden(17, &[number, b"\x07"])), "unknown refusal of a call");
    let cut = golden(19, &[number, b"\0\x03\0\0\0\xff\x01\0"]);
    assert!(Message::decode(&cut).is_err(), "a part that is cut short");
}
