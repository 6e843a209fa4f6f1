//! What may break.

use quorate_machine::Rng;

use crate::names::names;

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
    /// Wall clocks differ and are set forwards and backwards, within what the engine is told.
    clock,
    /// Single lanes of a node, or their links to single others, are cut, late, or stand still.
    lane,
    /// Connections break: what was sent before arrives, the rest is lost until they stand again.
    reset,
    /// Connections carry so many bytes a second: what is large is late, and small messages overtake
    /// it.
    bandwidth,
    /// Processes stand still for less than half a second, again and again.
    stall,
    /// A cut stands alone for seconds, on a network that loses nothing else: ops must go on.
    standing,
}

impl Faults {
    /// A random part of these faults: a sweep whose runs all have every fault never sees what only
    /// a quiet network lets happen (swarm testing, Groce et al., ISSTA 2012).
    pub(crate) fn swarm(self, rng: &mut Rng) -> Self {
        self.draw(rng, (2, 3))
    }
}
