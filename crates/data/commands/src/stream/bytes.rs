//! Numbers and strings of a stream's bytes. They come from peers, so whatever they are, reading
//! them is an error at worst.

use alloc::vec::Vec;

use crate::Reply;

/// Bytes that are no stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

impl From<Damaged> for Reply<'static> {
    fn from(_: Damaged) -> Self {
        Self::error("ERR the bytes of the stream are damaged; delete the key, or restore it")
    }
}

/// The first bytes.
pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Damaged> {
    let (taken, behind) = rest.split_first_chunk().ok_or(Damaged)?;
    *rest = behind;
    Ok(*taken)
}

/// A number, written seven bits to a byte, the lowest first.
#[inline]
pub(super) fn take_number(rest: &mut &[u8]) -> Result<u64, Damaged> {
    match **rest {
        [byte @ ..0x80, ref behind @ ..] => {
            *rest = behind;
            Ok(byte.into())
        }
        _ => take_long_number(rest),
    }
}

fn take_long_number(rest: &mut &[u8]) -> Result<u64, Damaged> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let [byte] = take(rest)?;
        let bits = u64::from(byte & 0x7f);
        if shift > 63 || bits << shift >> shift != bits {
            return Err(Damaged);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
        shift += 7;
    }
}

/// A string behind its length.
pub(super) fn take_item<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Damaged> {
    let length = usize::try_from(take_number(rest)?).map_err(|_| Damaged)?;
    let (item, behind) = rest.split_at_checked(length).ok_or(Damaged)?;
    *rest = behind;
    Ok(item)
}

#[inline]
pub(super) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn put_item(item: &[u8], out: &mut Vec<u8>) {
    put_number(item.len() as u64, out);
    out.extend_from_slice(item);
}

/// A difference as a number, small ones of either sign as small numbers.
pub(super) fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

/// What [`zigzag`] was made from.
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_items_come_back() {
        for number in [0, 1, 127, 128, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            put_item(&bytes.clone(), &mut bytes);
            let mut rest = &bytes[..];
            assert_eq!(take_number(&mut rest), Ok(number));
            assert_eq!(take_item(&mut rest).map(|item| take_number(&mut { item })), Ok(Ok(number)));
            assert_eq!(take_number(&mut rest), Err(Damaged));
        }
        assert_eq!(take_number(&mut &[0xff; 12][..]), Err(Damaged));
        assert_eq!(
            take_number(&mut &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2][..]),
            Err(Damaged)
        );
        for number in [0, 1, -1, 1_000, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(number)), number);
        }
    }
}
