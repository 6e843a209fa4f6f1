//! Commands that wait until their keys hold something.
//!
//! The function of such a command doesn't wait: it takes what there is now, or answers null, which is
//! also what Redis does inside `MULTI`. [`Call::waits`] says for how long a front end should have it
//! wait, and for what; [`Call::on_awaited`] is the same command on some of the keys, to be tried again
//! when they have changed. `$` of an `XREAD` means the end of the stream as it was when the call
//! came: [`Call::ends_wanted`] and [`Call::with_end`] put an id in its place before the first try, or
//! what is added between two tries would be in neither.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, ValueKind, Workspace};
use quorate_types::{Duration, UnixMillis};

use crate::list::{self, End};
use crate::long_double::LongDouble;
use crate::spec::flag;
use crate::stream::{self, ReadOptions};
use crate::{Args, Call, OwnedCall, Reply, sorted_set};

/// How a command waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// For how long; for ever without.
    pub timeout: Option<Duration>,
    /// For what, and so beside whom.
    pub line: Line,
}

impl Wait {
    /// The answer when the time is over, also to commands that answer another null without waiting.
    pub const NOTHING: Reply<'static> = Reply::NullArray;

    /// Whether an answer says that there was nothing.
    pub fn is_nothing(reply: &Reply<'_>) -> bool {
        matches!(reply, Reply::Null | Reply::NullArray)
    }
}

/// Who waits for the same thing on a key: in one line, in order of arrival.
///
/// `XREAD` takes nothing away, so its line is no queue: everybody in it is tried.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Line {
    /// For items of a list.
    Lists,
    /// For members of a sorted set.
    SortedSets,
    /// For entries of a stream, which stay there.
    Entries,
    /// For entries of a stream that this group hasn't delivered.
    Group(Box<[u8]>),
}

impl Line {
    /// Whether a value of this kind may be what is waited for.
    pub fn wants(&self, kind: ValueKind) -> bool {
        match (self, kind) {
            // What it is tells only its bytes.
            (Self::Lists, kind) => kind == ValueKind::List,
            (Self::SortedSets, kind) => kind == ValueKind::SortedSet,
            (Self::Entries | Self::Group(_), kind) => kind == ValueKind::Stream,
        }
    }

    /// Whether a key that holds this kind of value now, or nothing, is a reason to try again. A group
    /// ends with its stream, and who waits for it is to hear of that.
    pub fn is_woken_by(&self, kind: Option<ValueKind>) -> bool {
        matches!(self, Self::Group(_)) || kind.is_some_and(|kind| self.wants(kind))
    }

    /// Whether everybody in the line is tried, not its first only.
    pub fn is_shared(&self) -> bool {
        *self == Self::Entries
    }

    /// The end of a wait for the group of a stream, if this answer of a later try is one.
    /// `key_is_gone` says whether the key holds no stream, if that is known.
    pub fn group_lost(
        &self,
        answer: &Reply<'_>,
        key_is_gone: Option<bool>,
    ) -> Option<Reply<'static>> {
        let (Self::Group(_), Reply::Error(text)) = (self, answer) else { return None };
        match key_is_gone {
            _ if text.starts_with("WRONGTYPE ") => Some(STREAM_GONE),
            Some(true) if text.starts_with("NOGROUP ") => Some(STREAM_GONE),
            Some(false) if text.starts_with("NOGROUP ") => Some(GROUP_GONE),
            _ => None,
        }
    }
}

const STREAM_GONE: Reply<'static> = Reply::error("UNBLOCKED the stream key no longer exists");
const GROUP_GONE: Reply<'static> =
    Reply::error("NOGROUP the consumer group this client was blocked on no longer exists");

/// Where the arguments of a command say what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// `key [key ...] timeout`.
    Keys,
    /// `source destination ... timeout`: for the source.
    Move,
    /// `timeout numkeys key [key ...] ...`.
    Counted,
    /// `... BLOCK ms ... STREAMS key [key ...] id [id ...]`.
    Streams,
}

