//! What clients may take of one turn, in a time that passes as the backend says.

use quorate_resp::{ConnectionId, Settings, Shared, limits};
use quorate_resp_harness::Harness;
use quorate_types::Duration;

/// A value that is worth a look at the clock whenever it is read.
const LARGE: usize = 32 * 1024;

fn harness(cost: Duration) -> Harness {
    let mut harness = Harness::new(Shared::new(Settings::default(), None));
    let id = harness.connect();
    let value = "v".repeat(LARGE);
    assert_eq!(harness.talk(id, &format!("SET large {value}")), "+OK\r\n");
    harness.backend.cost = cost;
    harness.begin_turn();
    harness
}

fn pipeline(harness: &mut Harness, command: &str, times: usize) -> ConnectionId {
    let id = harness.connect();
    harness.feed(id, format!("{command}\r\n").repeat(times).as_bytes());
    id
}

#[test]
fn one_client_has_its_share_of_a_turn_and_the_rest_waits() {
    let mut harness = harness(limits::CLIENT_PER_TURN / 2);
    let greedy = pipeline(&mut harness, "BITCOUNT large", 7);
    assert_eq!(harness.backend.reads, 2, "what fits into the share");
    assert!(harness.frontend.has_postponed() && !harness.frontend.wants_read(greedy));
    // Others have theirs.
    let other = harness.connect();
    assert_eq!(harness.talk(other, "STRLEN large"), format!(":{LARGE}\r\n"));
    let mut turns = 1;
    while harness.frontend.has_postponed() {
        harness.begin_turn();
        turns += 1;
    }
    assert_eq!(turns, 4);
    let count = "v".repeat(LARGE).bytes().map(u8::count_ones).sum::<u32>();
    assert_eq!(harness.take(greedy), format!(":{count}\r\n").repeat(7).as_bytes());
    assert!(harness.frontend.wants_read(greedy));
}

#[test]
fn all_clients_together_have_theirs_and_go_on_in_turn() {
    let mut harness = harness(limits::CLIENT_PER_TURN);
    let fit = (limits::CLIENTS_PER_TURN.as_nanos() / limits::CLIENT_PER_TURN.as_nanos()) as usize;
    let clients: Vec<_> =
        (0..2 * fit).map(|_| pipeline(&mut harness, "BITCOUNT large", 20)).collect();
    assert!(harness.frontend.is_turn_over());
    assert_eq!(harness.backend.reads as usize, fit, "those that came too late wait");
    let mut answers = vec![0; clients.len()];
    for turn in 0..40 {
        let before = harness.backend.reads;
        harness.begin_turn();
        let resumed = harness.backend.reads - before;
        assert!((1..=fit as u64 / 2).contains(&resumed), "{resumed} in turn {turn}");
        for (client, answers) in clients.iter().zip(&mut answers) {
            *answers += harness.take(*client).iter().filter(|&&byte| byte == b'\n').count();
        }
        let (least, most) = (answers.iter().min(), answers.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 2), "{answers:?}");
    }
}

#[test]
fn what_completes_later_is_part_of_the_turn_too() {
    let mut harness = harness(limits::CLIENT_PER_TURN);
    harness.backend.local_reads = false;
    let ids: Vec<_> = (0..20).map(|_| harness.connect()).collect();
    // Each client's second command waits for the first, and comes with its completion.
    ids.iter().for_each(|&id| harness.feed(id, b"GET a\r\nDBSIZE\r\nBITCOUNT large\r\n"));
    while harness.complete_one() {}
    assert!(harness.frontend.is_turn_over() && harness.frontend.has_postponed());
    let mut turns = 0;
    while harness.frontend.has_postponed() || harness.backend.waiting() > 0 {
        harness.begin_turn();
        while harness.complete_one() {}
        turns += 1;
        assert!(turns < 100, "they go on");
    }
    for id in ids {
        assert!(harness.take(id).ends_with(b"\r\n"));
    }
}

#[test]
fn short_commands_are_not_held_up() {
    let mut harness = harness(Duration::from_nanos(100));
    let id = pipeline(&mut harness, "GET absent", 2000);
    assert!(!harness.frontend.has_postponed());
    assert_eq!(harness.take(id), b"$-1\r\n".repeat(2000));
}

