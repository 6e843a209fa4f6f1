//! The execution phase on its own (§5.2.1), for engines that run transactions as this one does and
//! replicate them in another way: the rivals in `baselines`.

use alloc::vec::Vec;

use quorate_machine::{Command, Rng, Table, Verdict};
use quorate_types::{Duration, UnixMillis};

use crate::body::BodyWriter;
use crate::meta::Meta;
use crate::work::{LocalRun, Work};

/// The shortest pause before a transaction is tried again; it doubles up to [`BACKOFF_DOUBLINGS`]
/// times and is drawn at random around that.
const BACKOFF: Duration = Duration::from_micros(50);
const BACKOFF_DOUBLINGS: u32 = 7;

/// Runs transactions against the records of a node that has them all. Its memory is reused from
/// run to run.
#[derive(Debug, Default)]
pub struct Execution(Work);

impl Execution {
    /// Runs a transaction. What it read and wrote stays here until the next run.
    pub fn run<T: Table<Meta = Meta>, X: Command>(
        &mut self,
        table: &mut T,
        now: UnixMillis,
        txn: &X,
    ) -> Verdict<X::Reply> {
        self.0.clear();
        txn.run(
            now,
            &mut LocalRun {
                table,
                work: &mut self.0,
                now,
                floor: 0,
                is_local: |_: &[u8]| true,
                sends_deltas: false,
            },
        )
    }

    /// How many keys the transaction touched.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it touched none.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Bytes of its keys and values, those that were read included.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The largest version that it read, as a number; its own timestamp must be above.
    pub fn newest_base(&self) -> u64 {
        self.0.newest_base()
    }

    /// Appends its read and write sets: the bytes of a [`crate::Body`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = BodyWriter::new(out, None);
        self.0.items().for_each(|item| writer.item(&item));
        writer.finish();
    }
}

/// How long to wait before a transaction is tried again that has lost so often.
pub fn backoff(lost: u32, rng: &mut Rng) -> Duration {
    let most = BACKOFF * (1 << lost.min(BACKOFF_DOUBLINGS));
    most / 2 + rng.span_below(most)
}
