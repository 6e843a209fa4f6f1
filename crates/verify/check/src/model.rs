//! One key as a state machine: the states that an operation may have seen, and the state it leaves.

use std::collections::HashMap;
use std::rc::Rc;

use crate::history::{Action, Answer, Bytes};

/// The content of the key: an interned value, or one of two special states. Equal numbers mean
/// equal contents, so that states are compared and hashed in one instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct State(u32);

impl State {
    pub(crate) const ABSENT: Self = Self(0);
    /// Not known yet: the first operation that observes the key decides. Where an observation
    /// can't name the value (an `append`, a `cas` that failed) the state stays wild, which allows
    /// more than the truth and never less.
    pub(crate) const WILD: Self = Self(1);
    /// Any one of the values that no answer and no condition of the history mentions. They can't be
    /// told apart, so they are one state.
    pub(crate) const UNSEEN: Self = Self(2);
    const FIRST_VALUE: u32 = 3;
}

/// The table of interned values.
#[derive(Default)]
pub(crate) struct Values {
    values: Vec<Value>,
    ids: HashMap<Rc<[u8]>, State>,
    /// Whether a stored value that has no number yet may be taken for [`State::UNSEEN`].
    merges_unseen: bool,
    /// Bytes interned so far, which the search counts against its budget.
    pub(crate) bytes: u64,
}

struct Value {
    bytes: Rc<[u8]>,
    number: Option<i64>,
}

impl Values {
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> State {
        if let Some(&state) = self.ids.get(bytes) {
            return state;
        }
        let number = self.values.len() as u32 + State::FIRST_VALUE;
        let state = State(number);
        let bytes: Rc<[u8]> = bytes.into();
        self.bytes += bytes.len() as u64;
        self.values.push(Value { bytes: bytes.clone(), number: parse_canonical(&bytes) });
        self.ids.insert(bytes, state);
        state
    }

    /// Announces that every value which an answer or a condition mentions has been interned, and
    /// that nothing else depends on the bytes of a value (as `APPEND` does).
    pub(crate) fn merge_unseen(&mut self) {
        self.merges_unseen = true;
    }

    /// The state that storing `bytes` leaves.
    fn store(&mut self, bytes: &[u8]) -> State {
        let is_unseen = self.merges_unseen && !self.ids.contains_key(bytes);
        if is_unseen && parse_canonical(bytes).is_none() {
            return State::UNSEEN;
        }
        self.intern(bytes)
    }

    fn intern_number(&mut self, number: i64) -> State {
        self.intern(number.to_string().as_bytes())
    }

    pub(crate) fn intern_option(&mut self, value: Option<&Bytes>) -> State {
        value.map_or(State::ABSENT, |value| self.intern(&value.0))
    }

    fn value(&self, state: State) -> Option<&Value> {
        state.0.checked_sub(State::FIRST_VALUE).map(|index| &self.values[index as usize])
    }

    /// The bytes of a state; an absent key counts as empty, as `APPEND` sees it.
    pub(crate) fn bytes_of(&self, state: State) -> &[u8] {
        self.value(state).map_or(&[], |value| &value.bytes)
    }

    /// The number that `INCR` sees. `None` for text and for a wild state.
    pub(crate) fn number_of(&self, state: State) -> Option<i64> {
        match state {
            State::ABSENT => Some(0),
            _ => self.value(state)?.number,
        }
    }

    /// The state in words.
    pub(crate) fn describe(&self, state: State) -> String {
        match state {
            State::ABSENT => "absent".to_owned(),
            State::WILD => "something not observed".to_owned(),
            State::UNSEEN => "a value that no answer shows".to_owned(),
            _ => Bytes::from(self.bytes_of(state)).to_string(),
        }
    }
}

/// Redis counts only the canonical decimal form as an integer: no sign but minus, no leading
/// zeros, no spaces.
pub(crate) fn parse_canonical(bytes: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// An [`Action`] with its values interned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    Get,
    Set(State),
    Del,
    Incr(i64),
    GetSet(State),
    SetNx(State),
    Cas { expected: State, value: State },
    Append(State),
}

