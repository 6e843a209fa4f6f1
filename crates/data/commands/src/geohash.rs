//! Positions on the earth as the scores of a sorted set: their longitude and latitude, 26 bits of each,
//! one bit of the one after one of the other, so that near positions have near scores.
//!
//! Redis's arithmetic, step for step, since its answers show all digits of it. The functions of
//! trigonometry are those of `libm`, which are the same on every machine, so replicas agree.

/// The mean radius of the earth in metres, as Redis has it.
const EARTH_RADIUS: f64 = 6_372_797.560_856;
const DEGREE: f64 = core::f64::consts::PI / 180.0;
/// Half the length of the equator in a Mercator projection, in metres.
const MERCATOR_MAX: f64 = 20_037_726.37;
const LATITUDE_MAX: f64 = 85.05112878;
const LONGITUDE_MAX: f64 = 180.0;
/// Bits of a longitude or a latitude in a score.
const STEP_MAX: u32 = 26;

/// A position in degrees.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Position {
    pub(crate) longitude: f64,
    pub(crate) latitude: f64,
}

impl Position {
    /// The position, if the projection has it.
    pub(crate) fn new(longitude: f64, latitude: f64) -> Option<Self> {
        let is_there = longitude.abs() <= LONGITUDE_MAX && latitude.abs() <= LATITUDE_MAX;
        is_there.then_some(Self { longitude, latitude })
    }

    /// The middle of the cell that a score stands for. Every number stands for one.
    pub(crate) fn of_score(score: f64) -> Self {
        let area = Cell { bits: whole(score), step: STEP_MAX }.area();
        let middle = |from: f64, to: f64, max: f64| ((from + to) / 2.0).clamp(-max, max);
        Self {
            longitude: middle(area.west, area.east, LONGITUDE_MAX),
            latitude: middle(area.south, area.north, LATITUDE_MAX),
        }
    }

    /// The score of a member at this position.
    pub(crate) fn score(self) -> f64 {
        Cell::around(self, STEP_MAX, LATITUDE_MAX).bits as f64
    }

    /// The distance in metres on a sphere.
    pub(crate) fn distance(self, other: Self) -> f64 {
        let [from, to] = [self.latitude * DEGREE, other.latitude * DEGREE];
        let v = libm::sin((other.longitude * DEGREE - self.longitude * DEGREE) / 2.0);
        if v == 0.0 {
            return EARTH_RADIUS * (to - from).abs();
        }
        let u = libm::sin((to - from) / 2.0);
        let a = u * u + libm::cos(from) * libm::cos(to) * v * v;
        2.0 * EARTH_RADIUS * libm::asin(libm::sqrt(a.min(1.0)))
    }

    /// The geohash that other programs know: 50 bits in letters, and a zero for the bits that are
    /// missing. Their latitudes go up to the poles.
    pub(crate) fn geohash(self) -> [u8; 11] {
        const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Cell::around(self, STEP_MAX, 90.0).bits;
        core::array::from_fn(|at| match at {
            10 => LETTERS[0],
            at => LETTERS[(bits >> (47 - 5 * at)) as usize & 0x1f],
        })
    }
}

/// A score as the bits of a cell, converted as x86-64 does it where C leaves it open.
fn whole(score: f64) -> u64 {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    let signed = |number: f64| {
        if (-TWO_TO_63..TWO_TO_63).contains(&number) { number as i64 } else { i64::MIN }
    };
    if score >= TWO_TO_63 {
        signed(score - TWO_TO_63).cast_unsigned() ^ 1 << 63
    } else {
        signed(score).cast_unsigned()
    }
}

/// One of the `4^step` equal parts of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    bits: u64,
    step: u32,
}

