//! The interpreter of a thread, and a run of a script.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Error, Function, Lua, LuaOptions, MultiValue, Result, StdLib, Table, Value, Variadic};
use quorate_commands::{Args, Notes, Reply};
use quorate_machine::{Verdict, Workspace, mutant};
use quorate_types::{UnixMillis, hash_key};

use crate::arguments::type_name;
use crate::budget::{Budget, Stop};
use crate::cache::digest_of;
use crate::error::{PRELUDE, Thrown, as_value, at_the_end, is_memory, raise};
use crate::functions::{Described, Registered};
use crate::random::Random;
use crate::redis::{Commands, Protocol};
use crate::registry::Registry;
use crate::shebang::{self, Flags};
use crate::{bits, convert, encode, limits, msgpack, pack, random, redis, strings};

/// One script that is to run.
#[derive(Clone, Copy)]
pub(crate) struct Script<'a> {
    pub(crate) source: &'a [u8],
    /// All arguments of its command, of which those from number 3 on are keys and its own.
    pub(crate) args: Args<'a>,
    /// How many of these are keys.
    pub(crate) keys: usize,
    /// Whether its command says that it changes nothing.
    pub(crate) is_read_only: bool,
    /// The function to call, if the source is that of a library.
    pub(crate) function: Option<&'a [u8]>,
}

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// A compiled script.
#[derive(Clone)]
struct Compiled {
    source: Rc<[u8]>,
    is_library: bool,
    function: Function,
    flags: Flags,
    name: Rc<str>,
}

/// An interpreter.
struct Vm {
    lua: Lua,
    budget: Rc<Budget>,
    random: Rc<Random>,
    protocol: Rc<Protocol>,
    settings: Rc<encode::Settings>,
    registry: Rc<Registry>,
    run: Function,
    load_library: Function,
    call: Function,
    /// The global variables of all scripts.
    env: Table,
    /// Tables that are the same for all runs, and empty unless a script has found a way into one.
    empty: Vec<Table>,
    compiled: HashMap<u64, Compiled>,
    compiled_bytes: usize,
}

/// Runs a script in the interpreter of this thread.
pub(crate) fn run(
    script: &Script<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
    notes: &mut Notes,
) -> Verdict<Reply<'static>> {
    let mut vm = match take() {
        Ok(vm) => vm,
        Err(error) => return Verdict::Abandon(broken(&error)),
    };
    let verdict = vm.run(script, now, workspace, notes);
    if vm.may_stay() {
        keep(vm);
    }
    verdict
}

/// Whether the source is a script.
///
/// # Errors
/// What the command that runs it would answer.
pub fn check(source: &[u8]) -> std::result::Result<(), Reply<'static>> {
    let mut vm = take().map_err(|error| broken(&error))?;
    let compiled = vm.compile(source, false);
    keep(vm);
    compiled.map(|_| ())
}

/// The functions that the source of a library registers.
///
/// # Errors
/// What `FUNCTION LOAD` answers.
pub(crate) fn describe(source: &[u8]) -> std::result::Result<Vec<Described>, Reply<'static>> {
    let mut vm = take().map_err(|error| broken(&error))?;
    let described = vm.describe(source);
    if vm.may_stay() {
        keep(vm);
    }
    described
}

fn take() -> Result<Vm> {
    match VM.with(|vm| vm.borrow_mut().take()) {
        Some(vm) => Ok(vm),
        None => Vm::new(),
    }
}

fn keep(vm: Vm) {
    VM.with(|place| *place.borrow_mut() = Some(vm));
}

fn broken(error: &Error) -> Reply<'static> {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    Reply::Error(format!("ERR the interpreter of scripts failed: {line}").into())
}