impl Step {
    pub(crate) fn new(action: &Action, values: &mut Values) -> Self {
        match action {
            Action::Get => Self::Get,
            Action::Set(value) => Self::Set(values.store(&value.0)),
            Action::Del => Self::Del,
            Action::Incr(by) => Self::Incr(*by),
            Action::GetSet(value) => Self::GetSet(values.store(&value.0)),
            Action::SetNx(value) => Self::SetNx(values.store(&value.0)),
            Action::Cas { expected, value } => Self::Cas {
                expected: values.intern_option(expected.as_ref()),
                value: values.store(&value.0),
            },
            Action::Append(value) => Self::Append(values.intern(&value.0)),
        }
    }

    /// The state that this step leaves after any state, when no answer was seen.
    pub(crate) fn blind_product(self) -> Option<State> {
        match self {
            Self::Set(value) | Self::GetSet(value) => Some(value),
            Self::Del => Some(State::ABSENT),
            _ => None,
        }
    }

    /// Whether the step, unseen, may change `state`.
    pub(crate) fn fires_on(self, state: State, values: &Values) -> bool {
        match self {
            Self::Get => false,
            Self::Set(_) | Self::GetSet(_) | Self::Del | Self::Append(_) => true,
            Self::Incr(_) => values.number_of(state).is_some(),
            Self::SetNx(_) => matches!(state, State::ABSENT | State::WILD),
            Self::Cas { expected, .. } => state == expected || state == State::WILD,
        }
    }

    /// The state after the step from `state`, when its answer is not known. `None` if the key stays
    /// as it is (which a wild state absorbs too).
    pub(crate) fn apply_unseen(self, state: State, values: &mut Values) -> Option<State> {
        let next = match self {
            Self::Get => return None,
            Self::Set(value) | Self::GetSet(value) => value,
            Self::Del => State::ABSENT,
            Self::Incr(by) => {
                let sum = values.number_of(state)?.checked_add(by)?;
                values.intern_number(sum)
            }
            Self::SetNx(value) if matches!(state, State::ABSENT | State::WILD) => value,
            Self::Cas { expected, value } if state == expected || state == State::WILD => value,
            Self::SetNx(_) | Self::Cas { .. } => return None,
            Self::Append(_) if state == State::WILD => return None,
            Self::Append(value) => values.concat(state, value),
        };
        (next != state).then_some(next)
    }
}

impl Values {
    fn concat(&mut self, head: State, tail: State) -> State {
        let joined = [self.bytes_of(head), self.bytes_of(tail)].concat();
        self.intern(&joined)
    }
}

/// The condition that a done operation's answer puts on the state before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Nothing: a plain `set`.
    Nothing,
    /// The key held exactly this.
    Exactly(State),
    /// The key was there.
    Present,
    /// The key held anything but this.
    Not(State),
    /// The key held this number, or was absent if that is 0.
    Number(i64),
    /// Adding this to the key fails.
    NotAddable(i64),
    /// The value had this length in bytes, counting absent as 0.
    Length(u64),
    /// The answer is impossible in every state.
    Impossible,
}

