//! What clients and administrators hear while the lanes of a node restore what is on its disk.
//!
//! No lane looks at a socket then. So a thread of its own accepts clients, tells each how far the node is,
//! and lets it go: a client library then tries another node, or comes again.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_types::LaneId;

/// How often the thread looks for clients.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a client that was told keeps its connection, since to close it at once could overtake the
/// answer; and how many do.
const PARTING: Duration = Duration::from_secs(1);
const PARTING_MAX: usize = 128;

/// How far the lanes of a node have restored.
#[derive(Debug)]
pub(crate) struct Loading {
    /// Lanes that are not ready.
    lanes: AtomicUsize,
    /// The entries that are in, by lane.
    entries: Vec<AtomicU64>,
    /// All that there are.
    all: u64,
}

impl Loading {
    /// A node whose lanes have this many entries together.
    pub(crate) fn new(lanes: u16, all: u64) -> Self {
        let lanes = usize::from(lanes);
        Self {
            lanes: AtomicUsize::new(if all > 0 { lanes } else { 0 }),
            entries: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
            all,
        }
    }

    /// So many entries of a lane are in.
    pub(crate) fn note(&self, lane: LaneId, entries: u64) {
        self.entries[usize::from(lane.0)].store(entries, Ordering::Relaxed);
    }

    /// A lane is ready.
    pub(crate) fn lane_is_ready(&self) {
        if self.all > 0 {
            self.lanes.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// How far the node is; `None` if it has restored everything, or had nothing.
    pub(crate) fn progress(&self) -> Option<String> {
        if self.lanes.load(Ordering::Acquire) == 0 {
            return None;
        }
        let entries = self.entries.iter().map(|entries| entries.load(Ordering::Relaxed));
        Some(format!("{} of {} entries of the log are in", entries.sum::<u64>(), self.all))
    }
}

/// Tells the clients of a node how far it is, until it has restored everything.
pub(crate) fn answer_clients(
    listener: &TcpListener,
    loading: &Arc<Loading>,
) -> io::Result<JoinHandle<()>> {
    let (listener, loading) = (listener.try_clone()?, Arc::clone(loading));
    listener.set_nonblocking(true)?;
    let thread = std::thread::Builder::new().name("loading".into());
    thread.spawn(move || {
        let mut parting: VecDeque<(Instant, TcpStream)> = VecDeque::new();
        while let Some(progress) = loading.progress() {
            match listener.accept() {
                Ok((client, _)) => {
                    tell(&client, &progress);
                    parting.push_back((Instant::now(), client));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
            while let Some((since, _)) = parting.front()
                && (since.elapsed() >= PARTING || parting.len() > PARTING_MAX)
            {
                parting.pop_front();
            }
        }
    })
}

/// A client that has gone, or takes nothing, misses nothing but the reason.
fn tell(mut client: &TcpStream, progress: &str) {
    let text = format!(
        "-LOADING Quorate is loading the dataset in memory: {progress}; ask another node, or try again \
         later\r\n"
    );
    let _ = client.set_nonblocking(true);
    let _ = client.write_all(text.as_bytes());
    let _ = client.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn clients_hear_how_far_a_node_is_until_all_lanes_are_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let loading = Arc::new(Loading::new(2, 1000));
        let thread = answer_clients(&listener, &loading).expect("a thread starts");
        for entries in [0, 300] {
            loading.note(LaneId(1), entries);
            let mut client = TcpStream::connect(address).expect("somebody listens");
            client.write_all(b"*1\r\n$4\r\nPING\r\n").expect("it is taken");
            let mut text = String::new();
            client.read_to_string(&mut text).expect("it is answered");
            let said = format!("{entries} of 1000 entries of the log are in;");
            assert!(text.starts_with("-LOADING ") && text.contains(&said), "{text}");
        }
        loading.lane_is_ready();
        assert!(loading.progress().is_some());
        loading.lane_is_ready();
        assert_eq!(loading.progress(), None);
        thread.join().expect("it ends");
    }

    #[test]
    fn a_node_that_has_nothing_on_its_disk_loads_nothing() {
        let loading = Loading::new(2, 0);
        assert_eq!(loading.progress(), None);
        loading.lane_is_ready();
        assert_eq!(loading.progress(), None);
    }
}