impl Vm {
    fn new() -> Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let budget: Rc<Budget> = Rc::default();
        let random: Rc<Random> = Rc::default();
        let protocol: Rc<Protocol> = Rc::default();
        let settings: Rc<encode::Settings> = Rc::default();
        let host = lua.create_table()?;
        add_wrappers(&lua, &host, &budget)?;
        let registry: Rc<Registry> = Rc::default();
        host.raw_set("catching", redis::CATCHING)?;
        host.raw_set("register_function", registry.function(&lua)?)?;
        let tables: Vec<(&str, Table)> = ["string", "math", "libraries", "globals"]
            .into_iter()
            .map(|name| Ok((name, lua.create_table()?)))
            .collect::<Result<_>>()?;
        for (name, table) in &tables {
            host.raw_set(*name, table)?;
        }
        let [string, math, libraries, globals] = [0, 1, 2, 3].map(|at: usize| &tables[at].1);
        let gsub = strings::add(&lua, string, &host, &budget)?;
        host.raw_set("gsub", gsub)?;
        random::add(&lua, math, &random)?;
        libraries.raw_set("redis", redis::library(&lua, &protocol)?)?;
        libraries.raw_set("cjson", encode::library(&lua, &settings, &budget)?)?;
        libraries.raw_set("cmsgpack", msgpack::library(&lua, &budget)?)?;
        libraries.raw_set("struct", pack::library(&lua, &budget)?)?;
        libraries.raw_set("bit", bits::library(&lua)?)?;
        add_globals(&lua, globals)?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name(PRELUDE);
        let (run, inside, is_protected, load_library, call, env, empty): (
            Function,
            Function,
            Function,
            Function,
            Function,
            Table,
            Vec<Table>,
        ) = prelude.set_mode(ChunkMode::Text).call(&host)?;
        host.raw_set("inside", inside)?;
        host.raw_set("is_protected", is_protected)?;
        lua.set_app_data(Protection { host });
        lua.set_memory_limit(limits::MEMORY_BYTES_MAX)?;
        budget.watch(&lua)?;
        let compiled = HashMap::new();
        Ok(Self {
            lua,
            budget,
            random,
            protocol,
            settings,
            registry,
            run,
            load_library,
            call,
            env,
            empty,
            compiled,
            compiled_bytes: 0,
        })
    }

    fn run(
        &mut self,
        script: &Script<'_>,
        now: UnixMillis,
        workspace: &mut dyn Workspace,
        notes: &mut Notes,
    ) -> Verdict<Reply<'static>> {
        let _running = self.budget.begin();
        let compiled = match self.compile(script.source, script.function.is_some()) {
            Ok(compiled) => compiled,
            Err(reply) => return Verdict::Commit(reply),
        };
        self.random.begin(script, now);
        self.settings.begin();
        self.protocol.begin();
        let is_read_only = script.is_read_only || compiled.flags.no_writes;
        let seed = script.args.seed;
        let mut commands = Commands::new(
            now,
            workspace,
            notes,
            (&self.budget, &self.protocol),
            is_read_only,
            seed,
        );
        // A defect of a library ends its script, and no node.
        let run = AssertUnwindSafe(|| self.execute(script, &compiled, &mut commands));
        let answer = catch_unwind(run).unwrap_or_else(|_| Err(self.budget.stop(Stop::Defect)));
        let resp3 = self.protocol.is_resp3();
        if matches!(&answer, Ok((false, value)) if is_memory(value)) {
            self.budget.stop(Stop::Memory);
        }
        if commands.workspace.is_full() {
            self.budget.stop(Stop::Workspace);
        }
        if let Some(stop) = self.budget.stopped() {
            let reply = stop.reply();
            return if mutant!("scripts_stopped_commits") {
                Verdict::Commit(reply)
            } else {
                Verdict::Abandon(reply)
            };
        }
        let reply = match answer {
            Ok((true, value)) => convert::to_reply(value, resp3),
            Ok((false, value)) => {
                let function = script.function.map(String::from_utf8_lossy);
                let name = function.as_deref().unwrap_or(&compiled.name);
                Ok(convert::to_error(&value, name))
            }
            Err(error) => Err(error),
        };
        match reply {
            Ok(reply) => Verdict::Commit(reply),
            // Memory, where no function of the script could catch it.
            Err(Error::MemoryError(_)) => {
                self.budget.stop(Stop::Memory);
                Verdict::Abandon(Stop::Memory.reply())
            }
            Err(error) => Verdict::Abandon(broken(&error)),
        }
    }

    /// Runs the function: whether it returned, and what, or the table of its error.
    fn execute(
        &self,
        script: &Script<'_>,
        compiled: &Compiled,
        commands: &mut Commands<'_>,
    ) -> Result<(bool, Value)> {
        let lua = &self.lua;
        let (own, count) = (|| script.args.iter().skip(3), script.args.len() - 3);
        let bytes = script.args.buffer.len() + (count + 1) * VALUE_BYTES;
        lua.scope(|scope| {
            let (keys, argv, call) = make(lua, bytes, || {
                let keys = strings_table(lua, own().take(script.keys), script.keys)?;
                let argv = strings_table(lua, own().skip(script.keys), count - script.keys)?;
                let call = scope.create_function_mut(|lua, args| commands.call(lua, args))?;
                Ok((keys, argv, call))
            })?;
            match script.function {
                None => self.run.call((&compiled.function, keys, argv, call)),
                Some(name) => self.call_function(compiled, name, (keys, argv, call)),
            }
        })
    }

    /// Loads a library and calls one of its functions.
    fn call_function(
        &self,
        compiled: &Compiled,
        name: &[u8],
        (keys, argv, call): (Table, Table, Function),
    ) -> Result<(bool, Value)> {
        let (functions, error) = self.registered(compiled)?;
        if let Some(error) = error {
            return Ok((false, error));
        }
        let found = functions.into_iter().find(|function| function.described.is_called(name));
        let Some(function) = found else {
            return Err(Thrown::Text("the library has no such function".into()).into());
        };
        self.call.call((function.callback, keys, argv, call))
    }

    /// What a library registers, or the table of its error.
    fn registered(&self, compiled: &Compiled) -> Result<(Vec<Registered>, Option<Value>)> {
        self.registry.open();
        let answer = self.load_library.call(&compiled.function);
        let functions = self.registry.close();
        let (ok, error): (bool, Value) = answer?;
        Ok((functions, (!ok).then_some(error)))
    }

    fn describe(&mut self, source: &[u8]) -> std::result::Result<Vec<Described>, Reply<'static>> {
        let _running = self.budget.begin();
        let compiled = self.compile(source, true)?;
        let registered = self.registered(&compiled);
        if let Some(stop) = self.budget.stopped() {
            return Err(stop.reply());
        }
        match registered.map_err(|error| broken(&error))? {
            (functions, None) => {
                Ok(functions.into_iter().map(|function| function.described).collect())
            }
            (_, Some(error)) => Err(convert::to_registering_error(&error)),
        }
    }

    fn compile(
        &mut self,
        source: &[u8],
        is_library: bool,
    ) -> std::result::Result<Compiled, Reply<'static>> {
        let hash = hash_key(source) ^ u64::from(is_library);
        if let Some(compiled) = self.compiled.get(&hash)
            && *compiled.source == *source
            && compiled.is_library == is_library
        {
            return Ok(compiled.clone());
        }
        if source.len() > limits::SOURCE_BYTES_MAX {
            return Err(Reply::error(
                "ERR the script is longer than 524288 bytes, the most that one may be",
            ));
        }
        let (flags, body) = shebang::flags(source)?;
        let name = digest_of(source);
        let (chunk, what) = if is_library {
            ("@user_function", "function")
        } else {
            ("@user_script", "script (new function)")
        };
        let function = self.load(chunk, body).map_err(|error| {
            let text = match &error {
                Error::SyntaxError { message, .. } => message.clone(),
                error => error.to_string(),
            };
            Reply::Error(format!("ERR Error compiling {what}: {text}").into())
        })?;
        let is_full = self.compiled.len() >= limits::COMPILED_MAX
            || self.compiled_bytes + source.len() > limits::COMPILED_BYTES_MAX;
        if is_full {
            self.compiled.clear();
            self.compiled_bytes = 0;
        }
        let compiled =
            Compiled { source: source.into(), is_library, function, flags, name: (*name).into() };
        self.compiled_bytes += source.len();
        self.compiled.insert(hash, compiled.clone());
        Ok(compiled)
    }

    fn load(&self, chunk: &str, body: &[u8]) -> Result<Function> {
        let chunk = self.lua.load(body).set_name(chunk).set_mode(ChunkMode::Text);
        chunk.set_environment(self.env.clone()).into_function()
    }

    /// Whether the next run would find the interpreter as this one did.
    fn may_stay(&self) -> bool {
        let clean = || self.empty.iter().all(Table::is_empty);
        self.budget.stopped().is_none()
            && self.lua.used_memory() <= limits::KEPT_BYTES_MAX
            && (mutant!("scripts_globals_leak") || clean())
    }
}

