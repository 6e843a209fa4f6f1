//! Stores on disks in virtual time, clients that ask them, and the judge of what the clients saw.
//!
//! The driver keeps the contract of `quorate_machine::Effects` as a node's lane does: it holds back
//! what a gate is closed for, in one [`Gated`]. Every call of a disk is counted, so that a run can be
//! repeated with the power going right after any of them.

use std::collections::BTreeMap;

use quorate_disk::{Device, DeviceError, DeviceFaults};
use quorate_machine::{Completion, Effects, Event, Gate, Gated, Machine, Rng, Seal};
use quorate_types::{Duration, Epoch, Instant, Lsn, NodeId, NodeSet, Now, Tag, UnixNanos};

use crate::log::{Found, Log, OpenError};
use crate::store::{Message, Request, Store, record_of, value_of};

const KEYS: u64 = 3;
const PRIMARY: NodeId = NodeId(1);
const BETWEEN_OPS: Duration = Duration::from_micros(300);
/// Until everything is answered that ever will be: longer than a few flushes that stall.
const QUIET_AFTER: Duration = Duration::from_secs(8);
const DOWN: Duration = Duration::from_millis(1);

/// What a run is to show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u16,
    pub(crate) ops: u64,
    pub(crate) disk_bytes: usize,
    pub(crate) faults: DeviceFaults,
    /// After which call of a disk the power goes.
    pub(crate) cut_after: Option<u64>,
    /// For all nodes, or the one that made the call.
    pub(crate) cuts_all: bool,
    /// Whether bytes of the primary's log rot while the power is off.
    pub(crate) rots: bool,
}

impl Plan {
    pub(crate) const SOUND: Self = Self {
        nodes: 1,
        ops: 24,
        disk_bytes: 128 * 1024,
        faults: DeviceFaults { short_write: 50, stall: 20, ..NO_FAULTS },
        cut_after: None,
        cuts_all: true,
        rots: false,
    };

    /// Whether a sound log may be lost, so that only inventions are wrong.
    fn forgives_losses(&self) -> bool {
        self.faults.lie > 0 || self.faults.misdirection > 0
    }
}

pub(crate) const NO_FAULTS: DeviceFaults = DeviceFaults {
    short_write: 0,
    write_error: 0,
    read_error: 0,
    flush_error: 0,
    stall: 0,
    lie: 0,
    misdirection: 0,
    read_rot: 0,
    garbled: 0,
};

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Calls of disks.
    pub(crate) calls: u64,
    pub(crate) answered: u64,
    /// Ops that wait at the end for a disk that is full.
    pub(crate) unanswered: u64,
    /// Nodes that found their log damaged and stayed away.
    pub(crate) damaged: u64,
    /// Updates that a client knew of and that are gone.
    pub(crate) lost: u64,
    pub(crate) disk_events: BTreeMap<&'static str, u64>,
}

enum Held {
    Message(NodeSet, Vec<u8>),
    Answer(Tag, Option<u64>),
}

struct Out<'a> {
    log: &'a mut Log,
    gated: &'a mut Gated<Held>,
}

impl Effects<Store> for Out<'_> {
    fn send(&mut self, to: NodeId, message: &Message<'_>) {
        self.send_behind(Gate::OPEN, NodeSet::only(to), message);
    }

    fn send_behind(&mut self, gate: Gate, to: NodeSet, message: &Message<'_>) {
        self.gated.push(gate, Held::Message(to, encoded(message)));
    }

    fn complete(&mut self, tag: Tag, outcome: Option<u64>) {
        self.complete_on(tag, Completion::new(outcome));
    }

    fn complete_on(&mut self, tag: Tag, completion: Completion<Option<u64>>) {
        self.gated.push(completion.gate, Held::Answer(tag, completion.outcome));
    }

    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        self.log.append(encode)
    }
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let (kind, number, rest) = match *message {
        Message::Copy { number, record } => (0, number, record),
        Message::Holds { count } => (1, count, &[] as &[u8]),
    };
    [&[kind], &number.to_le_bytes()[..], rest].concat()
}

