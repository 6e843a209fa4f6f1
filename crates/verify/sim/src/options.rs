//! The options of a run.

use std::fmt;
use std::str::FromStr;

use quorate_meerkat::Isolation;
use quorate_node::{Durability, EngineConfig};
use quorate_types::Duration;

use crate::disk_faults::DISK_PROBES;
use crate::{Beside, Faults, Shapes};

/// The engine of the first simulated keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// Single-key commands; judged by linearizability.
    #[default]
    Hermes,
    /// Transactions; judged by serializability, strict or not.
    Meerkat,
    /// Transactions on the node that owns their keys; judged by strict serializability.
    Zeus,
    /// Transactions on one node without a replica; judged by strict serializability.
    Local,
    /// The rival KuaFu++: one order at a primary; judged by strict serializability.
    KuaFu,
    /// The rival TAPIR: judged by serializability.
    Tapir,
    /// The rival Meerkat-PB: judged by serializability.
    MeerkatPb,
    /// Zeus's rival FaSST: locks at the primaries of keys; judged by strict serializability.
    Fasst,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Hermes,
        Self::Meerkat,
        Self::Zeus,
        Self::Local,
        Self::KuaFu,
        Self::Tapir,
        Self::MeerkatPb,
        Self::Fasst,
    ];

    /// The name that users give.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::Meerkat => "meerkat",
            Self::Zeus => "zeus",
            Self::Local => "local",
            Self::KuaFu => "kuafu",
            Self::Tapir => "tapir",
            Self::MeerkatPb => "meerkat-pb",
            Self::Fasst => "fasst",
        }
    }

    /// Whether it is a rival of one of the papers, which has no recovery.
    pub const fn is_rival(self) -> bool {
        matches!(self, Self::KuaFu | Self::Tapir | Self::MeerkatPb | Self::Fasst)
    }

    /// Whether it is simulated without keyspaces of other engines beside it: it does not survive
    /// what those do.
    pub const fn is_alone(self) -> bool {
        self.is_rival() || matches!(self, Self::Local)
    }

    /// Whether it keeps a log, and survives the loss of all power with it.
    pub(crate) fn is_durable(self) -> bool {
        let engine = EngineConfig::named(self.name());
        engine.is_some_and(|engine| engine.capabilities().durable)
    }

    /// Whether calls of sessions take effect exactly once.
    pub(crate) const fn has_sessions(self) -> bool {
        !self.is_rival()
    }

    /// The faults that it survives. Zeus's transactions that only read rest on the rates of clocks.
    /// Rivals have no recovery and send nothing twice. A single node has nobody to hear, and its data
    /// die with it.
    pub const fn survives(self) -> Faults {
        match self {
            Self::Hermes | Self::Meerkat => Faults::ALL,
            Self::Zeus => Faults { rate: false, ..Faults::ALL },
            Self::Local => Faults {
                pause: true,
                stall: true,
                drift: true,
                clock: true,
                failing: true,
                full: true,
                slow: true,
                ..Faults::NONE
            },
            Self::KuaFu | Self::Tapir | Self::MeerkatPb | Self::Fasst => {
                Faults { reordering: true, drift: true, clock: true, ..Faults::NONE }
            }
        }
    }

    /// Checks that the engine can run these options; otherwise the error names the possible ones.
    pub(crate) fn check(self, options: &Options) -> Result<(), String> {
        if self.is_rival() && !cfg!(feature = "baselines") {
            return Err(format!(
                "{self} is a measuring instrument, which this program was built without; build it \
                 with `cargo build --release -p quorate --features baselines`"
            ));
        }
        let (faults, survives) = (options.faults, self.survives());
        if faults.without(survives) != Faults::NONE {
            return Err(format!(
                "{self} does not survive {}, so there is nothing to see; it runs under {survives}",
                faults.without(survives)
            ));
        }
        if self == Self::Hermes && options.workload != Workload::Mix {
            return Err(format!(
                "{} consists of transactions, which hermes has not; choose another --engine",
                options.workload
            ));
        }
        if self != Self::Meerkat && options.guests.is_some_and(|guests| guests > 0) {
            return Err(format!("{self} has no guests: only meerkat's clients coordinate"));
        }
        if !self.has_sessions() && options.sessions.is_some_and(|sessions| sessions > 0) {
            return Err(format!("{self} has no sessions; choose hermes, meerkat, zeus or local"));
        }
        if options.disks && !self.is_durable() {
            return Err(format!(
                "{self} keeps nothing on disks; use --disks with another --engine"
            ));
        }
        let beside = Self::ALL.into_iter().find(|engine| options.beside.has(*engine));
        if self.is_alone() && beside.is_some() {
            return Err(format!("{self} is measured alone; --beside is for hermes and meerkat"));
        }
        if self == Self::Local && options.nodes.is_some_and(|nodes| nodes > 1) {
            return Err(format!("{self} keeps one copy, on a cluster of one node; use --nodes 1"));
        }
        if self == Self::Fasst && options.nodes.is_some_and(|nodes| nodes > 3) {
            return Err(format!(
                "{self} has three replicas of a key, and the simulator compares those of all \
                 nodes; use --nodes 3"
            ));
        }
        if self != Self::Meerkat && options.isolation.is_some() {
            return Err(format!("only meerkat has a choice of isolation, {self} has not"));
        }
        Ok(())
    }

    /// Whether a rare branch of this name can be reached in a run of the engine.
    pub fn has_probe(self, name: &str) -> bool {
        let part = name.split(':').next().unwrap_or_default();
        let engine = || EngineConfig::named(self.name());
        let places = || engine().is_some_and(|engine| engine.capabilities().places);
        let replicated = || engine().is_some_and(|engine| engine.capabilities().replicated);
        match part {
            "membership" => true,
            "rifl" => self.has_sessions(),
            "pubsub" => !self.is_rival() && replicated(),
            "node" => places(),
            part => part == self.name(),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|engine| engine.name() == text);
        found.ok_or_else(|| format!("no engine is called '{text}'; use one of {names}"))
    }
}

