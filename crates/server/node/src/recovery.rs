//! What a lane's files hold, found out before the lane begins: which snapshot counts, from where the log
//! is read, and whether all of it is sound.
//!
//! The files are read twice. The first reading ([`LaneFound::look`]) hands nothing out, so that a node
//! whose files are damaged has restored nothing yet when it hears of it; the second one gives each entry
//! to its engine. What was read once is in the system's cache.

use quorate_durability::{
    Directory, Entry, Found, Identity, LogError, Name, Reader, SnapshotFound, SnapshotReader,
    Start, snapshots,
};
use quorate_machine::WARM_TOGETHER;
use quorate_types::{KeyspaceId, Lsn};

/// The sound files of a lane.
#[derive(Debug)]
pub struct LaneFound {
    pub(crate) identity: Identity,
    /// The complete snapshots, the newest first, and the files of others.
    pub(crate) snapshots: (Vec<SnapshotFound>, Vec<Name>),
    pub(crate) found: Found,
    /// Behind which place the log is read.
    start: Lsn,
    /// The place of the last entry. Parts of one may lie behind it whose other parts were never written.
    last: Lsn,
    /// Snapshots that are damaged, so that an older one counts: their files, and what is wrong.
    pub damaged: Vec<(Name, LogError)>,
    /// Entries of snapshot and log.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of files that hold what the log has behind the beginning of the snapshot.
    pub(crate) log_bytes: u64,
}

impl LaneFound {
    /// Looks through the files of a lane.
    ///
    /// # Errors
    /// If they belong to another node or cluster or to a newer program, or if something that was durable
    /// is lost.
    pub fn look(directory: &mut impl Directory, identity: Identity) -> Result<Self, LogError> {
        let (mut complete, other) = snapshots(directory, identity)?;
        let mut damaged = Vec::new();
        let (mut entries, mut bytes) = (0, 0);
        while let Some(newest) = complete.first() {
            match count_snapshot(directory, newest.clone()) {
                Ok(counted) => {
                    (entries, bytes) = counted;
                    break;
                }
                Err(error) => damaged.push((complete.remove(0).file, error)),
            }
        }
        let (start, end) =
            complete.first().map_or((Lsn::START, Lsn::START), |newest| (newest.start, newest.end));
        let mut reader = Reader::open(directory, identity, Start::After(start))?;
        let mut last = start;
        while let Some((place, entry)) = reader.next(directory)? {
            last = place;
            entries += 1;
            bytes += entry.bytes.len() as u64;
        }
        let log_bytes = reader.bytes_on_disk();
        let found = reader.finish(directory, end)?;
        let snapshots = (complete, other);
        Ok(Self { identity, snapshots, found, start, last, damaged, entries, bytes, log_bytes })
    }

    /// Whether no process of this node has ever appended anything on this lane.
    pub fn is_empty(&self) -> bool {
        self.snapshots.0.is_empty() && self.found.end() == Lsn::START
    }

    /// Whether a process has prepared the log of this lane, be it an empty one.
    pub fn is_prepared(&self) -> bool {
        self.found.has_segments()
    }

    /// The place of the last entry of the log.
    pub fn end(&self) -> Lsn {
        self.found.end()
    }

    /// From where on rot looks like a write that was cut short; see [`Found::tail`].
    pub fn tail(&self) -> Option<(&Name, u64)> {
        self.found.tail()
    }

    /// Gives each entry out, those of the snapshot first.
    ///
    /// # Errors
    /// What `restore` says, or that the files have changed since they were looked through.
    pub(crate) fn replay(
        &self,
        directory: &mut impl Directory,
        restore: &mut impl Restore,
    ) -> Result<(), String> {
        let changed = |error: LogError| format!("the files have changed: {error}");
        if let Some(newest) = self.snapshots.0.first() {
            // In the order of the index, more or less: there is little to fetch ahead.
            let mut reader = SnapshotReader::new(newest.clone());
            while let Some(entry) = reader.next(directory).map_err(changed)? {
                restore.entry(entry).map_err(|why| format!("{}: {why}", newest.file))?;
            }
        }
        let end = self.last;
        let mut place = self.start;
        let start = Start::After(self.start);
        let mut reader = Reader::open(directory, self.identity, start).map_err(changed)?;
        let mut ahead = 0;
        // What lies behind the end was looked through once.
        while place < end {
            ahead = look_ahead(ahead, restore, reader.ahead());
            let Some((at, entry)) = reader.next(directory).map_err(changed)? else {
                return Err(format!("the log ended at entry {end} and ends at {place} now"));
            };
            place = at;
            restore.entry(entry).map_err(|why| format!("entry {at} of the log: {why}"))?;
        }
        Ok(())
    }
}

/// Who takes what a lane has left.
pub(crate) trait Restore {
    /// Takes an entry in.
    ///
    /// # Errors
    /// If that can't be, in words for people.
    fn entry(&mut self, entry: Entry<'_>) -> Result<(), String>;

    /// Entries of one keyspace that come next.
    fn ahead<'a>(&self, keyspace: KeyspaceId, entries: impl Iterator<Item = &'a [u8]>);
}

/// Shows the next entries once those are in that were shown before. How many were shown that are not in
/// when the next one is.
fn look_ahead<'a>(
    ahead: usize,
    restore: &impl Restore,
    entries: impl Iterator<Item = Entry<'a>>,
) -> usize {
    if ahead > 0 {
        return ahead - 1;
    }
    let mut entries = entries.take(WARM_TOGETHER).peekable();
    let Some(keyspace) = entries.peek().map(|entry| entry.keyspace) else { return 0 };
    let mut shown = 0;
    let same = entries.take_while(|entry| entry.keyspace == keyspace);
    restore.ahead(keyspace, same.map(|entry| entry.bytes).inspect(|_| shown += 1));
    usize::saturating_sub(shown, 1)
}

/// Reads a snapshot to its end: how many entries it has, and their bytes.
fn count_snapshot(
    directory: &mut impl Directory,
    found: SnapshotFound,
) -> Result<(u64, u64), LogError> {
    let mut reader = SnapshotReader::new(found);
    let (mut entries, mut bytes) = (0, 0);
    while let Some(entry) = reader.next(directory)? {
        entries += 1;
        bytes += entry.bytes.len() as u64;
    }
    Ok((entries, bytes))
}
