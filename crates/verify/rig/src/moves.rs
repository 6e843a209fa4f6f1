//! Keys that move: clients at several nodes change the same keys in transactions, each at a node of its
//! own, so the keys go from node to node; and a node that has a part in that is killed, cut off or
//! replaced. All keys have one hash tag, hence one group: a node of it is asked about every move, and
//! with more nodes than copies there are others, which have the keys only while they own them.
//!
//! What the clients see is judged with the rest of the round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use quorate_check::{Bytes, TxnOp};
use quorate_machine::Rng;
use quorate_types::placement::{group, shard_of};
use quorate_types::{NodeId, NodeSet};

use crate::clients::Memory;
use crate::faults::{Field, PAST_LEASE, pause};
use crate::resp::{Connection, Reply};

/// The first process of these clients in a history; one for each node.
const FIRST: u64 = 200;
const KEYS: u64 = 6;
/// The pause between two transactions of one client.
const PACE: Duration = Duration::from_millis(2);
/// Longer than a node itself gives up on an op.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Transactions after which a client's node owns some of the keys.
const WARM: u64 = 20;
/// The longest that a crowded machine may take for that, or until every node reads every key.
const WARM_MAX: Duration = Duration::from_secs(60);

pub(crate) fn kill_owner(field: &mut Field<'_>) -> anyhow::Result<()> {
    let (owner, rest) = field.apart();
    let mut movers = Movers::start(field, &[owner])?;
    movers.add(field, &rest);
    let at_most = field.random.below(20);
    pause(Duration::from_millis(at_most));
    field.cluster.kill(owner)?;
    pause(PAST_LEASE);
    field.cluster.launch(field.net, owner)?;
    movers.finish(field)
}

pub(crate) fn kill_directory(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.of_group();
    let movers = Movers::start(field, &field.others(&[node]))?;
    field.cluster.kill(node)?;
    pause(PAST_LEASE);
    field.cluster.launch(field.net, node)?;
    movers.finish(field)
}

pub(crate) fn kill_requester(field: &mut Field<'_>) -> anyhow::Result<()> {
    let (requester, rest) = field.apart();
    let mut movers = Movers::start(field, &rest)?;
    movers.add(field, &[requester]);
    pause(Duration::from_millis(field.random.below(10)));
    field.cluster.kill(requester)?;
    pause(PAST_LEASE);
    field.cluster.launch(field.net, requester)?;
    movers.finish(field)
}

pub(crate) fn cut_link(field: &mut Field<'_>) -> anyhow::Result<()> {
    let (one, _) = field.apart();
    let other = field.of_group();
    let movers = Movers::start(field, &field.others(&[]))?;
    let [one, other] = [one, other].map(|index| field.cluster.nodes[index].slot);
    field.net.cut_both(one, other)?;
    pause(PAST_LEASE * 2);
    field.net.heal()?;
    movers.finish(field)
}

pub(crate) fn replace_busy(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.of_group();
    let movers = Movers::start(field, &field.others(&[node]))?;
    field.cluster.kill(node)?;
    field.cluster.replace(field.net, node)?;
    movers.finish(field)
}

pub(crate) fn exchange(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.of_group();
    let movers = Movers::start(field, &field.others(&[]))?;
    field.cluster.exchange(field.net, node)?;
    movers.finish(field)
}

impl Field<'_> {
    /// The key of this number.
    fn moved(&self, number: u64) -> String {
        format!("{{{}moved}}{number}", self.prefix)
    }

    /// The nodes, by index, that are the group of the keys.
    fn group(&self) -> Vec<usize> {
        let nodes = &self.cluster.nodes;
        let all: NodeSet = nodes.iter().map(|node| NodeId(node.id)).collect();
        let group = group(shard_of(self.moved(0).as_bytes()), all, 0);
        (0..nodes.len()).filter(|index| group.contains(&NodeId(nodes[*index].id))).collect()
    }

    /// A node of the group.
    fn of_group(&mut self) -> usize {
        let group = self.group();
        group[self.random.below(group.len() as u64) as usize]
    }

    /// A node, and the others: in a cluster of more nodes than copies mostly one outside the group.
    fn apart(&mut self) -> (usize, Vec<usize>) {
        let outside = self.others(&self.group());
        let from =
            if outside.is_empty() || self.random.chance(1, 4) { self.others(&[]) } else { outside };
        let one = from[self.random.below(from.len() as u64) as usize];
        (one, self.others(&[one]))
    }

    /// All nodes but these.
    fn others(&self, than: &[usize]) -> Vec<usize> {
        (0..self.cluster.nodes.len()).filter(|index| !than.contains(index)).collect()
    }
}

/// Clients at work.
struct Movers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Movers {
    /// Starts a client at each of these nodes, and waits until they get something done.
    fn start(field: &mut Field<'_>, nodes: &[usize]) -> anyhow::Result<Self> {
        let (stop, wrong) = Default::default();
        let mut movers = Self { stop, threads: Vec::new(), wrong };
        let done = movers.add(field, nodes);
        let begin = Instant::now();
        while done.load(Ordering::Relaxed) < WARM * nodes.len() as u64 {
            ensure!(begin.elapsed() < WARM_MAX, "the clients that move keys get nothing done");
            pause(PACE);
        }
        Ok(movers)
    }

