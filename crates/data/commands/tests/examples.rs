//! Every keyed command by example: `examples.txt` is a session with a Redis 7.0.15.

mod workspace;

use quorate_commands::{Keyed, Run, Spec, table};
use quorate_types::UnixMillis;
use workspace::{EXAMPLES, Store, examples, show};

/// What is newer than that Redis, in the same form.
const LATER: &str = include_str!("later.txt");

#[test]
fn every_example_answers_as_written() {
    for text in [EXAMPLES, LATER] {
        let mut store = Store { now: UnixMillis(1_700_000_000_000), ..Store::default() };
        for (words, answer) in examples(text) {
            assert_eq!(format!("{:?}", store.run(&words)), answer, "{}", show(&words));
        }
    }
}

#[test]
fn every_keyed_command_has_an_example() {
    let rows = table().iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands));
    let is_keyed = |spec: &&Spec| {
        matches!(spec.run, Run::Key(Keyed::One(_) | Keyed::Several(_))) && spec.has_keys()
    };
    for spec in rows.filter(is_keyed) {
        let name = format!("\n> {} ", spec.name.replace('|', " ").to_uppercase());
        let has = [EXAMPLES, LATER].iter().any(|text| text.contains(&name));
        assert!(has, "no example of {}", spec.name);
    }
}

/// A value past its time is gone for every command, whether or not it was collected.
#[test]
fn an_expired_value_is_absent() {
    let mut store = Store { now: UnixMillis(1_000), ..Store::default() };
    let mut ask = |now: u64, line: &str| {
        store.now = UnixMillis(now);
        let words = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        format!("{:?}", store.run(&words))
    };
    assert_eq!(ask(1_000, "SET k v PX 500"), "+OK");
    assert_eq!(ask(1_499, "PTTL k"), ":1");
    assert_eq!(ask(1_499, "TTL k"), ":0");
    assert_eq!(ask(1_000, "TTL k"), ":1");
    assert_eq!(ask(1_500, "GET k"), "null");
    assert_eq!(ask(1_500, "PERSIST k"), ":0");
    assert_eq!(ask(1_500, "APPEND k w"), ":1");
    assert_eq!(ask(1_500, "PTTL k"), ":-1");
}
