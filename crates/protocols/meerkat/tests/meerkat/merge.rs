//! What an epoch change makes of what the replicas knew, as a function. Whatever member is lost,
//! a decision stays, and no two transactions that commit conflict.

use std::collections::BTreeMap;

use quorate_machine::{MapTable, Record as _, Rng, Table};
use quorate_meerkat::{
    Body, Conflict, Electorate, Groups, Merged, Meta, Reason, RecordKey, Records, Report, Settled,
    TooFew, TxnRecord, Vote, merge, occ,
};
use quorate_types::{Epoch, NodeId, NodeSet, Quorums, Timestamp, WriterId};

use crate::support::body_bytes;

const EPOCH: Epoch = Epoch(4);

fn nodes(count: usize) -> NodeSet {
    (1..=count as u16).map(NodeId).collect()
}

fn groups(unanimous: bool) -> Groups<'static> {
    Groups { replicas: &[None], unanimous, lost: 0 }
}

fn id(version: u64) -> Timestamp {
    Timestamp::new(version, WriterId(7))
}

fn key(id: Timestamp) -> RecordKey {
    RecordKey::new(id, 0)
}

/// A report of somebody who worked in the last epoch.
fn report(count: usize, records: Records) -> Report {
    let electorate = Electorate { voters: nodes(count), active: nodes(count) };
    Report { last_normal: EPOCH, electorate, records, ..Report::default() }
}

fn lost(with: Timestamp) -> Vote {
    Err(Conflict { reason: Reason::StaleRead, with })
}

fn voted(body: &[u8], vote: Vote) -> TxnRecord {
    TxnRecord { participants: 1, body: body.to_vec(), vote: Some(vote), ..TxnRecord::default() }
}

fn committed(merged: &Merged, id: Timestamp) -> Option<bool> {
    merged.settled.get(&key(id)).map(|settled| settled.commit)
}

/// Every set of replicas whose reports may be merged.
fn survivors(count: usize, quorums: Quorums) -> impl Iterator<Item = NodeSet> {
    let all = (0..1u64 << count).map(move |bits| NodeSet::from_bits(bits << 1));
    all.filter(move |set| quorums.is_recoverable(set.len()))
}

/// All ways in which so many replicas can vote OK, vote ABORT or not at all.
fn vectors(count: usize) -> impl Iterator<Item = Vec<Option<bool>>> {
    (0..3usize.pow(count as u32)).map(move |mut number| {
        let mut vector = Vec::new();
        for _ in 0..count {
            vector.push([None, Some(true), Some(false)][number % 3]);
            number /= 3;
        }
        vector
    })
}

#[test]
fn no_merge_contradicts_a_fast_decision() {
    let body = body_bytes(&[("k", None, Some("v"))]);
    for (count, unanimous) in [(3, true), (3, false), (5, true), (5, false), (7, false)] {
        let quorums = Quorums::new(count, count, unanimous);
        for vector in vectors(count) {
            let votes = |wanted| vector.iter().filter(|vote| **vote == Some(wanted)).count();
            let (ok, abort) = (votes(true), votes(false));
            let decided = if ok >= quorums.fast {
                true
            } else if abort >= quorums.fast || quorums.abort_is_final(abort) {
                false
            } else {
                continue;
            };
            for set in survivors(count, quorums) {
                let reports = set.into_iter().map(|node| {
                    let vote = vector[usize::from(node.0) - 1];
                    let vote = vote.map(|ok| if ok { Ok(()) } else { lost(id(9)) });
                    let records = vote.map(|vote| (key(id(5)), voted(&body, vote)));
                    (node, report(count, records.into_iter().collect()))
                });
                let reports: BTreeMap<NodeId, Report> = reports.collect();
                let merged = merge(&reports, groups(unanimous)).expect("so many suffice");
                let found = committed(&merged, id(5)).unwrap_or(false);
                assert_eq!(found, decided, "{vector:?}, of which {set:?} are left");
            }
        }
    }
}

