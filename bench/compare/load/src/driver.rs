//! The loop that drives all connections.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use crate::keys::Keys;

/// Longest silence of all servers before the run is given up.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Longer latencies are counted as this one.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Bytes asked for in one read.
const READ_BYTES: usize = 64 * 1024;

/// How one answer turned out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// As asked.
    Good,
    /// A read that found nothing.
    Missed,
    /// A write that reached fewer replicas than asked.
    Weak,
    /// An error, as the server words it.
    Failed(String),
}

/// Part of the input that was understood.
pub(crate) struct Step {
    /// How many bytes it took.
    pub(crate) used: usize,
    /// The answer that it completed, if it did.
    pub(crate) answer: Option<Answer>,
}

/// What one connection speaks.
pub(crate) trait Dialect {
    /// Appends what a new connection says first.
    fn greet(&mut self, out: &mut Vec<u8>);
    /// Appends one request.
    fn request(&mut self, key: &[u8], out: &mut Vec<u8>);
    /// Understands the beginning of the input; nothing if more bytes are needed. May append what
    /// the protocol demands in return.
    fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> anyhow::Result<Option<Step>>;
}

/// What to run.
pub(crate) struct Plan {
    pub(crate) targets: Vec<SocketAddr>,
    pub(crate) connections: usize,
    pub(crate) pipeline: usize,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
    /// Ends the run after so many requests instead of by the clock; all of it is measured.
    pub(crate) ops_max: Option<u64>,
}

/// What came of it.
pub(crate) struct Report {
    ops_total: u64,
    ops_measured: u64,
    seconds: f64,
    missed: u64,
    weak: u64,
    failed: u64,
    first_failure: Option<String>,
    latency_ns: Histogram<u64>,
}

impl Report {
    fn new() -> Self {
        Self {
            ops_total: 0,
            ops_measured: 0,
            seconds: 0.0,
            missed: 0,
            weak: 0,
            failed: 0,
            first_failure: None,
            latency_ns: Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("valid bounds"),
        }
    }

    fn count(&mut self, answer: Answer) {
        self.ops_total += 1;
        match answer {
            Answer::Good => {}
            Answer::Missed => self.missed += 1,
            Answer::Weak => self.weak += 1,
            Answer::Failed(message) => {
                self.failed += 1;
                self.first_failure.get_or_insert(message);
            }
        }
    }

    /// One line of JSON.
    pub(crate) fn to_json(&self) -> String {
        let mut out = String::new();
        let microseconds = |quantile| {
            #[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^53 ns")]
            let nanoseconds = self.latency_ns.value_at_quantile(quantile) as f64;
            nanoseconds / 1000.0
        };
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let throughput = self.ops_measured as f64 / self.seconds.max(1e-9);
        write!(
            out,
            "{{\"ops_total\":{},\"ops_measured\":{},\"seconds\":{:.3},\"throughput\":{:.1},\
             \"p50_us\":{:.1},\"p99_us\":{:.1},\"missed\":{},\"weak\":{},\"failed\":{},\
             \"first_failure\":{:?}}}",
            self.ops_total,
            self.ops_measured,
            self.seconds,
            throughput,
            microseconds(0.50),
            microseconds(0.99),
            self.missed,
            self.weak,
            self.failed,
            self.first_failure.as_deref().unwrap_or_default(),
        )
        .expect("a string takes everything");
        out
    }
}

struct Connection {
    stream: mio::net::TcpStream,
    dialect: Box<dyn Dialect>,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    outstanding: usize,
    batch_begin: Instant,
}

/// Runs the plan.
pub(crate) fn run(
    plan: &Plan,
    keys: &mut Keys,
    mut dialect: impl FnMut() -> Box<dyn Dialect>,
) -> anyhow::Result<Report> {
    let mut poll = Poll::new().context("cannot make an epoll")?;
    let mut connections = Vec::with_capacity(plan.connections);
    for index in 0..plan.connections {
        let target = plan.targets[index % plan.targets.len()];
        let mut connection = connect(target, dialect())?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut connection.stream, Token(index), interest)?;
        connections.push(connection);
    }
    let mut run = Run::new(plan, keys);
    let begin = Instant::now();
    for connection in &mut connections {
        run.send_batch(connection, begin)?;
    }
    let mut events = Events::with_capacity(1024);
    while run.busy > 0 {
        poll.poll(&mut events, Some(SILENCE_MAX)).context("cannot wait for events")?;
        if events.is_empty() {
            bail!("no answer for {SILENCE_MAX:?}; {} connections still wait for one", run.busy);
        }
        for event in &events {
            let connection = &mut connections[event.token().0];
            if event.is_readable() {
                run.on_readable(connection)?;
            } else {
                flush(connection)?;
            }
        }
    }
    Ok(run.finish())
}

