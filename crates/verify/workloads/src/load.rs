//! The closed loop: it gives requests to clients and counts their answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::{Answer, Report};

/// Why a run ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No server listens there, or none answers.
    #[error("cannot reach {target}: {error}")]
    Unreachable {
        /// The address of the connection.
        target: SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// An established connection failed for a reason that a new one would not mend.
    #[error("the connection to {target} failed: {error}")]
    Broken {
        /// The address of the connection.
        target: SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The target speaks another protocol, or refuses a command on which every request rests.
    #[error("{target} {what}")]
    Misunderstood {
        /// The address of the connection.
        target: SocketAddr,
        /// Its reply, as the rest of a sentence.
        what: String,
    },
    /// Connections are closed as soon as they are made.
    #[error("{target} closes every connection without an answer: {complaint}")]
    Closes {
        /// The last target that closed one.
        target: SocketAddr,
        /// Its complaint before that.
        complaint: String,
    },
    /// Requests are not answered.
    #[error("no answer for {} s; {waiting} clients still wait for one", patience.as_secs())]
    Silent {
        /// How long nothing arrived.
        patience: Duration,
        /// How many clients wait.
        waiting: usize,
    },
    /// The system has no means to wait for events.
    #[error("cannot wait for events: {0}")]
    Events(std::io::Error),
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many clients take turns with the target; each waits for its own answers only.
    pub clients: usize,
    /// How many requests a client has under way.
    pub pipeline: usize,
    /// How long requests run before they are measured.
    pub warmup: Duration,
    /// How long they are measured.
    pub measured: Duration,
    /// Ends the run after so many requests instead of by the clock; all of it is measured.
    pub requests_max: Option<u64>,
}

/// Where requests come from. All clients of a run draw from one.
pub trait Source {
    /// The requests that it makes.
    type Request;

    /// The next request.
    fn next(&mut self) -> &Self::Request;

    /// The next request of a client, for a source to which it matters who asks, and when.
    fn next_at(&mut self, turn: Turn) -> &Self::Request {
        let _ = turn;
        self.next()
    }

    /// A request of this client ended. The requests of a client end in the order in which they were
    /// given to it.
    fn ended(&mut self, client: usize, answer: &Answer) {
        let _ = (client, answer);
    }
}

impl<S: Source + ?Sized> Source for &mut S {
    type Request = S::Request;

    fn next(&mut self) -> &Self::Request {
        (**self).next()
    }

    fn next_at(&mut self, turn: Turn) -> &Self::Request {
        (**self).next_at(turn)
    }

    fn ended(&mut self, client: usize, answer: &Answer) {
        (**self).ended(client, answer);
    }
}

/// Who asks for a request, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The number of the client, from 0.
    pub client: usize,
    /// The time since the begin of the measurement; nothing before it.
    pub elapsed: Duration,
}

impl Turn {
    /// The first client, at the begin.
    pub const START: Self = Self { client: 0, elapsed: Duration::ZERO };
}

/// The subject of a measurement: servers behind sockets, or a cluster in this process.
pub trait Target {
    /// The requests that it understands.
    type Request;

