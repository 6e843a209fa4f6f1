//! Rounds: clients work, a fault happens, the cluster recovers, the clients' histories are judged.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use quorate_machine::Rng;

use crate::clients::{Clients, Seen, accounts};
use crate::cluster::{Cluster, NotWhole};
use crate::engines::{self, ENGINES, Engine};
use crate::faults::{Field, LEASE_MS, Needs, SCENARIOS, Scenario};
use crate::judge::{Judgement, judge, save};
use crate::net::Net;
use crate::power::{Disks, Durability};
use crate::probe::Probes;
use crate::report::Report;
use crate::workers::Workers;

/// Exit codes.
const ANOMALY: u8 = 1;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Of which engines; all without it
    #[arg(long = "engine")]
    engines: Vec<String>,
    /// Nodes of a cluster, 3 to 7; with zeus and more than 3, some have copies of a key and some not
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=7))]
    nodes: u8,
    /// How long to go on with each engine, beginning again with the first scenario; without it each
    /// scenario is played once
    #[arg(long)]
    minutes: Option<u64>,
    /// How often each scenario is played with each engine
    #[arg(long, default_value_t = 1, conflicts_with = "minutes")]
    times: usize,
    /// What the nodes keep on disks: nothing; what they acknowledge; or that on disks that lose what was
    /// not flushed when their power is cut, which needs FUSE (/dev/fuse)
    #[arg(long, value_enum, default_value_t = Disks::None)]
    disks: Disks,
    /// What promises wait for, with disks: with async for nothing, and scenarios are left out in which all
    /// nodes may end that have what was acknowledged last
    #[arg(long, value_enum, default_value_t = Durability::Sync)]
    durability: Durability,
    /// Only these scenarios
    #[arg(long = "only")]
    only: Vec<String>,
    /// Decides what is drawn; the timing of processes is not drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs and the histories of anomalies go
    #[arg(long, default_value = "/tmp/quorate-rig")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// The program has a defect: end at the first anomaly, or when the cluster does not recover, and say
    /// after how long; fail without either
    #[arg(long)]
    until_anomaly: bool,
}

/// Runs the rounds and prints the table. 0: no anomaly; 1: anomalies (the other way round with
/// `--until-anomaly`).
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binary = crate::quorate(options.binary.as_ref())?;
    let names: Vec<&str> = match options.engines.as_slice() {
        [] => ENGINES.iter().map(|engine| engine.name).collect(),
        given => given.iter().map(String::as_str).collect(),
    };
    let wanted = |scenario: &&Scenario| {
        options.only.is_empty() || options.only.iter().any(|name| name == scenario.name)
    };
    let scenarios: Vec<&Scenario> = SCENARIOS.iter().filter(wanted).collect();
    ensure!(!scenarios.is_empty(), "no scenario is called so; there are {:?}", all_names());
    let mut net = Net::new(usize::from(options.nodes) + 1)?;
    let mut report = Report::new(options.nodes, options.minutes);
    for name in names {
        let engine = engines::find(name)?;
        let mut stage = Stage { options, net: &mut net, engine, binary: &binary, rounds: 0 };
        let mut scenarios = scenarios.clone();
        let (disks, durability) = (options.disks, options.durability);
        ensure!(
            disks != Disks::None || durability == Durability::Sync,
            "without disks there is nothing to be durable; give --disks, too"
        );
        ensure!(
            disks == Disks::None || engine.on_disks.is_some(),
            "{name} keeps nothing on disks; leave it out by --engine"
        );
        scenarios.retain(|scenario| match scenario.needs {
            Needs::Nothing => true,
            Needs::Moves => engine.moves,
            Needs::Disks => disks != Disks::None,
            Needs::PowerCuts => disks == Disks::Volatile,
        });
        scenarios.retain(|scenario| {
            durability == Durability::Sync
                || !scenario.ends.ends_all_that_have_it(engine, options.nodes)
        });
        ensure!(
            !scenarios.is_empty(),
            "none of these scenarios is one of {name} with disks: {disks:?}, durability: {durability:?}"
        );
        stage.play(&scenarios, &mut report)?;
    }
    println!("\n{}", report.markdown());
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report.json())?)?;
    }
    let wrong = report.anomalies() > 0 || report.undecided() > 0;
    if options.until_anomaly {
        let is_noticed = report.is_stuck || report.anomalies() > 0;
        ensure!(is_noticed, "no anomaly was found: the rig misses this defect");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(if wrong { ExitCode::from(ANOMALY) } else { ExitCode::SUCCESS })
}

fn all_names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|scenario| scenario.name).collect()
}

