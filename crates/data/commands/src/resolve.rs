//! From arguments to a row of the command table.

use alloc::format;
use alloc::string::String;

use crate::expiry::quote;
use crate::options::c_string;
use crate::spec::{Run, Spec};
use crate::table::{lookup, subcommand};
use crate::{Args, Reply};

/// The commands of Redis 7.2 and the group of each, ordered by name; `client|id` is a subcommand.
pub const REDIS_COMMANDS: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/redis.rs"));

/// The most bytes of a request that an error quotes.
const QUOTED_BYTES_MAX: usize = 128;

/// The command, or subcommand, that the arguments name, if it takes that many arguments; otherwise
/// what Redis answers.
///
/// # Panics
/// If there are no arguments at all.
#[inline]
pub fn resolve(args: Args<'_>) -> Result<&'static Spec, Reply<'static>> {
    let Some(mut spec) = lookup(args.get(0)) else { return Err(unknown_command(args)) };
    if !spec.subcommands.is_empty() && args.len() > 1 {
        spec = subcommand(spec, args.get(1)).ok_or_else(|| unknown_subcommand(args))?;
    }
    if !spec.takes(args.len()) || matches!(spec.run, Run::Container) {
        return Err(arity_error(spec));
    }
    Ok(spec)
}

/// The error of a wrong number of arguments.
#[cold]
pub fn arity_error(spec: &Spec) -> Reply<'static> {
    Reply::Error(format!("ERR wrong number of arguments for '{}' command", spec.name).into())
}

#[cold]
fn unknown_command(args: Args<'_>) -> Reply<'static> {
    if let Some(reply) = lacking(args, 1) {
        return reply;
    }
    let mut beginning = String::new();
    let mut quoted = 0;
    for argument in args.iter().skip(1) {
        if quoted >= QUOTED_BYTES_MAX {
            break;
        }
        let argument = cut(argument, QUOTED_BYTES_MAX - quoted);
        quoted += argument.len() + 3;
        beginning += &format!("'{}' ", quote(argument));
    }
    let name = quote(cut(args.get(0), QUOTED_BYTES_MAX));
    Reply::Error(
        format!("ERR unknown command '{name}', with args beginning with: {beginning}").into(),
    )
}

#[cold]
fn unknown_subcommand(args: Args<'_>) -> Reply<'static> {
    if let Some(reply) = lacking(args, 2) {
        return reply;
    }
    let name = quote(cut(args.get(1), QUOTED_BYTES_MAX));
    let container = quote(args.get(0)).to_ascii_uppercase();
    Reply::Error(format!("ERR unknown subcommand '{name}'. Try {container} HELP.").into())
}

/// The error of a command that Redis has and Quorate has not: its name is the first of the arguments,
/// or the first two.
fn lacking(args: Args<'_>, words: usize) -> Option<Reply<'static>> {
    let mut name = String::new();
    for word in args.iter().take(words) {
        // A `|` joins a command and its subcommand in names, and stands in none.
        let is_name = |word: &&str| word.len() <= QUOTED_BYTES_MAX && !word.contains('|');
        let word = core::str::from_utf8(word).ok().filter(is_name)?;
        name += if name.is_empty() { "" } else { "|" };
        name += &word.to_ascii_lowercase();
    }
    REDIS_COMMANDS.binary_search_by_key(&name.as_str(), |(name, _)| name).ok()?;
    let name = name.replace('|', " ").to_ascii_uppercase();
    let text = format!("ERR Quorate has no '{name}' yet; docs/src/commands.md lists what there is");
    Some(Reply::Error(text.into()))
}

fn cut(argument: &[u8], length: usize) -> &[u8] {
    let argument = c_string(argument);
    &argument[..argument.len().min(length)]
}
