//! What a lane asks of a disk, and what its driver says of the end of it.

use quorate_durability::{Completion, Disk, Request, Ticket};
use quorate_types::Duration;

/// Which machine of a lane has made a request. Each counts its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOwner {
    /// The log.
    Log,
    /// The voter's file, on lane 0.
    Voter,
    /// The snapshot of this number since the process began.
    Snapshot(u32),
}

/// A request of a lane. What is asked for in one order may be done in another, and at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskRequest {
    /// Comes back with the end of it.
    pub owner: DiskOwner,
    /// Likewise.
    pub ticket: Ticket,
    /// What is asked for, of files in the node's directory.
    pub request: Request,
}

impl DiskRequest {
    /// Whether clients or the membership may wait for it: a batch of the log, what a voter promises.
    /// What is not urgent may be large, so a driver does it beside what is.
    pub fn is_urgent(&self) -> bool {
        let is_batch = |offset: u64| offset > 0;
        match self.owner {
            DiskOwner::Log => {
                matches!(&self.request, Request::Write { offset, .. } if is_batch(*offset))
            }
            DiskOwner::Voter => true,
            DiskOwner::Snapshot(_) => false,
        }
    }
}

/// The end of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskDone {
    /// Of the request.
    pub owner: DiskOwner,
    /// How it ended.
    pub completion: Completion,
    /// How long it took.
    pub took: Duration,
    /// Why it failed, in words that name the file; empty if it did not.
    pub error: String,
}

/// Where the requests of one machine go.
pub(crate) struct Requests<'a> {
    pub(crate) owner: DiskOwner,
    pub(crate) list: &'a mut Vec<DiskRequest>,
}

impl Disk for Requests<'_> {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.list.push(DiskRequest { owner: self.owner, ticket, request });
    }
}
