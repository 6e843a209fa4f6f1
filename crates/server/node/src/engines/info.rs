//! What users are told of an engine.

use std::sync::LazyLock;

use quorate_engine::{Capabilities, Engine, OptionSpec, OptionValue, Options, Unfit};
use quorate_machine::mutant;
use quorate_types::EngineId;

use super::EngineConfig;
use crate::Durability;

/// What users are told of an engine, from its [`Engine`].
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// The number in the header of its messages.
    pub id: EngineId,
    /// The name that users give.
    pub name: &'static str,
    /// What it is, in half a sentence.
    pub summary: &'static str,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What a configuration file may say of it.
    pub options: &'static [OptionSpec],
}

impl EngineInfo {
    pub(super) const fn of<E: Engine>() -> Self {
        Self {
            id: E::ID,
            name: E::NAME,
            summary: E::SUMMARY,
            capabilities: E::CAPABILITIES,
            options: <E::Options as Options>::SPECS,
        }
    }
}

/// The engine of a keyspace whose configuration names none: the first of the list.
impl Default for EngineConfig {
    fn default() -> Self {
        Self::first_with(|_| true)
    }
}

impl EngineConfig {
    /// The first engine of the list that can do something, with its default options.
    ///
    /// # Panics
    /// If none can.
    pub fn first_with(can: impl Fn(&Capabilities) -> bool) -> Self {
        let first = Self::ALL.iter().find(|engine| can(&engine.capabilities));
        let first = first.expect("some engine of the list can do what all of it is asked for");
        Self::named(first.name).expect("it is in the list")
    }

    /// The names of the engines that can do something, for an error that names the remedy: `'a'`,
    /// or `'a' or 'b'`.
    pub fn names_with(can: impl Fn(&Capabilities) -> bool) -> String {
        let able = Self::ALL.iter().filter(|engine| can(&engine.capabilities));
        let able = able.filter(|engine| engine.capabilities.recovers);
        able.map(|engine| format!("'{}'", engine.name)).collect::<Vec<_>>().join(" or ")
    }

    /// The answer to an update of several keys in a keyspace whose engine can't.
    pub fn crosskey() -> &'static str {
        static TEXT: LazyLock<String> = LazyLock::new(|| {
            format!(
                "CROSSKEY this keyspace's engine updates one key at a time; use a keyspace whose \
                 engine is {} for several keys in one transaction",
                EngineConfig::names_with(|can| can.transactions)
            )
        });
        &TEXT
    }

    /// The name of the engine with this number.
    pub fn name_of(id: EngineId) -> Option<&'static str> {
        Self::ALL.iter().find(|engine| engine.id == id).map(|engine| engine.name)
    }

    /// The name that configurations use.
    pub fn name(&self) -> &'static str {
        self.info().name
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        self.info().capabilities
    }

    /// Whether a keyspace of this engine can be kept like this.
    ///
    /// # Errors
    /// When it can't.
    pub fn check_durability(&self, durability: Durability) -> Result<(), Unfit> {
        let (can, name) = (self.capabilities(), self.name());
        if durability == Durability::Memory {
            return Ok(());
        }
        if !can.durable {
            let able = Self::names_with(|can| can.durable);
            return Err(Unfit {
                problem: format!("engine '{name}' keeps nothing on a disk"),
                remedy: format!("choose \"memory\", or engine {able}"),
            });
        }
        let is_sync = durability == Durability::Sync && !mutant!("node_unfit_options_logged");
        match self.unfit_for_sync().filter(|_| is_sync) {
            None => Ok(()),
            Some(problem) => Err(Unfit {
                problem: problem.to_owned(),
                remedy: "set it to false, or choose \"async\" or \"memory\"".to_owned(),
            }),
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// When the engine has no such option, or the value doesn't fit.
    pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<(), Unfit> {
        let info = self.info();
        let Some(spec) = info.options.iter().find(|spec| spec.name == name) else {
            return Err(Self::not_an_option(&info, name));
        };
        spec.kind.check(value)?;
        self.set_checked(name, value);
        Ok(())
    }

    fn not_an_option(info: &EngineInfo, name: &str) -> Unfit {
        let has = |engine: &&EngineInfo| engine.options.iter().any(|spec| spec.name == name);
        match Self::ALL.iter().find(has) {
            Some(other) => Unfit {
                problem: format!(
                    "it is an option of engine \"{}\", not of \"{}\"",
                    other.name, info.name
                ),
                remedy: format!("remove the key, or choose engine = \"{}\"", other.name),
            },
            None => Unfit {
                problem: format!("engine \"{}\" has no such option", info.name),
                remedy: match info.options {
                    [] => "remove the key".into(),
                    options => {
                        let names: Vec<_> = options.iter().map(|spec| spec.name).collect();
                        format!("remove the key; its options are {}", names.join(", "))
                    }
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quorate_wire::Kind;

    use super::*;

    #[test]
    fn every_engine_has_a_name_a_number_and_options_of_its_own() {
        let engines = EngineConfig::ALL;
        let names: BTreeSet<_> = engines.iter().map(|engine| engine.name).collect();
        let ids: BTreeSet<_> = engines.iter().map(|engine| engine.id).collect();
        assert_eq!((names.len(), ids.len()), (engines.len(), engines.len()));
        for engine in engines {
            assert!(Kind::is_for_engines(engine.id.0), "{engine:?}");
            let mut config = EngineConfig::named(engine.name).expect("it is in the list");
            assert_eq!(config.name(), engine.name);
            let before = config.clone();
            for spec in engine.options {
                let value = config.get(spec.name);
                config.set(spec.name, value).expect("a default fits");
            }
            assert_eq!(config, before, "defaults are set to what they are");
        }
    }

    #[test]
    fn an_option_of_another_engine_is_refused_with_its_name() {
        let mut hermes = EngineConfig::hermes();
        let unfit = hermes.set("isolation", OptionValue::Word("strict")).unwrap_err();
        assert!(unfit.remedy.contains("\"meerkat\""), "{unfit:?}");
        let unfit = hermes.set("colour", OptionValue::Word("red")).unwrap_err();
        assert!(unfit.remedy.contains("reads, ack_broadcast"), "{unfit:?}");
    }
}
