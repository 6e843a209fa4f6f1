//! The library `redis`: commands from inside a script.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use mlua::{LightUserData, Lua, MultiValue, Result, Table, Value};
use quorate_commands::{
    Args, Call, Notes, Reply, Run, ServerCommand, Span, debug_protocol, flag, lookup_name, resolve,
};
use quorate_machine::{Rng, Workspace};
use quorate_types::{UnixMillis, limits};

use crate::budget::{Budget, Stop};
use crate::cache::digest_of;
use crate::convert::to_value;
use crate::error::{Thrown, error_table};
use crate::number::push_g17;
use crate::vm::{VALUE_BYTES, make};

/// What a command takes at least, in instructions, and for each 16 bytes of its arguments and answer.
const CALL_COST: usize = 100;

/// The first argument of `redis.call` where errors are answers. No script can make such a value.
pub(crate) const CATCHING: Value =
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(1)));

/// The protocol whose types a script wants its answers in.
#[derive(Default)]
pub(crate) struct Protocol(Cell<u8>);

impl Protocol {
    pub(crate) fn begin(&self) {
        self.0.set(2);
    }

    pub(crate) fn is_resp3(&self) -> bool {
        self.0.get() == 3
    }
}

/// What a command answered.
enum Answer {
    Value(Value),
    /// An error of the command.
    Failed(String),
    /// A call that is wrong in itself.
    Refused(String),
}

/// The commands of one run.
pub(crate) struct Commands<'w> {
    now: UnixMillis,
    pub(crate) workspace: &'w mut dyn Workspace,
    notes: &'w mut Notes,
    budget: &'w Budget,
    protocol: &'w Protocol,
    is_read_only: bool,
    /// Gives each command a seed of its own.
    seeds: Rng,
    buffer: Vec<u8>,
    spans: Vec<Span>,
}

impl<'w> Commands<'w> {
    pub(crate) fn new(
        now: UnixMillis,
        workspace: &'w mut dyn Workspace,
        notes: &'w mut Notes,
        (budget, protocol): (&'w Budget, &'w Protocol),
        is_read_only: bool,
        seed: u64,
    ) -> Self {
        let seeds = Rng::new(seed);
        // Room for what most commands have.
        let (buffer, spans) = (Vec::with_capacity(128), Vec::with_capacity(8));
        Self { now, workspace, notes, budget, protocol, is_read_only, seeds, buffer, spans }
    }

    /// `redis.call` and, behind [`CATCHING`], `redis.pcall`.
    pub(crate) fn call(&mut self, lua: &Lua, mut asked: MultiValue) -> Result<Value> {
        let catches = asked.front() == Some(&CATCHING);
        if catches {
            asked.pop_front();
        }
        match self.answer(lua, &asked)? {
            Answer::Value(value) => Ok(value),
            Answer::Failed(text) if catches => {
                let table = error_table(lua, text.as_bytes())?;
                table.raw_set("ignore_error_stats_update", true)?;
                Ok(Value::Table(table))
            }
            Answer::Failed(text) => Err(Thrown::Reply(text.into_bytes()).into()),
            Answer::Refused(text) if catches => {
                Ok(Value::Table(error_table(lua, refusal(&text).as_bytes())?))
            }
            Answer::Refused(text) => refuse(&text),
        }
    }

