//! Turns a violation into the smallest account that a person can follow.
//!
//! Two steps make it small. Both only weaken the claims of the history, so the part that is left
//! contradicts linearizability by itself:
//!
//! 1. **A window.** Operations that returned before some moment are dropped; in exchange the key
//!    may have held anything at that moment, and operations that straddle it may or may not have
//!    happened. The latest moment that still leaves a violation is taken.
//! 2. **Doubt.** Each remaining operation is treated as if its answer were unknown. Where the
//!    violation remains, the operation is not part of the contradiction.

use std::fmt::Write;

use crate::direct::{value_seen, value_stored};
use crate::history::{Operation, Outcome, Seconds};
use crate::linearizability::{Entry, Failure, Judgement, Loss, Placed, judge_until};
use crate::model::State;

/// How many operations of the linearizable prefix are shown.
const PREFIX_SHOWN_MAX: usize = 6;
/// How many unknown or concurrent operations are shown.
const OTHERS_SHOWN_MAX: usize = 8;
/// How many possible contents of the key are shown.
const STATES_SHOWN_MAX: usize = 4;
/// Steps that one trial may take, beside a few for each operation.
const TRIAL_BUDGET: u64 = 4_000;
/// Up to which size windows are searched.
const WINDOW_MAX: usize = 4096;

/// A window of a key's operations that has no linearization.
struct Window<'a> {
    entries: Vec<Entry<'a>>,
    losses: &'a [Loss],
    /// The position of the operation that can't be placed.
    last: usize,
    initial: State,
    /// The moment before which everything was dropped.
    since: Option<u64>,
    until: u64,
}

impl Window<'_> {
    /// Whether the window is still a violation; undecided counts as not.
    fn fails(&self, budget: &mut u64) -> bool {
        // Weakened operations can make a search explode. A trial that takes many times the work
        // of a plain pass is given up, so that the others get their turn.
        let trial = (TRIAL_BUDGET + 16 * self.entries.len() as u64).min(*budget);
        let (judgement, spent) =
            judge_until(&self.entries, self.losses, self.initial, self.until, trial);
        // Every trial costs at least a pass over the window.
        *budget = budget.saturating_sub(spent + self.entries.len() as u64);
        matches!(judgement, Judgement::Violation(_))
    }
}

/// Explains why the operations of a key have no linearization. `budget` bounds the effort of
/// making the account small.
pub(crate) fn explain(
    operations: &[&Operation],
    losses: &[Loss],
    initial: State,
    failure: &Failure,
    mut budget: u64,
) -> String {
    let last = operations[failure.entry];
    let mut window = find_window(operations, losses, initial, failure, &mut budget);
    doubt(&mut window, &mut budget);
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = describe(&mut text, operations, failure, &window, last);
    text.truncate(text.trim_end().len());
    text
}

fn find_window<'a>(
    operations: &[&'a Operation],
    losses: &'a [Loss],
    initial: State,
    failure: &Failure,
    budget: &mut u64,
) -> Window<'a> {
    let last = operations[failure.entry];
    let until = last.done_at().expect("only an operation that returned can fail to be placed");
    // The operation itself must lie in the window whole, so the cut is before its invoke.
    let mut cuts: Vec<u64> =
        operations.iter().filter_map(|o| o.done_at()).filter(|at| *at < last.invoke).collect();
    cuts.sort_unstable_by(|a, b| b.cmp(a));
    let mut size = 0;
    while size < cuts.len().min(WINDOW_MAX) && *budget > 0 {
        let window = cut(operations, losses, last, State::WILD, Some(cuts[size]), until);
        if window.fails(budget) {
            return window;
        }
        size = size * 2 + 1;
    }
    cut(operations, losses, last, initial, None, until)
}

fn cut<'a>(
    operations: &[&'a Operation],
    losses: &'a [Loss],
    last: &Operation,
    initial: State,
    since: Option<u64>,
    until: u64,
) -> Window<'a> {
    let mut entries = Vec::new();
    for &operation in operations {
        let is_refused = matches!(operation.outcome, Outcome::Refused { .. });
        let is_before = since.is_some_and(|t| operation.done_at().is_some_and(|at| at <= t));
        if is_refused || is_before || operation.invoke > until {
            continue;
        }
        let weak = since.is_some_and(|t| operation.invoke <= t);
        entries.push(Entry { operation, weak });
    }
    let last = entries
        .iter()
        .position(|entry| std::ptr::eq(entry.operation, last))
        .expect("the operation that can't be placed returned within the window");
    // What is lost within the window is what happened within it, or before, when the key held anything.
    let later = losses.partition_point(|loss| since.is_some_and(|since| loss.at <= since));
    Window { entries, losses: &losses[later..], last, initial, since, until }
}

