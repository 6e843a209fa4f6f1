//! Nodes with disks: their logs and voters' files on simulated devices, and the power that goes.
//!
//! Each request ends a while after it was made, some much later than others. When a process is killed,
//! what it has written stays in the cache of the system, and what was under way may or may not have
//! happened; when the power goes, each sector that no flush has covered is kept, lost or torn.

use std::sync::Arc;

use quorate_disk::{Device, DeviceFaults, Files};
use quorate_durability::{Completion, Directory, Disk, DiskError, Request, Ticket, VOTER_FILE};
use quorate_machine::Rng;
use quorate_node::{
    Aside, DiskDone, DiskOwner, DiskRequest, Durability, EngineConfig, KeyspaceConfig, Lane,
    LaneFound, NodeConfig, NodeFound, Opened, Opening, Shared, Verdict,
};
use quorate_types::{Duration, Incarnation, KeyspaceId, LaneId, NodeSet, Now};

use crate::Options;
use crate::disk_faults::{Failing, SLOW_MAX, Trouble};
use crate::keyspaces::Keyspace;
use crate::operator::Ruin;
use crate::trace::At;
use crate::world::{Event, MS, World};

/// Bytes of each node's disk.
const DISK_BYTES: usize = 48 << 20;
/// Bytes of a segment: runs have less data than machines.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Growth of a log after which a lane takes a snapshot.
const SNAPSHOT_AFTER: u64 = 64 << 10;
/// Of so many keyspaces operators change their minds about one.
const MIXED_ONE_IN: u64 = 6;
/// The longest time that a request takes, in most runs.
const REQUEST_MAX: u64 = MS;

/// The disk of one node.
pub(crate) struct NodeDisk {
    pub(crate) files: Files,
    under_way: Vec<UnderWay>,
    counted: u64,
    pub(crate) rng: Rng,
    /// The longest time that a request takes.
    request_max: u64,
    /// What it does whenever it has the chance.
    faults: DeviceFaults,
    pub(crate) trouble: Trouble,
}

/// A request under way.
struct UnderWay {
    /// The number under which the disk knows it.
    number: u64,
    lane: u16,
    owner: DiskOwner,
    /// The ticket under which its owner knows it.
    ticket: Ticket,
    /// When it was made.
    at: u64,
    /// The file that it is for, or what else it is about.
    file: String,
}

impl NodeDisk {
    pub(crate) fn new(mut rng: Rng) -> Self {
        // On every other disk a torn sector may hold neither the old nor the new.
        let garbled = if rng.chance(1, 2) { 500 } else { 0 };
        let faults = DeviceFaults { garbled, short_write: 20, ..DeviceFaults::default() };
        let device = Device::new(DISK_BYTES, 512, faults, rng.next_u64());
        let files = Files::new(device, rng.next_u64());
        // On one disk in four each flush takes as long as on a spinning one.
        let request_max = if rng.chance(1, 4) { 12 * REQUEST_MAX } else { REQUEST_MAX };
        let trouble = Trouble::default();
        Self { files, under_way: Vec::new(), counted: 0, rng, request_max, faults, trouble }
    }

    /// Whether the disk is at work on a request of a lane that is not for a snapshot.
    pub(crate) fn is_under_way(&self, lane: u16) -> bool {
        let is_waited_for = |owner| !matches!(owner, DiskOwner::Snapshot(_));
        self.under_way.iter().any(|work| work.lane == lane && is_waited_for(work.owner))
    }

    fn submit(&mut self, lane: u16, DiskRequest { owner, ticket, request }: DiskRequest, at: u64) {
        self.counted += 1;
        let file = match &request {
            Request::Create { file }
            | Request::Zero { file, .. }
            | Request::Write { file, .. }
            | Request::Remove { file } => file.to_string(),
            Request::FlushDirectory => "the directory".into(),
        };
        self.under_way.push(UnderWay { number: self.counted, lane, owner, ticket, at, file });
        self.files.submit(Ticket(self.counted), request);
    }

