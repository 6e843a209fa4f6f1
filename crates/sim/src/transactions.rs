//! What clients of a transactional keyspace do: several workloads at once, on keys of their own.
//!
//! | keys | what clients do | what must hold |
//! | --- | --- | --- |
//! | `list:*` | append unique elements to several lists, and read lists | the checker of histories |
//! | `reg:*` | read, set, delete several registers, unique values | the checker of histories |
//! | `purse:*` | move money by `WATCH`, `MGET` and `EXEC`, unique values | the checker, and the sum |
//! | `account:*` | move money by `DECRBY` and `INCRBY` in one block | the sum |
//! | `pair:*` | make, delete and rename two keys together | both or none, and equal |
//! | `count:*` | single increments | linearizability |
//!
//! What begins with nothing needs no set-up: an absent purse or account holds 0, and all of them
//! together hold 0 for ever.

use quorate_check::{Action, Bytes, Invocation, OpenTxn, Recorder, TxnHistory, TxnOp, balance};
use quorate_commands::{Block, OwnedCall, Reply, Txn, Watch};
use quorate_machine::{Outcome, Rng};
use quorate_node::Isolation;
use quorate_types::Timestamp;

use crate::operations;
use crate::steps::{Nonsense, Step, effects, to_txn, with_version};
use crate::world::Command;

/// Appends after which clients go on to fresh lists: a check of lists reads them whole.
const LIST_LIFE: u64 = 400;
const PURSES: usize = 4;
const ACCOUNTS: usize = 5;
const COUNTERS: u64 = 2;
/// The two keys of a pair, and the one that a swap passes through.
const PAIR: [&str; 3] = ["pair:a", "pair:b", "pair:swap"];

/// A transaction, or one step of a longer affair, that waits for its answer.
#[derive(Debug)]
pub(crate) enum Open {
    /// A single-key command that is recorded as such.
    Single(Invocation, Action),
    /// Steps whose answers are recorded; of accounts in a history of their own.
    Steps { txn: OpenTxn, steps: Vec<Step>, alone: bool, of_accounts: bool },
    /// The versions of purses, before they are read.
    Watching { keys: [String; 2] },
    /// The values of purses that are watched.
    Reading { txn: OpenTxn, keys: [String; 2], watches: Vec<Watch> },
    /// The transfer between them.
    Moving { txn: OpenTxn, ops: Vec<TxnOp> },
    /// A change of the pair.
    Pairing,
    /// A look at the pair.
    Looking,
}

/// How an answered step goes on.
pub(crate) type Next = Option<(Open, Command)>;

/// The workloads of all clients of a run, and what they have seen.
pub(crate) struct Transactions {
    isolation: Isolation,
    keys: u64,
    unique: u64,
    /// Transfers between accounts.
    pub(crate) bank: Recorder<TxnHistory>,
    /// Answers that no history explains.
    pub(crate) complaints: Vec<String>,
}

impl Transactions {
    pub(crate) fn new(isolation: Isolation, keys: usize, bank: Recorder<TxnHistory>) -> Self {
        Self { isolation, keys: keys as u64, unique: 0, bank, complaints: Vec::new() }
    }

    /// The purses, whose sum is 0.
    pub(crate) fn purses() -> Vec<Bytes> {
        (0..PURSES).map(|purse| Bytes::from(format!("purse:{purse}"))).collect()
    }

    /// The accounts, whose sum is 0.
    pub(crate) fn accounts() -> Vec<Bytes> {
        (0..ACCOUNTS).map(|account| Bytes::from(format!("account:{account}"))).collect()
    }

    /// The next thing that a client does. Each client has a workload of its own that it prefers.
    pub(crate) fn draw(
        &mut self,
        process: u64,
        rng: &mut Rng,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        self.unique += 1;
        let workload = if rng.chance(1, 2) { process % 6 } else { rng.below(6) };
        match workload {
            0 | 1 => {
                let steps = self.draw_list_steps(rng);
                self.begin(process, steps, rng.chance(1, 2), history)
            }
            2 => {
                let steps = self.draw_register_steps(rng);
                self.begin(process, steps, rng.chance(1, 2), history)
            }
            3 => self.draw_purse(process, rng, history),
            4 => self.draw_account(process, rng),
            _ if rng.chance(1, 2) => self.draw_pair(rng),
            _ => self.draw_count(process, rng, history),
        }
    }

