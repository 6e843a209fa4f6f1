//! The nemesis: which faults happen, and when.
//!
//! The nemesis kills at most a minority of the replicas at a time, since a cluster in memory
//! survives no more. A node counts as taken out while it is dead, stopped, cut off or not yet
//! active again. The nemesis stops and cuts off any number of nodes, as long as one that holds
//! everything is left. Guests hold nothing, so any of them may die at any time.
//!
//! It draws faults, or applies those of a script. Either way it skips a fault that takes out too
//! much at the moment: a script stays fair when parts of it are left out.

use quorate_machine::Rng;
use quorate_meerkat::Isolation;
use quorate_node::EngineConfig;
use quorate_types::placement::{self, SHARDS};
use quorate_types::{NodeId, NodeSet};

use crate::Faults;
use crate::disk_faults::{Failing, WithARequest};
use crate::keyspaces::Keyspace;
use crate::links::{Links, SILENCE_MAX};
use crate::network::hash;
use crate::operator::{Ask, Wish};
use crate::progress::time_to_recover;
use crate::script::{Fault, Process};
use crate::trace::At;
use crate::world::{Event, MS, World};

/// How far a wall clock may leap, in either direction.
const LEAP_MAX: u64 = 900_000 * MS;

/// How often the operator looks for nodes that are to be members again.
const RESTORES_EVERY: u64 = 100 * MS;

/// The end of a drawn fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undo {
    /// Start the process again.
    Start(Process),
    /// Reconnect everything.
    Reconnect,
}

/// Requests that the disks of a cluster get while it forms and clients write for the first time.
const EARLY_REQUESTS: u64 = 200;

/// The nemesis of one run.
pub(crate) struct Nemesis {
    rng: Rng,
    /// The operator's stream, so that everything else is the same without one.
    operator_rng: Rng,
    /// When the power of all nodes goes.
    power_rng: Rng,
    /// When that of a group goes, while other nodes live.
    group_rng: Rng,
    /// When all lose power, and some their disks.
    ruin_rng: Rng,
    is_ruined: bool,
    /// What else happens to disks.
    disk_rng: Rng,
    faults: Faults,
    partitioned: bool,
    active: bool,
    scripted: bool,
    /// While a fault stands alone, no other is drawn.
    rests_until: u64,
    /// The most by which wall clocks are off, in nanoseconds.
    wall_error_max: u64,
    /// The faults that happened.
    pub(crate) done: Vec<(u64, Fault)>,
}

impl Nemesis {
    pub(crate) fn new(
        seed: u64,
        faults: Faults,
        script: Option<&[(u64, Fault)]>,
        world: &mut World,
    ) -> Self {
        let mut this = Self {
            rng: world.rng.fork(),
            operator_rng: Rng::new(seed ^ u64::from_le_bytes(*b"requests")),
            power_rng: Rng::new(seed ^ u64::from_le_bytes(*b"blackout")),
            group_rng: Rng::new(seed ^ u64::from_le_bytes(*b"a street")),
            ruin_rng: Rng::new(seed ^ u64::from_le_bytes(*b"the fire")),
            is_ruined: false,
            disk_rng: Rng::new(seed ^ u64::from_le_bytes(*b"troubles")),
            faults,
            partitioned: false,
            active: true,
            scripted: script.is_some(),
            rests_until: 0,
            wall_error_max: Self::wall_error_max(faults, world),
            done: Vec::new(),
        };
        match script {
            Some(script) => {
                for (at, fault) in script {
                    // Interruptions apply themselves when their turn comes.
                    match fault {
                        Fault::Interrupt { .. } => {}
                        // Clocks are wrong from the start.
                        Fault::Clock(..) if *at == 0 => this.apply(world, *fault),
                        _ => world.schedule(*at, Event::Fault(*fault)),
                    }
                }
            }
            None => {
                world.schedule(500 * MS, Event::Nemesis);
                let mut early_rng = Rng::new(seed ^ u64::from_le_bytes(*b"midnight"));
                if world.has_disks() && early_rng.chance(1, 4) {
                    // When little has been flushed, or nothing but what nodes promise as voters.
                    let after = early_rng.below(EARLY_REQUESTS);
                    world.with_a_request = WithARequest { after, faults: vec![Fault::Blackout] };
                }
                if faults.members && world.nodes.len() > 1 {
                    world.schedule(500 * MS, Event::Operator);
                }
                if faults.clock || faults.leap {
                    let nodes = (0..world.nodes.len()).map(Process::Node);
                    for process in nodes.chain((0..world.guests.len()).map(Process::Guest)) {
                        let clock = this.draw_clock(process);
                        this.apply(world, clock);
                    }
                }
            }
        }
        this
    }

