//! Clients of collections and channels, beside those whose histories are judged: a list is a queue
//! with consumers that wait, a hash counts, a set grows, and messages go to subscribers. They repeat
//! nothing, and connect anew when a connection breaks.
//!
//! Whatever fails: an element goes to one consumer at most, and is there, or with one, or has gone
//! with an answer that was lost; what was counted and added stays; a subscriber gets the messages of a
//! publisher in order and none twice, and none of a channel that it doesn't listen to; and once all
//! nodes serve, each of them knows how many listen, and reaches them all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use quorate_check::{Bytes, Queues};

use crate::engines::Engine;
use crate::resp::{Connection, Reply};

const PRODUCERS: usize = 2;
const CONSUMERS: usize = 4;
const SUBSCRIBERS: usize = 4;
const PUBLISHERS: usize = 2;
/// The pause between two requests of one client.
const PACE: Duration = Duration::from_millis(8);
/// Seconds that a pop waits for an element, as its argument.
const WAIT: &str = "0.5";
/// Longest that an answer or a message may take before a client connects anew.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest that the counts of subscribers may take to be right once all nodes serve.
const COUNTED_MAX: Duration = Duration::from_secs(30);

/// Clients that work until they are told to stop.
pub(crate) struct Workers {
    stop: Arc<AtomicBool>,
    /// The subscribers go on until what they have to hear is published.
    silence: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    workers: Vec<JoinHandle<()>>,
    subscribers: Vec<JoinHandle<()>>,
    keys: Keys,
}

/// What the clients of a round saw.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    pub(crate) anomalies: Vec<String>,
    queues: Queues,
    /// Increments that were acknowledged, and those that may have been made.
    counted: u64,
    perhaps_counted: u64,
    /// Members whose addition was acknowledged.
    added: BTreeSet<Vec<u8>>,
    /// The last messages that each subscriber has heard.
    last_heard: BTreeMap<usize, BTreeSet<String>>,
}

/// The names of a round.
#[derive(Clone)]
struct Keys {
    /// The lists that elements are in.
    queues: Vec<String>,
    tally: String,
    members: String,
    channel: String,
    /// A channel that nobody listens to.
    unheard: String,
}

/// The end of a request.
enum End {
    Done(Reply),
    Refused,
    /// Nobody knows whether it happened.
    Unknown,
}

/// A client of any node: of the next one after a failure.
struct Client {
    addresses: Vec<String>,
    at: usize,
    connection: Option<Connection>,
    /// Connections that it has made.
    lives: usize,
}

impl Client {
    fn new(addresses: &[String], number: usize) -> Self {
        let at = number % addresses.len();
        Self { addresses: addresses.to_vec(), at, connection: None, lives: 0 }
    }

    /// Its connection; `None` if the node can't be reached, and then the next one is for the next try.
    fn connection(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            self.connection = Connection::open(&self.addresses[self.at], PATIENCE).ok();
            self.lives += 1;
        }
        if self.connection.is_none() {
            self.move_on();
        }
        self.connection.as_mut()
    }

    fn move_on(&mut self) {
        self.connection = None;
        self.at = (self.at + 1) % self.addresses.len();
    }

    fn ask(&mut self, words: &[&str]) -> End {
        let Some(connection) = self.connection() else { return End::Refused };
        match connection.ask(words) {
            Ok(Reply::Error(text)) if text.starts_with("UNKNOWN") => End::Unknown,
            Ok(Reply::Error(text)) => {
                // A node that doesn't serve says so; others may.
                if text.starts_with("CLUSTERDOWN") {
                    self.move_on();
                }
                End::Refused
            }
            Ok(reply) => End::Done(reply),
            Err(_) => {
                self.move_on();
                End::Unknown
            }
        }
    }
}

