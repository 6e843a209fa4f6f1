//! The disk of a node: how much room it has, and what is wrong with it before something fails.
//!
//! Once a second the endpoint looks at what the lanes publish of their logs and at the file system. What
//! is wrong is an [`Alarm`]: a warning in the log of the process when it begins, a sentence in the status,
//! and a gauge.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_machine::mutant;
use quorate_node::{FLUSH_BUCKETS, LogFacts};
use quorate_runtime::{Handle, NodeFacts, NodeHandle};
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

/// How often the endpoint looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of how many looks the flushes are judged together.
const LOOKS: usize = 10;
/// A flush is slow that takes 2 to the power of this many microseconds, 131 ms, or more: in that time a
/// lease is nearly over.
const SLOW_BUCKET: usize = 18;
/// The disk is slow if one of so many flushes is.
const SLOW_OF: u64 = 10;
/// For so many looks no flush may end while something waits.
const STALLED_LOOKS: usize = 3;
/// The disk is filling if less than this percentage of it is free.
const FREE_PERCENT_MIN: u64 = 5;

/// What is wrong with a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// A lane's log finds no room: updates are refused.
    Full,
    /// Little room is left, or less than the next snapshots may need.
    Filling,
    /// Flushes take long, or none ends.
    Slow,
}

/// All of them.
pub(crate) const ALARMS: [Alarm; 3] = [Alarm::Full, Alarm::Filling, Alarm::Slow];

impl Alarm {
    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Filling => "filling",
            Self::Slow => "slow",
        }
    }
}

/// An alarm, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskAlarm {
    /// Which one.
    pub alarm: Alarm,
    /// What is wrong, and the remedy.
    pub text: String,
}

/// The disk of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DiskStatus {
    /// The directory of the node.
    pub directory: PathBuf,
    /// Bytes of the file system that it is on; 0 before the first look, or if the system doesn't say.
    pub bytes: u64,
    /// Of these, bytes that the process may still use.
    pub free_bytes: u64,
    /// What is wrong.
    pub alarms: Vec<DiskAlarm>,
}

/// What the endpoint sees at one moment.
#[derive(Clone, Debug, Default)]
struct Look {
    /// Flushes of all lanes so far, by the time that they took.
    flushes: [u64; FLUSH_BUCKETS],
    /// For each lane its flushes, and whether something waits for the next one.
    lanes: Vec<(u64, bool)>,
    is_full: bool,
    /// Bytes of the file system, and those that are free.
    room: Option<(u64, u64)>,
    /// What the next snapshots may need.
    snapshot_bytes: u64,
}

/// The looks of the last seconds.
#[derive(Debug, Default)]
struct Watch {
    looks: VecDeque<Look>,
}

impl Watch {
    /// Takes one more look, and says what is wrong.
    fn look(&mut self, look: Look) -> Vec<DiskAlarm> {
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back(look);
        let alarm = |alarm, text| DiskAlarm { alarm, text };
        let full = self.is_full().then(|| {
            alarm(
                Alarm::Full,
                "the disk is full: updates are refused, reads go on; make room, and they are taken again \
                 within a second or two"
                    .to_owned(),
            )
        });
        let filling = self.filling().map(|text| alarm(Alarm::Filling, text));
        let slow = self.slow().map(|text| alarm(Alarm::Slow, text));
        [full, filling, slow].into_iter().flatten().collect()
    }

    fn newest(&self) -> &Look {
        self.looks.back().expect("there was a look")
    }

    fn is_full(&self) -> bool {
        self.newest().is_full
    }

    fn filling(&self) -> Option<String> {
        let Look { room, snapshot_bytes, .. } = *self.newest();
        let (bytes, free) = room?;
        let (mib, wanted) = (free >> 20, snapshot_bytes >> 20);
        if free < snapshot_bytes {
            return Some(format!(
                "{mib} MiB are free, and the next snapshots may need {wanted} MiB: without them the log \
                 grows until the disk is full; make room"
            ));
        }
        let is_little = u128::from(free) * 100 < u128::from(bytes) * u128::from(FREE_PERCENT_MIN);
        let is_little = is_little && !mutant!("admin_disk_fills_unnoticed");
        is_little.then(|| format!("less than {FREE_PERCENT_MIN}% are free, {mib} MiB; make room"))
    }

