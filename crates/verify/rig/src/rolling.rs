//! A rolling restart under load: each node in turn is asked to end, and is back before the next.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::calm::clients::{CLIENTS, Client, Met, Resp, work};
use crate::cluster::Cluster;
use crate::engines::{ENGINES, Engine};
use crate::net::Net;
use crate::report::{median, millis};

/// Nodes of the cluster.
const NODES: usize = 3;
/// How long clients work before the first restart, after the last, and in between.
const BETWEEN: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Restarts of the whole cluster with each engine
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Only this engine
    #[arg(long)]
    engine: Option<String>,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs go
    #[arg(long, default_value = "/tmp/quorate-rig-rolling")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The rounds of an engine.
#[derive(Debug, Default)]
struct Row {
    met: Met,
    /// How long each restart took: from SIGTERM until the node served again.
    away: Vec<Duration>,
}

/// Measures, prints the table and writes the JSON.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binary = crate::quorate(options.binary.as_ref())?;
    // Logs of an earlier run.
    let _ = std::fs::remove_dir_all(&options.work);
    let net = Net::new(NODES)?;
    let chosen = options.engine.as_deref().map(crate::engines::find).transpose()?;
    let mut text = "| engine | restarts | ops | client errors | longest gap of a client: median, \
                    worst (ms) | a node is away: median, worst (ms) |\n\
                    | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    let mut rows = Vec::new();
    for engine in ENGINES.iter().filter(|e| chosen.is_none_or(|chosen| chosen.name == e.name)) {
        let work = options.work.join(engine.name);
        let mut cluster = Cluster::start(&net, 1..=NODES, engine, "", &binary, &work)?;
        let mut row = Row::default();
        for round in 0..options.rounds {
            row.round(round, &net, engine, &mut cluster)?;
        }
        text += &row.line(engine);
        rows.push(row.json(engine));
    }
    println!("\n{text}");
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Row {
    fn round(
        &mut self,
        round: u64,
        net: &Net,
        engine: &Engine,
        cluster: &mut Cluster,
    ) -> anyhow::Result<()> {
        let client = |number| Box::new(Resp::of_any(number, cluster.clients())) as Box<dyn Client>;
        let clients = (0..CLIENTS).map(client).collect();
        let (met, away) = work(clients, || {
            std::thread::sleep(BETWEEN);
            let mut away = Vec::new();
            for index in 0..NODES {
                let begin = Instant::now();
                cluster.terminate(index)?;
                cluster.launch(net, index)?;
                cluster.converge()?;
                away.push(begin.elapsed());
                std::thread::sleep(BETWEEN);
            }
            Ok(away)
        })?;
        println!(
            "{round:>3} {:<10} {:>7} ops  {:>5} errors  gaps {:>7.1} {:>7.1} ms",
            engine.name,
            met.ops,
            met.error_count(),
            millis(median(&met.gaps)),
            millis(met.worst_gap()),
        );
        self.met.add(&met);
        self.away.extend(away);
        Ok(())
    }

    fn worst_away(&self) -> Duration {
        self.away.iter().max().copied().unwrap_or_default()
    }

    fn line(&self, engine: &Engine) -> String {
        let met = &self.met;
        format!(
            "| {} | {} | {} | {} | {:.0}, {:.0} | {:.0}, {:.0} |\n",
            engine.name,
            self.away.len(),
            met.ops,
            met.error_count(),
            millis(median(&met.gaps)),
            millis(met.worst_gap()),
            millis(median(&self.away)),
            millis(self.worst_away()),
        )
    }

    fn json(&self, engine: &Engine) -> Value {
        json!({
            "engine": engine.name,
            "restarts": self.away.len(),
            "clients": self.met.json(),
            "away_median_ms": millis(median(&self.away)),
            "away_worst_ms": millis(self.worst_away()),
        })
    }
}
