//! The spelling of keys and values.

/// Spells numbered keys and values, each of a fixed length.
///
/// Keys are numbered densely: those of unit *u* (an account, a subscriber) are the numbers
/// `u * slots .. (u + 1) * slots`, one for each kind of row that a unit may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    slots: &'static [Slot],
}

/// One kind of row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// The key before the unit's number.
    pub(crate) prefix: &'static str,
    /// Digits of the unit's number.
    pub(crate) digits: usize,
    /// The key after it.
    pub(crate) suffix: &'static str,
    /// Bytes of a value that is not a number.
    pub(crate) value_bytes: usize,
    /// Whether the value is a hash with a [`LOAD`] and a [`CONTEXT`], and no string.
    pub(crate) is_hash: bool,
}

/// The field of a hash that counts.
pub(crate) const LOAD: &[u8] = b"load";
/// The field of a hash that holds the other bytes.
pub(crate) const CONTEXT: &[u8] = b"context";

impl Slot {
    /// A string whose key ends with the number.
    pub(crate) const fn string(prefix: &'static str, digits: usize, value_bytes: usize) -> Self {
        Self { prefix, digits, suffix: "", value_bytes, is_hash: false }
    }

    /// A string of a unit: `{prefix NUMBER}suffix`, so that the unit's keys share a hash tag.
    pub(crate) const fn tagged(
        prefix: &'static str,
        suffix: &'static str,
        value_bytes: usize,
    ) -> Self {
        Self { prefix, digits: UNIT_DIGITS, suffix, value_bytes, is_hash: false }
    }
}

/// Digits of the number of a unit that has several rows.
pub(crate) const UNIT_DIGITS: usize = 9;

impl Layout {
    /// Keys and values of 64 bytes, as in the paper (Meerkat §6.2).
    pub const PAPER: Self = Self::new(&[Slot::string("item:", 59, 64)]);
    /// Keys as redis-benchmark spells them and values of 100 bytes, as in `bench/compare`.
    pub const COMPARE: Self = Self::new(&[Slot::string("key:", 12, 100)]);
    /// Accounts: keys of 64 bytes; the values are numbers, and so no longer than their digits.
    pub const BANK: Self = Self::new(&[Slot::string("account:", 56, 64)]);

    /// One slot for each kind of row.
    pub(crate) const fn new(slots: &'static [Slot]) -> Self {
        Self { slots }
    }

    /// How many keys a unit has.
    pub(crate) const fn slots(self) -> u64 {
        self.slots.len() as u64
    }

    fn slot(self, key: u64) -> &'static Slot {
        &self.slots[(key % self.slots()) as usize]
    }

    /// Bytes of the key of this number.
    pub fn key_bytes(self, key: u64) -> usize {
        let slot = self.slot(key);
        slot.prefix.len() + slot.digits + slot.suffix.len()
    }

    /// Bytes of its value, unless that is a number.
    pub fn value_bytes(self, key: u64) -> usize {
        self.slot(key).value_bytes
    }

    /// Whether its value is a hash.
    pub(crate) fn is_hash(self, key: u64) -> bool {
        self.slot(key).is_hash
    }

    /// Appends the key of this number.
    pub fn key(self, key: u64, out: &mut Vec<u8>) {
        let slot = self.slot(key);
        out.extend_from_slice(slot.prefix.as_bytes());
        digits(key / self.slots(), slot.digits, out);
        out.extend_from_slice(slot.suffix.as_bytes());
    }

    /// Appends a value for this key that shows a number.
    pub fn value(self, key: u64, number: u64, out: &mut Vec<u8>) {
        digits(number, self.value_bytes(key), out);
    }
}

/// Appends the last `width` digits, with leading zeros.
fn digits(mut number: u64, width: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + width, b'0');
    for digit in out[start..].iter_mut().rev() {
        if number == 0 {
            break;
        }
        *digit += (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(spell: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        spell(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn keys_and_values_have_their_lengths() {
        for layout in [Layout::PAPER, Layout::COMPARE, Layout::BANK] {
            for number in [0, 7, 999_999_999_999] {
                let key = spelled(|out| layout.key(number, out));
                assert_eq!(key.len(), layout.key_bytes(number));
                assert!(key.ends_with(&number.to_string()), "{key}");
                let value = spelled(|out| layout.value(0, number, out));
                assert_eq!(value.len(), layout.value_bytes(0));
            }
        }
        assert_eq!((Layout::PAPER.key_bytes(0), Layout::PAPER.value_bytes(0)), (64, 64));
    }

    #[test]
    fn keys_are_spelled_as_redis_benchmark_does() {
        assert_eq!(spelled(|out| Layout::COMPARE.key(1234, out)), "key:000000001234");
    }

    #[test]
    fn the_rows_of_a_unit_have_numbers_in_a_row_and_a_tag_in_common() {
        const PAIR: Layout =
            Layout::new(&[Slot::tagged("{a:", "}:x", 3), Slot::tagged("{a:", "}:yy", 5)]);
        assert_eq!(spelled(|out| PAIR.key(14, out)), "{a:000000007}:x");
        assert_eq!(spelled(|out| PAIR.key(15, out)), "{a:000000007}:yy");
        assert_eq!((PAIR.key_bytes(15), PAIR.value_bytes(15)), (16, 5));
        assert_eq!(spelled(|out| PAIR.value(14, 12, out)), "012");
    }
}
