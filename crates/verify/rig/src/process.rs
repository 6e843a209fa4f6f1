//! Processes that this one starts, signals and ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A child process, ended with this value.
pub(crate) struct Process {
    child: Child,
    /// The file of its standard output and error output.
    pub(crate) log: PathBuf,
}

impl Process {
    /// Starts the process, with both outputs to a file.
    pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let open = || File::options().create(true).append(true).open(log);
        let child = command
            .stdin(Stdio::null())
            .stdout(open()?)
            .stderr(open()?)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Sends a signal.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("a child has an id")?;
        kill_process(pid, signal).context("a child can be signalled")
    }

    /// SIGSTOP, and waits until no thread runs any more: on a crowded machine that takes a moment.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.child.id());
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut stopped = true;
            for task in std::fs::read_dir(&tasks)? {
                let stat = std::fs::read_to_string(task?.path().join("stat"))?;
                stopped &= stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
            }
            if stopped {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "a process does not stop; see {}",
                self.log.display()
            );
        }
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGKILL. From now on the process does nothing more. On a crowded machine its end may take
    /// half a second; [`Drop`] waits for it.
    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn terminate(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("a process does not end after SIGTERM; see {}", self.log.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until it has ended by itself. Returns its exit code, unless a signal has ended it.
    pub(crate) fn exit_code(&mut self) -> anyhow::Result<Option<i32>> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            let log = self.log.display();
            ensure!(Instant::now() < deadline, "a process does not end by itself; see {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
