//! A lean closed-loop load generator: one thread, one epoll, many connections.
//!
//! On a machine with few cores the client competes with the servers, so the client must be cheap.
//! Each connection sends a batch of `--pipeline` requests, waits for all answers, and sends the
//! next batch, as redis-benchmark does. Beyond what redis-benchmark can do, one op may be
//! `SET` followed by `WAIT`, and etcd is spoken to over gRPC, so that every system is driven by
//! the same loop, that of `quorate-workloads`. The report is one line of JSON.

mod grpc;
mod keys;
mod resp;

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use quorate_workloads::{Dialect, Plan, Report, Sockets, run};

/// What one op is in the protocol of a server.
type KeyDialect = dyn Dialect<Request = keys::Key>;

/// What one op is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Op {
    /// `GET key`.
    Get,
    /// `SET key value`.
    Set,
    /// `SET key value` and `WAIT n 0`: done when both are answered, weak if too few replicas.
    SetWait,
    /// `MULTI`, `GET key`, `SET key value`, `EXEC`: done when the block is.
    Multi,
    /// The same and `WAIT n 0`: weak if too few replicas.
    MultiWait,
    /// What `--command` says.
    Command,
    /// The same and `WAIT n 0`: weak if too few replicas.
    CommandWait,
    /// `SET` of every key once, in order; ends when all are written.
    Fill,
    /// What `--command` says, for every key once, in order; ends when all have been named.
    FillCommand,
    /// `SET key value` as the next call of the connection's session, which its node numbers.
    Call,
    /// The same as `SESSION CALL n n SET key value`.
    SpeltCall,
    /// `SESSION OPEN`, and `SET` of each key once, in order, as the call of a session of its own;
    /// ends when all are written.
    Open,
    /// The same, with `SESSION CLOSE` after it.
    OpenClose,
    /// etcd's `Put` over gRPC.
    EtcdPut,
    /// etcd's `Range` of one key over gRPC: a linearizable read.
    EtcdGet,
    /// etcd's `Txn` over gRPC: a range and a put of one key.
    EtcdTxn,
}

/// Drives servers in a closed loop and reports one line of JSON.
#[derive(Parser, Debug)]
#[command(name = "quorate-load")]
struct Arguments {
    /// Where to connect; connections are dealt out in turn if there are several.
    #[arg(long = "target", required = true)]
    targets: Vec<SocketAddr>,
    /// What one op is.
    #[arg(long, value_enum)]
    op: Op,
    /// Words of a command. `{key}` stands for the key and `{value}` for the value, alone or in a word.
    #[arg(long, num_args = 1.., required_if_eq_any([
        ("op", "command"), ("op", "command-wait"), ("op", "fill-command"),
    ]))]
    command: Vec<String>,
    /// How many connections in all.
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// How many requests each connection has under way.
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// How many keys, drawn uniformly.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// How many replicas `set-wait` waits for.
    #[arg(long, default_value_t = 2)]
    wait: u8,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds before that.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Decides which keys are drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let etcd = matches!(arguments.op, Op::EtcdPut | Op::EtcdGet | Op::EtcdTxn);
    anyhow::ensure!(!etcd || arguments.pipeline == 1, "etcd ops know no --pipeline but 1");
    let in_order = matches!(arguments.op, Op::Fill | Op::FillCommand | Op::Open | Op::OpenClose);
    let plan = Plan {
        clients: arguments.connections.max(1),
        pipeline: arguments.pipeline.max(1),
        warmup: Duration::from_secs_f64(arguments.warmup),
        measured: Duration::from_secs_f64(arguments.seconds),
        requests_max: in_order.then_some(arguments.keys),
    };
    let mut keys = match arguments.op {
        _ if in_order => keys::Keys::in_order(),
        _ => keys::Keys::uniform(arguments.keys, arguments.seed),
    };
    let value = vec![b'x'; arguments.value_bytes];
    let wait = arguments.wait;
    let mut sockets = Sockets::connect(&arguments.targets, plan.clients, || match arguments.op {
        Op::Get => resp::Redis::get(),
        Op::Set | Op::Fill => resp::Redis::set(&value),
        Op::Command | Op::FillCommand => resp::Redis::command(&arguments.command, &value, None),
        Op::CommandWait => resp::Redis::command(&arguments.command, &value, Some(wait)),
        Op::Call => resp::Redis::call(&value),
        Op::SpeltCall => resp::Redis::spelt(&value),
        Op::Open => resp::Redis::open(&value, false),
        Op::OpenClose => resp::Redis::open(&value, true),
        Op::SetWait => resp::Redis::set_wait(&value, wait),
        Op::Multi => resp::Redis::multi(&value, None),
        Op::MultiWait => resp::Redis::multi(&value, Some(wait)),
        Op::EtcdPut => grpc::Etcd::put(&value),
        Op::EtcdTxn => grpc::Etcd::txn(&value),
        Op::EtcdGet => grpc::Etcd::get(),
    })?;
    let report = run(&plan, &mut keys, &mut sockets, &mut |_| {})?;
    println!("{}", json(&report));
    Ok(())
}

/// One line of JSON.
fn json(report: &Report) -> String {
    let (total, measured) = (report.total, report.measured.answered());
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let throughput = measured as f64 / report.seconds.max(1e-9);
    format!(
        "{{\"ops_total\":{},\"ops_measured\":{measured},\"seconds\":{:.3},\
         \"throughput\":{throughput:.1},\"p50_us\":{:.1},\"p99_us\":{:.1},\"missed\":{},\
         \"weak\":{},\"failed\":{},\"first_failure\":{:?}}}",
        total.answered(),
        report.seconds,
        report.latency_us(0.50),
        report.latency_us(0.99),
        total.missed,
        total.weak,
        total.failed,
        report.first_failure.as_deref().unwrap_or_default(),
    )
}
