//! Handovers (Zeus §8.1): phones are served by base stations, and change the station as their
//! owners commute. Everything writes:
//!
//! | transaction | writes |
//! | --- | --- |
//! | service request, release | the phone and its station |
//! | start and end of a handover | the phone, its station and the next one |
//!
//! A phone takes 200 bytes, and so does a station, so that a request commits the paper's 400. The
//! first key of each transaction is the station at which it happens. One in five phones is mobile:
//! it commutes between two places 20 steps of 1 km apart, each step a handover; the others stay. A
//! phone has one transaction under way at a time, as its owner has one hand.
//!
//! The share of steps that lead to another node follows from how the grid of stations is cut
//! ([`Territories`]). The paper states 6.2% for six nodes and not how it cuts (Zeus §8): strips and
//! blocks lie on either side of that.

use std::collections::VecDeque;
use std::str::FromStr;

use quorate_machine::Rng;

use super::homes::Homes;
use super::{Draw, Ledger, Model, Part, Scenario};
use crate::layout::{Slot, UNIT_DIGITS};
use crate::{Answer, Content, Layout, Transaction, TransactionKind};

pub(super) const LAYOUT: Layout = Layout::new(&[
    Slot::string("phone:", UNIT_DIGITS, 200),
    Slot { is_hash: true, ..Slot::string("station:", UNIT_DIGITS, 190) },
]);

/// Stations in a row of the grid and in a column, 1 km apart.
const SIDE: u64 = 32;
/// Stations; their keys are those of the first units' second slot. The paper has 1,000.
pub(super) const STATIONS: u64 = SIDE * SIDE;
/// One in so many phones is mobile: 400,000 of 2 million.
const MOBILE_EACH: u64 = 5;
/// Steps of a one-way trip: drivers travel 100 km a day in five trips (Zeus §8).
const TRIP_STEPS: u64 = 20;
/// The share of requests that are handovers, typically (Zeus §8.1); the paper also measures twice
/// as much.
pub(super) const SHARE_TYPICAL: f64 = 0.025;

/// How stations are dealt out over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Territories {
    /// A strip from edge to edge for each node.
    Strips,
    /// Blocks as square as the number of nodes allows: two by three for six.
    Blocks,
}

impl Territories {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Strips, Self::Blocks];

    /// The name that users give.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strips => "strips",
            Self::Blocks => "blocks",
        }
    }
}

impl FromStr for Territories {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|territories| territories.name() == name);
        found.ok_or_else(|| format!("there are no territories {name:?}"))
    }
}

/// The stations of a grid, and the node of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geography {
    rows: u64,
    columns: u64,
}

impl Geography {
    /// The grid, cut for so many nodes.
    pub fn new(territories: Territories, nodes: u16) -> Self {
        let nodes = u64::from(nodes);
        let divides = |rows: &u64| nodes.is_multiple_of(*rows) && rows * rows <= nodes;
        let rows = match territories {
            Territories::Strips => 1,
            Territories::Blocks => (1..=nodes).rev().find(divides).unwrap_or(1),
        };
        Self { rows, columns: nodes / rows }
    }

    /// The node of a station.
    pub fn node(self, station: u64) -> u16 {
        let (x, y) = (station % SIDE, station / SIDE);
        (y * self.rows / SIDE * self.columns + x * self.columns / SIDE) as u16
    }

    /// The share of steps between neighbours that cross from node to node, each step equally
    /// often.
    pub fn crossing_share(self) -> f64 {
        let (mut steps, mut crossings) = (0.0, 0.0);
        for station in 0..STATIONS {
            let right = (station % SIDE + 1 < SIDE).then_some(station + 1);
            let below = (station / SIDE + 1 < SIDE).then_some(station + SIDE);
            for next in [right, below].into_iter().flatten() {
                steps += 1.0;
                crossings += f64::from(u8::from(self.node(station) != self.node(next)));
            }
        }
        crossings / steps
    }
}

/// What a phone's value shows: its station, and whether it is connected or between stations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Context {
    pub(super) station: u64,
    pub(super) connected: bool,
    pub(super) moving: bool,
}

impl Context {
    fn content(self) -> Content {
        let flags = u64::from(self.connected) | u64::from(self.moving) << 1;
        Content::Filler(self.station << 2 | flags)
    }

