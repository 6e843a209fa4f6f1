//! The work of clients of a transactional keyspace: several workloads at once, on keys of their
//! own.
//!
//! | keys | what clients do | what must hold |
//! | --- | --- | --- |
//! | `list:*` | append unique elements to several lists, and read lists | the checker of histories |
//! | `reg:*` | read, set, delete several registers, unique values | the checker of histories |
//! | `purse:*` | move money by `WATCH`, `MGET` and `EXEC`, unique values | the checker, and the sum |
//! | `account:*` | move money by `DECRBY` and `INCRBY` in one block | the sum |
//! | `pair:*` | make, delete and rename two keys together | both or none, and equal |
//! | `count:*` | single increments | linearizability |
//! | `tweet:*` | Retwis: up to ten keys, some written, half of them by `WATCH` | the checker |
//! | `ycsb:*` | YCSB-T: one key read and written, half of the times by `WATCH` | the checker |
//! | `parts:*` | several hashes and lists, field by field ([`crate::parts`]) | the checker |
//! | the same, `account:*` | several steps as one script, told its keys or not | the same |
//! | `moved:*` | move unique elements between lists, and between sets ([`crate::moves`]) | each is in one place |
//! | `one:*` | commands on single hashes, lists, sets ([`crate::collections`]) | linearizability |
//! | `queue:*` | put unique elements in, take them out, move them | each goes to one client |
//! | `ttl:*` | set for a while, read, deleted | linearizability, and nobody reads one late |
//! | `mine:*`, `kept:*` | set by one client alone, by `WATCH` and `EXEC` | no watch fails |
//!
//! Absent keys need no set-up: an absent purse or account holds 0, and all of them together hold 0
//! for ever.

mod draw;

use quorate_check::{
    Action, Answer, Bytes, Invocation, OpenTxn, Recorder, TxnHistory, TxnOp, balance,
};
use quorate_commands::{Block, Op, OwnedCall, Reply, Watch};
use quorate_machine::{Outcome, Rng};
use quorate_meerkat::Isolation;
use quorate_types::Timestamp;
use quorate_workloads::Generator;

use crate::clients::Plan;
use crate::collections::{self, Collections};
use crate::command::Command;
use crate::intent::Intent;
use crate::lapses::{self, Lapses};
use crate::losses::Losing;
use crate::moves::{Moved, Moves};
use crate::operations;
use crate::options::Workload;
use crate::queues::QueueStep;
use crate::steps::{Form, Nonsense, Step, effects, to_op, with_version};

const PURSES: usize = 4;
const ACCOUNTS: usize = 5;
/// Keys of Retwis, enough for its largest transaction and few enough to fight for.
const TWEETS: u64 = 24;
/// Keys of YCSB-T.
const YCSB_KEYS: u64 = 12;
/// The process that deletes an expired value: each client's number plus this.
const EXPIRY: u64 = 1 << 32;
/// The two keys of a pair, and the one that a swap passes through.
const PAIR: [&str; 3] = ["pair:a", "pair:b", "pair:swap"];

/// A transaction, or one step of a longer intent, that waits for its answer.
#[derive(Debug)]
pub(crate) enum Open {
    /// A single-key command that is recorded as such.
    Single(Invocation, Action),
    /// Steps whose answers are recorded; of accounts in a history of their own.
    Steps { txn: OpenTxn, steps: Vec<Step>, form: Form, of_accounts: bool },
    /// Watches keys, before it reads them.
    Watching { keys: Vec<String>, then: Then },
    /// Reads the watched keys.
    Reading { txn: OpenTxn, keys: Vec<String>, watches: Vec<Watch>, then: Then },
    /// Writes, after it has read.
    Writing { txn: OpenTxn, ops: Vec<TxnOp>, writes: usize },
    /// Sets a value that expires; its deletion is another op.
    Lapsing(Lapsing),
    /// Lets a collection expire; its deletion is another op.
    Fading(Invocation),
    /// Puts an element into a queue, takes one, or moves one.
    Queueing(QueueStep),
    /// Watches a key that no other client touches, before it sets it.
    WatchingOwn { key: String, millis: u64, call: OwnedCall },
    /// Sets that key, which was watched since then. The watch must hold, unless an existing value expires,
    /// or an absent one is watched for too long.
    SettingOwn { key: String, millis: u64, existed: bool, since: u64 },
    /// Moves elements.
    Moving { moves: Moves },
    /// Changes the pair, or deletes it.
    Pairing { unpairs: bool },
    /// Reads the pair.
    Looking,
}

