//! The checksum of Redis's files: the polynomial of Jones, bits reflected.

const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();

/// The checksum of bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc64_on(0, bytes)
}

/// The checksum of what has the checksum `crc`, and further bytes.
pub fn crc64_on(crc: u64, bytes: &[u8]) -> u64 {
    // Eight bytes at a time: each has a table for its distance to the last one.
    let (words, rest) = bytes.as_chunks();
    let crc = words.iter().fold(crc, |crc, word| {
        let word = (crc ^ u64::from_le_bytes(*word)).to_le_bytes();
        let parts = word.iter().zip(TABLES.iter().rev());
        parts.fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| TABLES[0][usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// What a checksum becomes by so many bytes that are zero. Checksums are linear: those of two texts of
/// the same length differ by what the difference at their beginning becomes by the length of the rest.
///
/// # Panics
/// If that is more than any file has.
pub(crate) fn crc64_zeros(crc: u64, count: u64) -> u64 {
    assert!(count >> STEPS.len() == 0, "a file is shorter than that");
    let steps = STEPS.iter().enumerate().filter(|(power, _)| count >> power & 1 == 1);
    steps.fold(crc, |crc, (_, step)| apply(step, crc))
}

const fn apply(step: &[u64; 64], crc: u64) -> u64 {
    let (mut rest, mut sum) = (crc, 0);
    while rest != 0 {
        sum ^= step[rest.trailing_zeros() as usize];
        rest &= rest - 1;
    }
    sum
}

/// What zero bytes do to each bit of a checksum: one, two, four, and so on.
static STEPS: [[u64; 64]; 48] = {
    let mut steps = [[0; 64]; 48];
    let mut bit = 0;
    while bit < 64 {
        let crc: u64 = 1 << bit;
        steps[0][bit] = TABLES[0][(crc & 0xff) as usize] ^ crc >> 8;
        bit += 1;
    }
    let mut power = 1;
    while power < 48 {
        let mut bit = 0;
        while bit < 64 {
            steps[power][bit] = apply(&steps[power - 1], steps[power - 1][bit]);
            bit += 1;
        }
        power += 1;
    }
    steps
};

/// What a byte adds to the checksum that it is that many bytes before the end of.
static TABLES: [[u64; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut distance = 1;
    while distance < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc: u64 = tables[distance - 1][byte];
            tables[distance][byte] = tables[0][(crc & 0xff) as usize] ^ crc >> 8;
            byte += 1;
        }
        distance += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn parts_add_up() {
        let text: Vec<u8> = (0..100_u8).map(|byte| byte.wrapping_mul(37)).collect();
        for cut in 0..text.len() {
            assert_eq!(crc64_on(crc64(&text[..cut]), &text[cut..]), crc64(&text));
        }
    }

    #[test]
    fn another_beginning_is_told_from_the_difference() {
        let [one, other] = [b"REDIS0010", b"REDIS0012"];
        for length in [0, 1, 2, 7, 8, 1000, 65_537] {
            let rest = [3].repeat(length);
            let wanted = crc64_on(crc64(other), &rest);
            let difference = crc64_zeros(crc64(one) ^ crc64(other), length as u64);
            assert_eq!(crc64_on(crc64(one), &rest) ^ difference, wanted);
        }
    }
}
