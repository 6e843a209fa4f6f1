//! The faults that may happen.

use quorate_machine::Rng;

use crate::names::{draw, names};

names! {
    /// Which faults the nemesis and the network may use.
    Faults, each called "fault":
    /// Messages are lost.
    loss,
    /// Messages arrive twice.
    duplication,
    /// Messages overtake each other, some by seconds.
    reordering,
    /// Nodes are cut off, or single links between two nodes, in one direction or both.
    partition,
    /// Processes stop past their lease and go on, also in the middle of a loop turn.
    pause,
    /// Processes die, also between two messages of one turn, and come back without memory.
    crash,
    /// Clocks run at different rates, within the configured bound.
    drift,
    /// Wall clocks differ and are set forwards and backwards, within the engine's bound.
    clock,
    /// Single lanes of a node, or their links to single others, are cut, late, or stand still.
    lane,
    /// Connections break: messages sent before arrive, later ones are lost until the connection
    /// stands again.
    reset,
    /// Connections carry a limited number of bytes a second: large messages are late, and small
    /// ones overtake them.
    bandwidth,
    /// Processes stand still for less than half a second, again and again.
    stall,
    /// A cut stands alone for seconds, on a network that loses nothing else: ops must go on.
    standing,
    /// Wall clocks are set by up to a quarter of an hour, beyond the engine's bound.
    leap,
    /// A clock runs faster or slower for a while than the configured bound allows, or stands still.
    rate,
    /// An operator adds and removes members.
    members,
    /// On disks of a minority: bits flip, sectors land in the place of others, writes are lost.
    rot,
    /// Writes and flushes of a disk fail, which ends its process.
    failing,
    /// A disk has no room for a while.
    full,
    /// What is asked of a disk takes long for a while.
    slow,
}

impl Faults {
    /// A random part of these faults. If every run had every fault, a sweep would never see an
    /// event that only a quiet network allows (swarm testing, Groce et al., ISSTA 2012).
    pub(crate) fn swarm(self, seed: u64, rng: &mut Rng) -> Self {
        // Drawn from streams of their own, so that a seed has the same other faults with and
        // without them.
        let of_disks = Self { rot: true, failing: true, full: true, slow: true, ..Self::NONE };
        let elsewhere = Self { leap: true, rate: true, members: true, ..of_disks };
        let mut apart = Rng::new(seed ^ u64::from_le_bytes(*b"badclock"));
        let leap = draw(self.leap, &mut apart, (1, 5));
        let rate = draw(self.rate, &mut apart, (1, 5));
        let mut apart = Rng::new(seed ^ u64::from_le_bytes(*b"operator"));
        let members = draw(self.members, &mut apart, (1, 2));
        let mut apart = Rng::new(seed ^ u64::from_le_bytes(*b"bad disk"));
        let mut of_disk = |may_be| draw(may_be, &mut apart, (2, 3));
        let (rot, failing) = (of_disk(self.rot), of_disk(self.failing));
        let (full, slow) = (of_disk(self.full), of_disk(self.slow));
        let drawn = self.draw(elsewhere, rng, (2, 3));
        Self { leap, rate, members, rot, failing, full, slow, ..drawn }
    }

    /// Without those of disks.
    pub(crate) fn without_disks(self) -> Self {
        Self { rot: false, failing: false, full: false, slow: false, ..self }
    }

    /// Whether clocks exceed the bounds that nodes are told.
    pub(crate) fn break_clocks(self) -> bool {
        self.leap || self.rate
    }
}
