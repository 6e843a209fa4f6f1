//! The loop: one thread, hosting the lane of its number of every node of this process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use mio::{Events, Interest, Poll, Registry};
use quorate_machine::mutant;
use quorate_types::{Instant, LaneId, Now};

use crate::acceptor::{Acceptor, Port};
use crate::alarm::{Alarm, POLL_UNIT};
use crate::clock;
use crate::disk::KeptBatch;
use crate::handle::{Stop, ThreadTask, ThreadTasks};
use crate::host::Host;
use crate::mesh::{Envelope, Post};
use crate::relief::Relief;
use crate::stopwatch::{Stopwatch, processor_time};
use crate::token::Source;

/// How long draining at a stop may take.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);
/// How long a node that stops goes on listening to clients that have asked for nothing: they learn
/// of it behind the answer to their next command.
const DRAIN_LISTEN: Duration = Duration::from_millis(250);
/// How long a node that stops waits for a view without it. Then its connections break, which tells
/// the others the same.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Events taken from the system at once.
const EVENTS_MAX: usize = 1024;
/// How often messages are handed from node to node of this thread before the others' sockets get
/// their turn. A replicated write takes three.
const ROUNDS_MAX: usize = 16;
/// For how long mail of other lanes is handled in one turn.
const MAIL_PER_TURN: Duration = Duration::from_millis(2);
/// Letters that are taken and handled by one reading of the clock.
const MAIL_PER_READING: usize = 64;
/// How long a lane whose ops wait for peers looks for their answers before it sleeps.
const ACK_SPIN: Duration = Duration::from_micros(50);
/// Clients with answers up to which they go before the peers.
const FEW_CLIENTS: usize = 2;
/// How often a thread that drains looks whether the others are done.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// One thread of the process.
pub(crate) struct LaneThread {
    pub(crate) number: usize,
    pub(crate) poll: Poll,
    pub(crate) registry: Registry,
    pub(crate) alarm: Alarm,
    pub(crate) hosts: Vec<Host>,
    /// By node id: which of `hosts` it is.
    pub(crate) host_of_node: Vec<Option<usize>>,
    pub(crate) post: Post,
    /// Mail that was taken and is handled next.
    pub(crate) mail: Vec<Envelope>,
    /// ThreadTasks for this thread.
    pub(crate) tasks: Receiver<ThreadTask>,
    /// Where tasks for each thread are left.
    pub(crate) threads: Vec<ThreadTasks>,
    /// On thread 0.
    pub(crate) acceptor: Option<Acceptor>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) busy_poll: Duration,
    pub(crate) fail: fn(&str) -> !,
    pub(crate) stage: Stage,
    pub(crate) stopwatch: Stopwatch,
}

/// How far the thread is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Serves.
    Running,
    /// Takes no new clients, answers each once more, and finishes what is pending.
    Draining { until: Instant, listen_until: Instant, drained: bool },
    /// Thread 0: all clients' work is done, and the others are asked to go on without this node.
    Leaving { until: Instant },
}

/// Where a lane is while its thread writes a batch.
pub(crate) type LaneRelief = Relief<Box<LaneThread>>;

/// Runs a lane, or waits until it must be taken over, until it ends.
pub(crate) fn run(mut lane: Option<Box<LaneThread>>, relief: &LaneRelief, end: &Sender<()>) {
    let _abort = AbortOnPanic;
    let mut events = Events::with_capacity(EVENTS_MAX);
    while let Some(mine) = lane.take().or_else(|| relief.take_over()) {
        if mine.run(&mut events, relief) == Ran::ToTheEnd {
            relief.end();
            // Nobody may wait for that.
            let _ = end.send(());
        }
    }
}

/// How a thread's run of a lane ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ran {
    ToTheEnd,
    /// The disk hung, and another thread has taken the lane over.
    UntilRelieved,
}

