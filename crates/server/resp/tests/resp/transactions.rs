//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`.

use quorate_commands::CROSSKEY;
use quorate_machine::{Outcome, Refusal};
use quorate_resp::{Settings, Shared};
use quorate_resp_harness::Harness;
use quorate_types::limits::REPLY_BYTES_MAX;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

#[test]
fn one_key_runs_as_one_op() {
    let mut harness = harness();
    let id = harness.connect();
    let input = "MULTI\r\nSET a 1\r\nINCR a\r\nPING\r\nINCRBY a x\r\nGET a\r\nEXEC";
    assert_eq!(
        harness.talk(id, input),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*5\r\n+OK\r\n:2\r\n+PONG\r\n\
         -ERR value is not an integer or out of range\r\n$1\r\n2\r\n"
    );
    assert_eq!(harness.backend.submitted, 1);
    assert_eq!(harness.talk(id, "MULTI\r\nEXEC"), "+OK\r\n*0\r\n");
    assert_eq!(harness.talk(id, "MULTI\r\nPING\r\nEXEC"), "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
}

#[test]
fn several_keys_are_refused_with_the_way_out() {
    let mut harness = harness();
    let id = harness.connect();
    let crosskey = format!("-{CROSSKEY}\r\n");
    for input in [
        "MULTI\r\nSET a 1\r\nSET b 1\r\nEXEC",
        "MULTI\r\nDEL a b\r\nEXEC",
        "MULTI\r\nSET a 1\r\nSELECT 2\r\nSET a 1\r\nEXEC",
        "WATCH b\r\nMULTI\r\nSET a 1\r\nEXEC",
        "WATCH a b\r\nMULTI\r\nPING\r\nEXEC",
        "MULTI\r\nFLUSHDB\r\nSET a 1\r\nEXEC",
    ] {
        let reply = harness.talk(id, input);
        assert!(reply.ends_with(&crosskey), "{input}: {reply}");
    }
    assert_eq!(harness.talk(id, "DBSIZE"), ":0\r\n");
    assert_eq!(harness.talk(id, "EXEC"), "-ERR EXEC without MULTI\r\n");
    assert_eq!(harness.talk(id, "MSET a 1 b 2"), crosskey);
    // The same key twice is one key.
    assert_eq!(
        harness.talk(id, "MULTI\r\nSET a 1\r\nMGET a a\r\nDEL a a\r\nEXEC"),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n1\r\n:1\r\n"
    );
}

#[test]
fn a_watched_key_that_changed_aborts() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    let run = "MULTI\r\nSET a 2\r\nPING\r\nEXEC";
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    // Absent, then written; written, then deleted; written with the same value.
    for change in ["SET a 1", "DEL a", "SET a 1", "SET a 1"] {
        harness.talk(one, "WATCH a");
        harness.talk(two, change);
        assert_eq!(harness.talk(one, run), format!("{queued}*-1\r\n"), "{change}");
    }
    harness.talk(one, "HELLO 3");
    harness.talk(one, "WATCH a");
    harness.talk(two, "SET a 3");
    assert_eq!(harness.talk(one, run), format!("{queued}_\r\n"));
    // EXEC forgets the watches, and so do DISCARD and UNWATCH.
    let done = format!("{queued}*2\r\n+OK\r\n+PONG\r\n");
    assert_eq!(harness.talk(one, run), done);
    for forget in ["UNWATCH", "MULTI\r\nDISCARD"] {
        harness.talk(one, "WATCH a");
        harness.talk(two, "SET a 1");
        harness.talk(one, forget);
        assert_eq!(harness.talk(one, run), done);
    }
}

#[test]
fn a_watched_key_that_stayed_runs() {
    let mut harness = harness();
    let id = harness.connect();
    let queued = "+OK\r\n+OK\r\n+QUEUED\r\n";
    // Pipelined: MULTI waits until the versions are known.
    assert_eq!(
        harness.talk(id, "WATCH a\r\nMULTI\r\nSET a 1\r\nEXEC"),
        format!("{queued}*1\r\n+OK\r\n")
    );
    assert_eq!(
        harness.talk(id, "WATCH a a\r\nMULTI\r\nGET a\r\nEXEC"),
        format!("{queued}*1\r\n$1\r\n1\r\n")
    );
    // A change of its own counts as well.
    assert_eq!(
        harness.talk(id, "WATCH a\r\nSET a 2\r\nMULTI\r\nGET a\r\nEXEC"),
        "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n"
    );
}

#[test]
fn a_watched_key_that_expired_aborts() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SET a 1 PX 100");
    harness.talk(id, "WATCH a");
    harness.pass(100);
    assert_eq!(harness.talk(id, "MULTI\r\nPING\r\nEXEC"), "+OK\r\n+QUEUED\r\n*-1\r\n");
}

#[test]
fn commands_without_keys_wait_for_the_script() {
    let mut harness = harness();
    let id = harness.connect();
    let input =
        "MULTI\r\nSELECT 3\r\nSET a 1\r\nCLIENT SETNAME me\r\nEXEC\r\nCLIENT GETNAME\r\nGET a";
    assert_eq!(
        harness.talk(id, input),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n+OK\r\n+OK\r\n$2\r\nme\r\n$1\r\n1\r\n"
    );
    // A refused script: nothing of the rest happens.
    harness.backend.refuse.push_back(Outcome::Refused(Refusal::Busy));
    let reply = harness.talk(id, "MULTI\r\nSELECT 0\r\nCLIENT SETNAME you\r\nSET a 2\r\nEXEC");
    assert!(!reply.contains("UNKNOWN"));
    assert_eq!(harness.talk(id, "CLIENT GETNAME"), "$2\r\nme\r\n");
}

