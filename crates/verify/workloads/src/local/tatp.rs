//! TATP (Neuvonen et al. 2009), with the tables and sizes of FaSST's public implementation.
//!
//! | transaction | share | reads | writes |
//! | --- | ---: | --- | --- |
//! | GetSubscriberData | 35% | subscriber | |
//! | GetAccessData | 35% | one access info | |
//! | GetNewDestination | 10% | one facility, its forwardings that have begun | |
//! | UpdateSubscriberData | 2% | | subscriber, and one facility; neither if there is no such facility |
//! | UpdateLocation | 14% | number | subscriber |
//! | InsertCallForwarding | 2% | number, one facility | its forwarding, unless there is one |
//! | DeleteCallForwarding | 2% | number | the forwarding |
//!
//! A subscriber has one to four access infos and facilities of four types each, equally often, and
//! none to three forwardings for each facility. All of that follows from its number, so that a
//! transaction is known to fail (37.5% of the updates of facilities find none) before it is sent.

use quorate_machine::Rng;

use super::homes::Homes;
use super::ledger::{Book, Change};
use super::{Draw, Ledger, Model, Part, Scenario};
use crate::layout::Slot;
use crate::{Answer, Content, Layout, Tells, Transaction, TransactionKind};

/// A subscriber's rows: itself, its number, access infos, facilities, and three forwardings of each
/// facility. A subscriber takes 40 bytes, its number 8, an access info 16, a facility 8, a
/// forwarding 16.
pub(super) const LAYOUT: Layout = Layout::new(&[
    Slot::tagged("{subscriber:", "}", 40),
    Slot::tagged("{subscriber:", "}:number", 8),
    Slot::tagged("{subscriber:", "}:access:1", 16),
    Slot::tagged("{subscriber:", "}:access:2", 16),
    Slot::tagged("{subscriber:", "}:access:3", 16),
    Slot::tagged("{subscriber:", "}:access:4", 16),
    Slot::tagged("{subscriber:", "}:facility:1", 8),
    Slot::tagged("{subscriber:", "}:facility:2", 8),
    Slot::tagged("{subscriber:", "}:facility:3", 8),
    Slot::tagged("{subscriber:", "}:facility:4", 8),
    Slot::tagged("{subscriber:", "}:forwarding:1:0", 16),
    Slot::tagged("{subscriber:", "}:forwarding:1:8", 16),
    Slot::tagged("{subscriber:", "}:forwarding:1:16", 16),
    Slot::tagged("{subscriber:", "}:forwarding:2:0", 16),
    Slot::tagged("{subscriber:", "}:forwarding:2:8", 16),
    Slot::tagged("{subscriber:", "}:forwarding:2:16", 16),
    Slot::tagged("{subscriber:", "}:forwarding:3:0", 16),
    Slot::tagged("{subscriber:", "}:forwarding:3:8", 16),
    Slot::tagged("{subscriber:", "}:forwarding:3:16", 16),
    Slot::tagged("{subscriber:", "}:forwarding:4:0", 16),
    Slot::tagged("{subscriber:", "}:forwarding:4:8", 16),
    Slot::tagged("{subscriber:", "}:forwarding:4:16", 16),
]);

const NUMBER: u64 = 1;
const ACCESS: u64 = 2;
const FACILITY: u64 = 6;
const FORWARDING: u64 = 10;
/// Types of access infos and of facilities.
const TYPES: u64 = 4;
/// Times at which a forwarding may begin.
const STARTS: u64 = 3;

const MIX: [(u64, TransactionKind); 7] = [
    (35, TransactionKind::GetSubscriberData),
    (35, TransactionKind::GetAccessData),
    (10, TransactionKind::GetNewDestination),
    (2, TransactionKind::UpdateSubscriberData),
    (14, TransactionKind::UpdateLocation),
    (2, TransactionKind::InsertCallForwarding),
    (2, TransactionKind::DeleteCallForwarding),
];

/// The rows that a subscriber has, as bits: access infos, facilities and forwardings at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rows {
    access: u8,
    facilities: u8,
    forwardings: u16,
}

impl Rows {
    pub(super) fn of(subscriber: u64) -> Self {
        // They depend on nothing but the subscriber: generators of all seeds agree on them.
        let mut rng = Rng::new(subscriber ^ 0x7a7b_0000_0000);
        let (access, facilities) = (some_types(&mut rng), some_types(&mut rng));
        let mut forwardings = 0;
        for kind in (0..TYPES).filter(|kind| facilities >> kind & 1 == 1) {
            let count = rng.below(STARTS + 1);
            let first = rng.below(STARTS);
            for start in (0..count).map(|next| (first + next) % STARTS) {
                forwardings |= 1 << (kind * STARTS + start);
            }
        }
        Self { access, facilities, forwardings }
    }

