//! FLUSHDB: a keyspace emptied key by key, every lane deleting its own keys.
//!
//! The lane that was asked *waits* for all lanes; each lane runs a *job* that keeps a bounded
//! number of deletes in flight. Deletes are ordinary ops, so replicas agree on them, and keys
//! written while the flush runs may or may not survive it.
//!
//! A turn of the loop takes a bounded step of it, so that a lane with millions of keys goes on
//! serving and keeps its lease.

use quorate_commands::{LIBRARIES_KEY, OwnedCall, Reply};
use quorate_machine::{Outcome, Refusal};
use quorate_types::{KeyspaceId, LaneId, Now, Tag};

use crate::lane::Internal;
use crate::listing::Cursor;
use crate::{Done, Lane, Mail, Outbox};

/// Deletes that one job keeps in flight.
const WINDOW: usize = 256;
/// What a lane's flushes may do in one turn; a delete is one unit of work.
const WORK_PER_TURN: usize = 256;
/// What it costs to look at as many records as one listing does.
const WORK_OF_BATCH: usize = 16;
/// Bytes of a value whose memory is given back for one unit.
const BYTES_PER_WORK: usize = 16 * 1024;

/// What a job does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Delete the key that [`Flushes::key`] names.
    Delete { job: u64, keyspace: KeyspaceId },
    /// Find out which keys there are.
    List { job: u64, keyspace: KeyspaceId, at: Cursor },
}

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
    /// Where the listing goes on; nothing once it has reached the end.
    next: Option<Cursor>,
    /// Whether another node has been asked what there is.
    asked: bool,
    /// Keys to delete, and how long their values are, as far as this node knows.
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
            next: Some(Cursor::START),
            asked: false,
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
        self.jobs.iter().any(|job| {
            let has_more = job.next.is_some() && !job.asked;
            job.in_flight < WINDOW && (!job.keys.is_empty() || has_more)
        })
    }

    /// Chooses what a job does next, if one has room for it and the turn has time for it.
    pub(crate) fn next(&mut self) -> Option<Next> {
        for job in &mut self.jobs {
            if job.in_flight == WINDOW || self.work >= WORK_PER_TURN {
                continue;
            }
            if let Some((key, bytes)) = job.keys.pop() {
                self.key = key;
                self.work += 1 + bytes / BYTES_PER_WORK;
                job.in_flight += 1;
                return Some(Next::Delete { job: job.number, keyspace: job.keyspace });
            }
            if let Some(at) = job.next
                && !job.asked
            {
                self.work += WORK_OF_BATCH;
                job.asked = true;
                return Some(Next::List { job: job.number, keyspace: job.keyspace, at });
            }
        }
        None
    }

    /// Keys of a job's keyspace, and where their listing goes on.
    pub(crate) fn listed(
        &mut self,
        number: u64,
        next: Option<Cursor>,
        keys: impl IntoIterator<Item = (Vec<u8>, usize)>,
    ) {
        // A job that was stopped waits for none.
        if let Some(job) = self.jobs.iter_mut().find(|job| job.number == number)
            && job.asked
        {
            job.asked = false;
            job.next = next;
            // The libraries of functions stay, as in Redis.
            job.keys.extend(keys.into_iter().filter(|(key, _)| key != LIBRARIES_KEY));
        }
    }

    /// Nobody can say which keys there are.
    pub(crate) fn unlisted(&mut self, number: u64) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.number == number) {
            job.stop();
        }
    }

    /// The key to delete that [`Flushes::next`] chose.
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
            .extract_if(.., |job| job.in_flight == 0 && job.keys.is_empty() && job.next.is_none())
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
        self.next = None;
        self.asked = false;
        self.keys.clear();
        self.outcome = Outcome::Unknown;
    }
}

impl Lane {
    /// Deletes every key of a keyspace, key by key. Keys written meanwhile may or may not survive.
    pub fn flush_keyspace(&mut self, now: Now, keyspace: KeyspaceId, tag: Tag, out: &mut Outbox) {
        if !self.takes(now, keyspace) {
            let outcome = Outcome::Refused(Refusal::NotServing);
            out.done.push(Done::new(tag, outcome));
            return;
        }
        let lanes = self.shared.config.lanes;
        self.flushes.wait(tag, lanes);
        for lane in (0..lanes).map(LaneId).filter(|&lane| lane != self.id) {
            out.mail.push((lane, Mail::Flush { from: self.id, keyspace, tag }));
        }
        self.flushes.begin(self.id, keyspace, tag);
    }

    /// Lists and deletes for every flush, as much as the turn has time for.
    pub(crate) fn advance_flushes(&mut self, now: Now, out: &mut Outbox) {
        while let Some(next) = self.flushes.next() {
            match next {
                Next::Delete { job, keyspace } => self.delete(now, job, keyspace, out),
                Next::List { job, keyspace, at } => {
                    self.list_for_flush(now, job, keyspace, at, out);
                }
            }
        }
    }

    fn delete(&mut self, now: Now, job: u64, keyspace: KeyspaceId, out: &mut Outbox) {
        let call = OwnedCall::new([b"DEL", self.flushes.key()]).expect("DEL takes a key");
        let tag = self.internal_tag(Internal::Flush { job });
        // Deletes of different keys need not wait for each other.
        self.run(now, keyspace, tag, tag.0, call.call(), out);
    }

    /// Says which flushes have come to their end.
    pub(crate) fn report_flushes(&mut self, now: Now, out: &mut Outbox) {
        for (lane, mail) in self.flushes.take_finished() {
            if lane == self.id {
                self.deliver(now, mail, out);
            } else {
                out.mail.push((lane, mail));
            }
        }
    }
}
