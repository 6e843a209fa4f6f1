//! Connections to all nodes, and the choice of a node for each call.
//!
//! Calls go where their keys live ([`crate::routes`]), or else round the nodes: first over idle
//! connections, then over new ones. A failed node rests for [`NODE_REST`], unless all nodes do; then
//! one call tries it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::block::{self, BlockEnd};
use crate::connection::{Connection, Dial, Lost};
use crate::error::Error;
use crate::limits::NODE_REST;
use crate::reply::{Reply, ServerError};
use crate::request::Request;
use crate::retry::{Failure, Retries, chance};
use crate::routes::{INTRODUCTION, Routes};

/// The settings of a builder.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) addresses: Vec<String>,
    pub(crate) database: u8,
    pub(crate) password: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) pool_size: usize,
    pub(crate) sessions: bool,
    pub(crate) routes: bool,
    pub(crate) retries: Retries,
}

/// The connections of one client.
pub(crate) struct Pool {
    dial: Arc<dyn Dial>,
    pub(crate) options: Options,
    permits: Arc<Semaphore>,
    pub(crate) routes: Routes,
    nodes: Mutex<Nodes>,
}

struct Nodes {
    nodes: Vec<Node>,
    /// The node whose turn it is.
    turn: usize,
}

#[derive(Default)]
struct Node {
    idle: Vec<Connection>,
    rests_until: Option<Instant>,
}

impl Node {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| until > now)
    }
}

/// The connection for the next call.
enum Choice {
    Idle(usize, Connection),
    Dial(usize),
}

impl Nodes {
    /// A connection to the first of these nodes that does not rest.
    fn choose_in(&mut self, order: &[usize], now: Instant) -> Choice {
        let fresh = order.iter().find(|node| !self.nodes[**node].rests(now));
        let resting = || order.iter().min_by_key(|node| self.nodes[**node].rests_until);
        let node = *fresh.or_else(resting).expect("there is at least one node");
        if let Some(connection) = self.nodes[node].idle.pop() {
            return Choice::Idle(node, connection);
        }
        // Others need not wait for a node that may still be down.
        if let Some(until) = &mut self.nodes[node].rests_until {
            *until = now + NODE_REST;
        }
        Choice::Dial(node)
    }

    fn choose(&mut self, now: Instant) -> Choice {
        let count = self.nodes.len();
        let round = (self.turn..self.turn + count).map(|number| number % count);
        let fresh: Vec<usize> = round.filter(|node| !self.nodes[*node].rests(now)).collect();
        let candidates = if fresh.is_empty() {
            // The node that failed first is the likeliest to be back.
            let first = (0..count).min_by_key(|node| self.nodes[*node].rests_until);
            vec![first.expect("there is at least one node")]
        } else {
            fresh
        };
        for node in &candidates {
            if let Some(connection) = self.nodes[*node].idle.pop() {
                self.turn = node + 1;
                return Choice::Idle(*node, connection);
            }
        }
        self.turn = candidates[0] + 1;
        Choice::Dial(candidates[0])
    }

    /// Closes idle connections until at most `idle_max` are left.
    fn trim(&mut self, idle_max: usize) {
        let mut idle: usize = self.nodes.iter().map(|node| node.idle.len()).sum();
        for node in &mut self.nodes {
            while idle > idle_max && node.idle.pop().is_some() {
                idle -= 1;
            }
        }
    }
}

impl Pool {
    pub(crate) fn new(options: Options, dial: Arc<dyn Dial>) -> Arc<Self> {
        let count = options.addresses.len();
        // Many clients with the same list shall not all begin with its first node.
        let turn = usize::try_from(chance() % count as u64).expect("less than the nodes");
        let nodes = options.addresses.iter().map(|_| Node::default()).collect();
        Arc::new(Self {
            dial,
            permits: Arc::new(Semaphore::new(options.pool_size)),
            routes: Routes::new(count, options.routes),
            nodes: Mutex::new(Nodes { nodes, turn }),
            options,
        })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        // No code that holds the lock leaves the list half changed.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether some node has not failed recently.
    pub(crate) fn has_fresh_node(&self) -> bool {
        let now = Instant::now();
        self.nodes().nodes.iter().any(|node| !node.rests(now))
    }

    /// A connection, for as long as the loan lives: to the node where this key lives, if there is one
    /// and keys move.
    pub(crate) async fn borrow(self: &Arc<Self>, key: Option<&[u8]>) -> Result<Loan, Failure> {
        let permit = self.permits.clone().acquire_owned();
        let Ok(Ok(permit)) = timeout(self.options.timeout, permit).await else {
            let connections = self.options.pool_size;
            return Err(Failure::Final(Error::PoolExhausted { connections }));
        };
        loop {
            let (order, now) = (self.routes.order(key), Instant::now());
            let choice = match order {
                Some(order) => self.nodes().choose_in(&order, now),
                None => self.nodes().choose(now),
            };
            let (node, connection) = match choice {
                Choice::Idle(node, mut connection) => {
                    if !connection.is_quiet() {
                        continue;
                    }
                    (node, connection)
                }
                Choice::Dial(node) => {
                    // The nodes' keys are not each other's: idle connections will be of use.
                    if !self.routes.are_in_use() {
                        self.nodes().trim(self.permits.available_permits());
                    }
                    (node, self.connect(node).await?)
                }
            };
            let pool = self.clone();
            return Ok(Loan { pool, node, connection: Some(connection), _permit: permit });
        }
    }

    /// Connects to a node and introduces itself, in RESP3 unless the server knows RESP2 only.
    async fn connect(&self, node: usize) -> Result<Connection, Failure> {
        let limit = self.options.connect_timeout;
        let dialled = timeout(limit, self.dial.dial(&self.options.addresses[node])).await;
        let stream = match dialled {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.failed(node, error.to_string())),
            Err(_) => return Err(self.failed(node, format!("no connection within {limit:?}"))),
        };
        let mut connection = Connection::new(stream);
        let mut greeting: Vec<&[u8]> = vec![b"HELLO", b"3"];
        let password = self.options.password.as_ref().map(String::as_bytes);
        if let Some(password) = password {
            greeting.extend([b"AUTH".as_slice(), b"default", password]);
        }
        let database = self.options.database.to_string();
        let select: &[&[u8]] = &[b"SELECT", database.as_bytes()];
        let meets = self.routes.wants_to_meet().then_some(INTRODUCTION);
        let words: Vec<&[&[u8]]> = [&*greeting, select].into_iter().chain(meets).collect();
        let mut replies = self.introduce(node, &mut connection, &words).await?;
        if matches!(&replies[0], Reply::Error(error) if knows_only_resp2(error)) {
            let auth = password.map(|password| [b"AUTH".as_slice(), password]);
            let auth = auth.as_ref().map(<[_; 2]>::as_slice);
            let words: Vec<&[&[u8]]> = auth.into_iter().chain([select]).chain(meets).collect();
            replies = self.introduce(node, &mut connection, &words).await?;
        }
        if meets.is_some() {
            self.routes.meet(node, &replies.pop().expect("each command has a reply"));
        }
        for reply in replies {
            match reply {
                Reply::Error(error) if error.message.contains("max number of clients") => {
                    return Err(self.failed(node, error.to_string()));
                }
                Reply::Error(error) => return Err(self.refused(node, error, false)),
                _ => {}
            }
        }
        self.nodes().nodes[node].rests_until = None;
        Ok(connection)
    }

