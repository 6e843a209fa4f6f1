//! Clients that coordinate their transactions themselves, with nodes and over sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use std::time::{Duration, Instant};

use quorate_client::{Client, Coordinator, Error};

use cluster::{Cluster, NAME, PATIENCE, wait_until};

async fn guest(cluster: &Cluster) -> Coordinator {
    guest_at(&cluster.peers()).await.expect("the nodes take guests")
}

async fn guest_at(addresses: &[String]) -> Result<Coordinator, Error> {
    Client::coordinator(NAME, addresses)
        .attempts(10_000)
        .backoff(Duration::from_micros(200), Duration::from_millis(20))
        .patience(PATIENCE)
        .connect()
        .await
}

async fn resp(cluster: &Cluster) -> Client {
    Client::builder(&cluster.clients())
        .attempts(10_000)
        .backoff(Duration::from_micros(200), Duration::from_millis(20))
        .patience(PATIENCE)
        .connect()
        .await
        .expect("the nodes serve")
}

async fn set(guest: &Coordinator, key: &str, value: &[u8]) {
    let result = guest.txn(async |t| {
        t.set(key, value);
        Ok(())
    });
    result.await.expect("nobody is in the way");
}

fn number(value: Option<Vec<u8>>) -> i64 {
    let number = |value: Vec<u8>| String::from_utf8(value).ok()?.parse().ok();
    value.map_or(0, |value| number(value).expect("the tests store numbers"))
}

