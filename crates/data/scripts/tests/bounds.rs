//! What a script can't do: run on, hold much, leave anything behind.

use quorate_commands::{MapWorkspace, Note, OwnedCall, Reply};
use quorate_machine::{Change, Command as _, Current, Verdict, Workspace};
use quorate_types::{Publication, Timestamp, Topic, UnixMillis, WriterId};

/// Keys in memory.
#[derive(Default)]
struct Keys {
    keys: MapWorkspace,
    version: u64,
}

impl Keys {
    fn run(&mut self, words: &[&str]) -> Verdict<Reply<'static>> {
        quorate_scripts::install();
        let call = OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command");
        self.version += 1;
        let version = Timestamp::new(self.version, WriterId(1));
        self.keys.run(UnixMillis(1_000), version, &call.call())
    }

    fn eval(&mut self, source: &str) -> Verdict<Reply<'static>> {
        self.run(&["EVAL", source, "1", "key"])
    }

    fn get(&mut self, key: &str) -> Reply<'static> {
        match self.run(&["GET", key]) {
            Verdict::Commit(reply) => reply,
            abandoned => panic!("{abandoned:?}"),
        }
    }
}

fn text(text: &str) -> Reply<'static> {
    Reply::Bulk(text.as_bytes().to_vec().into())
}

/// Runs a script that a bound other than the processor time stops, however slow this machine is.
fn is_stopped(body: &str, why: &str) {
    quorate_scripts::bound_cpu_of_this_thread(u64::MAX);
    is_stopped_by_any(body, why);
}

/// Runs a script that a bound stops: it changes nothing, and the next one runs as ever.
fn is_stopped_by_any(body: &str, why: &str) {
    let mut keys = Keys::default();
    let source = format!("redis.call('set', KEYS[1], 'changed') {body}");
    match keys.eval(&source) {
        Verdict::Abandon(Reply::Error(text)) => assert!(text.contains(why), "{body}: {text}"),
        other => panic!("{body}: {other:?}"),
    }
    assert_eq!(keys.get("key"), Reply::Null, "{body}");
    assert_eq!(keys.eval("return 'fine'"), Verdict::Commit(text("fine")), "{body}");
}

const INSTRUCTIONS: &str = "ran longer than 5000000 instructions";
const MEMORY: &str = "needed more than 67108864 bytes";

#[test]
fn a_loop_ends() {
    is_stopped("while true do end", INSTRUCTIONS);
    is_stopped("local function f() return f() end f()", INSTRUCTIONS);
    is_stopped("for i = 1, 1e9 do local x = {i} end", INSTRUCTIONS);
    is_stopped("for i = 1, 1e9 do redis.call('get', KEYS[1]) end", INSTRUCTIONS);
}

#[test]
fn a_loop_that_catches_errors_ends() {
    for body in [
        "while true do pcall(function() while true do end end) end",
        "local function f() pcall(f) return f() end f()",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "while true do redis.pcall('get') end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "pcall(function() table.sort({3, 2, 1}, function() while true do end end) end) while true do end",
        "while true do pcall(load, function() while true do end end) end",
        "while true do pcall(string.gsub, 'abc', '.', function() while true do end end) end",
        "setmetatable({}, {__index = function() while true do end end}).x = 1 \
         pcall(function() return setmetatable({}, {__index = function() while true do end end}).x end) \
         return 'caught'",
        "tostring(setmetatable({}, {__tostring = function() while true do end end}))",
    ] {
        is_stopped(body, INSTRUCTIONS);
    }
}

/// A workspace that is full once something was read: the run ends there.
#[derive(Default)]
struct Full {
    keys: MapWorkspace,
    reads: usize,
}

impl Workspace for Full {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        self.reads += 1;
        self.keys.read(key)
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        self.keys.write(key, change);
    }

    fn is_full(&self) -> bool {
        self.reads > 0
    }
}

/// What a script does behind the end of its run is counted by what it reads.
#[test]
fn the_end_of_a_run_is_not_caught() {
    quorate_scripts::install();
    for catches in [
        "pcall(redis.call, 'get', key)",
        "xpcall(function() redis.call('get', key) end, function() end)",
        "redis.pcall('get', key)",
        "coroutine.resume(coroutine.create(function() redis.call('get', key) end))",
        "pcall(pcall, redis.call, 'get', key)",
    ] {
        let source = format!("for key = 1, 3 do {catches} end return 'caught'");
        let call = OwnedCall::new(["EVAL", &source, "0"].map(str::as_bytes)).expect("a command");
        let mut workspace = Full::default();
        let verdict = call.call().run(UnixMillis(1_000), &mut workspace);
        assert_eq!(workspace.reads, 1, "{catches}");
        assert!(matches!(verdict, Verdict::Abandon(Reply::Error(_))), "{catches}: {verdict:?}");
    }
}

