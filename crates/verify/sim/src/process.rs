//! Processes: the nodes of a world, which start, die without warning, stop and go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_machine::ValueKind;
use quorate_node::{Lane, NodeConfig, Outbox, Shared};
use quorate_types::{Epoch, Incarnation, KeyspaceId, LaneId, NodeId, Now, Timestamp, UnixNanos};

use crate::collections;
use crate::disks::NodeDisk;
use crate::loader;
use crate::losses::{Left, Unflushed};
use crate::monotonic::Monotonic;
use crate::trace::At;
use crate::turns::DueTurns;
use crate::untold::Untold;
use crate::world::{Answer, Event, MS, WALL_START, World};

/// The longest delay of the hint that the connections to a dead process are gone.
const HINT_MAX: u64 = 20 * MS;

/// A key with a value: its name, its version, and the value.
pub(crate) type Entry = (String, String, String);

/// One node, and the process that runs there.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) config: NodeConfig,
    pub(crate) shared: Arc<Shared>,
    pub(crate) lanes: Vec<LaneHost>,
    pub(crate) up: bool,
    /// Counts the processes of this node.
    pub(crate) life: u64,
    /// Counts its incarnations: messages to an earlier one are lost, as connections break.
    pub(crate) link: u64,
    /// The incarnations of the running process: it keeps the memory of an earlier one.
    pub(crate) lives: Vec<Incarnation>,
    /// The last view of the node that the operator has seen, by cluster and epoch.
    pub(crate) seen: (Incarnation, Epoch),
    /// Guests that are connected, with their lanes and the numbers of their connections.
    pub(crate) seats: BTreeMap<NodeId, (u16, u64)>,
    /// The time of each lane's last turn, and the number of turns before it at that time.
    pub(crate) turns: Vec<(u64, u64)>,
    pub(crate) monotonic: Monotonic,
    /// How far the wall clock is from the true time.
    pub(crate) wall_error: i64,
    /// Its disk, if it has one.
    pub(crate) disk: Option<NodeDisk>,
    /// What the last process had when it ended.
    pub(crate) left: Left,
}

/// One lane of a process, and its driver's state.
pub(crate) struct LaneHost {
    pub(crate) lane: Lane,
    pub(crate) out: Outbox,
    pub(crate) reads: Vec<Answer>,
    pub(crate) wake_at: u64,
    /// The time until which it stands still, if it does.
    stopped_until: Option<u64>,
    /// When it has gone on for the last time.
    went_on_at: u64,
    /// When it has appended what may not be durable.
    pub(crate) unflushed: Unflushed,
    /// What it has committed without all replicas knowing it.
    pub(crate) untold: Untold,
    /// Events that it will find when it goes on.
    backlog: Vec<Event>,
    /// The turn was interrupted before its output left.
    pub(crate) interrupted: bool,
    /// The clock reading for the first request that had arrived when the lane stopped: the lane
    /// handles that request by it afterwards. The lane reads the clock again for later requests,
    /// after it has taken them from their sockets.
    pub(crate) clock_read_at: Option<u64>,
    /// Turns so far.
    turns: u64,
    /// Those that nothing has come for. What a lane finds when it goes on after a stop is as much as has
    /// come meanwhile.
    pub(crate) due: DueTurns,
}

/// Turns between two checks of everything that a lane holds: a check takes as long as many turns.
const TURNS_UNCHECKED: u64 = 16;

impl LaneHost {
    /// Whether it stands still.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped_until.is_some()
    }

    /// Whether it has stood still since then.
    pub(crate) fn was_stopped_since(&self, time: u64) -> bool {
        self.is_stopped() || self.went_on_at >= time
    }

    /// Called after each turn. Asserts now and then the invariants between turns; the tests of the
    /// machines and the model checker do so after every step.
    pub(crate) fn check_invariants(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_UNCHECKED) {
            self.lane.check_invariants();
        }
    }
}

impl Node {
    pub(crate) fn clock(&self, at: u64) -> Now {
        let wall = (WALL_START + at).saturating_add_signed(self.wall_error);
        Now { monotonic: self.monotonic.read(at), unix: UnixNanos(wall) }
    }

