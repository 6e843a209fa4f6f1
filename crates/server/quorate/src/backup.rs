//! `quorate backup`: all keyspaces of a running cluster in one file.
//!
//! Keys are listed and read as for an export, at one node, while a second connection hears of every change
//! there. What has changed is read again and replaces what the file had of it, in rounds that become shorter,
//! until one ends in which nothing changed: then the file is of one moment ([`cut`]). If writers are too fast
//! for that, `--pause-writes` has them wait during the last rounds.

pub(crate) mod about;
mod cut;
mod follow;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{anyhow, bail, ensure};
use clap::Args;
use quorate_commands::LIBRARIES_KEY;
use quorate_machine::mutant;

use crate::export::{Export, Output, Summary, all_databases, of_libraries};
use crate::log::say;
use crate::transfer::{Pace, PaceOptions, Progress, Reply, Target, TargetOptions, Trouble, size};
use about::{About, Keyspace, Moment};
use cut::Open;
use follow::Follow;
use nodes::{Nodes, field, info, said};

/// How often a backup begins anew if changes could not be followed.
const ATTEMPTS_MAX: usize = 3;
/// How long rounds go on without a pause of writes.
const ROUNDS_MAX: Duration = Duration::from_secs(3);
/// So few keys are read again within a moment.
const FEW_KEYS: usize = 300;
/// How long a round waits that has nothing to read.
const IDLE: Duration = Duration::from_millis(1);

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The file that is written; `quorate restore` reads it, and so do `quorate import` and Redis
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    target: TargetOptions,
    /// Have clients of all nodes wait with writes at the end, for so many milliseconds at most, so that
    /// the file is of one moment however much they write; if that is too short, nothing is written
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pause_writes: Option<u64>,
    #[command(flatten)]
    pace: PaceOptions,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// Print nothing but errors
    #[arg(long)]
    quiet: bool,
}

/// How an attempt ended.
enum End {
    /// All was read, of this moment.
    Read(Moment),
    /// Changes were not followed to the end, and why.
    Unfollowed(String),
}

/// Backs up. An error, and no file, if a key that was there all the time is not in it, or if it is of no
/// single moment and was to be.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut attempt = 0;
    loop {
        let place = Output::check(&options.out, options.force)?;
        let mut target = Target::new(&options.target)?;
        target.skip(attempt);
        attempt += 1;
        target.persist(|target| target.connection().map(|_| ()))?;
        target.stay();
        let mut backup = Backup::begin(options, target, place.create()?)?;
        let moment = match backup.read()? {
            End::Read(moment) => moment,
            End::Unfollowed(why) if attempt < ATTEMPTS_MAX => {
                if !options.quiet {
                    say(&format!("begins anew, since {why}"));
                }
                continue;
            }
            End::Unfollowed(why) => Moment::Each(why),
        };
        return backup.finish(moment, begin);
    }
}

struct Backup<'a> {
    options: &'a Options,
    export: Export,
    about: About,
    databases: Vec<u64>,
    /// Of these, those that had keys at some time.
    filled: BTreeSet<u64>,
    /// What tells of changes, or why nothing does.
    followed: Result<(Follow, Nodes), String>,
    /// How long writes were paused.
    paused: Option<Duration>,
}

impl<'a> Backup<'a> {
    fn begin(options: &'a Options, mut target: Target, output: Output) -> anyhow::Result<Self> {
        let text = target.persist(|target| info(target.connection()?, &["quorate"]))?;
        ensure!(
            said(&text, "quorate_version").is_some(),
            "{} is no node of a Quorate cluster; `quorate export` writes the keys of any server like Redis",
            target.address()
        );
        let followed = match Follow::begin(&target) {
            Ok(Ok(follow)) => Nodes::connect(&target, &text).map(|nodes| Ok((follow, nodes))),
            Ok(Err(why)) => Ok(Err(why)),
            Err(trouble) => Err(trouble),
        };
        let followed = match followed {
            Ok(followed) => followed,
            Err(Trouble::Later(why)) => Err(why),
            Err(Trouble::Stop(error)) => return Err(error),
        };
        if let (Err(why), Some(_)) = (&followed, options.pause_writes) {
            bail!("changes can't be followed, so the file would be of no single moment: {why}");
        }
        let databases = all_databases(&mut target)?;
        let (mut total, mut filled) = (0, BTreeSet::new());
        for &database in &databases {
            let keys = target.size_of(database)?;
            total += keys;
            if keys > 0 {
                filled.insert(database);
            }
        }
        let mut about = About::default();
        about.cluster = said(&text, "cluster_name").unwrap_or_default().to_owned();
        let progress = Progress::of_keys("backed up", total, !Progress::is_seen(options.quiet));
        let pace = Pace::new(&options.pace);
        let mut export = Export::with_book(target, output, progress?, pace);
        export.about(|writer, out| about.write_begin(writer, out));
        Ok(Self { options, export, about, databases, filled, followed, paused: None })
    }

