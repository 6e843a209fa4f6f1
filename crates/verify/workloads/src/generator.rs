//! The workloads, and the transactions that they consist of.

use std::str::FromStr;

use quorate_machine::Rng;

use crate::{
    Answer, BadZipf, Content, FirstContents, Layout, Permutation, Put, Scenario, Source, Tells,
    Transaction, TransactionKind, Zipf,
};

/// A mix of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// One read-modify-write of one key: YCSB's workload F as a transaction (Meerkat §6.2).
    YcsbT,
    /// A social network: four kinds of transactions over up to ten keys (Meerkat table 2).
    Retwis,
    /// `GET` and `SET` of one key, with the keys and values of `bench/compare`.
    Multi,
    /// Moves money between two accounts.
    Bank,
    /// Reads three keys.
    Mget,
}

/// One kind of Retwis's transactions: its share in percent, and its numbers of gets and puts.
struct Part {
    percent: u64,
    kind: TransactionKind,
    gets: u64,
    puts: u64,
}

/// Table 2 of the Meerkat paper. A timeline's gets are drawn: see [`TIMELINE_GETS_MAX`].
const RETWIS: [Part; 4] = [
    Part { percent: 5, kind: TransactionKind::AddUser, gets: 1, puts: 3 },
    Part { percent: 15, kind: TransactionKind::Follow, gets: 2, puts: 2 },
    Part { percent: 30, kind: TransactionKind::PostTweet, gets: 3, puts: 5 },
    Part { percent: 50, kind: TransactionKind::LoadTimeline, gets: TIMELINE_GETS_MAX, puts: 0 },
];

/// A timeline has from 1 to this many gets, each number equally often.
const TIMELINE_GETS_MAX: u64 = 10;
/// The most that one transfer moves.
const TRANSFER_MAX: u64 = 10;
/// Keys that `mget` reads.
const MGET_KEYS: u64 = 3;

impl Workload {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::YcsbT, Self::Retwis, Self::Multi, Self::Bank, Self::Mget];
    /// The first balance of an account.
    pub const BALANCE: i64 = 1000;

    /// The name that users give.
    pub const fn name(self) -> &'static str {
        match self {
            Self::YcsbT => "ycsb-t",
            Self::Retwis => "retwis",
            Self::Multi => "multi",
            Self::Bank => "bank",
            Self::Mget => "mget",
        }
    }

    /// How its keys and values are spelled.
    pub const fn layout(self) -> Layout {
        match self {
            Self::YcsbT | Self::Retwis | Self::Mget => Layout::PAPER,
            Self::Multi => Layout::COMPARE,
            Self::Bank => Layout::BANK,
        }
    }

    /// The fewest keys that the workload runs with: those of its largest transaction, which are
    /// distinct.
    pub const fn keys_min(self) -> u64 {
        match self {
            Self::YcsbT | Self::Multi => 1,
            Self::Retwis => TIMELINE_GETS_MAX,
            Self::Bank => 2,
            Self::Mget => MGET_KEYS,
        }
    }

    /// The content of a key before the run.
    pub const fn first_content(self, key: u64) -> Content {
        match self {
            Self::Bank => Content::Number(Self::BALANCE),
            Self::YcsbT | Self::Retwis | Self::Multi | Self::Mget => Content::Filler(key),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|workload| workload.name() == name);
        found.ok_or_else(|| format!("there is no workload {name:?}"))
    }
}

/// Draws the transactions of a workload. The same arguments give the same transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    workload: Workload,
    zipf: Zipf,
    spread: Permutation,
    rng: Rng,
    /// The distinct keys of the transaction that is being made.
    keys: Vec<u64>,
    transaction: Transaction,
}

impl Generator {
    /// Transactions over `0..keys`, whose frequency follows Zipf's law with coefficient `theta`.
    ///
    /// # Errors
    /// [`BadZipf`] if there are fewer keys than [`Workload::keys_min`] or more than
    /// [`Zipf::RANKS_MAX`], or if the coefficient is out of range.
    pub fn new(workload: Workload, keys: u64, theta: f64, seed: u64) -> Result<Self, BadZipf> {
        if keys < workload.keys_min() {
            return Err(BadZipf::Ranks(keys));
        }
        Ok(Self {
            workload,
            zipf: Zipf::new(keys, theta)?,
            spread: Permutation::new(keys),
            rng: Rng::new(seed),
            keys: Vec::new(),
            transaction: Transaction::empty(),
        })
    }

