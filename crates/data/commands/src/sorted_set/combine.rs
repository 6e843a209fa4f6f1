//! Unions, intersections and differences of sorted sets, and of sets, whose members have the score 1.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Content, ValueKind, Workspace, mutant};
use quorate_types::{UnixMillis, limits};

use super::{ENTRY_BYTES_MIN, Entries, Entry, SCORE_BYTES, SortedSet, reply, store_new};
use crate::double::parse_double;
use crate::number::{integer, parse_integer};
use crate::options::{SYNTAX, is_word};
use crate::packed::{Builder, TOO_LARGE};
use crate::room::ANSWER_TOO_LONG;
use crate::set::Set;
use crate::string::WRONGTYPE;
use crate::{Args, Reply, lookup};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Defines commands that answer what they find, and commands that store it.
macro_rules! operations {
    ($($find:ident, $store:ident => $operation:expr;)*) => {
        $(
            pub(crate) fn $find(
                args: Args<'_>,
                _: UnixMillis,
                workspace: &mut dyn Workspace,
            ) -> Reply<'static> {
                answer($operation, args, workspace).unwrap_or_else(|error| error)
            }

            pub(crate) fn $store(
                args: Args<'_>,
                _: UnixMillis,
                workspace: &mut dyn Workspace,
            ) -> Reply<'static> {
                store($operation, args, workspace).unwrap_or_else(|error| error)
            }
        )*
    };
}

operations! {
    zunion, zunionstore => Operation::Union;
    zinter, zinterstore => Operation::Intersection;
    zdiff, zdiffstore => Operation::Difference;
}

/// What the commands that store do to their key if all are the same one.
pub(crate) fn store_access(args: Args<'_>) -> Access {
    let count = parse_integer(args.get(2)).and_then(|count| usize::try_from(count).ok());
    let is_one_key = |count| args.iter().skip(3).take(count).all(|key| key == args.get(1));
    if count.is_some_and(is_one_key) { Access::Update } else { Access::Read }
}

/// Gives the target of a command that stores what it found, and answers how many that is. Nothing
/// takes away what the target held.
pub(crate) fn write(
    target: &[u8],
    count: usize,
    change: Option<Change<'_>>,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    match change {
        Some(change) => workspace.write(target, change),
        None if workspace.read(target).content.is_some() => workspace.write(target, Change::Delete),
        None => {}
    }
    Reply::Int(count as i64)
}

fn answer(
    operation: Operation,
    args: Args<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let sources = read(args, 1, workspace)?;
    let options = Options::parse(
        args,
        2 + sources.len(),
        sources.len(),
        Allowed { weights: operation != Operation::Difference, scores: true },
    )?;
    let per_member = size_of::<Reply<'_>>() * if options.with_scores { 2 } else { 1 };
    let room = Room { bytes: limits::REPLY_BYTES_MAX, per_member, error: TOO_LONG };
    let found = combine(operation, &sources, &options, &room)?;
    Ok(reply(found, options.with_scores).into_owned())
}

fn store(
    operation: Operation,
    args: Args<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let sources = read(args, 2, workspace)?;
    let options = Options::parse(
        args,
        3 + sources.len(),
        sources.len(),
        Allowed { weights: operation != Operation::Difference, scores: false },
    )?;
    let (bytes, per_member) = (limits::VALUE_BYTES_MAX, ENTRY_BYTES_MIN);
    let room = Room { bytes, per_member, error: TOO_LARGE };
    let found = combine(operation, &sources, &options, &room)?;
    let change = store_new(&found)?;
    Ok(write(args.get(1), found.len(), change, workspace))
}

/// `ZINTERCARD numkeys key ... [LIMIT limit]`.
pub(crate) fn zintercard(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    cardinality(args, workspace).unwrap_or_else(|error| error)
}

