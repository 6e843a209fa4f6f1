//! `quorate serve`: separate processes over TCP, strangers at the peer port, wrong configurations.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{
    Client, Cluster, ENGINES, PATIENCE, Process, Reply, http_get, keyspace, poll_until,
};
use rustix::process::Signal;

#[test]
fn three_processes_are_one_store() {
    for engine in ENGINES {
        for lanes in [1, 2] {
            one_store(engine, lanes);
        }
    }
}

fn one_store(engine: &str, lanes: usize) {
    let name = format!("one-store-{engine}-{lanes}");
    let cluster = Cluster::write(&name, 3, &format!("lanes = {lanes}"), &keyspace(engine, ""));
    let mut nodes = cluster.serve_all();
    let mut clients: Vec<Client> = cluster.clients.iter().map(|&p| Client::new(p)).collect();
    for round in 0..60 {
        let (key, value) = (format!("key:{round}"), round.to_string());
        let writer = &mut clients[round % 3];
        assert_eq!(writer.call(&["SET", &key, &value]), Reply::Simple("OK".into()));
        for client in &mut clients {
            assert_eq!(client.call(&["GET", &key]), Reply::bulk(&value), "{name}");
        }
    }
    // The larger of these fills sockets and spans many reads.
    for size in [100_000, 4_000_000] {
        let large = "x".repeat(size);
        let set = clients[0].call(&["SET", "large", &large]);
        assert_eq!(set, Reply::Simple("OK".into()), "{name}, {size} bytes");
        assert_eq!(clients[2].call(&["GET", "large"]), Reply::bulk(&large), "{name}");
    }
    wait_until_whole(&cluster);
    nodes[0].signal(Signal::TERM);
    assert!(nodes[0].wait().success());
    // The others go on without it, once its lease has lapsed.
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the other nodes serve writes", || {
        matches!(clients[1].call(&["SET", "k", "v"]), Reply::Simple(_)).then_some(())
    });
    assert_eq!(clients[2].call(&["GET", "k"]), Reply::bulk("v"));
}

/// Waits until every node has all data. On a crowded machine one may have lost its place for a
/// moment, and the loss of another would then be that of a majority.
fn wait_until_whole(cluster: &Cluster) {
    let deadline = Instant::now() + PATIENCE;
    for &admin in &cluster.admins {
        poll_until(deadline, "every member is active", || {
            let status: serde_json::Value =
                serde_json::from_str(&http_get(admin, "/status").1).ok()?;
            let members = status["members"].as_array()?;
            let all = members.iter().all(|member| member["role"] == "active");
            (all && status["serving"] == true).then_some(())
        });
    }
}

#[test]
fn transactions_span_partitions_with_replica_groups_of_their_own() {
    for (name, options) in [
        ("partitions", "partitions = 5\nreplicas = 3"),
        ("partition-nodes", "partition_nodes = [[1, 2, 3], [2, 3, 4]]"),
    ] {
        let cluster = Cluster::write(name, 4, "", &keyspace("meerkat", options));
        let mut nodes = cluster.serve_all();
        let mut clients: Vec<Client> = cluster.clients.iter().map(|&p| Client::new(p)).collect();
        // Enough keys for every partition to have some.
        let keys: Vec<String> = (0..12).map(|number| format!("key:{number}")).collect();
        for round in 0..20 {
            transfer(&mut clients[round % 4], &keys, round);
            for client in &mut clients {
                assert_eq!(read_all(client, &keys), vec![round.to_string(); 12], "{name}");
            }
        }
        // A node that comes back has everything that it had, wherever it has to copy it from.
        let held: Vec<Reply> = clients.iter_mut().map(held_by).collect();
        for node in 0..4 {
            wait_until_whole(&cluster);
            nodes[node].signal(Signal::KILL);
            let round = 20 + node;
            let mut other = Client::new(cluster.clients[(node + 1) % 4]);
            transfer(&mut other, &keys, round);
            nodes[node] = cluster.serve(node + 1);
            nodes[node].line(|line| line.starts_with("ready"));
            clients[node] = Client::new(cluster.clients[node]);
            assert_eq!(held_by(&mut clients[node]), held[node], "{name}: node {}", node + 1);
            for client in &mut clients {
                assert_eq!(read_all(client, &keys), vec![round.to_string(); 12], "{name}");
            }
        }
    }
}

