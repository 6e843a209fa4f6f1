//! A cluster of `quorate serve` processes, each at a place of the network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::engines::Engine;
use crate::net::{Net, address};
use crate::power::{Disks, Durability, Mount};
use crate::process::Process;

/// Longest that a cluster may take to be whole again. Generous: it decides whether the cluster
/// recovers, not how fast.
const CONVERGE_MAX: Duration = Duration::from_secs(60);
/// The largest node id, as `quorate_types::limits` has it; ids are never used twice.
const NODE_ID_MAX: u16 = 63;

/// A cluster that does not recover from its faults.
#[derive(Debug)]
pub(crate) struct NotWhole {
    id: u16,
    work: PathBuf,
}

impl std::error::Error for NotWhole {}

impl std::fmt::Display for NotWhole {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, work) = (self.id, self.work.display());
        write!(out, "node {id} does not serve {CONVERGE_MAX:?} after the last fault; see {work}")
    }
}

/// One node: an id, a place and, unless it is down, a process.
pub(crate) struct Node {
    pub(crate) id: u16,
    pub(crate) slot: usize,
    process: Option<Process>,
    /// Its disk, if that can lose its power.
    mount: Option<Mount>,
}

/// A cluster.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    binary: PathBuf,
    work: PathBuf,
    /// More lines of `[cluster]`.
    settings: String,
    keyspace: String,
    disks: Disks,
    next_id: u16,
}

impl Cluster {
    /// Starts a cluster at these places of the network, and waits until all nodes serve. Its nodes keep
    /// nothing on disks.
    pub(crate) fn start(
        net: &Net,
        slots: RangeInclusive<usize>,
        engine: &Engine,
        settings: &str,
        binary: &Path,
        work: &Path,
    ) -> anyhow::Result<Self> {
        Self::start_with(
            net,
            slots,
            engine,
            settings,
            binary,
            work,
            (Disks::None, Durability::Sync),
        )
    }

    /// Starts a cluster at these places of the network, and waits until all nodes serve.
    pub(crate) fn start_with(
        net: &Net,
        slots: RangeInclusive<usize>,
        engine: &Engine,
        settings: &str,
        binary: &Path,
        work: &Path,
        (disks, durability): (Disks, Durability),
    ) -> anyhow::Result<Self> {
        let (name, options) = (engine.name, engine.options);
        let mut settings = settings.to_owned();
        let mut keyspace =
            format!("[[keyspace]]\ndb = 0\nname = \"rig\"\nengine = \"{name}\"\n{options}");
        if disks != Disks::None {
            settings += engine.on_disks.context("the engine keeps what it has on disks")?;
            keyspace += &format!("durability = \"{}\"\n", durability.name());
        }
        let nodes = slots.zip(1..).map(|(slot, id)| Node { id, slot, process: None, mount: None });
        let nodes: Vec<Node> = nodes.collect();
        let count = nodes.len();
        let mut cluster = Self {
            nodes,
            binary: binary.to_owned(),
            work: work.to_owned(),
            settings,
            keyspace,
            disks,
            next_id: count as u16 + 1,
        };
        std::fs::create_dir_all(work)?;
        cluster.configure()?;
        (0..count).try_for_each(|index| cluster.launch(net, index))?;
        cluster.converge()?;
        Ok(cluster)
    }

    /// Whether ids are left for one more replacement.
    pub(crate) fn has_ids(&self) -> bool {
        self.next_id <= NODE_ID_MAX
    }

    /// The client addresses of the nodes, including those that are down.
    pub(crate) fn clients(&self) -> Vec<String> {
        self.nodes.iter().map(|node| client(node.slot)).collect()
    }

    fn config(&self) -> PathBuf {
        self.work.join("quorate.toml")
    }

    fn configure(&self) -> anyhow::Result<()> {
        let mut text = format!("[cluster]\nname = \"rig\"\n{}", self.settings);
        for Node { id, slot, .. } in &self.nodes {
            let (peer, client, admin) = (peer(*slot), client(*slot), admin(*slot));
            write!(
                text,
                "[[node]]\nid = {id}\npeer = \"{peer}\"\nclient = \"{client}\"\nadmin = \"{admin}\"\n"
            )?;
        }
        text += &self.keyspace;
        if self.disks != Disks::None {
            // Small enough that segments and snapshots come and go all the time.
            let dir = self.disks_at();
            write!(
                text,
                "[disk]\ndir = \"{}\"\nsegment = \"1mb\"\nsnapshot_after = \"1mb\"\n",
                dir.display()
            )?;
        }
        Ok(std::fs::write(self.config(), text)?)
    }