    /// Draws so many keys, all different. Duplicates are drawn again, so that within one
    /// transaction the hottest keys are a little less frequent than the law has it.
    fn draw_keys(&mut self, count: u64) {
        self.keys.clear();
        while (self.keys.len() as u64) < count {
            let rank = self.zipf.draw(&mut self.rng);
            let key = self.spread.apply(rank - 1);
            if !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
    }

    /// Makes a transaction that reads the first `gets` of its keys and writes the first `puts`, as
    /// TAPIR's public driver of Retwis does: the keys to write include the keys to read, or the
    /// other way round.
    fn make(&mut self, kind: TransactionKind, gets: u64, puts: u64) {
        self.draw_keys(gets.max(puts));
        self.transaction.kind = kind;
        self.transaction.gets.clear();
        self.transaction.gets.extend_from_slice(&self.keys[..gets as usize]);
        self.transaction.puts.clear();
        for &key in &self.keys[..puts as usize] {
            let content = Content::Filler(self.rng.next_u64());
            self.transaction.puts.push(Put { key, content });
        }
    }

    fn make_retwis(&mut self) {
        let mut percent = self.rng.below(100);
        for part in &RETWIS {
            if percent >= part.percent {
                percent -= part.percent;
                continue;
            }
            let gets = match part.kind {
                TransactionKind::LoadTimeline => 1 + self.rng.below(TIMELINE_GETS_MAX),
                _ => part.gets,
            };
            return self.make(part.kind, gets, part.puts);
        }
        unreachable!("the percentages of table 2 add up to 100");
    }

    /// A transfer needs no get: `INCRBY` adds to the balance that the account has.
    fn make_transfer(&mut self) {
        self.draw_keys(2);
        let amount = 1 + self.rng.below(TRANSFER_MAX) as i64;
        self.transaction.kind = TransactionKind::Transfer;
        self.transaction.gets.clear();
        self.transaction.puts.clear();
        for (&key, change) in self.keys.iter().zip([-amount, amount]) {
            self.transaction.puts.push(Put { key, content: Content::Sum(change) });
        }
    }
}

impl Source for Generator {
    type Request = Transaction;

    fn next(&mut self) -> &Transaction {
        match self.workload {
            Workload::YcsbT => self.make(TransactionKind::ReadModifyWrite, 1, 1),
            Workload::Retwis => self.make_retwis(),
            Workload::Multi => self.make(TransactionKind::GetSet, 1, 1),
            Workload::Bank => self.make_transfer(),
            Workload::Mget => self.make(TransactionKind::ReadKeys, MGET_KEYS, 0),
        }
        &self.transaction
    }
}

/// Writes every key once, in order, before a measurement. It starts again at the end.
#[derive(Clone, Debug)]
pub struct Fill {
    first: First,
    keys: u64,
    /// The node that writes each key; none if that makes no difference.
    homes: Vec<u16>,
    next: u64,
    transaction: Transaction,
}

/// Where first contents come from.
#[derive(Clone, Debug)]
enum First {
    Workload(Workload),
    Scenario(FirstContents),
}

impl Fill {
    /// The first contents of `0..keys`.
    pub fn new(workload: Workload, keys: u64) -> Self {
        let (first, homes) = (First::Workload(workload), Vec::new());
        Self { first, keys, homes, next: 0, transaction: Transaction::empty() }
    }

    /// The first contents of a scenario's keys, each written at its home; its units are in so many parts.
    pub fn of(scenario: &Scenario, parts: u64) -> Self {
        let (first, keys) = (First::Scenario(scenario.first_contents()), scenario.keys());
        let homes = scenario.first_homes(parts);
        Self { first, keys, homes, next: 0, transaction: Transaction::empty() }
    }

    /// How many keys are written.
    pub fn rows(&self) -> u64 {
        match &self.first {
            First::Workload(_) => self.keys,
            First::Scenario(contents) => contents.iter().count() as u64,
        }
    }

