//! Histories of what clients saw, and the checkers that judge them.
//!
//! A [`History`] is the list of operations that clients sent to a cluster, each with the time it
//! was invoked, the time its answer arrived, and the answer. [`check_history`] says whether one
//! copy of the data, touched by one operation at a time, could have given those answers: that is
//! linearizability (Herlihy and Wing 1990), and because it is a local property each key is
//! judged on its own.
//!
//! # Outcomes
//!
//! | outcome | what it means | what the checker assumes |
//! | --- | --- | --- |
//! | `done` | the answer arrived | it took effect exactly once, between invoke and return |
//! | `refused` | the cluster said that it did nothing | it never took effect |
//! | `unknown` | timeout, lost connection, `-UNKNOWN` | it took effect at most once, any time after its invoke |
//!
//! # How keys are judged
//!
//! The search is the just-in-time linearization of Wing and Gong (1993) as improved by Lowe
//! (2017): walk through the events of a key in time order, keep the set of *configurations* that
//! are still possible (the key's value and which pending operations have already taken effect),
//! and place operations only when one of them returns. Memory follows the number of
//! configurations, not the length of the history. [`linearizability`] explains the reductions
//! that keep that number small, and why each of them is exact.
//!
//! Where data are on disks without anybody waiting for these, a loss of all power takes back what was
//! answered last. [`check_history_with_losses`] admits that each key then goes back to a state that it had
//! had since a moment that is given: buffered durable linearizability (Izraelevitz, Mendes and Scott 2016).
//!
//! The search is bounded by [`Options::budget`]. A key that exceeds it is *undecided*, which is
//! never reported as a success.
//!
//! Two direct checks run beside it. They are implied by linearizability, but they take almost no
//! time, are never undecided and say what went wrong in one sentence: no acknowledged write may
//! go missing (keys that are only read and set, each value once), and the total of a counter lies
//! between the acknowledged increments and those plus the unknown ones.
//!
//! # Transactions
//!
//! A [`TxnHistory`] also holds transactions over several keys. [`check_transactions`] says whether
//! they are serializable or strictly serializable, and names the [`Anomaly`] if they are not: once
//! by the values that clients wrote and read, trusting nothing else, and once by timestamps and
//! versions where records carry them. Both look for cycles in a graph of dependencies, in time
//! proportional to the history; what they can't tell makes the verdict *undecided*.
//! [`check_txn_history`] judges transactions together with operations on single keys, and searches
//! each key beside that. [`check_bank`] checks sums, [`Queues`] that each element goes to one client.
//!
//! # File format
//!
//! Histories are JSON lines, so that other checkers can read them and any client can write them: a
//! header, one line per operation or transaction, and a last line with their number. Without that
//! last line the file is refused, because a recorder that was cut off may have lost operations
//! whose effects others saw.
//!
//! ```text
//! {"format":"quorate-history","version":1,"initial":"absent"}
//! {"process":1,"op":"set","key":"x","value":"7","invoke":100,"return":180,"outcome":"done"}
//! {"process":2,"op":"get","key":"x","invoke":190,"return":230,"outcome":"done","result":"7"}
//! {"process":1,"op":"incr","key":"x","by":1,"invoke":240,"outcome":"unknown"}
//! {"end":3}
//! ```
//!
//! Every field is described in `docs/src/history.md`. [`Recorder`] writes the format from many
//! threads, [`read_history`] reads it.
#![forbid(unsafe_code)]

mod collection;
mod direct;
mod elle;
mod explain;
mod format;
mod history;
pub mod linearizability;
mod model;
mod queues;
mod recorder;
mod report;
mod seeds;
mod stream;
mod transactions;
mod txn;
mod txn_format;

pub use collection::CollectionCommand;
pub use elle::{ElleSummary, ElleWorkload, write_elle};
pub use format::{HistoryWriter, ReadError, VERSION};
pub use format::{read_history, read_history_file, read_txn_history, read_txn_history_file};
pub use history::{Action, Answer, Bytes, Header, History, Initial, Operation, Outcome};
pub use linearizability::Loss;
pub use queues::Queues;
pub use recorder::{Invocation, OpenTxn, Recorder, Sink};
pub use report::{EXIT_BAD_FILE, Finding, Options, Report, Undecided, Verdict};
pub use report::{check_history, check_history_with, check_history_with_losses};
pub use seeds::Seeds;
pub use transactions::{
    Anomaly, AnomalyKind, BankSummary, Model, TxnOptions, TxnReport, TxnSummary, balance,
    bank_total, check_bank, check_transactions, check_txn_history, check_values, check_versions,
};
pub use txn::{TxnHistory, TxnOp, TxnOutcome, TxnRecord, list_argument, split_list};
