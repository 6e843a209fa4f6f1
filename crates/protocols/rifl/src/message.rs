//! Messages between the lease managers of the same lane of all nodes.
//!
//! ```text
//! clock u64 | kind u8 | fields ...
//! CLOCK 1 | asks u8 | key u64 u64
//! ASK 2 | cookie u64 | lease u64 | told u64
//! CLOSE 3 | cookie u64 | lease u64
//! GRANT 4 | cookie u64 | lease u64 | until u64
//! REFUSE 5 | cookie u64 | lease u64 | reason u8
//! SWEEP 6 | leases u64 ...
//! GONE 7 | (lease u64 | closed u8) ...
//! ```
//! Integers are little-endian. The epoch stands in the header of the frame.

use alloc::vec::Vec;

use quorate_wire::{Malformed, Reader, Writer};

use crate::LeaseId;
use crate::grant::Lost;
use crate::key::Key;

/// A message from one lease manager to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The sender's hybrid clock. Verdicts on expired leases are as of this.
    pub clock: u64,
    /// The content.
    pub body: Body,
}

/// The content of a [`Message`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// Any live member → any: the sender's clock.
    Clock {
        /// Whether the sender asks for the receiver's clock.
        asks: bool,
        /// The key of the sender's tokens.
        key: Key,
    },
    /// A client's node → owner: renew this lease.
    Ask {
        /// Comes back in the answer.
        cookie: u64,
        /// The lease.
        lease: LeaseId,
        /// The expiry that the client was last told.
        told: u64,
    },
    /// A client's node → owner: the client needs this lease no more.
    Close {
        /// Comes back in the answer.
        cookie: u64,
        /// The lease.
        lease: LeaseId,
    },
    /// Owner → a client's node: the lease lives.
    Grant {
        /// As in the request.
        cookie: u64,
        /// As in the request.
        lease: LeaseId,
        /// Attempts dated up to here may be made.
        until: u64,
    },
    /// Owner → a client's node: the lease has ended, or can't be kept.
    Refuse {
        /// As in the request.
        cookie: u64,
        /// As in the request.
        lease: LeaseId,
        /// The reason.
        reason: Denial,
    },
    /// A node with records → owner: which of these leases have ended?
    Sweep {
        /// The leases.
        leases: Vec<LeaseId>,
    },
    /// Owner → nodes with records: these leases have ended.
    Gone {
        /// The leases, and how they ended.
        leases: Vec<(LeaseId, Lost)>,
    },
}

/// Why an owner grants no lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Denial {
    /// It has ended.
    Lost(Lost),
    /// Its member is gone, and the owner keeps the most of those leases that it may.
    Full,
}

fn write_lost(writer: &mut Writer<'_>, lost: Lost) {
    writer.u8(match lost {
        Lost::Expired => 0,
        Lost::Closed => 1,
    });
}

fn write_denial(writer: &mut Writer<'_>, denial: Denial) {
    match denial {
        Denial::Lost(lost) => write_lost(writer, lost),
        Denial::Full => writer.u8(2),
    }
}

fn read_denial(reader: &mut Reader<'_>) -> Result<Denial, Malformed> {
    match reader.u8()? {
        0 => Ok(Denial::Lost(Lost::Expired)),
        1 => Ok(Denial::Lost(Lost::Closed)),
        2 => Ok(Denial::Full),
        _ => Err(Malformed("unknown reason to grant no lease")),
    }
}

fn read_lost(reader: &mut Reader<'_>) -> Result<Lost, Malformed> {
    match reader.u8()? {
        0 => Ok(Lost::Expired),
        1 => Ok(Lost::Closed),
        _ => Err(Malformed("unknown end of a lease")),
    }
}

