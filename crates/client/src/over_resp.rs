//! Transactions through any node, as Redis knows them: a read is `WATCH` and `GET` in one round
//! trip, the commit is `MULTI`, the writes and `EXEC` in another.
//!
//! `WATCH` comes before `GET`, so that a change between the two is noticed. A transaction without
//! writes also ends in `EXEC`, for the sake of its watches.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::Pending;
use crate::error::Error;
use crate::limits::EXPIRY_MAX;
use crate::pool::{Loan, Pool};
use crate::reply::{Reply, ServerError};
use crate::request::Request;
use crate::retry::Failure;
use crate::transport::{Expiry, Session, Transport, Values, Write, Writes};

/// The transport over a pool of RESP connections.
pub(crate) struct OverResp(pub(crate) Arc<Pool>);

impl Transport for OverResp {
    fn begin(&self) -> Pending<'_, Result<Box<dyn Session>, Failure>> {
        Box::pin(async move {
            let loan = self.0.borrow().await?;
            Ok(Box::new(RespSession { loan }) as Box<dyn Session>)
        })
    }

    fn has_fresh_node(&self) -> bool {
        self.0.has_fresh_node()
    }
}

/// A connection that is this transaction's alone.
struct RespSession {
    loan: Loan,
}

impl Session for RespSession {
    fn read<'a>(&'a mut self, keys: &'a [&'a [u8]]) -> Pending<'a, Result<Values, Failure>> {
        Box::pin(self.watch_and_get(keys))
    }

    fn commit<'a>(self: Box<Self>, writes: &'a Writes) -> Pending<'a, Result<(), Failure>> {
        Box::pin(self.exec(writes))
    }

    fn abort(self: Box<Self>) -> Pending<'static, ()> {
        Box::pin(self.unwatch())
    }
}

