//! Large values for commands that look at packed bytes.

use alloc::vec::Vec;

use quorate_collections::Delta;
use quorate_machine::{Change, Content, Current, Unordered, Workspace};
use quorate_types::{UnixMillis, limits};

use crate::meter::TOO_MUCH;
use crate::packed::LARGE_TOO_LARGE;
use crate::spec::{KeyFunction, KeysFunction};
use crate::string::expiry_of;
use crate::{Args, Reply};

/// The change of a large value that leaves so many members; none is left of an empty one.
///
/// # Errors
/// If the collection might become longer than one may be.
pub(crate) fn change<'a>(
    delta: Delta,
    left: usize,
    current: Current<'_>,
) -> Result<Change<'a>, Reply<'static>> {
    let bytes = delta.into_bytes();
    if left == 0 {
        return Ok(Change::Delete);
    }
    if bytes.is_empty() {
        return Ok(Change::Keep);
    }
    let held = current.large.map_or(0, |large| large.packed_len());
    if held + bytes.len() > limits::COLLECTION_BYTES_MAX {
        return Err(LARGE_TOO_LARGE);
    }
    Ok(Change::Delta { bytes: bytes.into(), expire_at: expiry_of(current) })
}

/// Runs a function over one key, which is given the packed bytes of a large value.
pub(crate) fn run_packed<'a>(
    run: KeyFunction,
    args: Args<'a>,
    now: UnixMillis,
    current: Current<'a>,
) -> (Reply<'a>, Change<'a>) {
    let mut bytes = Vec::new();
    match pack(current, &mut bytes) {
        None => run(args, now, current),
        Some(current) => {
            let (reply, change) = run(args, now, current);
            (reply.into_owned(), change.into_owned())
        }
    }
}

/// Runs a function over several keys, which is given the packed bytes of large values.
pub(crate) fn run_all_packed(
    run: KeysFunction,
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    let (bytes, left) = (Vec::new(), limits::TXN_READ_BYTES_MAX);
    let mut packing = Packing { workspace, bytes, left: Some(left) };
    let reply = run(args, now, &mut packing);
    if packing.left.is_none() { TOO_MUCH } else { reply }
}

/// What a key holds with its large value packed; `None` if it holds none.
fn pack<'b>(current: Current<'b>, bytes: &'b mut Vec<u8>) -> Option<Current<'b>> {
    let (large, content) = (current.large?, current.content?);
    bytes.clear();
    large.pack(bytes);
    Some(Current { content: Some(Content { bytes, ..content }), large: None, ..current })
}

/// A workspace in which every value is packed. Once more was packed than a transaction may look at,
/// every key is absent and nothing is written.
struct Packing<'w> {
    workspace: &'w mut dyn Workspace,
    bytes: Vec<u8>,
    /// Bytes that may still be packed.
    left: Option<usize>,
}

impl Workspace for Packing<'_> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        let Some(left) = self.left else { return Current::ABSENT };
        let current = self.workspace.read(key);
        let Some(large) = current.large else { return current };
        self.left = left.checked_sub(large.packed_len());
        if self.left.is_none() {
            return Current::ABSENT;
        }
        pack(current, &mut self.bytes).expect("it is large")
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        if self.left.is_some() {
            self.workspace.write(key, change);
        }
    }

    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        // Who reads ranges takes strings, and the kind of anything else.
        self.workspace.range(from, to, limit, visit)
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.workspace.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.left.is_none() || self.workspace.is_full()
    }
}
