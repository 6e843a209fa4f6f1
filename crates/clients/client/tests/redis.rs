//! The client against a real redis-server, whose transactions are what Quorate's are modelled on.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use quorate_client::{Client, Error, Reply};

use support::Redis;

async fn connect(redis: &Redis) -> Client {
    // Many clients at one key need more attempts than the default.
    Client::builder(&[redis.address()])
        .attempts(10_000)
        .pool_size(8)
        .backoff(Duration::from_micros(100), Duration::from_millis(20))
        .connect()
        .await
        .expect("redis-server runs")
}

fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.map(|value| String::from_utf8(value).expect("the tests store text"))
}

/// The rest of a key's time to live, in milliseconds; -1 without an expiry.
async fn time_to_live(client: &Client, key: &str) -> i64 {
    match client.command(["PTTL", key]).await.expect("redis-server answers") {
        Reply::Integer(millis) => millis,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn increments_of_two_clients_are_all_there() {
    let redis = Redis::start(&[]);
    let clients = [connect(&redis).await, connect(&redis).await];
    let attempts = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for number in 0..400 {
        let (client, attempts) = (clients[number % 2].clone(), attempts.clone());
        tasks.push(tokio::spawn(async move {
            client
                .txn(async move |t| {
                    attempts.fetch_add(1, Relaxed);
                    t.incr("count").await
                })
                .await
        }));
    }
    let mut sums = Vec::new();
    for task in tasks {
        sums.push(task.await.expect("it doesn't panic").expect("it commits in the end"));
    }
    sums.sort_unstable();
    assert_eq!(sums, (1..=400).collect::<Vec<_>>(), "each saw another sum");
    assert_eq!(text(clients[0].get("count").await.unwrap()).as_deref(), Some("400"));
    assert!(attempts.load(Relaxed) > 400, "some of them met");
}

#[tokio::test]
async fn transfers_keep_the_sum() {
    let redis = Redis::start(&[]);
    let client = connect(&redis).await;
    let names: Vec<String> = (0..4).map(|number| format!("account {number}")).collect();
    let opening: Vec<_> = names.iter().map(|name| (name, "100")).collect();
    client.mset(&opening).await.unwrap();
    let mut tasks = Vec::new();
    for number in 0..100_usize {
        let (client, names) = (client.clone(), names.clone());
        tasks.push(tokio::spawn(async move {
            if number % 5 == 0 {
                return client
                    .txn(async move |t| {
                        let mut sum = 0;
                        for name in &names {
                            sum += t.incr_by(name, 0).await?;
                        }
                        Ok(sum)
                    })
                    .await;
            }
            let from = names[number % 4].clone();
            let to = names[(number / 4 + 1) % 4].clone();
            client
                .txn(async move |t| {
                    if t.incr_by(&from, -30).await? < 0 {
                        return Err(Error::aborted("too little"));
                    }
                    t.incr_by(&to, 30).await.map(|_| 400)
                })
                .await
        }));
    }
    for task in tasks {
        match task.await.expect("it doesn't panic") {
            Ok(sum) => assert_eq!(sum, 400, "an audit sees one moment"),
            Err(Error::Aborted(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let balances = client.mget(&names).await.unwrap();
    let balances: Vec<i64> =
        balances.into_iter().map(|value| text(value).unwrap().parse().unwrap()).collect();
    assert_eq!(balances.iter().sum::<i64>(), 400, "{balances:?}");
    assert!(balances.iter().all(|balance| *balance >= 0), "{balances:?}");
    assert_ne!(balances, [100; 4], "some money moved");
}

#[tokio::test]
async fn what_a_transaction_decides_on_is_what_it_read() {
    let redis = Redis::start(&[]);
    let (client, other) = (connect(&redis).await, connect(&redis).await);
    client.set("which", "a").await.unwrap();
    client.mset(&[("a", "1"), ("b", "2")]).await.unwrap();
    let attempts = AtomicU32::new(0);
    let value = client
        .txn(async |t| {
            let which = text(t.get("which").await?).unwrap_or_default();
            if attempts.fetch_add(1, Relaxed) == 0 {
                other.set("which", "b").await?;
            }
            let value = t.get(&which).await?;
            t.set("answer", value.clone().unwrap_or_default());
            Ok(text(value))
        })
        .await
        .unwrap();
    assert_eq!(value.as_deref(), Some("2"));
    assert_eq!(text(client.get("answer").await.unwrap()).as_deref(), Some("2"));
    assert_eq!(attempts.load(Relaxed), 2);
}

#[tokio::test]
async fn a_key_that_comes_is_a_conflict_too() {
    let redis = Redis::start(&[]);
    let (client, other) = (connect(&redis).await, connect(&redis).await);
    let attempts = AtomicU32::new(0);
    // Without writes.
    let value = client
        .txn(async |t| {
            let value = t.mget(&["k", "l"]).await?;
            if attempts.fetch_add(1, Relaxed) == 0 {
                other.set("l", "here").await?;
            }
            Ok(value)
        })
        .await
        .unwrap();
    assert_eq!((value, attempts.load(Relaxed)), (vec![None, Some(b"here".to_vec())], 2));
}

#[tokio::test]
async fn expiries_are_set_kept_and_dropped() {
    let redis = Redis::start(&[]);
    let client = connect(&redis).await;
    let hour = Duration::from_secs(3600);
    client
        .txn(async |t| {
            t.set_for("kept", "1", hour);
            t.set_for("dropped", "1", hour);
            t.set_for("forever", "1", Duration::MAX);
            t.set_for("gone", "1", hour);
            Ok(())
        })
        .await
        .unwrap();
    client
        .txn(async |t| {
            t.incr("kept").await?;
            t.set("dropped", "2");
            t.delete("gone");
            t.incr("gone").await?;
            t.delete("never there");
            Ok(())
        })
        .await
        .unwrap();
    let kept = time_to_live(&client, "kept").await;
    assert!(kept > 3_000_000 && kept <= 3_600_000, "{kept}");
    assert_eq!(time_to_live(&client, "dropped").await, -1);
    assert_eq!(time_to_live(&client, "gone").await, -1);
    assert!(time_to_live(&client, "forever").await > 3_600_000);
    let values = client.mget(&["kept", "gone"]).await.unwrap();
    assert_eq!(values, [Some(b"2".to_vec()), Some(b"1".to_vec())]);
}

#[tokio::test]
async fn nothing_stays_behind_on_a_connection() {
    let redis = Redis::start(&[]);
    let client = Client::builder(&[redis.address()]).pool_size(1).connect().await.unwrap();
    let error = client
        .txn(async |t| {
            t.get("k").await?;
            Err::<(), _>(Error::aborted("no"))
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Aborted(_)));
    // A watch left over would make this one fail, as the key changes in between.
    client.set("k", "changed").await.unwrap();
    let attempts = AtomicU32::new(0);
    client
        .txn(async |t| {
            attempts.fetch_add(1, Relaxed);
            t.set("l", "v");
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(attempts.load(Relaxed), 1);
    let list = client.command(["CLIENT", "LIST"]).await.unwrap();
    let Reply::Verbatim { format: [b't', b'x', b't'], text } = list else { panic!("{list:?}") };
    let list = String::from_utf8(text).unwrap();
    assert_eq!(list.lines().count(), 1, "the same connection all the time: {list}");
    assert!(list.contains("multi=-1"), "{list}");
}

#[tokio::test]
async fn large_replies_and_requests_arrive_whole() {
    let redis = Redis::start(&[]);
    let client = connect(&redis).await;
    let value: Vec<u8> = (0..4 * 1024 * 1024_u32).map(|n| (n % 251) as u8).collect();
    client
        .txn(async |t| {
            for key in ["a", "b", "c"] {
                t.set(key, value.clone());
            }
            Ok(())
        })
        .await
        .unwrap();
    let values = client.mget(&["a", "b", "c"]).await.unwrap();
    assert!(values.iter().all(|found| found.as_ref() == Some(&value)));
    let keys: Vec<String> = (0..10_000).map(|number| format!("many {number}")).collect();
    client
        .txn(async |t| {
            for key in &keys {
                t.set(key, "v");
            }
            Ok(())
        })
        .await
        .unwrap();
    let found = client.mget(&keys).await.unwrap();
    assert!(found.len() == 10_000 && found.iter().all(Option::is_some));
}

#[tokio::test]
async fn passwords_and_databases() {
    let redis = Redis::start(&["--requirepass", "secret"]);
    let builder = || Client::builder(&[redis.address()]);
    let error = builder().connect().await.unwrap_err();
    assert!(matches!(error, Error::Server { code, .. } if code == "NOAUTH"));
    let error = builder().password("wrong").connect().await.unwrap_err();
    assert!(matches!(error, Error::Server { code, .. } if code == "WRONGPASS"));
    let error = builder().password("secret").database(99).connect().await.unwrap_err();
    assert!(error.to_string().contains("DB index is out of range"), "{error}");
    let zero = builder().password("secret").connect().await.unwrap();
    let one = builder().password("secret").database(1).connect().await.unwrap();
    one.set("k", "v").await.unwrap();
    assert_eq!(zero.get("k").await.unwrap(), None);
    assert!(one.get("k").await.unwrap().is_some());
}

#[tokio::test]
async fn the_client_goes_on_without_a_server_that_died() {
    let (first, second) = (Redis::start(&[]), Redis::start(&[]));
    let addresses = [first.address(), second.address()];
    let client = Client::builder(&addresses).pool_size(4).connect().await.unwrap();
    // Idle connections to both.
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("k").await })
        })
        .collect();
    for call in calls {
        call.await.expect("it doesn't panic").unwrap();
    }
    drop(first);
    for number in 0..20 {
        assert_eq!(client.get("k").await.unwrap(), None);
        let sum = client.txn(async |t| t.incr("n").await).await;
        match sum {
            Ok(sum) => assert_eq!(sum, number + 1),
            Err(error) => panic!("nothing was under way: {error}"),
        }
    }
    drop(second);
    let error = client.get("k").await.unwrap_err();
    assert!(matches!(error, Error::NoNode { .. }), "{error}");
    assert!(!error.is_unknown());
}
