//! Redis's files, from the part behind the header to that before the end, which gets a checksum that is
//! right.
//!
//! Nothing may panic, and no length may be believed. However the bytes are cut into reads, the same events
//! are told. A value of the file is a payload of `DUMP`, and written with it to a new file is read as it was;
//! a key of it that is written over, as a backup does, is in it no longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_rdb::{Error, Event, Payload, Reader, Step, Writer, blank, crc64};

fn read(file: &[u8], piece: usize) -> (Vec<Event>, Option<Error>) {
    let (mut reader, mut rest, mut events) = (Reader::new(Some(file.len() as u64)), file, Vec::new());
    loop {
        match reader.next() {
            Ok(Step::Event(event)) => events.push(event),
            Ok(Step::Done) => return (events, None),
            Ok(Step::More(_)) if rest.is_empty() => return (events, Some(reader.truncated())),
            Ok(Step::More(_)) => {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                reader.feed(now);
                rest = later;
            }
            Err(error) => {
                assert!(error.to_string().len() > 20, "an error says what to do");
                return (events, Some(error));
            }
        }
    }
}

fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc64(&bytes).to_le_bytes();
    bytes.extend_from_slice(&sum);
    bytes
}

fuzz_target!(|data: &[u8]| {
    let file = summed([b"REDIS0012", data, &[255]].concat());
    let (events, error) = read(&file, usize::MAX);
    assert_eq!(read(&file, 1), (events.clone(), error));
    // The same bytes as one value.
    let dumped = summed([data, &[12, 0]].concat());
    let Ok(payload) = Payload::parse(&dumped) else { return };
    let mut written = Vec::new();
    let mut writer = Writer::new(&mut written);
    writer.database(1, 1, &mut written);
    let begin = written.len();
    writer.key(b"gone", Some(7), &payload, &mut written);
    let before = written[begin..].to_vec();
    let mut after = blank(before.len() as u64).expect("a key takes so much");
    after.resize(before.len(), 0);
    written[begin..].copy_from_slice(&after);
    writer.exchanged(&before, &after, written.len() as u64);
    writer.key(b"k", Some(7), &payload, &mut written);
    if let Some(header) = writer.finish(&mut written) {
        written[..header.len()].copy_from_slice(&header);
    }
    let (events, error) = read(&written, usize::MAX);
    assert_eq!(error, None);
    assert_eq!(events.last(), Some(&Event::End { checked: true }));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Key(_))).count(), 1);
});
