//! Commands on hashes, lists, sets and sorted sets: one history per anomaly beside its harmless
//! neighbour, and agreement with a checker that tries every order.

use quorate_check::{
    Action, Answer, CollectionCommand, Operation, Outcome, Verdict, check_history, read_history,
};
use quorate_machine::Rng;

use crate::brute_force::has_order;
use crate::support::{done, history, int, refused, saw, unknown};

fn command(text: &str) -> Action {
    Action::Command(CollectionCommand::new(text.split(' ')).expect("it can be judged"))
}

fn all(items: &str) -> Answer {
    Answer::Array(items.split_whitespace().map(saw).collect())
}

/// A history of commands one after the other.
fn in_turn(steps: &[(&str, Answer)]) -> Vec<Operation> {
    let steps = steps.iter().zip(0..);
    steps
        .map(|((text, answer), at)| done(at, 2 * at, 2 * at + 1, command(text), answer.clone()))
        .collect()
}

#[track_caller]
fn accepted(operations: Vec<Operation>) {
    let report = check_history(&history(operations));
    assert_eq!(report.verdict(), Verdict::Ok, "{report}");
}

#[track_caller]
fn rejected(operations: Vec<Operation>, words: &[&str]) {
    let report = check_history(&history(operations));
    assert_eq!(report.verdict(), Verdict::Violation, "{report}");
    let text = report.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

#[test]
fn a_lost_field_is_an_anomaly() {
    let sets = [("HSET a 1", int(1)), ("HSET b 2", int(1))];
    let kept = [("HGETALL", all("b 2 a 1"))];
    accepted(in_turn(&[&sets[..], &kept].concat()));
    // The second HSET was built on what was there before the first.
    let lost = [("HGETALL", all("b 2"))];
    rejected(in_turn(&[&sets[..], &lost].concat()), &["HGETALL -> [\"b\", \"2\"]", "a=1"]);
    rejected(in_turn(&[&sets[..], &[("HLEN", int(1))]].concat()), &["HLEN"]);
}

#[test]
fn an_element_that_is_popped_twice_is_an_anomaly() {
    let push = [("RPUSH a b", int(2)), ("LPOP", saw("a"))];
    accepted(in_turn(&[&push[..], &[("LPOP", saw("b")), ("LPOP", saw(""))]].concat()));
    rejected(in_turn(&[&push[..], &[("LPOP", saw("a"))]].concat()), &["LPOP"]);
    // A client that heard no answer may have popped the first one.
    let mut operations = in_turn(&[("RPUSH a b", int(2)), ("LPOP", saw("b"))]);
    rejected(operations.clone(), &["LPOP"]);
    operations.push(unknown(9, 1, command("LPOP")));
    accepted(operations);
}

#[test]
fn elements_in_another_order_are_an_anomaly() {
    let pushes = [("RPUSH a", int(1)), ("RPUSH b", int(2)), ("LPUSH c", int(3))];
    accepted(in_turn(&[&pushes[..], &[("LRANGE 0 -1", all("c a b"))]].concat()));
    rejected(
        in_turn(&[&pushes[..], &[("LRANGE 0 -1", all("c b a"))]].concat()),
        &["the list [c, a, b]"],
    );
    // Two pushes at once have either order, and one of them.
    let at_once = |first: &str, second: &str| {
        let mut operations = vec![
            done(1, 0, 9, command("RPUSH a"), int(2)),
            done(2, 0, 9, command("RPUSH b"), int(1)),
        ];
        operations.push(done(3, 10, 11, command("LRANGE 0 -1"), all(&format!("{first} {second}"))));
        operations
    };
    accepted(at_once("b", "a"));
    rejected(at_once("a", "b"), &["LRANGE"]);
}

#[test]
fn a_lost_member_is_an_anomaly() {
    let adds = [("SADD a b", int(2)), ("SADD b c", int(1)), ("SREM a", int(1))];
    accepted(in_turn(&[&adds[..], &[("SMEMBERS", all("c b"))]].concat()));
    rejected(in_turn(&[&adds[..], &[("SMEMBERS", all("c"))]].concat()), &["SMEMBERS"]);
    rejected(in_turn(&[&adds[..], &[("SMEMBERS", all("a b c"))]].concat()), &["SMEMBERS"]);
    rejected(in_turn(&[&adds[..], &[("SADD c", int(1))]].concat()), &["SADD c"]);
}

#[test]
fn a_score_is_added_to_once() {
    let sums = [("ZADD 5 a 1 b", int(2)), ("ZINCRBY 3 b", saw("4"))];
    let order = [("ZRANGE 0 -1 WITHSCORES", all("b 4 a 5")), ("ZPOPMIN", all("b 4"))];
    accepted(in_turn(&[&sums[..], &order].concat()));
    rejected(in_turn(&[&sums[..], &[("ZSCORE b", saw("7"))]].concat()), &["ZSCORE"]);
    // One of unknown outcome may have done it.
    let mut operations = in_turn(&[&sums[..], &[("ZSCORE b", saw("7"))]].concat());
    operations.push(unknown(9, 1, command("ZINCRBY 3 b")));
    accepted(operations);
}

#[test]
fn a_value_keeps_its_type() {
    let set = [("HSET a 1", int(1)), ("TYPE", saw("hash"))];
    let wrong = Answer::Error("WRONGTYPE Operation against a key".into());
    accepted(in_turn(&[&set[..], &[("LPUSH b", wrong.clone()), ("GET", wrong.clone())]].concat()));
    rejected(in_turn(&[&set[..], &[("HGET a", wrong)]].concat()), &["HGET a"]);
    rejected(in_turn(&[&set[..], &[("TYPE", saw("string"))]].concat()), &["TYPE"]);
    rejected(in_turn(&[&set[..], &[("GET", saw("a1"))]].concat()), &["GET"]);
}

#[test]
fn what_was_refused_never_shows() {
    let mut operations = in_turn(&[("SADD a", int(1)), ("SMEMBERS", all("a b"))]);
    operations.push(refused(9, 0, 9, command("SADD b")));
    rejected(operations, &["SMEMBERS"]);
}

#[test]
fn commands_come_back_from_a_file() {
    let answers = r#"{"process":1,"op":"command","key":"k","words":["RPUSH","a",{"hex":"ff"}],"invoke":1,"return":2,"outcome":"done","result":2}
{"process":1,"op":"command","key":"k","words":["LSET","0","b"],"invoke":3,"return":4,"outcome":"done","result":{"status":"OK"}}
{"process":1,"op":"command","key":"k","words":["LRANGE","0","-1"],"invoke":5,"return":6,"outcome":"done","result":["b",{"hex":"ff"}]}
{"process":1,"op":"command","key":"k","words":["HLEN"],"invoke":7,"return":8,"outcome":"done","result":{"error":"WRONGTYPE Operation"}}
{"process":1,"op":"command","key":"k","words":["LINDEX","7"],"invoke":9,"return":10,"outcome":"done","result":null}
{"process":1,"op":"command","key":"k","words":["RPOP"],"invoke":11,"outcome":"unknown"}
"#;
    let text =
        format!("{{\"format\":\"quorate-history\",\"version\":1}}\n{answers}{{\"end\":6}}\n");
    let read = read_history(text.as_bytes()).unwrap();
    assert_eq!(check_history(&read).verdict(), Verdict::Ok, "{}", check_history(&read));
    let mut writer = quorate_check::HistoryWriter::new(Vec::new(), &read.header).unwrap();
    read.operations.iter().for_each(|operation| writer.write(operation).unwrap());
    assert_eq!(read_history(&writer.finish().unwrap()[..]).unwrap(), read);
    for (wrong, reason) in [
        (text.replace("LINDEX", "LFIND"), "LFIND"),
        (text.replace("\"words\":[\"HLEN\"]", "\"value\":\"x\""), "words"),
        (text.replace("null", "true"), "true"),
    ] {
        let error = read_history(wrong.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// A key of the other checker: what it is, and its items with their values. Written apart from the
/// checker's model, on purpose.
#[derive(Clone, PartialEq, Default)]
struct Held {
    kind: char,
    items: Vec<(String, String)>,
}

fn run(action: &Action, held: &Held) -> (Held, Answer) {
    let Action::Command(command) = action else { unreachable!("only commands are drawn") };
    let words = command.words().iter().map(|word| str::from_utf8(&word.0).expect("drawn as text"));
    let words: Vec<&str> = words.collect();
    let mut after = held.clone();
    let kind =
        if words[0] == "DEL" { held.kind } else { words[0].chars().next().expect("it has a name") };
    let kind = if kind == 'R' { 'L' } else { kind };
    if !held.items.is_empty() && kind != held.kind {
        return (after, Answer::Error("WRONGTYPE".into()));
    }
    after.kind = kind;
    let items = &mut after.items;
    let number = |text: &str| text.parse::<i64>().expect("only numbers are drawn here");
    let find =
        |items: &[(String, String)], name: &str| items.iter().position(|(one, _)| one == name);
    let answer = match words[..] {
        ["DEL"] => {
            let was_there = !items.is_empty();
            items.clear();
            int(i64::from(was_there))
        }
        ["RPUSH", one] => {
            items.push((one.into(), String::new()));
            int(items.len() as i64)
        }
        ["LPUSH", one] => {
            items.insert(0, (one.into(), String::new()));
            int(items.len() as i64)
        }
        ["LPOP"] if items.is_empty() => saw(""),
        ["LPOP"] => saw(&items.remove(0).0),
        ["RPOP"] => saw(&items.pop().map(|(one, _)| one).unwrap_or_default()),
        ["LRANGE", ..] => Answer::Array(items.iter().map(|(one, _)| saw(one)).collect()),
        ["HSET", field, value] => {
            let at = find(items, field);
            match at {
                Some(at) => items[at].1 = value.into(),
                None => items.push((field.into(), value.into())),
            }
            int(i64::from(at.is_none()))
        }
        ["HINCRBY", field, by] => {
            let at = find(items, field).unwrap_or_else(|| {
                items.push((field.into(), "0".into()));
                items.len() - 1
            });
            let sum: i64 = number(&items[at].1) + number(by);
            items[at].1 = sum.to_string();
            int(sum)
        }
        ["HGET", field] => saw(find(items, field).map_or("", |at| &items[at].1)),
        ["HDEL" | "SREM", name] => {
            let at = find(items, name);
            at.map(|at| items.remove(at));
            int(i64::from(at.is_some()))
        }
        ["SADD", name] => {
            let is_new = find(items, name).is_none();
            if is_new {
                items.push((name.into(), String::new()));
            }
            int(i64::from(is_new))
        }
        ["SMEMBERS"] => {
            let mut names: Vec<&str> = items.iter().map(|(one, _)| one.as_str()).collect();
            names.sort_unstable();
            Answer::Array(names.into_iter().map(saw).collect())
        }
        ["HLEN" | "SCARD" | "LLEN"] => int(items.len() as i64),
        _ => unreachable!("{words:?} is not drawn"),
    };
    if after.items.is_empty() {
        after = Held::default();
    }
    (after, answer)
}

const LISTS: &[&str] =
    &["RPUSH a", "RPUSH b", "LPUSH a", "LPOP", "RPOP", "LLEN", "LRANGE 0 -1", "DEL"];
const SETS: &[&str] = &["SADD a", "SADD b", "SREM a", "SREM b", "SCARD", "SMEMBERS", "DEL"];
const HASHES: &[&str] =
    &["HSET a 1", "HSET a 2", "HSET b 1", "HINCRBY a 1", "HDEL a", "HGET a", "HLEN", "DEL"];
const TYPES: &[&str] =
    &["RPUSH a", "LPOP", "SADD a", "SMEMBERS", "HSET a 1", "HGET a", "DEL", "DEL"];

/// A history whose answers are right for a random order, with outcomes that are not known, and some
/// answers of another state.
fn random(rng: &mut Rng, from: &[&str]) -> Vec<Operation> {
    let count = 3 + rng.below(5);
    let span = 1 + rng.below(8);
    let is_spoiled = rng.chance(2, 3);
    let (mut held, mut earlier) = (Held::default(), vec![Held::default()]);
    let mut operations = Vec::new();
    for process in 0..count {
        let action = command(from[rng.below(from.len() as u64) as usize]);
        let point = process * 2;
        let (invoke, at) = (point.saturating_sub(rng.below(span)), point + rng.below(span));
        let (next, answer) = run(&action, &held);
        let is_wrong = is_spoiled && rng.chance(1, 2);
        let other = &earlier[rng.below(earlier.len() as u64) as usize];
        let answer = if is_wrong { run(&action, other).1 } else { answer };
        let (happens, outcome) = match rng.below(8) {
            0 => (rng.chance(1, 2), Outcome::Unknown),
            1 => (false, Outcome::Refused { at }),
            _ => (true, Outcome::Done { at, answer }),
        };
        if happens {
            earlier.push(std::mem::replace(&mut held, next));
        }
        operations.push(Operation { process, key: "k".into(), action, invoke, outcome });
    }
    operations
}

fn agree(seed: u64, from: &[&str]) {
    const ROUNDS: u32 = 10_000;
    let mut rng = Rng::new(seed);
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let operations = random(&mut rng, from);
        let all = (1 << operations.len()) - 1;
        let expected = has_order(&operations, all, &Held::default(), run);
        let history = history(operations);
        let report = check_history(&history);
        assert_ne!(report.verdict(), Verdict::Undecided, "{report}");
        let found = report.verdict() == Verdict::Ok;
        assert_eq!(found, expected, "round {round}: {:#?}\n{report}", history.operations);
        accepted += u32::from(found);
    }
    assert!(accepted > ROUNDS / 10 && accepted < ROUNDS - ROUNDS / 10, "{accepted} of {ROUNDS}");
}

#[test]
fn agrees_on_lists() {
    agree(21, LISTS);
}

#[test]
fn agrees_on_sets() {
    agree(22, SETS);
}

#[test]
fn agrees_on_hashes() {
    agree(23, HASHES);
}

#[test]
fn agrees_where_types_take_turns() {
    agree(24, TYPES);
}
