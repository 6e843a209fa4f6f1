//! Spreads ranks over the key space.

/// Odd multipliers of the rounds: those of SplitMix64's finisher and of its sequence.
const MULTIPLIERS: [u64; 3] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0x9e37_79b9_7f4a_7c15];

/// A fixed bijection of `0..size` to itself that puts neighbours far apart, so that the hottest
/// keys of a skewed workload don't share a block, a bucket or a range.
///
/// It depends on nothing but the size: generators with different seeds make the same keys hot.
#[derive(Clone, Debug)]
pub struct Permutation {
    size: u64,
    /// One less than the smallest power of two that is no less than the size.
    mask: u64,
    /// Half the bits of that power of two, at least one.
    shift: u32,
}

impl Permutation {
    /// The permutation of `0..size`.
    ///
    /// # Panics
    /// If `size` is 0 or more than half of all 64-bit numbers.
    pub fn new(size: u64) -> Self {
        assert!((1..=1 << 63).contains(&size), "a permutation of {size} numbers");
        let span = size.next_power_of_two();
        Self { size, mask: span - 1, shift: span.trailing_zeros().div_ceil(2).max(1) }
    }

    /// The place of `index`.
    ///
    /// # Panics
    /// If `index` is not below the size.
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.size, "{index} is not below {}", self.size);
        // Walks along the cycle of a permutation of the power of two until it is back below the
        // size, which takes fewer than two steps on average and leaves a permutation.
        let mut place = self.mix(index);
        while place >= self.size {
            place = self.mix(place);
        }
        place
    }

    /// A permutation of the power of two: each step can be undone.
    fn mix(&self, mut number: u64) -> u64 {
        for multiplier in MULTIPLIERS {
            number = number.wrapping_add(multiplier >> 32) & self.mask;
            number = number.wrapping_mul(multiplier) & self.mask;
            number ^= number >> self.shift;
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_reached_once() {
        for size in (1..200).chain([1000, 1024, 1025, 65_537]) {
            let permutation = Permutation::new(size);
            let mut reached: Vec<u64> = (0..size).map(|index| permutation.apply(index)).collect();
            reached.sort_unstable();
            assert!(reached.into_iter().eq(0..size), "size {size}");
        }
    }

    #[test]
    fn the_hottest_keys_are_no_neighbours() {
        for size in [100_000, 1_000_000, 1 << 20, 24_000_000] {
            let permutation = Permutation::new(size);
            let mut hot: Vec<u64> = (0..10).map(|rank| permutation.apply(rank)).collect();
            hot.sort_unstable();
            let closest = hot.windows(2).map(|pair| pair[1] - pair[0]).min();
            assert!(closest > Some(16), "size {size}: {hot:?}");
        }
    }

    #[test]
    fn the_hottest_keys_are_spread_evenly() {
        let permutation = Permutation::new(1_000_000);
        let mut tenths = [0_u32; 10];
        for rank in 0..10_000 {
            tenths[permutation.apply(rank) as usize / 100_000] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1200).contains(count)), "{tenths:?}");
    }
}
