//! The sets of a transaction, as tests write and compare them.

use quorate_meerkat::Body;
use quorate_types::{Timestamp, WriterId};
use quorate_wire::Writer;

/// What a transaction does to one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) base: Option<Timestamp>,
    pub(crate) write: Option<Option<String>>,
}

/// A key or a value as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("tests store text")
}

/// What a transaction does to each key.
pub(crate) fn entries(body: Body<'_>) -> Vec<Entry> {
    body.iter()
        .map(|item| Entry {
            key: text(item.key),
            base: item.base,
            write: item.write.map(|content| content.map(|content| text(content.bytes))),
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
