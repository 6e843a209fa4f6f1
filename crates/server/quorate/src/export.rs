//! `quorate export`: the keys of a running cluster as a Redis file.
//!
//! Keys are listed with `SCAN`, and each is read at one moment: `DUMP` and its expiry in one `MULTI` block,
//! or in pieces under a `WATCH` if that would be too long. The file as a whole is of no single moment.

mod book;
mod file;
mod large;
mod stream;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{anyhow, ensure};
use clap::Args;
use quorate_rdb::{Header, Kind, Payload, Writer};

use crate::log::say;
use crate::transfer::{
    Pace, PaceOptions, Progress, Reply, Target, TargetOptions, Trouble, command, size, trouble,
};
use book::Book;
pub(crate) use file::Output;

/// Keys that one `SCAN` is asked for, and those that are asked for at once, with the bytes of their names:
/// the answers are read when all of it has left.
const SCAN_COUNT: &str = "500";
const KEYS_AT_ONCE: usize = 256;
const NAME_BYTES_AT_ONCE: usize = 16 * 1024;
/// How many databases a server has that doesn't say.
const DATABASES: u64 = 16;
/// How many keys are named of those that were left out.
const NAMES_MAX: usize = 20;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The file that is written, which Redis reads when it starts (`dbfilename`), and `quorate import`
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    target: TargetOptions,
    /// Only this database; may be given several times. Without it, all that have keys
    #[arg(long = "db", value_name = "N", value_delimiter = ',')]
    databases: Vec<u64>,
    #[command(flatten)]
    pace: PaceOptions,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// Print nothing but what was left out, and errors
    #[arg(long)]
    quiet: bool,
}

/// Exports. An error if a key is not in the file that was there all the time.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let begin = Instant::now();
    let output = Output::check(&options.out, options.force)?;
    let mut target = Target::new(&options.target)?;
    let databases = databases(options, &mut target)?;
    let libraries = libraries(&mut target, &databases)?;
    let total = databases.values().sum();
    let progress = Progress::of_keys("exported", total, options.quiet)?;
    let pace = Pace::new(&options.pace);
    let mut export = Export::new(target, output.create()?, progress, pace);
    for (database, keys) in databases {
        export.database(database, keys)?;
    }
    let (summary, length) = export.finish()?;
    let file = options.out.display().to_string();
    let lines = summary.lines(&file, length, begin.elapsed(), options.quiet);
    lines.iter().for_each(|line| say(line));
    if !libraries.is_empty() {
        let names: Vec<_> = libraries.into_iter().collect();
        let remedy = "`quorate backup` takes them along";
        say(&format!("libraries of functions are not in the file: {}; {remedy}", names.join(", ")));
    }
    let left_out = summary.left_out;
    ensure!(left_out == 0, "{left_out} keys are not in the file");
    Ok(())
}

/// Which databases, and about how many keys each has.
fn databases(options: &Options, target: &mut Target) -> anyhow::Result<BTreeMap<u64, u64>> {
    let mut chosen = options.databases.clone();
    if chosen.is_empty() {
        chosen = all_databases(target)?;
    }
    let mut databases = BTreeMap::new();
    for database in chosen {
        let keys = target.size_of(database)?;
        if keys > 0 || !options.databases.is_empty() {
            databases.insert(database, keys);
        }
    }
    Ok(databases)
}

/// The databases that there are.
pub(crate) fn all_databases(target: &mut Target) -> anyhow::Result<Vec<u64>> {
    let count = target.persist(|target| target.setting("databases"))?.unwrap_or(DATABASES);
    let mut there = Vec::new();
    for database in 0..count {
        // A cluster has those that its configuration names.
        if target.persist(|target| target.has(database))? {
            there.push(database);
        }
    }
    Ok(there)
}

/// The names of libraries of functions, which are left out.
fn libraries(
    target: &mut Target,
    databases: &BTreeMap<u64, u64>,
) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for database in databases.keys() {
        let listed = target.persist(|target| {
            target.select(*database)?;
            // Servers before Redis 7.0 have none.
            target.ask_if_allowed(&["FUNCTION", "LIST"])
        })?;
        let Some(Reply::Array(listed)) = listed else { continue };
        let named = of_libraries(listed, "library_name");
        names.extend(named.iter().map(|name| name.escape_ascii().to_string()));
    }
    Ok(names)
}

