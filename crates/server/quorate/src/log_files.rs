//! `quorate log`: what is in the files of a node's directory, and whether they are sound.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quorate_durability::{Directory, DiskError, FileEntry, LogError, Name, inspect};

use crate::cli::{Log, LogCommand};
use crate::log::{complain, say};

/// Something is damaged.
const EXIT_DAMAGED: u8 = 1;
/// There is nothing to look at.
const EXIT_UNREADABLE: u8 = 2;

/// Prints what was asked for. The exit code is the verdict.
pub(crate) fn run(options: &Log) -> ExitCode {
    let (LogCommand::Inspect { path } | LogCommand::Verify { directory: path }) = &options.command;
    match look(&options.command, path) {
        Ok(Ok(0)) => ExitCode::SUCCESS,
        Ok(Ok(damaged)) => {
            complain(&format!("{}: {damaged} damaged", path.display()));
            ExitCode::from(EXIT_DAMAGED)
        }
        Ok(Err(error)) => {
            complain(&format!("error: {}: {error}", path.display()));
            ExitCode::from(EXIT_DAMAGED)
        }
        Err(error) => {
            complain(&format!("error: {}: {error}", path.display()));
            ExitCode::from(EXIT_UNREADABLE)
        }
    }
}

fn look(command: &LogCommand, path: &Path) -> io::Result<Result<u64, LogError>> {
    let mut out = |line: String| say(&line);
    if fs::metadata(path)?.is_dir() {
        let mut files = OnDisk::new(path)?;
        return Ok(match command {
            LogCommand::Inspect { .. } => inspect::list(&mut files, &mut out),
            LogCommand::Verify { .. } => inspect::verify(&mut files, &mut out),
        });
    }
    let (Some(home), Some(name), LogCommand::Inspect { .. }) =
        (path.parent(), path.file_name().and_then(|name| name.to_str()), command)
    else {
        return Err(io::Error::other("it is no directory; give the node's whole directory"));
    };
    let home = if home.as_os_str().is_empty() { Path::new(".") } else { home };
    let mut files = OnDisk::new(home)?;
    Ok(inspect::show(&mut files, &Name::from(name), &mut out))
}

/// A directory of files, which are read only.
struct OnDisk {
    home: PathBuf,
    files: Vec<FileEntry>,
    /// The file that was read last.
    open: Option<(String, File)>,
}

impl OnDisk {
    fn new(home: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(home)? {
            let entry = entry?;
            if let (Some(name), true) = (entry.file_name().to_str(), entry.file_type()?.is_file()) {
                files.push(FileEntry { name: name.into(), bytes: entry.metadata()?.len() });
            }
        }
        Ok(Self { home: home.to_owned(), files, open: None })
    }

    fn fill(&mut self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let same = self.open.take().filter(|(name, _)| name == file);
        let mut open = match same {
            Some((_, open)) => open,
            None => File::open(self.home.join(file))?,
        };
        open.seek(SeekFrom::Start(offset))?;
        open.read_exact(into)?;
        self.open = Some((file.to_owned(), open));
        Ok(())
    }
}

impl Directory for OnDisk {
    fn files(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        Ok(self.files.clone())
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        self.fill(file, offset, into).map_err(|_| DiskError::Io)
    }
}
