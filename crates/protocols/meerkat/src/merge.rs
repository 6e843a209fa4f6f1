//! What the replicas of an epoch knew when it ended, and what that amounts to (§5.3.1, N4.2
//! and N4.3). Pure: replies in, decisions out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::mutant;
use quorate_types::{Epoch, NodeId, NodeSet, Quorums, Timestamp};
use quorate_wire::{Malformed, Reader, Writer};

use crate::body::Body;
use crate::calls::are_one_call;
use crate::occ::conflicts_exactly;
use crate::records::Records;
use crate::txn_record::{RecordKey, TxnRecord, read_partition};

/// Who could vote in an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Electorate {
    /// Every voter of the view, dead or alive.
    pub voters: NodeSet,
    /// Its active members.
    pub active: NodeSet,
}

/// All that a replica knows, once its lanes are frozen.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Report {
    /// The last epoch whose outcome it has adopted, or in which it has worked.
    pub last_normal: Epoch,
    /// Who could vote in it.
    pub electorate: Electorate,
    /// It came back from a log that may lack the end of what this replica had promised.
    pub doubtful: bool,
    /// Those of them whose records a person has given up: what only they knew is lost.
    pub given_up: NodeSet,
    /// No write at or below it, as far as it knows.
    pub floor: u64,
    /// Everything up to here is installed on all replicas. Records of deleted keys that are as old
    /// may be gone from some of them: what was written there before must not be installed again.
    pub installed: u64,
    /// Its hybrid clock.
    pub clock: u64,
    /// The records of all its lanes; or what it has adopted, if that was not released yet.
    pub records: Records,
}

impl Report {
    /// Appends the report.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut writer = Writer(bytes);
        writer.u64(self.last_normal.0);
        writer.u64(self.electorate.voters.bits());
        writer.u64(self.electorate.active.bits());
        writer.u8(u8::from(self.doubtful));
        writer.u64(self.given_up.bits());
        writer.u64(self.floor);
        writer.u64(self.installed);
        writer.u64(self.clock);
        for (key, record) in self.records.iter() {
            record.encode(key, &mut writer);
        }
    }

    /// Reads what [`Report::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let mut report = Self {
            last_normal: Epoch(reader.u64()?),
            electorate: Electorate {
                voters: NodeSet::from_bits(reader.u64()?),
                active: NodeSet::from_bits(reader.u64()?),
            },
            doubtful: reader.u8()? != 0,
            given_up: NodeSet::from_bits(reader.u64()?),
            floor: reader.u64()?,
            installed: reader.u64()?,
            clock: reader.u64()?,
            records: Records::new(),
        };
        while !reader.0.is_empty() {
            let (key, record) = TxnRecord::decode(&mut reader)?;
            report.records.insert(key, record);
        }
        Ok(report)
    }
}

/// How a transaction ended, in one partition.
///
/// All partitions of a keyspace change epochs together, so the votes of all are there at once and
/// every transaction that a replica knew of has its end afterwards: none stays prepared, as it would
/// have to if each partition changed epochs on its own (N3.7).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Settled {
    /// Whether it committed.
    pub commit: bool,
    /// Its sets, if it did.
    pub body: Vec<u8>,
}

/// The record of an epoch: what every member of the next one starts from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Merged {
    /// No write at or below it.
    pub floor: u64,
    /// A clock that all members have passed.
    pub clock: u64,
    /// Every transaction that anybody knew of.
    pub settled: BTreeMap<RecordKey, Settled>,
}

