//! Sorted sets: members, each with a score, in the order of their scores and, where those are equal, of
//! their bytes.
//!
//! ```text
//! form u8 | count u32 | count * (score f64 | length | member)
//! ```
//! Integers and scores are little-endian; a length is written as [`crate::packed`] says. Members lie in
//! order, so a range of them is a stretch of bytes, and a change of one copies the bytes before and
//! behind it as they are. `form` is 0 for what Redis keeps as a listpack, [`LARGE`] otherwise. No score
//! is NaN. The score -0 is a listpack's integer 0 in Redis, so it only occurs in the large form.
//!
//! The bytes come from other nodes. Reading them is total: it ends at damage.

mod combine;
mod patch;
mod pick;
mod range;
mod update;

pub(crate) use combine::{
    store_access, write, zdiff, zdiffstore, zinter, zintercard, zinterstore, zunion, zunionstore,
};
pub(crate) use pick::{End, pop_first, pop_one};
pub(crate) use pick::{zmpop, zmpop_access, zpopmax, zpopmin, zrandmember, zscan};
pub(crate) use range::{
    zcount, zlexcount, zrange, zrangebylex, zrangebyscore, zrangestore, zrangestore_access,
    zremrangebylex, zremrangebyrank, zremrangebyscore, zrevrange, zrevrangebylex, zrevrangebyscore,
};
pub(crate) use update::{
    Additions, scores, zadd, zcard, zincrby, zmscore, zrank, zrem, zrevrank, zscore,
};

use alloc::vec::Vec;

use quorate_collections as collections;
use quorate_machine::{Change, Content, Current, ValueKind};

use crate::Reply;
use crate::packed::{self, Builder, Packed, replace};
use crate::string::WRONGTYPE;

/// Members of a sorted set in Redis's compact encoding (`zset-max-listpack-entries`).
const COMPACT_MEMBERS_MAX: usize = 128;
/// Bytes of a member in it (`zset-max-listpack-value`).
const COMPACT_BYTES_MAX: usize = 64;
/// The form of a sorted set beyond either. It stays so while the key lives, as in Redis.
const LARGE: u8 = packed::BEYOND_COMPACT;
const SCORE_BYTES: usize = 8;
/// Bytes of the least member: a score and the length of nothing.
const ENTRY_BYTES_MIN: usize = SCORE_BYTES + 1;

/// A sorted set as it lies in a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SortedSet<'a> {
    form: u8,
    pub(crate) count: usize,
    /// The members, if it is packed.
    bytes: &'a [u8],
    large: Option<&'a collections::SortedSet>,
}

pub(crate) use quorate_collections::Entry;

impl<'a> SortedSet<'a> {
    pub(crate) const EMPTY: SortedSet<'static> =
        SortedSet { form: 0, count: 0, bytes: &[], large: None };

    /// What the key holds, if it holds anything.
    ///
    /// # Errors
    /// If it holds something else.
    pub(crate) fn of(current: Current<'a>) -> Result<Option<Self>, Reply<'static>> {
        if let Some(large) = current.large.and_then(|large| large.sorted_set()) {
            let (form, count) = (LARGE, large.len());
            return Ok(Some(Self { form, count, bytes: &[], large: Some(large) }));
        }
        match current.content {
            None => Ok(None),
            Some(content) if content.kind == ValueKind::SortedSet => Ok(Some(Self::read(content))),
            Some(_) => Err(WRONGTYPE),
        }
    }

    /// The same, empty if the key holds nothing.
    pub(crate) fn or_empty(current: Current<'a>) -> Result<Self, Reply<'static>> {
        Ok(Self::of(current)?.unwrap_or(Self::EMPTY))
    }

    /// Reads a value. A count that its bytes can't hold is cut down to what they can.
    pub(crate) fn read(content: Content<'a>) -> Self {
        let Packed { form, count, items } = Packed::read(content);
        let count = count.min(items.len() / ENTRY_BYTES_MIN);
        Self { form, count, bytes: items, large: None }
    }

    pub(crate) fn is_large(&self) -> bool {
        self.form == LARGE
    }

    /// The members of a packed one.
    fn packed_entries(&self) -> Entries<'a> {
        Entries { rest: self.bytes }
    }

    /// Members from a rank on.
    pub(crate) fn entries_from(self, rank: usize) -> impl Iterator<Item = Entry<'a>> + Clone {
        let large = self.large.map(|large| large.entries_from(rank));
        self.packed_entries().skip(rank).chain(large.into_iter().flatten())
    }

