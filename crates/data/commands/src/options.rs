//! The options of `SET`, `GETEX` and the expiry times that they and others take.

use alloc::format;

use quorate_machine::mutant;
use quorate_types::UnixMillis;

use crate::number::integer;
use crate::{Args, Reply};

/// The error of options that don't exist or don't go together.
pub(crate) const SYNTAX: Reply<'static> = Reply::error("ERR syntax error");

/// Whether an argument is this word, in any case. Redis compares options as C strings, so what
/// stands behind a zero byte doesn't count.
pub(crate) fn is_word(argument: &[u8], word: &str) -> bool {
    c_string(argument).eq_ignore_ascii_case(word.as_bytes())
}

/// What C sees of a string with zero bytes in it.
pub(crate) fn c_string(bytes: &[u8]) -> &[u8] {
    bytes.iter().position(|&byte| byte == 0).map_or(bytes, |end| &bytes[..end])
}

/// The command that the options belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Set,
    Getex,
}

/// How an expiry time is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// Seconds from now.
    Ex,
    /// Milliseconds from now.
    Px,
    /// Seconds since 1970.
    ExAt,
    /// Milliseconds since 1970.
    PxAt,
}

impl Unit {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Ex, "EX"), (Self::Px, "PX"), (Self::ExAt, "EXAT"), (Self::PxAt, "PXAT")];

    /// The unit that a word names.
    pub(crate) fn parse(word: &[u8]) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| is_word(word, name)).map(|(unit, _)| *unit)
    }

    pub(crate) fn is_relative(self) -> bool {
        matches!(self, Self::Ex | Self::Px)
    }

    /// The moment that a time means, in milliseconds since 1970; `None` if that is beyond 63 bits.
    pub(crate) fn moment(self, time: i64, now: UnixMillis) -> Option<i64> {
        let factor = if matches!(self, Self::Ex | Self::ExAt) { 1000 } else { 1 };
        let base = if self.is_relative() { now.0 } else { 0 };
        time.checked_mul(factor)?.checked_add_unsigned(base)
    }
}

/// The options of `SET` or `GETEX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options<'a> {
    pub(crate) only_absent: bool,
    pub(crate) only_present: bool,
    pub(crate) get: bool,
    pub(crate) keep_ttl: bool,
    pub(crate) persist: bool,
    pub(crate) expiry: Option<(Unit, &'a [u8])>,
    pub(crate) condition: Option<Condition<'a>>,
}