/// A guest may have told each replica other sets. An end that a replica knows has its own, and so has
/// what a backup coordinator has had accepted.
#[test]
fn a_guest_that_told_each_other_sets_has_done_what_was_accepted_or_installed() {
    let bodies = ["one", "two", "three"].map(|value| body_bytes(&[("k", None, Some(value))]));
    let told = |index: usize| voted(&bodies[index], Ok(()));
    for (accepted, decided, done) in [
        ([0, 65, 130], None, 2),
        ([130, 65, 0], None, 0),
        ([65, 130, 0], None, 1),
        ([0, 0, 0], Some(1), 1),
        ([65, 0, 0], Some(2), 2),
    ] {
        let reports = (0..3).map(|index| {
            let view = accepted[index];
            let decision = (decided == Some(index)).then_some(true);
            let accepted = (view > 0).then_some((view, true));
            let record = TxnRecord { accepted, decision, ..told(index) };
            (NodeId(index as u16 + 1), report(3, [(key(id(5)), record)].into()))
        });
        let merged = merge(&reports.collect(), groups(true)).expect("all are left");
        let settled = &merged.settled[&key(id(5))];
        assert!(settled.commit);
        assert_eq!(settled.body, bodies[done], "{accepted:?} {decided:?}");
    }
}

#[test]
fn no_merge_contradicts_a_slow_decision() {
    let body = body_bytes(&[("k", None, Some("v"))]);
    for (count, unanimous) in [(3, true), (5, false), (7, false)] {
        let quorums = Quorums::new(count, count, unanimous);
        let majorities = survivors(count, quorums).filter(|set| set.len() == quorums.majority);
        for majority in majorities {
            for (decided, earlier) in [(true, false), (false, true)] {
                for set in survivors(count, quorums) {
                    // A majority took the proposal of view 70; the others an opposite one before.
                    let reports = set.into_iter().map(|node| {
                        let latest = majority.contains(node);
                        let accepted = if latest { (70, decided) } else { (6, earlier) };
                        let record = TxnRecord { accepted: Some(accepted), ..voted(&body, Ok(())) };
                        (node, report(count, [(key(id(5)), record)].into()))
                    });
                    let merged = merge(&reports.collect(), groups(unanimous)).expect("enough");
                    assert_eq!(committed(&merged, id(5)), Some(decided), "{majority:?}, {set:?}");
                }
            }
        }
    }
}

#[test]
fn a_decision_that_one_knows_is_the_end() {
    let body = body_bytes(&[("k", None, Some("v"))]);
    let known = TxnRecord { decision: Some(true), ..voted(&body, Ok(())) };
    let reports = [
        (NodeId(1), report(3, [(key(id(5)), known)].into())),
        (NodeId(2), report(3, [(key(id(5)), voted(&body, lost(id(9))))].into())),
        (NodeId(3), report(3, [(key(id(5)), voted(&body, lost(id(9))))].into())),
    ];
    let merged = merge(&reports.into(), groups(true)).expect("all are there");
    assert_eq!(committed(&merged, id(5)), Some(true));
    assert_eq!(merged.settled[&key(id(5))].body, body, "for those who lack it");
}

#[test]
fn too_few_replicas_are_no_epoch() {
    for (count, replies) in [(3, 1), (5, 2), (7, 3)] {
        let some = nodes(replies).into_iter().map(|node| (node, report(count, Records::new())));
        let few = merge(&some.collect(), groups(true)).expect_err("too few");
        assert_eq!(few, TooFew { partition: 0, replies, live: count });
    }
}

