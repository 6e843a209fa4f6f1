//! What disks do beside losing what no flush has covered: bits rot, sectors lie in the wrong place,
//! requests fail, there is no room, and everything takes long.
//!
//! What is durable is damaged when processes end, and so that a majority of the replicas keep everything:
//! others must have a copy. Where the end of a log is, rot can't be told from a write
//! that was cut short (design note 012), so it stays away from there. A node must find what was damaged,
//! or not need it: the logs that it calls intact end where they did.

use quorate_durability::{Directory, DiskError, VOTER_FILE};
use quorate_node::{NodeFound, Opened, RestoredStore};
use quorate_types::{Lsn, NodeSet};

use crate::Faults;
use crate::disks::NodeDisk;
use crate::process::Node;
use crate::script::{Fault, Process};
use crate::trace::At;
use crate::world::{Event, MS, World};

/// What happens while a request to a disk is under way.
#[derive(Default)]
pub(crate) struct WithARequest {
    /// The requests before that one.
    pub(crate) after: u64,
    pub(crate) faults: Vec<Fault>,
}

impl WithARequest {
    /// So many requests begin. Gives what happens with them.
    pub(crate) fn take(&mut self, requests: u64) -> Vec<Fault> {
        let is_due = self.after < requests;
        self.after = self.after.saturating_sub(requests);
        if is_due { std::mem::take(&mut self.faults) } else { Vec::new() }
    }
}

/// The longest time that a request takes on a slow disk.
pub(crate) const SLOW_MAX: u64 = 400 * MS;
/// Places of a disk that are damaged at once, at most.
const PLACES_MAX: u64 = 3;
/// What a disk writes at once.
const SECTOR: usize = 512;

/// No other fault.
const NO: Faults = Faults::NONE;

/// What happens to disks, each with the faults without which it can't.
pub(crate) const DISK_PROBES: &[(&str, Faults)] = &[
    ("disk: a flush fails", Faults { failing: true, ..NO }),
    ("disk: a node begins without its damaged log", Faults { rot: true, ..NO }),
    ("disk: a node goes on with a damaged disk", Faults { rot: true, ..NO }),
    ("disk: a sector holds neither the old nor the new", NO),
    ("disk: a sector is damaged, bits flip", Faults { rot: true, ..NO }),
    ("disk: a sector is damaged, it was not written", Faults { rot: true, ..NO }),
    ("disk: a sector is damaged, it was written for another place", Faults { rot: true, ..NO }),
    ("disk: a sector is torn", NO),
    ("disk: a write fails", Faults { failing: true, ..NO }),
    ("disk: an older snapshot counts", Faults { rot: true, ..NO }),
    ("disk: has all that its node has when that ends", NO),
    ("disk: has no room for a node that begins", Faults { full: true, ..NO }),
    ("disk: is full", Faults { full: true, ..NO }),
    ("disk: is slow", Faults { slow: true, ..NO }),
    ("disk: the power of a group goes", NO),
    ("disk: too few disks are left", NO),
    ("disk: the power of all nodes goes", NO),
];

/// What a disk does not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failing {
    Write,
    Flush,
}

/// What is wrong with a node's disk.
#[derive(Default)]
pub(crate) struct Trouble {
    /// The next of these fails.
    pub(crate) fails: Option<Failing>,
    pub(crate) is_full: bool,
    pub(crate) is_slow: bool,
    /// Where the log of each lane ended before the disk was damaged.
    ends: Option<Vec<Lsn>>,
}

/// Whose disks may be damaged.
#[derive(Default)]
pub(crate) struct Rot {
    /// When processes were ended last.
    at: u64,
    /// The nodes that had everything then, and whose disks have kept it.
    sound: NodeSet,
}

impl Node {
    /// Whether its disk has room and is as fast as ever.
    pub(crate) fn is_disk_well(&self) -> bool {
        self.disk.as_ref().is_none_or(|disk| !disk.trouble.is_full && !disk.trouble.is_slow)
    }
}