/// What a value takes in the interpreter at most, besides its bytes.
pub(crate) const VALUE_BYTES: usize = 512;

/// Makes values of at most so many bytes. While the interpreter holds little, each of them needs no look
/// at the limit of memory, which takes longer than making it.
pub(crate) fn make<T>(lua: &Lua, bytes: usize, make: impl FnOnce() -> Result<T>) -> Result<T> {
    if lua.used_memory() + bytes > limits::KEPT_BYTES_MAX {
        return make();
    }
    lua.set_memory_limit(0)?;
    let made = make();
    lua.set_memory_limit(limits::MEMORY_BYTES_MAX)?;
    made
}

fn strings_table<'a>(
    lua: &Lua,
    strings: impl Iterator<Item = &'a [u8]>,
    count: usize,
) -> Result<Table> {
    let table = lua.create_table_with_capacity(count, 0)?;
    for (at, string) in strings.enumerate() {
        table.raw_set(at + 1, lua.create_string(string)?)?;
    }
    Ok(table)
}

/// What the wrappers ask for.
fn add_wrappers(lua: &Lua, host: &Table, budget: &Rc<Budget>) -> Result<()> {
    let shared = budget.clone();
    let caught = lua.create_function(move |lua, value: Value| {
        if shared.stopped().is_some() && !mutant!("scripts_pcall_catches_the_end") {
            return Err(Thrown::Stop.into());
        }
        if is_memory(&value) {
            return Err(shared.stop(Stop::Memory));
        }
        as_value(lua, value)
    })?;
    host.raw_set("caught", caught)?;
    let shared = budget.clone();
    let explain = lua.create_function(move |lua, value: Value| {
        if is_memory(&value) {
            shared.stop(Stop::Memory);
        }
        at_the_end(lua, value)
    })?;
    host.raw_set("explain", explain)?;
    let shared = budget.clone();
    let charge = lua.create_function(move |_, work: f64| shared.charge(work as usize))?;
    host.raw_set("charge", charge)?;
    let bad = |lua: &Lua, (index, function, wanted, got): (i64, String, String, String)| {
        let text = format!("bad argument #{index} to '{function}' ({wanted} expected, got {got})");
        Err::<(), _>(raise(lua, text))
    };
    host.raw_set("bad_argument", lua.create_function(bad)?)?;
    let readonly = |lua: &Lua, _: MultiValue| Err::<(), _>(raise(lua, READONLY));
    host.raw_set("readonly", lua.create_function(readonly)?)?;
    let undefined = |lua: &Lua, (_, name): (Value, Value)| {
        let name = convert::to_text(lua, &name);
        let mut text = b"Script attempted to access nonexistent global variable '".to_vec();
        text.extend_from_slice(&name);
        text.push(b'\'');
        Err::<(), _>(raise(lua, text))
    };
    host.raw_set("undefined", lua.create_function(undefined)?)?;
    let shared = budget.clone();
    let source_of = lua.create_function(move |lua, text: mlua::LuaString| {
        // The compiler works without a look at the bounds.
        shared.charge(text.as_bytes().len() * 8)?;
        if text.as_bytes().first() == Some(&0x1b) {
            // Text to this compiler, as to Redis's, which reads no compiled form.
            return lua.create_string([b" ", &*text.as_bytes()].concat());
        }
        Ok(text)
    })?;
    host.raw_set("source_of", source_of)
}

