//! What a transaction leaves in keys of other lanes than the one that runs it.
//!
//! A lane restores its own keys and no others, so its log has to have all that they hold, in the order of
//! their versions. A transaction over several lanes is in the log of the lane that runs it, whole, so that
//! it can be replayed; when it is durable there, that lane gives each other one its *part*: what the
//! transaction leaves in keys of that lane. It is appended there, and only when it is durable, too, does a
//! follower acknowledge the transaction, or a coordinator commit it. So
//!
//! - what is known to be committed is in the logs of the lanes of its keys, and no log needs another;
//! - a part is in a log only if the transaction is, so no half of one comes back;
//! - the next transaction of a key on another lane begins when the one before it is committed. So in each log
//!   the base of a delta is before the delta.
//!
//! What was undecided when the power went has not all of its parts, perhaps. When each lane has read its
//! log, the lane that ran it puts it into the keys of the others, unreadable (`log.rs`), and gives them their
//! parts anew before anybody is told that it was replayed.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use quorate_machine::{Command, Effects, LaneShared, Table, mutant};
use quorate_types::{LaneId, Lsn, MemberNumber, NodeId, NodeSet, lane_of_key};

use crate::deltas::Wholes;
use crate::lanes::Letter;
use crate::log::{Appended, read_part, write_part};
use crate::meta::Meta;
use crate::state::Zeus;

/// A transaction, by its coordinator and its slot there.
pub(crate) type Name = (MemberNumber, u64);

/// A transaction whose parts other lanes lack.
#[derive(Clone, Hash, Debug)]
struct Spread {
    name: Name,
    /// Where it is in the log of this lane.
    lsn: Lsn,
    /// What lanes have yet to say that it is on disk. It is sent when this lane's log has it.
    lacking: BTreeMap<LaneId, Box<[u8]>>,
    /// Whether it was sent in this epoch.
    is_sent: bool,
    /// Whom to tell then that it is applied here.
    told: NodeSet,
}

/// The parts of this lane's transactions that are under way, and those that this lane has appended.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Parts {
    /// Transactions so far.
    counted: u64,
    spread: BTreeMap<u64, Spread>,
    /// Under which number a transaction was given to the other lanes last.
    numbers: BTreeMap<Name, u64>,
    /// What other lanes wait for: a place in the log of this one, and their number.
    owed: VecDeque<(Lsn, LaneId, u64)>,
}

impl Parts {
    /// Whether other lanes lack parts of a transaction.
    pub(crate) fn lacks(&self, name: Name) -> bool {
        self.numbers.contains_key(&name)
    }

    /// Whether they lack parts of any transaction of a coordinator.
    pub(crate) fn lacks_any(&self, of: MemberNumber) -> bool {
        self.numbers.range((of, 0)..=(of, u64::MAX)).next().is_some()
    }

    /// If other lanes lack parts of a transaction, notes who is told later that it is applied.
    pub(crate) fn tell_later(&mut self, to: NodeId, name: Name) -> bool {
        let number = self.numbers.get(&name);
        let spread = number.and_then(|number| self.spread.get_mut(number));
        let Some(spread) = spread.filter(|_| !mutant!("zeus_part_not_awaited")) else {
            return false;
        };
        spread.told.insert(to);
        true
    }

    /// In a new epoch followers are asked again, and so are lanes: one that has missed the first epoch of this
    /// life has taken what was said in it for mail of an earlier one.
    pub(crate) fn begin_epoch(&mut self) {
        for spread in self.spread.values_mut() {
            spread.told = NodeSet::EMPTY;
            spread.is_sent &= mutant!("zeus_part_sent_once");
        }
    }

