//! The ways in which a call can end without a result.

use std::error::Error as StdError;

use crate::reply::ServerError;
use crate::sessions::OpenCall;

/// Why a call has no result.
///
/// Only [`Error::Unknown`] leaves open whether something has changed. All others mean that the call
/// changed nothing, except [`Error::UnexpectedReply`], whose documentation says what it means.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node refused, and would refuse again. Nothing has changed.
    #[error("{code} {message}")]
    Server {
        /// The stable word that the error begins with.
        code: String,
        /// The node's sentence, with the remedy.
        message: String,
    },
    /// The call may or may not have happened, or in part. Without a session it was not tried again,
    /// because then it might happen twice; in one, the attempts were used up before its end was
    /// known.
    #[error(
        "the outcome is unknown ({reason}): it may have happened or not; {}", match call {
            Some(call) => format!("ask again about {call:?}, which does not repeat it"),
            None => "read what it was to change before you try again".to_owned(),
        }
    )]
    Unknown {
        /// The reason why there was no answer.
        reason: String,
        /// The call to ask about ([`crate::Client::ask_again`]), if it was a session's call whose
        /// lease may still live.
        call: Option<Box<OpenCall>>,
    },
    /// In each attempt, another transaction changed a key that this one had read. Nothing has
    /// changed.
    #[error(
        "the transaction conflicted with others in each of {attempts} attempts and did not \
         happen; try it later, raise the limits of the builder, or update these keys less often"
    )]
    Conflict {
        /// The number of attempts.
        attempts: u32,
    },
    /// In each attempt, a node refused for the moment (`TRYAGAIN`). Nothing has changed.
    #[error(
        "the cluster was too busy in each of {attempts} attempts ({message}); it did not happen; \
         try it later, or lower the load"
    )]
    TryAgain {
        /// The number of attempts.
        attempts: u32,
        /// The node's last message.
        message: String,
    },
    /// No node took the call. Nothing has changed.
    #[error(
        "no node could be used in {attempts} attempts ({reason}); it did not happen; check the \
         addresses and `quorate status`"
    )]
    NoNode {
        /// The number of attempts.
        attempts: u32,
        /// The reason why the last attempt failed.
        reason: String,
    },
    /// A read found that this attempt of the transaction has ended. Return this error from the
    /// closure: then the closure runs again.
    #[error(
        "this attempt of the transaction is over ({reason}); return this error from the closure, \
         and the transaction starts again"
    )]
    Restart {
        /// The reason why it ended.
        reason: String,
    },
    /// No connection became free in time. Nothing has changed.
    #[error(
        "all {connections} connections were in use for too long; raise `pool_size`, and don't \
         wait for the client's other calls inside a transaction"
    )]
    PoolExhausted {
        /// The size of the pool.
        connections: usize,
    },
    /// A key or value is longer than the cluster stores. Nothing has changed.
    #[error("{what} has {bytes} bytes, and at most {bytes_max} can be stored; split it")]
    TooLarge {
        /// `the key` or `the value`.
        what: &'static str,
        /// Its length, in bytes.
        bytes: usize,
        /// The longest that is stored, in bytes.
        bytes_max: usize,
    },
    /// [`crate::Txn::incr`] of a value that is no 64-bit integer, or would be none afterwards.
    #[error("the value of '{key}' is not an integer, or would be out of range; set it anew")]
    NotAnInteger {
        /// The key.
        key: String,
    },
    /// A command that changes the state of its connection, which belongs to the pool.
    #[error(
        "{command} changes the state of a connection, and those of this client are shared; use \
         `Client::txn` for transactions and the builder for the rest"
    )]
    Stateful {
        /// The command.
        command: String,
    },
    /// A reply of a kind that the command doesn't have. The command itself was executed.
    #[error("{command} was answered with {reply}; is that a Redis or Quorate server?")]
    UnexpectedReply {
        /// The command.
        command: &'static str,
        /// The kind of the reply.
        reply: &'static str,
    },
    /// Not an address, or none at all.
    #[error("'{address}' is no address of a node; give each as host:port")]
    Address {
        /// The given text.
        address: String,
    },
    /// The closure of a transaction gave up, see [`Error::aborted`]. Nothing has changed.
    #[error("the transaction was aborted: {0}")]
    Aborted(#[source] Box<dyn StdError + Send + Sync>),
}

impl From<ServerError> for Error {
    fn from(error: ServerError) -> Self {
        Self::Server { code: error.code, message: error.message }
    }
}

impl Error {
    /// The same error for another command of an exchange in which this one had no result.
    pub(crate) fn repeated(&self) -> Self {
        match self {
            Self::TryAgain { attempts, message } => {
                Self::TryAgain { attempts: *attempts, message: message.clone() }
            }
            Self::NoNode { attempts, reason } => {
                Self::NoNode { attempts: *attempts, reason: reason.clone() }
            }
            Self::PoolExhausted { connections } => {
                Self::PoolExhausted { connections: *connections }
            }
            Self::Server { code, message } => {
                Self::Server { code: code.clone(), message: message.clone() }
            }
            Self::UnexpectedReply { command, reply } => Self::UnexpectedReply { command, reply },
            other => Self::NoNode { attempts: 1, reason: other.to_string() },
        }
    }

    /// An unknown outcome that can't be asked about any more.
    pub(crate) fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into(), call: None }
    }

    /// An error by which a closure gives its transaction up: nothing happens, and
    /// [`crate::Client::txn`] returns this error.
    ///
    /// ```
    /// let error = quorate_client::Error::aborted("too little money");
    /// assert_eq!(error.to_string(), "the transaction was aborted: too little money");
    /// ```
    pub fn aborted(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Aborted(reason.into())
    }

    /// Whether the call may have happened nevertheless. If not, it is safe to try it again.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}
