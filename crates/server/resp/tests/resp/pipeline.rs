//! Order, back-pressure, leases, time.

use std::collections::BTreeSet;

use quorate_commands::Reply;
use quorate_machine::{Outcome, Refusal, Rng, Seal};
use quorate_resp::{Settings, Shared};
use quorate_resp_harness::Harness;

/// `PIPELINE_REPLIES_MAX`.
const REPLIES_MAX: usize = 4096;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

#[test]
fn replies_keep_the_order_of_commands_however_ops_complete() {
    for seed in 0..50 {
        let mut harness = harness();
        harness.backend.shuffle = Some(Rng::new(seed));
        let id = harness.connect();
        let mut input = String::new();
        let mut expected = String::new();
        for number in 0..20 {
            input += &format!("SET k{number} {number}\r\nINCR k{number}\r\nPING {number}\r\n");
            input += &format!("GET k{number}\r\nMGET k{number} none\r\n");
            let (text, next) = (number.to_string(), (number + 1).to_string());
            expected += &format!("+OK\r\n:{next}\r\n${}\r\n{text}\r\n", text.len());
            let value = format!("${}\r\n{next}\r\n", next.len());
            expected += &format!("{value}*2\r\n{value}$-1\r\n");
        }
        let output = harness.send(id, input.as_bytes());
        assert_eq!(String::from_utf8(output).unwrap(), expected, "seed {seed}");
    }
}

/// However many there are at the same time, and wherever they run.
#[test]
fn equal_commands_that_draw_at_random_draw_differently() {
    let draws = [
        "SRANDMEMBER set",
        "HRANDFIELD hash",
        "ZRANDMEMBER sorted",
        "EVAL \"return redis.call('SRANDMEMBER', KEYS[1])\" 1 set",
        "EVAL \"return tostring(math.random(10))\" 0",
        "SPOP set",
    ];
    quorate_scripts::install();
    for local_reads in [false, true] {
        for draw in draws {
            let mut harness = harness();
            harness.backend.random = Some(Rng::new(7));
            harness.backend.local_reads = local_reads;
            let id = harness.connect();
            for member in 0..10 {
                let fill =
                    format!("SADD set {member}\r\nHSET hash {member} 1\r\nZADD sorted 1 {member}");
                harness.talk(id, &fill);
            }
            let input = if draw.starts_with("SPOP") {
                format!("{draw}\r\nSADD set 0 1 2 3 4 5 6 7 8 9\r\n")
            } else {
                format!("{draw}\r\n")
            };
            let answers =
                String::from_utf8(harness.send(id, input.repeat(100).as_bytes())).unwrap();
            let different: BTreeSet<_> =
                answers.split("$1\r\n").map(|answer| &answer[..1.min(answer.len())]).collect();
            assert!(different.len() > 8, "{draw}: {different:?}");
        }
    }
}

#[test]
fn a_read_is_local_only_while_no_own_update_is_in_flight() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"GET a\r\n");
    assert_eq!((harness.backend.reads, harness.backend.submitted), (1, 0));
    harness.feed(id, b"SET a 1\r\nGET a\r\nGET b\r\n");
    assert_eq!((harness.backend.reads, harness.backend.submitted), (1, 3));
    while harness.complete_one() {}
    harness.feed(id, b"GET a\r\n");
    assert_eq!((harness.backend.reads, harness.backend.submitted), (2, 3));
    assert_eq!(harness.take(id), b"$-1\r\n+OK\r\n$1\r\n1\r\n$-1\r\n$1\r\n1\r\n");
}

