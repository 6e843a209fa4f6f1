//! Commands that wait, as clients see them: replies, pipelines, `MULTI`, `CLIENT UNBLOCK`, the end of
//! connections.

use std::sync::Arc;

use quorate_resp::{Settings, Shared};
use quorate_resp_harness::Harness;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

/// Lets everything complete.
fn settle(harness: &mut Harness) {
    harness.pass(0);
    while harness.complete_one() {}
}

#[test]
fn a_pop_waits_for_a_push_of_another_client() {
    for database in ["0", "1"] {
        let mut harness = harness();
        let (waiter, other) = (harness.connect(), harness.connect());
        for id in [waiter, other] {
            harness.talk(id, &format!("SELECT {database}"));
        }
        assert_eq!(harness.talk(waiter, "BLPOP a b 0"), "");
        assert_eq!(harness.talk(other, "RPUSH b 1 2"), ":2\r\n");
        settle(&mut harness);
        assert_eq!(harness.take(waiter), b"*2\r\n$1\r\nb\r\n$1\r\n1\r\n");
        assert_eq!(harness.talk(waiter, "BRPOP a b 0"), "*2\r\n$1\r\nb\r\n$1\r\n2\r\n");
        assert_eq!(harness.talk(waiter, "BLMPOP 0 2 a b LEFT"), "");
        assert_eq!(harness.talk(other, "RPUSH a x"), ":1\r\n");
        settle(&mut harness);
        assert_eq!(harness.take(waiter), b"*2\r\n$1\r\na\r\n*1\r\n$1\r\nx\r\n");
    }
}

#[test]
fn streams_are_waited_for() {
    for database in ["0", "1"] {
        let mut harness = harness();
        let [first, second, other] = [(); 3].map(|()| harness.connect());
        for id in [first, second, other] {
            harness.talk(id, &format!("SELECT {database}"));
        }
        harness.talk(other, "XADD s 1-0 a b");
        assert_eq!(harness.talk(first, "XREAD BLOCK 0 STREAMS s $"), "");
        harness.talk(second, "HELLO 3");
        assert_eq!(harness.talk(second, "XREAD COUNT 1 BLOCK 0 STREAMS s $"), "");
        assert_eq!(harness.talk(other, "XADD s 2-0 c d"), "$3\r\n2-0\r\n");
        settle(&mut harness);
        let entry = "*1\r\n*2\r\n$3\r\n2-0\r\n*2\r\n$1\r\nc\r\n$1\r\nd\r\n";
        let taken = String::from_utf8(harness.take(first)).unwrap();
        assert_eq!(taken, format!("*1\r\n*2\r\n$1\r\ns\r\n{entry}"));
        let taken = String::from_utf8(harness.take(second)).unwrap();
        assert_eq!(taken, format!("%1\r\n$1\r\ns\r\n{entry}"));
        // The deadline has passed.
        harness.talk(other, "XGROUP CREATE s g 2-0");
        let lines = ["XREADGROUP GROUP g c BLOCK 100 STREAMS s >", "XREAD BLOCK 100 STREAMS s $"];
        for line in lines {
            for (id, null) in [(first, &b"*-1\r\n"[..]), (second, b"_\r\n")] {
                assert_eq!(harness.talk(id, line), "", "{line}");
                harness.pass(99);
                settle(&mut harness);
                assert_eq!(harness.take(id), b"", "{line}");
                harness.pass(2);
                settle(&mut harness);
                assert_eq!(harness.take(id), null, "{line}");
            }
        }
        // What is not new is answered at once, as is what is wrong, and in a block everything.
        let history = harness.talk(first, "XREADGROUP GROUP g c BLOCK 0 STREAMS s 0");
        assert_eq!(history, "*1\r\n*2\r\n$1\r\ns\r\n*0\r\n");
        let absent = harness.talk(first, "XREADGROUP GROUP x c BLOCK 0 STREAMS s >");
        assert!(absent.starts_with("-NOGROUP "), "{absent}");
        let negative = harness.talk(first, "XREAD BLOCK -1 STREAMS s $");
        assert_eq!(negative, "-ERR timeout is negative\r\n");
        let block = harness.talk(first, &format!("MULTI\r\n{}\r\n{}\r\nEXEC", lines[0], lines[1]));
        assert!(block.ends_with("*2\r\n*-1\r\n*-1\r\n"), "{block}");
        // Several streams are one transaction, where there are any.
        let several = harness.talk(first, "XREAD BLOCK 0 STREAMS s t $ $");
        if database == "0" {
            assert!(several.starts_with("-CROSSKEY "), "{several}");
            continue;
        }
        assert_eq!(several, "");
        harness.talk(other, "XADD t 1-0 e f");
        settle(&mut harness);
        assert!(harness.take(first).starts_with(b"*1\r\n*2\r\n$1\r\nt\r\n"));
        harness.talk(other, "SET text v");
        assert!(harness.talk(first, "XREAD BLOCK 0 STREAMS s text $ $").starts_with("-WRONGTYPE "));
    }
}