/// How many keys the node itself holds.
fn held_by(client: &mut Client) -> Reply {
    client.call(&["INFO", "keyspace"])
}

#[test]
fn commands_on_a_whole_keyspace_reach_what_their_node_does_not_hold() {
    for (name, engine, options) in [
        ("whole-hermes", "hermes", "replicas = 3"),
        ("whole-meerkat", "meerkat", "replicas = 3"),
        ("whole-zeus", "zeus", "replicas = 3"),
        ("whole-partitions", "meerkat", "partition_nodes = [[1, 2, 3], [2, 3, 4]]"),
    ] {
        let cluster = Cluster::write(name, 4, "", &keyspace(engine, options));
        let _nodes = cluster.serve_all();
        let mut clients: Vec<Client> = cluster.clients.iter().map(|&p| Client::new(p)).collect();
        let names: Vec<String> = (0..500).map(|number| format!("key:{number}")).collect();
        for flusher in 0..4 {
            for name in &names {
                assert_eq!(clients[0].call(&["SET", name, "v"]), Reply::Simple("OK".into()));
            }
            for (node, client) in clients.iter_mut().enumerate() {
                // What was acknowledged is listed at once, whatever the node has yet to hear of.
                assert_eq!(client.call(&["DBSIZE"]), Reply::Int(500), "{name}: node {}", node + 1);
                let Reply::Array(keys) = client.call(&["KEYS", "*"]) else { panic!("no array") };
                assert_eq!(keys.len(), 500, "{name}: node {}", node + 1);
                assert_eq!(scan(client).len(), 500, "{name}: node {}", node + 1);
                let Reply::Bulk(Some(key)) = client.call(&["RANDOMKEY"]) else { panic!("no key") };
                assert!(names.iter().any(|name| name.as_bytes() == key));
            }
            assert_eq!(clients[flusher].call(&["FLUSHALL"]), Reply::Simple("OK".into()));
            for client in &mut clients {
                assert_eq!(client.call(&["EXISTS", "key:0", "key:1", "key:2"]), Reply::Int(0));
                assert_eq!(client.call(&["DBSIZE"]), Reply::Int(0), "{name}");
                assert_eq!(scan(client).len(), 0, "{name}");
            }
        }
    }
}

/// Every key that `SCAN` names.
fn scan(client: &mut Client) -> BTreeSet<Vec<u8>> {
    let (mut keys, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let Reply::Array(parts) = client.call(&["SCAN", &cursor, "COUNT", "100"]) else {
            panic!("SCAN answers an array")
        };
        let [Reply::Bulk(Some(next)), Reply::Array(found)] = &parts[..] else {
            panic!("of a cursor and keys")
        };
        for key in found {
            let Reply::Bulk(Some(key)) = key else { panic!("a key is a string") };
            keys.insert(key.clone());
        }
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            return keys;
        }
    }
}

/// Sets every key to this round's number: half with a block that counts on what it watches, again
/// until it runs.
fn transfer(client: &mut Client, keys: &[String], round: usize) {
    let value = round.to_string();
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the block runs", || {
        let watch = [&["WATCH"][..], &keys.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        assert_eq!(client.call(&watch), Reply::Simple("OK".into()));
        assert_eq!(client.call(&["MULTI"]), Reply::Simple("OK".into()));
        let (some, others) = keys.split_at(keys.len() / 2);
        for key in some {
            client.call(&["SET", key, &value]);
        }
        let mut set = vec!["MSET"];
        others.iter().for_each(|key| set.extend([key.as_str(), &value]));
        client.call(&set);
        // The view may change meanwhile.
        matches!(client.ask(&["EXEC"]), Ok(Reply::Array(_))).then_some(())
    });
}

/// What all keys hold at one instant.
fn read_all(client: &mut Client, keys: &[String]) -> Vec<String> {
    let read = [&["MGET"][..], &keys.iter().map(String::as_str).collect::<Vec<_>>()].concat();
    let Reply::Array(values) = client.call(&read) else { panic!("MGET answers an array") };
    let text = |value: Reply| match value {
        Reply::Bulk(Some(bytes)) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?}"),
    };
    values.into_iter().map(text).collect()
}

