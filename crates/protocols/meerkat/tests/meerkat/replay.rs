//! Explains what an attempt did by the transactions that shared it: which they were, and in which
//! order they ran.

use std::collections::{BTreeMap, BTreeSet};

use quorate_types::{Timestamp, WriterId};

use crate::txn::{Seen, Step, Txn};

/// What each key held before the attempt, and its version.
pub(crate) type State = BTreeMap<String, (Timestamp, Option<String>)>;

/// The writer of what is shown in the place of a version that no client may rely on.
const HIDDEN: WriterId = WriterId(u32::MAX);
/// How many transactions that have left nothing to be seen are tried in one attempt.
const UNSEEN_MAX: usize = 3;

/// A transaction whose client knows its answer.
pub(crate) struct Known<'a> {
    pub(crate) tag: u64,
    pub(crate) txn: &'a Txn,
    pub(crate) reply: &'a [Seen],
}

/// An attempt under explanation.
pub(crate) struct Attempt<'a> {
    pub(crate) before: &'a State,
    /// In the order of their answers.
    pub(crate) known: Vec<Known<'a>>,
    /// Transactions that may have taken part as well.
    pub(crate) unknown: Vec<(u64, &'a Txn)>,
    /// What it left in the keys that it wrote.
    pub(crate) writes: BTreeMap<String, Option<String>>,
}

/// What a transaction should have read: whether the version is hidden, and which it is, unless it
/// has written the key itself; and the value.
type Read = (Option<(bool, Timestamp)>, Option<String>);

/// What the transactions so far have written.
type Written = BTreeMap<String, Option<String>>;

/// Whether a value of a step's key has what the step writes, which names its transaction.
fn is_named(step: &Step, value: &str) -> bool {
    match step {
        Step::Write(_, name) | Step::Put(_, name) | Step::Append(_, name) | Step::Push(_, name) => {
            let name = name.trim_start_matches(',');
            value.trim_start_matches('+').split(',').any(|other| other == name)
        }
        Step::Read(_) | Step::Del(_) | Step::Unless(_) => false,
    }
}

/// Whether a value of a key names a transaction.
pub(crate) fn names(txn: &Txn, key: &str, value: &str) -> bool {
    txn.0.iter().any(|step| step.key() == key && is_named(step, value))
}

impl Attempt<'_> {
    /// The transactions that explain it, in their order: all the known ones, and as few others as
    /// will do.
    pub(crate) fn explain(&self) -> Option<Vec<u64>> {
        let seen = self.unknown.iter().filter(|(_, txn)| self.shows(txn)).count();
        (seen..=seen + UNSEEN_MAX).find_map(|others| {
            let mut order = Vec::new();
            self.extend(&Written::new(), 0, others, &mut order).then_some(order)
        })
    }

    /// The values of a key that somebody has seen.
    fn evidence<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let seen = self.known.iter().flat_map(|known| known.reply);
        let seen =
            seen.filter(move |seen| seen.key == key).filter_map(|seen| seen.value.as_deref());
        seen.chain(self.writes.get(key).and_then(Option::as_deref))
    }

    /// Whether a key held something, whatever it was, and a transaction gave up for that.
    fn stopped(&self, key: &str) -> bool {
        let watches = |txn: &Txn| txn.0.iter().any(|step| *step == Step::Unless(key.to_owned()));
        self.known.iter().any(|known| known.reply.is_empty() && watches(known.txn))
    }

    /// Whether what a transaction writes, which names it, was seen.
    fn shows(&self, txn: &Txn) -> bool {
        txn.0.iter().any(|step| self.evidence(step.key()).any(|value| is_named(step, value)))
    }

    /// Whether an order that begins like this explains it, with so many more of the unknown ones.
    fn extend(&self, written: &Written, at: usize, others: usize, order: &mut Vec<u64>) -> bool {
        if at == self.known.len() && others == 0 {
            return *written == self.writes;
        }
        if let Some(Known { tag, txn, reply }) = self.known.get(at)
            && let Some(after) = self.run(txn, written, Some(reply))
        {
            order.push(*tag);
            if self.extend(&after, at + 1, others, order) {
                return true;
            }
            order.pop();
        }
        for (tag, txn) in self.unknown.iter().filter(|_| others > 0) {
            let after = self.run(txn, written, None).expect("nobody says otherwise");
            // What nobody has seen needs no explanation.
            let is_seen = after.iter().any(|(key, value)| {
                let shown = |value: &String| self.evidence(key).any(|seen| seen.starts_with(value));
                let changes = written.get(key) != Some(value);
                changes && (value.as_ref().is_none_or(shown) || self.stopped(key))
            });
            if is_seen && !order.contains(tag) {
                order.push(*tag);
                if self.extend(&after, at, others - 1, order) {
                    return true;
                }
                order.pop();
            }
        }
        false
    }

    /// What a transaction leaves, if it sees what it has answered.
    fn run(&self, txn: &Txn, written: &Written, reply: Option<&[Seen]>) -> Option<Written> {
        let (mut after, mut reads) = (written.clone(), Vec::new());
        let mut own: BTreeSet<&str> = BTreeSet::new();
        for step in &txn.0 {
            let key = step.key();
            let (version, held) = self.before.get(key).cloned().unwrap_or_default();
            let value = after.get(key).cloned().unwrap_or(held);
            if let Step::Read(_) | Step::Append(..) | Step::Push(..) = step {
                let hides = written.contains_key(key);
                let known = (!own.contains(key)).then_some((hides, version));
                reads.push((known, value.clone()));
            }
            let new = match step {
                Step::Read(_) => continue,
                Step::Write(_, new) | Step::Put(_, new) => Some(new.clone()),
                Step::Append(_, tail) | Step::Push(_, tail) => {
                    Some(value.unwrap_or_default() + tail)
                }
                Step::Del(_) => None,
                Step::Unless(_) if value.is_some() => {
                    return reply.is_none_or(<[Seen]>::is_empty).then(|| written.clone());
                }
                Step::Unless(_) => continue,
            };
            own.insert(key);
            after.insert(key.to_owned(), new);
        }
        let Some(reply) = reply else { return Some(after) };
        let fits = |(seen, (known, value)): (&Seen, &Read)| {
            let shows = known.is_none_or(|(hides, version)| match hides {
                true => seen.version.writer == HIDDEN,
                false => value.is_none() || seen.version == version,
            });
            seen.value == *value && shows
        };
        (reply.len() == reads.len() && reply.iter().zip(&reads).all(fits)).then_some(after)
    }
}
