//! Scores and other doubles, read as C's `strtod` reads them and written as `printf("%.17g")` does.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use crate::Reply;
use crate::long_double::{Digits, round_shift};
use crate::number::format_integer;
use crate::options::c_string;

/// Whole numbers below this have at most 17 digits and are written without an exponent.
const WHOLE_MAX: f64 = 1e16;
/// The exponents of the smallest number and of the first one that is infinite.
const EXPONENT_MIN: i64 = -1074;
const EXPONENT_END: i64 = 1024;
const MANTISSA_BITS: i64 = 53;

/// A number as `strtod` read it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Read {
    value: f64,
    /// Whether the text says something else: it was rounded to zero or to infinity.
    out_of_range: bool,
}

/// A number that an argument states: decimal, hexadecimal or infinite. Nothing for `nan`, for leading
/// spaces, and for what is rounded to zero or to infinity.
pub(crate) fn parse_double(text: &[u8]) -> Option<f64> {
    read(text).filter(|read| !read.out_of_range).map(|read| read.value)
}

/// The same, or the error for the client.
pub(crate) fn double(text: &[u8]) -> Result<f64, Reply<'static>> {
    parse_double(text).ok_or(Reply::error("ERR value is not a valid float"))
}

/// A bound of a range, which Redis reads with fewer checks: no text at all is 0, spaces may lead, text
/// ends at a zero byte, and what is out of range is rounded.
pub(crate) fn parse_bound(text: &[u8]) -> Option<f64> {
    read_loosely(text).map(|read| read.value)
}

/// The number that `SORT` takes an element for: as a bound, but nothing for what is out of range.
pub(crate) fn parse_weight(text: &[u8]) -> Option<f64> {
    read_loosely(text).filter(|read| !read.out_of_range).map(|read| read.value)
}

fn read_loosely(text: &[u8]) -> Option<Read> {
    let text = c_string(text);
    if text.is_empty() {
        return Some(Read { value: 0.0, out_of_range: false });
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_space(byte))?;
    read(&text[start..])
}

fn read(text: &[u8]) -> Option<Read> {
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if let [b'0', b'x' | b'X', digits @ ..] = unsigned {
        return read_hexadecimal(negative, digits);
    }
    let value: f64 = core::str::from_utf8(text).ok()?.parse().ok()?;
    if value.is_nan() {
        return None;
    }
    let says_infinite = matches!(unsigned.first(), Some(b'i' | b'I'));
    let mantissa = || unsigned.iter().take_while(|&&byte| !matches!(byte, b'e' | b'E'));
    let says_zero = || mantissa().all(|&byte| matches!(byte, b'0' | b'.'));
    let out_of_range = value.is_infinite() && !says_infinite || value == 0.0 && !says_zero();
    Some(Read { value, out_of_range })
}

fn read_hexadecimal(negative: bool, text: &[u8]) -> Option<Read> {
    /// So many digits are read exactly; it only counts whether one behind them is not zero.
    const EXACT_DIGITS: i64 = 30;
    let Digits { whole, fraction, exponent } = Digits::split(text, b'p', u8::is_ascii_hexdigit)?;
    let digits = || whole.iter().chain(fraction).skip_while(|&&digit| digit == b'0');
    let value_of = |digit: u8| char::from(digit).to_digit(16).expect("a hexadecimal digit");
    let exact = digits().take(EXACT_DIGITS as usize);
    let bits = exact.fold(0, |bits: u128, &digit| bits << 4 | u128::from(value_of(digit)));
    let lost = digits().skip(EXACT_DIGITS as usize).any(|&digit| digit != b'0');
    let behind = (digits().count() as i64 - EXACT_DIGITS).max(0);
    let exponent = exponent + 4 * (behind - fraction.len() as i64);
    let magnitude = from_binary(bits, lost, exponent);
    let out_of_range = magnitude.is_infinite() || magnitude == 0.0 && bits != 0;
    Some(Read { value: if negative { -magnitude } else { magnitude }, out_of_range })
}

