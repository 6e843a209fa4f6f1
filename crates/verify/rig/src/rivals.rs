//! Redis with Sentinel, and etcd.

use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::failover::{Fault, Request, System};
use crate::net::{self, Net, address};
use crate::process::Process;
use crate::resp::{Connection, Reply};

/// How long a client waits for one answer before it asks anew. Shorter than these systems advise,
/// so that the wait for a dead machine doesn't dominate the measurement.
const ATTEMPT: Duration = Duration::from_millis(100);
/// How long a system may take to reach its full strength.
const START_MAX: Duration = Duration::from_secs(90);
/// A master counts as dead after a second instead of half a minute.
pub(crate) const TUNED: &str = "\
sentinel down-after-milliseconds m 1000
sentinel failover-timeout m 5000
";

pub(crate) const REDIS: u16 = 6379;
const SENTINEL: u16 = 26379;
const ETCD: u16 = 2379;

fn hit(processes: &[Process], slot: usize, fault: Fault) -> anyhow::Result<()> {
    match fault {
        Fault::Kill => processes.iter().try_for_each(Process::kill),
        Fault::Unplug => net::unplug(slot),
        Fault::Stop => processes.iter().try_for_each(Process::stop),
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_MAX;
    while !holds() {
        ensure!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A Redis server without a disk.
pub(crate) fn redis_server(net: &Net, slot: usize, work: &Path) -> Command {
    let mut server = net.command(slot, "redis-server");
    server.args(["--port", &REDIS.to_string(), "--bind", "0.0.0.0", "--save", ""]);
    server.args(["--appendonly", "no", "--protected-mode", "no"]);
    server.current_dir(work);
    server
}

/// Waits until a Redis server answers.
pub(crate) fn wait_for_redis(slot: usize) -> anyhow::Result<()> {
    let server = format!("{}:{REDIS}", address(slot));
    wait_until("the server answers", || text(&server, &["INFO", "server"]).is_some())
}

/// A master, two replicas and three sentinels, new in each round: sentinels take longer to recover
/// from a failover than to start.
pub(crate) struct Sentinel {
    name: String,
    slots: Vec<usize>,
    work: PathBuf,
    settings: &'static str,
    /// The server and the sentinel of each machine.
    machines: Vec<Vec<Process>>,
}

impl Sentinel {
    pub(crate) fn new(
        name: &str,
        slots: RangeInclusive<usize>,
        work: &Path,
        settings: &'static str,
    ) -> Self {
        let (name, slots, work) = (name.to_owned(), slots.collect(), work.to_owned());
        Self { name, slots, work, settings, machines: Vec::new() }
    }

    /// The processes of a machine.
    pub(crate) fn processes(&self, machine: usize) -> &[Process] {
        &self.machines[machine]
    }

    /// The sentinels' addresses, where clients ask for the master.
    pub(crate) fn sentinels(&self) -> Vec<String> {
        self.slots.iter().map(|slot| format!("{}:{SENTINEL}", address(*slot))).collect()
    }

    /// Replicas that were made masters since the start.
    pub(crate) fn failovers(&self) -> anyhow::Result<u64> {
        let said = std::fs::read_to_string(self.work.join("log"))?;
        Ok(said.matches("+promoted-slave").count() as u64)
    }

    pub(crate) fn start(&mut self, net: &Net, master: usize) -> anyhow::Result<()> {
        self.machines.clear();
        let log = self.work.join("log");
        let master_address = address(self.slots[master]);
        for (index, &slot) in self.slots.iter().enumerate() {
            let mut server = redis_server(net, slot, &self.work);
            server.args(["--repl-diskless-sync-delay", "0"]);
            if index != master {
                server.args(["--replicaof", &master_address, &REDIS.to_string()]);
            }
            self.machines.push(vec![Process::start(&mut server, &log)?]);
        }
        let server = format!("{master_address}:{REDIS}");
        wait_until("two replicas are in line", || {
            let info = text(&server, &["INFO", "replication"]);
            info.is_some_and(|info| info.matches("state=online").count() == 2)
        })?;
        for (index, &slot) in self.slots.iter().enumerate() {
            let file = self.work.join(format!("sentinel-{slot}.conf"));
            let mut config = std::fs::File::create(&file)?;
            let (dir, settings) = (self.work.display(), self.settings);
            write!(
                config,
                "port {SENTINEL}\ndir {dir}\nprotected-mode no\n\
                 sentinel monitor m {master_address} {REDIS} 2\n{settings}"
            )?;
            let mut sentinel = net.command(slot, "redis-server");
            sentinel.arg(&file).arg("--sentinel");
            self.machines[index].push(Process::start(&mut sentinel, &log)?);
        }
        for &slot in &self.slots {
            wait_until("the sentinels know each other and the replicas", || {
                knows_all(&format!("{}:{SENTINEL}", address(slot))).unwrap_or(false)
            })?;
        }
        Ok(())
    }
}

fn ask(address: &str, words: &[&str]) -> Option<Reply> {
    Connection::open(address, ATTEMPT).ok()?.ask(words).ok()
}

fn text(address: &str, words: &[&str]) -> Option<String> {
    let Reply::Bulk(Some(bytes)) = ask(address, words)? else { return None };
    String::from_utf8(bytes).ok()
}

fn knows_all(sentinel: &str) -> Option<bool> {
    let Reply::Array(fields) = ask(sentinel, &["SENTINEL", "MASTER", "m"])? else { return None };
    let fields: Vec<String> = fields
        .into_iter()
        .map(|field| match field {
            Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            _ => String::new(),
        })
        .collect();
    let is = |name: &str, value: &str| fields.windows(2).any(|pair| pair == [name, value]);
    Some(is("flags", "master") && is("num-slaves", "2") && is("num-other-sentinels", "2"))
}

/// Asks sentinels for the master, and connects to it.
pub(crate) fn find_master(sentinels: &[String], patience: Duration) -> Option<Connection> {
    sentinels.iter().find_map(|sentinel| {
        let reply = ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m"])?;
        let Reply::Array(parts) = reply else { return None };
        let [Reply::Bulk(Some(host)), Reply::Bulk(Some(port))] = parts.as_slice() else {
            return None;
        };
        let (host, port) = (String::from_utf8_lossy(host), String::from_utf8_lossy(port));
        Connection::open(&format!("{host}:{port}"), patience).ok()
    })
}

impl System for Sentinel {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self, net: &Net, round: u64) -> anyhow::Result<usize> {
        let master = round as usize % self.slots.len();
        self.start(net, master)?;
        Ok(master)
    }

    fn client(&mut self, victim: usize) -> (Request, Request) {
        let survivors = self.slots.iter().filter(|slot| **slot != self.slots[victim]);
        let sentinels: Vec<String> =
            survivors.map(|slot| format!("{}:{SENTINEL}", address(*slot))).collect();
        let request = |words: &'static [&'static str]| -> Request {
            let (sentinels, mut connection) = (sentinels.clone(), None);
            Box::new(move || {
                let open = connection.take().or_else(|| find_master(&sentinels, ATTEMPT));
                let Some(mut open) = open else { return false };
                match open.ask(words) {
                    // `READONLY` comes from a server that is not, or not yet, the master.
                    Ok(Reply::Error(_)) | Err(_) => false,
                    Ok(_) => {
                        connection = Some(open);
                        true
                    }
                }
            })
        };
        // Replicas answer reads, too, but with outdated values.
        (request(&["SET", "written", "1"]), request(&["GET", "written"]))
    }

    fn hit(&mut self, victim: usize, fault: Fault) -> anyhow::Result<()> {
        hit(&self.machines[victim], self.slots[victim], fault)
    }

    fn mend(&mut self, _: &Net, victim: usize, fault: Fault) -> anyhow::Result<()> {
        self.machines.clear();
        match fault {
            Fault::Unplug => net::plug(self.slots[victim]),
            Fault::Kill | Fault::Stop => Ok(()),
        }
    }
}

/// Three members with default settings, on a file system in memory.
pub(crate) struct Etcd {
    slots: Vec<usize>,
    work: PathBuf,
    members: Vec<Vec<Process>>,
}

impl Etcd {
    pub(crate) fn new(
        net: &Net,
        slots: RangeInclusive<usize>,
        work: &Path,
    ) -> anyhow::Result<Self> {
        let memory = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(work).status()?;
        ensure!(memory.success(), "cannot mount a file system in memory");
        let slots: Vec<usize> = slots.collect();
        let mut etcd = Self { slots, work: work.to_owned(), members: Vec::new() };
        for index in 0..etcd.slots.len() {
            let member = etcd.launch(net, index)?;
            etcd.members.push(vec![member]);
        }
        Ok(etcd)
    }

    /// The processes of a machine.
    pub(crate) fn processes(&self, machine: usize) -> &[Process] {
        &self.members[machine]
    }

    /// A client that waits this long for an answer.
    pub(crate) fn gateway(&self, patience: Duration) -> EtcdGateway {
        EtcdGateway { agent: agent(patience), slots: self.slots.clone() }
    }

    /// The leader's term, as soon as the members agree.
    pub(crate) fn term(&self) -> anyhow::Result<u64> {
        wait_until("the members agree on a leader", || self.leader().is_some())?;
        let status = call(&agent(START_MAX), self.slots[0], "/v3/maintenance/status", &json!({}));
        let term = status.and_then(|status| status["raftTerm"].as_str()?.parse().ok());
        term.context("a member says its term")
    }

    fn launch(&self, net: &Net, index: usize) -> anyhow::Result<Process> {
        let slot = self.slots[index];
        let peer = |slot: usize| format!("http://{}:2380", address(slot));
        let client = format!("http://{}:{ETCD}", address(slot));
        let all: Vec<String> =
            self.slots.iter().map(|slot| format!("m{slot}={}", peer(*slot))).collect();
        let mut command = net.command(slot, "etcd");
        command.args(["--name", &format!("m{slot}")]);
        command.arg("--data-dir").arg(self.work.join(format!("m{slot}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(slot)]);
        command.args(["--initial-advertise-peer-urls", &peer(slot)]);
        command.args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"]);
        Process::start(&mut command, &self.work.join("log"))
    }

    fn leader(&self) -> Option<usize> {
        let agent = agent(Duration::from_secs(1));
        let statuses: Option<Vec<Value>> = self
            .slots
            .iter()
            .map(|slot| call(&agent, *slot, "/v3/maintenance/status", &json!({})))
            .collect();
        let statuses = statuses?;
        let leader = &statuses.first()?["leader"];
        if !statuses.iter().all(|status| status["leader"] == *leader) {
            return None;
        }
        statuses.iter().position(|status| status["header"]["member_id"] == *leader)
    }
}

fn agent(patience: Duration) -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(patience)).build().into()
}

fn call(agent: &ureq::Agent, slot: usize, path: &str, body: &Value) -> Option<Value> {
    let url = format!("http://{}:{ETCD}{path}", address(slot));
    let mut answer = agent.post(url).send_json(body).ok()?;
    answer.body_mut().read_json().ok()
}

/// A client of etcd, over its JSON gateway.
pub(crate) struct EtcdGateway {
    agent: ureq::Agent,
    slots: Vec<usize>,
}

impl EtcdGateway {
    /// A write, or a linearizable read of the written key, at one of the members.
    pub(crate) fn ask(&self, member: usize, write: bool) -> Result<(), String> {
        let slot = self.slots[member % self.slots.len()];
        // Keys and values are in base 64. A range is linearizable unless it asks not to be.
        let (path, body) = match write {
            true => ("/v3/kv/put", json!({ "key": "d3JpdHRlbg==", "value": "MQ==" })),
            false => ("/v3/kv/range", json!({ "key": "d3JpdHRlbg==" })),
        };
        match call(&self.agent, slot, path, &body) {
            Some(_) => Ok(()),
            None => Err("no answer, or an error".to_owned()),
        }
    }
}

impl System for Etcd {
    fn name(&self) -> &str {
        "etcd"
    }

    fn prepare(&mut self, _: &Net, _: u64) -> anyhow::Result<usize> {
        let mut leader = None;
        wait_until("the members agree on a leader", || {
            leader = self.leader();
            leader.is_some()
        })?;
        match leader {
            Some(leader) => Ok(leader),
            None => bail!("nobody leads"),
        }
    }

    fn client(&mut self, victim: usize) -> (Request, Request) {
        let request = |write| -> Request {
            let gateway = self.gateway(ATTEMPT);
            Box::new(move || gateway.ask(victim + 1, write).is_ok())
        };
        (request(true), request(false))
    }

    fn hit(&mut self, victim: usize, fault: Fault) -> anyhow::Result<()> {
        hit(&self.members[victim], self.slots[victim], fault)
    }

    fn mend(&mut self, net: &Net, victim: usize, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Kill => {
                self.members[victim].clear();
                self.members[victim] = vec![self.launch(net, victim)?];
            }
            Fault::Unplug => net::plug(self.slots[victim])?,
            Fault::Stop => {
                let member = self.members[victim].first().context("it runs")?;
                member.go_on()?;
            }
        }
        Ok(())
    }
}
