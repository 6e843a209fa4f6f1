//! `CONFIG`: which parameters there are, what they accept, what Redis says when they don't.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quorate_commands::{parse_classes, parse_integer, show_classes};
use quorate_types::limits;

use crate::account::Share;
use crate::debug::ALLOWED;
use crate::session::quoted;
use crate::shared::{Shared, lock};
use quorate_commands::glob_match;

/// What `CONFIG SET` can change, with Redis's names and, where bounded memory allows it, Redis's
/// defaults.
#[derive(Debug)]
pub struct Settings {
    /// `maxmemory`: bytes of records and indexes above which commands that may add some are
    /// refused; 0 for no bound.
    pub max_memory: AtomicU64,
    /// `maxmemory-clients`: what clients may hold together, as [`Share::to_bits`] gives it; beyond
    /// it the largest are disconnected.
    pub max_memory_clients: AtomicU64,
    /// `maxclients`: connections of the node.
    pub max_clients: AtomicU64,
    /// What `maxclients` can be set to at most: as many as there are descriptors for.
    pub max_clients_ceiling: AtomicU64,
    /// `timeout`: seconds after which an idle client is disconnected; 0 for never.
    pub timeout_seconds: AtomicU64,
    /// `proto-max-bulk-len`: longest argument, in bytes.
    pub bulk_bytes_max: AtomicU64,
    /// `client-query-buffer-limit`: most bytes of one unfinished command, and of one `MULTI`'s
    /// queue.
    pub query_bytes_max: AtomicU64,
    /// `client-output-buffer-limit normal`: unsent reply bytes at which a client is disconnected;
    /// 0 for no bound.
    pub output_bytes_hard: AtomicU64,
    /// Who may use `DEBUG`: nobody, 1 for clients of the same machine, 2 for all.
    pub debug_command: AtomicU64,
    /// What a command takes at least to be in `SLOWLOG`, in microseconds; -1 for none, as bits.
    pub slowlog_micros: AtomicU64,
    /// The most entries of `SLOWLOG`.
    pub slowlog_entries: AtomicU64,
    /// What a command takes at least to be a spike of `LATENCY`, in milliseconds; 0 for none.
    pub latency_millis: AtomicU64,
    /// Unsent reply bytes at which a client is disconnected once they last; 0 for no bound.
    pub output_bytes_soft: AtomicU64,
    /// How long they may last, in seconds.
    pub output_soft_seconds: AtomicU64,
    /// The same three limits of replicas and of subscribers. There are no replicas that are clients, so
    /// theirs can be read and has no effect.
    pub other_output_limits: [[AtomicU64; 3]; 2],
    /// `latency-tracking-info-percentiles`: those that `INFO latencystats` shows.
    pub percentiles: Mutex<Vec<f64>>,
    /// `tracking-table-max-keys`: keys that are remembered for clients that keep what they read; 0 for
    /// no bound but that of bytes.
    pub tracked_keys_max: AtomicU64,
    /// Whether what was acknowledged is on disks (2), soon (1) or not (0), of the keyspace with most.
    pub log: AtomicU64,
    /// `notify-keyspace-events`: bits of [`quorate_commands::class`].
    pub notified_classes: AtomicU64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_memory: AtomicU64::new(0),
            max_memory_clients: AtomicU64::new(Share::Bytes(0).to_bits()),
            max_clients: AtomicU64::new(10_000),
            max_clients_ceiling: AtomicU64::new(u64::from(u32::MAX)),
            timeout_seconds: AtomicU64::new(0),
            bulk_bytes_max: AtomicU64::new(limits::VALUE_BYTES_MAX as u64),
            query_bytes_max: AtomicU64::new(4 * limits::VALUE_BYTES_MAX as u64),
            output_bytes_hard: AtomicU64::new(4 * limits::REPLY_BYTES_MAX as u64),
            debug_command: AtomicU64::new(0),
            slowlog_micros: AtomicU64::new(10_000),
            slowlog_entries: AtomicU64::new(128),
            latency_millis: AtomicU64::new(0),
            output_bytes_soft: AtomicU64::new(0),
            output_soft_seconds: AtomicU64::new(0),
            // Redis's defaults.
            other_output_limits: [[256 * MIB, 64 * MIB, 60], [32 * MIB, 8 * MIB, 60]]
                .map(|limits| limits.map(AtomicU64::new)),
            percentiles: Mutex::new(vec![50.0, 99.0, 99.9]),
            tracked_keys_max: AtomicU64::new(1_000_000),
            log: AtomicU64::new(0),
            notified_classes: AtomicU64::new(0),
        }
    }
}

