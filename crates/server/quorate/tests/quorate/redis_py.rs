//! redis-py, the Python client: what programs do with it, and threads that write through all nodes
//! while one is killed and another stopped: single keys, and transfers between the accounts of a
//! bank.
//!
//! Needs a Python with redis-py, which `tools/setup` provides.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::dev::Dev;
use crate::support::{Client, Cluster, ENGINES, PATIENCE, Process, Reply, keyspace, poll_until};
use quorate_check::{Bytes, Model, Verdict, check_bank, check_txn_history, read_txn_history_file};
use rustix::process::Signal;

/// The Python that `tools/setup` put beside what cargo builds.
fn python() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let mut found = own.ancestors().map(|directory| directory.join("venv/bin/python"));
    found.find(|python| python.exists()).expect("no Python for the tests; run tools/setup")
}

fn script(name: &str, args: &[String]) -> Child {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name);
    Command::new(python())
        // No cache files beside the sources.
        .args(["-B", path.to_str().unwrap()])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for a script; panics with what it said if it failed.
fn finish(script: Child) -> String {
    let output = script.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    said
}

fn texts(ports: &[u16]) -> Vec<String> {
    ports.iter().map(u16::to_string).collect()
}

#[test]
fn programs_that_use_redis_py_work() {
    for engine in ENGINES {
        for lanes in ["1", "2"] {
            let dev = Dev::start(&["--engine", engine, "--lanes", lanes]);
            let args = [vec![engine.to_owned()], texts(&dev.clients)].concat();
            let said = finish(script("client.py", &args));
            assert!(said.ends_with("done\n"), "{said}");
        }
    }
}

#[test]
fn the_cache_of_redis_py_is_told_of_changes() {
    for engine in ENGINES {
        for lanes in ["1", "2"] {
            let dev = Dev::start(&["--engine", engine, "--lanes", lanes]);
            let said = finish(script("tracking.py", &texts(&dev.clients)));
            assert!(said.ends_with("done\n"), "{said}");
        }
    }
}

/// Runs a script on three nodes. One node is killed and restarted, then another one is stopped for
/// longer than its lease. Returns the file with the history, and what the script said.
fn under_faults(name: &str, cluster: &Cluster, key: &str) -> (PathBuf, String) {
    let mut nodes = cluster.serve_all();
    let file = format!("{}-{}.jsonl", cluster.file.display(), std::process::id());
    let mut python = script(name, &[vec![file.clone()], texts(&cluster.clients)].concat());
    let mut output = BufReader::new(python.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    if line != "working\n" {
        panic!("{line}\n{}", finish(python));
    }

    std::thread::sleep(Duration::from_secs(1));
    nodes[2].signal(Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    nodes[2] = cluster.serve(3);
    nodes[2].line(|line| line.starts_with("ready"));
    std::thread::sleep(Duration::from_secs(1));
    nodes[1].signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(400));
    nodes[1].signal(Signal::CONT);
    poll_until(Instant::now() + PATIENCE, "the stopped node serves again", || {
        let mut client = Client::connect(cluster.clients[1], PATIENCE).ok()?;
        matches!(client.ask(&["GET", key]), Ok(Reply::Bulk(_))).then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));

    drop(python.stdin.take());
    let mut said = String::new();
    while output.read_line(&mut said).unwrap() > 0 {}
    println!("{said}");
    let ended = python.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "the history is in {file}\n{said}\n{errors}");
    (PathBuf::from(file), said)
}

/// The first number that a script says it ended with.
fn done(said: &str) -> u64 {
    let (_, counts) = said.split_once("ended: ").unwrap();
    counts.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn twenty_threads_lose_nothing_to_a_killed_and_a_stopped_node() {
    for engine in ENGINES {
        let name = format!("redis-py-{engine}");
        let cluster = Cluster::write(&name, 3, "", &keyspace(engine, ""));
        let (file, said) = under_faults("faults.py", &cluster, "counter:0");
        assert!(done(&said) > 1_000, "{said}");
        let path = file.to_str().unwrap();
        let mut check = Process::start(&["check", path]);
        let verdict = check.wait();
        assert!(verdict.success(), "look at it with: quorate check {path}\n{said}");
        std::fs::remove_file(&file).unwrap();
    }
}

/// What the bank of `bank.py` holds.
const ACCOUNTS: usize = 10;
const TOTAL: i64 = 10_000;

#[test]
fn no_money_is_lost_to_a_killed_and_a_stopped_node() {
    for (engine, options, lanes, model) in [
        ("meerkat", "isolation = \"strict\"", 1, Model::StrictSerializable),
        ("meerkat", "isolation = \"serializable\"", 2, Model::Serializable),
        ("zeus", "", 2, Model::StrictSerializable),
    ] {
        let name = format!("bank-{engine}-{lanes}");
        let options = keyspace(engine, options);
        let cluster = Cluster::write(&name, 3, &format!("lanes = {lanes}"), &options);
        let (file, said) = under_faults("bank.py", &cluster, "account:0");
        assert!(done(&said) > 500, "{said}");
        let history = read_txn_history_file(&file).unwrap();
        let accounts: Vec<Bytes> = (0..ACCOUNTS)
            .map(|number| Bytes::from(format!("account:{number}").as_bytes()))
            .collect();
        let bank = check_bank(&history.transactions, &accounts, TOTAL);
        let bank = bank.unwrap_or_else(|wrong| panic!("{}: {wrong}", file.display()));
        assert!(bank.audits > 50 && bank.transfers > 50, "{bank:?}");
        let report = check_txn_history(&history, model);
        println!("{report}");
        assert_eq!(report.verdict(), Verdict::Ok, "{}: {report}", file.display());
        std::fs::remove_file(&file).unwrap();
    }
}
