//! The bytes of headers, batches and entries. Numbers are little-endian. Design note 012 has the
//! tables; `tests/golden` pins them.

use std::fmt;

use quorate_machine::mutant;
use quorate_types::{Incarnation, KeyspaceId, LaneId, Lsn, NodeId};

/// The version of the format that is written. Every smaller one is read.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of a segment, unless options say otherwise.
pub const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// Most bytes of a batch, its head and padding included, that a file may announce.
pub const BATCH_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Most bytes of an entry: whatever a message between nodes may carry, and some more.
pub const ENTRY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The greatest kind of an entry that an engine may use. The log has the others.
pub const KIND_MAX: u8 = 239;
/// The kind of the final record of a snapshot.
pub(crate) const KIND_COMPLETE: u8 = 240;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes of a batch before its entries.
pub(crate) const HEAD_BYTES: usize = 20;
/// Bytes of a part of an entry before its content.
pub(crate) const PART_BYTES: usize = 7;
/// The largest sector of a disk: batches begin at multiples of it, so that no write touches a sector
/// with durable bytes.
pub(crate) const ALIGN: u32 = 4096;

const MAGIC: [u8; 8] = *b"quorate\n";
const CHECKSUM_AT: usize = HEADER_BYTES - 4;
/// The part goes on in the next one.
const MORE: u8 = 1;
/// The part goes on with the one before.
const CONTINUES: u8 = 2;

/// To whom files belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: Incarnation,
    /// The node.
    pub node: NodeId,
    /// The lane of the node; 0 for what belongs to the node as a whole.
    pub lane: LaneId,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, node, lane } = self;
        write!(f, "lane {lane} of node {node} of cluster {:016x}", cluster.0)
    }
}

/// An entry as an engine has appended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// What it is, to the engine: 0 to [`KIND_MAX`].
    pub kind: u8,
    /// The keyspace whose engine reads it.
    pub keyspace: KeyspaceId,
    /// What the engine has encoded.
    pub bytes: &'a [u8],
}

// --- headers -----------------------------------------------------------------------------------

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    Segment = 1,
    Snapshot = 2,
}

/// The first 4 KiB of a segment or snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: FileKind,
    pub(crate) identity: Identity,
    /// Segments and snapshots of a lane are counted, each for themselves, from 1.
    pub(crate) number: u64,
    /// Of a segment: everything up to here was durable before the segment was prepared. Of a
    /// snapshot: where replay begins.
    pub(crate) after: Lsn,
    /// Drawn for each use of a file.
    pub(crate) salt: u64,
    /// The length of a segment; 0 for a snapshot, which grows.
    pub(crate) file_bytes: u64,
    pub(crate) batch_bytes_max: u32,
    pub(crate) align: u32,
}

/// Why bytes are no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    /// They are all zero, or damaged.
    Damaged,
    Newer(u16),
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.kind as u16).to_le_bytes());
        bytes.extend_from_slice(&self.identity.node.0.to_le_bytes());
        bytes.extend_from_slice(&self.identity.lane.0.to_le_bytes());
        bytes.extend_from_slice(&self.identity.cluster.0.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.after.0.to_le_bytes());
        bytes.extend_from_slice(&self.salt.to_le_bytes());
        bytes.extend_from_slice(&self.file_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.batch_bytes_max.to_le_bytes());
        bytes.extend_from_slice(&self.align.to_le_bytes());
        bytes.resize(CHECKSUM_AT, 0);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let damaged = Err(HeaderError::Damaged);
        if bytes.len() != HEADER_BYTES || bytes[..8] != MAGIC {
            return damaged;
        }
        if crc32c::crc32c(&bytes[..CHECKSUM_AT]) != u32_at(bytes, CHECKSUM_AT) {
            return damaged;
        }
        let version = u16_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(HeaderError::Newer(version));
        }
        let kind = match u16_at(bytes, 10) {
            1 => FileKind::Segment,
            2 => FileKind::Snapshot,
            _ => return damaged,
        };
        let header = Self {
            kind,
            identity: Identity {
                node: NodeId(u16_at(bytes, 12)),
                lane: LaneId(u16_at(bytes, 14)),
                cluster: Incarnation(u64_at(bytes, 16)),
            },
            number: u64_at(bytes, 24),
            after: Lsn(u64_at(bytes, 32)),
            salt: u64_at(bytes, 40),
            file_bytes: u64_at(bytes, 48),
            batch_bytes_max: u32_at(bytes, 56),
            align: u32_at(bytes, 60),
        };
        if header.is_possible() { Ok(header) } else { damaged }
    }

    /// Whether the sizes are such that a reader gets on, and within its memory.
    fn is_possible(&self) -> bool {
        let (batch, align) = (self.batch_bytes_max, self.align);
        let sizes = align.is_power_of_two() && align <= ALIGN && batch.is_multiple_of(align);
        let bounds = batch as usize > HEAD_BYTES + PART_BYTES && batch <= BATCH_BYTES_MAX;
        let length = match self.kind {
            FileKind::Segment => {
                self.file_bytes >= HEADER_BYTES as u64 + 3 * u64::from(batch)
                    && self.file_bytes <= 1 << 40
            }
            FileKind::Snapshot => self.file_bytes == 0,
        };
        sizes && bounds && length && self.number > 0
    }

    /// Whether a segment that is filled up to here takes no batch any more.
    pub(crate) fn is_sealed(&self, end: u64) -> bool {
        end + u64::from(self.batch_bytes_max) > self.file_bytes
    }

    /// Bytes of a batch with its padding.
    pub(crate) fn padded(&self, bytes: usize) -> u64 {
        (bytes as u64).next_multiple_of(u64::from(self.align))
    }
}

