//! The time that clients wait while another one asks for long work: commands on large values, on
//! many keys, on the whole keyspace, more of them than a lane can do within its lease. None of it
//! is a fault, so no node may be expelled.

use std::collections::BTreeMap;
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
use crate::engines::ENGINES;
use crate::net::Net;
use crate::report::{median, millis};
use crate::resp::{Connection, Reply};

/// Nodes of the cluster; the first is attacked.
const NODES: usize = 3;
/// Bytes of the large value: the most that a value can have.
const LARGE_BYTES: usize = 4 * 1024 * 1024;
/// Keys that are written at once.
const BATCH: usize = 1000;
/// Keys of one command; a transaction takes a few more.
const NAMES: usize = 16_000;
/// The goal: of 100 requests beside an attack, 99 take less than this.
const P99_GOAL: Duration = Duration::from_millis(5);
/// The pause between two requests of a measured client.
const PACE: Duration = Duration::from_millis(1);
/// Longest that one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The attacker's last command, whose answer marks the end of the answers.
const END: &[u8] = b"the answers end here";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Seconds of each attack in each round
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds of all attacks, each with new clusters; the medians of the rounds count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Keys in the keyspace
    #[arg(long, default_value_t = 200_000)]
    keys: usize,
    /// Only this engine
    #[arg(long)]
    engine: Option<String>,
    /// Only the attacks with these names
    #[arg(long = "only")]
    only: Vec<String>,
    /// The program under test; without it, the one built beside this
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another build of it to compare with, attacked in turn with it; the goal is not its
    #[arg(long)]
    against: Option<PathBuf>,
    /// Where logs go
    #[arg(long, default_value = "/tmp/quorate-rig-attacks")]
    work: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The commands that one client sends over and over.
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
    Attack { name: "mset", what: "`MSET` of 16,000 keys", round: many_values },
    Attack { name: "del", what: "`DEL` of 16,000 keys", round: || many(b"DEL") },
    // The last one: it deletes the keys that other attacks need.
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

fn many_values() -> Vec<u8> {
    let keys: Vec<_> = (0..NAMES).map(key).collect();
    let pairs = keys.iter().flat_map(|key| [key.as_slice(), b"v"]);
    let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(pairs).collect();
    command(&words)
}

/// The build to attack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Program {
    Tested,
    Against,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Tested => "tested",
            Self::Against => "against",
        }
    }
}

/// The result of one attack in one round.
#[derive(Debug)]
struct Take {
    /// How often all commands of the attacker were answered.
    answered: u64,
    /// The latency of each request of the measured clients.
    latencies: Vec<Duration>,
    /// Requests that failed: those of the measured clients, and those of the attacker that ended
    /// with the connection.
    errors: u64,
    /// How often the view changed.
    views: u64,
    /// The longest turn of any lane of any node; `None` if the program doesn't report it.
    longest_turn: Option<Duration>,
}

/// The results of one attack on one engine of one program in all rounds.
#[derive(Debug, Default)]
struct Row(Vec<Take>);

/// By the places of the engine and the attack, and the program.
type Rows = BTreeMap<(usize, usize, Program), Row>;

