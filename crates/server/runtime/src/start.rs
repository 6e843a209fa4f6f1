//! Builds the threads and starts them.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::Receiver;
use mio::Poll;
use quorate_node::{NodeConfig, Shared};
use quorate_types::{Incarnation, LaneId, NodeId, NodeSet, limits};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::acceptor::Acceptor;
use crate::alarm::Alarm;
use crate::backend::NodeFacts;
use crate::handle::{Handle, Inner, NodeHandle, Stop, ThreadTasks};
use crate::host::Host;
use crate::loading::{self, Loading};
use crate::mesh::{self, Parker, Post};
use crate::node_disk::NodeDisk;
use crate::relief::PATIENCE;
use crate::stopwatch::Stopwatch;
use crate::thread::{self, LaneRelief, LaneThread, Stage};
use crate::token::Source;
use crate::{clock, process};

/// ThreadTasks that may wait for a thread.
const ERRANDS_MAX: usize = 4096;

/// A node that this process is to run.
#[derive(Debug)]
pub struct HostedNode {
    /// What it is told.
    pub config: NodeConfig,
    /// Where clients connect, from [`crate::listen`].
    pub client: TcpListener,
    /// Where peers in other processes connect; `None` if no peer runs in another process.
    pub peer: Option<TcpListener>,
    /// Whether clients may coordinate their transactions themselves, over the peer port. A
    /// program that reaches it and knows the cluster's name then has all data, without a password.
    pub guests: bool,
    /// The front end's settings.
    pub settings: quorate_resp::Settings,
    /// The password that clients must give.
    pub password: Option<String>,
    /// The directory for the log, if a keyspace is durable.
    pub disk: Option<NodeDisk>,
}

/// How the threads run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bind thread *t* to processor *t*.
    pub pin: bool,
    /// How long a thread looks for work before it sleeps. Saves the wake-up, some 40 us on another
    /// core, at the price of a busy core; zero, the default, never spins.
    pub busy_poll: Duration,
    /// Ends the process and says why: a disk has failed, or what it holds can't be restored.
    pub fail: fn(&str) -> !,
}

impl Default for Options {
    fn default() -> Self {
        Self { pin: false, busy_poll: Duration::ZERO, fail: |why| panic!("{why}") }
    }
}

/// Running nodes.
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    /// Told when a lane has ended.
    lanes: Vec<Receiver<()>>,
}

impl Runtime {
    /// How to reach the nodes.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the nodes have stopped, which [`Handle::stop`] or a client's `SHUTDOWN` asks
    /// for.
    pub fn join(self) {
        for lane in self.lanes {
            // A lane that panics aborts the process, so there is no panic to pass on.
            let _ = lane.recv();
        }
    }
}

/// A seed for [`NodeConfig::seed`], drawn from the system.
pub fn random_seed() -> u64 {
    process::random()
}

/// What the clients of one of so many nodes of this process may hold together by default: a quarter
/// of the memory that there is, shared among the nodes. 0, no limit, if nobody knows.
pub fn default_clients_bytes(nodes: usize) -> u64 {
    const LEAST: u64 = 4 * limits::REPLY_BYTES_MAX as u64;
    process::memory_bytes().map_or(0, |bytes| (bytes / 4 / nodes as u64).max(LEAST))
}

