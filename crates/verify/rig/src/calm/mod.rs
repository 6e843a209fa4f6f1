//! How calm systems stay when no fault harms them, but the machine that they share is noisy.
//!
//! Each system runs for a while with each noise, new each time and all in turn: Quorate with each
//! engine, a plain Redis server, Redis with Sentinel, and etcd. Their clients are the same loop:
//! one request after the other, a write and a read in turn, with a patience longer than any noise.
//! A *gap* is the longest time between two answers of one client. An *error* is one that a program
//! would have to handle; a server that closes a connection without a request under way causes none.

pub(crate) mod clients;
pub(crate) mod noise;
mod systems;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::engines::ENGINES;
use crate::net::Net;
use crate::report::{median, millis};
use crate::rivals;
use clients::{CLIENTS, Met, work};
use noise::Noise;
use systems::{Changes, Kind};

/// Machines of a system.
const MACHINES: usize = 3;
/// A system of three may go without answers this many times longer than one plain server.
const GAP_GOAL: f64 = 2.0;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Seconds of each noise with each system, in all rounds together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Rounds: how often all systems take turns
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// What disturbs; without it, busy loops and stalls
    #[arg(long = "noise", value_enum)]
    noises: Vec<Noise>,
    /// Only systems whose name contains one of these
    #[arg(long = "only")]
    only: Vec<String>,
    /// What decides when and where stalls come
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs go
    #[arg(long, default_value = "/tmp/quorate-rig-calm")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A noise with a system, in all rounds together.
#[derive(Clone, Debug)]
struct Cell {
    system: &'static str,
    noise: Noise,
    met: Met,
    changes: Changes,
    /// The reasons why rounds failed.
    broken: Vec<String>,
}

/// Measures, prints the table and writes the JSON.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binary = crate::quorate(options.binary.as_ref())?;
    // Logs of an earlier run.
    let _ = std::fs::remove_dir_all(&options.work);
    std::fs::create_dir_all(&options.work)?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let mut noises = options.noises.clone();
    if noises.is_empty() {
        noises = vec![Noise::Busy, Noise::Stalls];
    }
    let kinds = kinds(&options.only);
    let net = Net::new(MACHINES)?;
    let mut cells = Vec::new();
    for &noise in &noises {
        cells.extend(kinds.iter().map(|kind| Cell {
            system: kind.name(),
            noise,
            met: Met::default(),
            changes: Changes::default(),
            broken: Vec::new(),
        }));
    }
    let length = Duration::from_secs(options.seconds) / options.rounds.max(1) as u32;
    for round in 0..options.rounds {
        let places = noises.iter().flat_map(|noise| kinds.iter().map(move |kind| (*noise, kind)));
        for ((noise, kind), cell) in places.zip(&mut cells) {
            let work = options.work.join(format!("{}-{}-{round}", kind.name(), noise.name()));
            let seed = options.seed + round;
            match play(&net, kind, noise, length, seed, &binary, &work) {
                Ok((met, changes)) => cell.add(round, &met, changes),
                Err(error) => {
                    println!("{round:>3} {:<14} {}: {error:#}", kind.name(), noise.name());
                    cell.broken.push(format!("{error:#}"));
                }
            }
        }
    }
    println!("\n{}", table(&cells));
    let (goals, met) = goals(&cells);
    println!("{goals}");
    println!("load average before: {}", load.trim());
    if let Some(file) = &options.json {
        let cells: Vec<Value> = cells.iter().map(Cell::json).collect();
        let result = json!({
            "load_before": load.trim(), "seconds": options.seconds, "rounds": options.rounds,
            "clients": CLIENTS, "seed": options.seed, "cells": cells,
        });
        std::fs::write(file, serde_json::to_vec_pretty(&result)?)?;
    }
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The chosen systems that are installed.
fn kinds(only: &[String]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = ENGINES.iter().map(Kind::Quorate).collect();
    kinds.extend([
        Kind::Redis,
        Kind::Sentinel { name: "sentinel-tuned", settings: rivals::TUNED },
        Kind::Etcd,
    ]);
    kinds.retain(|kind| only.is_empty() || only.iter().any(|only| kind.name().contains(only)));
    kinds.retain(|kind| match kind.lacks() {
        Some(program) => {
            println!("{} is left out: {program} is not installed", kind.name());
            false
        }
        None => true,
    });
    kinds
}

