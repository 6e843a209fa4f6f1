//! The steps of clients' transactions: the command of each, and the reads and writes that its
//! answer shows.

use quorate_check::{Bytes, TxnOp, list_argument, split_list};
use quorate_commands::{Block, Op, OwnedCall, Reply};
use quorate_types::Timestamp;

use crate::parts::{PartStep, check_unions};

/// One command of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Adds an element to a list.
    Append(String, String),
    /// Reads a list.
    GetList(String),
    /// Reads a register.
    Get(String),
    /// Reads several registers.
    GetAll(Vec<String>),
    /// Reads the registers of a name from number 0 to below `count` as a range of keys, at most
    /// `limit` of those that are there.
    Range { name: String, count: u64, limit: usize },
    /// Sets a register.
    Set(String, String),
    /// Sets a register and reads its old value.
    GetSet(String, String),
    /// Sets a register that is absent.
    SetIfAbsent(String, String),
    /// Sets several registers that are all absent.
    SetAllIfAbsent(Vec<(String, String)>),
    /// Deletes a register.
    Del(String),
    /// Adds to an account.
    Add(String, i64),
    /// A command on a collection.
    Part(PartStep),
}

/// How the steps of a transaction are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// As a command, if there is one step.
    Command,
    /// As a block.
    Block,
    /// As a script, which is told its keys, or finds them among its arguments.
    Script { names_keys: bool },
}

impl Form {
    pub(crate) fn alone(alone: bool) -> Self {
        if alone { Self::Command } else { Self::Block }
    }
}

/// An answer that the step's command never gives.
pub(crate) type Nonsense = String;

impl Step {
    /// Whether it touches accounts, which are judged by their sum alone.
    pub(crate) fn is_of_accounts(&self) -> bool {
        let is_account = |key: &String| key.starts_with("account:");
        match self {
            Self::Add(key, _) => is_account(key),
            Self::GetAll(keys) => keys.iter().all(is_account),
            _ => false,
        }
    }

    /// Whether its command answers in a script as it does alone.
    pub(crate) fn may_be_in_script(&self) -> bool {
        match self {
            Self::Range { .. } => false,
            Self::Part(step) => step.may_be_in_script(),
            _ => true,
        }
    }

    fn part(&self) -> Option<&PartStep> {
        match self {
            Self::Part(step) => Some(step),
            _ => None,
        }
    }