fn connect(target: SocketAddr, dialect: Box<dyn Dialect>) -> anyhow::Result<Connection> {
    let stream = TcpStream::connect(target).with_context(|| format!("cannot reach {target}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut connection = Connection {
        stream: mio::net::TcpStream::from_std(stream),
        dialect,
        input: Vec::new(),
        output: Vec::new(),
        sent: 0,
        outstanding: 0,
        batch_begin: Instant::now(),
    };
    connection.dialect.greet(&mut connection.output);
    Ok(connection)
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    keys: &'a mut Keys,
    report: Report,
    requested: u64,
    /// Connections that wait for an answer.
    busy: usize,
    begin: Instant,
    measure_from: Instant,
    measure_until: Instant,
    last_answer: Instant,
    scratch: Vec<u8>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, keys: &'a mut Keys) -> Self {
        let begin = Instant::now();
        let measure_from = if plan.ops_max.is_some() { begin } else { begin + plan.warmup };
        Self {
            plan,
            keys,
            report: Report::new(),
            requested: 0,
            busy: 0,
            begin,
            measure_from,
            measure_until: measure_from + plan.measured,
            last_answer: begin,
            scratch: vec![0; READ_BYTES],
        }
    }

    /// Sends the next batch, unless the run is over.
    fn send_batch(&mut self, connection: &mut Connection, now: Instant) -> anyhow::Result<()> {
        let left = match self.plan.ops_max {
            Some(ops_max) => usize::try_from(ops_max - self.requested).unwrap_or(usize::MAX),
            None if now >= self.measure_until => 0,
            None => usize::MAX,
        };
        let batch = self.plan.pipeline.min(left);
        if batch == 0 {
            return Ok(());
        }
        for _ in 0..batch {
            connection.dialect.request(&self.keys.next(), &mut connection.output);
        }
        self.requested += batch as u64;
        self.busy += 1;
        connection.outstanding = batch;
        connection.batch_begin = now;
        flush(connection)
    }

    fn on_readable(&mut self, connection: &mut Connection) -> anyhow::Result<()> {
        loop {
            let count = match connection.stream.read(&mut self.scratch) {
                Ok(0) => bail!("{:?} closed the connection", connection.stream.peer_addr()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot read"),
            };
            connection.input.extend_from_slice(&self.scratch[..count]);
            self.on_input(connection)?;
            // A short read has emptied the socket: the next bytes raise a new event.
            if count < READ_BYTES {
                return Ok(());
            }
        }
    }

    fn on_input(&mut self, connection: &mut Connection) -> anyhow::Result<()> {
        let now = Instant::now();
        let latency = now - connection.batch_begin;
        let measured =
            self.plan.ops_max.is_some() || (now >= self.measure_from && now < self.measure_until);
        let mut used = 0;
        while let Some(step) =
            connection.dialect.answer(&connection.input[used..], &mut connection.output)?
        {
            used += step.used;
            let Some(answer) = step.answer else { continue };
            if connection.outstanding == 0 {
                bail!("an answer that nothing asked for: {answer:?}");
            }
            connection.outstanding -= 1;
            self.report.count(answer);
            if measured {
                self.report.ops_measured += 1;
                let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                self.report.latency_ns.saturating_record(nanoseconds);
            }
            if connection.outstanding == 0 {
                self.last_answer = now;
                self.busy -= 1;
            }
        }
        connection.input.drain(..used);
        if connection.outstanding == 0 {
            self.send_batch(connection, now)?;
        }
        flush(connection)
    }

    fn finish(mut self) -> Report {
        self.report.seconds = match self.plan.ops_max {
            Some(_) => (self.last_answer - self.begin).as_secs_f64(),
            None => self.plan.measured.as_secs_f64(),
        };
        self.report
    }
}

fn flush(connection: &mut Connection) -> anyhow::Result<()> {
    while connection.sent < connection.output.len() {
        match connection.stream.write(&connection.output[connection.sent..]) {
            Ok(count) => connection.sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("cannot write"),
        }
    }
    connection.output.clear();
    connection.sent = 0;
    Ok(())
}
