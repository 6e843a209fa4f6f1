//! The threads that write a lane's files, so that a busy lane never waits for a disk.
//!
//! Two for each lane: one for the batches of its log, for which clients wait, and one for everything
//! else, such as a segment's zeros or a snapshot. Each does one request after the other. Its end is left
//! for the lane, which is woken if it sleeps.
//!
//! A lane that would go to sleep until a batch is durable has its own thread write it
//! ([`LaneDisk::take_kept`]): that spares waking the other one, and being woken by it. It does so only where
//! nobody's read waits for it meanwhile, as far as the last turns tell, and while the disk is fast. If the
//! disk hangs, another thread goes on with the lane ([`crate::relief`]).
//!
//! What the log writes goes past the cache of the system, if the file system allows that (`O_DIRECT`):
//! nobody reads it before the next start, and a flush then has no pages to look for. Snapshots are
//! left in the cache, from where the next process reads them.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_durability::{Completion, DiskError, Name, Request};
use quorate_node::{DiskDone, DiskOwner, DiskRequest};
use quorate_types::LaneId;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mesh::Parker;

/// Files that a thread keeps open: the segment or snapshot that it writes, and the one before.
const OPEN_MAX: usize = 2;
/// Descriptors that one lane and its threads take, with one in passing for a directory.
pub(crate) const FILES_OF_LANE: u64 = 3 * OPEN_MAX as u64 + 2;
/// A lane writes a batch itself while the last one took no longer.
const HERE_MAX: Duration = Duration::from_millis(1);
/// Bytes of zeros that are written at once.
const ZEROS: usize = 256 * 1024;
/// What is written past the cache begins and ends at multiples of so many bytes, in the file and in
/// memory.
const BLOCK: usize = 4096;

/// The disk of one lane: its machines bound what is under way.
pub(crate) struct LaneDisk {
    urgent: Sender<DiskRequest>,
    other: Sender<DiskRequest>,
    done: Receiver<DiskDone>,
    ends: Sender<DiskDone>,
    /// A batch that the lane's thread may write itself.
    kept: Option<DiskRequest>,
    /// What writes it then; not there while it does.
    here: Option<Worker>,
    path: PathBuf,
    parker: Arc<Parker>,
    /// How long the last batch took.
    took: Duration,
}

impl LaneDisk {
    /// Starts the threads. They end with this value.
    pub(crate) fn start(path: &Path, lane: LaneId, parker: &Arc<Parker>) -> io::Result<Self> {
        let (ends, done) = unbounded();
        let start = |what: &str| {
            let (sender, requests) = unbounded();
            let (worker, ends, parker) = (Worker::new(path), ends.clone(), Arc::clone(parker));
            let name = format!("{what}-{lane}");
            let run = move || worker.run(&requests, &ends, &parker);
            std::thread::Builder::new().name(name).spawn(run)?;
            io::Result::Ok(sender)
        };
        let (urgent, other) = (start("log")?, start("files")?);
        let (path, parker) = (path.to_owned(), Arc::clone(parker));
        let (kept, here, took) = (None, None, Duration::MAX);
        Ok(Self { urgent, other, done, ends, kept, here, path, parker, took })
    }

    pub(crate) fn submit(&self, request: DiskRequest) {
        let thread = if request.is_urgent() { &self.urgent } else { &self.other };
        thread.send(request).expect("the threads of a disk live as long as its lane");
    }

    /// Takes a request of a lane that decides before it sleeps who writes its batches. Follow it with
    /// [`LaneDisk::take_kept`] or [`LaneDisk::hand_over`].
    pub(crate) fn keep(&mut self, request: DiskRequest) {
        let is_batch = request.owner == DiskOwner::Log && request.is_urgent();
        if is_batch && self.took <= HERE_MAX {
            debug_assert!(self.kept.is_none(), "one batch is under way at a time");
            self.kept = Some(request);
        } else {
            self.submit(request);
        }
    }