    fn has_facility(self, kind: u64) -> bool {
        self.facilities >> kind & 1 == 1
    }

    /// Whether there is a row in this slot at first.
    fn has(self, slot: u64) -> bool {
        match slot {
            0 | NUMBER => true,
            ACCESS..FACILITY => self.access >> (slot - ACCESS) & 1 == 1,
            FACILITY..FORWARDING => self.has_facility(slot - FACILITY),
            _ => self.forwardings >> (slot - FORWARDING) & 1 == 1,
        }
    }

    /// Whether there may be a row in this slot, now or later; and whether there must.
    pub(super) fn allows(self, slot: u64) -> (bool, bool) {
        match slot.checked_sub(FORWARDING) {
            Some(place) => (self.has_facility(place / STARTS), false),
            None => (self.has(slot), self.has(slot)),
        }
    }

    /// How many forwardings there are at first.
    pub(super) fn forwardings(self) -> u32 {
        self.forwardings.count_ones()
    }
}

/// One to four of four types, each number equally often and each type, too.
fn some_types(rng: &mut Rng) -> u8 {
    let count = 1 + rng.below(TYPES);
    let mut types = 0_u8;
    while u64::from(types.count_ones()) < count {
        types |= 1 << rng.below(TYPES);
    }
    types
}

/// Whether the slot holds a forwarding.
pub(super) fn is_forwarding(slot: u64) -> bool {
    slot >= FORWARDING
}

/// Values show their subscriber and a number that changes, in as many digits as the shortest has.
const CHANGES: u64 = 1000;
const SHOWN_MAX: u64 = 100_000;

/// What a value of this subscriber shows, with its last digits.
fn shown(subscriber: u64, change: u64) -> Content {
    Content::Filler(subscriber % SHOWN_MAX * CHANGES + change % CHANGES)
}

/// Whether a value that shows this number belongs to the subscriber.
pub(super) fn shows(subscriber: u64, number: i64) -> bool {
    number / CHANGES as i64 == (subscriber % SHOWN_MAX) as i64
}

/// The row of this key at first. A forwarding that may come later is deleted, as an earlier run may
/// have left it.
pub(super) fn first_content(key: u64) -> Option<Content> {
    let (subscriber, slot) = (key / LAYOUT.slots(), key % LAYOUT.slots());
    let rows = Rows::of(subscriber);
    match (rows.has(slot), rows.allows(slot)) {
        (true, _) => Some(shown(subscriber, 0)),
        (false, (true, _)) => Some(Content::Absent),
        (false, (false, _)) => None,
    }
}

/// TATP's non-uniform distribution of `0..subscribers`.
fn nurand(rng: &mut Rng, subscribers: u64) -> u64 {
    let a = match subscribers {
        0..=1_000_000 => 65_535,
        1_000_001..=10_000_000 => 1_048_575,
        _ => 2_097_151,
    };
    ((rng.below(a + 1) | (1 + rng.below(subscribers))) % subscribers + 1) % subscribers
}

pub(super) struct Tatp {
    part: Part,
    nodes: u16,
    remote: f64,
    subscribers: u64,
    homes: Homes,
    book: Book,
}

impl Tatp {
    pub(super) fn new(scenario: &Scenario, part: Part) -> Self {
        let subscribers = part.units(scenario.units);
        Self {
            part,
            nodes: scenario.nodes,
            remote: scenario.remote_share(),
            subscribers,
            homes: Homes::new(subscribers, scenario.nodes),
            book: Book::default(),
        }
    }
}

