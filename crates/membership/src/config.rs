//! What a node is told at its start.

use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_types::{Duration, Incarnation, NodeId, NodeSet};

/// One configured node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemberConfig {
    /// Its id.
    pub node: NodeId,
    /// Where its peers reach it, `host:port`.
    pub peer_address: String,
    /// Where its clients reach it, `host:port`.
    pub client_address: String,
    /// Where its administration endpoint listens, `host:port`.
    pub admin_address: String,
}

/// The configuration of one life of one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This life of it: fresh, random, not 0.
    pub incarnation: Incarnation,
    /// Every configured node, this one included. They found the cluster together.
    pub genesis: Vec<MemberConfig>,
    /// L: how long a lease lasts (Hermes §4.5.7 argues for 150 ms).
    pub lease: Duration,
    /// δ: how much faster or slower than true time a clock may run, in parts per million.
    pub drift_ppm: u32,
    /// Between two renewals.
    pub heartbeat: Duration,
    /// A member whose connection stands is suspected no sooner than this after it was heard: so
    /// long a stall expels nobody.
    pub suspect_after: Duration,
    /// ... and no later than this, however long its silences and this node's own delays were lately.
    /// The same as [`Config::suspect_after`] makes the bound constant.
    pub suspect_after_max: Duration,
    /// How long a link between two members may be broken, both being heard by others, before one of
    /// the two leaves.
    pub link_patience: Duration,
    /// The replica groups. Silence never costs a group its last active member.
    pub groups: Vec<NodeSet>,
    /// How long an administrative request may take.
    pub request_timeout: Duration,
    /// Feeds the generator of challenges and backoffs.
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
            heartbeat: lease / 3,
            suspect_after: lease * 4,
            suspect_after_max: lease * 32,
            link_patience: lease * 4,
            groups: Vec::new(),
            request_timeout: Duration::from_secs(10),
            seed: incarnation.0,
        }
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
