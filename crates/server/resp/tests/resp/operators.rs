//! What operators and test suites ask of a node: `SLOWLOG`, `LATENCY`, `MONITOR`, `CLIENT PAUSE`,
//! `DEBUG`, and commands that answer why they are not done.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_resp::{Settings, Shared, limits};
use quorate_resp_harness::Harness;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

#[test]
fn an_op_that_took_long_is_in_the_slow_log_with_its_arguments() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "CLIENT SETNAME me");
    harness.talk(id, "CONFIG SET latency-monitor-threshold 15");
    let long = "x".repeat(200);
    harness.feed(id, format!("SET key {long}\r\n").as_bytes());
    harness.pass(20);
    assert!(harness.complete_one());
    assert_eq!(harness.take(id), b"+OK\r\n");
    let log = harness.talk(id, "SLOWLOG GET");
    assert!(log.starts_with("*1\r\n*6\r\n:0\r\n:"), "{log}");
    assert!(log.contains(&format!("$3\r\nkey\r\n$147\r\n{}... (72 more bytes)", "x".repeat(128))));
    assert!(log.ends_with("\r\n$2\r\nme\r\n"), "{log}");
    // What is quick is not.
    harness.talk(id, "SET key v");
    assert_eq!(harness.talk(id, "SLOWLOG LEN"), ":1\r\n");
    let spikes = harness.talk(id, "LATENCY LATEST");
    assert!(spikes.starts_with("*1\r\n*4\r\n$7\r\ncommand\r\n"), "{spikes}");
    assert!(spikes.ends_with(":20\r\n:20\r\n"), "{spikes}");
    assert!(
        harness
            .talk(id, "LATENCY HISTOGRAM set")
            .contains("$3\r\nset\r\n*4\r\n$5\r\ncalls\r\n:2\r\n")
    );
    assert!(harness.talk(id, "INFO commandstats").contains("cmdstat_set:calls=2,usec=2000"));
    assert_eq!(harness.talk(id, "LATENCY RESET"), ":1\r\n");
    assert_eq!(harness.talk(id, "SLOWLOG RESET"), "+OK\r\n");
    assert_eq!(harness.talk(id, "SLOWLOG LEN"), ":0\r\n");
    // Nothing is logged if that is wanted.
    harness.talk(id, "CONFIG SET slowlog-log-slower-than -1");
    harness.feed(id, b"SET key v\r\n");
    harness.pass(20);
    harness.complete_one();
    harness.take(id);
    assert_eq!(harness.talk(id, "SLOWLOG LEN"), ":0\r\n");
}

#[test]
fn every_command_is_in_the_slow_log_if_that_is_wanted() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "CONFIG SET slowlog-log-slower-than 0");
    harness.talk(id, "SLOWLOG RESET");
    // What is queued is no command yet, and what is unknown is none.
    harness.send(id, b"PING\r\nMULTI\r\nPING\r\nDISCARD\r\nNONSENSE\r\nECHO a\r\nSET k v\r\n");
    let log = harness.talk(id, "SLOWLOG GET -1");
    let words: Vec<&str> =
        log.lines().filter(|line| line.starts_with(char::is_alphabetic)).collect();
    assert_eq!(
        words,
        ["SET", "k", "v", "ECHO", "a", "DISCARD", "MULTI", "PING", "SLOWLOG", "RESET"]
    );
}

