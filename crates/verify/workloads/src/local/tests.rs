//! What is drawn, by count; and audits of stores that keep transactions whole, and that don't.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::Rule;

/// The value of a key: the number that it shows, or a hash's load.
type Store = BTreeMap<u64, i64>;

fn filled(scenario: &Scenario) -> Store {
    let first = |put: Put| match put.content {
        Content::Filler(number) => Some((put.key, number as i64)),
        Content::Number(number) | Content::Load(number) => Some((put.key, number)),
        Content::Absent => None,
        other => panic!("{other:?} at first"),
    };
    scenario.first_contents().iter().filter_map(first).collect()
}

/// Writes; returns the integers that a server would answer.
fn write(store: &mut Store, put: Put) -> i64 {
    match put.content {
        Content::Filler(number) => {
            store.insert(put.key, number as i64);
            0
        }
        Content::FillerIfAbsent(number) => match store.entry(put.key) {
            std::collections::btree_map::Entry::Occupied(_) => 0,
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(number as i64);
                1
            }
        },
        Content::Absent => i64::from(store.remove(&put.key).is_some()),
        Content::Sum(change) | Content::LoadSum(change) => {
            *store.entry(put.key).or_default() += change;
            0
        }
        other => panic!("{other:?} in a run"),
    }
}

/// How a store fails its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// One in a hundred transactions loses its last write.
    TearsWrites,
    /// One in a hundred is done and reported as aborted.
    LiesAboutEnds,
    /// Transactions read what up to fifty before them have not written yet.
    ReadsTooEarly,
    /// One in a hundred has an end that nobody knows; every other of those is done.
    Forgets,
}

/// Runs so many transactions of a scenario, with a rule kept if `reads_first`, and audits.
fn run(scenario: &Scenario, reads_first: bool, fault: Fault, transactions: u64) -> Verdict {
    let mut store = filled(scenario);
    let mut before = store.clone();
    let mut generator = LocalGenerator::new(scenario, Part::WHOLE, 7);
    for number in 0..transactions {
        let client = (number % 12) as usize;
        let turn = Turn { client, elapsed: Duration::from_millis(number) };
        let transaction = generator.next_at(turn).clone();
        let hit = number % 100 == 99;
        let mut puts = transaction.puts.clone();
        if reads_first && transaction.rule != Rule::Free {
            let past = if fault == Fault::ReadsTooEarly { &before } else { &store };
            let found: Vec<i64> = transaction.gets.iter().map(|key| past[key]).collect();
            puts = transaction.decide(&found);
        }
        if number % 50 == 0 && fault == Fault::ReadsTooEarly {
            before = store.clone();
        }
        let added = Transaction::added(&puts);
        let mut integers = 0;
        if hit && fault == Fault::TearsWrites {
            // The client is told as if it had been done.
            integers += puts.pop().map_or(0, |put| write(&mut store.clone(), put));
        }
        let forgotten = hit && fault == Fault::Forgets;
        if !forgotten || number % 200 == 99 {
            integers += puts.into_iter().map(|put| write(&mut store, put)).sum::<i64>();
        }
        let answer = match transaction.tells {
            _ if forgotten => Answer::Failed("UNKNOWN".to_owned()),
            _ if hit && fault == Fault::LiesAboutEnds => Answer::Aborted,
            crate::Tells::Integers => Answer::Told(Some(integers)),
            _ if reads_first && transaction.rule != Rule::Free => Answer::Told(Some(added)),
            _ => Answer::Good,
        };
        generator.ended(client, &answer);
    }
    let audit = Audit::new(scenario, reads_first);
    let keys: Vec<u64> = audit.keys().collect();
    let mut sweep = AuditSweep::new(audit);
    for key in keys {
        assert_eq!(sweep.next().gets, [key]);
        sweep.ended(0, &Answer::Told(store.get(&key).copied()));
    }
    sweep.finish().expect("every key was read").judge(&generator.ledger())
}

/// Few units for each workload, on so many nodes.
fn small(benchmark: Benchmark, nodes: u16) -> Scenario {
    let least = Scenario::new(benchmark, nodes, 1).units_min(1);
    Scenario::new(benchmark, nodes, least)
}