/// Weakens operations in ever smaller groups, as delta debugging does.
fn doubt(window: &mut Window<'_>, budget: &mut u64) {
    let certain = |entry: &Entry<'_>, until: u64| {
        !entry.weak && entry.operation.done_at().is_some_and(|at| at <= until)
    };
    let mut candidates: Vec<usize> = (0..window.entries.len())
        .filter(|&at| at != window.last && certain(&window.entries[at], window.until))
        .collect();
    let mut group = candidates.len().next_power_of_two();
    while group > 0 && !candidates.is_empty() {
        let mut essential = Vec::new();
        for indices in candidates.chunks(group) {
            if *budget == 0 {
                return;
            }
            indices.iter().for_each(|&at| window.entries[at].weak = true);
            if !window.fails(budget) {
                indices.iter().for_each(|&at| window.entries[at].weak = false);
                essential.extend_from_slice(indices);
            }
        }
        candidates = essential;
        group /= 2;
    }
}

fn describe(
    text: &mut String,
    operations: &[&Operation],
    failure: &Failure,
    window: &Window<'_>,
    last: &Operation,
) -> std::fmt::Result {
    writeln!(text, "no order of its operations explains every answer")?;
    writeln!(text, "cannot be placed:")?;
    writeln!(text, "  {last}")?;
    writeln!(text, "  it needs {}; {}", failure.need, provenance(operations, last))?;
    let mut core: Vec<&Operation> = window
        .entries
        .iter()
        .filter(|entry| !entry.weak && entry.operation.done_at().is_some())
        .filter(|entry| entry.operation.done_at() <= Some(window.until))
        .map(|entry| entry.operation)
        .collect();
    core.sort_by_key(|operation| operation.invoke);
    match window.since {
        Some(since) => writeln!(
            text,
            "these answers contradict each other, whatever the key held at {} and whatever \
             returned before that:",
            Seconds(since)
        )?,
        None => writeln!(text, "these answers contradict each other:")?,
    }
    for operation in &core {
        writeln!(text, "  {operation}")?;
    }
    describe_others(text, window)?;
    describe_prefix(text, operations, failure)
}

/// Unknown and pending operations: no placement of them removes the contradiction.
fn describe_others(text: &mut String, window: &Window<'_>) -> std::fmt::Result {
    let is_open = |operation: &Operation| operation.done_at().is_none_or(|at| at > window.until);
    let others: Vec<&Operation> = window
        .entries
        .iter()
        .map(|entry| entry.operation)
        .filter(|operation| is_open(operation) && operation.action.name() != "get")
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    writeln!(text, "even though these were still unknown or in flight at its return:")?;
    for operation in others.iter().rev().take(OTHERS_SHOWN_MAX) {
        writeln!(text, "  {operation}")?;
    }
    if let Some(more) = others.len().checked_sub(OTHERS_SHOWN_MAX + 1) {
        writeln!(text, "  and {} more", more + 1)?;
    }
    Ok(())
}

fn describe_prefix(
    text: &mut String,
    operations: &[&Operation],
    failure: &Failure,
) -> std::fmt::Result {
    let mut states = failure.states[..failure.states.len().min(STATES_SHOWN_MAX)].join(" or ");
    if failure.states.len() > STATES_SHOWN_MAX {
        states.push_str(" or others");
    }
    let prefix = &failure.prefix;
    if prefix.is_empty() {
        return writeln!(text, "nothing returned before it; the key held {states}");
    }
    writeln!(
        text,
        "the longest prefix that has an order is {} operations, after which the key held {states}; \
         one such order ends with:",
        prefix.len()
    )?;
    for Placed { entry, hidden } in &prefix[prefix.len().saturating_sub(PREFIX_SHOWN_MAX)..] {
        let note = if *hidden { "  (overwritten before anybody saw it)" } else { "" };
        writeln!(text, "  {}{note}", operations[*entry as usize])?;
    }
    Ok(())
}

/// Where the value that an operation saw comes from.
fn provenance(operations: &[&Operation], last: &Operation) -> String {
    let Some(value) = value_seen(last) else {
        return "no order leads there".to_owned();
    };
    let until = last.done_at();
    let writers: Vec<&&Operation> = operations
        .iter()
        .filter(|o| value_stored(o) == Some(value) && Some(o.invoke) <= until)
        .collect();
    let refused = |o: &&&&Operation| matches!(o.outcome, Outcome::Refused { .. });
    let real = writers.iter().filter(|o| !refused(o)).count();
    match (writers.last(), real) {
        (None, _) => format!("no operation stored {value} as a whole before that"),
        (Some(writer), 0) => format!("only a refused operation would have stored it: {writer}"),
        (Some(_), 1) => {
            let writer = writers.iter().find(|o| !refused(o)).expect("one of them is real");
            format!("stored by: {writer}")
        }
        (Some(writer), _) => format!("stored {real} times, last begun: {writer}"),
    }
}