    fn slow(&self) -> Option<String> {
        let (oldest, newest) = (self.looks.front()?, self.newest());
        let new = |bucket: usize| newest.flushes[bucket].saturating_sub(oldest.flushes[bucket]);
        let slow: u64 = (SLOW_BUCKET..FLUSH_BUCKETS).map(new).sum();
        let all: u64 = (0..FLUSH_BUCKETS).map(new).sum();
        let seconds = (self.looks.len() - 1) as u64 * LOOK_EVERY.as_secs();
        if slow > 0 && slow * SLOW_OF >= all && !mutant!("admin_slow_flushes_unnoticed") {
            let millis = (1u64 << (SLOW_BUCKET - 1)) / 1000;
            return Some(format!(
                "{slow} of {all} flushes of the last {seconds} s took longer than {millis} ms: clients \
                 wait for them; look for what else uses the disk, and at its health"
            ));
        }
        let begin = self.looks.len().checked_sub(STALLED_LOOKS + 1)?;
        let is_stalled = |lane: usize| {
            let looks = self.looks.iter().skip(begin).map(|look| look.lanes.get(lane));
            let flushes = newest.lanes[lane].0;
            looks.clone().all(|look| look.is_some_and(|look| *look == (flushes, true)))
        };
        let mut lanes = 0..newest.lanes.len();
        let lane = lanes.find(|lane| is_stalled(*lane) && !mutant!("admin_stall_unnoticed"))?;
        let seconds = STALLED_LOOKS as u64 * LOOK_EVERY.as_secs();
        Some(format!(
            "no flush of lane {lane} has ended for {seconds} s: look for what else uses the disk, and at \
             its health"
        ))
    }
}

impl Look {
    fn at(facts: &NodeFacts, room: Option<(u64, u64)>) -> Self {
        let mut look = Self { room, ..Self::default() };
        let logs: Vec<&LogFacts> =
            facts.lanes.iter().filter_map(|lane| lane.log.as_ref()).collect();
        for log in logs {
            for (sum, count) in look.flushes.iter_mut().zip(log.flushes) {
                *sum += count;
            }
            look.lanes.push((log.flushes.iter().sum(), log.pending_bytes > 0));
            look.is_full |= log.is_full;
        }
        // Each keeps the one before until it is whole.
        look.snapshot_bytes = facts.memory_used;
        look
    }
}

/// The disk of a node as the endpoint last saw it.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Mutex<DiskStatus>>);

impl Disk {
    /// Of a directory that nobody has looked at.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(DiskStatus { directory, ..DiskStatus::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, DiskStatus> {
        // No code that holds the lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it was a moment ago.
    pub(crate) fn status(&self) -> DiskStatus {
        self.lock().clone()
    }

    /// Looks at it until the process ends.
    pub(crate) async fn watch(self, handle: Handle, node: usize) {
        let node = &handle.nodes()[node];
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::default();
        loop {
            ticks.tick().await;
            let directory = self.lock().directory.clone();
            // A disk that hangs may keep this waiting.
            let asked = tokio::task::spawn_blocking(move || room(&directory));
            let room = asked.await.ok().flatten();
            let alarms = watch.look(Look::at(&node.facts(), room));
            self.tell(node, alarms, room);
        }
    }

    fn tell(&self, node: &NodeHandle, alarms: Vec<DiskAlarm>, room: Option<(u64, u64)>) {
        let mut status = self.lock();
        let node = node.config().node;
        let has = |list: &[DiskAlarm], alarm| list.iter().any(|other| other.alarm == alarm);
        for DiskAlarm { alarm, text } in &alarms {
            // The lane itself says that its log is full.
            if *alarm != Alarm::Full && !has(&status.alarms, *alarm) {
                let directory = status.directory.display();
                tracing::warn!(%node, %directory, alarm = alarm.name(), "{text}");
            }
        }
        for ended in status.alarms.iter().filter(|old| !has(&alarms, old.alarm)) {
            if ended.alarm != Alarm::Full {
                tracing::info!(%node, alarm = ended.alarm.name(), "the disk is well again");
            }
        }
        let (bytes, free_bytes) = room.unwrap_or_default();
        *status = DiskStatus { directory: status.directory.clone(), bytes, free_bytes, alarms };
    }
}

