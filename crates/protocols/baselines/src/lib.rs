//! The three systems that Meerkat's paper measures itself against (Meerkat §6.1, table 1), and the
//! one that Zeus's does (Zeus §8), on the same records, transactions, messages and transport.
//!
//! **They are measuring instruments and no engines to keep data in.** They have no recovery: no
//! record is kept for one, nothing is sent twice, no deleted key's record is ever removed. If a
//! node is lost, or a message, they stop: the loss of a node ends the process with an error that
//! says so, and a transaction whose message was lost is answered *unknown* and blocks its keys for
//! ever. What Meerkat pays for all this they don't, so that the comparison is in their favour.
//!
//! | system | lanes of a node share | who validates |
//! | --- | --- | --- |
//! | [`KuaFu`] (KuaFu++) | a counter and a log | the primary, in an order of its own |
//! | [`Tapir`] (TAPIR-style) | one transaction record | every replica, at the client's timestamp |
//! | [`MeerkatPb`] | nothing | the primary, at the client's timestamp |
//! | [`Fasst`] (FaSST-style) | nothing | the primary of each key, by locks and versions |
//!
//! What is the same in the first three and in Meerkat: a transaction runs at its client's node
//! against the local records, is validated by Meerkat's checks ([`quorate_meerkat::occ`]) with its read and
//! write sets, and is tried again after a random pause if it lost. Serialization is the same, too:
//! these machines speak with Meerkat's messages. FaSST fetches what it reads from the primaries of
//! its keys (`fasst.rs`).
//!
//! | message | here |
//! | --- | --- |
//! | VALIDATE | a transaction, to a replica that validates it |
//! | VALUES | FaSST: what keys hold that were locked or read |
//! | VOTE | its verdict; from a primary only if it is against |
//! | ACCEPT, ACCEPTED | TAPIR's slow path; from a primary, its log for the backups, by place |
//! | DECIDED | how it ended; from a primary to the coordinator, that it committed |
//!
//! FaSST uses ACCEPT and ACCEPTED for its log at the backups, and DECIDED for what ends a lock.
#![forbid(unsafe_code)]

mod common;
mod coordinator;
mod engine;
mod fasst;
mod primary;
mod tapir;

use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;

use quorate_machine::{
    Command, Deadlines, Effects, Event, Machine, Origins, Outcome, Protocol, Rng, Slab, Slot,
    Table, Timeouts,
};
use quorate_meerkat::{Execution, Kind, Message, Meta, Reason, Request};
use quorate_types::{
    Duration, EngineId, Instant, LaneId, MemberNumber, NodeId, NodeSet, Now, Quorums, Timestamp,
    View, WriterId,
};

pub use common::{Common, Tentative};

use coordinator::{Op, Try};

/// How a system differs from the others.
pub trait System: 'static {
    /// The name that users give.
    const NAME: &'static str;
    /// The number in the header of its messages.
    const ID: EngineId;
    /// What it is, in half a sentence.
    const SUMMARY: &'static str;
    /// Every replica validates, and no primary: TAPIR.
    const LEADERLESS: bool = false;
    /// The primary's lanes put all transactions into one order and one log: KuaFu++.
    const ORDERED: bool = false;
    /// Keys are dealt out over primaries, which lock them: FaSST.
    const SHARDED: bool = false;
}

/// Primary-backup with one order for everything: the primary's lanes draw places from one counter
/// and write one log, which backups replay.
#[derive(Debug)]
pub struct KuaFu;

/// Leaderless: Meerkat's normal case, but the lanes of a node keep their transactions in one record
/// behind a mutex.
#[derive(Debug)]
pub struct Tapir;

/// Primary-backup with Meerkat's records, checks and timestamps: a lane of the primary speaks with
/// the same lane of the backups.
#[derive(Debug)]
pub struct MeerkatPb;

/// Distributed commit: keys are dealt out over primaries, and a transaction locks what it writes,
/// checks what it read, and logs at backups.
#[derive(Debug)]
pub struct Fasst;

impl System for KuaFu {
    const NAME: &'static str = "kuafu";
    const ID: EngineId = EngineId(16);
    const SUMMARY: &'static str = "a rival, KuaFu++: primary-backup, with a counter and a log that \
                                   all lanes share";
    const ORDERED: bool = true;
}