/// The work of clients of a keyspace with transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Workload {
    /// Lists, registers, two banks, a pair, counters, Retwis and YCSB-T, side by side.
    #[default]
    Mix,
    /// Retwis alone.
    Retwis,
    /// YCSB-T alone.
    YcsbT,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mix, Self::Retwis, Self::YcsbT];
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mix => "mix",
            Self::Retwis => "retwis",
            Self::YcsbT => "ycsb-t",
        })
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|workload| workload.to_string() == text);
        found.ok_or_else(|| format!("no workload is called '{text}'; use mix, retwis or ycsb-t"))
    }
}

/// A choice of isolation, as users give it: `None` is "any", where the seed decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isolations(pub Option<Isolation>);

impl fmt::Display for Isolations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "any",
            Some(Isolation::Strict) => "strict",
            Some(Isolation::Serializable) => "serializable",
        })
    }
}

impl FromStr for Isolations {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "any" => None,
            "strict" => Some(Isolation::Strict),
            "serializable" => Some(Isolation::Serializable),
            _ => return Err(format!("'{text}' is no isolation; use strict, serializable or any")),
        }))
    }
}

/// A choice of durability, as users give it: `None` is "any", where the seed decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Durabilities(pub Option<Durability>);

impl fmt::Display for Durabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("any", Durability::name))
    }
}

impl FromStr for Durabilities {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, Durability::named(text)) {
            ("any", _) => Ok(Self(None)),
            (_, Some(named @ (Durability::Async | Durability::Sync))) => Ok(Self(Some(named))),
            _ => Err(format!("'{text}' keeps nothing on disks; use sync, async or any")),
        }
    }
}

/// The knobs of a run. [`Options::new`] has the defaults; a sweep draws some of them per seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The engine.
    pub engine: Engine,
    /// The work of clients, if there are transactions.
    pub workload: Workload,
    /// The isolation of transactions; drawn per seed if `None`.
    pub isolation: Option<Isolation>,
    /// How many nodes; drawn per seed (3, 5, and 7 with transactions) if `None`.
    pub nodes: Option<u16>,
    /// How many lanes; drawn per seed (1 or 2, and 3 with transactions) if `None`.
    pub lanes: Option<u16>,
    /// How many clients coordinate transactions themselves; drawn per seed (0 to 2) if `None`.
    pub guests: Option<u16>,
    /// How many clients make calls of sessions; drawn per seed (0 to 3) if `None`.
    pub sessions: Option<u16>,
    /// The shapes that a cluster and its data may have; each run has a random part of them.
    pub shapes: Shapes,
    /// Which keyspaces there are beside the first one.
    pub beside: Beside,
    /// How many records are there from the start; drawn per seed if `None`.
    pub records: Option<u32>,
    /// How many of them are large; drawn per seed if `None`.
    pub large: Option<u32>,
    /// Whether nodes have disks and keep logs, so that the power of all may go.
    pub disks: bool,
    /// What keyspaces on disks promise; drawn per seed and keyspace if `None`.
    pub durability: Option<Durability>,
    /// Which faults may happen; each run uses a random part of them.
    pub faults: Faults,
    /// How many clients.
    pub clients: usize,
    /// How many keys.
    pub keys: usize,
    /// How long the safety phase lasts, in virtual time.
    pub safety_phase: Duration,
    /// How long healing may take, in virtual time.
    pub heal_limit: Duration,
    /// Whether to keep a line per event.
    pub trace: bool,
}