    pub(crate) fn entries(self) -> impl Iterator<Item = Entry<'a>> + Clone {
        self.entries_from(0)
    }

    pub(crate) fn find(&self, member: &[u8]) -> Option<f64> {
        if let Some(large) = self.large {
            return large.score(member);
        }
        self.packed_entries().find(|entry| entry.member == member).map(|entry| entry.score)
    }

    /// The change that leaves so many of its members, which stand in these stretches.
    fn keep<'b>(
        &self,
        count: usize,
        stretches: [&[u8]; 2],
        current: Current<'_>,
    ) -> Result<Change<'b>, Reply<'static>> {
        let mut builder = Builder::new(self.form, stretches[0].len() + stretches[1].len());
        stretches.iter().for_each(|stretch| builder.raw(stretch));
        replace(builder.finish(count), ValueKind::SortedSet, current)
    }
}

/// What `OBJECT ENCODING` says of a sorted set.
pub(crate) fn encoding(set: Packed<'_>) -> &'static str {
    if set.form == LARGE { "skiplist" } else { "listpack" }
}

/// Members in order. What is left lies in `rest`.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let (entry, rest) = Entry::split_first(self.rest)?;
        self.rest = rest;
        Some(entry)
    }
}

fn write_entry(entry: &Entry<'_>, is_large: bool, builder: &mut Builder) {
    let score = if entry.score == 0.0 && !is_large { 0.0 } else { entry.score };
    builder.raw(&score.to_le_bytes());
    builder.item(entry.member);
}

/// Whether a sorted set of so many members, these among them, is beyond Redis's compact encoding.
fn is_beyond_compact<'a>(count: usize, members: impl IntoIterator<Item = &'a [u8]>) -> bool {
    count > COMPACT_MEMBERS_MAX
        || members.into_iter().any(|member| member.len() > COMPACT_BYTES_MAX)
}

/// The change that gives a key these members, which are in order, and no expiry; `None` if there are
/// none.
///
/// # Errors
/// If they are longer than a value may be.
pub(crate) fn store_new(entries: &[Entry<'_>]) -> Result<Option<Change<'static>>, Reply<'static>> {
    let is_large = is_beyond_compact(entries.len(), entries.iter().map(|entry| entry.member));
    let mut builder = Builder::new(u8::from(is_large), entries.len() * (ENTRY_BYTES_MIN + 15));
    entries.iter().for_each(|entry| write_entry(entry, is_large, &mut builder));
    let change = replace(builder.finish(entries.len()), ValueKind::SortedSet, Current::ABSENT)?;
    Ok((change != Change::Keep).then_some(change))
}

fn bulk(bytes: &[u8]) -> Reply<'_> {
    Reply::Bulk(bytes.into())
}

/// Members, with their scores if wanted, as an answer that borrows nothing more than they do.
fn reply<'a>(entries: Vec<Entry<'a>>, with_scores: bool) -> Reply<'a> {
    let entries = entries.into_iter();
    if with_scores {
        let pair = |entry: Entry<'a>| (bulk(entry.member), Reply::Double(entry.score));
        Reply::Pairs(entries.map(pair).collect())
    } else {
        Reply::Array(entries.map(|entry| bulk(entry.member)).collect())
    }
}
