//! One key as a workspace.

use alloc::borrow::Cow;

use quorate_collections::{Draft, ValueKind};
use quorate_types::{Timestamp, UnixMillis};

use crate::{Change, Content, Current, Workspace};

/// What one key holds while commands run on it, and what they did to it. As a [`Workspace`] it
/// takes every key for that one. The caller has checked that it is.
#[derive(Clone, Debug)]
pub struct OneKey<'a> {
    value: Option<Value<'a>>,
    expire_at: Option<UnixMillis>,
    timestamp: Timestamp,
    was_read: bool,
    value_changed: bool,
    expiry_changed: bool,
}

#[derive(Clone, Debug)]
enum Value<'a> {
    Packed(Cow<'a, [u8]>, ValueKind),
    Large(Draft),
}

impl<'a> OneKey<'a> {
    /// Of a key that holds this.
    pub fn new(current: Current<'a>) -> Self {
        let large = current.large.map(|large| Value::Large(Draft::new(large.clone())));
        let packed = |content: Content<'a>| Value::Packed(content.bytes.into(), content.kind);
        Self {
            value: large.or_else(|| current.content.map(packed)),
            expire_at: current.content.and_then(|content| content.expire_at),
            timestamp: current.timestamp,
            was_read: false,
            value_changed: false,
            expiry_changed: false,
        }
    }

    /// A copy that borrows nothing.
    pub fn into_owned(self) -> OneKey<'static> {
        let value = self.value.map(|value| match value {
            Value::Packed(bytes, kind) => Value::Packed(Cow::Owned(bytes.into_owned()), kind),
            Value::Large(draft) => Value::Large(draft),
        });
        OneKey { value, ..self }
    }

    /// Whether anything asked what the key held.
    pub fn was_read(&self) -> bool {
        self.was_read
    }

    /// Whether anything read or wrote the key.
    pub fn was_touched(&self) -> bool {
        self.was_read || self.value_changed || self.expiry_changed
    }

    /// Whether anything changed the key.
    pub fn is_changed(&self) -> bool {
        self.value_changed || self.expiry_changed
    }

    /// The bytes that the sum of the changes has so far.
    pub fn change_bytes(&self) -> usize {
        match &self.value {
            Some(Value::Packed(bytes, _)) if self.value_changed => bytes.len(),
            Some(Value::Large(draft)) => draft.delta().len(),
            _ => 0,
        }
    }

    /// The version that the key shows.
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// From now on the key shows this version: a client that watches it sees that it was changed.
    pub fn set_timestamp(&mut self, timestamp: Timestamp) {
        self.timestamp = timestamp;
    }

    /// The sum of the changes.
    pub fn finish(self) -> Change<'a> {
        match (self.value, self.value_changed, self.expiry_changed) {
            (_, false, false) => Change::Keep,
            (Some(_), false, true) => Change::Expire(self.expire_at),
            (Some(Value::Packed(bytes, kind)), true, _) => {
                Change::Set { bytes, kind, expire_at: self.expire_at }
            }
            (Some(Value::Large(draft)), true, _) => {
                Change::Delta { bytes: draft.into_delta().into(), expire_at: self.expire_at }
            }
            (None, ..) => Change::Delete,
        }
    }
}

impl Workspace for OneKey<'_> {
    fn read(&mut self, _: &[u8]) -> Current<'_> {
        self.was_read = true;
        let (expire_at, timestamp) = (self.expire_at, self.timestamp);
        let (bytes, kind, large) = match &mut self.value {
            None => return Current { timestamp, ..Current::ABSENT },
            Some(Value::Packed(bytes, kind)) => (&**bytes, *kind, None),
            Some(Value::Large(draft)) => {
                let large = draft.look();
                (&[][..], large.kind(), Some(large))
            }
        };
        Current { content: Some(Content { bytes, kind, expire_at }), large, timestamp }
    }

    fn write(&mut self, _: &[u8], change: Change<'_>) {
        match change {
            Change::Keep => {}
            Change::Set { bytes, kind, expire_at } => {
                self.value = Some(Value::Packed(Cow::Owned(bytes.into_owned()), kind));
                self.expire_at = expire_at;
                self.value_changed = true;
            }
            Change::Expire(expire_at) => {
                if self.value.is_some() {
                    self.expire_at = expire_at;
                    self.expiry_changed = true;
                }
            }
            Change::Delta { bytes, expire_at } => {
                let Some(Value::Large(draft)) = &mut self.value else {
                    unreachable!("who changes a large value has seen it");
                };
                draft.change(&bytes);
                self.expire_at = expire_at;
                self.value_changed = true;
            }
            Change::Delete => {
                self.value = None;
                self.expire_at = None;
                self.value_changed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expiry_of_a_key_without_a_value_is_no_change() {
        let absent = Current::ABSENT;
        let expire = Change::Expire(Some(UnixMillis(1)));
        let mut key = OneKey::new(absent);
        key.write(b"", expire.clone());
        assert!(!key.was_touched());
        assert_eq!(key.finish(), Change::Keep);
        let content = Content { bytes: b"v", kind: ValueKind::String, expire_at: None };
        let mut key = OneKey::new(Current { content: Some(content), ..absent });
        key.write(b"", Change::Delete);
        key.write(b"", expire);
        assert_eq!(key.finish(), Change::Delete);
    }
}