    /// Whether a batch waits for the decision.
    pub(crate) fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    /// Has the thread write the batch that was kept.
    pub(crate) fn hand_over(&mut self) {
        if let Some(request) = self.kept.take() {
            self.submit(request);
        }
    }

    /// The batch that was kept, to be written without the lane.
    pub(crate) fn take_kept(&mut self) -> Option<KeptBatch> {
        let request = self.kept.take()?;
        let worker = self.here.take().unwrap_or_else(|| Worker::new(&self.path));
        let (ends, parker) = (self.ends.clone(), Arc::clone(&self.parker));
        Some(KeptBatch { request, worker, ends, parker })
    }

    /// What has written a batch will write the next one.
    pub(crate) fn give_back(&mut self, worker: Worker) {
        self.here = Some(worker);
    }

    /// The end of a request, if one has come.
    pub(crate) fn take(&mut self) -> Option<DiskDone> {
        let done = self.done.try_recv().ok()?;
        Some(self.noted(done))
    }

    fn noted(&mut self, done: DiskDone) -> DiskDone {
        if done.owner == DiskOwner::Log && !done.completion.bytes.is_empty() {
            self.took = done.took;
        }
        done
    }

    /// Waits for the end of a request.
    pub(crate) fn wait(&self) -> DiskDone {
        self.done.recv().expect("the threads of a disk live as long as its lane")
    }

    /// The same, for so long.
    pub(crate) fn wait_for(&self, span: Duration) -> Option<DiskDone> {
        self.done.recv_timeout(span).ok()
    }

    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }
}

/// A batch that a lane's own thread writes.
pub(crate) struct KeptBatch {
    request: DiskRequest,
    worker: Worker,
    ends: Sender<DiskDone>,
    parker: Arc<Parker>,
}

impl KeptBatch {
    /// Writes and flushes it, and waits for that. The end of it is left for the lane, wherever that runs
    /// by now.
    pub(crate) fn write(self) -> Worker {
        let Self { request, mut worker, ends, parker } = self;
        let done = worker.perform(request);
        // A lane that has ended waits for nothing.
        let _ = ends.send(done);
        parker.unpark();
        worker
    }
}

/// What writes to files: a thread, or a lane's own.
pub(crate) struct Worker {
    path: PathBuf,
    /// The newest last.
    open: VecDeque<Open>,
    blocks: Blocks,
    /// Whether the request in hand is the log's.
    is_of_log: bool,
}

impl Worker {
    fn new(path: &Path) -> Self {
        let (path, blocks) = (path.to_owned(), Blocks::default());
        Self { path, open: VecDeque::new(), blocks, is_of_log: false }
    }

    fn run(
        mut self,
        requests: &Receiver<DiskRequest>,
        ends: &Sender<DiskDone>,
        parker: &Arc<Parker>,
    ) {
        for request in requests {
            let done = self.perform(request);
            // A lane that has ended waits for nothing.
            let _ = ends.send(done);
            parker.unpark();
        }
    }

    fn perform(&mut self, request: DiskRequest) -> DiskDone {
        let DiskRequest { owner, ticket, mut request } = request;
        let begun = Instant::now();
        self.is_of_log = owner == DiskOwner::Log;
        let (result, error) = match self.carry_out(&request) {
            Ok(()) => (Ok(()), String::new()),
            Err((why, error)) => (Err(why), self.tell(&request, &error)),
        };
        let bytes = match &mut request {
            Request::Write { bytes, .. } => std::mem::take(bytes),
            _ => Vec::new(),
        };
        let completion = Completion { ticket, result, bytes };
        DiskDone { owner, completion, took: begun.elapsed(), error }
    }

