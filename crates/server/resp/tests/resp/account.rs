//! What clients hold, in one account: it is the sum of what there is, and the largest go first.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use quorate_machine::Seal;
use quorate_resp::{ConnectionId, Settings, Share, Shared};
use quorate_resp_harness::Harness;

/// Sets `maxmemory-clients`.
fn limited(bytes: u64) -> Arc<Shared> {
    let settings = Settings::default();
    settings.max_memory_clients.store(Share::Bytes(bytes).to_bits(), Relaxed);
    Shared::new(settings, None)
}

fn balanced(harnesses: &[Harness], shared: &Shared) {
    harnesses.iter().for_each(|harness| harness.frontend.check_invariants());
    let held = harnesses.iter().map(|harness| harness.frontend.stats().held_bytes.load(Relaxed));
    let sum: u64 = held.sum();
    assert_eq!(shared.clients_bytes(), sum.saturating_sub(shared.leaving_bytes()));
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let value = (0..200_000usize).prop_map(|length| "v".repeat(length));
    let set = (0..3u8, value.clone()).prop_map(|(key, value)| {
        format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n${}\r\n{value}\r\n", value.len())
    });
    let unfinished = value.prop_map(|value| format!("*2\r\n$3\r\nGET\r\n$300000\r\n{value}"));
    let others = proptest::sample::select(vec![
        "GET 0\r\n",
        "MGET 0 1 2 0 1\r\n",
        "MULTI\r\n",
        "EXEC\r\n",
        "DISCARD\r\n",
        "WATCH 0 1\r\n",
        "SELECT 1\r\n",
        "SELECT 0\r\n",
        "FLUSHALL\r\n",
        "DEL 0 1\r\n",
        "GETSET 1 x\r\n",
        "PING\r\n",
        "WAIT 1 0\r\n",
        "CLIENT REPLY OFF\r\n",
        "CLIENT REPLY ON\r\n",
        "RESET\r\n",
        "QUIT\r\n",
        "SESSION OPEN\r\n",
        "SESSION CALL 1 1 APPEND 0 x\r\n",
        "CLIENT NO-EVICT ON\r\n",
    ]);
    prop_oneof![2 => set, 1 => unfinished, 8 => others.prop_map(str::to_owned)]
        .prop_map(String::into_bytes)
}

#[derive(Clone, Debug)]
enum Act {
    Open(usize),
    Feed(usize, Vec<u8>),
    Complete(usize),
    Take(usize, usize),
    Close(usize),
    Pass(usize),
    LoseLease(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => any::<usize>().prop_map(Act::Open),
        10 => (any::<usize>(), line()).prop_map(|(which, line)| Act::Feed(which, line)),
        5 => any::<usize>().prop_map(Act::Complete),
        4 => (any::<usize>(), 1..300_000usize).prop_map(|(which, most)| Act::Take(which, most)),
        1 => any::<usize>().prop_map(Act::Close),
        1 => any::<usize>().prop_map(Act::Pass),
        1 => any::<usize>().prop_map(Act::LoseLease),
    ]
}

/// Closes what wants to be closed, as a driver does at the end of a turn.
fn end_turn(harness: &mut Harness, open: &mut Vec<ConnectionId>) {
    harness.frontend.close_killed();
    open.retain(|&id| {
        let ends = harness.frontend.wants_close(id);
        if ends {
            harness.frontend.close(id);
        }
        !ends
    });
}

