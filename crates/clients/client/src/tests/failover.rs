//! Commands: the node that each goes to, and its fate when a node fails.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::{Act, Net, answer, builder, client, first, millis, open, over};
use crate::{Client, Error, Reply, limits};

#[tokio::test(start_paused = true)]
async fn commands_do_what_they_say() {
    let net = Net::new();
    let client = client(&net).await;
    assert_eq!(client.get("k").await.unwrap(), None);
    client.set("k", "v").await.unwrap();
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(b"v".as_slice()));
    assert_eq!(client.mget(&["k", "l"]).await.unwrap(), [Some(b"v".to_vec()), None]);
    assert_eq!(client.incr("n").await.unwrap(), 1);
    assert!(client.del("k").await.unwrap());
    assert!(!client.del("k").await.unwrap());
    assert_eq!(client.command(["GET", "n"]).await.unwrap(), Reply::Bulk(b"1".to_vec()));
    let error = client.command(["NOPE"]).await.unwrap_err();
    assert_eq!(error.to_string(), "ERR unknown command 'NOPE'");
    assert!(matches!(error, Error::Server { code, .. } if code == "ERR"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_introduces_itself() {
    let net = Net::new();
    open(builder().database(3).password("secret"), &net).await;
    assert_eq!((net.count("HELLO 3 AUTH default secret"), net.count("SELECT 3")), (1, 1));
    open(builder(), &net).await;
    assert_eq!((net.count("HELLO"), net.count("SELECT 0"), net.count("AUTH")), (2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_only_resp2_is_spoken_to_in_resp2() {
    for refusal in ["NOPROTO unsupported protocol version", "ERR unknown command `HELLO`"] {
        let net = Net::new();
        net.decide(first("HELLO", [Act::Answer(format!("-{refusal}\r\n"))]));
        let client = open(builder().database(3).password("secret"), &net).await;
        assert_eq!((net.count("HELLO"), net.count("AUTH secret")), (1, 1));
        assert_eq!((client.get("k").await.unwrap(), net.dials().len()), (None, 1));
        assert_eq!(net.nodes_of("SELECT 3").last(), net.nodes_of("GET k").last());
    }
}

#[tokio::test(start_paused = true)]
async fn replies_in_resp3_are_understood() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    net.decide(|_, words| match words {
        ["GET", "absent"] => answer("|1\r\n+ttl\r\n:1\r\n>2\r\n+invalidate\r\n_\r\n_"),
        ["MGET", ..] => answer("*2\r\n_\r\n$1\r\nv"),
        ["CONFIG", ..] => answer("%1\r\n+maxmemory\r\n(18446744073709551616"),
        ["EXEC"] => answer("_"),
        _ => None,
    });
    assert_eq!(client.get("absent").await.unwrap(), None);
    assert_eq!(client.mget(&["a", "b"]).await.unwrap(), [None, Some(b"v".to_vec())]);
    let facts = client.command(["CONFIG", "GET", "maxmemory"]).await.unwrap();
    let number = Reply::BigNumber("18446744073709551616".into());
    assert_eq!(facts, Reply::Map(vec![(Reply::Status("maxmemory".into()), number)]));
    let error = open(builder().attempts(2), &net).await.txn(async |t| t.incr("n").await).await;
    assert!(matches!(error, Err(Error::Conflict { attempts: 2 })), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_password_is_no_reason_to_go_on() {
    let net = Net::new();
    net.decide(first("HELLO", [Act::Answer("-WRONGPASS invalid password\r\n".into())]));
    let client = over(builder().password("x"), &net).connect().await;
    assert!(matches!(client.unwrap_err(), Error::Server { code, .. } if code == "WRONGPASS"));
    assert_eq!(net.dials().len(), 1);
}

#[tokio::test]
async fn addresses_are_checked() {
    assert!(matches!(Client::connect(&["localhost"]).await, Err(Error::Address { .. })));
    assert!(matches!(Client::connect(&[""; 0]).await, Err(Error::Address { .. })));
}

#[tokio::test(start_paused = true)]
async fn calls_at_the_same_time_go_to_all_nodes_within_the_pool() {
    let net = Net::new();
    let client = open(builder().pool_size(6), &net).await;
    let calls: Vec<_> = (0..50)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.set(format!("k{number}"), "v").await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let nodes: BTreeSet<_> = net.nodes_of("SET").into_iter().collect();
    assert_eq!(nodes.len(), 3);
    assert!(net.connections_most() <= 6, "{}", net.connections_most());
    assert_eq!(net.dials().len(), 6, "connections are used again");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_give_way_to_new_ones() {
    let net = Net::new();
    let client = open(builder().pool_size(2), &net).await;
    let (one, two) = tokio::join!(client.get("k"), client.get("k"));
    assert_eq!((one.unwrap(), two.unwrap()), (None, None));
    let known = net.dials();
    assert_eq!(known.len(), 2);
    net.decide(move |node, _| {
        known.iter().any(|known| known == node).then(|| Act::Answer("-CLUSTERDOWN no\r\n".into()))
    });
    client.get("k").await.unwrap();
    assert_eq!((net.dials().len(), net.connections_most()), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_down_is_passed_over() {
    let net = Net::new();
    net.take_down("a:1");
    net.take_down("b:1");
    let before = Instant::now();
    let client = client(&net).await;
    for _ in 0..10 {
        client.set("k", "v").await.unwrap();
    }
    assert_eq!(before.elapsed(), Duration::ZERO, "another node is tried at once");
    assert!(net.dials().iter().filter(|node| **node != "c:1").count() <= 2, "{:?}", net.dials());
}

#[tokio::test(start_paused = true)]
async fn a_node_comes_back_after_its_rest() {
    let net = Net::new();
    net.take_down("a:1");
    net.take_down("b:1");
    let client = client(&net).await;
    net.bring_up("a:1");
    net.take_down("c:1");
    tokio::time::advance(limits::NODE_REST * 2).await;
    // The connection to c still stands, and works.
    net.decide(|node, _| (node == "c:1").then_some(Act::Close));
    assert_eq!(client.get("k").await.unwrap(), None);
    assert_eq!(net.nodes_of("GET").last().map(String::as_str), Some("a:1"));
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_node_go_to_another_one() {
    for refusal in ["CLUSTERDOWN no lease", "LOADING dataset", "READONLY replica"] {
        let net = Net::new();
        let client = client(&net).await;
        let refused = Arc::new(Mutex::new(None));
        let seen = refused.clone();
        net.decide(move |node, words| {
            let mut refused = refused.lock().unwrap();
            let refuses = words[0] == "SET" && refused.as_deref().is_none_or(|it| it == node);
            refuses.then(|| *refused = Some(node.to_owned()))?;
            answer(&format!("-{refusal}"))
        });
        let before = Instant::now();
        client.set("k", "v").await.unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(net.count("SET"), 2);
        assert_eq!(net.nodes_of("SET").first(), seen.lock().unwrap().as_ref());
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_clients_is_a_refusal_of_the_node() {
    let net = Net::new();
    net.decide(first("SELECT", [Act::Answer("-ERR max number of clients reached\r\n".into())]));
    client(&net).await;
    assert_eq!(net.dials().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_any_node_the_client_gives_up() {
    let net = Net::new();
    let client = open(builder().attempts(7), &net).await;
    net.decide(|_, _| answer("-CLUSTERDOWN no lease"));
    let error = client.get("k").await.unwrap_err();
    let Error::NoNode { attempts: 7, reason } = &error else { panic!("{error}") };
    assert!(reason.contains(":1: CLUSTERDOWN no lease"), "{reason}");
    assert!(!error.is_unknown() && error.to_string().contains("quorate status"));
    assert_eq!(net.count("GET") + net.count("SELECT"), 7 + 1);
}

#[tokio::test(start_paused = true)]
async fn patience_bounds_the_time() {
    let net = Net::new();
    let client = open(builder().attempts(1_000_000).patience(millis(3_000)), &net).await;
    net.decide(|_, _| answer("-TRYAGAIN busy"));
    let before = Instant::now();
    let error = client.get("k").await.unwrap_err();
    assert!(matches!(error, Error::TryAgain { .. }), "{error}");
    let elapsed = before.elapsed();
    assert!(elapsed >= millis(2_800) && elapsed <= millis(3_050), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn try_again_is_tried_again_after_a_pause() {
    let net = Net::new();
    let client = client(&net).await;
    net.decide(first("INCR", vec![Act::Answer("-TRYAGAIN busy\r\n".into()); 5]));
    let before = Instant::now();
    assert_eq!(client.incr("n").await.unwrap(), 1);
    assert_eq!(net.count("INCR"), 6);
    // Half of 1 + 2 + 4 + 8 + 16 ms at least.
    assert!(before.elapsed() >= millis(15) && before.elapsed() <= millis(36));
}

#[tokio::test(start_paused = true)]
async fn a_lost_update_is_unknown_and_never_repeated() {
    for act in [Act::ExecuteAndClose, Act::Close, Act::ExecuteAndHang] {
        let net = Net::new();
        let client = client(&net).await;
        net.decide(first("INCR", [act]));
        let error = client.incr("n").await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
        assert!(error.to_string().contains("before you try again"), "{error}");
        assert_eq!(net.count("INCR"), 1);
        // The client itself goes on.
        assert!(client.incr("n").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_update_is_unknown() {
    let net = Net::new();
    let client = client(&net).await;
    net.decide(first("SET", [Act::Answer("-UNKNOWN may have happened\r\n".into())]));
    assert!(client.set("k", "v").await.unwrap_err().is_unknown());
    assert_eq!(net.count("SET"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_read_is_repeated_elsewhere() {
    let unknown = Act::Answer("-UNKNOWN may have happened\r\n".into());
    for act in [Act::Close, Act::ExecuteAndHang, unknown] {
        let net = Net::new();
        net.put("k", "v");
        let client = client(&net).await;
        net.decide(first("GET", [act]));
        assert_eq!(client.get("k").await.unwrap().as_deref(), Some(b"v".as_slice()));
        assert_eq!(net.count("GET"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_that_was_not_sent_whole_goes_elsewhere() {
    let net = Net::new();
    net.decide(first("SELECT", [Act::AnswerAndReadOnly(1_000)]));
    let client = open(builder().pool_size(1), &net).await;
    client.set("k", "v".repeat(100_000)).await.unwrap();
    assert_eq!(net.value("k").map(|value| value.len()), Some(100_000));
    assert_eq!((net.dials().len(), net.count("SET")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn replies_that_nobody_asked_for_spoil_a_connection() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    net.decide(first("GET", [Act::Answer("$1\r\nx\r\n$1\r\ny\r\n".into())]));
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(b"x".as_slice()));
    assert_eq!(client.get("k").await.unwrap(), None, "not the reply that was left over");
    assert_eq!(net.dials().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_came_in_the_meantime_spoils_an_idle_connection() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    net.decide(first("GET", [Act::AnswerAndSay(millis(5), "$1\r\ny\r\n")]));
    assert_eq!(client.get("k").await.unwrap(), None);
    tokio::time::sleep(millis(10)).await;
    assert_eq!(client.get("k").await.unwrap(), None);
    assert_eq!(net.dials().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_takes_the_idle_ones_of_its_node_with_it() {
    let net = Net::new();
    let client = over(Client::builder(&["a:1"]), &net).connect().await.unwrap();
    let (one, two) = tokio::join!(client.get("k"), client.get("k"));
    assert_eq!((one.unwrap(), two.unwrap(), net.dials().len()), (None, None, 2));
    net.decide(first("GET", [Act::ExecuteAndHang]));
    let before = Instant::now();
    assert_eq!(client.get("k").await.unwrap(), None);
    assert!(before.elapsed() >= limits::TIMEOUT);
    assert_eq!(net.dials().len(), 3, "the other one may hang as well");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_redis_is_no_node() {
    let net = Net::new();
    net.decide(|_, _| Some(Act::Answer("HTTP/1.1 400 Bad Request\r\n".into())));
    let client = over(builder().attempts(3), &net).connect().await;
    let error = client.unwrap_err();
    assert!(error.to_string().contains("not RESP"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_takes_its_connection_with_it() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    net.put("k", "v");
    net.decide(first("GET", [Act::AnswerLate(millis(20))]));
    let call = tokio::time::timeout(millis(10), client.get("other"));
    assert!(call.await.is_err());
    // The reply is not the one still to come on the first connection.
    assert_eq!(client.get("k").await.unwrap().as_deref(), Some(b"v".as_slice()));
    assert_eq!(net.dials().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn commands_of_a_connection_are_refused() {
    let net = Net::new();
    let client = client(&net).await;
    for words in [
        &["multi"][..],
        &["WATCH", "k"],
        &["SUBSCRIBE", "c"],
        &["CLIENT", "reply", "OFF"],
        &["SELECT", "1"],
        &[],
    ] {
        let error = client.command(words).await.unwrap_err();
        assert!(matches!(error, Error::Stateful { .. }), "{error}");
    }
    assert_eq!(net.commands(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_long_is_not_sent() {
    let net = Net::new();
    let client = client(&net).await;
    let long = vec![b'x'; quorate_types::limits::VALUE_BYTES_MAX + 1];
    assert!(matches!(client.set("k", &long).await, Err(Error::TooLarge { .. })));
    assert!(matches!(client.get(&long).await, Err(Error::TooLarge { .. })));
    assert_eq!(net.commands(), [""; 0]);
}
