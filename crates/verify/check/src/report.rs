//! The verdict on a history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::direct;
use crate::explain::explain;
use crate::history::{Bytes, History, Initial, Operation, Outcome};
use crate::linearizability::{Entry, Judgement, Loss, judge};
use crate::model::State;

/// The exit code of a checking program for a file that can't be read.
pub const EXIT_BAD_FILE: u8 = 2;

/// Bounds of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Configurations that the search may look at for one key; explaining a violation may take
    /// an eighth of that on top. One costs about a microsecond.
    pub budget: u64,
    /// At most this many anomalies of one key are reported, but always one of each check.
    pub findings_per_key_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { budget: 20_000_000, findings_per_key_max: 4 }
    }
}

/// An anomaly: proof that the cluster broke its guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The key.
    pub key: Bytes,
    /// What happened, over several lines.
    pub text: String,
}

/// A key on which the search gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The key.
    pub key: Bytes,
    /// Which bound was reached.
    pub reason: String,
}

/// The result of a history in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every key is linearizable.
    Ok,
    /// At least one key is not.
    Violation,
    /// No anomaly was found, but at least one key exceeded a bound, or could not be judged in
    /// full.
    Undecided,
}

impl Verdict {
    /// The exit code of a checking program: 0 ok, 1 anomaly, 3 undecided ([`EXIT_BAD_FILE`] is 2).
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Violation => 1,
            Self::Undecided => 3,
        }
    }
}

/// The result of a check. Its `Display` is what `quorate check` prints.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Operations in the history.
    pub operations: usize,
    /// Distinct keys.
    pub keys: usize,
    /// Operations that were done.
    pub done: usize,
    /// Operations that were refused.
    pub refused: usize,
    /// Operations whose fate is not known.
    pub unknown: usize,
    /// Configurations that the search looked at: the work that the history took.
    pub steps: u64,
    /// Anomalies, by key.
    pub findings: Vec<Finding>,
    /// Keys that could not be decided.
    pub undecided: Vec<Undecided>,
}

impl Report {
    /// The verdict. An anomaly outweighs an undecided key.
    pub fn verdict(&self) -> Verdict {
        if !self.findings.is_empty() {
            Verdict::Violation
        } else if !self.undecided.is_empty() {
            Verdict::Undecided
        } else {
            Verdict::Ok
        }
    }
}

impl Report {
    /// Counts the operations of a history.
    pub(crate) fn count(&mut self, operations: &[Operation]) {
        self.operations = operations.len();
        self.keys =
            operations.iter().map(|operation| &operation.key).collect::<BTreeSet<_>>().len();
        for operation in operations {
            match operation.outcome {
                Outcome::Done { .. } => self.done += 1,
                Outcome::Refused { .. } => self.refused += 1,
                Outcome::Unknown => self.unknown += 1,
            }
        }
    }

    /// The counts and findings, without the verdict.
    pub(crate) fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { key, text } in &self.findings {
            writeln!(f, "key {key}: {}\n", text.replace('\n', "\n  "))?;
        }
        for Undecided { key, reason } in &self.undecided {
            writeln!(f, "key {key}: undecided, {reason}")?;
        }
        writeln!(
            f,
            "{} operations on {} keys: {} done, {} refused, {} unknown",
            self.operations, self.keys, self.done, self.refused, self.unknown
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f)?;
        match self.verdict() {
            Verdict::Ok => write!(f, "ok: every key is linearizable"),
            Verdict::Violation => write!(f, "violation: {} anomalies", self.findings.len()),
            Verdict::Undecided => {
                write!(f, "undecided: {} keys exceeded a bound", self.undecided.len())
            }
        }
    }
}

/// Checks a history with the default bounds.
pub fn check_history(history: &History) -> Report {
    check_history_with(history, &Options::default())
}

/// Checks a history in which a suffix of a key's operations may be lost at some times. Those of a key are
/// in order, and apart.
pub fn check_history_with_losses<'a>(
    history: &History,
    losses_of: impl Fn(&Bytes) -> &'a [Loss],
) -> Report {
    check(history, losses_of, &Options::default())
}

/// Checks a history.
pub fn check_history_with(history: &History, options: &Options) -> Report {
    check(history, |_| &[], options)
}

fn check<'a>(
    history: &History,
    losses_of: impl Fn(&Bytes) -> &'a [Loss],
    options: &Options,
) -> Report {
    let mut by_key: BTreeMap<&Bytes, Vec<&Operation>> = BTreeMap::new();
    let mut report = Report::default();
    report.count(&history.operations);
    for operation in &history.operations {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    for (key, operations) in by_key {
        check_key(key, &operations, losses_of(key), history.header.initial, options, &mut report);
    }
    report
}

pub(crate) fn check_key(
    key: &Bytes,
    operations: &[&Operation],
    losses: &[Loss],
    initial: Initial,
    options: &Options,
    report: &mut Report,
) {
    // The direct checks know nothing of losses.
    let mut texts = match losses {
        [] => direct::check(operations, initial),
        _ => Vec::new(),
    };
    let found = texts.len();
    // Leave room for the account of the search, which says more.
    texts.truncate(options.findings_per_key_max.saturating_sub(1).max(1));
    if let Some(more) = found.checked_sub(texts.len()).filter(|more| *more > 0)
        && let Some(text) = texts.last_mut()
    {
        text.push_str(&format!("\nand {more} more like it on this key"));
    }
    let start = match initial {
        Initial::Absent => State::ABSENT,
        Initial::Any => State::WILD,
    };
    let entries: Vec<Entry<'_>> =
        operations.iter().map(|operation| Entry { operation, weak: false }).collect();
    let (judgement, steps) = judge(&entries, losses, start, options.budget);
    report.steps += steps;
    match judgement {
        Judgement::Linearizable => {
            assert!(found == 0, "an anomaly has no linearization: {texts:?}");
        }
        Judgement::Violation(failure) => {
            texts.push(explain(operations, losses, start, &failure, options.budget / 8));
        }
        Judgement::Undecided(reason) => {
            report.undecided.push(Undecided { key: key.clone(), reason });
        }
    }
    report.findings.extend(texts.into_iter().map(|text| Finding { key: key.clone(), text }));
}