#[test]
fn a_read_that_the_replica_cannot_answer_is_submitted() {
    let mut harness = harness();
    harness.backend.local_reads = false;
    let id = harness.connect();
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
    assert_eq!(harness.talk(id, "MGET a b"), "*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(harness.talk(id, "EXISTS a b"), ":0\r\n");
    assert_eq!(harness.backend.submitted, 5);
}

/// A read waits at the engine and the record can be read again before an update changes it. The
/// first read is answered behind the update, so the second must not be answered from the record.
#[test]
fn a_read_does_not_overtake_an_earlier_read_of_its_key() {
    let firsts = [
        ("GET a", "$3\r\nnew\r\n"),
        ("MGET x a", "*2\r\n$-1\r\n$3\r\nnew\r\n"),
        ("MULTI\r\nGET a\r\nEXEC", "+OK\r\n+QUEUED\r\n*1\r\n$3\r\nnew\r\n"),
    ];
    let seconds = [
        ("GET a", "$3\r\nnew\r\n"),
        ("STRLEN a", ":3\r\n"),
        ("MGET b a", "*2\r\n$-1\r\n$3\r\nnew\r\n"),
        ("EXISTS b a", ":1\r\n"),
    ];
    for (first, newer) in firsts {
        for (second, as_new) in seconds {
            let mut harness = harness();
            let (reader, writer) = (harness.connect(), harness.connect());
            harness.feed(writer, b"SET a new\r\n");
            harness.backend.local_reads = false;
            harness.feed(reader, format!("{first}\r\n").as_bytes());
            harness.backend.local_reads = true;
            harness.feed(reader, format!("{second}\r\n").as_bytes());
            while harness.complete_one() {}
            let output = String::from_utf8(harness.take(reader)).unwrap();
            assert_eq!(output, format!("{newer}{as_new}"), "{first}, then {second}");
        }
    }
}

#[test]
fn one_command_reads_a_key_that_it_names_twice_in_order() {
    let mut harness = harness();
    let (reader, writer) = (harness.connect(), harness.connect());
    harness.talk(writer, "SET a 1");
    harness.backend.local_reads = false;
    harness.feed(reader, format!("MGET z{}\r\n", " a".repeat(299)).as_bytes());
    assert_eq!(harness.backend.waiting(), 256);
    // What is submitted in the place of the first part comes behind the update.
    harness.feed(writer, b"SET a 2\r\n");
    harness.complete_one();
    harness.backend.local_reads = true;
    while harness.complete_one() {}
    let output = String::from_utf8(harness.take(reader)).unwrap();
    let values: Vec<&str> = output.lines().filter(|line| ["1", "2"].contains(line)).collect();
    assert_eq!(values.len(), 299);
    assert_eq!(values.iter().position(|value| *value == "2"), Some(255));
    assert!(values.is_sorted(), "{values:?}");
}

#[test]
fn a_read_at_the_engine_holds_up_its_key_alone_and_no_longer_than_it_takes() {
    let mut harness = harness();
    let id = harness.connect();
    let counts = |harness: &Harness| (harness.backend.reads, harness.backend.submitted);
    harness.backend.local_reads = false;
    harness.feed(id, b"GET a\r\nGET a\r\nGET c\r\n");
    harness.backend.local_reads = true;
    assert_eq!(counts(&harness), (0, 3));
    harness.feed(id, b"GET b\r\nMGET b e\r\nEXISTS b e\r\n");
    assert_eq!(counts(&harness), (5, 3));
    // One of the two reads of the key has ended, the other has not.
    harness.complete_one();
    harness.feed(id, b"GET a\r\n");
    assert_eq!(counts(&harness), (5, 4));
    while harness.complete_one() {}
    harness.feed(id, b"GET a\r\nMGET a c\r\n");
    assert_eq!(counts(&harness), (8, 4));
}

#[test]
fn pipelined_reads_never_go_back_in_time() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut harness = harness();
        harness.backend.shuffle = Some(Rng::new(seed));
        let (reader, writer) = (harness.connect(), harness.connect());
        harness.talk(writer, "SET a 0\r\nSET b 0");
        let (mut asked, mut output) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let key = ["a", "b"][rng.below(2) as usize];
            match rng.below(5) {
                0 => harness.feed(writer, format!("INCR {key}\r\n").as_bytes()),
                1 => {
                    asked.push(key);
                    harness.feed(reader, format!("GET {key}\r\n").as_bytes());
                }
                2 => {
                    asked.extend([key, "a", "b"]);
                    harness.feed(reader, format!("MGET {key} a b\r\n").as_bytes());
                }
                3 => harness.backend.local_reads = rng.below(2) == 0,
                _ => {
                    harness.complete_one();
                }
            }
            output.extend(harness.take(reader));
        }
        while harness.complete_one() {}
        output.extend(harness.take(reader));
        let output = String::from_utf8(output).unwrap();
        let values = output.lines().filter_map(|line| line.parse::<u64>().ok());
        let answers: Vec<_> = asked.into_iter().zip(values).collect();
        for key in ["a", "b"] {
            let seen = answers.iter().filter(|(of, _)| *of == key).map(|(_, value)| *value);
            assert!(seen.is_sorted(), "seed {seed}, key {key}: {answers:?}");
        }
    }
}