fn cardinality(
    args: Args<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let sources = read(args, 1, workspace)?;
    let mut limit = 0;
    let mut words = args.iter().skip(2 + sources.len());
    while let Some(word) = words.next() {
        let value = words.next().filter(|_| is_word(word, "LIMIT")).ok_or(SYNTAX)?;
        limit = parse_integer(value)
            .and_then(|limit| usize::try_from(limit).ok())
            .ok_or(Reply::error("ERR LIMIT can't be negative"))?;
    }
    let most = if limit == 0 { usize::MAX } else { limit };
    let weights = Vec::from_iter(sources.iter().map(|_| 1.0));
    let options = Options { weights, aggregate: Aggregate::Sum, with_scores: false };
    let count = intersection(&in_order(&sources, &options), options.aggregate).len();
    Ok(Reply::Int(count.min(most) as i64))
}

const TOO_LONG: Reply<'static> = Reply::error(ANSWER_TOO_LONG);

/// The members of one of the keys, whatever its type, as those of a sorted set lie in its value, though
/// not in order.
struct Source {
    bytes: Vec<u8>,
    count: usize,
}

impl Source {
    fn of(content: Content<'_>) -> Result<Self, Reply<'static>> {
        match content.kind {
            ValueKind::SortedSet => {
                let set = SortedSet::read(content);
                Ok(Self { bytes: set.bytes.into(), count: set.count })
            }
            ValueKind::Set => {
                let set = Set::of_bytes(content.bytes);
                let mut builder = Builder::new(0, content.bytes.len() + set.len() * SCORE_BYTES);
                for member in set.members() {
                    builder.raw(&1_f64.to_le_bytes());
                    builder.item(&member);
                }
                Ok(Self { bytes: builder.into_items(), count: set.len() })
            }
            _ => Err(WRONGTYPE),
        }
    }
}

/// The keys whose number stands at argument `at`. They are looked at before the options, as in Redis.
fn read(
    args: Args<'_>,
    at: usize,
    workspace: &mut dyn Workspace,
) -> Result<Vec<Source>, Reply<'static>> {
    let count = integer(args.get(at))?;
    if count < 1 {
        let name = lookup(args.get(0)).expect("the command was found by this name").name;
        return Err(Reply::Error(
            format!("ERR at least 1 input key is needed for '{name}' command").into(),
        ));
    }
    if count > (args.len() - at - 1) as i64 {
        return Err(SYNTAX);
    }
    let keys = args.iter().skip(at + 1).take(count as usize);
    let source = |key| match workspace.read(key).content {
        Some(content) => Source::of(content),
        None => Ok(Source { bytes: Vec::new(), count: 0 }),
    };
    keys.map(source).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    /// Takes another score of the same member into account. A sum that is no number is 0; a score that
    /// is none doesn't count otherwise.
    fn add(self, sum: &mut f64, score: f64) {
        *sum = match self {
            Self::Sum if (*sum + score).is_nan() => 0.0,
            Self::Sum => *sum + score,
            Self::Min if score < *sum => score,
            Self::Max if score > *sum => score,
            Self::Min | Self::Max => *sum,
        };
    }
}

/// Which options a command has besides `AGGREGATE`, which goes with `WEIGHTS`.
#[derive(Clone, Copy)]
struct Allowed {
    weights: bool,
    scores: bool,
}

struct Options {
    /// One for each source.
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
}