    fn begin(
        &mut self,
        process: u64,
        steps: Vec<Step>,
        alone: bool,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        let txn = history.begin(process);
        history.intend(&txn, steps.iter().flat_map(Step::intent).collect());
        let command = Command::Txn(to_txn(&steps, alone));
        (Open::Steps { txn, steps, alone, of_accounts: false }, command)
    }

    /// Half of the steps go to one key, so that there is always a fight for something.
    fn pick(&self, rng: &mut Rng) -> u64 {
        if rng.chance(1, 2) { 0 } else { rng.below(self.keys) }
    }

    fn draw_list_steps(&mut self, rng: &mut Rng) -> Vec<Step> {
        let age = self.unique / LIST_LIFE;
        let only_reads = rng.chance(1, 5);
        let count = 1 + rng.below(4);
        (0..count)
            .map(|step| {
                let key = format!("list:{age}:{}", self.pick(rng));
                if only_reads || rng.chance(2, 5) {
                    Step::GetList(key)
                } else {
                    Step::Append(key, format!("e{}.{step}", self.unique))
                }
            })
            .collect()
    }

    fn draw_register_steps(&mut self, rng: &mut Rng) -> Vec<Step> {
        let key = |number: u64| format!("reg:{number}");
        let value = |step: u64| format!("v{}.{step}", self.unique);
        match rng.below(12) {
            0 => vec![Step::SetIfAbsent(key(self.pick(rng)), value(0))],
            1 => {
                let first = rng.below(self.keys);
                let keys = [first, (first + 1) % self.keys];
                let pairs = keys.into_iter().enumerate();
                let pairs = pairs.map(|(at, number)| (key(number), value(at as u64)));
                vec![Step::SetAllIfAbsent(pairs.collect())]
            }
            2 => vec![Step::GetAll((0..self.keys).map(key).collect())],
            // Blind writes.
            3 => {
                (0..1 + rng.below(3)).map(|at| Step::Set(key(self.pick(rng)), value(at))).collect()
            }
            _ => (0..1 + rng.below(4))
                .map(|at| match (key(self.pick(rng)), rng.below(10)) {
                    (key, 0..=3) => Step::Get(key),
                    (key, 4..=6) => Step::Set(key, value(at)),
                    (key, 7..=8) => Step::GetSet(key, value(at)),
                    (key, _) => Step::Del(key),
                })
                .collect(),
        }
    }

    fn draw_purse(
        &mut self,
        process: u64,
        rng: &mut Rng,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        let name = |purse: u64| format!("purse:{purse}");
        if rng.chance(1, 4) {
            let all = (0..PURSES as u64).map(name).collect();
            return self.begin(process, vec![Step::GetAll(all)], true, history);
        }
        let from = rng.below(PURSES as u64);
        let to = (from + 1 + rng.below(PURSES as u64 - 1)) % PURSES as u64;
        let keys = [name(from), name(to)];
        let watched = keys.iter().map(|key| key.as_bytes().into()).collect();
        (Open::Watching { keys }, Command::Txn(Txn::Versions(watched)))
    }

    fn draw_account(&mut self, process: u64, rng: &mut Rng) -> (Open, Command) {
        let name = |account: u64| format!("account:{account}");
        let count = ACCOUNTS as u64;
        let steps = if rng.chance(1, 3) {
            vec![Step::GetAll((0..count).map(name).collect())]
        } else {
            let (from, amount) = (rng.below(count), 1 + rng.below(100) as i64);
            let to = (from + 1 + rng.below(count - 1)) % count;
            let (mut taken, mut given) =
                (Step::Add(name(from), -amount), Step::Add(name(to), amount));
            if rng.chance(1, 2) {
                std::mem::swap(&mut taken, &mut given);
            }
            vec![taken, given]
        };
        let txn = self.bank.begin(process);
        let command = Command::Txn(to_txn(&steps, false));
        (Open::Steps { txn, steps, alone: false, of_accounts: true }, command)
    }

