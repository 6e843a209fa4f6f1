//! The driver that serves: lanes on threads, with real sockets and clocks.
//!
//! Thread *t* hosts lane *t* of every node of this process: one node when it is a server, several
//! when a whole cluster runs embedded. It owns everything it touches; what it shares with other
//! threads are the stores, rings of mail, and facts for the administration endpoint.
//!
//! ```text
//!           ┌──────────────── thread t ────────────────┐
//! clients ⇄ │ Frontend ─ Lane t of node 1 ─┐           │
//! clients ⇄ │ Frontend ─ Lane t of node 2 ─┼ in memory │ ⇄ rings ⇄ other threads
//!           │                              │           │
//!           │                              └ Link ─────┼─ TCP ⇄ lane t of nodes elsewhere
//!           └──────────────────────────────────────────┘
//! ```
//! # A turn of the loop
//! Wait for events; read the clock once; read from peers, then from clients, and execute; take
//! mail; do what is due; complete, close batches and pass messages between the nodes on this
//! thread until nothing is left; read the clock again and seal what rests on the lease (pitfall
//! H3: the check comes after the reads); write once to each peer and each client. A thread sleeps
//! when it has nothing to do, and is woken only if it sleeps.
//!
//! # What costs a system call
//! One wait for each turn, one read for each connection with input (a short read means that the
//! socket is empty, so there is no second one to be told so), one write for each peer and client
//! with output. Nothing else on the hot path: sockets are watched for both directions from the
//! start.
//!
//! # Absent on purpose
//! No asynchronous runtime, no lock on the hot path, no knowledge of any protocol or command.
#![forbid(unsafe_code)]

mod acceptor;
mod alarm;
mod backend;
mod clients;
mod clock;
mod disk;
mod files;
mod files_on_disk;
mod guests;
mod handle;
mod handshakes;
mod host;
mod link;
mod loading;
mod log;
mod mesh;
mod net;
mod node_disk;
mod process;
mod relief;
mod start;
mod stopwatch;
mod thread;
mod token;

pub use clock::now;
pub use files::{files_needed, raise_file_limit};
pub use files_on_disk::FileDirectory;
pub use handle::{Handle, IoFacts, LinkFacts, NodeFacts, NodeHandle};
pub use link::LinkCounts;
pub use net::{ListenError, listen};
pub use node_disk::{NodeDisk, NodeDiskError};
pub use process::cpu_time;
pub use start::{HostedNode, Options, Runtime, default_clients_bytes, random_seed, start};
pub use thread::DRAIN_MAX;