impl Form {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "blpop" | "brpop" | "bzpopmin" | "bzpopmax" => Self::Keys,
            "blmove" | "brpoplpush" => Self::Move,
            "blmpop" | "bzmpop" => Self::Counted,
            "xread" | "xreadgroup" => Self::Streams,
            _ => return None,
        })
    }
}

impl<'a> Call<'a> {
    /// How the call waits if its keys hold nothing; `None` if it doesn't.
    ///
    /// # Errors
    /// If its timeout is none, or another argument is wrong.
    pub fn waits(self) -> Result<Option<Wait>, Reply<'static>> {
        if !self.spec.flags.has(flag::BLOCKING) {
            return Ok(None);
        }
        let Some(form) = Form::of(self.spec.name) else { return Ok(None) };
        self.validate()?;
        if form == Form::Streams {
            return Ok(ReadOptions::parse(self.args)?.wait());
        }
        let timeout = self.args.get(if form == Form::Counted { 1 } else { self.args.len() - 1 });
        let line = match self.spec.name {
            "bzpopmin" | "bzpopmax" | "bzmpop" => Line::SortedSets,
            _ => Line::Lists,
        };
        Ok(Some(Wait { timeout: seconds(timeout)?, line }))
    }

    /// Whether it is an `XREAD` or `XREADGROUP` with `BLOCK`, which Redis refuses in a script.
    pub fn has_block_option(self) -> bool {
        Form::of(self.spec.name) == Some(Form::Streams) && ReadOptions::block_in_script(self.args)
    }

    /// Whether the call is about all its keys together, so that an engine of single keys can't carry it
    /// out over several.
    pub fn waits_as_one(self) -> bool {
        matches!(Form::of(self.spec.name), Some(Form::Move | Form::Streams))
    }

    /// A read to be made before the call waits, if it is an `XREAD` with a `$`: it tells where the
    /// first such stream ends.
    pub fn ends_wanted(self) -> Option<OwnedCall> {
        let at = self.first_end()?;
        let key = self.args.get(at - ReadOptions::parse(self.args).ok()?.streams);
        Some(OwnedCall::new([&b"XINFO"[..], b"STREAM", key]).expect("a command"))
    }

    /// The call from where its first stream with a `$` ends, as that read has answered.
    ///
    /// # Errors
    /// If the key holds no stream.
    pub fn with_end(self, answer: &Reply<'_>) -> Result<OwnedCall, Reply<'static>> {
        let id = stream::last_id(answer)?;
        let at = self.first_end();
        let words = (0..self.args.len()).map(|place| match at {
            Some(at) if at == place => &id[..],
            _ => self.args.get(place),
        });
        Ok(OwnedCall::new(words).expect("the same command"))
    }

    /// Where the first `$` of an `XREAD` stands.
    fn first_end(self) -> Option<usize> {
        if self.spec.name != "xread" {
            return None;
        }
        let options = ReadOptions::parse(self.args).ok()?;
        let ids = options.first + options.streams..options.first + 2 * options.streams;
        ids.into_iter().find(|at| stream::is_end(self.args.get(*at)))
    }

    /// The keys that a call which waits waits for, in order, repeated ones repeatedly.
    pub fn awaited_keys(self) -> impl Iterator<Item = &'a [u8]> {
        let moves = matches!(Form::of(self.spec.name), Some(Form::Move));
        self.keys().take(if moves { 1 } else { usize::MAX })
    }

    /// The call on some of the keys that it waits for only, in this order.
    pub fn on_awaited(self, keys: &[&[u8]]) -> OwnedCall {
        let args = self.args;
        let number;
        let words: Vec<&[u8]> = match Form::of(self.spec.name) {
            Some(Form::Keys) => {
                let (name, timeout) = (args.get(0), args.get(args.len() - 1));
                [name].into_iter().chain(keys.iter().copied()).chain([timeout]).collect()
            }
            Some(Form::Counted) => {
                number = alloc::format!("{}", keys.len());
                let head = [args.get(0), args.get(1), number.as_bytes()];
                let rest = args.iter().skip(3 + self.keys().count());
                head.into_iter().chain(keys.iter().copied()).chain(rest).collect()
            }
            Some(Form::Streams) => streams_of(args, keys),
            Some(Form::Move) | None => args.iter().collect(),
        };
        OwnedCall::new(words).expect("fewer keys, but one at least")
    }
}

