//! Files on a device.
//!
//! Requests that are under way take their steps in an order that the seed decides, and each step is
//! a place where the power may go. What a flush of a file covers is that file alone. Names are durable
//! after a flush of the directory; until then a power cut keeps or loses each change, and likewise
//! the length of a file that no flush has covered. Room that a file is given anew holds zeros, as
//! file systems promise.

use std::collections::{BTreeMap, BTreeSet};

use quorate_durability::{
    Completion, Directory, Disk, DiskError, FileEntry, Name, Request, Ticket,
};
use quorate_machine::Rng;

use crate::device::{Device, DeviceError};

/// Files lie in blocks of this many bytes.
const BLOCK: u64 = 4096;

#[derive(Clone, Debug, Default)]
struct Inode {
    blocks: Vec<u64>,
    bytes: u64,
    durable_bytes: u64,
}

#[derive(Clone, Debug)]
struct UnderWay {
    ticket: Ticket,
    request: Request,
    /// Bytes that were written.
    done: usize,
    /// Whether a flush is all that is left.
    written: bool,
}

type Names = BTreeMap<Name, u64>;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Files {
    device: Device,
    names: Names,
    durable_names: Names,
    inodes: BTreeMap<u64, Inode>,
    free: BTreeSet<u64>,
    /// How many blocks others have taken.
    reserved: u64,
    counted: u64,
    queue: Vec<UnderWay>,
    rng: Rng,
}

