//! Failures: views, replays, and the sweep for updates whose coordinator is gone (§4.3.3,
//! §4.3.5).

use alloc::vec::Vec;

use quorate_machine::{Command, Effects, Outcome, Record, Refusal, Scan, Slot, Table, mutant};
use quorate_types::{
    Duration, Incarnation, Instant, NodeId, NodeSet, Now, Role, View, WriterId, hash_key,
};

use crate::deltas::inv_of;
use crate::message::Message;
use crate::ops::{Pending, PendingKind};
use crate::{Hermes, Meta, State};

/// Records that the sweep looks at in one tick.
const SWEEP_RECORDS: usize = 1_000;
/// The same while there are some to replay: after the loss of all power that is every record.
const SWEEP_RECORDS_IN_DOUBT: usize = 64;
/// Updates under way at which a sweep waits.
const SWEEP_REPLAYS_MAX: usize = 256;
/// Time between two ticks of a sweep that is under way.
const SWEEP_EVERY: Duration = Duration::from_millis(1);

/// The search, after a view change, for Invalid keys whose writer is gone. The first pass replays
/// those that this node owns; the second, a while later, all that are left.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Sweep {
    /// 0, 1, or 2 after both passes.
    pass: u8,
    scan: Scan,
    next_at: Instant,
    /// Whether the last step has found something to replay.
    replays: bool,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { pass: 2, scan: Scan::default(), next_at: Instant::NEVER, replays: false }
    }
}

impl Sweep {
    pub(crate) fn next_deadline(&self) -> Instant {
        self.next_at
    }

    /// Whether both passes are over.
    pub(crate) fn is_over(&self) -> bool {
        self.pass == 2
    }
}

