//! One stay of a guest with a cluster: its id, its machine, and its connections to all nodes, owned
//! by one task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_frame::{Frames, whole_header};
use quorate_machine::{Effects, Event, HybridClock, Machine, MapTable, Outcome, Refusal};
use quorate_meerkat::{Config, Kind, Meerkat, Message, Meta, Options};
use quorate_types::{
    Epoch, Incarnation, Instant, KeyspaceId, LaneId, NodeId, NodeSet, Now, Role, Tag, UnixNanos,
    WriterId,
};
use quorate_wire::{GuestMessage, Header, Hello, Kind as Part, Malformed, Welcome};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::ask::{Answer, Ask};
use super::link::{Introduced, Introduction, Line, Link, News, damaged};
use crate::connection::Dial;
use crate::limits::{GUEST_FAREWELL_MAX, GUEST_QUEUE_MAX, GUEST_SEPARATION_MAX};
use crate::retry::chance;

type Guest = Meerkat<MapTable<Meta>, Ask>;
/// The end of a transaction.
pub(super) type End = Outcome<Answer>;
/// A transaction and the way back to its caller.
pub(super) type Job = (Ask, oneshot::Sender<End>);

/// News that one turn handles before it looks at the time again.
const NEWS_PER_TURN: usize = 256;
/// The longest that a session sleeps.
const REST_MAX: Duration = Duration::from_millis(500);

/// The applicant of a session: it joins a cluster.
pub(super) struct Applicant {
    pub(super) addresses: Vec<String>,
    pub(super) introduction: Introduction,
    pub(super) keyspace: KeyspaceId,
    pub(super) dial: Arc<dyn Dial>,
}

impl Applicant {
    /// Joins at the first node that lets it, and begins a session.
    ///
    /// # Errors
    /// The last node's refusal, if every node refused.
    pub(super) async fn join(&self) -> Result<mpsc::Sender<Job>, String> {
        let mut reason = "there are no addresses".to_owned();
        let count = self.addresses.len();
        let first = usize::try_from(chance() % count.max(1) as u64).unwrap_or(0);
        for turn in 0..count {
            let address = &self.addresses[(first + turn) % count];
            match self.join_at(address).await {
                Ok(session) => return Ok(session),
                Err(error) => reason = format!("{address}: {error}"),
            }
        }
        Err(reason)
    }

    async fn join_at(&self, address: &str) -> Result<mpsc::Sender<Job>, String> {
        // Each stay has an incarnation of its own.
        let introduction =
            Introduction { session: Incarnation(chance().max(1)), ..self.introduction.clone() };
        let connect = async |lane, lanes| {
            introduction
                .connect(self.dial.as_ref(), address, lane, lanes)
                .await
                .map_err(|error| error.to_string())
        };
        let mut introduced = connect(LaneId(0), 0).await?;
        let lanes = introduced.theirs.lanes;
        let lane = LaneId((chance() % u64::from(lanes.max(1))) as u16);
        if lane != LaneId(0) {
            introduced = connect(lane, lanes).await?;
        }
        let limit = introduction.connect_timeout;
        let welcome = tokio::time::timeout(limit, self.ask_to_join(&mut introduced)).await;
        let welcome = welcome.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))?;
        let known = welcome.view.live().contains(introduced.theirs.node);
        if !known || welcome.writer.lane(lanes) != lane {
            return Err("the node's welcome contradicts itself".to_owned());
        }
        let (jobs, queue) = mpsc::channel(GUEST_QUEUE_MAX);
        let terms = Options::from_terms(&welcome.terms).map_err(|error| error.to_string())?;
        let session = Session::new(self, introduction, introduced, lane, lanes, welcome, &terms);
        tokio::spawn(session.run(queue));
        Ok(jobs)
    }

    async fn ask_to_join(&self, introduced: &mut Introduced) -> Result<Welcome, String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut messages = Vec::new();
        encode(&mut messages, self.keyspace, Epoch(0), &GuestMessage::Join);
        let mut bytes = whole_header(&messages).to_vec();
        bytes.append(&mut messages);
        let mut frames = Frames::default();
        let Introduced { stream, rest: input, .. } = introduced;
        let lost = |error: std::io::Error| error.to_string();
        stream.write_all(&bytes).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        loop {
            let mut rest = &input[..];
            if let Some(messages) = frames.split(&mut rest).map_err(|bad| lost(damaged(bad)))? {
                let used = input.len() - rest.len();
                let welcome = read_welcome(&messages).map_err(|error| error.to_string())?;
                input.drain(..used);
                return welcome;
            }
            if stream.read_buf(input).await.map_err(lost)? == 0 {
                return Err("the node closed the connection".to_owned());
            }
        }
    }
}

