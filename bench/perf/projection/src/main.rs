//! Projections of the paper's figures to more lanes than this machine has processors: throughput
//! over lanes and over skew (Meerkat, EuroSys 2020, figures 4 to 7) for all four systems.
//!
//! # What is measured and what is modelled
//! *Measured* here, each time: the time that a lane of each system spends on each kind of message
//! ([`Handlers`]), by running the very machines; and the cost of a counter, a mutex, TAPIR's record
//! and KuaFu++'s log for one processor, and for two that contend for them ([`inputs::Contention`]).
//!
//! *Modelled*: the network ([`Network`]), clients that coordinate their own transactions and cost
//! nothing (as in the paper), clocks, pauses after aborts, and that lanes disturb each other only
//! where they share something: no memory bandwidth, no caches that grow too small, no second
//! socket. Contention of more than two lanes is extrapolated ([`Extrapolation`]).
//!
//! *Simulated*: queues at lanes, waits for shared things, the order of arrivals, and thereby the
//! transactions that abort.

mod contention;
mod figures;
mod inputs;
mod keys;
mod measure;
mod model;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::figures::{Curve, Extrapolation, Projection, Sweep, project};
use crate::inputs::{Handlers, Measured, Model, Network, PerSystem, Shared, System};
use crate::measure::{Effort, measure};
use crate::model::Point;

/// Projects throughput to 80 lanes for Meerkat and three rivals, from what their handlers cost on this
/// machine; docs/src/projection.md says what is measured and what is modelled.
#[derive(Parser, Debug)]
#[command(name = "quorate-projection", version)]
struct Options {
    /// Measure, print what handlers and contention cost, and stop
    #[arg(long, conflicts_with = "json")]
    measure: bool,
    /// Take what was measured from the JSON of an earlier run
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    inputs: Option<PathBuf>,
    /// The network: erpc, testbed, tcp or udp
    #[arg(long, default_value = "erpc")]
    network: Network,
    /// What a contended cache line costs many lanes: measured (as two cores here) or figure1 (as
    /// the counter of the paper's figure 1)
    #[arg(long, default_value = "measured")]
    contention: Extrapolation,
    /// Commits that are counted at each point
    #[arg(long, default_value_t = Sweep::COMMITS,
          value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    commits: u64,
    /// Write everything to this file, for bench/perf/plot.py
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Decides what the simulated clients do
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print nothing
    #[arg(long)]
    quiet: bool,
}

