//! The order of what one origin asks for.
//!
//! Two transactions of one lane each overtake each other only if they are of different lanes, and
//! then they have no key in common. One over several lanes may share a key with any other, so it is
//! under way alone.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Whether a transaction needs several lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wide {
    Yes,
    No,
}

#[derive(Clone, Debug)]
struct Line<W> {
    under_way: usize,
    /// What is under way needs several lanes.
    wide: bool,
    waiting: VecDeque<(Wide, W)>,
}

/// The origins that have something under way.
#[derive(Clone, Debug)]
pub(crate) struct Origins<W>(BTreeMap<u64, Line<W>>);

impl<W> Default for Origins<W> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<W> Line<W> {
    fn admits(&self, wide: Wide) -> bool {
        self.under_way == 0 || (wide == Wide::No && !self.wide)
    }
}

impl<W> Origins<W> {
    /// Whether nothing of this origin is under way.
    pub(crate) fn is_free(&self, origin: u64) -> bool {
        !self.0.contains_key(&origin)
    }

    /// Whether a piece of work may begin: then it is given back. Otherwise it waits.
    pub(crate) fn begin(&mut self, origin: u64, wide: Wide, work: W) -> Option<W> {
        let line = self.0.entry(origin).or_insert_with(|| Line {
            under_way: 0,
            wide: false,
            waiting: VecDeque::new(),
        });
        if !line.waiting.is_empty() || !line.admits(wide) {
            line.waiting.push_back((wide, work));
            return None;
        }
        line.under_way += 1;
        line.wide = wide == Wide::Yes;
        Some(work)
    }

    /// Something of this origin has ended; what may begin now.
    pub(crate) fn end(&mut self, origin: u64) -> Vec<W> {
        let line = self.0.get_mut(&origin).expect("it has something under way");
        line.under_way -= 1;
        line.wide = false;
        let mut begun = Vec::new();
        while line.waiting.front().is_some_and(|(wide, _)| line.admits(*wide)) {
            let (wide, work) = line.waiting.pop_front().expect("it was seen");
            line.under_way += 1;
            line.wide = wide == Wide::Yes;
            begun.push(work);
        }
        if line.under_way == 0 {
            self.0.remove(&origin);
        }
        begun
    }

    pub(crate) fn waiting(&self) -> usize {
        self.0.values().map(|line| line.waiting.len()).sum()
    }

    pub(crate) fn check_invariants(&self) {
        for line in self.0.values() {
            assert!(line.under_way > 0, "an origin with nothing under way has no line");
            assert!(!line.wide || line.under_way == 1, "what needs several lanes is alone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_several_lanes_has_its_origin_to_itself() {
        let mut origins = Origins::default();
        assert_eq!(origins.begin(1, Wide::No, 'a'), Some('a'));
        assert_eq!(origins.begin(1, Wide::No, 'b'), Some('b'));
        assert_eq!(origins.begin(1, Wide::Yes, 'c'), None);
        assert_eq!(origins.begin(1, Wide::No, 'd'), None, "it may share a key with c");
        assert_eq!(origins.begin(2, Wide::Yes, 'x'), Some('x'), "origins don't wait for others");
        assert!(origins.end(1).is_empty());
        assert_eq!(origins.end(1), ['c']);
        assert_eq!(origins.begin(1, Wide::No, 'e'), None);
        assert_eq!(origins.end(1), ['d', 'e']);
        origins.check_invariants();
        assert!(origins.end(1).is_empty() && origins.end(1).is_empty());
        assert!(origins.is_free(1) && !origins.is_free(2));
    }
}
