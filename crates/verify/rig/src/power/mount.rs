//! A volume under real processes, by FUSE.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use super::volume::{Facts, Refusal, Volume};

/// How long a flush takes at most: long enough that the power goes while some are under way.
const FLUSH_MAX_US: u64 = 2000;

/// Requests that are carried out at once.
const THREADS: usize = 4;

/// How long the kernel may believe what it was told of files: not at all, for the power takes some.
const BELIEF: Duration = Duration::ZERO;

/// A directory that loses what was not flushed when its power goes.
pub(crate) struct Mount {
    volume: Arc<Mutex<Volume>>,
    /// How much longer a flush takes now, in milliseconds.
    delay_ms: Arc<AtomicU64>,
    /// Unmounts when it is dropped.
    _session: BackgroundSession,
}

impl Mount {
    /// Mounts an empty volume there.
    pub(crate) fn new(at: &Path, seed: u64) -> anyhow::Result<Self> {
        std::fs::create_dir_all(at)?;
        let volume = Arc::new(Mutex::new(Volume::new(seed)));
        let delay_ms = Arc::new(AtomicU64::new(0));
        let files = Files {
            volume: Arc::clone(&volume),
            delay_ms: Arc::clone(&delay_ms),
            flushes: AtomicU64::new(seed),
        };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(files, at, &config).with_context(|| {
            format!("cannot mount {}: power cuts need FUSE (/dev/fuse)", at.display())
        })?;
        Ok(Self { volume, delay_ms, _session: session })
    }

    /// Each flush takes so many milliseconds longer from now on.
    pub(crate) fn delay_flushes(&self, millis: u64) {
        self.delay_ms.store(millis, Relaxed);
    }

    /// The files.
    pub(crate) fn volume(&self) -> MutexGuard<'_, Volume> {
        lock(&self.volume)
    }
}

fn lock(volume: &Mutex<Volume>) -> MutexGuard<'_, Volume> {
    volume.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Files {
    volume: Arc<Mutex<Volume>>,
    delay_ms: Arc<AtomicU64>,
    flushes: AtomicU64,
}

impl Files {
    fn volume(&self) -> MutexGuard<'_, Volume> {
        lock(&self.volume)
    }
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Broken => Self::EIO,
            Refusal::Full => Self::ENOSPC,
            Refusal::Missing => Self::ENOENT,
            Refusal::Exists => Self::EEXIST,
            Refusal::NotEmpty => Self::ENOTEMPTY,
            Refusal::IsDirectory => Self::EISDIR,
            Refusal::NotDirectory => Self::ENOTDIR,
        }
    }
}

fn attributes(facts: Facts) -> FileAttr {
    let (kind, perm) = if facts.is_directory {
        (FileType::Directory, 0o755)
    } else {
        (FileType::RegularFile, 0o644)
    };
    let then = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(facts.number),
        size: facts.length as u64,
        blocks: facts.length.div_ceil(512) as u64,
        atime: then,
        mtime: then,
        ctime: then,
        crtime: then,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// No cache of the kernel lies between a process and its files: the power takes what is in there, too.
const UNCACHED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO;
const HANDLE: FileHandle = FileHandle(0);

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut volume = self.volume();
        let found = volume.find(parent.0, name).and_then(|number| volume.facts(number));
        entry(found, reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attr(self.volume().facts(ino.0), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut volume = self.volume();
        let resized = size.map_or(Ok(()), |size| volume.resize(ino.0, size as usize));
        attr(resized.and_then(|()| volume.facts(ino.0)), reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mut volume = self.volume();
        let made = volume.create(parent.0, name, true).and_then(|number| volume.facts(number));
        entry(made, reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut volume = self.volume();
        match volume.create(parent.0, name, false).and_then(|number| volume.facts(number)) {
            Ok(facts) => {
                reply.created(&BELIEF, &attributes(facts), Generation(0), HANDLE, UNCACHED);
            }
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.volume().remove(parent.0, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.volume().remove(parent.0, name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(self.volume().rename((parent.0, name), (newparent.0, newname)), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.volume().facts(ino.0) {
            Ok(_) => reply.opened(HANDLE, UNCACHED),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.volume().read(ino.0, offset as usize, size as usize) {
            Ok(bytes) => reply.data(bytes),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.volume().write(ino.0, offset as usize, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(refusal) => reply.error(refusal.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A closed file is not a flushed one.
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let begun = self.volume().begin_flush(ino.0);
        // Any spread will do: it decides how long a flush takes, not what becomes of it.
        let turn = self.flushes.fetch_add(1, Relaxed);
        let usual = Duration::from_micros(turn.wrapping_mul(7919) % FLUSH_MAX_US);
        std::thread::sleep(usual + Duration::from_millis(self.delay_ms.load(Relaxed)));
        empty(begun.and_then(|flush| self.volume().end_flush(flush)), reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut volume = self.volume();
        let names = match volume.list(ino.0) {
            Ok(names) => names,
            Err(refusal) => return reply.error(refusal.into()),
        };
        for (next, (name, number)) in (1..).zip(names).skip(offset as usize) {
            let kind = match volume.facts(number) {
                Ok(Facts { is_directory: true, .. }) => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.volume().flush_names(ino.0), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // As much room as nobody here needs.
        let (blocks, files, block, name) = (1 << 24, 1 << 20, 4096, 255);
        reply.statfs(blocks, blocks, blocks, files, files, block, name, block);
    }
}

fn entry(result: Result<Facts, Refusal>, reply: ReplyEntry) {
    match result {
        Ok(facts) => reply.entry(&BELIEF, &attributes(facts), Generation(0)),
        Err(refusal) => reply.error(refusal.into()),
    }
}

fn attr(result: Result<Facts, Refusal>, reply: ReplyAttr) {
    match result {
        Ok(facts) => reply.attr(&BELIEF, &attributes(facts)),
        Err(refusal) => reply.error(refusal.into()),
    }
}

fn empty(result: Result<(), Refusal>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(refusal) => reply.error(refusal.into()),
    }
}
