//! `quorate bench`: transactions against a running cluster, or one in this process, in a closed
//! loop.

mod cluster;
mod embedded;
mod load;
mod local;

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use quorate_workloads::redis::{Framing, Greeting, Transactions};
use quorate_workloads::{
    Benchmark, LoadError, Plan, Report, Sockets, Source, Sweep, Transaction, Workload, run as drive,
};
use serde::Serialize;

use crate::log::say;
use load::{Choice, Generator, Load};
use local::Local;

/// How long a target may take to accept the first connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How often all keys are written, or read, before what doesn't succeed is an error.
const ROUNDS_MAX: u32 = 3;
/// Connections that fill the keyspace, and commands that each has under way.
const FILL_CLIENTS_MAX: usize = 50;
const FILL_PIPELINE: usize = 16;
/// The most connections.
const CONNECTIONS_MAX: i64 = 10_000;
/// The most transactions that a connection has under way.
const PIPELINE_MAX: i64 = 1_000;
/// The most keys.
const KEYS_MAX: u64 = 1_000_000_000;
/// The longest measurement, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Which transactions; docs/src/benchmarking.md describes them
    #[arg(value_parser = Choice::parser())]
    workload: Choice,
    /// Where to connect; give several, and connections are dealt out over them
    #[arg(
        long = "target",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:6379"
    )]
    targets: Vec<String>,
    /// How many connections in all; each waits for its answers before it sends more
    #[arg(long, default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    connections: u32,
    /// How many transactions each connection sends at once
    #[arg(long, default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=PIPELINE_MAX))]
    pipeline: u32,
    /// Seconds that are measured
    #[arg(long, default_value_t = 5.0, value_parser = seconds_parser)]
    seconds: f64,
    /// Seconds before that
    #[arg(long, default_value_t = 0.5, value_parser = seconds_parser)]
    warmup: f64,
    /// Run so many transactions and measure them all, instead of running by the clock
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "warmup"],
          value_parser = clap::value_parser!(u64).range(1..))]
    transactions: Option<u64>,
    /// How many keys, or accounts, subscribers, voters, phones or users; all are written before the
    /// measurement
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(1..=KEYS_MAX))]
    keys: u64,
    /// How skewed: the coefficient of Zipf's law, 0 is uniform
    #[arg(long, value_name = "THETA", default_value_t = 0.6)]
    zipf: f64,
    /// Which database
    #[arg(long, value_name = "N", default_value_t = 0)]
    database: u8,
    /// The password, if clients need one
    #[arg(long)]
    password: Option<String>,
    /// Decides which transactions are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    local: local::LocalOptions,
    #[command(flatten)]
    embedded: embedded::EmbeddedOptions,
}

fn seconds_parser(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match (0.0..=SECONDS_MAX).contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("seconds lie between 0 and {SECONDS_MAX}")),
    }
}

/// Fills the keyspace, measures and prints the result. An error if most transactions failed, or
/// if money was lost.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(
        options.transactions.is_some() || options.seconds > 0.0,
        "--seconds 0 measures nothing"
    );
    if options.embedded.embedded {
        return embedded::run(options);
    }
    let nodes = u16::try_from(options.targets.len()).context("too many targets")?;
    let load = Load::new(options, nodes, 1)?;
    ensure!(
        options.pipeline == 1 || load.framing() != Framing::Watch,
        "a connection watches the keys of one transaction at a time; use --pipeline 1"
    );
    let targets: Vec<SocketAddr> =
        options.targets.iter().map(|target| reach(target)).collect::<anyhow::Result<_>>()?;
    // A lower limit of open files is noticed when it is reached.
    let _ = quorate_runtime::raise_file_limit();
    let bench = Bench { options, load, targets };
    bench.fill()?;
    let mut generator = bench.load.generator(0, options.seed)?;
    let report = bench.measure(&mut generator)?;
    let balance = bench.audit_bank()?;
    let local = bench.audit(generator)?;
    let summary = Summary::new(options, &report, balance, local);
    if options.json {
        say(&serde_json::to_string(&summary)?);
    } else {
        summary.lines().iter().for_each(|line| say(line));
    }
    summary.judge()
}