    /// Takes steps until a request has ended, which may fail if the disk is to.
    fn step(&mut self, may_fail: bool) -> Option<(UnderWay, Completion)> {
        let faults = match self.trouble.fails.filter(|_| may_fail) {
            None => self.faults,
            Some(Failing::Write) => DeviceFaults { write_error: 1_000, ..self.faults },
            Some(Failing::Flush) => DeviceFaults { flush_error: 1_000, ..self.faults },
        };
        self.files.device().set_faults(faults);
        while !self.files.is_idle() {
            let Some(mut completion) = self.files.step() else { continue };
            self.files.device().set_faults(self.faults);
            if matches!(completion.result, Err(DiskError::Io | DiskError::Flush)) {
                self.trouble.fails = None;
            }
            let number = completion.ticket.0;
            let at = self.under_way.iter().position(|work| work.number == number);
            let work = self.under_way.swap_remove(at.expect("it was made"));
            completion.ticket = work.ticket;
            return Some((work, completion));
        }
        None
    }

    /// Files are put where nothing reads them again.
    fn put_aside(&mut self, aside: Aside) {
        for file in self.files.files().expect("a directory can be listed") {
            if &*file.name != VOTER_FILE || aside == Aside::All {
                self.files.delete(&file.name);
            }
        }
    }

    /// Has the lanes of a process take in what their logs hold, one after the other in any order: each lane of
    /// a process does it when it can.
    fn restore<'a>(
        &mut self,
        begun: impl Iterator<Item = &'a mut Lane>,
        found: Vec<LaneFound>,
        has_past: bool,
    ) {
        let mut lanes: Vec<_> = begun.zip(found).collect();
        let mut restored = Vec::new();
        while !lanes.is_empty() {
            let next = self.rng.below(lanes.len() as u64) as usize;
            let (lane, found) = lanes.swap_remove(next);
            let seed = self.rng.next_u64();
            lane.open_log(found, &mut self.files, seed, &mut |_, _| {})
                .expect("what was appended can be restored");
            restored.push(lane);
        }
        if has_past {
            restored.into_iter().for_each(Lane::restored);
        }
    }

    /// What a process would have in its memory that found the files as they are now, unless they are damaged.
    /// They stay as they are.
    pub(crate) fn memory(
        &mut self,
        config: &NodeConfig,
        now: Now,
    ) -> Option<(Arc<Shared>, Vec<Lane>)> {
        let looked = NodeFound::look(&mut self.files, config);
        let Ok(Verdict::Use(opened)) = Opening::default().judge(looked) else { return None };
        let Opened { found, has_past, .. } = *opened;
        let shared = Shared::new(config.clone());
        let lane = |lane| Lane::new(Arc::clone(&shared), LaneId(lane), Incarnation(1), now);
        let mut lanes: Vec<Lane> = (0..config.lanes).map(lane).collect();
        // What happens next depends on no question.
        let rng = self.rng.clone();
        self.restore(lanes.iter_mut(), found.lanes, has_past);
        self.rng = rng;
        while lanes.iter_mut().fold(false, |any, lane| any | lane.restore_parked()) {}
        Some((shared, lanes))
    }

    /// The process ends; with the power, if it is that.
    fn end(&mut self, power: bool) {
        // What is under way gets as far as chance has it.
        for _ in 0..self.rng.below(2 * self.under_way.len() as u64 + 1) {
            self.files.step();
        }
        self.under_way.clear();
        if power {
            self.files.power_cut();
        } else {
            self.files.process_crash();
        }
    }
}

