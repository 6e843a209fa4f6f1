//! The commands sent for a transaction, and the judgement of the replies.

use super::*;
use crate::{Generator, Put, Source, TransactionKind, Workload};

fn transactions(framing: Framing) -> Transactions {
    Transactions::new(Layout::COMPARE, Greeting::default(), framing)
}

fn filled(number: u64) -> Transaction {
    let puts = vec![Put { key: number, content: Content::Number(5) }];
    let kind = TransactionKind::GetSet;
    Transaction { kind, gets: vec![number], puts, ..Transaction::empty() }
}

/// Feeds the replies in one piece, and again byte by byte.
fn answers(framing: Framing, requests: usize, input: &[u8]) -> Vec<Answer> {
    let mut whole = transactions(framing);
    let mut bytewise = transactions(framing);
    for number in 0..requests {
        whole.request(&filled(number as u64), &mut Vec::new());
        bytewise.request(&filled(number as u64), &mut Vec::new());
    }
    let (mut found, mut used) = (Vec::new(), 0);
    while used < input.len() {
        let step = whole.answer(&input[used..], &mut Vec::new()).unwrap().expect("a whole reply");
        used += step.used;
        found.extend(step.answer);
    }
    let (mut again, mut start) = (Vec::new(), 0);
    for end in 1..=input.len() {
        if let Some(step) = bytewise.answer(&input[start..end], &mut Vec::new()).unwrap() {
            assert_eq!(start + step.used, end, "a reply is found once its last byte is there");
            start = end;
            again.extend(step.answer);
        }
    }
    assert_eq!(found, again);
    found
}

#[test]
fn a_transaction_is_one_block() {
    let mut out = Vec::new();
    transactions(Framing::Block).request(&filled(1), &mut out);
    let expected = "*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000001\r\n\
                    *3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$1\r\n5\r\n*1\r\n$4\r\nEXEC\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn commands_are_spelled_with_keys_and_values_of_64_bytes() {
    let mut generator = Generator::new(Workload::Retwis, 1000, 0.6, 1).unwrap();
    let (layout, mut scratch) = (Workload::Retwis.layout(), Vec::new());
    let mut commands = 0;
    for _ in 0..500 {
        let transaction = generator.next().clone();
        let mut keys = Vec::new();
        each_command(layout, &transaction, &mut scratch, |words| {
            assert!(words[1..].iter().all(|word| word.len() == 64), "{words:?}");
            assert_eq!(words[0], if words.len() == 2 { &b"GET"[..] } else { b"SET" });
            keys.push(words[1].to_vec());
        });
        commands += keys.len();
        let put = transaction.puts.iter().map(|put| put.key);
        let numbers = transaction.gets.iter().copied().chain(put);
        let expected = numbers.map(|number| format!("item:{number:059}").into_bytes());
        assert!(keys.into_iter().eq(expected));
    }
    assert!(commands > 500);
}

#[test]
fn what_workloads_ask_is_well_formed() {
    for workload in Workload::ALL {
        let mut generator = Generator::new(workload, 100, 0.6, 9).unwrap();
        let layout = workload.layout();
        let mut dialect = Transactions::new(layout, Greeting::default(), Framing::Block);
        for _ in 0..200 {
            let transaction = generator.next().clone();
            let mut out = Vec::new();
            dialect.request(&transaction, &mut out);
            let text = String::from_utf8(out).unwrap();
            let commands = transaction.gets.len() + transaction.puts.len();
            assert_eq!(text.matches("\r\n$3\r\nGET\r\n$").count(), transaction.gets.len());
            assert!(text.starts_with("*1\r\n$5\r\nMULTI\r\n"));
            assert!(text.ends_with("*1\r\n$4\r\nEXEC\r\n"));
            let key = format!("${}\r\n", layout.key_bytes(0));
            assert!(text.matches(&key).count() >= commands, "{text}");
            let name = if workload == Workload::Bank { "INCRBY" } else { "SET" };
            let name = format!("\r\n{name}\r\n");
            assert_eq!(text.matches(&name).count(), transaction.puts.len());
        }
    }
}

