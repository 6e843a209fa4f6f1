//! Commands over several keys at once.
//!
//! Each looks at its arguments first and touches keys only when they are in order; a key is read
//! only if the answer or the change depends on what it holds, since every key that was read can
//! stop a transaction.

use alloc::vec::Vec;

use quorate_machine::{Access, Change, Content, ValueKind, Workspace};
use quorate_types::{UnixMillis, limits};

use crate::number::integer;
use crate::options::{SYNTAX, is_word};
use crate::{Args, Reply, arity_error, lookup};

pub(crate) fn mset(args: Args<'_>, _: UnixMillis, workspace: &mut dyn Workspace) -> Reply<'static> {
    if has_odd_pair(args) {
        return Reply::error("ERR wrong number of arguments for 'mset' command");
    }
    set_all(args, workspace);
    Reply::Ok
}

pub(crate) fn msetnx(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    if has_odd_pair(args) {
        return Reply::error("ERR wrong number of arguments for 'msetnx' command");
    }
    let any = args.iter().skip(1).step_by(2).any(|key| workspace.read(key).content.is_some());
    if any {
        return Reply::Int(0);
    }
    set_all(args, workspace);
    Reply::Int(1)
}

/// The error of a call whose number of arguments its options don't allow.
pub(crate) fn wrong_number_of_arguments(args: Args<'_>) -> Reply<'static> {
    arity_error(lookup(args.get(0)).expect("the command was found by this name")).into_owned()
}

/// Whether the last key has no value.
fn has_odd_pair(args: Args<'_>) -> bool {
    args.len().is_multiple_of(2)
}

/// Of a key that stands there twice, the last value stays.
fn set_all(args: Args<'_>, workspace: &mut dyn Workspace) {
    for at in (1..args.len()).step_by(2) {
        let change = Change::Set {
            bytes: args.get(at + 1).into(),
            kind: ValueKind::String,
            expire_at: None,
        };
        workspace.write(args.get(at), change);
    }
}

/// What `MSET` does to its key if every key is the same one; a read, which answers an error,
/// otherwise.
pub(crate) fn mset_access(args: Args<'_>) -> Access {
    if is_valid_on_one_key(args) { Access::Write } else { Access::Read }
}

/// What `MSETNX` does to its key if every key is the same one; a read, which answers an error,
/// otherwise.
pub(crate) fn msetnx_access(args: Args<'_>) -> Access {
    if is_valid_on_one_key(args) { Access::Update } else { Access::Read }
}

fn is_valid_on_one_key(args: Args<'_>) -> bool {
    let key = args.get(1);
    !has_odd_pair(args) && args.iter().skip(1).step_by(2).all(|other| other == key)
}

pub(crate) fn rename(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let (from, to) = (args.get(1), args.get(2));
    let Some(value) = take(from, workspace) else { return NO_KEY };
    if from != to {
        workspace.write(to, value);
        workspace.write(from, Change::Delete);
    }
    Reply::Ok
}

pub(crate) fn renamenx(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let (from, to) = (args.get(1), args.get(2));
    let Some(value) = take(from, workspace) else { return NO_KEY };
    if workspace.read(to).content.is_some() {
        return Reply::Int(0);
    }
    workspace.write(to, value);
    workspace.write(from, Change::Delete);
    Reply::Int(1)
}

const NO_KEY: Reply<'static> = Reply::error("ERR no such key");

/// The change that gives another key what this one holds, its expiry included.
fn take(key: &[u8], workspace: &mut dyn Workspace) -> Option<Change<'static>> {
    let Content { bytes, kind, expire_at } = workspace.read(key).content?;
    Some(Change::Set { bytes: Vec::from(bytes).into(), kind, expire_at })
}

pub(crate) fn copy(args: Args<'_>, _: UnixMillis, workspace: &mut dyn Workspace) -> Reply<'static> {
    let replace = match copy_options(args) {
        Ok(replace) => replace,
        Err(error) => return error,
    };
    let (from, to) = (args.get(1), args.get(2));
    if from == to {
        return Reply::error("ERR source and destination objects are the same");
    }
    let Some(value) = take(from, workspace) else { return Reply::Int(0) };
    if !replace && workspace.read(to).content.is_some() {
        return Reply::Int(0);
    }
    workspace.write(to, value);
    Reply::Int(1)
}

/// Whether the options say `REPLACE`. A keyspace must not be named: a transaction has only one.
fn copy_options(args: Args<'_>) -> Result<bool, Reply<'static>> {
    let (mut replace, mut named) = (false, false);
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        if is_word(word, "REPLACE") {
            replace = true;
            continue;
        }
        let number = options.next().filter(|_| is_word(word, "DB")).ok_or(SYNTAX)?;
        let number = i32::try_from(integer(number)?).map_err(|_| {
            Reply::error("ERR value is out of range, value must between -2147483648 and 2147483647")
        })?;
        let known = usize::try_from(number).is_ok_and(|number| number < limits::KEYSPACES_MAX);
        if !known {
            return Err(Reply::error("ERR DB index is out of range"));
        }
        named = true;
    }
    if named { Err(OTHER_KEYSPACE) } else { Ok(replace) }
}

const OTHER_KEYSPACE: Reply<'static> = Reply::error(
    "CROSSKEY a copy stays in its keyspace here; leave out DB, or read the key and set it in the \
     other keyspace",
);
