//! How the rest of the process reaches the lanes: for facts, for membership changes, to stop.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Sender, TrySendError};
use mio::net::TcpStream;
use quorate_node::{
    Change, ControlFacts, KeyspaceConfig, LaneFacts, NodeConfig, SERVING, Shared, StoreFacts,
};
use quorate_types::{Epoch, Instant, NodeId};
use quorate_wire::Hello;

use crate::acceptor::Transit;
use crate::clock;
use crate::link::LinkCounts;
use crate::loading::Loading;
use crate::mesh::Parker;

/// What a thread is asked to do by another, rarely enough for a channel.
pub(crate) enum ThreadTask {
    /// Serve this client.
    Client { host: usize, stream: TcpStream, peer: SocketAddr, transit: Transit },
    /// Talk to this peer, which has introduced itself.
    Peer { host: usize, stream: TcpStream, hello: Hello, rest: Vec<u8> },
    /// The address that a peer's name stands for.
    Resolved { host: usize, peer: NodeId, address: std::io::Result<SocketAddr> },
    /// Change the membership (lane 0).
    Change { host: usize, change: Change, reply: ChangeReply },
}

/// Called with the answer to a membership change.
pub(crate) type ChangeReply = Box<dyn FnOnce(Result<Epoch, String>) + Send>;

/// Where tasks for one thread are left.
#[derive(Clone)]
pub(crate) struct ThreadTasks {
    pub(crate) sender: Sender<ThreadTask>,
    pub(crate) parker: Arc<Parker>,
}

impl ThreadTasks {
    /// Leaves an task; gives it back if there are too many already.
    pub(crate) fn leave(&self, task: ThreadTask) -> Result<(), ThreadTask> {
        match self.sender.try_send(task) {
            Ok(()) => {
                self.parker.unpark();
                Ok(())
            }
            Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) => Err(task),
        }
    }
}

/// The state of the process's end.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    asked: AtomicBool,
    /// Threads that still have work of clients.
    pub(crate) draining: AtomicUsize,
}

impl Stop {
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// What the runtime counted for one lane of one node.
#[derive(Clone, Debug, Default)]
pub struct IoFacts {
    /// Turns of the loop.
    pub turns: u64,
    /// The longest one since the start or the last `CONFIG RESETSTAT`, in microseconds; 0 if none was
    /// slow.
    pub longest_turn_micros: u64,
    /// Clients connected to this lane.
    pub clients: u64,
    /// Clients connected to this lane that coordinate their transactions themselves.
    pub guests: u64,
    /// Bytes read from clients.
    pub client_bytes_received: u64,
    /// Bytes written to clients.
    pub client_bytes_sent: u64,
    /// Connections to the peer port that were not a peer's (lane 0).
    pub strangers_refused: u64,
    /// The lane's connections to peers in other processes.
    pub links: Vec<LinkFacts>,
}

/// One connection to a peer.
#[derive(Clone, Debug)]
pub struct LinkFacts {
    /// The peer.
    pub peer: NodeId,
    /// Whether messages flow.
    pub up: bool,
    /// Why not; empty if nothing is known to be wrong.
    pub complaint: String,
    /// What was counted.
    pub counts: LinkCounts,
}

/// One node of this process, as seen from outside its lanes.
pub struct NodeHandle {
    pub(crate) host: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) clients: Arc<quorate_resp::Shared>,
    pub(crate) io: Arc<Vec<Mutex<IoFacts>>>,
    pub(crate) control: ThreadTasks,
    pub(crate) client_address: SocketAddr,
    pub(crate) started: Instant,
    pub(crate) loading: Arc<Loading>,
}

/// What a node is doing, all in one.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Why the node serves no clients; `None` if it serves them.
    pub not_serving: Option<String>,
    /// What the membership machine knows.
    pub control: ControlFacts,
    /// What each lane counted.
    pub lanes: Vec<LaneFacts>,
    /// What the runtime counted for each lane.
    pub io: Vec<IoFacts>,
    /// Each keyspace and what it holds.
    pub keyspaces: Vec<(KeyspaceConfig, StoreFacts)>,
    /// Bytes of records and indexes.
    pub memory_used: u64,
    /// Connected clients.
    pub clients: u64,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

