//! A seeded generator for machines: jitter, virtual ids, sampling. Not for secrets.

use quorate_types::Duration;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one word of state, so that a machine that holds
/// one stays cheap to clone, compare and hash.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose sequence `seed` decides.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no number to draw");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A span of time shorter than `bound`.
    ///
    /// # Panics
    /// If `bound` is no time.
    pub fn span_below(&mut self, bound: Duration) -> Duration {
        Duration::from_nanos(self.below(bound.as_nanos() as u64))
    }

    /// True with probability `numerator / denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// A generator of its own for a part, so that draws of one part don't shift another's.
    pub fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs of SplitMix64 for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_below_their_bound() {
        let mut rng = Rng::new(7);
        assert!((0..1000).all(|_| rng.below(3) < 3));
    }
}