/// What `FUNCTION LIST WITHCODE` said under this name of each library.
pub(crate) fn of_libraries(libraries: Vec<Reply>, name: &str) -> Vec<Vec<u8>> {
    let said = |library| match library {
        Reply::Array(parts) => {
            let mut parts = parts.into_iter();
            parts.find(|part| *part == Reply::Bulk(name.into()))?;
            match parts.next() {
                Some(Reply::Bulk(said)) => Some(said),
                _ => None,
            }
        }
        _ => None,
    };
    libraries.into_iter().filter_map(said).collect()
}

/// What an export came to.
#[derive(Default)]
pub(crate) struct Summary {
    kinds: BTreeMap<Kind, u64>,
    /// Keys that were gone when they were to be read.
    gone: u64,
    pub(crate) left_out: u64,
    /// Some of these, each with why.
    names: Vec<String>,
    header: Option<Header>,
}

impl Summary {
    fn leave_out(&mut self, key: &[u8], why: &str) {
        self.left_out += 1;
        if self.names.len() < NAMES_MAX {
            self.names.push(format!("\"{}\": {why}", key.escape_ascii()));
        }
    }

    pub(crate) fn lines(
        &self,
        file: &str,
        length: u64,
        took: Duration,
        quiet: bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if !quiet {
            let keys: u64 = self.kinds.values().sum();
            let kinds: Vec<_> =
                self.kinds.iter().map(|(kind, count)| format!("{count} {}", kind.name())).collect();
            let kinds = if keys == 0 { String::new() } else { format!(" ({})", kinds.join(", ")) };
            let (length, seconds) = (size(length), took.as_secs_f64());
            lines.push(format!("{file}: {keys} keys{kinds}, {length}, in {seconds:.1} s"));
            if self.gone > 0 {
                lines.push(format!("{} keys were gone before they were read", self.gone));
            }
        }
        if let Some(header) = &self.header {
            let version = String::from_utf8_lossy(&header[5..]);
            let version = version.trim_start_matches('0');
            lines.push(format!(
                "its version is {version}, and not 10, since values in it need that: Redis 7.0 doesn't read it, \
                 7.4 does"
            ));
        }
        if self.left_out > 0 {
            lines.push(format!("keys that were left out: {}", self.left_out));
            lines.extend(self.names.iter().map(|name| format!("  {name}")));
            let more = self.left_out - self.names.len() as u64;
            if more > 0 {
                lines.push(format!("  and {more} more"));
            }
        }
        lines
    }
}

/// The keys of databases on their way into a file.
pub(crate) struct Export {
    pub(crate) target: Target,
    /// How fast keys are read.
    pub(crate) pace: Pace,
    output: Output,
    writer: Writer,
    /// What is to be written next.
    bytes: Vec<u8>,
    progress: Progress,
    pub(crate) done: u64,
    summary: Summary,
    /// Where each key stands in the file, if keys may be read again.
    book: Option<Book>,
}

impl Export {
    fn new(target: Target, output: Output, progress: Progress, pace: Pace) -> Self {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.aux(b"quorate-ver", env!("CARGO_PKG_VERSION").as_bytes(), &mut bytes);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        writer.aux(b"ctime", since.as_secs().to_string().as_bytes(), &mut bytes);
        let summary = Summary::default();
        Self { target, pace, output, writer, bytes, progress, done: 0, summary, book: None }
    }

    /// One whose keys may be read again: the file has what was read of each last.
    pub(crate) fn with_book(
        target: Target,
        output: Output,
        progress: Progress,
        pace: Pace,
    ) -> Self {
        Self { book: Some(Book::default()), ..Self::new(target, output, progress, pace) }
    }

    /// Writes something besides keys.
    pub(crate) fn about(&mut self, write: impl FnOnce(&mut Writer, &mut Vec<u8>)) {
        write(&mut self.writer, &mut self.bytes);
    }

    /// Bytes of the file that were of keys which have changed since.
    pub(crate) fn blanked(&self) -> u64 {
        self.book.as_ref().map_or(0, |book| book.blanked)
    }

    /// Keys that could not be read and may be read again.
    pub(crate) fn unread(&self) -> Vec<(u64, Vec<u8>)> {
        self.book.iter().flat_map(|book| book.unread.keys().cloned()).collect()
    }

    /// Reads keys again. Some of them may be in the file already.
    pub(crate) fn again(&mut self, database: u64, keys: &[Vec<u8>]) -> anyhow::Result<()> {
        self.writer.database_again(database, &mut self.bytes);
        self.read_keys(database, keys)
    }

