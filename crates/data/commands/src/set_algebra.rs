//! What sets have in common, have together, or have alone.

use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Collection, Content, Current, ValueKind, Workspace, mutant};
use quorate_types::UnixMillis;

use crate::number::parse_integer;
use crate::options::{SYNTAX, is_word};
use crate::packed::replace;
use crate::set::{Set, add, is_compact, of_members, remove};
use crate::{Args, Reply};

type Answer = Result<Reply<'static>, Reply<'static>>;
type Member<'a> = Cow<'a, [u8]>;

/// Defines functions over sets by what they answer or by their error.
macro_rules! functions {
    ($($name:ident => $function:expr;)*) => {
        $(pub(crate) fn $name(
            args: Args<'_>,
            _: UnixMillis,
            workspace: &mut dyn Workspace,
        ) -> Reply<'static> {
            let function: fn(Args<'_>, &mut dyn Workspace) -> Answer = $function;
            function(args, workspace).unwrap_or_else(|error| error)
        })*
    };
}

functions! {
    smove => try_smove;
    sinter => |args, workspace| show(Operation::Intersection, args, workspace);
    sunion => |args, workspace| show(Operation::Union, args, workspace);
    sdiff => |args, workspace| show(Operation::Difference, args, workspace);
    sinterstore => |args, workspace| store(Operation::Intersection, args, workspace);
    sunionstore => |args, workspace| store(Operation::Union, args, workspace);
    sdiffstore => |args, workspace| store(Operation::Difference, args, workspace);
    sintercard => try_sintercard;
}

/// What a command does to its key that stores what it makes of sets, if all its keys are the same one;
/// a read otherwise.
pub(crate) fn store_access(args: Args<'_>) -> Access {
    let one_key = args.iter().skip(2).all(|key| key == args.get(1));
    if one_key { Access::Update } else { Access::Read }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// A copy of a set. That of a large one shares its members.
enum Copied {
    Packed(Vec<u8>),
    Large(Collection),
}

impl Copied {
    fn set(&self) -> Option<Set<'_>> {
        match self {
            Self::Packed(bytes) => Some(Set::of_bytes(bytes)),
            Self::Large(large) => large.set().map(Set::Large),
        }
    }
}

/// Copies of the sets of these keys; nothing for an absent one.
fn read<'k>(
    keys: impl Iterator<Item = &'k [u8]>,
    workspace: &mut dyn Workspace,
) -> Result<Vec<Option<Copied>>, Reply<'static>> {
    keys.map(|key| {
        let current = workspace.read(key);
        Set::held(current)?;
        let large = current.large.map(|large| Copied::Large(large.clone()));
        let packed = |content: Content<'_>| Copied::Packed(content.bytes.to_vec());
        Ok(large.or_else(|| current.content.map(packed)))
    })
    .collect()
}

impl Operation {
    /// The members that it makes of sets, all different.
    fn run(self, values: &[Option<Copied>]) -> Vec<Member<'_>> {
        fn set(value: &Option<Copied>) -> Option<Set<'_>> {
            value.as_ref().and_then(Copied::set)
        }
        match self {
            Self::Union => in_order(values.iter().filter_map(set).flat_map(Set::members)),
            Self::Intersection => {
                let Some(mut sets) = values.iter().map(set).collect::<Option<Vec<_>>>() else {
                    return vec![];
                };
                // Whatever is common is in the smallest one.
                sets.sort_by_key(|set| set.len());
                let (first, others) = sets.split_first().expect("the arity demands a key");
                let mut members = in_order(first.members());
                others.iter().for_each(|other| keep(&mut members, *other, true));
                members
            }
            Self::Difference => {
                let Some(first) = set(&values[0]) else { return vec![] };
                let mut members = in_order(first.members());
                let others = values[1..].iter().filter_map(set);
                others.for_each(|other| keep(&mut members, other, false));
                members
            }
        }
    }
}

fn in_order<'a>(members: impl Iterator<Item = Member<'a>>) -> Vec<Member<'a>> {
    let mut members: Vec<_> = members.collect();
    members.sort_unstable();
    members.dedup();
    members
}

/// Keeps of members in order those that are in a set, or those that aren't.
fn keep(members: &mut Vec<Member<'_>>, set: Set<'_>, those_inside: bool) {
    if members.is_empty() {
        return;
    }
    if matches!(set, Set::Large(_)) {
        return members.retain(|member| set.contains(member) == those_inside);
    }
    let mut inside = vec![false; members.len()];
    for member in set.members() {
        if let Ok(at) = members.binary_search(&member) {
            inside[at] = true;
        }
    }
    let mut inside = inside.into_iter();
    members.retain(|_| inside.next() == Some(those_inside));
}

fn show(operation: Operation, args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let sets = read(args.iter().skip(1), workspace)?;
    let mut members = operation.run(&sets);
    if is_compact(&members) {
        members.sort_by_key(|member| parse_integer(member));
    }
    let bulk = |member: Member<'_>| Reply::Bulk(member.into_owned().into());
    Ok(Reply::Set(members.into_iter().map(bulk).collect()))
}

fn store(operation: Operation, args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let sets = read(args.iter().skip(2), workspace)?;
    let members = operation.run(&sets);
    let target = args.get(1);
    if members.is_empty() {
        if workspace.read(target).content.is_some() {
            workspace.write(target, Change::Delete);
        }
    } else {
        // Whatever the target held, its expiry included, is replaced.
        let nothing = Current::ABSENT;
        workspace.write(target, replace(of_members(&members), ValueKind::Set, nothing)?);
    }
    Ok(Reply::Int(members.len() as i64))
}

fn try_sintercard(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let keys = parse_integer(args.get(1)).and_then(|keys| usize::try_from(keys).ok());
    let keys = keys
        .filter(|keys| *keys > 0)
        .ok_or(Reply::error("ERR numkeys should be greater than 0"))?;
    if keys > args.len() - 2 {
        return Err(Reply::error("ERR Number of keys can't be greater than number of args"));
    }
    let mut limit = 0;
    let mut words = args.iter().skip(2 + keys);
    while let Some(word) = words.next() {
        let value = words.next().filter(|_| is_word(word, "LIMIT")).ok_or(SYNTAX)?;
        limit = parse_integer(value)
            .and_then(|limit| u64::try_from(limit).ok())
            .ok_or(Reply::error("ERR LIMIT can't be negative"))?;
    }
    let sets = read(args.iter().skip(2).take(keys), workspace)?;
    let count = Operation::Intersection.run(&sets).len() as u64;
    Ok(Reply::Int(if limit == 0 { count } else { count.min(limit) }.cast_signed()))
}

fn try_smove(args: Args<'_>, workspace: &mut dyn Workspace) -> Answer {
    let (source, target, member) = (args.get(1), args.get(2), args.get(3));
    let current = workspace.read(source);
    let Some(set) = Set::held(current)? else { return Ok(Reply::Int(0)) };
    if source == target {
        return Ok(Reply::Int(i64::from(set.contains(member))));
    }
    let (removed, rest) = remove(set, [member].into_iter(), current)?;
    let rest = rest.into_owned();
    if mutant!("commands_member_taken_before_target") {
        workspace.write(source, rest.clone());
    }
    let current = workspace.read(target);
    let set = Set::of(current)?;
    if removed == 0 {
        return Ok(Reply::Int(0));
    }
    let (_, change) = add(set, [member].into_iter(), current)?;
    let change: Change<'static> = change;
    workspace.write(source, rest);
    workspace.write(target, change);
    Ok(Reply::Int(1))
}