#[test]
fn a_command_that_sleeps_takes_that_long() {
    let settings = Settings::default();
    settings.debug_command.store(2, Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let id = harness.connect();
    harness.talk(id, "CONFIG SET latency-monitor-threshold 100");
    harness.feed(id, b"DEBUG SLEEP 0.2\r\n");
    harness.pass(300);
    assert_eq!(harness.take(id), b"+OK\r\n");
    let log = harness.talk(id, "SLOWLOG GET");
    assert!(log.contains(":200000\r\n*3\r\n$5\r\nDEBUG\r\n"), "{log}");
    assert!(harness.talk(id, "LATENCY LATEST").ends_with(":200\r\n:200\r\n"));
    let stats = harness.talk(id, "INFO latencystats");
    assert!(
        stats.contains("latency_percentiles_usec_debug:p50=262144.000,p99=262144.000,"),
        "{stats}"
    );
}

#[test]
fn histograms_count_every_call_since_they_were_reset() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "CLIENT ID");
    harness.talk(id, "SET k v");
    assert!(harness.talk(id, "MULTI\r\nGET k\r\nCONFIG RESETSTAT\r\nEXEC").ends_with("+OK\r\n"));
    assert_eq!(harness.talk(id, "CONFIG RESETSTAT"), "+OK\r\n");
    assert!(harness.talk(id, "LATENCY HISTOGRAM").starts_with("*2\r\n$16\r\nconfig|resetstat\r\n"));
    harness.talk(id, "SET k v");
    harness.talk(id, "GET k");
    harness.talk(id, "GET k");
    let one = |name: &str, calls: u64| {
        let length = name.len();
        format!(
            "${length}\r\n{name}\r\n*4\r\n$5\r\ncalls\r\n:{calls}\r\n$14\r\nhistogram_usec\r\n*2\r\n:1\r\n:{calls}\r\n"
        )
    };
    let wanted =
        [("config|resetstat", 1), ("get", 2), ("set", 1)].map(|(name, calls)| one(name, calls));
    assert_eq!(
        harness.talk(id, "LATENCY HISTOGRAM config get set client"),
        format!("*6\r\n{}", wanted.concat())
    );
    harness.talk(id, "CONFIG SET latency-tracking-info-percentiles \"0 99.9\"");
    assert!(
        harness
            .talk(id, "INFO latencystats")
            .contains("latency_percentiles_usec_get:p0=1.000,p99.9=1.000\r\n")
    );
}

#[test]
fn the_slow_log_is_bounded() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "CONFIG SET slowlog-max-len 3");
    for number in 0..5 {
        harness.feed(id, format!("SET key {number}\r\n").as_bytes());
        harness.pass(20);
        harness.complete_one();
        harness.take(id);
    }
    let log = harness.talk(id, "SLOWLOG GET -1");
    assert!(log.starts_with("*3\r\n*6\r\n:4\r\n"), "{log}");
}

#[test]
fn a_monitor_sees_the_commands_of_other_clients_and_no_password() {
    let mut harness = harness();
    let (monitor, other) = (harness.connect(), harness.connect());
    assert_eq!(harness.talk(monitor, "MONITOR"), "+OK\r\n");
    harness.talk(other, "SET a \"b c\\n\"");
    harness.talk(other, "CONFIG GET maxmemory");
    harness.talk(other, "AUTH secret");
    harness.talk(other, "HELLO 2 AUTH default secret");
    let told = String::from_utf8(harness.take(monitor)).unwrap();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 3, "administrators are not told of: {told}");
    assert!(lines[0].ends_with("] \"SET\" \"a\" \"b c\\n\""), "{told}");
    assert!(lines[1].ends_with("] \"AUTH\" \"(redacted)\""), "{told}");
    assert!(lines[2].ends_with("\"HELLO\" \"2\" \"AUTH\" \"(redacted)\" \"(redacted)\""), "{told}");
    assert!(!told.contains("secret"));
    // It can do other things, and stop.
    assert!(harness.talk(monitor, "RESET").ends_with("+RESET\r\n"));
    harness.talk(other, "GET a");
    assert_eq!(harness.take(monitor), b"");
}

#[test]
fn a_monitor_that_falls_behind_is_disconnected_and_stops_nobody() {
    let shared = Shared::new(Settings::default(), None);
    // Its lane does nothing meanwhile.
    let mut asleep = Harness::new(Arc::clone(&shared));
    let monitor = asleep.connect();
    assert_eq!(asleep.talk(monitor, "MONITOR"), "+OK\r\n");
    let mut busy = Harness::new(shared);
    let id = busy.connect();
    let word = "x".repeat(10_000);
    for _ in 0..=limits::MONITOR_BYTES_MAX / word.len() {
        assert_eq!(busy.talk(id, &format!("ECHO {word}")).len(), word.len() + 10);
    }
    assert!(busy.frontend.take_named_others(), "the other lane is told to look");
    asleep.begin_turn();
    assert!(asleep.frontend.wants_close(monitor));
}