fn decoded(bytes: &[u8]) -> Message<'_> {
    let number = u64::from_le_bytes(bytes[1..9].try_into().expect("eight bytes"));
    match bytes[0] {
        0 => Message::Copy { number, record: &bytes[9..] },
        _ => Message::Holds { count: number },
    }
}

struct Process {
    store: Store,
    log: Log,
    gated: Gated<Held>,
}

struct Host {
    node: NodeId,
    life: u64,
    up: Option<Process>,
    /// The disk of a process that is not up.
    disk: Option<Device>,
    /// When this life is woken next.
    wake_at: Instant,
    /// A full disk takes nothing any more.
    full: bool,
}

enum Action {
    Op,
    Message { from: NodeId, to: NodeId, life: u64, bytes: Vec<u8> },
    Wake { host: usize, life: u64 },
    Start { host: usize },
}

/// What clients know, and what the primary has executed.
#[derive(Default)]
struct Judge {
    /// What the primary has executed and not forgotten, in order.
    executed: Vec<Vec<u8>>,
    /// So many updates are acknowledged, and must be everywhere.
    acknowledged: usize,
    /// A client has seen so many, and the primary must have them.
    seen: usize,
    /// Ops under way in this life of the primary: what they are, and how many updates were
    /// acknowledged when they began.
    under_way: BTreeMap<Tag, (Request, usize)>,
}

impl Judge {
    fn answered(&mut self, tag: Tag, value: Option<u64>) {
        let (request, floor) = self.under_way.remove(&tag).expect("an op is answered once");
        let number = |value| self.executed.iter().position(|record| value_of(record) == value);
        match (request, value) {
            (Request::Put { value, .. }, answer) => {
                assert_eq!(answer, Some(value));
                let number = number(value).expect("it was executed");
                self.acknowledged = self.acknowledged.max(number + 1);
                self.seen = self.seen.max(number + 1);
            }
            (Request::Get { key }, value) => {
                let newest = self.executed[..floor].iter().rposition(|record| record[0] == key);
                let read =
                    value.map(|value| number(value).expect("a client reads what was written"));
                assert!(
                    read >= newest,
                    "a read of {key} is older than what was acknowledged before"
                );
                self.seen = self.seen.max(read.map_or(0, |number| number + 1));
            }
        }
    }
}

pub(crate) struct World {
    plan: Plan,
    rng: Rng,
    now: Instant,
    hosts: Vec<Host>,
    events: BTreeMap<(Instant, u64), Action>,
    scheduled: u64,
    ops: u64,
    judge: Judge,
    report: Report,
}

/// Runs a plan.
pub(crate) fn run(plan: Plan, seed: u64) -> Report {
    let mut rng = Rng::new(seed);
    let hosts = (1..=plan.nodes).map(|node| {
        let sector = if rng.chance(1, 2) { 512 } else { 4096 };
        let disk = Device::new(plan.disk_bytes, sector, plan.faults, rng.next_u64());
        Host {
            node: NodeId(node),
            life: 0,
            up: None,
            disk: Some(disk),
            wake_at: Instant::NEVER,
            full: false,
        }
    });
    let hosts = hosts.collect();
    let mut world = World {
        plan,
        rng,
        now: Instant::ZERO,
        hosts,
        events: BTreeMap::new(),
        scheduled: 0,
        ops: 0,
        judge: Judge::default(),
        report: Report::default(),
    };
    world.live();
    world.report
}

impl World {
    fn live(&mut self) {
        (0..self.hosts.len())
            .for_each(|host| self.schedule(Duration::ZERO, Action::Start { host }));
        self.schedule(BETWEEN_OPS, Action::Op);
        self.run_until_quiet();
        let open = &self.judge.under_way;
        let is_full = self.hosts.iter().any(|host| host.full);
        if is_full {
            self.report.unanswered = open.len() as u64;
        } else if self.hosts.iter().all(|host| host.up.is_some()) {
            assert!(open.is_empty(), "not answered: {open:?}");
        }
        (0..self.hosts.len()).for_each(|host| self.power_cut(host));
        self.run_until_quiet();
        let ups = self.hosts.iter().filter_map(|host| host.up.as_ref());
        let updates = ups.map(|up| up.store.updates.iter().map(|(record, _)| record));
        if self.hosts.iter().all(|host| host.up.is_some()) && !self.plan.forgives_losses() {
            let executed = &self.judge.executed;
            updates.for_each(|updates| assert!(updates.eq(executed), "nodes disagree at the end"));
        }
        for host in &self.hosts {
            let disk = host.up.as_ref().map_or_else(|| host.disk.as_ref(), |up| Some(&up.log.disk));
            for (name, count) in disk.expect("a host has a disk").counts() {
                *self.report.disk_events.entry(name).or_default() += count;
            }
        }
    }

