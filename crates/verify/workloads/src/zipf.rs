//! Ranks whose frequency falls with a power of their number.

use quorate_machine::Rng;

/// Why a distribution can't be made.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum BadZipf {
    /// There must be a rank to draw, and a rank must be exact as a floating-point number.
    #[error("a Zipf distribution has between 1 and {max} ranks, not {0}", max = Zipf::RANKS_MAX)]
    Ranks(u64),
    /// A coefficient outside the range is a mistake rather than a wish.
    #[error("a Zipf coefficient lies between 0 (uniform) and {max}, not {0}", max = Zipf::THETA_MAX)]
    Theta(f64),
}

/// Draws rank *k* of `1..=n` with probability `k^-theta / H`, where `H` is the sum of all
/// `k^-theta`.
///
/// The method is rejection-inversion (Hörmann and Derflinger, ACM TOMACS 6(3), 1996): it inverts
/// the integral of `x^-theta`, which has a closed form, rounds to a rank, and rejects the small
/// excess of the integral over the sum. It is exact for every coefficient, 0 and 1 included, needs
/// a handful of words whatever `n` is, and fewer than 1.2 draws for each rank.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: u64,
    theta: f64,
    /// The integral up to the lower end of rank 1, widened so that rank 1 gets its whole share.
    integral_first: f64,
    /// The integral up to the upper end of the last rank.
    integral_last: f64,
    /// A candidate that is no more than this below its rank needs no further test.
    squeeze: f64,
}

impl Zipf {
    /// The most ranks.
    pub const RANKS_MAX: u64 = 1 << 40;
    /// The largest coefficient.
    pub const THETA_MAX: f64 = 2.0;

    /// A distribution over `1..=ranks` with coefficient `theta`; 0 is uniform.
    ///
    /// # Errors
    /// [`BadZipf`] names the argument that is out of range.
    pub fn new(ranks: u64, theta: f64) -> Result<Self, BadZipf> {
        if !(1..=Self::RANKS_MAX).contains(&ranks) {
            return Err(BadZipf::Ranks(ranks));
        }
        if !(0.0..=Self::THETA_MAX).contains(&theta) {
            return Err(BadZipf::Theta(theta));
        }
        let integral_first = integral(1.5, theta) - 1.0;
        let integral_last = integral(exact(ranks) + 0.5, theta);
        let squeeze = 2.0 - inverse(integral(2.5, theta) - height(2.0, theta), theta);
        Ok(Self { ranks, theta, integral_first, integral_last, squeeze })
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Draws a rank; 1 is the most frequent one.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        if self.theta == 0.0 {
            return 1 + rng.below(self.ranks);
        }
        loop {
            let area = self.integral_last
                + unit(rng.next_u64()) * (self.integral_first - self.integral_last);
            let point = inverse(area, self.theta);
            // The cast saturates, so that rounding errors at either end stay among the ranks.
            let rank = ((point + 0.5) as u64).clamp(1, self.ranks);
            let whole = exact(rank);
            if whole - point <= self.squeeze
                || area >= integral(whole + 0.5, self.theta) - height(whole, self.theta)
            {
                return rank;
            }
        }
    }
}

/// A rank as a floating-point number, exact up to [`Zipf::RANKS_MAX`].
fn exact(rank: u64) -> f64 {
    rank as f64
}

/// A number in `0.0..1.0` from 53 of these bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// `x^-theta`.
fn height(x: f64, theta: f64) -> f64 {
    (-theta * x.ln()).exp()
}

/// The integral of [`height`] from 1 to `x`: `(x^(1-theta) - 1) / (1-theta)`, or `ln x` if theta
/// is 1. Written so that it keeps its precision near 1.
fn integral(x: f64, theta: f64) -> f64 {
    let log = x.ln();
    let exponent = (1.0 - theta) * log;
    let slope = match exponent.abs() < SMALL {
        true => 1.0 + exponent / 2.0 * (1.0 + exponent / 3.0),
        false => exponent.exp_m1() / exponent,
    };
    slope * log
}

/// Undoes [`integral`].
fn inverse(area: f64, theta: f64) -> f64 {
    // Rounding may lead below -1, where the logarithm is not defined.
    let argument = (area * (1.0 - theta)).max(-1.0);
    let slope = match argument.abs() < SMALL {
        true => 1.0 - argument * (0.5 - argument / 3.0),
        false => argument.ln_1p() / argument,
    };
    (slope * area).exp()
}

