//! Workloads with locality: those that Zeus is measured with (Zeus §8), whose transactions mostly
//! use keys that were used on the same node before.
//!
//! A *unit* is what moves: an account, a subscriber, a voter, a phone, a user, with all of its keys.
//! Each unit has a *home*, the node at which it was used last; the clients of a node use units whose
//! home it is, except for a share of transactions that is chosen ([`Scenario::remote`]) or follows
//! from geography. A unit that is used elsewhere has its home there from then on. What an engine
//! does about that, or where it keeps the keys, a workload doesn't know.
//!
//! Where the paper is silent, the public definitions decide: FaSST's for Smallbank and TATP,
//! BenchBase's for Voter.

mod audit;
mod handovers;
mod homes;
mod ledger;
mod smallbank;
mod tatp;
pub mod tpcc;
mod venmo;
mod voter;

use std::str::FromStr;
use std::time::Duration;

use quorate_machine::Rng;

use crate::{Answer, Content, Layout, Put, Source, Transaction, TransactionKind, Turn};

pub use audit::{Audit, AuditSweep, Verdict};
pub use handovers::{Geography, Territories};
pub use ledger::Ledger;

/// The workloads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Benchmark {
    /// Bank accounts; 85 of 100 transactions write.
    Smallbank,
    /// Telecom subscribers; 80 of 100 transactions read.
    Tatp,
    /// A contest: votes by phone for few contestants.
    Voter,
    /// Phones that are served by base stations, and change them as their owners move.
    Handovers,
    /// Payments among friends, synthetic: a graph with a planted partition.
    Venmo,
}

impl Benchmark {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Smallbank, Self::Tatp, Self::Voter, Self::Handovers, Self::Venmo];

    /// The name that users give.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smallbank => "smallbank",
            Self::Tatp => "tatp",
            Self::Voter => "voter",
            Self::Handovers => "handovers",
            Self::Venmo => "venmo",
        }
    }

    /// What its units are, in the plural.
    pub const fn units_name(self) -> &'static str {
        match self {
            Self::Smallbank => "accounts",
            Self::Tatp => "subscribers",
            Self::Voter => "voters",
            Self::Handovers => "phones",
            Self::Venmo => "users",
        }
    }

    /// How its keys and values are spelled.
    pub const fn layout(self) -> Layout {
        match self {
            Self::Smallbank => smallbank::LAYOUT,
            Self::Tatp => tatp::LAYOUT,
            Self::Voter => voter::LAYOUT,
            Self::Handovers => handovers::LAYOUT,
            Self::Venmo => venmo::LAYOUT,
        }
    }
}

impl FromStr for Benchmark {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|benchmark| benchmark.name() == name);
        found.ok_or_else(|| format!("there is no workload {name:?}"))
    }
}

/// When units move together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Moves {
    /// Never.
    #[default]
    Never,
    /// So long after the begin of the measurement.
    At(Vec<Duration>),
    /// After so many transactions of a generator.
    After(Vec<u64>),
}

impl Moves {
    /// How many moves are due.
    fn due(&self, elapsed: Duration, drawn: u64) -> usize {
        match self {
            Self::Never => 0,
            Self::At(times) => times.iter().filter(|at| **at <= elapsed).count(),
            Self::After(counts) => counts.iter().filter(|after| **after <= drawn).count(),
        }
    }
}

/// What a workload with locality follows from, together with a seed.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// The workload.
    pub benchmark: Benchmark,
    /// The nodes among which units are dealt out, from 1. Client *c* belongs to node `c % nodes`.
    pub nodes: u16,
    /// How many units there are.
    pub units: u64,
    /// The share of write transactions, 0 to 1, whose set has its home elsewhere. Of `venmo`, the
    /// share of payments that cross nodes: without it 0.7% on up to three nodes and 1.2% on more
    /// (Zeus §8). Of `handovers`, only 0 is possible: no step leaves its node; without it, geography
    /// decides. Elsewhere 0 is the default.
    pub remote: Option<f64>,
    /// `voter`: when voters move to the next node.
    pub moves: Moves,
    /// `voter`: how many voters move, all of whom vote for the same contestant; all if not given.
    pub movers: Option<u64>,
    /// `handovers`: the share of requests that are handovers, 0 to 1.
    pub handovers: f64,
    /// `handovers`: how stations are dealt out over nodes.
    pub territories: Territories,
    /// `venmo`: the share of users, 0 to 1, that find other friends in each second.
    pub rewired: f64,
}

/// A slice of the units, for a generator that runs beside others: those whose number leaves the
/// rest `index` when it is divided by `count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which slice.
    pub index: u64,
    /// How many there are.
    pub count: u64,
}

impl Part {
    /// All units.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// How many of so many units belong to it.
    fn units(self, all: u64) -> u64 {
        (all + self.count - 1 - self.index) / self.count
    }

    /// The number of its unit of this place.
    fn unit(self, place: u64) -> u64 {
        place * self.count + self.index
    }

    /// The place of one of its units.
    fn place(self, unit: u64) -> u64 {
        unit / self.count
    }
}