impl System for Tapir {
    const NAME: &'static str = "tapir";
    const ID: EngineId = EngineId(17);
    const SUMMARY: &'static str = "a rival, TAPIR-style: leaderless, with a transaction record that \
                                   all lanes share";
    const LEADERLESS: bool = true;
}

impl System for MeerkatPb {
    const NAME: &'static str = "meerkat-pb";
    const ID: EngineId = EngineId(18);
    const SUMMARY: &'static str = "a rival, Meerkat-PB: primary-backup with Meerkat's records";
}

impl System for Fasst {
    const NAME: &'static str = "fasst";
    const ID: EngineId = EngineId(19);
    const SUMMARY: &'static str = "a rival of Zeus, FaSST-style: keys have fixed primaries, which \
                                   lock, check and log in turn";
    const SHARDED: bool = true;
}

/// What a lane is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// This lane.
    pub lane: LaneId,
    /// How long a transaction may take before its client is told `UNKNOWN` or `TRYAGAIN`.
    pub op_timeout: Duration,
    /// Seeds jitter.
    pub seed: u64,
}

/// What was counted, by name; those of aborts are in the order of [`Reason::ALL`].
const COUNTERS: [&str; 9] = [
    "commits_fast",
    "commits_slow",
    "retries",
    "aborts_stale_read",
    "aborts_pending_writer",
    "aborts_read_later",
    "aborts_pending_reader",
    "aborts_timestamp_too_low",
    "aborts_below_floor",
];

const COMMITS_FAST: usize = 0;
const COMMITS_SLOW: usize = 1;
const RETRIES: usize = 2;
const ABORTS: usize = 3;

/// The cluster, from the view on in which every voter is active.
#[derive(Debug)]
struct Group {
    view: View,
    live: NodeSet,
    quorums: Quorums,
    /// The first node: it is the primary of the systems that have one.
    primary: NodeId,
    /// What this lane's timestamps carry.
    writer: WriterId,
}

/// One lane of one of the systems on one node.
pub struct Baseline<S, T: Table<Meta = Meta>, X: Command> {
    system: PhantomData<S>,
    config: Config,
    table: T,
    common: Arc<Common>,
    rng: Rng,
    group: Option<Group>,
    // --- coordinator ---
    ops: Slab<Op<X>>,
    attempts: BTreeMap<u64, Try>,
    origins: Origins<Slot>,
    backoffs: Deadlines<Slot>,
    deadlines: Timeouts<Slot>,
    ready: VecDeque<Slot>,
    last_issued: u64,
    execution: Execution,
    // --- primary ---
    replicating: BTreeMap<Timestamp, primary::Replicating>,
    spare: Vec<Vec<u8>>,
    counters: [u64; COUNTERS.len()],
}

/// Bodies whose memory is kept for the next ones.
const SPARE_MAX: usize = 1024;

impl<S, T, X> Protocol for Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    type Message<'a> = Message<'a>;
    type Request<'a> = Request<X>;
    type Outcome = Outcome<X::Reply>;
    type Mail = core::convert::Infallible;
}

impl<S, T, X> Machine for Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { from, epoch, body } => {
                if self.group.as_ref().is_none_or(|group| group.view.epoch != epoch) {
                    return effects.ignored("baselines: message of another epoch");
                }
                self.on_message(now, from, &body, effects);
            }
            Event::Request { tag, request } => {
                self.submit(now, tag, request.origin, request.command, effects);
            }
            Event::Mail { mail, .. } => match mail {},
            Event::View(view) => self.on_view(view),
            Event::Tick => self.on_tick(now, effects),
            Event::Durable(_) => {}
        }
        self.run_ready(now, effects);
    }

    fn next_deadline(&self) -> Instant {
        self.backoffs.next_deadline().min(self.deadlines.next_deadline())
    }

    fn check_invariants(&self) {
        self.origins.check_invariants();
        let mut waiting = self.origins.waiting();
        assert!(waiting.all(|slot| self.ops.get(*slot).is_some()), "open ops wait");
        assert!(self.group.is_some() || self.ops.is_empty(), "ops need a view");
    }
}

