//! Scripts: Lua 5.1 with Redis's libraries, over a workspace of keys.
//!
//! A script is one command: a function over the keys that it names and those that it finds on the
//! way. This crate is that function ([`install`] tells `commands` of it), so scripts run wherever
//! commands do: by themselves, in a block of `MULTI`, as the call of a session, forwarded, and on
//! every engine. What they change is the transaction's; a transaction that is tried again runs its
//! script again from the beginning.
//!
//! # The interpreter
//! PUC Lua 5.1, as in Redis, with the libraries that Redis gives to scripts: `redis`, `cjson`,
//! `cmsgpack`, `struct`, `bit`, `math`, `string`, `table`, `coroutine`. Each thread has one and keeps
//! it from run to run, with the scripts that it has compiled. Nothing else stays: a run has global
//! variables of its own, the libraries can't be changed, and an interpreter that is found changed or
//! that was stopped is thrown away.
//!
//! # Bounds
//! A lane runs one script at a time and serves nobody meanwhile, so a script is bounded: by
//! [`limits::INSTRUCTIONS_MAX`], [`limits::MEMORY_BYTES_MAX`], and what a transaction may read and
//! write. So is what is told of it: the messages that it publishes and the events of its commands are
//! a part of its answer. What exceeds a bound, or is killed, is undone ([`Verdict::Abandon`]). A script
//! can't catch that: every function that catches errors raises this one again. Functions of the
//! libraries whose work doesn't follow from the number of instructions (patterns, sorting, compiling)
//! charge for it, and [`limits::CPU_MS_MAX`] stops what is slow all the same.
//!
//! A script that ends with an error of its own keeps what it did before, as in Redis.
//!
//! # Deviations from Redis
//! - Bounds are those above, and `SCRIPT KILL` undoes what the script did.
//! - `redis.call` runs commands on keys, those that need nothing but their arguments (`PING`, `ECHO`,
//!   `TIME`), and `PUBLISH` and `SPUBLISH`, which answer 0. What concerns the connection, the node or
//!   all keys (`SELECT`, `FLUSHALL`, `KEYS`, `SCAN`, `DBSIZE`, `RANDOMKEY`) is an error.
//! - `math.random` begins anew in each run, also behind `FCALL`.
//! - `string.dump` answers an error, and `collectgarbage` does nothing: memory is collected as it is
//!   used. `gcinfo` and `collectgarbage('count')` answer 0.
//! - A verbatim string has the format `txt`.
//! - What a function calls as its last act (`return pcall(f)`) has no line in an error's text if it is
//!   one of `pcall`, `xpcall`, `pairs`, `next`, `table.sort`, `string.gsub`.
//! - A keyspace has its libraries of functions for itself, and a library is loaded anew for each call.
//! - Settings of `cjson` (`encode_max_depth` and so on) go for the run that makes them.
#![forbid(unsafe_code)]

mod arguments;
mod bits;
mod budget;
mod cache;
mod convert;
mod decode;
mod encode;
mod error;
mod functions;
pub mod limits;
mod msgpack;
mod number;
mod pack;
mod pattern;
mod random;
mod redis;
mod registry;
mod shebang;
mod strings;
mod vm;

use quorate_commands::{
    Args, Call, Notes, Reply, ScriptFunction, Spec, install_scripts, parse_integer,
};
use quorate_machine::{Verdict, Workspace};
use quorate_types::UnixMillis;

pub use budget::{bound_cpu_of_this_thread, kill};
pub use cache::Cache;
pub use redis::allow_debug;
pub use shebang::{changes_nothing, runs_without_memory};
pub use vm::check;

/// What [`install`] tells `commands`.
static RUN: ScriptFunction = run;

/// Has this crate run the scripts of the process.
pub fn install() {
    install_scripts(&RUN);
}

/// The answer to a script that nobody has loaded here.
pub const NOSCRIPT: Reply<'static> = Reply::error("NOSCRIPT No matching script. Please use EVAL.");

/// Runs a script: `EVAL source numkeys key ... argument ...`. `EVALSHA` comes with the source in place
/// of its digest, or with nothing if nobody knows it.
fn run(
    spec: &'static Spec,
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
    notes: &mut Notes,
) -> Verdict<Reply<'static>> {
    if !spec.name.starts_with("eval") {
        return functions::run(spec, args, now, workspace, notes);
    }
    let call = Call::new(spec, args);
    let source = call.script_source();
    if call.names_script() && source.is_empty() {
        return Verdict::Commit(NOSCRIPT);
    }
    let keys = match count_of_keys(args, NOT_AN_INTEGER) {
        Ok(keys) => keys,
        Err(reply) => return Verdict::Commit(reply),
    };
    let is_read_only = spec.name.ends_with("_ro");
    let script = vm::Script { source, args, keys, is_read_only, function: None };
    vm::run(&script, now, workspace, notes)
}

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// How many of the arguments are keys.
pub(crate) fn count_of_keys(
    args: Args<'_>,
    not_an_integer: &'static str,
) -> Result<usize, Reply<'static>> {
    let keys = parse_integer(args.get(2)).ok_or(Reply::error(not_an_integer))?;
    if keys > args.len() as i64 - 3 {
        return Err(Reply::error("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(keys).map_err(|_| Reply::error("ERR Number of keys can't be negative"))
}
