//! The threads that write a lane's files, so that a lane never waits for a disk.
//!
//! Two for each lane: one for the batches of its log, for which clients wait, and one for everything
//! else, such as a segment's zeros or a snapshot. Each does one request after the other. Its end is left
//! for the lane, which is woken if it sleeps.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_durability::{Completion, DiskError, Name, Request};
use quorate_node::{DiskDone, DiskRequest};
use quorate_types::LaneId;
use rustix::io::Errno;

use crate::mesh::Parker;

/// Files that a thread keeps open: the segment or snapshot that it writes, and the one before.
const OPEN_MAX: usize = 2;
/// Descriptors that the threads of one lane take, with one in passing for a directory.
pub(crate) const FILES_OF_LANE: u64 = 2 * OPEN_MAX as u64 + 2;
/// Bytes of zeros that are written at once.
const ZEROS: usize = 256 * 1024;

/// The disk of one lane: its machines bound what is under way.
pub(crate) struct LaneDisk {
    urgent: Sender<DiskRequest>,
    other: Sender<DiskRequest>,
    done: Receiver<DiskDone>,
}

impl LaneDisk {
    /// Starts the threads. They end with this value.
    pub(crate) fn start(path: &Path, lane: LaneId, parker: &Arc<Parker>) -> io::Result<Self> {
        let (ends, done) = unbounded();
        let start = |what: &str| {
            let (sender, requests) = unbounded();
            let worker = Worker {
                path: path.to_owned(),
                open: VecDeque::new(),
                ends: ends.clone(),
                parker: Arc::clone(parker),
            };
            let name = format!("{what}-{lane}");
            std::thread::Builder::new().name(name).spawn(move || worker.run(&requests))?;
            io::Result::Ok(sender)
        };
        Ok(Self { urgent: start("log")?, other: start("files")?, done })
    }

    pub(crate) fn submit(&self, request: DiskRequest) {
        let thread = if request.is_urgent() { &self.urgent } else { &self.other };
        thread.send(request).expect("the threads of a disk live as long as its lane");
    }

    /// The end of a request, if one has come.
    pub(crate) fn take(&self) -> Option<DiskDone> {
        self.done.try_recv().ok()
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

/// One thread.
struct Worker {
    path: PathBuf,
    /// The newest last.
    open: VecDeque<(Name, File)>,
    ends: Sender<DiskDone>,
    parker: Arc<Parker>,
}

impl Worker {
    fn run(mut self, requests: &Receiver<DiskRequest>) {
        for DiskRequest { owner, ticket, mut request } in requests {
            let begun = Instant::now();
            let (result, error) = match self.carry_out(&request) {
                Ok(()) => (Ok(()), String::new()),
                Err((why, error)) => (Err(why), self.tell(&request, &error)),
            };
            let bytes = match &mut request {
                Request::Write { bytes, .. } => std::mem::take(bytes),
                _ => Vec::new(),
            };
            let completion = Completion { ticket, result, bytes };
            let took = begun.elapsed();
            // A lane that has ended waits for nothing.
            let _ = self.ends.send(DiskDone { owner, completion, took, error });
            self.parker.unpark();
        }
    }

    fn carry_out(&mut self, request: &Request) -> Result<(), (DiskError, io::Error)> {
        match request {
            Request::Create { file } => {
                self.forget(file);
                let path = self.path.join(&**file);
                let created = OpenOptions::new().write(true).create(true).truncate(true).open(path);
                let created = created.map_err(classed)?;
                self.keep(file, created);
                Ok(())
            }
            Request::Zero { file, offset, bytes, flush } => {
                let (mut at, end) = (*offset, offset + u64::from(*bytes));
                let zeros = vec![0; ZEROS];
                let open = self.file(file)?;
                while at < end {
                    let length = (end - at).min(ZEROS as u64);
                    open.write_all_at(&zeros[..length as usize], at).map_err(classed)?;
                    at += length;
                }
                flushed(open, *flush)
            }
            Request::Write { file, offset, bytes, flush } => {
                let open = self.file(file)?;
                open.write_all_at(bytes, *offset).map_err(classed)?;
                flushed(open, *flush)
            }
            Request::Remove { file } => {
                self.forget(file);
                fs::remove_file(self.path.join(&**file)).map_err(classed)
            }
            Request::FlushDirectory => flush_directory(&self.path),
        }
    }

    fn file(&mut self, name: &Name) -> Result<&File, (DiskError, io::Error)> {
        if !self.open.iter().any(|(open, _)| open == name) {
            let path = self.path.join(&**name);
            let file = OpenOptions::new().write(true).open(path).map_err(classed)?;
            self.keep(name, file);
        }
        let found = self.open.iter().find(|(open, _)| open == name);
        Ok(&found.expect("it was opened").1)
    }

    fn keep(&mut self, name: &Name, file: File) {
        if self.open.len() == OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((name.clone(), file));
    }

    fn forget(&mut self, name: &Name) {
        self.open.retain(|(open, _)| open != name);
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

fn flushed(file: &File, wanted: bool) -> Result<(), (DiskError, io::Error)> {
    if wanted {
        file.sync_data().map_err(|error| (DiskError::Flush, error))?;
    }
    Ok(())
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
    use quorate_durability::Ticket;
    use quorate_node::DiskOwner;

    use super::*;

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
}
