//! `quorate sim`: the cluster in virtual time under faults, and projections of its throughput.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use quorate_check::HistoryWriter;
use quorate_sim::{
    Beside, Durabilities, Engine, Failure, FailureKind, Faults, Isolations, Run, Script, Shapes,
    Sweep, Workload, record, replay, run as run_seed, shrink, sweep,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::run::EXIT_INTERRUPTED;

/// Exit codes: 0 all runs passed, 10 an invariant broke, 11 clients saw what they must not see,
/// 12 a cluster did not recover, 13 a node sent more than there was to do, 130 a signal stopped a sweep
/// in which nothing had failed.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The engine of the first simulated keyspace; a name that isn't one lists them.
    #[arg(long, default_value = Engine::ALL[0].name())]
    engine: Engine,
    /// What clients do, if the engine has transactions: mix (everything side by side), retwis, or
    /// ycsb-t.
    #[arg(long, default_value = "mix")]
    workload: Workload,
    /// What transactions may rely on, if the engine leaves a choice: strict, serializable, or any,
    /// where the seed decides.
    #[arg(long, default_value = "any")]
    isolation: Isolations,
    /// How many seeds to run.
    #[arg(long, default_value_t = 200, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them: a sweep goes on where another one ended.
    #[arg(long, default_value_t = 1, conflicts_with = "seed")]
    from: u64,
    /// Run this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Run what a script has, as it is written for a seed that fails.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "from", "faults", "nodes", "lanes", "guests", "sessions", "shapes", "beside", "records", "large", "disks", "durability"])]
    replay: Option<PathBuf>,
    /// Faults that may happen: all that the engine survives, none, or a list of loss, duplication,
    /// reordering, partition, pause, crash, drift, clock, lane, reset, bandwidth, stall, standing,
    /// leap, rate, members, and with --disks rot, failing, full, slow. All that the engine survives if
    /// nothing is said.
    #[arg(long)]
    faults: Option<Faults>,
    /// What the cluster and its data may look like: the usual, all, none, or a list of size, churn,
    /// groups, expiry, alone.
    #[arg(long)]
    shapes: Option<Shapes>,
    /// Keyspaces beside the first one, each with clients of its own: none, a list of up to two
    /// engines that recover, or any, where the seed decides.
    #[arg(long, default_value = "any")]
    beside: Beside,
    /// How many records there are from the start; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    records: Option<u32>,
    /// How many of them are of 64 KiB and more; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    large: Option<u32>,
    /// Nodes have disks and keep logs, and now and then the power of all of them goes.
    #[arg(long)]
    disks: bool,
    /// What keyspaces on these disks promise: sync, async, or any, where the seed decides for each.
    #[arg(long, requires = "disks", default_value = "any")]
    durability: Durabilities,
    /// How many nodes; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: Option<u16>,
    /// How many lanes; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    lanes: Option<u16>,
    /// How many clients coordinate transactions themselves, if the engine lets them; otherwise the
    /// seed decides.
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=4))]
    guests: Option<u16>,
    /// How many clients make calls of sessions, which must count exactly once, if the engine has
    /// them; otherwise the seed decides.
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=64))]
    sessions: Option<u16>,
    /// Print a line for every event (with --seed or --replay).
    #[arg(long)]
    trace: bool,
    /// Write what the clients saw to a file that `quorate check` reads (with --seed or --replay).
    #[arg(long)]
    history: Option<PathBuf>,
    /// Where to write the script of the first seed that fails; sim-ENGINE-SEED.txt if nothing is
    /// said.
    #[arg(long)]
    script: Option<PathBuf>,
    /// How many runs to spend on making that script short; 0 writes none.
    #[arg(long, default_value_t = 1_000)]
    shrink: u64,
    /// Stop after this many failed runs.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Print failures only.
    #[arg(long)]
    quiet: bool,
}

/// Runs the simulations that the command line asks for.
pub(crate) fn run(args: &Options) -> ExitCode {
    simulate(args).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn simulate(args: &Options) -> anyhow::Result<ExitCode> {
    let alone = args.seed.is_some() || args.replay.is_some();
    anyhow::ensure!(
        alone || !(args.trace || args.history.is_some()),
        "--trace and --history are for one run: give a --seed, or a script to --replay"
    );
    if let Some(path) = &args.replay {
        return again(args, path);
    }
    let faults = match args.faults {
        None => quorate_sim::Options::of(args.engine).faults,
        Some(Faults::ALL) => args.engine.survives(),
        Some(faults) => faults,
    };
    let options = quorate_sim::Options {
        engine: args.engine,
        workload: args.workload,
        isolation: args.isolation.0,
        nodes: args.nodes,
        lanes: args.lanes,
        guests: args.guests,
        sessions: args.sessions,
        shapes: args.shapes.unwrap_or(Shapes::USUAL),
        beside: args.beside.clone(),
        records: args.records,
        large: args.large,
        disks: args.disks,
        durability: args.durability.0,
        faults,
        trace: args.trace,
        ..quorate_sim::Options::new()
    };
    options.check().map_err(anyhow::Error::msg)?;
    match args.seed {
        Some(seed) => one(args, seed, &options),
        None => many(args, &options),
    }
}

fn one(args: &Options, seed: u64, options: &quorate_sim::Options) -> anyhow::Result<ExitCode> {
    let result = run_seed(seed, options);
    if result.is_err() {
        write_script(args, seed, options)?;
    }
    report_one(args, result)
}

/// Runs a script again.
fn again(args: &Options, path: &Path) -> anyhow::Result<ExitCode> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let script: Script =
        text.parse().map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    script.options().check().map_err(anyhow::Error::msg)?;
    let result = replay(&script, args.trace);
    if result.is_ok() {
        let once = script.expect().map_or("success", FailureKind::name);
        println!("expected was {once}");
    }
    report_one(args, result)
}

