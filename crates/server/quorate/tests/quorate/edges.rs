//! What surrounds a node must neither end it nor command it: logs that nobody takes, strangers,
//! want of descriptors.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::dev::Dev;
use crate::support::{Client, Cluster, PATIENCE, Process, Reply, http_get, poll_until};
use quorate_admin::CONNECTIONS_MAX;
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;

/// Log lines of all kinds.
const EVERYTHING: [(&str, &str); 1] = [("QUORATE_LOG", "debug")];

/// A full pipe: a write to it waits for ever.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    let line = [b'.'; 4096];
    while writer.write(&line).is_ok() {}
    while writer.write(b".").is_ok() {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Standard errors that take no line: what holds one end, and what the process is given.
fn deaf_ears() -> Vec<(&'static str, Option<PipeReader>, Stdio)> {
    let (closed, writer) = std::io::pipe().unwrap();
    drop(closed);
    let (reader, full) = full_pipe();
    let disk = File::options().write(true).open("/dev/full").unwrap();
    vec![
        ("nobody is there to read", None, writer.into()),
        ("nobody reads", Some(reader), full.into()),
        ("the disk is full", None, disk.into()),
    ]
}

/// Sends garbage to a port and waits until it is turned away.
fn provoke(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // A reset is fine.
    let _ = stream.read_to_end(&mut Vec::new());
}

/// What the metrics of a node count under this name, whatever the labels.
fn counted(admin: u16, name: &str) -> u64 {
    let metrics = http_get(admin, "/metrics").1;
    let lines = metrics.lines().filter(|line| line.starts_with(&format!("quorate_{name}")));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_process_whose_log_lines_nobody_takes_goes_on_and_counts_them() {
    for (why, _end, stderr) in deaf_ears() {
        let more = ["--peer-port", "0", "--lanes", "2"];
        let mut dev = Dev::start_with(&more, &EVERYTHING, stderr);
        // More than a pipe and the queue before it hold, so that a log that waits would wait now.
        for _ in 0..2000 {
            provoke(dev.peers[0]);
        }
        for &port in &dev.clients {
            let mut client = Client::new(port);
            assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()), "{why}");
            assert_eq!(client.call(&["GET", "k"]), Reply::bulk("v"), "{why}");
        }
        assert!(dev.process.is_running(), "{why}");
        assert!(counted(dev.admins[0], "log_lines_dropped_total") > 1000, "{why}");
        dev.process.signal(Signal::TERM);
        assert!(dev.process.wait().success(), "{why}");
    }
}

#[test]
fn a_death_that_cannot_be_logged_is_survived() {
    for (why, _end, stderr) in deaf_ears() {
        let cluster = Cluster::write("deaf", 3, "", "");
        let mut ears = Some(stderr);
        let mut nodes: Vec<Process> = (1..=3)
            .map(|node| match ears.take_if(|_| node == 2) {
                Some(stderr) => cluster.serve_with(node, &EVERYTHING, stderr),
                None => cluster.serve(node),
            })
            .collect();
        nodes.iter().for_each(|node| drop(node.line(|line| line.starts_with("ready"))));
        let mut client = Client::new(cluster.clients[1]);
        assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()), "{why}");
        nodes[0].signal(Signal::KILL);
        assert_eq!(client.call(&["SET", "k", "w"]), Reply::Simple("OK".into()), "{why}");
        assert_eq!(client.call(&["GET", "k"]), Reply::bulk("w"), "{why}");
        assert!(nodes[1].is_running() && nodes[2].is_running(), "{why}");
        nodes[1].signal(Signal::TERM);
        assert!(nodes[1].wait().success(), "{why}");
    }
}

