//! Random commands on HyperLogLogs.

use super::Draw;
use crate::workspace::Words;

impl Draw {
    /// Never a count of one key, which changes the value in Redis and not here.
    pub(super) fn sketch(&mut self, key: &[u8]) -> Words {
        let name = self.pick(&["PFADD", "PFADD", "PFADD", "PFMERGE", "PFCOUNT", "PFDEBUG"]);
        let mut words = vec![self.any_case(name), key.to_vec()];
        match name {
            "PFADD" => words.extend((0..self.rng.below(8)).map(|_| self.value())),
            "PFCOUNT" => words.push(key.to_vec()),
            "PFDEBUG" => {
                let what = self.pick(&["ENCODING", "DECODE", "TODENSE", "foo"]);
                words.insert(1, what.into());
            }
            _ => {
                if self.rng.chance(1, 3) {
                    words.push(key.to_vec());
                }
            }
        }
        words
    }
}