impl NodeDisk {
    /// Damages what it has kept, in places where that must be found. The names of what happened.
    fn damage(&mut self, found: &NodeFound) -> Vec<&'static str> {
        self.trouble.ends = Some(found.lanes.iter().map(|lane| lane.end()).collect());
        let tails: Vec<_> = found.lanes.iter().filter_map(|lane| lane.tail()).collect();
        let mut written = Vec::new();
        for file in self.files.files().expect("a directory can be listed") {
            let tail = tails.iter().find(|(name, _)| **name == file.name);
            let end = tail.map_or(usize::MAX, |(_, offset)| *offset as usize);
            for (number, sector) in self.files.content(&file.name).chunks(SECTOR).enumerate() {
                if (number + 1) * SECTOR <= end && sector.iter().any(|byte| *byte != 0) {
                    written.push((file.name.clone(), number, sector.to_vec()));
                }
            }
        }
        let mut done = Vec::new();
        for _ in 0..1 + self.rng.below(PLACES_MAX) {
            if written.is_empty() {
                break;
            }
            let count = written.len() as u64;
            let (from, to) = (self.rng.below(count) as usize, self.rng.below(count) as usize);
            let (file, number, sector) = written[to].clone();
            let (name, sector) = match self.rng.below(3) {
                0 => ("disk: a sector is damaged, it was not written", vec![0; sector.len()]),
                1 if written[from].2 != sector => (
                    "disk: a sector is damaged, it was written for another place",
                    written[from].2.clone(),
                ),
                _ => {
                    let at = self.rng.below(sector.len() as u64) as usize;
                    let mut sector = sector;
                    sector[at] ^= 1 << self.rng.below(8);
                    ("disk: a sector is damaged, bits flip", sector)
                }
            };
            self.files.damage(&file, (number * SECTOR) as u64, &sector);
            done.push(name);
        }
        done
    }
}

impl World {
    /// Notes who has everything before processes are ended.
    pub(crate) fn note_sound(&mut self) {
        // A node that was just disturbed may be expelled any moment now.
        let is_quiet = self.time >= self.quiet_at;
        let sound = if is_quiet { self.holders() } else { NodeSet::EMPTY };
        self.rot = Rot { at: self.time, sound };
    }

    /// Whether the disk of a node may be damaged: it has just gone down, and a majority keeps everything. Where
    /// the others can have a view without those that went with it, these do not count: out of the view, what
    /// they have kept is of no use, and a person would have to say how to go on (seed 167,592 of Meerkat).
    pub(crate) fn may_rot(&self, node: usize) -> bool {
        let this = &self.nodes[node];
        let up: NodeSet = self.nodes.iter().filter(|node| node.up).map(|node| node.id).collect();
        let goes_on = self.newest_view().is_some_and(|view| up.is_majority_of(view.voters()));
        let sound = self.rot.sound.without(this.id);
        let sound = if goes_on { sound.intersection(up) } else { sound };
        this.disk.is_some()
            && !this.up
            && self.rot.at == self.time
            && self.rot.sound.contains(this.id)
            && self.all_groups(|group| sound.is_majority_of(group))
    }

    /// What the disk of a node has kept is damaged.
    pub(crate) fn damage_disk(&mut self, node: usize) {
        let (time, this) = (self.time, &mut self.nodes[node]);
        let id = this.id;
        self.rot.sound.remove(id);
        let Some(disk) = &mut this.disk else { return };
        let Ok(found) = NodeFound::look(&mut disk.files, &this.config) else { return };
        let done = disk.damage(&found);
        self.note_damaged(node);
        for name in done {
            self.probe(name, 1);
        }
        self.trace.event(&[time, 14, u64::from(id.0)], || format!("{} rot {id:?}", At(time)));
    }

    /// Compares what a node begins with with what its disk held before it was damaged.
    pub(crate) fn check_opened(&mut self, node: usize, opened: &Opened) {
        let this = &mut self.nodes[node];
        let Some(disk) = &mut this.disk else { return };
        let Some(ends) = disk.trouble.ends.take() else { return };
        let (id, lanes) = (this.id, &opened.found.lanes);
        if opened.store != RestoredStore::Intact {
            return self.probe("disk: a node begins without its damaged log", 1);
        }
        for (lane, end) in lanes.iter().zip(ends) {
            assert!(
                lane.end() >= end,
                "{id:?} goes on with a log that ends at {}, and it was durable up to {end}",
                lane.end()
            );
        }
        let older = opened.damaged_snapshots().count() as u64;
        self.probe("disk: an older snapshot counts", older);
        self.probe("disk: a node goes on with a damaged disk", 1);
    }