    /// How far two wall clocks may be apart, in nanoseconds.
    pub(crate) fn clocks_apart(faults: Faults, world: &World) -> u64 {
        match faults {
            // A stale read may show a value long after its time.
            Faults { rate: true, .. } => 2 * LEAP_MAX,
            Faults { clock: true, .. } | Faults { leap: true, .. } => {
                2 * Self::wall_error_max(faults, world)
            }
            _ => 0,
        }
    }

    /// The error of a wall clock that every keyspace bears, unless clocks are to exceed their
    /// bound.
    fn wall_error_max(faults: Faults, world: &World) -> u64 {
        let of_keyspace = |keyspace: &Keyspace| match &keyspace.engine {
            _ if faults.leap => LEAP_MAX,
            // Isolation rests on clocks only if it is strict. Half the bound each way: the bound
            // is on the difference between two clocks.
            EngineConfig::Meerkat(options) if options.isolation == Isolation::Strict => {
                options.max_clock_skew.as_nanos() as u64 / 2
            }
            _ => 2_000 * MS,
        };
        let all = world.keyspaces.iter().map(of_keyspace);
        all.min().expect("there is a keyspace")
    }

    /// Draws faults, and the time of the next draw.
    pub(crate) fn act(&mut self, world: &mut World) {
        if !self.active {
            return;
        }
        let next = world.time + 100 * MS + self.rng.below(1_200 * MS);
        world.schedule(next, Event::Nemesis);
        if world.time < self.rests_until {
            return;
        }
        if world.has_disks() && !self.is_ruined && self.ruin_rng.chance(1, 60) {
            let fault = self.draw_ruin(world);
            if fault.is_some_and(|fault| self.is_fair(world, fault)) {
                self.is_ruined = true;
                fault.into_iter().for_each(|fault| self.apply(world, fault));
                return;
            }
        }
        if world.has_disks() && self.power_rng.chance(1, 5) {
            // While disks are at work: then there is something to tear.
            let mut faults = vec![Fault::Blackout];
            faults.extend(self.draw_rot(world));
            world.with_a_request = WithARequest { after: 0, faults };
            return;
        }
        if world.has_disks() && self.group_rng.chance(1, 8) {
            let faults = self.draw_dark(world);
            if self.is_fair(world, faults[0]) {
                world.with_a_request = WithARequest { after: 0, faults };
                return;
            }
        }
        let mut drawn: Vec<Fault> = self.draw(world).into_iter().collect();
        if world.has_disks() {
            drawn.extend(self.draw_for_disk(world));
        }
        if self.faults.reset && world.nodes.len() > 1 && self.rng.chance(1, 2) {
            drawn.push(self.draw_reset(world));
        }
        if self.faults.stall {
            // For less than a lease or for more, but not as long as a pause.
            let node = self.rng.below(world.nodes.len() as u64) as usize;
            let span = 50 * MS + self.rng.below(400 * MS);
            drawn.push(Fault::Pause(Process::Node(node), span));
        }
        if self.faults.lane && self.rng.chance(1, 2) {
            drawn.extend(self.draw_for_lane(world));
        }
        if self.faults.leap && self.rng.chance(1, 3) {
            let node = self.rng.below(world.nodes.len() as u64) as usize;
            drawn.push(self.draw_clock(Process::Node(node)));
        }
        if self.faults.rate && self.rng.chance(1, 2) {
            drawn.extend(self.draw_rate(world));
        }
        if !world.guests.is_empty() && self.rng.chance(1, 2) {
            let guest = self.rng.below(world.guests.len() as u64) as usize;
            drawn.extend(self.draw_for_guest(world, guest));
        }
        // One fault at a time, as in a script: clients see the effect of one before the next.
        for fault in drawn {
            world.schedule(world.time, Event::Fault(fault));
        }
    }

