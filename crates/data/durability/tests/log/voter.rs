//! The voter's file: what was called saved is there, whatever the power did.

use quorate_disk::{Device, DeviceFaults, Files};
use quorate_durability::{Identity, LogError, VOTER_FILE, VoterFile};
use quorate_machine::Rng;
use quorate_types::{Incarnation, LaneId};

use crate::host::no_files;
use crate::world::ME;

const VOTER: Identity = Identity { lane: LaneId(0), ..ME };

fn settle(voter: &mut VoterFile, files: &mut Files) -> Option<u64> {
    let mut saved = None;
    while !files.is_idle() {
        if let Some(completion) = files.step() {
            saved = voter.complete(completion, files).or(saved);
        }
    }
    saved
}

fn state(number: u64) -> Vec<u8> {
    vec![number as u8; 10 + (number as usize * 37) % 3000]
}

#[test]
fn states_come_back_and_the_newest_counts() {
    let mut files = no_files();
    let (mut voter, nothing) = VoterFile::load(&mut files, VOTER).expect("no file");
    assert_eq!(nothing, None);
    for number in 1..9 {
        assert_eq!(voter.save(&state(number), &mut files), number);
        assert_eq!(settle(&mut voter, &mut files), Some(number));
        let (_, loaded) = VoterFile::load(&mut files, VOTER).expect("a sound file");
        assert_eq!(loaded, Some(state(number)));
    }
    // What comes while one is written is one.
    for number in 9..12 {
        voter.save(&state(number), &mut files);
    }
    assert_eq!(settle(&mut voter, &mut files), Some(11));
    let (mut voter, loaded) = VoterFile::load(&mut files, VOTER).expect("a sound file");
    assert_eq!(loaded, Some(state(11)));
    voter.begin(&mut files);
    assert_eq!(settle(&mut voter, &mut files), Some(0), "what was loaded is saved again");
}

#[test]
fn either_slot_may_rot_once_a_state_is_saved() {
    let mut files = no_files();
    let (mut voter, _) = VoterFile::load(&mut files, VOTER).expect("no file");
    for number in 1..4 {
        voter.save(&state(number), &mut files);
        settle(&mut voter, &mut files);
        let content = files.content(VOTER_FILE);
        for slot in [0, 65536] {
            for at in (0..40 + state(number).len()).map(|at| slot + at) {
                files.damage(VOTER_FILE, at as u64, &[content[at] ^ 1]);
                let (_, loaded) = VoterFile::load(&mut files, VOTER).expect("the other slot");
                assert_eq!(loaded, Some(state(number)), "byte {at}");
                files.damage(VOTER_FILE, at as u64, &[content[at]]);
            }
        }
    }
    for slot in [0, 65536] {
        files.damage(VOTER_FILE, slot + 50, &[0xee]);
    }
    let error = VoterFile::load(&mut files, VOTER).expect_err("both are damaged");
    assert_eq!(error, LogError::Voter { file: VOTER_FILE.into() });
    assert!(error.to_string().contains("remove the node"), "{error}");
}

#[test]
fn another_cluster_is_refused() {
    let mut files = no_files();
    let (mut voter, _) = VoterFile::load(&mut files, VOTER).expect("no file");
    voter.save(b"promise", &mut files);
    settle(&mut voter, &mut files);
    let other = Identity { cluster: Incarnation(5), ..VOTER };
    let refused = VoterFile::load(&mut files, other).expect_err("another cluster's");
    let file = VOTER_FILE.into();
    assert_eq!(refused, LogError::Foreign { file, found: VOTER, expected: other });
}

/// Random histories: crashes at any step, failed flushes, a full disk.
#[test]
fn what_was_called_saved_is_never_forgotten() {
    let (mut recoveries, mut dead) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let faults = match seed % 3 {
            0 => DeviceFaults { short_write: 50, garbled: 300, ..DeviceFaults::default() },
            1 => DeviceFaults { flush_error: 40, write_error: 20, ..DeviceFaults::default() },
            _ => DeviceFaults { read_rot: 100, ..DeviceFaults::default() },
        };
        let mut files = Files::new(Device::new(1 << 20, 512, faults, seed), seed);
        let (mut number, mut saved) = (0_u64, 0);
        for _ in 0..4 {
            let (mut voter, loaded) = VoterFile::load(&mut files, VOTER)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            recoveries += 1;
            let found = loaded.as_ref().map(|loaded| u64::from(loaded[0]));
            assert!(found.unwrap_or(0) >= saved, "seed {seed}: {saved} was saved, not {found:?}");
            if let Some(found) = found {
                assert_eq!(loaded, Some(state(found)), "seed {seed}");
                assert!(found <= number, "seed {seed}: {found} was never written");
            }
            let base = number;
            voter.begin(&mut files);
            for _ in 0..rng.below(60) {
                if rng.chance(1, 8) {
                    number += 1;
                    voter.save(&state(number), &mut files);
                } else if let Some(completion) = files.step()
                    && let Some(asked) = voter.complete(completion, &mut files)
                {
                    saved = saved.max(if asked == 0 { found.unwrap_or(0) } else { base + asked });
                }
                if voter.is_dead() {
                    dead += 1;
                    break;
                }
            }
            if rng.chance(2, 3) { files.power_cut() } else { files.process_crash() }
        }
    }
    assert!(recoveries == 12_000 && dead > 200, "{recoveries} {dead}");
}

#[test]
fn a_full_disk_is_waited_for() {
    let mut files = no_files();
    let (mut voter, _) = VoterFile::load(&mut files, VOTER).expect("no file");
    let room = files.room();
    files.set_reserved(room);
    voter.save(b"promise", &mut files);
    assert_eq!(settle(&mut voter, &mut files), None);
    assert!(voter.is_full());
    files.set_reserved(0);
    voter.retry(&mut files);
    assert_eq!(settle(&mut voter, &mut files), Some(1));
}