impl Workers {
    /// Starts the clients. All keys and channels begin with `prefix` and are new.
    pub(crate) fn start(addresses: &[String], engine: &Engine, prefix: &str) -> Self {
        let name = |what: &str| format!("{prefix}{what}");
        // Where commands may have several keys, elements are moved between two lists.
        let lists: &[&str] =
            if engine.transactions.is_some() { &["jobs", "moved"] } else { &["jobs"] };
        let keys = Keys {
            queues: lists.iter().map(|list| name(list)).collect(),
            tally: name("tally"),
            members: name("members"),
            channel: name("channel"),
            unheard: name("unheard"),
        };
        let (stop, silence) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let spawn = |role: fn(&Keys, &Mutex<Seen>, Client, usize, &AtomicBool),
                     number: usize,
                     stop: &Arc<AtomicBool>| {
            let (keys, seen, stop) = (keys.clone(), Arc::clone(&seen), Arc::clone(stop));
            let client = Client::new(addresses, number);
            std::thread::spawn(move || role(&keys, &seen, client, number, &stop))
        };
        let subscribers = (0..SUBSCRIBERS).map(|number| spawn(subscribe, number, &silence));
        let subscribers = subscribers.collect();
        let workers = (0..PRODUCERS)
            .map(|number| spawn(produce, number, &stop))
            .chain((0..CONSUMERS).map(|number| spawn(consume, number, &stop)))
            .chain((0..PUBLISHERS).map(|number| spawn(publish, number, &stop)))
            .collect();
        Self { stop, silence, seen, workers, subscribers, keys }
    }

    /// Stops them and judges what they saw. `addresses` are those of the present nodes, which serve.
    pub(crate) fn finish(self, addresses: &[String]) -> anyhow::Result<Seen> {
        let Self { stop, silence, seen, workers, subscribers, keys } = self;
        stop.store(true, Ordering::Relaxed);
        join(workers)?;
        let mut wrong = is_counted(addresses, &keys, SUBSCRIBERS as i64).err();
        wrong = wrong.or_else(|| are_reached(addresses, &keys, &seen).err());
        silence.store(true, Ordering::Relaxed);
        join(subscribers)?;
        wrong = wrong.or_else(|| is_counted(addresses, &keys, 0).err());
        let mut seen = std::mem::take(&mut *lock(&seen));
        seen.anomalies.extend(wrong);
        for address in addresses {
            let wrong = seen.check_left(address, &keys)?;
            seen.anomalies.extend(wrong.map(|text| format!("through {address}: {text}")));
        }
        Ok(seen)
    }
}

impl Seen {
    /// What is wrong with what the keys hold, asked through this node.
    fn check_left(&self, address: &str, keys: &Keys) -> anyhow::Result<Option<String>> {
        let mut left = Vec::new();
        for list in &keys.queues {
            left.extend(items(address, &["LRANGE", list, "0", "-1"])?.into_iter().map(Bytes));
        }
        if let Err(wrong) = self.queues.check_left(&left) {
            return Ok(Some(wrong));
        }
        let members: BTreeSet<Vec<u8>> =
            items(address, &["SMEMBERS", &keys.members])?.into_iter().collect();
        if let Some(lost) = self.added.difference(&members).next() {
            return Ok(Some(format!("{} was added and is gone", lost.escape_ascii())));
        }
        let held = items(address, &["HVALS", &keys.tally])?;
        let held = held.first().map_or("0".into(), |count| String::from_utf8_lossy(count));
        let held: u64 = held.parse().context("it counts")?;
        let (least, most) = (self.counted, self.counted + self.perhaps_counted);
        let is_right = (least..=most).contains(&held);
        Ok((!is_right).then(|| format!("{held} were counted, not {least} to {most}")))
    }

