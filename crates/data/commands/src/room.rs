//! How long answers may be.

use quorate_types::limits;

use crate::{Note, Reply};

/// The answer to a command whose own answer would have no room.
pub const ANSWER_TOO_LONG: &str = "ERR the answer would be longer than 16777216 bytes, the most that \
                                   one command or transaction answers; ask for less at a time";
/// The answer to a block whose answers would have none together.
pub(crate) const BLOCK_TOO_LONG: Reply<'static> = Reply::error(
    "EXECABORT Transaction discarded because of: its answers would be longer than 16777216 bytes \
     together, the most that one command or transaction answers; read less in one transaction",
);

const _: () = assert!(limits::REPLY_BYTES_MAX == 16_777_216, "two texts name the limit");

/// What is left of [`limits::REPLY_BYTES_MAX`] while a command or a block runs. An answer is
/// measured before it is copied, so that no more than that is ever held.
#[derive(Debug)]
pub(crate) struct Room {
    left: usize,
    exceeded: bool,
}

impl Room {
    pub(crate) const fn new() -> Self {
        Self { left: limits::REPLY_BYTES_MAX, exceeded: false }
    }

    /// A copy of an answer that borrows nothing, if there is room for it.
    #[inline]
    pub(crate) fn hold(&mut self, reply: Reply<'_>) -> Reply<'static> {
        self.hold_with(reply, 0)
    }

    /// The same of an answer beside which so many bytes travel.
    #[inline]
    pub(crate) fn hold_with(&mut self, reply: Reply<'_>, beside: usize) -> Reply<'static> {
        match self.left.checked_sub(reply.bytes() + beside) {
            Some(left) if !self.exceeded => {
                self.left = left;
                reply.into_owned()
            }
            _ => {
                self.exceeded = true;
                Reply::error(ANSWER_TOO_LONG)
            }
        }
    }

    /// Whether some answer had no room.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded
    }
}

impl Reply<'_> {
    /// Bytes that the answer takes in memory, what it borrows included.
    pub fn bytes(&self) -> usize {
        let beyond = match self {
            Self::Bulk(bytes) => bytes.len(),
            Self::Status(text) => text.len(),
            Self::Error(text) => text.len(),
            Self::Verbatim(text) | Self::BigNumber(text) => text.len(),
            Self::Array(replies) | Self::Set(replies) => replies.iter().map(Self::bytes).sum(),
            Self::Map(pairs) | Self::Pairs(pairs) | Self::Keyed(pairs) => {
                pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum()
            }
            Self::Noted(noted) => {
                noted.reply.bytes() + noted.notes.iter().map(Note::bytes).sum::<usize>()
            }
            _ => 0,
        };
        size_of::<Self>() + beyond
    }

    /// The answer, if one command may answer so much; otherwise the error that says so.
    #[inline]
    pub fn within_limit(self) -> Self {
        if self.bytes() > limits::REPLY_BYTES_MAX { Reply::error(ANSWER_TOO_LONG) } else { self }
    }
}