/// The words of an `XREAD` or `XREADGROUP` on these of its keys, with the id of each one's first
/// mention; all its words if these are all its keys.
fn streams_of<'w>(args: Args<'w>, keys: &[&'w [u8]]) -> Vec<&'w [u8]> {
    let Ok(options) = ReadOptions::parse(args) else { return args.iter().collect() };
    if options.streams().all(|(key, _)| keys.contains(&key)) {
        return args.iter().collect();
    }
    let id = |key: &&[u8]| options.streams().find(|(other, _)| other == key).map(|(_, id)| id);
    let head = args.iter().take(options.first);
    head.chain(keys.iter().copied()).chain(keys.iter().filter_map(id)).collect()
}

/// A timeout in seconds; none if it is zero.
fn seconds(word: &[u8]) -> Result<Option<Duration>, Reply<'static>> {
    let number = LongDouble::parse(word)
        .ok_or(Reply::error("ERR timeout is not a float or out of range"))?;
    // What has more milliseconds than 63 bits is negative to Redis, too.
    match number.ceil_of_thousandfold() {
        Some(0) => Ok(None),
        Some(millis @ 1..) => Ok(Some(Duration::from_millis(millis.unsigned_abs()))),
        _ => Err(Reply::error("ERR timeout is negative")),
    }
}

/// A timeout that is right, or the error of the command.
fn check(word: &[u8]) -> Result<(), Reply<'static>> {
    seconds(word).map(|_| ())
}

/// `BLPOP key [key ...] timeout`.
pub(crate) fn blpop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    pop_one(args, End::Left, workspace).unwrap_or_else(|error| error)
}

/// `BRPOP key [key ...] timeout`.
pub(crate) fn brpop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    pop_one(args, End::Right, workspace).unwrap_or_else(|error| error)
}

fn pop_one(
    args: Args<'_>,
    end: End,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let last = args.len() - 1;
    check(args.get(last))?;
    for key in args.iter().take(last).skip(1) {
        let taken = list::pop_from(key, end, 1, workspace)?;
        if let Some(item) = taken.and_then(|mut items| items.pop()) {
            return Ok(Reply::Array(vec![bulk(key), item]));
        }
    }
    Ok(Reply::NullArray)
}

fn bulk(bytes: &[u8]) -> Reply<'static> {
    Reply::Bulk(Vec::from(bytes).into())
}

/// `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`.
pub(crate) fn blmove(
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let ends = End::parse(args.get(3)).and_then(|_| End::parse(args.get(4)));
    match ends.and_then(|_| check(args.get(5))) {
        Ok(()) => list::lmove(args, now, workspace),
        Err(error) => error,
    }
}

/// `BRPOPLPUSH source destination timeout`.
pub(crate) fn brpoplpush(
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    match check(args.get(3)) {
        Ok(()) => list::rpoplpush(args, now, workspace),
        Err(error) => error,
    }
}

/// `BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
pub(crate) fn blmpop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    list::pop_first(counted(args), || check(args.get(1)), workspace).unwrap_or_else(|error| error)
}

/// `BZPOPMIN key [key ...] timeout`.
pub(crate) fn bzpopmin(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    pop_member(args, sorted_set::End::Min, workspace).unwrap_or_else(|error| error)
}