    fn count(&mut self, end: &End) {
        match end {
            End::Done(_) => self.done += 1,
            End::Refused => self.refused += 1,
            End::Unknown => self.unknown += 1,
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(threads: Vec<JoinHandle<()>>) -> anyhow::Result<()> {
    let ended = threads.into_iter().map(|thread| thread.join());
    ended.collect::<Result<(), _>>().map_err(|_| anyhow::anyhow!("a client panicked"))
}

/// Repeats a request that changes nothing until a node that serves has answered it.
fn ask_surely(address: &str, words: &[&str]) -> anyhow::Result<Reply> {
    let deadline = Instant::now() + COUNTED_MAX;
    loop {
        let asked = Connection::open(address, PATIENCE).and_then(|mut one| one.ask(words));
        match asked {
            Ok(Reply::Error(_)) | Err(_) if Instant::now() < deadline => std::thread::sleep(PACE),
            Ok(reply) => return Ok(reply),
            Err(error) => return Err(error).with_context(|| format!("{words:?} at {address}")),
        }
    }
}

fn items(address: &str, words: &[&str]) -> anyhow::Result<Vec<Vec<u8>>> {
    let reply = ask_surely(address, words)?;
    let Reply::Array(items) = reply else { bail!("{words:?} answers {reply:?}") };
    let bytes = |item| match item {
        Reply::Bulk(Some(bytes)) => Ok(bytes),
        other => bail!("{words:?} has {other:?} in its answer"),
    };
    items.into_iter().map(bytes).collect()
}

/// Whether every node says, sooner or later, that so many listen.
fn is_counted(addresses: &[String], keys: &Keys, count: i64) -> Result<(), String> {
    let deadline = Instant::now() + COUNTED_MAX;
    for address in addresses {
        loop {
            let reply = ask_surely(address, &["PUBSUB", "NUMSUB", &keys.channel]);
            let reply = reply.map_err(|error| error.to_string())?;
            let Reply::Array(pair) = &reply else { return Err(format!("NUMSUB: {reply:?}")) };
            if pair.get(1) == Some(&Reply::Integer(count)) {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("{address} counts {pair:?}, and {count} listen"));
            }
            std::thread::sleep(PACE);
        }
    }
    Ok(())
}

/// Whether a message from each node reaches every subscriber. One may get lost, with a connection that
/// is about to be found broken.
fn are_reached(addresses: &[String], keys: &Keys, seen: &Mutex<Seen>) -> Result<(), String> {
    let deadline = Instant::now() + COUNTED_MAX;
    for address in addresses {
        let text = format!("last from {address}");
        loop {
            let asked = ask_surely(address, &["PUBLISH", &keys.channel, &text]);
            asked.map_err(|error| error.to_string())?;
            std::thread::sleep(PACE);
            let heard = &lock(seen).last_heard;
            let count = heard.values().filter(|heard| heard.contains(&text)).count();
            if count == SUBSCRIBERS {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("{count} of {SUBSCRIBERS} subscribers hear {address}"));
            }
        }
    }
    Ok(())
}

/// When a client waited for an answer. Nothing that was answered may ever be lost here, so it does not matter.
const AT_ANY_TIME: (u64, u64) = (0, 0);

/// Puts elements into the queue, counts them, and adds them to the set.
fn produce(keys: &Keys, seen: &Mutex<Seen>, mut client: Client, number: usize, stop: &AtomicBool) {
    for unique in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(PACE);
        let element = format!("e{number}.{unique}");
        let end = client.ask(&["RPUSH", &keys.queues[0], &element]);
        let mut all = lock(seen);
        all.count(&end);
        if !matches!(end, End::Refused) {
            let acknowledged = matches!(end, End::Done(_)).then_some(AT_ANY_TIME);
            all.queues.put(element.as_str().into(), acknowledged);
        }
        drop(all);
        let end = client.ask(&["HINCRBY", &keys.tally, "count", "1"]);
        let mut all = lock(seen);
        all.count(&end);
        match end {
            End::Done(_) => all.counted += 1,
            End::Unknown => all.perhaps_counted += 1,
            End::Refused => {}
        }
        drop(all);
        let end = client.ask(&["SADD", &keys.members, &element]);
        let mut all = lock(seen);
        all.count(&end);
        if let End::Done(_) = end {
            all.added.insert(element.into_bytes());
        }
    }
}

/// Takes elements, and waits for them; every second consumer moves some, to the other list where
/// there are two.
fn consume(keys: &Keys, seen: &Mutex<Seen>, mut client: Client, number: usize, stop: &AtomicBool) {
    let (first, last) = (&*keys.queues[0], keys.queues[keys.queues.len() - 1].as_str());
    for turn in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let moves = number % 2 == 1 && turn % 4 == 0;
        let end = if moves {
            client.ask(&["BLMOVE", first, last, "LEFT", "RIGHT", WAIT])
        } else {
            let lists = keys.queues.iter().map(String::as_str);
            let words: Vec<&str> = ["BLPOP"].into_iter().chain(lists).chain([WAIT]).collect();
            client.ask(&words)
        };
        let mut all = lock(seen);
        all.count(&end);
        match end {
            _ if moves => {}
            End::Refused => {}
            End::Unknown => all.queues.lost_answer(),
            // An array of nothing: nothing came while it waited.
            End::Done(Reply::Array(pair)) => match pair.as_slice() {
                [] => {}
                [_, Reply::Bulk(Some(element))] => {
                    all.queues.got(Bytes(element.clone()), AT_ANY_TIME);
                }
                _ => all.anomalies.push(format!("BLPOP answers {pair:?}")),
            },
            End::Done(other) => all.anomalies.push(format!("BLPOP answers {other:?}")),
        }
        drop(all);
        if client.connection.is_none() {
            std::thread::sleep(PACE);
        }
    }
}