    fn draw(&mut self, world: &World) -> Option<Fault> {
        let count = world.nodes.len();
        let victim = self.rng.below(count as u64) as usize;
        let node = Process::Node(victim);
        let fault = match self.rng.below(8) {
            0 if self.faults.crash => Fault::Kill(node),
            // Between any two messages that it sends: in the middle of a broadcast, or of the
            // messages after it.
            1 if self.faults.crash => Fault::Ambush(node, self.rng.below(16)),
            2 if self.faults.pause => Fault::Pause(node, 20 * MS + self.rng.below(800 * MS)),
            choice @ 3..=4 if self.faults.partition => Fault::Cut(Links::of(victim, choice == 3)),
            choice @ 5..=6 if self.faults.partition && count > 1 => {
                let to = Some(self.draw_other(count, victim));
                Fault::Cut(Links { to, ..Links::of(victim, choice == 5) })
            }
            7 if self.faults.clock => self.draw_clock(node),
            _ => return None,
        };
        Some(fault)
    }

    /// The disks of a minority rot.
    fn draw_rot(&mut self, world: &World) -> Vec<Fault> {
        let count = world.nodes.len() as u64;
        let (first, most) = (self.disk_rng.below(count), 1 + self.disk_rng.below(2));
        if !self.faults.rot {
            return Vec::new();
        }
        (first..first + most).map(|node| Fault::Rot((node % count) as usize)).collect()
    }

    /// A fault of one disk.
    fn draw_for_disk(&mut self, world: &World) -> Vec<Fault> {
        let rng = &mut self.disk_rng;
        let node = rng.below(world.nodes.len() as u64) as usize;
        let span = 50 * MS + rng.below(1_500 * MS);
        match rng.below(10) {
            0..=2 if self.faults.rot => vec![Fault::Kill(Process::Node(node)), Fault::Rot(node)],
            3 if self.faults.failing => vec![Fault::DiskFails { node, what: Failing::Write }],
            4 if self.faults.failing => vec![Fault::DiskFails { node, what: Failing::Flush }],
            5 if self.faults.full => vec![Fault::DiskFull { node, span }],
            6 if self.faults.slow => vec![Fault::DiskSlow { node, span }],
            _ => Vec::new(),
        }
    }

    /// A node that is not this one.
    fn draw_other(&mut self, count: usize, node: usize) -> usize {
        (node + 1 + self.rng.below(count as u64 - 1) as usize) % count
    }

    /// A fault of a single lane: one or all of its links are cut or late, or the lane stands still,
    /// for less than a lease or for more.
    fn draw_for_lane(&mut self, world: &World) -> Option<Fault> {
        let count = world.nodes.len();
        let node = self.rng.below(count as u64) as usize;
        let lane = self.rng.below(u64::from(world.lanes())) as u16;
        let choice = self.rng.below(8);
        if choice < 3 || count == 1 {
            let most = if choice == 0 { 450 * MS } else { 60 * MS };
            return Some(Fault::Stall { node, lane, span: MS / 5 + self.rng.below(most) });
        }
        let to = self.rng.chance(2, 3).then(|| self.draw_other(count, node));
        let links = Links { from: node, to, lane: Some(lane), one_way: self.rng.chance(1, 2) };
        Some(match choice {
            3..=5 => Fault::Cut(links),
            _ => Fault::Delay(links, MS + self.rng.below(300 * MS)),
        })
    }

    /// A connection breaks, anywhere between two messages.
    fn draw_reset(&mut self, world: &World) -> Fault {
        let from = self.rng.below(world.nodes.len() as u64) as usize;
        let to = Some(self.draw_other(world.nodes.len(), from));
        let lane = Some(self.rng.below(u64::from(world.lanes())) as u16);
        let links = Links { from, to, lane, one_way: true };
        let most = if self.rng.chance(1, 4) { 400 * MS } else { 60 * MS };
        let span = 5 * MS + self.rng.below(most);
        Fault::Reset { links, after: self.rng.below(24), span }
    }

    fn draw_for_guest(&mut self, world: &World, guest: usize) -> Option<Fault> {
        let process = Process::Guest(guest);
        let fault = match self.rng.below(6) {
            0 if self.faults.crash => Fault::Kill(process),
            // Recovery exists for dead clients: they may die at any step of any transaction.
            1..=2 if self.faults.crash => Fault::Ambush(process, self.rng.below(24)),
            3 if self.faults.pause => Fault::Pause(process, 20 * MS + self.rng.below(800 * MS)),
            4 if self.faults.partition => {
                let node = self.rng.below(world.nodes.len() as u64) as usize;
                Fault::CutGuest { guest, node }
            }
            5 if self.faults.clock => self.draw_clock(process),
            _ => return None,
        };
        Some(fault)
    }

