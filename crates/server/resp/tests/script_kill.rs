//! `SCRIPT KILL` and `FUNCTION KILL` stop every script that runs in the process, so this is a program of
//! its own: among the tests of `resp` it would stop their scripts, and find them where none should run.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use quorate_resp::{Settings, Shared};
use quorate_resp_harness::Harness;

const NOTBUSY: &str = "-NOTBUSY No scripts in execution right now.\r\n";
const KILLED: &str = "-ERR Script killed by user with SCRIPT KILL; nothing of it happened.\r\n";
const ENDLESS: &str = "EVAL \"redis.call('set', KEYS[1], 1) while true do end\" 1 a";

/// Runs of a script without end, each ended by its bound, in which a kill must arrive.
const RUNS_MAX: u32 = 100;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

#[test]
fn a_script_without_end_is_killed_and_undone() {
    let mut operator = harness();
    let operator_id = operator.connect();
    assert_eq!(operator.talk(operator_id, "SCRIPT KILL"), NOTBUSY);
    assert_eq!(operator.talk(operator_id, "FUNCTION KILL"), NOTBUSY);
    for command in ["SCRIPT KILL", "FUNCTION KILL"] {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut application = harness();
                let id = application.connect();
                let killed = (0..RUNS_MAX).any(|_| application.talk(id, ENDLESS) == KILLED);
                ended.store(true, Relaxed);
                assert!(killed, "no kill arrived in {RUNS_MAX} runs");
                assert_eq!(application.talk(id, "GET a"), "$-1\r\n");
                assert_eq!(application.talk(id, "EVAL \"return 1\" 0"), ":1\r\n");
            });
            while !ended.load(Relaxed) {
                let reply = operator.talk(operator_id, command);
                assert!(["+OK\r\n", NOTBUSY].contains(&reply.as_str()), "{reply}");
                thread::yield_now();
            }
        });
    }
    assert_eq!(operator.talk(operator_id, "SCRIPT KILL"), NOTBUSY);
}
