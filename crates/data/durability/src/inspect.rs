//! What a person asks of files: which they are, what is in them, whether they are sound. Nothing is
//! changed.

use quorate_types::Lsn;

use crate::format::{Entry, FileKind, HEAD_BYTES, HEADER_BYTES, HeaderError, Identity, take_part};
use crate::frames::{Source, Window, read_header};
use crate::names::{VOTER_FILE, is_lane_file};
use crate::reader::{Reader, Start};
use crate::snapshot::{SnapshotReader, snapshots};
use crate::{Directory, LogError, Name, VoterFile};

/// Takes a line of output.
pub trait Output: FnMut(String) {}

impl<F: FnMut(String)> Output for F {}

/// Gives `out` a line about each file of a directory, in the order of their names. Returns the number of
/// files that it could not read.
///
/// # Errors
/// If the directory can't be listed.
pub fn list(directory: &mut impl Directory, out: &mut impl Output) -> Result<u64, LogError> {
    let mut files = directory.files().map_err(LogError::Directory)?;
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let mut untold = 0;
    for file in files.iter().filter(|file| is_lane_file(&file.name)) {
        match source(directory, &file.name, file.bytes) {
            Ok(source) => out(title(&source)),
            Err(error) => {
                untold += 1;
                out(error.to_string());
            }
        }
    }
    if let Some(file) = files.iter().find(|file| &*file.name == VOTER_FILE) {
        out(format!("{VOTER_FILE}: what the node has promised as a voter, {} bytes", file.bytes));
    }
    Ok(untold)
}

fn source(directory: &mut impl Directory, file: &Name, bytes: u64) -> Result<Source, LogError> {
    let read = read_header(directory, file, bytes);
    match read.map_err(|_| LogError::Unreadable { file: file.clone(), offset: 0 })? {
        Ok(header) => Ok(Source { name: file.clone(), header, bytes }),
        Err(HeaderError::Newer(version)) => Err(LogError::Newer { file: file.clone(), version }),
        Err(HeaderError::Damaged) => Err(LogError::Header { file: file.clone() }),
    }
}

fn title(source: &Source) -> String {
    let Source { name, header, bytes } = source;
    let (number, after, identity) = (header.number, header.after, header.identity);
    match header.kind {
        FileKind::Segment => format!(
            "{name}: segment {number} of {identity}, {bytes} bytes, prepared when entry {after} was \
             durable"
        ),
        FileKind::Snapshot => format!(
            "{name}: snapshot {number} of {identity}, {bytes} bytes, replayed from entry {after}"
        ),
    }
}

/// Says what is in a segment or snapshot, batch by batch. Returns how many places with damage it has
/// that sound batches follow.
///
/// # Errors
/// If its header tells nothing.
pub fn show(
    directory: &mut impl Directory,
    file: &Name,
    out: &mut impl Output,
) -> Result<u64, LogError> {
    let files = directory.files().map_err(LogError::Directory)?;
    let found = files.iter().find(|entry| entry.name == *file);
    let bytes = found.map_or(0, |entry| entry.bytes);
    let source = source(directory, file, bytes)?;
    out(title(&source));
    let mut window = Window::default();
    let (mut offset, mut damaged) = (HEADER_BYTES as u64, 0);
    loop {
        let mut batch = window.batch_twice(directory, &source, offset);
        if batch.is_none() {
            let step = u64::from(source.header.align);
            batch = window.next_batch(directory, &source, offset + step, Lsn::START);
            let Some(next) = batch else { break };
            damaged += 1;
            out(format!("  offset {offset}: damaged up to offset {}", next.offset));
        }
        let batch = batch.expect("one was found");
        let (first, last) = (batch.after.0 + 1, batch.until);
        out(format!("  offset {}: entries {first} to {last}, {} bytes", batch.offset, batch.bytes));
        let content = window.at(directory, &source, batch.offset, batch.bytes);
        let mut rest = &content[HEAD_BYTES..];
        let mut place = batch.after;
        while let Some(part) = take_part(&mut rest) {
            place.0 += 1;
            let Entry { kind, keyspace, bytes } = part.entry;
            let flags = match (part.continues, part.more) {
                (false, false) => "",
                (false, true) => ", goes on",
                (true, true) => ", goes on from the one before, and on",
                (true, false) => ", goes on from the one before",
            };
            let length = bytes.len();
            out(format!("    {place}: kind {kind}, keyspace {keyspace}, {length} bytes{flags}"));
        }
        offset = batch.offset + source.header.padded(batch.bytes);
    }
    out(format!("  offset {offset}: nothing sound from here on"));
    Ok(damaged)
}