    /// Begins the requests that `feed` gives and reports their answers to it, until no client waits
    /// for an answer.
    ///
    /// The loop of every target is the same: ask [`Feed::next`] of each client until there is
    /// nothing to begin; wait; for each answer call [`Feed::ended`] and then [`Feed::next`] of
    /// that client again; stop when [`Feed::is_idle`].
    ///
    /// # Errors
    /// [`LoadError`] if the target can't go on. A request that fails is an [`Answer`].
    fn drive(&mut self, feed: &mut Feed<'_, Self::Request>) -> Result<(), LoadError>;
}

/// Runs the plan. `progress` is told now and then how many requests were answered.
///
/// # Errors
/// Those of [`Target::drive`].
pub fn run<T: Target>(
    plan: &Plan,
    source: &mut dyn Source<Request = T::Request>,
    target: &mut T,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, LoadError> {
    let mut feed = Feed::new(plan, source, progress, Instant::now());
    target.drive(&mut feed)?;
    Ok(feed.finish())
}

/// One client of the closed loop.
#[derive(Clone, Copy)]
struct Client {
    /// Requests of the batch that were not begun yet.
    left: usize,
    /// Requests that were begun and are not answered.
    waiting: usize,
    /// When the batch began.
    begin: Instant,
}

/// A run under way, as its target sees it.
pub struct Feed<'a, R> {
    plan: Plan,
    source: &'a mut dyn Source<Request = R>,
    progress: &'a mut dyn FnMut(u64),
    clients: Vec<Client>,
    report: Report,
    /// Requests of all batches that were begun.
    granted: u64,
    /// Clients with a batch under way.
    busy: usize,
    begin: Instant,
    measure_from: Instant,
    measure_until: Instant,
    last_answer: Instant,
}

impl<'a, R> Feed<'a, R> {
    fn new(
        plan: &Plan,
        source: &'a mut dyn Source<Request = R>,
        progress: &'a mut dyn FnMut(u64),
        begin: Instant,
    ) -> Self {
        let measure_from = if plan.requests_max.is_some() { begin } else { begin + plan.warmup };
        Self {
            plan: *plan,
            source,
            progress,
            clients: vec![Client { left: 0, waiting: 0, begin }; plan.clients],
            report: Report::new(),
            granted: 0,
            busy: 0,
            begin,
            measure_from,
            measure_until: measure_from + plan.measured,
            last_answer: begin,
        }
    }

    /// How many clients there are; they are numbered from 0.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The next request of this client: the next one of its batch, the first of a new batch if the
    /// whole batch was answered, or none.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn next(&mut self, client: usize, now: Instant) -> Option<&R> {
        let left = self.left(now);
        let number = client;
        let client = &mut self.clients[client];
        if client.left == 0 {
            if client.waiting > 0 || left == 0 {
                return None;
            }
            let batch = left.min(self.plan.pipeline.max(1) as u64);
            *client = Client { left: batch as usize, waiting: 0, begin: now };
            self.granted += batch;
            self.busy += 1;
        }
        client.left -= 1;
        client.waiting += 1;
        let elapsed = now.saturating_duration_since(self.measure_from);
        Some(self.source.next_at(Turn { client: number, elapsed }))
    }

    /// How many requests may still begin.
    fn left(&self, now: Instant) -> u64 {
        match self.plan.requests_max {
            Some(requests_max) => requests_max - self.granted,
            None if now >= self.measure_until => 0,
            None => u64::MAX,
        }
    }

    /// A request of this client was answered.
    ///
    /// # Panics
    /// If the client waits for nothing: the target has invented an answer.
    pub fn ended(&mut self, client: usize, answer: Answer, now: Instant) {
        self.source.ended(client, &answer);
        let client = &mut self.clients[client];
        assert!(client.waiting > 0, "an answer that nothing asked for: {answer:?}");
        client.waiting -= 1;
        let latency_ns = u64::try_from((now - client.begin).as_nanos()).unwrap_or(u64::MAX);
        if client.left + client.waiting == 0 {
            self.busy -= 1;
        }
        let measured = self.plan.requests_max.is_some()
            || (now >= self.measure_from && now < self.measure_until);
        if measured && answer.is_done() {
            self.report.count_done_after(now.saturating_duration_since(self.measure_from));
        }
        self.report.count(answer, measured, latency_ns);
        self.last_answer = now;
        (self.progress)(self.report.total.answered());
    }

    /// Whether no client waits for an answer. It holds before the first [`Feed::next`], too.
    pub fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// How many clients wait for an answer.
    pub fn waiting(&self) -> usize {
        self.busy
    }

