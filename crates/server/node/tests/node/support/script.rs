//! A script without an interpreter: it counts its key up, and publishes the number and its opposite.

use std::cell::Cell;

use quorate_commands::{
    Args, Note, Notes, OwnedCall, Reply, ScriptFunction, Spec, install_scripts,
};
use quorate_machine::{Verdict, Workspace};
use quorate_types::UnixMillis;

/// The command that runs it, on a key.
pub(crate) const fn on(key: &str) -> [&str; 4] {
    ["EVAL", "", "1", key]
}

thread_local! {
    /// How often it has run for this test, whose nodes share a thread.
    pub(crate) static RUNS: Cell<u64> = const { Cell::new(0) };
}

static COUNT_AND_PUBLISH: ScriptFunction = count_and_publish;

pub(crate) fn install() {
    install_scripts(&COUNT_AND_PUBLISH);
}

fn count_and_publish(
    _: &'static Spec,
    args: Args<'_>,
    now: UnixMillis,
    workspace: &mut dyn Workspace,
    notes: &mut Notes,
) -> Verdict<Reply<'static>> {
    RUNS.set(RUNS.get() + 1);
    let mut call = |words: &[&[u8]]| {
        let call = OwnedCall::new(words.iter().copied()).expect("a command");
        call.call().run_within_script(now, workspace, notes)
    };
    let reply = call(&[b"INCR", args.get(3)]);
    let Reply::Int(number) = reply else { return Verdict::Abandon(reply) };
    for number in [number, -number] {
        call(&[b"PUBLISH", b"c", number.to_string().as_bytes()]);
    }
    Verdict::Commit(reply)
}

/// The number that a run has answered, if it is to be told with its two messages.
pub(crate) fn told(reply: &Reply<'static>) -> Option<i64> {
    let mut reply = reply.clone();
    let notes = reply.take_notes();
    let Reply::Int(number) = reply else { panic!("{reply:?}") };
    let told: Vec<_> = notes.iter().map(text).collect();
    if told.is_empty() {
        return None;
    }
    assert_eq!(told, [number.to_string(), (-number).to_string()]);
    Some(number)
}

fn text(note: &Note) -> String {
    let Note::Message(publication) = note else { panic!("{note:?}: no message") };
    String::from_utf8(publication.message.to_vec()).expect("it is a number")
}
