//! The result of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer latencies are counted as this one: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The end of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done.
    Good,
    /// Done, but a read found no key.
    Missed,
    /// Done, and this is the number that the request asked for ([`crate::Tells`]); none if its key
    /// is absent.
    Told(Option<i64>),
    /// A write that reached fewer replicas than asked.
    Weak,
    /// The target did nothing because of a conflict; asking again may help.
    Aborted,
    /// An error, as the target words it. It may have happened, unless the error says otherwise.
    Failed(String),
}

impl Answer {
    /// Whether it was done.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Good | Self::Missed | Self::Told(_) | Self::Weak)
    }
}

/// The number of requests with each answer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Done, including those of the next two fields.
    pub done: u64,
    /// Done, but a read found no key.
    pub missed: u64,
    /// Done, but on fewer replicas than asked.
    pub weak: u64,
    /// Not done because of a conflict.
    pub aborted: u64,
    /// Ended in another error.
    pub failed: u64,
}

impl Counts {
    /// All requests that were answered.
    pub fn answered(&self) -> u64 {
        self.done + self.aborted + self.failed
    }

    fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.missed += other.missed;
        self.weak += other.weak;
        self.aborted += other.aborted;
        self.failed += other.failed;
    }

    fn count(&mut self, answer: &Answer) {
        self.done += u64::from(answer.is_done());
        match answer {
            Answer::Good | Answer::Told(_) => {}
            Answer::Missed => self.missed += 1,
            Answer::Weak => self.weak += 1,
            Answer::Aborted => self.aborted += 1,
            Answer::Failed(_) => self.failed += 1,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// All requests, those before and after the measured time too.
    pub total: Counts,
    /// Requests that were answered in the measured time.
    pub measured: Counts,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// How many requests were done in each tenth of a second since the begin of the measurement.
    pub done_by_tenths: Vec<u64>,
    /// The first counted error, as the target worded it.
    pub first_failure: Option<String>,
    /// Nanoseconds from the begin of its batch to the answer, of each request done in the measured
    /// time.
    latency_ns: Histogram<u64>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            total: Counts::default(),
            measured: Counts::default(),
            seconds: 0.0,
            done_by_tenths: Vec::new(),
            first_failure: None,
            latency_ns: Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("the bounds are valid"),
        }
    }

    pub(crate) fn count(&mut self, answer: Answer, measured: bool, latency_ns: u64) {
        self.total.count(&answer);
        if measured {
            self.measured.count(&answer);
            if answer.is_done() {
                self.latency_ns.saturating_record(latency_ns);
            }
        }
        if let Answer::Failed(message) = answer {
            self.first_failure.get_or_insert(message);
        }
    }

    /// Counts a request that was done so long after the begin of the measurement.
    pub(crate) fn count_done_after(&mut self, elapsed: Duration) {
        let tenth = (elapsed.as_millis() / 100) as usize;
        if self.done_by_tenths.len() <= tenth {
            self.done_by_tenths.resize(tenth + 1, 0);
        }
        self.done_by_tenths[tenth] += 1;
    }

    /// Adds the result of another run at the same time.
    pub fn absorb(&mut self, other: &Self) {
        self.total.add(&other.total);
        self.measured.add(&other.measured);
        self.seconds = self.seconds.max(other.seconds);
        let tenths = self.done_by_tenths.len().max(other.done_by_tenths.len());
        self.done_by_tenths.resize(tenths, 0);
        for (sum, done) in self.done_by_tenths.iter_mut().zip(&other.done_by_tenths) {
            *sum += done;
        }
        if self.first_failure.is_none() {
            self.first_failure.clone_from(&other.first_failure);
        }
        self.latency_ns.add(&other.latency_ns).expect("all reports have the same bounds");
    }

    /// Requests that were done, for each second.
    pub fn done_per_second(&self) -> f64 {
        self.measured.done as f64 / self.seconds.max(1e-9)
    }

    /// The longest latency among this share of the fastest requests, in microseconds; 1 is the
    /// longest of all.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// The mean latency in microseconds.
    pub fn latency_mean_us(&self) -> f64 {
        self.latency_ns.mean() / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_where_they_belong() {
        let mut report = Report::new();
        for (answer, measured) in [
            (Answer::Good, true),
            (Answer::Missed, true),
            (Answer::Weak, true),
            (Answer::Aborted, true),
            (Answer::Failed("first".into()), false),
            (Answer::Failed("second".into()), true),
            (Answer::Good, false),
        ] {
            report.count(answer, measured, 2_000);
        }
        let measured = Counts { done: 3, missed: 1, weak: 1, aborted: 1, failed: 1 };
        assert_eq!(report.measured, measured);
        assert_eq!(report.total, Counts { done: 4, failed: 2, ..measured });
        assert_eq!(report.total.answered(), 7);
        assert_eq!(report.first_failure.as_deref(), Some("first"));
        assert!((report.latency_us(0.5) - 2.0).abs() < 0.01);
        report.seconds = 2.0;
        assert!((report.done_per_second() - 1.5).abs() < 1e-9);

        let mut other = Report::new();
        other.count(Answer::Good, true, 9_000);
        report.count_done_after(Duration::from_millis(99));
        for ms in [99, 100, 350] {
            other.count_done_after(Duration::from_millis(ms));
        }
        other.seconds = 1.0;
        other.absorb(&report);
        assert_eq!(other.measured, Counts { done: 4, ..measured });
        assert_eq!(other.total.answered(), 8);
        assert_eq!(other.done_by_tenths, [2, 1, 0, 1]);
        assert_eq!((other.seconds, &other.first_failure), (2.0, &report.first_failure));
        assert!((other.latency_us(1.0) - 9.0).abs() < 0.1);
    }
}
