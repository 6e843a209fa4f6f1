//! The contract of values: objects and their deltas, and tables that keep order.

mod fields;

use std::collections::BTreeMap;

use fields::{Fields, delta, whole_copies};
use quorate_machine::{
    Content, Damaged, MapTable, Meta, Object, Ordered, OrderedTable, Record, Rng, Table, ValueKind,
};

/// A protocol that keeps one number per record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Number(u64);

impl Meta for Number {
    type LockedState = ();

    const WORDS: usize = 1;

    fn pack(self, words: &mut [u64]) {
        words[0] = self.0;
    }

    fn unpack(words: &[u64]) -> Self {
        Self(words[0])
    }
}

type Objects = MapTable<Number, Fields>;

/// A delta of a few fields out of eight, some of them more than once.
fn random_delta(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.below(4) {
        let value = vec![rng.below(256) as u8; rng.below(5) as usize];
        let value = (rng.below(3) > 0).then_some(&value[..]);
        bytes.extend_from_slice(&delta(rng.below(8), value));
    }
    bytes
}

fn whole(object: &impl Object) -> Vec<u8> {
    let mut bytes = Vec::new();
    object.encode(&mut bytes);
    bytes
}

#[test]
fn a_delta_and_its_inverse_give_back_the_object() {
    let mut rng = Rng::new(1);
    for _ in 0..2_000 {
        let mut object = Fields::default();
        let mut undo = Vec::new();
        for _ in 0..rng.below(8) {
            let before = object.clone();
            let mut inverse = Vec::new();
            object.apply(&random_delta(&mut rng), &mut inverse).expect("a delta");
            undo.push((inverse, before));
        }
        while let Some((inverse, before)) = undo.pop() {
            let mut redo = Vec::new();
            object.apply(&inverse, &mut redo).expect("an inverse is a delta");
            assert_eq!(object, before);
        }
    }
}

#[test]
fn two_deltas_one_behind_the_other_are_a_delta() {
    let mut rng = Rng::new(2);
    for _ in 0..2_000 {
        let (mut apart, mut together) = (Fields::default(), Fields::default());
        let (first, second) = (random_delta(&mut rng), random_delta(&mut rng));
        let (mut inverse, mut second_inverse) = (Vec::new(), Vec::new());
        apart.apply(&first, &mut inverse).expect("a delta");
        apart.apply(&second, &mut second_inverse).expect("a delta");
        let mut both = Vec::new();
        together.apply(&[first, second].concat(), &mut both).expect("two deltas are one");
        assert_eq!(apart, together);
        assert_eq!(both, [second_inverse, inverse].concat());
    }
}

#[test]
fn a_replica_that_applies_deltas_holds_what_one_holds_that_gets_all_of_the_object() {
    let mut rng = Rng::new(3);
    let (mut source, mut deltas, mut wholes) =
        (Objects::default(), Objects::default(), Objects::default());
    for table in [&mut source, &mut deltas, &mut wholes] {
        table.lock_key(b"k", 0).set_object(Fields::default(), None);
    }
    for _ in 0..500 {
        let bytes = random_delta(&mut rng);
        for table in [&mut source, &mut deltas] {
            let mut record = table.lock_key(b"k", 0);
            let object = record.object_mut().expect("an object");
            object.apply(&bytes, &mut Vec::new()).expect("a delta");
        }
        let bytes = whole(source.lock_key(b"k", 0).object().expect("an object"));
        let object = Fields::decode(&bytes).expect("all of an object");
        wholes.lock_key(b"k", 0).set_object(object, None);
        assert_eq!(deltas, source);
        assert_eq!(wholes, source);
    }
}

#[test]
fn one_field_of_many_changes_without_the_others() {
    let mut table = Objects::default();
    let mut object = Fields::default();
    for field in 0..100_000 {
        object.apply(&delta(field, Some(b"value")), &mut Vec::new()).expect("a delta");
    }
    table.lock_key(b"k", 0).set_object(object, None);
    let copies = whole_copies();
    let mut inverse = Vec::new();
    let mut record = table.lock_key(b"k", 0);
    let object = record.object_mut().expect("an object");
    object.apply(&delta(77, Some(b"other")), &mut inverse).expect("a delta");
    assert_eq!(whole_copies(), copies);
    assert_eq!(inverse, delta(77, Some(b"value")));
}

