//! What transactions have done to a sum, as far as their clients know.

use std::collections::VecDeque;

use crate::Answer;

/// Bounds of the sum of what transactions have added: they differ by what transactions may have
/// added whose end nobody knows.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Ledger {
    /// The least that the sum can be.
    pub least: i64,
    /// The most.
    pub most: i64,
    /// Transactions whose end nobody knows.
    pub unknown: u64,
}

impl Ledger {
    /// Adds what other transactions have done.
    pub fn absorb(&mut self, other: &Self) {
        self.least += other.least;
        self.most += other.most;
        self.unknown += other.unknown;
    }

    fn add(&mut self, change: i64) {
        self.least += change;
        self.most += change;
    }
}

/// What a transaction adds if it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// Unless its client is told another number.
    pub(super) expected: i64,
    /// What a number that the client is told is multiplied with, and divided by.
    pub(super) told: (i64, i64),
    /// The least and the most that it can be.
    pub(super) bounds: (i64, i64),
}

impl Change {
    /// It adds exactly this.
    pub(super) const fn exactly(change: i64) -> Self {
        Self { expected: change, told: (1, 1), bounds: (change, change) }
    }
}

/// Transactions under way, by client, and the ledger of those that ended.
#[derive(Clone, Default, Debug)]
pub(super) struct Book {
    open: Vec<VecDeque<Change>>,
    ledger: Ledger,
}

impl Book {
    /// A client was given a transaction.
    pub(super) fn begin(&mut self, client: usize, change: Change) {
        if self.open.len() <= client {
            self.open.resize_with(client + 1, VecDeque::new);
        }
        self.open[client].push_back(change);
    }

    /// Its oldest one ended.
    pub(super) fn end(&mut self, client: usize, answer: &Answer) {
        let open = self.open.get_mut(client).and_then(VecDeque::pop_front);
        let change = open.expect("a transaction ends after it began");
        match answer {
            Answer::Told(Some(number)) => {
                self.ledger.add(number * change.told.0 / change.told.1);
            }
            answer if answer.is_done() => self.ledger.add(change.expected),
            Answer::Aborted => {}
            _ => {
                let (least, most) = change.bounds;
                self.ledger.least += least.min(0);
                self.ledger.most += most.max(0);
                self.ledger.unknown += 1;
            }
        }
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.ledger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_widens_the_bounds() {
        let mut book = Book::default();
        let halves = Change { expected: 9, told: (1, 2), bounds: (-3, 4) };
        for change in [Change::exactly(7), Change::exactly(5), halves, halves] {
            book.begin(2, change);
        }
        book.end(2, &Answer::Good);
        book.end(2, &Answer::Aborted);
        book.end(2, &Answer::Told(Some(2)));
        assert_eq!(book.ledger(), Ledger { least: 8, most: 8, unknown: 0 });
        book.end(2, &Answer::Failed("UNKNOWN".into()));
        assert_eq!(book.ledger(), Ledger { least: 5, most: 12, unknown: 1 });
    }
}