#[test]
fn only_the_latest_epoch_counts() {
    // N4.2c. Node 1 alone has adopted epoch 5, in which the transaction was aborted; the votes
    // of 2 and 3 are of epoch 4.
    let body = body_bytes(&[("k", None, Some("v"))]);
    let adopted = TxnRecord { decision: Some(false), participants: 1, ..TxnRecord::default() };
    let mut later = report(3, [(key(id(5)), adopted)].into());
    later.last_normal = Epoch(5);
    let old = report(3, [(key(id(5)), voted(&body, Ok(())))].into());
    for others in [&[2u16, 3][..], &[3]] {
        let mut reports = BTreeMap::from([(NodeId(1), later.clone())]);
        reports.extend(others.iter().map(|node| (NodeId(*node), old.clone())));
        // One is enough, since nobody can have acted on an epoch that 3 has not adopted.
        let merged = merge(&reports, groups(true)).expect("what 1 keeps is all there is");
        assert_eq!(committed(&merged, id(5)), Some(false));
    }
}

/// One that came back from a log that may have lost the whole epoch has not said that it did nothing in it.
/// It has brought back all that it has, though.
#[test]
fn who_may_have_forgotten_an_epoch_proves_nothing_about_it() {
    let body = body_bytes(&[("k", None, Some("v"))]);
    for (count, forgetful, is_enough) in [(3, 1, true), (3, 2, true), (5, 1, false), (5, 2, true)] {
        let ok = Records::from([(key(id(5)), voted(&body, Ok(())))]);
        let later = Report { last_normal: Epoch(5), ..report(count, ok) };
        let old = Report { doubtful: true, ..report(count, Records::new()) };
        let mut reports = BTreeMap::from([(NodeId(1), later)]);
        reports.extend((0..forgetful).map(|index| (NodeId(index + 2), old.clone())));
        match merge(&reports, groups(true)) {
            Ok(merged) => {
                assert!(is_enough, "{forgetful} of {count}");
                assert_eq!(
                    committed(&merged, id(5)),
                    Some(true),
                    "it may have been told to a client"
                );
            }
            Err(few) => {
                assert!(!is_enough, "{forgetful} of {count}");
                let replies = usize::from(forgetful) + 1;
                assert_eq!(few, TooFew { partition: 0, replies, live: count });
            }
        }
    }
}

#[test]
fn what_only_an_earlier_epoch_knows_is_over() {
    // N4.2c, N4.2i. The record of epoch 5 came about without 2 and 3, who were out: nothing of
    // what they voted on in epoch 4 was decided, and nothing of it will be.
    let body = body_bytes(&[("k", None, Some("v"))]);
    let mut later = report(3, Records::new());
    later.last_normal = Epoch(5);
    let old = report(3, [(key(id(5)), voted(&body, Ok(())))].into());
    let reports = [(NodeId(1), later), (NodeId(2), old.clone()), (NodeId(3), old)].into();
    let merged = merge(&reports, groups(true)).expect("what 1 keeps is all there is");
    assert_eq!(committed(&merged, id(5)), None);
}

#[test]
fn what_a_joining_replica_says_is_no_vote() {
    // N4.2d. 3 was copying in this epoch. 1 said OK and 2 was not asked.
    let body = body_bytes(&[("k", None, Some("v"))]);
    let electorate = Electorate { voters: nodes(3), active: nodes(2) };
    let report = |records| Report { electorate, ..report(3, records) };
    let ok = || Records::from([(key(id(5)), voted(&body, Ok(())))]);
    let reports =
        [(NodeId(1), report(ok())), (NodeId(2), report(Records::new())), (NodeId(3), report(ok()))];
    let merged = merge(&reports.into(), groups(true)).expect("both active ones are there");
    assert_eq!(committed(&merged, id(5)), Some(false));
}

