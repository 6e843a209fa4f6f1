//! Entries as answers.

use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_types::limits;

use super::bytes::Damaged;
use super::packed::Entry;
use crate::Reply;
use crate::room::ANSWER_TOO_LONG;

/// What is left of the length of an answer while it is made: a command that would answer more
/// changes nothing.
#[derive(Debug)]
pub(super) struct Answer {
    left: usize,
}

impl Answer {
    pub(super) fn new() -> Self {
        Self { left: limits::REPLY_BYTES_MAX }
    }

    /// Takes room for so many bytes.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Reply<'static>> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None if mutant!("commands_stream_delivers_too_much") => {}
            None => return Err(Reply::error(ANSWER_TOO_LONG)),
        }
        Ok(())
    }

    /// A part of the answer.
    pub(super) fn part<'a>(&mut self, part: Reply<'a>) -> Result<Reply<'a>, Reply<'static>> {
        self.take(part.bytes())?;
        Ok(part)
    }

    /// An entry: its id, and fields and values.
    pub(super) fn entry<'a>(&mut self, entry: Entry<'a>) -> Result<Reply<'a>, Reply<'static>> {
        let replies = size_of::<Reply<'_>>().saturating_mul(entry.count.saturating_mul(2) + 3);
        let id = entry.id.reply();
        self.take(replies.saturating_add(entry.bytes()))?;
        let bulk = |item: Result<&'a [u8], Damaged>| Ok(Reply::Bulk(item?.into()));
        let items = entry.items().map(bulk).collect::<Result<Vec<_>, Damaged>>()?;
        Ok(Reply::Array(vec![id, Reply::Array(items)]))
    }

    /// So many of the entries, all if the count is `None`.
    pub(super) fn entries<'a>(
        &mut self,
        entries: impl Iterator<Item = Result<Entry<'a>, Damaged>>,
        count: Option<u64>,
    ) -> Result<Vec<Reply<'a>>, Reply<'static>> {
        let count = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
        entries.take(count).map(|entry| self.entry(entry?)).collect()
    }
}