/// A value that is being set for a while.
#[derive(Debug)]
pub(crate) struct Lapsing {
    set: Invocation,
    /// The deletion, at any time after the set.
    expiry: Invocation,
    value: String,
    millis: u64,
}

impl Open {
    /// A client sets a key for a while; then another process deletes it.
    pub(crate) fn lapse(
        history: &Recorder<TxnHistory>,
        process: u64,
        key: &str,
        value: &str,
        millis: u64,
    ) -> Self {
        let set = history.invoke(process, key, Action::Set(value.into()));
        let expiry = history.invoke(EXPIRY + process, key, Action::Del);
        Self::Lapsing(Lapsing { set, expiry, value: value.to_owned(), millis })
    }
}

impl Open {
    /// A client lets a collection expire; then another process deletes it.
    pub(crate) fn fade(
        history: &Recorder<TxnHistory>,
        process: u64,
        key: &str,
        millis: u64,
    ) -> (Self, Command) {
        let delete = collections::command(["DEL"].into_iter());
        let expiry = history.invoke(EXPIRY + process, key, delete);
        let millis = millis.to_string();
        (Self::Fading(expiry), Transactions::calls(&[vec!["PEXPIRE", key, &millis]]))
    }
}

impl Lapsing {
    /// Ends the set with its answer.
    pub(crate) fn end(
        self,
        outcome: &Outcome<Reply<'static>>,
        now: u64,
        lapses: Option<&mut Lapses>,
        history: &Recorder<TxnHistory>,
    ) {
        match outcome {
            Outcome::Refused(_) => {
                history.refused(self.set);
                return history.refused(self.expiry);
            }
            Outcome::Unknown => history.unknown(self.set),
            Outcome::Done(_) => {
                history.done(self.set, Answer::Ok);
                if let Some(lapses) = lapses {
                    lapses.set(&self.value, self.millis, now);
                }
            }
        }
        history.unknown(self.expiry);
    }
}

/// The next step with keys that were watched and read.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// Moves money from the first to the second.
    Move { amount: i64, unique: u64 },
    /// Sets keys.
    Set(Vec<(String, String)>),
}

/// The continuation of an answered step.
pub(crate) type Next = Option<(Open, Command)>;

/// The workloads of all clients of a run, and their records.
pub(crate) struct Transactions {
    workload: Workload,
    isolation: Isolation,
    keys: u64,
    churn: bool,
    /// Whether the keyspace has ranges of keys.
    ordered: bool,
    /// The draws of commands on collections, if clients use them.
    types: Option<Collections>,
    /// Keys that expire, if there are any.
    pub(crate) lapses: Option<Lapses>,
    /// Makes values unique.
    pub(crate) unique: u64,
    retwis: Generator,
    ycsb: Generator,
    /// Elements that are moved.
    pub(crate) moved: Moved,
    /// When a change of the pair has ended last.
    paired: u64,
    /// When a loss may have taken one half of a change of the pair.
    unpaired_at: Option<u64>,
    /// When something was lost for the last time, and when that may have been a part of a transaction.
    lost_at: Option<u64>,
    torn_at: Option<u64>,
    /// Transfers between accounts.
    pub(crate) bank: Recorder<TxnHistory>,
    /// Answers that no history explains.
    pub(crate) complaints: Vec<String>,
}

impl Transactions {
    pub(crate) fn new(
        plan: &mut Plan<'_>,
        isolation: Isolation,
        bank: Recorder<TxnHistory>,
        rng: &mut Rng,
    ) -> Self {
        // The papers' skews, from none to high.
        let theta = [0.0, 0.6, 0.9][rng.below(3) as usize];
        let mut generator = |workload, keys| {
            Generator::new(workload, keys, theta, rng.next_u64()).expect("there are enough keys")
        };
        Self {
            workload: plan.workload,
            isolation,
            keys: plan.keys as u64,
            churn: plan.churn,
            ordered: plan.ordered,
            types: plan.types.take().filter(|_| plan.workload == Workload::Mix),
            lapses: plan.expiry.map(|apart| Lapses::new(apart, plan.watches_last)),
            unique: 0,
            retwis: generator(quorate_workloads::Workload::Retwis, TWEETS),
            ycsb: generator(quorate_workloads::Workload::YcsbT, YCSB_KEYS),
            moved: Moved::default(),
            paired: 0,
            unpaired_at: None,
            lost_at: None,
            torn_at: None,
            bank,
            complaints: Vec::new(),
        }
    }

