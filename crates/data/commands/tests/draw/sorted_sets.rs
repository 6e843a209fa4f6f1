//! Random commands on sorted sets: few keys, members and scores, so that there are ties, ranges with
//! something in them and removals.

use super::{Draw, INTEGERS};
use crate::workspace::Words;

const MEMBERS: &[&str] = &["a", "b", "c", "d", "e", "ab", "b\0", "", "7", "-1", "\u{ff}", "zz"];

const SCORES: &[&str] = &[
    "0",
    "1",
    "1",
    "2",
    "2",
    "3",
    "-1",
    "1.5",
    "0.1",
    "-0",
    "3.0",
    "inf",
    "-inf",
    "+inf",
    "1e300",
    "-1e300",
    "1e17",
    "123456789012345678",
    "9007199254740993",
    "1e-5",
    "5e-324",
    "0x10",
    "0x1.8p1",
    "1e308",
];

const BAD_SCORES: &[&str] = &[
    "nan", "-nan", "", "x", " 1", "1 ", "1e400", "1e-400", "0x", "1e", ".", "1\0", "0x1p1024",
    "infinit",
];

const SCORE_BOUNDS: &[&str] = &[
    "-inf", "+inf", "inf", "(inf", "(-inf", "0", "(0", "1", "(1", "2", "(2", "3", "-1", "1.5",
    "(1.5", "", "(", " 1", "(1 ", "nan", "x", "1e400", "1\0x", "0x2",
];

const LEX_BOUNDS: &[&str] = &[
    "-", "+", "-", "+", "[a", "(a", "[b", "(b", "[c", "(c", "[", "(", "[ab", "(zz", "+x", "-\0x",
    "a", "", "[\u{ff}",
];

/// Commands that are drawn for keys of other types, too: none of them makes a sorted set.
const READS: &[&str] = &["ZRANGE", "ZSCORE", "ZREM", "ZCARD", "ZPOPMAX", "ZCOUNT", "ZRANK"];

const ON_ONE_KEY: &[&str] = &[
    "ZADD",
    "ZADD",
    "ZADD",
    "ZADD",
    "ZADD",
    "ZINCRBY",
    "ZINCRBY",
    "ZREM",
    "ZREM",
    "ZCARD",
    "ZSCORE",
    "ZMSCORE",
    "ZRANK",
    "ZREVRANK",
    "ZCOUNT",
    "ZCOUNT",
    "ZLEXCOUNT",
    "ZRANGE",
    "ZRANGE",
    "ZRANGE",
    "ZRANGE",
    "ZREVRANGE",
    "ZRANGEBYSCORE",
    "ZRANGEBYSCORE",
    "ZREVRANGEBYSCORE",
    "ZRANGEBYLEX",
    "ZREVRANGEBYLEX",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYSCORE",
    "ZREMRANGEBYLEX",
    "ZPOPMIN",
    "ZPOPMAX",
    "ZMPOP",
    "ZRANDMEMBER",
    "ZSCAN",
    "TYPE",
    "EXPIRE",
    "TTL",
];

const OVER_SEVERAL: &[&str] = &[
    "ZUNION",
    "ZINTER",
    "ZDIFF",
    "ZUNIONSTORE",
    "ZINTERSTORE",
    "ZDIFFSTORE",
    "ZINTERCARD",
    "ZRANGESTORE",
    "ZRANGESTORE",
    "ZMPOP",
    "COPY",
    "RENAME",
    "DEL",
];

impl Draw {
    fn sorted_set_key(&mut self) -> Vec<u8> {
        self.pick(&["z1", "z2", "z3"]).into()
    }

    fn scored_member(&mut self) -> Vec<u8> {
        self.pick(MEMBERS).into()
    }

    fn score(&mut self) -> Vec<u8> {
        match self.rng.below(40) {
            0 => self.pick(BAD_SCORES).into(),
            1 => self.float(),
            2..20 => (self.rng.below(5)).to_string().into(),
            _ => self.pick(SCORES).into(),
        }
    }

