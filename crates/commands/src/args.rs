//! The arguments of a command as spans of one buffer.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_wire::{Malformed, Reader, Writer};

/// Where one argument lies in its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// The arguments of one command, its name first, borrowed from wherever they were read.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// The bytes that the spans refer to.
    pub buffer: &'a [u8],
    /// One span per argument.
    pub spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// How many, the command's name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is not even a name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `index`; 0 is the command's name.
    ///
    /// # Panics
    /// If there are not that many: the arity was checked before.
    #[inline]
    pub fn get(&self, index: usize) -> &'a [u8] {
        let Span { start, end } = self.spans[index];
        &self.buffer[start as usize..end as usize]
    }

    /// Every argument, the command's name first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &'a [u8]> + Clone + use<'a> {
        let buffer = self.buffer;
        self.spans.iter().map(move |span| &buffer[span.start as usize..span.end as usize])
    }

    /// A copy of the arguments, without whatever else is in the buffer: one lies behind the other.
    pub fn to_owned(&self) -> OwnedArgs {
        let length = |span: &Span| (span.end - span.start) as usize;
        let mut buffer = Vec::with_capacity(self.spans.iter().map(length).sum());
        let copy = |span: &Span| {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(&self.buffer[span.start as usize..span.end as usize]);
            Span { start, end: buffer.len() as u32 }
        };
        // No longer than the buffer, whose spans have 32 bits.
        let spans = self.spans.iter().map(copy).collect();
        OwnedArgs { buffer: buffer.into(), spans }
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.u32(u32::try_from(self.len()).expect("limits bound the number of arguments"));
        for argument in self.iter() {
            writer.bytes(argument);
        }
    }
}

/// The arguments of one command in a buffer of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedArgs {
    buffer: Box<[u8]>,
    spans: Box<[Span]>,
}

impl OwnedArgs {
    /// Copies arguments, the command's name first.
    pub fn new<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut growing = Self::with_capacity(0, 0);
        for argument in arguments {
            growing.push(argument);
        }
        growing.finish()
    }

    /// The arguments.
    #[inline]
    pub fn borrow(&self) -> Args<'_> {
        Args { buffer: &self.buffer, spans: &self.spans }
    }

    fn with_capacity(bytes: usize, count: usize) -> Growing {
        Growing { buffer: Vec::with_capacity(bytes), spans: Vec::with_capacity(count) }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.u32()? as usize;
        // Every argument takes at least its length field, so a count that the input can't hold is
        // noticed before anything is allocated for it.
        if count > reader.0.len() / 4 {
            return Err(Malformed("more arguments than bytes"));
        }
        let mut ahead = *reader;
        let mut bytes = 0;
        for _ in 0..count {
            bytes += ahead.bytes()?.len();
        }
        let mut growing = Self::with_capacity(bytes, count);
        for _ in 0..count {
            growing.push(reader.bytes()?);
        }
        Ok(growing.finish())
    }
}

struct Growing {
    buffer: Vec<u8>,
    spans: Vec<Span>,
}

impl Growing {
    fn push(&mut self, argument: &[u8]) {
        let start = self.buffer.len() as u32;
        self.buffer.extend_from_slice(argument);
        let end = u32::try_from(self.buffer.len()).expect("limits bound a request below 4 GiB");
        self.spans.push(Span { start, end });
    }

    fn finish(self) -> OwnedArgs {
        OwnedArgs { buffer: self.buffer.into(), spans: self.spans.into() }
    }
}
