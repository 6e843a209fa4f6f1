//! Makes the script of a failing run short: leaves out the lines that the failure does not need.
//!
//! Each of the lists (faults, ops, steps of clients with sessions, messages with a fate of their
//! own) is cut down by leaving out ever smaller pieces (delta debugging, Zeller and Hildebrandt,
//! TSE 2002), running the rest, and keeping a shorter script that still fails in the same way. Then
//! the phases are cut short. A script determines its run, so the shortest one fails for sure.

use crate::Beside;
use crate::script::{Fate, Script};
use crate::sweep::replay;
use quorate_types::Duration;

/// How long the safety phase goes on after the last line of a script.
const TAIL: Duration = Duration::from_millis(500);

/// The shortest script found with at most `runs_max` runs that fails as this one does. `progress`
/// is told after each run how many are left, and how large the script is. `None` if the script does not
/// fail again as it says.
pub fn shrink(
    script: &Script,
    runs_max: u64,
    progress: impl FnMut(u64, [usize; 3]),
) -> Option<Script> {
    let fails = |script: &Script| {
        let kind = replay(script, false).err().map(|failure| failure.kind);
        kind.is_some() && kind == script.expect()
    };
    shrink_while(script, runs_max, progress, fails)
}

/// The same for any definition of a failure.
fn shrink_while(
    script: &Script,
    runs_max: u64,
    progress: impl FnMut(u64, [usize; 3]),
    fails: impl FnMut(&Script) -> bool,
) -> Option<Script> {
    let mut shrinking = Shrinking { best: script.clone(), left: runs_max, progress, fails };
    if !shrinking.fails(script) {
        return None;
    }
    loop {
        let before = shrinking.best.sizes();
        shrinking.shorten();
        shrinking.single_out();
        shrinking.lighten();
        shrinking.reduce(|script| &mut script.faults);
        shrinking.calm();
        shrinking.reduce(|script| &mut script.orders);
        shrinking.reduce(|script| &mut script.session_steps);
        shrinking.reduce(|script| &mut script.fates);
        if shrinking.best.sizes() == before || shrinking.left == 0 {
            shrinking.shorten();
            return Some(shrinking.best);
        }
    }
}

struct Shrinking<P, F> {
    best: Script,
    left: u64,
    progress: P,
    fails: F,
}

impl<P: FnMut(u64, [usize; 3]), F: FnMut(&Script) -> bool> Shrinking<P, F> {
    fn fails(&mut self, script: &Script) -> bool {
        self.left = self.left.saturating_sub(1);
        let fails = (self.fails)(script);
        (self.progress)(self.left, self.best.sizes());
        fails
    }

    /// Keeps a shorter script if it still fails.
    fn try_with(&mut self, change: impl FnOnce(&mut Script)) -> bool {
        if self.left == 0 {
            return false;
        }
        let mut script = self.best.clone();
        change(&mut script);
        if script == self.best || !self.fails(&script) {
            return false;
        }
        self.best = script;
        true
    }

    /// Ends the safety phase soon after the last event in it.
    fn shorten(&mut self) {
        let last_order = self.best.orders.iter().map(|order| order.at).max();
        let last_fault = self.best.faults.iter().map(|(at, _)| *at).max();
        let last_errand = self.best.session_steps.iter().map(|session_step| session_step.at).max();
        let last = last_order.max(last_errand).max(last_fault).unwrap_or(0);
        let end = Duration::from_nanos(last) + TAIL;
        if end < self.best.options.safety_phase {
            self.try_with(|script| script.options.safety_phase = end);
        }
    }

    /// Leaves out the keyspaces beside the first one, or those after it.
    fn single_out(&mut self) {
        self.try_with(|script| script.options.beside = Beside::NONE);
    }

    /// Begins with fewer records, or none.
    fn lighten(&mut self) {
        let none = self.try_with(|script| {
            script.options.records = Some(0);
            script.options.large = Some(0);
        });
        if !none {
            self.try_with(|script| script.options.records = Some(0));
            self.try_with(|script| script.options.large = Some(0));
        }
    }

    /// Leaves out all delays at once, or all fates but losses and repetitions.
    fn calm(&mut self) {
        if !self.try_with(|script| script.fates.clear()) {
            self.try_with(|script| {
                script.fates.retain(|(_, fate)| !matches!(fate, Fate::Late(_)));
            });
        }
    }

    /// Leaves out pieces of a list: halves, quarters, and so on to single entries.
    fn reduce<T>(&mut self, list: impl Fn(&mut Script) -> &mut Vec<T>) {
        let len = list(&mut self.best).len();
        let mut piece = len;
        while piece > 0 && self.left > 0 {
            // From the end: late entries are needed least.
            let mut end = list(&mut self.best).len();
            while end > 0 && self.left > 0 {
                let start = end.saturating_sub(piece);
                self.try_with(|script| drop(list(script).drain(start..end)));
                end = start;
            }
            piece /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Options, record};

    /// An op of unknown outcome stands for a failure here: it takes an op and a fault that keeps
    /// its node from answering.
    #[test]
    fn what_a_failure_does_not_need_is_left_out() {
        let options =
            Options { safety_phase: Duration::from_secs(4), ..Options::of(Engine::Meerkat) };
        let is_unknown = |script: &Script| replay(script, false).is_ok_and(|run| run.ops[2] > 0);
        let scripts = (1..20).filter_map(|seed| record(seed, &options).1);
        let script = { scripts }.find(is_unknown).expect("most runs leave an op open");
        let short = shrink_while(&script, 400, |_, _| (), is_unknown).expect("it fails");
        let [ops, faults, messages] = short.sizes();
        let [drawn, ..] = script.sizes();
        assert!(drawn > 500 && ops <= 20 && faults <= 3 && messages <= 20, "{short}");
        let read: Script = short.to_string().parse().expect("it is written to be read");
        assert_eq!(read.to_string(), short.to_string());
        assert!(is_unknown(&read));
    }

    /// Three effects of calls take a session, and at most three calls.
    #[test]
    fn a_script_that_does_not_fail_is_made_no_shorter() {
        let options =
            Options { safety_phase: Duration::from_secs(1), ..Options::of(Engine::Hermes) };
        let script = record(1, &options).1.expect("it has a beginning");
        assert!(shrink(&script, 5, |_, _| ()).is_none());
    }

    #[test]
    fn what_clients_with_sessions_need_not_do_is_left_out() {
        let options = Options {
            safety_phase: Duration::from_secs(4),
            sessions: Some(2),
            ..Options::of(Engine::Hermes)
        };
        let counts = |script: &Script| replay(script, false).is_ok_and(|run| run.calls[0] >= 3);
        let script = record(1, &options).1.expect("it has a beginning");
        let short = shrink_while(&script, 400, |_, _| (), counts).expect("it fails");
        assert!(script.sizes()[0] > 500, "{:?}", script.sizes());
        assert!(short.sizes()[0] <= 8, "{short}");
        assert!(short.to_string().contains(": OPEN\n"), "{short}");
        let read: Script = short.to_string().parse().expect("it is written to be read");
        assert!(counts(&read));
    }
}