impl Model for Tatp {
    fn draw(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) {
        let kind = draw.pick(&MIX);
        let reads = [
            TransactionKind::GetSubscriberData,
            TransactionKind::GetAccessData,
            TransactionKind::GetNewDestination,
        ];
        let writes = !reads.contains(&kind);
        let is_remote = writes && draw.chance(self.remote);
        let node = if is_remote { draw.elsewhere(self.nodes) } else { draw.here };
        let place = self.homes.draw(node, draw.rng, |rng| nurand(rng, self.subscribers), |_| true);
        let place = place.expect("every subscriber fits");
        draw.drawn.writes += u64::from(writes);
        draw.drawn.remote += u64::from(is_remote);
        if is_remote {
            self.homes.set(place, draw.here);
        }
        let subscriber = self.part.unit(place);
        let row = |slot| subscriber * LAYOUT.slots() + slot;
        let (of_type, start) = (draw.rng.below(TYPES), draw.rng.below(STARTS));
        let (access, facility) = (row(ACCESS + of_type), row(FACILITY + of_type));
        let forwarding = |start| row(FORWARDING + of_type * STARTS + start);
        let rows = Rows::of(subscriber);
        let value = shown(subscriber, draw.rng.next_u64());
        transaction.kind = kind;
        // Absent rows are no failure here.
        transaction.tells = Tells::Integers;
        let mut change = Change { told: (0, 1), ..Change::exactly(0) };
        match kind {
            TransactionKind::GetSubscriberData => transaction.gets.push(row(0)),
            TransactionKind::GetAccessData => transaction.gets.push(access),
            TransactionKind::GetNewDestination => {
                transaction.gets.push(facility);
                transaction.gets.extend((0..=start).map(forwarding));
            }
            TransactionKind::UpdateSubscriberData if rows.has_facility(of_type) => {
                transaction.put(row(0), value);
                transaction.put(facility, value);
            }
            TransactionKind::UpdateSubscriberData => transaction.gets.push(facility),
            TransactionKind::UpdateLocation => {
                transaction.gets.push(row(NUMBER));
                transaction.put(row(0), value);
            }
            TransactionKind::InsertCallForwarding => {
                transaction.gets.extend([row(NUMBER), facility]);
                if rows.has_facility(of_type) {
                    let Content::Filler(number) = value else { unreachable!("as made above") };
                    transaction.put(forwarding(start), Content::FillerIfAbsent(number));
                    change = Change { told: (1, 1), bounds: (0, 1), ..change };
                }
            }
            _ => {
                transaction.gets.push(row(NUMBER));
                transaction.put(forwarding(start), Content::Absent);
                change = Change { told: (-1, 1), bounds: (-1, 0), ..change };
            }
        }
        self.book.begin(draw.turn.client, change);
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        self.book.end(client, answer);
    }

    fn home(&self, key: u64) -> u16 {
        self.homes.of(self.part.place(key / LAYOUT.slots()))
    }

    fn ledger(&self) -> Ledger {
        self.book.ledger()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_have_the_rows_of_the_specification() {
        const SUBSCRIBERS: u64 = 20_000;
        let mut counts = [[0_u32; 5]; 3];
        let mut facilities = 0;
        for rows in (0..SUBSCRIBERS).map(Rows::of) {
            counts[0][rows.access.count_ones() as usize] += 1;
            counts[1][rows.facilities.count_ones() as usize] += 1;
            facilities += u64::from(rows.facilities.count_ones());
            for kind in (0..TYPES).filter(|kind| rows.has_facility(*kind)) {
                let forwardings =
                    (0..STARTS).filter(|start| rows.has(FORWARDING + kind * STARTS + start));
                counts[2][forwardings.count()] += 1;
            }
        }
        for (of, quarter) in [(0, SUBSCRIBERS / 4), (1, SUBSCRIBERS / 4), (2, facilities / 4)] {
            let counts = if of == 2 { &counts[of][..4] } else { &counts[of][1..] };
            for count in counts.iter().map(|count| u64::from(*count)) {
                assert!(count.abs_diff(quarter) * 20 < quarter, "{of}: {counts:?}");
            }
        }
        // A facility of a type exists for 62.5% of all subscribers.
        let share = facilities as f64 / (SUBSCRIBERS * TYPES) as f64;
        assert!((share - 0.625).abs() < 0.005, "{share}");
    }

    #[test]
    fn nurand_prefers_numbers_with_many_ones() {
        let (mut rng, mut ones) = (Rng::new(5), 0_u32);
        const DRAWS: u32 = 100_000;
        let mut lowest = 0;
        for _ in 0..DRAWS {
            let drawn = nurand(&mut rng, 100_000);
            assert!(drawn < 100_000);
            // What was drawn before 1 was added, twice.
            ones += ((drawn + 99_998) % 100_000).count_ones();
            lowest += u32::from(drawn < 1000);
        }
        // Of the 17 bits of an evenly drawn number below 100,000, 8.2 are set on average; an OR with
        // another number of 16 bits leaves three quarters of the lower ones set.
        let mean = f64::from(ones) / f64::from(DRAWS);
        assert!(mean > 9.0, "{mean}");
        // Evenly drawn, 1,000 would be expected.
        assert!(lowest < 500, "{lowest}");
    }
}