fn report_one(args: &Options, result: Result<Run, Box<Failure>>) -> anyhow::Result<ExitCode> {
    match result {
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

/// Writes the script of a seed that fails, as short as it can be made.
fn write_script(args: &Options, seed: u64, options: &quorate_sim::Options) -> anyhow::Result<()> {
    if args.shrink == 0 {
        return Ok(());
    }
    // Every run of a failing script may say why it panics; one word about it is enough.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(args.shrink) };
    let (_, recorded) = record(seed, options);
    let failing = recorded.filter(|script| script.expect().is_some());
    let is_recorded = failing.is_some();
    let shortest = failing.and_then(|script| {
        let tell = |left, [ops, faults, messages]: [usize; 3]| {
            bar.set_position(args.shrink - left);
            bar.set_message(format!("{ops} ops, {faults} faults, {messages} messages"));
        };
        shrink(&script, args.shrink, tell)
    });
    bar.finish_and_clear();
    std::panic::set_hook(hook);
    let Some(script) = shortest else {
        if is_recorded {
            eprintln!(
                "seed {seed} can't be shortened: what was recorded of it does not fail in the same way"
            );
        }
        return Ok(());
    };
    let path = args.script.clone();
    let path = path.unwrap_or_else(|| format!("sim-{}-{seed}.txt", options.engine).into());
    std::fs::write(&path, script.to_string())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let [ops, faults, messages] = script.sizes();
    eprintln!("seed {seed} shortened to {ops} ops, {faults} faults, {messages} messages:");
    eprintln!("  quorate sim --replay {}", path.display());
    Ok(())
}

fn report_run(run: &Run) {
    let [done, refused, unknown] = run.ops;
    println!(
        "seed {} passed: {done} ops done, {refused} refused, {unknown} unknown; epoch {}; {} peer \
         messages; digest {:016x}",
        run.seed, run.epoch, run.messages, run.digest
    );
    println!("  {}", run.setup);
    report_calls(run.calls);
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
    let stop = stop_on_signals().context("cannot listen to signals of the system")?;
    let seeds = args.from..args.from.saturating_add(args.seeds);
    let result = sweep(seeds.clone(), options, args.failures, |done| {
        bar.set_position(done);
        match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.finish_and_clear();
    for failure in &result.failures {
        eprintln!("{failure}");
        eprintln!("  replay: {}", replay_command(args, failure));
    }
    let stopped_early = result.seeds != seeds;
    if !args.quiet {
        report_sweep(args, &result);
    } else if stopped_early {
        println!("{}", summary(args, &result));
    }
    if let Some(failure) = result.failures.first() {
        write_script(args, failure.seed, options)?;
        return Ok(ExitCode::from(failure.kind.exit_code()));
    }
    Ok(if stopped_early { ExitCode::from(EXIT_INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Set by the first signal to end, after which the seeds that were begun are finished; a second
/// signal ends the process at once.
fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag not yet set.
        flag::register_conditional_shutdown(
            signal,
            i32::from(EXIT_INTERRUPTED),
            Arc::clone(&stop),
        )?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// The one command that shows the failure again.
fn replay_command(args: &Options, failure: &Failure) -> String {
    let mut command = format!("quorate sim --engine {} --seed {}", args.engine, failure.seed);
    if args.workload != Workload::Mix {
        command.push_str(&format!(" --workload {}", args.workload));
    }
    if args.isolation.0.is_some() {
        command.push_str(&format!(" --isolation {}", args.isolation));
    }
    if let Some(faults) = args.faults {
        command.push_str(&format!(" --faults {faults}"));
    }
    if let Some(shapes) = args.shapes {
        command.push_str(&format!(" --shapes {shapes}"));
    }
    if args.beside != Beside::Any {
        command.push_str(&format!(" --beside {}", args.beside));
    }
    if let Some(records) = args.records {
        command.push_str(&format!(" --records {records}"));
    }
    if let Some(large) = args.large {
        command.push_str(&format!(" --large {large}"));
    }
    if args.disks {
        command.push_str(" --disks");
    }
    if args.durability.0.is_some() {
        command.push_str(&format!(" --durability {}", args.durability));
    }
    if let Some(guests) = args.guests {
        command.push_str(&format!(" --guests {guests}"));
    }
    if let Some(sessions) = args.sessions {
        command.push_str(&format!(" --sessions {sessions}"));
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

fn report_calls([acknowledged, unknown]: [u64; 2]) {
    if acknowledged + unknown > 0 {
        println!("  calls of sessions: {acknowledged} effects acknowledged, {unknown} unknown");
    }
}

/// What was run, so that it can be written down: all seeds of a range.
fn summary(args: &Options, result: &Sweep) -> String {
    let (first, last) = (result.seeds.start, result.seeds.end.saturating_sub(1));
    let run = result.seeds.end - result.seeds.start;
    format!("{} of {run} seeds ({first} to {last}) passed on engine {}", result.passed, args.engine)
}

fn report_sweep(args: &Options, result: &Sweep) {
    let [done, refused, unknown] = result.ops;
    println!(
        "{}: {done} ops done, {refused} refused, {unknown} unknown; {} views; {} peer messages",
        summary(args, result),
        result.views,
        result.messages
    );
    report_calls(result.calls);
    if result.beyond > 0 {
        println!(
            "  {} of them lost a majority of the members or of a partition: only safety judged",
            result.beyond
        );
    }
    if result.stale > 0 {
        println!("  {} of them had old reads, as a clock broke its bound", result.stale);
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
