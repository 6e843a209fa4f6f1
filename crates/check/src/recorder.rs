//! The recorder: what clients call around every operation.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::format::HistoryWriter;
use crate::history::{Action, Answer, Bytes, History, Operation, Outcome};

/// Where a recorder puts operations that have ended.
pub trait Sink {
    /// Takes one operation.
    ///
    /// # Errors
    /// The sink's own; the recorder keeps the first and reports it when it finishes.
    fn append(&mut self, operation: Operation) -> io::Result<()>;
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
}

/// An operation that has been invoked and not ended. Dropping it is legal: the recorder writes
/// the operation as unknown when it finishes.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an invocation that is never ended is recorded as unknown"]
pub struct Invocation(u64);

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
        let inner = Inner { sink, last: 0, next: 0, open: BTreeMap::new(), failed: None };
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

    /// Records every operation still open as unknown and gives the sink back. A
    /// [`HistoryWriter`] then still needs its own `finish`.
    ///
    /// # Errors
    /// The first error that the sink gave.
    pub fn finish(self) -> io::Result<S> {
        let mut inner = self.inner.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (_, operation) in std::mem::take(&mut inner.open) {
            inner.append(operation);
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

    /// The lock makes reading the clock and ordering the reading one step.
    fn tick(&self, inner: &mut Inner<S>) -> u64 {
        inner.last = (self.clock)().max(inner.last + 1);
        inner.last
    }

    /// A client thread that panicked leaves the recorder consistent: its operation stays open.
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
}
