//! Disks of the nodes of a cluster: what their lanes append, what of it the power leaves, and what
//! waits for it.

use quorate_machine::{Completion, Event, Gate, Gated, Machine, Rng, SavePoint};
use quorate_types::{LaneId, Lsn, NodeId, Tag};

use crate::cluster::{Cluster, Host};
use crate::packet::Packet;
use crate::subject::{OutcomeOf, Process, Subject};

/// What promises wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logs {
    /// There is no log.
    None,
    /// For the log.
    Sync,
    /// For nothing: what was appended becomes durable some time later.
    Async,
    /// At nodes of even numbers for the log, at the others for nothing.
    Mixed,
}

impl Logs {
    /// Whether promises of a node wait for its log.
    pub(crate) fn waits(self, node: u16) -> bool {
        match self {
            Self::None | Self::Async => false,
            Self::Sync => true,
            Self::Mixed => node.is_multiple_of(2),
        }
    }
}

/// What waits for the log of its lane.
pub(crate) enum Held<S: Subject> {
    Message(Packet<S>),
    Answer(Tag, Completion<OutcomeOf<S>>),
}

/// The log of a lane.
pub(crate) struct LaneLog<S: Subject> {
    /// The entries of the newest complete snapshot.
    saved: Vec<Vec<u8>>,
    /// What was appended since that snapshot began.
    entries: Vec<(Lsn, Vec<u8>)>,
    appended: Lsn,
    durable: Lsn,
    saving: Option<Saving>,
    held: Gated<Held<S>>,
}

/// A snapshot under way.
struct Saving {
    /// The place behind which replay begins.
    begun: Lsn,
    next: SavePoint,
    entries: Vec<Vec<u8>>,
}

impl<S: Subject> Default for LaneLog<S> {
    fn default() -> Self {
        Self {
            saved: Vec::new(),
            entries: Vec::new(),
            appended: Lsn::START,
            durable: Lsn::START,
            saving: None,
            held: Gated::default(),
        }
    }
}

impl<S: Subject> LaneLog<S> {
    /// The place before the next entry.
    pub(crate) fn appended(&self) -> Lsn {
        self.appended
    }

    /// Takes what a step has appended.
    pub(crate) fn append(&mut self, entries: Vec<Vec<u8>>) {
        for entry in entries {
            self.appended = Lsn(self.appended.0 + 1);
            self.entries.push((self.appended, entry));
        }
    }

    /// Keeps something until the log is durable up to its gate, or gives it back.
    pub(crate) fn hold(&mut self, lsn: Lsn, held: Held<S>) -> Option<Held<S>> {
        assert!(lsn <= self.appended, "a gate names what was appended");
        if self.held.is_durable(lsn) {
            return Some(held);
        }
        self.held.push(Gate::durable(lsn), held);
        None
    }

    /// The process ends with the power: of so many entries that were not durable, as many are lost as
    /// `lose` says.
    fn cut(&mut self, lose: impl FnOnce(usize) -> usize) {
        let volatile = self.entries.iter().filter(|(lsn, _)| *lsn > self.durable).count();
        let lost = lose(volatile);
        self.entries.truncate(self.entries.len() - lost);
        self.appended = Lsn(self.appended.0 - lost as u64);
        self.durable = self.appended;
        self.saving = None;
        self.held = Gated::default();
        self.held.set_durable(self.durable);
    }
}

impl<S: Subject> Cluster<S> {
    /// Nodes that start from now on have disks, on which their lanes keep logs.
    pub fn keep_logs(&mut self, logs: Logs) {
        self.logs = logs;
    }

    /// Gives a node an empty disk.
    pub(crate) fn format(&mut self, node: u16) {
        if self.logs != Logs::None {
            let lanes = (0..self.subject.lanes()).map(|_| LaneLog::default()).collect();
            self.disks.insert(node, lanes);
        }
    }

    /// All that the lanes of a node have appended is durable. Whether it was not yet.
    pub fn flush_log(&mut self, node: u16) -> bool {
        let mut flushed = false;
        for lane in 0..self.disks.get(&node).map_or(0, Vec::len) as u16 {
            flushed |= self.flush_lane(node, lane);
        }
        flushed
    }

    /// The same of every node.
    pub fn flush_logs(&mut self) -> bool {
        let nodes: Vec<u16> = self.disks.keys().copied().collect();
        nodes.into_iter().fold(false, |flushed, node| self.flush_log(node) | flushed)
    }

    /// All that a lane of a node has appended is durable. Whether it was not yet.
    pub fn flush_lane(&mut self, node: u16, lane: u16) -> bool {
        let is_up = self.hosts.get(&node).is_some_and(|host| host.up);
        let Some(log) = self.log_mut(node, lane).filter(|log| is_up && log.durable < log.appended)
        else {
            return false;
        };
        log.durable = log.appended;
        let durable = log.durable;
        log.held.set_durable(durable);
        let mut free = Vec::new();
        log.held.release(|held| free.push(held));
        free.into_iter().for_each(|held| self.let_go(held));
        self.step_on(node, lane, Event::Durable(durable));
        true
    }

