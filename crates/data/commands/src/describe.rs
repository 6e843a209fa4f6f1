//! What `COMMAND` and its subcommands say of the table.

use alloc::vec;
use alloc::vec::Vec;

use crate::bitfield;
use crate::options::is_word;
use crate::spec::{Argument, KeySpec, KeysBegin, KeysFind, ServerCommand, Spec, flag};
use crate::table::{lookup, lookup_name, subcommand, table};
use crate::{Args, Call, Reply};

/// The answer to `COMMAND` or one of its subcommands.
pub(crate) fn answer(which: ServerCommand, args: Args<'_>) -> Option<Reply<'static>> {
    let names = args.iter().skip(2);
    Some(match which {
        ServerCommand::Command => commands_info(),
        ServerCommand::CommandInfo if args.len() == 2 => commands_info(),
        ServerCommand::CommandInfo => {
            Reply::Array(names.map(|name| command_info(lookup_name(name))).collect())
        }
        ServerCommand::CommandDocs if args.len() == 2 => command_docs(table()),
        ServerCommand::CommandDocs => command_docs(names.filter_map(lookup_name)),
        ServerCommand::CommandCount => command_count(),
        ServerCommand::CommandGetkeys => command_getkeys(Args { spans: &args.spans[2..], ..args }),
        ServerCommand::CommandGetkeysandflags => {
            command_getkeysandflags(Args { spans: &args.spans[2..], ..args })
        }
        _ => return None,
    })
}

/// `COMMAND`: every row.
pub fn commands_info() -> Reply<'static> {
    Reply::Array(table().iter().map(|spec| command_info(Some(spec))).collect())
}

/// `COMMAND COUNT`: how many commands there are, subcommands not counted.
pub fn command_count() -> Reply<'static> {
    Reply::Int(table().len() as i64)
}

