//! What a run may vary.

use std::fmt;
use std::str::FromStr;

use quorate_machine::Rng;
use quorate_node::Isolation;
use quorate_types::Duration;

/// Which faults the nemesis and the network may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Messages are lost.
    pub loss: bool,
    /// Messages arrive twice.
    pub duplication: bool,
    /// Messages overtake each other, some by seconds.
    pub reordering: bool,
    /// Nodes are cut off, or single links between two nodes, in one direction or both.
    pub partition: bool,
    /// Processes stop past their lease and go on, also in the middle of a loop turn.
    pub pause: bool,
    /// Processes die, also between two messages of one turn, and come back without memory.
    pub crash: bool,
    /// Clocks run at different rates, within the configured bound.
    pub drift: bool,
    /// Wall clocks differ and are set forwards and backwards, within what the engine is told.
    pub clock: bool,
}

impl Faults {
    /// A perfect network and immortal processes.
    pub const NONE: Self = Self {
        loss: false,
        duplication: false,
        reordering: false,
        partition: false,
        pause: false,
        crash: false,
        drift: false,
        clock: false,
    };

    /// Everything.
    pub const ALL: Self = Self {
        loss: true,
        duplication: true,
        reordering: true,
        partition: true,
        pause: true,
        crash: true,
        drift: true,
        clock: true,
    };

    /// The names that [`Faults::from_str`] understands.
    pub const NAMES: [&'static str; 8] =
        ["loss", "duplication", "reordering", "partition", "pause", "crash", "drift", "clock"];

    fn flags(&mut self) -> [&mut bool; 8] {
        [
            &mut self.loss,
            &mut self.duplication,
            &mut self.reordering,
            &mut self.partition,
            &mut self.pause,
            &mut self.crash,
            &mut self.drift,
            &mut self.clock,
        ]
    }

    /// A random part of these faults: a sweep whose runs all have every fault never sees what only
    /// a quiet network lets happen (swarm testing, Groce et al., ISSTA 2012).
    pub(crate) fn swarm(mut self, rng: &mut Rng) -> Self {
        for flag in self.flags() {
            *flag &= rng.chance(2, 3);
        }
        self
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut faults = *self;
        let names = Self::NAMES.iter().zip(faults.flags()).filter(|(_, on)| **on);
        let names: Vec<&str> = names.map(|(name, _)| *name).collect();
        f.write_str(&if names.is_empty() { "none".to_owned() } else { names.join(",") })
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let mut faults = Self::NONE;
        for name in text.split(',') {
            let index = Self::NAMES.iter().position(|known| *known == name.trim());
            let index = index.ok_or_else(|| {
                format!(
                    "no fault is called '{name}'; use all, none, or some of {}",
                    Self::NAMES.join(",")
                )
            })?;
            *faults.flags()[index] = true;
        }
        Ok(faults)
    }
}

/// The engine of the simulated keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// Single-key commands; judged by linearizability.
    #[default]
    Hermes,
    /// Transactions; judged by serializability, strict or not.
    Meerkat,
}

impl Engine {
    /// The names that [`Engine::from_str`] understands.
    pub const NAMES: [&'static str; 2] = ["hermes", "meerkat"];
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES[*self as usize])
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hermes" => Ok(Self::Hermes),
            "meerkat" => Ok(Self::Meerkat),
            _ => Err(format!("no engine is called '{text}'; use {}", Self::NAMES.join(" or "))),
        }
    }
}

/// The knobs of a run. [`Options::new`] has the defaults; a sweep draws some of them per seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The engine.
    pub engine: Engine,
    /// What transactions may rely on; drawn per seed if nothing is said.
    pub isolation: Option<Isolation>,
    /// How many nodes; drawn per seed (3, 5, and 7 with transactions) if nothing is said.
    pub nodes: Option<u16>,
    /// How many lanes; drawn per seed (1 or 2, and 3 with transactions) if nothing is said.
    pub lanes: Option<u16>,
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
            isolation: None,
            nodes: None,
            lanes: None,
            faults: Faults::ALL,
            clients: 8,
            keys: 5,
            safety_phase: Duration::from_secs(12),
            heal_limit: Duration::from_secs(20),
            trace: false,
        }
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
}