    /// The operator asks for a change, and schedules the next one.
    pub(crate) fn operate(&mut self, world: &mut World) {
        let count = world.nodes.len() as u64;
        if !self.active {
            return;
        }
        let next = world.time + 100 * MS + self.operator_rng.below(1_500 * MS);
        world.schedule(next, Event::Operator);
        if world.time < self.rests_until {
            return;
        }
        let rng = &mut self.operator_rng;
        let mut any = |of: NodeSet| {
            let chosen = of.into_iter().nth(rng.below(of.len().max(1) as u64) as usize);
            chosen.map_or(0, |node| world.index(node))
        };
        let outsiders = world.outsiders();
        let members = world.nodes.iter().map(|node| node.id).collect::<NodeSet>();
        let members = members.difference(outsiders);
        let departing = world.newest_view().map(|view| view.departing).unwrap_or_default();
        let (outsider, member) = (any(outsiders), any(members));
        let at = rng.below(count) as usize;
        let ask = match rng.below(8) {
            // A change that is done already, or that must be refused.
            0 => {
                let (_, wish) = Wish::ALL[rng.below(Wish::ALL.len() as u64) as usize];
                Ask { wish, node: rng.below(count) as usize, at }
            }
            1..=4 if !outsiders.is_empty() => Ask { wish: Wish::Add, node: outsider, at },
            5 => match departing.into_iter().next() {
                Some(node) => Ask { wish: Wish::Keep, node: world.index(node), at },
                None => Ask { wish: Wish::RemoveNow, node: member, at },
            },
            _ => Ask { wish: Wish::Remove, node: member, at },
        };
        world.schedule(world.time, Event::Fault(Fault::Ask(ask)));
        if rng.chance(1, 4) {
            // An impatient operator, or two of them.
            let again = Ask { at: rng.below(count) as usize, ..ask };
            world.schedule(world.time + rng.below(300 * MS), Event::Fault(Fault::Ask(again)));
        }
    }

    /// Once faults have ended the operator wants all nodes to be members, and adds one after the
    /// other.
    pub(crate) fn restore(&mut self, world: &mut World) {
        let outsiders = world.outsiders();
        if let Some(view) = world.newest_view().filter(|_| !world.operator.waits()) {
            let at = view.active().into_iter().next().map(|node| world.index(node));
            if let Some((node, at)) = outsiders.into_iter().next().zip(at) {
                world.ask_operator(Ask { wish: Wish::Add, node: world.index(node), at });
            }
        }
        if self.faults.members {
            // An earlier request may still remove a member.
            world.schedule(world.time + RESTORES_EVERY, Event::Restore);
        }
    }

    /// A clock runs far too fast or too slow, or stands still. So that others go on meanwhile, the
    /// node may stop with its clock, like a virtual machine stopped from outside, or be cut off.
    fn draw_rate(&mut self, world: &World) -> Vec<Fault> {
        let node = self.rng.below(world.nodes.len() as u64) as usize;
        let most = if self.rng.chance(1, 2) { 4_000 * MS } else { 1_000 * MS };
        let span = 20 * MS + self.rng.below(most);
        let rates = [-1_000_000, -1_000_000, -900_000, -900_000, -50_000, 50_000, 1_000_000];
        let ppm = rates[self.rng.below(rates.len() as u64) as usize];
        let silence = match self.rng.below(3) {
            0 if ppm == -1_000_000 => Some(Fault::Pause(Process::Node(node), span)),
            1 if self.faults.partition => Some(Fault::Cut(Links::of(node, false))),
            _ => None,
        };
        [Some(Fault::Rate { node, ppm, span }), silence].into_iter().flatten().collect()
    }

    /// A wall clock is set: forwards or backwards, as long as it stays within the bound. Leaps are
    /// of any size, from milliseconds.
    fn draw_clock(&mut self, process: Process) -> Fault {
        let most = self.wall_error_max;
        let most = if self.faults.leap { (most >> self.rng.below(20)).max(MS) } else { most };
        Fault::Clock(process, self.rng.below(2 * most + 1) as i64 - most as i64)
    }

