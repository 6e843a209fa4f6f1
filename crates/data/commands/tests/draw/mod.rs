//! Random commands.

mod collections;
mod geo;
pub(crate) mod hash_expiry;
mod sketches;
mod sorted_sets;
mod streams;

use collections::{HASHES, LISTS, SETS};
use quorate_machine::Rng;

use crate::workspace::Words;

pub(crate) const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "8",
    "-8",
    "63",
    "64",
    "100",
    "-100",
    "00",
    "-0",
    "+1",
    " 1",
    "1 ",
    "",
    "abc",
    "1.0",
    "1e3",
    "0x10",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "-9223372036854775809",
    "9223372036854774807",
    "4611686018427387904",
    "18446744073709551615",
    "99999999999999999999",
    "2147483647",
    "2147483648",
    "4294967296",
    "123456789012",
    "-",
    "nan",
    "1\0",
];

pub(crate) const FLOATS: &[&str] = &[
    "0.1",
    "-0.1",
    "1.5",
    "3.0e3",
    "1e-5",
    "1e-17",
    "5e-18",
    "1.5e-17",
    "-5e-18",
    "1e17",
    "1e18",
    "1e19",
    "1e20",
    "12345678901234567890.5",
    "0.00000000000000000001",
    "-0",
    "-0.0",
    ".5",
    "5.",
    ".",
    "1e",
    "1e+2",
    "1E-2",
    "inf",
    "-inf",
    "Infinity",
    "infinit",
    "nan",
    "nan(1)",
    "0x1p-3",
    "0X1.8P1",
    "0x",
    "0x.8",
    "0xp1",
    "1e308",
    "1.7976931348623157e308",
    "1e4932",
    "1.2e4932",
    "-1e4932",
    "1e-4940",
    "3e-4951",
    "1e-4952",
    "1e-5000",
    "1e5000",
    "0e5000",
    "1e99999999999999",
    "0x1p-16445",
    "0x1p-16446",
    "0x1p16383",
    "0x1p16384",
    "0x1.fffffffffffffffep16383",
    "0x1.ffffffffffffffffp16383",
    "0.3333333333333333333333333",
    "2.675",
    "1.005",
    "--1",
    "+5",
    "3.14159265358979323846264338327950288",
    "1,5",
    "\t1",
    "1e1.5",
];

pub(crate) const TEXTS: &[&str] = &[
    "",
    "a",
    "hello world",
    "\0",
    "a\0b",
    "line\r\nbreak",
    "\u{00ff}\u{1234}",
    "forty-four bytes of text, which Redis embeds.",
    "forty-five bytes of text, which is too long..",
];

