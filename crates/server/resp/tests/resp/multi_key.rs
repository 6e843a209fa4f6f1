//! Keyspaces whose engine runs transactions: commands over several keys, `WATCH`, `MULTI`, `EXEC`.

use std::fmt::Write;

use quorate_commands::CROSSKEY;
use quorate_machine::{Outcome, Refusal, Rng};
use quorate_resp::{ConnectionId, Settings, Shared};
use quorate_resp_harness::Harness;
use quorate_types::limits;

/// A front end whose keyspace 0 has transactions.
fn harness() -> Harness {
    let mut harness = Harness::new(Shared::new(Settings::default(), None));
    harness.backend.transactional.insert(0);
    harness
}

/// The replies to some lines, without the queueing.
fn run(harness: &mut Harness, id: ConnectionId, lines: &str) -> String {
    harness.talk(id, &lines.replace("; ", "\r\n")).replace("+QUEUED\r\n", "")
}

#[test]
fn a_command_over_any_keys_is_one_transaction() {
    let mut harness = harness();
    harness.backend.local_reads = false;
    let id = harness.connect();
    for (command, reply) in [
        ("SET a 1", "+OK\r\n"),
        ("INCR a", ":2\r\n"),
        ("MSET a 1 b 2", "+OK\r\n"),
        ("MGET a none b a", "*4\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n$1\r\n1\r\n"),
        ("MSETNX c 3 b 3", ":0\r\n"),
        ("EXISTS c", ":0\r\n"),
        ("MSETNX c 3 d 4", ":1\r\n"),
        ("EXISTS a b c a none", ":4\r\n"),
        ("TOUCH a none d", ":2\r\n"),
        ("COPY a b", ":0\r\n"),
        ("COPY a b REPLACE", ":1\r\n"),
        ("RENAME c a", "+OK\r\n"),
        ("RENAME c a", "-ERR no such key\r\n"),
        ("RENAMENX d a", ":0\r\n"),
        ("RENAMENX d c", ":1\r\n"),
        ("MGET a b c d", "*4\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n4\r\n$-1\r\n"),
        ("DEL a a b none", ":2\r\n"),
        ("UNLINK a c", ":1\r\n"),
        ("MGET a b c d", "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n"),
    ] {
        let before = harness.backend.submitted;
        assert_eq!(harness.talk(id, command), reply, "{command}");
        assert_eq!(harness.backend.submitted - before, 1, "{command}");
    }
}

#[test]
fn keyspaces_without_transactions_stay_as_they_are() {
    let mut harness = Harness::new(Shared::new(Settings::default(), None));
    let id = harness.connect();
    let crosskey = format!("-{CROSSKEY}\r\n");
    for command in ["MSET a 1 b 2", "COPY a b", "RENAME a b", "RENAMENX a b", "MSETNX a 1 b 2"] {
        assert_eq!(harness.talk(id, command), crosskey, "{command}");
    }
    assert_eq!(harness.talk(id, "SELECT 1"), "+OK\r\n");
    assert_eq!(harness.talk(id, "MSET a 1 b 2"), "+OK\r\n");
    assert_eq!(harness.talk(id, "DEL a b"), ":2\r\n");
}

/// A call that says another number of keys than it has names none, so no engine gets it.
#[test]
fn a_call_whose_keys_are_not_to_be_found_is_an_error() {
    let plain = || Harness::new(Shared::new(Settings::default(), None));
    for (mut harness, reads) in
        [(plain(), true), (plain(), false), (harness(), true), (harness(), false)]
    {
        harness.backend.local_reads = reads;
        let id = harness.connect();
        let zero = "-ERR numkeys should be greater than 0\r\n";
        for (command, reply) in [
            ("ZUNION 3 a b", "-ERR syntax error\r\n"),
            ("ZINTERCARD x a", "-ERR value is not an integer or out of range\r\n"),
            ("LMPOP 5 a LEFT", "-ERR syntax error\r\n"),
            ("ZMPOP 0 a MIN", zero),
            ("SINTERCARD 0 a", zero),
        ] {
            assert_eq!(harness.talk(id, command), reply, "{command}");
            let block = run(&mut harness, id, &format!("MULTI; {command}; PING; EXEC"));
            assert_eq!(block, format!("+OK\r\n*2\r\n{reply}+PONG\r\n"), "{command}");
            let block = run(&mut harness, id, &format!("MULTI; SET a 1; {command}; DEL a; EXEC"));
            assert_eq!(block, format!("+OK\r\n*3\r\n+OK\r\n{reply}:1\r\n"), "{command}");
        }
    }
}

