//! A lane's log and the threads that write it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::disk::{KeptBatch, LaneDisk, Worker};
use crate::files_on_disk::FileDirectory;
use crate::host::Host;
use crate::loading::Loading;
use crate::mesh::Parker;
use crate::node_disk::NodeDisk;
use crate::process;
use quorate_machine::mutant;
use quorate_node::Lane;
use quorate_types::LaneId;

/// How often a lane says how much it has restored.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// For how many turns a lane that has served a read doesn't wait for the disk itself.
const READS_REMEMBERED: u32 = 64;
/// How long a lane that ends waits for the disk.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Whether a lane may write a batch itself: if a promise waits for it, and no read is likely to come
/// meanwhile.
fn may_write(is_awaited: bool, turns_without_reads: u32) -> bool {
    let has_no_readers =
        turns_without_reads >= READS_REMEMBERED || mutant!("runtime_readers_wait_for_the_disk");
    is_awaited && has_no_readers
}

/// Whether a lane looks for what it waits for before it sleeps: acknowledgements are a few microseconds
/// away, and being woken for them costs tens. A disk is further away.
fn may_spin(is_busy: bool, awaits_log: bool) -> bool {
    is_busy && (!awaits_log || mutant!("runtime_spins_for_its_disk"))
}

impl Host {
    /// Whether the lane waits for peers, and not for its own disk.
    pub(crate) fn may_spin(&self) -> bool {
        may_spin(self.lane.is_busy(), self.lane.awaits_log())
    }

    /// Restores what earlier processes have left, and has the log go on. Waits for the other lanes of the
    /// node, and for the disk.
    ///
    /// # Errors
    /// If what is there can't be restored: a sentence.
    pub(crate) fn open_log(
        &mut self,
        node: &NodeDisk,
        parker: &Arc<Parker>,
        loading: &Loading,
    ) -> Result<(), String> {
        let lane = self.lane.id();
        let found = node.take(lane);
        let (all, begun) = (found.entries, Instant::now());
        let mut said = begun;
        let mut restored = (0, 0);
        let mut progress = |entries, bytes| {
            restored = (entries, bytes);
            loading.note(lane, entries);
            if said.elapsed() >= PROGRESS_EVERY {
                said = Instant::now();
                tracing::info!(node = %self.node, %lane, entries, bytes, of = all, "restoring");
            }
        };
        let mut directory = FileDirectory::open(&node.path).map_err(|error| error.to_string())?;
        let seed = process::random();
        let opened = self.lane.open_log(found, &mut directory, seed, &mut progress);
        // The others must not wait for a lane that has failed.
        node.lanes.wait();
        opened?;
        if node.has_past {
            self.lane.restored();
            let (entries, bytes) = restored;
            let millis = begun.elapsed().as_millis() as u64;
            tracing::info!(node = %self.node, %lane, entries, bytes, millis, "restored");
        }
        let started = LaneDisk::start(&node.path, lane, parker);
        self.disk = Some(started.map_err(|error| format!("no thread can be started: {error}"))?);
        if lane == LaneId(0) {
            let opened = self.lane.open_voter(clock::now(), node.take_voter(), node.store);
            opened.map_err(|error| error.to_string())?;
            self.write_until(|lane| lane.is_voter_saved())?;
        }
        node.lanes.wait();
        self.write_until(|lane| lane.is_ready())?;
        node.lanes.wait();
        loading.lane_is_ready();
        Ok(())
    }

    /// Writes what the lane asks for until something is on the disk.
    fn write_until(&mut self, is_there: impl Fn(&Lane) -> bool) -> Result<(), String> {
        while !is_there(&self.lane) {
            match self.write_log(clock::now(), false) {
                Some(why) => return Err(why),
                None => self.wait_for_disk(),
            }
        }
        Ok(())
    }

    /// Whether the disk has done something that the lane has not heard of.
    pub(crate) fn has_disk_done(&self) -> bool {
        self.disk.as_ref().is_some_and(LaneDisk::has_done)
    }

    /// Tells the lane what the disk has done. Returns whether there was anything.
    pub(crate) fn take_disk_done(&mut self) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let mut any = false;
        while let Some(done) = disk.take() {
            any = true;
            self.lane.disk_done(clock::now(), done, &mut self.out);
        }
        any
    }

    /// Has the disk write what is due. If the lane `may_keep` a batch, it decides before it sleeps who
    /// writes that. Gives why the process must end, if it must.
    pub(crate) fn write_log(&mut self, now: quorate_types::Now, may_keep: bool) -> Option<String> {
        let disk = self.disk.as_mut()?;
        self.lane.write_log(now, &mut self.out);
        let may_keep = may_keep && may_write(self.lane.awaits_log(), self.turns_without_reads);
        for request in self.out.disk.drain(..) {
            if may_keep {
                disk.keep(request);
            } else {
                disk.submit(request);
            }
        }
        let is_full = self.lane.is_disk_full();
        if is_full != std::mem::replace(&mut self.disk_was_full, is_full) {
            let (node, lane) = (self.node, self.lane.id());
            if is_full {
                tracing::error!(%node, %lane, "the disk is full: updates are refused, reads go on");
            } else {
                tracing::info!(%node, %lane, "the disk has room again: updates are taken");
            }
        }
        self.out.failed.take()
    }

    /// Whether a batch waits for somebody to write it.
    pub(crate) fn keeps_batch(&self) -> bool {
        self.disk.as_ref().is_some_and(LaneDisk::keeps)
    }

    /// The lane has other things to do: the thread writes the batch that was kept.
    pub(crate) fn hand_batch_over(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.hand_over();
        }
    }

    /// The lane has nothing to do but to wait for the batch that was kept: its thread writes that.
    pub(crate) fn take_kept_batch(&mut self) -> Option<KeptBatch> {
        self.disk.as_mut()?.take_kept()
    }

    /// The batch is written, and the lane goes on with this thread.
    pub(crate) fn batch_is_written(&mut self, worker: Worker) {
        if let Some(disk) = &mut self.disk {
            disk.give_back(worker);
        }
    }

    fn wait_for_disk(&mut self) {
        let Some(disk) = &self.disk else { return };
        let done = disk.wait();
        self.lane.disk_done(clock::now(), done, &mut self.out);
    }

    /// The lane ends: what it has appended is made durable first, if the disk does that soon.
    pub(crate) fn close_log(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        disk.hand_over();
        let begun = Instant::now();
        while !self.lane.close_log(clock::now(), &mut self.out) {
            for request in self.out.disk.drain(..) {
                disk.submit(request);
            }
            let left = CLOSE_MAX.saturating_sub(begun.elapsed());
            let Some(done) = disk.wait_for(left) else { return };
            self.lane.disk_done(clock::now(), done, &mut self.out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_spins_for_its_peers_and_not_for_its_disk() {
        assert!(may_spin(true, false));
        assert!(!may_spin(true, true), "a flush takes longer than anybody should spin");
        assert!(!may_spin(false, false), "nothing is under way");
    }

    #[test]
    fn a_lane_writes_itself_what_is_awaited_where_nobody_reads() {
        assert!(may_write(true, READS_REMEMBERED));
        assert!(
            !may_write(true, READS_REMEMBERED - 1),
            "a read may come, and would wait for the disk"
        );
        assert!(!may_write(false, READS_REMEMBERED), "nobody waits for it");
    }
}