    /// The context that a value shows.
    pub(super) fn shown(number: i64) -> Option<Self> {
        let number = u64::try_from(number).ok()?;
        let (connected, moving) = (number & 1 == 1, number & 2 == 2);
        let station = number >> 2;
        (station < STATIONS).then_some(Self { station, connected, moving })
    }

    /// What the phone adds to the load of its station.
    pub(super) fn weight(self) -> i64 {
        1 + i64::from(self.connected)
    }
}

fn phone_key(phone: u64) -> u64 {
    phone * 2
}

fn station_key(station: u64) -> u64 {
    station * 2 + 1
}

pub(super) fn is_station(key: u64) -> bool {
    key % 2 == 1
}

/// Where a phone is at first.
fn first_station(phone: u64) -> u64 {
    Rng::new(phone ^ 0x5ce1_1000).below(STATIONS)
}

/// The load of each station at first.
pub(super) fn first_loads(phones: u64) -> Vec<i64> {
    let mut loads = vec![0; STATIONS as usize];
    (0..phones).for_each(|phone| loads[first_station(phone) as usize] += 1);
    loads
}

pub(super) fn first_content(loads: &[i64], key: u64) -> Option<Content> {
    if is_station(key) {
        return loads.get((key / 2) as usize).map(|load| Content::Load(*load));
    }
    let station = first_station(key / 2);
    Some(Context { station, connected: false, moving: false }.content())
}

/// A phone as its owner's generator knows it.
#[derive(Clone, Copy, Debug)]
struct Phone {
    context: Context,
    /// Whether a transaction of it is under way, or its state is not known any more.
    busy: bool,
    /// Whether it is on its way to work, or home.
    outward: bool,
}

/// The end of a handover that is due.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    phone: u64,
    station: u64,
}

/// What a transaction does to a phone if it is done.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The phone; none if none was free.
    phone: Option<u64>,
    then: Context,
    /// The next station of a handover that begins; of one that ends, the station that is left.
    other: Option<u64>,
}

pub(super) struct Handovers {
    part: Part,
    nodes: u16,
    share: f64,
    stays: bool,
    geography: Geography,
    phones: Vec<Phone>,
    /// The node of each phone's station.
    homes: Homes,
    /// Where the trips of mobile phones end; one after the other.
    trips: Vec<(u16, u16)>,
    /// By node, handovers that have begun.
    arrivals: Vec<VecDeque<Arrival>>,
    open: Vec<VecDeque<Step>>,
    unknown: u64,
}

impl Handovers {
    pub(super) fn new(scenario: &Scenario, part: Part, mut rng: Rng) -> Self {
        let count = part.units(scenario.units);
        let geography = Geography::new(scenario.territories, scenario.nodes);
        let mut homes = Homes::new(count, scenario.nodes);
        let mut phones = Vec::with_capacity(count as usize);
        let mut trips = Vec::new();
        for phone in 0..count {
            let station = first_station(part.unit(phone));
            homes.set(phone, geography.node(station));
            let context = Context { station, connected: false, moving: false };
            phones.push(Phone { context, busy: false, outward: true });
            if phone.is_multiple_of(MOBILE_EACH) {
                trips.push((station as u16, destination(station, &mut rng) as u16));
            }
        }
        Self {
            part,
            nodes: scenario.nodes,
            share: scenario.handovers,
            stays: scenario.remote == Some(0.0),
            geography,
            phones,
            homes,
            trips,
            arrivals: vec![VecDeque::new(); usize::from(scenario.nodes)],
            open: Vec::new(),
            unknown: 0,
        }
    }

    /// The next station on a phone's way.
    fn next_station(&mut self, phone: u64, rng: &mut Rng) -> u64 {
        let (home, work) = self.trips[(phone / MOBILE_EACH) as usize];
        let state = &mut self.phones[phone as usize];
        let at = state.context.station;
        if at == u64::from(if state.outward { work } else { home }) {
            state.outward = !state.outward;
        }
        let to = u64::from(if state.outward { work } else { home });
        let (left_x, left_y) = ((to % SIDE).abs_diff(at % SIDE), (to / SIDE).abs_diff(at / SIDE));
        if rng.below(left_x + left_y) < left_x {
            if to % SIDE > at % SIDE { at + 1 } else { at - 1 }
        } else if to > at {
            at + SIDE
        } else {
            at - SIDE
        }
    }

