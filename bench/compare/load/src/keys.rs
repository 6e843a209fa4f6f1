//! Which key comes next, spelled as redis-benchmark spells it: `key:` and twelve digits.

use quorate_workloads::Source;

/// Bytes of every key.
const KEY_BYTES: usize = 16;
/// A key as it is sent.
pub(crate) type Key = [u8; KEY_BYTES];

/// A source of keys.
pub(crate) struct Keys {
    /// How many keys there are to draw from; `None` if they come in order.
    range: Option<u64>,
    state: u64,
    /// The last one.
    key: Key,
}

impl Keys {
    /// Each of `0..range` equally often.
    pub(crate) fn uniform(range: u64, seed: u64) -> Self {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { range: Some(range.max(1)), state, key: spell(0) }
    }

    /// 0, 1, 2 and so on.
    pub(crate) fn in_order() -> Self {
        Self { range: None, state: 0, key: spell(0) }
    }
}

impl Source for Keys {
    type Request = Key;

    fn next(&mut self) -> &Key {
        let number = match self.range {
            None => {
                self.state += 1;
                self.state - 1
            }
            Some(range) => {
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                let spread = u128::from(self.state.wrapping_mul(0x2545_f491_4f6c_dd1d));
                u64::try_from((spread * u128::from(range)) >> 64).expect("below the range")
            }
        };
        self.key = spell(number);
        &self.key
    }
}

fn spell(mut number: u64) -> Key {
    let mut key = *b"key:000000000000";
    for digit in key[4..].iter_mut().rev() {
        *digit += u8::try_from(number % 10).expect("a digit");
        number /= 10;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelled_as_redis_benchmark_does() {
        assert_eq!(&spell(1234), b"key:000000001234");
    }

    #[test]
    fn uniform_keys_cover_the_range() {
        let mut keys = Keys::uniform(10, 7);
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| *keys.next()).collect();
        assert_eq!(drawn.len(), 10);
    }
}
