//! `quorate dev`: what someone meets who tries Quorate out.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::dev::Dev;
use crate::support::redis::{Raw, encode};
use crate::support::{Client, ENGINES, PATIENCE, Process, Reply, http_get, poll_until};
use rustix::process::Signal;

#[test]
fn what_is_written_through_one_node_is_read_through_every_other() {
    for engine in ENGINES {
        for lanes in ["1", "2"] {
            write_and_read(engine, lanes);
        }
    }
}

fn write_and_read(engine: &str, lanes: &str) {
    let dev = Dev::start(&["--engine", engine, "--lanes", lanes]);
    assert_eq!(dev.clients.len(), 3);
    let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
    for round in 0..30 {
        let (key, value) = (format!("key:{round}"), format!("value {round}"));
        let writer = round % nodes.len();
        assert_eq!(nodes[writer].call(&["SET", &key, &value]), Reply::Simple("OK".into()));
        for node in &mut nodes {
            assert_eq!(node.call(&["GET", &key]), Reply::bulk(&value), "{engine}, {lanes} lanes");
        }
        // Answered from what the other nodes did, so that it can't be less.
        let counted = nodes[(round + 1) % 3].call(&["INCR", "counter"]);
        assert!(matches!(counted, Reply::Int(count) if count > round as i64), "{counted:?}");
    }
    // A node of meerkat learns of the end of another node's transaction after the client.
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "all keys are counted", || {
        (nodes[0].call(&["DBSIZE"]) == Reply::Int(31)).then_some(())
    });
    assert_eq!(nodes[1].call(&["DEL", "key:0", "key:1", "absent"]), Reply::Int(2));
    let (first, second) = (Reply::Bulk(None), Reply::bulk("value 2"));
    assert_eq!(nodes[2].call(&["MGET", "key:0", "key:2"]), Reply::Array(vec![first, second]));
}

/// Which databases run transactions over several keys.
fn transactional(dev: &Dev) -> Vec<bool> {
    let mut client = Client::new(dev.clients[0]);
    let mut ask = |number: u32| {
        assert_eq!(client.call(&["SELECT", &number.to_string()]), Reply::Simple("OK".into()));
        assert_eq!(client.call(&["SET", "there", "1"]), Reply::Simple("OK".into()));
        match client.call(&["MSET", "a", "1", "b", "2"]) {
            Reply::Simple(_) => true,
            Reply::Error(text) => {
                assert!(text.starts_with("CROSSKEY"), "{text}");
                false
            }
            other => panic!("{other:?}"),
        }
    };
    (0..16).map(&mut ask).collect()
}

#[test]
fn every_database_but_1_has_transactions_unless_an_engine_is_chosen_for_all() {
    let mut all_but_1 = vec![true; 16];
    all_but_1[1] = false;
    for (options, says, expected) in [
        (&[][..], "engine meerkat, database 1 engine hermes", all_but_1),
        (&["--engine", "hermes"], "engine hermes", vec![false; 16]),
        (&["--engine", "meerkat"], "engine meerkat", vec![true; 16]),
    ] {
        let dev = Dev::start(options);
        assert!(dev.ready.contains(&format!("3 nodes, {says};")), "{}", dev.ready);
        assert_eq!(transactional(&dev), expected, "{options:?}");
        let mut client = Client::new(dev.clients[0]);
        let Reply::Bulk(Some(info)) = client.call(&["INFO", "quorate"]) else {
            panic!("INFO answers text")
        };
        let info = String::from_utf8(info).unwrap();
        for (number, transactional) in expected.into_iter().enumerate() {
            let engine = if transactional { "meerkat" } else { "hermes" };
            let line = info.lines().find(|line| line.starts_with(&format!("keyspace{number}:")));
            let line = line.unwrap_or_else(|| panic!("keyspace {number} is missing in:\n{info}"));
            assert!(line.contains(&format!("engine={engine},")), "{line}");
        }
    }
}

#[test]
fn a_transaction_over_several_keys_is_seen_whole_through_every_node() {
    let dev = Dev::start(&["--engine", "meerkat", "--lanes", "2"]);
    let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
    let deadline = Instant::now() + PATIENCE;
    for round in 0..40 {
        // A crowded machine can cost the cluster its lease in the midst of one.
        poll_until(deadline, "the round is not interrupted", || watched_round(&mut nodes, round));
    }
}

