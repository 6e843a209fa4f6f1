//! Writes values in every form that any Redis had, for the reader's tests.

use quorate_machine::Rng;
use quorate_rdb::{Form, Item, Listpack, StreamId, format_integer, write_length, write_number};

/// A value, as the items that a reader tells.
pub(crate) struct Value {
    pub(crate) form: Form,
    pub(crate) items: Vec<Item>,
}

fn text(number: i64) -> Vec<u8> {
    format_integer(number, &mut [0; 20]).to_vec()
}

/// A string: an integer of any width, or bytes that repeat themselves or don't.
pub(crate) fn draw_string(rng: &mut Rng) -> Vec<u8> {
    match rng.below(8) {
        0 => Vec::new(),
        1 => text(rng.next_u64() as i64 >> rng.below(64)),
        2 => b"abc".repeat(rng.below(200) as usize),
        3 => (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect(),
        4 if rng.below(10) == 0 => vec![b'x'; rng.below(20_000) as usize],
        _ => (0..rng.below(20)).map(|_| b'a' + rng.below(26) as u8).collect(),
    }
}

fn draw_many<T>(rng: &mut Rng, mut draw: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    let count = if rng.below(20) == 0 { 300 } else { 1 + rng.below(8) };
    (0..count).map(|_| draw(rng)).collect()
}

fn draw_score(rng: &mut Rng) -> f64 {
    match rng.below(5) {
        0 => f64::INFINITY,
        1 => f64::NEG_INFINITY,
        2 => rng.below(1000) as f64 - 500.0,
        _ => (rng.next_u64() as i64 >> 11) as f64 / 1024.0,
    }
}

/// A value in this form.
pub(crate) fn draw(form: Form, rng: &mut Rng) -> Value {
    let element = |rng: &mut Rng| Item::Element(draw_string(rng));
    let items = match form {
        Form::String => vec![Item::String(draw_string(rng))],
        Form::List
        | Form::Set
        | Form::ListZiplist
        | Form::ListZiplists
        | Form::ListListpacks
        | Form::SetListpack => draw_many(rng, element),
        Form::SetIntegers => {
            let width = rng.below(60);
            let mut numbers = draw_many(rng, |rng| rng.next_u64() as i64 >> width);
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into_iter().map(|number| Item::Element(text(number))).collect()
        }
        Form::Hash | Form::HashZipmap | Form::HashZiplist | Form::HashListpack => {
            draw_many(rng, |rng| Item::Field {
                name: draw_string(rng),
                value: draw_string(rng),
                expire_at_ms: None,
            })
        }
        Form::HashExpiring
        | Form::HashExpiringEarly
        | Form::HashListpackExpiring
        | Form::HashListpackExpiringEarly => draw_many(rng, |rng| {
            let expire_at_ms = (rng.below(3) > 0).then(|| 1 + rng.below(1 << 48));
            Item::Field { name: draw_string(rng), value: draw_string(rng), expire_at_ms }
        }),
        Form::SortedSet
        | Form::SortedSetText
        | Form::SortedSetZiplist
        | Form::SortedSetListpack => {
            draw_many(rng, |rng| Item::Member { member: draw_string(rng), score: draw_score(rng) })
        }
        Form::Stream | Form::StreamUncounted | Form::StreamActive => draw_stream(form, rng),
        Form::Module => Vec::new(),
    };
    Value { form, items }
}

fn draw_stream(form: Form, rng: &mut Rng) -> Vec<Item> {
    let (mut items, mut last) = (Vec::new(), StreamId { ms: rng.below(100), seq: 0 });
    let mut ids = Vec::new();
    for _ in 0..rng.below(30) {
        last = match rng.below(2) {
            0 => StreamId { ms: last.ms, seq: last.seq + 2 * (1 + rng.below(3)) },
            _ => StreamId { ms: last.ms + 1 + rng.below(1 << 40), seq: 2 * rng.below(3) },
        };
        ids.push(last);
        let fields = 1 + rng.below(3);
        let parts = (0..2 * fields).map(|at| match at % 2 {
            0 if rng.below(3) > 0 => text(at as i64),
            _ => draw_string(rng),
        });
        items.push(Item::Entry { id: last, items: parts.collect() });
    }
    let counted = form != Form::StreamUncounted;
    // A deleted one may stand behind the last.
    last.seq += 1;
    items.push(Item::Stream {
        length: ids.len() as u64,
        last,
        max_deleted: counted.then(|| StreamId { ms: rng.below(9), seq: rng.below(9) }),
        added: counted.then(|| ids.len() as u64 + rng.below(9)),
    });
    for group in 0..rng.below(3) {
        let read = Some(rng.below(9)).filter(|read| counted && *read > 0);
        items.push(Item::Group { name: text(group as i64), last, read });
        let consumers = rng.below(3);
        for consumer in 0..consumers {
            items.push(Item::Consumer(text(consumer as i64)));
            let its_own = ids.iter().skip(consumer as usize).step_by(consumers as usize);
            for id in its_own {
                if rng.below(2) == 0 {
                    continue;
                }
                let (delivered_ms, count) = (rng.next_u64(), rng.below(1000));
                items.push(Item::Pending { id: *id, delivered_ms, count });
            }
        }
    }
    items
}

/// Writes a string in one of its forms.
fn string(bytes: &[u8], rng: &mut Rng, out: &mut Vec<u8>) {
    match rng.below(3) {
        0 => {
            write_length(bytes.len(), out);
            out.extend_from_slice(bytes);
        }
        1 if !bytes.is_empty() => {
            let compressed = compress(bytes);
            out.push(0xc3);
            write_length(compressed.len(), out);
            write_length(bytes.len(), out);
            out.extend_from_slice(&compressed);
        }
        _ => quorate_rdb::write_string(bytes, out),
    }
}

/// LZF: what was there one to twenty bytes before is copied, all else stands as it is.
fn compress(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let longest = (1..=at.min(20)).map(|distance| {
            let same = (at..bytes.len().min(at + 264))
                .take_while(|&here| bytes[here] == bytes[here - distance])
                .count();
            (same, distance)
        });
        match longest.max_by_key(|(same, _)| *same).filter(|(same, _)| *same >= 3) {
            Some((same, distance)) => {
                let low = distance - 1;
                if same < 9 {
                    out.push(((same - 2) << 5) as u8 | (low >> 8) as u8);
                } else {
                    out.extend_from_slice(&[0xe0 | (low >> 8) as u8, (same - 9) as u8]);
                }
                out.push(low as u8);
                at += same;
            }
            None => {
                out.extend_from_slice(&[0, bytes[at]]);
                at += 1;
            }
        }
    }
    out
}

