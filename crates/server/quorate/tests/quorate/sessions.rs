//! Sessions from a plain Redis client: the same call at any node, through a crash, has one effect and
//! one answer.

use std::time::Instant;

use crate::support::dev::Dev;
use crate::support::{Client, Cluster, Reply, WITH_SESSIONS, http_get, keyspace};
use rustix::process::Signal;

/// The id and the grant that `SESSION OPEN` or `SESSION RENEW` has answered.
fn lease(reply: Reply) -> [String; 2] {
    let Reply::Array(items) = reply else { panic!("{reply:?}") };
    let text = |at: usize| match &items[at] {
        Reply::Bulk(Some(bytes)) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!([text(0), text(2), text(4)], ["id", "until", "term"]);
    assert_eq!(items[5], Reply::Int(30 * 60 * 1000));
    [text(1), text(3)]
}

/// A call of a session: its number twice, as of a client that waits for each answer.
fn call(client: &mut Client, sequence: u64, words: &[&str]) -> Reply {
    let sequence = sequence.to_string();
    client.call(&[&["SESSION", "CALL", &sequence, &sequence], words].concat())
}

fn refused(client: &mut Client, command: &str, expected: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    match client.ask(&words).unwrap() {
        Reply::Error(text) if text.starts_with(&format!("{expected} ")) => {}
        other => panic!("{command}: {other:?}"),
    }
}

#[test]
fn a_call_has_one_effect_and_one_answer_at_every_node() {
    for engine in WITH_SESSIONS {
        for lanes in ["1", "2"] {
            let dev = Dev::start(&["--engine", engine, "--lanes", lanes]);
            let mut nodes: Vec<Client> =
                dev.clients.iter().map(|&port| Client::new(port)).collect();
            let [id, until] = lease(nodes[0].call(&["SESSION", "OPEN"]));
            for sequence in 0..20 {
                let key = format!("counter:{}", sequence % 4);
                let counted = Reply::Int(1 + sequence as i64 / 4);
                assert_eq!(call(&mut nodes[0], sequence, &["INCR", &key]), counted);
                for node in [1, 2, 0] {
                    // It is a new client each time, as after a failure.
                    let mut client = Client::new(dev.clients[node]);
                    lease(client.call(&["SESSION", "RENEW", &id, &until]));
                    assert_eq!(call(&mut client, sequence, &["INCR", &key]), counted, "{engine}");
                }
            }
            assert_eq!(nodes[1].call(&["GET", "counter:3"]), Reply::bulk("5"));

            // A block is one call, and a late duplicate is not another.
            let mut block = || {
                assert_eq!(nodes[0].call(&["MULTI"]), Reply::Simple("OK".into()));
                let queued = nodes[0].call(&["INCRBY", "block", "10"]);
                assert_eq!(queued, Reply::Simple("QUEUED".into()));
                call(&mut nodes[0], 20, &["EXEC"])
            };
            assert_eq!(block(), Reply::Array(vec![Reply::Int(10)]));
            assert_eq!(block(), Reply::Array(vec![Reply::Int(10)]));
            assert_eq!(call(&mut nodes[0], 21, &["INCR", "counter:0"]), Reply::Int(6));
            refused(&mut nodes[0], "SESSION CALL 0 0 INCR counter:0", "STALE");
            assert_eq!(nodes[2].call(&["GET", "counter:0"]), Reply::bulk("6"));
        }
    }
}

#[test]
fn bad_calls_have_errors_of_their_own_and_no_effect() {
    for engine in WITH_SESSIONS {
        let dev = Dev::start(&["--engine", engine]);
        let (mut client, mut other) = (Client::new(dev.clients[0]), Client::new(dev.clients[1]));
        refused(&mut client, "SESSION CALL 0 0 INCR a", "NOSESSION");
        let [id, until] = lease(client.call(&["SESSION", "OPEN"]));
        assert_eq!(call(&mut client, 0, &["INCR", "a"]), Reply::Int(1));
        refused(&mut client, "SESSION CALL 0 0 DECR a", "DIFFERENT");
        refused(&mut client, "SESSION CALL 0 1 INCR a", "STALE");
        refused(&mut client, "SESSION CALL 512 0 INCR a", "WINDOW");
        refused(&mut client, "SESSION CALL 1 0 SELECT 0", "ERR");
        refused(&mut client, "SESSION CALL one 0 INCR a", "ERR");
        if engine == "hermes" {
            refused(&mut client, "SESSION CALL 1 0 MSET a 1 b 2", "CROSSKEY");
        }
        // Of no node, of no lane, and of a node that never gave it out.
        let (number, token) = id.split_once('-').unwrap();
        let never = format!("{}-{token}", number.parse::<u64>().unwrap() + 9);
        let of_no_lane = format!("18446744073709551615-{token}");
        for foreign in ["1", &of_no_lane, &never] {
            refused(&mut other, &format!("SESSION RENEW {foreign} {until}"), "EXPIRED");
        }
        // Who counts does not hit the sessions of others.
        for forged in [number.to_owned(), format!("{number}-0123456789abcdef")] {
            refused(&mut other, &format!("SESSION CLOSE {forged} {until}"), "EXPIRED");
        }
        assert_eq!(other.call(&["SESSION", "CLOSE", &id, &until]), Reply::Simple("OK".into()));
        refused(&mut client, "SESSION RENEW", "EXPIRED");
        refused(&mut client, "SESSION CALL 1 1 INCR a", "EXPIRED");
        assert_eq!(other.call(&["GET", "a"]), Reply::bulk("1"));
        // Lanes publish what they count now and then.
        let deadline = Instant::now() + crate::support::PATIENCE;
        crate::support::poll_until(deadline, "calls and refusals are counted", || {
            let (_, metrics) = http_get(dev.admins[0], "/metrics");
            let names = [
                "quorate_sessions{",
                "quorate_session_calls_total{",
                "reason=\"different command\"",
            ];
            names.iter().all(|name| metrics.contains(name)).then_some(())
        });
    }
}

#[test]
fn a_session_outlives_the_node_that_gave_it_its_lease() {
    for engine in WITH_SESSIONS {
        let more = format!("[limits]\nsessions_max = 2\n{}", keyspace(engine, ""));
        let cluster = Cluster::write(&format!("sessions-{engine}"), 3, "", &more);
        let mut nodes = cluster.serve_all();
        let mut client = Client::new(cluster.clients[0]);
        let [id, until] = lease(client.call(&["SESSION", "OPEN"]));
        let [other, other_until] = lease(client.call(&["SESSION", "OPEN"]));
        refused(&mut client, "SESSION OPEN", "MAXSESSIONS");
        assert_eq!(
            client.call(&["SESSION", "CLOSE", &other, &other_until]),
            Reply::Simple("OK".into())
        );
        lease(client.call(&["SESSION", "RENEW", &id, &until]));
        assert_eq!(call(&mut client, 0, &["INCR", "a"]), Reply::Int(1));
        // Its answer may or may not have been sent when the node dies.
        client.send(&["SESSION", "CALL", "1", "1", "INCRBY", "a", "10"]).unwrap();
        nodes[0].signal(Signal::KILL);

        let mut client = Client::new(cluster.clients[1]);
        lease(client.call(&["SESSION", "RENEW", &id, &until]));
        assert_eq!(call(&mut client, 1, &["INCRBY", "a", "10"]), Reply::Int(11), "{engine}");
        nodes[0] = cluster.serve(1);
        nodes[0].line(|line| line.starts_with("ready"));
        // The new process copied the session's records, and knows the others' clocks.
        for port in &cluster.clients {
            let mut client = Client::new(*port);
            lease(client.call(&["SESSION", "RENEW", &id, &until]));
            assert_eq!(call(&mut client, 1, &["INCRBY", "a", "10"]), Reply::Int(11), "{engine}");
            assert_eq!(client.call(&["GET", "a"]), Reply::bulk("11"));
        }
        let mut client = Client::new(cluster.clients[0]);
        lease(client.call(&["SESSION", "RENEW", &id, &until]));
        assert_eq!(call(&mut client, 2, &["INCR", "a"]), Reply::Int(12));
        // The closed one's lease died with its node; its successor believes what the client says.
        refused(&mut client, &format!("SESSION RENEW {other} 0"), "EXPIRED");
    }
}
