//! Key hashing: one stable 64-bit hash decides a key's lane and its place in the index.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::LaneId;

/// The hash of a key. Stable across builds, machines and versions, since peers must agree on the
/// lane of a key (rapidhash v3 with its default seed).
#[inline]
pub fn hash_key(key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(key)
}

/// The lane on which updates of a key with this hash run. Takes the upper half, so that the index,
/// which takes the lower bits, stays balanced within a lane.
#[inline]
pub fn lane_of_hash(hash: u64, lanes: u16) -> LaneId {
    debug_assert!(lanes > 0);
    // Multiply-shift instead of a remainder: the same balance without a division.
    LaneId((((hash >> 32) * u64::from(lanes)) >> 32) as u16)
}

/// The lane on which updates of `key` run.
#[inline]
pub fn lane_of_key(key: &[u8], lanes: u16) -> LaneId {
    lane_of_hash(hash_key(key), lanes)
}

/// A family of hashes that one seed names. A client that does not know the seed when it writes a
/// key can't choose keys whose hashes collide.
#[derive(Debug)]
pub struct SeededHash(RapidSecrets);

impl SeededHash {
    /// The member of the family that this seed names; the same on every machine.
    pub fn new(seed: u64) -> Self {
        Self(RapidSecrets::seed(seed))
    }

    /// The hash of a key and some words about it.
    pub fn of(&self, key: &[u8], words: [u64; 2]) -> u64 {
        let mut bytes = [0; 24];
        let [hash, first, second] = [rapidhash_v3_seeded(key, &self.0), words[0], words[1]];
        for (place, word) in bytes.chunks_exact_mut(8).zip([hash, first, second]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        rapidhash_v3_seeded(&bytes, &self.0)
    }
}

/// The Redis Cluster hash slot of a key, 0 to 16383: CRC16 (XMODEM) of the key, or of the part
/// between the first `{` and the next `}` if that part is not empty.
pub fn hash_slot(key: &[u8]) -> u16 {
    crc16(unit_of(key)) % 16384
}

/// The unit of a key, which its hash slot follows from: its hash tag, or else the whole key.
pub fn unit_of(key: &[u8]) -> &[u8] {
    // Most have none, which is seen sooner than where one begins.
    if !key.contains(&b'{') {
        return key;
    }
    let tagged = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    tagged.unwrap_or(key)
}

/// Four bytes at a time: what each of them makes of the remainder does not depend on the others.
fn crc16(bytes: &[u8]) -> u16 {
    let (fours, rest) = bytes.as_chunks::<4>();
    let crc = fours.iter().fold(0, |crc: u16, &[first, second, third, fourth]| {
        let [high, low] = crc.to_be_bytes();
        let bytes = [fourth, third, low ^ second, high ^ first];
        let of = |place: usize| CRC16[place][usize::from(bytes[place])];
        of(0) ^ of(1) ^ of(2) ^ of(3)
    });
    rest.iter().fold(crc, |crc, &byte| (crc << 8) ^ CRC16[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// What each byte, with none to three zeros behind it, makes of an empty remainder, by the polynomial of
/// XMODEM.
const CRC16: [[u16; 256]; 4] = {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 32 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
            if bit % 8 == 0 {
                tables[bit / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
};

/// The partition of a key, out of `partitions`: equal shares of the slots of a Redis cluster, so
/// that keys with one hash tag share a partition.
pub fn partition_of(key: &[u8], partitions: usize) -> u16 {
    match partitions {
        1 => 0,
        count => (usize::from(hash_slot(key)) * count / 16384) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(hash_slot(b"foo"), 12182);
        assert_eq!(hash_slot(b"{user1000}.following"), hash_slot(b"{user1000}.followers"));
        assert_eq!(hash_slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16384);
    }

    #[test]
    fn the_remainder_of_any_length_is_that_of_one_bit_after_the_other() {
        let bytes: [u8; 41] = core::array::from_fn(|at| (at * 89 + 7) as u8);
        for length in 0..=bytes.len() {
            let bits = bytes[..length]
                .iter()
                .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
            let by_bit = bits.fold(0_u16, |crc, bit| {
                let carry = crc >> 15 ^ u16::from(bit);
                (crc << 1) ^ (carry * 0x1021)
            });
            assert_eq!(crc16(&bytes[..length]), by_bit, "{length}");
        }
    }

    #[test]
    fn the_key_hash_is_pinned_because_peers_must_agree_on_it() {
        assert_eq!(hash_key(b""), hash_key(b""));
        let pinned = [hash_key(b"a"), hash_key(b"key:000000000001")];
        assert_eq!(pinned, PINNED, "the hash changed: nodes of two builds would disagree on lanes");
    }

    const PINNED: [u64; 2] = [6_457_959_414_642_172_395, 6_606_676_419_453_103_775];

    #[test]
    fn a_seeded_hash_depends_on_the_seed_the_key_and_each_word() {
        let all = [
            SeededHash::new(1).of(b"k", [2, 3]),
            SeededHash::new(2).of(b"k", [2, 3]),
            SeededHash::new(1).of(b"l", [2, 3]),
            SeededHash::new(1).of(b"k", [4, 3]),
            SeededHash::new(1).of(b"k", [2, 4]),
        ];
        for (at, hash) in all.iter().enumerate() {
            assert!(!all[..at].contains(hash), "{at}");
        }
        assert_eq!(all[0], PINNED_SEEDED, "the hash changed: two builds would find all different");
    }

    const PINNED_SEEDED: u64 = 8_636_973_613_071_940_439;

    #[test]
    fn lanes_are_balanced() {
        let mut counts = [0u32; 3];
        for n in 0..30_000u32 {
            counts[usize::from(lane_of_key(&n.to_le_bytes(), 3).0)] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }
}