/// Measures, prints the table and writes the JSON. Fails if the goal is missed, a node was expelled
/// or a request failed.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut programs = vec![(Program::Tested, crate::quorate(options.binary.as_ref())?)];
    if let Some(against) = &options.against {
        programs.push((Program::Against, crate::quorate(Some(against))?));
    }
    for name in &options.only {
        let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
        let known = names.contains(&name.as_str());
        ensure!(known, "there is no attack {name:?}; choose of {}", names.join(", "));
    }
    let chosen = options.engine.as_deref().map(crate::engines::find).transpose()?;
    // Logs of an earlier run.
    let _ = std::fs::remove_dir_all(&options.work);
    let net = Net::new(NODES)?;
    let mut rows = Rows::new();
    for round in 0..options.rounds {
        for (place, engine) in ENGINES.iter().enumerate() {
            if chosen.is_some_and(|chosen| chosen.name != engine.name) {
                continue;
            }
            for (program, binary) in &programs {
                let work = options.work.join(format!("{}-{}-{round}", engine.name, program.name()));
                let mut cluster = Cluster::start(&net, 1..=NODES, engine, "", binary, &work)?;
                for (attack, take) in attack_all(&mut cluster, options)? {
                    rows.entry((place, attack, *program)).or_default().0.push(take);
                }
                eprintln!("round {round}: {} {}", engine.name, program.name());
            }
        }
        // Each program comes first in every other round.
        programs.reverse();
    }
    let (verdicts, met) = goals(&rows);
    println!("\n{}\n{verdicts}", table(&rows));
    if let Some(file) = &options.json {
        let rows: Vec<Value> = rows.iter().map(|(key, row)| row.json(key)).collect();
        std::fs::write(file, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays each chosen attack once. Returns the attacks' places in the list and their results.
fn attack_all(cluster: &mut Cluster, options: &Options) -> anyhow::Result<Vec<(usize, Take)>> {
    let mut takes = Vec::new();
    for (place, attack) in ATTACKS.iter().enumerate() {
        if !options.only.is_empty() && !options.only.iter().any(|name| attack.name == name) {
            continue;
        }
        cluster.converge()?;
        let deadline = Instant::now() + PATIENCE;
        while !is_full(cluster, options.keys) {
            ensure!(Instant::now() < deadline, "the keyspace can't be filled");
            // A fill that a change of the view has cut short is tried again.
            let _ = fill(cluster, options.keys);
        }
        takes.push((place, measure(cluster, attack, Duration::from_secs(options.seconds))?));
    }
    Ok(takes)
}

/// Whether all keys of the attacks exist.
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

/// Writes the keys of the attacks.
fn fill(cluster: &Cluster, keys: usize) -> anyhow::Result<()> {
    let mut attacker = Attacker::new(&cluster.clients()[0])?;
    attacker.round(&command(&[b"SET", b"large", &[b'v'; LARGE_BYTES]]), None)?;
    for first in (0..keys).step_by(BATCH) {
        let sets = (first..keys.min(first + BATCH)).map(|n| command(&[b"SET", &key(n), b"v"]));
        attacker.round(&sets.collect::<Vec<_>>().concat(), None)?;
    }
    Ok(())
}

fn measure(cluster: &mut Cluster, attack: &Attack, time: Duration) -> anyhow::Result<Take> {
    let clients = cluster.clients();
    let before = epoch(&clients[0])?;
    for address in &clients {
        Connection::open(address, PATIENCE)?.ask(&["CONFIG", "RESETSTAT"])?;
    }
    let over = AtomicBool::new(false);
    let (answered, latencies, errors) = std::thread::scope(|scope| {
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
        let (answered, cut) = attacker.join().expect("it doesn't panic")?;
        anyhow::Ok((answered, latencies, errors + cut))
    })?;
    cluster.converge()?;
    let longest_turn = longest_turn(&clients)?;
    Ok(Take { answered, latencies, errors, views: epoch(&clients[0])? - before, longest_turn })
}

/// A client that writes and reads in turn: the latencies of its requests, and the number of
/// failures.
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

/// A node's `INFO`.
fn info(address: &str) -> anyhow::Result<String> {
    let reply = Connection::open(address, PATIENCE)?.ask(&["INFO", "quorate"])?;
    let Reply::Bulk(Some(text)) = reply else { anyhow::bail!("INFO was answered {reply:?}") };
    Ok(String::from_utf8(text)?)
}

fn epoch(address: &str) -> anyhow::Result<u64> {
    let text = info(address)?;
    let line = text.lines().find_map(|line| line.strip_prefix("epoch:"));
    Ok(line.context("INFO quorate names the epoch")?.trim().parse()?)
}

/// The longest turn of any node since the record was last reset.
fn longest_turn(clients: &[String]) -> anyhow::Result<Option<Duration>> {
    let mut longest = None;
    for address in clients {
        let text = info(address)?;
        let turns = text.lines().filter_map(|line| line.split_once(":longest_turn_usec="));
        for (_, micros) in turns {
            longest = longest.max(Some(Duration::from_micros(micros.trim().parse()?)));
        }
    }
    Ok(longest)
}

/// Sends an attack's commands until the time is up. Returns how often the server answered them all,
/// and how often it closed the connection.
fn assault(address: &str, attack: &Attack, over: &AtomicBool) -> anyhow::Result<(u64, u64)> {
    let (round, mut answered, mut cut) = ((attack.round)(), 0, 0);
    let mut attacker = Attacker::new(address)?;
    while !over.load(Ordering::Relaxed) && !round.is_empty() {
        if attacker.round(&round, Some(over)).is_ok() {
            answered += 1;
        } else {
            cut += 1;
            attacker = Attacker::new(address)?;
        }
    }
    Ok((answered, cut))
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
            // A server takes no further commands from a client that takes no answers.
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

impl Take {
    /// The latency that this share of the requests did not exceed.
    fn quantile(&self, share: f64) -> Duration {
        let mut latencies = self.latencies.clone();
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1);
        let place = ((last as f64 * share) as usize).min(last);
        latencies.get(place).copied().unwrap_or_default()
    }
}

impl Row {
    /// The median over the rounds of the latency that this share of the requests did not exceed.
    fn quantile(&self, share: f64) -> Duration {
        median(&self.0.iter().map(|take| take.quantile(share)).collect::<Vec<_>>())
    }

    /// The longest turn of all rounds.
    fn longest_turn(&self) -> Option<Duration> {
        self.0.iter().filter_map(|take| take.longest_turn).max()
    }

    fn sum(&self, of: fn(&Take) -> u64) -> u64 {
        self.0.iter().map(of).sum()
    }

    fn errors(&self) -> u64 {
        self.sum(|take| take.errors)
    }

    fn views(&self) -> u64 {
        self.sum(|take| take.views)
    }

    /// The goals that the program under test misses.
    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let p99 = self.quantile(0.99);
        if p99 >= P99_GOAL {
            missed.push(format!("99 of 100 requests within {:.2} ms", millis(p99)));
        }
        if self.errors() > 0 {
            missed.push(format!("{} requests failed", self.errors()));
        }
        if self.views() > 0 {
            missed.push(format!("the view changed {} times", self.views()));
        }
        missed
    }

    fn json(&self, &(engine, attack, program): &(usize, usize, Program)) -> Value {
        let p99s: Vec<f64> = self.0.iter().map(|take| millis(take.quantile(0.99))).collect();
        json!({
            "engine": ENGINES[engine].name,
            "attack": ATTACKS[attack].name,
            "program": program.name(),
            "rounds": self.0.len(),
            "answered": self.sum(|take| take.answered),
            "requests": self.sum(|take| take.latencies.len() as u64),
            "median_ms": millis(self.quantile(0.5)),
            "p99_ms": millis(self.quantile(0.99)),
            "p99_ms_of_rounds": p99s,
            "longest_ms": millis(self.quantile(1.0)),
            "longest_turn_ms": self.longest_turn().map(millis),
            "errors": self.errors(),
            "views": self.views(),
        })
    }
}

fn table(rows: &Rows) -> String {
    let mut text =
        "| engine | one client sends | program | answered | another waits: median, 99 of \
                    100, longest (ms) | longest turn of a lane (ms) | errors | changes of the view |\n\
                    | --- | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for (&(engine, attack, program), row) in rows {
        let [middle, high, longest] = [0.5, 0.99, 1.0].map(|share| millis(row.quantile(share)));
        let turn = row.longest_turn().map_or("-".to_owned(), |turn| format!("{:.1}", millis(turn)));
        text += &format!(
            "| {} | {} | {} | {} | {middle:.2}, {high:.2}, {longest:.1} | {turn} | {} | {} |\n",
            ENGINES[engine].name,
            ATTACKS[attack].what,
            program.name(),
            row.sum(|take| take.answered),
            row.errors(),
            row.views(),
        );
    }
    text
}