#[test]
fn garbage_does_not_fill_the_log_and_what_is_left_out_is_said() {
    let dev = Dev::start(&["--nodes", "1", "--peer-port", "0"]);
    for _ in 0..500 {
        provoke(dev.peers[0]);
    }
    let said = dev.process.logged("more lines like this were left out");
    assert!(said.contains("peer connection refused"), "{said}");
    let refused =
        dev.process.log_so_far().iter().filter(|line| line.contains("use the client port")).count();
    assert!((1..=50).contains(&refused), "{refused} lines for 500 connections");
    assert!(counted(dev.admins[0], "log_lines_dropped_total") > 400);
}

#[test]
fn losses_are_said_once_somebody_reads() {
    let fifo = std::env::temp_dir().join(format!("quorate-log-{}", std::process::id()));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Opened for both, a fifo doesn't wait for the other end.
    let both = File::options().read(true).write(true).open(&fifo).unwrap();
    let writer = File::options().write(true).open(&fifo).unwrap();
    let more = ["--nodes", "1", "--peer-port", "0"];
    drop(both);
    let dev = Dev::start_with(&more, &EVERYTHING, writer.into());
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "lines are lost", || {
        provoke(dev.peers[0]);
        (counted(dev.admins[0], "log_lines_dropped_total{reason=\"not_taken\"") > 0).then_some(())
    });
    let log = BufReader::new(File::open(&fifo).unwrap());
    std::fs::remove_file(&fifo).unwrap();
    let said = std::thread::spawn(move || {
        log.lines().map_while(Result::ok).any(|line| line.contains("log lines were lost"))
    });
    // Only a line that is written lets the log know that somebody reads again.
    poll_until(deadline, "the losses are said", || {
        provoke(dev.peers[0]);
        said.is_finished().then_some(())
    });
    assert!(said.join().unwrap());
}

/// What an endpoint answers to bytes.
fn http(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is fine.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request to remove node 3, with these headers.
fn removal(headers: &str) -> String {
    let body = "{\"id\": 3}";
    let length = body.len();
    format!("POST /member/remove HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

/// Waits until a node says that the cluster has so many members.
fn wait_for_members(admin: u16, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the view has the members", || {
        let view: serde_json::Value = serde_json::from_str(&http_get(admin, "/view").1).unwrap();
        (view["members"].as_array().unwrap().len() == count).then_some(())
    });
}

#[test]
fn only_who_knows_the_token_changes_anything_and_no_page_in_a_browser_speaks_to_a_node() {
    let cluster = Cluster::write("access", 3, "[admin]\nhosts = [\"quorate.example\"]", "");
    let _nodes = cluster.serve_all();
    let admin = cluster.admins[0];
    wait_for_members(admin, 3);
    let token = std::fs::read_to_string(cluster.token()).unwrap();
    let (token, json) = (token.trim(), "content-type: application/json\r\n");
    let bearer = format!("authorization: Bearer {token}\r\n");
    for (headers, status, says) in [
        (format!("host: evil.example\r\n{bearer}{json}"), 403, "[admin] hosts"),
        (format!("host: localhost\r\n{json}"), 401, "--token-file"),
        (format!("host: localhost\r\nauthorization: Bearer {token}0\r\n{json}"), 401, "token"),
        (format!("host: localhost\r\n{bearer}content-type: text/plain\r\n"), 415, "json"),
    ] {
        let answer = http(admin, &removal(&headers));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
        assert!(answer.contains(says), "{says}: {answer}");
    }
    // Reading needs no token, and a name of the node's own.
    for (host, status) in [("evil.example", 403), ("quorate.example", 200), ("10.1.2.3:80", 200)] {
        for path in ["/status", "/metrics", "/view", "/"] {
            let answer = http(admin, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
        }
    }
    let mut without =
        Process::start(&["member", "remove", "3", "--admin", &format!("127.0.0.1:{admin}")]);
    assert!(!without.wait().success());
    let error = without.logged("error:");
    assert!(error.contains(&cluster.token()) && error.contains("--token-file"), "{error}");
    wait_for_members(admin, 3);
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the member is removed", || {
        let headers = format!("host: quorate.example\r\n{bearer}{json}");
        http(admin, &removal(&headers)).starts_with("HTTP/1.1 200").then_some(())
    });
    wait_for_members(admin, 2);
}

