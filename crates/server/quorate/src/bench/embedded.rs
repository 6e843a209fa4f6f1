//! `quorate bench --embedded`: what a transaction costs the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use quorate_engine::{OptionValue, Unfit};
use quorate_node::EngineConfig;
use quorate_types::limits;
use quorate_workloads::{Fill, Generator, Plan, Report, Sweep, Workload, run as drive};
use serde::Serialize;

use super::cluster::{Cluster, Nobody, Shape};
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
    #[arg(long, requires = "embedded", value_parser = engine_arg::transactional())]
    engine: Option<EngineConfig>,
    /// What transactions may rely on, strict or serializable, if the engine leaves a choice
    #[arg(long, requires = "embedded")]
    isolation: Option<String>,
    /// Its nodes
    #[arg(long, default_value_t = 3, requires = "embedded",
          value_parser = clap::value_parser!(u16).range(1..=limits::MEMBERS_MAX as i64))]
    nodes: u16,
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
    let bench = Bench { options, own: &options.embedded };
    let config = bench.engine()?;
    let mut cluster = Cluster::start(&config, bench.own.nodes, bench.own.lanes)?;
    bench.fill(&mut cluster)?;
    bench.warm_up(&mut cluster)?;
    let counted = cluster.counters();
    let begin = quorate_runtime::cpu_time();
    let (report, _) = cluster.run(bench.shape(true), &mut bench.jobs(options.seconds, 1)?)?;
    let cpu = quorate_runtime::cpu_time().saturating_sub(begin);
    let counters: Vec<(&'static str, u64)> = cluster
        .counters()
        .into_iter()
        .zip(counted)
        .map(|((name, after), (_, before))| (name, after - before))
        .filter(|(_, count)| *count > 0)
        .collect();
    let balance = match options.workload {
        Workload::Bank => Some(bench.audit(&mut cluster)?),
        Workload::YcsbT | Workload::Retwis | Workload::Multi => None,
    };
    let generator = bench.own_cost()?;
    let summary = Summary::new(&bench, &config, &report, cpu, generator, counters, balance);
    if options.json {
        say(&serde_json::to_string(&summary)?);
    } else {
        summary.lines().iter().for_each(|line| say(line));
    }
    super::judge_balance(summary.balance)?;
    let failure = report.first_failure.as_deref().unwrap_or("every transaction conflicted");
    ensure!(summary.committed > 0, "nothing was committed: {failure}");
    Ok(())
}

struct Bench<'a> {
    options: &'a super::Options,
    own: &'a EmbeddedOptions,
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

    fn shape(&self, block: bool) -> Shape {
        Shape { layout: self.options.workload.layout(), block }
    }

    /// What each lane does. `seconds` count only without `--transactions`.
    fn jobs(&self, seconds: f64, salt: u64) -> anyhow::Result<Vec<(Plan, Generator)>> {
        let (options, lanes) = (self.options, u64::from(self.own.lanes));
        (0..lanes)
            .map(|lane| {
                let share = |all: u64| all / lanes + u64::from(lane < all % lanes);
                let plan = Plan {
                    clients: self.own.clients as usize,
                    pipeline: 1,
                    warmup: Duration::ZERO,
                    measured: Duration::from_secs_f64(seconds),
                    requests_max: options.transactions.map(share),
                };
                // Lanes and phases draw different transactions.
                let seed = options.seed.wrapping_add(lane << 32 | salt << 48);
                Ok((plan, super::generator(options, seed)?))
            })
            .collect()
    }

    fn all_keys(&self) -> Plan {
        Plan {
            clients: FILL_CLIENTS,
            pipeline: 1,
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
            requests_max: Some(self.options.keys),
        }
    }

    fn fill(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let fill = Fill::new(self.options.workload, self.options.keys);
        let (report, _) = cluster.run(self.shape(false), &mut [(self.all_keys(), fill)])?;
        let missing = self.options.keys - report.total.done;
        ensure!(missing == 0, "{missing} keys could not be written: {}", super::reason(&report));
        Ok(())
    }

    /// Runs for a while before the measurement.
    fn warm_up(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        if self.options.transactions.is_none() {
            cluster.run(self.shape(true), &mut self.jobs(self.options.warmup, 0)?)?;
        }
        Ok(())
    }

    /// What drawing, spelling and counting a transaction costs, in microseconds of processor time.
    fn own_cost(&self) -> anyhow::Result<f64> {
        let mut generator = super::generator(self.options, self.options.seed)?;
        let plan = Plan {
            clients: self.own.clients as usize,
            pipeline: 1,
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
            requests_max: Some(OWN_COST_TRANSACTIONS),
        };
        let begin = quorate_runtime::cpu_time();
        drive(&plan, &mut generator, &mut Nobody(self.shape(true)), &mut |_| {})
            .context("nobody fails")?;
        let cpu = quorate_runtime::cpu_time().saturating_sub(begin);
        Ok(cpu.as_secs_f64() * 1e6 / OWN_COST_TRANSACTIONS as f64)
    }

    /// Adds up all accounts.
    fn audit(&self, cluster: &mut Cluster) -> anyhow::Result<Balance> {
        let keys = self.options.keys;
        let sweep = Sweep::new(keys);
        let (report, found) = cluster.run(self.shape(false), &mut [(self.all_keys(), sweep)])?;
        let missing = keys - report.total.done;
        ensure!(missing == 0, "{missing} accounts could not be read: {}", super::reason(&report));
        Ok(Balance { expected: Workload::BALANCE * keys as i64, found })
    }
}

/// What is printed.
#[derive(Clone, PartialEq, Serialize, Debug)]
struct Summary {
    workload: &'static str,
    engine: String,
    isolation: String,
    nodes: u16,
    lanes: u16,
    /// Of each lane.
    clients: u32,
    keys: u64,
    zipf: f64,
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
}

impl Summary {
    fn new(
        bench: &Bench<'_>,
        engine: &EngineConfig,
        report: &Report,
        cpu: Duration,
        generator: f64,
        counters: Vec<(&'static str, u64)>,
        balance: Option<Balance>,
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
            lanes: own.lanes,
            clients: own.clients,
            keys: options.keys,
            zipf: options.zipf,
            seed: options.seed,
            seconds: report.seconds,
            committed,
            committed_per_second: report.done_per_second(),
            cpu_us_per_commit: cpu.as_secs_f64() * 1e6 / done,
            generator_us_per_commit: generator,
            aborted,
            aborted_share: aborted as f64 / (committed + aborted).max(1) as f64,
            failed: report.total.failed,
            first_failure: report.first_failure.clone(),
            latency_us: Latency::of(report),
            counters: counters.into_iter().collect(),
            balance,
        }
    }

    /// The table for people.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} on {} ({}), {} nodes in this process, {} lanes: {} clients a lane, {} keys, \
                 Zipf {}, seed {}",
                self.workload,
                self.engine,
                self.isolation,
                self.nodes,
                self.lanes,
                self.clients,
                self.keys,
                self.zipf,
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