impl Merged {
    /// Appends the record.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut writer = Writer(bytes);
        writer.u64(self.floor);
        writer.u64(self.clock);
        for (key, settled) in &self.settled {
            writer.timestamp(key.id());
            writer.u16(key.partition);
            writer.u8(u8::from(settled.commit));
            writer.bytes(&settled.body);
        }
    }

    /// Reads what [`Merged::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let mut merged =
            Self { floor: reader.u64()?, clock: reader.u64()?, settled: BTreeMap::new() };
        while !reader.0.is_empty() {
            let id = reader.timestamp()?;
            let key = RecordKey::new(id, read_partition(&mut reader)?);
            let commit = match reader.u8()? {
                number @ (0 | 1) => number == 1,
                _ => return Err(Malformed("neither 0 nor 1")),
            };
            let body = reader.bytes()?;
            if !body.is_empty() {
                Body::check(body)?;
            }
            merged.settled.insert(key, Settled { commit, body: body.into() });
        }
        Ok(merged)
    }

    /// As records of a replica that has adopted this and not acted on it.
    pub fn records(&self) -> Records {
        self.settled
            .iter()
            .map(|(key, settled)| {
                let (decision, body) = (Some(settled.commit), settled.body.clone());
                (*key, TxnRecord { decision, body, ..TxnRecord::default() })
            })
            .collect()
    }
}

/// Why a merge can't be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooFew {
    /// The partition.
    pub partition: u16,
    /// Replicas of the epoch that are left.
    pub replies: usize,
    /// Replicas that it had.
    pub live: usize,
}

/// What all replies say of one transaction in one partition.
#[derive(Default)]
struct Gathered {
    participants: u64,
    body: Vec<u8>,
    /// What the sets are of: a commit that a replica knows, or the proposal of a view.
    body_of: (bool, u64),
    decision: Option<bool>,
    accepted: Option<(u64, bool)>,
    ok: usize,
}

/// The groups of the partitions, as configured, and whether their fast quorums are unanimous.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// By partition; every voter if nothing is said.
    pub replicas: &'a [Option<NodeSet>],
    /// See [`Quorums::new`].
    pub unanimous: bool,
    /// The partitions whose data a person has given up, as a bit set. All their replicas of the last epoch
    /// are gone, and nobody knows how they voted. So they have no say in a merge: what all other
    /// participants let pass commits there, since a client may have been told that it did.
    pub lost: u64,
}

impl Groups<'_> {
    /// The partitions in which an epoch may have decided something that nobody is left to tell, as a bit
    /// set. If it had too few replicas there to decide anything, it has let nothing pass.
    fn silent(&self, electorate: Electorate) -> u64 {
        let decided = |partition: &u16| {
            let quorums = self.quorums(*partition, electorate).0;
            quorums.can_decide() || mutant!("meerkat_lost_partition_lets_all_pass")
        };
        let lost = (0..self.replicas.len() as u16).filter(|number| self.lost & 1 << number != 0);
        lost.filter(decided).fold(0, |set, partition| set | 1 << partition)
    }

    /// The quorums of a partition, and who of it is active.
    pub fn quorums(&self, partition: u16, electorate: Electorate) -> (Quorums, NodeSet) {
        let replicas = self.replicas.get(usize::from(partition)).copied().flatten();
        let voters = replicas.map_or(electorate.voters, |set| set.intersection(electorate.voters));
        let active = voters.intersection(electorate.active);
        let mut quorums = Quorums::new(voters.len(), active.len(), self.unanimous);
        if mutant!("meerkat_alone_decides") {
            quorums.fast = quorums.fast.min(quorums.live);
        }
        (quorums, active)
    }
}