#[test]
fn half_a_request_takes_no_descriptor_for_long_and_keeps_nobody_out() {
    let dev = Dev::start(&["--nodes", "1"]);
    // The endpoint may have opened last.
    http_get(dev.admins[0], "/health");
    let before = dev.process.files();
    let mut half: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", dev.admins[0])).unwrap();
            stream.write_all(b"GET /status HTTP/1.1\r\nhost: ").unwrap();
            stream
        })
        .collect();
    assert_eq!(http_get(dev.admins[0], "/health").0, 200);
    let with = dev.process.files();
    assert!(with <= before + CONNECTIONS_MAX, "{before} descriptors before, {with} now");
    for stream in &mut half {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answer = stream.read_to_end(&mut Vec::new());
        let timed_out = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!answer.is_err_and(|error| timed_out(&error)), "the connection is still open");
    }
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "all are closed", || (dev.process.files() <= before).then_some(()));
}

/// Descriptors that a node has in the test of their want.
const FILES: u64 = 302;

#[test]
fn a_node_at_its_limit_of_files_keeps_its_peers_and_its_administrators() {
    let cluster = Cluster::write("files", 3, "lanes = 2", "");
    let file = cluster.file.to_str().unwrap();
    let args = |node: &'static str| ["serve", "--config", file, "--node", node];
    let poor = Process::start_within(&format!("-n {FILES}"), &args("1"));
    let mut nodes: Vec<Process> = (2..=3).map(|node| cluster.serve(node)).collect();
    for node in [&poor, &nodes[0], &nodes[1]] {
        node.line(|line| line.starts_with("ready"));
    }
    let warning = poor.logged("maxclients is");
    assert!(warning.contains("ulimit") && warning.contains("10000"), "{warning}");
    let mut client = Client::new(cluster.clients[0]);
    let Reply::Array(most) = client.call(&["CONFIG", "GET", "maxclients"]) else { panic!() };
    let more = Client::new(cluster.clients[0]).call(&["CONFIG", "SET", "maxclients", "10000"]);
    assert!(matches!(&more, Reply::Error(text) if text.contains("try with")), "{more:?}");
    // Clients without end, half requests, peers that don't introduce themselves.
    let crowd: Vec<TcpStream> = [cluster.clients[0], cluster.admins[0], cluster.peers[0]]
        .into_iter()
        .flat_map(|port| {
            (0..FILES).map(move |_| {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                // It may have been turned away.
                let _ = stream.write_all(b"G");
                stream
            })
        })
        .collect();
    let refused = || counted(cluster.admins[0], "connections_rejected_total");
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "clients are refused", || (refused() > 0).then_some(()));
    assert!((poor.files() as u64) < FILES, "{most:?}");
    // A peer comes back to it, with a connection for each lane.
    for round in 0..3 {
        nodes[1].signal(Signal::KILL);
        assert!(!nodes[1].wait().success());
        nodes[1] = cluster.serve(3);
        nodes[1].line(|line| line.starts_with("ready"));
        let value = round.to_string();
        assert_eq!(client.call(&["SET", "k", &value]), Reply::Simple("OK".into()));
        let mut third = Client::new(cluster.clients[2]);
        assert_eq!(third.call(&["GET", "k"]), Reply::bulk(&value));
    }
    assert_eq!(http_get(cluster.admins[0], "/health").0, 200);
    assert_eq!(counted(cluster.admins[0], "rejoins_total"), 0);
    drop(crowd);
}

#[test]
fn a_process_that_could_serve_no_client_says_so_instead_of_starting() {
    let mut process = Process::start_within("-n 90", &["dev", "--port", "0", "--admin-port", "0"]);
    assert!(!process.wait().success());
    let error = process.logged("error:");
    assert!(error.contains("limit of open files is 90") && error.contains("ulimit"), "{error}");
}