#[test]
fn without_the_lease_no_local_read_leaves() {
    let mut harness = harness();
    let (reader, writer) = (harness.connect(), harness.connect());
    harness.talk(writer, "SET a 1");
    harness.lease = false;
    for command in ["GET a", "MGET a b", "DBSIZE", "KEYS *", "SCAN 0", "RANDOMKEY", "EXISTS a b"] {
        let reader = harness.connect();
        assert_eq!(harness.talk(reader, command), "", "{command}");
        assert!(harness.frontend.wants_close(reader));
    }
    // What doesn't rest on a local read does leave.
    assert_eq!(harness.talk(writer, "SET a 2"), "+OK\r\n");
    assert_eq!(harness.talk(reader, "PING"), "+PONG\r\n");
    assert!(!harness.frontend.wants_close(writer));
}

#[test]
fn a_local_read_queued_behind_an_update_is_dropped_with_the_lease_too() {
    let mut harness = harness();
    harness.backend.local_reads = false;
    let id = harness.connect();
    harness.feed(id, b"GET a\r\n");
    harness.backend.local_reads = true;
    harness.feed(id, b"GET b\r\n");
    harness.frontend.seal(Seal::Lost);
    while harness.complete_one() {}
    assert_eq!(harness.take(id), b"");
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn outcomes_become_errors_that_say_what_happened() {
    let mut harness = harness();
    let id = harness.connect();
    for (outcome, code) in [
        (Outcome::Refused(Refusal::NotServing), "-CLUSTERDOWN "),
        (Outcome::Refused(Refusal::Busy), "-TRYAGAIN "),
        (Outcome::Refused(Refusal::TimedOut), "-TRYAGAIN "),
        (
            Outcome::Refused(Refusal::OutOfMemory),
            "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        ),
        (Outcome::Unknown, "-UNKNOWN the operation may or may not have happened; "),
    ] {
        harness.backend.refuse.push_back(outcome);
        let reply = harness.talk(id, "SET a 1");
        assert!(reply.starts_with(code), "{reply}");
    }
    // One of two keys was deleted: "it did not happen" would be a lie.
    let done = Outcome::Done(Reply::Int(1));
    harness.backend.refuse.extend([done, Outcome::Refused(Refusal::Busy)]);
    assert!(harness.talk(id, "DEL a b").starts_with("-UNKNOWN "));
    harness
        .backend
        .refuse
        .extend([Outcome::Refused(Refusal::Busy), Outcome::Refused(Refusal::Busy)]);
    assert!(harness.talk(id, "DEL a b").starts_with("-TRYAGAIN "));
}

#[test]
fn a_node_that_does_not_serve_says_so() {
    let mut harness = harness();
    harness.backend.serving = Err("the node is catching up; use another");
    let id = harness.connect();
    let expected = "-CLUSTERDOWN the node is catching up; use another\r\n";
    for command in ["GET a", "SET a 1", "DBSIZE", "SCAN 0", "WATCH a", "FLUSHALL"] {
        assert_eq!(harness.talk(id, command), expected);
    }
    assert_eq!(harness.talk(id, "PING"), "+PONG\r\n");
    harness.talk(id, "MULTI");
    assert_eq!(harness.talk(id, "GET a"), expected);
    assert!(harness.talk(id, "EXEC").starts_with("-EXECABORT"));
}

#[test]
fn maxmemory_refuses_what_may_grow() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(harness.talk(id, "CONFIG SET maxmemory 1mb"), "+OK\r\n");
    harness.backend.used = 2 << 20;
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    assert_eq!(harness.talk(id, "SET a 1"), oom);
    assert_eq!(harness.talk(id, "DEL a"), ":0\r\n");
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
    // What a block may add counts when it runs.
    harness.backend.used = 0;
    harness.talk(id, "MULTI\r\nSET a 1");
    harness.backend.used = 2 << 20;
    let aborted = "-EXECABORT Transaction discarded because of: OOM command not allowed when used \
                   memory > 'maxmemory'.\r\n";
    assert_eq!(harness.talk(id, "EXEC"), aborted);
    harness.backend.used = 0;
    harness.talk(id, "MULTI\r\nGET a\r\nPING");
    harness.backend.used = 2 << 20;
    assert_eq!(harness.talk(id, "EXEC"), "*2\r\n$-1\r\n+PONG\r\n");
}

#[test]
fn replies_that_nobody_wants_are_left_out_whenever_they_come() {
    let mut harness = harness();
    harness.backend.local_reads = false;
    let id = harness.connect();
    harness.feed(id, b"SET a 1\r\nCLIENT REPLY SKIP\r\nGET a\r\nINCR a\r\nPING\r\n");
    while harness.complete_one() {}
    assert_eq!(harness.take(id), b"+OK\r\n:2\r\n+PONG\r\n");
    harness.feed(id, b"CLIENT REPLY OFF\r\nMGET a b\r\nMULTI\r\nINCR a\r\nEXEC\r\nWATCH a\r\n");
    while harness.complete_one() {}
    assert_eq!(harness.take(id), b"");
    assert_eq!(harness.talk(id, "CLIENT REPLY ON\r\nGET a"), "+OK\r\n$1\r\n3\r\n");
}

#[test]
fn a_client_that_does_not_read_is_not_served_further() {
    let mut harness = harness();
    let id = harness.connect();
    let value = "v".repeat(60_000);
    harness.talk(id, &format!("SET a {value}"));
    let reads = harness.backend.reads;
    harness.feed(id, "GET a\r\n".repeat(3000).as_bytes());
    harness.frontend.seal(Seal::Holds);
    assert!(harness.backend.reads - reads < 40, "{}", harness.backend.reads);
    assert!(!harness.frontend.wants_read(id));
    assert!(harness.frontend.output(id).unwrap().len() < 2_000_000);
    // Once it reads, it gets everything.
    let reply = format!("$60000\r\n{value}\r\n");
    assert_eq!(harness.take(id).len(), reply.len() * 3000);
    assert!(harness.frontend.wants_read(id));
}

#[test]
fn a_client_over_the_output_limit_is_dropped() {
    let settings = Settings::default();
    settings.output_bytes_hard.store(250_000, std::sync::atomic::Ordering::Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let id = harness.connect();
    let value = "v".repeat(60_000);
    harness.talk(id, &format!("SET a {value}"));
    assert_eq!(harness.talk(id, "MGET a a a a b a a"), "");
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn many_keys_go_a_window_at_a_time() {
    let mut harness = harness();
    let id = harness.connect();
    let keys: String = (0..1000).map(|number| format!(" k{number}")).collect();
    harness.feed(id, format!("DEL{keys}\r\nSET k999 x\r\n").as_bytes());
    assert_eq!(harness.backend.waiting(), 256);
    let mut output = Vec::new();
    while harness.complete_one() {
        output.extend(harness.take(id));
    }
    assert_eq!(output, b":0\r\n+OK\r\n");
    assert_eq!(harness.talk(id, "EXISTS k999 k1"), ":1\r\n");
}

#[test]
fn wait_counts_live_replicas() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(harness.talk(id, "WAIT 2 0"), ":2\r\n");
    assert_eq!(harness.talk(id, "WAIT 3 100"), "");
    assert_eq!(harness.talk(id, "PING"), "");
    assert!(
        harness.frontend.next_deadline()
            <= harness.now.monotonic + std::time::Duration::from_millis(10)
    );
    harness.pass(50);
    assert_eq!(harness.take(id), b"");
    harness.pass(50);
    assert_eq!(harness.take(id), b":2\r\n+PONG\r\n");
    assert_eq!(harness.talk(id, "WAIT 3 0"), "");
    harness.backend.replicas = 3;
    harness.pass(10);
    assert_eq!(harness.take(id), b":3\r\n");
    // It waits for this connection's own writes first.
    harness.feed(id, b"SET a 1\r\nWAIT 1 0\r\n");
    assert_eq!(harness.take(id), b"");
    harness.complete_one();
    assert_eq!(harness.take(id), b"+OK\r\n:3\r\n");
}

#[test]
fn idle_clients_are_disconnected() {
    let mut harness = harness();
    let (idle, busy) = (harness.connect(), harness.connect());
    harness.talk(idle, "CONFIG SET timeout 10");
    for _ in 0..12 {
        harness.pass(1000);
        harness.talk(busy, "PING");
    }
    assert!(harness.frontend.wants_close(idle));
    assert!(!harness.frontend.wants_close(busy));
    let mut dirty = Vec::new();
    harness.frontend.take_dirty(&mut dirty);
    assert!(dirty.contains(&idle));
}

#[test]
fn maxclients_counts_every_lane() {
    let settings = Settings::default();
    settings.max_clients.store(2, std::sync::atomic::Ordering::Relaxed);
    let shared = Shared::new(settings, None);
    let mut one = Harness::new(shared.clone());
    let mut two = Harness::new(shared);
    let first = one.connect();
    two.connect();
    assert_eq!(one.open(), Err(b"-ERR max number of clients reached\r\n".as_slice()));
    assert_eq!(one.talk(first, "CLIENT LIST").lines().filter(|l| l.starts_with("id=")).count(), 2);
    one.frontend.close(first);
    one.connect();
}

#[test]
fn a_closed_connection_leaves_nothing_behind() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"SET a 1\r\nMGET a b\r\nWATCH a\r\n");
    harness.frontend.close(id);
    let next = harness.connect();
    while harness.complete_one() {}
    assert_eq!(harness.take(next), b"");
    assert_eq!(harness.talk(next, "GET a"), "$1\r\n1\r\n");
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn barriers_wait_for_earlier_commands() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"SET a 1\r\nDBSIZE\r\nFLUSHALL\r\nDBSIZE\r\nKEYS *\r\n");
    let mut output = Vec::new();
    while harness.complete_one() {
        output.extend(harness.take(id));
    }
    assert_eq!(output, b"+OK\r\n:1\r\n+OK\r\n:0\r\n*0\r\n");
}