    /// The power of a group goes, or of all of its nodes but one, and what one of them has kept may be damaged.
    fn draw_dark(&mut self, world: &World) -> Vec<Fault> {
        let mut nodes = self.draw_group(world);
        if nodes.len() > 1 && self.group_rng.chance(1, 3) {
            nodes.remove(self.draw_of(nodes));
        }
        let mut faults = vec![Fault::Dark(nodes)];
        if self.faults.rot && !nodes.is_empty() && self.group_rng.chance(1, 2) {
            faults.push(Fault::Rot(world.index(self.draw_of(nodes))));
        }
        faults
    }

    /// So many disks are lost that the others are no majority.
    fn draw_ruin(&mut self, world: &World) -> Option<Fault> {
        let mut lost = world.newest_view()?.voters();
        let most = lost.len().saturating_sub(1);
        let least = lost.len() / 2 + 1;
        if least > most {
            return None;
        }
        let count = least + self.ruin_rng.below((most - least + 1) as u64) as usize;
        while lost.len() > count {
            let index = self.ruin_rng.below(lost.len() as u64) as usize;
            lost.remove(lost.nth(index)?);
        }
        Some(Fault::Ruin(lost))
    }

    fn draw_of(&mut self, nodes: NodeSet) -> NodeId {
        let index = self.group_rng.below(nodes.len() as u64) as usize;
        nodes.nth(index).expect("there are as many")
    }

    /// The nodes that have some key of some keyspace.
    fn draw_group(&mut self, world: &World) -> NodeSet {
        let rng = &mut self.group_rng;
        let keyspace = &world.keyspaces[rng.below(world.keyspaces.len() as u64) as usize];
        let group = keyspace.groups[rng.below(keyspace.groups.len() as u64) as usize];
        let shard = rng.below(SHARDS as u64) as usize;
        match (keyspace.group_size(), world.newest_view()) {
            (Some(size), Some(view)) => placement::group_set(shard, view.placed, size),
            _ => group,
        }
    }

    /// Applies the fault, if it doesn't take out too much.
    pub(crate) fn apply(&mut self, world: &mut World, fault: Fault) {
        if !self.active || !self.is_fair(world, fault) {
            return;
        }
        self.done.push((world.time, fault));
        let mut undo_within = None;
        match fault {
            Fault::Kill(Process::Node(node)) => {
                world.note_sound();
                world.kill(node);
                self.died(world, Process::Node(node));
            }
            Fault::Blackout => {
                world.note_sound();
                world.note_outage(world.nodes.iter().map(|node| node.id).collect());
                world.probe("disk: the power of all nodes goes", 1);
                for node in 0..world.nodes.len() {
                    if world.nodes[node].up {
                        world.check_interval(node);
                        world.end_process(node, true);
                        self.died(world, Process::Node(node));
                    }
                }
            }
            Fault::Dark(nodes) => {
                world.note_sound();
                world.note_outage(nodes);
                world.probe("disk: the power of a group goes", 1);
                for node in nodes.into_iter().map(|node| world.index(node)).collect::<Vec<_>>() {
                    if world.nodes[node].up {
                        world.check_interval(node);
                        world.end_process(node, true);
                        self.died(world, Process::Node(node));
                    }
                }
            }
            Fault::Ruin(nodes) => {
                world.note_sound();
                world.ruin(nodes);
                for node in 0..world.nodes.len() {
                    self.died(world, Process::Node(node));
                }
            }
            Fault::Kill(Process::Guest(guest)) => {
                world.kill_guest(guest);
                self.died(world, Process::Guest(guest));
            }
            Fault::Ambush(Process::Node(node), left) => world.ambush = Some((node, left)),
            Fault::Ambush(Process::Guest(guest), left) => world.guests[guest].ambush = Some(left),
            Fault::Start(Process::Node(node)) => world.start(node),
            Fault::Start(Process::Guest(guest)) => world.start_guest(guest),
            Fault::Pause(Process::Node(node), span) => world.pause(node, None, span),
            Fault::Pause(Process::Guest(guest), span) => world.pause_guest(guest, span),
            Fault::Interrupt { .. } => unreachable!("a turn is interrupted when it comes"),
            Fault::Stall { node, lane, span } => world.pause(node, Some(lane), span),
            Fault::Cut(links) => {
                Self::cut(world, links);
                undo_within = Some(2_000 * MS);
                // Now and then the fault stands alone, long enough for connections to be given up
                // and for the cluster to go on.
                if self.faults.standing && self.rng.chance(1, 3) {
                    world.network.calm = true;
                    let least = SILENCE_MAX.max(time_to_recover(world));
                    self.rests_until = world.time + least + self.rng.below(SILENCE_MAX);
                }
            }
            Fault::Delay(links, by) => {
                Self::delay(world, links, by);
                undo_within = Some(2_000 * MS);
            }
            Fault::Reset { links, after, span } => {
                world.network.links.break_after(links, after, span);
            }
            Fault::CutGuest { guest, node } => {
                let id = world.nodes[node].id;
                world.guests[guest].cut.insert(id);
                undo_within = (!self.partitioned).then_some(1_000 * MS);
            }
            Fault::Reconnect => self.reconnect(world),
            Fault::Clock(process, error) => Self::set_clock(world, process, error),
            Fault::Rate { node, ppm, span } => world.set_rate(node, ppm, span),
            Fault::Ask(ask) => world.ask_operator(ask),
            Fault::Rot(node) => world.damage_disk(node),
            Fault::DiskFails { node, what } => world.fail_disk(node, what),
            Fault::DiskFull { node, span } => world.fill_disk(node, span),
            Fault::DiskSlow { node, span } => world.slow_disk(node, span),
        }
        if let Some(most) = undo_within {
            self.partitioned = true;
            if !self.scripted {
                let at = world.time + 50 * MS + self.rng.below(most);
                world.schedule(at.max(self.rests_until), Event::Undo(Undo::Reconnect));
            }
        }
    }

