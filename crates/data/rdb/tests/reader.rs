//! The reader: all forms, all cuts, damage of all kinds.

mod encode;

use encode::{Value, draw, draw_string, encode};
use quorate_machine::Rng;
use quorate_rdb::{
    Error, Event, Form, Item, Key, Payload, Problem, Reader, Step, Writer, blank, crc64,
};

/// Reads a file that comes in pieces of these lengths.
fn read(file: &[u8], mut piece: impl FnMut() -> usize) -> Result<Vec<Event>, Error> {
    let (mut reader, mut rest, mut events) = (Reader::new(None), file, Vec::new());
    loop {
        match reader.next()? {
            Step::Event(event) => events.push(event),
            Step::Done => return Ok(events),
            Step::More(_) if rest.is_empty() => return Err(reader.truncated()),
            Step::More(bytes) => {
                assert!(bytes > 0);
                let (now, later) = rest.split_at(piece().clamp(1, rest.len()));
                reader.feed(now);
                rest = later;
            }
        }
    }
}

fn read_whole(file: &[u8]) -> Result<Vec<Event>, Error> {
    read(file, || usize::MAX)
}

/// A file of these parts with its checksum.
fn file(version: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut file = [b"REDIS", version.as_bytes()].concat();
    parts.iter().for_each(|part| file.extend_from_slice(part));
    file.push(255);
    file.extend_from_slice(&crc64(&file).to_le_bytes());
    file
}

/// A key with a value, as it stands in a file, and what the reader should tell of it.
fn key(value: &Value, rng: &mut Rng) -> (Vec<u8>, Vec<Event>) {
    let (name, mut bytes) = (draw_string(rng), Vec::new());
    let expire_at_ms = match rng.below(4) {
        0 => {
            let at = rng.below(1 << 31);
            bytes.push(253);
            bytes.extend_from_slice(&(at as u32).to_le_bytes());
            Some(1000 * at)
        }
        1 => {
            let at = rng.next_u64() >> 1;
            bytes.push(252);
            bytes.extend_from_slice(&at.to_le_bytes());
            Some(at)
        }
        _ => None,
    };
    if rng.below(4) == 0 {
        // How long it was idle, and how often it was used.
        bytes.extend_from_slice(b"\xf8\x41\x00\xf9\x07");
    }
    bytes.push(value.form as u8);
    quorate_rdb::write_string(&name, &mut bytes);
    bytes.extend_from_slice(&encode(value, rng));
    let mut events = vec![Event::Key(Key { name, form: value.form, expire_at_ms })];
    events.extend(value.items.iter().cloned().map(Event::Item));
    events.push(Event::KeyEnd);
    (bytes, events)
}

#[test]
fn values_of_all_forms_are_read_in_pieces_of_any_length() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut parts: Vec<Vec<u8>> = vec![
            b"\xfa\x09redis-ver\x057.4.0".into(),
            b"\xf5\x0d#!lua name=x\n".into(),
            b"\xfe\x03\xfb\x19\x05\xf4\x01\x02\x03".into(),
            // What a module keeps: its name, when it is loaded, a number, the end.
            b"\xf7\x81\x01\x23\x45\x67\x89\xab\xcd\xef\x02\x01\x02\x05\x00".into(),
        ];
        let aux = Event::Aux { name: b"redis-ver".into(), value: b"7.4.0".into() };
        let mut wanted = vec![
            Event::Version(12),
            aux,
            Event::Function(b"#!lua name=x\n".into()),
            Event::Database(3),
            Event::Sizes { keys: 25, expiring: 5 },
            Event::ModuleAux("ASNFZ4mrz".into()),
        ];
        for form in Form::ALL {
            let value = draw(*form, &mut rng);
            let (bytes, events) = key(&value, &mut rng);
            parts.push(bytes);
            wanted.extend(events);
        }
        wanted.push(Event::End { checked: true });
        let file = file("0012", &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert!(read_whole(&file).as_ref() == Ok(&wanted), "seed {seed}");
        let longest = 1 + rng.below(100);
        assert!(read(&file, || rng.below(longest) as usize) == Ok(wanted), "seed {seed}");
    }
}

