//! `LATENCY`: how long commands took, as a histogram of each and as spikes above a threshold.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Args, Reply, ServerCommand, Spec, flag, lookup_name};
use quorate_types::Duration;

use crate::backend::Backend;
use crate::dispatch::Context;
use crate::limits;
use crate::session::{bulk, failure, quoted};
use crate::shared::{Shared, lock};

const DISABLED: &str = "Latency monitoring is disabled on this node. CONFIG SET \
                        latency-monitor-threshold <milliseconds> enables it; SLOWLOG GET and INFO \
                        commandstats tell of latency without it.\n";
const QUIET: &str =
    "No latency spike was observed on this node since it started or LATENCY RESET.\n";

/// The spikes of one node, by event.
#[derive(Debug, Default)]
pub(crate) struct Spikes(Mutex<BTreeMap<&'static str, Series>>);

/// The spikes of one event: for each second the longest one.
#[derive(Clone, Debug, Default)]
struct Series {
    /// Seconds since 1970 and milliseconds, the oldest first.
    samples: VecDeque<(u64, u64)>,
    longest: u64,
}

impl Series {
    fn add(&mut self, second: u64, millis: u64) {
        self.longest = self.longest.max(millis);
        match self.samples.back_mut() {
            Some((last, longest)) if *last == second => *longest = millis.max(*longest),
            _ => self.samples.push_back((second, millis)),
        }
        if self.samples.len() > limits::LATENCY_SAMPLES {
            self.samples.pop_front();
        }
    }
}

impl Shared {
    /// A command has taken so long.
    pub(crate) fn note_spike(&self, unix_seconds: u64, took: Duration, spec: &Spec) {
        let threshold = self.settings.latency_millis.load(Relaxed);
        let millis = took.as_millis() as u64;
        if threshold == 0 || millis < threshold {
            return;
        }
        let event = if spec.flags.has(flag::FAST) { "fast-command" } else { "command" };
        lock(&self.spikes.0).entry(event).or_default().add(unix_seconds, millis);
    }
}

impl<B: Backend> Context<'_, B> {
    pub(crate) fn latency(&mut self, command: ServerCommand, args: Args<'_>) -> Reply<'static> {
        let shared = &self.core.shared;
        let mut spikes = lock(&shared.spikes.0);
        let int = |number: u64| Reply::Int(number as i64);
        match command {
            ServerCommand::LatencyLatest => {
                let latest = |(event, series): (&&'static str, &Series)| {
                    let (second, millis) = *series.samples.back()?;
                    let longest = int(series.longest);
                    let event = Reply::text(event);
                    Some(Reply::Array(vec![event, int(second), int(millis), longest]))
                };
                Reply::Array(spikes.iter().filter_map(latest).collect())
            }
            ServerCommand::LatencyHistory => {
                let series = named(&spikes, args.get(2)).map(|(_, series)| series.clone());
                let sample = |(second, millis)| Reply::Array(vec![int(second), int(millis)]);
                let samples = series.unwrap_or_default().samples;
                Reply::Array(samples.into_iter().map(sample).collect())
            }
            ServerCommand::LatencyReset => {
                let before = spikes.len();
                spikes.retain(|event, _| {
                    args.len() > 2
                        && !args
                            .iter()
                            .skip(2)
                            .any(|named| named.eq_ignore_ascii_case(event.as_bytes()))
                });
                int((before - spikes.len()) as u64)
            }
            ServerCommand::LatencyGraph => match named(&spikes, args.get(2)) {
                Some((event, series)) => Reply::Verbatim(graph(event, series).into()),
                None => {
                    let event = quoted(args.get(2));
                    failure(format!("ERR No samples available for event '{event}'"))
                }
            },
            ServerCommand::LatencyDoctor => {
                let enabled = shared.settings.latency_millis.load(Relaxed) > 0;
                let mut text = String::new();
                for (event, series) in spikes.iter() {
                    text += &format!(
                        "{event}: {} seconds with spikes, the longest {} ms.\n",
                        series.samples.len(),
                        series.longest
                    );
                }
                if text.is_empty() {
                    text = if enabled { QUIET } else { DISABLED }.to_owned();
                } else {
                    text += "SLOWLOG GET names the slow commands, and INFO quorate the longest turn of \
                             each lane.\n";
                }
                Reply::Verbatim(text.into())
            }
            _ => {
                drop(spikes);
                self.histograms(args)
            }
        }
    }

    /// `LATENCY HISTOGRAM [command ...]`.
    fn histograms(&self, args: Args<'_>) -> Reply<'static> {
        let all = self.core.shared.histograms(self.core.ran);
        let wanted: Vec<_> = args.iter().skip(2).filter_map(lookup_name).collect();
        let is_wanted = |name: &str| {
            let is = |spec: &&Spec| {
                name == spec.name
                    || name.strip_prefix(spec.name).is_some_and(|s| s.starts_with('|'))
            };
            args.len() == 2 || wanted.iter().any(is)
        };
        let found = all.into_iter().filter(|(name, _)| is_wanted(name));
        let shown = found.map(|(name, buckets)| {
            let calls: u64 = buckets.iter().sum();
            let mut sum = 0;
            let filled = buckets.iter().enumerate().filter(|(_, count)| **count > 0);
            let cumulative = filled.map(|(bucket, count)| {
                sum += count;
                (Reply::Int(1 << bucket), Reply::Int(sum as i64))
            });
            let histogram = Reply::Map(vec![
                (Reply::text("calls"), Reply::Int(calls as i64)),
                (Reply::text("histogram_usec"), Reply::Map(cumulative.collect())),
            ]);
            (bulk(name.as_bytes()), histogram)
        });
        Reply::Map(shown.collect())
    }
}

fn named<'s>(
    spikes: &'s BTreeMap<&'static str, Series>,
    event: &[u8],
) -> Option<(&'static str, &'s Series)> {
    let (event, series) = spikes.iter().find(|(name, _)| name.as_bytes() == event)?;
    Some((event, series))
}

/// One line for each second with a spike.
fn graph(event: &str, series: &Series) -> String {
    const WIDTH: u64 = 60;
    let (mut low, mut high) = (u64::MAX, 1);
    for (_, millis) in &series.samples {
        (low, high) = (low.min(*millis), high.max(*millis));
    }
    let longest = series.longest;
    let mut text = format!("{event} - high {high} ms, low {low} ms (all time high {longest} ms)\n");
    for (second, millis) in &series.samples {
        let bar = "#".repeat((millis * WIDTH / high) as usize);
        text += &format!("{second} {millis:>6} ms {bar}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_longest_spike_and_old_ones_go() {
        let mut series = Series::default();
        for (second, millis) in [(1, 5), (1, 9), (1, 7), (2, 3)] {
            series.add(second, millis);
        }
        assert_eq!(series.samples, [(1, 9), (2, 3)]);
        (3..1000).for_each(|second| series.add(second, 1));
        assert_eq!((series.samples.len(), series.longest), (limits::LATENCY_SAMPLES, 9));
        assert!(
            graph("command", &series).starts_with("command - high 1 ms, low 1 ms (all time high 9")
        );
    }
}