impl Options {
    /// The defaults of `quorate sim`.
    pub fn new() -> Self {
        Self {
            engine: Engine::Hermes,
            workload: Workload::Mix,
            isolation: None,
            nodes: None,
            lanes: None,
            guests: None,
            sessions: None,
            shapes: Shapes::USUAL,
            beside: Beside::Any,
            records: None,
            large: None,
            disks: false,
            durability: None,
            faults: Faults::ALL,
            clients: 8,
            keys: 5,
            safety_phase: Duration::from_secs(12),
            heal_limit: Duration::from_secs(20),
            trace: false,
        }
    }
}

impl Options {
    /// The defaults for an engine, under the faults that it survives.
    pub fn of(engine: Engine) -> Self {
        Self { engine, faults: engine.survives(), ..Self::new() }
    }

    /// Whether a run can have these options.
    ///
    /// # Errors
    /// An error names the possible options.
    pub fn check(&self) -> Result<(), String> {
        self.engine.check(self)
    }

    /// What happens to disks in runs of these options, by the names under which it is counted.
    pub fn disk_probes(&self) -> impl Iterator<Item = &'static str> {
        let may_be = move |needs: &Faults| needs.without(self.faults) == Faults::NONE;
        let all = DISK_PROBES.iter().filter(move |(_, needs)| self.disks && may_be(needs));
        all.map(|(name, _)| *name)
    }

    /// Whether every run of these options can reach a rare branch of this name.
    pub fn has_probe(&self, name: &str) -> bool {
        if name.starts_with("disk: ") {
            return self.disk_probes().any(|known| known == name);
        }
        let is_beside = |engine: Engine| self.beside.has(engine) && engine.has_probe(name);
        self.engine.has_probe(name) || Engine::ALL.into_iter().any(is_beside)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named_in_lists() {
        assert_eq!("all".parse(), Ok(Faults::ALL));
        assert_eq!("loss, crash".parse(), Ok(Faults { loss: true, crash: true, ..Faults::NONE }));
        assert_eq!(Faults::ALL.to_string().parse(), Ok(Faults::ALL));
        assert!("fire".parse::<Faults>().unwrap_err().contains("partition"));
    }

    #[test]
    fn names_come_back() {
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
            assert_eq!(Options::of(engine).check(), Ok(()));
        }
        for workload in Workload::ALL {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        for name in ["any", "sync", "async"] {
            assert_eq!(name.parse::<Durabilities>().unwrap().to_string(), name);
        }
        assert!("memory".parse::<Durabilities>().unwrap_err().contains("sync"));
        for name in ["any", "strict", "serializable"] {
            assert_eq!(name.parse::<Isolations>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn who_asks_for_what_an_engine_has_not_learns_what_it_has() {
        let crash = Faults { crash: true, clock: true, ..Faults::NONE };
        let options = Options { faults: crash, ..Options::of(Engine::Tapir) };
        let refusal = options.check().unwrap_err();
        assert!(refusal.contains("survive crash,"), "{refusal}");
        assert!(refusal.contains("reordering,drift,clock"), "{refusal}");
        let retwis = Options { workload: Workload::Retwis, ..Options::of(Engine::Hermes) };
        assert!(retwis.check().unwrap_err().contains("--engine"));
        let guests = Options { guests: Some(1), ..Options::of(Engine::KuaFu) };
        assert!(guests.check().unwrap_err().contains("guests"));
    }

    #[test]
    fn probes_belong_to_engines() {
        assert!(Engine::Meerkat.has_probe("meerkat: slow path"));
        assert!(Engine::Meerkat.has_probe("membership: a lagging node jumps over views"));
        assert!(Engine::Hermes.has_probe("node: command forwarded"));
        assert!(!Engine::Meerkat.has_probe("node: command forwarded"));
        assert!(!Engine::MeerkatPb.has_probe("meerkat: slow path"));
    }
}