#[test]
fn nothing_behind_a_command_that_waits_is_executed() {
    let mut harness = harness();
    let (waiter, other) = (harness.connect(), harness.connect());
    assert_eq!(harness.talk(waiter, "SET k v\r\nBLPOP q 0\r\nPING\r\nGET k"), "+OK\r\n");
    assert!(harness.talk(other, "CLIENT LIST").contains("flags=b "));
    assert!(harness.talk(other, "INFO clients").contains("blocked_clients:1\r\n"));
    harness.talk(other, "RPUSH q 1");
    settle(&mut harness);
    let taken = String::from_utf8(harness.take(waiter)).unwrap();
    assert_eq!(taken, "*2\r\n$1\r\nq\r\n$1\r\n1\r\n+PONG\r\n$1\r\nv\r\n");
    assert!(harness.talk(other, "INFO clients").contains("blocked_clients:0\r\n"));
}

#[test]
fn the_time_that_is_over_is_a_null_array() {
    let mut harness = harness();
    let waiter = harness.connect();
    harness.talk(waiter, "SELECT 1");
    for line in
        ["BLPOP a 0.1", "BLMOVE a b LEFT LEFT 0.1", "BRPOPLPUSH a b 0.1", "BLMPOP 0.1 1 a LEFT"]
    {
        assert_eq!(harness.talk(waiter, line), "");
        harness.pass(99);
        settle(&mut harness);
        assert_eq!(harness.take(waiter), b"", "{line}");
        harness.pass(2);
        settle(&mut harness);
        assert_eq!(harness.take(waiter), b"*-1\r\n", "{line}");
    }
    harness.talk(waiter, "HELLO 3");
    assert_eq!(harness.talk(waiter, "BLPOP a 0.1"), "");
    harness.pass(101);
    settle(&mut harness);
    assert_eq!(harness.take(waiter), b"_\r\n");
}

