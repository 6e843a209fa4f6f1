//! The monotonic clock of a machine: its rate is its own, and may be far off for a while.

use quorate_types::Instant;

/// A clock that has run at one rate after the other.
pub(crate) struct Monotonic {
    /// How much faster than world time it runs when nothing is wrong, in millionths.
    usual_ppm: i64,
    /// The pieces of the clock: the world time and the reading at which each rate began.
    pieces: Vec<Piece>,
    /// The world time until which it runs wrong, if it does.
    wrong_until: Option<u64>,
}

#[derive(Clone, Copy)]
struct Piece {
    from: u64,
    reading: u64,
    ppm: i64,
}

impl Monotonic {
    /// A clock that shows `reading` at the beginning.
    pub(crate) fn new(reading: u64, usual_ppm: i64) -> Self {
        let pieces = vec![Piece { from: 0, reading, ppm: usual_ppm }];
        Self { usual_ppm, pieces, wrong_until: None }
    }

    /// Its reading at a time of the world, now or in the past.
    pub(crate) fn read(&self, at: u64) -> Instant {
        let piece = self.pieces.iter().rev().find(|piece| piece.from <= at);
        let piece = piece.expect("the first piece begins with the world");
        let passed = at - piece.from;
        let drift = i128::from(passed) * i128::from(piece.ppm) / 1_000_000;
        let local = u64::try_from(i128::from(passed) + drift).expect("clocks run forward");
        Instant(piece.reading + local)
    }

    /// The world time at which it will show `local` if its rate stays; rounded up.
    pub(crate) fn world_time(&self, local: Instant) -> u64 {
        let piece = self.pieces.last().expect("there is a first piece");
        let elapsed = i128::from(local.0.saturating_sub(piece.reading));
        let rate = i128::from(1_000_000 + piece.ppm);
        if rate == 0 {
            return u64::MAX;
        }
        let at = i128::from(piece.from) + elapsed * 1_000_000 / rate + 1;
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// From now on it runs wrong by so many millionths; -1,000,000 is a clock that stands still.
    pub(crate) fn run(&mut self, at: u64, ppm: i64, until: u64) {
        self.change(at, ppm);
        self.wrong_until = Some(until);
    }

    /// Lets it run right again if its wrong time has ended. Returns whether it did.
    pub(crate) fn mend(&mut self, at: u64, at_once: bool) -> bool {
        let is_due = self.wrong_until.is_some_and(|until| until <= at || at_once);
        if is_due {
            self.wrong_until = None;
            self.change(at, self.usual_ppm);
        }
        is_due
    }

    /// Whether it runs within the bound that nodes are told.
    pub(crate) fn is_right(&self) -> bool {
        self.wrong_until.is_none()
    }

    /// Whether it has always run within that bound.
    pub(crate) fn was_always_right(&self) -> bool {
        self.pieces.len() == 1
    }

    /// The spans of world time in which it ran wrong.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = self.pieces.iter().skip(1).map(|piece| piece.from).chain([u64::MAX]);
        let all = self.pieces.iter().zip(ends);
        let wrong = all.filter(|(piece, _)| piece.ppm != self.usual_ppm);
        wrong.map(|(piece, end)| (piece.from, end))
    }

    fn change(&mut self, at: u64, ppm: i64) {
        let Instant(reading) = self.read(at);
        self.pieces.push(Piece { from: at, reading, ppm });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_ran_wrong_goes_on_from_where_it_stands() {
        let mut clock = Monotonic::new(1_000, 100_000);
        assert_eq!(clock.read(100), Instant(1_110));
        clock.run(100, -1_000_000, 300);
        assert_eq!([clock.read(200), clock.read(300)], [Instant(1_110); 2]);
        assert_eq!(clock.world_time(Instant(1_111)), u64::MAX);
        assert_eq!(clock.read(50), Instant(1_055), "what it has shown stays");
        assert!(!clock.mend(200, false) && !clock.is_right());
        assert!(clock.mend(300, false) && clock.is_right());
        assert_eq!(clock.read(400), Instant(1_220));
        assert_eq!(clock.world_time(Instant(1_220)), 401);
        assert!(!clock.mend(400, true), "it runs right");
        assert!(clock.wrong().eq([(100, 300)]));
        clock.run(500, 1_000_000, 600);
        assert!(clock.wrong().eq([(100, 300), (500, u64::MAX)]));
    }
}
