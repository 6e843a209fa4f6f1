//! Two transactions at 3, 5 or 7 replicas up to the moment when some replicas are gone, and the
//! decision of the epoch change from the knowledge of the others (Meerkat §5.3.1 rule 4, N4.3,
//! N4.4).
//!
//! Replicas vote with the real checks on real records, and the real `merge` decides. Replicas
//! differ only in their knowledge, so states that a permutation of replicas maps to each other are
//! one. The coordinators are clients: they hear every vote at once, since a vote that no
//! coordinator has heard decides nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use quorate_machine::{Content, MapTable, Record as _, Table, ValueKind};
use quorate_meerkat::{
    Body, Conflict, Electorate, Groups, Item, Meta, Reason, RecordKey, Records, Report, TxnRecord,
    Write, merge, occ,
};
use quorate_types::{Epoch, MemberNumber, NodeId, NodeSet, Quorums, Timestamp, WriterId};
use stateright::{Model, Property};

use crate::explore::{Limits, Report as Found, Steps, search};
use crate::world::print_of;

/// A key, the version that a transaction read of it, if any, and whether the transaction writes it.
type Touch = (&'static str, Option<u64>, bool);

/// Two transactions that may conflict.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Versions at the beginning.
    pub(crate) held: &'static [(&'static str, u64)],
    /// Timestamp and sets.
    pub(crate) txns: [(u64, &'static [Touch]); 2],
}

/// The two scenarios in which literal re-validation loses an announced commit (Meerkat N4.3), and
/// two in which the transactions conflict in truth.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "overwritten later",
        held: &[("k", 10), ("m", 5)],
        txns: [(20, &[("k", Some(10), false), ("m", None, true)]), (30, &[("k", None, true)])],
    },
    Case {
        name: "overwritten before",
        held: &[("k", 100), ("m", 5)],
        txns: [
            (50, &[("k", None, true), ("m", None, true)]),
            (200, &[("k", Some(100), false), ("z", None, true)]),
        ],
    },
    Case {
        name: "both increment",
        held: &[("k", 10)],
        txns: [(20, &[("k", Some(10), true)]), (30, &[("k", Some(10), true)])],
    },
    Case {
        name: "write skew",
        held: &[("k", 10), ("m", 5)],
        txns: [
            (20, &[("k", Some(10), false), ("m", None, true)]),
            (30, &[("m", Some(5), false), ("k", None, true)]),
        ],
    },
];

fn id(version: u64) -> Timestamp {
    Timestamp::new(version, WriterId::new(MemberNumber(1), 0))
}

fn body(touches: &[Touch]) -> Vec<u8> {
    let content = Content { bytes: b"v", kind: ValueKind::String, expire_at: None };
    let items: Vec<Item<'_>> = touches
        .iter()
        .map(|(key, base, writes)| Item {
            key: key.as_bytes(),
            base: base.map(id),
            absent: false,
            write: writes.then_some(Write::Set(content)),
        })
        .collect();
    Body::encode(&items)
}

/// The reason of every refusal: no check here depends on the true reason.
const LOST: Conflict = Conflict { reason: Reason::StaleRead, with: Timestamp::ZERO };

/// The data and the knowledge of one replica.
#[derive(Clone, Hash)]
struct Replica {
    table: MapTable<Meta>,
    records: Records,
}

/// The replicas, and the proposals and announcements of the two coordinators.
#[derive(Clone)]
pub(crate) struct State {
    /// In order of their prints: permutations of replicas are one state.
    replicas: Vec<(u64, Arc<Replica>)>,
    /// The proposals on the slow path.
    proposed: [Option<bool>; 2],
    /// The announced ends.
    ends: [Option<bool>; 2],
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.replicas.iter().for_each(|(print, _)| print.hash(state));
        (self.proposed, self.ends).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        print_of(self) == print_of(other)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, replica) in &self.replicas {
            for (key, record) in replica.records.iter() {
                let vote = record.vote.map(|vote| vote.is_ok());
                let (accepted, decision) = (record.accepted, record.decision);
                write!(f, "[{} vote {vote:?} {accepted:?} {decision:?}]", key.version)?;
            }
            write!(f, " | ")?;
        }
        write!(f, "proposed {:?}, announced {:?}", self.proposed, self.ends)
    }
}

/// An action. A replica is named by its place among those that differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Vote { replica: usize, txn: usize },
    Propose { txn: usize, ok: bool },
    Accept { replica: usize, txn: usize },
    Announce { txn: usize, commit: bool },
    Tell { replica: usize, txn: usize },
}

/// Explores all cases with this number of replicas, and adds up their states.
pub(crate) fn explore(
    name: &'static str,
    replicas: u16,
    slow: usize,
    refused: bool,
    limits: Limits,
) -> Found {
    let mut sum: Option<Found> = None;
    for case in 0..CASES.len() {
        let votes = Votes { replicas, case, slow, refused, merged: Arc::default() };
        let words = |_: &str, path: Steps<Votes>| votes.in_words(path);
        let report = search(name, &votes, None, limits, words);
        sum = Some(match sum {
            None => report,
            Some(so_far) => Found {
                states: so_far.states + report.states,
                steps: so_far.steps + report.steps,
                depth: so_far.depth.max(report.depth),
                seconds: so_far.seconds + report.seconds,
                violation: so_far.violation.or(report.violation),
                cut: so_far.cut || report.cut,
                ..so_far
            },
        });
    }
    sum.expect("there are cases")
}

