//! `quorate restore`: a backup into a running cluster, by the commands that a client would send, as an
//! import does. All of the file is read before anything is written.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use quorate_machine::mutant;
use quorate_rdb::Reader;

use crate::backup::about::{self, About, Moment};
use crate::backup::has_no_libraries;
use crate::import::{self, Import, Source, Survey, Words, pair, survey};
use crate::log::say;
use crate::transfer::{Progress, Reply, Target, TargetOptions, Trouble, ask, trouble};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The file, as `quorate backup` wrote it
    file: PathBuf,
    #[command(flatten)]
    target: TargetOptions,
    /// Only this database of the file; may be given several times. Without it, all
    #[arg(long = "db", value_name = "N", value_delimiter = ',')]
    only: Vec<u64>,
    /// Restore one database of the file into another one; may be given several times
    #[arg(long, value_name = "FROM:TO", value_delimiter = ',', value_parser = pair)]
    db_map: Vec<(u64, u64)>,
    /// Delete everything in the databases that are restored first: all keys and libraries of functions
    /// there. Without this, a database that has any is refused
    #[arg(long)]
    overwrite: bool,
    /// Print nothing but what could not be restored, and errors
    #[arg(long)]
    quiet: bool,
}

/// Restores. An error if something of the file is not at the target afterwards.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let begin = Instant::now();
    let file = options.file.display().to_string();
    let (mut source, survey) = read(options, &file)
        .with_context(|| format!("{file} is not restored, and nothing is written"))?;
    let options_of_import = import::Options {
        file: options.file.clone(),
        target: options.target.clone(),
        only: options.only.clone(),
        db_map: options.db_map.clone(),
        replace: false,
        skip_existing: false,
        quiet: options.quiet,
    };
    let target = Target::new(&options.target)?;
    let words = Words { done: "restored", again: "restore again with --overwrite" };
    let mut import = Import::new(&options_of_import, words, target, &survey)?;
    if !options.quiet {
        survey.lines(&file, &source).iter().for_each(|line| say(line));
        say(&told(&survey.about));
    }
    prepare(&mut import, &survey, options.overwrite)
        .with_context(|| format!("{file} is not restored, and nothing is written"))?;
    if options.overwrite {
        empty(&mut import)?;
    }
    let is_seen = Progress::is_seen(options.quiet);
    let mut progress = Progress::of_bytes("restored", source.total(), !is_seen)?;
    source.rewind(&Reader::new(Some(source.total())))?;
    import.write(&mut source, &mut progress)?;
    drop(progress);
    let libraries = load(&mut import, &survey.about)?;
    import.compare()?;
    import.summary.has_libraries();
    let lines = import.summary.lines(begin.elapsed(), options.quiet);
    lines.iter().for_each(|line| say(line));
    if libraries > 0 && !options.quiet {
        say(&format!("libraries of functions: {libraries}"));
    }
    import.summary.judge()
}

/// Reads all of the file, which must be a backup.
fn read(options: &Options, file: &str) -> anyhow::Result<(Source, Survey)> {
    let mut source = Source::open(&options.file)?;
    let mut survey = survey(&mut source, !Progress::is_seen(options.quiet))?;
    let about = &survey.about;
    let Some((version, offset)) = about.version else {
        bail!("it is an RDB file and no backup; `quorate import {file}` takes it");
    };
    ensure!(
        version == about::VERSION,
        "at offset {offset}: the format of backups is {version} there, and {} is known here; restore it with the \
         version of Quorate that wrote it, or a newer one",
        about::VERSION
    );
    ensure!(
        survey.is_checked || mutant!("quorate_restore_checksum_missing"),
        "at offset {}: its checksum is gone, so somebody has changed it; take another copy",
        source.total() - 8
    );
    ensure!(
        about.moment.is_some(),
        "at offset {}: what a backup ends with is missing, so somebody has changed it; take another copy",
        source.total() - 9
    );
    // Databases that have libraries and no keys.
    for database in about.libraries.keys() {
        survey.databases.entry(*database).or_default();
    }
    Ok((source, survey))
}

/// What a backup says of itself.
fn told(about: &About) -> String {
    let cluster = &about.cluster;
    match &about.moment {
        Some(Moment::One(millis)) => {
            format!("a backup of cluster \"{cluster}\", of one moment, {}", about::shown(*millis))
        }
        Some(Moment::Each(why)) => format!(
            "a backup of cluster \"{cluster}\", in which each key is of a moment of its own: {why}"
        ),
        None => String::new(),
    }
}

/// Looks at the target: it must have the databases, and nothing in them.
fn prepare(import: &mut Import<'_>, survey: &Survey, overwrite: bool) -> anyhow::Result<()> {
    for (from, to) in import.databases.clone() {
        if import.target.persist(|target| target.has(to))? {
            continue;
        }
        let keyspace = survey.about.keyspaces.get(&from);
        let was = keyspace.map_or(String::new(), |keyspace| {
            format!(" (\"{}\", engine {})", keyspace.name, keyspace.engine)
        });
        bail!(
            "the cluster at {} has no database {to} for database {from} of the file{was}; add a [[keyspace]] \
             with db = {to} to its configuration, give another database with --db-map {from}:N, or leave it \
             out by naming the others with --db",
            import.target.address()
        );
    }
    let mut full = import.look(survey)?;
    for (from, to) in import.databases.clone() {
        let listed = import.target.persist(|target| {
            target.select(to)?;
            target.ask(&["FUNCTION", "LIST"])
        })?;
        let needed = survey.about.libraries.get(&from).map_or(0, Vec::len);
        match listed {
            Reply::Array(libraries) if libraries.is_empty() => {}
            Reply::Array(libraries) => {
                full.push(format!("database {to} has {} libraries of functions", libraries.len()));
            }
            Reply::Error(error) if needed > 0 => bail!(
                "database {to} at {} takes no libraries of functions, and the file has {needed} for it: the \
                 target answered {error}; give another database with --db-map {from}:N, or leave it out by \
                 naming the others with --db",
                import.target.address()
            ),
            _ => {}
        }
    }
    ensure!(
        full.is_empty() || overwrite || mutant!("quorate_restore_into_data"),
        "at {} {} already; restore into a cluster without data, give other databases with --db-map, or have \
         these emptied first with --overwrite",
        import.target.address(),
        full.join(", ")
    );
    Ok(())
}

