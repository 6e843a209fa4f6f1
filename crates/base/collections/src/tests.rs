//! Random changes, beside the collections of the standard library.

mod streams;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, vec};

use crate::packed::{BEYOND_COMPACT, Builder, EXPIRING};
use crate::{
    COUNTERS_BYTES, Collection, Damaged, Delta, Draft, Entry, Step, ValueKind, is_collection,
    may_be_large, place_of,
};

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    /// Mostly short, now and then longer than a leaf.
    fn bytes(&mut self, names: usize) -> Vec<u8> {
        let name = format!("{}", self.below(names));
        let length = match self.below(40) {
            0 => 1500,
            1..4 => 200,
            _ => self.below(12),
        };
        let mut bytes = name.into_bytes();
        bytes.resize(bytes.len() + length * usize::from(names == 1000), b'.');
        bytes
    }
}

/// What a collection should hold: by member, or by number.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    members: BTreeMap<Vec<u8>, Vec<u8>>,
    items: Vec<Vec<u8>>,
}

fn score(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"))
}

impl Model {
    fn packed(&self, kind: ValueKind) -> Vec<u8> {
        let mut builder = Builder::new(1, 0);
        match kind {
            ValueKind::List => self.items.iter().for_each(|item| builder.item(item)),
            ValueKind::Set => self.members.keys().for_each(|member| builder.item(member)),
            ValueKind::Hash => self.members.iter().for_each(|(field, value)| {
                builder.item(field);
                builder.item(value);
            }),
            _ => self.ranked().iter().for_each(|entry| {
                builder.raw(&entry.score.to_le_bytes());
                builder.item(entry.member);
            }),
        }
        builder.finish(if kind == ValueKind::List { self.items.len() } else { self.members.len() })
    }

    fn ranked(&self) -> Vec<Entry<'_>> {
        let mut entries: Vec<_> = self
            .members
            .iter()
            .map(|(member, bytes)| Entry { score: score(bytes), member })
            .collect();
        entries.sort_by(Entry::order);
        entries
    }

    fn check(&self, collection: &Collection) {
        let kind = collection.kind();
        let same =
            Collection::unpack(kind, &self.packed(kind)).expect("the model's bytes are right");
        assert_eq!(*collection, same);
        let mut packed = Vec::new();
        collection.pack(&mut packed);
        assert_eq!(packed.len(), collection.packed_len());
        assert_eq!(Collection::unpack(kind, &packed).as_ref(), Ok(collection));
        collection.check();
        if let Some(set) = collection.sorted_set() {
            for (rank, entry) in self.ranked().iter().enumerate().step_by(7) {
                assert_eq!(set.rank(entry.member), Some(rank));
                assert_eq!(set.score(entry.member), Some(entry.score));
                assert_eq!(set.entries_from(rank).next(), Some(*entry));
            }
        }
        if let Some(hash) = collection.hash() {
            for (field, value) in self.members.iter().step_by(5) {
                assert_eq!(hash.get(field), Some(&value[..]));
            }
            assert_eq!(hash.get(b"nobody"), None);
            let third = hash.fields_from(0).nth(3);
            assert_eq!(hash.fields_from(3).next(), third);
        }
        if let Some(list) = collection.list() {
            for (number, item) in self.items.iter().enumerate().step_by(7) {
                assert_eq!(list.items_from(number).next(), Some(&item[..]));
            }
            assert_eq!(list.items_from(self.items.len()).next(), None);
        }
    }
}

/// A change of the model, as a delta.
fn draw(draw: &mut Draw, kind: ValueKind, names: usize, grows: bool, model: &mut Model) -> Vec<u8> {
    let mut delta = Delta::new();
    for _ in 0..=draw.below(3) {
        let name = draw.bytes(names);
        let removes = draw.below(10) < if grows { 3 } else { 7 };
        match kind {
            ValueKind::List => {
                let length = model.items.len();
                if removes {
                    let at = draw.below(length + 1);
                    let most = if draw.below(20) == 0 { 200 } else { 4 };
                    let count = draw.below(most).min(length - at);
                    delta.push(Step::Cut { at, count });
                    model.items.drain(at..at + count);
                } else {
                    let at = [0, length, draw.below(length + 1)][draw.below(3)];
                    let items: Vec<_> = (0..draw.below(5)).map(|_| draw.bytes(names)).collect();
                    delta.insert(at, items.iter().map(Vec::as_slice));
                    model.items.splice(at..at, items);
                }
            }
            _ if removes => {
                delta.push(Step::Remove(&name));
                model.members.remove(&name);
            }
            ValueKind::Hash => {
                let value = draw.bytes(names);
                delta.push(Step::Put { field: &name, value: &value });
                model.members.insert(name, value);
            }
            ValueKind::Set => {
                delta.push(Step::Add(&name));
                model.members.insert(name, vec![]);
            }
            _ => {
                let score = draw.below(20) as f64 / 2.0;
                delta.push(Step::Score(Entry { score, member: &name }));
                model.members.insert(name, score.to_le_bytes().into());
            }
        }
    }
    delta.into_bytes()
}

