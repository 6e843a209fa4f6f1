//! What the system knows of this process.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

/// Ticks per second in which Linux tells processor time, on every architecture.
const TICKS_PER_SECOND: u64 = 100;
/// Bytes of a page in `/proc/self/statm`.
fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A random number that no other process draws.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Eight bytes are never given in part, and after boot the call doesn't fail.
    while getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {}
    u64::from_ne_bytes(bytes)
}

/// Resident bytes; 0 if unknown.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * page_bytes()
}

/// How many more bytes this process may use: the machine's memory, or the system's limit for the
/// process, less the memory that the process has mapped already. `None` if the system doesn't tell.
pub(crate) fn memory_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let field = |path, name: &str| {
        let text = read(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    let machine = field("/proc/meminfo", "MemTotal:");
    // Both versions of control groups; inside a container the own group is the root.
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let limits = [
        format!("/sys/fs/cgroup{own}/memory.max"),
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    let group = limits.iter().filter_map(|path| read(path)?.trim().parse().ok()).min();
    let space = getrlimit(Resource::As).current;
    let space =
        space.map(|space| space - field("/proc/self/status", "VmSize:").unwrap_or(0).min(space));
    [machine, group, space].into_iter().flatten().min()
}

/// Processor time of all threads of this process so far, as finely as the system counts it.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time so far in microseconds: system, user; zeros if unknown.
pub(crate) fn cpu_micros() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses and may contain anything.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut ticks = fields.split_whitespace().skip(11).map(|field| field.parse().unwrap_or(0));
    let (user, system): (u64, u64) = (ticks.next().unwrap_or(0), ticks.next().unwrap_or(0));
    let micros = |ticks: u64| ticks * (1_000_000 / TICKS_PER_SECOND);
    (micros(system), micros(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_knows_what_memory_there_is() {
        let bytes = memory_bytes().expect("Linux tells");
        assert!((64 << 20..1 << 50).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_system_knows_this_process() {
        assert!(resident_bytes() > 100_000);
        let (system, user) = cpu_micros();
        assert!(system + user < 3_600_000_000);
        assert!(cpu_time() > Duration::ZERO && cpu_time().as_secs() < 3600);
        assert_ne!(random(), random());
    }
}