#[test]
fn quit_and_shutdown_end_the_connection() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(harness.talk(id, "SET a 1\r\nQUIT\r\nPING"), "+OK\r\n+OK\r\n");
    assert!(harness.frontend.wants_close(id));
    let id = harness.connect();
    assert_eq!(harness.talk(id, "SHUTDOWN NOSAVE SAVE"), "-ERR syntax error\r\n");
    assert_eq!(harness.talk(id, "SHUTDOWN NOSAVE"), "");
    assert!(harness.backend.stopped && harness.frontend.wants_close(id));
}

#[test]
fn a_draining_front_end_pays_what_it_owes() {
    let mut harness = harness();
    let (idle, busy, late) = (harness.connect(), harness.connect(), harness.connect());
    harness.feed(busy, b"SET a 1\r\n");
    harness.frontend.drain();
    harness.feed(busy, b"SET a 2\r\n");
    assert!(!harness.frontend.wants_close(busy));
    // One that asks in time is answered, and closed behind the answer.
    assert!(!harness.frontend.wants_close(late));
    harness.feed(late, b"PING\r\n");
    assert_eq!(harness.take(late), b"+PONG\r\n");
    assert!(harness.frontend.wants_close(late) && !harness.frontend.wants_close(idle));
    harness.frontend.end_all_input();
    assert!(harness.frontend.wants_close(idle));
    assert_eq!(harness.frontend.in_flight(), 1);
    harness.complete_one();
    assert_eq!(harness.take(busy), b"+OK\r\n");
    assert!(harness.frontend.wants_close(busy));
}