/// Reads everything in a directory as a recovery would. Returns how much is damaged: 0 says that a
/// node can start from it.
///
/// # Errors
/// If the directory can't be listed, or is empty of such files.
pub fn verify(directory: &mut impl Directory, out: &mut impl Output) -> Result<u64, LogError> {
    let files = directory.files().map_err(LogError::Directory)?;
    let (mut identities, mut damaged): (Vec<Identity>, u64) = (Vec::new(), 0);
    for file in files.iter().filter(|file| is_lane_file(&file.name)) {
        match source(directory, &file.name, file.bytes) {
            Ok(Source { header, .. }) if !identities.contains(&header.identity) => {
                identities.push(header.identity);
            }
            // One damaged header may be sound: the recovery of its lane decides.
            Ok(_) | Err(LogError::Header { .. }) => {}
            Err(error) => {
                damaged += 1;
                out(error.to_string());
            }
        }
    }
    let owner = identities.first().copied();
    identities.sort_by_key(|identity| (identity.cluster, identity.node, identity.lane));
    for identity in identities {
        damaged += verify_lane(directory, identity, out);
    }
    if let Some(owner) = owner
        && files.iter().any(|file| &*file.name == VOTER_FILE)
    {
        let voter = Identity { lane: quorate_types::LaneId(0), ..owner };
        match VoterFile::load(directory, voter) {
            Ok((_, state)) => {
                let bytes = state.map_or(0, |state| state.len());
                out(format!("{VOTER_FILE}: sound, a state of {bytes} bytes"));
            }
            Err(error) => {
                damaged += 1;
                out(error.to_string());
            }
        }
    }
    Ok(damaged)
}

fn verify_lane(directory: &mut impl Directory, identity: Identity, out: &mut impl Output) -> u64 {
    let mut damaged = 0;
    let (mut start, mut end) = (Lsn::START, Lsn::START);
    let complete = match snapshots(directory, identity) {
        Ok((complete, _)) => complete,
        Err(error) => {
            out(error.to_string());
            return 1;
        }
    };
    let mut has_one = false;
    for found in complete {
        let (file, from, until) = (found.file.clone(), found.start, found.end);
        let mut reader = SnapshotReader::new(found);
        let mut entries = 0_u64;
        let ended = loop {
            match reader.next(directory) {
                Ok(Some(_)) => entries += 1,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match ended {
            Ok(()) => out(format!("{file}: sound, {entries} entries, replayed from {from}")),
            Err(error) => {
                damaged += 1;
                out(error.to_string());
                continue;
            }
        }
        if !has_one {
            (has_one, start, end) = (true, from, until);
        }
    }
    damaged + verify_log(directory, identity, start, end, out)
}

fn verify_log(
    directory: &mut impl Directory,
    identity: Identity,
    start: Lsn,
    end: Lsn,
    out: &mut impl Output,
) -> u64 {
    let mut reader = match Reader::open(directory, identity, Start::After(start)) {
        Ok(reader) => reader,
        Err(error) => {
            out(error.to_string());
            return 1;
        }
    };
    let (mut damaged, mut entries, mut last) = (0, 0_u64, start);
    loop {
        match reader.next(directory) {
            Ok(Some((place, _))) => (entries, last) = (entries + 1, place),
            Ok(None) => break,
            Err(error) => {
                damaged += 1;
                out(error.to_string());
            }
        }
    }
    if damaged == 0 {
        match reader.finish(directory, end) {
            Ok(_) => out(format!("{identity}: sound, {entries} entries behind {start}, to {last}")),
            Err(error) => {
                damaged += 1;
                out(error.to_string());
            }
        }
    }
    damaged
}