fn play(acts: Vec<Act>, limit: u64) {
    let shared = limited(limit);
    let mut lanes = [0, 1].map(|_| (Harness::new(Arc::clone(&shared)), Vec::new()));
    for act in acts {
        match act {
            Act::Open(which) => {
                let (harness, open) = &mut lanes[which % 2];
                open.push(harness.connect());
            }
            Act::Feed(which, bytes) => {
                let (harness, open) = &mut lanes[which % 2];
                if let Some(&id) = open.get(which / 2 % open.len().max(1)) {
                    harness.feed(id, &bytes);
                }
            }
            Act::Complete(which) => {
                lanes[which % 2].0.complete_one();
            }
            Act::Take(which, most) => {
                let (harness, open) = &mut lanes[which % 2];
                harness.frontend.seal(Seal::Holds);
                if let Some(&id) = open.get(which / 2 % open.len().max(1)) {
                    let length = harness.frontend.output(id).map_or(0, |output| output.len());
                    let now = harness.now;
                    harness.frontend.written(id, length.min(most), now, &mut harness.backend);
                }
            }
            Act::Close(which) => {
                let (harness, open) = &mut lanes[which % 2];
                if !open.is_empty() {
                    harness.frontend.close(open.swap_remove(which / 2 % open.len()));
                }
            }
            Act::Pass(which) => lanes[which % 2].0.pass(1500),
            Act::LoseLease(which) => lanes[which % 2].0.frontend.seal(Seal::Lost),
        }
        for (harness, open) in &mut lanes {
            end_turn(harness, open);
        }
        lanes.iter().for_each(|(harness, _)| harness.frontend.check_invariants());
        assert_eq!(shared.leaving_bytes(), 0, "all that were named are gone");
    }
    for (harness, open) in &mut lanes {
        for id in open.drain(..) {
            harness.frontend.close(id);
        }
        while harness.complete_one() {}
    }
    assert_eq!(shared.clients_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_account_is_the_sum_of_what_is_held(acts in proptest::collection::vec(act(), 1..120)) {
        play(acts, 0);
    }

    #[test]
    fn so_it_is_while_clients_are_disconnected(acts in proptest::collection::vec(act(), 1..120)) {
        play(acts, 400_000);
    }
}

#[test]
fn the_largest_goes_first_on_whatever_lane() {
    let shared = limited(1 << 20);
    let mut lanes = [0, 1].map(|_| Harness::new(Arc::clone(&shared)));
    let unfinished = |bytes: usize| format!("*1\r\n$900000\r\n{}", "x".repeat(bytes));
    let small = lanes[0].connect();
    let largest = lanes[0].connect();
    let spared = lanes[1].connect();
    let last = lanes[1].connect();
    lanes[1].talk(spared, "CLIENT NO-EVICT ON");
    lanes[1].feed(spared, unfinished(400_000).as_bytes());
    lanes[0].feed(largest, unfinished(300_000).as_bytes());
    lanes[0].feed(small, unfinished(50_000).as_bytes());
    assert_eq!(shared.totals().evicted, 0);
    lanes[1].feed(last, unfinished(200_000).as_bytes());
    while shared.totals().evicted == 0 {
        lanes[1].feed(last, "x".repeat(20_000).as_bytes());
    }
    assert!(lanes[1].frontend.take_named_others());
    lanes[0].frontend.close_killed();
    let closes = |harness: &Harness, id| harness.frontend.wants_close(id);
    assert!(closes(&lanes[0], largest) ^ closes(&lanes[1], last));
    assert!(!closes(&lanes[0], small) && !closes(&lanes[1], spared));
    assert_eq!(shared.totals().evicted, 1);
    assert!(shared.clients_bytes() <= 1 << 20);
    balanced(&lanes, &shared);
}

#[test]
fn a_guest_that_holds_most_goes_first() {
    let shared = limited(1 << 20);
    let mut lanes = [0, 1].map(|_| Harness::new(Arc::clone(&shared)));
    let (small, large) = (lanes[0].frontend.guest_came(), lanes[0].frontend.guest_came());
    assert!(lanes[0].frontend.guest_holds(&small, 100_000));
    assert!(lanes[0].frontend.guest_holds(&large, 700_000));
    assert!(lanes[0].frontend.guest_holds(&large, 600_000));
    assert_eq!(shared.clients_bytes(), 700_000);
    let id = lanes[1].connect();
    lanes[1].feed(id, format!("*1\r\n$900000\r\n{}", "x".repeat(500_000)).as_bytes());
    assert!(lanes[1].frontend.take_named_others());
    assert!(!lanes[0].frontend.guest_holds(&large, 600_000));
    assert!(lanes[0].frontend.guest_holds(&small, 100_000));
    assert!(!lanes[1].frontend.wants_close(id));
    lanes[0].frontend.guest_left(&large);
    lanes[0].frontend.guest_left(&small);
    assert_eq!(shared.totals().evicted, 1);
    balanced(&lanes, &shared);
    lanes[1].frontend.close(id);
    assert_eq!((shared.clients_bytes(), shared.leaving_bytes()), (0, 0));
}