#[derive(Clone, Copy, Debug)]
struct Area {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

/// The bits of latitudes and those of longitudes.
const EVEN: u64 = 0x5555_5555_5555_5555;
const ODD: u64 = !EVEN;

impl Cell {
    /// The cell with this position on a map that reaches to these latitudes.
    fn around(position: Position, step: u32, latitude_max: f64) -> Self {
        let steps = (1_u64 << step) as f64;
        let share = |degrees: f64, max: f64| ((degrees + max) / (max * 2.0) * steps) as u32;
        let latitude = spread(share(position.latitude, latitude_max));
        Self { bits: latitude | spread(share(position.longitude, LONGITUDE_MAX)) << 1, step }
    }

    fn area(self) -> Area {
        let steps = (1_u64 << self.step) as f64;
        let (latitude, longitude) = (gather(self.bits), gather(self.bits >> 1));
        let degrees = |share: f64, max: f64| -max + share / steps * (max * 2.0);
        Area {
            west: degrees(f64::from(longitude), LONGITUDE_MAX),
            east: degrees(f64::from(longitude) + 1.0, LONGITUDE_MAX),
            south: degrees(f64::from(latitude), LATITUDE_MAX),
            north: degrees(f64::from(latitude) + 1.0, LATITUDE_MAX),
        }
    }

    /// The scores of the positions in it: from the first up to the second.
    pub(crate) fn scores(self) -> (f64, f64) {
        let aligned = |bits: u64| (bits << (2 * (STEP_MAX - self.step))) as f64;
        (aligned(self.bits), aligned(self.bits + 1))
    }

    /// The cell so many to the east and to the north, around the edges of the map.
    fn beside(self, east: i64, north: i64) -> Self {
        let mask = |bits: u64| bits >> (64 - 2 * self.step);
        // Adding to the bits of one direction carries over those of the other if these are all set.
        let moved = |own: u64, other: u64, by: i64| {
            let (held, filled) = (self.bits & own, mask(other));
            let moved = match by {
                0 => return held,
                1 => held.wrapping_add(filled + 1),
                _ => (held | filled).wrapping_sub(filled + 1),
            };
            moved & mask(own)
        };
        Self { bits: moved(ODD, EVEN, east) | moved(EVEN, ODD, north), ..self }
    }
}

/// Puts a zero before each bit.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in SPREADS {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Takes every other bit, the lowest first.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & EVEN;
    for (at, (shift, _)) in SPREADS.iter().enumerate().rev() {
        let mask = if at == 0 { u64::from(u32::MAX) } else { SPREADS[at - 1].1 };
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

const SPREADS: [(u32, u64); 5] = [
    (16, 0x0000_ffff_0000_ffff),
    (8, 0x00ff_00ff_00ff_00ff),
    (4, 0x0f0f_0f0f_0f0f_0f0f),
    (2, 0x3333_3333_3333_3333),
    (1, EVEN),
];

/// What a search covers around its centre, in metres.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Shape {
    Circle { radius: f64 },
    Box { width: f64, height: f64 },
}

impl Shape {
    /// The distance of a position from the centre if the shape covers it.
    pub(crate) fn distance(self, centre: Position, other: Position) -> Option<f64> {
        match self {
            Self::Circle { radius } => {
                let distance = centre.distance(other);
                if distance > radius { None } else { Some(distance) }
            }
            Self::Box { width, height } => {
                let corner = Position { longitude: centre.longitude, ..other };
                let meridian = Position { latitude: centre.latitude, ..other };
                let is_outside =
                    other.distance(corner) > width / 2.0 || other.distance(meridian) > height / 2.0;
                (!is_outside).then(|| centre.distance(other))
            }
        }
    }

    /// How many bits of a longitude and a latitude make cells that cover it with their neighbours.
    fn step(self, centre: Position) -> u32 {
        let mut reach = match self {
            Self::Circle { radius } => radius,
            Self::Box { width, height } => {
                libm::sqrt((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0))
            }
        };
        if reach == 0.0 {
            return STEP_MAX;
        }
        let mut step = 1_i32;
        while reach < MERCATOR_MAX {
            reach *= 2.0;
            step += 1;
        }
        // Cells are narrower towards the poles.
        let latitude = centre.latitude.abs();
        step -= 2 + i32::from(latitude > 66.0) + i32::from(latitude > 80.0);
        step.clamp(1, STEP_MAX as i32).unsigned_abs()
    }

