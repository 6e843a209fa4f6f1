//! What must hold of a workload's keys after a run, whatever the engine: whether transactions were
//! atomic, isolated, and counted as their clients were told.
//!
//! - Smallbank: all accounts hold together what they held at first, and what was paid in less what
//!   was taken out.
//! - TATP: a subscriber has its rows, a forwarding has its facility, a row shows its subscriber;
//!   there are as many forwardings as at first, and those inserted less those deleted.
//! - Voter: contestants have together as many votes as voters have cast and clients were told; no
//!   voter has too many, if the store was asked.
//! - Handovers: the load of each station is that of the phones whose context names it.
//! - Venmo-like: the users hold together what they held at first.
//!
//! A transaction whose end nobody knows makes an interval of a sum.

use std::collections::VecDeque;

use super::{Benchmark, Ledger, Scenario, handovers, smallbank, tatp, venmo, voter};
use crate::{Answer, Source, Tells, Transaction, TransactionKind, Turn};

/// What an audit found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What was added up, in the plural.
    pub what: &'static str,
    /// The least that the sum may be.
    pub least: i64,
    /// The most.
    pub most: i64,
    /// What it is.
    pub found: i64,
    /// Rows and units that are not as they must be.
    pub violations: u64,
    /// The first of them, in a sentence.
    pub first_violation: Option<String>,
}

impl Verdict {
    /// Whether everything is as it must be.
    pub fn holds(&self) -> bool {
        self.violations == 0 && (self.least..=self.most).contains(&self.found)
    }
}

/// An audit under way: it is told every key's number ([`Audit::read`]), and judges at the end.
#[derive(Clone, Debug)]
pub struct Audit {
    scenario: Scenario,
    /// Whether the store was asked to keep the limit of votes.
    is_limited: bool,
    sum: i64,
    /// What was expected of the sum before the run.
    first: i64,
    /// Voter: votes for contestants. Handovers: loads less those of phones, by station.
    balances: Vec<i64>,
    violations: u64,
    first_violation: Option<String>,
}

impl Audit {
    /// An audit that was told nothing. `reads_first`: clients kept the rules of transactions
    /// ([`crate::Rule`]).
    pub fn new(scenario: &Scenario, reads_first: bool) -> Self {
        let first = match scenario.benchmark {
            Benchmark::Smallbank => smallbank::first_sum(scenario.units),
            Benchmark::Venmo => venmo::first_sum(scenario.units),
            Benchmark::Tatp => {
                let forwardings = |unit| i64::from(tatp::Rows::of(unit).forwardings());
                (0..scenario.units).map(forwardings).sum()
            }
            Benchmark::Voter | Benchmark::Handovers => 0,
        };
        let balances = match scenario.benchmark {
            Benchmark::Voter => 1,
            Benchmark::Handovers => handovers::STATIONS as usize,
            _ => 0,
        };
        Self {
            scenario: scenario.clone(),
            is_limited: reads_first,
            sum: 0,
            first,
            balances: vec![0; balances],
            violations: 0,
            first_violation: None,
        }
    }

    /// Whether the key is one to be read.
    fn has_row(&self, key: u64) -> bool {
        match self.scenario.benchmark {
            Benchmark::Smallbank | Benchmark::Tatp | Benchmark::Venmo => true,
            Benchmark::Voter => !voter::is_contestant(key) || key / 2 < voter::CONTESTANTS,
            Benchmark::Handovers => !handovers::is_station(key) || key / 2 < handovers::STATIONS,
        }
    }

