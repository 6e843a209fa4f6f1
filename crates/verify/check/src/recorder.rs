//! The recorder: clients call it around every operation.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quorate_types::Timestamp;

use crate::format::HistoryWriter;
use crate::history::{Action, Answer, Bytes, History, Operation, Outcome};
use crate::txn::{TxnHistory, TxnOp, TxnOutcome, TxnRecord};

/// Where a recorder puts operations that have ended.
pub trait Sink {
    /// Takes one operation.
    ///
    /// # Errors
    /// The sink's own; the recorder keeps the first and reports it when it finishes.
    fn append(&mut self, operation: Operation) -> io::Result<()>;

    /// Takes one transaction.
    ///
    /// # Errors
    /// The sink's own; `Unsupported` from a sink that holds operations only.
    fn append_transaction(&mut self, record: TxnRecord) -> io::Result<()> {
        let reason = format!("T{} can't be kept in a history of single operations", record.id);
        Err(io::Error::new(io::ErrorKind::Unsupported, reason))
    }
}

impl Sink for History {
    fn append(&mut self, operation: Operation) -> io::Result<()> {
        self.operations.push(operation);
        Ok(())
    }
}

impl<W: Write> Sink for HistoryWriter<W> {
    fn append(&mut self, operation: Operation) -> io::Result<()> {
        self.write(&operation)
    }

    fn append_transaction(&mut self, record: TxnRecord) -> io::Result<()> {
        self.write_transaction(&record)
    }
}

impl Sink for TxnHistory {
    fn append(&mut self, operation: Operation) -> io::Result<()> {
        self.operations.push(operation);
        Ok(())
    }

    fn append_transaction(&mut self, record: TxnRecord) -> io::Result<()> {
        self.transactions.push(record);
        Ok(())
    }
}

/// An operation that has been invoked and not ended. Dropping it is legal: the recorder writes
/// the operation as unknown when it finishes.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an invocation that is never ended is recorded as unknown"]
pub struct Invocation(u64);

/// A transaction that has begun and not ended. Dropping it is legal: the recorder writes the
/// transaction as unknown when it finishes, with the operations that it had last been told of.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a transaction that is never ended is recorded as unknown"]
pub struct OpenTxn(u64);

type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// Records operations of any number of threads.
///
/// All times come from one clock and no two are equal: an event that follows another in real time
/// gets a later time even where the clock (a simulator's, for instance) has not moved. So the
/// recorded order is never stricter than the real one, and never looser than the recorder could
/// see. The contract: call [`Recorder::invoke`] before sending and one of the others after
/// the answer has arrived.
pub struct Recorder<S> {
    clock: Clock,
    inner: Mutex<Inner<S>>,
}

struct Inner<S> {
    sink: S,
    last: u64,
    next: u64,
    open: BTreeMap<u64, Operation>,
    open_txns: BTreeMap<u64, TxnRecord>,
    failed: Option<io::Error>,
}

impl<S> fmt::Debug for Recorder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl<S: Sink> Recorder<S> {
    /// A recorder on the machine's monotonic clock, which starts at zero here.
    pub fn new(sink: S) -> Self {
        let start = Instant::now();
        // 64 bits of nanoseconds last for 584 years.
        Self::with_clock(sink, move || start.elapsed().as_nanos() as u64)
    }

    /// A recorder on another clock, in nanoseconds, such as a simulator's.
    pub fn with_clock(sink: S, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let (open, open_txns) = (BTreeMap::new(), BTreeMap::new());
        let inner = Inner { sink, last: 0, next: 0, open, open_txns, failed: None };
        Self { clock: Box::new(clock), inner: Mutex::new(inner) }
    }

    /// Notes that `process` is about to send an operation.
    pub fn invoke(&self, process: u64, key: impl Into<Bytes>, action: Action) -> Invocation {
        let key = key.into();
        let mut inner = self.lock();
        let invoke = self.tick(&mut inner);
        let id = inner.next;
        inner.next += 1;
        let outcome = Outcome::Unknown;
        inner.open.insert(id, Operation { process, key, action, invoke, outcome });
        Invocation(id)
    }

    /// Notes the answer of an operation that took effect.
    pub fn done(&self, invocation: Invocation, answer: Answer) {
        self.end(invocation, |at| Outcome::Done { at, answer });
    }

