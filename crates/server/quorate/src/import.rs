//! `quorate import`: the keys of a Redis file into a running cluster, by the commands that a client would
//! send.
//!
//! The file is read twice. First all of it, so that a damaged one changes nothing. Then commands go out in
//! batches, each answered before the next one leaves. If a connection is lost in between, the file is read
//! again from the last place where everything before was answered and no key was half there; the keys that
//! were begun since are deleted and written anew, and compared once more at the end, since a command of
//! the lost connection may have come late.

mod batch;
mod file;
mod key;
mod summary;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use clap::Args;
use quorate_rdb::{Event, Kind, Reader};

use crate::backup::about::About;
use crate::log::say;
use crate::transfer::{Progress, Reply, Target, TargetOptions, Trouble, size};
use batch::{Batch, Outcome};
pub(crate) use file::Source;
use key::Writing;
use summary::Summary;

/// What a target takes in one string, unless it says something else.
const STRING_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// How long databases may take until they show all keys that were written: a node may learn of what was
/// done elsewhere a little later than the client.
const SHOWN_MAX: Duration = Duration::from_secs(5);
const SHOWN_EVERY: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The file, as SAVE and BGSAVE of Redis 2.4 to 7.4 write it
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// Only this database of the file; may be given several times. Without it, all
    #[arg(long = "db", value_name = "N", value_delimiter = ',')]
    pub(crate) only: Vec<u64>,
    /// Put the keys of one database of the file into another one; may be given several times
    #[arg(long, value_name = "FROM:TO", value_delimiter = ',', value_parser = pair)]
    pub(crate) db_map: Vec<(u64, u64)>,
    /// Replace keys that are there already; without this or --skip-existing, a database that has keys
    /// is refused
    #[arg(long, conflicts_with = "skip_existing")]
    pub(crate) replace: bool,
    /// Leave keys as they are that are there already
    #[arg(long)]
    pub(crate) skip_existing: bool,
    /// Print nothing but what was left out, and errors
    #[arg(long)]
    pub(crate) quiet: bool,
}

pub(crate) fn pair(text: &str) -> Result<(u64, u64), String> {
    let numbers =
        text.split_once(':').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text:?} is no FROM:TO of two numbers of databases"))
}

/// What the first reading of the file has found.
#[derive(Default)]
pub(crate) struct Survey {
    version: u16,
    server: Option<String>,
    /// How many keys each database has.
    pub(crate) databases: BTreeMap<u64, u64>,
    libraries: Vec<String>,
    /// Modules that keep something beside keys.
    modules: Vec<String>,
    pub(crate) is_checked: bool,
    /// What a backup says of itself.
    pub(crate) about: About,
}

/// Imports a file. An error if something of it is not at the target afterwards.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut source = Source::open(&options.file)?;
    let survey = survey(&mut source, options.quiet)?;
    let target = Target::new(&options.target)?;
    let mut import = Import::new(options, IMPORT, target, &survey)?;
    if !options.quiet {
        survey
            .lines(&options.file.display().to_string(), &source)
            .iter()
            .for_each(|line| say(line));
    }
    import.prepare(&survey)?;
    let mut progress = Progress::of_bytes("imported", source.total(), options.quiet)?;
    source.rewind(&Reader::new(Some(source.total())))?;
    import.write(&mut source, &mut progress)?;
    drop(progress);
    import.compare()?;
    let summary = import.summary;
    summary.lines(begin.elapsed(), options.quiet).iter().for_each(|line| say(line));
    summary.judge()
}

/// Reads all of the file.
pub(crate) fn survey(source: &mut Source, quiet: bool) -> anyhow::Result<Survey> {
    let mut survey = Survey::default();
    let mut progress = Progress::of_bytes("checked", source.total(), quiet)?;
    let mut database = 0;
    while let Some(event) = source.next()? {
        match event {
            Event::Version(version) => survey.version = version,
            Event::Aux { name, value } if name == b"redis-ver" => {
                survey.server = Some(value.escape_ascii().to_string());
            }
            Event::Database(number) => database = number,
            Event::Key(_) => {
                *survey.databases.entry(database).or_default() += 1;
                progress.at(source.offset());
            }
            Event::Aux { name, value } => survey.about.take(&name, &value, source.offset()),
            Event::Function(source) => {
                survey.libraries.push(library(&source));
                // Of another file they are left out, and nobody keeps them.
                if survey.about.version.is_some() {
                    survey.about.take_library(source);
                }
            }
            Event::ModuleAux(name) => survey.modules.push(name),
            Event::End { checked } => survey.is_checked = checked,
            Event::Sizes { .. } | Event::Item(_) | Event::KeyEnd => {}
        }
    }
    Ok(survey)
}

/// The name of a library, which stands in its first line.
pub(crate) fn library(source: &[u8]) -> String {
    let line = source.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let name = line.split_whitespace().find_map(|word| word.strip_prefix("name="));
    name.unwrap_or("without a name").to_owned()
}