const KINDS: [ValueKind; 4] =
    [ValueKind::Hash, ValueKind::List, ValueKind::Set, ValueKind::SortedSet];

#[test]
fn random_changes_and_their_inverses_give_what_they_should() {
    for kind in KINDS {
        for seed in 0..6 {
            let mut dice = Draw(seed);
            let names = [50, 1000, 5000][seed as usize % 3];
            let empty = Builder::new(1, 0).finish(0);
            let mut model = Model::default();
            let mut collection = Collection::unpack(kind, &empty).expect("it is empty");
            for round in 0..1500 {
                let grows = round / 500 != 1;
                let (before, kept) = (model.clone(), collection.clone());
                let delta = draw(&mut dice, kind, names, grows, &mut model);
                let mut inverse = Vec::new();
                collection.apply(&delta, &mut inverse).expect("it is a delta");
                if round % 25 == 0 {
                    model.check(&collection);
                    before.check(&kept);
                    let mut back = collection.clone();
                    let mut again = Vec::new();
                    back.apply(&inverse, &mut again).expect("an inverse is a delta");
                    before.check(&back);
                    back.apply(&again, &mut Vec::new()).expect("an inverse has an inverse");
                    model.check(&back);
                }
            }
        }
    }
}

#[test]
fn a_draft_shows_its_changes_and_their_sum_is_a_delta() {
    let mut dice = Draw(9);
    for kind in KINDS {
        let mut model = Model::default();
        let empty = Builder::new(1, 0).finish(0);
        let mut collection = Collection::unpack(kind, &empty).expect("it is empty");
        for _ in 0..60 {
            let mut draft = Draft::new(collection.clone());
            for _ in 0..4 {
                let delta = draw(&mut dice, kind, 50, true, &mut model);
                draft.change(&delta);
                if dice.below(2) == 0 {
                    model.check(draft.look());
                }
            }
            collection.apply(&draft.into_delta(), &mut Vec::new()).expect("it is a delta");
            model.check(&collection);
        }
    }
}

#[test]
fn damaged_bytes_change_nothing() {
    let mut dice = Draw(5);
    for kind in KINDS {
        let mut model = Model::default();
        let empty = Builder::new(1, 0).finish(0);
        let mut collection = Collection::unpack(kind, &empty).expect("it is empty");
        for _ in 0..400 {
            let before = collection.clone();
            let mut delta = draw(&mut dice, kind, 50, true, &mut model.clone());
            match dice.below(3) {
                0 => delta.truncate(dice.below(delta.len() + 1)),
                1 if !delta.is_empty() => {
                    let at = dice.below(delta.len());
                    delta[at] = dice.below(256) as u8;
                }
                _ => delta.push(dice.below(256) as u8),
            }
            let mut inverse = Vec::new();
            if collection.apply(&delta, &mut inverse).is_err() {
                assert_eq!(collection, before);
            }
            collection.apply(&inverse, &mut Vec::new()).expect("an inverse is a delta");
            assert_eq!(collection, before);
            let delta = draw(&mut dice, kind, 50, true, &mut model);
            collection.apply(&delta, &mut Vec::new()).expect("it is a delta");
            let mut packed = Vec::new();
            collection.pack(&mut packed);
            let at = dice.below(packed.len());
            packed[at] ^= 1 << dice.below(8);
            if let Ok(other) = Collection::unpack(kind, &packed) {
                other.check();
            }
        }
    }
    assert!(Collection::unpack(ValueKind::String, b"text").is_err());
    assert!(!is_collection(ValueKind::String));
}

#[test]
fn steps_of_another_kind_are_no_delta() {
    let empty = Builder::new(0, 0).finish(0);
    for kind in KINDS {
        let others = [KINDS.as_slice(), &[ValueKind::Stream]].concat();
        for other in others.into_iter().filter(|other| *other != kind) {
            let mut collection = Collection::unpack(kind, &empty).expect("it is empty");
            let mut delta = Delta::new();
            match other {
                ValueKind::Hash => delta.push(Step::Put { field: b"f", value: b"v" }),
                ValueKind::Set => delta.push(Step::Add(b"m")),
                ValueKind::List => delta.insert(0, [&b"i"[..]].into_iter()),
                ValueKind::Stream => delta.push(Step::Counters(&[0; COUNTERS_BYTES])),
                _ => delta.push(Step::Score(Entry { score: 1.0, member: b"m" })),
            }
            assert!(collection.apply(&delta.into_bytes(), &mut Vec::new()).is_err());
        }
        let mut collection = Collection::unpack(kind, &empty).expect("it is empty");
        let mut beyond = Delta::new();
        beyond.push(Step::Cut { at: 0, count: 1 });
        assert!(collection.apply(&beyond.into_bytes(), &mut Vec::new()).is_err());
    }
}

