//! Smallbank (Cahill et al. 2009), with the numbers of FaSST's public implementation: the mix, the
//! hot accounts and the amounts. Amounts are in cents.
//!
//! | transaction | share | reads | writes |
//! | --- | ---: | --- | --- |
//! | Amalgamate | 15% | both accounts of A, checking of B | the same |
//! | Balance | 15% | both accounts | |
//! | Deposit | 15% | | checking |
//! | SendPayment | 25% | checking of A and B | the same |
//! | TransactSavings | 15% | | savings |
//! | WriteCheck | 15% | both accounts | checking |
//!
//! The paper counts 30% of transactions with two objects and reads of three (Zeus §8.2), which fits
//! if a row that maps a name to an account is counted in each; neither FaSST's tables nor these have
//! such rows.

use super::homes::Homes;
use super::ledger::{Book, Change};
use super::{Draw, Ledger, Model, Part, Scenario};
use crate::layout::Slot;
use crate::{Answer, Content, Layout, Rule, Transaction, TransactionKind};

pub(super) const LAYOUT: Layout = Layout::new(&[
    Slot::tagged("{account:", "}:savings", 8),
    Slot::tagged("{account:", "}:checking", 8),
]);

const MIX: [(u64, TransactionKind); 6] = [
    (15, TransactionKind::Amalgamate),
    (15, TransactionKind::Balance),
    (15, TransactionKind::Deposit),
    (25, TransactionKind::SendPayment),
    (15, TransactionKind::TransactSavings),
    (15, TransactionKind::WriteCheck),
];

/// The share of accounts that are hot, and that of transactions that use hot accounts only.
const HOT_ACCOUNTS_PERCENT: u64 = 4;
const HOT_TRANSACTIONS: f64 = 0.9;

const FIRST_BALANCE: i64 = 1_000_000;
const DEPOSITED: i64 = 130;
const SENT: i64 = 500;
const SAVED: i64 = 2_020;
const CHECKED: i64 = 500;
const PENALTY: i64 = 100;
/// What Amalgamate takes from each account when it is sent whole, and so can't depend on what the
/// accounts hold.
const AMALGAMATED: i64 = 100;

pub(super) const fn first_content() -> Content {
    Content::Number(FIRST_BALANCE)
}

/// What all accounts hold together before the run.
pub(super) const fn first_sum(accounts: u64) -> i64 {
    2 * FIRST_BALANCE * accounts as i64
}

pub(super) struct Smallbank {
    part: Part,
    nodes: u16,
    remote: f64,
    accounts: u64,
    hot: u64,
    homes: Homes,
    book: Book,
}

impl Smallbank {
    pub(super) fn new(scenario: &Scenario, part: Part) -> Self {
        let accounts = part.units(scenario.units);
        Self {
            part,
            nodes: scenario.nodes,
            remote: scenario.remote_share(),
            accounts,
            hot: accounts * HOT_ACCOUNTS_PERCENT / 100,
            homes: Homes::new(accounts, scenario.nodes),
            book: Book::default(),
        }
    }

    fn account(&self, draw: &mut Draw<'_>, node: u16, is_hot: bool, except: Option<u64>) -> u64 {
        let (from, until) = if is_hot { (0, self.hot) } else { (self.hot, self.accounts) };
        let fits = |account| Some(account) != except;
        let account = self.homes.draw(node, draw.rng, |rng| from + rng.below(until - from), fits);
        account.expect("there are several accounts")
    }
}

impl Model for Smallbank {
    fn draw(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) {
        let kind = draw.pick(&MIX);
        let writes = kind != TransactionKind::Balance;
        let is_remote = writes && draw.chance(self.remote);
        let node = if is_remote { draw.elsewhere(self.nodes) } else { draw.here };
        let is_hot = draw.chance(HOT_TRANSACTIONS);
        let from = self.account(draw, node, is_hot, None);
        let has_two = matches!(kind, TransactionKind::Amalgamate | TransactionKind::SendPayment);
        let to = has_two.then(|| self.account(draw, node, is_hot, Some(from)));
        draw.drawn.writes += u64::from(writes);
        draw.drawn.remote += u64::from(is_remote);
        if is_remote {
            for account in [Some(from), to].into_iter().flatten() {
                self.homes.set(account, draw.here);
            }
        }
        let savings = |account| self.part.unit(account) * 2;
        let checking = |account| self.part.unit(account) * 2 + 1;
        transaction.kind = kind;
        let mut least = None;
        match (kind, to) {
            (TransactionKind::Amalgamate, Some(to)) => {
                transaction.gets.extend([savings(from), checking(from), checking(to)]);
                transaction.put(savings(from), Content::Sum(-AMALGAMATED));
                transaction.put(checking(from), Content::Sum(-AMALGAMATED));
                transaction.put(checking(to), Content::Sum(2 * AMALGAMATED));
                transaction.rule = Rule::Everything;
            }
            (TransactionKind::SendPayment, Some(to)) => {
                transaction.gets.extend([checking(from), checking(to)]);
                transaction.put(checking(from), Content::Sum(-SENT));
                transaction.put(checking(to), Content::Sum(SENT));
                transaction.rule = Rule::AtLeast(SENT);
            }
            (TransactionKind::Balance, _) => {
                transaction.gets.extend([savings(from), checking(from)]);
            }
            (TransactionKind::Deposit, _) => {
                transaction.put(checking(from), Content::Sum(DEPOSITED));
            }
            (TransactionKind::TransactSavings, _) => {
                transaction.put(savings(from), Content::Sum(SAVED));
            }
            _ => {
                transaction.gets.extend([savings(from), checking(from)]);
                transaction.put(checking(from), Content::Sum(-CHECKED));
                transaction.rule = Rule::Penalty(CHECKED, PENALTY);
                least = Some(-CHECKED - PENALTY);
            }
        }
        let added = Transaction::added(&transaction.puts);
        let bounds = (least.unwrap_or(added), added);
        self.book.begin(draw.turn.client, Change { bounds, ..Change::exactly(added) });
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        self.book.end(client, answer);
    }

    fn home(&self, key: u64) -> u16 {
        self.homes.of(self.part.place(key / LAYOUT.slots()))
    }

    fn ledger(&self) -> Ledger {
        self.book.ledger()
    }
}