/// What the value must be for a command to take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition<'a> {
    /// This string.
    Is(&'a [u8]),
    /// Another string, or none at all.
    IsNot(&'a [u8]),
    /// A string with this digest.
    HasDigest(u64),
    /// A string with another digest, or none at all.
    LacksDigest(u64),
}

impl<'a> Condition<'a> {
    /// The condition that a word and the value behind it say. `None` if the word says none.
    ///
    /// # Errors
    /// If it says a digest that is none.
    pub(crate) fn parse(word: &[u8], value: &'a [u8]) -> Result<Option<Self>, Reply<'static>> {
        if is_word(word, "IFEQ") {
            return Ok(Some(Self::Is(value)));
        }
        if is_word(word, "IFNE") {
            return Ok(Some(Self::IsNot(value)));
        }
        let digest = || parse_digest(value).ok_or(NO_DIGEST);
        if is_word(word, "IFDEQ") {
            return digest().map(|digest| Some(Self::HasDigest(digest)));
        }
        if is_word(word, "IFDNE") {
            return digest().map(|digest| Some(Self::LacksDigest(digest)));
        }
        Ok(None)
    }

    /// Whether a key that holds this meets it.
    pub(crate) fn holds(self, value: Option<&[u8]>) -> bool {
        match self {
            Self::Is(wanted) => mutant!("commands_condition_ignored") || value == Some(wanted),
            Self::IsNot(unwanted) => value != Some(unwanted),
            Self::HasDigest(wanted) => value.map(digest_of) == Some(wanted),
            Self::LacksDigest(unwanted) => value.map(digest_of) != Some(unwanted),
        }
    }
}

const NO_DIGEST: Reply<'static> = Reply::error(
    "ERR the digest must be exactly 16 hexadecimal characters, as DIGEST answers them",
);

/// The digest of a string: XXH3 of 64 bits, without a seed.
pub(crate) fn digest_of(string: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(string)
}

/// A digest in hexadecimal, in capitals or not.
fn parse_digest(text: &[u8]) -> Option<u64> {
    let is_digest = text.len() == 16 && text.iter().all(u8::is_ascii_hexdigit);
    let text = core::str::from_utf8(text).ok().filter(|_| is_digest)?;
    u64::from_str_radix(text, 16).ok()
}

impl<'a> Options<'a> {
    /// Reads the options from argument `first` on.
    pub(crate) fn parse(
        command: Command,
        args: Args<'a>,
        first: usize,
    ) -> Result<Self, Reply<'static>> {
        let mut options = Self::default();
        let mut at = first;
        while at < args.len() {
            let word = args.get(at);
            if !options.set_word(command, word) {
                let value = (at + 1 < args.len()).then(|| args.get(at + 1)).ok_or(SYNTAX)?;
                if !options.set_condition(command, word, value)? {
                    options.set_expiry(word, value).ok_or(SYNTAX)?;
                }
                at += 1;
            }
            at += 1;
        }
        Ok(options)
    }

    /// Takes an option without a value; false if there is no such option or it doesn't go with the others.
    fn set_word(&mut self, command: Command, word: &[u8]) -> bool {
        let set = command == Command::Set;
        let free = self.condition.is_none();
        if set && is_word(word, "NX") && !self.only_present && free {
            self.only_absent = true;
        } else if set && is_word(word, "XX") && !self.only_absent && free {
            self.only_present = true;
        } else if set && is_word(word, "GET") {
            self.get = true;
        } else if set && is_word(word, "KEEPTTL") && self.expiry.is_none() {
            self.keep_ttl = true;
        } else if !set && is_word(word, "PERSIST") && self.expiry.is_none() {
            self.persist = true;
        } else {
            return false;
        }
        true
    }

    /// Takes a condition on the value; false if the word says none.
    fn set_condition(
        &mut self,
        command: Command,
        word: &[u8],
        value: &'a [u8],
    ) -> Result<bool, Reply<'static>> {
        if command != Command::Set {
            return Ok(false);
        }
        let Some(condition) = Condition::parse(word, value)? else { return Ok(false) };
        if self.only_absent || self.only_present || self.condition.is_some() {
            return Err(SYNTAX);
        }
        self.condition = Some(condition);
        Ok(true)
    }

    /// Takes an expiry time; `None` if the word is no unit of time or does not go with the other
    /// options. The same unit twice is legal, and the later time counts.
    fn set_expiry(&mut self, word: &[u8], time: &'a [u8]) -> Option<()> {
        let unit = Unit::parse(word)?;
        let clash = self.keep_ttl
            || self.persist
            || self.expiry.is_some_and(|(earlier, _)| earlier != unit);
        self.expiry = Some((unit, time));
        (!clash).then_some(())
    }

    /// The absolute expiry that the options ask for, if any.
    pub(crate) fn expire_at(
        &self,
        name: &str,
        now: UnixMillis,
    ) -> Result<Option<UnixMillis>, Reply<'static>> {
        self.expiry.map(|(unit, time)| absolute(name, unit, time, now)).transpose()
    }
}

/// The moment that a positive expiry time means. Absolute times may lie in the past.
pub(crate) fn absolute(
    name: &str,
    unit: Unit,
    time: &[u8],
    now: UnixMillis,
) -> Result<UnixMillis, Reply<'static>> {
    Some(integer(time)?)
        .filter(|&time| time > 0)
        .and_then(|time| unit.moment(time, now))
        .map(|time| UnixMillis(time.cast_unsigned()))
        .ok_or_else(|| invalid_expire_time(name))
}

/// The error of an expiry time that is not positive or overflows.
pub(crate) fn invalid_expire_time(name: &str) -> Reply<'static> {
    Reply::Error(format!("ERR invalid expire time in '{name}' command").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_redis() {
        // From Redis's documentation of `DIGEST`.
        assert_eq!(digest_of(b"Hello world"), 0xb6ac_b9d8_4a38_ff74);
        assert_eq!(parse_digest(b"B6acb9d84a38ff74"), Some(0xb6ac_b9d8_4a38_ff74));
        assert_eq!(parse_digest(b"0000000000000001"), Some(1));
        for text in [&b"b6acb9d84a38ff7"[..], b"+6acb9d84a38ff74", b"b6acb9d84a38ff74 ", b""] {
            assert_eq!(parse_digest(text), None);
        }
    }
}
