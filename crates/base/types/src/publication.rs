//! What publishers and subscribers name.

use alloc::boxed::Box;

/// What a subscription's name stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Topic {
    /// The channel of that name.
    Channel,
    /// Every channel that the pattern matches.
    Pattern,
    /// The shard channel of that name, which no pattern matches.
    Shard,
    /// The changes of a key, for commands that wait for it at nodes without a copy. No client names
    /// it.
    Key,
}

impl Topic {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Channel, Self::Pattern, Self::Shard, Self::Key];
    /// Those that clients subscribe to, the first of all.
    pub const OF_CLIENTS: [Self; 3] = [Self::Channel, Self::Pattern, Self::Shard];
}

/// A message as it was published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// A channel, a shard channel or a key.
    pub topic: Topic,
    /// The channel's name, of at most [`crate::limits::CHANNEL_BYTES_MAX`] bytes.
    pub channel: Box<[u8]>,
    /// The message, of at most [`crate::limits::VALUE_BYTES_MAX`] bytes.
    pub message: Box<[u8]>,
}

impl Publication {
    /// Bytes of its texts.
    pub const fn bytes(&self) -> usize {
        self.channel.len() + self.message.len()
    }
}