#[test]
fn a_transfer_adds_to_both_accounts() {
    let puts = [-7, 7].map(|change| Put { key: 3, content: Content::Sum(change) }).to_vec();
    let transfer = Transaction { kind: TransactionKind::Transfer, puts, ..Transaction::empty() };
    let mut out = Vec::new();
    transactions(Framing::Block).request(&transfer, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("INCRBY\r\n$16\r\nkey:000000000003\r\n$2\r\n-7\r\n"), "{text}");
    assert!(text.contains("INCRBY\r\n$16\r\nkey:000000000003\r\n$1\r\n7\r\n"), "{text}");
}

#[test]
fn blocks_are_judged_by_all_their_replies() {
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    for (replies, expected) in [
        (format!("{queued}*2\r\n$3\r\nabc\r\n+OK\r\n"), Answer::Good),
        (format!("{queued}*2\r\n$-1\r\n+OK\r\n"), Answer::Missed),
        (format!("{queued}*-1\r\n"), Answer::Aborted),
        (format!("{queued}-TRYAGAIN too many conflicts\r\n"), Answer::Aborted),
        (format!("{queued}*2\r\n$3\r\nabc\r\n-TRYAGAIN later\r\n"), Answer::Aborted),
        (format!("{queued}-UNKNOWN gone\r\n"), Answer::Failed("UNKNOWN gone".into())),
        (format!("{queued}*2\r\n$1\r\na\r\n-OOM\r\n"), Answer::Failed("OOM".into())),
        (
            "+OK\r\n+QUEUED\r\n-CROSSKEY no\r\n-EXECABORT Transaction discarded\r\n".to_owned(),
            Answer::Failed("CROSSKEY no".into()),
        ),
    ] {
        let found = answers(Framing::Block, 1, replies.as_bytes());
        assert_eq!(found, std::slice::from_ref(&expected), "{replies}");
        let twice = replies.repeat(2);
        assert_eq!(answers(Framing::Block, 2, twice.as_bytes()), [expected.clone(), expected]);
    }
}

#[test]
fn single_commands_are_judged_one_by_one() {
    let good = answers(Framing::Single, 1, b"$1\r\na\r\n+OK\r\n");
    assert_eq!(good, [Answer::Good]);
    assert_eq!(answers(Framing::Single, 1, b"$-1\r\n+OK\r\n"), [Answer::Missed]);
    let failed = Answer::Failed("CLUSTERDOWN wait".to_owned());
    assert_eq!(answers(Framing::Single, 1, b"$1\r\na\r\n-CLUSTERDOWN wait\r\n"), [failed]);
}

#[test]
fn a_client_is_told_numbers_that_it_asked_for() {
    let told = |tells, framing, replies: &[u8]| {
        let mut dialect = transactions(framing);
        dialect.request(&Transaction { tells, ..filled(1) }, &mut Vec::new());
        let (mut input, mut answer) = (replies, None);
        while !input.is_empty() {
            let step = dialect.answer(input, &mut Vec::new()).unwrap().unwrap();
            input = &input[step.used..];
            answer = answer.or(step.answer);
        }
        answer.expect("the replies are whole")
    };
    let queued = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n:3\r\n";
    assert_eq!(told(Tells::Integers, Framing::Block, queued), Answer::Told(Some(3)));
    let single = b"+OK\r\n$4\r\n0007\r\n";
    assert_eq!(told(Tells::Value, Framing::Single, single), Answer::Told(Some(7)));
    assert_eq!(told(Tells::Value, Framing::Single, b"+OK\r\n$-1\r\n"), Answer::Told(None));
}

/// A transaction that reads two keys and takes 5 from the first if it has them.
fn ruled() -> Transaction {
    let puts = vec![Put { key: 1, content: Content::Sum(-5) }];
    let kind = TransactionKind::SendPayment;
    Transaction { kind, gets: vec![1, 2], puts, rule: Rule::AtLeast(5), ..Transaction::empty() }
}

