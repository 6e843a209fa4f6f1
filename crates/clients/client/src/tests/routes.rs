//! The node that a request goes to where keys move.

use std::collections::BTreeSet;

use quorate_types::placement::{group, shard_of};
use quorate_types::{NodeId, NodeSet};

use super::{Act, NODES, Net, builder, first, open};
use crate::{Client, limits};

/// A client that has met every node.
async fn client(net: &Net) -> Client {
    let client = open(builder().sessions(true), net).await;
    for _ in NODES {
        client.get("any").await.unwrap();
    }
    assert_eq!(net.nodes_of("INFO").iter().rev().take(3).collect::<BTreeSet<_>>().len(), 3);
    client
}

/// The addresses of nodes, in the order in which they are good for a key.
fn order(key: &str) -> Vec<String> {
    let all: NodeSet = (1..=3).map(NodeId).collect();
    let nodes = group(shard_of(key.as_bytes()), all, 3);
    nodes.into_iter().map(|node| NODES[usize::from(node.0) - 1].to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_key_is_used_at_one_node_by_all_clients() {
    let net = Net::new();
    net.move_keys();
    let (one, two) = (client(&net).await, client(&net).await);
    for number in 0..30 {
        let key = format!("k{}", number % 10);
        for client in [&one, &two] {
            client.incr(&key).await.unwrap();
            client.get(&key).await.unwrap();
            client.txn(async |t| t.incr(&key).await).await.unwrap();
        }
        assert_eq!(net.value(&key), Some((number / 10 * 4 + 4).to_string()));
    }
    assert_eq!(net.moves(), 0);
    let used: BTreeSet<_> = net.nodes_of("WATCH").into_iter().collect();
    assert_eq!(used.len(), 3, "keys are everywhere");
    for (key, node) in (0..10).map(|number| format!("k{number}")).zip(0..) {
        assert_eq!(net.nodes_of(&format!("GET {key}")).last(), order(&key).first(), "{node}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_go_round_the_nodes_if_that_is_wanted_or_keys_stay() {
    for (moves, routes) in [(true, false), (false, true)] {
        let net = Net::new();
        if moves {
            net.move_keys();
        }
        let client = open(builder().routes(routes), &net).await;
        for _ in 0..10 {
            let pair = (client.set("k", "v"), client.set("k", "v"), client.set("k", "v"));
            let (one, two, three) = tokio::join!(pair.0, pair.1, pair.2);
            one.and(two).and(three).unwrap();
        }
        let nodes: BTreeSet<_> = net.nodes_of("SET").into_iter().collect();
        assert_eq!((nodes.len(), net.count("PLACEMENT")), (3, 0));
        assert_eq!(net.count("INFO"), usize::from(!moves));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_others_use_elsewhere_is_followed() {
    let net = Net::new();
    net.move_keys();
    let client = client(&net).await;
    let elsewhere = order("k").pop().unwrap();
    net.pin(NODES.iter().find(|node| **node == elsewhere).unwrap());
    for _ in 0..limits::HINT_USES + 1 {
        client.incr("k").await.unwrap();
    }
    assert_eq!(net.nodes_of("SESSION CALL").last(), Some(&elsewhere));
    let asked = net.count("PLACEMENT");
    for _ in 0..50 {
        client.incr("k").await.unwrap();
    }
    assert_eq!(net.count("PLACEMENT"), asked, "it is known for a while");
    tokio::time::advance(limits::HINT_AGE).await;
    client.pipeline().get("other").incr("k").send().await;
    assert_eq!((net.count("PLACEMENT"), net.moves()), (asked + 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_question_keeps_the_numbers_of_the_calls_behind_it() {
    let net = Net::new();
    net.move_keys();
    let client = client(&net).await;
    for number in 1..20 {
        let before = net.count("PLACEMENT");
        tokio::time::advance(limits::HINT_AGE).await;
        let node = order("n").remove(0);
        // Each answer is lost, and asked for at another node under the call's number.
        if number % 3 == 0 {
            net.decide(first("SESSION", [Act::ExecuteAndClose]));
        }
        assert_eq!(client.incr("n").await.unwrap(), number, "at {node}");
        assert!(number < 6 || net.count("PLACEMENT") > before);
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_in_order_serves_while_a_node_is_down() {
    let net = Net::new();
    net.move_keys();
    let client = client(&net).await;
    client.set("k", "v").await.unwrap();
    let nodes = order("k");
    net.take_down(&nodes[0]);
    let down = nodes[0].clone();
    net.decide(move |node, _| (node == down).then_some(Act::Close));
    for _ in 0..10 {
        client.set("k", "v").await.unwrap();
        assert_eq!(net.nodes_of("SESSION CALL").last(), Some(&nodes[1]));
    }
    net.bring_up(&nodes[0]);
    net.decide(|_, _| None);
    tokio::time::advance(limits::NODE_REST + limits::HINT_AGE).await;
    client.set("k", "v").await.unwrap();
    client.set("k", "v").await.unwrap();
    assert_eq!(net.nodes_of("SESSION CALL").last(), Some(&nodes[1]), "it lives there now");
}
