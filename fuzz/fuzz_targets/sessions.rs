//! What a replica copies of another's sessions, and what lease managers tell each other: damaged or
//! not, nothing may panic, and what was understood is written in a form that means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_rifl::{Call, LeaseId, ResultTracker};
use quorate_wire::{Reader, Writer};

fuzz_target!(|input: &[u8]| {
    let Some((&parts, input)) = input.split_first() else { return };
    if let Ok(call) = Call::decode(&mut Reader(input)) {
        let mut bytes = Vec::new();
        call.encode(&mut Writer(&mut bytes));
        assert_eq!(bytes, input[..bytes.len()]);
    }
    if let Ok(message) = quorate_rifl::Message::decode(input) {
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        assert_eq!(bytes, input);
    }
    let mut tracker = ResultTracker::<u64>::default();
    tracker.begin_copy();
    let _ = tracker.merge(input);
    tracker.end_copy();
    tracker.check_invariants();
    let mut copy = ResultTracker::<u64>::default();
    let mut from = Some((LeaseId(0), 0));
    while let Some(part) = from {
        let mut bytes = Vec::new();
        from = tracker.encode_from(part, usize::from(parts), &mut bytes);
        copy.merge(&bytes).expect("what was written can be read");
    }
    assert_eq!(copy, tracker);
});