    fn rank(&mut self) -> Vec<u8> {
        if self.rng.chance(1, 12) {
            return self.pick(INTEGERS).into();
        }
        (self.rng.below(24) as i64 - 10).to_string().into()
    }

    /// A command on sorted sets or on keys that hold some.
    pub(crate) fn sorted_set_command(&mut self) -> Words {
        match self.rng.below(16) {
            0..11 => {
                let key = self.sorted_set_key();
                self.on_sorted_set(&key)
            }
            11..14 => self.over_sorted_sets(),
            14 => {
                let key = self.key();
                let name = self.pick(READS);
                self.sorted_set_words(name, &key)
            }
            _ => {
                let key = self.sorted_set_key();
                let words = self.on_key(&key);
                if words[0].eq_ignore_ascii_case(b"DUMP") { self.over_sorted_sets() } else { words }
            }
        }
    }

    /// A command on one key.
    pub(crate) fn on_sorted_set(&mut self, key: &[u8]) -> Words {
        let name = self.pick(ON_ONE_KEY);
        self.sorted_set_words(name, key)
    }

    fn sorted_set_words(&mut self, name: &'static str, key: &[u8]) -> Words {
        let mut words = vec![self.any_case(name), key.to_vec()];
        match name {
            "ZADD" => self.additions(&mut words),
            "ZINCRBY" => words.extend([self.score(), self.scored_member()]),
            "ZREM" | "ZMSCORE" => {
                words.extend((0..=self.rng.below(3)).map(|_| self.scored_member()));
            }
            "ZSCORE" | "ZRANK" | "ZREVRANK" => words.push(self.scored_member()),
            "ZCOUNT" | "ZREMRANGEBYSCORE" => self.range_bounds(SCORE_BOUNDS, &mut words),
            "ZLEXCOUNT" | "ZREMRANGEBYLEX" => self.range_bounds(LEX_BOUNDS, &mut words),
            "ZREMRANGEBYRANK" => words.extend([self.rank(), self.rank()]),
            "ZRANGE" => {
                let (by, reverse) = self.any_range(&mut words);
                words.extend(by.map(|by| self.any_case(by)));
                words.extend(reverse.map(|reverse| self.any_case(reverse)));
                self.range_options(by.is_some(), &mut words);
            }
            "ZREVRANGE" => {
                words.extend([self.rank(), self.rank()]);
                self.range_options(false, &mut words);
            }
            "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE" => {
                self.range_bounds(SCORE_BOUNDS, &mut words);
                self.range_options(true, &mut words);
            }
            "ZRANGEBYLEX" | "ZREVRANGEBYLEX" => {
                self.range_bounds(LEX_BOUNDS, &mut words);
                self.range_options(true, &mut words);
            }
            "ZPOPMIN" | "ZPOPMAX" if self.rng.chance(1, 2) => words.push(self.rank()),
            "ZMPOP" => {
                words.insert(1, self.pick(&["1", "1", "1", "2", "0", "x"]).into());
                self.ends(&mut words);
            }
            "ZRANDMEMBER" => {
                words.push(self.pick(&["0", "100", "4611686018427387904", "x"]).into());
                words.extend(self.rng.chance(1, 2).then(|| b"WITHSCORES".to_vec()));
            }
            "ZSCAN" => {
                words.push(self.pick(&["0", "0", "0", "x", "-1", ""]).into());
                if self.rng.chance(1, 2) {
                    words.extend([b"MATCH".to_vec(), self.pick(&["*", "a*", "?", "b\0"]).into()]);
                }
                if self.rng.chance(1, 3) {
                    words.extend([b"COUNT".to_vec(), self.pick(&["1", "100", "0", "x"]).into()]);
                }
            }
            "EXPIRE" => words.push(self.time(true, true)),
            _ => {}
        }
        match name {
            // An argument more is an option of Redis 7.2.
            "ZRANK" | "ZREVRANK" => {}
            // What is drawn at random isn't compared here.
            "ZRANDMEMBER" => {}
            _ => self.damage(&mut words),
        }
        words
    }

