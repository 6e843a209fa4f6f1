//! `XREAD` and `XREADGROUP`: entries of several streams behind an id each.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Workspace};
use quorate_types::{Duration, UnixMillis};

use super::StreamId;
use super::answer::Answer;
use super::edit::Changed;
use super::groups::{Group, Pending, Place, no_group};
use super::info::NO_KEY;
use super::packed::{Index, Stream};
use crate::number::integer;
use crate::number::parse_integer;
use crate::options::{SYNTAX, c_string, is_word};
use crate::{Args, Line, Reply, Wait};

/// What the arguments of `XREAD` or `XREADGROUP` say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOptions<'a> {
    args: Args<'a>,
    /// How many milliseconds to wait if there is nothing, 0 for ever; `None` not to wait.
    block_ms: Option<u64>,
    /// The most entries of each stream.
    count: Option<u64>,
    /// The group and the consumer.
    group: Option<(&'a [u8], &'a [u8])>,
    /// Whether entries are acknowledged as they are delivered.
    is_acknowledged: bool,
    /// Where the first key stands.
    pub(crate) first: usize,
    /// How many streams.
    pub(crate) streams: usize,
}

impl<'a> ReadOptions<'a> {
    pub(crate) fn parse(args: Args<'a>) -> Result<Self, Reply<'static>> {
        Self::parse_by(args, false)
    }

    /// Whether the arguments ask to wait, which a script must not, before any other error.
    pub(crate) fn block_in_script(args: Args<'a>) -> bool {
        matches!(Self::parse_by(args, true), Err(error) if error == BLOCK_IN_SCRIPT)
    }

    fn parse_by(args: Args<'a>, is_script: bool) -> Result<Self, Reply<'static>> {
        let by_group = is_word(args.get(0), "XREADGROUP");
        let mut options = Self {
            args,
            block_ms: None,
            count: None,
            group: None,
            is_acknowledged: false,
            first: 0,
            streams: 0,
        };
        let mut at = 1;
        while at < args.len() && options.first == 0 {
            let word = args.get(at);
            let values = args.len() - at - 1;
            at += 1;
            if is_word(word, "BLOCK") && values > 0 {
                if is_script {
                    return Err(BLOCK_IN_SCRIPT);
                }
                options.block_ms = Some(timeout(args.get(at))?);
                at += 1;
            } else if is_word(word, "COUNT") && values > 0 {
                let count = u64::try_from(integer(args.get(at))?).unwrap_or(0);
                options.count = Some(count).filter(|count| *count > 0);
                at += 1;
            } else if is_word(word, "STREAMS") && values > 0 {
                if !values.is_multiple_of(2) {
                    return Err(UNBALANCED);
                }
                (options.first, options.streams) = (at, values / 2);
            } else if is_word(word, "GROUP") && values > 1 {
                if !by_group {
                    return Err(only_of_groups("GROUP"));
                }
                options.group = Some((args.get(at), args.get(at + 1)));
                at += 2;
            } else if is_word(word, "NOACK") {
                if !by_group {
                    return Err(only_of_groups("NOACK"));
                }
                options.is_acknowledged = true;
            } else {
                return Err(SYNTAX);
            }
        }
        if options.first == 0 {
            return Err(SYNTAX);
        }
        if by_group && options.group.is_none() {
            return Err(Reply::error("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(options)
    }

    /// How the call waits; `None` if it doesn't, or if its ids are an error. What a consumer has got
    /// before is there or not, so nobody waits for it.
    pub(crate) fn wait(self) -> Option<Wait> {
        let block_ms = self.block_ms?;
        let waits = |id| match self.group {
            Some(_) => matches!(c_string(id), b">") || StreamId::parse(id, 0) == Ok(StreamId::MAX),
            None => is_end(id) || StreamId::parse(id, 0).is_ok(),
        };
        let timeout = (block_ms > 0).then(|| Duration::from_millis(block_ms));
        let line = match self.group {
            Some((group, _)) => Line::Group(group.into()),
            None => Line::Entries,
        };
        self.streams().all(|(_, id)| waits(id)).then_some(Wait { timeout, line })
    }

    /// The keys with what stands for each of them behind them all.
    pub(crate) fn streams(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let keys = self.first..self.first + self.streams;
        keys.map(move |at| (self.args.get(at), self.args.get(at + self.streams)))
    }
}

/// Whether an id of `XREAD` is that of the last entry.
pub(crate) fn is_end(id: &[u8]) -> bool {
    c_string(id) == b"$"
}

/// The text of the last id of a stream, as `XINFO STREAM` has answered.
///
/// # Errors
/// The answer, if it is an error other than that the key is not there.
pub(crate) fn last_id(answer: &Reply<'_>) -> Result<Vec<u8>, Reply<'static>> {
    let lines = match answer {
        Reply::Map(lines) => &lines[..],
        Reply::Error(_) if *answer != NO_KEY => return Err(answer.clone().into_owned()),
        _ => &[],
    };
    let last = lines.iter().find(|(name, _)| *name == Reply::text("last-generated-id"));
    Ok(match last {
        Some((_, Reply::Bulk(id))) => id.to_vec(),
        _ => StreamId::MIN.text(),
    })
}

/// A time to wait, in milliseconds.
fn timeout(argument: &[u8]) -> Result<u64, Reply<'static>> {
    let span = parse_integer(argument)
        .ok_or(Reply::error("ERR timeout is not an integer or out of range"))?;
    u64::try_from(span).map_err(|_| Reply::error("ERR timeout is negative"))
}

const BLOCK_IN_SCRIPT: Reply<'static> =
    Reply::error("ERR command is not allowed with BLOCK option from scripts");
const UNBALANCED: Reply<'static> = Reply::error(
    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
);

fn only_of_groups(option: &str) -> Reply<'static> {
    let text = format!(
        "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
    );
    Reply::Error(text.into())
}

/// What both do to their key if every key is the same one; `XREAD` changes nothing.
pub(crate) fn readgroup_access(args: Args<'_>) -> Access {
    let Ok(options) = ReadOptions::parse(args) else { return Access::Read };
    let mut keys = options.streams().map(|(key, _)| key);
    let first = keys.next();
    if keys.all(|key| Some(key) == first) { Access::Update } else { Access::Read }
}

/// `XREAD [COUNT count] [BLOCK ms] STREAMS key ... id ...`. It doesn't wait; see [`crate::Wait`].
pub(crate) fn xread(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    ReadOptions::parse(args)
        .and_then(|options| try_read(options, workspace))
        .unwrap_or_else(|error| error)
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK ms] [NOACK] STREAMS key ... id ...`.
pub(crate) fn xreadgroup(
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    ReadOptions::parse(args)
        .and_then(|options| try_read_group(options, now, workspace))
        .unwrap_or_else(|error| error)
}

fn try_read(
    options: ReadOptions<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    // An error of any stream comes before the entries of all.
    let mut after = Vec::with_capacity(options.streams);
    for (key, id) in options.streams() {
        let stream = Stream::of(workspace.read(key))?;
        after.push(match c_string(id) {
            b"$" => stream.map_or(StreamId::MIN, |stream| stream.last),
            b">" => {
                return Err(Reply::error(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP \
                     <group> <consumer> option.",
                ));
            }
            _ => StreamId::parse(id, 0)?,
        });
    }
    let mut answer = Answer::new();
    let mut found = Vec::new();
    for ((key, _), after) in options.streams().zip(after) {
        let Some(from) = after.next() else { continue };
        let Some(stream) = Stream::of(workspace.read(key))? else { continue };
        let entries = answer.entries(stream.entries(from, StreamId::MAX), options.count)?;
        if !entries.is_empty() {
            let name = answer.part(Reply::Bulk(key.into()))?;
            found.push((name.into_owned(), Reply::Array(entries).into_owned()));
        }
    }
    Ok(all(found))
}

/// What was found, or that nothing was.
fn all(found: Vec<(Reply<'static>, Reply<'static>)>) -> Reply<'static> {
    if found.is_empty() { Reply::NullArray } else { Reply::Keyed(found) }
}

/// What a consumer asks a stream for.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// What no consumer has got yet.
    New,
    /// What it got and did not acknowledge, behind this id.
    Pending(StreamId),
}

fn try_read_group(
    options: ReadOptions<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let (group, _) = options.group.expect("it is wrong without");
    let mut wanted = Vec::with_capacity(options.streams);
    for (key, id) in options.streams() {
        let stream = Stream::of(workspace.read(key))?;
        let missing = || no_group(key, group, " in XREADGROUP with GROUP option");
        stream.ok_or_else(missing)?.find_group(group)?.map_err(|_| missing())?;
        wanted.push(match c_string(id) {
            b"$" => {
                return Err(Reply::error(
                    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the \
                     history of this consumer by specifying a proper ID, or use the > ID to get new \
                     messages. The $ ID would just return an empty result set.",
                ));
            }
            b">" => Wanted::New,
            _ => match StreamId::parse(id, 0)? {
                StreamId::MAX => Wanted::New,
                after => Wanted::Pending(after),
            },
        });
    }
    let mut answer = Answer::new();
    let mut found = Vec::new();
    let mut changes: Vec<(&[u8], Changed)> = Vec::new();
    for ((key, _), wanted) in options.streams().zip(wanted) {
        // A key that stands there twice is read as its first mention leaves it.
        let before = changes.iter().position(|(changed, _)| *changed == key);
        let (current, mut large) = (workspace.read(key), None);
        let stream = match before {
            Some(at) => Some(changes[at].1.look(current.large, &mut large)?),
            None => Stream::of(current)?,
        };
        let stream = stream.expect("it was there");
        let (place, group) = stream.find_group(group)?.expect("it was there");
        let read = Reading { options, now, stream, place, group };
        let Some((entries, changed)) = read.run(wanted, &mut answer)? else { continue };
        let name = answer.part(Reply::Bulk(key.into()))?.into_owned();
        found.push((name, Reply::Array(entries).into_owned()));
        match before {
            Some(at) => {
                let (_, earlier) = changes.swap_remove(at);
                changes.push((key, earlier.then(changed)));
            }
            None => changes.push((key, changed)),
        }
    }
    // An error changes nothing: every stream is written when all of them were read.
    let store = |(key, changed): (_, Changed)| Ok((key, changed.store(workspace.read(key))?));
    let changes = changes.into_iter().map(store).collect::<Result<Vec<_>, Reply<'static>>>()?;
    changes.into_iter().for_each(|(key, change)| workspace.write(key, change));
    Ok(all(found))
}

/// Entries, and what becomes of the stream that has delivered them.
type Delivered<'a> = (Vec<Reply<'a>>, Changed);

/// A group of a stream that is being read.
struct Reading<'a> {
    options: ReadOptions<'a>,
    now: UnixMillis,
    stream: Stream<'a>,
    place: Place<'a>,
    group: Group<'a>,
}

impl<'a> Reading<'a> {
    /// Entries for the consumer and what becomes of the stream that has delivered them; `None` if
    /// there is nothing new.
    fn run(
        mut self,
        wanted: Wanted,
        answer: &mut Answer,
    ) -> Result<Option<Delivered<'a>>, Reply<'static>> {
        let entries = match wanted {
            Wanted::Pending(after) => self.again(after, answer)?,
            Wanted::New => {
                let entries = self.fresh(answer)?;
                if entries.is_empty() {
                    return Ok(None);
                }
                entries
            }
        };
        let changed = self.stream.with_group(&self.place, self.group.name, Some(&self.group));
        Ok(Some((entries, changed)))
    }

    fn consumer(&mut self) -> usize {
        let (_, name) = self.options.group.expect("it is wrong without");
        self.group.consumer(name, self.now.0)
    }

    /// Entries that are delivered for the first time.
    fn fresh(&mut self, answer: &mut Answer) -> Result<Vec<Reply<'a>>, Reply<'static>> {
        let Some(from) = self.group.last.next() else { return Ok(Vec::new()) };
        let count = self.options.count.map_or(usize::MAX, |count| count as usize);
        let mut entries = Vec::new();
        let mut delivered = Vec::new();
        for entry in self.stream.entries(from, StreamId::MAX).take(count) {
            let entry = entry?;
            entries.push(answer.entry(entry)?);
            self.group.move_to(entry.id, &self.stream)?;
            delivered.push(entry.id);
        }
        if entries.is_empty() {
            return Ok(entries);
        }
        let consumer = self.consumer();
        if !self.options.is_acknowledged {
            self.add_pending(consumer, &delivered);
        }
        Ok(entries)
    }

    /// Has these entries, which are in order, await the consumer's acknowledgement. Some may be
    /// pending already, where the group was set back.
    fn add_pending(&mut self, consumer: usize, ids: &[StreamId]) {
        let held = core::mem::take(&mut self.group.pending);
        let mut held = held.into_iter().peekable();
        let mut pending = Vec::with_capacity(held.len() + ids.len());
        for id in ids {
            while let Some(before) = held.next_if(|before| before.id < *id) {
                pending.push(before);
            }
            held.next_if(|same| same.id == *id);
            pending.push(Pending { id: *id, consumer, delivered: self.now.0, count: 1 });
        }
        pending.extend(held);
        self.group.pending = pending;
    }

    /// Entries that the consumer has and did not acknowledge.
    fn again(
        &mut self,
        after: StreamId,
        answer: &mut Answer,
    ) -> Result<Vec<Reply<'a>>, Reply<'static>> {
        let consumer = self.consumer();
        let index = Index::of(&self.stream)?;
        let from = self.group.pending.partition_point(|pending| pending.id <= after);
        let count = self.options.count.map_or(usize::MAX, |count| count as usize);
        let own = self.group.pending[from..].iter_mut();
        let mut entries = Vec::new();
        for pending in own.filter(|pending| pending.consumer == consumer).take(count) {
            entries.push(match index.find(pending.id)? {
                Some(entry) => {
                    pending.delivered = self.now.0;
                    pending.count = pending.count.wrapping_add(1);
                    answer.entry(entry)?
                }
                // It was deleted meanwhile.
                None => answer.part(Reply::Array(vec![pending.id.reply(), Reply::NullArray]))?,
            });
        }
        Ok(entries)
    }
}