    /// What was answered last may be lost.
    pub(crate) fn lose(&mut self, losing: Losing) {
        self.moved.lose(losing);
        self.lost_at = Some(losing.loss.at);
        self.torn_at = self.lost_at.filter(|_| losing.torn);
        if self.paired >= losing.loss.from {
            self.unpaired_at = self.unpaired_at.max(self.torn_at);
        }
    }

    /// The purses, whose sum is 0.
    pub(crate) fn purses() -> Vec<Bytes> {
        (0..PURSES).map(|purse| Bytes::from(format!("purse:{purse}"))).collect()
    }

    /// The accounts, whose sum is 0.
    pub(crate) fn accounts() -> Vec<Bytes> {
        (0..ACCOUNTS).map(|account| Bytes::from(format!("account:{account}"))).collect()
    }

    /// Begins an intent.
    pub(crate) fn begin(
        &mut self,
        process: u64,
        intent: &Intent,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        match intent {
            Intent::Single { key, action } => Self::single(process, key, action.clone(), history),
            Intent::Lapse { key, value, millis } => {
                let open = Open::lapse(history, process, key, value, *millis);
                (open, Command(Op::Call(lapses::to_call(key, value, *millis))))
            }
            Intent::Queue(step) => queue(step),
            Intent::Fade { key, millis } => Open::fade(history, process, key, *millis),
            Intent::Own { key, value, millis } => {
                let call = lapses::to_call(key, value, *millis);
                let keys = vec![key.as_bytes().into()];
                (
                    Open::WatchingOwn { key: key.clone(), millis: *millis, call },
                    Command(Op::Versions(keys)),
                )
            }
            Intent::Moves(moves) => (Open::Moving { moves: moves.clone() }, moves.command()),
            Intent::Steps { steps, form } => {
                let steps = steps.clone();
                let form = match form {
                    Form::Command if steps.len() > 1 => Form::Block,
                    form => *form,
                };
                let of_accounts = steps.iter().any(Step::is_of_accounts);
                let recorder = if of_accounts { &self.bank } else { history };
                let txn = recorder.begin(process);
                recorder.intend(&txn, steps.iter().flat_map(Step::intent).collect());
                let command = Command(to_op(&steps, form));
                (Open::Steps { txn, steps, form, of_accounts }, command)
            }
            Intent::Transfer { keys, amount, unique } => {
                Self::watch(keys.to_vec(), Then::Move { amount: *amount, unique: *unique })
            }
            Intent::Update { reads, writes } => {
                Self::watch(reads.clone(), Then::Set(writes.clone()))
            }
            Intent::Pair(value) => {
                (Open::Pairing { unpairs: false }, Self::calls(&[pair_with(value)]))
            }
            Intent::Unpair => {
                let delete = vec!["DEL", PAIR[0], PAIR[1]];
                (Open::Pairing { unpairs: true }, Self::calls(&[delete]))
            }
            Intent::Swap => {
                let [a, b, swap] = PAIR;
                let renames = [["RENAME", a, swap], ["RENAME", b, a], ["RENAME", swap, b]];
                (
                    Open::Pairing { unpairs: false },
                    Self::calls(&renames.map(|words| words.to_vec())),
                )
            }
            Intent::Look => {
                (Open::Looking, Self::calls(&[vec!["MGET", PAIR[0], PAIR[1], PAIR[2]]]))
            }
        }
    }

    fn watch(keys: Vec<String>, then: Then) -> (Open, Command) {
        let watched = keys.iter().map(|key| key.as_bytes().into()).collect();
        (Open::Watching { keys, then }, Command(Op::Versions(watched)))
    }

    /// A command alone, or a block of several.
    fn calls(calls: &[Vec<&str>]) -> Command {
        let call = |words: &Vec<&str>| {
            let words = words.iter().map(|word| word.as_bytes());
            OwnedCall::new(words).expect("clients know the commands")
        };
        Command(match calls {
            [single] => Op::Call(call(single)),
            _ => {
                let calls = calls.iter().map(call).collect();
                Op::Block(Block { watches: Vec::new(), calls })
            }
        })
    }

