//! The time that a client waits after a fault for the next acknowledged write and read.
//!
//! Every system has three machines of the same network. A fault hits one of them: the leader or
//! master where there is one. A client that reaches only the other two goes on all the time, with a
//! write and a read in flight. The clock starts before the fault is made, and stops at the answer
//! to the first request that was sent after it had been made.

mod breakdown;
mod quorate;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use quorate_machine::Rng;
use serde_json::{Value, json};

use crate::engines::ENGINES;
use crate::net::Net;
use crate::report::{median, millis};
use crate::rivals;
use breakdown::Parts;

/// The pause between two requests of a client.
const PACE: Duration = Duration::from_millis(1);
/// Requests that must succeed before the fault.
const WARM: usize = 20;
/// The longest that any system may take.
const PATIENCE: Duration = Duration::from_secs(150);
/// Rounds of Sentinel with its defaults, which wait half a minute each.
const ROUNDS_OF_DEFAULTS: u64 = 4;
/// Machines of a system.
const MACHINES: usize = 3;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Rounds of each fault with each system
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Only systems whose name contains one of these
    #[arg(long = "only")]
    only: Vec<String>,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs go
    #[arg(long, default_value = "/tmp/quorate-rig-failover")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A fault of a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    Kill,
    Unplug,
    Stop,
}

const FAULTS: [Fault; 3] = [Fault::Kill, Fault::Unplug, Fault::Stop];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Unplug => "cut off",
            Self::Stop => "SIGSTOP",
        }
    }
}

/// One request of a client: whether it succeeded.
pub(crate) type Request = Box<dyn FnMut() -> bool + Send>;

/// A system of three machines.
pub(crate) trait System: Send {
    fn name(&self) -> &str;

    /// Brings the system to full strength and returns the machine that the fault should hit.
    fn prepare(&mut self, net: &Net, round: u64) -> anyhow::Result<usize>;

    /// A client's writes and reads that don't need the victim.
    fn client(&mut self, victim: usize) -> (Request, Request);

    fn hit(&mut self, victim: usize, fault: Fault) -> anyhow::Result<()>;

    fn mend(&mut self, net: &Net, victim: usize, fault: Fault) -> anyhow::Result<()>;

    /// The parts of the time until the write, if the system logs them.
    fn breakdown(&self, _: usize, _: SystemTime, _: Duration) -> Option<Parts> {
        None
    }
}

/// One round.
#[derive(Clone, Debug)]
struct Shot {
    system: String,
    fault: Fault,
    write: Duration,
    read: Duration,
    parts: Option<Parts>,
}

