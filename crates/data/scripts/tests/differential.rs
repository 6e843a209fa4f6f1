//! Scripts to this crate and to a real redis-server: the answers must be the same.

#[path = "../../commands/tests/redis/mod.rs"]
#[expect(dead_code, reason = "the tests of commands use more of it")]
mod redis;
#[path = "../../commands/tests/workspace/mod.rs"]
#[expect(dead_code, reason = "the tests of commands use more of it")]
mod workspace;

use quorate_commands::{Call, OwnedArgs, Reply, resolve};
use quorate_machine::Verdict;
use redis::Redis;
use workspace::{Answer, Store, Words};

const SCRIPTS: &str = include_str!("scripts.txt");

fn words(command: &str, source: &str) -> Words {
    [command, source, "2", "k1", "k2", "a1", "2"].map(|word| word.as_bytes().to_vec()).to_vec()
}

fn run(store: &mut Store, words: &Words) -> Answer {
    let args = OwnedArgs::new(words.iter().map(Vec::as_slice));
    let args = args.borrow();
    let spec = match resolve(args) {
        Ok(spec) => spec,
        Err(error) => return error.into(),
    };
    match store.transact(&[spec.name], &Call::new(spec, args)) {
        Verdict::Commit(reply) | Verdict::Abandon(reply) => plain(reply).into(),
    }
}

