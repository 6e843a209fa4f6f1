//! What an import came to.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use quorate_rdb::Kind;

use super::batch::Outcome;

/// How many keys are named of those that were left out.
const NAMES_MAX: usize = 20;

/// Keys that were left out for one reason.
#[derive(Default)]
struct LeftOut {
    count: u64,
    names: Vec<String>,
}

impl LeftOut {
    fn add(&mut self, line: String) {
        self.count += 1;
        if self.names.len() < NAMES_MAX {
            self.names.push(line);
        }
    }

    fn lines(&self, what: &str) -> Vec<String> {
        let mut lines = Vec::new();
        if self.count > 0 {
            lines.push(format!("{what}: {}", self.count));
            lines.extend(self.names.iter().map(|name| format!("  {name}")));
            let more = self.count - self.names.len() as u64;
            if more > 0 {
                lines.push(format!("  and {more} more"));
            }
        }
        lines
    }
}

/// What became of the keys of a database.
#[derive(Default)]
struct Counts {
    written: u64,
    /// Of these, those that don't expire.
    lasting: u64,
}

pub(crate) struct Summary {
    /// What was done to keys.
    done: &'static str,
    databases: BTreeMap<u64, Counts>,
    kinds: BTreeMap<Kind, u64>,
    expired: u64,
    there: u64,
    empty: u64,
    modules: LeftOut,
    failed: LeftOut,
    /// Entries that were pending in a stream's group and are deleted.
    pending_lost: u64,
    libraries: Vec<String>,
    beside: Vec<String>,
    lacking: Vec<String>,
    /// How often something was tried again, and how many keys were written again for that.
    lost: u64,
    rewritten: u64,
}

impl Summary {
    pub(super) fn new(done: &'static str, libraries: &[String], beside: &[String]) -> Self {
        Self {
            done,
            databases: BTreeMap::new(),
            kinds: BTreeMap::new(),
            expired: 0,
            there: 0,
            empty: 0,
            modules: LeftOut::default(),
            failed: LeftOut::default(),
            pending_lost: 0,
            libraries: libraries.to_vec(),
            beside: beside.to_vec(),
            lacking: Vec::new(),
            lost: 0,
            rewritten: 0,
        }
    }

    pub(super) fn count(&mut self, database: u64, outcome: Outcome) {
        let counts = self.databases.entry(database).or_default();
        for key in &outcome.written {
            counts.written += 1;
            counts.lasting += u64::from(!key.expires);
            *self.kinds.entry(key.kind).or_default() += 1;
        }
        self.expired += outcome.expired;
        self.there += outcome.there;
        self.empty += outcome.empty;
        self.pending_lost += outcome.pending_lost;
        for name in outcome.modules {
            self.modules.add(format!("\"{}\"", name.escape_ascii()));
        }
        for (name, reason) in outcome.failed {
            self.differs(&name, reason);
        }
    }

    pub(super) fn differs(&mut self, name: &[u8], reason: String) {
        self.failed.add(format!("\"{}\": {reason}", name.escape_ascii()));
    }

    pub(super) fn lacks(&mut self, line: String) {
        self.lacking.push(line);
    }

    /// The connection was lost, or the target couldn't for a moment.
    pub(super) fn lost(&mut self) {
        self.lost += 1;
    }

    /// So many keys were written again for that.
    pub(super) fn rewritten(&mut self, keys: u64) {
        self.rewritten += keys;
    }

    /// How many keys were written.
    pub(super) fn written(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// How many keys a database must have at least, if any were written there.
    pub(super) fn lasting(&self, database: u64) -> Option<u64> {
        self.databases.get(&database).map(|counts| counts.lasting)
    }

    /// The libraries were loaded.
    pub(crate) fn has_libraries(&mut self) {
        self.libraries.clear();
    }

    /// What people are told.
    pub(crate) fn lines(&self, took: Duration, quiet: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if !quiet {
            let kinds: Vec<_> =
                self.kinds.iter().map(|(kind, count)| format!("{count} {}", kind.name())).collect();
            let kinds =
                if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
            let seconds = took.as_secs_f64();
            lines.push(format!("{} {} keys{kinds} in {seconds:.1} s", self.done, self.written()));
            for (count, what) in [
                (self.expired, "had expired by now and were left out"),
                (self.there, "were there already and are as they were"),
                (self.empty, "are of collections without members and were left out"),
            ] {
                if count > 0 {
                    lines.push(format!("{count} keys {what}"));
                }
            }
        }
        if self.lost > 0 {
            let (lost, keys) = (self.lost, self.rewritten);
            lines.push(format!(
                "a connection was lost, or the target could not for a moment, {lost} times; {keys} keys were \
                 written again"
            ));
        }
        if self.pending_lost > 0 {
            lines.push(format!(
                "{} entries that consumers of streams had yet to acknowledge are deleted, and no longer \
                 pending",
                self.pending_lost
            ));
        }
        for library in &self.libraries {
            lines.push(format!(
                "library \"{library}\" was left out: load its source with FUNCTION LOAD"
            ));
        }
        for module in &self.beside {
            lines.push(format!("what module {module} keeps beside keys was left out"));
        }
        lines.extend(self.modules.lines("keys of modules, which were left out"));
        lines.extend(self.failed.lines("keys that could not be imported"));
        lines.extend(self.lacking.iter().cloned());
        lines
    }

    /// An error if the target lacks a key of the file that it should have.
    pub(crate) fn judge(&self) -> anyhow::Result<()> {
        let missing = self.modules.count + self.failed.count;
        ensure!(missing == 0, "{missing} keys of the file are not at the target as they should be");
        ensure!(self.lacking.is_empty(), "the target has fewer keys than were written");
        Ok(())
    }
}
