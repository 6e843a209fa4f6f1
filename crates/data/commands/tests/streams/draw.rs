//! Random commands on streams: few keys, groups and consumers, and small ids, so that they meet.

use quorate_machine::Rng;

use super::words;
use crate::workspace::Words;

const GROUPS: &[&str] = &["g1", "g2", "g\0x"];
const CONSUMERS: &[&str] = &["alice", "bob", "b", ""];
/// As many milliseconds are either always over or never.
const IDLES: &[&str] = &["0", "0", "0", "1000000", "-5", "x"];

pub(super) struct Draw {
    pub(super) rng: Rng,
    /// Ids grow with it.
    next: u64,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), next: 1 }
    }

    fn pick<T: Copy>(&mut self, pool: &[T]) -> T {
        pool[self.rng.below(pool.len() as u64) as usize]
    }

    fn key(&mut self) -> &'static str {
        self.pick(&["s1", "s1", "s2", "s2", "s2", "text", "none"])
    }

    /// Mostly one that an entry can have.
    fn id(&mut self) -> String {
        const ODD: &[&str] = &[
            "0-0",
            "0",
            "-",
            "+",
            "(1",
            "(0-3",
            "(",
            "x",
            "",
            "1-",
            "-1",
            "1-x",
            "1-*",
            "0-*",
            "007-1",
            "18446744073709551615-18446744073709551615",
            "18446744073709551615",
            "1--5",
            "(18446744073709551615-18446744073709551615",
            "(0-0",
            "18446744073709551616",
            "1-2-3",
            "$",
            ">",
        ];
        match self.rng.below(12) {
            0 => self.pick(ODD).into(),
            1..4 => (1 + self.rng.below(self.next)).to_string(),
            _ => format!("{}-{}", 1 + self.rng.below(self.next), self.rng.below(3)),
        }
    }

    fn new_id(&mut self) -> String {
        match self.rng.below(12) {
            0 => self.id(),
            1 => format!("{}-*", self.next),
            2 => {
                self.next += self.rng.below(300);
                self.next.to_string()
            }
            _ => {
                self.next += self.rng.below(3);
                format!("{}-{}", self.next, self.rng.below(4))
            }
        }
    }

    fn integer(&mut self) -> String {
        const ODD: &[&str] = &["-1", "x", "9223372036854775807", "-9223372036854775808", "1.5"];
        if self.rng.chance(1, 8) { self.pick(ODD).into() } else { self.rng.below(12).to_string() }
    }

    fn maybe(&mut self, words: &mut Words, chance: u64, options: &[&str]) -> bool {
        let taken = self.rng.chance(1, chance);
        if taken {
            let word = self.pick(options);
            let cased = if self.rng.chance(1, 4) { word.to_lowercase() } else { word.into() };
            words.push(cased.into());
        }
        taken
    }

    fn trim(&mut self, words: &mut Words) {
        let by_length = self.rng.chance(1, 2);
        words.push(if by_length { "MAXLEN" } else { "MINID" }.into());
        self.maybe(words, 2, &["~", "=", "~"]);
        words.push(if by_length { self.integer() } else { self.id() }.into());
        if self.maybe(words, 5, &["LIMIT"]) {
            words.push(self.integer().into());
        }
    }

    fn fields(&mut self, words: &mut Words) {
        const NAMES: &[&str] = &["f", "f", "g", "a longer name", "12", ""];
        let value = |rng: &mut Rng| match rng.below(6) {
            0 => rng.below(100_000).to_string(),
            1 => (rng.next_u64() as i64 >> rng.below(64)).to_string(),
            2 => "v".repeat(rng.below(200) as usize),
            _ => "v".into(),
        };
        for _ in 0..self.pick(&[1, 1, 1, 2, 3]) {
            words.push(self.pick(NAMES).into());
            words.push(value(&mut self.rng).into());
        }
        if self.rng.chance(1, 20) {
            words.pop();
        }
    }

    fn xadd(&mut self) -> Words {
        let mut words = words(&format!("XADD {}", self.key()));
        self.maybe(&mut words, 8, &["NOMKSTREAM"]);
        if self.rng.chance(1, 6) {
            self.trim(&mut words);
        }
        let id = self.new_id();
        words.push(id.into());
        self.fields(&mut words);
        words
    }

    fn range(&mut self) -> Words {
        let name = self.pick(&["XRANGE", "XREVRANGE"]);
        let ends = if name == "XRANGE" { ["-", "+"] } else { ["+", "-"] };
        let ends = ends.map(|end| if self.rng.chance(1, 2) { end.into() } else { self.id() });
        let mut words = words(&format!("{name} {} {} {}", self.key(), ends[0], ends[1]));
        if self.maybe(&mut words, 3, &["COUNT", "COUNT", "COUNT", "FOO"]) && self.rng.chance(9, 10)
        {
            words.push(self.integer().into());
        }
        words
    }

    fn ids(&mut self, words: &mut Words) {
        for _ in 0..self.pick(&[1, 1, 2, 3, 5]) {
            words.push(self.id().into());
        }
    }

    fn read(&mut self) -> Words {
        let by_group = self.rng.chance(3, 4);
        let mut words = words(if by_group { "XREADGROUP" } else { "XREAD" });
        if by_group && self.rng.chance(15, 16) {
            let (group, consumer) = (self.pick(GROUPS), self.pick(CONSUMERS));
            words.extend(["GROUP", group, consumer].map(Into::into));
        }
        if self.maybe(&mut words, 2, &["COUNT"]) {
            words.push(self.integer().into());
        }
        self.maybe(&mut words, if by_group { 6 } else { 40 }, &["NOACK"]);
        self.maybe(&mut words, 40, &["FOO"]);
        words.push("STREAMS".into());
        let streams = self.pick(&[1, 1, 1, 2, 3]);
        words.extend((0..streams).map(|_| self.pick(&["s1", "s2", "s2", "none"]).into()));
        for _ in 0..streams {
            let id = match self.rng.below(4) {
                0 => self.id(),
                1 if !by_group => "$".into(),
                _ if by_group => ">".into(),
                _ => self.id(),
            };
            words.push(id.into());
        }
        if self.rng.chance(1, 30) {
            words.pop();
        }
        words
    }

    fn group(&mut self) -> Words {
        let key = self.key();
        let group = self.pick(GROUPS);
        match self.rng.below(10) {
            0..4 => {
                let id = if self.rng.chance(1, 3) { "$".into() } else { self.id() };
                let mut words = words(&format!("XGROUP CREATE {key} {group} {id}"));
                self.maybe(&mut words, 2, &["MKSTREAM"]);
                if self.maybe(&mut words, 4, &["ENTRIESREAD"]) {
                    words.push(self.integer().into());
                }
                words
            }
            4..6 => {
                let id = if self.rng.chance(1, 3) { "$".into() } else { self.id() };
                let mut words = words(&format!("XGROUP SETID {key} {group} {id}"));
                if self.maybe(&mut words, 3, &["ENTRIESREAD", "ENTRIESREAD", "FOO"]) {
                    words.push(self.integer().into());
                }
                words
            }
            6 => words(&format!("XGROUP DESTROY {key} {group}")),
            7 => words(&format!("XGROUP CREATECONSUMER {key} {group} {}", self.pick(CONSUMERS))),
            8 => words(&format!("XGROUP DELCONSUMER {key} {group} {}", self.pick(CONSUMERS))),
            _ => words(&format!("XGROUP {} {key} {group}", self.pick(&["FOO", "CREATE", "HELP"]))),
        }
    }

    fn claim(&mut self) -> Words {
        let (key, group) = (self.key(), self.pick(GROUPS));
        let (consumer, idle) = (self.pick(CONSUMERS), self.pick(IDLES));
        if self.rng.chance(1, 2) {
            let from = if self.rng.chance(1, 2) { "-".into() } else { self.id() };
            let mut words = words(&format!("XAUTOCLAIM {key} {group} {consumer} {idle} {from}"));
            if self.maybe(&mut words, 2, &["COUNT", "COUNT", "COUNT", "FOO"]) {
                // Redis sets aside memory for so many.
                words.push(self.pick(&["1", "2", "3", "100", "0", "-1", "x"]).into());
            }
            self.maybe(&mut words, 4, &["JUSTID"]);
            return words;
        }
        let mut words = words(&format!("XCLAIM {key} {group} {consumer} {idle}"));
        self.ids(&mut words);
        for _ in 0..self.pick(&[0, 0, 1, 1, 2]) {
            let option = self.pick(&[
                "FORCE",
                "FORCE",
                "JUSTID",
                "IDLE",
                "TIME",
                "RETRYCOUNT",
                "LASTID",
                "FOO",
            ]);
            words.push(option.into());
            match option {
                "IDLE" => words.push(self.pick(&["0", "2000000", "-1", "x"]).into()),
                "TIME" => words.push(self.pick(&["1", "99999999999999", "-1", "x"]).into()),
                "RETRYCOUNT" => words.push(self.integer().into()),
                "LASTID" => words.push(self.id().into()),
                _ => {}
            }
        }
        words
    }

    fn pending(&mut self) -> Words {
        let mut words = words(&format!("XPENDING {} {}", self.key(), self.pick(GROUPS)));
        if self.rng.chance(1, 3) {
            return words;
        }
        if self.maybe(&mut words, 3, &["IDLE"]) {
            words.push(self.pick(&["0", "1000000", "x"]).into());
        }
        for end in ["-", "+"] {
            words.push(if self.rng.chance(1, 2) { end.into() } else { self.id() }.into());
        }
        words.push(self.integer().into());
        if self.rng.chance(1, 3) {
            words.push(self.pick(CONSUMERS).into());
        }
        if self.rng.chance(1, 20) {
            words.pop();
        }
        words
    }

    fn info(&mut self) -> Words {
        let key = self.key();
        match self.rng.below(8) {
            0..2 => words(&format!("XINFO STREAM {key}")),
            2..4 => words(&format!("XINFO GROUPS {key}")),
            4..6 => words(&format!("XINFO CONSUMERS {key} {}", self.pick(GROUPS))),
            6 => words(&format!("XINFO STREAM {key} FULL COUNT {}", self.integer())),
            _ => {
                words(&format!("XINFO STREAM {key} {}", self.pick(&["FULL", "FULL COUNT", "FOO"])))
            }
        }
    }

    pub(super) fn command(&mut self) -> Words {
        match self.rng.below(64) {
            0..20 => self.xadd(),
            20..24 => self.range(),
            24..27 => {
                let mut words = words(&format!("XDEL {}", self.key()));
                self.ids(&mut words);
                words
            }
            27 => {
                let mut words = words(&format!("XTRIM {}", self.key()));
                self.trim(&mut words);
                self.maybe(&mut words, 8, &["FOO", "NOMKSTREAM", "LIMIT"]);
                words
            }
            28..40 => self.read(),
            40..46 => self.group(),
            46..49 => {
                let mut words = words(&format!("XACK {} {}", self.key(), self.pick(GROUPS)));
                self.ids(&mut words);
                words
            }
            49..54 => self.claim(),
            54..57 => self.pending(),
            57..60 => self.info(),
            60 => {
                let mut words = words(&format!("XSETID {} {}", self.key(), self.id()));
                for _ in 0..self.pick(&[0, 1, 2]) {
                    if self.rng.chance(1, 2) {
                        words.extend([b"ENTRIESADDED".to_vec(), self.integer().into()]);
                    } else {
                        words.extend([b"MAXDELETEDID".to_vec(), self.id().into()]);
                    }
                }
                words
            }
            61 => words(&format!("XLEN {}", self.key())),
            62 => {
                words(self.pick(&["SET text x", "TYPE s1", "EXPIRE s1 1000", "OBJECT ENCODING s2"]))
            }
            _ => {
                let line = ["DEL s1", "COPY s2 s1 REPLACE", "RENAME s1 s2", "XLEN s1", "XLEN s1"];
                words(self.pick(&line))
            }
        }
    }

    /// A command that tells all of a key that another one names.
    pub(super) fn state_of(&mut self, command: &Words) -> Words {
        let named = command.iter().find(|word| [&b"s1"[..], b"s2", b"text"].contains(&&word[..]));
        let mut words = words("XINFO STREAM s1 FULL COUNT 0");
        if let Some(key) = named {
            words[2].clone_from(key);
        }
        words
    }

    /// A stream of so many entries, of which some are deleted and trimmed meanwhile, and of which a group
    /// has many pending.
    pub(super) fn long_stream(&mut self, entries: u64) -> Vec<Words> {
        let mut commands =
            vec![words("XGROUP CREATE long g 0 MKSTREAM"), words("XGROUP CREATE long h $")];
        let mut ms = 1_000;
        let mut ids = Vec::new();
        for number in 0..entries {
            ms += [0, 1, 1, 1, 70_000][self.rng.below(5) as usize];
            let mut add = words(&format!("XADD long {ms}-{number}"));
            self.fields(&mut add);
            commands.push(add);
            ids.push(format!("{ms}-{number}"));
            let some = |rng: &mut Rng| 1_000 + rng.below(ms - 999);
            let one = |rng: &mut Rng| ids[rng.below(ids.len() as u64) as usize].clone();
            let rng = &mut self.rng;
            commands.push(match rng.below(80) {
                0..10 => words(&format!(
                    "XDEL long {0}-{number} {ms}-{1}",
                    ms - 1,
                    number.saturating_sub(1)
                )),
                10 => words(&format!("XTRIM long MAXLEN ~ {}", entries / 3)),
                11 => words(&format!("XTRIM long MAXLEN ~ {} LIMIT {}", 50, rng.below(300))),
                12 => words(&format!("XTRIM long MINID ~ {}", some(rng) / 4)),
                13 if rng.chance(1, 4) => words(&format!("XTRIM long MAXLEN {}", entries / 4)),
                14 if rng.chance(1, 4) => words(&format!("XTRIM long MINID {}", some(rng) / 3)),
                15 => words(&format!("XRANGE long {} + COUNT 3", some(rng))),
                16 => words(&format!("XREVRANGE long {} - COUNT 3", some(rng))),
                17 => words(&format!("XREAD COUNT 2 STREAMS long {}", some(rng))),
                18..24 => words("XREADGROUP GROUP g c COUNT 9 STREAMS long >"),
                24..26 => words("XREADGROUP GROUP h d COUNT 2 STREAMS long >"),
                26 => words(&format!("XREADGROUP GROUP g c COUNT 2 STREAMS long {}", some(rng))),
                27..32 => words(&format!("XACK long g {} {}", one(rng), one(rng))),
                32 => words(&format!("XCLAIM long g e 0 {} {} FORCE", one(rng), one(rng))),
                33 => words(&format!("XAUTOCLAIM long g e 0 {} COUNT 3", some(rng))),
                34 => words(&format!("XDEL long {} {} {}", one(rng), one(rng), one(rng))),
                35 => words(&format!("XRANGE long {0} {0}", one(rng))),
                36 => words("XPENDING long g"),
                37 => words(&format!("XREVRANGE long ({} - COUNT 1", one(rng))),
                _ => words("XINFO STREAM long"),
            });
        }
        commands.push(words("XINFO GROUPS long"));
        commands.push(words("XRANGE long - +"));
        commands.push(words("XREVRANGE long + -"));
        commands
    }
}