#[test]
fn audits_pass_what_is_atomic() {
    for benchmark in Benchmark::ALL {
        for reads_first in [false, true] {
            for (nodes, fault) in [(3, Fault::None), (1, Fault::None), (6, Fault::Forgets)] {
                let verdict = run(&small(benchmark, nodes), reads_first, fault, 20_000);
                assert!(verdict.holds(), "{benchmark:?} {reads_first} {fault:?}: {verdict:?}");
                let is_exact = verdict.least == verdict.most;
                assert!(is_exact || fault == Fault::Forgets, "{verdict:?}");
            }
        }
    }
}

#[test]
fn audits_notice_what_is_torn() {
    for benchmark in Benchmark::ALL {
        for reads_first in [false, true] {
            let verdict = run(&small(benchmark, 3), reads_first, Fault::TearsWrites, 20_000);
            assert!(!verdict.holds(), "{benchmark:?} {reads_first}: {verdict:?}");
        }
    }
}

#[test]
fn audits_notice_ends_that_are_told_wrongly() {
    for benchmark in [Benchmark::Smallbank, Benchmark::Tatp, Benchmark::Voter] {
        let verdict = run(&small(benchmark, 3), false, Fault::LiesAboutEnds, 20_000);
        assert!(!verdict.holds(), "{benchmark:?}: {verdict:?}");
    }
    // A phone whose context is not what its generator was told carries the wrong load.
    let verdict = run(&small(Benchmark::Handovers, 3), false, Fault::LiesAboutEnds, 20_000);
    assert!(!verdict.holds(), "{verdict:?}");
}

#[test]
fn votes_beyond_the_limit_are_noticed() {
    let scenario = small(Benchmark::Voter, 3);
    // 200 voters have 2,000 votes.
    let verdict = run(&scenario, true, Fault::None, 20_000);
    assert_eq!((verdict.found, verdict.violations), (2_000, 0));
    let verdict = run(&scenario, true, Fault::ReadsTooEarly, 20_000);
    assert!(verdict.violations > 0, "{verdict:?}");
    let first = verdict.first_violation.unwrap();
    assert!(first.contains("has cast 11 of 10 votes"), "{first}");
}

#[test]
fn rows_that_are_gone_or_strange_are_noticed() {
    for benchmark in Benchmark::ALL {
        let scenario = small(benchmark, 2);
        let store = filled(&scenario);
        let read = |change: &dyn Fn(&mut Store)| {
            let mut store = store.clone();
            change(&mut store);
            let mut audit = Audit::new(&scenario, true);
            let keys: Vec<u64> = audit.keys().collect();
            keys.into_iter().for_each(|key| audit.read(key, store.get(&key).copied()));
            audit.judge(&Ledger::default())
        };
        assert!(read(&|_| {}).holds(), "{benchmark:?}: {:?}", read(&|_| {}));
        let gone = read(&|store| _ = store.remove(&0));
        assert!(gone.violations > 0, "{benchmark:?}: {gone:?}");
        let strange = read(&|store| _ = store.insert(0, 1 << 40));
        assert!(!strange.holds(), "{benchmark:?}: {strange:?}");
    }
    let scenario = small(Benchmark::Tatp, 1);
    let mut audit = Audit::new(&scenario, true);
    let absent = (0..scenario.keys())
        .find(|key| !tatp::Rows::of(key / 22).allows(key % 22).0 && tatp::is_forwarding(key % 22));
    audit.read(absent.unwrap(), Some(0));
    let verdict = audit.judge(&Ledger::default());
    assert!(verdict.first_violation.unwrap().contains("has no facility"), "no facility");
}

/// Draws transactions that all succeed, for clients of each node in turn.
fn drawn(scenario: &Scenario, transactions: u64) -> (LocalGenerator, Vec<Transaction>) {
    let mut generator = LocalGenerator::new(scenario, Part::WHOLE, 11);
    let mut all = Vec::new();
    for number in 0..transactions {
        let turn = Turn { client: (number % 12) as usize, elapsed: Duration::ZERO };
        all.push(generator.next_at(turn).clone());
        generator.ended(turn.client, &Answer::Good);
    }
    (generator, all)
}

fn shares(transactions: &[Transaction]) -> BTreeMap<TransactionKind, f64> {
    let mut shares = BTreeMap::new();
    for transaction in transactions {
        *shares.entry(transaction.kind).or_default() += 100.0 / transactions.len() as f64;
    }
    shares
}

#[test]
fn one_seed_gives_one_sequence() {
    for benchmark in Benchmark::ALL {
        let scenario = small(benchmark, 3);
        assert_eq!(drawn(&scenario, 3000).1, drawn(&scenario, 3000).1);
    }
}

