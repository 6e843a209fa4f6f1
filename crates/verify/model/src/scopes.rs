//! Every scope by name, with the number of its states.

use crate::explore::{Limits, Report};

mod control;
mod hermes;
mod hermes_revived;
mod meerkat;
mod meerkat_revived;
mod revived;
mod zeus;
mod zeus_extras;
mod zeus_more;
mod zeus_revived;

/// When a scope is explored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Size {
    /// In seconds, with the tests.
    Small,
    /// In a step of the gate.
    Gate,
    /// At night.
    Night,
}

/// A scope.
pub struct Entry {
    /// Its name: protocol, then topic.
    pub name: &'static str,
    /// When it is explored.
    pub size: Size,
    /// How many different states it has, if they have been counted.
    pub states: Option<usize>,
    /// Rare branches that it has to reach.
    pub reaches: &'static [&'static str],
    run: fn(&'static str, Limits) -> Report,
}

impl Entry {
    /// Explores it.
    pub fn explore(&self, limits: Limits) -> Report {
        (self.run)(self.name, limits)
    }

    /// Judges a report. Without `counts`, only a violation is an error.
    ///
    /// # Errors
    /// A violation in words, or a difference from the known scope.
    pub fn judge(&self, report: &Report, counts: bool) -> Result<(), String> {
        if let Some(trace) = &report.violation {
            let (name, states) = (self.name, report.states);
            let trace = trace.join("\n  ");
            return Err(format!("{name} is violated, after {states} states:\n  {trace}"));
        }
        if report.cut || !counts {
            return Ok(());
        }
        if let Some(states) = self.states.filter(|states| *states != report.states) {
            return Err(format!(
                "{} has {} states and had {states}: what the machines do has changed, or what is \
                 explored; if that is meant, write the new number down",
                self.name, report.states
            ));
        }
        match self.reaches.iter().find(|probe| !report.reached.contains(*probe)) {
            Some(probe) => Err(format!("{} never reaches \"{probe}\"", self.name)),
            None => Ok(()),
        }
    }
}

/// All scopes.
pub fn all() -> Vec<Entry> {
    let zeus =
        [zeus::entries(), zeus_more::entries(), zeus_extras::entries(), zeus_revived::entries()]
            .into_iter()
            .flatten()
            .collect();
    let protocols = [
        meerkat::entries(),
        meerkat_revived::entries(),
        hermes::entries(),
        hermes_revived::entries(),
        zeus,
        control::entries(),
    ];
    protocols.into_iter().flatten().collect()
}
