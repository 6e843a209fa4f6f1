//! The reader: bytes in, events out.

mod stream;
mod value;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use quorate_machine::mutant;

use crate::bytes::{Cursor, Stop};
use crate::crc::crc64_on;
use crate::error::{Error, Problem};
use crate::form::{Form, Kind, opcode, part};
use crate::limits::{STRING_BYTES_MAX, VERSION_MAX};
use stream::Streaming;
use value::Value;

/// What a file begins with.
pub(crate) const MAGIC: &[u8; 5] = b"REDIS";
/// From this version on a file ends with its checksum.
const VERSION_CHECKED: u16 = 5;

/// What the reader has to say.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// It needs at least so many bytes more.
    More(u64),
    /// What came next.
    Event(Event),
    /// The file has been read to its end.
    Done,
}

/// What stands in a file.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The version of the format.
    Version(u16),
    /// Something about the server that wrote it.
    Aux {
        /// What it is about.
        name: Vec<u8>,
        /// What it says.
        value: Vec<u8>,
    },
    /// The source of a library of functions.
    Function(Vec<u8>),
    /// Something that a module keeps beside keys, which is skipped. Its name.
    ModuleAux(String),
    /// The keys that follow are in this database.
    Database(u64),
    /// About how many keys follow, and how many of them expire.
    Sizes {
        /// All keys.
        keys: u64,
        /// Those that expire.
        expiring: u64,
    },
    /// A key. What it holds follows, item by item.
    Key(Key),
    /// A part of what the key holds.
    Item(Item),
    /// That was all that the key holds.
    KeyEnd,
    /// The end of the file.
    End {
        /// Whether the file has a checksum, which then is that of its bytes.
        checked: bool,
    },
}

/// A key, as it stands before its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// Its name.
    pub name: Vec<u8>,
    /// How its value is written.
    pub form: Form,
    /// When it expires, in milliseconds since 1970.
    pub expire_at_ms: Option<u64>,
}

impl Key {
    /// The type of its value.
    pub fn kind(&self) -> Kind {
        self.form.kind()
    }
}

/// The id of an entry of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[expect(missing_docs, reason = "milliseconds and number, as Redis calls them")]
pub struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

/// A part of a value.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// All of a string.
    String(Vec<u8>),
    /// The next element of a list, or a member of a set.
    Element(Vec<u8>),
    /// A field of a hash.
    Field {
        /// Its name.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// When it expires, in milliseconds since 1970.
        expire_at_ms: Option<u64>,
    },
    /// A member of a sorted set.
    Member {
        /// The member.
        member: Vec<u8>,
        /// Its score, which is a number.
        score: f64,
    },
    /// An entry of a stream, whose ids ascend.
    Entry {
        /// Its id.
        id: StreamId,
        /// Fields and values in turns.
        items: Vec<Vec<u8>>,
    },
    /// What a stream knows of itself, behind its entries.
    Stream {
        /// How many entries it has.
        length: u64,
        /// The last id that was given.
        last: StreamId,
        /// The greatest id that was deleted; from Redis 7.0 on.
        max_deleted: Option<StreamId>,
        /// How many entries it ever had; from Redis 7.0 on.
        added: Option<u64>,
    },
    /// A group of consumers of a stream.
    Group {
        /// Its name.
        name: Vec<u8>,
        /// The last id that it got.
        last: StreamId,
        /// How many entries it has read, if that is known.
        read: Option<u64>,
    },
    /// A consumer of the group named last.
    Consumer(Vec<u8>),
    /// An entry that the consumer named last has yet to acknowledge. They ascend.
    Pending {
        /// The entry, which may be deleted by now.
        id: StreamId,
        /// When it was delivered last, in milliseconds since 1970.
        delivered_ms: u64,
        /// How often it was delivered.
        count: u64,
    },
}

/// Why a step was not taken. Nothing has changed then.
enum Fault {
    Stop(Stop),
    Problem(Problem),
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

fn damaged<T>(what: &'static str) -> Result<T, Fault> {
    Err(Problem::Damaged(what).into())
}

/// Where the reader is.
#[derive(Clone, Debug)]
enum State {
    Header,
    /// Between keys.
    Between,
    /// Before a value.
    Begin(Form),
    Value(Value),
    /// Within what a module wrote for a key, or beside keys.
    Module {
        is_key: bool,
    },
    End,
}

/// Reads a file, in one pass.
#[derive(Clone, Debug)]
pub struct Reader {
    buffer: Vec<u8>,
    /// Bytes of the buffer that have been read.
    at: usize,
    /// Where in the file the byte behind these is.
    offset: u64,
    /// The length of the file, if it is known.
    total: Option<u64>,
    /// The checksum of what was read, if that is of a file.
    crc: Option<u64>,
    version: u16,
    state: State,
    /// The expiry that was said for the next key.
    expire_at_ms: Option<u64>,
    /// The key whose value is being read.
    key: Option<Vec<u8>>,
    /// Items that were read and not told yet.
    items: VecDeque<Item>,
    /// What is known of the stream that is being read.
    streaming: Streaming,
}

impl Reader {
    /// A reader at the beginning of a file. If its length is known, a string longer than the rest of the
    /// file is an error before it is looked for, and so is what comes behind the end.
    pub fn new(total: Option<u64>) -> Self {
        Self {
            buffer: Vec::new(),
            at: 0,
            offset: 0,
            total,
            crc: Some(0),
            version: 0,
            state: State::Header,
            expire_at_ms: None,
            key: None,
            items: VecDeque::new(),
            streaming: Streaming::default(),
        }
    }

