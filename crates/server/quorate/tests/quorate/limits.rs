//! The limits, end to end: at each, an error that names it, worded as Redis words it where Redis
//! has it, and a server that goes on.

use std::time::Instant;

use crate::support::dev::Dev;
use crate::support::redis::{Raw, encode};
use crate::support::{Client, Cluster, ENGINES, PATIENCE, Reply, http_get, poll_until};
use quorate_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn error(text: &str) -> Reply {
    Reply::Error(text.into())
}

#[test]
fn a_key_that_is_too_long_is_refused_and_the_longest_is_not() {
    let dev = Dev::start(&[]);
    let (longest, longer) = ("k".repeat(KEY_BYTES_MAX), "k".repeat(KEY_BYTES_MAX + 1));
    let refused = error("ERR the key is longer than 65536 bytes");
    for &port in &dev.clients {
        let mut client = Client::new(port);
        assert_eq!(client.call(&["SET", &longest, "v"]), ok());
        assert_eq!(client.call(&["GET", &longest]), Reply::bulk("v"));
        for command in [&["SET", &longer, "v"][..], &["GET", &longer], &["DEL", "k", &longer]] {
            assert_eq!(client.call(command), refused);
        }
    }
}

#[test]
fn a_value_that_is_too_long_is_refused() {
    let dev = Dev::start(&[]);
    let mut client = Client::new(dev.clients[0]);
    // What a command would make too long is refused by name, and the connection lives.
    let refused = error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    let end = VALUE_BYTES_MAX.to_string();
    assert_eq!(client.call(&["SETRANGE", "k", &end, "x"]), refused);
    assert_eq!(client.call(&["EXISTS", "k"]), Reply::Int(0));
    // What a client announces too long is not kept, so the connection ends, but not before the client
    // has sent it and read why.
    let refused = |bytes: usize| {
        let mut raw = Raw::new(dev.clients[0]);
        raw.send(&encode(&["SET", "k", &"v".repeat(bytes)])).unwrap();
        let said = raw.rest();
        String::from_utf8(said).unwrap()
    };
    let invalid = "-ERR Protocol error: invalid bulk length: ";
    assert_eq!(
        refused(VALUE_BYTES_MAX + 1),
        format!(
            "{invalid}4194305 bytes are more than proto-max-bulk-len, 4194304; spread the value over \
             several keys\r\n"
        )
    );
    assert_eq!(client.call(&["CONFIG", "SET", "proto-max-bulk-len", "1mb"]), ok());
    assert_eq!(
        refused(5 << 20),
        format!(
            "{invalid}5242880 bytes are more than proto-max-bulk-len, 1048576; raise it with CONFIG \
             SET up to 4194304, or spread the value over several keys\r\n"
        )
    );
    let longest = "v".repeat(1 << 20);
    assert_eq!(client.call(&["SET", "k", &longest]), ok());
    assert_eq!(Client::new(dev.clients[1]).call(&["STRLEN", "k"]), Reply::Int(1 << 20));
}

#[test]
fn a_command_or_a_transaction_beyond_the_query_buffer_is_refused() {
    let dev = Dev::start(&[]);
    let mut client = Client::new(dev.clients[0]);
    assert_eq!(client.call(&["CONFIG", "SET", "client-query-buffer-limit", "1mb"]), ok());
    let part = "x".repeat(400_000);
    let mut raw = Raw::new(dev.clients[0]);
    raw.send_behind(encode(&["DEL", &part, &part, &part, &part]));
    assert_eq!(raw.rest(), b"", "as in Redis, the client is disconnected");

    assert_eq!(client.call(&["MULTI"]), ok());
    let queued = Reply::Simple("QUEUED".into());
    assert_eq!(client.call(&["SET", "k", &part]), queued);
    assert_eq!(client.call(&["APPEND", "k", &part]), queued);
    let Reply::Error(text) = client.call(&["APPEND", "k", &part]) else { panic!("it was queued") };
    assert!(text.contains("client-query-buffer-limit"), "{text}");
    let aborted = error("EXECABORT Transaction discarded because of previous errors.");
    assert_eq!(client.call(&["EXEC"]), aborted);
    assert_eq!(client.call(&["EXISTS", "k"]), Reply::Int(0));
}

#[test]
fn a_client_that_does_not_read_its_replies_is_disconnected() {
    for engine in ENGINES {
        check_unread_replies(&Dev::start(&["--engine", engine]));
    }
}

fn check_unread_replies(dev: &Dev) {
    let mut client = Client::new(dev.clients[0]);
    assert_eq!(client.call(&["SET", "k", &"v".repeat(1_000_000)]), ok());
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 4mb 0 0"];
    assert_eq!(client.call(&limit), ok());
    let mut words = vec!["MGET"];
    words.resize(11, "k");
    let mut greedy = Raw::new(dev.clients[0]);
    greedy.send(&encode(&words)).unwrap();
    let got = greedy.rest().len();
    assert!(got < 10_000_000, "the reply of 10 MB came whole");
    // What fits is delivered.
    words.truncate(3);
    let Reply::Array(values) = client.call(&words) else { panic!("no array") };
    assert_eq!(values.len(), 2);
    // Pipelined replies wait until they are read, so that they never pile up.
    let mut patient = Raw::new(dev.clients[0]);
    patient.send(&encode(&["GET", "k"]).repeat(60)).unwrap();
    for _ in 0..60 {
        assert_eq!(patient.receive().unwrap().len(), 1_000_000 + 12);
    }
}

