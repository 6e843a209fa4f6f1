//! The client against nodes in memory, in virtual time.

mod commits;
mod failover;
mod pipelines;
mod routes;
mod server;
mod sessions;
mod transactions;

use std::time::Duration;

use server::{Act, Net};

use crate::{Builder, Client};

const NODES: &[&str] = &["a:1", "b:1", "c:1"];

/// Without sessions, as against a Redis server.
fn builder() -> Builder {
    Client::builder(NODES).sessions(false)
}

async fn client(net: &Net) -> Client {
    open(builder(), net).await
}

async fn open(builder: Builder, net: &Net) -> Client {
    over(builder, net).connect().await.expect("a node is there")
}

fn over(builder: Builder, net: &Net) -> Builder {
    let net = net.clone();
    builder.connector(move |address| net.clone().connect(address))
}

fn answer(text: &str) -> Option<Act> {
    Some(Act::Answer(format!("{text}\r\n")))
}

/// Decides about the first commands of this name, in order, and lets the later ones pass.
fn first(
    name: &'static str,
    acts: impl IntoIterator<Item = Act>,
) -> impl FnMut(&str, &[&str]) -> Option<Act> {
    let mut acts = acts.into_iter().collect::<std::collections::VecDeque<_>>();
    move |_, words| if words[0] == name { acts.pop_front() } else { None }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
