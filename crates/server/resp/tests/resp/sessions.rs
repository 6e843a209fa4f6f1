//! What a connection and the node say about themselves, in both protocols.

use quorate_resp::{Settings, Shared, limits};
use quorate_resp_harness::Harness;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

#[test]
fn resp3_forms() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(
        harness.talk(id, "HELLO 3 SETNAME me"),
        "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n\
         $2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
         $7\r\nmodules\r\n*0\r\n"
    );
    assert_eq!(harness.talk(id, "GET a"), "_\r\n");
    assert_eq!(harness.talk(id, "MGET a b"), "*2\r\n_\r\n_\r\n");
    assert_eq!(harness.talk(id, "CONFIG GET timeout"), "%1\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    assert!(harness.talk(id, "INFO server").starts_with('='));
    assert!(harness.talk(id, "CLIENT INFO").contains("\r\ntxt:id=1 "));
    assert!(harness.talk(id, "HELLO 2").starts_with("*14\r\n"));
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
}

#[test]
fn a_reply_has_the_protocol_of_its_command() {
    let mut harness = harness();
    harness.backend.local_reads = false;
    let id = harness.connect();
    let output = harness.talk(id, "GET a\r\nMGET a b\r\nHELLO 3\r\nGET a\r\nMGET a b");
    assert!(output.starts_with("$-1\r\n*2\r\n$-1\r\n$-1\r\n%7\r\n"));
    assert!(output.ends_with("*0\r\n_\r\n*2\r\n_\r\n_\r\n"));
}

#[test]
fn the_list_of_clients_covers_all_lanes() {
    let shared = Shared::new(Settings::default(), None);
    let (mut one, mut two) = (Harness::new(shared.clone()), Harness::new(shared));
    let first = one.connect();
    let second = two.connect();
    one.talk(first, "CLIENT SETNAME alice");
    one.talk(first, "SELECT 3\r\nMULTI\r\nPING");
    two.talk(second, "CLIENT SETINFO LIB-NAME lettuce");
    two.pass(2000);
    let list = two.talk(second, "CLIENT LIST");
    let alice = list.lines().find(|line| line.contains("name=alice")).unwrap();
    for part in ["id=1 ", " db=3 ", " multi=1 ", " flags=x ", " cmd=multi ", " age=2 ", " resp=2 "]
    {
        assert!(alice.contains(part), "{part} is missing in {alice}");
    }
    // What has been sent is owed no longer, and the command itself is in the buffer.
    assert!(list.contains(" qbuf=13 ") && !list.contains(" obl=1") && list.contains(" obl=0 "));
    let all = two.talk(second, "COMMAND LIST");
    assert!(all.contains("\r\nget\r\n") && all.contains("\r\nclient|list\r\n"), "{all}");
    assert!(list.contains("lib-name=lettuce") && list.contains("cmd=client|list"), "{list}");
    let only = two.talk(second, "CLIENT LIST ID 2 77");
    assert!(only.contains("id=2 ") && !only.contains("id=1 "));
    one.frontend.close(first);
    assert!(!two.talk(second, "CLIENT LIST").contains("alice"));
}

#[test]
fn clients_of_any_lane_can_be_killed() {
    let shared = Shared::new(Settings::default(), None);
    let (mut one, mut two) = (Harness::new(shared.clone()), Harness::new(shared.clone()));
    let (first, second, third) = (one.connect(), two.connect(), one.connect());
    assert_eq!(one.talk(first, "CLIENT KILL ID 2\r\nCLIENT KILL ID 2"), ":1\r\n:0\r\n");
    assert_eq!(shared.connected(), 2);
    two.pass(1000);
    assert!(two.frontend.wants_close(second));
    assert_eq!(one.talk(first, "CLIENT KILL TYPE normal"), ":1\r\n");
    assert!(one.frontend.wants_close(third));
    // Oneself last, and not before the answer.
    assert_eq!(one.talk(first, "CLIENT KILL SKIPME no\r\nPING"), ":1\r\n");
    assert!(one.frontend.wants_close(first));
}

#[test]
fn settings_apply_to_all_lanes() {
    let shared = Shared::new(Settings::default(), None);
    let (mut one, mut two) = (Harness::new(shared.clone()), Harness::new(shared));
    let (first, second) = (one.connect(), two.connect());
    one.talk(first, "CONFIG SET requirepass secret");
    // Who was connected before stays in; who comes later must know it.
    assert_eq!(two.talk(second, "PING"), "+PONG\r\n");
    let third = two.connect();
    assert_eq!(two.talk(third, "PING"), "-NOAUTH Authentication required.\r\n");
    assert_eq!(two.talk(third, "AUTH secret"), "+OK\r\n");
    assert_eq!(two.talk(third, "PING"), "+PONG\r\n");
}

#[test]
fn who_does_not_authenticate_is_disconnected() {
    let mut harness = Harness::new(Shared::new(Settings::default(), Some("secret".to_owned())));
    let (owing, welcome) = (harness.connect(), harness.connect());
    harness.talk(welcome, "AUTH secret");
    for passed in 0..=limits::AUTH_MS / 1000 {
        assert!(!harness.frontend.wants_close(owing), "after {passed} s");
        harness.pass(1000);
        // Saying something is not enough.
        harness.talk(owing, "PING");
    }
    harness.pass(1000);
    harness.talk(welcome, "PING");
    assert!(harness.frontend.wants_close(owing));
    assert!(!harness.frontend.wants_close(welcome));
}

