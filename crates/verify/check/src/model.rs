//! One key as a state machine: the states that an operation may have seen, and the state it leaves.

use std::collections::HashMap;
use std::rc::Rc;

use crate::collection::{CollectionCommand, Content};
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
    /// The collections among the states.
    collections: HashMap<Content, State>,
    /// The commands on collections, and their answers, that have numbers.
    commands: Vec<CollectionCommand>,
    command_ids: HashMap<CollectionCommand, u32>,
    answers: Vec<Answer>,
    /// Bytes interned so far, which the search counts against its budget.
    pub(crate) bytes: u64,
}

struct Value {
    bytes: Rc<[u8]>,
    number: Option<i64>,
    collection: Option<Content>,
}

impl Values {
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> State {
        if let Some(&state) = self.ids.get(bytes) {
            return state;
        }
        let state = self.next_state();
        let bytes: Rc<[u8]> = bytes.into();
        self.bytes += bytes.len() as u64;
        let number = parse_canonical(&bytes);
        self.values.push(Value { bytes: bytes.clone(), number, collection: None });
        self.ids.insert(bytes, state);
        state
    }

    fn next_state(&self) -> State {
        State(self.values.len() as u32 + State::FIRST_VALUE)
    }

    fn intern_content(&mut self, content: Option<Content>) -> State {
        let content = match content {
            None => return State::ABSENT,
            Some(Content::Text(bytes)) => return self.intern(&bytes),
            Some(content) => content,
        };
        if let Some(&state) = self.collections.get(&content) {
            return state;
        }
        let state = self.next_state();
        self.bytes += content.bytes() as u64;
        let collection = Some(content.clone());
        self.values.push(Value { bytes: [].into(), number: None, collection });
        self.collections.insert(content, state);
        state
    }

    /// What the key holds, in the form that commands on collections take.
    fn content_of(&self, state: State) -> Option<Content> {
        let value = self.value(state)?;
        let text = || Content::Text(value.bytes.to_vec());
        Some(value.collection.clone().unwrap_or_else(text))
    }

    fn intern_command(&mut self, command: &CollectionCommand) -> u32 {
        if let Some(&id) = self.command_ids.get(command) {
            return id;
        }
        let id = self.commands.len() as u32;
        self.commands.push(command.clone());
        self.command_ids.insert(command.clone(), id);
        id
    }

    fn add_answer(&mut self, answer: Answer) -> u32 {
        self.answers.push(answer);
        self.answers.len() as u32 - 1
    }

    /// The answer of a command and what it leaves.
    fn run(&self, command: u32, state: State) -> (Answer, Option<Content>) {
        self.commands[command as usize].run(self.content_of(state).as_ref())
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
            _ if let Some(content) = self.value(state).and_then(|v| v.collection.as_ref()) => {
                content.to_string()
            }
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
    Cas {
        expected: State,
        value: State,
    },
    Append(State),
    /// A command on a collection, by its number.
    Command {
        id: u32,
        reads: bool,
    },
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
            Action::Command(command) => {
                let reads = command.is_read();
                Self::Command { id: values.intern_command(command), reads }
            }
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
            Self::Get | Self::Command { reads: true, .. } => false,
            Self::Set(_) | Self::GetSet(_) | Self::Del | Self::Append(_) => true,
            Self::Command { .. } if state == State::WILD => true,
            Self::Command { id, .. } => values.run(id, state).1 != values.content_of(state),
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
            Self::Append(_) if state == State::WILD || values.is_collection(state) => return None,
            Self::Append(value) => values.concat(state, value),
            Self::Command { .. } if state == State::WILD => return None,
            Self::Command { id, .. } => values.after(id, state),
        };
        (next != state).then_some(next)
    }
}

impl Values {
    fn is_collection(&self, state: State) -> bool {
        self.value(state).is_some_and(|value| value.collection.is_some())
    }

    /// The state that a command leaves.
    fn after(&mut self, command: u32, state: State) -> State {
        let (_, after) = self.run(command, state);
        self.intern_content(after)
    }

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
    /// The command of this number gives the answer of this number.
    Answers { command: u32, answer: u32, changes_nothing: bool },
    /// The answer is impossible in every state.
    Impossible,
}

impl Need {
    pub(crate) fn new(step: Step, answer: &Answer, values: &mut Values) -> Self {
        let flag = matches!(answer, Answer::Integer(1));
        match (step, answer) {
            (Step::Set(_), _) => Self::Nothing,
            (Step::Command { id, .. }, answer) => {
                let command = &values.commands[id as usize];
                let (answer, changes_nothing) =
                    (command.normal(answer), command.changes_nothing(answer));
                Self::Answers { command: id, answer: values.add_answer(answer), changes_nothing }
            }
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
            Self::Length(wanted) => {
                !values.is_collection(state) && values.bytes_of(state).len() as u64 == wanted
            }
            Self::Answers { command, answer, .. } => {
                values.run(command, state).0 == values.answers[answer as usize]
            }
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
            Self::Answers { command, answer, .. } => format!(
                "something to which {} is answered {}",
                values.commands[command as usize], values.answers[answer as usize]
            ),
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
            (_, Need::Answers { changes_nothing, .. }) => changes_nothing,
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
            (Step::Append(_) | Step::Command { .. }, _) if state == State::WILD => State::WILD,
            (Step::Command { id, .. }, _) => values.after(id, state),
            (Step::Append(tail), _) => values.concat(state, tail),
            (Step::Set(value) | Step::GetSet(value) | Step::SetNx(value), _) => value,
            (Step::Cas { value, .. }, _) => value,
            (Step::Del, _) => State::ABSENT,
            (Step::Get | Step::Incr(_), _) => state,
        }
    }
}