#[test]
fn what_may_have_been_acknowledged_outlives_replicas_that_are_given_up() {
    // Its client was told that it committed, by OKs of all, and nobody who is left knows that.
    let (told, other) = (id(5), id(6));
    let write = body_bytes(&[("k", None, Some("v"))]);
    let read = body_bytes(&[("k", Some(id(1)), Some("w"))]);
    for (count, left) in [(3, 1), (5, 1), (5, 2)] {
        let given_up = nodes(count).difference(nodes(left));
        let report = |records| Report { given_up, ..report(count, records) };
        let ok = || Records::from([(key(told), voted(&write, Ok(())))]);
        let left = || nodes(left).into_iter();
        let all_ok = left().map(|node| (node, report(ok()))).collect();
        let merged = merge(&all_ok, groups(false)).expect("the others are given up");
        assert_eq!(committed(&merged, told), Some(true), "{count} replicas");
        let none = |node| (node, report([(key(told), voted(&write, lost(id(4))))].into()));
        let merged = merge(&left().map(none).collect(), groups(false)).expect("as before");
        assert_eq!(committed(&merged, told), Some(false), "no replica that is left has said OK");
        if left().count() == 2 {
            // The other one votes for what conflicts with it.
            let mut odd: BTreeMap<_, _> = all_ok;
            let theirs = Records::from([(key(other), voted(&read, Ok(())))]);
            odd.insert(NodeId(2), report(theirs));
            let merged = merge(&odd, groups(false)).expect("as before");
            let ends = [told, other].map(|id| committed(&merged, id));
            assert_eq!(ends, [Some(true), Some(false)], "not both");
        }
        let without = [(NodeId(1), self::report(count, ok()))].into();
        assert!(merge(&without, groups(false)).is_err(), "nobody has given the others up");
    }
}

/// Partition 0 is at nodes 1 to 3, and partition 1 at nodes 4 to 6.
#[test]
fn a_partition_whose_data_is_given_up_has_no_say() {
    let half = |from: usize| Some((from..from + 3).map(|node| NodeId(node as u16)).collect());
    let replicas = [half(1), half(4)];
    let groups = |lost| Groups { replicas: &replicas, unanimous: true, lost };
    let body = body_bytes(&[("k", None, Some("v"))]);
    let of_both = |record| TxnRecord { participants: 3, ..record };
    let at = |partition| RecordKey::new(id(5), partition);
    let ok = || Records::from([(at(1), of_both(voted(&body, Ok(()))))]);
    let by = |records: [Records; 3]| -> BTreeMap<_, _> {
        let reports = (4..).map(NodeId).zip(records);
        reports.map(|(node, records)| (node, report(6, records))).collect()
    };
    let end = |reports| {
        let merged = merge(&reports, groups(1)).expect("partition 0 is given up");
        merged.settled.get(&at(1)).map(|settled| settled.commit)
    };
    let few = merge(&by([ok(), ok(), ok()]), groups(0)).expect_err("nobody has given it up");
    assert_eq!((few.partition, few.replies, few.live), (0, 0, 3));
    assert_eq!(end(by([ok(), ok(), ok()])), Some(true), "a client may have been told so");
    assert_eq!(end(by([ok(), Records::new(), Records::new()])), Some(false), "none was");
    // Node 4 has coordinated it, or somebody has told it.
    let aborted = TxnRecord { decision: Some(false), ..of_both(TxnRecord::default()) };
    let mut knows = ok();
    knows.insert(at(0), aborted);
    assert_eq!(end(by([knows, ok(), ok()])), Some(false), "that is how it ended");
    // One active replica of partition 0 was too few to let anything pass.
    let mut reports = by([ok(), ok(), ok()]);
    let active = nodes(6).without(NodeId(2)).without(NodeId(3));
    reports.values_mut().for_each(|report| report.electorate.active = active);
    assert_eq!(end(reports), Some(false), "it can't have committed");
    // What took part in nothing else is lost.
    let alone = TxnRecord { participants: 1, ..voted(&body, Ok(())) };
    let told = [(at(0), alone)].into();
    let merged = merge(&by([told, Records::new(), Records::new()]), groups(1)).expect("as before");
    assert!(!merged.settled[&at(0)].commit);
}