/// The eldest live member of a group. A group without active members has lost its data, as a person has
/// said: nobody has more than this member, which goes on with what it has. The others copy from it once
/// it is active.
fn eldest(view: &View, group: NodeSet) -> Option<NodeId> {
    let live = view.members.iter().filter(|member| member.role != Role::Down);
    let of_group = live.filter(|member| group.contains(member.node));
    of_group.min_by_key(|member| member.number).map(|member| member.node)
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Installs a view: epoch, live set and the pruning they imply in one step, before any message
    /// of the new epoch is handled (N8-1).
    pub(crate) fn on_view(&mut self, now: Now, view: &View, effects: &mut impl Effects<Self>) {
        if view.epoch <= self.view.epoch {
            return effects.ignored("hermes: view is not newer");
        }
        let survivors = view.survivors(&self.view);
        let was_live = self.live;
        self.view = view.clone();
        let node = self.config.node;
        self.live = view.is_live(node, self.config.incarnation) && !self.retired;
        self.ack_sets.clear();
        if !self.live {
            self.retired |= was_live;
            self.is_replica = false;
            self.peers = NodeSet::EMPTY;
            self.active = NodeSet::EMPTY;
            if was_live {
                self.abandon(effects);
            }
            return;
        }
        let me = view.member(node).expect("a live member is a member");
        self.number = me.number;
        let group = self.config.replicas.unwrap_or_else(|| view.voters());
        self.is_replica = group.contains(node);
        self.peers = view.live().intersection(group).without(node);
        self.active = view.active().intersection(group);
        let is_heir = self.active.is_empty()
            && eldest(view, group) == Some(node)
            && !mutant!("hermes_group_has_no_heir");
        let shadow = me.role == Role::Shadow && !is_heir;
        self.take_restored(now, view, !shadow, effects);
        if was_live && self.active.contains(node) && !self.active.is_subset(survivors) {
            self.doubt_as_survivor(effects);
        }
        self.enter_cluster(view.cluster, effects);
        if is_heir && self.is_replica {
            self.inherit(now, effects);
        }
        self.prune_updates(now, survivors, effects);
        self.restart_reads(now, effects);
        self.floors.abort_round(now.monotonic);
        self.tombstones.wake(now.monotonic);
        self.sweep =
            Sweep { pass: 0, scan: Scan::default(), next_at: now.monotonic, replays: true };
        self.restart_copying(now, shadow && self.is_replica, survivors, effects);
        self.gather_records(now, effects);
        self.check_all_queues(now.monotonic);
    }

    /// Acknowledgements don't count in another epoch: a replica may have acknowledged a
    /// read-modify-write, then another one whose coordinator died, and would now replay that one
    /// (H10); or a write, and then a read-modify-write that had not seen it (H12).
    fn prune_updates(&mut self, now: Now, survivors: NodeSet, effects: &mut impl Effects<Self>) {
        let slots: Vec<Slot> = self.ops.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(op) = self.ops.get_mut(slot) else { continue };
            let keeps = op.rmw && mutant!("hermes_stale_rmw_acks_kept");
            op.acks = if keeps { op.acks.intersection(survivors) } else { NodeSet::EMPTY };
            op.tries = 0;
            self.commit_if_acknowledged(now, slot, effects);
            self.resend(now, slot, effects);
        }
    }

    /// This node is out: what was started may still be finished by others, what waited will not.
    pub(crate) fn abandon(&mut self, effects: &mut impl Effects<Self>) {
        let pending: Vec<Slot> = self.ops.iter().map(|(slot, _)| slot).collect();
        for slot in pending {
            let op = self.ops.remove(slot).expect("listed a moment ago");
            self.answer_unknown(op.answer, op.combined, effects);
        }
        let mut queues: Vec<_> = core::mem::take(&mut self.queues).into_values().collect();
        queues.sort_unstable_by_key(|queue| queue.number);
        for queue in queues {
            for waiter in queue.waiters {
                let outcome = if waiter.run.attempts > 0 {
                    Outcome::Unknown
                } else {
                    Outcome::Refused(Refusal::NotServing)
                };
                self.answer(waiter.tag, outcome, effects);
            }
        }
        self.waiting = 0;
        self.undurable.clear();
        self.queue_checks.clear();
        self.resends.clear();
        self.hot.clear();
        self.sweep = Sweep::default();
        self.copying = Default::default();
        self.floors.abandon_round();
        self.gathering = None;
        self.tombstones.rest();
        self.expiry = Default::default();
        self.deltas.clear();
        self.abandon_calls();
        self.abandon_reads(effects);
    }

    /// Begins a new life: the node re-joins under a fresh incarnation. It holds nothing, but what it
    /// has it need not copy.
    pub fn reset(&mut self, _now: Now, incarnation: Incarnation, effects: &mut impl Effects<Self>) {
        self.abandon(effects);
        self.leave_base();
        if self.life == 0 {
            // All lives are used up, and the base went with them.
            self.append_cluster(effects);
        }
        self.forget_calls();
        self.config.incarnation = incarnation;
        self.view = View::default();
        self.live = false;
        self.retired = false;
        self.is_replica = false;
        self.peers = NodeSet::EMPTY;
        self.active = NodeSet::EMPTY;
        self.ack_sets.clear();
        self.copying = Default::default();
        self.leave_floors(effects);
        self.tombstones = Default::default();
    }

    /// Drives another node's update again, with its original timestamp, value and flag, which
    /// makes it idempotent (N8-4).
    pub(crate) fn replay(&mut self, now: Now, handle: T::Handle, effects: &mut impl Effects<Self>) {
        let mut record = self.table.lock(handle);
        let mut meta = record.meta();
        debug_assert!(
            matches!(meta.state, State::Invalid | State::Valid),
            "what is driven already is not replayed"
        );
        if mutant!("hermes_replay_under_new_timestamp") {
            meta.timestamp.version += 2;
        }
        self.next_number += 1;
        let resend_at = now.monotonic + self.config.message_loss_timeout;
        let slot = self.ops.insert(Pending {
            kind: PendingKind::Replay,
            handle,
            timestamp: meta.timestamp,
            rmw: meta.rmw,
            acks: NodeSet::EMPTY,
            number: self.next_number,
            started: now.monotonic,
            resend_at,
            sent_at: now.monotonic,
            tries: 0,
            lsn: self.journal.appended(),
            answer: None,
            again: None,
            combined: Vec::new(),
        });
        record.set_meta(Meta { state: State::Replay, op: slot, ..meta });
        let tentative =
            if mutant!("hermes_replay_without_call") { None } else { self.tentative.get(&handle) };
        let mut whole = Vec::new();
        let inv = inv_of(&record, slot, tentative, self.deltas.get(&handle), &mut whole);
        effects.broadcast(self.peers, &Message::Inv(inv));
        drop(record);
        self.resends.push(resend_at, slot);
        self.await_log(slot);
        self.counters.replays += 1;
        self.commit_if_acknowledged(now, slot, effects);
    }

    /// Whether the writer of a key's newest version is no longer a live member. Its member number
    /// tells: a node that came back has another.
    pub(crate) fn is_orphan(&self, meta: &Meta) -> bool {
        self.is_gone(meta.timestamp.writer)
    }

    /// Whether a writer is no longer a live member.
    pub(crate) fn is_gone(&self, writer: WriterId) -> bool {
        let writer = writer.member();
        !self.view.members.iter().any(|member| member.number == writer && member.role != Role::Down)
    }

    /// Whether this node is the one that acts first for a key: replays it, expires it, or runs its
    /// contended read-modify-writes.
    pub(crate) fn owns(&mut self, handle: T::Handle) -> bool {
        let hash = hash_key(self.table.lock(handle).key());
        self.owner(hash) == Some(self.config.node)
    }

    /// The active replica that acts first for keys of this hash.
    pub(crate) fn owner(&self, hash: u64) -> Option<NodeId> {
        let count = self.active.len() as u64;
        if count == 0 { None } else { self.active.nth((hash % count) as usize) }
    }

    /// Looks at some more records for updates whose coordinator is gone, and at what came back from the
    /// log for deleted keys and expiries.
    pub(crate) fn on_sweep_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        self.sweep.next_at = now.monotonic + SWEEP_EVERY;
        let owned_only = self.sweep.pass == 0;
        if self.ops.len() >= SWEEP_REPLAYS_MAX && !mutant!("hermes_sweep_without_limit") {
            return;
        }
        let records = if self.sweep.replays { SWEEP_RECORDS_IN_DOUBT } else { SWEEP_RECORDS };
        self.sweep.replays = false;
        for handle in self.sweep.scan.next_handles(&self.table, records) {
            let meta = self.list(now, handle);
            let lost =
                meta.state == State::Invalid && self.is_orphan(&meta) && !self.is_base(&meta);
            if lost && (!owned_only || self.owns(handle)) {
                effects.probe("hermes: sweep replays an orphan");
                self.sweep.replays = true;
                self.replay(now, handle, effects);
            } else if !owned_only && self.floors.may_be_lost_by_others(&meta) {
                effects.probe("hermes: a survivor replays what others may have lost");
                self.sweep.replays = true;
                self.replay(now, handle, effects);
            }
        }
        if self.sweep.scan.is_at_end() {
            self.sweep.replays = false;
            self.sweep.pass += 1;
            self.sweep.next_at = if self.sweep.pass == 2 {
                Instant::NEVER
            } else {
                now.monotonic + self.config.message_loss_timeout * 2
            };
        }
    }
}