    /// The next write or flush of a node's disk fails.
    pub(crate) fn fail_disk(&mut self, node: usize, what: Failing) {
        if let Some(disk) = &mut self.nodes[node].disk {
            disk.trouble.fails = Some(what);
        }
    }

    /// Whether a disk may fail now, which ends its process.
    pub(crate) fn may_fail(&self, node: usize) -> bool {
        let fails = self.nodes[node].disk.as_ref().is_some_and(|disk| disk.trouble.fails.is_some());
        fails && !self.healed && (self.nodes.len() == 1 || self.may_kill(node))
    }

    /// A process ends since its disk has failed: it must say so and name the file.
    pub(crate) fn end_with_disk(&mut self, node: usize, why: &str) {
        let id = self.nodes[node].id;
        assert!(
            why.starts_with("the disk has failed: ")
                && (why.contains("lane-") || why.contains(VOTER_FILE)),
            "{id:?} says '{why}'"
        );
        self.kill(node);
        self.ambushed.push(Process::Node(node));
    }

    /// Counts a request that has failed.
    pub(crate) fn note_failure(&mut self, what: DiskError) {
        match what {
            DiskError::Io => self.probe("disk: a write fails", 1),
            DiskError::Flush => self.probe("disk: a flush fails", 1),
            DiskError::Full => self.probe("disk: is full", 1),
        }
    }

    /// A node's disk has no room for a while.
    pub(crate) fn fill_disk(&mut self, node: usize, span: u64) {
        if let Some(disk) = &mut self.nodes[node].disk {
            disk.trouble.is_full = true;
            disk.files.set_reserved(u64::MAX);
        }
        self.trouble_begins(node, span, "full");
    }

    /// What is asked of a node's disk takes long for a while.
    pub(crate) fn slow_disk(&mut self, node: usize, span: u64) {
        if let Some(disk) = &mut self.nodes[node].disk {
            disk.trouble.is_slow = true;
        }
        self.probe("disk: is slow", 1);
        self.trouble_begins(node, span, "slow");
    }

    fn trouble_begins(&mut self, node: usize, span: u64, what: &str) {
        let (time, id) = (self.time, self.nodes[node].id);
        self.changed();
        self.schedule(time + span, Event::DiskMends { node });
        self.trace.event(&[time, 15, u64::from(id.0), span], || {
            format!("{} the disk of {id:?} is {what} for {} ms", At(time), span / MS)
        });
    }

    /// A disk has room again, is as fast as it was, and does what it is asked for.
    pub(crate) fn mend_disk(&mut self, node: usize) {
        let (time, id, healed) = (self.time, self.nodes[node].id, self.healed);
        let Some(disk) = &mut self.nodes[node].disk else { return };
        disk.files.set_reserved(0);
        disk.trouble.fails = disk.trouble.fails.filter(|_| !healed);
        if std::mem::take(&mut disk.trouble.is_full) | std::mem::take(&mut disk.trouble.is_slow) {
            self.changed();
            self.trace.event(&[time, 16, u64::from(id.0)], || {
                format!("{} the disk of {id:?} is well", At(time))
            });
        }
    }

    /// Whether all disks have room and are as fast as ever.
    pub(crate) fn disks_are_well(&self) -> bool {
        self.nodes.iter().all(Node::is_disk_well)
    }

    /// Counts what losses of power have done to sectors.
    pub(crate) fn count_torn_sectors(&mut self) {
        for node in 0..self.nodes.len() {
            let Some(disk) = &mut self.nodes[node].disk else { return };
            let counts = disk.files.device().counts();
            let count = |name| counts.get(name).copied().unwrap_or(0);
            let torn = count("power cut: sector torn");
            let garbled = count("power cut: sector garbled");
            self.probe("disk: a sector is torn", torn);
            self.probe("disk: a sector holds neither the old nor the new", garbled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_with_the_request_that_was_drawn_and_once() {
        let mut drawn = WithARequest { after: 3, faults: vec![Fault::Blackout] };
        assert_eq!(drawn.take(2), []);
        assert_eq!(drawn.take(1), []);
        assert_eq!(drawn.take(1), [Fault::Blackout], "the fourth");
        assert_eq!(drawn.take(9), []);
    }
}