#[test]
fn keys_are_read_in_order_where_a_keyspace_keeps_them() {
    let plain = "[[keyspace]]\ndb = 1\nname = \"plain\"\nengine = \"local\"\n\
                 [[keyspace]]\ndb = 2\nname = \"single\"\nengine = \"hermes\"\n";
    let keyspaces = keyspace("local", "ordered = true") + plain;
    let cluster = Cluster::write("ordered", 1, "lanes = 2", &keyspaces);
    let _nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[0]);
    let pairs = |words: &[&str]| Reply::Array(words.iter().map(|word| Reply::bulk(word)).collect());
    let mset = ["MSET", "user:1", "a", "user:2", "b", "user:10", "c", "zoo", "d"];
    assert_eq!(client.call(&mset), Reply::Simple("OK".into()));
    assert_eq!(
        client.call(&["KEYRANGE", "-", "+"]),
        pairs(&["user:1", "user:10", "user:2", "zoo"])
    );
    let users = ["KEYRANGE", "[user:", "(user;", "LIMIT", "2", "WITHVALUES"];
    assert_eq!(client.call(&users), pairs(&["user:1", "a", "user:10", "c"]));
    for words in [&["MULTI"][..], &["DEL", "user:1"], &users, &["SET", "user:0", "e"], &users] {
        client.call(words);
    }
    let answers = [
        Reply::Int(1),
        pairs(&["user:10", "c", "user:2", "b"]),
        Reply::Simple("OK".into()),
        pairs(&["user:0", "e", "user:10", "c"]),
    ];
    assert_eq!(client.call(&["EXEC"]), Reply::Array(answers.into()));
    for database in ["1", "2"] {
        client.call(&["SELECT", database]);
        let Reply::Error(text) = client.call(&["KEYRANGE", "-", "+"]) else { panic!("no order") };
        assert!(text.contains("ordered = true"), "{text}");
    }
}

#[test]
fn the_password_of_the_file_is_asked_for() {
    let cluster = Cluster::write("password", 1, "[security]\nrequirepass = \"se cret\"", "");
    let _nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[0]);
    let refused = Reply::Error("NOAUTH Authentication required.".into());
    assert_eq!(client.call(&["SET", "k", "v"]), refused);
    assert_eq!(client.call(&["AUTH", "default", "se cret"]), Reply::Simple("OK".into()));
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
}

#[test]
fn a_minority_does_not_serve() {
    ENGINES.into_iter().for_each(minority);
}

fn minority(engine: &str) {
    let cluster = Cluster::write(&format!("minority-{engine}"), 3, "", &keyspace(engine, ""));
    let nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[0]);
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
    nodes[1].signal(Signal::KILL);
    nodes[2].signal(Signal::KILL);
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the last node stops serving", || {
        let mut client = Client::connect(cluster.clients[0], PATIENCE).ok()?;
        match client.ask(&["GET", "k"]) {
            // A node of meerkat needs no lease for its answers, and waits for a majority.
            Ok(Reply::Error(text)) if engine == "meerkat" => {
                text.starts_with("TRYAGAIN").then_some(())
            }
            Ok(Reply::Error(text)) => text.starts_with("CLUSTERDOWN").then_some(()),
            _ => None,
        }
    });
    poll_until(deadline, "it says so", || {
        let (status, body) = http_get(cluster.admins[0], "/health");
        (status == 503 && body.contains("majority")).then_some(())
    });
}

/// Sends bytes to a port and reads until it closes.
fn provoke(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is fine.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn hello(version: u16, node: u16, lanes: u16, cluster: &str) -> Vec<u8> {
    hello_with_lease(version, node, lanes, 150, cluster)
}

fn hello_with_lease(version: u16, node: u16, lanes: u16, lease_ms: u32, cluster: &str) -> Vec<u8> {
    let mut bytes = b"QRT1".to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&node.to_le_bytes());
    bytes.extend_from_slice(&7u64.to_le_bytes());
    bytes.extend_from_slice(&0u16.to_le_bytes());
    bytes.extend_from_slice(&lanes.to_le_bytes());
    bytes.extend_from_slice(&(lease_ms * 1000).to_le_bytes());
    bytes.extend_from_slice(&1000u32.to_le_bytes());
    bytes.extend_from_slice(&(cluster.len() as u32).to_le_bytes());
    bytes.extend_from_slice(cluster.as_bytes());
    bytes
}

