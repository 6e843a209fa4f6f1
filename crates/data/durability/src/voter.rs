//! What a voter of the membership has promised, in a file with two slots.
//!
//! A state is written into one slot, made durable, then into the other, and only then called saved.
//! So a write that is torn leaves the other slot, and so does a slot that rots later: a promise that
//! was told is in both. The state with the greater counter counts. What was loaded is saved again
//! before it may be acted on, since it may have been in a cache only.

use quorate_machine::mutant;

use crate::format::{FORMAT_VERSION, Identity, u16_at, u32_at, u64_at};
use crate::names::VOTER_FILE;
use crate::{Completion, Directory, Disk, DiskError, LogError, Name, Request, Ticket};

/// Most bytes of a voter's state.
pub const VOTER_BYTES_MAX: usize = SLOT_BYTES - HEAD_BYTES;

/// Bytes of a slot: whole sectors of any disk.
const SLOT_BYTES: usize = 64 * 1024;
/// Bytes before the state.
const HEAD_BYTES: usize = 40;
const CHECKSUM_AT: usize = 36;
const MAGIC: [u8; 8] = *b"quorate\n";
/// The kind of file, beside those of segments and snapshots.
const KIND: u16 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// There is a file.
    Idle,
    /// There is none, or it was cut short before anything was saved.
    Absent,
    Create,
    Zero,
    Directory,
    /// Of the state, the first and the second copy.
    First,
    Second,
    Dead,
}

/// Writes the voter's file. See the module's documentation.
#[derive(Debug)]
pub struct VoterFile {
    identity: Identity,
    /// Of the copy that was written last.
    counter: u64,
    stage: Stage,
    tickets: u64,
    ticket: Ticket,
    /// The newest state that is not being written yet.
    pending: Option<Vec<u8>>,
    /// The state that is being written.
    writing: Vec<u8>,
    /// States are numbered. The one that was loaded has number 0.
    asked: u64,
    started: u64,
    /// There was no room.
    full: bool,
}

impl VoterFile {
    /// Reads the newest sound state. `None` if nothing was ever saved.
    ///
    /// # Errors
    /// If neither slot is sound, or they belong to somebody else or a newer program. The lane of the
    /// identity is 0.
    pub fn load(
        directory: &mut impl Directory,
        identity: Identity,
    ) -> Result<(Self, Option<Vec<u8>>), LogError> {
        let files = directory.files().map_err(LogError::Directory)?;
        let length = files.iter().find(|file| &*file.name == VOTER_FILE).map(|file| file.bytes);
        let mut newest: Option<(u64, Vec<u8>)> = None;
        let mut ever_saved = false;
        for slot in [0, 1] {
            if length.unwrap_or(0) < (slot as u64 + 1) * SLOT_BYTES as u64 {
                continue;
            }
            let mut bytes = vec![0; SLOT_BYTES];
            let mut found = Slot::Damaged;
            // A bit may have tipped on the way.
            for _ in 0..2 {
                let read = directory.read(VOTER_FILE, slot as u64 * SLOT_BYTES as u64, &mut bytes);
                found = if read.is_ok() { decode(&bytes, slot, identity)? } else { Slot::Damaged };
                if !matches!(found, Slot::Damaged) {
                    break;
                }
            }
            match found {
                Slot::Empty => {}
                // The second slot is written last: without it nothing was told.
                Slot::Damaged => ever_saved |= slot == 1,
                Slot::Sound(counter, state) => {
                    ever_saved = true;
                    if newest.as_ref().is_none_or(|(other, _)| *other < counter) {
                        newest = Some((counter, state));
                    }
                }
            }
        }
        if newest.is_none() && ever_saved {
            return Err(LogError::Voter { file: VOTER_FILE.into() });
        }
        let (counter, state) = newest.map_or((0, None), |(counter, state)| (counter, Some(state)));
        let file = Self {
            identity,
            counter,
            stage: if state.is_some() { Stage::Idle } else { Stage::Absent },
            tickets: 0,
            ticket: Ticket(0),
            pending: state.clone(),
            writing: Vec::new(),
            asked: 0,
            started: 0,
            full: false,
        };
        Ok((file, state))
    }

    /// Begins to save what was loaded again. Nothing may be told of it before
    /// [`VoterFile::complete`] says 0.
    pub fn begin(&mut self, disk: &mut impl Disk) {
        self.write(disk);
    }

    /// Begins to save a state, or will when the one before it is saved. Returns its number.
    ///
    /// # Panics
    /// If it has more than [`VOTER_BYTES_MAX`] bytes.
    pub fn save(&mut self, state: &[u8], disk: &mut impl Disk) -> u64 {
        assert!(state.len() <= VOTER_BYTES_MAX, "a voter's state of {} bytes", state.len());
        self.asked += 1;
        self.pending = Some(state.to_vec());
        self.write(disk);
        self.asked
    }

    /// Whether the disk has failed: stop the process.
    pub fn is_dead(&self) -> bool {
        self.stage == Stage::Dead
    }

