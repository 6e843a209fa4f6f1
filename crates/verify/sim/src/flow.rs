//! The messages of each node, second by second, compared with the work at hand.
//!
//! The work at hand determines the number of messages of a correct cluster. In a storm nodes ask
//! again for messages that are under way already, or answer each other without end: every answer is
//! right, and links fill up. So at the end of each window the number of messages of each kind that
//! a node has sent is compared with a bound. An op, or a takeover, costs at most one message of
//! each kind for each peer and partition (`budget.rs`), and as many again each time it is tried;
//! tries come after one timeout, two, four and so on, so there are few in a window.
//!
//! The bound is generous: it counts the work of the whole cluster as if all of it concerned each
//! node, each peer and each partition, and was tried for the whole of two windows. A storm exceeds
//! it nevertheless, since it multiplies by the number of timeouts.

use std::collections::BTreeMap;
use std::fmt;

use quorate_node::{EngineConfig, KeyspaceLane};
use quorate_types::{NodeId, limits};
use quorate_wire::{Header, Kind};

use crate::network::kind_of;
use crate::world::{MS, World};

/// How long a window is.
const WINDOW: u64 = 1_000 * MS;

/// How often within one the open work is looked at.
const LOOK: u64 = 50 * MS;

/// Gauges of unfinished work of an engine.
const OPEN: [&str; 9] = [
    "attempts",
    "undecided",
    "waiting",
    "updates_pending",
    "ops_waiting",
    "ops_forwarded",
    "pipeline",
    "requests",
    "rounds",
];
/// The gauge of takeovers, and the branch that begins one.
const TAKEOVERS_OPEN: &str = "recovering";
const TAKEOVERS_BEGUN: &str = "meerkat: backup coordinator takes over";

/// The branches that replay what a writer that is gone has begun: after the loss of all power, everything
/// whose end no log has. Each replay costs as much as an op.
const REPLAYS: [&str; 2] = ["hermes: sweep replays an orphan", "zeus: a transaction is replayed"];

/// The most timeouts between two tries.
const WAIT_MAX: u64 = 32;
/// Periodic messages of a keyspace's lane to a peer in a window, at most one every 50 ms: how far
/// its transactions are final, and which records may be forgotten.
const PERIODIC: u64 = WINDOW / (50 * MS);
/// Steps of a copy or comparison by a keyspace's lane in a window, each after the answer to the one
/// before.
const COPY_STEPS: u64 = 32;
/// Messages about the configuration log for each view: two rounds, repeated by members that are
/// late, propose at the same time or come back. A member without a majority asks again about once a
/// heartbeat.
const LOG_STEPS: u64 = 32;
/// The most by which a clock may exceed its rate.
const CLOCK_RATE_MAX: u64 = 2;
/// Bytes of a message on average, when a node sends as many as it may: most values are small.
const MESSAGE_BYTES: u64 = 4_096;

/// A kind of message: its machine, and the byte that tells its messages apart.
type Tag = (Kind, u8);

/// Messages of one sender and one kind.
#[derive(Clone, Copy, Default)]
struct Sent {
    messages: u64,
    bytes: u64,
}

/// The open work in the cluster, and the work begun since the start of the run.
#[derive(Clone, Copy, Default)]
struct Work {
    ops_begun: u64,
    /// Unfinished work of engines.
    open: u64,
    takeovers_begun: u64,
    takeovers_open: u64,
    /// The newest epoch.
    epoch: u64,
}

/// The counts of the present window.
#[derive(Default)]
pub(crate) struct Flow {
    ends_at: u64,
    sent: BTreeMap<(NodeId, Tag), Sent>,
    names: BTreeMap<Tag, String>,
    /// Ops of clients, since the run began.
    ops_begun: u64,
    /// The work at the beginning of the window before this one, and of this one.
    before: [Work; 2],
    /// The most open work that was seen in this window, and when it is looked at again. What lanes have held
    /// back until their first view may be there for less than a window, if they all die again.
    most_open: u64,
    look_at: u64,
}

impl Flow {
    /// An op of a client begins at some node.
    pub(crate) fn begin_op(&mut self) {
        self.ops_begun += 1;
    }

