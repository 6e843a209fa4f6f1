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

/// A message between two nodes about the keys of a keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListingMessage {
    /// Asks for the next keys.
    Ask {
        /// The number for the answer to repeat.
        number: u64,
        /// Whether only the keys of the receiving lane are asked for, to be deleted there.
        of_lane: bool,
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
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
}

const ASK: u8 = 1;
const KEYS: u8 = 2;

impl ListingMessage {
    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Ask { number, of_lane, partitions, cursor, limit } => {
                writer.u8(ASK);
                writer.u64(*number);
                writer.u8(u8::from(*of_lane));
                writer.u64(*partitions);
                writer.u64(*cursor);
                writer.u32(*limit);
            }
            Self::Keys { number, next, keys } => {
                writer.u8(KEYS);
                writer.u64(*number);
                writer.u64(*next);
                writer.u32(u32::try_from(keys.len()).expect("a listing is short"));
                keys.iter().for_each(|key| writer.bytes(key));
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
                of_lane: match reader.u8()? {
                    flag @ (0 | 1) => flag == 1,
                    _ => return Err(Malformed("neither 0 nor 1")),
                },
                partitions: reader.u64()?,
                cursor: reader.u64()?,
                limit: reader.u32()?,
            },
            KEYS => {
                let (number, next) = (reader.u64()?, reader.u64()?);
                let mut keys = Vec::new();
                for _ in 0..reader.u32()? {
                    keys.push(reader.bytes()?.to_vec());
                }
                Self::Keys { number, next, keys }
            }
            _ => return Err(Malformed("unknown message about the keys of a keyspace")),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let ask = ListingMessage::Ask {
            number: 1,
            of_lane: true,
            partitions: 6,
            cursor: 0x0203,
            limit: 256,
        };
        let keys =
            ListingMessage::Keys { number: 1, next: 4, keys: [b"a".to_vec(), Vec::new()].to_vec() };
        let mut expected = [&[1, 1][..], &[0; 7], &[1, 6], &[0; 7], &[3, 2], &[0; 6]].concat();
        expected.extend([0, 1, 0, 0]);
        let mut more = [&[2, 1][..], &[0; 7], &[4], &[0; 7], &[2, 0, 0, 0]].concat();
        more.extend([1, 0, 0, 0, b'a', 0, 0, 0, 0]);
        for (message, expected) in [(ask, expected), (keys, more)] {
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
