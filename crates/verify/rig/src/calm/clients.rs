//! Light clients: one request after the other, and the longest time that each went without an
//! answer.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use crate::report::{median, millis};
use crate::resp::{Connection, Reply};

/// Clients of a system.
pub(crate) const CLIENTS: usize = 6;
/// The pause between two requests of a client.
const PACE: Duration = Duration::from_millis(1);
/// Requests of each client that must succeed before the count begins.
const WARM: usize = 20;
/// How long a client waits for one answer: longer than any node waits for the cluster, and than any
/// stall. A client that gives up early would count errors instead of waits.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2500);
/// How long the first answers of a system may take.
const START_MAX: Duration = Duration::from_secs(60);

/// One client's way to its system: a write, or a read of the value written.
pub(crate) trait Client: Send {
    /// Makes one request; an error is one that a program would get.
    fn ask(&mut self, write: bool) -> Result<(), String>;
}

/// A client of the Redis protocol, with one connection at a time.
pub(crate) struct Resp {
    /// Finds a server anew: at first, after a failure, and after a server has closed the
    /// connection.
    find: Box<dyn FnMut() -> Option<Connection> + Send>,
    connection: Option<Connection>,
    key: String,
}

impl Resp {
    pub(crate) fn new(
        number: usize,
        find: impl FnMut() -> Option<Connection> + Send + 'static,
    ) -> Self {
        Self { find: Box::new(find), connection: None, key: format!("client:{number}") }
    }

    /// Of several addresses the client keeps to one until that fails, and then tries the next ones.
    pub(crate) fn of_any(number: usize, addresses: Vec<String>) -> Self {
        let mut next = number;
        Self::new(number, move || {
            (0..addresses.len()).find_map(|_| {
                let address = &addresses[next % addresses.len()];
                next += 1;
                Connection::open(address, PATIENCE).ok()
            })
        })
    }
}

impl Client for Resp {
    fn ask(&mut self, write: bool) -> Result<(), String> {
        // No request was under way on a connection that a server has closed in between.
        let open = self.connection.take().filter(|open| !open.is_closed());
        let Some(mut open) = open.or_else(|| (self.find)()) else {
            return Err("no server lets it connect".to_owned());
        };
        let words = if write { &["SET", &self.key, "1"][..] } else { &["GET", &self.key] };
        match open.ask(words) {
            Ok(Reply::Error(said)) => Err(said),
            Ok(_) => {
                self.connection = Some(open);
                Ok(())
            }
            Err(error) => Err(format!("connection lost: {}", error.kind())),
        }
    }
}

/// The experience of clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Met {
    /// Requests that succeeded.
    pub(crate) ops: u64,
    /// Errors instead of answers, and how often clients got each.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The longest time between two successive answers of each client.
    pub(crate) gaps: Vec<Duration>,
}

impl Met {
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    pub(crate) fn worst_gap(&self) -> Duration {
        self.gaps.iter().max().copied().unwrap_or_default()
    }

    /// Adds the experience of another round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        for (said, count) in &other.errors {
            *self.errors.entry(said.clone()).or_default() += count;
        }
        self.gaps.extend(&other.gaps);
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "ops": self.ops,
            "errors": self.error_count(),
            "errors_by_text": self.errors,
            "gap_median_ms": millis(median(&self.gaps)),
            "gap_worst_ms": millis(self.worst_gap()),
        })
    }
}

/// Lets clients work while `meanwhile` runs, and returns their experience until its end.
pub(crate) fn work<T>(
    clients: Vec<Box<dyn Client>>,
    meanwhile: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Met, T)> {
    let (warm, stop) = (Barrier::new(clients.len() + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(|| serve_out(client, &warm, &stop)))
            .collect();
        warm.wait();
        let result = meanwhile();
        stop.store(true, Ordering::Relaxed);
        let mut met = Met::default();
        for client in clients {
            let one = client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            met.add(&one.context("a client had no answer before anything was done")?);
        }
        Ok((met, result?))
    })
}

/// The work of one client; `None` if it never began.
fn serve_out(mut client: Box<dyn Client>, warm: &Barrier, stop: &AtomicBool) -> Option<Met> {
    let deadline = Instant::now() + START_MAX;
    let mut answered = 0;
    while answered < WARM && Instant::now() < deadline {
        answered += usize::from(client.ask(answered % 2 == 0).is_ok());
        std::thread::sleep(PACE);
    }
    warm.wait();
    if answered < WARM {
        return None;
    }
    let (mut met, mut gap) = (Met::default(), Duration::ZERO);
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match client.ask(met.ops % 2 == 0) {
            Ok(()) => {
                met.ops += 1;
                let now = Instant::now();
                gap = gap.max(now - last);
                last = now;
            }
            Err(said) => *met.errors.entry(said).or_default() += 1,
        }
        std::thread::sleep(PACE);
    }
    met.gaps = vec![gap.max(last.elapsed())];
    Some(met)
}