/// Bytes of the file system of a directory, and those that are free for this process.
fn room(directory: &std::path::Path) -> Option<(u64, u64)> {
    let facts = rustix::fs::statvfs(directory).ok()?;
    let of = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
    Some((of(facts.f_blocks), of(facts.f_bavail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn well() -> Look {
        let mut look = Look { room: Some((1000 * MIB, 500 * MIB)), ..Look::default() };
        look.snapshot_bytes = 10 * MIB;
        look.lanes = vec![(0, false), (0, false)];
        look
    }

    fn kinds(alarms: &[DiskAlarm]) -> Vec<Alarm> {
        alarms.iter().map(|alarm| alarm.alarm).collect()
    }

    #[test]
    fn a_disk_that_is_well_raises_nothing() {
        let mut watch = Watch::default();
        let mut look = well();
        for turn in 1..30 {
            look.flushes[SLOW_BUCKET - 1] += 5;
            look.lanes = vec![(5 * turn, true), (0, false)];
            assert_eq!(watch.look(look.clone()), []);
        }
    }

    #[test]
    fn little_room_is_an_alarm_before_the_disk_is_full() {
        let mut watch = Watch::default();
        let mut at = |room, snapshot_bytes, is_full| {
            kinds(&watch.look(Look { room, snapshot_bytes, is_full, ..well() }))
        };
        assert_eq!(at(Some((1000 * MIB, 50 * MIB)), MIB, false), []);
        assert_eq!(at(Some((1000 * MIB, 49 * MIB)), MIB, false), [Alarm::Filling]);
        assert_eq!(at(Some((1000 * MIB, 500 * MIB)), 501 * MIB, false), [Alarm::Filling]);
        assert_eq!(at(Some((1000 * MIB, 0)), MIB, true), [Alarm::Full, Alarm::Filling]);
        assert_eq!(at(Some((1000 * MIB, 900 * MIB)), MIB, false), []);
        assert_eq!(at(None, MIB, false), [], "a file system that does not say");
    }

    #[test]
    fn slow_flushes_are_an_alarm_for_as_long_as_they_are_remembered() {
        let mut watch = Watch::default();
        let mut look = well();
        assert_eq!(watch.look(look.clone()), []);
        look.flushes[SLOW_BUCKET] += 1;
        look.flushes[0] += 10;
        assert_eq!(watch.look(look.clone()), [], "one of eleven");
        look.flushes[FLUSH_BUCKETS - 1] += 1;
        let alarms = watch.look(look.clone());
        assert_eq!(kinds(&alarms), [Alarm::Slow]);
        assert!(
            alarms[0].text.starts_with("2 of 12 flushes of the last 2 s took longer than 131 ms")
        );
        let left = (0..20).take_while(|_| !watch.look(look.clone()).is_empty()).count();
        assert_eq!(left, LOOKS - 1);
    }

    #[test]
    fn a_flush_that_does_not_end_is_an_alarm() {
        let mut watch = Watch::default();
        let waiting = Look { lanes: vec![(7, false), (3, true)], ..well() };
        let quiet = (0..20).take_while(|_| watch.look(waiting.clone()).is_empty()).count();
        assert_eq!(quiet, STALLED_LOOKS);
        let alarms = watch.look(waiting.clone());
        assert_eq!(kinds(&alarms), [Alarm::Slow]);
        assert!(alarms[0].text.starts_with("no flush of lane 1 has ended for 3 s"), "{alarms:?}");
        let ended = Look { lanes: vec![(7, false), (4, true)], ..waiting };
        assert_eq!(watch.look(ended), []);
    }

    #[test]
    fn the_room_of_a_directory_is_known() {
        let (bytes, free) = room(std::path::Path::new("/")).expect("it exists");
        assert!(bytes > 0 && free <= bytes, "{bytes} {free}");
        assert_eq!(room(std::path::Path::new("/nowhere")), None);
    }
}
