//! `quorate sim`: the cluster in virtual time under faults, and projections of its throughput.

mod perf;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use quorate_check::HistoryWriter;
use quorate_sim::{Engine, Failure, Faults, Isolation, Run, Sweep, run as run_seed, sweep};

/// Exit codes: 0 all runs passed, 10 an invariant broke, 11 clients saw what they must not see,
/// 12 a cluster did not recover.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The engine of the simulated keyspace.
    #[arg(long, default_value = "hermes")]
    engine: Engine,
    /// What transactions may rely on (meerkat): strict, serializable, or any, where the seed
    /// decides.
    #[arg(long, default_value = "any", value_parser = ["strict", "serializable", "any"])]
    isolation: String,
    /// How many seeds to run, from 1 on.
    #[arg(long, default_value_t = 200, conflicts_with = "seed")]
    seeds: u64,
    /// Run this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Faults that may happen: all, none, or a list of loss, duplication, reordering, partition,
    /// pause, crash, drift, clock.
    #[arg(long, default_value = "all")]
    faults: Faults,
    /// How many nodes; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: Option<u16>,
    /// How many lanes; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    lanes: Option<u16>,
    /// Print a line for every event (with --seed).
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Write what the clients saw to a file that `quorate check` reads (with --seed).
    #[arg(long, requires = "seed")]
    history: Option<PathBuf>,
    /// Stop after this many failed runs.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Print failures only.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    perf: perf::PerfOptions,
}

/// Runs the simulations that the command line asks for.
pub(crate) fn run(args: &Options) -> ExitCode {
    simulate(args).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn simulate(args: &Options) -> anyhow::Result<ExitCode> {
    if args.perf.perf {
        return perf::run(&args.perf, args.seed, args.quiet).map(|()| ExitCode::SUCCESS);
    }
    let isolation = match args.isolation.as_str() {
        "strict" => Some(Isolation::Strict),
        "serializable" => Some(Isolation::Serializable),
        _ => None,
    };
    let options = quorate_sim::Options {
        engine: args.engine,
        isolation,
        nodes: args.nodes,
        lanes: args.lanes,
        faults: args.faults,
        trace: args.trace,
        ..quorate_sim::Options::new()
    };
    match args.seed {
        Some(seed) => one(args, seed, &options),
        None => many(args, &options),
    }
}

fn one(args: &Options, seed: u64, options: &quorate_sim::Options) -> anyhow::Result<ExitCode> {
    match run_seed(seed, options) {
        Ok(run) => {
            run.trace.iter().for_each(|line| println!("{line}"));
            if let Some(path) = &args.history {
                write_history(path, &run.history)?;
            }
            report_run(&run);
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            failure.trace.iter().for_each(|line| println!("{line}"));
            if let (Some(path), Some(history)) = (&args.history, &failure.history) {
                write_history(path, history)?;
            }
            eprintln!("{failure}");
            Ok(ExitCode::from(failure.kind.exit_code()))
        }
    }
}

fn report_run(run: &Run) {
    let [done, refused, unknown] = run.ops;
    println!(
        "seed {} passed: {done} ops done, {refused} refused, {unknown} unknown; epoch {}; {} peer \
         messages; digest {:016x}",
        run.seed, run.epoch, run.messages, run.digest
    );
    println!("  {}", run.setup);
}

fn write_history(path: &PathBuf, history: &quorate_check::TxnHistory) -> anyhow::Result<()> {
    let named = || format!("cannot write {}", path.display());
    let file = std::fs::File::create(path).with_context(named)?;
    let mut writer =
        HistoryWriter::new(std::io::BufWriter::new(file), &history.header).with_context(named)?;
    for operation in &history.operations {
        writer.write(operation).with_context(named)?;
    }
    for record in &history.transactions {
        writer.write_transaction(record).with_context(named)?;
    }
    writer.finish().with_context(named)?;
    Ok(())
}

fn many(args: &Options, options: &quorate_sim::Options) -> anyhow::Result<ExitCode> {
    let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(args.seeds) };
    bar.set_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left")
            .context("the template is fixed")?,
    );
    let result = sweep(1..args.seeds + 1, options, args.failures, |done| bar.set_position(done));
    bar.finish_and_clear();
    for failure in &result.failures {
        eprintln!("{failure}");
        eprintln!("  replay: {}", replay_command(args, failure));
    }
    if !args.quiet {
        report_sweep(args, &result);
    }
    let code = result.failures.first().map_or(0, |failure| failure.kind.exit_code());
    Ok(ExitCode::from(code))
}

/// The one command that shows the failure again.
fn replay_command(args: &Options, failure: &Failure) -> String {
    let mut command = format!("quorate sim --engine {} --seed {}", args.engine, failure.seed);
    if args.isolation != "any" {
        command.push_str(&format!(" --isolation {}", args.isolation));
    }
    if args.faults != Faults::ALL {
        command.push_str(&format!(" --faults {}", args.faults));
    }
    if let Some(nodes) = args.nodes {
        command.push_str(&format!(" --nodes {nodes}"));
    }
    if let Some(lanes) = args.lanes {
        command.push_str(&format!(" --lanes {lanes}"));
    }
    command.push_str(" --trace");
    command
}

fn report_sweep(args: &Options, result: &Sweep) {
    let [done, refused, unknown] = result.ops;
    println!(
        "{} of {} seeds passed on engine {}: {done} ops done, {refused} refused, {unknown} \
         unknown; {} views; {} peer messages",
        result.passed, args.seeds, args.engine, result.views, result.messages
    );
    if result.beyond > 0 {
        println!("  {} of them lost a majority of the members: only safety judged", result.beyond);
    }
    let (reached, missed): (Vec<_>, Vec<_>) =
        result.probes.iter().partition(|(_, count)| *count > 0);
    for (name, count) in &reached {
        println!("  {count:>9}  {name}");
    }
    for (name, _) in &missed {
        println!("      never  {name}");
    }
}
