//! The directory of one node: whose it is, and what its lanes have left in it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use quorate_durability::{DiskError, LOCK_FILE, LogError, Name, VOTER_FILE, VoterFile};
use quorate_node::{
    Aside, LaneFound, NodeConfig, NodeFound, Opened, Opening, RestoredStore, Verdict, identity,
};
use quorate_types::LaneId;

use crate::disk::flush_directory;
use crate::files_on_disk::FileDirectory;
use crate::handle::lock;

/// Says whose the directory is.
const NODE_FILE: &str = "node";
/// The first line of that file.
const NODE_TITLE: &str = "quorate directory, version 1";
const NOT_ASIDE: &str = "damaged files can't be put aside";
/// Where damaged files are put aside, with a number.
const ASIDE: &str = "damaged-";
/// Where they are while they are being moved: those of the lanes, or the voter's as well.
const MOVING: [(&str, Aside); 2] = [("lanes.moving", Aside::Lanes), ("all.moving", Aside::All)];

/// Why a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeDiskError {
    /// The system refuses it.
    #[error(
        "{path}: {doing}: {source}; check that the directory exists, that this user may write there and \
         that the disk has room, or choose another one"
    )]
    System {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process has it.
    #[error(
        "{path}: another process uses this directory; a directory belongs to one node: stop that process, \
         or choose another directory"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It belongs to another node, or was written by a newer program.
    #[error(
        "{path}: this directory says '{found}', and this process is '{expected}'; give each node the \
         directory that it has written"
    )]
    Foreign {
        /// The file that says so.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// It was written with another number of lanes.
    #[error(
        "{path}: this directory was written by {found} lanes, and the node has {expected}; give it {found} \
         lanes again, or another directory, and it copies from the others"
    )]
    Lanes {
        /// The file that says so.
        path: PathBuf,
        /// How many lanes it had.
        found: String,
        /// How many the node has.
        expected: u16,
    },
    /// Its files belong elsewhere, or to a newer program.
    #[error("{path}: {source}")]
    Log {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        source: LogError,
    },
}

/// The opened directory of a node. While this lives, no other process opens it.
#[derive(Debug)]
pub struct NodeDisk {
    pub(crate) path: PathBuf,
    /// Locked.
    _lock: File,
    /// What the lanes have left, taken out when they begin.
    found: Vec<Mutex<Option<LaneFound>>>,
    /// Whether an earlier process may have acknowledged anything ([`Opened::has_past`]).
    pub(crate) has_past: bool,
    /// What the node has promised as a voter, taken out by lane 0.
    voter: Mutex<Option<(VoterFile, Option<Vec<u8>>)>>,
    /// How much of what the node had acknowledged is there.
    pub(crate) store: RestoredStore,
    /// Where the lanes wait for each other: until all have restored what is theirs, and until all are
    /// ready.
    pub(crate) lanes: Barrier,
}

impl NodeDisk {
    /// Opens the directory of a node, which is made if it isn't there, and looks through its files.
    /// Damaged ones are put aside, and the node begins without data.
    ///
    /// # Errors
    /// If the directory can't be used. Nothing was changed then.
    pub fn open(path: &Path, config: &NodeConfig) -> Result<Self, NodeDiskError> {
        let system = |doing| system(path, doing);
        fs::create_dir_all(path).map_err(system("cannot be made"))?;
        let locked = take_lock(path)?;
        check_owner(path, config)?;
        for (moving, aside) in MOVING {
            finish_moving(path, moving, aside).map_err(system(NOT_ASIDE))?;
        }
        let begun = Instant::now();
        let mut opening = Opening::default();
        let opened = loop {
            let judged = opening.judge(look(path, config));
            match judged.map_err(|source| log_error(path, source))? {
                Verdict::Use(opened) => break opened,
                Verdict::PutAside { aside, why } => {
                    let to = put_aside(path, aside).map_err(system(NOT_ASIDE))?;
                    tracing::error!(
                        node = %config.node,
                        "{}: {why}. The files are put aside in {}; this node begins without data and \
                         copies from the others",
                        path.display(),
                        to.display()
                    );
                }
            }
        };
        for (file, error) in opened.damaged_snapshots() {
            let aside = put_one_aside(path, file);
            let aside = aside.map_err(system("a damaged snapshot can't be put aside"))?;
            tracing::error!(
                node = %config.node,
                "{}: {error}. The snapshot is put aside as {}, the one before it counts",
                path.display(),
                aside.display()
            );
        }
        let Opened { found: NodeFound { lanes: found, voter }, store, has_past } = *opened;
        let (entries, bytes) =
            found.iter().fold((0, 0), |sum, found| (sum.0 + found.entries, sum.1 + found.bytes));
        if has_past {
            tracing::info!(
                node = %config.node, entries, bytes, millis = begun.elapsed().as_millis() as u64,
                "the log is sound"
            );
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: locked,
            found: found.into_iter().map(|found| Mutex::new(Some(found))).collect(),
            has_past,
            voter: Mutex::new(Some(voter)),
            store,
            lanes: Barrier::new(usize::from(config.lanes)),
        })
    }

    /// How many entries the lanes have left, before they take them.
    pub(crate) fn entries(&self) -> u64 {
        self.found.iter().map(|found| lock(found).as_ref().map_or(0, |found| found.entries)).sum()
    }

    /// What a lane has left. Each lane takes it once.
    pub(crate) fn take(&self, lane: LaneId) -> LaneFound {
        let found = lock(&self.found[usize::from(lane.0)]).take();
        found.expect("each lane takes what it has left once")
    }

    /// What the node has promised as a voter. Lane 0 takes it once.
    pub(crate) fn take_voter(&self) -> (VoterFile, Option<Vec<u8>>) {
        lock(&self.voter).take().expect("lane 0 takes it once")
    }
}