    async fn introduce(
        &self,
        node: usize,
        connection: &mut Connection,
        commands: &[&[&[u8]]],
    ) -> Result<Vec<Reply>, Failure> {
        let mut request = Request::default();
        commands.iter().for_each(|words| request.push(words));
        let replies = connection.exchange(&request, self.options.connect_timeout).await;
        replies.map_err(|lost| self.failed(node, lost.reason))
    }

    /// Notes that a node can't be reached: its idle connections are of no use either.
    fn failed(&self, node: usize, reason: String) -> Failure {
        self.nodes().nodes[node].idle.clear();
        self.rests(node, reason)
    }

    fn rests(&self, node: usize, reason: String) -> Failure {
        self.nodes().nodes[node].rests_until = Some(Instant::now() + NODE_REST);
        Failure::Node(format!("{}: {reason}", self.options.addresses[node]))
    }

    fn refused(&self, node: usize, error: ServerError, update: bool) -> Failure {
        match Failure::of(error, update) {
            Failure::Node(reason) => self.rests(node, reason),
            other => other,
        }
    }
}

/// Whether a server that knows RESP2 only has refused RESP3.
fn knows_only_resp2(error: &ServerError) -> bool {
    error.code == "NOPROTO" || (error.code == "ERR" && error.message.starts_with("unknown command"))
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("addresses", &self.options.addresses).finish_non_exhaustive()
    }
}

/// A connection in use. When this is dropped, a clean connection goes back, and any other is
/// closed.
pub(crate) struct Loan {
    pool: Arc<Pool>,
    node: usize,
    connection: Option<Connection>,
    _permit: OwnedSemaphorePermit,
}

impl Loan {
    /// Sends a request and waits for its replies, at most for the timeout of the builder.
    pub(crate) async fn exchange(&mut self, request: &Request) -> Result<Vec<Reply>, Lost> {
        let timeout = self.pool.options.timeout;
        self.connection().exchange(request, timeout).await
    }

    /// Whether a request with this key shall ask where it lives: if so, `PLACEMENT GET` is the first
    /// of its commands, and [`Self::learn`] takes the answer.
    pub(crate) fn asks(&self, key: &[u8]) -> bool {
        self.pool.routes.asks(key, Instant::now())
    }

    /// Takes the answer to `PLACEMENT GET`.
    pub(crate) fn learn(&self, key: &[u8], answer: &Reply) {
        self.pool.routes.learn(key, answer);
    }

    /// Makes updates plain commands, if they are numbered.
    pub(crate) async fn stop_numbering(&mut self) -> Result<(), Lost> {
        let mut request = Request::default();
        self.connection().stop_numbering(&mut request);
        if request.commands() > 0 {
            self.exchange(&request).await?;
        }
        Ok(())
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is there until the drop")
    }

    /// The result of the replies to a block. Notes whether the connection is free of it.
    pub(crate) fn ended(&mut self, replies: Vec<Reply>) -> BlockEnd {
        self.connection().watching = !block::has_ended(&replies);
        block::judge(replies)
    }

    /// The meaning of an error reply for the next attempt.
    pub(crate) fn refused(&self, error: ServerError, update: bool) -> Failure {
        self.pool.refused(self.node, error, update)
    }

    /// The meaning of a lost request for the next attempt, if it did not happen.
    pub(crate) fn lost(&self, lost: Lost) -> Failure {
        self.pool.failed(self.node, lost.reason)
    }

    /// The reason why a request was lost, and the node.
    pub(crate) fn explain(&self, lost: &Lost) -> String {
        format!("{}: {}", self.pool.options.addresses[self.node], lost.reason)
    }

    /// The meaning of a lost request that may have happened.
    pub(crate) fn unknown(&self, lost: Lost) -> Failure {
        let reason = self.explain(&lost);
        self.pool.failed(self.node, lost.reason);
        Failure::Final(Error::unknown(reason))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if connection.is_clean() {
            self.pool.nodes().nodes[self.node].idle.push(connection);
        }
    }
}