    /// A node or guest sends a message.
    pub(crate) fn count(&mut self, from: NodeId, header: &Header, message: &[u8]) {
        // Meerkat's messages begin with the partition that they are about.
        let at =
            Header::BYTES + if header.kind == Kind::Engine(quorate_meerkat::ID) { 2 } else { 0 };
        let tag = (header.kind, message.get(at).copied().unwrap_or_default());
        self.names.entry(tag).or_insert_with(|| kind_of(message));
        let sent = self.sent.entry((from, tag)).or_default();
        sent.messages += 1;
        sent.bytes += message.len() as u64;
    }

    /// Messages of engines since the last call, by the names of their kinds; for worlds without
    /// windows.
    pub(crate) fn take_messages(&mut self) -> BTreeMap<String, u64> {
        let mut messages = BTreeMap::new();
        for ((_, tag), sent) in std::mem::take(&mut self.sent) {
            if tag.0 != Kind::Membership {
                *messages.entry(self.names[&tag].clone()).or_default() += sent.messages;
            }
        }
        messages
    }
}

/// A node that sent more messages than the bound allows.
pub(crate) struct Storm {
    from: NodeId,
    name: String,
    sent: Sent,
    bound: Sent,
    until: u64,
}

impl fmt::Display for Storm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, name, sent, bound, until } = self;
        write!(
            f,
            "{from:?} sent {} {name} of {} bytes in all in the second before {:.3}, where the work at \
             hand explains {} of {} bytes",
            sent.messages,
            sent.bytes,
            *until as f64 / 1e9,
            bound.messages,
            bound.bytes
        )
    }
}

impl World {
    /// Begins the next window once the present one has ended, and returns its storm, if it had one.
    pub(crate) fn end_window(&mut self) -> Option<Storm> {
        if self.time < self.flow.ends_at {
            if self.time >= self.flow.look_at {
                self.flow.look_at = self.time + LOOK;
                self.flow.most_open = self.flow.most_open.max(self.survey().open);
            }
            return None;
        }
        // An op of one window may be answered in the next. A lane that no view names yet holds its ops back
        // for as long, and they are open when it begins.
        let (now, [before, since]) = (self.survey(), self.flow.before);
        let most_open = std::mem::take(&mut self.flow.most_open);
        let open = before.open.max(since.open).max(now.open).max(most_open);
        let takeovers = before.takeovers_open + now.takeovers_begun - before.takeovers_begun;
        let ops = open + now.ops_begun - before.ops_begun + takeovers;
        // The nodes that know the newest view may die, so the newest epoch may fall.
        let views = 1 + now.epoch.saturating_sub(before.epoch);
        let storm = self.flow.sent.iter().find_map(|(&(from, tag), &sent)| {
            let name = &self.flow.names[&tag];
            let bound = self.bound(tag.0, name, ops, takeovers, views);
            let is_storm = sent.messages > bound.messages || sent.bytes > bound.bytes;
            let machine = match tag.0 {
                Kind::Engine(id) => EngineConfig::name_of(id).unwrap_or("?").to_owned(),
                kind => format!("{kind:?}"),
            };
            let name = format!("{machine} {name}");
            is_storm.then_some(Storm { from, name, sent, bound, until: self.time })
        });
        self.flow.ends_at = self.time + WINDOW;
        self.flow.sent.clear();
        self.flow.before = [since, now];
        storm
    }

    /// The work at this moment.
    fn survey(&self) -> Work {
        let hosts = self.nodes.iter().filter(|node| node.up).flat_map(|node| &node.lanes);
        let engines = hosts.flat_map(|host| {
            self.keyspaces.iter().filter_map(|keyspace| host.lane.engine(keyspace.id))
        });
        let gauges = engines.map(KeyspaceLane::facts).flat_map(|facts| facts.gauges);
        let (mut open, mut takeovers_open) = (0, 0);
        for (name, value) in gauges {
            open += if OPEN.contains(&name) { value } else { 0 };
            takeovers_open += if name == TAKEOVERS_OPEN { value } else { 0 };
        }
        let replays = REPLAYS.iter().filter_map(|name| self.probes.get(name)).sum::<u64>();
        Work {
            ops_begun: self.flow.ops_begun + replays,
            open,
            takeovers_open,
            takeovers_begun: self.probes.get(TAKEOVERS_BEGUN).copied().unwrap_or(0),
            epoch: self.newest_view().map_or(0, |view| view.epoch.0),
        }
    }