impl<S, T, X> Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    /// A lane that knows no view yet. `common` is the same for all lanes of a node.
    pub fn new(config: Config, table: T, common: Arc<Common>) -> Self {
        Self {
            system: PhantomData,
            rng: Rng::new(config.seed),
            config,
            table,
            common,
            group: None,
            ops: Slab::default(),
            attempts: BTreeMap::new(),
            origins: Origins::default(),
            backoffs: Deadlines::default(),
            deadlines: Timeouts::default(),
            ready: VecDeque::new(),
            last_issued: 0,
            execution: Execution::default(),
            replicating: BTreeMap::new(),
            spare: Vec::new(),
            counters: [0; COUNTERS.len()],
        }
    }

    fn on_message(
        &mut self,
        now: Now,
        from: NodeId,
        message: &Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if S::SHARDED {
            return self.on_sharded(now, from, message, effects);
        }
        let is_tapir = S::LEADERLESS;
        match message.kind {
            Kind::Validate { id, body, .. } if is_tapir => {
                self.on_validate(from, id, body, effects);
            }
            Kind::Validate { id, body, .. } => self.on_submit(now, from, id, body, effects),
            Kind::Vote { id, vote } => self.on_vote(now, from, id, vote, effects),
            Kind::Accept { id, ok, .. } if is_tapir => self.on_accept(from, id, ok, effects),
            Kind::Accept { id, view, body: Some(body), .. } => {
                self.on_append(from, id, view, body, effects);
            }
            Kind::Accepted { id, .. } if is_tapir => self.on_accepted(now, from, id, effects),
            Kind::Accepted { id, .. } => self.on_appended(now, from, id, effects),
            Kind::Decided { id, commit, .. } if is_tapir => self.end(id, commit),
            Kind::Decided { id, .. } => self.committed(id.version, COMMITS_FAST, effects),
            _ => effects.ignored("baselines: a message that these systems have no use for"),
        }
    }

    /// A message of FaSST.
    fn on_sharded(
        &mut self,
        now: Now,
        from: NodeId,
        message: &Message<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match message.kind {
            Kind::Validate { id, stable, body, .. } => {
                self.on_step(now, from, id, stable, body, effects);
            }
            Kind::Values { request, items, .. } => {
                self.on_values(now, from, request, items, effects);
            }
            Kind::Vote { id, vote } => self.on_step_vote(now, from, id.version, vote, effects),
            Kind::Accept { id, view, body: Some(body), .. } => {
                self.on_log(from, id, view, body, effects);
            }
            Kind::Accepted { view, .. } => self.on_logged(from, view, effects),
            Kind::Decided { id, commit, body: Some(body) } => self.on_end(id, commit, body),
            _ => effects.ignored("baselines: a message that these systems have no use for"),
        }
    }

    /// # Panics
    /// If a node is lost: there is no recovery.
    fn on_view(&mut self, view: &View) {
        let voters = view.voters();
        match &mut self.group {
            Some(group) => {
                assert!(
                    view.live() == group.live && view.survivors(&group.view) == group.live,
                    "the members of the cluster have changed, and {} is a measuring instrument \
                     without recovery: start the cluster again, with empty memory",
                    S::NAME
                );
                group.view = view.clone();
            }
            None if !voters.is_empty() && view.active() == voters => {
                let me = view.member(self.config.node).map_or(MemberNumber(0), |me| me.number);
                let lane = u8::try_from(self.config.lane.0).expect("a lane fits into a virtual id");
                self.group = Some(Group {
                    view: view.clone(),
                    live: voters,
                    quorums: Quorums::new(voters.len(), voters.len(), false),
                    primary: voters.into_iter().next().expect("there is a voter"),
                    writer: WriterId::new(me, lane),
                });
            }
            None => {}
        }
    }

    fn group(&self) -> &Group {
        self.group.as_ref().expect("nothing is done without a view")
    }

    fn others(&self) -> NodeSet {
        self.group().live.without(self.config.node)
    }

    fn message<'a>(kind: Kind<'a>) -> Message<'a> {
        Message { partition: 0, kind }
    }

    /// Memory for a body.
    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, mut body: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            body.clear();
            self.spare.push(body);
        }
    }

    fn count_abort(&mut self, reason: Reason) {
        self.counters[ABORTS + reason as usize] += 1;
    }
}