    fn answer(&mut self, lua: &Lua, asked: &MultiValue) -> Result<Answer> {
        if let Err(why) = self.take_arguments(asked) {
            return Ok(Answer::Refused(why.to_owned()));
        }
        let seed = self.seeds.next_u64();
        let args = Args { buffer: &self.buffer, spans: &self.spans, seed };
        self.budget.charge(CALL_COST + self.buffer.len() / 16)?;
        let call = match permitted(args, self.is_read_only) {
            Ok(call) => call,
            Err(why) => return Ok(Answer::Refused(why)),
        };
        let reply = debugged(&call)
            .unwrap_or_else(|| call.run_within_script(self.now, self.workspace, self.notes));
        if self.notes.is_exceeded() {
            return Err(self.budget.stop(Stop::Notes));
        }
        if self.workspace.is_full() {
            return Err(self.budget.stop(Stop::Workspace));
        }
        self.budget.charge(reply.bytes() / 16)?;
        match reply {
            Reply::Error(text) => Ok(Answer::Failed(text.into_owned())),
            Reply::Int(number) => Ok(Answer::Value(Value::Number(number as f64))),
            reply => {
                // No part of it takes less than what an answer itself takes.
                let bytes = reply.bytes() * (VALUE_BYTES / size_of::<Reply<'_>>());
                let value = make(lua, bytes, || to_value(lua, &reply, self.protocol.is_resp3()))?;
                Ok(Answer::Value(value))
            }
        }
    }

    /// Copies the arguments, which are strings and numbers.
    fn take_arguments(&mut self, asked: &MultiValue) -> std::result::Result<(), &'static str> {
        self.buffer.clear();
        self.spans.clear();
        if asked.is_empty() {
            return Err("Please specify at least one argument for this redis lib call");
        }
        for value in asked {
            let start = self.buffer.len() as u32;
            match value {
                Value::String(text) => self.buffer.extend_from_slice(&text.as_bytes()),
                Value::Integer(number) => push_g17(*number as f64, &mut self.buffer),
                Value::Number(number) => push_g17(*number, &mut self.buffer),
                _ => return Err("Lua redis lib command arguments must be strings or integers"),
            }
            self.spans.push(Span { start, end: self.buffer.len() as u32 });
        }
        Ok(())
    }
}

/// Whether scripts of this process may call `DEBUG PROTOCOL`.
static DEBUG_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Says whether scripts of this process may call `DEBUG PROTOCOL`, as tests of what becomes of each
/// type of reply do: `DEBUG SET-DISABLE-DENY-SCRIPTS`.
pub fn allow_debug(allowed: bool) {
    DEBUG_ALLOWED.store(allowed, Relaxed);
}