    fn carry_out(&mut self, request: &Request) -> Result<(), (DiskError, io::Error)> {
        match request {
            Request::Create { file } => {
                self.forget(file);
                let path = self.path.join(&**file);
                File::create(path).map_err(classed)?;
                Ok(())
            }
            Request::Zero { file, offset, bytes, flush } => {
                let (mut at, end) = (*offset, offset + u64::from(*bytes));
                let zeros = vec![0; ZEROS];
                while at < end {
                    let length = (end - at).min(ZEROS as u64);
                    self.write(file, at, &zeros[..length as usize])?;
                    at += length;
                }
                self.flush(*flush)
            }
            Request::Write { file, offset, bytes, flush } => {
                self.write(file, *offset, bytes)?;
                self.flush(*flush)
            }
            Request::Remove { file } => {
                self.forget(file);
                fs::remove_file(self.path.join(&**file)).map_err(classed)
            }
            Request::FlushDirectory => flush_directory(&self.path),
        }
    }

    /// Writes all of the bytes, those of the log past the cache if they are whole blocks.
    fn write(&mut self, name: &Name, at: u64, bytes: &[u8]) -> Result<(), (DiskError, io::Error)> {
        let is_whole = at.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK);
        self.open(name, is_whole && self.is_of_log).map_err(classed)?;
        let Self { open, blocks, .. } = self;
        let open = open.back().expect("it was opened");
        if !open.is_direct {
            return open.file.write_all_at(bytes, at).map_err(classed);
        }
        match open.file.write_all_at(blocks.of(bytes), at) {
            // The device has larger blocks. Nothing of this part was written.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.open(name, false).map_err(classed)?;
                let open = self.open.back().expect("it was opened");
                open.file.write_all_at(bytes, at).map_err(classed)
            }
            result => result.map_err(classed),
        }
    }

    /// Flushes the file that was written last.
    fn flush(&self, wanted: bool) -> Result<(), (DiskError, io::Error)> {
        if wanted {
            let open = self.open.back().expect("it was written");
            open.file.sync_data().map_err(|error| (DiskError::Flush, error))?;
        }
        Ok(())
    }

    /// Makes a file the newest that is open.
    fn open(&mut self, name: &Name, wants_direct: bool) -> io::Result<()> {
        let found = self.open.iter().position(|open| open.name == *name);
        if let Some(open) = found.and_then(|at| self.open.remove(at))
            && (wants_direct || !open.is_direct)
        {
            self.open.push_back(open);
            return Ok(());
        }
        while self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        let path = self.path.join(&**name);
        let opened = Open::new(name, &path, wants_direct)?;
        self.open.push_back(opened);
        Ok(())
    }

    fn forget(&mut self, name: &Name) {
        self.open.retain(|open| open.name != *name);
    }

    fn tell(&self, request: &Request, error: &io::Error) -> String {
        let (what, file) = match request {
            Request::Create { file } => ("creating", &**file),
            Request::Zero { file, .. } | Request::Write { file, .. } => ("writing", &**file),
            Request::Remove { file } => ("removing", &**file),
            Request::FlushDirectory => ("flushing", ""),
        };
        format!("{what} {}: {error}", self.path.join(file).display())
    }
}

/// A file that is open.
struct Open {
    name: Name,
    file: File,
    /// Whether what is written goes past the cache of the system.
    is_direct: bool,
}