#[test]
fn one_key_is_read_locally_and_several_never() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "MSET a 1 b 2");
    let counts = |harness: &Harness| (harness.backend.reads, harness.backend.submitted);
    assert_eq!(counts(&harness), (0, 1));
    assert_eq!(harness.talk(id, "GET a"), "$1\r\n1\r\n");
    assert_eq!(harness.talk(id, "MGET a a"), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    assert_eq!(counts(&harness), (2, 1));
    assert_eq!(harness.talk(id, "MGET a b"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(harness.talk(id, "EXISTS a b"), ":2\r\n");
    assert_eq!(counts(&harness), (2, 3));
    // A transaction in flight may see more than this replica holds: no later read goes back.
    harness.feed(id, b"MGET a b\r\nGET a\r\n");
    assert_eq!(counts(&harness), (2, 5));
    while harness.complete_one() {}
    harness.take(id);
    // What the replica can't answer is a transaction too.
    harness.backend.local_reads = false;
    assert_eq!(harness.talk(id, "GET a"), "$1\r\n1\r\n");
    assert_eq!(counts(&harness), (2, 6));
}

#[test]
fn exec_over_several_keys_is_one_transaction() {
    let mut harness = harness();
    let id = harness.connect();
    let block = "MULTI; SET a 1; MSET b 2 c 3; PING; INCRBY a 4; MGET a b c; RENAME b d; DEL c x; \
                 EXISTS a b c d; EXEC";
    assert_eq!(
        run(&mut harness, id, block),
        "+OK\r\n*8\r\n+OK\r\n+OK\r\n+PONG\r\n:5\r\n*3\r\n$1\r\n5\r\n$1\r\n2\r\n$1\r\n3\r\n+OK\r\n\
         :1\r\n:2\r\n"
    );
    assert_eq!(harness.backend.submitted, 1);
    assert_eq!(run(&mut harness, id, "MULTI; EXEC"), "+OK\r\n*0\r\n");
    assert_eq!(run(&mut harness, id, "MULTI; ECHO x; EXEC"), "+OK\r\n*1\r\n$1\r\nx\r\n");
    assert_eq!(harness.backend.submitted, 1);
}

#[test]
fn an_error_at_run_time_undoes_nothing() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(
        run(
            &mut harness,
            id,
            "MULTI; SET a x; INCR a; RENAME none b; SET b 2; MSETNX b 1 c 1; EXEC"
        ),
        "+OK\r\n*5\r\n+OK\r\n-ERR value is not an integer or out of range\r\n-ERR no such key\r\n\
         +OK\r\n:0\r\n"
    );
    assert_eq!(harness.talk(id, "MGET a b c"), "*3\r\n$1\r\nx\r\n$1\r\n2\r\n$-1\r\n");
}

#[test]
fn an_error_while_queueing_aborts() {
    let mut harness = harness();
    let id = harness.connect();
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    for bad in ["MSET a", "NOSUCH a b", "GET", "WAIT"] {
        let reply =
            run(&mut harness, id, &format!("WATCH a b; MULTI; SET a 1; {bad}; SET b 1; EXEC"));
        assert!(reply.ends_with(abort), "{bad}: {reply}");
    }
    assert_eq!(harness.talk(id, "EXISTS a b"), ":0\r\n");
    // A changed watch doesn't hide it.
    let other = harness.connect();
    harness.talk(id, "WATCH a\r\nMULTI\r\nGET");
    harness.talk(other, "SET a 1");
    assert_eq!(harness.talk(id, "EXEC"), abort);
    // An argument that is wrong only when it runs does not abort.
    let odd = "-ERR wrong number of arguments for 'mset' command\r\n";
    assert_eq!(
        run(&mut harness, id, "MULTI; MSET a 1 b; SET b 1; EXEC"),
        format!("+OK\r\n*2\r\n{odd}+OK\r\n")
    );
}

#[test]
fn each_watched_key_counts() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    harness.talk(two, "MSET a 1 b 1");
    let block = "MULTI; SET b 9; SET x 9; CLIENT SETNAME me; EXEC";
    for change in
        ["SET a 2", "DEL b", "SET c 1", "RENAME a y", "MSET q 1 c 1", "COPY c b", "APPEND c x"]
    {
        harness.talk(two, "MSET a 1\r\nDEL x");
        let before = harness.backend.submitted;
        assert_eq!(harness.talk(one, "WATCH a b c a"), "+OK\r\n");
        assert_eq!(harness.backend.submitted - before, 1, "all versions at once");
        harness.talk(two, change);
        assert_eq!(run(&mut harness, one, block), "+OK\r\n*-1\r\n", "{change}");
        assert_eq!(harness.talk(one, "EXISTS x"), ":0\r\n");
        assert_eq!(harness.talk(one, "CLIENT GETNAME"), "$-1\r\n");
    }
    // Other keys don't count, nor do changes before the watch, nor what changed nothing.
    harness.talk(one, "SET a 3");
    harness.talk(one, "WATCH a b\r\nWATCH c none");
    harness.talk(two, "SET d 1\r\nDEL none\r\nMSETNX a 1 none 1\r\nRENAMENX a b\r\nMGET a b c");
    assert_eq!(run(&mut harness, one, block), "+OK\r\n*3\r\n+OK\r\n+OK\r\n+OK\r\n");
    harness.talk(one, "HELLO 3\r\nWATCH a b");
    harness.talk(two, "SET b 1");
    assert_eq!(run(&mut harness, one, block), "+OK\r\n_\r\n");
}

