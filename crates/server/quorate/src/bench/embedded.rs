//! `quorate bench --embedded`: what a transaction costs the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use indicatif::ProgressBar;
use quorate_engine::{OptionValue, Unfit};
use quorate_node::EngineConfig;
use quorate_types::limits;
use quorate_workloads::redis::Framing;
use quorate_workloads::{
    LocalGenerator, Moves, Plan, Report, Source, Sweep, Transaction, Workload, run as drive,
};
use serde::Serialize;

use super::cluster::{Cluster, Nobody, Shape};
use super::load::{Choice, Generator, Load};
use super::local::Local;
use super::{Balance, Latency};
use crate::engine_arg;
use crate::log::say;

/// Clients of each lane that write the first values.
const FILL_CLIENTS: usize = 256;
/// Transactions with which the load generator's own cost is measured.
const OWN_COST_TRANSACTIONS: u64 = 500_000;
/// The most clients.
const CLIENTS_MAX: i64 = 100_000;

#[derive(Args, Debug)]
pub(super) struct EmbeddedOptions {
    /// Measure a cluster inside this process, without sockets: what the engine itself costs
    #[arg(long, conflicts_with_all = ["targets", "connections", "pipeline", "database", "password"])]
    pub(super) embedded: bool,
    /// Its engine; without it, the first of these
    #[arg(long, requires = "embedded", value_parser = engine_arg::any())]
    engine: Option<EngineConfig>,
    /// What transactions may rely on, strict or serializable, if the engine leaves a choice
    #[arg(long, requires = "embedded")]
    isolation: Option<String>,
    /// Its nodes
    #[arg(long, default_value_t = 3, requires = "embedded",
          value_parser = clap::value_parser!(u16).range(1..=limits::MEMBERS_MAX as i64))]
    nodes: u16,
    /// How many replicas a key has, if the engine has partitions: there is one for each node, kept by
    /// that node and those after it. Without it, every node has every key
    #[arg(long, requires = "embedded", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=limits::MEMBERS_MAX as i64))]
    replicas: Option<u16>,
    /// How many of the nodes clients ask, the first ones. Without it, all
    #[arg(long, requires = "embedded", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=limits::MEMBERS_MAX as i64))]
    ask: Option<u16>,
    /// Its lanes; each has a thread, which runs that lane of every node
    #[arg(long, default_value_t = 1, requires = "embedded",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::LANES_MAX)))]
    lanes: u16,
    /// Clients of each lane, dealt out over the nodes; each has one transaction under way
    #[arg(long, default_value_t = 64, requires = "embedded",
          value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX))]
    clients: u32,
}

/// Fills a new cluster, measures and prints the result. An error if nothing was committed, or if
/// money was lost.
pub(super) fn run(options: &super::Options) -> anyhow::Result<()> {
    let own = &options.embedded;
    let load = Load::new(options, own.nodes, own.lanes.into())?;
    let bench = Bench { options, own, load };
    let config = bench.engine()?;
    bench.check(&config)?;
    let mut cluster = Cluster::start(&config, own.nodes, own.lanes, own.replicas)?;
    bench.fill(&mut cluster)?;
    let mut generators = bench.warm_up(&mut cluster)?;
    let counted = cluster.counters();
    let begin = quorate_runtime::cpu_time();
    let report = bench.run(&mut cluster, options.seconds, &mut generators)?;
    let cpu = quorate_runtime::cpu_time().saturating_sub(begin);
    let counters: Vec<(&'static str, u64)> = cluster
        .counters()
        .into_iter()
        .zip(counted)
        .map(|((name, after), (_, before))| (name, after - before))
        .filter(|(_, count)| *count > 0)
        .collect();
    let balance = match options.workload {
        Choice::Keys(Workload::Bank) => Some(bench.audit_bank(&mut cluster)?),
        _ => None,
    };
    let local = bench.audit(&mut cluster, generators)?;
    let generator = bench.own_cost()?;
    let processor = Processor { cpu, generator };
    let summary = Summary::new(&bench, &config, &report, processor, counters, balance, local);
    if options.json {
        say(&serde_json::to_string(&summary)?);
    } else {
        summary.lines().iter().for_each(|line| say(line));
    }
    super::judge_balance(summary.balance)?;
    summary.local.as_ref().map_or(Ok(()), Local::judge)?;
    let failure = report.first_failure.as_deref().unwrap_or("every transaction conflicted");
    ensure!(summary.committed > 0, "nothing was committed: {failure}");
    Ok(())
}

struct Bench<'a> {
    options: &'a super::Options,
    own: &'a EmbeddedOptions,
    load: Load<'a>,
}