    /// The area that contains it.
    fn bounds(self, centre: Position) -> Area {
        let (width, height) = match self {
            Self::Circle { radius } => (radius, radius),
            Self::Box { width, height } => (width / 2.0, height / 2.0),
        };
        let latitudes = height / EARTH_RADIUS / DEGREE;
        // Meridians are closer to each other on the side of the pole.
        let side = if centre.latitude < 0.0 { -latitudes } else { latitudes };
        let longitudes =
            width / EARTH_RADIUS / libm::cos((centre.latitude + side) * DEGREE) / DEGREE;
        Area {
            west: centre.longitude - longitudes,
            east: centre.longitude + longitudes,
            south: centre.latitude - latitudes,
            north: centre.latitude + latitudes,
        }
    }

    /// The cells in which its positions are, in the order in which Redis looks through them. Where the
    /// shape is as large as the map, a cell may come twice.
    pub(crate) fn cells(self, centre: Position) -> impl Iterator<Item = Cell> {
        let bounds = self.bounds(centre);
        let mut step = self.step(centre);
        let mut cell = Cell::around(centre, step, LATITUDE_MAX);
        let is_beyond = bounds.north > cell.beside(0, 1).area().north
            || bounds.south < cell.beside(0, -1).area().south
            || bounds.east > cell.beside(1, 0).area().east
            || bounds.west < cell.beside(-1, 0).area().west;
        if step > 1 && is_beyond {
            step -= 1;
            cell = Cell::around(centre, step, LATITUDE_MAX);
        }
        let area = cell.area();
        let is_useless = move |east: i64, north: i64| {
            step >= 2
                && (north < 0 && area.south < bounds.south
                    || north > 0 && area.north > bounds.north
                    || east < 0 && area.west < bounds.west
                    || east > 0 && area.east > bounds.east)
        };
        let ways = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut last = None;
        ways.into_iter()
            .filter(move |(east, north)| !is_useless(*east, *north))
            .enumerate()
            .filter_map(move |(at, (east, north))| {
                let cell = cell.beside(east, north);
                if last == Some(cell) {
                    return None;
                }
                // Redis compares a neighbour with the one before, not with the cell in the middle.
                last = (at > 0).then_some(cell);
                Some(cell)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_two_numbers_take_turns() {
        for number in [0, 1, 2, 0x1234_5678, u32::MAX] {
            assert_eq!(gather(spread(number)), number);
            assert_eq!(spread(number) & ODD, 0);
        }
        assert_eq!(spread(0b1011), 0b100_0101);
    }

    #[test]
    fn neighbours_lie_beside_each_other_and_around_the_map() {
        let centre = Position { longitude: 13.4, latitude: 52.5 };
        for step in 1..=STEP_MAX {
            let cell = Cell::around(centre, step, LATITUDE_MAX);
            assert_eq!(cell.beside(1, 1).beside(-1, -1), cell);
            if step > 4 {
                assert_eq!(cell.beside(1, 0).area().west, cell.area().east);
                assert_eq!(cell.beside(0, -1).area().north, cell.area().south);
            }
        }
        let edge = Position { longitude: -179.9, latitude: 0.1 };
        let edge = Cell::around(edge, 10, LATITUDE_MAX);
        assert_eq!(edge.beside(-1, 0).area().east, 180.0);
    }

    /// What C leaves open, as gcc does it on x86-64.
    #[test]
    fn any_score_is_some_position() {
        for (score, bits) in [
            (-1.0, u64::MAX),
            (-1e300, 1 << 63),
            (f64::NAN, 1 << 63),
            (1.5, 1),
            (9_223_372_036_854_775_808.0, 1 << 63),
            (f64::INFINITY, 0),
        ] {
            assert_eq!(whole(score), bits, "{score}");
            let position = Position::of_score(score);
            assert!(Position::new(position.longitude, position.latitude).is_some());
        }
    }
}
