//! The client in a simulated network (turmoil) whose links are cut and held, and whose nodes crash:
//! whatever replies the client gets, each update happens at most once, and an acknowledged one has
//! happened.
//!
//! A seed decides about the network and the faults. The client's pauses are drawn by the standard
//! library, so a seed does not repeat a run exactly.

#[path = "support/node.rs"]
mod node;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use node::Cluster;
use quorate_client::{Builder, Client, Error};
use quorate_machine::Rng;
use tokio::time::Instant;
use turmoil::Sim;
use turmoil::net::{TcpListener, TcpStream};

const NODES: [&str; 3] = ["a", "b", "c"];
const PORT: u16 = 6379;
const SEEDS: u64 = 30;
const TASKS: u64 = 3;
const UPDATES: u64 = 40;
/// How long the network and the nodes fail; then all faults end.
const FAULTS: Duration = Duration::from_secs(4);
/// How long a call begins new attempts. The last attempt may take as long as it takes to connect,
/// to introduce itself, to attach its session, to watch and to call, and twice that in a
/// transaction.
const PATIENCE: Duration = Duration::from_secs(3);
const LAST: Duration = Duration::from_secs(1);

/// The client's replies.
#[derive(Default)]
struct Told {
    /// The count that each acknowledged update returned.
    acknowledged: Vec<i64>,
    unknown: u64,
    refused: u64,
    slowest: Duration,
}

/// A fault of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Partition,
    Hold,
    Crash,
}

fn builder() -> Builder {
    let addresses = NODES.map(|node| format!("{node}:{PORT}"));
    Client::builder(&addresses)
        .database(1)
        .timeout(Duration::from_millis(100))
        .connect_timeout(Duration::from_millis(100))
        .backoff(Duration::from_millis(1), Duration::from_millis(20))
        .attempts(10_000)
        .patience(PATIENCE)
        .pool_size(4)
        .connector(|address| async move {
            let (host, _) = address.split_once(':').expect("as given above");
            TcpStream::connect((host, PORT)).await
        })
}

/// Breaks and repairs nodes and links while the clients run.
fn run_with_faults(sim: &mut Sim<'_>, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut faults: [Option<Fault>; NODES.len()] = [None; NODES.len()];
    let mut next = Duration::ZERO;
    while !sim.step().expect("the clients end") {
        if sim.elapsed() < next {
            continue;
        }
        next = sim.elapsed() + Duration::from_millis(5 + rng.below(40));
        let over = sim.elapsed() >= FAULTS;
        for (node, fault) in NODES.iter().zip(&mut faults) {
            match *fault {
                Some(known) if over || rng.below(3) == 0 => {
                    match known {
                        Fault::Partition => sim.repair("client", *node),
                        Fault::Hold => sim.release("client", *node),
                        Fault::Crash => sim.bounce(*node),
                    }
                    *fault = None;
                }
                None if !over && rng.below(4) == 0 => {
                    let new = [Fault::Partition, Fault::Hold, Fault::Crash][rng.below(3) as usize];
                    match new {
                        Fault::Partition => sim.partition("client", *node),
                        Fault::Hold => sim.hold("client", *node),
                        Fault::Crash => sim.crash(*node),
                    }
                    *fault = Some(new);
                }
                _ => {}
            }
        }
    }
}

/// One run: the client's replies, and the true count.
fn run<F, U>(seed: u64, builder: Builder, update: F) -> (Told, i64)
where
    F: Fn(Client, u64) -> U + Copy + Send + 'static,
    U: Future<Output = Result<i64, Error>> + Send + 'static,
{
    let cluster = Cluster::new();
    let told = Arc::new(Mutex::new(Told::default()));
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(600))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(10))
        .build();
    for node in NODES {
        let cluster = cluster.clone();
        sim.host(node, move || {
            let cluster = cluster.clone();
            async move {
                let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    // It ends with its client.
                    tokio::spawn(cluster.clone().serve(stream));
                }
            }
        });
    }
    let results = told.clone();
    sim.client("client", async move {
        let client = loop {
            if let Ok(client) = builder.clone().connect().await {
                break client;
            }
        };
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (client, told) = (client.clone(), results.clone());
                tokio::spawn(async move {
                    for number in 0..UPDATES {
                        let before = Instant::now();
                        let end = update(client.clone(), task + number).await;
                        let mut told = told.lock().expect("no task panics inside");
                        told.slowest = told.slowest.max(before.elapsed());
                        match end {
                            Ok(sum) => told.acknowledged.push(sum),
                            Err(error) if error.is_unknown() => told.unknown += 1,
                            Err(_) => told.refused += 1,
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        Ok(())
    });
    run_with_faults(&mut sim, seed);
    drop(sim);
    let there = cluster.open();
    there.send(b"SELECT 1\r\n");
    let sum = String::from_utf8(there.send(b"INCRBY n 0\r\n")).expect("a number");
    let sum = sum.trim_start_matches(':').trim_end().parse().expect("a number");
    let told = std::mem::take(&mut *told.lock().expect("all tasks have ended"));
    (told, sum)
}

/// Updates and transactions in turn.
async fn update(client: Client, number: u64) -> Result<i64, Error> {
    if number.is_multiple_of(2) {
        return client.incr("n").await;
    }
    client.txn(async move |t| t.incr("n").await).await
}

#[test]
fn each_update_happens_once_whatever_fails() {
    let mut acknowledged = 0;
    for seed in 0..SEEDS {
        let (told, sum) = run(seed, builder(), update);
        let (done, unknown) = (told.acknowledged.len() as i64, told.unknown as i64);
        assert!(
            done <= sum && sum <= done + unknown,
            "seed {seed}: {sum} counted, {done} acknowledged, {unknown} unknown"
        );
        let distinct: BTreeSet<i64> = told.acknowledged.iter().copied().collect();
        assert_eq!(distinct.len() as i64, done, "seed {seed}: each has counted once");
        let made = done + unknown + told.refused as i64;
        assert_eq!(made, (TASKS * UPDATES) as i64, "seed {seed}: every call ends");
        assert!(told.slowest <= PATIENCE + LAST, "seed {seed}: a call took {:?}", told.slowest);
        acknowledged += done;
    }
    let made = (SEEDS * TASKS * UPDATES) as i64;
    assert!(acknowledged * 10 > made * 9, "{acknowledged} of {made} were acknowledged");
}

/// The network is one in which the tests above can fail.
#[test]
fn without_sessions_a_blind_repetition_counts_twice() {
    async fn blindly(client: Client, _: u64) -> Result<i64, Error> {
        loop {
            match client.incr("n").await {
                Err(error) if error.is_unknown() => {}
                end => return end,
            }
        }
    }
    let twice = (0..SEEDS).any(|seed| {
        let (told, sum) = run(seed, builder().sessions(false), blindly);
        sum > told.acknowledged.len() as i64
    });
    assert!(twice, "no update was repeated that had happened");
}
