//! Whether any client is served: one prober for each place writes all the time, and reports when a
//! write was acknowledged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::resp::{Connection, Reply};

/// Longest that a prober waits for one answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two writes of a prober.
const PACE: Duration = Duration::from_millis(4);

/// Probers at work.
pub(crate) struct Probes {
    stop: Arc<AtomicBool>,
    successes: Arc<Mutex<Vec<Instant>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Probes {
    /// Starts one prober for each address.
    pub(crate) fn start(addresses: &[String], prefix: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let successes = Arc::new(Mutex::new(vec![Instant::now()]));
        let threads = addresses
            .iter()
            .enumerate()
            .map(|(number, address)| {
                let (stop, successes) = (Arc::clone(&stop), Arc::clone(&successes));
                let (address, key) = (address.clone(), format!("{prefix}probe:{number}"));
                std::thread::spawn(move || probe(&address, &key, &stop, &successes))
            })
            .collect();
        Self { stop, successes, threads }
    }

    /// Ends the probers. Returns the longest time without an acknowledged write.
    pub(crate) fn finish(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // A prober that panicked has printed the reason.
            let _ = thread.join();
        }
        let mut times = self.successes.lock().unwrap_or_else(PoisonError::into_inner);
        times.push(Instant::now());
        times.sort_unstable();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

fn probe(address: &str, key: &str, stop: &AtomicBool, successes: &Mutex<Vec<Instant>>) {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PACE);
        let open = || Connection::open(address, PATIENCE).ok();
        let Some(mut open) = connection.take().or_else(open) else { continue };
        let Ok(reply) = open.ask(&["SET", key, "1"]) else { continue };
        if reply == Reply::Status("OK".to_owned()) {
            successes.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        }
        connection = Some(open);
    }
}