fn packed(elements: &[Vec<u8>]) -> Vec<u8> {
    let mut listpack = Listpack::new();
    elements.iter().for_each(|element| listpack.push(element));
    listpack.finish()
}

fn ziplist(elements: &[Vec<u8>]) -> Vec<u8> {
    let (mut body, mut before, mut tail) = (Vec::new(), 0_usize, 10);
    for element in elements {
        tail = 10 + body.len();
        let begin = body.len();
        match before {
            0..0xfe => body.push(before as u8),
            _ => {
                body.push(0xfe);
                body.extend_from_slice(&(before as u32).to_le_bytes());
            }
        }
        match quorate_rdb::parse_integer(element) {
            Some(number @ 0..=12) => body.push(0xf1 + number as u8),
            Some(number) if i8::try_from(number).is_ok() => {
                body.extend_from_slice(&[0xfe, number as u8]);
            }
            Some(number) => {
                let (mark, width) = match number {
                    -0x8000..=0x7fff => (0xc0, 2),
                    -0x80_0000..=0x7f_ffff => (0xf0, 3),
                    -0x8000_0000..=0x7fff_ffff => (0xd0, 4),
                    _ => (0xe0, 8),
                };
                body.push(mark);
                body.extend_from_slice(&number.to_le_bytes()[..width]);
            }
            None => {
                match element.len() {
                    length @ 0..64 => body.push(length as u8),
                    length @ 64..0x4000 => {
                        body.extend_from_slice(&[0x40 | (length >> 8) as u8, length as u8]);
                    }
                    length => {
                        body.push(0x80);
                        body.extend_from_slice(&(length as u32).to_be_bytes());
                    }
                }
                body.extend_from_slice(element);
            }
        }
        before = body.len() - begin;
    }
    let mut out = Vec::new();
    out.extend_from_slice(&(10 + body.len() as u32 + 1).to_le_bytes());
    out.extend_from_slice(&(tail as u32).to_le_bytes());
    out.extend_from_slice(&(elements.len() as u16).to_le_bytes());
    out.extend_from_slice(&body);
    out.push(0xff);
    out
}

