//! A network: a star of namespaces around this one, which forwards between them.
//!
//! Cut packets vanish without an answer, as in a real network: a rule of this namespace drops them
//! by source and target, so that each direction can be cut alone. Clients live in the middle of the
//! star and reach every node whatever is cut between nodes.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Where `ip netns` keeps its names. The mount is private to this process.
const NAMES: &str = "/run/netns";

/// Places for machines, numbered from 1.
pub(crate) struct Net {
    slots: usize,
    cuts: BTreeSet<(usize, usize)>,
    slow: BTreeSet<usize>,
}

impl Net {
    /// Lays out the network.
    pub(crate) fn new(slots: usize) -> anyhow::Result<Self> {
        std::fs::create_dir_all(NAMES)?;
        run("mount", &["-t", "tmpfs", "none", NAMES])?;
        run("ip", &["link", "set", "lo", "up"])?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot forward packets")?;
        let net = Self { slots, cuts: BTreeSet::new(), slow: BTreeSet::new() };
        for slot in 1..=slots {
            let (space, link) = (name(slot), format!("v{slot}"));
            let (own, gateway) = (format!("{}/24", address(slot)), gateway(slot));
            run("ip", &["netns", "add", &space])?;
            run("ip", &["link", "add", &link, "type", "veth", "peer", "eth0", "netns", &space])?;
            run("ip", &["addr", "add", &format!("{gateway}/24"), "dev", &link])?;
            run("ip", &["link", "set", &link, "up"])?;
            net.at(slot, "ip", &["addr", "add", &own, "dev", "eth0"])?;
            net.at(slot, "ip", &["link", "set", "eth0", "up"])?;
            net.at(slot, "ip", &["link", "set", "lo", "up"])?;
            net.at(slot, "ip", &["route", "add", "default", "via", &gateway])?;
        }
        Ok(net)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        1..=self.slots
    }

    /// A program that runs at a place. `nsenter` becomes the program, so that its process id is the
    /// program's.
    pub(crate) fn command(&self, slot: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={NAMES}/{}", name(slot))).arg(program);
        command
    }

    fn at(&self, slot: usize, program: &str, args: &[&str]) -> anyhow::Result<()> {
        finish(self.command(slot, program).args(args))
    }

    /// Drops packets of one direction.
    pub(crate) fn cut(&mut self, from: usize, to: usize) -> anyhow::Result<()> {
        if from != to && self.cuts.insert((from, to)) {
            rule("add", from, to)?;
        }
        Ok(())
    }

    /// Drops packets of both directions.
    pub(crate) fn cut_both(&mut self, one: usize, other: usize) -> anyhow::Result<()> {
        self.cut(one, other)?;
        self.cut(other, one)
    }

    /// Cuts a place off from all others.
    pub(crate) fn isolate(&mut self, slot: usize) -> anyhow::Result<()> {
        self.slots().try_for_each(|other| self.cut_both(slot, other))
    }

    /// Throttles the packets to and from a place: they queue for up to 400 ms, then are dropped.
    pub(crate) fn slow_down(&mut self, slot: usize) -> anyhow::Result<()> {
        const SHAPE: [&str; 7] = ["tbf", "rate", "400kbit", "burst", "4kb", "latency", "400ms"];
        let link = format!("v{slot}");
        self.slow.insert(slot);
        run("tc", &[&["qdisc", "replace", "dev", &link, "root"][..], &SHAPE].concat())?;
        self.at(slot, "tc", &[&["qdisc", "replace", "dev", "eth0", "root"][..], &SHAPE].concat())
    }

    /// Everything flows again.
    pub(crate) fn heal(&mut self) -> anyhow::Result<()> {
        for (from, to) in std::mem::take(&mut self.cuts) {
            rule("del", from, to)?;
        }
        for slot in std::mem::take(&mut self.slow) {
            run("tc", &["qdisc", "del", "dev", &format!("v{slot}"), "root"])?;
            self.at(slot, "tc", &["qdisc", "del", "dev", "eth0", "root"])?;
        }
        Ok(())
    }

    /// Resets every connection of a place, those of clients too.
    pub(crate) fn reset(&self, slot: usize) -> anyhow::Result<()> {
        let mut command = self.command(slot, "ss");
        // It complains about sockets that can't be reset, such as listening ones.
        command.args(["--tcp", "--kill", "dst", "10.77.0.0/16"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().context("cannot run ss")?;
        Ok(())
    }
}

/// Cuts a place off from all others, clients included.
pub(crate) fn unplug(slot: usize) -> anyhow::Result<()> {
    plugging("add", slot)
}

/// The place is there again.
pub(crate) fn plug(slot: usize) -> anyhow::Result<()> {
    plugging("del", slot)
}

fn plugging(verb: &str, slot: usize) -> anyhow::Result<()> {
    let all = address(slot);
    run("ip", &["rule", verb, "priority", "90", "to", &all, "blackhole"])?;
    run("ip", &["rule", verb, "priority", "91", "from", &all, "blackhole"])
}

/// Bytes that have come to a place, and that it has sent, since the network was laid out.
pub(crate) fn traffic(slot: usize) -> anyhow::Result<(u64, u64)> {
    let links = std::fs::read_to_string("/proc/self/net/dev")?;
    let link = format!("v{slot}:");
    let line = links.lines().find_map(|line| line.trim_start().strip_prefix(&link));
    let line = line.context("the place has a link")?;
    let counts: Vec<u64> = line.split_whitespace().map_while(|count| count.parse().ok()).collect();
    // Eight columns of what this end receives, then eight of what it sends.
    match counts.as_slice() {
        [sent, _, _, _, _, _, _, _, received, ..] => Ok((*received, *sent)),
        _ => anyhow::bail!("cannot read the counters of {link}"),
    }
}

/// The address of a place.
pub(crate) fn address(slot: usize) -> String {
    format!("10.77.{slot}.2")
}

fn gateway(slot: usize) -> String {
    format!("10.77.{slot}.1")
}

fn name(slot: usize) -> String {
    format!("q{slot}")
}

fn rule(verb: &str, from: usize, to: usize) -> anyhow::Result<()> {
    let (from, to) = (address(from), address(to));
    run("ip", &["rule", verb, "priority", "100", "from", &from, "to", &to, "blackhole"])
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    finish(Command::new(program).args(args))
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}; is iproute2 installed?"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}
