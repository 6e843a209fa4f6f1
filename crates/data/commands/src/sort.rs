//! `SORT` and `SORT_RO`.
//!
//! Patterns behind `BY` and `GET` name keys by what the sorted key holds, so a call that has one needs an
//! engine whose transactions read any key. Elements that compare as equal stay in the order in which
//! they were; Redis may exchange them. Words are compared by their bytes, as Redis does in the locale `C`.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::cmp::Ordering;

use quorate_machine::{Access, Change, Content, ValueKind, Workspace};
use quorate_types::{UnixMillis, limits};

use crate::double::parse_weight;
use crate::number::integer;
use crate::options::{SYNTAX, c_string, is_word};
use crate::packed::{Builder, Packed, replace};
use crate::room::ANSWER_TOO_LONG;
use crate::set::Set;
use crate::sorted_set::SortedSet;
use crate::string::WRONGTYPE;
use crate::{Args, Reply, hash};

/// The most elements that one call sorts: a lane serves nobody else meanwhile.
const ELEMENTS_MAX: usize = 262_144;
const TOO_MANY: Reply<'static> = Reply::error(
    "ERR SORT takes a key of at most 262144 elements; sort a part of them, or keep a sorted set",
);
const NOT_A_NUMBER: Reply<'static> =
    Reply::error("ERR One or more scores can't be converted into double");

const _: () = assert!(ELEMENTS_MAX == 262_144, "a text names the limit");

pub(crate) fn sort(
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let sorted = Options::parse(args, true).and_then(|options| options.run(args, now, workspace));
    sorted.unwrap_or_else(|error| error)
}

pub(crate) fn sort_ro(
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let sorted = Options::parse(args, false).and_then(|options| options.run(args, now, workspace));
    sorted.unwrap_or_else(|error| error)
}

/// What `SORT` does to its key if it has one only.
pub(crate) fn sort_access(args: Args<'_>) -> Access {
    match Options::parse(args, true) {
        Ok(options) if !options.searches() && options.stores_at(args) == Some(args.get(1)) => {
            Access::Update
        }
        _ => Access::Read,
    }
}

/// Where the key stands that takes the result.
pub(crate) fn destination(args: Args<'_>) -> Option<usize> {
    Options::parse(args, true).ok()?.store
}

/// Whether a call reads keys that it doesn't name.
pub(crate) fn searches(args: Args<'_>) -> bool {
    Options::parse(args, true).is_ok_and(|options| options.searches())
}

