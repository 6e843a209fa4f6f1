//! The steps of a client with a session, as data: drawn from a seed, or read from a script.

use std::fmt;
use std::str::FromStr;

use quorate_types::KeyspaceId;

/// A step of a client with a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionStep {
    pub(crate) at: u64,
    pub(crate) client: usize,
    pub(crate) action: SessionAction,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SessionAction {
    /// Sends a request to a node and lane; or a late copy of it, which arrives this many
    /// nanoseconds later and whose answer the client ignores.
    Send { node: usize, lane: u16, late: Option<u64>, asks: Asks },
    /// Notices that its lease may have ended.
    GiveUp,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    Open,
    Renew,
    Close,
    /// Makes the client's call of this number, or tries it again: it adds one to each key of a
    /// keyspace.
    Call(u64, KeyspaceId, Vec<String>),
}

impl fmt::Display for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("OPEN"),
            Self::Renew => f.write_str("RENEW"),
            Self::Close => f.write_str("CLOSE"),
            Self::Call(number, keyspace, keys) => {
                write!(f, "CALL {number} ")?;
                if keyspace.0 > 0 {
                    write!(f, "SELECT {} ", keyspace.0)?;
                }
                write!(f, "INCR {}", keys.join(" "))
            }
        }
    }
}

impl FromStr for Asks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is nothing that a client with a session asks");
        Ok(match text.split(' ').collect::<Vec<_>>()[..] {
            ["OPEN"] => Self::Open,
            ["RENEW"] => Self::Renew,
            ["CLOSE"] => Self::Close,
            ["CALL", number, "SELECT", keyspace, "INCR", ref keys @ ..] if !keys.is_empty() => {
                let keyspace = KeyspaceId(keyspace.parse().map_err(|_| wrong())?);
                let keys = keys.iter().map(|key| (*key).to_owned());
                Self::Call(number.parse().map_err(|_| wrong())?, keyspace, keys.collect())
            }
            ["CALL", number, "INCR", ref keys @ ..] if !keys.is_empty() => {
                let keys = keys.iter().map(|key| (*key).to_owned());
                Self::Call(number.parse().map_err(|_| wrong())?, KeyspaceId(0), keys.collect())
            }
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_with_sessions_ask_comes_back() {
        for text in [
            "OPEN",
            "RENEW",
            "CLOSE",
            "CALL 7 INCR call:0",
            "CALL 8 INCR call:1 call:4",
            "CALL 9 SELECT 1 INCR call:2",
        ] {
            let asks: Asks = text.parse().unwrap();
            assert_eq!(asks.to_string(), text);
        }
        for text in ["FLY", "CALL 7 INCR", "CALL x INCR call:0", "CALL 7 SELECT x INCR call:0"] {
            assert!(text.parse::<Asks>().unwrap_err().contains(text));
        }
    }
}