    fn single(
        process: u64,
        key: &str,
        action: Action,
        history: &Recorder<TxnHistory>,
    ) -> (Open, Command) {
        let invocation = history.invoke(process, key, action.clone());
        let call = operations::to_call(key, &action);
        (Open::Single(invocation, action), Command(Op::Call(call)))
    }

    /// Takes an answer and records it; the transaction took effect at `at` if the engine says so.
    /// Returns the next step.
    pub(crate) fn end(
        &mut self,
        process: u64,
        span: (u64, u64),
        open: Open,
        outcome: Outcome<Reply<'static>>,
        at: Option<Timestamp>,
        history: &Recorder<TxnHistory>,
    ) -> Next {
        let open = match open {
            Open::Lapsing(lapsing) => {
                lapsing.end(&outcome, span.1, self.lapses.as_mut(), history);
                return None;
            }
            Open::Fading(expiry) => {
                collections::faded(expiry, &outcome, history);
                return None;
            }
            open => open,
        };
        match outcome {
            Outcome::Done(reply) => {
                self.done(process, span, open, &reply, at, history).unwrap_or_else(|nonsense| {
                    self.complaints.push(nonsense);
                    None
                })
            }
            outcome => {
                self.not_done(open, &outcome, span, history);
                None
            }
        }
    }

    /// Notes that a change of the pair has ended.
    fn note_paired(&mut self, (began, now): (u64, u64)) {
        self.paired = now;
        if self.torn_at >= Some(began) {
            self.unpaired_at = self.torn_at;
        }
    }

    fn not_done(
        &mut self,
        open: Open,
        outcome: &Outcome<Reply<'static>>,
        span: (u64, u64),
        history: &Recorder<TxnHistory>,
    ) {
        let refused = matches!(outcome, Outcome::Refused(_));
        let (txn, recorder) = match open {
            Open::Single(invocation, _) if refused => return history.refused(invocation),
            Open::Single(invocation, _) => return history.unknown(invocation),
            Open::Steps { txn, of_accounts: true, .. } => (txn, &self.bank),
            Open::Steps { txn, .. } | Open::Reading { txn, .. } | Open::Writing { txn, .. } => {
                (txn, history)
            }
            Open::Watching { .. }
            | Open::WatchingOwn { .. }
            | Open::SettingOwn { .. }
            | Open::Looking => return,
            Open::Moving { moves, .. } => return self.moved.never_known(&moves, span),
            Open::Pairing { .. } => return self.note_paired(span),
            Open::Lapsing(_) | Open::Fading(_) | Open::Queueing(_) => {
                unreachable!("it has ended already")
            }
        };
        if refused { recorder.aborted(txn) } else { recorder.undecided(txn, None) }
    }