    /// Reads everything.
    fn read(&mut self) -> anyhow::Result<End> {
        let begin = Instant::now();
        for database in self.filled.clone() {
            let keys = self.export.target.size_of(database)?;
            let read = self.export.database(database, keys);
            if let Some(why) = self.lost() {
                return Ok(End::Unfollowed(why));
            }
            read?;
        }
        let each = self.export.done.max(1);
        // What is read from here on is little, and is of one moment only if it is read fast.
        let took = begin.elapsed().saturating_sub(self.export.pace.hurry());
        let each = took / u32::try_from(each).unwrap_or(u32::MAX);
        match &self.followed {
            Ok(_) => self.close(each),
            Err(why) => {
                let why = why.clone();
                self.read_libraries()?;
                Ok(End::Read(Moment::Each(why)))
            }
        }
    }

    /// Why changes were not followed so far, if they were to be.
    fn lost(&self) -> Option<String> {
        self.followed.as_ref().ok().and_then(|(follow, _)| follow.told().err())
    }

    /// Reads again what has changed, until nothing has. `each` is about how long it takes to read a key.
    fn close(&mut self, each: Duration) -> anyhow::Result<End> {
        let begin = Instant::now();
        let most = self.options.pause_writes.map(Duration::from_millis);
        // What is told behind the first round would cost another one.
        if let Ok((follow, _)) = &mut self.followed {
            match follow.catch_up() {
                Ok(()) => {}
                Err(Trouble::Later(why)) => return Ok(End::Unfollowed(why)),
                Err(Trouble::Stop(error)) => return Err(error),
            }
        }
        let mut pause_begin = None;
        let mut before = usize::MAX;
        loop {
            let (changed, open) = match self.round() {
                Ok(Ok(())) => {
                    let (_, nodes) = self.followed.as_mut().map_err(|why| anyhow!(why.clone()))?;
                    nodes.go_on();
                    self.paused = pause_begin.map(|begin: Instant| begin.elapsed());
                    return Ok(End::Read(Moment::One(now_ms())));
                }
                Ok(Err(open)) => (if let Open::Keys(keys) = open { keys } else { 0 }, open),
                Err(Trouble::Later(why)) => return Ok(End::Unfollowed(why)),
                Err(Trouble::Stop(error)) => return Err(error),
            };
            let (follow, nodes) = self.followed.as_mut().map_err(|why| anyhow!(why.clone()))?;
            match (nodes.pause_left(), most) {
                (Some(Duration::ZERO), _) => {
                    return Ok(End::Read(Moment::Each(format!(
                        "the pause of writes was too short: {}; give more than --pause-writes {}",
                        shown(open),
                        most.unwrap_or_default().as_millis()
                    ))));
                }
                (Some(_), _) => {}
                (None, Some(most)) if changed <= FEW_KEYS || changed > before / 4 * 3 => {
                    let needed = each.saturating_mul(u32::try_from(changed).unwrap_or(u32::MAX));
                    if needed > most {
                        return Ok(End::Read(Moment::Each(format!(
                            "{changed} keys change while as many are read again, which takes about {} ms; \
                             give --pause-writes {}",
                            needed.as_millis(),
                            2 * needed.as_millis()
                        ))));
                    }
                    pause_begin = Some(Instant::now());
                    // What was told late would cost a round of the pause.
                    match nodes.pause(most).and_then(|()| follow.catch_up()) {
                        Ok(()) => {}
                        Err(Trouble::Later(why)) => return Ok(End::Unfollowed(why)),
                        Err(Trouble::Stop(error)) => return Err(error),
                    }
                }
                (None, Some(_)) => {}
                (None, None) if begin.elapsed() > ROUNDS_MAX => {
                    return Ok(End::Read(Moment::Each(shown(open))));
                }
                (None, None) => {}
            }
            before = changed;
            if changed == 0 {
                std::thread::sleep(IDLE);
            }
        }
    }

    /// Reads what has changed since the last round, and judges whether anything has meanwhile.
    fn round(&mut self) -> Result<Result<(), Open>, Trouble> {
        let Ok((follow, _)) = &mut self.followed else {
            return Err(Trouble::Later("nothing tells of changes".into()));
        };
        let told = follow.take()?;
        let keys: Vec<Vec<u8>> = told.into_iter().filter(|key| key != LIBRARIES_KEY).collect();
        let text = self.export.target.persist(|target| {
            // Its keys are counted as the changes are told, by the same replica.
            info(target.connection()?, &["keyspace"])
        })?;
        let is_filled = |&&number: &&u64| said(&text, &format!("db{number}")).is_some();
        self.filled.extend(self.databases.iter().filter(is_filled));
        let mut again: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        if !keys.is_empty() && !mutant!("quorate_backup_changed_key_stays") {
            // It is not told which database a key is of.
            again.extend(self.filled.iter().map(|&database| (database, keys.clone())));
        }
        for (database, key) in self.export.unread() {
            again.entry(database).or_default().push(key);
        }
        for (database, keys) in again {
            self.export.again(database, &keys)?;
        }
        self.read_libraries()?;
        let Ok((follow, nodes)) = &mut self.followed else {
            return Err(Trouble::Later("nothing tells of changes".into()));
        };
        let standings = nodes.ask()?;
        follow.catch_up()?;
        let told = follow.told().map_err(Trouble::Later)?;
        let followed = self.export.target.persist(|target| {
            let connection = target.connection()?;
            nodes::followed(connection)
        })?;
        if followed != follow.followed {
            return Err(Trouble::Later(
                "not every change was told: a keyspace was emptied, too much changed at once, or the node \
                 began another life"
                    .into(),
            ));
        }
        Ok(cut::judge(told, self.export.unread().len(), &standings))
    }

