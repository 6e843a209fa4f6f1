//! Options and results of workloads with locality.

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use quorate_workloads::redis::Framing;
use quorate_workloads::{
    Audit, Benchmark, Drawn, Geography, Ledger, LocalGenerator, Moves, Report, Scenario,
    Territories, Verdict,
};
use serde::Serialize;

/// The latest move, in seconds.
const MOVE_AT_MAX: f64 = 86_400.0;

#[derive(Args, Debug)]
pub(super) struct LocalOptions {
    /// Percentage of write transactions whose keys were used at another node last. Handovers take
    /// only 0: no phone leaves its node; otherwise geography decides. Without it: of venmo 0.7 on
    /// up to 3 nodes and 1.2 on more, elsewhere 0
    #[arg(long, value_name = "PERCENT", value_parser = percent_parser, allow_negative_numbers = true)]
    remote: Option<f64>,
    /// How transactions are sent: block, whole; watch, those that depend on what they read read
    /// first, under WATCH
    #[arg(long, value_enum)]
    framing: Option<FramingArg>,
    /// Voter: seconds after the begin of the measurement at which voters move to the next node
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', value_parser = move_parser)]
    move_at: Vec<Duration>,
    /// Voter: transactions of a lane after which voters move to the next node
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "move_at")]
    move_after: Vec<u64>,
    /// Voter: how many voters move, all of one contestant; without it, all
    #[arg(long, value_name = "N")]
    movers: Option<u64>,
    /// Handovers: percentage of requests that are handovers [default: 2.5]
    #[arg(long, value_name = "PERCENT", value_parser = percent_parser)]
    handovers: Option<f64>,
    /// Handovers: how stations are dealt out over nodes [default: blocks]
    #[arg(long, value_enum)]
    territories: Option<TerritoriesArg>,
    /// Venmo: percentage of users that find other friends in each second [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = percent_parser)]
    rewired: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FramingArg {
    Block,
    Watch,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TerritoriesArg {
    Strips,
    Blocks,
}

fn percent_parser(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match (0.0..=100.0).contains(&percent) {
        true => Ok(percent),
        false => Err("a percentage lies between 0 and 100".to_owned()),
    }
}

fn move_parser(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match (0.0..=MOVE_AT_MAX).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("seconds lie between 0 and {MOVE_AT_MAX}")),
    }
}

impl LocalOptions {
    /// The scenario that they describe, on so many nodes, with so many units.
    pub(super) fn scenario(
        &self,
        benchmark: Benchmark,
        nodes: u16,
        units: u64,
    ) -> anyhow::Result<Scenario> {
        for (is_given, option, of) in [
            (!self.move_at.is_empty(), "--move-at", Benchmark::Voter),
            (!self.move_after.is_empty(), "--move-after", Benchmark::Voter),
            (self.movers.is_some(), "--movers", Benchmark::Voter),
            (self.handovers.is_some(), "--handovers", Benchmark::Handovers),
            (self.territories.is_some(), "--territories", Benchmark::Handovers),
            (self.rewired.is_some(), "--rewired", Benchmark::Venmo),
        ] {
            let (name, of_name) = (benchmark.name(), of.name());
            ensure!(!is_given || of == benchmark, "{name} has no {option}; it is for {of_name}");
        }
        let moves = match (self.move_at.is_empty(), self.move_after.is_empty()) {
            (true, true) => Moves::Never,
            (false, _) => Moves::At(self.move_at.clone()),
            (true, false) => Moves::After(self.move_after.clone()),
        };
        let standard = Scenario::new(benchmark, nodes, units);
        let share = |percent: f64| percent / 100.0;
        Ok(Scenario {
            remote: self.remote.map(share),
            moves,
            movers: self.movers,
            handovers: self.handovers.map_or(standard.handovers, share),
            territories: match self.territories {
                Some(TerritoriesArg::Strips) => Territories::Strips,
                Some(TerritoriesArg::Blocks) => Territories::Blocks,
                None => standard.territories,
            },
            rewired: self.rewired.map_or(standard.rewired, share),
            ..standard
        })
    }

    /// An error if one of them is given, to a workload that has none.
    pub(super) fn refuse(&self, name: &str) -> anyhow::Result<()> {
        for (is_given, option) in [
            (self.remote.is_some(), "--remote"),
            (self.framing.is_some(), "--framing"),
            (!self.move_at.is_empty(), "--move-at"),
            (!self.move_after.is_empty(), "--move-after"),
            (self.movers.is_some(), "--movers"),
            (self.handovers.is_some(), "--handovers"),
            (self.territories.is_some(), "--territories"),
            (self.rewired.is_some(), "--rewired"),
        ] {
            if is_given {
                let names: Vec<&str> = Benchmark::ALL.into_iter().map(Benchmark::name).collect();
                bail!("{name} has no {option}; it is for {}", names.join(", "));
            }
        }
        Ok(())
    }

    pub(super) fn framing(&self) -> Framing {
        match self.framing {
            Some(FramingArg::Watch) => Framing::Watch,
            Some(FramingArg::Block) | None => Framing::Block,
        }
    }

    /// With moves: how many transactions were done in each tenth of a second.
    pub(super) fn series(&self, report: &Report) -> Vec<u64> {
        match self.move_at.is_empty() && self.move_after.is_empty() {
            true => Vec::new(),
            false => report.done_by_tenths.clone(),
        }
    }
}

