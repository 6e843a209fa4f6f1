//! A collection that is too large to be copied for each change.

use alloc::vec::Vec;
use core::hash::{Hash as Hashes, Hasher};

use crate::delta::{self, Step};
use crate::packed::{self, Items};
use crate::stream::Splice;
use crate::{Hash, List, Set, SortedSet, Stream, ValueKind};

/// A large collection. A clone shares everything with its original until one of them changes.
#[derive(Clone, Debug)]
pub struct Collection {
    /// That of the packed bytes.
    form: u8,
    content: Members,
}

/// What a collection has.
#[derive(Clone, Debug)]
enum Members {
    Hash(Hash),
    List(List),
    Set(Set),
    SortedSet(SortedSet),
    Stream(Stream),
}

/// Bytes that no correct peer sends as a collection or a delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

/// Which kinds of values there are as collections.
pub fn is_collection(kind: ValueKind) -> bool {
    kind != ValueKind::String
}

/// Whether a packed value may be kept as a large one. What is in Redis's compact encoding is as small as
/// Redis allows there, and keeps the order of its bytes, which a large hash or set doesn't. A hash with
/// expiring fields is packed whatever its size.
pub fn may_be_large(kind: ValueKind, bytes: &[u8]) -> bool {
    let Some(&form) = bytes.first() else { return false };
    match kind {
        ValueKind::Hash => form >= packed::BEYOND_COMPACT && form & packed::EXPIRING == 0,
        ValueKind::SortedSet => form >= packed::BEYOND_COMPACT,
        ValueKind::Set => form >= packed::STRINGS,
        ValueKind::List | ValueKind::Stream => true,
        ValueKind::String => false,
    }
}

impl Collection {
    /// The collection of packed bytes.
    ///
    /// # Errors
    /// If this kind has no large form, if the hash has expiring fields, or if the bytes are damaged.
    pub fn unpack(kind: ValueKind, bytes: &[u8]) -> Result<Self, Damaged> {
        if kind == ValueKind::Stream {
            let stream = Stream::unpack(bytes).ok_or(Damaged)?;
            return Ok(Self { form: 0, content: Members::Stream(stream) });
        }
        let (form, count, items) = packed::split(bytes);
        let content = match kind {
            ValueKind::Hash if form & packed::EXPIRING != 0 => None,
            ValueKind::Hash => Hash::build(items).map(Members::Hash),
            ValueKind::List => List::build(items).map(Members::List),
            ValueKind::Set => Set::build(items).map(Members::Set),
            ValueKind::SortedSet => SortedSet::build(items).map(Members::SortedSet),
            ValueKind::String | ValueKind::Stream => None,
        };
        let collection = Self { form, content: content.ok_or(Damaged)? };
        if collection.len() == count { Ok(collection) } else { Err(Damaged) }
    }

    /// Appends its packed bytes.
    pub fn pack(&self, out: &mut Vec<u8>) {
        out.reserve(self.packed_len());
        if let Members::Stream(stream) = &self.content {
            return stream.pack(out);
        }
        out.extend_from_slice(&packed::header(self.form, self.len()));
        match &self.content {
            Members::Hash(hash) => hash.leaves().for_each(|leaf| out.extend_from_slice(leaf)),
            Members::List(list) => list.leaves().for_each(|leaf| out.extend_from_slice(leaf)),
            Members::Set(set) => set.leaves().for_each(|leaf| out.extend_from_slice(leaf)),
            Members::SortedSet(set) => set.leaves().for_each(|leaf| out.extend_from_slice(leaf)),
            Members::Stream(_) => unreachable!("it has a header of its own"),
        }
    }

    /// How many packed bytes it has.
    pub fn packed_len(&self) -> usize {
        let items = match &self.content {
            Members::Hash(hash) => hash.bytes(),
            Members::List(list) => list.bytes(),
            Members::Set(set) => set.bytes(),
            Members::SortedSet(set) => set.bytes(),
            Members::Stream(stream) => return stream.packed_len(),
        };
        packed::HEADER_BYTES + items
    }