#[test]
fn a_flush_alone_is_fine() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SET a 1");
    assert_eq!(
        harness.talk(id, "MULTI\r\nFLUSHDB\r\nDBSIZE\r\nEXEC"),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n"
    );
}

#[test]
fn an_unknown_outcome_of_exec_is_not_a_failure() {
    let mut harness = harness();
    let id = harness.connect();
    harness.backend.refuse.push_back(Outcome::Unknown);
    assert!(harness.talk(id, "MULTI\r\nINCR a\r\nEXEC").contains("\r\n-UNKNOWN "));
}

#[test]
fn transactions_of_one_key_are_pipelined() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, "MULTI\r\nINCR a\r\nEXEC\r\n".repeat(10).as_bytes());
    assert_eq!(harness.backend.waiting(), 10);
    while harness.complete_one() {}
    let output = String::from_utf8(harness.take(id)).unwrap();
    assert!(output.ends_with("*1\r\n:10\r\n"));
}

#[test]
fn what_is_queued_is_said_together_with_the_answer_to_exec() {
    let mut harness = harness();
    let id = harness.connect();
    let take = |harness: &mut Harness| String::from_utf8(harness.take(id)).unwrap();
    // Who waits for QUEUED gets it; who has sent EXEC already gets one piece.
    harness.feed(id, b"MULTI\r\nINCR a\r\n");
    assert_eq!(take(&mut harness), "+OK\r\n+QUEUED\r\n");
    harness.feed(id, b"INCR a\r\nEXEC\r\n");
    assert_eq!(take(&mut harness), "");
    assert!(harness.complete_one());
    assert_eq!(take(&mut harness), "+QUEUED\r\n*2\r\n:1\r\n:2\r\n");
    // What was answered before the block is not held back.
    harness.feed(id, b"PING\r\nMULTI\r\nINCR a\r\nEXEC\r\n");
    assert_eq!(take(&mut harness), "+PONG\r\n+OK\r\n+QUEUED\r\n");
    assert!(harness.complete_one());
    assert_eq!(take(&mut harness), "*1\r\n:3\r\n");
    // A client that hangs up in between is owed both.
    harness.feed(id, b"MULTI\r\nINCR a\r\nEXEC\r\n");
    harness.frontend.end_of_input(id);
    assert!(!harness.frontend.wants_close(id));
    assert!(harness.complete_one());
    assert_eq!(take(&mut harness), "+OK\r\n+QUEUED\r\n*1\r\n:4\r\n");
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn the_queue_is_bounded() {
    let settings = Settings::default();
    settings.query_bytes_max.store(1 << 20, std::sync::atomic::Ordering::Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let id = harness.connect();
    harness.talk(id, "MULTI");
    let value = "v".repeat(60_000);
    let reply = harness.talk(id, &vec![format!("SET a {value}"); 20].join("\r\n"));
    assert!(reply.contains("-ERR the commands queued by MULTI exceed client-query-buffer-limit"));
    assert!(harness.talk(id, "EXEC").starts_with("-EXECABORT"));
}

/// The length of a value so large that one answer has room for four of them, but not for the lengths
/// and line ends around them.
const PART: usize = REPLY_BYTES_MAX / 4;

#[test]
fn what_exec_would_answer_is_bounded_before_it_happens() {
    for database in ["0", "1"] {
        let mut harness = harness();
        let id = harness.connect();
        harness.talk(id, &format!("SELECT {database}\r\nSETRANGE a {} v", PART - 1));
        let reply = harness.talk(id, "MULTI\r\nSETRANGE a 0 x\r\nGET a\r\nGET a\r\nGET a\r\nEXEC");
        assert!(reply.len() > 3 * PART, "three of four fit");
        let block =
            format!("MULTI\r\nAPPEND b 1\r\nSETRANGE a 0 y\r\n{}EXEC", "GET a\r\n".repeat(288));
        let block = if database == "0" { block.replace("APPEND b 1\r\n", "") } else { block };
        let reply = harness.talk(id, &block);
        assert!(reply.contains("-EXECABORT ") && reply.contains("16777216"), "{}", reply.len());
        assert!(reply.len() < 10_000);
        assert!(harness.talk(id, "GETRANGE a 0 0\r\nEXISTS b").ends_with("x\r\n:0\r\n"));
        let stats = harness.talk(id, "INFO errorstats");
        assert!(stats.contains("errorstat_EXECABORT:count=1"), "{stats}");
    }
}

#[test]
fn what_exec_executes_itself_is_bounded_too() {
    let mut harness = harness();
    let id = harness.connect();
    let one = harness.talk(id, "COMMAND").len();
    let count = 3 * REPLY_BYTES_MAX / one;
    let block = format!("MULTI\r\n{}CLIENT SETNAME me\r\nEXEC", "COMMAND\r\n".repeat(count));
    let reply = harness.talk(id, &block);
    assert!(reply.len() < REPLY_BYTES_MAX + one + 200 * count);
    assert!(reply.ends_with("ask for less at a time\r\n"));
    // What was answered with an error was not executed.
    assert_eq!(harness.talk(id, "CLIENT GETNAME"), "$-1\r\n");
}
