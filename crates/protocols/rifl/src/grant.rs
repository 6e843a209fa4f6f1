//! Configuration, requests and answers of lease managers.

use quorate_machine::mutant;
use quorate_types::{
    Duration, Incarnation, LaneId, Member, MemberNumber, NodeId, Role, View, limits,
};

use crate::LeaseId;
use crate::key::Key;
use crate::message::Denial;

/// The configuration of a lease manager.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// This lane.
    pub lane: LaneId,
    /// The secret of this life, the same for all its lanes.
    pub key: Key,
    /// How long a lease lasts without being renewed.
    pub term: Duration,
    /// Most leases that this lane gives out at once.
    pub leases_max: usize,
    /// How often the lease managers exchange clocks while there are leases.
    pub round: Duration,
    /// The time after which a message counts as lost.
    pub message_loss_timeout: Duration,
    /// How long a request may wait.
    pub op_timeout: Duration,
}

impl Config {
    /// The defaults.
    pub const fn new(node: NodeId, incarnation: Incarnation, lane: LaneId) -> Self {
        Self {
            node,
            incarnation,
            lane,
            key: Key([0; 2]),
            term: limits::LEASE_TERM,
            leases_max: limits::LEASES_PER_LANE_MAX,
            round: Duration::from_secs(1),
            message_loss_timeout: Duration::from_millis(20),
            op_timeout: Duration::from_secs(2),
        }
    }
}

/// A node's request for a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// A new lease of this lane.
    Open,
    /// A full term from now on, for a lease of this lane.
    Renew {
        /// The lease.
        lease: LeaseId,
        /// The expiry that the client was last told: [`Grant::until`].
        told: u64,
        /// A date that the grant should be above: an engine's clock may be ahead.
        above: u64,
    },
    /// The end of a lease of this lane.
    Close {
        /// The lease.
        lease: LeaseId,
    },
}

/// Permission to attempt a session's calls, in one epoch or as long as its owner stays the owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// Attempts dated at or below this may be made. The client keeps it, and shows it to the next
    /// node that it uses.
    pub until: u64,
    /// The owner that gave the permission.
    pub owner: MemberNumber,
}

impl Grant {
    /// Whether an attempt dated `at` may be made in this view. If not, a renewal is needed first.
    pub fn covers(&self, view: &View, at: u64) -> bool {
        let is_owner = |owner: &Member| owner.number == self.owner;
        at <= self.until
            && (owner_of(view, self.lease).is_some_and(is_owner)
                || mutant!("rifl_grant_outlives_its_owner"))
    }
}

/// How a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lost {
    /// It was not renewed in time, or never given out.
    Expired,
    /// Its client closed it.
    Closed,
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The lease lives. The client's term counts from the sending of its request.
    Granted(Grant),
    /// It has ended.
    Lost(Lost),
    /// The lane that would keep the lease keeps the most leases it may: of its own, or of members
    /// that are gone.
    Full,
    /// No lane can tell now: there is no view, or the owner or a live member is silent.
    Unready,
}

impl From<Denial> for Answer {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Lost(lost) => Self::Lost(lost),
            Denial::Full => Self::Full,
        }
    }
}

/// A session whose records can go: for [`crate::ResultTracker::discard`] or
/// [`crate::ResultTracker::close`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseEnd {
    /// The lease.
    pub lease: LeaseId,
    /// How it ended.
    pub lost: Lost,
    /// No attempt was granted above this date. Meaningless for a closed lease.
    pub granted: u64,
}

/// The member that keeps a lease: the one that gave it out, or the active one with the smallest
/// number. `None` in a view without active members.
pub fn owner_of(view: &View, lease: LeaseId) -> Option<&Member> {
    let live = view.members.iter().filter(|member| member.role != Role::Down);
    live.clone().find(|member| member.number == lease.member()).or_else(|| {
        live.filter(|member| member.role == Role::Active).min_by_key(|member| member.number)
    })
}
