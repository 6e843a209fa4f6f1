//! Hybrid time.

use quorate_machine::HybridClock;
use quorate_types::Instant;

#[test]
fn the_clock_runs_on_from_the_latest_reading_and_never_goes_back() {
    let mut clock = HybridClock::default();
    assert_eq!(clock.read(Instant(7)), 7);
    assert!(clock.reach(Instant(10), 1000));
    assert_eq!((clock.read(Instant(10)), clock.read(Instant(15))), (1000, 1005));
    assert!(!clock.reach(Instant(15), 900), "a reading that is behind changes nothing");
    assert!(!clock.reach(Instant(15), 1005));
    assert_eq!(clock.read(Instant(15)), 1005);
    clock.reach(Instant(15), 1006);
    assert_eq!(clock, HybridClock::ahead_by(1006 - 15));
    clock.reach(Instant(15), u64::MAX);
    assert_eq!(clock.read(Instant(20)), u64::MAX, "the end of time is where it stays");
    assert_eq!(clock.ahead(), u64::MAX - 15);
}