    /// Gives it the next bytes of the file.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Where in the file what has been read ends.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// A reader that goes on from here once it is fed with what stands at [`Reader::offset`]. Between
    /// keys it is small.
    pub fn bookmark(&self) -> Self {
        let mut there = Self { buffer: Vec::new(), at: 0, ..Self::new(self.total) };
        (there.offset, there.crc, there.version) = (self.offset, self.crc, self.version);
        (there.state, there.expire_at_ms) = (self.state.clone(), self.expire_at_ms);
        (there.key, there.items) = (self.key.clone(), self.items.clone());
        there.streaming = self.streaming.clone();
        there
    }

    /// What comes next, if there are enough bytes for it.
    ///
    /// # Errors
    /// If Redis never writes such bytes. Nothing more can be read then.
    #[expect(clippy::should_implement_trait, reason = "an iterator can't ask for more bytes")]
    pub fn next(&mut self) -> Result<Step, Error> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Step::Event(Event::Item(item)));
            }
            if matches!(self.state, State::End) {
                let is_all = self.total.is_none_or(|total| total <= self.offset);
                return match is_all && self.buffer.len() == self.at {
                    true => Ok(Step::Done),
                    false => Err(self.error(Problem::Trailing)),
                };
            }
            // Taken out, so that the rest of the reader can be changed beside it.
            let buffer = core::mem::take(&mut self.buffer);
            let mut cursor = Cursor::new(&buffer[self.at..], STRING_BYTES_MAX);
            let stepped = self.step(&mut cursor);
            if stepped.is_ok() {
                let end = buffer.len() - cursor.rest.len();
                self.crc = self.crc.map(|crc| crc64_on(crc, &buffer[self.at..end]));
                self.offset += (end - self.at) as u64;
                self.at = end;
            }
            self.buffer = buffer;
            match stepped {
                Ok(None) => {}
                Ok(Some(event)) => return Ok(Step::Event(event)),
                Err(Fault::Stop(Stop::Short(bytes))) => return self.more(bytes),
                Err(Fault::Stop(Stop::Wrong(what))) => {
                    return Err(self.error(Problem::Damaged(what)));
                }
                Err(Fault::Problem(problem)) => return Err(self.error(problem)),
            }
        }
    }

    /// Why a file can't be read that ends here.
    pub fn truncated(&self) -> Error {
        self.error(if self.version == 0 { Problem::NotRdb } else { Problem::Truncated })
    }

    /// Whether these bytes are one value in this form, and nothing else.
    pub(crate) fn check(form: Form, value: &[u8]) -> Result<(), Error> {
        let mut reader = Self::new(Some(value.len() as u64));
        reader.feed(value);
        // A payload has a checksum of its own.
        (reader.crc, reader.state) = (None, State::Begin(form));
        loop {
            match reader.next()? {
                Step::Event(Event::KeyEnd) if reader.offset == value.len() as u64 => return Ok(()),
                Step::Event(Event::Item(_)) => {}
                _ => return Err(reader.error(Problem::Trailing)),
            }
        }
    }

    fn error(&self, problem: Problem) -> Error {
        Error { offset: self.offset, key: self.key.clone(), problem }
    }

    fn more(&self, bytes: u64) -> Result<Step, Error> {
        let fed = self.offset + (self.buffer.len() - self.at) as u64;
        match self.total {
            Some(total) if fed.saturating_add(bytes) > total => Err(self.truncated()),
            _ => Ok(Step::More(bytes.max(1))),
        }
    }
}