    /// Whether the fault can be applied and leaves enough replicas untouched.
    fn is_fair(&self, world: &World, fault: Fault) -> bool {
        let node_exists = |node: usize| node < world.nodes.len();
        let id = |node: usize| NodeSet::only(world.nodes[node].id);
        let may_silence = |node: usize| node_exists(node) && world.may_silence(id(node));
        let guest_exists = |guest: usize| guest < world.guests.len();
        let is_linked = |links: Links| {
            links.to != Some(links.from)
                && links.lane.is_none_or(|lane| lane < world.lanes())
                && links.ends().all(node_exists)
        };
        match fault {
            Fault::Kill(Process::Node(node)) => {
                node_exists(node) && world.nodes[node].up && world.may_kill(node)
            }
            Fault::Pause(Process::Node(node), _) => may_silence(node) && world.nodes[node].up,
            Fault::Ambush(Process::Node(node), _) | Fault::Clock(Process::Node(node), _) => {
                node_exists(node)
            }
            Fault::Start(Process::Node(node)) => node_exists(node) && !world.nodes[node].up,
            Fault::Stall { node, lane, .. } => {
                may_silence(node) && world.nodes[node].up && lane < world.lanes()
            }
            Fault::Reset { links, .. } => is_linked(links),
            Fault::Cut(links) | Fault::Delay(links, _) => {
                !self.partitioned
                    && is_linked(links)
                    && world.may_silence(links.ends().map(|node| world.nodes[node].id).collect())
            }
            Fault::CutGuest { guest, node } => guest_exists(guest) && node_exists(node),
            Fault::Kill(Process::Guest(guest))
            | Fault::Pause(Process::Guest(guest), _)
            | Fault::Ambush(Process::Guest(guest), _) => {
                guest_exists(guest) && world.guests[guest].up && !world.guests[guest].paused
            }
            Fault::Start(Process::Guest(guest)) => guest_exists(guest) && !world.guests[guest].up,
            Fault::Clock(Process::Guest(guest), _) => guest_exists(guest),
            Fault::Rate { node, .. } => {
                may_silence(node) && world.nodes.iter().all(|node| node.monotonic.is_right())
            }
            Fault::Reconnect => true,
            Fault::Blackout => world.has_disks() && world.may_lose_power(),
            Fault::Dark(nodes) => {
                let all: NodeSet = world.nodes.iter().map(|node| node.id).collect();
                world.has_disks() && world.may_lose_power() && nodes.is_subset(all)
            }
            Fault::Ruin(nodes) => {
                world.has_disks() && world.may_lose_power() && world.may_ruin(nodes)
            }
            Fault::Rot(node) => node_exists(node) && world.may_rot(node),
            Fault::DiskFails { node, .. } => node_exists(node) && world.has_disks(),
            // A node whose disk is new and full ends.
            Fault::DiskFull { .. } if world.ruin.is_some() => false,
            Fault::DiskFull { node, .. } | Fault::DiskSlow { node, .. } => {
                node_exists(node) && world.has_disks() && world.nodes[node].is_disk_well()
            }
            Fault::Ask(ask) => {
                node_exists(ask.node)
                    && node_exists(ask.at)
                    && world.nodes[ask.at].up
                    && (ask.is_of_itself() || world.may_ask(ask))
            }
            Fault::Interrupt { .. } => false,
        }
    }