    /// Whether there was no room. What is saved stays; call [`VoterFile::retry`] now and then.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Tries again what found the disk full.
    pub fn retry(&mut self, disk: &mut impl Disk) {
        if !std::mem::take(&mut self.full) {
            return;
        }
        match self.stage {
            Stage::First | Stage::Second => {
                self.counter -= 1;
                self.write_copy(self.stage, disk);
            }
            _ => {
                self.stage = Stage::Absent;
                self.write(disk);
            }
        }
    }

    /// Takes the end of a request. Returns the number of the newest state that is saved, with all
    /// before it, if that has changed.
    pub fn complete(&mut self, completion: Completion, disk: &mut impl Disk) -> Option<u64> {
        if completion.ticket != self.ticket || self.is_dead() {
            return None;
        }
        match completion.result {
            Ok(()) => {}
            Err(DiskError::Full) => {
                self.full = true;
                return None;
            }
            Err(_) => {
                self.stage = Stage::Dead;
                return None;
            }
        }
        let mut saved = None;
        match self.stage {
            Stage::Create => {
                let (file, bytes) = (VOTER_FILE.into(), 2 * SLOT_BYTES as u32);
                self.submit(Request::Zero { file, offset: 0, bytes, flush: true }, disk);
                self.stage = Stage::Zero;
            }
            Stage::Zero => {
                self.submit(Request::FlushDirectory, disk);
                self.stage = Stage::Directory;
            }
            Stage::First if mutant!("durability_voter_one_copy") => {
                saved = Some(self.started);
                self.stage = Stage::Idle;
            }
            Stage::First => self.write_copy(Stage::Second, disk),
            Stage::Second => {
                saved = Some(self.started);
                self.stage = Stage::Idle;
            }
            Stage::Directory | Stage::Idle | Stage::Absent | Stage::Dead => {
                self.stage = Stage::Idle;
            }
        }
        self.write(disk);
        saved
    }

    fn write(&mut self, disk: &mut impl Disk) {
        if self.full {
            return;
        }
        match self.stage {
            Stage::Idle => {
                let Some(state) = self.pending.take() else { return };
                self.writing = state;
                self.started = self.asked;
                self.write_copy(Stage::First, disk);
            }
            Stage::Absent if self.pending.is_some() => {
                self.submit(Request::Create { file: VOTER_FILE.into() }, disk);
                self.stage = Stage::Create;
            }
            _ => {}
        }
    }

    fn write_copy(&mut self, stage: Stage, disk: &mut impl Disk) {
        self.stage = stage;
        self.counter += 1;
        // Odd counters lie in the first slot, even ones in the second.
        let slot =
            if mutant!("durability_voter_one_slot") { 0 } else { (self.counter as usize + 1) % 2 };
        let bytes = encode(self.identity, slot, self.counter, &self.writing);
        let (file, offset) = (Name::from(VOTER_FILE), (slot * SLOT_BYTES) as u64);
        self.submit(Request::Write { file, offset, bytes, flush: true }, disk);
    }

    fn submit(&mut self, request: Request, disk: &mut impl Disk) {
        self.tickets += 1;
        self.ticket = Ticket(self.tickets);
        disk.submit(self.ticket, request);
    }
}

enum Slot {
    Empty,
    Damaged,
    Sound(u64, Vec<u8>),
}

fn encode(identity: Identity, slot: usize, counter: u64, state: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SLOT_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&KIND.to_le_bytes());
    bytes.extend_from_slice(&identity.node.0.to_le_bytes());
    bytes.extend_from_slice(&(slot as u16).to_le_bytes());
    bytes.extend_from_slice(&identity.cluster.0.to_le_bytes());
    bytes.extend_from_slice(&counter.to_le_bytes());
    bytes.extend_from_slice(&(state.len() as u32).to_le_bytes());
    let sum = checksum(&bytes, state);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(state);
    bytes.resize(SLOT_BYTES, 0);
    bytes
}

fn checksum(head: &[u8], state: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), state)
}

fn decode(bytes: &[u8], slot: usize, identity: Identity) -> Result<Slot, LogError> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(Slot::Empty);
    }
    let length = u32_at(bytes, 32) as usize;
    if bytes[..8] != MAGIC || length > VOTER_BYTES_MAX {
        return Ok(Slot::Damaged);
    }
    let state = &bytes[HEAD_BYTES..HEAD_BYTES + length];
    if checksum(&bytes[..CHECKSUM_AT], state) != u32_at(bytes, CHECKSUM_AT) {
        return Ok(Slot::Damaged);
    }
    let file = Name::from(VOTER_FILE);
    let version = u16_at(bytes, 8);
    if version > FORMAT_VERSION {
        return Err(LogError::Newer { file, version });
    }
    // The place in the file is a part of the head, so a misdirected write is damage.
    if u16_at(bytes, 10) != KIND || usize::from(u16_at(bytes, 14)) != slot {
        return Ok(Slot::Damaged);
    }
    let found = Identity {
        cluster: quorate_types::Incarnation(u64_at(bytes, 16)),
        node: quorate_types::NodeId(u16_at(bytes, 12)),
        lane: identity.lane,
    };
    if found != identity {
        return Err(LogError::Foreign { file, found, expected: identity });
    }
    Ok(Slot::Sound(u64_at(bytes, 24), state.to_vec()))
}