/// `BZPOPMAX key [key ...] timeout`.
pub(crate) fn bzpopmax(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    pop_member(args, sorted_set::End::Max, workspace).unwrap_or_else(|error| error)
}

fn pop_member(
    args: Args<'_>,
    end: sorted_set::End,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let last = args.len() - 1;
    check(args.get(last))?;
    for key in args.iter().take(last).skip(1) {
        if let Some(taken) = sorted_set::pop_one(key, end, workspace)? {
            return Ok(taken);
        }
    }
    Ok(Reply::NullArray)
}

/// `BZMPOP timeout numkeys key [key ...] MIN|MAX [COUNT count]`.
pub(crate) fn bzmpop(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let popped = sorted_set::pop_first(counted(args), || check(args.get(1)), workspace);
    popped.unwrap_or_else(|error| error)
}

/// The arguments of the command without a timeout in front: it stands in the name's place.
fn counted(args: Args<'_>) -> Args<'_> {
    Args { spans: &args.spans[1..], ..args }
}

/// What a command does to its key whose last argument is its timeout: if all keys are the same one; a
/// read, which answers an error, otherwise.
pub(crate) fn keys_access(args: Args<'_>) -> Access {
    let same = args.iter().take(args.len() - 1).skip(2).all(|key| key == args.get(1));
    if same { Access::Update } else { Access::Read }
}

/// The same for a command that counts its keys behind its timeout.
pub(crate) fn counted_access(args: Args<'_>) -> Access {
    list::counted_access(counted(args))
}

/// The same of sorted sets.
pub(crate) fn bzmpop_access(args: Args<'_>) -> Access {
    sorted_set::zmpop_access(counted(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> OwnedCall {
        OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command")
    }

    fn timeout(text: &str) -> Result<Option<u128>, Reply<'static>> {
        seconds(text.as_bytes()).map(|timeout| timeout.map(|timeout| timeout.as_millis()))
    }

    #[test]
    fn timeouts_are_those_of_redis() {
        for (text, millis) in [("1", 1000), ("0.001", 1), ("0.0001", 1), ("1e-9", 1), ("2.5", 2500)]
        {
            assert_eq!(timeout(text), Ok(Some(millis)), "{text}");
        }
        assert_eq!(timeout("9223372036854775"), Ok(Some(9_223_372_036_854_775_000)));
        for text in ["0", "-0", "0.0", "-0.001", "0e9"] {
            assert_eq!(timeout(text), Ok(None), "{text}");
        }
        let negative = Err(Reply::error("ERR timeout is negative"));
        for text in ["-1", "-0.0010001", "9223372036854776", "1e300", "1e4900", "inf", "-inf"] {
            assert_eq!(timeout(text), negative, "{text}");
        }
        for text in ["", "x", "nan", "1 ", "1e9999"] {
            let error = Err(Reply::error("ERR timeout is not a float or out of range"));
            assert_eq!(timeout(text), error, "{text}");
        }
    }

    #[test]
    fn a_call_on_fewer_keys_keeps_its_other_arguments() {
        for (line, keys, fewer) in [
            ("BLPOP a b c 1.5", &["b"][..], "BLPOP b 1.5"),
            ("BRPOP a b c 0", &["c", "a"], "BRPOP c a 0"),
            ("BLMPOP 0 3 a b c RIGHT COUNT 7", &["c"], "BLMPOP 0 1 c RIGHT COUNT 7"),
            ("BLMOVE a b LEFT RIGHT 0", &["a"], "BLMOVE a b LEFT RIGHT 0"),
            ("BRPOPLPUSH a b 0", &["a"], "BRPOPLPUSH a b 0"),
            ("XREAD BLOCK 0 STREAMS a b c 1 2 3", &["b"], "XREAD BLOCK 0 STREAMS b 2"),
            ("XREAD COUNT 5 STREAMS a a 1 2", &["a"], "XREAD COUNT 5 STREAMS a a 1 2"),
            (
                "XREADGROUP GROUP g c BLOCK 9 NOACK STREAMS a b c > > >",
                &["c", "a"],
                "XREADGROUP GROUP g c BLOCK 9 NOACK STREAMS c a > >",
            ),
        ] {
            let (owned, wanted) = (call(line), call(fewer));
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            assert_eq!(owned.call().on_awaited(&keys), wanted, "{line}");
        }
    }

    #[test]
    fn what_is_moved_is_awaited_at_its_source() {
        let awaited = |line| {
            let owned = call(line);
            owned.call().awaited_keys().map(Vec::from).collect::<Vec<_>>()
        };
        assert_eq!(awaited("BLMOVE a b LEFT RIGHT 0"), [b"a"]);
        assert_eq!(awaited("BLPOP a b a 0"), [b"a", b"b", b"a"]);
        assert_eq!(awaited("BLMPOP 0 2 a b LEFT"), [b"a", b"b"]);
        assert_eq!(call("LPOP a").call().waits(), Ok(None));
    }
    #[test]
    fn streams_are_awaited_where_the_call_can_find_nothing() {
        let waits = |line| call(line).call().waits();
        let second = Some(Duration::from_millis(1000));
        let entries = |timeout| Ok(Some(Wait { timeout, line: Line::Entries }));
        assert_eq!(waits("XREAD BLOCK 1000 STREAMS a b $ 5-1"), entries(second));
        assert_eq!(waits("XREAD COUNT 1 BLOCK 0 STREAMS a 0"), entries(None));
        let group = Line::Group(b"g"[..].into());
        let wait = Ok(Some(Wait { timeout: second, line: group }));
        assert_eq!(waits("XREADGROUP GROUP g c BLOCK 1000 STREAMS a b > >"), wait);
        for line in [
            "XREAD STREAMS a $",
            "XREADGROUP GROUP g c STREAMS a >",
            // What a consumer has got before is answered at once, even if it is nothing.
            "XREADGROUP GROUP g c BLOCK 0 STREAMS a 0",
            "XREADGROUP GROUP g c BLOCK 0 STREAMS a b > 7",
            // These are errors of the first try.
            "XREAD BLOCK 0 STREAMS a >",
            "XREADGROUP GROUP g c BLOCK 0 STREAMS a $",
        ] {
            assert_eq!(waits(line), Ok(None), "{line}");
        }
        let negative = Err(Reply::error("ERR timeout is negative"));
        assert_eq!(waits("XREAD BLOCK -1 STREAMS a $"), negative);
    }

    #[test]
    fn the_end_of_a_stream_is_fixed_once() {
        let owned = call("XREAD BLOCK 0 STREAMS a $ b $ 0 $");
        assert_eq!(owned.call().ends_wanted(), Some(call("XINFO STREAM a")));
        let line = |name| Reply::Bulk(Vec::from(name).into());
        let answer = Reply::Map(vec![
            (Reply::text("length"), Reply::Int(0)),
            (Reply::text("last-generated-id"), line(&b"7-3"[..])),
        ]);
        let owned = owned.call().with_end(&answer).expect("a stream");
        assert_eq!(owned, call("XREAD BLOCK 0 STREAMS a $ b 7-3 0 $"));
        assert_eq!(owned.call().ends_wanted(), Some(call("XINFO STREAM b")));
        let owned = owned.call().with_end(&Reply::error("ERR no such key")).expect("no stream");
        assert_eq!(owned, call("XREAD BLOCK 0 STREAMS a $ b 7-3 0 0-0"));
        assert_eq!(owned.call().ends_wanted(), None);
        let wrong = Reply::error("WRONGTYPE no stream");
        assert_eq!(owned.call().with_end(&wrong), Err(wrong));
        assert_eq!(call("XREADGROUP GROUP g c BLOCK 0 STREAMS a >").call().ends_wanted(), None);
    }
}
