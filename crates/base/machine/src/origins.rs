//! The order of what one origin asks for: a client's connection, say, whose ops take effect in the
//! order in which they came.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Whether a piece of work may be under way while others of its origin are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// It has its origin to itself.
    Alone,
    /// It may, beside others that may.
    Together,
}

#[derive(Clone, Debug)]
struct Line<W> {
    under_way: usize,
    /// What is under way is there alone.
    alone: bool,
    waiting: VecDeque<(Share, W)>,
}

impl<W> Line<W> {
    fn admits(&self, share: Share) -> bool {
        self.under_way == 0 || (share == Share::Together && !self.alone)
    }

    fn admit(&mut self, share: Share) {
        self.under_way += 1;
        self.alone = share == Share::Alone;
    }
}

/// A queue for each origin that has something under way. It holds as much as its caller admits ops.
#[derive(Clone, Debug)]
pub struct Origins<W>(BTreeMap<u64, Line<W>>);

impl<W> Default for Origins<W> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<W> Origins<W> {
    /// Whether nothing of this origin is under way.
    pub fn is_free(&self, origin: u64) -> bool {
        !self.0.contains_key(&origin)
    }

    /// Whether a piece of work may begin: then it is given back. Otherwise it waits.
    pub fn begin(&mut self, origin: u64, share: Share, work: W) -> Option<W> {
        let idle = || Line { under_way: 0, alone: false, waiting: VecDeque::new() };
        let line = self.0.entry(origin).or_insert_with(idle);
        if !line.waiting.is_empty() || !line.admits(share) {
            line.waiting.push_back((share, work));
            return None;
        }
        line.admit(share);
        Some(work)
    }

    /// Something of this origin has ended; what may begin now.
    ///
    /// # Panics
    /// If nothing of it was under way.
    pub fn end(&mut self, origin: u64) -> Vec<W> {
        let line = self.0.get_mut(&origin).expect("it has something under way");
        line.under_way -= 1;
        line.alone = false;
        let mut begun = Vec::new();
        while let Some((share, _)) = line.waiting.front()
            && line.admits(*share)
        {
            let (share, work) = line.waiting.pop_front().expect("it was seen");
            line.admit(share);
            begun.push(work);
        }
        if line.under_way == 0 {
            self.0.remove(&origin);
        }
        begun
    }

    /// Takes back a piece of work that has not begun; `None` if it has. What waits behind it begins
    /// when something ends.
    pub fn withdraw(&mut self, origin: u64, is_it: impl Fn(&W) -> bool) -> Option<W> {
        let waiting = &mut self.0.get_mut(&origin)?.waiting;
        let at = waiting.iter().position(|(_, work)| is_it(work))?;
        waiting.remove(at).map(|(_, work)| work)
    }

    /// What waits, by origin.
    pub fn waiting(&self) -> impl Iterator<Item = &W> {
        self.0.values().flat_map(|line| &line.waiting).map(|(_, work)| work)
    }

    /// Asserts what always holds.
    ///
    /// # Panics
    /// If it doesn't.
    pub fn check_invariants(&self) {
        for line in self.0.values() {
            assert!(line.under_way > 0, "an origin with nothing under way has no line");
            assert!(!line.alone || line.under_way == 1, "what is alone is alone");
        }
    }
}