impl Files {
    /// An empty directory on a device.
    pub fn new(device: Device, seed: u64) -> Self {
        let free = (0..device.size() as u64 / BLOCK).collect();
        Self {
            device,
            names: Names::new(),
            durable_names: Names::new(),
            inodes: BTreeMap::new(),
            free,
            reserved: 0,
            counted: 0,
            queue: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    /// What the files lie on.
    pub fn device(&mut self) -> &mut Device {
        &mut self.device
    }

    /// Others take so many bytes of the disk, or give them back.
    pub fn set_reserved(&mut self, bytes: u64) {
        self.reserved = bytes / BLOCK;
    }

    /// Bytes that files may still take.
    pub fn room(&self) -> u64 {
        (self.free.len() as u64).saturating_sub(self.reserved) * BLOCK
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Does one step of one request. Returns its end, if it was the last step.
    pub fn step(&mut self) -> Option<Completion> {
        if self.queue.is_empty() {
            return None;
        }
        let index = self.rng.below(self.queue.len() as u64) as usize;
        let mut work = self.queue.swap_remove(index);
        match self.advance(&mut work) {
            Ok(false) => {
                self.queue.push(work);
                None
            }
            ended => {
                let bytes = match work.request {
                    Request::Write { bytes, .. } => bytes,
                    _ => Vec::new(),
                };
                Some(Completion { ticket: work.ticket, result: ended.map(|_| ()), bytes })
            }
        }
    }

    /// Returns whether it has ended.
    fn advance(&mut self, work: &mut UnderWay) -> Result<bool, DiskError> {
        match &work.request {
            Request::Create { file } => {
                self.counted += 1;
                self.inodes.insert(self.counted, Inode::default());
                self.names.insert(file.clone(), self.counted);
                self.collect();
                Ok(true)
            }
            Request::Zero { file, offset, bytes, flush } => {
                if work.written {
                    return self.flush(file).map(|()| true);
                }
                let id = self.inode(file)?;
                self.extend(id, offset + u64::from(*bytes))?;
                work.written = true;
                Ok(!flush)
            }
            Request::Write { file, offset, bytes, flush } => {
                if work.written {
                    return self.flush(file).map(|()| true);
                }
                let id = self.inode(file)?;
                self.extend(id, offset + bytes.len() as u64)?;
                let rest = &bytes[work.done..];
                work.done += self.write(id, offset + work.done as u64, rest)?;
                work.written = work.done == bytes.len();
                Ok(work.written && !flush)
            }
            Request::Remove { file } => {
                self.names.remove(file);
                self.collect();
                Ok(true)
            }
            Request::FlushDirectory => {
                self.durable_names = self.names.clone();
                self.collect();
                Ok(true)
            }
        }
    }

    fn inode(&self, file: &str) -> Result<u64, DiskError> {
        self.names.get(file).copied().ok_or(DiskError::Io)
    }

    /// Makes a file longer.
    fn extend(&mut self, id: u64, bytes: u64) -> Result<(), DiskError> {
        let has = self.inodes[&id].blocks.len() as u64;
        let more = bytes.div_ceil(BLOCK).saturating_sub(has);
        if more * BLOCK > self.room() {
            // A file system that runs out of room makes the removal of names durable, as that gives some.
            self.durable_names = self.names.clone();
            self.collect();
        }
        if more * BLOCK > self.room() {
            return Err(DiskError::Full);
        }
        for _ in 0..more {
            let block = self.free.pop_first().expect("there is room");
            let sectors = self.sectors(block);
            sectors.for_each(|sector| self.device.wipe(sector));
            self.inodes.get_mut(&id).expect("it exists").blocks.push(block);
        }
        let inode = self.inodes.get_mut(&id).expect("it exists");
        inode.bytes = inode.bytes.max(bytes);
        Ok(())
    }

    fn sectors(&self, block: u64) -> std::ops::Range<u64> {
        let per_block = BLOCK / self.device.sector_bytes() as u64;
        block * per_block..(block + 1) * per_block
    }

    /// Writes as much as lies in blocks that follow each other. Returns how much.
    fn write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<usize, DiskError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let blocks = &self.inodes[&id].blocks;
        let first = (offset / BLOCK) as usize;
        let run = blocks[first..].windows(2).take_while(|pair| pair[0] + 1 == pair[1]).count();
        let at = blocks[first] * BLOCK + offset % BLOCK;
        let room = (run as u64 + 1) * BLOCK - offset % BLOCK;
        let length = (bytes.len() as u64).min(room) as usize;
        self.device.write(at as usize, &bytes[..length]).map_err(|error| match error {
            DeviceError::Full => DiskError::Full,
            DeviceError::Io => DiskError::Io,
        })
    }

    fn flush(&mut self, file: &str) -> Result<(), DiskError> {
        let id = self.inode(file)?;
        let (blocks, per_block) = (&self.inodes[&id].blocks, self.sectors(1).start);
        let covers = |sector: u64| blocks.contains(&(sector / per_block));
        self.device.flush_sectors(covers).map_err(|_| DiskError::Flush)?;
        let inode = self.inodes.get_mut(&id).expect("it exists");
        inode.durable_bytes = inode.bytes;
        Ok(())
    }

    /// Gives the room of files back that no name has.
    fn collect(&mut self) {
        let named: BTreeSet<u64> =
            self.names.values().chain(self.durable_names.values()).copied().collect();
        let gone: Vec<u64> = self.inodes.keys().filter(|id| !named.contains(id)).copied().collect();
        for id in gone {
            self.free.extend(self.inodes.remove(&id).expect("it exists").blocks);
        }
    }

    /// The process ends. What it has written stays in the cache.
    pub fn process_crash(&mut self) {
        self.queue.clear();
    }

    /// The power goes and comes back.
    pub fn power_cut(&mut self) {
        self.queue.clear();
        self.device.power_cut();
        let all: BTreeSet<Name> =
            self.names.keys().chain(self.durable_names.keys()).cloned().collect();
        for name in all {
            let (new, old) = (self.names.get(&name), self.durable_names.get(&name));
            if new != old && self.rng.chance(1, 2) {
                match old.copied() {
                    Some(id) => self.names.insert(name, id),
                    None => self.names.remove(&name),
                };
            }
        }
        self.durable_names = self.names.clone();
        self.collect();
        for inode in self.inodes.values_mut() {
            let (least, most) = (inode.durable_bytes / BLOCK, inode.bytes / BLOCK);
            if inode.bytes != inode.durable_bytes {
                inode.bytes = (least + self.rng.below(most - least + 1)) * BLOCK;
                inode.bytes = inode.bytes.max(inode.durable_bytes);
            }
            let kept = inode.bytes.div_ceil(BLOCK) as usize;
            self.free.extend(inode.blocks.drain(kept..));
            inode.durable_bytes = inode.bytes;
        }
    }

    // --- what tests do to files ----------------------------------------------------------------

    /// The bytes of a file as reads find them, without faults.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn content(&mut self, file: &str) -> Vec<u8> {
        let id = self.inode(file).expect("the file exists");
        let inode = self.inodes[&id].clone();
        let mut bytes = Vec::new();
        for block in &inode.blocks {
            bytes.extend_from_slice(&self.device.peek((block * BLOCK) as usize, BLOCK as usize));
        }
        bytes.truncate(inode.bytes as usize);
        bytes
    }

    /// Changes bytes of a file on the device itself.
    ///
    /// # Panics
    /// If the file has no such bytes.
    pub fn damage(&mut self, file: &str, offset: u64, bytes: &[u8]) {
        let id = self.inode(file).expect("the file exists");
        for (at, byte) in (offset..).zip(bytes) {
            let place = self.inodes[&id].blocks[(at / BLOCK) as usize] * BLOCK + at % BLOCK;
            self.device.damage(place as usize, *byte);
        }
    }

    /// Takes a file away for good.
    pub fn delete(&mut self, file: &str) {
        self.names.remove(file);
        self.durable_names.remove(file);
        self.collect();
    }

    /// Makes a file of these bytes, for good.
    ///
    /// # Panics
    /// If there is no room.
    pub fn put(&mut self, file: &str, bytes: &[u8]) {
        self.delete(file);
        self.counted += 1;
        self.inodes.insert(self.counted, Inode::default());
        self.extend(self.counted, bytes.len() as u64).expect("there is room");
        self.names.insert(file.into(), self.counted);
        self.durable_names.insert(file.into(), self.counted);
        let inode = self.inodes.get_mut(&self.counted).expect("it was made");
        inode.durable_bytes = inode.bytes;
        self.damage(file, 0, bytes);
    }
}

impl Disk for Files {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.queue.push(UnderWay { ticket, request, done: 0, written: false });
    }
}

impl Directory for Files {
    fn files(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        let entry = |(name, id): (&Name, &u64)| FileEntry {
            name: name.clone(),
            bytes: self.inodes[id].bytes,
        };
        Ok(self.names.iter().map(entry).collect())
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let id = self.inode(file)?;
        if offset + into.len() as u64 > self.inodes[&id].bytes {
            return Err(DiskError::Io);
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let blocks = &self.inodes[&id].blocks;
            let first = (at / BLOCK) as usize;
            let run = blocks[first..].windows(2).take_while(|pair| pair[0] + 1 == pair[1]).count();
            let room = (run as u64 + 1) * BLOCK - at % BLOCK;
            let length = (room as usize).min(into.len() - done);
            let place = (blocks[first] * BLOCK + at % BLOCK) as usize;
            let part = &mut into[done..done + length];
            self.device.read(place, part).map_err(|_| DiskError::Io)?;
            done += length;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