#[test]
fn mixes_have_their_shares() {
    use TransactionKind as Kind;
    let smallbank = [
        (Kind::Amalgamate, 15.0),
        (Kind::Balance, 15.0),
        (Kind::Deposit, 15.0),
        (Kind::SendPayment, 25.0),
        (Kind::TransactSavings, 15.0),
        (Kind::WriteCheck, 15.0),
    ];
    let tatp = [
        (Kind::GetSubscriberData, 35.0),
        (Kind::GetAccessData, 35.0),
        (Kind::GetNewDestination, 10.0),
        (Kind::UpdateSubscriberData, 2.0),
        (Kind::UpdateLocation, 14.0),
        (Kind::InsertCallForwarding, 2.0),
        (Kind::DeleteCallForwarding, 2.0),
    ];
    for (benchmark, expected, writes) in
        [(Benchmark::Smallbank, &smallbank[..], 85.0), (Benchmark::Tatp, &tatp[..], 20.0)]
    {
        let (generator, transactions) = drawn(&small(benchmark, 3), 100_000);
        let shares = shares(&transactions);
        assert_eq!(shares.len(), expected.len());
        for (kind, percent) in expected {
            // Four standard deviations of the widest share are 0.6.
            assert!((shares[kind] - percent).abs() < 0.6, "{kind:?}: {}", shares[kind]);
        }
        let drawn = generator.drawn();
        assert!((drawn.writes as f64 / 1000.0 - writes).abs() < 0.6, "{drawn:?}");
    }
    let scenario = Scenario { handovers: 0.05, ..small(Benchmark::Handovers, 3) };
    let shares = shares(&drawn(&scenario, 100_000).1);
    // Of 100 requests 5 are handovers, of two transactions each.
    for kind in [Kind::HandoverStart, Kind::HandoverEnd] {
        assert!((shares[&kind] - 100.0 * 0.05 / 1.05).abs() < 0.4, "{shares:?}");
    }
    assert!(shares[&Kind::ServiceRequest] > shares[&Kind::Release], "phones begin idle");
}

#[test]
fn nine_of_ten_transactions_of_smallbank_use_hot_accounts_only() {
    let scenario = Scenario::new(Benchmark::Smallbank, 3, 10_000);
    let (mut hot, mut mixed) = (0_u32, 0_u32);
    let (_, transactions) = drawn(&scenario, 50_000);
    for transaction in &transactions {
        let puts = transaction.puts.iter().map(|put| put.key);
        let mut accounts: Vec<u64> =
            transaction.gets.iter().copied().chain(puts).map(|key| key / 2).collect();
        accounts.sort_unstable();
        accounts.dedup();
        let of_hot = accounts.iter().filter(|account| **account < 400).count();
        hot += u32::from(of_hot == accounts.len());
        mixed += u32::from(of_hot > 0 && of_hot < accounts.len());
    }
    assert_eq!(mixed, 0);
    assert!((f64::from(hot) / 500.0 - 90.0).abs() < 0.6, "{hot} of 50000");
}

#[test]
fn clients_use_units_of_their_node_but_for_the_remote_share() {
    for benchmark in [Benchmark::Smallbank, Benchmark::Tatp, Benchmark::Voter, Benchmark::Venmo] {
        for (remote, nodes) in [(0.0, 3), (0.05, 3), (0.5, 6), (1.0, 2)] {
            let scenario = Scenario { remote: Some(remote), ..small(benchmark, nodes) };
            let scenario = Scenario { units: scenario.units * 20, ..scenario };
            let (generator, _) = drawn(&scenario, 50_000);
            let share = generator.drawn().remote_share();
            // Fewer than 10,000 writes of TATP: 2 points are four standard deviations.
            assert!((share - remote).abs() < 0.021, "{benchmark:?} at {nodes}: {share}");
        }
    }
    let homes = |transaction: &Transaction, homes: &BTreeMap<u64, usize>, client: usize| {
        let keys = transaction.puts.iter().map(|put| put.key / 2);
        keys.into_iter().all(|account| homes.get(&account).is_none_or(|home| *home == client % 3))
    };
    // Without remote transactions, an account is used at one node for ever.
    let scenario = small(Benchmark::Smallbank, 3);
    let mut used = BTreeMap::new();
    for (client, transaction) in drawn(&scenario, 5000).1.iter().enumerate() {
        assert!(homes(transaction, &used, client), "{transaction:?} at {client}");
        for put in &transaction.puts {
            used.insert(put.key / 2, client % 3);
        }
    }
    assert!(used.len() > 200, "{} of 300 accounts are used", used.len());
}