/// One node's client sets three keys, another's reads and watches two of them and runs a block; in
/// every other round the first client writes in between. `None` if the cluster refused the block.
fn watched_round(nodes: &mut [Client], round: usize) -> Option<()> {
    let ok = Reply::Simple("OK".into());
    let (writer, reader) = (round % 3, (round + 1) % 3);
    let value = round.to_string();
    assert_eq!(nodes[writer].call(&["MSET", "a", &value, "b", &value, "c", &value]), ok);
    let whole = Reply::Array(vec![Reply::bulk(&value); 3]);
    assert_eq!(nodes[reader].call(&["MGET", "a", "b", "c"]), whole);
    assert_eq!(nodes[reader].call(&["WATCH", "a", "b"]), ok);
    let disturbed = round.is_multiple_of(2);
    if disturbed {
        assert_eq!(nodes[writer].call(&["SET", "b", "changed"]), ok);
    }
    let block = [&["MULTI"][..], &["SET", "a", "mine"], &["RENAME", "b", "c"], &["GET", "c"]];
    for command in block {
        match nodes[reader].ask(command).ok()? {
            Reply::Simple(_) => {}
            Reply::Error(_) => return None,
            other => panic!("{command:?}: {other:?}"),
        }
    }
    let ran = nodes[reader].ask(&["EXEC"]).ok()?;
    if matches!(ran, Reply::Error(_)) {
        return None;
    }
    let (done, left) = match disturbed {
        true => (Reply::NullArray, [&value, "changed", &value].map(Reply::bulk).to_vec()),
        false => (
            Reply::Array(vec![ok.clone(), ok, Reply::bulk(&value)]),
            vec![Reply::bulk("mine"), Reply::Bulk(None), Reply::bulk(&value)],
        ),
    };
    assert_eq!(ran, done, "round {round}");
    assert_eq!(nodes[(round + 2) % 3].call(&["MGET", "a", "b", "c"]), Reply::Array(left));
    Some(())
}

#[test]
fn what_an_engine_counts_is_told_with_its_keyspace() {
    let dev = Dev::start(&[]);
    let mut client = Client::new(dev.clients[0]);
    for database in ["0", "1"] {
        client.call(&["SELECT", database]);
        client.call(&["SET", "k", "v"]);
    }
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "both engines' counters are exported", || {
        let metrics = http_get(dev.admins[0], "/metrics").1;
        let has = |db: &str, name: &str| {
            metrics.lines().any(|line| {
                line.starts_with("quorate_engine_")
                    && line.contains(&format!("db=\"{db}\""))
                    && line.contains(&format!("name=\"{name}\""))
                    && !line.ends_with(" 0")
            })
        };
        (has("1", "writes") && has("0", "commits_fast")).then_some(())
    });
    let status: serde_json::Value =
        serde_json::from_str(&http_get(dev.admins[0], "/status").1).unwrap();
    assert_eq!(status["keyspaces"][0]["engine"], "meerkat");
    assert_eq!(status["keyspaces"][1]["engine"], "hermes");
    let admin = format!("127.0.0.1:{}", dev.admins[0]);
    let mut status = Process::start(&["status", "--admin", &admin]);
    status.line(|line| line.starts_with('0') && line.contains("meerkat"));
    assert!(status.wait().success());
}

#[test]
fn clients_wait_at_nodes_without_a_copy_of_their_keys() {
    let dev = Dev::start(&["--engine", "zeus", "--nodes", "6"]);
    let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
    // Each node waits for keys of its own, of which it has copies of half.
    for round in 0..24 {
        let (waiter, other) = (round % 6, (round + 1 + round / 6) % 6);
        let (list, stream) = (format!("list:{round}"), format!("stream:{round}"));
        nodes[waiter].send(&["BLPOP", &list, "0"]).unwrap();
        assert_eq!(nodes[other].call(&["RPUSH", &list, "x"]), Reply::Int(1));
        let popped = Reply::Array(vec![Reply::bulk(&list), Reply::bulk("x")]);
        assert_eq!(nodes[waiter].receive().unwrap(), popped);
        let read = ["XREAD", "BLOCK", "0", "STREAMS", &stream, "0"];
        nodes[waiter].send(&read).unwrap();
        assert!(matches!(nodes[other].call(&["XADD", &stream, "*", "f", "v"]), Reply::Bulk(_)));
        let Reply::Array(streams) = nodes[waiter].receive().unwrap() else { panic!("no streams") };
        assert_eq!(streams.len(), 1);
        // What was written is at the other members of its group, as far as WAIT can say: two at least.
        assert_eq!(
            nodes[waiter].call(&["SET", &format!("key:{round}"), "v"]),
            Reply::Simple("OK".into())
        );
        assert_eq!(nodes[waiter].call(&["WAIT", "2", "1000"]), Reply::Int(2));
    }
    assert_eq!(nodes[0].call(&["DBSIZE"]), Reply::Int(48));
}

