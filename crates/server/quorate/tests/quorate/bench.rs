//! `quorate bench` against real servers.

use crate::support::dev::Dev;
use crate::support::redis::Redis;
use crate::support::{Client, Process, Reply, free_ports};
use serde_json::Value;

/// Runs a short benchmark that is to succeed, and parses what it prints.
fn bench(workload: &str, ports: &[u16], more: &[&str]) -> Value {
    let mut process = start(workload, ports, more);
    let line = process.line(|_| true);
    assert!(process.wait().success(), "{}", process.log());
    serde_json::from_str(&line).unwrap()
}

fn start(workload: &str, ports: &[u16], more: &[&str]) -> Process {
    let targets: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut args = vec!["bench", workload, "--connections", "8", "--json"];
    for target in &targets {
        args.extend(["--target", target]);
    }
    Process::start(&[args.as_slice(), more].concat())
}

#[test]
fn ycsb_t_runs_against_every_node_of_a_dev_cluster() {
    let dev = Dev::start(&["--engine", "hermes"]);
    let result = bench("ycsb-t", &dev.clients, &["--transactions", "2000", "--keys", "500"]);
    let count = |name: &str| result[name].as_u64().unwrap();
    assert_eq!(count("committed") + count("aborted") + count("failed"), 2000, "{result}");
    // A crowded machine may cost a node its lease for a moment; most transactions get through.
    assert!(count("committed") > 1000, "{result}");
    assert_eq!(count("missed"), 0, "{result}");
    assert_eq!(result["targets"].as_array().unwrap().len(), 3);
    let latency = |name: &str| result["latency_us"][name].as_f64().unwrap();
    assert!(latency("p50") > 0.0 && latency("p50") <= latency("p99"), "{result}");
    assert!(latency("p99") <= latency("max"), "{result}");
    let mut client = Client::new(dev.clients[0]);
    assert_eq!(client.call(&["DBSIZE"]), Reply::Int(500));
    let key = format!("item:{:059}", 499);
    assert_eq!(client.call(&["STRLEN", &key]), Reply::Int(64));
}

#[test]
fn retwis_and_the_bank_run_against_every_node_of_a_meerkat_cluster() {
    let dev = Dev::start(&["--engine", "meerkat", "--lanes", "2"]);
    for (database, workload) in ["retwis", "bank", "multi", "ycsb-t"].into_iter().enumerate() {
        let database = database.to_string();
        let more = ["--transactions", "2000", "--keys", "300", "--database", &database];
        let result = bench(workload, &dev.clients, &more);
        let count = |name: &str| result[name].as_u64().unwrap();
        assert_eq!(count("committed") + count("aborted") + count("failed"), 2000, "{result}");
        // A crowded machine may cost a node its lease for a moment; most transactions get through.
        assert!(count("committed") > 1000, "{result}");
        assert_eq!(count("missed"), 0, "{result}");
        if workload == "bank" {
            let balance = serde_json::json!({ "expected": 300_000, "found": 300_000 });
            assert_eq!(result["balance"], balance);
        }
    }
}

#[test]
fn a_workload_that_the_engine_refuses_says_why() {
    let dev = Dev::start(&["--engine", "hermes", "--nodes", "1"]);
    let more = ["--transactions", "100", "--keys", "50"];
    let mut process = start("bank", &dev.clients[..1], &more);
    let line = process.line(|_| true);
    assert!(!process.wait().success());
    let result: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(result["failed"], 100, "{result}");
    assert_eq!(result["balance"]["found"], 50_000, "{result}");
    let error = process.logged("error:");
    assert!(error.contains("nothing was committed: CROSSKEY"), "{error}");
}

