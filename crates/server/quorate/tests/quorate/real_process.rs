//! Three `serve` processes under load while one is killed and restarted and another is stopped past
//! its lease and continued: what clients saw is linearizable, and nothing acknowledged is missing.

use std::io::BufWriter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Client, Cluster, ENGINES, PATIENCE, Reply, keyspace, poll_until};
use quorate_check::{
    Action, Answer, Bytes, History, HistoryWriter, Outcome, Recorder, Verdict, check_history,
};
use rustix::process::Signal;

const CLIENTS: u64 = 6;
/// Keys that are set and read, keys that are counted in, keys that are changed in every way.
const KEYS: u64 = 8;
/// Longer than the pause of the stopped node, so that a client waits for what it says afterwards.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// Pace of each client, so that the check stays short.
const PACE: Duration = Duration::from_millis(1);

struct World {
    recorder: Recorder<History>,
    ports: Vec<u16>,
    stop: AtomicBool,
    /// The longest time without a success at the first node, in microseconds.
    gap: AtomicU64,
}

#[test]
fn a_killed_and_a_stopped_node_leave_a_linearizable_history() {
    // One after the other: a crowded machine takes nodes off the processor.
    ENGINES.into_iter().for_each(run_under_faults);
}

fn run_under_faults(engine: &str) {
    let cluster = Cluster::write(&format!("real-process-{engine}"), 3, "", &keyspace(engine, ""));
    let mut nodes = cluster.serve_all();
    let world = Arc::new(World {
        recorder: Recorder::new(History::default()),
        ports: cluster.clients.clone(),
        stop: AtomicBool::new(false),
        gap: AtomicU64::new(0),
    });
    let mut threads = Vec::new();
    for process in 0..CLIENTS {
        let world = Arc::clone(&world);
        threads.push(std::thread::spawn(move || work(&world, process)));
    }
    let prober = Arc::clone(&world);
    threads.push(std::thread::spawn(move || probe(&prober)));

    std::thread::sleep(Duration::from_secs(1));
    world.gap.store(0, Ordering::Relaxed);
    nodes[2].signal(Signal::KILL);
    std::thread::sleep(Duration::from_secs(2));
    let failover = Duration::from_micros(world.gap.load(Ordering::Relaxed));
    println!("{engine}: writes paused for {failover:?} after the kill");

    nodes[2] = cluster.serve(3);
    nodes[2].line(|line| line.starts_with("ready"));
    std::thread::sleep(Duration::from_secs(1));

    nodes[1].signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(400));
    nodes[1].signal(Signal::CONT);
    wait_until_served(cluster.clients[1]);
    std::thread::sleep(Duration::from_secs(1));

    world.stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Every node's word on every key is part of the history: a write that went missing shows.
    for port in &cluster.clients {
        let mut client = Client::new(*port);
        for number in 0..3 * KEYS {
            let key = key(number);
            let invocation =
                world.recorder.invoke(CLIENTS + 1, Bytes::from(key.clone()), Action::Get);
            let reply = client.call(&["GET", &text(&key)]);
            let Reply::Bulk(value) = reply else { panic!("{reply:?}") };
            world.recorder.done(invocation, Answer::Value(value.map(Bytes)));
        }
    }
    let world = Arc::into_inner(world).expect("every thread has ended");
    judge(world.recorder.finish().unwrap());
    assert!(failover < Duration::from_secs(2), "writes did not resume");
}

fn wait_until_served(port: u16) {
    poll_until(Instant::now() + PATIENCE, "the node serves again", || {
        let mut client = Client::connect(port, CLIENT_PATIENCE).ok()?;
        matches!(client.ask(&["GET", "probe"]), Ok(Reply::Bulk(_))).then_some(())
    });
}

fn judge(history: History) {
    let done = history.operations.iter();
    let done = done.filter(|operation| matches!(operation.outcome, Outcome::Done { .. })).count();
    let report = check_history(&history);
    println!("{report}");
    assert!(done > 2_000, "only {done} operations were done");
    if report.verdict() != Verdict::Ok {
        let file = std::env::temp_dir().join(format!("history-{}.jsonl", std::process::id()));
        let output = BufWriter::new(std::fs::File::create(&file).unwrap());
        let mut writer = HistoryWriter::new(output, &history.header).unwrap();
        history.operations.iter().for_each(|operation| writer.write(operation).unwrap());
        writer.finish().unwrap();
        panic!("look at it with: quorate check {}\n{report}", file.display());
    }
}

