//! The configurations of the search, and which of them make others superfluous.

use std::collections::HashMap;

use super::Slots;
use crate::model::State;

#[derive(Clone)]
pub(super) struct Configuration {
    pub(super) state: State,
    /// The state that the next loss leaves, once that is chosen.
    pub(super) kept: Option<State>,
    /// Pending operations that have taken effect.
    pub(super) placed: Slots,
    /// Pending sets that may be counted as placed and overwritten. Disjoint from `placed`.
    pub(super) free: Slots,
    /// Unknown operations that have taken effect: class and how many, sorted by class.
    pub(super) used: Vec<(u32, u32)>,
    /// The end of the trace that led here.
    pub(super) trace: u32,
}

/// Configurations. None of them dominates another one.
#[derive(Default)]
pub(super) struct Antichain {
    by_state: HashMap<(State, Option<State>), Vec<Configuration>>,
    pub(super) len: usize,
}

impl Antichain {
    /// Whether the configuration was kept, and with how many others it was compared.
    pub(super) fn insert(&mut self, new: Configuration, pure: Slots) -> (bool, usize) {
        let others = self.by_state.entry((new.state, new.kept)).or_default();
        let compared = others.len();
        if others.iter().any(|other| dominates(other, &new, pure)) {
            return (false, compared);
        }
        others.retain(|other| !dominates(&new, other, pure));
        others.push(new);
        self.len = self.len + others.len() - compared;
        (true, compared)
    }

    pub(super) fn into_vec(self) -> Vec<Configuration> {
        let mut all: Vec<Configuration> = self.by_state.into_values().flatten().collect();
        all.sort_unstable_by_key(|one| (one.state, one.kept, one.trace));
        all
    }
}

/// Whether every continuation of `b` is also one of `a`; both have the same state, and keep the same.
///
/// For a pending operation, *free* is at least as good as placed and as not placed. A pure one is
/// better placed. For others, placed and not placed can't be compared.
fn dominates(a: &Configuration, b: &Configuration, pure: Slots) -> bool {
    b.free & !a.free == 0
        && (a.placed ^ b.placed) & !pure & !a.free == 0
        && b.placed & pure & !a.placed == 0
        && uses_no_more(&a.used, &b.used)
}

/// Whether every class is used at most as often in `a` as in `b`.
fn uses_no_more(a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    let mut b = b.iter();
    a.iter().all(|(class, count)| {
        b.find(|(other, _)| other >= class)
            .is_some_and(|(other, limit)| other == class && count <= limit)
    })
}