#[test]
fn every_workload_runs_against_redis_in_a_database_of_its_own() {
    let redis = Redis::start(&["--requirepass", "secret"]);
    let shared = ["--password", "secret", "--seconds", "0.2", "--warmup", "0", "--keys", "200"];
    for (number, (workload, value_bytes)) in
        [("ycsb-t", 64), ("retwis", 64), ("multi", 100), ("bank", 4)].into_iter().enumerate()
    {
        let database = (number + 1).to_string();
        let more = ["--database", &database, "--pipeline", "2", "--zipf", "0.9"];
        let result = bench(workload, &[redis.port], &[&shared[..], &more].concat());
        assert!(result["committed"].as_u64().unwrap() > 0, "{result}");
        for none in ["aborted", "failed", "missed"] {
            assert_eq!(result[none], 0, "{result}");
        }
        let rate = result["committed_per_second"].as_f64().unwrap();
        let committed = result["committed"].as_f64().unwrap();
        assert!((rate * 0.2 - committed).abs() < 1.0, "{result}");
        assert_eq!(result["workload"], workload);
        let mut client = Client::new(redis.port);
        client.call(&["AUTH", "secret"]);
        client.call(&["SELECT", &database]);
        assert_eq!(client.call(&["DBSIZE"]), Reply::Int(200));
        let Reply::Bulk(Some(key)) = client.call(&["RANDOMKEY"]) else { panic!("keys are there") };
        assert_eq!(key.len(), if workload == "multi" { 16 } else { 64 });
        let key = String::from_utf8(key).unwrap();
        let Reply::Int(bytes) = client.call(&["STRLEN", &key]) else { panic!("a length") };
        // The balances of accounts move a little.
        assert!(bytes == value_bytes || workload == "bank" && bytes <= value_bytes, "{bytes}");
    }
}

#[test]
fn the_bank_adds_up() {
    let redis = Redis::start(&[]);
    let more = ["--transactions", "3000", "--keys", "20", "--zipf", "0.9"];
    let result = bench("bank", &[redis.port], &more);
    assert_eq!(result["committed"], 3000);
    assert_eq!(result["balance"], serde_json::json!({ "expected": 20_000, "found": 20_000 }));
    let mut client = Client::new(redis.port);
    let moved = (0..20).filter(|account| {
        let key = format!("account:{account:056}");
        client.call(&["GET", &key]) != Reply::bulk("1000")
    });
    assert!(moved.count() > 10, "money has moved");
}

const LOCAL: [(&str, &str); 5] = [
    ("smallbank", "300"),
    ("tatp", "200"),
    ("voter", "200"),
    ("handovers", "10240"),
    ("venmo", "600"),
];

#[test]
fn workloads_with_locality_pass_their_audits_on_redis() {
    let redis = Redis::start(&[]);
    for (number, (workload, keys)) in LOCAL.into_iter().enumerate() {
        for framing in ["block", "watch"] {
            let database = (number + 1).to_string();
            // Two targets count as two nodes, and are one here.
            let ports = [redis.port, redis.port];
            let shared = ["--transactions", "3000", "--keys", keys, "--database", &database];
            let more = [&shared[..], &["--framing", framing]].concat();
            let result = bench(workload, &ports, &more);
            assert_eq!(result["failed"], 0, "{result}");
            assert_eq!(result["missed"], 0, "{result}");
            assert_eq!(result["local"]["audit"]["holds"], true, "{result}");
            assert_eq!(result["local"]["framing"], framing);
            assert!(result["zipf"].is_null() && result["local"]["writes"].as_u64().unwrap() > 400);
        }
    }
}

/// Runs a short benchmark in the process that is to succeed.
fn embedded(args: &[&str]) -> Value {
    let mut process = Process::start(&[&["bench", "--embedded", "--json"], args].concat());
    let line = process.line(|_| true);
    assert!(process.wait().success(), "{}", process.log());
    serde_json::from_str(&line).unwrap()
}

#[test]
fn workloads_with_locality_pass_their_audits_in_the_process() {
    for (workload, keys) in LOCAL {
        for framing in ["block", "watch"] {
            let args = ["--transactions", "2000", "--keys", keys, "--framing", framing];
            let result = embedded(&[&[workload], &args[..]].concat());
            assert_eq!(result["failed"], 0, "{result}");
            assert_eq!(result["local"]["audit"]["holds"], true, "{result}");
        }
    }
    let args = ["smallbank", "--remote", "20", "--transactions", "4000", "--lanes", "2"];
    let result = embedded(&args);
    let share = result["local"]["remote_share"].as_f64().unwrap();
    assert!((share - 0.2).abs() < 0.04, "{result}");
    let voter = ["voter", "--move-after", "500,1000", "--transactions", "2000", "--keys", "2000"];
    let result = embedded(&voter);
    let tenths = result["committed_by_tenths"].as_array().unwrap();
    assert_eq!(tenths.iter().map(|done| done.as_u64().unwrap()).sum::<u64>(), 2000);
    let alone = ["tatp", "--engine", "local", "--nodes", "1", "--transactions", "500"];
    assert_eq!(embedded(&[&alone[..], &["--keys", "100"]].concat())["engine"], "local");
    let groups = ["smallbank", "--nodes", "5", "--replicas", "3", "--transactions", "500"];
    let result = embedded(&[&groups[..], &["--keys", "500"]].concat());
    assert_eq!(result["local"]["audit"]["holds"], true, "{result}");
}