/// The answer to a request to join. It is a node's first message.
fn read_welcome(mut messages: &[u8]) -> Result<Result<Welcome, String>, Malformed> {
    match Header::split(&mut messages)? {
        Some((header, body)) if header.kind == Part::Guest => match GuestMessage::decode(body)? {
            GuestMessage::Welcome(welcome) => Ok(Ok(welcome)),
            GuestMessage::Refused { text } => Ok(Err(text)),
            _ => Err(Malformed("neither a welcome nor a refusal")),
        },
        _ => Err(Malformed("neither a welcome nor a refusal")),
    }
}

fn encode(out: &mut Vec<u8>, keyspace: KeyspaceId, epoch: Epoch, message: &GuestMessage) {
    Header::frame(out, Part::Guest, keyspace, epoch, |writer| message.encode(writer));
}

/// The effects of the machine.
struct Out {
    keyspace: KeyspaceId,
    epoch: Epoch,
    peers: BTreeMap<NodeId, Vec<u8>>,
    done: Vec<(Tag, End)>,
}

impl Effects<Guest> for Out {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        let (keyspace, epoch) = (self.keyspace, self.epoch);
        let buffer = self.peers.entry(to).or_default();
        Header::frame(buffer, Part::Engine(quorate_meerkat::ID), keyspace, epoch, |writer| {
            message.encode(writer)
        });
    }

    fn complete(&mut self, tag: Tag, outcome: End) {
        self.done.push((tag, outcome));
    }

    /// Stale or wrong messages of a node are not counted here.
    fn refused(&mut self, _reason: &'static str) {}
}

/// Both clocks of a guest. The monotonic one is its own; the wall time of the cluster comes from
/// the nodes.
struct Clock {
    start: std::time::Instant,
    cluster: HybridClock,
}

