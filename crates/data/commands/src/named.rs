//! Members that one call names, to be met while a collection is walked once.

use alloc::vec;
use alloc::vec::Vec;

use crate::packed::{Builder, Packed};

/// Different members in an order in which they are found fast, whatever a client names them. Memory and
/// time follow the call, and not the collection.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    /// By [`order`].
    members: Vec<Member<'a>>,
    met: Vec<bool>,
    left: usize,
}

/// One member, and where the call names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) name: &'a [u8],
    /// Its first place among those named.
    pub(crate) first: usize,
    /// Its last one: of values given twice the last one stays.
    pub(crate) last: usize,
}

/// Lengths are compared first, since they mostly differ.
fn order(name: &[u8]) -> (usize, &[u8]) {
    (name.len(), name)
}

impl<'a> Named<'a> {
    pub(crate) fn new(names: impl Iterator<Item = &'a [u8]>) -> Self {
        let places = names.enumerate();
        let mut members: Vec<_> =
            places.map(|(at, name)| Member { name, first: at, last: at }).collect();
        // A stable sort: equal names stay in the order of the call.
        members.sort_by(|one, other| order(one.name).cmp(&order(other.name)));
        members.dedup_by(|later, kept| {
            let same = later.name == kept.name;
            if same {
                kept.last = later.last;
            }
            same
        });
        Self { met: vec![false; members.len()], left: members.len(), members }
    }

    /// The number of the member of this name.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        match &*self.members {
            [only] => (only.name == name).then_some(0),
            members => members.binary_search_by(|member| order(member.name).cmp(&order(name))).ok(),
        }
    }

    /// The same; the member now counts as met.
    #[inline]
    pub(crate) fn meet(&mut self, name: &[u8]) -> Option<usize> {
        let at = self.find(name)?;
        self.left -= usize::from(!core::mem::replace(&mut self.met[at], true));
        Some(at)
    }

    pub(crate) fn get(&self, number: usize) -> Member<'a> {
        self.members[number]
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether this member was met.
    pub(crate) fn is_met(&self, name: &[u8]) -> bool {
        self.find(name).is_some_and(|number| self.met[number])
    }

    /// The value without those of these members that it has, each of which is so many items.
    pub(crate) fn remove_from(&mut self, packed: Packed<'_>, each: usize) -> Vec<u8> {
        let mut builder = Builder::new(packed.form, packed.items.len());
        let (mut items, mut copied) = (packed.items(), 0);
        while !self.all_met() {
            let from = packed.position(&items);
            let Some(name) = items.next() else { break };
            items.by_ref().take(each - 1).for_each(drop);
            if self.meet(name).is_some() {
                builder.raw(&packed.items[copied..from]);
                copied = packed.position(&items);
            }
        }
        builder.raw(&packed.items[copied..]);
        builder.finish(packed.count.saturating_sub(self.count_met()))
    }

    /// Whether a walk that goes on would meet nothing: no collection has a member twice.
    #[inline]
    pub(crate) fn all_met(&self) -> bool {
        self.left == 0
    }

    /// How many were met.
    pub(crate) fn count_met(&self) -> usize {
        self.members.len() - self.left
    }

    /// Those not met, in the order of the call.
    pub(crate) fn unmet(&self) -> Vec<Member<'a>> {
        let unmet = self.members.iter().zip(&self.met).filter(|(_, met)| !**met);
        let mut unmet: Vec<_> = unmet.map(|(member, _)| *member).collect();
        unmet.sort_unstable_by_key(|member| member.first);
        unmet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_met_once_each_and_the_others_keep_their_order() {
        let names: [&[u8]; 6] = [b"bb", b"a", b"", b"bb", b"c", b"bb"];
        let mut named = Named::new(names.into_iter());
        let number = named.meet(b"bb").expect("it is named");
        let bb = named.get(number);
        assert_eq!((bb.name, bb.first, bb.last), (&b"bb"[..], 0, 5));
        assert!(named.meet(b"").is_some() && named.meet(b"absent").is_none());
        assert_eq!((named.count_met(), named.all_met()), (2, false));
        let unmet: Vec<_> =
            named.unmet().iter().map(|member| (member.name, member.first)).collect();
        assert_eq!(unmet, [(&b"a"[..], 1), (b"c", 4)]);
        assert!(named.meet(b"bb").is_some() && named.meet(b"a").is_some());
        assert!(named.meet(b"c").is_some() && named.all_met());
    }
}