/// Draws commands.
pub(crate) struct Draw {
    pub(crate) rng: Rng,
    /// Relative expiry times differ by ten seconds at least, so that which of two is later doesn't
    /// depend on when each command ran.
    spans: u64,
    /// Whether commands that wait are drawn with valid timeouts: in a block, where they don't wait.
    pub(crate) in_block: bool,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), spans: 0, in_block: false }
    }

    pub(crate) fn pick<T: Copy>(&mut self, pool: &[T]) -> T {
        pool[self.rng.below(pool.len() as u64) as usize]
    }

    pub(crate) fn key(&mut self) -> Vec<u8> {
        const KEYS: &[&[u8]] =
            &[b"k1", b"k2", b"k3", b"", b"h1", b"h2", b"l1", b"l2", b"s1", b"s2"];
        self.pick(KEYS).to_vec()
    }

    fn integer(&mut self) -> Vec<u8> {
        if self.rng.chance(1, 2) {
            return (self.rng.below(400) as i64 - 200).to_string().into_bytes();
        }
        self.pick(INTEGERS).into()
    }

    fn float(&mut self) -> Vec<u8> {
        match self.rng.below(8) {
            0..4 => self.pick(FLOATS).into(),
            4 => {
                let (whole, fraction) = (self.rng.next_u64() as i64 >> 30, self.rng.next_u64());
                format!("{whole}.{fraction}").into_bytes()
            }
            5 => {
                let exponent = self.rng.below(60) as i64 - 40;
                format!("{}e{exponent}", self.rng.next_u64()).into_bytes()
            }
            6 => {
                let exponent = self.rng.below(10_000) as i64 - 5_000;
                format!("-{}.{}e{exponent}", self.rng.below(10), self.rng.next_u64()).into_bytes()
            }
            _ => self.integer(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.below(8) {
            0..3 => self.integer(),
            3 => self.float(),
            4 => (0..self.rng.below(70)).map(|_| self.rng.next_u64() as u8).collect(),
            5 => vec![b'1'; self.pick(&[19, 20, 21, 5119, 5120])],
            _ => self.pick(TEXTS).into(),
        }
    }

    /// An expiry time in seconds or milliseconds, from now or from 1970.
    fn time(&mut self, seconds: bool, relative: bool) -> Vec<u8> {
        if self.rng.chance(1, 6) {
            const BAD: &[&str] = &[
                "0",
                "-1",
                "-100",
                "",
                "abc",
                "1.5",
                "+5",
                "9223372036854775807",
                "-9223372036854775808",
                "9223372036854775",
                "9223372036854776",
                "-9223372036854776",
                "9223372036854775808",
                "9223370000000000000",
            ];
            return self.pick(BAD).into();
        }
        if relative {
            self.spans += 10;
            let span = (1_000 + self.spans) * if seconds { 1 } else { 1_000 };
            return span.to_string().into_bytes();
        }
        let at: u64 = self.pick(&[1, 1_000, 99_999_999_999, 88_888_888_888, 99_999_999_999_001]);
        let at = if seconds { at } else { at.saturating_mul(1_000) + self.rng.below(1_000) };
        at.to_string().into_bytes()
    }

    /// Options with their values, sometimes without.
    fn options(&mut self, words: &mut Words, pool: &[&str]) {
        for _ in 0..self.pick(&[0, 1, 1, 2, 2, 3, 4]) {
            let option = self.pick(pool);
            words.push(self.any_case(option));
            let (seconds, relative) = match option {
                "EX" => (true, true),
                "PX" => (false, true),
                "EXAT" => (true, false),
                "PXAT" => (false, false),
                _ => continue,
            };
            if !self.rng.chance(1, 12) {
                let time = self.time(seconds, relative);
                words.push(time);
            }
        }
    }

    fn any_case(&mut self, word: &str) -> Vec<u8> {
        match self.rng.below(4) {
            0 => word.to_ascii_lowercase().into(),
            1 => word
                .bytes()
                .map(|byte| if self.rng.chance(1, 2) { byte ^ 0x20 } else { byte })
                .map(|byte| if byte.is_ascii_alphabetic() { byte } else { byte ^ 0x20 })
                .collect(),
            _ => word.to_ascii_uppercase().into(),
        }
    }

    /// A command on `key`.
    pub(crate) fn on_key(&mut self, key: &[u8]) -> Words {
        const SET: &[&str] =
            &["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT", "PERSIST", "EX\0", "bad"];
        const GETEX: &[&str] = &["PERSIST", "EX", "PX", "EXAT", "PXAT", "KEEPTTL", "NX"];
        const EXPIRE: &[&str] = &["NX", "XX", "GT", "LT", "gT", "foo\r\nbar\n\r", ""];
        if self.rng.chance(1, 16) {
            return self.sketch(key);
        }
        if self.rng.chance(1, 12) {
            return self.stream(key);
        }
        let name = self.name_for(key);
        let mut words = vec![self.any_case(name), key.to_vec()];
        match name {
            "SET" => {
                words.push(self.value());
                self.options(&mut words, SET);
            }
            "GETEX" => self.options(&mut words, GETEX),
            "SETNX" | "GETSET" | "APPEND" => words.push(self.value()),
            "SETEX" | "PSETEX" => {
                words.push(self.time(name == "SETEX", true));
                words.push(self.value());
            }
            "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
                words.push(self.time(!name.starts_with('P'), !name.ends_with("AT")));
                self.options(&mut words, EXPIRE);
            }
            "GETRANGE" | "SUBSTR" => words.extend([self.integer(), self.integer()]),
            "SETRANGE" => {
                words.push(self.pick(OFFSETS).into());
                words.push(self.value());
            }
            "INCRBY" | "DECRBY" => words.push(self.integer()),
            "INCRBYFLOAT" => words.push(self.float()),
            "SETBIT" => {
                words.push(self.pick(OFFSETS).into());
                words.push(self.pick(&["0", "1", "1", "2", "-1", "01", ""]).into());
            }
            "GETBIT" => words.push(self.pick(OFFSETS).into()),
            "BITCOUNT" => {
                for _ in 0..self.pick(&[0, 0, 1, 2, 2, 2, 2]) {
                    words.push(self.integer());
                }
                if words.len() == 4 && self.rng.chance(1, 2) {
                    words.push(self.pick(&["BIT", "BYTE", "bit", "bits", ""]).into());
                }
            }
            "BITPOS" => {
                words.push(self.pick(&["0", "1", "0", "1", "2", "x"]).into());
                for _ in 0..self.pick(&[0, 1, 1, 2, 2, 2]) {
                    words.push(self.integer());
                }
                if words.len() == 5 && self.rng.chance(1, 2) {
                    words.push(self.pick(&["BIT", "BYTE", "bit", "bits", ""]).into());
                }
            }
            "BITFIELD" | "BITFIELD_RO" => self.fields(&mut words),
            "RESTORE" => {
                let absolute = self.rng.chance(1, 3);
                words.push(match self.rng.below(3) {
                    0 => b"0".to_vec(),
                    _ => self.time(false, !absolute),
                });
                words.push(self.payload());
                if absolute {
                    words.push(b"ABSTTL".into());
                }
                for _ in 0..self.pick(&[0, 1, 1, 2]) {
                    let option = self.pick(&["REPLACE", "REPLACE", "IDLETIME", "FREQ", "FOO"]);
                    words.push(self.any_case(option));
                    if option == "IDLETIME" || option == "FREQ" {
                        words.push(self.pick(&["0", "100", "256", "-1", "x"]).into());
                    }
                }
            }
            "BITOP" => {
                let operation = self.bit_operation();
                words.insert(1, operation);
                words.push(key.to_vec());
            }
            "LCS" => {
                words.push(key.to_vec());
                self.lcs_options(&mut words);
            }
            "MSET" => {
                words.push(self.value());
                if self.rng.chance(1, 3) {
                    words.extend([key.to_vec(), self.value()]);
                }
            }
            "COPY" => {
                words.push(key.to_vec());
                if self.rng.chance(1, 3) {
                    words.push(self.pick(&["REPLACE", "replace", "DB", "foo"]).into());
                }
            }
            name => self.on_collection(name, &mut words),
        }
        self.damage(&mut words);
        words
    }

    /// The name of a command, mostly one for the type that keys with this first letter hold.
    fn name_for(&mut self, key: &[u8]) -> &'static str {
        let own = match key.first() {
            Some(b'h') => HASHES,
            Some(b'l') => LISTS,
            Some(b's') => SETS,
            _ => KEYED,
        };
        let pools = [own, own, own, own, own, own, KEYED, HASHES, LISTS, SETS];
        let pool = self.pick(&pools);
        self.pick(pool)
    }

    fn fields(&mut self, words: &mut Words) {
        const KINDS: &[&str] = &[
            "u1", "u2", "u7", "u8", "u13", "u63", "u64", "i1", "i2", "i8", "i9", "i16", "i63",
            "i64", "i65", "u0", "x8", "i", "", "u8\0",
        ];
        const OFFSETS: &[&str] =
            &["0", "1", "3", "7", "8", "30", "100", "#0", "#1", "#5", "#x", "-1", "x", "33554432"];
        for _ in 0..self.pick(&[0, 1, 1, 2, 3, 5]) {
            let step = self.pick(&["GET", "SET", "SET", "INCRBY", "INCRBY", "OVERFLOW", "FOO"]);
            words.push(self.any_case(step));
            if step == "OVERFLOW" {
                words.push(self.pick(&["WRAP", "SAT", "FAIL", "sat", "fail", "bad"]).into());
                continue;
            }
            words.push(self.pick(KINDS).into());
            words.push(self.pick(OFFSETS).into());
            if step != "GET" {
                words.push(self.integer());
            }
        }
    }

    /// What `RESTORE` takes: now and then damaged.
    fn payload(&mut self) -> Vec<u8> {
        const PAYLOADS: &[&[u8]] = &[
            b"\x00\x00\x0a\x00\x5d\x9b\x5c\x40\x0f\x7f\xa2\xda",
            b"\x00\x01\x61\x0a\x00\xbf\xfe\xef\x9b\x8f\x36\x7d\xb4",
            b"\x00\xc0\xf9\x0a\x00\x5e\x26\xd1\x30\xd7\xa2\x42\xab",
            b"\x00\xc1\x2c\x01\x0a\x00\x95\x42\x61\xf2\x65\x82\x5c\x10",
            b"\x00\xc2\x60\x79\xfe\xff\x0a\x00\xa1\xca\x84\x70\xcc\x21\x6d\x9d",
            b"\x00\xc3\x0b\x3c\x03\x61\x62\x63\x61\xe0\x2d\x02\x01\x62\x63\x0a\x00\x6f\x60\x29\
              \xe4\xaf\xd7\x64\xac",
        ];
        let mut payload = self.pick(PAYLOADS).to_vec();
        if self.rng.chance(1, 4) {
            let at = self.rng.below(payload.len() as u64) as usize;
            payload[at] ^= 1 << self.rng.below(8);
        }
        payload
    }

    fn bit_operation(&mut self) -> Vec<u8> {
        let operation = self.pick(&["AND", "OR", "XOR", "NOT", "NAND", "AND\0"]);
        self.any_case(operation)
    }

    fn lcs_options(&mut self, words: &mut Words) {
        for _ in 0..self.pick(&[0, 0, 1, 2, 3]) {
            let option = self.pick(&["LEN", "IDX", "WITHMATCHLEN", "MINMATCHLEN", "FOO"]);
            words.push(self.any_case(option));
            if option == "MINMATCHLEN" && self.rng.chance(5, 6) {
                words.push(self.integer());
            }
        }
    }

    /// Now and then a wrong number of arguments.
    fn damage(&mut self, words: &mut Words) {
        match self.rng.below(40) {
            // Without a count it would take another member than Redis.
            0 if words[0].eq_ignore_ascii_case(b"SPOP") => {}
            0 => drop(words.pop()),
            1 => words.push(self.value()),
            _ => {}
        }
    }

    /// A command that changes several keys at once.
    fn over_several_keys(&mut self) -> Words {
        let names = ["MSET", "MSETNX", "RENAME", "RENAMENX", "COPY", "COPY", "BITOP", "LCS"];
        let name = self.pick(&names);
        let mut words = vec![self.any_case(name), self.key()];
        if name == "BITOP" {
            let operation = self.bit_operation();
            words.insert(1, operation);
            words.extend((0..self.pick(&[1, 1, 2, 3])).map(|_| self.key()));
        } else if name.starts_with("MSET") {
            words.push(self.value());
            for _ in 0..self.rng.below(3) {
                words.extend([self.key(), self.value()]);
            }
        } else {
            words.push(self.key());
        }
        if name == "COPY" {
            self.options(&mut words, &["REPLACE", "replace", "REPLACE", "foo"]);
        }
        if name == "LCS" {
            self.lcs_options(&mut words);
        }
        self.damage(&mut words);
        words
    }

    pub(crate) fn command(&mut self) -> Words {
        let key = self.key();
        match self.rng.below(73) {
            0..32 => self.on_key(&key),

            32..36 => {
                let name = self.pick(&["MGET", "DEL", "UNLINK", "EXISTS", "TOUCH"]);
                let mut words = vec![self.any_case(name)];
                words.extend((0..self.rng.below(5)).map(|_| self.key()));
                words
            }
            36..41 => self.over_several_keys(),
            41..44 => self.over_collections(),
            44 => {
                let which = self.pick(&["GETKEYS", "GETKEYSANDFLAGS"]);
                let mut words = vec![b"COMMAND".to_vec(), which.into()];
                words.extend(self.on_key(&key));
                words
            }
            45 => {
                let mut words = vec![self.pick(&["PING", "ECHO", "client", "object"]).into()];
                words.extend((0..self.rng.below(4)).map(|_| self.value()));
                words
            }
            46..62 => self.sorted_set_command(),
            62..68 => self.geo_command(),
            68..71 => self.waiting_or_sorting(),
            _ => (0..=self.rng.below(4)).map(|_| self.value()).collect(),
        }
    }
}

