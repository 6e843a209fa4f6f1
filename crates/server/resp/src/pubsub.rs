//! Publish and subscribe: which connections of this lane listen to what, and how a message reaches
//! them.
//!
//! A message is put behind what its receiver was already answered and is still to be answered, except
//! that it need not wait for the end of a command that only waits. A connection gets what it has
//! published itself at once, others get it from a queue, a bounded part of it in each turn
//! ([`limits::DELIVERIES_PER_TURN`]): a message to 10,000 subscribers takes many turns, and clients
//! of other commands get theirs in between. While much waits in the queue, clients of this lane that
//! publish wait, too. Messages of other lanes and nodes can't wait: beyond a bound they are lost
//! ([`limits::FANOUT_BYTES_MAX`]).
//!
//! Each subscription has a number, and those of one name are kept in that order. So the queue holds a
//! message once, with the number that comes next and the number of the youngest subscription that
//! is older than the message, however many receive it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{
    Args, CHANNEL_TOO_LONG, Call, ConnectionCommand, Reply as Answer, Run, ServerCommand, Spec,
    glob_match,
};
use quorate_machine::mutant;
use quorate_types::{Now, Publication, Topic, limits as bounds};

use crate::backend::Backend;
use crate::connection::{Connection, ConnectionId, Life, Reply};
use crate::dispatch::Context;
use crate::encode::{Protocol, array_header, bulk, encode, integer};
use crate::frontend::{Core, Frontend};
use crate::limits;
use crate::scripts::{CHANNEL, is_script};
use crate::session::{SYNTAX, failure};
use crate::shared::{ClientFacts, add};

/// The name of a channel or a pattern, shared by the lane's table and the connections.
type Name = Arc<[u8]>;

/// What a subscription takes of memory besides its name, in the lane's table and at its connection.
const SUBSCRIPTION_BYTES: usize = 160;

const TOO_MANY: &str = "ERR the clients of this lane listen to as many names as they may (1048576 of 32 MiB \
                        together, 16384 patterns among them); unsubscribe from others first, or \
                        connect again to get to another lane";

/// What one connection listens to.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    /// By topic, the number of each subscription.
    topics: [BTreeMap<Name, u64>; 3],
    bytes: usize,
}

impl Subscriptions {
    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.bytes
    }

    fn count(&self, topic: Topic) -> usize {
        self.topics[topic as usize].len()
    }

    /// The number that replies tell: of channels and patterns together, or of shard channels.
    fn told(&self, topic: Topic) -> usize {
        match topic {
            Topic::Shard => self.count(Topic::Shard),
            _ => self.count(Topic::Channel) + self.count(Topic::Pattern),
        }
    }

    fn is_empty(&self) -> bool {
        self.topics.iter().all(BTreeMap::is_empty)
    }

    /// The names of a topic in the order in which they were subscribed to.
    fn names(&self, topic: Topic) -> Vec<Name> {
        let mut names: Vec<_> = self.topics[topic as usize].iter().collect();
        names.sort_by_key(|(_, number)| **number);
        names.into_iter().map(|(name, _)| Arc::clone(name)).collect()
    }
}

/// The subscriptions of one name, by number.
type Subscribers = BTreeMap<u64, ConnectionId>;

/// What the connections of a lane listen to, and messages that are on their way to them.
#[derive(Debug, Default)]
pub(crate) struct PubSub {
    topics: [BTreeMap<Name, Subscribers>; 3],
    /// The number of the youngest subscription.
    last: u64,
    /// Names, and bytes of them.
    names: (usize, usize),
    /// Names whose number of subscribers the node has not been told.
    changed: BTreeSet<(Topic, Name)>,
    queue: VecDeque<Delivery>,
    /// Bytes of the messages in the queue.
    queued: usize,
    /// What may still be done in this turn: deliveries, connections that have nothing else to be
    /// sent, bytes.
    left: [usize; 3],
    batch: Vec<(u64, ConnectionId)>,
}