const MIB: u64 = 1024 * 1024;
/// Spans of a command are 32 bits wide.
const QUERY_BYTES_CEILING: u64 = u32::MAX as u64;
/// The classes of clients that have limits of their output, by Redis's names.
const CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

/// Parameters that clients ask for and that have one possible value here.
const FIXED: [(&str, &str); 14] = [
    ("cluster-enabled", "no"),
    ("daemonize", "no"),
    ("hz", "10"),
    ("io-threads", "1"),
    ("latency-tracking", "yes"),
    ("lazyfree-lazy-user-del", "yes"),
    ("lazyfree-lazy-user-flush", "yes"),
    ("maxmemory-policy", "noeviction"),
    ("protected-mode", "no"),
    ("replicaof", ""),
    ("save", ""),
    ("slave-read-only", "no"),
    ("slaveof", ""),
    ("tcp-keepalive", "300"),
];

/// Where a collection leaves Redis's compact encoding, under the names of today and of before 7.0. They
/// are part of what commands do, which is the same on every node.
const ENCODINGS: [(&str, &str); 13] = [
    ("hash-max-listpack-entries", "512"),
    ("hash-max-listpack-value", "64"),
    ("hash-max-ziplist-entries", "512"),
    ("hash-max-ziplist-value", "64"),
    ("list-compress-depth", "0"),
    ("list-max-listpack-size", "-2"),
    ("list-max-ziplist-size", "-2"),
    ("set-max-intset-entries", "512"),
    ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"),
    ("zset-max-ziplist-entries", "128"),
    ("zset-max-ziplist-value", "64"),
    ("rdbcompression", "no"),
];

/// Parameters of a number, with Redis's kind and range.
struct Number {
    name: &'static str,
    field: fn(&Settings) -> &AtomicU64,
    bytes: bool,
    low: u64,
    high: u64,
}

const NUMBERS: [Number; 8] = [
    Number {
        name: "client-query-buffer-limit",
        field: |settings| &settings.query_bytes_max,
        bytes: true,
        low: MIB,
        high: QUERY_BYTES_CEILING,
    },
    Number {
        name: "latency-monitor-threshold",
        field: |settings| &settings.latency_millis,
        bytes: false,
        low: 0,
        high: i64::MAX as u64,
    },
    Number {
        name: "slowlog-max-len",
        field: |settings| &settings.slowlog_entries,
        bytes: false,
        low: 0,
        high: crate::limits::SLOWLOG_ENTRIES_MAX,
    },
    Number {
        name: "maxclients",
        field: |settings| &settings.max_clients,
        bytes: false,
        low: 1,
        high: u32::MAX as u64,
    },
    Number {
        name: "maxmemory",
        field: |settings| &settings.max_memory,
        bytes: true,
        low: 0,
        high: i64::MAX as u64,
    },
    Number {
        name: "proto-max-bulk-len",
        field: |settings| &settings.bulk_bytes_max,
        bytes: true,
        low: MIB,
        high: limits::VALUE_BYTES_MAX as u64,
    },
    Number {
        name: "tracking-table-max-keys",
        field: |settings| &settings.tracked_keys_max,
        bytes: false,
        low: 0,
        high: i64::MAX as u64,
    },
    Number {
        name: "timeout",
        field: |settings| &settings.timeout_seconds,
        bytes: false,
        low: 0,
        high: i32::MAX as u64,
    },
];

/// A checked change of one parameter.
enum Set {
    Number(fn(&Settings) -> &AtomicU64, u64),
    Password(String),
    OutputLimits([[u64; 3]; 3]),
    Percentiles(Vec<f64>),
    Nothing,
}

