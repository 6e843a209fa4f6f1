//! One key as commands: what it holds in pieces, and then what is known of it besides.

use quorate_rdb::{Item, Key, Kind, StreamId};

use crate::transfer::command;

/// Items and bytes of one command, about: a collection goes out in pieces of this size.
const PIECE_ITEMS_MAX: u64 = 512;
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// What a command should answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expect {
    /// No error.
    Done,
    /// So many were added.
    Added(u64),
    /// The list has so many elements now.
    Length(u64),
    /// So many entries are pending for the consumer now; those that are missing are deleted.
    Claimed(u64),
    /// The expiries of so many fields were set.
    Expiries(u64),
}

/// Commands on their way out.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) bytes: Vec<u8>,
    pub(super) expected: Vec<Expect>,
}

impl Commands {
    pub(super) fn add(&mut self, words: &[&[u8]], expect: Expect) {
        command(words.iter().copied(), &mut self.bytes);
        self.expected.push(expect);
    }
}

/// Whether a key's items are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Sent,
    /// They are left out, which has been counted.
    LeftOut,
}

/// The key whose items are being read, if there is one.
#[derive(Default)]
pub(super) struct Writing {
    pub(super) current: Option<Current>,
}

impl Writing {
    pub(super) fn is_within_a_key(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn name(&self) -> Option<&[u8]> {
        self.current.as_ref().map(|current| &current.name[..])
    }

    /// Leaves out the rest of the key of this number, if it is the one that is being read.
    pub(super) fn leave_out(&mut self, index: usize) {
        if let Some(current) = self.current.as_mut().filter(|current| current.index == index) {
            current.state = State::LeftOut;
        }
    }
}

/// A key whose items are being read.
pub(super) struct Current {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    /// Which one it is of those that were read since the checkpoint.
    pub(super) index: usize,
    pub(super) state: State,
    pub(super) expire_at_ms: Option<u64>,
    /// How many items were read that are sent.
    pub(super) items: u64,
    /// How many fields were left out that had expired.
    pub(super) fields_expired: u64,
    /// Whether any of the others expires.
    fields_expire: bool,
    /// What the next command will add.
    piece: Vec<Vec<u8>>,
    piece_items: u64,
    piece_bytes: usize,
    /// Fields of the piece that expire, and when.
    expiring: Vec<(Vec<u8>, u64)>,
    /// The group and the consumer of a stream that were read last.
    group: Vec<u8>,
    consumer: Vec<u8>,
    /// Entries that are pending for it, all of which were delivered at the same time and as often.
    claims: Vec<StreamId>,
    delivered: (u64, u64),
}

impl Current {
    pub(super) fn new(key: Key, index: usize) -> Self {
        let kind = key.kind();
        Self {
            name: key.name,
            kind,
            index,
            state: State::Sent,
            expire_at_ms: key.expire_at_ms,
            items: 0,
            fields_expired: 0,
            fields_expire: false,
            piece: Vec::new(),
            piece_items: 0,
            piece_bytes: 0,
            expiring: Vec::new(),
            group: Vec::new(),
            consumer: Vec::new(),
            claims: Vec::new(),
            delivered: (0, 0),
        }
    }

    /// Takes a part of what the key holds.
    ///
    /// # Errors
    /// Why the target won't take it.
    pub(super) fn take(
        &mut self,
        item: Item,
        now_ms: u64,
        string_bytes_max: u64,
        out: &mut Commands,
    ) -> Result<(), String> {
        match item {
            Item::String(value) => {
                fits([&value], string_bytes_max)?;
                self.items = 1;
                match self.expire_at_ms {
                    Some(at) => {
                        let at = at.to_string();
                        let words = [b"SET", &self.name[..], &value, b"PXAT", at.as_bytes()];
                        out.add(&words, Expect::Done);
                    }
                    None => out.add(&[b"SET", &self.name, &value], Expect::Done),
                }
            }
            Item::Element(element) => {
                fits([&element], string_bytes_max)?;
                self.piece([element], out);
            }
            Item::Field { expire_at_ms: Some(at), .. } if at <= now_ms => self.fields_expired += 1,
            Item::Field { name, value, expire_at_ms } => {
                fits([&name, &value], string_bytes_max)?;
                if let Some(at) = expire_at_ms {
                    self.fields_expire = true;
                    self.expiring.push((name.clone(), at));
                }
                self.piece([name, value], out);
            }
            Item::Member { member, score } => {
                fits([&member], string_bytes_max)?;
                self.piece([format!("{score:?}").into_bytes(), member], out);
            }
            Item::Entry { id, items } => {
                fits(&items, string_bytes_max)?;
                let id = text(id);
                let mut words: Vec<&[u8]> = vec![b"XADD", &self.name, id.as_bytes()];
                words.extend(items.iter().map(|item| &item[..]));
                out.add(&words, Expect::Done);
                self.items += 1;
            }
            Item::Stream { length, last, max_deleted, added } => {
                self.about_stream(length, last, max_deleted.zip(added), out);
            }
            Item::Group { name, last, read } => {
                self.claim(out);
                let (last, read) = (text(last), read.map(|read| read.to_string()));
                let mut words: Vec<&[u8]> =
                    vec![b"XGROUP", b"CREATE", &self.name, &name, last.as_bytes()];
                if let Some(read) = &read {
                    words.extend([&b"ENTRIESREAD"[..], read.as_bytes()]);
                }
                out.add(&words, Expect::Done);
                self.group = name;
            }
            Item::Consumer(name) => {
                self.claim(out);
                let words = [b"XGROUP", &b"CREATECONSUMER"[..], &self.name, &self.group, &name];
                out.add(&words, Expect::Done);
                self.consumer = name;
            }
            Item::Pending { id, delivered_ms, count } => {
                let is_full = self.claims.len() as u64 == PIECE_ITEMS_MAX;
                if self.delivered != (delivered_ms, count) || is_full {
                    self.claim(out);
                }
                self.delivered = (delivered_ms, count);
                self.claims.push(id);
            }
        }
        Ok(())
    }

