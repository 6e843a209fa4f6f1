//! What goes wrong, and when.
//!
//! The nemesis takes out at most a minority of the replicas at a time, since a cluster in memory
//! promises nothing beyond that. A node counts as taken out while it is dead, stopped, cut off or
//! not yet active again.

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
}

impl Nemesis {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, partitioned: false, active: true }
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
        let choice = world.rng.below(5);
        match choice {
            0 if self.faults.crash && world.may_take(victim) => {
                world.kill(victim);
                let at = world.time + 50 * MS + world.rng.below(2_500 * MS);
                world.schedule(at, Event::Undo(Undo::Start(victim)));
            }
            1 if self.faults.pause && world.may_take(victim) => {
                let span = 20 * MS + world.rng.below(800 * MS);
                world.pause(victim, span);
            }
            2 | 3 if self.faults.partition && !self.partitioned && world.may_take(victim) => {
                self.isolate(world, victim, choice == 3);
            }
            _ => {}
        }
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
        for node in 0..world.nodes.len() {
            if !world.nodes[node].up {
                world.start(node);
            }
        }
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
        self.partitioned = true;
        let time = world.time;
        world.trace.event(&[time, 7, u64::from(id.0), u64::from(one_way)], || {
            let way = if one_way { "nobody hears" } else { "cut off" };
            format!("{} {way} {id:?}", At(time))
        });
        let at = time + 50 * MS + world.rng.below(2_000 * MS);
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
}
