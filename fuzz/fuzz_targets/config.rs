//! Configuration files.
//!
//! Nothing may panic, and an error names the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_config::Config;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Err(error) = Config::parse("quorate.toml", text) {
        assert!(error.to_string().contains("quorate.toml"), "{error}");
    }
});
