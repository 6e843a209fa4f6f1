//! Quorate and its rivals, as systems that noise disturbs.

use std::path::Path;
use std::process::{Command, Stdio};

use super::clients::{Client, PATIENCE, Resp};
use crate::cluster::Cluster;
use crate::engines::Engine;
use crate::net::{Net, address};
use crate::process::Process;
use crate::rivals::{self, Etcd, REDIS, Sentinel};

/// Changes of a system's members or leader.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changes {
    /// Views of Quorate, failovers of Sentinel, terms of etcd.
    pub(crate) views: u64,
    /// How often a node of Quorate was expelled and came back.
    pub(crate) expulsions: u64,
}

impl Changes {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            views: self.views.saturating_sub(before.views),
            expulsions: self.expulsions.saturating_sub(before.expulsions),
        }
    }
}

/// A system that runs.
pub(super) trait System: Sync {
    /// How many machines the system has. Each of them can stall by itself.
    fn machines(&self) -> usize;

    /// All processes of a machine stand still.
    fn stop(&self, machine: usize) -> anyhow::Result<()>;

    /// They go on.
    fn go_on(&self, machine: usize) -> anyhow::Result<()>;

    fn client(&self, number: usize) -> Box<dyn Client>;

    /// The changes since the start, once the system is whole again.
    fn changes(&mut self) -> anyhow::Result<Changes>;
}

/// The systems that can be played.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Quorate(&'static Engine),
    Redis,
    Sentinel { name: &'static str, settings: &'static str },
    Etcd,
}

impl Kind {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Quorate(engine) => engine.name,
            Self::Redis => "redis",
            Self::Sentinel { name, .. } => name,
            Self::Etcd => "etcd",
        }
    }

    /// The program that it needs beside Quorate, if that is not installed.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        let program = match self {
            Self::Quorate(_) => return None,
            Self::Redis | Self::Sentinel { .. } => "redis-server",
            Self::Etcd => "etcd",
        };
        let mut command = Command::new(program);
        let found = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_err().then_some(program)
    }

    /// Starts the system at the first places of the network. It ends with the value.
    pub(super) fn start(
        &self,
        net: &Net,
        binary: &Path,
        work: &Path,
    ) -> anyhow::Result<Box<dyn System>> {
        std::fs::create_dir_all(work)?;
        let slots = 1..=super::MACHINES;
        Ok(match self {
            Self::Quorate(engine) => {
                Box::new(Cluster::start(net, slots, engine, "", binary, work)?)
            }
            Self::Redis => Box::new(Redis::start(net, work)?),
            Self::Sentinel { name, settings } => {
                let mut sentinel = Sentinel::new(name, slots, work, settings);
                sentinel.start(net, 0)?;
                Box::new(sentinel)
            }
            Self::Etcd => Box::new(Etcd::new(net, slots, work)?),
        })
    }
}

impl System for Cluster {
    fn machines(&self) -> usize {
        self.nodes.len()
    }

    fn stop(&self, machine: usize) -> anyhow::Result<()> {
        Self::stop(self, machine)
    }

    fn go_on(&self, machine: usize) -> anyhow::Result<()> {
        Self::go_on(self, machine)
    }

    fn client(&self, number: usize) -> Box<dyn Client> {
        Box::new(Resp::of_any(number, self.clients()))
    }

    fn changes(&mut self) -> anyhow::Result<Changes> {
        self.converge()?;
        let mut changes = Changes::default();
        for index in 0..self.nodes.len() {
            let status = self.status(index)?;
            let count = |name: &str| status[name].as_u64().unwrap_or_default();
            changes.views = changes.views.max(count("views"));
            changes.expulsions += count("rejoins");
        }
        Ok(changes)
    }
}

/// A single server, which nothing replaces.
struct Redis(Process);

impl Redis {
    fn start(net: &Net, work: &Path) -> anyhow::Result<Self> {
        let server = Process::start(&mut rivals::redis_server(net, 1, work), &work.join("log"))?;
        rivals::wait_for_redis(1)?;
        Ok(Self(server))
    }
}

impl System for Redis {
    fn machines(&self) -> usize {
        1
    }

    fn stop(&self, _: usize) -> anyhow::Result<()> {
        self.0.stop()
    }

    fn go_on(&self, _: usize) -> anyhow::Result<()> {
        self.0.go_on()
    }

    fn client(&self, number: usize) -> Box<dyn Client> {
        Box::new(Resp::of_any(number, vec![format!("{}:{REDIS}", address(1))]))
    }

    fn changes(&mut self) -> anyhow::Result<Changes> {
        Ok(Changes::default())
    }
}

impl System for Sentinel {
    fn machines(&self) -> usize {
        super::MACHINES
    }

    fn stop(&self, machine: usize) -> anyhow::Result<()> {
        self.processes(machine).iter().try_for_each(Process::stop)
    }

    fn go_on(&self, machine: usize) -> anyhow::Result<()> {
        self.processes(machine).iter().try_for_each(Process::go_on)
    }

    fn client(&self, number: usize) -> Box<dyn Client> {
        let sentinels = self.sentinels();
        Box::new(Resp::new(number, move || rivals::find_master(&sentinels, PATIENCE)))
    }

    fn changes(&mut self) -> anyhow::Result<Changes> {
        Ok(Changes { views: self.failovers()?, expulsions: 0 })
    }
}

impl System for Etcd {
    fn machines(&self) -> usize {
        super::MACHINES
    }

    fn stop(&self, machine: usize) -> anyhow::Result<()> {
        self.processes(machine).iter().try_for_each(Process::stop)
    }

    fn go_on(&self, machine: usize) -> anyhow::Result<()> {
        self.processes(machine).iter().try_for_each(Process::go_on)
    }

    fn client(&self, number: usize) -> Box<dyn Client> {
        Box::new(EtcdClient { client: self.gateway(PATIENCE), at: number })
    }

    fn changes(&mut self) -> anyhow::Result<Changes> {
        Ok(Changes { views: self.term()?, expulsions: 0 })
    }
}

/// Keeps to a member until that fails, and then asks the next.
struct EtcdClient {
    client: rivals::EtcdGateway,
    at: usize,
}

impl Client for EtcdClient {
    fn ask(&mut self, write: bool) -> Result<(), String> {
        self.client.ask(self.at, write).inspect_err(|_| self.at += 1)
    }
}