/// Keys of owners outside their groups, and with copies that only their owners know of.
#[test]
fn every_node_tells_the_same_of_where_keys_live() {
    for lanes in ["1", "2"] {
        let dev = Dev::start(&["--engine", "zeus", "--nodes", "5", "--lanes", lanes]);
        let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
        for round in 0..10 {
            let (key, writer) = (format!("key:{round}"), round % 5);
            for node in [(writer + 1) % 5, writer] {
                assert_eq!(nodes[node].call(&["SET", &key, "v"]), Reply::Simple("OK".into()));
            }
            for _ in 0..20 {
                assert_eq!(nodes[(writer + 2) % 5].call(&["GET", &key]), Reply::bulk("v"));
            }
            // A copy may still be on its way, and one that was left out is asked for again.
            poll_until(Instant::now() + PATIENCE, "all tell the same", || {
                let mut told = nodes.iter_mut().map(|node| node.call(&["PLACEMENT", "GET", &key]));
                let first = told.next().expect("there are nodes");
                let Reply::Array(words) = &first else { panic!("{first:?}") };
                assert_eq!(
                    words[1],
                    Reply::Int(writer as i64 + 1),
                    "{key} is where it was written"
                );
                told.all(|other| other == first).then_some(())
            });
        }
    }
}

#[test]
fn a_transaction_of_very_many_keys_is_done_or_refused_as_a_whole() {
    let dev = Dev::start(&["--engine", "zeus", "--nodes", "6"]);
    let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
    let names: Vec<String> = (0..4000).map(|number| format!("key:{number}")).collect();
    let mut words = vec!["MSET"];
    words.extend(names.iter().flat_map(|name| [name.as_str(), "v"]));
    assert_eq!(nodes[0].call(&words), Reply::Simple("OK".into()));
    for node in &mut nodes {
        assert_eq!(node.call(&["DBSIZE"]), Reply::Int(4000));
    }
    // All of them move to another node.
    let mut words = vec!["DEL"];
    words.extend(names.iter().map(String::as_str));
    assert_eq!(nodes[4].call(&words), Reply::Int(4000));
    assert_eq!(nodes[5].call(&["DBSIZE"]), Reply::Int(0));
    let names: Vec<String> = (0..20_000).map(|number| format!("key:{number}")).collect();
    let mut words = vec!["MSET"];
    words.extend(names.iter().flat_map(|name| [name.as_str(), "v"]));
    let Reply::Error(text) = nodes[1].call(&words) else { panic!("too many keys were written") };
    println!("{text}");
    assert_eq!(nodes[2].call(&["DBSIZE"]), Reply::Int(0));
}

#[test]
fn functions_are_known_at_every_node_of_a_cluster_whose_database_0_is_zeus() {
    let dev = Dev::start(&["--engine", "zeus", "--nodes", "6"]);
    let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
    let library = "#!lua name=lib\nredis.register_function('put', function(keys, args) \
                   return redis.call('INCRBY', keys[1], args[1]) end)";
    assert_eq!(nodes[0].call(&["FUNCTION", "LOAD", library]), Reply::bulk("lib"));
    for (round, node) in nodes.iter_mut().enumerate() {
        let put = ["FCALL", "put", "1", "counter", "2"];
        assert_eq!(node.call(&put), Reply::Int(2 * (round as i64 + 1)));
    }
    assert_eq!(nodes[5].call(&["FUNCTION", "DELETE", "lib"]), Reply::Simple("OK".into()));
    let gone = nodes[2].call(&["FCALL", "put", "1", "counter", "2"]);
    assert!(matches!(gone, Reply::Error(_)), "{gone:?}");
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    for engine in ENGINES {
        let dev = Dev::start(&["--engine", engine, "--lanes", "2"]);
        let mut client = Client::new(dev.clients[1]);
        for n in 0..500 {
            client.send(&["SET", &format!("k{}", n % 50), &n.to_string()]).unwrap();
            client.send(&["GET", &format!("k{}", n % 50)]).unwrap();
            client.send(&["PING"]).unwrap();
        }
        for n in 0..500 {
            assert_eq!(client.receive().unwrap(), Reply::Simple("OK".into()), "{engine}");
            assert_eq!(client.receive().unwrap(), Reply::bulk(&n.to_string()), "{engine}");
            assert_eq!(client.receive().unwrap(), Reply::Simple("PONG".into()));
        }
    }
}

