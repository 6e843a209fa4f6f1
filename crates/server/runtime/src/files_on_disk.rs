//! A directory of files of the system, as recovery and tools read it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_durability::{Directory, DiskError, FileEntry};

/// The files of a directory, as they were when it was opened.
#[derive(Debug)]
pub struct FileDirectory {
    path: PathBuf,
    files: Vec<FileEntry>,
    /// The file that was read last.
    open: Option<(String, File)>,
}

impl FileDirectory {
    /// Lists a directory.
    ///
    /// # Errors
    /// If it can't be listed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            // A link counts as what it leads to.
            let facts = fs::metadata(entry.path());
            if let (Some(name), Ok(facts)) = (entry.file_name().to_str(), facts)
                && !facts.is_dir()
            {
                files.push(FileEntry { name: name.into(), bytes: facts.len() });
            }
        }
        Ok(Self { path: path.to_owned(), files, open: None })
    }

    fn fill(&mut self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let same = self.open.take().filter(|(name, _)| name == file);
        let (name, open) = match same {
            Some(same) => same,
            None => (file.to_owned(), File::open(self.path.join(file))?),
        };
        open.read_exact_at(into, offset)?;
        self.open = Some((name, open));
        Ok(())
    }
}

impl Directory for FileDirectory {
    fn files(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        Ok(self.files.clone())
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        self.fill(file, offset, into).map_err(|_| DiskError::Io)
    }
}