/// A message on its way to the subscribers of this lane.
#[derive(Debug)]
struct Delivery {
    publication: Arc<Publication>,
    /// The connection that has it already: the one that has published it.
    except: Option<ConnectionId>,
    /// Younger subscriptions don't get it.
    youngest: u64,
    /// The pattern whose subscribers get it now; none while those of the channel do.
    pattern: Option<Name>,
    /// The last number that was served, of those.
    served: u64,
    /// The message in each protocol, once somebody needs it.
    forms: [Vec<u8>; 2],
}

impl Delivery {
    fn name(&self) -> (Topic, &[u8]) {
        match &self.pattern {
            Some(pattern) => (Topic::Pattern, pattern),
            None => (self.publication.topic, &self.publication.channel),
        }
    }

    /// The message as a connection of this protocol is told it.
    fn form(&mut self, protocol: Protocol) -> &[u8] {
        let form = &mut self.forms[usize::from(protocol == Protocol::Resp3)];
        if form.is_empty() {
            write_message(&self.publication, self.pattern.as_deref(), protocol, form);
        }
        form
    }
}

/// Appends a message; to a subscriber of a pattern with the pattern.
fn write_message(
    publication: &Publication,
    pattern: Option<&[u8]>,
    protocol: Protocol,
    out: &mut Vec<u8>,
) {
    push_header(3 + usize::from(pattern.is_some()), protocol, out);
    let word: &[u8] = match (pattern, publication.topic) {
        (Some(_), _) => b"pmessage",
        (None, Topic::Shard) => b"smessage",
        (None, _) => b"message",
    };
    bulk(word, out);
    if let Some(pattern) = pattern {
        bulk(pattern, out);
    }
    bulk(&publication.channel, out);
    bulk(&publication.message, out);
}

pub(crate) fn push_header(items: usize, protocol: Protocol, out: &mut Vec<u8>) {
    match protocol {
        Protocol::Resp2 => array_header(items, out),
        Protocol::Resp3 => integer(b'>', items as i64, out),
    }
}

impl PubSub {
    pub(crate) fn new() -> Self {
        let mut new = Self::default();
        new.begin_turn();
        new
    }

    /// A new turn begins.
    fn begin_turn(&mut self) {
        self.left = [
            limits::DELIVERIES_PER_TURN,
            limits::ROUSED_PER_TURN,
            limits::DELIVERED_BYTES_PER_TURN,
        ];
    }

    /// Whether a client that publishes must wait.
    pub(crate) fn is_full(&self) -> bool {
        self.queued >= limits::FANOUT_WAIT_BYTES || self.queue.len() >= limits::FANOUT_WAIT_MESSAGES
    }

