//! What several protocols use: deadlines, clocks, queues.

mod clock;
mod deadlines;
mod origins;
mod unhashed;

use quorate_types::{Instant, Now};

/// A moment of the monotonic clock.
fn at(monotonic: u64) -> Now {
    Now { monotonic: Instant(monotonic), ..Now::default() }
}
