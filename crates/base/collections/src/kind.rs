//! What a value is.

/// What a value is. The tag travels with every value so that other kinds need no new message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum ValueKind {
    /// A Redis string.
    #[default]
    String = 0,
    /// A Redis hash: fields and their values.
    Hash = 2,
    /// A Redis list.
    List = 3,
    /// A Redis set.
    Set = 4,
    /// A Redis sorted set: members and their scores.
    SortedSet = 5,
    /// A Redis stream: entries and groups of consumers.
    Stream = 6,
}

impl ValueKind {
    /// The kind with this wire number.
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::String),
            2 => Some(Self::Hash),
            3 => Some(Self::List),
            4 => Some(Self::Set),
            5 => Some(Self::SortedSet),
            6 => Some(Self::Stream),
            _ => None,
        }
    }
}