/// What was drawn in a run, and what its audit found.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub(super) struct Local {
    units: u64,
    framing: &'static str,
    /// Transactions that were drawn and may write.
    writes: u64,
    /// The share of them that used keys of another node, 0 to 1.
    remote_share: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Steps>,
    /// If every key could be read.
    audit: Option<AuditResult>,
}

/// Of handovers: which share of steps led to a station of another node, 0 to 1.
#[derive(Clone, PartialEq, Serialize, Debug)]
struct Steps {
    territories: &'static str,
    handovers: u64,
    crossing_share: f64,
    /// Of all steps of the grid, each equally often, by how it is cut.
    crossing_share_strips: f64,
    crossing_share_blocks: f64,
}

#[derive(Clone, PartialEq, Serialize, Debug)]
struct AuditResult {
    what: &'static str,
    /// The least that the sum may be; it is the most, too, unless the end of some transaction is
    /// not known.
    least: i64,
    most: i64,
    found: i64,
    violations: u64,
    first_violation: Option<String>,
    holds: bool,
}

impl AuditResult {
    fn new(verdict: Verdict) -> Self {
        let holds = verdict.holds();
        let Verdict { what, least, most, found, violations, first_violation } = verdict;
        Self { what, least, most, found, violations, first_violation, holds }
    }
}

impl Local {
    pub(super) fn new(
        scenario: &Scenario,
        framing: Framing,
        generators: &[LocalGenerator],
        audit: Option<Audit>,
    ) -> Self {
        let (mut drawn, mut ledger) = (Drawn::default(), Ledger::default());
        for generator in generators {
            drawn.absorb(&generator.drawn());
            ledger.absorb(&generator.ledger());
        }
        let crossing = |territories| Geography::new(territories, scenario.nodes).crossing_share();
        let steps = (scenario.benchmark == Benchmark::Handovers).then(|| Steps {
            territories: scenario.territories.name(),
            handovers: drawn.steps,
            crossing_share: drawn.crossings as f64 / drawn.steps.max(1) as f64,
            crossing_share_strips: crossing(Territories::Strips),
            crossing_share_blocks: crossing(Territories::Blocks),
        });
        Self {
            units: scenario.units,
            framing: if framing == Framing::Watch { "watch" } else { "block" },
            writes: drawn.writes,
            remote_share: drawn.remote_share(),
            steps,
            audit: audit.map(|audit| AuditResult::new(audit.judge(&ledger))),
        }
    }

    /// Lines of the table for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "remote     {:>10}  {:.2}% of {} writes, sent by {}",
            (self.remote_share * self.writes as f64).round(),
            self.remote_share * 100.0,
            self.writes,
            self.framing
        )];
        lines.extend(self.steps.as_ref().map(|steps| {
            format!(
                "handovers  {:>10}  {:.1}% to another node; of all steps {:.1}% with strips, {:.1}% \
                 with blocks (the paper: 6.2% on 6 nodes)",
                steps.handovers,
                steps.crossing_share * 100.0,
                steps.crossing_share_strips * 100.0,
                steps.crossing_share_blocks * 100.0
            )
        }));
        lines.push(match &self.audit {
            None => "audit               not done: some keys could not be read".to_owned(),
            Some(audit) => format!(
                "audit      {:>10}  {}, {}",
                audit.found,
                audit.what,
                if audit.holds { "as expected" } else { "WRONG" }
            ),
        });
        lines
    }

    /// An error if what must hold does not.
    pub(super) fn judge(&self) -> anyhow::Result<()> {
        let Some(audit) = &self.audit else { return Ok(()) };
        if let Some(first) = &audit.first_violation {
            bail!("the audit found {} violations, the first: {first}", audit.violations);
        }
        let AuditResult { what, least, most, found, .. } = audit;
        ensure!(
            audit.holds,
            "there are {found} {what}, not {least} to {most}: transactions were not atomic"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_times_are_bounded() {
        assert_eq!(percent_parser("0.7"), Ok(0.7));
        assert_eq!(move_parser("2"), Ok(Duration::from_secs(2)));
        for wrong in ["-1", "100.1", "nan", "many"] {
            assert!(percent_parser(wrong).is_err(), "{wrong}");
        }
        for wrong in ["-1", "1e9", "soon"] {
            assert!(move_parser(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_failed_audit_is_an_error() {
        let verdict = |found, violations: u64| Verdict {
            what: "votes",
            least: 5,
            most: 6,
            found,
            violations,
            first_violation: (violations > 0).then(|| "voter 1 is absent".to_owned()),
        };
        let local = |verdict| Local {
            units: 10,
            framing: "block",
            writes: 200,
            remote_share: 0.05,
            steps: None,
            audit: Some(AuditResult::new(verdict)),
        };
        let good = local(verdict(6, 0));
        assert!(good.judge().is_ok());
        let lines = good.lines();
        assert_eq!(lines[0], "remote             10  5.00% of 200 writes, sent by block");
        assert_eq!(lines[1], "audit               6  votes, as expected");
        let error = local(verdict(7, 0)).judge().unwrap_err().to_string();
        assert!(error.contains("7 votes, not 5 to 6"), "{error}");
        let error = local(verdict(6, 2)).judge().unwrap_err().to_string();
        assert!(error.contains("2 violations, the first: voter 1 is absent"), "{error}");
    }
}
