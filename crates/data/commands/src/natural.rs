//! Natural numbers of any size, as far as reading and writing floating-point numbers needs them.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// A natural number: 32-bit limbs, least significant first, none of them zero at the top.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Natural(Vec<u32>);

/// The largest power of ten in a limb, and how many digits that is.
const CHUNK: u32 = 1_000_000_000;
const CHUNK_DIGITS: u64 = 9;

impl Natural {
    /// The number that ASCII digits spell in base 10 or 16.
    pub(crate) fn from_digits<'a>(digits: impl Iterator<Item = &'a u8>, base: u32) -> Self {
        let mut number = Self::default();
        // Several digits at a time: one pass over the limbs per 32 bits instead of per digit.
        let (mut factor, mut chunk) = (1_u32, 0_u32);
        for &digit in digits {
            chunk = chunk * base + char::from(digit).to_digit(base).expect("digits of this base");
            factor *= base;
            if factor >= 1 << 26 {
                number.multiply_add(factor, chunk);
                (factor, chunk) = (1, 0);
            }
        }
        number.multiply_add(factor, chunk);
        number
    }

    /// This number times 2 to the power of `bits`.
    pub(crate) fn shifted_left(&self, bits: u32) -> Self {
        let mut limbs = vec![0; bits as usize / 32];
        let shift = bits % 32;
        let mut carry = 0;
        for &limb in &self.0 {
            let wide = u64::from(limb) << shift;
            limbs.push(wide as u32 | carry);
            carry = (wide >> 32) as u32;
        }
        limbs.push(carry);
        Self(limbs).trimmed()
    }

    /// This number times 10 to the power of `exponent`.
    pub(crate) fn times_power_of_ten(mut self, exponent: u64) -> Self {
        for _ in 0..exponent / CHUNK_DIGITS {
            self.multiply_add(CHUNK, 0);
        }
        self.multiply_add(10_u32.pow((exponent % CHUNK_DIGITS) as u32), 0);
        self
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Bits up to and including the highest that is set.
    pub(crate) fn bit_length(&self) -> u32 {
        self.0.last().map_or(0, |top| self.0.len() as u32 * 32 - top.leading_zeros())
    }

    /// The upper 128 bits at most, how many bits stand below them, and whether one of those is
    /// set.
    pub(crate) fn top(&self) -> (u128, u32, bool) {
        let below = self.bit_length().saturating_sub(128);
        let (skipped, shift) = (below as usize / 32, below % 32);
        let mut top: u128 = 0;
        for (index, &limb) in self.0[skipped.min(self.0.len())..].iter().enumerate().rev() {
            let limb = u128::from(limb);
            top |= if index == 0 { limb >> shift } else { limb << (32 * index as u32 - shift) };
        }
        let lost = self.0[..skipped].iter().any(|&limb| limb != 0)
            || (shift > 0 && self.0[skipped] & ((1 << shift) - 1) != 0);
        (top, below, lost)
    }

    /// The quotient, which must be below 2 to the power of `bits`, at most 127; and whether a
    /// remainder is left.
    pub(crate) fn divide(mut self, divisor: &Self, bits: u32) -> (u128, bool) {
        let mut shifted = divisor.shifted_left(bits);
        let mut quotient = 0;
        for _ in 0..=bits {
            quotient <<= 1;
            if self.compare(&shifted) != Ordering::Less {
                self.subtract(&shifted);
                quotient |= 1;
            }
            shifted.halve();
        }
        (quotient, !self.is_zero())
    }

    /// Appends the decimal digits.
    pub(crate) fn write_decimal(mut self, out: &mut Vec<u8>) {
        let start = out.len();
        while !self.is_zero() {
            let mut chunk = self.divide_by_chunk();
            for _ in 0..CHUNK_DIGITS {
                out.push(b'0' + (chunk % 10) as u8);
                chunk /= 10;
            }
        }
        while out.len() > start && out.last() == Some(&b'0') {
            out.pop();
        }
        out[start..].reverse();
        if out.len() == start {
            out.push(b'0');
        }
    }

    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for limb in &mut self.0 {
            let wide = u64::from(*limb) * u64::from(factor) + carry;
            *limb = wide as u32;
            carry = wide >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn subtract(&mut self, smaller: &Self) {
        let mut borrow = false;
        for (index, limb) in self.0.iter_mut().enumerate() {
            let taken = smaller.0.get(index).copied().unwrap_or(0);
            let (difference, under) = limb.overflowing_sub(taken);
            let (difference, under_again) = difference.overflowing_sub(u32::from(borrow));
            *limb = difference;
            borrow = under || under_again;
        }
        debug_assert!(!borrow, "subtracted the larger number");
        self.trim();
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for limb in self.0.iter_mut().rev() {
            let low = *limb & 1;
            *limb = *limb >> 1 | carry << 31;
            carry = low;
        }
        self.trim();
    }

    fn divide_by_chunk(&mut self) -> u32 {
        let mut rest = 0;
        for limb in self.0.iter_mut().rev() {
            let wide = rest << 32 | u64::from(*limb);
            *limb = (wide / u64::from(CHUNK)) as u32;
            rest = wide % u64::from(CHUNK);
        }
        self.trim();
        rest as u32
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn trimmed(mut self) -> Self {
        self.trim();
        self
    }
}

impl From<u64> for Natural {
    fn from(number: u64) -> Self {
        Self(vec![number as u32, (number >> 32) as u32]).trimmed()
    }
}