#[test]
fn strangers_at_the_peer_port_are_told_why_and_change_nothing() {
    let cluster = Cluster::write("strangers", 3, "", "");
    let mut nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[2]);
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
    let port = cluster.peers[2];
    let version = 17;
    for (bytes, answer) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "use the client port"),
        (b"*1\r\n$4\r\nPING\r\n".to_vec(), "use the client port"),
        (vec![0; 100_000], "use the client port"),
        (hello(16, 1, 1, "strangers"), "wire version 16"),
        (hello(version, 1, 1, "another"), "cluster 'another'"),
        (hello(version, 1, 2, "strangers"), "2 lanes"),
        (hello_with_lease(version, 1, 1, 151, "strangers"), "lease"),
        (hello(version, 3, 1, "strangers"), "own"),
        (hello(version, 64, 1, "strangers"), "node id 64"),
    ] {
        let said = provoke(port, &bytes);
        assert!(said.starts_with("-REFUSED ") && said.contains(answer), "{answer}: {said}");
    }
    // A stranger with proper manners is believed at first; its garbage then costs it the
    // connection. Node 1's own connection comes back.
    for garbage in [vec![0xff; 64], b"\x08\0\0\0\0\0\0\0notcrc!!".to_vec()] {
        let mut bytes = hello(version, 1, 1, "strangers");
        bytes.extend_from_slice(&garbage);
        let said = provoke(port, &bytes);
        assert!(said.starts_with("QRT1"), "{said}");
    }
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the cluster serves", || {
        let mut client = Client::connect(cluster.clients[2], PATIENCE).ok()?;
        let written = client.ask(&["SET", "k2", "v2"]).ok()? == Reply::Simple("OK".into());
        (written && client.ask(&["GET", "k"]).ok()? == Reply::bulk("v")).then_some(())
    });
    assert!(nodes.iter_mut().all(Process::is_running));
}

#[test]
fn garbage_at_the_client_port_is_answered_as_redis_does() {
    let cluster = Cluster::write("garbage", 1, "", "");
    let mut nodes = cluster.serve_all();
    let said = provoke(cluster.clients[0], b"*1\r\n$-5\r\n");
    assert_eq!(said, "-ERR Protocol error: invalid bulk length\r\n");
    // Announces much, sends little, and goes: no memory is taken for what was announced.
    let mut slow = TcpStream::connect(("127.0.0.1", cluster.clients[0])).unwrap();
    slow.write_all(b"*2\r\n$3\r\nGET\r\n$60000000\r\nabc").unwrap();
    drop(slow);
    let mut client = Client::new(cluster.clients[0]);
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
    assert!(nodes[0].is_running());
}

#[test]
fn wrong_configurations_and_busy_ports_are_explained() {
    let cluster = Cluster::write("wrong", 3, "lane = 2", "");
    let mut node = cluster.serve(1);
    assert!(!node.wait().success());
    let error = node.logged("error:");
    assert!(error.contains("line 3") && error.contains("lane"), "{error}");

    let cluster = Cluster::write("busy", 3, "", "");
    let mut node = cluster.serve(4);
    assert!(!node.wait().success());
    assert!(node.logged("error:").contains("no node 4"));
    let _taken = std::net::TcpListener::bind(("127.0.0.1", cluster.peers[0])).unwrap();
    let mut node = cluster.serve(1);
    assert!(!node.wait().success());
    let error = node.logged("error:");
    assert!(error.contains(&cluster.peers[0].to_string()) && error.contains("peer"), "{error}");
}

#[test]
fn a_fragile_keyspace_is_warned_about_at_every_start() {
    for engine in ENGINES {
        let few = keyspace(engine, "replicas = 2");
        let cluster = Cluster::write(&format!("fragile-{engine}"), 3, "", &few);
        let node = cluster.serve(1);
        let warning = node.logged("'default'");
        assert!(warning.contains("WARN") && warning.contains("2 replicas"), "{warning}");
    }
}

#[test]
fn a_node_joins_and_another_leaves_without_a_restart_of_the_rest() {
    ENGINES.into_iter().for_each(join_and_leave);
}