    fn read_libraries(&mut self) -> anyhow::Result<()> {
        for &database in &self.databases {
            let libraries = self.export.target.persist(|target| {
                target.select(database)?;
                libraries(target)
            })?;
            self.about.libraries.insert(database, libraries);
        }
        Ok(())
    }

    fn finish(mut self, moment: Moment, begin: Instant) -> anyhow::Result<()> {
        drop(std::mem::replace(&mut self.followed, Err(String::new())));
        if let (Moment::Each(why), Some(_)) = (&moment, self.options.pause_writes) {
            bail!("the file would be of no single moment, and is not written: {why}");
        }
        let unread = self.export.unread();
        if let Some((database, key)) = unread.first() {
            bail!(
                "{} keys can't be read, such as \"{}\" of database {database}, and the file is not written: \
                 they change all the time while they are read in pieces; give --pause-writes 10000",
                unread.len(),
                key.escape_ascii()
            );
        }
        let text = self.export.target.persist(|target| info(target.connection()?, &["quorate"]))?;
        let of = |&number: &u64| Some((number, keyspace(&text, number)?));
        self.about.keyspaces = self.filled.iter().filter_map(of).collect();
        self.about.moment = Some(moment.clone());
        let about = &self.about;
        self.export.about(|writer, out| about.write_end(writer, out));
        let blanked = self.export.blanked();
        let (summary, length) = self.export.finish()?;
        if !self.options.quiet {
            let lines = Report { summary, length, blanked, moment, paused: self.paused };
            lines.say(self.options, about, begin.elapsed());
        }
        Ok(())
    }
}

/// What people are told at the end.
struct Report {
    summary: Summary,
    length: u64,
    blanked: u64,
    moment: Moment,
    paused: Option<Duration>,
}

impl Report {
    fn say(&self, options: &Options, about: &About, took: Duration) {
        let file = options.out.display().to_string();
        self.summary.lines(&file, self.length, took, false).iter().for_each(|line| say(line));
        let libraries: usize = about.libraries.values().map(Vec::len).sum();
        if libraries > 0 {
            say(&format!("libraries of functions: {libraries}"));
        }
        if self.blanked > 0 {
            let blanked = size(self.blanked);
            say(&format!("{blanked} of the file are of keys that have changed since, and void"));
        }
        match &self.moment {
            Moment::One(millis) => {
                say(&format!("all of it is of one moment, {}", about::shown(*millis)));
            }
            Moment::Each(why) => say(&format!(
                "each key is of a moment of its own, and the file of no single one: {why}. Stop the writers, \
                 or have them wait for a moment with --pause-writes"
            )),
        }
        if let Some(paused) = self.paused {
            say(&format!("writes waited for {} ms", paused.as_millis()));
        }
    }
}

fn shown(open: Open) -> String {
    match open {
        Open::Keys(keys) => format!("{keys} keys have changed while as many were read again"),
        Open::Updates(_) => "there is always an update under way".into(),
        Open::Members => "the members of the cluster change".into(),
    }
}

/// What `INFO` says of a keyspace that has keys.
fn keyspace(text: &str, number: u64) -> Option<Keyspace> {
    let line = said(text, &format!("keyspace{number}"))?;
    let field = |name| field(line, name).map(str::to_owned);
    Some(Keyspace { engine: field("engine")?, name: field("name")? })
}

/// Whether a keyspace has no libraries of functions since its engine updates one key at a time.
pub(crate) fn has_no_libraries(error: &str) -> bool {
    error.starts_with("CROSSKEY")
}

/// The sources of the libraries of the database that is selected.
fn libraries(target: &mut Target) -> Result<Vec<Vec<u8>>, Trouble> {
    let libraries = match target.ask(&["FUNCTION", "LIST", "WITHCODE"])? {
        Reply::Array(libraries) => libraries,
        Reply::Error(error) if has_no_libraries(&error) => return Ok(Vec::new()),
        other => return Err(anyhow!("the target answered FUNCTION LIST with {other:?}").into()),
    };
    let count = libraries.len();
    let sources = of_libraries(libraries, "library_code");
    if sources.len() < count {
        return Err(anyhow!("the target tells a library without its source").into());
    }
    Ok(sources)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