    fn done(
        &mut self,
        process: u64,
        (began, now): (u64, u64),
        open: Open,
        reply: &Reply<'static>,
        at: Option<Timestamp>,
        history: &Recorder<TxnHistory>,
    ) -> Result<Next, Nonsense> {
        match open {
            Open::Single(invocation, action) => {
                history.done(invocation, operations::to_answer(&action, reply));
            }
            Open::Moving { moves } => {
                // Reads may be outdated if the keyspace is only serializable.
                let strict = self.isolation == Isolation::Strict;
                self.moved.end(&moves, strict, reply, (began, now))?
            }
            Open::Steps { txn, steps, form, of_accounts } => {
                let recorder = if of_accounts { &self.bank } else { history };
                recorder.committed(txn, at, effects(&steps, form, reply)?);
            }
            Open::Watching { keys, then } => {
                return Self::watched(process, keys, then, reply, history).map(Some);
            }
            Open::Reading { txn, keys, watches, then } => {
                let ops = Step::GetAll(keys.clone()).effect(reply)?;
                history.committed(txn, at, ops.clone());
                return Self::go_on(process, &keys, &watches, ops, then, history).map(Some);
            }
            Open::Writing { txn, .. } if *reply == Reply::NullArray => history.aborted(txn),
            Open::Writing { txn, ops, writes } => {
                if *reply != Reply::Array(vec![Reply::Ok; writes]) {
                    return Err(format!("{writes} writes were answered {reply:?}"));
                }
                history.committed(txn, at, ops);
            }
            Open::WatchingOwn { key, millis, call } => {
                let Reply::Array(versions) = reply else {
                    return Err(format!("a watch was answered {reply:?}"));
                };
                let [Reply::Version(timestamp, existed)] = versions[..] else {
                    return Err(format!("a watch was answered {reply:?}"));
                };
                let watch = Watch { existed, timestamp };
                let watches = vec![(key.as_bytes().into(), watch)];
                let block = Block { watches, calls: vec![call] };
                return Ok(Some((
                    Open::SettingOwn { key, millis, existed, since: began },
                    Command(Op::Block(block)),
                )));
            }
            Open::SettingOwn { key, millis, existed, since }
                if *reply == Reply::NullArray
                    && self.lost_at.is_none_or(|lost| lost < since)
                    && self
                        .lapses
                        .as_ref()
                        .is_none_or(|lapses| lapses.must_hold(existed, millis, now - since)) =>
            {
                return Err(format!("EXEC fails after WATCH of {key}, which nobody has touched"));
            }
            Open::SettingOwn { key, millis, .. } => {
                if let Some(lapses) = &mut self.lapses {
                    lapses.ended_own(process, key, millis);
                }
            }
            Open::Pairing { unpairs } => {
                self.unpaired_at = self.unpaired_at.filter(|lost| !unpairs || began < *lost);
                self.note_paired((began, now));
            }
            Open::Lapsing(_) | Open::Fading(_) | Open::Queueing(_) => {
                unreachable!("it has ended already")
            }
            Open::Looking => {
                let Reply::Array(values) = reply else {
                    return Err(format!("a look at the pair was answered {reply:?}"));
                };
                let is_pair =
                    values.len() == 3 && values[0] == values[1] && values[2] == Reply::Null;
                if !is_pair && self.unpaired_at.is_none() {
                    return Err(format!("the keys of a pair differ: {values:?}"));
                }
            }
        }
        Ok(None)
    }

    /// The versions are known: reads the values.
    fn watched(
        process: u64,
        keys: Vec<String>,
        then: Then,
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
        let watches = watches.filter(|watches| watches.len() == keys.len());
        let watches = watches.ok_or_else(nonsense)?;
        let txn = history.begin(process);
        let call = Step::GetAll(keys.clone()).call();
        Ok((Open::Reading { txn, keys, watches, then }, Command(Op::Call(call))))
    }

    /// The values are known: writes, if no client has changed the keys since they were watched.
    fn go_on(
        process: u64,
        keys: &[String],
        watches: &[Watch],
        read: Vec<TxnOp>,
        then: Then,
        history: &Recorder<TxnHistory>,
    ) -> Result<(Open, Command), Nonsense> {
        let writes = match then {
            Then::Set(writes) => writes,
            Then::Move { amount, unique } => {
                let changes = keys.iter().zip(&read).zip([-amount, amount]).enumerate();
                let moved = |(at, ((key, op), by)): (usize, ((&String, &TxnOp), i64))| {
                    let TxnOp::Read { value, .. } = op else { unreachable!("these are read") };
                    let held = match value {
                        None => 0,
                        Some(value) => balance(value).ok_or(format!("{key} holds {value}"))?,
                    };
                    Ok((key.clone(), format!("{}:{unique}.{at}", held + by)))
                };
                changes.map(moved).collect::<Result<_, Nonsense>>()?
            }
        };
        let steps: Vec<Step> =
            writes.into_iter().map(|(key, value)| Step::Set(key, value)).collect();
        let reads = read.into_iter().zip(watches).map(|(op, watch)| {
            let known: Option<Timestamp> = watch.existed.then_some(watch.timestamp);
            with_version(op, known)
        });
        let ops: Vec<TxnOp> = reads.chain(steps.iter().flat_map(Step::intent)).collect();
        let txn = history.begin(process);
        history.intend(&txn, ops.clone());
        let watches =
            keys.iter().map(|key| key.as_bytes().into()).zip(watches.iter().copied()).collect();
        let calls = steps.iter().map(Step::call).collect();
        let command = Command(Op::Block(Block { watches, calls }));
        Ok((Open::Writing { txn, ops, writes: steps.len() }, command))
    }
}

/// A step with a queue, and its command.
pub(crate) fn queue(step: &QueueStep) -> (Open, Command) {
    (Open::Queueing(step.clone()), Command(Op::Call(step.call())))
}

fn pair_with(value: &str) -> Vec<&str> {
    vec!["MSETNX", PAIR[0], value, PAIR[1], value]
}
