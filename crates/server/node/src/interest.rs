//! What the clients of a lane listen to, told to the same lane of every other node, so that messages
//! go only where somebody listens, and publishers are told how many do.
//!
//! A lane tells each node everything once the node is live in the view, in parts, and then what
//! changes, at the end of the turn in which it does. Each message names the one before it; the
//! receiver acknowledges what it has heard without a gap. If that takes too long, the lane begins anew
//! with everything. Until a node has told everything, publications go to it in any case.
//!
//! A client's subscription is confirmed once every active node has acknowledged it, so that what is
//! published after the confirmation reaches the client, wherever it is published. A node that doesn't
//! answer delays it for a bounded time: what is published there may be lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_commands::Reply;
use quorate_machine::{Outcome, mutant};
use quorate_types::{Incarnation, Instant, KeyspaceId, NodeId, NodeSet, Now, Tag, Topic, limits};
use quorate_wire::{Header, Kind, PubSubMessage, TopicCount};

use crate::pubsub::GAP_TIMEOUTS;
use crate::{Done, Lane, Outbox};

/// For how many timeouts for lost messages an acknowledgement is waited for.
const HEARD_TIMEOUTS: u32 = 5;
/// What a name takes of a message besides its bytes.
const NAME_FRAME_BYTES: usize = 9;

/// What one lane tells of its clients, and what it has heard.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    /// Names whose number of listeners has changed since the others were told.
    changed: BTreeSet<(Topic, Box<[u8]>)>,
    /// Counts changes.
    revision: u64,
    /// The last change from nobody who listens to somebody.
    vital: u64,
    /// The number of the last message.
    last: u64,
    told: BTreeMap<NodeId, Told>,
    /// The life of each node, and the number of the last message that was heard of it.
    heard: BTreeMap<NodeId, (Incarnation, u64)>,
    waiting: VecDeque<Waiting>,
}

/// What another node was told.
#[derive(Debug)]
struct Told {
    life: Incarnation,
    /// The number of the last message to it; 0 if it is to begin anew.
    last: u64,
    /// Behind which name the telling of everything goes on, until everything was told.
    walk: Option<(Topic, Option<Box<[u8]>>)>,
    /// Messages that it has not acknowledged, each with the revision that it knows once it has.
    unheard: VecDeque<(u64, u64)>,
    /// The revision that it knows.
    knows: u64,
    /// When to begin anew, unless something is acknowledged before.
    again_at: Instant,
}

/// A subscription that is confirmed once the others know of it.
#[derive(Debug)]
struct Waiting {
    revision: u64,
    tag: Tag,
    until: Instant,
}

impl Told {
    fn new(life: Incarnation) -> Self {
        Self {
            life,
            last: 0,
            walk: Some((Topic::Channel, None)),
            unheard: VecDeque::new(),
            knows: 0,
            again_at: Instant::NEVER,
        }
    }
}

impl Interest {
    /// When the lane wants its next turn at the latest; the past if there is something to tell.
    pub(crate) fn next_deadline(&self) -> Instant {
        if self.has_news() {
            return Instant::ZERO;
        }
        let again = self.told.values().map(|told| told.again_at);
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        again.chain(waiting).min().unwrap_or(Instant::NEVER)
    }

    /// Whether there is something to tell.
    fn has_news(&self) -> bool {
        !self.changed.is_empty() || self.told.values().any(|told| told.walk.is_some())
    }

    /// Subscriptions whose confirmation waits.
    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = Tag> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.tag)
    }

    /// The revision that all of these nodes know.
    fn known_to(&self, nodes: NodeSet) -> u64 {
        let knows = |node: NodeId| self.told.get(&node).map_or(0, |told| told.knows);
        nodes.into_iter().map(knows).min().unwrap_or(u64::MAX)
    }
}

/// Parts of a list that are short enough for one message each.
fn parts(counts: Vec<TopicCount>) -> Vec<Vec<TopicCount>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for count in counts {
        if bytes > limits::CHUNK_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += count.name.len() + NAME_FRAME_BYTES;
        parts.last_mut().expect("there is one").push(count);
    }
    parts
}