/// Publishes numbers, each connection from 0 on, some where nobody listens.
fn publish(
    keys: &Keys,
    seen: &Mutex<Seen>,
    mut client: Client,
    publisher: usize,
    stop: &AtomicBool,
) {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PACE);
        if client.connection().is_none() {
            continue;
        }
        let text = format!("{publisher}.{}:{number}", client.lives);
        let channel = if number % 4 == 3 { &keys.unheard } else { &keys.channel };
        number += 1;
        let end = client.ask(&["PUBLISH", channel, &text]);
        lock(seen).count(&end);
    }
}

/// Listens, and to the same channel again after a connection has broken.
fn subscribe(
    keys: &Keys,
    seen: &Mutex<Seen>,
    mut client: Client,
    number: usize,
    stop: &AtomicBool,
) {
    // The last number of each connection of a publisher.
    let mut heard: BTreeMap<String, u64> = BTreeMap::new();
    let mut listens = false;
    while !stop.load(Ordering::Relaxed) {
        if client.connection.is_none() {
            heard.clear();
            listens = false;
            std::thread::sleep(PACE);
        }
        let Some(connection) = client.connection() else { continue };
        let received = match listens {
            true => connection.receive(),
            false => connection.ask(&["SUBSCRIBE", &keys.channel]),
        };
        let Ok(received) = received else {
            client.move_on();
            continue;
        };
        let wrong = match note(&received, keys, &mut heard) {
            Ok(Note::Listens) => {
                listens = true;
                None
            }
            Ok(Note::Message) => None,
            Ok(Note::Last(text)) => {
                lock(seen).last_heard.entry(number).or_default().insert(text);
                None
            }
            // A node that doesn't serve refuses.
            Err(_) if !listens => {
                client.move_on();
                None
            }
            Err(wrong) => Some(wrong),
        };
        lock(seen).anomalies.extend(wrong);
    }
}

/// What a subscriber was told.
enum Note {
    Listens,
    Message,
    Last(String),
}

fn note(received: &Reply, keys: &Keys, heard: &mut BTreeMap<String, u64>) -> Result<Note, String> {
    let wrong = || format!("a subscriber was told {received:?}");
    let Reply::Array(parts) = received else { return Err(wrong()) };
    let text = |part: &Reply| match part {
        Reply::Bulk(Some(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => Err(wrong()),
    };
    let [kind, channel, what] = parts.as_slice() else { return Err(wrong()) };
    if text(channel)? != keys.channel {
        return Err(wrong());
    }
    if text(kind)? == "subscribe" {
        return Ok(Note::Listens);
    }
    let message = text(what)?;
    let Some((publisher, number)) =
        message.split_once(':').filter(|_| !message.starts_with("last"))
    else {
        return Ok(Note::Last(message));
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match heard.insert(publisher.to_owned(), number) {
        Some(before) if before >= number => {
            Err(format!("{number} of publisher {publisher} came behind {before}"))
        }
        _ => Ok(Note::Message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let [tally, members, channel, unheard] = ["t", "m", "c", "u"].map(str::to_owned);
        Keys { queues: vec!["q".to_owned()], tally, members, channel, unheard }
    }

    #[test]
    fn a_subscriber_hears_its_channel_each_publisher_in_order() {
        let told = |channel: &str, text: &str| {
            let parts = ["message", channel, text].map(|part| Reply::Bulk(Some(part.into())));
            Reply::Array(parts.to_vec())
        };
        let mut heard = BTreeMap::new();
        let mut is_right = |channel, text| note(&told(channel, text), &keys(), &mut heard).is_ok();
        assert!(is_right("c", "0.1:4") && is_right("c", "0.1:7") && is_right("c", "1.1:5"));
        assert!(!is_right("c", "0.1:7"), "twice");
        assert!(!is_right("c", "1.1:3"), "out of order");
        assert!(!is_right("u", "1.1:9"), "nobody listens there");
    }
}
