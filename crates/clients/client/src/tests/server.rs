//! A network of nodes in memory, which share one small store and can be told to misbehave.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// A node's reaction to a command instead of executing it.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Answers these bytes.
    Answer(String),
    /// Executes it, and closes the connection before the answer.
    ExecuteAndClose,
    /// Closes the connection.
    Close,
    /// Closes the connection, and executes it after this time: it was still on its way.
    CloseAndExecuteAfter(Duration),
    /// Executes it, and never answers.
    ExecuteAndHang,
    /// Executes it and answers, reads so many bytes more, and closes the connection.
    AnswerAndReadOnly(usize),
    /// Executes it, and answers after this time.
    AnswerLate(Duration),
    /// Executes it and answers, and sends this after that time without a request.
    AnswerAndSay(Duration, &'static str),
    /// Executes a command of another client first, then this one.
    After(Vec<&'static str>),
}

/// Decides about each command: the node, and the words.
type Decide = Box<dyn FnMut(&str, &[&str]) -> Option<Act> + Send>;

/// The record of events, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) node: String,
    pub(super) command: String,
}

#[derive(Default)]
struct World {
    values: BTreeMap<String, String>,
    versions: BTreeMap<String, u64>,
    seen: Vec<Seen>,
    /// The commands as they were spelt.
    sent: Vec<String>,
    dials: Vec<String>,
    down: Vec<String>,
    connections: usize,
    connections_most: usize,
    decide: Option<Decide>,
    sessions: BTreeMap<u64, Session>,
    expired: Vec<u64>,
    /// The address where each key is that moves to where it is written; `None` where keys don't.
    owners: Option<BTreeMap<String, String>>,
    moves: usize,
    pin: Option<&'static str>,
}

/// The node's state of a session.
#[derive(Default)]
struct Session {
    acknowledged: u64,
    /// Each call and its answer, by number and home key: the smallest key of those named.
    records: BTreeMap<(u64, String), (String, String)>,
}

/// The network. Clones are the same network.
#[derive(Clone, Default)]
pub(super) struct Net(Arc<Mutex<World>>);

impl Net {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// From now on, this decides about each command.
    pub(super) fn decide(&self, decide: impl FnMut(&str, &[&str]) -> Option<Act> + Send + 'static) {
        self.world(|world| world.decide = Some(Box::new(decide)));
    }

    /// From now on keys move to where they are written.
    pub(super) fn move_keys(&self) {
        self.world(|world| world.owners = Some(BTreeMap::new()));
    }

    /// How often keys have moved.
    pub(super) fn moves(&self) -> usize {
        self.world(|world| world.moves)
    }

    /// Pins all keys to the node at this address, which serves them all from now on.
    pub(super) fn pin(&self, node: &'static str) {
        self.world(|world| world.pin = Some(node));
    }

    /// Lets a node refuse connections.
    pub(super) fn take_down(&self, node: &str) {
        self.world(|world| world.down.push(node.to_owned()));
    }

    pub(super) fn bring_up(&self, node: &str) {
        self.world(|world| world.down.retain(|down| down != node));
    }

    /// The commands so far, without those that introduce a connection or number others. A call
    /// whose number was left out is listed with it.
    pub(super) fn commands(&self) -> Vec<String> {
        let seen = self.world(|world| world.seen.clone());
        seen.into_iter()
            .map(|seen| seen.command)
            .filter(|command| {
                !["SELECT", "AUTH", "HELLO", "SESSION AUTO", "INFO", "PLACEMENT"]
                    .iter()
                    .any(|name| command.starts_with(name))
            })
            .collect()
    }

    /// How many commands were spelt like this.
    pub(super) fn spelt(&self, command: &str) -> usize {
        self.world(|world| world.sent.iter().filter(|sent| sent.starts_with(command)).count())
    }

    /// The nodes that executed such commands.
    pub(super) fn nodes_of(&self, command: &str) -> Vec<String> {
        let seen = self.world(|world| world.seen.clone());
        let those = seen.into_iter().filter(|seen| seen.command.starts_with(command));
        those.map(|seen| seen.node).collect()
    }

    pub(super) fn count(&self, command: &str) -> usize {
        self.nodes_of(command).len()
    }

    pub(super) fn dials(&self) -> Vec<String> {
        self.world(|world| world.dials.clone())
    }

    /// The most connections that were open at a time.
    pub(super) fn connections_most(&self) -> usize {
        self.world(|world| world.connections_most)
    }

