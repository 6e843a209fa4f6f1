//! What the log asks of a disk.

use std::sync::Arc;

/// The name of a file in the directory of the log.
pub type Name = Arc<str>;

/// Names a request to the machine that made it. Each machine counts its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What a machine asks for. Requests that are under way at once may end in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// An empty file of this name in place of any that has it.
    Create {
        /// The file.
        file: Name,
    },
    /// Writes zeros, really: no hole, no extent that is merely reserved. Makes the file longer.
    Zero {
        /// The file.
        file: Name,
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u32,
        /// Whether a flush of the file follows (fdatasync).
        flush: bool,
    },
    /// Writes all of the bytes; what takes fewer is called again by the driver.
    Write {
        /// The file.
        file: Name,
        /// The first byte.
        offset: u64,
        /// What is written; comes back in the completion, so that its memory can be used again.
        bytes: Vec<u8>,
        /// Whether a flush of the file follows (fdatasync).
        flush: bool,
    },
    /// Takes the file away.
    Remove {
        /// The file.
        file: Name,
    },
    /// Makes names of files durable (fsync of the directory).
    FlushDirectory,
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Which.
    pub ticket: Ticket,
    /// Whether all of it was done.
    pub result: Result<(), DiskError>,
    /// The bytes of a [`Request::Write`], also of one that failed; of the others none.
    pub bytes: Vec<u8>,
}

/// Why a disk did not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// There is no room (ENOSPC, EDQUOT), and no flush has been tried. The request may be made again.
    Full,
    /// Reading, writing or a change of the directory failed (EIO).
    Io,
    /// A flush failed, for whatever reason, ENOSPC included. What it should have covered is anywhere,
    /// and no later flush can tell.
    Flush,
}

/// Carries out requests, later: on a thread, or in a simulation.
pub trait Disk {
    /// Takes a request.
    fn submit(&mut self, ticket: Ticket, request: Request);
}

/// A file of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileEntry {
    /// Its name.
    pub name: Name,
    /// Its length.
    pub bytes: u64,
}

/// Reads, at once: before a lane serves, or in a tool.
pub trait Directory {
    /// The files of the directory, in any order.
    ///
    /// # Errors
    /// [`DiskError::Io`] if the directory can't be read.
    fn files(&mut self) -> Result<Vec<FileEntry>, DiskError>;

    /// Fills `into` from the bytes of a file at `offset`.
    ///
    /// # Errors
    /// [`DiskError::Io`] if the device fails or the file ends before.
    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError>;
}
