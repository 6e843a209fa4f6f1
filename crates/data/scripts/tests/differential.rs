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
    match store.transact(&Call::new(spec, args)) {
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