/// The number closest to `bits * 2^exponent`, or to slightly more if bits were `lost` below; then there
/// must be more than 53 bits.
fn from_binary(bits: u128, lost: bool, exponent: i64) -> f64 {
    let length = 128 - i64::from(bits.leading_zeros());
    if bits == 0 || exponent + length > EXPONENT_END {
        return if bits == 0 { 0.0 } else { f64::INFINITY };
    }
    let dropped = (length - MANTISSA_BITS).max(EXPONENT_MIN - exponent).max(0);
    let kept = round_shift(bits, lost, u32::try_from(dropped).unwrap_or(u32::MAX));
    if kept == 0 {
        return 0.0;
    }
    // Two factors, since one could be beyond what a double holds.
    let exponent = exponent + dropped;
    let half = exponent / 2;
    kept as f64 * power_of_two(half) * power_of_two(exponent - half)
}

/// 2 to the power of an exponent between -1022 and 1023.
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A double as C's `%.17g` prints it, which is how Redis 7.0 answers it.
pub fn format_double(number: f64) -> String {
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    if number.abs() < WHOLE_MAX && number as i64 as f64 == number {
        let digits = format_integer(number as i64, &mut [0; 20]).to_vec();
        return String::from_utf8(digits).expect("digits are text");
    }
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').expect("`e` formatting has an exponent");
    let exponent: i32 = exponent.parse().expect("`e` formatting has a decimal exponent");
    if (-4..17).contains(&exponent) {
        let decimals = (16 - exponent) as usize;
        return trimmed(format!("{number:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits.to_owned()), exponent.abs())
}

/// The number with 17 digits behind the point less trailing zeros, as Redis answers coordinates.
pub fn format_decimal(number: f64) -> String {
    let text = trimmed(format!("{number:.17}"));
    if text == "-0" { "0".to_owned() } else { text }
}

/// Without the zeros that end a fraction, and without a point that ends it then.
fn trimmed(mut text: String) -> String {
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_as_c_prints_them() {
        for (number, printed) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (-12345678901234567.0, "-12345678901234568"),
            (1.5e-7, "1.4999999999999999e-07"),
            (1e300, "1.0000000000000001e+300"),
            (5e-324, "4.9406564584124654e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_double(number), printed);
        }
    }

    /// The values are what glibc's `strtod` says.
    #[test]
    fn hexadecimal_is_rounded_once() {
        for (text, bits) in [
            ("0x10", 0x4030_0000_0000_0000),
            ("-0x1p-3", 0xbfc0_0000_0000_0000),
            ("0x.8", 0x3fe0_0000_0000_0000),
            ("0x1.fffffffffffff7p0", 0x3fff_ffff_ffff_ffff),
            ("0x1.fffffffffffff8p0", 0x4000_0000_0000_0000),
            ("0x1.00000000000008p0", 0x3ff0_0000_0000_0000),
            ("0x1.000000000000080000000000000000000000001p0", 0x3ff0_0000_0000_0001),
            ("0x1p-1074", 1),
            ("0x1.8p-1074", 2),
            ("0x1.fffffffffffffp1023", 0x7fef_ffff_ffff_ffff),
            ("0x0", 0),
        ] {
            assert_eq!(parse_double(text.as_bytes()).map(f64::to_bits), Some(bits), "{text}");
        }
        for text in ["0x", "0x.", "0x1p", "0xg", "0x1p1024", "0x1p-1075", "0x1p99999999999999"] {
            assert_eq!(parse_double(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn arguments_and_bounds_are_read_as_redis_reads_them() {
        let refused: [&[u8]; 12] = [
            b"", b" 1", b"1 ", b"1\0", b"nan", b"-nan", b"nan(1)", b"1e400", b"1e-400", b"1e",
            b".", b"1,5",
        ];
        for text in refused {
            assert_eq!(parse_double(text), None, "{}", text.escape_ascii());
        }
        let taken: [(&[u8], f64); 7] = [
            (b"+5", 5.0),
            (b".5", 0.5),
            (b"5.", 5.0),
            (b"1E+2", 100.0),
            (b"-Infinity", f64::NEG_INFINITY),
            (b"0e5000", 0.0),
            (b"1e-310", 1e-310),
        ];
        for (text, value) in taken {
            assert_eq!(parse_double(text), Some(value), "{}", text.escape_ascii());
        }
        let bounds: [(&[u8], Option<f64>); 8] = [
            (b"", Some(0.0)),
            (b" ", None),
            (b"\t 1", Some(1.0)),
            (b"1 ", None),
            (b"1\0x", Some(1.0)),
            (b"-1e400", Some(f64::NEG_INFINITY)),
            (b"1e-400", Some(0.0)),
            (b"nan", None),
        ];
        for (text, value) in bounds {
            assert_eq!(parse_bound(text), value, "{}", text.escape_ascii());
        }
    }
}
