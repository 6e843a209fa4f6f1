//! The accesses of each transaction to each key, taken out of its list of operations.

use std::collections::{BTreeMap, HashMap};

use quorate_types::Timestamp;

use crate::history::Bytes;
use crate::model::parse_canonical;
use crate::txn::{Content, List, TxnOp, TxnRecord};

use super::anomaly::{Anomaly, AnomalyKind};

/// The value or list that a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen<'a> {
    Value(Option<&'a Bytes>),
    List(&'a [Bytes]),
}

impl std::fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(value) => Content(*value).fmt(f),
            Self::List(elements) => List(elements).fmt(f),
        }
    }
}

/// What an answer says about a value that it does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The key held anything but this.
    Not(Option<Bytes>),
    /// The key was absent, or held this value.
    AbsentOr(Bytes),
    /// This can't be added to what the key held.
    NotAddable(i64),
    /// The list had this many bytes, as a Redis string.
    Length(u64),
}

impl Condition {
    /// Whether a register with this value gives such an answer.
    pub(super) fn admits(&self, value: Option<&Bytes>) -> bool {
        match self {
            Self::Not(unwanted) => value != unwanted.as_ref(),
            Self::AbsentOr(wanted) => value.is_none_or(|value| value == wanted),
            Self::NotAddable(by) => {
                let number = value.map_or(Some(0), |value| parse_canonical(&value.0));
                number.and_then(|number| number.checked_add(*by)).is_none()
            }
            Self::Length(length) => value.map_or(0, |value| value.0.len() as u64) == *length,
        }
    }
}

/// The conditions of transactions, by position. Only a single command has a condition, which is
/// about the key of that command.
pub(super) type Conditions = BTreeMap<usize, (Bytes, Condition)>;

/// All that one transaction did to one key.
#[derive(Clone, Debug)]
pub(super) struct Access<'a> {
    pub(super) txn: u32,
    pub(super) key: u32,
    /// The key's content before the transaction changed it, if the transaction read it.
    pub(super) read: Option<Seen<'a>>,
    pub(super) version: Option<Timestamp>,
    /// Another condition on the key's content before the transaction.
    pub(super) condition: Option<&'a Condition>,
    /// The values that it stored, in order; the last one stays.
    pub(super) written: Vec<Option<&'a Bytes>>,
    /// The elements that it appended, in order.
    pub(super) appended: Vec<&'a Bytes>,
    /// The longest list that it read, its own appends included.
    pub(super) longest: Option<&'a [Bytes]>,
    /// How an operation contradicts the transaction's earlier reads or writes.
    contradiction: Option<String>,
}

impl Access<'_> {
    pub(super) fn changes(&self) -> bool {
        !self.written.is_empty() || !self.appended.is_empty()
    }
}

/// The ways in which a history uses a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) register: bool,
    pub(super) list: bool,
}

/// A history, indexed.
#[derive(Debug)]
pub(super) struct Index<'a> {
    pub(super) records: &'a [TxnRecord],
    pub(super) keys: Vec<&'a Bytes>,
    pub(super) uses: Vec<Use>,
    /// By transaction.
    pub(super) accesses: Vec<Access<'a>>,
    /// Where the accesses of each transaction begin.
    starts: Vec<u32>,
    /// Positions of accesses, by key, in the order of transactions.
    pub(super) by_key: Vec<Vec<u32>>,
}

impl<'a> Index<'a> {
    pub(super) fn new(records: &'a [TxnRecord], conditions: &'a Conditions) -> Self {
        let mut index = Self {
            records,
            keys: Vec::new(),
            uses: Vec::new(),
            accesses: Vec::new(),
            starts: Vec::with_capacity(records.len() + 1),
            by_key: Vec::new(),
        };
        let mut numbers: HashMap<&Bytes, u32> = HashMap::new();
        // The latest access of each key.
        let mut latest: Vec<u32> = Vec::new();
        for (txn, record) in records.iter().enumerate() {
            let start = index.accesses.len();
            index.starts.push(start as u32);
            let condition = conditions.get(&txn);
            let conditional = condition.map(|(key, _)| key);
            for key in record.ops.iter().map(TxnOp::key).chain(conditional) {
                let key = *numbers.entry(key).or_insert_with(|| {
                    index.keys.push(key);
                    index.uses.push(Use::default());
                    index.by_key.push(Vec::new());
                    latest.push(u32::MAX);
                    index.keys.len() as u32 - 1
                });
                let place = &mut latest[key as usize];
                if *place == u32::MAX || (*place as usize) < start {
                    *place = index.accesses.len() as u32;
                    index.by_key[key as usize].push(*place);
                    index.accesses.push(Access::new(txn as u32, key));
                }
            }
            for op in &record.ops {
                let key = numbers[op.key()] as usize;
                let list = matches!(op, TxnOp::Append { .. } | TxnOp::ReadList { .. });
                index.uses[key].list |= list;
                index.uses[key].register |= !list;
                index.accesses[latest[key] as usize].take(op);
            }
            if let Some((key, condition)) = condition {
                let access = latest[numbers[key] as usize] as usize;
                index.accesses[access].condition = Some(condition);
            }
        }
        index.starts.push(index.accesses.len() as u32);
        index
    }