impl Open {
    fn new(name: &Name, path: &Path, wants_direct: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true);
        if wants_direct {
            let direct = OFlags::DIRECT.bits() as i32;
            match options.clone().custom_flags(direct).open(path) {
                Ok(file) => return Ok(Self { name: name.clone(), file, is_direct: true }),
                // The file system has no such thing.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        let file = options.open(path)?;
        Ok(Self { name: name.clone(), file, is_direct: false })
    }
}

/// Memory in which bytes lie as a write past the cache wants them.
#[derive(Default)]
struct Blocks {
    memory: Vec<u8>,
}

impl Blocks {
    /// The same bytes, where they are if that is at the beginning of a block.
    fn of<'a>(&'a mut self, bytes: &'a [u8]) -> &'a [u8] {
        if bytes.as_ptr().align_offset(BLOCK) == 0 {
            return bytes;
        }
        if self.memory.len() < bytes.len() + BLOCK {
            self.memory = vec![0; bytes.len() + BLOCK];
        }
        let start = self.memory.as_ptr().align_offset(BLOCK);
        let blocks = &mut self.memory[start..start + bytes.len()];
        blocks.copy_from_slice(bytes);
        blocks
    }
}

/// Makes the names of files durable.
pub(crate) fn flush_directory(path: &Path) -> Result<(), (DiskError, io::Error)> {
    let directory = File::open(path).map_err(classed)?;
    directory.sync_all().map_err(|error| (DiskError::Flush, error))
}

/// What an error means: no room, or a disk that fails.
fn classed(error: io::Error) -> (DiskError, io::Error) {
    let no_room = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
    let is_full = no_room.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    (if is_full { DiskError::Full } else { DiskError::Io }, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_durability::Ticket;

    #[test]
    fn errors_are_told_apart() {
        let class = |errno: Errno| classed(io::Error::from_raw_os_error(errno.raw_os_error())).0;
        assert_eq!(class(Errno::NOSPC), DiskError::Full);
        assert_eq!(class(Errno::DQUOT), DiskError::Full);
        assert_eq!(class(Errno::IO), DiskError::Io);
        assert_eq!(class(Errno::ROFS), DiskError::Io);
    }

    /// What the threads answer to these requests of a directory, one after the other.
    fn answers(path: &Path, requests: Vec<Request>) -> Vec<DiskDone> {
        let poll = mio::Poll::new().unwrap();
        let parker = Arc::new(crate::mesh::parker(poll.registry(), mio::Token(0)).unwrap());
        let disk = LaneDisk::start(path, LaneId(0), &parker).unwrap();
        let numbered = (1..).map(Ticket).zip(requests);
        numbered
            .map(|(ticket, request)| {
                disk.submit(DiskRequest { owner: DiskOwner::Log, ticket, request });
                disk.wait()
            })
            .collect()
    }

    #[test]
    fn requests_are_carried_out_and_failures_name_the_file() {
        let path = std::env::temp_dir().join(format!("quorate-disk-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let (file, flush) = (Name::from("a.segment"), true);
        let write = |file: &str, offset| Request::Write {
            file: file.into(),
            offset,
            bytes: b"batch".to_vec(),
            flush,
        };
        // A device without room, and one that can't be flushed.
        std::os::unix::fs::symlink("/dev/full", path.join("full.segment")).unwrap();
        std::os::unix::fs::symlink("/dev/null", path.join("null.segment")).unwrap();
        let ends = answers(
            &path,
            vec![
                Request::Create { file: file.clone() },
                Request::Zero { file: file.clone(), offset: 0, bytes: 300_000, flush },
                write("a.segment", 4096),
                Request::FlushDirectory,
                write("full.segment", 4096),
                write("null.segment", 4096),
                write("missing.segment", 4096),
            ],
        );
        let results: Vec<_> = ends.iter().map(|end| end.completion.result).collect();
        let (ok, full) = (Ok(()), Err(DiskError::Full));
        let (io, flush) = (Err(DiskError::Io), Err(DiskError::Flush));
        assert_eq!(results, [ok, ok, ok, ok, full, flush, io]);
        assert!(ends[4].error.contains("full.segment: No space left"), "{}", ends[4].error);
        assert_eq!(ends[4].completion.bytes, b"batch");
        let bytes = fs::read(path.join("a.segment")).unwrap();
        assert_eq!((bytes.len(), &bytes[4096..4101]), (300_000, &b"batch"[..]));
        fs::remove_dir_all(&path).unwrap();
    }

    /// Whole blocks and others, wherever they lie in memory, in one file in turn.
    #[test]
    fn what_goes_past_the_cache_is_what_was_asked_for() {
        let path = std::env::temp_dir().join(format!("quorate-direct-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let file = Name::from("b.segment");
        let write = |offset: u64, bytes: &[u8]| Request::Write {
            file: file.clone(),
            offset,
            bytes: bytes.to_vec(),
            flush: true,
        };
        let content: Vec<u8> = (0..5 * BLOCK).map(|at| (at / 7) as u8).collect();
        let zero = Request::Zero { file: file.clone(), offset: 0, bytes: 600_064, flush: true };
        let ends = answers(
            &path,
            vec![
                Request::Create { file: file.clone() },
                zero,
                write(2 * BLOCK as u64, &content),
                write(9 * BLOCK as u64 + 5, &content[..100]),
                write(7 * BLOCK as u64, &content[..BLOCK]),
            ],
        );
        assert!(ends.iter().all(|end| end.completion.result.is_ok()), "{ends:?}");
        let mut expected = vec![0; 600_064];
        expected[2 * BLOCK..7 * BLOCK].copy_from_slice(&content);
        expected[7 * BLOCK..8 * BLOCK].copy_from_slice(&content[..BLOCK]);
        expected[9 * BLOCK + 5..][..100].copy_from_slice(&content[..100]);
        assert!(fs::read(path.join(&*file)).unwrap() == expected);
        fs::remove_dir_all(&path).unwrap();
    }

    /// The lane writes itself what it has kept, or the thread does; the end of it is the same.
    #[test]
    fn a_batch_that_was_kept_is_written_by_the_lane_or_by_the_thread() {
        let path = std::env::temp_dir().join(format!("quorate-kept-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", path.join("null.segment")).unwrap();
        let poll = mio::Poll::new().unwrap();
        let parker = Arc::new(crate::mesh::parker(poll.registry(), mio::Token(0)).unwrap());
        let mut disk = LaneDisk::start(&path, LaneId(0), &parker).unwrap();
        let request = |file: &str, request: fn(Name) -> Request| DiskRequest {
            owner: DiskOwner::Log,
            ticket: Ticket(1),
            request: request(file.into()),
        };
        let batch = |file: &str| {
            request(file, |file| Request::Write {
                file,
                offset: 4096,
                bytes: vec![7; BLOCK],
                flush: true,
            })
        };
        disk.keep(request("a.segment", |file| Request::Create { file }));
        assert!(!disk.keeps(), "only batches are kept");
        assert_eq!(disk.wait().completion.result, Ok(()));
        disk.keep(batch("a.segment"));
        assert!(!disk.keeps(), "nobody knows how fast the disk is");
        let first = disk.wait();
        disk.noted(DiskDone { took: HERE_MAX, ..first.clone() });
        disk.keep(batch("a.segment"));
        assert!(disk.keeps() && !disk.has_done());
        let worker = disk.take_kept().expect("it was kept").write();
        disk.give_back(worker);
        assert!(disk.has_done() && !disk.keeps());
        assert_eq!(disk.take().expect("it was written").completion, first.completion);
        assert!(disk.take_kept().is_none(), "there is nothing to write");
        disk.noted(DiskDone { took: HERE_MAX, ..first.clone() });
        disk.keep(batch("a.segment"));
        disk.hand_over();
        assert_eq!((disk.keeps(), disk.wait().completion), (false, first.completion.clone()));
        disk.keep(batch("null.segment"));
        disk.take_kept().expect("it was kept").write();
        let failed = disk.take().expect("it was tried");
        assert_eq!(failed.completion.result, Err(DiskError::Flush));
        assert!(failed.error.contains("null.segment"), "{}", failed.error);
        disk.noted(DiskDone { took: HERE_MAX + Duration::from_nanos(1), ..first });
        disk.keep(batch("a.segment"));
        assert!(!disk.keeps(), "the disk is slow");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn blocks_begin_where_a_write_past_the_cache_wants_them() {
        let mut blocks = Blocks::default();
        let bytes: Vec<u8> = (0..3 * BLOCK + 1).map(|at| (at / 3) as u8).collect();
        for start in [0, 1] {
            let part = &bytes[start..start + 2 * BLOCK];
            let aligned = blocks.of(part);
            assert_eq!(aligned.as_ptr().align_offset(BLOCK), 0);
            assert_eq!(aligned, part);
        }
    }
}