impl Shared {
    /// Every parameter that one of the patterns names, in order of name. One that is named
    /// without wildcards is given the name as it was asked for, as in Redis.
    pub(crate) fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, String)> {
        let mut found = self.parameters();
        found.retain_mut(|(name, _)| {
            let mut matching =
                patterns.iter().filter(|pattern| glob_match(pattern, name.as_bytes(), true));
            let Some(pattern) = matching.next() else { return false };
            if !pattern.iter().any(|byte| b"[*?".contains(byte)) {
                *name = String::from_utf8_lossy(pattern).into_owned();
            }
            true
        });
        found
    }

    fn parameters(&self) -> Vec<(String, String)> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut all: Vec<_> = FIXED.iter().chain(&ENCODINGS).map(own).collect();
        let (log, flush) = match self.settings.log.load(Relaxed) {
            0 => ("no", "everysec"),
            1 => ("yes", "everysec"),
            _ => ("yes", "always"),
        };
        all.extend([own(&("appendonly", log)), own(&("appendfsync", flush))]);
        let settings = &self.settings;
        for number in &NUMBERS {
            let value = (number.field)(settings).load(Relaxed);
            all.push((number.name.to_owned(), value.to_string()));
        }
        let limits = CLASSES.iter().zip(settings.output_limits()).map(|(class, limits)| {
            let [hard, soft, seconds] = limits.map(|limit| limit.load(Relaxed));
            format!("{class} {hard} {soft} {seconds}")
        });
        let limits = limits.collect::<Vec<_>>().join(" ");
        all.push(("client-output-buffer-limit".to_owned(), limits));
        let share = match Share::from_bits(settings.max_memory_clients.load(Relaxed)) {
            Share::Bytes(bytes) => bytes.to_string(),
            Share::Percent(percent) => format!("{percent}%"),
        };
        all.push(("maxmemory-clients".to_owned(), share));
        let classes = settings.notified_classes.load(Relaxed) as u32;
        all.push(("notify-keyspace-events".to_owned(), show_classes(classes)));
        let percentiles = lock(&settings.percentiles);
        let percentiles: Vec<_> = percentiles.iter().map(f64::to_string).collect();
        all.push(("latency-tracking-info-percentiles".to_owned(), percentiles.join(" ")));
        all.push(("databases".to_owned(), limits::KEYSPACES_MAX.to_string()));
        all.push(("requirepass".to_owned(), self.password()));
        let debug = ALLOWED[(settings.debug_command.load(Relaxed) as usize).min(2)];
        all.push(("enable-debug-command".to_owned(), debug.to_owned()));
        let slow = settings.slowlog_micros.load(Relaxed).cast_signed();
        all.push(("slowlog-log-slower-than".to_owned(), slow.to_string()));
        all.sort();
        all
    }

    /// Changes parameters, all or none.
    ///
    /// # Errors
    /// Redis's error text.
    pub(crate) fn config_set(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), String> {
        let mut changes = Vec::with_capacity(pairs.len());
        for (index, (name, value)) in pairs.iter().enumerate() {
            let shown = quoted(name);
            let failed = |why: &str| {
                format!("ERR CONFIG SET failed (possibly related to argument '{shown}') - {why}")
            };
            let lower = shown.to_ascii_lowercase();
            let known = self.parameters().iter().any(|(name, _)| *name == lower);
            if !known {
                return Err(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"
                ));
            }
            if pairs[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return Err(failed("duplicate parameter"));
            }
            changes.push(self.check(&lower, value).map_err(|why| failed(&why))?);
        }
        for change in changes {
            match change {
                Set::Number(field, value) => field(&self.settings).store(value, Relaxed),
                Set::Password(password) => self.set_password(Some(password)),
                Set::OutputLimits(wanted) => {
                    let limits = self.settings.output_limits().into_iter().flatten();
                    for (limit, wanted) in limits.zip(wanted.into_iter().flatten()) {
                        limit.store(wanted, Relaxed);
                    }
                }
                Set::Percentiles(percentiles) => {
                    *lock(&self.settings.percentiles) = percentiles;
                }
                Set::Nothing => {}
            }
        }
        Ok(())
    }

    fn check(&self, name: &str, value: &[u8]) -> Result<Set, String> {
        if let Some(number) = NUMBERS.iter().find(|number| number.name == name) {
            let checked = number.check(value)?;
            if let Set::Number(_, clients) = checked
                && number.name == "maxclients"
            {
                self.settings.check_clients(clients)?;
            }
            return Ok(checked);
        }
        match name {
            "requirepass" => match std::str::from_utf8(value) {
                Ok(password) => Ok(Set::Password(password.to_owned())),
                Err(_) => Err("the password must be valid UTF-8".to_owned()),
            },
            "maxmemory-clients" => match share(value) {
                Some(share) => {
                    Ok(Set::Number(|settings| &settings.max_memory_clients, share.to_bits()))
                }
                None => Err("argument must be a memory or percent value".to_owned()),
            },
            "slowlog-log-slower-than" => match parse_integer(value) {
                None => Err("argument couldn't be parsed into an integer".to_owned()),
                Some(micros) if micros < -1 => {
                    Err(format!("argument must be between -1 and {} inclusive", i64::MAX))
                }
                Some(micros) => {
                    Ok(Set::Number(|settings| &settings.slowlog_micros, micros.cast_unsigned()))
                }
            },
            "notify-keyspace-events" => match parse_classes(value) {
                Some(classes) => {
                    Ok(Set::Number(|settings| &settings.notified_classes, u64::from(classes)))
                }
                None => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned()),
            },
            "latency-tracking-info-percentiles" => percentiles(value),
            "client-output-buffer-limit" => output_limits(value, &self.settings),
            // Asking for what is anyway the case is no error: tools set `save ""`.
            name => {
                let current = self.parameters().into_iter().find(|(other, _)| other == name);
                if current.is_some_and(|(_, current)| current.as_bytes() == value) {
                    Ok(Set::Nothing)
                } else if let Some((_, fixed)) = ENCODINGS.iter().find(|(other, _)| *other == name)
                {
                    Err(format!("every node encodes values alike, so it is always {fixed} here"))
                } else {
                    Err("can't set immutable config".to_owned())
                }
            }
        }
    }
}