#[test]
fn venmo_has_the_papers_share_of_remote_payments() {
    for (nodes, percent) in [(1, 0.0), (3, 0.7), (6, 1.2)] {
        let (generator, _) = drawn(&Scenario::new(Benchmark::Venmo, nodes, 10_000), 200_000);
        let share = generator.drawn().remote_share() * 100.0;
        assert!((share - percent).abs() < 0.1, "{nodes} nodes: {share}%");
    }
}

#[test]
fn friends_are_rewired_as_time_passes() {
    let scenario = Scenario { rewired: 0.1, remote: Some(0.0), ..small(Benchmark::Venmo, 2) };
    let strangers = |elapsed| {
        let mut generator = LocalGenerator::new(&scenario, Part::WHOLE, 3);
        let mut count = 0;
        for _ in 0..2000 {
            let transaction = generator.next_at(Turn { client: 0, elapsed });
            let community = |at: usize| transaction.puts[at].key / venmo::COMMUNITY;
            count += u32::from(community(0) != community(1));
        }
        count
    };
    assert_eq!(strangers(Duration::ZERO), 0);
    let after = [1, 5].map(|seconds| strangers(Duration::from_secs(seconds)));
    assert!(0 < after[0] && after[0] < after[1] && after[1] < 2000, "{after:?}");
}

#[test]
fn voters_move_together_by_count_and_by_time() {
    let scenario = Scenario { moves: Moves::After(vec![1000, 2000]), ..small(Benchmark::Voter, 3) };
    let (_, transactions) = drawn(&scenario, 3000);
    for (number, transaction) in transactions.iter().enumerate() {
        assert_eq!(transaction.node, Some((number / 1000) as u16), "transaction {number}");
    }
    let times = vec![Duration::from_secs(2), Duration::from_secs(7)];
    let scenario = Scenario { moves: Moves::At(times), ..scenario };
    let mut generator = LocalGenerator::new(&scenario, Part::WHOLE, 1);
    let mut node = |seconds| {
        let turn = Turn { client: 1, elapsed: Duration::from_secs_f64(seconds) };
        generator.next_at(turn).node
    };
    assert_eq!([1.9, 2.0, 6.9, 7.1].map(&mut node), [0, 1, 1, 2].map(Some));
}

#[test]
fn fans_of_the_popular_contestant_move_and_others_stay() {
    let scenario = Scenario {
        moves: Moves::After(vec![5000]),
        movers: Some(1000),
        ..Scenario::new(Benchmark::Voter, 3, 10_000)
    };
    let (_, transactions) = drawn(&scenario, 10_000);
    let mut nodes: BTreeMap<u64, Vec<u16>> = BTreeMap::new();
    for transaction in &transactions {
        let nodes = nodes.entry(transaction.puts[0].key / 2).or_default();
        if nodes.last() != transaction.node.as_ref() {
            nodes.extend(transaction.node);
        }
    }
    assert_eq!(nodes.remove(&0), Some(vec![0, 1]));
    assert_eq!(nodes.len(), 19);
    assert!(nodes.values().all(|nodes| nodes.len() == 1), "{nodes:?}");
}

#[test]
fn commuters_cross_as_geography_has_it_or_never() {
    let crossings = |territories, nodes, remote| {
        let scenario = Scenario {
            territories,
            remote,
            handovers: 0.5,
            ..Scenario::new(Benchmark::Handovers, nodes, 20_480)
        };
        let drawn = drawn(&scenario, 60_000).0.drawn();
        assert!(drawn.steps > 10_000, "{drawn:?}");
        drawn.crossings as f64 * 100.0 / drawn.steps as f64
    };
    // Trips lead through the middle of the grid more often than along its edges, where there is no
    // border, so that more of their steps cross than of all steps.
    for (territories, all_steps) in [(Territories::Strips, 8.1), (Territories::Blocks, 4.8)] {
        let percent = crossings(territories, 6, None);
        assert!((percent - all_steps).abs() < 2.0, "{territories:?}: {percent}%");
    }
    assert_eq!(crossings(Territories::Strips, 6, Some(0.0)), 0.0);
    assert_eq!(crossings(Territories::Blocks, 1, None), 0.0);
}

