//! Large sets.

use crate::hashed::{Members, NoTail, Part};

/// A set.
#[derive(Clone, Default, Debug)]
pub struct Set {
    members: Members<NoTail>,
}

impl Set {
    /// That of packed items; `None` if they are damaged, or have a member twice.
    pub(crate) fn build(items: &[u8]) -> Option<Self> {
        Members::build(items).map(|members| Self { members })
    }

    /// How many members.
    pub fn len(&self) -> usize {
        self.members.tree().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.members.tree().bytes()
    }

    pub(crate) fn memory(&self) -> usize {
        self.members.tree().memory()
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &[u8]> {
        self.members.tree().leaves()
    }

    /// Whether it has a member.
    pub fn contains(&self, member: &[u8]) -> bool {
        self.members.get(member).is_some()
    }

    /// Members from one number on, in an order that changes when members come and go.
    pub fn members_from(&self, number: usize) -> impl Iterator<Item = &[u8]> + Clone {
        self.members.from(number).map(|(member, _)| member)
    }

    /// Members from a place on; see [`crate::Hash::part`].
    pub fn part(&self, place: u64, count: usize) -> Part<&[u8]> {
        let (next, part) = self.members.part(place, count);
        (next, part.into_iter().map(|(member, _)| member).collect())
    }

    /// Adds a member; whether it is new.
    pub(crate) fn add(&mut self, member: &[u8]) -> bool {
        self.members.put(member, &[]).is_none()
    }

    /// Removes a member; whether it was there.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        self.members.remove(member).is_some()
    }
}

#[cfg(test)]
impl Set {
    pub(crate) fn check(&self) {
        self.members.tree().check();
    }
}