/// The answer of `DEBUG PROTOCOL`.
fn debugged(call: &Call<'_>) -> Option<Reply<'static>> {
    let args = call.args;
    let is_it = matches!(call.spec.run, Run::Server(ServerCommand::Debug))
        && args.len() == 3
        && args.get(1).eq_ignore_ascii_case(b"protocol");
    is_it.then(|| debug_protocol(args.get(2)))
}

/// The call, if a script may make it.
fn permitted(args: Args<'_>, is_read_only: bool) -> std::result::Result<Call<'_>, String> {
    let spec = match resolve(args) {
        Ok(spec) => spec,
        Err(Reply::Error(text)) if text.starts_with("ERR wrong number") => {
            return Err("Wrong number of args calling Redis command from script".to_owned());
        }
        Err(_) => return Err("Unknown Redis command called from script".to_owned()),
    };
    let is_debug = matches!(spec.run, Run::Server(ServerCommand::Debug));
    if spec.flags.has(flag::NOSCRIPT) && !(is_debug && DEBUG_ALLOWED.load(Relaxed)) {
        return Err("This Redis command is not allowed from script".to_owned());
    }
    let call = Call::new(spec, args);
    if spec.flags.has(flag::BLOCKING) && call.has_block_option() {
        let name = String::from_utf8_lossy(args.get(0));
        return Err(format!("{name} command is not allowed with BLOCK option from scripts"));
    }
    if is_read_only && call.is_write() {
        return Err("Write commands are not allowed from read-only scripts.".to_owned());
    }
    let runs_here = matches!(spec.run, Run::Key(_))
        || spec.publishes().is_some()
        || call.answer_alone(UnixMillis(0)).is_some();
    if !runs_here && debugged(&call).is_none() {
        let name = spec.name.replace('|', " ").to_ascii_uppercase();
        return Err(format!(
            "{name} is no command on keys, which is all that a script can run here; send it \
             outside of the script"
        ));
    }
    if spec.publishes().is_none() && call.keys().any(|key| key.len() > limits::KEY_BYTES_MAX) {
        return Err(format!("the key is longer than {} bytes", limits::KEY_BYTES_MAX));
    }
    Ok(call)
}

/// The table of an error that the library itself found.
fn refusal(text: &str) -> String {
    format!("ERR {text}")
}

fn refuse<T>(text: &str) -> Result<T> {
    Err(Thrown::Reply(refusal(text).into_bytes()).into())
}

/// The library without its commands, which are there for one run.
pub(crate) fn library(lua: &Lua, protocol: &Rc<Protocol>) -> Result<Table> {
    let redis = lua.create_table()?;
    let shared = protocol.clone();
    let setresp = lua.create_function(move |_, args: MultiValue| {
        if args.len() != 1 {
            return refuse("redis.setresp() requires one argument.");
        }
        match args.front().and_then(number) {
            Some(version) if version == 2.0 || version == 3.0 => {
                shared.0.set(version as u8);
                Ok(())
            }
            _ => refuse("RESP version must be 2 or 3."),
        }
    })?;
    redis.raw_set("setresp", setresp)?;
    add_replies(lua, &redis)?;
    add_settings(lua, &redis)?;
    redis.raw_set("REDIS_VERSION", "7.0.15")?;
    redis.raw_set("REDIS_VERSION_NUM", 0x0007_000f)?;
    Ok(redis)
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

fn add_replies(lua: &Lua, redis: &Table) -> Result<()> {
    const WRONG: &str = "wrong number or type of arguments";
    let text = |args: &MultiValue| match (args.len(), args.front()) {
        (1, Some(Value::String(text))) => Some(text.as_bytes().to_vec()),
        _ => None,
    };
    let error_reply = lua.create_function(move |lua, args: MultiValue| {
        let Some(text) = text(&args) else { return error_table(lua, refusal(WRONG).as_bytes()) };
        let text = text.strip_prefix(b"-").unwrap_or(&text);
        let end = text.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |at| at + 1);
        let text = &text[..end];
        let whole = if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() };
        error_table(lua, &whole)
    })?;
    redis.raw_set("error_reply", error_reply)?;
    let status_reply = lua.create_function(move |lua, args: MultiValue| {
        let Some(text) = text(&args) else { return error_table(lua, refusal(WRONG).as_bytes()) };
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set("ok", lua.create_string(&text)?)?;
        Ok(table)
    })?;
    redis.raw_set("status_reply", status_reply)?;
    let sha1hex = lua.create_function(|lua, args: MultiValue| {
        if args.len() != 1 {
            return refuse("wrong number of arguments");
        }
        let text = match args.front() {
            Some(value @ (Value::String(_) | Value::Integer(_) | Value::Number(_))) => lua
                .coerce_string(value.clone())?
                .map_or_else(Vec::new, |text| text.as_bytes().to_vec()),
            _ => Vec::new(),
        };
        Ok(digest_of(&text))
    })?;
    redis.raw_set("sha1hex", sha1hex)
}

/// What concerns the log, replication, debugging and rights: checked, and otherwise without effect.
fn add_settings(lua: &Lua, redis: &Table) -> Result<()> {
    for (name, level) in
        [("LOG_DEBUG", 0), ("LOG_VERBOSE", 1), ("LOG_NOTICE", 2), ("LOG_WARNING", 3)]
    {
        redis.raw_set(name, level)?;
    }
    let log = lua.create_function(|_, args: MultiValue| {
        if args.len() < 2 {
            return refuse("redis.log() requires two arguments or more.");
        }
        match args.front().and_then(number) {
            None => refuse("First argument must be a number (log level)."),
            Some(level) if !(0.0..4.0).contains(&level) => refuse("Invalid debug level."),
            Some(_) => Ok(()),
        }
    })?;
    redis.raw_set("log", log)?;
    for (name, bits) in
        [("REPL_NONE", 0), ("REPL_AOF", 1), ("REPL_SLAVE", 2), ("REPL_REPLICA", 2), ("REPL_ALL", 3)]
    {
        redis.raw_set(name, bits)?;
    }
    let set_repl = lua.create_function(|_, args: MultiValue| {
        if args.len() != 1 {
            return refuse("redis.set_repl() requires two arguments.");
        }
        match args.front().and_then(number) {
            Some(bits) if (0.0..4.0).contains(&bits) => Ok(()),
            _ => refuse(
                "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
            ),
        }
    })?;
    redis.raw_set("set_repl", set_repl)?;
    redis.raw_set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
    redis.raw_set("breakpoint", lua.create_function(|_, ()| Ok(false))?)?;
    redis.raw_set("debug", lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    let check = lua.create_function(|_, args: MultiValue| {
        let Some(first) = args.front() else {
            return refuse("Please specify at least one argument for this redis lib call");
        };
        let Value::String(name) = first else {
            return refuse(
                "redis.acl_check_cmd() require the command and its arguments as strings",
            );
        };
        match lookup_name(&name.as_bytes()) {
            Some(_) => Ok(true),
            None => refuse("Invalid command passed to redis.acl_check_cmd()"),
        }
    })?;
    redis.raw_set("acl_check_cmd", check)
}
