//! The sets of a transaction, as tests write and compare them.

use quorate_collections::{Delta, Step, packed};
use quorate_machine::{Collection, Content, ValueKind};
use quorate_meerkat::{Body, Write};
use quorate_types::{Timestamp, WriterId};
use quorate_wire::Writer;

/// What a transaction does to one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) base: Option<Timestamp>,
    /// Whether it read that there is nothing.
    pub(crate) absent: bool,
    pub(crate) write: Option<Option<String>>,
}

/// A key or a value as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("tests store text")
}

/// A value as text: that of a list is the text of its items.
pub(crate) fn value_text(content: Content<'_>, large: Option<&Collection>) -> String {
    let unpacked = || Collection::unpack(ValueKind::List, content.bytes).expect("a list");
    match (content.kind, large) {
        (ValueKind::List, Some(large)) => items_text(large, 0),
        (ValueKind::List, None) => items_text(&unpacked(), 0),
        _ => text(content.bytes),
    }
}

/// The text of a list's items from this one on.
fn items_text(list: &Collection, from: usize) -> String {
    list.list().expect("a list").items_from(from).map(text).collect()
}

/// The packed list of one item.
pub(crate) fn list_of(item: &str) -> Vec<u8> {
    let mut list = packed::Builder::new(0, item.len());
    list.item(item.as_bytes());
    list.finish(1)
}

/// What a delta appends to a list, as text.
fn appended(delta: &[u8]) -> String {
    let length = delta.get(1..5).map_or(0, |at| u32::from_le_bytes(at.try_into().expect("four")));
    let mut fill = Delta::new();
    fill.insert(0, (0..length).map(|_| &b"?"[..]));
    let mut list = Collection::unpack(ValueKind::List, &list_of("?")).expect("a list");
    let cut = Step::Cut { at: 0, count: 1 };
    let mut empty = Delta::new();
    empty.push(cut);
    for delta in [&empty.into_bytes()[..], &fill.into_bytes(), delta] {
        list.apply(delta, &mut Vec::new()).expect("a delta of such a list");
    }
    items_text(&list, length as usize)
}

/// What a transaction does to each key. What it appends to a large list has a `+` before it.
pub(crate) fn entries(body: Body<'_>) -> Vec<Entry> {
    body.iter()
        .map(|item| Entry {
            key: text(item.key),
            base: item.base,
            absent: item.absent,
            write: item.write.map(|write| match write {
                Write::Set(content) => Some(value_text(content, None)),
                Write::Delta(delta) => Some(format!("+{}", appended(delta.bytes))),
                Write::Delete => None,
            }),
        })
        .collect()
}

/// The encoded sets of a transaction that a test makes up: keys with the version that was read and
/// the value that is written, if any. The key was absent if all writers together wrote the version.
pub(crate) fn body_bytes(items: &[(&str, Option<Timestamp>, Option<&str>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.u32(items.len() as u32);
    for (key, base, value) in items {
        let absent = base.is_some_and(|base| base.writer == WriterId(u32::MAX));
        let flags = u8::from(base.is_some()) | if value.is_some() { 2 | 4 } else { 0 };
        let flags = flags | if absent { 16 } else { 0 };
        writer.u8(flags);
        writer.bytes(key.as_bytes());
        if let Some(base) = base {
            writer.u64(base.version);
            writer.u32(base.writer.0);
        }
        if let Some(value) = value {
            writer.u8(0);
            writer.bytes(value.as_bytes());
        }
    }
    bytes
}