#[test]
fn a_damaged_delta_changes_nothing() {
    let mut object = Fields::default();
    object.apply(&delta(1, Some(b"one")), &mut Vec::new()).expect("a delta");
    let before = object.clone();
    let good = delta(2, Some(b"two"));
    for cut in 1..good.len() {
        let damaged = [&delta(1, None)[..], &good[..cut]].concat();
        let mut inverse = Vec::new();
        assert_eq!(object.apply(&damaged, &mut inverse), Err(Damaged));
        assert_eq!((&object, inverse), (&before, Vec::new()));
    }
}

#[test]
fn an_object_has_a_kind_and_an_expiry_and_no_bytes() {
    let mut table = Objects::default();
    let mut record = table.lock_key(b"k", 0);
    let at = Some(quorate_types::UnixMillis(9));
    record.set_object(Fields::default(), at);
    let content = Content { bytes: b"", kind: ValueKind::Object, expire_at: at };
    assert_eq!(record.content(), Some(content));
    record.set_expiry(None);
    assert_eq!(record.content(), Some(Content { expire_at: None, ..content }));
    record.set_content(Content { bytes: b"v", kind: ValueKind::String, expire_at: None });
    assert!(record.object().is_none());
    record.clear();
    assert!(record.content().is_none());
}

/// The keys of a range, with their numbers.
fn range<T: OrderedTable<Meta = Number>>(
    table: &mut T,
    from: &[u8],
    to: Option<&[u8]>,
    limit: usize,
) -> Vec<(Vec<u8>, u64)> {
    let mut handles = Vec::new();
    table.range(from, to, limit, &mut |key, handle| handles.push((key.to_vec(), handle)));
    handles.into_iter().map(|(key, handle)| (key, table.lock(handle).meta().0)).collect()
}

#[test]
fn ranges_of_ordered_tables_are_those_of_a_sorted_map() {
    let mut rng = Rng::new(4);
    let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut map = MapTable::<Number>::default();
    let mut ordered = Ordered::new(MapTable::<Number>::default());
    let key = |rng: &mut Rng| -> Vec<u8> {
        (0..rng.below(3)).map(|_| [0, b'a', b'b', 0xff][rng.below(4) as usize]).collect()
    };
    for step in 0..20_000 {
        let name = key(&mut rng);
        match rng.below(8) {
            0 => {
                model.remove(&name);
                map.remove_if(&name, |_| true);
                ordered.remove_if(&name, |_| true);
            }
            1 => {
                model.remove(&name);
                if let Some(handle) = map.find(&name) {
                    map.remove(handle);
                }
                if let Some(handle) = ordered.find(&name) {
                    ordered.remove(handle);
                }
            }
            2 if rng.below(100) == 0 => {
                model.clear();
                map.reset();
                ordered.reset();
            }
            2..5 => {
                model.insert(name.clone(), step);
                map.lock_key(&name, 0).set_meta(Number(step));
                ordered.lock_key(&name, 0).set_meta(Number(step));
            }
            _ => {
                let to = (rng.below(3) > 0).then(|| key(&mut rng));
                let limit = rng.below(6) as usize;
                let inside = |key: &Vec<u8>| *key >= name && to.as_ref().is_none_or(|to| key < to);
                let expected = model.iter().filter(|(key, _)| inside(key)).take(limit);
                let expected: Vec<(Vec<u8>, u64)> =
                    expected.map(|(key, number)| (key.clone(), *number)).collect();
                assert_eq!(range(&mut map, &name, to.as_deref(), limit), expected);
                assert_eq!(range(&mut ordered, &name, to.as_deref(), limit), expected);
            }
        }
    }
}