/// One engine's turn.
struct Stage<'a> {
    options: &'a Options,
    net: &'a mut Net,
    engine: &'static Engine,
    binary: &'a PathBuf,
    rounds: u64,
}

impl Stage<'_> {
    fn play(&mut self, scenarios: &[&Scenario], report: &mut Report) -> anyhow::Result<()> {
        let begin = Instant::now();
        let end = self.options.minutes.map(|minutes| begin + Duration::from_secs(60 * minutes));
        let mut random = Rng::new(self.options.seed);
        let mut clusters = 0;
        let mut cluster = self.cluster(&mut clusters)?;
        let mut turn = 0;
        let turns = scenarios.len() * self.options.times;
        while end.map_or(turn < turns, |end| Instant::now() < end) {
            let scenario = scenarios[turn % scenarios.len()];
            turn += 1;
            if !cluster.has_ids() {
                report.add_power(&cluster);
                drop(cluster);
                cluster = self.cluster(&mut clusters)?;
            }
            let played = self.round(scenario, &mut cluster, &mut random, report);
            let is_stuck = played.as_ref().is_err_and(anyhow::Error::is::<NotWhole>);
            if self.options.until_anomaly && (is_stuck || report.anomalies() > 0) {
                report.is_stuck |= is_stuck;
                let what = if is_stuck { "no recovery" } else { "an anomaly" };
                let seconds = begin.elapsed().as_secs_f64();
                let (engine, rounds) = (self.engine.name, self.rounds);
                println!("{engine}: {what} after {seconds:.0} s, in round {rounds}");
                break;
            }
            played?;
        }
        report.add_power(&cluster);
        Ok(())
    }

    fn cluster(&self, clusters: &mut u32) -> anyhow::Result<Cluster> {
        *clusters += 1;
        let work = self.options.work.join(format!("{}-{clusters}", self.engine.name));
        // Logs of an earlier run.
        let _ = std::fs::remove_dir_all(&work);
        let nodes = usize::from(self.options.nodes);
        let settings = format!("lease_ms = {LEASE_MS}\n");
        let disks = (self.options.disks, self.options.durability);
        let (engine, net) = (self.engine, &*self.net);
        Cluster::start_with(net, 1..=nodes, engine, &settings, self.binary, &work, disks)
    }

    fn round(
        &mut self,
        scenario: &Scenario,
        cluster: &mut Cluster,
        random: &mut Rng,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        self.rounds += 1;
        let (engine, rounds) = (self.engine, self.rounds);
        let prefix = format!("{rounds}:");
        let work = &self.options.work;
        let places = cluster.clients();
        let clients = Clients::start(&places, engine, &prefix, work, random.next_u64())?;
        let workers = Workers::start(&places, engine, &prefix);
        clients.work()?;
        let probes = Probes::start(&places, &prefix);
        let begin = Instant::now();
        let (net, recorder) = (&mut *self.net, clients.recorder());
        let mut field = Field { net, cluster, engine, random, prefix: &prefix, recorder };
        let played = (scenario.run)(&mut field);
        drop(field);
        played
            .and_then(|()| cluster.converge())
            .with_context(|| format!("{}, round {rounds}, {}", engine.name, scenario.name))?;
        let recovered = begin.elapsed();
        let gap = probes.finish();
        clients.work()?;
        let Seen { history, asked_again } = clients.finish(&cluster.clients())?;
        let seen = workers.finish(&cluster.clients())?;
        let mut judgement =
            Judgement { asked_again, ..judge(&history, &accounts(&prefix), engine) };
        judgement.done += seen.done;
        judgement.refused += seen.refused;
        judgement.unknown += seen.unknown;
        judgement.anomalies.extend(seen.anomalies);
        println!(
            "{:<8} {rounds:>4} {:<16} {:>6} done {:>4} asked again {:>4} unknown {:>5} refused  \
             no write for {:>5} ms  {} anomalies",
            engine.name,
            scenario.name,
            judgement.done,
            judgement.asked_again,
            judgement.unknown,
            judgement.refused,
            gap.as_millis(),
            judgement.anomalies.len()
        );
        if !judgement.anomalies.is_empty() || judgement.undecided > 0 {
            let file = work.join(format!("{}-{rounds}-{}.jsonl", engine.name, scenario.name));
            save(&history, &file)?;
            println!("look at it with: quorate check {}", file.display());
            judgement.anomalies.iter().take(2).for_each(|text| println!("{text}"));
        }
        report.add(engine.name, scenario, &judgement, gap, recovered);
        Ok(())
    }
}

/// Sums over the rounds of one scenario, by name.
pub(crate) type Rows = BTreeMap<(&'static str, usize), crate::report::Row>;
