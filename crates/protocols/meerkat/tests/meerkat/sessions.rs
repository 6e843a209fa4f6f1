//! Clients with sessions: each tries its calls again, at whatever node, until it knows the answer, and
//! some duplicates come late. What must hold whatever happens: a call takes effect once at most, and
//! everybody who is told its answer is told the same one.
//!
//! Leases are kept by the test, by the rules of `docs/design/006-sessions.md`: grants reach up to a
//! date, and a lease is called over as of a later one.

use std::collections::{BTreeMap, BTreeSet};

use quorate_machine::{CallError, Outcome, Refusal, Rng};
use quorate_rifl::{Call, Found, Grant, LeaseEnd, LeaseId, Lost, Permit, Sessions as _, owner_of};
use quorate_types::partition_of;
use quorate_types::{Duration, LaneId, MemberNumber};

use crate::support::Cluster;
use crate::txn::{Reply, Step, txn};

/// How far a grant reaches beyond the clock that it is given by, in nanoseconds.
const TERM: u64 = 60_000_000;
const CLIENTS: u64 = 3;

/// A call as its client sees it.
#[derive(Default)]
struct Known {
    text: String,
    answer: Option<Reply>,
    /// Whether the client has said that it needs the answer no more.
    acknowledged: bool,
}

struct Client {
    lease: LeaseId,
    /// Attempts may be dated up to here.
    until: u64,
    /// The version at which the lease ended.
    over: Option<u64>,
    /// Nodes that still have to hear that it is.
    unaware: BTreeSet<u16>,
    calls: BTreeMap<u64, Known>,
}

/// All clients, and what they have asked.
#[derive(Default)]
pub(crate) struct Sessions {
    clients: Vec<Client>,
    /// Which call a tag stands for.
    asked: BTreeMap<u64, (usize, u64)>,
    opened: u64,
}

/// A clock that nobody's is ahead of.
fn latest(cluster: &Cluster) -> u64 {
    let date = |node: &u16| cluster.hosts[node].machine().date(cluster.now_at(*node));
    cluster.hosts.keys().map(date).max().unwrap_or_default()
}

impl Client {
    fn first_incomplete(&self) -> u64 {
        let open = self.calls.iter().find(|(_, call)| !call.acknowledged);
        open.map_or(self.calls.len() as u64, |(sequence, _)| *sequence)
    }

    fn permit(&self, cluster: &Cluster, sequence: u64) -> Option<Permit> {
        let owner = owner_of(&cluster.view, self.lease)?.number;
        let first_incomplete = self.first_incomplete().min(sequence);
        let digest = sequence as u32;
        let call = Call { lease: self.lease, sequence, first_incomplete, digest };
        let grant = Grant { lease: self.lease, until: self.until, owner };
        Some(Permit { call, grant, date: 0 })
    }
}

impl Sessions {
    /// A client does something: opens a session, calls, tries again, says that it knows an answer,
    /// or is called dead.
    pub(crate) fn act(&mut self, cluster: &mut Cluster, rng: &mut Rng, node: u16, keys: u64) {
        if (self.clients.len() as u64) < CLIENTS {
            self.open(cluster);
        }
        let at = rng.below(self.clients.len() as u64) as usize;
        match rng.below(20) {
            0 => self.end(cluster, rng, at),
            1..=3 => self.hear(cluster, rng),
            4..=5 => {
                let known = self.clients[at].calls.values_mut().find(|call| !call.acknowledged);
                if let Some(call) = known.filter(|call| call.answer.is_some()) {
                    call.acknowledged = true;
                }
            }
            6..=10 => {
                let key = rng.below(keys);
                let number = self.asked.len();
                let text = match rng.below(4) {
                    0 => format!("write=k{key}:{number}"),
                    1 => format!("append=k{key}:,{number} append=k{}:,{number}", (key + 1) % keys),
                    2 => format!("unless=k{key} write=k{key}:{number}"),
                    _ => format!("append=k{key}:,{number}"),
                };
                let client = &mut self.clients[at];
                let sequence = client.calls.len() as u64;
                client.calls.insert(sequence, Known { text, ..Known::default() });
                self.ask(cluster, node, at, sequence);
            }
            _ => {
                // Again, whether the answer is known or not: somebody's late duplicate.
                let count = self.clients[at].calls.len() as u64;
                if count > 0 {
                    let sequence = count - 1 - rng.below(count.min(3));
                    self.ask(cluster, node, at, sequence);
                }
            }
        }
    }

    fn open(&mut self, cluster: &Cluster) {
        let lease = LeaseId::new(MemberNumber(1 + self.opened as u32 % 3), LaneId(0), self.opened);
        self.opened += 1;
        let until = latest(cluster) + TERM;
        let (over, unaware, calls) = (None, BTreeSet::new(), BTreeMap::new());
        self.clients.push(Client { lease, until, over, unaware, calls });
    }