#[test]
fn wrong_arguments_are_answered_at_once() {
    let mut harness = harness();
    let client = harness.connect();
    for (line, error) in [
        ("BLPOP a x", "-ERR timeout is not a float or out of range\r\n"),
        ("BLPOP a -1", "-ERR timeout is negative\r\n"),
        ("BLMPOP 0 0 a LEFT", "-ERR numkeys should be greater than 0\r\n"),
        ("BLMPOP x 1 a UP", "-ERR syntax error\r\n"),
        ("BLMOVE a b UP LEFT x", "-ERR syntax error\r\n"),
        ("BLPOP a", "-ERR wrong number of arguments for 'blpop' command\r\n"),
        ("CLIENT UNBLOCK x", "-ERR value is not an integer or out of range\r\n"),
        ("CLIENT UNBLOCK 1 SOON", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n"),
        ("CLIENT UNBLOCK 1", ":0\r\n"),
        ("CLIENT UNBLOCK 77", ":0\r\n"),
    ] {
        assert_eq!(harness.talk(client, line), error, "{line}");
    }
    assert!(harness.talk(client, "BLMOVE a b LEFT LEFT 0").starts_with("-CROSSKEY "));
    harness.talk(client, "SET text v");
    assert!(harness.talk(client, "BLPOP absent text 0").starts_with("-WRONGTYPE "));
}

#[test]
fn within_a_block_nothing_waits() {
    let mut harness = harness();
    let (client, waiter) = (harness.connect(), harness.connect());
    for id in [client, waiter] {
        harness.talk(id, "SELECT 1");
    }
    assert_eq!(harness.talk(waiter, "BLPOP q 0"), "");
    let block =
        "MULTI\r\nBLPOP a 0\r\nBLMOVE a b LEFT LEFT 0\r\nRPUSH q 1 2 3\r\nBLPOP q 0\r\nEXEC";
    let answers = harness.talk(client, block);
    let (_, answers) = answers.split_once("*4\r\n").unwrap();
    assert_eq!(answers, "*-1\r\n$-1\r\n:3\r\n*2\r\n$1\r\nq\r\n$1\r\n1\r\n");
    settle(&mut harness);
    assert_eq!(harness.take(waiter), b"*2\r\n$1\r\nq\r\n$1\r\n2\r\n", "behind the block");
}

#[test]
fn client_unblock_ends_a_wait_as_if_its_time_were_over_or_with_an_error() {
    let shared = Shared::new(Settings::default(), None);
    let mut harness = Harness::new(Arc::clone(&shared));
    // The one who asks is on another lane.
    let mut elsewhere = Harness::new(shared);
    let (waiter, other) = (harness.connect(), elsewhere.connect());
    let id = harness.talk(waiter, "CLIENT ID").trim_start_matches(':').trim_end().to_owned();
    for (reason, answer) in [
        ("", &b"*-1\r\n"[..]),
        (" TIMEOUT", b"*-1\r\n"),
        (" ERROR", b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
    ] {
        assert_eq!(harness.talk(waiter, "BLPOP a 0"), "");
        assert_eq!(elsewhere.talk(other, &format!("CLIENT UNBLOCK {id}{reason}")), ":1\r\n");
        assert_eq!(elsewhere.talk(other, &format!("CLIENT UNBLOCK {id}")), ":0\r\n");
        assert!(elsewhere.frontend.take_named_others(), "the other lane is to look");
        assert_eq!(harness.frontend.next_deadline().0, 0);
        settle(&mut harness);
        assert_eq!(harness.take(waiter), answer);
        assert_eq!(harness.backend.blocked(), 0);
    }
    assert_eq!(harness.talk(waiter, "WAIT 9 0"), "");
    assert_eq!(elsewhere.talk(other, &format!("CLIENT UNBLOCK {id} ERROR")), ":1\r\n");
    harness.pass(10);
    assert_eq!(harness.take(waiter), b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(harness.talk(waiter, "WAIT 9 0"), "");
    assert_eq!(elsewhere.talk(other, &format!("CLIENT UNBLOCK {id}")), ":1\r\n");
    harness.pass(10);
    assert_eq!(harness.take(waiter), b":2\r\n");
}

#[test]
fn nothing_is_on_a_disk() {
    let mut harness = harness();
    let id = harness.connect();
    for (line, reply) in [
        ("WAITAOF 0 1 0", "*2\r\n:0\r\n:0\r\n"),
        (
            "WAITAOF 1 0 0",
            "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n",
        ),
        ("WAITAOF x 0 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1\r\n"),
        ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive\r\n"),
        ("WAITAOF 0 0 -1", "-ERR timeout is negative\r\n"),
        ("WAITAOF 0 0 x", "-ERR timeout is not an integer or out of range\r\n"),
    ] {
        assert_eq!(harness.talk(id, line), reply, "{line}");
    }
}

#[test]
fn who_has_gone_waits_no_more() {
    let mut harness = harness();
    let (closed, hung_up, other) = (harness.connect(), harness.connect(), harness.connect());
    assert_eq!(harness.talk(closed, "BLPOP q 0"), "");
    assert_eq!(harness.talk(hung_up, "BLPOP q 0"), "");
    assert_eq!(harness.backend.blocked(), 2);
    harness.frontend.close(closed);
    harness.frontend.end_of_input(hung_up);
    assert!(harness.frontend.wants_close(hung_up), "a client that has hung up reads no answer");
    harness.frontend.close(hung_up);
    settle(&mut harness);
    assert_eq!((harness.backend.blocked(), harness.frontend.pending()), (0, 0));
    assert_eq!(harness.talk(other, "RPUSH q 1"), ":1\r\n");
    assert_eq!(harness.talk(other, "LLEN q"), ":1\r\n");
    harness.frontend.check_invariants();
}

#[test]
fn a_node_that_stops_answers_who_waits() {
    let mut harness = harness();
    let waiter = harness.connect();
    assert_eq!(harness.talk(waiter, "BLPOP q 0"), "");
    harness.frontend.drain();
    settle(&mut harness);
    assert!(harness.take(waiter).starts_with(b"-UNBLOCKED "));
    assert!(harness.frontend.wants_close(waiter));
    assert_eq!(harness.frontend.pending(), 0);
}

#[test]
fn a_session_calls_nothing_that_waits() {
    let mut harness = harness();
    let client = harness.connect();
    harness.talk(client, "SESSION OPEN");
    assert!(
        harness.talk(client, "SESSION CALL 0 0 BLPOP q 0").starts_with("-ERR a command that waits")
    );
    assert_eq!(harness.talk(client, "SESSION CALL 0 0 RPUSH q 1"), ":1\r\n");
    harness.talk(client, "SESSION AUTO 1");
    assert!(harness.talk(client, "BLPOP q 0").starts_with("-ERR a command that waits"));
    harness.talk(client, "SESSION AUTO OFF");
    assert_eq!(harness.talk(client, "BLPOP q 0"), "*2\r\n$1\r\nq\r\n$1\r\n1\r\n");
}

#[test]
fn what_waits_is_in_the_account() {
    let shared = Shared::new(Settings::default(), None);
    let mut harness = Harness::new(Arc::clone(&shared));
    let waiter = harness.connect();
    let before = shared.clients_bytes();
    let keys: Vec<String> = (0..1000).map(|number| format!("key:{number}")).collect();
    assert_eq!(harness.talk(waiter, &format!("BLPOP {} 0", keys.join(" "))), "");
    assert!(shared.clients_bytes() > before + 100_000);
    harness.frontend.check_invariants();
    harness.frontend.close(waiter);
    settle(&mut harness);
    harness.frontend.check_invariants();
}
