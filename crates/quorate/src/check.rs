//! `quorate check`.

use std::process::ExitCode;

use quorate_check::{EXIT_BAD_FILE, check_history, read_history_file};

use crate::cli::Check;

/// Judges a history file and prints the report. The exit code is the verdict.
pub(crate) fn run(options: &Check) -> ExitCode {
    match read_history_file(&options.file) {
        Ok(history) => {
            let report = check_history(&history);
            println!("{report}");
            ExitCode::from(report.verdict().exit_code())
        }
        Err(error) => {
            eprintln!("error: {}: {error}", options.file.display());
            ExitCode::from(EXIT_BAD_FILE)
        }
    }
}