    /// Memory in bytes, about.
    pub fn memory(&self) -> usize {
        match &self.content {
            Members::Hash(hash) => hash.memory(),
            Members::List(list) => list.memory(),
            Members::Set(set) => set.memory(),
            Members::SortedSet(set) => set.memory(),
            Members::Stream(stream) => stream.memory(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> ValueKind {
        match self.content {
            Members::Hash(_) => ValueKind::Hash,
            Members::List(_) => ValueKind::List,
            Members::Set(_) => ValueKind::Set,
            Members::SortedSet(_) => ValueKind::SortedSet,
            Members::Stream(_) => ValueKind::Stream,
        }
    }

    /// The form of its packed bytes.
    pub fn form(&self) -> u8 {
        self.form
    }

    /// How many members, fields, items or entries it has.
    pub fn len(&self) -> usize {
        match &self.content {
            Members::Hash(hash) => hash.len(),
            Members::List(list) => list.len(),
            Members::Set(set) => set.len(),
            Members::SortedSet(set) => set.len(),
            Members::Stream(stream) => stream.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// It, if it is a hash.
    pub fn hash(&self) -> Option<&Hash> {
        if let Members::Hash(hash) = &self.content { Some(hash) } else { None }
    }

    /// It, if it is a list.
    pub fn list(&self) -> Option<&List> {
        if let Members::List(list) = &self.content { Some(list) } else { None }
    }

    /// It, if it is a set.
    pub fn set(&self) -> Option<&Set> {
        if let Members::Set(set) = &self.content { Some(set) } else { None }
    }

    /// It, if it is a sorted set.
    pub fn sorted_set(&self) -> Option<&SortedSet> {
        if let Members::SortedSet(set) = &self.content { Some(set) } else { None }
    }

    /// It, if it is a stream.
    pub fn stream(&self) -> Option<&Stream> {
        if let Members::Stream(stream) = &self.content { Some(stream) } else { None }
    }

    /// Applies a delta, and appends its inverse, which is the delta that gives back what was here
    /// before. Work and memory grow with the delta and with what it takes away, and not with the
    /// collection.
    ///
    /// # Errors
    /// If no collection's change has this form. Nothing has changed then.
    pub fn apply(&mut self, delta: &[u8], inverse: &mut Vec<u8>) -> Result<(), Damaged> {
        let (mut rest, mut length) = (delta, self.len());
        while !rest.is_empty() {
            let (step, behind) = Step::split_first(rest).ok_or(Damaged)?;
            if !step.fits(self.kind(), &mut length) {
                return Err(Damaged);
            }
            rest = behind;
        }
        let (mut rest, mut undone, mut ends) = (delta, Vec::new(), Vec::new());
        let mut taken = Ok(());
        while let Some((step, behind)) = Step::split_first(rest).filter(|_| taken.is_ok()) {
            taken = self.take(step, &mut undone);
            ends.push(undone.len());
            rest = behind;
        }
        // What was done last is undone first.
        let before = inverse.len();
        for (number, end) in ends.iter().enumerate().rev() {
            let start = if number == 0 { 0 } else { ends[number - 1] };
            inverse.extend_from_slice(&undone[start..*end]);
        }
        if taken.is_err() {
            let inverse = inverse.split_off(before);
            self.apply(&inverse, &mut Vec::new()).expect("an inverse is a delta");
        }
        taken
    }

    /// Takes a step, and appends what undoes it.
    fn take(&mut self, step: Step<'_>, undone: &mut Vec<u8>) -> Result<(), Damaged> {
        let back = match (&mut self.content, step) {
            (Members::Hash(hash), Step::Put { field, value }) => {
                let old = hash.put(field, value);
                put_back(field, old, undone);
                return Ok(());
            }
            (Members::Hash(hash), Step::Remove(field)) => {
                if let Some(old) = hash.remove(field) {
                    put_back(field, Some(old), undone);
                }
                return Ok(());
            }
            (Members::Set(set), Step::Add(member)) => {
                if !set.add(member) {
                    return Ok(());
                }
                Step::Remove(member)
            }
            (Members::Set(set), Step::Remove(member)) => {
                if !set.remove(member) {
                    return Ok(());
                }
                Step::Add(member)
            }
            (Members::SortedSet(set), Step::Score(entry)) => match set.put(entry) {
                Some(score) => Step::Score(crate::Entry { score, ..entry }),
                None => Step::Remove(entry.member),
            },
            (Members::SortedSet(set), Step::Remove(member)) => match set.remove(member) {
                Some(score) => Step::Score(crate::Entry { score, member }),
                None => return Ok(()),
            },
            (Members::List(list), Step::Cut { at, count }) => {
                let (mut items, mut left) = (Vec::new(), count);
                while left > 0 {
                    left -= list.remove(at, left, &mut items);
                }
                delta::write(Step::Insert { at, count, items: &items }, undone);
                return Ok(());
            }
            (Members::List(list), Step::Insert { at, count, items }) => {
                for (number, item) in (Items { rest: items }).enumerate() {
                    list.insert(at + number, item);
                }
                Step::Cut { at, count }
            }
            (Members::Stream(stream), Step::Counters(counters)) => {
                let before = stream.count(counters)?;
                delta::write(Step::Counters(&before), undone);
                return Ok(());
            }
            (Members::Stream(stream), Step::Group { name, splice }) => {
                let mut gone = Vec::new();
                stream.change_group(name, splice, &mut gone)?;
                let splice = Splice { at: splice.at, cut: splice.put.len(), put: &gone };
                delta::write(Step::Group { name, splice }, undone);
                return Ok(());
            }
            (Members::Stream(stream), Step::Chunk { first, splice }) => {
                let mut gone = Vec::new();
                stream.change_chunk(first, splice, &mut gone)?;
                let splice = Splice { at: splice.at, cut: splice.put.len(), put: &gone };
                delta::write(Step::Chunk { first, splice }, undone);
                return Ok(());
            }
            (_, Step::Form(form)) => Step::Form(core::mem::replace(&mut self.form, form)),
            _ => unreachable!("the step was found to fit"),
        };
        delta::write(back, undone);
        Ok(())
    }
}

/// Appends what gives a field this value, an item, or takes it away.
fn put_back(field: &[u8], old: Option<Vec<u8>>, undone: &mut Vec<u8>) {
    let step = match &old {
        Some(item) => {
            let value = Items { rest: item }.next().unwrap_or_default();
            Step::Put { field, value }
        }
        None => Step::Remove(field),
    };
    delta::write(step, undone);
}

impl PartialEq for Collection {
    /// Whether both have the same members, or the same items or entries in the same order.
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.form == other.form && self.sorted() == other.sorted()
    }
}

impl Eq for Collection {}

impl Hashes for Collection {
    fn hash<S: Hasher>(&self, state: &mut S) {
        (self.kind(), self.form, self.sorted()).hash(state);
    }
}

impl Collection {
    /// Packed bytes that are the same for equal collections: all of it, for tests and models.
    pub fn sorted(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match &self.content {
            Members::Hash(hash) => {
                let mut fields: Vec<_> = hash.fields_from(0).collect();
                fields.sort_unstable();
                for (field, value) in fields {
                    packed::put_item(field, &mut out);
                    packed::put_item(value, &mut out);
                }
            }
            Members::Set(set) => {
                let mut members: Vec<_> = set.members_from(0).collect();
                members.sort_unstable();
                members.into_iter().for_each(|member| packed::put_item(member, &mut out));
            }
            Members::List(_) | Members::SortedSet(_) | Members::Stream(_) => self.pack(&mut out),
        }
        out
    }
}

#[cfg(test)]
impl Collection {
    /// Checks what must hold of every collection's trees.
    pub(crate) fn check(&self) {
        match &self.content {
            Members::Hash(hash) => hash.check(),
            Members::List(list) => list.check(),
            Members::Set(set) => set.check(),
            Members::SortedSet(set) => set.check(),
            Members::Stream(stream) => stream.check(),
        }
    }
}
