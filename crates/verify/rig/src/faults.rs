//! The faults, alone and together. Each scenario ends with all faults mended; its caller checks
//! that the cluster then recovers.

use std::sync::Arc;
use std::time::Duration;

use quorate_machine::Rng;

use crate::clients::Memory;
use crate::cluster::Cluster;
use crate::engines::Engine;
use crate::moves;
use crate::net::Net;
use crate::power;
use crate::resp::Connection;

/// Longer than the lease ([`LEASE_MS`]) by enough that others have gone on without the node.
pub(crate) const PAST_LEASE: Duration = Duration::from_millis(1300);
/// The lease of clusters under faults: longer than the default, because a crowded machine keeps
/// processes waiting, which is a fault that no scenario asked for.
pub(crate) const LEASE_MS: u64 = 500;
/// Size and number of the answers that the slow reader asks for and does not read.
const LARGE_BYTES: usize = 1 << 20;
const LARGE_READS: usize = 48;

/// The cluster, network and keys that a scenario acts on.
pub(crate) struct Field<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) engine: &'a Engine,
    pub(crate) random: &'a mut Rng,
    /// The prefix of the keys of this round.
    pub(crate) prefix: &'a str,
    /// Where clients of the scenario itself record what they see, for the verdict on the round.
    pub(crate) recorder: Arc<Memory>,
}

/// What a scenario is about, and is left out without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    Nothing,
    /// An engine whose keys move.
    Moves,
    /// Nodes that keep on their disks what they acknowledge.
    Disks,
    /// Disks that lose what was not flushed.
    PowerCuts,
}

/// How many nodes end at once. Where promises do not wait for disks, what was answered last may be lost with
/// all that have it, and no verdict is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ends {
    Few,
    AllButOne,
    All,
}

impl Ends {
    /// Whether all nodes may end that have what was acknowledged last, in a cluster of so many.
    pub(crate) fn ends_all_that_have_it(self, engine: &Engine, nodes: u8) -> bool {
        match self {
            Self::Few => false,
            // With more nodes not all have each key.
            Self::AllButOne => nodes > 3 || !engine.writes_all,
            Self::All => true,
        }
    }
}

/// A scenario of faults.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// For the table.
    pub(crate) what: &'static str,
    pub(crate) needs: Needs,
    pub(crate) ends: Ends,
    pub(crate) run: fn(&mut Field<'_>) -> anyhow::Result<()>,
}