/// Starts nodes in this process. All have the same number of lanes.
///
/// # Errors
/// When the system refuses threads or polls.
///
/// # Panics
/// If the nodes' configurations contradict each other.
pub fn start(nodes: Vec<HostedNode>, options: Options) -> io::Result<Runtime> {
    let lanes = nodes.first().map_or(0, |node| node.config.lanes);
    assert!(lanes > 0, "a process runs at least one node of at least one lane");
    assert!(
        nodes.iter().all(|node| node.config.lanes == lanes),
        "the nodes of a process have the same number of lanes"
    );
    clock::follow_steps()?;
    let mut polls = Vec::new();
    let mut alarms = Vec::new();
    let mut parkers = Vec::new();
    for _ in 0..lanes {
        let poll = Poll::new()?;
        alarms.push(Alarm::new(poll.registry(), Source::Alarm.token())?);
        parkers.push(Arc::new(mesh::parker(poll.registry(), Source::Parker.token())?));
        polls.push(poll);
    }
    let stop = Arc::new(Stop::default());
    stop.draining.store(usize::from(lanes), Ordering::Release);
    let (threads, receivers): (Vec<ThreadTasks>, Vec<_>) = parkers
        .iter()
        .map(|parker| {
            let (sender, receiver) = crossbeam_channel::bounded(ERRANDS_MAX);
            (ThreadTasks { sender, parker: Arc::clone(parker) }, receiver)
        })
        .unzip();
    let mut listeners = Vec::new();
    let mut blueprints = Vec::new();
    for node in nodes {
        let (blueprint, ports) = blueprint(node, &stop, &parkers)?;
        if blueprint.facts.loading.progress().is_some() {
            loading::answer_clients(&ports.0, &blueprint.facts.loading)?;
        }
        listeners.push(ports);
        blueprints.push(blueprint);
    }
    let mut acceptor = Some(Acceptor::new(polls[0].registry(), listeners)?);
    let local: NodeSet = blueprints.iter().map(Blueprint::node).collect();
    let mut host_of_node = vec![None; usize::from(limits::NODE_ID_MAX) + 1];
    for (index, blueprint) in blueprints.iter().enumerate() {
        host_of_node[usize::from(blueprint.node().0)] = Some(index);
    }
    // Several nodes would wait for each other's disks: their lanes write nothing themselves.
    let has_disk = blueprints.len() == 1 && blueprints[0].disk.is_some();
    let mut running = Vec::new();
    let posts = Post::connect(&parkers);
    let each = polls.into_iter().zip(alarms).zip(posts).zip(receivers);
    for (number, (((poll, alarm), post), tasks)) in each.enumerate() {
        let seat = Seat {
            number,
            registry: poll.registry().try_clone()?,
            poll,
            alarm,
            post,
            tasks,
            threads: threads.clone(),
            acceptor: acceptor.take(),
            stop: Arc::clone(&stop),
            host_of_node: host_of_node.clone(),
        };
        let blueprints: Vec<Blueprint> = blueprints.clone();
        // Lanes are built on their own thread, where their memory is used.
        let build = move || Box::new(seat.furnish(&blueprints, local, options));
        running.push(start_lane(number, options.pin, has_disk, build)?);
    }
    let nodes = blueprints
        .into_iter()
        .enumerate()
        .map(|(host, blueprint)| blueprint.handle(host, &threads[0]))
        .collect();
    let handle = Handle(Arc::new(Inner { nodes, stop, parkers }));
    Ok(Runtime { handle, lanes: running })
}

/// Starts the thread of a lane, and, where it may write to a disk, one to relieve it. What is returned
/// is told when the lane has ended: a thread that its disk has not let go may last longer.
fn start_lane(
    number: usize,
    is_pinned: bool,
    has_relief: bool,
    build: impl FnOnce() -> Box<LaneThread> + Send + 'static,
) -> io::Result<Receiver<()>> {
    let relief = Arc::new(LaneRelief::new(PATIENCE));
    let (end, ended) = crossbeam_channel::bounded(1);
    let begin = move || {
        if is_pinned {
            pin(number);
        }
    };
    if has_relief {
        let (relief, end) = (Arc::clone(&relief), end.clone());
        std::thread::Builder::new().name(format!("relief-{number}")).spawn(move || {
            begin();
            thread::run(None, &relief, &end);
        })?;
    }
    std::thread::Builder::new().name(format!("lane-{number}")).spawn(move || {
        begin();
        thread::run(Some(build()), &relief, &end);
    })?;
    Ok(ended)
}

/// What the lanes of one node are built from.
#[derive(Clone)]
struct Blueprint {
    facts: Arc<NodeFacts>,
    clients: Arc<quorate_resp::Shared>,
    io: Arc<Vec<Mutex<crate::IoFacts>>>,
    incarnation: Incarnation,
    disk: Option<Arc<NodeDisk>>,
    client_address: std::net::SocketAddr,
}