impl Options {
    fn parse(
        args: Args<'_>,
        from: usize,
        sources: usize,
        allowed: Allowed,
    ) -> Result<Self, Reply<'static>> {
        let mut options = Self {
            weights: Vec::from_iter((0..sources).map(|_| 1.0)),
            aggregate: Aggregate::Sum,
            with_scores: false,
        };
        let mut words = args.iter().skip(from);
        while let Some(word) = words.next() {
            let left = words.clone().count();
            if allowed.weights && left >= sources && is_word(word, "WEIGHTS") {
                for (weight, word) in options.weights.iter_mut().zip(words.by_ref()) {
                    *weight = parse_double(word)
                        .ok_or(Reply::error("ERR weight value is not a float"))?;
                }
            } else if allowed.weights && left >= 1 && is_word(word, "AGGREGATE") {
                options.aggregate = match words.next().expect("a word is left") {
                    word if is_word(word, "SUM") => Aggregate::Sum,
                    word if is_word(word, "MIN") => Aggregate::Min,
                    word if is_word(word, "MAX") => Aggregate::Max,
                    _ => return Err(SYNTAX),
                };
            } else if allowed.scores && is_word(word, "WITHSCORES") {
                options.with_scores = true;
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(options)
    }
}

/// What the answer or the value may hold, so that no more than that is collected.
struct Room {
    bytes: usize,
    /// What each member takes besides its own bytes.
    per_member: usize,
    error: Reply<'static>,
}

/// The sources from the smallest to the largest, with their weights: Redis adds scores in this order,
/// and the last digits depend on it.
fn in_order<'a>(sources: &'a [Source], options: &Options) -> Vec<(&'a Source, f64)> {
    let mut sources: Vec<_> = sources.iter().zip(options.weights.iter().copied()).collect();
    if !mutant!("commands_scores_added_in_any_order") {
        sources.sort_by_key(|(source, _)| source.count);
    }
    sources
}

fn weighted<'a>(
    (source, weight): (&'a Source, f64),
) -> impl Iterator<Item = (&'a [u8], f64)> + use<'a> {
    Entries { rest: &source.bytes }.map(move |entry| (entry.member, entry.score * weight))
}

/// A score that a member begins with.
fn number(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

fn combine<'a>(
    operation: Operation,
    sources: &'a [Source],
    options: &Options,
    room: &Room,
) -> Result<Vec<Entry<'a>>, Reply<'static>> {
    let found = match operation {
        Operation::Union => union(&in_order(sources, options), options.aggregate, room)?,
        Operation::Intersection => intersection(&in_order(sources, options), options.aggregate),
        Operation::Difference => difference(sources),
    };
    let mut found: Vec<_> =
        found.into_iter().map(|(member, score)| Entry { score, member }).collect();
    let bytes: usize = found.iter().map(|entry| room.per_member + entry.member.len()).sum();
    if bytes > room.bytes {
        return Err(room.error.clone());
    }
    found.sort_unstable_by(Entry::order);
    Ok(found)
}

type Scores<'a> = BTreeMap<&'a [u8], f64>;

fn union<'a>(
    sources: &[(&'a Source, f64)],
    aggregate: Aggregate,
    room: &Room,
) -> Result<Scores<'a>, Reply<'static>> {
    let (mut union, mut bytes) = (Scores::new(), 0);
    for (member, score) in sources.iter().flat_map(|source| weighted(*source)) {
        let score = number(score);
        if let Some(sum) = union.get_mut(member) {
            aggregate.add(sum, score);
            continue;
        }
        bytes += room.per_member + member.len();
        if bytes > room.bytes {
            return Err(room.error.clone());
        }
        union.insert(member, score);
    }
    Ok(union)
}

fn intersection<'a>(sources: &[(&'a Source, f64)], aggregate: Aggregate) -> Scores<'a> {
    let (first, others) = sources.split_first().expect("there is a source");
    let mut common: BTreeMap<_, _> =
        weighted(*first).map(|(member, score)| (member, (number(score), 0))).collect();
    for (at, source) in others.iter().enumerate() {
        for (member, score) in weighted(*source) {
            if let Some((sum, sources)) = common.get_mut(member)
                && *sources == at
            {
                aggregate.add(sum, score);
                *sources += 1;
            }
        }
    }
    let in_all = |(member, (score, sources))| (sources == others.len()).then_some((member, score));
    common.into_iter().filter_map(in_all).collect()
}

fn difference(sources: &[Source]) -> Scores<'_> {
    let (first, others) = sources.split_first().expect("there is a source");
    let mut left: Scores<'_> = weighted((first, 1.0)).collect();
    for (member, _) in others.iter().flat_map(|source| weighted((source, 1.0))) {
        left.remove(member);
    }
    left
}
