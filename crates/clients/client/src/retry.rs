//! Which failures are tried again, and after how long.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::reply::ServerError;

/// Why an attempt had no result. Nothing has changed, unless an [`Error`] itself says otherwise.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another client changed a key that the transaction had read.
    Conflict,
    /// The node refuses for the moment.
    TryAgain(String),
    /// The node can't be used; another one may.
    Node(String),
    /// Trying again would not help, or might do it twice.
    Final(Error),
}

impl Failure {
    /// The meaning of an error reply. `update` says whether the command may have changed anything;
    /// a read without an answer can simply be repeated.
    pub(crate) fn of(error: ServerError, update: bool) -> Self {
        match error.code.as_str() {
            "TRYAGAIN" => Self::TryAgain(error.to_string()),
            "UNKNOWN" if update => Self::Final(Error::unknown(error.message)),
            "UNKNOWN" => Self::TryAgain(error.to_string()),
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => Self::Node(error.to_string()),
            _ => Self::Final(Error::Server { code: error.code, message: error.message }),
        }
    }

    /// Whether another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        !matches!(self, Self::Final(_))
    }
}

/// How often and how fast a call is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    pub(crate) attempts: u32,
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    pub(crate) patience: Duration,
}

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Attempts {
    retries: Retries,
    failed: u32,
    /// Pauses made so far: changing the node takes none.
    pauses: u32,
    since: Instant,
}

impl Attempts {
    pub(crate) fn new(retries: Retries) -> Self {
        Self { retries, failed: 0, pauses: 0, since: Instant::now() }
    }

    /// Waits until the next attempt may begin, or returns the error if there is none. `elsewhere`
    /// says whether another node can be tried at once.
    pub(crate) async fn again(&mut self, failure: Failure, elsewhere: bool) -> Result<(), Error> {
        self.failed += 1;
        let pause = match &failure {
            Failure::Final(_) => None,
            Failure::Node(_) if elsewhere => Some(Duration::ZERO),
            _ => Some(self.pause()),
        };
        let late = self.since.elapsed() + pause.unwrap_or_default() > self.retries.patience;
        let Some(pause) = pause.filter(|_| self.failed < self.retries.attempts && !late) else {
            return Err(self.error(failure));
        };
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Twice as long as the last pause. The second half has a random length, so that clients that
    /// met once don't meet again.
    fn pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.pauses).unwrap_or(u32::MAX);
        self.pauses += 1;
        let whole = self.retries.first.saturating_mul(factor).min(self.retries.longest);
        let half = whole / 2;
        let nanos = u64::try_from((whole - half).as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(chance().checked_rem(nanos).unwrap_or(0))
    }

    fn error(&self, failure: Failure) -> Error {
        let attempts = self.failed;
        match failure {
            Failure::Conflict => Error::Conflict { attempts },
            Failure::TryAgain(message) => Error::TryAgain { attempts, message },
            Failure::Node(reason) => Error::NoNode { attempts, reason },
            Failure::Final(error) => error,
        }
    }
}

/// A random number. The standard library draws new keys for each `RandomState`, which is good
/// enough for pauses and for the first node.
pub(crate) fn chance() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(attempts: u32, patience: Duration) -> Attempts {
        let (first, longest) = (Duration::from_millis(1), Duration::from_millis(100));
        Attempts::new(Retries { attempts, first, longest, patience })
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_up_to_the_longest() {
        let mut attempts = attempts(1000, Duration::from_secs(3600));
        for number in 0..100 {
            let before = Instant::now();
            attempts.again(Failure::Conflict, true).await.expect("attempts are left");
            let whole =
                Duration::from_millis(1_u64 << number.min(10)).min(attempts.retries.longest);
            let pause = before.elapsed();
            // Tokio's clock has milliseconds and rounds up.
            let slack = Duration::from_millis(1);
            assert!(pause >= whole / 2 && pause <= whole + slack, "{pause:?} for {whole:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_differ() {
        let mut pauses = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let mut attempts = attempts(3, Duration::from_secs(3600));
            attempts.pauses = 10;
            pauses.insert(attempts.pause());
        }
        assert!(pauses.len() > 10, "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_node_is_tried_at_once() {
        let mut attempts = attempts(3, Duration::from_secs(3600));
        let before = Instant::now();
        attempts.again(Failure::Node("a".into()), true).await.expect("attempts are left");
        assert_eq!(before.elapsed(), Duration::ZERO);
        attempts.again(Failure::Node("b".into()), false).await.expect("attempts are left");
        assert!(before.elapsed() > Duration::ZERO);
        let error = attempts.again(Failure::Node("c".into()), true).await.expect_err("3 are made");
        assert!(matches!(error, Error::NoNode { attempts: 3, reason } if reason == "c"));
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_before_the_attempts() {
        let mut attempts = attempts(1000, Duration::from_millis(250));
        let mut made = 1;
        while attempts.again(Failure::TryAgain("busy".into()), true).await.is_ok() {
            made += 1;
        }
        assert!((7..20).contains(&made), "{made}");
        assert!(attempts.since.elapsed() <= Duration::from_millis(260));
    }

    #[tokio::test(start_paused = true)]
    async fn final_failures_are_returned_at_once() {
        let mut attempts = attempts(1000, Duration::from_secs(3600));
        let failure = Failure::of(ServerError::parse(b"ERR syntax error"), true);
        let error = attempts.again(failure, true).await.expect_err("it is final");
        assert_eq!(error.to_string(), "ERR syntax error");
    }

    #[test]
    fn what_error_replies_mean() {
        let of = |line: &[u8], update| Failure::of(ServerError::parse(line), update);
        for update in [true, false] {
            assert!(matches!(of(b"TRYAGAIN busy", update), Failure::TryAgain(_)));
            assert!(matches!(of(b"CLUSTERDOWN no lease", update), Failure::Node(_)));
            assert!(matches!(of(b"LOADING dataset", update), Failure::Node(_)));
            assert!(matches!(of(b"OOM full", update), Failure::Final(Error::Server { .. })));
        }
        assert!(matches!(of(b"UNKNOWN maybe", true), Failure::Final(error) if error.is_unknown()));
        assert!(matches!(of(b"UNKNOWN maybe", false), Failure::TryAgain(_)));
    }
}