    fn draw_pair(&mut self, rng: &mut Rng) -> (Open, Command) {
        let value = format!("p{}", self.unique);
        let [a, b, swap] = PAIR;
        let call = |words: &[&str]| {
            let words = words.iter().map(|word| word.as_bytes());
            OwnedCall::new(words).expect("clients know the commands")
        };
        match rng.below(8) {
            0..=2 => {
                (Open::Pairing, Command::Txn(Txn::Call(call(&["MSETNX", a, &value, b, &value]))))
            }
            3 => (Open::Pairing, Command::Txn(Txn::Call(call(&["DEL", a, b])))),
            4 => {
                let calls = [["RENAME", a, swap], ["RENAME", b, a], ["RENAME", swap, b]];
                let calls = calls.iter().map(|words| call(words)).collect();
                let block = Block { watches: Vec::new(), calls };
                (Open::Pairing, Command::Txn(Txn::Block(block)))
            }
            _ => (Open::Looking, Command::Txn(Txn::Call(call(&["MGET", a, b, swap])))),
        }
    }

    /// Reads of counters may be old if the keyspace is only serializable; increments may not.
    fn draw_count(
        &mut self,
        process: u64,
        rng: &mut Rng,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        let key = format!("count:{}", rng.below(COUNTERS));
        let reads = self.isolation == Isolation::Strict && rng.chance(1, 3);
        let action = if reads { Action::Get } else { Action::Incr(1) };
        Self::single(process, &key, action, history)
    }

    fn single(
        process: u64,
        key: &str,
        action: Action,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        let invocation = history.invoke(process, key, action.clone());
        let call = operations::to_call(key, &action);
        (Open::Single(invocation, action), Command::Txn(Txn::Call(call)))
    }

    /// What a client does to see that all is well at the end: one affair for each `round`, none
    /// beyond the last.
    pub(crate) fn closing(
        &mut self,
        process: u64,
        round: usize,
        history: &Recorder<TxnHistory>,
    ) -> Option<(Open, Command)> {
        self.unique += 1;
        let unique = self.unique;
        let numbers = 0..self.keys;
        let steps = match round {
            0 => {
                let age = unique / LIST_LIFE;
                let key = |number| format!("list:{age}:{number}");
                let append = |number| Step::Append(key(number), format!("e{unique}.{number}"));
                let appends = numbers.clone().map(append);
                appends.chain(numbers.clone().map(|number| Step::GetList(key(number)))).collect()
            }
            1 => {
                let all = numbers.clone().map(|number| format!("reg:{number}")).collect();
                vec![Step::GetAll(all), Step::Set("reg:0".into(), format!("v{unique}"))]
            }
            2 => vec![Step::GetAll((0..PURSES).map(|purse| format!("purse:{purse}")).collect())],
            3 => {
                let txn = self.bank.begin(process);
                let all = (0..ACCOUNTS).map(|account| format!("account:{account}")).collect();
                let steps = vec![Step::GetAll(all)];
                let command = Command::Txn(to_txn(&steps, true));
                return Some((Open::Steps { txn, steps, alone: true, of_accounts: true }, command));
            }
            4 | 5 => {
                let key = format!("count:{}", round - 4);
                return Some(Self::single(process, &key, Action::Incr(1), history));
            }
            6 => {
                let words = ["MGET", PAIR[0], PAIR[1], PAIR[2]].map(str::as_bytes);
                let call = OwnedCall::new(words).expect("MGET takes keys");
                return Some((Open::Looking, Command::Txn(Txn::Call(call))));
            }
            _ => return None,
        };
        Some(self.begin(process, steps, false, history))
    }

    /// Takes an answer and records what it says. Whether it was done, and how it goes on.
    pub(crate) fn end(
        &mut self,
        process: u64,
        open: Open,
        outcome: Outcome<Reply<'static>>,
        rng: &mut Rng,
        history: &Recorder<TxnHistory>,
    ) -> Next {
        match outcome {
            Outcome::Done(reply) => {
                self.done(process, open, &reply, rng, history).unwrap_or_else(|nonsense| {
                    self.complaints.push(nonsense);
                    None
                })
            }
            outcome => {
                self.not_done(open, &outcome, history);
                None
            }
        }
    }

    fn not_done(
        &mut self,
        open: Open,
        outcome: &Outcome<Reply<'static>>,
        history: &Recorder<TxnHistory>,
    ) {
        let refused = matches!(outcome, Outcome::Refused(_));
        let (txn, recorder) = match open {
            Open::Single(invocation, _) if refused => return history.refused(invocation),
            Open::Single(invocation, _) => return history.unknown(invocation),
            Open::Steps { txn, of_accounts: true, .. } => (txn, &self.bank),
            Open::Steps { txn, .. } | Open::Reading { txn, .. } | Open::Moving { txn, .. } => {
                (txn, history)
            }
            Open::Watching { .. } | Open::Pairing | Open::Looking => return,
        };
        if refused { recorder.aborted(txn) } else { recorder.undecided(txn, None) }
    }