    pub(super) fn value(&self, key: &str) -> Option<String> {
        self.world(|world| world.values.get(key).cloned())
    }

    /// Lets the leases of all sessions end.
    pub(super) fn expire(&self) {
        self.world(|world| world.expired = world.sessions.keys().copied().collect());
    }

    pub(super) fn put(&self, key: &str, value: &str) {
        self.world(|world| world.put(key, Some(value)));
    }

    /// Connects to a node.
    pub(super) async fn connect(self, address: String) -> io::Result<DuplexStream> {
        let refused = self.world(|world| {
            world.dials.push(address.clone());
            world.down.contains(&address)
        });
        if refused {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        // Smaller than some requests, so that they are sent in pieces.
        let (client, node) = tokio::io::duplex(256);
        tokio::spawn(serve(self, address, node));
        Ok(client)
    }

    fn world<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.0.lock().expect("no test panics inside"))
    }
}

impl World {
    fn put(&mut self, key: &str, value: Option<&str>) {
        *self.versions.entry(key.to_owned()).or_default() += 1;
        match value {
            Some(value) => self.values.insert(key.to_owned(), value.to_owned()),
            None => self.values.remove(key),
        };
    }

    /// Notes that a node writes a key, and answers questions about keys.
    fn place(&mut self, node: &str, words: &[&str]) -> Option<String> {
        let Some(owners) = &mut self.owners else { return None };
        let id = |node: &str| usize::from(node.as_bytes()[0] - b'a') + 1;
        match words {
            ["SET" | "INCR" | "DEL", key, ..] => {
                let node = self.pin.unwrap_or(node);
                let earlier = owners.insert((*key).to_owned(), node.to_owned());
                self.moves += usize::from(earlier.is_some_and(|earlier| earlier != node));
                None
            }
            ["SESSION", "CALL", _, _, words @ ..] => self.place(node, words),
            ["PLACEMENT", "GET", key] => {
                let node = |node: Option<&str>| {
                    node.map_or("_".to_owned(), |node| format!(":{}", id(node)))
                };
                let (owner, pin) = (node(owners.get(*key).map(|node| &**node)), node(self.pin));
                Some(format!("%2\r\n$5\r\nowner\r\n{owner}\r\n$6\r\npinned\r\n{pin}\r\n"))
            }
            ["INFO", ..] => {
                let text = format!("# Quorate\r\nnode:{}\r\n\r\n# Placement\r\n", id(node));
                Some(format!("${}\r\n{text}\r\n", text.len()))
            }
            _ => None,
        }
    }

    fn version(&self, key: &str) -> u64 {
        self.versions.get(key).copied().unwrap_or_default()
    }

    /// Executes a command that needs no connection.
    fn execute(&mut self, words: &[&str]) -> String {
        let bulk = |value: Option<&String>| match value {
            Some(value) => format!("${}\r\n{value}\r\n", value.len()),
            None => "$-1\r\n".to_owned(),
        };
        match words {
            ["SELECT" | "AUTH", ..] => "+OK\r\n".to_owned(),
            ["HELLO", ..] => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
            ["GET", key] => bulk(self.values.get(*key)),
            ["MGET", keys @ ..] => {
                let values: String = keys.iter().map(|key| bulk(self.values.get(*key))).collect();
                format!("*{}\r\n{values}", keys.len())
            }
            ["SET", key, value, ..] => {
                self.put(key, Some(value));
                "+OK\r\n".to_owned()
            }
            ["DEL", key] => {
                let existed = self.values.contains_key(*key);
                self.put(key, None);
                format!(":{}\r\n", u8::from(existed))
            }
            ["INCR", key] => {
                let number: i64 = self.values.get(*key).map_or(0, |value| value.parse().unwrap());
                self.put(key, Some(&(number + 1).to_string()));
                format!(":{}\r\n", number + 1)
            }
            ["SETRANGE", key, "0", ""] => {
                format!(":{}\r\n", self.values.get(*key).map_or(0, String::len))
            }
            other => format!("-ERR unknown command '{}'\r\n", other[0]),
        }
    }
}

/// A connection as its node sees it.
#[derive(Default)]
struct Client {
    watched: BTreeMap<String, u64>,
    queue: Option<Vec<Vec<String>>>,
    session: Option<u64>,
    numbers: Option<Numbers>,
}

/// How the commands of a connection are numbered.
struct Numbers {
    session: u64,
    next: u64,
    depth: u64,
}

