//! The file in which a node keeps what it has promised as a voter, as lane 0 drives it.

use quorate_durability::{Completion, VoterFile};
use quorate_types::{Instant, Now};

use crate::disk::{DiskOwner, DiskRequest, Requests};
use crate::{Lane, LogConfig, Outbox, RestoredStore, StateError};

/// The voter's file, and when a full disk is tried again.
pub(crate) struct VoterDisk {
    file: VoterFile,
    retry_at: Instant,
}

impl VoterDisk {
    pub(crate) fn next_deadline(&self) -> Instant {
        self.retry_at
    }
}

fn requests(list: &mut Vec<DiskRequest>) -> Requests<'_> {
    Requests { owner: DiskOwner::Voter, list }
}

impl Lane {
    /// Goes on as the voter that this node was, by what [`VoterFile::load`] has found; see
    /// [`Lane::restore_voter`]. Before the first event, once every lane is ready. Lane 0 only.
    ///
    /// # Errors
    /// If the state is another node's, damaged, or a newer program's.
    pub fn open_voter(
        &mut self,
        now: Now,
        (file, state): (VoterFile, Option<Vec<u8>>),
        store: RestoredStore,
    ) -> Result<(), StateError> {
        self.restore_voter(now, state.as_deref(), store)?;
        self.voter_file = Some(Box::new(VoterDisk { file, retry_at: Instant::NEVER }));
        Ok(())
    }

    /// Has what the voter promises written, at the end of a turn.
    pub(crate) fn write_voter(&mut self, now: Now, out: &mut Outbox) {
        if self.voter_file.is_none() {
            return;
        }
        while let Some((number, state)) = self.voter_state_to_save() {
            let Some(disk) = &mut self.voter_file else { return };
            let numbered = disk.file.save(&state, &mut requests(&mut out.disk));
            assert_eq!(number, numbered, "each state is saved once, in order");
        }
        let Some(disk) = &mut self.voter_file else { return };
        if disk.retry_at <= now.monotonic {
            disk.retry_at = Instant::NEVER;
            disk.file.retry(&mut requests(&mut out.disk));
        }
    }

    /// Takes the end of a request for the voter's file. What waited for it is said.
    pub(crate) fn voter_done(
        &mut self,
        now: Now,
        completion: Completion,
        error: &str,
        out: &mut Outbox,
    ) {
        let Some(disk) = &mut self.voter_file else { return };
        let saved = disk.file.complete(completion, &mut requests(&mut out.disk));
        if disk.file.is_full() && disk.retry_at == Instant::NEVER {
            disk.retry_at = now.monotonic + LogConfig::RETRY;
        }
        if disk.file.is_dead() && out.failed.is_none() {
            out.failed = Some(crate::lane_log::disk_failed(error));
        }
        // 0 is what was loaded, and nothing rests on that alone.
        if let Some(number) = saved.filter(|number| *number > 0) {
            self.voter_state_saved(now, number, out);
        }
    }
}