    pub(super) fn of_txn(&self, txn: u32) -> &[Access<'a>] {
        &self.accesses[self.starts[txn as usize] as usize..self.starts[txn as usize + 1] as usize]
    }

    pub(super) fn of_key(&self, key: u32) -> impl Iterator<Item = &Access<'a>> {
        self.by_key[key as usize].iter().map(|at| &self.accesses[*at as usize])
    }

    pub(super) fn access(&self, txn: u32, key: u32) -> Option<&Access<'a>> {
        self.of_txn(txn).iter().find(|access| access.key == key)
    }

    /// "T7".
    pub(super) fn name(&self, txn: u32) -> String {
        format!("T{}", self.records[txn as usize].id)
    }

    /// The key, for messages.
    pub(super) fn key(&self, key: u32) -> &'a Bytes {
        self.keys[key as usize]
    }

    pub(super) fn anomaly(&self, kind: AnomalyKind, txns: &[u32], step: String) -> Anomaly {
        let mut transactions: Vec<usize> = Vec::new();
        for txn in txns {
            if !transactions.contains(&(*txn as usize)) {
                transactions.push(*txn as usize);
            }
        }
        Anomaly::new(kind, self.records, transactions, vec![step])
    }

    /// A transaction that contradicts itself, among those that are known to have taken effect.
    pub(super) fn contradiction(&self, present: &[bool]) -> Option<Anomaly> {
        let of_one_use = |key: u32| {
            let uses = self.uses[key as usize];
            uses.register != uses.list
        };
        let access = self.accesses.iter().find(|access| {
            present[access.txn as usize] && access.contradiction.is_some() && of_one_use(access.key)
        })?;
        let text = access.contradiction.clone().unwrap_or_default();
        let step = format!("{} {text}", self.name(access.txn));
        Some(self.anomaly(AnomalyKind::Internal, &[access.txn], step))
    }
}

impl<'a> Access<'a> {
    fn new(txn: u32, key: u32) -> Self {
        Self {
            txn,
            key,
            read: None,
            version: None,
            condition: None,
            written: Vec::new(),
            appended: Vec::new(),
            longest: None,
            contradiction: None,
        }
    }

    fn take(&mut self, op: &'a TxnOp) {
        match op {
            TxnOp::Write { value, .. } => self.written.push(value.as_ref()),
            TxnOp::Append { element, .. } => self.appended.push(element),
            TxnOp::Read { key, value, version } => {
                let value = value.as_ref();
                let expected = match (self.written.last(), self.read) {
                    (Some(own), _) => Some(*own),
                    (None, Some(Seen::Value(before))) => Some(before),
                    _ => None,
                };
                match expected {
                    None if self.read.is_none() && self.appended.is_empty() => {
                        self.read = Some(Seen::Value(value));
                        self.version = *version;
                    }
                    Some(expected) if expected != value => {
                        let (found, expected) = (Content(value), Content(expected));
                        self.contradict(format!(
                            "read {key} = {found}, but by its own earlier operations it had to \
                             read {expected}"
                        ));
                    }
                    _ => {}
                }
            }
            TxnOp::ReadList { key, elements, version } => self.take_list(key, elements, *version),
        }
    }

    fn take_list(&mut self, key: &Bytes, elements: &'a [Bytes], version: Option<Timestamp>) {
        if self.longest.is_none_or(|longest| longest.len() < elements.len()) {
            self.longest = Some(elements);
        }
        let own = &self.appended;
        let ends_with_own = elements.len() >= own.len()
            && elements[elements.len() - own.len()..].iter().eq(own.iter().copied());
        if !ends_with_own {
            let (found, own) = (List(elements), own.len());
            return self.contradict(format!(
                "read {key} = {found}, which does not end with the {own} elements that it had \
                 appended itself"
            ));
        }
        let before = &elements[..elements.len() - own.len()];
        match self.read {
            None if self.written.is_empty() => {
                self.read = Some(Seen::List(before));
                self.version = version;
            }
            Some(Seen::List(earlier)) if earlier != before => {
                let (found, earlier) = (List(elements), List(earlier));
                self.contradict(format!(
                    "read {key} = {found}, but had read {earlier} before its own appends"
                ));
            }
            _ => {}
        }
    }

    fn contradict(&mut self, text: String) {
        if self.contradiction.is_none() {
            self.contradiction = Some(text);
        }
    }
}
