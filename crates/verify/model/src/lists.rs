//! Lists as values, written as the text of their items. What is appended to a large one is a delta.

use quorate_collections::{Delta, packed};
use quorate_machine::{Change, Collection, Content, Current, MapTable, Meta, ValueKind};

/// A value as text.
pub(crate) fn text(content: Content<'_>, large: Option<&Collection>) -> String {
    match (content.kind, large) {
        (ValueKind::List, Some(large)) => items_from(large, 0),
        (ValueKind::List, None) => items_from(&list(content.bytes), 0),
        _ => String::from_utf8_lossy(content.bytes).into_owned(),
    }
}

/// What a key of a table holds, as text.
pub(crate) fn held<M: Meta>(table: &MapTable<M>, key: &[u8], content: Content<'_>) -> String {
    text(content, table.large(key))
}

fn list(bytes: &[u8]) -> Collection {
    Collection::unpack(ValueKind::List, bytes).expect("values are lists")
}

fn items_from(list: &Collection, from: usize) -> String {
    let items = list.list().expect("values are lists").items_from(from);
    items.map(|item| String::from_utf8_lossy(item).into_owned()).collect()
}

/// Writes a list of one item.
pub(crate) fn put(item: &[u8]) -> Change<'static> {
    let mut list = packed::Builder::new(0, item.len());
    list.item(item);
    Change::Set { bytes: list.finish(1).into(), kind: ValueKind::List, expire_at: None }
}

/// Appends an item: in place, if the value is large.
pub(crate) fn push(current: Current<'_>, item: &[u8]) -> Change<'static> {
    let Some(content) = current.content else { return put(item) };
    let mut delta = Delta::new();
    if let Some(large) = current.large {
        delta.insert(large.len(), [item].into_iter());
        return Change::Delta { bytes: delta.into_bytes().into(), expire_at: None };
    }
    let mut whole = list(content.bytes);
    delta.insert(whole.len(), [item].into_iter());
    whole.apply(&delta.into_bytes(), &mut Vec::new()).expect("a delta of this list");
    let mut bytes = Vec::new();
    whole.pack(&mut bytes);
    Change::Set { bytes: bytes.into(), kind: ValueKind::List, expire_at: None }
}

/// What a delta that [`push`] made appends, as text.
pub(crate) fn appended(delta: &[u8]) -> String {
    let length = delta.get(1..5).map_or(0, |at| u32::from_le_bytes(at.try_into().expect("four")));
    let mut fill = packed::Builder::new(0, 0);
    (0..length).for_each(|_| fill.item(b"?"));
    let mut whole = list(&fill.finish(length as usize));
    whole.apply(delta, &mut Vec::new()).expect("a delta of such a list");
    items_from(&whole, length as usize)
}