    fn finish(mut self) -> Report {
        self.report.seconds = match self.plan.requests_max {
            Some(_) => (self.last_answer - self.begin).as_secs_f64(),
            None => self.plan.measured.as_secs_f64(),
        };
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from 0 on.
    struct Numbers(u64);

    impl Source for Numbers {
        type Request = u64;

        fn next(&mut self) -> &u64 {
            self.0 += 1;
            &self.0
        }
    }

    /// Answers each client's batch a millisecond of its own clock after it began.
    struct Echo {
        now: Instant,
        seen: Vec<(usize, u64)>,
    }

    impl Target for Echo {
        type Request = u64;

        fn drive(&mut self, feed: &mut Feed<'_, u64>) -> Result<(), LoadError> {
            loop {
                let mut begun = Vec::new();
                for client in 0..feed.clients() {
                    while let Some(&number) = feed.next(client, self.now) {
                        begun.push((client, number));
                    }
                }
                if feed.is_idle() {
                    return Ok(());
                }
                self.now += Duration::from_millis(1);
                for &(client, number) in &begun {
                    let answer = if number % 10 == 0 { Answer::Aborted } else { Answer::Good };
                    feed.ended(client, answer, self.now);
                }
                self.seen.extend(begun);
            }
        }
    }

    fn drive(plan: &Plan) -> (Report, Echo, u64) {
        let begin = Instant::now();
        let mut echo = Echo { now: begin, seen: Vec::new() };
        let (mut numbers, mut told) = (Numbers(0), 0);
        let mut progress = |answered| told = answered;
        let mut feed = Feed::new(plan, &mut numbers, &mut progress, begin);
        echo.drive(&mut feed).unwrap();
        let report = feed.finish();
        (report, echo, told)
    }

    const BY_CLOCK: Plan = Plan {
        clients: 2,
        pipeline: 3,
        warmup: Duration::from_millis(4),
        measured: Duration::from_millis(10),
        requests_max: None,
    };

    #[test]
    fn a_run_by_the_clock_measures_between_warmup_and_end() {
        let (report, ..) = drive(&BY_CLOCK);
        // Six requests each millisecond: 14 rounds begin, and the answers of rounds 4 to 13 count.
        assert_eq!(report.total.answered(), 14 * 6);
        assert_eq!(report.measured.answered(), 10 * 6);
        assert_eq!(report.measured.aborted, 6);
        assert!((report.done_per_second() - 5400.0).abs() < 1e-6);
        assert_eq!(report.done_by_tenths, [54]);
        assert!((report.latency_us(1.0) - 1000.0).abs() < 1.0);
    }

    #[test]
    fn a_run_by_number_ends_after_exactly_so_many_and_measures_all() {
        let (report, echo, told) = drive(&Plan { requests_max: Some(20), ..BY_CLOCK });
        assert_eq!(report.measured.answered(), 20);
        assert_eq!(told, 20);
        assert!(echo.seen.iter().map(|(_, number)| *number).eq(1..=20));
        // Six a round: the last of four rounds has two, all of one client.
        assert_eq!(echo.seen[18..], [(0, 19), (0, 20)]);
        assert!((report.seconds - 0.004).abs() < 1e-9);
    }

    #[test]
    fn a_client_begins_nothing_before_its_batch_is_answered() {
        let (mut numbers, mut progress) = (Numbers(0), |_| {});
        let now = Instant::now();
        let mut feed = Feed::new(&BY_CLOCK, &mut numbers, &mut progress, now);
        let begun = (0..10).filter(|_| feed.next(1, now).is_some()).count();
        assert_eq!(begun, 3);
        feed.ended(1, Answer::Good, now);
        assert!(feed.next(1, now).is_none() && feed.waiting() == 1);
        feed.ended(1, Answer::Good, now);
        feed.ended(1, Answer::Failed("no".into()), now);
        assert!(feed.is_idle() && feed.next(1, now).is_some());
    }

    #[test]
    fn an_empty_plan_ends_at_once() {
        let (report, echo, _) = drive(&Plan { requests_max: Some(0), ..BY_CLOCK });
        assert_eq!((report.total.answered(), echo.seen.len()), (0, 0));
    }
}