fn zipmap(elements: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![(elements.len() / 2).min(254) as u8];
    for (at, element) in elements.iter().enumerate() {
        match element.len() {
            length @ 0..254 => out.push(length as u8),
            length => {
                out.push(254);
                out.extend_from_slice(&(length as u32).to_le_bytes());
            }
        }
        let unused = if at % 2 == 1 { rng.below(4) as u8 } else { 0 };
        if at % 2 == 1 {
            out.push(unused);
        }
        out.extend_from_slice(element);
        out.extend(std::iter::repeat_n(0, unused.into()));
    }
    out.push(255);
    out
}

fn integers(elements: &[Vec<u8>]) -> Vec<u8> {
    let numbers: Vec<i64> = elements
        .iter()
        .map(|element| quorate_rdb::parse_integer(element).expect("a number"))
        .collect();
    let fits =
        |bits: u32| numbers.iter().all(|number| number << (64 - bits) >> (64 - bits) == *number);
    let width = [2_u32, 4].into_iter().find(|width| fits(8 * width)).unwrap_or(8);
    let mut out = [width.to_le_bytes(), (numbers.len() as u32).to_le_bytes()].concat();
    numbers
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()[..width as usize]));
    out
}

/// The strings of all items: what a packed collection has.
fn elements(items: &[Item]) -> Vec<Vec<u8>> {
    let parts = items.iter().flat_map(|item| match item {
        Item::Element(element) | Item::String(element) => vec![element.clone()],
        Item::Field { name, value, .. } => vec![name.clone(), value.clone()],
        Item::Member { member, score } => vec![member.clone(), format!("{score}").into_bytes()],
        other => panic!("{other:?} is in no packed collection"),
    });
    parts.collect()
}

/// A module's value with one part of each kind.
const MODULE: &[u8] =
    b"\x81\x12\x34\x56\x78\x9a\xbc\xde\xf0\x01\x05\x02\x40\x99\x03abcd\x04abcdefgh\x05\x02hi\x00";