    /// Whether something waits for another turn.
    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.changed.is_empty()
    }

    /// Distinct names of a topic.
    pub(crate) fn count(&self, topic: Topic) -> usize {
        self.topics[topic as usize].len()
    }

    fn has_room_for(&self, topic: Topic, name: &[u8]) -> bool {
        let (names, bytes) = self.names;
        self.topics[topic as usize].contains_key(name)
            || names < bounds::NAMES_PER_LANE_MAX
                && bytes + name.len() <= bounds::NAME_BYTES_PER_LANE_MAX
                && (topic != Topic::Pattern || self.count(topic) < bounds::PATTERNS_PER_LANE_MAX)
    }

    /// Adds a subscription. Returns its number and the name to share.
    fn add(&mut self, topic: Topic, name: &[u8], id: ConnectionId) -> (Name, u64) {
        let names = &mut self.topics[topic as usize];
        let name = match names.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => {
                self.names = (self.names.0 + 1, self.names.1 + name.len());
                name.into()
            }
        };
        self.last += 1;
        names.entry(Arc::clone(&name)).or_default().insert(self.last, id);
        self.changed.insert((topic, Arc::clone(&name)));
        (name, self.last)
    }

    fn remove(&mut self, topic: Topic, name: &Name, number: u64) {
        let names = &mut self.topics[topic as usize];
        let Some(subscribers) = names.get_mut(name) else { return };
        subscribers.remove(&number);
        if subscribers.is_empty() {
            names.remove(name);
            self.names = (self.names.0 - 1, self.names.1 - name.len());
        }
        self.changed.insert((topic, Arc::clone(name)));
    }

    /// Tells the node how many clients of this lane listen to what has changed.
    pub(crate) fn tell<B: Backend>(&mut self, now: Now, backend: &mut B) {
        while let Some((topic, name)) = self.changed.pop_first() {
            let count = self.topics[topic as usize].get(&name).map_or(0, Subscribers::len);
            backend.listen(now, topic, &name, u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// A message that somebody else than `except` may listen to on this lane. Whether there is room.
    fn enqueue(&mut self, publication: Arc<Publication>, except: Option<ConnectionId>) -> bool {
        if self.topics[publication.topic as usize].is_empty()
            && (publication.topic == Topic::Shard || self.count(Topic::Pattern) == 0)
        {
            return true;
        }
        if self.queued + publication.bytes() > limits::FANOUT_BYTES_MAX {
            return false;
        }
        self.queued += publication.bytes() + size_of::<Delivery>();
        self.queue.push_back(Delivery {
            publication,
            except,
            youngest: self.last,
            pattern: None,
            served: 0,
            forms: Default::default(),
        });
        true
    }

    /// Fills the batch with subscribers that the first message is for next. Whether there is any.
    fn next_batch(&mut self) -> bool {
        self.batch.clear();
        while let Some(delivery) = self.queue.front_mut() {
            let (topic, name) = delivery.name();
            if let Some(subscribers) = self.topics[topic as usize].get(name) {
                let range = (Bound::Excluded(delivery.served), Bound::Included(delivery.youngest));
                let next = subscribers.range(range).map(|(number, id)| (*number, *id));
                self.batch.extend(next.take(limits::DELIVERIES_AT_ONCE));
            }
            if !self.batch.is_empty() {
                return true;
            }
            // On to the next pattern.
            let channel = &delivery.publication.channel;
            let after = delivery.pattern.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let patterns = &self.topics[Topic::Pattern as usize];
            let mut looked_at = 0;
            let next = match delivery.publication.topic {
                Topic::Channel => patterns
                    .range::<Name, _>((after, Bound::Unbounded))
                    .inspect(|_| looked_at += 1)
                    .find(|(pattern, _)| glob_match(pattern, channel, false)),
                _ => None,
            };
            let next = next.map(|(pattern, _)| Arc::clone(pattern));
            self.left[0] = self.left[0].saturating_sub(looked_at / limits::PATTERNS_PER_DELIVERY);
            match next {
                Some(pattern) => {
                    delivery.pattern = Some(pattern);
                    delivery.served = 0;
                    delivery.forms = Default::default();
                }
                None => {
                    let bytes = delivery.publication.bytes() + size_of::<Delivery>();
                    self.queued -= bytes;
                    self.queue.pop_front();
                }
            }
        }
        false
    }
}

impl Frontend {
    /// A client of another lane or node has published something.
    pub fn published<B: Backend>(&mut self, publication: Arc<Publication>, backend: &B) {
        if is_script(&publication) {
            return self.hear_script(&publication.message, backend);
        }
        if !self.core.pubsub.enqueue(publication, None) {
            add(&self.core.stats.messages_dropped, 1);
        }
        self.fan_out();
    }

    /// Begins the turn of the messages to subscribers.
    pub(crate) fn begin_fan_out<B: Backend>(&mut self, now: Now, backend: &mut B) {
        self.core.pubsub.begin_turn();
        self.core.tell_due(now, backend);
        self.core.pubsub.tell(now, backend);
        self.fan_out();
    }

    /// Hands messages to subscribers, as many as the turn allows.
    pub(crate) fn fan_out(&mut self) {
        if self.core.pubsub.queue.is_empty() {
            return;
        }
        while !self.core.pubsub.left.contains(&0) && self.core.pubsub.next_batch() {
            let batch = std::mem::take(&mut self.core.pubsub.batch);
            let Some(mut delivery) = self.core.pubsub.queue.pop_front() else { return };
            for &(number, id) in &batch {
                delivery.served = number;
                if delivery.except != Some(id) {
                    self.deliver(&mut delivery, id);
                }
                if self.core.pubsub.left.contains(&0) {
                    break;
                }
            }
            self.core.pubsub.queue.push_front(delivery);
            self.core.pubsub.batch = batch;
        }
    }

    fn deliver(&mut self, delivery: &mut Delivery, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        if connection.life != Life::Open {
            return;
        }
        let form = delivery.form(connection.session.protocol);
        connection.push_message(|out| out.extend_from_slice(form));
        let roused = usize::from(!connection.dirty);
        let costs = [1, roused, form.len()];
        for (left, cost) in self.core.pubsub.left.iter_mut().zip(costs) {
            *left = left.saturating_sub(cost);
        }
        add(&self.core.stats.messages_delivered, 1);
        self.core.has_delivered(connection, id);
    }
}

impl Core {
    /// Publishes a message of nobody's.
    pub(crate) fn spread<B: Backend>(
        &mut self,
        publication: Arc<Publication>,
        now: Now,
        backend: &mut B,
    ) {
        backend.publish(now, &publication);
        if !self.pubsub.enqueue(publication, None) {
            add(&self.stats.messages_dropped, 1);
        }
    }

    /// A message was added to what a connection is sent.
    pub(crate) fn has_delivered(&mut self, connection: &mut Connection, id: ConnectionId) {
        self.cut_slow(connection);
        self.recount(connection);
        if (!connection.output.is_empty() && !connection.held) || connection.is_finished() {
            self.mark_dirty(connection, id);
        }
    }

    /// Disconnects a client that doesn't read what it is sent.
    pub(crate) fn cut_slow(&self, connection: &mut Connection) {
        let [hard, _, _] = self.output_limits(connection);
        if hard > 0 && connection.unsent() as u64 > hard && connection.life != Life::Dead {
            self.cut(connection);
        }
    }

    /// Disconnects a client because of the limit of its output.
    pub(crate) fn cut(&self, connection: &mut Connection) {
        let counter = match connection.is_subscriber() {
            true => &self.stats.subscribers_cut,
            false => &self.stats.readers_cut,
        };
        add(counter, 1);
        connection.kill();
    }

    /// The limits of a client's output: two numbers of bytes, and seconds.
    pub(crate) fn output_limits(&self, connection: &Connection) -> [u64; 3] {
        let settings = &self.shared.settings;
        if connection.is_subscriber() && !mutant!("resp_subscribers_have_no_limit") {
            return settings.other_output_limits[1].each_ref().map(|limit| limit.load(Relaxed));
        }
        [&settings.output_bytes_hard, &settings.output_bytes_soft, &settings.output_soft_seconds]
            .map(|limit| limit.load(Relaxed))
    }

    /// A connection listens to nothing any more.
    pub(crate) fn unsubscribe_all(&mut self, connection: &mut Connection) {
        let Some(subscriptions) = connection.subscriptions.take() else { return };
        for topic in Topic::OF_CLIENTS {
            for (name, number) in &subscriptions.topics[topic as usize] {
                self.pubsub.remove(topic, name, *number);
            }
        }
        publish_counts(&connection.facts, &Subscriptions::default());
    }
}

impl Connection {
    /// Whether it listens to anything.
    #[inline]
    pub(crate) fn is_subscriber(&self) -> bool {
        self.subscriptions.is_some()
    }

    /// Whether it may say little else than what it listens to: who speaks RESP2 can't tell a message
    /// from a reply.
    #[inline]
    pub(crate) fn is_restricted(&self) -> bool {
        self.is_subscriber() && self.session.protocol == Protocol::Resp2
    }
}

/// Copies what `CLIENT LIST` shows.
fn publish_counts(facts: &ClientFacts, subscriptions: &Subscriptions) {
    for topic in Topic::OF_CLIENTS {
        let count = subscriptions.count(topic) as u64;
        facts.subscriptions[topic as usize].store(count, Relaxed);
    }
}

/// Whether a client is of a type of `CLIENT LIST` and `CLIENT KILL`, of which there are these.
pub(crate) fn is_of_type(facts: &ClientFacts, kind: &[u8]) -> Result<bool, Answer<'static>> {
    let listens = facts.subscriptions.iter().any(|count| count.load(Relaxed) > 0);
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(!listens),
        b"pubsub" => Ok(listens),
        b"master" | b"slave" | b"replica" => Ok(false),
        _ => Err(failure(format!("ERR Unknown client type '{}'", crate::session::quoted(kind)))),
    }
}