/// Deletes everything in the databases that are to be written.
fn empty(import: &mut Import<'_>) -> anyhow::Result<()> {
    for place in import.databases.values().copied().collect::<Vec<_>>() {
        import.target.persist(|target| {
            target.select(place)?;
            for words in [&["FLUSHDB"][..], &["FUNCTION", "FLUSH"]] {
                match target.ask(words)? {
                    Reply::Status(_) => {}
                    Reply::Error(error) if has_no_libraries(&error) => {}
                    other => {
                        let command = words.join(" ");
                        return Err(anyhow!("the target answered {command} with {other:?}").into());
                    }
                }
            }
            Ok(())
        })?;
    }
    import.emptied();
    Ok(())
}

/// Loads the libraries of functions of the databases that were written. How many there are.
fn load(import: &mut Import<'_>, about: &About) -> anyhow::Result<usize> {
    let mut loaded = 0;
    for (database, sources) in &about.libraries {
        let Some(place) = import.databases.get(database).copied() else { continue };
        for source in sources {
            import.target.persist(|target| {
                target.select(place)?;
                load_one(target, source)
            })?;
            loaded += 1;
        }
    }
    Ok(loaded)
}

fn load_one(target: &mut Target, source: &[u8]) -> Result<(), Trouble> {
    // One that is there already was loaded by a connection that was lost.
    match ask(target.connection()?, &[&b"FUNCTION"[..], b"LOAD", b"REPLACE", source])? {
        Reply::Bulk(_) => Ok(()),
        Reply::Error(error) => Err(trouble(&error).unwrap_or_else(|| {
            let name = import::library(source);
            anyhow!("library \"{name}\" can't be loaded: the target answered {error}").into()
        })),
        other => Err(anyhow!("the target answered FUNCTION LOAD with {other:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/backup-1.rdb");

    /// What is said of a file with these bytes.
    fn judged(bytes: &[u8]) -> Result<Survey, String> {
        static JUDGED: AtomicU32 = AtomicU32::new(0);
        let number = JUDGED.fetch_add(1, Relaxed);
        let name = format!("quorate-restore-{}-{number}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, bytes).expect("there is room");
        let options = Options {
            file: file.clone(),
            target: TargetOptions::at("127.0.0.1:1"),
            only: Vec::new(),
            db_map: Vec::new(),
            overwrite: false,
            quiet: true,
        };
        let read = read(&options, "backup.rdb");
        std::fs::remove_file(&file).expect("it was written");
        read.map(|(_, survey)| survey).map_err(|error| format!("{error:#}"))
    }

    /// Cut anywhere, or with any bit changed, it is refused, and the place is said.
    #[test]
    fn a_file_that_was_cut_or_changed_is_refused_with_the_place() {
        let whole = std::fs::read(GOLDEN).expect("it is there");
        let survey = judged(&whole).expect("it is whole");
        assert_eq!(survey.databases.into_iter().collect::<Vec<_>>(), [(0, 0), (3, 1)]);
        for cut in 0..whole.len() {
            let why = judged(&whole[..cut]).err().expect("it was cut");
            assert!(why.contains("at offset "), "cut at {cut}: {why}");
        }
        for at in 0..8 * whole.len() {
            let mut changed = whole.clone();
            changed[at / 8] ^= 1 << (at % 8);
            let why = judged(&changed).err().expect("it was changed");
            assert!(why.contains("at offset "), "bit {at}: {why}");
        }
        let mut unchecked = whole.clone();
        let end = whole.len() - 8;
        unchecked[end..].fill(0);
        let why = judged(&unchecked).err().expect("nobody knows whether it was changed");
        assert!(why.contains(&format!("at offset {end}: its checksum is gone")), "{why}");
    }

    /// Under a checksum that is right.
    #[test]
    fn what_is_no_backup_or_a_newer_one_is_refused() {
        let whole = std::fs::read(GOLDEN).expect("it is there");
        let edited = |from: &[u8], to: &[u8]| {
            let at = whole.windows(from.len()).position(|part| part == from).expect("it is there");
            let mut edited = whole[..whole.len() - 8].to_vec();
            edited.splice(at..at + from.len(), to.iter().copied());
            let sum = quorate_rdb::crc64(&edited).to_le_bytes();
            judged(&[&edited[..], &sum].concat()).err().expect("it was edited")
        };
        let why = edited(b"quorate-backup", b"quorate-bakcup");
        assert!(why.contains("no backup; `quorate import backup.rdb` takes it"), "{why}");
        let why = edited(b"quorate-backup\xc0\x01", b"quorate-backup\xc0\x02");
        assert!(why.contains("the format of backups is 2") && why.contains("newer"), "{why}");
        let why = edited(b"quorate-moment", b"quorate-monemt");
        assert!(why.contains("what a backup ends with is missing"), "{why}");
    }
}
