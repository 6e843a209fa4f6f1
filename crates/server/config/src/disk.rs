//! `[disk]`: where the log is, and how it is written.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use quorate_engine::Unfit;
use quorate_node::{Durability, KeyspaceConfig, LogConfig, NodeConfig};
use toml::Spanned;

use super::file::{self, Keyspace};
use super::{ConfigError, Source, parts};

/// Longest time between two flushes of what nobody waits for, in milliseconds.
const FSYNC_INTERVAL_MS: RangeInclusive<u64> = 1..=60_000;
/// Longest wait for members that are missing after a loss of all power, in milliseconds.
const REVIVE_PATIENCE_MS: RangeInclusive<u64> = 0..=3_600_000;
/// After how many bytes a snapshot may begin: below, a lane would do little else.
const SNAPSHOT_AFTER: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Bytes of a segment: it holds several batches, and is written whole before it is used.
const SEGMENT: RangeInclusive<u64> = 1 << 20..=1 << 30;
/// The file system's blocks, in which a segment is written.
const BLOCK: u64 = 4096;

/// A checked `[disk]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    pub(super) dir: Option<PathBuf>,
    pub(super) revive_patience: Duration,
    pub(super) log: LogConfig,
}

impl Source<'_> {
    pub(super) fn disk(&self, disk: &file::Disk) -> Result<Disk, ConfigError> {
        let default = LogConfig::default();
        let dir = match &disk.dir {
            Some(dir) if dir.get_ref().is_empty() => {
                let problem = "the name of the directory is empty".to_owned();
                return Err(self.wrong(&dir.span(), "[disk] dir", problem, "write one"));
            }
            dir => dir.as_ref().map(|dir| PathBuf::from(dir.get_ref())),
        };
        let fsync_interval =
            disk.fsync_interval_ms.as_ref().map_or(Ok(default.fsync_interval), |interval| {
                let key = "[disk] fsync_interval_ms";
                self.in_range(interval, key, FSYNC_INTERVAL_MS).map(Duration::from_millis)
            })?;
        let revive_patience = disk.revive_patience_ms.as_ref().map_or(
            Ok(NodeConfig::REVIVE_PATIENCE),
            |patience| {
                let key = "[disk] revive_patience_ms";
                self.in_range(patience, key, REVIVE_PATIENCE_MS).map(Duration::from_millis)
            },
        )?;
        let bytes = |value: &Option<Spanned<String>>, key, range, default| match value {
            Some(size) => self.size_in(size, key, range),
            None => Ok(default),
        };
        let snapshot_after = bytes(
            &disk.snapshot_after,
            "[disk] snapshot_after",
            SNAPSHOT_AFTER,
            default.snapshot_after,
        )?;
        let segment = bytes(&disk.segment, "[disk] segment", SEGMENT, default.segment_bytes)?;
        let segment_bytes = segment.next_multiple_of(BLOCK);
        let log = LogConfig { fsync_interval, snapshot_after, segment_bytes };
        Ok(Disk { dir, revive_patience, log })
    }

    fn size_in(
        &self,
        size: &Spanned<String>,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        let bytes = self.size(size, key)?;
        if range.contains(&bytes) {
            return Ok(bytes);
        }
        let problem = format!("{bytes} bytes are out of range");
        let remedy = format!("choose {} to {} bytes", range.start(), range.end());
        Err(self.wrong(&size.span(), key, problem, &remedy))
    }

    /// What survives of a keyspace, if its engine can do that and there is a directory for it.
    pub(super) fn durability(
        &self,
        keyspace: &Keyspace,
        config: &KeyspaceConfig,
        disk: &Disk,
    ) -> Result<Durability, ConfigError> {
        const KEY: &str = "[[keyspace]] durability";
        let Some(durability) = &keyspace.durability else { return Ok(Durability::Memory) };
        let (name, span) = parts(durability);
        let Some(durability) = Durability::named(name) else {
            let problem = format!("there is no durability \"{name}\"");
            let remedy = "choose \"memory\", \"async\" or \"sync\"";
            return Err(self.wrong(&span, KEY, problem, remedy));
        };
        if durability == Durability::Memory {
            return Ok(durability);
        }
        config
            .engine
            .check_durability(durability)
            .map_err(|Unfit { problem, remedy }| self.wrong(&span, KEY, problem, &remedy))?;
        if disk.dir.is_none() {
            let problem = format!("\"{name}\" needs a directory, and the file names none");
            let remedy = "add [disk] with dir = \"...\", or choose \"memory\"";
            return Err(self.wrong(&span, KEY, problem, remedy));
        }
        Ok(durability)
    }
}