    /// The command.
    pub(crate) fn call(&self) -> OwnedCall {
        let words: Vec<String> = match self {
            Self::Part(step) => return step.call(),
            Self::Append(key, element) => {
                let words: [&[u8]; 3] =
                    [b"APPEND", key.as_bytes(), &list_argument(element.as_bytes())];
                return OwnedCall::new(words).expect("clients know the commands");
            }
            Self::GetList(key) | Self::Get(key) => vec!["GET".into(), key.clone()],
            Self::GetAll(keys) => {
                std::iter::once("MGET".into()).chain(keys.iter().cloned()).collect()
            }
            Self::Range { name, limit, .. } => {
                // A semicolon comes right behind a colon.
                let (min, max) = (format!("[{name}:"), format!("({name};"));
                let limit = limit.to_string();
                vec!["KEYRANGE".into(), min, max, "LIMIT".into(), limit, "WITHVALUES".into()]
            }
            Self::Set(key, value) => vec!["SET".into(), key.clone(), value.clone()],
            Self::GetSet(key, value) => vec!["GETSET".into(), key.clone(), value.clone()],
            Self::SetIfAbsent(key, value) => vec!["SETNX".into(), key.clone(), value.clone()],
            Self::SetAllIfAbsent(pairs) => {
                let pairs = pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]);
                std::iter::once("MSETNX".into()).chain(pairs).collect()
            }
            Self::Del(key) => vec!["DEL".into(), key.clone()],
            Self::Add(key, amount) => {
                let name = if *amount < 0 { "DECRBY" } else { "INCRBY" };
                vec![name.into(), key.clone(), amount.unsigned_abs().to_string()]
            }
        };
        OwnedCall::new(words.iter().map(String::as_bytes)).expect("clients know the commands")
    }

    /// Its effect, if it happens and its answer is never seen.
    pub(crate) fn intent(&self) -> Vec<TxnOp> {
        match self {
            Self::Append(key, element) => vec![TxnOp::append(bytes(key), bytes(element))],
            Self::Set(key, value) | Self::GetSet(key, value) | Self::SetIfAbsent(key, value) => {
                vec![write(key, value)]
            }
            Self::SetAllIfAbsent(pairs) => {
                pairs.iter().map(|(key, value)| write(key, value)).collect()
            }
            Self::Del(key) => vec![TxnOp::write(bytes(key), None)],
            Self::Part(step) => step.intent(),
            Self::GetList(_)
            | Self::Get(_)
            | Self::GetAll(_)
            | Self::Range { .. }
            | Self::Add(..) => Vec::new(),
        }
    }

    /// Its effect, by its answer.
    pub(crate) fn effect(&self, reply: &Reply<'_>) -> Result<Vec<TxnOp>, Nonsense> {
        let nonsense = || Err(format!("{self:?} was answered {reply:?}"));
        Ok(match (self, reply) {
            (Self::Part(step), reply) => match step.effect(reply) {
                Some(ops) => ops,
                None => return nonsense(),
            },
            (Self::Append(key, element), Reply::Int(_)) => {
                vec![TxnOp::append(bytes(key), bytes(element))]
            }
            (Self::GetList(key), reply) => {
                let Some(value) = value_of(reply) else { return nonsense() };
                let Some(elements) = split_list(value.as_ref().map(|value| &value.0[..])) else {
                    return nonsense();
                };
                vec![TxnOp::read_list(bytes(key), elements)]
            }
            (Self::Get(key), reply) => match value_of(reply) {
                Some(value) => vec![TxnOp::read(bytes(key), value)],
                None => return nonsense(),
            },
            (Self::GetAll(keys), Reply::Array(replies)) if replies.len() == keys.len() => {
                let pairs = keys.iter().zip(replies);
                let read = |(key, reply): (&String, &Reply<'_>)| {
                    Some(TxnOp::read(bytes(key), value_of(reply)?))
                };
                match pairs.map(read).collect() {
                    Some(ops) => ops,
                    None => return nonsense(),
                }
            }
            (Self::Range { name, count, limit }, Reply::Array(replies)) => {
                match read_range(name, *count, *limit, replies) {
                    Some(ops) => ops,
                    None => return nonsense(),
                }
            }
            (Self::Set(key, value), Reply::Ok) => vec![write(key, value)],
            (Self::GetSet(key, value), reply) => match value_of(reply) {
                Some(before) => vec![TxnOp::read(bytes(key), before), write(key, value)],
                None => return nonsense(),
            },
            (Self::SetIfAbsent(..) | Self::SetAllIfAbsent(_) | Self::Del(_), Reply::Int(0)) => {
                Vec::new()
            }
            (Self::SetIfAbsent(key, value), Reply::Int(1)) => {
                vec![TxnOp::read(bytes(key), None), write(key, value)]
            }
            (Self::SetAllIfAbsent(pairs), Reply::Int(1)) => {
                let absent = pairs.iter().map(|(key, _)| TxnOp::read(bytes(key), None));
                absent.chain(pairs.iter().map(|(key, value)| write(key, value))).collect()
            }
            (Self::Del(key), Reply::Int(1)) => vec![TxnOp::write(bytes(key), None)],
            (Self::Add(key, amount), Reply::Int(sum)) => vec![
                TxnOp::read(bytes(key), Some(bytes(&(sum - amount).to_string()))),
                write(key, &sum.to_string()),
            ],
            _ => return nonsense(),
        })
    }
}

