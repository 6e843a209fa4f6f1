//! What becomes of writes that no flush has covered.

use quorate_machine::Rng;

/// The fates of so many writes in a row when the power goes: all are kept, or none, or those before or
/// behind some moment, or any.
#[derive(Clone, Copy, Debug)]
pub struct Fates {
    shape: u64,
    border: u64,
}

impl Fates {
    /// Of so many writes.
    pub fn draw(rng: &mut Rng, count: u64) -> Self {
        Self { shape: rng.below(5), border: rng.below(count + 1) }
    }

    /// Whether this one is kept, counted from 0.
    pub fn is_kept(self, index: u64, rng: &mut Rng) -> bool {
        match self.shape {
            0 => false,
            1 => true,
            2 => index < self.border,
            3 => index >= self.border,
            _ => rng.chance(1, 2),
        }
    }

    /// How a device counts this, if some were kept and some not.
    pub(crate) const fn event(self) -> &'static str {
        match self.shape {
            2 => "power cut: write torn, prefix kept",
            3 => "power cut: write torn, suffix kept",
            _ => "power cut: write torn, interleaved",
        }
    }
}