fn forget_large(harness: &mut Harness) {
    let id = harness.connect();
    assert_eq!(harness.talk(id, "DEL large"), ":1\r\n");
}

/// Writes that many keys.
fn fill(harness: &mut Harness, keys: usize) {
    let id = harness.connect();
    let sets: String = (0..keys).map(|number| format!("SET key:{number:06} v\r\n")).collect();
    assert_eq!(harness.send(id, sets.as_bytes()), b"+OK\r\n".repeat(keys));
}

/// Turns until nobody waits; how many.
fn finish(harness: &mut Harness, id: ConnectionId, output: &mut Vec<u8>) -> usize {
    let mut turns = 0;
    loop {
        output.extend(harness.take(id));
        if !harness.complete_one() && !harness.frontend.has_postponed() {
            return turns;
        }
        harness.begin_turn();
        turns += 1;
    }
}

fn keys_reply(keys: usize) -> Vec<u8> {
    let header = format!("*{}\r\n", keys);
    let keys = (0..keys).map(|number| format!("$10\r\nkey:{number:06}\r\n"));
    (header + &keys.collect::<String>()).into_bytes()
}

#[test]
fn keys_are_collected_and_sent_over_turns() {
    for elsewhere in [false, true] {
        let mut harness = harness(Duration::ZERO);
        forget_large(&mut harness);
        fill(&mut harness, 10_000);
        harness.backend.elsewhere = elsewhere;
        harness.backend.cost = limits::CLIENT_PER_TURN;
        harness.begin_turn();
        let id = harness.connect();
        harness.feed(id, b"KEYS key:*\r\nPING\r\n");
        let mut output = Vec::new();
        let turns = finish(&mut harness, id, &mut output);
        if !elsewhere {
            assert!(turns >= 10_000 / limits::WALK_STEP / 2, "{turns} turns");
        }
        let expected = [keys_reply(10_000), b"+PONG\r\n".to_vec()].concat();
        assert!(output == expected, "elsewhere: {elsewhere}, {} bytes", output.len());
    }
}

#[test]
fn keys_wait_for_a_client_that_does_not_read() {
    let mut harness = harness(Duration::ZERO);
    forget_large(&mut harness);
    let longer = "k".repeat(990);
    let sets = (0..2000).map(|number| format!("SET {longer}{number:010} v\r\n"));
    let id = harness.connect();
    harness.send(id, sets.collect::<String>().as_bytes());
    let id = harness.connect();
    harness.feed(id, b"KEYS *\r\n");
    harness.frontend.seal(quorate_machine::Seal::Holds);
    let held = harness.frontend.output(id).map_or(0, |output| output.len());
    assert!(held < limits::OUTPUT_PAUSE_BYTES + 1010 * limits::WALK_STEP, "{held} bytes at once");
    assert!(held >= limits::OUTPUT_PAUSE_BYTES);
    assert!(!harness.frontend.has_postponed(), "it waits for the client, not for a turn");
    let mut output = Vec::new();
    finish(&mut harness, id, &mut output);
    assert_eq!(output.len(), "*2000\r\n".len() + 2000 * ("$1000\r\n\r\n".len() + 1000));
}

#[test]
fn a_list_of_keys_counts_towards_the_limit_of_unread_replies() {
    for (limit, closes) in [(100_000, true), (1_000_000, false)] {
        let mut harness = harness(Duration::ZERO);
        fill(&mut harness, 10_000);
        let id = harness.connect();
        let set = format!("CONFIG SET client-output-buffer-limit \"normal {limit} 0 0\"");
        assert_eq!(harness.talk(id, &set), "+OK\r\n");
        harness.feed(id, b"KEYS *\r\n");
        assert_eq!(harness.frontend.wants_close(id), closes, "{limit} bytes");
    }
}

