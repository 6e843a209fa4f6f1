//! The other forms in which Redis keeps small collections as one string: sets of integers, and the hashes
//! of servers before 2.6.

use alloc::borrow::Cow;

use crate::bytes::{chunk, take};

/// A length in a zipmap that stands in the four bytes behind it, and the end of the zipmap.
const ZIPMAP_LONG: u8 = 254;
const ZIPMAP_END: u8 = 255;

/// Visits a set of integers: their width, their number, and they in ascending order. `None` if it is
/// damaged or the visitor says so.
pub(crate) fn integers(mut blob: &[u8], mut visit: impl FnMut(i64) -> Option<()>) -> Option<()> {
    let width = u32::from_le_bytes(chunk(&mut blob)?);
    let count = u32::from_le_bytes(chunk(&mut blob)?);
    if u64::from(count) * u64::from(width) != blob.len() as u64 {
        return None;
    }
    let mut last = None;
    while !blob.is_empty() {
        let number = match width {
            2 => i16::from_le_bytes(chunk(&mut blob)?).into(),
            4 => i32::from_le_bytes(chunk(&mut blob)?).into(),
            8 => i64::from_le_bytes(chunk(&mut blob)?),
            _ => return None,
        };
        if last.is_some_and(|last| last >= number) {
            return None;
        }
        last = Some(number);
        visit(number)?;
    }
    Some(())
}

/// Visits the fields and values of a zipmap in turns.
pub(crate) fn zipmap(
    mut blob: &[u8],
    mut visit: impl FnMut(Cow<'_, [u8]>) -> Option<()>,
) -> Option<()> {
    // The number of fields, which says nothing of large ones.
    take(&mut blob, 1)?;
    while blob.len() > 1 {
        let length = zipmap_length(&mut blob)?;
        visit(take(&mut blob, length)?.into())?;
        let length = zipmap_length(&mut blob)?;
        let [unused] = chunk(&mut blob)?;
        visit(take(&mut blob, length)?.into())?;
        take(&mut blob, unused.into())?;
    }
    (blob == [ZIPMAP_END]).then_some(())
}

fn zipmap_length(blob: &mut &[u8]) -> Option<usize> {
    match chunk(blob)? {
        [ZIPMAP_END] => None,
        [ZIPMAP_LONG] => Some(u32::from_le_bytes(chunk(blob)?) as usize),
        [length] => Some(length.into()),
    }
}