impl Client {
    /// A command with its meaning spelt out: an update without a number is the call of its place.
    fn spell(&mut self, words: &[String]) -> Vec<String> {
        let Some(numbers) = &mut self.numbers else { return words.to_vec() };
        let number = numbers.next;
        numbers.next += 1;
        let plain = [
            "GET",
            "MGET",
            "SELECT",
            "HELLO",
            "AUTH",
            "WATCH",
            "UNWATCH",
            "MULTI",
            "SESSION",
            "INFO",
            "PLACEMENT",
        ];
        if plain.contains(&&*words[0]) || (self.queue.is_some() && words[0] != "EXEC") {
            return words.to_vec();
        }
        assert_eq!(self.session, Some(numbers.session), "updates are calls of one session");
        let first = (number + 1).saturating_sub(numbers.depth);
        let head = ["SESSION".to_owned(), "CALL".to_owned(), number.to_string(), first.to_string()];
        head.iter().chain(words).cloned().collect()
    }

    fn execute(&mut self, world: &mut World, words: &[&str]) -> String {
        match words {
            ["WATCH", keys @ ..] => {
                for key in keys {
                    let version = world.version(key);
                    self.watched.entry((*key).to_owned()).or_insert(version);
                }
                "+OK\r\n".to_owned()
            }
            ["SESSION", "OPEN"] => {
                let id = world.sessions.len() as u64 + 100;
                world.sessions.insert(id, Session::default());
                self.session = Some(id);
                lease(id)
            }
            ["SESSION", "RENEW", id, _] => {
                let id: u64 = id.parse().expect("as it was told");
                if world.expired.contains(&id) {
                    return "-EXPIRED the lease is over\r\n".to_owned();
                }
                self.session = Some(id);
                lease(id)
            }
            ["SESSION", "AUTO", "OFF"] => {
                self.numbers = None;
                "+OK\r\n".to_owned()
            }
            ["SESSION", "AUTO", next, depth] => {
                let Some(session) = self.session else {
                    return "-NOSESSION no session is attached\r\n".to_owned();
                };
                let [next, depth] = [next, depth].map(|number| number.parse().expect("a number"));
                self.numbers = Some(Numbers { session, next, depth });
                "+OK\r\n".to_owned()
            }
            ["SESSION", "CALL", sequence, first, words @ ..] => {
                let Some(id) = self.session else {
                    return "-NOSESSION no session is attached\r\n".to_owned();
                };
                if world.expired.contains(&id) {
                    return "-EXPIRED the lease is over\r\n".to_owned();
                }
                let number = |text: &str| text.parse::<u64>().expect("a number");
                let (sequence, first) = (number(sequence), number(first));
                assert!(first <= sequence, "a client acknowledges no call that it makes");
                self.call(world, id, sequence, first, words)
            }
            ["UNWATCH"] => {
                self.watched.clear();
                "+OK\r\n".to_owned()
            }
            ["MULTI"] => {
                self.queue = Some(Vec::new());
                "+OK\r\n".to_owned()
            }
            ["EXEC"] => self.exec(world),
            words => match &mut self.queue {
                Some(queue) => {
                    queue.push(words.iter().map(|word| (*word).to_owned()).collect());
                    "+QUEUED\r\n".to_owned()
                }
                None => world.execute(words),
            },
        }
    }
}

impl Client {
    fn call(
        &mut self,
        world: &mut World,
        id: u64,
        sequence: u64,
        first: u64,
        words: &[&str],
    ) -> String {
        let is_exec = words == ["EXEC"];
        let body = match (is_exec, &self.queue) {
            (true, None) => return "-ERR EXEC without MULTI\r\n".to_owned(),
            (true, Some(queue)) => queue.clone(),
            (false, _) => vec![words.iter().map(|word| (*word).to_owned()).collect()],
        };
        let keys = body.iter().filter_map(|command| command.get(1)).cloned();
        let watched = self.watched.keys().filter(|_| is_exec).cloned();
        let home = keys.chain(watched).min().unwrap_or_default();
        let (body, place) = (format!("{body:?}"), (sequence, home));
        let session = world.sessions.get_mut(&id).expect("it was opened");
        let known = match session.records.get(&place) {
            _ if sequence < session.acknowledged => Some("-STALE acknowledged\r\n".to_owned()),
            Some((other, _)) if *other != body => Some("-DIFFERENT number\r\n".to_owned()),
            Some((_, answer)) => Some(answer.clone()),
            None => None,
        };
        if let Some(answer) = known {
            if is_exec {
                (self.queue, self.watched) = (None, BTreeMap::new());
            }
            return answer;
        }
        let answer = if is_exec { self.exec(world) } else { world.execute(words) };
        let session = world.sessions.get_mut(&id).expect("it was opened");
        session.records.insert(place, (body, answer.clone()));
        session.acknowledged = session.acknowledged.max(first);
        session.records.retain(|(number, _), _| *number >= session.acknowledged);
        answer
    }