impl LaneThread {
    /// Runs the lane until the process is asked to stop, or another thread has taken it over.
    fn run(mut self: Box<Self>, events: &mut Events, relief: &LaneRelief) -> Ran {
        let mut busy = true;
        while !self.is_finished() {
            let batch = match self.wait(events, busy) {
                Ok(batch) => batch,
                // Without events a lane is deaf, and there is no way to go on from here.
                Err(error) => panic!("the system refused to report events: {error}"),
            };
            if let Some(batch) = batch {
                let (lane, worker) = if mutant!("runtime_lane_hangs_with_its_disk") {
                    let worker = batch.write();
                    (Some(self), worker)
                } else {
                    relief.lend(self, || batch.write())
                };
                match lane {
                    Some(lane) => self = lane,
                    None => return Ran::UntilRelieved,
                }
                // A lane that writes itself is that of the only node of its process.
                if let [host] = &mut self.hosts[..] {
                    host.batch_is_written(worker);
                }
            }
            busy = self.turn(events);
        }
        for host in &mut self.hosts {
            host.close_log();
            host.clients.close_all(&mut host.frontend);
        }
        Ran::ToTheEnd
    }

    /// Sleeps until something happens or a deadline comes. Gives the batch that is to be written instead,
    /// if there is one.
    fn wait(&mut self, events: &mut Events, busy: bool) -> io::Result<Option<KeptBatch>> {
        let keeps_batch = self.hosts.iter().any(Host::keeps_batch);
        if busy || keeps_batch {
            poll(&mut self.poll, events, Some(Duration::ZERO))?;
        }
        if keeps_batch && !busy && events.is_empty() && !self.has_arrivals() {
            return Ok(self.hosts.iter_mut().find_map(Host::take_kept_batch));
        }
        self.hosts.iter_mut().for_each(Host::hand_batch_over);
        if busy || keeps_batch {
            return Ok(None);
        }
        let awaits_peers = self.hosts.iter().any(Host::may_spin);
        let span = if awaits_peers { self.busy_poll.max(ACK_SPIN) } else { self.busy_poll };
        if !span.is_zero() && self.spin(events, span)? {
            return Ok(None);
        }
        let parker = &self.threads[self.number].parker;
        let timeout = if parker.park(|| self.has_arrivals()) {
            let deadline = self.next_deadline();
            (deadline != Instant::NEVER).then(|| deadline.since(clock::monotonic()))
        } else {
            Some(Duration::ZERO)
        };
        if let Some(span) = timeout
            && !span.is_zero()
            && span < POLL_UNIT
        {
            self.alarm.set(span)?;
        }
        let result = poll(&mut self.poll, events, timeout);
        self.threads[self.number].parker.get_up();
        result.map(|()| None)
    }

    /// Looks for work for a while without sleeping; returns whether there is any.
    fn spin(&mut self, events: &mut Events, span: Duration) -> io::Result<bool> {
        let start = clock::monotonic();
        loop {
            poll(&mut self.poll, events, Some(Duration::ZERO))?;
            let now = clock::monotonic();
            if !events.is_empty() || self.has_arrivals() || self.next_deadline() <= now {
                return Ok(true);
            }
            if now.since(start) >= span {
                return Ok(false);
            }
        }
    }

    /// Whether another thread left something here that the poll doesn't tell of.
    fn has_arrivals(&self) -> bool {
        self.post.has_mail()
            || !self.tasks.is_empty()
            || self.hosts.iter().any(|host| host.frontend.has_arrivals() || host.has_disk_done())
            || (self.stop.is_asked() && self.stage == Stage::Running)
    }

