//! The contract of values: large ones, and tables that keep order.

use std::collections::BTreeMap;

use quorate_collections::packed::Builder;
use quorate_collections::{Delta, Step};
use quorate_machine::{
    Content, MapTable, Meta, Ordered, OrderedTable, Record, Rng, Table, ValueKind,
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

/// A packed hash of these fields.
fn packed(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(1, 0);
    for (field, value) in fields {
        builder.item(field);
        builder.item(value);
    }
    builder.finish(fields.len())
}

#[test]
fn a_collection_beyond_the_bound_of_its_table_is_large() {
    let few = packed(&[(b"a", b"1")]);
    let many = packed(&[(b"a", b"1"), (b"b", b"2")]);
    let mut table = MapTable::<Number>::new(few.len());
    let mut record = table.lock_key(b"k", 0);
    let at = Some(quorate_types::UnixMillis(9));
    let content = |bytes| Content { bytes, kind: ValueKind::Hash, expire_at: at };
    record.set_content(content(&few));
    assert!(record.large().is_none());
    assert_eq!(record.content(), Some(content(&few)));
    record.set_content(content(&many));
    assert_eq!(record.large().expect("a large value").len(), 2);
    assert_eq!(record.content(), Some(content(b"")), "a large value has no bytes");
    record.set_expiry(None);
    assert_eq!(record.content(), Some(Content { expire_at: None, ..content(b"") }));
    let text = Content { bytes: b"longer than both", kind: ValueKind::String, expire_at: None };
    record.set_content(text);
    assert!(record.large().is_none() && record.large_mut().is_none());
    assert_eq!(record.content(), Some(text));
    record.clear();
    assert!(record.content().is_none() && record.large_mut().is_none());
}

#[test]
fn who_changes_a_packed_collection_makes_it_large() {
    let mut table = MapTable::<Number>::default();
    let mut record = table.lock_key(b"k", 0);
    let bytes = packed(&[(b"a", b"1")]);
    let content = Content { bytes: &bytes, kind: ValueKind::Hash, expire_at: None };
    record.set_content(content);
    let mut delta = Delta::new();
    delta.push(Step::Put { field: b"b", value: b"2" });
    let large = record.large_mut().expect("it is a collection");
    large.apply(&delta.into_bytes(), &mut Vec::new()).expect("it is a delta");
    let hash = record.large().and_then(|large| large.hash()).expect("a large hash");
    assert_eq!((hash.get(b"a"), hash.get(b"b")), (Some(&b"1"[..]), Some(&b"2"[..])));
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