    /// Whether a lane of it stands still.
    pub(crate) fn is_stopped(&self) -> bool {
        self.lanes.iter().any(|host| host.stopped_until.is_some())
    }

    /// The node's phase in words.
    pub(crate) fn phase(&self, at: u64) -> String {
        self.lanes[0].lane.phase(self.clock(at))
    }

    /// A lane of the process.
    pub(crate) fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane].lane
    }

    /// Every key of a keyspace that has a value here, with its version and value, in order of key.
    pub(crate) fn contents(&self, keyspace: KeyspaceId) -> Vec<Entry> {
        let mut contents = Vec::new();
        each_record(&self.shared, keyspace, |record| {
            let Record { entry: (key, version, value), is_readable, has_value, .. } = record;
            if has_value || !is_readable {
                contents.push((key, format!("{version} {is_readable}"), value));
            }
        });
        contents.sort();
        contents.dedup();
        contents
    }

    /// The keys of a keyspace's records, and whether each has a value.
    pub(crate) fn records(&self, keyspace: KeyspaceId) -> Vec<(Vec<u8>, bool)> {
        let store = self.shared.store(keyspace).expect("every node knows every keyspace");
        let mut records = Vec::new();
        store.dump(&mut |key, _, _, content| records.push((key.to_vec(), content.is_some())));
        records
    }

    /// How a keyspace's accounting differs from its records, if it does.
    pub(crate) fn misaccount(&self, keyspace: KeyspaceId) -> Option<String> {
        let store = self.shared.store(keyspace).expect("every node knows every keyspace");
        let mut held = BTreeMap::new();
        store.dump(&mut |key, _, _, value| {
            held.insert(key.to_vec(), value.is_some());
        });
        let records = held.len() as u64;
        let with_value = held.values().filter(|has_value| **has_value).count() as u64;
        let said = store.stats();
        ((said.records, said.with_value) != (records, with_value)).then(|| {
            format!(
                "{:?} accounts for {} records of keyspace {}, {} with a value; there are {records}, \
                 {with_value} with a value",
                self.id, said.records, keyspace.0, said.with_value
            )
        })
    }

    /// The keys whose records are not readable.
    pub(crate) fn unreadable(&self, keyspace: KeyspaceId) -> Vec<Vec<u8>> {
        let store = self.shared.store(keyspace).expect("every node knows every keyspace");
        let mut keys = Vec::new();
        store.dump(&mut |key, _, readable, _| {
            if !readable {
                keys.push(key.to_vec());
            }
        });
        keys.sort();
        keys.dedup();
        keys
    }
}

/// Records that a message about a difference shows at most.
const SHOWN: usize = 8;

/// The first of these records that those lack; both are in order.
pub(crate) fn only_in(these: &[Entry], those: &[Entry]) -> Vec<Entry> {
    let differs = |entry: &&Entry| those.binary_search(entry).is_err();
    these.iter().filter(differs).take(SHOWN).cloned().collect()
}

/// A record in the memory of a process.
pub(crate) struct Record {
    pub(crate) entry: Entry,
    pub(crate) version: Timestamp,
    pub(crate) is_readable: bool,
    pub(crate) has_value: bool,
}

/// Shows every record of a keyspace in the memory of a process.
pub(crate) fn each_record(shared: &Shared, keyspace: KeyspaceId, mut visit: impl FnMut(Record)) {
    let store = shared.store(keyspace).expect("every node knows every keyspace");
    store.dump(&mut |key, version, is_readable, content| {
        let expiry = content.and_then(|content| content.expire_at);
        let expiry = expiry.map_or(String::new(), |at| format!(" until {}", at.0));
        let value = match content {
            Some(content) if content.kind != ValueKind::String => collections::shown(key, content),
            _ => loader::shown(key, content.map_or(&[][..], |content| content.bytes)),
        };
        let key = String::from_utf8_lossy(key).into_owned();
        let entry = (key, format!("{version:?}{expiry}"), value);
        visit(Record { entry, version, is_readable, has_value: content.is_some() });
    });
}