#[test]
fn what_a_script_publishes_is_bounded() {
    const MESSAGES: &str = "published more than 16384 messages, or 16777216 bytes";
    is_stopped("for i = 1, 1e6 do redis.call('publish', 'c', i) end", MESSAGES);
    is_stopped("for i = 1, 1e6 do pcall(redis.call, 'spublish', 'c', i) end", MESSAGES);
    is_stopped(
        "local m = string.rep('x', 4 * 1024 * 1024) for i = 1, 4 do redis.call('publish', 'c', m) end",
        MESSAGES,
    );
    let mut keys = Keys::default();
    let source = "for i = 1, 16384 do redis.call('publish', 'c', i) end";
    let Verdict::Commit(mut reply) = keys.eval(source) else { panic!("they may be that many") };
    let notes = reply.take_notes();
    assert_eq!((notes.len(), reply), (16_384, Reply::Null));
    let last = Note::Message(Publication {
        topic: Topic::Channel,
        channel: (*b"c").into(),
        message: (*b"16384").into(),
    });
    assert_eq!(notes.last(), Some(&last));
    for (words, why) in [
        ("string.rep('c', 65537), 'x'", "ERR the name of a channel has at most 65536 bytes"),
        ("'c', string.rep('x', 4 * 1024 * 1024 + 1)", "ERR a message has at most 4194304 bytes"),
    ] {
        let verdict = keys.eval(&format!("return redis.pcall('publish', {words})"));
        assert_eq!(verdict, Verdict::Commit(Reply::error(why)));
    }
}

#[test]
fn a_loop_in_a_coroutine_ends() {
    // Long enough for the bound, and it ends also where nothing counts it.
    is_stopped("coroutine.wrap(function() for i = 1, 2e7 do end end)()", INSTRUCTIONS);
    is_stopped(
        "local f = coroutine.wrap(function() for i = 1, 2e7 do coroutine.yield() end end) \
         for i = 1, 2e7 do f() end",
        INSTRUCTIONS,
    );
    is_stopped("while true do coroutine.wrap(function() end)() end", INSTRUCTIONS);
}

/// As many steps as a bound needs, and no more than also end where nothing counts them.
#[test]
fn the_steps_of_a_pattern_are_counted() {
    is_stopped("string.rep('a', 6000):find('^.-.-b')", INSTRUCTIONS);
}

#[test]
fn what_one_function_of_a_library_does_is_counted() {
    let long = "local s = string.rep('a', 30000) ";
    for body in [
        "s:find('.-.-.-.-b')",
        "s:match('(.*).-(.*).-b')",
        "s:gsub('a*b', '')",
        "while true do s:find('b', 1, true) end",
        "for w in s:gmatch('a-b') do end",
        "s:match('%b()%b()') while true do s:match(string.rep('a?', 100) .. 'b') end",
        "local t = {} for i = 1, 1e5 do t[i] = -i end while true do table.sort(t) end",
        "local t = {} for i = 1, 200000 do t[i] = i % 7 end table.sort(t) table.sort(t)",
        "local code = string.rep('x = 1 ', 10000) while true do loadstring(code) end",
        "while true do string.rep('x', 1000000) end",
    ] {
        is_stopped(&format!("{long} {body}"), INSTRUCTIONS);
    }
}

#[test]
fn memory_is_bounded() {
    for body in [
        "local s = 'x' while true do s = s .. s end",
        "string.rep('x', 1e9)",
        "pcall(string.rep, 'x', 1e9) return 'caught'",
        "pcall(function() local s = 'x' while true do s = s .. s end end) return 'caught'",
        "local s = string.rep('x', 1e6) return (s:gsub('x', string.rep('y', 1000)))",
    ] {
        is_stopped(body, MEMORY);
    }
}

#[test]
fn slow_instructions_are_stopped() {
    for body in [
        "local s = string.rep('x', 16000000) while true do local t = s .. 'y' end",
        "local s = string.rep('x', 16000000) while true do s:upper() end",
        "local s = string.rep('x', 16000000) while true do s:reverse() end",
    ] {
        is_stopped_by_any(body, "was stopped; nothing of it happened");
    }
}

#[test]
fn deep_recursion_is_an_error_of_the_script() {
    let mut keys = Keys::default();
    for body in [
        "local function f() return 1 + f() end f()",
        "local function f() ('x'):gsub('x', f) end f()",
        "local function f() return pcall(f) end f() error('end')",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k] end \
         return t.x",
        "local t = setmetatable({}, {}) getmetatable(t).__tostring = tostring return tostring(t)",
        "local function f() coroutine.wrap(f)() end f()",
        "local function f() table.sort({1, 2, 3}, f) end f()",
        "local s = 'return ' for i = 1, 10000 do s = s .. '(' end assert(loadstring(s))",
        "return ('x'):rep(300):match(('(x?)'):rep(300))",
        "return ('x'):rep(300):match(('x*'):rep(300) .. 'y')",
    ] {
        match keys.eval(body) {
            Verdict::Commit(Reply::Error(text)) => assert!(text.starts_with("ERR "), "{text}"),
            other => panic!("{body}: {other:?}"),
        }
    }
    let nested = "local t = {} for i = 1, 1000 do t = {t} end return t";
    assert!(matches!(keys.eval(nested), Verdict::Commit(Reply::Array(_))));
}