    /// Lists the keys of a database and reads them.
    pub(crate) fn database(&mut self, database: u64, keys: u64) -> anyhow::Result<()> {
        self.writer.database(database, keys, &mut self.bytes);
        let hashers = (RandomState::new(), RandomState::new());
        // A key that SCAN tells twice must stand in the file once.
        let mut seen = HashSet::new();
        let mut cursor = "0".to_owned();
        let mut connection = None;
        loop {
            let (next, listed, listed_by) = self.target.persist(|target| {
                target.select(database)?;
                let by = target.connection_number();
                // A cursor means nothing to another node.
                let from = if connection == Some(by) { &cursor } else { "0" };
                let (next, keys) = scan(target, from)?;
                Ok((next, keys, by))
            })?;
            let mut is_fresh = |key: &Vec<u8>| match &self.book {
                Some(book) => !book.has(database, key),
                None => seen.insert((hashers.0.hash_one(key), hashers.1.hash_one(key))),
            };
            let fresh: Vec<_> = listed.into_iter().filter(|key| is_fresh(key)).collect();
            self.read_keys(database, &fresh)?;
            if next == "0" {
                return Ok(());
            }
            (cursor, connection) = (next, Some(listed_by));
        }
    }

    /// Reads keys and writes them to the file.
    fn read_keys(&mut self, database: u64, keys: &[Vec<u8>]) -> anyhow::Result<()> {
        let (mut read, mut too_long) = (0, Vec::new());
        while read < keys.len() {
            let most = self.pace.keys_at_once().unwrap_or(KEYS_AT_ONCE);
            let some = at_once(&keys[read..], most);
            let (begin, before) = (self.pace.wait(), self.writer.length());
            match self.ask(database, some, &mut read, &mut too_long) {
                Ok(()) => {}
                Err(trouble) => self.target.again(trouble)?,
            }
            self.pace.read(begin, self.writer.length() - before, some.len());
        }
        for key in too_long {
            let (begin, before) = (self.pace.wait(), self.writer.length());
            self.large(database, key)?;
            self.pace.read(begin, self.writer.length() - before, 1);
        }
        Ok(())
    }

