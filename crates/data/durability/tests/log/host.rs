//! A log alone, for tests that play one case.

use quorate_disk::{Device, DeviceFaults, Files};
use quorate_durability::{
    Completion, Directory as _, Disk, Found, Identity, Log, LogError, Name, Options, Reader,
    Request, Start, Ticket,
};
use quorate_types::{KeyspaceId, Lsn};

use crate::world::{ME, SMALL};

pub(crate) const SECTOR: usize = 4096;

/// Keeps requests until the test answers them.
#[derive(Default)]
pub(crate) struct Script(pub(crate) Vec<(Ticket, Request)>);

impl Disk for Script {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.0.push((ticket, request));
    }
}

impl Script {
    /// The oldest request, and its good end.
    pub(crate) fn done(&mut self) -> (Request, Completion) {
        let (ticket, request) = self.0.remove(0);
        let bytes = match &request {
            Request::Write { bytes, .. } => bytes.clone(),
            _ => Vec::new(),
        };
        (request, Completion { ticket, result: Ok(()), bytes })
    }
}

pub(crate) fn no_files() -> Files {
    Files::new(Device::new(4 << 20, 512, DeviceFaults::default(), 1), 1)
}

pub(crate) fn nothing_found(files: &mut Files) -> Found {
    read(files, ME, Start::After(Lsn::START)).expect("an empty log").1
}

/// Everything that a log holds, and what it goes on behind.
pub(crate) type Contents = (Vec<(Lsn, Vec<u8>)>, Found);

pub(crate) fn read(files: &mut Files, me: Identity, start: Start) -> Result<Contents, LogError> {
    let mut reader = Reader::open(files, me, start)?;
    let mut entries = Vec::new();
    while let Some((place, entry)) = reader.next(files)? {
        assert_eq!((entry.kind, entry.keyspace), (7, KeyspaceId(3)));
        entries.push((place, entry.bytes.to_vec()));
    }
    Ok((entries, reader.finish(files, Lsn::START)?))
}

pub(crate) struct Host {
    pub(crate) files: Files,
    pub(crate) log: Log,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with(SMALL)
    }

    pub(crate) fn with(options: Options) -> Self {
        let mut files = no_files();
        let log = Log::resume(nothing_found(&mut files), options, 11);
        Self { files, log }
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Lsn {
        self.log.append(7, KeyspaceId(3), |out| out.extend_from_slice(bytes))
    }

    /// Writes until the disk is idle. Returns how far the log is durable.
    pub(crate) fn settle(&mut self) -> Lsn {
        self.log.write(&mut self.files);
        while !self.files.is_idle() {
            if let Some(completion) = self.files.step() {
                self.log.complete(completion, &mut self.files);
            }
        }
        self.log.durable()
    }

    /// A batch with one entry.
    pub(crate) fn batch(&mut self, bytes: &[u8]) -> Lsn {
        self.append(bytes);
        self.settle()
    }

    /// Nothing has come for a while.
    pub(crate) fn repeat_tail(&mut self) {
        self.log.repeat_tail(&mut self.files);
        self.settle();
    }

    pub(crate) fn has(&mut self, file: &str) -> bool {
        let mut files = self.files.files().expect("a directory").into_iter();
        files.any(|it| &*it.name == file)
    }

    pub(crate) fn entries(&mut self) -> Result<Vec<(Lsn, Vec<u8>)>, LogError> {
        read(&mut self.files, ME, Start::After(Lsn::START)).map(|(entries, _)| entries)
    }

    /// The process starts again.
    pub(crate) fn restart(&mut self) {
        let (_, found) = read(&mut self.files, ME, Start::After(Lsn::START)).expect("a sound log");
        self.log = Log::resume(found, SMALL, 12);
        self.settle();
    }
}

pub(crate) fn segment(slot: u64) -> Name {
    format!("lane-0001-{slot:08}.segment").into()
}

/// Where the batches of a small log begin whose entries are short.
pub(crate) fn place(batch: usize) -> u64 {
    (SECTOR * (batch + 1)) as u64
}