/// Members come and go while a scan runs; those that stay are all visited.
#[test]
fn parts_visit_what_stays() {
    let empty = Builder::new(1, 0).finish(0);
    let mut collection = Collection::unpack(ValueKind::Set, &empty).expect("it is empty");
    let change = |steps: &mut dyn Iterator<Item = Step<'_>>, to: &mut Collection| {
        let mut delta = Delta::new();
        steps.for_each(|step| delta.push(step));
        to.apply(&delta.into_bytes(), &mut Vec::new()).expect("it is a delta");
    };
    let names = |text: &str, count: usize| -> Vec<Vec<u8>> {
        (0..count).map(|number| format!("{text} {number}").into_bytes()).collect()
    };
    let staying = names("stays", 2000);
    change(&mut staying.iter().map(|name| Step::Add(name)), &mut collection);
    let (mut from, mut seen, mut round) = (0, Vec::new(), 0);
    loop {
        let passing = names("passes", 500 * (round % 4));
        change(&mut passing.iter().map(|name| Step::Add(name)), &mut collection);
        let (next, part) = collection.set().expect("a set").part(from, 50);
        assert!(part.len() >= 50 || next.is_none());
        assert!(part.len() < 400);
        assert!(part.iter().all(|name| place_of(name) >= from));
        seen.extend(part.into_iter().filter(|name| name.starts_with(b"stays")).map(Vec::from));
        change(&mut passing.iter().map(|name| Step::Remove(name)), &mut collection);
        round += 1;
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), staying.len());
    assert!(round > 10);
}

#[test]
fn memory_follows_what_is_there() {
    let empty = Builder::new(1, 0).finish(0);
    let mut collection = Collection::unpack(ValueKind::Hash, &empty).expect("it is empty");
    let mut add = Delta::new();
    let mut take = Delta::new();
    for number in 0..20_000 {
        let field = format!("field:{number}");
        add.push(Step::Put { field: field.as_bytes(), value: b"0123456789" });
        take.push(Step::Remove(field.as_bytes()));
    }
    let least = collection.memory();
    collection.apply(&add.into_bytes(), &mut Vec::new()).expect("it is a delta");
    let bytes = collection.packed_len();
    assert!(collection.memory() < 2 * bytes, "{} for {bytes} bytes", collection.memory());
    collection.apply(&take.into_bytes(), &mut Vec::new()).expect("it is a delta");
    assert_eq!(collection.memory(), least);
}

/// Queues and logs grow at an end.
#[test]
fn what_grows_at_an_end_fills_its_leaves() {
    for at_end in [true, false] {
        let mut list = Collection::unpack(ValueKind::List, &Builder::new(0, 0).finish(0))
            .expect("an empty list");
        for number in 0..10_000 {
            let mut delta = Delta::new();
            delta.insert(if at_end { number } else { 0 }, [&[b'v'; 32][..]].into_iter());
            list.apply(&delta.into_bytes(), &mut Vec::new()).expect("a delta of a list");
        }
        let leaves = list.list().expect("a list").leaves().count();
        assert!(leaves < 10_000 / 30, "{leaves} leaves of 31 items each");
    }
    let mut set = Collection::unpack(ValueKind::SortedSet, &Builder::new(0, 0).finish(0))
        .expect("an empty set");
    for number in 0..10_000 {
        let mut delta = Delta::new();
        let member = format!("member {number:08}");
        delta.push(Step::Score(Entry { score: f64::from(number), member: member.as_bytes() }));
        set.apply(&delta.into_bytes(), &mut Vec::new()).expect("a delta of a sorted set");
    }
    let leaves = set.sorted_set().expect("a sorted set").leaves().count();
    assert!(leaves < 10_000 / 35, "{leaves} leaves of 42 members each");
}

/// A hash with expiring fields has another layout behind its header, and is never large.
#[test]
fn a_hash_of_which_fields_expire_is_packed_only() {
    let fields = |form| {
        let mut builder = Builder::new(form, 0);
        builder.item(b"field");
        builder.item(b"value");
        builder.finish(1)
    };
    for form in [EXPIRING, EXPIRING | BEYOND_COMPACT] {
        assert!(!may_be_large(ValueKind::Hash, &fields(form)));
        assert_eq!(Collection::unpack(ValueKind::Hash, &fields(form)), Err(Damaged));
        let mut hash = Collection::unpack(ValueKind::Hash, &fields(1)).expect("a hash");
        let mut delta = Delta::new();
        delta.push(Step::Form(form));
        assert_eq!(hash.apply(&delta.into_bytes(), &mut Vec::new()), Err(Damaged));
        assert_eq!(hash.form(), BEYOND_COMPACT);
    }
    assert!(may_be_large(ValueKind::Hash, &fields(BEYOND_COMPACT)));
    assert!(!may_be_large(ValueKind::Hash, &fields(0)));
}