const KEYED: &[&str] = &[
    "GET",
    "SET",
    "SET",
    "SET",
    "SETNX",
    "SETEX",
    "PSETEX",
    "GETSET",
    "GETDEL",
    "GETEX",
    "GETEX",
    "APPEND",
    "STRLEN",
    "GETRANGE",
    "SETRANGE",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "INCRBYFLOAT",
    "INCRBYFLOAT",
    "SETBIT",
    "GETBIT",
    "BITCOUNT",
    "BITCOUNT",
    "BITPOS",
    "BITPOS",
    "BITFIELD",
    "BITFIELD",
    "BITFIELD_RO",
    "BITOP",
    "LCS",
    "SUBSTR",
    "DUMP",
    "RESTORE",
    "DEL",
    "EXISTS",
    "TYPE",
    "TTL",
    "PTTL",
    "EXPIRETIME",
    "PEXPIRETIME",
    "EXPIRE",
    "PEXPIRE",
    "EXPIREAT",
    "PEXPIREAT",
    "PERSIST",
    "TOUCH",
    "MSET",
    "COPY",
];

/// Small ones, and large ones that are refused: a value of the largest size is a test of its own.
const OFFSETS: &[&str] = &[
    "0",
    "1",
    "7",
    "8",
    "15",
    "20",
    "100",
    "1000",
    "-1",
    "",
    "abc",
    "4194304",
    "536870912",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "01",
];