#[test]
fn a_walk_counts_and_draws_keys_that_others_hold() {
    let mut harness = harness(Duration::ZERO);
    forget_large(&mut harness);
    fill(&mut harness, 1000);
    harness.backend.elsewhere = true;
    let id = harness.connect();
    assert_eq!(harness.talk(id, "DBSIZE"), ":1000\r\n");
    assert_eq!(harness.talk(id, "RANDOMKEY"), "$10\r\nkey:000000\r\n");
    assert_eq!(
        harness.talk(id, "SCAN 998"),
        "*2\r\n$1\r\n0\r\n*2\r\n$10\r\nkey:000998\r\n$10\r\nkey:000999\r\n"
    );
    let error = harness.talk(id, "MULTI") + &harness.talk(id, "KEYS *") + &harness.talk(id, "EXEC");
    assert!(
        error.contains("-ERR inside MULTI, this command needs a node that holds all"),
        "{error}"
    );
}

#[test]
fn as_many_keys_as_are_asked_for_take_one_scan() {
    for elsewhere in [false, true] {
        let mut harness = harness(Duration::ZERO);
        harness.backend.elsewhere = elsewhere;
        forget_large(&mut harness);
        fill(&mut harness, 10);
        let id = harness.connect();
        for (options, ends) in
            [("", true), (" COUNT 11", true), (" COUNT 9", true), (" COUNT 8", false)]
        {
            let reply = harness.talk(id, &format!("SCAN 0{options}"));
            assert_eq!(reply.starts_with("*2\r\n$1\r\n0\r\n"), ends, "SCAN 0{options}: {reply}");
        }
    }
}

#[test]
fn one_scan_looks_at_a_bounded_number_of_keys() {
    let mut harness = harness(Duration::ZERO);
    forget_large(&mut harness);
    fill(&mut harness, 5000);
    let id = harness.connect();
    let reply = harness.talk(id, "SCAN 0 COUNT 100000");
    let keys = reply.matches("key:").count();
    assert!((limits::SCAN_COUNT_MAX..=limits::SCAN_COUNT_MAX + limits::WALK_STEP).contains(&keys));
    assert!(reply.starts_with("*2\r\n$4\r\n10"), "{}", &reply[..20]);
}

#[test]
fn a_block_looks_at_a_bounded_number_of_keys() {
    let mut harness = harness(Duration::ZERO);
    fill(&mut harness, limits::EXEC_RECORDS_MAX / 3);
    let id = harness.connect();
    harness.talk(id, "MULTI");
    (0..5).for_each(|_| drop(harness.talk(id, "KEYS none")));
    let reply = harness.talk(id, "EXEC");
    assert!(reply.starts_with("*5\r\n*0\r\n*0\r\n"), "{reply}");
    assert!(
        reply.contains("-ERR inside MULTI, KEYS, SCAN and RANDOMKEY look at 10000 keys"),
        "{reply}"
    );
}

#[test]
fn a_command_over_many_keys_goes_on_over_turns() {
    for local_reads in [true, false] {
        let mut harness = harness(Duration::ZERO);
        harness.backend.local_reads = local_reads;
        fill(&mut harness, 1000);
        harness.backend.cost = limits::CLIENT_PER_TURN / 10;
        let id = harness.connect();
        let names: String = (0..1000).map(|number| format!(" key:{number:06}")).collect();
        let values = format!("*1000\r\n{}", "$1\r\nv\r\n".repeat(1000));
        for (command, reply) in [("EXISTS", ":1000\r\n"), ("MGET", &values), ("DEL", ":1000\r\n")] {
            harness.begin_turn();
            let work = |harness: &Harness| harness.backend.reads + harness.backend.submitted;
            let (mut before, mut output) = (work(&harness), Vec::new());
            harness.feed(id, format!("{command}{names}\r\nPING\r\n").as_bytes());
            let mut turns = 1;
            loop {
                let done = work(&harness) - before;
                assert!(done <= 32, "{command}: {done} keys in one turn");
                before = work(&harness);
                if !harness.complete_one() && !harness.frontend.has_postponed() {
                    break;
                }
                while harness.complete_one() {}
                output.extend(harness.take(id));
                harness.begin_turn();
                turns += 1;
            }
            output.extend(harness.take(id));
            assert!(turns > 1000 / 32, "{command}: {turns} turns");
            assert_eq!(String::from_utf8_lossy(&output), format!("{reply}+PONG\r\n"), "{command}");
        }
    }
}