    fn disks_at(&self) -> PathBuf {
        self.work.join("disks")
    }

    fn clock_file(&self, slot: usize) -> PathBuf {
        self.work.join(format!("clock-{slot}"))
    }

    /// The log of a node's process.
    pub(crate) fn log(&self, index: usize) -> PathBuf {
        self.work.join(format!("node-{}.log", self.nodes[index].id))
    }

    /// Starts the process of a node.
    pub(crate) fn launch(&mut self, net: &Net, index: usize) -> anyhow::Result<()> {
        let Node { id, slot, .. } = self.nodes[index];
        if self.disks == Disks::Volatile && self.nodes[index].mount.is_none() {
            let mount = Mount::new(&self.disks_at().join(format!("node-{id}")), id.into())?;
            self.nodes[index].mount = Some(mount);
        }
        let mut command = net.command(slot, &self.binary.to_string_lossy());
        command.args(["serve", "--config"]).arg(self.config());
        command.args(["--node", &id.to_string()]);
        command.env("QUORATE_TEST_CLOCK_STEPS", self.clock_file(slot));
        let process = Process::start(&mut command, &self.log(index))?;
        self.nodes[index].process = Some(process);
        Ok(())
    }

    /// SIGKILL, without waiting for the end.
    pub(crate) fn begin_kill(&self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].process.as_ref().context("it runs")?.kill()
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].process.take().context("it runs")?.kill()
    }

    /// The power of these nodes goes at one moment. What they have not flushed is lost, or not, or in
    /// part.
    pub(crate) fn cut_power(&mut self, indices: &[usize]) -> anyhow::Result<()> {
        let of = |index: &usize| self.mount(*index);
        let mounts: Vec<&Mount> = indices.iter().map(of).collect::<anyhow::Result<_>>()?;
        let mut volumes: Vec<_> = mounts.iter().map(|mount| mount.volume()).collect();
        volumes.iter_mut().for_each(|volume| volume.switch_off());
        drop(volumes);
        for index in indices {
            // It may have ended when its disk failed.
            let _ = self.nodes[*index].process.take().context("it runs")?.kill();
        }
        indices.iter().try_for_each(|index| {
            self.mount(*index)?.volume().switch_on();
            Ok(())
        })
    }

    /// The disk of a node, if the rig provides it.
    pub(crate) fn mount(&self, index: usize) -> anyhow::Result<&Mount> {
        self.nodes[index].mount.as_ref().context("the rig provides its disk")
    }

    /// Waits until a process has ended by itself, and returns its exit code.
    pub(crate) fn exit_code(&mut self, index: usize) -> anyhow::Result<Option<i32>> {
        self.nodes[index].process.as_mut().context("it runs")?.exit_code()
    }

    /// What cuts of the power have done to what was not flushed, by name.
    pub(crate) fn power_events(&self) -> BTreeMap<&'static str, u64> {
        let mut events = BTreeMap::new();
        for mount in self.nodes.iter().filter_map(|node| node.mount.as_ref()) {
            for (event, count) in mount.volume().counts() {
                *events.entry(*event).or_default() += count;
            }
        }
        events
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn terminate(&mut self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].process.take().context("it runs")?.terminate()
    }

    /// SIGSTOP.
    pub(crate) fn stop(&self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].process.as_ref().context("it runs")?.stop()
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self, index: usize) -> anyhow::Result<()> {
        self.nodes[index].process.as_ref().context("it runs")?.go_on()
    }

    /// Sets the wall clock of a node to `millis` milliseconds ahead of the machine's.
    pub(crate) fn step_clock(&self, index: usize, millis: i64) -> anyhow::Result<()> {
        Ok(std::fs::write(self.clock_file(self.nodes[index].slot), format!("{millis}\n"))?)
    }

    /// Another node, under a new id and at a free place, takes the place of one that is down.
    pub(crate) fn replace(&mut self, net: &Net, index: usize) -> anyhow::Result<()> {
        let slot = self.free_slot(net)?;
        let survivor = admin(self.nodes[(index + 1) % self.nodes.len()].slot);
        let gone = self.nodes[index].id.to_string();
        self.member(&["remove", &gone, "--admin", &survivor])?;
        self.admit(net, index, slot, &survivor)?;
        Ok(())
    }

    /// Another node, under a new id and at a free place, takes the place of one that lives: it comes
    /// first, and the other goes once it serves.
    pub(crate) fn exchange(&mut self, net: &Net, index: usize) -> anyhow::Result<()> {
        let slot = self.free_slot(net)?;
        let survivor = admin(self.nodes[(index + 1) % self.nodes.len()].slot);
        let mut old = self.admit(net, index, slot, &survivor)?;
        self.converge()?;
        self.member(&["remove", &old.id.to_string(), "--admin", &survivor])?;
        old.process.take().context("it runs")?.terminate()
    }

    fn free_slot(&self, net: &Net) -> anyhow::Result<usize> {
        net.slots()
            .find(|slot| self.nodes.iter().all(|node| node.slot != *slot))
            .context("a place is free")
    }

    /// Adds a node, which gets the index of another one. Returns that.
    fn admit(
        &mut self,
        net: &Net,
        index: usize,
        slot: usize,
        survivor: &str,
    ) -> anyhow::Result<Node> {
        let id = self.next_id;
        self.next_id += 1;
        let new = Node { id, slot, process: None, mount: None };
        let old = std::mem::replace(&mut self.nodes[index], new);
        let (peer, client, own) = (peer(slot), client(slot), admin(slot));
        let id = id.to_string();
        let place = ["--peer", &peer, "--client", &client, "--admin-address", &own];
        self.member(&[&["add", &id][..], &place, &["--admin", survivor]].concat())?;
        self.configure()?;
        self.launch(net, index)?;
        Ok(old)
    }

    /// Runs `quorate member` like an operator. A cluster that is still busy with its last change
    /// refuses for a while.
    fn member(&self, args: &[&str]) -> anyhow::Result<()> {
        let deadline = Instant::now() + CONVERGE_MAX;
        loop {
            let mut command = std::process::Command::new(&self.binary);
            // The nodes share a configuration, and so the token beside it.
            let token = self.config().with_extension("token");
            let output =
                command.arg("member").args(args).arg("--token-file").arg(token).output()?;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(Instant::now() < deadline, "quorate member {}: {said}", args.join(" "));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Saves the status of each node, for people who look into why one doesn't serve.
    fn save_statuses(&self) {
        for node in &self.nodes {
            let text = ask(node.slot, "/status").unwrap_or_else(|error| error.to_string());
            // The error that is about to be reported matters more than this file.
            let _ = std::fs::write(self.work.join(format!("status-{}.json", node.id)), text);
        }
    }

    /// The status of a node.
    pub(crate) fn status(&self, index: usize) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&ask(self.nodes[index].slot, "/status")?)?)
    }

    /// The view of a node.
    pub(crate) fn view(&self, index: usize) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&ask(self.nodes[index].slot, "/view")?)?)
    }

    /// Waits until every node serves.
    pub(crate) fn converge(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CONVERGE_MAX;
        for index in 0..self.nodes.len() {
            let Node { id, slot, .. } = self.nodes[index];
            while !is_healthy(slot) {
                let log = self.log(index);
                if let Some(process) = &mut self.nodes[index].process {
                    ensure!(!process.has_ended()?, "node {id} ended; see {}", log.display());
                }
                if Instant::now() > deadline {
                    self.save_statuses();
                    let work = self.work.clone();
                    return Err(NotWhole { id, work }.into());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

fn is_healthy(slot: usize) -> bool {
    ask(slot, "/health").is_ok()
}

fn ask(slot: usize, path: &str) -> anyhow::Result<String> {
    let patience = Some(Duration::from_millis(500));
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(patience).build().into();
    let mut answer = agent.get(format!("http://{}{path}", admin(slot))).call()?;
    Ok(answer.body_mut().read_to_string()?)
}

fn peer(slot: usize) -> String {
    format!("{}:7400", address(slot))
}

fn client(slot: usize) -> String {
    format!("{}:6379", address(slot))
}

fn admin(slot: usize) -> String {
    format!("{}:9400", address(slot))
}
