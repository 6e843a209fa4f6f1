//! Updates as calls of sessions: each happens once under every failure.

use std::sync::{Arc, Mutex};

use super::{Act, NODES, Net, answer, millis, open};
use crate::{Builder, Client, Error};

fn builder() -> Builder {
    Client::builder(NODES)
}

/// Does this to the first calls, and lets the later ones pass.
fn first_calls(acts: impl IntoIterator<Item = Act>) -> impl FnMut(&str, &[&str]) -> Option<Act> {
    let mut acts = acts.into_iter().collect::<std::collections::VecDeque<_>>();
    move |_, words| if words.starts_with(&["SESSION", "CALL"]) { acts.pop_front() } else { None }
}

#[tokio::test(start_paused = true)]
async fn an_update_without_an_answer_is_asked_about_elsewhere() {
    let unknown = Act::Answer("-UNKNOWN may have happened\r\n".into());
    for act in [Act::ExecuteAndClose, Act::Close, Act::ExecuteAndHang, unknown] {
        let net = Net::new();
        let client = open(builder(), &net).await;
        net.decide(first_calls([act]));
        assert_eq!(client.incr("n").await.unwrap(), 1);
        assert_eq!(client.incr("n").await.unwrap(), 2);
        assert_eq!(net.value("n").as_deref(), Some("2"));
        assert_eq!(net.count("SESSION OPEN"), 1, "the session goes on over another connection");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_waits_for_its_answers_and_is_used_again() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    for number in 1..=5 {
        assert_eq!(client.incr("n").await.unwrap(), number);
    }
    assert_eq!(client.get("n").await.unwrap().as_deref(), Some(b"5".as_slice()));
    let calls: Vec<String> =
        net.commands().into_iter().filter(|command| command.starts_with("SESSION CALL")).collect();
    let expected: Vec<String> =
        (0..5).map(|number| format!("SESSION CALL {number} {number} INCR n")).collect();
    assert_eq!(calls, expected);
}

#[tokio::test(start_paused = true)]
async fn updates_at_the_same_time_have_sessions_of_their_own() {
    let net = Net::new();
    let client = open(builder().pool_size(4), &net).await;
    let mut seen = 0;
    net.decide(move |_, words| {
        let call = words.starts_with(&["SESSION", "CALL"]);
        seen += usize::from(call);
        (call && seen % 7 == 0).then_some(Act::ExecuteAndClose)
    });
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.incr("n").await })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap().unwrap());
    }
    answers.sort_unstable();
    assert_eq!(answers, (1..=40).collect::<Vec<i64>>(), "each happened once");
    assert!(net.count("SESSION OPEN") <= 4 + 7, "{}", net.count("SESSION OPEN"));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_call_can_be_asked_about_later() {
    let net = Net::new();
    let client = open(builder().attempts(3), &net).await;
    net.decide(|_, words| words.starts_with(&["SESSION", "CALL"]).then_some(Act::ExecuteAndClose));
    let error = client.incr("n").await.unwrap_err();
    let Error::Unknown { call: Some(call), .. } = error else { panic!("{error}") };
    assert_eq!((call.session().as_str(), call.sequence()), ("100", 0));
    net.decide(|_, _| None);
    assert_eq!(client.ask_again(*call).await.unwrap(), crate::Reply::Integer(1));
    assert_eq!(net.value("n").as_deref(), Some("1"));
    // The session goes on.
    assert_eq!(client.incr("n").await.unwrap(), 2);
    assert_eq!(net.count("SESSION OPEN"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_lost_try_is_unknown() {
    let net = Net::new();
    let client = open(builder().attempts(5), &net).await;
    let lost = Arc::new(Mutex::new(false));
    net.decide(move |_, words| {
        let mut lost = lost.lock().unwrap();
        if !words.starts_with(&["SESSION", "CALL"]) {
            return None;
        }
        if !std::mem::replace(&mut *lost, true) {
            return Some(Act::ExecuteAndClose);
        }
        answer("-TRYAGAIN busy")
    });
    let error = client.incr("n").await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(error.to_string().contains("ask again"), "{error}");
    // Refused from the first try on, it is certain that nothing has happened.
    let net = Net::new();
    let client = open(builder().attempts(5), &net).await;
    net.decide(|_, words| {
        words.starts_with(&["SESSION", "CALL"]).then(|| answer("-TRYAGAIN busy")).flatten()
    });
    assert!(matches!(client.incr("n").await.unwrap_err(), Error::TryAgain { attempts: 5, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_over_tells_so() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    assert_eq!(client.incr("n").await.unwrap(), 1);
    // No call was open: the next one has another session.
    net.expire();
    assert_eq!(client.incr("n").await.unwrap(), 2);
    assert_eq!(net.count("SESSION OPEN"), 2);
    // This call can't be asked about any more.
    let ends = net.clone();
    let mut lost = false;
    net.decide(move |_, words| {
        let call = words.starts_with(&["SESSION", "CALL"]);
        (call && !std::mem::replace(&mut lost, true)).then_some(Act::ExecuteAndHang)
    });
    let late = async {
        tokio::time::sleep(millis(1_000)).await;
        ends.expire();
    };
    let (end, ()) = tokio::join!(client.incr("n"), late);
    let error = end.unwrap_err();
    assert!(matches!(error, Error::Unknown { call: None, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_renewed_at_half_of_its_term() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    client.incr("n").await.unwrap();
    tokio::time::sleep(millis(14 * 60 * 1_000)).await;
    client.incr("n").await.unwrap();
    assert_eq!(net.count("SESSION RENEW"), 0);
    tokio::time::sleep(millis(2 * 60 * 1_000)).await;
    client.incr("n").await.unwrap();
    assert_eq!(net.count("SESSION RENEW"), 1);
    // After a whole term the session may have ended: no call begins under it.
    tokio::time::sleep(millis(31 * 60 * 1_000)).await;
    client.incr("n").await.unwrap();
    assert_eq!((net.count("SESSION RENEW"), net.count("SESSION OPEN")), (1, 2));
}

/// Makes a call over another connection than the one that was used last, which is the next one again.
async fn incr_elsewhere(net: &Net, client: &Client) {
    net.decide(|_, words| (words[0] == "GET").then_some(Act::AnswerLate(millis(100))));
    let reader = client.clone();
    let late = tokio::spawn(async move { reader.get("n").await });
    tokio::time::sleep(millis(10)).await;
    client.incr("n").await.unwrap();
    late.await.unwrap().unwrap();
    net.decide(|_, _| None);
}

#[tokio::test(start_paused = true)]
async fn each_connection_is_told_of_a_renewal_within_half_a_term() {
    let net = Net::new();
    let client = open(builder().pool_size(2), &net).await;
    client.incr("n").await.unwrap();
    tokio::time::sleep(millis(16 * 60 * 1_000)).await;
    incr_elsewhere(&net, &client).await;
    assert_eq!(net.count("SESSION RENEW"), 1);
    // What its node would show for it if the lease had another owner now is nearly over.
    client.incr("n").await.unwrap();
    assert_eq!(net.count("SESSION RENEW"), 2);
    client.incr("n").await.unwrap();
    assert_eq!((net.count("SESSION RENEW"), net.count("SESSION OPEN")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_a_connection_is_told_of_may_be_of_an_earlier_lease() {
    let net = Net::new();
    let client = open(builder().pool_size(2), &net).await;
    client.incr("n").await.unwrap();
    tokio::time::sleep(millis(10 * 60 * 1_000)).await;
    incr_elsewhere(&net, &client).await;
    let over = || Act::Answer("-EXPIRED the lease is over\r\n".into());
    net.decide(first_calls([over()]));
    assert_eq!(client.incr("n").await.unwrap(), 3);
    assert_eq!(net.count("SESSION OPEN"), 1, "another connection has been told of a later one");
    // Shown the latest one, it is over.
    net.decide(first_calls([over()]));
    assert_eq!(client.incr("n").await.unwrap(), 4);
    assert_eq!(net.count("SESSION OPEN"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_term_counts_from_its_request() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    net.decide(|_, words| {
        let lease =
            words.starts_with(&["SESSION", "OPEN"]) || words.starts_with(&["SESSION", "RENEW"]);
        lease.then_some(Act::AnswerLate(millis(900)))
    });
    client.incr("n").await.unwrap();
    for renewals in 1..=2 {
        // Half of the term has passed, and the answer took most of a second of it.
        tokio::time::sleep(millis(15 * 60 * 1_000 - 500)).await;
        client.incr("n").await.unwrap();
        assert_eq!(net.count("SESSION RENEW"), renewals);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_sessions_gets_plain_commands() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    net.decide(|_, words| {
        (words[0] == "SESSION").then(|| answer("-ERR unknown command 'SESSION'")).flatten()
    });
    assert_eq!(client.incr("n").await.unwrap(), 1);
    assert_eq!(client.incr("n").await.unwrap(), 2);
    assert_eq!((net.count("SESSION OPEN"), net.count("INCR n")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn what_can_be_no_call_is_sent_without() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    net.decide(|_, words| match words {
        ["SESSION", "CALL", _, _, "DEL", ..] => answer("-CROSSKEY several keys"),
        ["SESSION", "CALL", _, _, "PING"] => {
            answer("-ERR a session's call is a command on keys, or EXEC")
        }
        ["PING"] => answer("+PONG"),
        _ => None,
    });
    assert!(!client.del("k").await.unwrap());
    assert_eq!(client.command(["PING"]).await.unwrap(), crate::Reply::Status("PONG".into()));
    // Their numbers are done: the next call does not wait for them.
    client.incr("n").await.unwrap();
    assert_eq!(net.count("SESSION CALL 2 2 INCR n"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_command_answers_is_no_failure_of_the_call() {
    let net = Net::new();
    let client = open(builder(), &net).await;
    let error = client.command(["NOPE"]).await.unwrap_err();
    assert!(matches!(error, Error::Server { code, .. } if code == "ERR"));
    assert_eq!(net.count("SESSION CALL 0 0 NOPE"), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_leave_their_numbers_out_while_all_goes_well() {
    let net = Net::new();
    let client = open(builder().pool_size(1), &net).await;
    for number in 1..=3 {
        assert_eq!(client.incr("n").await.unwrap(), number);
        client.get("n").await.unwrap();
    }
    client.pipeline().incr("n").incr("n").send().await;
    assert_eq!((net.spelt("SESSION CALL"), net.spelt("INCR")), (0, 5));
    // The first is the connection's. The second is the pipeline's, which has two commands
    // unanswered at a time.
    assert_eq!((net.spelt("SESSION AUTO"), net.spelt("SESSION AUTO 5 2")), (2, 1));
    // A retry sends its number, and later calls go on without.
    net.decide(first_calls([Act::ExecuteAndClose]));
    assert_eq!(client.incr("n").await.unwrap(), 6);
    assert_eq!(net.spelt("SESSION CALL 7 7 INCR n"), 1);
    assert_eq!(client.incr("n").await.unwrap(), 7);
    assert_eq!(net.spelt("SESSION CALL"), 1);
    assert_eq!(net.count("SESSION OPEN"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_went_on_elsewhere_is_numbered_anew() {
    let net = Net::new();
    let client = open(builder().pool_size(2), &net).await;
    assert_eq!(client.incr("n").await.unwrap(), 1);
    net.decide(|_, words| (words[0] == "GET").then_some(Act::AnswerLate(millis(100))));
    let reader = client.clone();
    let late = tokio::spawn(async move { reader.get("n").await });
    tokio::time::sleep(millis(10)).await;
    for number in 2..=4 {
        assert_eq!(client.incr("n").await.unwrap(), number);
    }
    late.await.unwrap().unwrap();
    // Over the first connection, which has counted no further than its own commands.
    for number in 5..=6 {
        assert_eq!(client.incr("n").await.unwrap(), number);
    }
    assert_eq!((net.spelt("SESSION CALL"), net.count("SESSION OPEN")), (0, 1));
    assert_eq!(net.value("n").as_deref(), Some("6"));
}
