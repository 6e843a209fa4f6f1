//! Random commands on hashes, lists and sets.

use super::Draw;
use crate::workspace::Words;

pub(super) const HASHES: &[&str] = &[
    "HSET",
    "HSET",
    "HSET",
    "HMSET",
    "HSETNX",
    "HGET",
    "HMGET",
    "HDEL",
    "HLEN",
    "HSTRLEN",
    "HEXISTS",
    "HGETALL",
    "HKEYS",
    "HVALS",
    "HINCRBY",
    "HINCRBY",
    "HINCRBYFLOAT",
    "HRANDFIELD",
    "HSCAN",
    "OBJECT",
];

pub(super) const LISTS: &[&str] = &[
    "LPUSH",
    "RPUSH",
    "RPUSH",
    "LPUSHX",
    "RPUSHX",
    "LPOP",
    "RPOP",
    "LLEN",
    "LINDEX",
    "LSET",
    "LSET",
    "LRANGE",
    "LRANGE",
    "LTRIM",
    "LREM",
    "LINSERT",
    "LINSERT",
    "LPOS",
    "LPOS",
    "LMOVE",
    "RPOPLPUSH",
    "LMPOP",
    "OBJECT",
];

pub(super) const SETS: &[&str] = &[
    "SADD",
    "SADD",
    "SADD",
    "SREM",
    "SCARD",
    "SISMEMBER",
    "SMISMEMBER",
    "SMEMBERS",
    "SPOP",
    "SRANDMEMBER",
    "SSCAN",
    "SMOVE",
    "SINTER",
    "SINTERCARD",
    "SINTERSTORE",
    "SUNIONSTORE",
    "SDIFF",
    "OBJECT",
];

/// Counts of members drawn at random. A large negative one would keep Redis busy for ever.
const COUNTS: &[&str] = &[
    "0",
    "1",
    "3",
    "50",
    "-1",
    "-5",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "",
    "+1",
];

impl Draw {
    /// Names of a pool so small that commands meet, one of them too long for a compact hash.
    fn member(&mut self) -> Vec<u8> {
        const LONG: &str = "sixty-five bytes, which are too many for Redis's compact encoding";
        match self.rng.below(16) {
            0 => self.integer(),
            1 if self.rng.chance(1, 4) => LONG.into(),
            _ => self.pick(&["a", "b", "c", "d", "", "1", "-5", "\0", "007"]).into(),
        }
    }

    fn members(&mut self, words: &mut Words, counts: &[u64]) {
        for _ in 0..self.pick(counts) {
            words.push(self.member());
        }
    }

    /// The arguments behind the key of a command on a hash or a list.
    pub(super) fn on_collection(&mut self, name: &str, words: &mut Words) {
        match name {
            "OBJECT" => words.insert(1, b"ENCODING".into()),
            "HSET" | "HMSET" => {
                for _ in 0..self.pick(&[1, 1, 1, 2, 3, 12]) {
                    words.extend([self.member(), self.value()]);
                }
            }
            "HSETNX" => words.extend([self.member(), self.value()]),
            "HGET" | "HSTRLEN" | "HEXISTS" => words.push(self.member()),
            "HMGET" | "HDEL" => self.members(words, &[1, 1, 2, 5, 12]),
            "HINCRBY" => words.extend([self.member(), self.integer()]),
            "HINCRBYFLOAT" => words.extend([self.member(), self.float()]),
            "HRANDFIELD" => self.random_members(words, "WITHVALUES"),
            "HSCAN" => self.scan(words),
            "LPUSH" | "RPUSH" | "LPUSHX" | "RPUSHX" => self.members(words, &[1, 1, 2, 3, 9]),
            "LPOP" | "RPOP" if self.rng.chance(1, 3) => words.push(self.integer()),
            "LINDEX" => words.push(self.index()),
            "LSET" => words.extend([self.index(), self.member()]),
            "LRANGE" | "LTRIM" => words.extend([self.index(), self.index()]),
            "LREM" => words.extend([self.index(), self.member()]),
            "LINSERT" => {
                let place = self.pick(&["BEFORE", "AFTER", "AFTER", "BEFORE", "BESIDE"]);
                words.extend([self.any_case(place), self.member(), self.member()]);
            }
            "LPOS" => self.positions(words),
            "LMOVE" => {
                words.push(words[1].clone());
                words.extend([self.end(), self.end()]);
            }
            "RPOPLPUSH" => words.push(words[1].clone()),
            "LMPOP" => {
                words.insert(1, self.pick(&["1", "1", "1", "1", "0", "2", "-1", "x"]).into());
                self.pop_options(words);
            }
            "SADD" if self.rng.chance(1, 2) => {
                words.extend((0..=self.rng.below(6)).map(|_| self.wide_integer()));
            }
            "SADD" | "SREM" | "SMISMEMBER" => self.members(words, &[1, 1, 2, 3, 9]),
            "SISMEMBER" => words.push(self.member()),
            "SRANDMEMBER" => self.random_members(words, ""),
            // Of some members it would take others than Redis: all or none.
            "SPOP" => words.push(self.pick(&["0", "1000", "1000", "-1", "x", "1000"]).into()),
            "SSCAN" => self.scan(words),
            "SMOVE" => words.extend([words[1].clone(), self.member()]),
            "SINTER" | "SDIFF" | "SINTERSTORE" | "SUNIONSTORE" => words.push(words[1].clone()),
            "SINTERCARD" => {
                words.insert(1, self.pick(&["1", "1", "1", "0", "2", "-1", "x"]).into());
                self.limits(words);
            }
            _ => {}
        }
    }