    /// One turn of the loop. Returns whether the next one has work already.
    fn turn(&mut self, events: &Events) -> bool {
        let now = clock::now();
        self.stopwatch.begin(now.monotonic, processor_time);
        for host in &mut self.hosts {
            host.lane.begin_turn(now);
        }
        self.dispatch(now, events);
        let mut active = !events.is_empty();
        active |= self.run_errands(now);
        active |= self.take_mail(now);
        active |= self.hosts.iter_mut().fold(false, |any, host| any | host.take_disk_done());
        self.read(now);
        // Peers' messages were handled by a later reading, and time must not run backwards.
        let now = clock::now();
        for host in &mut self.hosts {
            let due = host.tick(now);
            host.turns += u64::from(active || due);
        }
        let mut quiet = self.run_until_quiet(now);
        self.post.unpark();
        self.write_logs(now);
        quiet &= self.flush(now);
        self.progress_stop(now);
        let stuck = self.post.is_stuck();
        let mut busy = !quiet || stuck;
        for host in &mut self.hosts {
            host.rouse_others();
            host.publish(now);
            busy |= host.has_work();
        }
        busy |= self.acceptor.as_ref().is_some_and(Acceptor::has_work);
        if let Some(took) = self.stopwatch.end(clock::monotonic(), processor_time) {
            self.hosts.iter().for_each(|host| host.note_turn(took));
        }
        busy
    }

    fn dispatch(&mut self, now: Now, events: &Events) {
        for event in events {
            match Source::of(event.token()) {
                Source::Parker | Source::Alarm => {}
                Source::Client { host, slot } => self.hosts[host].clients.on_event(slot, event),
                Source::Link { host, peer } => self.hosts[host].on_link_event(now, peer, event),
                Source::PendingHandshake { host, index } => self.hear_stranger(now, host, index),
                Source::ClientListener { host } => self.ready(Port::Client, host),
                Source::PeerListener { host } => self.ready(Port::Peer, host),
            }
        }
        self.accept(now);
    }