#[test]
fn a_transaction_with_a_rule_reads_under_watch_and_writes_then() {
    let (mut dialect, mut out) = (transactions(Framing::Watch), Vec::new());
    let step = |dialect: &mut Transactions, input: &[u8]| {
        let (mut out, mut at, mut answer) = (Vec::new(), 0, None);
        while at < input.len() {
            let step = dialect.answer(&input[at..], &mut out).unwrap().unwrap();
            at += step.used;
            answer = answer.or(step.answer);
        }
        (String::from_utf8(out).unwrap(), answer)
    };
    dialect.request(&ruled(), &mut out);
    let asked = String::from_utf8(out).unwrap();
    assert!(asked.starts_with("*3\r\n$5\r\nWATCH\r\n$16\r\nkey:000000000001\r\n"), "{asked}");
    assert_eq!(asked.matches("$3\r\nGET\r\n").count(), 2);
    let (sent, answer) = step(&mut dialect, b"+OK\r\n$1\r\n7\r\n$1\r\n0\r\n");
    assert_eq!(answer, None);
    assert!(sent.starts_with("*1\r\n$5\r\nMULTI\r\n*3\r\n$6\r\nINCRBY\r\n"), "{sent}");
    let (_, answer) = step(&mut dialect, b"+OK\r\n+QUEUED\r\n*1\r\n:2\r\n");
    assert_eq!(answer, Some(Answer::Told(Some(-5))));

    // A watched key changed.
    dialect.request(&ruled(), &mut Vec::new());
    step(&mut dialect, b"+OK\r\n$1\r\n7\r\n$1\r\n0\r\n");
    let (_, answer) = step(&mut dialect, b"+OK\r\n+QUEUED\r\n*-1\r\n");
    assert_eq!(answer, Some(Answer::Aborted));

    // There is too little: nothing is written.
    dialect.request(&ruled(), &mut Vec::new());
    let (sent, _) = step(&mut dialect, b"+OK\r\n$1\r\n4\r\n$1\r\n9\r\n");
    assert_eq!(sent, "*1\r\n$7\r\nUNWATCH\r\n");
    assert_eq!(step(&mut dialect, b"+OK\r\n").1, Some(Answer::Told(Some(0))));

    // A read fails.
    dialect.request(&ruled(), &mut Vec::new());
    let (sent, answer) = step(&mut dialect, b"+OK\r\n-TRYAGAIN later\r\n$1\r\n9\r\n");
    assert_eq!((sent.as_str(), answer), ("", Some(Answer::Aborted)));
}

#[test]
fn a_connection_greets_with_password_and_database() {
    let greeting = Greeting { password: Some("secret".into()), database: 12 };
    let mut dialect = Transactions::new(Layout::COMPARE, greeting, Framing::Single);
    let mut out = Vec::new();
    dialect.greet(&mut out);
    let expected = "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*2\r\n$6\r\nSELECT\r\n$2\r\n12\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    let step = dialect.answer(b"+OK\r\n", &mut Vec::new()).unwrap();
    assert_eq!(step, Some(Step { used: 5, answer: None }));
    let refused = dialect.answer(b"-ERR DB index is out of range\r\n", &mut Vec::new());
    let what = "refuses SELECT: ERR DB index is out of range".to_owned();
    assert_eq!(refused, Err(Misunderstood(what)));
}

#[test]
fn what_a_server_says_before_it_closes_is_kept() {
    let mut dialect = transactions(Framing::Block);
    dialect.request(&filled(1), &mut Vec::new());
    dialect.answer(b"-ERR max number of clients reached\r\n", &mut Vec::new()).unwrap();
    assert_eq!(dialect.complaint(), Some("ERR max number of clients reached"));
}

#[test]
fn another_protocol_is_told_apart() {
    let Misunderstood(what) = scan(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
    let expected = "does not speak the Redis protocol: it answers \"HTTP/1.1 400 Bad Request\"";
    assert_eq!(what, expected);
    assert!(scan(b"$many\r\n").is_err());
    assert_eq!(scan(b"*2\r\n:1\r\n"), Ok(None));
}