/// Processor time of a measurement, and of the load generator for each transaction of it.
struct Processor {
    cpu: Duration,
    generator: f64,
}

impl Bench<'_> {
    /// The engine as the options want it.
    fn engine(&self) -> anyhow::Result<EngineConfig> {
        let chosen = self.own.engine.clone();
        let mut engine = chosen.unwrap_or_else(|| EngineConfig::first_with(|can| can.transactions));
        if let Some(isolation) = &self.own.isolation {
            engine.set("isolation", OptionValue::Word(isolation)).map_err(
                |Unfit { problem, remedy }| anyhow!("--isolation {isolation}: {problem}; {remedy}"),
            )?;
        }
        Ok(engine)
    }

    /// Checks that the engine takes the workload.
    fn check(&self, engine: &EngineConfig) -> anyhow::Result<()> {
        let (can, name) = (engine.capabilities(), engine.name());
        ensure!(
            can.transactions || !self.options.workload.crosses_keys(),
            "{} uses several keys at once, which {name} refuses; choose --engine {}",
            self.options.workload.name(),
            EngineConfig::names_with(|can| can.transactions)
        );
        ensure!(
            can.transactions || self.own.lanes == 1,
            "a key has one lane with {name}, and clients here don't ask which; use --lanes 1"
        );
        ensure!(
            can.replicated || self.own.nodes == 1,
            "{name} keeps one copy, on a cluster of one node; use --nodes 1"
        );
        ensure!(
            can.partitions || self.own.replicas.is_none(),
            "{name} has no partitions, so that --replicas can't be chosen; that is for {}",
            EngineConfig::names_with(|can| can.partitions)
        );
        ensure!(
            self.own.ask.is_none_or(|ask| ask <= self.own.nodes),
            "clients can ask at most the {} nodes that there are; lower --ask",
            self.own.nodes
        );
        ensure!(
            self.own.ask.is_none() || matches!(self.options.workload, Choice::Keys(_)),
            "clients of {} ask the nodes at which its units live; leave out --ask",
            self.options.workload.name()
        );
        ensure!(
            self.own.replicas.is_none_or(|replicas| replicas <= self.own.nodes),
            "a key has at most one replica on each of the {} nodes; lower --replicas",
            self.own.nodes
        );
        Ok(())
    }

    fn shape(&self, framing: Framing) -> Shape {
        Shape { layout: self.load.layout(), framing, ask: self.own.ask.unwrap_or(self.own.nodes) }
    }

    /// A generator for each lane.
    fn generators(&self, salt: u64) -> anyhow::Result<Vec<Generator>> {
        let lanes = u64::from(self.own.lanes);
        // Lanes and phases draw different transactions.
        let seed = |lane: u64| self.options.seed.wrapping_add(lane << 32 | salt << 48);
        (0..lanes).map(|lane| self.load.generator(lane, seed(lane))).collect()
    }

    /// Each lane runs transactions of its generator. `seconds` count only without
    /// `--transactions`.
    fn run(
        &self,
        cluster: &mut Cluster,
        seconds: f64,
        generators: &mut [Generator],
    ) -> anyhow::Result<Report> {
        let lanes = generators.len() as u64;
        let plan = |lane| {
            let share = |all: u64| all / lanes + u64::from(lane < all % lanes);
            Plan {
                clients: self.own.clients as usize,
                pipeline: 1,
                warmup: Duration::ZERO,
                measured: Duration::from_secs_f64(seconds),
                requests_max: self.options.transactions.map(share),
            }
        };
        let mut jobs: Vec<_> = (0..).map(plan).zip(generators).collect();
        let note = ProgressBar::new_spinner();
        note.set_message(format!("{} is running", self.options.workload.name()));
        note.tick();
        let report = cluster.run(self.shape(self.load.framing()), &mut jobs, &|_| {});
        note.finish_and_clear();
        Ok(report?)
    }

    /// A plan that meets every one of so many keys once.
    fn all_keys(&self, keys: u64) -> Plan {
        Plan {
            clients: FILL_CLIENTS,
            pipeline: 1,
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
            requests_max: Some(keys),
        }
    }

    /// Runs single commands on every one of so many keys.
    fn sweep<S: Source<Request = Transaction> + Send>(
        &self,
        cluster: &mut Cluster,
        keys: u64,
        source: &mut S,
        done: &str,
    ) -> anyhow::Result<Report> {
        let bar = super::progress_bar(keys, done)?;
        let shape = self.shape(Framing::Single);
        let progress = |answered| bar.set_position(answered);
        let report = cluster.run(shape, &mut [(self.all_keys(keys), source)], &progress);
        bar.finish_and_clear();
        let report = report?;
        let missing = keys - report.total.done;
        ensure!(missing == 0, "{missing} keys could not be {done}: {}", super::reason(&report));
        Ok(report)
    }

    fn fill(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let mut fill = self.load.fill();
        self.sweep(cluster, fill.rows(), &mut fill, "written")?;
        Ok(())
    }

    /// Runs for a while before the measurement. Units stay where they were used.
    fn warm_up(&self, cluster: &mut Cluster) -> anyhow::Result<Vec<Generator>> {
        let mut generators = self.generators(0)?;
        start(&mut generators, &Moves::Never);
        if self.options.transactions.is_none() {
            self.run(cluster, self.options.warmup, &mut generators)?;
        }
        if let Some(Generator::Keys(_)) = generators.first() {
            return self.generators(1);
        }
        start(&mut generators, &self.load.moves());
        Ok(generators)
    }

    /// What drawing, spelling and counting a transaction costs, in microseconds of processor time.
    fn own_cost(&self) -> anyhow::Result<f64> {
        let mut generator = self.load.generator(0, self.options.seed)?;
        let plan = Plan {
            clients: self.own.clients as usize,
            pipeline: 1,
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
            requests_max: Some(OWN_COST_TRANSACTIONS),
        };
        let begin = quorate_runtime::cpu_time();
        drive(&plan, &mut generator, &mut Nobody(self.shape(Framing::Block)), &mut |_| {})
            .context("nobody fails")?;
        let cpu = quorate_runtime::cpu_time().saturating_sub(begin);
        Ok(cpu.as_secs_f64() * 1e6 / OWN_COST_TRANSACTIONS as f64)
    }

    /// Adds up all accounts of the bank.
    fn audit_bank(&self, cluster: &mut Cluster) -> anyhow::Result<Balance> {
        let keys = self.options.keys;
        let mut sweep = Sweep::new(keys);
        self.sweep(cluster, keys, &mut sweep, "read")?;
        let found = sweep.sum().context("an account is gone")?;
        Ok(Balance { expected: Workload::BALANCE * keys as i64, found })
    }

    /// Reads every key of a workload with locality, and says whether what must hold does.
    fn audit(
        &self,
        cluster: &mut Cluster,
        generators: Vec<Generator>,
    ) -> anyhow::Result<Option<Local>> {
        let Some((mut sweep, keys)) = self.load.audit() else { return Ok(None) };
        self.sweep(cluster, keys, &mut sweep, "audited")?;
        let local = |generator| match generator {
            Generator::Local(generator) => Some(generator),
            Generator::Keys(_) => None,
        };
        let generators: Vec<LocalGenerator> = generators.into_iter().filter_map(local).collect();
        Ok(self.load.local(&generators, sweep.finish()))
    }
}