    /// Integers of all widths.
    fn wide_integer(&mut self) -> Vec<u8> {
        let wide = [
            "32767",
            "32768",
            "-32769",
            "2147483647",
            "2147483648",
            "-2147483649",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "1",
        ];
        match self.rng.below(4) {
            0 => self.pick(&wide).into(),
            _ => (self.rng.below(10) as i64 - 5).to_string().into(),
        }
    }

    fn limits(&mut self, words: &mut Words) {
        for _ in 0..self.pick(&[0, 0, 1, 1, 2]) {
            let option = self.pick(&["LIMIT", "limit", "LIMIT", "FOO"]);
            words.extend([option.into(), self.pick(&["0", "1", "2", "100", "-1", "x"]).into()]);
        }
    }

    fn index(&mut self) -> Vec<u8> {
        match self.rng.below(8) {
            0 => self.integer(),
            _ => (self.rng.below(20) as i64 - 10).to_string().into(),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        let end = self.pick(&["LEFT", "RIGHT", "LEFT", "RIGHT", "LEFT", "RIGHT", "UP"]);
        self.any_case(end)
    }

    fn random_members(&mut self, words: &mut Words, with: &str) {
        if self.rng.chance(3, 4) {
            words.push(self.pick(COUNTS).into());
            if !with.is_empty() && self.rng.chance(1, 2) {
                let with = if self.rng.chance(1, 8) { "WITH" } else { with };
                words.push(self.any_case(with));
            }
        }
    }

    /// A scan of a collection that one part visits whole.
    pub(super) fn scan(&mut self, words: &mut Words) {
        let cursor = ["0", "0", "0", "0", "0", "", "x", " 0", "00", "18446744073709551616"];
        words.push(self.pick(&cursor).into());
        words.extend([b"COUNT".to_vec(), b"1000".to_vec()]);
        for _ in 0..self.pick(&[0, 0, 1, 1, 2]) {
            let option = self.pick(&["COUNT", "MATCH", "MATCH", "TYPE"]);
            words.push(self.any_case(option));
            if self.rng.chance(1, 12) {
                continue;
            }
            words.push(match option {
                "COUNT" => self.pick(&["1000", "5000", "0", "-1", "x"]).into(),
                _ => self.pick(&["*", "a*", "[ab]", "?", "x", "\\", ""]).into(),
            });
        }
    }

    fn positions(&mut self, words: &mut Words) {
        words.push(self.member());
        for _ in 0..self.pick(&[0, 1, 1, 2, 3]) {
            let option = self.pick(&["RANK", "COUNT", "MAXLEN", "FOO"]);
            words.extend([self.any_case(option), self.index()]);
        }
    }

    pub(super) fn pop_options(&mut self, words: &mut Words) {
        words.push(self.end());
        for _ in 0..self.pick(&[0, 0, 1, 1, 2]) {
            let option = self.pick(&["COUNT", "COUNT", "count", "FOO"]);
            words.extend([option.into(), self.pick(&["1", "2", "10", "0", "-1", "x"]).into()]);
        }
    }

    /// A command over several collections.
    pub(super) fn over_collections(&mut self) -> Words {
        if self.rng.chance(1, 2) {
            return self.over_sets();
        }
        let name = self.pick(&["LMOVE", "RPOPLPUSH", "LMPOP"]);
        let mut words = vec![self.any_case(name), self.key_of(b'l')];
        match name {
            "LMOVE" => words.extend([self.key_of(b'l'), self.end(), self.end()]),
            "RPOPLPUSH" => words.push(self.key_of(b'l')),
            _ => {
                words.insert(1, self.pick(&["1", "2", "2", "3", "0", "x"]).into());
                words.extend((0..self.rng.below(3)).map(|_| self.key_of(b'l')));
                self.pop_options(&mut words);
            }
        }
        self.damage(&mut words);
        words
    }

    fn over_sets(&mut self) -> Words {
        let name = self.pick(&[
            "SMOVE",
            "SMOVE",
            "SINTER",
            "SUNION",
            "SDIFF",
            "SINTERSTORE",
            "SUNIONSTORE",
            "SDIFFSTORE",
            "SINTERCARD",
        ]);
        let mut words = vec![self.any_case(name), self.key_of(b's')];
        match name {
            "SMOVE" => words.extend([self.key_of(b's'), self.member()]),
            "SINTERCARD" => {
                words.insert(1, self.pick(&["1", "2", "2", "3", "0", "x"]).into());
                words.extend((0..self.rng.below(3)).map(|_| self.key_of(b's')));
                self.limits(&mut words);
            }
            _ => words.extend((0..=self.rng.below(3)).map(|_| self.key_of(b's'))),
        }
        self.damage(&mut words);
        words
    }

    /// Mostly a key whose name begins with this letter, and that so mostly holds one type.
    fn key_of(&mut self, letter: u8) -> Vec<u8> {
        if self.rng.chance(1, 8) {
            return self.key();
        }
        vec![letter, self.pick(b"12")]
    }
}

impl Draw {
    /// A command that waits, outside of blocks with an invalid timeout, and `SORT`.
    pub(super) fn waiting_or_sorting(&mut self) -> Words {
        let name = self.pick(&[
            "BLPOP",
            "BRPOP",
            "BLMOVE",
            "BRPOPLPUSH",
            "BLMPOP",
            "BZPOPMIN",
            "BZPOPMAX",
            "BZMPOP",
            "SORT",
            "SORT_RO",
        ]);
        let timeouts = if self.in_block { &["0", "1.5", "-1"] } else { &["-1", "x", ""] };
        let timeout: Vec<u8> = self.pick(timeouts).into();
        let end: Vec<u8> = self.pick(&["LEFT", "right", "RIGHT", "MIN", "up"]).into();
        let keys = [self.key(), self.key()];
        let mut words = vec![self.any_case(name)];
        match name {
            "BLMOVE" => {
                words.extend(keys);
                words.extend([end.clone(), end, timeout]);
            }
            "BRPOPLPUSH" => {
                words.extend(keys);
                words.push(timeout);
            }
            "BLMPOP" | "BZMPOP" => {
                words.extend([timeout, self.pick(&["2", "2", "1", "0", "3", "x"]).into()]);
                words.extend(keys);
                words.push(self.pick(&["LEFT", "RIGHT", "MIN", "MAX"]).into());
                if self.rng.chance(1, 2) {
                    words.extend([b"COUNT".to_vec(), self.integer()]);
                }
            }
            "SORT" | "SORT_RO" => {
                words.push(self.key());
                for option in ["ALPHA", "DESC", "LIMIT", "GET"] {
                    if self.rng.chance(1, 3) {
                        words.push(self.any_case(option));
                        match option {
                            "LIMIT" => words.extend([self.integer(), self.integer()]),
                            "GET" => words.push(b"#".to_vec()),
                            _ => {}
                        }
                    }
                }
            }
            _ => {
                words.extend(keys);
                words.push(timeout);
            }
        }
        words
    }
}
