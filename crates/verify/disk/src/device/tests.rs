//! Each fault occurs, and what an honest flush has covered stays.

use std::collections::BTreeSet;

use super::*;

const BYTES: usize = 64 * 1024;

fn flushed(disk: &mut Device, now: &mut Instant) -> Result<(), DeviceError> {
    disk.flush(*now);
    assert_eq!(disk.flushed(*now), None, "a flush takes time");
    *now = disk.next_deadline();
    disk.flushed(*now).expect("it is due")
}

fn everything(disk: &mut Device) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    disk.read(0, &mut bytes).expect("these disks can be read");
    bytes
}

/// What the disk says it has taken, as an ordinary array has it.
fn scribble(disk: &mut Device, rng: &mut Rng, image: &mut [u8]) {
    let (at, length) = (rng.below(BYTES as u64 - 9000) as usize, 1 + rng.below(9000) as usize);
    let bytes: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
    let taken = disk.write(at, &bytes).unwrap_or(0);
    image[at..at + taken].copy_from_slice(&bytes[..taken]);
}

#[test]
fn reads_find_what_was_written_and_a_power_cut_spares_what_was_flushed() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let faults = DeviceFaults {
            short_write: 200,
            write_error: 100,
            stall: 50,
            ..DeviceFaults::default()
        };
        let sector = if seed % 2 == 0 { 512 } else { 4096 };
        let mut disk = Device::new(BYTES, sector, faults, seed);
        let (mut image, mut now) = (vec![0; BYTES], Instant::ZERO);
        for _ in 0..1 + rng.below(4) {
            scribble(&mut disk, &mut rng, &mut image);
            assert_eq!(everything(&mut disk), image);
        }
        assert_eq!(flushed(&mut disk, &mut now), Ok(()));
        // The disk as it was after the flush, and after each write since.
        let mut images = vec![image.clone()];
        let writes = rng.below(5);
        let flush_after = rng.below(5);
        for write in 0..writes {
            scribble(&mut disk, &mut rng, &mut image);
            images.push(image.clone());
            if write == flush_after {
                disk.flush(now);
            }
        }
        assert_eq!(everything(&mut disk), image);
        disk.power_cut();
        for (at, byte) in everything(&mut disk).into_iter().enumerate() {
            let known = images.iter().any(|image| image[at] == byte);
            assert!(known, "seed {seed}: nobody wrote byte {at} since the flush as it is now");
        }
        let after = everything(&mut disk);
        disk.power_cut();
        assert_eq!(everything(&mut disk), after, "what has survived one stays");
    }
}

#[test]
fn bytes_that_nothing_wrote_since_the_flush_survive_in_a_torn_sector() {
    for seed in 0..300 {
        let mut disk = Device::new(BYTES, 512, DeviceFaults::default(), seed);
        let mut now = Instant::ZERO;
        disk.write(0, &[1; 700]).expect("it fits");
        flushed(&mut disk, &mut now).expect("an honest flush");
        disk.write(700, &[2; 5000]).expect("it fits");
        disk.power_cut();
        let bytes = everything(&mut disk);
        assert_eq!(bytes[..700], [1; 700]);
        assert!(bytes[700..5700].iter().all(|byte| matches!(byte, 0 | 2)));
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_then_nothing() {
    let mut disk = Device::new(1024, 512, DeviceFaults::default(), 1);
    assert_eq!(disk.write(1000, &[1; 100]), Ok(24));
    assert_eq!(disk.write(1024, &[1; 100]), Err(DeviceError::Full));
    assert_eq!(disk.counts()["full"], 2);
}

/// After a failed flush reads find what is not on the disk, and the next flush, which succeeds, does
/// not put it there.
#[test]
fn a_flush_after_a_failed_one_promises_too_much() {
    let mut lost = 0;
    for seed in 0..50 {
        let faults = DeviceFaults { flush_error: 1000, ..DeviceFaults::default() };
        let mut disk = Device::new(BYTES, 512, faults, seed);
        let mut now = Instant::ZERO;
        disk.write(0, &[1; 4096]).expect("it fits");
        assert_eq!(flushed(&mut disk, &mut now), Err(DeviceError::Io));
        disk.set_faults(DeviceFaults::default());
        assert_eq!(flushed(&mut disk, &mut now), Ok(()));
        assert_eq!(everything(&mut disk)[..4096], [1; 4096]);
        disk.power_cut();
        lost += u64::from(everything(&mut disk)[..4096] != [1; 4096]);
    }
    assert!(lost > 40, "{lost} of 50");
}

#[test]
fn a_flush_that_lies_covers_nothing_until_an_honest_one_does() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut disk =
            Device::new(BYTES, 512, DeviceFaults { lie: 1000, ..DeviceFaults::default() }, seed);
        let mut now = Instant::ZERO;
        disk.write(0, &[1; 4096]).expect("it fits");
        assert_eq!(flushed(&mut disk, &mut now), Ok(()));
        let mut honest = disk.clone();
        disk.power_cut();
        lost += u64::from(everything(&mut disk)[..4096] != [1; 4096]);
        honest.set_faults(DeviceFaults::default());
        assert_eq!(flushed(&mut honest, &mut now), Ok(()));
        honest.power_cut();
        assert_eq!(everything(&mut honest)[..4096], [1; 4096]);
    }
    assert!(lost > 30, "{lost} of 50");
}

