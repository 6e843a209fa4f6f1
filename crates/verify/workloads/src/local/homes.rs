//! Which node units are at home at.

use quorate_machine::Rng;

/// Draws after which a unit is taken wherever it is at home. With units dealt out evenly, even nine
/// nodes need that many in fewer than one of 10^50 cases.
const DRAWS_MAX: u32 = 1000;

/// The home of each unit of a part.
#[derive(Clone, Debug)]
pub(super) struct Homes(Vec<u8>);

impl Homes {
    /// So many units, dealt out over the nodes in turn.
    pub(super) fn new(units: u64, nodes: u16) -> Self {
        Self((0..units).map(|unit| (unit % u64::from(nodes)) as u8).collect())
    }

    /// The home of a unit.
    pub(super) fn of(&self, unit: u64) -> u16 {
        u16::from(self.0[unit as usize])
    }

    /// Moves a unit.
    pub(super) fn set(&mut self, unit: u64, node: u16) {
        self.0[unit as usize] = node as u8;
    }

    /// Draws until a unit is at home at the node and fits: so the units of a node keep the
    /// proportions of the distribution. `None` if hardly any fits.
    pub(super) fn draw(
        &self,
        node: u16,
        rng: &mut Rng,
        mut draw: impl FnMut(&mut Rng) -> u64,
        fits: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let mut last = None;
        for _ in 0..DRAWS_MAX {
            let unit = draw(rng);
            if fits(unit) {
                if self.of(unit) == node {
                    return Some(unit);
                }
                last = Some(unit);
            }
        }
        last
    }
}
