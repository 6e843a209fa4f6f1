//! The administration endpoint of each node: HTTP for people, monitors and `quorate status`.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /health` | 200 while the node serves clients, otherwise 503 with the reason |
//! | `GET /view` | the view in force, as JSON |
//! | `GET /status` | everything `quorate status` shows, as JSON ([`Status`]) |
//! | `GET /metrics` | Prometheus text, by lane |
//! | `POST /member/add` | adds a member ([`AddMember`]) |
//! | `POST /member/remove` | removes a member ([`RemoveMember`]) |
//! | `POST /member/keep` | has a member stay that is about to leave ([`KeepMember`]) |
//! | `POST /recover` | goes on without members that are lost, or says what is lost ([`Recover`], [`Loss`]) |
//! | `GET /` | a page for people |
//!
//! It runs on one thread of its own, away from the lanes: it reads only the facts that lanes
//! publish, and asks lanes only through [`quorate_runtime::Handle`].
//!
//! Every client that reaches the endpoint may read; a client that changes anything must know its
//! [`Token`]. The endpoint answers under its own addresses and names only, so that no page in an
//! operator's browser can speak to it.
#![forbid(unsafe_code)]

mod access;
mod disk;
mod loss;
mod metrics;
mod routes;
mod server;
mod status;
mod token;

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use quorate_runtime::Handle;

use crate::access::Access;
use crate::disk::Disk;
use crate::server::Places;

pub use disk::{Alarm, DiskAlarm, DiskStatus};
pub use loss::{Loss, LostGroup};
pub use server::CONNECTIONS_MAX;
pub use status::{
    AddMember, Changed, KeepMember, KeyspaceStatus, LinkStatus, MemberStatus, Problem, Progress,
    Recover, RemoveMember, Status, ViewStatus,
};
pub use token::{Token, TokenError};

/// Log lines of this process that are lost, counted by the writers of logs.
#[derive(Debug, Default)]
pub struct LogCounts {
    /// Lines for which there was no room.
    pub no_room: AtomicU64,
    /// Lines that the system didn't take.
    pub not_taken: AtomicU64,
    /// Lines left out because there were many of the kind.
    pub repeated: AtomicU64,
}

impl LogCounts {
    /// The number of lines missing in the log.
    pub fn lost(&self) -> u64 {
        self.no_room.load(Relaxed) + self.not_taken.load(Relaxed)
    }
}

/// The administration endpoint of one node.
#[derive(Debug)]
pub struct Endpoint {
    /// Its socket, from [`quorate_runtime::listen`].
    pub listener: TcpListener,
    /// Names by which clients may address it, besides addresses and `localhost`.
    pub names: Vec<String>,
    /// The token that a change must give; without a token no change is possible, for this reason.
    pub token: Result<Token, String>,
    /// Where the node has its log, if it has one. The endpoint watches the disk.
    pub directory: Option<PathBuf>,
}

/// Serves the endpoints of this process's nodes, in the nodes' order, until the process ends.
///
/// # Errors
/// When the system refuses the thread.
pub fn serve(
    endpoints: Vec<Endpoint>,
    handle: Handle,
    log: Arc<LogCounts>,
) -> io::Result<JoinHandle<()>> {
    for endpoint in &endpoints {
        endpoint.listener.set_nonblocking(true)?;
    }
    std::thread::Builder::new().name("admin".into()).spawn(move || {
        if let Err(error) = run(endpoints, &handle, &log) {
            tracing::error!(%error, "the administration endpoint has stopped");
        }
    })
}

fn run(endpoints: Vec<Endpoint>, handle: &Handle, log: &Arc<LogCounts>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let places = Arc::new(Places::default());
        let mut servers = tokio::task::JoinSet::new();
        for (node, endpoint) in endpoints.into_iter().enumerate() {
            let Endpoint { listener, names, token, directory } = endpoint;
            let disk = directory.map(Disk::new);
            if let Some(disk) = disk.clone() {
                tokio::spawn(disk.watch(handle.clone(), node));
            }
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let access = Arc::new(Access { names, token });
            let router = routes::router(handle.clone(), node, Arc::clone(log), disk, &access);
            servers.spawn(server::serve(listener, router, Arc::clone(&places)));
        }
        while let Some(ended) = servers.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "an administration endpoint has stopped");
            }
        }
        Ok(())
    })
}