    fn done(
        &mut self,
        process: u64,
        open: Open,
        reply: &Reply<'static>,
        rng: &mut Rng,
        history: &Recorder<TxnHistory>,
    ) -> Result<Next, Nonsense> {
        match open {
            Open::Single(invocation, action) => {
                history.done(invocation, operations::to_answer(&action, reply));
            }
            Open::Steps { txn, steps, alone, of_accounts } => {
                let recorder = if of_accounts { &self.bank } else { history };
                recorder.committed(txn, None, effects(&steps, alone, reply)?);
            }
            Open::Watching { keys } => {
                return self.watched(process, keys, reply, history).map(Some);
            }
            Open::Reading { txn, keys, watches } => {
                let ops = Step::GetAll(keys.to_vec()).effect(reply)?;
                history.committed(txn, None, ops.clone());
                return self.transfer(process, &keys, &watches, ops, rng, history).map(Some);
            }
            Open::Moving { txn, .. } if *reply == Reply::NullArray => history.aborted(txn),
            Open::Moving { txn, ops } => {
                if *reply != Reply::Array(vec![Reply::Ok, Reply::Ok]) {
                    return Err(format!("a transfer was answered {reply:?}"));
                }
                history.committed(txn, None, ops);
            }
            Open::Pairing => {}
            Open::Looking => {
                let Reply::Array(values) = reply else {
                    return Err(format!("a look at the pair was answered {reply:?}"));
                };
                if values.len() != 3 || values[0] != values[1] || values[2] != Reply::Null {
                    return Err(format!("the keys of a pair differ: {values:?}"));
                }
            }
        }
        Ok(None)
    }

    /// The versions are known: reads the values.
    fn watched(
        &mut self,
        process: u64,
        keys: [String; 2],
        reply: &Reply<'static>,
        history: &Recorder<TxnHistory>,
    ) -> Result<(Open, Command), Nonsense> {
        let nonsense = || format!("a watch was answered {reply:?}");
        let Reply::Array(versions) = reply else { return Err(nonsense()) };
        let watch = |version: &Reply<'static>| match version {
            Reply::Version(timestamp, existed) => {
                Some(Watch { existed: *existed, timestamp: *timestamp })
            }
            _ => None,
        };
        let watches: Option<Vec<Watch>> = versions.iter().map(watch).collect();
        let watches = watches.filter(|watches| watches.len() == 2).ok_or_else(nonsense)?;
        let txn = history.begin(process);
        let call = Step::GetAll(keys.to_vec()).call();
        Ok((Open::Reading { txn, keys, watches }, Command::Txn(Txn::Call(call))))
    }

    /// The values are known: moves money from the first to the second purse if nobody has touched
    /// them since they were watched.
    fn transfer(
        &mut self,
        process: u64,
        keys: &[String; 2],
        watches: &[Watch],
        read: Vec<TxnOp>,
        rng: &mut Rng,
        history: &Recorder<TxnHistory>,
    ) -> Result<(Open, Command), Nonsense> {
        self.unique += 1;
        let amount = 1 + rng.below(100) as i64;
        let mut ops = Vec::new();
        let mut calls = Vec::new();
        for ((at, key), by) in keys.iter().enumerate().zip([-amount, amount]) {
            let TxnOp::Read { value, .. } = &read[at] else { unreachable!("registers are read") };
            let held = match value {
                None => 0,
                Some(value) => balance(value).ok_or(format!("{key} holds {value}"))?,
            };
            let step = Step::Set(key.clone(), format!("{}:{}.{at}", held + by, self.unique));
            calls.push(step.call());
            ops.extend(step.intent());
        }
        let reads = read.into_iter().zip(watches).map(|(op, watch)| {
            let known: Option<Timestamp> = watch.existed.then_some(watch.timestamp);
            with_version(op, known)
        });
        ops.splice(0..0, reads);
        let txn = history.begin(process);
        history.intend(&txn, ops.clone());
        let watches =
            keys.iter().map(|key| key.as_bytes().into()).zip(watches.iter().copied()).collect();
        let command = Command::Txn(Txn::Block(Block { watches, calls }));
        Ok((Open::Moving { txn, ops }, command))
    }
}
