//! How much the commands of one transaction may look at: a machine runs it in one step, in which the
//! lane serves nobody else.

use quorate_machine::{Change, Current, Unordered, Workspace};
use quorate_types::limits;

use crate::Reply;

/// What it counts at least to read or write a key.
const ACCESS_BYTES: usize = 1024;

/// The answer to a command that would look at more.
pub(crate) const TOO_MUCH: Reply<'static> = Reply::error(
    "ERR the command would look at more than 68157440 bytes, a repeated key counted each time and at \
     least 1024 for each; split it",
);
/// The answer to a block whose commands would do so together.
pub(crate) const BLOCK_TOO_MUCH: Reply<'static> = Reply::error(
    "EXECABORT Transaction discarded because of: its commands would look at more than 68157440 bytes \
     together, a repeated key counted each time and at least 1024 for each; split it",
);

const _: () = assert!(
    limits::TXN_READ_BYTES_MAX == 68_157_440 && ACCESS_BYTES == 1024,
    "both texts name both limits"
);

/// A workspace whose keys are looked at so often and no more. Beyond it every key is absent, and
/// nothing is written, and the caller refuses the commands.
#[derive(Debug)]
pub(crate) struct Metered<'w, W: ?Sized> {
    workspace: &'w mut W,
    left: usize,
    exceeded: bool,
}

impl<'w, W: Workspace + ?Sized> Metered<'w, W> {
    pub(crate) fn new(workspace: &'w mut W) -> Self {
        Self { workspace, left: limits::TXN_READ_BYTES_MAX, exceeded: false }
    }

    /// Whether the commands wanted to look at more.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded
    }
}

impl<W: Workspace + ?Sized> Workspace for Metered<'_, W> {
    #[inline]
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        if !self.exceeded {
            let current = self.workspace.read(key);
            let bytes = current.content.map_or(0, |content| content.bytes.len());
            match self.left.checked_sub(ACCESS_BYTES + bytes) {
                Some(left) => {
                    self.left = left;
                    return current;
                }
                None => self.exceeded = true,
            }
        }
        Current::ABSENT
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.workspace.warm(keys);
    }

    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        if self.exceeded {
            return Ok(());
        }
        let (left, exceeded) = (&mut self.left, &mut self.exceeded);
        // One key more than fit shows that the limit is exceeded.
        let limit = limit.min(*left / ACCESS_BYTES + 1);
        self.workspace.range(from, to, limit, &mut |key, current| {
            let bytes = current.content.map_or(0, |content| content.bytes.len());
            match left.checked_sub(ACCESS_BYTES + bytes) {
                Some(rest) if !*exceeded => {
                    *left = rest;
                    visit(key, current);
                }
                _ => *exceeded = true,
            }
        })
    }

    #[inline]
    fn write(&mut self, key: &[u8], change: Change<'_>) {
        let bytes = match &change {
            Change::Set { bytes, .. } => bytes.len(),
            _ => 0,
        };
        match self.left.checked_sub(ACCESS_BYTES + bytes) {
            Some(left) if !self.exceeded => {
                self.left = left;
                self.workspace.write(key, change);
            }
            _ => self.exceeded = true,
        }
    }

    fn is_full(&self) -> bool {
        self.exceeded || self.workspace.is_full()
    }
}