/// A number of replicas, and a case.
#[derive(Clone)]
pub(crate) struct Votes {
    pub(crate) replicas: u16,
    pub(crate) case: usize,
    /// Transactions that may take the slow path.
    pub(crate) slow: usize,
    /// Whether the first transaction has a part in another partition, of the same replicas, which
    /// have all refused it there.
    pub(crate) refused: bool,
    /// The decisions of merges by the hash of the replicas left: most states share them.
    merged: Arc<Mutex<HashMap<u64, [bool; 2]>>>,
}

impl Votes {
    fn in_words(&self, path: Steps<Self>) -> Vec<String> {
        let mut words = vec![format!("case \"{}\"", CASES[self.case].name)];
        for (state, action) in path {
            match action {
                Some(action) => words.push(format!("{action:?}")),
                None => {
                    words.push(format!("{state:?}"));
                    let reason = self.check(&state).err().unwrap_or_default();
                    words.push(format!("VIOLATED: {reason}"));
                }
            }
        }
        words
    }

    fn quorums(&self) -> Quorums {
        Quorums::new(usize::from(self.replicas), usize::from(self.replicas), false)
    }

    fn txn(&self, txn: usize) -> (Timestamp, Vec<u8>) {
        let (version, touches) = CASES[self.case].txns[txn];
        (id(version), body(touches))
    }

    fn key(&self, txn: usize) -> RecordKey {
        RecordKey::new(id(CASES[self.case].txns[txn].0), 0)
    }

    fn is_refused(&self, txn: usize) -> bool {
        self.refused && txn == 0
    }

    /// The partitions that take part.
    fn participants(&self, txn: usize) -> u64 {
        if self.is_refused(txn) { 0b11 } else { 0b01 }
    }

    /// A transaction's OK and ABORT votes, and how many replicas took its proposal.
    fn count(&self, state: &State, txn: usize) -> (usize, usize, usize) {
        let key = self.key(txn);
        let mut counts = (0, 0, 0);
        for record in state.replicas.iter().filter_map(|(_, replica)| replica.records.get(&key)) {
            counts.0 += usize::from(record.vote == Some(Ok(())));
            counts.1 += usize::from(record.vote.is_some_and(|vote| vote.is_err()));
            counts.2 += usize::from(record.accepted.is_some());
        }
        counts
    }

    fn act(&self, replica: &mut Replica, action: Action, state: &State) {
        let (Action::Vote { txn, .. } | Action::Accept { txn, .. } | Action::Tell { txn, .. }) =
            action
        else {
            return;
        };
        let (id, body) = self.txn(txn);
        let items = Body::trusted(&body);
        let participants = self.participants(txn);
        let blank = TxnRecord { participants, body: body.clone(), ..TxnRecord::default() };
        let (record, _) = replica.records.get_or_insert_with(self.key(txn), || blank.clone());
        match action {
            Action::Vote { .. } => {
                // No check here depends on the reason.
                let vote = occ::validate(&mut replica.table, id, items, |_| 0);
                record.vote = Some(vote.map_err(|_| LOST));
                record.registered = vote.is_ok();
            }
            Action::Accept { .. } => {
                record.accepted = state.proposed[txn].map(|ok| (0, ok));
            }
            // A decision.
            _ => {
                // Beside a decision, votes and proposals say nothing.
                let commit = state.ends[txn];
                *record = TxnRecord { decision: commit, ..blank };
                if commit == Some(true) {
                    occ::apply(&mut replica.table, id, items);
                } else {
                    occ::release(&mut replica.table, id, items);
                }
            }
        }
    }

    fn decide_by_merge(&self, state: &mut State) {
        state.replicas.sort_by_key(|(print, _)| *print);
    }

    /// The merge decides what was announced, whichever replicas are left; and no transaction that
    /// conflicts with a committed one commits.
    fn check(&self, state: &State) -> Result<(), String> {
        for left in 0u64..1 << self.replicas {
            let count = left.count_ones() as usize;
            if !self.quorums().is_recoverable(count) {
                continue;
            }
            let all = state.replicas.iter().enumerate();
            let chosen: Vec<_> = { all }.filter(|(at, _)| left & 1 << at != 0).collect();
            let prints: Vec<u64> = chosen.iter().map(|(_, (print, _))| *print).collect();
            let print = print_of(&prints);
            let known = self.merged.lock().expect("nobody panics with it").get(&print).copied();
            let commits = match known {
                Some(commits) => commits,
                None => self.merge(chosen.iter().map(|(_, (_, replica))| &**replica))?,
            };
            if known.is_none() {
                self.merged.lock().expect("nobody panics with it").insert(print, commits);
            }
            for txn in [0, 1] {
                if let Some(end) = state.ends[txn].filter(|end| *end != commits[txn]) {
                    return Err(format!(
                        "transaction {txn} was announced as {end} and the merge of {count} \
                         replicas says {}",
                        commits[txn]
                    ));
                }
            }
        }
        Ok(())
    }