impl Need {
    pub(crate) fn new(step: Step, answer: &Answer, values: &mut Values) -> Self {
        let flag = matches!(answer, Answer::Integer(1));
        match (step, answer) {
            (Step::Set(_), _) => Self::Nothing,
            // What a transaction did: see `transactions::project`.
            (Step::Del | Step::Append(_), Answer::Ok) => Self::Nothing,
            (Step::Get | Step::GetSet(_), Answer::Value(value)) => {
                Self::Exactly(values.intern_option(value.as_ref()))
            }
            (Step::Del, _) if flag => Self::Present,
            (Step::Del, _) => Self::Exactly(State::ABSENT),
            (Step::SetNx(_), _) if flag => Self::Exactly(State::ABSENT),
            (Step::SetNx(_), _) => Self::Present,
            (Step::Cas { expected, .. }, _) if flag => Self::Exactly(expected),
            (Step::Cas { expected, .. }, _) => Self::Not(expected),
            (Step::Incr(by), Answer::Integer(sum)) => match sum.checked_sub(by) {
                Some(before) => Self::Number(before),
                None => Self::Impossible,
            },
            (Step::Incr(by), _) => Self::NotAddable(by),
            (Step::Append(tail), Answer::Integer(length)) => {
                let tail = values.bytes_of(tail).len() as u64;
                u64::try_from(*length)
                    .ok()
                    .and_then(|length| length.checked_sub(tail))
                    .map_or(Self::Impossible, Self::Length)
            }
            _ => Self::Impossible,
        }
    }

    /// Whether the answer is possible in `state`.
    pub(crate) fn accepts(self, state: State, values: &Values) -> bool {
        if state == State::WILD {
            return self != Self::Impossible;
        }
        match self {
            Self::Nothing => true,
            Self::Exactly(wanted) => state == wanted,
            Self::Present => state != State::ABSENT,
            Self::Not(unwanted) => state != unwanted,
            Self::Number(wanted) => values.number_of(state) == Some(wanted),
            Self::NotAddable(by) => {
                values.number_of(state).and_then(|number| number.checked_add(by)).is_none()
            }
            Self::Length(wanted) => values.bytes_of(state).len() as u64 == wanted,
            Self::Impossible => false,
        }
    }

    /// The need in words, for an operation that can't be placed.
    pub(crate) fn describe(self, values: &Values) -> String {
        match self {
            Self::Nothing => "anything".to_owned(),
            Self::Exactly(State::ABSENT) => "the key to be absent".to_owned(),
            Self::Exactly(state) => format!("the key to hold {}", values.describe(state)),
            Self::Present => "the key to be there".to_owned(),
            Self::Not(State::ABSENT) => "the key to be there".to_owned(),
            Self::Not(state) => format!("the key not to hold {}", values.describe(state)),
            Self::Number(0) => "the key to hold \"0\" or be absent".to_owned(),
            Self::Number(number) => format!("the key to hold \"{number}\""),
            Self::NotAddable(by) => format!("a value to which {by} can't be added"),
            Self::Length(length) => format!("a value of {length} bytes"),
            Self::Impossible => "something no value can give".to_owned(),
        }
    }
}

/// A done operation, ready to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) step: Step,
    pub(crate) need: Need,
}

impl Seen {
    /// Whether the operation fits every state. Placed right before another blind step, it leaves no
    /// trace.
    pub(crate) fn is_blind(self) -> bool {
        self.need == Need::Nothing && self.step.blind_product().is_some()
    }

    /// Whether the answer says that the operation left the key as it was.
    pub(crate) fn is_pure(self) -> bool {
        match (self.step, self.need) {
            (Step::Get, _) | (_, Need::NotAddable(_) | Need::Not(_)) => true,
            (Step::Del, need) => need == Need::Exactly(State::ABSENT),
            (Step::SetNx(_), need) => need == Need::Present,
            _ => false,
        }
    }

    /// The state after the operation, given that [`Need::accepts`] the state before.
    pub(crate) fn apply(self, state: State, values: &mut Values) -> State {
        if self.is_pure() {
            return match self.need {
                Need::Exactly(exact) => exact,
                _ => state,
            };
        }
        match (self.step, self.need) {
            (Step::Incr(by), Need::Number(before)) => values.intern_number(before + by),
            (Step::Append(_), _) if state == State::WILD => State::WILD,
            (Step::Append(tail), _) => values.concat(state, tail),
            (Step::Set(value) | Step::GetSet(value) | Step::SetNx(value), _) => value,
            (Step::Cas { value, .. }, _) => value,
            (Step::Del, _) => State::ABSENT,
            (Step::Get | Step::Incr(_), _) => state,
        }
    }
}