#[test]
fn people_get_a_table() {
    let redis = Redis::start(&[]);
    let target = format!("127.0.0.1:{}", redis.port);
    let args = ["bench", "retwis", "--transactions", "500", "--keys", "100", "--target", &target];
    let mut process = Process::start(&args);
    let first = process.line(|_| true);
    assert!(
        first.starts_with(&format!("retwis on {target}, database 0: 50 connections")),
        "{first}"
    );
    let committed = process.line(|line| line.starts_with("committed"));
    assert!(committed.contains("500"), "{committed}");
    process.line(|line| line.trim_start().starts_with("p99.9"));
    assert!(process.wait().success());
}

#[test]
fn a_target_that_refuses_is_named_with_a_remedy() {
    let port = free_ports(1)[0];
    let mut process = start("ycsb-t", &[port], &["--transactions", "1"]);
    assert!(!process.wait().success());
    let error = process.logged("error:");
    assert!(error.contains("start a cluster with `quorate dev`"), "{error}");
    assert!(
        error.contains(&format!("cannot reach 127.0.0.1:{port}: Connection refused")),
        "{error}"
    );
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    for (args, words) in [
        (&["retwis", "--keys", "9"][..], "retwis needs at least 10 keys"),
        (&["ycsb-t", "--zipf", "2.5"], "choose --zipf between 0 and 2"),
        (&["ycsb-t", "--seconds", "0"], "--seconds 0 measures nothing"),
        (&["ycsb-t", "--target", "nowhere"], "--target nowhere is no HOST:PORT"),
        (&["tpc-c"], "possible values: ycsb-t, retwis, multi, bank, mget, smallbank, tatp, voter"),
        (&["smallbank", "--remote", "101"], "a percentage lies between 0 and 100"),
        (&["smallbank", "--remote", "-1"], "a percentage lies between 0 and 100"),
        (&["smallbank", "--keys", "10"], "smallbank has between 100 and"),
        (&["smallbank", "--remote", "5"], "on a single node nothing is remote"),
        (&["smallbank", "--move-at", "2"], "smallbank has no --move-at; it is for voter"),
        (&["voter", "--movers", "5"], "no time is said"),
        (&["handovers", "--remote", "5"], "geography decides"),
        (&["bank", "--framing", "watch"], "bank has no --framing"),
        (&["voter", "--framing", "watch", "--pipeline", "2"], "use --pipeline 1"),
        (&["smallbank", "--embedded", "--engine", "hermes"], "several keys at once, which hermes"),
        (&["tatp", "--embedded", "--engine", "local"], "use --nodes 1"),
        (&["ycsb-t", "--embedded", "--engine", "hermes", "--lanes", "2"], "use --lanes 1"),
        (
            &["tatp", "--embedded", "--engine", "local", "--nodes", "1", "--replicas", "1"],
            "no partit",
        ),
        (&["tatp", "--embedded", "--replicas", "4"], "lower --replicas"),
    ] {
        let mut process = Process::start(&[&["bench"], args].concat());
        assert!(!process.wait().success());
        process.logged(words);
    }
}

#[test]
fn a_database_that_is_not_there_is_told() {
    let redis = Redis::start(&[]);
    let mut process = start("multi", &[redis.port], &["--database", "99", "--keys", "10"]);
    assert!(!process.wait().success());
    let error = process.logged("error:");
    assert!(error.contains("refuses SELECT: ERR DB index is out of range"), "{error}");
}