#[test]
fn phones_whose_state_is_not_known_are_not_used_again() {
    let scenario = small(Benchmark::Handovers, 3);
    let mut generator = LocalGenerator::new(&scenario, Part::WHOLE, 2);
    let mut used = BTreeSet::new();
    for number in 0..20_000 {
        let turn = Turn { client: number % 12, ..Turn::START };
        let transaction = generator.next_at(turn);
        let phones = transaction.puts.iter().filter(|put| put.key % 2 == 0);
        phones.for_each(|put| assert!(used.insert(put.key), "phone {} again", put.key / 2));
        generator.ended(turn.client, &Answer::Failed("UNKNOWN".to_owned()));
    }
    assert!(used.len() > 10_000, "{} phones were used once", used.len());
    assert!(generator.ledger().unknown > 10_000);
}

#[test]
fn parts_have_units_of_their_own() {
    for benchmark in Benchmark::ALL {
        let scenario = Scenario { units: 30_721, ..small(benchmark, 2) };
        for (index, count) in [(0, 2), (1, 2), (2, 3)] {
            let mut generator = LocalGenerator::new(&scenario, Part { index, count }, 5);
            for number in 0..2000 {
                let transaction = generator.next_at(Turn { client: number, ..Turn::START });
                for put in &transaction.puts {
                    let (unit, slot) = (put.key / scenario.layout().slots(), put.key % 2);
                    let is_shared =
                        slot == 1 && matches!(benchmark, Benchmark::Voter | Benchmark::Handovers);
                    assert!(is_shared || unit % count == index, "{benchmark:?}: {put:?}");
                    assert!(put.key < scenario.keys());
                }
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let smallbank = Scenario::new(Benchmark::Smallbank, 3, 10_000);
    assert_eq!(smallbank.check(2), Ok(()));
    let moves = Moves::After(vec![1]);
    for (scenario, words) in [
        (Scenario { nodes: 0, ..smallbank.clone() }, "1 to 255 nodes, not 0"),
        (Scenario { units: 10, ..smallbank.clone() }, "smallbank has between 600"),
        (Scenario { remote: Some(1.5), ..smallbank.clone() }, "between 0 and 100%, not 150%"),
        (Scenario { remote: Some(-0.1), ..smallbank.clone() }, "between 0 and 100%"),
        (Scenario { remote: Some(0.1), nodes: 1, ..smallbank.clone() }, "on a single node"),
        (Scenario { moves: moves.clone(), ..smallbank.clone() }, "voter has moves"),
        (Scenario { movers: Some(5), ..smallbank.clone() }, "no time is said"),
        (
            Scenario { moves, movers: Some(0), ..Scenario::new(Benchmark::Voter, 3, 1000) },
            "between 1 and 999 voters",
        ),
        (
            Scenario { remote: Some(0.1), ..Scenario::new(Benchmark::Handovers, 3, 20_480) },
            "geography decides",
        ),
        (Scenario { rewired: 2.0, ..Scenario::new(Benchmark::Venmo, 3, 1000) }, "a share lies"),
    ] {
        let error = scenario.check(2).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert!("tpc-c".parse::<Benchmark>().is_err() && "tatp".parse() == Ok(Benchmark::Tatp));
    assert!("hexagons".parse::<Territories>().is_err());
}

#[test]
fn what_is_all_local_uses_keys_where_they_were_written_first() {
    for benchmark in Benchmark::ALL {
        for parts in [1, 2] {
            let scenario = Scenario { remote: Some(0.0), ..Scenario::new(benchmark, 3, 40_000) };
            let homes = scenario.first_homes(parts);
            for index in 0..parts {
                let part = Part { index, count: parts };
                let mut generator = LocalGenerator::new(&scenario, part, 1);
                for number in 0..3_000 {
                    let client = number % 9;
                    let turn = Turn { client, elapsed: Duration::ZERO };
                    let drawn = generator.next_at(turn).clone();
                    let node = drawn.node.unwrap_or(client as u16 % 3);
                    let keys = drawn.gets.iter().chain(drawn.puts.iter().map(|put| &put.key));
                    for key in keys {
                        assert_eq!(homes[*key as usize], node, "{benchmark:?}, key {key}");
                    }
                    generator.ended(client, &Answer::Good);
                }
            }
        }
    }
}
