//! The configuration of a node.

use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_types::{Duration, Incarnation, NodeId, NodeSet};

/// One configured node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemberConfig {
    /// Its id.
    pub node: NodeId,
    /// The address for its peers, `host:port`.
    pub peer_address: String,
    /// The address for its clients, `host:port`.
    pub client_address: String,
    /// The address of its administration endpoint, `host:port`.
    pub admin_address: String,
}

/// The configuration of one life of one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it: fresh, random, not 0.
    pub incarnation: Incarnation,
    /// Every configured node, this one included. Together they found the cluster.
    pub genesis: Vec<MemberConfig>,
    /// L: how long a lease lasts (Hermes §4.5.7 argues for 150 ms).
    pub lease: Duration,
    /// δ: how much faster or slower than true time a clock may run, in parts per million.
    pub drift_ppm: u32,
    /// The time between two renewals; see [`Config::heartbeat_of`].
    pub heartbeat: Duration,
    /// A connected member is suspected no sooner than this after it was heard: a stall of this
    /// length expels no member.
    pub suspect_after: Duration,
    /// ... and no later than this, however long its silences and this node's own delays were
    /// lately. Setting it to [`Config::suspect_after`] makes the bound constant.
    pub suspect_after_max: Duration,
    /// How long a link between two members may be broken, while others hear both, before one of the
    /// two leaves.
    pub link_patience: Duration,
    /// The replica groups. Silence never costs a group its last active member.
    pub groups: Vec<NodeSet>,
    /// The sizes of the replica groups that follow from the nodes over which a view places data
    /// ([`quorate_types::placement`]), if there are such; 0 as there. Then a change of the voters moves data: a
    /// later view says so when every live member has copied what falls to it. Without any, data is
    /// placed over the members at once, as everybody has all of it.
    pub moving: Vec<usize>,
    /// The replica groups in which an update is acknowledged before all have it: a view that is revived from
    /// disks needs a majority of such a group's active members with all their data, and not one of them alone.
    pub quorum_groups: Vec<NodeSet>,
    /// Whether all members are such a group.
    pub revive_majority: bool,
    /// How long the active members that are missing are waited for when a view can be revived without them.
    pub revive_patience: Duration,
    /// How long an administrative request may take.
    pub request_timeout: Duration,
    /// The seed of challenges and backoffs.
    pub seed: u64,
}

impl Config {
    /// The default timing for a node.
    pub fn new(node: NodeId, incarnation: Incarnation, genesis: Vec<MemberConfig>) -> Self {
        let lease = Duration::from_millis(150);
        Self {
            node,
            incarnation,
            genesis,
            lease,
            drift_ppm: 1_000,
            heartbeat: Self::heartbeat_of(lease),
            suspect_after: lease * 4,
            suspect_after_max: lease * 32,
            link_patience: lease * 4,
            groups: Vec::new(),
            moving: Vec::new(),
            quorum_groups: Vec::new(),
            revive_majority: false,
            revive_patience: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            seed: incarnation.0,
        }
    }

    /// How often a lease of this length is renewed by default. A renewal may come late by one and a
    /// half times as long before the lease lapses.
    pub fn heartbeat_of(lease: Duration) -> Duration {
        lease * 2 / 5
    }

    /// How much longer a member that follows another one's heartbeat waits for its next one:
    /// otherwise the two would wake up at the same time.
    pub(crate) fn grace(&self) -> Duration {
        self.heartbeat / 8
    }

    /// How long two members that follow a third may say nothing to each other: much shorter than
    /// suspicion takes.
    pub(crate) fn quiet_max(&self) -> Duration {
        self.suspect_after / 4
    }

    /// How much later than a dead member another one is heard that has not died at the same moment: longer
    /// than members are silent between two heartbeats, and than a member may serve that nobody hears.
    pub(crate) fn apart(&self) -> Duration {
        self.promise().max(self.quiet_max()) + self.heartbeat / 2
    }

    /// L(1+δ): how long a voter keeps a promise.
    pub fn promise(&self) -> Duration {
        self.lease + self.drift()
    }

    /// L(1-δ): how long a member relies on one.
    pub fn reliance(&self) -> Duration {
        self.lease.saturating_sub(self.drift())
    }

    fn drift(&self) -> Duration {
        if mutant!("membership_drift_ignored") {
            return Duration::ZERO;
        }
        // Rounded up, so that rounding never eats into the bound.
        self.lease * self.drift_ppm / 1_000_000 + Duration::from_nanos(1)
    }
}
