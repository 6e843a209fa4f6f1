//! A store that keeps its promises behind gates: registers by primary copy, on one node or more.
//!
//! The primary executes what clients ask for at once, appends each update to its log, and sends it
//! to the backups as a COPY; a backup appends it to its own log and says how many updates it HOLDS.
//! An update is answered when every backup holds it. What leaves when is said by gates alone:
//!
//! | leaves | not before |
//! | --- | --- |
//! | COPY | the update is durable at the primary, or a backup would hold what the primary forgets |
//! | HOLDS | the updates are durable at the backup |
//! | the answer to an update | it is durable at the primary |
//! | the answer to a read | what was read is durable at the primary |
//!
//! The primary never changes, and a node that crashed comes back with its log: enough to test gates
//! with, and no more.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use quorate_machine::{Completion, Effects, Event, Gate, Machine, Protocol, mutant};
use quorate_types::{Duration, Instant, Lsn, NodeId, NodeSet, Now, Tag};

/// When the primary sends again what a backup doesn't hold.
const RESEND: Duration = Duration::from_millis(20);
/// Updates that it sends again at once.
const RESEND_MAX: usize = 8;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Put { key: u8, value: u64 },
    Get { key: u8 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Message<'a> {
    /// The update of this number.
    Copy { number: u64, record: &'a [u8] },
    /// The sender holds so many updates.
    Holds { count: u64 },
}

/// An update as it lies in the log: key, value, and as many more bytes as the value decides, so that
/// batches have many sizes.
pub(crate) fn record_of(key: u8, value: u64) -> Vec<u8> {
    let mut record = vec![key];
    record.extend_from_slice(&value.to_le_bytes());
    record.resize(9 + (value * 389 % 1500) as usize, value as u8 | 1);
    record
}

pub(crate) fn value_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[1..9].try_into().expect("eight bytes"))
}

pub(crate) struct Store {
    me: NodeId,
    primary: NodeId,
    /// How many updates each backup holds, as far as the primary knows.
    held: BTreeMap<NodeId, usize>,
    /// Every update, and the place in this node's log behind it.
    pub(crate) updates: Vec<(Vec<u8>, Lsn)>,
    /// The number of the last update of each key.
    latest: BTreeMap<u8, usize>,
    /// Updates that wait for backups, by number.
    waiting: VecDeque<(usize, Tag)>,
    durable: Lsn,
    resend_at: Instant,
}

impl Store {
    pub(crate) fn new(me: NodeId, primary: NodeId, nodes: NodeSet) -> Self {
        let backups = nodes.into_iter().filter(|node| *node != primary);
        Self {
            me,
            primary,
            held: backups.map(|node| (node, 0)).collect(),
            updates: Vec::new(),
            latest: BTreeMap::new(),
            waiting: VecDeque::new(),
            durable: Lsn::START,
            resend_at: Instant::NEVER,
        }
    }

    fn keep(&mut self, record: &[u8], lsn: Lsn) {
        self.latest.insert(record[0], self.updates.len());
        self.updates.push((record.to_vec(), lsn));
    }