#[test]
fn nothing_stays_from_run_to_run() {
    let mut keys = Keys::default();
    for leak in [
        "rawset(_G, 'left', 1)",
        "left = 1",
        "table.insert(string, 'left')",
        "table.insert(getmetatable(''), 'left')",
        "pcall(rawset, redis, 'left', 1)",
        "string.len = function() return 'left' end",
        "getmetatable('').__index.left = 1",
        "getmetatable(_G).__index = {left = 1}",
        "setmetatable(getmetatable(_G), {__index = {left = 1}})",
        "table.insert(getmetatable(_G), 'left')",
        "table.insert(_G, 'left')",
        "KEYS.left = 1",
        "math.left = 1",
        "setmetatable(redis, {__index = {left = 1}})",
        "table.setn(redis, 1)",
        "loadstring('left = 1')()",
        "coroutine.wrap(function() left = 1 end)()",
        "_G._G.left = 1",
    ] {
        let _ = keys.eval(leak);
        let look = "return {tostring(pcall(function() return left end)), \
                    tostring(rawget(_G, 'left')), tostring(string.left), tostring(redis.left), \
                    tostring(math.left), tostring(rawget(string, 1)), tostring(KEYS.left), \
                    tostring(rawget(redis, 1)), tostring(rawget(getmetatable(''), 1)), \
                    tostring(rawget(_G, 1)), tostring(getmetatable(_G)[1]), \
                    tostring(getmetatable(_G).left), #'four'}";
        let nil = || text("nil");
        let mut expected = vec![text("false")];
        expected.extend((0..11).map(|_| nil()));
        expected.push(Reply::Int(4));
        assert_eq!(keys.eval(look), Verdict::Commit(Reply::Array(expected)), "{leak}");
    }
}

#[test]
fn a_run_at_the_same_time_draws_the_same_numbers() {
    let mut keys = Keys::default();
    let source = "return tostring(math.random()) .. tostring(math.random(1e6))";
    let first = keys.eval(source);
    assert_eq!(keys.eval(source), first);
    let other = keys.run(&["EVAL", source, "1", "other key"]);
    assert_ne!(other, first, "other arguments, other numbers");
}

#[test]
fn bytecode_is_not_loaded() {
    let mut keys = Keys::default();
    let reply =
        keys.eval("return {tostring(loadstring('\\27Lua\\81')), pcall(string.dump, pcall)}");
    let Verdict::Commit(Reply::Array(parts)) = reply else { panic!("{reply:?}") };
    assert_eq!(parts[0], text("nil"));
    assert_eq!(parts[1], Reply::Null);
    let header = keys.run(&["EVAL", "\u{1b}Lua", "0"]);
    assert!(matches!(header, Verdict::Commit(Reply::Error(_))), "{header:?}");
}

#[test]
fn a_script_that_only_reads_writes_nothing() {
    let mut keys = Keys::default();
    let read_only = "ERR Write commands are not allowed from read-only scripts.";
    for words in [
        ["EVAL_RO", "return redis.pcall('set', KEYS[1], 'x')", "1", "key"],
        ["EVAL", "#!lua flags=no-writes\nreturn redis.pcall('set', KEYS[1], 'x')", "1", "key"],
    ] {
        assert_eq!(keys.run(&words), Verdict::Commit(Reply::Error(read_only.into())));
    }
    assert_eq!(keys.get("key"), Reply::Null);
}

#[test]
fn an_engine_of_single_keys_runs_scripts_on_the_key_that_they_name() {
    use quorate_machine::{Change, Current};
    quorate_scripts::install();
    let absent = || Current::ABSENT;
    let run = |words: &[&str]| {
        let call = OwnedCall::new(words.iter().map(|word| word.as_bytes())).expect("a command");
        let (reply, change) = call.call().execute(UnixMillis(0), absent());
        (reply.into_owned(), change != Change::Keep)
    };
    let set = "return redis.call('incr', KEYS[1])";
    assert_eq!(run(&["EVAL", set, "1", "a"]), (Reply::Int(1), true));
    assert_eq!(run(&["EVAL", set, "2", "a", "a"]), (Reply::Int(1), true));
    assert_eq!(run(&["EVAL", "return 7", "0"]), (Reply::Int(7), false));
    for words in [
        &["EVAL", set, "2", "a", "b"][..],
        &["EVAL", "redis.call('set', KEYS[1], 1) return redis.call('get', 'b')", "1", "a"],
        &["EVAL", "redis.call('set', KEYS[1], 1) return redis.pcall('set', 'b', 1)", "1", "a"],
        &["EVAL", "return redis.call('get', 'a')", "0"],
        &["EVAL_RO", "return redis.call('get', 'b')", "1", "a"],
    ] {
        let (reply, changed) = run(words);
        assert!(!changed, "{words:?}");
        assert_eq!(reply, Reply::error(quorate_commands::CROSSKEY), "{words:?}");
    }
}