impl Settings {
    /// Whether there are descriptors for so many clients.
    fn check_clients(&self, clients: u64) -> Result<(), String> {
        let most = self.max_clients_ceiling.load(Relaxed);
        if clients <= most {
            return Ok(());
        }
        // Redis's words.
        Err(format!(
            "The operating system is not able to handle the specified number of clients, try with \
             {most}"
        ))
    }

    /// The limits of each of [`CLASSES`]: two numbers of bytes, and seconds.
    fn output_limits(&self) -> [[&AtomicU64; 3]; 3] {
        let normal = [&self.output_bytes_hard, &self.output_bytes_soft, &self.output_soft_seconds];
        let [slave, pubsub] = self.other_output_limits.each_ref().map(<[AtomicU64; 3]>::each_ref);
        [normal, slave, pubsub]
    }
}

impl Number {
    fn check(&self, value: &[u8]) -> Result<Set, String> {
        let parsed = if self.bytes {
            memory_size(value).ok_or("argument must be a memory value")?
        } else {
            let number =
                parse_integer(value).ok_or("argument couldn't be parsed into an integer")?;
            u64::try_from(number).unwrap_or(u64::MAX)
        };
        if !(self.low..=self.high).contains(&parsed) {
            return Err(format!(
                "argument must be between {} and {} inclusive",
                self.low, self.high
            ));
        }
        Ok(Set::Number(self.field, parsed))
    }
}

/// A number of bytes with an optional unit, as in `100mb`.
fn memory_size(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number: u64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    let unit = match text[digits..].to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1024,
        b"m" => 1_000_000,
        b"mb" => MIB,
        b"g" => 1_000_000_000,
        b"gb" => 1024 * MIB,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// A number of bytes, or a percentage with its sign.
fn share(text: &[u8]) -> Option<Share> {
    match text.strip_suffix(b"%") {
        Some(number) => {
            let percent = parse_integer(number).filter(|percent| (0..=100).contains(percent))?;
            Some(Share::Percent(percent as u8))
        }
        None => Some(Share::Bytes(memory_size(text).filter(|&bytes| bytes <= i64::MAX as u64)?)),
    }
}

/// The most percentiles that `INFO latencystats` shows.
const PERCENTILES_MAX: usize = 32;

fn percentiles(value: &[u8]) -> Result<Set, String> {
    const INVALID: &str = "Invalid latency-tracking-info-percentiles parameters";
    let text = std::str::from_utf8(value).map_err(|_| INVALID)?;
    let parsed: Result<Vec<f64>, _> = text.split_ascii_whitespace().map(str::parse).collect();
    let parsed = parsed.map_err(|_| INVALID)?;
    if parsed.len() > PERCENTILES_MAX {
        return Err(format!("there can be {PERCENTILES_MAX} percentiles at most"));
    }
    if !parsed.iter().all(|percentile| (0.0..=100.0).contains(percentile)) {
        return Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"
            .to_owned());
    }
    Ok(Set::Percentiles(parsed))
}