impl World {
    /// Starts a process: fresh incarnation, empty memory.
    pub(crate) fn start(&mut self, node: usize) {
        let seed = self.rng.next_u64();
        let incarnation = Incarnation(self.rng.next_u64().max(1));
        let time = self.time;
        self.changed();
        self.reconfigure(node, seed);
        let this = &mut self.nodes[node];
        this.config.seed = seed;
        this.shared = Shared::new(this.config.clone());
        this.life += 1;
        this.link += 1;
        this.lives = vec![incarnation];
        this.up = true;
        this.seats.clear();
        let now = this.clock(time);
        let buffer_bytes = self.network.buffer_bytes;
        this.lanes = (0..this.config.lanes)
            .map(|lane| LaneHost {
                lane: Lane::new(Arc::clone(&this.shared), LaneId(lane), incarnation, now),
                out: Outbox::bounded(buffer_bytes),
                reads: Vec::new(),
                wake_at: u64::MAX,
                stopped_until: None,
                went_on_at: 0,
                unflushed: Unflushed::default(),
                untold: Untold::default(),
                backlog: Vec::new(),
                interrupted: false,
                turns: 0,
                due: DueTurns::default(),
                clock_read_at: None,
            })
            .collect();
        let id = this.id;
        self.trace.event(&[time, 1, u64::from(id.0)], || format!("{} start {id:?}", At(time)));
        if !self.open_disk(node) {
            self.make_room(node);
            return self.start(node);
        }
        for lane in 0..self.nodes[node].lanes.len() {
            self.finish_turn(node, lane);
        }
        // The others' connections to it stand again, later than any hint that they broke.
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            for lane in 0..self.lanes() {
                let life = self.nodes[other].life;
                let found = Event::PeerFound { node: other, life, lane, found: node };
                self.schedule(time + HINT_MAX, found);
            }
        }
    }

    /// Ends a process without warning; its unsent messages are lost. Its node may lose power with it.
    pub(crate) fn kill(&mut self, node: usize) {
        let power = self.draw_power(node);
        if (0..self.nodes.len()).all(|other| other == node || !self.nodes[other].up) {
            self.note_outage(self.nodes.iter().map(|node| node.id).collect());
        }
        self.end_process(node, power);
    }

    /// Ends a process without warning, with the power of its node or without.
    pub(crate) fn end_process(&mut self, node: usize, power: bool) {
        self.note_left(node);
        self.check_logged(node);
        self.end_disk(node, power);
        let (time, id) = (self.time, self.nodes[node].id);
        self.disturbed();
        self.changed();
        self.died.push(node);
        self.forget_requests(node);
        // By the view of those that ran until now: one that has missed it may take itself for a member.
        if self.survivors([id].into_iter().collect()).is_empty() {
            self.powerless_at = Some(time);
        }
        self.nodes[node].up = false;
        self.nodes[node].life += 1;
        self.nodes[node].link += 1;
        self.trace.event(&[time, 2, u64::from(id.0)], || format!("{} kill {id:?}", At(time)));
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            // A broken connection is a hint that may come at once, late, or (here) never.
            for lane in 0..self.lanes() {
                if self.nodes[other].up && self.rng.chance(1, 2) {
                    let at = self.time + self.rng.below(HINT_MAX);
                    self.tell_lost(at, other, id, lane);
                }
            }
        }
    }

    /// Schedules that a node learns that a lane's connection to a peer is gone.
    pub(crate) fn tell_lost(&mut self, at: u64, node: usize, lost: NodeId, lane: u16) {
        let life = self.nodes[node].life;
        self.schedule(at, Event::PeerLost { node, life, lane, lost });
    }

    /// Stops a process for a while, or one lane of it; it notices nothing.
    pub(crate) fn pause(&mut self, node: usize, only: Option<u16>, span: u64) {
        let (time, id) = (self.time, self.nodes[node].id);
        let until = time + span;
        self.changed();
        for (lane, host) in self.nodes[node].lanes.iter_mut().enumerate() {
            if only.is_none_or(|only| usize::from(only) == lane) {
                host.stopped_until = host.stopped_until.max(Some(until));
            }
        }
        let life = self.nodes[node].life;
        let word = only.map_or(u64::MAX, u64::from);
        self.trace.event(&[time, 3, u64::from(id.0), word, span], || {
            let lane = only.map_or(String::new(), |lane| format!(" lane {lane}"));
            format!("{} pause {id:?}{lane} for {} ms", At(time), span / MS)
        });
        self.schedule(until, Event::Resume { node, life });
    }

    /// The clock of a node runs wrong by so many millionths, for a while.
    pub(crate) fn set_rate(&mut self, node: usize, ppm: i64, span: u64) {
        let (time, id) = (self.time, self.nodes[node].id);
        let until = time + span;
        self.changed();
        self.nodes[node].monotonic.run(time, ppm, until);
        self.trace.event(&[time, 11, u64::from(id.0), ppm.cast_unsigned()], || {
            format!("{} the clock of {id:?} is off by {ppm} ppm", At(time))
        });
        self.schedule(until, Event::RateEnds { node });
        self.look_at_clock(node);
    }

    /// Lets wrong clocks run right again when their time has come.
    pub(crate) fn mend_rate(&mut self, node: usize, at_once: bool) {
        let (time, id) = (self.time, self.nodes[node].id);
        if !self.nodes[node].monotonic.mend(time, at_once) {
            return;
        }
        self.disturbed();
        self.changed();
        self.trace.event(&[time, 12, u64::from(id.0)], || {
            format!("{} the clock of {id:?} runs right", At(time))
        });
        self.look_at_clock(node);
    }

    /// The spans in which some clock ran wrong, each prolonged by a lease, which may have begun at
    /// its last moment: a node may have believed meanwhile in a lapsed lease.
    pub(crate) fn unleased(&self) -> Vec<(u64, u64)> {
        let times = self.nodes.iter().flat_map(|node| {
            let config = &node.config;
            let lease = config.lease.as_nanos() * 1_000_000;
            let lease = lease / u128::from(1_000_000 - config.clock_drift_ppm) + 1;
            let lease = u64::try_from(lease).unwrap_or(u64::MAX);
            node.monotonic.wrong().map(move |(from, to)| (from, to.saturating_add(lease)))
        });
        times.collect()
    }

    /// Each lane looks at the clock again, since its deadlines come sooner or later than it
    /// thought.
    fn look_at_clock(&mut self, node: usize) {
        let (time, life) = (self.time, self.nodes[node].life);
        for lane in 0..self.nodes[node].lanes.len() {
            self.nodes[node].lanes[lane].wake_at = time;
            self.schedule(time, Event::Wake { node, life, lane: lane as u16 });
        }
    }

    /// Lets the lanes of a process go on whose time has come.
    pub(crate) fn resume(&mut self, node: usize) {
        let (time, id) = (self.time, self.nodes[node].id);
        self.disturbed();
        self.changed();
        let mut backlog = Vec::new();
        for lane in 0..self.nodes[node].lanes.len() {
            let host = &mut self.nodes[node].lanes[lane];
            if host.stopped_until.is_none_or(|until| until > time) {
                continue;
            }
            host.stopped_until = None;
            host.went_on_at = time;
            backlog.append(&mut host.backlog);
            let interrupted = std::mem::take(&mut host.interrupted);
            self.trace.event(&[time, 4, u64::from(id.0), lane as u64], || {
                format!("{} resume {id:?} lane {lane}", At(time))
            });
            if interrupted {
                self.flush(node, lane);
            }
        }
        // Requests of its clients come first: that is the harder case.
        let (requests, rest): (Vec<_>, Vec<_>) = { backlog }
            .into_iter()
            .partition(|event| matches!(event, Event::Request { .. } | Event::SessionTry { .. }));
        for event in requests.into_iter().chain(rest) {
            self.schedule(time, event);
        }
    }

    /// Keeps an event for a lane that stands still. Gives the event back otherwise.
    pub(crate) fn hold(&mut self, node: usize, lane: u16, event: Event) -> Option<Event> {
        let time = self.time;
        let host = &mut self.nodes[node].lanes[usize::from(lane)];
        if host.stopped_until.is_none() {
            return Some(event);
        }
        if matches!(event, Event::Request { .. } | Event::SessionTry { .. }) {
            // The first op had arrived, and the clock had been read, when the lane stopped.
            host.clock_read_at.get_or_insert(time);
        }
        host.backlog.push(event);
        None
    }
}
