//! What is published, and who listens: between the same lanes of two nodes.
//!
//! ```text
//! kind u8 | to u64 | number u64 | fields ...
//! ```
//! `to` is the life of the receiving node that the sender knows: a message to an earlier life says
//! nothing to this one. The sender numbers its publications for each receiver, and apart from them
//! what it tells of its listeners. Each of these messages can be lost, come twice, or be overtaken.

use alloc::boxed::Box;
use alloc::vec::Vec;

use quorate_types::{Incarnation, Publication, Topic};

use crate::{Malformed, Reader, Writer};

/// How many clients of the sending lane listen to a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicCount {
    /// What the name stands for.
    pub topic: Topic,
    /// The name of a channel, or a pattern.
    pub name: Box<[u8]>,
    /// How many clients; 0 if none does any more.
    pub count: u32,
}

/// A message between two lanes about publications.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PubSubMessage {
    /// Hand this to your node's subscribers.
    Publish {
        /// The receiver's life.
        to: Incarnation,
        /// From 1 on, without gaps, in the order in which the sender published.
        number: u64,
        /// What was published.
        publication: Publication,
    },
    /// What the clients of the sending lane listen to.
    Listen {
        /// The receiver's life.
        to: Incarnation,
        /// Greater than that of every earlier message of this kind.
        number: u64,
        /// The message that the receiver must have heard last. 0 if it forgets what it has heard,
        /// and this begins anew.
        base: u64,
        /// Whether the receiver knows everything by now.
        complete: bool,
        /// What has changed, or a part of everything.
        counts: Vec<TopicCount>,
    },
    /// The receiver's message [`PubSubMessage::Listen`] of this number was heard, and all before it.
    Heard {
        /// The receiver's life.
        to: Incarnation,
        /// The number.
        number: u64,
    },
}

const PUBLISH: u8 = 1;
const LISTEN: u8 = 2;
const HEARD: u8 = 3;

fn topic_number(topic: Topic) -> u8 {
    match topic {
        Topic::Channel => 0,
        Topic::Pattern => 1,
        Topic::Shard => 2,
        Topic::Key => 3,
    }
}

fn read_topic(reader: &mut Reader<'_>) -> Result<Topic, Malformed> {
    match reader.u8()? {
        0 => Ok(Topic::Channel),
        1 => Ok(Topic::Pattern),
        2 => Ok(Topic::Shard),
        3 => Ok(Topic::Key),
        _ => Err(Malformed("nothing that is listened to")),
    }
}

