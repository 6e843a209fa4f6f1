//! `quorate-rig`: clusters of real processes, each in a network of its own, under real faults.
//!
//! `faults` lets clients work while processes are killed, stopped, cut off and replaced, and has
//! `quorate-check` judge their histories. `failover` measures how long clients wait after a fault,
//! beside Redis Sentinel and etcd. `calm` measures how a noisy machine affects clients, beside the
//! same and plain Redis; `rolling` how restarts affect them; `rejoin` counts the bytes that bring a
//! node back; `attacks` measures how long clients wait while another one asks for long work. The
//! chapters `docs/src/faults.md`, `docs/src/failover.md` and `docs/src/calm.md` have the results.
//!
//! Everything runs inside namespaces that end with this process ([`inside`]): then every process it
//! started, every network and every mount is gone, whichever way it ended.
#![forbid(unsafe_code)]

mod attacks;
mod calm;
mod clients;
mod cluster;
mod engines;
mod failover;
mod faults;
mod inside;
mod judge;
mod moves;
mod net;
mod power;
mod probe;
mod process;
mod rejoin;
mod report;
mod resp;
mod rivals;
mod rolling;
mod rounds;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Real processes under real faults
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let clients work under faults, and judge what they saw
    Faults(rounds::Options),
    /// Measure the time from a fault to the next acknowledged write and read
    Failover(failover::Options),
    /// Measure what clients feel of a noisy machine, beside Redis and etcd
    Calm(calm::Options),
    /// Let one client ask for long work, and measure what others wait
    Attacks(attacks::Options),
    /// Restart the nodes one after the other under load, and measure what clients feel of it
    Rolling(rolling::Options),
    /// Count the bytes that bring an expelled node back, beside those of a full copy
    Rejoin(rejoin::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = inside::enter().and_then(|()| match cli.command {
        Command::Faults(options) => rounds::run(&options),
        Command::Failover(options) => failover::run(&options),
        Command::Calm(options) => calm::run(&options),
        Command::Attacks(options) => attacks::run(&options),
        Command::Rolling(options) => rolling::run(&options),
        Command::Rejoin(options) => rejoin::run(&options),
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The program under test, by default the one built beside this.
fn quorate(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    let path = match given {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("quorate"),
    };
    anyhow::ensure!(path.exists(), "{} is not there; build it, or give --binary", path.display());
    Ok(path.canonicalize()?)
}