/// Merges the reports of all members of the new view (§5.3.1, rules 1 to 5). Only what the latest
/// epoch's replicas say counts: an earlier one is contained in it (N4.2c).
///
/// # Errors
/// When so few of that epoch's replicas are left that what its quorums decided may be lost, and nobody has
/// given the others up.
pub fn merge(reports: &BTreeMap<NodeId, Report>, groups: Groups<'_>) -> Result<Merged, TooFew> {
    let last = reports.values().map(|report| report.last_normal).max().unwrap_or_default();
    let mut merged = Merged::default();
    let mut installed = 0;
    for report in reports.values() {
        merged.floor = merged.floor.max(report.floor);
        merged.clock = merged.clock.max(report.clock);
        installed = installed.max(report.installed);
    }
    let Some((mut electorate, given_up)) = reports
        .values()
        .find(|report| report.last_normal == last && last != Epoch(0))
        .map(|report| (report.electorate, report.given_up))
    else {
        return Ok(merged);
    };
    if mutant!("meerkat_given_up_never_voted") {
        electorate.active = electorate.active.difference(given_up);
    }
    let current: BTreeMap<NodeId, &Report> = reports
        .iter()
        .filter(|(_, report)| report.last_normal == last || mutant!("meerkat_merges_older_epochs"))
        .map(|(node, report)| (*node, report))
        .collect();
    let mut gathered: BTreeMap<RecordKey, Gathered> = BTreeMap::new();
    for (node, report) in &current {
        for (key, record) in report.records.iter().filter(|(key, _)| key.version > installed) {
            let votes = groups.quorums(key.partition, electorate).1.contains(*node);
            gather(gathered.entry(*key).or_default(), record, votes);
        }
    }
    let replies: NodeSet = current.keys().copied().collect();
    // Nobody has acted on an epoch that one of its members had not adopted: what one member keeps
    // of it is all there is.
    let lagging = |(_, report): &(&NodeId, &Report)| report.last_normal < last;
    let (forgetful, sure): (Vec<_>, Vec<_>) = { reports.iter() }
        .filter(lagging)
        .partition(|(_, report)| report.doubtful && !mutant!("meerkat_forgotten_epoch_not_begun"));
    let had_part = |node: NodeId| electorate.active.difference(given_up).contains(node);
    let unreleased = sure.into_iter().any(|(node, _)| had_part(*node));
    // One whose log may have lost the whole epoch has brought back all that it has.
    let forgetful: NodeSet = forgetful.into_iter().map(|(node, _)| *node).collect();
    let silent = groups.silent(electorate);
    for partition in 0..groups.replicas.len() as u16 {
        let (quorums, active) = groups.quorums(partition, electorate);
        let here = replies.union(forgetful).intersection(active).len();
        let is_given_up =
            silent & 1 << partition != 0 || active.intersection(given_up) != NodeSet::EMPTY;
        let lacks = !is_given_up && !quorums.is_recoverable(here);
        if !unreleased && lacks {
            return Err(TooFew { partition, replies: here, live: quorums.live });
        }
    }
    let votes = count_votes(&gathered, |partition| {
        let (quorums, active) = groups.quorums(partition, electorate);
        let speaks = silent & 1 << partition == 0;
        speaks.then(|| (quorums, replies.intersection(active).len()))
    });
    let silent = if mutant!("meerkat_lost_partition_aborts") { 0 } else { silent };
    decide_undecided(&mut merged, gathered, &votes, silent);
    Ok(merged)
}

/// What each partition's replicas said, as far as it can be known. Of one without quorums only what was
/// decided is.
fn count_votes(
    gathered: &BTreeMap<RecordKey, Gathered>,
    quorums: impl Fn(u16) -> Option<(Quorums, usize)>,
) -> BTreeMap<RecordKey, bool> {
    let mut votes = BTreeMap::new();
    let mut candidates = Vec::new();
    for (key, record) in gathered {
        let Some((quorums, replies)) = quorums(key.partition) else {
            votes.extend(record.decision.map(|commit| (*key, commit)));
            continue;
        };
        match judge(record, quorums, replies) {
            Judged::Candidate => candidates.push(key),
            verdict => {
                votes.insert(*key, verdict == Judged::Commit);
            }
        }
    }
    // What one partition has aborted can't commit, whatever another said to it: replicas that knew its
    // end may have let a candidate pass that conflicts with it.
    let aborted: BTreeSet<Timestamp> = { votes.iter() }
        .filter(|(_, ok)| !**ok && !mutant!("meerkat_aborted_elsewhere_weighs"))
        .map(|(key, _)| key.id())
        .collect();
    // Candidates conflict with each other only where replicas were given up, since each has more than
    // half of the replies otherwise: then those before it count, too.
    for key in candidates {
        let stands = |(other, ok): &(&RecordKey, &bool)| {
            **ok && other.partition == key.partition && !aborted.contains(&other.id())
        };
        let body = &gathered[key].body;
        let conflict = { votes.iter().filter(stands) }
            .map(|(other, _)| (other, &gathered[other].body))
            .any(|(other, theirs)| conflicts(key, body, other, theirs));
        votes.insert(*key, !conflict);
    }
    votes
}