impl PubSubMessage {
    /// Appends a [`PubSubMessage::Publish`].
    pub fn encode_publish(
        to: Incarnation,
        number: u64,
        publication: &Publication,
        writer: &mut Writer<'_>,
    ) {
        writer.u8(PUBLISH);
        writer.u64(to.0);
        writer.u64(number);
        writer.u8(topic_number(publication.topic));
        writer.bytes(&publication.channel);
        writer.rest(&publication.message);
    }

    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Publish { to, number, publication } => {
                Self::encode_publish(*to, *number, publication, writer);
            }
            Self::Listen { to, number, base, complete, counts } => {
                writer.u8(LISTEN);
                writer.u64(to.0);
                writer.u64(*number);
                writer.u64(*base);
                writer.u8(u8::from(*complete));
                writer.u32(u32::try_from(counts.len()).expect("a part is short"));
                for TopicCount { topic, name, count } in counts {
                    writer.u8(topic_number(*topic));
                    writer.bytes(name);
                    writer.u32(*count);
                }
            }
            Self::Heard { to, number } => {
                writer.u8(HEARD);
                writer.u64(to.0);
                writer.u64(*number);
            }
        }
    }

    /// Reads a message. Lists take memory only for names that are there.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let (kind, to, number) = (reader.u8()?, Incarnation(reader.u64()?), reader.u64()?);
        let message = match kind {
            PUBLISH => {
                let topic = read_topic(&mut reader)?;
                if topic == Topic::Pattern {
                    return Err(Malformed("a message to a pattern"));
                }
                let channel = reader.bytes()?.into();
                let message = core::mem::take(&mut reader.0).into();
                let publication = Publication { topic, channel, message };
                Self::Publish { to, number, publication }
            }
            LISTEN => {
                let base = reader.u64()?;
                let complete = match reader.u8()? {
                    flag @ (0 | 1) => flag == 1,
                    _ => return Err(Malformed("neither 0 nor 1")),
                };
                let mut counts = Vec::new();
                for _ in 0..reader.u32()? {
                    counts.push(TopicCount {
                        topic: read_topic(&mut reader)?,
                        name: reader.bytes()?.into(),
                        count: reader.u32()?,
                    });
                }
                Self::Listen { to, number, base, complete, counts }
            }
            HEARD => Self::Heard { to, number },
            _ => return Err(Malformed("unknown message about publications")),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn encoded(message: &PubSubMessage) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.encode(&mut Writer(&mut bytes));
        bytes
    }

    #[test]
    fn golden_bytes() {
        let (to, number) = (Incarnation(7), 3);
        let publication =
            Publication { topic: Topic::Shard, channel: (*b"ch").into(), message: (*b"hi").into() };
        let publish = PubSubMessage::Publish { to, number, publication };
        let counts = vec![
            TopicCount { topic: Topic::Channel, name: (*b"a").into(), count: 2 },
            TopicCount { topic: Topic::Pattern, name: (*b"").into(), count: 0 },
        ];
        let listen = PubSubMessage::Listen { to, number, base: 2, complete: true, counts };
        let heard = PubSubMessage::Heard { to, number };
        let head = |kind: u8| [&[kind, 7][..], &[0; 7], &[3], &[0; 7]].concat();
        let published = [&head(1)[..], &[2, 2, 0, 0, 0], b"ch", b"hi"].concat();
        let mut listened = [&head(2)[..], &[2], &[0; 7], &[1, 2, 0, 0, 0]].concat();
        listened.extend([0, 1, 0, 0, 0, b'a', 2, 0, 0, 0]);
        listened.extend([1, 0, 0, 0, 0, 0, 0, 0, 0]);
        for (message, expected) in [(publish, published), (listen, listened), (heard, head(3))] {
            let bytes = encoded(&message);
            assert_eq!(bytes, expected, "the layout changed without a new VERSION");
            assert_eq!(PubSubMessage::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let counts = vec![TopicCount { topic: Topic::Shard, name: (*b"a").into(), count: 2 }];
        let (to, number) = (Incarnation(7), 3);
        let listen = PubSubMessage::Listen { to, number, base: 2, complete: false, counts };
        let bytes = encoded(&listen);
        for cut in 0..bytes.len() {
            assert!(PubSubMessage::decode(&bytes[..cut]).is_err());
        }
        let publication =
            Publication { topic: Topic::Channel, channel: (*b"ch").into(), message: (*b"").into() };
        let publish = encoded(&PubSubMessage::Publish { to, number, publication });
        for cut in 0..publish.len() {
            assert!(PubSubMessage::decode(&publish[..cut]).is_err());
        }
        let damaged = |bytes: &[u8], at: usize, byte: u8| {
            let mut bytes = bytes.to_vec();
            bytes[at] = byte;
            PubSubMessage::decode(&bytes)
        };
        assert_eq!(damaged(&publish, 0, 9), Err(Malformed("unknown message about publications")));
        assert_eq!(damaged(&publish, 17, 1), Err(Malformed("a message to a pattern")));
        assert!(damaged(&publish, 17, 3).is_ok(), "a key");
        assert_eq!(damaged(&publish, 17, 4), Err(Malformed("nothing that is listened to")));
        assert_eq!(damaged(&bytes, 25, 2), Err(Malformed("neither 0 nor 1")));
        // A count of names that are not there takes no memory.
        assert!(damaged(&bytes, 29, 0xff).is_err());
        let longer = [&bytes[..], &[0]].concat();
        assert!(PubSubMessage::decode(&longer).is_err());
    }
}
