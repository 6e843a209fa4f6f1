//! A `quorate dev` of a test.

use super::Process;

/// A `dev` cluster on ports that the system chose.
pub(crate) struct Dev {
    pub(crate) process: Process,
    pub(crate) clients: Vec<u16>,
    pub(crate) admins: Vec<u16>,
    /// The line that says that it serves.
    pub(crate) ready: String,
}

impl Dev {
    /// Starts it with more arguments and waits until it serves.
    pub(crate) fn start(more: &[&str]) -> Self {
        let args = [&["dev", "--port", "0", "--admin-port", "0"], more].concat();
        let process = Process::start(&args);
        let mut dev =
            Self { process, clients: Vec::new(), admins: Vec::new(), ready: String::new() };
        loop {
            let line = dev.process.line(|_| true);
            if line.starts_with("ready") {
                dev.ready = line;
                return dev;
            }
            dev.clients.push(port_after(&line, "redis://127.0.0.1:"));
            dev.admins.push(port_after(&line, "http://127.0.0.1:"));
        }
    }
}

fn port_after(line: &str, prefix: &str) -> u16 {
    let rest = line.split_once(prefix).unwrap_or_else(|| panic!("no {prefix} in: {line}")).1;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}
