//! `quorate check`.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use quorate_check::{
    EXIT_BAD_FILE, ElleWorkload, History, Model, TxnHistory, Verdict, check_history,
    check_txn_history, read_txn_history_file, write_elle,
};

use crate::cli::{self, Check};

/// Judges a history file and prints the report. The exit code is the verdict.
pub(crate) fn run(options: &Check) -> ExitCode {
    match read_txn_history_file(&options.file) {
        Ok(history) if let Some(workload) = options.elle => export(&history, workload),
        Ok(history) => {
            let verdict = match (options.model, history.transactions.is_empty()) {
                (None, true) => judge_keys(history),
                (None | Some(cli::Model::Strict), _) => {
                    judge_transactions(&history, Model::StrictSerializable)
                }
                (Some(cli::Model::Serializable), _) => {
                    judge_transactions(&history, Model::Serializable)
                }
            };
            ExitCode::from(verdict.exit_code())
        }
        Err(error) => {
            eprintln!("error: {}: {error}", options.file.display());
            ExitCode::from(EXIT_BAD_FILE)
        }
    }
}

/// Prints the history for others to judge.
fn export(history: &TxnHistory, workload: cli::Elle) -> ExitCode {
    let workload = match workload {
        cli::Elle::ListAppend => ElleWorkload::ListAppend,
        cli::Elle::RwRegister => ElleWorkload::RwRegister,
    };
    match write_elle(history, workload, BufWriter::new(io::stdout().lock())) {
        Ok(summary) => {
            let name = workload.name();
            eprintln!("{} transactions for elle-cli --model {name}", summary.transactions);
            for (key, why) in summary.left_out {
                eprintln!("without key {key}: {why}");
            }
            ExitCode::SUCCESS
        }
        // The reader has had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_BAD_FILE)
        }
    }
}

/// Each key on its own.
fn judge_keys(history: TxnHistory) -> Verdict {
    let TxnHistory { header, operations, .. } = history;
    let report = check_history(&History { header, operations });
    println!("{report}");
    report.verdict()
}

/// All keys together, and each on its own.
fn judge_transactions(history: &TxnHistory, model: Model) -> Verdict {
    let report = check_txn_history(history, model);
    println!("{report}");
    report.verdict()
}
