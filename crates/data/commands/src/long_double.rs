//! The floating-point numbers of `INCRBYFLOAT`: x87 extended precision, bit for bit.
//!
//! Redis computes with C's `long double`, on x86-64 a sign, a 64-bit mantissa and a 15-bit
//! exponent, reads with `strtold` and writes with `printf("%.17Lf")` less trailing zeros. Replicas
//! and machines without such a type must get the same digits, so the three operations are done
//! here with integers: reading and adding round to the nearest with ties to even, writing is exact
//! up to the 17th digit and rounds the same way.

use alloc::vec::Vec;

use crate::natural::Natural;

/// A sign and `mantissa * 2^exponent`; infinite if the exponent is [`INFINITE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LongDouble {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

const INFINITE: i32 = i32::MAX;
/// The exponent of the smallest denormal number.
const EXPONENT_MIN: i32 = -16445;
/// Numbers from 2 to this power on are infinite.
const MAGNITUDE_MAX: i32 = 16384;
/// Redis refuses text of this length or more (`MAX_LONG_DOUBLE_CHARS`).
const TEXT_BYTES_MAX: usize = 5 * 1024;
/// Exponents in a text are cut off here, far beyond every number that is finite and not zero.
const TEXT_EXPONENT_MAX: i64 = 1_000_000;
/// Texts of so many digits and negative exponents down to this one, which is to say nearly all, are
/// read in 128 bits.
const SHORT_DIGITS: i64 = 38;
const SHORT_EXPONENT: i64 = 17;
/// Digits behind the decimal point.
const FRACTION_DIGITS: usize = 17;
const FRACTION: u128 = 10_u128.pow(FRACTION_DIGITS as u32);

impl LongDouble {
    pub(crate) const ZERO: Self = Self { negative: false, mantissa: 0, exponent: 0 };