    /// Starts a client at each of these nodes. Returns the number of their transactions.
    fn add(&mut self, field: &mut Field<'_>, nodes: &[usize]) -> Arc<AtomicU64> {
        let done = Arc::new(AtomicU64::new(0));
        let addresses = field.cluster.clients();
        for &index in nodes {
            let mover = Mover {
                recorder: Arc::clone(&field.recorder),
                address: addresses[index].clone(),
                keys: (0..KEYS).map(|number| field.moved(number)).collect(),
                process: FIRST + index as u64,
                random: Rng::new(field.random.next_u64()),
                stop: Arc::clone(&self.stop),
                done: Arc::clone(&done),
            };
            let wrong = Arc::clone(&self.wrong);
            self.threads.push(std::thread::spawn(move || {
                if let Err(error) = mover.work() {
                    let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    wrong.push(error.to_string());
                }
            }));
        }
        done
    }

    /// Waits until every node serves, stops the clients, and reads all keys at every node.
    fn finish(self, field: &mut Field<'_>) -> anyhow::Result<()> {
        field.cluster.converge()?;
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
        }
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(wrong.is_empty(), "clients that move keys: {wrong:?}");
        let keys: Vec<String> = (0..KEYS).map(|number| field.moved(number)).collect();
        let begin = Instant::now();
        for address in field.cluster.clients() {
            let mut connection = Connection::open(&address, PATIENCE)?;
            while !transact(&field.recorder, &mut connection, FIRST, &keys, None)? {
                ensure!(begin.elapsed() < WARM_MAX, "{address} doesn't say what its keys are");
                connection = Connection::open(&address, PATIENCE)?;
            }
        }
        Ok(())
    }
}

/// A client of one node.
struct Mover {
    recorder: Arc<Memory>,
    address: String,
    keys: Vec<String>,
    process: u64,
    random: Rng,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Mover {
    fn work(mut self) -> anyhow::Result<()> {
        let (mut connection, mut transactions) = (None, 0_u64);
        while !self.stop.load(Ordering::Relaxed) {
            pause(PACE);
            if connection.is_none() {
                connection = Connection::open(&self.address, PATIENCE).ok();
            }
            let Some(open) = &mut connection else { continue };
            let first = self.random.below(KEYS) as usize;
            let count = 1 + self.random.below(3) as usize;
            let keys = self.keys.iter().cycle().skip(first).take(count).cloned();
            let keys: Vec<String> = keys.collect();
            transactions += 1;
            let value = format!("{}.{transactions}", self.process);
            if transact(&self.recorder, open, self.process, &keys, Some(&value))? {
                self.done.fetch_add(1, Ordering::Relaxed);
            } else {
                // Replies that were waited for in vain may come yet.
                connection = None;
            }
        }
        Ok(())
    }
}

/// Reads keys in one block, and writes to them what comes with it. Whether it is known to have
/// happened.
fn transact(
    recorder: &Memory,
    connection: &mut Connection,
    process: u64,
    keys: &[String],
    write: Option<&str>,
) -> anyhow::Result<bool> {
    let open = recorder.begin(process);
    let values = keys.iter().enumerate();
    let values = values.filter_map(|(at, key)| Some((key, format!("{}.{at}", write?))));
    let values: Vec<(&String, String)> = values.collect();
    let written = values
        .iter()
        .map(|(key, value)| TxnOp::write((*key).clone(), Some(Bytes::from(value.as_str()))));
    let written: Vec<TxnOp> = written.collect();
    recorder.intend(&open, written.clone());
    let mut asked: Vec<Vec<&str>> = vec![vec!["MULTI"]];
    asked.extend(keys.iter().map(|key| vec!["GET", key]));
    asked.extend(values.iter().map(|(key, value)| vec!["SET", key, value]));
    asked.push(vec!["EXEC"]);
    // In one go: the last reply is that of EXEC, and without it nobody knows.
    let mut last = Ok(Reply::Bulk(None));
    for words in &asked {
        last = last.and_then(|_| connection.send(words).map(|()| Reply::Bulk(None)));
    }
    for _ in &asked {
        last = last.and_then(|_| connection.receive());
    }
    let replies = match last {
        Ok(Reply::Array(replies)) => replies,
        Ok(Reply::Error(text)) if !text.starts_with("UNKNOWN") => {
            recorder.aborted(open);
            return Ok(false);
        }
        Ok(Reply::Error(_)) | Err(_) => {
            recorder.undecided(open, None);
            return Ok(false);
        }
        Ok(other) => bail!("EXEC answers {other:?}"),
    };
    let mut ops = Vec::new();
    for (key, reply) in keys.iter().zip(&replies) {
        let Reply::Bulk(value) = reply else { bail!("GET in a block answers {reply:?}") };
        ops.push(TxnOp::read(key.clone(), value.clone().map(Bytes)));
    }
    let set = &replies[keys.len().min(replies.len())..];
    let is_set = set.iter().all(|reply| *reply == Reply::Status("OK".to_owned()));
    ensure!(is_set && set.len() == written.len(), "SET in a block answers {set:?}");
    ops.extend(written);
    recorder.committed(open, None, ops);
    Ok(true)
}
