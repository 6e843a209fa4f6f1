//! The keys of a keyspace: a lane whose node holds none or not all of them asks the same lane of a
//! node that does. Both messages can be lost or come twice; an answer belongs to the question of
//! its number.
//!
//! ```text
//! kind u8 | fields ...
//! ```
//! The keyspace and the epoch are in the header ([`crate::Header`]).

use alloc::vec::Vec;

use crate::{Malformed, Reader, Writer};

/// What is asked about the keys of a keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Those that have a value.
    Keys,
    /// Those of the receiving lane, to be deleted there.
    KeysOfLane,
    /// How many have a value.
    Count,
}

/// A message between two nodes about the keys of a keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListingMessage {
    /// Asks for the next keys, or for the number of all.
    Ask {
        /// The number for the answer to repeat.
        number: u64,
        /// What is asked.
        wanted: Wanted,
        /// The partitions whose keys are asked for, one bit each.
        partitions: u64,
        /// The point where the listing goes on; 0 begins.
        cursor: u64,
        /// About how many records to look at.
        limit: u32,
    },
    /// The keys.
    Keys {
        /// The number of the question.
        number: u64,
        /// The point where the listing goes on; 0 at the end.
        next: u64,
        /// The keys, each with whether it has a value and no update of it is under way here. Keys
        /// without a value are here because of such an update.
        keys: Vec<(Vec<u8>, bool)>,
    },
    /// How many there are.
    Count {
        /// The number of the question.
        number: u64,
        /// Keys that have a value.
        keys: u64,
    },
}

const ASK: u8 = 1;
const KEYS: u8 = 2;
const COUNT: u8 = 3;

impl ListingMessage {
    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Ask { number, wanted, partitions, cursor, limit } => {
                writer.u8(ASK);
                writer.u64(*number);
                writer.u8(*wanted as u8);
                writer.u64(*partitions);
                writer.u64(*cursor);
                writer.u32(*limit);
            }
            Self::Keys { number, next, keys } => {
                writer.u8(KEYS);
                writer.u64(*number);
                writer.u64(*next);
                writer.u32(u32::try_from(keys.len()).expect("a listing is short"));
                for (key, is_settled) in keys {
                    writer.u8(u8::from(*is_settled));
                    writer.bytes(key);
                }
            }
            Self::Count { number, keys } => {
                writer.u8(COUNT);
                writer.u64(*number);
                writer.u64(*keys);
            }
        }
    }

    /// Reads a message. The list of keys takes memory only for keys that are there.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            ASK => Self::Ask {
                number: reader.u64()?,
                wanted: match reader.u8()? {
                    0 => Wanted::Keys,
                    1 => Wanted::KeysOfLane,
                    2 => Wanted::Count,
                    _ => return Err(Malformed("nothing that is asked about keys")),
                },
                partitions: reader.u64()?,
                cursor: reader.u64()?,
                limit: reader.u32()?,
            },
            KEYS => {
                let (number, next) = (reader.u64()?, reader.u64()?);
                let mut keys = Vec::new();
                for _ in 0..reader.u32()? {
                    let is_settled = match reader.u8()? {
                        flag @ (0 | 1) => flag == 1,
                        _ => return Err(Malformed("neither 0 nor 1")),
                    };
                    keys.push((reader.bytes()?.to_vec(), is_settled));
                }
                Self::Keys { number, next, keys }
            }
            COUNT => Self::Count { number: reader.u64()?, keys: reader.u64()? },
            _ => return Err(Malformed("unknown message about the keys of a keyspace")),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn golden_bytes() {
        let ask = ListingMessage::Ask {
            number: 1,
            wanted: Wanted::KeysOfLane,
            partitions: 6,
            cursor: 0x0203,
            limit: 256,
        };
        let keys = vec![(b"a".to_vec(), true), (Vec::new(), false)];
        let keys = ListingMessage::Keys { number: 1, next: 4, keys };
        let count = ListingMessage::Count { number: 1, keys: 5 };
        let mut expected = [&[1, 1][..], &[0; 7], &[1, 6], &[0; 7], &[3, 2], &[0; 6]].concat();
        expected.extend([0, 1, 0, 0]);
        let mut more = [&[2, 1][..], &[0; 7], &[4], &[0; 7], &[2, 0, 0, 0]].concat();
        more.extend([1, 1, 0, 0, 0, b'a', 0, 0, 0, 0, 0]);
        let counted = [&[3, 1][..], &[0; 7], &[5], &[0; 7]].concat();
        for (message, expected) in [(ask, expected), (keys, more), (count, counted)] {
            let mut bytes = Vec::new();
            message.encode(&mut Writer(&mut bytes));
            assert_eq!(bytes, expected, "the layout changed without a new VERSION");
            assert_eq!(ListingMessage::decode(&bytes), Ok(message));
            for cut in 0..bytes.len() {
                assert!(ListingMessage::decode(&bytes[..cut]).is_err());
            }
        }
    }
}