#[test]
fn a_pause_holds_writes_or_all_and_ends() {
    let mut harness = harness();
    let (admin, id) = (harness.connect(), harness.connect());
    assert_eq!(harness.talk(admin, "CLIENT PAUSE 1000 WRITE"), "+OK\r\n");
    assert_eq!(harness.talk(id, "GET a"), "$-1\r\n");
    harness.feed(id, b"SET a 1\r\nGET a\r\n");
    assert_eq!(harness.take(id), b"");
    harness.pass(500);
    assert!(!harness.complete_one(), "it was not even submitted");
    harness.pass(600);
    assert!(harness.complete_one() && harness.complete_one());
    assert_eq!(harness.take(id), b"+OK\r\n$1\r\n1\r\n");

    assert_eq!(harness.talk(admin, "CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    // What a block or a script does decides.
    let blocked = |harness: &mut Harness| {
        let info = harness.talk(admin, "INFO clients");
        info.lines().find_map(|line| line.strip_prefix("blocked_clients:").map(str::to_owned))
    };
    harness.talk(id, "MULTI");
    harness.talk(id, "GET a");
    assert_eq!(harness.talk(id, "EXEC"), "*1\r\n$1\r\n1\r\n");
    let reading = "EVAL \"#!lua flags=no-writes\\nreturn redis.call('GET', KEYS[1])\" 1 a";
    assert_eq!(harness.talk(id, reading), "$1\r\n1\r\n");
    let load = reading.replace("EVAL", "SCRIPT LOAD").replace(" 1 a", "");
    let loaded = harness.talk(id, &load);
    let digest = loaded.lines().nth(1).expect("a digest");
    assert_eq!(harness.talk(id, &format!("EVALSHA {digest} 1 a")), "$1\r\n1\r\n");
    assert_eq!(blocked(&mut harness).as_deref(), Some("0"));
    let other = harness.connect();
    harness.talk(id, "MULTI");
    harness.talk(admin, "CLIENT UNPAUSE");
    harness.talk(id, "EVAL \"return 1\" 0");
    harness.talk(admin, "CLIENT PAUSE 100000 WRITE");
    harness.feed(id, b"EXEC\r\n");
    harness.feed(other, b"EVAL \"return 1\" 0\r\n");
    assert_eq!(harness.take(other), b"");
    assert_eq!(blocked(&mut harness).as_deref(), Some("2"));
    assert_eq!(harness.talk(admin, "CLIENT UNPAUSE"), "+OK\r\n");
    harness.pass(limits::WAIT_POLL_MS);
    while harness.complete_one() {}
    assert_eq!(blocked(&mut harness).as_deref(), Some("0"));
    harness.take(id);
    harness.take(other);

    assert_eq!(harness.talk(admin, "CLIENT PAUSE 100000"), "+OK\r\n");
    harness.feed(id, b"PING\r\n");
    assert_eq!(harness.take(id), b"");
    assert_eq!(harness.talk(admin, "CLIENT UNPAUSE"), "+OK\r\n");
    harness.pass(limits::WAIT_POLL_MS);
    assert_eq!(harness.take(id), b"+PONG\r\n");
    for (command, error) in [
        ("CLIENT PAUSE x", "-ERR timeout is not an integer or out of range\r\n"),
        ("CLIENT PAUSE -1", "-ERR timeout is negative\r\n"),
        ("CLIENT PAUSE 1 FOO", "-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n"),
    ] {
        assert_eq!(harness.talk(admin, command), error);
    }
}

#[test]
fn pauses_of_clients_and_of_a_backup_end_by_themselves() {
    let mut harness = harness();
    let admin = harness.connect();
    let is_done = |harness: &mut Harness, command: &str, answer: &str| {
        let client = harness.connect();
        harness.feed(client, format!("{command}\r\n").as_bytes());
        harness.pass(limits::WAIT_POLL_MS);
        while harness.complete_one() {}
        let answered = harness.take(client);
        assert!(answered.is_empty() || answered == answer.as_bytes());
        !answered.is_empty()
    };
    let writes = |harness: &mut Harness| is_done(harness, "SET a 1", "+OK\r\n");
    let reads = |harness: &mut Harness| is_done(harness, "PING", "+PONG\r\n");
    // Nobody's client ends a backup's.
    harness.talk(admin, "CLIENT PAUSE 100000 WRITE BACKUP");
    harness.talk(admin, "CLIENT PAUSE 200000 WRITE");
    harness.talk(admin, "CLIENT UNPAUSE");
    assert!(!writes(&mut harness) && reads(&mut harness));
    // The end of a backup's is no end of a client's, which a longer one of a backup has not prolonged.
    harness.talk(admin, "CLIENT PAUSE 1000");
    harness.talk(admin, "CLIENT PAUSE 0 WRITE BACKUP");
    assert!(!writes(&mut harness) && !reads(&mut harness));
    harness.pass(1000);
    assert!(writes(&mut harness) && reads(&mut harness));
    // When the pause of everything ends, reads go on, and writes wait until the backup's pause ends.
    harness.talk(admin, "CLIENT PAUSE 100000 WRITE BACKUP");
    harness.talk(admin, "CLIENT PAUSE 1000 ALL");
    let reader = harness.connect();
    harness.feed(reader, b"PING\r\n");
    assert_eq!(harness.take(reader), b"");
    harness.pass(1000 + limits::WAIT_POLL_MS);
    assert_eq!(harness.take(reader), b"+PONG\r\n");
    assert!(!writes(&mut harness));
    // The last word of a backup counts.
    harness.talk(admin, "CLIENT PAUSE 500 WRITE BACKUP");
    harness.pass(501);
    assert!(writes(&mut harness));
    assert_eq!(harness.talk(admin, "CLIENT PAUSE 1 WRITE FOR"), "-ERR syntax error\r\n");
}

#[test]
fn debug_is_refused_unless_it_is_allowed() {
    let settings = Settings::default();
    let mut refused = Harness::new(Shared::new(Settings::default(), None));
    let id = refused.connect();
    assert!(refused.talk(id, "DEBUG SLEEP 0").starts_with("-ERR DEBUG command not allowed. If"));
    settings.debug_command.store(2, Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let (id, other) = (harness.connect(), harness.connect());
    harness.feed(id, b"DEBUG SLEEP 0.2\r\nPING\r\n");
    harness.pass(100);
    assert_eq!(harness.take(id), b"");
    assert_eq!(harness.talk(other, "PING"), "+PONG\r\n");
    harness.pass(200);
    assert_eq!(harness.take(id), b"+OK\r\n+PONG\r\n");
    assert_eq!(harness.talk(id, "DEBUG RELOAD"), "+OK\r\n");
    assert_eq!(harness.talk(id, "DEBUG PROTOCOL integer"), ":12345\r\n");
    // Scripts see replies of each type if that is wanted, and nothing else of DEBUG.
    quorate_scripts::install();
    let script = "EVAL \"redis.setresp(3) return redis.call('DEBUG', 'PROTOCOL', 'map')\" 0";
    assert!(harness.talk(id, script).contains("not allowed from script"));
    harness.talk(id, "DEBUG SET-DISABLE-DENY-SCRIPTS 1");
    harness.talk(id, "HELLO 3");
    assert!(harness.talk(id, script).starts_with("%3\r\n"));
    let sleep = "EVAL \"return redis.call('DEBUG', 'SLEEP', '1')\" 0";
    assert!(harness.talk(id, sleep).contains("no command on keys"));
    harness.talk(id, "DEBUG SET-DISABLE-DENY-SCRIPTS 0");
    harness.talk(id, "HELLO 2");
    assert!(harness.talk(id, "DEBUG DIGEST").starts_with("-ERR Quorate has no 'DEBUG DIGEST' yet"));
}

#[test]
fn what_is_not_done_says_why() {
    let mut harness = harness();
    let id = harness.connect();
    for (command, why) in [
        ("BGSAVE", "nothing is on disk"),
        ("LASTSAVE", "nothing is on disk"),
        ("CLUSTER SLOTS", "This instance has cluster support disabled"),
        ("READONLY", "This instance has cluster support disabled"),
        ("REPLICAOF NO ONE", "every replica takes writes"),
        ("CONFIG REWRITE", "is not rewritten"),
        ("SWAPDB 0 1", "can't be exchanged"),
        ("ACL SETUSER x", "one user"),
        ("MIGRATE a 1 b 0 1", "Quorate has no 'MIGRATE' yet"),
    ] {
        let reply = harness.talk(id, command);
        assert!(reply.starts_with("-ERR ") && reply.contains(why), "{command}: {reply}");
    }
    assert_eq!(harness.talk(id, "ROLE"), "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    assert_eq!(harness.talk(id, "ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert_eq!(harness.talk(id, "ACL DRYRUN default GET a"), "+OK\r\n");
    assert_eq!(harness.talk(id, "MODULE LIST"), "*0\r\n");
}

#[test]
fn units_are_pinned_to_live_nodes_where_keys_move() {
    let mut harness = harness();
    let id = harness.connect();
    let fixed = "-ERR keys of this keyspace do not move between nodes; PLACEMENT is for keyspaces whose engine \
                 moves them\r\n";
    for command in ["GET k", "PIN k 1", "UNPIN k"] {
        assert_eq!(harness.talk(id, &format!("PLACEMENT {command}")), fixed);
    }
    harness.backend.moving.insert(1);
    harness.talk(id, "SELECT 1");
    let placed = |pinned: &str| {
        format!(
            "*10\r\n$5\r\nowner\r\n:1\r\n$7\r\naddress\r\n$5\r\none:1\r\n$7\r\nreaders\r\n*1\r\n:1\r\n\
             $5\r\nmoves\r\n:5\r\n$6\r\npinned\r\n{pinned}\r\n"
        )
    };
    assert_eq!(harness.talk(id, "PLACEMENT GET {u}k"), placed("$-1"));
    assert_eq!(harness.talk(id, "PLACEMENT UNPIN u"), ":0\r\n");
    assert_eq!(harness.talk(id, "PLACEMENT PIN {u}other 1"), "+OK\r\n");
    assert_eq!(harness.talk(id, "PLACEMENT GET {u}k"), placed(":1"));
    assert_eq!(harness.talk(id, "PLACEMENT GET k"), placed("$-1"));
    for node in ["2", "3", "x", "-1"] {
        assert_eq!(
            harness.talk(id, &format!("PLACEMENT PIN u {node}")),
            format!(
                "-ERR '{node}' is no live node to pin to; choose one of 1 (active, one:1), 2 (down, two:2)\r\n"
            )
        );
    }
    assert_eq!(harness.talk(id, "PLACEMENT UNPIN u"), ":1\r\n");
    assert_eq!(harness.talk(id, "PLACEMENT UNPIN u"), ":0\r\n");
    assert!(harness.talk(id, "INFO placement").contains(
        "key_moves:7\r\nkey_moves_per_second:0\r\nlocal_updates_percent:99.9\r\nunits_bounced:2\r\n\
         units_bouncing:1\r\nunits_pinned:0\r\ncopies_dropped:3\r\n"
    ));
    harness.talk(id, "MULTI");
    assert!(harness.talk(id, "PLACEMENT PIN u 1").starts_with("-ERR Command not allowed"));
}

#[test]
fn a_full_table_of_pins_says_so() {
    let mut harness = harness();
    let id = harness.connect();
    harness.backend.moving.insert(0);
    harness.backend.pins = quorate_types::limits::PLACEMENTS_MAX - 1;
    assert_eq!(harness.talk(id, "PLACEMENT PIN u 1"), "+OK\r\n");
    let full = harness.talk(id, "PLACEMENT PIN v 1");
    assert_eq!(
        full,
        "-ERR 1048576 units are pinned, which is the limit PLACEMENTS_MAX; PLACEMENT UNPIN some of them \
         first\r\n"
    );
    assert_eq!(harness.talk(id, "PLACEMENT PIN u 1"), "+OK\r\n", "a pin may be changed");
}