    /// The content of the next key; none if it is absent.
    fn content(&mut self) -> Option<Put> {
        let key = self.next;
        self.next = (key + 1) % self.keys;
        let content = match &self.first {
            First::Workload(workload) => Some(workload.first_content(key)),
            First::Scenario(contents) => contents.of(key),
        };
        content.map(|content| Put { key, content })
    }
}

impl Source for Fill {
    type Request = Transaction;

    fn next(&mut self) -> &Transaction {
        let put = loop {
            if let Some(put) = self.content() {
                break put;
            }
        };
        self.transaction.node = self.homes.get(put.key as usize).copied();
        self.transaction.puts.clear();
        self.transaction.puts.push(put);
        &self.transaction
    }
}

/// Reads every key once, in order, as a check after a measurement, and adds up the numbers that
/// they hold. It starts again at the end.
#[derive(Clone, Debug)]
pub struct Sweep {
    keys: u64,
    next: u64,
    sum: i64,
    unread: u64,
    transaction: Transaction,
}

impl Sweep {
    /// Reads `0..keys`.
    pub fn new(keys: u64) -> Self {
        let transaction = Transaction {
            kind: TransactionKind::Audit,
            tells: Tells::Value,
            ..Transaction::empty()
        };
        Self { keys, next: 0, sum: 0, unread: 0, transaction }
    }

    /// The sum of the numbers, if no key was absent and none could not be read.
    pub fn sum(&self) -> Option<i64> {
        (self.unread == 0).then_some(self.sum)
    }
}

impl Source for Sweep {
    type Request = Transaction;

    fn next(&mut self) -> &Transaction {
        self.transaction.gets.clear();
        self.transaction.gets.push(self.next);
        self.next = (self.next + 1) % self.keys;
        &self.transaction
    }

