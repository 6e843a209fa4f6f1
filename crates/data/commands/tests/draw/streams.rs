//! Random commands on streams, among those on values of any other kind. `tests/streams` has more of
//! them.

use super::Draw;
use crate::workspace::Words;

const WORDS: &[&str] = &["1-1", "2-1", "3", "0", "-", "+", "(2", "$", ">", "*", "x"];

impl Draw {
    /// Nothing whose answer depends on the clock.
    pub(super) fn stream(&mut self, key: &[u8]) -> Words {
        let id = || -> &[&str] { &["1-1", "2-1", "3-1", "3-*", "4-*", "5", "0-0", "x"] };
        let lines: &[&[&str]] = &[
            &["XADD", "k", "id", "f", "v"],
            &["XADD", "k", "MAXLEN", "2", "id", "f", "v", "g", "w"],
            &["XADD", "k", "NOMKSTREAM", "id", "f", "v"],
            &["XLEN", "k"],
            &["XRANGE", "k", "?", "?"],
            &["XREVRANGE", "k", "?", "?", "COUNT", "2"],
            &["XDEL", "k", "id", "id"],
            &["XTRIM", "k", "MAXLEN", "1"],
            &["XSETID", "k", "id"],
            &["XREAD", "STREAMS", "k", "?"],
            &["XGROUP", "CREATE", "k", "g", "?", "MKSTREAM"],
            &["XGROUP", "DESTROY", "k", "g"],
            &["XGROUP", "CREATECONSUMER", "k", "g", "c"],
            &["XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">"],
            &["XREADGROUP", "GROUP", "g", "d", "COUNT", "1", "STREAMS", "k", "?"],
            &["XACK", "k", "g", "id"],
            &["XPENDING", "k", "g"],
            &["XCLAIM", "k", "g", "d", "0", "id"],
            &["XAUTOCLAIM", "k", "g", "c", "0", "?"],
            &["XINFO", "STREAM", "k"],
            &["XINFO", "GROUPS", "k"],
        ];
        let line = self.pick(lines);
        let word = |word: &&str| match *word {
            "k" => key.to_vec(),
            "id" => self.pick(id()).into(),
            "?" => self.pick(WORDS).into(),
            word => word.into(),
        };
        let mut words: Words = line.iter().map(word).collect();
        if !line.contains(&"XADD") {
            self.damage(&mut words);
        }
        words
    }
}