    /// The most that one node may send of a kind in a window.
    fn bound(&self, kind: Kind, name: &str, ops: u64, takeovers: u64, views: u64) -> Sent {
        let peers = (self.nodes.len() - 1 + self.guests.len()) as u64;
        let partitions = self.groups().count() as u64;
        let machines = u64::from(self.lanes()) * self.keyspaces.len() as u64;
        let timeouts = CLOCK_RATE_MAX * WINDOW / self.loss_timeout.as_nanos() as u64;
        // Hermes, the leader of an epoch change and membership ask again at every timeout.
        let patient = 1 + u64::from(timeouts.ilog2()) + timeouts / WAIT_MAX;
        let tries = if kind == Kind::Engine(quorate_meerkat::ID) { patient } else { 1 + timeouts };
        let heartbeat = (self.nodes[0].config.lease / 3).as_nanos() as u64;
        // A lane sends at most this many heartbeats.
        let heartbeats = u64::from(self.lanes()) * CLOCK_RATE_MAX * (1 + WINDOW / heartbeat);
        let part = limits::CHUNK_BYTES as u64;
        let (messages, bytes) = match (kind, name) {
            (Kind::Membership, "Log") => (2 * heartbeats + LOG_STEPS * views, MESSAGE_BYTES),
            // A node that stood still answers the messages of two windows in one.
            (Kind::Membership, _) => (2 * heartbeats, MESSAGE_BYTES),
            (_, "Prepare" | "Promise" | "Superseded") => {
                (partitions * tries * (1 + takeovers), MESSAGE_BYTES)
            }
            (_, "Freeze" | "Frozen" | "TakeIn" | "TakenIn" | "Adopt" | "Adopted" | "Release") => {
                (machines * (1 + timeouts) * views, part)
            }
            (_, "Compare" | "Compared" | "DifferenceRead" | "Difference" | "ChunkRead")
            | (_, "Chunk" | "CallsRead" | "Calls") => (machines * COPY_STEPS, part),
            // Besides, a delta whose base is not here is asked about as often as it comes.
            (_, "ValueRead") => (machines * COPY_STEPS + partitions * tries * ops, part),
            _ => (partitions * (tries * ops + 2 * machines * PERIODIC), MESSAGE_BYTES),
        };
        Sent { messages: peers * messages, bytes: peers * messages * bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_meerkat::{Kind as Meerkat, Message};
    use quorate_types::{Epoch, KeyspaceId};

    use crate::budget::idle_cluster;

    #[test]
    fn who_sends_more_than_the_work_explains_is_named() {
        let mut world = idle_cluster(3, EngineConfig::meerkat());
        world.flow = Flow { before: [world.survey(); 2], ..Flow::default() };
        let mut message = Vec::new();
        Header::frame(
            &mut message,
            Kind::Engine(quorate_meerkat::ID),
            KeyspaceId(0),
            Epoch(1),
            |writer| {
                Message { partition: 0, kind: Meerkat::Stable { stable: 1 } }.encode(writer);
            },
        );
        let header = Header::split(&mut &message[..]).expect("it is sound");
        let (header, _) = header.expect("it is whole");
        // Twenty times a second, to two peers, in two windows.
        for (sent, expected) in [(80, None), (81, Some(STORM))] {
            (0..sent).for_each(|_| world.flow.count(NodeId(2), &header, &message));
            world.time += WINDOW;
            let storm = world.end_window().map(|storm| storm.to_string());
            assert_eq!(storm.as_deref(), expected);
        }
    }

    const STORM: &str = "n2 sent 81 meerkat Stable of 2187 bytes in all in the second before 10.000, \
                         where the work at hand explains 80 of 327680 bytes";
}