/// Has all keyspaces of a cluster keep what they promise, each with the durability that the options name or
/// the seed draws. Some are in memory. Of some the operators change their minds: each node has one of the two,
/// or begins in memory, and has another one perhaps when it starts again; these keyspaces are given out. In
/// words, what was chosen.
pub(crate) fn make_durable(
    configs: &mut [NodeConfig],
    seed: u64,
    options: &Options,
) -> (Vec<KeyspaceId>, String) {
    let mut rng = Rng::new(seed ^ u64::from_le_bytes(*b"promises"));
    let interval = [2, 10, 10, 50][rng.below(4) as usize];
    let count = configs[0].keyspaces.len();
    let drawn: Vec<Durability> = (0..count).map(|_| draw_durability(&mut rng)).collect();
    let any = |rng: &mut Rng| options.durability.is_none() && rng.chance(1, MIXED_ONE_IN);
    let mixed: Vec<bool> = (0..count).map(|_| any(&mut rng)).collect();
    // Not with quorums: where a majority has forgotten what it has decided, the keyspace waits for a person.
    let may_forget =
        |keyspace: &KeyspaceConfig| !matches!(keyspace.engine, EngineConfig::Meerkat(_));
    let named = options.durability.filter(|named| *named != Durability::Memory);
    let all_forget = options.durability == Some(Durability::Memory);
    let forgets: Vec<bool> = { configs[0].keyspaces.iter() }
        .map(|keyspace| (any(&mut rng) || all_forget) && may_forget(keyspace))
        .collect();
    for config in configs {
        config.log.segment_bytes = SEGMENT_BYTES;
        config.log.snapshot_after = SNAPSHOT_AFTER;
        config.log.fsync_interval = Duration::from_millis(interval);
        for (index, keyspace) in config.keyspaces.iter_mut().enumerate() {
            keyspace.durability = match mixed[index] {
                _ if forgets[index] => Durability::Memory,
                true => draw_durability(&mut rng),
                false => named.unwrap_or(drawn[index]),
            };
            if let EngineConfig::Hermes(options) = &mut keyspace.engine
                && (keyspace.durability == Durability::Sync || mixed[index])
            {
                // Not with promises that wait for the log.
                options.ack_broadcast = false;
            }
        }
    }
    let name = |index: usize| match mixed[index] {
        true if forgets[index] => "memory at first",
        true => "either",
        false if forgets[index] => Durability::Memory.name(),
        false => named.unwrap_or(drawn[index]).name(),
    };
    let names: Vec<&str> = (0..count).map(name).collect();
    let text = format!(", disks: {} within {interval} ms", names.join(" and "));
    let ids = (0..count).filter(|index| mixed[*index]).map(|index| KeyspaceId(index as u8));
    (ids.collect(), text)
}

fn draw_durability(rng: &mut Rng) -> Durability {
    [Durability::Async, Durability::Sync][rng.below(2) as usize]
}

impl World {
    /// Operators change their minds about these keyspaces, which promise what the weaker choice does.
    pub(crate) fn mix(&mut self, mixed: Vec<KeyspaceId>) {
        for keyspace in self.keyspaces.iter_mut().filter(|keyspace| mixed.contains(&keyspace.id)) {
            if keyspace.durability == Durability::Sync {
                keyspace.durability = Durability::Async;
            }
        }
        self.mixed = mixed;
    }

    /// The operator of a node that is about to start may have changed his mind about some keyspaces.
    pub(crate) fn reconfigure(&mut self, node: usize, seed: u64) {
        let mut rng = Rng::new(seed ^ u64::from_le_bytes(*b"new mind"));
        let keyspaces = self.nodes[node].config.keyspaces.iter_mut();
        for keyspace in keyspaces.filter(|keyspace| self.mixed.contains(&keyspace.id)) {
            // Who has entries in the log does not start without them.
            if keyspace.durability != Durability::Memory || rng.chance(1, 2) {
                keyspace.durability = draw_durability(&mut rng);
            }
        }
    }

    /// Whether a person could tell that these disks are lost, and everybody else is here. What a minority of a
    /// partition has may be older than an earlier loss: of that no judge could tell what was lost when.
    pub(crate) fn may_ruin(&self, lost: NodeSet) -> bool {
        let leaves_minority = |keyspace: &Keyspace| {
            let mut groups = keyspace.groups.iter();
            matches!(keyspace.engine, EngineConfig::Meerkat(_))
                && groups.any(|group| !group.difference(lost).is_majority_of(*group))
        };
        if !self.outages.is_empty() && self.keyspaces.iter().any(leaves_minority) {
            return false;
        }
        let all: NodeSet = self.nodes.iter().map(|node| node.id).collect();
        let is_whole = self.newest_view().is_some_and(|view| view.active() == all);
        is_whole && self.nodes.iter().all(|node| node.up) && lost.is_subset(all) && lost != all
    }

