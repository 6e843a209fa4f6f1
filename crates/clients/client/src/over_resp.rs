//! Transactions through any node, as Redis knows them: a read is `WATCH` and `GET` in one round
//! trip, the commit is `MULTI`, the writes and `EXEC` in another.
//!
//! `WATCH` comes before `GET`, so that a change between the two is noticed. A transaction without
//! writes also ends in `EXEC`, which checks its watches. One with writes ends in the call of a
//! session ([`crate::commit`]), unless the server knows no sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::block::{Block, BlockEnd, EXEC, outcome};
use crate::connection::Pending;
use crate::error::Error;
use crate::pool::{Loan, Pool};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Attempts, Failure};
use crate::sessions::Sessions;
use crate::transport::{Session, Transport, Values, Writes};

/// The transport over a pool of RESP connections.
pub(crate) struct OverResp {
    pub(crate) pool: Arc<Pool>,
    pub(crate) sessions: Arc<Sessions>,
}

impl Transport for OverResp {
    fn begin(&self) -> Pending<'_, Result<Box<dyn Session>, Failure>> {
        Box::pin(async move {
            let (pool, sessions) = (self.pool.clone(), self.sessions.clone());
            let (loan, watched) = (None, BTreeSet::new());
            Ok(Box::new(RespSession { pool, sessions, loan, watched }) as Box<dyn Session>)
        })
    }

    fn has_fresh_node(&self) -> bool {
        self.pool.has_fresh_node()
    }
}

/// A connection for this transaction alone, to where the first key lives that it reads, or else the
/// first that it writes.
struct RespSession {
    pool: Arc<Pool>,
    sessions: Arc<Sessions>,
    loan: Option<Loan>,
    watched: BTreeSet<Vec<u8>>,
}

impl Session for RespSession {
    fn read<'a>(&'a mut self, keys: &'a [&'a [u8]]) -> Pending<'a, Result<Values, Failure>> {
        Box::pin(self.watch_and_get(keys))
    }

    fn commit(
        self: Box<Self>,
        writes: Writes,
        attempts: &mut Attempts,
    ) -> Pending<'_, Result<(), Failure>> {
        Box::pin(self.exec(writes, attempts))
    }

    fn abort(self: Box<Self>) -> Pending<'static, ()> {
        Box::pin(self.unwatch())
    }
}

impl RespSession {
    async fn watch_and_get(&mut self, keys: &[&[u8]]) -> Result<Values, Failure> {
        if self.loan.is_none() {
            self.loan = Some(self.pool.borrow(keys.first().copied()).await?);
        }
        let loan = self.loan.as_mut().expect("it was borrowed");
        let mut request = Request::default();
        let asked = keys.first().filter(|key| loan.asks(key));
        if let Some(key) = asked {
            request.push(&[b"PLACEMENT", b"GET", key]);
        }
        request.push(&[&[b"WATCH".as_slice()], keys].concat());
        // GET also refuses values that are no strings; MGET takes one round trip for all keys.
        let get: &[u8] = if keys.len() == 1 { b"GET" } else { b"MGET" };
        request.push(&[&[get], keys].concat());
        self.watched.extend(keys.iter().map(|key| key.to_vec()));
        loan.connection().watching = true;
        let mut replies = match loan.exchange(&request).await {
            Ok(replies) => replies,
            Err(lost) => return Err(loan.lost(lost)),
        };
        let values = replies.pop().expect("there are as many replies as commands");
        if let Some(Reply::Error(error)) = replies.pop() {
            return Err(loan.refused(error, false));
        }
        if let (Some(key), Some(answer)) = (asked, replies.pop()) {
            loan.learn(key, &answer);
        }
        let values = match values {
            Reply::Error(error) => return Err(loan.refused(error, false)),
            Reply::Array(values) if keys.len() > 1 && values.len() == keys.len() => values,
            value if keys.len() == 1 => vec![value],
            other => return Err(unexpected(&other)),
        };
        values
            .into_iter()
            .map(|value| match value {
                Reply::Bulk(bytes) => Ok(Some(bytes)),
                Reply::Null => Ok(None),
                other => Err(unexpected(&other)),
            })
            .collect()
    }

    async fn exec(self: Box<Self>, writes: Writes, attempts: &mut Attempts) -> Result<(), Failure> {
        let Self { pool, sessions, loan, watched } = *self;
        if writes.is_empty() && watched.is_empty() {
            return Ok(());
        }
        let block = Block { watched: watched.into_iter().collect(), writes };
        let mut loan = match loan {
            Some(loan) => loan,
            None => pool.borrow(block.anchor()).await?,
        };
        if !block.writes.is_empty() && sessions.are_enabled() {
            return sessions.commit(&pool, loan, block, attempts).await;
        }
        exec_plain(&mut loan, &block).await
    }

    async fn unwatch(mut self: Box<Self>) {
        let Some(loan) = &mut self.loan else { return };
        let connection = loan.connection();
        if !connection.watching || !connection.is_sound() {
            return;
        }
        // If UNWATCH fails, the connection is closed instead.
        if let Ok(replies) = loan.exchange(&Request::one(&[b"UNWATCH"])).await {
            loan.connection().watching = !replies.iter().all(Reply::is_ok);
        }
    }
}

/// Commits without a session: an outcome that is lost stays unknown.
pub(crate) async fn exec_plain(loan: &mut Loan, block: &Block) -> Result<(), Failure> {
    let update = !block.writes.is_empty();
    if update && let Err(lost) = loan.stop_numbering().await {
        return Err(loan.lost(lost));
    }
    let replies = match loan.exchange(&block.request(EXEC)).await {
        Ok(replies) => replies,
        // EXEC was under way. Without writes its outcome doesn't matter.
        Err(lost) if lost.sent && update => return Err(loan.unknown(lost)),
        Err(lost) => return Err(loan.lost(lost)),
    };
    match loan.ended(replies) {
        BlockEnd::Answer(reply) => outcome(reply, block.writes.len()),
        BlockEnd::Refused(error) => Err(loan.refused(error, update)),
        BlockEnd::Unknown(reason) => Err(Failure::Final(Error::unknown(reason))),
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::Final(Error::UnexpectedReply { command: "GET", reply: reply.kind() })
}