    fn begin(&mut self, draw: &Draw<'_>, step: Step) {
        let client = draw.turn.client;
        if self.open.len() <= client {
            self.open.resize_with(client + 1, VecDeque::new);
        }
        self.open[client].push_back(step);
        if let Some(phone) = step.phone {
            self.phones[phone as usize].busy = true;
        }
    }

    /// A phone of the client's node without a transaction under way, if any is free.
    fn draw_phone(&self, draw: &mut Draw<'_>, is_mobile: bool) -> Option<u64> {
        let each = if is_mobile { MOBILE_EACH } else { 1 };
        let count = (self.phones.len() as u64).div_ceil(each);
        let fits = |phone: u64| {
            let phone = &self.phones[phone as usize];
            !phone.busy && !phone.context.moving
        };
        self.homes.draw(draw.here, draw.rng, |rng| rng.below(count) * each, fits)
    }

    /// Begins a handover, unless no phone is free, or it is to stay at its node and wouldn't.
    fn start(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) -> bool {
        let Some(phone) = self.draw_phone(draw, true) else { return false };
        let next = self.next_station(phone, draw.rng);
        let old = self.phones[phone as usize].context;
        let crosses = self.geography.node(old.station) != self.geography.node(next);
        if crosses && self.stays {
            // It turns round.
            self.phones[phone as usize].outward ^= true;
            return false;
        }
        draw.drawn.steps += 1;
        draw.drawn.crossings += u64::from(crosses);
        draw.drawn.remote += u64::from(crosses);
        let then = Context { moving: true, ..old };
        transaction.kind = TransactionKind::HandoverStart;
        transaction.put(station_key(old.station), Content::LoadSum(0));
        transaction.put(phone_key(self.part.unit(phone)), then.content());
        transaction.put(station_key(next), Content::LoadSum(0));
        self.begin(draw, Step { phone: Some(phone), then, other: Some(next) });
        true
    }

    /// Ends a handover at its new station.
    fn arrive(&mut self, draw: &mut Draw<'_>, arrival: Arrival, transaction: &mut Transaction) {
        let Arrival { phone, station } = arrival;
        let old = self.phones[phone as usize].context;
        let then = Context { station, moving: false, ..old };
        let crosses = self.geography.node(old.station) != self.geography.node(station);
        draw.drawn.remote += u64::from(crosses);
        transaction.kind = TransactionKind::HandoverEnd;
        transaction.put(station_key(station), Content::LoadSum(then.weight()));
        transaction.put(phone_key(self.part.unit(phone)), then.content());
        transaction.put(station_key(old.station), Content::LoadSum(-old.weight()));
        self.begin(draw, Step { phone: Some(phone), then, other: Some(old.station) });
    }

    /// Serves a phone, or ends that. If none is free, as when the ends of too many transactions are
    /// not known, a station is written alone.
    fn serve(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) {
        let Some(phone) = self.draw_phone(draw, false) else {
            let station = draw.rng.below(STATIONS);
            transaction.kind = TransactionKind::ServiceRequest;
            transaction.put(station_key(station), Content::LoadSum(0));
            let then = Context { station, connected: false, moving: false };
            return self.begin(draw, Step { phone: None, then, other: None });
        };
        let old = self.phones[phone as usize].context;
        let then = Context { connected: !old.connected, ..old };
        transaction.kind = match then.connected {
            true => TransactionKind::ServiceRequest,
            false => TransactionKind::Release,
        };
        let change = then.weight() - old.weight();
        transaction.put(station_key(old.station), Content::LoadSum(change));
        transaction.put(phone_key(self.part.unit(phone)), then.content());
        self.begin(draw, Step { phone: Some(phone), then, other: None });
    }
}

