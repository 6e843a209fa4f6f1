//! The file that is imported.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use quorate_rdb::{Event, Reader, Step};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 * 1024;

pub(crate) struct Source {
    path: PathBuf,
    file: File,
    reader: Reader,
    total: u64,
    is_at_end: bool,
    piece: Vec<u8>,
}

impl Source {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let about =
            file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        ensure!(
            about.is_file(),
            "{} is no file; one that is read twice is needed, so a pipe won't do",
            path.display()
        );
        let total = about.len();
        let reader = Reader::new(Some(total));
        let piece = vec![0; PIECE_BYTES];
        Ok(Self { path: path.to_owned(), file, reader, total, is_at_end: false, piece })
    }

    /// The length of the file.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// How far it has been read.
    pub(crate) fn offset(&self) -> u64 {
        self.reader.offset()
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// What comes next; nothing at the end.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            let step = self.reader.next();
            match step.with_context(|| format!("cannot read {}", self.path.display()))? {
                Step::Event(event) => return Ok(Some(event)),
                Step::Done => {
                    self.is_at_end = true;
                    return Ok(None);
                }
                Step::More(_) => {
                    let read = self.file.read(&mut self.piece);
                    let read =
                        read.with_context(|| format!("cannot read {}", self.path.display()))?;
                    if read == 0 {
                        let error = self.reader.truncated();
                        return Err(error)
                            .with_context(|| format!("cannot read {}", self.path.display()));
                    }
                    self.reader.feed(&self.piece[..read]);
                }
            }
        }
    }

    /// A place to go back to.
    pub(crate) fn bookmark(&self) -> Reader {
        self.reader.bookmark()
    }

    pub(crate) fn rewind(&mut self, bookmark: &Reader) -> anyhow::Result<()> {
        let sought = self.file.seek(SeekFrom::Start(bookmark.offset()));
        sought.with_context(|| format!("cannot read {} again", self.path.display()))?;
        self.reader = bookmark.clone();
        self.is_at_end = false;
        Ok(())
    }
}