#[test]
fn unsealed_replies_stay() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"GET a\r\n");
    assert!(harness.frontend.needs_seal() && harness.frontend.has_dirty());
    assert!(harness.frontend.output(id).is_none());
    harness.frontend.seal(Seal::Holds);
    assert_eq!(harness.frontend.output(id).map(|output| output.unsent()), Some(&b"$-1\r\n"[..]));
}

#[test]
fn a_completion_comes_once() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"SET a 1\r\n");
    let now = harness.now;
    let (tag, outcome) = harness.backend.execute(now).expect("an op waits");
    for _ in 0..2 {
        harness.frontend.complete(tag, outcome.clone(), now, &mut harness.backend);
    }
    assert_eq!(harness.take(id), b"+OK\r\n");
}

/// Reads behind an update are submitted. A client that pipelines them has so many of the lane's ops
/// and no more; the rest of what it sends stays in its socket until some of them end.
#[test]
fn reads_behind_an_unfinished_update_are_bounded_by_not_reading_further() {
    for (read, reply, keys) in
        [("GET a", "$1\r\n1\r\n", 1), ("MGET a b", "*2\r\n$1\r\n1\r\n$-1\r\n", 2)]
    {
        let mut harness = harness();
        let id = harness.connect();
        harness.feed(id, b"SET a 1\r\n");
        harness.feed(id, format!("{read}\r\n").repeat(10_000).as_bytes());
        while harness.frontend.has_postponed() {
            harness.begin_turn();
        }
        // A command of several keys holds up those behind it.
        let waiting = if keys == 1 { REPLIES_MAX } else { 1 + keys };
        assert_eq!(harness.backend.waiting(), waiting, "{read}");
        assert!(!harness.frontend.wants_read(id));
        let mut output = Vec::new();
        while harness.complete_one() {
            harness.begin_turn();
            assert!(harness.backend.waiting() <= waiting, "{read}");
            output.extend(harness.take(id));
        }
        let expected = format!("+OK\r\n{}", reply.repeat(10_000));
        assert_eq!(String::from_utf8(output).unwrap(), expected, "{read}");
        assert!(harness.frontend.wants_read(id));
    }
}