    fn ended(&mut self, _: usize, answer: &Answer) {
        match answer {
            Answer::Told(Some(number)) => self.sum += number,
            _ => self.unread += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::Benchmark;

    fn drawn(workload: Workload, keys: u64, theta: f64, seed: u64) -> Vec<Transaction> {
        let mut generator = Generator::new(workload, keys, theta, seed).unwrap();
        (0..40_000).map(|_| generator.next().clone()).collect()
    }

    #[test]
    fn one_seed_gives_one_sequence() {
        for workload in Workload::ALL {
            assert_eq!(drawn(workload, 100, 0.6, 5), drawn(workload, 100, 0.6, 5));
            assert_ne!(drawn(workload, 100, 0.6, 5), drawn(workload, 100, 0.6, 6));
        }
    }

    #[test]
    fn retwis_has_the_shares_of_table_2() {
        const DRAWS: u32 = 200_000;
        let mut generator = Generator::new(Workload::Retwis, 10_000, 0.6, 1).unwrap();
        let mut shares: BTreeMap<TransactionKind, u32> = BTreeMap::new();
        for _ in 0..DRAWS {
            *shares.entry(generator.next().kind).or_default() += 1;
        }
        let expected = [
            (TransactionKind::AddUser, 5.0),
            (TransactionKind::Follow, 15.0),
            (TransactionKind::PostTweet, 30.0),
        ]
        .into_iter();
        for (kind, percent) in expected.chain([(TransactionKind::LoadTimeline, 50.0)]) {
            let got = f64::from(shares[&kind]) * 100.0 / f64::from(DRAWS);
            // Four standard deviations of the widest share.
            assert!((got - percent).abs() < 0.45, "{kind:?}: {got}%");
        }
        assert_eq!(shares.len(), 4);
    }

    #[test]
    fn retwis_has_the_sizes_of_table_2() {
        let mut timelines = BTreeMap::new();
        for transaction in drawn(Workload::Retwis, 10_000, 0.9, 2) {
            let sizes = (transaction.gets.len(), transaction.puts.len());
            match transaction.kind {
                TransactionKind::AddUser => assert_eq!(sizes, (1, 3)),
                TransactionKind::Follow => assert_eq!(sizes, (2, 2)),
                TransactionKind::PostTweet => assert_eq!(sizes, (3, 5)),
                TransactionKind::LoadTimeline => {
                    assert_eq!(sizes.1, 0);
                    *timelines.entry(sizes.0).or_insert(0_u32) += 1;
                }
                kind => panic!("{kind:?} is no part of Retwis"),
            }
            if !transaction.puts.is_empty() {
                let read = transaction.gets.iter();
                let mut written = transaction.puts.iter().map(|put| &put.key);
                assert!(read.eq(written.by_ref().take(sizes.0)), "what is read is written");
            }
        }
        assert!(timelines.keys().copied().eq(1..=10));
        // 2,000 of each are expected; five standard deviations are 220.
        assert!(timelines.values().all(|count| (1780..2220).contains(count)), "{timelines:?}");
    }

    #[test]
    fn keys_of_a_transaction_are_distinct_even_if_they_are_all_there_are() {
        for workload in Workload::ALL {
            for theta in [0.0, 1.2] {
                let keys = workload.keys_min();
                for transaction in drawn(workload, keys, theta, 3) {
                    let got: BTreeSet<u64> = transaction.gets.iter().copied().collect();
                    assert_eq!(got.len(), transaction.gets.len());
                    let put: BTreeSet<u64> = transaction.puts.iter().map(|put| put.key).collect();
                    assert_eq!(put.len(), transaction.puts.len());
                    assert!(got.union(&put).all(|key| *key < keys));
                }
            }
        }
    }

    #[test]
    fn ycsb_t_reads_and_writes_one_key_as_often_as_zipf_says() {
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for transaction in drawn(Workload::YcsbT, 1000, 0.9, 4) {
            assert_eq!(transaction.gets, [transaction.puts[0].key]);
            assert_eq!(transaction.puts.len(), 1);
            *counts.entry(transaction.gets[0]).or_default() += 1;
        }
        let (hottest, count) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
        assert_eq!(*hottest, Permutation::new(1000).apply(0));
        let percent = f64::from(*count) * 100.0 / 40_000.0;
        assert!((percent - 9.5).abs() < 0.5, "the hottest key has {percent}%");
    }

    #[test]
    fn mget_reads_three_keys() {
        for transaction in drawn(Workload::Mget, 50, 0.6, 5) {
            assert_eq!((transaction.gets.len(), transaction.puts.len()), (3, 0));
        }
    }

    #[test]
    fn a_transfer_takes_from_one_what_it_gives_to_another() {
        for transaction in drawn(Workload::Bank, 50, 0.6, 5) {
            let [
                Put { content: Content::Sum(taken), .. },
                Put { content: Content::Sum(given), .. },
            ] = transaction.puts[..]
            else {
                panic!("no transfer: {transaction:?}");
            };
            assert!(given > 0 && taken + given == 0);
        }
    }

    #[test]
    fn fill_and_sweep_meet_every_key_once_and_start_again() {
        let mut fill = Fill::new(Workload::Bank, 3);
        let filled: Vec<Put> = (0..4).map(|_| fill.next().puts[0]).collect();
        assert_eq!(filled.iter().map(|put| put.key).collect::<Vec<_>>(), [0, 1, 2, 0]);
        assert_eq!(filled[2].content, Content::Number(Workload::BALANCE));
        let mut sweep = Sweep::new(2);
        let swept: Vec<u64> = (0..3).map(|_| sweep.next().gets[0]).collect();
        assert_eq!(swept, [0, 1, 0]);
        for number in [7, -2] {
            sweep.ended(0, &Answer::Told(Some(number)));
        }
        assert_eq!(sweep.sum(), Some(5));
        sweep.ended(0, &Answer::Told(None));
        assert_eq!(sweep.sum(), None);
        let scenario = Scenario::new(Benchmark::Voter, 1, 200);
        let mut fill = Fill::of(&scenario, 1);
        assert_eq!(fill.rows(), 220);
        let filled: Vec<u64> = (0..221).map(|_| fill.next().puts[0].key).collect();
        assert_eq!((filled[39], filled[40], filled[219], filled[220]), (39, 40, 398, 0));
    }

    #[test]
    fn too_few_keys_are_refused() {
        for workload in Workload::ALL {
            let few = workload.keys_min() - 1;
            assert_eq!(Generator::new(workload, few, 0.6, 1).unwrap_err(), BadZipf::Ranks(few));
        }
    }
}
