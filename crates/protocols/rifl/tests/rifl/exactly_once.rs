//! Lease managers and trackers together: attempts that arrive later than a lease lasts, at replicas
//! that forget sessions as soon as they may. No call commits twice.

use std::collections::BTreeMap;

use quorate_check::Seeds;
use quorate_rifl::{Answer, Call, Found, Grant, LeaseId, Lost, Request, ResultTracker};
use quorate_types::{Epoch, Role, limits};

use crate::cluster::{Cluster, MS, TERM, Weather};

const NODES: [u16; 3] = [1, 2, 3];
const MAJORITY: usize = 2;

struct Attempt {
    id: u64,
    call: Call,
    at: u64,
    epoch: Epoch,
    /// The time at which it reaches each replica, and the replica's vote.
    arrives: BTreeMap<u16, u64>,
    votes: BTreeMap<u16, bool>,
    /// Its end, and the time when each replica hears of it.
    end: Option<bool>,
    told: BTreeMap<u16, u64>,
}

struct Client {
    lease: LeaseId,
    /// The expiry that it was last told.
    told: u64,
    next: u64,
    acknowledged: u64,
    renewals: Vec<(u16, u64)>,
    /// A client that hardly ever renews returns long after the end of its lease.
    sleepy: bool,
}

struct Run {
    cluster: Cluster,
    calls: BTreeMap<u16, ResultTracker<u64>>,
    grants: BTreeMap<(u16, LeaseId), Grant>,
    attempts: Vec<Attempt>,
    next_attempt: u64,
    committed: BTreeMap<(LeaseId, u64), u64>,
    seen: usize,
    discards: usize,
    refused_by_date: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            cluster: Cluster::new(3, seed),
            calls: NODES.into_iter().map(|node| (node, ResultTracker::default())).collect(),
            grants: BTreeMap::new(),
            attempts: Vec::new(),
            next_attempt: 0,
            committed: BTreeMap::new(),
            seen: 0,
            discards: 0,
            refused_by_date: 0,
        }
    }

    /// Mostly short, now and then longer than a lease.
    fn delay(&mut self) -> u64 {
        let most = if self.cluster.rng.below(4) == 0 { 3 * TERM } else { 30 * MS };
        self.cluster.rng.below(most)
    }

    fn clock(&self, node: u16) -> u64 {
        let now = self.cluster.now_at(node);
        self.cluster.hosts[&node].machine().clock(now)
    }

    /// A node makes an attempt, if its grant says that it may.
    fn attempt(&mut self, node: u16, call: Call) {
        let at = self.clock(node);
        let covered = |grant: &Grant| grant.covers(&self.cluster.view, at);
        if !self.grants.get(&(node, call.lease)).is_some_and(covered) {
            return;
        }
        if !matches!(self.calls[&node].find(&call), Ok(Found::New)) {
            return;
        }
        self.next_attempt += 1;
        let live: Vec<u16> = self.calls.keys().copied().collect();
        let arrives =
            live.into_iter().map(|to| (to, self.cluster.nanos() + self.delay())).collect();
        self.attempts.push(Attempt {
            id: self.next_attempt,
            call,
            at,
            epoch: self.cluster.view.epoch,
            arrives,
            votes: BTreeMap::new(),
            end: None,
            told: BTreeMap::new(),
        });
    }

    fn deliver(&mut self) {
        let time = self.cluster.nanos();
        for index in 0..self.attempts.len() {
            let attempt = &mut self.attempts[index];
            let id = attempt.id;
            for (node, _) in attempt.arrives.extract_if(.., |_, at| *at <= time) {
                let calls = self.calls.get_mut(&node).expect("all attempts end with a view");
                let admitted = calls.admits(attempt.call.lease, attempt.at).is_ok();
                let is_new = matches!(calls.find(&attempt.call), Ok(Found::New));
                self.refused_by_date += usize::from(is_new && !admitted);
                // A late attempt finds its own end: the replica has been told already.
                let vote = is_new && admitted && attempt.end.is_none();
                if vote {
                    calls.begin(&attempt.call, id, 0);
                }
                attempt.votes.insert(node, vote);
            }
            if attempt.end.is_none() {
                let ok = attempt.votes.values().filter(|vote| **vote).count();
                let out = attempt.arrives.len();
                if ok >= MAJORITY {
                    self.end(index, true);
                } else if ok + out < MAJORITY {
                    self.end(index, false);
                }
            }
            let attempt = &mut self.attempts[index];
            for (node, _) in attempt.told.extract_if(.., |_, at| *at <= time) {
                let calls = self.calls.get_mut(&node).expect("all attempts end with a view");
                if attempt.end == Some(true) {
                    calls.complete(&attempt.call, id, attempt.at, b":1");
                } else {
                    calls.abandon(&attempt.call, id);
                }
            }
        }
        self.attempts.retain(|attempt| {
            attempt.end.is_none() || !attempt.told.is_empty() || !attempt.arrives.is_empty()
        });
    }

    fn end(&mut self, index: usize, commit: bool) {
        let live: Vec<u16> = self.calls.keys().copied().collect();
        let told =
            live.into_iter().map(|to| (to, self.cluster.nanos() + self.delay() / 8)).collect();
        let attempt = &mut self.attempts[index];
        attempt.end = Some(commit);
        attempt.told = told;
        let (call, id) = (attempt.call, attempt.id);
        if commit {
            let before = self.committed.insert((call.lease, call.sequence), id);
            assert_eq!(before, None, "{call:?} has committed twice, as {id} too");
        }
    }

    /// A view without node 1, as Meerkat installs it: all attempts have ended before it goes on.
    fn change_view(&mut self) {
        self.calls.remove(&1);
        self.cluster.crash(1);
        self.cluster.decide_role(1, Role::Down);
        for attempt in self.attempts.drain(..) {
            assert!(attempt.epoch < self.cluster.view.epoch);
            for calls in self.calls.values_mut() {
                if attempt.end == Some(true) {
                    calls.complete(&attempt.call, attempt.id, attempt.at, b":1");
                }
            }
        }
        self.calls.values_mut().for_each(ResultTracker::abandon_all);
        self.cluster.tell(2);
        self.cluster.tell(3);
    }

    fn sweep(&mut self) {
        for node in self.calls.keys().copied().collect::<Vec<u16>>() {
            let leases: Vec<LeaseId> = self.calls[&node].leases_after(None).collect();
            self.cluster.sweep(node, &leases);
        }
        for (node, verdict) in self.cluster.verdicts.drain(self.seen..) {
            assert_eq!(verdict.lost, Lost::Expired);
            if let Some(calls) = self.calls.get_mut(&node.0) {
                self.discards += usize::from(calls.discard(verdict.lease, verdict.granted));
            }
        }
        self.seen = self.cluster.verdicts.len();
    }

    fn act(&mut self, client: &mut Client) {
        for (node, tag) in core::mem::take(&mut client.renewals) {
            match self.cluster.outcome(tag) {
                Some(Answer::Granted(grant)) => {
                    client.told = grant.until;
                    self.grants.insert((node, client.lease), *grant);
                }
                Some(_) => {}
                None => client.renewals.push((node, tag)),
            }
        }
        let live: Vec<u16> = self.calls.keys().copied().collect();
        let node = live[self.cluster.rng.below(live.len() as u64) as usize];
        if self.cluster.rng.below(if client.sleepy { 400 } else { 20 }) == 0 {
            let request = Request::Renew { lease: client.lease, told: client.told, above: 0 };
            client.renewals.push((node, self.cluster.request(node, request)));
        }
        // A new call, or an old one again, as late as possible and as it was made then.
        let again = self.cluster.rng.below(3) > 0;
        let sequence = if again { self.cluster.rng.below(client.next + 1) } else { client.next };
        client.next = client.next.max(sequence + 1);
        if self.cluster.rng.below(8) == 0 {
            client.acknowledged = client.acknowledged.max(sequence);
        }
        let first_incomplete = client.acknowledged.min(sequence);
        if sequence - first_incomplete < limits::SESSION_WINDOW {
            let call = Call { lease: client.lease, sequence, first_incomplete, digest: 1 };
            self.attempt(node, call);
        }
    }
}

