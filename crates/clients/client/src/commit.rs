//! Commits that happen at most once, and whose outcome is found out: the `EXEC` of a transaction's
//! block is a call of a session ([`crate::sessions`]).
//!
//! A block without watches is called again like any other call. A block that watches keys must not
//! be, since `WATCH` belongs to the connection: if the first try never arrived, the block would run
//! at another node without the watches that protect its reads, or with watches that began too late.
//! So the client first calls another block, the *probe*, under the same number. It writes and
//! watches the same keys, hence its record lies where the block's would; it changes nothing; and
//! its digest differs, because no transaction sends its commands.
//!
//! Of all tries under one number, whatever their commands, at most one has a record, and a record
//! is never taken away before the client acknowledges the number. The client acknowledges it only
//! once it knows the outcome. Therefore:
//!
//! - The probe has an answer (an array, or a null array because of a write meanwhile): the record
//!   is the probe's. The block has not happened, and late tries at it find the number used. The
//!   transaction runs again, under another number.
//! - `DIFFERENT`: there is a record and it is the block's. An attempt that is under way makes a
//!   probe wait; it is not taken for a record. So the block can be called again, with watches on
//!   the same keys (they tell the node where the record lies), and can't run: it is answered from
//!   the record.
//! - Any other reply, or a lost one, says nothing about the block: the probe is called again.
//!
//! A refused try has not happened, but its refusal says nothing about the tries before it. So from
//! the first lost answer on, attempts that are used up end in [`Error::Unknown`], with the call to
//! ask about again. It can't be asked about any more once the session's lease has ended.

use std::sync::Arc;

use quorate_machine::mutant;

use crate::block::{Block, BlockEnd, EXEC, outcome};
use crate::error::Error;
use crate::over_resp::exec_plain;
use crate::pool::{Loan, Pool};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Attempts, Failure};
use crate::sessions::{Held, Sessions, Tried, Work, words};

impl Sessions {
    /// Commits a block over the connection that watches its keys, and asks other nodes about its
    /// outcome if the answer is lost.
    pub(crate) async fn commit(
        &self,
        pool: &Arc<Pool>,
        mut loan: Loan,
        block: Block,
        attempts: &mut Attempts,
    ) -> Result<(), Failure> {
        let mut held = self.hold(None);
        match self.attach(&mut loan, &mut held).await {
            Ok(()) => {}
            Err(Tried::Unfit) => return exec_plain(&mut loan, &block).await,
            Err(tried) => return Err(held.fail(None, tried)),
        }
        let Some(number) = held.begin() else {
            // The session is full of open calls that their callers have given up.
            held.forget();
            return Err(Failure::TryAgain("a session's window is full".to_owned()));
        };
        let writes = block.writes.len();
        let request = block.request(&words(&held.head(number), EXEC));
        let failure = match loan.exchange(&request).await {
            Ok(replies) => match loan.ended(replies) {
                BlockEnd::Answer(reply) => {
                    held.complete(Some(number));
                    return outcome(reply, writes);
                }
                BlockEnd::Unknown(reason) => {
                    held.complete(Some(number));
                    return Err(Failure::Final(Error::unknown(reason)));
                }
                BlockEnd::Refused(error) if error.code == "CROSSKEY" => {
                    held.complete(Some(number));
                    return Err(loan.refused(error, true));
                }
                BlockEnd::Refused(error) => match self.judge(&mut loan, &held, Reply::Error(error))
                {
                    Tried::Open(failure) => failure,
                    tried => return Err(held.fail(Some(number), tried)),
                },
            },
            Err(lost) if lost.sent => loan.lost(lost),
            Err(lost) => {
                held.complete(Some(number));
                return Err(loan.lost(lost));
            }
        };
        // Other calls may need the connection, and this call itself if there is only one.
        drop(loan);
        match self.find_out(pool, held, number, block, Some(failure), attempts).await {
            Ok(exec) => outcome(exec, writes),
            Err(error) => Err(Failure::Final(error)),
        }
    }

    /// Asks until the outcome of a block is certain: the answer to its `EXEC`, which is a null
    /// array if the block has not happened and never will.
    pub(crate) async fn find_out(
        &self,
        pool: &Arc<Pool>,
        mut held: Held<'_>,
        number: u64,
        block: Block,
        mut failure: Option<Failure>,
        attempts: &mut Attempts,
    ) -> Result<Reply, Error> {
        let mut probes = !block.watched.is_empty() && !mutant!("client_block_repeated_unprobed");
        loop {
            if let Some(failure) = failure.take()
                && let Err(error) = attempts.again(failure, pool.has_fresh_node()).await
            {
                let call = held.open_call(number, Work::Block(block));
                return Err(Error::Unknown { reason: error.to_string(), call });
            }
            let tried = match self.ask_block(pool, &mut held, number, &block, probes).await {
                Ok(Answered::Probe(true)) => {
                    probes = false;
                    continue;
                }
                Ok(Answered::Probe(false)) => {
                    held.complete(Some(number));
                    return Ok(Reply::NullArray);
                }
                Ok(Answered::Block(reply)) => {
                    held.complete(Some(number));
                    return Ok(reply);
                }
                Err(tried) => tried,
            };
            if let Tried::Expired(reason) = tried {
                held.forget();
                return Err(Error::unknown(reason));
            }
            failure = Some(tried.failure());
        }
    }

    /// Calls a block or its probe again, at the node whose turn it is.
    async fn ask_block(
        &self,
        pool: &Arc<Pool>,
        held: &mut Held<'_>,
        number: u64,
        block: &Block,
        probes: bool,
    ) -> Result<Answered, Tried> {
        let mut loan = pool.borrow(block.anchor()).await.map_err(Tried::Failed)?;
        self.attach(&mut loan, held).await?;
        if !block.watched.is_empty() {
            watch(&mut loan, &block.watched).await?;
        }
        let head = held.head(number);
        let exec = words(&head, EXEC);
        let request = if probes { block.probe(&exec) } else { block.request(&exec) };
        let replies = loan.exchange(&request).await;
        let replies = replies.map_err(|lost| Tried::Open(loan.lost(lost)))?;
        match loan.ended(replies) {
            BlockEnd::Answer(Reply::Array(_) | Reply::NullArray | Reply::Null) if probes => {
                Ok(Answered::Probe(false))
            }
            BlockEnd::Refused(error) if probes && error.code == "DIFFERENT" => {
                Ok(Answered::Probe(true))
            }
            BlockEnd::Answer(reply) => Ok(Answered::Block(reply)),
            BlockEnd::Unknown(reason) => Err(Tried::Open(Failure::TryAgain(reason))),
            BlockEnd::Refused(error) => Err(self.judge(&mut loan, held, Reply::Error(error))),
        }
    }
}

/// The answer to a try at a block or its probe.
enum Answered {
    /// The probe's: whether the block has a record. If not, it never will.
    Probe(bool),
    /// The block's: the answer to its `EXEC`.
    Block(Reply),
}

/// Lets the node watch the keys of a block.
async fn watch(loan: &mut Loan, keys: &[Vec<u8>]) -> Result<(), Tried> {
    let mut words: Vec<&[u8]> = vec![b"WATCH"];
    words.extend(keys.iter().map(Vec::as_slice));
    loan.connection().watching = true;
    match loan.exchange(&Request::one(&words)).await {
        Err(lost) => Err(Tried::Failed(loan.lost(lost))),
        Ok(mut replies) => match replies.pop() {
            Some(Reply::Error(error)) => Err(Tried::Failed(loan.refused(error, false))),
            _ => Ok(()),
        },
    }
}
