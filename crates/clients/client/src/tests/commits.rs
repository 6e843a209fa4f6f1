//! Commits as calls of sessions: whichever messages are lost, a transaction happens once, and its
//! outcome is told.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use super::{Act, NODES, Net, millis, open};
use crate::{Builder, Client, Error, Reply};

fn builder() -> Builder {
    Client::builder(NODES)
}

fn is_exec(words: &[&str]) -> bool {
    words.starts_with(&["SESSION", "CALL"]) && words.last() == Some(&"EXEC")
}

/// Does this to the first calls of `EXEC`, and lets the later ones pass.
fn first_execs(acts: impl IntoIterator<Item = Act>) -> impl FnMut(&str, &[&str]) -> Option<Act> {
    let mut acts = acts.into_iter().collect::<std::collections::VecDeque<_>>();
    move |_, words| if is_exec(words) { acts.pop_front() } else { None }
}

fn unknown() -> Act {
    Act::Answer("-UNKNOWN may have happened\r\n".into())
}

/// Reads one key, writes it and another, and counts its attempts. The key that is only read is the
/// smallest.
async fn append(client: &Client, attempts: &Cell<u32>) -> Result<String, Error> {
    client
        .txn(async |t| {
            attempts.set(attempts.get() + 1);
            let (_, value) = (t.get("a").await?, t.get("k").await?.unwrap_or_default());
            let value = String::from_utf8(value).map_err(Error::aborted)? + "x";
            t.set("k", value.as_str());
            Ok(value)
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_a_call() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    append(&client, &Cell::new(0)).await.unwrap();
    append(&client, &Cell::new(0)).await.unwrap();
    let first = ["WATCH a", "GET a", "WATCH k", "GET k", "SESSION OPEN", "MULTI", "SET k x"];
    let second = ["WATCH a", "GET a", "WATCH k", "GET k", "MULTI", "SET k xx"];
    let (one, two) = (["SESSION CALL 0 0 EXEC"], ["SESSION CALL 1 1 EXEC"]);
    assert_eq!(net.commands(), [&first[..], &one, &second, &two].concat());
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_is_lost_is_found_out() {
    for (act, happened) in [
        (Act::ExecuteAndClose, true),
        (Act::ExecuteAndHang, true),
        (Act::Close, false),
        (Act::CloseAndExecuteAfter(millis(50)), false),
        (unknown(), false),
    ] {
        let net = Net::new();
        let client = open(builder(), &net).await;
        net.decide(first_execs([act.clone()]));
        let attempts = Cell::new(0);
        assert_eq!(append(&client, &attempts).await.unwrap(), "x", "{act:?}");
        assert_eq!(attempts.get(), if happened { 1 } else { 2 }, "{act:?}");
        assert_eq!(append(&client, &attempts).await.unwrap(), "xx", "{act:?}");
        tokio::time::sleep(millis(60_000)).await;
        assert_eq!(net.value("k").as_deref(), Some("xx"), "{act:?}");
        assert_eq!(net.count("SESSION OPEN"), 1, "the session goes on over another connection");
    }
}

/// The first four tries, the probes among them, fail in every combination of ways.
#[tokio::test(start_paused = true)]
async fn lost_probes_and_lost_answers_are_found_out_too() {
    let acts = [
        None,
        Some(Act::Close),
        Some(Act::ExecuteAndClose),
        Some(Act::CloseAndExecuteAfter(millis(3))),
        Some(unknown()),
        Some(Act::Answer("-TRYAGAIN busy\r\n".into())),
    ];
    let count = acts.len();
    for number in 0..count.pow(4) {
        let script: Vec<Option<Act>> =
            (0..4).map(|at| acts[number / count.pow(at) % count].clone()).collect();
        let net = Net::new();
        let client = open(builder(), &net).await;
        let mut left = script.clone().into_iter();
        net.decide(move |_, words| is_exec(words).then(|| left.next().flatten()).flatten());
        let attempts = Cell::new(0);
        for expected in ["x", "xx"] {
            assert_eq!(append(&client, &attempts).await.unwrap(), expected, "{script:?}");
        }
        tokio::time::sleep(millis(1_000)).await;
        assert_eq!(net.value("k").as_deref(), Some("xx"), "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_on_the_way_to_the_answer_is_repeated() {
    for lost in ["SESSION RENEW", "WATCH", "MULTI", "SETRANGE"] {
        for act in [Act::Close, Act::ExecuteAndClose, Act::Answer("-CLUSTERDOWN no\r\n".into())] {
            for first in [Act::ExecuteAndClose, Act::Close] {
                let net = Net::new();
                let client = open(builder(), &net).await;
                let mut exec = Some(first);
                let mut then = Some(act.clone());
                net.decide(move |_, words| match exec {
                    Some(_) if is_exec(words) => exec.take(),
                    None if words.join(" ").starts_with(lost) => then.take(),
                    _ => None,
                });
                assert_eq!(append(&client, &Cell::new(0)).await.unwrap(), "x", "{lost}: {act:?}");
                assert_eq!(net.value("k").as_deref(), Some("x"), "{lost}: {act:?}");
            }
        }
    }
}

/// The block is not called again with watches that began after another client's write.
#[tokio::test(start_paused = true)]
async fn a_write_of_somebody_else_in_between_is_not_lost() {
    for (act, expected, made) in [(Act::Close, "ox", 2), (Act::ExecuteAndClose, "o", 1)] {
        let net = Net::new();
        let client = open(builder(), &net).await;
        let mut exec = Some(act);
        let mut after = Some(Act::After(vec!["SET", "k", "o"]));
        net.decide(move |_, words| match exec {
            Some(_) if is_exec(words) => exec.take(),
            None if words[0] == "WATCH" || words.get(1) == Some(&"RENEW") => after.take(),
            _ => None,
        });
        let attempts = Cell::new(0);
        append(&client, &attempts).await.unwrap();
        assert_eq!((net.value("k").as_deref(), attempts.get()), (Some(expected), made));
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_that_has_read_nothing_is_called_again_as_it_is() {
    for act in [Act::ExecuteAndClose, Act::Close, unknown()] {
        let net = Net::new();
        let client = open(builder(), &net).await;
        net.decide(first_execs([act]));
        client
            .txn(async |t| {
                t.set("k", "v");
                t.delete("l");
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!((net.count("SESSION CALL 0 0 EXEC"), net.count("SESSION CALL")), (2, 2));
        assert_eq!((net.count("WATCH"), net.count("SETRANGE")), (0, 0));
        assert_eq!(net.value("k").as_deref(), Some("v"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_commit_can_be_asked_about_later() {
    for happened in [true, false] {
        let net = Net::new();
        let client = open(builder().attempts(3), &net).await;
        let act = if happened { Act::ExecuteAndClose } else { Act::Close };
        let mut first = Some(act);
        net.decide(move |_, words| {
            is_exec(words)
                .then(|| first.take().unwrap_or_else(|| super::answer("-TRYAGAIN b").unwrap()))
        });
        let attempts = Cell::new(0);
        let error = append(&client, &attempts).await.unwrap_err();
        let Error::Unknown { call: Some(call), .. } = error else { panic!("{error}") };
        assert_eq!((call.session().as_str(), call.sequence(), attempts.get()), ("100", 0, 1));
        net.decide(|_, _| None);
        let answer = client.ask_again(*call).await.unwrap();
        let (expected, value) = match happened {
            true => (Reply::Array(vec![Reply::Status("OK".into())]), Some("x".to_owned())),
            false => (Reply::NullArray, None),
        };
        assert_eq!((answer, net.value("k")), (expected, value));
        // The session goes on.
        append(&client, &attempts).await.unwrap();
        assert_eq!(net.count("SESSION OPEN"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_first_try_is_certain() {
    for (answer, code) in [
        ("-OOM command not allowed", "OOM"),
        ("-CROSSKEY several keys", "CROSSKEY"),
        ("-ERR the session holds 8 MiB", "ERR"),
    ] {
        let net = Net::new();
        let client = open(builder(), &net).await;
        net.decide(move |_, words| is_exec(words).then(|| super::answer(answer)).flatten());
        let attempts = Cell::new(0);
        let error = append(&client, &attempts).await.unwrap_err();
        assert!(matches!(&error, Error::Server { code: c, .. } if c == code), "{error}");
        assert_eq!((attempts.get(), net.count("SESSION CALL")), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_session_ends_stays_unknown() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    let ends = net.clone();
    net.decide(first_execs([Act::ExecuteAndHang]));
    let attempts = Cell::new(0);
    let late = async {
        tokio::time::sleep(millis(1_000)).await;
        ends.expire();
    };
    let (end, ()) = tokio::join!(append(&client, &attempts), late);
    let error = end.unwrap_err();
    assert!(matches!(error, Error::Unknown { call: None, .. }), "{error}");
    // A session that ends before the commit is replaced.
    assert_eq!(append(&client, &attempts).await.unwrap(), "xx");
    net.expire();
    assert_eq!(append(&client, &attempts).await.unwrap(), "xxx");
}

#[tokio::test(start_paused = true)]
async fn a_keyspace_without_sessions_gets_plain_blocks() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    net.decide(|_, words| {
        is_exec(words).then(|| super::answer("-NOTSUPPORTED no sessions")).flatten()
    });
    assert_eq!(append(&client, &Cell::new(0)).await.unwrap(), "x");
    assert_eq!((net.count("SESSION CALL"), net.count("EXEC")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn sums_hold_with_many_tasks_and_losses() {
    let net = Net::new();
    let client = open(builder().pool_size(4).attempts(1000), &net).await;
    let seen = Arc::new(Mutex::new(0_u32));
    net.decide(move |_, words| {
        let mut seen = seen.lock().unwrap();
        *seen += u32::from(is_exec(words));
        match *seen % 5 {
            _ if !is_exec(words) => None,
            0 => Some(Act::ExecuteAndClose),
            1 => Some(Act::CloseAndExecuteAfter(millis(2))),
            2 => Some(Act::Close),
            _ => None,
        }
    });
    let tasks: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.txn(async move |t| t.incr("n").await).await })
        })
        .collect();
    let mut sums = Vec::new();
    for task in tasks {
        sums.push(task.await.unwrap().unwrap());
    }
    sums.sort_unstable();
    assert_eq!(sums, (1..=40).collect::<Vec<_>>());
    assert_eq!(net.value("n").as_deref(), Some("40"));
}
