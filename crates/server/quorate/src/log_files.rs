//! `quorate log`: what is in the files of a node's directory, and whether they are sound.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use quorate_durability::{LogError, Name, inspect};
use quorate_runtime::FileDirectory;

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
        let mut files = FileDirectory::open(path)?;
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
    let mut files = FileDirectory::open(home)?;
    Ok(inspect::show(&mut files, &Name::from(name), &mut out))
}