const READONLY: &str = "Attempt to modify a readonly table";

/// The tables of the interpreter that scripts can't change.
struct Protection {
    host: Table,
}

impl Protection {
    fn is_protected(lua: &Lua, table: &Table) -> Result<bool> {
        let protection =
            lua.app_data_ref::<Self>().expect("it is set when the interpreter is made");
        protection.host.raw_get::<Function>("is_protected")?.call(table)
    }

    fn inside(lua: &Lua, table: &Table) -> Result<Option<Table>> {
        let protection =
            lua.app_data_ref::<Self>().expect("it is set when the interpreter is made");
        protection.host.raw_get::<Function>("inside")?.call(table)
    }
}

/// Global functions that differ from Lua's.
fn add_globals(lua: &Lua, globals: &Table) -> Result<()> {
    let expected_table = |lua: &Lua, function: &str, value: Option<&Value>| {
        let got = value.map_or("no value", type_name);
        raise(lua, format!("bad argument #1 to '{function}' (table expected, got {got})"))
    };
    let next: Function = lua.globals().raw_get("next")?;
    let pairs = lua.create_function(move |lua, args: MultiValue| {
        let Some(Value::Table(table)) = args.front() else {
            return Err(expected_table(lua, "pairs", args.front()));
        };
        let table = Protection::inside(lua, table)?.unwrap_or_else(|| table.clone());
        Ok((next.clone(), table, Value::Nil))
    })?;
    globals.raw_set("pairs", pairs)?;
    let rawset = lua.create_function(move |lua, args: MultiValue| {
        let Some(Value::Table(table)) = args.front() else {
            return Err(expected_table(lua, "rawset", args.front()));
        };
        if Protection::is_protected(lua, table)? {
            return Err(Thrown::Text(READONLY.into()).into());
        }
        let at = |index| args.get(index).cloned().unwrap_or(Value::Nil);
        match at(1) {
            Value::Nil => return Err(Thrown::Text("table index is nil".into()).into()),
            Value::Number(number) if number.is_nan() => {
                return Err(Thrown::Text("table index is NaN".into()).into());
            }
            key => table.raw_set(key, at(2))?,
        }
        Ok(table.clone())
    })?;
    globals.raw_set("rawset", rawset)?;
    let native: Function = lua.globals().raw_get("getmetatable")?;
    let getmetatable = lua.create_function(move |lua, args: MultiValue| {
        let Some(value) = args.front() else {
            return Err(raise(lua, "bad argument #1 to 'getmetatable' (value expected)"));
        };
        match native.call::<Value>(value)? {
            Value::Boolean(false) => Ok(Value::Nil),
            found => Ok(found),
        }
    })?;
    globals.raw_set("getmetatable", getmetatable)?;
    let setmetatable = lua.create_function(move |lua, args: MultiValue| {
        let Some(Value::Table(table)) = args.front() else {
            return Err(expected_table(lua, "setmetatable", args.front()));
        };
        let metatable = match args.get(1) {
            Some(Value::Nil) => None,
            Some(Value::Table(metatable)) => Some(metatable.clone()),
            _ => {
                return Err(raise(
                    lua,
                    "bad argument #2 to 'setmetatable' (nil or table expected)",
                ));
            }
        };
        if Protection::is_protected(lua, table)? {
            return Err(Thrown::Text(READONLY.into()).into());
        }
        if let Some(old) = table.metatable()
            && !matches!(old.raw_get("__metatable")?, Value::Nil)
        {
            return Err(raise(lua, "cannot change a protected metatable"));
        }
        table.set_metatable(metatable)?;
        Ok(table.clone())
    })?;
    globals.raw_set("setmetatable", setmetatable)?;
    let collectgarbage = lua.create_function(|_, _: Variadic<Value>| Ok(0))?;
    globals.raw_set("collectgarbage", collectgarbage)?;
    globals.raw_set("gcinfo", lua.create_function(|_, ()| Ok((0, 0)))?)
}