const fn scenario(
    name: &'static str,
    what: &'static str,
    run: fn(&mut Field<'_>) -> anyhow::Result<()>,
) -> Scenario {
    Scenario { name, what, needs: Needs::Nothing, ends: Ends::Few, run }
}

/// A scenario for engines whose keys move.
const fn moving(
    name: &'static str,
    what: &'static str,
    run: fn(&mut Field<'_>) -> anyhow::Result<()>,
) -> Scenario {
    Scenario { needs: Needs::Moves, ..scenario(name, what, run) }
}

/// A scenario that needs disks, as most nodes lose what they have in memory, or as it is about them.
const fn losing(
    needs: Needs,
    name: &'static str,
    what: &'static str,
    run: fn(&mut Field<'_>) -> anyhow::Result<()>,
) -> Scenario {
    Scenario { needs, ..scenario(name, what, run) }
}

/// A scenario in which most nodes end at once.
const fn ending(
    ends: Ends,
    needs: Needs,
    name: &'static str,
    what: &'static str,
    run: fn(&mut Field<'_>) -> anyhow::Result<()>,
) -> Scenario {
    Scenario { ends, ..losing(needs, name, what, run) }
}

/// Every scenario, the single faults first.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("kill", "SIGKILL of a node, restarted under a fresh incarnation", kill),
    scenario("stop", "SIGSTOP of a node for longer than its lease, SIGCONT", stop),
    scenario("stall", "SIGSTOP of a node for 100 to 500 ms, SIGCONT, eight times", stall),
    scenario("isolate", "a node cut off from all others, not from its clients", isolate),
    scenario("ring", "no node without a neighbour that it can't reach, each with a majority", ring),
    scenario("one-way", "one node is heard by nobody, or hears nobody", one_way),
    scenario("shatter", "no node reaches another", shatter),
    scenario("reset", "TCP resets of all connections of a node, twelve times", reset),
    scenario("slow-link", "400 kbit/s to and from a node, with queues of 400 ms", slow_link),
    scenario(
        "slow-reader",
        "48 MiB of answers that a client does not read, at each node",
        slow_reader,
    ),
    scenario("clock", "wall clocks step to and fro, as far apart as the engine allows", clock),
    scenario("rolling", "SIGTERM and restart of each node in turn", rolling),
    scenario("replace", "a killed node is replaced under a new id and address", replace),
    scenario("kill+reset", "kill while the survivors' connections are reset", kill_reset),
    scenario("isolate+kill", "a node is cut off and killed there", isolate_kill),
    scenario("stop+cut", "a node is stopped while another is cut off: no majority", stop_cut),
    scenario("stop+clock+slow", "stop while clocks step and a link is slow", stop_clock_slow),
    scenario("flap", "a node is cut off for about a lease, again and again", flap),
    moving("kill-owner", "SIGKILL of the owner of keys that others ask for", moves::kill_owner),
    moving(
        "kill-directory",
        "SIGKILL of a node of the group of keys that others pass on",
        moves::kill_directory,
    ),
    moving("kill-requester", "SIGKILL of a node that asks for keys", moves::kill_requester),
    moving("cut-link", "no link between two nodes that pass keys on", moves::cut_link),
    moving(
        "replace-busy",
        "a killed node of the group of keys that are passed on is replaced",
        moves::replace_busy,
    ),
    moving(
        "exchange",
        "another node takes the place of a live one, of the group of keys that are passed on",
        moves::exchange,
    ),
    ending(
        Ends::AllButOne,
        Needs::Disks,
        "kill-most",
        "SIGKILL of all nodes but one, restarted",
        power::kill_all_but_one,
    ),
    ending(
        Ends::AllButOne,
        Needs::PowerCuts,
        "power-but-one",
        "loss of the power of all nodes but one",
        power::cut_all_but_one,
    ),
    ending(Ends::All, Needs::Disks, "kill-all", "SIGKILL of all nodes, restarted", power::kill_all),
    ending(Ends::All, Needs::PowerCuts, "power", "loss of the power of all nodes", power::cut_all),
    ending(
        Ends::All,
        Needs::PowerCuts,
        "power-again",
        "loss of the power of all nodes, and again while they come back",
        power::cut_again,
    ),
    losing(Needs::PowerCuts, "power-one", "loss of the power of one node", power::cut_one),
    ending(
        Ends::All,
        Needs::PowerCuts,
        "power-most",
        "loss of the power of all nodes, one of which comes back later",
        power::cut_and_one_late,
    ),
    ending(
        Ends::All,
        Needs::PowerCuts,
        "rot",
        "SIGKILL of all nodes, a bit of one node's log tips, all restarted",
        power::rot,
    ),
    losing(
        Needs::PowerCuts,
        "disk-full",
        "no room on a node's disk for two seconds",
        power::disk_full,
    ),
    losing(
        Needs::PowerCuts,
        "flush-fails",
        "a flush fails: the node has to end; its power goes, and comes back",
        power::flush_fails,
    ),
    losing(Needs::PowerCuts, "slow-disk", "flushes of a node take 0.3 s longer", power::slow_disk),
];

impl Field<'_> {
    pub(crate) fn any(&mut self) -> usize {
        self.random.below(self.cluster.nodes.len() as u64) as usize
    }

    fn any_slot(&mut self) -> usize {
        let node = self.any();
        self.slot(node)
    }

    /// Another node than this one.
    fn other(&mut self, than: usize) -> usize {
        let count = self.cluster.nodes.len();
        (than + 1 + self.random.below(count as u64 - 1) as usize) % count
    }

    fn slot(&self, index: usize) -> usize {
        self.cluster.nodes[index].slot
    }

    fn step_clocks(&mut self) -> anyhow::Result<()> {
        // Half to either side, so that no two differ by more than the bound.
        let bound = self.engine.clock_step_ms_max;
        for index in 0..self.cluster.nodes.len() {
            let millis = self.random.below(bound + 1) as i64 - (bound / 2) as i64;
            self.cluster.step_clock(index, millis)?;
        }
        Ok(())
    }

    fn mend_clocks(&self) -> anyhow::Result<()> {
        (0..self.cluster.nodes.len()).try_for_each(|index| self.cluster.step_clock(index, 0))
    }
}

pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn kill(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    field.cluster.kill(node)?;
    pause(PAST_LEASE);
    field.cluster.launch(field.net, node)
}

fn stop(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    field.cluster.stop(node)?;
    pause(PAST_LEASE);
    field.cluster.go_on(node)
}

fn stall(field: &mut Field<'_>) -> anyhow::Result<()> {
    for _ in 0..8 {
        let node = field.any();
        field.cluster.stop(node)?;
        pause(Duration::from_millis(100 + field.random.below(400)));
        field.cluster.go_on(node)?;
        pause(Duration::from_millis(field.random.below(300)));
    }
    Ok(())
}

fn isolate(field: &mut Field<'_>) -> anyhow::Result<()> {
    let slot = field.any_slot();
    field.net.isolate(slot)?;
    pause(PAST_LEASE * 2);
    field.net.heal()
}

fn ring(field: &mut Field<'_>) -> anyhow::Result<()> {
    let count = field.cluster.nodes.len();
    if count == 3 {
        // Three nodes have only one kind of such a network: one link is missing.
        let one = field.any();
        let (one, other) = (field.slot(one), field.slot((one + 1) % 3));
        field.net.cut_both(one, other)?;
    } else {
        for index in 0..count {
            let (one, other) = (field.slot(index), field.slot((index + 2) % count));
            field.net.cut_both(one, other)?;
        }
    }
    pause(PAST_LEASE * 2);
    field.net.heal()
}

fn one_way(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    let mute = field.random.chance(1, 2);
    for other in 0..field.cluster.nodes.len() {
        let (own, other) = (field.slot(node), field.slot(other));
        let (from, to) = if mute { (own, other) } else { (other, own) };
        field.net.cut(from, to)?;
    }
    pause(PAST_LEASE * 2);
    field.net.heal()
}

fn shatter(field: &mut Field<'_>) -> anyhow::Result<()> {
    field.net.slots().try_for_each(|slot| field.net.isolate(slot))?;
    pause(PAST_LEASE);
    field.net.heal()
}

fn reset(field: &mut Field<'_>) -> anyhow::Result<()> {
    for _ in 0..12 {
        let node = field.any();
        field.net.reset(field.slot(node))?;
        pause(Duration::from_millis(100));
    }
    Ok(())
}

fn slow_link(field: &mut Field<'_>) -> anyhow::Result<()> {
    let slot = field.any_slot();
    field.net.slow_down(slot)?;
    pause(PAST_LEASE * 2);
    field.net.heal()
}

fn slow_reader(field: &mut Field<'_>) -> anyhow::Result<()> {
    let patience = Duration::from_secs(30);
    let (key, large) = (format!("{}large", field.prefix), "x".repeat(LARGE_BYTES));
    let mut readers = Vec::new();
    for address in field.cluster.clients() {
        let mut reader = Connection::open(&address, patience)?;
        reader.ask(&["SET", &key, &large])?;
        for _ in 0..LARGE_READS {
            reader.send(&["GET", &key])?;
        }
        readers.push(reader);
    }
    pause(PAST_LEASE * 2);
    Ok(())
}

fn clock(field: &mut Field<'_>) -> anyhow::Result<()> {
    for _ in 0..8 {
        field.step_clocks()?;
        pause(Duration::from_millis(150));
    }
    field.mend_clocks()
}

fn rolling(field: &mut Field<'_>) -> anyhow::Result<()> {
    for node in 0..field.cluster.nodes.len() {
        field.cluster.terminate(node)?;
        field.cluster.launch(field.net, node)?;
        field.cluster.converge()?;
    }
    Ok(())
}

fn replace(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    field.cluster.kill(node)?;
    field.cluster.replace(field.net, node)
}

fn kill_reset(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    let survivor = field.other(node);
    field.cluster.kill(node)?;
    for _ in 0..6 {
        field.net.reset(field.slot(survivor))?;
        pause(PAST_LEASE / 6);
    }
    field.cluster.launch(field.net, node)
}

fn isolate_kill(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    field.net.isolate(field.slot(node))?;
    pause(PAST_LEASE / 2);
    field.cluster.kill(node)?;
    pause(PAST_LEASE / 2);
    field.net.heal()?;
    field.cluster.launch(field.net, node)
}

fn stop_cut(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    let other = field.other(node);
    field.cluster.stop(node)?;
    pause(PAST_LEASE / 4);
    field.net.isolate(field.slot(other))?;
    pause(PAST_LEASE);
    field.cluster.go_on(node)?;
    pause(PAST_LEASE / 4);
    field.net.heal()
}

fn stop_clock_slow(field: &mut Field<'_>) -> anyhow::Result<()> {
    let node = field.any();
    let other = field.other(node);
    field.net.slow_down(field.slot(other))?;
    field.step_clocks()?;
    field.cluster.stop(node)?;
    pause(PAST_LEASE);
    field.step_clocks()?;
    field.cluster.go_on(node)?;
    pause(PAST_LEASE);
    field.mend_clocks()?;
    field.net.heal()
}

fn flap(field: &mut Field<'_>) -> anyhow::Result<()> {
    let slot = field.any_slot();
    for _ in 0..6 {
        field.net.isolate(slot)?;
        pause(Duration::from_millis(LEASE_MS / 2 + field.random.below(LEASE_MS)));
        field.net.heal()?;
        pause(Duration::from_millis(50 + field.random.below(200)));
    }
    Ok(())
}
