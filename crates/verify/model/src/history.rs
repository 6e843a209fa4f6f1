//! The calls and answers of clients, and whether some order explains them.

use std::collections::BTreeMap;

/// Keys and values of the sequential store that a history is compared with.
pub type Store = BTreeMap<String, String>;

/// An answer that a client heard.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// It happened, and this is the result.
    Done(String),
    /// It did not happen and will not.
    Refused,
    /// It may have happened, or yet happen.
    Unknown,
}

/// One call of a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Call {
    /// Whether it was made.
    pub started: bool,
    /// The calls that were answered before it was made, as a bit set: all of real time that a
    /// history depends on.
    pub before: u32,
    /// The answer.
    pub answer: Option<Answer>,
}

impl Call {
    fn is_done(&self) -> bool {
        matches!(self.answer, Some(Answer::Done(_)))
    }

    fn may_count(&self) -> bool {
        self.started && self.answer != Some(Answer::Refused)
    }
}

/// The calls that were answered with a result, as a bit set.
pub fn answered(calls: &[Call]) -> u32 {
    calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.is_done())
        .fold(0, |set, (at, _)| set | 1 << at)
}

/// Whether some order of the calls, each run alone, gives the answers that were heard. Calls
/// without a known end may be in it or not. With `real_time` a call comes after all calls that had
/// ended when it began (strict serializability; for calls of one key, linearizability).
pub fn is_explained(
    calls: &[Call],
    store: &Store,
    real_time: bool,
    run: &dyn Fn(usize, &mut Store) -> String,
) -> bool {
    extend(calls, store, 0, answered(calls), real_time, run)
}

fn extend(
    calls: &[Call],
    store: &Store,
    placed: u32,
    wanted: u32,
    real_time: bool,
    run: &dyn Fn(usize, &mut Store) -> String,
) -> bool {
    if placed & wanted == wanted {
        return true;
    }
    calls.iter().enumerate().any(|(at, call)| {
        let late = real_time && call.before & wanted & !placed != 0;
        if placed & 1 << at != 0 || !call.may_count() || late {
            return false;
        }
        let mut next = store.clone();
        let result = run(at, &mut next);
        let fits = match &call.answer {
            Some(Answer::Done(heard)) => *heard == result,
            _ => true,
        };
        fits && extend(calls, &next, placed | 1 << at, wanted, real_time, run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(at: usize, store: &mut Store) -> String {
        let value = store.entry("k".to_owned()).or_default();
        let before = value.clone();
        value.push_str(["a", "b", "c"][at]);
        before
    }

    fn done(before: u32, heard: &str) -> Call {
        Call { started: true, before, answer: Some(Answer::Done(heard.to_owned())) }
    }

    #[test]
    fn a_lost_update_has_no_order() {
        let calls = [done(0, ""), done(0, "")];
        assert!(!is_explained(&calls, &Store::new(), false, &append));
        let calls = [done(0, ""), done(0, "a")];
        assert!(is_explained(&calls, &Store::new(), true, &append));
    }

    #[test]
    fn real_time_counts_if_it_is_asked_for() {
        // The second call had ended before the first began.
        let calls = [done(2, ""), done(0, "a")];
        assert!(is_explained(&calls, &Store::new(), false, &append));
        assert!(!is_explained(&calls, &Store::new(), true, &append));
    }

    #[test]
    fn what_nobody_knows_may_count_and_what_was_refused_does_not() {
        for (answer, explained) in
            [(None, true), (Some(Answer::Unknown), true), (Some(Answer::Refused), false)]
        {
            let open = Call { started: true, before: 0, answer };
            let calls = [open, done(0, "a")];
            assert_eq!(is_explained(&calls, &Store::new(), true, &append), explained);
        }
        let calls = [Call::default(), done(0, "a")];
        assert!(!is_explained(&calls, &Store::new(), true, &append), "it was never made");
    }
}