    fn ready(&mut self, port: Port, host: usize) {
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.ready(port, host);
        }
    }

    /// Accepts connections and hands clients to the threads in turn.
    fn accept(&mut self, now: Now) {
        let Some(acceptor) = &mut self.acceptor else { return };
        for host in 0..self.hosts.len() {
            while let Some((stream, peer)) = acceptor.accept(Port::Client, host, now.monotonic) {
                let thread = acceptor.next_thread(self.threads.len());
                if thread == self.number {
                    self.hosts[host].open_client(now, stream, peer, &self.registry);
                    continue;
                }
                let transit = acceptor.transit(host);
                let task = ThreadTask::Client { host, stream, peer, transit };
                if self.threads[thread].leave(task).is_err() {
                    tracing::warn!(sender = %peer.ip(), "a client was turned away: its lane has no room");
                }
            }
            while let Some((stream, peer)) = acceptor.accept(Port::Peer, host, now.monotonic) {
                let registry = &self.registry;
                self.hosts[host].handshakes.welcome(
                    now.monotonic,
                    stream,
                    peer,
                    |stream, index| {
                        registry.register(
                            stream,
                            Source::PendingHandshake { host, index }.token(),
                            Interest::READABLE,
                        )
                    },
                );
            }
            acceptor.turn_over(host);
        }
    }

    /// A connection to the peer port has something to say.
    fn hear_stranger(&mut self, now: Now, index: usize, handshake: usize) {
        let host = &mut self.hosts[index];
        let (ours, registry, guests) = (host.hello(), &self.registry, host.facts.guests);
        let introduced = host.handshakes.listen(
            handshake,
            |theirs| Host::check_stranger(&ours, theirs, guests),
            |stream| registry.deregister(stream),
        );
        let Some(peer) = introduced else { return };
        let lane = usize::from(peer.hello.lane.0);
        if lane == self.number {
            host.adopt(now, peer.stream, &peer.hello, &peer.rest, &self.registry);
            return;
        }
        let (stream, hello, rest) = (peer.stream, peer.hello, peer.rest);
        if self.threads[lane].leave(ThreadTask::Peer { host: index, stream, hello, rest }).is_err()
        {
            tracing::warn!("a peer was turned away: its lane has no room");
        }
    }

    fn run_errands(&mut self, now: Now) -> bool {
        let mut any = false;
        while let Ok(task) = self.tasks.try_recv() {
            any = true;
            match task {
                ThreadTask::Client { host, stream, peer, transit } => {
                    drop(transit);
                    self.hosts[host].open_client(now, stream, peer, &self.registry);
                }
                ThreadTask::Peer { host, stream, hello, rest } => {
                    self.hosts[host].adopt(now, stream, &hello, &rest, &self.registry);
                }
                ThreadTask::Resolved { host, peer, address } => {
                    self.hosts[host].resolved(now, peer, address, &self.registry);
                }
                ThreadTask::Change { host, change, reply } => {
                    self.hosts[host].change_members(now, change, reply);
                }
            }
        }
        any
    }

    /// Handles mail of other lanes. The clock is read after mail was taken and before it is handled:
    /// an op in it must not be older by the clock than its arrival.
    fn take_mail(&mut self, begun: Now) -> bool {
        let mut any = false;
        loop {
            let post = &mut self.post;
            self.mail.extend(std::iter::from_fn(|| post.take()).take(MAIL_PER_READING));
            if self.mail.is_empty() {
                return any;
            }
            any = true;
            let now = clock::now();
            for Envelope { host, mail } in self.mail.drain(..) {
                let host = &mut self.hosts[host];
                host.lane.deliver(now, mail, &mut host.out);
            }
            if now.monotonic.since(begun.monotonic) >= MAIL_PER_TURN {
                return true;
            }
        }
    }

    fn read(&mut self, now: Now) {
        let listens = match self.stage {
            Stage::Running => true,
            Stage::Draining { listen_until, drained, .. } => {
                !drained && now.monotonic < listen_until
            }
            Stage::Leaving { .. } => false,
        };
        let tasks = &self.threads[self.number];
        for host in &mut self.hosts {
            // Peers first: their messages complete what clients wait for.
            host.read_links();
            if listens {
                host.read_clients();
            }
            host.tend_links(now, &self.registry, tasks);
        }
    }

    /// Has the disks write what the turn has appended.
    fn write_logs(&mut self, now: Now) {
        // Several nodes would wait for each other's disks.
        let may_keep = self.hosts.len() == 1;
        for host in &mut self.hosts {
            if let Some(why) = host.write_log(now, may_keep) {
                (self.fail)(&format!("node {}: {why}", host.node));
            }
        }
    }

    /// Completes ops, closes batches and passes messages between the nodes of this thread until
    /// nothing is left to do. Returns false if something is left for the next turn.
    fn run_until_quiet(&mut self, now: Now) -> bool {
        for _ in 0..ROUNDS_MAX {
            let mut quiet = true;
            for host in &mut self.hosts {
                quiet &= !host.complete(now);
                host.lane.end_turn(now, &mut host.out);
                send_mail(&mut self.post, self.number, now, host);
                host.answer_changes();
                host.follow_lane(now);
            }
            quiet &= !self.hand_over(now);
            if quiet && self.hosts.iter().all(|host| !host.has_answers()) {
                return true;
            }
        }
        false
    }

    /// Hands messages to peers on this thread. Returns whether there were any.
    fn hand_over(&mut self, now: Now) -> bool {
        let mut any = false;
        for from in 0..self.hosts.len() {
            let (node, incarnation) = (self.hosts[from].node, self.hosts[from].lane.incarnation());
            for peer in self.hosts[from].take_local() {
                let Some(to) = self.host_of_node[usize::from(peer.0)] else { continue };
                any = true;
                let mut messages = std::mem::take(self.hosts[from].out.peer(peer));
                let host = &mut self.hosts[to];
                let result = host.lane.receive(now, node, incarnation, &messages, &mut host.out);
                if let Err(malformed) = result {
                    tracing::error!(%node, %peer, ?malformed, "a message in memory is malformed");
                }
                messages.clear();
                *self.hosts[from].out.peer(peer) = messages;
            }
        }
        any
    }

    /// Seals what was read and sends everything: one write for each peer and client. Returns
    /// false if something is left for the next turn.
    fn flush(&mut self, now: Now) -> bool {
        self.hosts.iter_mut().for_each(Host::seal);
        let handed_over = self.hand_over(now);
        for host in &mut self.hosts {
            // Peers first: they work while this thread writes to the clients. But a few clients
            // are served faster than the peers are woken, and their wait is what counts.
            if host.frontend.dirty_count() <= FEW_CLIENTS {
                host.flush_clients(now);
                host.flush_links(now);
            } else {
                host.flush_links(now);
                host.flush_clients(now);
            }
        }
        // A seal may let answers go that waited for more than the lease.
        !handed_over && self.hosts.iter().all(|host| !host.has_answers())
    }

    // --- the end -------------------------------------------------------------------------------

    fn progress_stop(&mut self, now: Now) {
        if self.stage == Stage::Running && self.stop.is_asked() {
            self.acceptor = None;
            for host in &mut self.hosts {
                host.handshakes.clear();
                host.frontend.drain();
            }
            let until = now.monotonic + DRAIN_MAX;
            let listen_until = now.monotonic + DRAIN_LISTEN;
            self.stage = Stage::Draining { until, listen_until, drained: false };
        }
        if let Stage::Draining { listen_until, drained: false, .. } = self.stage
            && now.monotonic >= listen_until
        {
            self.hosts.iter_mut().for_each(|host| host.frontend.end_all_input());
        }
        if let Stage::Draining { until, drained: false, .. } = self.stage
            && (now.monotonic >= until || self.hosts.iter().all(Host::is_drained))
        {
            self.stage = Stage::Draining { until, listen_until: until, drained: true };
            if self.number != 0 {
                self.stop.draining.fetch_sub(1, Ordering::AcqRel);
            }
        }
        // The last one is thread 0, which leaves the cluster for all lanes before any of them stops.
        let others_done = self.stop.draining.load(Ordering::Acquire) == 1;
        if self.number == 0 && others_done {
            match self.stage {
                Stage::Draining { drained: true, .. } => {
                    // Nodes of one process end together: nobody is left to go on.
                    if let [host] = &mut self.hosts[..] {
                        host.leave(now);
                    }
                    self.stage = Stage::Leaving { until: now.monotonic + LEAVE_MAX };
                }
                Stage::Leaving { until }
                    if now.monotonic >= until || !self.hosts.iter().any(Host::is_leaving) =>
                {
                    self.stop.draining.fetch_sub(1, Ordering::AcqRel);
                    self.threads.iter().for_each(|thread| thread.parker.unpark());
                }
                _ => {}
            }
        }
    }

    /// Whether this and every other thread has finished its clients' work. Until then a drained
    /// thread goes on, since the others' ops may need its lanes.
    fn is_finished(&self) -> bool {
        match self.stage {
            Stage::Draining { drained: true, .. } | Stage::Leaving { .. } => {
                self.stop.draining.load(Ordering::Acquire) == 0
            }
            _ => false,
        }
    }

    fn next_deadline(&self) -> Instant {
        let hosts = self.hosts.iter().map(Host::next_deadline).min().unwrap_or(Instant::NEVER);
        let acceptor = self.acceptor.as_ref().map_or(Instant::NEVER, Acceptor::deadline);
        let drain = match self.stage {
            Stage::Running => Instant::NEVER,
            Stage::Draining { .. } | Stage::Leaving { .. } => clock::monotonic() + DRAIN_POLL,
        };
        hosts.min(acceptor).min(drain)
    }
}

/// Passes on mail for the other lanes of the node.
fn send_mail(post: &mut Post, number: usize, now: Now, host: &mut Host) {
    while !host.out.mail.is_empty() {
        let mut mail = std::mem::take(&mut host.out.mail);
        for (lane, mail) in mail.drain(..) {
            if lane == LaneId(number as u16) {
                host.lane.deliver(now, mail, &mut host.out);
            } else {
                post.send(usize::from(lane.0), Envelope { host: host.index, mail });
            }
        }
        if host.out.mail.is_empty() {
            host.out.mail = mail;
        }
    }
}

fn poll(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    match poll.poll(events, timeout) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            events.clear();
            Ok(())
        }
        result => result,
    }
}

/// A lane that panics takes the process with it: its part of the keys would be unavailable while
/// the node's lease lived on, and a broken invariant can't be trusted with data.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