/// `<class> <hard> <soft> <seconds>`, several times.
fn output_limits(value: &[u8], settings: &Settings) -> Result<Set, String> {
    let text = String::from_utf8_lossy(value);
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
    }
    let mut limits = settings.output_limits().map(|class| class.map(|limit| limit.load(Relaxed)));
    for class in words.chunks(4) {
        let name = match class[0].to_ascii_lowercase() {
            name if name == "replica" => "slave".to_owned(),
            name => name,
        };
        let Some(place) = CLASSES.iter().position(|class| *class == name) else {
            return Err("Invalid client class specified in buffer limit configuration.".to_owned());
        };
        let numbers = (|| {
            let seconds = parse_integer(class[3].as_bytes())?;
            Some([
                memory_size(class[1].as_bytes())?,
                memory_size(class[2].as_bytes())?,
                u64::try_from(seconds).ok()?,
            ])
        })();
        let Some(numbers) = numbers else {
            return Err(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration."
                    .to_owned(),
            );
        };
        limits[place] = numbers;
    }
    Ok(Set::OutputLimits(limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(shared: &Shared, pairs: &[(&str, &str)]) -> Result<(), String> {
        let pairs: Vec<_> = pairs.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
        shared.config_set(&pairs)
    }

    #[test]
    fn a_change_is_all_or_nothing() {
        let shared = Shared::new(Settings::default(), None);
        assert!(set(&shared, &[("MaxMemory", "10mb"), ("timeout", "x")]).is_err());
        assert_eq!(shared.settings.max_memory.load(Relaxed), 0);
        set(&shared, &[("MaxMemory", "10mb"), ("timeout", "5")]).unwrap();
        assert_eq!(shared.settings.max_memory.load(Relaxed), 10 * MIB);
        assert_eq!(
            shared.config_get(&[b"t?meout", b"save"]),
            [("save".into(), "".into()), ("timeout".into(), "5".into())]
        );
        set(&shared, &[("save", ""), ("set-max-intset-entries", "512")]).unwrap();
        assert_eq!(
            shared.config_get(&[b"SET-max-intset-entries"]),
            [("SET-max-intset-entries".into(), "512".into())]
        );
    }

    #[test]
    fn errors_are_worded_as_in_redis() {
        let shared = Shared::new(Settings::default(), None);
        for (name, value, why) in [
            ("maxmemory", "abc", "argument must be a memory value"),
            ("maxclients", "x", "argument couldn't be parsed into an integer"),
            ("maxclients", "0", "argument must be between 1 and 4294967295 inclusive"),
            ("timeout", "-1", "argument must be between 0 and 2147483647 inclusive"),
            ("databases", "3", "can't set immutable config"),
            (
                "latency-tracking-info-percentiles",
                "50 x",
                "Invalid latency-tracking-info-percentiles parameters",
            ),
            (
                "latency-tracking-info-percentiles",
                "50 101",
                "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]",
            ),
            (
                "hash-max-listpack-entries",
                "8",
                "every node encodes values alike, so it is always 512 here",
            ),
            (
                "client-output-buffer-limit",
                "normal 5",
                "Wrong number of arguments in buffer limit configuration.",
            ),
        ] {
            let text =
                format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}");
            assert_eq!(set(&shared, &[(name, value)]), Err(text));
        }
        assert_eq!(
            set(&shared, &[("foo", "5")]),
            Err("ERR Unknown option or number of arguments for CONFIG SET - 'foo'".to_owned())
        );
    }

    #[test]
    fn output_limits_of_the_normal_class() {
        let shared = Shared::new(Settings::default(), None);
        set(&shared, &[("client-output-buffer-limit", "normal 2mb 1mb 10 pubsub 1 1 1")]).unwrap();
        assert_eq!(
            shared.config_get(&[b"client-output-buffer-limit"])[0].1,
            "normal 2097152 1048576 10 slave 268435456 67108864 60 pubsub 1 1 1"
        );
    }
}
