//! Clients with sessions: each tries its calls again, at whatever node, until it knows the answer, and
//! some duplicates come late.
//!
//! Leases are kept by the test, by the rules of `docs/design/006-sessions.md`: grants reach up to a
//! date, and a lease is called over as of a later one.

use std::collections::{BTreeMap, BTreeSet};

use quorate_machine::{CallError, Outcome, Refusal, Rng};
use quorate_rifl::{Call, Grant, LeaseEnd, LeaseId, Lost, Permit, Sessions as _, owner_of};
use quorate_types::{LaneId, MemberNumber, hash_key, placement};

use crate::support::Cluster;
use crate::txn::{Reply, Step, Txn};

/// How far a grant reaches beyond the clock that it is given by, in nanoseconds.
const TERM: u64 = 60_000_000;
const CLIENTS: usize = 3;

/// Which call a transaction is a try at: the client, and the number.
pub(crate) type CallName = (usize, u64);

/// A call as its client sees it.
struct Known {
    txn: Txn,
    /// The tag of its first try.
    first: u64,
    answer: Option<Reply>,
    /// Whether the client has said that it needs the answer no more.
    acknowledged: bool,
}

struct Client {
    lease: LeaseId,
    /// Attempts may be dated up to here.
    until: u64,
    /// The date as of which the lease has ended.
    over: Option<u64>,
    /// Nodes that still have to hear that it has.
    unaware: BTreeSet<u16>,
    calls: BTreeMap<u64, Known>,
}

/// All clients.
#[derive(Default)]
pub(crate) struct Sessions {
    clients: Vec<Client>,
    opened: u64,
}

/// A clock that no node's is ahead of.
fn latest(cluster: &Cluster) -> u64 {
    let clocks = cluster.hosts.keys().map(|node| cluster.now_at(*node).unix.0);
    clocks.max().unwrap_or_default()
}

impl Client {
    fn first_incomplete(&self) -> u64 {
        let open = self.calls.iter().find(|(_, call)| !call.acknowledged);
        open.map_or(self.calls.len() as u64, |(sequence, _)| *sequence)
    }
}

impl Sessions {
    /// The next call of some client, which is this transaction, with the tag of its first try.
    pub(crate) fn begin(
        &mut self,
        cluster: &Cluster,
        rng: &mut Rng,
        txn: &Txn,
        first: u64,
    ) -> CallName {
        if self.clients.len() < CLIENTS || self.clients.iter().all(|client| client.over.is_some()) {
            self.open(cluster);
        }
        let alive = |(_, client): &(usize, &Client)| client.over.is_none();
        let alive: Vec<usize> =
            self.clients.iter().enumerate().filter(alive).map(|(at, _)| at).collect();
        let at = alive[rng.below(alive.len() as u64) as usize];
        let calls = &mut self.clients[at].calls;
        let sequence = calls.len() as u64;
        let (txn, answer, acknowledged) = (txn.clone(), None, false);
        calls.insert(sequence, Known { txn, first, answer, acknowledged });
        (at, sequence)
    }

    fn open(&mut self, cluster: &Cluster) {
        let lease = LeaseId::new(MemberNumber(1 + self.opened as u32 % 3), LaneId(0), self.opened);
        self.opened += 1;
        let until = latest(cluster) + TERM;
        let (over, unaware, calls) = (None, BTreeSet::new(), BTreeMap::new());
        self.clients.push(Client { lease, until, over, unaware, calls });
    }

    /// A call that is to be tried again, whether its answer is known or not, and the tag of its first try.
    pub(crate) fn again(&self, rng: &mut Rng) -> Option<(CallName, u64, Txn)> {
        let at = rng.below(self.clients.len().max(1) as u64) as usize;
        let calls = &self.clients.get(at)?.calls;
        let count = calls.len() as u64;
        let sequence = count.checked_sub(1 + rng.below(count.clamp(1, 4)))?;
        let Known { first, txn, .. } = &calls[&sequence];
        Some(((at, sequence), *first, txn.clone()))
    }

