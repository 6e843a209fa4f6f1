//! Random commands on positions: members lie around a few places, so that searches find some of them.

use super::Draw;
use crate::workspace::Words;

/// Longitudes and latitudes. Some lie at the edges of the map and near the poles.
const PLACES: &[(f64, f64)] = &[
    (13.361389, 38.115556),
    (15.087269, 37.502669),
    (-122.4, 37.8),
    (179.9, 10.0),
    (-179.9, 10.1),
    (0.0, 0.0),
    (25.0, 84.9),
    (-60.0, -70.0),
    (140.0, -35.0),
];

const BAD_NUMBERS: &[&str] = &["x", "", "nan", "181", "-85.06", "inf", "1e400", "-1"];

const MEMBERS: &[&str] = &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "none"];

const NAMES: &[&str] = &[
    "GEOADD",
    "GEOADD",
    "GEOADD",
    "GEOADD",
    "GEODIST",
    "GEODIST",
    "GEOHASH",
    "GEOPOS",
    "GEOPOS",
    "GEOSEARCH",
    "GEOSEARCH",
    "GEOSEARCH",
    "GEOSEARCHSTORE",
    "GEORADIUS",
    "GEORADIUS",
    "GEORADIUS_RO",
    "GEORADIUSBYMEMBER",
    "GEORADIUSBYMEMBER_RO",
    "ZRANGE",
    "ZREM",
    "DEL",
];

/// How the results of a search may be stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stores {
    Never,
    /// With `STORE` or `STOREDIST`.
    ByOption,
    /// The command names its target.
    Always,
}

impl Draw {
    fn geo_key(&mut self) -> Vec<u8> {
        // Sorted sets whose scores are no positions, and keys of other types.
        match self.rng.below(12) {
            0 => self.pick(&["z1", "z2"]).into(),
            1 => self.key(),
            _ => self.pick(&["g1", "g2"]).into(),
        }
    }

    fn place(&mut self) -> [Vec<u8>; 2] {
        let (longitude, latitude) = self.pick(PLACES);
        // Far enough from each other that no two members are as far from a third.
        let spread = self.pick(&[0.001, 0.1, 1.0, 20.0]);
        let mut near = |degrees: f64, max: f64| {
            let offset = (self.rng.below(2_000_001) as f64 / 1e6 - 1.0) * spread;
            format!("{:.9}", (degrees + offset).clamp(-max, max)).into_bytes()
        };
        let mut place = [near(longitude, 180.0), near(latitude, 85.05)];
        if self.rng.chance(1, 40) {
            place[self.rng.below(2) as usize] = self.pick(BAD_NUMBERS).into();
        }
        place
    }

    fn geo_member(&mut self) -> Vec<u8> {
        self.pick(MEMBERS).into()
    }

    fn length(&mut self) -> Vec<u8> {
        match self.rng.below(20) {
            0 => self.pick(BAD_NUMBERS).into(),
            1 => self.pick(&["0", "1e-320", "1e300", "25000"]).into(),
            _ => {
                let tens = self.pick(&[1, 10, 100, 1000, 5000]);
                (self.rng.below(tens * 10) as f64 / 10.0).to_string().into()
            }
        }
    }

    fn unit(&mut self) -> Vec<u8> {
        let unit = self.pick(&["m", "km", "km", "km", "km", "mi", "ft", "parsec"]);
        if self.rng.chance(1, 4) { self.any_case(unit) } else { unit.into() }
    }

    pub(crate) fn geo_command(&mut self) -> Words {
        let name = self.pick(NAMES);
        let mut words = vec![self.any_case(name)];
        if name == "GEOSEARCHSTORE" {
            words.push(self.pick(&["g1", "g3"]).into());
        }
        words.push(self.geo_key());
        match name {
            "GEOADD" => {
                if self.rng.chance(1, 3) {
                    words.push(self.pick(&["NX", "XX", "CH", "ch", "GT"]).into());
                }
                for _ in 0..self.pick(&[1, 2, 3, 6]) {
                    words.extend(self.place());
                    words.push(self.geo_member());
                }
            }
            "GEODIST" => {
                words.extend([self.geo_member(), self.geo_member()]);
                if self.rng.chance(1, 2) {
                    words.push(self.unit());
                }
            }
            "GEOHASH" | "GEOPOS" => {
                words.extend((0..self.rng.below(4)).map(|_| self.geo_member()));
            }
            "GEOSEARCH" => self.search(Stores::Never, &mut words),
            "GEOSEARCHSTORE" => self.search(Stores::Always, &mut words),
            "GEORADIUS" | "GEORADIUS_RO" => {
                words.extend(self.place());
                words.extend([self.length(), self.unit()]);
                let stores = if name.ends_with('O') { Stores::Never } else { Stores::ByOption };
                self.search_options(stores, &mut words);
            }
            "GEORADIUSBYMEMBER" | "GEORADIUSBYMEMBER_RO" => {
                words.extend([self.geo_member(), self.length(), self.unit()]);
                let stores = if name.ends_with('O') { Stores::Never } else { Stores::ByOption };
                self.search_options(stores, &mut words);
            }
            "ZRANGE" => words.extend(["0", "-1", "WITHSCORES"].map(Into::into)),
            "ZREM" => words.push(self.geo_member()),
            _ => {}
        }
        self.damage(&mut words);
        words
    }

    fn search(&mut self, stores: Stores, words: &mut Words) {
        if self.rng.chance(1, 2) {
            words.extend([self.any_case("FROMMEMBER"), self.geo_member()]);
        } else {
            words.push(self.any_case("FROMLONLAT"));
            words.extend(self.place());
        }
        if self.rng.chance(1, 2) {
            words.extend([self.any_case("BYRADIUS"), self.length(), self.unit()]);
        } else {
            words.extend([self.any_case("BYBOX"), self.length(), self.length(), self.unit()]);
        }
        self.search_options(stores, words);
    }

    fn search_options(&mut self, stores: Stores, words: &mut Words) {
        for _ in 0..self.pick(&[0, 1, 1, 2, 3, 4]) {
            let option = self.pick(&[
                "WITHDIST",
                "WITHHASH",
                "WITHCOORD",
                "ASC",
                "DESC",
                "COUNT",
                "COUNT",
                "ANY",
                "FOO",
            ]);
            let is_refused = stores == Stores::Always && option.starts_with("WITH");
            if is_refused && self.rng.chance(9, 10) || option == "FOO" && self.rng.chance(3, 4) {
                continue;
            }
            words.push(self.any_case(option));
            if option == "COUNT" {
                words.push(self.pick(&["1", "2", "3", "10", "0", "x"]).into());
            }
        }
        match stores {
            Stores::ByOption if self.rng.chance(1, 6) => {
                words.extend([self.any_case("STORE"), b"g2".into()]);
            }
            // Redis's last digits of a distance are those of its C library: they aren't asked for.
            Stores::ByOption if self.rng.chance(1, 12) => {
                words.extend([self.any_case("STOREDIST"), b"distances".into()]);
            }
            _ => {}
        }
    }
}
