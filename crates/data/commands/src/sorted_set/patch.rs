//! Changes of some members of a sorted set: the members that a call names are found in one pass, however
//! many they are, and the bytes between those that change are copied once.

use alloc::vec::Vec;
use core::ops::Range;

use quorate_collections::{Delta, Step};
use quorate_machine::{Change, Current, ValueKind, mutant};

use super::{ENTRY_BYTES_MIN, Entry, SortedSet, is_beyond_compact, write_entry};
use crate::packed::{Builder, replace};
use crate::{Reply, large};

/// The members that a call names, each once, in the order of their bytes.
#[derive(Debug)]
pub(super) struct Patch<'a> {
    set: SortedSet<'a>,
    slots: Vec<Slot<'a>>,
}

/// A member, and what becomes of it.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    member: &'a [u8],
    /// Its score so far, and where it lies.
    old: Option<(f64, Range<usize>)>,
    /// Its score from now on, if it is to be a member.
    pub(super) score: Option<f64>,
}

impl Slot<'_> {
    fn is_changed(&self) -> bool {
        self.old.as_ref().map(|(score, _)| *score) != self.score
    }
}

impl<'a> Patch<'a> {
    pub(super) fn new(set: SortedSet<'a>, members: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut slots: Vec<_> =
            members.map(|member| Slot { member, old: None, score: None }).collect();
        slots.sort_unstable_by_key(|slot| slot.member);
        slots.dedup_by_key(|slot| slot.member);
        let mut patch = Self { set, slots };
        if let Some(large) = set.large {
            for slot in &mut patch.slots {
                slot.score = large.score(slot.member);
                slot.old = slot.score.map(|score| (score, 0..0));
            }
            return patch;
        }
        let (mut entries, mut start) = (set.packed_entries(), 0);
        let mut missing = patch.slots.len();
        while missing > 0
            && let Some(entry) = entries.next()
        {
            let end = set.bytes.len() - entries.rest.len();
            if let Some(slot) = patch.find(entry.member) {
                slot.old = Some((entry.score, start..end));
                slot.score = Some(entry.score);
                missing -= 1;
            }
            start = end;
        }
        patch
    }

    fn find(&mut self, member: &[u8]) -> Option<&mut Slot<'a>> {
        let at = self.slots.binary_search_by_key(&member, |slot| slot.member).ok()?;
        Some(&mut self.slots[at])
    }

    /// One of the members that the patch was made for.
    pub(super) fn slot(&mut self, member: &[u8]) -> &mut Slot<'a> {
        self.find(member).expect("the patch was made for this member")
    }

    /// The change that gives every member its score from now on.
    pub(super) fn store<'b>(&self, current: Current<'_>) -> Result<Change<'b>, Reply<'static>> {
        let changed = || self.slots.iter().filter(|slot| slot.is_changed());
        if let Some(large) = self.set.large {
            let (mut delta, mut count) = (Delta::new(), large.len());
            for slot in changed() {
                count += usize::from(slot.old.is_none());
                match slot.score {
                    Some(score) => delta.push(Step::Score(Entry { score, member: slot.member })),
                    None => {
                        delta.push(Step::Remove(slot.member));
                        count -= 1;
                    }
                }
            }
            return large::change(delta, count, current);
        }
        let mut removed: Vec<Range<usize>> =
            changed().filter_map(|slot| Some(slot.old.as_ref()?.1.clone())).collect();
        let mut added: Vec<Entry<'_>> = changed()
            .filter_map(|slot| Some(Entry { score: slot.score?, member: slot.member }))
            .collect();
        if removed.is_empty() && added.is_empty() {
            return Ok(Change::Keep);
        }
        removed.sort_unstable_by_key(|range| range.start);
        added.sort_unstable_by(Entry::order);
        let count = (self.set.count + added.len()).saturating_sub(removed.len());
        // Redis looks at members that are new, not at those that have another score.
        let new = changed().filter(|slot| slot.old.is_none()).map(|slot| slot.member);
        let is_large = self.set.is_large() || is_beyond_compact(count, new);
        let room =
            added.iter().map(|entry| ENTRY_BYTES_MIN + 3 + entry.member.len()).sum::<usize>();
        let mut builder = Builder::new(u8::from(is_large), self.set.bytes.len() + room);
        self.merge(&removed, &added, is_large, &mut builder);
        replace(builder.finish(count), ValueKind::SortedSet, current)
    }

    /// Writes the set without some stretches, and with other members where they belong.
    fn merge(
        &self,
        removed: &[Range<usize>],
        added: &[Entry<'_>],
        is_large: bool,
        builder: &mut Builder,
    ) {
        let bytes = self.set.bytes;
        let (mut removed, mut added) = (removed.iter().peekable(), added.iter().peekable());
        let (mut entries, mut copied, mut start) = (self.set.packed_entries(), 0, 0);
        while removed.peek().is_some() || added.peek().is_some() {
            let Some(entry) = entries.next() else { break };
            let is_before = |new: &&Entry<'_>| match mutant!("commands_ties_in_any_order") {
                false => new.order(&entry).is_lt(),
                true => new.score < entry.score,
            };
            while let Some(new) = added.next_if(is_before) {
                builder.raw(&bytes[copied..start]);
                copied = start;
                write_entry(new, is_large, builder);
            }
            let end = bytes.len() - entries.rest.len();
            if removed.next_if(|range| range.start == start).is_some() {
                builder.raw(&bytes[copied..start]);
                copied = end;
            }
            start = end;
        }
        // Members behind the last one; damaged bytes end here, too.
        let behind = if added.peek().is_some() { start } else { bytes.len() };
        builder.raw(&bytes[copied..behind]);
        added.for_each(|new| write_entry(new, is_large, builder));
    }
}
