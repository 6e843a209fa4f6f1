//! Names of files.

use quorate_types::LaneId;

use crate::Name;

/// The file that the process of a directory keeps locked, so that no second one opens it. The runtime
/// makes and locks it before anything is read.
pub const LOCK_FILE: &str = "lock";
/// What a voter of the membership has promised.
pub const VOTER_FILE: &str = "voter";

pub(crate) const SEGMENT: &str = "segment";
pub(crate) const SNAPSHOT: &str = "snapshot";

/// The name of a file of a lane. `slot` counts names; it says nothing about what is in the file.
pub(crate) fn name(lane: LaneId, slot: u64, kind: &str) -> Name {
    format!("lane-{:04}-{slot:08}.{kind}", lane.0).into()
}

/// The slot of a file of this lane and kind.
pub(crate) fn slot_of(file: &str, lane: LaneId, kind: &str) -> Option<u64> {
    let rest = file.strip_prefix("lane-")?.strip_suffix(kind)?.strip_suffix('.')?;
    let (number, slot) = rest.split_once('-')?;
    let is_digits = |text: &str, least| {
        text.len() >= least && text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let well_formed = is_digits(number, 4) && is_digits(slot, 8);
    (well_formed && number.parse() == Ok(lane.0)).then(|| slot.parse().ok()).flatten()
}

/// Whether a file is a segment or a snapshot of some lane, by its name.
pub(crate) fn is_lane_file(file: &str) -> bool {
    let lane = file.get(5..).and_then(|rest| rest.split('-').next()?.parse().ok()).map(LaneId);
    lane.is_some_and(|lane| {
        [SEGMENT, SNAPSHOT].iter().any(|kind| slot_of(file, lane, kind).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_lane_kind_and_slot() {
        let file = name(LaneId(3), 17, SEGMENT);
        assert_eq!(&*file, "lane-0003-00000017.segment");
        assert_eq!(slot_of(&file, LaneId(3), SEGMENT), Some(17));
        assert_eq!(slot_of(&file, LaneId(4), SEGMENT), None);
        assert_eq!(slot_of(&file, LaneId(3), SNAPSHOT), None);
        for other in ["lane-0003-17.segment", "lane-0003-+0000017.segment", "voter", "lane-0003-"] {
            assert_eq!(slot_of(other, LaneId(3), SEGMENT), None, "{other}");
        }
        let long = name(LaneId(12_345), 1_234_567_890, SNAPSHOT);
        assert_eq!(slot_of(&long, LaneId(12_345), SNAPSHOT), Some(1_234_567_890));
    }
}
