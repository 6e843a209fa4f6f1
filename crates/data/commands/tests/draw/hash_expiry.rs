//! Random commands on hashes with expiring fields. Redis 7.0 has most of them not, so they are compared
//! with a model.

use super::Draw;
use crate::workspace::Words;

/// The fields, some of which make a hash longer than Redis's compact encoding.
pub(crate) const FIELDS: &[&str] = &["a", "b", "c", "d", "e", LONG];
const LONG: &str = "sixty-five bytes, which are too many for Redis's compact encoding";

/// Spans in milliseconds, and among them those that have passed at once. Tests let some of them pass.
const SPANS: &[u64] = &[0, 1, 10, 10, 20, 50, 1_000, 1_500, 100_000];

impl Draw {
    /// A command on a hash that may have fields that expire, `now` milliseconds after 1970.
    pub(crate) fn on_expiring_hash(&mut self, key: &[u8], now: u64) -> Words {
        const NAMES: &[&str] = &[
            "HEXPIRE",
            "HPEXPIRE",
            "HPEXPIRE",
            "HEXPIREAT",
            "HPEXPIREAT",
            "HPERSIST",
            "HGETEX",
            "HGETEX",
            "HSETEX",
            "HSETEX",
            "HSETEX",
            "HGETDEL",
            "HSET",
            "HSET",
            "HMSET",
            "HSETNX",
            "HINCRBY",
            "HINCRBYFLOAT",
            "HDEL",
            "HTTL",
            "HPTTL",
            "HEXPIRETIME",
            "HPEXPIRETIME",
            "HMGET",
            "PEXPIRE",
            "PEXPIREAT",
            "PERSIST",
            "PTTL",
            "DEL",
        ];
        let name = self.pick(NAMES);
        let mut words = vec![self.any_case(name), key.to_vec()];
        match name {
            "HEXPIRE" | "HPEXPIRE" | "HEXPIREAT" | "HPEXPIREAT" | "PEXPIRE" | "PEXPIREAT" => {
                words.push(self.moment(name.starts_with("HE"), name.ends_with("AT"), now));
                if self.rng.chance(1, 2) {
                    words.push(self.pick(&["NX", "XX", "GT", "LT", "gt"]).into());
                }
            }
            "HGETEX" => match self.pick(&["", "PERSIST", "EX", "PX", "PX", "EXAT", "PXAT"]) {
                "" => {}
                "PERSIST" => words.push(b"PERSIST".into()),
                unit => self.unit_and_time(unit, now, &mut words),
            },
            "HSETEX" => {
                if self.rng.chance(1, 3) {
                    words.push(self.pick(&["FNX", "FXX", "fxx"]).into());
                }
                match self.pick(&["", "KEEPTTL", "EX", "PX", "PX", "EXAT", "PXAT"]) {
                    "" => {}
                    "KEEPTTL" => words.push(b"keepttl".into()),
                    unit => self.unit_and_time(unit, now, &mut words),
                }
            }
            _ => {}
        }
        let has_values = matches!(name, "HSET" | "HMSET" | "HSETEX");
        let count = if matches!(name, "HSETNX" | "HINCRBY" | "HINCRBYFLOAT") {
            1
        } else {
            self.pick(&[1, 1, 2, 3, 6])
        };
        match name {
            "PEXPIRE" | "PEXPIREAT" | "PERSIST" | "PTTL" | "DEL" => return words,
            "HSET" | "HMSET" | "HSETNX" | "HINCRBY" | "HINCRBYFLOAT" | "HDEL" | "HMGET" => {}
            _ => words.extend([b"FIELDS".to_vec(), count.to_string().into_bytes()]),
        }
        for _ in 0..count {
            words.push(self.pick(FIELDS).into());
            if has_values || matches!(name, "HSETNX" | "HINCRBY" | "HINCRBYFLOAT") {
                words.push(self.rng.below(100).to_string().into_bytes());
            }
        }
        // Now and then a wrong number of arguments.
        match self.rng.below(60) {
            0 => drop(words.pop()),
            1 => words.push(self.pick(FIELDS).into()),
            _ => {}
        }
        words
    }

    fn unit_and_time(&mut self, unit: &str, now: u64, words: &mut Words) {
        words.push(self.any_case(unit));
        words.push(self.moment(unit.starts_with('E'), unit.ends_with("AT"), now));
    }

    fn moment(&mut self, in_seconds: bool, is_absolute: bool, now: u64) -> Vec<u8> {
        if self.rng.chance(1, 20) {
            const BAD: &[&str] = &["-1", "x", "70368744177664", "9223372036854775807"];
            return self.pick(BAD).into();
        }
        let at = self.pick(SPANS) + if is_absolute { now } else { 0 };
        let at = if in_seconds { at.div_ceil(1_000) } else { at };
        at.to_string().into_bytes()
    }
}
