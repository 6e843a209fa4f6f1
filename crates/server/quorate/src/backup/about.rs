//! What a backup says of itself, in fields that readers of Redis's files pass over.
//!
//! ```text
//! quorate-backup     version of this format, 1
//! quorate-cluster    name of the cluster
//! ... keys ...
//! quorate-libraries  database                            before the libraries of functions of each
//! quorate-keyspace   database | engine | name            one for each that has keys
//! quorate-moment     "one" | milliseconds since 1970     all of it is of that moment
//!                    "each" | why                        each key is of a moment of its own
//! ```
//! The last one ends the file.

use std::collections::BTreeMap;

use quorate_rdb::Writer;

/// The version that is written, and the newest one that is read.
pub(crate) const VERSION: u64 = 1;

const BACKUP: &[u8] = b"quorate-backup";
const CLUSTER: &[u8] = b"quorate-cluster";
const KEYSPACE: &[u8] = b"quorate-keyspace";
const LIBRARIES: &[u8] = b"quorate-libraries";
const MOMENT: &[u8] = b"quorate-moment";

/// A keyspace of the cluster that was backed up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Keyspace {
    pub(crate) engine: String,
    pub(crate) name: String,
}

/// Of which moment a backup is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// All of it of this one, in milliseconds since 1970.
    One(u64),
    /// Each key of one of its own, and why.
    Each(String),
}

/// What a backup says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct About {
    /// The version of its format, and where in the file that stands.
    pub(crate) version: Option<(u64, u64)>,
    pub(crate) cluster: String,
    pub(crate) keyspaces: BTreeMap<u64, Keyspace>,
    pub(crate) libraries: BTreeMap<u64, Vec<Vec<u8>>>,
    pub(crate) moment: Option<Moment>,
    /// The database whose libraries come next.
    at: u64,
}

impl About {
    /// Writes what is known before the keys.
    pub(crate) fn write_begin(&self, writer: &mut Writer, out: &mut Vec<u8>) {
        writer.aux(BACKUP, VERSION.to_string().as_bytes(), out);
        writer.aux(CLUSTER, self.cluster.as_bytes(), out);
    }

    /// Writes what is known behind them.
    pub(crate) fn write_end(&self, writer: &mut Writer, out: &mut Vec<u8>) {
        for (database, libraries) in self.libraries.iter().filter(|(_, all)| !all.is_empty()) {
            writer.aux(LIBRARIES, database.to_string().as_bytes(), out);
            libraries.iter().for_each(|source| writer.function(source, out));
        }
        for (database, Keyspace { engine, name }) in &self.keyspaces {
            writer.aux(KEYSPACE, format!("{database} {engine} {name}").as_bytes(), out);
        }
        let moment = match &self.moment {
            Some(Moment::One(millis)) => format!("one {millis}"),
            Some(Moment::Each(why)) => format!("each {why}"),
            None => return,
        };
        writer.aux(MOMENT, moment.as_bytes(), out);
    }

    /// Takes a field of a file that ends at this offset.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8], offset: u64) {
        let text = String::from_utf8_lossy(value).into_owned();
        match name {
            BACKUP => self.version = Some((text.parse().unwrap_or(0), offset)),
            CLUSTER => self.cluster = text,
            LIBRARIES => self.at = text.parse().unwrap_or(0),
            KEYSPACE => {
                let mut words = text.splitn(3, ' ');
                let database = words.next().and_then(|word| word.parse().ok());
                if let (Some(database), Some(engine)) = (database, words.next()) {
                    let name = words.next().unwrap_or_default().to_owned();
                    self.keyspaces.insert(database, Keyspace { engine: engine.to_owned(), name });
                }
            }
            MOMENT => {
                self.moment = match text.split_once(' ') {
                    Some(("one", millis)) => millis.parse().ok().map(Moment::One),
                    Some(("each", why)) => Some(Moment::Each(why.to_owned())),
                    _ => None,
                };
            }
            _ => {}
        }
    }

    /// Takes the source of a library.
    pub(crate) fn take_library(&mut self, source: Vec<u8>) {
        self.libraries.entry(self.at).or_default().push(source);
    }
}

/// A moment as people write it, in UTC.
pub(crate) fn shown(millis: u64) -> String {
    // Days are counted from the first of March of the year 0, so that a leap day is the last of its year.
    let (days, rest) = (millis / 86_400_000 + 719_468, millis % 86_400_000);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (400 * era + year, month + 3),
        _ => (400 * era + year + 1, month - 9),
    };
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    let (seconds, millis) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_rdb::{Event, Payload, Reader, Step, crc64};

    fn about() -> About {
        let keyspace = |engine: &str, name: &str| Keyspace {
            engine: engine.to_owned(),
            name: name.to_owned(),
        };
        About {
            version: None,
            cluster: "a cluster".into(),
            keyspaces: [
                (0, keyspace("meerkat", "default")),
                (3, keyspace("hermes", "of two words")),
            ]
            .into(),
            libraries: [(0, vec![b"#!lua name=one\n".to_vec()]), (2, Vec::new())].into(),
            moment: Some(Moment::One(1_700_000_000_123)),
            at: 0,
        }
    }

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file);
        about().write_begin(&mut writer, &mut file);
        writer.database(3, 1, &mut file);
        let mut dumped = b"\x00\x05hello\x0a\x00".to_vec();
        let sum = crc64(&dumped).to_le_bytes();
        dumped.extend_from_slice(&sum);
        let payload = Payload::parse(&dumped).expect("a string");
        writer.key(b"greeting", Some(4_000_000_000_000), &payload, &mut file);
        about().write_end(&mut writer, &mut file);
        assert_eq!(writer.finish(&mut file), None);
        file
    }

    /// The bytes that every later version has to read.
    #[test]
    fn the_format_is_that_of_the_golden_file() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/backup-1.rdb");
        if std::env::var_os("QUORATE_BLESS").is_some() {
            std::fs::write(golden, file()).expect("the directory is there");
        }
        let golden = std::fs::read(golden).expect("the file is there");
        assert_eq!(file(), golden, "the format has changed without a new VERSION");
        let mut reader = Reader::new(Some(golden.len() as u64));
        reader.feed(&golden);
        let (mut read, mut keys) = (About::default(), 0);
        while let Step::Event(event) = reader.next().expect("it is whole") {
            match event {
                Event::Aux { name, value } => read.take(&name, &value, reader.offset()),
                Event::Function(source) => read.take_library(source),
                Event::Key(_) => keys += 1,
                _ => {}
            }
        }
        assert_eq!(keys, 1);
        assert_eq!(read.version, Some((VERSION, 27)));
        let mut wanted = About { version: read.version, ..about() };
        wanted.libraries.retain(|_, sources| !sources.is_empty());
        assert_eq!(read, wanted);
    }

    #[test]
    fn moments_are_days_and_hours() {
        for (millis, wanted) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_001, "2024-03-01T00:00:00.001Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(shown(millis), wanted);
        }
    }
}
