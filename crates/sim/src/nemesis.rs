//! What goes wrong, and when.
//!
//! The nemesis takes out at most a minority of the replicas at a time, since a cluster in memory
//! promises nothing beyond that. A node counts as taken out while it is dead, stopped, cut off or
//! not yet active again.

use quorate_node::{EngineConfig, Isolation};
use quorate_types::NodeSet;

use crate::Faults;
use crate::trace::At;
use crate::world::{Event, MS, World};

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undo {
    /// Start the process again.
    Start(usize),
    /// Reconnect everything.
    Reconnect,
}

/// The nemesis of one run.
pub(crate) struct Nemesis {
    faults: Faults,
    partitioned: bool,
    active: bool,
    /// Wall clocks are off by at most this, in nanoseconds.
    wall_error_max: u64,
}

impl Nemesis {
    pub(crate) fn new(faults: Faults, engine: &EngineConfig, world: &mut World) -> Self {
        let wall_error_max = match engine {
            EngineConfig::Hermes { .. } => 2_000 * MS,
            // Isolation rests on clocks only if it is strict. Half the bound each way: the bound
            // is on the difference between two clocks.
            EngineConfig::Meerkat { isolation: Isolation::Strict, max_clock_skew, .. } => {
                max_clock_skew.as_nanos() as u64 / 2
            }
            EngineConfig::Meerkat { .. } => 2_000 * MS,
            EngineConfig::Baseline(_) => 0,
        };
        let this = Self { faults, partitioned: false, active: true, wall_error_max };
        if faults.clock {
            (0..world.nodes.len()).for_each(|node| this.set_clock(world, node));
        }
        this
    }

    /// Acts once and schedules its next act.
    pub(crate) fn act(&mut self, world: &mut World) {
        if !self.active {
            return;
        }
        let next = world.time + 100 * MS + world.rng.below(1_200 * MS);
        world.schedule(next, Event::Nemesis);
        let count = world.nodes.len();
        let victim = world.rng.below(count as u64) as usize;
        match world.rng.below(8) {
            0 if self.faults.crash && world.may_take(victim) => {
                world.kill(victim);
                Self::restart_later(world, victim);
            }
            // Between any two messages that it sends: in the middle of a broadcast, or of what
            // follows one.
            1 if self.faults.crash => world.ambush = Some((victim, world.rng.below(16))),
            2 if self.faults.pause && world.may_take(victim) => {
                let span = 20 * MS + world.rng.below(800 * MS);
                world.pause(victim, span);
            }
            choice @ 3..=4 if self.may_cut(world, victim) => {
                self.isolate(world, victim, choice == 3);
            }
            choice @ 5..=6 if self.may_cut(world, victim) && count > 1 => {
                let other = (victim + 1 + world.rng.below(count as u64 - 1) as usize) % count;
                self.cut_link(world, victim, other, choice == 5);
            }
            7 if self.faults.clock => self.set_clock(world, victim),
            _ => {}
        }
    }

    /// A process was ambushed: it comes back like one that was killed.
    pub(crate) fn restart_later(world: &mut World, victim: usize) {
        let at = world.time + 50 * MS + world.rng.below(2_500 * MS);
        world.schedule(at, Event::Undo(Undo::Start(victim)));
    }

    /// Undoes a fault.
    pub(crate) fn undo(&mut self, world: &mut World, undo: Undo) {
        match undo {
            Undo::Start(node) => {
                if !world.nodes[node].up {
                    world.start(node);
                }
            }
            Undo::Reconnect => self.reconnect(world),
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self, world: &mut World) {
        self.active = false;
        self.reconnect(world);
        world.network.loss = 0;
        world.network.duplication = 0;
        world.network.straggling = 0;
        world.interruptions = 0;
        world.ambush = None;
        for node in 0..world.nodes.len() {
            if !world.nodes[node].up {
                world.start(node);
            }
        }
    }

    fn may_cut(&self, world: &World, victim: usize) -> bool {
        self.faults.partition && !self.partitioned && world.may_take(victim)
    }

    fn isolate(&mut self, world: &mut World, victim: usize, one_way: bool) {
        let id = world.nodes[victim].id;
        let all: NodeSet = world.nodes.iter().map(|node| node.id).collect();
        world.network.cut[victim] = all.without(id);
        if !one_way {
            for other in (0..world.nodes.len()).filter(|&other| other != victim) {
                world.network.cut[other].insert(id);
            }
        }
        world.isolated = NodeSet::only(id);
        let time = world.time;
        world.trace.event(&[time, 7, u64::from(id.0), u64::from(one_way)], || {
            let way = if one_way { "nobody hears" } else { "cut off" };
            format!("{} {way} {id:?}", At(time))
        });
        self.cut_made(world);
    }

    /// Cuts the link between two nodes that both reach everybody else. Either may be expelled for
    /// it, so nothing else happens to them meanwhile.
    fn cut_link(&mut self, world: &mut World, from: usize, to: usize, one_way: bool) {
        let [sender, receiver] = [from, to].map(|node| world.nodes[node].id);
        world.network.cut[from].insert(receiver);
        if !one_way {
            world.network.cut[to].insert(sender);
        }
        world.isolated = NodeSet::only(sender).with(receiver);
        let time = world.time;
        let ids = [sender, receiver].map(|id| u64::from(id.0));
        world.trace.event(&[time, 9, ids[0], ids[1], u64::from(one_way)], || {
            let way = if one_way { "to" } else { "from and to" };
            format!("{} {sender:?} is cut off {way} {receiver:?}", At(time))
        });
        self.cut_made(world);
    }

    fn cut_made(&mut self, world: &mut World) {
        self.partitioned = true;
        let at = world.time + 50 * MS + world.rng.below(2_000 * MS);
        world.schedule(at, Event::Undo(Undo::Reconnect));
    }

    fn reconnect(&mut self, world: &mut World) {
        world.network.cut.iter_mut().for_each(|cut| *cut = NodeSet::EMPTY);
        world.isolated = NodeSet::EMPTY;
        world.disturbed();
        self.partitioned = false;
        let time = world.time;
        world.trace.event(&[time, 8], || format!("{} reconnect", At(time)));
    }

    /// Sets a wall clock: forwards or backwards, as long as it stays within the bound.
    fn set_clock(&self, world: &mut World, victim: usize) {
        let most = self.wall_error_max;
        let error = world.rng.below(2 * most + 1) as i64 - most as i64;
        world.nodes[victim].wall_error = error;
        let (time, id) = (world.time, world.nodes[victim].id);
        world.trace.event(&[time, 10, u64::from(id.0), error.cast_unsigned()], || {
            format!("{} the wall clock of {id:?} is off by {} us", At(time), error / 1_000)
        });
    }
}
