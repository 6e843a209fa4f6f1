//! Numbers as C prints them.

use std::io::Write;

/// Integers with less than 17 digits: a double has each of them, and `%.17g` prints all of their digits.
const INTEGERS: std::ops::Range<f64> = -1e16..1e16;

/// Appends `%.17g`.
pub(crate) fn push_g17(number: f64, out: &mut Vec<u8>) {
    let integer = number as i64;
    if INTEGERS.contains(&number) && integer as f64 == number && number.to_bits() != MINUS_ZERO {
        write!(out, "{integer}").expect("memory takes what is written");
    } else {
        out.extend_from_slice(format_g(number, 17).as_bytes());
    }
}

const MINUS_ZERO: u64 = (-0.0f64).to_bits();

/// `%.{digits}g`.
pub(crate) fn format_g(number: f64, digits: usize) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let digits = digits.max(1);
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("`e` formatting has an exponent");
    let exponent: i64 = exponent.parse().expect("`e` formatting has a decimal exponent");
    if (-4..digits as i64).contains(&exponent) {
        let decimals = (digits as i64 - 1 - exponent) as usize;
        return trimmed(format!("{number:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa.to_owned()), exponent.abs())
}

fn trimmed(text: String) -> String {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_printed_as_other_numbers_are() {
        let edges = [0.0, -0.0, 1e15, 1e16 - 2.0, 1e16, 1e17, 1e18, 2f64.powi(53), 2f64.powi(63)];
        let near =
            edges.iter().flat_map(|edge| [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0].map(|by| edge + by));
        let other = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE];
        for number in near.chain(other).flat_map(|number| [number, -number]) {
            let mut printed = Vec::new();
            push_g17(number, &mut printed);
            assert_eq!(printed, format_g(number, 17).into_bytes(), "{number:e}");
        }
    }

    #[test]
    fn numbers_as_c_prints_them() {
        for (number, digits, printed) in [
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e14, 14, "1e+14"),
            (99_999_999_999_999.0, 14, "99999999999999"),
            (3.0, 17, "3"),
            (1e-5, 14, "1e-05"),
            (123_456_789.125, 3, "1.23e+08"),
            (-0.0, 14, "-0"),
        ] {
            assert_eq!(format_g(number, digits), printed);
        }
    }
}
