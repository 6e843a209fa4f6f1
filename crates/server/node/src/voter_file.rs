//! The file in which a node keeps what it has promised as a voter, as lane 0 drives it.

use quorate_durability::{Completion, VoterFile};
use quorate_types::{Instant, Now};

use crate::disk::{DiskOwner, DiskRequest, Requests};
use crate::{Lane, LogConfig, Outbox, RestoredStore, StateError};

/// The voter's file, and when a full disk is tried again.
pub(crate) struct VoterDisk {
    file: VoterFile,
    retry_at: Instant,
    /// Whether a state of this process is durable.
    is_saved: bool,
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
    /// [`Lane::restore_voter`]. Before the first event, once every lane has opened its log. Lane 0 only.
    /// No lane writes anything before [`Lane::is_voter_saved`].
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
        self.voter_file =
            Some(Box::new(VoterDisk { file, retry_at: Instant::NEVER, is_saved: false }));
        Ok(())
    }

    /// Whether it is on the disk what this process knows of the store: that it is damaged, if it is. Until
    /// then no lane of the node may begin a log, which would look whole to the next process.
    pub fn is_voter_saved(&self) -> bool {
        self.voter_file.as_ref().is_none_or(|disk| disk.is_saved)
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
        if disk.file.is_full() && !disk.is_saved && out.failed.is_none() {
            out.failed = Some(format!(
                "the disk has no room for what this node promises as a voter: {error}. Make room, then start \
                 the node again"
            ));
        }
        if disk.file.is_dead() && out.failed.is_none() {
            out.failed = Some(crate::lane_log::disk_failed(error));
        }
        // 0 is what was loaded, and nothing rests on that alone.
        if let Some(number) = saved.filter(|number| *number > 0) {
            disk.is_saved = true;
            self.voter_state_saved(now, number, out);
        }
    }
}
