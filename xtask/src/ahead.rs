//! Builds for the last steps of the gate, made while earlier ones wait for real processes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use crate::{fuzz, mutants, threads};

/// What is built ahead, one build after the other, with the time that nothing else wants. Whether
/// one fails is not looked at here: the step that needs it builds it again, and says so.
#[derive(Default)]
pub struct Ahead {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    over: bool,
    /// The steps that have begun, and build for themselves.
    begun: Vec<&'static str>,
    /// What is being built, and the step that it is for.
    running: Option<(&'static str, Child)>,
}

/// The builds, and the steps that they are for, in the order of these.
fn builds(root: &Path) -> Vec<(&'static str, Command)> {
    let mut loom = threads::loom_test(root);
    let mut shuttle = threads::shuttle_test_in_gate(root);
    loom.arg("--no-run");
    shuttle.arg("--no-run");
    let model = mutants::program_build(root, "quorate-model");
    vec![
        ("loom", loom),
        ("shuttle", shuttle),
        ("fuzz", fuzz::check_command(root)),
        ("model", model),
    ]
}

impl Ahead {
    /// Begins.
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, root: &'scope Path) {
        scope.spawn(|| {
            for (step, command) in builds(root) {
                self.run(step, &command);
            }
        });
    }

    fn run(&self, step: &'static str, command: &Command) {
        let mut low = last_in_line(command);
        {
            let mut state = self.lock();
            if state.over || state.begun.contains(&step) {
                return;
            }
            // Where there is no `nice`, nothing is built ahead.
            let Ok(child) = low.spawn() else { return };
            state.running = Some((step, child));
        }
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_running(&self) -> bool {
        let mut state = self.lock();
        let ended = state
            .running
            .as_mut()
            .is_none_or(|(_, child)| child.try_wait().is_ok_and(|status| status.is_some()));
        if ended {
            state.running = None;
        }
        !ended
    }

    /// A step begins. What is being built for it is built by itself from here on, as one that waits
    /// for nobody: the step would wait for the lock of its target directory.
    pub fn leave(&self, step: &'static str) {
        let mut state = self.lock();
        state.begun.push(step);
        if state.running.as_ref().is_some_and(|(running, _)| *running == step) {
            state.end();
        }
    }

    /// Ends the build that is under way, and begins no other.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.over = true;
        state.end();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end(&mut self) {
        if let Some((_, mut child)) = self.running.take() {
            // It may have ended by itself in the meantime; then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The same command, silent, and run only when a processor has nothing else to do.
fn last_in_line(command: &Command) -> Command {
    let mut low = Command::new("nice");
    low.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        low.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => low.env(name, value),
            None => low.env_remove(name),
        };
    }
    low.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_begins_is_not_kept_waiting_by_what_is_built_for_it() {
        let (ahead, mut forever) = (Ahead::default(), Command::new("tail"));
        forever.args(["-f", "/dev/null"]);
        std::thread::scope(|scope| {
            let build = scope.spawn(|| ahead.run("loom", &forever));
            while ahead.lock().running.is_none() {
                std::thread::yield_now();
            }
            ahead.leave("fuzz");
            assert!(ahead.lock().running.is_some(), "it is not for this step");
            ahead.leave("loom");
            build.join().expect("it ends with its build");
        });
        ahead.run("loom", &forever);
        ahead.run("fuzz", &forever);
        assert!(ahead.lock().running.is_none(), "nothing is begun for a step that has begun");
        ahead.stop();
        ahead.run("model", &forever);
    }
}
