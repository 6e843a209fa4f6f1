//! What a benchmark runs, whichever kind of workload it is: its keys, their first contents, and the
//! generators of its transactions.

use anyhow::{Context, anyhow, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use quorate_workloads::redis::Framing;
use quorate_workloads::{
    self as workloads, Answer, Audit, AuditSweep, Benchmark, Fill, Layout, LocalGenerator, Moves,
    Part, Scenario, Source, Transaction, Turn, Workload, Zipf,
};

use super::Options;
use super::local::Local;

/// A workload that can be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// One that draws keys.
    Keys(Workload),
    /// One with locality, whose units belong to nodes.
    Local(Benchmark),
}

impl Choice {
    /// Takes the name of one.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        let keys = Workload::ALL.into_iter().map(Workload::name);
        let names = keys.chain(Benchmark::ALL.into_iter().map(Benchmark::name));
        PossibleValuesParser::new(names).try_map(|name| match name.parse() {
            Ok(workload) => Ok(Self::Keys(workload)),
            Err(_) => name.parse().map(Self::Local),
        })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Keys(workload) => workload.name(),
            Self::Local(benchmark) => benchmark.name(),
        }
    }

    /// The skew of its keys, if it draws keys.
    pub(super) fn skew(self, zipf: f64) -> Option<f64> {
        matches!(self, Self::Keys(_)).then_some(zipf)
    }

    /// Whether one transaction may use several keys.
    pub(super) const fn crosses_keys(self) -> bool {
        !matches!(self, Self::Keys(Workload::YcsbT | Workload::Multi))
    }
}

/// A workload with its options.
pub(super) struct Load<'a> {
    options: &'a Options,
    scenario: Option<Scenario>,
    /// How many generators run beside each other.
    parts: u64,
}

impl<'a> Load<'a> {
    /// The workload that the options want, on so many nodes.
    ///
    /// # Errors
    /// A sentence about an option that makes no sense.
    pub(super) fn new(options: &'a Options, nodes: u16, parts: u64) -> anyhow::Result<Self> {
        let scenario = match options.workload {
            Choice::Local(benchmark) => {
                let scenario = options.local.scenario(benchmark, nodes, options.keys)?;
                let hint = || format!("{} can't be run like this", benchmark.name());
                scenario.check(parts).map_err(|problem| anyhow!(problem)).with_context(hint)?;
                Some(scenario)
            }
            Choice::Keys(workload) => {
                options.local.refuse(workload.name())?;
                None
            }
        };
        let load = Self { options, scenario, parts };
        // Bad arguments show before anything is started.
        load.generator(0, options.seed)?;
        Ok(load)
    }

    pub(super) fn layout(&self) -> Layout {
        match self.options.workload {
            Choice::Keys(workload) => workload.layout(),
            Choice::Local(benchmark) => benchmark.layout(),
        }
    }

    /// How transactions are sent.
    pub(super) fn framing(&self) -> Framing {
        self.options.local.framing()
    }

    /// When units move.
    pub(super) fn moves(&self) -> Moves {
        self.scenario.as_ref().map_or(Moves::Never, |scenario| scenario.moves.clone())
    }

    /// Writes every key once.
    pub(super) fn fill(&self) -> Fill {
        match (self.options.workload, &self.scenario) {
            (_, Some(scenario)) => Fill::of(scenario, self.parts),
            (Choice::Keys(workload), None) => Fill::new(workload, self.options.keys),
            (Choice::Local(_), None) => unreachable!("a workload with locality has a scenario"),
        }
    }

    /// The generator of one of the parts.
    pub(super) fn generator(&self, index: u64, seed: u64) -> anyhow::Result<Generator> {
        let keys = self.options.keys;
        match (self.options.workload, &self.scenario) {
            (_, Some(scenario)) => {
                let part = Part { index, count: self.parts };
                Ok(Generator::Local(LocalGenerator::new(scenario, part, seed)))
            }
            (Choice::Keys(workload), None) => {
                ensure!(
                    keys >= workload.keys_min(),
                    "{} needs at least {} keys for its largest transaction; raise --keys",
                    workload.name(),
                    workload.keys_min()
                );
                workloads::Generator::new(workload, keys, self.options.zipf, seed)
                    .map(|generator| Generator::Keys(Box::new(generator)))
                    .with_context(|| format!("choose --zipf between 0 and {}", Zipf::THETA_MAX))
            }
            (Choice::Local(_), None) => unreachable!("a workload with locality has a scenario"),
        }
    }

    /// Reads every key of a workload with locality for its audit; and how many keys those are.
    pub(super) fn audit(&self) -> Option<(AuditSweep, u64)> {
        let scenario = self.scenario.as_ref()?;
        let audit = Audit::new(scenario, self.framing() == Framing::Watch);
        let keys = audit.keys().count() as u64;
        Some((AuditSweep::new(audit), keys))
    }

    /// What a run of a workload with locality came to; without an audit if a key could not be read.
    pub(super) fn local(
        &self,
        generators: &[LocalGenerator],
        audit: Option<Audit>,
    ) -> Option<Local> {
        let scenario = self.scenario.as_ref()?;
        Some(Local::new(scenario, self.framing(), generators, audit))
    }
}

/// Draws the transactions of a run.
pub(super) enum Generator {
    /// Of a workload that draws keys.
    Keys(Box<workloads::Generator>),
    /// Of one with locality.
    Local(LocalGenerator),
}

impl Source for Generator {
    type Request = Transaction;

    fn next(&mut self) -> &Transaction {
        match self {
            Self::Keys(generator) => generator.next(),
            Self::Local(generator) => generator.next(),
        }
    }

    fn next_at(&mut self, turn: Turn) -> &Transaction {
        match self {
            Self::Keys(generator) => generator.next_at(turn),
            Self::Local(generator) => generator.next_at(turn),
        }
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        match self {
            Self::Keys(generator) => generator.ended(client, answer),
            Self::Local(generator) => generator.ended(client, answer),
        }
    }
}
