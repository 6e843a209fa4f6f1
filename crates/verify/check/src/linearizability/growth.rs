//! How the contents of a key can change over its whole history, so that the search gives up where no
//! pending operation can be placed any more.

use super::Entry;
use crate::history::{Action, Outcome};
use crate::model::{Need, State, Values};

/// How the contents of a key can change over the whole history.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// In any way.
    Free,
    /// It is a number that only rises.
    Number,
    /// It is a text to which only the end is added.
    Text,
}

impl Growth {
    pub(super) fn of(entries: &[Entry<'_>]) -> Self {
        let mut rises = true;
        let mut grows = true;
        for Entry { operation, .. } in entries {
            if matches!(operation.outcome, Outcome::Refused { .. }) {
                continue;
            }
            rises &= matches!(operation.action, Action::Get | Action::Incr(1..));
            grows &= matches!(operation.action, Action::Get | Action::Append(_));
        }
        match (rises, grows) {
            (true, false) => Self::Number,
            (false, true) => Self::Text,
            // Both: a key without writes needs no search.
            _ => Self::Free,
        }
    }

    /// Whether `state` lies beyond all states that `need` accepts.
    pub(super) fn has_passed(self, state: State, need: Need, values: &Values) -> bool {
        match (self, need) {
            _ if state == State::WILD => false,
            (Self::Free, _) => false,
            (_, Need::Exactly(State::ABSENT)) => state != State::ABSENT,
            (Self::Number, Need::Number(wanted)) => {
                values.number_of(state).is_some_and(|number| number > wanted)
            }
            (Self::Number, Need::Exactly(wanted)) => {
                let numbers = values.number_of(state).zip(values.number_of(wanted));
                numbers.is_some_and(|(number, wanted)| number > wanted)
            }
            (Self::Text, Need::Length(wanted)) => values.bytes_of(state).len() as u64 > wanted,
            (Self::Text, Need::Exactly(wanted)) => {
                !values.bytes_of(wanted).starts_with(values.bytes_of(state))
            }
            _ => false,
        }
    }
}