type Ports = (TcpListener, Option<TcpListener>);

fn blueprint(
    node: HostedNode,
    stop: &Arc<Stop>,
    parkers: &[Arc<Parker>],
) -> io::Result<(Blueprint, Ports)> {
    let client_address = node.client.local_addr()?;
    let lanes = node.config.lanes;
    let kept = node.config.keyspaces.iter().map(|keyspace| keyspace.durability).max();
    let kept = kept.filter(|_| node.disk.is_some()).unwrap_or_default();
    node.settings.log.store(kept as u64, Ordering::Relaxed);
    let entries = node.disk.as_ref().map_or(0, NodeDisk::entries);
    let facts = NodeFacts {
        shared: Shared::new(node.config),
        guests: node.guests,
        stop: Arc::clone(stop),
        parkers: parkers.to_vec(),
        started: clock::monotonic(),
        loading: Arc::new(Loading::new(lanes, entries)),
        port: client_address.port(),
        longest_turns: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
        resident: AtomicU64::new(0),
        memory_peak: AtomicU64::new(0),
    };
    let blueprint = Blueprint {
        facts: Arc::new(facts),
        clients: quorate_resp::Shared::new(node.settings, node.password),
        io: Arc::new((0..lanes).map(|_| Mutex::default()).collect()),
        // 0 stands for a process that never introduced itself.
        incarnation: Incarnation(process::random().max(1)),
        disk: node.disk.map(Arc::new),
        client_address,
    };
    Ok((blueprint, (node.client, node.peer)))
}

impl Blueprint {
    fn node(&self) -> NodeId {
        self.facts.shared.config.node
    }

    fn handle(self, host: usize, control: &ThreadTasks) -> NodeHandle {
        NodeHandle {
            host,
            shared: Arc::clone(&self.facts.shared),
            clients: self.clients,
            io: self.io,
            control: control.clone(),
            client_address: self.client_address,
            started: self.facts.started,
            loading: Arc::clone(&self.facts.loading),
        }
    }
}

/// What a thread is built from, besides the nodes.
struct Seat {
    number: usize,
    poll: Poll,
    registry: mio::Registry,
    alarm: Alarm,
    post: Post,
    tasks: Receiver<crate::handle::ThreadTask>,
    threads: Vec<ThreadTasks>,
    acceptor: Option<Acceptor>,
    stop: Arc<Stop>,
    host_of_node: Vec<Option<usize>>,
}

impl Seat {
    fn furnish(self, blueprints: &[Blueprint], local: NodeSet, options: Options) -> LaneThread {
        let lane = LaneId(self.number as u16);
        let mut hosts: Vec<Host> = blueprints
            .iter()
            .enumerate()
            .map(|(index, blueprint)| {
                let facts = Arc::clone(&blueprint.facts);
                let clients = Arc::clone(&blueprint.clients);
                let io = Arc::clone(&blueprint.io);
                Host::new(index, facts, lane, blueprint.incarnation, clients, io, local)
            })
            .collect();
        let parker = &self.threads[self.number].parker;
        for (host, blueprint) in hosts.iter_mut().zip(blueprints) {
            if let Some(disk) = &blueprint.disk
                && let Err(why) = host.open_log(disk, parker, &blueprint.facts.loading)
            {
                (options.fail)(&format!("{}: {why}", disk.path.display()));
            }
            host.directory.clone_from(&blueprint.disk);
        }
        LaneThread {
            number: self.number,
            poll: self.poll,
            registry: self.registry,
            alarm: self.alarm,
            hosts,
            host_of_node: self.host_of_node,
            post: self.post,
            mail: Vec::new(),
            tasks: self.tasks,
            threads: self.threads,
            acceptor: self.acceptor,
            stop: self.stop,
            busy_poll: options.busy_poll,
            fail: options.fail,
            stage: Stage::Running,
            stopwatch: Stopwatch::default(),
        }
    }
}

/// Binds the calling thread to one processor. A refusal costs speed, nothing else.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(processor, %error, "a lane could not be pinned");
    }
}