impl Survey {
    pub(crate) fn lines(&self, file: &str, source: &Source) -> Vec<String> {
        let server =
            self.server.as_ref().map_or(String::new(), |server| format!(" of Redis {server}"));
        let sum = match self.is_checked {
            true => "its checksum is right",
            false => "it has no checksum",
        };
        let keys: u64 = self.databases.values().sum();
        let version = self.version;
        let size = size(source.total());
        vec![format!("{file}: version {version}{server}, {size}, {keys} keys; {sum}")]
    }
}

/// A key that was written again after a connection was lost: what it should hold.
struct Again {
    database: u64,
    key: Vec<u8>,
    kind: Kind,
    items: u64,
    expires: bool,
}

/// How an import and its kin call what they do, and what helps where they stop.
pub(crate) struct Words {
    pub(crate) done: &'static str,
    pub(crate) again: &'static str,
}

const IMPORT: Words = Words { done: "imported", again: "import again with --replace" };

pub(crate) struct Import<'a> {
    options: &'a Options,
    words: Words,
    pub(crate) target: Target,
    /// Where each database of the file goes to.
    pub(crate) databases: BTreeMap<u64, u64>,
    /// How many keys each database of the target had.
    sizes: BTreeMap<u64, u64>,
    string_bytes_max: u64,
    pub(crate) summary: Summary,
    again: Vec<Again>,
}

impl<'a> Import<'a> {
    pub(crate) fn new(
        options: &'a Options,
        words: Words,
        target: Target,
        survey: &Survey,
    ) -> anyhow::Result<Self> {
        let mut databases: BTreeMap<u64, u64> =
            survey.databases.keys().map(|&number| (number, number)).collect();
        for number in &options.only {
            ensure!(databases.contains_key(number), "--db {number}: the file has no keys there");
        }
        databases.retain(|number, _| options.only.is_empty() || options.only.contains(number));
        for (from, to) in &options.db_map {
            let place = databases.get_mut(from);
            *place.with_context(|| {
                format!("--db-map {from}:{to}: there are no keys in database {from} to import")
            })? = *to;
        }
        let mut places = BTreeMap::new();
        for (from, to) in &databases {
            if let Some(other) = places.insert(to, from) {
                bail!(
                    "databases {other} and {from} of the file would both go to {to}; see --db-map"
                );
            }
        }
        let summary = Summary::new(words.done, &survey.libraries, &survey.modules);
        Ok(Self {
            options,
            words,
            target,
            databases,
            sizes: BTreeMap::new(),
            string_bytes_max: STRING_BYTES_MAX,
            summary,
            again: Vec::new(),
        })
    }

    /// Looks at the target before anything is written there, and refuses databases that have keys.
    fn prepare(&mut self, survey: &Survey) -> anyhow::Result<()> {
        let full = self.look(survey)?;
        ensure!(
            full.is_empty() || self.options.replace || self.options.skip_existing,
            "at {} {} already; say what becomes of keys that are in the file, too, with --replace or \
             --skip-existing, or give another database with --db-map",
            self.target.address(),
            full.join(", ")
        );
        Ok(())
    }

    /// Looks at the target before anything is written there. Which databases have keys already.
    pub(crate) fn look(&mut self, survey: &Survey) -> anyhow::Result<Vec<String>> {
        let places: Vec<u64> = self.databases.values().copied().collect();
        if places.is_empty() {
            // The target ought to be one all the same.
            self.target.persist(|target| target.connection().map(|_| ()))?;
        }
        let mut full = Vec::new();
        for place in places {
            let keys = self.target.size_of(place)?;
            if keys > 0 {
                full.push(format!("database {place} has {keys} keys"));
            }
            self.sizes.insert(place, keys);
        }
        if !survey.databases.is_empty() {
            let said = self.target.persist(|target| target.setting("proto-max-bulk-len"))?;
            self.string_bytes_max = said.unwrap_or(STRING_BYTES_MAX);
        }
        Ok(full)
    }

    /// The databases were emptied.
    pub(crate) fn emptied(&mut self) {
        self.sizes.values_mut().for_each(|keys| *keys = 0);
    }