    /// Asks for keys at once, and writes each as it comes, but for those that are too long for one answer.
    /// Counts those that are done.
    fn ask<'k>(
        &mut self,
        database: u64,
        keys: &'k [Vec<u8>],
        read: &mut usize,
        too_long: &mut Vec<&'k [u8]>,
    ) -> Result<(), Trouble> {
        self.target.select(database)?;
        let mut bytes = Vec::new();
        for key in keys {
            command([&b"MULTI"[..]].into_iter(), &mut bytes);
            command([&b"DUMP"[..], key].into_iter(), &mut bytes);
            command([&b"PEXPIRETIME"[..], key].into_iter(), &mut bytes);
            command([&b"EXEC"[..]].into_iter(), &mut bytes);
        }
        self.target.connection()?.send(&bytes)?;
        for key in keys {
            let connection = self.target.connection()?;
            let mut refused = None;
            for _ in 0..3 {
                if let Reply::Error(error) = connection.reply()? {
                    refused.get_or_insert(error);
                }
            }
            match connection.reply()? {
                Reply::Array(parts) => self.dumped(database, key, parts)?,
                Reply::Error(error) => {
                    let error = refused.unwrap_or(error);
                    match trouble(&error) {
                        Some(trouble) => return Err(trouble),
                        None if large::is_too_long(&error) => too_long.push(key),
                        None => self.leave_out(database, key, error),
                    }
                }
                other => return Err(anyhow!("the target answered EXEC with {other:?}").into()),
            }
            self.target.answered();
            *read += 1;
            self.done += 1;
            self.progress.at(self.done);
        }
        Ok(())
    }

    /// Writes what `DUMP` and `PEXPIRETIME` answered.
    fn dumped(&mut self, database: u64, key: &[u8], parts: Vec<Reply>) -> Result<(), Trouble> {
        let (payload, expiry) = match <[Reply; 2]>::try_from(parts) {
            Ok([Reply::Bulk(payload), Reply::Int(expiry)]) => (payload, expiry),
            Ok([Reply::Null, _]) => {
                self.gone(database, key)?;
                return Ok(());
            }
            Ok([Reply::Error(error), _] | [_, Reply::Error(error)]) => match trouble(&error) {
                Some(trouble) => return Err(trouble),
                None => {
                    self.leave_out(database, key, error);
                    return Ok(());
                }
            },
            other => return Err(anyhow!("the target answered DUMP with {other:?}").into()),
        };
        match Payload::parse(&payload) {
            Ok(payload) => self.write(database, key, expiry, &payload)?,
            Err(error) => self.leave_out(database, key, error.to_string()),
        }
        Ok(())
    }

    /// Reads a key in pieces that is too long for one answer.
    fn large(&mut self, database: u64, key: &[u8]) -> anyhow::Result<()> {
        let read = self.target.persist(|target| {
            target.select(database)?;
            large::read(target, key)
        })?;
        match read {
            large::Read::Value { payload, expiry } => {
                let payload = Payload::parse(&payload)
                    .map_err(|error| anyhow!("{error}, of what was read of a large key"))?;
                self.write(database, key, expiry, &payload)?;
            }
            large::Read::Gone => self.gone(database, key)?,
            large::Read::Not(why) => self.leave_out(database, key, why),
        }
        Ok(())
    }

    fn write(
        &mut self,
        database: u64,
        key: &[u8],
        expiry: i64,
        payload: &Payload<'_>,
    ) -> anyhow::Result<()> {
        self.strike(database, key)?;
        let (begin, kind) = (self.writer.length(), payload.form.kind());
        self.writer.key(key, u64::try_from(expiry).ok(), payload, &mut self.bytes);
        if let Some(book) = &mut self.book {
            book.enter(database, key, begin..self.writer.length(), kind);
        }
        *self.summary.kinds.entry(kind).or_default() += 1;
        self.output.write(&mut self.bytes)
    }

    /// A key is not there when it is to be read.
    fn gone(&mut self, database: u64, key: &[u8]) -> anyhow::Result<()> {
        self.summary.gone += u64::from(self.book.is_none());
        self.strike(database, key)
    }

    /// Takes a key out of the file again, if it is there.
    fn strike(&mut self, database: u64, key: &[u8]) -> anyhow::Result<()> {
        let Some(book) = &mut self.book else { return Ok(()) };
        let Some((place, kind)) = book.strike(database, key) else { return Ok(()) };
        *self.summary.kinds.entry(kind).or_default() -= 1;
        let Self { output, writer, bytes, .. } = self;
        output.blank(bytes, place.start, place.end - place.start, |before, after, end| {
            writer.exchanged(before, after, end);
        })
    }

    fn leave_out(&mut self, database: u64, key: &[u8], why: String) {
        match &mut self.book {
            Some(book) => drop(book.unread.insert((database, key.to_owned()), why)),
            None => self.summary.leave_out(key, &why),
        }
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<(Summary, u64)> {
        self.summary.kinds.retain(|_, count| *count > 0);
        self.summary.header = self.writer.finish(&mut self.bytes);
        let length = self.output.finish(&mut self.bytes, self.summary.header.as_ref())?;
        Ok((self.summary, length))
    }
}

/// The first of some keys, so many at most, whose names are asked for at once.
fn at_once(keys: &[Vec<u8>], most: usize) -> &[Vec<u8>] {
    let mut bytes = 0;
    let fits = |key: &&Vec<u8>| {
        bytes += key.len();
        bytes <= NAME_BYTES_AT_ONCE
    };
    let count = keys.iter().take(most).take_while(fits).count();
    &keys[..count.max(1)]
}

/// One step of a listing: the next cursor and some keys.
fn scan(target: &mut Target, cursor: &str) -> Result<(String, Vec<Vec<u8>>), Trouble> {
    let reply = target.ask(&["SCAN", cursor, "COUNT", SCAN_COUNT])?;
    let (next, listed) = match reply {
        Reply::Array(parts) => match <[Reply; 2]>::try_from(parts) {
            Ok([Reply::Bulk(next), Reply::Array(listed)]) => (next, listed),
            other => return Err(anyhow!("the target answered SCAN with {other:?}").into()),
        },
        other => return Err(anyhow!("the target answered SCAN with {other:?}").into()),
    };
    let keys = listed.into_iter().map(|key| match key {
        Reply::Bulk(key) => Ok(key),
        other => Err(anyhow!("the target lists {other:?} among its keys")),
    });
    let keys = keys.collect::<anyhow::Result<_>>()?;
    Ok((String::from_utf8_lossy(&next).into_owned(), keys))
}