/// What RESP2 says instead of what only RESP3 has.
fn plain(reply: Reply<'static>) -> Reply<'static> {
    let pair = |(key, value)| (plain(key), plain(value));
    match reply {
        Reply::Double(number) => Reply::Bulk(number.to_string().into_bytes().into()),
        Reply::Bool(is) => Reply::Int(is.into()),
        Reply::BigNumber(text) | Reply::Verbatim(text) => {
            Reply::Bulk(text.into_owned().into_bytes().into())
        }
        Reply::Array(items) => Reply::Array(items.into_iter().map(plain).collect()),
        Reply::Set(items) => Reply::Set(items.into_iter().map(plain).collect()),
        Reply::Map(pairs) => Reply::Map(pairs.into_iter().map(pair).collect()),
        other => other,
    }
}

#[test]
fn scripts_answer_as_redis_does() {
    quorate_scripts::install();
    let mut redis = Redis::start();
    let mut store = Store::default();
    let mut failures = Vec::new();
    for source in SCRIPTS.lines().filter(|line| !line.starts_with("# ")) {
        let words = words("EVAL", source);
        let theirs = redis.pipeline([&words]).remove(0);
        let ours = run(&mut store, &words);
        if ours != theirs {
            failures.push(format!("{source}\n  ours:   {ours:?}\n  theirs: {theirs:?}"));
        }
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}

const TWO: &str = "#!lua name=two\n\
    local count = 0\n\
    local function both(keys, args) return {keys[1], args[1]} end\n\
    redis.register_function('both', both)\n\
    redis.register_function{function_name='get', description='reads',\n\
        callback=function(keys) return redis.call('get', keys[1]) end, flags={'no-writes'}}\n\
    redis.register_function('set', function(keys, args) return redis.call('set', keys[1], args[1]) end)";

/// Bodies of libraries that are refused, or whose function `f` is called.
const BODIES: &[&str] = &[
    "",
    "return 1",
    "x = 1",
    "redis.call('get', 'x')",
    "redis.register_function()",
    "redis.register_function('f')",
    "redis.register_function('f', 1)",
    "redis.register_function(1, function() end)",
    "redis.register_function('f', function() end, 3)",
    "redis.register_function('f-x', function() end)",
    "redis.register_function('f', function() end) redis.register_function('f', function() end)",
    "redis.register_function('both', function() end)",
    "redis.register_function{function_name='f'}",
    "redis.register_function{callback=function() end}",
    "redis.register_function{function_name='f', callback=function() end, x=1}",
    "redis.register_function{function_name='f', callback=function() end, flags=1}",
    "redis.register_function{function_name='f', callback=function() end, flags={'zz'}}",
    "redis.register_function{function_name=1, callback=function() end}",
    "redis.register_function{function_name='f', callback=1}",
    "redis.register_function{function_name='f', callback=function() end, description=1}",
    "if",
    "redis.register_function('f', function() error('boom') end)",
    "redis.register_function('f', function() return redis.call('get') end)",
    "redis.register_function('f', function() return nope end)",
    "redis.register_function('f', function() nope = 1 end)",
    "redis.register_function('f', function(keys, args) return #keys * 10 + #args end)",
    "redis.register_function('f', function() return redis.call('incr', 'n') end)",
    "redis.register_function('f', function() return cjson.encode({1, 2}) end)",
    "local t = {} redis.register_function('f', function() return next(t) == nil and 1 end)",
    "redis.register_function('f', function() return type(KEYS) end)",
    "redis.register_function{function_name='f', callback=function() \
     return redis.call('set', 'x', 1) end, flags={'no-writes'}}",
];

#[test]
fn functions_answer_as_redis_does() {
    quorate_scripts::install();
    let mut redis = Redis::start();
    let mut store = Store::default();
    let mut commands: Vec<Vec<String>> = Vec::new();
    let mut add = |words: &[&str]| commands.push(words.iter().map(ToString::to_string).collect());
    for words in [
        &["FUNCTION", "LIST"][..],
        &["FCALL", "both", "0"],
        &["FUNCTION", "LOAD", TWO],
        &["FUNCTION", "LOAD", TWO],
        &["FUNCTION", "LOAD", "REPLACE", TWO],
        &["FUNCTION", "LOAD", "OTHERWISE", TWO],
        &["FUNCTION", "LIST"],
        &["FUNCTION", "LIST", "WITHCODE"],
        &["FUNCTION", "LIST", "LIBRARYNAME", "T*", "WITHCODE"],
        &["FUNCTION", "LIST", "LIBRARYNAME", "x*"],
        &["FUNCTION", "LIST", "LIBRARYNAME"],
        &["FUNCTION", "LIST", "NOTHING"],
        &["FUNCTION", "STATS"],
        &["FCALL", "both", "1", "key", "argument"],
        &["FCALL", "BOTH", "0"],
        &["FCALL_RO", "both", "0"],
        &["FCALL", "set", "1", "key", "value"],
        &["FCALL", "get", "1", "key"],
        &["FCALL_RO", "get", "1", "key"],
        &["FCALL", "both", "x"],
        &["FCALL", "both", "-1"],
        &["FCALL", "both", "5"],
        &["FUNCTION", "DUMP"],
        &["FUNCTION", "DELETE", "nothing"],
        &["FUNCTION", "RESTORE", "nothing"],
        &["FUNCTION", "RESTORE", "nothing", "OTHERWISE"],
        &["FUNCTION", "LOAD", "return 1"],
        &["FUNCTION", "LOAD", "#!lua"],
        &["FUNCTION", "LOAD", "#!lua\nreturn 1"],
        &["FUNCTION", "LOAD", "#!js name=x\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a-b\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a name=b\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a other=b\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=\"a\"\nreturn 1"],
        &["FUNCTION", "LOAD", "#! name=a\nreturn 1"],
        &["FUNCTION", "RESTORE", "nothing", "APPEND", "more"],
        &["FUNCTION", "FLUSH", "SYNC", "more"],
        &["FUNCTION", "FLUSH", "OTHERWISE"],
    ] {
        add(words);
    }
    for body in BODIES {
        add(&["FUNCTION", "LOAD", "REPLACE", &format!("#!lua name=l\n{body}")]);
        add(&["FCALL", "f", "1", "k", "a", "b"]);
    }
    add(&["FUNCTION", "DELETE", "l"]);
    add(&["FUNCTION", "FLUSH"]);
    add(&["FUNCTION", "LIST"]);
    let mut failures = Vec::new();
    let mut dumped = None;
    for command in &commands {
        let words: Words = command.iter().map(|word| word.clone().into_bytes()).collect();
        let theirs = redis.pipeline([&words]).remove(0);
        let ours = run(&mut store, &words);
        if command[1] == "DUMP" {
            dumped = Some((theirs, ours));
        } else if sorted(&ours) != sorted(&theirs) {
            failures.push(format!("{command:?}\n  ours:   {ours:?}\n  theirs: {theirs:?}"));
        }
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
    // Each takes what the other has dumped.
    let Some((Answer::Bulk(theirs), Answer::Bulk(ours))) = dumped else { panic!("{dumped:?}") };
    let restore = |payload: Vec<u8>| vec![b"FUNCTION".to_vec(), b"RESTORE".to_vec(), payload];
    assert_eq!(run(&mut store, &restore(theirs)), Answer::Status("OK".into()));
    assert_eq!(redis.pipeline([&restore(ours)]), [Answer::Status("OK".into())]);
    let list: Words = [&b"FUNCTION"[..], b"LIST", b"WITHCODE"].map(<[u8]>::to_vec).to_vec();
    assert_eq!(sorted(&run(&mut store, &list)), sorted(&redis.pipeline([&list]).remove(0)));
}

/// An answer without the order of its parts, which is that of Redis's tables.
fn sorted(answer: &Answer) -> String {
    match answer {
        Answer::Array(parts) => {
            let mut parts: Vec<String> = parts.iter().map(sorted).collect();
            parts.sort_unstable();
            parts.join(",")
        }
        other => format!("{other:?}"),
    }
}