    /// Renews a lease; or calls it over, once every clock that matters may be beyond it.
    fn end(&mut self, cluster: &Cluster, rng: &mut Rng, at: usize) {
        let now = latest(cluster);
        let client = &mut self.clients[at];
        if client.over.is_none() && now > client.until && rng.chance(1, 2) {
            client.over = Some(now);
            client.unaware = cluster.hosts.keys().copied().collect();
        } else if client.over.is_none() {
            client.until = client.until.max(now + TERM);
        }
        if client.over.is_some() && self.clients.iter().all(|client| client.over.is_some()) {
            self.open(cluster);
        }
    }

    /// Some node hears that a lease has ended.
    fn hear(&mut self, cluster: &mut Cluster, rng: &mut Rng) {
        for client in &mut self.clients {
            let Some(granted) = client.over else { continue };
            let nodes: Vec<u16> = client.unaware.iter().copied().collect();
            if nodes.is_empty() {
                continue;
            }
            let node = nodes[rng.below(nodes.len() as u64) as usize];
            client.unaware.remove(&node);
            let verdict = LeaseEnd { lease: client.lease, lost: Lost::Expired, granted };
            if cluster.hosts[&node].up {
                cluster.machine(node).end_session(&verdict);
            }
        }
    }

    fn ask(&mut self, cluster: &mut Cluster, node: u16, at: usize, sequence: u64) {
        if !cluster.hosts[&node].up {
            return;
        }
        let client = &self.clients[at];
        let Some(permit) = client.permit(cluster, sequence) else { return };
        let origin = 10_000 + at as u64 * 100 + sequence;
        let tag = cluster.call_as(node, origin, permit, txn(&client.calls[&sequence].text));
        self.asked.insert(tag, (at, sequence));
        // It may have been answered at once.
        if let Some(outcome) = cluster.outcome(tag).cloned() {
            self.note(tag, &outcome);
        }
    }

    /// Whether the answer is to a call.
    pub(crate) fn note(&mut self, tag: u64, outcome: &Outcome<Reply>) -> bool {
        let Some(&(at, sequence)) = self.asked.get(&tag) else { return false };
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
        true
    }

    /// Every client that still has its lease asks for what it has not heard the end of.
    pub(crate) fn finish(&mut self, cluster: &mut Cluster) {
        for _ in 0..3 {
            let node = cluster.view.active().first().expect("somebody is active").0;
            for at in 0..self.clients.len() {
                if self.clients[at].over.is_some() {
                    continue;
                }
                self.clients[at].until = latest(cluster) + TERM;
                let open = |(_, call): &(&u64, &Known)| call.answer.is_none();
                let open = self.clients[at].calls.iter().filter(open).map(|(number, _)| *number);
                for sequence in open.collect::<Vec<u64>>() {
                    self.ask(cluster, node, at, sequence);
                }
            }
            cluster.run_for(Duration::from_millis(40));
            for (tag, outcome) in std::mem::take(&mut cluster.fresh_outcomes) {
                self.note(tag, &outcome);
            }
        }
        // An idle lane tells once in a second up to where all transactions have ended.
        cluster.run_for(Duration::from_millis(1_300));
    }

    /// What must hold in the end.
    pub(crate) fn check(&self, cluster: &mut Cluster) {
        for (call, attempts) in &cluster.subject.ledger.calls {
            let committed =
                attempts.iter().filter(|id| cluster.subject.ledger.ends.get(id) == Some(&true));
            let committed: Vec<_> = committed.collect();
            assert!(committed.len() <= 1, "call {call:?} took effect at {committed:?}");
        }
        for client in &self.clients {
            for (sequence, known) in &client.calls {
                let attempts = cluster.subject.ledger.calls.get(&(client.lease, *sequence));
                let happened = attempts.is_some_and(|attempts| {
                    attempts.iter().any(|id| cluster.subject.ledger.ends.get(id) == Some(&true))
                });
                assert!(
                    known.answer.is_none() || happened,
                    "call {sequence} of {:?} was answered and left no record",
                    client.lease
                );
                if client.over.is_some() {
                    continue;
                }
                assert!(known.answer.is_some(), "call {sequence} of {:?} is open", client.lease);
                let permit = client.permit(cluster, *sequence).expect("somebody is active");
                let txn = txn(&known.text);
                let keys = txn.0.iter().map(Step::key);
                let home = keys.min_by_key(|key| quorate_types::hash_key(key.as_bytes()));
                let home = home.expect("a call names keys");
                let mut seen = Vec::new();
                for node in cluster.live().into_iter().filter(|node| cluster.holds(*node, home)) {
                    let trackers = cluster.hosts[&node].machine().trackers();
                    let partition = partition_of(home.as_bytes(), trackers.len());
                    let found = trackers[usize::from(partition)].find(&permit.call);
                    seen.push(found.map(|found| match found {
                        Found::Completed(answer) => answer.to_vec(),
                        other => panic!("call {sequence} at {node}: {other:?}"),
                    }));
                }
                seen.dedup();
                assert!(seen.len() == 1, "replicas differ on call {sequence}: {seen:?}");
            }
        }
    }
}