/// Measures, prints the tables and writes the JSON.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binary = crate::quorate(options.binary.as_ref())?;
    // Logs of an earlier run.
    let _ = std::fs::remove_dir_all(&options.work);
    std::fs::create_dir_all(&options.work)?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let wanted =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| name.contains(only));
    let mut names: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
    names.extend(["sentinel-tuned", "etcd", "sentinel-defaults"]);
    names.retain(|name| wanted(name));
    let net = Net::new(MACHINES * names.len())?;
    let mut systems = Vec::new();
    let mut patient = Vec::new();
    for (index, &name) in names.iter().enumerate() {
        let first = 1 + MACHINES * index;
        let slots = first..=first + MACHINES - 1;
        let work = options.work.join(name);
        std::fs::create_dir_all(&work)?;
        match ENGINES.iter().find(|engine| engine.name == name) {
            Some(engine) => {
                systems.push(quorate::Quorate::start(&net, slots, engine, &binary, &work)?);
            }
            None if name == "etcd" => {
                systems.push(Box::new(rivals::Etcd::new(&net, slots, &work)?));
            }
            None if name == "sentinel-tuned" => {
                let sentinel = rivals::Sentinel::new(name, slots, &work, rivals::TUNED);
                systems.push(Box::new(sentinel));
            }
            None => patient.push(Box::new(rivals::Sentinel::new(name, slots, &work, "")) as _),
        }
    }
    let mut shots = std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| measure(&net, &mut patient, options.rounds.min(ROUNDS_OF_DEFAULTS)));
        let shots = measure(&net, &mut systems, options.rounds)?;
        let waiting = waiting.join().map_err(|_| anyhow::anyhow!("a measurement panicked"))??;
        anyhow::Ok([shots, waiting].concat())
    })?;
    shots.sort_by(|a, b| (&a.system, a.fault).cmp(&(&b.system, b.fault)));
    println!("\n{}", tables(&names, &shots));
    println!("load average before: {}", load.trim());
    if let Some(file) = &options.json {
        let shots: Vec<Value> = shots.iter().map(Shot::json).collect();
        let result = json!({ "load_before": load.trim(), "systems": names, "shots": shots });
        std::fs::write(file, serde_json::to_vec_pretty(&result)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All systems in turn, so that other work of the machine affects all of them.
fn measure(net: &Net, systems: &mut [Box<dyn System>], rounds: u64) -> anyhow::Result<Vec<Shot>> {
    let mut random = Rng::new(7);
    let mut shots = Vec::new();
    for round in 0..rounds {
        for fault in FAULTS {
            for system in systems.iter_mut() {
                let name = system.name().to_owned();
                let shot = shoot(net, system.as_mut(), fault, round, &mut random)
                    .with_context(|| format!("{name}, {}, round {round}", fault.name()))?;
                println!(
                    "{round:>3} {name:<18} {:<8} write {:>8.1} ms  read {:>8.1} ms  {}",
                    fault.name(),
                    millis(shot.write),
                    millis(shot.read),
                    shot.parts.map(|parts| parts.to_string()).unwrap_or_default()
                );
                shots.push(shot);
            }
        }
    }
    Ok(shots)
}

fn shoot(
    net: &Net,
    system: &mut dyn System,
    fault: Fault,
    round: u64,
    random: &mut Rng,
) -> anyhow::Result<Shot> {
    let victim = system.prepare(net, round)?;
    let (write, read) = system.client(victim);
    let stop = AtomicBool::new(false);
    let (write, read, at) = std::thread::scope(|scope| {
        let (writes, written) = channel();
        let (reads, seen) = channel();
        let stop = &stop;
        scope.spawn(move || work(write, stop, &writes));
        scope.spawn(move || work(read, stop, &reads));
        let result = (|| {
            for answers in [&written, &seen] {
                for _ in 0..WARM {
                    answers.recv_timeout(PATIENCE).context("no answer before the fault")?;
                }
            }
            // At any phase of the system's periodic work.
            std::thread::sleep(Duration::from_millis(random.below(200)));
            let (begin, at) = (Instant::now(), SystemTime::now());
            system.hit(victim, fault)?;
            let made = Instant::now();
            let first = |answers: &std::sync::mpsc::Receiver<(Instant, Instant)>| loop {
                let (sent, answered) =
                    answers.recv_timeout(PATIENCE).context("no answer after the fault")?;
                if sent >= made {
                    return anyhow::Ok(answered - begin);
                }
            };
            anyhow::Ok((first(&written)?, first(&seen)?, at))
        })();
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    let parts = system.breakdown(victim, at, write);
    system.mend(net, victim, fault)?;
    Ok(Shot { system: system.name().to_owned(), fault, write, read, parts })
}

/// Sends one request after the other, and reports when each successful one was sent and answered.
fn work(mut request: Request, stop: &AtomicBool, answers: &Sender<(Instant, Instant)>) {
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        if request() && answers.send((sent, Instant::now())).is_err() {
            return;
        }
        std::thread::sleep(PACE);
    }
}

impl Shot {
    fn json(&self) -> Value {
        json!({
            "system": self.system,
            "fault": self.fault.name(),
            "write_ms": millis(self.write),
            "read_ms": millis(self.read),
            "parts_ms": self.parts.map(Parts::json),
        })
    }
}

fn tables(names: &[&str], shots: &[Shot]) -> String {
    let mut text =
        "| system | fault | rounds | write: median, worst (ms) | read: median, worst (ms) |\n\
                    | --- | --- | --- | --- | --- |\n"
            .to_owned();
    let mut parts = format!("\n{}", Parts::head());
    for name in names {
        for fault in FAULTS {
            let chosen: Vec<&Shot> =
                shots.iter().filter(|shot| shot.system == *name && shot.fault == fault).collect();
            if chosen.is_empty() {
                continue;
            }
            let column = |pick: fn(&Shot) -> Duration| {
                let times: Vec<Duration> = chosen.iter().map(|shot| pick(shot)).collect();
                let worst = times.iter().max().copied().unwrap_or_default();
                format!("{:.0}, {:.0}", millis(median(&times)), millis(worst))
            };
            let (writes, reads) = (column(|shot| shot.write), column(|shot| shot.read));
            let (fault, rounds) = (fault.name(), chosen.len());
            text += &format!("| {name} | {fault} | {rounds} | {writes} | {reads} |\n");
            let known: Vec<Parts> = chosen.iter().filter_map(|shot| shot.parts).collect();
            if !known.is_empty() {
                parts += &format!("| {name} | {fault} | {}", Parts::medians(&known));
            }
        }
    }
    text + &parts
}