/// Steps. Each reads all that it needs before it changes anything, since it is taken again from its
/// beginning if there are too few bytes.
impl Reader {
    fn step(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Event>, Fault> {
        match &mut self.state {
            State::Header => self.header(cursor).map(Some),
            State::Between => self.between(cursor),
            State::Begin(form) => {
                self.state = begin(*form, cursor)?;
                Ok(None)
            }
            State::Module { is_key } => {
                let is_key = *is_key;
                if !skip_module_part(cursor)? {
                    return Ok(None);
                }
                self.state = State::Between;
                Ok(is_key.then(|| self.end_key()))
            }
            State::Value(value) => {
                let is_over = value.step(cursor, &mut self.items, &mut self.streaming)?;
                if is_over {
                    self.state = State::Between;
                }
                Ok(is_over.then(|| self.end_key()))
            }
            State::End => Ok(None),
        }
    }

    fn end_key(&mut self) -> Event {
        self.key = None;
        self.streaming = Streaming::default();
        Event::KeyEnd
    }

    fn header(&mut self, cursor: &mut Cursor<'_>) -> Result<Event, Fault> {
        let magic: [u8; MAGIC.len()] = cursor.chunk()?;
        let digits: [u8; 4] = cursor.chunk()?;
        if magic != *MAGIC || !digits.iter().all(u8::is_ascii_digit) {
            return Err(Problem::NotRdb.into());
        }
        let version = digits.iter().fold(0, |sum, digit| 10 * sum + u16::from(digit - b'0'));
        let is_known = (1..=VERSION_MAX).contains(&version) || mutant!("rdb_any_version");
        if !is_known {
            return Err(Problem::Version(version).into());
        }
        self.version = version;
        self.state = State::Between;
        Ok(Event::Version(version))
    }

    fn between(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Event>, Fault> {
        let [code] = cursor.chunk()?;
        if self.expire_at_ms.is_some() && (opcode::AUX..=opcode::END).contains(&code) {
            return damaged("an expiry that no key follows");
        }
        let event = match code {
            opcode::AUX => {
                let name = cursor.string()?.into_owned();
                Event::Aux { name, value: cursor.string()?.into_owned() }
            }
            opcode::FUNCTION => Event::Function(cursor.string()?.into_owned()),
            opcode::FUNCTION_EARLY => {
                return damaged("a function as a candidate of Redis 7.0 wrote it");
            }
            opcode::MODULE_AUX => {
                let name = module_name(cursor.number()?);
                // When it is to be loaded: a number, and before it what kind of number.
                let (kind, _) = (cursor.number()?, cursor.number()?);
                if kind != part::UNSIGNED {
                    return damaged("what a module keeps beside keys doesn't begin as it should");
                }
                self.state = State::Module { is_key: false };
                Event::ModuleAux(name)
            }
            opcode::DATABASE => Event::Database(cursor.number()?),
            opcode::SIZES => Event::Sizes { keys: cursor.number()?, expiring: cursor.number()? },
            opcode::SLOT => {
                for _ in 0..3 {
                    cursor.number()?;
                }
                return Ok(None);
            }
            opcode::IDLE => {
                cursor.number()?;
                return Ok(None);
            }
            opcode::FREQUENCY => {
                cursor.take(1)?;
                return Ok(None);
            }
            opcode::EXPIRY_MS => {
                // Before 1970 is as long ago as any other time.
                let at = i64::from_le_bytes(cursor.chunk()?);
                self.expire_at_ms = Some(u64::try_from(at).unwrap_or(0));
                return Ok(None);
            }
            opcode::EXPIRY_S => {
                let at = u64::try_from(i32::from_le_bytes(cursor.chunk()?)).unwrap_or(0);
                self.expire_at_ms = Some(if mutant!("rdb_expiry_unit") { at } else { at * 1000 });
                return Ok(None);
            }
            opcode::END => return self.end(cursor).map(Some),
            form => {
                let form = Form::of(form).ok_or(Problem::Unknown(form))?;
                return self.key(form, cursor).map(Some);
            }
        };
        Ok(Some(event))
    }

    fn key(&mut self, form: Form, cursor: &mut Cursor<'_>) -> Result<Event, Fault> {
        let name = cursor.string()?.into_owned();
        self.state = State::Begin(form);
        self.key = Some(name.clone());
        Ok(Event::Key(Key { name, form, expire_at_ms: self.expire_at_ms.take() }))
    }

    fn end(&mut self, cursor: &mut Cursor<'_>) -> Result<Event, Fault> {
        let mut checked = false;
        if self.version >= VERSION_CHECKED {
            let said = u64::from_le_bytes(cursor.chunk()?);
            let found = crc64_on(self.crc.unwrap_or_default(), &[opcode::END]);
            // 0 stands for none (`rdbchecksum no`).
            checked = said != 0;
            if checked && said != found && !mutant!("rdb_checksum_not_compared") {
                return Err(Problem::Checksum { said, found }.into());
            }
        }
        self.state = State::End;
        Ok(Event::End { checked })
    }
}

fn begin(form: Form, cursor: &mut Cursor<'_>) -> Result<State, Fault> {
    if form == Form::Module {
        // Whose it is.
        cursor.number()?;
        return Ok(State::Module { is_key: true });
    }
    Value::begin(form, cursor).map(State::Value)
}

/// Reads a part of what a module wrote. Whether it was the last one.
fn skip_module_part(cursor: &mut Cursor<'_>) -> Result<bool, Fault> {
    match cursor.number()? {
        part::END => return Ok(true),
        part::SIGNED | part::UNSIGNED => {
            cursor.number()?;
        }
        part::FLOAT => {
            cursor.take(4)?;
        }
        part::DOUBLE => {
            cursor.take(8)?;
        }
        part::STRING => {
            cursor.string()?;
        }
        _ => return damaged("a part of a module's value of a kind that Redis does not have"),
    }
    Ok(false)
}

/// The name of a module's type: nine characters of six bits each, above ten bits for its version.
fn module_name(id: u64) -> String {
    const CHARACTERS: &[u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).rev().map(|at| char::from(CHARACTERS[(id >> (10 + 6 * at) & 0x3f) as usize])).collect()
}
