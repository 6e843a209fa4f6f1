//! What a script costs more than its commands: `cargo run --release -p quorate-scripts --example
//! script_costs`.
//!
//! Scripts and blocks of the same commands take turns on a workspace in memory. Time is the thread's
//! processor time, which other processes disturb least: each figure is the median of several rounds,
//! with their range. `-- NAME` (`nothing`, `two`, `four`: how many commands) runs one script alone, for a
//! profiler.

use quorate_commands::{Block, MapWorkspace, Op, OwnedCall};
use quorate_types::{Timestamp, UnixMillis, WriterId};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const RUNS: u64 = 50_000;

/// A script on a key, and the commands that it runs.
struct Case {
    name: &'static str,
    source: &'static str,
    commands: &'static [&'static [&'static str]],
}

const INCRBY: &[&str] = &["INCRBY", "number", "1"];

const CASES: [Case; 3] = [
    Case { name: "nothing", source: "return 1", commands: &[] },
    Case {
        name: "two",
        source: "redis.call('incrby', KEYS[1], ARGV[1]) return redis.call('incrby', KEYS[1], ARGV[1])",
        commands: &[INCRBY, INCRBY],
    },
    Case {
        name: "four",
        source: "for i = 1, 2 do redis.call('set', KEYS[2], ARGV[1]) redis.call('get', KEYS[2]) end",
        commands: &[
            &["SET", "text", "1"],
            &["GET", "text"],
            &["SET", "text", "1"],
            &["GET", "text"],
        ],
    },
];

fn call(words: &[&str]) -> OwnedCall {
    OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command")
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds that a run takes.
fn measure(keys: &mut MapWorkspace, op: &Op) -> u64 {
    let begun = cpu_ns();
    for version in 1..=RUNS {
        let timestamp = Timestamp::new(version, WriterId(1));
        keys.run(UnixMillis(1_000), timestamp, op);
    }
    (cpu_ns() - begun) / RUNS
}

fn shown(mut nanos: Vec<u64>) -> String {
    nanos.sort_unstable();
    let (least, most) = (nanos[0], nanos[nanos.len() - 1]);
    format!("{} ns ({least} to {most})", nanos[nanos.len() / 2])
}

fn main() {
    quorate_scripts::install();
    let only = std::env::args().nth(1);
    let is_wanted = |case: &Case| only.as_ref().is_none_or(|only| only == case.name);
    for Case { name, source, commands } in CASES.into_iter().filter(is_wanted) {
        let script = Op::Call(call(&["EVAL", source, "2", "number", "text", "1"]));
        let calls = commands.iter().map(|words| call(words)).collect();
        let block = Op::Block(Block { watches: Vec::new(), calls });
        let mut keys = MapWorkspace::default();
        // The first is for the caches.
        measure(&mut keys, &script);
        let (mut scripts, mut blocks) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            scripts.push(measure(&mut keys, &script));
            if only.is_none() {
                blocks.push(measure(&mut keys, &block));
            }
        }
        println!("{name:<7} script {}", shown(scripts));
        if only.is_none() {
            println!("{name:<7} block  {}", shown(blocks));
        }
    }
}
