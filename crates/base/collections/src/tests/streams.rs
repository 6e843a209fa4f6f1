//! Streams: chunks and groups that change, beside maps of them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, vec};

use super::Draw;
use crate::{
    CHUNK_HEAD_BYTES, COUNTERS_BYTES, Collection, Damaged, Delta, Draft, Splice, Step, ValueKind,
    is_collection, may_be_large, packed,
};

const IDS: usize = 6;

/// What a stream should hold: chunks with their heads, and groups that begin with their names.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    length: u32,
    last: u128,
    chunks: BTreeMap<u128, Vec<u8>>,
    groups: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn put_id(id: u128, out: &mut Vec<u8>) {
    out.extend_from_slice(&((id >> 64) as u64).to_le_bytes());
    out.extend_from_slice(&(id as u64).to_le_bytes());
}

/// A chunk's head: six bytes, and its ids.
fn head(filler: u8, first: u128, last: u128) -> Vec<u8> {
    let mut head = vec![filler; IDS];
    put_id(first, &mut head);
    put_id(last, &mut head);
    head
}

fn last_of(chunk: &[u8]) -> u128 {
    let number = |at: usize| u64::from_le_bytes(chunk[at..at + 8].try_into().expect("eight bytes"));
    u128::from(number(IDS + 16)) << 64 | u128::from(number(IDS + 24))
}

impl Model {
    fn counters(&self) -> [u8; COUNTERS_BYTES] {
        let mut counters = self.length.to_le_bytes().to_vec();
        counters.extend_from_slice(&u64::from(self.length).to_le_bytes());
        put_id(self.last, &mut counters);
        put_id(0, &mut counters);
        counters.try_into().expect("it has these parts")
    }

    fn packed(&self) -> Vec<u8> {
        let length = |bytes: usize| (bytes as u32).to_le_bytes();
        let (mut groups, mut chunks, mut tail) = (Vec::new(), Vec::new(), 0);
        for group in self.groups.values() {
            groups.extend_from_slice(&length(group.len()));
            groups.extend_from_slice(group);
        }
        for chunk in self.chunks.values() {
            tail = chunks.len();
            chunks.extend_from_slice(&length(chunk.len() - CHUNK_HEAD_BYTES));
            chunks.extend_from_slice(chunk);
        }
        let counters = self.counters();
        let header = [&counters[..4], &length(tail), &length(groups.len()), &counters[4..]];
        [&header.concat()[..], &groups, &chunks].concat()
    }

    fn check(&self, collection: &Collection) {
        let packed = self.packed();
        let mut held = Vec::new();
        collection.pack(&mut held);
        assert_eq!(held, packed);
        assert_eq!(collection.packed_len(), packed.len());
        assert_eq!(Collection::unpack(ValueKind::Stream, &packed).as_ref(), Ok(collection));
        collection.check();
        let stream = collection.stream().expect("a stream");
        assert_eq!((stream.len(), stream.counters()), (self.length as usize, &self.counters()));
        assert_eq!(stream.group_count(), self.groups.len());
        assert!(stream.groups().eq(self.groups.values().map(Vec::as_slice)));
        for (name, group) in &self.groups {
            assert_eq!(stream.group(name), Some(&group[..]));
        }
        assert_eq!(stream.group(b"nobody"), None);
        assert_eq!(stream.chunk_count(), self.chunks.len());
        for (number, (first, chunk)) in self.chunks.iter().enumerate().step_by(3) {
            let before = number.saturating_sub(1);
            for (id, place) in [(*first, number), (last_of(chunk), number), (first - 1, before)] {
                assert_eq!(stream.chunk_of(id), place, "{id} in {:?}", self.chunks.keys());
            }
            assert_eq!(stream.chunks_from(number).next().map(|held| &held[4..]), Some(&chunk[..]));
        }
        assert_eq!(stream.chunks_from(self.chunks.len()).next(), None);
    }

    fn count(&mut self, delta: &mut Delta, grows: bool) {
        self.length = self.length.wrapping_add(u32::from(grows));
        delta.push(Step::Counters(&self.counters()));
    }

    /// An entry behind all others, in the last chunk or in one of its own.
    fn append(&mut self, dice: &mut Draw, delta: &mut Delta) {
        self.last += 1 + dice.below(3) as u128 + ((dice.below(4) as u128) << 64);
        self.count(delta, true);
        let entry = dice.bytes(1000);
        match self.chunks.last_entry() {
            Some(mut open) if open.get().len() < 600 && dice.below(5) > 0 => {
                let (first, chunk) = (*open.key(), open.get_mut());
                let new = head(dice.below(256) as u8, first, self.last);
                let splice = Splice { at: 0, cut: new.len(), put: &new };
                delta.push(Step::Chunk { first, splice });
                let splice = Splice { at: chunk.len(), cut: 0, put: &entry };
                delta.push(Step::Chunk { first, splice });
                chunk.splice(..new.len(), new);
                chunk.extend(entry);
            }
            _ => {
                let chunk = [head(7, self.last, self.last), entry].concat();
                let splice = Splice { at: 0, cut: 0, put: &chunk };
                delta.push(Step::Chunk { first: self.last, splice });
                self.chunks.insert(self.last, chunk);
            }
        }
    }

