//! FLUSHDB: a keyspace emptied key by key, every lane deleting its own keys.
//!
//! The lane that was asked *waits* for all lanes; each lane runs a *job* that keeps a bounded
//! number of deletes in flight. Deletes are ordinary ops, so replicas agree on them, and keys
//! written while the flush runs may or may not survive it.
//!
//! A turn of the loop takes a bounded step of it, so that a lane with millions of keys goes on
//! serving and keeps its lease.

use quorate_commands::Reply;
use quorate_machine::Outcome;
use quorate_types::{KeyspaceId, LaneId, Tag};

use crate::{Done, Mail, Outbox, Shared};

/// Deletes that one job keeps in flight.
const WINDOW: usize = 256;
/// Records that a job looks at together.
const BATCH: usize = 256;
/// What a lane's flushes may do in one turn; a delete is one unit of work.
const WORK_PER_TURN: usize = 256;
/// What it costs to look at a batch of records.
const WORK_OF_BATCH: usize = 16;
/// Bytes of a value whose memory is given back for one unit.
const BYTES_PER_WORK: usize = 16 * 1024;

/// The flushes that a lane runs or waits for.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    jobs: Vec<Job>,
    waits: Vec<Wait>,
    last_job: u64,
    /// What has been done in this turn.
    work: usize,
    key: Vec<u8>,
}

#[derive(Debug)]
struct Job {
    number: u64,
    reply_to: LaneId,
    keyspace: KeyspaceId,
    tag: Tag,
    /// Where the scan goes on; nothing once it has reached the end.
    cursor: Option<u64>,
    /// Keys to delete, and how long their values are.
    keys: Vec<(Vec<u8>, usize)>,
    in_flight: usize,
    outcome: Outcome<()>,
}

#[derive(Debug)]
struct Wait {
    tag: Tag,
    lanes_left: u16,
    outcome: Outcome<()>,
}

impl Flushes {
    /// Waits for every lane's job of a flush.
    pub(crate) fn wait(&mut self, tag: Tag, lanes: u16) {
        self.waits.push(Wait { tag, lanes_left: lanes, outcome: Outcome::Done(()) });
    }

    /// Begins this lane's job of a flush.
    pub(crate) fn begin(&mut self, reply_to: LaneId, keyspace: KeyspaceId, tag: Tag) {
        self.last_job += 1;
        self.jobs.push(Job {
            number: self.last_job,
            reply_to,
            keyspace,
            tag,
            cursor: Some(0),
            keys: Vec::new(),
            in_flight: 0,
            outcome: Outcome::Done(()),
        });
    }

    /// A turn of the loop begins.
    pub(crate) fn begin_turn(&mut self) {
        self.work = 0;
    }

    /// Whether a job could go on at once if only the next turn came.
    pub(crate) fn wants_turn(&self) -> bool {
        self.jobs
            .iter()
            .any(|job| job.in_flight < WINDOW && (!job.keys.is_empty() || job.cursor.is_some()))
    }

    /// Chooses the next key to delete, if a job has room for one and the turn has time for it:
    /// [`Flushes::key`] names it.
    pub(crate) fn next_key(&mut self, shared: &Shared, lane: LaneId) -> Option<(u64, KeyspaceId)> {
        for job in &mut self.jobs {
            let store = shared.store(job.keyspace)?;
            while job.in_flight < WINDOW && self.work < WORK_PER_TURN {
                if let Some((key, bytes)) = job.keys.pop() {
                    self.key = key;
                    self.work += 1 + bytes / BYTES_PER_WORK;
                    job.in_flight += 1;
                    return Some((job.number, job.keyspace));
                }
                let Some(cursor) = job.cursor else { break };
                self.work += WORK_OF_BATCH;
                let next = store.scan_lane(lane, cursor, BATCH, &mut |key, value| {
                    if let Some(value) = value {
                        job.keys.push((key.to_vec(), value.len));
                    }
                });
                job.cursor = (next != 0).then_some(next);
            }
        }
        None
    }

    /// The key that [`Flushes::next_key`] chose.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// A delete came back.
    pub(crate) fn key_done(&mut self, number: u64, outcome: &Outcome<Reply<'static>>) {
        let job = self.jobs.iter_mut().find(|job| job.number == number);
        let job = job.expect("a job outlives its deletes");
        job.in_flight -= 1;
        if !matches!(outcome, Outcome::Done(_)) {
            job.stop();
        }
    }

    /// Stops every job: this node's records are gone.
    pub(crate) fn abandon(&mut self) {
        self.jobs.iter_mut().for_each(Job::stop);
    }

    /// Removes finished jobs and says whom to tell.
    pub(crate) fn take_finished(&mut self) -> Vec<(LaneId, Mail)> {
        self.jobs
            .extract_if(.., |job| job.in_flight == 0 && job.keys.is_empty() && job.cursor.is_none())
            .map(|job| (job.reply_to, Mail::Flushed { tag: job.tag, outcome: job.outcome }))
            .collect()
    }

    /// A lane finished its job; the last one answers the client.
    pub(crate) fn lane_done(&mut self, tag: Tag, outcome: Outcome<()>, out: &mut Outbox) {
        let at = self.waits.iter().position(|wait| wait.tag == tag);
        let at = at.expect("a flush is waited for until every lane has answered");
        let wait = &mut self.waits[at];
        wait.lanes_left -= 1;
        if outcome != Outcome::Done(()) {
            wait.outcome = outcome;
        }
        if wait.lanes_left == 0 {
            let outcome = match self.waits.swap_remove(at).outcome {
                Outcome::Done(()) => Outcome::Done(Reply::Ok),
                Outcome::Refused(refusal) => Outcome::Refused(refusal),
                Outcome::Unknown => Outcome::Unknown,
            };
            out.done.push(Done::new(tag, outcome));
        }
    }
}

impl Job {
    /// Deletes no further key: some may be gone and some not, which is what *unknown* says.
    fn stop(&mut self) {
        self.cursor = None;
        self.keys.clear();
        self.outcome = Outcome::Unknown;
    }
}
