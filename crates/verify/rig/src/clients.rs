//! Clients at work: tasks with the Rust client, threads with redis-py and with Quorate's Python
//! client. All work on registers, counters, lists and unique elements, and on a bank where the
//! engine has transactions. A client with a session asks again while the outcome of a call is
//! unknown.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use quorate_check::{
    Action, Answer, Bytes, Recorder, TxnHistory, TxnOp, balance, list_argument,
    read_txn_history_file, split_list,
};
use quorate_client::{Client, Error, Reply};
use quorate_machine::Rng;
use rustix::time::{ClockId, clock_gettime};

use crate::engines::Engine;

/// Tasks of the Rust client; redis-py's threads are numbered from [`PYTHON_FIRST`] on.
const TASKS: u64 = 8;
const PYTHON_FIRST: u64 = 100;
const PYTHON_THREADS: u64 = 6;
/// The number of the process that reads at the end.
const READER: u64 = 99;
/// The pause between two operations of one task.
const PACE: Duration = Duration::from_millis(4);
/// The time that clients work before the fault, and again after the recovery; and their operations
/// in that time.
const CALM: Duration = Duration::from_millis(700);
const CALM_OPERATIONS: u64 = 200;
/// The longest that this may take on a crowded machine.
const WORK_MAX: Duration = Duration::from_secs(60);
/// How long a task asks again about a call before it leaves its outcome open.
const ASKING_MAX: Duration = Duration::from_secs(5);
/// Keys of each kind.
const KEYS: u64 = 6;
const ACCOUNTS: u64 = 8;

/// Where clients record what they ask and are told.
pub(crate) type Memory = Recorder<TxnHistory>;

/// Clients that work until they are told to stop.
pub(crate) struct Clients {
    recorder: Arc<Memory>,
    stop: Arc<AtomicBool>,
    rust: JoinHandle<anyhow::Result<()>>,
    python: Child,
    python_history: PathBuf,
    prefix: String,
    /// Operations that the tasks of the Rust client have done.
    done: Arc<AtomicU64>,
    /// Calls that they have asked about again.
    again: Arc<AtomicU64>,
    /// Keys that they have set once.
    unique: Arc<Mutex<Vec<String>>>,
}

/// The records of all clients of a round.
pub(crate) struct Seen {
    pub(crate) history: TxnHistory,
    /// Calls of sessions whose outcome was unknown after the first try.
    pub(crate) asked_again: u64,
}

/// The keys of the bank.
pub(crate) fn accounts(prefix: &str) -> Vec<Bytes> {
    (0..ACCOUNTS).map(|number| Bytes::from(account(prefix, number))).collect()
}

fn account(prefix: &str, number: u64) -> String {
    format!("{prefix}account:{number}")
}

impl Clients {
    /// Starts the clients. All keys begin with `prefix` and are absent.
    pub(crate) fn start(
        addresses: &[String],
        engine: &Engine,
        prefix: &str,
        work: &Path,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let python_history = work.join("python.jsonl");
        let python = python(addresses, engine, prefix, &python_history, seed)?;
        let recorder = Arc::new(Recorder::with_clock(TxnHistory::default(), monotonic_nanos));
        let stop = Arc::new(AtomicBool::new(false));
        let (done, again) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let unique = Arc::new(Mutex::new(Vec::new()));
        let all = World {
            recorder: Arc::clone(&recorder),
            stop: Arc::clone(&stop),
            done: Arc::clone(&done),
            again: Arc::clone(&again),
            unique: Arc::clone(&unique),
            prefix: prefix.to_owned(),
            transactions: engine.transactions.is_some(),
            sessions: engine.sessions,
        };
        let places = addresses.to_vec();
        let rust = std::thread::spawn(move || {
            work_all(all, &places, seed).inspect_err(|error| eprintln!("a client: {error:#}"))
        });
        let prefix = prefix.to_owned();
        Ok(Self { recorder, stop, rust, python, python_history, prefix, done, again, unique })
    }