    /// Some bytes of a chunk go, or all of it.
    fn cut(&mut self, dice: &mut Draw, delta: &mut Delta) {
        if self.chunks.is_empty() {
            return;
        }
        let number = [0, self.chunks.len() - 1, dice.below(self.chunks.len())][dice.below(3)];
        let (first, chunk) = self.chunks.iter_mut().nth(number).expect("it is there");
        let (first, from) =
            (*first, CHUNK_HEAD_BYTES + dice.below(chunk.len() - CHUNK_HEAD_BYTES + 1));
        let (at, cut) = match dice.below(12) {
            0 => (0, chunk.len()),
            _ => (from, dice.below(chunk.len() - from + 1)),
        };
        delta.push(Step::Chunk { first, splice: Splice { at, cut, put: &[] } });
        chunk.drain(at..at + cut);
        if chunk.is_empty() {
            self.chunks.remove(&first);
        }
    }

    /// A group comes, changes behind its name, or goes.
    fn group(&mut self, dice: &mut Draw, delta: &mut Delta) {
        let name = format!("group {}", dice.below(40)).into_bytes();
        let mut begin = Vec::new();
        packed::put_item(&name, &mut begin);
        let held = self.groups.entry(name.clone()).or_default();
        let put = dice.bytes(1000);
        let (at, cut, put) = match held.len() {
            0 => (0, 0, [&begin[..], &put].concat()),
            length if dice.below(4) == 0 => (0, length, vec![]),
            length => {
                let at = begin.len() + dice.below(length - begin.len() + 1);
                (at, dice.below(length - at + 1), put)
            }
        };
        delta.push(Step::Group { name: &name, splice: Splice { at, cut, put: &put } });
        held.splice(at..at + cut, put);
        if held.is_empty() {
            self.groups.remove(&name);
        }
    }

    fn draw(&mut self, dice: &mut Draw, grows: bool) -> Vec<u8> {
        let mut delta = Delta::new();
        for _ in 0..=dice.below(3) {
            match dice.below(10) {
                0 => self.count(&mut delta, false),
                1..3 => self.group(dice, &mut delta),
                3..5 if grows => self.cut(dice, &mut delta),
                3..9 if !grows => self.cut(dice, &mut delta),
                _ => self.append(dice, &mut delta),
            }
        }
        delta.into_bytes()
    }
}

fn empty() -> Collection {
    let bytes = Model::default().packed();
    Collection::unpack(ValueKind::Stream, &bytes).expect("it is empty")
}

#[test]
fn random_changes_of_streams_and_their_inverses_give_what_they_should() {
    for seed in 0..6 {
        let (mut dice, mut model, mut collection) = (Draw(seed), Model::default(), empty());
        let mut most = 0;
        for round in 0..1500 {
            let (before, kept) = (model.clone(), collection.clone());
            let delta = model.draw(&mut dice, round / 500 != 1);
            let mut inverse = Vec::new();
            collection.apply(&delta, &mut inverse).expect("it is a delta");
            most = most.max(model.chunks.len());
            if round % 25 == 0 {
                model.check(&collection);
                before.check(&kept);
                let (mut back, mut again) = (collection.clone(), Vec::new());
                back.apply(&inverse, &mut again).expect("an inverse is a delta");
                before.check(&back);
                back.apply(&again, &mut Vec::new()).expect("an inverse has an inverse");
                model.check(&back);
            }
        }
        assert!(most > 40, "{most} chunks");
    }
}

#[test]
fn a_draft_of_a_stream_shows_its_changes() {
    let (mut dice, mut model, mut collection) = (Draw(9), Model::default(), empty());
    for _ in 0..60 {
        let mut draft = Draft::new(collection.clone());
        for _ in 0..4 {
            draft.change(&model.draw(&mut dice, true));
            if dice.below(2) == 0 {
                model.check(draft.look());
            }
        }
        collection.apply(&draft.into_delta(), &mut Vec::new()).expect("it is a delta");
        model.check(&collection);
    }
}

