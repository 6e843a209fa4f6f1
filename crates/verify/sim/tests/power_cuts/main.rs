//! Gates and the simulated disk, exercised by a small store: whatever a client or another node was
//! told is still true after the power went, at whichever call of a disk it goes.

mod log;
mod store;
mod world;

use std::collections::BTreeMap;

use quorate_disk::DeviceFaults;
use world::{NO_FAULTS, Plan, Report, run};

/// The results of many runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    answered: u64,
    unanswered: u64,
    damaged: u64,
    lost: u64,
    disk_events: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.answered += report.answered;
        self.unanswered += report.unanswered;
        self.damaged += report.damaged;
        self.lost += report.lost;
        for (name, count) in &report.disk_events {
            *self.disk_events.entry(name).or_default() += count;
        }
    }

    fn saw(&self, names: &[&str]) {
        for name in names {
            assert!(self.disk_events.contains_key(name), "no {name} in {:?}", self.disk_events);
        }
    }
}

/// Runs each seed once undisturbed, and then with the power going after each call of a disk.
fn cut_everywhere(plan: Plan, seeds: u64) -> Sum {
    let mut sum = Sum::default();
    for seed in 0..seeds {
        let calls = run(plan, seed).calls;
        for call in 1..=calls {
            let cuts_all = (seed + call) % 2 == 0;
            sum.add(&run(Plan { cut_after: Some(call), cuts_all, ..plan }, seed));
        }
    }
    sum
}

const TORN: &[&str] = &[
    "power cut: sector kept",
    "power cut: sector lost",
    "power cut: sector torn",
    "power cut: write torn, interleaved",
    "power cut: write torn, prefix kept",
    "power cut: write torn, suffix kept",
];

#[test]
fn power_cuts_take_nothing_that_a_client_knows_of() {
    let sum = cut_everywhere(Plan::SOUND, 400);
    assert!(sum.runs > 2_000 && sum.answered > 2 * sum.runs, "{} answers", sum.answered);
    assert_eq!((sum.damaged, sum.lost), (0, 0));
    sum.saw(TORN);
    sum.saw(&["write is short", "flush stalls"]);
}

#[test]
fn power_cuts_of_copies_take_nothing_that_another_node_was_told() {
    let sum = cut_everywhere(Plan { nodes: 3, ..Plan::SOUND }, 40);
    assert!(sum.runs > 2_000 && sum.answered > 2 * sum.runs, "{} answers", sum.answered);
    assert_eq!((sum.damaged, sum.lost), (0, 0));
    sum.saw(TORN);
}

#[test]
fn power_cuts_after_failing_writes_and_flushes_take_nothing() {
    let faults = DeviceFaults { write_error: 50, read_error: 100, flush_error: 50, ..NO_FAULTS };
    for nodes in [1, 3] {
        let sum = cut_everywhere(Plan { nodes, faults, ..Plan::SOUND }, 40);
        assert_eq!((sum.damaged, sum.lost), (0, 0));
        sum.saw(&["write fails", "read fails", "flush fails"]);
    }
}

#[test]
fn power_cuts_of_a_full_disk_take_nothing_that_a_client_knows_of() {
    let sum = cut_everywhere(Plan { disk_bytes: 12 * 1024, ..Plan::SOUND }, 30);
    assert_eq!((sum.damaged, sum.lost), (0, 0));
    sum.saw(&["full"]);
    assert!(sum.unanswered > sum.runs, "{} of {} runs", sum.unanswered, sum.runs);
}

/// Only the last batch can be taken for a torn one.
#[test]
fn power_cuts_with_rot_are_noticed() {
    let sum = cut_everywhere(Plan { rots: true, ..Plan::SOUND }, 100);
    assert!(sum.damaged > sum.runs / 4, "{} of {}", sum.damaged, sum.runs);
    assert_eq!(sum.lost, 0);
    sum.saw(&["sector rotten"]);
}

/// A log alone can't tell that a flush covered nothing, or covered another place; it must not take
/// what it finds there for its own.
#[test]
fn power_cuts_of_disks_that_lie_invent_nothing() {
    for (faults, name) in [
        (DeviceFaults { lie: 200, ..NO_FAULTS }, "flush lies"),
        (DeviceFaults { misdirection: 100, ..NO_FAULTS }, "sector misdirected"),
    ] {
        let sum = cut_everywhere(Plan { faults, ..Plan::SOUND }, 40);
        assert!(sum.damaged > 0 && sum.lost > 0, "{name}: the judge sees what is lost");
        sum.saw(&[name]);
    }
}