/// The first address of a target that accepts connections.
fn reach(target: &str) -> anyhow::Result<SocketAddr> {
    let addresses = target
        .to_socket_addrs()
        .with_context(|| format!("--target {target} is no HOST:PORT that can be found"))?;
    let mut refused = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(_) => return Ok(address),
            Err(error) => refused = Some(LoadError::Unreachable { target: address, error }),
        }
    }
    let Some(error) = refused else { bail!("--target {target} has no address") };
    Err(error).context("start a cluster with `quorate dev`, or say with --target where one is")
}

/// A benchmark whose targets are known.
struct Bench<'a> {
    options: &'a Options,
    load: Load<'a>,
    targets: Vec<SocketAddr>,
}

impl Bench<'_> {
    fn connections(&self) -> usize {
        self.options.connections as usize
    }

    /// Runs a plan over new connections.
    fn run(
        &self,
        plan: &Plan,
        framing: Framing,
        source: &mut dyn Source<Request = Transaction>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Report, LoadError> {
        let layout = self.load.layout();
        let greeting =
            Greeting { password: self.options.password.clone(), database: self.options.database };
        let dialect = || Transactions::new(layout, greeting.clone(), framing);
        let mut sockets = Sockets::connect(&self.targets, plan.clients, dialect)?;
        drive(plan, source, &mut sockets, progress)
    }

    /// A plan that meets every one of so many keys once.
    fn all_keys(&self, keys: u64) -> Plan {
        Plan {
            clients: self.connections().min(FILL_CLIENTS_MAX),
            pipeline: FILL_PIPELINE,
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
            requests_max: Some(keys),
        }
    }

    /// Writes every key. What fails for a moment, as in a cluster that is about to change its
    /// view, is written again together with the rest.
    fn fill(&self) -> anyhow::Result<()> {
        let keys = self.load.fill().rows();
        let bar = progress_bar(keys, "written")?;
        for round in 1..=ROUNDS_MAX {
            let mut fill = self.load.fill();
            let progress = &mut |answered| bar.set_position(answered);
            let plan = self.all_keys(keys);
            let report = self.run(&plan, Framing::Single, &mut fill, progress)?;
            let missing = keys - report.total.done;
            if missing == 0 {
                break;
            }
            if report.total.done == 0 || round == ROUNDS_MAX {
                bar.finish_and_clear();
                bail!("{missing} of {keys} keys could not be written: {}", reason(&report));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn measure(&self, generator: &mut Generator) -> anyhow::Result<Report> {
        let options = self.options;
        let plan = Plan {
            clients: self.connections(),
            pipeline: options.pipeline as usize,
            warmup: Duration::from_secs_f64(options.warmup),
            measured: Duration::from_secs_f64(options.seconds),
            requests_max: options.transactions,
        };
        let note = ProgressBar::new_spinner();
        note.set_message(format!("{} is running", options.workload.name()));
        note.tick();
        let report = self.run(&plan, self.load.framing(), generator, &mut |_| {});
        note.finish_and_clear();
        Ok(report?)
    }

    /// Adds up all accounts of the bank; `None` if one of them could not be read. No transfer is
    /// under way any more, so that it doesn't matter that they are read one after another.
    fn audit_bank(&self) -> anyhow::Result<Option<Balance>> {
        if self.options.workload != Choice::Keys(Workload::Bank) {
            return Ok(None);
        }
        let keys = self.options.keys;
        for _ in 0..ROUNDS_MAX {
            let mut sweep = Sweep::new(keys);
            let plan = self.all_keys(keys);
            self.run(&plan, Framing::Single, &mut sweep, &mut |_| {})?;
            if let Some(found) = sweep.sum() {
                return Ok(Some(Balance { expected: Workload::BALANCE * keys as i64, found }));
            }
        }
        Ok(None)
    }

    /// Reads every key of a workload with locality, and says whether what must hold does.
    fn audit(&self, generator: Generator) -> anyhow::Result<Option<Local>> {
        let Generator::Local(generator) = generator else { return Ok(None) };
        for _ in 0..ROUNDS_MAX {
            let Some((mut sweep, keys)) = self.load.audit() else { return Ok(None) };
            let bar = progress_bar(keys, "audited")?;
            let progress = &mut |answered| bar.set_position(answered);
            let plan = self.all_keys(keys);
            self.run(&plan, Framing::Single, &mut sweep, progress)?;
            bar.finish_and_clear();
            if let Some(audit) = sweep.finish() {
                return Ok(self.load.local(&[generator], Some(audit)));
            }
        }
        Ok(self.load.local(&[generator], None))
    }
}

/// A bar over so many keys.
fn progress_bar(keys: u64, done: &str) -> anyhow::Result<ProgressBar> {
    let template = format!("{{bar:40}} {{pos}}/{{len}} keys {done}, {{eta}} left");
    let style = ProgressStyle::with_template(&template).context("the template is fixed")?;
    Ok(ProgressBar::new(keys).with_style(style))
}

/// Out of what transactions draw, in words.
fn drawn_from(workload: &str, keys: u64, zipf: Option<f64>) -> String {
    let units = workload.parse().map(Benchmark::units_name);
    match zipf {
        Some(theta) => format!("{keys} keys, Zipf {theta}"),
        None => format!("{keys} {}", units.unwrap_or("keys")),
    }
}

/// Why requests of a run were not done.
fn reason(report: &Report) -> &str {
    report.first_failure.as_deref().unwrap_or("others were in the way each time")
}

/// What all accounts hold together.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
struct Balance {
    expected: i64,
    found: i64,
}

impl Balance {
    fn line(self) -> String {
        let verdict = if self.found == self.expected { "as at first" } else { "WRONG" };
        format!("balance    {:>10}  {verdict}", self.found)
    }
}

/// An error if money was lost or made.
fn judge_balance(balance: Option<Balance>) -> anyhow::Result<()> {
    if let Some(Balance { expected, found }) = balance {
        ensure!(
            found == expected,
            "the accounts hold {found} together, not {expected}: transfers were not atomic"
        );
    }
    Ok(())
}

/// Latencies of committed transactions in microseconds, from the begin of their batch.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Latency {
    fn of(report: &Report) -> Self {
        Self {
            mean: report.latency_mean_us(),
            p50: report.latency_us(0.5),
            p90: report.latency_us(0.9),
            p99: report.latency_us(0.99),
            p999: report.latency_us(0.999),
            max: report.latency_us(1.0),
        }
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        [
            ("mean", self.mean),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p999),
            ("max", self.max),
        ]
        .into_iter()
        .map(|(name, microseconds)| format!("{:<10} {microseconds:>10.0}  µs", format!("  {name}")))
    }
}

/// What is printed.
#[derive(Clone, PartialEq, Serialize, Debug)]
struct Summary {
    workload: &'static str,
    targets: Vec<String>,
    database: u8,
    connections: u32,
    pipeline: u32,
    /// Or units, of a workload with locality.
    keys: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    zipf: Option<f64>,
    seed: u64,
    /// Seconds that were measured.
    seconds: f64,
    committed: u64,
    committed_per_second: f64,
    /// Conflicts that the target gave up on.
    aborted: u64,
    /// Of those that were committed or aborted.
    aborted_share: f64,
    /// Other errors, those before the measured time too.
    failed: u64,
    first_failure: Option<String>,
    /// Transactions that read a key that is not there, although all were written.
    missed: u64,
    latency_us: Latency,
    /// Of the bank: what the accounts hold, if all could be read.
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
        options: &Options,
        report: &Report,
        balance: Option<Balance>,
        local: Option<Local>,
    ) -> Self {
        let (committed, aborted) = (report.measured.done, report.measured.aborted);
        Self {
            workload: options.workload.name(),
            targets: options.targets.clone(),
            database: options.database,
            connections: options.connections,
            pipeline: options.pipeline,
            keys: options.keys,
            zipf: options.workload.skew(options.zipf),
            seed: options.seed,
            seconds: report.seconds,
            committed,
            committed_per_second: report.done_per_second(),
            aborted,
            aborted_share: aborted as f64 / (committed + aborted).max(1) as f64,
            failed: report.total.failed,
            first_failure: report.first_failure.clone(),
            missed: report.total.missed,
            latency_us: Latency::of(report),
            balance,
            local,
            committed_by_tenths: options.local.series(report),
        }
    }

    /// The table for people.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} on {}, database {}: {} connections, pipeline {}, {}, seed {}",
                self.workload,
                self.targets.join(" "),
                self.database,
                self.connections,
                self.pipeline,
                drawn_from(self.workload, self.keys, self.zipf),
                self.seed
            ),
            format!(
                "committed  {:>10}  {:.0} per second, for {:.2} s",
                self.committed, self.committed_per_second, self.seconds
            ),
            format!("aborted    {:>10}  {:.2}%", self.aborted, self.aborted_share * 100.0),
        ];
        let failure = self.first_failure.as_deref().unwrap_or_default();
        lines.push(format!("failed     {:>10}  {failure}", self.failed).trim_end().to_owned());
        if self.missed > 0 {
            let missed = self.missed;
            lines.push(format!("missed     {missed:>10}  transactions read a key that is gone"));
        }
        lines.extend(self.latency_us.lines());
        lines.extend(self.balance.map(Balance::line));
        lines.extend(self.local.iter().flat_map(Local::lines));
        lines
    }

    /// Whether the run was one.
    fn judge(&self) -> anyhow::Result<()> {
        judge_balance(self.balance)?;
        self.local.as_ref().map_or(Ok(()), Local::judge)?;
        let failure = self.first_failure.as_deref().unwrap_or("no answer came in time");
        ensure!(self.committed > 0, "nothing was committed: {failure}");
        // What a target takes of a workload that it refuses in general is another workload.
        let taken = self.committed + self.aborted;
        ensure!(self.failed <= taken, "most transactions failed, so this is no measure: {failure}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let percentile = 250.4;
        Summary {
            workload: "bank",
            targets: vec!["a:1".into(), "b:2".into()],
            database: 1,
            connections: 50,
            pipeline: 1,
            keys: 1000,
            zipf: Some(0.6),
            seed: 1,
            seconds: 5.0,
            committed: 900,
            committed_per_second: 180.0,
            aborted: 100,
            aborted_share: 0.1,
            failed: 0,
            first_failure: None,
            missed: 0,
            latency_us: Latency {
                mean: percentile,
                p50: percentile,
                p90: percentile,
                p99: percentile,
                p999: percentile,
                max: percentile,
            },
            balance: Some(Balance { expected: 1_000_000, found: 1_000_000 }),
            local: None,
            committed_by_tenths: Vec::new(),
        }
    }

    #[test]
    fn the_table_is_aligned() {
        let lines = summary().lines();
        let expected = "bank on a:1 b:2, database 1: 50 connections, pipeline 1, 1000 keys, \
                        Zipf 0.6, seed 1";
        assert_eq!(lines[0], expected);
        assert_eq!(lines[1], "committed         900  180 per second, for 5.00 s");
        assert_eq!(lines[2], "aborted           100  10.00%");
        assert_eq!(lines[3], "failed              0");
        assert_eq!(lines[8], "  p99.9           250  µs");
        assert_eq!(lines[10], "balance       1000000  as at first");
    }

    #[test]
    fn lost_money_and_an_empty_run_are_errors() {
        assert!(summary().judge().is_ok());
        let lost = Some(Balance { expected: 1_000_000, found: 999_999 });
        let error = Summary { balance: lost, ..summary() }.judge().unwrap_err().to_string();
        assert!(error.contains("hold 999999 together, not 1000000"), "{error}");
        let failure = Some("CROSSKEY no".to_owned());
        let empty = Summary { committed: 0, first_failure: failure, ..summary() };
        let error = empty.judge().unwrap_err().to_string();
        assert_eq!(error, "nothing was committed: CROSSKEY no");
        let failed = Summary { failed: 1001, ..summary() };
        let error = failed.judge().unwrap_err().to_string();
        assert!(error.starts_with("most transactions failed"), "{error}");
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds_parser("0.5"), Ok(0.5));
        for wrong in ["-1", "nan", "1e9", "soon"] {
            assert!(seconds_parser(wrong).is_err(), "{wrong}");
        }
    }
}