    /// The transactions that commit if these replicas are left. Two that conflict never do.
    fn merge<'a>(&self, left: impl Iterator<Item = &'a Replica>) -> Result<[bool; 2], String> {
        let all: NodeSet = (1..=self.replicas).map(NodeId).collect();
        let report = |(at, replica): (u16, &Replica)| {
            let mut records = replica.records.clone();
            if self.refused {
                let (participants, vote) = (self.participants(0), Some(Err(LOST)));
                let record = TxnRecord { participants, vote, ..TxnRecord::default() };
                records.insert(RecordKey { partition: 1, ..self.key(0) }, record);
            }
            let electorate = Electorate { voters: all, active: all };
            let last_normal = Epoch(1);
            (NodeId(at), Report { last_normal, electorate, records, ..Report::default() })
        };
        let reports: BTreeMap<NodeId, Report> = (1..).zip(left).map(report).collect();
        let replicas = if self.refused { &[None, None][..] } else { &[None] };
        let merged = merge(&reports, Groups { replicas, unanimous: false, lost: 0 })
            .map_err(|few| format!("{few:?} is not enough, and so many are"))?;
        let commits = [0, 1]
            .map(|txn| merged.settled.get(&self.key(txn)).is_some_and(|settled| settled.commit));
        let (first, second) = (self.txn(0), self.txn(1));
        let pair = [(first.0, Body::trusted(&first.1)), (second.0, Body::trusted(&second.1))];
        if commits == [true, true] && occ::conflicts_exactly(pair[0], pair[1]) {
            return Err("both commit and conflict".to_owned());
        }
        Ok(commits)
    }
}

impl Model for Votes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut table = MapTable::<Meta>::default();
        for (key, version) in CASES[self.case].held {
            let handle = table.find_or_insert(key.as_bytes());
            let mut record = table.lock(handle);
            record.set_meta(Meta { wts: id(*version), rts: Timestamp::ZERO });
            record.set_content(Content { bytes: b"v", kind: ValueKind::String, expire_at: None });
        }
        // Insert the last key, so that the order in which replicas first see keys makes no
        // difference.
        table.find_or_insert(b"z");
        let replica = Arc::new(Replica { table, records: Records::new() });
        let print = print_of(&*replica);
        let replicas = vec![(print, replica); usize::from(self.replicas)];
        vec![State { replicas, proposed: [None; 2], ends: [None; 2] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let quorums = self.quorums();
        for txn in [0, 1] {
            let key = self.key(txn);
            let (ok, abort, accepted) = self.count(state, txn);
            for at in 0..state.replicas.len() {
                let (print, replica) = &state.replicas[at];
                if at > 0 && state.replicas[at - 1].0 == *print {
                    continue;
                }
                let record = replica.records.get(&key);
                let decided = record.is_some_and(|record| record.decision.is_some());
                let took = record.is_some_and(|record| record.accepted.is_some());
                if record.is_none() {
                    actions.push(Action::Vote { replica: at, txn });
                }
                if state.proposed[txn].is_some() && !took && !decided {
                    actions.push(Action::Accept { replica: at, txn });
                }
                if state.ends[txn].is_some() && !decided {
                    actions.push(Action::Tell { replica: at, txn });
                }
            }
            if state.ends[txn].is_some() {
                continue;
            }
            let refused = self.is_refused(txn);
            if refused {
                actions.push(Action::Announce { txn, commit: false });
            }
            if let Some(ok) = state.proposed[txn] {
                if accepted >= quorums.majority && !refused {
                    actions.push(Action::Announce { txn, commit: ok });
                }
                continue;
            }
            if ok >= quorums.fast && !refused {
                actions.push(Action::Announce { txn, commit: true });
            }
            if !refused && (abort >= quorums.fast || quorums.abort_is_final(abort)) {
                actions.push(Action::Announce { txn, commit: false });
            }
            if txn < self.slow && ok + abort >= quorums.majority {
                actions.push(Action::Propose { txn, ok: ok >= quorums.majority });
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Propose { txn, ok } => next.proposed[txn] = Some(ok),
            Action::Announce { txn, commit } => next.ends[txn] = Some(commit),
            Action::Vote { replica, .. }
            | Action::Accept { replica, .. }
            | Action::Tell { replica, .. } => {
                let mut changed = (*state.replicas[replica].1).clone();
                self.act(&mut changed, action, state);
                next.replicas[replica] = (print_of(&changed), Arc::new(changed));
                self.decide_by_merge(&mut next);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("what was announced stands", |votes: &Self, state| {
            votes.check(state).is_ok()
        })]
    }
}
