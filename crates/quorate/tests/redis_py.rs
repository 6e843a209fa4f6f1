//! redis-py, the Python client: what programs do with it, and twenty threads that write through
//! all nodes while one is killed and another stopped.
//!
//! Needs the redis package for Python 3 (Debian: `apt-get install python3-redis`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::dev::Dev;
use support::{Client, Cluster, PATIENCE, Process, Reply, poll_until};

/// A Python that has redis-py. Debian's package is for Debian's Python, which need not be the
/// first on the path.
fn python() -> &'static str {
    let has_redis = |python: &&&str| {
        let tried =
            Command::new(python).args(["-c", "import redis"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    ["python3", "/usr/bin/python3"]
        .iter()
        .find(has_redis)
        .expect("no Python has the module redis; on Debian: apt-get install python3-redis")
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
    for lanes in ["1", "2"] {
        let dev = Dev::start(&["--lanes", lanes]);
        let said = finish(script("client.py", &texts(&dev.clients)));
        assert!(said.ends_with("done\n"), "{said}");
    }
}

#[test]
fn twenty_threads_lose_nothing_to_a_killed_and_a_stopped_node() {
    let cluster = Cluster::write("redis-py", 3, "", "");
    let mut nodes = cluster.serve_all();
    let history = std::env::temp_dir().join(format!("redis-py-{}.jsonl", std::process::id()));
    let file = history.to_str().unwrap().to_owned();
    let mut python = script("faults.py", &[vec![file.clone()], texts(&cluster.clients)].concat());
    let mut output = BufReader::new(python.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "working\n");

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
        matches!(client.ask(&["GET", "counter:0"]), Ok(Reply::Bulk(_))).then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));

    drop(python.stdin.take());
    let mut said = String::new();
    while output.read_line(&mut said).unwrap() > 0 {}
    println!("{said}");
    finish(python);
    let done: u64 =
        said.split_once("ended: ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(done > 1_000, "{said}");
    let mut check = Process::start(&["check", &file]);
    let verdict = check.wait();
    assert!(verdict.success(), "look at it with: quorate check {file}\n{said}");
    std::fs::remove_file(&history).unwrap();
}