/// How the program under test meets its goals beside each attack, and whether it meets all.
fn goals(rows: &Rows) -> (String, bool) {
    let (mut text, mut met) = (String::new(), true);
    for (&(engine, attack, program), row) in rows {
        let missed = row.missed();
        if program == Program::Against || missed.is_empty() {
            continue;
        }
        met = false;
        let (engine, attack) = (ENGINES[engine].name, ATTACKS[attack].name);
        text += &format!("{engine}, {attack}: MISSED: {}\n", missed.join(", "));
    }
    let goal = P99_GOAL.as_millis();
    let verdict = if met { "met" } else { "missed" };
    text += &format!(
        "The goal (99 of 100 requests in less than {goal} ms, no error, no change of the view) is {verdict}\n"
    );
    (text, met)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(p99_ms: u64) -> Take {
        let latencies = vec![Duration::from_millis(p99_ms); 10];
        Take { answered: 1, latencies, errors: 0, views: 0, longest_turn: None }
    }

    #[test]
    fn quantiles_of_latencies() {
        let latencies = (1..=200).rev().map(Duration::from_millis).collect();
        let take = Take { latencies, ..take(0) };
        let quantile = |share| take.quantile(share).as_millis();
        assert_eq!([quantile(0.5), quantile(0.99), quantile(1.0)], [100, 198, 200]);
    }

    #[test]
    fn the_median_of_the_rounds_of_the_tested_program_is_held_against_the_goal() {
        let row = |p99s: &[u64]| Row(p99s.iter().map(|&p99| take(p99)).collect());
        let rows = |tested: Row, against: Row| {
            Rows::from([((0, 0, Program::Tested), tested), ((0, 0, Program::Against), against)])
        };
        assert!(goals(&rows(row(&[4, 50, 3]), row(&[50]))).1);
        let (text, met) = goals(&rows(row(&[4, 5, 6]), row(&[1])));
        assert!(!met && text.contains("within 5.00 ms"), "{text}");
        let failed = Row(vec![Take { errors: 2, views: 1, ..take(1) }]);
        let (text, met) = goals(&rows(failed, row(&[1])));
        assert!(!met && text.contains("2 requests failed, the view changed 1 times"), "{text}");
    }

    #[test]
    fn a_round_is_whole_commands() {
        assert_eq!(command(&[b"GET", b"k"]), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert!(
            many_values().starts_with(b"*32001\r\n$4\r\nMSET\r\n$11\r\nkey:0000000\r\n$1\r\nv\r\n")
        );
        assert!(many(b"DEL").starts_with(b"*16001\r\n$3\r\nDEL\r\n$11\r\nkey:0000000\r\n"));
    }
}