/// Measures, simulates, prints.
fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let quiet = options.quiet;
    let measured = match &options.inputs {
        Some(path) => read(path)?,
        None => observe(quiet)?,
    };
    if options.measure {
        costs(&measured).iter().for_each(|line| println!("{line}"));
        return Ok(());
    }
    let model = Model::new(options.network, options.seed);
    let sweep = Sweep { commits: options.commits, ..Sweep::full() };
    let bar = bar(quiet, "{bar:40} {pos}/{len} points, {eta} left")?;
    let projection = project(&measured, &model, options.contention, &sweep, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&projection)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !quiet {
        costs(&measured).iter().for_each(|line| println!("{line}"));
        report(&projection).iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

fn bar(quiet: bool, template: &str) -> anyhow::Result<ProgressBar> {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    bar.set_style(ProgressStyle::with_template(template).context("the template is fixed")?);
    Ok(bar)
}

fn observe(quiet: bool) -> anyhow::Result<Measured> {
    let bar = bar(quiet, "measuring: {msg}")?;
    let measured = measure(Effort::FULL, &mut |what| {
        bar.set_message(what.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    Ok(measured?)
}

fn read(path: &Path) -> anyhow::Result<Measured> {
    let named = || format!("cannot read {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    let mut all: serde_json::Value = serde_json::from_str(&text).with_context(named)?;
    serde_json::from_value(all["measured"].take())
        .with_context(|| format!("{} holds nothing measured", path.display()))
}

/// What was measured, as a table.
fn costs(measured: &Measured) -> Vec<String> {
    let mut lines = vec!["measured here, nanoseconds of a lane for each message:".to_owned()];
    let names =
        ["get", "validate", "check", "decided", "accept", "accepted", "upkeep", "coordinator"];
    let row = |first: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>12}")).collect();
        format!("  {first:<20}{cells}")
    };
    lines.push(row("", &names.map(str::to_owned)));
    let mut table = |workload: &str, systems: &PerSystem| {
        for system in System::ALL {
            let Handlers { get, validate, check, decided, accept, accepted, upkeep, coordinator } =
                *systems.of(system);
            let cells = [get, validate, check, decided, accept, accepted, upkeep, coordinator];
            let cells = cells.map(|cost| format!("{cost:.0}"));
            lines.push(row(&format!("{workload} {}", system.name()), &cells));
        }
    };
    table("ycsb-t", &measured.ycsb_t);
    table("retwis", &measured.retwis);
    lines.push("one use of what lanes share, nanoseconds:".to_owned());
    let contention = &measured.contention;
    for (name, shared) in [
        ("atomic counter", contention.counter),
        ("empty mutex", contention.mutex),
        ("TAPIR's record", contention.record),
        ("KuaFu++'s log", contention.log),
    ] {
        let Shared { alone, contended } = shared;
        lines.push(format!("  {name:<20}{alone:>9.1} alone {contended:>9.1} two cores contend"));
    }
    lines
}

fn report(projection: &Projection) -> Vec<String> {
    let network = projection.modelled.network;
    let mut lines = vec![format!(
        "modelled: network {} ({:.1} µs one way, {:.0} ns for each message), contention {}",
        network.name,
        network.delay / 1000.0,
        network.message,
        projection.extrapolation.name(),
    )];
    let figures = &projection.figures;
    lines
        .extend(table("figure 4, YCSB-T, M/s by lanes", &figures.fig4, |point| point.lanes as f64));
    lines
        .extend(table("figure 5, Retwis, M/s by lanes", &figures.fig5, |point| point.lanes as f64));
    let zipf = |point: &Point| point.zipf;
    lines.extend(table("figures 6a, 7a, YCSB-T, M/s and aborts by Zipf", &figures.fig6a_7a, zipf));
    lines.extend(table("figures 6b, 7b, Retwis, M/s and aborts by Zipf", &figures.fig6b_7b, zipf));
    lines.push(format!("{:<52}{:<40}here", "", "the paper"));
    for finding in &projection.findings {
        lines.push(format!("{:<52}{:<40}{}", finding.what, finding.paper, finding.here));
    }
    lines
}

fn table(title: &str, curves: &[Curve], x: impl Fn(&Point) -> f64) -> Vec<String> {
    let mut lines = vec![title.to_owned()];
    let heads: String = curves.iter().map(|curve| format!("{:>18}", curve.system.name())).collect();
    lines.push(format!("  {:>6}{heads}", ""));
    let rows = curves.iter().map(|curve| curve.points.len()).min().unwrap_or(0);
    for row in 0..rows {
        let at = x(&curves[0].points[row]);
        let cells: String = curves
            .iter()
            .map(|curve| &curve.points[row])
            .map(|point| {
                let percent = point.abort_rate * 100.0;
                format!("{:>10.2} {percent:>6.2}%", point.goodput / 1e6)
            })
            .collect();
        lines.push(format!("  {at:>6}{cells}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Options;

    fn complaint(words: &[&str]) -> String {
        let line = ["quorate-projection"].iter().chain(words);
        Options::try_parse_from(line).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        assert_eq!(complaint(&["--network", "tcp", "--contention", "figure1"]), "");
        assert_eq!(complaint(&["--measure", "--seed", "3"]), "");
        for (words, part) in [
            (&["--network", "rdma"][..], "no network"),
            (&["--contention", "none"], "no extrapolation"),
            (&["--commits", "5"], "5 is not in"),
            (&["--measure", "--json", "x"], "cannot be used with"),
        ] {
            let complaint = complaint(words);
            assert!(complaint.contains(part), "{words:?}: {complaint}");
        }
    }

    #[test]
    fn inputs_must_hold_something_measured() {
        let path = std::env::temp_dir().join(format!("projection-inputs-{}", std::process::id()));
        std::fs::write(&path, "{\"figures\": 1}").unwrap();
        let error = super::read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("holds nothing measured"), "{error}");
    }
}
