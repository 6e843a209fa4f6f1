//! `MULTI`, writes, `EXEC`: the commit request of a transaction, and the meaning of its replies.

use std::time::Duration;

use crate::error::Error;
use crate::limits::EXPIRY_MAX;
use crate::reply::{Reply, ServerError};
use crate::request::Request;
use crate::retry::Failure;
use crate::transport::{Expiry, Write, Writes};

/// An `EXEC` outside of a session's call.
pub(crate) const EXEC: &[&[u8]] = &[b"EXEC"];

/// The changes that a transaction commits, and the keys that they rest on.
#[derive(Debug)]
pub(crate) struct Block {
    /// The keys that it has read.
    pub(crate) watched: Vec<Vec<u8>>,
    /// The changes.
    pub(crate) writes: Writes,
}

/// The result of the replies to `MULTI`, the commands behind it and `EXEC`.
#[derive(PartialEq, Debug)]
pub(crate) enum BlockEnd {
    /// `EXEC` was answered: with an array or a null array, or, by a strange server, with another
    /// reply.
    Answer(Reply),
    /// Nothing has happened, unless the error itself says that the outcome is unknown.
    Refused(ServerError),
    /// The commands were executed one by one, or some of them.
    Unknown(String),
}

impl Block {
    /// The key that says where it goes.
    pub(crate) fn anchor(&self) -> Option<&[u8]> {
        self.writes.keys().chain(&self.watched).next().map(Vec::as_slice)
    }

    /// `MULTI`, the writes, and the words of `exec`.
    pub(crate) fn request(&self, exec: &[&[u8]]) -> Request {
        let mut request = Request::one(&[b"MULTI"]);
        for (key, write) in &self.writes {
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
        request.push(exec);
        request
    }

    /// A block on the same keys that changes nothing: `MULTI`, and the words of `exec`.
    pub(crate) fn probe(&self, exec: &[&[u8]]) -> Request {
        let mut request = Request::one(&[b"MULTI"]);
        for key in self.writes.keys() {
            request.push(&[b"SETRANGE", key, b"0", b""]);
        }
        request.push(exec);
        request
    }
}

/// The meaning of an answer to `EXEC` for a transaction with this many writes.
pub(crate) fn outcome(exec: Reply, writes: usize) -> Result<(), Failure> {
    let unknown = |reason: String| Err(Failure::Final(Error::unknown(reason)));
    match exec {
        Reply::NullArray | Reply::Null => Err(Failure::Conflict),
        Reply::Array(results) if results.len() == writes => {
            match results.into_iter().find_map(error) {
                None => Ok(()),
                Some(error) => unknown(format!("a write was refused within EXEC: {error}")),
            }
        }
        other => unknown(format!("EXEC was answered with {}", other.kind())),
    }
}

/// Whole milliseconds, at least one: a node refuses zero, and would do so in the middle of `EXEC`.
pub(crate) fn millis(after: Duration) -> u128 {
    after.min(EXPIRY_MAX).as_nanos().div_ceil(1_000_000).max(1)
}

/// Whether the connection is surely back to normal: neither in `MULTI` nor watching keys.
pub(crate) fn has_ended(replies: &[Reply]) -> bool {
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

pub(crate) fn judge(mut replies: Vec<Reply>) -> BlockEnd {
    let exec = replies.pop().expect("EXEC has a reply");
    let mut replies = replies.into_iter();
    let multi = replies.next().expect("MULTI has a reply");
    if let Reply::Error(error) = multi {
        // The writes were executed, but as no transaction.
        return match replies.all(|reply| matches!(reply, Reply::Error(_))) {
            true => BlockEnd::Refused(error),
            false => {
                BlockEnd::Unknown(format!("MULTI was refused and its writes were not: {error}"))
            }
        };
    }
    match exec {
        Reply::Error(exec) if exec.code == "EXECABORT" => {
            BlockEnd::Refused(replies.find_map(error).unwrap_or_else(|| cause(exec)))
        }
        Reply::Error(exec) => BlockEnd::Refused(exec),
        reply => BlockEnd::Answer(reply),
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

    fn refused(verdict: BlockEnd) -> String {
        match verdict {
            BlockEnd::Refused(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_exec_says() {
        let exec = |reply| judge(vec![ok(), queued(), reply]);
        assert_eq!(exec(Reply::NullArray), BlockEnd::Answer(Reply::NullArray));
        assert_eq!(refused(exec(errors("TRYAGAIN busy"))), "TRYAGAIN busy");
        assert_eq!(refused(exec(errors("UNKNOWN maybe"))), "UNKNOWN maybe");
        assert!(outcome(Reply::Array(vec![ok()]), 1).is_ok());
        assert!(matches!(outcome(Reply::NullArray, 1), Err(Failure::Conflict)));
        for odd in [Reply::Array(vec![errors("ERR no")]), Reply::Array(Vec::new()), ok()] {
            let end = outcome(odd, 1);
            assert!(matches!(&end, Err(Failure::Final(error)) if error.is_unknown()), "{end:?}");
        }
        assert!(outcome(Reply::Array(Vec::new()), 0).is_ok());
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
        assert!(matches!(verdict, BlockEnd::Unknown(_)), "{verdict:?}");
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
        let block = Block { watched: vec![b"z".to_vec()], writes };
        assert_eq!(block.request(EXEC).bytes(), expected.bytes());
        // On the same keys, so that the probe's record lies where the block's does.
        let mut expected = Request::one(&[b"MULTI"]);
        for key in [b"a", b"b", b"c", b"d"] {
            expected.push(&[b"SETRANGE", key, b"0", b""]);
        }
        expected.push(&[b"EXEC"]);
        assert_eq!(block.probe(EXEC).bytes(), expected.bytes());
    }
}