/// Moves one from an account to another, and counts the transfer.
macro_rules! transfer {
    ($client:expr, $from:expr, $to:expr) => {{
        let (from, to) = (format!("account{}", $from), format!("account{}", $to));
        $client
            .txn(async move |t| {
                t.incr_by(from.clone(), -1).await?;
                t.incr_by(to.clone(), 1).await?;
                t.incr("transfers").await
            })
            .await
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_and_clients_share_accounts_and_a_counter() {
    const EACH: usize = 40;
    const ACCOUNTS: usize = 4;
    let cluster = Cluster::start(2);
    let guests = [guest(&cluster).await, guest(&cluster).await];
    let clients = [resp(&cluster).await, resp(&cluster).await];
    for account in 0..ACCOUNTS {
        clients[0].set(format!("account{account}"), "100").await.unwrap();
    }
    let mut tasks = Vec::new();
    for (number, guest) in guests.iter().cloned().enumerate() {
        tasks.push(tokio::spawn(async move {
            for turn in 0..EACH {
                let (from, to) = ((turn + number) % ACCOUNTS, (turn * 3 + 1) % ACCOUNTS);
                transfer!(guest, from, to).expect("it commits in the end");
            }
        }));
    }
    for (number, client) in clients.iter().cloned().enumerate() {
        tasks.push(tokio::spawn(async move {
            for turn in 0..EACH {
                let (from, to) = ((turn * 3 + number) % ACCOUNTS, (turn + 2) % ACCOUNTS);
                transfer!(client, from, to).expect("it commits in the end");
            }
        }));
    }
    for task in tasks {
        task.await.expect("it doesn't panic");
    }
    let keys: Vec<String> = (0..ACCOUNTS).map(|account| format!("account{account}")).collect();
    let (total, transfers) = guests[0]
        .txn(async |t| {
            let total: i64 = t.mget(&keys).await?.into_iter().map(number).sum();
            Ok((total, number(t.get("transfers").await?)))
        })
        .await
        .unwrap();
    assert_eq!((total, transfers), (100 * ACCOUNTS as i64, 4 * EACH as i64));
    let seen: i64 = clients[1].mget(&keys).await.unwrap().into_iter().map(number).sum();
    assert_eq!(seen, total);
    wait_until_entered(&cluster, 6);
    drop(guests);
    wait_until("the guests are gone", || cluster.guests() == 0);
    wait_until("nothing is undecided", || cluster.gauge("undecided") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_reads_its_own_writes_and_those_of_others() {
    for cluster in [Cluster::start(1), Cluster::start_together(3)] {
        read_and_write(&cluster).await;
    }
}

async fn read_and_write(cluster: &Cluster) {
    let (guest, client) = (guest(cluster).await, resp(cluster).await);
    assert_eq!(guest.txn(async |t| t.get("k").await).await.unwrap(), None);
    set(&guest, "k", b"by the guest").await;
    assert_eq!(client.get("k").await.unwrap().unwrap(), b"by the guest");
    client.set("k", "by the client").await.unwrap();
    let value = guest.txn(async |t| t.get("k").await).await.unwrap();
    assert_eq!(value.unwrap(), b"by the client");
    guest
        .txn(async |t| {
            t.set_for("k", "for a while", Duration::from_secs(100));
            t.delete("l");
            Ok(())
        })
        .await
        .unwrap();
    guest
        .txn(async |t| {
            t.set("n", "1");
            assert_eq!(t.incr("n").await?, 2);
            t.delete("n");
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(client.get("n").await.unwrap(), None);
    let left = client.command(["PTTL", "k"]).await.unwrap();
    let quorate_client::Reply::Integer(left) = left else { panic!("{left:?}") };
    assert!((50_000..=100_000).contains(&left), "{left} ms are left");
    let error = guest.txn(async |_| Err::<(), _>(Error::aborted("no"))).await.unwrap_err();
    assert!(matches!(error, Error::Aborted(_)));
    // Two values of the largest size can be read at once, and not written at once.
    let large = vec![7; quorate_types::limits::VALUE_BYTES_MAX];
    for key in ["x", "y"] {
        set(&guest, key, &large).await;
    }
    let both = guest.txn(async |t| t.mget(&["x", "y"]).await).await.unwrap();
    assert!(both.iter().all(|value| value.as_ref() == Some(&large)));
    let error = guest
        .txn(async |t| {
            t.set("x", large.clone());
            t.set("y", large.clone());
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Server { .. } | Error::TooLarge { .. }), "{error}");
}

/// Waits until every node has let all guests in.
fn wait_until_entered(cluster: &Cluster, connections: u64) {
    wait_until("the guests are everywhere", || cluster.guests() == connections);
}

#[test]
fn a_guest_that_dies_in_the_middle_blocks_nobody_for_long() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let cluster = Cluster::start(1);
    let client = runtime.block_on(resp(&cluster));
    let mut longest = Duration::ZERO;
    for round in 0..10 {
        let guests = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let guest = guests.block_on(guest(&cluster));
        wait_until_entered(&cluster, 3);
        for key in 0..8 {
            let guest = guest.clone();
            guests.spawn(async move {
                loop {
                    // Its runtime ends in the middle.
                    let _ = guest.txn(async move |t| t.incr(format!("busy{key}")).await).await;
                }
            });
        }
        std::thread::sleep(Duration::from_millis(20 + 3 * round));
        guests.shutdown_background();
        let before = Instant::now();
        for key in 0..8 {
            runtime
                .block_on(client.txn(async |t| t.incr(format!("busy{key}")).await))
                .expect("nobody is in the way for ever");
        }
        longest = longest.max(before.elapsed());
        wait_until("the guest is gone", || cluster.guests() == 0);
        wait_until("nothing is undecided", || cluster.gauge("undecided") == 0);
    }
    assert!(longest < Duration::from_secs(5), "the others waited for {longest:?}");
    let again = runtime.block_on(client.txn(async |t| t.incr("busy0").await)).unwrap();
    assert!(again > 20, "the guests did something: {again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_outlives_the_loss_and_the_return_of_a_node() {
    let mut cluster = Cluster::start(1);
    let guest = guest(&cluster).await;
    wait_until_entered(&cluster, 3);
    let worker = guest.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let work = tokio::spawn(async move {
        let (mut sure, mut unknown) = (0, 0);
        let mut stopped = std::pin::pin!(stopped);
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => return (sure, unknown),
                result = worker.txn(async |t| t.incr("count").await) => match result {
                    Ok(_) => sure += 1,
                    Err(error) if error.is_unknown() => unknown += 1,
                    Err(error) => panic!("{error}"),
                },
            }
        }
    });
    let pause = || tokio::time::sleep(Duration::from_millis(300));
    pause().await;
    // The node that let it in may be any of them: two are lost, one after the other.
    for index in [0, 1] {
        tokio::task::block_in_place(|| cluster.stop(index));
        pause().await;
        tokio::task::block_in_place(|| cluster.restart(index));
        pause().await;
    }
    stop.send(()).unwrap();
    let (sure, unknown) = work.await.expect("it doesn't panic");
    let client = resp(&cluster).await;
    let count = number(client.get("count").await.unwrap());
    // The increment that `stop` interrupted may have happened.
    assert!((sure..=sure + unknown + 1).contains(&count), "{count} of {sure} and {unknown}");
    assert!(sure > 20, "{sure} went well");
    drop(guest);
    wait_until("nothing is undecided", || cluster.gauge("undecided") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_is_told_why() {
    let refusal = async |builder: quorate_client::CoordinatorBuilder| {
        let error = builder.attempts(1).connect().await.expect_err("it is refused");
        assert!(matches!(error, Error::NoNode { .. }), "{error}");
        error.to_string()
    };
    let cluster = Cluster::start(1);
    let peers = [cluster.peer(0)];
    let text = refusal(Client::coordinator("another", &peers)).await;
    assert!(text.contains("cluster 'another'"), "{text}");
    let text = refusal(Client::coordinator(NAME, &peers).keyspace(1)).await;
    assert!(text.contains("engine is 'meerkat'"), "{text}");
    let text = refusal(Client::coordinator(NAME, &peers).keyspace(9)).await;
    assert!(text.contains("no keyspace of this number"), "{text}");
    let text = refusal(Client::coordinator(NAME, &[&cluster.clients()[0]])).await;
    assert!(text.contains("peer address"), "{text}");
    let mut guests = Vec::new();
    for _ in 0..quorate_node::GUESTS_MAX {
        guests.push(guest(&cluster).await);
    }
    wait_until_entered(&cluster, 3 * guests.len() as u64);
    let text = refusal(Client::coordinator(NAME, &peers)).await;
    assert!(text.contains("has 16 clients"), "{text}");
    guests.pop();
    wait_until_entered(&cluster, 3 * guests.len() as u64);
    guests.push(guest(&cluster).await);
    drop(cluster);
    let closed = Cluster::with(1, false, false);
    let text = refusal(Client::coordinator(NAME, &[closed.peer(0)])).await;
    assert!(text.contains("guests = true"), "{text}");
}