impl Message {
    /// Appends the message.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.clock);
        let mut words = |kind: u8, words: &[u64]| {
            writer.u8(kind);
            words.iter().for_each(|word| writer.u64(*word));
        };
        match &self.body {
            Body::Clock { asks, key } => {
                words(1, &[]);
                writer.u8(u8::from(*asks));
                key.0.iter().for_each(|word| writer.u64(*word));
            }
            Body::Ask { cookie, lease, told } => words(2, &[*cookie, lease.0, *told]),
            Body::Close { cookie, lease } => words(3, &[*cookie, lease.0]),
            Body::Grant { cookie, lease, until } => words(4, &[*cookie, lease.0, *until]),
            Body::Refuse { cookie, lease, reason } => {
                words(5, &[*cookie, lease.0]);
                write_denial(writer, *reason);
            }
            Body::Sweep { leases } => {
                writer.u8(6);
                leases.iter().for_each(|lease| writer.u64(lease.0));
            }
            Body::Gone { leases } => {
                writer.u8(7);
                for (lease, lost) in leases {
                    writer.u64(lease.0);
                    write_lost(writer, *lost);
                }
            }
        }
    }

    /// Reads bytes that [`Message::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are no message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let clock = reader.u64()?;
        let body = match reader.u8()? {
            1 => match reader.u8()? {
                number @ (0 | 1) => {
                    let key = Key([reader.u64()?, reader.u64()?]);
                    Body::Clock { asks: number == 1, key }
                }
                _ => return Err(Malformed("neither 0 nor 1")),
            },
            2 => Body::Ask {
                cookie: reader.u64()?,
                lease: LeaseId(reader.u64()?),
                told: reader.u64()?,
            },
            3 => Body::Close { cookie: reader.u64()?, lease: LeaseId(reader.u64()?) },
            4 => Body::Grant {
                cookie: reader.u64()?,
                lease: LeaseId(reader.u64()?),
                until: reader.u64()?,
            },
            5 => Body::Refuse {
                cookie: reader.u64()?,
                lease: LeaseId(reader.u64()?),
                reason: read_denial(&mut reader)?,
            },
            6 => {
                let mut leases = Vec::with_capacity(reader.0.len() / 8);
                while !reader.0.is_empty() {
                    leases.push(LeaseId(reader.u64()?));
                }
                Body::Sweep { leases }
            }
            7 => {
                let mut leases = Vec::with_capacity(reader.0.len() / 9);
                while !reader.0.is_empty() {
                    leases.push((LeaseId(reader.u64()?), read_lost(&mut reader)?));
                }
                Body::Gone { leases }
            }
            _ => return Err(Malformed("unknown kind of message")),
        };
        reader.end()?;
        Ok(Self { clock, body })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn every() -> Vec<Message> {
        let lease = LeaseId(0x0102);
        let bodies = vec![
            Body::Clock { asks: true, key: Key([1, 2]) },
            Body::Ask { cookie: 3, lease, told: 4 },
            Body::Close { cookie: 3, lease },
            Body::Grant { cookie: 3, lease, until: 5 },
            Body::Refuse { cookie: 3, lease, reason: Denial::Lost(Lost::Expired) },
            Body::Refuse { cookie: 3, lease, reason: Denial::Full },
            Body::Sweep { leases: vec![lease, LeaseId(7)] },
            Body::Gone { leases: vec![(lease, Lost::Closed), (LeaseId(7), Lost::Expired)] },
        ];
        bodies.into_iter().map(|body| Message { clock: 9, body }).collect()
    }

    #[test]
    fn every_message_comes_back_and_no_cut_goes_unnoticed() {
        for message in every() {
            let mut bytes = Vec::new();
            message.encode(&mut Writer(&mut bytes));
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            for cut in 0..bytes.len() {
                let shorter = Message::decode(&bytes[..cut]);
                let list = matches!(message.body, Body::Sweep { .. } | Body::Gone { .. });
                assert!(
                    shorter.is_err() || (list && shorter != Ok(message.clone())),
                    "cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let mut bytes = Vec::new();
        for message in every() {
            message.encode(&mut Writer(&mut bytes));
        }
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!((bytes.len(), hash), PINNED);
    }

    const PINNED: (usize, u64) = (221, 1_197_253_947_733_904_740);
}