#[test]
fn watches_are_checked_without_any_command_on_keys() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    for block in ["MULTI; EXEC", "MULTI; PING; EXEC", "MULTI; CLIENT SETNAME me; EXEC"] {
        harness.talk(one, "WATCH a b");
        harness.talk(two, "SET b 1");
        assert_eq!(run(&mut harness, one, block), "+OK\r\n*-1\r\n", "{block}");
    }
    assert_eq!(harness.talk(one, "CLIENT GETNAME"), "$-1\r\n");
    assert_eq!(run(&mut harness, one, "WATCH a b; MULTI; EXEC"), "+OK\r\n+OK\r\n*0\r\n");
    assert_eq!(
        run(&mut harness, one, "WATCH a b; MULTI; PING; EXEC"),
        "+OK\r\n+OK\r\n*1\r\n+PONG\r\n"
    );
}

#[test]
fn watches_are_forgotten() {
    let mut harness = harness();
    let (one, two) = (harness.connect(), harness.connect());
    for forget in ["UNWATCH", "MULTI\r\nDISCARD", "RESET", "MULTI\r\nPING\r\nEXEC", "MULTI\r\nEXEC"]
    {
        harness.talk(one, "WATCH a b");
        harness.talk(one, forget);
        harness.talk(two, "MSET a 1 b 1");
        assert_eq!(run(&mut harness, one, "MULTI; PING; EXEC"), "+OK\r\n*1\r\n+PONG\r\n");
    }
    // A second WATCH keeps what the first one saw, and asks for nothing it knows.
    harness.talk(one, "WATCH a b");
    harness.talk(two, "SET a 2");
    let before = harness.backend.submitted;
    assert_eq!(harness.talk(one, "WATCH b a"), "+OK\r\n");
    assert_eq!(harness.backend.submitted, before);
    assert_eq!(run(&mut harness, one, "WATCH a c; MULTI; PING; EXEC"), "+OK\r\n+OK\r\n*-1\r\n");
}

#[test]
fn a_watched_key_that_expired_aborts() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SET a 1\r\nSET b 1 PX 100\r\nSET c 1 PX 50");
    harness.pass(50);
    // What had expired before the watch is absent, and stays so.
    harness.talk(id, "WATCH a c");
    harness.pass(10);
    assert_eq!(run(&mut harness, id, "MULTI; PING; EXEC"), "+OK\r\n*1\r\n+PONG\r\n");
    harness.talk(id, "WATCH a b");
    harness.pass(40);
    assert_eq!(run(&mut harness, id, "MULTI; PING; EXEC"), "+OK\r\n*-1\r\n");
}