    /// Whether all that the lanes of a node have appended is durable.
    pub fn is_flushed(&self, node: u16) -> bool {
        self.disks.get(&node).is_none_or(|logs| logs.iter().all(|log| log.durable == log.appended))
    }

    pub(crate) fn log_mut(&mut self, node: u16, lane: u16) -> Option<&mut LaneLog<S>> {
        self.disks.get_mut(&node)?.get_mut(usize::from(lane))
    }

    /// The power of a node goes: its process ends, and of what was not durable a part that the
    /// generator chooses is lost.
    pub fn cut_power(&mut self, node: u16, rng: &mut Rng) {
        self.cut(node, |volatile| rng.below(volatile as u64 + 1) as usize);
    }

    /// The power of a node goes: its process ends, and all that was not durable is lost.
    pub fn cut_power_unflushed(&mut self, node: u16) {
        self.cut(node, |volatile| volatile);
    }

    /// The last batch of a node that is down has rotted, and was taken for one that was torn: so many entries
    /// are lost that were durable.
    pub fn rot_end(&mut self, node: u16, lane: u16, entries: usize) {
        self.log_mut(node, lane).expect("a node with a disk").cut(|_| entries);
    }

    fn cut(&mut self, node: u16, mut lose: impl FnMut(usize) -> usize) {
        self.crash(node);
        for log in self.disks.get_mut(&node).expect("a node with a disk") {
            log.cut(&mut lose);
        }
    }

    /// Starts a process that restores what its node's disk has, if it has one, under a fresh incarnation. No view
    /// names it yet. With an odd seed its last lane is the first to restore, otherwise its lane 0; with the
    /// seeds whose second bit is set all lanes restore at once, an entry of one, then one of another.
    pub fn restart(&mut self, node: u16, seed: u64) {
        let (incarnation, now) = (self.incarnation(), self.now);
        let none: Vec<LaneLog<S>> = (0..self.subject.lanes()).map(|_| LaneLog::default()).collect();
        let logs = self.disks.get(&node).unwrap_or(&none);
        let start = |lane| {
            let (node, lane) = (NodeId(node), LaneId(lane as u16));
            self.subject.start(Process { node, lane, incarnation, seed, now })
        };
        let mut machines: Vec<_> = (0..logs.len()).map(start).collect();
        let logs =
            logs.iter().map(|log| log.saved.iter().chain(log.entries.iter().map(|(_, it)| it)));
        let mut lanes: Vec<_> = machines.iter_mut().zip(logs).collect();
        if seed % 2 == 1 {
            lanes.reverse();
        }
        let mut rng = Rng::new(seed);
        let is_mixed = seed % 4 >= 2;
        while !lanes.is_empty() {
            let next = if is_mixed { rng.below(lanes.len() as u64) as usize } else { 0 };
            let (machine, entries) = &mut lanes[next];
            match entries.next() {
                Some(entry) => machine.restore(entry).expect("what was appended can be read"),
                None => drop(lanes.remove(next)),
            }
        }
        machines.iter_mut().for_each(Machine::restored);
        self.hosts.insert(node, Host::new(machines, incarnation));
    }

    /// Saves some more of what a lane of a node holds, and begins a snapshot if none is under way.
    /// Whether it has become complete: what the log has from before its beginning is gone then.
    pub fn save_some(&mut self, node: u16, lane: u16, bytes: usize) -> bool {
        let log = self.log_mut(node, lane).expect("a node with a disk");
        let begun = log.appended;
        let mut saving = log.saving.take().unwrap_or(Saving {
            begun,
            next: SavePoint::START,
            entries: Vec::new(),
        });
        let host = self.hosts.get_mut(&node).expect("a known node");
        let machine = &mut host.machines[usize::from(lane)];
        let next =
            machine.save(saving.next, bytes, &mut |entry| saving.entries.push(entry.to_vec()));
        if let Some(next) = next {
            saving.next = next;
            self.log_mut(node, lane).expect("it was there").saving = Some(saving);
            return false;
        }
        // What the last entry has seen is durable before the snapshot counts.
        match S::SNAPSHOTS_AWAIT_LANES {
            true => self.flush_log(node),
            false => self.flush_lane(node, lane),
        };
        let log = self.log_mut(node, lane).expect("it was there");
        log.entries.retain(|(lsn, _)| *lsn > saving.begun);
        log.saved = saving.entries;
        true
    }

    /// Saves all that a lane of a node holds.
    pub fn save(&mut self, node: u16, lane: u16) {
        while !self.save_some(node, lane, 1) {}
    }

    /// What a lane's log has: the newest snapshot, then what was appended since it began.
    pub fn log_of(&self, node: u16, lane: u16) -> Vec<&[u8]> {
        let log = &self.disks[&node][usize::from(lane)];
        let entries = log.entries.iter().map(|(_, entry)| entry);
        log.saved.iter().chain(entries).map(Vec::as_slice).collect()
    }
}