fn system<'a>(path: &'a Path, doing: &'static str) -> impl Fn(io::Error) -> NodeDiskError + 'a {
    move |source| NodeDiskError::System { path: path.to_owned(), doing, source }
}

fn log_error(path: &Path, source: LogError) -> NodeDiskError {
    NodeDiskError::Log { path: path.to_owned(), source }
}

fn take_lock(path: &Path) -> Result<File, NodeDiskError> {
    let file = path.join(LOCK_FILE);
    let opened = File::options().create(true).truncate(false).write(true).open(&file);
    let opened = opened.map_err(system(&file, "cannot be opened"))?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => Err(NodeDiskError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(system(&file, "cannot be locked")(error)),
    }
}

/// Compares what the directory says of its owner, or says it there for the first time.
fn check_owner(path: &Path, config: &NodeConfig) -> Result<(), NodeDiskError> {
    let file = path.join(NODE_FILE);
    let mine = format!("node {} of cluster {:?}", config.node, config.cluster);
    let mut text = String::new();
    match File::open(&file).and_then(|mut open| open.read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = format!("{NODE_TITLE}\n{mine}\n{} lanes\n", config.lanes);
            return write_whole(path, NODE_FILE, &text).map_err(system(&file, "cannot be written"));
        }
        Err(error) => return Err(system(&file, "cannot be read")(error)),
    }
    let mut lines = text.lines();
    let mut line = || lines.next().unwrap_or_default();
    for expected in [NODE_TITLE, &mine] {
        let found = line();
        if found != expected {
            let (found, expected) = (found.to_owned(), expected.to_owned());
            return Err(NodeDiskError::Foreign { path: file, found, expected });
        }
    }
    let found = line().trim_end_matches(" lanes").to_owned();
    if found != config.lanes.to_string() {
        return Err(NodeDiskError::Lanes { path: file, found, expected: config.lanes });
    }
    Ok(())
}

/// Writes a small file so that it is there whole or not at all.
fn write_whole(path: &Path, name: &str, text: &str) -> io::Result<()> {
    let draft = path.join(format!("{name}.draft"));
    let mut file = File::create(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path.join(name))?;
    flush_directory(path).map_err(|(_, error)| error)
}

/// Looks through the files of all lanes, each on a thread of its own, and the voter's.
fn look(path: &Path, config: &NodeConfig) -> Result<NodeFound, LogError> {
    let open = || {
        let listed = FileDirectory::open(path);
        listed.map_err(|_| LogError::Directory(DiskError::Io))
    };
    let voter = VoterFile::load(&mut open()?, identity(config, LaneId(0)))?;
    let look_at = |lane| LaneFound::look(&mut open()?, identity(config, LaneId(lane)));
    let lanes: Result<Vec<_>, _> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..config.lanes).map(|lane| scope.spawn(move || look_at(lane))).collect();
        threads.into_iter().map(|thread| thread.join().expect("reading doesn't panic")).collect()
    });
    Ok(NodeFound { lanes: lanes?, voter })
}

/// Moves the files of all lanes into a directory of their own, so that they are kept and none of them is
/// read again. Should the process end meanwhile, the next one goes on: a part of the files could look
/// like a log that ends earlier.
fn put_aside(path: &Path, aside: Aside) -> io::Result<PathBuf> {
    let chosen = MOVING.iter().find(|(_, known)| *known == aside);
    let (moving, _) = chosen.expect("there is one of each");
    fs::create_dir(path.join(moving))?;
    flush_directory(path).map_err(|(_, error)| error)?;
    Ok(finish_moving(path, moving, aside)?.expect("the directory was made a moment ago"))
}

fn finish_moving(path: &Path, moving: &str, aside: Aside) -> io::Result<Option<PathBuf>> {
    let moving = path.join(moving);
    if !moving.try_exists()? {
        return Ok(None);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let is_of_lane = |name: &str| name.ends_with(".segment") || name.ends_with(".snapshot");
        let goes = |name: &str| {
            let is_voter = aside == Aside::All && name == VOTER_FILE;
            name.starts_with("lane-") && is_of_lane(name) || is_voter
        };
        if name.to_str().is_some_and(goes) {
            fs::rename(path.join(&name), moving.join(&name))?;
        }
    }
    for directory in [moving.as_path(), path] {
        flush_directory(directory).map_err(|(_, error)| error)?;
    }
    let aside = free_name(path, ASIDE)?;
    fs::rename(&moving, &aside)?;
    flush_directory(path).map_err(|(_, error)| error)?;
    Ok(Some(aside))
}

fn put_one_aside(path: &Path, file: &Name) -> io::Result<PathBuf> {
    let aside = free_name(path, &format!("{file}.{ASIDE}"))?;
    fs::rename(path.join(&**file), &aside)?;
    flush_directory(path).map_err(|(_, error)| error)?;
    Ok(aside)
}

/// The first name with this beginning that nothing has.
fn free_name(path: &Path, beginning: &str) -> io::Result<PathBuf> {
    let mut number: u64 = 1;
    loop {
        let name = path.join(format!("{beginning}{number}"));
        if !name.try_exists()? {
            return Ok(name);
        }
        number += 1;
    }
}
