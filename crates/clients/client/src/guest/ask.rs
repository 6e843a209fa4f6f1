//! The transactions that a guest's machine runs for the client.
//!
//! A machine runs closures to their end, and the transactions of this client are interactive. So
//! each read is a small transaction of its own that is given up once it has its values, and the
//! commit is another one: it reads everything again, gives up if a key has changed since it was
//! seen, and otherwise makes the changes. Validation covers the rest.

use std::sync::Arc;

use quorate_machine::{Change, Command, Current, ValueKind, Verdict, Workspace};
use quorate_types::{Timestamp, UnixMillis};

use crate::transport::{Expiry, Values, Write, Writes};

/// The seen state of a key: its version, and whether it had a value.
pub(super) type Seen = (Timestamp, bool);

/// A transaction for the machine. Cheap to copy.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Reads these keys.
    Read(Arc<[Vec<u8>]>),
    /// Makes these changes, if the keys are as they were seen.
    Commit {
        /// The keys that were read.
        seen: Arc<[(Vec<u8>, Seen)]>,
        /// The changes.
        writes: Arc<Writes>,
    },
}

/// The machine's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The values of the keys, and their seen states for the later comparison.
    Values(Values, Vec<Seen>),
    /// The changes are made.
    Committed,
    /// A key is not as it was seen.
    Conflict,
}

impl Command for Ask {
    type Owned = Self;
    type Reply = Answer;

    fn run<W: Workspace>(&self, now: UnixMillis, workspace: &mut W) -> Verdict<Answer> {
        match self {
            Self::Read(keys) => {
                let (mut values, mut seen) = (Vec::new(), Vec::new());
                for key in keys.iter() {
                    let current = workspace.read(key);
                    values.push(current.content.map(|content| content.bytes.to_vec()));
                    seen.push(as_seen(&current));
                }
                Verdict::Abandon(Answer::Values(values, seen))
            }
            Self::Commit { seen, writes } => {
                // All keys are read, also behind the first difference: missing ones are fetched
                // once.
                let changed = seen
                    .iter()
                    .filter(|(key, seen)| as_seen(&workspace.read(key)) != *seen)
                    .count();
                if changed > 0 {
                    return Verdict::Abandon(Answer::Conflict);
                }
                for (key, write) in writes.iter() {
                    apply(now, key, write, workspace);
                }
                Verdict::Commit(Answer::Committed)
            }
        }
    }

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Read(keys) => keys.iter().for_each(|key| visit(key)),
            Self::Commit { seen, writes } => {
                seen.iter().for_each(|(key, _)| visit(key));
                writes.iter().for_each(|(key, _)| visit(key));
            }
        }
    }

    fn updates(&self) -> bool {
        matches!(self, Self::Commit { .. })
    }

    fn into_owned(self) -> Self {
        self
    }
}

/// An expired value keeps its version, so the version alone tells too little.
fn as_seen(current: &Current<'_>) -> Seen {
    (current.timestamp, current.content.is_some())
}

fn apply<W: Workspace>(now: UnixMillis, key: &[u8], write: &Write, workspace: &mut W) {
    let change = match write {
        Write::Delete => Change::Delete,
        Write::Set { value, expiry } => {
            let expire_at = match expiry {
                Expiry::Never => None,
                Expiry::Keep => workspace.read(key).content.and_then(|content| content.expire_at),
                Expiry::After(after) => {
                    let millis = crate::block::millis(*after);
                    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
                    Some(UnixMillis(now.0.saturating_add(millis)))
                }
            };
            Change::Set { bytes: value.into(), kind: ValueKind::String, expire_at }
        }
    };
    workspace.write(key, change);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use quorate_machine::Content;
    use quorate_types::{MemberNumber, WriterId};

    use super::*;

    type Stored = (Vec<u8>, Option<UnixMillis>);

    /// Keys with their versions and values.
    #[derive(Default)]
    struct Fake(BTreeMap<Vec<u8>, (Timestamp, Option<Stored>)>);

    impl Workspace for Fake {
        fn read(&mut self, key: &[u8]) -> Current<'_> {
            let Some((timestamp, stored)) = self.0.get(key) else {
                return Current::ABSENT;
            };
            let content = stored.as_ref().map(|(bytes, expire_at)| Content {
                bytes,
                kind: ValueKind::String,
                expire_at: *expire_at,
            });
            Current { content, large: None, timestamp: *timestamp }
        }

        fn write(&mut self, key: &[u8], change: Change<'_>) {
            let value = match change {
                Change::Set { bytes, expire_at, .. } => Some((bytes.into_owned(), expire_at)),
                Change::Delete => None,
                other => panic!("{other:?}"),
            };
            self.0.entry(key.to_vec()).or_default().1 = value;
        }
    }

    fn at(version: u64) -> Timestamp {
        Timestamp::new(version, WriterId::new(MemberNumber(1), 64))
    }

    fn fake() -> Fake {
        let stored = (at(5), Some((b"1".to_vec(), Some(UnixMillis(77)))));
        Fake([(b"a".to_vec(), stored)].into())
    }

    fn commit(seen: &[(&str, Seen)], writes: Writes) -> Ask {
        let seen = seen.iter().map(|(key, seen)| (key.as_bytes().to_vec(), *seen)).collect();
        Ask::Commit { seen, writes: Arc::new(writes) }
    }

    fn set(expiry: Expiry) -> Writes {
        [(b"a".to_vec(), Write::Set { value: b"2".to_vec(), expiry })].into()
    }

    const NONE: Seen = (Timestamp::ZERO, false);

    #[test]
    fn a_read_is_given_up_with_what_it_saw() {
        let ask = Ask::Read([b"a".to_vec(), b"b".to_vec()].into());
        let values = Answer::Values(vec![Some(b"1".to_vec()), None], vec![(at(5), true), NONE]);
        assert_eq!(ask.run(UnixMillis(0), &mut fake()), Verdict::Abandon(values));
    }

    #[test]
    fn a_commit_needs_what_was_seen() {
        let mut fake = fake();
        let run = |ask: Ask, fake: &mut Fake| ask.run(UnixMillis(1_000), fake);
        let conflict = Verdict::Abandon(Answer::Conflict);
        for seen in [(at(4), true), (at(5), false), NONE] {
            assert_eq!(run(commit(&[("a", seen)], set(Expiry::Never)), &mut fake), conflict);
        }
        assert_eq!(run(commit(&[("b", (at(1), true))], Writes::new()), &mut fake), conflict);
        assert_eq!(fake.0[b"a".as_slice()].1.as_ref().unwrap().0, b"1");
        let seen = [("a", (at(5), true)), ("b", NONE)];
        let committed = Verdict::Commit(Answer::Committed);
        for (expiry, expire_at) in [
            (Expiry::Keep, Some(77)),
            (Expiry::After(Duration::from_micros(1_500)), Some(1_002)),
            (Expiry::Never, None),
        ] {
            assert_eq!(run(commit(&seen, set(expiry)), &mut fake), committed);
            let stored = fake.0[b"a".as_slice()].1.clone().unwrap();
            assert_eq!(stored, (b"2".to_vec(), expire_at.map(UnixMillis)));
        }
        assert_eq!(run(commit(&[], [(b"a".to_vec(), Write::Delete)].into()), &mut fake), committed);
        assert_eq!(fake.0[b"a".as_slice()].1, None);
    }
}