/// Most nodes that units are dealt out over.
const NODES_MAX: u16 = 255;
/// Most units.
const UNITS_MAX: u64 = 100_000_000;

impl Scenario {
    /// A scenario without moves, all-local except for what the workload itself brings.
    pub const fn new(benchmark: Benchmark, nodes: u16, units: u64) -> Self {
        Self {
            benchmark,
            nodes,
            units,
            remote: None,
            moves: Moves::Never,
            movers: None,
            handovers: handovers::SHARE_TYPICAL,
            territories: Territories::Blocks,
            rewired: 0.0,
        }
    }

    /// The fewest units for this many generators.
    pub const fn units_min(&self, parts: u64) -> u64 {
        let each = match self.benchmark {
            // Each node has a few hot accounts.
            Benchmark::Smallbank => 100 * self.nodes as u64,
            Benchmark::Tatp => 10 * self.nodes as u64,
            Benchmark::Voter => 10 * voter::CONTESTANTS,
            Benchmark::Handovers => 10 * handovers::STATIONS,
            Benchmark::Venmo => 2 * venmo::COMMUNITY * self.nodes as u64,
        };
        each * parts
    }

    /// Checks that the scenario makes sense with so many generators.
    ///
    /// # Errors
    /// A sentence about what doesn't, with its remedy.
    pub fn check(&self, parts: u64) -> Result<(), String> {
        let (name, units) = (self.benchmark.name(), self.benchmark.units_name());
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return Err(format!("there are 1 to {NODES_MAX} nodes, not {}", self.nodes));
        }
        let (least, most) = (self.units_min(parts), UNITS_MAX);
        if !(least..=most).contains(&self.units) {
            return Err(format!(
                "{name} has between {least} and {most} {units}, not {}",
                self.units
            ));
        }
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if let Some(remote) = self.remote {
            if !is_share(remote) {
                return Err(format!("a share lies between 0 and 100%, not {}%", remote * 100.0));
            }
            if self.benchmark == Benchmark::Handovers && remote > 0.0 {
                return Err("of handovers, geography decides how many are remote; 0 keeps every \
                            phone at its node"
                    .to_owned());
            }
            if self.nodes == 1 && remote > 0.0 {
                return Err(
                    "on a single node nothing is remote; choose 0, or more nodes".to_owned()
                );
            }
        }
        if self.moves != Moves::Never && self.benchmark != Benchmark::Voter {
            return Err(format!("nothing moves together in {name}; voter has moves"));
        }
        if self.movers.is_some() && self.moves == Moves::Never {
            return Err("voters are to move, but no time is said".to_owned());
        }
        if self.movers.is_some_and(|movers| movers == 0 || movers >= self.units) {
            return Err(format!("between 1 and {} voters can move", self.units - 1));
        }
        if !is_share(self.handovers) || !is_share(self.rewired) {
            return Err("a share lies between 0 and 100%".to_owned());
        }
        Ok(())
    }

    /// How its keys and values are spelled.
    pub const fn layout(&self) -> Layout {
        self.benchmark.layout()
    }

    /// One more than the largest number of a key.
    pub fn keys(&self) -> u64 {
        self.units * self.layout().slots()
    }

    /// The contents of its keys before the run.
    pub fn first_contents(&self) -> FirstContents {
        let loads = match self.benchmark {
            Benchmark::Handovers => handovers::first_loads(self.units),
            _ => Vec::new(),
        };
        FirstContents { benchmark: self.benchmark, keys: self.keys(), loads }
    }

    /// The first home of each key, with units in so many parts.
    pub(crate) fn first_homes(&self, parts: u64) -> Vec<u16> {
        let part = |index| LocalGenerator::new(self, Part { index, count: parts }, 0);
        let generators: Vec<LocalGenerator> = (0..parts).map(part).collect();
        let slots = self.layout().slots();
        let home = |key| generators[(key / slots % parts) as usize].home(key);
        (0..self.keys()).map(home).collect()
    }

    /// The share of write transactions that are remote.
    fn remote_share(&self) -> f64 {
        match self.benchmark {
            Benchmark::Venmo => self.remote.unwrap_or(venmo::cut(self.nodes)),
            _ => self.remote.unwrap_or(0.0),
        }
    }
}

/// The contents of a scenario's keys before the run.
#[derive(Clone, Debug)]
pub struct FirstContents {
    benchmark: Benchmark,
    keys: u64,
    /// Handovers: those of stations.
    loads: Vec<i64>,
}

impl FirstContents {
    /// The content of a key; none if it is never used.
    pub fn of(&self, key: u64) -> Option<Content> {
        match self.benchmark {
            Benchmark::Smallbank => Some(smallbank::first_content()),
            Benchmark::Tatp => tatp::first_content(key),
            Benchmark::Voter => voter::first_content(key),
            Benchmark::Handovers => handovers::first_content(&self.loads, key),
            Benchmark::Venmo => Some(venmo::first_content()),
        }
    }

    /// Every key that has a content, with it.
    pub fn iter(&self) -> impl Iterator<Item = Put> {
        (0..self.keys).filter_map(|key| Some(Put { key, content: self.of(key)? }))
    }
}

