//! Well-formed lies of a Zeus replica to three whole nodes; none of the nodes may stop.
#![no_main]

#[expect(dead_code, reason = "this target is about one of the protocols")]
#[path = "../../crates/server/node/tests/lies/script.rs"]
mod script;
#[path = "../../crates/server/node/tests/lies/world.rs"]
mod world;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    script::run(script::About::Zeus, input);
});
