//! Random schedules of transactions, messages between lanes, flushes and losses of power.

use std::collections::{BTreeMap, BTreeSet};

use quorate_harness::Logs;
use quorate_machine::{Outcome, Rng};
use quorate_types::Role;

use crate::{LANES, Node, Step, Txn, keys_of};

/// What clients know.
#[derive(Default)]
struct History {
    /// The keys of each transaction by the item that it pushes.
    sent: BTreeMap<u64, (u64, Vec<String>)>,
    /// Those that have happened, as was answered or seen after a restart.
    happened: BTreeSet<u64>,
    /// Those that have not, as was seen after a restart.
    lost: BTreeSet<u64>,
    /// Reads under way.
    reads: Vec<(u64, Vec<String>)>,
    /// What was read of each key.
    seen: Vec<(String, Vec<u64>)>,
}

impl History {
    fn note_answers(&mut self, node: &Node) {
        let sent = self.sent.iter().map(|(item, (tag, keys))| (Some(*item), *tag, keys));
        let reads = self.reads.iter().map(|(tag, keys)| (None, *tag, keys));
        for (item, tag, keys) in sent.chain(reads) {
            let Some(Outcome::Done(lists)) = node.0.outcome(tag) else { continue };
            self.happened.extend(item);
            for (key, list) in keys.iter().zip(lists) {
                let list = list.iter().flatten().copied().chain(item).collect();
                self.seen.push((key.clone(), list));
            }
        }
        self.reads.clear();
    }

    /// Whatever was answered or seen is there, each transaction in all of its keys or in none.
    fn judge(&mut self, node: &mut Node, names: &[String], seed: u64) {
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let lists: BTreeMap<&str, Vec<u64>> = all
            .iter()
            .copied()
            .zip(node.read(&all).into_iter().map(Option::unwrap_or_default))
            .collect();
        for (key, seen) in &self.seen {
            assert!(lists[&**key].starts_with(seen), "seed {seed}: {key} was {seen:?}: {lists:?}");
        }
        for (item, (_, keys)) in &self.sent {
            let count = keys.iter().filter(|key| lists[&***key].contains(item)).count();
            assert!(count == 0 || count == keys.len(), "seed {seed}: half of {item}: {lists:?}");
            assert!(count > 0 || !self.happened.contains(item), "seed {seed}: {item} is lost");
            assert!(count == 0 || !self.lost.contains(item), "seed {seed}: {item} is back");
            if count > 0 {
                self.happened.insert(*item)
            } else {
                self.lost.insert(*item)
            };
        }
        let place = |list: &[u64], item| list.iter().position(|other| *other == item);
        for one in lists.values() {
            for other in lists.values() {
                let common: Vec<u64> = one.iter().copied().filter(|n| other.contains(n)).collect();
                assert!(common.is_sorted_by_key(|item| place(other, *item)), "seed {seed}: order");
            }
        }
        self.sent.clear();
    }
}

/// One to three of some names.
fn some_of(names: &[String], rng: &mut Rng) -> Vec<String> {
    let mut names = names.to_vec();
    let count = 1 + rng.below(3);
    (0..count).map(|_| names.swap_remove(rng.below(names.len() as u64) as usize)).collect()
}

#[test]
fn nothing_that_was_answered_or_seen_is_lost_with_the_power() {
    for seed in 0..400 {
        let (mut rng, mut history) = (Rng::new(seed), History::default());
        let mut node = Node::new(Logs::Sync, seed % 2 == 0);
        let names: Vec<String> = (0..LANES).flat_map(|lane| keys_of(lane, 2)).collect();
        let mut item = 0;
        for _ in 0..4 {
            for _ in 0..rng.below(120) {
                match rng.below(20) {
                    0..=5 => {
                        let keys = some_of(&names, &mut rng);
                        let (lane, origin) = (rng.below(3) as u16, rng.below(4));
                        let step = if rng.chance(1, 4) { Step::Read } else { Step::Push(item) };
                        let reads = step == Step::Read;
                        let sent = Txn { keys: keys.clone(), step };
                        if reads {
                            history.reads.push((node.submit(lane, origin, sent), keys));
                            continue;
                        }
                        let tag = match rng.chance(1, 4) {
                            true => node.call(item, item as u32, sent),
                            false => node.submit(lane, origin, sent),
                        };
                        history.sent.insert(item, (tag, keys));
                        item += 1;
                    }
                    6..=15 => _ = node.0.deliver_any_mail(&mut rng),
                    16..=17 => _ = node.0.flush_lane(1, rng.below(3) as u16),
                    _ => _ = node.0.save_some(1, rng.below(3) as u16, rng.below(60) as usize),
                }
            }
            if rng.chance(1, 6) {
                node.settle();
            }
            history.note_answers(&node);
            node.cut(rng.next_u64());
            if rng.chance(1, 3) {
                // It goes again before a view has come, or before the lanes have told each other.
                if rng.chance(1, 2) {
                    node.0.set_role(1, Role::Active);
                    for _ in 0..rng.below(5) {
                        node.0.deliver_any_mail(&mut rng);
                    }
                    let lane = rng.below(3) as u16;
                    node.0.save(1, lane);
                }
                node.cut(rng.next_u64());
            }
            node.0.set_role(1, Role::Active);
            node.0.deliver_all_mail();
            history.judge(&mut node, &names, seed);
        }
    }
}

#[test]
fn without_waiting_for_the_log_what_was_flushed_is_there() {
    for seed in 0..100 {
        let (mut rng, mut node) = (Rng::new(seed), Node::new(Logs::Async, seed % 2 == 0));
        let names: Vec<String> = (0..LANES).flat_map(|lane| keys_of(lane, 2)).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        for round in 0..4_u64 {
            for item in 0..20 {
                let keys = some_of(&names, &mut rng);
                let sent = Txn { keys, step: Step::Push(round * 100 + item) };
                node.submit(rng.below(3) as u16, rng.below(4), sent);
                for _ in 0..rng.below(5) {
                    node.0.deliver_any_mail(&mut rng);
                }
            }
            node.settle();
            let flushed = node.read(&all);
            for item in 50..60 {
                let key = names[rng.below(6) as usize].clone();
                node.submit(0, 0, Txn { keys: vec![key], step: Step::Push(round * 100 + item) });
                node.0.deliver_all_mail();
            }
            node.cut_and_serve(seed);
            for (before, after) in flushed.into_iter().zip(node.read(&all)) {
                let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
                assert!(after.starts_with(&before), "seed {seed}: {before:?}, {after:?}");
            }
        }
    }
}