#[test]
fn who_guesses_passwords_is_disconnected() {
    let mut harness = Harness::new(Shared::new(Settings::default(), Some("secret".to_owned())));
    let id = harness.connect();
    let mut backoff = limits::AUTH_BACKOFF_MS;
    for _ in 1..limits::AUTH_FAILURES_MAX {
        assert_eq!(harness.talk(id, "AUTH guess\r\nPING"), "");
        harness.pass(backoff - 1);
        assert_eq!(harness.talk(id, ""), "", "it is held back");
        harness.pass(1);
        let replies = harness.talk(id, "");
        assert!(replies.starts_with("-WRONGPASS") && replies.contains("-NOAUTH"), "{replies}");
        assert!(!harness.frontend.wants_close(id));
        backoff *= 2;
    }
    assert!(harness.talk(id, "AUTH guess").starts_with("-WRONGPASS"));
    assert_eq!(harness.talk(id, "AUTH secret"), "", "it is too late");
    assert!(harness.frontend.wants_close(id));
}

#[test]
fn info_has_the_sections_that_were_asked_for() {
    let mut harness = harness();
    let id = harness.connect();
    harness.backend.longest_turns = vec![0, 1234];
    harness.talk(id, "SET a 1 EX 100");
    harness.talk(id, "GET a\r\nGET b\r\nINCR\r\nINCRBY a x");
    let all = harness.talk(id, "INFO everything");
    for line in [
        "# Server\r\nredis_version:7.0.15\r\n",
        "connected_clients:1\r\n",
        "maxmemory_policy:noeviction\r\n",
        "role:master\r\n",
        "# CPU\r\nused_cpu_sys:0.000000\r\n",
        "db0:keys=1,expires=1,avg_ttl=0\r\n",
        "keyspace_hits:1\r\nkeyspace_misses:1\r\n",
        "total_error_replies:2\r\n",
        "# Errorstats\r\nerrorstat_ERR:count=2\r\n",
        "cmdstat_get:calls=2,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=0\r\n",
        "cmdstat_incr:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0\r\n",
        "cmdstat_incrby:calls=1,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=1\r\n",
        "# Quorate\r\nquorate_version:test\r\ncluster_name:a name\r\nnode:1\r\n",
        "unsettled_updates:3\r\n",
        "lane0:longest_turn_usec=0\r\nlane1:longest_turn_usec=1234\r\n",
        "keyspace0:name=db0,engine=memory,replicas=1,live_replicas=3,keys=1\r\n",
    ] {
        assert!(all.contains(line), "{line} is missing in {all}");
    }
    assert!(!harness.talk(id, "INFO").contains("# Commandstats"));
    let two = harness.talk(id, "INFO cpu KEYSPACE");
    assert_eq!(two.matches("# ").count(), 2);
    harness.talk(id, "CONFIG RESETSTAT");
    assert!(!harness.talk(id, "INFO errorstats").contains("errorstat_"));
    // Commands of a block count like others.
    harness.talk(id, "MULTI\r\nSET a x\r\nINCR a\r\nAUTH x\r\nEXEC");
    let stats = harness.talk(id, "INFO commandstats errorstats");
    for line in [
        "errorstat_ERR:count=2\r\n",
        "cmdstat_auth:calls=1,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=1\r\n",
        "cmdstat_set:calls=1,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=0\r\n",
        "cmdstat_incr:calls=1,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=1\r\n",
    ] {
        assert!(stats.contains(line), "{line} is missing in {stats}");
    }
    harness.talk(id, "CONFIG RESETSTAT");
    assert!(harness.talk(id, "INFO stats").contains("total_commands_processed:1\r\n"));
    assert!(!harness.talk(id, "INFO quorate").contains("longest_turn"), "the backend was told");
}

#[test]
fn scan_goes_through_everything() {
    let mut harness = harness();
    let id = harness.connect();
    for number in 0..25 {
        harness.talk(id, &format!("SET k{number} v"));
    }
    let mut seen = 0;
    let mut cursor = "0".to_owned();
    loop {
        let reply = harness.talk(id, &format!("SCAN {cursor} COUNT 7 MATCH k*"));
        let lines: Vec<&str> = reply.lines().collect();
        seen += lines.iter().filter(|line| line.starts_with('k')).count();
        cursor = lines[2].to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, 25);
    assert!(harness.talk(id, "KEYS k1?").starts_with("*10\r\n"));
    assert_eq!(harness.talk(id, "MEMORY USAGE k1"), ":3\r\n");
    assert!(harness.talk(id, "RANDOMKEY").starts_with("$2\r\nk"));
}

#[test]
fn time_is_the_drivers() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(harness.talk(id, "TIME"), "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n");
    assert!(harness.talk(id, "LOLWUT").contains("Quorate ver. test\n"));
}