#[test]
fn a_misdirected_sector_is_missing_and_destroys_another() {
    let mut disk = Device::new(BYTES, 512, DeviceFaults::default(), 3);
    let mut now = Instant::ZERO;
    disk.write(0, &[1; BYTES]).expect("it fits");
    flushed(&mut disk, &mut now).expect("an honest flush");
    disk.set_faults(DeviceFaults { misdirection: 1000, ..DeviceFaults::default() });
    disk.write(512, &[2; 512]).expect("it fits");
    assert_eq!(flushed(&mut disk, &mut now), Ok(()));
    let bytes = everything(&mut disk);
    assert_eq!(bytes[512..1024], [1; 512]);
    assert_eq!(bytes.iter().filter(|byte| **byte == 2).count(), 512);
}

#[test]
fn a_flush_of_some_sectors_leaves_the_others_in_the_cache() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut disk = Device::new(BYTES, 512, DeviceFaults::default(), seed);
        disk.write(0, &[1; 4096]).expect("it fits");
        assert_eq!(disk.flush_sectors(|sector| (2..4).contains(&sector)), Ok(()));
        disk.power_cut();
        let bytes = everything(&mut disk);
        assert_eq!(bytes[1024..2048], [1; 1024]);
        lost += u64::from(bytes[..4096] != [1; 4096]);
    }
    assert!(lost > 30, "{lost} of 50");
}

#[test]
fn a_bit_that_tips_on_the_way_is_whole_in_the_next_read() {
    let mut disk =
        Device::new(BYTES, 512, DeviceFaults { read_rot: 1000, ..DeviceFaults::default() }, 9);
    disk.write(0, &[1; 512]).expect("it fits");
    let mut bytes = [0; 512];
    disk.read(0, &mut bytes).expect("it can be read");
    assert_ne!(bytes, [1; 512]);
    disk.read(0, &mut bytes).expect("it can be read");
    assert_eq!(bytes, [1; 512]);
}

#[test]
fn rot_changes_a_few_bytes_of_what_is_written() {
    let mut disk = Device::new(BYTES, 512, DeviceFaults::default(), 4);
    assert_eq!(disk.rot(BYTES), None, "an empty disk");
    let mut now = Instant::ZERO;
    disk.write(2048, &[1; 1024]).expect("it fits");
    flushed(&mut disk, &mut now).expect("an honest flush");
    let before = everything(&mut disk);
    let first = disk.rot(BYTES).expect("there is a sector");
    let after = everything(&mut disk);
    let changed: Vec<usize> = (0..BYTES).filter(|at| before[*at] != after[*at]).collect();
    assert_eq!(changed[0], first);
    assert!(changed.len() <= 8 && changed.iter().all(|at| (2048..3072).contains(at)));
}

#[test]
fn every_fault_occurs_and_the_seed_decides_which() {
    let faults = DeviceFaults {
        short_write: 100,
        write_error: 50,
        read_error: 100,
        flush_error: 50,
        stall: 50,
        lie: 50,
        misdirection: 20,
        read_rot: 100,
        garbled: 200,
    };
    let live = |seed| {
        let (mut disk, mut rng) = (Device::new(BYTES, 512, faults, seed), Rng::new(seed));
        let (mut now, mut seen) = (Instant::ZERO, Vec::new());
        for _ in 0..50 {
            let at = rng.below(BYTES as u64 + 512) as usize;
            let bytes: Vec<u8> = (0..4000).map(|_| rng.next_u64() as u8).collect();
            seen.push(format!("{:?}", disk.write(at, &bytes)));
            if rng.chance(1, 2) {
                seen.push(format!("{:?} at {now:?}", flushed(&mut disk, &mut now)));
            }
            if rng.chance(1, 4) {
                disk.flush(now);
                disk.power_cut();
                seen.push(format!("{:?}", disk.rot(BYTES)));
            }
            seen.push(format!("{:?}", disk.read(0, &mut [0; 512])));
        }
        (disk, seen)
    };
    let mut occurred = BTreeSet::new();
    for seed in 0..20 {
        let (disk, seen) = live(seed);
        let (again, same) = live(seed);
        assert_eq!((&disk.durable, seen), (&again.durable, same));
        occurred.extend(disk.counts().keys().copied());
    }
    assert_eq!(occurred, DEVICE_EVENTS.iter().copied().collect());
}