/// The phase begins in which units move at these times.
fn start(generators: &mut [Generator], moves: &Moves) {
    for generator in generators {
        if let Generator::Local(generator) = generator {
            generator.start(moves);
        }
    }
}

/// What is printed.
#[derive(Clone, PartialEq, Serialize, Debug)]
struct Summary {
    workload: &'static str,
    engine: String,
    isolation: String,
    nodes: u16,
    /// How many of the nodes clients asked, if that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<u16>,
    /// Of a key, if that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<u16>,
    lanes: u16,
    /// Of each lane.
    clients: u32,
    /// Or units, of a workload with locality.
    keys: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    zipf: Option<f64>,
    seed: u64,
    /// Seconds that were measured.
    seconds: f64,
    committed: u64,
    committed_per_second: f64,
    /// Processor time of all threads per committed transaction, in microseconds: all replicas,
    /// coordinators and the load generator.
    cpu_us_per_commit: f64,
    /// The load generator's part of that, as measured without a cluster.
    generator_us_per_commit: f64,
    /// Conflicts that the cluster gave up on.
    aborted: u64,
    /// Of those that were committed or aborted.
    aborted_share: f64,
    failed: u64,
    first_failure: Option<String>,
    latency_us: Latency,
    /// What the engines counted in the measured time.
    counters: BTreeMap<&'static str, u64>,
    /// Of the bank: what the accounts hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<Balance>,
    /// Of workloads with locality: what was drawn, and what the audit found.
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<Local>,
    /// With moves: how many were committed in each tenth of a second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    committed_by_tenths: Vec<u64>,
}

