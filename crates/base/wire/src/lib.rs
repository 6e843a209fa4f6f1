//! Bytes between peers: the message header, the hello of connections, the messages between nodes
//! and guests (clients that coordinate their transactions themselves), and the codec of the
//! protocol crates' messages.
//!
//! All integers are little-endian and fixed in width, byte strings are length-prefixed, and there
//! are no optional fields: a reader needs no schema and a golden vector is readable in hex. A
//! layout is changed by changing [`VERSION`], never in place.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod codec;
mod guest;
mod header;
mod hello;
mod listing;
mod pubsub;
mod view;
mod words;

pub use codec::{Malformed, Reader, Writer};
pub use guest::{GuestMessage, TERMS_BYTES_MAX, Welcome};
pub use header::{Header, Kind};
pub use hello::{Hello, HelloRefusal};
pub use listing::{ListingMessage, Wanted};
pub use pubsub::{PubSubMessage, TopicCount};
pub use view::{read_view, write_view};
pub use words::Words;

/// The version of every layout here; peers of another version are refused at the hello.
pub const VERSION: u16 = 17;
