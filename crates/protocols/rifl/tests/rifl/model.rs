//! The tracker against a plain one: random steps, and copies made at any moment.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use quorate_rifl::{Call, CallError, Found, LeaseId, ResultTracker};
use quorate_types::{LaneId, MemberNumber, limits};

#[derive(Clone, Debug)]
enum Step {
    Begin { lease: u64, ahead: u64, back: u64, digest: u32 },
    Abandon { lease: u64, ahead: u64 },
    Complete { lease: u64, ahead: u64, back: u64, digest: u32, answer: Vec<u8> },
    Acknowledge { lease: u64, by: u64 },
    Close { lease: u64 },
    Discard { lease: u64 },
    Copy { bytes_max: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lease = 0..4u64;
    let ahead = prop_oneof![0..6u64, 0..limits::SESSION_WINDOW];
    let digest = 0..2u32;
    let answer = proptest::collection::vec(any::<u8>(), 0..40);
    let step = prop_oneof![
        4 => (lease.clone(), ahead.clone(), 0..4u64, digest.clone())
            .prop_map(|(lease, ahead, back, digest)| Step::Begin { lease, ahead, back, digest }),
        2 => (lease.clone(), ahead.clone()).prop_map(|(lease, ahead)| Step::Abandon { lease, ahead }),
        6 => (lease.clone(), ahead, 0..4u64, digest, answer).prop_map(
            |(lease, ahead, back, digest, answer)| Step::Complete { lease, ahead, back, digest, answer }
        ),
        2 => (lease.clone(), 0..5u64).prop_map(|(lease, by)| Step::Acknowledge { lease, by }),
        1 => lease.clone().prop_map(|lease| Step::Close { lease }),
        1 => lease.prop_map(|lease| Step::Discard { lease }),
        1 => (0..200usize).prop_map(|bytes_max| Step::Copy { bytes_max }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A plain map with one entry for every call ever made.
#[derive(Default)]
struct Plain {
    watermarks: BTreeMap<u64, u64>,
    records: BTreeMap<(u64, u64), (u32, Vec<u8>)>,
    running: BTreeMap<(u64, u64), u32>,
    closed: BTreeSet<u64>,
}

impl Plain {
    fn watermark(&self, lease: u64) -> u64 {
        self.watermarks.get(&lease).copied().unwrap_or_default()
    }

    fn find(&self, lease: u64, call: &Call) -> Result<Found<'_, u32>, CallError> {
        let key = (lease, call.sequence);
        if call.sequence < call.first_incomplete {
            return Err(CallError::Stale);
        }
        if self.closed.contains(&lease) {
            return Err(CallError::Closed);
        }
        if call.sequence < self.watermark(lease) {
            return Err(CallError::Stale);
        }
        match (self.records.get(&key), self.running.get(&key)) {
            (Some((digest, _)), _) if *digest != call.digest => Err(CallError::Different),
            (Some((_, answer)), _) => Ok(Found::Completed(answer)),
            (None, Some(attempt)) => Ok(Found::InProgress(*attempt)),
            (None, None) => Ok(Found::New),
        }
    }

    fn acknowledge(&mut self, lease: u64, first: u64) {
        if let Some(watermark) = self.watermarks.get_mut(&lease) {
            *watermark = first.max(*watermark);
            let watermark = *watermark;
            self.records.retain(|key, _| key.0 != lease || key.1 >= watermark);
        }
    }

    fn is_busy(&self, lease: u64) -> bool {
        self.running.keys().any(|key| key.0 == lease)
    }

    fn forget(&mut self, lease: u64) {
        self.watermarks.remove(&lease);
        self.records.retain(|key, _| key.0 != lease);
    }
}

fn lease_id(lease: u64) -> LeaseId {
    LeaseId::new(MemberNumber(1), LaneId(0), lease)
}

fn copied(calls: &ResultTracker<u32>, bytes_max: usize) -> ResultTracker<u32> {
    let mut copy = ResultTracker::default();
    copy.begin_copy();
    let mut from = Some((LeaseId(0), 0));
    while let Some(part) = from {
        let mut bytes = Vec::new();
        from = calls.encode_from(part, bytes_max, &mut bytes);
        copy.merge(&bytes).expect("just written");
    }
    copy.end_copy();
    copy
}

fn run(steps: Vec<Step>) {
    let (mut calls, mut plain) = (ResultTracker::<u32>::default(), Plain::default());
    let mut bases = [0u64; 4];
    for (step, attempt) in steps.into_iter().zip(0..) {
        let at = u64::from(attempt) + 1_000;
        let make = |lease: u64, ahead: u64, back: u64, digest: u32| {
            let base = bases[lease as usize];
            let first_incomplete = base.saturating_sub(back);
            let sequence = (base + ahead).min(first_incomplete + limits::SESSION_WINDOW - 1);
            Call { lease: lease_id(lease), sequence, first_incomplete, digest }
        };
        match step {
            Step::Begin { lease, ahead, back, digest } => {
                let call = make(lease, ahead, back, digest);
                assert_eq!(calls.find(&call), plain.find(lease, &call), "{call:?}");
                if calls.find(&call) == Ok(Found::New) {
                    calls.begin(&call, attempt, 0);
                    plain.running.insert((lease, call.sequence), attempt);
                }
            }
            Step::Abandon { lease, ahead } => {
                let call = make(lease, ahead, 0, 0);
                if let Some(attempt) = plain.running.remove(&(lease, call.sequence)) {
                    calls.abandon(&call, attempt);
                }
            }
            Step::Complete { lease, ahead, back, digest, answer } => {
                let call = make(lease, ahead, back, digest);
                // Another attempt has been decided, whichever is under way here.
                calls.complete(&call, attempt, at, answer.as_slice());
                if !plain.closed.contains(&lease) {
                    plain.watermarks.entry(lease).or_default();
                    plain.acknowledge(lease, call.first_incomplete);
                    if call.sequence >= plain.watermark(lease) {
                        plain.records.entry((lease, call.sequence)).or_insert((digest, answer));
                    }
                }
            }
            Step::Acknowledge { lease, by } => {
                bases[lease as usize] += by;
                calls.acknowledge(lease_id(lease), bases[lease as usize]);
                plain.acknowledge(lease, bases[lease as usize]);
            }
            Step::Close { lease } => {
                assert_eq!(calls.close(lease_id(lease)), !plain.is_busy(lease));
                if !plain.is_busy(lease) && plain.watermarks.contains_key(&lease) {
                    plain.forget(lease);
                    plain.closed.insert(lease);
                }
            }
            Step::Discard { lease } => {
                assert_eq!(calls.discard(lease_id(lease), 1), !plain.is_busy(lease));
                if !plain.is_busy(lease) {
                    plain.forget(lease);
                    plain.closed.remove(&lease);
                }
            }
            Step::Copy { bytes_max } => {
                calls.abandon_all();
                plain.running.clear();
                calls = copied(&calls, bytes_max);
            }
        }
        calls.check_invariants();
        assert_eq!(calls.records(), plain.records.len());
        for (lease, sequence) in plain.records.keys() {
            let (lease, sequence) = (*lease, *sequence);
            let call =
                Call { lease: lease_id(lease), sequence, first_incomplete: sequence, digest: 0 };
            assert_eq!(calls.find(&call), plain.find(lease, &call), "{call:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_tracker_does_what_a_plain_one_does(steps in steps()) {
        run(steps);
    }
}