    /// All nodes lose power, and these their disks.
    pub(crate) fn ruin(&mut self, lost: NodeSet) {
        let Some(cluster) = self.newest_view().map(|view| view.cluster) else { return };
        self.ruin = Some(Ruin { lost, cluster, is_over: false });
        self.note_outage_of(self.nodes.iter().map(|node| node.id).collect(), lost);
        self.probe("disk: too few disks are left", 1);
        for node in 0..self.nodes.len() {
            match lost.contains(self.nodes[node].id) {
                true => self.empty_disk(node),
                false => self.end_process(node, true),
            }
        }
        self.schedule(self.time + 500 * MS, Event::AcceptLoss);
    }

    /// Ends a process with the power of its node, which comes back with an empty disk.
    pub(crate) fn empty_disk(&mut self, node: usize) {
        self.end_process(node, true);
        if let Some(disk) = &mut self.nodes[node].disk {
            disk.put_aside(Aside::All);
            self.mend_disk(node);
        }
    }

    /// Opens the logs of a process that has just begun, and what its node has promised as a voter. Returns
    /// whether there was room for it.
    pub(crate) fn open_disk(&mut self, node: usize) -> bool {
        let time = self.time;
        let this = &mut self.nodes[node];
        let now = this.clock(time);
        let Some(disk) = &mut this.disk else { return true };
        let mut opening = Opening::default();
        let opened = loop {
            let looked = NodeFound::look(&mut disk.files, &this.config);
            match opening.judge(looked).expect("each node has the directory that it has written") {
                Verdict::Use(opened) => break *opened,
                Verdict::PutAside { aside, .. } => disk.put_aside(aside),
            }
        };
        opened.damaged_snapshots().for_each(|(file, _)| disk.files.delete(file));
        self.check_opened(node, &opened);
        let Opened { found: NodeFound { lanes, voter }, store, has_past } = opened;
        let this = &mut self.nodes[node];
        let Some(disk) = &mut this.disk else { return true };
        disk.restore(this.lanes.iter_mut().map(|host| &mut host.lane), lanes, has_past);
        let lane = &mut this.lanes[0].lane;
        lane.open_voter(now, voter, store).expect("a state of this version");
        // What the node promises comes first. Then what was found is made durable for certain, before the
        // node says anything.
        self.write_until(node, 1, Lane::is_voter_saved)
            && self.write_until(node, self.nodes[node].lanes.len(), Lane::is_ready)
    }

    /// The first lanes of a node write until something is on the disk of each. Returns whether it has room
    /// for that.
    fn write_until(&mut self, node: usize, lanes: usize, is_there: impl Fn(&Lane) -> bool) -> bool {
        loop {
            // The end of a request has a say before the next is made.
            for lane in 0..lanes {
                if !self.lacks_room(node, lanes) {
                    self.write_log(node, lane);
                }
            }
            if self.lacks_room(node, lanes) {
                return false;
            }
            let this = &self.nodes[node];
            if this.lanes[..lanes].iter().all(|host| is_there(&host.lane)) {
                return true;
            }
            let id = this.id;
            let ended = self.disk_step(node, false);
            ended.unwrap_or_else(|| panic!("{id:?} waits for its disk in vain"));
        }
    }

    /// Whether one of the first lanes of a node ends the process, as its disk has no room.
    fn lacks_room(&self, node: usize, lanes: usize) -> bool {
        let this = &self.nodes[node];
        let failed = this.lanes[..lanes].iter().find_map(|host| host.out.failed.as_ref());
        let is_full = this.disk.as_ref().is_some_and(|disk| disk.trouble.is_full);
        assert!(failed.is_none_or(|why| is_full && why.contains("no room")), "{failed:?}");
        failed.is_some()
    }