/// Writes keys until they are refused; returns how many were taken.
fn fill(client: &mut Client) -> usize {
    let value = "v".repeat(10_000);
    for number in 0..10_000 {
        match client.call(&["SET", &format!("fill:{number}"), &value]) {
            Reply::Simple(_) => {}
            reply => {
                assert_eq!(reply, error(OOM));
                return number;
            }
        }
    }
    panic!("100 MB were taken");
}

#[test]
fn memory_is_bounded_and_nothing_is_evicted() {
    let dev = Dev::start(&[]);
    let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
    for node in &mut nodes {
        assert_eq!(node.call(&["CONFIG", "SET", "maxmemory", "3mb"]), ok());
    }
    let taken = fill(&mut nodes[0]);
    assert!((100..350).contains(&taken), "{taken} values of 10 kB");
    for node in &mut nodes {
        assert_eq!(node.call(&["DBSIZE"]), Reply::Int(taken as i64), "nothing is evicted");
        for refused in [&["SET", "k", "v"][..], &["INCR", "k"], &["APPEND", "fill:0", "v"]] {
            assert_eq!(node.call(refused), error(OOM));
        }
        // What adds nothing is served.
        assert_eq!(node.call(&["STRLEN", "fill:0"]), Reply::Int(10_000));
        assert_eq!(node.call(&["EXPIRE", "fill:0", "1000"]), Reply::Int(1));
        assert_eq!(node.call(&["PERSIST", "fill:0"]), Reply::Int(1));
        assert_eq!(node.call(&["MULTI"]), ok());
        assert_eq!(node.call(&["SET", "fill:1", "v"]), error(OOM));
        let aborted = error("EXECABORT Transaction discarded because of previous errors.");
        assert_eq!(node.call(&["EXEC"]), aborted);
    }
    let names: Vec<String> = (0..20).map(|number| format!("fill:{number}")).collect();
    let mut delete = vec!["DEL"];
    delete.extend(names.iter().map(String::as_str));
    assert_eq!(nodes[1].call(&delete), Reply::Int(20));
    for node in &mut nodes {
        assert_eq!(node.call(&["SET", "k", "v"]), ok(), "there is room again");
    }
}

/// A node writes keys that other nodes keep, which it owns then, and reads others so often that it has
/// copies of them: more than it has memory for, and nothing is refused.
#[test]
fn copies_that_others_keep_give_way_before_memory_is_short() {
    for lanes in ["1", "2"] {
        let dev = Dev::start(&["--engine", "zeus", "--nodes", "5", "--lanes", lanes]);
        let mut nodes: Vec<Client> = dev.clients.iter().map(|&port| Client::new(port)).collect();
        assert_eq!(nodes[0].call(&["CONFIG", "SET", "maxmemory", "3mb"]), ok());
        let value = "v".repeat(10_000);
        let is_kept = |node: &mut Client, key: &str| {
            let Reply::Array(told) = node.call(&["PLACEMENT", "GET", key]) else {
                panic!("a list")
            };
            let Reply::Array(readers) = &told[5] else { panic!("{told:?}") };
            readers.contains(&Reply::Int(1))
        };
        let names = (0..).map(|number| format!("key:{number}"));
        let others: Vec<String> =
            names.filter(|key| !is_kept(&mut nodes[1], key)).take(1_000).collect();
        let (written, read) = others.split_at(700);
        for key in read {
            assert_eq!(nodes[1].call(&["SET", key, &value]), ok());
        }
        let mut written = written.iter();
        for key in read {
            for _ in 0..20 {
                assert_eq!(nodes[0].call(&["GET", key]), Reply::bulk(&value));
            }
            for key in written.by_ref().take(2) {
                assert_eq!(nodes[0].call(&["SET", key, &value]), ok(), "{key}, {lanes} lanes");
            }
        }
        poll_until(Instant::now() + PATIENCE, "copies were dropped", || {
            let (_, metrics) = http_get(dev.admins[0], "/metrics");
            let dropped = metrics.lines().filter(|line| line.contains("copies_dropped"));
            let dropped = dropped.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            // Of 600 that it has written there is room for less than half.
            (dropped.sum::<u64>() > 300).then_some(())
        });
        // Nothing is lost.
        for key in &others[..900] {
            let held = nodes[2].call(&["STRLEN", key]);
            let is_written = others[..600].contains(key) || read.contains(key);
            assert_eq!(held, Reply::Int(if is_written { 10_000 } else { 0 }), "{key}");
        }
    }
}

#[test]
fn limits_of_the_file_are_those_of_the_node() {
    let limits = "[limits]\nmaxmemory = \"2mb\"\nmaxclients = 3";
    let cluster = Cluster::write("limits", 3, limits, "");
    let _nodes = cluster.serve_all();
    let mut client = Client::new(cluster.clients[1]);
    let taken = fill(&mut client);
    assert!((50..250).contains(&taken), "{taken} values of 10 kB");
    for (name, value) in [("maxmemory", "2097152"), ("maxclients", "3")] {
        let pair = Reply::Array(vec![Reply::bulk(name), Reply::bulk(value)]);
        assert_eq!(client.call(&["CONFIG", "GET", name]), pair);
    }
    let _more = [Client::new(cluster.clients[1]), Client::new(cluster.clients[1])];
    let mut fourth = Client::new(cluster.clients[1]);
    assert_eq!(fourth.receive().unwrap(), error("ERR max number of clients reached"));
}