/// What a range shows: the values of the keys in it, and that no other key up to its end has one.
fn read_range(name: &str, count: u64, limit: usize, replies: &[Reply<'_>]) -> Option<Vec<TxnOp>> {
    let (pairs, []) = replies.as_chunks::<2>() else { return None };
    let mut all: Vec<String> = (0..count).map(|number| format!("{name}:{number}")).collect();
    all.sort_unstable();
    let (mut all, mut ops) = (all.into_iter(), Vec::new());
    for [key, value] in pairs {
        let (key, value) = (value_of(key)??, value_of(value)??);
        // The keys before it are absent. Any other key, or one out of order, is nonsense.
        loop {
            let next = bytes(&all.next()?);
            let is_found = next == key;
            ops.push(TxnOp::read(next, is_found.then(|| value.clone())));
            if is_found {
                break;
            }
        }
    }
    if pairs.len() > limit {
        return None;
    }
    if pairs.len() < limit {
        ops.extend(all.map(|key| TxnOp::read(bytes(&key), None)));
    }
    Some(ops)
}

/// The transaction of these steps.
pub(crate) fn to_op(steps: &[Step], form: Form) -> Op {
    match (steps, form) {
        ([step], Form::Command) => Op::Call(step.call()),
        (_, Form::Script { names_keys }) => Op::Call(script(steps, names_keys)),
        _ => {
            Op::Block(Block { watches: Vec::new(), calls: steps.iter().map(Step::call).collect() })
        }
    }
}

/// A script that asks for one step after the other.
fn script(steps: &[Step], names_keys: bool) -> OwnedCall {
    let calls: Vec<OwnedCall> = steps.iter().map(Step::call).collect();
    let (mut keys, mut arguments, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for call in calls.iter().map(OwnedCall::call) {
        let of_call: Vec<&[u8]> = call.keys().collect();
        let mut words = Vec::new();
        for (at, word) in call.args.iter().enumerate() {
            let is_key = at > 0 && names_keys && of_call.contains(&word);
            let (all, name) = if is_key { (&mut keys, "KEYS") } else { (&mut arguments, "ARGV") };
            all.push(word);
            words.push(format!("{name}[{}]", all.len()));
        }
        lines.push(format!("redis.call({})", words.join(",")));
    }
    let (source, count) = (format!("return{{{}}}", lines.join(",")), keys.len().to_string());
    let words = [b"EVAL", source.as_bytes(), count.as_bytes()].into_iter();
    OwnedCall::new(words.chain(keys).chain(arguments)).expect("a script is a command")
}

/// The effects of a committed transaction.
pub(crate) fn effects(
    steps: &[Step],
    form: Form,
    reply: &Reply<'_>,
) -> Result<Vec<TxnOp>, Nonsense> {
    let mut ops = Vec::new();
    match (steps, reply) {
        ([step], reply) if form == Form::Command => ops = step.effect(reply)?,
        (steps, Reply::Array(replies)) if steps.len() == replies.len() => {
            for (step, reply) in steps.iter().zip(replies) {
                ops.extend(match reply {
                    // As a script has it.
                    Reply::Status(text) if text == "OK" => step.effect(&Reply::Ok)?,
                    reply => step.effect(reply)?,
                });
            }
            let parts: Vec<&PartStep> = steps.iter().filter_map(Step::part).collect();
            check_unions(&parts, replies)?;
        }
        _ => return Err(format!("{steps:?} was answered {reply:?}")),
    }
    Ok(ops)
}

/// A read with the version that a watch saw.
pub(crate) fn with_version(op: TxnOp, version: Option<Timestamp>) -> TxnOp {
    match op {
        TxnOp::Read { key, value, .. } => TxnOp::Read { key, value, version },
        other => other,
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::from(text)
}

fn write(key: &str, value: &str) -> TxnOp {
    TxnOp::write(bytes(key), Some(bytes(value)))
}

fn value_of(reply: &Reply<'_>) -> Option<Option<Bytes>> {
    match reply {
        Reply::Null => Some(None),
        Reply::Bulk(value) => Some(Some(Bytes(value.to_vec()))),
        _ => None,
    }
}
