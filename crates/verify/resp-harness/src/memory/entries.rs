//! The values of a keyspace, and one transaction over them.

use std::collections::BTreeMap;

use quorate_machine::{Change, Content, Current, Placed, ValueKind, Workspace};
use quorate_types::{NodeId, NodeSet, Timestamp, UnixMillis};

/// A value, what it is, and when it expires.
pub(super) type Value = (Vec<u8>, ValueKind, Option<UnixMillis>);

#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) value: Option<Value>,
    pub(super) timestamp: Timestamp,
}

impl Entry {
    pub(super) fn current(&self, now: UnixMillis) -> Current<'_> {
        Current {
            content: content(self.value.as_ref(), now),
            large: None,
            timestamp: self.timestamp,
        }
    }
}

fn content(value: Option<&Value>, now: UnixMillis) -> Option<Content<'_>> {
    let (bytes, kind, expire_at) = value?;
    let content = Content { bytes, kind: *kind, expire_at: *expire_at };
    (!content.is_expired(now)).then_some(content)
}

/// The value after a change; `None` if the key has no value to be changed.
pub(super) fn changed(value: Option<Value>, change: Change<'_>) -> Option<Option<Value>> {
    match change {
        Change::Keep => None,
        Change::Set { bytes, kind, expire_at } => Some(Some((bytes.into_owned(), kind, expire_at))),
        Change::Expire(expire_at) => value.map(|(bytes, kind, _)| Some((bytes, kind, expire_at))),
        Change::Delete => Some(None),
        Change::Delta { .. } => unreachable!("values are packed here"),
    }
}

/// A keyspace under one transaction.
pub(super) struct Attempt<'a> {
    pub(super) entries: &'a BTreeMap<Vec<u8>, Entry>,
    pub(super) now: UnixMillis,
    /// What the transaction has touched, and its changes.
    pub(super) touched: BTreeMap<Vec<u8>, Option<Option<Value>>>,
}

impl Workspace for Attempt<'_> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        let entry = self.entries.get(key);
        let timestamp = entry.map_or(Timestamp::ZERO, |entry| entry.timestamp);
        let change = self.touched.entry(key.to_vec()).or_default().as_ref();
        let value = change.map_or(entry.and_then(|entry| entry.value.as_ref()), Option::as_ref);
        Current { content: content(value, self.now), large: None, timestamp }
    }

    fn placement(&mut self, _: &[u8]) -> Option<Placed> {
        Some(Placed { owner: Some(NodeId(1)), readers: NodeSet::only(NodeId(1)), moves: 5 })
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        let Current { content, .. } = self.read(key);
        let value =
            content.map(|content| (content.bytes.to_vec(), content.kind, content.expire_at));
        if let Some(value) = changed(value, change) {
            self.touched.insert(key.to_vec(), Some(value));
        }
    }
}
