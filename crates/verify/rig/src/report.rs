//! The table of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::faults::{SCENARIOS, Scenario};
use crate::judge::Judgement;
use crate::rounds::Rows;

/// The results of the rounds of one scenario with one engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    rounds: u64,
    sum: Judgement,
    /// The longest time without any acknowledged write, of each round.
    gaps: Vec<Duration>,
    slowest_recovery: Duration,
}

/// All rows.
pub(crate) struct Report {
    nodes: u8,
    minutes: Option<u64>,
    rows: Rows,
    /// What became of writes that no flush had covered, by name.
    power: BTreeMap<&'static str, u64>,
    /// Whether a cluster did not recover.
    pub(crate) is_stuck: bool,
}

impl Report {
    pub(crate) fn new(nodes: u8, minutes: Option<u64>) -> Self {
        Self { nodes, minutes, rows: Rows::new(), power: BTreeMap::new(), is_stuck: false }
    }

    pub(crate) fn add(
        &mut self,
        engine: &'static str,
        scenario: &Scenario,
        judgement: &Judgement,
        gap: Duration,
        recovered: Duration,
    ) {
        let place = SCENARIOS.iter().position(|other| other.name == scenario.name);
        let row = self.rows.entry((engine, place.unwrap_or_default())).or_default();
        row.rounds += 1;
        row.sum.done += judgement.done;
        row.sum.refused += judgement.refused;
        row.sum.unknown += judgement.unknown;
        row.sum.asked_again += judgement.asked_again;
        row.sum.transactions += judgement.transactions;
        row.sum.undecided += judgement.undecided;
        row.sum.anomalies.extend(judgement.anomalies.iter().cloned());
        row.gaps.push(gap);
        row.slowest_recovery = row.slowest_recovery.max(recovered);
    }

    /// Adds what cuts of the power have done to the disks of a cluster.
    pub(crate) fn add_power(&mut self, cluster: &Cluster) {
        for (event, count) in cluster.power_events() {
            *self.power.entry(event).or_default() += count;
        }
    }

    pub(crate) fn anomalies(&self) -> usize {
        self.rows.values().map(|row| row.sum.anomalies.len()).sum()
    }

    pub(crate) fn undecided(&self) -> u64 {
        self.rows.values().map(|row| row.sum.undecided).sum()
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text =
            "| engine | fault | rounds | done | of these transactions | asked again | unknown \
                        | refused | anomalies | no write acknowledged: median, worst (ms) |\n\
                        | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
                .to_owned();
        for ((engine, place), row) in &self.rows {
            text += &format!(
                "| {engine} | {} | {} | {} | {} | {} | {} | {} | {} | {}, {} |\n",
                SCENARIOS[*place].what,
                row.rounds,
                row.sum.done,
                row.sum.transactions,
                row.sum.asked_again,
                row.sum.unknown,
                row.sum.refused,
                row.sum.anomalies.len(),
                median(&row.gaps).as_millis(),
                row.gaps.iter().max().copied().unwrap_or_default().as_millis()
            );
        }
        let done: u64 = self.rows.values().map(|row| row.sum.done).sum();
        let rounds: u64 = self.rows.values().map(|row| row.rounds).sum();
        let (anomalies, undecided) = (self.anomalies(), self.undecided());
        if !self.power.is_empty() {
            let events = self.power.iter().map(|(event, count)| format!("{count} {event}"));
            let events: Vec<_> = events.collect();
            text +=
                &format!("\nof what was not flushed when the power went: {}\n", events.join(", "));
        }
        text + &format!(
            "\n{} nodes, {rounds} rounds, {done} operations and transactions done, {anomalies} \
             anomalies, {undecided} keys undecided\n",
            self.nodes
        )
    }

    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|((engine, place), row)| {
                let gaps: Vec<u128> = row.gaps.iter().map(Duration::as_millis).collect();
                json!({
                    "engine": engine,
                    "fault": SCENARIOS[*place].name,
                    "rounds": row.rounds,
                    "done": row.sum.done,
                    "transactions": row.sum.transactions,
                    "asked_again": row.sum.asked_again,
                    "unknown": row.sum.unknown,
                    "refused": row.sum.refused,
                    "undecided": row.sum.undecided,
                    "anomalies": row.sum.anomalies,
                    "unavailable_ms": gaps,
                    "slowest_recovery_ms": row.slowest_recovery.as_millis(),
                })
            })
            .collect();
        json!({
            "nodes": self.nodes, "minutes": self.minutes, "power": self.power, "rows": rows,
        })
    }
}

/// For tables.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The middle one.
pub(crate) fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_scenario_add_up() {
        let mut report = Report::new(3, None);
        let judgement = Judgement { done: 5, unknown: 1, asked_again: 4, ..Judgement::default() };
        let bad = Judgement { anomalies: vec!["stale".to_owned()], ..judgement.clone() };
        for (judgement, millis) in [(&judgement, 10), (&bad, 30), (&judgement, 20)] {
            let gap = Duration::from_millis(millis);
            report.add("hermes", &SCENARIOS[0], judgement, gap, gap);
        }
        assert_eq!(report.anomalies(), 1);
        let row = "| hermes | SIGKILL of a node, restarted under a fresh incarnation | 3 | 15 | 0 | 12 \
                   | 3 | 0 | 1 | 20, 30 |";
        assert!(report.markdown().contains(row), "{}", report.markdown());
    }
}