/// What a generator has drawn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// Transactions.
    pub transactions: u64,
    /// Those that may write.
    pub writes: u64,
    /// Those that use a unit whose home was another node.
    pub remote: u64,
    /// Handovers: steps from one station to another.
    pub steps: u64,
    /// Handovers: those that led to a station of another node.
    pub crossings: u64,
}

impl Drawn {
    /// Adds what another one has drawn.
    pub fn absorb(&mut self, other: &Self) {
        self.transactions += other.transactions;
        self.writes += other.writes;
        self.remote += other.remote;
        self.steps += other.steps;
        self.crossings += other.crossings;
    }

    /// The share of write transactions that were remote.
    pub fn remote_share(&self) -> f64 {
        self.remote as f64 / self.writes.max(1) as f64
    }
}

/// One workload's transactions.
trait Model: Send {
    /// Draws the next transaction into one that is empty.
    fn draw(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction);

    /// The measurement begins: units move at these times from now on.
    fn start(&mut self, moves: &Moves) {
        let _ = moves;
    }

    /// A transaction of this client ended.
    fn ended(&mut self, client: usize, answer: &Answer);

    /// The node that a key's unit has its home at: a unit of this part, or a key that parts share.
    fn home(&self, key: u64) -> u16;

    /// The sums that the transactions which ended have left.
    fn ledger(&self) -> Ledger;
}

/// What a model draws with.
struct Draw<'a> {
    turn: Turn,
    /// The node of the client.
    here: u16,
    rng: &'a mut Rng,
    drawn: &'a mut Drawn,
}

impl Draw<'_> {
    /// True with this probability.
    fn chance(&mut self, share: f64) -> bool {
        chance(self.rng, share)
    }

    /// Another node than `here`, each equally often; there are several.
    fn elsewhere(&mut self, nodes: u16) -> u16 {
        let shift = 1 + self.rng.below(u64::from(nodes) - 1) as u16;
        (self.here + shift) % nodes
    }

    /// One of these, as often as the percentage beside it says.
    fn pick<T: Copy>(&mut self, shares: &[(u64, T)]) -> T {
        let mut percent = self.rng.below(100);
        for &(share, kind) in shares {
            if percent < share {
                return kind;
            }
            percent -= share;
        }
        unreachable!("the percentages add up to 100");
    }
}

fn chance(rng: &mut Rng, share: f64) -> bool {
    const STEPS: u64 = 1 << 53;
    ((rng.next_u64() >> 11) as f64) < share * STEPS as f64
}

/// Draws the transactions of a scenario. The same scenario, part, seed and turns give the same
/// transactions, as long as they end in the same way.
pub struct LocalGenerator {
    model: Box<dyn Model>,
    nodes: u16,
    rng: Rng,
    drawn: Drawn,
    transaction: Transaction,
}

impl LocalGenerator {
    /// Transactions over a part of a scenario's units.
    ///
    /// # Panics
    /// If [`Scenario::check`] refuses it.
    pub fn new(scenario: &Scenario, part: Part, seed: u64) -> Self {
        scenario.check(part.count).expect("the scenario was checked");
        let mut rng = Rng::new(seed);
        let model: Box<dyn Model> = match scenario.benchmark {
            Benchmark::Smallbank => Box::new(smallbank::Smallbank::new(scenario, part)),
            Benchmark::Tatp => Box::new(tatp::Tatp::new(scenario, part)),
            Benchmark::Voter => Box::new(voter::Voter::new(scenario, part)),
            Benchmark::Handovers => Box::new(handovers::Handovers::new(scenario, part, rng.fork())),
            Benchmark::Venmo => Box::new(venmo::Venmo::new(scenario, part)),
        };
        Self {
            model,
            nodes: scenario.nodes,
            rng,
            drawn: Drawn::default(),
            transaction: Transaction::empty(),
        }
    }

    /// What was drawn since the last [`LocalGenerator::start`], or at all.
    pub fn drawn(&self) -> Drawn {
        self.drawn
    }

    /// The measurement begins after a warm-up: counts anew, and units move at these times from now
    /// on. Homes and ledger stay.
    pub fn start(&mut self, moves: &Moves) {
        self.drawn = Drawn::default();
        self.model.start(moves);
    }

    /// The node that a key's unit has its home at.
    fn home(&self, key: u64) -> u16 {
        self.model.home(key)
    }

    /// What came of the transactions that ended.
    pub fn ledger(&self) -> Ledger {
        self.model.ledger()
    }
}

impl Source for LocalGenerator {
    type Request = Transaction;

    fn next(&mut self) -> &Transaction {
        self.next_at(Turn::START)
    }

    fn next_at(&mut self, turn: Turn) -> &Transaction {
        let here = (turn.client % usize::from(self.nodes)) as u16;
        let (rng, drawn) = (&mut self.rng, &mut self.drawn);
        self.transaction.restart(TransactionKind::Fill);
        self.model.draw(&mut Draw { turn, here, rng, drawn }, &mut self.transaction);
        self.drawn.transactions += 1;
        &self.transaction
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        self.model.ended(client, answer);
    }
}

#[cfg(test)]
mod tests;
