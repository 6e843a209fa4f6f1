//! The arguments of a command as spans of one buffer.

use quorate_wire::Writer;

use crate::OwnedArgs;

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
    /// What the command's random choices follow from, if it makes any ([`crate::Spec::draws`]): another
    /// number for each command of each client. Wherever and however often the command runs, it is the
    /// same.
    pub seed: u64,
}

/// Set in the number of arguments if a seed follows it.
pub(crate) const SEEDED: u32 = 1 << 31;

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
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> + ExactSizeIterator + Clone + use<'a> {
        let buffer = self.buffer;
        self.spans.iter().map(move |span| &buffer[span.start as usize..span.end as usize])
    }

    /// A copy of the arguments, without whatever else is in the buffer.
    pub fn to_owned(&self) -> OwnedArgs {
        OwnedArgs::copy(*self)
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        let count = u32::try_from(self.len()).ok().filter(|count| count & SEEDED == 0);
        let count = count.expect("limits bound the number of arguments");
        if self.seed == 0 {
            writer.u32(count);
        } else {
            writer.u32(count | SEEDED);
            writer.u64(self.seed);
        }
        for argument in self.iter() {
            writer.bytes(argument);
        }
    }
}