fn key(number: u64) -> Vec<u8> {
    let kind = ["register", "counter", "mixed"][(number / KEYS) as usize];
    format!("{kind}:{}", number % KEYS).into_bytes()
}

fn text(key: &[u8]) -> String {
    String::from_utf8(key.to_vec()).unwrap()
}

/// One client: any operation on any key through any node, until the end.
fn work(world: &World, process: u64) {
    let mut random = process + 1;
    let mut draw = move |below: u64| {
        // xorshift64: enough to spread operations.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut unique = 0;
    let mut connection: Option<Client> = None;
    while !world.stop.load(Ordering::Relaxed) {
        std::thread::sleep(PACE);
        let port = world.ports[draw(3) as usize];
        let Some(mut client) =
            connection.take().or_else(|| Client::connect(port, CLIENT_PATIENCE).ok())
        else {
            continue;
        };
        let number = draw(3 * KEYS);
        unique += 1;
        let value = format!("{process}.{unique}");
        let (action, args) = operation(number, draw(8), &value);
        let key = key(number);
        let name = text(&key);
        let mut command = vec![args[0].as_str(), &name];
        command.extend(args[1..].iter().map(String::as_str));
        let invocation = world.recorder.invoke(process, Bytes::from(key), action.clone());
        match client.ask(&command) {
            Ok(Reply::Error(error)) if error.starts_with("UNKNOWN") => {
                world.recorder.unknown(invocation);
            }
            Ok(Reply::Error(error)) => {
                let code = error.split(' ').next().unwrap_or("");
                assert!(["CLUSTERDOWN", "TRYAGAIN"].contains(&code), "{command:?}: {error}");
                world.recorder.refused(invocation);
                // Another node may be better off.
                continue;
            }
            Ok(reply) => world.recorder.done(invocation, answer(&action, reply)),
            Err(_) => {
                world.recorder.unknown(invocation);
                continue;
            }
        }
        // Now and then through another node.
        connection = (draw(20) > 0).then_some(client);
    }
}

/// The operation and the command's name and arguments after the key.
fn operation(number: u64, choice: u64, value: &str) -> (Action, Vec<String>) {
    let bytes = || Bytes::from(value.as_bytes().to_vec());
    let command = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    match (number / KEYS, choice) {
        (0, 0..4) => (Action::Set(bytes()), command(&["SET", value])),
        (1, 0..5) => (Action::Incr(1), command(&["INCRBY", "1"])),
        (2, 0) => (Action::Set(bytes()), command(&["SET", value])),
        (2, 1) => (Action::GetSet(bytes()), command(&["GETSET", value])),
        (2, 2) => (Action::SetNx(bytes()), command(&["SETNX", value])),
        (2, 3) => (Action::Append(bytes()), command(&["APPEND", value])),
        (2, 4) => (Action::Del, command(&["DEL"])),
        _ => (Action::Get, command(&["GET"])),
    }
}

fn answer(action: &Action, reply: Reply) -> Answer {
    match reply {
        Reply::Simple(_) => Answer::Ok,
        Reply::Int(number) => Answer::Integer(number),
        Reply::Bulk(value) => Answer::Value(value.map(Bytes)),
        other => panic!("{action}: {other:?}"),
    }
}

/// Measures how long writes through the first node pause.
fn probe(world: &World) {
    let mut last = Instant::now();
    let mut connection: Option<Client> = None;
    while !world.stop.load(Ordering::Relaxed) {
        std::thread::sleep(PACE);
        let open = || Client::connect(world.ports[0], CLIENT_PATIENCE).ok();
        let Some(mut client) = connection.take().or_else(open) else { continue };
        if let Ok(reply) = client.ask(&["SET", "probe", "1"]) {
            if reply == Reply::Simple("OK".into()) {
                let gap = last.elapsed().as_micros() as u64;
                world.gap.fetch_max(gap, Ordering::Relaxed);
                last = Instant::now();
            }
            connection = Some(client);
        }
    }
}
