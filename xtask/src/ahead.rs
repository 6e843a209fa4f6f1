//! Builds for the last steps of the gate, made while earlier ones wait for real processes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

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
    running: Option<Child>,
}

impl Ahead {
    /// Begins.
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, root: &'scope Path) {
        scope.spawn(|| {
            let commands = threads::builds(root).into_iter().chain(fuzz::build_command(root).ok());
            for command in commands.chain(mutants::gate_builds(root).into_iter().flatten()) {
                if !self.run(&command) {
                    return;
                }
            }
        });
    }

    /// Whether to go on after this one.
    fn run(&self, command: &Command) -> bool {
        let mut low = last_in_line(command);
        {
            let mut state = self.lock();
            if state.over {
                return false;
            }
            // Where there is no `nice`, nothing is built ahead.
            let Ok(child) = low.spawn() else { return false };
            state.running = Some(child);
        }
        loop {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let mut state = self.lock();
            let ended = state
                .running
                .as_mut()
                .is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if ended {
                state.running = None;
                return !state.over;
            }
        }
    }

    /// Ends the build that is under way, and begins no other.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.over = true;
        if let Some(child) = &mut state.running {
            // It may have ended by itself in the meantime; then there is nothing to end.
            let _ = child.kill();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