impl Summary {
    fn new(
        bench: &Bench<'_>,
        engine: &EngineConfig,
        report: &Report,
        processor: Processor,
        counters: Vec<(&'static str, u64)>,
        balance: Option<Balance>,
        local: Option<Local>,
    ) -> Self {
        let (options, own) = (bench.options, bench.own);
        let (committed, aborted) = (report.measured.done, report.measured.aborted);
        // Every transaction that was answered cost something, those after the end of the measured
        // time too.
        let done = report.total.done.max(1) as f64;
        Self {
            workload: options.workload.name(),
            engine: engine.name().to_owned(),
            isolation: isolation(engine),
            nodes: own.nodes,
            ask: own.ask,
            replicas: own.replicas,
            lanes: own.lanes,
            clients: own.clients,
            keys: options.keys,
            zipf: options.workload.skew(options.zipf),
            seed: options.seed,
            seconds: report.seconds,
            committed,
            committed_per_second: report.done_per_second(),
            cpu_us_per_commit: processor.cpu.as_secs_f64() * 1e6 / done,
            generator_us_per_commit: processor.generator,
            aborted,
            aborted_share: aborted as f64 / (committed + aborted).max(1) as f64,
            failed: report.total.failed,
            first_failure: report.first_failure.clone(),
            latency_us: Latency::of(report),
            counters: counters.into_iter().collect(),
            balance,
            local,
            committed_by_tenths: options.local.series(report),
        }
    }

    /// The table for people.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} on {} ({}), {} nodes in this process, {} lanes: {} clients a lane, {}, seed {}",
                self.workload,
                self.engine,
                self.isolation,
                self.nodes,
                self.lanes,
                self.clients,
                super::drawn_from(self.workload, self.keys, self.zipf),
                self.seed
            ),
            format!(
                "committed  {:>10}  {:.0} per second, for {:.2} s",
                self.committed, self.committed_per_second, self.seconds
            ),
            format!(
                "processor  {:>10.2}  µs per committed transaction, {:.2} of it the load generator",
                self.cpu_us_per_commit, self.generator_us_per_commit
            ),
            format!("aborted    {:>10}  {:.2}%", self.aborted, self.aborted_share * 100.0),
        ];
        let failure = self.first_failure.as_deref().unwrap_or_default();
        lines.push(format!("failed     {:>10}  {failure}", self.failed).trim_end().to_owned());
        lines.extend(self.latency_us.lines());
        for (name, count) in &self.counters {
            let share = *count as f64 / self.committed.max(1) as f64;
            lines.push(format!("  {name:<24} {count:>10}  {share:.3} per commit"));
        }
        if let Some(balance) = self.balance {
            lines.push(balance.line());
        }
        lines.extend(self.local.iter().flat_map(Local::lines));
        lines
    }
}

/// What transactions may rely on. An engine that leaves no choice promises some serial order.
fn isolation(engine: &EngineConfig) -> String {
    let has_choice = engine.info().options.iter().any(|option| option.name == "isolation");
    match has_choice.then(|| engine.get("isolation")) {
        Some(OptionValue::Word(word)) => word.to_owned(),
        _ => "serializable".to_owned(),
    }
}
