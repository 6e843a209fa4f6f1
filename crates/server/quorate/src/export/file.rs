//! The file that is written: under another name first, so that under its own it is always whole.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use quorate_rdb::{Header, blank};

/// Bytes that are gathered before they are written.
const PIECE_BYTES: usize = 256 * 1024;

/// Where the file goes.
pub(crate) struct Place<'a> {
    path: &'a Path,
    force: bool,
}

pub(crate) struct Output {
    path: PathBuf,
    force: bool,
    /// What it is called until it is whole.
    unfinished: PathBuf,
    file: File,
    length: u64,
    is_finished: bool,
}

impl Output {
    /// Whether the file may be written.
    pub(crate) fn check(path: &Path, force: bool) -> anyhow::Result<Place<'_>> {
        let place = Place { path, force };
        place.check()?;
        Ok(place)
    }

    /// Writes what was gathered, once it is enough, and takes it away.
    pub(crate) fn write(&mut self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        if bytes.len() >= PIECE_BYTES {
            self.put(bytes)?;
        }
        Ok(())
    }

    /// Writes over a part of the file with a field that says nothing. `told` hears of each piece: what it
    /// was, what it is, and where it ends. Takes `bytes`, which were gathered, if the part is among them.
    pub(crate) fn blank(
        &mut self,
        bytes: &mut Vec<u8>,
        at: u64,
        length: u64,
        mut told: impl FnMut(&[u8], &[u8], u64),
    ) -> anyhow::Result<()> {
        let end = at + length;
        if end > self.length {
            self.put(bytes)?;
        }
        let mut after = blank(length).context("a key of more than 512 MiB has changed")?;
        let mut before = vec![0; PIECE_BYTES.min(length as usize)];
        let mut from = at;
        while from < end {
            let before = &mut before[..PIECE_BYTES.min((end - from) as usize)];
            after.resize(before.len(), 0);
            let read = self.file.read_exact_at(before, from);
            read.and_then(|()| self.file.write_all_at(&after, from))
                .with_context(|| self.unwritten())?;
            from += before.len() as u64;
            told(before, &after, from);
            after.clear();
        }
        Ok(())
    }

    fn put(&mut self, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| self.unwritten())?;
        self.length += bytes.len() as u64;
        bytes.clear();
        Ok(())
    }

    fn unwritten(&self) -> String {
        format!(
            "cannot write {}, which is removed again; {} is as it was",
            self.unfinished.display(),
            self.path.display()
        )
    }

    /// Writes the rest, and gives the file its name. Its length.
    pub(crate) fn finish(
        &mut self,
        bytes: &mut Vec<u8>,
        header: Option<&Header>,
    ) -> anyhow::Result<u64> {
        self.put(bytes)?;
        if let Some(header) = header {
            let rewritten = self.file.seek(SeekFrom::Start(0));
            rewritten
                .and_then(|_| self.file.write_all(header))
                .with_context(|| self.unwritten())?;
        }
        self.file.sync_all().with_context(|| self.unwritten())?;
        // Somebody may have made it meanwhile.
        Place { path: &self.path, force: self.force }.check()?;
        fs::rename(&self.unfinished, &self.path).with_context(|| self.unwritten())?;
        self.is_finished = true;
        let directory = directory(&self.path);
        let flushed = File::open(directory).and_then(|directory| directory.sync_all());
        flushed.with_context(|| {
            format!(
                "{} is whole, but its directory can't be flushed: its name may be gone after a loss of power",
                self.path.display()
            )
        })?;
        Ok(self.length)
    }
}

impl Place<'_> {
    fn check(&self) -> anyhow::Result<()> {
        let is_there = fs::symlink_metadata(self.path).is_ok();
        ensure!(
            self.force || !is_there,
            "{} is there already; give another name with --out, or --force to replace it",
            self.path.display()
        );
        ensure!(
            !self.path.is_dir() && self.path.file_name().is_some(),
            "--out {} is no name of a file",
            self.path.display()
        );
        Ok(())
    }

    /// Begins the file, under another name.
    pub(crate) fn create(self) -> anyhow::Result<Output> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".unfinished-{}", std::process::id()));
        let unfinished = self.path.with_file_name(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&unfinished);
        let file = file.with_context(|| format!("cannot create {}", unfinished.display()))?;
        Ok(Output {
            path: self.path.to_owned(),
            force: self.force,
            unfinished,
            file,
            length: 0,
            is_finished: false,
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_finished {
            // What is left of a file that can't be finished is of no use, and there is nobody to tell.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
