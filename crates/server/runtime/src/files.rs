//! Descriptors: what a process needs for itself, so that clients can't take all.

use quorate_node::GUESTS_MAX;
use quorate_types::limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::acceptor::IN_TRANSIT_MAX;
use crate::disk::FILES_OF_LANE;
use crate::handshakes::STRANGERS_MAX;
use crate::start::HostedNode;

/// Descriptors of the process as a whole: standard streams, signals, files that are read in
/// passing, sockets of the resolver, connections on their way to an error.
const PROCESS: u64 = 32;
/// Those of a thread: its poll twice, what wakes it, and its alarm.
const OF_THREAD: u64 = 4;
/// Connections to one peer of one lane: one may take the place of another.
const OF_LINK: u64 = 2;
/// Listening sockets of a node, that of its administration endpoint included.
const OF_NODE: u64 = 3;

/// Raises the limit of open files to what the system allows, since every client takes one.
/// Returns the limit that is now in force, or `None` if the system sets no limit.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files could not be raised");
            limit.current
        }
    }
}

/// The most descriptors that these nodes take at once besides those of their clients and of
/// administrators.
pub fn files_needed(nodes: &[HostedNode]) -> u64 {
    let lanes = nodes.first().map_or(0, |node| u64::from(node.config.lanes));
    let hosted = nodes.len();
    let of_node = |node: &HostedNode| {
        let elsewhere = limits::MEMBERS_MAX.saturating_sub(hosted) as u64;
        let guests = if node.guests { GUESTS_MAX as u64 } else { 0 };
        let peers = match node.peer {
            Some(_) => lanes * (elsewhere * OF_LINK + guests) + STRANGERS_MAX as u64,
            None => 0,
        };
        // Besides those of the lanes: the lock, and a file that is read at the start.
        let disk = if node.disk.is_some() { lanes * FILES_OF_LANE + 2 } else { 0 };
        OF_NODE + IN_TRANSIT_MAX as u64 + peers + disk
    };
    PROCESS + lanes * OF_THREAD + nodes.iter().map(of_node).sum::<u64>()
}