    fn run_until_quiet(&mut self) {
        let until = self.now + QUIET_AFTER;
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= until
        {
            let ((at, _), action) = entry.remove_entry();
            self.now = at;
            self.act(action);
        }
        self.now = until;
    }

    fn schedule(&mut self, after: Duration, action: Action) {
        self.scheduled += 1;
        self.events.insert((self.now + after, self.scheduled), action);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Op => self.begin_op(),
            Action::Message { from, to, life, bytes } => {
                let host = usize::from(to.0 - 1);
                if self.hosts[host].life == life {
                    let body = decoded(&bytes);
                    self.step(host, Event::Message { from, epoch: Epoch(1), body });
                }
            }
            Action::Start { host } => self.start(host),
            Action::Wake { host, life } => {
                if self.hosts[host].life == life {
                    self.wake(host);
                }
            }
        }
    }

    fn begin_op(&mut self) {
        self.ops += 1;
        if self.ops < self.plan.ops {
            self.schedule(BETWEEN_OPS, Action::Op);
        }
        let key = self.rng.below(KEYS) as u8;
        let put = self.rng.chance(2, 3);
        if self.hosts[0].up.is_none() {
            return;
        }
        let (tag, value) = (Tag(self.ops), self.ops);
        let request = if put { Request::Put { key, value } } else { Request::Get { key } };
        if put {
            self.judge.executed.push(record_of(key, value));
        }
        self.judge.under_way.insert(tag, (request, self.judge.acknowledged));
        self.step(0, Event::Request { tag, request });
    }

    // --- one process ---------------------------------------------------------------------------

    fn clock(&self) -> Now {
        Now { monotonic: self.now, unix: UnixNanos(self.now.0) }
    }

    fn step(&mut self, host: usize, event: Event<'_, Store>) {
        let now = self.clock();
        let Some(up) = &mut self.hosts[host].up else { return };
        up.store.step(now, event, &mut Out { log: &mut up.log, gated: &mut up.gated });
        up.store.check_invariants();
        self.release(host);
        self.use_disk(host);
    }

    fn wake(&mut self, host: usize) {
        let now = self.now;
        self.hosts[host].wake_at = Instant::NEVER;
        let Some(up) = &mut self.hosts[host].up else { return };
        match up.log.flushed(now) {
            Some(Ok(lsn)) => {
                up.gated.set_durable(lsn);
                if !self.called_disk(host) {
                    self.step(host, Event::Durable(lsn));
                }
            }
            Some(Err(_)) => return self.power_cut(host),
            None => {}
        }
        self.step(host, Event::Tick);
    }

    /// Does what the log has to do with its disk now.
    fn use_disk(&mut self, host: usize) {
        let now = self.now;
        while let Some(up) = &mut self.hosts[host].up {
            match up.log.advance(now) {
                Ok(true) => _ = self.called_disk(host),
                Ok(false) => break,
                Err(DeviceError::Full) => {
                    self.hosts[host].full = true;
                    break;
                }
                Err(DeviceError::Io) => return self.power_cut(host),
            }
        }
        let Some(up) = &self.hosts[host].up else { return };
        let due = up.log.disk.next_deadline().min(up.store.next_deadline());
        let this = &mut self.hosts[host];
        if due < this.wake_at {
            this.wake_at = due;
            let life = this.life;
            self.schedule(due.since(now), Action::Wake { host, life });
        }
    }

    /// Counts a call of a disk. Returns whether the power has gone after it.
    fn called_disk(&mut self, host: usize) -> bool {
        self.report.calls += 1;
        let cut = self.plan.cut_after == Some(self.report.calls);
        if cut && self.plan.cuts_all {
            (0..self.hosts.len()).for_each(|host| self.power_cut(host));
        } else if cut {
            self.power_cut(host);
        }
        cut
    }

    /// Lets go what waits for no gate any more.
    fn release(&mut self, host: usize) {
        let from = self.hosts[host].node;
        let Some(up) = &mut self.hosts[host].up else { return };
        let mut free = Vec::new();
        up.gated.set_lease(Seal::Holds, |_| unreachable!("it is not lost"));
        up.gated.release(|held| free.push(held));
        for held in free {
            match held {
                Held::Answer(tag, value) => {
                    self.report.answered += 1;
                    self.judge.answered(tag, value);
                }
                Held::Message(to, bytes) => {
                    for to in to {
                        let life = self.hosts[usize::from(to.0 - 1)].life;
                        let after = Duration::from_micros(50 + self.rng.below(200));
                        let bytes = bytes.clone();
                        self.schedule(after, Action::Message { from, to, life, bytes });
                    }
                }
            }
        }
    }

    // --- power ---------------------------------------------------------------------------------

    /// A node loses everything but what its disk keeps, and starts again a little later.
    fn power_cut(&mut self, host: usize) {
        let this = &mut self.hosts[host];
        this.life += 1;
        this.wake_at = Instant::NEVER;
        let Some(Process { log, .. }) = this.up.take() else { return };
        let (last_batch, durable) = (log.last_batch, log.durable());
        let mut disk = log.disk;
        disk.power_cut();
        if host == 0 {
            self.judge.under_way.clear();
            if self.plan.rots && disk.rot(self.plan.disk_bytes).is_some() {
                // The batch that is durable last can't be told from a torn one.
                let safe = if durable > last_batch { last_batch.0 as usize } else { usize::MAX };
                self.judge.seen = self.judge.seen.min(safe);
                self.judge.acknowledged = self.judge.acknowledged.min(safe);
            }
        }
        self.hosts[host].disk = Some(disk);
        self.schedule(DOWN, Action::Start { host });
    }

    fn start(&mut self, host: usize) {
        let Some(mut disk) = self.hosts[host].disk.take() else { return };
        match Found::on(&mut disk) {
            Ok(found) => self.restore(host, Log::open(disk, &found), &found.records),
            Err(error) => {
                self.hosts[host].disk = Some(disk);
                self.stay_away(host, error);
            }
        }
    }

    fn stay_away(&mut self, host: usize, error: OpenError) {
        match error {
            OpenError::Unreadable => self.schedule(DOWN, Action::Start { host }),
            OpenError::Damaged => {
                let may = self.plan.rots || self.plan.forgives_losses();
                assert!(may, "a sound log is called damaged");
                self.report.damaged += 1;
            }
        }
    }

    fn restore(&mut self, host: usize, log: Log, records: &[(Lsn, Vec<u8>)]) {
        let node = self.hosts[host].node;
        let nodes: NodeSet = self.hosts.iter().map(|host| host.node).collect();
        let mut store = Store::new(node, PRIMARY, nodes);
        store.take_in(records.iter().map(|(lsn, record)| (*lsn, record.as_slice())));
        let executed = &self.judge.executed;
        let same = records.iter().map(|(_, record)| record).eq(executed.iter().take(records.len()));
        assert!(same, "{node} has restored what was never executed");
        let known = if node == PRIMARY { self.judge.seen } else { self.judge.acknowledged };
        if records.len() < known {
            let lost = known - records.len();
            assert!(
                self.plan.forgives_losses(),
                "{node} has lost {lost} updates a client knows of"
            );
            self.report.lost += lost as u64;
            self.judge.seen = records.len().min(self.judge.seen);
            self.judge.acknowledged = records.len().min(self.judge.acknowledged);
        }
        if node == PRIMARY {
            self.judge.executed.truncate(records.len());
            let mut backups = self.hosts.iter().filter_map(|host| host.up.as_ref());
            let knows = backups.all(|up| up.store.updates.len() <= records.len());
            assert!(knows, "a backup holds what the primary has forgotten");
        }
        let mut gated = Gated::default();
        gated.set_durable(log.durable());
        self.hosts[host].up = Some(Process { store, log, gated });
        self.step(host, Event::Tick);
    }
}