#[test]
fn what_another_partition_has_aborted_is_in_nobodys_way() {
    // Five replicas, four are a fast quorum. T2 had OKs of 1, 2 and 3 in partition 0, where 3 has
    // taken the proposal, and was aborted by partition 1. Then T, which conflicts with it, had OKs of
    // 1, 2, 4 and 5, and its client was told. 1 and 2 crash.
    let (t2, t) = (id(30), id(40));
    let write = body_bytes(&[("k", None, Some("v"))]);
    let read = body_bytes(&[("k", Some(id(10)), None), ("l", None, Some("v"))]);
    let both = |record| TxnRecord { participants: 3, ..record };
    let accepted = TxnRecord { accepted: Some((0, true)), ..both(voted(&write, Ok(()))) };
    let refused = || (RecordKey::new(t2, 1), both(voted(&write, lost(id(9)))));
    let taken = |records| report(5, Records::from(records));
    let late = || taken([refused(), (key(t), voted(&read, Ok(())))]);
    let reports = [
        (NodeId(3), taken([refused(), (key(t2), accepted)])),
        (NodeId(4), late()),
        (NodeId(5), late()),
    ];
    let groups = Groups { replicas: &[None, None], unanimous: false, lost: 0 };
    let merged = merge(&reports.into(), groups).expect("three of five");
    assert_eq!(committed(&merged, t2), Some(false));
    assert_eq!(committed(&merged, t), Some(true), "its client was told so");
}

#[test]
fn floors_and_clocks_are_the_largest() {
    let mut reports = BTreeMap::new();
    for (node, floor, clock) in [(1, 5, 90), (2, 70, 10), (3, 6, 20)] {
        let report = Report { floor, clock, ..report(3, Records::new()) };
        reports.insert(NodeId(node), report);
    }
    let merged = merge(&reports, groups(true)).expect("all are there");
    assert_eq!((merged.floor, merged.clock), (70, 90));
}

// --- candidates ----------------------------------------------------------------------------------

/// One replica of a small world in which votes and decisions come in any order.
#[derive(Default)]
struct Replica {
    table: MapTable<Meta>,
    records: Records,
}

struct World {
    rng: Rng,
    quorums: Quorums,
    replicas: Vec<Replica>,
    bodies: BTreeMap<Timestamp, Vec<u8>>,
    /// Decided and perhaps told to a client.
    ends: BTreeMap<Timestamp, bool>,
}