    /// A client says that it knows an answer, renews its lease, or is called dead; or a node hears that.
    pub(crate) fn act(&mut self, cluster: &mut Cluster, rng: &mut Rng) {
        if self.clients.is_empty() {
            return;
        }
        let at = rng.below(self.clients.len() as u64) as usize;
        let now = latest(cluster);
        let client = &mut self.clients[at];
        match rng.below(8) {
            0 if client.over.is_none() && now > client.until => {
                client.over = Some(now);
                client.unaware = cluster.hosts.keys().copied().collect();
            }
            0..=2 if client.over.is_none() => client.until = client.until.max(now + TERM),
            0..=3 => {
                let Some(granted) = client.over else { return };
                let Some(node) = client.unaware.pop_first() else { return };
                let end = LeaseEnd { lease: client.lease, lost: Lost::Expired, granted };
                if cluster.hosts[&node].up {
                    let host = cluster.hosts.get_mut(&node).expect("it runs");
                    host.machines.iter_mut().for_each(|machine| machine.end_session(&end));
                }
            }
            _ => {
                let known = client.calls.values_mut().find(|call| !call.acknowledged);
                if let Some(call) = known.filter(|call| call.answer.is_some()) {
                    call.acknowledged = true;
                }
            }
        }
    }

    /// What a try says of its call. `None` if nobody gives leases out.
    pub(crate) fn permit(&self, cluster: &Cluster, (at, sequence): CallName) -> Option<Permit> {
        let client = &self.clients[at];
        let owner = owner_of(&cluster.view, client.lease)?.number;
        let first_incomplete = client.first_incomplete().min(sequence);
        let lease = client.lease;
        let call = Call { lease, sequence, first_incomplete, digest: sequence as u32 };
        let grant = Grant { lease, until: client.until, owner };
        Some(Permit { call, grant, date: client.until })
    }

    /// A try has ended.
    pub(crate) fn note(&mut self, (at, sequence): CallName, outcome: &Outcome<Reply>) {
        let client = &mut self.clients[at];
        let known = client.calls.get_mut(&sequence).expect("it was called");
        match outcome {
            Outcome::Done(reply) => {
                let first = known.answer.get_or_insert_with(|| reply.clone());
                assert_eq!(first, reply, "call {sequence} of {:?} has two answers", client.lease);
            }
            Outcome::Refused(Refusal::CallError(CallError::Stale)) => {
                let below = sequence < client.first_incomplete();
                assert!(below, "call {sequence} of {:?} was not acknowledged", client.lease);
            }
            Outcome::Refused(Refusal::CallError(why)) => panic!("a proper client hears {why:?}"),
            Outcome::Refused(_) | Outcome::Unknown => {}
        }
    }

    /// The calls that clients with a lease have no answer to, under a new grant.
    pub(crate) fn open_calls(&mut self, cluster: &Cluster) -> Vec<(CallName, u64, Txn)> {
        let until = latest(cluster) + TERM;
        let mut open = Vec::new();
        for (at, client) in self.clients.iter_mut().enumerate().filter(|(_, c)| c.over.is_none()) {
            client.until = client.until.max(until);
            let calls = client.calls.iter().filter(|(_, call)| call.answer.is_none());
            let named = calls.map(|(number, call)| ((at, *number), call.first, call.txn.clone()));
            open.extend(named);
        }
        open
    }

    /// In the end every client with a lease knows its answers, and the members of each group agree on
    /// what became of its calls.
    pub(crate) fn check(&self, cluster: &Cluster) {
        for (at, client) in self.clients.iter().enumerate().filter(|(_, c)| c.over.is_none()) {
            for (sequence, known) in &client.calls {
                let lease = client.lease;
                assert!(known.answer.is_some(), "call {sequence} of {lease:?} is open");
                let Permit { call, .. } = self.permit(cluster, (at, *sequence)).expect("a view");
                let keys = known.txn.0.iter().map(Step::key);
                let home = keys.min_by_key(|key| (hash_key(key.as_bytes()), *key));
                let home = home.expect("a call names keys");
                let shard = placement::shard_of(home.as_bytes()) as u8;
                let mut seen = Vec::new();
                for node in cluster.group(home) {
                    let tracker = cluster.machine_of(node, home).tracker(shard);
                    let tracker = tracker.unwrap_or_else(|| panic!("{node} knows no {call:?}"));
                    seen.push(tracker.find(&call));
                }
                seen.dedup();
                let is_known = matches!(seen[..], [Ok(quorate_rifl::Found::Completed(_))]);
                let is_stale = seen == [Err(CallError::Stale)];
                let is_acknowledged = *sequence < client.first_incomplete();
                assert!(is_known || is_stale && is_acknowledged, "{home} of {call:?}: {seen:?}");
            }
        }
    }
}
