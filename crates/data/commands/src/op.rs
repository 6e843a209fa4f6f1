//! What an engine queues.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, Operation};
use quorate_types::UnixMillis;
use quorate_wire::{Malformed, Reader, Writer};

use crate::{Call, OwnedCall, Reply, Script};

/// An operation on one key that borrows nothing.
///
/// Encoded as (integers little-endian, `bytes` with a length of four bytes before them):
/// ```text
/// call       0 | id u16 | count u32 | count * argument bytes
/// script     1 | key bytes | count u32 | count * (existed u8 | version u64 | writer u32)
///              | count u32 | count * (id u16 | count u32 | count * argument bytes)
/// version    2 | key bytes
/// ```
/// An id is a [`crate::Spec::id`], which nodes of one version agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// A command that has a key.
    Call(OwnedCall),
    /// A `MULTI`/`EXEC` block.
    Script(Script),
    /// Reads the version of a key and whether it has a value, for `WATCH`; answers
    /// [`Reply::Version`].
    Version(Box<[u8]>),
}

const CALL: u8 = 0;
const SCRIPT: u8 = 1;
const VERSION: u8 = 2;

impl Op {
    pub(crate) fn encode_call(call: Call<'_>, out: &mut Vec<u8>) {
        let mut writer = Writer(out);
        writer.u8(CALL);
        call.write(&mut writer);
    }

    fn read(mut reader: Reader<'_>) -> Result<Self, Malformed> {
        let op = match reader.u8()? {
            CALL => {
                let call = OwnedCall::read(&mut reader)?;
                if !call.call().spec.has_keys() {
                    return Err(Malformed("an operation without a key"));
                }
                Self::Call(call)
            }
            SCRIPT => Self::Script(Script::read(&mut reader)?),
            VERSION => Self::Version(reader.bytes()?.into()),
            _ => return Err(Malformed("unknown kind of operation")),
        };
        reader.end()?;
        Ok(op)
    }
}

impl Operation for Op {
    type Owned = Self;
    type Reply = Reply<'static>;

    fn key(&self) -> &[u8] {
        match self {
            Self::Call(call) => {
                let call = call.call();
                call.args.get(call.spec.keys.first as usize)
            }
            Self::Script(script) => &script.key,
            Self::Version(key) => key,
        }
    }

    fn access(&self) -> Access {
        match self {
            Self::Call(call) => call.call().access(),
            Self::Script(script) => script.access(),
            Self::Version(_) => Access::Read,
        }
    }

    fn apply<'a>(&'a self, now: UnixMillis, current: Current<'a>) -> (Reply<'static>, Change<'a>) {
        match self {
            Self::Call(call) => {
                let (reply, change) = call.call().execute(now, current);
                (reply.within_limit().into_owned(), change)
            }
            Self::Script(script) => script.execute(now, current),
            Self::Version(_) => {
                (Reply::Version(current.timestamp, current.content.is_some()), Change::Keep)
            }
        }
    }

    fn into_owned(self) -> Self {
        self
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Call(call) => Self::encode_call(call.call(), out),
            Self::Script(script) => {
                let mut writer = Writer(out);
                writer.u8(SCRIPT);
                script.write(&mut writer);
            }
            Self::Version(key) => {
                let mut writer = Writer(out);
                writer.u8(VERSION);
                writer.bytes(key);
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read(Reader(bytes)).ok()
    }

    fn encode_reply(reply: &Reply<'static>, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode_reply(bytes: &[u8]) -> Option<Reply<'static>> {
        Reply::decode(bytes)
    }
}