/// Writes a value, without the byte of its form.
pub(crate) fn encode(value: &Value, rng: &mut Rng) -> Vec<u8> {
    let (items, mut out) = (&value.items, Vec::new());
    let out = &mut out;
    let expiry = |item: &Item| match item {
        Item::Field { expire_at_ms, .. } => expire_at_ms.unwrap_or(0),
        _ => 0,
    };
    let earliest = items.iter().map(expiry).filter(|at| *at > 0).min().unwrap_or(0);
    match value.form {
        Form::String => string(&elements(items)[0], rng, out),
        Form::List | Form::Set | Form::Hash => {
            write_length(items.len(), out);
            elements(items).iter().for_each(|part| string(part, rng, out));
        }
        Form::SortedSet | Form::SortedSetText => {
            write_length(items.len(), out);
            for item in items {
                let Item::Member { member, score } = item else { panic!("a member") };
                string(member, rng, out);
                match *score {
                    score if value.form == Form::SortedSet => {
                        out.extend_from_slice(&score.to_le_bytes());
                    }
                    f64::INFINITY => out.push(254),
                    f64::NEG_INFINITY => out.push(255),
                    score => {
                        let text = format!("{score}");
                        out.push(text.len() as u8);
                        out.extend_from_slice(text.as_bytes());
                    }
                }
            }
        }
        Form::HashExpiring | Form::HashExpiringEarly => {
            let is_early = value.form == Form::HashExpiringEarly;
            if !is_early {
                out.extend_from_slice(&earliest.to_le_bytes());
            }
            write_length(items.len(), out);
            for item in items {
                let at = expiry(item);
                write_number(if at == 0 || is_early { at } else { at - earliest + 1 }, out);
                elements(std::slice::from_ref(item)).iter().for_each(|part| string(part, rng, out));
            }
        }
        Form::HashListpackExpiring | Form::HashListpackExpiringEarly => {
            if value.form == Form::HashListpackExpiring {
                out.extend_from_slice(&earliest.to_le_bytes());
            }
            let parts = items.iter().flat_map(|item| {
                let mut parts = elements(std::slice::from_ref(item));
                parts.push(text(expiry(item) as i64));
                parts
            });
            string(&packed(&parts.collect::<Vec<_>>()), rng, out);
        }
        Form::HashZipmap => string(&zipmap(&elements(items), rng), rng, out),
        Form::SetIntegers => string(&integers(&elements(items)), rng, out),
        Form::ListZiplist | Form::HashZiplist | Form::SortedSetZiplist => {
            string(&ziplist(&elements(items)), rng, out);
        }
        Form::HashListpack | Form::SortedSetListpack | Form::SetListpack => {
            string(&packed(&elements(items)), rng, out);
        }
        Form::ListZiplists | Form::ListListpacks => {
            let nodes: Vec<_> = items.chunks(1 + rng.below(4) as usize).collect();
            write_length(nodes.len(), out);
            for node in nodes {
                let node = elements(node);
                match (value.form, &node[..]) {
                    (Form::ListZiplists, node) => string(&ziplist(node), rng, out),
                    (_, [element]) => {
                        write_length(1, out);
                        string(element, rng, out);
                    }
                    (_, node) => {
                        write_length(2, out);
                        string(&packed(node), rng, out);
                    }
                }
            }
        }
        Form::Stream | Form::StreamUncounted | Form::StreamActive => stream(value, rng, out),
        Form::Module => out.extend_from_slice(MODULE),
    }
    std::mem::take(out)
}