    /// Writes every key of the file.
    pub(crate) fn write(
        &mut self,
        source: &mut Source,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let now_ms = unix_millis()?;
        let policy = batch::Policy {
            replace: self.options.replace,
            skip_existing: self.options.skip_existing,
            string_bytes_max: self.string_bytes_max,
            now_ms,
        };
        // From here on the file is read again if a connection is lost.
        let mut checkpoint = source.bookmark();
        let mut since = Since::default();
        let mut writing = Writing::default();
        let mut database = 0;
        let mut checkpoint_database = 0;
        loop {
            let place = self.databases.get(&database).copied();
            let mut batch = Batch::new(&policy);
            while !batch.is_full(&writing) {
                let event = source.next().with_context(|| {
                    format!(
                        "stopped after {} keys, since the file is not as it was when it was checked",
                        self.summary.written()
                    )
                })?;
                let Some(event) = event else { break };
                if let Event::Database(number) = event {
                    database = number;
                    break;
                }
                // Databases that weren't asked for are read over.
                if place.is_some() {
                    batch.take(event, &mut writing, &mut since.keys);
                }
            }
            let is_end = source.is_at_end();
            let sent = place.map_or(Ok(()), |place| {
                batch.send(
                    place,
                    &mut self.target,
                    &mut since.keys,
                    &mut writing,
                    &mut since.outcome,
                )
            });
            match sent {
                Ok(()) => self.target.answered(),
                Err(trouble) => {
                    self.stop_or_again(trouble, &writing)?;
                    self.summary.lost();
                    source.rewind(&checkpoint)?;
                    database = checkpoint_database;
                    writing = Writing::default();
                    since.restart();
                    continue;
                }
            }
            progress.at(source.offset());
            progress.keys(self.summary.written());
            if !writing.is_within_a_key() {
                self.settle(&mut since, self.databases.get(&checkpoint_database).copied());
                checkpoint = source.bookmark();
                checkpoint_database = database;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// Ends the import, if the trouble is one that stays. Says what is there by then.
    fn stop_or_again(&mut self, trouble: Trouble, writing: &Writing) -> anyhow::Result<()> {
        self.target.again(trouble).with_context(|| {
            let keys = self.summary.written();
            let half = match writing.name() {
                Some(name) => format!(", and key \"{}\" may be there in part", name.escape_ascii()),
                None => ", and the last ones may be there in part".into(),
            };
            let again = self.words.again;
            format!("stopped after {keys} keys{half}; once that is mended, {again}")
        })
    }

    /// Counts what all commands since the checkpoint came to: they were all answered.
    fn settle(&mut self, since: &mut Since, database: Option<u64>) {
        let outcome = std::mem::take(&mut since.outcome);
        if let Some(database) = database {
            let rewritten = since.keys.rewritten();
            let again = outcome.written.iter().filter(|key| key.index < rewritten);
            self.summary.rewritten(again.clone().count() as u64);
            self.again.extend(again.map(|key| Again {
                database,
                key: key.name.clone(),
                kind: key.kind,
                items: key.items,
                expires: key.expires,
            }));
            self.summary.count(database, outcome);
        }
        since.keys.clear();
    }

    /// Compares what the target has with what was written.
    pub(crate) fn compare(&mut self) -> anyhow::Result<()> {
        for again in std::mem::take(&mut self.again) {
            let length = match again.kind {
                Kind::List => "LLEN",
                Kind::Set => "SCARD",
                Kind::SortedSet => "ZCARD",
                Kind::Hash => "HLEN",
                Kind::Stream => "XLEN",
                Kind::String | Kind::Module => continue,
            };
            let mut bytes = Vec::new();
            crate::transfer::command([length.as_bytes(), &again.key].into_iter(), &mut bytes);
            let reply = self.target.persist(|target| {
                target.select(again.database)?;
                let connection = target.connection()?;
                connection.send(&bytes)?;
                Ok(connection.reply()?)
            })?;
            let is_there = match reply {
                Reply::Int(found) if again.expires => (0..=again.items as i64).contains(&found),
                Reply::Int(found) => found == again.items as i64,
                _ => false,
            };
            if !is_there {
                let reason = format!(
                    "it was written again after a connection was lost, and {length} answers {reply:?} \
                     instead of {}",
                    again.items
                );
                self.summary.differs(&again.key, reason);
            }
        }
        for (database, before) in std::mem::take(&mut self.sizes) {
            let Some(least) = self.summary.lasting(database) else { continue };
            // Keys that were there before may have gone by themselves meanwhile.
            let deadline = Instant::now() + SHOWN_MAX;
            loop {
                let keys = self.target.size_of(database)?;
                if keys >= least {
                    break;
                }
                if Instant::now() >= deadline {
                    self.summary.lacks(format!(
                        "database {database} has {keys} keys, and {least} were written that don't expire \
                         (it had {before} before): somebody deletes keys there, or they were lost"
                    ));
                    break;
                }
                std::thread::sleep(SHOWN_EVERY);
            }
        }
        Ok(())
    }
}

/// What has been done since the checkpoint.
#[derive(Default)]
struct Since {
    keys: batch::Keys,
    outcome: Outcome,
}

impl Since {
    fn restart(&mut self) {
        self.keys.restart();
        self.outcome = Outcome::default();
    }
}

fn unix_millis() -> anyhow::Result<u64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.context("the clock of this machine stands before 1970")?;
    Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_databases_are_two_numbers() {
        assert_eq!(pair("0:2"), Ok((0, 2)));
        for wrong in ["0", "0:", ":1", "a:b", "0:1:2", "-1:0"] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn libraries_are_called_by_their_first_line() {
        assert_eq!(library(b"#!lua name=math\nredis.x()"), "math");
        assert_eq!(library(b"\xff"), "without a name");
    }
}