    /// Takes in what an earlier process has appended.
    pub(crate) fn take_in<'a>(&mut self, log: impl Iterator<Item = (Lsn, &'a [u8])>) {
        for (lsn, record) in log {
            self.keep(record, lsn);
            self.durable = lsn;
        }
    }

    fn put(&mut self, now: Now, tag: Tag, record: &[u8], effects: &mut impl Effects<Self>) {
        let lsn = effects.append(|log| log.extend_from_slice(record));
        let number = self.updates.len();
        self.keep(record, lsn);
        let gate = if mutant!("sim_store_copies_early") { Gate::OPEN } else { Gate::durable(lsn) };
        let backups: NodeSet = self.held.keys().copied().collect();
        effects.send_behind(gate, backups, &Message::Copy { number: number as u64, record });
        self.waiting.push_back((number, tag));
        self.answer_held(effects);
        self.plan_resend(now);
    }

    fn get(&mut self, tag: Tag, key: u8, effects: &mut impl Effects<Self>) {
        let Some(&number) = self.latest.get(&key) else {
            return effects.complete(tag, None);
        };
        let (record, lsn) = &self.updates[number];
        let gate = if mutant!("sim_store_reads_early") { Gate::OPEN } else { Gate::durable(*lsn) };
        effects.complete_on(tag, Completion::new(Some(value_of(record))).behind(gate));
    }

    /// Answers the updates that every backup holds.
    fn answer_held(&mut self, effects: &mut impl Effects<Self>) {
        let count = self.held.values().copied().min().unwrap_or(usize::MAX);
        while let Some((number, tag)) = self.waiting.pop_front_if(|(number, _)| *number < count) {
            let (record, lsn) = &self.updates[number];
            let gate =
                if mutant!("sim_store_answers_early") { Gate::OPEN } else { Gate::durable(*lsn) };
            effects.complete_on(tag, Completion::new(Some(value_of(record))).behind(gate));
        }
    }

    fn on_copy(&mut self, number: usize, record: &[u8], effects: &mut impl Effects<Self>) {
        if number > self.updates.len() {
            return effects.ignored("an earlier one is missing");
        }
        match self.updates.get(number) {
            Some((mine, _)) => assert_eq!(mine, record, "the primary has forgotten an update"),
            None => {
                let lsn = effects.append(|log| log.extend_from_slice(record));
                self.keep(record, lsn);
            }
        }
        let lsn = self.updates.last().expect("there is one now").1;
        let gate =
            if mutant!("sim_store_acknowledges_early") { Gate::OPEN } else { Gate::durable(lsn) };
        let count = self.updates.len() as u64;
        effects.send_behind(gate, NodeSet::only(self.primary), &Message::Holds { count });
    }

    fn lacks_copies(&self) -> bool {
        self.held.values().any(|held| *held < self.updates.len())
    }

    fn plan_resend(&mut self, now: Now) {
        if self.me == self.primary && self.lacks_copies() && self.resend_at == Instant::NEVER {
            self.resend_at = now.monotonic + RESEND;
        }
    }

    fn resend(&mut self, effects: &mut impl Effects<Self>) {
        for (node, held) in &self.held {
            let durable = self.updates.iter().enumerate().skip(*held).take(RESEND_MAX);
            for (number, (record, _)) in durable.take_while(|(_, (_, lsn))| *lsn <= self.durable) {
                effects.send(*node, &Message::Copy { number: number as u64, record });
            }
        }
    }
}

impl Protocol for Store {
    type Message<'a> = Message<'a>;
    type Request<'a> = Request;
    type Outcome = Option<u64>;
    type Mail = Infallible;
}

impl Machine for Store {
    fn step(&mut self, now: Now, event: Event<'_, Self>, effects: &mut impl Effects<Self>) {
        match event {
            Event::Message { body: Message::Copy { number, record }, .. } => {
                self.on_copy(number as usize, record, effects);
            }
            Event::Message { from, body: Message::Holds { count }, .. } => {
                let held = self.held.get_mut(&from).expect("a backup says so");
                *held = (*held).max(count as usize);
                assert!(*held <= self.updates.len(), "{from} holds what the primary has forgotten");
                self.answer_held(effects);
            }
            Event::Request { tag, request: Request::Put { key, value } } => {
                self.put(now, tag, &record_of(key, value), effects);
            }
            Event::Request { tag, request: Request::Get { key } } => self.get(tag, key, effects),
            Event::Durable(lsn) => self.durable = lsn,
            Event::Tick => {
                if self.resend_at <= now.monotonic {
                    self.resend(effects);
                    self.resend_at = Instant::NEVER;
                }
                self.plan_resend(now);
            }
            Event::View(_) => unreachable!("its nodes are always the same"),
            Event::Mail { mail, .. } => match mail {},
        }
    }

    fn next_deadline(&self) -> Instant {
        self.resend_at
    }

    fn check_invariants(&self) {
        let places = self.updates.iter().map(|(_, lsn)| lsn);
        assert!(places.is_sorted_by(|one, next| one < next), "each update has a place of its own");
    }
}