fn raw_id(id: StreamId) -> [u8; 16] {
    (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes()
}

fn write_id(id: StreamId, out: &mut Vec<u8>) {
    write_number(id.ms, out);
    write_number(id.seq, out);
}

fn stream(value: &Value, rng: &mut Rng, out: &mut Vec<u8>) {
    let is_entry = |item: &&Item| matches!(item, Item::Entry { .. });
    let count = value.items.iter().take_while(is_entry).count();
    let (entries, rest) = value.items.split_at(count);
    let nodes: Vec<_> = entries.chunks(1 + rng.below(9) as usize).collect();
    write_length(nodes.len(), out);
    for node in nodes {
        write_node(node, rng, out);
    }
    let (about, groups) = rest.split_first().expect("a stream");
    let Item::Stream { length, last, max_deleted, added } = about else { panic!("{about:?}") };
    write_number(*length, out);
    write_id(*last, out);
    if let (Some(max_deleted), Some(added)) = (max_deleted, added) {
        write_id(StreamId::default(), out);
        write_id(*max_deleted, out);
        write_number(*added, out);
    }
    let begins = |item: &Item| matches!(item, Item::Group { .. });
    write_length(groups.iter().filter(|item| begins(item)).count(), out);
    let mut rest = groups;
    while let [group, more @ ..] = rest {
        let end = more.iter().position(begins).unwrap_or(more.len());
        write_group(value.form, group, &more[..end], out);
        rest = &more[end..];
    }
}

fn write_node(entries: &[Item], rng: &mut Rng, out: &mut Vec<u8>) {
    let of = |item: &Item| match item {
        Item::Entry { id, items } => (*id, items.clone()),
        other => panic!("{other:?} is no entry"),
    };
    let (first, parts) = of(&entries[0]);
    let names: Vec<_> = parts.iter().step_by(2).cloned().collect();
    let mut listpack = Listpack::new();
    let put = |number: i64, listpack: &mut Listpack| listpack.push(&text(number));
    // Some have a deleted entry behind the first one. The reader leaves it out.
    let deleted = rng.below(2) as i64;
    for number in [entries.len() as i64, deleted, names.len() as i64] {
        put(number, &mut listpack);
    }
    names.iter().for_each(|name| listpack.push(name));
    put(0, &mut listpack);
    for (at, entry) in entries.iter().enumerate() {
        let (id, parts) = of(entry);
        let is_same = parts.iter().step_by(2).eq(&names);
        put(if is_same { 2 } else { 0 }, &mut listpack);
        put(id.ms.wrapping_sub(first.ms) as i64, &mut listpack);
        put(id.seq.wrapping_sub(first.seq) as i64, &mut listpack);
        let count = parts.len() as i64 / 2;
        if !is_same {
            put(count, &mut listpack);
        }
        let kept = parts.iter().enumerate().filter(|(at, _)| !is_same || at % 2 == 1);
        kept.for_each(|(_, part)| listpack.push(part));
        put(if is_same { count + 3 } else { 2 * count + 4 }, &mut listpack);
        if deleted == 1 && at == 0 {
            // Numbers are drawn even, so that this one is free.
            put(3, &mut listpack);
            put(0, &mut listpack);
            put(1, &mut listpack);
            names.iter().for_each(|_| listpack.push(b"gone"));
            put(names.len() as i64 + 3, &mut listpack);
        }
    }
    string(&raw_id(first), rng, out);
    string(&listpack.finish(), rng, out);
}

fn write_group(form: Form, group: &Item, members: &[Item], out: &mut Vec<u8>) {
    let Item::Group { name, last, read } = group else { panic!("{group:?} is no group") };
    quorate_rdb::write_string(name, out);
    write_id(*last, out);
    if form != Form::StreamUncounted {
        write_number(read.unwrap_or(u64::MAX), out);
    }
    let mut pending: Vec<_> = members
        .iter()
        .filter_map(|item| match item {
            Item::Pending { id, delivered_ms, count } => Some((*id, *delivered_ms, *count)),
            _ => None,
        })
        .collect();
    pending.sort_unstable();
    write_length(pending.len(), out);
    for (id, delivered_ms, count) in pending {
        out.extend_from_slice(&raw_id(id));
        out.extend_from_slice(&delivered_ms.to_le_bytes());
        write_number(count, out);
    }
    let is_consumer = |item: &Item| matches!(item, Item::Consumer(_));
    write_length(members.iter().filter(|item| is_consumer(item)).count(), out);
    let mut rest = members;
    while let [Item::Consumer(name), more @ ..] = rest {
        let end = more.iter().position(is_consumer).unwrap_or(more.len());
        quorate_rdb::write_string(name, out);
        out.extend_from_slice(&[7; 16][..if form == Form::StreamActive { 16 } else { 8 }]);
        write_length(end, out);
        for item in &more[..end] {
            let Item::Pending { id, .. } = item else { panic!("{item:?} is not pending") };
            out.extend_from_slice(&raw_id(*id));
        }
        rest = &more[end..];
    }
}