impl NodeHandle {
    /// What the node was told at its start.
    pub fn config(&self) -> &NodeConfig {
        &self.shared.config
    }

    /// Where it serves clients.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// The front end's settings and counters.
    pub fn front_end(&self) -> &Arc<quorate_resp::Shared> {
        &self.clients
    }

    /// Why the node serves no clients at this moment; `None` if it serves them.
    pub fn not_serving(&self) -> Option<String> {
        if let Some(progress) = self.loading.progress() {
            return Some(format!("loading what is on the disk: {progress}"));
        }
        let now = clock::monotonic();
        if self.shared.is_active() && self.shared.lease_until() > now {
            return None;
        }
        Some(why_not(self.shared.control_facts().phase))
    }

    /// What the node is doing, as its lanes published it last (at most some 50 ms ago).
    pub fn facts(&self) -> NodeFacts {
        let mut control = self.shared.control_facts();
        control.lease_remaining = self.shared.lease_until().since(clock::monotonic());
        let keyspaces = self.config().keyspaces.iter();
        NodeFacts {
            not_serving: self.not_serving(),
            control,
            lanes: self.shared.lane_facts(),
            io: self.io.iter().map(|facts| lock(facts).clone()).collect(),
            keyspaces: keyspaces
                .map(|keyspace| (keyspace.clone(), self.shared.store_facts(keyspace.id)))
                .collect(),
            memory_used: self.shared.memory_used(),
            clients: self.clients.connected(),
            uptime_seconds: clock::monotonic().since(self.started).as_secs(),
        }
    }

    /// Asks for a change of the membership; `reply` is called with the epoch that has it, or with
    /// why it can't be, from a lane's thread: it must not block.
    pub fn change_members(
        &self,
        change: Change,
        reply: impl FnOnce(Result<Epoch, String>) + Send + 'static,
    ) {
        let task = ThreadTask::Change { host: self.host, change, reply: Box::new(reply) };
        if let Err(ThreadTask::Change { reply, .. }) = self.control.leave(task) {
            reply(Err("the node is stopping or too busy; try again".to_owned()));
        }
    }
}

/// Why a node doesn't serve, by the phase that it published last.
fn why_not(phase: String) -> String {
    match phase.as_str() {
        "" => "the node is starting".to_owned(),
        // It served then.
        SERVING => "without a lease: it ran out a moment ago, because no majority has renewed it; \
                    the node looks for one"
            .to_owned(),
        _ => phase,
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandle").field("node", &self.config().node).finish_non_exhaustive()
    }
}

/// The running nodes of this process. Cheap to clone.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) nodes: Vec<NodeHandle>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) parkers: Vec<Arc<Parker>>,
}

impl Handle {
    /// The nodes, in the order in which they were given.
    pub fn nodes(&self) -> &[NodeHandle] {
        &self.0.nodes
    }

    /// Asks all lanes to finish what is pending, within [`crate::DRAIN_MAX`], and to stop.
    pub fn stop(&self) {
        stop(&self.0.stop, &self.0.parkers);
    }

    /// Whether a stop was asked for, by [`Handle::stop`] or by a client's `SHUTDOWN`.
    pub fn is_stopping(&self) -> bool {
        self.0.stop.is_asked()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.0.nodes).finish()
    }
}

/// Asks every thread to stop.
pub(crate) fn stop(stop: &Stop, parkers: &[Arc<Parker>]) {
    stop.asked.store(true, Ordering::Release);
    parkers.iter().for_each(|parker| parker.unpark());
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Facts are replaced whole; a panic elsewhere can't leave them half written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_serve_never_says_that_it_does() {
        assert_eq!(why_not(String::new()), "the node is starting");
        assert_eq!(why_not("outside: it waits".to_owned()), "outside: it waits");
        assert!(why_not(SERVING.to_owned()).starts_with("without a lease"));
    }
}