fn join_and_leave(engine: &str) {
    // A node that is added later is a replica of the keyspace.
    let cluster = Cluster::write(&format!("members-{engine}"), 3, "", &keyspace(engine, ""));
    let nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[0]);
    for n in 0..1000 {
        client.send(&["SET", &format!("k{n}"), &n.to_string()]).unwrap();
    }
    for _ in 0..1000 {
        assert_eq!(client.receive().unwrap(), Reply::Simple("OK".into()));
    }
    // The new node's file lists itself besides the others.
    let ports = crate::support::free_ports(3);
    let mut text = std::fs::read_to_string(&cluster.file).unwrap();
    text += &format!(
        "[[node]]\nid = 4\npeer = \"127.0.0.1:{}\"\nclient = \"127.0.0.1:{}\"\n\
         admin = \"127.0.0.1:{}\"\n",
        ports[0], ports[1], ports[2]
    );
    let file = cluster.file.with_extension("four.toml");
    std::fs::write(&file, text).unwrap();
    let admin = format!("127.0.0.1:{}", cluster.admins[0]);
    let [peer, redis, own_admin] = [0, 1, 2].map(|n: usize| format!("127.0.0.1:{}", ports[n]));
    let mut add = Process::start(&[
        "member",
        "add",
        "4",
        "--peer",
        &peer,
        "--client",
        &redis,
        "--admin-address",
        &own_admin,
        "--admin",
        &admin,
        "--token-file",
        &cluster.token(),
    ]);
    let said = add.line(|_| true);
    assert!(said.contains("node 4 is a member"), "{said}");
    assert!(add.wait().success());
    let fourth = Process::start(&["serve", "--config", file.to_str().unwrap(), "--node", "4"]);
    fourth.line(|line| line.starts_with("ready"));
    std::fs::remove_file(&file).unwrap();
    let mut client = Client::new(ports[1]);
    for n in (0..1000).step_by(37) {
        assert_eq!(client.call(&["GET", &format!("k{n}")]), Reply::bulk(&n.to_string()));
    }
    let own_token = file.with_extension("token").to_str().unwrap().to_owned();
    let by_token = ["--admin", &own_admin, "--token-file", &own_token];
    let mut remove = Process::start(&[&["member", "remove", "1"][..], &by_token].concat());
    // An engine that keeps each key at some of the nodes has them copied first.
    remove.line(|line| line.contains("node 1 is no member any more"));
    assert!(remove.wait().success());
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the rest serves writes", || {
        matches!(client.call(&["SET", "after", "1"]), Reply::Simple(_)).then_some(())
    });
    // What can't be is refused with a reason.
    let mut wrong = Process::start(&[&["member", "remove", "64"][..], &by_token].concat());
    assert!(!wrong.wait().success());
    assert!(wrong.logged("error:").contains("64 is not a node id"));
    std::fs::remove_file(own_token).unwrap();
    drop(nodes);
}

#[test]
fn a_removal_that_would_leave_too_few_copies_has_to_be_asked_for() {
    let cluster = Cluster::write("copies", 3, "", &keyspace("zeus", "replicas = 3"));
    let _nodes = cluster.serve_all();
    wait_until_whole(&cluster);
    let admin = format!("127.0.0.1:{}", cluster.admins[0]);
    let by_token = ["--admin", &admin, "--token-file", &cluster.token()];
    let member = |args: &[&str]| Process::start(&[&["member"], args, &by_token[..]].concat());
    let mut refused = member(&["remove", "3"]);
    assert!(!refused.wait().success());
    assert!(refused.logged("error:").contains("the 3 copies of each key"), "{}", refused.log());
    let mut kept = member(&["keep", "3"]);
    kept.line(|line| line.contains("node 3 stays a member"));
    assert!(kept.wait().success());
    let mut unknown = member(&["keep", "4"]);
    assert!(!unknown.wait().success());
    assert!(unknown.logged("error:").contains("node 4 is not a member"));
    let mut removed = member(&["remove", "3", "--now"]);
    removed.line(|line| line.contains("node 3 is no member any more"));
    removed.line(|line| line.contains("its copies are gone with it"));
    assert!(removed.wait().success());
}

