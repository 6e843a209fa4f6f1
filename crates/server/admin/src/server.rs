//! The connections of the endpoints. Each carries one request, in a limited time, and few exist at
//! once: memory and time that they take are lost to the lanes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The most connections to all endpoints of the process at once. A further one is let in by closing
/// the oldest that has not sent a request yet; if all have, the new one is closed.
pub const CONNECTIONS_MAX: usize = 32;
/// How long the head of a request may take to arrive.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a connection lives, a change of the members included.
const EXCHANGE_MAX: Duration = Duration::from_secs(20);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// How long to wait after the system refused to accept, mostly for want of file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections of one endpoint for ever.
pub(crate) async fn serve(listener: TcpListener, router: Router, places: Arc<Places>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Some(place) = places.take().await {
                    let id = place.id;
                    let task = tokio::spawn(exchange(stream, router.clone(), place));
                    places.lock().waiting.insert(id, task.abort_handle());
                }
            }
            // The client gave up between its call and our answer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "the administration endpoint cannot accept connections");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One request and its answer.
async fn exchange(stream: TcpStream, router: Router, place: Place) {
    let router = TowerToHyperService::new(router);
    let answer = service_fn(|request| {
        place.asks();
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    // A client that breaks off, is too slow or speaks no HTTP gets no answer; no other is affected.
    let _ = tokio::time::timeout(EXCHANGE_MAX, connection).await;
}

/// The places for connections.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    open: usize,
    /// Connections that have not sent a request yet, the oldest first.
    waiting: BTreeMap<u64, AbortHandle>,
}

impl Places {
    /// A place for one more connection, if necessary that of the oldest idle one.
    async fn take(self: &Arc<Self>) -> Option<Place> {
        loop {
            {
                let mut taken = self.lock();
                if taken.open < CONNECTIONS_MAX {
                    taken.open += 1;
                    taken.next += 1;
                    return Some(Place { id: taken.next, places: Arc::clone(self) });
                }
                let (_, oldest) = taken.waiting.pop_first()?;
                oldest.abort();
            }
            // It ends when the executor comes by.
            tokio::task::yield_now().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Each change is made in one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection, free again with the end of this value.
struct Place {
    id: u64,
    places: Arc<Places>,
}

impl Place {
    /// The connection has sent the head of its request.
    fn asks(&self) {
        self.places.lock().waiting.remove(&self.id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.waiting.remove(&self.id);
        taken.open -= 1;
    }
}
