//! Transactions: the commands on the connection, and which failures are tried again.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::{Act, Net, answer, builder, client, first, millis, open};
use crate::{Client, Error, Txn};

/// A transaction that reads and writes one key, and counts its attempts.
async fn append(client: &Client, attempts: &Cell<u32>) -> Result<String, Error> {
    client
        .txn(async |t| {
            attempts.set(attempts.get() + 1);
            let value = t.get("k").await?.unwrap_or_default();
            let value = String::from_utf8(value).map_err(Error::aborted)? + "x";
            t.set("k", value.as_str());
            Ok(value)
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn reads_are_watched_and_writes_wait_for_exec() {
    let net = Net::new();
    net.put("a", "1");
    let client = client(&net).await;
    let read = client
        .txn(async |t| {
            let a = t.get("a").await?;
            t.set("b", "2");
            t.set_for("c", "3", Duration::from_secs(10));
            t.delete("a");
            t.incr("n").await?;
            Ok(a)
        })
        .await
        .unwrap();
    assert_eq!(read.as_deref(), Some(b"1".as_slice()));
    assert_eq!(
        net.commands(),
        [
            "WATCH a",
            "GET a",
            "WATCH n",
            "GET n",
            "MULTI",
            "DEL a",
            "SET b 2",
            "SET c 3 PX 10000",
            "SET n 1 KEEPTTL",
            "EXEC",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_transaction_sees_its_writes_and_reads_each_key_once() {
    let net = Net::new();
    net.put("a", "1");
    net.put("b", "5");
    let client = client(&net).await;
    client
        .txn(async |t| {
            assert_eq!(t.get("a").await?.as_deref(), Some(b"1".as_slice()));
            net.put("unrelated", "x");
            assert_eq!(t.get("a").await?.as_deref(), Some(b"1".as_slice()));
            t.set("blind", "7");
            assert_eq!(t.incr("blind").await?, 8);
            assert_eq!(t.get("b").await?.as_deref(), Some(b"5".as_slice()));
            t.delete("b");
            assert_eq!(t.get("b").await?, None);
            assert_eq!(t.incr_by("b", -3).await?, -3);
            let values = t.mget(&["a", "c", "b", "d", "c"]).await?;
            assert_eq!(values, [Some(b"1".to_vec()), None, Some(b"-3".to_vec()), None, None]);
            t.mget(&["c", "d"]).await?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(
        net.commands(),
        [
            "WATCH a",
            "GET a",
            "WATCH b",
            "GET b",
            "WATCH c d",
            "MGET c d",
            "MULTI",
            "SET b -3",
            "SET blind 8",
            "EXEC",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_read_only_transaction_is_checked_too() {
    let net = Net::new();
    let client = client(&net).await;
    let attempts = Cell::new(0);
    // Another client changes the key between the read and the check, once.
    net.decide(first("MULTI", [Act::After(vec!["SET", "k", "new"])]));
    let value = client
        .txn(async |t| {
            attempts.set(attempts.get() + 1);
            t.get("k").await
        })
        .await
        .unwrap();
    assert_eq!(value.as_deref(), Some(b"new".as_slice()));
    assert_eq!((attempts.get(), net.count("EXEC")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_does_nothing_asks_nobody() {
    let net = Net::new();
    let client = client(&net).await;
    assert_eq!(client.txn(async |_| Ok(7)).await.unwrap(), 7);
    assert_eq!(net.commands(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_runs_the_closure_again() {
    let net = Net::new();
    let client = client(&net).await;
    // Between WATCH and GET, and between GET and EXEC.
    let mut acts = first("GET", [Act::After(vec!["SET", "k", "1"])]);
    let mut later =
        first("MULTI", [Act::After(vec!["SET", "k", "2"]), Act::After(vec!["SET", "k", "3"])]);
    net.decide(move |node, words| acts(node, words).or_else(|| later(node, words)));
    let attempts = Cell::new(0);
    let before = Instant::now();
    assert_eq!(append(&client, &attempts).await.unwrap(), "3x");
    assert_eq!(net.value("k").as_deref(), Some("3x"));
    assert_eq!(attempts.get(), 3);
    assert!(before.elapsed() >= millis(1), "it pauses before each further attempt");
}

#[tokio::test(start_paused = true)]
async fn conflicts_end_at_the_limit() {
    let net = Net::new();
    let client = open(builder().attempts(9).backoff(millis(2), millis(16)), &net).await;
    net.decide(|_, words| (words[0] == "MULTI").then(|| Act::After(vec!["SET", "k", "o"])));
    let attempts = Cell::new(0);
    let before = Instant::now();
    let error = append(&client, &attempts).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { attempts: 9 }), "{error}");
    assert!(!error.is_unknown());
    assert_eq!((attempts.get(), net.count("EXEC")), (9, 9));
    assert_eq!(net.value("k").as_deref(), Some("o"));
    // 2 + 4 + 8 and five times 16 ms, or half of that, with a millisecond of rounding for each.
    let elapsed = before.elapsed();
    assert!(elapsed >= millis(47) && elapsed <= millis(94 + 8), "{elapsed:?}");
    assert_eq!(net.dials().len(), 1, "the connection stays");
}

#[tokio::test(start_paused = true)]
async fn try_again_is_tried_again_wherever_it_comes() {
    for command in ["WATCH", "GET", "EXEC"] {
        let net = Net::new();
        let client = open(builder().pool_size(1), &net).await;
        net.decide(first(command, [Act::Answer("-TRYAGAIN busy\r\n".into())]));
        let attempts = Cell::new(0);
        assert_eq!(append(&client, &attempts).await.unwrap(), "x", "{command}");
        assert_eq!(attempts.get(), 2, "{command}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_aborts_the_block_and_is_the_error() {
    let net = Net::new();
    let client = client(&net).await;
    net.decide(|_, words| match words[0] {
        "SET" => answer("-OOM command not allowed"),
        "EXEC" => answer("-EXECABORT Transaction discarded because of previous errors."),
        _ => None,
    });
    let attempts = Cell::new(0);
    let error = append(&client, &attempts).await.unwrap_err();
    assert_eq!(error.to_string(), "OOM command not allowed");
    assert_eq!(attempts.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_multi_leaves_no_watch_to_others() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    net.decide(first("MULTI", [Act::Answer("-NOPERM no\r\n".into())]));
    let attempts = Cell::new(0);
    let error = append(&client, &attempts).await.unwrap_err();
    // Its write was executed, as an ordinary command.
    assert!(error.is_unknown() && error.to_string().contains("NOPERM"), "{error}");
    assert_eq!(append(&client, &attempts).await.unwrap(), "xx");
    assert_eq!((attempts.get(), net.dials().len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn replies_are_read_while_a_request_is_sent() {
    let net = Net::new();
    let client = client(&net).await;
    let before = Instant::now();
    client
        .txn(async |t| {
            (0..1000).for_each(|number| t.set(format!("k{number}"), "v"));
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!((net.count("SET"), before.elapsed()), (1000, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn after_exec_the_outcome_is_unknown() {
    let unknown = Act::Answer("-UNKNOWN may have happened\r\n".into());
    for act in [Act::ExecuteAndClose, Act::Close, Act::ExecuteAndHang, unknown] {
        let net = Net::new();
        let client = client(&net).await;
        net.decide(first("EXEC", [act.clone()]));
        let attempts = Cell::new(0);
        let error = append(&client, &attempts).await.unwrap_err();
        assert!(error.is_unknown(), "{act:?}: {error}");
        assert_eq!((attempts.get(), net.count("EXEC")), (1, 1), "{act:?}");
        assert!(append(&client, &attempts).await.is_ok(), "the client goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_only_transaction_is_never_unknown() {
    let unknown = Act::Answer("-UNKNOWN may have happened\r\n".into());
    for act in [Act::Close, Act::ExecuteAndHang, unknown] {
        let net = Net::new();
        net.put("k", "v");
        let client = client(&net).await;
        net.decide(first("EXEC", [act]));
        let value = client.txn(async |t| t.get("k").await).await.unwrap();
        assert_eq!(value.as_deref(), Some(b"v".as_slice()));
        assert_eq!(net.count("EXEC"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_lost_before_exec_is_replaced() {
    for (command, act) in [
        ("WATCH", Act::Close),
        ("GET", Act::ExecuteAndHang),
        ("GET", Act::Answer("-CLUSTERDOWN no lease\r\n".into())),
        ("EXEC", Act::Answer("-EXECABORT discarded because of: CLUSTERDOWN no lease\r\n".into())),
    ] {
        let net = Net::new();
        let client = client(&net).await;
        net.decide(first(command, [act]));
        let attempts = Cell::new(0);
        assert_eq!(append(&client, &attempts).await.unwrap(), "x", "{command}");
        assert_eq!(attempts.get(), 2, "{command}");
        let nodes = net.nodes_of("WATCH");
        assert!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_not_sent_whole_did_not_happen() {
    let net = Net::new();
    net.decide(first("INFO", [Act::AnswerAndReadOnly(500)]));
    let client = open(builder().pool_size(1), &net).await;
    let attempts = Cell::new(0);
    client
        .txn(async |t: &mut Txn| {
            attempts.set(attempts.get() + 1);
            t.set("k", "v".repeat(100_000));
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!((attempts.get(), net.count("EXEC")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn the_closures_own_error_aborts() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    let error = client
        .txn(async |t| {
            t.get("k").await?;
            t.set("k", "v");
            Err::<(), _>(Error::aborted("changed my mind"))
        })
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the transaction was aborted: changed my mind");
    assert_eq!(net.commands(), ["WATCH k", "GET k", "UNWATCH"]);
    client.get("k").await.unwrap();
    assert_eq!((net.value("k"), net.dials().len()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_transaction_leaves_no_watch_to_others() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    let dropped = client.txn(async |t| {
        t.get("k").await?;
        std::future::pending::<Result<(), Error>>().await
    });
    assert!(tokio::time::timeout(millis(10), dropped).await.is_err());
    net.put("k", "changed");
    client
        .txn(async |t| {
            t.set("l", "v");
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!((net.count("EXEC"), net.dials().len()), (1, 2));
}

#[derive(Debug)]
enum Mine {
    TooLittle(i64),
    Store(Error),
}

impl From<Error> for Mine {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

#[tokio::test(start_paused = true)]
async fn errors_may_be_of_the_callers_type() {
    let net = Net::new();
    let client = open(builder().attempts(2), &net).await;
    let run = async || {
        client
            .try_txn(async |t| match t.incr_by("money", -1).await? {
                rest if rest < 0 => Err(Mine::TooLittle(rest)),
                rest => Ok(rest),
            })
            .await
    };
    assert!(matches!(run().await, Err(Mine::TooLittle(-1))));
    net.put("money", "1");
    assert!(matches!(run().await, Ok(0)));
    net.put("money", "1");
    net.decide(|_, words| (words[0] == "EXEC").then_some(Act::Answer("*-1\r\n".into())));
    assert!(matches!(run().await, Err(Mine::Store(Error::Conflict { attempts: 2 }))));
}

#[tokio::test(start_paused = true)]
async fn a_closure_that_hides_a_lost_read_runs_again() {
    let net = Net::new();
    net.put("k", "v");
    let client = client(&net).await;
    net.decide(first("GET", [Act::Close]));
    let attempts = Cell::new(0);
    let value = client
        .txn(async |t| {
            attempts.set(attempts.get() + 1);
            let value = t.get("k").await.unwrap_or_default();
            if value.is_none() {
                // And each further read says the same.
                assert!(matches!(t.get("l").await, Err(Error::Restart { .. })));
                t.set("k", "was empty");
            }
            Ok(value)
        })
        .await
        .unwrap();
    assert_eq!((value.as_deref(), attempts.get()), (Some(b"v".as_slice()), 2));
    assert_eq!(net.value("k").as_deref(), Some("v"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_read_is_for_the_closure() {
    let net = Net::new();
    let client = client(&net).await;
    net.decide(first("GET", [Act::Answer("-WRONGTYPE no string\r\n".into())]));
    let value = client
        .txn(async |t| match t.get("list").await {
            Err(Error::Server { code, .. }) if code == "WRONGTYPE" => {
                t.set("list", "a string now");
                Ok("replaced")
            }
            other => other.map(|_| "was a string"),
        })
        .await;
    assert_eq!(value.unwrap(), "replaced");
    assert_eq!(net.value("list").as_deref(), Some("a string now"));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_integer_cannot_be_counted() {
    let net = Net::new();
    net.put("text", "x");
    net.put("most", &i64::MAX.to_string());
    let client = client(&net).await;
    for key in ["text", "most"] {
        let error = client.txn(async |t| t.incr(key).await).await.unwrap_err();
        assert!(matches!(&error, Error::NotAnInteger { key: k } if k == key), "{error}");
    }
    assert_eq!(net.value("text").as_deref(), Some("x"));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_was_not_waited_for_ends_the_transaction() {
    let net = Net::new();
    let client = client(&net).await;
    let hang = || first("GET", [Act::ExecuteAndHang]);
    net.decide(hang());
    let error = client
        .txn(async |t| {
            let _ = tokio::time::timeout(millis(5), t.get("k")).await;
            t.set("k", "v");
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Aborted(_)), "{error}");
    // The closure's own error is the better one.
    net.decide(hang());
    let error = client
        .txn(async |t| match tokio::time::timeout(millis(5), t.get("k")).await {
            Ok(value) => value.map(|_| ()),
            Err(_) => Err(Error::aborted("too slow")),
        })
        .await
        .unwrap_err();
    assert!(error.to_string().ends_with("too slow"), "{error}");
    assert_eq!(net.value("k"), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_long_is_not_committed() {
    let net = Net::new();
    let client = client(&net).await;
    let long = vec![b'x'; quorate_types::limits::VALUE_BYTES_MAX + 1];
    let error = client
        .txn(async |t| {
            t.get("k").await?;
            t.set("k", long.clone());
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "the value", .. }), "{error}");
    assert_eq!(net.commands(), ["WATCH k", "GET k", "UNWATCH"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_the_pool_within_a_transaction_ends() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    let error = client
        .txn(async |t| {
            t.get("k").await?;
            client.get("other").await
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::PoolExhausted { connections: 1 }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn transactions_run_on_tasks_of_their_own() {
    let net = Net::new();
    let client = open(builder().pool_size(3).attempts(1000), &net).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let (client, attempts) = (client.clone(), attempts.clone());
            tokio::spawn(async move {
                client
                    .txn(async move |t| {
                        attempts.fetch_add(1, Relaxed);
                        let value = t.get("n").await?;
                        // Other tasks run in between.
                        tokio::task::yield_now().await;
                        let sum = t.incr("n").await?;
                        assert_eq!(value.is_none(), sum == 1);
                        Ok(sum)
                    })
                    .await
            })
        })
        .collect();
    let mut sums = Vec::new();
    for task in tasks {
        sums.push(task.await.unwrap().unwrap());
    }
    sums.sort_unstable();
    assert_eq!(sums, (1..=30).collect::<Vec<_>>());
    assert!(attempts.load(Relaxed) > 30, "some of them met");
}