/// A station at the distance of a trip.
fn destination(from: u64, rng: &mut Rng) -> u64 {
    let (x, y) = (from % SIDE, from / SIDE);
    loop {
        let along_x = rng.below(TRIP_STEPS + 1);
        let along_y = TRIP_STEPS - along_x;
        let to_x = if rng.chance(1, 2) { Some(x + along_x) } else { x.checked_sub(along_x) };
        let to_y = if rng.chance(1, 2) { Some(y + along_y) } else { y.checked_sub(along_y) };
        if let (Some(to_x @ 0..SIDE), Some(to_y @ 0..SIDE)) = (to_x, to_y) {
            return to_y * SIDE + to_x;
        }
    }
}

impl Model for Handovers {
    fn draw(&mut self, draw: &mut Draw<'_>, transaction: &mut Transaction) {
        draw.drawn.writes += 1;
        debug_assert!(draw.here < self.nodes);
        if let Some(arrival) = self.arrivals[usize::from(draw.here)].pop_front() {
            return self.arrive(draw, arrival, transaction);
        }
        if !draw.chance(self.share) || !self.start(draw, transaction) {
            self.serve(draw, transaction);
        }
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        let open = self.open.get_mut(client).and_then(VecDeque::pop_front);
        let Step { phone, then, other } = open.expect("a transaction ends after it began");
        let Some(phone) = phone else { return };
        let state = &mut self.phones[phone as usize];
        if answer.is_done() {
            state.busy = false;
            state.context = then;
            let node = self.geography.node(then.station);
            self.homes.set(phone, node);
            if let (true, Some(station)) = (then.moving, other) {
                let node = usize::from(self.geography.node(station));
                self.arrivals[node].push_back(Arrival { phone, station });
            }
        } else if *answer == Answer::Aborted {
            state.busy = false;
            // The end of a handover is due again.
            if let (false, Some(_)) = (then.moving, other) {
                let node = usize::from(self.geography.node(then.station));
                let station = then.station;
                self.arrivals[node].push_front(Arrival { phone, station });
            }
        } else {
            // Nobody knows what its context is: it is not used again.
            self.unknown += 1;
        }
    }

    fn home(&self, key: u64) -> u16 {
        let unit = key / LAYOUT.slots();
        match key % LAYOUT.slots() {
            0 => self.homes.of(self.part.place(unit)),
            _ => self.geography.node(unit % STATIONS),
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger { least: 0, most: 0, unknown: self.unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_share_of_crossings_lies_between_two_ways_to_cut() {
        let percent = |territories, nodes| {
            let share = Geography::new(territories, nodes).crossing_share();
            (share * 1000.0).round() / 10.0
        };
        assert_eq!(percent(Territories::Strips, 6), 8.1);
        assert_eq!(percent(Territories::Blocks, 6), 4.8);
        assert_eq!(percent(Territories::Strips, 3), 3.2);
        assert_eq!(percent(Territories::Blocks, 3), 3.2);
        assert_eq!(percent(Territories::Blocks, 1), 0.0);
    }

    #[test]
    fn every_node_has_its_share_of_the_stations() {
        for territories in Territories::ALL {
            for nodes in 1..=9 {
                let geography = Geography::new(territories, nodes);
                let mut counts = vec![0_u64; usize::from(nodes)];
                (0..STATIONS).for_each(|station| {
                    counts[usize::from(geography.node(station))] += 1;
                });
                let even = STATIONS / u64::from(nodes);
                assert!(counts.iter().all(|count| count.abs_diff(even) * 5 < even), "{counts:?}");
            }
        }
    }

    #[test]
    fn trips_have_their_length() {
        let mut rng = Rng::new(1);
        for from in 0..STATIONS {
            let to = destination(from, &mut rng);
            let steps = (from % SIDE).abs_diff(to % SIDE) + (from / SIDE).abs_diff(to / SIDE);
            assert_eq!(steps, TRIP_STEPS);
        }
    }

    #[test]
    fn contexts_are_shown() {
        for station in [0, 5, STATIONS - 1] {
            for (connected, moving) in [(false, false), (true, false), (true, true)] {
                let context = Context { station, connected, moving };
                let Content::Filler(number) = context.content() else { panic!("a filler") };
                assert_eq!(Context::shown(number as i64), Some(context));
            }
        }
        assert_eq!(Context::shown((STATIONS << 2) as i64), None);
        assert_eq!(Context::shown(-1), None);
    }
}