    /// Reads what `strtold` reads if that is all of the text: decimal, hexadecimal or infinite.
    /// Nothing for `nan`, for leading spaces, and for what is too large or too small.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Self { negative, mantissa: 0, exponent: INFINITE });
        }
        let value = match rest {
            [b'0', b'x' | b'X', digits @ ..] => Self::parse_hexadecimal(digits)?,
            digits => Self::parse_decimal(digits)?,
        };
        Some(Self { negative, ..value })
    }

    /// This number unless it is infinite.
    pub(crate) fn finite(self) -> Option<Self> {
        (self.exponent != INFINITE).then_some(self)
    }

    /// A thousand times this, rounded up to a whole number; `None` if that isn't one of 64 bits.
    pub(crate) fn ceil_of_thousandfold(self) -> Option<i64> {
        let finite = self.finite()?;
        let product = u128::from(finite.mantissa) * 1000;
        let product = Self::round(finite.negative, product, false, finite.exponent);
        let mantissa = i128::from(product.mantissa);
        let distance = product.exponent.unsigned_abs();
        let magnitude = if product.exponent >= 0 {
            if mantissa == 0 || distance < 62 { mantissa << distance.min(62) } else { return None }
        } else {
            let whole = mantissa.checked_shr(distance).unwrap_or(0);
            let rest = distance >= 64 || mantissa & ((1 << distance) - 1) != 0;
            // Upwards is away from zero for positive numbers only.
            whole + i128::from(rest && mantissa != 0 && !product.negative)
        };
        i64::try_from(if product.negative { -magnitude } else { magnitude }).ok()
    }

    /// The sum. Infinite if one of the two is, even where IEEE 754 says "not a number".
    pub(crate) fn add(self, other: Self) -> Self {
        if self.exponent == INFINITE || other.exponent == INFINITE {
            return Self { negative: false, mantissa: 0, exponent: INFINITE };
        }
        if self.mantissa == 0 && other.mantissa == 0 {
            return Self { negative: self.negative && other.negative, ..Self::ZERO };
        }
        let (a, b) = (self.normalized(), other.normalized());
        let (large, small) =
            if (a.exponent, a.mantissa) >= (b.exponent, b.mantissa) { (a, b) } else { (b, a) };
        if small.mantissa == 0 {
            return large;
        }
        // The larger number's top bit comes to stand at bit 126, so that a carry fits.
        let wide_large = u128::from(large.mantissa) << 63;
        let wide_small = u128::from(small.mantissa) << 63;
        let distance = large.exponent.abs_diff(small.exponent);
        let shifted = wide_small.checked_shr(distance).unwrap_or(0);
        let lost = shifted.checked_shl(distance).unwrap_or(0) != wide_small;
        let exponent = large.exponent - 63;
        if large.negative == small.negative {
            return Self::round(large.negative, wide_large + shifted, lost, exponent);
        }
        let difference = wide_large - shifted - u128::from(lost);
        Self::round(large.negative && difference != 0, difference, lost, exponent)
    }

    /// The number with 17 digits behind the point, less trailing zeros.
    pub(crate) fn format(self) -> Vec<u8> {
        let mut text = Vec::new();
        if self.negative {
            text.push(b'-');
        }
        if self.exponent >= 0 {
            let exponent = self.exponent.unsigned_abs();
            Natural::from(self.mantissa).shifted_left(exponent).write_decimal(&mut text);
        } else {
            let scaled = u128::from(self.mantissa) * FRACTION;
            let rounded = round_shift(scaled, false, self.exponent.unsigned_abs());
            let whole = (rounded / FRACTION) as u64;
            Natural::from(whole).write_decimal(&mut text);
            write_fraction(rounded % FRACTION, &mut text);
        }
        if text == b"-0" {
            text.remove(0);
        }
        text
    }

    fn parse_decimal(text: &[u8]) -> Option<Self> {
        let Digits { whole, fraction, exponent } = Digits::split(text, b'e', u8::is_ascii_digit)?;
        let digits = || whole.iter().chain(fraction).skip_while(|&&digit| digit == b'0');
        let count = digits().count() as i64;
        if count == 0 {
            return Some(Self::ZERO);
        }
        let exponent = exponent - fraction.len() as i64;
        // Between 10^(magnitude-1) and 10^magnitude. The largest number is about 1.2e4932, and
        // half of the smallest about 1.8e-4951.
        let magnitude = exponent + count;
        if !(-4951..=4933).contains(&magnitude) {
            return None;
        }
        if count <= SHORT_DIGITS && (-SHORT_EXPONENT..=0).contains(&exponent) {
            let number = digits().fold(0, |n: u128, digit| n * 10 + u128::from(digit - b'0'));
            // With the top bit at 127, the quotient has at least 70 bits.
            let shift = number.leading_zeros();
            let divisor = 10_u128.pow(exponent.unsigned_abs() as u32);
            let (quotient, rest) = ((number << shift) / divisor, (number << shift) % divisor);
            return Self::round(false, quotient, rest != 0, -(shift as i32)).in_range();
        }
        let number = Natural::from_digits(digits(), 10);
        if exponent >= 0 {
            let (top, below, lost) = number.times_power_of_ten(exponent.unsigned_abs()).top();
            return Self::round(false, top, lost, below as i32).in_range();
        }
        let divisor = Natural::from(1).times_power_of_ten(exponent.unsigned_abs());
        // Shifted so that the quotient has 66 or 67 bits: the mantissa and two to round it by.
        let shift = 66 + divisor.bit_length() as i32 - number.bit_length() as i32;
        let distance = shift.unsigned_abs();
        let (quotient, lost) = if shift >= 0 {
            number.shifted_left(distance).divide(&divisor, 67)
        } else {
            number.divide(&divisor.shifted_left(distance), 67)
        };
        Self::round(false, quotient, lost, -shift).in_range()
    }

    fn parse_hexadecimal(text: &[u8]) -> Option<Self> {
        let Digits { whole, fraction, exponent } =
            Digits::split(text, b'p', u8::is_ascii_hexdigit)?;
        let number = Natural::from_digits(whole.iter().chain(fraction), 16);
        if number.is_zero() {
            return Some(Self::ZERO);
        }
        let (top, below, lost) = number.top();
        let exponent = exponent - 4 * fraction.len() as i64 + i64::from(below);
        Self::round(false, top, lost, exponent as i32).in_range()
    }

    /// What was read, unless it was rounded to zero or infinity.
    fn in_range(self) -> Option<Self> {
        self.finite().filter(|number| number.mantissa != 0)
    }

    /// The number closest to `bits * 2^exponent`, or to slightly more if bits were `lost` below;
    /// then there must be more than 64 bits.
    fn round(negative: bool, bits: u128, lost: bool, exponent: i32) -> Self {
        let length = 128 - bits.leading_zeros() as i32;
        let dropped = (length - 64).max(EXPONENT_MIN - exponent).max(0);
        debug_assert!(!lost || dropped > 0);
        let mut kept = round_shift(bits, lost, dropped.unsigned_abs());
        let mut exponent = exponent + dropped;
        if kept >> 64 != 0 {
            kept >>= 1;
            exponent += 1;
        }
        let mantissa = kept as u64;
        if mantissa == 0 {
            return Self { negative, ..Self::ZERO };
        }
        if exponent + 64 - mantissa.leading_zeros() as i32 > MAGNITUDE_MAX {
            return Self { negative, mantissa: 0, exponent: INFINITE };
        }
        Self { negative, mantissa, exponent }
    }

    /// The same number with the top bit of the mantissa set; zero with the least exponent.
    fn normalized(self) -> Self {
        if self.mantissa == 0 {
            return Self { exponent: i32::MIN, ..self };
        }
        let zeros = self.mantissa.leading_zeros();
        Self { mantissa: self.mantissa << zeros, exponent: self.exponent - zeros as i32, ..self }
    }
}