#[test]
fn a_transaction_stays_in_one_keyspace() {
    let mut harness = Harness::new(Shared::new(Settings::default(), None));
    harness.backend.transactional.insert(2);
    let id = harness.connect();
    for block in [
        "SELECT 1; MULTI; SET a 1; SELECT 2; SET a 1; EXEC",
        "SELECT 1; MULTI; SET a 1; SELECT 0; SET a 1; EXEC",
        "SELECT 0; MULTI; SET a 1; SELECT 1; SET a 1; EXEC",
        "SELECT 0; WATCH a; SELECT 1; MULTI; SET a 1; EXEC",
        "SELECT 1; WATCH a b; SELECT 2; MULTI; SET a 1; EXEC",
        "SELECT 1; WATCH a; SELECT 0; WATCH a; MULTI; PING; EXEC",
    ] {
        let reply = run(&mut harness, id, block);
        let last = reply.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("-CROSSKEY a transaction stays in one keyspace"),
            "{block}: {reply}"
        );
    }
    for block in [
        "MULTI; FLUSHDB; SET a 1; EXEC",
        "MULTI; SET a 1; FLUSHALL; EXEC",
        "MULTI; FLUSHDB; FLUSHDB; EXEC",
        "WATCH a b; MULTI; FLUSHDB; EXEC",
    ] {
        let reply = run(&mut harness, id, &format!("SELECT 1; {block}"));
        let last = reply.lines().last().unwrap_or_default();
        assert!(last.starts_with("-CROSSKEY a flush is not part of a transaction"), "{reply}");
    }
    for database in 0..3 {
        assert_eq!(run(&mut harness, id, &format!("SELECT {database}; DBSIZE")), "+OK\r\n:0\r\n");
    }
    // Watches and keys of the block in one keyspace, which is not the one that MULTI began in.
    assert_eq!(
        run(&mut harness, id, "SELECT 1; WATCH a b; SELECT 2; MULTI; SELECT 1; MSET a 1 b 1; EXEC"),
        "+OK\r\n+OK\r\n+OK\r\n+OK\r\n*2\r\n+OK\r\n+OK\r\n"
    );
    assert_eq!(
        run(&mut harness, id, "DBSIZE; MULTI; FLUSHDB; DBSIZE; EXEC"),
        ":2\r\n+OK\r\n*2\r\n+OK\r\n:0\r\n"
    );
}

#[test]
fn what_did_not_happen_says_why() {
    let mut harness = harness();
    let id = harness.connect();
    for (outcome, reply) in [
        (
            Outcome::Refused(Refusal::Conflict),
            "-TRYAGAIN other transactions on the same keys came first each time; this one did not \
             happen, try again\r\n",
        ),
        (Outcome::Refused(Refusal::Busy), "-TRYAGAIN too many"),
        (
            Outcome::Refused(Refusal::TooLarge),
            "-ERR a transaction reads and writes at most 16384 keys",
        ),
        (Outcome::Refused(Refusal::NotServing), "-CLUSTERDOWN "),
        (Outcome::Unknown, "-UNKNOWN the operation may or may not have happened"),
    ] {
        for lines in ["MSET a 1 b 1", "DEL a b", "MGET a b", "WATCH a b"] {
            harness.backend.refuse.push_back(outcome.clone());
            let answer = run(&mut harness, id, lines);
            assert!(answer.starts_with(reply), "{lines}: {answer}");
        }
        harness.backend.refuse.push_back(outcome.clone());
        let answer = run(&mut harness, id, "MULTI; SET a 1; SET b 1; CLIENT SETNAME me; EXEC");
        assert!(answer.starts_with(&format!("+OK\r\n{reply}")), "{answer}");
        assert_eq!(harness.talk(id, "CLIENT GETNAME"), "$-1\r\n");
        // Nothing is watched after a WATCH that failed.
        assert_eq!(run(&mut harness, id, "MULTI; PING; EXEC"), "+OK\r\n*1\r\n+PONG\r\n");
    }
    harness.backend.serving = Err("this node is catching up");
    assert_eq!(harness.talk(id, "MSET a 1 b 1"), "-CLUSTERDOWN this node is catching up\r\n");
}

