//! Commands on keys of any kind.

use quorate_machine::{Change, Collection, Content, Current, ValueKind};
use quorate_types::UnixMillis;

use crate::number::parse_integer;
use crate::packed::Packed;
use crate::set::Set;
use crate::{Args, Reply, hash, sorted_set};

/// `DEL` and `UNLINK`. Every key of one call is the same key here, and it is deleted once.
pub(crate) fn del<'a>(_: Args<'a>, _: UnixMillis, current: Current<'a>) -> (Reply<'a>, Change<'a>) {
    match current.content {
        Some(_) => (Reply::Int(1), Change::Delete),
        None => (Reply::Int(0), Change::Keep),
    }
}

/// `EXISTS` and `TOUCH`. Every key of one call is the same key here, and each mention counts.
pub(crate) fn exists<'a>(
    args: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let mentions = if current.content.is_some() { args.len() as i64 - 1 } else { 0 };
    (Reply::Int(mentions), Change::Keep)
}

pub(crate) fn type_of<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let name = current.content.map_or("none", |content| type_name(content.kind));
    (Reply::status(name), Change::Keep)
}

/// What `TYPE` says of a value of this kind.
pub fn type_name(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::String => "string",
        ValueKind::Hash => "hash",
        ValueKind::List => "list",
        ValueKind::Set => "set",
        ValueKind::SortedSet => "zset",
        ValueKind::Stream => "stream",
    }
}

/// What Redis calls the form of a collection.
fn encoding(content: Content<'_>, large: Option<&Collection>) -> &'static str {
    if let Some(large) = large {
        // None is in Redis's compact encoding.
        return match large.kind() {
            ValueKind::List => "quicklist",
            ValueKind::SortedSet => "skiplist",
            ValueKind::Stream => "stream",
            _ => "hashtable",
        };
    }
    let packed = Packed::read(content);
    match content.kind {
        ValueKind::Hash => hash::encoding(packed),
        ValueKind::List => "quicklist",
        ValueKind::Stream => "stream",
        ValueKind::SortedSet => sorted_set::encoding(packed),
        ValueKind::Set => Set::read(packed).encoding(),
        ValueKind::String => unreachable!("no collection"),
    }
}

/// `OBJECT FREQ`: as Redis answers it where nothing is evicted.
pub(crate) fn object_freq<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    const NOT_COUNTED: Reply<'static> = Reply::error(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
         that when switching between policies at runtime LRU and LFU data will take some time to \
         adjust.",
    );
    (current.content.map_or(Reply::Null, |_| NOT_COUNTED), Change::Keep)
}

/// `OBJECT IDLETIME`: nobody notes when a key was read, since nothing is evicted for it.
pub(crate) fn object_idletime<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    (current.content.map_or(Reply::Null, |_| Reply::Int(0)), Change::Keep)
}

/// Integers from 0 up to this one are shared in Redis.
const SHARED_INTEGERS: i64 = 10_000;

/// `OBJECT REFCOUNT`: what Redis says of shared integers, and 1 of everything else.
pub(crate) fn object_refcount<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let Some(content) = current.content else { return (Reply::Null, Change::Keep) };
    let number = (content.kind == ValueKind::String).then(|| parse_integer(content.bytes));
    let is_shared = number.flatten().is_some_and(|number| (0..SHARED_INTEGERS).contains(&number));
    let count = if is_shared { i64::from(i32::MAX) } else { 1 };
    (Reply::Int(count), Change::Keep)
}

/// The longest string that Redis stores next to its header.
const EMBEDDED_BYTES_MAX: usize = 44;

pub(crate) fn object_encoding<'a>(
    _: Args<'a>,
    _: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let reply = match current.content {
        None => Reply::Null,
        Some(content) if content.kind != ValueKind::String => {
            Reply::text(encoding(content, current.large))
        }
        Some(content) if parse_integer(content.bytes).is_some() => Reply::text("int"),
        Some(content) if content.bytes.len() <= EMBEDDED_BYTES_MAX => Reply::text("embstr"),
        Some(_) => Reply::text("raw"),
    };
    (reply, Change::Keep)
}
