//! The writes that a read of a register may have seen if its value does not name the writer: the
//! key was absent, several transactions wrote the value, or the answer only excludes a value.

use crate::history::{Bytes, Initial};

use super::access::Access;
use super::observe::Knowledge;
use super::registers::{RegisterOrder, START};

/// A transaction that may have taken effect, and the value it left in the register.
#[derive(Clone, Copy, Debug)]
struct Writer<'a> {
    invoke: u64,
    /// When it had taken effect at the latest.
    end: u64,
    txn: u32,
    value: Option<&'a Bytes>,
    /// `None` if nothing shows that it took effect.
    version: Option<usize>,
}

/// The version that a read must have seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) version: usize,
    /// Whether telling the version takes real time.
    pub(super) timed: bool,
}

/// The writers of one register.
///
/// Under strict serializability, real time rules some of them out: a writer that began after the
/// read had ended, and a writer that ended before another one began, if that other one ended before
/// the read began. Without real time all are concurrent.
#[derive(Debug)]
pub(super) struct Candidates<'k, 'a> {
    knowledge: &'k Knowledge<'a>,
    /// In the order in which they began.
    writers: Vec<Writer<'a>>,
    /// The latest end of each writer and those before it.
    latest_end: Vec<u64>,
    /// Ends of committed writers, ascending, each with the latest beginning of those up to it.
    ended: Vec<(u64, u64)>,
}

impl<'k, 'a> Candidates<'k, 'a> {
    pub(super) fn new(knowledge: &'k Knowledge<'a>, key: u32, order: &RegisterOrder<'a>) -> Self {
        let index: &'a _ = knowledge.index;
        let mut writers = Vec::new();
        for access in index.of_key(key) {
            let record = &index.records[access.txn as usize];
            let (Some(value), false) = (access.written.last(), record.is_aborted()) else {
                continue;
            };
            let (invoke, end) = match (knowledge.strict, record.committed_at()) {
                (true, Some(end)) => (record.invoke, end),
                (true, None) => (record.invoke, u64::MAX),
                (false, _) => (0, u64::MAX),
            };
            let version = order.written.get(&access.txn).copied();
            writers.push(Writer { invoke, end, txn: access.txn, value: *value, version });
        }
        writers.sort_by_key(|writer| (writer.invoke, writer.txn));
        let mut latest = 0;
        let latest_end = writers
            .iter()
            .map(|writer| {
                latest = writer.end.max(latest);
                latest
            })
            .collect();
        let mut ended: Vec<(u64, u64)> = writers
            .iter()
            .filter(|writer| writer.end < u64::MAX)
            .map(|writer| (writer.end, writer.invoke))
            .collect();
        ended.sort_unstable();
        let mut latest = 0;
        for (_, began) in &mut ended {
            latest = latest.max(*began);
            *began = latest;
        }
        Self { knowledge, writers, latest_end, ended }
    }

    /// The one version that a read of an absent key may have seen. If no version fits, it is the
    /// first one, so that the write of the key in between shows as a cycle.
    pub(super) fn only_absent(&self, access: &Access<'_>) -> Option<Source> {
        let none = || self.possible(access, |value| value.is_none(), self.times(access)).is_empty();
        let start = || none().then_some(Source { version: START, timed: true });
        self.only(access, |value| value.is_none()).or_else(start)
    }

    /// The one version with a fitting value that the read may have seen.
    pub(super) fn only(
        &self,
        access: &Access<'_>,
        fits: impl Fn(Option<&Bytes>) -> bool,
    ) -> Option<Source> {
        let only = |times| match self.possible(access, &fits, times).as_slice() {
            [version] => *version,
            _ => None,
        };
        let source = |timed| move |version| Source { version, timed };
        let whatever_the_time = only((0, u64::MAX)).map(source(false));
        whatever_the_time.or_else(|| only(self.times(access)).map(source(true)))
    }

    /// When a transaction began, and when it had taken effect at the latest.
    fn times(&self, access: &Access<'_>) -> (u64, u64) {
        let record = &self.knowledge.index.records[access.txn as usize];
        match self.knowledge.strict {
            true => (record.invoke, record.committed_at().unwrap_or(u64::MAX)),
            false => (0, u64::MAX),
        }
    }

    /// Up to two versions that the read may have seen, `None` standing for one that may not exist.
    fn possible(
        &self,
        access: &Access<'_>,
        fits: impl Fn(Option<&Bytes>) -> bool,
        (began, ended): (u64, u64),
    ) -> Vec<Option<usize>> {
        let before = self.ended.partition_point(|(end, _)| *end < began);
        let replaced = before.checked_sub(1).map(|at| self.ended[at].1);
        let mut possible = Vec::new();
        // If the key's content at the start is not known, it fits every condition.
        let any = self.knowledge.initial == Initial::Any && access.condition.is_some();
        if replaced.is_none() && (any || fits(None)) {
            possible.push(Some(START));
        }
        let mut at = self.writers.partition_point(|writer| writer.invoke <= ended);
        let replaced = replaced.unwrap_or(0);
        while at > 0 && possible.len() < 2 && self.latest_end[at - 1] >= replaced {
            at -= 1;
            let writer = &self.writers[at];
            if writer.end >= replaced && writer.txn != access.txn && fits(writer.value) {
                possible.push(writer.version);
            }
        }
        possible
    }
}