/// Deltas that are refused late have changed something by then.
#[test]
fn damaged_deltas_of_streams_change_nothing() {
    let (mut dice, mut model, mut collection) = (Draw(5), Model::default(), empty());
    let mut refused = 0;
    for _ in 0..1500 {
        let before = collection.clone();
        let mut delta = model.clone().draw(&mut dice, true);
        for _ in 0..=dice.below(2) {
            let at = dice.below(delta.len().max(1));
            if let Some(byte) = delta.get_mut(at) {
                *byte = dice.below(256) as u8;
            }
        }
        if dice.below(5) == 0 {
            delta.truncate(dice.below(delta.len() + 1));
        }
        let mut inverse = vec![1, 2, 3];
        if collection.apply(&delta, &mut inverse).is_err() {
            assert_eq!(inverse, [1, 2, 3]);
            assert_eq!(collection, before);
            refused += 1;
        }
        collection.check();
        let mut packed = Vec::new();
        collection.pack(&mut packed);
        let other = Collection::unpack(ValueKind::Stream, &packed);
        assert_eq!(other.as_ref(), Ok(&collection), "what a delta leaves is a stream");
        collection.apply(&inverse[3..], &mut Vec::new()).expect("an inverse is a delta");
        assert_eq!(collection, before);
        let delta = model.draw(&mut dice, true);
        collection.apply(&delta, &mut Vec::new()).expect("it is a delta");
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn damaged_bytes_of_streams_are_refused_or_come_back() {
    let (mut dice, mut model, mut collection) = (Draw(6), Model::default(), empty());
    let mut refused = 0;
    for _ in 0..1500 {
        let grows = dice.below(3) > 0;
        let delta = model.draw(&mut dice, grows);
        collection.apply(&delta, &mut Vec::new()).expect("it is a delta");
        let mut packed = model.packed();
        let at = dice.below(packed.len().min(400));
        packed[at] ^= 1 << dice.below(8);
        match Collection::unpack(ValueKind::Stream, &packed) {
            Ok(other) => {
                other.check();
                let mut again = Vec::new();
                other.pack(&mut again);
                assert_eq!(again, packed);
            }
            Err(Damaged) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused}");
    for bytes in [&b""[..], &[0; 51], &[1; 52]] {
        assert!(Collection::unpack(ValueKind::Stream, bytes).is_err());
    }
    assert!(is_collection(ValueKind::Stream) && may_be_large(ValueKind::Stream, b"x"));
}

/// What would not be found again is no part of a stream.
#[test]
fn chunks_and_groups_out_of_order_are_refused() {
    let mut model = Model { last: 100, ..Model::default() };
    for first in [10, 20, 30] {
        model.chunks.insert(first, [&head(0, first, first + 5)[..], b"entries"].concat());
    }
    model.groups.insert(b"g".into(), b"\x01g...".into());
    let stream = Collection::unpack(ValueKind::Stream, &model.packed()).expect("it is right");
    let chunk = |first, at, cut, put: &[u8]| {
        let mut delta = Delta::new();
        delta.push(Step::Chunk { first, splice: Splice { at, cut, put } });
        let made = stream.clone().apply(&delta.into_bytes(), &mut Vec::new());
        made.is_ok()
    };
    let new = |first, last| [&head(0, first, last)[..], b"."].concat();
    assert!(chunk(16, 0, 0, &new(16, 19)) && chunk(36, 0, 0, &new(36, 100)));
    assert!(!chunk(16, 0, 0, &new(16, 20)), "it ends where the next one begins");
    assert!(!chunk(15, 0, 0, &new(15, 15)), "it begins where the one before ends");
    assert!(!chunk(16, 0, 0, &new(17, 17)), "it begins elsewhere");
    assert!(!chunk(17, 0, 0, &new(17, 16)), "it ends before it begins");
    assert!(!chunk(101, 0, 0, &new(101, 101)), "it is behind the last id");
    assert!(!chunk(20, 0, 0, b"."), "its head is elsewhere");
    assert!(!chunk(20, 3, 40, b""), "its head is too short");
    assert!(!chunk(20, 40, 6, b"") && chunk(20, 40, 5, b""));
    let group = |name: &[u8], at, cut, put: &[u8]| {
        let mut delta = Delta::new();
        delta.push(Step::Group { name, splice: Splice { at, cut, put } });
        stream.clone().apply(&delta.into_bytes(), &mut Vec::new()).is_ok()
    };
    assert!(group(b"h", 0, 0, b"\x01h") && group(b"g", 2, 3, b"") && group(b"h", 0, 0, b""));
    assert!(!group(b"h", 0, 0, b"\x01i"), "it has another name");
    assert!(!group(b"h", 0, 0, b"\x81\0h"), "its name is written otherwise");
    assert!(!group(b"g", 1, 1, b"h"), "its name changes");
    let mut delta = Delta::new();
    delta.push(Step::Counters(&Model { last: 29, ..Model::default() }.counters()));
    assert!(stream.clone().apply(&delta.into_bytes(), &mut Vec::new()).is_err());
}

/// A stream takes about its bytes, and what goes from it leaves nothing behind.
#[test]
fn memory_of_a_stream_follows_what_is_there() {
    let mut model = Model::default();
    let (mut dice, mut stream) = (Draw(3), empty());
    let least = stream.memory();
    for _ in 0..20_000 {
        let mut delta = Delta::new();
        model.append(&mut dice, &mut delta);
        stream.apply(&delta.into_bytes(), &mut Vec::new()).expect("it is a delta");
    }
    let bytes = stream.packed_len();
    assert!(stream.memory() < bytes + bytes / 3, "{} for {bytes} bytes", stream.memory());
    let mut delta = Delta::new();
    for (first, chunk) in &model.chunks {
        let splice = Splice { at: 0, cut: chunk.len(), put: &[] };
        delta.push(Step::Chunk { first: *first, splice });
    }
    stream.apply(&delta.into_bytes(), &mut Vec::new()).expect("it is a delta");
    assert_eq!(stream.memory(), least);
}