#[test]
fn a_client_that_stops_sending_still_gets_its_replies() {
    let dev = Dev::start(&[]);
    let mut client = Client::new(dev.clients[0]);
    for n in 0..100 {
        client.send(&["SET", &format!("k{n}"), "v"]).unwrap();
    }
    client.finish_sending();
    for _ in 0..100 {
        assert_eq!(client.receive().unwrap(), Reply::Simple("OK".into()));
    }
    assert!(client.receive().is_err(), "the connection closes once everything was answered");
}

#[test]
fn large_values_arrive_whole() {
    for engine in ENGINES {
        let dev = Dev::start(&["--engine", engine]);
        let value = "0123456789abcdef".repeat(256 * 1024);
        let mut writer = Client::new(dev.clients[0]);
        assert_eq!(writer.call(&["SET", "large", &value]), Reply::Simple("OK".into()));
        let mut reader = Client::new(dev.clients[2]);
        for _ in 0..3 {
            assert_eq!(reader.call(&["GET", "large"]), Reply::bulk(&value), "{engine}");
        }
    }
}

#[test]
fn a_port_in_use_is_named_with_the_flag_that_changes_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for flag in ["--port", "--admin-port"] {
        let other = if flag == "--port" { "--admin-port" } else { "--port" };
        let mut process =
            Process::start(&["dev", "--nodes", "1", flag, &port.to_string(), other, "0"]);
        assert!(!process.wait().success());
        let error = process.logged("error:");
        assert!(error.contains(&format!("port {port} is in use")), "{error}");
        assert!(error.contains(flag), "{error}");
    }
}

#[test]
fn ports_that_overlap_are_told_from_ports_in_use() {
    let mut process = Process::start(&["dev", "--port", "31400", "--admin-port", "31402"]);
    assert!(!process.wait().success());
    let error = process.logged("error:");
    assert!(error.contains("--port 31400 and --admin-port 31402 are too close"), "{error}");
}

#[test]
fn clusters_of_other_sizes_serve_and_small_ones_warn() {
    for (nodes, ready, warns) in
        [(1, "1 node,", true), (2, "2 nodes,", true), (5, "5 nodes,", false)]
    {
        let count = nodes.to_string();
        let mut process =
            Process::start(&["dev", "--port", "0", "--admin-port", "0", "--nodes", &count]);
        let first = process.line(|line| line.contains("redis://"));
        let port = first.split_once("redis://127.0.0.1:").unwrap().1;
        let port = port.split(' ').next().unwrap().parse().unwrap();
        let said = process.line(|line| line.starts_with("ready"));
        assert!(said.contains(ready), "{said}");
        let mut client = Client::new(port);
        assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
        assert_eq!(client.call(&["WAIT", "0", "10"]), Reply::Int(nodes - 1));
        process.signal(Signal::INT);
        assert!(process.wait().success());
        assert_eq!(process.log().contains("no node can be lost"), warns, "{nodes} nodes");
    }
}

#[test]
fn a_password_given_at_the_start_is_asked_for() {
    let dev = Dev::start(&["--requirepass", "secret"]);
    for &port in &dev.clients {
        let mut client = Client::new(port);
        let refused = Reply::Error("NOAUTH Authentication required.".into());
        assert_eq!(client.call(&["GET", "k"]), refused);
        assert!(matches!(client.call(&["AUTH", "wrong"]), Reply::Error(_)));
        assert_eq!(client.call(&["AUTH", "secret"]), Reply::Simple("OK".into()));
        assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
    }
}