    /// Notes that an operation was refused: it had no effect and will have none.
    pub fn refused(&self, invocation: Invocation) {
        self.end(invocation, |at| Outcome::Refused { at });
    }

    /// Notes that the fate of an operation will not be learned.
    pub fn unknown(&self, invocation: Invocation) {
        self.end(invocation, |_| Outcome::Unknown);
    }

    /// Notes that `process` is about to send the first request of a transaction. The recorder
    /// numbers transactions and operations from 0 in the order in which they begin.
    pub fn begin(&self, process: u64) -> OpenTxn {
        let mut inner = self.lock();
        let invoke = self.tick(&mut inner);
        let id = inner.next;
        inner.next += 1;
        let (outcome, timestamp, ops) = (TxnOutcome::Unknown, None, Vec::new());
        let record = TxnRecord { process, id, invoke, outcome, timestamp, ops };
        inner.open_txns.insert(id, record);
        OpenTxn(id)
    }

    /// Notes the reads of a transaction so far and the writes that it is about to make. Call it
    /// before sending the request that may commit: if the answer never comes, these are recorded,
    /// and a missing write would look as if it came from nowhere.
    pub fn intend(&self, txn: &OpenTxn, ops: Vec<TxnOp>) {
        let mut inner = self.lock();
        let record = inner.open_txns.get_mut(&txn.0);
        record.expect("a transaction ends once, where it began").ops = ops;
    }

    /// Notes that a transaction took effect, at `timestamp` if that is known. `ops` replaces what
    /// was intended, with what its reads saw.
    pub fn committed(&self, txn: OpenTxn, timestamp: Option<Timestamp>, ops: Vec<TxnOp>) {
        self.end_txn(txn, |at, record| {
            record.outcome = TxnOutcome::Committed { at };
            record.timestamp = timestamp;
            record.ops = ops;
        });
    }

    /// Notes that a transaction had no effect and will have none.
    pub fn aborted(&self, txn: OpenTxn) {
        self.end_txn(txn, |at, record| record.outcome = TxnOutcome::Aborted { at });
    }

    /// Notes that the fate of a transaction will not be learned. It may have done what it intended,
    /// at `timestamp` if that is known.
    pub fn undecided(&self, txn: OpenTxn, timestamp: Option<Timestamp>) {
        self.end_txn(txn, |_, record| record.timestamp = timestamp);
    }

    fn end_txn(&self, txn: OpenTxn, end: impl FnOnce(u64, &mut TxnRecord)) {
        let mut inner = self.lock();
        let at = self.tick(&mut inner);
        let mut record =
            inner.open_txns.remove(&txn.0).expect("a transaction ends once, where it began");
        end(at, &mut record);
        inner.append_transaction(record);
    }

    /// Records every operation and transaction still open as unknown and gives the sink back. A
    /// [`HistoryWriter`] then still needs its own `finish`.
    ///
    /// # Errors
    /// The first error that the sink gave.
    pub fn finish(self) -> io::Result<S> {
        let mut inner = self.inner.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (_, operation) in std::mem::take(&mut inner.open) {
            inner.append(operation);
        }
        for (_, record) in std::mem::take(&mut inner.open_txns) {
            inner.append_transaction(record);
        }
        match inner.failed {
            Some(error) => Err(error),
            None => Ok(inner.sink),
        }
    }

    fn end(&self, invocation: Invocation, outcome: impl FnOnce(u64) -> Outcome) {
        let mut inner = self.lock();
        let at = self.tick(&mut inner);
        let mut operation =
            inner.open.remove(&invocation.0).expect("an invocation ends once, where it began");
        operation.outcome = outcome(at);
        inner.append(operation);
    }

    /// Reads the clock. The lock makes reading the clock and ordering the reading one step.
    fn tick(&self, inner: &mut Inner<S>) -> u64 {
        inner.last = (self.clock)().max(inner.last + 1);
        inner.last
    }

    /// The state behind the lock. A client thread that panicked leaves it consistent: its operation
    /// stays open.
    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Sink> Inner<S> {
    fn append(&mut self, operation: Operation) {
        if self.failed.is_none() {
            self.failed = self.sink.append(operation).err();
        }
    }

    fn append_transaction(&mut self, record: TxnRecord) {
        if self.failed.is_none() {
            self.failed = self.sink.append_transaction(record).err();
        }
    }
}
