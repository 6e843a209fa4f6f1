//! What the poll's tokens stand for.

use mio::Token;
use quorate_types::NodeId;

/// Something that the poll reports events of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Another thread has unparked this one.
    Parker,
    /// A moment has come.
    Alarm,
    /// A node's client port.
    ClientListener { host: usize },
    /// A node's peer port.
    PeerListener { host: usize },
    /// A peer connection that has not introduced itself.
    PendingHandshake { host: usize, index: usize },
    /// A client.
    Client { host: usize, slot: usize },
    /// The connection to a peer.
    Link { host: usize, peer: NodeId },
}

const KIND_AT: u32 = 56;
const HOST_AT: u32 = 40;
const HOST_MASK: usize = (1 << (KIND_AT - HOST_AT)) - 1;
const INDEX_MASK: usize = (1 << HOST_AT) - 1;

impl Source {
    /// The token of this source.
    #[inline]
    pub(crate) fn token(self) -> Token {
        let (kind, host, index) = match self {
            Self::Parker => (0, 0, 0),
            Self::ClientListener { host } => (1, host, 0),
            Self::PeerListener { host } => (2, host, 0),
            Self::PendingHandshake { host, index } => (3, host, index),
            Self::Client { host, slot } => (4, host, slot),
            Self::Link { host, peer } => (5, host, usize::from(peer.0)),
            Self::Alarm => (6, 0, 0),
        };
        Token(kind << KIND_AT | host << HOST_AT | index)
    }

    /// The source of a token that [`Source::token`] made.
    #[inline]
    pub(crate) fn of(token: Token) -> Self {
        let host = token.0 >> HOST_AT & HOST_MASK;
        let index = token.0 & INDEX_MASK;
        match token.0 >> KIND_AT {
            0 => Self::Parker,
            1 => Self::ClientListener { host },
            2 => Self::PeerListener { host },
            3 => Self::PendingHandshake { host, index },
            4 => Self::Client { host, slot: index },
            5 => Self::Link { host, peer: NodeId(index as u16) },
            _ => Self::Alarm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back() {
        for source in [
            Source::Parker,
            Source::Alarm,
            Source::ClientListener { host: 2 },
            Source::PeerListener { host: 8 },
            Source::PendingHandshake { host: 1, index: 255 },
            Source::Client { host: 62, slot: 4_000_000_000 },
            Source::Link { host: 3, peer: NodeId(63) },
        ] {
            assert_eq!(Source::of(source.token()), source);
        }
    }
}
