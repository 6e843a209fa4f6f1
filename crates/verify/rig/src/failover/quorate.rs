//! Quorate, with its default settings.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::breakdown::{Marks, Parts};
use super::{Fault, Request, System};
use crate::cluster::Cluster;
use crate::engines::Engine;
use crate::net::{self, Net};
use crate::resp::{Connection, Reply};

/// Longer than a node itself gives up on an op, as the chapter on operating advises.
const PATIENCE: Duration = Duration::from_millis(2500);

pub(super) struct Quorate {
    name: &'static str,
    cluster: Cluster,
    /// How long each node's log was before the fault.
    logged: Vec<u64>,
}

impl Quorate {
    pub(super) fn start(
        net: &Net,
        slots: RangeInclusive<usize>,
        engine: &'static Engine,
        binary: &Path,
        work: &Path,
    ) -> anyhow::Result<Box<dyn System>> {
        let cluster = Cluster::start(net, slots, engine, "", binary, work)?;
        Ok(Box::new(Self { name: engine.name, cluster, logged: Vec::new() }))
    }

    fn log_lengths(&self) -> Vec<u64> {
        let length =
            |index| std::fs::metadata(self.cluster.log(index)).map_or(0, |file| file.len());
        (0..self.cluster.nodes.len()).map(length).collect()
    }
}

impl System for Quorate {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self, _: &Net, round: u64) -> anyhow::Result<usize> {
        self.cluster.converge()?;
        // There is no leader; the lowest id proposes views.
        Ok(round as usize % self.cluster.nodes.len())
    }

    fn client(&mut self, victim: usize) -> (Request, Request) {
        let clients = self.cluster.clients();
        let survivor = clients[(victim + 1) % clients.len()].clone();
        let request = |words: &'static [&'static str]| -> Request {
            let (address, mut connection) = (survivor.clone(), None);
            Box::new(move || {
                let open = || Connection::open(&address, PATIENCE).ok();
                let Some(mut open) = connection.take().or_else(open) else { return false };
                let Ok(reply) = open.ask(words) else { return false };
                connection = Some(open);
                !matches!(reply, Reply::Error(_))
            })
        };
        (request(&["SET", "written", "1"]), request(&["GET", "read"]))
    }

    fn hit(&mut self, victim: usize, fault: Fault) -> anyhow::Result<()> {
        self.logged = self.log_lengths();
        match fault {
            Fault::Kill => self.cluster.begin_kill(victim),
            Fault::Unplug => net::unplug(self.cluster.nodes[victim].slot),
            Fault::Stop => self.cluster.stop(victim),
        }
    }

    fn mend(&mut self, net: &Net, victim: usize, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Kill => {
                self.cluster.kill(victim)?;
                self.cluster.launch(net, victim)?;
            }
            Fault::Unplug => net::plug(self.cluster.nodes[victim].slot)?,
            Fault::Stop => self.cluster.go_on(victim)?,
        }
        self.cluster.converge()
    }

    fn breakdown(&self, victim: usize, at: SystemTime, write: Duration) -> Option<Parts> {
        let gone = self.cluster.nodes[victim].id;
        let survivors = (0..self.cluster.nodes.len()).filter(|index| *index != victim);
        let marks: Option<Vec<Marks>> = survivors
            .map(|index| Marks::read(&self.cluster.log(index), self.logged[index], gone, at))
            .collect();
        Parts::new(&marks?, write)
    }
}
