//! One key as a workspace.

use alloc::borrow::Cow;

use quorate_machine::{Change, Content, Current, ValueKind, Workspace, no_object};
use quorate_types::{Timestamp, UnixMillis};

/// What one key holds while commands run on it, and what they did to it. As a [`Workspace`] it
/// takes every key for that one. The caller has checked that it is.
#[derive(Clone, Debug)]
pub(crate) struct OneKey<'a> {
    bytes: Option<(Cow<'a, [u8]>, ValueKind)>,
    expire_at: Option<UnixMillis>,
    timestamp: Timestamp,
    was_read: bool,
    value_changed: bool,
    expiry_changed: bool,
}

impl<'a> OneKey<'a> {
    pub(crate) fn new(current: Current<'a>) -> Self {
        Self {
            bytes: current.content.map(|content| (content.bytes.into(), content.kind)),
            expire_at: current.content.and_then(|content| content.expire_at),
            timestamp: current.timestamp,
            was_read: false,
            value_changed: false,
            expiry_changed: false,
        }
    }

    /// A copy that borrows nothing.
    pub(crate) fn into_owned(self) -> OneKey<'static> {
        let bytes = self.bytes.map(|(bytes, kind)| (Cow::Owned(bytes.into_owned()), kind));
        OneKey { bytes, ..self }
    }

    /// Whether anything asked what the key held.
    pub(crate) fn was_read(&self) -> bool {
        self.was_read
    }

    /// Whether anything read or wrote the key.
    pub(crate) fn was_touched(&self) -> bool {
        self.was_read || self.value_changed || self.expiry_changed
    }

    /// The sum of the changes.
    pub(crate) fn finish(self) -> Change<'a> {
        match (self.bytes, self.value_changed, self.expiry_changed) {
            (_, false, false) => Change::Keep,
            (Some(_), false, true) => Change::Expire(self.expire_at),
            (Some((bytes, kind)), true, _) => {
                Change::Set { bytes, kind, expire_at: self.expire_at }
            }
            (None, ..) => Change::Delete,
        }
    }
}

impl Workspace for OneKey<'_> {
    fn read(&mut self, _: &[u8]) -> Current<'_> {
        self.was_read = true;
        let content = self.bytes.as_ref().map(|(bytes, kind)| Content {
            bytes,
            kind: *kind,
            expire_at: self.expire_at,
        });
        Current { content, timestamp: self.timestamp }
    }

    fn write(&mut self, _: &[u8], change: Change<'_>) {
        match change.into_owned() {
            Change::Keep => {}
            Change::Set { bytes, kind, expire_at } => {
                self.bytes = Some((bytes, kind));
                self.expire_at = expire_at;
                self.value_changed = true;
            }
            Change::Expire(expire_at) => {
                if self.bytes.is_some() {
                    self.expire_at = expire_at;
                    self.expiry_changed = true;
                }
            }
            Change::Delete => {
                self.bytes = None;
                self.expire_at = None;
                self.value_changed = true;
            }
            Change::Delta(_) => no_object(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expiry_of_a_key_without_a_value_is_no_change() {
        let absent = Current { content: None, timestamp: Timestamp::ZERO };
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
