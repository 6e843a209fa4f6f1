use alloc::vec;
use alloc::vec::Vec;

use quorate_types::NodeId;

use super::*;

const KEY: RecordKey = RecordKey::new(Timestamp::new(0x0102, quorate_types::WriterId(3)), 0);

fn encoded(entry: &RecordEntry<'_>, key: &RecordKey, keeps_since: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry.encode(key, keeps_since, &mut bytes);
    bytes
}

fn electorate() -> Electorate {
    let nodes = |ids: [u16; 2]| ids.into_iter().map(NodeId).collect();
    Electorate { voters: nodes([1, 2]), active: nodes([1, 0]) }
}

#[test]
fn the_layout_of_records_is_pinned() {
    let vote = RecordEntry {
        participants: 1,
        voted: true,
        sets: Some(b"\0\0\0\0"),
        ..RecordEntry::default()
    };
    let bytes = encoded(&vote, &KEY, false);
    assert_eq!(bytes, b"\x01\x81\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
    let end = RecordEntry { decision: Some(true), sets: None, ..vote };
    assert_eq!(encoded(&end, &KEY, false), b"\x01\x19\x02\x01\0\0\0\0\0\0\x03\0\0\0");
    let spread = RecordEntry {
        participants: 6,
        voted: false,
        proposed: Some((7, true)),
        decision: Some(false),
        since: 9,
        sets: None,
        is_over: false,
    };
    let key = RecordKey { partition: 1, ..KEY };
    let pinned =
        b"\x01\x6e\x02\x01\0\0\0\0\0\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\
                   \x09\0\0\0\0\0\0\0";
    assert_eq!(encoded(&spread, &key, true), pinned);
    let over = RecordEntry { sets: Some(b"sets"), is_over: true, ..end };
    let pinned = b"\x0c\x99\x02\x01\0\0\0\0\0\0\x03\0\0\0sets";
    assert_eq!(encoded(&over, &KEY, false), pinned);
    let all = [(vote, KEY, false), (end, KEY, false), (spread, key, true), (over, KEY, false)];
    for (entry, key, keeps) in all {
        let bytes = encoded(&entry, &key, keeps);
        let mut reader = Reader(&bytes[1..]);
        assert_eq!(RecordEntry::decode(bytes[0], &mut reader), Ok((key, entry)));
        assert_eq!(reader.end(), Ok(()));
    }
    // A proposal that is OK and none; a commit that is undecided.
    for flags in [PROPOSED_OK, COMMITTED] {
        let bytes = [&[flags][..], &bytes[2..14]].concat();
        assert!(RecordEntry::decode(RECORD, &mut Reader(&bytes)).is_err());
    }
}

#[test]
fn the_layout_of_epochs_and_floors_is_pinned() {
    let resumed = ResumedEntry { epoch: Epoch(5), electorate: electorate(), floor: 8, waits: true };
    let mut bytes = Vec::new();
    resumed.encode(&mut bytes);
    let pinned =
        b"\x06\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0";
    assert_eq!(bytes, pinned);
    assert_eq!(ResumedEntry::decode(&mut Reader(&bytes[1..])), Ok(resumed));
    bytes.clear();
    write_adopted((Epoch(5), electorate()), (1, 2), b"merged", &mut bytes);
    let pinned =
        b"\x05\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0merged";
    assert_eq!(bytes, pinned);
    bytes.clear();
    write_stable(4, 6, vec![KEY.id()].into_iter(), &mut bytes);
    let pinned = b"\x07\x04\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x03\0\0\0";
    assert_eq!(bytes, pinned);
    bytes.clear();
    write_number(CLOCK, 7, &mut bytes);
    write_number(CLUSTER, 9, &mut bytes);
    write_sessions(2, b"calls", &mut bytes);
    assert_eq!(bytes, b"\x08\x07\0\0\0\0\0\0\0\x0a\x09\0\0\0\0\0\0\0\x09\x02\0calls");
}
