//! What other clients wait while one asks for work that takes long: commands on large values, on many
//! keys, on the whole keyspace, more of them than a lane can do within its lease. Nothing of it is a
//! fault, so no node may be expelled.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::engines::{ENGINES, Engine};
use crate::net::Net;
use crate::report::millis;
use crate::resp::{Connection, Reply};

/// Nodes of the cluster; the first is attacked.
const NODES: usize = 3;
/// Bytes of the large value: the most there can be.
const LARGE_BYTES: usize = 4 * 1024 * 1024;
/// Keys that are written at once.
const BATCH: usize = 1000;
/// Keys of one command; a transaction takes a few more.
const NAMES: usize = 16_000;
/// Between two requests of a client that is measured.
const PACE: Duration = Duration::from_millis(1);
/// Longest that one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What an attacker asks last, so that it knows where the answers end.
const END: &[u8] = b"the answers end here";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Seconds of each attack
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Keys in the keyspace
    #[arg(long, default_value_t = 200_000)]
    keys: usize,
    /// Only this engine
    #[arg(long)]
    engine: Option<String>,
    /// Only attacks whose name contains one of these
    #[arg(long = "only")]
    only: Vec<String>,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where logs go
    #[arg(long, default_value = "/tmp/quorate-rig-attacks")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What one client sends over and over.
struct Attack {
    name: &'static str,
    what: &'static str,
    /// The bytes of one round.
    round: fn() -> Vec<u8>,
}

const ATTACKS: &[Attack] = &[
    Attack { name: "none", what: "nothing", round: Vec::new },
    Attack {
        name: "bitcount",
        what: "200 `BITCOUNT` of 4 MB",
        round: || command(&[b"BITCOUNT", b"large"]).repeat(200),
    },
    Attack {
        name: "bitop",
        what: "20 `BITOP NOT` of 4 MB",
        round: || command(&[b"BITOP", b"NOT", b"large", b"large"]).repeat(20),
    },
    Attack {
        name: "get",
        what: "40 `GET` of 4 MB",
        round: || command(&[b"GET", b"large"]).repeat(40),
    },
    Attack {
        name: "set",
        what: "4 `SET` of 4 MB",
        round: || command(&[b"SET", b"large", &[b'v'; LARGE_BYTES]]).repeat(4),
    },
    Attack { name: "keys", what: "`KEYS *`", round: || command(&[b"KEYS", b"*"]) },
    Attack {
        name: "scan",
        what: "40 `SCAN 0 COUNT 100000`",
        round: || command(&[b"SCAN", b"0", b"COUNT", b"100000"]).repeat(40),
    },
    Attack { name: "exists", what: "`EXISTS` of 16,000 keys", round: || many(b"EXISTS") },
    Attack { name: "mget", what: "`MGET` of 16,000 keys", round: || many(b"MGET") },
    Attack { name: "del", what: "`DEL` of 16,000 keys", round: || many(b"DEL") },
    // The last one: nothing is left behind it.
    Attack { name: "flush", what: "`FLUSHALL`", round: || command(&[b"FLUSHALL"]) },
];

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number:07}").into_bytes()
}

fn many(name: &[u8]) -> Vec<u8> {
    let keys: Vec<_> = (0..NAMES).map(key).collect();
    let words: Vec<&[u8]> = std::iter::once(name).chain(keys.iter().map(Vec::as_slice)).collect();
    command(&words)
}

/// What one attack did.
#[derive(Debug)]
struct Row {
    rounds: u64,
    /// Of each request of the clients that were measured.
    latencies: Vec<Duration>,
    /// Requests that failed: theirs, and rounds that ended with the connection.
    errors: u64,
    /// How often the view changed.
    views: u64,
}

