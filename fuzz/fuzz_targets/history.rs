//! History files, which any client may have written.
//!
//! Nothing may panic, and judging what was read ends within its budget.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_check::{Options, check_history_with, read_history, read_txn_history};

fuzz_target!(|input: &[u8]| {
    if let Ok(history) = read_history(input) {
        let options = Options { budget: 10_000, ..Options::default() };
        let _ = check_history_with(&history, &options);
    }
    let _ = read_txn_history(input);
});