    fn additions(&mut self, words: &mut Words) {
        for _ in 0..self.pick(&[0, 0, 0, 1, 1, 2, 3]) {
            let option = self.pick(&["NX", "XX", "GT", "LT", "CH", "CH", "INCR"]);
            words.push(self.any_case(option));
        }
        for _ in 0..self.pick(&[1, 1, 1, 2, 3, 5]) {
            words.extend([self.score(), self.scored_member()]);
        }
    }

    fn range_bounds(&mut self, pool: &[&str], words: &mut Words) {
        words.extend([self.pick(pool).into(), self.pick(pool).into()]);
    }

    /// The bounds of a range of any kind, and the words that say which it is.
    fn any_range(&mut self, words: &mut Words) -> (Option<&'static str>, Option<&'static str>) {
        let by = self.pick(&[None, None, Some("BYSCORE"), Some("BYLEX")]);
        match by {
            None => words.extend([self.rank(), self.rank()]),
            Some("BYLEX") => self.range_bounds(LEX_BOUNDS, words),
            Some(_) => self.range_bounds(SCORE_BOUNDS, words),
        }
        (by, self.rng.chance(1, 3).then_some("REV"))
    }

    fn range_options(&mut self, limited: bool, words: &mut Words) {
        if self.rng.chance(1, 3) {
            words.push(self.any_case("WITHSCORES"));
        }
        if self.rng.chance(if limited { 4 } else { 1 }, 12) {
            words.extend([self.any_case("LIMIT"), self.rank(), self.rank()]);
        }
        if self.rng.chance(1, 30) {
            words.push(self.pick(&["REV", "BYLEX", "LIMIT", "foo"]).into());
        }
    }

    fn ends(&mut self, words: &mut Words) {
        words.push(self.pick(&["MIN", "MAX", "min", "MID"]).into());
        if self.rng.chance(1, 2) {
            words.extend([self.any_case("COUNT"), self.rank()]);
        }
    }

    fn over_sorted_sets(&mut self) -> Words {
        let name = self.pick(OVER_SEVERAL);
        let mut words = vec![self.any_case(name)];
        if name.ends_with("STORE") {
            words.push(self.sorted_set_key());
        }
        match name {
            "ZRANGESTORE" => {
                words.push(self.sorted_set_key());
                let (by, reverse) = self.any_range(&mut words);
                words.extend(by.map(Into::into));
                words.extend(reverse.map(Into::into));
                if self.rng.chance(if by.is_some() { 4 } else { 1 }, 12) {
                    words.extend([b"LIMIT".to_vec(), self.rank(), self.rank()]);
                }
            }
            "COPY" | "RENAME" => words.extend([self.sorted_set_key(), self.sorted_set_key()]),
            "DEL" => words.push(self.sorted_set_key()),
            _ => {
                let keys = self.counted_sources(&mut words);
                match name {
                    "ZMPOP" => self.ends(&mut words),
                    "ZINTERCARD" if self.rng.chance(1, 2) => {
                        words.extend([b"LIMIT".to_vec(), self.rank()]);
                    }
                    _ => self.combination(keys, &mut words),
                }
            }
        }
        if name != "COPY" {
            self.damage(&mut words);
        }
        words
    }

    /// The number of keys and so many keys; now and then another number.
    fn counted_sources(&mut self, words: &mut Words) -> u64 {
        let keys = self.pick(&[1, 2, 2, 3, 4]);
        let said = if self.rng.chance(1, 20) { self.rank() } else { keys.to_string().into() };
        words.push(said);
        for _ in 0..keys {
            let key = if self.rng.chance(1, 20) { self.key() } else { self.sorted_set_key() };
            words.push(key);
        }
        keys
    }

    fn combination(&mut self, keys: u64, words: &mut Words) {
        if self.rng.chance(1, 3) {
            words.push(self.any_case("WEIGHTS"));
            words.extend((0..keys).map(|_| self.score()));
        }
        if self.rng.chance(1, 3) {
            let aggregate = self.pick(&["SUM", "MIN", "MAX", "min", "AVG"]);
            words.extend([self.any_case("AGGREGATE"), aggregate.into()]);
        }
        if self.rng.chance(1, 2) {
            words.push(self.any_case("WITHSCORES"));
        }
    }
}
