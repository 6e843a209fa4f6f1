//! The command table, and finding a row by name.
//!
//! `commands.txt` says who runs each command; the rest of a row is what a Redis 7.0.15 stated about
//! itself, and facts in its form about `SESSION` and `KEYRANGE`, which no Redis has.

use crate::spec::Spec;

/// What `build.rs` makes of `commands.txt` and `facts/*.json`.
mod rows {
    use crate::spec::{
        AccessRule, Argument, Categories, ConnectionCommand, Docs, Flags, KeySpec, Keyed, Keys,
        KeysBegin, KeysFind, Run, ServerCommand, Spec, Split, category, flag,
    };
    use crate::{
        bitfield, bitmap, dump, expiry, generic, geo, hash, hyperloglog, lcs, list, numeric, range,
        set, set_algebra, several, sort, sorted_set, stream, string,
    };

    include!(concat!(env!("OUT_DIR"), "/table.rs"));
}

/// Every command, ordered by name.
pub fn table() -> &'static [Spec] {
    &rows::TABLE
}

/// The command of this name, in any case. Containers such as `CLIENT` are commands;
/// [`crate::resolve`] also finds subcommands.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Spec> {
    if name.len() > NAME_BYTES_MAX {
        return lookup_long(name);
    }
    let packed = pack(name)?;
    let mut slot = slot_of(packed);
    loop {
        let (held, index) = SLOTS[slot];
        if held == packed {
            let spec = &rows::TABLE[usize::from(index)];
            // A name that ends in zero bytes packs like the name without them.
            return (spec.name.len() == name.len()).then_some(spec);
        }
        if held == 0 {
            return None;
        }
        slot = (slot + 1) % SLOTS.len();
    }
}

/// The rows are ordered by name, and names are in lower case.
#[cold]
fn lookup_long(name: &[u8]) -> Option<&'static Spec> {
    let ordered = |spec: &Spec| spec.name.bytes().cmp(name.iter().map(u8::to_ascii_lowercase));
    rows::TABLE.binary_search_by(ordered).ok().map(|index| &rows::TABLE[index])
}

/// The command or subcommand of this full name, in any case: `get`, `client|id`.
pub fn lookup_name(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(bar) => subcommand(lookup(&name[..bar])?, &name[bar + 1..]),
    }
}

/// The subcommand of this name, in any case.
pub(crate) fn subcommand(container: &'static Spec, name: &[u8]) -> Option<&'static Spec> {
    let skipped = container.name.len() + 1;
    let named = |spec: &&Spec| spec.name.as_bytes()[skipped..].eq_ignore_ascii_case(name);
    container.subcommands.iter().find(named)
}

/// The row with this [`Spec::id`].
pub fn by_id(id: u16) -> Option<&'static Spec> {
    let number = usize::from(id & 0x7fff);
    match id >> 15 {
        0 => rows::TABLE.get(number),
        _ => rows::TABLE.get(number >> 6)?.subcommands.get(number & 63),
    }
}

/// The longest name of a command that is not a subcommand, but for a few that are searched for.
const NAME_BYTES_MAX: usize = 16;
/// Four times the rows or more, so that probe sequences are short.
const SLOT_BITS: u32 = 10;

/// Names are hashed and compared as one number: their bytes in lower case, filled up with zeros.
/// Two loads that may overlap take the place of a loop over the bytes.
#[inline]
fn pack(name: &[u8]) -> Option<u128> {
    let length = name.len();
    let bytes = match length {
        1..4 => [0, length / 2, length - 1]
            .iter()
            .fold(0, |bytes, &at| bytes | u128::from(name[at]) << (at * 8)),
        4..8 => {
            let (first, last) = (name.first_chunk()?, name.last_chunk()?);
            let [first, last] = [first, last].map(|chunk| u128::from(u32::from_le_bytes(*chunk)));
            first | last << ((length - 4) * 8)
        }
        8..=NAME_BYTES_MAX => {
            let (first, last) = (name.first_chunk()?, name.last_chunk()?);
            let [first, last] = [first, last].map(|chunk| u128::from(u64::from_le_bytes(*chunk)));
            first | last << ((length - 8) * 8)
        }
        _ => return None,
    };
    Some(to_lower(bytes))
}

/// Sets bit 5 of every byte that is an ASCII capital.
const fn to_lower(bytes: u128) -> u128 {
    const EACH: u128 = u128::MAX / 0xff;
    // Seven bits of a byte plus these overflow into its eighth from `A` and from behind `Z` on.
    let seven = bytes & (EACH * 0x7f);
    let from_a = seven + EACH * (0x80 - b'A' as u128);
    let behind_z = seven + EACH * (0x7f - b'Z' as u128);
    let capital = (from_a ^ behind_z) & !bytes & (EACH * 0x80);
    bytes | capital >> 2
}

const fn slot_of(packed: u128) -> usize {
    let folded = (packed as u64) ^ ((packed >> 64) as u64).rotate_left(29);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOT_BITS)) as usize
}

/// An open-addressed hash table, filled at compile time: the packed name and the row.
static SLOTS: [(u128, u8); 1 << SLOT_BITS] = {
    let mut slots = [(0, 0); 1 << SLOT_BITS];
    let mut index = 0;
    while index < rows::TABLE.len() {
        let name = rows::TABLE[index].name.as_bytes();
        if name.len() > NAME_BYTES_MAX {
            index += 1;
            continue;
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        let mut at = 0;
        while at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        let packed = u128::from_le_bytes(bytes);
        let mut slot = slot_of(packed);
        while slots[slot].0 != 0 {
            slot = (slot + 1) % slots.len();
        }
        slots[slot] = (packed, index as u8);
        index += 1;
    }
    slots
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_name_in_any_case_and_by_id() {
        for (index, spec) in table().iter().enumerate() {
            assert_eq!(usize::from(spec.id), index);
            assert_eq!(lookup(spec.name.as_bytes()), Some(spec));
            assert_eq!(lookup(spec.name.to_ascii_uppercase().as_bytes()), Some(spec));
            for sub in spec.subcommands {
                assert_eq!(lookup_name(sub.name.as_bytes()), Some(sub));
                assert_eq!(by_id(sub.id), Some(sub));
            }
            assert_eq!(by_id(spec.id), Some(spec));
        }
        assert!(table().is_sorted_by_key(|spec| spec.name));
    }

    #[test]
    fn packing_is_lower_case_of_every_byte() {
        for length in 1..=NAME_BYTES_MAX {
            for byte in 0..=u8::MAX {
                let mut name = [b'q'; NAME_BYTES_MAX];
                name[length - 1] = byte;
                name[length / 2] = byte;
                let mut expected = [0; NAME_BYTES_MAX];
                expected[..length].copy_from_slice(&name[..length].to_ascii_lowercase());
                assert_eq!(pack(&name[..length]), Some(u128::from_le_bytes(expected)));
            }
        }
    }

    #[test]
    fn strangers_are_not_found() {
        for name in [&b""[..], b"ge", b"gett", b"get\0", b"\0", b"averyveryverylongname", b"g\xe5t"]
        {
            assert_eq!(lookup(name), None, "{name:?}");
        }
        assert_eq!(lookup_name(b"client|"), None);
        assert_eq!(lookup_name(b"get|x"), None);
        assert_eq!(by_id(u16::MAX), None);
    }
}