    /// Lets them work for a while, on a crowded machine for longer.
    pub(crate) fn work(&self) -> anyhow::Result<()> {
        let (begin, done) = (Instant::now(), self.done.load(Ordering::Relaxed));
        std::thread::sleep(CALM);
        while self.done.load(Ordering::Relaxed) < done + CALM_OPERATIONS {
            ensure!(!self.rust.is_finished(), "a client has ended, and says why above");
            ensure!(begin.elapsed() < WORK_MAX, "the clients get nothing done");
            std::thread::sleep(PACE);
        }
        Ok(())
    }

    /// Where others may record what they do beside them.
    pub(crate) fn recorder(&self) -> Arc<Memory> {
        Arc::clone(&self.recorder)
    }

    /// Stops them, reads every key through every node, and returns all records. `addresses` are
    /// those of the present nodes.
    pub(crate) fn finish(self, addresses: &[String]) -> anyhow::Result<Seen> {
        let Self {
            recorder, stop, rust, mut python, python_history, prefix, again, unique, ..
        } = self;
        stop.store(true, Ordering::Relaxed);
        drop(python.stdin.take());
        let output = python.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the Python clients failed: {said}");
        let theirs_again = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>();
        let theirs_again = theirs_again.context("the Python clients say how often they asked")?;
        rust.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        let theirs = read_txn_history_file(&python_history)?;
        std::fs::remove_file(&python_history)?;
        let mut keys = std::mem::take(&mut *unique.lock().unwrap_or_else(PoisonError::into_inner));
        for kind in ["register", "counter", "list"] {
            keys.extend((0..KEYS).map(|number| format!("{prefix}{kind}:{number}")));
        }
        let written = theirs.operations.iter().map(|operation| &operation.key);
        let written = written.filter_map(|key| std::str::from_utf8(&key.0).ok());
        keys.extend(written.filter(|key| key.contains("unique:")).map(str::to_owned));
        read_all(&recorder, addresses, &keys)?;
        let mut history = Arc::into_inner(recorder).context("every client has ended")?.finish()?;
        history.operations.extend(theirs.operations);
        history.transactions.extend(theirs.transactions);
        Ok(Seen { history, asked_again: again.load(Ordering::Relaxed) + theirs_again })
    }
}

/// `CLOCK_MONOTONIC`, which is also Python's `time.monotonic_ns`: histories of both fit together.
fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Starts the clients in Python, the one that `tools/setup` put beside what cargo builds.
fn python(
    addresses: &[String],
    engine: &Engine,
    prefix: &str,
    history: &Path,
    seed: u64,
) -> anyhow::Result<Child> {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/clients.py");
    let own = std::env::current_exe().context("a program has a path")?;
    let mut found = own.ancestors().map(|directory| directory.join("venv/bin/python"));
    let python = found.find(|python| python.exists());
    let python = python.context("there is no Python with redis-py here; run tools/setup")?;
    let transactions = if engine.transactions.is_some() { "transactions" } else { "keys" };
    let sessions = if engine.sessions { "sessions" } else { "plain" };
    Command::new(python)
        .args(["-B", SCRIPT])
        .arg(history)
        .args([prefix, transactions, sessions, &seed.to_string()])
        .args([PYTHON_FIRST, PYTHON_THREADS, KEYS, ACCOUNTS].map(|number| number.to_string()))
        .args(addresses)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the Python clients")
}

/// Every key of the history through every node, so that a write that went missing shows.
fn read_all(recorder: &Memory, addresses: &[String], keys: &[String]) -> anyhow::Result<()> {
    for address in addresses {
        let mut connection = crate::resp::Connection::open(address, Duration::from_secs(10))?;
        for key in keys {
            let invocation = recorder.invoke(READER, key.as_str(), Action::Get);
            match connection.ask(&["GET", key])? {
                crate::resp::Reply::Bulk(value) => {
                    recorder.done(invocation, Answer::Value(value.map(Bytes)));
                }
                // The cluster is whole again, but a busy machine may still pause a node.
                crate::resp::Reply::Error(_) => recorder.refused(invocation),
                other => bail!("GET {key} answers {other:?}"),
            }
        }
    }
    Ok(())
}

