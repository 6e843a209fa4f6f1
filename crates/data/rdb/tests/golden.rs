//! A file that Redis 7.0 wrote, and what the reader tells of it.

use std::fmt::Write as _;
use std::path::Path;

use quorate_rdb::{Event, Item, Reader, Step, StreamId};

fn text(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

fn id(id: StreamId) -> String {
    format!("{}-{}", id.ms, id.seq)
}

fn show(event: &Event) -> String {
    match event {
        Event::Version(version) => format!("version {version}"),
        Event::Aux { name, value } => format!("aux {} {}", text(name), text(value)),
        Event::Function(source) => format!("function {}", text(source)),
        Event::ModuleAux(name) => format!("module {name}"),
        Event::Database(number) => format!("database {number}"),
        Event::Sizes { keys, expiring } => format!("sizes {keys} {expiring}"),
        Event::Key(key) => {
            let expiry = key.expire_at_ms.map_or(String::new(), |at| format!(" until {at}"));
            format!("key {} {:?}{expiry}", text(&key.name), key.form)
        }
        Event::Item(item) => format!("  {}", show_item(item)),
        Event::KeyEnd => "end of the key".into(),
        Event::End { checked } => format!("end, checked: {checked}"),
    }
}

fn show_item(item: &Item) -> String {
    match item {
        Item::String(value) | Item::Element(value) => text(value),
        Item::Field { name, value, expire_at_ms } => {
            let expiry = expire_at_ms.map_or(String::new(), |at| format!(" until {at}"));
            format!("{}: {}{expiry}", text(name), text(value))
        }
        Item::Member { member, score } => format!("{} {score}", text(member)),
        Item::Entry { id: of, items } => {
            let items: Vec<_> = items.iter().map(|item| text(item)).collect();
            format!("{} {}", id(*of), items.join(" "))
        }
        Item::Stream { length, last, max_deleted, added } => {
            let max_deleted = max_deleted.map(id);
            format!("length {length}, last {}, deleted {max_deleted:?}, added {added:?}", id(*last))
        }
        Item::Group { name, last, read } => {
            format!("group {}, last {}, read {read:?}", text(name), id(*last))
        }
        Item::Consumer(name) => format!("consumer {}", text(name)),
        Item::Pending { id: of, delivered_ms, count } => {
            format!("pending {} since {delivered_ms}, {count} times", id(*of))
        }
    }
}

#[test]
fn a_file_of_redis_is_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = std::fs::read(directory.join("redis-7.0.rdb")).unwrap();
    let (mut reader, mut shown) = (Reader::new(Some(file.len() as u64)), String::new());
    reader.feed(&file);
    while let Step::Event(event) = reader.next().unwrap() {
        writeln!(shown, "{}", show(&event)).unwrap();
    }
    let golden = directory.join("redis-7.0.txt");
    if std::env::var_os("QUORATE_BLESS").is_some() {
        std::fs::write(&golden, &shown).unwrap();
    }
    assert_eq!(shown, std::fs::read_to_string(golden).unwrap());
}

/// From every place between two keys the rest is read as it was, up to the checksum of all of it.
#[test]
fn a_bookmark_goes_on_where_it_was_made() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = std::fs::read(directory.join("redis-7.0.rdb")).unwrap();
    let (mut reader, mut bookmarks, mut events) = (Reader::new(None), Vec::new(), Vec::new());
    reader.feed(&file);
    while let Step::Event(event) = reader.next().unwrap() {
        events.push(event);
        bookmarks.push((events.len(), reader.bookmark()));
    }
    for (told, mut reader) in bookmarks {
        reader.feed(&file[reader.offset() as usize..]);
        let mut rest = events[told..].iter();
        while let Step::Event(event) = reader.next().unwrap() {
            assert_eq!(Some(&event), rest.next());
        }
        assert_eq!(rest.next(), None);
    }
}