    /// Whether no lane lacks anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.spread.is_empty() && self.owed.is_empty()
    }

    /// A life ends. Numbers don't come again.
    pub(crate) fn end_life(&mut self) {
        *self = Self { counted: self.counted, ..Self::default() };
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Gives other lanes their parts of a transaction, once the log of this one is durable up to a place.
    pub(crate) fn spread(
        &mut self,
        update: &Appended<'_>,
        lsn: Lsn,
        effects: &mut impl Effects<Self>,
    ) {
        if self.config.lanes == 1 || !self.log.is_kept {
            return;
        }
        let (layout, own, lanes) = (&self.layout, self.config.lane, self.config.lanes);
        // The owner keeps what it writes until it gives the key away.
        let is_own = update.coordinator == layout.number;
        let mut of: BTreeMap<LaneId, Vec<u8>> = BTreeMap::new();
        for item in update.items.iter() {
            let lane = lane_of_key(item.key, lanes);
            if lane != own && (is_own || layout.in_group(item.key)) {
                write_part(update.version, &item, update.wholes, of.entry(lane).or_default());
            }
        }
        if of.is_empty() {
            return;
        }
        let parts = &mut self.log.parts;
        parts.counted += 1;
        let (number, name) = (parts.counted, (update.coordinator, update.slot));
        let before = parts.numbers.insert(name, number);
        let before = before.and_then(|before| parts.spread.remove(&before));
        let told = before.map_or(NodeSet::EMPTY, |before| before.told);
        let lacking = of.into_iter().map(|(lane, part)| (lane, part.into())).collect();
        let is_sent = false;
        self.log.parts.spread.insert(number, Spread { name, lsn, lacking, is_sent, told });
        effects.probe("zeus: a transaction is in the logs of several lanes");
        self.send_parts(effects);
    }

    /// Sends what this lane's own log has.
    pub(crate) fn send_parts(&mut self, effects: &mut impl Effects<Self>) {
        let mut letters = Vec::new();
        let unsent = self.log.parts.spread.iter_mut().filter(|(_, spread)| !spread.is_sent);
        for (number, spread) in unsent {
            if !self.log.journal.is_durable(spread.lsn) && !mutant!("zeus_part_before_whole") {
                break;
            }
            spread.is_sent = true;
            let parts = spread.lacking.iter();
            letters.extend(parts.map(|(lane, part)| (*lane, *number, part.clone())));
        }
        for (lane, number, part) in letters {
            self.write_to(lane, Letter::Part { number, part }, effects);
        }
    }

    /// What a transaction of another lane leaves in keys of this one. What was given away meanwhile, or
    /// left, does not come back.
    pub(crate) fn on_part(
        &mut self,
        from: LaneId,
        number: u64,
        part: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let (version, items) = read_part(part).expect("another lane of this node has written it");
        let is_own = version.writer.member() == self.layout.number;
        let layout = self.layout.clone();
        let keeps =
            |key: &[u8]| is_own || layout.in_group(key) || mutant!("zeus_part_of_what_was_left");
        let mut kept = Vec::new();
        for item in items.iter().filter(|item| keeps(item.key)) {
            write_part(version, item, &Wholes::new(), &mut kept);
        }
        let mut place = Lsn::START;
        if !kept.is_empty() && !mutant!("zeus_part_not_appended") {
            place = self.log.append(effects, |log| log.extend_from_slice(&kept));
        }
        // The base of a delta may be what is to be copied.
        for item in items.iter().filter(|item| item.base.is_none()) {
            self.note_arrived(item.key, version);
        }
        if self.log.journal.is_durable(place) || mutant!("zeus_part_answered_early") {
            self.write_to(from, Letter::Kept { number }, effects);
        } else {
            self.log.parts.owed.push_back((place, from, number));
        }
    }

    /// Tells other lanes whose parts are durable now.
    pub(crate) fn tell_kept(&mut self, effects: &mut impl Effects<Self>) {
        let is_due = |(lsn, ..): &(Lsn, LaneId, u64)| self.log.journal.is_durable(*lsn);
        let count = self.log.parts.owed.iter().take_while(|owed| is_due(owed)).count();
        let owed: Vec<_> = self.log.parts.owed.drain(..count).collect();
        for (_, lane, number) in owed {
            self.write_to(lane, Letter::Kept { number }, effects);
        }
    }

    /// Another lane has its part of a transaction on disk.
    pub(crate) fn on_kept(&mut self, from: LaneId, number: u64, effects: &mut impl Effects<Self>) {
        let parts = &mut self.log.parts;
        let Some(spread) = parts.spread.get_mut(&number) else {
            return effects.ignored("zeus: a part that was given anew");
        };
        spread.lacking.remove(&from);
        if !spread.lacking.is_empty() {
            return;
        }
        let Spread { name, told, .. } = parts.spread.remove(&number).expect("it was found");
        parts.numbers.remove(&name);
        for to in told {
            self.turn.say_applied(to, name.0, name.1);
        }
        self.advance(effects);
    }
}