    /// A process that has found no room on its disk ends at once, and somebody makes room.
    pub(crate) fn make_room(&mut self, node: usize) {
        self.probe("disk: has no room for a node that begins", 1);
        if let Some(disk) = &mut self.nodes[node].disk {
            disk.end(false);
            disk.files.set_reserved(0);
        }
    }

    /// Ends a turn of a lane for its log: what it asks of the disk is under way from here on.
    pub(crate) fn write_log(&mut self, node: usize, lane: usize) {
        if self.nodes[node].disk.is_none() {
            return;
        }
        self.note_untold(node, lane);
        let (time, answered) = (self.time, self.answered_since(node, lane));
        let this = &mut self.nodes[node];
        let (now, life) = (this.clock(time), this.life);
        let Some(disk) = &mut this.disk else { return };
        let host = &mut this.lanes[lane];
        assert_eq!(host.out.failed, None, "a process that ends does not write");
        host.lane.write_log(now, &mut host.out);
        if let Some(ends) = host.lane.log_ends() {
            host.unflushed.note(time, answered, ends);
        }
        let requests = std::mem::take(&mut host.out.disk);
        let ends = requests.len();
        requests.into_iter().for_each(|request| disk.submit(lane as u16, request, time));
        for _ in 0..ends {
            let at = time + 1 + self.nodes[node].disk_span();
            self.schedule(at, Event::Disk { node, life });
        }
        if ends > 0 {
            let at = time + self.nodes[node].disk_span();
            for fault in self.with_a_request.take(ends as u64) {
                self.schedule(at, Event::Fault(fault));
            }
        }
    }

    /// Some request of a node ends. The lane that had made it, if there was one.
    fn disk_step(&mut self, node: usize, may_fail: bool) -> Option<usize> {
        let time = self.time;
        let this = &mut self.nodes[node];
        let now = this.clock(time);
        let disk = this.disk.as_mut().expect("a node with a disk");
        let (UnderWay { lane, owner, at, file, .. }, completion) = disk.step(may_fail)?;
        let took = Duration::from_nanos(time - at);
        let failure = completion.result.err();
        let error = failure.map_or(String::new(), |failure| format!("{file}: {failure:?}"));
        let done = DiskDone { owner, completion, took, error };
        let (id, host) = (this.id, &mut this.lanes[usize::from(lane)]);
        host.lane.disk_done(now, done, &mut host.out);
        if let Some(failure) = failure {
            let goes_on = host.out.failed.is_none();
            self.note_failure(failure);
            assert!(!goes_on || failure == DiskError::Full, "{id:?} goes on: {file}: {failure:?}");
        }
        Some(usize::from(lane))
    }

    /// A request of a running node ends, and its lane goes on, or its process ends.
    pub(crate) fn disk_event(&mut self, node: usize) {
        let may_fail = self.may_fail(node);
        let Some(lane) = self.disk_step(node, may_fail) else { return };
        if let Some(why) = self.nodes[node].lanes[lane].out.failed.take() {
            return self.end_with_disk(node, &why);
        }
        if !self.nodes[node].lanes[lane].is_stopped() {
            self.finish_turn(node, lane);
        }
    }

    /// Whether a process that is killed takes the power of its node with it.
    pub(crate) fn draw_power(&mut self, node: usize) -> bool {
        self.nodes[node].disk.as_mut().is_some_and(|disk| disk.rng.chance(1, 2))
    }

    /// What a node's disk keeps when its process ends.
    pub(crate) fn end_disk(&mut self, node: usize, power: bool) {
        let (time, id) = (self.time, self.nodes[node].id);
        let Some(disk) = &mut self.nodes[node].disk else { return };
        disk.end(power);
        self.trace.event(&[time, 13, u64::from(id.0), u64::from(power)], || {
            format!("{} the power of {id:?} goes: {power}", At(time))
        });
    }
}

impl crate::process::Node {
    fn disk_span(&mut self) -> u64 {
        let disk = self.disk.as_mut().expect("a node with a disk");
        disk.rng.below(if disk.trouble.is_slow { SLOW_MAX } else { disk.request_max })
    }
}
