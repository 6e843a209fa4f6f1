//! The cost of an expelled node's return, beside a copy of everything.
//!
//! A cluster is filled with keys. One node stands still until the others go on without it, some
//! keys change, and it goes on: bytes are counted at its place of the network until it takes part
//! again. Then its process is killed and a new one copies everything, counted in the same way.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::engines::{ENGINES, Engine};
use crate::net::Net;
use crate::report::millis;
use crate::resp::{Connection, Reply};

/// Nodes of the cluster.
const NODES: usize = 3;
/// The one that leaves and comes back.
const VICTIM: usize = 2;
/// SETs under way at once; pipelining shortens the fill.
const PIPELINE: usize = 500;
/// Longest that an answer may take while the cluster is filled.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest that the others may take to go on alone, and that a node may take to come back.
const CHANGE_MAX: Duration = Duration::from_secs(300);
/// The pause between two questions to a survivor.
const POLL: Duration = Duration::from_millis(20);

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Keys in the cluster
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// How many of a thousand change while the node is away
    #[arg(long, default_value_t = 10)]
    changed_permille: u64,
    /// Bytes of each value
    #[arg(long, default_value_t = 64)]
    value_bytes: usize,
    /// Only this engine
    #[arg(long)]
    engine: Option<String>,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs go
    #[arg(long, default_value = "/tmp/quorate-rig-rejoin")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One way of returning.
#[derive(Clone, Copy, Debug)]
struct Return {
    /// Bytes that the node received.
    received: u64,
    sent: u64,
    took: Duration,
}

impl Return {
    fn bytes(self) -> u64 {
        self.received + self.sent
    }

    fn json(self) -> Value {
        json!({
            "received_bytes": self.received, "sent_bytes": self.sent, "ms": millis(self.took),
        })
    }
}

/// Measures, prints the table and writes the JSON.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binary = crate::quorate(options.binary.as_ref())?;
    // Logs of an earlier run.
    let _ = std::fs::remove_dir_all(&options.work);
    let net = Net::new(NODES)?;
    let chosen = options.engine.as_deref().map(crate::engines::find).transpose()?;
    let mut text = "| engine | keys | changed | back after an expulsion: bytes, ms | a copy of \
                    everything: bytes, ms | share of the bytes |\n\
                    | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    let mut rows = Vec::new();
    for engine in ENGINES.iter().filter(|e| chosen.is_none_or(|chosen| chosen.name == e.name)) {
        let work = options.work.join(engine.name);
        let mut cluster = Cluster::start(&net, 1..=NODES, engine, "", &binary, &work)?;
        let (rejoin, copy) = measure(options, &net, engine, &mut cluster)?;
        let changed = options.keys * options.changed_permille / 1000;
        let share = rejoin.bytes() as f64 / copy.bytes() as f64;
        text += &format!(
            "| {} | {} | {changed} | {}, {:.0} | {}, {:.0} | {:.1}% |\n",
            engine.name,
            options.keys,
            rejoin.bytes(),
            millis(rejoin.took),
            copy.bytes(),
            millis(copy.took),
            100.0 * share,
        );
        rows.push(json!({
            "engine": engine.name, "keys": options.keys, "changed": changed,
            "value_bytes": options.value_bytes, "rejoin": rejoin.json(), "copy": copy.json(),
        }));
    }
    println!("\n{text}");
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    options: &Options,
    net: &Net,
    engine: &Engine,
    cluster: &mut Cluster,
) -> anyhow::Result<(Return, Return)> {
    println!("{}: filling with {} keys", engine.name, options.keys);
    fill(cluster, "a", 0..options.keys, options.value_bytes)?;
    cluster.stop(VICTIM)?;
    wait(cluster, "the others go on alone", |member| member["live"] == false)?;
    // Spread over the keys.
    let step = (1000 / options.changed_permille.max(1)) as usize;
    fill(cluster, "b", (0..options.keys).step_by(step), options.value_bytes)?;
    let rejoin = count(cluster, |cluster| {
        cluster.go_on(VICTIM)?;
        wait(cluster, "the node is back", takes_part)
    })?;
    println!("{}: back after an expulsion, {rejoin:?}", engine.name);
    cluster.kill(VICTIM)?;
    wait(cluster, "the others go on alone", |member| member["live"] == false)?;
    let copy = count(cluster, |cluster| {
        cluster.launch(net, VICTIM)?;
        wait(cluster, "the new process takes part", takes_part)
    })?;
    println!("{}: a copy of everything, {copy:?}", engine.name);
    Ok((rejoin, copy))
}

/// Sets keys to values that begin with `mark`, those again that a node refused or may have lost.
fn fill(
    cluster: &Cluster,
    mark: &str,
    keys: impl Iterator<Item = u64>,
    value_bytes: usize,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(&cluster.clients()[0], PATIENCE)?;
    let value = mark.repeat(value_bytes);
    let deadline = Instant::now() + CHANGE_MAX;
    let (mut keys, mut again) = (keys.peekable(), Vec::new());
    while keys.peek().is_some() || !again.is_empty() {
        ensure!(Instant::now() < deadline, "in vain: the cluster takes {} more keys", again.len());
        let mut under_way = std::mem::take(&mut again);
        under_way.extend(keys.by_ref().take(PIPELINE - under_way.len()));
        for key in &under_way {
            connection.send(&["SET", &format!("key:{key}"), &value])?;
        }
        for key in under_way {
            if matches!(connection.receive()?, Reply::Error(_)) {
                again.push(key);
            }
        }
    }
    Ok(())
}

/// The bytes that pass at the victim's place until `happens` returns.
fn count(
    cluster: &mut Cluster,
    happens: impl FnOnce(&mut Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<Return> {
    let slot = cluster.nodes[VICTIM].slot;
    let (begin, before) = (Instant::now(), crate::net::traffic(slot)?);
    happens(cluster)?;
    let after = crate::net::traffic(slot)?;
    Ok(Return { received: after.0 - before.0, sent: after.1 - before.1, took: begin.elapsed() })
}

fn takes_part(member: &Value) -> bool {
    member["live"] == true && member["role"] == "active"
}

/// Waits until `holds` is true of the victim in a survivor's view.
fn wait(cluster: &Cluster, what: &str, holds: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + CHANGE_MAX;
    // A survivor that is busy answers later.
    while !member(cluster).is_ok_and(|member| holds(&member)) {
        ensure!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// The victim, in a survivor's view.
fn member(cluster: &Cluster) -> anyhow::Result<Value> {
    let view = cluster.view(0)?;
    let members = view["members"].as_array().context("a view has members")?;
    let id = cluster.nodes[VICTIM].id;
    members.iter().find(|member| member["node"] == id).cloned().context("it is a member")
}
