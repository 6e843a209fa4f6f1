//! Ranges of keys, in keyspaces that keep their keys in order.

use alloc::vec::Vec;

use quorate_machine::Workspace;
use quorate_types::UnixMillis;

use crate::number::integer;
use crate::options::{SYNTAX, is_word};
use crate::{Args, Reply, UNORDERED};

const NOT_A_BOUND: Reply<'static> =
    Reply::error("ERR min or max is not a bound: - or +, or [ or ( and a key");

struct Range {
    /// The first key that may be in.
    from: Vec<u8>,
    /// The first key behind that is out, if there is one.
    to: Option<Vec<u8>>,
    limit: usize,
    values: bool,
}

/// `KEYRANGE min max [LIMIT count] [WITHVALUES]`, with the bounds of Redis's `ZRANGEBYLEX`.
pub(crate) fn keyrange(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let Range { from, to, limit, values } = match parse(args) {
        Ok(range) => range,
        Err(error) => return error,
    };
    let mut replies = Vec::new();
    let seen = workspace.range(&from, to.as_deref(), limit, &mut |key, current| {
        let bulk = |bytes: &[u8]| Reply::Bulk(Vec::from(bytes).into());
        replies.push(bulk(key));
        if values {
            replies.push(current.content.map_or(Reply::Null, |content| bulk(content.bytes)));
        }
    });
    match seen {
        Ok(()) => Reply::Array(replies),
        Err(quorate_machine::Unordered) => Reply::error(UNORDERED),
    }
}

/// What is wrong with its arguments.
pub(crate) fn check(args: Args<'_>) -> Result<(), Reply<'static>> {
    parse(args).map(|_| ())
}

fn parse(args: Args<'_>) -> Result<Range, Reply<'static>> {
    let from = match args.get(1) {
        b"-" => Vec::new(),
        [b'[', key @ ..] => key.into(),
        [b'(', key @ ..] => behind(key),
        b"+" => return empty(args),
        _ => return Err(NOT_A_BOUND),
    };
    let to = match args.get(2) {
        b"+" => None,
        [b'[', key @ ..] => Some(behind(key)),
        [b'(', key @ ..] => Some(key.into()),
        b"-" => Some(Vec::new()),
        _ => return Err(NOT_A_BOUND),
    };
    with_options(args, Range { from, to, limit: usize::MAX, values: false })
}

/// A range from behind all keys.
fn empty(args: Args<'_>) -> Result<Range, Reply<'static>> {
    let to = Some(Vec::new());
    with_options(args, Range { from: Vec::new(), to, limit: usize::MAX, values: false })
}

/// The first key behind one.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn with_options(args: Args<'_>, mut range: Range) -> Result<Range, Reply<'static>> {
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        if is_word(word, "withvalues") {
            range.values = true;
        } else if is_word(word, "limit") {
            let count = integer(options.next().ok_or(SYNTAX)?)?;
            range.limit =
                usize::try_from(count).map_err(|_| Reply::error("ERR LIMIT can't be negative"))?;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(range)
}