/// Measures, prints the table and writes the JSON. Fails if a node was expelled or a request failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let binary = crate::quorate(options.binary.as_ref())?;
    // Logs of an earlier run.
    let _ = std::fs::remove_dir_all(&options.work);
    let net = Net::new(NODES)?;
    let chosen = options.engine.as_deref().map(crate::engines::find).transpose()?;
    let mut text =
        "| engine | one client sends | rounds | another waits: median, 99 of 100, longest (ms) \
                    | errors | changes of the view |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    let (mut rows, mut calm) = (Vec::new(), true);
    for engine in ENGINES.iter().filter(|e| chosen.is_none_or(|chosen| chosen.name == e.name)) {
        let work = options.work.join(engine.name);
        let mut cluster = Cluster::start(&net, 1..=NODES, engine, "", &binary, &work)?;
        let is_chosen = |attack: &&Attack| {
            options.only.is_empty() || options.only.iter().any(|part| attack.name.contains(part))
        };
        for attack in ATTACKS.iter().filter(is_chosen) {
            cluster.converge()?;
            let deadline = Instant::now() + PATIENCE;
            while !is_full(&cluster, options.keys) {
                ensure!(Instant::now() < deadline, "the keyspace can't be filled");
                // What a change of the view has cut short is tried again.
                let _ = fill(&cluster, options.keys);
            }
            let row = measure(&mut cluster, attack, Duration::from_secs(options.seconds))?;
            calm &= row.views == 0 && row.errors == 0;
            text += &row.line(engine, attack);
            rows.push(row.json(engine, attack));
            eprintln!("{} {}", engine.name, attack.name);
        }
    }
    println!("\n{text}");
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(if calm { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether everything is there that attacks are about.
fn is_full(cluster: &Cluster, keys: usize) -> bool {
    let number = |words: &[&str]| -> Option<i64> {
        let mut connection = Connection::open(&cluster.clients()[0], PATIENCE).ok()?;
        match connection.ask(words).ok()? {
            Reply::Integer(number) => Some(number),
            _ => None,
        }
    };
    number(&["STRLEN", "large"]) == Some(LARGE_BYTES as i64)
        && number(&["DBSIZE"]).is_some_and(|count| count > keys as i64)
}

/// Writes the keys that attacks are about.
fn fill(cluster: &Cluster, keys: usize) -> anyhow::Result<()> {
    let mut attacker = Attacker::new(&cluster.clients()[0])?;
    attacker.round(&command(&[b"SET", b"large", &[b'v'; LARGE_BYTES]]), None)?;
    for first in (0..keys).step_by(BATCH) {
        let sets = (first..keys.min(first + BATCH)).map(|n| command(&[b"SET", &key(n), b"v"]));
        attacker.round(&sets.collect::<Vec<_>>().concat(), None)?;
    }
    Ok(())
}

fn measure(cluster: &mut Cluster, attack: &Attack, time: Duration) -> anyhow::Result<Row> {
    let clients = cluster.clients();
    let before = epoch(&clients[0])?;
    let over = AtomicBool::new(false);
    let (rounds, latencies, errors) = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| assault(&clients[0], attack, &over));
        let watchers: Vec<_> =
            clients[..2].iter().map(|address| scope.spawn(|| watch(address, &over))).collect();
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        let (mut latencies, mut errors) = (Vec::new(), 0);
        for watcher in watchers {
            let (met, failed) = watcher.join().expect("it doesn't panic")?;
            latencies.extend(met);
            errors += failed;
        }
        let (rounds, cut) = attacker.join().expect("it doesn't panic")?;
        anyhow::Ok((rounds, latencies, errors + cut))
    })?;
    cluster.converge()?;
    Ok(Row { rounds, latencies, errors, views: epoch(&clients[0])? - before })
}

/// What a client waits that writes and reads in turn, and how many of its requests fail.
fn watch(address: &str, over: &AtomicBool) -> anyhow::Result<(Vec<Duration>, u64)> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let (mut latencies, mut errors) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        for words in [&["SET", address, "v"][..], &["GET", address]] {
            let begin = Instant::now();
            let reply = connection.ask(words);
            latencies.push(begin.elapsed());
            if !matches!(reply, Ok(Reply::Status(_) | Reply::Bulk(_))) {
                errors += 1;
                connection = Connection::open(address, PATIENCE)?;
            }
            std::thread::sleep(PACE);
        }
    }
    Ok((latencies, errors))
}