/// One element of `COMMAND INFO`: the row, or null for an unknown name.
pub fn command_info(spec: Option<&'static Spec>) -> Reply<'static> {
    let Some(spec) = spec else { return Reply::Null };
    let integer = |number: i8| Reply::Int(i64::from(number));
    let subcommands = match spec.subcommands {
        // Redis says an empty set but a full array.
        [] => Reply::Set(Vec::new()),
        some => Reply::Array(some.iter().map(|sub| command_info(Some(sub))).collect()),
    };
    Reply::Array(vec![
        Reply::text(spec.name),
        integer(spec.arity),
        Reply::Set(spec.flags.names().map(Reply::status).collect()),
        integer(spec.keys.first),
        integer(spec.keys.last),
        integer(spec.keys.step),
        Reply::Set(spec.categories.names().map(Reply::status).collect()),
        Reply::Set(spec.tips.iter().map(|tip| Reply::text(tip)).collect()),
        Reply::Set(spec.key_specs.iter().map(key_spec).collect()),
        subcommands,
    ])
}

fn key_spec(spec: &KeySpec) -> Reply<'static> {
    let mut pairs = Vec::new();
    push_text(&mut pairs, "notes", spec.notes);
    push_statuses(&mut pairs, "flags", spec.flags);
    let begin = match spec.begin {
        KeysBegin::Index(index) => typed("index", &[("index", Reply::Int(index))]),
        KeysBegin::Keyword(word, from) => {
            typed("keyword", &[("keyword", Reply::text(word)), ("startfrom", Reply::Int(from))])
        }
        KeysBegin::Unknown => typed("unknown", &[]),
    };
    let numbers = |kind, numbers: [(&'static str, i64); 3]| {
        typed(kind, &numbers.map(|(name, number)| (name, Reply::Int(number))))
    };
    let find = match spec.find {
        KeysFind::Range { last, step, limit } => {
            numbers("range", [("lastkey", last), ("keystep", step), ("limit", limit)])
        }
        KeysFind::Counted { count, first, step } => {
            numbers("keynum", [("keynumidx", count), ("firstkey", first), ("keystep", step)])
        }
        KeysFind::Unknown => typed("unknown", &[]),
    };
    pairs.push((Reply::text("begin_search"), begin));
    pairs.push((Reply::text("find_keys"), find));
    Reply::Map(pairs)
}

fn typed(kind: &'static str, facts: &[(&'static str, Reply<'static>)]) -> Reply<'static> {
    let facts = facts.iter().map(|(name, fact)| (Reply::text(name), fact.clone())).collect();
    Reply::Map(vec![
        (Reply::text("type"), Reply::text(kind)),
        (Reply::text("spec"), Reply::Map(facts)),
    ])
}

/// `COMMAND DOCS` for these commands.
pub fn command_docs(specs: impl IntoIterator<Item = &'static Spec>) -> Reply<'static> {
    Reply::Map(specs.into_iter().map(|spec| (Reply::text(spec.name), docs(spec))).collect())
}

fn docs(spec: &'static Spec) -> Reply<'static> {
    let docs = &spec.docs;
    let mut pairs = Vec::new();
    push_text(&mut pairs, "summary", Some(docs.summary));
    push_text(&mut pairs, "since", Some(docs.since));
    push_text(&mut pairs, "group", Some(docs.group));
    push_text(&mut pairs, "complexity", docs.complexity);
    push_statuses(&mut pairs, "doc_flags", docs.flags);
    push_text(&mut pairs, "deprecated_since", docs.deprecated_since);
    push_text(&mut pairs, "replaced_by", docs.replaced_by);
    if !docs.history.is_empty() {
        let history = docs
            .history
            .iter()
            .map(|(version, change)| Reply::Array(vec![Reply::text(version), Reply::text(change)]));
        pairs.push((Reply::text("history"), Reply::Set(history.collect())));
    }
    push_arguments(&mut pairs, docs.arguments);
    if !spec.subcommands.is_empty() {
        pairs.push((Reply::text("subcommands"), command_docs(spec.subcommands)));
    }
    Reply::Map(pairs)
}

type Pairs = Vec<(Reply<'static>, Reply<'static>)>;

fn push_arguments(pairs: &mut Pairs, arguments: &'static [Argument]) {
    if !arguments.is_empty() {
        let arguments = arguments.iter().map(argument_docs).collect();
        pairs.push((Reply::text("arguments"), Reply::Array(arguments)));
    }
}

fn argument_docs(argument: &'static Argument) -> Reply<'static> {
    let mut pairs = Vec::new();
    push_text(&mut pairs, "name", Some(argument.name));
    push_text(&mut pairs, "type", Some(argument.kind));
    if let Some(index) = argument.key_spec {
        pairs.push((Reply::text("key_spec_index"), Reply::Int(index)));
    }
    push_text(&mut pairs, "token", argument.token);
    push_text(&mut pairs, "summary", argument.summary);
    push_text(&mut pairs, "since", argument.since);
    push_text(&mut pairs, "deprecated_since", argument.deprecated_since);
    push_statuses(&mut pairs, "flags", argument.flags);
    push_arguments(&mut pairs, argument.arguments);
    Reply::Map(pairs)
}

fn push_text(pairs: &mut Pairs, name: &'static str, text: Option<&'static str>) {
    if let Some(text) = text {
        pairs.push((Reply::text(name), Reply::text(text)));
    }
}

fn push_statuses(pairs: &mut Pairs, name: &'static str, words: &'static [&'static str]) {
    if !words.is_empty() {
        let words = words.iter().map(|word| Reply::status(word)).collect();
        pairs.push((Reply::text(name), Reply::Set(words)));
    }
}

/// `COMMAND GETKEYS`: the keys of the command that the arguments are.
///
/// # Panics
/// If there are no arguments at all.
pub fn command_getkeys(args: Args<'_>) -> Reply<'static> {
    keys_of(args, |call| call.keys().map(bulk).collect())
}

/// `COMMAND GETKEYSANDFLAGS`: the keys of the command that the arguments are, each with what
/// happens to it.
///
/// # Panics
/// If there are no arguments at all.
pub fn command_getkeysandflags(args: Args<'_>) -> Reply<'static> {
    keys_of(args, |call| {
        let mut found = Vec::new();
        for spec in call.spec.key_specs {
            let flags = key_flags(call, spec).iter().map(|flag| Reply::status(flag));
            let flags = Reply::Set(flags.collect());
            let sorts = call.spec.name == "sort" && spec.flags.contains(&"OW");
            let keys = spec.keys(call.args).chain(call.keys().skip(1).filter(|_| sorts));
            for key in keys {
                found.push(Reply::Array(vec![bulk(key), flags.clone()]));
            }
        }
        found
    })
}

/// What happens to a key: for two commands that depends on the other arguments.
fn key_flags(call: Call<'_>, spec: &KeySpec) -> &'static [&'static str] {
    match call.spec.name {
        "set" if call.args.iter().skip(3).any(|word| is_word(word, "GET")) => {
            &["RW", "access", "update"]
        }
        "set" => &["OW", "update"],
        "bitfield" if bitfield::only_gets(call.args) => &["RO", "access"],
        "bitfield" => &["RW", "access", "update"],
        _ => spec.flags,
    }
}

fn bulk(bytes: &[u8]) -> Reply<'static> {
    Reply::Bulk(bytes.to_vec().into())
}

fn keys_of(args: Args<'_>, list: impl FnOnce(Call<'_>) -> Vec<Reply<'static>>) -> Reply<'static> {
    let found = lookup(args.get(0)).and_then(|spec| {
        if spec.subcommands.is_empty() || args.len() == 1 {
            return Some(spec);
        }
        subcommand(spec, args.get(1))
    });
    let Some(spec) = found else { return Reply::error("ERR Invalid command specified") };
    if !spec.has_keys() {
        return Reply::error("ERR The command has no key arguments");
    }
    if !spec.takes(args.len()) {
        return Reply::error("ERR Invalid number of arguments specified for command");
    }
    let found = list(Call::new(spec, args));
    // Redis wants something in each group of keys, also where the command can do without.
    let begins_behind = |group: &KeySpec| match group.begin {
        KeysBegin::Index(index) => index >= args.len() as i64,
        _ => false,
    };
    let is_invalid = found.is_empty() && !spec.flags.has(flag::NO_MANDATORY_KEYS);
    if is_invalid || spec.key_specs.iter().any(begins_behind) {
        return Reply::error("ERR Invalid arguments specified for command");
    }
    Reply::Array(found)
}