#[derive(Default)]
struct Options<'a> {
    descending: bool,
    alpha: bool,
    limit: Option<(i64, i64)>,
    store: Option<usize>,
    by: Option<&'a [u8]>,
    /// A pattern behind `BY` names no key by the elements: they stay as they are.
    unsorted: bool,
    get: Vec<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>, may_store: bool) -> Result<Self, Reply<'static>> {
        let mut options = Self::default();
        let mut at = 2;
        while at < args.len() {
            let (word, left) = (args.get(at), args.len() - at - 1);
            if is_word(word, "ASC") {
                options.descending = false;
            } else if is_word(word, "DESC") {
                options.descending = true;
            } else if is_word(word, "ALPHA") {
                options.alpha = true;
            } else if is_word(word, "LIMIT") && left >= 2 {
                options.limit = Some((integer(args.get(at + 1))?, integer(args.get(at + 2))?));
                at += 2;
            } else if may_store && is_word(word, "STORE") && left >= 1 {
                options.store = Some(at + 1);
                at += 1;
            } else if is_word(word, "BY") && left >= 1 {
                let pattern = args.get(at + 1);
                options.by = Some(pattern);
                options.unsorted |= !c_string(pattern).contains(&b'*');
                at += 1;
            } else if is_word(word, "GET") && left >= 1 {
                options.get.push(args.get(at + 1));
                at += 1;
            } else {
                return Err(SYNTAX);
            }
            at += 1;
        }
        Ok(options)
    }

    fn searches(&self) -> bool {
        let by = self.by.filter(|_| !self.unsorted);
        let mut patterns = self.get.iter().copied().chain(by);
        patterns.any(|pattern| c_string(pattern).contains(&b'*'))
    }

    fn stores_at(&self, args: Args<'a>) -> Option<&'a [u8]> {
        self.store.map(|at| args.get(at))
    }

    fn run(
        mut self,
        args: Args<'a>,
        now: UnixMillis,
        workspace: &mut dyn Workspace,
    ) -> Result<Reply<'static>, Reply<'static>> {
        let held = workspace.read(args.get(1)).content;
        let held = held.map(|content| (content.bytes.to_vec(), content.kind));
        let kind = held.as_ref().map(|(_, kind)| *kind);
        let mut elements = match &held {
            None => Vec::new(),
            Some((bytes, kind)) => elements_of(Content { bytes, kind: *kind, expire_at: None })?,
        };
        if kind == Some(ValueKind::Set) && self.unsorted && self.store.is_some() {
            // A set has no order that replicas could agree on.
            (self.unsorted, self.alpha, self.by) = (false, true, None);
        }
        if self.unsorted {
            if self.descending && kind != Some(ValueKind::Set) {
                elements.reverse();
            }
        } else {
            self.sort(&mut elements, now, workspace)?;
        }
        let (start, end) = self.range(elements.len());
        let chosen = &elements[start..end];
        match self.stores_at(args) {
            None => self.answer(chosen, now, workspace),
            Some(to) => self.store(chosen, to, now, workspace),
        }
    }

    /// The elements that `LIMIT` leaves, of so many.
    fn range(&self, length: usize) -> (usize, usize) {
        let Some((start, count)) = self.limit else { return (0, length) };
        let start = usize::try_from(start.max(0)).map_or(length, |start| start.min(length));
        let count = usize::try_from(count).unwrap_or(length);
        (start, start.saturating_add(count).min(length))
    }

    fn sort(
        &self,
        elements: &mut Vec<Cow<'_, [u8]>>,
        now: UnixMillis,
        workspace: &mut dyn Workspace,
    ) -> Result<(), Reply<'static>> {
        let by = |element: &[u8], workspace: &mut dyn Workspace| match self.by {
            None => Some(element.to_vec()),
            Some(pattern) => find(pattern, element, now, workspace),
        };
        if self.alpha {
            let mut keyed: Vec<_> = elements
                .drain(..)
                .map(|element| (self.by.map(|_| by(&element, workspace)), element))
                .collect();
            keyed.sort_by(|(one_by, one), (other_by, other)| {
                let order = match (one_by, other_by) {
                    (Some(one), Some(other)) => one.cmp(other),
                    _ => one.cmp(other),
                };
                self.directed(order)
            });
            elements.extend(keyed.into_iter().map(|(_, element)| element));
            return Ok(());
        }
        let mut scored = Vec::with_capacity(elements.len());
        for element in elements.drain(..) {
            let score = match by(&element, workspace) {
                None => 0.0,
                Some(text) => parse_weight(&text).ok_or(NOT_A_NUMBER)?,
            };
            scored.push((score, element));
        }
        scored.sort_by(|(one_score, one), (other_score, other)| {
            let order = one_score.partial_cmp(other_score).unwrap_or(Ordering::Equal);
            self.directed(order.then_with(|| one.cmp(other)))
        });
        elements.extend(scored.into_iter().map(|(_, element)| element));
        Ok(())
    }

    fn directed(&self, order: Ordering) -> Ordering {
        if self.descending { order.reverse() } else { order }
    }

    /// What is answered or stored for each of the elements, in order.
    fn results(
        &self,
        elements: &[Cow<'_, [u8]>],
        now: UnixMillis,
        workspace: &mut dyn Workspace,
        mut take: impl FnMut(Option<&[u8]>) -> Result<(), Reply<'static>>,
    ) -> Result<(), Reply<'static>> {
        for element in elements {
            if self.get.is_empty() {
                take(Some(element))?;
            }
            for pattern in &self.get {
                match *pattern {
                    b"#" => take(Some(element))?,
                    pattern => take(find(pattern, element, now, workspace).as_deref())?,
                }
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        elements: &[Cow<'_, [u8]>],
        now: UnixMillis,
        workspace: &mut dyn Workspace,
    ) -> Result<Reply<'static>, Reply<'static>> {
        let (mut replies, mut room) = (Vec::new(), limits::REPLY_BYTES_MAX);
        self.results(elements, now, workspace, |result| {
            let bytes = size_of::<Reply<'_>>() + result.map_or(0, <[u8]>::len);
            room = room.checked_sub(bytes).ok_or(Reply::error(ANSWER_TOO_LONG))?;
            replies.push(result.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.to_vec().into())));
            Ok(())
        })?;
        Ok(Reply::Array(replies))
    }

    fn store(
        &self,
        elements: &[Cow<'_, [u8]>],
        to: &[u8],
        now: UnixMillis,
        workspace: &mut dyn Workspace,
    ) -> Result<Reply<'static>, Reply<'static>> {
        let (mut builder, mut count) = (Builder::new(0, 0), 0);
        let mut room = limits::VALUE_BYTES_MAX;
        self.results(elements, now, workspace, |result| {
            let item = result.unwrap_or_default();
            room = room.checked_sub(item.len() + 1).ok_or(crate::packed::TOO_LARGE)?;
            builder.item(item);
            count += 1;
            Ok(())
        })?;
        let current = workspace.read(to);
        let change = match replace(builder.finish(count), ValueKind::List, current)? {
            // The result is a new list, which doesn't expire.
            Change::Set { bytes, kind, .. } => Change::Set { bytes, kind, expire_at: None },
            change => change,
        };
        workspace.write(to, change);
        Ok(Reply::Int(count as i64))
    }
}

/// The elements of a list, a set or a sorted set, the latter by their scores.
fn elements_of(content: Content<'_>) -> Result<Vec<Cow<'_, [u8]>>, Reply<'static>> {
    if !matches!(content.kind, ValueKind::List | ValueKind::Set | ValueKind::SortedSet) {
        return Err(WRONGTYPE);
    }
    let packed = Packed::read(content);
    if packed.count > ELEMENTS_MAX {
        return Err(TOO_MANY);
    }
    match content.kind {
        ValueKind::List => Ok(packed.items().map(Cow::Borrowed).collect()),
        ValueKind::Set => Ok(Set::of_bytes(content.bytes).members().collect()),
        ValueKind::SortedSet => {
            let entries = SortedSet::read(content).entries();
            Ok(entries.map(|entry| Cow::Borrowed(entry.member)).collect())
        }
        _ => Err(WRONGTYPE),
    }
}

/// What the key holds that a pattern names by an element: a string, or behind `->` a field of a hash.
fn find(
    pattern: &[u8],
    element: &[u8],
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Option<Vec<u8>> {
    let pattern = c_string(pattern);
    if pattern == b"#" {
        return Some(element.to_vec());
    }
    let star = pattern.iter().position(|&byte| byte == b'*')?;
    let (before, after) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = after.windows(2).position(|two| two == b"->").filter(|at| at + 2 < after.len());
    let (after, field) = match arrow {
        None => (after, None),
        Some(at) => (&after[..at], Some(&after[at + 2..])),
    };
    let key = [before, element, after].concat();
    let content = workspace.read(&key).content?;
    match (field, content.kind) {
        (None, ValueKind::String) => Some(content.bytes.to_vec()),
        (Some(field), ValueKind::Hash) => hash::value_in(content, field, now).map(<[u8]>::to_vec),
        _ => None,
    }
}
