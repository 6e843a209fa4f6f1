//! `--engine`: what may be given follows from the list of engines.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quorate_node::{EngineConfig, EngineInfo};

/// Takes the name of an engine that keeps data.
pub(crate) fn parser() -> impl TypedValueParser<Value = EngineConfig> {
    of(|engine| engine.capabilities.recovers)
}

/// Takes the name of any engine, instruments for measurements included.
pub(crate) fn any() -> impl TypedValueParser<Value = EngineConfig> {
    of(|_| true)
}

fn of(choose: fn(&EngineInfo) -> bool) -> impl TypedValueParser<Value = EngineConfig> {
    let engines = EngineConfig::ALL.iter().filter(|engine| choose(engine));
    let values = engines.map(|engine| PossibleValue::new(engine.name).help(engine.summary));
    PossibleValuesParser::new(values)
        .map(|name| EngineConfig::named(&name).expect("only names of the list are taken"))
}
