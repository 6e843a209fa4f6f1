//! The parts of a failover's time, from the survivors' logs.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::report::{median, millis};

const DAY: u64 = 24 * 3600 * 1_000_000;

/// The log entries of each survivor since the fault: `None` for one that never came.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Marks {
    suspected: Option<Duration>,
    proposed: Option<Duration>,
    installed: Option<Duration>,
}

/// The spans between fault and write, each since the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    /// Until a survivor suspects the victim.
    suspicion: Duration,
    /// Until a survivor may propose a view without it: its lease has lapsed there.
    lease: Duration,
    /// Until the last survivor has that view: votes, the other survivors' promises, the install.
    vote: Duration,
    /// Until the client has its answer: replays, the write itself, the client.
    answer: Duration,
    /// Whether the write was answered before the view.
    early: bool,
}

impl Marks {
    /// Reads a survivor's log from `offset` on.
    pub(super) fn read(log: &Path, offset: u64, victim: u16, at: SystemTime) -> Option<Self> {
        let mut file = File::open(log).ok()?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        Some(Self::parse(&text, victim, at))
    }

    fn parse(text: &str, victim: u16, at: SystemTime) -> Self {
        let begin = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let begin = begin as u64 % DAY;
        let mut marks = Self::default();
        let names = |list: &str| {
            let list = list.trim_matches(['{', '}', '\n']);
            list.split(", ").any(|node| node == format!("n{victim}"))
        };
        for line in text.lines() {
            let Some(when) = time_of_day(line) else { continue };
            let since = Duration::from_micros((when + DAY - begin) % DAY);
            if let Some((_, suspects)) = line.split_once("suspects=") {
                if names(suspects) {
                    marks.suspected.get_or_insert(since);
                }
            } else if line.contains("a view is proposed") {
                marks.proposed.get_or_insert(since);
            } else if let Some((_, live)) = line.split_once("live=")
                && !names(live)
            {
                marks.installed.get_or_insert(since);
            }
        }
        marks
    }
}

/// The microseconds of the day that a log line begins with.
fn time_of_day(line: &str) -> Option<u64> {
    let time = line.split_once('T')?.1.split_once('Z')?.0;
    let mut fields = time.split([':', '.']);
    let mut field = || fields.next()?.parse::<u64>().ok();
    let (hours, minutes, seconds, micros) = (field()?, field()?, field()?, field()?);
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)
}

impl Parts {
    pub(super) fn new(survivors: &[Marks], write: Duration) -> Option<Self> {
        let first = |pick: fn(&Marks) -> Option<Duration>| survivors.iter().filter_map(pick).min();
        let installed = survivors.iter().filter_map(|marks| marks.installed).max();
        let Some((suspected, installed)) = first(|marks| marks.suspected).zip(installed) else {
            // The write was answered before any survivor took a step.
            let none = Duration::ZERO;
            return Some(Self {
                suspicion: none,
                lease: none,
                vote: none,
                answer: write,
                early: true,
            });
        };
        if write < installed {
            let (suspicion, none) = (suspected.min(write), Duration::ZERO);
            let answer = write - suspicion;
            return Some(Self { suspicion, lease: none, vote: none, answer, early: true });
        }
        let proposed =
            first(|marks| marks.proposed).unwrap_or(suspected).clamp(suspected, installed);
        Some(Self {
            suspicion: suspected,
            lease: proposed - suspected,
            vote: installed - proposed,
            answer: write - installed,
            early: false,
        })
    }

    fn spans(self) -> [Duration; 4] {
        [self.suspicion, self.lease, self.vote, self.answer]
    }

    pub(super) fn head() -> &'static str {
        "| system | fault | until suspected | until its lease has lapsed | vote and view | replay \
         and answer | answered before the view |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    }

    /// The rest of a line of that table.
    pub(super) fn medians(all: &[Self]) -> String {
        let late: Vec<&Self> = all.iter().filter(|parts| !parts.early).collect();
        let cell = |index: usize| {
            let spans: Vec<Duration> = late.iter().map(|parts| parts.spans()[index]).collect();
            if spans.is_empty() { "-".to_owned() } else { format!("{:.1}", millis(median(&spans))) }
        };
        let early = all.len() - late.len();
        let cells = [0, 1, 2, 3].map(cell).join(" | ");
        format!("{cells} | {early} of {} |\n", all.len())
    }

    pub(super) fn json(self) -> Value {
        let [suspicion, lease, vote, answer] = self.spans().map(millis);
        json!({
            "suspicion": suspicion, "lease": lease, "vote": vote, "answer": answer,
            "answered_before_the_view": self.early,
        })
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [suspicion, lease, vote, answer] = self.spans().map(millis);
        write!(f, "= {suspicion:.1} + {lease:.1} + {vote:.1} + {answer:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-11-20T00:00:00.020000Z  INFO suspicion node=3 suspects={n2}
2026-11-20T00:00:00.030000Z  INFO suspicion node=3 suspects={n1, n2}
2026-11-20T00:00:00.140000Z  INFO a view is proposed node=3
2026-11-20T00:00:00.150000Z  INFO view node=3 epoch=40 live={n2, n3}
2026-11-20T00:00:00.160000Z  INFO view node=3 epoch=41 live={n1, n2, n3}
";

    #[test]
    fn a_log_tells_the_steps_even_over_midnight() {
        let before_midnight = Duration::from_micros(20_000 * DAY - 10_000);
        let marks = Marks::parse(LOG, 1, SystemTime::UNIX_EPOCH + before_midnight);
        let expected = [40, 150, 160].map(|millis| Some(Duration::from_millis(millis)));
        assert_eq!([marks.suspected, marks.proposed, marks.installed], expected);
        let parts = Parts::new(&[marks], Duration::from_millis(162)).expect("it has parts");
        assert_eq!(parts.spans().map(|span| span.as_millis()), [40, 110, 10, 2]);
    }

    #[test]
    fn a_write_before_the_view_is_told_apart() {
        let marks = Marks::parse(LOG, 1, SystemTime::UNIX_EPOCH);
        let parts = Parts::new(&[marks], Duration::from_millis(50)).expect("it has parts");
        assert!(parts.early);
        assert_eq!(parts.spans().map(|span| span.as_millis()), [30, 0, 0, 20]);
    }
}
