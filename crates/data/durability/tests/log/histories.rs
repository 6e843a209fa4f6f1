//! Random histories: one seed is one, with crashes at any step of the disk.

use std::collections::BTreeMap;

use quorate_disk::DeviceFaults;

use crate::world::{Plan, Report, run};

const SOUND: DeviceFaults = DeviceFaults {
    short_write: 50,
    write_error: 0,
    read_error: 0,
    flush_error: 0,
    stall: 0,
    lie: 0,
    misdirection: 0,
    read_rot: 20,
    garbled: 0,
};

const PLAN: Plan = Plan {
    actions: 400,
    faults: SOUND,
    crashes: 15,
    cut_after: None,
    appends_after: 0,
    rots: false,
    fills: false,
    snapshots: true,
};

#[derive(Default)]
struct Sum {
    all: Report,
}

impl Sum {
    fn of(plan: Plan, seeds: std::ops::Range<u64>) -> Self {
        let mut sum = Self::default();
        seeds.for_each(|seed| sum.add(&run(plan, seed)));
        sum
    }

    fn add(&mut self, report: &Report) {
        let all = &mut self.all;
        all.steps += report.steps;
        all.recoveries += report.recoveries;
        all.entries += report.entries;
        all.damaged += report.damaged;
        all.lost += report.lost;
        all.full += report.full;
        all.dead += report.dead;
        all.snapshots += report.snapshots;
        all.from_snapshot += report.from_snapshot;
        for (name, count) in &report.disk_events {
            *all.disk_events.entry(name).or_default() += count;
        }
    }

    fn saw(&self, names: &[&str]) {
        let events: &BTreeMap<_, _> = &self.all.disk_events;
        names.iter().for_each(|name| assert!(events.contains_key(name), "no {name} in {events:?}"));
    }
}

#[test]
fn what_was_called_durable_comes_back_after_power_cuts_and_crashes() {
    let sum = Sum::of(PLAN, 0..1200);
    let all = &sum.all;
    assert_eq!((all.damaged, all.lost, all.dead, all.full), (0, 0, 0, 0));
    assert!(all.recoveries > 8000 && all.snapshots > 1000 && all.from_snapshot > 1000, "{all:?}");
    sum.saw(&[
        "power cut: sector torn",
        "power cut: write torn, interleaved",
        "power cut: write torn, prefix kept",
        "power cut: write torn, suffix kept",
        "read is rotten",
        "write is short",
    ]);
}

/// Without snapshots the log is all there is, and grows.
#[test]
fn a_log_without_snapshots_is_read_from_its_beginning() {
    let sum = Sum::of(Plan { snapshots: false, crashes: 30, actions: 250, ..PLAN }, 0..500);
    assert_eq!((sum.all.damaged, sum.all.lost, sum.all.snapshots), (0, 0, 0));
    assert!(sum.all.recoveries > 4000, "{:?}", sum.all);
}

/// A sector that is torn may be unreadable as a whole; so no write touches one that holds durable
/// bytes.
#[test]
fn sectors_that_a_power_cut_garbles_hold_nothing_durable() {
    let faults = DeviceFaults { garbled: 700, ..SOUND };
    let sum = Sum::of(Plan { faults, crashes: 40, ..PLAN }, 0..600);
    assert_eq!((sum.all.damaged, sum.all.lost), (0, 0));
    sum.saw(&["power cut: sector garbled"]);
}

/// A log with little in it is where restarts write over what they have found.
#[test]
fn restarts_of_a_log_with_one_batch_keep_it() {
    let faults = DeviceFaults { garbled: 900, ..SOUND };
    let plan = Plan { faults, crashes: 200, actions: 80, snapshots: false, ..PLAN };
    let sum = Sum::of(plan, 0..3000);
    assert_eq!((sum.all.damaged, sum.all.lost), (0, 0));
}

/// Restarts of a log that was prepared, and that holds nothing or next to nothing.
#[test]
fn restarts_of_an_empty_log_keep_its_segment() {
    for faults in [
        SOUND,
        DeviceFaults { garbled: 500, ..SOUND },
        DeviceFaults { flush_error: 100, write_error: 20, ..SOUND },
    ] {
        let plan = Plan { faults, crashes: 120, actions: 60, snapshots: false, ..PLAN };
        let sum = Sum::of(Plan { appends_after: 50, ..plan }, 0..2000);
        assert_eq!((sum.all.damaged, sum.all.lost), (0, 0));
    }
}

#[test]
fn a_full_disk_takes_nothing_away_and_the_log_goes_on_when_there_is_room() {
    let sum = Sum::of(Plan { fills: true, ..PLAN }, 0..800);
    assert_eq!((sum.all.damaged, sum.all.lost, sum.all.dead), (0, 0, 0));
    assert!(sum.all.full > 1000, "{:?}", sum.all);
}

/// A failed flush ends the log. The next process may find in the cache what is not on the disk.
#[test]
fn a_failed_flush_or_write_takes_nothing_away_that_was_called_durable() {
    let faults = DeviceFaults { flush_error: 30, write_error: 10, ..SOUND };
    let sum = Sum::of(Plan { faults, ..PLAN }, 0..1200);
    assert_eq!((sum.all.damaged, sum.all.lost), (0, 0));
    assert!(sum.all.dead > 1000, "{:?}", sum.all);
    sum.saw(&["flush fails", "write fails"]);
}

/// What can't be read is an error, never the end of the log.
#[test]
fn reads_that_fail_are_no_end() {
    let faults = DeviceFaults { read_error: 60, ..SOUND };
    let sum = Sum::of(Plan { faults, crashes: 30, ..PLAN }, 0..600);
    assert_eq!(sum.all.lost, 0);
    sum.saw(&["read fails"]);
}

/// Rot is reported, or it is where nothing is needed. Only the last batch of all can be taken for a
/// torn one.
#[test]
fn rot_is_never_taken_for_the_end() {
    let sum = Sum::of(Plan { rots: true, crashes: 30, ..PLAN }, 0..1500);
    assert_eq!(sum.all.lost, 0);
    assert!(sum.all.damaged > 500, "{:?}", sum.all);
}

/// A log alone can't tell that the flush of its last batch lied. It invents nothing, and reports what
/// is missing in its middle.
#[test]
fn disks_that_lie_make_no_log_invent_anything() {
    for (faults, name) in [
        (DeviceFaults { lie: 60, ..SOUND }, "flush lies"),
        (DeviceFaults { misdirection: 20, ..SOUND }, "sector misdirected"),
    ] {
        let sum = Sum::of(Plan { faults, crashes: 30, ..PLAN }, 0..600);
        assert!(sum.all.damaged > 50, "{name}: {:?}", sum.all);
        sum.saw(&[name]);
    }
}

/// Small histories, with the power going after each step of the disk in turn.
#[test]
fn a_power_cut_after_each_step_takes_nothing() {
    let mut sum = Sum::default();
    for (seed, faults) in
        (0..24).zip([SOUND, DeviceFaults { garbled: 500, ..SOUND }].iter().cycle())
    {
        let plan = Plan { actions: 220, crashes: 0, faults: *faults, ..PLAN };
        let steps = run(plan, seed).steps;
        for step in 1..=steps {
            sum.add(&run(Plan { cut_after: Some(step), ..plan }, seed));
        }
    }
    assert_eq!((sum.all.damaged, sum.all.lost), (0, 0));
    assert!(sum.all.recoveries > 5000, "{:?}", sum.all);
}