/// A transaction commits if all its partitions said OK; one that knows nothing of it said nothing. Those in
/// `silent` have no say, unless there are no others.
fn decide_undecided(
    merged: &mut Merged,
    gathered: BTreeMap<RecordKey, Gathered>,
    votes: &BTreeMap<RecordKey, bool>,
    silent: u64,
) {
    let mut ends: BTreeMap<Timestamp, (u64, u64, Option<bool>)> = BTreeMap::new();
    for (key, record) in &gathered {
        let (participants, ok, decision) = ends.entry(key.id()).or_default();
        *participants |= record.participants | 1 << key.partition;
        *ok |= u64::from(votes.get(key).is_some_and(|ok| *ok)) << key.partition;
        *decision = decision.or(record.decision);
    }
    for (key, record) in gathered {
        let (participants, ok, decision) = ends[&key.id()];
        let asked = participants & !silent;
        let commit = record.decision.or(decision).unwrap_or(asked != 0 && asked == ok);
        let body = if commit { record.body } else { Vec::new() };
        merged.settled.insert(key, Settled { commit, body });
    }
}

fn gather(into: &mut Gathered, record: &TxnRecord, votes: bool) {
    into.participants |= record.participants;
    // A guest may have told each replica other sets. What a replica knows to be committed was installed
    // with its own, and what a backup has had accepted was, perhaps.
    let proposed = record.accepted.map_or(0, |(view, ok)| if ok { view } else { 0 });
    let body_of = (record.decision == Some(true), proposed);
    let is_better = body_of > into.body_of && !mutant!("meerkat_merge_takes_any_sets");
    if into.body.is_empty() || (is_better && !record.body.is_empty()) {
        into.body.clone_from(&record.body);
        into.body_of = body_of;
    }
    if let Some(commit) = record.decision {
        // What one replica has installed can't be taken back.
        into.decision = Some(commit || into.decision == Some(true));
    }
    let is_newest = record.accepted.is_some_and(|(view, _)| {
        let any = mutant!("meerkat_merge_takes_any_proposal");
        any || into.accepted.is_none_or(|best| view > best.0)
    });
    if is_newest {
        into.accepted = record.accepted;
    }
    let votes = votes || mutant!("meerkat_learner_counts");
    into.ok += usize::from(votes && record.vote == Some(Ok(())));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    Commit,
    Abort,
    /// It may have been decided fast by replicas that are gone.
    Candidate,
}

fn judge(gathered: &Gathered, quorums: Quorums, replies: usize) -> Judged {
    let commit = match (gathered.decision, gathered.accepted) {
        (Some(commit), _) | (None, Some((_, commit))) => commit,
        (None, None) if gathered.ok >= quorums.majority => true,
        (None, None) if gathered.ok > 0 && quorums.fast_possible(gathered.ok, replies) => {
            return Judged::Candidate;
        }
        (None, None) => false,
    };
    if commit { Judged::Commit } else { Judged::Abort }
}

/// The exact predicate (N4.3), between a candidate and a transaction that its partition let
/// pass.
fn conflicts(key: &RecordKey, body: &[u8], other: &RecordKey, theirs: &[u8]) -> bool {
    if body.is_empty() || theirs.is_empty() {
        return false;
    }
    let mine: (Timestamp, Body<'_>) = (key.id(), Body::trusted(body));
    let theirs = (other.id(), Body::trusted(theirs));
    if mutant!("meerkat_imprecise_revalidation") {
        return overlaps(mine.1, theirs.1);
    }
    // Two attempts at a blind write conflict at no key.
    let one_call = are_one_call(mine.1, theirs.1) && !mutant!("meerkat_one_call_commits_twice");
    one_call || conflicts_exactly(mine, theirs)
}

/// What a mutant takes for a conflict: a key that both touch and one of them writes, as the tests
/// of Algorithm 1 do when timestamps are on the wrong side.
fn overlaps(a: Body<'_>, b: Body<'_>) -> bool {
    a.iter().any(|mine| {
        b.iter().any(|theirs| {
            mine.key == theirs.key && (mine.write.is_some() || theirs.write.is_some())
        })
    })
}