    /// A process died: it comes back later, unless a script says when.
    pub(crate) fn died(&mut self, world: &mut World, victim: Process) {
        if !self.scripted {
            let most = if matches!(victim, Process::Node(_)) { 2_500 * MS } else { 800 * MS };
            let at = world.time + 50 * MS + self.rng.below(most);
            world.schedule(at, Event::Undo(Undo::Start(victim)));
        }
    }

    /// Undoes a fault.
    pub(crate) fn undo(&mut self, world: &mut World, undo: Undo) {
        self.apply(
            world,
            match undo {
                Undo::Start(process) => Fault::Start(process),
                Undo::Reconnect => Fault::Reconnect,
            },
        );
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self, world: &mut World) {
        self.active = false;
        self.reconnect(world);
        world.heal_network();
        world.ambush = None;
        world.with_a_request.faults.clear();
        world.schedule(world.time, Event::Restore);
        for node in 0..world.nodes.len() {
            world.mend_rate(node, true);
            world.mend_disk(node);
            if !world.nodes[node].up {
                world.start(node);
            }
        }
        for guest in 0..world.guests.len() {
            world.guests[guest].ambush = None;
            if !world.guests[guest].up {
                world.start_guest(guest);
            }
        }
    }

    /// Cuts links. Either end may be expelled for it, so no other fault disturbs them meanwhile.
    fn cut(world: &mut World, links: Links) {
        let time = world.time;
        world.changed();
        world.network.links.cut(links, time);
        world.schedule(time + SILENCE_MAX, Event::GiveUp);
        if links == Links::of(links.from, false) {
            let id = world.nodes[links.from].id;
            world.guests.iter_mut().for_each(|guest| guest.cut.insert(id));
        }
        world.isolated = links.ends().map(|node| world.nodes[node].id).collect();
        world.trace.event(&[time, 7, hash(links.to_string().as_bytes())], || {
            format!("{} cut {links}", At(time))
        });
    }

    fn delay(world: &mut World, links: Links, by: u64) {
        let time = world.time;
        world.changed_at = None;
        world.network.links.delay(links, by);
        world.isolated = links.ends().map(|node| world.nodes[node].id).collect();
        world.trace.event(&[time, 9, hash(links.to_string().as_bytes()), by], || {
            format!("{} delay {links} by {} ms", At(time), by / MS)
        });
    }

    fn reconnect(&mut self, world: &mut World) {
        world.mend_links();
        world.network.calm = false;
        world.guests.iter_mut().for_each(|guest| guest.cut = NodeSet::EMPTY);
        world.isolated = NodeSet::EMPTY;
        world.disturbed();
        self.partitioned = false;
        let time = world.time;
        world.trace.event(&[time, 8], || format!("{} reconnect", At(time)));
    }

    fn set_clock(world: &mut World, process: Process, error: i64) {
        let number = match process {
            Process::Node(node) => {
                world.nodes[node].wall_error = error;
                u64::from(world.nodes[node].id.0)
            }
            Process::Guest(guest) => {
                world.set_guest_clock(guest, error);
                u64::from(world.guests[guest].id.0)
            }
        };
        let (least, most) = &mut world.wall_errors;
        (*least, *most) = ((*least).min(error), (*most).max(error));
        let time = world.time;
        world.trace.event(&[time, 10, number, error.cast_unsigned()], || {
            format!("{} the wall clock of {process} is off by {} us", At(time), error / 1_000)
        });
    }
}