/// Every form, once, small.
fn small() -> Vec<u8> {
    let mut rng = Rng::new(7);
    let short = |rng: &mut Rng, form| {
        let mut draws = std::iter::repeat_with(|| draw(form, rng));
        let mut rng = Rng::new(form as u64);
        draws
            .find_map(|value| Some(key(&value, &mut rng).0).filter(|key| key.len() < 90))
            .expect("endless")
    };
    let parts: Vec<_> = Form::ALL.iter().map(|form| short(&mut rng, *form)).collect();
    file("0012", &parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[test]
fn a_file_that_is_cut_is_never_taken_for_a_whole_one() {
    let file = small();
    assert!(read_whole(&file).is_ok());
    for cut in 0..file.len() {
        let error = read_whole(&file[..cut]).unwrap_err();
        let wanted = if cut < 9 { Problem::NotRdb } else { Problem::Truncated };
        assert_eq!(error.problem, wanted, "cut at {cut}");
        assert!(error.offset <= cut as u64);
        // Also if it is known how long it is.
        let mut reader = Reader::new(Some(cut as u64));
        reader.feed(&file[..cut]);
        let error = std::iter::from_fn(|| match reader.next() {
            Ok(Step::Event(_)) => Some(None),
            Ok(step) => panic!("{step:?} of a file that was cut at {cut}"),
            Err(error) => Some(Some(error)),
        });
        assert_eq!(error.flatten().next().unwrap().problem, wanted);
    }
    let longer = [&file[..], b"x"].concat();
    assert_eq!(read_whole(&longer).unwrap_err().problem, Problem::Trailing);
    // Also if what is behind the end has not come yet.
    let mut reader = Reader::new(Some(longer.len() as u64));
    reader.feed(&file);
    let error = std::iter::repeat_with(|| reader.next()).find_map(Result::err);
    assert_eq!(error.map(|error| error.problem), Some(Problem::Trailing));
}

#[test]
fn a_byte_that_has_changed_is_an_error() {
    refuses_every_change(&small());
    refuses_every_change(include_bytes!("golden/redis-7.0.rdb"));
}

fn refuses_every_change(file: &[u8]) {
    for at in 0..file.len() {
        for change in [1, 2, 0x80, 0xff, file[at]] {
            let mut damaged = file.to_vec();
            damaged[at] ^= change;
            if damaged == file {
                continue;
            }
            let checksum = file.len() - 8..;
            let is_silent = damaged[checksum].iter().all(|byte| *byte == 0);
            assert!(is_silent || read_whole(&damaged).is_err(), "{at} ^ {change}");
        }
    }
}

/// With a checksum that fits the damage, so that the values themselves are met: an error or another
/// value, and neither a panic nor more memory than there are bytes.
#[test]
fn damage_under_a_right_checksum_is_an_error_or_another_value() {
    let file = small();
    let mut rng = Rng::new(1);
    for round in 0..20_000 {
        let mut damaged = file.clone();
        damaged.truncate(file.len() - 8);
        for _ in 0..=round % 3 {
            let at = 9 + rng.below(damaged.len() as u64 - 9) as usize;
            damaged[at] = rng.next_u64() as u8;
        }
        let sum = crc64(&damaged).to_le_bytes();
        damaged.extend_from_slice(&sum);
        let _ = read_whole(&damaged);
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let cases: [(&[u8], &str); 9] = [
        (b"", "at offset 0: this is no RDB file"),
        (b"*3\r\n$3\r\nSET", "at offset 0: this is no RDB file"),
        (b"REDIS00x1", "at offset 0: this is no RDB file"),
        (b"REDIS0013", "at offset 0: version 13 of the format is not known here"),
        (b"REDIS0010\x06\x01k", "at offset 9: 6 is no type of value"),
        (
            b"REDIS0010\xfc\x01\x00\x00\x00\x00\x00\x00\x00\xff",
            "at offset 18: an expiry that no key",
        ),
        (
            b"REDIS0010\x00\x01k\x7f\xff",
            "at offset 12, in the value of key \"k\": the file ends here",
        ),
        (
            b"REDIS0010\x0b\x01s\x0a\x02\0\0\0\x02\0\0\0\x07\0",
            "at offset 12, in the value of key \"s\": a",
        ),
        (
            b"REDIS0010\xff\x01\0\0\0\0\0\0\0",
            "at offset 9: the file is damaged: its checksum says 0000",
        ),
    ];
    for (file, wanted) in cases {
        let mut reader = Reader::new(Some(file.len() as u64));
        reader.feed(file);
        let error = loop {
            match reader.next() {
                Ok(Step::Event(_)) => {}
                Ok(other) => panic!("{other:?}, not {wanted}"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.starts_with(wanted), "{error}, not {wanted}");
    }
    // No checksum: of a server that was told to write none, and of one that had none.
    let unchecked = [Event::Version(10), Event::End { checked: false }];
    assert_eq!(read_whole(b"REDIS0010\xff\0\0\0\0\0\0\0\0"), Ok(unchecked.into()));
    let old = [Event::Version(3), Event::End { checked: false }];
    assert_eq!(read_whole(b"REDIS0003\xff"), Ok(old.into()));
}

#[test]
fn entries_of_a_stream_ascend() {
    // Two nodes of one entry each with the same id.
    let node = b"\x10\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\x1d\x1d\0\0\0\x0a\0\x01\x01\0\x01\x01\x01\x81a\x02\0\x01\
        \x02\x01\0\x01\0\x01\x81b\x02\x04\x01\xff";
    let about = b"\x05\0\x05\0\0\0\x02\0";
    let once = file("0010", &[b"\x13\x01x\x01", node, b"\x01", about]);
    let events = read_whole(&once).unwrap();
    let id = quorate_rdb::StreamId { ms: 5, seq: 0 };
    let entry = Item::Entry { id, items: vec![b"a".into(), b"b".into()] };
    assert_eq!(events[2], Event::Item(entry));
    let twice = file("0010", &[b"\x13\x01x\x02", node, node, b"\x02", about]);
    let error = read_whole(&twice).unwrap_err();
    assert!(matches!(error.problem, Problem::Damaged(what) if what.contains("entries")), "{error}");
}

/// What `DUMP` would answer for a value.
fn payload(value: &Value, version: u16, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = [&[value.form as u8][..], &encode(value, rng), &version.to_le_bytes()].concat();
    bytes.extend_from_slice(&crc64(&bytes).to_le_bytes());
    bytes
}

#[test]
fn what_is_written_is_read() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut file, mut wanted) = (Vec::new(), Vec::new());
        let mut writer = Writer::new(&mut file);
        writer.aux(b"quorate-ver", b"0.1", &mut file);
        writer.database(300, 9, &mut file);
        let mut version = 10;
        for _ in 0..rng.below(20) {
            let newest = if seed % 2 == 0 { Form::ALL.len() } else { Form::ALL.len() - 6 };
            let form = Form::ALL[rng.below(newest as u64) as usize];
            version = version.max(form.version());
            let value = draw(form, &mut rng);
            let payload = payload(&value, version, &mut rng);
            let name = draw_string(&mut rng);
            let expire_at_ms = (rng.below(2) == 0).then(|| rng.next_u64() >> 1);
            let parsed = Payload::parse(&payload).unwrap();
            writer.key(&name, expire_at_ms, &parsed, &mut file);
            wanted.push(Event::Key(Key { name, form, expire_at_ms }));
            wanted.extend(value.items.into_iter().map(Event::Item));
            wanted.push(Event::KeyEnd);
        }
        match writer.finish(&mut file) {
            Some(header) => file[..header.len()].copy_from_slice(&header),
            None => assert_eq!(version, 10),
        }
        wanted.push(Event::End { checked: true });
        let events = read_whole(&file).unwrap();
        assert_eq!(events[0], Event::Version(version));
        assert!(events[4..] == wanted, "seed {seed}");
    }
}

/// A key that is written over is no key any more, and what stands before and behind it is as it was; so is
/// the checksum, whose bytes nobody has read again.
#[test]
fn a_key_that_was_written_over_is_in_the_file_no_longer() {
    // Around the lengths where a length takes more bytes, and the least that a key takes.
    let lengths = (0..200).chain(16_370..16_400).chain([70_000]);
    for length in lengths {
        let mut rng = Rng::new(length);
        let text = Item::String(b"x".repeat(length as usize));
        let value = Value { form: Form::String, items: vec![text] };
        let dumped = payload(&value, 10, &mut rng);
        let parsed = Payload::parse(&dumped).unwrap();
        let (mut file, mut places) = (Vec::new(), Vec::new());
        let mut writer = Writer::new(&mut file);
        for name in [&b"first"[..], b"", b"last"] {
            let begin = writer.length();
            writer.key(name, None, &parsed, &mut file);
            places.push(begin as usize..writer.length() as usize);
        }
        let place = places[1].clone();
        let before = file[place.clone()].to_vec();
        let mut after = blank(before.len() as u64).expect("a key takes so much");
        after.resize(before.len(), 0);
        file[place.clone()].copy_from_slice(&after);
        writer.exchanged(&before, &after, place.end as u64);
        writer.database_again(7, &mut file);
        writer.function(b"#!lua name=x\n", &mut file);
        assert_eq!(writer.finish(&mut file), None);
        let events = read_whole(&file).unwrap();
        let keys: Vec<_> = { events.iter() }
            .filter_map(|event| match event {
                Event::Key(key) => Some(key.name.as_slice()),
                _ => None,
            })
            .collect();
        assert_eq!(keys, [b"first".as_slice(), b"last"], "{length}");
        let end = [
            Event::Database(7),
            Event::Function(b"#!lua name=x\n".into()),
            Event::End { checked: true },
        ];
        assert!(events.ends_with(&end), "{length}");
    }
    for length in [0, 1, 2, (512 << 20) + 8] {
        assert_eq!(blank(length), None);
    }
}

#[test]
fn a_damaged_payload_is_not_written() {
    let mut rng = Rng::new(3);
    let value = Value { form: Form::List, items: vec![Item::Element(b"element".into())] };
    let whole = payload(&value, 10, &mut rng);
    assert!(Payload::parse(&whole).is_ok());
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(Payload::parse(&damaged).is_err(), "{at}");
        assert!(Payload::parse(&whole[..at]).is_err(), "{at}");
    }
    let newer = payload(&value, 13, &mut rng);
    assert!(Payload::parse(&newer).unwrap_err().to_string().contains("version 13"));
    // More than a value, or less.
    let resum = |body: &[u8]| {
        let mut bytes = [body, &[10, 0]].concat();
        bytes.extend_from_slice(&crc64(&bytes).to_le_bytes());
        bytes
    };
    let body = &whole[..whole.len() - 10];
    assert!(Payload::parse(&resum(body)).is_ok());
    assert!(Payload::parse(&resum(&[body, b"\0"].concat())).is_err());
    assert!(Payload::parse(&resum(&body[..body.len() - 1])).is_err());
}
