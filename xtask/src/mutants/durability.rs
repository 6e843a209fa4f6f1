//! The guards of the log that every engine shares: segments, recovery, snapshots, the voter's file.

use super::Check::{self, Tests};
use super::Mutant;

const HISTORIES: Check = Tests("durability", "histories::");
const RECOVERY: Check = Tests("durability", "recovery::");
const SNAPSHOT: Check = Tests("durability", "snapshot::");
const VOTER: Check = Tests("durability", "voter::");
const WRITING: Check = Tests("durability", "writing::");
const NODES: Check = Tests("sim", "nodes_with_disks_survive");

/// The part of the log of the table.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "durability_no_salt",
        home: "durability",
        guard: "what an earlier use of a segment has left is no batch of this one",
        checks: &[RECOVERY, HISTORIES],
        in_gate: true,
    },
    Mutant {
        name: "durability_full_disk_has_room_while_it_is_tried",
        home: "durability",
        guard: "a full disk has room again when the next segment has been prepared, and not before",
        checks: &[WRITING],
        in_gate: false,
    },
    Mutant {
        name: "durability_found_segment_never_used_again",
        home: "durability",
        guard: "the segment that a log goes on in after a restart is used again as every other one",
        checks: &[WRITING],
        in_gate: false,
    },
    Mutant {
        name: "durability_tail_behind_rot_is_first",
        home: "durability",
        guard: "a batch that stands behind others in its segment, be they damaged, is not its first",
        checks: &[RECOVERY],
        in_gate: false,
    },
    Mutant {
        name: "durability_tail_is_there_once",
        home: "durability",
        guard: "the last batch is there twice once nothing follows it",
        checks: &[RECOVERY],
        in_gate: false,
    },
    Mutant {
        name: "durability_no_offset",
        home: "durability",
        guard: "a batch counts in the place only where it was written",
        checks: &[RECOVERY],
        in_gate: true,
    },
    Mutant {
        name: "durability_early_release",
        home: "durability",
        guard: "an entry is durable when a flush has covered it",
        checks: &[WRITING, HISTORIES],
        in_gate: true,
    },
    Mutant {
        name: "durability_fsync_retry",
        home: "durability",
        guard: "a failed flush ends the log",
        checks: &[WRITING, NODES],
        in_gate: true,
    },
    Mutant {
        name: "durability_rot_truncated",
        home: "durability",
        guard: "a damaged batch with a sound one behind it is not the end",
        checks: &[RECOVERY, HISTORIES, NODES],
        in_gate: true,
    },
    Mutant {
        name: "durability_fuzzy_end",
        home: "durability",
        guard: "replay begins where the snapshot began",
        checks: &[SNAPSHOT, HISTORIES],
        in_gate: true,
    },
    Mutant {
        name: "durability_torn_accepted",
        home: "durability",
        guard: "a torn batch is none",
        checks: &[RECOVERY, HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_unread_bytes_are_sound",
        home: "durability",
        guard: "bytes that were read anew are checked anew",
        checks: &[Tests("durability", "frames::")],
        in_gate: false,
    },
    Mutant {
        name: "durability_read_once",
        home: "durability",
        guard: "what is not sound is read again before it is called damaged",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_header_place_ignored",
        home: "durability",
        guard: "the log does not end before what a header says was durable",
        checks: &[RECOVERY],
        in_gate: false,
    },
    Mutant {
        name: "durability_beginning_unchecked",
        home: "durability",
        guard: "the log does not begin behind where it is needed",
        checks: &[RECOVERY],
        in_gate: false,
    },
    Mutant {
        name: "durability_seal_unchecked",
        home: "durability",
        guard: "a segment that takes no more has a successor",
        checks: &[RECOVERY],
        in_gate: false,
    },
    Mutant {
        name: "durability_torn_header_believed",
        home: "durability",
        guard: "a damaged header counts for nothing only if the segment was being prepared",
        checks: &[RECOVERY],
        in_gate: false,
    },
    Mutant {
        name: "durability_tail_not_repeated",
        home: "durability",
        guard: "the last batch that was found is written again before it is called durable",
        checks: &[RECOVERY, HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_copy_over_the_first",
        home: "durability",
        guard: "a copy of the only batch is not written over the first one",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_found_is_durable",
        home: "durability",
        guard: "a batch that was found may lie in a cache only",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_batches_share_sectors",
        home: "durability",
        guard: "no write touches a sector that holds durable bytes",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_header_not_flushed",
        home: "durability",
        guard: "a header is durable before its segment is used",
        checks: &[WRITING, HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_directory_not_flushed",
        home: "durability",
        guard: "the name of a segment is durable before it is used",
        checks: &[WRITING, HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_prepared_early",
        home: "durability",
        guard: "a segment is prepared only when the one before it holds a durable batch",
        checks: &[WRITING, HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_sealed_without_next",
        home: "durability",
        guard: "a segment is sealed only when the next one is durable",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_recycled_early",
        home: "durability",
        guard: "a segment is used again only if nothing in it is needed",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_snapshot_ahead",
        home: "durability",
        guard: "a snapshot is complete only when the log is durable as far as it has seen it",
        checks: &[SNAPSHOT, HISTORIES],
        in_gate: true,
    },
    Mutant {
        name: "durability_snapshot_final_unordered",
        home: "durability",
        guard: "the final record comes after all entries are durable",
        checks: &[HISTORIES],
        in_gate: false,
    },
    Mutant {
        name: "durability_kept_snapshot_cut_off",
        home: "durability",
        guard: "the log is kept from the start of the snapshot before the newest",
        checks: &[SNAPSHOT],
        in_gate: false,
    },
    Mutant {
        name: "durability_voter_one_slot",
        home: "durability",
        guard: "a state is not written over the only sound one",
        checks: &[VOTER],
        in_gate: true,
    },
    Mutant {
        name: "durability_voter_one_copy",
        home: "durability",
        guard: "a state that was called saved is in both slots",
        checks: &[VOTER],
        in_gate: false,
    },
];