#[test]
fn a_transaction_has_a_largest_size() {
    let mut harness = harness();
    let id = harness.connect();
    let most = limits::TXN_KEYS_MAX;
    let refusal = format!(
        "-ERR a transaction reads and writes at most {most} keys, and {} bytes of keys and values; \
         this one is larger and did not happen, split it\r\n",
        limits::TXN_BYTES_MAX
    );
    let mut send = |text: &str| String::from_utf8(harness.send(id, text.as_bytes())).unwrap();
    assert_eq!(send(&on_keys("EXISTS", most)), ":0\r\n");
    assert_eq!(send(&on_keys("EXISTS", most + 1)), refusal);
    let block = format!("MULTI\r\n{}SET x 1\r\nEXEC\r\n", on_keys("DEL", most));
    assert_eq!(send(&block), format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n{refusal}"));
    assert_eq!(send("EXISTS x\r\n"), ":0\r\n");
    // As many keys can be watched as a transaction could check.
    assert_eq!(send(&on_keys("WATCH", most + 1)), refusal);
    assert_eq!(send(&on_keys("WATCH", most)), "+OK\r\n");
    assert_eq!(send(&on_keys("WATCH", most)), "+OK\r\n");
    assert_eq!(send("WATCH x\r\n"), refusal);
    assert_eq!(send("MULTI\r\nEXEC\r\nWATCH x\r\n"), "+OK\r\n*0\r\n+OK\r\n");
    send("UNWATCH\r\n");
    // Nor more bytes of keys.
    let long = |number: usize| format!("WATCH {}{number}\r\n", "k".repeat(60_000));
    let fitting = limits::TXN_BYTES_MAX / 60_002;
    for number in 10..10 + fitting {
        assert_eq!(send(&long(number)), "+OK\r\n");
    }
    assert_eq!(send(&long(99)), refusal);
    assert_eq!(send(&format!("UNWATCH\r\n{}", long(99))), "+OK\r\n+OK\r\n");
}

/// A command on so many keys, as clients encode it.
fn on_keys(command: &str, count: usize) -> String {
    let mut text = format!("*{}\r\n${}\r\n{command}\r\n", count + 1, command.len());
    for number in 0..count {
        write!(text, "$6\r\nk{number:05}\r\n").expect("a string takes everything");
    }
    text
}

#[test]
fn replies_keep_their_order_however_transactions_complete() {
    for seed in 0..50 {
        let mut harness = harness();
        harness.backend.shuffle = Some(Rng::new(seed));
        harness.backend.local_reads = seed % 2 == 0;
        let id = harness.connect();
        let mut input = String::new();
        let mut expected = String::new();
        for n in 0..10 {
            write!(
                input,
                "MSET a{n} 1 b{n} 2\r\nMULTI\r\nINCR a{n}\r\nINCR b{n}\r\nPING {n}\r\nEXEC\r\n\
                 GET a{n}\r\nRENAME a{n} b{n}\r\nMGET a{n} b{n}\r\nWATCH b{n}\r\nMULTI\r\n\
                 DEL b{n} a{n}\r\nEXEC\r\n"
            )
            .expect("a string takes everything");
            write!(
                expected,
                "+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:2\r\n:3\r\n$1\r\n{n}\r\n\
                 $1\r\n2\r\n+OK\r\n*2\r\n$-1\r\n$1\r\n2\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"
            )
            .expect("a string takes everything");
        }
        let output = harness.send(id, input.as_bytes());
        assert_eq!(String::from_utf8(output).unwrap(), expected, "seed {seed}");
    }
}

/// Two accounts of one client: what it read of each, and what it wants to move.
struct Transfer {
    id: ConnectionId,
    from: u64,
    to: u64,
    step: u8,
    input: Vec<u8>,
}

#[test]
fn transfers_that_watch_never_lose_money() {
    const ACCOUNTS: u64 = 4;
    let mut committed = 0;
    let mut failed = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut harness = harness();
        harness.backend.shuffle = Some(Rng::new(seed + 1));
        harness.backend.local_reads = seed % 2 == 0;
        let bank = harness.connect();
        for account in 0..ACCOUNTS {
            harness.talk(bank, &format!("SET n{account} 100"));
        }
        let mut clients: Vec<Transfer> = (0..5)
            .map(|_| Transfer { id: harness.connect(), from: 0, to: 0, step: 0, input: Vec::new() })
            .collect();
        for _ in 0..600 {
            if rng.below(2) == 0 {
                harness.complete_one();
                continue;
            }
            let client = &mut clients[rng.below(5) as usize];
            let (taken, from, to) = (harness.take(client.id), client.from, client.to);
            client.input.extend(taken);
            let text = String::from_utf8_lossy(&client.input).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let line = match (client.step, lines.as_slice()) {
                (0, _) => {
                    client.from = rng.below(ACCOUNTS);
                    client.to = (client.from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
                    format!("WATCH n{0} n{1}\r\nGET n{0}\r\nGET n{1}", client.from, client.to)
                }
                (1, ["+OK", _, has, _, gets]) => {
                    let has: i64 = has.parse().unwrap();
                    let gets: i64 = gets.parse().unwrap();
                    format!("MULTI\r\nSET n{from} {}\r\nSET n{to} {}\r\nEXEC", has - 7, gets + 7)
                }
                (2, ["+OK", "+QUEUED", "+QUEUED", "*-1"]) => {
                    failed += 1;
                    String::new()
                }
                (2, ["+OK", "+QUEUED", "+QUEUED", "*2", "+OK", "+OK"]) => {
                    committed += 1;
                    String::new()
                }
                _ => continue,
            };
            client.input.clear();
            client.step = (client.step + 1) % 3;
            if !line.is_empty() {
                harness.feed(client.id, format!("{line}\r\n").as_bytes());
            }
        }
        while harness.complete_one() {}
        let balances = harness.talk(bank, "MGET n0 n1 n2 n3");
        let sum: i64 = balances.lines().skip(2).step_by(2).map(|n| n.parse::<i64>().unwrap()).sum();
        assert_eq!(sum, 100 * ACCOUNTS as i64, "seed {seed}: {balances}");
    }
    assert!(committed > 200 && failed > 200, "{committed} committed, {failed} failed");
}