impl Clock {
    fn monotonic(&self) -> Instant {
        // 0 means "never" in all machines.
        Instant(1 + u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    /// The time for expiry: the earlier of the cluster's clock and the guest's own.
    fn now(&self) -> Now {
        let monotonic = self.monotonic();
        let own = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let own = u64::try_from(own.as_nanos()).unwrap_or(u64::MAX);
        Now { monotonic, unix: UnixNanos(own.min(self.cluster.read(monotonic))) }
    }

    fn hear(&mut self, clock: u64) {
        self.cluster.reach(self.monotonic(), clock);
    }
}

/// The task's state.
struct Session {
    introduction: Introduction,
    dial: Arc<dyn Dial>,
    writer: WriterId,
    lane: LaneId,
    lanes: u16,
    machine: Guest,
    clock: Clock,
    out: Out,
    links: BTreeMap<NodeId, Link>,
    /// Nodes that have let this guest in.
    entered: NodeSet,
    members: NodeSet,
    /// The time since when it has not reached a majority.
    apart: Option<Instant>,
    news_in: mpsc::Sender<(NodeId, News)>,
    news: mpsc::Receiver<(NodeId, News)>,
    waiting: BTreeMap<Tag, oneshot::Sender<End>>,
    last_tag: u64,
    /// A node has said that this stay has ended.
    dismissed: bool,
}

impl Session {
    fn new(
        applicant: &Applicant,
        introduction: Introduction,
        first: Introduced,
        lane: LaneId,
        lanes: u16,
        welcome: Welcome,
        terms: &Options,
    ) -> Self {
        let config = Config {
            partitions: welcome.partitions.clone(),
            isolation: terms.isolation,
            max_clock_skew: terms.max_clock_skew,
            guest: Some(welcome.writer),
            ..Config::new(Hello::GUEST, introduction.session, lane, lanes, chance())
        };
        let (news_in, news) = mpsc::channel(NEWS_PER_TURN);
        let node = first.theirs.node;
        let mut session = Self {
            introduction,
            dial: applicant.dial.clone(),
            writer: welcome.writer,
            lane,
            lanes,
            machine: Guest::new(config, MapTable::default()),
            clock: Clock { start: std::time::Instant::now(), cluster: HybridClock::default() },
            out: Out {
                keyspace: applicant.keyspace,
                epoch: Epoch(0),
                peers: BTreeMap::new(),
                done: Vec::new(),
            },
            links: BTreeMap::new(),
            entered: NodeSet::only(node),
            members: NodeSet::EMPTY,
            apart: None,
            news_in,
            news,
            waiting: BTreeMap::new(),
            last_tag: 0,
            dismissed: false,
        };
        let address = welcome.view.member(node).map(|member| member.peer_address.clone());
        let line = session.line(node, address.unwrap_or_default());
        session.links.insert(node, Link::open(line, Some(first)));
        session.install(&welcome.view);
        session
    }

    fn line(&self, node: NodeId, address: String) -> Line {
        Line {
            introduction: self.introduction.clone(),
            dial: self.dial.clone(),
            node,
            address,
            lane: self.lane,
            lanes: self.lanes,
            news: self.news_in.clone(),
        }
    }

    /// Follows a view: updates the machine, and the links to the members.
    fn install(&mut self, view: &quorate_types::View) {
        if view.epoch <= self.machine.epoch() {
            return;
        }
        self.out.epoch = view.epoch;
        let now = self.clock.now();
        self.machine.step(now, Event::View(view), &mut self.out);
        self.members = view.voters();
        let live: BTreeMap<NodeId, &str> = view
            .members
            .iter()
            .filter(|member| member.role != Role::Down)
            .map(|member| (member.node, member.peer_address.as_str()))
            .collect();
        self.links.retain(|node, link| live.get(node).is_some_and(|at| *at == link.address));
        for (node, address) in live {
            if !self.links.contains_key(&node) && !address.is_empty() {
                let line = self.line(node, address.to_owned());
                self.links.insert(node, Link::open(line, None));
            }
        }
        let linked: NodeSet = self.links.keys().copied().collect();
        self.entered = self.entered.intersection(linked);
    }

    /// Runs until no caller is left, or the cluster is out of reach.
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut farewell = None;
        loop {
            let rest = self.rest();
            tokio::select! {
                job = jobs.recv(), if farewell.is_none() => match job {
                    Some(job) => self.take(job),
                    None => farewell = Some(self.clock.monotonic()),
                },
                Some((node, news)) = self.news.recv() => self.hear(node, news),
                () = sleep(rest) => {}
            }
            for _ in 0..NEWS_PER_TURN {
                let Ok((node, news)) = self.news.try_recv() else { break };
                self.hear(node, news);
            }
            while let Ok(job) = jobs.try_recv() {
                self.take(job);
            }
            let now = self.clock.now();
            if self.machine.next_deadline() <= now.monotonic {
                self.machine.step(now, Event::Tick, &mut self.out);
            }
            self.machine.flush(now, &mut self.out);
            self.flush();
            let over = farewell.is_some_and(|since| {
                self.is_quiet() || now.monotonic.since(since) > GUEST_FAREWELL_MAX
            });
            if over || self.is_apart(now.monotonic) {
                break;
            }
        }
        jobs.close();
        while let Ok(job) = jobs.try_recv() {
            self.take(job);
        }
        // Ops that may have happened are unknown; the rest have not.
        let now = self.clock.now();
        self.machine.reset(now, self.introduction.session, &mut self.out);
        self.answer();
    }

    fn rest(&self) -> Duration {
        let now = self.clock.monotonic();
        // Tokio's timer has milliseconds and rounds up.
        self.machine.next_deadline().since(now).min(REST_MAX)
    }

    /// Whether every node knows the outcome of every transaction.
    fn is_quiet(&self) -> bool {
        self.machine.pending() == 0
            && self.machine.gauges().iter().all(|(name, count)| *name != "attempts" || *count == 0)
    }

    /// Whether this stay has ended: by a node's word, or because a majority was out of reach for
    /// too long.
    fn is_apart(&mut self, now: Instant) -> bool {
        if self.entered.is_majority_of(self.members) {
            self.apart = None;
            return self.dismissed;
        }
        let since = *self.apart.get_or_insert(now);
        self.dismissed || now.since(since) > GUEST_SEPARATION_MAX
    }

    fn take(&mut self, (ask, answer): Job) {
        self.last_tag += 1;
        let tag = Tag(self.last_tag);
        self.waiting.insert(tag, answer);
        let now = self.clock.now();
        // Each transaction has an origin of its own: their callers keep the order among them.
        self.machine.submit(now, tag, tag.0, ask, &mut self.out);
    }

    fn hear(&mut self, node: NodeId, news: News) {
        // A link that has ended may have left news.
        let Some(link) = self.links.get_mut(&node) else { return };
        match news {
            News::Up(number) => {
                link.came_up(number);
                let mut messages = Vec::new();
                let enter = GuestMessage::Enter { writer: self.writer };
                encode(&mut messages, self.out.keyspace, self.out.epoch, &enter);
                link.send(messages);
            }
            News::Down => {
                link.is_up = false;
                self.entered.remove(node);
            }
            News::Messages(messages) => {
                // Unreadable messages count as lost, and are asked for again.
                let _ = self.read(node, &messages);
            }
        }
    }

    fn read(&mut self, from: NodeId, mut messages: &[u8]) -> Result<(), Malformed> {
        while let Some((header, body)) = Header::split(&mut messages)? {
            match header.kind {
                Part::Engine(quorate_meerkat::ID) => {
                    let body = Message::decode(body)?;
                    if let Kind::Values { clock, .. } = body.kind {
                        self.clock.hear(clock);
                    }
                    let event = Event::Message { from, epoch: header.epoch, body };
                    let now = self.clock.now();
                    self.machine.step(now, event, &mut self.out);
                }
                Part::Guest => match GuestMessage::decode(body)? {
                    GuestMessage::View(view) => {
                        self.entered.insert(from);
                        self.install(&view);
                    }
                    GuestMessage::Refused { .. } => self.dismissed = true,
                    _ => return Err(Malformed("a guest's message from a node")),
                },
                _ => return Err(Malformed("a message for nodes alone")),
            }
        }
        Ok(())
    }

    /// Sends messages to the nodes that have let this guest in, and answers callers.
    fn flush(&mut self) {
        for (node, messages) in &mut self.out.peers {
            let messages = std::mem::take(messages);
            let link = self.links.get(node).filter(|_| self.entered.contains(*node));
            if let Some(link) = link
                && !messages.is_empty()
            {
                link.send(messages);
            }
        }
        self.answer();
    }

    fn answer(&mut self) {
        for (tag, end) in self.out.done.drain(..) {
            if let Some(answer) = self.waiting.remove(&tag) {
                // The caller may be gone.
                let _ = answer.send(end);
            }
        }
    }
}

/// Why a transaction was not begun, as a sentence.
pub(super) fn refusal(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotServing => "the cluster is out of reach",
        Refusal::Busy => "too many transactions wait",
        Refusal::TimedOut => "the time was over before it could be decided",
        Refusal::OutOfMemory => "the nodes have no memory left",
        Refusal::DiskFull => "the disk of a node is full",
        Refusal::Conflict => "other transactions on the same keys were faster each time",
        Refusal::TooLarge => "it is larger than a message may be",
        Refusal::LeaseNeeded | Refusal::SessionFull | Refusal::CallError(_) => {
            unreachable!("a guest's transactions are no calls of a session")
        }
    }
}