    fn exec(&mut self, world: &mut World) -> String {
        let Some(queue) = self.queue.take() else {
            return "-ERR EXEC without MULTI\r\n".to_owned();
        };
        let watched = std::mem::take(&mut self.watched);
        if watched.iter().any(|(key, version)| world.version(key) != *version) {
            return "*-1\r\n".to_owned();
        }
        let mut replies = format!("*{}\r\n", queue.len());
        for command in queue {
            let words: Vec<&str> = command.iter().map(|word| &**word).collect();
            replies += &world.execute(&words);
        }
        replies
    }
}

fn lease(id: u64) -> String {
    let id = id.to_string();
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let (names, until) = (["id", "until", "term"].map(bulk), bulk("77"));
    format!("*6\r\n{}{}{}{until}{}:1800000\r\n", names[0], bulk(&id), names[1], names[2])
}

async fn serve(net: Net, node: String, mut stream: DuplexStream) {
    net.world(|world| {
        world.connections += 1;
        world.connections_most = world.connections_most.max(world.connections);
    });
    let mut client = Client::default();
    while let Some(command) = read_command(&mut stream).await {
        let sent = command.join(" ");
        let command = client.spell(&command);
        let words: Vec<&str> = command.iter().map(|word| &**word).collect();
        let (answer, act) = net.world(|world| {
            world.sent.push(sent);
            world.seen.push(Seen { node: node.clone(), command: words.join(" ") });
            let mut decide = world.decide.take();
            let act = decide.as_mut().and_then(|decide| decide(&node, &words));
            world.decide = decide;
            let act = act.or_else(|| world.place(&node, &words).map(Act::Answer));
            if let Some(Act::After(other)) = &act {
                world.execute(other);
            }
            if let (Some(Act::Answer(_)), Some(&"EXEC")) = (&act, words.last()) {
                (client.queue, client.watched) = (None, BTreeMap::new());
            }
            let executes =
                !matches!(act, Some(Act::Answer(_) | Act::Close | Act::CloseAndExecuteAfter(_)));
            (executes.then(|| client.execute(world, &words)), act)
        });
        let answer = match act {
            Some(Act::Answer(answer)) => answer,
            Some(Act::Close | Act::ExecuteAndClose) => break,
            Some(Act::CloseAndExecuteAfter(pause)) => {
                drop(stream);
                tokio::time::sleep(pause).await;
                net.world(|world| client.execute(world, &words));
                break;
            }
            Some(Act::ExecuteAndHang) => std::future::pending().await,
            Some(Act::AnswerAndReadOnly(bytes)) => {
                let answer = answer.expect("it was executed");
                stream.write_all(answer.as_bytes()).await.expect("the client waits");
                stream.read_exact(&mut vec![0; bytes]).await.expect("the client asks for more");
                break;
            }
            Some(Act::AnswerAndSay(pause, more)) => {
                let answer = answer.expect("it was executed");
                stream.write_all(answer.as_bytes()).await.expect("the client waits");
                tokio::time::sleep(pause).await;
                more.to_owned()
            }
            Some(Act::AnswerLate(pause)) => {
                tokio::time::sleep(pause).await;
                answer.expect("it was executed")
            }
            Some(Act::After(_)) | None => answer.expect("it was executed"),
        };
        // The client may be gone.
        if stream.write_all(answer.as_bytes()).await.is_err() {
            break;
        }
    }
    net.world(|world| world.connections -= 1);
}

async fn read_command(stream: &mut DuplexStream) -> Option<Vec<String>> {
    let count = read_number(stream, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = read_number(stream, '$').await?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(String::from_utf8(word).expect("the tests send text"));
    }
    Some(words)
}

async fn read_number(stream: &mut DuplexStream, kind: char) -> Option<usize> {
    let mut line = String::new();
    while !line.ends_with("\r\n") {
        line.push(char::from(stream.read_u8().await.ok()?));
    }
    Some(line.strip_prefix(kind).expect("RESP2").trim_end().parse().expect("a length"))
}
