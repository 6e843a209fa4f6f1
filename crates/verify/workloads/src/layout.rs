//! The spelling of keys and values.

/// Spells numbered keys and values, each of a fixed length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    prefix: &'static str,
    key_bytes: usize,
    value_bytes: usize,
}

impl Layout {
    /// Keys and values of 64 bytes, as in the paper (Meerkat §6.2).
    pub const PAPER: Self = Self { prefix: "item:", key_bytes: 64, value_bytes: 64 };
    /// Keys as redis-benchmark spells them and values of 100 bytes, as in `bench/compare`.
    pub const COMPARE: Self = Self { prefix: "key:", key_bytes: 16, value_bytes: 100 };
    /// Accounts: keys of 64 bytes; the values are numbers, and so no longer than their digits.
    pub const BANK: Self = Self { prefix: "account:", key_bytes: 64, value_bytes: 64 };

    /// Bytes of every key.
    pub const fn key_bytes(self) -> usize {
        self.key_bytes
    }

    /// Bytes of every value that is not a number.
    pub const fn value_bytes(self) -> usize {
        self.value_bytes
    }

    /// Appends the key of this number: a prefix, and digits up to its length.
    pub fn key(self, number: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        digits(number, self.key_bytes - self.prefix.len(), out);
    }

    /// Appends a value that shows this number.
    pub fn value(self, number: u64, out: &mut Vec<u8>) {
        digits(number, self.value_bytes, out);
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
                assert_eq!(key.len(), layout.key_bytes());
                assert!(key.ends_with(&number.to_string()), "{key}");
                assert_eq!(spelled(|out| layout.value(number, out)).len(), layout.value_bytes());
            }
        }
        assert_eq!((Layout::PAPER.key_bytes(), Layout::PAPER.value_bytes()), (64, 64));
    }

    #[test]
    fn keys_are_spelled_as_redis_benchmark_does() {
        assert_eq!(spelled(|out| Layout::COMPARE.key(1234, out)), "key:000000001234");
    }
}