fn epoch(address: &str) -> anyhow::Result<u64> {
    let reply = Connection::open(address, PATIENCE)?.ask(&["INFO", "quorate"])?;
    let Reply::Bulk(Some(text)) = reply else { anyhow::bail!("INFO was answered {reply:?}") };
    let text = String::from_utf8(text)?;
    let line = text.lines().find_map(|line| line.strip_prefix("epoch:"));
    Ok(line.context("INFO quorate names the epoch")?.trim().parse()?)
}

/// Sends rounds until the time is up. Returns how many rounds the server answered, and how often it
/// closed the connection.
fn assault(address: &str, attack: &Attack, over: &AtomicBool) -> anyhow::Result<(u64, u64)> {
    let (round, mut rounds, mut cut) = ((attack.round)(), 0, 0);
    let mut attacker = Attacker::new(address)?;
    while !over.load(Ordering::Relaxed) && !round.is_empty() {
        if attacker.round(&round, Some(over)).is_ok() {
            rounds += 1;
        } else {
            cut += 1;
            attacker = Attacker::new(address)?;
        }
    }
    Ok((rounds, cut))
}

/// A client that reads its answers without looking at them.
struct Attacker(TcpStream);

impl Attacker {
    fn new(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Sends commands and takes their answers, to the last command or until the time is up.
    fn round(&mut self, commands: &[u8], over: Option<&AtomicBool>) -> anyhow::Result<()> {
        let mut writer = self.0.try_clone()?;
        let sends = [commands, &command(&[b"ECHO", END])].concat();
        std::thread::scope(|scope| {
            // A server whose answers are not taken takes no commands.
            let sender = scope.spawn(move || writer.write_all(&sends));
            let (mut chunk, mut last) = (vec![0; 256 * 1024], Vec::new());
            while !last.ends_with(&[END, b"\r\n"].concat()) {
                if over.is_some_and(|over| over.load(Ordering::Relaxed)) {
                    let _ = self.0.shutdown(std::net::Shutdown::Both);
                    break;
                }
                let bytes = self.0.read(&mut chunk)?;
                ensure!(bytes > 0, "the server closed the connection");
                last.extend_from_slice(&chunk[..bytes]);
                last.drain(..last.len().saturating_sub(END.len() + 2));
            }
            // The connection may have been cut while it sent.
            let _ = sender.join().expect("it doesn't panic");
            Ok(())
        })
    }
}

impl Row {
    /// The latency that a share of the requests did not exceed.
    fn quantile(&self, share: f64) -> Duration {
        let mut latencies = self.latencies.clone();
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1);
        let place = ((last as f64 * share) as usize).min(last);
        latencies.get(place).copied().unwrap_or_default()
    }

    fn line(&self, engine: &Engine, attack: &Attack) -> String {
        let [median, high, longest] = [0.5, 0.99, 1.0].map(|share| millis(self.quantile(share)));
        let (name, rounds, errors, views) = (engine.name, self.rounds, self.errors, self.views);
        format!(
            "| {name} | {} | {rounds} | {median:.2}, {high:.2}, {longest:.1} | {errors} | {views} |\n",
            attack.what
        )
    }

    fn json(&self, engine: &Engine, attack: &Attack) -> Value {
        json!({
            "engine": engine.name,
            "attack": attack.name,
            "rounds": self.rounds,
            "requests": self.latencies.len(),
            "median_ms": millis(self.quantile(0.5)),
            "p99_ms": millis(self.quantile(0.99)),
            "longest_ms": millis(self.quantile(1.0)),
            "errors": self.errors,
            "views": self.views,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_latencies() {
        let latencies = (1..=200).rev().map(Duration::from_millis).collect();
        let row = Row { rounds: 1, latencies, errors: 0, views: 0 };
        let quantile = |share| row.quantile(share).as_millis();
        assert_eq!([quantile(0.5), quantile(0.99), quantile(1.0)], [100, 198, 200]);
    }

    #[test]
    fn a_round_is_whole_commands() {
        assert_eq!(command(&[b"GET", b"k"]), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert!(many(b"DEL").starts_with(b"*16001\r\n$3\r\nDEL\r\n$11\r\nkey:0000000\r\n"));
    }
}