/// What a command of the subscribe family does.
struct Change {
    topic: Topic,
    adds: bool,
}

fn change_of(spec: &Spec) -> Option<Change> {
    use ConnectionCommand as Command;
    let Run::Connection(command) = spec.run else { return None };
    let (topic, adds) = match command {
        Command::Subscribe => (Topic::Channel, true),
        Command::Unsubscribe => (Topic::Channel, false),
        Command::Psubscribe => (Topic::Pattern, true),
        Command::Punsubscribe => (Topic::Pattern, false),
        Command::Ssubscribe => (Topic::Shard, true),
        Command::Sunsubscribe => (Topic::Shard, false),
        _ => return None,
    };
    Some(Change { topic, adds })
}

impl<B: Backend> Context<'_, B> {
    /// Why a client that speaks RESP2 and listens to something can't execute a command.
    pub(crate) fn refuses_subscriber(&self, spec: &Spec) -> Option<Answer<'static>> {
        use ConnectionCommand as Command;
        let allowed = change_of(spec).is_some()
            || matches!(spec.run, Run::Connection(Command::Ping | Command::Quit | Command::Reset));
        if !self.connection.is_restricted() || allowed {
            return None;
        }
        Some(failure(format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
             are allowed in this context",
            spec.name
        )))
    }

    /// Answers a command of this file. What is published after a subscription was confirmed must reach
    /// the client, so other nodes have to know of it before.
    pub(crate) fn tell_subscriber(&mut self, spec: &Spec, told: Vec<u8>) {
        let adds = change_of(spec).is_some_and(|change| change.adds);
        if !adds || self.backend.is_announced() {
            return self.connection.push_message(|out| out.extend_from_slice(&told));
        }
        let bytes = told.len();
        let mute = std::mem::take(&mut self.connection.mute);
        let number = self.connection.push(Reply::Subscribed(told));
        self.connection.mute = mute;
        let tag = self.tag(number, 0, bytes);
        self.backend.announce(self.now, tag);
    }

    /// Executes a command that subscribes or publishes, or a `PING` of a subscriber: appends what the
    /// connection is told. The reply itself is left out for a client that wants none, which gets
    /// messages all the same. Whether it is such a command.
    pub(crate) fn pubsub(&mut self, call: &Call<'_>, out: &mut Vec<u8>, mute: bool) -> bool {
        if let Some(change) = change_of(call.spec) {
            self.change_subscriptions(&change, call.args, out);
            return true;
        }
        let reply = if let Some(topic) = call.spec.publishes() {
            self.publish(topic, call.args.get(1), call.args.get(2), out)
        } else if matches!(call.spec.run, Run::Connection(ConnectionCommand::Ping))
            && self.connection.is_restricted()
            && call.args.len() <= 2
        {
            let text = if call.args.len() == 2 { call.args.get(1) } else { b"" };
            let text = Answer::Bulk(Cow::Borrowed(text));
            let pong = Answer::Bulk(Cow::Borrowed(b"pong"));
            Answer::Array(vec![pong, text]).into_owned()
        } else {
            return false;
        };
        if let Answer::Error(text) = &reply {
            self.core.stats.failed(call.spec, text);
        }
        if !mute {
            encode(&reply, self.connection.session.protocol, out);
        }
        true
    }

    fn change_subscriptions(&mut self, change: &Change, args: Args<'_>, out: &mut Vec<u8>) {
        let topic = change.topic;
        if change.adds {
            for name in args.iter().skip(1) {
                self.subscribe(topic, name, out);
            }
        } else if args.len() > 1 {
            for name in args.iter().skip(1) {
                self.unsubscribe(topic, Some(name), out);
            }
        } else {
            let subscriptions = self.connection.subscriptions.as_deref();
            let names = subscriptions.map_or(Vec::new(), |all| all.names(topic));
            for name in &names {
                self.unsubscribe(topic, Some(name), out);
            }
            if names.is_empty() {
                self.unsubscribe(topic, None, out);
            }
        }
        self.core.pubsub.tell(self.now, self.backend);
    }

    fn subscribe(&mut self, topic: Topic, name: &[u8], out: &mut Vec<u8>) {
        let connection = &mut *self.connection;
        let known = connection
            .subscriptions
            .as_ref()
            .is_some_and(|all| all.topics[topic as usize].contains_key(name));
        if !known {
            let error = if name.len() > bounds::KEY_BYTES_MAX {
                Some(CHANNEL_TOO_LONG)
            } else if !self.core.pubsub.has_room_for(topic, name) {
                Some(TOO_MANY)
            } else {
                None
            };
            if let Some(text) = error {
                self.core.stats.error(text);
                return encode(&Answer::error(text), connection.session.protocol, out);
            }
            let (name, number) = self.core.pubsub.add(topic, name, self.id);
            let subscriptions = connection.subscriptions.get_or_insert_default();
            subscriptions.bytes += name.len() + SUBSCRIPTION_BYTES;
            subscriptions.topics[topic as usize].insert(name, number);
            publish_counts(&connection.facts, subscriptions);
        }
        let word: &[u8] = match topic {
            Topic::Channel => b"subscribe",
            Topic::Pattern => b"psubscribe",
            Topic::Shard => b"ssubscribe",
            Topic::Key => unreachable!("no client names it"),
        };
        self.confirm(topic, word, Some(name), out);
    }

    fn unsubscribe(&mut self, topic: Topic, name: Option<&[u8]>, out: &mut Vec<u8>) {
        let connection = &mut *self.connection;
        if let (Some(subscriptions), Some(name)) = (&mut connection.subscriptions, name)
            && let Some((name, number)) = subscriptions.topics[topic as usize].remove_entry(name)
        {
            subscriptions.bytes -= name.len() + SUBSCRIPTION_BYTES;
            publish_counts(&connection.facts, subscriptions);
            self.core.pubsub.remove(topic, &name, number);
            if subscriptions.is_empty() {
                connection.subscriptions = None;
            }
        }
        let word: &[u8] = match topic {
            Topic::Channel => b"unsubscribe",
            Topic::Pattern => b"punsubscribe",
            Topic::Shard => b"sunsubscribe",
            Topic::Key => unreachable!("no client names it"),
        };
        self.confirm(topic, word, name, out);
    }

    /// Appends the confirmation of a change.
    fn confirm(&self, topic: Topic, word: &[u8], name: Option<&[u8]>, out: &mut Vec<u8>) {
        let protocol = self.connection.session.protocol;
        let told = self.connection.subscriptions.as_ref().map_or(0, |all| all.told(topic));
        push_header(3, protocol, out);
        bulk(word, out);
        match name {
            Some(name) => bulk(name, out),
            None => encode(&Answer::Null, protocol, out),
        }
        integer(b':', told as i64, out);
    }

    /// Publishes a message. Appends what this connection gets of it. Returns the number of
    /// subscribers that get it, in the whole cluster as far as is known.
    pub(crate) fn publish(
        &mut self,
        topic: Topic,
        channel: &[u8],
        message: &[u8],
        own: &mut Vec<u8>,
    ) -> Answer<'static> {
        if channel.len() > bounds::KEY_BYTES_MAX {
            return Answer::error(CHANNEL_TOO_LONG);
        }
        let (channel, message) = (channel.into(), message.into());
        let publication = Arc::new(Publication { topic, channel, message });
        let receivers = self.backend.publish(self.now, &publication);
        self.deliver_own(&publication, own);
        if !self.core.pubsub.enqueue(publication, Some(self.id)) {
            add(&self.core.stats.messages_dropped, 1);
        }
        Answer::Int(receivers as i64)
    }

    /// Appends a message as often as this connection listens to it.
    fn deliver_own(&self, publication: &Publication, out: &mut Vec<u8>) {
        let Some(subscriptions) = &self.connection.subscriptions else { return };
        let protocol = self.connection.session.protocol;
        if subscriptions.topics[publication.topic as usize].contains_key(&*publication.channel) {
            write_message(publication, None, protocol, out);
        }
        if publication.topic == Topic::Channel {
            for pattern in subscriptions.topics[Topic::Pattern as usize].keys() {
                if glob_match(pattern, &publication.channel, false) {
                    write_message(publication, Some(pattern), protocol, out);
                }
            }
        }
    }

    /// `PUBSUB CHANNELS | NUMSUB | NUMPAT | SHARDCHANNELS | SHARDNUMSUB`, of the whole cluster as far
    /// as is known.
    pub(crate) fn pubsub_facts(
        &mut self,
        command: ServerCommand,
        args: Args<'_>,
    ) -> Answer<'static> {
        use ServerCommand as Command;
        let topic = match command {
            Command::PubsubShardchannels | Command::PubsubShardnumsub => Topic::Shard,
            Command::PubsubNumpat => Topic::Pattern,
            _ => Topic::Channel,
        };
        self.core.pubsub.tell(self.now, self.backend);
        match command {
            Command::PubsubChannels | Command::PubsubShardchannels if args.len() > 3 => {
                failure(format!(
                    "ERR unknown subcommand or wrong number of arguments for '{}'. Try PUBSUB HELP.",
                    crate::session::quoted(args.get(1))
                ))
            }
            Command::PubsubChannels | Command::PubsubShardchannels => {
                let pattern = if args.len() == 3 { args.get(2) } else { b"*" };
                let (mut names, mut bytes) = (Vec::new(), 0);
                self.backend.visit_names(topic, &mut |name| {
                    if name != CHANNEL && glob_match(pattern, name, false) {
                        bytes += name.len() + limits::KEY_FRAME_BYTES;
                        if bytes <= bounds::REPLY_BYTES_MAX {
                            names.push(Answer::Bulk(Cow::Owned(name.to_vec())));
                        }
                    }
                });
                if bytes > bounds::REPLY_BYTES_MAX {
                    return Answer::error(quorate_commands::ANSWER_TOO_LONG);
                }
                Answer::Array(names)
            }
            Command::PubsubNumsub | Command::PubsubShardnumsub => {
                let count = |name: &[u8]| {
                    let listeners = self.backend.listeners(topic, name);
                    [Answer::Bulk(Cow::Owned(name.to_vec())), Answer::Int(listeners as i64)]
                };
                Answer::Array(args.iter().skip(2).flat_map(count).collect())
            }
            Command::PubsubNumpat => {
                let mut patterns = 0;
                self.backend.visit_names(topic, &mut |_| patterns += 1);
                Answer::Int(patterns)
            }
            _ => SYNTAX,
        }
    }
}