#[test]
fn signals_and_shutdown_end_the_cluster_in_order() {
    for end in ["TERM", "INT", "SHUTDOWN"] {
        let mut dev = Dev::start(&[]);
        let mut client = Client::new(dev.clients[0]);
        assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
        let start = Instant::now();
        match end {
            "TERM" => dev.process.signal(Signal::TERM),
            "INT" => dev.process.signal(Signal::INT),
            _ => client.send(&["SHUTDOWN", "NOSAVE"]).unwrap(),
        }
        let status = dev.process.wait();
        assert!(status.success(), "{end}: {status}");
        assert!(start.elapsed() < Duration::from_secs(2), "{end}: nothing was pending");
        assert!(client.receive().is_err(), "the connection is closed");
    }
}

#[test]
fn the_administration_endpoint_tells_how_the_nodes_are() {
    let dev = Dev::start(&["--nodes", "3"]);
    let mut client = Client::new(dev.clients[0]);
    for n in 0..10 {
        client.call(&["SET", &format!("k{n}"), "v"]);
    }
    for &admin in &dev.admins {
        assert_eq!(http_get(admin, "/health").0, 200);
        let deadline = Instant::now() + PATIENCE;
        poll_until(deadline, "the keys are counted", || {
            let status: serde_json::Value =
                serde_json::from_str(&http_get(admin, "/status").1).unwrap();
            let keyspace = &status["keyspaces"][0];
            let live = status["members"].as_array().unwrap().iter();
            let live = live.filter(|member| member["role"] == "active").count();
            (keyspace["keys"] == 10 && live == 3 && status["serving"] == true).then_some(())
        });
        let view: serde_json::Value = serde_json::from_str(&http_get(admin, "/view").1).unwrap();
        assert!(view["epoch"].as_u64().unwrap() > 0);
        let metrics = http_get(admin, "/metrics").1;
        for line in ["quorate_serving 1", "quorate_keys{db=\"0\"} 10", "# EOF"] {
            assert!(metrics.contains(line), "{line} is missing in:\n{metrics}");
        }
        assert!(http_get(admin, "/").1.contains("Quorate"));
    }
    let mut status =
        Process::start(&["status", "--admin", &format!("127.0.0.1:{}", dev.admins[1])]);
    let first = status.line(|_| true);
    assert!(first.contains("cluster dev") && first.contains("node 2 (serving)"), "{first}");
    assert!(status.wait().success());
}

#[test]
fn clients_beyond_maxclients_are_told_so() {
    let dev = Dev::start(&[]);
    let mut first = Client::new(dev.clients[0]);
    first.call(&["CONFIG", "SET", "maxclients", "1"]);
    let mut second = Client::new(dev.clients[0]);
    assert_eq!(second.receive().unwrap(), Reply::Error("ERR max number of clients reached".into()));
    assert!(second.receive().is_err());
    assert_eq!(first.call(&["PING"]), Reply::Simple("PONG".into()));
}

#[test]
fn an_idle_cluster_takes_less_than_a_hundredth_of_a_core() {
    let dev = Dev::start(&[]);
    let before = dev.process.cpu_ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = dev.process.cpu_ticks() - before;
    // A tick is 10 ms; 2 s at 1 % are 2 ticks. One more for where the ticks fall.
    assert!(used <= 3, "{used} ticks in 2 s");
}

#[test]
fn a_node_alone_empties_a_large_keyspace() {
    for engine in ENGINES {
        let dev = Dev::start(&["--engine", engine, "--nodes", "1", "--lanes", "2"]);
        let mut raw = Raw::new(dev.clients[0]);
        for part in 0..20 {
            let keys = (0..1000).map(|number| format!("key:{part}:{number}"));
            let sets: Vec<u8> = keys.flat_map(|key| encode(&["SET", &key, "value"])).collect();
            raw.send(&sets).unwrap();
            (0..1000).for_each(|_| assert_eq!(raw.receive().unwrap(), b"+OK\r\n"));
        }
        let mut client = Client::new(dev.clients[0]);
        assert_eq!(client.call(&["DBSIZE"]), Reply::Int(20_000));
        assert_eq!(client.call(&["FLUSHALL"]), Reply::Simple("OK".into()));
        assert_eq!(client.call(&["DBSIZE"]), Reply::Int(0), "{engine}");
    }
}
