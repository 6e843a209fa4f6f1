//! What the system knows of this process.

use std::time::Duration;

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
    fn the_system_knows_this_process() {
        assert!(resident_bytes() > 100_000);
        let (system, user) = cpu_micros();
        assert!(system + user < 3_600_000_000);
        assert!(cpu_time() > Duration::ZERO && cpu_time().as_secs() < 3600);
        assert_ne!(random(), random());
    }
}