/// `bits / 2^distance` to the nearest whole number, ties to even; `lost` bits below make it
/// slightly more.
pub(crate) fn round_shift(bits: u128, lost: bool, distance: u32) -> u128 {
    if distance == 0 {
        return bits;
    }
    let kept = bits.checked_shr(distance).unwrap_or(0);
    let half = bits.checked_shr(distance - 1).unwrap_or(0) & 1 == 1;
    let below = match distance - 1 {
        0 => 0,
        width @ 1..128 => bits << (128 - width),
        _ => bits,
    };
    let up = half && (lost || below != 0 || kept & 1 == 1);
    kept + u128::from(up)
}

fn write_fraction(mut fraction: u128, text: &mut Vec<u8>) {
    if fraction == 0 {
        return;
    }
    let mut digits = [b'0'; FRACTION_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (fraction % 10) as u8;
        fraction /= 10;
    }
    let used = digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    text.push(b'.');
    text.extend_from_slice(&digits[..used]);
}

/// The parts of a number's text.
pub(crate) struct Digits<'a> {
    pub(crate) whole: &'a [u8],
    pub(crate) fraction: &'a [u8],
    pub(crate) exponent: i64,
}

impl<'a> Digits<'a> {
    /// Splits a number at its point and its exponent; `None` if it has no digit, or a character that
    /// no number has.
    pub(crate) fn split(text: &'a [u8], marker: u8, is_digit: fn(&u8) -> bool) -> Option<Self> {
        let run = |text: &'a [u8]| {
            let end = text.iter().position(|byte| !is_digit(byte)).unwrap_or(text.len());
            text.split_at(end)
        };
        let (whole, rest) = run(text);
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => run(rest),
            rest => (&[][..], rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let exponent = match rest {
            [] => 0,
            [first, rest @ ..] if first.eq_ignore_ascii_case(&marker) => parse_exponent(rest)?,
            _ => return None,
        };
        Some(Self { whole, fraction, exponent })
    }
}

fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let exponent = digits
        .iter()
        .fold(0, |value: i64, digit| (value * 10 + i64::from(digit - b'0')).min(TEXT_EXPONENT_MAX));
    Some(if negative { -exponent } else { exponent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn sum(a: &str, b: &str) -> Option<String> {
        let sum = LongDouble::parse(a.as_bytes())?.add(LongDouble::parse(b.as_bytes())?);
        Some(String::from_utf8(sum.finite()?.format()).unwrap())
    }

    /// The sums are what a Redis 7.0.15 on x86-64 answered.
    #[test]
    fn sums_have_the_digits_of_an_x87() {
        for (a, b, expected) in [
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("3", "1.1", "4.1"),
            ("-0", "0", "0"),
            ("-0.0000000000000000001", "0", "0"),
            ("1", "-1", "0"),
            ("0x1p-1", "0x.8", "1"),
            ("1e20", "1", "100000000000000000000"),
            ("1e20", "5", "100000000000000000008"),
            ("18446744073709551615", "0.5", "18446744073709551616"),
            ("3.0e3", "1.1", "3001.10000000000000009"),
            ("1e-17", "0", "0.00000000000000001"),
            ("5e-18", "0", "0"),
            ("1.5e-17", "0", "0.00000000000000002"),
            ("123456789.123456789", "1e-9", "123456789.12345678999554366"),
            ("0.5", "0x1p-63", "0.5"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
    }

    #[test]
    fn what_strtold_refuses_is_refused() {
        for text in [
            "", "-", "+", ".", "e5", "1e", "1e+", "0x", "0x.", "0x1p", "nan", "-nan", " 1", "1 ",
            "1e5000", "1e-5000", "infinit", "1.2.3", "--1", "0xg", "1\0",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
        for text in ["0e99999999999999999999", "1e-4950", "1.1e4932", ".5", "5.", "+5", "INF"] {
            assert!(LongDouble::parse(text.as_bytes()).is_some(), "{text}");
        }
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1.1e4932", "1.1e4932"), None, "the sum is infinite");
    }
}
