//! A small server: the nodes' front end over one replica in memory, on any network.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use quorate_resp::{ConnectionId, Settings, Shared};
use quorate_resp_harness::Harness;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The state that the nodes of a cluster agree on. Clones are other nodes of the same cluster; it
/// outlives each of them. Database 1 has transactions.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Mutex<Harness>>);

impl Cluster {
    pub(crate) fn new() -> Self {
        let mut harness = Harness::new(Shared::new(Settings::default(), None));
        harness.backend.leases_max = 100_000;
        Self(Arc::new(Mutex::new(harness)))
    }

    /// Serves a client until it goes.
    pub(crate) async fn serve(
        self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let client = self.open();
        let mut bytes = [0; 4096];
        loop {
            let count = stream.read(&mut bytes).await?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&client.send(&bytes[..count])).await?;
            stream.flush().await?;
        }
    }

    /// Connects without a network.
    pub(crate) fn open(self) -> Connected {
        let address = SocketAddr::from(([127, 0, 0, 1], 6379));
        let id = {
            let mut harness = self.harness();
            let now = harness.now;
            harness.frontend.open(now, address, address).expect("there is room for it")
        };
        Connected { cluster: self, id }
    }

    fn harness(&self) -> std::sync::MutexGuard<'_, Harness> {
        self.0.lock().expect("no test panics inside")
    }
}

/// A client as its node sees it; goes with its node.
pub(crate) struct Connected {
    cluster: Cluster,
    id: ConnectionId,
}

impl Connected {
    /// The answer to these bytes.
    pub(crate) fn send(&self, bytes: &[u8]) -> Vec<u8> {
        self.cluster.harness().send(self.id, bytes)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.cluster.harness().frontend.close(self.id);
    }
}