/// Below it, a quotient of two small numbers is replaced by the first terms of its series, whose
/// next term is lost in rounding.
const SMALL: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 400_000;

    /// Expected share of each rank.
    fn shares(ranks: u64, theta: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=ranks).map(|rank| (rank as f64).powf(-theta)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    fn counts(ranks: u64, theta: f64, seed: u64) -> Vec<u32> {
        let zipf = Zipf::new(ranks, theta).unwrap();
        let mut rng = Rng::new(seed);
        let mut counts = vec![0; ranks as usize];
        for _ in 0..DRAWS {
            counts[zipf.draw(&mut rng) as usize - 1] += 1;
        }
        counts
    }

    /// Pearson's statistic in standard deviations of its distribution; every rank is expected
    /// often enough for that.
    fn surprise(counts: &[u32], shares: &[f64]) -> f64 {
        let expected = |share: &f64| share * f64::from(DRAWS);
        assert!(shares.iter().all(|share| expected(share) >= 5.0));
        let terms = counts.iter().zip(shares).map(|(&count, share)| {
            let expected = expected(share);
            (f64::from(count) - expected).powi(2) / expected
        });
        let freedom = (shares.len() - 1) as f64;
        (terms.sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn frequencies_are_those_of_the_closed_form() {
        for (ranks, theta) in [
            (1000, 0.0),
            (1000, 0.3),
            (1000, 0.6),
            (1000, 0.9),
            (1000, 0.99),
            (1000, 1.0),
            (1000, 1.2),
            (100, 2.0),
            (2, 0.9),
            (3, 0.6),
        ] {
            let drawn = counts(ranks, theta, 42);
            let surprise = surprise(&drawn, &shares(ranks, theta));
            assert!(surprise.abs() < 4.0, "{ranks} ranks, theta {theta}: {surprise}");
        }
    }

    #[test]
    fn each_head_rank_has_its_share() {
        for theta in [0.0, 0.6, 0.9, 0.99] {
            let drawn = counts(1000, theta, 7);
            for (rank, (&count, share)) in
                drawn.iter().zip(shares(1000, theta)).enumerate().take(20)
            {
                let expected = share * f64::from(DRAWS);
                let deviation = (expected * (1.0 - share)).sqrt();
                let distance = (f64::from(count) - expected).abs() / deviation;
                assert!(distance < 4.5, "theta {theta}, rank {}: {distance}", rank + 1);
            }
        }
    }

    #[test]
    fn the_hottest_of_1000_keys_has_9_5_percent_at_0_9_and_the_next_ranks_theirs() {
        let drawn = counts(1000, 0.9, 1);
        let percent = |rank: usize| f64::from(drawn[rank - 1]) * 100.0 / f64::from(DRAWS);
        for (rank, expected) in [(1, 9.5), (2, 5.1), (3, 3.5), (4, 2.7)] {
            let got = percent(rank);
            assert!((got - expected).abs() < 0.15, "rank {rank}: {got}%, not {expected}%");
        }
    }

    #[test]
    fn a_wrong_coefficient_would_be_noticed() {
        for (theta, other) in [(0.6, 0.62), (0.9, 0.91), (0.99, 1.0), (0.0, 0.03)] {
            let surprise = surprise(&counts(1000, theta, 42), &shares(1000, other));
            assert!(surprise > 4.0, "{theta} passes for {other}: {surprise}");
        }
    }

    #[test]
    fn large_ranges_are_drawn_from_end_to_end() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let zipf = Zipf::new(Zipf::RANKS_MAX, theta).unwrap();
            let mut rng = Rng::new(3);
            let drawn: Vec<u64> = (0..20_000).map(|_| zipf.draw(&mut rng)).collect();
            assert!(drawn.iter().all(|rank| (1..=zipf.ranks()).contains(rank)));
            assert!(drawn.iter().any(|rank| *rank > zipf.ranks() / 4), "theta {theta}");
        }
        let one = Zipf::new(1, 0.9).unwrap();
        assert_eq!(one.draw(&mut Rng::new(1)), 1);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        assert_eq!(Zipf::new(0, 0.5).unwrap_err(), BadZipf::Ranks(0));
        assert!(matches!(Zipf::new(10, -0.1), Err(BadZipf::Theta(_))));
        assert!(matches!(Zipf::new(10, f64::NAN), Err(BadZipf::Theta(_))));
        let message = Zipf::new(10, 3.0).unwrap_err().to_string();
        assert_eq!(message, "a Zipf coefficient lies between 0 (uniform) and 2, not 3");
    }
}