// --- batches -----------------------------------------------------------------------------------

/// What is said before the entries of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// Bytes of the entries: never 0.
    pub(crate) length: u32,
    /// How many parts of entries.
    pub(crate) count: u32,
    /// The place before the first.
    pub(crate) after: Lsn,
    pub(crate) checksum: u32,
}

impl Head {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self {
            length: u32_at(bytes, 0),
            count: u32_at(bytes, 4),
            after: Lsn(u64_at(bytes, 8)),
            checksum: u32_at(bytes, 16),
        }
    }

    /// Whether a batch in this place can have this head. Nothing is read or allocated before.
    pub(crate) fn is_possible(&self, offset: u64, batch_bytes_max: u32, file_bytes: u64) -> bool {
        let bytes = HEAD_BYTES as u64 + u64::from(self.length);
        self.length >= PART_BYTES as u32
            && self.count > 0
            && u64::from(self.count) * PART_BYTES as u64 <= u64::from(self.length)
            && bytes <= u64::from(batch_bytes_max)
            && offset + bytes <= file_bytes
            && self.after.0 < u64::MAX / 2
    }

    /// The place behind the last part.
    pub(crate) fn until(&self) -> Lsn {
        Lsn(self.after.0.saturating_add(u64::from(self.count)))
    }
}

/// Fills in the head of a batch, for whose bytes there is room before the entries.
pub(crate) fn seal(batch: &mut [u8], salt: u64, offset: u64, count: u32, after: Lsn) {
    let length = (batch.len() - HEAD_BYTES) as u32;
    batch[..4].copy_from_slice(&length.to_le_bytes());
    batch[4..8].copy_from_slice(&count.to_le_bytes());
    batch[8..16].copy_from_slice(&after.0.to_le_bytes());
    let sum = checksum(salt, offset, batch);
    batch[16..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// The checksum of a whole batch: over the salt of its file, its place there, its head and entries.
pub(crate) fn checksum(salt: u64, offset: u64, batch: &[u8]) -> u32 {
    let salt = if mutant!("durability_no_salt") { 0 } else { salt };
    let offset = if mutant!("durability_no_offset") { 0 } else { offset };
    let place = [salt.to_le_bytes(), offset.to_le_bytes()].concat();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&place), &batch[..16]);
    crc32c::crc32c_append(sum, &batch[HEAD_BYTES..])
}

// --- entries -----------------------------------------------------------------------------------

/// A part of an entry: all of it, unless it is larger than a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) more: bool,
    pub(crate) continues: bool,
    pub(crate) entry: Entry<'a>,
}

/// Writes what comes before the content of a part.
pub(crate) fn put_part_head(out: &mut Vec<u8>, more: bool, continues: bool, entry: Entry<'_>) {
    out.extend_from_slice(&(entry.bytes.len() as u32).to_le_bytes());
    out.push(u8::from(more) * MORE + u8::from(continues) * CONTINUES);
    out.push(entry.kind);
    out.push(entry.keyspace.0);
}

/// Takes the next part from the entries of a batch. `None` if they are not well-formed.
pub(crate) fn take_part<'a>(rest: &mut &'a [u8]) -> Option<Part<'a>> {
    let (head, content) = rest.split_at_checked(PART_BYTES)?;
    let (bytes, behind) = content.split_at_checked(u32_at(head, 0) as usize)?;
    let flags = head[4];
    if flags & !(MORE | CONTINUES) != 0 {
        return None;
    }
    *rest = behind;
    let entry = Entry { kind: head[5], keyspace: KeyspaceId(head[6]), bytes };
    Some(Part { more: flags & MORE != 0, continues: flags & CONTINUES != 0, entry })
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