/// One round of one noise with one system, from its start to its end.
fn play(
    net: &Net,
    kind: &Kind,
    noise: Noise,
    length: Duration,
    seed: u64,
    binary: &Path,
    directory: &Path,
) -> anyhow::Result<(Met, Changes)> {
    let mut system = kind.start(net, binary, directory).context("it does not start")?;
    let before = system.changes()?;
    let clients = (0..CLIENTS).map(|number| system.client(number)).collect();
    let (met, ()) = work(clients, || noise.make(system.as_ref(), length, seed))?;
    let changes = system.changes().context("it is not whole again")?.since(before);
    Ok((met, changes))
}

impl Cell {
    fn add(&mut self, round: u64, met: &Met, changes: Changes) {
        println!(
            "{round:>3} {:<14} {:<10} {:>7} ops  {:>6} errors  gaps {:>7.1} {:>7.1} ms  {:>3} views  \
             {:>3} expelled",
            self.system,
            self.noise.name(),
            met.ops,
            met.error_count(),
            millis(median(&met.gaps)),
            millis(met.worst_gap()),
            changes.views,
            changes.expulsions,
        );
        self.met.add(met);
        self.changes.views += changes.views;
        self.changes.expulsions += changes.expulsions;
    }

    fn json(&self) -> Value {
        json!({
            "system": self.system,
            "noise": self.noise.name(),
            "clients": self.met.json(),
            "views": self.changes.views,
            "expulsions": self.changes.expulsions,
            "broken": self.broken,
        })
    }
}

fn table(cells: &[Cell]) -> String {
    let mut text =
        "| noise | system | ops | client errors | longest gap of a client: median, worst \
                    (ms) | views, failovers or terms | expelled |\n\
                    | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for Cell { system, noise, met, changes, .. } in cells {
        text += &format!(
            "| {} | {system} | {} | {} | {:.0}, {:.0} | {} | {} |\n",
            noise.name(),
            met.ops,
            met.error_count(),
            millis(median(&met.gaps)),
            millis(met.worst_gap()),
            changes.views,
            changes.expulsions,
        );
    }
    text
}

/// How each engine meets its goals, and whether all meet all.
fn goals(cells: &[Cell]) -> (String, bool) {
    let (mut text, mut met) = (String::new(), true);
    let engines = cells.iter().filter(|cell| ENGINES.iter().any(|e| e.name == cell.system));
    for cell in engines {
        let mut missed = Vec::new();
        if cell.met.error_count() > 0 {
            missed.push(format!("{} client errors", cell.met.error_count()));
        }
        if cell.changes.expulsions > 0 {
            missed.push(format!("{} expulsions", cell.changes.expulsions));
        }
        let plain = cells.iter().find(|other| other.noise == cell.noise && other.system == "redis");
        let worst = |cell: &Cell| millis(cell.met.worst_gap());
        if let Some(plain) = plain.filter(|plain| worst(cell) > GAP_GOAL * worst(plain)) {
            missed.push(format!("a gap {:.1} times that of redis", worst(cell) / worst(plain)));
        }
        missed.extend(cell.broken.iter().cloned());
        met &= missed.is_empty();
        let verdict = match missed.as_slice() {
            [] => "met".to_owned(),
            missed => format!("MISSED: {}", missed.join(", ")),
        };
        text += &format!("{}, {}: {verdict}\n", cell.system, cell.noise.name());
    }
    (text, met)
}
