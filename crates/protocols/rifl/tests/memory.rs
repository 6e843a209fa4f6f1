//! The memory of sessions, counted at the allocator.

use std::alloc::System;

use quorate_rifl::{Call, LeaseId, ResultTracker};
use quorate_types::{LaneId, MemberNumber};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SESSIONS: u64 = 1_000_000;

/// Bytes that are allocated now. A reallocation counts as an allocation and a release.
fn held() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

/// Opens sessions that are idle with one small record. Leases come from three owners, as if clients
/// had opened them at all nodes.
fn open(calls: &mut ResultTracker<u64>, at_random: bool) {
    for number in 0..SESSIONS {
        // An odd factor makes a permutation of the counters.
        let number = if at_random { number.wrapping_mul(0x9e37_79b1) % (1 << 30) } else { number };
        let lease = LeaseId::new(MemberNumber(1 + (number % 3) as u32), LaneId(0), number / 3);
        let first = Call { lease, sequence: 0, first_incomplete: 0, digest: 1 };
        calls.begin(&first, number, 0);
        calls.complete(&first, number, 1, b":1000000\r\n");
        let second = Call { sequence: 1, first_incomplete: 1, ..first };
        calls.complete(&second, number, 2, b":1000001\r\n");
    }
}

#[test]
fn a_million_idle_sessions_take_at_most_120_bytes_each() {
    for at_random in [false, true] {
        let before = held();
        let mut calls = ResultTracker::default();
        open(&mut calls, at_random);
        let sessions = calls.len() as isize;
        assert!(sessions as u64 > SESSIONS * 9 / 10, "{sessions} sessions");
        assert_eq!(calls.records(), calls.len());
        let each = (held() - before) / sessions;
        println!("{each} bytes a session, at random: {at_random}");
        assert!(each <= 120, "{each} bytes a session");
        let leases: Vec<LeaseId> = calls.leases_after(None).collect();
        let mut freed = leases.into_iter();
        assert!(freed.all(|lease| calls.close(lease)));
        drop(freed);
        let closed = (held() - before) / sessions;
        println!("{closed} bytes a closed session");
        assert!(closed <= 24, "{closed} bytes a closed session");
        let leases: Vec<LeaseId> = calls.leases_after(None).collect();
        assert!(leases.into_iter().all(|lease| calls.discard(lease, 1)));
        let left = held() - before;
        assert!(left < 4096, "{left} bytes are left, more than empty maps");
    }
}
