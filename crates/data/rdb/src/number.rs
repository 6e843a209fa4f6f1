//! Integers as Redis reads and writes them.

/// The most bytes of a decimal `i64`.
const INTEGER_BYTES_MAX: usize = 20;

/// The integer that these bytes are the one and only decimal form of: no spaces, no `+`, no
/// leading zeros, no `-0`.
#[inline]
pub fn parse_integer(bytes: &[u8]) -> Option<i64> {
    if bytes == b"0" {
        return Some(0);
    }
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if !matches!(digits.first(), Some(b'1'..=b'9')) || digits.len() >= INTEGER_BYTES_MAX {
        return None;
    }
    let mut value: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // 19 digits fit into 64 bits.
        value = value * 10 + u64::from(digit - b'0');
    }
    if negative { 0_i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// The decimal form, in a buffer on the stack.
#[inline]
pub fn format_integer(value: i64, buffer: &mut [u8; INTEGER_BYTES_MAX]) -> &[u8] {
    let mut rest = value.unsigned_abs();
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    &buffer[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_an_integer() {
        for (text, value) in [
            ("0", 0),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_integer(text.as_bytes()), Some(value), "{text}");
            assert_eq!(format_integer(value, &mut [0; 20]), text.as_bytes());
        }
        for text in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            " 1",
            "1 ",
            "1a",
            "1.0",
            "0x1",
            "00",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999",
            "--1",
        ] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }
}
