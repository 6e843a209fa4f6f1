//! FLUSHDB: a keyspace emptied key by key, every lane deleting its own keys.
//!
//! The lane that was asked *waits* for all lanes; each lane runs a *job* that keeps a bounded
//! number of deletes in flight. Deletes are ordinary ops, so replicas agree on them, and keys
//! written while the flush runs may or may not survive it.

use quorate_commands::Reply;
use quorate_machine::Outcome;
use quorate_types::{KeyspaceId, LaneId, Tag};

use crate::{Done, Mail, Outbox, Shared};

/// Deletes that one job keeps in flight.
const WINDOW: usize = 256;
/// Keys that a job looks up at a time.
const BATCH: usize = 256;

/// The flushes that a lane runs or waits for.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    jobs: Vec<Job>,
    waits: Vec<Wait>,
    last_job: u64,
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
    keys: Vec<Vec<u8>>,
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

    /// Chooses the next key to delete, if a job has room for one: [`Flushes::key`] names it.
    pub(crate) fn next_key(&mut self, shared: &Shared, lane: LaneId) -> Option<(u64, KeyspaceId)> {
        for job in &mut self.jobs {
            while job.keys.is_empty() {
                let Some(cursor) = job.cursor else { break };
                let store = shared.store(job.keyspace)?;
                let next = store.scan_lane(lane, cursor, BATCH, &mut |key, value| {
                    if value.is_some() {
                        job.keys.push(key.to_vec());
                    }
                });
                job.cursor = (next != 0).then_some(next);
            }
            if job.in_flight < WINDOW
                && let Some(key) = job.keys.pop()
            {
                self.key = key;
                job.in_flight += 1;
                return Some((job.number, job.keyspace));
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