impl World {
    fn new(seed: u64, count: usize, unanimous: bool) -> Self {
        Self {
            rng: Rng::new(seed),
            quorums: Quorums::new(count, count, unanimous),
            replicas: (0..count).map(|_| Replica::default()).collect(),
            bodies: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }

    fn replica(&mut self) -> usize {
        self.rng.below(self.replicas.len() as u64) as usize
    }

    /// A transaction over two keys as some replica knows them, by a clock that lags or leads.
    fn begin(&mut self) {
        let at = self.replica();
        let mut items = Vec::new();
        let mut newest = 0;
        for name in ["a", "b"] {
            let record = self.replicas[at].table.lock_existing(name.as_bytes());
            let base = record.map_or(Timestamp::ZERO, |record| record.meta().wts);
            let (read, write) = [(true, false), (true, true), (false, true), (false, false)]
                [self.rng.below(4) as usize];
            if read {
                newest = newest.max(base.version);
            }
            if read || write {
                items.push((name, read.then_some(base), write.then_some("v")));
            }
        }
        if !items.iter().any(|(_, _, write)| write.is_some()) {
            return;
        }
        let version = newest + 1 + self.rng.below(40);
        let id = Timestamp::new(version, WriterId(self.bodies.len() as u32 + 1));
        self.bodies.insert(id, body_bytes(&items));
    }

    fn pick(&mut self) -> Option<Timestamp> {
        let count = self.bodies.len() as u64;
        let at = self.rng.below(count.max(1)) as usize;
        self.bodies.keys().nth(at).copied()
    }

    fn vote(&mut self, at: usize, id: Timestamp) {
        let Replica { table, records } = &mut self.replicas[at];
        records.get_or_insert_with(key(id), || {
            let body = &self.bodies[&id];
            let items = Body::check(body).expect("just made");
            let vote = occ::validate(table, id, items, |_| 0);
            TxnRecord { registered: vote.is_ok(), ..voted(body, vote) }
        });
    }

    /// What the coordinator of a transaction may do with the votes.
    fn conclude(&mut self, id: Timestamp) {
        if self.ends.contains_key(&id) {
            return;
        }
        let record = |replica: &Replica| replica.records.get(&key(id)).cloned();
        let known: Vec<_> = self.replicas.iter().map(record).collect();
        let votes = |ok: bool| {
            let voted = known.iter().flatten().filter_map(|record| record.vote);
            voted.filter(|vote| vote.is_ok() == ok).count()
        };
        let proposed = known.iter().flatten().find_map(|record| record.accepted);
        if let Some((_, ok)) = proposed {
            // More of them take the proposal, and a majority ends it.
            let at = self.replica();
            let body = &self.bodies[&id];
            let (record, _) = self.replicas[at].records.get_or_insert_with(key(id), || TxnRecord {
                participants: 1,
                body: body.clone(),
                ..TxnRecord::default()
            });
            record.accepted = Some((0, ok));
            let accepted = |replica: &&Replica| {
                replica.records.get(&key(id)).is_some_and(|record| record.accepted.is_some())
            };
            if self.replicas.iter().filter(accepted).count() >= self.quorums.majority {
                self.ends.insert(id, ok);
            }
        } else if votes(true) >= self.quorums.fast {
            self.ends.insert(id, true);
        } else if votes(false) >= self.quorums.fast || self.quorums.abort_is_final(votes(false)) {
            self.ends.insert(id, false);
        } else if votes(true) + votes(false) >= self.quorums.majority && self.rng.chance(1, 6) {
            let ok = votes(true) >= self.quorums.majority;
            let at = known.iter().position(|record| record.is_some()).expect("somebody voted");
            let record = self.replicas[at].records.get_mut(&key(id)).expect("it has voted");
            record.accepted = Some((0, ok));
        }
    }

    fn tell(&mut self, at: usize, id: Timestamp) {
        let Some(&commit) = self.ends.get(&id) else { return };
        let Replica { table, records } = &mut self.replicas[at];
        let body = &self.bodies[&id];
        let items = Body::check(body).expect("just made");
        let (record, _) = records.get_or_insert_with(key(id), || TxnRecord {
            participants: 1,
            body: body.clone(),
            ..TxnRecord::default()
        });
        if record.decision.is_none() {
            record.decision = Some(commit);
            record.registered = false;
            if commit {
                occ::apply(table, id, items);
            } else {
                occ::release(table, id, items);
            }
        }
    }

    fn step(&mut self) {
        if self.bodies.len() < 6 && self.rng.chance(1, 8) {
            return self.begin();
        }
        let (at, Some(id)) = (self.replica(), self.pick()) else { return };
        match self.rng.below(4) {
            0..=1 => self.vote(at, id),
            2 => self.conclude(id),
            _ => self.tell(at, id),
        }
    }

    /// The merge of what some replicas know.
    fn merge(&self, set: NodeSet, unanimous: bool) -> Merged {
        let count = self.replicas.len();
        let reports = set.into_iter().map(|node| {
            let records = self.replicas[usize::from(node.0) - 1].records.clone();
            (node, report(count, records))
        });
        merge(&reports.collect(), groups(unanimous)).expect("so many suffice")
    }
}

/// Whether one reads what the other overwrites in between.
fn conflict(a: Timestamp, a_body: &[u8], b: Timestamp, b_body: &[u8]) -> bool {
    let (a_body, b_body) = (Body::check(a_body), Body::check(b_body));
    let hits = |reader: Timestamp, reads: Body<'_>, writer: Timestamp, writes: Body<'_>| {
        reads.iter().any(|read| {
            let between = read.base.is_some_and(|base| base < writer && writer < reader);
            between && writes.iter().any(|item| item.key == read.key && item.write.is_some())
        })
    };
    let (a_body, b_body) = (a_body.expect("just made"), b_body.expect("just made"));
    hits(a, a_body, b, b_body) || hits(b, b_body, a, a_body)
}

#[test]
fn what_was_decided_stands_and_nothing_else_conflicts_with_it() {
    let mut rescued = 0;
    for seed in 0..3_000 {
        let (count, unanimous) = [(3, true), (5, false), (7, false), (5, true)][seed as usize % 4];
        let mut world = World::new(seed, count, unanimous);
        for _ in 0..20 + seed % 70 {
            world.step();
        }
        for set in survivors(count, world.quorums) {
            let merged = world.merge(set, unanimous);
            for (id, commit) in &world.ends {
                let found = committed(&merged, *id).unwrap_or(false);
                assert_eq!(found, *commit, "seed {seed}: {id:?} when {set:?} are left");
            }
            let won: Vec<Timestamp> = merged
                .settled
                .keys()
                .map(RecordKey::id)
                .filter(|id| committed(&merged, *id) == Some(true))
                .collect();
            for (at, a) in won.iter().enumerate() {
                for b in &won[..at] {
                    let clash = conflict(*a, &world.bodies[a], *b, &world.bodies[b]);
                    assert!(!clash, "seed {seed}: {a:?} and {b:?} when {set:?} are left");
                }
                let ok = set.into_iter().filter(|node| {
                    let records = &world.replicas[usize::from(node.0) - 1].records;
                    records.get(&key(*a)).is_some_and(|record| record.vote == Some(Ok(())))
                });
                rescued += u64::from(ok.count() < world.quorums.majority);
            }
        }
    }
    assert!(rescued > 1000, "few transactions needed the exact predicate: {rescued}");
}

// --- encodings -----------------------------------------------------------------------------------

#[test]
fn reports_and_merged_records_come_back_and_cuts_are_noticed() {
    let body = body_bytes(&[("read", Some(id(3)), None), ("both", Some(id(4)), Some("v"))]);
    let records: Records = [
        (key(id(5)), voted(&body, Ok(()))),
        (key(id(6)), voted(&body, lost(id(8)))),
        (key(id(7)), TxnRecord { accepted: Some((70, true)), ..voted(&body, Ok(())) }),
        (key(id(8)), TxnRecord { accepted: Some((6, false)), ..TxnRecord::default() }),
        (key(id(9)), TxnRecord { decision: Some(true), ..voted(&body, Ok(())) }),
        (RecordKey::new(id(9), 3), TxnRecord { decision: Some(false), ..TxnRecord::default() }),
    ]
    .into();
    let report = Report { floor: 11, installed: 10, clock: 12, ..report(3, records) };
    let mut bytes = Vec::new();
    report.encode(&mut bytes);
    assert_eq!(Report::decode(&bytes).expect("just written"), report);
    let mut whole = 0;
    for cut in 0..bytes.len() {
        if let Ok(part) = Report::decode(&bytes[..cut]) {
            // Between two records.
            assert!(part.records.len() < report.records.len());
            whole += 1;
        }
    }
    assert_eq!(whole, report.records.len());

    let settled = [true, false]
        .into_iter()
        .enumerate()
        .map(|(at, commit)| (key(id(at as u64)), Settled { commit, body: body.clone() }));
    let merged = Merged { floor: 1, clock: 2, settled: settled.collect() };
    let mut bytes = Vec::new();
    merged.encode(&mut bytes);
    assert_eq!(Merged::decode(&bytes).expect("just written"), merged);
    let decoded = (0..bytes.len()).filter_map(|cut| Merged::decode(&bytes[..cut]).ok());
    assert!(decoded.map(|part| part.settled.len()).eq(0..2));
}