/// The state that the tasks share.
#[derive(Clone)]
struct World {
    recorder: Arc<Memory>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    again: Arc<AtomicU64>,
    unique: Arc<Mutex<Vec<String>>>,
    prefix: String,
    transactions: bool,
    sessions: bool,
}

fn work_all(world: World, addresses: &[String], seed: u64) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut tasks = Vec::new();
        for process in 0..TASKS {
            let task = Task {
                world: world.clone(),
                process,
                random: Rng::new(seed ^ ((process + 1) << 32)),
                unique: 0,
            };
            tasks.push(tokio::task::spawn_local(task.work(addresses.to_vec())));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

struct Task {
    world: World,
    process: u64,
    random: Rng,
    unique: u64,
}

impl Task {
    async fn work(mut self, addresses: Vec<String>) -> anyhow::Result<()> {
        // Few attempts, so that the history shows calls that the client gives up. With a single
        // attempt, this code makes every further one.
        let attempts = if self.process.is_multiple_of(2) { 1 } else { 6 };
        let client = Client::builder(&addresses)
            .timeout(Duration::from_secs(1))
            .connect_timeout(Duration::from_millis(300))
            .patience(Duration::from_secs(1))
            .sessions(self.world.sessions)
            .attempts(attempts)
            .pool_size(2);
        let begin = Instant::now();
        let client = loop {
            match client.clone().connect().await {
                Ok(client) => break client,
                // A crowded machine may keep a node waiting for longer than this client waits.
                Err(error) if is_refusal(&error) && begin.elapsed() < WORK_MAX => {
                    tokio::time::sleep(PACE).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        while !self.world.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(PACE).await;
            if self.world.transactions && self.random.chance(1, 2) {
                self.transact(&client).await?;
            } else {
                self.operate(&client).await?;
            }
        }
        Ok(())
    }

    fn name(&mut self) -> String {
        self.unique += 1;
        format!("{}.{}", self.process, self.unique)
    }

    async fn operate(&mut self, client: &Client) -> anyhow::Result<()> {
        let number = self.random.below(KEYS);
        let name = self.name();
        let value = || Bytes::from(name.as_str());
        let (kind, action) = match self.random.below(20) {
            0..3 => ("register", Action::Get),
            3..6 => ("register", Action::Set(value())),
            6 => ("register", Action::GetSet(value())),
            7 => ("register", Action::SetNx(value())),
            8..11 => ("counter", Action::Incr(1)),
            11..13 => ("counter", Action::Get),
            13..15 => ("list", Action::Append(Bytes(list_argument(name.as_bytes())))),
            15..17 => ("list", Action::Get),
            _ => ("unique", Action::Set(value())),
        };
        let number = if kind == "unique" { name.clone() } else { number.to_string() };
        let key = format!("{}{kind}:{number}", self.world.prefix);
        if kind == "unique" {
            self.world.unique.lock().unwrap_or_else(PoisonError::into_inner).push(key.clone());
        }
        let recorder = &self.world.recorder;
        let invocation = recorder.invoke(self.process, key.as_str(), action.clone());
        let key_bytes = key.as_bytes();
        let answer = match &action {
            Action::Get => client.get(&key).await.map(|value| Answer::Value(value.map(Bytes))),
            Action::Set(value) => self.call(client, &[b"SET", key_bytes, &value.0]).await,
            Action::Incr(_) => self.call(client, &[b"INCR", key_bytes]).await,
            Action::GetSet(value) => self.call(client, &[b"GETSET", key_bytes, &value.0]).await,
            Action::SetNx(value) => self.call(client, &[b"SETNX", key_bytes, &value.0]).await,
            Action::Append(value) => self.call(client, &[b"APPEND", key_bytes, &value.0]).await,
            Action::Del | Action::Cas { .. } | Action::Command(_) => {
                unreachable!("nobody draws it")
            }
        };
        match answer {
            Ok(answer) => {
                recorder.done(invocation, answer);
                self.world.done.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.is_unknown() => recorder.unknown(invocation),
            Err(error) if is_refusal(&error) => recorder.refused(invocation),
            Err(error) => bail!("{action} of {key}: {error}"),
        }
        Ok(())
    }

    /// A session's call, asked about again as long as its outcome is unknown.
    async fn call(&self, client: &Client, words: &[&[u8]]) -> Result<Answer, Error> {
        let mut reply = client.command(words).await;
        let (begin, mut asked) = (Instant::now(), false);
        while let Err(Error::Unknown { call: Some(call), reason }) = reply {
            if begin.elapsed() > ASKING_MAX {
                return Err(Error::Unknown { call: Some(call), reason });
            }
            if !std::mem::replace(&mut asked, true) {
                self.world.again.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(PACE).await;
            reply = client.ask_again(*call).await;
        }
        Ok(match reply? {
            Reply::Status(text) if text == "OK" => Answer::Ok,
            Reply::Integer(number) => Answer::Integer(number),
            Reply::Bulk(value) => Answer::Value(Some(Bytes(value))),
            Reply::Null => Answer::Value(None),
            other => Answer::Error(format!("{other:?}")),
        })
    }

    async fn transact(&mut self, client: &Client) -> anyhow::Result<()> {
        let (name, prefix) = (self.name(), self.world.prefix.clone());
        let (source, target) = (self.random.below(ACCOUNTS), self.random.below(ACCOUNTS));
        let choice = self.random.below(10);
        let amount = 1 + self.random.below(9) as i64;
        let recorder = Arc::clone(&self.world.recorder);
        let open = recorder.begin(self.process);
        let ops = std::cell::RefCell::new(Vec::new());
        let done = client
            .txn(async |t| {
                // The effects of an earlier attempt were undone.
                ops.borrow_mut().clear();
                if choice < 3 || source == target {
                    let keys: Vec<String> = (0..ACCOUNTS).map(|n| account(&prefix, n)).collect();
                    let values = t.mget(&keys).await?;
                    let reads = keys.into_iter().zip(values);
                    ops.borrow_mut().extend(reads.map(|(k, v)| TxnOp::read(k, v.map(Bytes))));
                } else if choice < 8 {
                    for (number, by) in [(source, -amount), (target, amount)] {
                        let key = account(&prefix, number);
                        let value = t.get(&key).await?.map(Bytes);
                        let held = value.as_ref().and_then(balance).unwrap_or(0);
                        let next = format!("{}:{name}.{number}", held + by);
                        t.set(&key, next.clone());
                        let mut ops = ops.borrow_mut();
                        ops.push(TxnOp::read(key.clone(), value));
                        ops.push(TxnOp::write(key, Some(Bytes::from(next))));
                        recorder.intend(&open, ops.clone());
                    }
                } else {
                    for number in [source, target] {
                        let key = format!("{prefix}chain:{number}");
                        let value = t.get(&key).await?;
                        let list = split_list(value.as_deref());
                        let list = list.ok_or_else(|| Error::aborted("not a list"))?;
                        let mut next = value.unwrap_or_default();
                        next.extend(list_argument(name.as_bytes()));
                        t.set(&key, next);
                        let mut ops = ops.borrow_mut();
                        ops.push(TxnOp::read_list(key.clone(), list));
                        ops.push(TxnOp::append(key, name.as_str()));
                        recorder.intend(&open, ops.clone());
                    }
                }
                recorder.intend(&open, ops.borrow().clone());
                Ok(())
            })
            .await;
        match done {
            Ok(()) => recorder.committed(open, None, ops.into_inner()),
            Err(error) if error.is_unknown() => recorder.undecided(open, None),
            Err(error) if is_refusal(&error) => recorder.aborted(open),
            Err(error) => bail!("a transaction: {error}"),
        }
        Ok(())
    }
}

/// Errors by which the client says that nothing has happened, for a passing reason.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoNode { .. }
            | Error::TryAgain { .. }
            | Error::Conflict { .. }
            | Error::PoolExhausted { .. }
            | Error::Restart { .. }
    ) || matches!(error, Error::Server { code, .. } if code == "MISCONF")
}