impl Lane {
    /// So many clients of this lane listen to a name from now on.
    pub fn listen(&mut self, topic: Topic, name: &[u8], clients: u32) {
        let place = (self.shared.config.node, self.id);
        let before = self.shared.listeners.set(topic, name, place, clients);
        let interest = &mut self.pubsub.interest;
        interest.revision += 1;
        if before == 0 && clients > 0 {
            interest.vital = interest.revision;
        }
        interest.changed.insert((topic, name.into()));
    }

    /// Whether every active node knows which names the clients of this lane listen to.
    pub fn is_announced(&self) -> bool {
        let interest = &self.pubsub.interest;
        let others = self.view.active().without(self.shared.config.node);
        interest.known_to(others) >= interest.vital || mutant!("node_subscription_not_announced")
    }

    /// Answers once every active node knows which names the clients of this lane listen to, or when
    /// that takes too long.
    pub fn announce(&mut self, now: Now, tag: Tag) {
        let until = now.monotonic + self.shared.config.message_loss_timeout * GAP_TIMEOUTS;
        let interest = &mut self.pubsub.interest;
        interest.waiting.push_back(Waiting { revision: interest.vital, tag, until });
    }

    /// Answers those that have waited enough.
    fn answer_announced(&mut self, now: Now, out: &mut Outbox) {
        let others = self.view.active().without(self.shared.config.node);
        let interest = &mut self.pubsub.interest;
        if interest.waiting.is_empty() {
            return;
        }
        let known = interest.known_to(others);
        interest.waiting.retain(|waiting| {
            let ends = waiting.revision <= known || waiting.until <= now.monotonic;
            if ends {
                out.done.push(Done::new(waiting.tag, Outcome::Done(Reply::Ok)));
            }
            !ends
        });
    }

    /// Tells the others what has changed, and those that are told everything the next part of it.
    pub(crate) fn tell_interest(&mut self, now: Now, out: &mut Outbox) {
        if !self.pubsub.interest.has_news() {
            return;
        }
        self.tell_changes(now, out);
        let nodes: Vec<NodeId> = self.pubsub.interest.told.keys().copied().collect();
        for node in nodes {
            self.tell_part(now, node, out);
        }
        self.answer_announced(now, out);
    }

    fn tell_changes(&mut self, now: Now, out: &mut Outbox) {
        if self.pubsub.interest.changed.is_empty() {
            return;
        }
        let place = (self.shared.config.node, self.id);
        let changed = std::mem::take(&mut self.pubsub.interest.changed).into_iter();
        let counts = changed.map(|(topic, name)| {
            let count = self.shared.listeners.clients(topic, &name, place);
            TopicCount { topic, name, count }
        });
        let nodes: Vec<NodeId> = self.pubsub.interest.told.keys().copied().collect();
        let parts = parts(counts.collect());
        let last = parts.len() - 1;
        for (nth, counts) in parts.into_iter().enumerate() {
            for &node in &nodes {
                let told = &self.pubsub.interest.told[&node];
                // Who has heard nothing yet will hear everything.
                if told.last > 0 {
                    let complete = told.walk.is_none();
                    let covers = complete && nth == last;
                    self.send_listen(now, node, complete, covers, counts.clone(), out);
                }
            }
        }
    }

    /// Tells a node the next part of everything, if it has yet to hear it.
    fn tell_part(&mut self, now: Now, node: NodeId, out: &mut Outbox) {
        let place = (self.shared.config.node, self.id);
        let Some(told) = self.pubsub.interest.told.get_mut(&node) else { return };
        let Some((topic, after)) = told.walk.take() else { return };
        let (counts, next) =
            self.shared.listeners.part(topic, after.as_deref(), place, limits::CHUNK_BYTES);
        let complete = next.is_none();
        told.walk = next;
        self.send_listen(now, node, complete, complete, counts, out);
    }

    fn send_listen(
        &mut self,
        now: Now,
        node: NodeId,
        complete: bool,
        covers: bool,
        counts: Vec<TopicCount>,
        out: &mut Outbox,
    ) {
        let timeout = self.shared.config.message_loss_timeout;
        let interest = &mut self.pubsub.interest;
        let Some(told) = interest.told.get_mut(&node) else { return };
        interest.last += 1;
        let (number, base) = (interest.last, std::mem::replace(&mut told.last, interest.last));
        told.unheard.push_back((number, if covers { interest.revision } else { 0 }));
        told.again_at = now.monotonic + timeout * HEARD_TIMEOUTS;
        let message = PubSubMessage::Listen { to: told.life, number, base, complete, counts };
        self.send_pubsub(node, &message, out);
    }