#[test]
fn a_node_at_the_address_of_a_removed_one_keeps_its_connections() {
    let cluster = Cluster::write("same-address", 3, "", &keyspace("zeus", ""));
    let nodes = cluster.serve_all();
    wait_until_whole(&cluster);
    nodes[2].signal(Signal::KILL);
    let place = [&cluster.peers, &cluster.clients, &cluster.admins];
    let place = place.map(|ports| format!("127.0.0.1:{}", ports[2]));
    let survivor = format!("127.0.0.1:{}", cluster.admins[0]);
    let by_token = ["--admin", &survivor, "--token-file", &cluster.token()];
    let add =
        ["add", "4", "--peer", &place[0], "--client", &place[1], "--admin-address", &place[2]];
    for change in [&["remove", "3"][..], &add] {
        let deadline = Instant::now() + PATIENCE;
        poll_until(deadline, "the members change", || {
            let mut member = Process::start(&[&["member"][..], change, &by_token].concat());
            member.wait().success().then_some(())
        });
    }
    let text = std::fs::read_to_string(&cluster.file).unwrap().replace("id = 3", "id = 4");
    let file = cluster.file.with_extension("same.toml");
    std::fs::write(&file, text).unwrap();
    let fourth = Process::start(&["serve", "--config", file.to_str().unwrap(), "--node", "4"]);
    fourth.line(|line| line.starts_with("ready"));
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(file.with_extension("token")).unwrap();
    wait_until_whole(&cluster);
    for &admin in &cluster.admins[..2] {
        let status: serde_json::Value =
            serde_json::from_str(&http_get(admin, "/status").1).unwrap();
        let links = status["links"].as_array().unwrap();
        let called: BTreeSet<i64> = links.iter().filter_map(|link| link["peer"].as_i64()).collect();
        assert!(called.contains(&4) && !called.contains(&3), "{links:?}");
    }
}

#[test]
fn a_cluster_that_is_formed_anew_says_that_it_is_empty() {
    let cluster = Cluster::write("formed", 3, "", "");
    let mut nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[0]);
    assert_eq!(client.call(&["SET", "k", "v"]), Reply::Simple("OK".into()));
    let formed = |node: usize| {
        let status: serde_json::Value =
            serde_json::from_str(&http_get(cluster.admins[node], "/status").1).ok()?;
        let serving = status["serving"] == true && !status["members"].as_array()?.is_empty();
        serving.then(|| status["formed_seconds_ago"].is_u64())
    };
    let deadline = Instant::now() + PATIENCE;
    // A node that comes back to the others has their data.
    nodes[0].signal(Signal::KILL);
    assert!(!nodes[0].wait().success());
    nodes[0] = cluster.serve(1);
    nodes[0].line(|line| line.starts_with("ready"));
    assert!(!poll_until(deadline, "node 1 serves", || formed(0)));
    assert!(poll_until(deadline, "node 2 serves", || formed(1)));
    // All of them together have none.
    for node in &mut nodes {
        node.signal(Signal::KILL);
        assert!(!node.wait().success());
    }
    let nodes = cluster.serve_all();
    for (number, node) in nodes.iter().enumerate() {
        node.logged("the cluster is formed, empty");
        assert!(poll_until(deadline, "the node serves", || formed(number)));
    }
    let admin = format!("127.0.0.1:{}", cluster.admins[0]);
    let status = Process::start(&["status", "--admin", &admin]);
    status.line(|line| line.contains("empty: what its nodes held before is gone"));
    assert_eq!(Client::new(cluster.clients[0]).call(&["GET", "k"]), Reply::Bulk(None));
}

#[test]
fn status_of_a_cluster_that_is_not_there_names_the_address() {
    let port = crate::support::free_ports(1)[0];
    let mut status = Process::start(&["status", "--admin", &format!("127.0.0.1:{port}")]);
    assert!(!status.wait().success());
    let error = status.logged("error:");
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("--admin"), "{error}");
}

#[test]
fn an_idle_node_takes_less_than_a_hundredth_of_a_core() {
    let cluster = Cluster::write("idle", 3, "", "");
    let nodes = cluster.serve_all();
    let ticks = || nodes.iter().map(Process::cpu_ticks).sum::<u64>();
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks() - before;
    // A tick is 10 ms; 2 s at 1 % are 2 ticks. One more for each process, for where ticks fall.
    assert!(used <= 5, "{used} ticks in 2 s");
}

