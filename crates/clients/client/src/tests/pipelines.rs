//! Pipelines: one exchange, one answer each, and nothing twice.

use super::{Act, NODES, Net, answer, builder, millis, open};
use crate::{Client, Error, Reply};

/// Does this to the calls of these numbers, once each.
fn calls(acts: impl IntoIterator<Item = (u64, Act)>) -> impl FnMut(&str, &[&str]) -> Option<Act> {
    let mut acts = acts.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    move |_, words| match words {
        ["SESSION", "CALL", number, ..] => acts.remove(&number.parse().expect("a number")),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn each_command_has_its_answer_in_one_exchange() {
    let net = Net::new();
    let client = open(Client::builder(NODES), &net).await;
    let long = vec![b'x'; quorate_types::limits::KEY_BYTES_MAX + 1];
    let answers = client
        .pipeline()
        .set("k", "v")
        .get("k")
        .incr("n")
        .get(&long)
        .command(["NOPE"])
        .command(["MULTI"])
        .del("k")
        .get("k")
        .send()
        .await;
    let answers: Vec<String> = answers
        .into_iter()
        .map(|answer| answer.map_or_else(|error| error.to_string(), |reply| format!("{reply:?}")))
        .collect();
    assert_eq!(answers[..3], [r#"Status("OK")"#, "Bulk([118])", "Integer(1)"]);
    assert!(answers[3].contains("split it") && answers[4] == "ERR unknown command 'NOPE'");
    assert!(answers[5].contains("changes the state"), "{}", answers[5]);
    assert_eq!(answers[6..], ["Integer(1)", "Null"]);
    assert_eq!(
        net.commands(),
        [
            "SESSION OPEN",
            "SESSION CALL 0 0 SET k v",
            "GET k",
            "SESSION CALL 2 0 INCR n",
            "SESSION CALL 3 0 NOPE",
            "SESSION CALL 4 0 DEL k",
            "GET k",
        ]
    );
    assert!(client.pipeline().send().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_what_is_uncertain_is_asked_for_again() {
    for (act, repeated) in [
        (Act::ExecuteAndClose, 4),
        (Act::Close, 4),
        (Act::ExecuteAndHang, 4),
        (Act::CloseAndExecuteAfter(millis(5)), 4),
        (Act::Answer("-UNKNOWN may have happened\r\n".into()), 1),
        (Act::Answer("-TRYAGAIN busy\r\n".into()), 1),
    ] {
        let net = Net::new();
        let client = open(Client::builder(NODES), &net).await;
        net.decide(calls([(2, act.clone())]));
        let pipeline = (0..6).fold(client.pipeline(), |pipeline, _| pipeline.incr("n"));
        let mut sums: Vec<i64> = pipeline
            .send()
            .await
            .into_iter()
            .map(|answer| match answer {
                Ok(Reply::Integer(sum)) => sum,
                other => panic!("{act:?}: {other:?}"),
            })
            .collect();
        sums.sort_unstable();
        assert_eq!(sums, (1..=6).collect::<Vec<_>>(), "{act:?}");
        tokio::time::sleep(millis(60_000)).await;
        assert_eq!(net.value("n").as_deref(), Some("6"), "{act:?}");
        let first = net.count("SESSION CALL 0 0") + net.count("SESSION CALL 1 0");
        assert_eq!(first, 2, "{act:?}: what was answered is not asked for again");
        // Commands behind the close of the connection did not reach the node.
        let asked = net.count("SESSION CALL");
        let expected = if repeated == 1 { 6 + 1 } else { 3 + repeated };
        assert_eq!(asked, expected, "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn open_calls_of_one_session_are_asked_about_one_by_one() {
    let net = Net::new();
    let client = open(Client::builder(NODES).attempts(2), &net).await;
    net.decide(|_, words| match words {
        ["SESSION", "CALL", "1" | "2", ..] => Some(Act::ExecuteAndClose),
        _ => None,
    });
    let answers = client.pipeline().incr("n").incr("n").incr("n").send().await;
    let mut open = Vec::new();
    for answer in answers {
        match answer {
            Ok(reply) => assert_eq!(reply, Reply::Integer(1)),
            Err(Error::Unknown { call: Some(call), .. }) => open.push(call),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(open.iter().map(|call| call.sequence()).collect::<Vec<_>>(), [1, 2]);
    net.decide(|_, _| None);
    // Other calls have a session of their own meanwhile.
    assert_eq!(client.incr("other").await.unwrap(), 1);
    let mut sums = Vec::new();
    for call in open {
        sums.push(client.ask_again(*call).await.unwrap());
    }
    assert_eq!(sums, [Reply::Integer(2), Reply::Integer(3)]);
    assert_eq!((net.value("n").as_deref(), net.count("SESSION OPEN")), (Some("3"), 2));
}

#[tokio::test(start_paused = true)]
async fn more_updates_than_a_session_keeps_go_in_several_exchanges() {
    let net = Net::new();
    let client = open(Client::builder(NODES), &net).await;
    net.decide(calls([(100, Act::ExecuteAndClose), (600, Act::Close)]));
    let pipeline = (0..1_200).fold(client.pipeline(), |pipeline, _| pipeline.incr("n"));
    let answers = pipeline.send().await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(net.value("n").as_deref(), Some("1200"));
    assert_eq!(net.count("SESSION OPEN"), 1);
}

#[tokio::test(start_paused = true)]
async fn without_sessions_what_may_have_happened_is_unknown() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    let mut seen = 0;
    net.decide(move |_, words| {
        seen += usize::from(words[0] == "INCR");
        (words[0] == "INCR" && seen == 2).then_some(Act::ExecuteAndClose)
    });
    let answers = client.pipeline().incr("n").incr("n").get("n").incr("n").send().await;
    let ends: Vec<&str> = answers
        .iter()
        .map(|answer| match answer {
            Ok(_) => "done",
            Err(error) if error.is_unknown() => "unknown",
            Err(_) => "failed",
        })
        .collect();
    assert_eq!(ends, ["done", "unknown", "done", "unknown"]);
    assert_eq!(answers[2].as_ref().unwrap(), &Reply::Bulk(b"2".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_leaves_unknown_what_may_have_happened() {
    let net = Net::new();
    let client = open(Client::builder(NODES), &net).await;
    let ends = net.clone();
    net.decide(calls([(1, Act::ExecuteAndHang)]));
    let late = async {
        tokio::time::sleep(millis(1_000)).await;
        ends.expire();
    };
    let pipeline = client.pipeline().incr("n").incr("n").get("n");
    let (answers, ()) = tokio::join!(pipeline.send(), late);
    assert_eq!(answers[0].as_ref().unwrap(), &Reply::Integer(1));
    assert!(matches!(answers[1], Err(Error::Unknown { call: None, .. })), "{:?}", answers[1]);
    assert_eq!(answers[2].as_ref().unwrap(), &Reply::Bulk(b"2".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn what_can_be_no_call_is_sent_without_its_number() {
    let net = Net::new();
    let client = open(Client::builder(NODES), &net).await;
    net.decide(|_, words| match words {
        ["SESSION", "CALL", _, _, "PING"] => answer("-ERR a session's call is a command on keys"),
        ["PING"] => answer("+PONG"),
        _ => None,
    });
    let answers = client.pipeline().incr("n").command(["PING"]).incr("n").send().await;
    let answers: Vec<Reply> = answers.into_iter().map(Result::unwrap).collect();
    let pong = Reply::Status("PONG".into());
    assert_eq!(answers, [Reply::Integer(1), pong, Reply::Integer(2)]);
    client.incr("n").await.unwrap();
    assert_eq!(net.count("SESSION CALL 3 3 INCR n"), 1);
}