fn survive(seed: u64) -> (usize, usize, usize) {
    let mut run = Run::new(seed);
    run.cluster.weather = Weather { delay: 20 * MS, loss_percent: 10, repeat_percent: 5 };
    let mut clients: Vec<Client> = (0..6)
        .map(|index| {
            let node = 1 + index % 3;
            let grant = run.cluster.open(node);
            run.grants.insert((node, grant.lease), grant);
            let (lease, told) = (grant.lease, grant.until);
            let sleepy = index > 0;
            Client { lease, told, next: 0, acknowledged: 0, renewals: Vec::new(), sleepy }
        })
        .collect();
    let change_at = 200 + run.cluster.rng.below(400);
    for turn in 0..1000 {
        if turn == change_at {
            run.change_view();
        }
        for client in &mut clients {
            run.act(client);
        }
        run.deliver();
        if turn % 10 == 0 {
            run.sweep();
        }
        run.cluster.run(10 * MS);
        run.calls.values().for_each(ResultTracker::check_invariants);
    }
    (run.committed.len(), run.discards, run.refused_by_date)
}

#[test]
fn no_call_commits_twice_however_late_its_attempts_arrive() {
    let (mut committed, mut discards, mut refused_by_date) = (0, 0, 0);
    for seed in Seeds::new(0..20) {
        let seen = survive(seed);
        committed += seen.0;
        discards += seen.1;
        refused_by_date += seen.2;
    }
    println!("{committed} committed, {discards} sessions dropped, {refused_by_date} too old");
    assert!(committed > 5_000 && discards > 50 && refused_by_date > 50, "nothing was tested");
}
