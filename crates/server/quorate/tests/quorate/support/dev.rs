//! A `quorate dev` of a test.

use std::process::Stdio;

use super::Process;

/// A `dev` cluster on ports that the system chose.
pub(crate) struct Dev {
    pub(crate) process: Process,
    pub(crate) clients: Vec<u16>,
    pub(crate) admins: Vec<u16>,
    /// Of a cluster that was started with `--peer-port`.
    pub(crate) peers: Vec<u16>,
    /// The line that says that it serves.
    pub(crate) ready: String,
}

impl Dev {
    /// Starts it with more arguments and waits until it serves.
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_with(more, &[], Stdio::piped())
    }

    /// The same, as [`Process::start_with`].
    pub(crate) fn start_with(more: &[&str], environment: &[(&str, &str)], stderr: Stdio) -> Self {
        let args = [&["dev", "--port", "0", "--admin-port", "0"], more].concat();
        Self::follow(Process::start_with(&args, environment, stderr))
    }

    /// Waits until a `dev` serves that was started with ports of the system's choice.
    pub(crate) fn follow(process: Process) -> Self {
        let mut dev = Self {
            process,
            clients: Vec::new(),
            admins: Vec::new(),
            peers: Vec::new(),
            ready: String::new(),
        };
        loop {
            let line = dev.process.line(|_| true);
            if line.starts_with("ready") {
                dev.ready = line;
                return dev;
            }
            dev.clients.push(port_after(&line, "redis://127.0.0.1:"));
            dev.admins.push(port_after(&line, "http://127.0.0.1:"));
            if line.contains("  peer ") {
                dev.peers.push(port_after(&line, "  peer 127.0.0.1:"));
            }
        }
    }
}

fn port_after(line: &str, prefix: &str) -> u16 {
    let rest = line.split_once(prefix).unwrap_or_else(|| panic!("no {prefix} in: {line}")).1;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}