/// The founders of a cluster are replaced but for one, whose file names the others only. It is
/// stopped past its lease, and has to find members that only the view told it of.
#[test]
fn a_founder_comes_back_to_members_that_its_file_does_not_name() {
    let cluster = Cluster::write("founder", 3, "", "");
    let mut nodes = cluster.serve_all();
    let founder = format!("127.0.0.1:{}", cluster.admins[0]);
    let (mut files, mut admins) = (Vec::new(), Vec::new());
    for (gone, id) in [("2", "4"), ("3", "5")] {
        drop(nodes.remove(1));
        let ports = crate::support::free_ports(3);
        admins.push(ports[2]);
        let [peer, redis, admin] = [0, 1, 2].map(|n: usize| format!("127.0.0.1:{}", ports[n]));
        let at_founder = ["--admin", &founder, "--token-file", &cluster.token()];
        change_members(&[&["remove", gone], &at_founder[..]].concat());
        let place = ["--peer", &peer, "--client", &redis, "--admin-address", &admin];
        change_members(&[&["add", id][..], &place, &at_founder].concat());
        let mut text = std::fs::read_to_string(&cluster.file).unwrap();
        text += &format!(
            "[[node]]\nid = {id}\npeer = \"{peer}\"\nclient = \"{redis}\"\nadmin = \"{admin}\"\n"
        );
        let file = cluster.file.with_extension(format!("{id}.toml"));
        std::fs::write(&file, text).unwrap();
        let node = Process::start(&["serve", "--config", file.to_str().unwrap(), "--node", id]);
        node.line(|line| line.starts_with("ready"));
        nodes.push(node);
        files.push(file);
    }
    nodes[0].signal(Signal::STOP);
    // However late its silence is noticed on this machine.
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the others go on without it", || {
        let view: serde_json::Value =
            serde_json::from_str(&http_get(admins[1], "/view").1).unwrap();
        let mut members = view["members"].as_array().unwrap().iter();
        members.any(|member| member["node"] == 1 && member["live"] == false).then_some(())
    });
    nodes[0].signal(Signal::CONT);
    nodes[0].logged("this node began a new life");
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the founder serves again", || {
        (http_get(cluster.admins[0], "/health").0 == 200).then_some(())
    });
    for file in files {
        std::fs::remove_file(file.with_extension("token")).unwrap();
        std::fs::remove_file(file).unwrap();
    }
}

/// A node that is added to a cluster of one is looked for, and votes at once.
#[test]
fn a_cluster_of_one_grows() {
    let cluster = Cluster::write("grows", 1, "", "");
    let nodes = cluster.serve_all();
    let founder = format!("127.0.0.1:{}", cluster.admins[0]);
    let ports = crate::support::free_ports(3);
    let [peer, redis, admin] = [0, 1, 2].map(|n: usize| format!("127.0.0.1:{}", ports[n]));
    let mut add = vec!["member", "add", "2", "--peer", &peer, "--client", &redis];
    let token = cluster.token();
    add.extend(["--admin-address", &admin, "--admin", &founder, "--token-file", &token]);
    let mut add = Process::start(&add);
    let mut text = std::fs::read_to_string(&cluster.file).unwrap();
    text += &format!(
        "[[node]]\nid = 2\npeer = \"{peer}\"\nclient = \"{redis}\"\nadmin = \"{admin}\"\n"
    );
    let file = cluster.file.with_extension("2.toml");
    std::fs::write(&file, text).unwrap();
    let newcomer = Process::start(&["serve", "--config", file.to_str().unwrap(), "--node", "2"]);
    newcomer.line(|line| line.starts_with("ready"));
    assert!(add.wait().success());
    drop((nodes, newcomer));
    std::fs::remove_file(file.with_extension("token")).unwrap();
    std::fs::remove_file(file).unwrap();
}

/// Changes the members as an operator does. A cluster that has just lost a node refuses for a while.
fn change_members(args: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    poll_until(deadline, "the members change", || {
        let mut change = Process::start(&[&["member"], args].concat());
        change.wait().success().then_some(())
    });
}