impl RespSession {
    async fn watch_and_get(&mut self, keys: &[&[u8]]) -> Result<Values, Failure> {
        let mut request = Request::default();
        request.push(&[&[b"WATCH".as_slice()], keys].concat());
        // GET also refuses what is no string; MGET has one round trip for all.
        let get: &[u8] = if keys.len() == 1 { b"GET" } else { b"MGET" };
        request.push(&[&[get], keys].concat());
        self.loan.connection().watching = true;
        let mut replies = match self.loan.exchange(&request).await {
            Ok(replies) => replies,
            Err(lost) => return Err(self.loan.lost(lost)),
        };
        let values = replies.pop().expect("there are as many replies as commands");
        if let Some(Reply::Error(error)) = replies.pop() {
            return Err(self.loan.refused(error, false));
        }
        let values = match values {
            Reply::Error(error) => return Err(self.loan.refused(error, false)),
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

    async fn exec(mut self: Box<Self>, writes: &Writes) -> Result<(), Failure> {
        let update = !writes.is_empty();
        if !update && !self.loan.connection().watching {
            return Ok(());
        }
        let replies = match self.loan.exchange(&block(writes)).await {
            Ok(replies) => replies,
            // EXEC was on its way. Without writes it doesn't matter what became of it.
            Err(lost) if lost.sent && update => return Err(self.loan.unknown(lost)),
            Err(lost) => return Err(self.loan.lost(lost)),
        };
        self.loan.connection().watching = !has_ended(&replies);
        match judge(replies) {
            Verdict::Committed => Ok(()),
            Verdict::Conflict => Err(Failure::Conflict),
            Verdict::Refused(error) => Err(self.loan.refused(error, update)),
            Verdict::Unknown(reason) => Err(Failure::Final(Error::unknown(reason))),
        }
    }

    async fn unwatch(mut self: Box<Self>) {
        let connection = self.loan.connection();
        if !connection.watching || !connection.is_sound() {
            return;
        }
        // If it fails, the connection is closed instead.
        if let Ok(replies) = self.loan.exchange(&Request::one(&[b"UNWATCH"])).await {
            self.loan.connection().watching = !replies.iter().all(Reply::is_ok);
        }
    }
}

/// `MULTI`, the writes, `EXEC`.
fn block(writes: &Writes) -> Request {
    let mut request = Request::one(&[b"MULTI"]);
    for (key, write) in writes {
        match write {
            Write::Delete => request.push(&[b"DEL", key]),
            Write::Set { value, expiry: Expiry::Never } => request.push(&[b"SET", key, value]),
            Write::Set { value, expiry: Expiry::Keep } => {
                request.push(&[b"SET", key, value, b"KEEPTTL"]);
            }
            Write::Set { value, expiry: Expiry::After(after) } => {
                let millis = millis(*after).to_string();
                request.push(&[b"SET", key, value, b"PX", millis.as_bytes()]);
            }
        }
    }
    request.push(&[b"EXEC"]);
    request
}

/// Whole milliseconds, at least one: a node refuses zero, and would do so in the middle of `EXEC`.
pub(crate) fn millis(after: Duration) -> u128 {
    after.min(EXPIRY_MAX).as_nanos().div_ceil(1_000_000).max(1)
}

/// What the replies to `MULTI`, the writes and `EXEC` say.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    Committed,
    Conflict,
    /// Nothing has happened, unless the error itself says that this is unknown.
    Refused(ServerError),
    Unknown(String),
}

/// Whether the connection is surely back to normal: neither in `MULTI` nor watching anything.
fn has_ended(replies: &[Reply]) -> bool {
    let (multi, exec) = (code(replies.first()), code(replies.last()));
    multi.is_none() && matches!(exec, None | Some("EXECABORT" | "TRYAGAIN"))
}

/// The code of an error reply.
fn code(reply: Option<&Reply>) -> Option<&str> {
    match reply {
        Some(Reply::Error(error)) => Some(&error.code),
        _ => None,
    }
}

fn judge(mut replies: Vec<Reply>) -> Verdict {
    let exec = replies.pop().expect("EXEC has a reply");
    let mut replies = replies.into_iter();
    let multi = replies.next().expect("MULTI has a reply");
    if let Reply::Error(error) = multi {
        // Then the writes were no transaction.
        return match replies.all(|reply| matches!(reply, Reply::Error(_))) {
            true => Verdict::Refused(error),
            false => {
                Verdict::Unknown(format!("MULTI was refused and its writes were not: {error}"))
            }
        };
    }
    let writes = replies.len();
    match exec {
        Reply::NullArray | Reply::Null => Verdict::Conflict,
        Reply::Array(results) if results.len() == writes => {
            match results.into_iter().find_map(error) {
                None => Verdict::Committed,
                Some(error) => {
                    Verdict::Unknown(format!("a write was refused within EXEC: {error}"))
                }
            }
        }
        Reply::Error(exec) if exec.code == "EXECABORT" => {
            Verdict::Refused(replies.find_map(error).unwrap_or_else(|| cause(exec)))
        }
        Reply::Error(exec) => Verdict::Refused(exec),
        other => Verdict::Unknown(format!("EXEC was answered with {}", other.kind())),
    }
}

fn error(reply: Reply) -> Option<ServerError> {
    match reply {
        Reply::Error(error) => Some(error),
        _ => None,
    }
}

/// The error that made a node refuse `EXEC` itself.
fn cause(exec: ServerError) -> ServerError {
    match exec.message.split_once("because of: ") {
        Some((_, cause)) => ServerError::parse(cause.as_bytes()),
        None => exec,
    }
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::Final(Error::UnexpectedReply { command: "GET", reply: reply.kind() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(line: &str) -> Reply {
        Reply::Error(ServerError::parse(line.as_bytes()))
    }

    fn ok() -> Reply {
        Reply::Status("OK".into())
    }

    fn queued() -> Reply {
        Reply::Status("QUEUED".into())
    }

    fn refused(verdict: Verdict) -> String {
        match verdict {
            Verdict::Refused(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_exec_says() {
        let exec = |reply| judge(vec![ok(), queued(), reply]);
        assert_eq!(exec(Reply::Array(vec![ok()])), Verdict::Committed);
        assert_eq!(exec(Reply::NullArray), Verdict::Conflict);
        assert_eq!(refused(exec(errors("TRYAGAIN busy"))), "TRYAGAIN busy");
        assert_eq!(refused(exec(errors("UNKNOWN maybe"))), "UNKNOWN maybe");
        assert!(matches!(exec(Reply::Array(vec![errors("ERR no")])), Verdict::Unknown(_)));
        assert!(matches!(exec(Reply::Array(Vec::new())), Verdict::Unknown(_)));
        assert!(matches!(exec(ok()), Verdict::Unknown(_)));
        assert_eq!(judge(vec![ok(), Reply::Array(Vec::new())]), Verdict::Committed);
    }

    #[test]
    fn the_cause_of_an_abort_counts() {
        let abort = "EXECABORT Transaction discarded because of previous errors.";
        let verdict = judge(vec![ok(), queued(), errors("OOM full"), errors(abort)]);
        assert_eq!(refused(verdict), "OOM full");
        let abort = "EXECABORT Transaction discarded because of: CLUSTERDOWN no lease";
        assert_eq!(refused(judge(vec![ok(), queued(), errors(abort)])), "CLUSTERDOWN no lease");
        assert_eq!(refused(judge(vec![ok(), errors("EXECABORT why")])), "EXECABORT why");
    }

    #[test]
    fn writes_behind_a_refused_multi_are_not_forgotten() {
        let exec = errors("ERR EXEC without MULTI");
        let verdict = judge(vec![errors("NOPERM no"), errors("NOAUTH no"), exec.clone()]);
        assert_eq!(refused(verdict), "NOPERM no");
        let verdict = judge(vec![errors("NOPERM no"), ok(), exec]);
        assert!(matches!(verdict, Verdict::Unknown(_)), "{verdict:?}");
    }

    #[test]
    fn expiries_are_what_a_node_takes() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1_500)), 2);
        assert_eq!(millis(Duration::from_secs(2)), 2_000);
        assert_eq!(millis(Duration::MAX), EXPIRY_MAX.as_millis());
    }

    #[test]
    fn a_block_has_the_writes_in_order_of_their_keys() {
        let set = |expiry| Write::Set { value: b"v".to_vec(), expiry };
        let writes = Writes::from([
            (b"d".to_vec(), set(Expiry::After(Duration::from_secs(1)))),
            (b"a".to_vec(), Write::Delete),
            (b"c".to_vec(), set(Expiry::Keep)),
            (b"b".to_vec(), set(Expiry::Never)),
        ]);
        let mut expected = Request::one(&[b"MULTI"]);
        expected.push(&[b"DEL", b"a"]);
        expected.push(&[b"SET", b"b", b"v"]);
        expected.push(&[b"SET", b"c", b"v", b"KEEPTTL"]);
        expected.push(&[b"SET", b"d", b"v", b"PX", b"1000"]);
        expected.push(&[b"EXEC"]);
        assert_eq!(block(&writes).bytes(), expected.bytes());
    }
}
