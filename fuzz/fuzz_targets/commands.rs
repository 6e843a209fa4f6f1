//! What clients send, as commands: any arguments to any command, one after the other on the same
//! keys.
//!
//! Nothing may panic; running a command again on the same keys answers and changes the
//! same; what a command encodes to is that command; and a stream that is large answers and holds
//! what a packed one does.
//!
//! The input is one command a line, its words between spaces, so that the fuzzer can swap them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_commands::{MapWorkspace, Op, OwnedCall};
use quorate_machine::{Command, ValueKind};
use quorate_types::{Timestamp, UnixMillis, WriterId};

const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

fuzz_target!(|input: &[u8]| {
    let mut keys = MapWorkspace::default();
    let mut all_large = MapWorkspace::new(Some(0));
    for (number, line) in input.split(|byte| *byte == b'\n').take(64).enumerate() {
        let Ok(call) = OwnedCall::new(line.split(|byte| *byte == b' ')) else { continue };
        let call_ref = call.call();
        // A call that says more keys than it has names none, and is not forwarded.
        if call_ref.keys().next().is_some() {
            let op = Op::Call(call.clone());
            let mut bytes = Vec::new();
            op.encode(&mut bytes);
            assert_eq!(Op::decode(&bytes), Some(op));
        }
        let at = Timestamp::new(number as u64 + 1, WriterId(1));
        let mut other = keys.clone();
        let answer = keys.run(NOW, at, &Op::Call(call.clone()));
        assert_eq!(answer, other.run(NOW, at, &call.call()), "a second run differs");
        for key in call_ref.keys() {
            let (one, two) = (keys.get(NOW, key), other.get(NOW, key));
            assert_eq!(one.content, two.content, "a second run changes something else");
        }
        let large_answer = all_large.run(NOW, at, &call.call());
        let key = call_ref.keys().next().filter(|_| call_ref.spec.name.starts_with('x'));
        let held = key.map(|key| (keys.get(NOW, key), all_large.get(NOW, key)));
        if let Some((packed, large)) = held
            && let (Some(content), Some(stream)) = (packed.content, large.large)
            && content.kind == ValueKind::Stream
        {
            let mut bytes = Vec::new();
            stream.pack(&mut bytes);
            assert_eq!(bytes, content.bytes, "a large stream is another one");
            assert_eq!(answer, large_answer, "a large stream answers otherwise");
        }
    }
});