    fn send_pubsub(&self, to: NodeId, message: &PubSubMessage, out: &mut Outbox) {
        let epoch = self.view.epoch;
        out.frame(NodeSet::only(to), |buffer| {
            Header::frame(buffer, Kind::PubSub, KeyspaceId(0), epoch, |writer| {
                message.encode(writer);
            });
        });
    }

    /// A node says what clients of the same lane there listen to.
    pub(crate) fn hear_listen(
        &mut self,
        (from, life): (NodeId, Incarnation),
        (number, base): (u64, u64),
        complete: bool,
        counts: &[TopicCount],
        out: &mut Outbox,
    ) {
        let place = (from, self.id);
        let heard = self.pubsub.interest.heard.entry(from).or_insert((life, 0));
        let mut keys = Vec::new();
        if heard.0 != life {
            *heard = (life, 0);
            keys.extend(self.shared.listeners.forget(place));
        }
        if number > heard.1 {
            if base == 0 {
                keys.extend(self.shared.listeners.forget(place));
            } else if base != heard.1 && !mutant!("node_interest_with_gaps") {
                return crate::lane::count(&mut self.counts.ignored, "pubsub: after a gap");
            }
            heard.1 = number;
            keys.extend(self.shared.listeners.hear(place, counts, complete));
        }
        let heard = PubSubMessage::Heard { to: life, number: heard.1 };
        // Before they are told that it is heard.
        self.watch_for_others(keys);
        self.send_pubsub(from, &heard, out);
    }

    /// A node has heard everything up to the message of this number.
    pub(crate) fn hear_heard(&mut self, now: Now, from: NodeId, number: u64, out: &mut Outbox) {
        let timeout = self.shared.config.message_loss_timeout;
        let Some(told) = self.pubsub.interest.told.get_mut(&from) else { return };
        while let Some(&(first, revision)) = told.unheard.front()
            && first <= number
        {
            told.unheard.pop_front();
            told.knows = told.knows.max(revision);
        }
        told.again_at = match told.unheard.is_empty() {
            true => Instant::NEVER,
            false => now.monotonic + timeout * HEARD_TIMEOUTS,
        };
        self.answer_announced(now, out);
    }

    /// Begins anew with those that have not acknowledged in time, and answers what waited too long.
    pub(crate) fn tick_interest(&mut self, now: Now, out: &mut Outbox) {
        for told in self.pubsub.interest.told.values_mut() {
            if told.again_at <= now.monotonic {
                let knows = told.knows;
                *told = Told { knows, ..Told::new(told.life) };
            }
        }
        self.answer_announced(now, out);
    }

    /// A new view is in force: forgets who is gone, and begins to tell who has come.
    pub(crate) fn install_interest(&mut self, now: Now, out: &mut Outbox) {
        let (me, view) = (self.shared.config.node, self.view.clone());
        let is_live = |node: NodeId, life: Incarnation| view.is_live(node, life);
        let (lane, listeners) = (self.id, &self.shared.listeners);
        let mut keys = Vec::new();
        let interest = &mut self.pubsub.interest;
        interest.told.retain(|node, told| is_live(*node, told.life));
        interest.heard.retain(|node, (life, _)| {
            let lives = is_live(*node, *life);
            if !lives {
                keys.extend(listeners.forget((*node, lane)));
            }
            lives
        });
        if is_live(me, self.incarnation) {
            for member in view.members.iter().filter(|member| member.node != me) {
                if is_live(member.node, member.incarnation) {
                    let new = || Told::new(member.incarnation);
                    interest.told.entry(member.node).or_insert_with(new);
                }
            }
        }
        self.watch_for_others(keys);
        self.answer_announced(now, out);
    }

    /// This node begins a new life: what the others said and heard is void.
    pub(crate) fn reset_interest(&mut self, out: &mut Outbox) {
        for tag in self.pubsub.interest.take_waiting() {
            out.done.push(Done::new(tag, Outcome::Done(Reply::Ok)));
        }
        for node in self.pubsub.interest.heard.keys() {
            self.watch_for_others(self.shared.listeners.forget((*node, self.id)));
        }
    }
}