    /// Whether it may be shorter than it was written, or gone, without anybody's doing.
    pub(super) fn expires(&self) -> bool {
        self.expire_at_ms.is_some() || self.fields_expire
    }

    /// What is left, and the expiry.
    pub(super) fn finish(&mut self, out: &mut Commands) {
        self.flush(out);
        self.claim(out);
        let at = self.expire_at_ms.filter(|_| self.kind != Kind::String);
        if let Some(at) = at {
            let at = at.to_string();
            out.add(&[b"PEXPIREAT", &self.name, at.as_bytes()], Expect::Done);
        }
    }

    fn piece<const N: usize>(&mut self, parts: [Vec<u8>; N], out: &mut Commands) {
        self.piece_bytes += parts.iter().map(Vec::len).sum::<usize>();
        self.piece.extend(parts);
        self.piece_items += 1;
        self.items += 1;
        if self.piece_items == PIECE_ITEMS_MAX || self.piece_bytes >= PIECE_BYTES_MAX {
            self.flush(out);
        }
    }

    /// Sends the piece.
    fn flush(&mut self, out: &mut Commands) {
        let (name, expect): (&[u8], _) = match self.kind {
            _ if self.piece_items == 0 => return,
            Kind::List => (b"RPUSH", Expect::Length(self.items)),
            Kind::Set => (b"SADD", Expect::Added(self.piece_items)),
            Kind::Hash => (b"HSET", Expect::Added(self.piece_items)),
            Kind::SortedSet => (b"ZADD", Expect::Added(self.piece_items)),
            Kind::String | Kind::Stream | Kind::Module => return,
        };
        let piece = std::mem::take(&mut self.piece);
        (self.piece_items, self.piece_bytes) = (0, 0);
        let mut words = vec![name, &self.name];
        words.extend(piece.iter().map(|part| &part[..]));
        out.add(&words, expect);
        let expiring = std::mem::take(&mut self.expiring);
        for fields in expiring.chunk_by(|(_, one), (_, other)| one == other) {
            let (at, count) = (fields[0].1.to_string(), fields.len().to_string());
            let mut words: Vec<&[u8]> = vec![b"HPEXPIREAT", &self.name, at.as_bytes()];
            words.extend([&b"FIELDS"[..], count.as_bytes()]);
            words.extend(fields.iter().map(|(field, _)| &field[..]));
            out.add(&words, Expect::Expiries(fields.len() as u64));
        }
    }

    fn about_stream(
        &mut self,
        length: u64,
        last: StreamId,
        counted: Option<(StreamId, u64)>,
        out: &mut Commands,
    ) {
        if length == 0 {
            // An entry that is trimmed at once leaves an empty stream behind. None has the id 0-0.
            let id = text(last.max(StreamId { ms: 0, seq: 1 }));
            let words = [b"XADD", &self.name[..], b"MAXLEN", b"0", id.as_bytes(), b"x", b"y"];
            out.add(&words, Expect::Done);
        }
        let last = text(last);
        let mut words: Vec<&[u8]> = vec![b"XSETID", &self.name, last.as_bytes()];
        let counted = counted.map(|(max_deleted, added)| (text(max_deleted), added.to_string()));
        if let Some((max_deleted, added)) = &counted {
            words.extend([&b"ENTRIESADDED"[..], added.as_bytes()]);
            words.extend([&b"MAXDELETEDID"[..], max_deleted.as_bytes()]);
        }
        out.add(&words, Expect::Done);
    }

    /// Sends which entries are pending for the consumer.
    fn claim(&mut self, out: &mut Commands) {
        if self.claims.is_empty() {
            return;
        }
        let ids: Vec<_> = std::mem::take(&mut self.claims).into_iter().map(text).collect();
        let (time, count) = (self.delivered.0.to_string(), self.delivered.1.to_string());
        let mut words: Vec<&[u8]> = vec![b"XCLAIM", &self.name, &self.group, &self.consumer, b"0"];
        words.extend(ids.iter().map(|id| id.as_bytes()));
        words.extend([b"TIME", time.as_bytes(), b"RETRYCOUNT", count.as_bytes()]);
        words.extend([&b"FORCE"[..], b"JUSTID"]);
        out.add(&words, Expect::Claimed(ids.len() as u64));
    }
}

fn text(id: StreamId) -> String {
    format!("{}-{}", id.ms, id.seq)
}

/// Whether the target takes strings of these lengths.
fn fits<'a>(
    parts: impl IntoIterator<Item = &'a Vec<u8>>,
    string_bytes_max: u64,
) -> Result<(), String> {
    let longest = parts.into_iter().map(|part| part.len() as u64).max().unwrap_or(0);
    if longest > string_bytes_max {
        return Err(format!(
            "it has a string of {longest} bytes, and the target takes {string_bytes_max} at most \
             (proto-max-bulk-len)"
        ));
    }
    Ok(())
}