    /// The keys to be read.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        (0..self.scenario.keys()).filter(|key| self.has_row(*key))
    }

    /// Takes the number that a key shows, or that it is absent.
    pub fn read(&mut self, key: u64, found: Option<i64>) {
        match (self.scenario.benchmark, found) {
            (Benchmark::Tatp, found) => self.read_tatp(key, found),
            (_, None) => self.violation(key, "is absent"),
            (Benchmark::Smallbank | Benchmark::Venmo, Some(balance)) => self.sum += balance,
            (Benchmark::Voter, Some(votes)) if voter::is_contestant(key) => {
                self.balances[0] += votes;
            }
            (Benchmark::Voter, Some(votes)) => {
                self.sum += votes;
                if self.is_limited && votes > voter::VOTES_MAX {
                    self.violation(key, &format!("has cast {votes} of {} votes", voter::VOTES_MAX));
                }
            }
            (Benchmark::Handovers, Some(load)) if handovers::is_station(key) => {
                self.balances[(key / 2) as usize] += load;
            }
            (Benchmark::Handovers, Some(number)) => match handovers::Context::shown(number) {
                Some(context) => {
                    self.sum += 1;
                    self.balances[context.station as usize] -= context.weight();
                }
                None => self.violation(key, "is at no station"),
            },
        }
    }

    fn read_tatp(&mut self, key: u64, found: Option<i64>) {
        let slots = tatp::LAYOUT.slots();
        let (subscriber, slot) = (key / slots, key % slots);
        let (may_be, must_be) = tatp::Rows::of(subscriber).allows(slot);
        match found {
            None if must_be => self.violation(key, "is absent"),
            Some(_) if !may_be => self.violation(key, "has no facility or was never written"),
            Some(number) if !tatp::shows(subscriber, number) => {
                self.violation(key, "shows another subscriber");
            }
            Some(_) if tatp::is_forwarding(slot) => self.sum += 1,
            _ => {}
        }
    }

    fn violation(&mut self, key: u64, what: &str) {
        let mut name = Vec::new();
        self.scenario.layout().key(key, &mut name);
        self.note(&format!("{} {what}", String::from_utf8_lossy(&name)));
    }

    fn note(&mut self, sentence: &str) {
        self.violations += 1;
        self.first_violation.get_or_insert_with(|| sentence.to_owned());
    }

    /// Every key was read; `ledger` is what clients know of all transactions.
    pub fn judge(mut self, ledger: &Ledger) -> Verdict {
        let (what, mut least, mut most) = match self.scenario.benchmark {
            Benchmark::Smallbank => ("cents", ledger.least, ledger.most),
            Benchmark::Tatp => ("forwardings", ledger.least, ledger.most),
            Benchmark::Voter => ("votes", ledger.least, ledger.most),
            Benchmark::Venmo => ("units of money", ledger.least, ledger.most),
            Benchmark::Handovers => {
                let phones = self.scenario.units as i64;
                ("phones", phones, phones)
            }
        };
        least += self.first;
        most += self.first;
        match self.scenario.benchmark {
            Benchmark::Voter if self.balances[0] != self.sum => {
                let (contestants, voters) = (self.balances[0], self.sum);
                self.note(&format!(
                    "contestants have {contestants} votes, and voters have cast {voters}"
                ));
            }
            Benchmark::Handovers => {
                for (station, balance) in std::mem::take(&mut self.balances).into_iter().enumerate()
                {
                    if balance != 0 {
                        self.note(&format!(
                            "the load of station {station} differs by {balance} from that of the \
                             phones there"
                        ));
                    }
                }
            }
            _ => {}
        }
        let Self { sum: found, violations, first_violation, .. } = self;
        Verdict { what, least, most, found, violations, first_violation }
    }
}

/// Reads every key for an audit, each in a request of its own.
#[derive(Debug)]
pub struct AuditSweep {
    audit: Audit,
    next: u64,
    /// By client, the keys whose answers are on their way.
    open: Vec<VecDeque<u64>>,
    unread: u64,
    transaction: Transaction,
}

impl AuditSweep {
    /// A sweep for this audit.
    pub fn new(audit: Audit) -> Self {
        let mut transaction = Transaction::empty();
        transaction.restart(TransactionKind::Audit);
        transaction.tells = Tells::Value;
        Self { audit, next: 0, open: Vec::new(), unread: 0, transaction }
    }

    /// The audit, if every key could be read.
    pub fn finish(self) -> Option<Audit> {
        (self.unread == 0).then_some(self.audit)
    }
}

impl Source for AuditSweep {
    type Request = Transaction;

    fn next(&mut self) -> &Transaction {
        self.next_at(Turn::START)
    }

    fn next_at(&mut self, turn: Turn) -> &Transaction {
        let keys = self.audit.scenario.keys();
        while !self.audit.has_row(self.next) {
            self.next = (self.next + 1) % keys;
        }
        if self.open.len() <= turn.client {
            self.open.resize_with(turn.client + 1, VecDeque::new);
        }
        self.open[turn.client].push_back(self.next);
        self.transaction.gets.clear();
        self.transaction.gets.push(self.next);
        self.next = (self.next + 1) % keys;
        &self.transaction
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        let open = self.open.get_mut(client).and_then(VecDeque::pop_front);
        let key = open.expect("a read ends after it began");
        match answer {
            Answer::Told(found) => self.audit.read(key, *found),
            _ => self.unread += 1,
        }
    }
}
